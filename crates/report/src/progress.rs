//! What an import has done so far, on one line of a terminal that is written again and again, once it takes longer than
//! a second.
//!
//! Invariant: the line is gone before anything else is written; see `clear`.

use crate::clock;
use crate::words::{duration, size};
use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Before this nobody waits.
const QUIET_TIME: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(200);

pub struct Progress {
    wanted: bool,
    begun: Instant,
    next: Cell<Instant>,
    read: Cell<u64>,
    /// Bytes of all inputs whose size is known; 0 where one is not.
    total: u64,
    shown: Cell<bool>,
}

impl Progress {
    pub fn new(total: u64) -> Progress {
        let begun = clock::monotonic();
        Progress {
            wanted: std::io::stderr().is_terminal(),
            begun,
            next: Cell::new(begun + QUIET_TIME),
            read: Cell::new(0),
            total,
            shown: Cell::new(false),
        }
    }

    /// Bytes that were read; a call for each line is cheap.
    pub fn add(&self, bytes: u64) {
        let before = self.read.get();
        self.read.set(before + bytes);
        // A look at the clock for each 64 KiB.
        if self.wanted && before >> 16 != (before + bytes) >> 16 {
            let now = clock::monotonic();
            if now >= self.next.get() {
                self.next.set(now + INTERVAL);
                self.show(&self.line(now - self.begun));
            }
        }
    }

    fn line(&self, elapsed: Duration) -> String {
        let read = self.read.get() as f64;
        let rate = read / elapsed.as_secs_f64().max(1e-3);
        if self.total == 0 || self.total < self.read.get() {
            return format!("{} read, {}/s", size(read), size(rate));
        }
        let left = (self.total as f64 - read) / rate.max(1.0);
        let left = duration((left * 1e9) as i64);
        format!("{} of {} read, {}/s, {left} left", size(read), size(self.total as f64), size(rate))
    }

    fn show(&self, words: &str) {
        let mut output = std::io::stderr().lock();
        // Progress that can't be shown is no failure of the command.
        let _ = write!(output, "\r\x1b[K{words}");
        let _ = output.flush();
        self.shown.set(true);
    }

    /// Takes the line away.
    pub fn clear(&self) {
        if self.shown.replace(false) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: rate and remaining time follow from what is read, and nothing is promised of what nobody knows.
    #[test]
    fn lines() {
        let progress = Progress::new(4 << 20);
        progress.add(1 << 20);
        assert_eq!(progress.line(Duration::from_secs(2)), "1.0 MiB of 4.0 MiB read, 512.0 KiB/s, 6.0 s left");
        let progress = Progress::new(0);
        progress.add(1 << 20);
        assert_eq!(progress.line(Duration::from_secs(1)), "1.0 MiB read, 1.0 MiB/s");
    }
}
