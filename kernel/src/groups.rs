//! Keys, and groups with their values, gathered outside of a table: the rows of an output batch while it is made.

use arrow_array::RecordBatch;

use crate::error::Result;
use crate::layout::Layout;
use crate::table::Keys;

/// Keys with their hashes, one after another.
#[derive(Default)]
pub struct KeyList {
    hashes: Vec<u64>,
    ends: Vec<usize>,
    bytes: Vec<u8>,
}

impl KeyList {
    pub fn push(&mut self, hash: u64, key: &[u8]) {
        self.hashes.push(hash);
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// The numbers of all keys.
    pub fn order(&self) -> Vec<u32> {
        (0..self.len() as u32).collect()
    }
}

impl Keys for KeyList {
    #[inline]
    fn hash(&self, at: usize) -> u64 {
        self.hashes[at]
    }
    #[inline]
    fn key(&self, at: usize) -> &[u8] {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start..self.ends[at]]
    }
}

/// The values of numbered groups, each absent until it is first merged.
pub struct Values {
    spans: Vec<Option<(usize, usize)>>,
    bytes: Vec<u8>,
    scratch: Vec<u8>,
}

impl Values {
    pub fn absent(groups: usize) -> Self {
        Self {
            spans: vec![None; groups],
            bytes: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Adds a group, absent as yet.
    pub fn push_absent(&mut self) {
        self.spans.push(None);
    }

    pub fn get(&self, at: usize) -> Option<&[u8]> {
        let (start, end) = self.spans[at]?;
        Some(&self.bytes[start..end])
    }

    pub fn is_present(&self, at: usize) -> bool {
        self.spans[at].is_some()
    }

    /// Merges a value into the group's, or makes it the group's where there is none.
    pub fn merge(&mut self, layout: &Layout, at: usize, value: &[u8]) -> Result<()> {
        let Some((start, end)) = self.spans[at] else {
            self.set(at, value);
            return Ok(());
        };
        if layout.value_width().is_some() {
            return layout.merge_fixed(&mut self.bytes[start..end], value);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        if layout.merge_variable(&self.bytes[start..end], value, &mut scratch)? {
            self.set(at, &scratch);
        }
        self.scratch = scratch;
        Ok(())
    }

    fn set(&mut self, at: usize, value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.spans[at] = Some((start, self.bytes.len()));
    }
}

/// The groups that are present, in the output schema.
pub fn decode_present(layout: &Layout, keys: &KeyList, values: &Values) -> Result<RecordBatch> {
    let present = (0..keys.len()).filter_map(|at| Some((keys.key(at), values.get(at)?)));
    let (keys, values): (Vec<_>, Vec<_>) = present.unzip();
    layout.decode(&keys, &values)
}
