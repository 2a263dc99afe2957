//! How the rows of a session lie in bytes: the key, and what is kept beside it.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::codec::{self, ENCODED_ROWS, RowCodec};
use crate::error::{Error, Result};
use crate::hash::hash_key;
use crate::layout::bytes_type;

/// Where a kept column comes from when rows are given out.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Key(usize),
    Value(usize),
}

/// Keys are not kept with every row: a kept column that is a key is read back from the key.
#[derive(Debug)]
pub struct RowsLayout {
    input: SchemaRef,
    keys: Vec<usize>,
    values: Vec<usize>,
    time: usize,
    gap: i64,
    key_codec: RowCodec,
    value_codec: RowCodec,
    origins: Vec<Origin>,
    output: SchemaRef,
    encoded: SchemaRef,
    fingerprint: u64,
}

impl RowsLayout {
    /// `keys`, `kept`, `time`: positions in the input schema; the time and the gap are microseconds.
    pub fn new(
        input: SchemaRef,
        keys: Vec<usize>,
        kept: &[usize],
        time: usize,
        gap: i64,
    ) -> Result<Self> {
        let types = |columns: &[usize]| -> Result<Vec<DataType>> {
            columns
                .iter()
                .map(|i| Ok(field(&input, *i)?.data_type().clone()))
                .collect()
        };
        if field(&input, time)?.data_type() != &DataType::Int64 {
            return Err(Error::invalid(
                "the time of sessions must be int64 microseconds",
            ));
        }
        if gap <= 0 {
            return Err(Error::invalid(format!(
                "a gap of {gap} µs: it must be positive"
            )));
        }
        let mut values = Vec::new();
        let mut origins = Vec::new();
        let mut output = Vec::new();
        for column in kept {
            output.push(field(&input, *column)?.clone());
            origins.push(match keys.iter().position(|key| key == column) {
                Some(place) => Origin::Key(place),
                None => {
                    values.push(*column);
                    Origin::Value(values.len() - 1)
                }
            });
        }
        output.push(Field::new("start", DataType::Int64, false));
        output.push(Field::new("end", DataType::Int64, false));
        let (key_types, value_types) = (types(&keys)?, types(&values)?);
        let key_codec = RowCodec::new(&key_types)
            .map_err(|error| Error::invalid(format!("group keys: {error}")))?;
        let value_codec = RowCodec::new(&value_types)
            .map_err(|error| Error::invalid(format!("kept columns: {error}")))?;
        let encoded = vec![
            Field::new("time", DataType::Int64, false),
            Field::new("key", bytes_type(key_codec.width())?, false),
            Field::new("value", bytes_type(value_codec.width())?, false),
        ];
        let mut text = format!("session rows gap {gap} ");
        for data_type in key_types.iter().chain(&value_types) {
            codec::describe(data_type, &mut text);
            text.push(' ');
        }
        text.push_str(&format!("keys {}", key_types.len()));
        Ok(Self {
            keys,
            values,
            time,
            gap,
            key_codec,
            value_codec,
            origins,
            output: Arc::new(Schema::new(output)),
            encoded: Arc::new(Schema::new(encoded)),
            fingerprint: hash_key(text.as_bytes()),
            input,
        })
    }

    pub fn gap(&self) -> i64 {
        self.gap
    }

    pub fn key_width(&self) -> Option<usize> {
        self.key_codec.width()
    }

    pub fn value_width(&self) -> Option<usize> {
        self.value_codec.width()
    }

    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The kept columns, then start and end of the session.
    pub fn output_schema(&self) -> SchemaRef {
        Arc::clone(&self.output)
    }

    /// Time, key and value: the form in which rows travel between an ingest task and a store.
    pub fn encoded_schema(&self) -> SchemaRef {
        Arc::clone(&self.encoded)
    }

    pub(crate) fn key_codec(&self) -> &RowCodec {
        &self.key_codec
    }

    pub(crate) fn value_codec(&self) -> &RowCodec {
        &self.value_codec
    }

    /// The columns of the keys, the values and the time of a batch of the input schema.
    pub(crate) fn columns<'a>(
        &self,
        batch: &'a RecordBatch,
    ) -> Result<(Vec<ArrayRef>, Vec<ArrayRef>, &'a Int64Array)> {
        let (given, expected) = (batch.schema(), &self.input);
        let fits = given.fields().len() == expected.fields().len()
            && given
                .fields()
                .iter()
                .zip(expected.fields())
                .all(|(a, b)| a.data_type().equals_datatype(b.data_type()));
        if !fits {
            return Err(Error::invalid(format!(
                "a batch of {given:?}, the input is {expected:?}"
            )));
        }
        let pick = |columns: &[usize]| -> Vec<ArrayRef> {
            columns
                .iter()
                .map(|i| Arc::clone(batch.column(*i)))
                .collect()
        };
        let times = batch.column(self.time).as_primitive::<Int64Type>();
        Ok((pick(&self.keys), pick(&self.values), times))
    }

    /// Rows in the output schema. `keys` has one key for each of `sessions`, whose numbers of rows, starts and ends
    /// stand beside it; `values` has one for each row.
    pub fn decode(
        &self,
        keys: &[&[u8]],
        sessions: &[(u32, i64, i64)],
        values: &[&[u8]],
    ) -> Result<RecordBatch> {
        let key_columns = self.key_codec.decode(keys)?;
        let value_columns = self.value_codec.decode(values)?;
        let rows = values.len();
        let mut places = Vec::with_capacity(rows);
        let (mut starts, mut ends) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        for (place, (count, start, end)) in sessions.iter().enumerate() {
            for _ in 0..*count {
                places.push(place);
                starts.push(*start);
                ends.push(*end);
            }
        }
        let mut columns = Vec::with_capacity(self.origins.len() + 2);
        for origin in &self.origins {
            columns.push(match origin {
                // The keys were decoded once for each session.
                Origin::Key(i) if keys.len() == rows => Arc::clone(&key_columns[*i]),
                Origin::Key(i) => repeated(&key_columns[*i], &places)?,
                Origin::Value(i) => Arc::clone(&value_columns[*i]),
            });
        }
        columns.push(Arc::new(Int64Array::from(starts)) as ArrayRef);
        columns.push(Arc::new(Int64Array::from(ends)));
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.output_schema(), columns, &options)
            .map_err(|error| Error::damaged(ENCODED_ROWS, error.to_string()))
    }
}

fn field(schema: &Schema, column: usize) -> Result<&Field> {
    schema
        .fields()
        .get(column)
        .map(|field| field.as_ref())
        .ok_or_else(|| {
            let count = schema.fields().len();
            Error::invalid(format!("column {column}, the input has {count} columns"))
        })
}

/// The values at the given places, in their order.
fn repeated(column: &ArrayRef, places: &[usize]) -> Result<ArrayRef> {
    let data = column.to_data();
    let mut out = arrow_data::transform::MutableArrayData::new(vec![&data], false, places.len());
    for place in places {
        out.try_extend(0, *place, place + 1)?;
    }
    Ok(arrow_array::make_array(out.freeze()))
}
