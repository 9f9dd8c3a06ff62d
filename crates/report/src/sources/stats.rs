//! The text of `stats`: of a service (its queue) or a target (its bytes).
//!
//!     snapshot_time             1689060419.303855291 secs.nsecs
//!     req_waittime              4690313 samples [usec] 4 20340 100079668 6817957300
//!     name                      count samples [unit] least most sum sum-of-squares

use super::lustre::{TextLine, number_of, time_of};
use super::{COUNTER_COUNT, Counter, Counters, Reading, Sink, Subject};
use crate::clock::Nanos;
use crate::failure::Outcome;
use crate::words;

/// The text of one parameter, which may be there several times.
pub struct StatsSection {
    subject: Subject,
    reading: Option<OpenReading>,
}

/// A reading whose lines go on.
struct OpenReading {
    line: u64,
    collected: Option<Nanos>,
    snapshot: Nanos,
    since: Option<Nanos>,
    counters: Counters,
    /// Counters that had a line, of use or not.
    seen: [bool; COUNTER_COUNT],
    /// Whether a line was of no use, so that sums of many lines are not known.
    hurt: bool,
}

impl OpenReading {
    fn set(&mut self, counter: Counter, value: Option<i64>) {
        self.counters[counter as usize] = value;
        self.seen[counter as usize] = true;
    }

    /// What was not printed has not counted.
    fn fill(&mut self, counters: &[Counter]) {
        for counter in counters {
            if !self.seen[*counter as usize] {
                self.counters[*counter as usize] = Some(0);
            }
        }
    }
}

/// Of a service; all have the same count, and a request counts in all.
const QUEUE: [Counter; 6] =
    [Counter::WaitCount, Counter::Wait, Counter::DepthCount, Counter::Depth, Counter::ActiveCount, Counter::Active];
const BYTES: [Counter; 4] = [Counter::Reads, Counter::ReadBytes, Counter::Writes, Counter::WriteBytes];

impl StatsSection {
    pub fn new(subject: Subject) -> StatsSection {
        StatsSection { subject, reading: None }
    }

    /// Of the reading whose lines go on.
    pub fn snapshot(&self) -> Option<Nanos> {
        self.reading.as_ref().map(|open| open.snapshot)
    }

    pub fn line(
        &mut self,
        server: &str,
        line: TextLine<'_>,
        collected: Option<Nanos>,
        sink: &mut impl Sink,
    ) -> Outcome {
        let (name, rest) = line.text.trim().split_once(char::is_whitespace).unwrap_or((line.text.trim(), ""));
        match name.trim_end_matches(':') {
            "snapshot_time" => {
                // The same text again, without its parameter before it.
                self.end(server, true, sink)?;
                match whole_time(rest, line.whole) {
                    Some(snapshot) => {
                        self.reading = Some(OpenReading {
                            line: line.number,
                            collected,
                            snapshot,
                            since: None,
                            counters: Counters::default(),
                            seen: [false; COUNTER_COUNT],
                            hurt: false,
                        })
                    }
                    None => sink.skipped(line.number, "its snapshot_time can't be read")?,
                }
                Ok(())
            }
            "start_time" => {
                if let Some(open) = &mut self.reading {
                    open.since = whole_time(rest, line.whole);
                }
                Ok(())
            }
            "elapsed_time" => Ok(()),
            name => self.counter(name, rest, line, sink),
        }
    }

