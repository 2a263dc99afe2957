//! Looks up a batch of keys in runs: newest first, each block read once, none for keys that the filter rules out.

use std::time::Instant;

use crate::error::Result;
use crate::rows::Row;
use crate::run::Run;
use crate::sort::sort_by_hash;
use crate::spent::Beside;
use crate::table::Keys;

/// Neighbouring blocks are read together up to this size.
const READ_BYTES: usize = 256 * 1024;
const PREFETCH: usize = 16;

/// What reads cost, since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Keys looked up. Of joins, whose keys have rows in many runs: pairs of key and run, without those that a filter
    /// rules out.
    pub gets: u64,
    /// Of these, those found in memory.
    pub memory_hits: u64,
    /// Of joins: those of them in blocks that were read ahead.
    pub ahead_hits: u64,
    /// Pairs of key and run that cost no read.
    pub filter_negatives: u64,
    /// Pairs of key and run that cost a read.
    pub disk_probes: u64,
    pub block_reads: u64,
    /// Reads of the file system: one brings several neighbouring blocks.
    pub read_requests: u64,
    /// What was waited for them.
    pub read_wait_ns: u64,
    /// Pairs of key and run that cost a read and found nothing.
    pub false_positives: u64,
    pub read_bytes: u64,
    /// Time of looking for keys in runs, calls to the file system left out.
    pub lookup_ns: u64,
    /// Likewise of dropping slices and deleting expired groups.
    pub removal_ns: u64,
}

impl Counters {
    /// One read of neighbouring blocks.
    pub fn count_read(&mut self, blocks: usize, bytes: usize, began: Instant) {
        self.read_requests += 1;
        self.read_wait_ns += began.elapsed().as_nanos() as u64;
        self.block_reads += blocks as u64;
        self.read_bytes += bytes as u64;
    }

    /// Adds the reads that `other` counted.
    pub fn add_reads(&mut self, other: &Self) {
        self.read_requests += other.read_requests;
        self.read_wait_ns += other.read_wait_ns;
        self.block_reads += other.block_reads;
        self.read_bytes += other.read_bytes;
    }
}

/// A key to look for: its hash and its number. Every run is asked by hash, which is looked up once.
pub type Wanted = (u64, u32);

/// Keys in the order of runs.
pub fn sorted_like_runs<K: Keys>(keys: &K, rows: &[u32]) -> Vec<Wanted> {
    let items = rows
        .iter()
        .map(|row| (keys.hash(*row as usize), *row))
        .collect();
    let by_key = |a: u32, b: u32| keys.key(a as usize).cmp(keys.key(b as usize));
    sort_by_hash(items, by_key)
}

/// Looks for the keys, sorted as runs are, and hands each row found, tombstones included, to
/// `found` with the number of its key and its run's place in `newest_first`. Returns the nanoseconds that went into runs
/// without the keys, those of the newest left out: what a merge of all runs would have spared.
pub fn find_in_runs<'r, K: Keys>(
    newest_first: impl Iterator<Item = &'r Run>,
    keys: &K,
    mut wanted: Vec<Wanted>,
    counters: &mut Counters,
    mut found: impl FnMut(u32, Row<'_>, usize) -> Result<()>,
) -> Result<u64> {
    let spent = Beside::start();
    let mut vain_ns = 0;
    let mut bytes = Vec::new();
    for (place, run) in newest_first.enumerate() {
        if wanted.is_empty() {
            break;
        }
        let (asked, started) = (wanted.len() as u64, Instant::now());
        let probes = probes_of(run, wanted.len(), |at| wanted[at].0, counters);
        let mut done = vec![false; wanted.len()];
        let mut rest = probes.as_slice();
        while let Some((first, _)) = rest.first() {
            let (now, later) = rest.split_at(together(run, rest));
            let end = now.last().map_or(*first, |(block, _)| *block) + 1;
            let began = Instant::now();
            run.read_blocks(*first, end, &mut bytes)?;
            counters.count_read(end - first, bytes.len(), began);
            counters.disk_probes += now.len() as u64;
            for (block, at) in now {
                let (hash, row) = wanted[*at];
                let key = keys.key(row as usize);
                match run.find_in_block(block_bytes(run, *first, *block, &bytes), hash, key)? {
                    Some(hit) => {
                        done[*at] = true;
                        found(row, hit, place)?;
                    }
                    None => counters.false_positives += 1,
                }
            }
            rest = later;
        }
        let mut done = done.into_iter();
        wanted.retain(|_| done.next() != Some(true));
        if place > 0 {
            vain_ns += started.elapsed().as_nanos() as u64 * wanted.len() as u64 / asked;
        }
    }
    counters.lookup_ns += spent.ns();
    Ok(vain_ns)
}

/// The blocks to read for the keys that the filter lets pass, as (block, number of the key), in order. `hash` gives the
/// hashes of so many keys, which stand in their order.
pub(crate) fn probes_of(
    run: &Run,
    keys: usize,
    hash: impl Fn(usize) -> u64,
    counters: &mut Counters,
) -> Vec<(usize, usize)> {
    let filter = run.filter();
    let mut probes = Vec::new();
    for at in 0..keys {
        if at + PREFETCH < keys {
            filter.prefetch(hash(at + PREFETCH));
        }
        // The filter first: it is one line of memory, where the index is searched.
        let hash = hash(at);
        if filter.may_hold(hash)
            && let Some(block) = run.block_of(hash)
        {
            probes.push((block, at));
        }
    }
    counters.filter_negatives += (keys - probes.len()) as u64;
    probes
}

/// How many of the probes one read can serve: those of neighbouring blocks.
pub(crate) fn together(run: &Run, probes: &[(usize, usize)]) -> usize {
    let mut last = usize::MAX;
    let mut length = 0;
    for (count, (block, _)) in probes.iter().enumerate() {
        if *block != last {
            if count > 0 && (*block != last + 1 || length >= READ_BYTES) {
                return count;
            }
            length += run.blocks()[*block].length as usize;
            last = *block;
        }
    }
    probes.len()
}

pub(crate) fn block_bytes<'a>(run: &Run, first: usize, block: usize, bytes: &'a [u8]) -> &'a [u8] {
    let entry = &run.blocks()[block];
    let at = (entry.offset - run.blocks()[first].offset) as usize;
    &bytes[at..at + entry.length as usize]
}
