//! The document that `tabane status --json` prints, as far as it is read.

use crate::clock::Nanos;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Names of operations that are longer are no server's.
pub const OPERATION_NAME_SIZE_MAX: usize = 64;
pub const RESENDS: &str = "resends";
/// Time that clients waited for answers, and the part of it that the server says it took.
pub const ANSWER_NS: &str = "client_answer_ns";
pub const SERVED_NS: &str = "client_served_ns";
pub const ANSWERS: &str = "client_answers";
/// Calls no larger than a chunk that touched two.
pub const CROSSING_CALLS: &str = "client_crossing_calls";
/// Operations by which we ask.
pub const OWN_OPERATIONS: [&str; 3] = ["Statistics", "Ping", "NoteCounters"];
/// What clients that name no job are called, and jobs that a server does not tell apart.
pub const NO_JOB: &str = "(no job)";
pub const OTHER_JOBS: &str = "(other jobs)";
/// What of an operation's name stands before it in the place.
pub const OPERATION_PREFIX: &str = "operation ";

#[derive(Deserialize)]
pub struct Document {
    pub cluster: String,
    pub servers: Vec<ServerDocument>,
}

#[derive(Deserialize)]
pub struct ServerDocument {
    pub server: u32,
    pub reason: Option<String>,
    pub report: Option<ServerReport>,
}

#[derive(Deserialize)]
pub struct ServerReport {
    pub wall_clock_ns: Nanos,
    #[serde(default)]
    pub uptime_ns: Nanos,
    pub started_ns: Option<Nanos>,
    #[serde(rename = "loop", default)]
    pub turns: Numbers,
    #[serde(default)]
    pub store: StoreReport,
    #[serde(default)]
    pub contact: BTreeMap<String, i64>,
    pub classes: Classes,
    #[serde(default)]
    pub operations: BTreeMap<String, ClassReport>,
    #[serde(default)]
    pub channels: Vec<ChannelReport>,
    pub connections_refused: Option<i64>,
    pub relay_bytes: Option<i64>,
    #[serde(default)]
    pub clients: ClientTotals,
    #[serde(default)]
    pub jobs: Vec<JobReport>,
    #[serde(default)]
    pub busiest: Vec<BusyReport>,
    #[serde(default)]
    pub samples: Vec<SampleReport>,
}

impl ServerReport {
    /// When the server was started, by its clock, if it tells.
    pub fn started(&self) -> Option<Nanos> {
        let by_uptime = (self.uptime_ns > 0).then(|| self.wall_clock_ns.saturating_sub(self.uptime_ns));
        self.started_ns.or(by_uptime)
    }

    pub fn kept_operations(&self) -> impl Iterator<Item = (&str, &ClassReport)> {
        let all = self.operations.iter().map(|(name, operation)| (name.as_str(), operation));
        all.filter(|(name, _)| !OWN_OPERATIONS.contains(name) && name.len() <= OPERATION_NAME_SIZE_MAX)
    }

    /// The names of the counters that are not there before their first use.
    pub fn late_counters(&self) -> impl Iterator<Item = String> {
        let operations = self.kept_operations().map(|(name, _)| format!("{OPERATION_PREFIX}{name}"));
        operations.chain((!self.channels.is_empty()).then(|| RESENDS.to_owned()))
    }
}

/// Totals of a job at a server.
#[derive(Clone, Deserialize)]
pub struct JobReport {
    pub kind: String,
    pub job: String,
    /// In samples, whether it had none before.
    #[serde(default)]
    pub is_new: i64,
    #[serde(flatten)]
    pub totals: JobTotals,
    #[serde(default)]
    pub ranks: RanksReport,
}

/// Processes of a parallel program, those first that waited longest.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub struct RanksReport {
    pub count: i64,
    pub told: Vec<RankReport>,
}

#[derive(Clone, Deserialize)]
pub struct RankReport {
    pub rank: String,
    #[serde(default)]
    pub host: String,
    pub answers: i64,
    pub answer_ns: i64,
    #[serde(default)]
    pub served_ns: i64,
}

/// A file or directory to which much was done.
#[derive(Deserialize)]
pub struct BusyReport {
    pub id: String,
    pub object: String,
    pub requests: i64,
    #[serde(default)]
    pub service_ns: i64,
    #[serde(default)]
    pub bytes_in: i64,
    #[serde(default)]
    pub bytes_out: i64,
}

