//! What is said about a run: one JSON line a phase for programs, tables for people.

use crate::call_times::{CallTimes, Quantiles};
use crate::group::Measured;
use crate::options::{Bench, Unit};
use reactor::Nanos;
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
        let mut fields: Vec<(&str, Value)> = vec![
            ("bench", self.bench.name().into()),
            ("phase", self.phase.into()),
            ("target", self.target.as_str().into()),
            ("procs", self.procs.into()),
            ("servers", self.servers.into()),
            ("transport", self.transport.as_str().into()),
            (rate_key, round(self.rate(), 1).into()),
            ("seconds", round(self.seconds(), 6).into()),
        ];
        if let Some(Quantiles { p50, p99, p999, most }) = self.measured.calls.quantiles() {
            fields.push(("calls", self.measured.calls.call_count().into()));
            let times = [("p50_us", p50), ("p99_us", p99), ("p999_us", p999), ("most_us", most)];
            fields.extend(times.map(|(key, time)| (key, round(microseconds(time), 3).into())));
        }
        fields.push(("verified", self.verified.into()));
        let fields: Vec<String> = fields.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
        format!("{{{}}}", fields.join(","))
    }
}

fn microseconds(time: Nanos) -> f64 {
    time as f64 / 1e3
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

/// The phases that there are records of, in their order.
fn phases_of(records: &[Record]) -> Vec<(Bench, &'static str)> {
    let mut phases = Vec::new();
    for record in records {
        if !phases.contains(&(record.bench, record.phase)) {
            phases.push((record.bench, record.phase));
        }
    }
    phases
}

/// Times of one call in each phase, of all processes and runs together; empty where none were taken.
pub fn call_table(records: &[Record], targets: &[String]) -> String {
    let mut rows = String::new();
    for (bench, phase) in phases_of(records) {
        let fits = |record: &&Record| record.bench == bench && record.phase == phase;
        let sums: Vec<CallTimes> = targets
            .iter()
            .map(|target| {
                let mut sum = CallTimes::new();
                let of_target = records.iter().filter(fits).filter(|record| record.target == *target);
                of_target.for_each(|record| sum.add(&record.measured.calls));
                sum
            })
            .collect();
        if sums.iter().all(|sum| sum.call_count() == 0) {
            continue;
        }
        let _ = write!(rows, "{:<12} {phase:<7}", bench.name());
        for sum in sums {
            match sum.quantiles() {
                Some(Quantiles { p50, p99, p999, most }) => {
                    let [p50, p99, p999, most] = [p50, p99, p999, most].map(microsecond_words);
                    let _ = write!(rows, " {p50:>10} {p99:>10} {p999:>10} {most:>12}");
                }
                None => {
                    let _ = write!(rows, " {:>10} {:>10} {:>10} {:>12}", "-", "", "", "");
                }
            }
        }
        rows.push('\n');
    }
    if rows.is_empty() {
        return rows;
    }
    let mut text = format!("{:<20}", "time of a call, us");
    for target in targets {
        let _ = write!(text, " {target:>45}");
    }
    let _ = write!(text, "\n{:<12} {:<7}", "bench", "phase");
    for _ in targets {
        let _ = write!(text, " {:>10} {:>10} {:>10} {:>12}", "p50", "p99", "p99.9", "most");
    }
    text + "\n" + &rows
}

/// Microseconds with as many digits as a histogram has.
fn microsecond_words(time: Nanos) -> String {
    let microseconds = microseconds(time);
    if microseconds < 100.0 { format!("{microseconds:.2}") } else { grouped(microseconds) }
}

/// Medians of all phases, for one target or for two with the ratio of the first to the second.
pub fn table(records: &[Record], targets: &[String]) -> String {
    let phases = phases_of(records);
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
pub mod tests {
    use super::*;

    /// A run of the first phase of a bench.
    pub fn record(bench: Bench, target: &str, work: u64) -> Record {
        let measured = Measured { start: 1_000_000_000, end: 1_500_000_000, work, calls: CallTimes::new() };
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
        let mut timed = record(Bench::Ping, "tabane", 10);
        [800, 900, 2_500_000].into_iter().for_each(|time| timed.measured.calls.record(time));
        let times = "\"calls\":3,\"p50_us\":0.903,\"p99_us\":2500.0,\"p999_us\":2500.0,\"most_us\":2500.0,\"verified\"";
        assert!(timed.json().contains(times), "{}", timed.json());
    }

    /// Goal: times of calls are those of all runs of a target together, and there is no table without any.
    #[test]
    fn call_tables() {
        let targets = ["tabane".to_string(), "posix:/x".to_string()];
        let mut records = ["tabane", "posix:/x", "tabane"].map(|target| record(Bench::Find, target, 10));
        assert_eq!(call_table(&records, &targets), "");
        records[0].measured.calls.record(50);
        records[2].measured.calls.record(1_234_567_000);
        let text = call_table(&records, &targets);
        let row: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row, ["find", "find", "0.05", "1,234,567", "1,234,567", "1,234,567", "-"]);
        assert_eq!(text.lines().count(), 3);
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
