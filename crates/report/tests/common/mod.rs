//! What the tests of whole runs share.

#![allow(clippy::unwrap_used, dead_code)] // Tests; each uses a part.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// 2026-11-25, 10:00:00 UTC.
pub const START: u64 = 1_795_600_800;

/// A directory that goes when the test ends.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tabane-report-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub fn file(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap()
    }

    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tabane-report"));
        command.current_dir(&self.0).args(words_of(line)).stdin(Stdio::null()).env("TZ", "UTC");
        command
    }

    pub fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Standard output of a run that succeeds.
    pub fn done(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a run says that ends with this status.
    pub fn refused(&self, line: &str, status: i32) -> String {
        let output = self.run(line);
        assert_eq!(output.status.code(), Some(status), "{line}: {}", said(&output));
        assert!(output.stdout.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stdout));
        said(&output)
    }

    pub fn is_there(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }

    /// Names of all files, sorted.
    pub fn files(&self, directory: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.join(directory)).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn words_of(line: &str) -> Vec<&str> {
    line.split(' ').filter(|word| !word.is_empty()).collect()
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The rows of a CSV table by the names of its columns.
pub fn rows_of(text: &str) -> Vec<HashMap<String, String>> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let names = reader.headers().unwrap().clone();
    let row = |record: csv::StringRecord| {
        names.iter().map(str::to_owned).zip(record.iter().map(str::to_owned)).collect::<HashMap<_, _>>()
    };
    reader.records().map(|record| row(record.unwrap())).collect()
}

/// Cells of a row, with a bar between.
pub fn cells(row: &HashMap<String, String>, names: &[&str]) -> String {
    names.iter().map(|name| row[*name].as_str()).collect::<Vec<_>>().join("|")
}

pub fn column(rows: &[HashMap<String, String>], name: &str) -> Vec<String> {
    rows.iter().map(|row| row[name].clone()).collect()
}

/// The texts of an SVG file, which has to be XML.
pub fn texts_of(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    let nodes = document.descendants().filter(|node| node.has_tag_name("text") || node.has_tag_name("title"));
    nodes.map(|node| node.text().unwrap_or_default().to_owned()).collect()
}

/// How a version of Lustre writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V2_5,
    V2_11,
    V2_12,
    V2_15,
}

pub const VERSIONS: [Version; 4] = [Version::V2_5, Version::V2_11, Version::V2_12, Version::V2_15];

/// Counters of a server with a target, and of a job there.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    pub requests: u64,
    pub wait: u64,
    pub depth: u64,
    pub active: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub job_read_bytes: u64,
    pub job_write_bytes: u64,
}

impl Version {
    pub fn time(self, name: &str, seconds: u64, nanos: u64, width: usize) -> String {
        let number = match self {
            Version::V2_5 => format!("{seconds}.{} secs.usecs", nanos / 1000),
            Version::V2_11 => format!("{seconds}.{nanos:9} secs.usecs"),
            Version::V2_12 | Version::V2_15 => format!("{seconds}.{nanos:09} secs.nsecs"),
        };
        format!("{name:width$} {number}\n")
    }

    pub fn head(self, seconds: u64, nanos: u64) -> String {
        let mut text = self.time("snapshot_time", seconds, nanos, 25);
        if self == Version::V2_15 {
            text += &self.time("start_time", START - 1_000_000, 0, 25);
            text += &self.time("elapsed_time", seconds - (START - 1_000_000), nanos, 25);
        }
        text
    }

    /// A line of statistics, if anything was counted.
    pub fn counter(self, name: &str, count: u64, unit: &str, sum: u64, squares: bool) -> String {
        let unit = if self == Version::V2_15 && unit == "usec" { "usecs" } else { unit };
        let squares = if squares { " 12345" } else { "" };
        if count == 0 { String::new() } else { format!("{name:25} {count} samples [{unit}] 0 99 {sum}{squares}\n") }
    }

