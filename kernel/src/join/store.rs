//! The store of one join in one shard. One writer; what it takes in belongs to the running batch until `commit` or
//! `abort`. A batch is taken in, then fired, then flushed; it may be flushed while it is taken in as well.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt64Type};

use crate::cursor::RunCursor;
use crate::error::{Error, Result};
use crate::join::alone::Alone;
use crate::join::chunk::Chunk;
use crate::join::expiry::{Expiring, Expiry, alone_row};
use crate::join::held::{Ahead, HeldRun, Missing};
use crate::join::layout::{JoinLayout, LEFT, RIGHT};
use crate::join::matching::{Kept, Matched, STEP_ROWS, Step};
use crate::join::memory::{Asked, Shares};
use crate::join::part::{Part, end_of, side_of};
use crate::join::record;
use crate::lookup::Counters;
use crate::merge::check_fits;
use crate::pack::PackWriter;
use crate::rows::HashRange;
use crate::run::Run;
use crate::run_writer::RunExtent;
use crate::store::Stats;

pub struct JoinStore {
    layout: Arc<JoinLayout>,
    range: HashRange,
    memory_limit: usize,
    parts: BTreeMap<i64, Part>,
    /// What came since the last flush.
    chunk: Chunk,
    /// Chunks of the running batch that were flushed.
    flushed_chunks: usize,
    /// Rows kept before for which the running batch found a partner.
    marks: Chunk,
    marked: HashSet<u64>,
    next_id: u64,
    /// Rows that expired at or before it have gone out or were dropped.
    evicted: i64,
    evicting: Option<i64>,
    firing: Option<Firing>,
    counters: Counters,
    /// Keys looked up on each side since the memory was last shared out.
    wanted: [u64; 2],
    asked: [Asked; 2],
    /// Blocks that were read ahead.
    read_ahead: u64,
    alone: Alone,
    /// Rows of a chunk whose keys are looked up together next.
    step_rows: usize,
}

/// The share of the memory that may be taken by kept rows while their partners are joined with them, and at least so many
/// bytes.
const STEP_SHARE: usize = 8;
const LEAST_STEP_BYTES: usize = 1 << 20;
/// The share of the memory that may be taken by rows that expire next.
const ALONE_SHARE: usize = 8;

struct Firing {
    before: i64,
    phase: Phase,
}

impl Firing {
    /// What is held of chunks that were flushed and of kept rows.
    fn memory_bytes(&self) -> usize {
        match &self.phase {
            Phase::Joining { loaded, step, .. } => {
                loaded.as_ref().map_or(0, Chunk::memory_bytes)
                    + step.as_ref().map_or(0, Step::memory_bytes)
            }
            Phase::Expiring(_) | Phase::Done => 0,
        }
    }
}

enum Phase {
    /// The chunk with this number; `None` stands for the one that has not been flushed.
    Joining {
        number: usize,
        loaded: Option<Chunk>,
        at: usize,
        step: Option<Step>,
    },
    Expiring(Expiry),
    Done,
}

impl JoinStore {
    pub fn new(
        layout: Arc<JoinLayout>,
        first_bucket: u32,
        end_bucket: u32,
        memory_limit: usize,
    ) -> Result<Self> {
        Ok(Self {
            layout,
            range: HashRange::of_buckets(first_bucket, end_bucket)?,
            memory_limit,
            parts: BTreeMap::new(),
            chunk: Chunk::default(),
            flushed_chunks: 0,
            marks: Chunk::default(),
            marked: HashSet::new(),
            // Rows are told apart within their key only, by numbers that no earlier process gave.
            next_id: RandomState::new().build_hasher().finish(),
            evicted: i64::MIN,
            evicting: None,
            firing: None,
            counters: Counters::default(),
            wanted: [0, 0],
            asked: [Asked::default(), Asked::default()],
            read_ahead: 0,
            alone: Alone::default(),
            step_rows: STEP_ROWS,
        })
    }

