//! The table of sessions from the index of committed runs, in one scan.
//!
//! Rows of a key belong together where they touch, unless the earlier ones had been given out before the later ones came:
//! every entry says up to when sessions had been given out before its rows, and the newest run what has been since.

use std::sync::Arc;

use crate::aur::bounds::Bounds;
use crate::aur::layout::Ending;
use crate::aur::log::{LogRun, Place};
use crate::aur::store::{Extent, HeldRun, RowStore};
use crate::error::{Error, Result};
use crate::hash::hash_key;

/// An index entry.
struct Fragment {
    /// The first session of its key; those that follow hang on it.
    head: u32,
    given_out: i64,
    bounds: Bounds,
    rows: u32,
    run: u32,
    place: Place,
    bytes: u32,
}

#[derive(Clone, Copy)]
struct Span {
    bounds: Bounds,
    pieces: u32,
}

impl RowStore {
    /// Puts committed runs in place, oldest first.
    pub fn restore(&mut self, runs: Vec<Arc<LogRun>>) -> Result<()> {
        if !self.committed.is_empty() || !self.sessions.is_empty() {
            return Err(Error::invalid("the store holds rows already"));
        }
        self.load(runs)
    }

    pub(crate) fn load(&mut self, runs: Vec<Arc<LogRun>>) -> Result<()> {
        self.version += 1;
        self.reset();
        for log in runs {
            let id = self.new_run_id();
            self.given_out = self.given_out.max(log.given_out());
            self.committed
                .push(HeldRun::new(id, log, Extent::default()));
        }
        self.given_out_before = self.given_out;
        let mut fragments = self.fragments()?;
        fragments.sort_unstable_by_key(|f| (f.head, f.given_out, f.bounds.first));
        for of_key in fragments.chunk_by(|a, b| a.head == b.head) {
            match self.layout.ending() {
                Ending::Rows(rows) => self.revive_counted(of_key, rows),
                Ending::Gap(_) | Ending::Latest(_) | Ending::Stated => self.revive(of_key),
            }
        }
        Ok(())
    }

    /// All index entries of this shard's keys, each key with a session of its own in the table.
    fn fragments(&mut self) -> Result<Vec<Fragment>> {
        let mut fragments = Vec::new();
        let (sessions, range) = (&mut self.sessions, self.range);
        for (number, run) in self.committed.iter_mut().enumerate() {
            let log = Arc::clone(&run.log);
            let blocks: Vec<usize> = (0..log.blocks()).collect();
            let read = log.scan(&blocks, |place, entry, key| {
                let hash = hash_key(key);
                if !range.holds(hash) {
                    run.note_gone(place);
                    return Ok(());
                }
                if !sessions.has_room(1) {
                    return Err(Error::invalid("too many sessions in one shard"));
                }
                let head = match sessions.first_of(hash, key) {
                    Some(head) => head,
                    None => sessions.insert(hash, key, entry.bounds),
                };
                fragments.push(Fragment {
                    head,
                    given_out: entry.given_out,
                    bounds: entry.bounds,
                    rows: entry.rows,
                    run: number as u32,
                    place,
                    bytes: entry.length,
                });
                Ok(())
            })?;
            self.counters.read_bytes += read.bytes;
        }
        Ok(fragments)
    }

    /// The window of one key that waits for rows: the newest, as each begins when the one before it is full.
    fn revive_counted(&mut self, fragments: &[Fragment], rows: u32) {
        let Some(newest) = fragments.iter().max_by_key(|f| f.bounds.first) else {
            return;
        };
        let number = newest.bounds.first;
        let start = number - number.rem_euclid(i64::from(rows));
        let session = self.sessions.get_mut(newest.head);
        session.bounds = Bounds::of_numbers(start, rows);
        for fragment in fragments {
            let run = &mut self.committed[fragment.run as usize];
            if fragment.bounds.first >= start {
                session.rows += fragment.rows;
                session.pieces += 1;
                run.live.add(u64::from(fragment.bytes));
                self.rows += u64::from(fragment.rows);
            } else {
                run.note_gone(fragment.place);
            }
        }
    }

    /// The open sessions of one key, from all its entries in the order in which they came.
    fn revive(&mut self, fragments: &[Fragment]) {
        let open_after = |span: &Span, time: i64| span.bounds.last > time;
        let mut spans: Vec<Span> = Vec::new();
        for fragment in fragments {
            spans.retain(|span| open_after(span, fragment.given_out));
            let mut whole = Span {
                bounds: fragment.bounds,
                pieces: 1,
            };
            // What it joins may in turn touch others.
            while let Some(i) = spans
                .iter()
                .position(|span| span.bounds.touches(&whole.bounds))
            {
                let span = spans.swap_remove(i);
                whole.bounds.unite(&span.bounds);
                whole.pieces += span.pieces;
            }
            spans.push(whole);
        }
        spans.retain(|span| open_after(span, self.given_out));
        for fragment in fragments {
            let alive = spans
                .iter()
                .any(|span| span.bounds.holds(fragment.bounds.first));
            let run = &mut self.committed[fragment.run as usize];
            if alive {
                run.live.add(u64::from(fragment.bytes));
                self.rows += u64::from(fragment.rows);
            } else {
                run.note_gone(fragment.place);
            }
        }
        let Some(head) = fragments.first().map(|fragment| fragment.head) else {
            return;
        };
        let mut slots = vec![head];
        for span in &spans[1.min(spans.len())..] {
            let key = self.sessions.key(head).to_vec();
            slots.push(self.sessions.chain(head, &key, span.bounds));
        }
        for (slot, span) in slots.iter().zip(&spans) {
            let session = self.sessions.get_mut(*slot);
            session.bounds = span.bounds;
            session.pieces = span.pieces;
            self.sessions.enqueue(*slot);
        }
        if spans.is_empty() {
            self.sessions.discard(head);
        }
    }
}
