//! A store of sessions behaves like the rows that it was given: sorted, cut where nothing touches, and put out once
//! when a watermark has passed their end, whatever the order of rows, flushes, aborts, evictions, compactions and
//! reopenings.
#![allow(clippy::unwrap_used, reason = "tests")]

mod store_support;

use std::collections::BTreeMap;
use std::sync::Arc;

use _kernel::combiner::Combiner;
use _kernel::hash::BUCKETS;
use _kernel::layout::{AggregateSpec, Layout};
use _kernel::merge::merge_runs;
use _kernel::pack::PackWriter;
use _kernel::rows::{HashRange, RowShape};
use _kernel::session_firing::SessionFiring;
use _kernel::slice::Change;
use _kernel::store::Store;
use _kernel::time::{SESSIONS, Time};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use store_support::*;

#[derive(Clone, Copy, Debug)]
struct Event {
    key: i64,
    value: i64,
    start: i64,
    end: i64,
}

/// (key, start, end, rows, sum, largest text)
type Out = (i64, i64, i64, i64, i64, String);

fn text(value: i64) -> String {
    format!("{value}{}", "x".repeat((value as usize * 7) % 40))
}

/// An integer key; count and sum, and the largest text where aggregates are to vary in length.
fn session_layout(timer: i64, varying: bool) -> Arc<Layout> {
    let fields = vec![
        Field::new("k", DataType::Int64, true),
        Field::new("v", DataType::Int64, true),
        Field::new("t", DataType::Utf8, true),
        Field::new("start", DataType::Int64, true),
        Field::new("end", DataType::Int64, true),
    ];
    let mut aggregates: Vec<AggregateSpec> = vec![
        ("count".into(), vec![], None),
        ("sum_int".into(), vec![1], None),
    ];
    if varying {
        aggregates.push(("max".into(), vec![2], None));
    }
    let time = Time::Sessions {
        start: 3,
        end: 4,
        timer,
    };
    Arc::new(Layout::new(Arc::new(Schema::new(fields)), 1, &aggregates, time).unwrap())
}

fn input(layout: &Layout, events: &[Event]) -> RecordBatch {
    let ints = |of: fn(&Event) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(events.iter().map(of)))
    };
    let texts = StringArray::from_iter_values(events.iter().map(|event| text(event.value)));
    let columns = vec![
        ints(|event| event.key),
        ints(|event| event.value),
        Arc::new(texts),
        ints(|event| event.start),
        ints(|event| event.end),
    ];
    RecordBatch::try_new(layout.input_schema(), columns).unwrap()
}

/// What a task sends for the rows.
fn sent(layout: &Arc<Layout>, events: &[Event], late_before: Option<i64>) -> Vec<RecordBatch> {
    let mut combiner = Combiner::new(Arc::clone(layout), &[0], late_before).unwrap();
    combiner.push(&input(layout, events)).unwrap();
    let drained = combiner.drain().unwrap();
    drained.into_iter().map(|(_, batch)| batch).collect()
}

fn rows_of(batches: &[RecordBatch], varying: bool) -> Vec<Out> {
    let mut rows = Vec::new();
    for batch in batches {
        let int = |at: usize, row: usize| {
            let column = batch.column(at).as_any().downcast_ref::<Int64Array>();
            column.unwrap().value(row)
        };
        let last = batch.num_columns() - 1;
        for row in 0..batch.num_rows() {
            let largest = match varying {
                true => {
                    let column = batch.column(3).as_any().downcast_ref::<StringArray>();
                    column.unwrap().value(row).to_owned()
                }
                false => String::new(),
            };
            rows.push((
                int(0, row),
                int(last - 1, row),
                int(last, row),
                int(1, row),
                int(2, row),
                largest,
            ));
        }
    }
    rows.sort();
    rows
}

fn close(store: &mut Store, watermark: i64, max_rows: usize, varying: bool) -> Vec<Out> {
    let mut firing = SessionFiring::begin(store, watermark, max_rows).unwrap();
    let mut batches = Vec::new();
    while let Some(batch) = firing.next(store).unwrap() {
        assert!(batch.num_rows() > 0);
        batches.push(batch);
    }
    rows_of(&batches, varying)
}

/// The rows that are in no closed session, by key.
#[derive(Clone, Default)]
struct Model(BTreeMap<i64, Vec<Event>>);

impl Model {
    fn add(&mut self, events: &[Event], late_before: i64) {
        for event in events.iter().filter(|event| event.end > late_before) {
            self.0.entry(event.key).or_default().push(*event);
        }
    }

