//! Beside the batches: the sessions that close next are read ahead, and runs of which much is dead are written anew. Both
//! look at the index, so one scan serves both.
//!
//! The store is locked for short steps only. What a running batch does meanwhile can only add to what is alive, until it
//! is committed: rows that were alive at any step are moved, those that die later are dropped by the next rewrite.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::aur::ahead::{Piece, needed_bytes};
use crate::aur::bounds::Bounds;
use crate::aur::log::{LogRun, Range};
use crate::aur::log_format::Entry;
use crate::aur::log_writer::{IndexWriter, LogExtent, Started};
use crate::aur::sessions::{NONE, State, UNKNOWN};
use crate::aur::store::RowStore;
use crate::error::{Error, Result};
use crate::hash::hash_key;
use crate::pack::PackWriter;

/// Index blocks that are looked at before the store is unlocked for a moment.
const STEP_BLOCKS: usize = 64;
/// A range of rows that is moved without being looked at; smaller ones are read and written together.
const COPY_BYTES: u64 = 64 << 10;

fn lock(store: &Mutex<RowStore>) -> Result<MutexGuard<'_, RowStore>> {
    store
        .lock()
        .map_err(|_| Error::invalid("an earlier call on this store failed half way"))
}

/// A session to be read ahead, as it was when it was chosen.
struct Wanted {
    slot: u32,
    /// When it will be read.
    time: i64,
    key: Box<[u8]>,
    bounds: Bounds,
    pieces: u32,
    found: Vec<(u32, Entry)>,
}

/// An index entry that moves to another run.
struct Moved {
    ett: i64,
    input: usize,
    entry: Entry,
    key: (usize, usize),
}

/// Reads ahead the sessions that close next, and rewrites the named runs, if any, into `target`. Read ahead is what will
/// be due when the watermark goes on as it did last, and at least the given share of the open sessions; nothing where the
/// share is 0.
pub fn maintain(
    store: &Mutex<RowStore>,
    ratio: f64,
    inputs: &[Arc<LogRun>],
    target: Option<&mut PackWriter>,
) -> Result<Option<LogExtent>> {
    let (mut wanted, until, version) = choose(&mut *lock(store)?, ratio);
    let runs: Vec<(u32, Arc<LogRun>)> = {
        let store = lock(store)?;
        let runs = store.committed.iter();
        runs.map(|run| (run.id, Arc::clone(&run.log))).collect()
    };
    let mut moved = Vec::new();
    let mut keys = Vec::new();
    for (id, log) in &runs {
        let input = inputs.iter().position(|input| Arc::ptr_eq(input, log));
        let last = match (input, wanted.is_empty()) {
            (Some(_), _) => log.blocks(),
            (None, false) => log.blocks_until(until),
            (None, true) => 0,
        };
        let blocks: Vec<usize> = (0..last).collect();
        for step in blocks.chunks(STEP_BLOCKS) {
            let mut store = lock(store)?;
            let RowStore {
                committed,
                sessions,
                counters,
                ..
            } = &mut *store;
            let mut held = committed.iter_mut().find(|run| run.id == *id);
            let live = held.as_ref().map(|run| run.blocks_of(last));
            let step: Vec<usize> = step
                .iter()
                .filter(|block| {
                    live.as_ref()
                        .is_none_or(|live| live.binary_search(block).is_ok())
                })
                .copied()
                .collect();
            let read = log.scan(&step, |place, entry, key| {
                if held.as_ref().is_some_and(|run| run.is_gone(place)) {
                    return Ok(());
                }
                let Some(slot) = sessions.find(hash_key(key), key, entry.bounds.first) else {
                    if let Some(run) = &mut held {
                        run.note_gone(place);
                    }
                    return Ok(());
                };
                // A batch may have begun meanwhile, and the slot be another session's.
                if let Some(window) = wanted.get_mut(&slot)
                    && *window.key == *key
                    && window.bounds.holds(entry.bounds.first)
                {
                    window.found.push((*id, *entry));
                }
                if let Some(input) = input {
                    moved.push(Moved {
                        ett: sessions.end(slot),
                        input,
                        entry: *entry,
                        key: (keys.len(), key.len()),
                    });
                    keys.extend_from_slice(key);
                }
                Ok(())
            })?;
            counters.read_bytes += read.bytes;
        }
    }
    read_ahead(store, &runs, wanted, version)?;
    match target {
        Some(writer) => {
            let layout = Arc::clone(lock(store)?.layout());
            let index = IndexWriter::new(layout.entry_shape());
            let fingerprint = layout.fingerprint();
            let (extent, whole_bytes) = write(inputs, moved, &keys, index, fingerprint, writer)?;
            lock(store)?.counters.moved_whole_bytes += whole_bytes;
            Ok(Some(extent))
        }
        None => Ok(None),
    }
}

