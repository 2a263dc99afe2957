//! The read-modify-write store of one operator in one shard: slices, each a table in memory over runs on disk.
//!
//! One writer. What it changes belongs to the running batch until `commit` or `abort`. After an error other than a
//! wrong argument the running batch is half applied: abort it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};

use crate::error::{Error, Result};
use crate::groups::Values;
use crate::layout::{EncodedRows, Layout};
use crate::lookup::Counters;
use crate::merge::check_fits;
use crate::pack::PackWriter;
use crate::rows::{HashRange, RowShape};
use crate::run::Run;
use crate::run_writer::RunExtent;
use crate::slice::{Change, Running, Slice};
use crate::spent::Beside;
use crate::table::{Keys, Table};
use crate::time::SESSIONS;

/// Rows that are changed between two looks at the memory.
pub(crate) const STEP_ROWS: usize = 65_536;

pub struct Store {
    pub(crate) layout: Arc<Layout>,
    pub(crate) shape: RowShape,
    pub(crate) range: HashRange,
    memory_limit: usize,
    pub(crate) slices: BTreeMap<i64, Slice>,
    /// Of the running batch. An entry's epoch is that of the last batch that changed it, or of the batch before the
    /// one that loaded it.
    pub(crate) epoch: u32,
    /// Changes with every change, so that a scan can tell.
    pub(crate) version: u64,
    pub(crate) counters: Counters,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub rows: u64,
    pub memory_bytes: u64,
    pub run_bytes: u64,
    pub live_bytes: u64,
    pub runs: u64,
    pub counters: Counters,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceStats {
    pub rows: u64,
    pub live_bytes: u64,
    pub run_bytes: u64,
    pub runs: u64,
    pub vain_ns: u64,
}

impl Store {
    pub fn new(
        layout: Arc<Layout>,
        first_bucket: u32,
        end_bucket: u32,
        memory_limit: usize,
    ) -> Result<Self> {
        let range = HashRange::of_buckets(first_bucket, end_bucket)?;
        Ok(Self {
            shape: RowShape::of(&layout),
            layout,
            range,
            memory_limit,
            slices: BTreeMap::new(),
            epoch: 2,
            version: 0,
            counters: Counters::default(),
        })
    }

    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The slice, unless the running batch dropped it.
    pub(crate) fn visible(&self, slice: i64) -> Option<&Slice> {
        self.slices.get(&slice).filter(|slice| !slice.is_dropped())
    }

    pub fn restore(&mut self, slice: i64, rows: u64, runs: Vec<Arc<Run>>) -> Result<()> {
        for run in &runs {
            check_fits(run, self.shape, self.layout.fingerprint())?;
        }
        if self.slices.contains_key(&slice) {
            return Err(Error::Invalid(format!("slice {slice} is there already")));
        }
        let in_runs: u64 = runs.iter().map(|run| run.rows()).sum();
        if rows > in_runs {
            return Err(Error::Invalid(format!(
                "slice {slice} can't have {rows} groups, its runs have {in_runs} rows"
            )));
        }
        self.version += 1;
        self.slices
            .insert(slice, Slice::restored(self.shape, rows, runs));
        Ok(())
    }

    /// Merges, puts or deletes the groups of encoded rows, in their order.
    pub fn change(&mut self, batch: &RecordBatch, change: Change) -> Result<()> {
        let layout = Arc::clone(&self.layout);
        let sessions = layout.time().is_sessions();
        if sessions && change != Change::Merge {
            return Err(Error::invalid("sessions are merged, not put or deleted"));
        }
        let encoded = EncodedRows::new(&layout, batch)?;
        let by_slice = self.by_slice(&encoded)?;
        self.check_takes_rows(by_slice.iter().map(|(slice, _)| *slice))?;
        self.version += 1;
        for (slice, order) in by_slice {
            self.change_slice(slice, &encoded, &order, change)?;
        }
        Ok(())
    }

