//! Reads the groups of slices, a batch at a time: those of one key merged over the slices.
//!
//! A scan holds no borrow of its store. It is handed the store for each batch and refuses one that changed meanwhile.

use std::sync::Arc;

use arrow_array::RecordBatch;

use crate::cursor::RunCursor;
use crate::error::{Error, Result};
use crate::groups::{KeyList, Values, decode_present};
use crate::layout::Layout;
use crate::merge::{Merger, Source};
use crate::rows::Row;
use crate::run::Run;
use crate::spent::Beside;
use crate::store::Store;
use crate::table::Table;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanSpec {
    /// In the order in which the groups of one key are merged.
    pub slices: Vec<i64>,
    /// Only keys that the running batch changed in one of the slices.
    pub touched_only: bool,
    /// Only groups that expire at or before this time.
    pub expired_at_us: Option<i64>,
    pub max_rows: usize,
}

pub struct Scan {
    spec: ScanSpec,
    version: u64,
    walk: Walk,
}

enum Walk {
    /// One slice, all that is asked for in memory: its entries as they lie.
    Memory {
        next: usize,
    },
    /// The groups are in the sources.
    Groups(Merger<ScanSource>),
    /// The sources say which keys; their groups are looked up.
    Keys(Merger<ScanSource>),
    Done,
}

/// A sorted source of one of the scanned slices.
pub(crate) enum ScanSource {
    Memory {
        place: usize,
        entries: Vec<(u64, u32)>,
        next: usize,
    },
    Run {
        place: usize,
        cursor: RunCursor,
    },
}

impl ScanSource {
    /// Which of the scanned slices it belongs to.
    fn place(&self) -> usize {
        match self {
            Self::Memory { place, .. } | Self::Run { place, .. } => *place,
        }
    }

    pub(crate) fn row<'a>(&'a self, tables: &'a [Option<&Table>]) -> Option<Row<'a>> {
        match self {
            Self::Memory {
                place,
                entries,
                next,
            } => {
                let (_, id) = entries.get(*next)?;
                Some((*tables.get(*place)?)?.row(*id))
            }
            Self::Run { cursor, .. } => cursor.row(),
        }
    }
}

impl Source<[Option<&Table>]> for ScanSource {
    fn hash(&self) -> Option<u64> {
        match self {
            Self::Memory { entries, next, .. } => entries.get(*next).map(|(hash, _)| *hash),
            Self::Run { cursor, .. } => cursor.hash(),
        }
    }

    fn key<'a>(&'a self, tables: &'a [Option<&Table>]) -> &'a [u8] {
        self.row(tables).map_or(&[], |row| row.key)
    }

    fn advance(&mut self) -> Result<()> {
        match self {
            Self::Memory { next, .. } => {
                *next += 1;
                Ok(())
            }
            Self::Run { cursor, .. } => cursor.advance(),
        }
    }
}

impl Scan {
    pub fn begin(store: &Store, spec: ScanSpec) -> Result<Self> {
        if spec.max_rows == 0 {
            return Err(Error::invalid("max_rows must be at least 1"));
        }
        let mut places = spec.slices.clone();
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid("a slice is named twice in one scan"));
        }
        let walk = match spec.slices[..] {
            [] => Walk::Done,
            [only] => match store.visible(only) {
                None => Walk::Done,
                Some(slice) if spec.touched_only && slice.pending().is_empty() => {
                    Walk::Memory { next: 0 }
                }
                Some(slice) if !spec.touched_only && slice.is_complete() => {
                    Walk::Memory { next: 0 }
                }
                Some(_) => Walk::Groups(Merger::new(sources(store, &spec)?)),
            },
            _ if spec.touched_only => Walk::Keys(Merger::new(sources(store, &spec)?)),
            _ => Walk::Groups(Merger::new(sources(store, &spec)?)),
        };
        Ok(Self {
            spec,
            version: store.version,
            walk,
        })
    }

    /// The next groups in the output schema; `None` after the last.
    pub fn next(&mut self, store: &mut Store) -> Result<Option<RecordBatch>> {
        if store.version != self.version {
            return Err(Error::invalid(
                "the store changed during a scan; begin the scan again",
            ));
        }
        let layout = Arc::clone(store.layout());
        let batch = match &mut self.walk {
            Walk::Done => None,
            Walk::Memory { next } => next_in_memory(store, &layout, &self.spec, next)?,
            Walk::Groups(merger) => next_groups(store, &layout, &self.spec, merger)?,
            Walk::Keys(merger) => next_of_keys(store, &layout, &self.spec, merger)?,
        };
        match &mut self.walk {
            Walk::Groups(merger) | Walk::Keys(merger) => count_reads(store, merger),
            Walk::Memory { .. } | Walk::Done => {}
        }
        if batch.is_none() {
            self.walk = Walk::Done;
        }
        Ok(batch)
    }
}

