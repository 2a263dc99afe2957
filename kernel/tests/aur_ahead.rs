//! What is read ahead in the store of session rows: what is closest to being read, as far as there is room.
#![allow(clippy::unwrap_used, reason = "tests")]

mod aur_support;

use std::sync::Arc;

use _kernel::aur::layout::{Ending, RowsLayout};
use _kernel::aur::sorter::RowSorter;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use aur_support::*;

#[test]
fn a_table_that_fills_the_memory_leaves_room_for_reading_ahead() {
    let memory = 256 << 10;
    let mut shard = Shard::new(Shape::Numbers, memory);
    // Many sessions that wait for long, and few that close with each batch.
    let waiting: Vec<Row> = (0..5_000).map(|key| (key, key, 1_000)).collect();
    shard.batch(&waiting, 0);
    let table = shard.stats().memory_bytes as usize;
    assert!(table > memory, "the table takes {table}");
    let rows = |batch: i64| (0..50).map(move |key| (10_000 + 100 * batch + key, key, 5 * batch));
    for batch in 0..24 {
        shard.batch(&rows(batch).collect::<Vec<_>>(), 5 * batch);
        shard.read_ahead(0.001);
    }
    let counters = shard.stats().counters;
    let (hits, gets) = (counters.ahead_hits, counters.gets);
    assert!(10 * hits >= 9 * gets, "{hits} hits of {gets}");
}

#[test]
fn what_has_no_room_any_more_is_dropped_from_the_last_to_close_on() {
    let mut shard = Shard::new(Shape::Numbers, 64 << 10);
    let rows: Vec<Row> = (0..200).map(|key| (key, key, key / 20)).collect();
    shard.batch(&rows, 0);
    shard.read_ahead(1.0);
    assert_eq!(shard.stats().counters.ahead_reads, 200);
    // The table grows beyond the memory, and only the share that is left for reading ahead stays.
    let more: Vec<Row> = (1_000..3_000).map(|key| (key, key, 500)).collect();
    shard.batch(&more, 0);
    let dropped = shard.stats().counters.ahead_evicted;
    assert!(0 < dropped && dropped < 200, "{dropped} dropped");
    shard.batch(&[], 10 + 1);
    let counters = shard.stats().counters;
    let seen = (counters.gets, counters.ahead_hits, counters.scans);
    assert_eq!(seen, (40, 40, 0));
}

#[test]
fn where_memory_is_short_what_the_query_expects_first_is_read_ahead() {
    // The second column says when a row's window will be read: in the opposite order of the ends.
    let layout = layout(Shape::Numbers, Ending::Rows(2), Some(1));
    let mut shard = Shard::of(Shape::Numbers, layout, 32 << 10);
    let rows = |expected: fn(i64) -> i64| -> Vec<Row> {
        (0..1_000).map(|key| (key, expected(key), 0)).collect()
    };
    shard.batch(&rows(|key| 1_000 - key), i64::MIN);
    shard.read_ahead(1.0);
    let read = shard.stats().counters.ahead_reads;
    assert!(20 < read && read < 500, "{read} of 1000 read");
    let full: Vec<Row> = (980..1_000).map(|key| (key, 2_000, 0)).collect();
    shard.batch(&full, i64::MIN);
    let counters = shard.stats().counters;
    assert_eq!((counters.ahead_hits, counters.scans), (20, 0));
}

#[test]
fn what_is_held_gives_way_to_what_closes_before_it() {
    let mut shard = Shard::ending(Shape::Numbers, Ending::Stated, 16 << 10);
    let late: Vec<Row> = (0..300).map(|key| (key, key, 1_000 + key)).collect();
    shard.batch(&late, 0);
    shard.read_ahead(1.0);
    let first = shard.stats().counters;
    assert!(first.ahead_reads < 300, "there is room for all");
    let early: Vec<Row> = (0..5).map(|key| (key, key, 500)).collect();
    shard.batch(&early, 0);
    shard.read_ahead(1.0);
    shard.batch(&[], 500);
    let counters = shard.stats().counters;
    assert_eq!((counters.ahead_hits, counters.scans), (5, 0));
}

/// What says when a window is read, and how.
#[derive(Clone, Copy, Debug)]
enum Predictor {
    /// The end of a session, which grows in order.
    Gap,
    /// The end that rows state.
    Stated,
    /// A time of the query's that is earlier than the end by so much.
    NextRead(i64),
}

impl Predictor {
    fn shard(self, memory: usize) -> Shard {
        let (ending, expected) = match self {
            Self::Gap => (Ending::Gap(GAP), None),
            Self::Stated => (Ending::Stated, None),
            Self::NextRead(_) => (Ending::Stated, Some(1)),
        };
        let layout = layout(Shape::Numbers, ending, expected);
        Shard::of(Shape::Numbers, layout, memory)
    }

