//! The table of open sessions: which there are for a key, from when to when, and in which order they close.
//!
//! A key has mostly one open session; more hang on the first in a chain. The order of closing is kept in buckets of a
//! small part of the gap. A session that grew stays in the bucket it is in, and moves on when the bucket's time comes:
//! that a row extends a session costs nothing here, and sessions that wait are not looked at.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use hashbrown::HashTable;

use crate::aur::bounds::Bounds;
use crate::aur::layout::Ending;
use crate::hash::hash_key;

/// No session, buffer or such.
pub const NONE: u32 = u32::MAX;
/// A time at which a window will be read, where nobody knows it.
pub const UNKNOWN: i64 = i64::MAX;
/// Stands for the end of a window of so many rows in the order of closing.
const UNKNOWN_END: i64 = 0;

/// Buckets in the length of a gap.
const BUCKETS_PER_GAP: i64 = 256;
/// The length of a bucket where rows say their end.
const STATED_GRAIN: i64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Open,
    /// Given out by the running batch.
    Taken,
    /// Its rows belong to another session now; its place is free once its bucket has been looked at.
    Absorbed,
    Free,
}

#[derive(Clone, Copy, Debug)]
pub struct Session {
    /// Of a window of so many rows, from its first row to its last, be they there or not.
    pub bounds: Bounds,
    /// A further session of the same key.
    next: u32,
    /// Its rows in the write buffer.
    pub buffer: u32,
    /// How many index entries it has.
    pub pieces: u32,
    /// Open: where its rows are that were read ahead. Taken: its place among those given out.
    pub mark: u32,
    /// Of a window of so many rows: how many there are.
    pub rows: u32,
    pub state: State,
}

enum Keys {
    Fixed { width: usize, bytes: Vec<u8> },
    Variable { keys: Vec<Box<[u8]>>, bytes: usize },
}

impl Keys {
    #[inline]
    fn get(&self, slot: u32) -> &[u8] {
        let slot = slot as usize;
        match self {
            Self::Fixed { width, bytes } => &bytes[slot * width..(slot + 1) * width],
            Self::Variable { keys, .. } => &keys[slot],
        }
    }

    fn set(&mut self, slot: u32, key: &[u8]) {
        let slot = slot as usize;
        match self {
            Self::Fixed { width, bytes } => {
                if bytes.len() < (slot + 1) * *width {
                    bytes.resize((slot + 1) * *width, 0);
                }
                bytes[slot * *width..(slot + 1) * *width].copy_from_slice(key);
            }
            Self::Variable { keys, bytes } => {
                if keys.len() <= slot {
                    keys.resize(slot + 1, Box::default());
                }
                *bytes = *bytes + key.len() - keys[slot].len();
                keys[slot] = key.into();
            }
        }
    }

    fn memory_bytes(&self) -> usize {
        match self {
            Self::Fixed { bytes, .. } => bytes.capacity(),
            Self::Variable { keys, bytes } => bytes + keys.capacity() * size_of::<Box<[u8]>>(),
        }
    }
}

pub struct Sessions {
    ending: Ending,
    grain: i64,
    keys: Keys,
    slots: Vec<Session>,
    free: Vec<u32>,
    /// The first session of each key.
    table: HashTable<u32>,
    queue: BTreeMap<i64, Vec<u32>>,
    queued: usize,
    open: usize,
    /// When each session will be read, where the query says that.
    expected: Option<Vec<i64>>,
    /// Windows that have all their rows.
    full: Vec<u32>,
    /// Windows that began behind a full one and have no row yet.
    empty: Vec<u32>,
}

impl Sessions {
    /// `expects`: whether the query says when sessions will be read.
    pub fn new(ending: Ending, key_width: Option<usize>, expects: bool) -> Self {
        let grain = match ending {
            Ending::Gap(gap) => (gap / BUCKETS_PER_GAP).max(1),
            Ending::Latest(_) | Ending::Stated | Ending::Rows(_) => STATED_GRAIN,
        };
        Self {
            ending,
            grain,
            keys: match key_width {
                Some(width) => Keys::Fixed {
                    width,
                    bytes: Vec::new(),
                },
                None => Keys::Variable {
                    keys: Vec::new(),
                    bytes: 0,
                },
            },
            slots: Vec::new(),
            free: Vec::new(),
            table: HashTable::new(),
            queue: BTreeMap::new(),
            queued: 0,
            open: 0,
            expected: expects.then(Vec::new),
            full: Vec::new(),
            empty: Vec::new(),
        }
    }

    /// Sessions that are open.
    pub fn len(&self) -> usize {
        self.open
    }

    pub fn is_empty(&self) -> bool {
        self.open == 0
    }