/// The sessions to read ahead by slot, the largest ETT among the nearest, and the version of the store.
fn choose(store: &mut RowStore, ratio: f64) -> (HashMap<u32, Wanted>, i64, u64) {
    let least = (store.sessions.len() as f64 * ratio).ceil() as usize;
    let nearest = match least > 0 && store.taken.is_empty() {
        true => {
            // Nor is one left out that will be read before some that are held.
            let held = store.held_ahead().into_iter().map(|(time, ..)| time);
            let last_held = held.filter(|time| *time != UNKNOWN).max();
            let until = store.pace.next().max(last_held.unwrap_or(i64::MIN));
            store.sessions.nearest(least, until)
        }
        // The batch has already given out what is due, or nothing is to be read ahead.
        false => Vec::new(),
    };
    let until = nearest.iter().map(|slot| store.sessions.end(*slot)).max();
    let mut wanted = HashMap::new();
    for slot in nearest {
        let session = store.sessions.get(slot);
        if session.pieces > 0 && session.mark == NONE && session.buffer == NONE {
            wanted.insert(
                slot,
                Wanted {
                    slot,
                    time: store.sessions.read_time(slot),
                    key: store.sessions.key(slot).into(),
                    bounds: session.bounds,
                    pieces: session.pieces,
                    found: Vec::new(),
                },
            );
        }
    }
    (wanted, until.unwrap_or(i64::MIN), store.version)
}

/// Reads what was found of the wanted sessions, as far as the memory allows, and leaves it with the store.
fn read_ahead(
    store: &Mutex<RowStore>,
    runs: &[(u32, Arc<LogRun>)],
    wanted: HashMap<u32, Wanted>,
    version: u64,
) -> Result<()> {
    let wanted: Vec<Wanted> = wanted
        .into_values()
        .filter(|window| window.found.len() == window.pieces as usize)
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let wanted = with_room(&mut *lock(store)?, wanted);
    let mut pieces: Vec<Vec<Piece>> = wanted.iter().map(|_| Vec::new()).collect();
    let mut read_bytes = 0;
    for (id, log) in runs {
        let mut ranges: Vec<(Range, u32, usize)> = Vec::new();
        for (number, window) in wanted.iter().enumerate() {
            for (_, entry) in window.found.iter().filter(|(run, _)| run == id) {
                let range = Range {
                    offset: entry.offset,
                    length: entry.length,
                    checksum: entry.checksum,
                };
                ranges.push((range, entry.rows, number));
            }
        }
        ranges.sort_unstable_by_key(|(range, ..)| range.offset);
        let places: Vec<Range> = ranges.iter().map(|(range, ..)| *range).collect();
        let reads = log.read(&places, |i, bytes| {
            let (range, rows, number) = ranges[i];
            pieces[number].push(Piece {
                run: *id,
                order: range.offset,
                rows,
                bytes: bytes.into(),
            });
            Ok(())
        })?;
        read_bytes += reads.bytes;
    }
    let mut store = lock(store)?;
    store.counters.read_bytes += read_bytes;
    let same = store.version == version;
    let present = |store: &RowStore, id: u32| store.committed.iter().any(|run| run.id == id);
    for (window, pieces) in wanted.into_iter().zip(pieces) {
        let slot = window.slot;
        let still = same
            || store
                .sessions
                .find(hash_key(&window.key), &window.key, window.bounds.first)
                == Some(slot);
        if !still {
            // After an abort the table may not even have the slot.
            continue;
        }
        let session = store.sessions.get(slot);
        let unchanged = session.state == State::Open
            && session.mark == NONE
            && session.bounds == window.bounds
            && session.pieces == window.pieces
            && session.buffer == NONE
            && pieces.iter().all(|piece| present(&store, piece.run));
        if unchanged {
            let place = store.ahead.insert(slot, pieces);
            store.sessions.get_mut(slot).mark = place;
            store.counters.ahead_reads += 1;
        }
    }
    Ok(())
}

