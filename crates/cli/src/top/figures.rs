//! From the reports of servers, which are totals since their start, to what happens each second.

use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};

const CLASSES: [&str; 2] = ["metadata", "data"];
/// How we ask; not what anybody came for.
const OWN_OPERATION: &str = "Statistics";
/// Seconds that are kept.
pub const HISTORY_SIZE: usize = 60;
/// A report that says so little after the one before it is not a rate yet.
const SPAN_SECONDS_MIN: f64 = 0.02;

/// Totals of one server at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    pub time_ns: u64,
    pub operations: u64,
    /// Requests that were started.
    pub started: u64,
    pub wait_ns: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub busy_ns: u64,
}

/// Totals of what a server did with its backing directory, and what is not there as it is here.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Backing {
    pub calls: u64,
    pub fetched_bytes: u64,
    pub carried_bytes: u64,
    pub evicted_bytes: u64,
    /// Files, directories and links that were changed or made here.
    pub changed: u64,
    /// Age of the call that takes longest.
    pub longest_ns: u64,
}

/// Totals of the device that keeps a server's store.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Device {
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    /// Time that operations were with the device, of all together.
    pub operation_ns: u64,
    /// Time that they have waited until it had fewer.
    pub queued_ns: u64,
    /// Bytes that it does not have for good.
    pub dirty_bytes: u64,
}

/// What a server said of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    pub totals: Totals,
    pub active: u64,
    pub connections: u64,
    pub bytes_total: u64,
    pub bytes_free: u64,
    /// Nothing without a backing directory.
    pub backing: Option<Backing>,
    /// Nothing where the store is in memory.
    pub device: Option<Device>,
    /// By name of operation.
    pub kinds: BTreeMap<String, Kind>,
    /// Totals of the last minute, one a second, oldest first, where they were asked for.
    pub samples: Vec<Totals>,
}

/// One kind of operation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kind {
    pub finished: u64,
    pub failed: u64,
    pub service_ns: u64,
    pub p99_ns: u64,
    pub bytes: u64,
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or(0)
}

fn class_sum(value: &Value, key: &str) -> u64 {
    CLASSES.iter().map(|class| number(&value[*class], key)).sum()
}

/// `clients` is what these did without the server.
fn totals_of(classes: &Value, clients: &Value, time_ns: u64, busy_ns: u64) -> Totals {
    let sum = |keys: &[&str]| keys.iter().map(|key| number(clients, key)).fold(0, u64::saturating_add);
    let alone = sum(&["cached_opens", "cached_looks", "short_circuit_reads", "leased_reads"]);
    let operations = class_sum(classes, "finished") + alone;
    Totals {
        time_ns,
        operations,
        started: class_sum(classes, "arrivals"),
        wait_ns: class_sum(classes, "req_waittime_ns"),
        bytes_read: class_sum(classes, "bytes_out") + sum(&["short_circuit_bytes", "leased_bytes"]),
        bytes_written: class_sum(classes, "bytes_in"),
        busy_ns,
    }
}

