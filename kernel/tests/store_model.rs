//! A store behaves like a sorted map, whatever the order of changes, flushes, commits, aborts, evictions, compactions
//! and reopenings.
#![allow(clippy::unwrap_used, reason = "tests")]

mod store_support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use _kernel::hash::BUCKETS;
use _kernel::layout::Layout;
use _kernel::merge::merge_runs;
use _kernel::pack::PackWriter;
use _kernel::rows::{HashRange, RowShape};
use _kernel::scan::ScanSpec;
use _kernel::slice::Change;
use _kernel::store::Store;
use store_support::*;

type Groups = BTreeMap<Vec<u8>, Vec<u8>>;

const SLICES: usize = 4;

#[derive(Clone, Default)]
struct Model {
    committed: BTreeMap<i64, Groups>,
    running: BTreeMap<i64, Groups>,
    touched: BTreeSet<(i64, Vec<u8>)>,
    dropped: BTreeSet<i64>,
}

impl Model {
    fn change(&mut self, layout: &Layout, rows: &[(i64, Pair)], change: Change) {
        for (slice, row) in rows {
            let groups = self.running.entry(*slice).or_default();
            let before = groups.get(&row.key).cloned();
            match (change, &before) {
                (Change::Merge, Some(state)) => {
                    groups.insert(row.key.clone(), merge_values(layout, state, &row.value));
                }
                (Change::Merge | Change::Put, _) => {
                    groups.insert(row.key.clone(), row.value.clone());
                }
                (Change::Delete, _) => {
                    groups.remove(&row.key);
                }
                (Change::Count(_), _) => unreachable!("windows of rows have tests of their own"),
            }
            if before.is_some() || change != Change::Delete {
                self.touched.insert((*slice, row.key.clone()));
            }
        }
    }

    fn drop_slice(&mut self, slice: i64) {
        self.running.remove(&slice);
        self.touched.retain(|(at, _)| *at != slice);
        self.dropped.insert(slice);
    }

    fn delete_expired(&mut self, layout: &Layout, slice: i64, time: i64) -> u64 {
        let groups = self.running.entry(slice).or_default();
        let is_expired = |key: &Vec<u8>| layout.expiry(key).is_some_and(|expiry| expiry <= time);
        let expired: Vec<_> = groups
            .keys()
            .filter(|key| is_expired(key))
            .cloned()
            .collect();
        for key in &expired {
            groups.remove(key);
            self.touched.insert((slice, key.clone()));
        }
        expired.len() as u64
    }

    fn end_batch(&mut self) {
        self.touched.clear();
        self.dropped.clear();
    }

    /// The groups of the slices, those of one key merged.
    fn merged(&self, layout: &Layout, slices: &[i64], keys: impl Fn(&[u8]) -> bool) -> Groups {
        let mut merged = Groups::new();
        for slice in slices {
            for (key, value) in self
                .running
                .get(slice)
                .into_iter()
                .flatten()
                .filter(|(key, _)| keys(key))
            {
                let value = match merged.get(key) {
                    Some(state) => merge_values(layout, state, value),
                    None => value.clone(),
                };
                merged.insert(key.clone(), value);
            }
        }
        merged
    }

    fn counts(&self) -> Vec<(i64, u64)> {
        let filled = self.running.iter().filter(|(_, groups)| !groups.is_empty());
        filled
            .map(|(slice, groups)| (*slice, groups.len() as u64))
            .collect()
    }
}

struct Fixture {
    layout: Arc<Layout>,
    store: Store,
    model: Model,
    random: Random,
    scratch: Scratch,
    pool: Vec<Pair>,
    packs: u32,
    memory_bytes: usize,
}

impl Fixture {
    fn new(layout: Arc<Layout>, seed: u64, memory_bytes: usize, hash_mask: u64) -> Self {
        let mut random = Random(seed);
        let keys: Vec<_> = (0..400).collect();
        let values: Vec<_> = keys.iter().map(|_| random.below(1000) as i64).collect();
        let mut pool = pairs(&layout, &keys, &values);
        for pair in &mut pool {
            pair.hash &= hash_mask;
        }
        Self {
            store: Store::new(Arc::clone(&layout), 0, BUCKETS, memory_bytes).unwrap(),
            layout,
            model: Model::default(),
            random,
            scratch: Scratch::new(),
            pool,
            packs: 0,
            memory_bytes,
        }
    }

