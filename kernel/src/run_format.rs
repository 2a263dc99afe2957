//! How a run lies in a pack: `header | blocks | index | filter | footer`.
//!
//! Rows stand in the order of hash, then key. Rows of one hash never straddle two blocks, so a key's block is known
//! from its hash alone. Everything but the blocks is read when a run is opened; a block is checked when it is read.

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::pack::{FORMAT_VERSION, check_version, le_u32, le_u64};
use crate::rows::RowShape;

pub const MAGIC: &[u8; 8] = b"MPNDRUN\0";
pub const END_MAGIC: &[u8; 8] = b"\0NURDNPM";
/// A block is closed at the first new hash past this many bytes.
pub const BLOCK_BYTES: usize = 4096;
/// magic, version u32, key width u32, value width u32, zero u32, fingerprint u64, checksum u64.
pub const HEADER_BYTES: usize = 40;
/// first hash u64, offset u64, length u32, rows u32, checksum u64.
pub const INDEX_ENTRY_BYTES: usize = 32;
/// ten u64 (see `Footer`), version u32, zero u32, checksum u64, magic.
pub const FOOTER_BYTES: usize = 104;

const VARIABLE: u32 = u32::MAX;

fn width_code(width: Option<usize>) -> u32 {
    width.map_or(VARIABLE, |width| width as u32)
}

pub fn write_header(shape: RowShape, fingerprint: u64) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    header.extend_from_slice(&width_code(shape.key_width).to_le_bytes());
    header.extend_from_slice(&width_code(shape.value_width).to_le_bytes());
    header.extend_from_slice(&0u32.to_le_bytes());
    header.extend_from_slice(&fingerprint.to_le_bytes());
    header.extend_from_slice(&xxh3_64(&header).to_le_bytes());
    header
}

/// Checks a header against the layout it is opened with. `name` says which run of which file.
pub fn check_header(name: &str, header: &[u8], shape: RowShape, fingerprint: u64) -> Result<()> {
    if header.get(..8) != Some(MAGIC) {
        return Err(Error::damaged(name, "no run begins here"));
    }
    check_version(name, le_u32(header, 8))?;
    if le_u64(header, 32) != xxh3_64(&header[..32]) {
        return Err(Error::damaged(
            name,
            "the run's header does not match its checksum",
        ));
    }
    if header != write_header(shape, fingerprint) {
        return Err(Error::damaged(
            name,
            "the run was written for other keys, aggregates or types",
        ));
    }
    Ok(())
}

/// Where a block lies in its run, and what it must be.
#[derive(Clone, Copy, Debug)]
pub struct BlockEntry {
    pub first_hash: u64,
    /// From the run's first byte.
    pub offset: u64,
    pub length: u32,
    pub rows: u32,
    pub checksum: u64,
}

impl BlockEntry {
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.first_hash.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&self.rows.to_le_bytes());
        out.extend_from_slice(&self.checksum.to_le_bytes());
    }

    pub fn read(bytes: &[u8]) -> Self {
        Self {
            first_hash: le_u64(bytes, 0),
            offset: le_u64(bytes, 8),
            length: le_u32(bytes, 16),
            rows: le_u32(bytes, 20),
            checksum: le_u64(bytes, 24),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    pub length: u64,
    pub rows: u64,
    pub tombstones: u64,
    pub smallest: u64,
    pub largest: u64,
    pub index_offset: u64,
    pub index_checksum: u64,
    pub filter_offset: u64,
    pub filter_checksum: u64,
    /// Of the header, so that header and footer belong together.
    pub header_checksum: u64,
}

impl Footer {
    fn words(&self) -> [u64; 10] {
        [
            self.length,
            self.rows,
            self.tombstones,
            self.smallest,
            self.largest,
            self.index_offset,
            self.index_checksum,
            self.filter_offset,
            self.filter_checksum,
            self.header_checksum,
        ]
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out: Vec<u8> = self
            .words()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        out.extend_from_slice(&xxh3_64(&out).to_le_bytes());
        out.extend_from_slice(END_MAGIC);
        out
    }

    pub fn read(name: &str, bytes: &[u8]) -> Result<Self> {
        if bytes.get(96..) != Some(END_MAGIC) {
            return Err(Error::damaged(name, "the run's footer is missing"));
        }
        check_version(name, le_u32(bytes, 80))?;
        if le_u64(bytes, 88) != xxh3_64(&bytes[..88]) {
            return Err(Error::damaged(
                name,
                "the run's footer does not match its checksum",
            ));
        }
        let word = |i: usize| le_u64(bytes, 8 * i);
        Ok(Self {
            length: word(0),
            rows: word(1),
            tombstones: word(2),
            smallest: word(3),
            largest: word(4),
            index_offset: word(5),
            index_checksum: word(6),
            filter_offset: word(7),
            filter_checksum: word(8),
            header_checksum: word(9),
        })
    }
}
