//! Columns as bytes: which types the kernel keeps, how wide they are, and the row encoding of arrow-row with its
//! decoding guarded against bad bytes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, PrimitiveArray, make_array, new_null_array};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::{DataType, Fields, IntervalUnit, SortOptions, TimeUnit};

use crate::error::{Error, Result};

/// Stands for the place of bytes that came in a batch and not from a file.
pub const ENCODED_ROWS: &str = "encoded rows";

/// Encodes columns to one byte string per row and back. The bytes compare in the order of the values, nulls first.
#[derive(Debug)]
pub struct RowCodec {
    converter: RowConverter,
    columns: usize,
    width: Option<usize>,
}

impl RowCodec {
    pub fn new(types: &[DataType]) -> Result<Self> {
        Self::ordered(types, &vec![SortOptions::default(); types.len()])
    }

    /// The bytes compare in the given order of each column.
    pub fn ordered(types: &[DataType], options: &[SortOptions]) -> Result<Self> {
        let width = total_width(types.iter())?;
        let fields = types.iter().cloned().zip(options);
        let fields =
            fields.map(|(data_type, order)| SortField::new_with_options(data_type, *order));
        Ok(Self {
            converter: RowConverter::new(fields.collect())?,
            columns: types.len(),
            width,
        })
    }

    /// The length of every encoded row, where all columns are of fixed width.
    pub fn width(&self) -> Option<usize> {
        self.width
    }

    pub fn encode(&self, columns: &[ArrayRef]) -> Result<Rows> {
        Ok(self.converter.convert_columns(columns)?)
    }

    /// Writes rows of fixed width into `out`, one every `stride` bytes, `at` bytes after its start.
    pub fn encode_fixed(
        &self,
        columns: &[ArrayRef],
        out: &mut [u8],
        stride: usize,
        at: usize,
    ) -> Result<()> {
        if columns.is_empty() {
            return Ok(());
        }
        let rows = self.encode(columns)?;
        for (out, row) in out.chunks_exact_mut(stride).zip(&rows) {
            let row = row.data();
            out[at..at + row.len()].copy_from_slice(row);
        }
        Ok(())
    }

    /// The bytes of a row of nulls.
    pub fn null_row(&self, types: &[DataType]) -> Result<Vec<u8>> {
        let nulls: Vec<ArrayRef> = types.iter().map(|t| new_null_array(t, 1)).collect();
        if nulls.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.encode(&nulls)?.row(0).data().to_vec())
    }

    pub fn decode(&self, rows: &[&[u8]]) -> Result<Vec<ArrayRef>> {
        if self.columns == 0 {
            return match rows.iter().any(|row| !row.is_empty()) {
                true => Err(undecodable()),
                false => Ok(Vec::new()),
            };
        }
        let parser = self.converter.parser();
        let parsed = rows.iter().map(|row| parser.parse(row));
        match self.width {
            Some(width) => {
                if rows.iter().any(|row| row.len() != width) {
                    return Err(undecodable());
                }
                Ok(self.converter.convert_rows(parsed)?)
            }
            // The decoder of variable widths panics on bytes it did not write. Files are checksummed, so this
            // is for rows that came from elsewhere.
            None => match catch_unwind(AssertUnwindSafe(|| self.converter.convert_rows(parsed))) {
                Ok(decoded) => Ok(decoded?),
                Err(_) => Err(undecodable()),
            },
        }
    }
}

pub fn undecodable() -> Error {
    Error::damaged(ENCODED_ROWS, "bytes that the layout cannot decode")
}

fn total_width<'a>(types: impl Iterator<Item = &'a DataType>) -> Result<Option<usize>> {
    let mut total = Some(0);
    for data_type in types {
        // Every type is looked at, so that an unsupported one behind a variable one is refused too.
        let width = encoded_width(data_type)?;
        total = total.zip(width).map(|(a, b)| a + b);
    }
    Ok(total)
}

fn fields_width(fields: &Fields) -> Result<Option<usize>> {
    total_width(fields.iter().map(|field| field.data_type()))
}

/// Bytes of an encoded value of the type: `None` where they vary. Refuses types that the kernel does not keep.
pub fn encoded_width(data_type: &DataType) -> Result<Option<usize>> {
    use DataType::{
        Binary, Boolean, Date32, Date64, Decimal128, Duration, FixedSizeBinary, Float32, Float64,
        Int8, Int16, Int32, Int64, Interval, LargeBinary, LargeList, LargeUtf8, List, Map, Null,
        Struct, Time32, Time64, Timestamp, UInt8, UInt16, UInt32, UInt64, Utf8,
    };
    let bytes = match data_type {
        Null | Boolean | Int8 | UInt8 => 1,
        Int16 | UInt16 => 2,
        Int32 | UInt32 | Float32 | Date32 | Time32(_) | Interval(IntervalUnit::YearMonth) => 4,
        Int64 | UInt64 | Float64 | Date64 | Time64(_) | Timestamp(..) | Duration(_) => 8,
        Interval(IntervalUnit::DayTime) => 8,
        Decimal128(..) | Interval(IntervalUnit::MonthDayNano) => 16,
        FixedSizeBinary(size) => usize::try_from(*size)
            .map_err(|_| Error::invalid(format!("a binary of size {size}")))?,
        Struct(fields) => return Ok(fields_width(fields)?.map(|width| 1 + width)),
        Utf8 | LargeUtf8 | Binary | LargeBinary => return Ok(None),
        List(field) | LargeList(field) | Map(field, _) => {
            encoded_width(field.data_type())?;
            return Ok(None);
        }
        other => {
            return Err(Error::invalid(format!(
                "columns of type {other} are not supported"
            )));
        }
    };
    Ok(Some(1 + bytes))
}

