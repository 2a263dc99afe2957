//! An open run: its block index and key filter in memory, its blocks on disk.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::pack::PackFile;
use crate::rows::{HashRange, Row, RowShape, RowSpan};
use crate::run_format::{
    BlockEntry, FOOTER_BYTES, Footer, HEADER_BYTES, INDEX_ENTRY_BYTES, check_header,
};
use crate::spent::wait_before_read;

pub struct Run {
    file: Arc<PackFile>,
    name: String,
    offset: u64,
    shape: RowShape,
    fingerprint: u64,
    footer: Footer,
    index: Vec<BlockEntry>,
    filter: Filter,
    read_delay: Duration,
}

impl Run {
    /// Reads and checks all of a run but its blocks.
    pub fn open(
        shape: RowShape,
        fingerprint: u64,
        path: &Path,
        offset: u64,
        length: u64,
    ) -> Result<Self> {
        Self::read(PackFile::open(path)?, shape, fingerprint, offset, length)
    }

    fn read(
        file: Arc<PackFile>,
        shape: RowShape,
        fingerprint: u64,
        offset: u64,
        length: u64,
    ) -> Result<Self> {
        let name = format!("{} (run at byte {offset})", file.name());
        if length < (HEADER_BYTES + FOOTER_BYTES) as u64 || !file.has_range(offset, length) {
            let what = format!("a run of {length} bytes can't lie here");
            return Err(Error::damaged(name, what));
        }
        let mut header = [0; HEADER_BYTES];
        file.read(offset, &mut header)?;
        check_header(&name, &header, shape, fingerprint)?;
        let mut footer = [0; FOOTER_BYTES];
        let footer_offset = length - FOOTER_BYTES as u64;
        file.read(offset + footer_offset, &mut footer)?;
        let footer = Footer::read(&name, &footer)?;
        if footer.length != length || footer.header_checksum != xxh3_64(&header) {
            return Err(Error::damaged(name, "header and footer are not of one run"));
        }
        let (index_offset, filter_offset) = (footer.index_offset, footer.filter_offset);
        if index_offset < HEADER_BYTES as u64
            || filter_offset < index_offset
            || footer_offset < filter_offset
        {
            return Err(Error::damaged(name, "the run's parts are out of order"));
        }
        let mut tail = vec![0; (footer_offset - index_offset) as usize];
        file.read(offset + index_offset, &mut tail)?;
        let (index, filter) = tail.split_at((filter_offset - index_offset) as usize);
        if xxh3_64(index) != footer.index_checksum {
            return Err(Error::damaged(
                name,
                "the run's block index does not match its checksum",
            ));
        }
        if xxh3_64(filter) != footer.filter_checksum {
            return Err(Error::damaged(
                name,
                "the run's key filter does not match its checksum",
            ));
        }
        let Some(filter) = Filter::from_bytes(filter) else {
            return Err(Error::damaged(
                name,
                "the run's key filter has an impossible length",
            ));
        };
        let index = read_index(index, &footer, shape)
            .ok_or_else(|| Error::damaged(&name, "the run's block index contradicts itself"))?;
        Ok(Self {
            file,
            name,
            offset,
            shape,
            fingerprint,
            footer,
            index,
            filter,
            read_delay: Duration::ZERO,
        })
    }

    /// For benchmarks: each read of blocks first waits, as one of remote storage would.
    pub fn with_read_delay(self, read_delay: Duration) -> Self {
        Self { read_delay, ..self }
    }

    /// What is left of the run when its block index and key filter have to leave memory.
    pub fn shut(&self) -> ShutRun {
        ShutRun {
            file: Arc::clone(&self.file),
            offset: self.offset,
            length: self.length(),
            shape: self.shape,
            fingerprint: self.fingerprint,
            memory_bytes: self.memory_bytes(),
            read_delay: self.read_delay,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }
    pub fn shape(&self) -> RowShape {
        self.shape
    }
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
    /// Rows, tombstones included.
    pub fn rows(&self) -> u64 {
        self.footer.rows
    }
    pub fn length(&self) -> u64 {
        self.footer.length
    }
    pub fn blocks(&self) -> &[BlockEntry] {
        &self.index
    }
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.index.capacity() * size_of::<BlockEntry>()
            + self.filter.memory_bytes()
    }

    /// An upper bound of the rows in the range.
    pub fn rows_within(&self, range: HashRange) -> u64 {
        let first = self
            .index
            .partition_point(|block| block.first_hash <= range.first)
            .saturating_sub(1);
        let blocks = self.index.get(first..).unwrap_or_default();
        let inside = blocks
            .iter()
            .take_while(|block| block.first_hash <= range.last);
        inside.map(|block| u64::from(block.rows)).sum()
    }

