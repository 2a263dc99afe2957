//! The first few rows of a group in an order: what `top` keeps.
//!
//! Rows are encoded so that their bytes compare in the order that was asked for, so a list of them is merged with
//! another by comparing bytes. The slot holds a flag, how many rows there are and how long the tail is. The tail holds
//! the rows, behind their ends where their lengths vary.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, ListArray, StructArray};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_row::Rows;
use arrow_schema::{DataType, Field, Fields, SortOptions};

use super::{VALUE, read_u32, write};
use crate::codec::{ENCODED_ROWS, Ordering, RowCodec};
use crate::error::{Error, Result};

const COUNT_AT: usize = 1;
const LENGTH_AT: usize = 5;
/// Bytes in the fixed part.
pub const TOP_BYTES: usize = 9;
/// Bytes of the end of one row.
const END_BYTES: usize = 4;

#[derive(Debug)]
pub struct Top {
    pub at: usize,
    most: usize,
    fields: Fields,
    /// How each column is made ready for comparison; the columns by which rows are ordered come first.
    orderings: Vec<Ordering>,
    codec: RowCodec,
}

/// A value's rows.
#[derive(Clone, Copy)]
struct List<'a> {
    width: Option<usize>,
    count: usize,
    ends: &'a [u8],
    rows: &'a [u8],
}

impl<'a> List<'a> {
    fn end(&self, row: usize) -> usize {
        match self.width {
            Some(width) => (row + 1) * width,
            None => read_u32(self.ends, row * END_BYTES) as usize,
        }
    }

    /// Empty where the ends contradict each other, which a checked list does not.
    #[inline]
    fn row(&self, row: usize) -> &'a [u8] {
        let start = if row == 0 { 0 } else { self.end(row - 1) };
        self.rows.get(start..self.end(row)).unwrap_or_default()
    }
}

impl Top {
    /// `op`: "top N BY ORDER...", that is how many rows are kept, how many columns order them, and the order of each
    /// column of the struct that is read, such as `desc_nulls_last`.
    pub fn new(at: usize, op: &str, data_type: &DataType) -> Result<Self> {
        let DataType::Struct(fields) = data_type else {
            return Err(Error::invalid(format!(
                "top reads rows as a struct, not as {data_type}"
            )));
        };
        let mut words = op.split_whitespace().skip(1);
        let mut number = || words.next().and_then(|word| word.parse::<usize>().ok());
        let (Some(most @ 1..), Some(by)) = (number(), number()) else {
            return Err(Error::invalid(format!("{op}: not a number of rows")));
        };
        let options = words.map(sort_options).collect::<Result<Vec<_>>>()?;
        if options.len() != fields.len() || by > fields.len() || most > u32::MAX as usize {
            return Err(Error::invalid(format!(
                "{op}: the rows have {} columns",
                fields.len()
            )));
        }
        let types: Vec<DataType> = fields.iter().map(|f| f.data_type().clone()).collect();
        let orderings = types.iter().enumerate().map(|(i, data_type)| match i < by {
            true => match Ordering::of(data_type)? {
                // Zeros lose their sign where something else has to decide between them.
                Ordering::Floats => Ok(Ordering::NestedFloats),
                other => Ok(other),
            },
            false => Ok(Ordering::AsIs),
        });
        Ok(Self {
            at,
            most,
            orderings: orderings.collect::<Result<_>>()?,
            codec: RowCodec::ordered(&types, &options)?,
            fields: fields.clone(),
        })
    }

    pub fn buffer_type(&self) -> DataType {
        DataType::List(self.element())
    }

    fn element(&self) -> Arc<Field> {
        let rows = DataType::Struct(self.fields.clone());
        Arc::new(Field::new("element", rows, true))
    }

    /// Whether a row's end is written before it.
    pub fn writes_ends(&self) -> bool {
        self.codec.width().is_none()
    }

    pub fn encode(&self, column: &ArrayRef) -> Result<Rows> {
        let columns = column.as_struct().columns().iter().zip(&self.orderings);
        let ready = columns.map(|(column, ordering)| ordering.apply(column));
        self.codec.encode(&ready.collect::<Result<Vec<_>>>()?)
    }

    /// Writes the slot of a value of one row, `length` bytes long.
    pub fn write_one(&self, fixed: &mut [u8], length: usize) {
        let ends = if self.writes_ends() { END_BYTES } else { 0 };
        self.write_slot(fixed, 1, length + ends);
    }

    fn write_slot(&self, fixed: &mut [u8], count: usize, length: usize) {
        fixed[self.at] = VALUE;
        write(fixed, self.at + COUNT_AT, &(count as u32).to_le_bytes());
        write(fixed, self.at + LENGTH_AT, &(length as u32).to_le_bytes());
    }

