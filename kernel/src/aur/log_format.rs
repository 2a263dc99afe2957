//! How a flush lies in a pack: `header | data | index blocks | directory | footer`.
//!
//! The data are the rows of each window, one window after another. The index has one entry for each, in the order of the
//! windows' ETT. The directory has one line for each block of the index and is all that is held in memory. Blocks,
//! directory, header and footer carry checksums, and each index entry that of its rows: rows can be moved to another
//! file without being looked at.

use xxhash_rust::xxh3::xxh3_64;

use crate::aur::bounds::Bounds;
use crate::error::{Error, Result};
use crate::pack::{FORMAT_VERSION, check_version, le_u32, le_u64};

pub const MAGIC: &[u8; 8] = b"MPNDSROW";
pub const END_MAGIC: &[u8; 8] = b"WORSDNPM";
/// A block is closed at the first entry past this many bytes.
pub const BLOCK_BYTES: usize = 8192;
/// magic, version u32, zero u32, fingerprint u64, checksum u64.
pub const HEADER_BYTES: usize = 32;
/// first ETT i64, offset u64, length u32, entries u32, checksum u64.
pub const BLOCK_LINE_BYTES: usize = 32;
/// eight u64 (see `Footer`), version u32, zero u32, checksum u64, magic.
pub const FOOTER_BYTES: usize = 88;

pub fn write_header(fingerprint: u64) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    header.extend_from_slice(&0u32.to_le_bytes());
    header.extend_from_slice(&fingerprint.to_le_bytes());
    header.extend_from_slice(&xxh3_64(&header).to_le_bytes());
    header
}

pub fn check_header(name: &str, header: &[u8], fingerprint: u64) -> Result<()> {
    if header.get(..8) != Some(MAGIC) {
        return Err(Error::damaged(name, "no rows of sessions begin here"));
    }
    check_version(name, le_u32(header, 8))?;
    if le_u64(header, 24) != xxh3_64(&header[..24]) {
        return Err(Error::damaged(
            name,
            "the header does not match its checksum",
        ));
    }
    if header != write_header(fingerprint) {
        let what = "it was written for other keys, columns, types or another gap";
        return Err(Error::damaged(name, what));
    }
    Ok(())
}

/// What identifies rows among those of their file.
pub fn data_checksum(bytes: &[u8]) -> u32 {
    xxh3_64(bytes) as u32
}

/// A block of the index; offsets are from the first byte of the run.
#[derive(Clone, Copy, Debug)]
pub struct BlockLine {
    pub first_ett: i64,
    pub offset: u64,
    pub length: u32,
    pub entries: u32,
    pub checksum: u64,
}

impl BlockLine {
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.first_ett.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&self.entries.to_le_bytes());
        out.extend_from_slice(&self.checksum.to_le_bytes());
    }

    pub fn read(bytes: &[u8]) -> Self {
        Self {
            first_ett: le_u64(bytes, 0) as i64,
            offset: le_u64(bytes, 8),
            length: le_u32(bytes, 16),
            entries: le_u32(bytes, 20),
            checksum: le_u64(bytes, 24),
        }
    }
}

/// What all entries of an index have in common, and do not say each.
#[derive(Clone, Copy, Debug)]
pub struct EntryShape {
    /// `None`: keys are of different lengths.
    pub key_width: Option<usize>,
    /// How far the first end of an entry's rows is behind their start; `None`: that differs.
    pub gap: Option<i64>,
}

/// One window's rows of one flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Of these rows. They do not move when the session grows.
    pub bounds: Bounds,
    /// Up to when sessions had been given out before these rows came: what tells them from the rows of an earlier
    /// session of the key.
    pub given_out: i64,
    /// From the first byte of the run.
    pub offset: u64,
    pub length: u32,
    pub rows: u32,
    pub checksum: u32,
}

/// Writes the entries of one block; all numbers as differences, which mostly take a byte or few.
pub struct BlockWriter {
    pub bytes: Vec<u8>,
    pub entries: u32,
    base: i64,
    end: u64,
}

impl BlockWriter {
    pub fn new(first_ett: i64) -> Self {
        Self {
            bytes: Vec::with_capacity(BLOCK_BYTES + 256),
            entries: 0,
            base: first_ett,
            end: 0,
        }
    }

    pub fn push(&mut self, entry: &Entry, key: &[u8], shape: EntryShape) {
        let out = &mut self.bytes;
        let Bounds { start, first, last } = entry.bounds;
        put(out, zigzag(first.wrapping_sub(self.base)));
        put(out, last.wrapping_sub(first) as u64);
        if shape.gap.is_none() {
            put(out, first.wrapping_sub(start) as u64);
        }
        put(out, zigzag(entry.given_out.wrapping_sub(self.base)));
        put(out, zigzag(entry.offset.wrapping_sub(self.end) as i64));
        put(out, u64::from(entry.length));
        put(out, u64::from(entry.rows));
        out.extend_from_slice(&entry.checksum.to_le_bytes());
        if shape.key_width.is_none() {
            put(out, key.len() as u64);
        }
        out.extend_from_slice(key);
        self.end = entry.offset + u64::from(entry.length);
        self.entries += 1;
    }
}

