//! The stable hash that places a key. It is part of the file format: it never changes within a format version.

use xxhash_rust::xxh3::xxh3_64;

pub const BUCKET_BITS: u32 = 12;
pub const BUCKETS: u32 = 1 << BUCKET_BITS;

#[inline]
pub fn hash_key(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// The bucket of a hash: its top bits, so that hash order is bucket order.
#[inline]
pub fn bucket(hash: u64) -> u32 {
    (hash >> (u64::BITS - BUCKET_BITS)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_known_keys_never_changes() {
        assert_eq!(hash_key(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(hash_key(b"millpond"), 16_579_229_622_760_680_923);
    }

    #[test]
    fn buckets_follow_the_order_of_hashes() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket(1 << 52), 1);
    }
}
