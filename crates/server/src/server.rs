//! A running server.

use crate::options::{ServerOptions, StartError};
use reactor::Reactor;

/// A running server; a cheap handle.
#[derive(Clone)]
pub struct Server {}

/// What the tables of a server hold, and what does not fit together in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    pub dentries: u64,
    pub inodes: u64,
    /// Chunks in the store.
    pub chunks: u64,
    /// Files that the store remembers anything of.
    pub files: u64,
    /// Bytes of data space that are taken.
    pub bytes_used: u64,
    pub sessions: u64,
    pub intents: u64,
    pub tombstones: u64,
    pub marks: u64,
    /// Announcements of other servers that stand here, at the home.
    pub announced: u64,
    /// Requests that are being worked on.
    pub active: u64,
    /// Contradictions found, in words.
    pub errors: Vec<String>,
}

impl Server {
    /// Creates or recovers the store, listens on the cluster's address of this server.
    pub async fn start(_reactor: &Reactor, _options: ServerOptions) -> Result<Server, StartError> {
        unimplemented!()
    }

    /// Every term of the memory that the server may ever hold beside what is stored, with its reason; bytes.
    pub fn memory_max(&self) -> Vec<(&'static str, u64)> {
        unimplemented!()
    }

    /// Stops cleanly: finishes what is under way, writes a checkpoint, closes all connections.
    pub async fn stop(&self) {
        unimplemented!()
    }

    /// Whether it was asked to stop.
    pub fn is_stopping(&self) -> bool {
        unimplemented!()
    }

    /// Resolves when a peer asked the server to shut down.
    pub async fn wait_for_shutdown_request(&self) {
        unimplemented!()
    }

    /// Counters and the last sample as JSON.
    pub fn statistics_json(&self) -> String {
        unimplemented!()
    }

    /// Counters as Prometheus text.
    pub fn statistics_prometheus(&self) -> String {
        unimplemented!()
    }

    /// Counts and contradictions.
    pub fn audit(&self) -> Audit {
        unimplemented!()
    }
}
