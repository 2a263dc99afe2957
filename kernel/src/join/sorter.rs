//! Encodes a task's rows for a join's store and sorts them out by shard.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, BinaryArray, BooleanArray, Int64Array, RecordBatch, UInt64Array};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};

use crate::error::{Error, Result};
use crate::hash::hash_key;
use crate::join::layout::{JoinLayout, RIGHT};
use crate::join::part::part_of;
use crate::join::record::{self, ALONE, AT_ONCE, NEVER};
use crate::shards::Shards;

/// Rows of one shard under construction.
#[derive(Default)]
struct Gathered {
    hashes: Vec<u64>,
    parts: Vec<i64>,
    keys: Bytes,
    values: Bytes,
}

struct Bytes {
    bytes: Vec<u8>,
    ends: Vec<i32>,
}

impl Default for Bytes {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            ends: vec![0],
        }
    }
}

impl Bytes {
    /// Ends the row that was written to `bytes`.
    fn close(&mut self) -> Result<()> {
        let end = i32::try_from(self.bytes.len())
            .map_err(|_| Error::invalid("more than 2 GiB of rows between two drains"))?;
        self.ends.push(end);
        Ok(())
    }

    fn finish(self) -> Result<BinaryArray> {
        let ends = OffsetBuffer::new(ScalarBuffer::from(self.ends));
        Ok(BinaryArray::try_new(
            ends,
            Buffer::from_vec(self.bytes),
            None,
        )?)
    }
}

/// Takes the rows of one side.
pub struct JoinSorter {
    layout: Arc<JoinLayout>,
    side: usize,
    shards: Shards,
    late_before: Option<i64>,
    gathered: Vec<Gathered>,
    rows: u64,
    late_rows: u64,
}

impl JoinSorter {
    pub fn new(
        layout: Arc<JoinLayout>,
        side: usize,
        shard_starts: &[u32],
        late_before: Option<i64>,
    ) -> Result<Self> {
        if side > RIGHT {
            return Err(Error::invalid(format!("a join has no side {side}")));
        }
        Ok(Self {
            layout,
            side,
            shards: Shards::new(shard_starts)?,
            late_before,
            gathered: shard_starts.iter().map(|_| Gathered::default()).collect(),
            rows: 0,
            late_rows: 0,
        })
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    pub fn late_rows(&self) -> u64 {
        self.late_rows
    }

    pub fn memory_bytes(&self) -> usize {
        let bytes = |bytes: &Bytes| bytes.bytes.capacity() + bytes.ends.capacity() * 4;
        self.gathered
            .iter()
            .map(|shard| {
                (shard.hashes.capacity() + shard.parts.capacity()) * 8
                    + bytes(&shard.keys)
                    + bytes(&shard.values)
            })
            .sum()
    }

    /// What was gathered since the last drain, as (shard, encoded rows).
    pub fn drain(&mut self) -> Result<Vec<(usize, RecordBatch)>> {
        let mut drained = Vec::new();
        for (shard, gathered) in self.gathered.iter_mut().enumerate() {
            let gathered = std::mem::take(gathered);
            if gathered.hashes.is_empty() {
                continue;
            }
            let batch = RecordBatch::try_new(
                self.layout.encoded_schema(),
                vec![
                    Arc::new(UInt64Array::from(gathered.hashes)),
                    Arc::new(Int64Array::from(gathered.parts)),
                    Arc::new(gathered.keys.finish()?),
                    Arc::new(gathered.values.finish()?),
                ],
            )?;
            drained.push((shard, batch));
        }
        Ok(drained)
    }

    pub fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let layout = Arc::clone(&self.layout);
        let own = &layout.sides[self.side];
        let columns = &own.columns;
        let (given, expected) = (batch.schema(), columns.input.fields());
        let mut types = given.fields().iter().zip(expected);
        if given.fields().len() != expected.len()
            || !types.all(|(a, b)| a.data_type().equals_datatype(b.data_type()))
        {
            return Err(Error::invalid("a batch that has not the join's columns"));
        }
        self.rows += batch.num_rows() as u64;
        let pick = |at: &[usize]| -> Vec<_> {
            at.iter().map(|at| Arc::clone(batch.column(*at))).collect()
        };
        let key_columns = pick(&columns.keys);
        let keys = match key_columns.is_empty() {
            true => None,
            false => Some(layout.key_codec.encode(&key_columns)?),
        };
        let payload_columns = pick(&columns.kept);
        let payloads = match payload_columns.is_empty() {
            true => None,
            false => Some(own.codec.encode(&payload_columns)?),
        };
        let int = |at: usize| batch.column(at).as_primitive::<Int64Type>();
        let comparands: Vec<&Int64Array> = columns.comparands.iter().map(|at| int(*at)).collect();
        let never_equal = match columns.null_keys {
            true => &[][..],
            false => key_columns.as_slice(),
        };
        let nulls: Option<NullBuffer> = never_equal
            .iter()
            .map(|column| column.logical_nulls())
            .chain(comparands.iter().map(|column| column.nulls().cloned()))
            .fold(None, |all, some| {
                NullBuffer::union(all.as_ref(), some.as_ref())
            });
        let late = columns.late.map(int);
        let expiry = columns.expiry.map(int);
        let matchable: Option<&BooleanArray> =
            columns.matchable.map(|at| batch.column(at).as_boolean());
        let value = |column: Option<&Int64Array>, row: usize| {
            column
                .filter(|column| column.is_valid(row))
                .map(|column| column.value(row))
        };
        for row in 0..batch.num_rows() {
            if let (Some(time), Some(before)) = (value(late, row), self.late_before)
                && time <= before
            {
                self.late_rows += 1;
                continue;
            }
            let is_ruled_out = matchable.is_some_and(|m| m.is_null(row) || !m.value(row));
            let is_alone = is_ruled_out || nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
            if is_alone && !own.outer {
                continue;
            }
            let expiry = match is_ruled_out {
                true => AT_ONCE,
                false => value(expiry, row).unwrap_or(NEVER),
            };
            let key = keys.as_ref().map(|keys| keys.row(row));
            let key = key.as_ref().map_or(&[][..], |key| key.as_ref());
            let hash = hash_key(key);
            let to = &mut self.gathered[self.shards.of(hash)];
            to.hashes.push(hash);
            to.parts.push(part_of(self.side, expiry, layout.slice_us));
            to.keys.bytes.extend_from_slice(key);
            to.keys.close()?;
            let flags = if is_alone { ALONE } else { 0 };
            let out = &mut to.values.bytes;
            record::write_head(flags, expiry, own.head.has_id, out);
            for comparand in &comparands {
                // Rows with a null are alone, so what stands in its place is never compared.
                out.extend_from_slice(&comparand.value(row).to_le_bytes());
            }
            if let Some(payloads) = &payloads {
                out.extend_from_slice(payloads.row(row).as_ref());
            }
            to.values.close()?;
        }
        Ok(())
    }
}
