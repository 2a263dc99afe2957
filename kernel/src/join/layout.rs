//! What a join reads, compares and gives out, and how its rows lie in bytes.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, make_array, new_null_array};
use arrow_data::transform::MutableArrayData;
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::codec::{self, ENCODED_ROWS, RowCodec};
use crate::error::{Error, Result};
use crate::hash::hash_key;
use crate::join::record::{self, Head};
use crate::rows::RowShape;

/// What a comparand of the left row must be to that of the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    pub fn of(text: &str) -> Result<Self> {
        match text {
            "<" => Ok(Self::Less),
            "<=" => Ok(Self::LessOrEqual),
            ">" => Ok(Self::Greater),
            ">=" => Ok(Self::GreaterOrEqual),
            _ => Err(Error::invalid(format!("no comparison is written {text}"))),
        }
    }

    /// The least and the most that the comparand of `side` may be for the comparison to hold, given the other one.
    fn bounds(self, side: usize, other: i64) -> (Option<i64>, Option<i64>) {
        match (self, side == LEFT) {
            (Self::Less, true) | (Self::Greater, false) => (None, Some(other.saturating_sub(1))),
            (Self::LessOrEqual, true) | (Self::GreaterOrEqual, false) => (None, Some(other)),
            (Self::Greater, true) | (Self::Less, false) => (Some(other.saturating_add(1)), None),
            (Self::GreaterOrEqual, true) | (Self::LessOrEqual, false) => (Some(other), None),
        }
    }

    #[inline]
    pub fn holds(self, left: i64, right: i64) -> bool {
        match self {
            Self::Less => left < right,
            Self::LessOrEqual => left <= right,
            Self::Greater => left > right,
            Self::GreaterOrEqual => left >= right,
        }
    }
}

/// An interval of time, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub first: i64,
    pub last: i64,
}

impl Span {
    pub const ALL: Self = Self {
        first: i64::MIN,
        last: i64::MAX,
    };
    pub const EMPTY: Self = Self {
        first: i64::MAX,
        last: i64::MIN,
    };

    pub fn is_empty(self) -> bool {
        self.first > self.last
    }

    pub fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// The smallest that holds both.
    pub fn around(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }
}

/// What a side reads: positions in its input schema, and what they are for.
#[derive(Clone, Debug)]
pub struct SideColumns {
    pub input: SchemaRef,
    pub keys: Vec<usize>,
    /// Boolean: whether the condition on the row's own side holds.
    pub matchable: Option<usize>,
    /// int64 microseconds: the row is late when the watermark has reached it.
    pub late: Option<usize>,
    /// int64 microseconds: the row can be forgotten when the watermark has reached it.
    pub expiry: Option<usize>,
    /// int64: what is compared with those of the other side.
    pub comparands: Vec<usize>,
    /// Numbers of the comparisons whose comparand of this side is the time that `expiry` follows.
    pub times: Vec<usize>,
    /// By how much the expiry is after that time.
    pub expires_after: i64,
    /// What comes out.
    pub kept: Vec<usize>,
    /// Null is a key like others, and equal to itself.
    pub null_keys: bool,
    /// Rows without a partner come out when they expire.
    pub outer: bool,
    /// Rows come out with their first partner and never again.
    pub once: bool,
}

#[derive(Debug)]
pub struct SideLayout {
    pub columns: SideColumns,
    pub types: Vec<DataType>,
    pub codec: RowCodec,
    pub outer: bool,
    pub once: bool,
    pub head: Head,
}

impl SideLayout {
    fn new(columns: SideColumns) -> Result<Self> {
        let expected = columns
            .matchable
            .into_iter()
            .map(|at| (at, DataType::Boolean));
        let numbers = columns.late.into_iter().chain(columns.expiry);
        let numbers = numbers.chain(columns.comparands.iter().copied());
        for (at, wanted) in expected.chain(numbers.map(|at| (at, DataType::Int64))) {
            if column_type(&columns.input, at)? != wanted {
                let what = format!("column {at} of a join's input must be {wanted}");
                return Err(Error::invalid(what));
            }
        }
        if columns
            .times
            .iter()
            .any(|at| *at >= columns.comparands.len())
        {
            return Err(Error::invalid("a time that is not among what is compared"));
        }
        let types = column_types(&columns.input, &columns.kept)?;
        Ok(Self {
            codec: RowCodec::new(&types)?,
            types,
            outer: columns.outer,
            once: columns.once,
            head: Head {
                has_id: columns.outer || columns.once,
                comparands: columns.comparands.len(),
            },
            columns,
        })
    }
}

fn column_type(input: &Schema, at: usize) -> Result<DataType> {
    let field = input.fields().get(at);
    field
        .map(|field| field.data_type().clone())
        .ok_or_else(|| Error::invalid(format!("the input has no column {at}")))
}

fn column_types(input: &Schema, columns: &[usize]) -> Result<Vec<DataType>> {
    columns.iter().map(|at| column_type(input, *at)).collect()
}

/// Equal arguments give equal bytes in every process.
#[derive(Debug)]
pub struct JoinLayout {
    pub output: SchemaRef,
    pub key_codec: RowCodec,
    pub sides: [SideLayout; 2],
    /// Of the left row's comparands with the right one's, in order.
    pub comparisons: Vec<Comparison>,
    pub slice_us: i64,
    pub shape: RowShape,
    pub fingerprint: u64,
}

pub const LEFT: usize = 0;
pub const RIGHT: usize = 1;

