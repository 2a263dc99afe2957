//! Keys are new once, until they are forgotten, whatever the order of flushes, commits, aborts, evictions, compactions
//! and reopenings.
#![allow(clippy::unwrap_used, reason = "tests")]

mod store_support;

use std::collections::BTreeMap;
use std::sync::Arc;

use _kernel::distinct::{Distinct, Late, Timers};
use _kernel::hash::BUCKETS;
use _kernel::layout::Layout;
use _kernel::merge::merge_runs;
use _kernel::pack::PackWriter;
use _kernel::rows::{HashRange, RowShape};
use _kernel::store::Store;
use _kernel::time::NEVER;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::DataType;
use store_support::*;

const SLICE: i64 = 10;
const KEYS: usize = 300;

struct Fixture {
    layout: Arc<Layout>,
    store: Store,
    /// Each key with its expiry.
    committed: BTreeMap<i64, i64>,
    running: BTreeMap<i64, i64>,
    time: i64,
    random: Random,
    scratch: Scratch,
    packs: u32,
    memory_bytes: usize,
    forgot: bool,
}

impl Fixture {
    fn new(layout: Arc<Layout>, seed: u64, memory_bytes: usize) -> Self {
        Self {
            store: Store::new(Arc::clone(&layout), 0, BUCKETS, memory_bytes).unwrap(),
            layout,
            committed: BTreeMap::new(),
            running: BTreeMap::new(),
            time: 0,
            random: Random(seed),
            scratch: Scratch::new(),
            packs: 0,
            memory_bytes,
            forgot: false,
        }
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0..5 => self.insert(),
            5 => self.forget(),
            6 | 7 => self.flush(),
            8 | 9 => self.commit(),
            10 => {
                self.store.abort();
                self.running = self.committed.clone();
                self.forgot = false;
            }
            _ => {
                self.compact();
                if self.random.below(2) == 0 {
                    self.commit();
                    self.reopen();
                }
            }
        }
    }

    fn insert(&mut self) {
        if self.forgot {
            return; // the slices that it dropped take no rows in this batch
        }
        let count = 1 + self.random.below(100);
        let keys: Vec<_> = (0..count).map(|_| self.random.below(KEYS) as i64).collect();
        let expiries: Vec<_> = (0..count)
            .map(|_| self.time + self.random.below(60) as i64 - 5)
            .collect();
        let rows: Vec<_> = pairs(&self.layout, &keys, &expiries)
            .into_iter()
            .zip(&expiries)
            .map(|(pair, expiry)| (slice_of(*expiry), pair))
            .collect();
        let batch = encode(&self.layout, &rows);
        let is_new = self.store.insert(&batch, Some(NEVER)).unwrap();
        for (at, (key, expiry)) in keys.iter().zip(&expiries).enumerate() {
            assert_eq!(is_new.value(at), !self.running.contains_key(key));
            self.running.entry(*key).or_insert(*expiry);
        }
    }

    fn forget(&mut self) {
        self.time += self.random.below(15) as i64;
        let (before, mut forgotten) = (self.running.len(), 0);
        for (slice, _) in self.store.slices() {
            if slice != NEVER && slice - SLICE < self.time {
                forgotten += self.store.forget(slice, NEVER, self.time).unwrap();
            }
        }
        self.running.retain(|_, expiry| *expiry > self.time);
        assert_eq!(forgotten, (before - self.running.len()) as u64);
        self.forgot = true;
    }

    fn pack(&mut self) -> std::path::PathBuf {
        self.packs += 1;
        self.scratch.file(format!("pack{}", self.packs))
    }

    fn flush(&mut self) {
        let pack = self.pack();
        flush(&mut self.store, &pack);
    }

    fn commit(&mut self) {
        self.flush();
        self.store.commit().unwrap();
        self.committed = self.running.clone();
        self.forgot = false;
    }

    fn compact(&mut self) {
        for (slice, _) in self.store.slices() {
            let runs = self.store.runs(slice).unwrap().to_vec();
            if runs.is_empty() {
                continue;
            }
            let pack = self.pack();
            let mut writer = PackWriter::create(&pack, 8192).unwrap();
            let (shape, fingerprint) = (RowShape::of(&self.layout), self.layout.fingerprint());
            let range = HashRange::of_buckets(0, BUCKETS).unwrap();
            let extent = merge_runs(shape, fingerprint, &runs, &mut writer, range, true).unwrap();
            writer.finish().unwrap();
            let run = Arc::new(open_run(&self.layout, &pack, extent).unwrap());
            assert!(self.store.replace(slice, 0, runs.len(), run).unwrap());
        }
    }

    fn reopen(&mut self) {
        let mut store =
            Store::new(Arc::clone(&self.layout), 0, BUCKETS, self.memory_bytes).unwrap();
        for (slice, rows) in self.store.slices() {
            let runs = self.store.runs(slice).unwrap().to_vec();
            store.restore(slice, rows, runs).unwrap();
        }
        self.store = store;
    }

    /// The main slice has each key, and each is noted once.
    fn check(&mut self) {
        let mut noted: BTreeMap<i64, u64> = BTreeMap::new();
        for expiry in self.running.values() {
            *noted.entry(slice_of(*expiry)).or_default() += 1;
        }
        if !self.running.is_empty() {
            noted.insert(NEVER, self.running.len() as u64);
        }
        let found = self
            .store
            .slices()
            .into_iter()
            .filter(|(_, rows)| *rows > 0);
        assert_eq!(found.collect::<BTreeMap<_, _>>(), noted);
        let (keys, expiries): (Vec<_>, Vec<_>) = self.running.iter().unzip();
        let groups = pairs(&self.layout, &keys, &expiries)
            .into_iter()
            .map(|pair| (pair.key, pair.value))
            .collect();
        let kept = scan_all(&mut self.store, NEVER).unwrap();
        assert_eq!(kept, expected(&self.layout, &groups));
    }
}

