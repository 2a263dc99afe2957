//! Aggregates that are kept merged: what each holds in a value's bytes.
//!
//! A value is a fixed part, in which every aggregate has its slot, and a tail with the bytes of cells whose width
//! varies, in the order of the slots. All zeros with no tail is the empty state.

mod cell;
mod decode;
mod encode;
mod merge;
mod top;

use arrow_schema::{DataType, Field, Schema};

use crate::error::{Error, Result};

use cell::Cell;
pub use decode::Values;
pub use encode::{Partials, RowMask};
use top::{TOP_BYTES, Top};

/// States of a flag byte: nothing seen yet, a null, a value; for sums the last one is an overflow.
pub const UNSET: u8 = 0;
pub const NULL: u8 = 1;
pub const VALUE: u8 = 2;
pub const OVERFLOWED: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOverflow {
    Fail,
    Wrap,
    Null,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitOp {
    And,
    Or,
    Xor,
}

const LENGTH_BYTES: usize = 4;

/// A count whose input says how many rows a row stands for; kept as `count` is.
const COUNT_OF: &str = "count_of";

/// What an aggregate keeps, and where in the fixed part.
#[derive(Debug)]
pub enum Slot {
    Count {
        at: usize,
    },
    SumInt {
        at: usize,
        on_overflow: OnOverflow,
    },
    SumFloat {
        at: usize,
    },
    /// `limit`: the first magnitude that the type cannot hold.
    SumDecimal {
        at: usize,
        limit: i128,
        data_type: DataType,
    },
    Extreme {
        cell: Cell,
        largest: bool,
    },
    Pick {
        cell: Cell,
        last: bool,
        skip_nulls: bool,
    },
    By {
        order: Cell,
        value: Cell,
        largest: bool,
    },
    Bits {
        at: usize,
        op: BitOp,
        data_type: DataType,
    },
    Moments {
        at: usize,
    },
    Top(Top),
}

impl Slot {
    /// The end of the slot in the fixed part.
    fn end(&self) -> usize {
        match self {
            Self::Count { at } => at + 8,
            Self::SumInt { at, .. } | Self::SumFloat { at } | Self::Bits { at, .. } => at + 9,
            Self::SumDecimal { at, .. } => at + 17,
            Self::Extreme { cell, .. } | Self::Pick { cell, .. } => cell.end(),
            Self::By { value, .. } => value.end(),
            Self::Moments { at } => at + 24,
            Self::Top(top) => top.at + TOP_BYTES,
        }
    }

    fn is_variable(&self) -> bool {
        match self {
            Self::Extreme { cell, .. } | Self::Pick { cell, .. } => cell.is_variable(),
            Self::By { order, value, .. } => order.is_variable() || value.is_variable(),
            Self::Top(_) => true,
            _ => false,
        }
    }

    /// The types of the buffers that it decodes to.
    fn buffer_types(&self) -> Vec<DataType> {
        use DataType::{Boolean, Float64, Int64};
        match self {
            Self::Count { .. } => vec![Int64],
            Self::SumInt { on_overflow, .. } => match on_overflow {
                OnOverflow::Null => vec![Int64, Boolean],
                _ => vec![Int64],
            },
            Self::SumFloat { .. } => vec![Float64],
            Self::SumDecimal { data_type, .. } => vec![data_type.clone(), Boolean],
            Self::Extreme { cell, .. } => vec![cell.data_type.clone()],
            Self::Pick { cell, .. } => vec![cell.data_type.clone(), Boolean],
            Self::By { order, value, .. } => vec![value.data_type.clone(), order.data_type.clone()],
            Self::Bits { data_type, .. } => vec![data_type.clone()],
            Self::Moments { .. } => vec![Float64, Float64, Float64],
            Self::Top(top) => vec![top.buffer_type()],
        }
    }
}

/// An aggregate over columns of the input schema.
#[derive(Debug)]
pub struct Aggregate {
    op: String,
    inputs: Vec<usize>,
    filter: Option<usize>,
    slot: Slot,
}

/// The aggregates of a layout in order, their slots one after another.
#[derive(Debug)]
pub struct Aggregates {
    list: Vec<Aggregate>,
    fixed: usize,
    variable: bool,
}

impl Aggregates {
    pub fn new(input: &Schema, specs: &[(String, Vec<usize>, Option<usize>)]) -> Result<Self> {
        let mut list = Vec::with_capacity(specs.len());
        let mut at = 0;
        for (op, inputs, filter) in specs {
            let aggregate = Aggregate::new(input, at, op, inputs, *filter)?;
            at = aggregate.slot.end();
            list.push(aggregate);
        }
        let variable = list.iter().any(|aggregate| aggregate.slot.is_variable());
        Ok(Self {
            list,
            fixed: at,
            variable,
        })
    }

    /// Length of the fixed part.
    pub fn fixed_len(&self) -> usize {
        self.fixed
    }

    /// Whether the first bytes of a value are a count.
    pub fn begin_with_count(&self) -> bool {
        matches!(
            self.list.first().map(|first| &first.slot),
            Some(Slot::Count { .. })
        )
    }

    /// Whether values have a tail.
    pub fn is_variable(&self) -> bool {
        self.variable
    }

    pub fn buffer_fields(&self) -> Vec<Field> {
        self.list
            .iter()
            .flat_map(|aggregate| aggregate.slot.buffer_types())
            .enumerate()
            .map(|(i, data_type)| Field::new(format!("b{i}"), data_type, true))
            .collect()
    }

    /// Names what decides how the bytes lie; part of the file format.
    pub fn describe(&self, out: &mut String) {
        for aggregate in &self.list {
            out.push_str(&aggregate.op);
            out.push('(');
            for data_type in aggregate.slot.buffer_types() {
                crate::codec::describe(&data_type, out);
                out.push(',');
            }
            out.push(')');
        }
    }
}

impl Aggregate {
    fn new(
        input: &Schema,
        at: usize,
        op: &str,
        inputs: &[usize],
        filter: Option<usize>,
    ) -> Result<Self> {
        let types = inputs
            .iter()
            .map(|i| column_type(input, *i, op))
            .collect::<Result<Vec<_>>>()?;
        if let Some(filter) = filter {
            let data_type = column_type(input, filter, op)?;
            if *data_type != DataType::Boolean {
                return Err(Error::invalid(format!(
                    "the filter of {op} is of type {data_type}, not boolean"
                )));
            }
        }
        Ok(Self {
            op: op.to_owned(),
            inputs: inputs.to_vec(),
            filter,
            slot: slot(at, op, &types)?,
        })
    }
}

fn column_type<'a>(input: &'a Schema, position: usize, op: &str) -> Result<&'a DataType> {
    match input.fields().get(position) {
        Some(field) => Ok(field.data_type()),
        None => Err(Error::invalid(format!(
            "{op} reads column {position}, the input has {} columns",
            input.fields().len()
        ))),
    }
}

