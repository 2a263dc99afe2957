//! Layouts and combiners as Python sees them.

use std::sync::Arc;

use arrow_array::{Array, RecordBatch};
use arrow_data::ArrayData;
use arrow_pyarrow::PyArrowType;
use arrow_schema::Schema;
use pyo3::prelude::*;

use crate::combiner::Combiner;
use crate::distinct::{Distinct, Late, Timers};
use crate::error::{DamagedFile, Error, KernelError, NewerFormat, Overflow};
use crate::hash::BUCKETS;
use crate::layout::{AggregateSpec, Layout};
use crate::router::Router;
use crate::time::Time;

#[pyclass(name = "Layout", module = "millpond._kernel", frozen)]
pub struct PyLayout {
    pub layout: Arc<Layout>,
}

#[pymethods]
impl PyLayout {
    #[new]
    #[pyo3(signature = (input, keys, aggregates, panes=None, keyed_time=None, sessions=None))]
    fn new(
        input: PyArrowType<Schema>,
        keys: usize,
        aggregates: Vec<AggregateSpec>,
        panes: Option<(usize, i64, i64, i64)>,
        keyed_time: Option<(usize, i64)>,
        sessions: Option<(usize, usize, i64)>,
    ) -> PyResult<Self> {
        let time = match (panes, keyed_time, sessions) {
            (None, None, None) => Time::None,
            (Some((column, size, slide, offset)), None, None) => Time::Panes {
                column,
                size,
                slide,
                offset,
            },
            (None, Some((column, slice)), None) => Time::Keyed { column, slice },
            (None, None, Some((start, end, timer))) => Time::Sessions { start, end, timer },
            _ => return Err(Error::invalid("a layout has one kind of time").into()),
        };
        let layout = Layout::new(Arc::new(input.0), keys, &aggregates, time)?;
        Ok(Self {
            layout: Arc::new(layout),
        })
    }

    #[getter]
    fn output_schema(&self) -> PyArrowType<Schema> {
        PyArrowType(self.layout.output_schema().as_ref().clone())
    }

    #[getter]
    fn encoded_schema(&self) -> PyArrowType<Schema> {
        PyArrowType(self.layout.encoded_schema().as_ref().clone())
    }

    fn identity(&self) -> PyResult<PyArrowType<RecordBatch>> {
        Ok(PyArrowType(self.layout.identity()?))
    }
}

#[pyclass(name = "Combiner", module = "millpond._kernel")]
pub struct PyCombiner {
    combiner: Combiner,
}

#[pymethods]
impl PyCombiner {
    #[new]
    #[pyo3(signature = (layout, shard_starts, late_before_us=None, weight=None, apart=false))]
    fn new(
        layout: &PyLayout,
        shard_starts: Vec<u32>,
        late_before_us: Option<i64>,
        weight: Option<usize>,
        apart: bool,
    ) -> PyResult<Self> {
        let layout = Arc::clone(&layout.layout);
        let combiner = Combiner::new(layout, &shard_starts, late_before_us)?;
        let combiner = match weight {
            Some(column) => combiner.weighted_by(column)?,
            None => combiner,
        };
        let combiner = if apart { combiner.apart() } else { combiner };
        Ok(Self { combiner })
    }

    fn push(&mut self, py: Python<'_>, batch: PyArrowType<RecordBatch>) -> PyResult<()> {
        Ok(py.detach(|| self.combiner.push(&batch.0))?)
    }

    fn drain(&mut self, py: Python<'_>) -> PyResult<Vec<(usize, PyArrowType<RecordBatch>)>> {
        let drained = py.detach(|| self.combiner.drain())?;
        let batches = drained.into_iter();
        Ok(batches
            .map(|(shard, batch)| (shard, PyArrowType(batch)))
            .collect())
    }

    #[getter]
    fn rows(&self) -> u64 {
        self.combiner.rows()
    }

