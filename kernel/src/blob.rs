//! Bytes in a pack that the kernel does not look into: `magic | version u32 | zero u32 | length u64 | checksum u64 |
//! bytes`. The checksum is over all but itself.

use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, Result};
use crate::pack::{FORMAT_VERSION, PackFile, PackWriter, check_version, le_u32, le_u64};

const MAGIC: &[u8; 8] = b"MPNDBLOB";
const HEADER_BYTES: usize = 32;
const CHECKSUM_AT: usize = 24;

fn checksum(head: &[u8], bytes: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(head);
    hasher.update(bytes);
    hasher.digest()
}

/// Appends the bytes and returns where they lie and how much room they take.
pub fn append(writer: &mut PackWriter, bytes: &[u8]) -> Result<(u64, u64)> {
    let offset = writer.offset();
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    header.extend_from_slice(&0u32.to_le_bytes());
    header.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    header.extend_from_slice(&checksum(&header, bytes).to_le_bytes());
    writer.write(&header)?;
    writer.write(bytes)?;
    writer.count_run();
    Ok((offset, writer.offset() - offset))
}

/// Reads back what `append` wrote, all of it checked.
pub fn read(path: &Path, offset: u64, length: u64) -> Result<Vec<u8>> {
    let file = PackFile::open(path)?;
    let name = || format!("{} (rows at byte {offset})", file.name());
    if length < HEADER_BYTES as u64 || !file.has_range(offset, length) {
        return Err(Error::damaged(
            name(),
            format!("{length} bytes of rows can't lie here"),
        ));
    }
    let mut header = [0; HEADER_BYTES];
    file.read(offset, &mut header)?;
    if header.get(..8) != Some(MAGIC) {
        return Err(Error::damaged(name(), "no rows begin here"));
    }
    check_version(&name(), le_u32(&header, 8))?;
    if le_u64(&header, 16) != length - HEADER_BYTES as u64 {
        return Err(Error::damaged(name(), "the rows have another length"));
    }
    let mut bytes = vec![0; length as usize - HEADER_BYTES];
    file.read(offset + HEADER_BYTES as u64, &mut bytes)?;
    if le_u64(&header, CHECKSUM_AT) != checksum(&header[..CHECKSUM_AT], &bytes) {
        return Err(Error::damaged(
            name(),
            "the rows do not match their checksum",
        ));
    }
    Ok(bytes)
}
