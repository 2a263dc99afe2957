//! How event time divides groups into slices, and which rows come too late.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, Schema};

use crate::error::{Error, Result};

/// The time of a layout; all times are microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Groups never expire: one slice.
    None,
    /// Aligned windows, kept as panes; a pane is a slice.
    Panes {
        column: usize,
        size: i64,
        slide: i64,
        offset: i64,
    },
    /// Groups that carry their expiry in the key; those that expire within one interval share a slice.
    Keyed { column: usize, slice: i64 },
    /// Sessions: a row has one of its own, from `start` to `end`, and those of a key that touch are one. All keys are
    /// in one slice. `timer`: the keys whose first session may end within one interval of this length are entered
    /// into a slice of timers; 0: sessions never close.
    Sessions {
        start: usize,
        end: usize,
        timer: i64,
    },
}

/// Where a row goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    Slice(i64),
    /// All of its windows are closed.
    Late,
    /// It has no time and so no window.
    Nowhere,
}

/// Bytes before a key that carries its expiry: a flag and the expiry in the order of its bytes.
pub const EXPIRY_BYTES: usize = 9;

/// The slice of keys that never expire.
pub const NEVER: i64 = i64::MAX;

/// The slice of all keys with sessions. The other slices of such a store hold timers and are named by a time, which
/// is never this one.
pub const SESSIONS: i64 = i64::MIN;

impl Time {
    pub fn check(self, input: &Schema) -> Result<Self> {
        let (columns, what) = match self {
            Self::None => return Ok(self),
            Self::Panes {
                column,
                size,
                slide,
                ..
            } => {
                if slide <= 0 || size < slide {
                    return Err(Error::invalid(format!(
                        "windows of {size} µs every {slide} µs: the slide must be positive and not above the size"
                    )));
                }
                ([column, column], "panes")
            }
            Self::Keyed { column, slice } => {
                if slice <= 0 {
                    return Err(Error::invalid(format!(
                        "slices of {slice} µs: the length must be positive"
                    )));
                }
                ([column, column], "keyed_time")
            }
            Self::Sessions { start, end, timer } => {
                if timer < 0 {
                    return Err(Error::invalid(format!(
                        "timers every {timer} µs: the length must be positive, or 0 for none"
                    )));
                }
                ([start, end], "sessions")
            }
        };
        for column in columns {
            match input.fields().get(column).map(|field| field.data_type()) {
                Some(DataType::Int64) => {}
                Some(other) => {
                    return Err(Error::invalid(format!(
                        "the column of {what} must be int64 microseconds, not {other}"
                    )));
                }
                None => {
                    return Err(Error::invalid(format!(
                        "{what} reads column {column}, the input has {} columns",
                        input.fields().len()
                    )));
                }
            }
        }
        Ok(self)
    }

    pub fn is_keyed(self) -> bool {
        matches!(self, Self::Keyed { .. })
    }

    pub fn is_sessions(self) -> bool {
        matches!(self, Self::Sessions { .. })
    }

    /// Where the sessions of the batch's rows start and end.
    pub fn sessions(self, batch: &RecordBatch) -> Option<(&[i64], &[i64])> {
        let Self::Sessions { start, end, .. } = self else {
            return None;
        };
        let column = |at: usize| batch.column(at).as_primitive::<Int64Type>();
        Some((column(start).values(), column(end).values()))
    }

    /// The slice of timers for a session that ends at the time; `None`: it needs no timer.
    pub fn timer_slice(self, end: i64) -> Option<i64> {
        match self {
            Self::Sessions { timer, .. } if timer > 0 => {
                Some(round_up(end, timer).max(SESSIONS + 1))
            }
            _ => None,
        }
    }

    /// The column that holds the time, for sessions that of their end.
    pub fn column(self, batch: &RecordBatch) -> Option<&Int64Array> {
        match self {
            Self::None => None,
            Self::Panes { column, .. }
            | Self::Keyed { column, .. }
            | Self::Sessions { end: column, .. } => {
                Some(batch.column(column).as_primitive::<Int64Type>())
            }
        }
    }