fn backing_of(backing: &Value) -> Option<Backing> {
    backing.is_object().then(|| Backing {
        calls: number(backing, "calls"),
        fetched_bytes: number(backing, "fetched_bytes"),
        carried_bytes: number(backing, "carried_bytes"),
        evicted_bytes: number(backing, "evicted_bytes"),
        changed: number(backing, "changed_here") + number(backing, "made_here"),
        longest_ns: backing["longest_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|call| number(call, "age_ns"))
            .max()
            .unwrap_or(0),
    })
}

fn device_of(device: &Value) -> Option<Device> {
    device.is_object().then(|| Device {
        read_bytes: number(device, "read_bytes"),
        written_bytes: number(device, "written_bytes"),
        flushes: number(device, "flushes"),
        operation_ns: ["read_ns", "write_ns", "flush_ns"].iter().map(|key| number(device, key)).sum(),
        queued_ns: number(device, "queued_ns"),
        dirty_bytes: number(device, "buffer_dirty"),
    })
}

impl Report {
    /// Reads a server's report. What is missing in it counts as zero.
    pub fn parse(report: &Value) -> Report {
        let classes = &report["classes"];
        let (uptime_ns, busy_ns) = (number(report, "uptime_ns"), number(&report["loop"], "busy_ns"));
        let mut totals = totals_of(classes, &report["clients"], uptime_ns, busy_ns);
        // Our own questions are finished one by one, and the one that this report answers is active.
        let own = &report["operations"][OWN_OPERATION];
        totals.operations -= totals.operations.min(number(own, "finished"));
        totals.started -= totals.started.min(number(own, "arrivals"));
        totals.bytes_read -= totals.bytes_read.min(number(own, "bytes_out"));
        totals.bytes_written -= totals.bytes_written.min(number(own, "bytes_in"));
        totals.wait_ns -= totals.wait_ns.min(number(own, "req_waittime_ns"));
        let kinds = report["operations"].as_object().into_iter().flatten();
        let kinds = kinds.filter(|(name, _)| *name != OWN_OPERATION).map(|(name, counters)| {
            let kind = Kind {
                finished: number(counters, "finished"),
                failed: number(counters, "failed"),
                service_ns: number(counters, "service_ns"),
                p99_ns: number(counters, "service_ns_p99"),
                bytes: number(counters, "bytes_in") + number(counters, "bytes_out"),
            };
            (name.clone(), kind)
        });
        let samples = report["samples"].as_array().into_iter().flatten();
        Report {
            totals,
            active: class_sum(classes, "req_active").saturating_sub(number(own, "req_active")),
            connections: number(report, "connections"),
            bytes_total: number(&report["store"], "bytes_total"),
            bytes_free: number(&report["store"], "bytes_free"),
            backing: backing_of(&report["backing"]),
            device: device_of(&report["device"]),
            kinds: kinds.collect(),
            samples: samples
                .map(|sample| {
                    totals_of(sample, &sample["clients"], number(sample, "time_ns"), number(sample, "busy_ns"))
                })
                .collect(),
        }
    }
}

/// What happens in a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    pub operations: f64,
    pub bytes_read: f64,
    pub bytes_written: f64,
    /// Requests that waited, on average over the time.
    pub queued: f64,
    /// Mean time that a request waited; `None` when none came.
    pub wait_ns: Option<f64>,
    /// Share of the time in which the server's loop worked, 0 to 1. For a cluster the mean.
    pub busy: f64,
}

impl Rates {
    /// The rates between two moments; `None` when they are too close, or a restart lies between them.
    pub fn between(before: &Totals, after: &Totals) -> Option<Rates> {
        let seconds = after.time_ns.checked_sub(before.time_ns)? as f64 / 1e9;
        if seconds < SPAN_SECONDS_MIN || after.operations < before.operations || after.busy_ns < before.busy_ns {
            return None;
        }
        let per_second = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        let started = after.started.saturating_sub(before.started);
        Some(Rates {
            operations: per_second(before.operations, after.operations),
            bytes_read: per_second(before.bytes_read, after.bytes_read),
            bytes_written: per_second(before.bytes_written, after.bytes_written),
            queued: after.wait_ns.saturating_sub(before.wait_ns) as f64 / (seconds * 1e9),
            wait_ns: (started > 0).then(|| after.wait_ns.saturating_sub(before.wait_ns) as f64 / started as f64),
            busy: (per_second(before.busy_ns, after.busy_ns) / 1e9).clamp(0.0, 1.0),
        })
    }
}

/// What happens with the backing directory in a second, and what is to go there.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BackingRates {
    pub calls: f64,
    pub fetched: f64,
    pub carried: f64,
    pub evicted: f64,
    pub changed: u64,
    pub longest_ns: u64,
}

impl BackingRates {
    /// `None` where there is no backing directory; nothing happens between reports that are too close.
    fn between(before: &Report, after: &Report) -> Option<BackingRates> {
        let (old, new) = (before.backing.unwrap_or_default(), after.backing?);
        let per_second = per_second(before, after);
        Some(BackingRates {
            calls: per_second(old.calls, new.calls),
            fetched: per_second(old.fetched_bytes, new.fetched_bytes),
            carried: per_second(old.carried_bytes, new.carried_bytes),
            evicted: per_second(old.evicted_bytes, new.evicted_bytes),
            changed: new.changed,
            longest_ns: new.longest_ns,
        })
    }

    /// Those of several servers together.
    pub fn join(all: impl Iterator<Item = BackingRates>) -> Option<BackingRates> {
        all.reduce(|sum, one| BackingRates {
            calls: sum.calls + one.calls,
            fetched: sum.fetched + one.fetched,
            carried: sum.carried + one.carried,
            evicted: sum.evicted + one.evicted,
            changed: sum.changed + one.changed,
            longest_ns: sum.longest_ns.max(one.longest_ns),
        })
    }
}

/// From two totals to what happens in a second; nothing happens between reports that are too close.
fn per_second(before: &Report, after: &Report) -> impl Fn(u64, u64) -> f64 {
    let seconds = after.totals.time_ns.saturating_sub(before.totals.time_ns) as f64 / 1e9;
    move |before: u64, after: u64| match seconds < SPAN_SECONDS_MIN {
        true => 0.0,
        false => after.saturating_sub(before) as f64 / seconds,
    }
}

