//! Joins as Python sees them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_pyarrow::PyArrowType;
use arrow_schema::Schema;
use pyo3::prelude::*;

use crate::error::Result;
use crate::join::layout::{Comparison, JoinLayout, SideColumns};
use crate::join::merge::{MergeSpec, merge_lists};
use crate::join::sorter::JoinSorter;
use crate::join::store::JoinStore;
use crate::py_store::{PyPackWriter, PyRun, figures, lock, shared};
use crate::rows::HashRange;
use crate::run::Run;

/// A side as Python describes it: a mapping.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct PySide {
    input: PyArrowType<Schema>,
    keys: Vec<usize>,
    matchable: Option<usize>,
    late: Option<usize>,
    expiry: Option<usize>,
    comparands: Vec<usize>,
    times: Vec<usize>,
    expires_after_us: i64,
    kept: Vec<usize>,
    null_keys: bool,
    outer: bool,
    once: bool,
}

impl PySide {
    fn columns(self) -> SideColumns {
        SideColumns {
            input: Arc::new(self.input.0),
            keys: self.keys,
            matchable: self.matchable,
            late: self.late,
            expiry: self.expiry,
            comparands: self.comparands,
            times: self.times,
            expires_after: self.expires_after_us,
            kept: self.kept,
            null_keys: self.null_keys,
            outer: self.outer,
            once: self.once,
        }
    }
}

#[pyclass(name = "JoinLayout", module = "millpond._kernel", frozen)]
pub struct PyJoinLayout {
    layout: Arc<JoinLayout>,
}

#[pymethods]
impl PyJoinLayout {
    #[new]
    fn new(left: PySide, right: PySide, comparisons: Vec<String>, slice_us: i64) -> PyResult<Self> {
        let comparisons = comparisons
            .iter()
            .map(|text| Comparison::of(text))
            .collect::<Result<Vec<_>>>()?;
        let layout = JoinLayout::new(left.columns(), right.columns(), comparisons, slice_us)?;
        Ok(Self {
            layout: Arc::new(layout),
        })
    }

    #[getter]
    fn output_schema(&self) -> PyArrowType<Schema> {
        PyArrowType(self.layout.output.as_ref().clone())
    }

    #[getter]
    fn encoded_schema(&self) -> PyArrowType<Schema> {
        PyArrowType(self.layout.encoded_schema().as_ref().clone())
    }

    #[pyo3(signature = (path, offset, length, read_delay_us=0))]
    fn open_run(
        &self,
        py: Python<'_>,
        path: PathBuf,
        offset: u64,
        length: u64,
        read_delay_us: u64,
    ) -> PyResult<PyRun> {
        let (shape, fingerprint) = (self.layout.shape, self.layout.fingerprint);
        let run = py.detach(|| Run::open(shape, fingerprint, &path, offset, length))?;
        let run = run.with_read_delay(Duration::from_micros(read_delay_us));
        Ok(PyRun { run: Arc::new(run) })
    }

    #[allow(clippy::too_many_arguments)]
    fn merge_runs(
        &self,
        py: Python<'_>,
        part: i64,
        runs: Vec<PyRef<'_, PyRun>>,
        writer: &PyPackWriter,
        buckets: (u32, u32),
        whole: bool,
        evicted_us: i64,
    ) -> PyResult<(u64, u64, u64)> {
        let runs = shared(runs);
        let extent = py.detach(|| {
            let spec = MergeSpec {
                part,
                range: HashRange::of_buckets(buckets.0, buckets.1)?,
                whole,
                evicted: evicted_us,
            };
            merge_lists(&self.layout, &runs, &mut *lock(&writer.writer)?, spec)
        })?;
        Ok((extent.offset, extent.length, extent.rows))
    }
}

#[pyclass(name = "JoinSorter", module = "millpond._kernel", frozen)]
pub struct PyJoinSorter {
    sorter: Mutex<JoinSorter>,
}

impl PyJoinSorter {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut JoinSorter) -> Result<T> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| work(&mut *lock(&self.sorter)?))?)
    }
}

#[pymethods]
impl PyJoinSorter {
    #[new]
    #[pyo3(signature = (layout, side, shard_starts, late_before_us=None))]
    fn new(
        layout: &PyJoinLayout,
        side: usize,
        shard_starts: Vec<u32>,
        late_before_us: Option<i64>,
    ) -> PyResult<Self> {
        let layout = Arc::clone(&layout.layout);
        let sorter = JoinSorter::new(layout, side, &shard_starts, late_before_us)?;
        Ok(Self {
            sorter: Mutex::new(sorter),
        })
    }

    fn push(&self, py: Python<'_>, batch: PyArrowType<RecordBatch>) -> PyResult<()> {
        self.with(py, |sorter| sorter.push(&batch.0))
    }

    fn drain(&self, py: Python<'_>) -> PyResult<Vec<(usize, PyArrowType<RecordBatch>)>> {
        let drained = self.with(py, JoinSorter::drain)?;
        let drained = drained.into_iter();
        Ok(drained
            .map(|(shard, batch)| (shard, PyArrowType(batch)))
            .collect())
    }

