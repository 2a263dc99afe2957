//! The rows of one operator's sessions in one shard.
//!
//! One writer. What it appends and gives out belongs to the running batch until `commit` or `abort`. There is no undo:
//! committed versions are files, so an abort reads the table of sessions back from the index of the committed runs.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;

use crate::aur::ahead::Ahead;
use crate::aur::bounds::Bounds;
use crate::aur::buffer::Buffer;
use crate::aur::layout::{Ending, RowsLayout};
use crate::aur::log::{LogRun, Place, Reads};
use crate::aur::log_format::{Entry, data_checksum, put};
use crate::aur::log_writer::{IndexWriter, LogExtent, Started};
use crate::aur::sessions::{NONE, Sessions, State};
use crate::error::{Error, Result};
use crate::hash::hash_key;
use crate::pack::PackWriter;
use crate::rows::HashRange;

/// Of the memory limit, one byte in so many is for reading ahead however large the table of sessions is.
const AHEAD_SHARE: usize = 8;

/// What was done since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sessions given out, and how many of them had no row in a file, or all of them read ahead.
    pub gets: u64,
    pub memory_hits: u64,
    pub ahead_hits: u64,
    /// Sessions that were read ahead, and those of them that were dropped again: they grew, or there was no room.
    pub ahead_reads: u64,
    pub ahead_evicted: u64,
    /// Scans of the index to find what is due.
    pub scans: u64,
    /// Bytes read from files, of index and rows; bytes of rows that were given out from files.
    pub read_bytes: u64,
    pub taken_bytes: u64,
    /// Reads while something was given out, and what was waited for them.
    pub read_requests: u64,
    pub read_wait_ns: u64,
    /// Bytes that compaction wrote, and those of them that went from file to file without being looked at.
    pub rewritten_bytes: u64,
    pub moved_whole_bytes: u64,
}

impl Counters {
    /// Reads of a batch.
    pub fn count(&mut self, reads: Reads) {
        self.read_bytes += reads.bytes;
        self.read_requests += reads.requests;
        self.read_wait_ns += reads.wait_ns;
    }
}

/// Index entries, and the bytes of the rows they stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    pub entries: u64,
    pub bytes: u64,
}

impl Extent {
    pub fn add(&mut self, bytes: u64) {
        self.entries += 1;
        self.bytes += bytes;
    }
}

/// A run with what of it is still alive.
pub struct HeldRun {
    pub id: u32,
    pub log: Arc<LogRun>,
    pub live: Extent,
    /// What of it the running batch gave out.
    pub taken: Extent,
    /// A bit for each index entry: set where its rows are known to be gone.
    gone: Vec<u64>,
    /// How many entries of each block are not known to be gone.
    left: Vec<u32>,
    /// Entries that are gone with the running batch's commit.
    pub dying: Vec<Place>,
}

impl HeldRun {
    pub fn new(id: u32, log: Arc<LogRun>, live: Extent) -> Self {
        Self {
            id,
            live,
            taken: Extent::default(),
            gone: vec![0; (log.entries() as usize).div_ceil(64)],
            left: (0..log.blocks()).map(|b| log.block_entries(b)).collect(),
            dying: Vec::new(),
            log,
        }
    }

    /// Of the first so many blocks of the index, those that may hold something alive.
    pub fn blocks_of(&self, first: usize) -> Vec<usize> {
        (0..first).filter(|block| self.left[*block] > 0).collect()
    }

    #[inline]
    pub fn is_gone(&self, place: Place) -> bool {
        self.gone[place.entry as usize / 64] >> (place.entry % 64) & 1 == 1
    }

    pub fn note_gone(&mut self, place: Place) {
        let bit = 1 << (place.entry % 64);
        let word = &mut self.gone[place.entry as usize / 64];
        if *word & bit == 0 {
            *word |= bit;
            self.left[place.block as usize] -= 1;
        }
    }

    fn live_bytes(&self) -> u64 {
        self.live.bytes + self.live.entries * self.log.entry_bytes()
    }

    fn has_waiting(&self) -> bool {
        self.live.entries > self.taken.entries
    }
}

/// How the watermark goes on from batch to batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    watermark: Option<i64>,
    step: i64,
}

