//! One value among the aggregates of a group: how its bytes lie, and how they compare.

use std::sync::Arc;

use arrow_array::builder::NullBufferBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, BinaryArray, LargeBinaryArray, LargeStringArray, OffsetSizeTrait, StringArray,
    StructArray,
};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_row::Rows;
use arrow_schema::{DataType, Fields};

use super::{LENGTH_BYTES, read_u32};
use crate::codec::{ENCODED_ROWS, Ordering, RowCodec, undecodable};
use crate::error::{Error, Result};

/// A flag and the encoding of one value: in place where the type is of fixed width, else its length in place and its
/// bytes in the tail. The bytes compare as Spark compares the values.
#[derive(Debug)]
pub struct Cell {
    pub at: usize,
    pub data_type: DataType,
    ordering: Ordering,
    codec: Codec,
}

#[derive(Debug)]
enum Codec {
    Rows { codec: RowCodec, null_row: Vec<u8> },
    Bytes(BytesCodec),
}

impl Cell {
    pub fn new(at: usize, data_type: &DataType, ordered: bool) -> Result<Self> {
        let ordering = match ordered {
            true => Ordering::of(data_type)?,
            false => Ordering::AsIs,
        };
        let codec = match BytesCodec::of(data_type)? {
            Some(codec) => Codec::Bytes(codec),
            None => {
                let types = std::slice::from_ref(data_type);
                let codec = RowCodec::new(types)?;
                let null_row = codec.null_row(types)?;
                Codec::Rows { codec, null_row }
            }
        };
        Ok(Self {
            at,
            data_type: data_type.clone(),
            ordering,
            codec,
        })
    }

    fn width(&self) -> Option<usize> {
        match &self.codec {
            Codec::Rows { codec, .. } => codec.width(),
            Codec::Bytes(_) => None,
        }
    }

    pub fn end(&self) -> usize {
        self.at + 1 + self.width().unwrap_or(LENGTH_BYTES)
    }

    pub fn is_variable(&self) -> bool {
        self.width().is_none()
    }

    /// The encoded value; a variable one is taken from `tail`, the place reached in the value's tail.
    pub fn bytes<'a>(&self, value: &'a [u8], tail: &mut usize) -> Result<&'a [u8]> {
        if let Some(width) = self.width() {
            return Ok(&value[self.at + 1..self.at + 1 + width]);
        }
        let length = read_u32(value, self.at + 1) as usize;
        let end = tail.checked_add(length).filter(|end| *end <= value.len());
        let end = end.ok_or_else(|| {
            Error::damaged(ENCODED_ROWS, "a value is shorter than its lengths say")
        })?;
        let bytes = &value[*tail..end];
        *tail = end;
        Ok(bytes)
    }

    /// The values of a column. What it gives for nulls means nothing.
    pub fn encode(&self, column: &ArrayRef) -> Result<CellRows> {
        let column = self.ordering.apply(column)?;
        match &self.codec {
            Codec::Rows { codec, .. } => Ok(CellRows::Whole(codec.encode(&[column])?)),
            Codec::Bytes(codec) => codec.encode(&column),
        }
    }

    /// A column of encoded values and nulls.
    pub fn decode(&self, values: &[Option<&[u8]>]) -> Result<ArrayRef> {
        match &self.codec {
            Codec::Rows { codec, null_row } => {
                let rows: Vec<&[u8]> = values.iter().map(|v| v.unwrap_or(null_row)).collect();
                codec.decode(&rows)?.pop().ok_or_else(undecodable)
            }
            Codec::Bytes(codec) => codec.decode(values),
        }
    }
}

/// The encoded values of a column.
pub enum CellRows {
    Whole(Rows),
    /// What comes before the bytes, and the bytes with a mark of being there, or without.
    Bytes {
        head: Option<Rows>,
        marked: bool,
        last: ByteValues,
    },
}

impl CellRows {
    #[inline]
    pub fn len(&self, row: usize) -> usize {
        match self {
            Self::Whole(rows) => rows.row(row).data().len(),
            Self::Bytes { head, marked, last } => {
                let head = head.as_ref().map_or(0, |rows| rows.row(row).data().len());
                head + usize::from(*marked) + last.get(row).map_or(0, <[u8]>::len)
            }
        }
    }

    #[inline]
    pub fn append(&self, row: usize, out: &mut Vec<u8>) {
        match self {
            Self::Whole(rows) => out.extend_from_slice(rows.row(row).data()),
            Self::Bytes { head, marked, last } => {
                if let Some(head) = head {
                    out.extend_from_slice(head.row(row).data());
                }
                let bytes = last.get(row);
                if *marked {
                    out.push(u8::from(bytes.is_some()));
                }
                out.extend_from_slice(bytes.unwrap_or_default());
            }
        }
    }
}

/// A text or binary value, by itself or as the last field of a struct whose others are of fixed width. It lies as it is,
/// because nothing follows it: where it ends needs no sign, and its bytes compare rightly. The row encoding would take
/// up to half as much again for both.
#[derive(Debug)]
struct BytesCodec {
    head: Option<Head>,
    last: DataType,
}

/// The other fields of the struct.
#[derive(Debug)]
struct Head {
    fields: Fields,
    codec: RowCodec,
    width: usize,
    null_row: Vec<u8>,
}

