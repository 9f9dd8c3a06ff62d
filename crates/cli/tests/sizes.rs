//! Sizes of a file that several processes write to.
#![allow(clippy::unwrap_used)] // What fails here fails the test.
#![allow(clippy::disallowed_methods)] // These are processes of their own.

mod common;

use client::{Client, OpenHow};
use common::Ground;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const WRITERS: u64 = 3;
const WRITES_EACH: u64 = 120;
/// Set for a process that is a writer: its number, and the chunk size of the file.
const ROLE: &str = "TABANE_TEST_WRITER";
/// Set likewise: a file with two numbers for each writer, how far it began to write and how far it was told to have.
const LEDGER: &str = "TABANE_TEST_LEDGER";

fn name(chunk_size: u32) -> String {
    format!("/sizes-{chunk_size}")
}

fn open(client: &Client, chunk_size: u32) -> client::File {
    let how = OpenHow { create: true, mode: 0o600, chunk_size, ..OpenHow::reading_and_writing() };
    client.open(name(chunk_size).as_bytes(), &how).unwrap()
}

/// Reads or writes one number of the ledger.
fn place(writer: u64, acknowledged: bool) -> u64 {
    writer * 16 + u64::from(acknowledged) * 8
}

fn most(ledger: &std::fs::File, acknowledged: bool) -> u64 {
    let number = |writer| {
        let mut bytes = [0; 8];
        ledger.read_exact_at(&mut bytes, place(writer, acknowledged)).unwrap();
        u64::from_le_bytes(bytes)
    };
    (0..WRITERS).map(number).max().unwrap()
}

/// What a writer does: writes of many sizes, back, on, and far ahead with a hole before them.
fn write_along(writer: u64, chunk_size: u32) {
    let client = Client::from_environment().unwrap();
    let file = open(&client, chunk_size);
    let ledger = std::fs::OpenOptions::new().write(true).open(std::env::var_os(LEDGER).unwrap()).unwrap();
    let (mut begun, mut random) = (0u64, writer + 1);
    for _ in 0..WRITES_EACH {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = random >> 33;
        let size = 1 + draw % u64::from(chunk_size * 2).min(150_000);
        let offset = match draw % 4 {
            0 => draw % (begun + 1),
            1 => begun + u64::from(chunk_size) * (draw % 7),
            _ => begun.saturating_sub(draw % 100),
        };
        begun = begun.max(offset + size);
        ledger.write_all_at(&begun.to_le_bytes(), place(writer, false)).unwrap();
        let bytes = vec![writer as u8 + 1; size as usize];
        let mut written = 0;
        while written < bytes.len() {
            written += client.write_at(&file, &bytes[written..], offset + written as u64).unwrap();
        }
        ledger.write_all_at(&begun.to_le_bytes(), place(writer, true)).unwrap();
    }
    client.close(&file);
}

/// Not a test of its own: what `sizes_are_right_at_every_moment` starts in other processes.
#[test]
fn writer_process() {
    if let Ok(role) = std::env::var(ROLE) {
        let (writer, chunk_size) = role.split_once(' ').unwrap();
        write_along(writer.parse().unwrap(), chunk_size.parse().unwrap());
    }
}

fn start_writer(ground: &Ground, ledger: &Path, writer: u64, chunk_size: u32) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "writer_process"]).env("TABANE_CLUSTER", ground.run_directory());
    command.env(ROLE, format!("{writer} {chunk_size}")).env(LEDGER, ledger);
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

/// Goal: while several processes write to one file, also far beyond its end, nobody ever sees a size below what was
/// acknowledged or above what was begun, neither by stat nor by a read at the end; for small, odd and large chunks.
/// Method: writers note in a ledger what they begin and what they were told; a reader compares, before and
/// after each look.
#[test]
fn sizes_are_right_at_every_moment() {
    let ground = Ground::new("sizes");
    ground.run(&["up", "--servers", "3", "--store", &format!("memory:{},size=256M", ground.stores().display())]);
    let cluster = client::load_cluster(&ground.run_directory()).unwrap();
    let client = Client::connect(cluster, client::Options::of_this_process().unwrap()).unwrap();
    for chunk_size in [4096, 47_008, 1 << 20] {
        let path = ground.path.join(format!("ledger-{chunk_size}"));
        std::fs::write(&path, vec![0; WRITERS as usize * 16]).unwrap();
        let ledger = std::fs::File::open(&path).unwrap();
        let file = open(&client, chunk_size);
        let mut writers: Vec<Child> =
            (0..WRITERS).map(|writer| start_writer(&ground, &path, writer, chunk_size)).collect();
        let (mut looks, mut sizes) = (0u64, std::collections::BTreeSet::new());
        while writers.iter_mut().any(|writer| writer.try_wait().unwrap().is_none()) {
            let least = most(&ledger, true);
            let size = match looks % 3 {
                0 => client.stat(name(chunk_size).as_bytes()).unwrap().size,
                1 => client.stat_file(&file).unwrap().size,
                // A read far over the end stops at it.
                _ => {
                    let from = least.saturating_sub(5000);
                    let mut place = vec![0; 1 << 20];
                    let count = client.read_at(&file, &mut place, from).unwrap() as u64;
                    if count == place.len() as u64 { least.max(from + count) } else { from + count }
                }
            };
            let greatest = most(&ledger, false);
            assert!((least..=greatest).contains(&size), "look {looks}: {size}, not in {least}..={greatest}");
            sizes.insert(size);
            looks += 1;
        }
        assert!(writers.iter_mut().all(|writer| writer.wait().unwrap().success()));
        assert!(sizes.len() > 3, "nothing was seen to grow: {sizes:?}");
        let end = most(&ledger, true);
        assert_eq!(client.stat(name(chunk_size).as_bytes()).unwrap().size, end);
        client.close(&file);
    }
}
