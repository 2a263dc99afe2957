//! Encoded rows: the form in which grouped rows travel between an ingest task and a store.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, BinaryArray, FixedSizeBinaryArray, RecordBatch};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;

use crate::codec::ENCODED_ROWS;
use crate::error::{Error, Result};
use crate::layout::Layout;

/// A column of byte strings under construction, with no allocation per row. A fixed width needs no offsets.
#[derive(Debug)]
pub struct ByteColumn {
    width: Option<usize>,
    rows: usize,
    bytes: Vec<u8>,
    /// The end of each row, where the width varies or is zero; begins with a zero.
    ends: Vec<i32>,
}

impl ByteColumn {
    /// `width`: as [`Layout::key_width`] or [`Layout::value_width`] say.
    pub fn new(width: Option<usize>) -> Self {
        Self::with_capacity(width, 0, 0)
    }

    /// `bytes`: what the rows will hold together, where their width varies.
    pub fn with_capacity(width: Option<usize>, rows: usize, bytes: usize) -> Self {
        let width = width.filter(|width| *width > 0);
        let mut ends = Vec::new();
        if width.is_none() {
            ends.reserve_exact(rows + 1);
            ends.push(0);
        }
        Self {
            width,
            rows: 0,
            bytes: Vec::with_capacity(width.map_or(bytes, |width| width * rows)),
            ends,
        }
    }

    /// A column of fixed width whose rows already lie one after another.
    pub fn from_rows(width: usize, bytes: Vec<u8>) -> Self {
        Self {
            width: Some(width),
            rows: bytes.len() / width.max(1),
            bytes,
            ends: Vec::new(),
        }
    }

    /// Whether one more row of this length fits into an Arrow array.
    pub fn has_room(&self, length: usize) -> bool {
        self.width.is_some() || self.bytes.len() + length <= i32::MAX as usize
    }

    #[inline]
    pub fn push(&mut self, row: &[u8]) {
        self.bytes.extend_from_slice(row);
        self.rows += 1;
        if self.width.is_none() {
            self.ends.push(self.bytes.len() as i32);
        }
    }

    pub fn len(&self) -> usize {
        self.rows
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    pub(crate) fn finish(self) -> Result<ArrayRef> {
        let values = Buffer::from_vec(self.bytes);
        Ok(match self.width {
            Some(width) => {
                let width = i32::try_from(width)
                    .map_err(|_| Error::invalid(format!("rows of {width} bytes are too wide")))?;
                Arc::new(FixedSizeBinaryArray::try_new(width, values, None)?)
            }
            None => {
                if values.len() > i32::MAX as usize {
                    return Err(Error::invalid(
                        "more than 2 GiB in one column of encoded rows",
                    ));
                }
                let ends = OffsetBuffer::new(ScalarBuffer::from(self.ends));
                Arc::new(BinaryArray::try_new(ends, values, None)?)
            }
        })
    }
}

impl Layout {
    /// A batch of encoded rows from its columns, which have one row per hash.
    pub fn encoded_batch(
        &self,
        hashes: Vec<u64>,
        slices: Vec<i64>,
        keys: ByteColumn,
        values: ByteColumn,
    ) -> Result<RecordBatch> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(arrow_array::UInt64Array::new(hashes.into(), None)),
            Arc::new(arrow_array::Int64Array::new(slices.into(), None)),
            keys.finish()?,
            values.finish()?,
        ];
        Ok(RecordBatch::try_new(self.encoded_schema(), columns)?)
    }

    /// One encoded row with the empty key and empty aggregates, for operators without keys.
    pub fn identity(&self) -> Result<RecordBatch> {
        if self.key_width() != Some(0) {
            return Err(Error::invalid(
                "only an operator without keys has a group that is always there",
            ));
        }
        let mut keys = ByteColumn::new(self.key_width());
        let mut values = ByteColumn::new(self.value_width());
        keys.push(&[]);
        values.push(&self.empty_value());
        self.encoded_batch(vec![crate::hash::hash_key(&[])], vec![0], keys, values)
    }
}

