//! Memory under load: what a server promises at its start holds while everybody writes as fast as they can.
#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, TABANE};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const WRITERS: usize = 64;
const BYTES_EACH: usize = 6 << 20;

/// One client that writes a file of its own from a pipe.
fn writer(ground: &Ground, index: usize) -> Child {
    let script = format!("head -c {BYTES_EACH} /dev/zero | '{TABANE}' put :/file-{index}");
    let mut command = Command::new("sh");
    command.args(["-ec", &script]).env("TABANE_CLUSTER", ground.run_directory());
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

/// Resident and promised bytes of each server.
fn memory(ground: &Ground) -> Vec<(u64, u64)> {
    let status: Value = serde_json::from_str(&ground.run(&["status", "--json"])).unwrap();
    let servers = status["servers"].as_array().unwrap();
    servers
        .iter()
        .map(|server| (server["memory_bytes"].as_u64().unwrap(), server["memory_max_bytes"].as_u64().unwrap()))
        .collect()
}

/// Goal: resident memory of a server stays under the sum that it printed at its start plus what is stored, over TCP and
/// through shared memory, whose segments are part of the sum; and on huge pages, where the stores can have them.
/// Method: 64 clients write at once; all the while each server's resident memory is compared with its bound. Afterwards
/// everything is there.
#[test]
fn bound_holds_under_64_writers() {
    for (transport, in_memory) in [("tcp", false), ("auto", false), ("auto", true)] {
        bound_holds_over(transport, in_memory);
    }
}

fn bound_holds_over(transport: &str, in_memory: bool) {
    let ground = Ground::new(&format!("memory-{transport}-{in_memory}"));
    let shelf = PathBuf::from(format!("/dev/shm/tabane-test-memory-{}", std::process::id()));
    let store = format!("memory:{},size=400M", if in_memory { shelf } else { ground.stores() }.display());
    ground.run(&["up", "--servers", "2", "--store", &store, "--transport", transport]);
    let mut writers: Vec<Child> = (0..WRITERS).map(|index| writer(&ground, index)).collect();
    let mut looks = 0;
    while writers.iter_mut().any(|writer| writer.try_wait().unwrap().is_none()) {
        for (server, (resident, bound)) in memory(&ground).into_iter().enumerate() {
            assert!(resident <= bound, "server {server} has {resident} bytes resident and promised {bound}");
        }
        looks += 1;
    }
    assert!(looks > 1, "the writers were done before anybody looked");
    for (index, writer) in writers.iter_mut().enumerate() {
        assert!(writer.wait().unwrap().success(), "writer {index} failed");
    }
    let listing = ground.run(&["ls", "-l", ":/"]);
    assert_eq!(listing.lines().filter(|line| line.contains(&format!(" {BYTES_EACH} "))).count(), WRITERS, "{listing}");
    let log = std::fs::read_to_string(ground.run_directory().join("server-0.log")).unwrap();
    assert!(log.contains("memory at most"), "{log}");
    let is_counted = log.contains("memory shared with processes of this machine");
    assert_eq!(is_counted, transport == "auto", "{log}");
    ground.run(&["down"]);
}
