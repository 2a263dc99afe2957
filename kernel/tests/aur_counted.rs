//! Windows that end with so many rows, in the store of kept rows, against a plain model: through flushes, aborts, restarts,
//! rewrites and reading ahead.
#![allow(clippy::unwrap_used, reason = "tests")]

mod aur_support;

use std::collections::BTreeMap;

use _kernel::aur::layout::Ending;
use aur_support::*;

/// How many rows of each key came, and those of its window that is not full.
#[derive(Clone, Default)]
struct Counted(BTreeMap<i64, (i64, Vec<i64>)>);

impl Counted {
    /// Appends rows and returns the windows that they fill.
    fn append(&mut self, rows: &[Row], most: i64) -> Closed {
        let mut full = Closed::new();
        for (key, value, _) in rows {
            let (count, window) = self.0.entry(*key).or_default();
            window.push(*value);
            *count += 1;
            if *count % most == 0 {
                let mut values = std::mem::take(window);
                values.sort_unstable();
                full.insert((*key, *count - most, 0), values);
            }
        }
        full
    }

    fn rows(&self) -> usize {
        self.0.values().map(|(_, window)| window.len()).sum()
    }
}

fn rows_of(random: &mut Random, keys: u64, count: u64) -> Vec<Row> {
    (0..count)
        .map(|_| (random.below(keys) as i64, random.below(1000) as i64, 0))
        .collect()
}

fn follows_the_model(shape: Shape, memory: usize, seed: u64) {
    let mut random = Random(seed * 0x9e37_79b9 + 1);
    let most = 1 + random.below(9) as i64;
    let mut shard = Shard::ending(shape, Ending::Rows(most as u32), memory);
    let mut model = Counted::default();
    let keys = 1 + random.below(40);
    let mut rewriting: Option<(Vec<std::path::PathBuf>, _)> = None;
    for _ in 0..60 {
        let mut running = model.clone();
        let mut full = Closed::new();
        for _ in 0..=random.below(3) {
            let count = random.below(40);
            let rows = rows_of(&mut random, keys, count);
            full.append(&mut running.append(&rows, most));
            shard.append(&rows);
            if random.below(4) == 0 {
                shard.flush();
            }
        }
        let max_rows = 1 + random.below(20) as usize;
        assert_eq!(shard.take(i64::MIN, max_rows).unwrap(), full);
        match random.below(5) {
            0 => {
                if random.below(2) == 0 {
                    shard.flush();
                }
                shard.abort();
            }
            1 => {
                shard.restart().unwrap();
                rewriting = None;
            }
            _ => {
                shard.commit(i64::MIN);
                model = running;
            }
        }
        assert_eq!(shard.store.lock().unwrap().rows(), model.rows() as u64);
        assert_eq!(shard.store.lock().unwrap().sessions(), model.0.len());
        shard.read_ahead(0.5);
        if let Some((inputs, result)) = rewriting.take() {
            let left = |file: &std::path::PathBuf| inputs.contains(file);
            let now = shard.files();
            if let Some(at) = now.iter().position(left) {
                let count = now.iter().filter(|file| left(file)).count();
                shard.adopt(at, count, result);
            }
        } else if shard.runs() > 0 && random.below(3) == 0 {
            let first = random.below(shard.runs() as u64) as usize;
            let count = 1 + random.below((shard.runs() - first) as u64) as usize;
            let inputs = shard.files()[first..first + count].to_vec();
            rewriting = Some((inputs, shard.rewrite(first, count, 0.2)));
        }
    }
    shard.restart().unwrap();
    assert_eq!(shard.store.lock().unwrap().rows(), model.rows() as u64);
}

#[test]
fn full_windows_are_given_out_as_the_model_says() {
    for seed in 0..30 {
        follows_the_model(Shape::Numbers, 1 << 30, seed);
    }
}

#[test]
fn full_windows_of_rows_of_variable_length_are_given_out_as_the_model_says() {
    for seed in 100..120 {
        follows_the_model(Shape::Texts, 1, seed);
    }
}

#[test]
fn a_key_goes_on_with_the_number_of_its_next_window_after_a_restart() {
    let mut shard = Shard::ending(Shape::Numbers, Ending::Rows(2), 1 << 30);
    let rows = [(1, 7, 0), (1, 8, 0), (1, 9, 0), (1, 10, 0)];
    let full = Closed::from([((1, 0, 0), vec![7, 8]), ((1, 2, 0), vec![9, 10])]);
    assert_eq!(shard.batch(&rows, i64::MIN), full);
    shard.restart().unwrap();
    assert_eq!(shard.batch(&[(1, 11, 0)], i64::MIN), Closed::new());
    shard.restart().unwrap();
    assert_eq!(
        shard.batch(&[(1, 12, 0)], i64::MIN),
        Closed::from([((1, 4, 0), vec![11, 12])])
    );
}

#[test]
fn what_the_query_expects_to_be_read_next_is_read_ahead() {
    // The third column, the time, says when the row's window will be read.
    let layout = layout(Shape::Numbers, Ending::Rows(2), Some(2));
    let mut shard = Shard::of(Shape::Numbers, layout, 1 << 30);
    shard.batch(&[(1, 7, 300), (2, 8, 100), (3, 9, 200)], i64::MIN);
    shard.read_ahead(0.3);
    assert_eq!(shard.stats().counters.ahead_reads, 1);
    let next = shard.batch(&[(2, 10, 400)], i64::MIN);
    assert_eq!(next, Closed::from([((2, 0, 0), vec![8, 10])]));
    let counters = shard.stats().counters;
    // The row that made it full did not come from a file.
    assert_eq!((counters.ahead_hits, counters.scans), (1, 0));
}
