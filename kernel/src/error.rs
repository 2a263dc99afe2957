//! The kernel's error kinds, and which Python exception each becomes.

use std::fmt;

use arrow_schema::ArrowError;
use pyo3::PyErr;
use pyo3::exceptions::{PyArithmeticError, PyException, PyValueError};

mod python {
    #![allow(missing_docs)]
    use super::{PyArithmeticError, PyException};

    pyo3::create_exception!(
        millpond._kernel,
        KernelError,
        PyException,
        "Bad bytes or a failed read; the message names the file."
    );
    pyo3::create_exception!(
        millpond._kernel,
        DamagedFile,
        KernelError,
        "Bytes that are not what was written."
    );
    pyo3::create_exception!(
        millpond._kernel,
        NewerFormat,
        KernelError,
        "A file of another format version."
    );
    pyo3::create_exception!(
        millpond._kernel,
        Overflow,
        PyArithmeticError,
        "An integer sum left the range of int64."
    );
}
pub use python::{DamagedFile, KernelError, NewerFormat, Overflow};

/// What can go wrong in the kernel.
#[derive(Debug)]
pub enum Error {
    /// Bytes that are not what was written; `file` names where they lie.
    Damaged { file: String, what: String },
    /// A file of a format version that this kernel does not read.
    NewerFormat {
        file: String,
        found: u32,
        supported: u32,
    },
    /// A sum left the range of its type.
    Overflow(String),
    /// An argument that does not fit: a layout, a schema, a batch.
    Invalid(String),
    /// The operating system refused a read or write.
    Io {
        file: String,
        source: std::io::Error,
    },
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn damaged(file: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Damaged {
            file: file.into(),
            what: what.into(),
        }
    }

    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid(what.into())
    }

    pub fn io(file: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io {
            file: file.into(),
            source,
        }
    }

    /// Names the file when the error arose while its rows were merged or decoded.
    pub fn in_file(self, name: &str) -> Self {
        match self {
            Self::Damaged { what, .. } => Self::damaged(name, what),
            other => other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { file, what } => write!(f, "{file}: {what}"),
            Self::NewerFormat {
                file,
                found,
                supported,
            } => write!(
                f,
                "{file}: written in format version {found}, this kernel reads version {supported}"
            ),
            Self::Overflow(what) | Self::Invalid(what) => f.write_str(what),
            Self::Io { file, source } => write!(f, "{file}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Damaged { .. } => DamagedFile::new_err(message),
            Error::NewerFormat { .. } => NewerFormat::new_err(message),
            Error::Overflow(_) => Overflow::new_err(message),
            Error::Invalid(_) => PyValueError::new_err(message),
            Error::Io { .. } => KernelError::new_err(message),
        }
    }
}
