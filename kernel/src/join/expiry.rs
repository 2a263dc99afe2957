//! Rows of outer sides that expire without having found a partner.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;

use crate::cursor::RunCursor;
use crate::error::Result;
use crate::join::chunk::Chunk;
use crate::join::layout::{JoinLayout, LEFT, RIGHT};
use crate::join::matching::OUTPUT_ROWS;
use crate::join::part::{Part, end_of, side_of};
use crate::join::record::{self, MARK, MATCHED};
use crate::merge::Merger;
use crate::rows::HashRange;

/// The runs of one part under way.
struct PartScan {
    part: i64,
    merger: Merger<RunCursor>,
    /// The first sources are committed runs, which may hold rows that went out before.
    committed: usize,
}

pub struct Expiry {
    before: i64,
    evicted: i64,
    range: HashRange,
    waiting: VecDeque<i64>,
    scan: Option<PartScan>,
    /// Rows of the chunk that were looked at, by side.
    chunk_rows: [usize; 2],
}

impl Expiry {
    /// What expires at `before` and had not at `evicted`.
    pub fn new<'a>(
        layout: &JoinLayout,
        parts: impl Iterator<Item = (&'a i64, &'a Part)>,
        range: HashRange,
        before: i64,
        evicted: i64,
    ) -> Self {
        let due = |part: i64| end_of(part).saturating_sub(layout.slice_us) < before;
        let waiting = parts
            .filter(|(at, part)| {
                layout.sides[side_of(**at)].outer
                    && due(**at)
                    && !(part.runs.is_empty() && part.pending.is_empty())
            })
            .map(|(at, _)| *at)
            .collect();
        Self {
            before,
            evicted,
            range,
            waiting,
            scan: None,
            chunk_rows: [0, 0],
        }
    }

    /// The next rows, in the output schema; `None` when all have been given out. `marked`: rows for which the running
    /// batch found a partner.
    pub fn next(
        &mut self,
        layout: &JoinLayout,
        parts: &std::collections::BTreeMap<i64, Part>,
        chunk: &Chunk,
        marked: &HashSet<u64>,
    ) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(mut scan) = self.scan.take() {
                let side = side_of(scan.part);
                let (bytes, rows, is_done) = self.gather(layout, &mut scan, marked)?;
                if !is_done {
                    self.scan = Some(scan);
                }
                if !rows.is_empty() {
                    let records: Vec<&[u8]> = rows.iter().map(|at| &bytes[at.clone()]).collect();
                    return layout.decode_alone(side, &records).map(Some);
                }
                continue;
            }
            let Some(at) = self.waiting.pop_front() else {
                break;
            };
            if let Some(part) = parts.get(&at) {
                self.scan = Some(self.open(at, part)?);
            }
        }
        for side in [LEFT, RIGHT] {
            if let Some(batch) = self.next_of_chunk(layout, side, chunk)? {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    fn open(&self, at: i64, part: &Part) -> Result<PartScan> {
        let runs = part
            .runs
            .iter()
            .chain(part.pending.iter().map(|(_, run)| run));
        let cursors = runs
            .map(|held| RunCursor::open(Arc::clone(&held.run), self.range))
            .collect::<Result<Vec<_>>>()?;
        Ok(PartScan {
            part: at,
            merger: Merger::new(cursors),
            committed: part.runs.len(),
        })
    }

    /// Copies of expired rows, and whether the part has no more.
    fn gather(
        &self,
        layout: &JoinLayout,
        scan: &mut PartScan,
        marked: &HashSet<u64>,
    ) -> Result<(Vec<u8>, Vec<Range<usize>>, bool)> {
        let head = layout.sides[side_of(scan.part)].head;
        let (mut bytes, mut rows) = (Vec::new(), Vec::new());
        while rows.len() < OUTPUT_ROWS {
            if !scan.merger.next(&())? {
                return Ok((bytes, rows, true));
            }
            let mut marked_here = HashSet::new();
            let first = rows.len();
            for source in scan.merger.at_key() {
                let Some(row) = scan.merger.source(*source).row() else {
                    continue;
                };
                let gone = match (*source as usize) < scan.committed {
                    true => self.evicted,
                    false => i64::MIN,
                };
                record::walk_list(row.value, head, |at| {
                    let record = &row.value[at];
                    let flags = record::flags(record);
                    let expiry = record::expiry(record);
                    if flags & MARK != 0 {
                        marked_here.insert(record::marked_id(record));
                    } else if flags & MATCHED == 0
                        && expiry <= self.before
                        && (expiry > gone || gone == i64::MIN)
                    {
                        let start = bytes.len();
                        bytes.extend_from_slice(record);
                        rows.push(start..bytes.len());
                    }
                })?;
            }
            let mut kept = first;
            for at in first..rows.len() {
                let id = head.id(&bytes[rows[at].clone()]);
                if !id.is_some_and(|id| marked.contains(&id) || marked_here.contains(&id)) {
                    rows.swap(kept, at);
                    kept += 1;
                }
            }
            rows.truncate(kept);
        }
        Ok((bytes, rows, false))
    }

    fn next_of_chunk(
        &mut self,
        layout: &JoinLayout,
        side: usize,
        chunk: &Chunk,
    ) -> Result<Option<RecordBatch>> {
        if !layout.sides[side].outer {
            return Ok(None);
        }
        let mut records = Vec::new();
        let mut at = self.chunk_rows[side];
        while at < chunk.len() && records.len() < OUTPUT_ROWS {
            let record = chunk.record(at);
            if side_of(chunk.rows()[at].part) == side
                && record::flags(record) & (MARK | MATCHED) == 0
                && record::expiry(record) <= self.before
            {
                records.push(record);
            }
            at += 1;
        }
        self.chunk_rows[side] = at;
        match records.is_empty() {
            true => Ok(None),
            false => layout.decode_alone(side, &records).map(Some),
        }
    }
}