fn slot(at: usize, op: &str, types: &[&DataType]) -> Result<Slot> {
    if op == "count" {
        return Ok(Slot::Count { at });
    }
    if op == COUNT_OF {
        return match types {
            [DataType::Int64] => Ok(Slot::Count { at }),
            _ => Err(Error::invalid(format!(
                "{op} takes one input of type Int64"
            ))),
        };
    }
    if let "min_by" | "max_by" = op {
        let [value, order] = types else {
            return Err(wrong_inputs(op, 2, types.len()));
        };
        let order = named(op, Cell::new(at, order, true))?;
        let value = named(op, Cell::new(order.end(), value, false))?;
        return Ok(Slot::By {
            order,
            value,
            largest: op == "max_by",
        });
    }
    let [data_type] = *types else {
        return Err(wrong_inputs(op, 1, types.len()));
    };
    let only = |allowed: bool| match allowed {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{op} does not take type {data_type}"
        ))),
    };
    Ok(match op {
        "sum_int" | "sum_int_wrapping" | "sum_int_try" => {
            only(*data_type == DataType::Int64)?;
            let on_overflow = match op {
                "sum_int" => OnOverflow::Fail,
                "sum_int_try" => OnOverflow::Null,
                _ => OnOverflow::Wrap,
            };
            Slot::SumInt { at, on_overflow }
        }
        "sum_float" | "moments" => {
            only(*data_type == DataType::Float64)?;
            match op {
                "moments" => Slot::Moments { at },
                _ => Slot::SumFloat { at },
            }
        }
        "sum_decimal" => match data_type {
            DataType::Decimal128(precision, _) if *precision <= 38 => Slot::SumDecimal {
                at,
                limit: 10_i128.pow(u32::from(*precision)),
                data_type: data_type.clone(),
            },
            _ => {
                return Err(Error::invalid(format!(
                    "{op} does not take type {data_type}"
                )));
            }
        },
        "min" | "max" => Slot::Extreme {
            cell: named(op, Cell::new(at, data_type, true))?,
            largest: op == "max",
        },
        "first" | "last" | "first_non_null" | "last_non_null" => Slot::Pick {
            cell: named(op, Cell::new(at, data_type, false))?,
            last: op.starts_with("last"),
            skip_nulls: op.ends_with("_non_null"),
        },
        "bit_and" | "bit_or" | "bit_xor" => {
            only(data_type.is_signed_integer())?;
            let op = match op {
                "bit_and" => BitOp::And,
                "bit_or" => BitOp::Or,
                _ => BitOp::Xor,
            };
            Slot::Bits {
                at,
                op,
                data_type: data_type.clone(),
            }
        }
        _ if op.starts_with("top ") => Slot::Top(Top::new(at, op, data_type)?),
        _ => return Err(Error::invalid(format!("unknown aggregate {op}"))),
    })
}

fn wrong_inputs(op: &str, expected: usize, given: usize) -> Error {
    Error::invalid(format!("{op} takes {expected} inputs, {given} were given"))
}

fn named<T>(op: &str, result: Result<T>) -> Result<T> {
    result.map_err(|error| Error::invalid(format!("{op}: {error}")))
}

// The callers have checked the length of the value against the layout.
fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

#[inline]
fn read_i64(bytes: &[u8], at: usize) -> i64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    i64::from_le_bytes(word)
}

#[inline]
fn read_f64(bytes: &[u8], at: usize) -> f64 {
    f64::from_bits(read_i64(bytes, at) as u64)
}

fn read_i128(bytes: &[u8], at: usize) -> i128 {
    let mut word = [0; 16];
    word.copy_from_slice(&bytes[at..at + 16]);
    i128::from_le_bytes(word)
}

#[inline]
fn write(bytes: &mut [u8], at: usize, word: &[u8]) {
    bytes[at..at + word.len()].copy_from_slice(word);
}
