//! An open run of session rows: its directory in memory, index and rows on disk.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use crate::aur::layout::RowsLayout;
use crate::aur::log_format::{
    BLOCK_LINE_BYTES, BlockLine, BlockReader, Entry, EntryShape, FOOTER_BYTES, Footer,
    HEADER_BYTES, check_header, data_checksum,
};
use crate::error::{Error, Result};
use crate::pack::{PackFile, PackWriter};
use crate::spent::wait_before_read;

/// Ranges that are less far apart are read together.
const READ_GAP: u64 = 16 << 10;
/// Index blocks that are read together.
const SCAN_BYTES: u64 = 1 << 20;

pub struct LogRun {
    file: Arc<PackFile>,
    name: String,
    offset: u64,
    footer: Footer,
    directory: Vec<BlockLine>,
    /// How many entries stand before each block.
    entries_before: Vec<u32>,
    shape: EntryShape,
    read_delay: Duration,
}

/// Which entry of the index of a run, and in which of its blocks it is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub block: u32,
    pub entry: u32,
}

/// What was read from a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reads {
    pub bytes: u64,
    /// Calls to the file system, and what was waited for them.
    pub requests: u64,
    pub wait_ns: u64,
}

/// Some rows of a run: where they are, and their checksum.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub offset: u64,
    pub length: u32,
    pub checksum: u32,
}

impl LogRun {
    pub fn open(layout: &RowsLayout, path: &Path, offset: u64, length: u64) -> Result<Self> {
        let file = PackFile::open(path)?;
        let name = format!("{} (session rows at byte {offset})", file.name());
        if length < (HEADER_BYTES + FOOTER_BYTES) as u64 || !file.has_range(offset, length) {
            let what = format!("{length} bytes of session rows can't lie here");
            return Err(Error::damaged(name, what));
        }
        let mut header = [0; HEADER_BYTES];
        file.read(offset, &mut header)?;
        check_header(&name, &header, layout.fingerprint())?;
        let footer_offset = length - FOOTER_BYTES as u64;
        let mut footer = [0; FOOTER_BYTES];
        file.read(offset + footer_offset, &mut footer)?;
        let footer = Footer::read(&name, &footer)?;
        if footer.length != length || footer.header_checksum != xxh3_64(&header) {
            return Err(Error::damaged(
                name,
                "header and footer do not belong together",
            ));
        }
        if footer.index_offset < HEADER_BYTES as u64
            || footer.directory_offset < footer.index_offset
            || footer_offset < footer.directory_offset
        {
            return Err(Error::damaged(name, "its parts are out of order"));
        }
        let mut bytes = vec![0; (footer_offset - footer.directory_offset) as usize];
        file.read(offset + footer.directory_offset, &mut bytes)?;
        if xxh3_64(&bytes) != footer.directory_checksum {
            return Err(Error::damaged(
                name,
                "the directory does not match its checksum",
            ));
        }
        let directory: Vec<_> = bytes
            .chunks_exact(BLOCK_LINE_BYTES)
            .map(BlockLine::read)
            .collect();
        let mut expected = footer.index_offset;
        let mut entries_before = Vec::with_capacity(directory.len());
        let mut entries = 0_u32;
        for line in &directory {
            entries_before.push(entries);
            entries = entries.saturating_add(line.entries);
            if line.offset != expected {
                return Err(Error::damaged(name, "the index has a hole"));
            }
            expected += u64::from(line.length);
        }
        if u64::from(entries) != footer.entries {
            return Err(Error::damaged(
                name,
                "the index has another number of entries",
            ));
        }
        if expected != footer.directory_offset {
            return Err(Error::damaged(name, "the index has another length"));
        }
        Ok(Self {
            file,
            name,
            offset,
            footer,
            directory,
            entries_before,
            shape: layout.entry_shape(),
            read_delay: Duration::ZERO,
        })
    }

    /// For benchmarks: each read of index or rows first waits, as one of remote storage would.
    pub fn with_read_delay(self, read_delay: Duration) -> Self {
        Self { read_delay, ..self }
    }

    pub fn rows(&self) -> u64 {
        self.footer.rows
    }

    pub fn length(&self) -> u64 {
        self.footer.length
    }

    pub fn entries(&self) -> u64 {
        self.footer.entries
    }

    pub fn given_out(&self) -> i64 {
        self.footer.given_out
    }

    pub fn blocks(&self) -> usize {
        self.directory.len()
    }

