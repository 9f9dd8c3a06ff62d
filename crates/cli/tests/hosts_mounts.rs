//! `up --mount` over several hosts. Without network namespaces these tests fail, unless TABANE_CI_NO_NETNS=1; without
//! /dev/fuse, unless TABANE_CI_NO_FUSE=1.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::hosts::Hosts;
use common::{TABANE, fuse_is_here};
use reactor::process::ProcessId;
use serde_json::Value;
use std::path::PathBuf;

/// Hosts with an empty directory to mount on; how it is called on each of them.
fn hosts_to_mount_on(count: usize) -> Option<(Hosts, String)> {
    let hosts = fuse_is_here().then(|| Hosts::new(count)).flatten()?;
    (1..=count).for_each(|index| std::fs::create_dir(hosts.root(index).join("mnt")).unwrap());
    let directory = hosts.base.join("place/mnt").display().to_string();
    Some((hosts, directory))
}

/// The mounts that `status` tells of on the first host: of each the host, its state and who serves it.
fn mounts_of(hosts: &Hosts) -> Vec<(String, String, ProcessId)> {
    let status: Value = serde_json::from_slice(&hosts.try_run(1, &["status", "--json"]).stdout).unwrap();
    let mount = |mount: &Value| {
        let pid = ProcessId::of(mount["pid"].as_u64().unwrap() as u32).unwrap();
        (mount["host"].as_str().unwrap_or("").to_owned(), mount["state"].as_str().unwrap().to_owned(), pid)
    };
    status["mounts"].as_array().unwrap().iter().map(mount).collect()
}

/// A path as a process of another tree sees it.
fn seen_by(process: ProcessId, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{path}", process.pid))
}

/// The mounts are one file system: what is written through each is read through all others.
fn assert_shared(mounts: &[(String, String, ProcessId)], directory: &str) {
    for (number, (_, _, writer)) in mounts.iter().enumerate() {
        std::fs::write(seen_by(*writer, &format!("{directory}/file-{number}")), number.to_string()).unwrap();
        for (_, _, reader) in mounts {
            let read = std::fs::read_to_string(seen_by(*reader, &format!("{directory}/file-{number}"))).unwrap();
            assert_eq!(read, number.to_string());
        }
    }
}

fn remove_mount_points(hosts: &Hosts) {
    (1..=hosts.count).for_each(|index| std::fs::remove_dir(hosts.root(index).join("mnt")).unwrap());
}

/// Goal: `up --mount` mounts on every host, `status` lists all of them, `restart` leaves them alone, and `down` leaves
/// none. Method: hosts that share nothing; each host's mount is looked at through the process that serves it.
#[test]
fn every_host_mounts() {
    let Some((hosts, directory)) = hosts_to_mount_on(3) else { return };
    let words = hosts.up(&["--mount", &directory]);
    assert!(words.contains(&format!("mounted on {directory} of 3 hosts and of this machine")), "{words}");
    let mounts = mounts_of(&hosts);
    // `up` itself ran in a tree of its own on the first host.
    for (index, count) in [(1, 2), (2, 1), (3, 1)] {
        let of_host = mounts.iter().filter(|(host, state, _)| *host == hosts.name(index) && state == "served");
        assert_eq!(of_host.count(), count, "{mounts:?}");
    }
    assert_shared(&mounts, &directory);
    hosts.run(1, &["restart", "1"]);
    assert!(mounts.iter().all(|(_, _, process)| process.is_alive()), "restart took a mount out");
    assert_shared(&mounts, &directory);
    hosts.mark("gone", 2, true);
    let status = hosts.run(1, &["status"]);
    let unknown = format!("mounts on host {} are not known: ", hosts.name(2));
    assert!(status.contains(&unknown) && status.contains("no route to host"), "{status}");
    hosts.mark("gone", 2, false);
    hosts.kill(3);
    hosts.run(1, &["up", "--mount", &directory]);
    let again = mounts_of(&hosts);
    let third = hosts.name(3);
    let kept = mounts.iter().filter(|(host, ..)| *host != third);
    assert!(kept.clone().count() == 3 && kept.clone().all(|mount| again.contains(mount)), "{again:?}");
    let anew: Vec<_> = again.iter().filter(|(host, ..)| *host == third).collect();
    assert!(anew.len() == 1 && !mounts.contains(anew[0]), "{again:?}");
    assert_shared(&again, &directory);
    hosts.run(1, &["down"]);
    assert!(again.iter().all(|(_, _, process)| !process.is_alive()));
    remove_mount_points(&hosts);
    hosts.assert_empty();
}

/// Goal: the same where the hosts see one run directory: records of several mounts on the same path do not get in each
/// other's way.
#[test]
fn hosts_that_share_the_run_directory() {
    let Some((hosts, directory)) = hosts_to_mount_on(3) else { return };
    // What is entered first is inherited: all hosts see the files of the first one.
    hosts.up(&["--mount", &directory, "--launcher", "ip netns exec {host} {command}"]);
    let mounts = mounts_of(&hosts);
    let mut names: Vec<&str> = mounts.iter().map(|(host, ..)| host.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, [hosts.name(1), hosts.name(1), hosts.name(2), hosts.name(3)]);
    assert_shared(&mounts, &directory);
    hosts.run(1, &["down"]);
    assert!(mounts.iter().all(|(_, _, process)| !process.is_alive()));
    remove_mount_points(&hosts);
    hosts.assert_empty();
}

/// Goal: a host that can't mount fails the whole start with its name and the reason, and what others have mounted goes
/// again.
#[test]
fn one_host_that_cannot_mount_fails_all() {
    let Some((hosts, directory)) = hosts_to_mount_on(3) else { return };
    std::fs::remove_dir(hosts.root(3).join("mnt")).unwrap();
    let complaint = hosts.fail(1, 1, &["up", "--hosts", &hosts.list(), "--mount", &directory]);
    let reason = format!("host {}: {directory}: no such file", hosts.name(3));
    assert!(complaint.contains(&reason) && complaint.contains("the cluster was not started"), "{complaint}");
    assert!(!complaint.contains("not all was taken back"), "{complaint}");
    std::fs::create_dir(hosts.root(3).join("mnt")).unwrap();
    remove_mount_points(&hosts);
    hosts.assert_empty();
}

/// Goal: `run --hosts --mount` gives its command the mount, and nothing is left after it.
#[test]
fn run_with_mounts() {
    let Some((hosts, directory)) = hosts_to_mount_on(2) else { return };
    let script = format!("echo two > '{directory}/file'; {TABANE} cat /file; {TABANE} status | grep -c '^mount '");
    let list = hosts.list();
    let said = hosts.run(1, &["run", "--hosts", &list, "--mount", &directory, "--", "sh", "-c", &script]);
    assert_eq!(said, "two\n3\n");
    remove_mount_points(&hosts);
    hosts.assert_empty();
}
