//! Encodes a task's rows for sessions and sorts them out by shard.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch};

use crate::aur::layout::{Ending, RowsLayout};
use crate::aur::sessions::UNKNOWN;
use crate::encoded::ByteColumn;
use crate::error::Result;
use crate::hash::hash_key;
use crate::shards::Shards;

struct Part {
    times: Vec<i64>,
    /// Where rows say the ends of their own sessions.
    ends: Vec<i64>,
    keys: ByteColumn,
    values: ByteColumn,
    /// Where the query says when windows will be read.
    expected: Vec<i64>,
}

pub struct RowSorter {
    layout: Arc<RowsLayout>,
    shards: Shards,
    late_before: Option<i64>,
    open: Vec<Part>,
    /// Parts that took as much as an Arrow array can.
    full: Vec<(usize, Part)>,
    rows: u64,
    late_rows: u64,
    memory_bytes: usize,
}

impl RowSorter {
    /// `late_before`: the watermark before the batch; a row whose own session ends by it comes too late.
    pub fn new(
        layout: Arc<RowsLayout>,
        shard_starts: &[u32],
        late_before: Option<i64>,
    ) -> Result<Self> {
        let shards = Shards::new(shard_starts)?;
        let open = (0..shards.count()).map(|_| part(&layout)).collect();
        Ok(Self {
            layout,
            shards,
            late_before,
            open,
            full: Vec::new(),
            rows: 0,
            late_rows: 0,
            memory_bytes: 0,
        })
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    pub fn late_rows(&self) -> u64 {
        self.late_rows
    }

    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    pub fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let layout = Arc::clone(&self.layout);
        let (keys, values, times) = layout.columns(batch)?;
        let (ends, expected) = (layout.ends(batch), layout.expected(batch));
        self.rows += batch.num_rows() as u64;
        let encode = |columns: &[ArrayRef], codec: &crate::codec::RowCodec| match columns.is_empty()
        {
            true => Ok(None),
            false => codec.encode(columns).map(Some),
        };
        let keys = encode(&keys, layout.key_codec())?;
        let values = encode(&values, layout.value_codec())?;
        for row in 0..batch.num_rows() {
            let time = match times {
                Some(times) if times.is_null(row) => continue,
                Some(times) => times.value(row),
                // Its place among the rows of its key says where it belongs.
                None => 0,
            };
            let end = match ends {
                Some(ends) if ends.is_null(row) => continue,
                Some(ends) => ends.value(row),
                None => time.saturating_add(layout.gap()),
            };
            if self.late_before.is_some_and(|before| end <= before) {
                self.late_rows += 1;
                continue;
            }
            let key = keys.as_ref().map(|rows| rows.row(row));
            let key = key.as_ref().map_or(&[][..], |row| row.data());
            let value = values.as_ref().map(|rows| rows.row(row));
            let value = value.as_ref().map_or(&[][..], |row| row.data());
            let expected = expected.map(|times| match times.is_valid(row) {
                true => times.value(row),
                false => UNKNOWN,
            });
            self.keep(time, ends.map(|_| end), key, value, expected);
        }
        Ok(())
    }

    fn keep(
        &mut self,
        time: i64,
        end: Option<i64>,
        key: &[u8],
        value: &[u8],
        expected: Option<i64>,
    ) {
        let shard = self.shards.of(hash_key(key));
        let open = &mut self.open[shard];
        if !open.keys.has_room(key.len()) || !open.values.has_room(value.len()) {
            let full = std::mem::replace(open, part(&self.layout));
            self.full.push((shard, full));
        }
        let open = &mut self.open[shard];
        open.times.push(time);
        open.ends.extend(end);
        open.keys.push(key);
        open.values.push(value);
        open.expected.extend(expected);
        self.memory_bytes += size_of::<i64>() + key.len() + value.len();
    }

    /// What was gathered since the last drain, as (shard, rows in the encoded schema).
    pub fn drain(&mut self) -> Result<Vec<(usize, RecordBatch)>> {
        let mut parts = std::mem::take(&mut self.full);
        for (shard, open) in self.open.iter_mut().enumerate() {
            if !open.times.is_empty() {
                parts.push((shard, std::mem::replace(open, part(&self.layout))));
            }
        }
        self.memory_bytes = 0;
        parts
            .into_iter()
            .map(|(shard, part)| {
                let mut columns: Vec<ArrayRef> = vec![
                    Arc::new(Int64Array::from(part.times)),
                    part.keys.finish()?,
                    part.values.finish()?,
                ];
                if let Ending::Latest(_) = self.layout.ending() {
                    columns.push(Arc::new(Int64Array::from(part.ends)));
                }
                if self.layout.has_expected() {
                    columns.push(Arc::new(Int64Array::from(part.expected)));
                }
                let batch = RecordBatch::try_new(self.layout.encoded_schema(), columns)?;
                Ok((shard, batch))
            })
            .collect()
    }
}

fn part(layout: &RowsLayout) -> Part {
    Part {
        times: Vec::new(),
        ends: Vec::new(),
        keys: ByteColumn::new(layout.key_width()),
        values: ByteColumn::new(layout.value_width()),
        expected: Vec::new(),
    }
}
