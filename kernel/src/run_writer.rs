//! Writes one run into a pack, row after row in the order of hash and key, holding one block in memory.

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::pack::PackWriter;
use crate::rows::{Row, RowShape};
use crate::run_format::{BLOCK_BYTES, BlockEntry, FOOTER_BYTES, Footer, write_header};

/// What a written run is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunExtent {
    pub offset: u64,
    pub length: u64,
    pub rows: u64,
}

pub struct RunWriter<'a> {
    pack: &'a mut PackWriter,
    shape: RowShape,
    start: u64,
    block: Vec<u8>,
    /// Of the rows in the block, one each.
    hashes: Vec<u64>,
    index: Vec<u8>,
    filter: Filter,
    footer: Footer,
}

impl<'a> RunWriter<'a> {
    /// `max_rows`: an upper bound of the rows to come, by which the filter is sized.
    pub fn begin(
        pack: &'a mut PackWriter,
        shape: RowShape,
        fingerprint: u64,
        max_rows: u64,
    ) -> Result<Self> {
        let start = pack.offset();
        let header = write_header(shape, fingerprint);
        pack.write(&header)?;
        let footer = Footer {
            header_checksum: xxh3_64(&header),
            ..Footer::default()
        };
        Ok(Self {
            pack,
            shape,
            start,
            block: Vec::with_capacity(BLOCK_BYTES + BLOCK_BYTES / 4),
            hashes: Vec::new(),
            index: Vec::new(),
            filter: Filter::with_room(max_rows),
            footer,
        })
    }

    #[inline]
    pub fn push(&mut self, row: Row<'_>) -> Result<()> {
        if self.block.len() >= BLOCK_BYTES && row.hash != self.footer.largest {
            self.close_block()?;
        }
        if self.footer.rows == 0 {
            self.footer.smallest = row.hash;
        }
        self.footer.largest = row.hash;
        self.footer.rows += 1;
        self.footer.tombstones += u64::from(row.tombstone);
        self.hashes.push(row.hash);
        self.shape.write(row, &mut self.block);
        Ok(())
    }

    fn close_block(&mut self) -> Result<()> {
        let length = u32::try_from(self.block.len())
            .map_err(|_| Error::invalid("a group of more than 4 GiB can't be stored"))?;
        BlockEntry {
            first_hash: self.hashes.first().copied().unwrap_or_default(),
            offset: self.pack.offset() - self.start,
            length,
            rows: self.hashes.len() as u32,
            checksum: xxh3_64(&self.block),
        }
        .write_to(&mut self.index);
        self.pack.write(&self.block)?;
        self.block.clear();
        self.filter.insert_all(&self.hashes);
        self.hashes.clear();
        Ok(())
    }

    pub fn finish(mut self) -> Result<RunExtent> {
        if !self.hashes.is_empty() {
            self.close_block()?;
        }
        self.footer.index_offset = self.pack.offset() - self.start;
        self.footer.index_checksum = xxh3_64(&self.index);
        self.pack.write(&self.index)?;
        self.filter.fold(self.footer.rows);
        let mut filter = Vec::with_capacity(self.filter.memory_bytes());
        self.filter.write_to(&mut filter);
        self.footer.filter_offset = self.pack.offset() - self.start;
        self.footer.filter_checksum = xxh3_64(&filter);
        self.pack.write(&filter)?;
        self.footer.length = self.pack.offset() - self.start + FOOTER_BYTES as u64;
        self.pack.write(&self.footer.bytes())?;
        self.pack.count_run();
        Ok(RunExtent {
            offset: self.start,
            length: self.footer.length,
            rows: self.footer.rows,
        })
    }
}
