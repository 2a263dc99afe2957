//! Which rows are the first of their key, and how keys are forgotten.
//!
//! A key is all that is kept of its row. Where its expiry is no part of it, the key lies in one main slice and is
//! noted once more in the slice of timers that its expiry falls into: what is due is found there, and nothing else is
//! looked at. A key is in the main slice exactly as long as it is in a slice of timers.

use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};

use crate::error::Result;
use crate::groups::KeyList;
use crate::layout::{EncodedRows, Layout};
use crate::merge::Merger;
use crate::scan::{ScanSpec, count_reads, sources, tables};
use crate::slice::{Change, Slice};
use crate::spent::Beside;
use crate::store::{STEP_ROWS, Store};
use crate::time::read_expiry;

/// Keys that are deleted at once.
const FORGET_ROWS: usize = 65_536;

impl Store {
    /// Adds the keys that are not there yet and says which rows brought them: of several with one key, the first.
    /// `main`: the slice in which keys are looked for, the rows' own slices being those of their timers.
    pub fn insert(&mut self, batch: &RecordBatch, main: Option<i64>) -> Result<BooleanArray> {
        let layout = Arc::clone(&self.layout);
        let encoded = EncodedRows::new(&layout, batch)?;
        let mut is_new = vec![false; encoded.len()];
        let by_slice = self.by_slice(&encoded)?;
        self.check_takes_rows(by_slice.iter().map(|(slice, _)| *slice).chain(main))?;
        self.version += 1;
        let Some(main) = main else {
            for (slice, order) in by_slice {
                self.insert_into(slice, &encoded, &order, &mut is_new)?;
            }
            return Ok(is_new.into());
        };
        let rows: Vec<u32> = (0..encoded.len() as u32).collect();
        self.insert_into(main, &encoded, &rows, &mut is_new)?;
        for (slice, mut order) in by_slice {
            order.retain(|row| is_new[*row as usize]);
            if slice != main {
                self.change_slice(slice, &encoded, &order, Change::Put)?;
            }
        }
        Ok(is_new.into())
    }

    fn insert_into(
        &mut self,
        slice: i64,
        encoded: &EncodedRows<'_>,
        order: &[u32],
        is_new: &mut [bool],
    ) -> Result<()> {
        for order in order.chunks(STEP_ROWS) {
            self.relieve();
            let shape = self.shape;
            let target = self
                .slices
                .entry(slice)
                .or_insert_with(|| Slice::new(shape));
            target.insert(encoded, order, self.epoch, &mut self.counters, |row| {
                is_new[row] = true;
            })?;
        }
        Ok(())
    }

    /// Deletes from the main slice the keys of a slice of timers that expire at or before the time, and drops the
    /// slice where that is all of them; returns how many. A slice is named by its end.
    pub fn forget(&mut self, slice: i64, main: i64, expired_at: i64) -> Result<u64> {
        let spent = Beside::start();
        let forgotten = self.forget_due(slice, main, expired_at);
        self.counters.removal_ns += spent.ns();
        forgotten
    }

    fn forget_due(&mut self, slice: i64, main: i64, expired_at: i64) -> Result<u64> {
        let Some(timers) = self.visible(slice) else {
            return Ok(0);
        };
        timers.check_flushed_run_was_added(slice)?;
        if let Some(main_slice) = self.visible(main) {
            main_slice.check_flushed_run_was_added(main)?;
        }
        let all = slice <= expired_at;
        let spec = ScanSpec {
            slices: vec![slice],
            touched_only: false,
            expired_at_us: None,
            max_rows: FORGET_ROWS,
        };
        let layout = Arc::clone(&self.layout);
        // Deleting adds entries and marks, it moves none: the sources stay good.
        let mut merger = Merger::new(sources(self, &spec)?);
        self.version += 1;
        let mut forgotten = 0;
        loop {
            let mut keys = KeyList::default();
            let tables = tables(self, &spec);
            while keys.len() < spec.max_rows && merger.next(tables.as_slice())? {
                let newest = merger.at_key().first();
                let row = newest.and_then(|at| merger.source(*at).row(&tables));
                if let Some(row) = row
                    && !row.tombstone
                    && (all || is_due(&layout, row.value, expired_at))
                {
                    keys.push(row.hash, row.key);
                }
            }
            count_reads(self, &mut merger);
            if keys.is_empty() {
                break;
            }
            let order = keys.order();
            if let Some(main) = self.slices.get_mut(&main) {
                main.bury(&keys, &order, self.epoch)?;
            }
            if let Some(timers) = self.slices.get_mut(&slice).filter(|_| !all) {
                timers.bury(&keys, &order, self.epoch)?;
            }
            forgotten += keys.len() as u64;
        }
        if all {
            self.drop_slice(slice);
        }
        Ok(forgotten)
    }
}

/// The value of a key that is noted with its expiry is that expiry, kept as the smallest of one column.
fn is_due(layout: &Layout, value: &[u8], expired_at: i64) -> bool {
    debug_assert_eq!(layout.value_width(), Some(value.len()));
    let expiry = value.get(1..).and_then(read_expiry);
    expiry.is_some_and(|expiry| expiry <= expired_at)
}
