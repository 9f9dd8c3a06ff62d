//! `tabane status`: how the servers are.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use crate::hosts::HostsRecord;
use crate::mount_status::{MountStatus, of_this_host};
use crate::run_directory::{of_cluster_path, process_of};
use crate::session::{Session, cluster_path};
use crate::store_memory::OWN_MEMORY;
use crate::text::{count_words, duration_words, size_short, size_words};
use crate::together::{Either, join_all, race};
use client::mounts::source_of;
use client::{Cluster, StatisticsFormat};
use reactor::process::ProcessId;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

const CLASSES: [&str; 2] = ["metadata", "data"];
const NANOS_PER_MS: reactor::Nanos = 1_000_000;
/// Bytes of a page that is not huge.
const PAGE_SIZE_LEAST: u64 = 4096;
/// Time between looks at whether a server's process is still there.
const LOOK_NS: reactor::Nanos = 100_000_000;

/// What is known of one server.
struct ServerStatus {
    index: u32,
    address: String,
    process: Option<ProcessId>,
    /// Its own report, or why there is none.
    report: Result<Value, String>,
}

/// `tabane status`.
pub fn run(arguments: &Arguments) -> Outcome {
    if !arguments.operand_bytes().is_empty() {
        if arguments.flag("metrics") {
            return Err(Failure::usage("--metrics is about servers; leave the paths away"));
        }
        return crate::commands::stage::status(arguments);
    }
    let session = Session::open(arguments)?;
    let run_directory = of_cluster_path(&cluster_path(arguments));
    let cluster = session.files.cluster().clone();
    let counts_samples = arguments.flag("samples") || arguments.number_given("sample-count").is_some();
    if counts_samples && !arguments.flag("json") {
        return Err(Failure::usage("--samples and --sample-count are for programs; say --json as well".to_owned()));
    }
    if arguments.flag("metrics") {
        let are_given = ["json", "samples", "lost", "files", "no-mounts"].iter().any(|key| arguments.flag(key));
        if are_given || counts_samples {
            return Err(Failure::usage(
                "--metrics goes with none of --json, --samples, --lost, --files and --no-mounts",
            ));
        }
        return metrics(&session, &cluster, run_directory.as_deref());
    }
    let samples = match arguments.number_given("sample-count") {
        _ if arguments.flag("samples") => u32::MAX,
        Some(count) => count as u32,
        None => 1,
    };
    let format = StatisticsFormat::Json { samples };
    let statuses = session.block_on(join_all(
        (0..cluster.server_count()).map(|index| inquire(&session, &cluster, index, format, run_directory.as_deref())),
    ));
    if arguments.flag("lost") && arguments.flag("files") {
        return Err(Failure::usage("--lost and --files are two questions; ask one after the other"));
    }
    if arguments.flag("lost") {
        let gone = statuses.iter().filter_map(|status| Some((status.index, status.report.as_ref().err()?.clone())));
        return crate::lost::run(arguments, &session, run_directory.as_deref(), gone.collect());
    }
    if arguments.flag("files") {
        if counts_samples || arguments.flag("no-mounts") {
            return Err(Failure::usage("--files goes with neither samples nor --no-mounts"));
        }
        let up = statuses.iter().filter_map(|status| Some((status.index, status.report.as_ref().ok()?)));
        crate::busiest::run(arguments, &session, &up.collect::<Vec<_>>())?;
        return check_up(statuses.iter().map(|status| status.report.as_ref().err().map(String::as_str)));
    }
    let mounts = match arguments.flag("no-mounts") {
        true => Mounts::default(),
        false => mounts_of(arguments, &session, &cluster, run_directory.as_deref()),
    };
    let text = if arguments.flag("json") {
        format!("{:#}\n", whole_json(&cluster, run_directory.as_deref(), &statuses, &mounts))
    } else {
        let mut text = table(&cluster, run_directory.as_deref(), &statuses);
        text.push_str(&mounts.lines());
        text.push_str(&hosts_lines(run_directory.as_deref(), &statuses));
        text
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(Failure::of_output)?;
    check_up(statuses.iter().map(|status| status.report.as_ref().err().map(String::as_str)))
}

/// `--metrics`.
fn metrics(session: &Session, cluster: &Cluster, run_directory: Option<&Path>) -> Outcome {
    let ask = async |index| {
        let recorded = run_directory.and_then(|directory| process_of(directory, index));
        ask_server(session, index, StatisticsFormat::Prometheus, recorded).await
    };
    let pages = session.block_on(join_all((0..cluster.server_count()).map(ask)));
    let page = crate::metrics::merged((0..).zip(pages.iter().map(|page| page.as_deref().ok())));
    std::io::stdout().write_all(page.as_bytes()).map_err(Failure::of_output)?;
    check_up(pages.iter().map(|page| page.as_ref().err().map(String::as_str)))
}

/// Fails if one of the servers did not answer, for the reason that is given, which is told.
fn check_up<'a>(reasons: impl Iterator<Item = Option<&'a str>>) -> Outcome {
    let (mut down, mut count) = (0, 0);
    for reason in reasons {
        count += 1;
        if let Some(reason) = reason {
            eprintln!("tabane: status: {reason}");
            down += 1;
        }
    }
    match down {
        0 => Ok(()),
        down => Err(Failure::failed(format!("{down} of {count} servers are down; 'tabane up' starts them again"))),
    }
}