    /// What a server prints at a moment.
    pub fn text(self, seconds: u64, nanos: u64, counted: &Counted) -> String {
        let head = self.head(seconds, nanos);
        let squares = self == Version::V2_15;
        let queue = [("req_waittime", "usec", counted.wait), ("req_qdepth", "reqs", counted.depth)];
        let queue = [queue, [("req_active", "reqs", counted.active), ("ost_read", "usec", 1)]].concat();
        let queue: String =
            queue.iter().map(|(name, unit, sum)| self.counter(name, counted.requests, unit, *sum, true)).collect();
        let (reads, writes) = (
            self.counter("read_bytes", counted.reads, "bytes", counted.read_bytes, squares),
            self.counter("write_bytes", counted.writes, "bytes", counted.write_bytes, squares),
        );
        format!(
            "ost.OSS.ost_io.stats={}{head}{queue}obdfilter.scratch-OST0000.stats=\n{head}{reads}{writes}{}version=x\n",
            if queue.is_empty() { "" } else { "\n" },
            self.job_text(seconds, nanos, counted)
        )
    }

    fn job_text(self, seconds: u64, nanos: u64, counted: &Counted) -> String {
        let time = match self {
            Version::V2_15 => self.time("snapshot_time:", seconds, nanos, 16),
            _ => format!("{:16} {seconds}\n", "snapshot_time:"),
        };
        let bytes =
            |name: &str, sum: u64| format!("  {name:16} {{ samples: 7, unit: bytes, min: 1, max: 9, sum: {sum} }}\n");
        format!(
            "obdfilter.scratch-OST0000.job_stats=job_stats:\n- job_id:          4711\n  {time}{}{}\
             obdfilter.scratch-OST0000.num_exports=5\n",
            bytes("read_bytes:", counted.job_read_bytes),
            bytes("write_bytes:", counted.job_write_bytes)
        )
    }
}

/// By how much a server of Tabane's counters grow in ten seconds, and its levels in parts of 100.
#[derive(Debug, Clone, Copy, Default)]
pub struct Told {
    pub writes: i64,
    pub write_bytes: i64,
    pub reads: i64,
    pub read_bytes: i64,
    /// Calls on names.
    pub names: i64,
    pub fsyncs: i64,
    /// Of each request.
    pub wait_ns: i64,
    /// Of all of them, for each reason: lock, journal, sync, disk.
    pub waits_ns: [i64; 4],
    /// Answers that clients had, and the time that each took beyond what the server took.
    pub answers: i64,
    pub way_ns: i64,
    pub crossing: i64,
    /// Of each process of a program: answers, and all that it waited for them.
    pub ranks: &'static [(i64, i64)],
    pub busy_ns: i64,
    pub recalls: i64,
    pub leases: i64,
    pub resends: i64,
    pub refused: i64,
    pub relay_bytes: i64,
    pub checkpoints_failed: i64,
    pub bytes_free: i64,
    pub journal_used: i64,
    /// The step in which it is started again; 0 for none.
    pub restart_at: i64,
    /// How much faster its clock is, each step.
    pub drift_ns: i64,
}

/// A load about which there is nothing to say.
pub fn load() -> Told {
    Told {
        writes: 20,
        write_bytes: 20 << 20,
        reads: 5,
        read_bytes: 5 << 20,
        names: 30,
        answers: 500,
        bytes_free: 50,
        ..Told::default()
    }
}

/// What 'tabane status --json' prints of servers with such a load, every ten seconds from [`START`] on.
pub fn documents_of(id: &str, servers: &[Told], steps: i64) -> String {
    let document = |step: i64| {
        let servers: Vec<_> = servers.iter().enumerate().map(|(index, told)| server(index, told, step)).collect();
        format!("{:#}\n", serde_json::json!({ "cluster": id, "chunk_size": 1_048_576, "servers": servers }))
    };
    (0..=steps).map(document).collect()
}

