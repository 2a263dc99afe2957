//! What the tests of stores share: layouts, rows made at will, a random source with a seed, scratch directories.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use _kernel::combiner::Combiner;
use _kernel::layout::{ByteColumn, EncodedRows, Layout};
use _kernel::pack::PackWriter;
use _kernel::rows::RowShape;
use _kernel::run::Run;
use _kernel::run_writer::RunExtent;
use _kernel::scan::{Scan, ScanSpec};
use _kernel::store::Store;
use _kernel::time::Time;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_row::{RowConverter, SortField};
use arrow_schema::{DataType, Field, Schema};

/// A small generator of random numbers: the same seed, the same test.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// A directory that goes with the test.
pub struct Scratch(PathBuf);

static SCRATCHES: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    pub fn new() -> Self {
        let number = SCRATCHES.fetch_add(1, Ordering::Relaxed);
        let name = format!("millpond-kernel-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn layout(
    fields: Vec<Field>,
    keys: usize,
    aggregates: &[(&str, &[usize])],
    time: Time,
) -> Arc<Layout> {
    let aggregates: Vec<_> = aggregates
        .iter()
        .map(|(op, inputs)| ((*op).to_owned(), inputs.to_vec(), None))
        .collect();
    Arc::new(Layout::new(Arc::new(Schema::new(fields)), keys, &aggregates, time).unwrap())
}

/// An integer key; count and sum.
pub fn fixed_layout() -> Arc<Layout> {
    let fields = vec![
        Field::new("k", DataType::Int64, true),
        Field::new("v", DataType::Int64, true),
    ];
    layout(fields, 1, &[("count", &[]), ("sum_int", &[1])], Time::None)
}

/// A string key; count and the largest string.
pub fn variable_layout() -> Arc<Layout> {
    let fields = vec![
        Field::new("k", DataType::Utf8, true),
        Field::new("v", DataType::Utf8, true),
    ];
    layout(fields, 1, &[("count", &[]), ("max", &[1])], Time::None)
}

/// An integer key that is its own time of expiry; count and sum.
pub fn expiring_layout() -> Arc<Layout> {
    let fields = vec![
        Field::new("k", DataType::Int64, true),
        Field::new("v", DataType::Int64, true),
    ];
    let time = Time::Keyed {
        column: 0,
        slice: 1_000_000,
    };
    layout(fields, 1, &[("count", &[]), ("sum_int", &[1])], time)
}

/// An integer key whose expiry is kept beside it.
pub fn timed_layout() -> Arc<Layout> {
    let fields = vec![
        Field::new("k", DataType::Int64, true),
        Field::new("expiry", DataType::Int64, true),
    ];
    layout(fields, 1, &[("min", &[1])], Time::None)
}

/// As above, with a key whose length varies.
pub fn timed_variable_layout() -> Arc<Layout> {
    let fields = vec![
        Field::new("k", DataType::Utf8, true),
        Field::new("expiry", DataType::Int64, true),
    ];
    layout(fields, 1, &[("min", &[1])], Time::None)
}

fn column(data_type: &DataType, numbers: &[i64], prefix: &str) -> ArrayRef {
    match data_type {
        DataType::Int64 => Arc::new(Int64Array::from(numbers.to_vec())),
        _ => {
            // Lengths that differ a lot, so that rows, blocks and heaps do too.
            let text = |n: &i64| format!("{prefix}{n}{}", "x".repeat((*n as usize * 7) % 40));
            Arc::new(StringArray::from(
                numbers.iter().map(text).collect::<Vec<_>>(),
            ))
        }
    }
}

/// An encoded row, free to be put into any slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub hash: u64,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

/// One row for each key, with its value.
pub fn pairs(layout: &Arc<Layout>, keys: &[i64], values: &[i64]) -> Vec<Pair> {
    let schema = layout.input_schema();
    let columns = vec![
        column(schema.field(0).data_type(), keys, "k"),
        column(schema.field(1).data_type(), values, "v"),
    ];
    let batch = RecordBatch::try_new(schema, columns).unwrap();
    let mut pairs = Vec::new();
    for row in 0..batch.num_rows() {
        let mut combiner = Combiner::new(Arc::clone(layout), &[0], None).unwrap();
        combiner.push(&batch.slice(row, 1)).unwrap();
        for (_, batch) in combiner.drain().unwrap() {
            let rows = EncodedRows::new(layout, &batch).unwrap();
            pairs.push(Pair {
                hash: rows.hash(0),
                key: rows.key(0).to_vec(),
                value: rows.value(0).to_vec(),
            });
        }
    }
    assert_eq!(pairs.len(), keys.len());
    pairs
}

pub fn encode(layout: &Layout, rows: &[(i64, Pair)]) -> RecordBatch {
    let mut keys = ByteColumn::new(layout.key_width());
    let mut values = ByteColumn::new(layout.value_width());
    for (_, row) in rows {
        keys.push(&row.key);
        values.push(&row.value);
    }
    let hashes = rows.iter().map(|(_, row)| row.hash).collect();
    let slices = rows.iter().map(|(slice, _)| *slice).collect();
    layout.encoded_batch(hashes, slices, keys, values).unwrap()
}

pub fn open_run(layout: &Layout, path: &Path, extent: RunExtent) -> _kernel::error::Result<Run> {
    let (offset, length) = (extent.offset, extent.length);
    Run::open(
        RowShape::of(layout),
        layout.fingerprint(),
        path,
        offset,
        length,
    )
}

/// Flushes to a pack of its own and hands the runs back.
pub fn flush(store: &mut Store, path: &Path) -> Vec<(i64, RunExtent)> {
    let mut writer = PackWriter::create(path, 8192).unwrap();
    let written = store.flush(&mut writer).unwrap();
    writer.finish().unwrap();
    let layout = Arc::clone(store.layout());
    for (slice, extent) in &written {
        let run = open_run(&layout, path, *extent).unwrap();
        store.add_pending(*slice, Arc::new(run)).unwrap();
    }
    written
}

pub fn scan(store: &mut Store, spec: ScanSpec) -> _kernel::error::Result<Vec<RecordBatch>> {
    let most = spec.max_rows;
    let mut scan = Scan::begin(store, spec)?;
    let mut batches = Vec::new();
    while let Some(batch) = scan.next(store)? {
        assert!(batch.num_rows() > 0 && batch.num_rows() <= most);
        batches.push(batch);
    }
    Ok(batches)
}

pub fn scan_all(store: &mut Store, slice: i64) -> _kernel::error::Result<Vec<Vec<u8>>> {
    let spec = ScanSpec {
        slices: vec![slice],
        touched_only: false,
        expired_at_us: None,
        max_rows: 1000,
    };
    let layout = Arc::clone(store.layout());
    Ok(comparable(&layout, &scan(store, spec)?))
}

/// Output rows as bytes, sorted: equal where the rows are, in whatever order.
pub fn comparable(layout: &Layout, batches: &[RecordBatch]) -> Vec<Vec<u8>> {
    let schema = layout.output_schema();
    let fields = schema.fields().iter();
    let fields = fields
        .map(|field| SortField::new(field.data_type().clone()))
        .collect();
    let converter = RowConverter::new(fields).unwrap();
    let mut rows: Vec<Vec<u8>> = Vec::new();
    for batch in batches {
        assert_eq!(batch.schema(), schema);
        let converted = converter.convert_columns(batch.columns()).unwrap();
        rows.extend(converted.iter().map(|row| row.as_ref().to_vec()));
    }
    rows.sort();
    rows
}

/// Groups of a model as comparable output rows.
pub fn expected(layout: &Layout, groups: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<Vec<u8>> {
    let keys: Vec<_> = groups.keys().map(Vec::as_slice).collect();
    let values: Vec<_> = groups.values().map(Vec::as_slice).collect();
    comparable(layout, &[layout.decode(&keys, &values).unwrap()])
}

pub fn merge_values(layout: &Layout, state: &[u8], partial: &[u8]) -> Vec<u8> {
    if layout.value_width().is_some() {
        let mut state = state.to_vec();
        layout.merge_fixed(&mut state, partial).unwrap();
        return state;
    }
    let mut out = Vec::new();
    match layout.merge_variable(state, partial, &mut out).unwrap() {
        true => out,
        false => state.to_vec(),
    }
}
