//! What an ingest task does with its rows: encode them, combine those of the same group while that pays, and sort
//! them out by shard.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_schema::DataType;

use crate::aggregate::Partials;
use crate::arena::Arena;
use crate::encoded::ByteColumn;
use crate::error::{Error, Result};
use crate::hash::hash_key;
use crate::index::{Found, Index};
use crate::key::KeyRows;
use crate::layout::Layout;
use crate::session;
use crate::shards::Shards;
use crate::time::Placement;

/// Rows encoded at once: enough to work by column, few enough to stay in the processor's cache.
const CHUNK_ROWS: usize = 4096;
/// After this many rows it is decided whether combining goes on.
const TRIAL_ROWS: usize = 32_768;
/// Rows whose groups are brought into the cache at once, and from how many groups on that pays.
const WARM_ROWS: usize = 256;
const WARM_GROUPS: usize = 8192;
/// Above this share of distinct groups combining costs more than it saves.
const MOST_DISTINCT: f64 = 0.85;
/// Bytes of keys or values in one drained batch whose rows vary in width; Arrow's offsets end at 2 GiB.
const MOST_BATCH_BYTES: usize = 1 << 30;

pub struct Combiner {
    layout: Arc<Layout>,
    shards: Shards,
    late_before: Option<i64>,
    /// The column that says how many rows a row stands for.
    weight: Option<usize>,
    /// Rows of one group are not combined.
    apart: bool,
    rows: u64,
    late_rows: u64,
    groups: Groups,
    chunk: Chunk,
}

/// Encoded rows in order of arrival, those of one group combined as long as there is an index.
struct Groups {
    index: Option<Index>,
    kept: usize,
    hashes: Vec<u64>,
    slices: Vec<i64>,
    keys: Arena,
    values: Arena,
}

/// The rows being encoded.
#[derive(Default)]
struct Chunk {
    keys: KeyRows,
    hashes: Vec<u64>,
    slices: Vec<i64>,
    /// The rows that stay; empty: all.
    kept: Vec<usize>,
    /// Of sessions: where those of the rows start and end.
    bounds: Option<(Vec<i64>, Vec<i64>)>,
    partials: Partials,
    candidates: Vec<u32>,
    value: Vec<u8>,
    merged: Vec<u8>,
}

impl Combiner {
    /// `shard_starts`: the first bucket of each shard.
    pub fn new(
        layout: Arc<Layout>,
        shard_starts: &[u32],
        late_before: Option<i64>,
    ) -> Result<Self> {
        Ok(Self {
            groups: Groups::new(&layout),
            layout,
            shards: Shards::new(shard_starts)?,
            late_before,
            weight: None,
            apart: false,
            rows: 0,
            late_rows: 0,
            chunk: Chunk::default(),
        })
    }

    /// For rows that were combined before: an int64 column says how many rows each stands for.
    pub fn weighted_by(mut self, column: usize) -> Result<Self> {
        let input = self.layout.input_schema();
        match input.fields().get(column).map(|field| field.data_type()) {
            Some(DataType::Int64) => {
                self.weight = Some(column);
                Ok(self)
            }
            _ => Err(Error::invalid(format!(
                "the weight of rows must be an int64 column, which column {column} is not"
            ))),
        }
    }

    /// Leaves every row as it is, for windows that end after so many rows.
    pub fn apart(mut self) -> Self {
        self.apart = true;
        self.groups.index = None;
        self
    }