pub(crate) fn count_reads(store: &mut Store, merger: &mut Merger<ScanSource>) {
    for source in merger.sources_mut() {
        if let ScanSource::Run { cursor, .. } = source {
            store.counters.add_reads(&cursor.take_reads());
        }
    }
}

/// All sorted sources of the slices; of one slice the newest first.
pub(crate) fn sources(store: &Store, spec: &ScanSpec) -> Result<Vec<ScanSource>> {
    let mut sources = Vec::new();
    for (place, slice) in spec.slices.iter().enumerate() {
        let Some(slice) = store.visible(*slice) else {
            continue;
        };
        let table = slice.table();
        let entries = match spec.touched_only {
            true => table.sorted(table.touched().iter().copied()),
            false => table.sorted(0..table.len() as u32),
        };
        sources.push(ScanSource::Memory {
            place,
            entries,
            next: 0,
        });
        let needs_runs = spec.touched_only || !slice.is_complete();
        let committed: &[Arc<Run>] = if spec.touched_only { &[] } else { slice.runs() };
        let newest_first = slice.pending().iter().rev().chain(committed.iter().rev());
        for run in newest_first.filter(|_| needs_runs) {
            let cursor = RunCursor::open(Arc::clone(run), store.range)?;
            sources.push(ScanSource::Run { place, cursor });
        }
    }
    Ok(sources)
}

pub(crate) fn tables<'a>(store: &'a Store, spec: &ScanSpec) -> Vec<Option<&'a Table>> {
    let table = |slice: &i64| store.visible(*slice).map(|slice| slice.table());
    spec.slices.iter().map(table).collect()
}

fn is_asked_for(layout: &Layout, spec: &ScanSpec, key: &[u8]) -> bool {
    spec.expired_at_us
        .is_none_or(|time| layout.expiry(key).is_some_and(|expiry| expiry <= time))
}

fn next_in_memory(
    store: &Store,
    layout: &Layout,
    spec: &ScanSpec,
    next: &mut usize,
) -> Result<Option<RecordBatch>> {
    let Some(Some(table)) = tables(store, spec).into_iter().next() else {
        return Ok(None);
    };
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    let count = if spec.touched_only {
        table.touched().len()
    } else {
        table.len()
    };
    let id_at = |at: usize| {
        if spec.touched_only {
            table.touched()[at]
        } else {
            at as u32
        }
    };
    while *next < count && keys.len() < spec.max_rows {
        if spec.touched_only && *next + 16 < count {
            table.prefetch(id_at(*next + 16));
        }
        let id = id_at(*next);
        *next += 1;
        if !table.is_tombstone(id) && is_asked_for(layout, spec, table.key(id)) {
            keys.push(table.key(id));
            values.push(table.value(id));
        }
    }
    if keys.is_empty() {
        return Ok(None);
    }
    layout.decode(&keys, &values).map(Some)
}

