//! The store of session rows against a plain model, through flushes, aborts, restarts, rewrites and reading ahead.
#![allow(clippy::unwrap_used, reason = "tests")]

mod aur_support;

use _kernel::aur::layout::Ending;
use aur_support::*;

fn rows_around(random: &mut Random, now: i64, keys: u64, count: u64) -> Vec<Row> {
    (0..count)
        .map(|_| {
            let time = now + random.below(30) as i64 - 15;
            (random.below(keys) as i64, random.below(1000) as i64, time)
        })
        .collect()
}

fn follows_the_model(shape: Shape, ending: Ending, memory: usize, seed: u64) {
    let mut random = Random(seed * 0x9e37_79b9 + 1);
    let mut shard = Shard::ending(shape, ending, memory);
    let mut model = Model::new(ending);
    let keys = 1 + random.below(60);
    let mut now = 0;
    let mut rewriting = None;
    for _ in 0..60 {
        let mut running = model.clone();
        for _ in 0..=random.below(3) {
            let count = random.below(40);
            let rows = rows_around(&mut random, now, keys, count);
            running.append(&rows, shard.watermark);
            shard.append(&rows);
            if random.below(4) == 0 {
                shard.flush();
            }
            if random.below(8) == 0 {
                shard.read_ahead(0.3);
            }
        }
        now += random.below(12) as i64;
        let watermark = shard.watermark.max(now - 8);
        let max_rows = 1 + random.below(20) as usize;
        assert_eq!(
            shard.take(watermark, max_rows).unwrap(),
            running.take(watermark)
        );
        assert_eq!(shard.store.lock().unwrap().rows(), running.rows() as u64);
        match random.below(5) {
            0 => {
                if random.below(2) == 0 {
                    shard.flush();
                }
                shard.abort();
                now -= 3;
            }
            1 => {
                shard.restart().unwrap();
                rewriting = None;
            }
            _ => {
                shard.commit(watermark);
                model = running;
            }
        }
        assert_eq!(shard.store.lock().unwrap().rows(), model.rows() as u64);
        assert_eq!(shard.store.lock().unwrap().sessions(), model.sessions());
        if random.below(2) == 0 {
            shard.read_ahead(random.below(100) as f64 / 100.0);
        }
        if let Some((files, first, count, result)) = rewriting.take() {
            // As the service does: what is left of the inputs is exchanged for the result.
            let inputs: &Vec<std::path::PathBuf> = &files;
            let left = |file: &std::path::PathBuf| inputs[first..first + count].contains(file);
            let now = shard.files();
            if let Some(at) = now.iter().position(left) {
                let count = now.iter().filter(|file| left(file)).count();
                shard.adopt(at, count, result);
            }
        } else if shard.runs() > 0 && random.below(3) == 0 {
            let first = random.below(shard.runs() as u64) as usize;
            let count = 1 + random.below((shard.runs() - first) as u64) as usize;
            let files = shard.files();
            rewriting = Some((files, first, count, shard.rewrite(first, count, 0.2)));
        }
    }
    // At the end all is given out, and nothing stays behind.
    assert_eq!(
        shard.take(now + 1000, 1000).unwrap(),
        model.take(now + 1000)
    );
    shard.commit(now + 1000);
    assert_eq!(shard.runs(), 0);
}

#[test]
fn sessions_are_given_out_as_the_model_says() {
    for seed in 0..30 {
        follows_the_model(Shape::Numbers, Ending::Gap(GAP), 1 << 30, seed);
    }
}

#[test]
fn rows_of_variable_length_are_given_out_as_the_model_says() {
    for seed in 100..120 {
        follows_the_model(Shape::Texts, Ending::Gap(GAP), 1 << 30, seed);
    }
}

#[test]
fn with_no_memory_for_reading_ahead_the_same_is_given_out() {
    for seed in 200..210 {
        follows_the_model(Shape::Numbers, Ending::Gap(GAP), 1, seed);
    }
}

#[test]
fn sessions_of_rows_that_say_their_end_are_given_out_as_the_model_says() {
    for seed in 300..340 {
        follows_the_model(Shape::Numbers, OWN_ENDS, 1 << 30, seed);
    }
    for seed in 400..410 {
        follows_the_model(Shape::Texts, OWN_ENDS, 1, seed);
    }
}

