//! Values back into the buffers of their aggregates.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int8Array, Int16Array, Int32Array,
    Int64Array,
};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_schema::DataType;

use super::{Aggregates, Cell, OnOverflow, Slot, Top, UNSET, VALUE, read_f64, read_i64, read_i128};
use crate::codec::ENCODED_ROWS;
use crate::error::{Error, Result};

/// Encoded values that are being decoded, with the place reached in each one's tail.
pub struct Values<'a> {
    values: &'a [&'a [u8]],
    tails: Vec<usize>,
}

impl<'a> Values<'a> {
    fn numbers<T>(&self, read: impl Fn(&[u8]) -> T) -> Vec<T> {
        self.values.iter().map(|value| read(value)).collect()
    }

    fn flags(&self, at: usize, test: impl Fn(u8) -> bool) -> BooleanBuffer {
        BooleanBuffer::collect_bool(self.values.len(), |i| test(self.values[i][at]))
    }

    fn valid(&self, at: usize) -> Option<NullBuffer> {
        let nulls = NullBuffer::new(self.flags(at, |flag| flag == VALUE));
        (nulls.null_count() > 0).then_some(nulls)
    }

    fn flag_array(&self, at: usize, test: impl Fn(u8) -> bool) -> ArrayRef {
        Arc::new(BooleanArray::new(self.flags(at, test), None))
    }

    fn lists(&mut self, top: &Top) -> Result<ArrayRef> {
        top.decode(self.values, &mut self.tails)
    }

    fn cell(&mut self, cell: &'a Cell) -> Result<ArrayRef> {
        let mut rows = Vec::with_capacity(self.values.len());
        let mut start = 0;
        for (i, value) in self.values.iter().enumerate() {
            let bytes = cell.bytes(value, self.tails.get_mut(i).unwrap_or(&mut start))?;
            rows.push((value[cell.at] == VALUE).then_some(bytes));
        }
        cell.decode(&rows)
    }
}

impl Aggregates {
    /// The buffers of the aggregates in order.
    pub fn decode<'a>(&'a self, values: &'a [&'a [u8]]) -> Result<Vec<ArrayRef>> {
        let bad = match self.variable {
            true => values.iter().any(|value| value.len() < self.fixed),
            false => values.iter().any(|value| value.len() != self.fixed),
        };
        if bad {
            return Err(Error::damaged(
                ENCODED_ROWS,
                "a value has not the length of the layout",
            ));
        }
        let tails = match self.variable {
            true => vec![self.fixed; values.len()],
            false => Vec::new(),
        };
        let mut values = Values { values, tails };
        let mut buffers = Vec::new();
        for aggregate in &self.list {
            decode_slot(&aggregate.slot, &mut values, &mut buffers)?;
        }
        let whole = values.values.iter().zip(&values.tails);
        if whole.into_iter().any(|(value, tail)| value.len() != *tail) {
            return Err(Error::damaged(
                ENCODED_ROWS,
                "a value is longer than its lengths say",
            ));
        }
        Ok(buffers)
    }
}

fn decode_slot<'a>(
    slot: &'a Slot,
    values: &mut Values<'a>,
    buffers: &mut Vec<ArrayRef>,
) -> Result<()> {
    match slot {
        Slot::Count { at } => {
            let counts = values.numbers(|value| read_i64(value, *at));
            buffers.push(Arc::new(Int64Array::new(counts.into(), None)));
        }
        Slot::SumInt { at, on_overflow } => {
            let sums = values.numbers(|value| read_i64(value, at + 1));
            buffers.push(Arc::new(Int64Array::new(sums.into(), values.valid(*at))));
            if *on_overflow == OnOverflow::Null {
                buffers.push(values.flag_array(*at, |flag| flag == UNSET));
            }
        }
        Slot::SumFloat { at } => {
            let sums = values.numbers(|value| read_f64(value, at + 1));
            buffers.push(Arc::new(Float64Array::new(sums.into(), values.valid(*at))));
        }
        Slot::SumDecimal { at, data_type, .. } => {
            let sums = values.numbers(|value| read_i128(value, at + 1));
            let sums = Decimal128Array::new(sums.into(), values.valid(*at));
            buffers.push(Arc::new(sums.with_data_type(data_type.clone())));
            buffers.push(values.flag_array(*at, |flag| flag == UNSET));
        }
        Slot::Extreme { cell, .. } => buffers.push(values.cell(cell)?),
        Slot::Pick { cell, .. } => {
            buffers.push(values.cell(cell)?);
            buffers.push(values.flag_array(cell.at, |flag| flag != UNSET));
        }
        Slot::By { order, value, .. } => {
            let orders = values.cell(order)?;
            buffers.push(values.cell(value)?);
            buffers.push(orders);
        }
        Slot::Bits { at, data_type, .. } => {
            let bits = values.numbers(|value| read_i64(value, at + 1));
            buffers.push(integers(data_type, bits, values.valid(*at)));
        }
        Slot::Top(top) => buffers.push(values.lists(top)?),
        Slot::Moments { at } => {
            for part in [0, 8, 16] {
                let numbers = values.numbers(|value| read_f64(value, at + part));
                buffers.push(Arc::new(Float64Array::new(numbers.into(), None)));
            }
        }
    }
    Ok(())
}

/// Bits were widened with their sign, so cutting them off gives back the input's type.
fn integers(data_type: &DataType, bits: Vec<i64>, nulls: Option<NullBuffer>) -> ArrayRef {
    fn cut<T>(bits: Vec<i64>, narrow: impl Fn(i64) -> T) -> Vec<T> {
        bits.into_iter().map(narrow).collect()
    }
    match data_type {
        DataType::Int8 => Arc::new(Int8Array::new(cut(bits, |b| b as i8).into(), nulls)),
        DataType::Int16 => Arc::new(Int16Array::new(cut(bits, |b| b as i16).into(), nulls)),
        DataType::Int32 => Arc::new(Int32Array::new(cut(bits, |b| b as i32).into(), nulls)),
        _ => Arc::new(Int64Array::new(bits.into(), nulls)),
    }
}
