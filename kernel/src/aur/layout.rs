//! How the rows of a session lie in bytes: the key, and what is kept beside it.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::aur::log_format::EntryShape;
use crate::codec::{self, ENCODED_ROWS, RowCodec};
use crate::error::{Error, Result};
use crate::hash::hash_key;
use crate::layout::bytes_type;

/// When a window ends and its rows are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// So long after its last row: a session.
    Gap(i64),
    /// At the latest of the times that its rows say, in this column of the input: a session that goes on after each row for
    /// as long as that row asks.
    Latest(usize),
    /// At the time that each of its rows says; its bounds are part of the key.
    Stated,
    /// With so many rows, in the order in which they come.
    Rows(u32),
}

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
    time: Option<usize>,
    expected: Option<usize>,
    ending: Ending,
    key_codec: RowCodec,
    value_codec: RowCodec,
    origins: Vec<Origin>,
    output: SchemaRef,
    encoded: SchemaRef,
    fingerprint: u64,
}

impl RowsLayout {
    /// `keys`, `kept`, `time`: positions in the input schema; times are microseconds. The time is that of the row for
    /// sessions, and the end of its window where that is stated. `expected`: the position of the time at which the row's
    /// window will be read, as far as the query knows.
    pub fn new(
        input: SchemaRef,
        keys: Vec<usize>,
        kept: &[usize],
        time: Option<usize>,
        expected: Option<usize>,
        ending: Ending,
    ) -> Result<Self> {
        let types = |columns: &[usize]| -> Result<Vec<DataType>> {
            columns
                .iter()
                .map(|i| Ok(field(&input, *i)?.data_type().clone()))
                .collect()
        };
        let end = match ending {
            Ending::Latest(end) => Some(end),
            Ending::Gap(_) | Ending::Stated | Ending::Rows(_) => None,
        };
        for time in time.iter().chain(&end).chain(&expected) {
            if field(&input, *time)?.data_type() != &DataType::Int64 {
                return Err(Error::invalid(
                    "the time of windows must be int64 microseconds",
                ));
            }
        }
        if time.is_none() && !matches!(ending, Ending::Rows(_)) {
            return Err(Error::invalid("windows that end with time need one"));
        }
        match ending {
            Ending::Gap(gap) if gap <= 0 => {
                return Err(Error::invalid(format!(
                    "a gap of {gap} µs: it must be positive"
                )));
            }
            Ending::Rows(0) => return Err(Error::invalid("windows of no rows")),
            _ => {}
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
        let mut encoded = vec![
            Field::new("time", DataType::Int64, false),
            Field::new("key", bytes_type(key_codec.width())?, false),
            Field::new("value", bytes_type(value_codec.width())?, false),
        ];
        if end.is_some() {
            encoded.push(Field::new("end", DataType::Int64, false));
        }
        if expected.is_some() {
            encoded.push(Field::new("expected", DataType::Int64, false));
        }
        let mut text = match ending {
            Ending::Gap(gap) => format!("session rows gap {gap} "),
            Ending::Latest(_) => "session rows with an end ".to_owned(),
            Ending::Stated => "rows of windows with an end ".to_owned(),
            Ending::Rows(rows) => format!("rows of windows of {rows} "),
        };
        for data_type in key_types.iter().chain(&value_types) {
            codec::describe(data_type, &mut text);
            text.push(' ');
        }
        text.push_str(&format!("keys {}", key_types.len()));
        Ok(Self {
            keys,
            values,
            time,
            expected,
            ending,
            key_codec,
            value_codec,
            origins,
            output: Arc::new(Schema::new(output)),
            encoded: Arc::new(Schema::new(encoded)),
            fingerprint: hash_key(text.as_bytes()),
            input,
        })
    }

    pub fn ending(&self) -> Ending {
        self.ending
    }

    /// How long a window waits after the time of its last row, where rows do not say an end beside their time.
    pub fn gap(&self) -> i64 {
        match self.ending {
            Ending::Gap(gap) => gap,
            Ending::Latest(_) | Ending::Stated | Ending::Rows(_) => 0,
        }
    }

    pub fn entry_shape(&self) -> EntryShape {
        EntryShape {
            key_width: self.key_width(),
            gap: match self.ending {
                Ending::Latest(_) => None,
                Ending::Gap(_) | Ending::Stated | Ending::Rows(_) => Some(self.gap()),
            },
        }
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

    /// Time, key and value; the end of the row's own session, where rows say that; and when the window will be read, where
    /// the query does: the form in which rows travel between an ingest task and a store.
    pub fn encoded_schema(&self) -> SchemaRef {
        Arc::clone(&self.encoded)
    }

    pub(crate) fn key_codec(&self) -> &RowCodec {
        &self.key_codec
    }

    pub(crate) fn value_codec(&self) -> &RowCodec {
        &self.value_codec
    }

    /// Whether the query says when windows will be read.
    pub fn has_expected(&self) -> bool {
        self.expected.is_some()
    }

    /// When the own sessions of a batch's rows end, where each says it.
    pub(crate) fn ends<'a>(&self, batch: &'a RecordBatch) -> Option<&'a Int64Array> {
        match self.ending {
            Ending::Latest(end) => Some(batch.column(end).as_primitive::<Int64Type>()),
            Ending::Gap(_) | Ending::Stated | Ending::Rows(_) => None,
        }
    }

    /// When the windows of a batch's rows will be read.
    pub(crate) fn expected<'a>(&self, batch: &'a RecordBatch) -> Option<&'a Int64Array> {
        self.expected
            .map(|expected| batch.column(expected).as_primitive::<Int64Type>())
    }

    /// The columns of the keys, the values and the time of a batch of the input schema.
    pub(crate) fn columns<'a>(
        &self,
        batch: &'a RecordBatch,
    ) -> Result<(Vec<ArrayRef>, Vec<ArrayRef>, Option<&'a Int64Array>)> {
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
        let times = self
            .time
            .map(|time| batch.column(time).as_primitive::<Int64Type>());
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