/// The wanted sessions that have room beside those that are held, the first to be read first. What is held and would be
/// read after one that has no room is dropped: held is always what is read next.
fn with_room(store: &mut RowStore, wanted: Vec<Wanted>) -> Vec<Wanted> {
    let mut room = store.ahead_room();
    let mut is_full = false;
    let mut has_room = |bytes: usize| {
        is_full |= bytes > room;
        room = room.saturating_sub(bytes);
        !is_full
    };
    let mut held = store.held_ahead().into_iter().peekable();
    let mut wanted: Vec<(usize, Wanted)> = wanted
        .into_iter()
        .map(|window| {
            let rows = window.found.iter().map(|(_, e)| e.length as usize).sum();
            (needed_bytes(window.found.len(), rows), window)
        })
        .collect();
    wanted.sort_unstable_by_key(|(_, window)| (window.time, window.slot));
    let mut kept = Vec::new();
    let mut dropped = Vec::new();
    for (bytes, window) in wanted {
        while let Some((_, slot, bytes)) = held.next_if(|(time, ..)| *time <= window.time) {
            if !has_room(bytes) {
                dropped.push(slot);
            }
        }
        if has_room(bytes) {
            kept.push(window);
        }
    }
    dropped.extend(
        held.filter(|(_, _, bytes)| !has_room(*bytes))
            .map(|(_, slot, _)| slot),
    );
    for slot in dropped {
        store.forget_ahead(slot);
    }
    kept
}

/// Writes the moved entries as one run: rows in the order of the inputs, index in the order of ETT. Returns also how many
/// bytes were moved whole.
fn write(
    inputs: &[Arc<LogRun>],
    mut moved: Vec<Moved>,
    keys: &[u8],
    mut index: IndexWriter,
    fingerprint: u64,
    writer: &mut PackWriter,
) -> Result<(LogExtent, u64)> {
    let started = Started::begin(writer, fingerprint)?;
    moved.sort_unstable_by_key(|moved| (moved.input, moved.entry.offset));
    let mut next = Started::data_offset();
    let mut whole_bytes = 0;
    for of_input in moved.chunk_by_mut(|a, b| a.input == b.input) {
        let Some(log) = of_input.first().and_then(|first| inputs.get(first.input)) else {
            continue;
        };
        whole_bytes += move_rows(log, of_input, writer)?;
        for moved in of_input {
            moved.entry.offset = next;
            next += u64::from(moved.entry.length);
        }
    }
    moved.sort_by_key(|moved| moved.ett);
    for moved in &moved {
        let (at, length) = moved.key;
        index.push(moved.ett, &moved.entry, &keys[at..at + length]);
    }
    let given_out = inputs.iter().map(|input| input.given_out()).max();
    let extent = index.finish(writer, started, given_out.unwrap_or(i64::MIN))?;
    Ok((extent, whole_bytes))
}

/// Moves the rows of one input's entries, in the order of their offsets. Returns how many bytes were moved whole.
fn move_rows(log: &LogRun, moved: &[Moved], writer: &mut PackWriter) -> Result<u64> {
    let mut whole_bytes = 0;
    let mut small: Vec<Range> = Vec::new();
    let end = |entry: &Entry| entry.offset + u64::from(entry.length);
    for whole in moved.chunk_by(|a, b| end(&a.entry) == b.entry.offset) {
        let (Some(first), Some(last)) = (whole.first(), whole.last()) else {
            continue;
        };
        let length = end(&last.entry) - first.entry.offset;
        if length < COPY_BYTES {
            small.extend(whole.iter().map(|moved| Range {
                offset: moved.entry.offset,
                length: moved.entry.length,
                checksum: moved.entry.checksum,
            }));
            continue;
        }
        move_small(log, &mut small, writer)?;
        log.copy_to(writer, first.entry.offset, length)?;
        whole_bytes += length;
    }
    move_small(log, &mut small, writer)?;
    Ok(whole_bytes)
}

fn move_small(log: &LogRun, ranges: &mut Vec<Range>, writer: &mut PackWriter) -> Result<()> {
    log.read(ranges, |_, bytes| writer.write(bytes))?;
    ranges.clear();
    Ok(())
}