    pub fn memory_bytes(&self) -> usize {
        self.keys.memory_bytes()
            + self.slots.capacity() * size_of::<Session>()
            + self.expected.as_ref().map_or(0, Vec::capacity) * size_of::<i64>()
            + (self.free.capacity() + self.queued + self.table.capacity()) * size_of::<u32>()
            + self.table.capacity()
    }

    #[inline]
    pub fn get(&self, slot: u32) -> &Session {
        &self.slots[slot as usize]
    }

    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> &mut Session {
        &mut self.slots[slot as usize]
    }

    #[inline]
    pub fn key(&self, slot: u32) -> &[u8] {
        self.keys.get(slot)
    }

    /// When the session closes if it does not grow. Of a window of so many rows that is not known.
    #[inline]
    pub fn end(&self, slot: u32) -> i64 {
        match self.ending {
            Ending::Rows(_) => UNKNOWN_END,
            Ending::Gap(_) | Ending::Latest(_) | Ending::Stated => self.get(slot).bounds.last,
        }
    }

    /// Puts a row into the key's window that is not full, or into a new one. Returns which, and the row's number among
    /// all of the key.
    pub fn count(&mut self, hash: u64, key: &[u8], rows: u32) -> (u32, i64) {
        let slot = match self.first_of(hash, key) {
            None => self.insert(hash, key, Bounds::of_numbers(0, rows)),
            Some(head) => self.unfilled(head, rows),
        };
        let session = self.get_mut(slot);
        let number = session.bounds.start + i64::from(session.rows);
        session.rows += 1;
        if session.rows == rows {
            self.full.push(slot);
        }
        (slot, number)
    }

    /// The window of a key that takes its next row; where all are full, the next one begins.
    fn unfilled(&mut self, head: u32, rows: u32) -> u32 {
        // The newest stands right behind the head.
        let newest = match self.get(head).next {
            NONE => head,
            next => next,
        };
        if self.get(newest).rows < rows {
            return newest;
        }
        let start = self.get(newest).bounds.last + 1;
        let key: Box<[u8]> = self.key(head).into();
        self.chain(head, &key, Bounds::of_numbers(start, rows))
    }

    /// Takes the windows that have all their rows. The next one of each key is there then, as its number has to be kept.
    pub fn take_full(&mut self, rows: u32) -> Vec<u32> {
        let full = std::mem::take(&mut self.full);
        for slot in &full {
            let key = self.key(*slot);
            if let Some(head) = self.first_of(hash_key(key), key) {
                let next = self.unfilled(head, rows);
                if self.get(next).rows == 0 && self.get(next).pieces == 0 {
                    self.empty.push(next);
                }
            }
            self.get_mut(*slot).state = State::Taken;
        }
        self.empty.sort_unstable();
        self.empty.dedup();
        self.open -= full.len();
        full
    }

    /// Windows without rows that no index entry tells of yet.
    pub fn empty(&self) -> &[u32] {
        &self.empty
    }

    /// All of them have index entries now.
    pub fn clear_empty(&mut self) {
        self.empty.clear();
    }

    /// The first session of the key.
    #[inline]
    pub fn first_of(&self, hash: u64, key: &[u8]) -> Option<u32> {
        self.table
            .find(hash, |slot| self.keys.get(*slot) == key)
            .copied()
    }

    /// The session of the key that holds rows with this end, also if the running batch took it.
    pub fn find(&self, hash: u64, key: &[u8], end: i64) -> Option<u32> {
        let mut slot = self.first_of(hash, key)?;
        while slot != NONE {
            if self.get(slot).bounds.holds(end) {
                return Some(slot);
            }
            slot = self.get(slot).next;
        }
        None
    }

    /// Whether it is the session of the key that holds rows with this end.
    #[inline]
    pub fn is_of(&self, slot: u32, key: &[u8], end: i64) -> bool {
        self.get(slot).bounds.holds(end) && self.keys.get(slot) == key
    }

    /// Puts a row into the key's session that it touches, or into a new one. Sessions that it joins are absorbed into the
    /// one that is returned, and named in `absorbed`.
    pub fn add(&mut self, hash: u64, key: &[u8], row: Bounds, absorbed: &mut Vec<u32>) -> u32 {
        let Some(head) = self.first_of(hash, key) else {
            let slot = self.insert(hash, key, row);
            self.enqueue(slot);
            return slot;
        };
        let mut slot = head;
        while slot != NONE && !self.touches(slot, &row) {
            slot = self.get(slot).next;
        }
        if slot == NONE {
            let slot = self.chain(head, key, row);
            self.enqueue(slot);
            return slot;
        }
        let session = self.get_mut(slot);
        let before = session.bounds;
        session.bounds.unite(&row);
        if session.bounds == before || (session.next == NONE && slot == head) {
            return slot;
        }
        self.join(head, slot, absorbed)
    }