    fn sessions(&self, varying: bool) -> Vec<Out> {
        let mut sessions: Vec<Out> = Vec::new();
        for events in self.0.values() {
            let mut events = events.clone();
            events.sort_by_key(|event| event.start);
            let mut open: Option<Out> = None;
            for event in events {
                let largest = if varying {
                    text(event.value)
                } else {
                    String::new()
                };
                open = Some(match open.take() {
                    Some(s) if event.start <= s.2 => {
                        let end = s.2.max(event.end);
                        (s.0, s.1, end, s.3 + 1, s.4 + event.value, s.5.max(largest))
                    }
                    closed => {
                        sessions.extend(closed);
                        (event.key, event.start, event.end, 1, event.value, largest)
                    }
                });
            }
            sessions.extend(open);
        }
        sessions.sort();
        sessions
    }

    fn close(&mut self, watermark: i64, varying: bool) -> Vec<Out> {
        let mut closed = self.sessions(varying);
        closed.retain(|session| session.2 <= watermark);
        for (key, start, end, ..) in &closed {
            if let Some(events) = self.0.get_mut(key) {
                events.retain(|event| event.start < *start || event.start > *end);
            }
        }
        closed
    }
}

struct Fixture {
    layout: Arc<Layout>,
    varying: bool,
    store: Store,
    model: Model,
    watermark: i64,
    random: Random,
    scratch: Scratch,
    packs: u32,
    memory_bytes: usize,
}

impl Fixture {
    fn new(seed: u64, timer: i64, varying: bool, memory_bytes: usize) -> Self {
        let layout = session_layout(timer, varying);
        Self {
            store: Store::new(Arc::clone(&layout), 0, BUCKETS, memory_bytes).unwrap(),
            layout,
            varying,
            model: Model::default(),
            watermark: -500,
            random: Random(seed),
            scratch: Scratch::new(),
            packs: 0,
            memory_bytes,
        }
    }

    fn pack(&mut self) -> std::path::PathBuf {
        self.packs += 1;
        self.scratch.file(format!("pack{}", self.packs))
    }

    /// Rows around the watermark, some of them late, some far ahead.
    fn events(&mut self) -> Vec<Event> {
        let random = &mut self.random;
        let event = |_| {
            let ahead = if random.below(20) == 0 { 2000 } else { 120 };
            let start = self.watermark - 60 + random.below(ahead) as i64;
            Event {
                key: random.below(80) as i64,
                value: random.below(1000) as i64,
                start,
                end: start + 1 + random.below(30) as i64,
            }
        };
        (0..200).map(event).collect()
    }

    fn batch(&mut self) {
        let mut model = self.model.clone();
        for _ in 0..self.random.below(3) + 1 {
            let events = self.events();
            model.add(&events, self.watermark);
            for sent in sent(&self.layout, &events, Some(self.watermark)) {
                self.store.change(&sent, Change::Merge).unwrap();
            }
            if self.random.below(3) == 0 {
                let pack = self.pack();
                flush(&mut self.store, &pack);
            }
        }
        let watermark = self.watermark + self.random.below(60) as i64;
        let max_rows = 1 + self.random.below(50);
        let closed = close(&mut self.store, watermark, max_rows, self.varying);
        assert_eq!(closed, model.close(watermark, self.varying));
        assert_eq!(close(&mut self.store, watermark, 10, self.varying), []);
        if self.random.below(4) == 0 {
            self.store.abort();
            return;
        }
        let pack = self.pack();
        flush(&mut self.store, &pack);
        self.store.commit().unwrap();
        self.watermark = watermark;
        self.model = model;
    }

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

    fn open_sessions(&mut self) -> Vec<Out> {
        let spec = _kernel::scan::ScanSpec {
            slices: vec![SESSIONS],
            touched_only: false,
            expired_at_us: None,
            max_rows: 10_000,
        };
        rows_of(&scan(&mut self.store, spec).unwrap(), self.varying)
    }

    /// Nothing may stay behind, neither sessions nor timers.
    fn close_all(&mut self) {
        let end = self.watermark + 1_000_000;
        let closed = close(&mut self.store, end, 1000, self.varying);
        assert_eq!(closed, self.model.close(end, self.varying));
        let left: u64 = self.store.slices().iter().map(|(_, rows)| rows).sum();
        assert_eq!(left, 0);
    }
}

