//! Rows of outer sides that have no partner yet and expire next, in memory: the part that the watermark cuts is read
//! once, and not in every batch.

use std::collections::{BTreeMap, HashSet};

/// A row without a partner.
pub struct AloneRow {
    pub expiry: i64,
    pub id: u64,
    pub record: Box<[u8]>,
}

impl AloneRow {
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.record.len()
    }
}

#[derive(Default)]
pub struct Alone {
    /// Of each part that is known: all committed rows that have neither a partner nor expired.
    kept: BTreeMap<i64, Vec<AloneRow>>,
    /// What the running batch adds: its own rows of these parts, and parts that it came to know.
    added: BTreeMap<i64, Vec<AloneRow>>,
    bytes: usize,
}

impl Alone {
    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the part's committed rows are known.
    pub fn holds(&self, part: i64) -> bool {
        self.kept.contains_key(&part)
    }

    /// Whether rows that are written to the part have to be told.
    pub fn follows(&self, part: i64) -> bool {
        self.holds(part) || self.added.contains_key(&part)
    }

    /// The row with this number of a part that is held.
    pub fn get(&self, part: i64, at: usize) -> Option<&AloneRow> {
        let kept = self.kept.get(&part)?;
        match at.checked_sub(kept.len()) {
            None => kept.get(at),
            Some(at) => self.added.get(&part)?.get(at),
        }
    }

    pub fn add(&mut self, part: i64, rows: impl IntoIterator<Item = AloneRow>) {
        self.added.entry(part).or_default().extend(rows);
    }

    pub fn abort(&mut self) {
        self.added = BTreeMap::new();
    }

    /// `marked`: rows for which the batch found a partner; `evicted`: rows that expired at or before it have gone out.
    pub fn commit(
        &mut self,
        marked: &HashSet<u64>,
        evicted: i64,
        limit: usize,
        is_there: impl Fn(i64) -> bool,
    ) {
        for (part, rows) in std::mem::take(&mut self.added) {
            self.kept.entry(part).or_default().extend(rows);
        }
        self.kept.retain(|part, _| is_there(*part));
        for rows in self.kept.values_mut() {
            rows.retain(|row| row.expiry > evicted && !marked.contains(&row.id));
        }
        let bytes = |rows: &Vec<AloneRow>| rows.iter().map(AloneRow::bytes).sum::<usize>();
        self.bytes = self.kept.values().map(bytes).sum();
        while self.bytes > limit
            && let Some((_, rows)) = self.kept.pop_last()
        {
            self.bytes -= bytes(&rows);
        }
    }
}
