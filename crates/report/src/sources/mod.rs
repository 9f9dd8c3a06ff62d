//! Where figures come from: one file for each kind of source. All of them read line by line (JSON of sacct: job by job)
//! and hand what they find to a [`Sink`], so that memory does not grow with what is read.

pub mod command;
pub mod fluentd;
pub mod hosts;
pub mod job_stats;
pub mod jobs;
pub mod lustre;
pub mod network;
pub mod nodes;
pub mod pbs;
pub mod sacct_json;
pub mod stats;
pub mod tabane;
pub mod table;
#[cfg(test)]
mod texts;

use crate::clock::Nanos;
use crate::failure::Outcome;

/// A job of a batch system. What is not known is none.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Job {
    pub id: String,
    /// What Lustre knows it by, where that is another id.
    pub lustre_id: Option<String>,
    pub name: Option<String>,
    pub user: Option<String>,
    pub state: Option<String>,
    pub start: Option<Nanos>,
    pub end: Option<Nanos>,
    /// A host list.
    pub nodes: Option<String>,
}

/// A node, and which servers do its I/O.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub rack: Option<String>,
    pub x: Option<i64>,
    pub y: Option<i64>,
    pub servers: Vec<String>,
}

/// What a reading is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A service of a server, such as `ost_io`: its queue.
    Service(String),
    /// A storage target, such as `scratch-OST0003`: its bytes.
    Target(String),
    /// A job at a target.
    Job { target: String, id: String },
    /// A port of a network, such as `mlx5_0/1`: what it received and sent.
    Network(Network, String),
    /// One number of a server, such as `bytes_free`; its value is that of the operations.
    Number(String),
    /// A process of a job's parallel program: answers that it got from the server, its waiting for them, and the part
    /// of that which the server was at work. Without a name: how many there are, and the waiting of all.
    Rank { job: String, name: String },
    /// A file or directory to which much was done, as `file ID`: requests, the server's time for them, bytes.
    File(String),
}

/// A layer of the network. The same bytes may pass several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Network {
    Infiniband,
    Lnet,
    Interface,
}

pub const NETWORKS: [Network; 3] = [Network::Infiniband, Network::Lnet, Network::Interface];

impl Network {
    /// What it is called in the place and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Network::Infiniband => "infiniband",
            Network::Lnet => "lnet",
            Network::Interface => "interface",
        }
    }
}

/// A counter of a reading; the columns of samples in the place have the same order. Of networks reads are what was
/// received, writes what was sent, waiting is in ticks of the port (`port_xmit_wait`), and operations are drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Requests whose waiting is counted, and their waiting in microseconds.
    WaitCount,
    Wait,
    /// The same of those that each request found waiting.
    DepthCount,
    Depth,
    /// The same of those that each request found in work.
    ActiveCount,
    Active,
    Reads,
    ReadBytes,
    Writes,
    WriteBytes,
    /// Everything else: opens, looks, punches.
    Operations,
}

pub const COUNTER_COUNT: usize = Counter::Operations as usize + 1;

/// All of them; what is not known is none.
pub type Counters = [Option<i64>; COUNTER_COUNT];

/// Counters at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    pub server: String,
    pub subject: Subject,
    /// When it was printed: by the collector's clock if it is known, else by the server's.
    pub time: Nanos,
    /// What the server called snapshot_time, if that is not `time`. Of a job it is when the counters last changed.
    pub snapshot: Option<Nanos>,
    /// Since when the counters have counted, by the server's clock.
    pub since: Option<Nanos>,
    pub counters: Counters,
    /// Where it began in its source.
    pub line: u64,
}

/// Who takes what sources find.
pub trait Sink {
    fn job(&mut self, job: Job) -> Outcome;
    fn node(&mut self, node: Node) -> Outcome;
    fn reading(&mut self, reading: Reading) -> Outcome;
    /// A line that is of no use, or not all of it.
    fn skipped(&mut self, line: u64, why: &str) -> Outcome;
}

/// A text, if anything is in it.
fn some_text(text: &str) -> Option<String> {
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
pub mod collected {
    use super::*;

    /// Keeps all that it is given.
    #[derive(Debug, Default, PartialEq)]
    pub struct Collected {
        pub jobs: Vec<Job>,
        pub nodes: Vec<Node>,
        pub readings: Vec<Reading>,
        pub skipped: Vec<(u64, String)>,
    }

    impl Sink for Collected {
        fn job(&mut self, job: Job) -> Outcome {
            self.jobs.push(job);
            Ok(())
        }

        fn node(&mut self, node: Node) -> Outcome {
            self.nodes.push(node);
            Ok(())
        }

        fn reading(&mut self, reading: Reading) -> Outcome {
            self.readings.push(reading);
            Ok(())
        }

        fn skipped(&mut self, line: u64, why: &str) -> Outcome {
            self.skipped.push((line, why.to_owned()));
            Ok(())
        }
    }
}
