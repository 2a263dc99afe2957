//! Which shard a key belongs to.

use crate::error::{Error, Result};
use crate::hash::{BUCKETS, bucket};

pub struct Shards {
    of_bucket: Vec<u32>,
    count: usize,
}

impl Shards {
    /// `starts`: the first bucket of each shard.
    pub fn new(starts: &[u32]) -> Result<Self> {
        let rising = starts.windows(2).all(|pair| pair[0] < pair[1]);
        let within = starts.last().is_some_and(|last| *last < BUCKETS);
        if starts.first() != Some(&0) || !rising || !within {
            return Err(Error::invalid(format!(
                "the first buckets of shards must rise from 0 and stay below {BUCKETS}"
            )));
        }
        let of_bucket = (0..BUCKETS)
            .map(|bucket| starts.partition_point(|start| *start <= bucket) as u32 - 1)
            .collect();
        Ok(Self {
            of_bucket,
            count: starts.len(),
        })
    }

    pub fn count(&self) -> usize {
        self.count
    }

    #[inline]
    pub fn of(&self, hash: u64) -> usize {
        self.of_bucket[bucket(hash) as usize] as usize
    }
}
