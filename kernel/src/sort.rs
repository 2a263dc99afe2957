//! Sorts numbered things by hash. Hashes are spread evenly, so one scattering pass leaves pieces that fit the cache.

use std::cmp::Ordering;

/// Items per piece that the scattering pass aims at.
const PIECE: usize = 64;
const MOST_PIECES: usize = 1 << 14;

/// By hash, and where hashes are equal by `tie` of the numbers.
pub fn sort_by_hash(
    mut items: Vec<(u64, u32)>,
    tie: impl Fn(u32, u32) -> Ordering,
) -> Vec<(u64, u32)> {
    let order =
        |(a, left): &(u64, u32), (b, right): &(u64, u32)| a.cmp(b).then_with(|| tie(*left, *right));
    let smallest = items.iter().map(|item| item.0).min().unwrap_or(0);
    let largest = items.iter().map(|item| item.0).max().unwrap_or(0);
    let pieces = (items.len() / PIECE).next_power_of_two().min(MOST_PIECES);
    if pieces < 4 || (largest - smallest) < pieces as u64 {
        items.sort_unstable_by(order);
        return items;
    }
    // The piece of a hash: its leading bits, counted from the highest bit in which two hashes differ.
    let shift = (u64::BITS - (largest - smallest).leading_zeros()) - pieces.trailing_zeros();
    let piece = |hash: u64| ((hash - smallest) >> shift) as usize;
    let mut ends = vec![0usize; pieces];
    for (hash, _) in &items {
        ends[piece(*hash)] += 1;
    }
    let mut start = 0;
    for end in &mut ends {
        start += std::mem::replace(end, start);
    }
    let mut sorted = vec![(0, 0); items.len()];
    for item in items {
        let end = &mut ends[piece(item.0)];
        sorted[*end] = item;
        *end += 1;
    }
    let mut start = 0;
    for end in ends {
        sorted[start..end].sort_unstable_by(order);
        start = end;
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::hash_key;

    fn check(items: Vec<(u64, u32)>) {
        let mut expected = items.clone();
        expected.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        assert_eq!(sort_by_hash(items, |a, b| b.cmp(&a)), expected);
    }

    #[test]
    fn any_number_of_hashes_of_any_range_is_sorted_with_ties_as_asked() {
        for count in [0u32, 1, 2, 100, 5_000, 70_000] {
            for mask in [u64::MAX, 0, 1, 0xff, u64::MAX >> 20, 0xfff0_0000_0000_0000] {
                check(
                    (0..count)
                        .map(|i| (hash_key(&i.to_le_bytes()) & mask, i))
                        .collect(),
                );
            }
        }
        check(vec![(u64::MAX, 0), (0, 1), (1 << 63, 2)]);
    }
}
