//! A pack: one file that holds the runs of a batch or of a compaction.
//!
//! `header | run | run | ... | footer`. Header and footer carry the magic number and the format version; a file that
//! lacks its footer was never finished. Runs are found by the offsets that their writer returned, not by a listing.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::spent::in_files;

/// Version of the files this kernel writes and reads.
pub const FORMAT_VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"MPNDPACK";
const END_MAGIC: &[u8; 8] = b"KCAPDNPM";
const HEADER_BYTES: usize = 12;
/// runs u32, length u64, version u32, checksum u64, magic.
const FOOTER_BYTES: usize = 32;

/// Writes one pack through a buffer. Dropped before `finish`, it takes its file with it.
pub struct PackWriter {
    path: PathBuf,
    file: Option<File>,
    buffer: Vec<u8>,
    buffer_bytes: usize,
    written: u64,
    runs: u32,
}

impl PackWriter {
    pub fn create(path: impl Into<PathBuf>, buffer_bytes: usize) -> Result<Self> {
        let path = path.into();
        let name = path.display().to_string();
        // A leftover of a killed try may still be open for reading: give it up instead of writing over it.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io(name, error));
            }
            _ => {}
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|error| Error::io(name, error))?;
        let mut buffer = Vec::with_capacity(buffer_bytes.min(1 << 20));
        buffer.extend_from_slice(MAGIC);
        buffer.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        Ok(Self {
            path,
            file: Some(file),
            buffer,
            buffer_bytes,
            written: 0,
            runs: 0,
        })
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn open_file(&mut self) -> Result<&mut File> {
        let closed = Error::Invalid(format!(
            "{}: the pack is finished or discarded already",
            self.path.display()
        ));
        self.file.as_mut().ok_or(closed)
    }

    /// Where the next byte goes.
    pub fn offset(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.open_file()?;
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= self.buffer_bytes {
            self.flush()?;
        }
        Ok(())
    }

    /// Appends a range of another pack; the bytes do not pass through the program where the system can move them.
    pub fn copy(&mut self, source: &PackFile, offset: u64, length: u64) -> Result<()> {
        self.flush()?;
        let copied = source.copy_to(self.open_file()?, offset, length)?;
        self.written += copied;
        if copied != length {
            return Err(Error::damaged(
                &source.name,
                format!("ends before byte {}", offset + length),
            ));
        }
        Ok(())
    }

    pub fn count_run(&mut self) {
        self.runs += 1;
    }

    fn flush(&mut self) -> Result<()> {
        let name = self.name();
        let buffer = std::mem::take(&mut self.buffer);
        let file = self.open_file()?;
        in_files(|| file.write_all(&buffer)).map_err(|error| Error::io(name, error))?;
        self.written += buffer.len() as u64;
        self.buffer = buffer;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the footer, makes file and name durable, and returns the length. Without runs there is no file: 0.
    pub fn finish(&mut self) -> Result<u64> {
        self.open_file()?;
        if self.runs == 0 {
            self.discard()?;
            return Ok(0);
        }
        let length = self.offset() + FOOTER_BYTES as u64;
        let mut footer = Vec::with_capacity(FOOTER_BYTES);
        footer.extend_from_slice(&self.runs.to_le_bytes());
        footer.extend_from_slice(&length.to_le_bytes());
        footer.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        footer.extend_from_slice(&xxh3_64(&footer).to_le_bytes());
        footer.extend_from_slice(END_MAGIC);
        self.buffer.extend_from_slice(&footer);
        self.flush()?;
        let name = self.name();
        let path = self.path.clone();
        let file = self.open_file()?;
        in_files(|| file.sync_all().and_then(|()| sync_directory(&path)))
            .map_err(|error| Error::io(name, error))?;
        self.file = None;
        Ok(length)
    }

    /// Gives the pack up and removes its file.
    pub fn discard(&mut self) -> Result<()> {
        if self.file.take().is_some() {
            self.buffer = Vec::new();
            std::fs::remove_file(&self.path).map_err(|error| Error::io(self.name(), error))?;
        }
        Ok(())
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        // Best effort: what stays behind is never referred to.
        let _ = self.discard();
    }
}

