//! Millpond's kernel: what runs once per record or byte. Arrow batches go in and out; the GIL is released inside.

use pyo3::prelude::*;

#[pymodule]
fn _kernel(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