    #[getter]
    fn rows(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |sorter| Ok(sorter.rows()))
    }

    #[getter]
    fn late_rows(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |sorter| Ok(sorter.late_rows()))
    }

    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |sorter| Ok(sorter.memory_bytes()))
    }
}

#[pyclass(name = "JoinStore", module = "millpond._kernel", frozen)]
pub struct PyJoinStore {
    store: Mutex<JoinStore>,
}

impl PyJoinStore {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut JoinStore) -> Result<T> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| work(&mut *lock(&self.store)?))?)
    }
}

#[pymethods]
impl PyJoinStore {
    #[new]
    fn new(
        layout: &PyJoinLayout,
        first_bucket: u32,
        end_bucket: u32,
        memory_bytes: usize,
    ) -> PyResult<Self> {
        let layout = Arc::clone(&layout.layout);
        let store = JoinStore::new(layout, first_bucket, end_bucket, memory_bytes)?;
        Ok(Self {
            store: Mutex::new(store),
        })
    }

    fn restore(
        &self,
        py: Python<'_>,
        part: i64,
        rows: u64,
        runs: Vec<PyRef<'_, PyRun>>,
    ) -> PyResult<()> {
        let runs = shared(runs);
        self.with(py, |store| store.restore(part, rows, runs))
    }

    #[getter]
    fn evicted_us(&self, py: Python<'_>) -> PyResult<i64> {
        self.with(py, |store| Ok(store.evicted()))
    }

    fn restore_evicted(&self, py: Python<'_>, evicted_us: i64) -> PyResult<()> {
        self.with(py, |store| {
            store.restore_evicted(evicted_us);
            Ok(())
        })
    }

    fn apply(&self, py: Python<'_>, encoded: PyArrowType<RecordBatch>) -> PyResult<()> {
        self.with(py, |store| store.apply(&encoded.0))
    }

    fn begin_fire(&self, py: Python<'_>, before_us: i64) -> PyResult<()> {
        self.with(py, |store| store.begin_fire(before_us))
    }

    fn next_output(&self, py: Python<'_>) -> PyResult<Option<PyArrowType<RecordBatch>>> {
        Ok(self.with(py, JoinStore::next_output)?.map(PyArrowType))
    }

    fn parts(&self, py: Python<'_>) -> PyResult<Vec<(i64, u64)>> {
        self.with(py, |store| Ok(store.parts()))
    }

    #[getter]
    fn dirty_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |store| Ok(store.dirty_bytes()))
    }

    fn flush(&self, py: Python<'_>, writer: &PyPackWriter) -> PyResult<Vec<(i64, u64, u64, u64)>> {
        let written = self.with(py, |store| store.flush(&mut *lock(&writer.writer)?))?;
        let written = written.into_iter();
        Ok(written
            .map(|(part, run)| (part, run.offset, run.length, run.rows))
            .collect())
    }

    fn add_pending(&self, py: Python<'_>, part: i64, run: &PyRun) -> PyResult<()> {
        self.with(py, |store| store.add_pending(part, Arc::clone(&run.run)))
    }

    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, JoinStore::commit)
    }

    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |store| {
            store.abort();
            Ok(())
        })
    }

    fn replace(
        &self,
        py: Python<'_>,
        part: i64,
        first: usize,
        count: usize,
        run: &PyRun,
    ) -> PyResult<bool> {
        self.with(py, |store| {
            store.replace(part, first, count, Arc::clone(&run.run))
        })
    }

    fn runs(&self, py: Python<'_>, part: i64) -> PyResult<Vec<PyRun>> {
        let runs = self.with(py, |store| store.runs(part))?;
        Ok(runs.into_iter().map(|run| PyRun { run }).collect())
    }

    fn run_bytes(&self, py: Python<'_>, part: i64) -> PyResult<u64> {
        self.with(py, |store| Ok(store.run_bytes(part)))
    }

    fn read_ahead(&self, py: Python<'_>) -> PyResult<()> {
        let read = || -> Result<()> {
            loop {
                // Batches go on while blocks are read.
                let missing = lock(&self.store)?.missing();
                let Some((part, missing)) = missing else {
                    return Ok(());
                };
                let ahead = missing.read()?;
                lock(&self.store)?.put_ahead(part, ahead);
            }
        };
        Ok(py.detach(read)?)
    }

    fn stats(&self, py: Python<'_>) -> PyResult<HashMap<&'static str, u64>> {
        let (stats, ahead) =
            self.with(py, |store| Ok((store.stats(), store.blocks_read_ahead())))?;
        let hits = stats.counters.ahead_hits;
        let mut figures = figures(stats);
        figures.insert("read_ahead", ahead);
        figures.insert("read_ahead_hits", hits);
        Ok(figures)
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyJoinLayout>()?;
    module.add_class::<PyJoinSorter>()?;
    module.add_class::<PyJoinStore>()
}
