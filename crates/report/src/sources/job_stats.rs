//! The text of `job_stats`: what each job did at a target, in a form that looks like YAML.
//!
//!     job_stats:
//!     - job_id:          4711
//!       snapshot_time:   1322494602
//!       read_bytes:      { samples:  1, unit: bytes, min:  10, max:  10, sum:  10 }
//!       punch:           { samples:  0, unit:  reqs }
//!
//! The snapshot_time is when the job last did something there, not when the text was printed: that is told by the
//! collector, or by the statistics that stand before it. Jobs that have done nothing for a while (job_cleanup_interval)
//! are forgotten, and begin at 0 when they come back.

use super::lustre::{Clocks, TextLine, number_of};
use super::stats::whole_time;
use super::{Counter, Counters, Reading, Sink, Subject};
use crate::clock::Nanos;
use crate::failure::Outcome;
use crate::words;

/// Lustre's own limit is 32, or 64; a line is longer only if something is wrong.
const JOB_ID_SIZE_MAX: usize = 256;

pub struct JobSection {
    target: String,
    record: Option<OpenJob>,
}

/// A job whose lines go on.
struct OpenJob {
    id: String,
    line: u64,
    clocks: Clocks,
    snapshot: Option<Nanos>,
    since: Option<Nanos>,
    counters: Counters,
    hurt: bool,
}

impl JobSection {
    pub fn new(target: &str) -> JobSection {
        JobSection { target: target.to_owned(), record: None }
    }

    pub fn line(&mut self, server: &str, line: TextLine<'_>, clocks: Clocks, sink: &mut impl Sink) -> Outcome {
        let text = line.text.trim();
        if let Some(rest) = text.strip_prefix("- job_id") {
            self.end(server, true, sink)?;
            let id = job_id(rest.trim_start_matches(':').trim());
            if !line.whole || id.is_empty() || id.len() > JOB_ID_SIZE_MAX {
                return sink.skipped(line.number, "its job_id can't be read");
            }
            self.record = Some(OpenJob {
                id,
                line: line.number,
                clocks,
                snapshot: None,
                since: None,
                counters: Counters::default(),
                hurt: false,
            });
            return Ok(());
        }
        if text == "job_stats:" {
            return self.end(server, true, sink);
        }
        let Some(record) = &mut self.record else {
            return sink.skipped(line.number, "no job_id stands before it");
        };
        let (key, value) = text.split_once(':').unwrap_or((text, ""));
        match key {
            "snapshot_time" => record.snapshot = whole_time(value, line.whole),
            "start_time" => record.since = whole_time(value, line.whole),
            "elapsed_time" => (),
            _ => {
                if !record.take(key.trim(), value.trim()) {
                    record.hurt = true;
                    let cut = if line.whole { "is no line of job_stats" } else { "is cut" };
                    return sink.skipped(line.number, &format!("\"{}\" {cut}", words::name(text)));
                }
            }
        }
        Ok(())
    }

    /// Hands over the job that was read.
    pub fn end(&mut self, server: &str, complete: bool, sink: &mut impl Sink) -> Outcome {
        let Some(mut record) = self.record.take() else { return Ok(()) };
        let Some(snapshot) = record.snapshot else {
            return sink.skipped(record.line, "it has no snapshot_time that can be read");
        };
        if !complete || record.hurt {
            record.counters[Counter::Operations as usize] = None;
        } else {
            // Metadata targets have no bytes; storage targets name them always.
            for counter in
                [Counter::Reads, Counter::ReadBytes, Counter::Writes, Counter::WriteBytes, Counter::Operations]
            {
                record.counters[counter as usize].get_or_insert(0);
            }
        }
        if record.counters.iter().all(Option::is_none) {
            return sink.skipped(record.line, "nothing follows that is of use; it may be cut");
        }
        let server_clock = record.clocks.server.filter(|time| *time > snapshot);
        let seen = record.clocks.collector.or(server_clock);
        sink.reading(Reading {
            server: server.to_owned(),
            subject: Subject::Job { target: self.target.clone(), id: record.id },
            time: seen.unwrap_or(snapshot),
            snapshot: seen.map(|_| snapshot),
            since: record.since,
            counters: record.counters,
            line: record.line,
        })
    }
}

impl OpenJob {
    /// Takes `{ samples: 1, unit: bytes, min: 10, max: 10, sum: 10 }`. False if it is no such text, or cut.
    fn take(&mut self, key: &str, value: &str) -> bool {
        let Some(inside) = value.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else { return false };
        // What comes behind are counts of sizes.
        let inside = inside.split("hist:").next().unwrap_or_default();
        let field = |name: &str| {
            let mut pairs = inside.split(',').filter_map(|pair| pair.split_once(':'));
            pairs.find(|(found, _)| found.trim() == name).map(|(_, value)| value.trim())
        };
        let (Some(count), unit) = (field("samples").and_then(number_of), field("unit").unwrap_or_default()) else {
            return false;
        };
        let sum = field("sum").and_then(number_of);
        let (counter, of) = match (key, unit) {
            ("read_bytes" | "read", "bytes") => (Counter::Reads, Counter::ReadBytes),
            ("write_bytes" | "write", "bytes") => (Counter::Writes, Counter::WriteBytes),
            // How long they took, which the two above count.
            ("read" | "write", _) => return true,
            _ => {
                let before = self.counters[Counter::Operations as usize].unwrap_or(0);
                self.counters[Counter::Operations as usize] = before.checked_add(count);
                return true;
            }
        };
        if sum.is_none() {
            return false;
        }
        self.counters[counter as usize] = Some(count);
        self.counters[of as usize] = sum;
        true
    }
}

/// A job's id without the quotes and `\xHH` that 2.15 writes where it holds something unusual.
fn job_id(text: &str) -> String {
    let Some(quoted) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else { return text.to_owned() };
    let mut bytes = Vec::with_capacity(quoted.len());
    let mut rest = quoted;
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend_from_slice(before.as_bytes());
        match after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.extend_from_slice(b"\\x");
                rest = after;
            }
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}
