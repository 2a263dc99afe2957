//! One slice of a store: a table in memory over runs on disk.
//!
//! A group's newest version is in the table, else in the newest run that has its key: first the running batch's
//! pending runs, then the committed ones. Every committed version is in a committed run, so that forgetting what the
//! running batch touched is all an abort needs.

use std::sync::Arc;

use crate::counted::{Windows, begin_next};
use crate::error::{Error, Result};
use crate::layout::{EncodedRows, Layout};
use crate::lookup::{Counters, find_in_runs, sorted_like_runs};
use crate::pack::PackWriter;
use crate::rows::{Row, RowShape};
use crate::run::Run;
use crate::run_writer::{RunExtent, RunWriter};
use crate::session::first_end;
use crate::table::{Keys, Table};

impl Keys for EncodedRows<'_> {
    #[inline]
    fn hash(&self, at: usize) -> u64 {
        EncodedRows::hash(self, at)
    }
    #[inline]
    fn key(&self, at: usize) -> &[u8] {
        EncodedRows::key(self, at)
    }
}

/// What a row does to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Merge,
    /// A merge into the key's window of so many rows, after the last of which the next window begins.
    Count(Windows),
    Put,
    Delete,
}

/// What becomes of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Stays,
    /// So many of the first bytes of its value are taken away.
    Shrinks(usize),
    Goes,
}

/// What the slices need of the running batch, and leave with it.
pub struct Running<'a> {
    pub epoch: u32,
    pub counters: &'a mut Counters,
    /// Of sessions: the rows after which a key's first session ends earlier than any before, and when.
    pub timers: Vec<(u32, i64)>,
    /// Of count windows: those that are full, as (the row that filled it, its value).
    pub full: Vec<(u32, Box<[u8]>)>,
}

impl<'a> Running<'a> {
    pub fn new(epoch: u32, counters: &'a mut Counters) -> Self {
        Self {
            epoch,
            counters,
            timers: Vec::new(),
            full: Vec::new(),
        }
    }
}

pub struct Slice {
    table: Table,
    /// Committed, oldest first.
    runs: Vec<Arc<Run>>,
    /// Of the running batch, oldest first.
    pending: Vec<Arc<Run>>,
    /// Written by a flush and not yet handed back as a pending run: until then its rows can't be found on disk.
    flushed: Option<RunExtent>,
    rows: u64,
    committed_rows: u64,
    is_committed: bool,
    is_dropped: bool,
    /// What look-ups spent in runs without their keys, since runs were last merged.
    vain_ns: u64,
}

impl Slice {
    pub fn new(shape: RowShape) -> Self {
        Self {
            table: Table::new(shape),
            runs: Vec::new(),
            pending: Vec::new(),
            flushed: None,
            rows: 0,
            committed_rows: 0,
            is_committed: false,
            is_dropped: false,
            vain_ns: 0,
        }
    }

    pub fn restored(shape: RowShape, rows: u64, runs: Vec<Arc<Run>>) -> Self {
        Self {
            runs,
            rows,
            committed_rows: rows,
            is_committed: true,
            ..Self::new(shape)
        }
    }

    pub fn table(&self) -> &Table {
        &self.table
    }
    pub fn runs(&self) -> &[Arc<Run>] {
        &self.runs
    }
    pub fn pending(&self) -> &[Arc<Run>] {
        &self.pending
    }
    pub fn rows(&self) -> u64 {
        self.rows
    }
    pub fn is_dropped(&self) -> bool {
        self.is_dropped
    }
    /// Nanoseconds that look-ups would have been spared by a merge, since the last one.
    pub fn vain_ns(&self) -> u64 {
        self.vain_ns
    }

    /// Every group is in memory, so a key that is not there does not exist.
    pub fn is_complete(&self) -> bool {
        self.table.live() == self.rows
    }

    pub fn is_touched(&self) -> bool {
        !self.table.touched().is_empty() || !self.pending.is_empty()
    }

    pub fn has_runs(&self) -> bool {
        !self.runs.is_empty() || !self.pending.is_empty()
    }

    pub fn runs_memory_bytes(&self) -> usize {
        self.runs
            .iter()
            .chain(&self.pending)
            .map(|run| run.memory_bytes())
            .sum()
    }