/// What the device that keeps a store does in a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DeviceRates {
    pub read: f64,
    pub written: f64,
    pub flushes: f64,
    /// Operations that it had at once, on average over the time.
    pub depth: f64,
    /// Those that waited until it had fewer, likewise.
    pub queued: f64,
    pub dirty: u64,
}

impl DeviceRates {
    /// `None` where the store is in memory.
    fn between(before: &Report, after: &Report) -> Option<DeviceRates> {
        let (old, new) = (before.device.unwrap_or_default(), after.device?);
        let per_second = per_second(before, after);
        Some(DeviceRates {
            read: per_second(old.read_bytes, new.read_bytes),
            written: per_second(old.written_bytes, new.written_bytes),
            flushes: per_second(old.flushes, new.flushes),
            depth: per_second(old.operation_ns, new.operation_ns) / 1e9,
            queued: per_second(old.queued_ns, new.queued_ns) / 1e9,
            dirty: new.dirty_bytes,
        })
    }

    /// Those of several servers together.
    pub fn join(all: impl Iterator<Item = DeviceRates>) -> Option<DeviceRates> {
        all.reduce(|sum, one| DeviceRates {
            read: sum.read + one.read,
            written: sum.written + one.written,
            flushes: sum.flushes + one.flushes,
            depth: sum.depth + one.depth,
            queued: sum.queued + one.queued,
            dirty: sum.dirty + one.dirty,
        })
    }
}

/// One kind of operation in the last interval.
#[derive(Debug, Clone, PartialEq)]
pub struct KindRates {
    pub name: String,
    pub operations: f64,
    pub failed: f64,
    pub bytes: f64,
    /// Mean from start to end in this interval.
    pub service_ns: f64,
    /// Since the start of the server.
    pub p99_ns: u64,
}

/// What is known of a server over time.
#[derive(Debug, Clone, Default)]
pub struct Track {
    pub report: Option<Report>,
    pub rates: Option<Rates>,
    pub backing: Option<BackingRates>,
    pub device: Option<DeviceRates>,
    pub kinds: Vec<KindRates>,
    /// The last minute, oldest first.
    pub history: VecDeque<Rates>,
}

impl Track {
    /// A report came.
    pub fn take(&mut self, report: Report) {
        for pair in report.samples.windows(2).rev().take(HISTORY_SIZE).rev() {
            if let Some(rates) = Rates::between(&pair[0], &pair[1]) {
                self.remember(rates);
            }
        }
        if let Some(before) = &self.report {
            self.rates = Rates::between(&before.totals, &report.totals);
            self.kinds = kinds_between(before, &report);
            self.backing = BackingRates::between(before, &report);
            self.device = DeviceRates::between(before, &report);
            if let Some(rates) = self.rates {
                self.remember(rates);
            }
        }
        self.report = Some(report);
    }

    fn remember(&mut self, rates: Rates) {
        if self.history.len() == HISTORY_SIZE {
            self.history.pop_front();
        }
        self.history.push_back(rates);
    }

    /// An interval passed without a word.
    pub fn missed(&mut self) {
        (self.rates, self.backing, self.device) = (None, None, None);
        self.kinds.clear();
        self.remember(Rates::default());
    }
}

fn kinds_between(before: &Report, after: &Report) -> Vec<KindRates> {
    let Some(span) = after.totals.time_ns.checked_sub(before.totals.time_ns).filter(|span| *span > 0) else {
        return Vec::new();
    };
    let seconds = span as f64 / 1e9;
    let none = Kind::default();
    let rates = after.kinds.iter().filter_map(|(name, kind)| {
        let old = before.kinds.get(name).unwrap_or(&none);
        let finished = kind.finished.checked_sub(old.finished).filter(|count| *count > 0)?;
        Some(KindRates {
            name: name.clone(),
            operations: finished as f64 / seconds,
            failed: kind.failed.saturating_sub(old.failed) as f64 / seconds,
            bytes: kind.bytes.saturating_sub(old.bytes) as f64 / seconds,
            service_ns: kind.service_ns.saturating_sub(old.service_ns) as f64 / finished as f64,
            p99_ns: kind.p99_ns,
        })
    });
    rates.collect()
}

