//! The value of a key whose rows fall into sessions: its sessions in order of time, no two of which touch.
//!
//! A session is its start, its end and the merged aggregates of its rows. Merging two values unites their sessions,
//! and those that touch become one, whatever the order: to a store it is one more aggregate.

use arrow_array::RecordBatch;

use crate::aggregate::{Aggregates, Partials};
use crate::codec::ENCODED_ROWS;
use crate::error::{Error, Result};
use crate::layout::Layout;

const BOUNDS_BYTES: usize = 16;
const LENGTH_BYTES: usize = 4;

/// One session, borrowed from a value. Rows from `start` on, the last of which is open until `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session<'a> {
    pub start: i64,
    pub end: i64,
    pub aggregates: &'a [u8],
}

/// How long the aggregates of a session are; `None`: each says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape(Option<usize>);

impl Shape {
    fn of(aggregates: &Aggregates) -> Self {
        Self((!aggregates.is_variable()).then(|| aggregates.fixed_len()))
    }

    /// Bytes before the aggregates.
    fn head(self) -> usize {
        match self.0 {
            Some(_) => BOUNDS_BYTES,
            None => BOUNDS_BYTES + LENGTH_BYTES,
        }
    }

    /// Takes the first session off the value.
    #[inline]
    fn take<'a>(self, value: &mut &'a [u8]) -> Result<Option<Session<'a>>> {
        if value.is_empty() {
            return Ok(None);
        }
        let split = || {
            let (start, rest) = value.split_first_chunk::<8>()?;
            let (end, rest) = rest.split_first_chunk::<8>()?;
            let (length, rest) = match self.0 {
                Some(length) => (length, rest),
                None => {
                    let (length, rest) = rest.split_first_chunk::<LENGTH_BYTES>()?;
                    (u32::from_le_bytes(*length) as usize, rest)
                }
            };
            let (aggregates, rest) = rest.split_at_checked(length)?;
            let session = Session {
                start: i64::from_le_bytes(*start),
                end: i64::from_le_bytes(*end),
                aggregates,
            };
            Some((session, rest))
        };
        let (session, rest) = split().ok_or_else(cut_short)?;
        *value = rest;
        Ok(Some(session))
    }

    /// Appends the head of a session whose aggregates follow.
    fn begin(self, start: i64, end: i64, out: &mut Vec<u8>) {
        out.extend_from_slice(&start.to_le_bytes());
        out.extend_from_slice(&end.to_le_bytes());
        if self.0.is_none() {
            out.extend_from_slice(&[0; LENGTH_BYTES]);
        }
    }

    /// The aggregates of the session that begins at `at` are now all that follows.
    fn finish(self, at: usize, out: &mut [u8]) {
        if self.0.is_none() {
            let length = (out.len() - at - self.head()) as u32;
            write_at(out, at + BOUNDS_BYTES, &length.to_le_bytes());
        }
    }
}

/// The end of the value's first session, which is its smallest: sessions do not touch.
#[inline]
pub fn first_end(value: &[u8]) -> Option<i64> {
    let end = value.get(8..)?.first_chunk::<8>()?;
    Some(i64::from_le_bytes(*end))
}

/// The value of one row: a session of its own.
pub fn row_value(
    layout: &Layout,
    (start, end): (i64, i64),
    row: usize,
    partials: &Partials,
    out: &mut Vec<u8>,
) {
    let shape = Shape::of(layout.aggregates());
    out.clear();
    shape.begin(start, end, out);
    partials.append(row, out);
    shape.finish(0, out);
}

