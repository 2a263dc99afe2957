//! The table of one slice: groups in memory, found by hash.
//!
//! An index of eight-byte slots points into an arena of entries of one width. Keys and values of varying length lie
//! in a heap beside it. Entries never move between two calls of `retain`, so an id taken from the index stays good.

use crate::error::{Error, Result};
use crate::raw::prefetch;
use crate::rows::{Row, RowShape};
use crate::sort::sort_by_hash;

const EPOCH_AT: usize = 8;
const FLAGS_AT: usize = 12;
const KEY_AT: usize = 13;
/// Offset u64 and length u32 of a key in the heap.
const KEY_SPAN: usize = 12;
/// Offset u64, length u32 and room u32 of a value in the heap.
const VALUE_SPAN: usize = 16;

const TOMBSTONE: u8 = 1;
/// Changed since the last flush.
const DIRTY: u8 = 2;
/// Dirty, and no run has the group: it came into being since the last flush.
const FRESH: u8 = 4;

const FIRST_SLOTS: usize = 16;
const LEAST_ROOM: usize = 512;
/// How far ahead of a row its slot, its entry and its heap bytes are fetched.
const FETCH_SLOT: usize = 24;
const FETCH_ENTRY: usize = 16;
const FETCH_KEY: usize = 8;

/// Keys to look for, numbered.
pub trait Keys {
    fn hash(&self, at: usize) -> u64;
    fn key(&self, at: usize) -> &[u8];
}

pub struct Table {
    shape: RowShape,
    value_at: usize,
    stride: usize,
    /// The upper half of an entry's hash, and the entry's number plus one; 0 is free.
    slots: Vec<u64>,
    arena: Vec<u8>,
    heap: Vec<u8>,
    garbage_bytes: usize,
    live: u64,
    touched: Vec<u32>,
    dirty: Vec<u32>,
    dirty_bytes: u64,
}

impl Table {
    pub fn new(shape: RowShape) -> Self {
        let value_at = KEY_AT + shape.key_width.unwrap_or(KEY_SPAN);
        let end = value_at + shape.value_width.unwrap_or(VALUE_SPAN);
        Self {
            shape,
            value_at,
            stride: end.next_multiple_of(8),
            slots: vec![0; FIRST_SLOTS],
            arena: Vec::new(),
            heap: Vec::new(),
            garbage_bytes: 0,
            live: 0,
            touched: Vec::new(),
            dirty: Vec::new(),
            dirty_bytes: 0,
        }
    }