fn next_groups(
    store: &Store,
    layout: &Layout,
    spec: &ScanSpec,
    merger: &mut Merger<ScanSource>,
) -> Result<Option<RecordBatch>> {
    let tables = tables(store, spec);
    let mut keys = KeyList::default();
    let mut values = Values::absent(0);
    while keys.len() < spec.max_rows && merger.next(tables.as_slice())? {
        let mut begun = false;
        let mut last_place = usize::MAX;
        for at in merger.at_key() {
            let source = merger.source(*at);
            // Sources stand slice by slice, newest first: the first of a slice hides the rest of it.
            if source.place() == last_place {
                continue;
            }
            last_place = source.place();
            let Some(row) = source.row(&tables).filter(|row| !row.tombstone) else {
                continue;
            };
            if !begun {
                if !is_asked_for(layout, spec, row.key) {
                    break;
                }
                keys.push(row.hash, row.key);
                values.push_absent();
                begun = true;
            }
            values.merge(layout, keys.len() - 1, row.value)?;
        }
    }
    if keys.is_empty() {
        return Ok(None);
    }
    decode_present(layout, &keys, &values).map(Some)
}

fn next_of_keys(
    store: &mut Store,
    layout: &Layout,
    spec: &ScanSpec,
    merger: &mut Merger<ScanSource>,
) -> Result<Option<RecordBatch>> {
    loop {
        let mut keys = KeyList::default();
        let tables = tables(store, spec);
        while keys.len() < spec.max_rows && merger.next(tables.as_slice())? {
            let row = merger
                .at_key()
                .first()
                .and_then(|at| merger.source(*at).row(&tables));
            if let Some(row) = row
                && is_asked_for(layout, spec, row.key)
            {
                keys.push(row.hash, row.key);
            }
        }
        if keys.is_empty() {
            return Ok(None);
        }
        let order = keys.order();
        let mut values = Values::absent(keys.len());
        for at in &spec.slices {
            if let Some(slice) = store.slices.get_mut(at).filter(|slice| !slice.is_dropped()) {
                slice.read(&keys, &order, &mut store.counters, |row, value| {
                    values.merge(layout, row as usize, value)
                })?;
            }
        }
        // All of them may be deleted.
        let batch = decode_present(layout, &keys, &values)?;
        if batch.num_rows() > 0 {
            return Ok(Some(batch));
        }
    }
}

impl Store {
    /// Deletes the groups of a slice that expire at or before the time; returns how many.
    pub fn delete_expired(&mut self, slice: i64, expired_at_us: i64) -> Result<u64> {
        let spent = Beside::start();
        let deleted = self.delete_groups(slice, expired_at_us);
        self.counters.removal_ns += spent.ns();
        deleted
    }

    fn delete_groups(&mut self, slice: i64, expired_at_us: i64) -> Result<u64> {
        let spec = ScanSpec {
            slices: vec![slice],
            touched_only: false,
            expired_at_us: Some(expired_at_us),
            max_rows: 65_536,
        };
        let Some(target) = self.visible(slice) else {
            return Ok(0);
        };
        target.check_flushed_run_was_added(slice)?;
        let layout = Arc::clone(&self.layout);
        // Deleting adds entries and marks, it moves none: the sources stay good.
        let mut merger = Merger::new(sources(self, &spec)?);
        self.version += 1;
        let mut deleted = 0;
        loop {
            let mut keys = KeyList::default();
            let tables = tables(self, &spec);
            while keys.len() < spec.max_rows && merger.next(tables.as_slice())? {
                let row = merger
                    .at_key()
                    .first()
                    .and_then(|at| merger.source(*at).row(&tables));
                if let Some(row) = row
                    && !row.tombstone
                    && is_asked_for(&layout, &spec, row.key)
                {
                    keys.push(row.hash, row.key);
                }
            }
            count_reads(self, &mut merger);
            if keys.is_empty() {
                return Ok(deleted);
            }
            if let Some(slice) = self.slices.get_mut(&slice) {
                slice.bury(&keys, &keys.order(), self.epoch)?;
            }
            deleted += keys.len() as u64;
        }
    }
}
