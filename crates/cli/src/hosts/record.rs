//! The file `hosts` of a run directory: which servers are on which host, and how to reach them.

use super::launcher::Launcher;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

pub const HOSTS_FILE: &str = "hosts";
const FORMAT: u64 = 1;

/// One host of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    pub servers: Vec<u32>,
    /// Whether it sees the run directory of the host where `up` ran.
    pub shared: bool,
    /// Whether the directory of its stores was made by us.
    pub made_stores: bool,
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostsRecord {
    pub cluster_id: u128,
    pub launcher: Launcher,
    /// The program on the hosts.
    pub binary: PathBuf,
    /// Whether this is the run directory that `up` made, and no copy of it.
    pub is_origin: bool,
    /// The name of the host where that is.
    pub origin: String,
    /// Where `up` has mounted the cluster, on every host.
    pub mount: Option<PathBuf>,
    pub hosts: Vec<Host>,
}

impl HostsRecord {
    /// The record of a run directory, if it is that of a cluster over several hosts. It names programs that are run, so
    /// it counts only where nobody else can have put it.
    pub fn of(run_directory: &Path) -> Option<HostsRecord> {
        reactor::trust::check_directory(run_directory).ok()?;
        let text = reactor::trust::read(&run_directory.join(HOSTS_FILE), HOSTS_FILE).ok()?;
        HostsRecord::parse(&text)
    }

    pub fn to_text(&self) -> String {
        let hosts: Vec<Value> = self
            .hosts
            .iter()
            .map(|host| {
                json!({
                    "name": host.name,
                    "servers": host.servers,
                    "shared": host.shared,
                    "made_stores": host.made_stores,
                })
            })
            .collect();
        let record = json!({
            "format": FORMAT,
            "cluster": format!("{:032x}", self.cluster_id),
            "launcher": self.launcher.text(),
            "binary": self.binary.display().to_string(),
            "is_origin": self.is_origin,
            "origin": self.origin,
            "mount": self.mount.as_ref().map(|directory| directory.display().to_string()),
            "hosts": hosts,
        });
        format!("{record:#}\n")
    }

    pub fn parse(text: &str) -> Option<HostsRecord> {
        let record: Value = serde_json::from_str(text).ok()?;
        if record["format"].as_u64()? != FORMAT {
            return None;
        }
        let host = |host: &Value| {
            Some(Host {
                name: host["name"].as_str()?.to_owned(),
                servers: super::orders::numbers(&host["servers"])?,
                shared: host["shared"].as_bool()?,
                made_stores: host["made_stores"].as_bool()?,
            })
        };
        Some(HostsRecord {
            cluster_id: u128::from_str_radix(record["cluster"].as_str()?, 16).ok()?,
            launcher: Launcher::parse(record["launcher"].as_str()?).ok()?,
            binary: PathBuf::from(record["binary"].as_str()?),
            is_origin: record["is_origin"].as_bool()?,
            origin: record["origin"].as_str()?.to_owned(),
            mount: record["mount"].as_str().map(PathBuf::from),
            hosts: record["hosts"].as_array()?.iter().map(host).collect::<Option<_>>()?,
        })
    }

    /// The number of the host that a server is on.
    pub fn host_of(&self, server: u32) -> Option<usize> {
        self.hosts.iter().position(|host| host.servers.contains(&server))
    }

    /// The name of the host that a server is on.
    pub fn name_of(&self, server: u32) -> &str {
        self.host_of(server).map_or("?", |number| &self.hosts[number].name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a record read back is the one that was written; others are none.
    #[test]
    fn text_round_trip() {
        let host = |name: &str, servers: &[u32]| Host {
            name: name.to_owned(),
            servers: servers.to_vec(),
            shared: false,
            made_stores: true,
        };
        let record = HostsRecord {
            cluster_id: 7,
            launcher: Launcher::parse("ip netns exec {host}").unwrap(),
            binary: PathBuf::from("/usr/bin/tabane"),
            is_origin: true,
            origin: "here".to_owned(),
            mount: Some(PathBuf::from("/mnt/a b")),
            hosts: vec![host("a", &[0, 2]), host("b", &[1])],
        };
        assert_eq!(HostsRecord::parse(&record.to_text()), Some(record.clone()));
        assert_eq!((record.host_of(2), record.name_of(1), record.host_of(3)), (Some(0), "b", None));
        assert!(HostsRecord::parse("{}").is_none() && HostsRecord::parse("").is_none());
    }
}
