//! Events as lines: the fields between bars, as Beam's are compared, and JSON.

use std::io::Write;
use std::sync::Arc;

use arrow_array::{RecordBatch, StringArray};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema};

use super::batch::chosen;
use super::config::Config;
use super::event::{AuctionText, Kind, PersonText, auction, bid, person};
use crate::error::{Error, Result};

/// `P|...`, `A|...` or `B|...`, a line per event; times are milliseconds since the epoch.
pub fn text_lines(config: &Config, first: u64, count: u64) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut scratch = Scratch::default();
    for event in chosen(config, first, count, &Kind::ALL)? {
        out.push(match Kind::of(event) {
            Kind::Person => b'P',
            Kind::Auction => b'A',
            Kind::Bid => b'B',
        });
        write_fields(event, config, &mut scratch, &mut Bars { out: &mut out });
        out.push(b'\n');
    }
    Ok(out)
}

/// One JSON object per event in a column `value`, with the names and types that the columns of a batch have.
pub fn json_lines(config: &Config, first: u64, count: u64, kinds: &[Kind]) -> Result<RecordBatch> {
    let events = chosen(config, first, count, kinds)?;
    let mut out = Vec::with_capacity(events.len() * 256);
    let mut ends = Vec::with_capacity(events.len() + 1);
    ends.push(0);
    let mut scratch = Scratch::default();
    for event in events {
        write_object(event, config, &mut scratch, &mut out);
        ends.push(i32::try_from(out.len()).map_err(|_| {
            Error::invalid(format!(
                "the JSON of {count} events is more than a batch can hold; ask for fewer at a time"
            ))
        })?);
    }
    let offsets = OffsetBuffer::new(ScalarBuffer::from(ends));
    let array = StringArray::try_new(offsets, Buffer::from_vec(out), None)?;
    let schema = Schema::new(vec![Field::new("value", DataType::Utf8, true)]);
    Ok(RecordBatch::try_new(
        Arc::new(schema),
        vec![Arc::new(array)],
    )?)
}

fn write_object(event: u64, config: &Config, scratch: &mut Scratch, out: &mut Vec<u8>) {
    let kind = Kind::of(event);
    out.extend_from_slice(b"{\"event_type\":");
    write_number(kind as i64, out);
    out.extend_from_slice(b",\"");
    out.extend_from_slice(kind.name().as_bytes());
    out.extend_from_slice(b"\":{");
    let mut json = Json { out, fields: 0 };
    write_fields(event, config, scratch, &mut json);
    out.extend_from_slice(b"},\"ts\":");
    write_time(config.time_ms(event), out);
    out.push(b'}');
}

/// How a line has its fields.
trait Form {
    fn number(&mut self, name: &str, value: i64);
    fn time(&mut self, name: &str, ms: i64);
    fn text(&mut self, name: &str, value: &[u8]);
}

/// Buffers that serve event after event.
#[derive(Default)]
struct Scratch {
    person: PersonText,
    auction: AuctionText,
    bid_extra: Vec<u8>,
}

fn write_fields(event: u64, config: &Config, scratch: &mut Scratch, form: &mut impl Form) {
    match Kind::of(event) {
        Kind::Person => {
            let text = &mut scratch.person;
            text.clear();
            let drawn = person(event, config, text);
            form.number("id", drawn.id);
            form.text("name", &text.name);
            form.text("email", &text.email);
            form.text("card", &text.card);
            form.text("city", &text.city);
            form.text("state", &text.state);
            form.time("ts", drawn.ts_ms);
            form.text("extra", &text.extra);
        }
        Kind::Auction => {
            let text = &mut scratch.auction;
            text.clear();
            let drawn = auction(event, config, text);
            form.number("id", drawn.id);
            form.text("name", &text.name);
            form.text("description", &text.description);
            form.number("initial", drawn.initial);
            form.number("reserve", drawn.reserve);
            form.time("ts", drawn.ts_ms);
            form.time("expires", drawn.expires_ms);
            form.number("seller", drawn.seller);
            form.number("category", drawn.category);
            form.text("extra", &text.extra);
        }
        Kind::Bid => {
            let extra = &mut scratch.bid_extra;
            extra.clear();
            let drawn = bid(event, config, extra);
            form.number("auction", drawn.auction);
            form.number("bidder", drawn.bidder);
            form.number("price", drawn.price);
            form.time("ts", drawn.ts_ms);
            form.text("extra", extra);
        }
    }
}

struct Bars<'a> {
    out: &'a mut Vec<u8>,
}

impl Form for Bars<'_> {
    fn number(&mut self, _name: &str, value: i64) {
        self.out.push(b'|');
        write_number(value, self.out);
    }

    fn time(&mut self, name: &str, ms: i64) {
        self.number(name, ms);
    }

    fn text(&mut self, _name: &str, value: &[u8]) {
        self.out.push(b'|');
        self.out.extend_from_slice(value);
    }
}

struct Json<'a> {
    out: &'a mut Vec<u8>,
    fields: usize,
}

impl Json<'_> {
    fn name(&mut self, name: &str) {
        if self.fields > 0 {
            self.out.push(b',');
        }
        self.fields += 1;
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }
}

impl Form for Json<'_> {
    fn number(&mut self, name: &str, value: i64) {
        self.name(name);
        write_number(value, self.out);
    }

    fn time(&mut self, name: &str, ms: i64) {
        self.name(name);
        write_time(ms, self.out);
    }

    /// The backslash is the only character of the generator's that JSON wants escaped.
    fn text(&mut self, name: &str, value: &[u8]) {
        self.name(name);
        self.out.push(b'"');
        let mut pieces = value.split(|byte| *byte == b'\\');
        self.out.extend_from_slice(pieces.next().unwrap_or(b""));
        for piece in pieces {
            self.out.extend_from_slice(b"\\\\");
            self.out.extend_from_slice(piece);
        }
        self.out.push(b'"');
    }
}

fn write_number(number: i64, out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    let _ = write!(out, "{number}");
}

/// In ISO 8601 with milliseconds, in UTC.
fn write_time(ms: i64, out: &mut Vec<u8>) {
    const DAY_MS: i64 = 86_400_000;
    let (year, month, day) = date(ms.div_euclid(DAY_MS));
    let ms = ms.rem_euclid(DAY_MS);
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    let _ = write!(
        out,
        "\"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z\"",
        ms % 1000
    );
}

/// Year, month and day of a number of days since 1970. Years begin in March here, so that leap days come last.
fn date(days: i64) -> (i64, i64, i64) {
    const CYCLE_DAYS: i64 = 146_097; // 400 years
    let days = days + 719_468; // since the first of March of the year 0
    let cycle = days.div_euclid(CYCLE_DAYS);
    let day = days.rem_euclid(CYCLE_DAYS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let year = cycle * 400 + year + i64::from(month >= 10);
    (year, (month + 2) % 12 + 1, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::{date, write_time};

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(-1), (1969, 12, 31));
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(11_017), (2000, 3, 1));
        assert_eq!(date(16_631), (2015, 7, 15));
    }

    #[test]
    fn times_have_milliseconds() {
        let mut out = Vec::new();
        write_time(1_436_918_400_000 + 3_723_004, &mut out);
        assert_eq!(out, b"\"2015-07-15T01:02:03.004Z\"");
    }
}