#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct JobTotals {
    pub arrivals: i64,
    pub reads: i64,
    pub writes: i64,
    pub metadata: i64,
    pub req_waittime_ns: i64,
    pub service_ns: i64,
    pub bytes_in: i64,
    pub bytes_out: i64,
    pub clients: ClientTotals,
}

/// What clients did without a server, as they have counted it themselves.
#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClientTotals {
    pub cached_opens: i64,
    pub cached_looks: i64,
    pub short_circuit_reads: i64,
    pub short_circuit_bytes: i64,
    pub leased_reads: i64,
    pub leased_bytes: i64,
    pub answers: Option<i64>,
    pub answer_ns: Option<i64>,
    pub served_ns: Option<i64>,
    pub crossing_calls: Option<i64>,
}

impl ClientTotals {
    /// What rules are about, with the names of the counters.
    pub fn judged(&self) -> [(&'static str, Option<i64>); 4] {
        [
            (ANSWERS, self.answers),
            (ANSWER_NS, self.answer_ns),
            (SERVED_NS, self.served_ns),
            (CROSSING_CALLS, self.crossing_calls),
        ]
    }

    /// 0 of what is told.
    pub fn nothing(&self) -> ClientTotals {
        let zero = |told: Option<i64>| told.map(|_| 0);
        ClientTotals {
            answers: zero(self.answers),
            answer_ns: zero(self.answer_ns),
            served_ns: zero(self.served_ns),
            crossing_calls: zero(self.crossing_calls),
            ..ClientTotals::default()
        }
    }

    pub fn reads(&self) -> i64 {
        self.short_circuit_reads.saturating_add(self.leased_reads)
    }

    pub fn read_bytes(&self) -> i64 {
        self.short_circuit_bytes.saturating_add(self.leased_bytes)
    }

    pub fn looks(&self) -> i64 {
        self.cached_opens.saturating_add(self.cached_looks)
    }
}

impl JobReport {
    /// What it is called in the place.
    pub fn id(&self) -> &str {
        match self.kind.as_str() {
            "none" => NO_JOB,
            "others" => OTHER_JOBS,
            _ => &self.job,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Numbers {
    pub busy_ns: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct StoreReport {
    pub bytes_total: Option<i64>,
    pub bytes_free: Option<i64>,
    pub journal_size: Option<i64>,
    pub journal_used: Option<i64>,
    pub checkpoints_failed: Option<i64>,
}

#[derive(Deserialize)]
pub struct Classes {
    pub data: ClassReport,
    pub metadata: ClassReport,
}

/// Reasons that requests wait for which rules are about, with the name of the counter of the time that they waited.
pub const WAITS: [(&str, &str); 4] =
    [("lock", "wait_lock_ns"), ("journal", "wait_journal_ns"), ("sync", "wait_sync_ns"), ("disk", "wait_disk_ns")];

#[derive(Clone, Copy, Deserialize)]
pub struct WaitReport {
    pub waited_ns: i64,
}

#[derive(Default, Deserialize)]
pub struct ClassReport {
    pub finished: i64,
    pub arrivals: Option<i64>,
    pub req_active_ns: Option<i64>,
    #[serde(default)]
    pub failed: i64,
    #[serde(default)]
    pub req_active: i64,
    #[serde(default)]
    pub req_waittime_ns: i64,
    #[serde(default)]
    pub bytes_in: i64,
    #[serde(default)]
    pub bytes_out: i64,
    #[serde(default)]
    pub waits: BTreeMap<String, WaitReport>,
}

impl ClassReport {
    pub fn waited_ns(&self, reason: &str) -> Option<i64> {
        Some(self.waits.get(reason)?.waited_ns)
    }
}

#[derive(Deserialize)]
pub struct ChannelReport {
    #[serde(default)]
    pub resends: i64,
}

#[derive(Deserialize)]
pub struct SampleReport {
    #[serde(default)]
    pub number: i64,
    pub time_ns: Nanos,
    pub started_ns: Option<Nanos>,
    #[serde(default)]
    pub clients: ClientTotals,
    #[serde(default)]
    pub jobs: Vec<JobReport>,
    #[serde(default)]
    pub waits_ns: BTreeMap<String, i64>,
    pub busy_ns: Option<i64>,
    pub data: ClassReport,
    pub metadata: ClassReport,
    pub bytes_free: Option<i64>,
    pub journal_used: Option<i64>,
}