    #[inline]
    fn touches(&self, slot: u32, bounds: &Bounds) -> bool {
        let session = self.get(slot);
        session.state == State::Open && session.bounds.touches(bounds)
    }

    /// Joins what `slot` has come to touch. The first of the chain stays the first.
    fn join(&mut self, head: u32, mut slot: u32, absorbed: &mut Vec<u32>) -> u32 {
        while let Some(other) = self.touched_by(head, slot) {
            let (kept, gone) = match slot == head {
                true => (slot, other),
                false => (other, slot),
            };
            // Neither can be `gone` and the head: the head is `slot`, or comes before all others.
            let Session {
                bounds,
                pieces,
                next,
                ..
            } = *self.get(gone);
            let mut before = head;
            while self.get(before).next != gone {
                before = self.get(before).next;
            }
            self.get_mut(before).next = next;
            let session = self.get_mut(kept);
            session.bounds.unite(&bounds);
            session.pieces += pieces;
            self.get_mut(gone).state = State::Absorbed;
            self.open -= 1;
            absorbed.push(gone);
            // The one that is kept may be the former neighbour: what was absorbed before belongs to it too.
            slot = kept;
        }
        slot
    }

    /// Another session of the chain that `slot` touches.
    fn touched_by(&self, head: u32, slot: u32) -> Option<u32> {
        let bounds = self.get(slot).bounds;
        let mut other = head;
        while other != NONE && (other == slot || !self.touches(other, &bounds)) {
            other = self.get(other).next;
        }
        (other != NONE).then_some(other)
    }

    /// A new session of a key that has none. It has to be put into the order of closing.
    pub fn insert(&mut self, hash: u64, key: &[u8], bounds: Bounds) -> u32 {
        let slot = self.allot(key, bounds);
        let keys = &self.keys;
        self.table
            .insert_unique(hash, slot, |slot| hash_key(keys.get(*slot)));
        slot
    }

    /// A new session of a key that has some.
    pub fn chain(&mut self, head: u32, key: &[u8], bounds: Bounds) -> u32 {
        let slot = self.allot(key, bounds);
        self.get_mut(slot).next = self.get(head).next;
        self.get_mut(head).next = slot;
        slot
    }