fn slice_of(expiry: i64) -> i64 {
    -(-expiry).div_euclid(SLICE) * SLICE
}

fn run(layout: fn() -> Arc<Layout>, seeds: std::ops::Range<u64>, memory_bytes: usize) {
    for seed in seeds {
        let mut fixture = Fixture::new(layout(), seed, memory_bytes);
        for step in 0..80 {
            fixture.step();
            if step % 4 == 3 {
                fixture.check();
            }
        }
    }
}

#[test]
fn a_key_is_new_until_it_is_forgotten() {
    run(timed_layout, 0..2, 1 << 30);
    run(timed_variable_layout, 0..2, 1 << 30);
}

#[test]
fn a_key_that_is_only_on_disk_is_not_new() {
    run(timed_layout, 10..12, 0);
    run(timed_layout, 20..22, 20_000);
    run(timed_variable_layout, 10..12, 20_000);
}

fn looked_at(keys: &[i64], times: &[Option<i64>], layout: &Layout) -> RecordBatch {
    let key: ArrayRef = match layout.input_schema().field(0).data_type() {
        DataType::Int64 => Arc::new(Int64Array::from(keys.to_vec())),
        _ => Arc::new(StringArray::from_iter_values(
            keys.iter().map(|key| format!("key {key}")),
        )),
    };
    let time: ArrayRef = Arc::new(Int64Array::from(times.to_vec()));
    RecordBatch::try_new(layout.input_schema(), vec![key, time]).unwrap()
}

#[test]
fn a_task_sends_the_first_row_of_each_key_that_is_not_late() {
    for layout in [timed_layout(), timed_variable_layout()] {
        let mut distinct = Distinct::new(
            Arc::clone(&layout),
            &[0, 2048],
            Some(Late {
                column: 1,
                before: 5,
            }),
            Some(Timers {
                column: 1,
                slice: SLICE,
            }),
        )
        .unwrap();
        let keys = [1, 2, 1, 3, 2, 4];
        let times = [Some(5), Some(6), Some(7), None, Some(20), Some(30)];
        let mut sent: Vec<(u32, i64)> = Vec::new();
        for first in distinct.push(&looked_at(&keys, &times, &layout)).unwrap() {
            let slices: &Int64Array = first.encoded["slice"].as_any().downcast_ref().unwrap();
            sent.extend(
                first
                    .rows
                    .values()
                    .iter()
                    .copied()
                    .zip(slices.values().iter().copied()),
            );
        }
        sent.sort_unstable();
        // Row 0 is late, row 4 is the second of its key.
        assert_eq!(sent, [(1, 10), (2, 10), (3, NEVER), (5, 30)]);
        assert_eq!((distinct.rows(), distinct.late_rows()), (6, 1));
        // What was sent is known in the next batch, and forgotten when the task says so.
        let again = looked_at(&[1, 9], &[Some(50), Some(50)], &layout);
        let rows = |distinct: &mut Distinct| -> usize {
            let found = distinct.push(&again).unwrap();
            found.iter().map(|first| first.rows.len()).sum()
        };
        assert_eq!(rows(&mut distinct), 1);
        distinct.clear();
        assert_eq!(rows(&mut distinct), 2);
    }
}

#[test]
fn a_task_with_few_repeated_keys_stops_looking_for_them() {
    let layout = timed_layout();
    let mut distinct = Distinct::new(Arc::clone(&layout), &[0], None, None).unwrap();
    let keys: Vec<i64> = (0..40_000).collect();
    let times = vec![None; keys.len()];
    let batch = looked_at(&keys, &times, &layout);
    assert_eq!(distinct.push(&batch).unwrap()[0].rows.len(), 40_000);
    assert_eq!(distinct.memory_bytes(), 0);
    assert_eq!(distinct.push(&batch).unwrap()[0].rows.len(), 40_000);
}