impl Pace {
    pub fn note(&mut self, watermark: i64) {
        match self.watermark {
            Some(before) if watermark <= before => {}
            Some(before) => {
                self.step = watermark.saturating_sub(before);
                self.watermark = Some(watermark);
            }
            None => self.watermark = Some(watermark),
        }
    }

    /// Where it will be after the next step, if that is as long as the last.
    pub fn next(&self) -> i64 {
        self.watermark
            .map_or(i64::MIN, |watermark| watermark.saturating_add(self.step))
    }
}

pub struct RowStore {
    pub(crate) layout: Arc<RowsLayout>,
    pub(crate) range: HashRange,
    memory_limit: usize,
    pub(crate) sessions: Sessions,
    pub(crate) buffer: Buffer,
    pub(crate) committed: Vec<HeldRun>,
    pub(crate) pending: Vec<HeldRun>,
    /// A flushed run that is not attached yet.
    flushed: Option<Extent>,
    /// Sessions that ended up to here were given out, the running batch included.
    pub(crate) given_out: i64,
    /// The same when the running batch began.
    pub(crate) given_out_before: i64,
    pub(crate) pace: Pace,
    pub(crate) taken: Vec<u32>,
    /// The running batch changed something.
    changed: bool,
    /// Sessions were given out, and no run says so yet.
    unrecorded: bool,
    pub(crate) rows: u64,
    /// Changes with every change.
    pub(crate) version: u64,
    pub(crate) ahead: Ahead,
    pub(crate) counters: Counters,
    next_run: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub sessions: u64,
    pub rows: u64,
    pub memory_bytes: u64,
    pub run_bytes: u64,
    pub live_bytes: u64,
    pub runs: u64,
    pub counters: Counters,
}

impl RowStore {
    pub fn new(
        layout: Arc<RowsLayout>,
        first_bucket: u32,
        end_bucket: u32,
        memory_limit: usize,
    ) -> Result<Self> {
        Ok(Self {
            range: HashRange::of_buckets(first_bucket, end_bucket)?,
            memory_limit,
            sessions: Sessions::new(layout.ending(), layout.key_width(), layout.has_expected()),
            buffer: Buffer::new(layout.value_width()),
            committed: Vec::new(),
            pending: Vec::new(),
            flushed: None,
            given_out: i64::MIN,
            given_out_before: i64::MIN,
            pace: Pace::default(),
            taken: Vec::new(),
            changed: false,
            unrecorded: false,
            rows: 0,
            version: 0,
            ahead: Ahead::default(),
            counters: Counters::default(),
            next_run: 0,
            layout,
        })
    }

    pub fn layout(&self) -> &Arc<RowsLayout> {
        &self.layout
    }

    /// Rows of open sessions.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Appends encoded rows to their sessions.
    pub fn append(&mut self, batch: &RecordBatch) -> Result<()> {
        self.check_attached()?;
        if !self.taken.is_empty() {
            return Err(Error::invalid("the batch has given out what was due"));
        }
        let (given, expected) = (batch.schema(), self.layout.encoded_schema());
        let types = |schema: &arrow_schema::Schema| -> Vec<DataType> {
            let fields = schema.fields().iter();
            fields.map(|field| field.data_type().clone()).collect()
        };
        if types(&given) != types(&expected) || batch.columns().iter().any(|c| c.null_count() > 0) {
            return Err(Error::invalid(format!(
                "not rows of this layout: expected {expected:?}, got {given:?}"
            )));
        }
        if !self.sessions.has_room(batch.num_rows()) || !self.buffer.has_room(batch.num_rows()) {
            return Err(Error::invalid("too many rows or sessions in one shard"));
        }
        self.version += 1;
        self.changed = true;
        let times = batch.column(0).as_primitive::<Int64Type>().values();
        let (keys, values) = (Bytes::of(batch.column(1)), Bytes::of(batch.column(2)));
        let mut more = batch.columns()[3..].iter();
        let mut next_times = || Some(more.next()?.as_primitive::<Int64Type>().values());
        let ends = match self.layout.ending() {
            Ending::Latest(_) => next_times(),
            _ => None,
        };
        let expected = next_times();
        let mut absorbed = Vec::new();
        for (row, time) in times.iter().enumerate() {
            let key = keys.row(row);
            let hash = hash_key(key);
            if !self.range.holds(hash) {
                return Err(Error::invalid("a row does not belong to this shard"));
            }
            if let Ending::Rows(most) = self.layout.ending() {
                let (slot, number) = self.sessions.count(hash, key, most);
                let buffer = self.sessions.get(slot).buffer;
                let bounds = Bounds::of_row(number, number);
                let buffer = self.buffer.append(buffer, slot, bounds, values.row(row));
                self.sessions.get_mut(slot).buffer = buffer;
                if let Some(expected) = expected {
                    self.sessions.expect(slot, expected[row]);
                }
                continue;
            }
            let end = match ends {
                Some(ends) => ends[row],
                None => time.saturating_add(self.layout.gap()),
            };
            if end <= self.given_out {
                return Err(Error::invalid(
                    "a row comes after its session was given out",
                ));
            }
            absorbed.clear();
            let bounds = Bounds::of_row(*time, end);
            let slot = self.sessions.add(hash, key, bounds, &mut absorbed);
            if let Ending::Gap(_) | Ending::Latest(_) = self.layout.ending() {
                self.forget_ahead(slot);
            }
            let mut buffer = self.sessions.get(slot).buffer;
            for gone in &absorbed {
                self.forget_ahead(*gone);
                let from = self.sessions.get(*gone).buffer;
                buffer = self.buffer.join(buffer, from, slot);
            }
            let buffer = self.buffer.append(buffer, slot, bounds, values.row(row));
            self.sessions.get_mut(slot).buffer = buffer;
            if let Some(expected) = expected {
                self.sessions.expect(slot, expected[row]);
            }
        }
        self.rows += times.len() as u64;
        Ok(())
    }

