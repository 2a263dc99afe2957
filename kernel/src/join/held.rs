//! A run, and as many of its blocks in memory as there is room for.
//!
//! Keys lie in a run by their hashes, so its first blocks are as good as any others: what is held of it is a prefix. A
//! run that will not be asked soon may be shut: then not even its block index and key filter are in memory.

use std::sync::Arc;
use std::time::Instant;

use crate::error::Result;
use crate::lookup::{Counters, block_bytes, probes_of, together};
use crate::run::{Run, ShutRun};
use crate::table::Keys;

#[derive(Clone)]
enum Shelf {
    Open(Arc<Run>),
    Shut(Arc<ShutRun>),
}

impl Shelf {
    /// The run; one that is shut is opened for whoever asks, and stays shut.
    fn run(&self) -> Result<Arc<Run>> {
        match self {
            Self::Open(run) => Ok(Arc::clone(run)),
            Self::Shut(shut) => Ok(Arc::new(shut.open()?)),
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Open(one), Self::Open(other)) => Arc::ptr_eq(one, other),
            (Self::Shut(one), Self::Shut(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

pub struct HeldRun {
    shelf: Shelf,
    /// The bytes of the first `held` blocks.
    bytes: Vec<u8>,
    held: usize,
    /// Bytes of blocks that should be held.
    wanted: usize,
    /// Just written.
    is_new: bool,
    /// What is held was read ahead, beside the batches.
    is_ahead: bool,
}

/// Blocks of a run that should be in memory and are not.
pub struct Missing {
    shelf: Shelf,
    room: usize,
    is_new: bool,
}

impl Missing {
    pub fn read(self) -> Result<Ahead> {
        let run = self.shelf.run()?;
        let (blocks, length) = fitting(&run, self.room);
        let mut bytes = Vec::with_capacity(length);
        match self.is_new {
            true => run.read_near_blocks(0, blocks, &mut bytes)?,
            false => run.read_blocks(0, blocks, &mut bytes)?,
        }
        Ok(Ahead {
            of: self.shelf,
            run,
            bytes,
            blocks,
        })
    }
}

/// The first blocks of a run, read ahead.
pub struct Ahead {
    of: Shelf,
    run: Arc<Run>,
    bytes: Vec<u8>,
    blocks: usize,
}

impl HeldRun {
    pub fn new(run: Arc<Run>) -> Self {
        Self {
            shelf: Shelf::Open(run),
            bytes: Vec::new(),
            held: 0,
            wanted: 0,
            is_new: false,
            is_ahead: false,
        }
    }

    /// A run that was just written.
    pub fn just_written(run: Arc<Run>) -> Self {
        Self {
            is_new: true,
            ..Self::new(run)
        }
    }

    pub fn is_new(&self) -> bool {
        self.is_new
    }

    pub fn run(&self) -> Result<Arc<Run>> {
        self.shelf.run()
    }

    pub fn length(&self) -> u64 {
        match &self.shelf {
            Shelf::Open(run) => run.length(),
            Shelf::Shut(shut) => shut.length(),
        }
    }

    /// What the block index and the key filter take when the run is open.
    pub fn open_bytes(&self) -> usize {
        match &self.shelf {
            Shelf::Open(run) => run.memory_bytes(),
            Shelf::Shut(shut) => shut.open_bytes(),
        }
    }

    pub fn memory_bytes(&self) -> usize {
        let open = match &self.shelf {
            Shelf::Open(run) => run.memory_bytes(),
            Shelf::Shut(_) => 0,
        };
        size_of::<Self>() + open + self.bytes.capacity()
    }

    pub fn shut(&mut self) {
        (self.bytes, self.held, self.wanted, self.is_new) = (Vec::new(), 0, 0, false);
        if let Shelf::Open(run) = &self.shelf {
            self.shelf = Shelf::Shut(Arc::new(run.shut()));
        }
    }

    fn opened(&mut self, counters: &mut Counters) -> Result<Arc<Run>> {
        if let Shelf::Open(run) = &self.shelf {
            return Ok(Arc::clone(run));
        }
        let began = Instant::now();
        let run = self.run()?;
        counters.count_read(0, run.memory_bytes(), began);
        self.shelf = Shelf::Open(Arc::clone(&run));
        Ok(run)
    }

    /// From now on the blocks that fit into the room should be held and no others; returns what they take. Those that
    /// are not there yet are left to `fill` or to `missing`.
    pub fn want(&mut self, room: usize) -> usize {
        let Shelf::Open(run) = &self.shelf else {
            self.wanted = room.min(self.length() as usize);
            return self.wanted;
        };
        let (blocks, length) = fitting(run, room);
        if blocks < self.held {
            self.bytes.truncate(length);
            self.bytes.shrink_to_fit();
            self.held = blocks;
        }
        self.wanted = length;
        length
    }

    /// Reads the blocks that should be held.
    pub fn fill(&mut self, counters: &mut Counters) -> Result<()> {
        if let Some(missing) = self.missing() {
            let began = Instant::now();
            let ahead = missing.read()?;
            if !self.is_new {
                counters.count_read(ahead.blocks, ahead.bytes.len(), began);
            }
            self.put(ahead, false);
        }
        self.is_new = false;
        Ok(())
    }

    pub fn missing(&self) -> Option<Missing> {
        (self.wanted > self.bytes.len()).then(|| Missing {
            shelf: self.shelf.clone(),
            room: self.wanted,
            is_new: self.is_new,
        })
    }

    pub fn is_of(&self, ahead: &Ahead) -> bool {
        self.shelf.is(&ahead.of)
    }

    /// Takes what was read, ahead of its use or for it, as far as it is still wanted; returns the blocks and the bytes.
    pub fn put(&mut self, ahead: Ahead, is_ahead: bool) -> (usize, usize) {
        let is_wanted = ahead.bytes.len() <= self.wanted && ahead.blocks > self.held;
        if is_wanted {
            (self.bytes, self.held) = (ahead.bytes, ahead.blocks);
            self.shelf = Shelf::Open(ahead.run);
            self.is_new = false;
            self.is_ahead = is_ahead;
        }
        // What does not fit in whole blocks is not asked for again.
        self.wanted = self.wanted.min(self.bytes.len());
        match is_wanted {
            true => (self.held, self.bytes.len()),
            false => (0, 0),
        }
    }

    /// Looks for the keys numbered in `wanted`, which stand in the order of their hashes, and hands the lists of those
    /// that are there to `found`. `scratch` is for blocks that are read.
    pub fn find<K: Keys>(
        &mut self,
        keys: &K,
        wanted: &[u32],
        counters: &mut Counters,
        scratch: &mut Vec<u8>,
        mut found: impl FnMut(u32, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let run = &*self.opened(counters)?;
        let hash = |at: usize| keys.hash(wanted[at] as usize);
        let probes = probes_of(run, wanted.len(), hash, counters);
        counters.gets += probes.len() as u64;
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
        counters.ahead_hits += if self.is_ahead { held.len() as u64 } else { 0 };
        for (block, at) in held {
            counters.memory_hits += 1;
            look(block_bytes(run, 0, *block, &self.bytes), *at, counters)?;
        }
        counters.disk_probes += rest.len() as u64;
        while let Some((first, _)) = rest.first() {
            let (now, later) = rest.split_at(together(run, rest));
            let end = now.last().map_or(*first, |(block, _)| *block) + 1;
            let began = Instant::now();
            run.read_blocks(*first, end, scratch)?;
            counters.count_read(end - first, scratch.len(), began);
            for (block, at) in now {
                look(block_bytes(run, *first, *block, scratch), *at, counters)?;
            }
            rest = later;
        }
        Ok(())
    }
}

/// How many of the run's first blocks fit into the room, and their bytes.
fn fitting(run: &Run, room: usize) -> (usize, usize) {
    let mut length = 0;
    let mut count = 0;
    for block in run.blocks() {
        if length + block.length as usize > room {
            break;
        }
        length += block.length as usize;
        count += 1;
    }
    (count, length)
}