    /// Rows pushed, late ones included.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    pub fn late_rows(&self) -> u64 {
        self.late_rows
    }

    /// Memory of what was gathered since the last drain.
    pub fn memory_bytes(&self) -> usize {
        self.groups.memory_bytes()
    }

    pub fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        self.layout.check_input(batch)?;
        let total = batch.num_rows();
        for start in (0..total).step_by(CHUNK_ROWS) {
            let chunk = batch.slice(start, CHUNK_ROWS.min(total - start));
            self.push_chunk(&chunk)?;
        }
        Ok(())
    }

    fn push_chunk(&mut self, batch: &RecordBatch) -> Result<()> {
        let chunk = &mut self.chunk;
        let weights = self
            .weight
            .map(|column| batch.column(column).as_primitive::<Int64Type>().values());
        let weight = |row: usize| weights.map_or(1, |weights| weights[row].max(0) as u64);
        self.rows += (0..batch.num_rows()).map(weight).sum::<u64>();
        self.late_rows += chunk.place(&self.layout, batch, self.late_before, weight);
        let bounds = self.layout.time().sessions(batch);
        chunk.bounds = bounds.map(|(starts, ends)| (starts.to_vec(), ends.to_vec()));
        chunk.keys.encode(&self.layout, batch)?;
        chunk.hashes.clear();
        let hashes = (0..batch.num_rows()).map(|row| hash_key(chunk.keys.get(row)));
        chunk.hashes.extend(hashes);
        self.layout
            .aggregates()
            .encode(batch, &mut chunk.partials)?;
        self.groups.take(&self.layout, chunk)
    }

    /// What was gathered since the last drain, by shard. A shard comes more than once where its rows are more than
    /// a batch can hold.
    pub fn drain(&mut self) -> Result<Vec<(usize, RecordBatch)>> {
        let mut groups = Groups::new(&self.layout);
        if self.apart {
            groups.index = None;
        }
        let groups = std::mem::replace(&mut self.groups, groups);
        let rows = groups.hashes.len();
        if rows == 0 {
            return Ok(Vec::new());
        }
        let mut starts = vec![0_usize; self.shards.count() + 1];
        for hash in &groups.hashes {
            starts[self.shards.of(*hash) + 1] += 1;
        }
        if let Some(shard) = starts.iter().skip(1).position(|count| *count == rows)
            && let (Some(key), Some(value)) = (self.layout.key_width(), self.layout.value_width())
            && key > 0
            && value > 0
        {
            // All rows go to one shard: their columns are already there.
            let keys = ByteColumn::from_rows(key, groups.keys.into_rows());
            let values = ByteColumn::from_rows(value, groups.values.into_rows());
            let batch = self
                .layout
                .encoded_batch(groups.hashes, groups.slices, keys, values)?;
            return Ok(vec![(shard, batch)]);
        }
        for shard in 0..self.shards.count() {
            starts[shard + 1] += starts[shard];
        }
        let mut next = starts.clone();
        let mut order = vec![0_u32; rows];
        for (row, hash) in groups.hashes.iter().enumerate() {
            let place = &mut next[self.shards.of(*hash)];
            order[*place] = row as u32;
            *place += 1;
        }
        let mut drained = Vec::new();
        for shard in 0..self.shards.count() {
            let mut rest = &order[starts[shard]..starts[shard + 1]];
            while !rest.is_empty() {
                let (batch, taken) = groups.gather(&self.layout, rest)?;
                drained.push((shard, batch));
                rest = &rest[taken..];
            }
        }
        Ok(drained)
    }
}

impl Chunk {
    /// Finds the slices of the rows and which of them stay; returns how many are late.
    fn place(
        &mut self,
        layout: &Layout,
        batch: &RecordBatch,
        late_before: Option<i64>,
        weight: impl Fn(usize) -> u64,
    ) -> u64 {
        let mut late = 0;
        self.slices.clear();
        self.kept.clear();
        let (slices, kept) = (&mut self.slices, &mut self.kept);
        layout.time().place(batch, late_before, |placement| {
            let slice = match placement {
                Placement::Slice(slice) => {
                    kept.push(slices.len());
                    slice
                }
                Placement::Late => {
                    late += weight(slices.len());
                    0
                }
                Placement::Nowhere => 0,
            };
            slices.push(slice);
        });
        late
    }

    /// Puts the value of a row into `self.value`, where values vary in length.
    fn write_value(&mut self, layout: &Layout, row: usize) {
        match &self.bounds {
            None => self.partials.value(row, &mut self.value),
            Some((starts, ends)) => session::row_value(
                layout,
                (starts[row], ends[row]),
                row,
                &self.partials,
                &mut self.value,
            ),
        }
    }

    fn all_kept(&self) -> bool {
        self.kept.len() == self.slices.len()
    }
}

impl Groups {
    fn new(layout: &Layout) -> Self {
        Self {
            index: Some(Index::new()),
            kept: 0,
            hashes: Vec::new(),
            slices: Vec::new(),
            keys: Arena::new(layout.key_width()),
            values: Arena::new(layout.value_width()),
        }
    }

    fn memory_bytes(&self) -> usize {
        self.index.as_ref().map_or(0, Index::memory_bytes)
            + (self.hashes.capacity() + self.slices.capacity()) * 8
            + self.keys.memory_bytes()
            + self.values.memory_bytes()
    }

    fn take(&mut self, layout: &Layout, chunk: &mut Chunk) -> Result<()> {
        if self.hashes.len() + chunk.kept.len() >= u32::MAX as usize {
            return Err(Error::invalid(
                "more than four billion rows without a drain",
            ));
        }
        match self.index.take() {
            Some(mut index) => {
                self.combine(layout, chunk, &mut index)?;
                self.kept += chunk.kept.len();
                let distinct = index.len() as f64 / self.kept.max(1) as f64;
                if self.kept < TRIAL_ROWS
                    || self.kept - chunk.kept.len() >= TRIAL_ROWS
                    || distinct <= MOST_DISTINCT
                {
                    self.index = Some(index);
                }
            }
            None => self.append(layout, chunk),
        }
        Ok(())
    }

    fn combine(&mut self, layout: &Layout, chunk: &mut Chunk, index: &mut Index) -> Result<()> {
        let kept = std::mem::take(&mut chunk.kept);
        for rows in kept.chunks(WARM_ROWS) {
            if index.len() > WARM_GROUPS {
                self.warm(chunk, rows, index);
            }
            self.combine_rows(layout, chunk, rows, index)?;
        }
        chunk.kept = kept;
        Ok(())
    }

