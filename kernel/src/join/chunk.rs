//! Rows of the running batch in memory: what has come since the last flush, or what one flush wrote.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::join::part::side_of;
use crate::join::record::{MATCHED, push_to_list};
use crate::pack::PackWriter;
use crate::rows::{Row, RowShape};
use crate::run_writer::{RunExtent, RunWriter};
use crate::sort::sort_by_hash;
use crate::table::Keys;

#[derive(Clone, Copy, Debug)]
pub struct ChunkRow {
    pub hash: u64,
    pub part: i64,
    at: usize,
    key_bytes: u32,
    record_bytes: u32,
}

/// The rows of one key stand together once the chunk is sorted, those of the left side first.
#[derive(Default)]
pub struct Chunk {
    bytes: Vec<u8>,
    rows: Vec<ChunkRow>,
    is_sorted: bool,
}

impl Chunk {
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn rows(&self) -> &[ChunkRow] {
        &self.rows
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.rows.capacity() * size_of::<ChunkRow>()
    }

    /// What a flush would write, about.
    pub fn dirty_bytes(&self) -> u64 {
        (self.bytes.len() + self.rows.len() * 16) as u64
    }

    pub fn push(&mut self, hash: u64, part: i64, key: &[u8], record: &[u8]) -> Result<&mut [u8]> {
        let at = self.bytes.len();
        let length = |bytes: &[u8]| {
            u32::try_from(bytes.len()).map_err(|_| Error::invalid("a row of more than 4 GiB"))
        };
        if self.rows.len() >= u32::MAX as usize {
            return Err(Error::invalid("more than four billion rows in one batch"));
        }
        self.rows.push(ChunkRow {
            hash,
            part,
            at,
            key_bytes: length(key)?,
            record_bytes: length(record)?,
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(record);
        self.is_sorted = false;
        Ok(&mut self.bytes[at + key.len()..])
    }

    #[inline]
    pub fn key(&self, row: usize) -> &[u8] {
        let row = &self.rows[row];
        &self.bytes[row.at..row.at + row.key_bytes as usize]
    }

    #[inline]
    fn record_at(&self, row: usize) -> Range<usize> {
        let row = &self.rows[row];
        let start = row.at + row.key_bytes as usize;
        start..start + row.record_bytes as usize
    }

    #[inline]
    pub fn record(&self, row: usize) -> &[u8] {
        &self.bytes[self.record_at(row)]
    }

    pub fn set_matched(&mut self, row: usize) {
        let at = self.record_at(row).start;
        self.bytes[at] |= MATCHED;
    }

    #[inline]
    fn same_key(&self, a: usize, b: usize) -> bool {
        self.rows[a].hash == self.rows[b].hash && self.key(a) == self.key(b)
    }

    /// The end of the rows that have the key of the row at `first`.
    pub fn end_of_key(&self, first: usize) -> usize {
        let mut end = first + 1;
        while end < self.rows.len() && self.same_key(first, end) {
            end += 1;
        }
        end
    }

    /// Where the right side begins among the rows of a key.
    pub fn first_right(&self, rows: Range<usize>) -> usize {
        let start = rows.start;
        let left = self.rows[rows]
            .iter()
            .take_while(|row| side_of(row.part) == 0);
        start + left.count()
    }

    /// By hash, key and side; rows of one side keep their order.
    pub fn sort(&mut self) {
        if self.is_sorted {
            return;
        }
        let items = self
            .rows
            .iter()
            .zip(0u32..)
            .map(|(row, at)| (row.hash, at))
            .collect();
        let tie = |a: u32, b: u32| {
            let side = |at: u32| side_of(self.rows[at as usize].part);
            self.key(a as usize)
                .cmp(self.key(b as usize))
                .then_with(|| (side(a), a).cmp(&(side(b), b)))
        };
        let sorted = sort_by_hash(items, tie);
        self.rows = sorted
            .into_iter()
            .map(|(_, at)| self.rows[at as usize])
            .collect();
        self.is_sorted = true;
    }

    /// Takes over the rows of another chunk.
    pub fn append(&mut self, other: Self) {
        let moved = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.rows.extend(other.rows.into_iter().map(|row| ChunkRow {
            at: row.at + moved,
            ..row
        }));
        self.is_sorted = false;
    }

    /// Writes the rows numbered in `order`, which are sorted, as a run in which each key has one list.
    pub fn write(
        &self,
        order: &[u32],
        shape: RowShape,
        fingerprint: u64,
        writer: &mut PackWriter,
    ) -> Result<RunExtent> {
        let mut run = RunWriter::begin(writer, shape, fingerprint, order.len() as u64)?;
        let mut list = Vec::new();
        let mut rest = order;
        while let Some(first) = rest.first() {
            let same = rest
                .iter()
                .take_while(|row| self.same_key(*first as usize, **row as usize))
                .count();
            list.clear();
            let (now, later) = rest.split_at(same);
            for row in now {
                push_to_list(self.record(*row as usize), &mut list);
            }
            run.push(Row {
                hash: self.rows[*first as usize].hash,
                tombstone: false,
                key: self.key(*first as usize),
                value: &list,
            })?;
            rest = later;
        }
        run.finish()
    }
}

/// Keys of a chunk, by the first rows that have them.
pub struct ChunkKeys<'a> {
    pub chunk: &'a Chunk,
    pub firsts: &'a [u32],
}

impl Keys for ChunkKeys<'_> {
    #[inline]
    fn hash(&self, at: usize) -> u64 {
        self.chunk.rows[self.firsts[at] as usize].hash
    }
    #[inline]
    fn key(&self, at: usize) -> &[u8] {
        self.chunk.key(self.firsts[at] as usize)
    }
}
