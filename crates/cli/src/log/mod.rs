//! The log of a server: one line for each event that an operator would act on.
//!
//!     2026-11-21T20:15:03.120Z warning server=1 event=server-unreachable peer=2 reason="connection refused"
//!     message="..."
//!
//! Time in UTC, level, then key=value; values with blanks, quotes or equals signs stand in quotes. Of one event at most
//! `LINES_MAX` lines are written in `WINDOW`; how many were held back is told with the next one. A log file grows to
//! `SIZE_MAX`, then it becomes `NAME.1` in place of the one before.

pub mod line;

use line::LogLine;
use reactor::log::{Fact, Level, LogEvent, take_events};
use reactor::{Nanos, Reactor};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Lines of one event in a window.
const LINES_MAX: u32 = 10;
const WINDOW: Nanos = 60_000_000_000;
/// Size at which a log file is put aside; there are at most two of them for each server.
pub const SIZE_MAX: u64 = 4 << 20;

/// What was written of one event lately.
#[derive(Debug, Default, Clone, Copy)]
struct Rate {
    window_began: Nanos,
    lines: u32,
    held_back: u64,
}

/// Lines of events, rate-limited.
struct Journal {
    server: u32,
    rates: BTreeMap<&'static str, Rate>,
}

impl Journal {
    /// The line of an event; `None` when it is held back.
    fn line(&mut self, event: &LogEvent<'_>, now: Nanos, wall_clock: i64) -> Option<LogLine> {
        // Names are those that our own code has: the table is bounded by them.
        let rate = self.rates.entry(event.name).or_default();
        if now.saturating_sub(rate.window_began) >= WINDOW {
            *rate = Rate { window_began: now, lines: 0, held_back: rate.held_back };
        }
        if rate.lines == LINES_MAX {
            rate.held_back += 1;
            return None;
        }
        rate.lines += 1;
        let held_back = std::mem::take(&mut rate.held_back);
        let mut line = LogLine::new(wall_clock, event.level);
        line.add("server", self.server);
        line.add("event", event.name);
        event.facts.iter().for_each(|(key, value)| line.add(key, value));
        if held_back > 0 {
            line.add("held_back", held_back);
        }
        line.add("message", event.words);
        Some(line)
    }
}

/// Writes the events of this server to its output, which is the file at `path` where that is known, and keeps that file
/// small.
pub fn begin(reactor: &Reactor, server: u32, path: Option<PathBuf>) {
    let journal = RefCell::new(Journal { server, rates: BTreeMap::new() });
    let clock = reactor.clone();
    take_events(move |event| {
        let Some(line) = journal.borrow_mut().line(event, clock.now(), clock.wall_clock()) else { return };
        // A log that can't be written is no reason to stop serving.
        let _ = writeln!(std::io::stdout(), "{line}");
        if let Some(path) = &path {
            let _ = put_aside(path, SIZE_MAX);
        }
    });
}

/// Makes the log file `NAME.1` when it has grown too large. It is emptied in place, for others hold it open to append.
fn put_aside(path: &Path, size_max: u64) -> std::io::Result<()> {
    let file: File = OpenOptions::new().write(true).open(path)?;
    if file.metadata()?.len() <= size_max {
        return Ok(());
    }
    std::fs::copy(path, aside(path))?;
    file.set_len(0)
}

/// Where the older part of a log is.
pub fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    PathBuf::from(name)
}

/// Tells of an event of this program.
pub fn tell(level: Level, name: &'static str, words: &str, facts: &[Fact<'_>]) {
    reactor::log::event(level, name, words, facts);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &'static str) -> LogEvent<'static> {
        LogEvent { level: Level::Warning, name, words: "what to do", facts: &[("reason", &"it is full")] }
    }

    /// Goal: a line has everything in its place; of one event only so many are written, others are not held up, and the
    /// number that was held back is told.
    #[test]
    fn lines_are_limited() {
        let mut journal = Journal { server: 3, rates: BTreeMap::new() };
        let first = journal.line(&event("full"), 5, 0).unwrap().to_string();
        assert_eq!(
            first,
            "1970-01-01T00:00:00.000Z warning server=3 event=full reason=\"it is full\" message=\"what to do\""
        );
        let written = (0..100).filter(|_| journal.line(&event("full"), 6, 0).is_some()).count();
        assert_eq!(written as u32, LINES_MAX - 1);
        assert!(journal.line(&event("other"), 7, 0).is_some());
        let later = journal.line(&event("full"), 6 + WINDOW, 0).unwrap().to_string();
        assert!(later.contains(" held_back=91 "), "{later}");
        assert!(!journal.line(&event("full"), 7 + WINDOW, 0).unwrap().to_string().contains("held_back"));
    }

    /// Goal: a file that has grown is put aside in place of the one before, and who holds it open writes on at its
    /// beginning.
    #[test]
    fn files_are_bounded() {
        let path = std::env::temp_dir().join(format!("tabane-test-log-{}", std::process::id()));
        let mut log = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        for text in ["one\n", "two and more\n"] {
            log.write_all(text.as_bytes()).unwrap();
            put_aside(&path, 8).unwrap();
        }
        assert_eq!(std::fs::read_to_string(aside(&path)).unwrap(), "one\ntwo and more\n");
        log.write_all(b"three\n").unwrap();
        put_aside(&path, 8).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
        std::fs::remove_file(aside(&path)).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