/// Unites the sessions of two values in `out`. Of sessions that become one, the aggregates are merged in the order
/// of their starts, those of `state` first where these are equal.
pub fn merge(
    aggregates: &Aggregates,
    mut state: &[u8],
    mut partial: &[u8],
    out: &mut Vec<u8>,
) -> Result<()> {
    let shape = Shape::of(aggregates);
    out.clear();
    let mut left = shape.take(&mut state)?;
    let mut right = shape.take(&mut partial)?;
    let mut open: Option<(usize, i64)> = None;
    let mut scratch = Vec::new();
    loop {
        let next = match (left, right) {
            (Some(a), Some(b)) if b.start < a.start => {
                right = shape.take(&mut partial)?;
                b
            }
            (Some(a), _) => {
                left = shape.take(&mut state)?;
                a
            }
            (None, Some(b)) => {
                right = shape.take(&mut partial)?;
                b
            }
            (None, None) => return Ok(()),
        };
        match open {
            Some((at, end)) if next.start <= end => {
                let end = end.max(next.end);
                write_at(out, at + 8, &end.to_le_bytes());
                let body = at + shape.head();
                if shape.0.is_some() {
                    aggregates.merge_fixed(&mut out[body..], next.aggregates)?;
                } else {
                    let least = aggregates.fixed_len();
                    if out.len() - body < least || next.aggregates.len() < least {
                        return Err(cut_short());
                    }
                    if aggregates.merge_variable(&out[body..], next.aggregates, &mut scratch)? {
                        out.truncate(body);
                        out.extend_from_slice(&scratch);
                        shape.finish(at, out);
                    }
                }
                open = Some((at, end));
            }
            _ => {
                let at = out.len();
                shape.begin(next.start, next.end, out);
                out.extend_from_slice(next.aggregates);
                shape.finish(at, out);
                open = Some((at, next.end));
            }
        }
    }
}

/// Merges a value of one session into the state where it only makes a session grow at its end, which is the rule;
/// false, and nothing changed, where it does more or the aggregates vary in length.
#[inline]
pub fn merge_in_place(aggregates: &Aggregates, state: &mut [u8], partial: &[u8]) -> Result<bool> {
    let stride = BOUNDS_BYTES + aggregates.fixed_len();
    if aggregates.is_variable() || partial.len() != stride || !state.len().is_multiple_of(stride) {
        return Ok(false);
    }
    let (start, end) = bounds(partial);
    let mut next_start = None;
    for session in state.chunks_exact_mut(stride).rev() {
        let (from, to) = bounds(session);
        if from > start {
            next_start = Some(from);
            continue;
        }
        if start > to || next_start.is_some_and(|next| next <= end) {
            return Ok(false);
        }
        write_at(session, 8, &to.max(end).to_le_bytes());
        aggregates.merge_fixed(&mut session[BOUNDS_BYTES..], &partial[BOUNDS_BYTES..])?;
        return Ok(true);
    }
    Ok(false)
}

/// Hands the sessions that end at or before the time to `each`; returns how many bytes of the value they are.
pub fn take_closed<'a>(
    aggregates: &Aggregates,
    value: &'a [u8],
    time: i64,
    mut each: impl FnMut(Session<'a>),
) -> Result<usize> {
    let shape = Shape::of(aggregates);
    let mut rest = value;
    loop {
        let before = rest.len();
        match shape.take(&mut rest)? {
            Some(session) if session.end <= time => each(session),
            Some(_) => return Ok(value.len() - before),
            None => return Ok(value.len()),
        }
    }
}

/// Sessions with their keys, as rows to be put out.
#[derive(Default)]
pub struct SessionRows<'a> {
    keys: Vec<&'a [u8]>,
    starts: Vec<i64>,
    ends: Vec<i64>,
    aggregates: Vec<&'a [u8]>,
}

impl<'a> SessionRows<'a> {
    pub fn push(&mut self, key: &'a [u8], session: Session<'a>) {
        self.keys.push(key);
        self.starts.push(session.start);
        self.ends.push(session.end);
        self.aggregates.push(session.aggregates);
    }

    /// All sessions of a value.
    pub fn push_all(&mut self, layout: &Layout, key: &'a [u8], value: &'a [u8]) -> Result<()> {
        take_closed(layout.aggregates(), value, i64::MAX, |session| {
            self.push(key, session);
        })?;
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The rows in the output schema.
    pub fn decode(self, layout: &Layout) -> Result<RecordBatch> {
        let least = layout.aggregates().fixed_len();
        if self.aggregates.iter().any(|bytes| bytes.len() < least) {
            return Err(cut_short());
        }
        layout.decode_sessions(&self.keys, &self.aggregates, self.starts, self.ends)
    }
}

#[inline]
fn bounds(session: &[u8]) -> (i64, i64) {
    let word = |at: usize| {
        let chunk = session.get(at..).and_then(|rest| rest.first_chunk::<8>());
        chunk.map_or(0, |chunk| i64::from_le_bytes(*chunk))
    };
    (word(0), word(8))
}

#[inline]
fn write_at(bytes: &mut [u8], at: usize, word: &[u8]) {
    bytes[at..at + word.len()].copy_from_slice(word);
}

fn cut_short() -> Error {
    Error::damaged(ENCODED_ROWS, "a list of sessions is cut short")
}