    /// Calls `place` with the placement of every row of the batch in order.
    pub fn place(
        self,
        batch: &RecordBatch,
        late_before: Option<i64>,
        mut place: impl FnMut(Placement),
    ) {
        let Some(times) = self.column(batch) else {
            return (0..batch.num_rows()).for_each(|_| place(Placement::Slice(0)));
        };
        let late = |end: i64| late_before.is_some_and(|before| end <= before);
        for row in 0..times.len() {
            let time = times.is_valid(row).then(|| times.value(row));
            place(match (self, time) {
                (
                    Self::Panes {
                        size,
                        slide,
                        offset,
                        ..
                    },
                    Some(time),
                ) => {
                    let start = window_start(time, slide, offset);
                    match late(start.saturating_add(size)) {
                        true => Placement::Late,
                        false => Placement::Slice(pane_start(time, start, size % slide)),
                    }
                }
                (Self::Keyed { slice, .. }, Some(expiry)) => match late(expiry) {
                    true => Placement::Late,
                    false => Placement::Slice(round_up(expiry, slice)),
                },
                (Self::Keyed { .. }, None) => Placement::Slice(NEVER),
                (Self::Sessions { start, .. }, Some(end)) => {
                    let starts = batch.column(start).as_primitive::<Int64Type>();
                    match starts.is_valid(row) && starts.value(row) < end {
                        true if late(end) => Placement::Late,
                        true => Placement::Slice(SESSIONS),
                        false => Placement::Nowhere,
                    }
                }
                _ => Placement::Nowhere,
            });
        }
    }
}

/// The start of the last window that holds the time.
fn window_start(time: i64, slide: i64, offset: i64) -> i64 {
    let past = (i128::from(time) - i128::from(offset)).rem_euclid(i128::from(slide));
    // Less than one slide, so it is an i64.
    time.saturating_sub(past as i64)
}

/// Where the window is no multiple of the slide, an earlier window ends `rest` after each start.
fn pane_start(time: i64, window_start: i64, rest: i64) -> i64 {
    if rest == 0 || time.saturating_sub(window_start) < rest {
        window_start
    } else {
        window_start.saturating_add(rest)
    }
}

pub(crate) fn round_up(time: i64, step: i64) -> i64 {
    match time.rem_euclid(step) {
        0 => time,
        past => time.saturating_add(step - past),
    }
}

/// Writes a key's expiry in front of it.
pub fn write_expiry(out: &mut [u8], expiry: Option<i64>) {
    let bits = expiry.map_or(0, |expiry| expiry as u64 ^ (1 << 63));
    out[0] = u8::from(expiry.is_some());
    out[1..EXPIRY_BYTES].copy_from_slice(&bits.to_be_bytes());
}

/// The expiry in front of a key; `None`: never.
pub fn read_expiry(key: &[u8]) -> Option<i64> {
    let (flag, rest) = key.split_first()?;
    let bits = rest.first_chunk::<8>()?;
    (*flag == 1).then(|| (u64::from_be_bytes(*bits) ^ (1 << 63)) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_before_the_epoch_start_below_their_rows() {
        assert_eq!(window_start(-1, 10, 0), -10);
        assert_eq!(window_start(-10, 10, 0), -10);
        assert_eq!(window_start(12, 10, 3), 3);
        assert_eq!(window_start(2, 10, 3), -7);
    }

    #[test]
    fn panes_are_cut_where_an_earlier_window_ends() {
        let panes: Vec<i64> = (0..10)
            .map(|t| pane_start(t, window_start(t, 10, 0), 25 % 10))
            .collect();
        assert_eq!(panes, [0, 0, 0, 0, 0, 5, 5, 5, 5, 5]);
    }

    #[test]
    fn expiries_round_up_to_their_slice_and_saturate() {
        assert_eq!(round_up(0, 10), 0);
        assert_eq!(round_up(1, 10), 10);
        assert_eq!(round_up(-1, 10), 0);
        assert_eq!(round_up(-11, 10), -10);
        assert_eq!(round_up(i64::MAX - 1, 10), i64::MAX);
    }

    #[test]
    fn expiries_keep_their_order_in_bytes() {
        let mut previous = [0; EXPIRY_BYTES];
        for expiry in [None, Some(i64::MIN), Some(-1), Some(0), Some(i64::MAX)] {
            let mut bytes = [0; EXPIRY_BYTES];
            write_expiry(&mut bytes, expiry);
            assert_eq!(read_expiry(&bytes), expiry);
            assert!(bytes >= previous);
            previous = bytes;
        }
    }
}