/// What a server says of itself, or why it says nothing.
async fn ask_server(
    session: &Session,
    index: u32,
    format: StatisticsFormat,
    recorded: Option<ProcessId>,
) -> Result<String, String> {
    match race(session.files.server_statistics(index, format), end_of(session, recorded)).await {
        Either::First(told) => told.map_err(|error| format!("server {index}: {error}")),
        Either::Second(pid) => Err(format!("server {index}: its process {pid} has ended")),
    }
}

async fn inquire(
    session: &Session,
    cluster: &Cluster,
    index: u32,
    format: StatisticsFormat,
    run_directory: Option<&Path>,
) -> ServerStatus {
    let recorded = run_directory.and_then(|directory| process_of(directory, index));
    let process = recorded.filter(|process| process.is_alive());
    let parsed = |text: String| {
        serde_json::from_str(&text).map_err(|error| format!("server {index}: report not understood: {error}"))
    };
    let report = ask_server(session, index, format, recorded).await.and_then(parsed);
    ServerStatus {
        index,
        address: cluster.servers[index as usize].address.to_string(),
        process: process.filter(|process| process.is_alive()),
        report,
    }
}

/// When the process that was started as a server is gone: then there is nobody to wait for, though a client would go on
/// trying. It may also end while it is being asked, as after a signal.
async fn end_of(session: &Session, recorded: Option<ProcessId>) -> u32 {
    loop {
        if let Some(process) = recorded.filter(|process| !process.is_alive()) {
            return process.pid;
        }
        session.reactor.sleep(LOOK_NS).await;
    }
}

/// With several hosts a line for each: its servers, and which of them are down.
fn hosts_lines(run_directory: Option<&Path>, statuses: &[ServerStatus]) -> String {
    let mut text = String::new();
    for host in run_directory.and_then(HostsRecord::of).into_iter().flat_map(|record| record.hosts) {
        let is_down = |server: &&u32| statuses.get(**server as usize).is_some_and(|status| status.report.is_err());
        let down: Vec<String> = host.servers.iter().filter(is_down).map(u32::to_string).collect();
        let servers: Vec<String> = host.servers.iter().map(u32::to_string).collect();
        let down = if down.is_empty() { String::new() } else { format!("; down: {}", down.join(", ")) };
        let _ = writeln!(text, "host {}: servers {}{down}", host.name, servers.join(", "));
    }
    text
}

/// The sum of a counter over both classes of requests.
fn sum(report: &Value, counter: &str) -> u64 {
    CLASSES.iter().filter_map(|class| report["classes"][class][counter].as_u64()).sum()
}

/// Mean time from arrival to start, in nanoseconds.
fn mean_wait(report: &Value) -> u64 {
    let begun = sum(report, "finished") + sum(report, "req_active");
    sum(report, "req_waittime_ns").checked_div(begun).unwrap_or(0)
}