/// The kinds of several servers together, the busiest first.
pub fn join_kinds<'a>(tracks: impl Iterator<Item = &'a Track>) -> Vec<KindRates> {
    let mut sums: BTreeMap<&str, KindRates> = BTreeMap::new();
    for kind in tracks.flat_map(|track| &track.kinds) {
        match sums.get_mut(kind.name.as_str()) {
            None => {
                sums.insert(&kind.name, kind.clone());
            }
            Some(sum) => {
                let operations = sum.operations + kind.operations;
                sum.service_ns = (sum.service_ns * sum.operations + kind.service_ns * kind.operations) / operations;
                sum.operations = operations;
                sum.failed += kind.failed;
                sum.bytes += kind.bytes;
                sum.p99_ns = sum.p99_ns.max(kind.p99_ns);
            }
        }
    }
    let mut kinds: Vec<KindRates> = sums.into_values().collect();
    kinds.sort_by(|left, right| right.operations.total_cmp(&left.operations));
    kinds
}

/// Rates of several servers together.
pub fn join_rates(rates: impl Iterator<Item = Rates>) -> Option<Rates> {
    let (mut sum, mut count, mut waited) = (Rates::default(), 0, 0.0);
    for one in rates {
        count += 1;
        sum.operations += one.operations;
        sum.bytes_read += one.bytes_read;
        sum.bytes_written += one.bytes_written;
        sum.busy += one.busy;
        sum.queued += one.queued;
        if let Some(wait_ns) = one.wait_ns {
            // Weighted by what was done; a server that only began something counts a little.
            let weight = one.operations.max(f64::MIN_POSITIVE);
            waited += weight;
            sum.wait_ns = Some(sum.wait_ns.unwrap_or(0.0) + wait_ns * weight);
        }
    }
    sum.busy /= f64::from(count.max(1));
    sum.wait_ns = sum.wait_ns.map(|wait_ns| wait_ns / waited);
    (count > 0).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn totals(seconds: u64, operations: u64, wait_ns: u64) -> Totals {
        let time_ns = seconds * 1_000_000_000;
        Totals { time_ns, operations, started: operations, wait_ns, busy_ns: time_ns / 4, ..Totals::default() }
    }

    /// Goal: rates are differences by time, and neither a restart nor two reports at once make any.
    #[test]
    fn rates() {
        let rates = Rates::between(&totals(10, 100, 1000), &totals(12, 300, 5000)).unwrap();
        assert_eq!((rates.operations, rates.wait_ns, rates.busy), (100.0, Some(20.0), 0.25));
        assert_eq!(Rates::between(&totals(10, 100, 0), &totals(12, 100, 0)).unwrap().wait_ns, None);
        assert_eq!(Rates::between(&totals(10, 100, 0), &totals(1, 5, 0)), None);
        assert_eq!(Rates::between(&totals(10, 100, 0), &totals(10, 101, 0)), None);
    }

    /// Goal: our own questions are no operations, and what a report lacks counts as zero.
    #[test]
    fn reports() {
        let class = json!({"finished": 7, "arrivals": 10, "req_active": 3, "req_qdepth": 2, "bytes_in": 50,
            "bytes_out": 60, "req_waittime_ns": 9});
        let own = json!({"finished": 2, "arrivals": 3, "req_active": 1, "bytes_out": 10, "req_waittime_ns": 1});
        let report = Report::parse(
            &json!({"classes": {"metadata": class}, "operations": {"Statistics": own, "Open": {"finished": 5}}}),
        );
        assert_eq!((report.totals.operations, report.totals.started, report.active), (5, 7, 2));
        assert_eq!((report.totals.bytes_read, report.totals.bytes_written, report.totals.wait_ns), (50, 50, 8));
        assert_eq!(report.kinds.len(), 1);
        assert_eq!(Report::parse(&json!({})), Report::default());
    }

    /// Goal: the last minute is there from the first report on, and holds no more than a minute.
    #[test]
    fn history() {
        let samples = (0..100).map(|second| totals(second, second * 10, 0)).collect();
        let mut track = Track::default();
        track.take(Report { samples, ..Report::default() });
        assert_eq!(track.history.len(), HISTORY_SIZE);
        track.take(Report { totals: totals(100, 3000, 0), ..Report::default() });
        assert_eq!((track.history.len(), track.rates.unwrap().operations), (HISTORY_SIZE, 30.0));
        track.missed();
        assert_eq!((track.rates, track.history.back().unwrap().operations), (None, 0.0));
    }

    /// Goal: a cluster's rates are sums, its busy share and waiting time means.
    #[test]
    fn clusters() {
        let one = Rates { operations: 10.0, wait_ns: Some(100.0), busy: 0.5, ..Rates::default() };
        let two = Rates { operations: 30.0, wait_ns: Some(200.0), busy: 0.1, ..Rates::default() };
        let sum = join_rates([one, two, Rates::default()].into_iter()).unwrap();
        assert_eq!((sum.operations, sum.wait_ns, (sum.busy * 10.0).round()), (40.0, Some(175.0), 2.0));
        assert_eq!(join_rates(std::iter::empty()), None);
    }
}