    fn rows(self, random: &mut Random, now: i64) -> Vec<Row> {
        let row = |i: i64| {
            let key = random.below(40) as i64;
            let end = now + 1 + random.below(40) as i64;
            match self {
                Self::Gap => (key, i, now + i / 4),
                Self::Stated => (key, i, end),
                Self::NextRead(early) => (key, end - early, end),
            }
        };
        (0..12).map(row).collect()
    }
}

fn no_miss_while_something_waits(predictor: Predictor, memory: usize, seed: u64) {
    let mut random = Random(seed * 77 + 5);
    let mut shard = predictor.shard(memory);
    let ratio = 0.05 + random.below(90) as f64 / 100.0;
    let mut now = 0;
    let mut met = 0;
    for _ in 0..50 {
        if shard.runs() > 0 && random.below(3) == 0 {
            let first = random.below(shard.runs() as u64) as usize;
            let count = 1 + random.below((shard.runs() - first) as u64) as usize;
            let rewritten = shard.rewrite(first, count, ratio);
            shard.adopt(first, count, rewritten);
        }
        shard.read_ahead(ratio);
        let before = shard.stats().counters;
        let waiting_before = before.ahead_reads - before.ahead_hits - before.ahead_evicted;
        let watermark = now - random.below(6) as i64;
        shard.batch(&predictor.rows(&mut random, now), watermark);
        now += 3;
        let after = shard.stats().counters;
        let waiting = after.ahead_reads - after.ahead_hits - after.ahead_evicted;
        if waiting > 0 {
            let missed = "a miss although some wait that were read ahead";
            assert_eq!(
                after.scans, before.scans,
                "{predictor:?}, {memory} bytes, seed {seed}: {missed}"
            );
            met += u64::from(waiting_before > waiting);
        }
    }
    assert!(
        met > 0,
        "{predictor:?}, {memory} bytes, seed {seed}: nothing waited"
    );
}

#[test]
fn no_miss_while_sessions_that_were_read_ahead_wait() {
    for predictor in [
        Predictor::Gap,
        Predictor::Stated,
        Predictor::NextRead(0),
        Predictor::NextRead(7),
    ] {
        for memory in [12 << 10, 32 << 10, 1 << 30] {
            for seed in 0..3 {
                no_miss_while_something_waits(predictor, memory, seed);
            }
        }
    }
}

#[test]
fn no_miss_where_each_window_is_expected_too_early_by_another_time() {
    let layout = layout(Shape::Numbers, Ending::Stated, Some(1));
    let mut shard = Shard::of(Shape::Numbers, layout, 1 << 30);
    let mut random = Random(11);
    for batch in 0..60_i64 {
        let now = 5 * batch;
        let rows: Vec<Row> = (0..12)
            .map(|_| {
                let end = now + 1 + random.below(40) as i64;
                let early = random.below(20) as i64;
                (random.below(40) as i64, end - early, end)
            })
            .collect();
        let before = shard.stats().counters.scans;
        shard.batch(&rows, now);
        // The first steps tell how far the watermark goes with the next.
        assert!(
            batch < 2 || shard.stats().counters.scans == before,
            "a miss in batch {batch}"
        );
        shard.read_ahead(0.01);
    }
    let counters = shard.stats().counters;
    assert!(counters.ahead_hits > 100, "{counters:?}");
}

#[test]
fn batches_of_large_rows_are_not_larger_where_they_were_read_ahead() {
    let schema = Schema::new(vec![
        Field::new("k", DataType::Int64, true),
        Field::new("v", DataType::Utf8, true),
        Field::new("t", DataType::Int64, true),
    ]);
    let layout = RowsLayout::new(
        Arc::new(schema),
        vec![0],
        &[0, 1],
        Some(2),
        None,
        Ending::Gap(GAP),
    );
    let mut shard = Shard::of(Shape::Numbers, Arc::new(layout.unwrap()), 1 << 30);
    let mut sorter = RowSorter::new(Arc::clone(&shard.layout), &[0], None).unwrap();
    let rows: Vec<(&str, ArrayRef)> = vec![
        ("k", Arc::new(Int64Array::from_iter_values(0..40))),
        (
            "v",
            Arc::new(StringArray::from_iter_values(
                (0..40).map(|_| "x".repeat(1 << 20)),
            )),
        ),
        ("t", Arc::new(Int64Array::from(vec![0; 40]))),
    ];
    sorter
        .push(&RecordBatch::try_from_iter(rows).unwrap())
        .unwrap();
    for (_, batch) in sorter.drain().unwrap() {
        shard.store.lock().unwrap().append(&batch).unwrap();
    }
    shard.commit(i64::MIN);
    shard.read_ahead(1.0);
    let mut store = shard.store.lock().unwrap();
    let mut take = store.take_due(GAP, 65_536).unwrap();
    let mut given = 0;
    while let Some(batch) = take.next(&mut store).unwrap() {
        assert!(batch.num_rows() <= 8, "{} rows at once", batch.num_rows());
        given += batch.num_rows();
    }
    assert_eq!((given, store.stats().counters.ahead_hits), (40, 40));
}
