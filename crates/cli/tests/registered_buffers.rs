//! Writers that are stopped and killed between copying into pages that a server registered for them and committing
//! these, and servers that are killed meanwhile.
#![allow(clippy::unwrap_used)] // What fails here fails the test.
#![allow(clippy::disallowed_methods)] // These are processes of their own.

mod common;

use client::{Client, OpenHow};
use common::Ground;
use reactor::process::{ProcessId, SIGKILL};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Tells a started copy of this program which writer it is.
const ROLE: &str = "TABANE_TEST_REGISTERED_ROLE";
/// The file where writers note the calls that they begin, and those that they were told of.
const LEDGER: &str = "TABANE_TEST_REGISTERED_LEDGER";
const WRITERS: u64 = 2;
const CHUNK: u64 = 1 << 20;
/// Bytes of one call: two chunks on each server.
const CALL: u64 = 4 * CHUNK;
/// Each writer has this many calls' worth of the file for itself, and as much is written by both.
const CALLS: u64 = 4;
const ROUNDS: u64 = 18;
const MOST_ROUNDS: u64 = 20 * ROUNDS;

/// Where a step of a writer goes: in turns to its own part and to that of all.
fn call_of(writer: u64, step: u64) -> u64 {
    let part = if step.is_multiple_of(2) { writer } else { WRITERS };
    part * CALLS + step / 2 % CALLS
}

/// What a step of a writer fills its chunks with.
fn stamp(writer: u64, step: u64) -> u64 {
    (writer + 1) << 32 | step
}

/// Steps that a writer has begun, and those that it was told of.
fn steps(ledger: &std::fs::File, writer: u64) -> (u64, u64) {
    let mut bytes = [0; 16];
    ledger.read_exact_at(&mut bytes, writer * 16).unwrap();
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    // The second is written after the first, and so read before it.
    let done = number(8);
    ledger.read_exact_at(&mut bytes, writer * 16).unwrap();
    (u64::from_le_bytes(bytes[..8].try_into().unwrap()), done)
}

/// Writes until it is killed.
fn write_on(writer: u64) {
    let client = Client::from_environment().unwrap();
    let ledger = std::fs::OpenOptions::new().read(true).write(true).open(std::env::var(LEDGER).unwrap()).unwrap();
    let file = client.open(b"/f", &OpenHow::reading_and_writing()).unwrap();
    let (begun, _) = steps(&ledger, writer);
    for step in begun + 1.. {
        let bytes = stamp(writer, step).to_le_bytes().repeat(CALL as usize / 8);
        ledger.write_all_at(&step.to_le_bytes(), writer * 16).unwrap();
        let mut written = 0;
        while written < bytes.len() {
            let offset = call_of(writer, step) * CALL + written as u64;
            written += client.write_at(&file, &bytes[written..], offset).unwrap();
        }
        ledger.write_all_at(&step.to_le_bytes(), writer * 16 + 8).unwrap();
    }
}

/// Not a test of its own: what `stopped_and_killed` starts in other processes.
#[test]
fn writer_process() {
    if let Ok(writer) = std::env::var(ROLE) {
        write_on(writer.parse().unwrap());
    }
}

fn start_writer(ground: &Ground, ledger: &Path, writer: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "writer_process"]).env("TABANE_CLUSTER", ground.run_directory());
    command.env(ROLE, writer.to_string()).env(LEDGER, ledger);
    reactor::process::signal_at_our_death(&mut command, SIGKILL);
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

fn signal(child: &Child, number: i32) {
    assert!(ProcessId::of(child.id()).unwrap().signal(number).unwrap());
}

/// Sums of what the servers say of their stores.
fn sum_of(client: &Client, field: &str) -> u64 {
    let of_server = |server| {
        let text = client.server_statistics(server, client::StatisticsFormat::JSON).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        report["store"][field].as_u64().unwrap_or_else(|| panic!("no {field} in {text}"))
    };
    (0..client.server_count()).map(of_server).sum()
}

/// What the chunks of a call are filled with. Panics where one is torn or mixed.
fn stamps_of(client: &Client, call: u64) -> Vec<u64> {
    let file = client.open(b"/f", &OpenHow::reading()).unwrap();
    let mut bytes = vec![0; CALL as usize];
    let size = client.read_at(&file, &mut bytes, call * CALL).unwrap();
    client.close(&file);
    assert_eq!(size, bytes.len());
    let of_chunk = |chunk: &[u8]| {
        let (first, torn) = (&chunk[..8], chunk.chunks_exact(8).position(|word| word != &chunk[..8]));
        assert_eq!(torn, None, "call {call}: {first:?} is followed by something else");
        u64::from_le_bytes(first.try_into().unwrap())
    };
    bytes.chunks_exact(CHUNK as usize).map(of_chunk).collect()
}

/// Checks all chunks: each is what one step wrote, of those that were begun; and in a writer's own part no step is
/// older than the last one there that was acknowledged, which those whose writer was killed were not.
fn check_all(client: &Client, ledger: &std::fs::File, killed: &[(u64, u64)]) {
    let was_told = |writer: u64, step: u64| !killed.contains(&(writer, step));
    for call in 0..(WRITERS + 1) * CALLS {
        let done: Vec<u64> = (0..WRITERS).map(|writer| steps(ledger, writer).1).collect();
        for found in stamps_of(client, call) {
            let own = call / CALLS;
            if found == 0 {
                assert!(
                    own == WRITERS || (1..=done[own as usize]).all(|step| call_of(own, step) != call),
                    "call {call} is lost"
                );
                continue;
            }
            let (writer, step) = ((found >> 32) - 1, found & u64::from(u32::MAX));
            assert!(writer < WRITERS && call_of(writer, step) == call, "{found:#x} does not belong to call {call}");
            assert!(step <= steps(ledger, writer).0, "{found:#x} was not begun");
            if own < WRITERS {
                let last = (1..=done[own as usize])
                    .rev()
                    .find(|step| call_of(own, *step) == call && was_told(own, *step))
                    .unwrap_or(0);
                assert!(writer == own && step >= last, "call {call} has step {step}, step {last} was acknowledged");
            }
        }
    }
}

