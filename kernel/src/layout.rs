//! How an operator's groups lie in bytes: their keys, their merged aggregates and their time.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::aggregate::Aggregates;
use crate::codec::{self, ENCODED_ROWS, RowCodec};
use crate::error::{Error, Result};
use crate::hash::hash_key;
use crate::session::{self, SessionRows};
use crate::time::{EXPIRY_BYTES, Time, read_expiry};

pub use crate::encoded::{ByteColumn, EncodedRows};

/// An aggregate as it is asked for: (op, input positions, filter position).
pub type AggregateSpec = (String, Vec<usize>, Option<usize>);

/// Equal arguments give equal bytes in every process.
#[derive(Debug)]
pub struct Layout {
    input: SchemaRef,
    output: SchemaRef,
    encoded: SchemaRef,
    keys: usize,
    key_codec: RowCodec,
    aggregates: Aggregates,
    time: Time,
    fingerprint: u64,
}

impl Layout {
    pub fn new(
        input: SchemaRef,
        keys: usize,
        aggregates: &[AggregateSpec],
        time: Time,
    ) -> Result<Self> {
        let fields = input.fields();
        let key_fields = fields.get(..keys).ok_or_else(|| {
            Error::invalid(format!(
                "{keys} keys, the input has {} columns",
                fields.len()
            ))
        })?;
        let key_types: Vec<DataType> = key_fields.iter().map(|f| f.data_type().clone()).collect();
        let key_codec = RowCodec::new(&key_types)
            .map_err(|error| Error::invalid(format!("group keys: {error}")))?;
        let time = time.check(&input)?;
        let aggregates = Aggregates::new(&input, aggregates)?;

        let mut output: Vec<Field> = key_fields.iter().map(|f| f.as_ref().clone()).collect();
        output.extend(aggregates.buffer_fields());
        if time.is_sessions() {
            output.push(Field::new("start", DataType::Int64, false));
            output.push(Field::new("end", DataType::Int64, false));
        }
        let mut layout = Self {
            output: Arc::new(Schema::new(output)),
            encoded: Arc::new(Schema::empty()),
            input,
            keys,
            key_codec,
            aggregates,
            time,
            fingerprint: 0,
        };
        layout.fingerprint = hash_key(layout.describe(&key_types).as_bytes());
        layout.encoded = Arc::new(Schema::new(vec![
            Field::new("hash", DataType::UInt64, false),
            Field::new("slice", DataType::Int64, false),
            Field::new("key", bytes_type(layout.key_width())?, false),
            Field::new("value", bytes_type(layout.value_width())?, false),
        ]));
        Ok(layout)
    }

    pub fn input_schema(&self) -> SchemaRef {
        Arc::clone(&self.input)
    }

    /// Keys, then the buffers of the aggregates in order, then the start and end of a session.
    pub fn output_schema(&self) -> SchemaRef {
        Arc::clone(&self.output)
    }

    pub fn encoded_schema(&self) -> SchemaRef {
        Arc::clone(&self.encoded)
    }

    /// The length of every encoded key, where it does not vary.
    pub fn key_width(&self) -> Option<usize> {
        self.key_codec
            .width()
            .map(|width| self.key_prefix() + width)
    }

    /// The length of every encoded value, where it does not vary.
    pub fn value_width(&self) -> Option<usize> {
        match self.aggregates.is_variable() || self.time.is_sessions() {
            true => None,
            false => Some(self.aggregates.fixed_len()),
        }
    }

    /// A stable hash of how the bytes lie, kept with every run.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Merges in place; the layout's values are of fixed width.
    #[inline]
    pub fn merge_fixed(&self, state: &mut [u8], partial: &[u8]) -> Result<()> {
        let width = self.aggregates.fixed_len();
        if state.len() != width || partial.len() != width || self.aggregates.is_variable() {
            return Err(wrong_length());
        }
        self.aggregates.merge_fixed(state, partial)
    }

    /// Merges values of any layout into `out`, which is cleared first; false, and nothing in `out`, where the state
    /// stays as it is.
    pub fn merge_variable(&self, state: &[u8], partial: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        if self.time.is_sessions() {
            return session::merge(&self.aggregates, state, partial, out).map(|()| true);
        }
        let width = self.aggregates.fixed_len();
        if state.len() < width || partial.len() < width {
            return Err(wrong_length());
        }
        self.aggregates.merge_variable(state, partial, out)
    }

    /// Merges a value of sessions where no bytes have to move; false, and nothing changed, where they have to.
    #[inline]
    pub fn merge_sessions_in_place(&self, state: &mut [u8], partial: &[u8]) -> Result<bool> {
        session::merge_in_place(&self.aggregates, state, partial)
    }