    /// Returns the count windows that are full, as (the row that filled it, its value).
    pub(crate) fn change_slice(
        &mut self,
        slice: i64,
        encoded: &EncodedRows<'_>,
        order: &[u32],
        change: Change,
    ) -> Result<Vec<(u32, Box<[u8]>)>> {
        let layout = Arc::clone(&self.layout);
        let mut full = Vec::new();
        for order in order.chunks(STEP_ROWS) {
            self.relieve();
            if change == Change::Delete && !self.slices.contains_key(&slice) {
                continue;
            }
            let shape = self.shape;
            let target = self
                .slices
                .entry(slice)
                .or_insert_with(|| Slice::new(shape));
            let mut running = Running::new(self.epoch, &mut self.counters);
            target.change(&layout, encoded, order, change, &mut running)?;
            let timers = running.timers;
            full.append(&mut running.full);
            self.enter_timers(encoded, timers)?;
        }
        Ok(full)
    }

    /// Refuses rows for slices that the running batch dropped, and any as long as a flushed run is missing.
    pub(crate) fn check_takes_rows(&self, mut slices: impl Iterator<Item = i64>) -> Result<()> {
        if let Some(slice) = slices.find(|at| self.slices.get(at).is_some_and(Slice::is_dropped)) {
            return Err(Error::Invalid(format!(
                "slice {slice} was dropped in this batch and takes no rows"
            )));
        }
        for (at, slice) in &self.slices {
            slice.check_flushed_run_was_added(*at)?;
        }
        Ok(())
    }

    /// Enters keys, numbered, into the slices of timers for sessions that end at these times.
    pub(crate) fn enter_timers<K: Keys>(
        &mut self,
        keys: &K,
        timers: Vec<(u32, i64)>,
    ) -> Result<()> {
        let mut by_slice: BTreeMap<i64, Vec<(u32, i64)>> = BTreeMap::new();
        for (at, end) in timers {
            if let Some(slice) = self.layout.time().timer_slice(end) {
                by_slice.entry(slice).or_default().push((at, end));
            }
        }
        let shape = self.shape;
        for (at, timers) in by_slice {
            let slice = self.slices.entry(at).or_insert_with(|| Slice::new(shape));
            if slice.is_dropped() {
                return Err(Error::Invalid(format!(
                    "a session ends in the timers {at}, which have fired in this batch"
                )));
            }
            let mut running = Running::new(self.epoch, &mut self.counters);
            slice.enter(keys, &timers, &mut running)?;
        }
        Ok(())
    }

    /// The numbers of the rows of each slice, in order.
    pub(crate) fn by_slice(&self, encoded: &EncodedRows<'_>) -> Result<Vec<(i64, Vec<u32>)>> {
        let rows = u32::try_from(encoded.len())
            .map_err(|_| Error::invalid("too many rows in one batch"))?;
        let mut groups: Vec<(i64, Vec<u32>)> = Vec::new();
        let mut places: HashMap<i64, usize> = HashMap::new();
        let mut current: Option<(i64, usize)> = None;
        for row in 0..rows {
            if !self.range.holds(encoded.hash(row as usize)) {
                let bucket = crate::hash::bucket(encoded.hash(row as usize));
                return Err(Error::Invalid(format!(
                    "a row of bucket {bucket} does not belong to this shard"
                )));
            }
            let slice = encoded.slice(row as usize);
            let place = match current {
                Some((same, place)) if same == slice => place,
                _ => *places.entry(slice).or_insert_with(|| {
                    groups.push((slice, Vec::new()));
                    groups.len() - 1
                }),
            };
            current = Some((slice, place));
            groups[place].1.push(row);
        }
        Ok(groups)
    }

    /// The groups of the rows' keys in the output schema, with empty aggregates where they do not exist, and which do.
    pub fn get(&mut self, batch: &RecordBatch) -> Result<(RecordBatch, BooleanArray)> {
        let layout = Arc::clone(&self.layout);
        if layout.time().is_sessions() {
            return Err(Error::invalid("a key with sessions is not one group"));
        }
        let encoded = EncodedRows::new(&layout, batch)?;
        let mut values = Values::absent(encoded.len());
        for (slice, order) in self.by_slice(&encoded)? {
            let Some(slice) = self
                .slices
                .get_mut(&slice)
                .filter(|slice| !slice.is_dropped())
            else {
                self.counters.gets += order.len() as u64;
                continue;
            };
            slice.read(&encoded, &order, &mut self.counters, |row, value| {
                values.merge(&layout, row as usize, value)
            })?;
        }
        let empty = layout.empty_value();
        let rows = 0..encoded.len();
        let keys: Vec<_> = rows.clone().map(|row| encoded.key(row)).collect();
        let found: Vec<_> = rows
            .clone()
            .map(|row| values.get(row).unwrap_or(&empty))
            .collect();
        let groups = layout.decode(&keys, &found)?;
        Ok((
            groups,
            rows.map(|row| Some(values.is_present(row))).collect(),
        ))
    }

