//! What is said about a run: one JSON line a phase for programs, tables for people.

use crate::group::Measured;
use crate::options::{Bench, Unit};
use serde_json::Value;
use std::fmt::Write as _;

/// One phase of one run.
#[derive(Debug, Clone)]
pub struct Record {
    pub bench: Bench,
    pub phase: &'static str,
    pub target: String,
    pub procs: u32,
    /// 0 for a local directory.
    pub servers: u32,
    /// "none" for a local directory.
    pub transport: String,
    pub measured: Measured,
    pub verified: bool,
}

impl Record {
    /// From the start of the first process to the end of the last.
    pub fn seconds(&self) -> f64 {
        self.measured.end.saturating_sub(self.measured.start).max(1) as f64 / 1e9
    }

    /// MiB or operations per second.
    pub fn rate(&self) -> f64 {
        let work = match self.bench.unit() {
            Unit::Bytes => self.measured.work as f64 / f64::from(1 << 20),
            Unit::Operations => self.measured.work as f64,
        };
        work / self.seconds()
    }

    /// The line for programs.
    pub fn json(&self) -> String {
        let rate_key = match self.bench.unit() {
            Unit::Bytes => "mib_per_s",
            Unit::Operations => "ops_per_s",
        };
        let fields: [(&str, Value); 9] = [
            ("bench", self.bench.name().into()),
            ("phase", self.phase.into()),
            ("target", self.target.as_str().into()),
            ("procs", self.procs.into()),
            ("servers", self.servers.into()),
            ("transport", self.transport.as_str().into()),
            (rate_key, round(self.rate(), 1).into()),
            ("seconds", round(self.seconds(), 6).into()),
            ("verified", self.verified.into()),
        ];
        let fields: Vec<String> = fields.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
        format!("{{{}}}", fields.join(","))
    }
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// The middle value; the mean of the two middle ones when their number is even. `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[count / 2]),
        count => Some((sorted[count / 2 - 1] + sorted[count / 2]) / 2.0),
    }
}

/// Medians of all phases, for one target or for two with the ratio of the first to the second.
pub fn table(records: &[Record], targets: &[String]) -> String {
    let mut phases: Vec<(Bench, &str)> = Vec::new();
    for record in records {
        if !phases.contains(&(record.bench, record.phase)) {
            phases.push((record.bench, record.phase));
        }
    }
    let mut text = format!("{:<12} {:<7} {:<6}", "bench", "phase", "unit");
    for target in targets {
        let _ = write!(text, " {target:>16} {:>23}", "(least - most)");
    }
    text.push_str(if targets.len() == 2 { "    ratio\n" } else { "\n" });
    for (bench, phase) in phases {
        let unit = if bench.unit() == Unit::Bytes { "MiB/s" } else { "op/s" };
        let _ = write!(text, "{:<12} {phase:<7} {unit:<6}", bench.name());
        let mut medians = Vec::new();
        for target in targets {
            let fits = |record: &&Record| record.bench == bench && record.phase == phase && record.target == *target;
            let rates: Vec<f64> = records.iter().filter(fits).map(Record::rate).collect();
            let (least, most) =
                (rates.iter().copied().fold(f64::MAX, f64::min), rates.iter().copied().fold(0.0, f64::max));
            match median(&rates) {
                Some(median) => {
                    let range = format!("({} - {})", grouped(least), grouped(most));
                    let _ = write!(text, " {:>16} {range:>23}", grouped(median));
                    medians.push(median);
                }
                None => {
                    let _ = write!(text, " {:>16} {:>23}", "-", "");
                }
            }
        }
        if let [first, second] = medians[..] {
            let _ = write!(text, " {:>8.3}", first / second);
        }
        text.push('\n');
    }
    text
}

/// A whole number with commas between thousands.
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bench: Bench, target: &str, work: u64) -> Record {
        let measured = Measured { start: 1_000_000_000, end: 1_500_000_000, work };
        let (target, transport) = (target.to_string(), "tcp".to_string());
        Record { bench, phase: bench.phases()[0], target, procs: 2, servers: 4, transport, measured, verified: true }
    }

    /// Goal: exactly the promised keys, in order, and rates as total work by the time between first start and last end.
    #[test]
    fn json_lines() {
        assert_eq!(
            record(Bench::IorEasy, "posix:/a \"b\"", 3 << 20).json(),
            "{\"bench\":\"ior-easy\",\"phase\":\"write\",\"target\":\"posix:/a \\\"b\\\"\",\"procs\":2,\"servers\":4,\
             \"transport\":\"tcp\",\"mib_per_s\":6.0,\"seconds\":0.5,\"verified\":true}"
        );
        assert!(record(Bench::Find, "tabane", 10).json().contains("\"ops_per_s\":20.0,"));
    }

    /// Goal: the median of odd and even counts.
    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    /// Goal: one row a phase with both medians, the range and the ratio.
    #[test]
    fn tables() {
        let runs = [("tabane", 10), ("posix:/x", 40), ("tabane", 30), ("posix:/x", 40), ("tabane", 20)];
        let records: Vec<Record> = runs.map(|(target, work)| record(Bench::Find, target, work * 1_000)).into();
        let text = table(&records, &["tabane".to_string(), "posix:/x".to_string()]);
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(text.lines().count(), 2);
        assert_eq!(row[..4], ["find", "find", "op/s", "40,000"]);
        assert_eq!(row[4..8], ["(20,000", "-", "60,000)", "80,000"]);
        assert_eq!(row.last(), Some(&"0.500"));
    }
}
