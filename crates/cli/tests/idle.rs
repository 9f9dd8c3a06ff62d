//! Servers with nothing to do do nothing.
#![allow(clippy::unwrap_used)] // What fails here fails the test.
#![allow(clippy::disallowed_methods)] // These are processes of their own.

mod common;

use common::{Ground, TABANE};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SERVERS: u32 = 8;
const CLIENTS: usize = 3;
/// How long processor time is counted.
const WINDOW: Duration = Duration::from_secs(3);
/// What eight servers may take of one processor in that time: a hundredth, for samples of the statistics, sessions and the
/// grain of the counter, a hundredth of a second a server at worst.
const TICKS_MAX: u64 = 3;
const WINDOW_COUNT: usize = 8;

/// A client with a session at the servers that has nothing to say: its input does not come.
fn idle_client(ground: &Ground, index: usize) -> Child {
    let mut command = Command::new(TABANE);
    command.args(["put", &format!(":/idle-{index}")]).env("TABANE_CLUSTER", ground.run_directory());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

/// Processor time of all servers since they started, in hundredths of a second.
fn ticks(ground: &Ground) -> u64 {
    let of_server = |index| {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", ground.pid(index))).unwrap();
        // After the name in brackets: state, then the fields from the fourth on.
        let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    (0..SERVERS).map(of_server).sum()
}

/// Goal: idle servers use no measurable processor time, over TCP and through shared memory, also with idle clients connected.
/// Method: processor time of all servers over spans of some seconds in which nothing is asked of them. It is their own time
/// that is counted, so other load does not matter. What they do after their start may take some of the spans.
#[test]
fn idle_servers_rest() {
    for transport in ["tcp", "auto"] {
        let ground = Ground::new(&format!("idle-{transport}"));
        ground.run(&["up", "--servers", &SERVERS.to_string(), "--transport", transport]);
        let mut clients: Vec<Child> = (0..CLIENTS).map(|index| idle_client(&ground, index)).collect();
        while ground.run(&["ls"]).lines().filter(|line| line.contains("idle-")).count() < CLIENTS {}
        let mut spent = Vec::new();
        while spent.last().is_none_or(|ticks| *ticks > TICKS_MAX) {
            assert!(spent.len() < WINDOW_COUNT, "servers do not come to rest: {spent:?} hundredths of a second");
            let (before, start) = (ticks(&ground), Instant::now());
            while start.elapsed() < WINDOW {
                std::thread::sleep(WINDOW / 10);
            }
            spent.push(ticks(&ground) - before);
        }
        for client in &mut clients {
            drop(client.stdin.take());
            assert!(client.wait().unwrap().success());
        }
    }
}