    /// (slice, groups in it), dropped ones left out.
    pub fn slices(&self) -> Vec<(i64, u64)> {
        let visible = self.slices.iter().filter(|(_, slice)| !slice.is_dropped());
        visible.map(|(at, slice)| (*at, slice.rows())).collect()
    }

    pub fn touched_slices(&self) -> Vec<i64> {
        let touched = self
            .slices
            .iter()
            .filter(|(_, slice)| !slice.is_dropped() && slice.is_touched());
        touched.map(|(at, _)| *at).collect()
    }

    /// Hides the slice; it is gone with the commit. A slice that is not there is no error.
    pub fn drop_slice(&mut self, slice: i64) {
        self.version += 1;
        if let Some(slice) = self.slices.get_mut(&slice) {
            slice.drop_groups();
        }
    }

    pub fn dirty_bytes(&self) -> u64 {
        self.slices.values().map(Slice::dirty_bytes).sum()
    }

    /// Writes what changed since the last flush, one run per slice.
    pub fn flush(&mut self, writer: &mut PackWriter) -> Result<Vec<(i64, RunExtent)>> {
        self.version += 1;
        for (at, slice) in &self.slices {
            slice.check_flushed_run_was_added(*at)?;
        }
        let mut written = Vec::new();
        for (at, slice) in &self.slices {
            if !slice.is_dropped() && !slice.table().dirty().is_empty() {
                written.push((
                    *at,
                    slice.write_dirty(self.layout.fingerprint(), self.shape, writer)?,
                ));
            }
        }
        // Only now, when all is written: after an error everything is still to be flushed.
        for (at, extent) in &written {
            if let Some(slice) = self.slices.get_mut(at) {
                slice.note_flushed(*extent);
            }
        }
        Ok(written
            .into_iter()
            .filter_map(|(at, extent)| Some((at, extent?)))
            .collect())
    }

    pub fn add_pending(&mut self, slice: i64, run: Arc<Run>) -> Result<()> {
        check_fits(&run, self.shape, self.layout.fingerprint())?;
        self.version += 1;
        let target = self.slices.get_mut(&slice);
        target
            .ok_or_else(|| no_slice(slice))?
            .add_pending(slice, run)
    }

    pub fn commit(&mut self) -> Result<()> {
        for (at, slice) in &self.slices {
            slice.check_committable(*at)?;
        }
        let next = self
            .epoch
            .checked_add(1)
            .ok_or_else(|| Error::invalid("too many batches; open the store again"))?;
        self.version += 1;
        if self.slices.values().any(Slice::is_dropped) {
            let spent = Beside::start();
            self.slices.retain(|_, slice| !slice.is_dropped());
            self.counters.removal_ns += spent.ns();
        }
        for slice in self.slices.values_mut() {
            slice.commit(self.epoch);
        }
        self.slices
            .retain(|_, slice| slice.rows() > 0 || slice.has_runs());
        self.epoch = next;
        self.relieve();
        Ok(())
    }

    pub fn abort(&mut self) {
        self.version += 1;
        let epoch = self.epoch;
        self.slices.retain(|_, slice| slice.abort(epoch));
    }

    /// Puts a merged run in the place of committed ones; false if the slice is gone. The groups stay the same, so that
    /// scans under way are not disturbed.
    pub fn replace(
        &mut self,
        slice: i64,
        first: usize,
        count: usize,
        run: Arc<Run>,
    ) -> Result<bool> {
        check_fits(&run, self.shape, self.layout.fingerprint())?;
        let Some(target) = self.slices.get_mut(&slice) else {
            return Ok(false);
        };
        target.replace(first, count, run)?;
        Ok(true)
    }