    /// The session grew, so that it closes later, or has rows in files that were not read ahead; or there is no room.
    pub(crate) fn forget_ahead(&mut self, slot: u32) {
        let session = self.sessions.get_mut(slot);
        if session.mark != NONE {
            self.ahead.remove(session.mark);
            session.mark = NONE;
            self.counters.ahead_evicted += 1;
        }
    }

    /// Bytes that the next flush would write, about.
    pub fn dirty_bytes(&self) -> u64 {
        self.buffer.bytes() + u64::from(self.unrecorded && !self.sessions.is_empty())
    }

    /// Writes what was appended and not given out: the rows of each window together, the first to close first.
    pub fn flush(&mut self, writer: &mut PackWriter) -> Result<Option<LogExtent>> {
        self.check_attached()?;
        let waiting = |slot: u32| self.sessions.get(slot).state == State::Open;
        let windows = self.buffer.windows().iter().enumerate();
        let mut order: Vec<(i64, u32, u32)> = windows
            .filter(|(_, window)| window.rows > 0 && waiting(window.slot))
            .map(|(i, window)| (self.sessions.end(window.slot), i as u32, window.slot))
            .collect();
        let empty = self.sessions.empty().iter();
        order.extend(empty.map(|slot| (self.sessions.end(*slot), NONE, *slot)));
        if order.is_empty() && (!self.unrecorded || self.sessions.is_empty()) {
            self.buffer.clear();
            return Ok(None);
        }
        order.sort_unstable();
        let started = Started::begin(writer, self.layout.fingerprint())?;
        let mut index = IndexWriter::new(self.layout.entry_shape());
        let mut live = Extent::default();
        let mut bytes = Vec::new();
        let mut offset = Started::data_offset();
        let fixed = self.layout.value_width().is_some();
        for (end, buffer, slot) in &order {
            bytes.clear();
            let (bounds, rows) = match *buffer {
                NONE => {
                    let start = self.sessions.get(*slot).bounds.start;
                    (Bounds::of_row(start, start), 0)
                }
                buffer => {
                    self.buffer.each_row(buffer, |row| {
                        if !fixed {
                            put(&mut bytes, row.len() as u64);
                        }
                        bytes.extend_from_slice(row);
                    });
                    let window = self.buffer.window(buffer);
                    (window.bounds, window.rows)
                }
            };
            let length = u32::try_from(bytes.len())
                .map_err(|_| Error::invalid("more than 4 GiB of one session in one flush"))?;
            let entry = Entry {
                bounds,
                given_out: self.given_out_before,
                offset,
                length,
                rows,
                checksum: data_checksum(&bytes),
            };
            index.push(*end, &entry, self.sessions.key(*slot));
            writer.write(&bytes)?;
            offset += u64::from(length);
            live.add(u64::from(length));
        }
        let extent = index.finish(writer, started, self.given_out)?;
        // Only now, when all is written.
        for (_, _, slot) in &order {
            self.forget_ahead(*slot);
            let session = self.sessions.get_mut(*slot);
            session.buffer = NONE;
            session.pieces += 1;
        }
        self.sessions.clear_empty();
        self.version += 1;
        self.buffer.clear();
        self.unrecorded = false;
        self.flushed = Some(live);
        Ok(Some(extent))
    }

