//! Windows of so many rows of a key, kept merged.
//!
//! A key's value is that of the window that is not full yet. The first aggregate counts the rows of all the key's windows,
//! so it says both which window it is and how full. A key never goes: its count tells the next window's number.

use std::sync::Arc;

use arrow_array::RecordBatch;

use crate::error::{Error, Result};
use crate::layout::EncodedRows;
use crate::slice::Change;
use crate::store::Store;

/// Groups that are decoded at once.
const BATCH_GROUPS: usize = 65_536;

/// How many rows a window takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    rows: u64,
    /// Length of a value that no row was merged into.
    empty: usize,
}

/// Where the window is full: puts the value with which the next one begins into `next`.
#[inline]
pub fn begin_next(windows: Windows, value: &[u8], next: &mut Vec<u8>) -> bool {
    let Some(count) = value.first_chunk::<8>() else {
        return false;
    };
    if !u64::from_le_bytes(*count).is_multiple_of(windows.rows) {
        return false;
    }
    next.clear();
    next.extend_from_slice(count);
    next.resize(windows.empty, 0);
    true
}

impl Store {
    /// Merges encoded rows, none of which stands for several, in their order into their keys' windows. Returns the
    /// windows that became full, in the output schema.
    pub fn count(&mut self, batch: &RecordBatch, rows: u64) -> Result<Vec<RecordBatch>> {
        let layout = Arc::clone(&self.layout);
        if rows == 0 || layout.time().is_sessions() || !layout.aggregates().begin_with_count() {
            return Err(Error::invalid(
                "windows of rows need a number of them and a count as the first aggregate",
            ));
        }
        let encoded = EncodedRows::new(&layout, batch)?;
        let by_slice = self.by_slice(&encoded)?;
        self.check_takes_rows(by_slice.iter().map(|(slice, _)| *slice))?;
        self.version += 1;
        let windows = Windows {
            rows,
            empty: layout.empty_value().len(),
        };
        let mut full = Vec::new();
        for (slice, order) in by_slice {
            full.append(&mut self.change_slice(slice, &encoded, &order, Change::Count(windows))?);
        }
        full.chunks(BATCH_GROUPS)
            .map(|groups| {
                let keys: Vec<_> = groups
                    .iter()
                    .map(|(row, _)| encoded.key(*row as usize))
                    .collect();
                let values: Vec<_> = groups.iter().map(|(_, value)| value.as_ref()).collect();
                layout.decode(&keys, &values)
            })
            .collect()
    }
}
