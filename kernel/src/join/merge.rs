//! Writing several runs of a part as one: the lists of a key are joined, and what has expired is left out.

use std::collections::HashSet;
use std::sync::Arc;

use crate::cursor::RunCursor;
use crate::error::Result;
use crate::join::layout::JoinLayout;
use crate::join::part::side_of;
use crate::join::record::{self, Head, MARK, MATCHED, push_to_list};
use crate::merge::{Merger, check_fits};
use crate::pack::PackWriter;
use crate::rows::{HashRange, Row};
use crate::run::Run;
use crate::run_writer::{RunExtent, RunWriter};

/// What a merge is about.
#[derive(Clone, Copy, Debug)]
pub struct MergeSpec {
    pub part: i64,
    pub range: HashRange,
    /// Nothing older exists, so that a mark whose row is not there has none.
    pub whole: bool,
    /// Rows that expired at or before it are gone.
    pub evicted: i64,
}

/// `runs`: oldest first.
pub fn merge_lists(
    layout: &JoinLayout,
    runs: &[Arc<Run>],
    writer: &mut PackWriter,
    spec: MergeSpec,
) -> Result<RunExtent> {
    for run in runs {
        check_fits(run, layout.shape, layout.fingerprint)?;
    }
    let max_rows = runs.iter().map(|run| run.rows_within(spec.range)).sum();
    let cursors = runs
        .iter()
        .map(|run| RunCursor::open(Arc::clone(run), spec.range))
        .collect::<Result<Vec<_>>>()?;
    let head = layout.sides[side_of(spec.part)].head;
    let mut merger = Merger::new(cursors);
    let mut out = RunWriter::begin(writer, layout.shape, layout.fingerprint, max_rows)?;
    let (mut lists, mut list) = (Vec::new(), Vec::new());
    while merger.next(&())? {
        let rows = merger.at_key().iter();
        let mut rows = rows.filter_map(|at| merger.source(*at).row());
        let Some(first) = rows.next() else { continue };
        lists.clear();
        lists.extend_from_slice(first.value);
        rows.for_each(|row| lists.extend_from_slice(row.value));
        list.clear();
        tidy(&lists, head, spec, &mut list)?;
        if !list.is_empty() {
            out.push(Row {
                value: &list,
                ..first
            })?;
        }
    }
    out.finish()
}

/// A key's records without those that expired, marks put on their rows where both are there.
fn tidy(lists: &[u8], head: Head, spec: MergeSpec, out: &mut Vec<u8>) -> Result<()> {
    let mut records = Vec::new();
    let mut marked = HashSet::new();
    record::walk_list(lists, head, |at| {
        let record = &lists[at];
        if record::flags(record) & MARK != 0 {
            marked.insert(record::marked_id(record));
        } else if record::expiry(record) > spec.evicted {
            records.push(record);
        }
    })?;
    for record in records {
        let at = out.len();
        push_to_list(record, out);
        if head.id(record).is_some_and(|id| marked.remove(&id)) {
            let flags = out.len() - record.len();
            debug_assert!(flags > at);
            out[flags] |= MATCHED;
        }
    }
    if !spec.whole {
        let mut left: Vec<u64> = marked.into_iter().collect();
        left.sort_unstable();
        left.iter()
            .for_each(|id| push_to_list(&record::mark(*id), out));
    }
    Ok(())
}
