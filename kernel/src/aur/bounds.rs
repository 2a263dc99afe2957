//! From when to when rows reach, be they one, those of an index entry or those of a session.

/// A session lasts from its start to the last end. By the ends of its rows it is told from the key's sessions that were
/// given out: those had all ended then, and rows whose own session had ended too came too late. The starts would not do,
/// as a row that waits for long may reach back over what was given out.
///
/// Of a window of so many rows, times are the numbers of rows among all of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The smallest timestamp.
    pub start: i64,
    /// The smallest and the largest end of the rows' own sessions.
    pub first: i64,
    pub last: i64,
}

impl Bounds {
    /// Of one row.
    pub fn of_row(start: i64, end: i64) -> Self {
        Self {
            start,
            first: end,
            last: end,
        }
    }

    /// Of all rows from one number on.
    pub fn of_numbers(first: i64, count: u32) -> Self {
        Self {
            start: first,
            first,
            last: first + i64::from(count) - 1,
        }
    }

    /// Whether a row whose own session ends then belongs to the rows, if it is one of the same key.
    #[inline]
    pub fn holds(&self, end: i64) -> bool {
        self.first <= end && end <= self.last
    }

    /// Sessions touch where one begins when the other ends, as in Spark.
    #[inline]
    pub fn touches(&self, other: &Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    #[inline]
    pub fn unite(&mut self, other: &Self) {
        self.start = self.start.min(other.start);
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
    }
}