    /// Entries, tombstones included.
    pub fn len(&self) -> usize {
        self.arena.len() / self.stride
    }
    pub fn is_empty(&self) -> bool {
        self.arena.is_empty()
    }
    /// Entries that are groups.
    pub fn live(&self) -> u64 {
        self.live
    }
    /// Entries that the running batch changed.
    pub fn touched(&self) -> &[u32] {
        &self.touched
    }
    /// Entries that changed since the last flush.
    pub fn dirty(&self) -> &[u32] {
        &self.dirty
    }
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }
    pub fn garbage_bytes(&self) -> usize {
        self.garbage_bytes
    }
    pub fn heap_bytes(&self) -> usize {
        self.heap.len()
    }

    pub fn memory_bytes(&self) -> usize {
        let lists = self.touched.capacity() + self.dirty.capacity();
        self.slots.capacity() * 8 + self.arena.capacity() + self.heap.capacity() + lists * 4
    }

    /// Likewise without what is reserved for entries to come.
    pub fn used_bytes(&self) -> usize {
        let reserved =
            self.arena.capacity() - self.arena.len() + self.heap.capacity() - self.heap.len();
        self.memory_bytes() - reserved
    }

    /// Bytes of every value, 0 where they vary.
    pub fn value_width(&self) -> usize {
        self.shape.value_width.unwrap_or(0)
    }

    /// What an entry costs in memory, its share of the index included.
    pub fn entry_bytes(&self, id: u32) -> usize {
        const SLOT_SHARE: usize = 20;
        self.stride + SLOT_SHARE + self.entry_heap_bytes(id)
    }

    /// Of its key and value, where they vary in length.
    fn entry_heap_bytes(&self, id: u32) -> usize {
        let in_heap =
            |width: Option<usize>, length: usize| if width.is_none() { length } else { 0 };
        let key = in_heap(self.shape.key_width, self.key(id).len());
        key + in_heap(self.shape.value_width, self.value(id).len())
    }

    #[inline]
    fn entry(&self, id: u32) -> &[u8] {
        let at = id as usize * self.stride;
        &self.arena[at..at + self.stride]
    }

    #[inline]
    fn entry_mut(&mut self, id: u32) -> &mut [u8] {
        let at = id as usize * self.stride;
        &mut self.arena[at..at + self.stride]
    }

    #[inline]
    pub fn hash(&self, id: u32) -> u64 {
        read_u64(self.entry(id), 0)
    }
    #[inline]
    pub fn epoch(&self, id: u32) -> u32 {
        read_u32(self.entry(id), EPOCH_AT)
    }
    #[inline]
    pub fn is_tombstone(&self, id: u32) -> bool {
        self.entry(id)[FLAGS_AT] & TOMBSTONE != 0
    }
    #[inline]
    pub fn is_dirty(&self, id: u32) -> bool {
        self.entry(id)[FLAGS_AT] & DIRTY != 0
    }

    #[inline]
    pub fn is_fresh(&self, id: u32) -> bool {
        self.entry(id)[FLAGS_AT] & FRESH != 0
    }

    #[inline]
    pub fn key(&self, id: u32) -> &[u8] {
        let entry = self.entry(id);
        match self.shape.key_width {
            Some(width) => &entry[KEY_AT..KEY_AT + width],
            None => self.heap_bytes_at(entry, KEY_AT),
        }
    }

    #[inline]
    pub fn value(&self, id: u32) -> &[u8] {
        let entry = self.entry(id);
        match self.shape.value_width {
            Some(width) => &entry[self.value_at..self.value_at + width],
            None => self.heap_bytes_at(entry, self.value_at),
        }
    }

    #[inline]
    fn heap_bytes_at(&self, entry: &[u8], span_at: usize) -> &[u8] {
        let offset = read_u64(entry, span_at) as usize;
        let length = read_u32(entry, span_at + 8) as usize;
        &self.heap[offset..offset + length]
    }

    pub fn row(&self, id: u32) -> Row<'_> {
        Row {
            hash: self.hash(id),
            tombstone: self.is_tombstone(id),
            key: self.key(id),
            value: self.value(id),
        }
    }

    /// Asks for an entry's cache lines.
    #[inline]
    pub fn prefetch(&self, id: u32) {
        let at = id as usize * self.stride;
        prefetch(&self.arena, at);
        prefetch(&self.arena, at + self.stride - 1);
    }

    #[inline]
    fn position(&self, hash: u64) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    /// The number plus one of the first entry from the hash's position on that may be it; 0: there is none.
    #[inline]
    fn candidate(&self, hash: u64) -> u32 {
        let mut at = self.position(hash);
        loop {
            let slot = self.slots[at];
            if slot == 0 || slot >> 32 == hash >> 32 {
                return slot as u32;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    pub fn find(&self, hash: u64, key: &[u8]) -> Option<u32> {
        let mut at = self.position(hash);
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            if slot >> 32 == hash >> 32 {
                let id = slot as u32 - 1;
                if same(self.key(id), key) {
                    return Some(id);
                }
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    /// Looks for the keys numbered in `order` and hands each to `each` with its entry. Memory is fetched ahead of its
    /// use. `each` may add and change entries, not remove them.
    pub fn probe<K: Keys>(
        &mut self,
        keys: &K,
        order: &[u32],
        mut each: impl FnMut(&mut Self, usize, Option<u32>) -> Result<()>,
    ) -> Result<()> {
        let mut candidates = [0u32; FETCH_ENTRY];
        let keys_vary = self.shape.key_width.is_none();
        let values_vary = self.shape.value_width.is_none();
        let ahead = |step: usize| order.get(step).map(|row| *row as usize);
        for step in 0..FETCH_ENTRY.min(order.len()) {
            candidates[step] = self.candidate(keys.hash(order[step] as usize));
            self.prefetch(candidates[step].saturating_sub(1));
        }
        for (step, row) in order.iter().enumerate() {
            if let Some(row) = ahead(step + FETCH_SLOT) {
                prefetch(&self.slots, self.position(keys.hash(row)));
            }
            let candidate = candidates[step % FETCH_ENTRY];
            if let Some(row) = ahead(step + FETCH_ENTRY) {
                let next = self.candidate(keys.hash(row));
                candidates[step % FETCH_ENTRY] = next;
                self.prefetch(next.saturating_sub(1));
            }
            let next = candidates[(step + FETCH_KEY) % FETCH_ENTRY];
            if next != 0 && keys_vary {
                prefetch(&self.heap, read_u64(self.entry(next - 1), KEY_AT) as usize);
            }
            if next != 0 && values_vary {
                let at = read_u64(self.entry(next - 1), self.value_at);
                prefetch(&self.heap, at as usize);
            }
            let row = *row as usize;
            // A key that was not there when fetched may have come with a row in between.
            let found = match candidate {
                0 => self.find(keys.hash(row), keys.key(row)),
                _ if same(self.key(candidate - 1), keys.key(row)) => Some(candidate - 1),
                _ => self.find(keys.hash(row), keys.key(row)),
            };
            each(self, row, found)?;
        }
        Ok(())
    }

    /// Makes room for so many more entries at once.
    pub fn reserve(&mut self, entries: usize) {
        let slots = ((self.len() + entries) * 10 / 7 + 1).next_power_of_two();
        if slots > self.slots.len() {
            self.rebuild_slots(slots);
        }
        self.arena.reserve_exact(entries * self.stride);
    }

    /// Adds an entry for a key that has none. `epoch`: that of the last batch that changed it.
    pub fn add(&mut self, row: Row<'_>, epoch: u32) -> Result<u32> {
        let id = u32::try_from(self.len())
            .ok()
            .filter(|id| *id < u32::MAX - 1)
            .ok_or_else(|| {
                Error::invalid(
                    "more than four billion groups in one slice of one shard; use more shards",
                )
            })?;
        if (self.len() + 1) * 10 > self.slots.len() * 7 {
            self.rebuild_slots(self.slots.len() * 2);
        }
        make_room(&mut self.arena, self.stride);
        let end = self.arena.len() + self.stride;
        self.arena.extend_from_slice(&row.hash.to_le_bytes());
        self.arena.extend_from_slice(&epoch.to_le_bytes());
        self.arena.push(if row.tombstone { TOMBSTONE } else { 0 });
        match self.shape.key_width {
            Some(_) => self.arena.extend_from_slice(row.key),
            None => {
                let offset = self.push_heap(row.key);
                self.arena.extend_from_slice(&offset.to_le_bytes());
                self.arena
                    .extend_from_slice(&(row.key.len() as u32).to_le_bytes());
            }
        }
        match self.shape.value_width {
            Some(_) => self.arena.extend_from_slice(row.value),
            None => {
                let offset = self.push_heap(row.value);
                let length = (row.value.len() as u32).to_le_bytes();
                self.arena.extend_from_slice(&offset.to_le_bytes());
                self.arena.extend_from_slice(&length);
                self.arena.extend_from_slice(&length);
            }
        }
        self.arena.resize(end, 0);
        self.live += u64::from(!row.tombstone);
        self.fill_slot(row.hash, id);
        Ok(id)
    }

    fn push_heap(&mut self, bytes: &[u8]) -> u64 {
        let offset = self.heap.len();
        make_room(&mut self.heap, bytes.len());
        self.heap.extend_from_slice(bytes);
        offset as u64
    }

    #[inline]
    fn fill_slot(&mut self, hash: u64, id: u32) {
        let mut at = self.position(hash);
        while self.slots[at] != 0 {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = (hash >> 32 << 32) | u64::from(id + 1);
    }

    fn rebuild_slots(&mut self, slots: usize) {
        match slots == self.slots.len() {
            true => self.slots.fill(0),
            false => self.slots = vec![0; slots],
        }
        const AHEAD: usize = 16;
        for id in 0..self.len() {
            if id + AHEAD < self.len() {
                prefetch(&self.slots, self.position(self.hash((id + AHEAD) as u32)));
            }
            self.fill_slot(self.hash(id as u32), id as u32);
        }
    }

    /// Notes that the batch of this epoch changed the entry.
    #[inline]
    pub fn touch(&mut self, id: u32, epoch: u32) {
        let entry = self.entry_mut(id);
        let was_dirty = entry[FLAGS_AT] & DIRTY != 0;
        let was_touched = read_u32(entry, EPOCH_AT) == epoch;
        if !was_dirty {
            entry[FLAGS_AT] |= DIRTY;
            self.dirty.push(id);
            self.dirty_bytes += self.row_bytes(id);
        }
        if !was_touched {
            self.entry_mut(id)[EPOCH_AT..EPOCH_AT + 4].copy_from_slice(&epoch.to_le_bytes());
            self.touched.push(id);
        }
    }

    /// Notes that no run has the group of the entry, just added and touched.
    #[inline]
    pub fn note_fresh(&mut self, id: u32) {
        self.entry_mut(id)[FLAGS_AT] |= FRESH;
    }

    /// Notes that the entry, just added with the running batch's epoch, is that batch's, without being dirty.
    pub fn note_touched(&mut self, id: u32) {
        self.touched.push(id);
    }

    /// Bytes of the entry's row in a run.
    #[inline]
    fn row_bytes(&self, id: u32) -> u64 {
        match self.shape.stride() {
            Some(stride) => stride as u64,
            None => self
                .shape
                .row_bytes(self.key(id).len(), self.value(id).len()) as u64,
        }
    }

    /// The value of a live entry, to be merged in place; values are of one width.
    #[inline]
    pub fn fixed_value_mut(&mut self, id: u32) -> &mut [u8] {
        let (at, width) = (self.value_at, self.shape.value_width.unwrap_or(0));
        &mut self.entry_mut(id)[at..at + width]
    }

    /// The value of a live entry, to be changed in place without a change of its length; values vary in width.
    #[inline]
    pub fn heap_value_mut(&mut self, id: u32) -> &mut [u8] {
        let entry = self.entry(id);
        let offset = read_u64(entry, self.value_at) as usize;
        let length = read_u32(entry, self.value_at + 8) as usize;
        &mut self.heap[offset..offset + length]
    }

    /// Gives the entry a value; a tombstone becomes a group again.
    pub fn set_value(&mut self, id: u32, value: &[u8]) {
        if self.is_tombstone(id) {
            self.entry_mut(id)[FLAGS_AT] &= !TOMBSTONE;
            self.live += 1;
        }
        if self.shape.value_width.is_some() {
            self.fixed_value_mut(id).copy_from_slice(value);
        } else {
            self.set_heap_value(id, value);
        }
    }

    fn set_heap_value(&mut self, id: u32, value: &[u8]) {
        let at = self.value_at;
        let entry = self.entry(id);
        let offset = read_u64(entry, at) as usize;
        let length = read_u32(entry, at + 8) as usize;
        let room = read_u32(entry, at + 12) as usize;
        if self.is_dirty(id) {
            self.dirty_bytes = self.dirty_bytes + value.len() as u64 - length as u64;
        }
        let (offset, room) = if value.len() <= room {
            self.heap[offset..offset + value.len()].copy_from_slice(value);
            (offset as u64, room)
        } else {
            self.garbage_bytes += room;
            (self.push_heap(value), value.len())
        };
        let entry = self.entry_mut(id);
        entry[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        entry[at + 8..at + 12].copy_from_slice(&(value.len() as u32).to_le_bytes());
        entry[at + 12..at + 16].copy_from_slice(&(room as u32).to_le_bytes());
    }

    /// Makes a live entry a tombstone.
    pub fn bury(&mut self, id: u32) {
        if self.is_tombstone(id) {
            return;
        }
        self.live -= 1;
        if self.shape.value_width.is_none() {
            self.set_heap_value(id, &[]);
        } else {
            self.fixed_value_mut(id).fill(0);
        }
        self.entry_mut(id)[FLAGS_AT] |= TOMBSTONE;
    }

    /// What was dirty has been written.
    pub fn clear_dirty(&mut self) {
        for id in std::mem::take(&mut self.dirty) {
            self.entry_mut(id)[FLAGS_AT] &= !(DIRTY | FRESH);
        }
        self.dirty_bytes = 0;
    }

    /// The batch is committed: what it touched is like the rest from here on.
    pub fn clear_touched(&mut self) {
        self.touched.clear();
        self.touched.shrink_to(1024);
        self.dirty.shrink_to(1024);
    }

    /// Keeps the entries that `keep` accepts. What the others took is used again, or given back where it is more than
    /// the table is likely to need. `epoch`: the running batch's.
    pub fn retain(&mut self, epoch: u32, mut keep: impl FnMut(&Self, u32) -> bool) {
        let kept: Vec<u32> = (0..self.len() as u32)
            .filter(|id| keep(self, *id))
            .collect();
        self.touched.clear();
        self.dirty.clear();
        self.dirty_bytes = 0;
        self.live = 0;
        for (to, id) in kept.iter().enumerate() {
            self.live += u64::from(!self.is_tombstone(*id));
            if self.is_dirty(*id) {
                self.dirty_bytes += self.row_bytes(*id);
                self.dirty.push(to as u32);
            }
            if self.epoch(*id) == epoch {
                self.touched.push(to as u32);
            }
            let from = *id as usize * self.stride;
            self.arena
                .copy_within(from..from + self.stride, to * self.stride);
        }
        self.arena.truncate(kept.len() * self.stride);
        self.close_gaps();
        give_back(&mut self.arena);
        give_back(&mut self.heap);
        let needed = (kept.len() * 10 / 7 + 1)
            .next_power_of_two()
            .max(FIRST_SLOTS);
        self.rebuild_slots(needed);
    }

    /// Moves what entries have in the heap to its beginning, where it lies. A second heap would be new memory, each
    /// page of which costs more than moving what is on it.
    fn close_gaps(&mut self) {
        let key_at = self.shape.key_width.is_none().then_some(KEY_AT);
        let value_at = self.shape.value_width.is_none().then_some(self.value_at);
        let spans_of = |entry: usize| {
            [key_at, value_at]
                .into_iter()
                .flatten()
                .map(move |at| entry + at)
        };
        let mut spans: Vec<(u64, usize)> = (0..self.arena.len())
            .step_by(self.stride)
            .flat_map(spans_of)
            .map(|at| (read_u64(&self.arena, at), at))
            .collect();
        // Nearly sorted: entries lie in the order in which they came, and so do their bytes until they grow.
        spans.sort_unstable();
        let mut end = 0;
        for (offset, at) in spans {
            let length = read_u32(&self.arena, at + 8);
            let from = offset as usize;
            self.heap.copy_within(from..from + length as usize, end);
            self.arena[at..at + 8].copy_from_slice(&(end as u64).to_le_bytes());
            end += length as usize;
        }
        if let Some(value_at) = value_at {
            for entry in (0..self.arena.len()).step_by(self.stride) {
                // A value has no more room than it needs now.
                let (length, room) = (entry + value_at + 8, entry + value_at + 12);
                self.arena.copy_within(length..room, room);
            }
        }
        self.heap.truncate(end);
        self.garbage_bytes = 0;
    }

    pub fn give_reserve_back(&mut self) {
        self.arena.shrink_to_fit();
        self.heap.shrink_to_fit();
    }

    /// The entries given, in the order of runs.
    pub fn sorted(&self, ids: impl Iterator<Item = u32> + Clone) -> Vec<(u64, u32)> {
        let mut ahead = ids.clone().skip(FETCH_ENTRY);
        let items = ids.map(|id| {
            if let Some(ahead) = ahead.next() {
                prefetch(&self.arena, ahead as usize * self.stride);
            }
            (self.hash(id), id)
        });
        sort_by_hash(items.collect(), |a, b| self.key(a).cmp(self.key(b)))
    }
}

/// What is reserved counts as used: a vector that doubles would drive out entries that fit.
#[inline]
fn make_room(bytes: &mut Vec<u8>, more: usize) {
    if bytes.capacity() - bytes.len() < more {
        bytes.reserve_exact((bytes.len() / 8).max(more).max(LEAST_ROOM));
    }
}

/// Leaves room for as much again as half of what is there.
fn give_back(bytes: &mut Vec<u8>) {
    bytes.shrink_to(bytes.len() + bytes.len() / 2);
}

#[inline(always)]
fn read_u64(bytes: &[u8], at: usize) -> u64 {
    let chunk = bytes[at..].first_chunk::<8>();
    chunk.map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[inline(always)]
fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let chunk = bytes[at..].first_chunk::<4>();
    chunk.map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

/// Equality without a call for the short keys that are the rule.
#[inline(always)]
fn same(a: &[u8], b: &[u8]) -> bool {
    match (a.len(), a.len() == b.len()) {
        (8..=16, true) => {
            a.first_chunk::<8>() == b.first_chunk::<8>()
                && a.last_chunk::<8>() == b.last_chunk::<8>()
        }
        (_, equal) => equal && a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_was_cut_down_reserves_little_for_the_entries_that_follow() -> Result<()> {
        let mut table = Table::new(RowShape {
            key_width: Some(8),
            value_width: None,
        });
        let value = [7; 100];
        for key in 0..20_000u64 {
            let row = Row {
                hash: key << 20,
                tombstone: false,
                key: &key.to_le_bytes(),
                value: &value,
            };
            table.add(row, 1)?;
        }
        table.retain(2, |_, id| id % 2 == 0);
        let before = table.memory_bytes();
        let key = 1u64 << 40;
        let row = Row {
            hash: key,
            tombstone: false,
            key: &key.to_le_bytes(),
            value: &value,
        };
        table.add(row, 2)?;
        let after = table.memory_bytes();
        assert!(after < before + before / 4, "{before} became {after}");
        assert_eq!(table.value(10_000), value);
        Ok(())
    }

    #[test]
    fn entries_keep_what_they_have_when_others_go_and_the_room_is_used_again() -> Result<()> {
        let shape = RowShape {
            key_width: None,
            value_width: None,
        };
        let mut table = Table::new(shape);
        let key = |number: u32| vec![number as u8; 1 + number as usize % 5];
        let value = |number: u32| vec![!number as u8; number as usize % 90];
        let longer = |number: u32| vec![number as u8; 200 + number as usize % 7];
        for number in 0..5_000u32 {
            let (key, value) = (key(number), value(number));
            let row = Row {
                hash: u64::from(number) << 32,
                tombstone: false,
                key: &key,
                value: &value,
            };
            table.add(row, 1)?;
        }
        // Values that grew lie behind all others, in another order.
        for number in (0..5_000).rev().filter(|number| number % 3 == 0) {
            table.set_value(number, &longer(number));
        }
        table.bury(8);
        let before = table.memory_bytes();
        let stays = |number: u32| number % 4 != 1;
        table.retain(2, |_, id| stays(id));
        assert_eq!(table.live(), 3_749);
        for (id, number) in (0..5_000).filter(|number| stays(*number)).enumerate() {
            let id = id as u32;
            assert_eq!(table.key(id), key(number));
            let expected = match number {
                8 => Vec::new(),
                _ if number % 3 == 0 => longer(number),
                _ => value(number),
            };
            assert_eq!(table.value(id), expected);
            assert_eq!(table.find(u64::from(number) << 32, &key(number)), Some(id));
        }
        table.set_value(0, &[1; 10_000]);
        assert_eq!(table.value(0), [1; 10_000]);
        assert!(table.memory_bytes() <= before && table.used_bytes() < before);
        table.retain(2, |_, id| id < 100);
        assert!(table.memory_bytes() < before / 4);
        Ok(())
    }
}