    /// `evicted`: see [`JoinStore::evicted`].
    pub fn restore(&mut self, part: i64, rows: u64, runs: Vec<Arc<Run>>) -> Result<()> {
        for run in &runs {
            check_fits(run, self.layout.shape, self.layout.fingerprint)?;
        }
        match self.parts.insert(part, Part::restored(rows, runs)) {
            Some(_) => Err(Error::Invalid(format!("part {part} is there already"))),
            None => Ok(()),
        }
    }

    pub fn restore_evicted(&mut self, evicted: i64) {
        self.evicted = evicted;
    }

    /// The watermark at which rows were last let go, as the running batch leaves it.
    pub fn evicted(&self) -> i64 {
        self.evicting.unwrap_or(self.evicted)
    }

    /// Takes in encoded rows.
    pub fn apply(&mut self, batch: &RecordBatch) -> Result<()> {
        if self.firing.is_some() {
            return Err(Error::invalid("the batch was fired and takes no more rows"));
        }
        self.check_flushed()?;
        if batch.schema().fields() != self.layout.encoded_schema().fields() {
            return Err(Error::invalid("rows that no sorter of this join encoded"));
        }
        let hashes = batch.column(0).as_primitive::<UInt64Type>();
        let parts = batch.column(1).as_primitive::<Int64Type>();
        let keys = batch.column(2).as_binary::<i32>();
        let values = batch.column(3).as_binary::<i32>();
        let mut current: Option<(i64, u64)> = None;
        for row in 0..batch.num_rows() {
            let (hash, at, value) = (hashes.value(row), parts.value(row), values.value(row));
            let head = self.layout.sides[side_of(at)].head;
            if !self.range.holds(hash) || value.len() < head.bytes() {
                return Err(Error::invalid("a row that does not belong to this shard"));
            }
            let record = self.chunk.push(hash, at, keys.value(row), value)?;
            if head.has_id {
                head.set_id(record, self.next_id);
                self.next_id = self.next_id.wrapping_add(1);
            }
            current = match current {
                Some((part, rows)) if part == at => Some((part, rows + 1)),
                other => {
                    self.count(other);
                    Some((at, 1))
                }
            };
        }
        self.count(current);
        Ok(())
    }

    fn count(&mut self, added: Option<(i64, u64)>) {
        if let Some((at, rows)) = added {
            self.parts.entry(at).or_default().rows += rows;
        }
    }

    fn check_flushed(&self) -> Result<()> {
        let mut parts = self.parts.iter();
        parts.try_for_each(|(at, part)| part.check_flushed_run_was_added(*at))
    }

    /// Begins to give out what the batch leads to: pairs, then what expires at `before` without a partner.
    pub fn begin_fire(&mut self, before: i64) -> Result<()> {
        self.check_flushed()?;
        if self.firing.is_some() {
            return Err(Error::invalid("the batch was fired before"));
        }
        self.firing = Some(Firing {
            before,
            phase: Phase::Joining {
                number: 0,
                loaded: None,
                at: 0,
                step: None,
            },
        });
        Ok(())
    }

    /// The next rows in the output schema; after the last, `None`.
    pub fn next_output(&mut self) -> Result<Option<RecordBatch>> {
        let Some(mut firing) = self.firing.take() else {
            return Err(Error::invalid("the batch is not being fired"));
        };
        let batch = self.advance(&mut firing);
        self.firing = Some(firing);
        batch
    }

