//! Where a thread's time goes: what its calls to the file system take, and what a piece of work takes beside them.
//!
//! Read once per block, file or call on a store, never per row.

use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    static IN_FILES_NS: Cell<u64> = const { Cell::new(0) };
}

/// Runs a call to the file system and adds its time to the thread's.
pub fn in_files<T>(call: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = call();
    IN_FILES_NS.set(IN_FILES_NS.get() + ns_since(started));
    result
}

/// For benchmarks: waits as a read of remote storage would, which is time in the file system too.
pub fn wait_before_read(delay: Duration) {
    if !delay.is_zero() {
        in_files(|| std::thread::sleep(delay));
    }
}

/// What the calling thread has spent in calls to the file system so far.
pub fn in_files_ns() -> u64 {
    IN_FILES_NS.get()
}

/// Measures a piece of work on one thread, its calls to the file system left out.
pub struct Beside {
    started: Instant,
    files_ns: u64,
}

impl Beside {
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
            files_ns: in_files_ns(),
        }
    }

    pub fn ns(&self) -> u64 {
        ns_since(self.started).saturating_sub(in_files_ns() - self.files_ns)
    }
}

fn ns_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_to_the_file_system_are_counted_apart_from_the_work_around_them() {
        let pause = Duration::from_millis(20);
        let (before, work) = (in_files_ns(), Beside::start());
        in_files(|| std::thread::sleep(pause));
        assert!(in_files_ns() - before >= 20_000_000);
        let beside = work.ns();
        std::thread::sleep(pause);
        assert!(work.ns() >= beside + 20_000_000);
        assert_eq!(std::thread::spawn(in_files_ns).join().ok(), Some(0));
    }
}
