//! Where an experiment runs: a cluster with its processes, real or simulated.

use crate::options::SiteUse;
use crate::step::{Done, Step};
use client::Contact;
use serde_json::Value;
use std::fmt::Write as _;

/// What a cluster for an experiment is like.
#[derive(Debug, Clone, Default)]
pub struct Setting {
    pub servers: u32,
    pub procs: u32,
    /// As for `tabane up`; unset takes the default.
    pub placement: Option<String>,
    /// 0 takes the cluster's.
    pub chunk_size: u32,
    /// Bytes of each server's store in a simulation.
    pub store_size: u64,
    /// Whether clients ask contacts first.
    pub contact: Contact,
    pub site: SiteUse,
    /// Words of memory that real processes share.
    pub words: usize,
}

/// What all processes did in a step.
#[derive(Debug)]
pub struct Outcome {
    pub done: Vec<Done>,
    /// From the start of the first to the end of the last.
    pub seconds: f64,
    /// Bytes that the processes have copied for it, or had copied by the kernel; 0 in simulations, where nothing counts
    /// that.
    pub copied: u64,
}

impl Outcome {
    pub fn work(&self) -> u64 {
        self.done.iter().map(|done| done.work).sum()
    }

    pub fn number(&self) -> i64 {
        self.done.iter().map(|done| done.number).sum()
    }
}

/// What a server has counted since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    /// Without those for these counts themselves.
    pub requests: u64,
    pub bytes: u64,
    /// Bytes that it has copied; 0 in simulations.
    pub copied: u64,
    /// Request-nanoseconds that requests for bytes waited, and were at work.
    pub wait_ns: u64,
    pub active_ns: u64,
    /// Request-nanoseconds that permits were waited for.
    pub permit_ns: u64,
}

impl Served {
    /// From a server's statistics as JSON.
    pub fn read(text: &str) -> Result<Served, String> {
        let statistics: Value =
            serde_json::from_str(text).map_err(|error| format!("statistics of a server: {error}"))?;
        let mut served = Served::default();
        for class in ["metadata", "data"] {
            let number = |key: &str| statistics["classes"][class][key].as_u64().unwrap_or(0);
            served.requests += number("arrivals");
            served.bytes += number("bytes_in") + number("bytes_out");
        }
        // What is asked for these counts, and what clients count themselves, is nobody's work.
        for operation in ["Statistics", "NoteCounters"] {
            let looks = statistics["operations"][operation]["arrivals"].as_u64().unwrap_or(0);
            served.requests = served.requests.saturating_sub(looks);
        }
        let of_data = |key: &str| statistics["classes"]["data"][key].as_u64().unwrap_or(0);
        (served.wait_ns, served.active_ns) = (of_data("req_waittime_ns"), of_data("req_active_ns"));
        served.permit_ns = statistics["tables"]["permit_wait_ns"].as_u64().unwrap_or(0);
        served.copied = statistics["bytes_copied"].as_u64().unwrap_or(0);
        Ok(served)
    }

    /// What each server did between two looks.
    pub fn between(before: &[Served], after: &[Served]) -> Vec<Served> {
        let pairs = before.iter().zip(after);
        pairs
            .map(|(before, after)| Served {
                requests: after.requests.saturating_sub(before.requests),
                bytes: after.bytes.saturating_sub(before.bytes),
                copied: after.copied.saturating_sub(before.copied),
                wait_ns: after.wait_ns.saturating_sub(before.wait_ns),
                active_ns: after.active_ns.saturating_sub(before.active_ns),
                permit_ns: after.permit_ns.saturating_sub(before.permit_ns),
            })
            .collect()
    }
}

/// A cluster with its processes.
pub trait Engine {
    /// Has some processes (by rank) do a step at once, while the others rest.
    fn act(&mut self, step: &Step, procs: std::ops::Range<u32>) -> Result<Outcome, String>;

    /// What each server has counted.
    fn served(&mut self) -> Result<Vec<Served>, String>;

    /// The server of a name in a directory, and of a file that is made under it.
    fn server_of(&self, directory: u64, name: &str) -> u32;

    /// Seconds since some moment.
    fn now(&mut self) -> f64;

    /// Bytes of files that have been written to the site.
    fn behind(&mut self) -> Result<u64, String>;

    /// All bytes of a file at the site, by its name.
    fn read_behind(&mut self, name: &str) -> Result<Vec<u8>, String>;

    /// Number of processes.
    fn procs(&self) -> u32;

    /// Ends the processes and takes the cluster down.
    fn end(self: Box<Self>) -> Result<(), String>;

    /// One process does a step.
    fn alone(&mut self, step: &Step) -> Result<Done, String> {
        Ok(self.act(step, 0..1)?.done.swap_remove(0))
    }

    /// All do a step.
    fn all(&mut self, step: &Step) -> Result<Outcome, String> {
        let procs = self.procs();
        self.act(step, 0..procs)
    }
}

/// A JSON line with its keys in the order in which they were put.
pub struct Line(String);

impl Line {
    pub fn new(experiment: &str) -> Line {
        Line(format!("{{\"experiment\":\"{experiment}\""))
    }

    pub fn put(mut self, key: &str, value: impl Into<Value>) -> Line {
        // Writing to a string does not fail.
        let _ = write!(self.0, ",\"{key}\":{}", value.into());
        self
    }

    /// A number to so many digits after the point.
    pub fn put_rounded(self, key: &str, value: f64, digits: i32) -> Line {
        let scale = 10f64.powi(digits);
        self.put(key, (value * scale).round() / scale)
    }

    pub fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// Greatest less least, by the mean: 0 when all are the same.
pub fn spread(values: &[u64]) -> f64 {
    let (least, most) = (values.iter().min().copied().unwrap_or(0), values.iter().max().copied().unwrap_or(0));
    let mean = values.iter().sum::<u64>() as f64 / values.len().max(1) as f64;
    if mean == 0.0 { 0.0 } else { (most - least) as f64 / mean }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the spread of what is even is 0, and that of what is not is told by the mean.
    #[test]
    fn spreads() {
        assert_eq!((spread(&[]), spread(&[0, 0]), spread(&[7, 7, 7])), (0.0, 0.0, 0.0));
        assert_eq!(spread(&[90, 100, 110]), 0.2);
    }

    /// Goal: requests and bytes of both classes count, and the looks at them do not.
    #[test]
    fn statistics_are_read() {
        let text = "{\"classes\":{\"metadata\":{\"arrivals\":3,\"bytes_in\":0,\"bytes_out\":1},\
                    \"data\":{\"arrivals\":4,\"bytes_in\":50,\"bytes_out\":600}},\
                    \"operations\":{\"OpenExisting\":{\"arrivals\":2},\"Statistics\":{\"arrivals\":1}},\
                    \"bytes_copied\":11}";
        let served = Served::read(text).unwrap();
        assert_eq!(served, Served { requests: 6, bytes: 651, copied: 11, ..Served::default() });
        let later = Served { requests: 8, bytes: 700, copied: 30, ..Served::default() };
        assert_eq!(
            Served::between(&[served], &[later]),
            [Served { requests: 2, bytes: 49, copied: 19, ..Served::default() }]
        );
    }

    /// Goal: a line is JSON, with its keys in order.
    #[test]
    fn lines() {
        let line = Line::new("find").put("way", "a\"b").put_rounded("seconds", 1.234_567, 3).end();
        assert_eq!(line, r#"{"experiment":"find","way":"a\"b","seconds":1.235}"#);
    }
}
