//! Closes sessions: finds the keys whose timers are due, puts out the sessions that have ended and takes them out of
//! their values.
//!
//! A key with sessions has a timer no later than the end of the first of them. A session that grows does not move it:
//! a timer that goes off too early is entered anew. Keys whose timers are not due are not looked at, and a slice of
//! timers that is due as a whole is dropped as a whole.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::RecordBatch;

use crate::error::{Error, Result};
use crate::groups::KeyList;
use crate::merge::Merger;
use crate::scan::{ScanSource, ScanSpec, count_reads, sources, tables};
use crate::session::{Session, SessionRows, first_end, take_closed};
use crate::slice::{Fate, Running, timer_of};
use crate::store::Store;
use crate::table::Keys;
use crate::time::{SESSIONS, Time};

/// Like a scan, it is handed the store for each batch, and refuses one that another hand changed meanwhile.
pub struct SessionFiring {
    watermark: i64,
    max_rows: usize,
    due: VecDeque<i64>,
    walk: Option<TimerWalk>,
    version: u64,
}

/// The timers of one slice.
struct TimerWalk {
    slice: i64,
    timers: Timers,
}

enum Timers {
    /// All in memory: entries as they lie.
    Memory {
        next: u32,
        end: u32,
    },
    Sorted(Merger<ScanSource>),
}

impl SessionFiring {
    pub fn begin(store: &Store, watermark: i64, max_rows: usize) -> Result<Self> {
        let Time::Sessions { timer, .. } = store.layout().time() else {
            return Err(Error::invalid("only sessions are closed"));
        };
        if max_rows == 0 {
            return Err(Error::invalid("max_rows must be at least 1"));
        }
        for (at, slice) in &store.slices {
            slice.check_flushed_run_was_added(*at)?;
        }
        // A slice ends at its name: timers of the one that the watermark cuts may be due.
        let last = watermark.saturating_add(timer.max(1) - 1);
        let timers = store.slices.range(SESSIONS + 1..=last.max(SESSIONS + 1));
        let visible = timers.filter(|(_, slice)| !slice.is_dropped());
        Ok(Self {
            watermark,
            max_rows,
            due: visible.map(|(at, _)| *at).collect(),
            walk: None,
            version: store.version,
        })
    }

    /// The next closed sessions in the output schema; `None` after the last.
    pub fn next(&mut self, store: &mut Store) -> Result<Option<RecordBatch>> {
        if store.version != self.version {
            return Err(Error::invalid(
                "the store changed while sessions were closed; abort the batch",
            ));
        }
        let batch = self.next_batch(store);
        self.version = store.version;
        batch
    }

    fn next_batch(&mut self, store: &mut Store) -> Result<Option<RecordBatch>> {
        loop {
            let walk = match &mut self.walk {
                Some(walk) => walk,
                None => {
                    let Some(slice) = self.due.pop_front() else {
                        return Ok(None);
                    };
                    self.walk.insert(TimerWalk::begin(store, slice)?)
                }
            };
            let slice = walk.slice;
            let is_whole = slice <= self.watermark;
            let keys = walk.next_due(store, self.watermark, self.max_rows)?;
            if keys.is_empty() {
                if is_whole {
                    store.drop_slice(slice);
                }
                self.walk = None;
                continue;
            }
            if !is_whole {
                store.forget_timers(slice, &keys)?;
            }
            if let Some(batch) = store.close(&keys, self.watermark)? {
                return Ok(Some(batch));
            }
        }
    }
}

impl TimerWalk {
    fn begin(store: &Store, slice: i64) -> Result<Self> {
        let timers = match store.visible(slice) {
            Some(timers) if !timers.is_complete() => {
                Timers::Sorted(Merger::new(sources(store, &spec_of(slice))?))
            }
            // What is entered from here on is not due.
            timers => Timers::Memory {
                next: 0,
                end: timers.map_or(0, |timers| timers.table().len() as u32),
            },
        };
        Ok(Self { slice, timers })
    }

    /// The next keys whose timers are due. No entry of the slice may move between two calls.
    fn next_due(&mut self, store: &mut Store, watermark: i64, max_rows: usize) -> Result<KeyList> {
        let mut keys = KeyList::default();
        match &mut self.timers {
            Timers::Memory { next, end } => {
                let Some(slice) = store.visible(self.slice) else {
                    return Ok(keys);
                };
                let table = slice.table();
                while *next < *end && keys.len() < max_rows {
                    let id = *next;
                    *next += 1;
                    if !table.is_tombstone(id) && timer_of(table.value(id)) <= watermark {
                        keys.push(table.hash(id), table.key(id));
                    }
                }
            }
            Timers::Sorted(merger) => {
                let tables = tables(store, &spec_of(self.slice));
                while keys.len() < max_rows && merger.next(tables.as_slice())? {
                    let newest = merger.at_key().first();
                    let row = newest.and_then(|at| merger.source(*at).row(&tables));
                    if let Some(row) = row
                        && !row.tombstone
                        && timer_of(row.value) <= watermark
                    {
                        keys.push(row.hash, row.key);
                    }
                }
                count_reads(store, merger);
            }
        }
        Ok(keys)
    }
}

fn spec_of(slice: i64) -> ScanSpec {
    ScanSpec {
        slices: vec![slice],
        touched_only: false,
        expired_at_us: None,
        max_rows: 1,
    }
}

/// Where a closed session lies in the bytes that were put aside.
struct Closed {
    key: u32,
    start: i64,
    end: i64,
    bytes: std::ops::Range<usize>,
}

impl Store {
    fn forget_timers(&mut self, slice: i64, keys: &KeyList) -> Result<()> {
        match self.slices.get_mut(&slice) {
            Some(timers) => timers.bury(keys, &keys.order(), self.epoch),
            None => Ok(()),
        }
    }

    /// Takes the sessions of the keys that end at or before the watermark out of the store, and enters timers for
    /// what stays.
    fn close(&mut self, keys: &KeyList, watermark: i64) -> Result<Option<RecordBatch>> {
        self.version += 1;
        let layout = Arc::clone(&self.layout);
        let Some(slice) = self.slices.get_mut(&SESSIONS) else {
            return Ok(None);
        };
        let mut closed: Vec<Closed> = Vec::new();
        let mut bytes: Vec<u8> = Vec::new();
        let mut timers = Vec::new();
        let mut running = Running::new(self.epoch, &mut self.counters);
        slice.decide(keys, &keys.order(), &mut running, |key, value| {
            let taken = take_closed(layout.aggregates(), value, watermark, |session| {
                let from = bytes.len();
                bytes.extend_from_slice(session.aggregates);
                closed.push(Closed {
                    key,
                    start: session.start,
                    end: session.end,
                    bytes: from..bytes.len(),
                });
            })?;
            timers.extend(first_end(&value[taken..]).map(|end| (key, end)));
            Ok(match taken {
                0 => Fate::Stays,
                _ if taken == value.len() => Fate::Goes,
                _ => Fate::Shrinks(taken),
            })
        })?;
        self.enter_timers(keys, timers)?;
        if closed.is_empty() {
            return Ok(None);
        }
        let mut rows = SessionRows::default();
        for Closed {
            key,
            start,
            end,
            bytes: at,
        } in closed
        {
            let aggregates = &bytes[at];
            let session = Session {
                start,
                end,
                aggregates,
            };
            rows.push(keys.key(key as usize), session);
        }
        rows.decode(&layout).map(Some)
    }
}
