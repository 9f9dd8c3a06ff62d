//! What a command has done so far, on one line that is written again and again: only when it takes longer than a second, and on a
//! terminal or where --progress asks for it.

use crate::arguments::Arguments;
use crate::text::{count_short, count_words, duration_words};
use reactor::{Nanos, Reactor};
use std::cell::Cell;
use std::io::{IsTerminal, Write};

const NANOS_PER_MS: Nanos = 1_000_000;
/// Before this nobody waits.
const QUIET_TIME: Nanos = 1_000 * NANOS_PER_MS;
const INTERVAL_OF_TERMINAL: Nanos = 200 * NANOS_PER_MS;
const INTERVAL_OF_LINES: Nanos = 5_000 * NANOS_PER_MS;

/// Counters of a command.
pub struct Activity {
    /// `removed`, `read`.
    verb: &'static str,
    pub done: Cell<u64>,
    /// As far as it is known.
    pub found: Cell<u64>,
    /// Whether more may be found.
    pub growing: Cell<bool>,
}

impl Activity {
    pub fn new(verb: &'static str) -> Activity {
        Activity { verb, done: Cell::new(0), found: Cell::new(0), growing: Cell::new(true) }
    }

    pub fn add_done(&self) {
        self.done.set(self.done.get() + 1);
    }

    pub fn add_found(&self) {
        self.found.set(self.found.get() + 1);
    }

    /// Shows how it goes until it is dropped; never, where nobody wants to see it.
    pub async fn show(&self, reactor: &Reactor, arguments: &Arguments) {
        let terminal = std::io::stderr().is_terminal();
        // Where the output is a terminal too, lines of both would mix.
        let wanted = arguments.flag("progress") || (terminal && !std::io::stdout().is_terminal());
        if !wanted {
            return std::future::pending().await;
        }
        let started = reactor.now();
        reactor.sleep(QUIET_TIME).await;
        let _cleared = terminal.then_some(ClearedLine);
        loop {
            let words = self.words(reactor.now() - started);
            let mut output = std::io::stderr().lock();
            // Progress that can't be shown is no failure of the command.
            let _ = if terminal { write!(output, "\r\x1b[K{words}") } else { writeln!(output, "{words}") };
            let _ = output.flush();
            drop(output);
            reactor.sleep(if terminal { INTERVAL_OF_TERMINAL } else { INTERVAL_OF_LINES }).await;
        }
    }

    /// Done, found, rate and remaining time.
    fn words(&self, elapsed: Nanos) -> String {
        let (done, found) = (self.done.get(), self.found.get());
        let rate = done as f64 * 1e9 / elapsed.max(1) as f64;
        let mut words = format!("{} {}", count_words(done), self.verb);
        if found > done {
            words = format!("{} of {} {}", count_words(done), count_words(found), self.verb);
        }
        words.push_str(&format!(", {}/s", count_short(rate)));
        if !self.growing.get() && done > 0 && found > done {
            let left = (found - done) as f64 / rate * 1e9;
            words.push_str(&format!(", {} left", duration_words(left as Nanos)));
        }
        words
    }
}

/// Takes the line away when it is dropped.
struct ClearedLine;

impl Drop for ClearedLine {
    fn drop(&mut self) {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: rate and remaining time follow from what is done, and nothing is promised while more may be found.
    #[test]
    fn words() {
        let activity = Activity::new("removed");
        activity.done.set(500);
        let second = 1_000_000_000;
        assert_eq!(activity.words(second), "500 removed, 500/s");
        activity.found.set(2000);
        assert_eq!(activity.words(second), "500 of 2,000 removed, 500/s");
        activity.growing.set(false);
        assert_eq!(activity.words(second), "500 of 2,000 removed, 500/s, 3.0 s left");
    }
}