    /// Blocks from the first on that can hold a window whose ETT is not after the watermark.
    pub fn blocks_until(&self, watermark: i64) -> usize {
        self.directory
            .partition_point(|line| line.first_ett <= watermark)
    }

    pub fn block_entries(&self, block: usize) -> u32 {
        self.directory[block].entries
    }

    pub fn memory_bytes(&self) -> usize {
        self.directory.capacity() * (size_of::<BlockLine>() + size_of::<u32>())
    }

    /// Bytes of an entry in the index, on average.
    pub fn entry_bytes(&self) -> u64 {
        let index = self.footer.directory_offset - self.footer.index_offset;
        index / self.footer.entries.max(1)
    }

    /// Reads bytes of the run and counts that.
    fn fetch(&self, offset: u64, bytes: &mut [u8], reads: &mut Reads) -> Result<()> {
        let began = Instant::now();
        wait_before_read(self.read_delay);
        self.file.read(self.offset + offset, bytes)?;
        reads.bytes += bytes.len() as u64;
        reads.requests += 1;
        reads.wait_ns += began.elapsed().as_nanos() as u64;
        Ok(())
    }

    /// Reads blocks of the index, in order, and calls `visit` with the place of each entry, the entry and its key.
    pub fn scan(
        &self,
        blocks: &[usize],
        mut visit: impl FnMut(Place, &Entry, &[u8]) -> Result<()>,
    ) -> Result<Reads> {
        let mut reads = Reads::default();
        let mut at = 0;
        let mut bytes = Vec::new();
        while at < blocks.len() {
            let first = &self.directory[blocks[at]];
            let mut end = at + 1;
            let mut length = u64::from(first.length);
            // Blocks that follow one another are one read.
            while end < blocks.len() && blocks[end] == blocks[end - 1] + 1 && length < SCAN_BYTES {
                length += u64::from(self.directory[blocks[end]].length);
                end += 1;
            }
            bytes.resize(length as usize, 0);
            self.fetch(first.offset, &mut bytes, &mut reads)?;
            for block in &blocks[at..end] {
                let line = &self.directory[*block];
                let start = (line.offset - first.offset) as usize;
                let block_bytes = &bytes[start..start + line.length as usize];
                if xxh3_64(block_bytes) != line.checksum {
                    return Err(self.damaged("a block of the index does not match its checksum"));
                }
                let mut place = Place {
                    block: *block as u32,
                    entry: self.entries_before[*block],
                };
                for entry in BlockReader::new(block_bytes, line, self.shape) {
                    let (entry, key) =
                        entry.ok_or_else(|| self.damaged("an index entry can't be read"))?;
                    let end = entry.offset.checked_add(u64::from(entry.length));
                    if entry.offset < HEADER_BYTES as u64
                        || end.is_none_or(|end| end > self.footer.index_offset)
                    {
                        return Err(self.damaged("an index entry points beyond the rows"));
                    }
                    visit(place, &entry, key)?;
                    place.entry += 1;
                }
            }
            at = end;
        }
        Ok(reads)
    }

    /// Reads ranges, given in order of offset, and calls `visit` with the number of each and its bytes. Neighbours are
    /// read together.
    pub fn read(
        &self,
        ranges: &[Range],
        mut visit: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<Reads> {
        let mut reads = Reads::default();
        let mut at = 0;
        let mut bytes = Vec::new();
        while at < ranges.len() {
            let start = ranges[at].offset;
            let mut stop = start + u64::from(ranges[at].length);
            let mut end = at + 1;
            while end < ranges.len()
                && ranges[end].offset <= stop + READ_GAP
                && stop - start < 8 * SCAN_BYTES
            {
                stop = stop.max(ranges[end].offset + u64::from(ranges[end].length));
                end += 1;
            }
            bytes.resize((stop - start) as usize, 0);
            self.fetch(start, &mut bytes, &mut reads)?;
            for (number, range) in ranges.iter().enumerate().take(end).skip(at) {
                let from = (range.offset - start) as usize;
                let piece = &bytes[from..from + range.length as usize];
                if data_checksum(piece) != range.checksum {
                    return Err(self.damaged("rows do not match their checksum"));
                }
                visit(number, piece)?;
            }
            at = end;
        }
        Ok(reads)
    }

    /// Moves a range of the run's bytes behind what is written, without looking at it.
    pub fn copy_to(&self, writer: &mut PackWriter, offset: u64, length: u64) -> Result<()> {
        wait_before_read(self.read_delay);
        writer.copy(&self.file, self.offset + offset, length)
    }

    pub fn damaged(&self, what: &str) -> Error {
        Error::damaged(&self.name, what)
    }
}
