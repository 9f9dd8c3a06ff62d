//! What a copy has done so far, for those who watch: a bar on a terminal, else a line every few seconds.

use crate::copy::facts::{EntryKind, Facts};
use crate::text::{count_words, duration_words, plural, size_words};
use crate::work::Urgency;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reactor::{Nanos, Reactor};
use std::cell::Cell;
use std::io::IsTerminal;

const NANOS_PER_MS: Nanos = 1_000_000;
const BAR_INTERVAL: Nanos = 100 * NANOS_PER_MS;
const LINE_INTERVAL: Nanos = 5_000 * NANOS_PER_MS;

/// Counters of a copy.
#[derive(Default)]
pub struct Progress {
    pub files_found: Cell<u64>,
    pub files_done: Cell<u64>,
    /// Those whose target stayed as it was; they count as found no longer.
    pub files_kept: Cell<u64>,
    pub bytes_found: Cell<u64>,
    pub bytes_done: Cell<u64>,
    /// Directories that are not listed yet: while there are any, the totals still grow.
    pub directories_left: Cell<u64>,
}

/// Adds to a counter.
pub fn add(counter: &Cell<u64>, count: u64) {
    counter.set(counter.get() + count);
}

impl Progress {
    /// Counts what was found among what is to be read, and tells when its turn is; nothing where there is nothing to
    /// read.
    pub fn note_found(&self, facts: &Facts) -> Option<Urgency> {
        match facts.kind {
            EntryKind::Directory => {
                add(&self.directories_left, 1);
                Some(Urgency::First)
            }
            EntryKind::File => {
                add(&self.files_found, 1);
                add(&self.bytes_found, facts.size);
                Some(Urgency::Later)
            }
            EntryKind::Symlink | EntryKind::Special(_) => None,
        }
    }

    /// Takes bytes from those that were found: they need not be copied.
    pub fn take_bytes(&self, count: u64) {
        self.bytes_found.set(self.bytes_found.get().saturating_sub(count));
    }

    /// Shows how it goes until it is dropped.
    pub async fn show(&self, reactor: &Reactor) {
        let started = reactor.now();
        if !std::io::stderr().is_terminal() {
            loop {
                reactor.sleep(LINE_INTERVAL).await;
                eprintln!("{}", self.line(reactor.now() - started));
            }
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        // The template is ours; should it not be understood, the plain bar does.
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {msg}") {
            bar.set_style(style);
        }
        let bar = ClearedBar(bar);
        loop {
            reactor.sleep(BAR_INTERVAL).await;
            // Of nothing known the bar is empty, not full.
            bar.0.set_length(self.bytes_found.get().max(1));
            bar.0.set_position(self.bytes_done.get());
            bar.0.set_message(self.line(reactor.now() - started));
        }
    }

    /// Files, rate and remaining time.
    fn message(&self, elapsed: Nanos) -> String {
        format!(
            "{}/{} files {}/s{}",
            count_words(self.files_done.get()),
            count_words(self.files_found.get()),
            size_words(self.rate(elapsed)),
            self.remaining(elapsed).map(|left| format!(", {} left", duration_words(left))).unwrap_or_default()
        )
    }

    fn line(&self, elapsed: Nanos) -> String {
        format!(
            "{} of {}, {}",
            size_words(self.bytes_done.get()),
            size_words(self.bytes_found.get()),
            self.message(elapsed)
        )
    }

    /// Bytes per second so far.
    fn rate(&self, elapsed: Nanos) -> u64 {
        (self.bytes_done.get() as f64 * 1e9 / elapsed.max(1) as f64) as u64
    }

    /// The time that the rest takes if it goes on like this: files and bytes both count. `None` while the total is
    /// unknown.
    fn remaining(&self, elapsed: Nanos) -> Option<Nanos> {
        let share = |done: u64, found: u64| if found == 0 { 1.0 } else { done as f64 / found as f64 };
        let files = share(self.files_done.get(), self.files_found.get());
        let bytes = share(self.bytes_done.get(), self.bytes_found.get());
        let done = files.min(bytes);
        let known = self.directories_left.get() == 0 && self.files_found.get() > 0;
        (known && done > 0.0).then(|| (elapsed as f64 * (1.0 - done) / done) as Nanos)
    }

    /// The closing line.
    pub fn summary(&self, elapsed: Nanos) -> String {
        let kept = match self.files_kept.get() {
            0 => String::new(),
            count => format!("; {} left as they were", plural(count, "file")),
        };
        format!(
            "copied {}, {} in {} ({}/s){kept}",
            plural(self.files_done.get(), "file"),
            size_words(self.bytes_done.get()),
            duration_words(elapsed),
            size_words(self.rate(elapsed))
        )
    }
}

/// A bar that leaves no trace when it goes.
struct ClearedBar(ProgressBar);

impl Drop for ClearedBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: rate and remaining time follow from what is done; nothing is promised while the total is unknown.
    #[test]
    fn remaining_time() {
        let progress = Progress::default();
        add(&progress.files_found, 10);
        add(&progress.bytes_found, 1000);
        add(&progress.files_done, 5);
        add(&progress.bytes_done, 250);
        let second = 1_000_000_000;
        assert_eq!(progress.remaining(second), Some(3 * second));
        assert_eq!(progress.rate(second), 250);
        assert_eq!(progress.line(second), "250 B of 1000 B, 5/10 files 250 B/s, 3.0 s left");
        add(&progress.directories_left, 1);
        assert_eq!(progress.remaining(second), None);
        assert_eq!(Progress::default().remaining(second), None);
        assert_eq!(progress.summary(second), "copied 5 files, 250 B in 1.0 s (250 B/s)");
        add(&progress.files_kept, 2);
        assert_eq!(progress.summary(second), "copied 5 files, 250 B in 1.0 s (250 B/s); 2 files left as they were");
    }
}
