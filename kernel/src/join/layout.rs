//! What a join reads, compares and gives out, and how its rows lie in bytes.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
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

/// Positions in the input schema, and what they are for.
#[derive(Clone, Debug)]
pub struct JoinColumns {
    /// int8: 0 on rows of the left side, 1 on those of the right.
    pub side: usize,
    pub keys: Vec<usize>,
    /// Boolean: whether the condition on the row's own side holds.
    pub matchable: Option<usize>,
    /// int64 microseconds: the row is late when the watermark has reached it.
    pub late: Option<usize>,
    /// int64 microseconds: the row can be forgotten when the watermark has reached it.
    pub expiry: Option<usize>,
    /// int64: what is compared, with how.
    pub comparands: Vec<(usize, Comparison)>,
    pub left: Vec<usize>,
    pub right: Vec<usize>,
}

#[derive(Debug)]
pub struct SideLayout {
    pub columns: Vec<usize>,
    pub types: Vec<DataType>,
    pub codec: RowCodec,
    /// Rows without a partner come out when they expire.
    pub outer: bool,
    pub head: Head,
}

/// Equal arguments give equal bytes in every process.
#[derive(Debug)]
pub struct JoinLayout {
    pub input: SchemaRef,
    pub output: SchemaRef,
    pub columns: JoinColumns,
    pub key_codec: RowCodec,
    pub sides: [SideLayout; 2],
    pub slice_us: i64,
    pub shape: RowShape,
    pub fingerprint: u64,
}

pub const LEFT: usize = 0;
pub const RIGHT: usize = 1;

impl JoinLayout {
    /// `outer`: on which sides rows without a partner come out. Rows that expire within `slice_us` share a part.
    pub fn new(
        input: SchemaRef,
        columns: JoinColumns,
        outer: [bool; 2],
        slice_us: i64,
    ) -> Result<Self> {
        if slice_us <= 0 {
            return Err(Error::invalid("the length of slices must be positive"));
        }
        let type_of = |at: usize| {
            let field = input.fields().get(at);
            field
                .map(|field| field.data_type().clone())
                .ok_or_else(|| Error::invalid(format!("the input has no column {at}")))
        };
        let expect = |at: usize, expected: DataType| match type_of(at)? == expected {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "column {at} of a join's input must be {expected}"
            ))),
        };
        expect(columns.side, DataType::Int8)?;
        if let Some(at) = columns.matchable {
            expect(at, DataType::Boolean)?;
        }
        let times = columns.late.into_iter().chain(columns.expiry);
        for at in times.chain(columns.comparands.iter().map(|(at, _)| *at)) {
            expect(at, DataType::Int64)?;
        }
        let types = |columns: &[usize]| -> Result<Vec<DataType>> {
            columns.iter().map(|at| type_of(*at)).collect()
        };
        let key_types: Vec<DataType> = types(&columns.keys)?;
        let key_codec = RowCodec::new(&key_types)?;
        let mut fields: Vec<Field> = Vec::new();
        let mut text = format!("join {} ", columns.comparands.len());
        key_types.iter().for_each(|t| codec::describe(t, &mut text));
        let mut side = |columns_of: &[usize], outer: bool| -> Result<SideLayout> {
            let side_types: Vec<DataType> = types(columns_of)?;
            text.push_str(if outer { " | outer " } else { " | " });
            side_types
                .iter()
                .for_each(|t| codec::describe(t, &mut text));
            fields.extend(
                columns_of
                    .iter()
                    .map(|at| input.field(*at).clone().with_nullable(true)),
            );
            Ok(SideLayout {
                columns: columns_of.to_vec(),
                codec: RowCodec::new(&side_types)?,
                types: side_types,
                outer,
                head: Head {
                    has_id: outer,
                    comparands: columns.comparands.len(),
                },
            })
        };
        let sides = [
            side(&columns.left, outer[LEFT])?,
            side(&columns.right, outer[RIGHT])?,
        ];
        Ok(Self {
            shape: RowShape {
                key_width: key_codec.width(),
                value_width: None,
            },
            fingerprint: hash_key(text.as_bytes()),
            output: Arc::new(Schema::new(fields)),
            input,
            columns,
            key_codec,
            sides,
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

    /// Whether two rows of one key are partners.
    #[inline]
    pub fn is_match(&self, left: &[u8], right: &[u8]) -> bool {
        if (record::flags(left) | record::flags(right)) & record::ALONE != 0 {
            return false;
        }
        let heads = [self.sides[LEFT].head, self.sides[RIGHT].head];
        let mut comparisons = self.columns.comparands.iter().enumerate();
        comparisons.all(|(at, (_, comparison))| {
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
        let rows: Vec<&[u8]> = records
            .iter()
            .map(|record| side.head.columns(record))
            .collect();
        side.codec.decode(&rows)
    }
}