    pub(crate) fn check_attached(&self) -> Result<()> {
        match self.flushed {
            Some(_) => Err(Error::invalid("a flushed run was not added yet")),
            None => Ok(()),
        }
    }

    /// The run that was just flushed can be read.
    pub fn add_pending(&mut self, log: Arc<LogRun>) -> Result<()> {
        let live = self
            .flushed
            .take()
            .ok_or_else(|| Error::invalid("no run was flushed"))?;
        self.version += 1;
        let id = self.new_run_id();
        self.pending.push(HeldRun::new(id, log, live));
        Ok(())
    }

    pub(crate) fn new_run_id(&mut self) -> u32 {
        self.next_run += 1;
        self.next_run
    }

    /// Which of the committed runs the state needs as the running batch leaves it.
    pub fn runs_in_use(&self) -> Vec<bool> {
        // One has to say up to when sessions were given out, even if all its rows are gone.
        let by_time = !matches!(self.layout.ending(), Ending::Rows(_));
        let newest = match by_time && self.pending.is_empty() && !self.sessions.is_empty() {
            true => self.committed.iter().map(|run| run.log.given_out()).max(),
            false => None,
        };
        let mut needs_newest = newest;
        self.committed
            .iter()
            .map(|run| {
                let says = needs_newest == Some(run.log.given_out());
                if says {
                    needs_newest = None;
                }
                says || run.has_waiting()
            })
            .collect()
    }

    pub fn commit(&mut self) -> Result<()> {
        self.check_attached()?;
        if !self.buffer.is_empty() || (self.unrecorded && !self.sessions.is_empty()) {
            return Err(Error::invalid("the batch has rows that were not flushed"));
        }
        let used = self.runs_in_use();
        self.version += 1;
        // The newest of a key first: they stand before the others in its chain.
        for slot in std::mem::take(&mut self.taken).into_iter().rev() {
            self.sessions.remove(slot);
        }
        let mut used = used.into_iter();
        self.committed.retain(|_| used.next().unwrap_or(true));
        self.committed.append(&mut self.pending);
        if self.sessions.is_empty() {
            self.committed.clear();
        }
        for run in &mut self.committed {
            run.live.entries -= run.taken.entries;
            run.live.bytes -= run.taken.bytes;
            run.taken = Extent::default();
            for place in std::mem::take(&mut run.dying) {
                run.note_gone(place);
            }
        }
        self.given_out_before = self.given_out;
        self.changed = false;
        self.unrecorded = false;
        self.trim_ahead();
        Ok(())
    }

    /// How much may be held of what is read ahead. The write buffer has a limit of its own.
    pub(crate) fn ahead_room(&self) -> usize {
        let others = self.memory_bytes() - self.ahead.memory_bytes() - self.buffer.memory_bytes();
        let left = self.memory_limit.saturating_sub(others);
        left.max(self.memory_limit / AHEAD_SHARE)
    }

    /// (time at which it will be read, session, bytes) of what is held, in that order.
    pub(crate) fn held_ahead(&self) -> Vec<(i64, u32, usize)> {
        let held = self.ahead.held();
        let mut held: Vec<_> = held
            .map(|(slot, bytes)| (self.sessions.read_time(slot), slot, bytes))
            .collect();
        held.sort_unstable();
        held
    }

    /// Drops what has no room any more, the last to be read first.
    fn trim_ahead(&mut self) {
        let room = self.ahead_room();
        if self.ahead.memory_bytes() > room {
            let mut held = self.held_ahead();
            while self.ahead.memory_bytes() > room
                && let Some((_, slot, _)) = held.pop()
            {
                self.forget_ahead(slot);
            }
        }
    }