    fn rows(&mut self) -> Vec<(i64, Pair)> {
        let count = 1 + self.random.below(150);
        let mut rows = Vec::new();
        for _ in 0..count {
            let slice = self.random.below(SLICES) as i64 * 10;
            let key = self.random.below(self.pool.len());
            let value = self.random.below(self.pool.len());
            if !self.model.dropped.contains(&slice) {
                let row = Pair {
                    value: self.pool[value].value.clone(),
                    ..self.pool[key].clone()
                };
                rows.push((slice, row));
            }
        }
        rows
    }

    fn pack(&mut self) -> std::path::PathBuf {
        self.packs += 1;
        self.scratch.file(format!("pack{}", self.packs))
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..8 => self.change(Change::Merge),
            8 => self.change(Change::Put),
            9..11 => self.change(Change::Delete),
            11 => {
                let slice = self.random.below(SLICES) as i64 * 10;
                if self.model.running.contains_key(&slice) && self.random.below(3) == 0 {
                    self.store.drop_slice(slice);
                    self.model.drop_slice(slice);
                }
            }
            12..14 => {
                let pack = self.pack();
                flush(&mut self.store, &pack);
                assert_eq!(self.store.dirty_bytes(), 0);
            }
            14..16 => self.commit(),
            16 => {
                self.store.abort();
                self.model.running = self.model.committed.clone();
                self.model.end_batch();
            }
            17 => self.compact(),
            18 => {
                self.commit();
                self.reopen();
            }
            _ => {
                let slice = self.random.below(SLICES) as i64 * 10;
                let time = self.random.below(400) as i64;
                if self.model.dropped.contains(&slice) {
                    return;
                }
                let deleted = self.store.delete_expired(slice, time).unwrap();
                assert_eq!(
                    deleted,
                    self.model.delete_expired(&self.layout, slice, time)
                );
            }
        }
    }

    fn change(&mut self, change: Change) {
        let rows = self.rows();
        self.store
            .change(&encode(&self.layout, &rows), change)
            .unwrap();
        self.model.change(&self.layout, &rows, change);
    }

    fn commit(&mut self) {
        let pack = self.pack();
        flush(&mut self.store, &pack);
        self.store.commit().unwrap();
        self.model.committed = self.model.running.clone();
        self.model.end_batch();
    }

    /// Merges some neighbouring runs of each slice, as a compaction beside a running batch does.
    fn compact(&mut self) {
        for (slice, _) in self.store.slices() {
            let runs = self.store.runs(slice).unwrap().to_vec();
            if runs.is_empty() {
                continue;
            }
            let first = self.random.below(runs.len());
            let count = 1 + self.random.below(runs.len() - first);
            let pack = self.pack();
            let mut writer = PackWriter::create(&pack, 8192).unwrap();
            let (shape, fingerprint) = (RowShape::of(&self.layout), self.layout.fingerprint());
            let range = HashRange::of_buckets(0, BUCKETS).unwrap();
            let inputs = &runs[first..first + count];
            let extent =
                merge_runs(shape, fingerprint, inputs, &mut writer, range, first == 0).unwrap();
            writer.finish().unwrap();
            let run = Arc::new(open_run(&self.layout, &pack, extent).unwrap());
            assert!(self.store.replace(slice, first, count, run).unwrap());
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

    fn scan(
        &mut self,
        slices: &[i64],
        touched_only: bool,
        expired_at_us: Option<i64>,
    ) -> Vec<Vec<u8>> {
        let spec = ScanSpec {
            slices: slices.to_vec(),
            touched_only,
            expired_at_us,
            max_rows: 1 + self.random.below(200),
        };
        let batches = scan(&mut self.store, spec).unwrap();
        comparable(&self.layout, &batches)
    }

    fn check(&mut self) {
        let counts: Vec<_> = self
            .store
            .slices()
            .into_iter()
            .filter(|(_, rows)| *rows > 0)
            .collect();
        assert_eq!(counts, self.model.counts());
        let layout = Arc::clone(&self.layout);
        let all: Vec<i64> = (0..SLICES as i64).map(|slice| slice * 10).collect();
        for slice in &all {
            let groups = self.model.merged(&layout, &[*slice], |_| true);
            assert_eq!(
                self.scan(&[*slice], false, None),
                expected(&layout, &groups)
            );
            let touched = |key: &[u8]| self.model.touched.contains(&(*slice, key.to_vec()));
            let groups = self.model.merged(&layout, &[*slice], touched);
            assert_eq!(self.scan(&[*slice], true, None), expected(&layout, &groups));
        }
        let some = [20, 0, 30];
        let groups = self.model.merged(&layout, &some, |_| true);
        assert_eq!(self.scan(&some, false, None), expected(&layout, &groups));
        let time = self.random.below(400) as i64;
        let groups = self.model.merged(&layout, &some, |key| {
            layout.expiry(key).is_some_and(|at| at <= time)
        });
        assert_eq!(
            self.scan(&some, false, Some(time)),
            expected(&layout, &groups)
        );
        self.check_touched(&some);
        self.check_get();
    }

    /// A group made and deleted within the batch may or may not count as touched: nothing came of it.
    fn check_touched(&mut self, slices: &[i64]) {
        let layout = Arc::clone(&self.layout);
        let is_touched = |key: &[u8]| {
            slices
                .iter()
                .any(|slice| self.model.touched.contains(&(*slice, key.to_vec())))
        };
        let has_come_to_something = |key: &[u8]| {
            slices.iter().any(|slice| {
                let is_in = |groups: &BTreeMap<i64, Groups>| {
                    groups.get(slice).is_some_and(|g| g.contains_key(key))
                };
                self.model.touched.contains(&(*slice, key.to_vec()))
                    && (is_in(&self.model.running) || is_in(&self.model.committed))
            })
        };
        let most = expected(&layout, &self.model.merged(&layout, slices, is_touched));
        let least = expected(
            &layout,
            &self.model.merged(&layout, slices, has_come_to_something),
        );
        let found = self.scan(slices, true, None);
        let holds = |rows: &[Vec<u8>], row: &Vec<u8>| rows.binary_search(row).is_ok();
        assert!(found.iter().all(|row| holds(&most, row)));
        assert!(least.iter().all(|row| holds(&found, row)));
    }

    fn check_get(&mut self) {
        let rows: Vec<_> = (0..50)
            .map(|_| {
                let slice = self.random.below(SLICES) as i64 * 10;
                (slice, self.pool[self.random.below(self.pool.len())].clone())
            })
            .collect();
        let (groups, exist) = self.store.get(&encode(&self.layout, &rows)).unwrap();
        let found: Vec<_> = rows
            .iter()
            .map(|(slice, row)| {
                self.model
                    .running
                    .get(slice)
                    .and_then(|groups| groups.get(&row.key))
            })
            .collect();
        let empty = self.layout.empty_value();
        let keys: Vec<_> = rows.iter().map(|(_, row)| row.key.as_slice()).collect();
        let values: Vec<_> = found
            .iter()
            .map(|value| value.unwrap_or(&empty).as_slice())
            .collect();
        assert_eq!(groups, self.layout.decode(&keys, &values).unwrap());
        assert_eq!(exist.len(), rows.len());
        for (at, value) in found.iter().enumerate() {
            assert_eq!(exist.value(at), value.is_some());
        }
    }
}

fn run(
    layout: fn() -> Arc<Layout>,
    seeds: std::ops::Range<u64>,
    memory_bytes: usize,
    hash_mask: u64,
) {
    for seed in seeds {
        let mut fixture = Fixture::new(layout(), seed, memory_bytes, hash_mask);
        for step in 0..100 {
            fixture.step();
            if step % 5 == 4 {
                fixture.check();
            }
        }
    }
}

#[test]
fn a_store_in_memory_is_like_a_map() {
    run(fixed_layout, 0..3, 1 << 30, u64::MAX);
    run(variable_layout, 0..3, 1 << 30, u64::MAX);
    run(expiring_layout, 0..3, 1 << 30, u64::MAX);
}

#[test]
fn a_store_that_evicts_is_like_a_map() {
    run(fixed_layout, 100..104, 30_000, u64::MAX);
    run(variable_layout, 100..104, 50_000, u64::MAX);
    run(expiring_layout, 100..104, 30_000, u64::MAX);
}

#[test]
fn a_store_without_memory_is_like_a_map() {
    run(fixed_layout, 200..202, 0, u64::MAX);
    run(variable_layout, 200..202, 0, u64::MAX);
}

#[test]
fn keys_of_one_hash_are_told_apart() {
    run(fixed_layout, 300..302, 30_000, 0xf000_0000_0000_0001);
    run(variable_layout, 300..302, 50_000, 0xf000_0000_0000_0001);
    run(expiring_layout, 300..302, 0, 0);
}