/// Goal: writers that stop or die between copying into registered pages and the commit leave no torn, mixed or lost
/// chunk and no space that nobody has, whether or not a server dies meanwhile; and whoever was stopped goes on rightly.
/// Method: two writers fill chunks with the number of the step; one is stopped in the middle of a call, a server is
/// killed and started again in every other round, others write and remove files so that what is free is given to
/// somebody else, and the one that was stopped is let go on, or is killed. All chunks are checked before and after.
#[test]
fn stopped_and_killed() {
    let ground = Ground::new("registered");
    // Nothing is registered on disks.
    let stores = Path::new("/dev/shm").join(ground.path.file_name().unwrap());
    ground.run(&["up", "--servers", "2", "--store", &format!("memory:{},size=256M", stores.display())]);
    let cluster = client::load_cluster(&ground.run_directory()).unwrap();
    let client = Client::connect(cluster, client::Options::of_this_process().unwrap()).unwrap();
    client.close(&client.open(b"/empty", &OpenHow::creating(0o644)).unwrap());
    let free_before = sum_of(&client, "bytes_free");
    let file = client.open(b"/f", &OpenHow::creating(0o644)).unwrap();
    client.write_at(&file, &vec![0; ((WRITERS + 1) * CALLS * CALL) as usize], 0).unwrap();
    let path = ground.path.join("ledger");
    std::fs::write(&path, vec![0; WRITERS as usize * 16]).unwrap();
    let ledger = std::fs::File::open(&path).unwrap();
    let mut writers: Vec<Child> = (0..WRITERS).map(|writer| start_writer(&ground, &path, writer)).collect();
    let until = |writer: u64, count: u64| {
        let from = steps(&ledger, writer).1;
        let give_up = reactor::barrier::monotonic_now() + 300_000_000_000;
        while steps(&ledger, writer).1 < from + count {
            assert!(reactor::barrier::monotonic_now() < give_up, "writer {writer} does not go on");
            std::thread::yield_now();
        }
    };
    let (mut cut_short, mut orphaned, mut killed) = (0, 0, Vec::new());
    let mut round = 0;
    // Where somebody is when he is stopped is the machine's matter: it goes on until one was within a call.
    while round < ROUNDS || (cut_short == 0 || orphaned == 0) && round < MOST_ROUNDS {
        let (victim, other) = (round % WRITERS, (round + 1) % WRITERS);
        until(victim, 5);
        until(other, 5);
        // In the middle of a call.
        while steps(&ledger, victim).0 == steps(&ledger, victim).1 {}
        signal(&writers[victim as usize], libc::SIGSTOP);
        if round % 2 == 1 {
            ground.kill((round / 2 % 2) as u32);
            ground.run(&["up"]);
            orphaned += sum_of(&client, "bytes_orphaned");
        }
        // Somebody else gets what is free.
        let scratch = client.open(b"/scratch", &OpenHow::creating(0o644)).unwrap();
        client.write_at(&scratch, &vec![0xEE; 24 << 20], 0).unwrap();
        client.unlink(b"/scratch").unwrap();
        client.close(&scratch);
        until(other, 3);
        check_all(&client, &ledger, &killed);
        if round % 4 < 2 {
            signal(&writers[victim as usize], libc::SIGCONT);
            until(victim, 1);
        } else {
            let (begun, done) = steps(&ledger, victim);
            signal(&writers[victim as usize], SIGKILL);
            writers[victim as usize].wait().unwrap();
            if begun > done {
                killed.push((victim, begun));
            }
            let last = stamps_of(&client, call_of(victim, begun));
            cut_short += u64::from(begun > done && last.iter().any(|found| *found != stamp(victim, begun)));
            writers[victim as usize] = start_writer(&ground, &path, victim);
        }
        check_all(&client, &ledger, &killed);
        round += 1;
    }
    for mut writer in writers {
        signal(&writer, SIGKILL);
        writer.wait().unwrap();
    }
    check_all(&client, &ledger, &killed);
    assert!(cut_short > 0, "nobody was killed in the middle of a call");
    assert!(orphaned > 0, "no server came back to pages that somebody had mapped");
    client.close(&file);
    // Those who were killed have it open for the time of grace; its contents go at once.
    client.close(&client.open(b"/f", &OpenHow { truncate: true, ..OpenHow::creating(0o644) }).unwrap());
    // Servers look whether orphans are mapped when the ends of connections are noticed and some times after.
    let give_up = reactor::barrier::monotonic_now() + 300_000_000_000;
    while sum_of(&client, "bytes_registered") > 0 || sum_of(&client, "bytes_free") != free_before {
        let (registered, free) = (sum_of(&client, "bytes_registered"), sum_of(&client, "bytes_free"));
        assert!(
            reactor::barrier::monotonic_now() < give_up,
            "{registered} bytes registered, {free} of {free_before} free"
        );
    }
    ground.run(&["check"]);
}