impl ServerStatus {
    fn json(&self) -> Value {
        let report = self.report.as_ref().ok();
        let number = |value: Option<u64>| value.map_or(Value::Null, Value::from);
        let of_report = |take: &dyn Fn(&Value) -> Option<u64>| number(report.and_then(take));
        json!({
            "server": self.index,
            "address": self.address,
            "state": if report.is_some() { "up" } else { "down" },
            "reason": self.report.as_ref().err(),
            "pid": number(self.process.map(|process| u64::from(process.pid))),
            "uptime_seconds": of_report(&|report| Some(report["uptime_ns"].as_u64()? / 1_000_000_000)),
            "bytes_total": of_report(&|report| report["store"]["bytes_total"].as_u64()),
            "bytes_free": of_report(&|report| report["store"]["bytes_free"].as_u64()),
            "requests": of_report(&|report| Some(sum(report, "arrivals"))),
            "req_qdepth": of_report(&|report| Some(sum(report, "req_qdepth"))),
            "req_waittime_ns": of_report(&|report| Some(mean_wait(report))),
            "req_active": of_report(&|report| Some(sum(report, "req_active"))),
            "page_size_bytes": of_report(&|report| report["store"]["page_size"].as_u64()),
            "pages": report.map(pages_words),
            "memory_bytes": number(self.process.and_then(ProcessId::resident_bytes)),
            "memory_max_bytes": of_report(&memory_bound),
            "report": report.cloned().unwrap_or(Value::Null),
        })
    }

    fn row(&self) -> [String; 11] {
        let dash = || "-".to_owned();
        let pid = self.process.map_or_else(dash, |process| process.pid.to_string());
        let Ok(report) = &self.report else {
            let mut row: [String; 11] = std::array::from_fn(|_| dash());
            row[0] = self.index.to_string();
            row[1] = "down".to_owned();
            row[2] = pid;
            return row;
        };
        let bytes = |name: &str| report["store"][name].as_u64().unwrap_or(0);
        let memory = self.process.and_then(ProcessId::resident_bytes);
        [
            self.index.to_string(),
            "up".to_owned(),
            pid,
            duration_words(report["uptime_ns"].as_u64().unwrap_or(0)),
            size_short(bytes("bytes_total").saturating_sub(bytes("bytes_free"))),
            size_short(bytes("bytes_total")),
            count_words(sum(report, "arrivals")),
            sum(report, "req_qdepth").to_string(),
            format!("{:.1} us", mean_wait(report) as f64 / 1000.0),
            sum(report, "req_active").to_string(),
            format!(
                "{} of {}",
                memory.map_or_else(dash, size_short),
                memory_bound(report).map_or_else(dash, size_short)
            ),
        ]
    }
}

/// The most resident memory that a server may have now: what it printed at its start, and what it stores, with the
/// journal.
fn memory_bound(report: &Value) -> Option<u64> {
    let store = &report["store"];
    let data = match store["buffer"].as_u64()? {
        0 => store["bytes_backed"].as_u64()?,
        buffer => store["bytes_backed"].as_u64()?.min(buffer),
    };
    Some(report["memory_max"].as_u64()? + data + store["journal_size"].as_u64()?)
}

/// Why a store lies on the pages that it lies on; nothing for one on a disk.
fn pages_words(report: &Value) -> &str {
    let note = report["store"]["pages_note"].as_str().unwrap_or_default();
    let is_huge = report["store"]["page_size"].as_u64().is_some_and(|size| size > PAGE_SIZE_LEAST);
    if is_huge && note != OWN_MEMORY && !note.is_empty() { "those of the file system around them" } else { note }
}

/// What pages the stores lie on, and why: a line for all servers that have the same, none for those that lie on disks.
fn pages_lines(statuses: &[ServerStatus]) -> String {
    let mut kinds: Vec<((u64, &str), Vec<String>)> = Vec::new();
    for status in statuses {
        let Ok(report) = &status.report else { continue };
        let kind = (report["store"]["page_size"].as_u64().unwrap_or(0), pages_words(report));
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, servers)) => servers.push(status.index.to_string()),
            None => kinds.push((kind, vec![status.index.to_string()])),
        }
    }
    let mut text = String::new();
    let alone = kinds.len() == 1;
    for ((size, words), servers) in kinds.iter().filter(|((_, words), _)| !words.is_empty()) {
        let whose = if alone { String::new() } else { format!(" of servers {}", servers.join(", ")) };
        let _ = writeln!(text, "stores{whose}: pages of {} ({words})", size_words(*size));
    }
    text
}

/// The mounts of a cluster, and the hosts whose mounts are not known, with the reason.
#[derive(Default)]
struct Mounts {
    known: Vec<MountStatus>,
    unknown: Vec<(String, String)>,
}