#[test]
fn a_row_that_reaches_back_over_a_session_that_was_given_out_leaves_its_rows_alone() {
    let mut shard = Shard::ending(Shape::Numbers, OWN_ENDS, 1 << 30);
    // A row's value says how long its session waits: the second key keeps the run of the first alive.
    shard.batch(&[(1, 4, 10), (2, 29, 12)], 0);
    shard.read_ahead(1.0);
    // Read ahead, so that no scan of the index has seen it go.
    assert_eq!(shard.batch(&[], 20), Closed::from([((1, 10, 15), vec![4])]));
    shard.batch(&[(1, 28, 5)], 20);
    shard.restart().unwrap();
    let runs = shard.runs();
    let rewritten = shard.rewrite(0, runs, 0.0);
    shard.adopt(0, runs, rewritten);
    assert_eq!(shard.stats().rows, 2);
    let all = Closed::from([((1, 5, 34), vec![28]), ((2, 12, 42), vec![29])]);
    assert_eq!(shard.batch(&[], 100), all);
}

#[test]
fn a_session_that_begins_after_an_earlier_one_was_given_out_is_not_joined_to_it_by_a_restart() {
    let mut shard = Shard::new(Shape::Numbers, 1 << 30);
    // The second key keeps the run of the first alive.
    shard.batch(&[(1, 7, 0), (2, 8, 5)], 0);
    assert_eq!(
        shard.batch(&[(2, 9, 9)], 10),
        Closed::from([((1, 0, 10), vec![7])])
    );
    shard.batch(&[(1, 11, 8)], 12);
    shard.restart().unwrap();
    let all = Closed::from([((1, 8, 18), vec![11]), ((2, 5, 19), vec![8, 9])]);
    assert_eq!(shard.take(100, 10).unwrap(), all);
}

#[test]
fn a_retried_batch_takes_again_what_the_aborted_one_took() {
    let mut shard = Shard::new(Shape::Numbers, 1 << 30);
    shard.batch(&[(1, 7, 0), (2, 8, 5)], 0);
    for _ in 0..3 {
        shard.append(&[(2, 9, 20)]);
        let due = Closed::from([((1, 0, 10), vec![7]), ((2, 5, 15), vec![8])]);
        assert_eq!(shard.take(15, 10).unwrap(), due);
        shard.abort();
    }
    assert_eq!(shard.stats().rows, 2);
}

#[test]
fn a_batch_that_only_moved_the_watermark_leaves_no_trace_when_it_is_aborted() {
    let mut shard = Shard::new(Shape::Numbers, 1 << 30);
    shard.batch(&[(1, 7, 100)], 0);
    assert_eq!(shard.take(50, 10).unwrap(), Closed::new());
    shard.abort();
    assert_eq!(
        shard.batch(&[(2, 8, 20)], 30),
        Closed::from([((2, 20, 30), vec![8])])
    );
}

#[test]
fn what_the_watermark_makes_due_next_is_read_ahead_however_small_the_share() {
    let mut shard = Shard::new(Shape::Numbers, 1 << 30);
    let rows = |batch: i64| (0..50).map(move |key| (100 * batch + key, key, 5 * batch));
    for batch in 0..20 {
        let before = shard.stats().counters;
        shard.batch(&rows(batch).collect::<Vec<_>>(), 5 * batch);
        shard.read_ahead(0.001);
        let after = shard.stats().counters;
        // Before the fourth batch nothing tells how far the watermark goes.
        if batch > 3 {
            assert_eq!(after.gets - before.gets, 50);
            assert_eq!(after.ahead_hits - before.ahead_hits, 50);
            assert_eq!(after.ahead_reads - before.ahead_reads, 50);
            assert_eq!(after.scans, before.scans);
        }
    }
}

