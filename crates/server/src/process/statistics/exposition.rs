//! The counters in Prometheus' text format (version 0.0.4), by the rules of its checker (`promtool check metrics`):
//! each metric with its help, times in seconds, counters with `_total` at their end and nothing else with it.
//!
//! Numbers come from where the JSON report has them, by the names that they have there; what is not in the tables here
//! is left out, which a checked build notices.

use crate::core::Core;
use crate::process::statistics::jobs::{Job, JobKind};
use crate::process::statistics::report::{
    CLASSES, counter_numbers, delay_numbers, device_numbers, job_numbers, relay_numbers, store_numbers, table_numbers,
};
use crate::process::statistics::waits::{WaitGauge, WaitReason};
use reactor::COUNTER_COUNT;
use std::fmt::Write as _;

#[derive(Clone, Copy, PartialEq, Eq)]
enum MetricKind {
    Gauge,
    Counter,
}
use MetricKind::{Counter, Gauge};

/// A number of the report: its name there, that of the metric, what it is, and what it says. A metric whose name tells
/// of seconds is in nanoseconds in the report.
type Row = (&'static str, &'static str, MetricKind, &'static str);

const SINGLE: [Row; 54] = [
    ("busy_ns", "loop_busy_seconds_total", Counter, "Time in which the server's loop was at work."),
    (
        "waiting_ns",
        "loop_waiting_seconds_total",
        Counter,
        "Time in which the server's loop waited for something to do.",
    ),
    ("bytes_total", "store_size_bytes", Gauge, "Bytes for data that the store has."),
    ("bytes_free", "store_free_bytes", Gauge, "Bytes for data that are free."),
    ("bytes_backed", "store_backed_bytes", Gauge, "Bytes of the medium that the store takes for data."),
    ("bytes_registered", "store_registered_bytes", Gauge, "Bytes that clients may write to by themselves."),
    ("bytes_orphaned", "store_orphaned_bytes", Gauge, "Bytes that clients which have gone may have mapped."),
    ("page_size", "store_page_size_bytes", Gauge, "Size of the pages that the store lies on."),
    ("journal_size", "journal_size_bytes", Gauge, "Bytes that the journal has taken."),
    ("journal_used", "journal_used_bytes", Gauge, "Bytes of the journal that recovery would read."),
    ("chunks", "chunks", Gauge, "Chunks that the store holds."),
    ("files", "files_with_chunks", Gauge, "Files of which the store holds chunks."),
    ("checkpoints", "checkpoints_total", Counter, "Checkpoints that were completed."),
    ("checkpoints_failed", "checkpoints_failed_total", Counter, "Checkpoints that failed."),
    ("open_files", "open_files", Gauge, "Files that sessions have open here."),
    ("orphans", "orphans", Gauge, "Files without a name that somebody has open."),
    ("dentries", "dentries", Gauge, "Names that this server has."),
    ("inodes", "inodes", Gauge, "Files and directories that are at home here."),
    ("sessions", "sessions", Gauge, "Sessions of clients and servers that are remembered."),
    ("intents", "intents", Gauge, "Changes over several servers that are under way."),
    ("tombstones", "tombstones", Gauge, "Removed directories that are remembered."),
    ("marks", "marks", Gauge, "Directories that are marked while somebody removes them."),
    ("contact_hits", "contact_hits_total", Counter, "Opens of others' files that were answered here."),
    ("contact_misses", "contact_misses_total", Counter, "Opens of others' files that had to go to their homes."),
    (
        "contact_sessions_lost",
        "contact_sessions_lost_total",
        Counter,
        "Homes that had forgotten this server's session.",
    ),
    ("contact_names", "contact_names", Gauge, "Names of others that this server holds delegations of."),
    ("contact_files", "contact_files", Gauge, "Files of others that this server holds open for its clients."),
    ("delegations_given", "delegations_given_total", Counter, "Delegations of names that were given to other servers."),
    (
        "entry_delegations_given",
        "entry_delegations_given_total",
        Counter,
        "Delegations of all entries that were given to mounts.",
    ),
    (
        "entry_delegations_recalled",
        "entry_delegations_recalled_total",
        Counter,
        "Delegations of all entries that were called back.",
    ),
    (
        "entry_delegations_expired",
        "entry_delegations_expired_total",
        Counter,
        "Delegations of all entries that ended by time while somebody waited.",
    ),
    ("entry_delegations", "entry_delegations", Gauge, "Mounts that may keep entries of this server."),
    ("delegations_refused", "delegations_refused_total", Counter, "Delegations of names that were refused."),
    ("delegations_recalled", "delegations_recalled_total", Counter, "Delegations of names that were called back."),
    (
        "delegations_expired",
        "delegations_expired_total",
        Counter,
        "Delegations of names whose holder did not answer in time.",
    ),
    ("delegated_files", "delegated_files", Gauge, "Files of which other servers hold delegations."),
    ("read_leases_given", "read_leases_given_total", Counter, "Leases for reading that were given to clients."),
    (
        "read_leases_awaited",
        "read_leases_awaited_total",
        Counter,
        "Leases for reading whose end a change has waited for.",
    ),
    ("permits", "permits", Gauge, "Permits for large bodies of collective calls that are out."),
    ("permit_waiters", "permit_waiters", Gauge, "Requests that wait for such a permit."),
    ("permit_waits", "permit_waits_total", Counter, "Times that a request began to wait for such a permit."),
    ("permit_wait_ns", "permit_wait_seconds_total", Counter, "Time that requests have waited for such permits."),
    ("connections", "connections", Gauge, "Connections that are open."),
    ("connections_refused", "connections_refused_total", Counter, "Connections that were refused."),
    ("bytes_received", "received_bytes_total", Counter, "Bytes that came over connections."),
    ("bytes_sent", "sent_bytes_total", Counter, "Bytes that went over connections."),
    ("bytes_copied", "copied_bytes_total", Counter, "Bytes that the server has copied itself."),
    (
        "tunnels_of_clients",
        "tunnels_of_clients",
        Gauge,
        "Connections of clients that reach other servers through this one.",
    ),
    ("tunnels_of_servers", "tunnels_of_servers", Gauge, "Connections of servers that bring their clients here."),
    ("relay_streams", "relay_streams_open", Gauge, "Connections within connections that are open."),
    ("relay_streams_total", "relay_streams_total", Counter, "Connections within connections that were opened."),
    ("relay_frames", "relay_frames_total", Counter, "Frames that were passed on for others."),
    ("relay_bytes", "relay_bytes_total", Counter, "Bytes that were passed on for others."),
    ("uptime_ns", "uptime_seconds", Gauge, "Time since the server was started."),
];

/// What is counted of the device that keeps a store, where there is one.
const DEVICE: [Row; 23] = [
    ("handovers", "device_handovers_total", Counter, "Operations on devices that were handed over to the kernel."),
    (
        "handover_ns",
        "device_handover_seconds_total",
        Counter,
        "Time from preparing operations to handing them over with others.",
    ),
    ("resumptions", "device_resumptions_total", Counter, "Operations on devices that somebody went on after."),
    (
        "resumption_ns",
        "device_resumption_seconds_total",
        Counter,
        "Time from the completion of operations to going on with whoever waited.",
    ),
    ("reads", "device_reads_total", Counter, "Reads of the device that have ended."),
    ("read_bytes", "device_read_bytes_total", Counter, "Bytes that were read from the device."),
    ("read_ns", "device_read_seconds_total", Counter, "Time that reads were with the device, of all together."),
    ("writes", "device_writes_total", Counter, "Writes to the device that have ended."),
    ("written_bytes", "device_written_bytes_total", Counter, "Bytes that were written to the device."),
    ("write_ns", "device_write_seconds_total", Counter, "Time that writes were with the device, of all together."),
    ("flushes", "device_flushes_total", Counter, "Flushes of the device that have ended."),
    ("flush_ns", "device_flush_seconds_total", Counter, "Time that flushes were with the device, of all together."),
    ("discards", "device_discards_total", Counter, "Ranges of the device that were given up."),
    ("discarded_bytes", "device_discarded_bytes_total", Counter, "Bytes of the device that were given up."),
    ("failed", "device_failed_total", Counter, "Operations on the device that failed."),
    ("in_flight", "device_in_flight", Gauge, "Operations that the device has."),
    ("in_flight_most", "device_in_flight_most", Gauge, "The most operations that the device ever had."),
    ("queued", "device_queued", Gauge, "Operations that wait until the device has fewer."),
    ("queued_ns", "device_queued_seconds_total", Counter, "Time that operations have waited so."),
    ("buffer_resident", "buffer_resident_bytes", Gauge, "Bytes of data that are in memory."),
    ("buffer_dirty", "buffer_dirty_bytes", Gauge, "Bytes of the store that the device does not have for good."),
    ("buffer_waiting", "buffer_waiting", Gauge, "Operations that wait for bytes of the device, or for room in memory."),
    ("buffer_waits", "buffer_waits_total", Counter, "Times that an operation began to wait so."),
];

/// What is counted of a backing directory, where there is one.
const BACKING: [Row; 25] = [
    ("calls", "backing_calls_total", Counter, "Calls on the backing directory."),
    ("calls_under_way", "backing_calls_under_way", Gauge, "Calls on the backing directory that have not ended."),
    ("looks", "backing_looks_total", Counter, "Names that were looked at in the backing directory."),
    ("taken_up", "backing_taken_up_total", Counter, "Names that were taken up from the backing directory."),
    ("listings", "backing_listings_total", Counter, "Directories that were listed in the backing directory."),
    ("fetched_chunks", "backing_fetched_chunks_total", Counter, "Chunks that were fetched from the backing directory."),
    ("fetched_bytes", "backing_fetched_bytes_total", Counter, "Bytes that were fetched from the backing directory."),
    ("evicted_chunks", "backing_evicted_chunks_total", Counter, "Clean chunks that were given up for room."),
    ("evicted_bytes", "backing_evicted_bytes_total", Counter, "Bytes of clean chunks that were given up for room."),
    (
        "failed",
        "backing_calls_failed_total",
        Counter,
        "Calls on the backing directory that somebody's request failed by.",
    ),
    (
        "changed_behind",
        "backing_changed_behind_total",
        Counter,
        "Times that something was not fetched, for somebody else had changed it in the backing directory.",
    ),
    ("checks", "backing_checks_total", Counter, "Names and directories that were looked at again."),
    (
        "forgotten_names",
        "backing_forgotten_names_total",
        Counter,
        "Names that somebody else had changed, and nobody here.",
    ),
    ("evicted_names", "backing_evicted_names_total", Counter, "Names that were given up, for there were too many."),
    ("flushes", "backing_flushes_total", Counter, "Flushes that this server has led."),
    (
        "carried",
        "backing_carried_total",
        Counter,
        "Files, directories and links that were carried to the backing directory.",
    ),
    ("carried_bytes", "backing_carried_bytes_total", Counter, "Bytes that were written to the backing directory."),
    (
        "flush_spell_ns",
        "backing_flush_spell_seconds",
        Gauge,
        "Time without accesses after which changes go by themselves.",
    ),
    (
        "flush_turns_held",
        "backing_flush_turns_held_total",
        Counter,
        "Times that a flush has stepped back for accesses.",
    ),
    ("known", "backing_known", Gauge, "Files, directories and links that have a place in the backing directory."),
    ("chunks_here", "backing_chunks_here", Gauge, "Chunks of them that are here."),
    ("chunks_dirty", "backing_chunks_dirty", Gauge, "Chunks of them that were changed here since."),
    ("changed_here", "backing_changed_here", Gauge, "Files and directories of which something was changed here since."),
    ("names_differing", "backing_names_differing", Gauge, "Names that stand for something else there."),
    ("made_here", "backing_made_here", Gauge, "Files, directories and links that are here alone."),
];

/// What is counted for each operation, and for each class of them.
const COUNTERS: [Row; 9] = [
    ("arrivals", "arrivals_total", Counter, "Requests that came"),
    ("finished", "finished_total", Counter, "Requests that were answered"),
    ("failed", "failed_total", Counter, "Requests that were answered with an error"),
    ("req_qdepth", "queued", Gauge, "Requests that have come and wait"),
    ("req_active", "active", Gauge, "Requests that are being worked on"),
    ("req_waittime_ns", "wait_seconds_total", Counter, "Time that requests have waited"),
    ("service_ns", "service_seconds_total", Counter, "Time that requests were worked on"),
    ("bytes_in", "received_bytes_total", Counter, "Bytes of data that requests have brought"),
    ("bytes_out", "sent_bytes_total", Counter, "Bytes of data that answers have taken along"),
];

/// What is counted for each thing that requests wait for.
const WAITS: [Row; 3] = [
    ("depth", "depth", Gauge, "Requests that wait for it"),
    ("begun", "begun_total", Counter, "Times that a request began to wait for it"),
    ("waited_ns", "seconds_total", Counter, "Time that requests have waited for it"),
];

/// What is counted for each job of clients.
const JOBS: [Row; 10] = [
    ("arrivals", "arrivals_total", Counter, "Requests that came"),
    ("finished", "finished_total", Counter, "Requests that were answered"),
    ("failed", "failed_total", Counter, "Requests that were answered with an error"),
    ("reads", "read_requests_total", Counter, "Requests for bytes that were answered"),
    ("writes", "write_requests_total", Counter, "Requests with bytes that were answered"),
    ("metadata", "metadata_requests_total", Counter, "Other requests that were answered"),
    ("req_waittime_ns", "wait_seconds_total", Counter, "Time that requests have waited"),
    ("service_ns", "service_seconds_total", Counter, "Time that requests were worked on"),
    ("bytes_in", "received_bytes_total", Counter, "Bytes of data that requests have brought"),
    ("bytes_out", "sent_bytes_total", Counter, "Bytes of data that answers have taken along"),
];

/// What clients count themselves, of all and of each job.
const CLIENTS: [Row; COUNTER_COUNT] = [
    ("cached_opens", "client_cached_opens_total", Counter, "Opens that clients did by the attribute cache"),
    ("cached_looks", "client_cached_looks_total", Counter, "Looks that clients took at the attribute cache"),
    ("short_circuit_reads", "client_short_circuit_reads_total", Counter, "Reads that clients did by short circuit"),
    ("short_circuit_bytes", "client_short_circuit_bytes_total", Counter, "Bytes that clients read by short circuit"),
    ("leased_reads", "client_leased_reads_total", Counter, "Reads that clients did under read leases"),
    ("leased_bytes", "client_leased_bytes_total", Counter, "Bytes that clients read under read leases"),
    ("answers", "client_answers_total", Counter, "Answers that clients had to their requests"),
    ("answer_ns", "client_answer_seconds_total", Counter, "Time that clients waited for answers"),
    ("served_ns", "client_served_seconds_total", Counter, "Part of it that servers said they took"),
    ("crossing_calls", "client_crossing_calls_total", Counter, "Calls no larger than a chunk that touched two"),
];

/// The numbers of something that a label tells apart from others.
type Labelled = (String, Vec<(&'static str, u64)>);

/// What stands for a job in a label.
fn job_label(kind: JobKind, job: &Job) -> String {
    match kind {
        JobKind::Job => job.name.clone(),
        kind => format!("({})", kind.word()),
    }
}

/// The page.
pub fn prometheus(core: &Core) -> String {
    core.statistics.collect_clients();
    let turns = core.reactor.statistics();
    let mut numbers = vec![
        ("busy_ns", turns.busy_ns),
        ("waiting_ns", turns.waiting_ns),
        ("uptime_ns", core.reactor.now().saturating_sub(core.life.started())),
        ("bytes_copied", core.reactor.bytes_copied()),
    ];
    numbers.extend(store_numbers(core).into_iter().chain(table_numbers(core)));
    numbers.extend(core.leases.numbers());
    if let Some(handle) = core.life.handle() {
        let served = handle.statistics();
        numbers.extend([
            ("connections", served.connections as u64),
            ("connections_refused", served.connections_refused),
            ("bytes_received", served.bytes_received),
            ("bytes_sent", served.bytes_sent),
        ]);
        numbers.extend(relay_numbers(&served));
    }
    let mut page = MetricsPage(String::with_capacity(16_384));
    for (key, value) in &numbers {
        page.put_single(&SINGLE, key, *value);
    }
    if let Some(numbers) = device_numbers(core) {
        let numbers = delay_numbers(&turns).into_iter().chain(numbers);
        numbers.for_each(|(key, value)| page.put_single(&DEVICE, key, value));
    }
    if let Some(backing) = &core.backing {
        let numbers = backing.numbers().into_iter().chain(core.backing_changes());
        numbers.for_each(|(key, value)| page.put_single(&BACKING, key, value));
    }
    for (row, (_, value)) in CLIENTS.iter().zip(core.statistics.client_totals().numbers()) {
        page.head(row.1, row.2, &format!("{}.", row.3));
        page.put(row.1, "", row, value);
    }
    let mut operations = Vec::new();
    core.statistics.for_each(&mut |operation, counters| {
        operations.push((operation.name().to_owned(), counter_numbers(counters).to_vec()));
    });
    let now = core.reactor.now();
    let class_of =
        |(name, class): (&str, _)| (name.to_owned(), counter_numbers(&core.statistics.class(class, now)).to_vec());
    let waits = CLASSES.map(|(_, class)| core.statistics.waits(class));
    let wait_of = |reason: &WaitReason| {
        let sum = |of: &dyn Fn(&WaitGauge) -> u64| waits.iter().map(|class| of(&class[*reason as usize])).sum();
        let numbers = vec![
            ("depth", sum(&WaitGauge::depth)),
            ("begun", sum(&WaitGauge::begun)),
            ("waited_ns", sum(&|gauge| gauge.total_ns(now))),
        ];
        (reason.word().to_owned(), numbers)
    };
    let jobs: Vec<Labelled> = core
        .statistics
        .jobs()
        .iter()
        .map(|(kind, job)| {
            (job_label(kind, job), [&job_numbers(&job.counters)[..], &job.counters.clients.numbers()].concat())
        })
        .collect();
    page.families(("operation", "operation"), &COUNTERS, &operations);
    page.families(("class", "class"), &COUNTERS, &CLASSES.map(class_of));
    page.families(("wait", "reason"), &WAITS, &WaitReason::ALL.each_ref().map(wait_of));
    page.families(("job", "job"), &JOBS, &jobs);
    page.families(("job", "job"), &CLIENTS, &jobs);
    page.0
}

struct MetricsPage(String);

impl MetricsPage {
    fn head(&mut self, name: &str, kind: MetricKind, help: &str) {
        let kind = if kind == Counter { "counter" } else { "gauge" };
        let _ = writeln!(self.0, "# HELP tabane_{name} {help}\n# TYPE tabane_{name} {kind}");
    }

    /// A number by its name in the report.
    fn put_single(&mut self, rows: &[Row], key: &str, value: u64) {
        let row = rows.iter().find(|row| row.0 == key);
        assert!(row.is_some(), "{key} is in no table");
        if let Some(row) = row {
            self.head(row.1, row.2, row.3);
            self.put(row.1, "", row, value);
        }
    }

    fn put(&mut self, name: &str, labels: &str, row: &Row, value: u64) {
        let _ = match row.1.contains("_seconds") {
            true => writeln!(self.0, "tabane_{name}{labels} {}.{:09}", value / 1_000_000_000, value % 1_000_000_000),
            false => writeln!(self.0, "tabane_{name}{labels} {value}"),
        };
    }

    /// What is counted for each of several, told apart by a label. Names begin with `prefix`.
    fn families(&mut self, (prefix, label): (&str, &str), rows: &[Row], all: &[Labelled]) {
        for row in rows.iter().filter(|_| !all.is_empty()) {
            let name = format!("{prefix}_{}", row.1);
            self.head(&name, row.2, &format!("{}, by {label}.", row.3));
            for (value, numbers) in all {
                let number = numbers.iter().find(|(key, _)| *key == row.0).map_or(0, |(_, number)| *number);
                let value = value.replace('\\', "\\\\").replace('"', "\\\"");
                self.put(&name, &format!("{{{label}=\"{value}\"}}"), row, number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Goal: names are what Prometheus' checker wants, and no two metrics are the same.
    /// Method: its rules (promlint, github.com/prometheus/client_golang), over the tables.
    #[test]
    fn names() {
        const ABBREVIATED: [&str; 14] =
            ["s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"];
        const TYPES: [&str; 5] = ["counter", "gauge", "histogram", "summary", "untyped"];
        let mut seen = BTreeSet::new();
        let tables: [(&str, &[Row]); 4] =
            [("operation", &COUNTERS), ("class", &COUNTERS), ("wait", &WAITS), ("job", &JOBS)];
        let counters = tables.into_iter().flat_map(|(label, rows)| {
            rows.iter().map(move |row| (format!("{label}_{}", row.1), row.2, format!("{} by {label}", row.3)))
        });
        let single =
            SINGLE.iter().chain(&DEVICE).chain(&BACKING).map(|row| (row.1.to_owned(), row.2, row.3.to_owned()));
        for (name, kind, help) in single.chain(counters) {
            assert!(
                seen.insert(name.clone()) && seen.insert(help.clone()) && !help.is_empty(),
                "{name} is there twice"
            );
            assert_eq!(name.ends_with("_total"), kind == Counter, "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            for part in name.split('_') {
                assert!(!ABBREVIATED.contains(&part) && !TYPES.contains(&part), "{name}");
                let scaled = ["milli", "micro", "nano", "kilo", "mega", "giga", "kibi", "mebi"];
                assert!(!scaled.iter().any(|prefix| part.starts_with(prefix)), "{name}");
            }
            assert!(!["_count", "_sum", "_bucket"].iter().any(|suffix| name.ends_with(suffix)), "{name}");
        }
    }
}