/// Those of this machine; where `up` has mounted on several hosts, also those of all of them, which are asked through
/// the launcher.
fn mounts_of(arguments: &Arguments, session: &Session, cluster: &Cluster, run_directory: Option<&Path>) -> Mounts {
    let mut mounts = Mounts::default();
    let here = of_this_host(&source_of(cluster), run_directory);
    let record = run_directory.and_then(HostsRecord::of).filter(|record| record.is_origin && record.mount.is_some());
    if let (Some(record), Some(path)) = (record, run_directory) {
        let timeout_ms = arguments.number("launch-timeout-ms").min(arguments.number("timeout-ms"));
        match crate::hosts::all_mounts(&session.reactor, &record, path, cluster, timeout_ms * NANOS_PER_MS) {
            Ok(hosts) => hosts.into_iter().for_each(|(host, answer)| mounts.add(host, answer)),
            Err(failure) => mounts.unknown.extend(match failure {
                Failure::Failed(words) => Some(("all".to_owned(), words)),
                _ => None,
            }),
        }
    }
    for mount in here {
        if !mounts.known.iter().any(|known| known.is_same(&mount)) {
            mounts.known.push(mount);
        }
    }
    mounts
}

impl Mounts {
    /// What a host has said. Hosts that are one machine may tell of the same mount.
    fn add(&mut self, host: String, answer: Result<Vec<MountStatus>, String>) {
        match answer {
            Err(words) => self.unknown.push((host, words)),
            Ok(told) => {
                for mut mount in told {
                    if !self.known.iter().any(|known| known.is_same(&mount)) {
                        mount.host = Some(host.clone());
                        self.known.push(mount);
                    }
                }
            }
        }
    }

    fn lines(&self) -> String {
        let known = self.known.iter().map(|mount| mount.line() + "\n");
        let unknown =
            self.unknown.iter().map(|(host, words)| format!("mounts on host {host} are not known: {words}\n"));
        known.chain(unknown).collect()
    }
}

fn whole_json(cluster: &Cluster, run_directory: Option<&Path>, statuses: &[ServerStatus], mounts: &Mounts) -> Value {
    let unknown = mounts.unknown.iter().map(|(host, words)| json!({ "host": host, "reason": words }));
    json!({
        "cluster": format!("{:032x}", cluster.id),
        "run_directory": run_directory.map(|path| path.display().to_string()),
        "placement": cluster.placement.name(),
        "chunk_size": cluster.chunk_size,
        "servers": statuses.iter().map(ServerStatus::json).collect::<Vec<Value>>(),
        "hosts": run_directory.and_then(HostsRecord::of).map(|record| {
            let hosts = record.hosts.iter().map(|host| json!({ "name": host.name, "servers": host.servers }));
            hosts.collect::<Vec<Value>>()
        }),
        "mounts": mounts.known.iter().map(MountStatus::json).collect::<Vec<Value>>(),
        "mounts_unknown": unknown.collect::<Vec<Value>>(),
    })
}

const HEADS: [&str; 11] = [
    "server",
    "state",
    "pid",
    "uptime",
    "used",
    "size",
    "requests",
    "qdepth",
    "wait",
    "active",
    "memory, now of at most",
];

fn table(cluster: &Cluster, run_directory: Option<&Path>, statuses: &[ServerStatus]) -> String {
    let place = run_directory.map(|path| format!(", run directory {}", path.display())).unwrap_or_default();
    let (id, chunk_size) = (cluster.id >> 96, size_short(u64::from(cluster.chunk_size)));
    let mut text = format!("cluster {id:08x}{place}, {} placement, chunks of {chunk_size}\n", cluster.placement.name());
    let mut rows = vec![HEADS.map(str::to_owned)];
    rows.extend(statuses.iter().map(ServerStatus::row));
    let widths: Vec<usize> =
        (0..HEADS.len()).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text.push_str(&pages_lines(statuses));
    text.push_str(&device_line(statuses));
    text.push_str(&backing_lines(statuses));
    text
}