    /// The one block that can hold the hash.
    #[inline]
    pub fn block_of(&self, hash: u64) -> Option<usize> {
        if hash < self.footer.smallest || hash > self.footer.largest {
            return None;
        }
        self.index
            .partition_point(|block| block.first_hash <= hash)
            .checked_sub(1)
    }

    /// Reads the blocks `first .. end` and checks each; what was in `into` is gone.
    pub fn read_blocks(&self, first: usize, end: usize, into: &mut Vec<u8>) -> Result<()> {
        wait_before_read(self.read_delay);
        self.read_near_blocks(first, end, into)
    }

    /// Likewise of a run that was just written, and so is near in any case.
    pub fn read_near_blocks(&self, first: usize, end: usize, into: &mut Vec<u8>) -> Result<()> {
        into.clear();
        let Some((head, blocks)) = self
            .index
            .get(first..end)
            .and_then(|blocks| Some((blocks.first()?, blocks)))
        else {
            return Ok(());
        };
        let length: usize = blocks.iter().map(|block| block.length as usize).sum();
        into.resize(length, 0);
        self.file.read(self.offset + head.offset, into)?;
        let mut rest = into.as_slice();
        for (at, block) in blocks.iter().enumerate() {
            let (bytes, after) = rest.split_at(block.length as usize);
            if xxh3_64(bytes) != block.checksum {
                let what = format!("block {} does not match its checksum", first + at);
                return Err(Error::damaged(&self.name, what));
            }
            rest = after;
        }
        Ok(())
    }

    /// Finds a key among the rows of one block.
    pub fn find_in_block<'a>(
        &self,
        bytes: &'a [u8],
        hash: u64,
        key: &[u8],
    ) -> Result<Option<Row<'a>>> {
        let mut at = match self.shape.stride() {
            Some(stride) => self.first_at_least(bytes, stride, hash),
            None => 0,
        };
        while at < bytes.len() {
            let span = self.read_row(bytes, at)?;
            if span.hash > hash {
                break;
            }
            let row = span.row(bytes);
            if span.hash == hash && row.key == key {
                return Ok(Some(row));
            }
            at = span.end;
        }
        Ok(None)
    }

    /// The offset of the first row whose hash is not below `hash`, rows being of one width.
    fn first_at_least(&self, bytes: &[u8], stride: usize, hash: u64) -> usize {
        let (mut low, mut high) = (0, bytes.len() / stride);
        while low < high {
            let middle = low + (high - low) / 2;
            if crate::pack::le_u64(bytes, middle * stride) < hash {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low * stride
    }

    #[inline]
    pub fn read_row(&self, bytes: &[u8], at: usize) -> Result<RowSpan> {
        self.shape
            .read(bytes, at)
            .ok_or_else(|| Error::damaged(&self.name, "a block holds bytes that are no row"))
    }
}

/// A run of which nothing is in memory.
pub struct ShutRun {
    file: Arc<PackFile>,
    offset: u64,
    length: u64,
    shape: RowShape,
    fingerprint: u64,
    memory_bytes: usize,
    read_delay: Duration,
}

impl ShutRun {
    pub fn length(&self) -> u64 {
        self.length
    }

    /// What the run takes when it is open.
    pub fn open_bytes(&self) -> usize {
        self.memory_bytes
    }

    pub fn open(&self) -> Result<Run> {
        wait_before_read(self.read_delay);
        let file = Arc::clone(&self.file);
        let run = Run::read(file, self.shape, self.fingerprint, self.offset, self.length)?;
        Ok(run.with_read_delay(self.read_delay))
    }
}

/// The block index, or `None` where it does not describe the bytes between header and index.
fn read_index(bytes: &[u8], footer: &Footer, shape: RowShape) -> Option<Vec<BlockEntry>> {
    if !bytes.len().is_multiple_of(INDEX_ENTRY_BYTES) {
        return None;
    }
    let index: Vec<_> = bytes
        .chunks_exact(INDEX_ENTRY_BYTES)
        .map(BlockEntry::read)
        .collect();
    let mut offset = HEADER_BYTES as u64;
    let mut rows = 0;
    let mut last = None;
    for block in &index {
        let right_length = shape
            .stride()
            .is_none_or(|stride| u64::from(block.length) == stride as u64 * u64::from(block.rows));
        if block.offset != offset
            || !right_length
            || last.is_some_and(|last| block.first_hash <= last)
        {
            return None;
        }
        offset += u64::from(block.length);
        rows += u64::from(block.rows);
        last = Some(block.first_hash);
    }
    let first_fits = index
        .first()
        .is_none_or(|block| block.first_hash == footer.smallest);
    (offset == footer.index_offset && rows == footer.rows && first_fits).then_some(index)
}