    /// The committed runs, oldest first.
    pub fn runs(&self, slice: i64) -> Result<&[Arc<Run>]> {
        self.slices
            .get(&slice)
            .map(Slice::runs)
            .ok_or_else(|| no_slice(slice))
    }

    pub fn slice_stats(&self, slice: i64) -> Result<SliceStats> {
        let slice = self.slices.get(&slice).ok_or_else(|| no_slice(slice))?;
        Ok(SliceStats {
            rows: slice.rows(),
            live_bytes: slice.live_bytes(),
            run_bytes: slice.run_totals().0,
            runs: slice.runs().len() as u64,
            vain_ns: slice.vain_ns(),
        })
    }

    pub fn memory_bytes(&self) -> usize {
        self.tables_memory_bytes() + self.runs_memory_bytes()
    }

    fn tables_memory_bytes(&self) -> usize {
        let tables = self.slices.values().map(Slice::table);
        tables.map(Table::memory_bytes).sum()
    }

    fn runs_memory_bytes(&self) -> usize {
        self.slices.values().map(Slice::runs_memory_bytes).sum()
    }

    /// Time spent so far on looking for keys in runs and on removal, calls to the file system left out.
    pub fn spent_ns(&self) -> (u64, u64) {
        (self.counters.lookup_ns, self.counters.removal_ns)
    }

    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            memory_bytes: self.memory_bytes() as u64,
            counters: self.counters,
            ..Stats::default()
        };
        let timers = |at: i64| self.layout.time().is_sessions() && at != SESSIONS;
        for (at, slice) in self.slices.iter().filter(|(_, slice)| !slice.is_dropped()) {
            stats.rows += if timers(*at) { 0 } else { slice.rows() };
            stats.run_bytes += slice.run_totals().0;
            stats.live_bytes += slice.live_bytes();
            stats.runs += slice.runs().len() as u64;
        }
        stats
    }

    /// Evicts clean entries, those changed longest ago first, where the memory is exceeded and it is worth the work.
    pub(crate) fn relieve(&mut self) {
        let limit = self.memory_limit;
        // Filters and indexes can't leave; tables keep a share even where those take all.
        let budget = limit
            .saturating_sub(self.runs_memory_bytes())
            .max(limit / 8);
        let tables: usize = self
            .slices
            .values()
            .map(|slice| slice.table().used_bytes())
            .sum();
        // What tables reserve beyond that is at most an eighth while they grow, and more only after they were cut.
        if tables <= budget / 9 * 8 {
            if self.tables_memory_bytes() > budget {
                self.slices.values_mut().for_each(Slice::give_reserve_back);
            }
            return;
        }
        let mut clean: BTreeMap<u32, usize> = BTreeMap::new();
        let mut kept = 0;
        for slice in self.slices.values() {
            let table = slice.table();
            for id in 0..table.len() as u32 {
                match table.is_dirty(id) {
                    true => kept += table.entry_bytes(id),
                    false => *clean.entry(table.epoch(id)).or_default() += table.entry_bytes(id),
                }
            }
        }
        if clean.values().sum::<usize>() < tables / 8 {
            return;
        }
        // Half of it, because what stays is moved: down to seven tenths, cutting tables cost two and a half times as
        // much for each entry that goes.
        let target = budget / 2;
        let mut oldest_kept = u32::MAX;
        let mut room_in_oldest = 0;
        for (epoch, bytes) in clean.iter().rev() {
            oldest_kept = *epoch;
            room_in_oldest = target.saturating_sub(kept);
            kept += bytes;
            if kept > target {
                break;
            }
        }
        let epoch = self.epoch;
        for slice in self.slices.values_mut() {
            slice.evict(epoch, |table, id| {
                let changed = table.epoch(id);
                if changed == oldest_kept {
                    let bytes = table.entry_bytes(id);
                    let fits = room_in_oldest >= bytes;
                    room_in_oldest = if fits { room_in_oldest - bytes } else { 0 };
                    return fits;
                }
                changed > oldest_kept
            });
        }
    }
}

fn no_slice(slice: i64) -> Error {
    Error::Invalid(format!("there is no slice {slice}"))
}
