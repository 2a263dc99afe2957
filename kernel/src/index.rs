//! A small open-addressing index from hashes to the numbers of entries that lie elsewhere.

/// Finds entries by hash; the caller says which of those with the same tag is meant. A place holds the lower half
/// of the hash as a tag, so that other entries are seldom looked at, and growing needs no hashes.
#[derive(Debug, Default)]
pub struct Index {
    places: Vec<Place>,
    entries: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    tag: u32,
    entry: u32,
}

const EMPTY: u32 = u32::MAX;
const FREE: Place = Place {
    tag: 0,
    entry: EMPTY,
};
const LEAST_PLACES: usize = 64;

/// What [`Index::find_or_insert`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Entry(u32),
    Inserted,
}

impl Index {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn len(&self) -> usize {
        self.entries
    }

    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    pub fn memory_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>()
    }

    /// Forgets all entries and keeps the memory.
    pub fn clear(&mut self) {
        self.places.fill(FREE);
        self.entries = 0;
    }

    /// The entry with this hash for which `is_it` holds.
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.places.is_empty() {
            return None;
        }
        let mask = self.places.len() - 1;
        let mut at = first_place(hash) & mask;
        loop {
            let place = self.places[at];
            if place.entry == EMPTY {
                return None;
            }
            if place.tag == hash as u32 && is_it(place.entry) {
                return Some(place.entry);
            }
            at = (at + 1) & mask;
        }
    }

    /// The entry that a search for this hash looks at first, if any.
    #[inline]
    pub fn candidate(&self, hash: u64) -> Option<u32> {
        let mask = self.places.len().checked_sub(1)?;
        let entry = self.places[first_place(hash) & mask].entry;
        (entry != EMPTY).then_some(entry)
    }

    /// Puts in an entry that is not there yet. Entries are numbered below `u32::MAX`.
    #[inline]
    pub fn insert(&mut self, hash: u64, entry: u32) {
        self.reserve_one();
        put(&mut self.places, hash as u32, entry);
        self.entries += 1;
    }

    /// Finds the entry, or puts in `entry` in its place, with one walk over the places.
    #[inline]
    pub fn find_or_insert(
        &mut self,
        hash: u64,
        entry: u32,
        mut is_it: impl FnMut(u32) -> bool,
    ) -> Found {
        self.reserve_one();
        let mask = self.places.len() - 1;
        let mut at = first_place(hash) & mask;
        loop {
            let place = &mut self.places[at];
            if place.entry == EMPTY {
                *place = Place {
                    tag: hash as u32,
                    entry,
                };
                self.entries += 1;
                return Found::Inserted;
            }
            if place.tag == hash as u32 && is_it(place.entry) {
                return Found::Entry(place.entry);
            }
            at = (at + 1) & mask;
        }
    }

    /// Keeps the places at most seven tenths full.
    #[inline]
    fn reserve_one(&mut self) {
        if (self.entries + 1) * 10 > self.places.len() * 7 {
            self.grow();
        }
    }

    #[cold]
    fn grow(&mut self) {
        let mut places = vec![FREE; (self.places.len() * 2).max(LEAST_PLACES)];
        for place in &self.places {
            if place.entry != EMPTY {
                put(&mut places, place.tag, place.entry);
            }
        }
        self.places = places;
    }
}

/// The tag alone decides the place, so that growing can find it again.
#[inline]
fn first_place(hash: u64) -> usize {
    hash as u32 as usize
}

#[inline]
fn put(places: &mut [Place], tag: u32, entry: u32) {
    let mask = places.len() - 1;
    let mut at = tag as usize & mask;
    while places[at].entry != EMPTY {
        at = (at + 1) & mask;
    }
    places[at] = Place { tag, entry };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_after_growing() {
        let mut index = Index::new();
        let hashes: Vec<u64> = (0..10_000_u64)
            .map(|i| crate::hash::hash_key(&i.to_le_bytes()))
            .collect();
        for (entry, hash) in hashes.iter().enumerate() {
            assert_eq!(index.find(*hash, |_| true), None);
            index.insert(*hash, entry as u32);
        }
        for (entry, hash) in hashes.iter().enumerate() {
            assert_eq!(
                index.find(*hash, |e| hashes[e as usize] == *hash),
                Some(entry as u32)
            );
        }
        assert_eq!(index.len(), 10_000);
        assert!(index.memory_bytes() >= 10_000 * 8);
    }

    #[test]
    fn entries_of_one_hash_are_told_apart_by_the_caller() {
        let mut index = Index::new();
        for entry in 0..200 {
            assert_eq!(
                index.find_or_insert(7, entry, |e| e == entry),
                Found::Inserted
            );
        }
        assert_eq!(
            index.find_or_insert(7, 999, |e| e == 150),
            Found::Entry(150)
        );
        index.clear();
        assert_eq!(index.find(7, |_| true), None);
    }
}