/// Writes the type as far as it decides how bytes lie: no field names, nullability or time zones. The text is part
/// of the file format.
pub fn describe(data_type: &DataType, out: &mut String) {
    let unit = |unit: &TimeUnit| match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    };
    let name = match data_type {
        DataType::Null => "null",
        DataType::Boolean => "bool",
        DataType::Int8 => "i8",
        DataType::Int16 => "i16",
        DataType::Int32 => "i32",
        DataType::Int64 => "i64",
        DataType::UInt8 => "u8",
        DataType::UInt16 => "u16",
        DataType::UInt32 => "u32",
        DataType::UInt64 => "u64",
        DataType::Float32 => "f32",
        DataType::Float64 => "f64",
        DataType::Date32 => "date32",
        DataType::Date64 => "date64",
        DataType::Time32(u) => return out.extend(["time32-", unit(u)]),
        DataType::Time64(u) => return out.extend(["time64-", unit(u)]),
        DataType::Timestamp(u, _) => return out.extend(["timestamp-", unit(u)]),
        DataType::Duration(u) => return out.extend(["duration-", unit(u)]),
        DataType::Interval(IntervalUnit::YearMonth) => "interval-ym",
        DataType::Interval(IntervalUnit::DayTime) => "interval-dt",
        DataType::Interval(IntervalUnit::MonthDayNano) => "interval-mdn",
        DataType::Utf8 | DataType::LargeUtf8 => "utf8",
        DataType::Binary | DataType::LargeBinary => "binary",
        DataType::Decimal128(precision, scale) => {
            return out.push_str(&format!("decimal{precision}.{scale}"));
        }
        DataType::FixedSizeBinary(size) => return out.push_str(&format!("binary{size}")),
        DataType::List(field) | DataType::LargeList(field) => {
            return describe_nested("list", [field.data_type()].into_iter(), out);
        }
        DataType::Map(field, _) => {
            return describe_nested("map", [field.data_type()].into_iter(), out);
        }
        DataType::Struct(fields) => {
            return describe_nested("struct", fields.iter().map(|f| f.data_type()), out);
        }
        other => return out.push_str(&other.to_string()),
    };
    out.push_str(name);
}

fn describe_nested<'a>(name: &str, children: impl Iterator<Item = &'a DataType>, out: &mut String) {
    out.push_str(name);
    out.push('<');
    for child in children {
        describe(child, out);
        out.push(',');
    }
    out.push('>');
}

/// How a column is made ready for comparison by bytes as Spark compares its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    /// The bytes already compare rightly.
    AsIs,
    /// A float column: any NaN is the one that is largest.
    Floats,
    /// Floats inside: as above, and zeros lose their sign, since what follows them decides.
    NestedFloats,
}

impl Ordering {
    /// Refuses types that Spark does not order.
    pub fn of(data_type: &DataType) -> Result<Self> {
        match data_type {
            DataType::Float32 | DataType::Float64 => Ok(Self::Floats),
            DataType::Struct(fields) => fields.iter().try_fold(Self::AsIs, |seen, field| {
                Ok(match Self::of(field.data_type())? {
                    Self::AsIs => seen,
                    _ => Self::NestedFloats,
                })
            }),
            DataType::List(field) | DataType::LargeList(field) => {
                Ok(match Self::of(field.data_type())? {
                    Self::AsIs => Self::AsIs,
                    _ => Self::NestedFloats,
                })
            }
            DataType::Map(..) | DataType::Interval(IntervalUnit::MonthDayNano) => Err(
                Error::invalid(format!("values of type {data_type} have no order")),
            ),
            _ => Ok(Self::AsIs),
        }
    }

    pub fn apply(self, column: &ArrayRef) -> Result<ArrayRef> {
        match (self, column.data_type()) {
            (Self::Floats, DataType::Float64) => {
                let column: &PrimitiveArray<Float64Type> = column.as_primitive();
                Ok(Arc::new(column.unary::<_, Float64Type>(one_nan_f64)))
            }
            (Self::Floats, DataType::Float32) => {
                let column: &PrimitiveArray<Float32Type> = column.as_primitive();
                Ok(Arc::new(column.unary::<_, Float32Type>(one_nan_f32)))
            }
            (Self::NestedFloats, _) => Ok(make_array(normal_floats(column.to_data())?)),
            _ => Ok(Arc::clone(column)),
        }
    }
}

fn one_nan_f64(value: f64) -> f64 {
    if value.is_nan() { f64::NAN } else { value }
}

fn one_nan_f32(value: f32) -> f32 {
    if value.is_nan() { f32::NAN } else { value }
}

/// Adding a positive zero takes the sign from a negative one and leaves all else.
fn normal_floats(data: ArrayData) -> Result<ArrayData> {
    let buffer: Option<Buffer> = match data.data_type() {
        DataType::Float64 => Some(
            data.buffer::<f64>(0)
                .iter()
                .take(data.len())
                .map(|v| one_nan_f64(v + 0.0))
                .collect(),
        ),
        DataType::Float32 => Some(
            data.buffer::<f32>(0)
                .iter()
                .take(data.len())
                .map(|v| one_nan_f32(v + 0.0))
                .collect(),
        ),
        _ => None,
    };
    if let Some(buffer) = buffer {
        return Ok(ArrayData::builder(data.data_type().clone())
            .len(data.len())
            .nulls(data.nulls().cloned())
            .add_buffer(buffer)
            .build()?);
    }
    let children = data
        .child_data()
        .iter()
        .cloned()
        .map(normal_floats)
        .collect::<Result<Vec<_>>>()?;
    Ok(data.into_builder().child_data(children).build()?)
}
