//! Rows into partial values: each aggregate's slot is written for all rows of a batch before the next one's.

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, BooleanArray, RecordBatch};
use arrow_buffer::BooleanBuffer;
use arrow_schema::DataType;

use super::cell::{Cell, CellRows};
use super::{Aggregate, Aggregates, COUNT_OF, NULL, OVERFLOWED, Slot, VALUE, write};
use crate::error::Result;

/// Which rows of a batch count; `None`: all.
#[derive(Clone, Default)]
pub struct RowMask(Option<BooleanBuffer>);

impl RowMask {
    /// Rows in which the filter is true.
    fn filter(filter: Option<&BooleanArray>) -> Self {
        Self(filter.map(|filter| match filter.nulls() {
            Some(nulls) => filter.values() & nulls.inner(),
            None => filter.values().clone(),
        }))
    }

    /// Of these rows, those in which the column is not null.
    fn and_valid(&self, column: &ArrayRef) -> Self {
        let nulls = column.logical_nulls().filter(|n| n.null_count() > 0);
        Self(match (&self.0, nulls) {
            (Some(mask), Some(nulls)) => Some(mask & nulls.inner()),
            (Some(mask), None) => Some(mask.clone()),
            (None, nulls) => nulls.map(|nulls| nulls.inner().clone()),
        })
    }

    /// Calls `row` with each row that counts.
    #[inline]
    fn each(&self, rows: usize, mut row: impl FnMut(usize)) {
        match &self.0 {
            None => (0..rows).for_each(row),
            Some(mask) => mask.set_indices().for_each(&mut row),
        }
    }
}

/// The partial values of a batch's rows: the fixed parts one after another, and what goes into the tails.
#[derive(Default)]
pub struct Partials {
    fixed: Vec<u8>,
    stride: usize,
    tails: Vec<Tail>,
}

struct Tail {
    rows: CellRows,
    /// Where the cell's flag lies in the fixed part.
    flag: usize,
    /// Whether the row's end is written before it.
    with_end: bool,
}

impl Partials {
    /// The fixed part of a row.
    #[inline]
    pub fn fixed(&self, row: usize) -> &[u8] {
        &self.fixed[row * self.stride..(row + 1) * self.stride]
    }

    /// All fixed parts.
    pub fn fixed_rows(&self) -> &[u8] {
        &self.fixed
    }

    /// Puts the whole value of a row into `out`.
    pub fn value(&self, row: usize, out: &mut Vec<u8>) {
        out.clear();
        self.append(row, out);
    }

    /// Appends the whole value of a row to `out`.
    pub fn append(&self, row: usize, out: &mut Vec<u8>) {
        let fixed = self.fixed(row);
        out.extend_from_slice(fixed);
        for tail in &self.tails {
            if fixed[tail.flag] == VALUE {
                if tail.with_end {
                    out.extend_from_slice(&(tail.rows.len(row) as u32).to_le_bytes());
                }
                tail.rows.append(row, out);
            }
        }
    }
}

impl Aggregates {
    /// Encodes the rows of a batch of the layout's input schema, reusing the memory of `partials`.
    pub fn encode(&self, batch: &RecordBatch, partials: &mut Partials) -> Result<()> {
        partials.stride = self.fixed;
        partials.tails.clear();
        partials.fixed.clear();
        partials.fixed.resize(batch.num_rows() * self.fixed, 0);
        for aggregate in &self.list {
            aggregate.encode(batch, partials)?;
        }
        Ok(())
    }
}

