//! How the mounts of a cluster are: those of this host, and those of the others as they tell of them.

use crate::mounts::{self, MountRecord, MountSite};
use reactor::process::ProcessId;
use serde_json::{Value, json};
use std::path::Path;

/// One mount.
#[derive(Debug, Clone)]
pub struct MountStatus {
    /// Where it is, when that is another host, or one of several.
    pub host: Option<String>,
    directory: String,
    /// Options as the kernel has them; empty when it is mounted in another tree of its machine.
    options: String,
    /// Who serves it and with how many threads, where that was written down, and whether it still does.
    served: Option<(u32, u64, bool)>,
    /// Its machine, network and tree.
    place: String,
}

/// The mounts with this source in front that this host has: those in the tree of this process, and those that are
/// served in others.
pub fn of_this_host(source: &str, run_directory: Option<&Path>) -> Vec<MountStatus> {
    let here = MountSite::here();
    let record_of = |directory: &Path| mounts::record_of(run_directory?, directory);
    let seen = client::mounts::mount_points().into_iter().filter(|mount| mount.source == source);
    let mut all: Vec<MountStatus> = seen
        .map(|mount| MountStatus::new(&mount.directory, mount.options, record_of(&mount.directory), &here))
        .collect();
    let recorded = run_directory.map(mounts::records).unwrap_or_default();
    for record in recorded.into_iter().filter(|record| record.place.is_same_host(&here) && record.process.is_alive()) {
        let is_known = all.iter().any(|mount| mount.served.is_some_and(|(pid, ..)| pid == record.process.pid));
        if !is_known {
            all.push(MountStatus::new(&record.directory.clone(), String::new(), Some(record), &here));
        }
    }
    all
}

impl MountStatus {
    fn new(directory: &Path, options: String, record: Option<MountRecord>, here: &MountSite) -> MountStatus {
        let served = record
            .as_ref()
            .map(|record| (record.process.pid, record.thread_count, ProcessId::is_alive(record.process)));
        let place = record.map_or_else(|| here.text(), |record| record.place.text());
        MountStatus { host: None, directory: directory.display().to_string(), options, served, place }
    }

    /// Whether both are the same mount, seen from two sides.
    pub fn is_same(&self, other: &MountStatus) -> bool {
        (&self.place, &self.directory, self.served) == (&other.place, &other.directory, other.served)
    }

    fn state(&self) -> &'static str {
        match self.served {
            None => "mounted",
            Some((_, _, true)) => "served",
            Some((_, _, false)) => "dead",
        }
    }

    pub fn json(&self) -> Value {
        json!({
            "host": self.host,
            "directory": self.directory,
            "state": self.state(),
            "pid": self.served.map(|(pid, ..)| pid),
            "threads": self.served.map(|(_, threads, _)| threads),
            "cache": "none",
            "options": self.options,
            "place": self.place,
        })
    }

    /// What `json` has written.
    pub fn from_json(told: &Value) -> Option<MountStatus> {
        let number = |key: &str| told[key].as_u64();
        let pid = number("pid").and_then(|pid| u32::try_from(pid).ok());
        Some(MountStatus {
            host: told["host"].as_str().map(str::to_owned),
            directory: told["directory"].as_str()?.to_owned(),
            options: told["options"].as_str()?.to_owned(),
            served: pid.zip(number("threads")).map(|(pid, threads)| (pid, threads, told["state"] == "served")),
            place: told["place"].as_str()?.to_owned(),
        })
    }

    /// For people.
    pub fn line(&self) -> String {
        let host = self.host.as_ref().map(|host| format!(" on host {host}")).unwrap_or_default();
        let directory = &self.directory;
        match self.served {
            None => format!("mount {directory}{host}: {}", self.options),
            Some((pid, _, false)) => {
                format!("mount {directory}{host}: its process {pid} has ended; 'tabane umount {directory}' clears it")
            }
            Some((pid, threads, true)) => {
                let options = if self.options.is_empty() { "in a tree of its own" } else { &self.options };
                format!("mount {directory}{host}: pid {pid}, {threads} threads, no caching, {options}")
            }
        }
    }
}
