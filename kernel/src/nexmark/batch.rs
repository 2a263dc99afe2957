//! Events as a record batch: one nullable struct per kind, the columns filled in place.

use std::sync::Arc;

use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{
    ArrayRef, Int32Array, PrimitiveArray, RecordBatch, RecordBatchOptions, StringArray, StructArray,
};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{Field, Fields, Schema};

use super::config::Config;
use super::event::{AuctionText, Kind, PersonText, auction, bid, person};
use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    EventType,
    Person,
    Auction,
    Bid,
    Ts,
}

impl Column {
    pub const ALL: [Self; 5] = [
        Self::EventType,
        Self::Person,
        Self::Auction,
        Self::Bid,
        Self::Ts,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::EventType => "event_type",
            Self::Person => Kind::Person.name(),
            Self::Auction => Kind::Auction.name(),
            Self::Bid => Kind::Bid.name(),
            Self::Ts => "ts",
        }
    }
}

/// The numbers of the events of the given kinds among `count` places of the stream.
pub fn chosen(config: &Config, first: u64, count: u64, kinds: &[Kind]) -> Result<Vec<u64>> {
    config.check_range(first, count)?;
    let all = (first..first + count).map(|place| config.at_place(place));
    if kinds.len() == Kind::ALL.len() {
        return Ok(all.collect());
    }
    Ok(all
        .filter(|event| kinds.contains(&Kind::of(*event)))
        .collect())
}

/// The events of some kinds in a range of the stream, with the named columns in the given order.
pub fn batch(
    config: &Config,
    first: u64,
    count: u64,
    kinds: &[Kind],
    columns: &[Column],
) -> Result<RecordBatch> {
    let events = chosen(config, first, count, kinds)?;
    let mut fields = Vec::with_capacity(columns.len());
    let mut arrays = Vec::with_capacity(columns.len());
    for column in columns {
        let array: ArrayRef = match column {
            Column::EventType => Arc::new(Int32Array::from_iter_values(
                events.iter().map(|event| Kind::of(*event) as i32),
            )),
            Column::Ts => {
                let times = events.iter().map(|event| config.time_ms(*event) * 1000);
                timestamps(times.collect(), None)
            }
            Column::Person => Arc::new(people(config, &events)?),
            Column::Auction => Arc::new(auctions(config, &events)?),
            Column::Bid => Arc::new(bids(config, &events)?),
        };
        fields.push(Field::new(column.name(), array.data_type().clone(), true));
        arrays.push(array);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(events.len()));
    let schema = Arc::new(Schema::new(fields));
    Ok(RecordBatch::try_new_with_options(schema, arrays, &options)?)
}

/// The rows of one kind among all: where they are, in order, and which rows are null.
struct Places {
    rows: usize,
    valid: Option<NullBuffer>,
}

impl Places {
    fn of(kind: Kind, events: &[u64]) -> Self {
        let is_kind = |row| {
            events
                .get(row)
                .is_some_and(|event: &u64| Kind::of(*event) == kind)
        };
        Self {
            rows: events.len(),
            valid: Some(NullBuffer::new(BooleanBuffer::collect_bool(
                events.len(),
                is_kind,
            ))),
        }
    }

    fn numbers(&self, values: Vec<i64>) -> ArrayRef {
        let values = ScalarBuffer::from(values);
        Arc::new(PrimitiveArray::<Int64Type>::new(values, self.valid.clone()))
    }

    fn times(&self, values: Vec<i64>) -> ArrayRef {
        timestamps(values, self.valid.clone())
    }

    /// The strings of a field, one after the other, and where those of the rows so far start.
    fn strings(&self, text: Vec<u8>, mut starts: Starts) -> Result<ArrayRef> {
        if i32::try_from(text.len()).is_err() {
            return Err(Error::invalid(format!(
                "{} events hold more text than a batch can; ask for fewer at a time",
                self.rows
            )));
        }
        starts.reach(self.rows, text.len());
        let offsets = OffsetBuffer::new(ScalarBuffer::from(starts.0));
        let values = Buffer::from_vec(text);
        Ok(Arc::new(StringArray::try_new(
            offsets,
            values,
            self.valid.clone(),
        )?))
    }

    fn group(self, named: Vec<(&str, ArrayRef)>) -> Result<StructArray> {
        let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) = named
            .into_iter()
            .map(|(name, array)| (Field::new(name, array.data_type().clone(), true), array))
            .unzip();
        let fields = Fields::from(fields);
        Ok(StructArray::try_new_with_length(
            fields, arrays, self.valid, self.rows,
        )?)
    }
}

/// Where each row's string starts. Rows of other kinds have empty ones, so runs of them are filled in one go.
#[derive(Clone)]
struct Starts(Vec<i32>);