impl Aggregate {
    fn encode(&self, batch: &RecordBatch, partials: &mut Partials) -> Result<()> {
        let (rows, stride) = (batch.num_rows(), partials.stride);
        let filter = self.filter.map(|at| batch.column(at).as_boolean());
        let filtered = RowMask::filter(filter);
        let column = |i: usize| batch.column(self.inputs[i]);
        let out = partials.fixed.as_mut_slice();
        match &self.slot {
            Slot::Count { at } if self.op == COUNT_OF => {
                let counts = column(0).as_primitive::<Int64Type>().values();
                filtered.and_valid(column(0)).each(rows, |row| {
                    write(out, row * stride + at, &counts[row].to_le_bytes());
                });
            }
            Slot::Count { at } => {
                let counted = self
                    .inputs
                    .iter()
                    .fold(filtered, |mask, i| mask.and_valid(batch.column(*i)));
                counted.each(rows, |row| out[row * stride + at] = 1);
            }
            Slot::SumInt { at, .. } => {
                let values = column(0).as_primitive::<Int64Type>().values();
                filtered.and_valid(column(0)).each(rows, |row| {
                    let at = row * stride + at;
                    out[at] = VALUE;
                    write(out, at + 1, &values[row].to_le_bytes());
                });
            }
            Slot::SumFloat { at } => {
                let values = column(0).as_primitive::<Float64Type>().values();
                filtered.and_valid(column(0)).each(rows, |row| {
                    let at = row * stride + at;
                    out[at] = VALUE;
                    // A sum begins at zero, which a negative zero does not change.
                    write(out, at + 1, &(values[row] + 0.0).to_le_bytes());
                });
            }
            Slot::SumDecimal { at, limit, .. } => {
                let values = column(0).as_primitive::<Decimal128Type>().values();
                filtered.and_valid(column(0)).each(rows, |row| {
                    let at = row * stride + at;
                    let value = values[row];
                    if value.unsigned_abs() < limit.unsigned_abs() {
                        out[at] = VALUE;
                        write(out, at + 1, &value.to_le_bytes());
                    } else {
                        out[at] = OVERFLOWED;
                    }
                });
            }
            Slot::Moments { at } => {
                let values = column(0).as_primitive::<Float64Type>().values();
                filtered.and_valid(column(0)).each(rows, |row| {
                    let at = row * stride + at;
                    let value = values[row];
                    write(out, at, &1_f64.to_le_bytes());
                    write(out, at + 8, &value.to_le_bytes());
                    // What the update formula gives for the first row.
                    let m2 = if value.is_finite() { 0.0 } else { f64::NAN };
                    write(out, at + 16, &m2.to_le_bytes());
                });
            }
            Slot::Bits { at, data_type, .. } => {
                let mask = filtered.and_valid(column(0));
                match data_type {
                    DataType::Int8 => bits::<Int8Type>(column(0), &mask, *at, out, stride),
                    DataType::Int16 => bits::<Int16Type>(column(0), &mask, *at, out, stride),
                    DataType::Int32 => bits::<Int32Type>(column(0), &mask, *at, out, stride),
                    _ => bits::<Int64Type>(column(0), &mask, *at, out, stride),
                }
            }
            Slot::Extreme { cell, .. } => {
                let mask = filtered.and_valid(column(0));
                write_cell(cell, column(0), &mask, &mask, partials)?;
            }
            Slot::Pick {
                cell, skip_nulls, ..
            } => {
                let valid = filtered.and_valid(column(0));
                let set = if *skip_nulls { &valid } else { &filtered };
                write_cell(cell, column(0), set, &valid, partials)?;
            }
            Slot::By { order, value, .. } => {
                let set = filtered.and_valid(column(1));
                write_cell(order, column(1), &set, &set, partials)?;
                write_cell(value, column(0), &set, &set.and_valid(column(0)), partials)?;
            }
            Slot::Top(top) => {
                let encoded = top.encode(column(0))?;
                filtered.and_valid(column(0)).each(rows, |row| {
                    let length = encoded.row(row).data().len();
                    top.write_one(&mut out[row * stride..(row + 1) * stride], length);
                });
                partials.tails.push(Tail {
                    rows: CellRows::Whole(encoded),
                    flag: top.at,
                    with_end: top.writes_ends(),
                });
            }
        }
        Ok(())
    }
}

fn bits<T>(column: &ArrayRef, mask: &RowMask, at: usize, out: &mut [u8], stride: usize)
where
    T: ArrowPrimitiveType,
    T::Native: Into<i64>,
{
    let values = column.as_primitive::<T>().values();
    mask.each(values.len(), |row| {
        let at = row * stride + at;
        let value: i64 = values[row].into();
        out[at] = VALUE;
        write(out, at + 1, &value.to_le_bytes());
    });
}

/// `set`: rows that say something, `valid`: those of them that hold a value and not a null.
fn write_cell(
    cell: &Cell,
    column: &ArrayRef,
    set: &RowMask,
    valid: &RowMask,
    partials: &mut Partials,
) -> Result<()> {
    let encoded = cell.encode(column)?;
    let (rows, stride) = (column.len(), partials.stride);
    let out = partials.fixed.as_mut_slice();
    set.each(rows, |row| out[row * stride + cell.at] = NULL);
    valid.each(rows, |row| {
        let at = row * stride + cell.at;
        out[at] = VALUE;
        match &encoded {
            CellRows::Whole(rows) if !cell.is_variable() => {
                write(out, at + 1, rows.row(row).data());
            }
            // A column of one batch holds less than 4 GiB, so no value's length leaves u32.
            rows => write(out, at + 1, &(rows.len(row) as u32).to_le_bytes()),
        }
    });
    if cell.is_variable() {
        partials.tails.push(Tail {
            rows: encoded,
            flag: cell.at,
            with_end: false,
        });
    }
    Ok(())
}