    pub fn give_reserve_back(&mut self) {
        self.table.give_reserve_back();
    }

    /// Bytes and rows of the committed runs.
    pub fn run_totals(&self) -> (u64, u64) {
        let totals = |(bytes, rows), run: &Arc<Run>| (bytes + run.length(), rows + run.rows());
        self.runs.iter().fold((0, 0), totals)
    }

    /// What the groups would take in one run, by the average row of the runs.
    pub fn live_bytes(&self) -> u64 {
        match self.run_totals() {
            (_, 0) => 0,
            (bytes, rows) => (u128::from(bytes) * u128::from(self.rows) / u128::from(rows)) as u64,
        }
    }

    /// Changes the groups of the rows numbered in `order`.
    pub fn change(
        &mut self,
        layout: &Layout,
        encoded: &EncodedRows<'_>,
        order: &[u32],
        change: Change,
        running: &mut Running<'_>,
    ) -> Result<()> {
        let Running {
            epoch,
            counters,
            timers,
            full,
        } = running;
        let epoch = *epoch;
        counters.gets += order.len() as u64;
        let was_complete = self.is_complete();
        if !was_complete {
            self.load(encoded, order, epoch, counters)?;
        }
        let live = self.table.live();
        let mut hits = 0;
        let mut scratch = Vec::new();
        let fixed = layout.value_width().is_some();
        let sessions = layout.time().is_sessions();
        let changed = self.table.probe(encoded, order, |table, at, found| {
            hits += u64::from(found.is_some());
            let value = encoded.value(at);
            let Some(id) = found else {
                if change != Change::Delete {
                    let row = Row {
                        hash: encoded.hash(at),
                        tombstone: false,
                        key: encoded.key(at),
                        value,
                    };
                    let id = table.add(row, 0)?;
                    table.touch(id, epoch);
                    table.note_fresh(id);
                    if sessions {
                        timers.extend(first_end(value).map(|end| (at as u32, end)));
                    }
                    restart_full(table, id, at, change, &mut scratch, full);
                }
                return Ok(());
            };
            let exists = !table.is_tombstone(id);
            if change == Change::Delete && !exists {
                return Ok(());
            }
            // Before the change itself: one that fails half way must go with the batch.
            table.touch(id, epoch);
            let first = match sessions && exists {
                true => first_end(table.value(id)),
                false => None,
            };
            match change {
                Change::Delete => table.bury(id),
                Change::Merge | Change::Count(_) if exists && fixed => {
                    layout.merge_fixed(table.fixed_value_mut(id), value)?;
                }
                Change::Merge
                    if exists
                        && sessions
                        && layout.merge_sessions_in_place(table.heap_value_mut(id), value)? => {}
                Change::Merge | Change::Count(_) if exists => {
                    if layout.merge_variable(table.value(id), value, &mut scratch)? {
                        table.set_value(id, &scratch);
                    }
                }
                Change::Merge | Change::Count(_) | Change::Put => table.set_value(id, value),
            }
            restart_full(table, id, at, change, &mut scratch, full);
            if sessions
                && let Some(end) = first_end(table.value(id))
                && first.is_none_or(|first| end < first)
            {
                timers.push((at as u32, end));
            }
            Ok(())
        });
        self.rows = self.rows + self.table.live() - live;
        counters.memory_hits += if was_complete { hits } else { 0 };
        if self.table.garbage_bytes() > (1 << 20).max(self.table.heap_bytes() / 2) {
            self.table.retain(epoch, |_, _| true);
        }
        changed
    }

