//! A run, and as many of its blocks in memory as there is room for.
//!
//! Keys lie in a run by their hashes, so its first blocks are as good as any others: what is held of it is a prefix.

use std::sync::Arc;

use crate::error::Result;
use crate::lookup::{Counters, block_bytes, probes_of, together};
use crate::run::Run;
use crate::table::Keys;

pub struct HeldRun {
    pub run: Arc<Run>,
    /// The bytes of the first `held` blocks.
    bytes: Vec<u8>,
    held: usize,
}

impl HeldRun {
    pub fn new(run: Arc<Run>) -> Self {
        Self {
            run,
            bytes: Vec::new(),
            held: 0,
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.run.memory_bytes() + self.bytes.capacity()
    }

    /// Holds the blocks that fit into the room and no others; returns what they take.
    pub fn hold(&mut self, room: usize) -> Result<usize> {
        let blocks = self.run.blocks();
        let mut wanted = 0;
        let mut length = 0;
        for block in blocks {
            if length + block.length as usize > room {
                break;
            }
            length += block.length as usize;
            wanted += 1;
        }
        if wanted > self.held {
            let mut bytes = Vec::with_capacity(length);
            self.run.read_blocks(0, wanted, &mut bytes)?;
            self.bytes = bytes;
            self.held = wanted;
        } else if wanted < self.held {
            self.bytes.truncate(length);
            self.bytes.shrink_to_fit();
            self.held = wanted;
        }
        Ok(length)
    }

    /// Looks for the keys numbered in `wanted`, which stand in the order of their hashes, and hands the lists of those
    /// that are there to `found`. `scratch` is for blocks that are read.
    pub fn find<K: Keys>(
        &self,
        keys: &K,
        wanted: &[u32],
        counters: &mut Counters,
        scratch: &mut Vec<u8>,
        mut found: impl FnMut(u32, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let run = &*self.run;
        let probes = probes_of(run, keys, wanted, counters);
        let in_memory = probes.partition_point(|(block, _)| *block < self.held);
        let (held, mut rest) = probes.split_at(in_memory);
        let mut look = |bytes: &[u8], at: usize, counters: &mut Counters| -> Result<()> {
            let number = wanted[at];
            let (hash, key) = (keys.hash(number as usize), keys.key(number as usize));
            match run.find_in_block(bytes, hash, key)? {
                Some(row) => found(number, row.value),
                None => {
                    counters.false_positives += 1;
                    Ok(())
                }
            }
        };
        for (block, at) in held {
            counters.memory_hits += 1;
            look(block_bytes(run, 0, *block, &self.bytes), *at, counters)?;
        }
        while let Some((first, _)) = rest.first() {
            let (now, later) = rest.split_at(together(run, rest));
            let end = now.last().map_or(*first, |(block, _)| *block) + 1;
            run.read_blocks(*first, end, scratch)?;
            counters.block_reads += (end - first) as u64;
            counters.read_bytes += scratch.len() as u64;
            for (block, at) in now {
                look(block_bytes(run, *first, *block, scratch), *at, counters)?;
            }
            rest = later;
        }
        Ok(())
    }
}