    /// When the group of this key expires, with keyed time; `None`: never.
    pub fn expiry(&self, key: &[u8]) -> Option<i64> {
        match self.time.is_keyed() {
            true => read_expiry(key),
            false => None,
        }
    }

    /// Groups in the output schema; of sessions, each is a row.
    pub fn decode(&self, keys: &[&[u8]], values: &[&[u8]]) -> Result<RecordBatch> {
        if keys.len() != values.len() {
            return Err(Error::invalid(format!(
                "{} keys and {} values",
                keys.len(),
                values.len()
            )));
        }
        if self.time.is_sessions() {
            let mut rows = SessionRows::default();
            for (key, value) in keys.iter().zip(values) {
                rows.push_all(self, key, value)?;
            }
            return rows.decode(self);
        }
        let mut columns = self.decode_keys(keys)?;
        columns.extend(self.aggregates.decode(values)?);
        self.output_batch(columns, keys.len())
    }

    /// Sessions in the output schema, each with its key, its aggregates and its bounds.
    pub(crate) fn decode_sessions(
        &self,
        keys: &[&[u8]],
        aggregates: &[&[u8]],
        starts: Vec<i64>,
        ends: Vec<i64>,
    ) -> Result<RecordBatch> {
        let mut columns = self.decode_keys(keys)?;
        columns.extend(self.aggregates.decode(aggregates)?);
        columns.push(Arc::new(Int64Array::from(starts)));
        columns.push(Arc::new(Int64Array::from(ends)));
        self.output_batch(columns, keys.len())
    }

    fn output_batch(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.output_schema(), columns, &options)
            .map_err(|error| Error::damaged(ENCODED_ROWS, error.to_string()))
    }

    fn decode_keys(&self, keys: &[&[u8]]) -> Result<Vec<ArrayRef>> {
        if self.key_prefix() == 0 {
            return self.key_codec.decode(keys);
        }
        let rows = keys
            .iter()
            .map(|key| key.get(EXPIRY_BYTES..).ok_or_else(wrong_length))
            .collect::<Result<Vec<_>>>()?;
        self.key_codec.decode(&rows)
    }

    /// Whether the batch has the columns of the input schema; their names do not matter.
    pub(crate) fn check_input(&self, batch: &RecordBatch) -> Result<()> {
        let (given, expected) = (batch.schema(), &self.input);
        if given.fields().len() != expected.fields().len() {
            return Err(Error::invalid(format!(
                "a batch of {} columns, the input has {}",
                given.fields().len(),
                expected.fields().len()
            )));
        }
        for (given, expected) in given.fields().iter().zip(expected.fields()) {
            if !given.data_type().equals_datatype(expected.data_type()) {
                return Err(Error::invalid(format!(
                    "column {} is of type {}, the input has {}",
                    given.name(),
                    given.data_type(),
                    expected.data_type()
                )));
            }
        }
        Ok(())
    }

    /// The bytes of a group that has seen no row.
    pub fn empty_value(&self) -> Vec<u8> {
        match self.time.is_sessions() {
            true => Vec::new(),
            false => vec![0; self.aggregates.fixed_len()],
        }
    }

    pub(crate) fn least_key_len(&self) -> usize {
        self.key_prefix() + self.key_codec.width().unwrap_or(self.keys)
    }

    /// Bytes of a key before its columns.
    pub(crate) fn key_prefix(&self) -> usize {
        match self.time.is_keyed() {
            true => EXPIRY_BYTES,
            false => 0,
        }
    }

    pub(crate) fn keys(&self) -> usize {
        self.keys
    }

    pub(crate) fn key_codec(&self) -> &RowCodec {
        &self.key_codec
    }

    pub(crate) fn aggregates(&self) -> &Aggregates {
        &self.aggregates
    }

    pub(crate) fn time(&self) -> Time {
        self.time
    }

    fn describe(&self, key_types: &[DataType]) -> String {
        let mut text = String::from(match self.time {
            Time::Keyed { .. } => "expiry ",
            Time::Sessions { .. } => "sessions ",
            Time::None | Time::Panes { .. } => "",
        });
        for key_type in key_types {
            codec::describe(key_type, &mut text);
            text.push(' ');
        }
        self.aggregates.describe(&mut text);
        text
    }
}

/// Arrow has trouble with fixed widths of zero, so those travel as binary too.
pub(crate) fn bytes_type(width: Option<usize>) -> Result<DataType> {
    match width {
        Some(width) if width > 0 => i32::try_from(width)
            .map(DataType::FixedSizeBinary)
            .map_err(|_| Error::invalid(format!("rows of {width} bytes are too wide"))),
        _ => Ok(DataType::Binary),
    }
}

fn wrong_length() -> Error {
    Error::damaged(
        ENCODED_ROWS,
        "a key or value has not the length of the layout",
    )
}
