//! Joins of two streams that remember rows of both sides: per key, by the time at which they can be forgotten.
//!
//! A row is looked for by its key on the other side and written once; nothing is merged. A side's rows lie in *parts*,
//! one for each interval of expiry, and a part in runs: what a batch adds to a part is one run, in which a key's rows
//! are one list. All runs are asked, and a part is dropped whole when its time has passed.

pub mod alone;
pub mod chunk;
pub mod expiry;
pub mod held;
pub mod layout;
pub mod matching;
pub mod memory;
pub mod merge;
pub mod part;
pub mod record;
pub mod sorter;
pub mod store;
