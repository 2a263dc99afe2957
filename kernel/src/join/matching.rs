//! Pairs of the rows of some keys: those that the running batch brings, with each other and with those kept before.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use arrow_array::RecordBatch;

use crate::error::Result;
use crate::join::chunk::{Chunk, ChunkKeys};
use crate::join::layout::{JoinLayout, LEFT, RIGHT, Span};
use crate::join::part::{Part, side_of, span_of};
use crate::join::record::{self, MARK, MATCHED};
use crate::lookup::Counters;
use crate::spent::Beside;

/// Rows of a chunk whose keys are looked up together.
pub const STEP_ROWS: usize = 16_384;
/// Rows of an output batch.
pub const OUTPUT_ROWS: usize = 65_536;
/// Bytes of rows after which a batch is given out, however few rows it has.
pub const OUTPUT_BYTES: usize = 8 << 20;

#[derive(Clone, Debug)]
struct OldRow {
    record: Range<usize>,
    part: i64,
    is_matched: bool,
}

/// What one run holds of a key.
struct List {
    side: usize,
    group: u32,
    part: i64,
    is_committed: bool,
    bytes: Range<usize>,
}

/// The rows of one key: of the chunk and from before, by side.
struct Group {
    new: [Range<usize>; 2],
    old: [Range<usize>; 2],
}

#[derive(Clone, Copy, Default)]
struct Position {
    group: usize,
    /// 0: new rows with each other, 1: new left with old right, 2: old left with new right.
    turn: usize,
    left: usize,
    right: usize,
}

pub struct Step {
    groups: Vec<Group>,
    bytes: Vec<u8>,
    old: Vec<OldRow>,
    /// Rows of the chunk that came out, on a side whose rows do so once.
    came_out: HashSet<usize>,
    at: Position,
    /// The first row of the chunk that is not in the step.
    pub end: usize,
    /// Whether keys were looked up that had no room.
    pub is_cut: bool,
    /// Keys that were looked up on each side.
    pub looked_up: [u64; 2],
    /// When the rows that were looked for expire, where their time is bounded.
    pub asked: [Option<Span>; 2],
}

/// What a step found out beside the pairs: rows of outer sides that have a partner for the first time.
#[derive(Default)]
pub struct Matched {
    /// Rows of the chunk.
    pub new: Vec<usize>,
    /// A row of the chunk with the same key, the part and the number of a row kept before.
    pub old: Vec<(usize, i64, u64)>,
}

/// What is looked up in.
pub struct Kept<'a> {
    pub parts: &'a mut BTreeMap<i64, Part>,
    /// Rows that expired at or before it are gone.
    pub evicted: i64,
    /// Runs of this chunk and later ones are not looked at.
    pub chunk: usize,
    /// Rows for which the running batch found a partner.
    pub marked: &'a HashSet<u64>,
    /// How many bytes of kept rows a step may hold; of one key, it holds all.
    pub room: usize,
    pub counters: &'a mut Counters,
}

/// The keys of a step while their partners are looked up.
struct LookUp {
    /// Keys from this one on are left to the next step.
    end: usize,
    lists: Vec<List>,
    bytes: Vec<u8>,
}

impl LookUp {
    fn add(&mut self, side: usize, group: u32, part: i64, is_committed: bool, list: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(list);
        self.lists.push(List {
            side,
            group,
            part,
            is_committed,
            bytes: start..self.bytes.len(),
        });
    }

    /// Leaves half of the keys to the next step.
    fn halve(&mut self) {
        self.end /= 2;
        let (end, bytes) = (self.end, &mut self.bytes);
        let mut length = 0;
        // Lists stand in the order of their bytes.
        self.lists.retain_mut(|list| {
            let is_kept = (list.group as usize) < end;
            if is_kept {
                bytes.copy_within(list.bytes.clone(), length);
                list.bytes = length..length + list.bytes.len();
                length = list.bytes.end;
            }
            is_kept
        });
        bytes.truncate(length);
    }
}

