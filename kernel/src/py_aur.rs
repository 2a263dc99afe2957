//! The store of session rows as Python sees it. Every call takes the store's lock with the GIL released; `maintain` takes
//! it for short steps, so that it can run beside a batch.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_pyarrow::PyArrowType;
use arrow_schema::Schema;
use pyo3::prelude::*;

use crate::aur::due::Take;
use crate::aur::layout::{Ending, RowsLayout};
use crate::aur::log::LogRun;
use crate::aur::rewrite;
use crate::aur::sorter::RowSorter;
use crate::aur::store::RowStore;
use crate::error::Result;
use crate::py_store::{PyPackWriter, lock};

#[pyclass(name = "SessionRowsLayout", module = "millpond._kernel", frozen)]
pub struct PyRowsLayout {
    layout: Arc<RowsLayout>,
}

#[pymethods]
impl PyRowsLayout {
    #[new]
    #[pyo3(signature = (input, keys, kept, time=None, gap_us=None, end=None, rows=None, expected=None))]
    #[allow(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn new(
        input: PyArrowType<Schema>,
        keys: Vec<usize>,
        kept: Vec<usize>,
        time: Option<usize>,
        gap_us: Option<i64>,
        end: Option<usize>,
        rows: Option<u32>,
        expected: Option<usize>,
    ) -> PyResult<Self> {
        let ending = match (gap_us, end, rows) {
            (_, _, Some(rows)) => Ending::Rows(rows),
            (Some(gap), _, None) => Ending::Gap(gap),
            (None, Some(end), None) => Ending::Latest(end),
            (None, None, None) => Ending::Stated,
        };
        let layout = RowsLayout::new(Arc::new(input.0), keys, &kept, time, expected, ending)?;
        Ok(Self {
            layout: Arc::new(layout),
        })
    }

    #[getter]
    fn encoded_schema(&self) -> PyArrowType<Schema> {
        PyArrowType(self.layout.encoded_schema().as_ref().clone())
    }

    #[getter]
    fn output_schema(&self) -> PyArrowType<Schema> {
        PyArrowType(self.layout.output_schema().as_ref().clone())
    }
}

#[pyclass(name = "SessionRowsSorter", module = "millpond._kernel")]
pub struct PyRowSorter {
    sorter: RowSorter,
}

#[pymethods]
impl PyRowSorter {
    #[new]
    #[pyo3(signature = (layout, shard_starts, late_before_us=None))]
    fn new(
        layout: &PyRowsLayout,
        shard_starts: Vec<u32>,
        late_before_us: Option<i64>,
    ) -> PyResult<Self> {
        let layout = Arc::clone(&layout.layout);
        Ok(Self {
            sorter: RowSorter::new(layout, &shard_starts, late_before_us)?,
        })
    }

    fn push(&mut self, py: Python<'_>, batch: PyArrowType<RecordBatch>) -> PyResult<()> {
        Ok(py.detach(|| self.sorter.push(&batch.0))?)
    }

    fn drain(&mut self, py: Python<'_>) -> PyResult<Vec<(usize, PyArrowType<RecordBatch>)>> {
        let drained = py.detach(|| self.sorter.drain())?.into_iter();
        Ok(drained
            .map(|(shard, batch)| (shard, PyArrowType(batch)))
            .collect())
    }

    #[getter]
    fn rows(&self) -> u64 {
        self.sorter.rows()
    }

    #[getter]
    fn late_rows(&self) -> u64 {
        self.sorter.late_rows()
    }

    #[getter]
    fn memory_bytes(&self) -> usize {
        self.sorter.memory_bytes()
    }
}

#[pyclass(name = "SessionRowsRun", module = "millpond._kernel", frozen)]
pub struct PyLogRun {
    run: Arc<LogRun>,
}

#[pymethods]
impl PyLogRun {
    #[staticmethod]
    #[pyo3(signature = (layout, path, offset, length, read_delay_us=0))]
    fn open(
        py: Python<'_>,
        layout: &PyRowsLayout,
        path: PathBuf,
        offset: u64,
        length: u64,
        read_delay_us: u64,
    ) -> PyResult<Self> {
        let layout = &layout.layout;
        let run = py.detach(|| LogRun::open(layout, &path, offset, length))?;
        let run = run.with_read_delay(Duration::from_micros(read_delay_us));
        Ok(Self { run: Arc::new(run) })
    }
}

#[pyclass(name = "SessionRowsStore", module = "millpond._kernel", frozen)]
pub struct PyRowStore {
    store: Mutex<RowStore>,
}

impl PyRowStore {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut RowStore) -> Result<T> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| work(&mut *lock(&self.store)?))?)
    }
}

