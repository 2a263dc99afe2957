//! The key filter of a run: a Bloom filter whose bits for one key share a cache line, so a probe costs one miss.
//!
//! It is part of the file format: which bits a hash sets never changes within a format version.

use crate::raw::prefetch;

/// Bytes of a line; a filter is a whole number of lines.
pub const LINE_BYTES: usize = 64;
const BITS_PER_KEY: u64 = 10;
const KEYS_PER_LINE: u64 = LINE_BYTES as u64 * 8 / BITS_PER_KEY;
const PROBES: u32 = 6;
/// Halvings that `fold` may need: a run can shrink to this share of the rows it was sized for.
const FOLDS: u64 = 1 << 6;

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Line([u64; 8]);

/// A set of hashes that may say "perhaps" of a hash it does not hold (about one time in a hundred), never "no" of one
/// it holds.
pub struct Filter {
    lines: Vec<Line>,
}

impl Filter {
    /// A filter with room for `rows` hashes.
    pub fn with_room(rows: u64) -> Self {
        let mut lines = rows.div_ceil(KEYS_PER_LINE).max(1);
        if lines > FOLDS {
            lines = lines.div_ceil(FOLDS) * FOLDS;
        }
        Self {
            lines: vec![Line::default(); usize::try_from(lines).unwrap_or(usize::MAX)],
        }
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || !bytes.len().is_multiple_of(LINE_BYTES) {
            return None;
        }
        let lines = bytes
            .chunks_exact(LINE_BYTES)
            .map(|chunk| {
                let mut line = Line::default();
                for (word, from) in line.0.iter_mut().zip(chunk.chunks_exact(8)) {
                    *word = u64::from_le_bytes(from.try_into().unwrap_or_default());
                }
                line
            })
            .collect();
        Some(Self { lines })
    }

    pub fn write_to(&self, out: &mut Vec<u8>) {
        for word in self.lines.iter().flat_map(|line| line.0) {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }

    /// Halves the filter while `rows` hashes still fit: for writers that know only an upper bound beforehand.
    pub fn fold(&mut self, rows: u64) {
        while self.lines.len().is_multiple_of(2)
            && rows <= self.lines.len() as u64 / 2 * KEYS_PER_LINE
        {
            // The line of a hash is its low bits scaled to the number of lines, so halving pairs neighbours.
            for pair in 0..self.lines.len() / 2 {
                let (even, odd) = (self.lines[2 * pair], self.lines[2 * pair + 1]);
                let line = &mut self.lines[pair];
                for (word, (a, b)) in line.0.iter_mut().zip(even.0.iter().zip(odd.0)) {
                    *word = a | b;
                }
            }
            self.lines.truncate(self.lines.len() / 2);
        }
        self.lines.shrink_to_fit();
    }

    /// By the low bits: the top bits are the bucket, of which a shard has only some.
    #[inline]
    fn line(&self, hash: u64) -> usize {
        (((hash & 0xffff_ffff) * self.lines.len() as u64) >> 32) as usize
    }

    #[inline]
    pub fn insert(&mut self, hash: u64) {
        let line = self.line(hash);
        let words = &mut self.lines[line].0;
        let mut bits = spread(hash);
        for _ in 0..PROBES {
            words[(bits >> 61) as usize] |= 1 << ((bits >> 55) & 63);
            bits = bits.rotate_left(9);
        }
    }

    /// As `insert` of each, with the waits for memory overlapped.
    pub fn insert_all(&mut self, hashes: &[u64]) {
        const AHEAD: usize = 16;
        for (at, hash) in hashes.iter().enumerate() {
            if let Some(ahead) = hashes.get(at + AHEAD) {
                self.prefetch(*ahead);
            }
            self.insert(*hash);
        }
    }

    #[inline]
    pub fn may_hold(&self, hash: u64) -> bool {
        let words = &self.lines[self.line(hash)].0;
        let bits = spread(hash);
        // Without a branch for each bit: which of them is missing can't be foretold.
        let seen = (0..PROBES).fold(1, |seen, probe| {
            let bits = bits.rotate_left(9 * probe);
            seen & (words[(bits >> 61) as usize] >> ((bits >> 55) & 63))
        });
        seen == 1
    }

    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch(&self.lines, self.line(hash));
    }
}

#[inline]
fn spread(hash: u64) -> u64 {
    hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::hash_key;

    fn hashes(range: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
        range.map(|i| hash_key(&i.to_le_bytes()))
    }

    #[test]
    fn what_was_inserted_is_found_and_little_else() {
        for rows in [1, 50, 1_000, 100_000] {
            let mut filter = Filter::with_room(rows);
            hashes(0..rows).for_each(|hash| filter.insert(hash));
            assert!(hashes(0..rows).all(|hash| filter.may_hold(hash)));
            let wrong = hashes(rows..rows + 100_000)
                .filter(|hash| filter.may_hold(*hash))
                .count();
            assert!(wrong < 2_500, "{wrong} of 100000 for {rows} rows");
        }
    }

    #[test]
    fn a_folded_filter_holds_the_same_hashes_in_less_room() {
        let mut filter = Filter::with_room(1_000_000);
        hashes(0..20_000).for_each(|hash| filter.insert(hash));
        filter.fold(20_000);
        assert!(filter.memory_bytes() <= 60_000, "{}", filter.memory_bytes());
        assert!(hashes(0..20_000).all(|hash| filter.may_hold(hash)));
        let wrong = hashes(20_000..120_000)
            .filter(|hash| filter.may_hold(*hash))
            .count();
        assert!(wrong < 2_500, "{wrong}");
    }

    #[test]
    fn bytes_give_the_filter_back() {
        let mut filter = Filter::with_room(300);
        hashes(0..300).for_each(|hash| filter.insert(hash));
        let mut bytes = Vec::new();
        filter.write_to(&mut bytes);
        let back = Filter::from_bytes(&bytes);
        assert!(back.is_some_and(|back| hashes(0..300).all(|hash| back.may_hold(hash))));
        assert!(Filter::from_bytes(&bytes[1..]).is_none());
        assert!(Filter::from_bytes(&[]).is_none());
    }
}