fn sync_directory(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// A finished pack, open for reading.
pub struct PackFile {
    file: File,
    name: String,
    /// Where the footer begins.
    end: u64,
    /// Held by whoever uses the descriptor's position, which copies need.
    position: Mutex<()>,
}

type OpenPacks = HashMap<(u64, u64), Weak<PackFile>>;
/// A pack holds a run for each slice its batch changed: they share one descriptor, found by device and inode.
static OPEN: LazyLock<Mutex<OpenPacks>> = LazyLock::new(Mutex::default);

impl PackFile {
    pub fn open(path: &Path) -> Result<Arc<Self>> {
        let name = path.display().to_string();
        let io = |error| Error::io(&name, error);
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        let identity = (metadata.dev(), metadata.ino());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pack) = open.get(&identity).and_then(Weak::upgrade) {
            return Ok(pack);
        }
        let pack = Arc::new(Self::check(file, name, metadata.len())?);
        open.retain(|_, pack| pack.strong_count() > 0);
        open.insert(identity, Arc::downgrade(&pack));
        Ok(pack)
    }

    fn check(file: File, name: String, length: u64) -> Result<Self> {
        let Some(end) = length
            .checked_sub(FOOTER_BYTES as u64)
            .filter(|end| *end >= HEADER_BYTES as u64)
        else {
            return Err(Error::damaged(
                name,
                format!("{length} bytes are too few for a pack"),
            ));
        };
        let pack = Self {
            file,
            name,
            end,
            position: Mutex::new(()),
        };
        let mut header = [0; HEADER_BYTES];
        pack.read(0, &mut header)?;
        let damaged = |what: &str| Err(Error::damaged(&pack.name, what));
        if &header[..8] != MAGIC {
            return damaged("not a pack: its first bytes are not a pack's");
        }
        check_version(&pack.name, le_u32(&header, 8))?;
        let mut footer = [0; FOOTER_BYTES];
        pack.file
            .read_exact_at(&mut footer, end)
            .map_err(|error| Error::io(&pack.name, error))?;
        if &footer[24..] != END_MAGIC {
            return damaged(
                "the pack's footer is missing: the file was cut short or never finished",
            );
        }
        if le_u64(&footer, 16) != xxh3_64(&footer[..16]) {
            return damaged("the pack's footer does not match its checksum");
        }
        if le_u64(&footer, 4) != length {
            return damaged("the pack's length is not what its footer says");
        }
        Ok(pack)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if `offset .. offset + length` lies between header and footer.
    pub fn has_range(&self, offset: u64, length: u64) -> bool {
        offset >= HEADER_BYTES as u64
            && offset
                .checked_add(length)
                .is_some_and(|end| end <= self.end)
    }

    fn copy_to(&self, target: &mut File, offset: u64, length: u64) -> Result<u64> {
        let _position = self.position.lock().unwrap_or_else(PoisonError::into_inner);
        let mut source = &self.file;
        // Between files this is `copy_file_range` on Linux.
        source
            .seek(SeekFrom::Start(offset))
            .and_then(|_| std::io::copy(&mut source.take(length), target))
            .map_err(|error| Error::io(&self.name, error))
    }

    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        in_files(|| self.file.read_exact_at(into, offset)).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Error::damaged(
                &self.name,
                format!("ends before byte {}", offset + into.len() as u64),
            ),
            _ => Error::io(&self.name, error),
        })
    }
}

pub fn check_version(name: &str, found: u32) -> Result<()> {
    if found > FORMAT_VERSION {
        return Err(Error::NewerFormat {
            file: name.to_owned(),
            found,
            supported: FORMAT_VERSION,
        });
    }
    if found < FORMAT_VERSION {
        return Err(Error::damaged(
            name,
            format!("there is no format version {found}"),
        ));
    }
    Ok(())
}

/// The number at `at`; 0 out of bounds, which the checksums around every use rule out.
pub fn le_u32(bytes: &[u8], at: usize) -> u32 {
    let chunk = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>);
    chunk.map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

pub fn le_u64(bytes: &[u8], at: usize) -> u64 {
    let chunk = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>);
    chunk.map_or(0, |chunk| u64::from_le_bytes(*chunk))
}
