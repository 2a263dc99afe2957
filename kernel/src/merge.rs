//! Merging sorted sources by hash and key: the heart of scans over runs and of compaction.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::cursor::RunCursor;
use crate::error::{Error, Result};
use crate::pack::PackWriter;
use crate::rows::{HashRange, RowShape};
use crate::run::Run;
use crate::run_writer::{RunExtent, RunWriter};

/// Something sorted by hash, then key. `C` is what a source needs to look at for its rows: it may not own them.
pub trait Source<C: ?Sized> {
    fn hash(&self) -> Option<u64>;
    fn key<'a>(&'a self, context: &'a C) -> &'a [u8];
    fn advance(&mut self) -> Result<()>;
}

impl Source<()> for RunCursor {
    #[inline]
    fn hash(&self) -> Option<u64> {
        self.hash()
    }
    #[inline]
    fn key<'a>(&'a self, (): &'a ()) -> &'a [u8] {
        self.row().map_or(&[], |row| row.key)
    }
    #[inline]
    fn advance(&mut self) -> Result<()> {
        self.advance()
    }
}

/// Steps through the distinct keys of several sources.
pub struct Merger<S> {
    sources: Vec<S>,
    /// Sources by their next hash; those in `at_hash` and `at_key` are not in it.
    waiting: BinaryHeap<Reverse<(u64, u32)>>,
    /// Sources that stand on the current hash with a later key: only where hashes collide.
    at_hash: Vec<u32>,
    at_key: Vec<u32>,
    hash: u64,
}

impl<S> Merger<S> {
    /// The order of the sources is the order in which `at_key` names them.
    pub fn new<C: ?Sized>(sources: Vec<S>) -> Self
    where
        S: Source<C>,
    {
        let waiting = sources
            .iter()
            .zip(0u32..)
            .filter_map(|(source, at)| Some(Reverse((source.hash()?, at))))
            .collect();
        Self {
            sources,
            waiting,
            at_hash: Vec::new(),
            at_key: Vec::new(),
            hash: 0,
        }
    }

    pub fn sources_mut(&mut self) -> &mut [S] {
        &mut self.sources
    }

    #[inline]
    pub fn source(&self, at: u32) -> &S {
        &self.sources[at as usize]
    }

    /// The sources that stand on the current key, in order.
    #[inline]
    pub fn at_key(&self) -> &[u32] {
        &self.at_key
    }

    /// Moves on to the next key; false when there is none.
    pub fn next<C: ?Sized>(&mut self, context: &C) -> Result<bool>
    where
        S: Source<C>,
    {
        if let [only] = self.at_key[..]
            && self.at_hash.is_empty()
        {
            // The usual case: one source has several keys in a row.
            let source = &mut self.sources[only as usize];
            source.advance()?;
            let next = source.hash();
            if let Some(hash) = next
                && self
                    .waiting
                    .peek()
                    .is_none_or(|Reverse((other, _))| hash < *other)
            {
                self.hash = hash;
                return Ok(true);
            }
            self.at_key.clear();
            if let Some(hash) = next {
                self.waiting.push(Reverse((hash, only)));
            }
        } else {
            while let Some(at) = self.at_key.pop() {
                let source = &mut self.sources[at as usize];
                source.advance()?;
                match source.hash() {
                    Some(hash) if hash == self.hash => self.at_hash.push(at),
                    Some(hash) => self.waiting.push(Reverse((hash, at))),
                    None => {}
                }
            }
        }
        if self.at_hash.is_empty() {
            let Some(Reverse((hash, at))) = self.waiting.pop() else {
                return Ok(false);
            };
            self.hash = hash;
            self.at_hash.push(at);
            while let Some(Reverse((hash, at))) = self.waiting.peek().copied()
                && hash == self.hash
            {
                self.waiting.pop();
                self.at_hash.push(at);
            }
        }
        self.take_smallest_key(context);
        Ok(true)
    }

    /// Moves the sources with the smallest key from `at_hash` to `at_key`.
    fn take_smallest_key<C: ?Sized>(&mut self, context: &C)
    where
        S: Source<C>,
    {
        let Self {
            sources,
            at_hash,
            at_key,
            ..
        } = self;
        if let [only] = at_hash[..] {
            at_hash.clear();
            at_key.push(only);
            return;
        }
        at_hash.sort_unstable();
        let key = |at: u32| sources[at as usize].key(context);
        let Some(smallest) = at_hash.iter().map(|at| key(*at)).min() else {
            return;
        };
        at_hash.retain(|at| {
            let is_smallest = key(*at) == smallest;
            if is_smallest {
                at_key.push(*at);
            }
            !is_smallest
        });
    }
}

/// Merges runs, oldest first, into one; the newest row of a key wins. `whole`: nothing older exists, so that deleted
/// keys need no mark.
pub fn merge_runs(
    shape: RowShape,
    fingerprint: u64,
    runs: &[Arc<Run>],
    writer: &mut PackWriter,
    range: HashRange,
    whole: bool,
) -> Result<RunExtent> {
    for run in runs {
        check_fits(run, shape, fingerprint)?;
    }
    let max_rows = runs.iter().map(|run| run.rows_within(range)).sum();
    let cursors = runs
        .iter()
        .rev()
        .map(|run| RunCursor::open(Arc::clone(run), range))
        .collect::<Result<Vec<_>>>()?;
    let mut merger = Merger::new(cursors);
    let mut out = RunWriter::begin(writer, shape, fingerprint, max_rows)?;
    while merger.next(&())? {
        if let Some(newest) = merger.at_key().first()
            && let Some(row) = merger.source(*newest).row()
            && !(whole && row.tombstone)
        {
            out.push(row)?;
        }
    }
    out.finish()
}

/// Runs of another layout would be read as nonsense.
pub fn check_fits(run: &Run, shape: RowShape, fingerprint: u64) -> Result<()> {
    if run.shape() != shape || run.fingerprint() != fingerprint {
        let what = format!("{} was opened with another layout", run.name());
        return Err(Error::Invalid(what));
    }
    Ok(())
}
