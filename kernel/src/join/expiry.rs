//! Rows of outer sides that expire without having found a partner.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Range;

use arrow_array::RecordBatch;

use crate::cursor::RunCursor;
use crate::error::Result;
use crate::join::alone::{Alone, AloneRow};
use crate::join::chunk::Chunk;
use crate::join::layout::{JoinLayout, LEFT, RIGHT};
use crate::join::matching::{OUTPUT_BYTES, OUTPUT_ROWS};
use crate::join::part::{Part, end_of, side_of};
use crate::join::record::{self, Head, MARK, MATCHED};
use crate::lookup::Counters;
use crate::merge::Merger;
use crate::rows::HashRange;

/// One part under way.
enum Scan {
    Runs {
        part: i64,
        merger: Merger<RunCursor>,
        /// The first sources are committed runs, which may hold rows that went out before.
        committed: usize,
    },
    /// The rows are in memory; the number of the next.
    Memory { part: i64, at: usize },
}

/// Rows of a part that wait on.
#[derive(Default)]
struct Later {
    rows: Vec<AloneRow>,
    bytes: usize,
}

/// What there is to expire.
pub struct Expiring<'a> {
    pub parts: &'a BTreeMap<i64, Part>,
    pub chunk: &'a Chunk,
    /// Rows for which the running batch found a partner.
    pub marked: &'a HashSet<u64>,
    pub alone: &'a mut Alone,
    /// What may be held of rows that wait on.
    pub room: usize,
    pub counters: &'a mut Counters,
}

pub struct Expiry {
    before: i64,
    evicted: i64,
    range: HashRange,
    waiting: VecDeque<i64>,
    scan: Option<Scan>,
    later: Later,
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
            later: Later::default(),
            chunk_rows: [0, 0],
        }
    }

    /// The next rows, in the output schema; `None` when all have been given out.
    pub fn next(
        &mut self,
        layout: &JoinLayout,
        from: &mut Expiring<'_>,
    ) -> Result<Option<RecordBatch>> {
        loop {
            match self.scan.take() {
                Some(Scan::Runs {
                    part,
                    mut merger,
                    committed,
                }) => {
                    let found = self.gather(layout, part, &mut merger, committed, from)?;
                    for cursor in merger.sources_mut() {
                        from.counters.add_reads(&cursor.take_reads());
                    }
                    if !found.is_done {
                        self.scan = Some(Scan::Runs {
                            part,
                            merger,
                            committed,
                        });
                    } else if self.is_cut(part, from.room) && self.later.bytes <= from.room {
                        from.alone.add(part, std::mem::take(&mut self.later).rows);
                    }
                    if !found.rows.is_empty() {
                        let rows = found.rows.iter();
                        let records: Vec<&[u8]> = rows.map(|at| &found.bytes[at.clone()]).collect();
                        return layout.decode_alone(side_of(part), &records).map(Some);
                    }
                }
                Some(Scan::Memory { part, mut at }) => {
                    let mut records: Vec<&[u8]> = Vec::new();
                    let mut bytes = 0;
                    while records.len() < OUTPUT_ROWS
                        && bytes < OUTPUT_BYTES
                        && let Some(row) = from.alone.get(part, at)
                    {
                        if row.expiry <= self.before && !from.marked.contains(&row.id) {
                            bytes += row.record.len();
                            records.push(&row.record);
                        }
                        at += 1;
                    }
                    if !records.is_empty() {
                        self.scan = Some(Scan::Memory { part, at });
                        return layout.decode_alone(side_of(part), &records).map(Some);
                    }
                }
                None => {
                    let Some(at) = self.waiting.pop_front() else {
                        break;
                    };
                    self.later = Later::default();
                    if from.alone.holds(at) {
                        self.scan = Some(Scan::Memory { part: at, at: 0 });
                    } else if let Some(part) = from.parts.get(&at) {
                        self.scan = Some(self.open(at, part)?);
                    }
                }
            }
        }
        for side in [LEFT, RIGHT] {
            if let Some(batch) = self.next_of_chunk(layout, side, from.chunk)? {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// Whether some rows of the part wait on, and there is room for them.
    fn is_cut(&self, part: i64, room: usize) -> bool {
        end_of(part) > self.before && room > 0
    }

    fn open(&self, at: i64, part: &Part) -> Result<Scan> {
        let runs = part
            .runs
            .iter()
            .chain(part.pending.iter().map(|(_, run)| run));
        let cursors = runs
            .map(|held| RunCursor::open(held.run()?, self.range))
            .collect::<Result<Vec<_>>>()?;
        Ok(Scan::Runs {
            part: at,
            merger: Merger::new(cursors),
            committed: part.runs.len(),
        })
    }

    /// Expired rows; those that wait on are noted.
    fn gather(
        &mut self,
        layout: &JoinLayout,
        part: i64,
        merger: &mut Merger<RunCursor>,
        committed: usize,
        from: &Expiring<'_>,
    ) -> Result<Gathered> {
        let head = layout.sides[side_of(part)].head;
        let is_cut = self.is_cut(part, from.room);
        let mut end = 0;
        let mut gathered = Gathered::default();
        let Gathered { bytes, rows, .. } = &mut gathered;
        while rows.len() < OUTPUT_ROWS && bytes.len() < OUTPUT_BYTES {
            if !merger.next(&())? {
                gathered.is_done = true;
                return Ok(gathered);
            }
            let mut marked_here = HashSet::new();
            let first = rows.len();
            for source in merger.at_key() {
                let Some(row) = merger.source(*source).row() else {
                    continue;
                };
                let gone = match (*source as usize) < committed {
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
                        && (is_cut || expiry <= self.before)
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
                let record = &bytes[rows[at].clone()];
                let id = head.id(record);
                if id.is_some_and(|id| from.marked.contains(&id) || marked_here.contains(&id)) {
                    continue;
                }
                if record::expiry(record) <= self.before {
                    rows.swap(kept, at);
                    end = end.max(rows[kept].end);
                    kept += 1;
                } else if let Some(row) = alone_row(head, record) {
                    self.later.add(row, from.room);
                }
            }
            rows.truncate(kept);
            // Only what expired is handed on.
            bytes.truncate(end);
        }
        Ok(gathered)
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
        let mut bytes = 0;
        let mut at = self.chunk_rows[side];
        while at < chunk.len() && records.len() < OUTPUT_ROWS && bytes < OUTPUT_BYTES {
            let record = chunk.record(at);
            if side_of(chunk.rows()[at].part) == side
                && record::flags(record) & (MARK | MATCHED) == 0
                && record::expiry(record) <= self.before
            {
                bytes += record.len();
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

#[derive(Default)]
struct Gathered {
    bytes: Vec<u8>,
    rows: Vec<Range<usize>>,
    /// The part has no more.
    is_done: bool,
}

impl Later {
    fn add(&mut self, row: AloneRow, room: usize) {
        self.bytes += row.bytes();
        match self.bytes <= room {
            true => self.rows.push(row),
            false => self.rows = Vec::new(),
        }
    }
}

/// A row without a partner, to be held.
pub fn alone_row(head: Head, record: &[u8]) -> Option<AloneRow> {
    head.id(record).map(|id| AloneRow {
        expiry: record::expiry(record),
        id,
        record: record.into(),
    })
}