#[derive(Debug)]
enum Bytes<'a> {
    Fixed { width: usize, bytes: &'a [u8] },
    Variable { ends: &'a [i32], bytes: &'a [u8] },
}

impl<'a> Bytes<'a> {
    #[inline]
    fn row(&self, i: usize) -> &'a [u8] {
        match self {
            Self::Fixed { width, bytes } => &bytes[i * width..(i + 1) * width],
            Self::Variable { ends, bytes } => &bytes[ends[i] as usize..ends[i + 1] as usize],
        }
    }
}

/// A batch of encoded rows, checked against a layout once and then read row by row.
#[derive(Debug)]
pub struct EncodedRows<'a> {
    hashes: &'a [u64],
    slices: &'a [i64],
    keys: Bytes<'a>,
    values: Bytes<'a>,
}

impl<'a> EncodedRows<'a> {
    pub fn new(layout: &Layout, batch: &'a RecordBatch) -> Result<Self> {
        let (given, expected) = (batch.schema(), layout.encoded_schema());
        let fits = given.fields().len() == expected.fields().len()
            && given
                .fields()
                .iter()
                .zip(expected.fields())
                .all(|(a, b)| a.name() == b.name() && a.data_type() == b.data_type());
        if !fits {
            return Err(Error::invalid(format!(
                "not rows of this layout: expected the columns {}, got {}",
                columns_text(&expected),
                columns_text(&given)
            )));
        }
        if let Some(column) = batch.columns().iter().position(|c| c.null_count() > 0) {
            let name = given.field(column).name().clone();
            return Err(Error::invalid(format!(
                "nulls in the column {name} of encoded rows"
            )));
        }
        let rows = Self {
            hashes: batch.column(0).as_primitive::<UInt64Type>().values(),
            slices: batch.column(1).as_primitive::<Int64Type>().values(),
            keys: bytes(batch.column(2)),
            values: bytes(batch.column(3)),
        };
        let least_key = layout.least_key_len();
        let least_value = layout.empty_value().len();
        for i in 0..rows.len() {
            let (key, value) = (rows.key(i).len(), rows.value(i).len());
            if key < least_key || layout.key_width().is_some_and(|width| key != width) {
                return Err(Error::damaged(
                    ENCODED_ROWS,
                    format!("a key of {key} bytes"),
                ));
            }
            if value < least_value || layout.value_width().is_some_and(|width| value != width) {
                return Err(Error::damaged(
                    ENCODED_ROWS,
                    format!("a value of {value} bytes"),
                ));
            }
        }
        Ok(rows)
    }

    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    #[inline]
    pub fn hash(&self, i: usize) -> u64 {
        self.hashes[i]
    }

    #[inline]
    pub fn slice(&self, i: usize) -> i64 {
        self.slices[i]
    }

    #[inline]
    pub fn key(&self, i: usize) -> &'a [u8] {
        self.keys.row(i)
    }

    #[inline]
    pub fn value(&self, i: usize) -> &'a [u8] {
        self.values.row(i)
    }
}

fn bytes(column: &ArrayRef) -> Bytes<'_> {
    match column.data_type() {
        DataType::FixedSizeBinary(width) => {
            let column = column.as_fixed_size_binary();
            Bytes::Fixed {
                width: *width as usize,
                bytes: column.value_data(),
            }
        }
        _ => {
            let column = column.as_binary::<i32>();
            Bytes::Variable {
                ends: column.value_offsets(),
                bytes: column.value_data(),
            }
        }
    }
}

fn columns_text(schema: &arrow_schema::Schema) -> String {
    let columns = schema.fields().iter();
    let columns = columns.map(|field| format!("{} {}", field.name(), field.data_type()));
    columns.collect::<Vec<_>>().join(", ")
}
