//! Millpond's kernel: what runs once per record or byte. Arrow batches go in and out; the GIL is released inside.

pub mod aggregate;
pub mod arena;
pub mod codec;
pub mod combiner;
pub mod encoded;
pub mod error;
pub mod hash;
pub mod index;
pub mod key;
pub mod layout;
pub mod py;
pub mod time;

use pyo3::prelude::*;

#[pymodule]
fn _kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    py::register(module)
}