    /// Reads what the rows will need, one step after another for all of them: the waits for memory overlap.
    fn warm(&self, chunk: &mut Chunk, rows: &[usize], index: &Index) {
        let candidate =
            |row: &usize| index.candidate(spread(chunk.hashes[*row], chunk.slices[*row]));
        chunk.candidates.clear();
        chunk.candidates.extend(rows.iter().filter_map(candidate));
        let mut read = 0;
        for entry in &chunk.candidates {
            let entry = *entry as usize;
            read ^= self.keys.get(entry).first().unwrap_or(&0);
            read ^= self.values.get(entry).first().unwrap_or(&0);
            read ^= self.slices[entry] as u8;
        }
        std::hint::black_box(read);
    }

    fn combine_rows(
        &mut self,
        layout: &Layout,
        chunk: &mut Chunk,
        rows: &[usize],
        index: &mut Index,
    ) -> Result<()> {
        let fixed = layout.value_width().is_some();
        let sessions = layout.time().is_sessions();
        for &row in rows {
            if !fixed {
                chunk.write_value(layout, row);
            }
            let (hash, slice, key) = (chunk.hashes[row], chunk.slices[row], chunk.keys.get(row));
            let entry = self.hashes.len() as u32;
            let (slices, keys) = (&self.slices, &self.keys);
            let found = index.find_or_insert(spread(hash, slice), entry, |entry| {
                slices[entry as usize] == slice && keys.get(entry as usize) == key
            });
            match found {
                Found::Inserted => {
                    self.hashes.push(hash);
                    self.slices.push(slice);
                    self.keys.push(key);
                    match fixed {
                        true => self.values.push(chunk.partials.fixed(row)),
                        false => self.values.push(&chunk.value),
                    }
                }
                Found::Entry(entry) if fixed => {
                    let state = self.values.get_mut(entry as usize);
                    layout.merge_fixed(state, chunk.partials.fixed(row))?;
                }
                Found::Entry(entry)
                    if sessions
                        && layout.merge_sessions_in_place(
                            self.values.get_mut(entry as usize),
                            &chunk.value,
                        )? => {}
                Found::Entry(entry) => {
                    let state = self.values.get(entry as usize);
                    if layout.merge_variable(state, &chunk.value, &mut chunk.merged)? {
                        self.values.replace(entry as usize, &chunk.merged);
                    }
                }
            }
        }
        Ok(())
    }

    fn append(&mut self, layout: &Layout, chunk: &mut Chunk) {
        let all = chunk.all_kept();
        if all {
            self.hashes.extend_from_slice(&chunk.hashes);
            self.slices.extend_from_slice(&chunk.slices);
        } else {
            self.hashes
                .extend(chunk.kept.iter().map(|row| chunk.hashes[*row]));
            self.slices
                .extend(chunk.kept.iter().map(|row| chunk.slices[*row]));
        }
        if all && layout.key_width().is_some() {
            self.keys.extend(chunk.keys.bytes());
        } else {
            chunk
                .kept
                .iter()
                .for_each(|row| self.keys.push(chunk.keys.get(*row)));
        }
        if layout.value_width().is_none() {
            let kept = std::mem::take(&mut chunk.kept);
            for row in &kept {
                chunk.write_value(layout, *row);
                self.values.push(&chunk.value);
            }
            chunk.kept = kept;
        } else if all {
            self.values.extend(chunk.partials.fixed_rows());
        } else {
            chunk
                .kept
                .iter()
                .for_each(|row| self.values.push(chunk.partials.fixed(*row)));
        }
    }

    /// A batch of the given rows, or of as many of the first ones as it can hold.
    fn gather(&self, layout: &Layout, rows: &[u32]) -> Result<(RecordBatch, usize)> {
        let taken = self.fitting(layout, rows);
        let rows = &rows[..taken];
        let pick = |row: &u32| *row as usize;
        let hashes = rows.iter().map(|row| self.hashes[pick(row)]).collect();
        let slices = rows.iter().map(|row| self.slices[pick(row)]).collect();
        let mut keys = ByteColumn::with_capacity(layout.key_width(), taken, 0);
        rows.iter()
            .for_each(|row| keys.push(self.keys.get(pick(row))));
        let mut values = ByteColumn::with_capacity(layout.value_width(), taken, 0);
        rows.iter()
            .for_each(|row| values.push(self.values.get(pick(row))));
        Ok((layout.encoded_batch(hashes, slices, keys, values)?, taken))
    }

    /// How many of the rows fit into one batch; at least one.
    fn fitting(&self, layout: &Layout, rows: &[u32]) -> usize {
        if layout.key_width().is_some() && layout.value_width().is_some() {
            return rows.len();
        }
        let mut bytes = 0;
        for (taken, row) in rows.iter().enumerate() {
            bytes += self.keys.get(*row as usize).len() + self.values.get(*row as usize).len();
            if bytes > MOST_BATCH_BYTES && taken > 0 {
                return taken;
            }
        }
        rows.len()
    }
}

/// Keeps the slices of one key apart in the index.
#[inline]
fn spread(hash: u64, slice: i64) -> u64 {
    hash ^ ((slice as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32)
}
