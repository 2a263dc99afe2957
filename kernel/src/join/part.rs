//! Parts: the rows of one side that expire within one interval of time.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::join::held::HeldRun;
use crate::join::layout::Span;
use crate::join::record::{AT_ONCE, NEVER};
use crate::run::Run;
use crate::run_writer::RunExtent;

/// Past this, expiry does not count: about 70,000 years.
const LAST_END: i64 = i64::MAX / 4;

/// The part of a side that holds rows of this expiry. Its number is twice the end of its interval, plus the side.
pub fn part_of(side: usize, expiry: i64, slice_us: i64) -> i64 {
    if expiry == AT_ONCE {
        return AT_ONCE + side as i64;
    }
    let start = expiry.saturating_sub(1).div_euclid(slice_us);
    match start.checked_add(1).and_then(|n| n.checked_mul(slice_us)) {
        Some(end) if expiry < LAST_END && end < LAST_END && end > -LAST_END => {
            end * 2 + side as i64
        }
        _ => NEVER - 1 + side as i64,
    }
}

pub fn side_of(part: i64) -> usize {
    (part & 1) as usize
}

/// The last expiry in the part.
pub fn end_of(part: i64) -> i64 {
    match part >= NEVER - 1 {
        true => NEVER,
        false => part >> 1,
    }
}

/// When the rows of the part expire; those that stay, at any time.
pub fn span_of(part: i64, slice_us: i64) -> Span {
    match end_of(part) {
        NEVER => Span::ALL,
        end => Span {
            first: end.saturating_sub(slice_us).saturating_add(1),
            last: end,
        },
    }
}

#[derive(Default)]
pub struct Part {
    /// Committed, oldest first.
    pub runs: Vec<HeldRun>,
    /// Of the running batch, oldest first, with the numbers of the chunks that they hold.
    pub pending: Vec<(usize, HeldRun)>,
    /// Written by a flush and not yet handed back as a pending run.
    pub flushed: Option<(usize, RunExtent)>,
    pub rows: u64,
    pub committed_rows: u64,
    pub is_committed: bool,
    pub is_dropped: bool,
}

impl Part {
    pub fn restored(rows: u64, runs: Vec<Arc<Run>>) -> Self {
        Self {
            runs: runs.into_iter().map(HeldRun::new).collect(),
            rows,
            committed_rows: rows,
            is_committed: true,
            ..Self::default()
        }
    }

    pub fn check_flushed_run_was_added(&self, part: i64) -> Result<()> {
        match self.flushed {
            Some(_) if !self.is_dropped => Err(Error::Invalid(format!(
                "part {part} was flushed; hand its run back with add_pending first"
            ))),
            _ => Ok(()),
        }
    }

    pub fn add_pending(&mut self, part: i64, run: Arc<Run>) -> Result<()> {
        match self.flushed {
            Some((chunk, extent)) if extent.length == run.length() && extent.rows == run.rows() => {
                self.flushed = None;
                self.pending.push((chunk, HeldRun::just_written(run)));
                Ok(())
            }
            _ => Err(Error::Invalid(format!(
                "{} is not the run that part {part} was last flushed to",
                run.name()
            ))),
        }
    }

    /// The runs that are older than a chunk of the running batch.
    pub fn older_than(&mut self, chunk: usize) -> impl Iterator<Item = &mut HeldRun> {
        let pending = self.pending.iter_mut();
        let before = pending.filter(move |(at, _)| *at < chunk);
        self.runs.iter_mut().chain(before.map(|(_, run)| run))
    }

    pub fn commit(&mut self) {
        self.runs.extend(self.pending.drain(..).map(|(_, run)| run));
        self.committed_rows = self.rows;
        self.is_committed = true;
    }

    /// Forgets the running batch; false if the part was its work altogether.
    pub fn abort(&mut self) -> bool {
        self.pending.clear();
        self.flushed = None;
        self.is_dropped = false;
        self.rows = self.committed_rows;
        self.is_committed
    }

    pub fn replace(&mut self, first: usize, count: usize, run: Arc<Run>) -> Result<()> {
        let end = first
            .checked_add(count)
            .filter(|end| count > 0 && *end <= self.runs.len())
            .ok_or_else(|| Error::invalid("runs to replace that are not there"))?;
        self.runs.splice(first..end, [HeldRun::new(run)]);
        Ok(())
    }

    pub fn run_bytes(&self) -> u64 {
        self.runs.iter().map(HeldRun::length).sum()
    }

    pub fn memory_bytes(&self) -> usize {
        let pending = self.pending.iter().map(|(_, run)| run);
        self.runs
            .iter()
            .chain(pending)
            .map(HeldRun::memory_bytes)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_ends_where_its_number_says_and_holds_its_side() {
        let ends = [
            (1, 10),
            (10, 10),
            (11, 20),
            (0, 0),
            (-1, 0),
            (-10, -10),
            (-11, -10),
        ];
        for side in [0, 1] {
            for (expiry, end) in ends {
                let part = part_of(side, expiry, 10);
                assert_eq!((end_of(part), side_of(part)), (end, side), "{expiry}");
                let span = span_of(part, 10);
                assert!(span.first <= expiry && expiry <= span.last, "{expiry}");
            }
            let never = part_of(side, NEVER, 10);
            assert_eq!((end_of(never), side_of(never)), (NEVER, side));
            let at_once = part_of(side, AT_ONCE, 10);
            assert_eq!(side_of(at_once), side);
            assert!(end_of(at_once) < -LAST_END);
        }
    }
}