#[test]
fn a_session_that_grows_is_dropped_from_what_was_read_ahead() {
    let mut shard = Shard::new(Shape::Numbers, 1 << 30);
    shard.batch(&[(1, 7, 0), (2, 8, 1)], 0);
    shard.read_ahead(1.0);
    shard.batch(&[(1, 9, 5)], 0);
    let counters = shard.stats().counters;
    assert_eq!((counters.ahead_reads, counters.ahead_evicted), (2, 1));
    shard.batch(&[], 11);
    let counters = shard.stats().counters;
    assert_eq!((counters.ahead_hits, counters.scans), (1, 0));
    assert_eq!(
        shard.batch(&[], 15),
        Closed::from([((1, 0, 15), vec![7, 9])])
    );
    assert_eq!(shard.stats().counters.scans, 1);
}

#[test]
fn sessions_that_wait_are_not_looked_at_when_others_are_due() {
    let read = |waiting: i64| {
        let mut shard = Shard::new(Shape::Numbers, 1 << 30);
        let mut rows: Vec<Row> = (0..500).map(|key| (key, key, 0)).collect();
        rows.extend((0..waiting).map(|key| (1_000_000 + key, key, 1_000)));
        shard.batch(&rows, 0);
        let before = shard.stats().counters.read_bytes;
        assert_eq!(shard.batch(&[], 500).len(), 500);
        shard.stats().counters.read_bytes - before
    };
    // A block of the index may hold both kinds.
    assert!(
        read(50_000) <= read(5_000) + 10_000,
        "{} {}",
        read(50_000),
        read(5_000)
    );
}

#[test]
fn a_rewrite_drops_what_is_dead_from_rows_and_index() {
    let mut shard = Shard::new(Shape::Numbers, 1 << 30);
    let short: Vec<Row> = (0..20_000).map(|key| (key, key, 0)).collect();
    let long: Vec<Row> = (0..2_000).map(|key| (100_000 + key, key, 500)).collect();
    shard.batch(&[short, long].concat(), 0);
    assert_eq!(shard.batch(&[], 100).len(), 20_000);
    let before = shard.stats();
    assert!(before.run_bytes > 8 * before.live_bytes, "{before:?}");
    let runs = shard.runs();
    let rewritten = shard.rewrite(0, runs, 0.0);
    shard.adopt(0, runs, rewritten);
    let after = shard.stats();
    assert!(after.run_bytes < before.run_bytes / 8, "{after:?}");
    assert!(after.run_bytes < 2 * after.live_bytes, "{after:?}");
    shard.restart().unwrap();
    assert_eq!(shard.batch(&[], 1_000).len(), 2_000);
}

#[test]
fn one_scan_serves_a_rewrite_and_reading_ahead() {
    let mut shard = Shard::new(Shape::Numbers, 1 << 30);
    let rows: Vec<Row> = (0..2_000).map(|key| (key, key, key / 100)).collect();
    shard.batch(&rows, 0);
    let before = shard.stats().counters;
    let rewritten = shard.rewrite(0, 1, 0.5);
    shard.adopt(0, 1, rewritten);
    let counters = shard.stats().counters;
    assert_eq!(counters.ahead_reads, 1_000);
    let index_and_rows = 2 * shard.stats().run_bytes;
    assert!(counters.read_bytes - before.read_bytes < index_and_rows);
    assert_eq!(shard.batch(&[], 15).len(), 600);
    let counters = shard.stats().counters;
    assert_eq!((counters.ahead_hits, counters.scans), (600, 0));
}

#[test]
fn large_ranges_move_between_files_whole() {
    let mut shard = Shard::new(Shape::Texts, 1 << 30);
    let rows: Vec<Row> = (0..30_000).map(|i| (i % 3, 39 + 40 * i, 0)).collect();
    let mut model = Model::new(Ending::Gap(GAP));
    model.append(&rows, i64::MIN);
    shard.batch(&rows, 0);
    let before = shard.stats();
    let rewritten = shard.rewrite(0, 1, 0.0);
    shard.adopt(0, 1, rewritten);
    // All rows but none of the index.
    let counters = shard.stats().counters;
    assert!(10 * counters.moved_whole_bytes > 9 * before.run_bytes);
    assert!(10 * (counters.read_bytes - before.counters.read_bytes) < before.run_bytes);
    shard.restart().unwrap();
    assert_eq!(shard.take(100, 1000).unwrap(), model.take(100));
}