fn run(seeds: std::ops::Range<u64>, timer: i64, varying: bool, memory_bytes: usize) {
    for seed in seeds {
        let mut fixture = Fixture::new(seed, timer, varying, memory_bytes);
        for _ in 0..40 {
            fixture.batch();
            match fixture.random.below(6) {
                0 => fixture.compact(),
                1 => fixture.reopen(),
                _ => {}
            }
            assert_eq!(fixture.open_sessions(), fixture.model.sessions(varying));
        }
        fixture.close_all();
    }
}

#[test]
fn sessions_in_memory_close_as_their_rows_say() {
    run(0..3, 10, false, 1 << 24);
    run(10..12, 1, false, 1 << 24);
    run(20..22, 500, false, 1 << 24);
}

#[test]
fn sessions_whose_aggregates_vary_in_length_close_as_their_rows_say() {
    run(0..3, 10, true, 1 << 24);
}

#[test]
fn sessions_and_timers_that_were_evicted_close_as_their_rows_say() {
    run(0..2, 10, false, 1);
    run(10..12, 100, true, 1);
    run(20..22, 10, false, 10_000);
}

fn merged(layout: &Arc<Layout>, groups: &[&[Event]]) -> Vec<Out> {
    let mut store = Store::new(Arc::clone(layout), 0, BUCKETS, 1 << 20).unwrap();
    for events in groups {
        for batch in sent(layout, events, None) {
            store.change(&batch, Change::Merge).unwrap();
        }
    }
    close(&mut store, i64::MAX, 100, false)
}

#[test]
fn sessions_merge_alike_in_every_order_and_in_any_parts() {
    let layout = session_layout(5, false);
    let mut random = Random(7);
    for _ in 0..200 {
        let mut events: Vec<Event> = (0..8)
            .map(|_| {
                let start = random.below(40) as i64;
                Event {
                    key: 1,
                    value: random.below(10) as i64,
                    start,
                    end: start + 1 + random.below(6) as i64,
                }
            })
            .collect();
        let expected = merged(&layout, &[&events]);
        for _ in 0..6 {
            let (a, b) = (random.below(8), random.below(8));
            events.swap(a, b);
            let cut = random.below(9);
            assert_eq!(merged(&layout, &[&events[..cut], &events[cut..]]), expected);
        }
    }
}

#[test]
fn sessions_that_only_touch_are_one() {
    let layout = session_layout(5, false);
    let event = |start, end| Event {
        key: 1,
        value: 1,
        start,
        end,
    };
    let out = |start, end, rows| (1, start, end, rows, rows, String::new());
    let apart = [event(0, 10), event(11, 21)];
    assert_eq!(merged(&layout, &[&apart]), [out(0, 10, 1), out(11, 21, 1)]);
    let touching = [event(0, 10), event(10, 20)];
    assert_eq!(merged(&layout, &[&touching]), [out(0, 20, 2)]);
}

#[test]
fn keys_that_wait_are_not_looked_at() {
    let layout = session_layout(10, false);
    let mut store = Store::new(Arc::clone(&layout), 0, BUCKETS, 1 << 24).unwrap();
    let event = |key, start| Event {
        key,
        value: 1,
        start,
        end: start + 10,
    };
    let mut events: Vec<_> = (0..5000).map(|key| event(key, 1000)).collect();
    events.push(event(9999, 0));
    for batch in sent(&layout, &events, None) {
        store.change(&batch, Change::Merge).unwrap();
    }
    let before = store.stats().counters.gets;
    let closed = close(&mut store, 10, 1000, false);
    assert_eq!(closed, [(9999, 0, 10, 1, 1, String::new())]);
    assert_eq!(store.stats().counters.gets - before, 1);
}

#[test]
fn sessions_that_come_and_go_within_a_batch_leave_nothing_in_files() {
    let layout = session_layout(10, false);
    let mut fixture = Fixture::new(1, 10, false, 1 << 24);
    fixture.batch();
    fixture.reopen();
    let event = |key| Event {
        key,
        value: 1,
        start: 5000,
        end: 5010,
    };
    let events: Vec<_> = (1000..2000).map(event).collect();
    for batch in sent(&layout, &events, None) {
        fixture.store.change(&batch, Change::Merge).unwrap();
    }
    let before = fixture.store.dirty_bytes();
    assert!(before > 0);
    close(&mut fixture.store, 6000, 1000, false);
    let pack = fixture.pack();
    let written: u64 = flush(&mut fixture.store, &pack)
        .iter()
        .map(|(_, run)| run.rows)
        .sum();
    assert!(written <= 80, "{written}");
}