    fn advance(&mut self, firing: &mut Firing) -> Result<Option<RecordBatch>> {
        loop {
            match &mut firing.phase {
                Phase::Joining {
                    number,
                    loaded,
                    at,
                    step,
                } => {
                    let is_last = *number >= self.flushed_chunks;
                    if *at == 0 && step.is_none() && loaded.is_none() {
                        match is_last {
                            true => self.chunk.sort(),
                            false => *loaded = Some(self.load(*number)?),
                        }
                    }
                    if let Some(batch) = self.join(*number, loaded.as_ref(), at, step)? {
                        return Ok(Some(batch));
                    }
                    if is_last {
                        self.chunk.append(std::mem::take(&mut self.marks));
                        let expiry = Expiry::new(
                            &self.layout,
                            self.parts.iter(),
                            self.range,
                            firing.before,
                            self.evicted,
                        );
                        firing.phase = Phase::Expiring(expiry);
                    } else {
                        (*number, *loaded, *at, *step) = (*number + 1, None, 0, None);
                    }
                }
                Phase::Expiring(expiry) => {
                    let mut from = Expiring {
                        parts: &self.parts,
                        chunk: &self.chunk,
                        marked: &self.marked,
                        alone: &mut self.alone,
                        room: self.memory_limit / ALONE_SHARE,
                        counters: &mut self.counters,
                    };
                    if let Some(batch) = expiry.next(&self.layout, &mut from)? {
                        return Ok(Some(batch));
                    }
                    self.let_go(firing.before);
                    firing.phase = Phase::Done;
                }
                Phase::Done => return Ok(None),
            }
        }
    }

    /// The next pairs of a chunk; `None` after the last.
    fn join(
        &mut self,
        number: usize,
        loaded: Option<&Chunk>,
        at: &mut usize,
        step: &mut Option<Step>,
    ) -> Result<Option<RecordBatch>> {
        let layout = Arc::clone(&self.layout);
        loop {
            let chunk = loaded.unwrap_or(&self.chunk);
            let Some(running) = step else {
                if *at >= chunk.len() {
                    return Ok(None);
                }
                let mut kept = Kept {
                    parts: &mut self.parts,
                    evicted: self.evicted,
                    chunk: number,
                    marked: &self.marked,
                    room: (self.memory_limit / STEP_SHARE).max(LEAST_STEP_BYTES),
                    counters: &mut self.counters,
                };
                let begun = Step::begin(&layout, chunk, *at, self.step_rows, &mut kept)?;
                // Keys that had no room were looked up in vain: the next step asks for few more than had some.
                let fitting = match begun.is_cut {
                    true => begun.end - *at,
                    false => self.step_rows,
                };
                self.step_rows = (2 * fitting).min(STEP_ROWS);
                for side in [LEFT, RIGHT] {
                    self.wanted[side] += begun.looked_up[side];
                    self.asked[side].add(begun.asked[side]);
                }
                *step = Some(begun);
                continue;
            };
            let mut matched = Matched::default();
            let batch = running.next(&layout, chunk, &mut matched)?;
            for (same_key, part, id) in matched.old {
                if self.marked.insert(id) {
                    let (hash, key) = (chunk.rows()[same_key].hash, chunk.key(same_key));
                    self.marks.push(hash, part, key, &record::mark(id))?;
                }
            }
            for row in matched.new {
                let Some(chunk) = loaded else {
                    self.chunk.set_matched(row);
                    continue;
                };
                // It is in a run already.
                let at = chunk.rows()[row];
                let head = layout.sides[side_of(at.part)].head;
                if let Some(id) = head.id(chunk.record(row))
                    && self.marked.insert(id)
                {
                    self.marks
                        .push(at.hash, at.part, chunk.key(row), &record::mark(id))?;
                }
            }
            if batch.is_some() {
                return Ok(batch);
            }
            *at = running.end;
            *step = None;
        }
    }

    /// The rows of a chunk of the running batch that was flushed.
    fn load(&self, number: usize) -> Result<Chunk> {
        let mut chunk = Chunk::default();
        for (at, part) in &self.parts {
            let head = self.layout.sides[side_of(*at)].head;
            for (_, held) in part.pending.iter().filter(|(of, _)| *of == number) {
                let mut cursor = RunCursor::open(held.run()?, self.range)?;
                while let Some(row) = cursor.row() {
                    let mut pushed = Ok(());
                    record::walk_list(row.value, head, |place| {
                        let record = &row.value[place];
                        if pushed.is_ok() {
                            pushed = chunk.push(row.hash, *at, row.key, record).map(|_| ());
                        }
                    })?;
                    pushed?;
                    cursor.advance()?;
                }
            }
        }
        chunk.sort();
        Ok(chunk)
    }