fn waits(told: &Told, grown: i64) -> serde_json::Value {
    let [lock, journal, sync, disk] =
        told.waits_ns.map(|ns| serde_json::json!({ "depth": 0, "begun": 1, "waited_ns": ns * grown / 2 }));
    serde_json::json!({ "lock": lock, "journal": journal, "sync": sync, "disk": disk })
}

fn server(index: usize, told: &Told, step: i64) -> serde_json::Value {
    let grown = if told.restart_at > 0 && step >= told.restart_at { step - told.restart_at } else { step };
    let class = |finished: i64, bytes_in: i64, bytes_out: i64| {
        serde_json::json!({
            "arrivals": finished * grown, "finished": finished * grown, "failed": 0, "req_active": 0, "req_qdepth": 0,
            "req_waittime_ns": finished * grown * told.wait_ns, "bytes_in": bytes_in * grown,
            "bytes_out": bytes_out * grown, "waits": waits(told, grown),
        })
    };
    let (data, metadata) = (told.writes + told.reads + told.fsyncs, told.names);
    serde_json::json!({ "server": index, "reason": null, "state": "up", "report": {
        "server": index,
        "wall_clock_ns": (START as i64 + 10 * step) * 1_000_000_000 + told.drift_ns * step,
        "uptime_ns": 10 * grown * 1_000_000_000 + 1,
        "loop": { "busy_ns": told.busy_ns * grown, "turns": grown },
        "store": { "bytes_total": 100 << 20, "bytes_free": told.bytes_free << 20, "journal_size": 100,
                   "journal_used": told.journal_used, "checkpoints_failed": told.checkpoints_failed * grown },
        "contact": { "delegations_recalled": told.recalls * grown, "read_leases_awaited": told.leases * grown },
        "classes": { "data": class(data, told.write_bytes, told.read_bytes), "metadata": class(metadata, 0, 0) },
        "operations": { "Write": class(told.writes, told.write_bytes, 0), "Read": class(told.reads, 0, told.read_bytes),
                        "Open": class(told.names, 0, 0), "Synchronise": class(told.fsyncs, 0, 0),
                        "Statistics": class(1, 0, 0) },
        "channels": [{ "resends": told.resends * grown, "server": 9 }],
        "clients": { "answers": told.answers * grown, "answer_ns": told.answers * (told.way_ns + 500) * grown,
                     "served_ns": told.answers * 500 * grown, "crossing_calls": told.crossing * grown },
        "connections_refused": told.refused * grown, "relay_bytes": told.relay_bytes * grown, "samples": [],
        "jobs": if told.ranks.is_empty() { Vec::new() } else { vec![job_with_ranks(told, grown)] },
        "busiest": [{ "id": "17", "object": "file", "requests": (told.writes + told.reads) * grown, "service_ns": grown,
                      "bytes_in": told.write_bytes * grown, "bytes_out": told.read_bytes * grown }],
    } })
}

fn job_with_ranks(load: &Told, grown: i64) -> serde_json::Value {
    let told = load.ranks.iter().enumerate().map(|(number, (answers, ns))| {
        serde_json::json!({ "rank": number.to_string(), "host": format!("n{number}"), "answers": answers * grown,
                            "answer_ns": ns * grown, "served_ns": ns * grown / 2 })
    });
    let told: Vec<serde_json::Value> = told.collect();
    let sum = |of: fn(&(i64, i64)) -> i64| load.ranks.iter().map(of).sum::<i64>() * grown;
    serde_json::json!({ "kind": "job", "job": "7", "program": "ior", "bytes_in": load.write_bytes * grown,
                        "bytes_out": load.read_bytes * grown, "ranks": { "count": told.len(), "told": told },
                        "clients": { "answers": sum(|(answers, _)| *answers), "answer_ns": sum(|(_, ns)| *ns) } })
}
