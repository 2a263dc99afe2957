//! Walks a run's rows in order, reading ahead a few blocks at a time.

use std::sync::Arc;
use std::time::Instant;

use crate::error::Result;
use crate::lookup::Counters;
use crate::rows::{HashRange, Row, RowSpan};
use crate::run::Run;

const READ_AHEAD_BYTES: usize = 128 * 1024;

/// Stands on a row of a run, or past the last one in its range of hashes.
pub struct RunCursor {
    run: Arc<Run>,
    range: HashRange,
    next_block: usize,
    bytes: Vec<u8>,
    row: Option<RowSpan>,
    /// What was read since it was last taken.
    reads: Counters,
}

impl RunCursor {
    /// Stands on the first row in the range.
    pub fn open(run: Arc<Run>, range: HashRange) -> Result<Self> {
        let blocks = run.blocks();
        let next_block = blocks
            .partition_point(|block| block.first_hash <= range.first)
            .saturating_sub(1);
        let mut cursor = Self {
            run,
            range,
            next_block,
            bytes: Vec::new(),
            row: None,
            reads: Counters::default(),
        };
        cursor.read_from(0)?;
        while cursor.row.is_some_and(|row| row.hash < range.first) {
            cursor.advance()?;
        }
        Ok(cursor)
    }

    #[inline]
    pub fn hash(&self) -> Option<u64> {
        self.row.as_ref().map(|row| row.hash)
    }

    #[inline]
    pub fn row(&self) -> Option<Row<'_>> {
        self.row.as_ref().map(|row| row.row(&self.bytes))
    }

    #[inline]
    pub fn advance(&mut self) -> Result<()> {
        match self.row {
            Some(row) => self.read_from(row.end),
            None => Ok(()),
        }
    }

    pub fn take_reads(&mut self) -> Counters {
        std::mem::take(&mut self.reads)
    }

    #[inline]
    fn read_from(&mut self, at: usize) -> Result<()> {
        let mut at = at;
        if at >= self.bytes.len() {
            if !self.fill()? {
                self.row = None;
                return Ok(());
            }
            at = 0;
        }
        let row = self.run.read_row(&self.bytes, at)?;
        self.row = (row.hash <= self.range.last).then_some(row);
        Ok(())
    }

    /// Reads the next blocks; false after the last.
    fn fill(&mut self) -> Result<bool> {
        let mut end = self.next_block;
        let mut length = 0;
        while let Some(block) = self.run.blocks().get(end) {
            if block.first_hash > self.range.last
                || (end > self.next_block && length >= READ_AHEAD_BYTES)
            {
                break;
            }
            length += block.length as usize;
            end += 1;
        }
        if end == self.next_block {
            return Ok(false);
        }
        let began = Instant::now();
        self.run
            .read_blocks(self.next_block, end, &mut self.bytes)?;
        self.reads.count_read(end - self.next_block, length, began);
        self.next_block = end;
        Ok(true)
    }
}
