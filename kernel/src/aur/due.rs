//! Giving out: the sessions that have closed, found with one scan of the index, and their rows, read in batches.

use std::sync::Arc;

use arrow_array::RecordBatch;
use hashbrown::HashTable;

use crate::aur::ahead::Piece;
use crate::aur::layout::Ending;
use crate::aur::log::Range;
use crate::aur::log_format::take as take_number;
use crate::aur::sessions::{NONE, Sessions};
use crate::aur::store::RowStore;
use crate::error::{Error, Result};
use crate::hash::hash_key;

/// Bytes of rows after which a batch is given out, however few rows it has.
const BATCH_BYTES: u64 = 8 << 20;

enum Source {
    /// In a run: its number among committed and pending ones, and where in it.
    File {
        run: u32,
        range: Range,
    },
    Ahead(Box<[u8]>),
    Buffer(u32),
}

/// Some rows of a session that is given out.
struct Part {
    /// The session's place among those given out.
    place: u32,
    rows: u32,
    /// Parts of a session in the order in which their rows came.
    order: (u32, u64),
    source: Source,
}

/// Sessions that are given out, and where their rows are.
pub struct Take {
    slots: Vec<u32>,
    parts: Vec<Part>,
    at: usize,
    version: u64,
    max_rows: usize,
}

impl RowStore {
    /// Takes the sessions that have closed by the watermark, or the windows that have all their rows. They are gone with
    /// the commit.
    pub fn take_due(&mut self, watermark: i64, max_rows: usize) -> Result<Take> {
        self.check_attached()?;
        if !self.taken.is_empty() {
            return Err(Error::invalid("the batch has given out what was due"));
        }
        self.pace.note(watermark);
        let (slots, watermark) = match self.layout.ending() {
            // Their index entries lie in no order of time.
            Ending::Rows(rows) => (self.sessions.take_full(rows), i64::MAX),
            Ending::Gap(_) | Ending::Latest(_) | Ending::Stated => {
                self.given_out = self.given_out.max(watermark);
                (self.sessions.take_due(watermark), watermark)
            }
        };
        self.note_change(!slots.is_empty());
        let mut parts = Vec::with_capacity(slots.len());
        let mut missing = 0_u64;
        let mut wanted = vec![false; slots.len()];
        for (place, slot) in slots.iter().enumerate() {
            let session = *self.sessions.get(*slot);
            let place = place as u32;
            if session.pieces == 0 {
                self.counters.memory_hits += 1;
            } else if session.mark != NONE {
                self.counters.ahead_hits += 1;
                for piece in self.ahead.remove(session.mark) {
                    parts.push(self.ahead_part(place, piece)?);
                }
            } else {
                missing += u64::from(session.pieces);
                wanted[place as usize] = true;
            }
            if session.buffer != NONE {
                parts.push(Part {
                    place,
                    rows: self.buffer.window(session.buffer).rows,
                    order: (u32::MAX, 0),
                    source: Source::Buffer(session.buffer),
                });
            }
            self.sessions.get_mut(*slot).mark = place;
        }
        self.counters.gets += slots.len() as u64;
        self.taken.extend(&slots);
        if missing > 0 {
            self.find_due(watermark, &wanted, missing, &mut parts)?;
        }
        self.rows -= parts.iter().map(|part| u64::from(part.rows)).sum::<u64>();
        parts.sort_unstable_by_key(|part| (part.place, part.order));
        Ok(Take {
            slots,
            parts,
            at: 0,
            version: self.version,
            max_rows: max_rows.max(1),
        })
    }

    fn ahead_part(&mut self, place: u32, piece: Piece) -> Result<Part> {
        let mut runs = self.committed.iter_mut().enumerate();
        let Some((number, run)) = runs.find(|(_, run)| run.id == piece.run) else {
            return Err(Error::invalid(
                "rows were read ahead from a run that is gone",
            ));
        };
        run.taken.add(piece.bytes.len() as u64);
        self.counters.taken_bytes += piece.bytes.len() as u64;
        Ok(Part {
            place,
            rows: piece.rows,
            order: (number as u32, piece.order),
            source: Source::Ahead(piece.bytes),
        })
    }

    /// One scan of the index finds the rows of all sessions that are due.
    fn find_due(
        &mut self,
        watermark: i64,
        wanted: &[bool],
        missing: u64,
        parts: &mut Vec<Part>,
    ) -> Result<()> {
        self.counters.scans += 1;
        let sessions = &self.sessions;
        let due = table_of(sessions, &self.taken);
        let mut found = 0;
        for (number, run) in self
            .committed
            .iter_mut()
            .chain(&mut self.pending)
            .enumerate()
        {
            let log = Arc::clone(&run.log);
            let blocks = run.blocks_of(log.blocks_until(watermark));
            let read = log.scan(&blocks, |place, entry, key| {
                if run.is_gone(place) {
                    return Ok(());
                }
                let hash = hash_key(key);
                let is_meant = |slot: &u32| sessions.is_of(*slot, key, entry.bounds.first);
                let Some(slot) = due.find(hash, is_meant) else {
                    if sessions.find(hash, key, entry.bounds.first).is_none() {
                        run.note_gone(place);
                    }
                    return Ok(());
                };
                let session = sessions.get(*slot);
                run.dying.push(place);
                if wanted[session.mark as usize] {
                    found += 1;
                    run.taken.add(u64::from(entry.length));
                    self.counters.taken_bytes += u64::from(entry.length);
                    parts.push(Part {
                        place: session.mark,
                        rows: entry.rows,
                        order: (number as u32, entry.offset),
                        source: Source::File {
                            run: number as u32,
                            range: Range {
                                offset: entry.offset,
                                length: entry.length,
                                checksum: entry.checksum,
                            },
                        },
                    });
                }
                Ok(())
            })?;
            self.counters.count(read);
        }
        if found != missing {
            let name = self.committed.first().or(self.pending.first());
            let what = format!("{missing} pieces of sessions are due, the index has {found}");
            return Err(match name {
                Some(run) => run.log.damaged(&what),
                None => Error::invalid(what),
            });
        }
        Ok(())
    }
}

