//! The mounts of all hosts of a cluster, for `tabane status`.

use super::call;
use super::orders::order;
use super::record::HostsRecord;
use crate::failure::Outcome;
use crate::mount_status::MountStatus;
use client::Cluster;
use client::mounts::source_of;
use reactor::{Nanos, Reactor};
use serde_json::json;
use std::path::Path;

/// A host's name, and its mounts or why they are not known.
pub type HostMounts = (String, Result<Vec<MountStatus>, String>);

/// Asks all hosts at once which mounts they have. Hosts that do not answer in time have their reason in place of a
/// list.
pub fn all(
    reactor: &Reactor,
    record: &HostsRecord,
    run_directory: &Path,
    cluster: &Cluster,
    timeout: Nanos,
) -> Outcome<Vec<HostMounts>> {
    let numbers: Vec<usize> = (0..record.hosts.len()).collect();
    let names: Vec<_> = record.hosts.iter().map(|host| json!({ "name": host.name })).collect();
    let told = json!({
        "order": order::MOUNTS,
        "run_directory": run_directory.display().to_string(),
        "source": source_of(cluster),
        "hosts": names,
    });
    let mut party = call(reactor, record, run_directory, &numbers)?;
    let answers = reactor.block_on(async {
        party.tell(&told).await;
        let answers = party.hear(order::MOUNTS, &numbers, timeout, None).await;
        let reached = answers.iter().flatten().filter(|(_, answer)| answer.is_ok()).map(|(number, _)| *number);
        party.give_up(&reached.collect::<Vec<usize>>(), timeout).await;
        answers
    })?;
    Ok(answers
        .into_iter()
        .map(|(number, answer)| {
            let mounts = answer.map(|facts| {
                facts["mounts"].as_array().into_iter().flatten().filter_map(MountStatus::from_json).collect()
            });
            (record.hosts[number].name.clone(), mounts)
        })
        .collect())
}
