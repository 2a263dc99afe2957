//! Packs, runs and stores as Python sees them. Every call takes its object's lock with the GIL released: a call from
//! a second thread waits for the first.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow_array::{Array, RecordBatch};
use arrow_data::ArrayData;
use arrow_pyarrow::PyArrowType;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::blob;
use crate::error::{Error, Result};
use crate::merge;
use crate::pack::{FORMAT_VERSION, PackWriter};
use crate::py::PyLayout;
use crate::rows::{HashRange, RowShape};
use crate::run::Run;
use crate::scan::{Scan, ScanSpec};
use crate::session_firing::SessionFiring;
use crate::slice::Change;
use crate::spent::{in_files_ns, wait_before_read};
use crate::store::{Stats, Store};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    // A call that died half way leaves state nobody should build on.
    mutex.lock().map_err(|_: PoisonError<_>| {
        Error::invalid("an earlier call on this object failed half way")
    })
}

#[pyclass(name = "PackWriter", module = "millpond._kernel", frozen)]
pub struct PyPackWriter {
    pub(crate) writer: Mutex<PackWriter>,
}

#[pymethods]
impl PyPackWriter {
    #[new]
    #[pyo3(signature = (path, buffer_bytes=1 << 20))]
    fn new(py: Python<'_>, path: PathBuf, buffer_bytes: usize) -> PyResult<Self> {
        let writer = py.detach(|| PackWriter::create(path, buffer_bytes))?;
        Ok(Self {
            writer: Mutex::new(writer),
        })
    }

    fn append(&self, py: Python<'_>, bytes: &[u8]) -> PyResult<(u64, u64)> {
        Ok(py.detach(|| blob::append(&mut *lock(&self.writer)?, bytes))?)
    }

    fn finish(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| lock(&self.writer)?.finish())?)
    }

    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| lock(&self.writer)?.discard())?)
    }
}

#[pyclass(name = "Run", module = "millpond._kernel", frozen)]
pub struct PyRun {
    pub(crate) run: Arc<Run>,
}

#[pymethods]
impl PyRun {
    #[staticmethod]
    #[pyo3(signature = (layout, path, offset, length, read_delay_us=0))]
    fn open(
        py: Python<'_>,
        layout: &PyLayout,
        path: PathBuf,
        offset: u64,
        length: u64,
        read_delay_us: u64,
    ) -> PyResult<Self> {
        let layout = &layout.layout;
        let open = || {
            Run::open(
                RowShape::of(layout),
                layout.fingerprint(),
                &path,
                offset,
                length,
            )
        };
        Ok(Self {
            run: Arc::new(
                py.detach(open)?
                    .with_read_delay(Duration::from_micros(read_delay_us)),
            ),
        })
    }

    #[getter]
    fn rows(&self) -> u64 {
        self.run.rows()
    }

    #[getter]
    fn length(&self) -> u64 {
        self.run.length()
    }

    #[getter]
    fn memory_bytes(&self) -> usize {
        self.run.memory_bytes()
    }
}

pub(crate) fn shared(runs: Vec<PyRef<'_, PyRun>>) -> Vec<Arc<Run>> {
    runs.iter().map(|run| Arc::clone(&run.run)).collect()
}

pub(crate) fn figures(stats: Stats) -> HashMap<&'static str, u64> {
    HashMap::from([
        ("rows", stats.rows),
        ("memory_bytes", stats.memory_bytes),
        ("run_bytes", stats.run_bytes),
        ("live_bytes", stats.live_bytes),
        ("runs", stats.runs),
        ("gets", stats.counters.gets),
        ("memory_hits", stats.counters.memory_hits),
        ("filter_negatives", stats.counters.filter_negatives),
        ("disk_probes", stats.counters.disk_probes),
        ("block_reads", stats.counters.block_reads),
        ("read_requests", stats.counters.read_requests),
        ("read_wait_ns", stats.counters.read_wait_ns),
        ("false_positives", stats.counters.false_positives),
        ("read_bytes", stats.counters.read_bytes),
        ("lookup_ns", stats.counters.lookup_ns),
        ("removal_ns", stats.counters.removal_ns),
    ])
}

#[pyfunction]
#[pyo3(signature = (path, offset, length, read_delay_us=0))]
fn read_blob<'py>(
    py: Python<'py>,
    path: PathBuf,
    offset: u64,
    length: u64,
    read_delay_us: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = py.detach(|| {
        wait_before_read(Duration::from_micros(read_delay_us));
        blob::read(&path, offset, length)
    })?;
    Ok(PyBytes::new(py, &bytes))
}

