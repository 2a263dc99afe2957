//! A store of session rows over files in a scratch directory, as the service drives it.
#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use _kernel::aur::layout::{Ending, RowsLayout};
use _kernel::aur::log::LogRun;
use _kernel::aur::log_writer::LogExtent;
use _kernel::aur::rewrite::maintain;
use _kernel::aur::sorter::RowSorter;
use _kernel::aur::store::{RowStore, Stats};
use _kernel::error::Result;
use _kernel::hash::BUCKETS;
use _kernel::pack::PackWriter;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};

pub const GAP: i64 = 10;
/// Rows say in their fourth column when their own sessions end.
pub const OWN_ENDS: Ending = Ending::Latest(3);

/// How long the session of a row waits after it, where rows say that.
pub fn own_gap(value: i64) -> i64 {
    1 + value % 30
}

/// (key, value, time)
pub type Row = (i64, i64, i64);
/// (key, start, end) and the values, sorted.
pub type Closed = BTreeMap<(i64, i64, i64), Vec<i64>>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Numbers,
    Texts,
}

pub fn layout(shape: Shape, ending: Ending, expected: Option<usize>) -> Arc<RowsLayout> {
    let kind = match shape {
        Shape::Numbers => DataType::Int64,
        Shape::Texts => DataType::Utf8,
    };
    let schema = Schema::new(vec![
        Field::new("k", kind.clone(), true),
        Field::new("v", kind, true),
        Field::new("t", DataType::Int64, true),
        Field::new("e", DataType::Int64, true),
    ]);
    let time = (!matches!(ending, Ending::Rows(_))).then_some(2);
    Arc::new(RowsLayout::new(Arc::new(schema), vec![0], &[0, 1], time, expected, ending).unwrap())
}

pub fn input(shape: Shape, rows: &[Row]) -> RecordBatch {
    let column = |values: Vec<i64>| -> ArrayRef {
        match shape {
            Shape::Numbers => Arc::new(Int64Array::from(values)),
            Shape::Texts => {
                let texts = values
                    .iter()
                    .map(|v| "x".repeat((v % 40) as usize) + &v.to_string());
                Arc::new(StringArray::from_iter_values(texts))
            }
        }
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("k", column(rows.iter().map(|r| r.0).collect())),
        ("v", column(rows.iter().map(|r| r.1).collect())),
        (
            "t",
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.2))),
        ),
        (
            "e",
            Arc::new(Int64Array::from_iter_values(
                rows.iter().map(|r| r.2 + own_gap(r.1)),
            )),
        ),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn numbers(column: &ArrayRef) -> Vec<i64> {
    match column.data_type() {
        DataType::Int64 => column.as_primitive::<Int64Type>().values().to_vec(),
        _ => {
            let texts = column.as_string::<i32>().iter();
            texts
                .map(|t| t.unwrap().trim_start_matches('x').parse().unwrap())
                .collect()
        }
    }
}

pub struct Shard {
    pub shape: Shape,
    pub layout: Arc<RowsLayout>,
    pub store: Mutex<RowStore>,
    pub watermark: i64,
    directory: PathBuf,
    files: usize,
    memory: usize,
    /// Path and extent of the committed and pending runs.
    committed: Vec<(PathBuf, LogExtent)>,
    pending: Vec<(PathBuf, LogExtent)>,
}

impl Shard {
    pub fn new(shape: Shape, memory: usize) -> Self {
        Self::ending(shape, Ending::Gap(GAP), memory)
    }

    pub fn ending(shape: Shape, ending: Ending, memory: usize) -> Self {
        Self::of(shape, layout(shape, ending, None), memory)
    }

