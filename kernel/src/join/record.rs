//! How one kept row lies in bytes, and how the rows of a key stand in a list.
//!
//! `flags u8 | expiry i64 | id u64, on sides whose unmatched rows come out | comparands i64... | columns`. A *mark*, in
//! the list of a row's key, says that a row which was written before has found a partner: `flags u8 | id u64`.

use crate::error::{Error, Result};
use crate::pack::{le_u32, le_u64};

/// The row has found a partner.
pub const MATCHED: u8 = 1;
/// The row can't have a partner: a key or a comparand is null.
pub const ALONE: u8 = 2;
/// No row but a mark.
pub const MARK: u8 = 4;

const FLAGS_BYTES: usize = 1;
const WORD: usize = 8;
const LENGTH_BYTES: usize = 4;
/// The expiry of rows that stay for ever.
pub const NEVER: i64 = i64::MAX;
/// The expiry of rows that come out with the batch that brings them.
pub const AT_ONCE: i64 = i64::MIN;

/// The fixed part of a side's rows.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub has_id: bool,
    pub comparands: usize,
}

impl Head {
    pub fn bytes(self) -> usize {
        FLAGS_BYTES + WORD * (1 + usize::from(self.has_id) + self.comparands)
    }

    #[inline]
    pub fn comparand(self, record: &[u8], at: usize) -> i64 {
        let first = FLAGS_BYTES + WORD * (1 + usize::from(self.has_id));
        le_u64(record, first + WORD * at) as i64
    }

    #[inline]
    pub fn id(self, record: &[u8]) -> Option<u64> {
        self.has_id.then(|| le_u64(record, FLAGS_BYTES + WORD))
    }

    /// Gives the row its number; on sides without numbers nothing happens.
    pub fn set_id(self, record: &mut [u8], id: u64) {
        let at = FLAGS_BYTES + WORD;
        if self.has_id
            && let Some(place) = record.get_mut(at..at + WORD)
        {
            place.copy_from_slice(&id.to_le_bytes());
        }
    }

    #[inline]
    pub fn columns(self, record: &[u8]) -> &[u8] {
        record.get(self.bytes()..).unwrap_or_default()
    }
}

#[inline]
pub fn flags(record: &[u8]) -> u8 {
    record.first().copied().unwrap_or_default()
}

#[inline]
pub fn expiry(record: &[u8]) -> i64 {
    le_u64(record, FLAGS_BYTES) as i64
}

/// Appends the fixed part of a row whose number comes later.
pub fn write_head(flags: u8, expiry: i64, has_id: bool, out: &mut Vec<u8>) {
    out.push(flags);
    out.extend_from_slice(&expiry.to_le_bytes());
    if has_id {
        out.extend_from_slice(&[0; WORD]);
    }
}

pub fn mark(id: u64) -> [u8; FLAGS_BYTES + WORD] {
    let mut record = [MARK; FLAGS_BYTES + WORD];
    record[FLAGS_BYTES..].copy_from_slice(&id.to_le_bytes());
    record
}

pub fn marked_id(record: &[u8]) -> u64 {
    le_u64(record, FLAGS_BYTES)
}

/// Appends a record to a list.
#[inline]
pub fn push_to_list(record: &[u8], list: &mut Vec<u8>) {
    list.extend_from_slice(&(record.len() as u32).to_le_bytes());
    list.extend_from_slice(record);
}

/// Hands the place of each record of the list to `each`.
pub fn walk_list(
    list: &[u8],
    head: Head,
    mut each: impl FnMut(std::ops::Range<usize>),
) -> Result<()> {
    let mut at = 0;
    while at < list.len() {
        let start = at + LENGTH_BYTES;
        let end = start + le_u32(list, at) as usize;
        let Some(record) = list.get(start..end) else {
            return Err(broken());
        };
        let least = match flags(record) & MARK != 0 {
            true => FLAGS_BYTES + WORD,
            false => head.bytes(),
        };
        if record.len() < least {
            return Err(broken());
        }
        each(start..end);
        at = end;
    }
    Ok(())
}

fn broken() -> Error {
    Error::damaged(crate::codec::ENCODED_ROWS, "bytes that are no list of rows")
}