/// A table of the given sessions alone: looking for them costs the same however many others wait.
fn table_of(sessions: &Sessions, slots: &[u32]) -> HashTable<u32> {
    let mut table = HashTable::with_capacity(slots.len());
    let hash = |slot: &u32| hash_key(sessions.key(*slot));
    for slot in slots {
        table.insert_unique(hash(slot), *slot, hash);
    }
    table
}

impl Take {
    /// The next rows, those of a session together, in the output schema.
    pub fn next(&mut self, store: &mut RowStore) -> Result<Option<RecordBatch>> {
        if self.at == self.parts.len() {
            return Ok(None);
        }
        if self.version != store.version {
            return Err(Error::invalid(
                "the store has changed since the rows were taken",
            ));
        }
        let (mut rows, mut bytes, mut end) = (0, 0, self.at);
        while end < self.parts.len() && rows < self.max_rows && bytes < BATCH_BYTES {
            let part = &self.parts[end];
            rows += part.rows as usize;
            bytes += match &part.source {
                Source::File { range, .. } => u64::from(range.length),
                Source::Ahead(bytes) => bytes.len() as u64,
                // The write buffer has a limit of its own.
                Source::Buffer(_) => 0,
            };
            end += 1;
        }
        let parts = &self.parts[self.at..end];
        let batch = self.read(store, parts, rows)?;
        self.at = end;
        Ok(Some(batch))
    }

    fn read(&self, store: &mut RowStore, parts: &[Part], rows: usize) -> Result<RecordBatch> {
        let (bytes, places) = read_files(store, parts)?;
        let width = store.layout.value_width();
        let mut keys: Vec<&[u8]> = Vec::new();
        let mut sessions: Vec<(u32, i64, i64)> = Vec::new();
        let mut values: Vec<&[u8]> = Vec::with_capacity(rows);
        let mut previous = NONE;
        for (part, place) in parts.iter().zip(&places) {
            if part.place != previous {
                previous = part.place;
                let slot = self.slots[part.place as usize];
                keys.push(store.sessions.key(slot));
                let start = store.sessions.get(slot).bounds.start;
                sessions.push((0, start, store.sessions.end(slot)));
            }
            if let Some((count, ..)) = sessions.last_mut() {
                *count += part.rows;
            }
            let encoded = match &part.source {
                Source::File { range, .. } => &bytes[*place..place + range.length as usize],
                Source::Ahead(bytes) => bytes,
                Source::Buffer(buffer) => {
                    store.buffer.each_row(*buffer, |row| values.push(row));
                    continue;
                }
            };
            split_rows(encoded, part.rows, width, &mut values)?;
        }
        store.layout.decode(&keys, &sessions, &values)
    }
}

/// Reads the parts that lie in files, each run from front to back; returns the bytes, and where each part's begin.
fn read_files(store: &mut RowStore, parts: &[Part]) -> Result<(Vec<u8>, Vec<usize>)> {
    let mut wanted: Vec<(u32, Range, usize)> = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        if let Source::File { run, range } = &part.source {
            wanted.push((*run, *range, i));
        }
    }
    wanted.sort_unstable_by_key(|(run, range, _)| (*run, range.offset));
    let total: usize = wanted
        .iter()
        .map(|(_, range, _)| range.length as usize)
        .sum();
    let mut bytes = Vec::with_capacity(total);
    let mut places = vec![0; parts.len()];
    for of_run in wanted.chunk_by(|a, b| a.0 == b.0) {
        let Some((run, ..)) = of_run.first() else {
            continue;
        };
        let ranges: Vec<Range> = of_run.iter().map(|(_, range, _)| *range).collect();
        let mut runs = store.committed.iter().chain(&store.pending);
        let run = runs
            .nth(*run as usize)
            .ok_or_else(|| Error::invalid("a run is gone whose rows were taken"))?;
        let read = run.log.read(&ranges, |i, piece| {
            places[of_run[i].2] = bytes.len();
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        store.counters.count(read);
    }
    Ok((bytes, places))
}

/// The rows of one index entry.
fn split_rows<'a>(
    mut bytes: &'a [u8],
    rows: u32,
    width: Option<usize>,
    out: &mut Vec<&'a [u8]>,
) -> Result<()> {
    let damaged = || Error::damaged("session rows", "rows that do not fit their index entry");
    for _ in 0..rows {
        let length = match width {
            Some(width) => width,
            None => take_number(&mut bytes).ok_or_else(damaged)? as usize,
        };
        let (row, rest) = bytes.split_at_checked(length).ok_or_else(damaged)?;
        out.push(row);
        bytes = rest;
    }
    match bytes.is_empty() {
        true => Ok(()),
        false => Err(damaged()),
    }
}
