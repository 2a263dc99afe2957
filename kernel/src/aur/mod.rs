//! The append, unaligned read store: raw rows of session windows, which end at another time for every key.
//!
//! Rows are only appended, and read once, when their session has closed. What is not flushed yet lies in a write buffer;
//! a flush writes the rows of each buffered window together into a data log, and one index entry for each into an index
//! log. The index stays on disk. In memory is a table of the open sessions with their estimated trigger times (ETT), and
//! what was read ahead of the sessions that close next.
//!
//! A session's ETT is its last timestamp plus the gap, or the latest end that its rows say. It never falls, so it is a lower bound of the time at which the
//! session closes: index entries lie in the order of their ETT, and a read of what is due ends where the watermark does.

pub mod ahead;
pub mod bounds;
pub mod buffer;
pub mod due;
pub mod layout;
pub mod log;
pub mod log_format;
pub mod log_writer;
pub mod restore;
pub mod rewrite;
pub mod sessions;
pub mod sorter;
pub mod store;
