//! The NEXMark generator as Python sees it.

use arrow_array::RecordBatch;
use arrow_pyarrow::PyArrowType;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{Error, Result};
use crate::nexmark::{Column, Config, Kind, Settings, batch, json_lines, text_lines};

#[pyclass(name = "Nexmark", module = "millpond._kernel", frozen)]
pub struct PyNexmark {
    config: Config,
}

#[pymethods]
impl PyNexmark {
    #[new]
    #[pyo3(signature = (*, events_per_second=None, base_time_ms=None, out_of_order_group=None,
        hot_auction_ratio=None, hot_seller_ratio=None, hot_bidder_ratio=None, hot_auction_interval=None,
        hot_seller_interval=None, hot_bidder_interval=None, in_flight_auctions=None, active_people=None,
        person_bytes=None, auction_bytes=None, bid_bytes=None))]
    #[allow(clippy::too_many_arguments)] // they are keywords in Python
    fn new(
        events_per_second: Option<u64>,
        base_time_ms: Option<i64>,
        out_of_order_group: Option<u64>,
        hot_auction_ratio: Option<i32>,
        hot_seller_ratio: Option<i32>,
        hot_bidder_ratio: Option<i32>,
        hot_auction_interval: Option<u64>,
        hot_seller_interval: Option<u64>,
        hot_bidder_interval: Option<u64>,
        in_flight_auctions: Option<u64>,
        active_people: Option<u64>,
        person_bytes: Option<usize>,
        auction_bytes: Option<usize>,
        bid_bytes: Option<usize>,
    ) -> PyResult<Self> {
        let usual = Settings::default();
        let settings = Settings {
            events_per_second: events_per_second.unwrap_or(usual.events_per_second),
            base_time_ms: base_time_ms.unwrap_or(usual.base_time_ms),
            out_of_order_group: out_of_order_group.unwrap_or(usual.out_of_order_group),
            hot_auction_ratio: hot_auction_ratio.unwrap_or(usual.hot_auction_ratio),
            hot_seller_ratio: hot_seller_ratio.unwrap_or(usual.hot_seller_ratio),
            hot_bidder_ratio: hot_bidder_ratio.unwrap_or(usual.hot_bidder_ratio),
            hot_auction_interval: hot_auction_interval.unwrap_or(usual.hot_auction_interval),
            hot_seller_interval: hot_seller_interval.unwrap_or(usual.hot_seller_interval),
            hot_bidder_interval: hot_bidder_interval.unwrap_or(usual.hot_bidder_interval),
            in_flight_auctions: in_flight_auctions.unwrap_or(usual.in_flight_auctions),
            active_people: active_people.unwrap_or(usual.active_people),
            person_bytes: person_bytes.unwrap_or(usual.person_bytes),
            auction_bytes: auction_bytes.unwrap_or(usual.auction_bytes),
            bid_bytes: bid_bytes.unwrap_or(usual.bid_bytes),
        };
        Ok(Self {
            config: Config::new(settings)?,
        })
    }

    #[pyo3(signature = (first, count, *, kinds=None, columns=None))]
    fn batch(
        &self,
        py: Python<'_>,
        first: u64,
        count: u64,
        kinds: Option<Vec<String>>,
        columns: Option<Vec<String>>,
    ) -> PyResult<PyArrowType<RecordBatch>> {
        let kinds = named("kind", kinds, &Kind::ALL, Kind::name)?;
        let columns = named("column", columns, &Column::ALL, Column::name)?;
        let made = py.detach(|| batch(&self.config, first, count, &kinds, &columns))?;
        Ok(PyArrowType(made))
    }

    #[pyo3(signature = (first, count, *, kinds=None))]
    fn json_lines(
        &self,
        py: Python<'_>,
        first: u64,
        count: u64,
        kinds: Option<Vec<String>>,
    ) -> PyResult<PyArrowType<RecordBatch>> {
        let kinds = named("kind", kinds, &Kind::ALL, Kind::name)?;
        let made = py.detach(|| json_lines(&self.config, first, count, &kinds))?;
        Ok(PyArrowType(made))
    }

    fn text_lines<'py>(
        &self,
        py: Python<'py>,
        first: u64,
        count: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let made = py.detach(|| text_lines(&self.config, first, count))?;
        Ok(PyBytes::new(py, &made))
    }
}

/// The values that the names stand for, each once; all of them when no names are given.
fn named<T: Copy + PartialEq>(
    what: &str,
    names: Option<Vec<String>>,
    all: &[T],
    name_of: fn(T) -> &'static str,
) -> Result<Vec<T>> {
    let Some(names) = names else {
        return Ok(all.to_vec());
    };
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let Some(value) = all.iter().find(|value| name_of(**value) == name) else {
            let known: Vec<_> = all.iter().map(|value| name_of(*value)).collect();
            return Err(Error::invalid(format!(
                "there is no {what} {name:?}; there are {}",
                known.join(", ")
            )));
        };
        if found.contains(value) {
            return Err(Error::invalid(format!("{what} {name:?} is named twice")));
        }
        found.push(*value);
    }
    if found.is_empty() {
        return Err(Error::invalid(format!("name at least one {what}")));
    }
    Ok(found)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyNexmark>()
}
