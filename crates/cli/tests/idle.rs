//! Servers with nothing to do do nothing.
#![allow(clippy::unwrap_used)] // What fails here fails the test.
#![allow(clippy::disallowed_methods)] // These are processes of their own.

mod common;

use common::{Ground, TABANE};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SERVERS: u32 = 8;
const CLIENTS: usize = 3;
/// How long processor time is counted.
const WINDOW: Duration = Duration::from_secs(3);
/// What eight servers may take of one processor in that time: half a hundredth, for samples of the statistics and for
/// sessions.
const RUN_NS_MAX: u64 = 15_000_000;
const WINDOW_COUNT: usize = 8;

/// A client with a session at the servers that has nothing to say: its input does not come.
fn idle_client(ground: &Ground, index: usize) -> Child {
    let mut command = Command::new(TABANE);
    command.args(["put", &format!(":/idle-{index}")]).env("TABANE_CLUSTER", ground.run_directory());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

/// Processor time of all threads of all servers since they started, in nanoseconds.
fn run_ns(ground: &Ground) -> u64 {
    let of_thread = |path: PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).unwrap();
        text.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let of_server = |index| {
        let threads = std::fs::read_dir(format!("/proc/{}/task", ground.pid(index))).unwrap();
        threads.map(|thread| of_thread(thread.unwrap().path())).sum::<u64>()
    };
    (0..SERVERS).map(of_server).sum()
}

/// Goal: idle servers use no measurable processor time, over TCP and through shared memory, with stores on a disk and
/// in memory (which clients have mapped, and where they submit), also with idle clients connected. Method: processor
/// time of all servers over spans of some seconds in which nothing is asked of them. It is their own time that is
/// counted, so other load does not matter. What they do after their start may take some of the spans.
#[test]
fn idle_servers_rest() {
    let shelf = PathBuf::from(format!("/dev/shm/tabane-test-idle-{}", std::process::id()));
    for (name, transport, store) in [
        ("tcp", "tcp", None),
        ("disk", "auto", None),
        ("memory", "auto", Some(format!("memory:{},size=64M", shelf.display()))),
    ] {
        let ground = Ground::new(&format!("idle-{name}"));
        let servers = SERVERS.to_string();
        let mut up = vec!["up", "--servers", &servers, "--transport", transport];
        up.extend(store.iter().flat_map(|store| ["--store", store.as_str()]));
        ground.run(&up);
        let mut clients: Vec<Child> = (0..CLIENTS).map(|index| idle_client(&ground, index)).collect();
        while ground.run(&["ls"]).lines().filter(|line| line.contains("idle-")).count() < CLIENTS {}
        let mut spent = Vec::new();
        while spent.last().is_none_or(|spent| *spent > RUN_NS_MAX) {
            assert!(spent.len() < WINDOW_COUNT, "{name}: servers do not come to rest: {spent:?} ns");
            let (before, start) = (run_ns(&ground), Instant::now());
            while start.elapsed() < WINDOW {
                std::thread::sleep(WINDOW / 10);
            }
            spent.push(run_ns(&ground) - before);
        }
        for client in &mut clients {
            drop(client.stdin.take());
            assert!(client.wait().unwrap().success());
        }
        ground.run(&["down"]);
    }
    assert!(!shelf.exists());
}
