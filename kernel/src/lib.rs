//! Millpond's kernel: what runs once per record or byte. Arrow batches go in and out; the GIL is released inside.

pub mod aggregate;
pub mod codec;
pub mod encoded;
pub mod error;
pub mod hash;
pub mod index;
pub mod layout;
pub mod time;

use pyo3::prelude::*;

#[pymodule]
fn _kernel(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