#[pyfunction]
fn merge_runs(
    py: Python<'_>,
    layout: &PyLayout,
    runs: Vec<PyRef<'_, PyRun>>,
    writer: &PyPackWriter,
    first_bucket: u32,
    end_bucket: u32,
    whole: bool,
) -> PyResult<(u64, u64, u64)> {
    let layout = &layout.layout;
    let runs = shared(runs);
    let extent = py.detach(|| {
        let range = HashRange::of_buckets(first_bucket, end_bucket)?;
        let mut writer = lock(&writer.writer)?;
        merge::merge_runs(
            RowShape::of(layout),
            layout.fingerprint(),
            &runs,
            &mut writer,
            range,
            whole,
        )
    })?;
    Ok((extent.offset, extent.length, extent.rows))
}

#[pyclass(name = "Store", module = "millpond._kernel", frozen)]
pub struct PyStore {
    store: Mutex<Store>,
}

impl PyStore {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Store) -> Result<T> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| work(&mut *lock(&self.store)?))?)
    }
}

#[pymethods]
impl PyStore {
    #[new]
    fn new(
        layout: &PyLayout,
        first_bucket: u32,
        end_bucket: u32,
        memory_bytes: usize,
    ) -> PyResult<Self> {
        let store = Store::new(
            Arc::clone(&layout.layout),
            first_bucket,
            end_bucket,
            memory_bytes,
        )?;
        Ok(Self {
            store: Mutex::new(store),
        })
    }

    fn restore(
        &self,
        py: Python<'_>,
        slice: i64,
        rows: u64,
        runs: Vec<PyRef<'_, PyRun>>,
    ) -> PyResult<()> {
        let runs = shared(runs);
        self.with(py, |store| store.restore(slice, rows, runs))
    }

    fn merge(&self, py: Python<'_>, encoded: PyArrowType<RecordBatch>) -> PyResult<()> {
        self.with(py, |store| store.change(&encoded.0, Change::Merge))
    }

    fn count(
        &self,
        py: Python<'_>,
        encoded: PyArrowType<RecordBatch>,
        rows: u64,
    ) -> PyResult<Vec<PyArrowType<RecordBatch>>> {
        let full = self.with(py, |store| store.count(&encoded.0, rows))?;
        Ok(full.into_iter().map(PyArrowType).collect())
    }

    fn put(&self, py: Python<'_>, encoded: PyArrowType<RecordBatch>) -> PyResult<()> {
        self.with(py, |store| store.change(&encoded.0, Change::Put))
    }

    fn delete(&self, py: Python<'_>, encoded: PyArrowType<RecordBatch>) -> PyResult<()> {
        self.with(py, |store| store.change(&encoded.0, Change::Delete))
    }

    #[pyo3(signature = (encoded, main=None))]
    fn insert(
        &self,
        py: Python<'_>,
        encoded: PyArrowType<RecordBatch>,
        main: Option<i64>,
    ) -> PyResult<PyArrowType<ArrayData>> {
        let is_new = self.with(py, |store| store.insert(&encoded.0, main))?;
        Ok(PyArrowType(is_new.to_data()))
    }

    fn forget(&self, py: Python<'_>, slice: i64, main: i64, expired_at_us: i64) -> PyResult<u64> {
        self.with(py, |store| store.forget(slice, main, expired_at_us))
    }

    fn get(
        &self,
        py: Python<'_>,
        encoded: PyArrowType<RecordBatch>,
    ) -> PyResult<(PyArrowType<RecordBatch>, PyArrowType<ArrayData>)> {
        let (groups, exist) = self.with(py, |store| store.get(&encoded.0))?;
        Ok((PyArrowType(groups), PyArrowType(exist.to_data())))
    }

    fn slices(&self, py: Python<'_>) -> PyResult<Vec<(i64, u64)>> {
        self.with(py, |store| Ok(store.slices()))
    }

    fn touched_slices(&self, py: Python<'_>) -> PyResult<Vec<i64>> {
        self.with(py, |store| Ok(store.touched_slices()))
    }

    #[pyo3(signature = (slices, touched_only=false, expired_at_us=None, max_rows=65_536))]
    fn scan(
        slf: Bound<'_, Self>,
        slices: Vec<i64>,
        touched_only: bool,
        expired_at_us: Option<i64>,
        max_rows: usize,
    ) -> PyResult<PyScan> {
        let spec = ScanSpec {
            slices,
            touched_only,
            expired_at_us,
            max_rows,
        };
        let scan = slf.get().with(slf.py(), |store| Scan::begin(store, spec))?;
        Ok(PyScan {
            store: slf.unbind(),
            scan: Mutex::new(scan),
        })
    }