impl Starts {
    fn new(rows: usize) -> Self {
        Self(Vec::with_capacity(rows + 1))
    }

    #[inline]
    fn reach(&mut self, row: usize, bytes: usize) {
        self.0.resize(row + 1, bytes as i32);
    }
}

fn timestamps(values: Vec<i64>, valid: Option<NullBuffer>) -> ArrayRef {
    let array = PrimitiveArray::<TimestampMicrosecondType>::new(ScalarBuffer::from(values), valid);
    Arc::new(array.with_timezone("UTC"))
}

fn set(column: &mut [i64], row: usize, value: i64) {
    if let Some(place) = column.get_mut(row) {
        *place = value;
    }
}

fn people(config: &Config, events: &[u64]) -> Result<StructArray> {
    let places = Places::of(Kind::Person, events);
    let rows = places.rows;
    let (mut ids, mut times) = (vec![0; rows], vec![0; rows]);
    let mut text = PersonText::default();
    let mut starts: [Starts; 6] = std::array::from_fn(|_| Starts::new(rows));
    for (row, event) in events.iter().enumerate() {
        if Kind::of(*event) != Kind::Person {
            continue;
        }
        for (starts, field) in starts.iter_mut().zip(text.fields()) {
            starts.reach(row, field.len());
        }
        let drawn = person(*event, config, &mut text);
        set(&mut ids, row, drawn.id);
        set(&mut times, row, drawn.ts_ms * 1000);
    }
    let [name, email, card, city, state, extra] = starts;
    let named = vec![
        ("id", places.numbers(ids)),
        ("name", places.strings(text.name, name)?),
        ("email", places.strings(text.email, email)?),
        ("card", places.strings(text.card, card)?),
        ("city", places.strings(text.city, city)?),
        ("state", places.strings(text.state, state)?),
        ("ts", places.times(times)),
        ("extra", places.strings(text.extra, extra)?),
    ];
    places.group(named)
}

fn auctions(config: &Config, events: &[u64]) -> Result<StructArray> {
    let places = Places::of(Kind::Auction, events);
    let rows = places.rows;
    let mut numbers: [Vec<i64>; 7] = std::array::from_fn(|_| vec![0; rows]);
    let mut text = AuctionText::default();
    let mut starts: [Starts; 3] = std::array::from_fn(|_| Starts::new(rows));
    for (row, event) in events.iter().enumerate() {
        if Kind::of(*event) != Kind::Auction {
            continue;
        }
        for (starts, field) in starts.iter_mut().zip(text.fields()) {
            starts.reach(row, field.len());
        }
        let drawn = auction(*event, config, &mut text);
        let values = [
            drawn.id,
            drawn.initial,
            drawn.reserve,
            drawn.ts_ms * 1000,
            drawn.expires_ms * 1000,
            drawn.seller,
            drawn.category,
        ];
        for (column, value) in numbers.iter_mut().zip(values) {
            set(column, row, value);
        }
    }
    let [id, initial, reserve, ts, expires, seller, category] = numbers;
    let [name, description, extra] = starts;
    let named = vec![
        ("id", places.numbers(id)),
        ("name", places.strings(text.name, name)?),
        (
            "description",
            places.strings(text.description, description)?,
        ),
        ("initial", places.numbers(initial)),
        ("reserve", places.numbers(reserve)),
        ("ts", places.times(ts)),
        ("expires", places.times(expires)),
        ("seller", places.numbers(seller)),
        ("category", places.numbers(category)),
        ("extra", places.strings(text.extra, extra)?),
    ];
    places.group(named)
}

fn bids(config: &Config, events: &[u64]) -> Result<StructArray> {
    let places = Places::of(Kind::Bid, events);
    let rows = places.rows;
    let mut numbers: [Vec<i64>; 4] = std::array::from_fn(|_| vec![0; rows]);
    let mut text = Vec::with_capacity(rows * config.settings.bid_bytes);
    let mut starts = Starts::new(rows);
    for (row, event) in events.iter().enumerate() {
        if Kind::of(*event) != Kind::Bid {
            continue;
        }
        starts.reach(row, text.len());
        let drawn = bid(*event, config, &mut text);
        let values = [drawn.auction, drawn.bidder, drawn.price, drawn.ts_ms * 1000];
        for (column, value) in numbers.iter_mut().zip(values) {
            set(column, row, value);
        }
    }
    let [auction, bidder, price, ts] = numbers;
    let named = vec![
        ("auction", places.numbers(auction)),
        ("bidder", places.numbers(bidder)),
        ("price", places.numbers(price)),
        ("ts", places.times(ts)),
        ("extra", places.strings(text, starts)?),
    ];
    places.group(named)
}