    fn allot(&mut self, key: &[u8], bounds: Bounds) -> u32 {
        let session = Session {
            bounds,
            next: NONE,
            buffer: NONE,
            pieces: 0,
            mark: NONE,
            rows: 0,
            state: State::Open,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = session;
                slot
            }
            None => {
                self.slots.push(session);
                self.slots.len() as u32 - 1
            }
        };
        self.keys.set(slot, key);
        self.open += 1;
        if let Some(expected) = &mut self.expected {
            if expected.len() <= slot as usize {
                expected.resize(slot as usize + 1, UNKNOWN);
            }
            expected[slot as usize] = UNKNOWN;
        }
        slot
    }

    /// What the newest row says of when its session will be read.
    #[inline]
    pub fn expect(&mut self, slot: u32, time: i64) {
        if let Some(expected) = &mut self.expected {
            expected[slot as usize] = time;
        }
    }

    /// When the session will be read: by what the query says, else when it closes; `UNKNOWN` where nobody knows.
    pub fn read_time(&self, slot: u32) -> i64 {
        match &self.expected {
            Some(expected) => self.next_read(slot, expected),
            None => self.end(slot),
        }
    }

    fn next_read(&self, slot: u32, expected: &[i64]) -> i64 {
        match (expected[slot as usize], self.ending) {
            (UNKNOWN, Ending::Gap(_) | Ending::Latest(_) | Ending::Stated) => self.end(slot),
            (time, _) => time,
        }
    }

    /// `nearest` by what the query says, without the sessions of which nothing is known.
    fn nearest_expected(&self, expected: &[i64], least: usize, until: i64) -> Vec<u32> {
        let mut known: Vec<(i64, u32)> = (0..self.slots.len() as u32)
            .filter(|slot| self.get(*slot).state == State::Open && self.get(*slot).pieces > 0)
            .map(|slot| (self.next_read(slot, expected), slot))
            .filter(|(time, _)| *time != UNKNOWN)
            .collect();
        let due = known.iter().filter(|(time, _)| *time <= until).count();
        let count = least.max(due);
        if count < known.len() {
            known.select_nth_unstable(count);
            known.truncate(count);
        }
        known.into_iter().map(|(_, slot)| slot).collect()
    }

    /// Slots are numbered by u32, of which the largest means none.
    pub fn has_room(&self, more: usize) -> bool {
        self.slots.len() + more < NONE as usize
    }

    fn bucket(&self, slot: u32) -> i64 {
        self.end(slot).div_euclid(self.grain)
    }

    /// Puts a session into the order of closing.
    pub fn enqueue(&mut self, slot: u32) {
        let bucket = self.bucket(slot);
        self.queue.entry(bucket).or_default().push(slot);
        self.queued += 1;
    }

    fn release(&mut self, slot: u32) {
        self.slots[slot as usize].state = State::Free;
        self.free.push(slot);
    }

    /// Takes the sessions that have closed by the watermark, about in the order of their ends.
    pub fn take_due(&mut self, watermark: i64) -> Vec<u32> {
        let mut due = Vec::new();
        let mut waiting = Vec::new();
        while let Some(first) = self.queue.first_entry() {
            if *first.key() > watermark.div_euclid(self.grain) {
                break;
            }
            let slots = first.remove();
            self.queued -= slots.len();
            for slot in slots {
                if self.get(slot).state == State::Absorbed {
                    self.release(slot);
                } else if self.end(slot) <= watermark {
                    self.get_mut(slot).state = State::Taken;
                    due.push(slot);
                } else {
                    waiting.push(slot);
                }
            }
        }
        for slot in waiting {
            self.enqueue(slot);
        }
        self.open -= due.len();
        due
    }

    /// The sessions that close next, or will be read next by what the query says: all up to a time, and as many as
    /// `least` if there are.
    pub fn nearest(&mut self, least: usize, until: i64) -> Vec<u32> {
        if let Some(expected) = &self.expected {
            return self.nearest_expected(expected, least, until);
        }
        let mut chosen: Vec<u32> = Vec::new();
        let mut from = Unbounded;
        while let Some(bucket) = self.queue.range((from, Unbounded)).next().map(|(b, _)| *b) {
            if chosen.len() >= least && bucket > until.div_euclid(self.grain) {
                break;
            }
            let slots = self.queue.remove(&bucket).unwrap_or_default();
            self.queued -= slots.len();
            let mut here = Vec::with_capacity(slots.len());
            for slot in slots {
                if self.get(slot).state == State::Absorbed {
                    self.release(slot);
                } else if self.bucket(slot) == bucket {
                    here.push(slot);
                } else {
                    self.enqueue(slot);
                }
            }
            here.sort_unstable_by_key(|slot| self.end(*slot));
            let due = here.partition_point(|slot| self.end(*slot) <= until);
            let count = due.max(least.saturating_sub(chosen.len()));
            chosen.extend(here.iter().take(count));
            if !here.is_empty() {
                self.queued += here.len();
                self.queue.insert(bucket, here);
            }
            from = Excluded(bucket);
        }
        chosen
    }

    /// Forgets a session that was taken.
    pub fn remove(&mut self, slot: u32) {
        self.unlink(slot);
        self.release(slot);
    }

    /// Forgets an open session that is not in the order of closing.
    pub fn discard(&mut self, slot: u32) {
        self.unlink(slot);
        self.release(slot);
        self.open -= 1;
    }

    fn unlink(&mut self, slot: u32) {
        let hash = hash_key(self.keys.get(slot));
        let next = self.get(slot).next;
        let keys = &self.keys;
        let found = self
            .table
            .find_mut(hash, |head| keys.get(*head) == keys.get(slot));
        let Some(head) = found else { return };
        if *head != slot {
            let mut before = *head;
            while self.slots[before as usize].next != slot {
                before = self.slots[before as usize].next;
            }
            self.slots[before as usize].next = next;
        } else if next != NONE {
            *head = next;
        } else if let Ok(entry) = self.table.find_entry(hash, |head| *head == slot) {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_may_join_any_number_of_sessions() {
        const SESSIONS: i64 = 8_000;
        let mut sessions = Sessions::new(Ending::Latest(1), Some(1), false);
        let mut absorbed = Vec::new();
        let hash = hash_key(b"k");
        for number in 0..SESSIONS {
            let row = Bounds::of_row(10 * number, 10 * number + 1);
            sessions.add(hash, b"k", row, &mut absorbed);
        }
        assert_eq!(sessions.len(), SESSIONS as usize);
        let all = Bounds::of_row(0, 10 * SESSIONS);
        let slot = sessions.add(hash, b"k", all, &mut absorbed);
        assert_eq!(sessions.len(), 1);
        assert_eq!(absorbed.len(), SESSIONS as usize - 1);
        assert_eq!(sessions.get(slot).bounds.last, 10 * SESSIONS);
    }
}