    /// Adds the keys numbered in `order` that do not exist, and calls `new` with the number of each.
    pub fn insert(
        &mut self,
        encoded: &EncodedRows<'_>,
        order: &[u32],
        epoch: u32,
        counters: &mut Counters,
        mut new: impl FnMut(usize),
    ) -> Result<()> {
        counters.gets += order.len() as u64;
        let was_complete = self.is_complete();
        if !was_complete {
            self.load(encoded, order, epoch, counters)?;
        }
        let live = self.table.live();
        let mut hits = 0;
        let inserted = self.table.probe(encoded, order, |table, at, found| {
            hits += u64::from(found.is_some());
            let id = match found {
                Some(id) if !table.is_tombstone(id) => return Ok(()),
                Some(id) => {
                    table.set_value(id, encoded.value(at));
                    id
                }
                None => {
                    let row = Row {
                        hash: encoded.hash(at),
                        tombstone: false,
                        key: encoded.key(at),
                        value: encoded.value(at),
                    };
                    let id = table.add(row, 0)?;
                    table.note_fresh(id);
                    id
                }
            };
            table.touch(id, epoch);
            new(at);
            Ok(())
        });
        self.rows = self.rows + self.table.live() - live;
        counters.memory_hits += if was_complete { hits } else { 0 };
        inserted
    }