impl Step {
    /// Looks up the partners of the chunk's next keys, from the row `first` on: those of about `most` rows, or fewer,
    /// if all that is kept of them has no room.
    pub fn begin(
        layout: &JoinLayout,
        chunk: &Chunk,
        first: usize,
        most: usize,
        kept: &mut Kept<'_>,
    ) -> Result<Self> {
        let mut groups = Vec::new();
        let mut firsts = Vec::new();
        let mut end = first;
        while end < chunk.len() && end - first < most {
            let start = end;
            end = chunk.end_of_key(start);
            let right = chunk.first_right(start..end);
            groups.push(Group {
                new: [start..right, right..end],
                old: [0..0, 0..0],
            });
            firsts.push(start as u32);
        }
        let mut step = Self {
            groups,
            bytes: Vec::new(),
            old: Vec::new(),
            came_out: HashSet::new(),
            at: Position::default(),
            end,
            is_cut: false,
            looked_up: [0, 0],
            asked: [None, None],
        };
        let mut found = LookUp {
            end: step.groups.len(),
            lists: Vec::new(),
            bytes: Vec::new(),
        };
        for side in [LEFT, RIGHT] {
            step.look_up(layout, chunk, &firsts, side, kept, &mut found)?;
        }
        step.is_cut = found.end < step.groups.len();
        step.groups.truncate(found.end);
        step.end = step
            .groups
            .last()
            .map_or(first, |group| group.new[RIGHT].end);
        step.bytes = found.bytes;
        // Stable, so that the lists of a key stay in the order of their runs.
        found.lists.sort_by_key(|list| (list.side, list.group));
        for lists in found
            .lists
            .chunk_by(|a, b| (a.side, a.group) == (b.side, b.group))
        {
            let start = step.old.len();
            let (side, group) = (lists[0].side, lists[0].group as usize);
            step.expand(layout, side, lists, kept)?;
            step.groups[group].old[side] = start..step.old.len();
        }
        Ok(step)
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.old.capacity() * size_of::<OldRow>()
    }

    /// Finds the kept rows of one side for the keys that have new rows of the other.
    fn look_up(
        &mut self,
        layout: &JoinLayout,
        chunk: &Chunk,
        firsts: &[u32],
        side: usize,
        kept: &mut Kept<'_>,
        found: &mut LookUp,
    ) -> Result<()> {
        let keys = ChunkKeys { chunk, firsts };
        let wanted: Vec<u32> = (0u32..)
            .zip(&self.groups[..found.end])
            .filter(|(_, group)| !group.new[1 - side].is_empty())
            .map(|(at, _)| at)
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        self.looked_up[side] = wanted.len() as u64;
        let spans = match layout.bounds_partners(side) {
            true => Some(self.spans(layout, chunk, &wanted, side)),
            false => None,
        };
        let asked = spans.iter().flatten().filter(|span| !span.is_empty());
        self.asked[side] = asked.copied().reduce(Span::around);
        let spent = Beside::start();
        let mut scratch = Vec::new();
        let (room, chunk_number) = (kept.room, kept.chunk);
        for (at, part) in kept.parts.iter_mut() {
            if side_of(*at) != side || part.is_dropped {
                continue;
            }
            let mut wanted = match &spans {
                Some(spans) => Cow::Owned(meeting(&wanted, spans, span_of(*at, layout.slice_us))),
                None => Cow::Borrowed(&wanted),
            };
            let committed = part.runs.len();
            for (place, run) in part.older_than(chunk_number).enumerate() {
                if wanted
                    .last()
                    .is_some_and(|last| *last as usize >= found.end)
                {
                    let left = wanted.partition_point(|group| (*group as usize) < found.end);
                    wanted.to_mut().truncate(left);
                }
                if wanted.is_empty() {
                    break;
                }
                run.find(
                    &keys,
                    &wanted,
                    kept.counters,
                    &mut scratch,
                    |group, list| {
                        if (group as usize) < found.end {
                            found.add(side, group, *at, place < committed, list);
                        }
                        while found.bytes.len() > room && found.end > 1 {
                            found.halve();
                        }
                        Ok(())
                    },
                )?;
            }
        }
        kept.counters.lookup_ns += spent.ns();
        Ok(())
    }

    /// For each of the groups, when the rows expire that its new rows look for on `side`.
    fn spans(&self, layout: &JoinLayout, chunk: &Chunk, groups: &[u32], side: usize) -> Vec<Span> {
        let spans = groups.iter().map(|group| {
            let rows = self.groups[*group as usize].new[1 - side].clone();
            let asked = rows.map(|row| layout.partners_expire(side, chunk.record(row)));
            asked.fold(Span::EMPTY, Span::around)
        });
        spans.collect()
    }