    /// The rows of a value whose tail is reached at `tail`.
    fn list<'a>(&self, value: &'a [u8], tail: &mut usize) -> Result<List<'a>> {
        let count = read_u32(value, self.at + COUNT_AT) as usize;
        let length = read_u32(value, self.at + LENGTH_AT) as usize;
        let bytes = tail
            .checked_add(length)
            .and_then(|end| value.get(*tail..end));
        let bytes = bytes.ok_or_else(wrong_rows)?;
        *tail += length;
        let list = match self.codec.width() {
            Some(width) => List {
                width: Some(width),
                count,
                ends: &[],
                rows: bytes,
            },
            None => {
                let (ends, rows) = bytes
                    .split_at_checked(count.saturating_mul(END_BYTES))
                    .ok_or_else(wrong_rows)?;
                List {
                    width: None,
                    count,
                    ends,
                    rows,
                }
            }
        };
        let end = if count == 0 { 0 } else { list.end(count - 1) };
        if end != list.rows.len() {
            return Err(wrong_rows());
        }
        Ok(list)
    }

    /// Whether nothing of the partial comes among the first rows of the state, both tails being reached at `tail`.
    pub fn is_behind(&self, state: &[u8], partial: &[u8], tail: usize) -> Result<bool> {
        let (mut state_tail, mut partial_tail) = (tail, tail);
        let old = self.list(state, &mut state_tail)?;
        let new = self.list(partial, &mut partial_tail)?;
        if state_tail != state.len() || partial_tail != partial.len() {
            return Err(wrong_rows());
        }
        Ok(new.count == 0
            || (old.count >= self.most && old.row(old.count - 1).cmp(new.row(0)) != Greater))
    }

    /// Merges the lists of two values; `out` has the state's fixed part already.
    pub fn merge(
        &self,
        state: &[u8],
        partial: &[u8],
        state_tail: &mut usize,
        partial_tail: &mut usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let old = self.list(state, state_tail)?;
        let new = self.list(partial, partial_tail)?;
        let count = (old.count + new.count).min(self.most);
        if count == 0 {
            return Ok(());
        }
        let start = out.len();
        let ends = if self.writes_ends() {
            count * END_BYTES
        } else {
            0
        };
        out.resize(start + ends, 0);
        let (mut a, mut b) = (0, 0);
        for place in 0..count {
            let from_old = match (a < old.count, b < new.count) {
                (true, true) => match old.row(a).cmp(new.row(b)) {
                    Less | Equal => true,
                    Greater => false,
                },
                (is_left, _) => is_left,
            };
            if from_old {
                out.extend_from_slice(old.row(a));
                a += 1;
            } else {
                out.extend_from_slice(new.row(b));
                b += 1;
            }
            if ends > 0 {
                let end = u32::try_from(out.len() - start - ends)
                    .map_err(|_| Error::invalid("the rows of one group exceed 4 GiB"))?;
                write(out, start + place * END_BYTES, &end.to_le_bytes());
            }
        }
        let length = out.len() - start;
        self.write_slot(out, count, length);
        Ok(())
    }

    /// Each value's rows as a list of structs; `tails`: the place reached in each one's tail.
    pub fn decode(&self, values: &[&[u8]], tails: &mut [usize]) -> Result<ArrayRef> {
        let mut rows = Vec::new();
        let mut ends = vec![0_i32];
        for (value, tail) in values.iter().zip(tails) {
            let list = self.list(value, tail)?;
            rows.extend((0..list.count).map(|row| list.row(row)));
            let end = i32::try_from(rows.len())
                .map_err(|_| Error::invalid("more than two billion rows in one batch"))?;
            ends.push(end);
        }
        let columns = self.codec.decode(&rows)?;
        let rows = StructArray::try_new_with_length(self.fields.clone(), columns, None, rows.len())
            .map_err(|error| Error::damaged(ENCODED_ROWS, error.to_string()))?;
        let ends = OffsetBuffer::new(ScalarBuffer::from(ends));
        Ok(Arc::new(ListArray::try_new(
            self.element(),
            ends,
            Arc::new(rows),
            None,
        )?))
    }
}

fn sort_options(word: &str) -> Result<SortOptions> {
    let (descending, nulls_first) = match word {
        "asc_nulls_first" => (false, true),
        "asc_nulls_last" => (false, false),
        "desc_nulls_first" => (true, true),
        "desc_nulls_last" => (true, false),
        _ => return Err(Error::invalid(format!("unknown order {word}"))),
    };
    Ok(SortOptions {
        descending,
        nulls_first,
    })
}

fn wrong_rows() -> Error {
    Error::damaged(ENCODED_ROWS, "a value's rows are not as long as it says")
}