fn shared(runs: &[PyRef<'_, PyLogRun>]) -> Vec<Arc<LogRun>> {
    runs.iter().map(|run| Arc::clone(&run.run)).collect()
}

#[pymethods]
impl PyRowStore {
    #[new]
    fn new(
        layout: &PyRowsLayout,
        first_bucket: u32,
        end_bucket: u32,
        memory_bytes: usize,
    ) -> PyResult<Self> {
        let layout = Arc::clone(&layout.layout);
        Ok(Self {
            store: Mutex::new(RowStore::new(
                layout,
                first_bucket,
                end_bucket,
                memory_bytes,
            )?),
        })
    }

    fn restore(&self, py: Python<'_>, runs: Vec<PyRef<'_, PyLogRun>>) -> PyResult<()> {
        let runs = shared(&runs);
        self.with(py, |store| store.restore(runs))
    }

    fn append(&self, py: Python<'_>, encoded: PyArrowType<RecordBatch>) -> PyResult<()> {
        self.with(py, |store| store.append(&encoded.0))
    }

    #[pyo3(signature = (watermark_us, max_rows=65_536))]
    fn take_due(slf: Bound<'_, Self>, watermark_us: i64, max_rows: usize) -> PyResult<PyTake> {
        let take = slf
            .get()
            .with(slf.py(), |store| store.take_due(watermark_us, max_rows))?;
        Ok(PyTake {
            store: slf.unbind(),
            take: Mutex::new(take),
        })
    }

    #[getter]
    fn rows(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |store| Ok(store.rows()))
    }

    #[getter]
    fn sessions(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |store| Ok(store.sessions()))
    }

    #[getter]
    fn dirty_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |store| Ok(store.dirty_bytes()))
    }

    fn flush(&self, py: Python<'_>, writer: &PyPackWriter) -> PyResult<Option<(u64, u64, u64)>> {
        let written = self.with(py, |store| store.flush(&mut *lock(&writer.writer)?))?;
        Ok(written.map(|run| (run.offset, run.length, run.rows)))
    }

    fn add_pending(&self, py: Python<'_>, run: &PyLogRun) -> PyResult<()> {
        self.with(py, |store| store.add_pending(Arc::clone(&run.run)))
    }

    fn runs_in_use(&self, py: Python<'_>) -> PyResult<Vec<bool>> {
        self.with(py, |store| Ok(store.runs_in_use()))
    }

    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, RowStore::commit)
    }

    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, RowStore::abort)
    }

    fn replace(&self, py: Python<'_>, first: usize, count: usize, run: &PyLogRun) -> PyResult<()> {
        self.with(py, |store| {
            store.replace(first, count, Arc::clone(&run.run))
        })
    }

    fn runs(&self, py: Python<'_>) -> PyResult<Vec<PyLogRun>> {
        let runs = self.with(py, |store| Ok(store.runs()))?;
        Ok(runs.into_iter().map(|run| PyLogRun { run }).collect())
    }

    fn run_uses(&self, py: Python<'_>) -> PyResult<Vec<(u64, u64)>> {
        self.with(py, |store| Ok(store.run_uses()))
    }

    fn read_ahead(&self, py: Python<'_>, ratio: f64) -> PyResult<()> {
        py.detach(|| rewrite::maintain(&self.store, ratio, &[], None))?;
        Ok(())
    }

    fn rewrite(
        &self,
        py: Python<'_>,
        ratio: f64,
        runs: Vec<PyRef<'_, PyLogRun>>,
        writer: &PyPackWriter,
    ) -> PyResult<(u64, u64, u64)> {
        let runs = shared(&runs);
        let extent = py.detach(|| {
            let mut writer = lock(&writer.writer)?;
            rewrite::maintain(&self.store, ratio, &runs, Some(&mut writer))
        })?;
        Ok(extent.map_or((0, 0, 0), |run| (run.offset, run.length, run.rows)))
    }

    fn stats(&self, py: Python<'_>) -> PyResult<HashMap<&'static str, u64>> {
        let stats = self.with(py, |store| Ok(store.stats()))?;
        let counters = stats.counters;
        Ok(HashMap::from([
            ("rows", stats.rows),
            ("sessions", stats.sessions),
            ("memory_bytes", stats.memory_bytes),
            ("run_bytes", stats.run_bytes),
            ("live_bytes", stats.live_bytes),
            ("runs", stats.runs),
            ("gets", counters.gets),
            ("memory_hits", counters.memory_hits),
            (
                "disk_probes",
                counters.gets - counters.memory_hits - counters.ahead_hits,
            ),
            ("read_requests", counters.read_requests),
            ("read_wait_ns", counters.read_wait_ns),
            ("read_ahead", counters.ahead_reads),
            ("read_ahead_hits", counters.ahead_hits),
            ("read_ahead_evicted", counters.ahead_evicted),
            ("index_scans", counters.scans),
            ("read_bytes", counters.read_bytes),
            ("taken_bytes", counters.taken_bytes),
            ("rewritten_bytes", counters.rewritten_bytes),
        ]))
    }
}

/// What `SessionRowsStore.take_due` returns.
#[pyclass(name = "SessionRowsTake", module = "millpond._kernel", frozen)]
pub struct PyTake {
    store: Py<PyRowStore>,
    take: Mutex<Take>,
}

#[pymethods]
impl PyTake {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyArrowType<RecordBatch>>> {
        let store = self.store.get();
        let batch = store.with(py, |store| lock(&self.take)?.next(store))?;
        Ok(batch.map(PyArrowType))
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyRowsLayout>()?;
    module.add_class::<PyRowSorter>()?;
    module.add_class::<PyLogRun>()?;
    module.add_class::<PyRowStore>()
}