/// What the devices have done that keep the stores, together.
fn device_line(statuses: &[ServerStatus]) -> String {
    let reports = || statuses.iter().filter_map(|status| status.report.as_ref().ok());
    let reports = || reports().filter(|report| report["device"].is_object());
    if reports().next().is_none() {
        return String::new();
    }
    let sum = |name: &str| reports().filter_map(|report| report["device"][name].as_u64()).sum::<u64>();
    let brought: u64 = reports().filter_map(|report| report["classes"]["data"]["bytes_in"].as_u64()).sum();
    let share = match brought {
        0 => String::new(),
        brought => format!(" ({:.2} for each byte that came)", sum("written_bytes") as f64 / brought as f64),
    };
    let mean = |time: &str, count: &str| sum(time) as f64 / sum(count).max(1) as f64 / NANOS_PER_MS as f64;
    let failed = match sum("failed") {
        0 => String::new(),
        failed => format!(", {} failed operations", count_words(failed)),
    };
    format!(
        "devices: {} read, {} written{share}, {} flushes of {:.1} ms{failed}; {} of the data in memory, {} not on the \
         devices yet\n",
        size_short(sum("read_bytes")),
        size_short(sum("written_bytes")),
        count_words(sum("flushes")),
        mean("flush_ns", "flushes"),
        size_short(sum("buffer_resident")),
        size_short(sum("buffer_dirty")),
    )
}

/// Age from which a call counts as one that hangs.
pub const CALL_HANGS_NS: u64 = 2_000_000_000;

/// The backing directory, what came from it and what was changed over it; and the calls on it that take long, of each
/// server.
fn backing_lines(statuses: &[ServerStatus]) -> String {
    let reports =
        || statuses.iter().filter_map(|status| Some((status.index, &status.report.as_ref().ok()?["backing"])));
    let Some(path) = reports().find_map(|(_, report)| report["path"].as_str()) else { return String::new() };
    let sum = |name: &str| reports().filter_map(|(_, report)| report[name].as_u64()).sum::<u64>();
    let mut text = format!(
        "backing directory {path}: {} calls, {} known, {} fetched; {} changed here, {} names differ, {} made here\n",
        count_words(sum("calls")),
        count_words(sum("known")),
        size_short(sum("fetched_bytes")),
        sum("changed_here"),
        sum("names_differing"),
        sum("made_here"),
    );
    let check = reports().filter_map(|(_, report)| report["check_ns"].as_u64()).max().unwrap_or(0);
    let _ = match check {
        0 => writeln!(text, "what is known of it is not looked at again"),
        check => writeln!(
            text,
            "what is known of it is looked at again after {} s: {} looks so far; names changed by others: {}",
            check / 1_000_000_000,
            count_words(sum("checks")),
            count_words(sum("forgotten_names"))
        ),
    };
    let policy = reports().find_map(|(_, report)| report["flush_policy"].as_str()).unwrap_or_default();
    let spell = reports().filter_map(|(_, report)| report["flush_spell_ns"].as_u64()).max().unwrap_or(0);
    let when = match policy {
        "idle" => format!("after {} ms without accesses", spell / 1_000_000),
        "immediate" => "at once".to_owned(),
        "on-close" => "when files are closed".to_owned(),
        "never" => "never".to_owned(),
        _ => "by 'flush' and 'down' alone".to_owned(),
    };
    let _ = writeln!(
        text,
        "changes go to it {when}: {} carried so far, {}{}",
        count_words(sum("carried")),
        size_short(sum("carried_bytes")),
        if reports().any(|(_, report)| report["fsync_carries"] == 1) { "; fsync waits for that" } else { "" }
    );
    for (_, report) in reports() {
        for failure in report["flush_failures"].as_array().into_iter().flatten() {
            if let (Some(path), Some(reason)) = (failure["path"].as_str(), failure["reason"].as_str()) {
                let _ = writeln!(text, "not carried: /{path}: {reason}");
            }
        }
    }
    for (_, report) in reports() {
        for settled in report["conflicts_settled"].as_array().into_iter().flatten() {
            if let (Some(path), Some(what)) = (settled["path"].as_str(), settled["what"].as_str()) {
                let _ = writeln!(text, "settled: /{path}: {what}");
            }
        }
    }
    for (index, report) in reports() {
        for call in report["longest_calls"].as_array().into_iter().flatten() {
            let age = call["age_ns"].as_u64().unwrap_or(0);
            let (operation, of) = (call["operation"].as_str(), call["path"].as_str());
            if let (Some(operation), Some(of), true) = (operation, of, age >= CALL_HANGS_NS) {
                let of = if of.is_empty() { "." } else { of };
                let _ = writeln!(
                    text,
                    "backing directory, server {index}: {operation} of {of} takes {} so far",
                    duration_words(age)
                );
            }
        }
    }
    text
}