    fn counter(&mut self, name: &str, rest: &str, line: TextLine<'_>, sink: &mut impl Sink) -> Outcome {
        let Some(open) = &mut self.reading else {
            return sink.skipped(line.number, "no snapshot_time stands before it");
        };
        let Some(values) = Values::of(rest, line.whole) else {
            open.hurt = true;
            let cut = if line.whole { "is no line of statistics" } else { "is cut" };
            return sink.skipped(line.number, &format!("\"{}\" {cut}", words::name(line.text.trim())));
        };
        let (count, sum) = (Some(values.count), values.sum);
        let mut set = |counter: Counter, of: Counter| {
            open.set(counter, if sum.is_some() { count } else { None });
            open.set(of, sum);
        };
        match (&self.subject, name, values.unit) {
            (Subject::Service(_), "req_waittime", "usec" | "usecs") => set(Counter::WaitCount, Counter::Wait),
            (Subject::Service(_), "req_qdepth", "reqs") => set(Counter::DepthCount, Counter::Depth),
            (Subject::Service(_), "req_active", "reqs") => set(Counter::ActiveCount, Counter::Active),
            (Subject::Service(_), "req_waittime" | "req_qdepth" | "req_active", unit) => {
                let why = format!("{name} in [{}] is not known", words::name(unit));
                for counter in QUEUE {
                    open.seen[counter as usize] = true;
                }
                return sink.skipped(line.number, &why);
            }
            // What else a service counts are kinds of requests, which are in req_waittime already.
            (Subject::Service(_), ..) => return Ok(()),
            (_, "read_bytes", "bytes") => set(Counter::Reads, Counter::ReadBytes),
            (_, "write_bytes", "bytes") => set(Counter::Writes, Counter::WriteBytes),
            // How long reads and writes took, which are counted by the two above.
            (_, "read" | "write", _) => return Ok(()),
            _ => {
                let before = open.counters[Counter::Operations as usize].unwrap_or(0);
                open.set(Counter::Operations, before.checked_add(values.count));
                return Ok(());
            }
        }
        match sum {
            Some(_) => Ok(()),
            None => sink.skipped(line.number, &format!("{name} has no sum that is known to be whole")),
        }
    }

    /// Hands over what was read.
    pub fn end(&mut self, server: &str, complete: bool, sink: &mut impl Sink) -> Outcome {
        let Some(mut open) = self.reading.take() else { return Ok(()) };
        match self.subject {
            Subject::Service(_) if complete && !QUEUE.iter().any(|counter| open.seen[*counter as usize]) => {
                open.fill(&QUEUE);
            }
            Subject::Service(_) => (),
            _ if complete && !open.hurt => {
                open.fill(&BYTES);
                open.fill(&[Counter::Operations]);
            }
            _ => open.counters[Counter::Operations as usize] = None,
        }
        if open.counters.iter().all(Option::is_none) {
            return sink.skipped(open.line, "nothing follows that is of use; it may be cut");
        }
        sink.reading(Reading {
            server: server.to_owned(),
            subject: self.subject.clone(),
            time: open.collected.unwrap_or(open.snapshot),
            snapshot: open.collected.map(|_| open.snapshot),
            since: open.since,
            counters: open.counters,
            line: open.line,
        })
    }
}

/// A time whose unit shows that it is whole, or whose line was.
pub fn whole_time(text: &str, whole: bool) -> Option<Nanos> {
    let has_unit = ["secs.usecs", "secs.nsecs"].iter().any(|unit| text.trim().trim_end_matches(')').ends_with(unit));
    if whole || has_unit { time_of(text) } else { None }
}

/// The numbers of a line.
struct Values<'a> {
    count: i64,
    unit: &'a str,
    sum: Option<i64>,
}

impl Values<'_> {
    /// Of `count samples [unit] least most sum sum-of-squares`, of which all from `least` on may be missing. The last
    /// word of a line without an end does not count.
    fn of(text: &str, whole: bool) -> Option<Values<'_>> {
        let mut words: Vec<&str> = text.split_whitespace().take(8).collect();
        if !whole && words.len() < 8 {
            words.pop();
        }
        let (count, rest) = words.split_first()?;
        let (samples, rest) = rest.split_first()?;
        let (unit, numbers) = rest.split_first()?;
        let unit = unit.strip_prefix('[')?.strip_suffix(']')?;
        if *samples != "samples" || !matches!(numbers.len(), 0 | 2..=4) {
            return None;
        }
        let numbers: Vec<Option<i64>> = numbers.iter().map(|text| number_of(text)).collect();
        Some(Values { count: number_of(count)?, unit, sum: numbers.get(2).copied().flatten() })
    }
}
