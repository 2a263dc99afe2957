//! What an ingest task does with rows of which only the first of each key counts: encode their keys, leave out those
//! whose key the task has seen, while that pays, and sort the rest out by shard.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, Int64Array, RecordBatch, UInt32Array};
use arrow_schema::DataType;

use crate::aggregate::Partials;
use crate::arena::Arena;
use crate::encoded::ByteColumn;
use crate::error::{Error, Result};
use crate::hash::hash_key;
use crate::index::{Found, Index};
use crate::key::KeyRows;
use crate::layout::Layout;
use crate::shards::Shards;
use crate::time::{NEVER, Placement, round_up};

/// After this many rows it is decided whether looking for seen keys goes on.
const TRIAL_ROWS: usize = 32_768;
/// Above this share of distinct keys it costs more than it saves.
const MOST_DISTINCT: f64 = 0.85;

pub struct Distinct {
    layout: Arc<Layout>,
    shards: Shards,
    late: Option<Late>,
    timers: Option<Timers>,
    rows: u64,
    late_rows: u64,
    seen: Option<Seen>,
    keys: KeyRows,
    partials: Partials,
}

/// Rows whose time, an int64 column, is at or before this one are late; rows without a time are not.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    pub column: usize,
    pub before: i64,
}

/// Keys are noted in the slice of their expiry, an int64 column that is no part of the key.
#[derive(Clone, Copy, Debug)]
pub struct Timers {
    pub column: usize,
    pub slice: i64,
}

/// Keys that the task has sent, as long as it pays to know them.
struct Seen {
    index: Index,
    keys: Arena,
    looked: usize,
}

/// Rows of one batch that go to one shard, by their numbers, in order, with their encoded keys.
pub struct FirstRows {
    pub shard: usize,
    pub rows: UInt32Array,
    pub encoded: RecordBatch,
}

#[derive(Default)]
struct Gathered {
    rows: Vec<u32>,
    hashes: Vec<u64>,
    slices: Vec<i64>,
}

impl Distinct {
    pub fn new(
        layout: Arc<Layout>,
        shard_starts: &[u32],
        late: Option<Late>,
        timers: Option<Timers>,
    ) -> Result<Self> {
        let input = layout.input_schema();
        let columns = [late.map(|l| l.column), timers.map(|t| t.column)];
        for column in columns.into_iter().flatten() {
            let data_type = input.fields().get(column).map(|field| field.data_type());
            if data_type != Some(&DataType::Int64) {
                return Err(Error::invalid(format!(
                    "column {column} is a time and must be int64 microseconds"
                )));
            }
        }
        if timers.is_some_and(|timers| timers.slice <= 0) {
            return Err(Error::invalid(
                "the length of a slice of timers must be positive",
            ));
        }
        Ok(Self {
            seen: Some(Seen::new(&layout)),
            layout,
            shards: Shards::new(shard_starts)?,
            late,
            timers,
            rows: 0,
            late_rows: 0,
            keys: KeyRows::default(),
            partials: Partials::default(),
        })
    }

    /// Rows pushed, late ones included.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    pub fn late_rows(&self) -> u64 {
        self.late_rows
    }

    pub fn memory_bytes(&self) -> usize {
        let seen = self.seen.as_ref();
        seen.map_or(0, |seen| {
            seen.index.memory_bytes() + seen.keys.memory_bytes()
        })
    }

    /// Forgets which keys were seen.
    pub fn clear(&mut self) {
        self.seen = Some(Seen::new(&self.layout));
    }

    /// `batch`: keys and times of the rows, in the layout's input schema.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<Vec<FirstRows>> {
        self.layout.check_input(batch)?;
        let rows = u32::try_from(batch.num_rows())
            .map_err(|_| Error::invalid("too many rows in one batch"))?;
        self.rows += u64::from(rows);
        self.keys.encode(&self.layout, batch)?;
        self.layout.aggregates().encode(batch, &mut self.partials)?;
        let slices = self.slices(batch);
        let late = self.late.map(|late| (times(batch, late.column), late));
        let mut gathered: Vec<Gathered> = Vec::new();
        gathered.resize_with(self.shards.count(), Gathered::default);
        for row in 0..rows {
            let at = row as usize;
            if let Some((times, late)) = late
                && times.is_valid(at)
                && times.value(at) <= late.before
            {
                self.late_rows += 1;
                continue;
            }
            let hash = hash_key(self.keys.get(at));
            if let Some(seen) = &mut self.seen
                && !seen.note(hash, self.keys.get(at))
            {
                continue;
            }
            let shard = &mut gathered[self.shards.of(hash)];
            shard.rows.push(row);
            shard.hashes.push(hash);
            shard.slices.push(slices[at]);
        }
        if self.seen.as_ref().is_some_and(Seen::is_useless) {
            self.seen = None;
        }
        let mut found = Vec::new();
        for (shard, gathered) in gathered.into_iter().enumerate() {
            if !gathered.rows.is_empty() {
                found.push(self.encoded(shard, gathered)?);
            }
        }
        Ok(found)
    }

    /// The slice of each row.
    fn slices(&self, batch: &RecordBatch) -> Vec<i64> {
        let mut slices = Vec::with_capacity(batch.num_rows());
        match self.timers {
            Some(timers) => {
                let expiries = times(batch, timers.column);
                slices.extend(
                    (0..batch.num_rows()).map(|row| match expiries.is_valid(row) {
                        true => round_up(expiries.value(row), timers.slice),
                        false => NEVER,
                    }),
                );
            }
            None => self.layout.time().place(batch, None, |placement| {
                slices.push(match placement {
                    Placement::Slice(slice) => slice,
                    Placement::Late | Placement::Nowhere => NEVER,
                });
            }),
        }
        slices
    }

    fn encoded(&self, shard: usize, gathered: Gathered) -> Result<FirstRows> {
        let layout = &self.layout;
        let count = gathered.rows.len();
        let mut keys = ByteColumn::with_capacity(layout.key_width(), count, 0);
        let mut values = ByteColumn::with_capacity(layout.value_width(), count, 0);
        let mut value = Vec::new();
        for row in &gathered.rows {
            let key = self.keys.get(*row as usize);
            if !keys.has_room(key.len()) {
                return Err(Error::invalid("more than 2 GiB of keys in one batch"));
            }
            keys.push(key);
            self.partials.value(*row as usize, &mut value);
            values.push(&value);
        }
        let encoded = layout.encoded_batch(gathered.hashes, gathered.slices, keys, values)?;
        Ok(FirstRows {
            shard,
            rows: gathered.rows.into(),
            encoded,
        })
    }
}

impl Seen {
    fn new(layout: &Layout) -> Self {
        Self {
            index: Index::new(),
            keys: Arena::new(layout.key_width()),
            looked: 0,
        }
    }

    /// False where the key was noted before.
    #[inline]
    fn note(&mut self, hash: u64, key: &[u8]) -> bool {
        self.looked += 1;
        let (entry, keys) = (self.index.len() as u32, &self.keys);
        let found = self
            .index
            .find_or_insert(hash, entry, |entry| keys.get(entry as usize) == key);
        if found == Found::Inserted {
            self.keys.push(key);
        }
        found == Found::Inserted
    }

    fn is_useless(&self) -> bool {
        self.looked >= TRIAL_ROWS && self.index.len() as f64 > MOST_DISTINCT * self.looked as f64
    }
}

fn times(batch: &RecordBatch, column: usize) -> &Int64Array {
    batch.column(column).as_primitive::<Int64Type>()
}
