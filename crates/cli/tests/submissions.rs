//! Files that are made and written without waiting for their server, which stands still and is killed then.
#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use client::{Client, OpenHow};
use common::{Ground, send_signal};
use reactor::barrier::monotonic_now;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const ROUNDS: u64 = 6;
const FILES: u64 = 24;
const SIZES: [usize; 5] = [0, 1, 3_901, 4_096, 30_000];
/// Files that are made beforehand, so that the client has all that it needs to submit.
const FILES_BEFORE: u64 = 300;
const PATIENCE_NS: u64 = 500_000_000;

fn path(number: u64) -> Vec<u8> {
    format!("/d/file-{number}").into_bytes()
}

fn contents(number: u64) -> Vec<u8> {
    let words = (0..).map(|word: u64| (number << 32 | word).to_le_bytes());
    words.flatten().take(SIZES[number as usize % SIZES.len()]).collect()
}

fn make(client: &Client, number: u64) {
    let file = client.open(&path(number), &OpenHow { exclusive: true, ..OpenHow::creating(0o644) }).unwrap();
    let bytes = contents(number);
    if !bytes.is_empty() {
        assert_eq!(client.write_at(&file, &bytes, 0), Ok(bytes.len()));
    }
    client.close(&file);
}

fn check(client: &Client, number: u64) {
    let bytes = contents(number);
    let file = client.open(&path(number), &OpenHow::reading()).unwrap();
    let mut read = vec![0; bytes.len() + 1];
    assert_eq!(client.read_at(&file, &mut read, 0), Ok(bytes.len()), "file {number}");
    assert!(read[..bytes.len()] == bytes, "file {number} has other bytes");
    client.close(&file);
}

/// Goal: what a client has made and written without its server doing anything is there when that one is killed before
/// it did something, once, with its bytes; and that a client has one queue of a server, however many connections it
/// had. Method: a server is stopped; a client makes files until it has to ask; the server is killed and started again,
/// and another client looks at everything.
#[test]
fn outlive_their_server() {
    let ground = Ground::new("submissions");
    // Nothing is submitted on disks.
    let stores = Path::new("/dev/shm").join(ground.path.file_name().unwrap());
    ground.run(&["up", "--servers", "1", "--store", &format!("memory:{},size=256M", stores.display())]);
    let connect = || {
        let cluster = client::load_cluster(&ground.run_directory()).unwrap();
        Client::connect(cluster, client::Options::of_this_process().unwrap()).unwrap()
    };
    let (maker, other) = (connect(), connect());
    maker.mkdir(b"/d", 0o755).unwrap();
    let (made, mut made_alone) = (AtomicU64::new(0), 0);
    for round in 0..ROUNDS {
        let first = round * (FILES_BEFORE + FILES);
        (first..first + FILES_BEFORE).for_each(|number| make(&maker, number));
        // Where its bytes are is remembered.
        check(&maker, first + 2);
        send_signal(ground.pid(0), libc::SIGSTOP);
        made.store(0, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..FILES {
                    make(&maker, first + FILES_BEFORE + number);
                    made.store(number + 1, Ordering::Release);
                }
            });
            let give_up = monotonic_now() + PATIENCE_NS;
            while made.load(Ordering::Acquire) < FILES && monotonic_now() < give_up {
                std::thread::yield_now();
            }
            made_alone += made.load(Ordering::Acquire);
            ground.kill(0);
            ground.run(&["up"]);
        });
        for number in 0..(round + 1) * (FILES_BEFORE + FILES) {
            check(&other, number);
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mapped = maps.lines().filter(|line| line.ends_with("/posts")).count();
        assert!((1..=2).contains(&mapped), "2 clients have {mapped} queues mapped after {} lives", round + 2);
    }
    assert!(made_alone > 0, "nothing was made without the server");
    ground.run(&["check"]);
}

/// Goal: a server over submissions of another version refuses to start, with words, for what was submitted would be
/// lost; after a clean stop any version may begin. Method: the version in the file is changed by hand while the server
/// is down: killed, and stopped.
#[test]
fn submissions_of_another_version() {
    let ground = Ground::new("submissions-version");
    let stores = Path::new("/dev/shm").join(ground.path.file_name().unwrap());
    ground.run(&["up", "--servers", "1", "--store", &format!("memory:{},size=64M", stores.display())]);
    let file = stores.join("server-0").join("posts");
    let version = || {
        let mut word = [0; 8];
        let file = std::fs::File::options().read(true).write(true).open(&file).unwrap();
        FileExt::read_exact_at(&file, &mut word, 320).unwrap();
        (file, u64::from_le_bytes(word))
    };
    let set = |word: u64| FileExt::write_all_at(&version().0, &word.to_le_bytes(), 320).unwrap();
    ground.kill(0);
    let own = version().1;
    set(own + 1);
    let complaint = ground.fail(1, &["up"]);
    assert!(complaint.contains(&format!("are of layout {}", own + 1)) && complaint.contains("--keep"), "{complaint}");
    set(own);
    ground.run(&["up"]);
    ground.run(&["mkdir", "/directory"]);
    ground.run(&["down", "--keep"]);
    assert_eq!(version().1, own | 1 << 63);
    set((own + 1) | 1 << 63);
    ground.run(&["up"]);
    assert_eq!(version().1, own);
    ground.run(&["stat", "/directory"]);
    ground.run(&["down"]);
}
