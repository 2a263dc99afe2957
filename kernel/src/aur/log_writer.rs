//! Writes one run: the rows first, then the index that was gathered meanwhile.

use xxhash_rust::xxh3::xxh3_64;

use crate::aur::log_format::{
    BLOCK_BYTES, BlockLine, BlockWriter, Entry, EntryShape, Footer, HEADER_BYTES, write_header,
};
use crate::error::Result;
use crate::pack::PackWriter;

/// Where a run lies in its pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogExtent {
    pub offset: u64,
    pub length: u64,
    pub rows: u64,
}

/// The index of a run, entries in the order of their ETT, with offsets from the first byte of the run.
pub struct IndexWriter {
    shape: EntryShape,
    bytes: Vec<u8>,
    lines: Vec<BlockLine>,
    block: Option<BlockWriter>,
    first_ett: i64,
    rows: u64,
}

impl IndexWriter {
    pub fn new(shape: EntryShape) -> Self {
        Self {
            shape,
            bytes: Vec::new(),
            lines: Vec::new(),
            block: None,
            first_ett: 0,
            rows: 0,
        }
    }

    pub fn push(&mut self, ett: i64, entry: &Entry, key: &[u8]) {
        let first_ett = &mut self.first_ett;
        let block = self.block.get_or_insert_with(|| {
            *first_ett = ett;
            BlockWriter::new(ett)
        });
        block.push(entry, key, self.shape);
        self.rows += u64::from(entry.rows);
        if block.bytes.len() >= BLOCK_BYTES {
            self.close_block();
        }
    }

    fn close_block(&mut self) {
        let Some(block) = self.block.take() else {
            return;
        };
        self.lines.push(BlockLine {
            first_ett: self.first_ett,
            offset: self.bytes.len() as u64,
            length: block.bytes.len() as u32,
            entries: block.entries,
            checksum: xxh3_64(&block.bytes),
        });
        self.bytes.extend_from_slice(&block.bytes);
    }

    /// Writes index, directory and footer behind the data, and so ends the run.
    pub fn finish(
        mut self,
        writer: &mut PackWriter,
        started: Started,
        given_out: i64,
    ) -> Result<LogExtent> {
        self.close_block();
        let index_offset = writer.offset() - started.offset;
        writer.write(&self.bytes)?;
        let mut directory = Vec::new();
        for line in &mut self.lines {
            line.offset += index_offset;
            line.write_to(&mut directory);
        }
        let directory_offset = writer.offset() - started.offset;
        writer.write(&directory)?;
        let footer_offset = writer.offset() - started.offset;
        let footer = Footer {
            length: footer_offset + crate::aur::log_format::FOOTER_BYTES as u64,
            entries: self.lines.iter().map(|line| u64::from(line.entries)).sum(),
            rows: self.rows,
            index_offset,
            directory_offset,
            directory_checksum: xxh3_64(&directory),
            given_out,
            header_checksum: started.header_checksum,
        };
        writer.write(&footer.bytes())?;
        writer.count_run();
        Ok(LogExtent {
            offset: started.offset,
            length: footer.length,
            rows: self.rows,
        })
    }
}

/// A run whose header is written.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    pub offset: u64,
    header_checksum: u64,
}

impl Started {
    pub fn begin(writer: &mut PackWriter, fingerprint: u64) -> Result<Self> {
        let header = write_header(fingerprint);
        let offset = writer.offset();
        writer.write(&header)?;
        Ok(Self {
            offset,
            header_checksum: xxh3_64(&header),
        })
    }

    /// Where the data begin, from the first byte of the run.
    pub fn data_offset() -> u64 {
        HEADER_BYTES as u64
    }
}