    pub fn of(shape: Shape, layout: Arc<RowsLayout>, memory: usize) -> Self {
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("aur-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let store = RowStore::new(Arc::clone(&layout), 0, BUCKETS, memory).unwrap();
        Self {
            shape,
            layout,
            store: Mutex::new(store),
            watermark: i64::MIN,
            directory,
            files: 0,
            memory,
            committed: Vec::new(),
            pending: Vec::new(),
        }
    }

    pub fn path(&mut self) -> PathBuf {
        self.files += 1;
        self.directory.join(self.files.to_string())
    }

    pub fn append(&self, rows: &[Row]) {
        let late = (self.watermark > i64::MIN).then_some(self.watermark);
        let mut sorter = RowSorter::new(Arc::clone(&self.layout), &[0], late).unwrap();
        sorter.push(&input(self.shape, rows)).unwrap();
        for (_, batch) in sorter.drain().unwrap() {
            self.store.lock().unwrap().append(&batch).unwrap();
        }
    }

    pub fn take(&self, watermark: i64, max_rows: usize) -> Result<Closed> {
        let mut store = self.store.lock().unwrap();
        let mut take = store.take_due(watermark, max_rows)?;
        let mut closed = Closed::new();
        let mut previous = None;
        while let Some(batch) = take.next(&mut store)? {
            let [keys, values, starts, ends] = [0, 1, 2, 3].map(|i| numbers(batch.column(i)));
            for row in 0..batch.num_rows() {
                let session = (keys[row], starts[row], ends[row]);
                let together = previous == Some(session) || !closed.contains_key(&session);
                assert!(together, "the rows of {session:?} do not lie together");
                previous = Some(session);
                closed.entry(session).or_default().push(values[row]);
            }
        }
        closed
            .values_mut()
            .for_each(|values| values.sort_unstable());
        Ok(closed)
    }

    pub fn flush(&mut self) {
        let path = self.path();
        let mut writer = PackWriter::create(&path, 1 << 16).unwrap();
        let extent = self.store.lock().unwrap().flush(&mut writer).unwrap();
        writer.finish().unwrap();
        if let Some(extent) = extent {
            let run = self.open(&path, extent).unwrap();
            self.store.lock().unwrap().add_pending(run).unwrap();
            self.pending.push((path, extent));
        }
    }

    fn open(&self, path: &std::path::Path, extent: LogExtent) -> Result<Arc<LogRun>> {
        LogRun::open(&self.layout, path, extent.offset, extent.length).map(Arc::new)
    }

    pub fn commit(&mut self, watermark: i64) {
        self.flush();
        let used = self.store.lock().unwrap().runs_in_use();
        self.store.lock().unwrap().commit().unwrap();
        let mut used = used.into_iter();
        self.committed.retain(|_| used.next().unwrap());
        self.committed.append(&mut self.pending);
        self.watermark = watermark;
    }

    /// Appends, gives out and commits.
    pub fn batch(&mut self, rows: &[Row], watermark: i64) -> Closed {
        self.append(rows);
        let closed = self.take(watermark, 1000).unwrap();
        self.commit(watermark);
        closed
    }

    pub fn abort(&mut self) {
        self.store.lock().unwrap().abort().unwrap();
        self.pending.clear();
    }

    pub fn restart(&mut self) -> Result<()> {
        let store = RowStore::new(Arc::clone(&self.layout), 0, BUCKETS, self.memory).unwrap();
        self.store = Mutex::new(store);
        self.pending.clear();
        let runs = self
            .committed
            .iter()
            .map(|(path, extent)| self.open(path, *extent));
        let runs = runs.collect::<Result<_>>()?;
        self.store.lock().unwrap().restore(runs)
    }

    pub fn read_ahead(&self, ratio: f64) {
        maintain(&self.store, ratio, &[], None).unwrap();
    }

    /// Starts a rewrite of committed runs; what it returns puts the result in place.
    pub fn rewrite(&mut self, first: usize, count: usize, ratio: f64) -> (PathBuf, LogExtent) {
        let runs = self.store.lock().unwrap().runs()[first..first + count].to_vec();
        let path = self.path();
        let mut writer = PackWriter::create(&path, 1 << 16).unwrap();
        let extent = maintain(&self.store, ratio, &runs, Some(&mut writer)).unwrap();
        writer.finish().unwrap();
        (path, extent.unwrap())
    }

    pub fn adopt(&mut self, first: usize, count: usize, (path, extent): (PathBuf, LogExtent)) {
        let run = self.open(&path, extent).unwrap();
        self.store
            .lock()
            .unwrap()
            .replace(first, count, run)
            .unwrap();
        self.committed
            .splice(first..first + count, [(path, extent)]);
    }

    pub fn files(&self) -> Vec<PathBuf> {
        self.committed
            .iter()
            .map(|(path, _)| path.clone())
            .collect()
    }

    pub fn runs(&self) -> usize {
        self.committed.len()
    }

    pub fn stats(&self) -> Stats {
        self.store.lock().unwrap().stats()
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// What sessions are, written down as plainly as can be.
#[derive(Clone)]
pub struct Model {
    gap: fn(i64) -> i64,
    /// Keys, and the (time, value) of their rows.
    open: Vec<(i64, Vec<(i64, i64)>)>,
}

impl Model {
    pub fn new(ending: Ending) -> Self {
        let gap: fn(i64) -> i64 = match ending {
            OWN_ENDS => own_gap,
            _ => |_| GAP,
        };
        let open = Vec::new();
        Self { gap, open }
    }

    pub fn append(&mut self, rows: &[Row], watermark: i64) {
        for (key, value, time) in rows {
            let mut whole = vec![(*time, *value)];
            if self.span(&whole).1 <= watermark {
                continue;
            }
            while let Some(i) = self.open.iter().position(|(k, rows)| {
                let (start, end) = self.span(rows);
                let (own_start, own_end) = self.span(&whole);
                k == key && start <= own_end && own_start <= end
            }) {
                whole.extend(self.open.swap_remove(i).1);
            }
            self.open.push((*key, whole));
        }
    }

    pub fn take(&mut self, watermark: i64) -> Closed {
        let mut closed = Closed::new();
        for (key, rows) in std::mem::take(&mut self.open) {
            let (start, end) = self.span(&rows);
            if end > watermark {
                self.open.push((key, rows));
                continue;
            }
            let mut values: Vec<i64> = rows.iter().map(|(_, value)| *value).collect();
            values.sort_unstable();
            closed.insert((key, start, end), values);
        }
        closed
    }

    fn span(&self, rows: &[(i64, i64)]) -> (i64, i64) {
        let starts = rows.iter().map(|(time, _)| *time);
        let ends = rows.iter().map(|(time, value)| time + (self.gap)(*value));
        (starts.min().unwrap(), ends.max().unwrap())
    }

    pub fn sessions(&self) -> usize {
        self.open.len()
    }

    pub fn rows(&self) -> usize {
        self.open.iter().map(|(_, rows)| rows.len()).sum()
    }
}

/// Numbers that follow from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}