impl BytesCodec {
    /// `None` where the type is not of that kind.
    fn of(data_type: &DataType) -> Result<Option<Self>> {
        if is_bytes(data_type) {
            return Ok(Some(Self {
                head: None,
                last: data_type.clone(),
            }));
        }
        let DataType::Struct(fields) = data_type else {
            return Ok(None);
        };
        let Some((last, others)) = fields.split_last() else {
            return Ok(None);
        };
        if !is_bytes(last.data_type()) {
            return Ok(None);
        }
        let types: Vec<DataType> = others.iter().map(|f| f.data_type().clone()).collect();
        let codec = RowCodec::new(&types)?;
        Ok(codec.width().map(|width| Self {
            head: Some(Head {
                fields: fields.clone(),
                null_row: codec.null_row(&types).unwrap_or_default(),
                codec,
                width,
            }),
            last: last.data_type().clone(),
        }))
    }

    fn encode(&self, column: &ArrayRef) -> Result<CellRows> {
        let Some(head) = &self.head else {
            return Ok(CellRows::Bytes {
                head: None,
                marked: false,
                last: ByteValues::of(column)?,
            });
        };
        let columns = column.as_struct().columns();
        let (last, others) = columns.split_last().ok_or_else(undecodable)?;
        Ok(CellRows::Bytes {
            head: match others {
                [] => None,
                others => Some(head.codec.encode(others)?),
            },
            marked: true,
            last: ByteValues::of(last)?,
        })
    }

    fn decode(&self, values: &[Option<&[u8]>]) -> Result<ArrayRef> {
        let Some(head) = &self.head else {
            return byte_array(&self.last, values);
        };
        let mut heads = Vec::with_capacity(values.len());
        let mut lasts = Vec::with_capacity(values.len());
        let mut valid = NullBufferBuilder::new(values.len());
        for value in values {
            valid.append(value.is_some());
            let Some(value) = value else {
                heads.push(head.null_row.as_slice());
                lasts.push(None);
                continue;
            };
            let (before, rest) = value.split_at_checked(head.width).ok_or_else(undecodable)?;
            heads.push(before);
            lasts.push(match rest.split_first() {
                Some((1, bytes)) => Some(bytes),
                Some((0, [])) => None,
                _ => return Err(undecodable()),
            });
        }
        let mut columns = head.codec.decode(&heads)?;
        columns.push(byte_array(&self.last, &lasts)?);
        let whole = StructArray::try_new(head.fields.clone(), columns, valid.finish());
        Ok(Arc::new(whole.map_err(|error| {
            Error::damaged(ENCODED_ROWS, error.to_string())
        })?))
    }
}

fn is_bytes(data_type: &DataType) -> bool {
    use DataType::{Binary, LargeBinary, LargeUtf8, Utf8};
    matches!(data_type, Utf8 | LargeUtf8 | Binary | LargeBinary)
}

/// A column of texts or binary values.
pub enum ByteValues {
    Utf8(StringArray),
    LargeUtf8(LargeStringArray),
    Binary(BinaryArray),
    LargeBinary(LargeBinaryArray),
}

impl ByteValues {
    fn of(column: &ArrayRef) -> Result<Self> {
        Ok(match column.data_type() {
            DataType::Utf8 => Self::Utf8(column.as_string().clone()),
            DataType::LargeUtf8 => Self::LargeUtf8(column.as_string().clone()),
            DataType::Binary => Self::Binary(column.as_binary().clone()),
            DataType::LargeBinary => Self::LargeBinary(column.as_binary().clone()),
            other => return Err(Error::invalid(format!("{other} is no text and not binary"))),
        })
    }

    #[inline]
    fn get(&self, row: usize) -> Option<&[u8]> {
        match self {
            Self::Utf8(texts) => texts.is_valid(row).then(|| texts.value(row).as_bytes()),
            Self::LargeUtf8(texts) => texts.is_valid(row).then(|| texts.value(row).as_bytes()),
            Self::Binary(values) => values.is_valid(row).then(|| values.value(row)),
            Self::LargeBinary(values) => values.is_valid(row).then(|| values.value(row)),
        }
    }
}

fn byte_array(data_type: &DataType, values: &[Option<&[u8]>]) -> Result<ArrayRef> {
    Ok(match data_type {
        DataType::Utf8 => {
            let (ends, bytes, nulls) = parts(values)?;
            Arc::new(StringArray::try_new(ends, bytes, nulls).map_err(|_| undecodable())?)
        }
        DataType::LargeUtf8 => {
            let (ends, bytes, nulls) = parts(values)?;
            Arc::new(LargeStringArray::try_new(ends, bytes, nulls).map_err(|_| undecodable())?)
        }
        DataType::Binary => {
            let (ends, bytes, nulls) = parts(values)?;
            Arc::new(BinaryArray::try_new(ends, bytes, nulls)?)
        }
        _ => {
            let (ends, bytes, nulls) = parts(values)?;
            Arc::new(LargeBinaryArray::try_new(ends, bytes, nulls)?)
        }
    })
}

fn parts<O: OffsetSizeTrait>(
    values: &[Option<&[u8]>],
) -> Result<(OffsetBuffer<O>, Buffer, Option<NullBuffer>)> {
    let total = values.iter().flatten().map(|value| value.len()).sum();
    if O::from_usize(total).is_none() {
        return Err(Error::invalid("more than 2 GiB in one column of a batch"));
    }
    let mut bytes = Vec::with_capacity(total);
    let mut ends = Vec::with_capacity(values.len() + 1);
    let mut valid = NullBufferBuilder::new(values.len());
    ends.push(O::usize_as(0));
    for value in values {
        valid.append(value.is_some());
        bytes.extend_from_slice(value.unwrap_or_default());
        ends.push(O::usize_as(bytes.len()));
    }
    Ok((
        OffsetBuffer::new(ScalarBuffer::from(ends)),
        Buffer::from_vec(bytes),
        valid.finish(),
    ))
}
