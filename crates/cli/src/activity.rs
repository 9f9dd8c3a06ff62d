//! What a command has done so far, on one line that is written again and again: only when it takes longer than a
//! second, and on a terminal or where --progress asks for it.
//!
//! Invariant: a line of progress is gone before anything else is written to the terminal; see `Prints` and `clear`.

use crate::arguments::Arguments;
use crate::session::Session;
use crate::text::{count_short, count_words, duration_words, size_words};
use crate::together::{Either, join_all, race};
use reactor::{Nanos, Reactor};
use std::cell::Cell;
use std::io::{IsTerminal, Write};

const NANOS_PER_MS: Nanos = 1_000_000;
/// Before this nobody waits.
const QUIET_TIME: Nanos = 1_000 * NANOS_PER_MS;
const INTERVAL_OF_TERMINAL: Nanos = 200 * NANOS_PER_MS;
const INTERVAL_OF_LINES: Nanos = 5_000 * NANOS_PER_MS;

/// When a command prints what it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prints {
    /// As it goes: lines on a terminal would mix with those of progress, and show that it goes on by themselves.
    Meanwhile,
    /// At the end, or after `clear`.
    AtTheEnd,
}

impl Prints {
    /// Whether progress is wanted.
    fn leave_room(self, arguments: &Arguments) -> bool {
        let stays_apart = self == Prints::AtTheEnd || !std::io::stdout().is_terminal();
        let is_asked = arguments.takes("progress") && arguments.flag("progress");
        is_asked || (std::io::stderr().is_terminal() && stays_apart)
    }
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Entries,
    Bytes,
}

/// Counters of a command.
pub struct Activity {
    unit: Unit,
    /// `removed`, `directories searched`.
    verb: &'static str,
    pub done: Cell<u64>,
    /// As far as it is known.
    pub found: Cell<u64>,
    /// Whether more may be found.
    pub growing: Cell<bool>,
    line: ProgressLine,
}

/// The line of progress of a terminal.
#[derive(Default)]
pub struct ProgressLine {
    /// Whether it is there now.
    shown: Cell<bool>,
}

impl ProgressLine {
    fn write(&self, words: &str, terminal: bool) {
        let mut output = std::io::stderr().lock();
        // Progress that can't be shown is no failure of the command.
        let _ = if terminal { write!(output, "\r\x1b[K{words}") } else { writeln!(output, "{words}") };
        let _ = output.flush();
        self.shown.set(terminal);
    }

    /// Takes it away, so that others can be written.
    pub fn clear(&self) {
        if self.shown.replace(false) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    /// Says on a terminal what is being waited for, and how long by now, until it is dropped.
    pub async fn say_waiting(&self, reactor: &Reactor, words: impl Fn() -> String) {
        if !std::io::stderr().is_terminal() {
            return std::future::pending().await;
        }
        let started = reactor.now();
        reactor.sleep(QUIET_TIME).await;
        let _cleared = ClearedLine(self);
        loop {
            self.write(&format!("{}, {}", words(), duration_words(reactor.now() - started)), true);
            reactor.sleep(INTERVAL_OF_TERMINAL).await;
        }
    }
}

impl Activity {
    pub fn new(verb: &'static str) -> Activity {
        let (done, found, growing) = (Cell::new(0), Cell::new(0), Cell::new(true));
        Activity { unit: Unit::Entries, verb, done, found, growing, line: ProgressLine::default() }
    }

    /// One that counts bytes.
    pub fn of_bytes(verb: &'static str) -> Activity {
        Activity { unit: Unit::Bytes, ..Activity::new(verb) }
    }

    pub fn add_done(&self) {
        self.add(1);
    }

    pub fn add(&self, count: u64) {
        self.done.set(self.done.get() + count);
    }

    /// How much there is, which does not grow any more.
    pub fn set_total(&self, total: u64) {
        self.found.set(total);
        self.growing.set(false);
    }

    pub fn add_found(&self) {
        self.found.set(self.found.get() + 1);
    }

    /// Shows how it goes until it is dropped; never, where nobody wants to see it.
    pub async fn show(&self, reactor: &Reactor, arguments: &Arguments, prints: Prints) {
        self.show_beside(reactor, arguments, prints, std::future::ready(())).await;
    }

    /// The same; `total` finds out meanwhile how much there is, which nobody needs to know before.
    pub async fn show_beside(
        &self,
        reactor: &Reactor,
        arguments: &Arguments,
        prints: Prints,
        total: impl Future<Output = ()>,
    ) {
        if !prints.leave_room(arguments) {
            return std::future::pending().await;
        }
        let terminal = std::io::stderr().is_terminal();
        let started = reactor.now();
        reactor.sleep(QUIET_TIME).await;
        let _cleared = ClearedLine(&self.line);
        let lines = async {
            loop {
                self.show_once(reactor.now() - started, terminal);
                reactor.sleep(if terminal { INTERVAL_OF_TERMINAL } else { INTERVAL_OF_LINES }).await;
            }
        };
        let total = async {
            total.await;
            std::future::pending::<()>().await;
        };
        let _: Either<(), ()> = race(lines, total).await;
    }

    fn show_once(&self, elapsed: Nanos, terminal: bool) {
        self.line.write(&self.words(elapsed), terminal);
    }

    /// Takes the line of progress away, so that others can be written.
    pub fn clear(&self) {
        self.line.clear();
    }

    /// Done, found, rate and remaining time.
    fn words(&self, elapsed: Nanos) -> String {
        let (done, found) = (self.done.get(), self.found.get());
        let rate = done as f64 * 1e9 / elapsed.max(1) as f64;
        let (amount, speed): (fn(u64) -> String, String) = match self.unit {
            Unit::Entries => (count_words, count_short(rate)),
            Unit::Bytes => (size_words, size_words(rate as u64)),
        };
        let mut words = format!("{} {}", amount(done), self.verb);
        if found > done {
            words = format!("{} of {} {}", amount(done), amount(found), self.verb);
        }
        words.push_str(&format!(", {speed}/s"));
        if !self.growing.get() && done > 0 && found > done {
            let left = (found - done) as f64 / rate * 1e9;
            words.push_str(&format!(", {} left", duration_words(left as Nanos)));
        }
        words
    }
}

/// Takes the line away when it is dropped.
struct ClearedLine<'a>(&'a ProgressLine);

impl Drop for ClearedLine<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// Inodes and chunks that all servers hold, as far as they answer: the most that there is to look at.
pub async fn held(session: &Session) -> (u64, u64) {
    let servers = 0..session.files.server_count();
    let replies = join_all(servers.map(|server| session.files.stat_server(server))).await;
    let known: Vec<_> = replies.into_iter().flatten().collect();
    let total = client::total(&known);
    (total.inodes, total.chunks)
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
        let activity = Activity::of_bytes("copied");
        activity.set_total(4 << 20);
        activity.add(1 << 20);
        assert_eq!(activity.words(2 * second), "1.0 MiB of 4.0 MiB copied, 512.0 KiB/s, 6.0 s left");
    }
}
