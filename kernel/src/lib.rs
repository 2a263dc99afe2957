//! Millpond's kernel: what runs once per record or byte. Arrow batches go in and out; the GIL is released inside.

pub mod aggregate;
pub mod arena;
pub mod aur;
pub mod blob;
pub mod codec;
pub mod combiner;
pub mod counted;
pub mod cursor;
pub mod dedup;
pub mod distinct;
pub mod encoded;
pub mod error;
pub mod filter;
pub mod groups;
pub mod hash;
pub mod index;
pub mod join;
pub mod key;
pub mod layout;
pub mod lookup;
pub mod merge;
pub mod nexmark;
pub mod pack;
pub mod py;
pub mod py_aur;
pub mod py_join;
pub mod py_nexmark;
pub mod py_store;
mod raw;
pub mod router;
pub mod rows;
pub mod run;
pub mod run_format;
pub mod run_writer;
pub mod scan;
pub mod session;
pub mod session_firing;
pub mod shards;
pub mod slice;
pub mod sort;
pub mod spent;
pub mod store;
pub mod table;
pub mod time;

use pyo3::prelude::*;

#[pymodule]
fn _kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    py::register(module)?;
    py_store::register(module)?;
    py_aur::register(module)?;
    py_join::register(module)?;
    py_nexmark::register(module)
}
