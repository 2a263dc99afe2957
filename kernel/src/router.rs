//! Where the rows of an operator go that keeps rows as they are: to which shard, and into which slice.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{RecordBatch, UInt32Array, UInt64Array};

use crate::error::Result;
use crate::hash::hash_key;
use crate::key::KeyRows;
use crate::layout::Layout;
use crate::shards::Shards;
use crate::time::Placement;

pub struct Router {
    layout: Arc<Layout>,
    shards: Shards,
    late_before: Option<i64>,
    rows: u64,
    late_rows: u64,
    keys: KeyRows,
}

/// Rows of one batch that go the same way, by their numbers, in order.
pub struct Route {
    pub shard: usize,
    pub slice: i64,
    pub rows: UInt32Array,
    /// Of the rows' keys.
    pub hashes: UInt64Array,
}

impl Router {
    /// `layout`: the keys and the time; aggregates are not looked at.
    pub fn new(
        layout: Arc<Layout>,
        shard_starts: &[u32],
        late_before: Option<i64>,
    ) -> Result<Self> {
        Ok(Self {
            layout,
            shards: Shards::new(shard_starts)?,
            late_before,
            rows: 0,
            late_rows: 0,
            keys: KeyRows::default(),
        })
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    pub fn late_rows(&self) -> u64 {
        self.late_rows
    }

    /// `batch`: the keys and the time of the rows, in the layout's input schema.
    pub fn route(&mut self, batch: &RecordBatch) -> Result<Vec<Route>> {
        self.layout.check_input(batch)?;
        self.keys.encode(&self.layout, batch)?;
        self.rows += batch.num_rows() as u64;
        let mut ways: Vec<Way> = Vec::new();
        let mut places: HashMap<(usize, i64), usize> = HashMap::new();
        let mut last: Option<((usize, i64), usize)> = None;
        let mut row = 0_u32;
        let (keys, shards, late_rows) = (&self.keys, &self.shards, &mut self.late_rows);
        self.layout
            .time()
            .place(batch, self.late_before, |placement| {
                match placement {
                    Placement::Slice(slice) => {
                        let hash = hash_key(keys.get(row as usize));
                        let target = (shards.of(hash), slice);
                        let place = match last {
                            Some((same, place)) if same == target => place,
                            _ => *places.entry(target).or_insert_with(|| {
                                ways.push(Way::to(target));
                                ways.len() - 1
                            }),
                        };
                        last = Some((target, place));
                        ways[place].rows.push(row);
                        ways[place].hashes.push(hash);
                    }
                    Placement::Late => *late_rows += 1,
                    Placement::Nowhere => {}
                }
                row += 1;
            });
        Ok(ways
            .into_iter()
            .map(|way| Route {
                shard: way.target.0,
                slice: way.target.1,
                rows: way.rows.into(),
                hashes: way.hashes.into(),
            })
            .collect())
    }
}

/// A route that is still gathered.
struct Way {
    target: (usize, i64),
    rows: Vec<u32>,
    hashes: Vec<u64>,
}

impl Way {
    fn to(target: (usize, i64)) -> Self {
        Self {
            target,
            rows: Vec::new(),
            hashes: Vec::new(),
        }
    }
}
