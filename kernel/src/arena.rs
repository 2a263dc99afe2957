//! Byte strings by number, in one allocation: the keys and values of groups under construction.

/// Rows of fixed width lie one after another; others have a span each, and may be replaced by longer ones.
#[derive(Debug)]
pub struct Arena {
    width: Option<usize>,
    bytes: Vec<u8>,
    spans: Vec<Span>,
    wasted: usize,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    length: usize,
}

/// Below this it is not worth moving rows together.
const LEAST_WASTE: usize = 1 << 20;

impl Arena {
    pub fn new(width: Option<usize>) -> Self {
        Self {
            width,
            bytes: Vec::new(),
            spans: Vec::new(),
            wasted: 0,
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.spans.capacity() * size_of::<Span>()
    }

    #[inline]
    pub fn get(&self, i: usize) -> &[u8] {
        match self.width {
            Some(width) => &self.bytes[i * width..(i + 1) * width],
            None => {
                let span = self.spans[i];
                &self.bytes[span.start..span.start + span.length]
            }
        }
    }

    /// The bytes of a row, to be changed in place.
    #[inline]
    pub fn get_mut(&mut self, i: usize) -> &mut [u8] {
        match self.width {
            Some(width) => &mut self.bytes[i * width..(i + 1) * width],
            None => {
                let span = self.spans[i];
                &mut self.bytes[span.start..span.start + span.length]
            }
        }
    }

    #[inline]
    pub fn push(&mut self, row: &[u8]) {
        if self.width.is_none() {
            self.spans.push(Span {
                start: self.bytes.len(),
                length: row.len(),
            });
        }
        self.bytes.extend_from_slice(row);
    }

    /// Appends rows of fixed width that lie one after another.
    pub fn extend(&mut self, rows: &[u8]) {
        debug_assert!(self.width.is_some());
        self.bytes.extend_from_slice(rows);
    }

    /// Puts other bytes in the place of a row whose width may vary.
    pub fn replace(&mut self, i: usize, row: &[u8]) {
        let old = self.spans[i];
        if row.len() <= old.length {
            self.bytes[old.start..old.start + row.len()].copy_from_slice(row);
            self.spans[i].length = row.len();
            self.wasted += old.length - row.len();
            return;
        }
        self.spans[i] = Span {
            start: self.bytes.len(),
            length: row.len(),
        };
        self.bytes.extend_from_slice(row);
        self.wasted += old.length;
        if self.wasted > LEAST_WASTE && self.wasted > self.bytes.len() / 2 {
            self.compact();
        }
    }

    fn compact(&mut self) {
        let mut bytes = Vec::with_capacity(self.bytes.len() - self.wasted);
        for span in &mut self.spans {
            let start = bytes.len();
            bytes.extend_from_slice(&self.bytes[span.start..span.start + span.length]);
            span.start = start;
        }
        self.bytes = bytes;
        self.wasted = 0;
    }

    /// All rows of a fixed width, one after another.
    pub fn into_rows(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_rows_keep_their_numbers_when_rows_move_together() {
        let mut arena = Arena::new(None);
        let row = |i: usize, round: usize| vec![i as u8; 100 + round * 50 + i % 7];
        (0..1000).for_each(|i| arena.push(&row(i, 0)));
        for round in 1..40 {
            (0..1000).for_each(|i| arena.replace(i, &row(i, round)));
        }
        arena.replace(5, b"short");
        for i in (0..1000).filter(|i| *i != 5) {
            assert_eq!(arena.get(i), row(i, 39));
        }
        assert_eq!(arena.get(5), b"short");
        assert!(arena.memory_bytes() < 10 << 20, "{}", arena.memory_bytes());
    }
}