    /// The rows of a key's lists, marks applied.
    fn expand(
        &mut self,
        layout: &JoinLayout,
        side: usize,
        lists: &[List],
        kept: &Kept<'_>,
    ) -> Result<()> {
        let head = layout.sides[side].head;
        let first = self.old.len();
        let mut marked = HashSet::new();
        for list in lists {
            let start = list.bytes.start;
            let (bytes, old) = (&self.bytes[list.bytes.clone()], &mut self.old);
            record::walk_list(bytes, head, |at| {
                let record = &bytes[at.clone()];
                let flags = record::flags(record);
                if flags & MARK != 0 {
                    marked.insert(record::marked_id(record));
                } else if !list.is_committed || record::expiry(record) > kept.evicted {
                    old.push(OldRow {
                        record: start + at.start..start + at.end,
                        part: list.part,
                        is_matched: flags & MATCHED != 0,
                    });
                }
            })?;
        }
        if !marked.is_empty() || !kept.marked.is_empty() {
            for row in &mut self.old[first..] {
                let id = head.id(&self.bytes[row.record.clone()]);
                row.is_matched |=
                    id.is_some_and(|id| marked.contains(&id) || kept.marked.contains(&id));
            }
        }
        Ok(())
    }

    /// The next pairs; `None` when the step is done.
    pub fn next(
        &mut self,
        layout: &JoinLayout,
        chunk: &Chunk,
        matched: &mut Matched,
    ) -> Result<Option<RecordBatch>> {
        let is_followed = [LEFT, RIGHT].map(|side| layout.sides[side].head.has_id);
        let is_once = layout.sides[LEFT].once;
        let (mut lefts, mut rights): (Vec<&[u8]>, Vec<&[u8]>) = (Vec::new(), Vec::new());
        // A row comes out beside each of its partners, so that a few large ones make much of little.
        let mut given_bytes = 0;
        let mut is_full = false;
        let Self {
            groups,
            bytes,
            old,
            came_out,
            at,
            ..
        } = self;
        while let Some(group) = groups.get(at.group) {
            let (left_rows, right_rows) = match at.turn {
                0 => (&group.new[LEFT], &group.new[RIGHT]),
                1 => (&group.new[LEFT], &group.old[RIGHT]),
                _ => (&group.old[LEFT], &group.new[RIGHT]),
            };
            let (is_old_left, is_old_right) = (at.turn == 2, at.turn == 1);
            while at.left < left_rows.len() && !is_full {
                let left_at = left_rows.start + at.left;
                let left = match is_old_left {
                    true => &bytes[old[left_at].record.clone()],
                    false => chunk.record(left_at),
                };
                let has_come_out = match is_old_left {
                    true => old[left_at].is_matched,
                    false => came_out.contains(&left_at),
                };
                if is_once && has_come_out {
                    at.right = right_rows.len();
                }
                while at.right < right_rows.len() && !is_full {
                    let right_at = right_rows.start + at.right;
                    at.right += 1;
                    let right = match is_old_right {
                        true => &bytes[old[right_at].record.clone()],
                        false => chunk.record(right_at),
                    };
                    if !layout.is_match(left, right) {
                        continue;
                    }
                    lefts.push(left);
                    rights.push(right);
                    given_bytes += left.len() + right.len();
                    is_full = lefts.len() >= OUTPUT_ROWS || given_bytes >= OUTPUT_BYTES;
                    for (side, row, is_old, record) in [
                        (LEFT, left_at, is_old_left, left),
                        (RIGHT, right_at, is_old_right, right),
                    ] {
                        if !is_followed[side] {
                            continue;
                        }
                        if !is_old {
                            matched.new.push(row);
                        } else if !old[row].is_matched
                            && let Some(id) = layout.sides[side].head.id(record)
                        {
                            old[row].is_matched = true;
                            let same_key = group.new[1 - side].start;
                            matched.old.push((same_key, old[row].part, id));
                        }
                    }
                    if is_once {
                        if !is_old_left {
                            came_out.insert(left_at);
                        }
                        at.right = right_rows.len();
                    }
                }
                if at.right >= right_rows.len() {
                    at.right = 0;
                    at.left += 1;
                }
            }
            if at.left < left_rows.len() {
                break;
            }
            at.left = 0;
            at.turn += 1;
            if at.turn > 2 {
                at.turn = 0;
                at.group += 1;
            }
        }
        match lefts.is_empty() {
            true => Ok(None),
            false => layout.decode_pairs(&lefts, &rights).map(Some),
        }
    }
}

/// Those of the groups that look for rows of the span.
fn meeting(groups: &[u32], asked: &[Span], span: Span) -> Vec<u32> {
    let pairs = groups.iter().zip(asked);
    let met = pairs.filter(|(_, asked)| asked.meets(span));
    met.map(|(group, _)| *group).collect()
}