    #[getter]
    fn late_rows(&self) -> u64 {
        self.combiner.late_rows()
    }

    #[getter]
    fn memory_bytes(&self) -> usize {
        self.combiner.memory_bytes()
    }
}

/// Shard, slice, numbers of rows, hashes of their keys.
type PyRoute = (usize, i64, PyArrowType<ArrayData>, PyArrowType<ArrayData>);

#[pyclass(name = "Router", module = "millpond._kernel")]
pub struct PyRouter {
    router: Router,
}

#[pymethods]
impl PyRouter {
    #[new]
    #[pyo3(signature = (layout, shard_starts, late_before_us=None))]
    fn new(
        layout: &PyLayout,
        shard_starts: Vec<u32>,
        late_before_us: Option<i64>,
    ) -> PyResult<Self> {
        let layout = Arc::clone(&layout.layout);
        let router = Router::new(layout, &shard_starts, late_before_us)?;
        Ok(Self { router })
    }

    fn route(&mut self, py: Python<'_>, batch: PyArrowType<RecordBatch>) -> PyResult<Vec<PyRoute>> {
        let routes = py.detach(|| self.router.route(&batch.0))?;
        Ok(routes
            .into_iter()
            .map(|route| {
                (
                    route.shard,
                    route.slice,
                    PyArrowType(route.rows.into_data()),
                    PyArrowType(route.hashes.into_data()),
                )
            })
            .collect())
    }

    #[getter]
    fn rows(&self) -> u64 {
        self.router.rows()
    }

    #[getter]
    fn late_rows(&self) -> u64 {
        self.router.late_rows()
    }
}

#[pyclass(name = "Distinct", module = "millpond._kernel")]
pub struct PyDistinct {
    distinct: Distinct,
}

/// Shard, numbers of rows, encoded keys.
type FirstRows = (usize, PyArrowType<ArrayData>, PyArrowType<RecordBatch>);

#[pymethods]
impl PyDistinct {
    #[new]
    #[pyo3(signature = (layout, shard_starts, late=None, timers=None))]
    fn new(
        layout: &PyLayout,
        shard_starts: Vec<u32>,
        late: Option<(usize, i64)>,
        timers: Option<(usize, i64)>,
    ) -> PyResult<Self> {
        let layout = Arc::clone(&layout.layout);
        let late = late.map(|(column, before)| Late { column, before });
        let timers = timers.map(|(column, slice)| Timers { column, slice });
        let distinct = Distinct::new(layout, &shard_starts, late, timers)?;
        Ok(Self { distinct })
    }

    fn push(
        &mut self,
        py: Python<'_>,
        batch: PyArrowType<RecordBatch>,
    ) -> PyResult<Vec<FirstRows>> {
        let found = py.detach(|| self.distinct.push(&batch.0))?;
        let found = found.into_iter().map(|first| {
            let rows = PyArrowType(first.rows.into_data());
            (first.shard, rows, PyArrowType(first.encoded))
        });
        Ok(found.collect())
    }

    fn clear(&mut self) {
        self.distinct.clear();
    }

    #[getter]
    fn rows(&self) -> u64 {
        self.distinct.rows()
    }

    #[getter]
    fn late_rows(&self) -> u64 {
        self.distinct.late_rows()
    }

    #[getter]
    fn memory_bytes(&self) -> usize {
        self.distinct.memory_bytes()
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("BUCKETS", BUCKETS)?;
    module.add("KernelError", py.get_type::<KernelError>())?;
    module.add("DamagedFile", py.get_type::<DamagedFile>())?;
    module.add("NewerFormat", py.get_type::<NewerFormat>())?;
    module.add("Overflow", py.get_type::<Overflow>())?;
    module.add_class::<PyLayout>()?;
    module.add_class::<PyCombiner>()?;
    module.add_class::<PyRouter>()?;
    module.add_class::<PyDistinct>()
}