    /// Drops the parts whose time has passed.
    fn let_go(&mut self, before: i64) {
        for (at, part) in &mut self.parts {
            part.is_dropped |= end_of(*at) <= before;
        }
        self.evicting = Some(self.evicted.max(before));
    }

    /// (part, rows in it), dropped ones left out.
    pub fn parts(&self) -> Vec<(i64, u64)> {
        let visible = self.parts.iter().filter(|(_, part)| !part.is_dropped);
        visible.map(|(at, part)| (*at, part.rows)).collect()
    }

    pub fn dirty_bytes(&self) -> u64 {
        match self.chunk.is_empty() && self.marks.is_empty() {
            true => 0,
            false => self.chunk.dirty_bytes() + self.marks.dirty_bytes(),
        }
    }

    /// Writes what came since the last flush, one run per part.
    pub fn flush(&mut self, writer: &mut PackWriter) -> Result<Vec<(i64, RunExtent)>> {
        self.check_flushed()?;
        self.chunk.sort();
        let mut by_part: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
        for (at, row) in (0u32..).zip(self.chunk.rows()) {
            by_part.entry(row.part).or_default().push(at);
        }
        let (shape, fingerprint) = (self.layout.shape, self.layout.fingerprint);
        let mut written = Vec::new();
        for (at, order) in &by_part {
            if self.parts.get(at).is_some_and(|part| !part.is_dropped) {
                let extent = self.chunk.write(order, shape, fingerprint, writer)?;
                written.push((*at, extent));
            }
        }
        // Only now, when all is written: after an error everything is still to be flushed.
        for (at, extent) in &written {
            if let Some(part) = self.parts.get_mut(at) {
                part.flushed = Some((self.flushed_chunks, *extent));
            }
        }
        self.tell_alone(&by_part);
        self.chunk = Chunk::default();
        self.flushed_chunks += 1;
        Ok(written)
    }

    /// Rows that were written to parts of which the waiting rows are in memory.
    fn tell_alone(&mut self, by_part: &BTreeMap<i64, Vec<u32>>) {
        let followed = by_part.iter().filter(|(at, _)| self.alone.follows(**at));
        let mut told = Vec::new();
        for (at, order) in followed {
            let head = self.layout.sides[side_of(*at)].head;
            let records = order.iter().map(|row| self.chunk.record(*row as usize));
            let alone =
                records.filter(|r| record::flags(r) & (record::MARK | record::MATCHED) == 0);
            told.push((
                *at,
                alone.filter_map(|r| alone_row(head, r)).collect::<Vec<_>>(),
            ));
        }
        for (at, rows) in told {
            self.alone.add(at, rows);
        }
    }

    pub fn add_pending(&mut self, part: i64, run: Arc<Run>) -> Result<()> {
        check_fits(&run, self.layout.shape, self.layout.fingerprint)?;
        let target = self.parts.get_mut(&part).ok_or_else(|| no_part(part))?;
        target.add_pending(part, run)
    }