impl JoinLayout {
    /// Rows that expire within `slice_us` share a part.
    pub fn new(
        left: SideColumns,
        right: SideColumns,
        comparisons: Vec<Comparison>,
        slice_us: i64,
    ) -> Result<Self> {
        if slice_us <= 0 {
            return Err(Error::invalid("the length of slices must be positive"));
        }
        let key_types = column_types(&left.input, &left.keys)?;
        if key_types != column_types(&right.input, &right.keys)? {
            return Err(Error::invalid("the keys of the sides have other types"));
        }
        let compared = [left.comparands.len(), right.comparands.len()];
        if compared != [comparisons.len(), comparisons.len()] {
            return Err(Error::invalid(
                "each comparison takes a column of each side",
            ));
        }
        let key_codec = RowCodec::new(&key_types)?;
        let sides = [SideLayout::new(left)?, SideLayout::new(right)?];
        let mut fields: Vec<Field> = Vec::new();
        let mut text = format!("join {} ", comparisons.len());
        key_types.iter().for_each(|t| codec::describe(t, &mut text));
        for side in &sides {
            text.push_str(if side.outer { " | outer " } else { " | " });
            text.push_str(if side.once { "once " } else { "" });
            let types = side.types.iter();
            types.for_each(|t| codec::describe(t, &mut text));
            let kept = side.columns.kept.iter();
            fields.extend(kept.map(|at| side.columns.input.field(*at).clone().with_nullable(true)));
        }
        Ok(Self {
            shape: RowShape {
                key_width: key_codec.width(),
                value_width: None,
            },
            fingerprint: hash_key(text.as_bytes()),
            output: Arc::new(Schema::new(fields)),
            key_codec,
            sides,
            comparisons,
            slice_us,
        })
    }

    /// Rows as a sorter gives them to a store.
    pub fn encoded_schema(&self) -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("hash", DataType::UInt64, false),
            Field::new("part", DataType::Int64, false),
            Field::new("key", DataType::Binary, false),
            Field::new("value", DataType::Binary, false),
        ]))
    }

    /// Whether it is known of a row when its partners on `side` expire.
    pub fn bounds_partners(&self, side: usize) -> bool {
        let columns = &self.sides[side].columns;
        columns.expiry.is_some() && !columns.times.is_empty()
    }

    /// When the rows of `side` that can be partners of a row of the other side expire.
    #[inline]
    pub fn partners_expire(&self, side: usize, other: &[u8]) -> Span {
        if record::flags(other) & record::ALONE != 0 {
            return Span::EMPTY;
        }
        let columns = &self.sides[side].columns;
        let head = self.sides[1 - side].head;
        let mut span = Span::ALL;
        for at in &columns.times {
            let (least, most) = self.comparisons[*at].bounds(side, head.comparand(other, *at));
            let after = |time: i64| time.saturating_add(columns.expires_after);
            span.first = span.first.max(least.map_or(i64::MIN, after));
            span.last = span.last.min(most.map_or(i64::MAX, after));
        }
        span
    }

    /// Whether two rows of one key are partners.
    #[inline]
    pub fn is_match(&self, left: &[u8], right: &[u8]) -> bool {
        if (record::flags(left) | record::flags(right)) & record::ALONE != 0 {
            return false;
        }
        let heads = [self.sides[LEFT].head, self.sides[RIGHT].head];
        let mut comparisons = self.comparisons.iter().enumerate();
        comparisons.all(|(at, comparison)| {
            comparison.holds(
                heads[LEFT].comparand(left, at),
                heads[RIGHT].comparand(right, at),
            )
        })
    }

    /// Pairs of records in the output schema.
    pub fn decode_pairs(&self, left: &[&[u8]], right: &[&[u8]]) -> Result<RecordBatch> {
        let mut columns = self.decode_side(LEFT, left)?;
        columns.extend(self.decode_side(RIGHT, right)?);
        self.batch(columns, left.len())
    }

    /// Records of one side beside nulls.
    pub fn decode_alone(&self, side: usize, records: &[&[u8]]) -> Result<RecordBatch> {
        let own = self.decode_side(side, records)?;
        let other = self.sides[1 - side].types.iter();
        let nulls = other.map(|t| new_null_array(t, records.len()));
        let columns = match side {
            LEFT => own.into_iter().chain(nulls).collect(),
            _ => nulls.chain(own).collect(),
        };
        self.batch(columns, records.len())
    }

    fn batch(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.output), columns, &options)
            .map_err(|error| Error::damaged(ENCODED_ROWS, error.to_string()))
    }

    fn decode_side(&self, side: usize, records: &[&[u8]]) -> Result<Vec<ArrayRef>> {
        let side = &self.sides[side];
        // A row stands beside each of its partners, and mostly they follow one another.
        let mut distinct: Vec<&[u8]> = Vec::new();
        let mut last: *const u8 = std::ptr::null();
        let mut numbers = Vec::with_capacity(records.len());
        for record in records {
            if record.as_ptr() != last || distinct.is_empty() {
                last = record.as_ptr();
                distinct.push(side.head.columns(record));
            }
            numbers.push(distinct.len() - 1);
        }
        if distinct.len() * 2 > records.len() {
            let rows: Vec<&[u8]> = records.iter().map(|r| side.head.columns(r)).collect();
            return side.codec.decode(&rows);
        }
        let columns = side.codec.decode(&distinct)?;
        columns
            .iter()
            .map(|column| repeated(column, &numbers))
            .collect()
    }
}

/// The values of the column with these numbers.
fn repeated(column: &ArrayRef, numbers: &[usize]) -> Result<ArrayRef> {
    let data = column.to_data();
    let mut out = MutableArrayData::new(vec![&data], false, numbers.len());
    for at in numbers {
        out.try_extend(0, *at, at + 1)?;
    }
    Ok(make_array(out.freeze()))
}