    #[pyo3(signature = (watermark_us, max_rows=65_536))]
    fn close_sessions(
        slf: Bound<'_, Self>,
        watermark_us: i64,
        max_rows: usize,
    ) -> PyResult<PySessionFiring> {
        let begin = |store: &mut Store| SessionFiring::begin(store, watermark_us, max_rows);
        let firing = slf.get().with(slf.py(), begin)?;
        Ok(PySessionFiring {
            store: slf.unbind(),
            firing: Mutex::new(firing),
        })
    }

    fn delete_expired(&self, py: Python<'_>, slice: i64, expired_at_us: i64) -> PyResult<u64> {
        self.with(py, |store| store.delete_expired(slice, expired_at_us))
    }

    #[pyo3(name = "drop")]
    fn drop_slice(&self, py: Python<'_>, slice: i64) -> PyResult<()> {
        self.with(py, |store| {
            store.drop_slice(slice);
            Ok(())
        })
    }

    fn flush(&self, py: Python<'_>, writer: &PyPackWriter) -> PyResult<Vec<(i64, u64, u64, u64)>> {
        let written = self.with(py, |store| store.flush(&mut *lock(&writer.writer)?))?;
        let written = written.into_iter();
        Ok(written
            .map(|(slice, run)| (slice, run.offset, run.length, run.rows))
            .collect())
    }

    #[getter]
    fn dirty_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |store| Ok(store.dirty_bytes()))
    }

    fn add_pending(&self, py: Python<'_>, slice: i64, run: &PyRun) -> PyResult<()> {
        self.with(py, |store| store.add_pending(slice, Arc::clone(&run.run)))
    }

    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Store::commit)
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
        slice: i64,
        first: usize,
        count: usize,
        run: &PyRun,
    ) -> PyResult<bool> {
        self.with(py, |store| {
            store.replace(slice, first, count, Arc::clone(&run.run))
        })
    }

    fn runs(&self, py: Python<'_>, slice: i64) -> PyResult<Vec<PyRun>> {
        let runs = self.with(py, |store| Ok(store.runs(slice)?.to_vec()))?;
        Ok(runs.into_iter().map(|run| PyRun { run }).collect())
    }

    fn run_lengths(&self, py: Python<'_>, slice: i64) -> PyResult<Vec<(u64, u64)>> {
        let runs = self.with(py, |store| Ok(store.runs(slice)?.to_vec()))?;
        Ok(runs.iter().map(|run| (run.length(), run.rows())).collect())
    }

    fn slice_stats(&self, py: Python<'_>, slice: i64) -> PyResult<HashMap<&'static str, u64>> {
        let stats = self.with(py, |store| store.slice_stats(slice))?;
        Ok(HashMap::from([
            ("rows", stats.rows),
            ("live_bytes", stats.live_bytes),
            ("run_bytes", stats.run_bytes),
            ("runs", stats.runs),
            ("vain_ns", stats.vain_ns),
        ]))
    }

    #[getter]
    fn spent_ns(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.with(py, |store| Ok(store.spent_ns()))
    }

    fn stats(&self, py: Python<'_>) -> PyResult<HashMap<&'static str, u64>> {
        Ok(figures(self.with(py, |store| Ok(store.stats()))?))
    }
}

/// What `Store.scan` returns.
#[pyclass(name = "Scan", module = "millpond._kernel", frozen)]
pub struct PyScan {
    store: Py<PyStore>,
    scan: Mutex<Scan>,
}

#[pymethods]
impl PyScan {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyArrowType<RecordBatch>>> {
        let batch = self
            .store
            .get()
            .with(py, |store| lock(&self.scan)?.next(store))?;
        Ok(batch.map(PyArrowType))
    }
}

/// What the calling thread has spent in the kernel's calls to the file system.
#[pyfunction]
fn thread_files_ns() -> u64 {
    in_files_ns()
}

/// What `Store.close_sessions` returns.
#[pyclass(name = "SessionFiring", module = "millpond._kernel", frozen)]
pub struct PySessionFiring {
    store: Py<PyStore>,
    firing: Mutex<SessionFiring>,
}

#[pymethods]
impl PySessionFiring {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyArrowType<RecordBatch>>> {
        let batch = self
            .store
            .get()
            .with(py, |store| lock(&self.firing)?.next(store))?;
        Ok(batch.map(PyArrowType))
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("FORMAT_VERSION", FORMAT_VERSION)?;
    module.add_class::<PyPackWriter>()?;
    module.add_class::<PyRun>()?;
    module.add_class::<PyStore>()?;
    module.add_function(wrap_pyfunction!(read_blob, module)?)?;
    module.add_function(wrap_pyfunction!(thread_files_ns, module)?)?;
    module.add_function(wrap_pyfunction!(merge_runs, module)?)
}
