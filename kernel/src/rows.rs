//! How a row lies in a run's block: hash, flags, key, value; lengths only where the layout leaves them open.

use crate::error::{Error, Result};
use crate::hash::{BUCKET_BITS, BUCKETS};
use crate::layout::Layout;

/// The row says that its key does not exist; its value means nothing.
pub const TOMBSTONE: u8 = 1;

const HASH_BYTES: usize = 8;
const FLAGS_BYTES: usize = 1;
const LENGTH_BYTES: usize = 4;

/// The widths of a layout's keys and values; `None` where they vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowShape {
    pub key_width: Option<usize>,
    pub value_width: Option<usize>,
}

/// One row, borrowed from a block or a table.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub hash: u64,
    pub tombstone: bool,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

/// Where a row's parts lie in the bytes it was read from.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowSpan {
    pub hash: u64,
    pub tombstone: bool,
    pub key_at: usize,
    pub value_at: usize,
    pub end: usize,
}

impl RowSpan {
    #[inline]
    pub fn row<'a>(&self, bytes: &'a [u8]) -> Row<'a> {
        Row {
            hash: self.hash,
            tombstone: self.tombstone,
            key: bytes.get(self.key_at..self.value_at).unwrap_or_default(),
            value: bytes.get(self.value_at..self.end).unwrap_or_default(),
        }
    }
}

impl RowShape {
    pub fn of(layout: &Layout) -> Self {
        Self {
            key_width: layout.key_width(),
            value_width: layout.value_width(),
        }
    }

    /// Bytes of every row, where keys and values are fixed.
    #[inline]
    pub fn stride(&self) -> Option<usize> {
        Some(HASH_BYTES + FLAGS_BYTES + self.key_width? + self.value_width?)
    }

    /// Bytes of a row with a key and a value of these lengths.
    #[inline]
    pub fn row_bytes(&self, key: usize, value: usize) -> usize {
        let lengths =
            usize::from(self.key_width.is_none()) + usize::from(self.value_width.is_none());
        HASH_BYTES + FLAGS_BYTES + lengths * LENGTH_BYTES + key + value
    }

    /// Appends a row. The caller gives widths that fit the shape; a fixed value is written for tombstones too.
    #[inline]
    pub fn write(&self, row: Row<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(&row.hash.to_le_bytes());
        out.push(if row.tombstone { TOMBSTONE } else { 0 });
        if self.key_width.is_none() {
            out.extend_from_slice(&(row.key.len() as u32).to_le_bytes());
        }
        if self.value_width.is_none() {
            out.extend_from_slice(&(row.value.len() as u32).to_le_bytes());
        }
        out.extend_from_slice(row.key);
        out.extend_from_slice(row.value);
    }

    /// The row at `at`, or `None` where the bytes can't be a row.
    #[inline]
    pub fn read(&self, bytes: &[u8], at: usize) -> Option<RowSpan> {
        let head = bytes.get(at..)?;
        let (hash, rest) = head.split_first_chunk::<HASH_BYTES>()?;
        let (flags, mut rest) = rest.split_first()?;
        if *flags > TOMBSTONE {
            return None;
        }
        let mut length = |width: Option<usize>| match width {
            Some(width) => Some(width),
            None => {
                let (length, after) = rest.split_first_chunk::<LENGTH_BYTES>()?;
                rest = after;
                Some(u32::from_le_bytes(*length) as usize)
            }
        };
        let key = length(self.key_width)?;
        let value = length(self.value_width)?;
        let key_at = bytes.len() - rest.len();
        let value_at = key_at.checked_add(key)?;
        let end = value_at.checked_add(value)?;
        (end <= bytes.len()).then_some(RowSpan {
            hash: u64::from_le_bytes(*hash),
            tombstone: *flags == TOMBSTONE,
            key_at,
            value_at,
            end,
        })
    }
}

/// The hashes of a range of buckets, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashRange {
    pub first: u64,
    pub last: u64,
}

impl HashRange {
    pub fn of_buckets(first_bucket: u32, end_bucket: u32) -> Result<Self> {
        if first_bucket >= end_bucket || end_bucket > BUCKETS {
            return Err(Error::Invalid(format!(
                "there are {BUCKETS} buckets, and none from {first_bucket} to {end_bucket}"
            )));
        }
        let shift = u64::BITS - BUCKET_BITS;
        Ok(Self {
            first: u64::from(first_bucket) << shift,
            last: (u64::from(end_bucket - 1) << shift) | (u64::MAX >> BUCKET_BITS),
        })
    }

    #[inline]
    pub fn holds(&self, hash: u64) -> bool {
        self.first <= hash && hash <= self.last
    }
}