    /// Brings the groups of these rows that exist on disk only into memory.
    fn load<K: Keys>(
        &mut self,
        keys: &K,
        order: &[u32],
        epoch: u32,
        counters: &mut Counters,
    ) -> Result<()> {
        let mut missing = Vec::new();
        self.table.probe(keys, order, |_, at, found| {
            if found.is_none() {
                missing.push(at as u32);
            }
            Ok(())
        })?;
        counters.memory_hits += (order.len() - missing.len()) as u64;
        let mut missing = sorted_like_runs(keys, &missing);
        missing.dedup_by(|(_, a), (_, b)| keys.key(*a as usize) == keys.key(*b as usize));
        let Self {
            table,
            runs,
            pending,
            ..
        } = self;
        let newest_first = pending
            .iter()
            .rev()
            .chain(runs.iter().rev())
            .map(Arc::as_ref);
        self.vain_ns += find_in_runs(newest_first, keys, missing, counters, |_, row, place| {
            if row.tombstone {
                return Ok(());
            }
            if place < pending.len() {
                let id = table.add(row, epoch)?;
                table.note_touched(id);
            } else {
                table.add(row, epoch - 1)?;
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Hands the values of the groups that exist to `each`, with the number of their key.
    pub fn read<K: Keys>(
        &mut self,
        keys: &K,
        order: &[u32],
        counters: &mut Counters,
        mut each: impl FnMut(u32, &[u8]) -> Result<()>,
    ) -> Result<()> {
        counters.gets += order.len() as u64;
        let mut missing = Vec::new();
        self.table
            .probe(keys, order, |table, at, found| match found {
                Some(id) if table.is_tombstone(id) => Ok(()),
                Some(id) => each(at as u32, table.value(id)),
                None => {
                    missing.push(at as u32);
                    Ok(())
                }
            })?;
        counters.memory_hits += (order.len() - missing.len()) as u64;
        if self.is_complete() || missing.is_empty() {
            return Ok(());
        }
        let missing = sorted_like_runs(keys, &missing);
        let newest_first = self.pending.iter().rev().chain(self.runs.iter().rev());
        self.vain_ns += find_in_runs(
            newest_first.map(Arc::as_ref),
            keys,
            missing,
            counters,
            |row, hit, _| match hit.tombstone {
                true => Ok(()),
                false => each(row, hit.value),
            },
        )?;
        Ok(())
    }

    /// Hands the values of the groups that exist to `each`, which says what becomes of them. No key comes twice.
    pub fn decide<K: Keys>(
        &mut self,
        keys: &K,
        order: &[u32],
        running: &mut Running<'_>,
        mut each: impl FnMut(u32, &[u8]) -> Result<Fate>,
    ) -> Result<()> {
        let epoch = running.epoch;
        running.counters.gets += order.len() as u64;
        let mut missing = Vec::new();
        let mut gone = 0;
        let mut rest = Vec::new();
        self.table.probe(keys, order, |table, at, found| {
            let Some(id) = found else {
                missing.push(at as u32);
                return Ok(());
            };
            if table.is_tombstone(id) {
                return Ok(());
            }
            match each(at as u32, table.value(id))? {
                Fate::Stays => return Ok(()),
                Fate::Shrinks(bytes) => {
                    table.touch(id, epoch);
                    rest.clear();
                    rest.extend_from_slice(&table.value(id)[bytes..]);
                    table.set_value(id, &rest);
                }
                Fate::Goes => {
                    table.touch(id, epoch);
                    table.bury(id);
                    gone += 1;
                }
            }
            Ok(())
        })?;
        running.counters.memory_hits += (order.len() - missing.len()) as u64;
        if !missing.is_empty() && self.rows > self.table.live() + gone {
            let missing = sorted_like_runs(keys, &missing);
            let Self {
                table,
                runs,
                pending,
                ..
            } = self;
            let newest_first = pending.iter().rev().chain(runs.iter().rev());
            self.vain_ns += find_in_runs(
                newest_first.map(Arc::as_ref),
                keys,
                missing,
                running.counters,
                |at, row, _| {
                    if row.tombstone {
                        return Ok(());
                    }
                    let (tombstone, from) = match each(at, row.value)? {
                        Fate::Stays => return Ok(()),
                        Fate::Shrinks(bytes) => (false, bytes),
                        Fate::Goes => (true, row.value.len()),
                    };
                    gone += u64::from(tombstone);
                    let value = &row.value[from..];
                    let id = table.add(
                        Row {
                            tombstone,
                            value,
                            ..row
                        },
                        0,
                    )?;
                    table.touch(id, epoch);
                    Ok(())
                },
            )?;
        }
        self.rows -= gone;
        Ok(())
    }

    /// Enters keys into a slice of timers, whose values are times; the earlier one of a key stays.
    pub fn enter<K: Keys>(
        &mut self,
        keys: &K,
        timers: &[(u32, i64)],
        running: &mut Running<'_>,
    ) -> Result<()> {
        let epoch = running.epoch;
        let order: Vec<u32> = timers.iter().map(|(at, _)| *at).collect();
        if !self.is_complete() {
            self.load(keys, &order, epoch, running.counters)?;
        }
        if self.table.is_empty() {
            self.table.reserve(timers.len());
        }
        let live = self.table.live();
        let mut times = timers.iter();
        self.table.probe(keys, &order, |table, at, found| {
            // Keys are probed in their order.
            let time = times.next().map_or(i64::MAX, |(_, time)| *time);
            let value = &time.to_le_bytes();
            match found {
                None => {
                    let row = Row {
                        hash: keys.hash(at),
                        tombstone: false,
                        key: keys.key(at),
                        value,
                    };
                    let id = table.add(row, 0)?;
                    table.touch(id, epoch);
                    table.note_fresh(id);
                }
                Some(id) if table.is_tombstone(id) || timer_of(table.value(id)) > time => {
                    table.touch(id, epoch);
                    table.set_value(id, value);
                }
                Some(_) => {}
            }
            Ok(())
        })?;
        self.rows = self.rows + self.table.live() - live;
        Ok(())
    }

    /// Deletes groups that are known to exist.
    pub fn bury<K: Keys>(&mut self, keys: &K, order: &[u32], epoch: u32) -> Result<()> {
        let empty = vec![0; self.table.value_width()];
        self.table.probe(keys, order, |table, at, found| {
            let id = match found {
                Some(id) => {
                    table.bury(id);
                    id
                }
                None => table.add(
                    Row {
                        hash: keys.hash(at),
                        tombstone: true,
                        key: keys.key(at),
                        value: &empty,
                    },
                    0,
                )?,
            };
            table.touch(id, epoch);
            Ok(())
        })?;
        self.rows -= order.len() as u64;
        Ok(())
    }

    pub fn drop_groups(&mut self) {
        self.is_dropped = true;
    }

    /// Bytes that a flush would write.
    pub fn dirty_bytes(&self) -> u64 {
        match self.is_dropped {
            true => 0,
            false => self.table.dirty_bytes(),
        }
    }

    /// Refuses to go on while the rows of a flush can be found nowhere.
    pub fn check_flushed_run_was_added(&self, slice: i64) -> Result<()> {
        match self.flushed {
            Some(_) if !self.is_dropped => Err(Error::Invalid(format!(
                "slice {slice} was flushed; hand its run back with add_pending first"
            ))),
            _ => Ok(()),
        }
    }

    /// Writes what changed since the last flush; `None` if there is nothing. The entries stay dirty.
    pub fn write_dirty(
        &self,
        fingerprint: u64,
        shape: RowShape,
        writer: &mut PackWriter,
    ) -> Result<Option<RunExtent>> {
        let has_runs = self.has_runs();
        // A deleted group that no run knows needs no mark.
        let written =
            |id: &u32| !self.table.is_tombstone(*id) || (has_runs && !self.table.is_fresh(*id));
        let rows = self
            .table
            .sorted(self.table.dirty().iter().copied().filter(written));
        if rows.is_empty() {
            return Ok(None);
        }
        let mut run = RunWriter::begin(writer, shape, fingerprint, rows.len() as u64)?;
        for (at, (_, id)) in rows.iter().enumerate() {
            if let Some((_, ahead)) = rows.get(at + 8) {
                self.table.prefetch(*ahead);
            }
            run.push(self.table.row(*id))?;
        }
        run.finish().map(Some)
    }

    /// What was dirty has been written to `extent`.
    pub fn note_flushed(&mut self, extent: Option<RunExtent>) {
        self.table.clear_dirty();
        self.flushed = extent;
    }

    pub fn add_pending(&mut self, slice: i64, run: Arc<Run>) -> Result<()> {
        let matches =
            |extent: RunExtent| extent.length == run.length() && extent.rows == run.rows();
        if !self.flushed.is_some_and(matches) {
            return Err(Error::Invalid(format!(
                "{} is not the run that slice {slice} was last flushed to",
                run.name()
            )));
        }
        self.flushed = None;
        self.pending.push(run);
        Ok(())
    }

    /// An error if a commit would lose something.
    pub fn check_committable(&self, slice: i64) -> Result<()> {
        self.check_flushed_run_was_added(slice)?;
        if !self.is_dropped && !self.table.dirty().is_empty() {
            return Err(Error::Invalid(format!(
                "slice {slice} has unwritten changes; flush before the commit"
            )));
        }
        Ok(())
    }

    /// Makes the batch's changes the state. `epoch`: the batch's.
    pub fn commit(&mut self, epoch: u32) {
        self.runs.append(&mut self.pending);
        self.committed_rows = self.rows;
        self.is_committed = true;
        self.table.clear_touched();
        let buried = self.table.len() as u64 - self.table.live();
        if buried * 4 > self.table.len() as u64 {
            self.table
                .retain(epoch + 1, |table, id| !table.is_tombstone(id));
        }
    }

    /// Forgets the running batch; false if the slice was its work altogether.
    pub fn abort(&mut self, epoch: u32) -> bool {
        self.pending.clear();
        self.flushed = None;
        self.is_dropped = false;
        self.rows = self.committed_rows;
        if !self.table.touched().is_empty() {
            self.table
                .retain(epoch, |table, id| table.epoch(id) != epoch);
        }
        self.is_committed
    }

    /// Gives up the clean entries that `keep` does not accept.
    pub fn evict(&mut self, epoch: u32, mut keep: impl FnMut(&Table, u32) -> bool) {
        self.table
            .retain(epoch, |table, id| table.is_dirty(id) || keep(table, id));
    }

    /// Puts a merged run in the place of committed ones.
    pub fn replace(&mut self, first: usize, count: usize, run: Arc<Run>) -> Result<()> {
        let end = first
            .checked_add(count)
            .filter(|end| *end <= self.runs.len());
        let Some(end) = end.filter(|_| count > 0) else {
            return Err(Error::Invalid(format!(
                "runs {first} to {} of {} can't be replaced",
                first.saturating_add(count),
                self.runs.len()
            )));
        };
        self.runs.splice(first..end, [run]);
        self.vain_ns = 0;
        Ok(())
    }
}

/// Hands over a count window that the row `at` filled, in whose place the next one begins.
#[inline]
fn restart_full(
    table: &mut Table,
    id: u32,
    at: usize,
    change: Change,
    scratch: &mut Vec<u8>,
    full: &mut Vec<(u32, Box<[u8]>)>,
) {
    if let Change::Count(windows) = change
        && begin_next(windows, table.value(id), scratch)
    {
        full.push((at as u32, table.value(id).into()));
        table.set_value(id, scratch);
    }
}

/// The time that the value of a timer says.
#[inline]
pub fn timer_of(value: &[u8]) -> i64 {
    let time = value.first_chunk::<8>();
    time.map_or(i64::MIN, |time| i64::from_le_bytes(*time))
}
