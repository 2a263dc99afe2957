//! The encoded keys of a batch's rows.

use arrow_array::{Array, ArrayRef, RecordBatch};

use crate::error::Result;
use crate::layout::Layout;
use crate::time::write_expiry;

/// Keys one after another, reusing memory from batch to batch.
#[derive(Default)]
pub struct KeyRows {
    bytes: Vec<u8>,
    width: Option<usize>,
    /// Where each key begins, and where the last ends, unless all have one width.
    ends: Vec<usize>,
}

impl KeyRows {
    /// Keys of the rows of a batch of the layout's input schema, each with its expiry in front where it has one.
    pub fn encode(&mut self, layout: &Layout, batch: &RecordBatch) -> Result<()> {
        let rows = batch.num_rows();
        let columns = &batch.columns()[..layout.keys()];
        self.width = layout.key_width();
        match self.width {
            Some(width) => {
                self.bytes.clear();
                self.bytes.resize(rows * width, 0);
                layout.key_codec().encode_fixed(
                    columns,
                    &mut self.bytes,
                    width,
                    layout.key_prefix(),
                )?;
            }
            None => self.encode_variable(layout, columns)?,
        }
        if let (Some(times), true) = (layout.time().column(batch), layout.key_prefix() > 0) {
            for row in 0..rows {
                let expiry = times.is_valid(row).then(|| times.value(row));
                let start = self.start(row);
                write_expiry(&mut self.bytes[start..], expiry);
            }
        }
        Ok(())
    }

    fn encode_variable(&mut self, layout: &Layout, columns: &[ArrayRef]) -> Result<()> {
        let prefix = layout.key_prefix();
        self.bytes.clear();
        self.ends.clear();
        self.ends.push(0);
        for row in &layout.key_codec().encode(columns)? {
            self.bytes.resize(self.bytes.len() + prefix, 0);
            self.bytes.extend_from_slice(row.data());
            self.ends.push(self.bytes.len());
        }
        Ok(())
    }

    #[inline]
    fn start(&self, row: usize) -> usize {
        match self.width {
            Some(width) => row * width,
            None => self.ends[row],
        }
    }

    #[inline]
    pub fn get(&self, row: usize) -> &[u8] {
        &self.bytes[self.start(row)..self.start(row + 1)]
    }

    /// All keys, which have one width.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