/// Reads a block's entries in order.
pub struct BlockReader<'a> {
    rest: &'a [u8],
    left: u32,
    shape: EntryShape,
    base: i64,
    end: u64,
}

impl<'a> BlockReader<'a> {
    pub fn new(bytes: &'a [u8], line: &BlockLine, shape: EntryShape) -> Self {
        Self {
            rest: bytes,
            left: line.entries,
            shape,
            base: line.first_ett,
            end: 0,
        }
    }

    /// `None` in place of an entry: the bytes are not those of entries.
    fn entry(&mut self) -> Option<(Entry, &'a [u8])> {
        let rest = &mut self.rest;
        let first = self.base.wrapping_add(unzigzag(take(rest)?));
        let last = first.wrapping_add(take(rest)? as i64);
        let gap = match self.shape.gap {
            Some(gap) => gap,
            None => take(rest)? as i64,
        };
        let given_out = self.base.wrapping_add(unzigzag(take(rest)?));
        let offset = self.end.wrapping_add(unzigzag(take(rest)?) as u64);
        let length = u32::try_from(take(rest)?).ok()?;
        let rows = u32::try_from(take(rest)?).ok()?;
        let (checksum, after) = rest.split_first_chunk::<4>()?;
        *rest = after;
        let width = match self.shape.key_width {
            Some(width) => width,
            None => usize::try_from(take(rest)?).ok()?,
        };
        let (key, after) = rest.split_at_checked(width)?;
        *rest = after;
        self.end = offset.checked_add(u64::from(length))?;
        let entry = Entry {
            bounds: Bounds {
                start: first.wrapping_sub(gap),
                first,
                last,
            },
            given_out,
            offset,
            length,
            rows,
            checksum: u32::from_le_bytes(*checksum),
        };
        Some((entry, key))
    }
}

impl<'a> Iterator for BlockReader<'a> {
    type Item = Option<(Entry, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return match self.rest.is_empty() {
                true => None,
                false => {
                    self.rest = &[];
                    Some(None)
                }
            };
        }
        self.left -= 1;
        let entry = self.entry();
        if entry.is_none() {
            (self.left, self.rest) = (0, &[]);
        }
        Some(entry)
    }
}

/// A number in groups of seven bits, the lowest first.
pub fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    pub length: u64,
    pub entries: u64,
    pub rows: u64,
    /// Where the index begins, and the data end.
    pub index_offset: u64,
    pub directory_offset: u64,
    pub directory_checksum: u64,
    /// Up to when sessions have been given out by the batch that wrote this.
    pub given_out: i64,
    pub header_checksum: u64,
}

impl Footer {
    pub fn bytes(&self) -> Vec<u8> {
        let words = [
            self.length,
            self.entries,
            self.rows,
            self.index_offset,
            self.directory_offset,
            self.directory_checksum,
            self.given_out as u64,
            self.header_checksum,
        ];
        let mut out: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        out.extend_from_slice(&xxh3_64(&out).to_le_bytes());
        out.extend_from_slice(END_MAGIC);
        out
    }

    pub fn read(name: &str, bytes: &[u8]) -> Result<Self> {
        if bytes.get(80..) != Some(END_MAGIC) {
            return Err(Error::damaged(name, "the footer is missing"));
        }
        check_version(name, le_u32(bytes, 64))?;
        if le_u64(bytes, 72) != xxh3_64(&bytes[..72]) {
            return Err(Error::damaged(
                name,
                "the footer does not match its checksum",
            ));
        }
        let word = |i: usize| le_u64(bytes, 8 * i);
        Ok(Self {
            length: word(0),
            entries: word(1),
            rows: word(2),
            index_offset: word(3),
            directory_offset: word(4),
            directory_checksum: word(5),
            given_out: word(6) as i64,
            header_checksum: word(7),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_as_they_were_at_both_ends_of_time() {
        let entry = |start, last, given_out, offset| Entry {
            bounds: Bounds {
                start,
                first: start + 1,
                last,
            },
            given_out,
            offset,
            length: 7,
            rows: 3,
            checksum: 0xdead_beef,
        };
        let entries = [
            entry(0, 1, i64::MIN, 32),
            entry(i64::MIN, i64::MAX, i64::MAX, 39),
            entry(-5, 5, -6, 1 << 40),
            entry(-5, 5, -6, 3),
        ];
        for (key_width, gap) in [(Some(2), Some(1)), (None, Some(1)), (None, None)] {
            let shape = EntryShape { key_width, gap };
            let mut writer = BlockWriter::new(1_000);
            for entry in &entries {
                writer.push(entry, b"ab", shape);
            }
            let line = BlockLine {
                first_ett: 1_000,
                offset: 0,
                length: writer.bytes.len() as u32,
                entries: writer.entries,
                checksum: 0,
            };
            let read: Option<Vec<_>> = BlockReader::new(&writer.bytes, &line, shape).collect();
            let expected: Vec<_> = entries.iter().map(|e| (*e, &b"ab"[..])).collect();
            assert_eq!(read, Some(expected));
        }
    }
}