    /// Forgets the running batch: what is committed is read back.
    pub fn abort(&mut self) -> Result<()> {
        self.version += 1;
        self.flushed = None;
        self.pending.clear();
        if !self.changed {
            self.given_out = self.given_out_before;
            return Ok(());
        }
        let runs = std::mem::take(&mut self.committed);
        self.load(runs.into_iter().map(|run| run.log).collect())?;
        self.changed = false;
        Ok(())
    }

    pub(crate) fn note_change(&mut self, took: bool) {
        self.version += 1;
        self.changed |= took;
        self.unrecorded |= took;
    }

    /// Empties what is in memory, for `load`.
    pub(crate) fn reset(&mut self) {
        let layout = &self.layout;
        self.sessions = Sessions::new(layout.ending(), layout.key_width(), layout.has_expected());
        self.buffer = Buffer::new(self.layout.value_width());
        self.counters.ahead_evicted += self.ahead.len() as u64;
        self.ahead = Ahead::default();
        self.taken.clear();
        self.rows = 0;
        self.given_out = i64::MIN;
        self.unrecorded = false;
    }

    /// Puts a rewritten run in the place of committed ones.
    pub fn replace(&mut self, first: usize, count: usize, log: Arc<LogRun>) -> Result<()> {
        let Some(old) = self.committed.get(first..first + count) else {
            return Err(Error::invalid(format!(
                "there are {} runs, not {count} from {first} on",
                self.committed.len()
            )));
        };
        let mut live = Extent::default();
        for run in old {
            live.entries += run.live.entries;
            live.bytes += run.live.bytes;
        }
        let gone: Vec<u32> = old.iter().map(|run| run.id).collect();
        let id = self.new_run_id();
        self.ahead.moved(&gone, id);
        self.counters.rewritten_bytes += log.length();
        let run = HeldRun::new(id, log, live);
        self.committed.splice(first..first + count, [run]);
        Ok(())
    }

    /// The committed runs, oldest first.
    pub fn runs(&self) -> Vec<Arc<LogRun>> {
        self.committed.iter().map(|r| Arc::clone(&r.log)).collect()
    }

    /// (live bytes, all bytes) of the committed runs, oldest first.
    pub fn run_uses(&self) -> Vec<(u64, u64)> {
        let runs = self.committed.iter();
        runs.map(|run| (run.live_bytes(), run.log.length()))
            .collect()
    }

    pub fn memory_limit(&self) -> usize {
        self.memory_limit
    }

    pub fn memory_bytes(&self) -> usize {
        let runs = self.committed.iter().chain(&self.pending);
        self.sessions.memory_bytes()
            + self.buffer.memory_bytes()
            + self.ahead.memory_bytes()
            + runs
                .map(|run| run.log.memory_bytes() + 8 * run.gone.len() + 4 * run.left.len())
                .sum::<usize>()
    }

    pub fn stats(&self) -> Stats {
        let uses = self.run_uses();
        Stats {
            sessions: self.sessions.len() as u64,
            rows: self.rows,
            memory_bytes: self.memory_bytes() as u64,
            run_bytes: uses.iter().map(|(_, total)| total).sum(),
            live_bytes: uses.iter().map(|(live, _)| live).sum(),
            runs: uses.len() as u64,
            counters: self.counters,
        }
    }
}

/// A column of byte strings, fixed or not.
enum Bytes<'a> {
    Fixed { width: usize, bytes: &'a [u8] },
    Variable { ends: &'a [i32], bytes: &'a [u8] },
}

impl<'a> Bytes<'a> {
    fn of(column: &'a ArrayRef) -> Self {
        match column.data_type() {
            DataType::FixedSizeBinary(width) => Self::Fixed {
                width: *width as usize,
                bytes: column.as_fixed_size_binary().value_data(),
            },
            _ => {
                let column = column.as_binary::<i32>();
                Self::Variable {
                    ends: column.value_offsets(),
                    bytes: column.value_data(),
                }
            }
        }
    }

    #[inline]
    fn row(&self, i: usize) -> &'a [u8] {
        match self {
            Self::Fixed { width, bytes } => &bytes[i * width..(i + 1) * width],
            Self::Variable { ends, bytes } => &bytes[ends[i] as usize..ends[i + 1] as usize],
        }
    }
}
