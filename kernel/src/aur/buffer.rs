//! The write buffer: rows of the running batch that are not flushed yet, each in the list of its session.

use crate::aur::bounds::Bounds;
use crate::aur::sessions::NONE;

/// The rows of one session that are not flushed yet.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub slot: u32,
    pub rows: u32,
    pub bounds: Bounds,
    head: u32,
    tail: u32,
    joined: bool,
}

pub struct Buffer {
    width: Option<usize>,
    bytes: Vec<u8>,
    /// Where each row ends, where they are not of one width.
    ends: Vec<usize>,
    /// The next row of the same session, for each row.
    next: Vec<u32>,
    windows: Vec<Window>,
}

impl Buffer {
    pub fn new(width: Option<usize>) -> Self {
        Self {
            width,
            bytes: Vec::new(),
            ends: Vec::new(),
            next: Vec::new(),
            windows: Vec::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.next.is_empty()
    }

    pub fn windows(&self) -> &[Window] {
        &self.windows
    }

    pub fn window(&self, buffer: u32) -> &Window {
        &self.windows[buffer as usize]
    }

    pub fn has_room(&self, more: usize) -> bool {
        self.next.len() + more < NONE as usize
    }

    /// Appends a row to the session's window, or to a new one, and returns which.
    pub fn append(&mut self, buffer: u32, slot: u32, bounds: Bounds, value: &[u8]) -> u32 {
        let row = self.next.len() as u32;
        self.bytes.extend_from_slice(value);
        if self.width.is_none() {
            self.ends.push(self.bytes.len());
        }
        self.next.push(NONE);
        if buffer == NONE {
            self.windows.push(Window {
                slot,
                rows: 1,
                bounds,
                head: row,
                tail: row,
                joined: false,
            });
            return self.windows.len() as u32 - 1;
        }
        let window = &mut self.windows[buffer as usize];
        self.next[window.tail as usize] = row;
        window.tail = row;
        window.rows += 1;
        window.bounds.unite(&bounds);
        buffer
    }

    /// Puts one window's rows to another's; returns where they all are.
    pub fn join(&mut self, into: u32, from: u32, slot: u32) -> u32 {
        if from == NONE {
            return into;
        }
        if into == NONE {
            self.windows[from as usize].slot = slot;
            return from;
        }
        let gone = self.windows[from as usize];
        self.windows[from as usize].rows = 0;
        let window = &mut self.windows[into as usize];
        self.next[window.tail as usize] = gone.head;
        window.tail = gone.tail;
        window.joined = true;
        window.rows += gone.rows;
        window.bounds.unite(&gone.bounds);
        into
    }

    fn row(&self, row: u32) -> &[u8] {
        let row = row as usize;
        match self.width {
            Some(width) => &self.bytes[row * width..(row + 1) * width],
            None => {
                let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
                &self.bytes[start..self.ends[row]]
            }
        }
    }

    /// Calls `visit` with the rows of a window in the order in which they came.
    pub fn each_row<'a>(&'a self, buffer: u32, mut visit: impl FnMut(&'a [u8])) {
        let window = &self.windows[buffer as usize];
        let mut row = window.head;
        if !window.joined {
            for _ in 0..window.rows {
                visit(self.row(row));
                row = self.next[row as usize];
            }
            return;
        }
        // Windows that were joined lie one behind the other.
        let mut order = Vec::with_capacity(window.rows as usize);
        for _ in 0..window.rows {
            order.push(row);
            row = self.next[row as usize];
        }
        order.sort_unstable();
        order.into_iter().for_each(|row| visit(self.row(row)));
    }

    /// Bytes that a flush would write, about.
    pub fn bytes(&self) -> u64 {
        let per_window = 32 * self.windows.len();
        (self.bytes.len() + per_window + size_of::<usize>() * self.ends.len()) as u64
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.ends.capacity() * size_of::<usize>()
            + self.next.capacity() * size_of::<u32>()
            + self.windows.capacity() * size_of::<Window>()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.next.clear();
        self.windows.clear();
    }
}
