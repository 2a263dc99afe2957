//! Windows whose rows say their end, in the store of kept rows, against a plain model: through flushes, aborts, restarts
//! and reading ahead.
#![allow(clippy::unwrap_used, reason = "tests")]

mod aur_support;

use _kernel::aur::layout::Ending;
use aur_support::*;

fn take(open: &mut Closed, watermark: i64) -> Closed {
    let (due, waiting) = std::mem::take(open)
        .into_iter()
        .partition(|((_, _, end), _)| *end <= watermark);
    *open = waiting;
    due
}

fn append(open: &mut Closed, rows: &[Row], watermark: i64) {
    for (key, value, end) in rows.iter().filter(|(_, _, end)| *end > watermark) {
        let values = open.entry((*key, *end, *end)).or_default();
        values.push(*value);
        values.sort_unstable();
    }
}

fn follows_the_model(shape: Shape, memory: usize, seed: u64) {
    let mut random = Random(seed * 0x9e37_79b9 + 1);
    let mut shard = Shard::ending(shape, Ending::Stated, memory);
    let mut model = Closed::new();
    let mut now = 0_i64;
    for _ in 0..60 {
        let mut running = model.clone();
        for _ in 0..=random.below(3) {
            let rows: Vec<Row> = (0..random.below(40))
                .map(|_| {
                    let end = now + random.below(40) as i64 - 10;
                    (random.below(6) as i64, random.below(1000) as i64, end)
                })
                .collect();
            append(&mut running, &rows, shard.watermark);
            shard.append(&rows);
            if random.below(4) == 0 {
                shard.flush();
            }
        }
        now += random.below(12) as i64;
        let watermark = shard.watermark.max(now - 8);
        let max_rows = 1 + random.below(20) as usize;
        assert_eq!(
            shard.take(watermark, max_rows).unwrap(),
            take(&mut running, watermark)
        );
        match random.below(5) {
            0 => shard.abort(),
            1 => shard.restart().unwrap(),
            _ => {
                shard.commit(watermark);
                model = running;
            }
        }
        let rows: usize = model.values().map(Vec::len).sum();
        assert_eq!(shard.store.lock().unwrap().rows(), rows as u64);
        shard.read_ahead(random.below(100) as f64 / 100.0);
    }
}

#[test]
fn windows_are_given_out_when_they_have_ended() {
    for seed in 0..30 {
        follows_the_model(Shape::Numbers, 1 << 30, seed);
    }
    for seed in 100..110 {
        follows_the_model(Shape::Texts, 1, seed);
    }
}

#[test]
fn a_row_leaves_what_was_read_ahead_of_its_window_where_it_is() {
    let mut shard = Shard::ending(Shape::Numbers, Ending::Stated, 1 << 30);
    shard.batch(&[(1, 7, 20), (2, 8, 30)], 0);
    shard.read_ahead(0.5);
    let closed = shard.batch(&[(1, 9, 20)], 25);
    assert_eq!(closed, Closed::from([((1, 20, 20), vec![7, 9])]));
    let counters = shard.stats().counters;
    assert_eq!((counters.ahead_hits, counters.scans), (1, 0));
}