    pub fn commit(&mut self) -> Result<()> {
        self.check_flushed()?;
        let unwritten = self.chunk.rows().iter().any(|row| {
            let part = self.parts.get(&row.part);
            part.is_some_and(|part| !part.is_dropped)
        });
        if unwritten {
            return Err(Error::invalid("unwritten rows; flush before the commit"));
        }
        self.parts.retain(|_, part| !part.is_dropped);
        self.parts.values_mut().for_each(Part::commit);
        self.parts
            .retain(|_, part| part.rows > 0 || !part.runs.is_empty());
        self.evicted = self.evicted();
        self.asked.iter_mut().for_each(Asked::commit);
        let limit = self.memory_limit / ALONE_SHARE;
        let parts = &self.parts;
        self.alone.commit(&self.marked, self.evicted, limit, |at| {
            parts.contains_key(&at)
        });
        self.forget_batch();
        let shares = Shares {
            limit: self.memory_limit.saturating_sub(self.alone.memory_bytes()),
            slice_us: self.layout.slice_us,
            wanted: self.wanted,
            expected: [LEFT, RIGHT].map(|side| self.asked[side].expected()),
        };
        // What was wanted long ago counts less and less.
        self.wanted = self.wanted.map(|wanted| wanted / 2);
        shares.share_out(&mut self.parts, &mut self.counters)
    }

    pub fn abort(&mut self) {
        self.parts.retain(|_, part| part.abort());
        self.forget_batch();
    }

    fn forget_batch(&mut self) {
        self.chunk = Chunk::default();
        self.marks = Chunk::default();
        self.marked = HashSet::new();
        self.flushed_chunks = 0;
        self.firing = None;
        self.evicting = None;
        self.asked.iter_mut().for_each(Asked::forget_batch);
        self.alone.abort();
    }

    pub fn replace(
        &mut self,
        part: i64,
        first: usize,
        count: usize,
        run: Arc<Run>,
    ) -> Result<bool> {
        check_fits(&run, self.layout.shape, self.layout.fingerprint)?;
        let Some(target) = self.parts.get_mut(&part) else {
            return Ok(false);
        };
        target.replace(first, count, run)?;
        Ok(true)
    }

    /// The committed runs, oldest first.
    pub fn runs(&self, part: i64) -> Result<Vec<Arc<Run>>> {
        let part = self.parts.get(&part).ok_or_else(|| no_part(part))?;
        part.runs.iter().map(HeldRun::run).collect()
    }

    pub fn run_bytes(&self, part: i64) -> u64 {
        self.parts.get(&part).map_or(0, Part::run_bytes)
    }

    /// Blocks that were read ahead, since the store was opened.
    pub fn blocks_read_ahead(&self) -> u64 {
        self.read_ahead
    }

    pub fn stats(&self) -> Stats {
        let parts = || self.parts.values().filter(|part| !part.is_dropped);
        let run_bytes = parts().map(Part::run_bytes).sum();
        let held: usize = self.parts.values().map(Part::memory_bytes).sum();
        Stats {
            rows: parts().map(|part| part.rows).sum(),
            memory_bytes: (held
                + self.chunk.memory_bytes()
                + self.alone.memory_bytes()
                + self.firing.as_ref().map_or(0, Firing::memory_bytes))
                as u64,
            run_bytes,
            live_bytes: run_bytes,
            runs: parts().map(|part| part.runs.len() as u64).sum(),
            counters: self.counters,
        }
    }

    /// The next blocks that should be in memory and are not, and their part.
    pub fn missing(&self) -> Option<(i64, Missing)> {
        let mut parts = self.parts.iter();
        parts.find_map(|(at, part)| Some((*at, part.runs.iter().find_map(HeldRun::missing)?)))
    }

    pub fn put_ahead(&mut self, part: i64, ahead: Ahead) {
        let runs = self.parts.get_mut(&part).map(|part| part.runs.iter_mut());
        let held = runs.and_then(|mut runs| runs.find(|held| held.is_of(&ahead)));
        if let Some(held) = held {
            let (blocks, bytes) = held.put(ahead, true);
            self.counters.read_requests += 1;
            self.counters.block_reads += blocks as u64;
            self.counters.read_bytes += bytes as u64;
            self.read_ahead += blocks as u64;
        }
    }
}

fn no_part(part: i64) -> Error {
    Error::Invalid(format!("there is no part {part}"))
}
