//! The table of costs: a line for each kind of operation, as docs/semantics.md shows it.

use crate::stage::{Measured, Stage};

/// What a line is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// Files: nothing may grow with the number of servers.
    Files,
    /// Directories and the cluster.
    Others,
}

/// A line: its words, its costs, and what is done to count them.
pub struct Row {
    pub about: About,
    pub what: &'static str,
    pub requests: &'static str,
    pub waits: &'static str,
    pub messages: &'static str,
    /// Servers that there have to be.
    pub servers_min: u32,
    /// Servers that have to hold parts of the file.
    pub holders_min: u32,
    pub cases: &'static [fn(&Stage) -> Measured],
}

impl Row {
    /// What most lines begin with: one request about a file on one server.
    pub const FILES: Row = Row {
        about: About::Files,
        what: "",
        requests: "1",
        waits: "1",
        messages: "0",
        servers_min: 1,
        holders_min: 1,
        cases: &[],
    };

    pub fn uses(&self, letter: char) -> bool {
        [self.requests, self.waits, self.messages].iter().any(|cell| cell.contains(letter))
    }

    pub fn expected(&self, stage: &Stage) -> Measured {
        let value = |cell| evaluate(cell, stage.servers.into(), stage.holders.into());
        let [requests, waits, messages] = [self.requests, self.waits, self.messages].map(value);
        Measured { requests, waits, messages }
    }

    /// The line of the documentation.
    pub fn line(&self) -> String {
        format!("| {} | {} | {} | {} |", self.what, self.requests, self.waits, self.messages)
    }
}

/// The value of a cell: a sum of numbers, N, m and brackets, each with a number in front or without.
pub fn evaluate(cell: &str, servers: i64, holders: i64) -> u64 {
    let mut rest = cell;
    let value = sum(&mut rest, servers, holders);
    assert!(rest.is_empty(), "{cell}: what is {rest}?");
    u64::try_from(value).unwrap_or_else(|_| panic!("{cell} is {value}"))
}

fn sum(rest: &mut &str, servers: i64, holders: i64) -> i64 {
    let mut value = term(rest, servers, holders);
    loop {
        let sign = match rest.get(..3) {
            Some(" + ") => 1,
            Some(" - ") => -1,
            _ => return value,
        };
        *rest = &rest[3..];
        value += sign * term(rest, servers, holders);
    }
}

fn term(rest: &mut &str, servers: i64, holders: i64) -> i64 {
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let number = rest[..digits].parse::<i64>();
    *rest = &rest[digits..];
    let after = rest.trim_start_matches(' ');
    let factor = match after.as_bytes().first() {
        Some(b'N') => servers,
        Some(b'm') => holders,
        Some(b'(') => {
            let mut inner = &after[1..];
            let value = sum(&mut inner, servers, holders);
            assert!(inner.starts_with(')'), "a bracket is open");
            *rest = &inner[1..];
            return number.unwrap_or(1) * value;
        }
        _ => return number.expect("a number"),
    };
    *rest = &after[1..];
    number.unwrap_or(1) * factor
}

/// Goal: cells mean what they look like.
#[test]
fn cells() {
    for (cell, value) in [("1", 1), ("N", 8), ("2 (N - 1)", 14), ("m + 1", 4), ("3 m - 2", 7), ("2 (N - 1) + m", 17)] {
        assert_eq!(evaluate(cell, 8, 3), value, "{cell}");
    }
}
