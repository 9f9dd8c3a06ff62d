//! Very many names, which come and go while others look for them without asking.
#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use client::{Client, OpenHow, Status};
use common::Ground;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const NAMES: u64 = 120_000;
/// How far behind the maker names are removed again.
const DISTANCE: u64 = 1_000;

fn path(number: u64) -> Vec<u8> {
    format!("/d/name-{number}").into_bytes()
}

/// One of four is removed, and one of eight has another name that its file's home does not know.
fn is_removed(number: u64) -> bool {
    number.is_multiple_of(4)
}

fn is_renamed(number: u64) -> bool {
    number % 8 == 1
}

fn new_path(number: u64) -> Vec<u8> {
    format!("/d/renamed-{number}").into_bytes()
}

fn make(client: &Client, number: u64) {
    let how = OpenHow { exclusive: true, ..OpenHow::creating(0o644) };
    let file = client.open(&path(number), &how).unwrap();
    client.close(&file);
    if is_renamed(number) {
        client.rename(&path(number), &new_path(number), 0).unwrap();
    }
    if number >= DISTANCE && is_removed(number - DISTANCE) {
        client.unlink(&path(number - DISTANCE)).unwrap();
    }
}

/// Looks at a name that is there, or gone for good, and at one that never is.
fn look(client: &Client, number: u64) {
    let status = |path: &[u8]| client.stat(path).map(drop).map_err(|error| error.status);
    if is_removed(number) || is_renamed(number) {
        assert_eq!(status(&path(number)), Err(Status::NotFound), "name {number}");
    } else {
        assert_eq!(status(&path(number)), Ok(()), "name {number}");
        let how = OpenHow { exclusive: true, ..OpenHow::creating(0o644) };
        let made = client.open(&path(number), &how).map(drop).map_err(|error| error.status);
        assert_eq!(made, Err(Status::Exists), "name {number} is made twice");
    }
    if is_renamed(number) {
        assert_eq!(status(&new_path(number)), Ok(()), "name {number}, renamed");
    }
    assert_eq!(status(format!("/d/never-{number}").as_bytes()), Err(Status::NotFound));
}

/// Goal: while a server's tables of names grow, and names come and go, whoever looks at them in its memory finds what
/// is there, and nothing else; and a file takes no more memory than the documents say.
/// Method: one process makes, renames and removes names, another one looks at those that were made so far, in any
/// order.
#[test]
fn are_found_while_they_come_and_go() {
    let ground = Ground::new("many-names");
    let stores = Path::new("/dev/shm").join(ground.path.file_name().unwrap());
    ground.run(&["up", "--servers", "2", "--store", &format!("memory:{},size=256M", stores.display())]);
    let connect = || {
        let cluster = client::load_cluster(&ground.run_directory()).unwrap();
        Client::connect(cluster, client::Options::of_this_process().unwrap()).unwrap()
    };
    let (maker, other) = (connect(), connect());
    maker.mkdir(b"/d", 0o755).unwrap();
    let made = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..NAMES {
                make(&maker, number);
                made.store(number + 1, Ordering::Release);
            }
        });
        let mut state = 5u64;
        loop {
            let settled = made.load(Ordering::Acquire).saturating_sub(DISTANCE);
            if settled > 0 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                look(&other, (state >> 33) % settled);
            }
            if settled == NAMES - DISTANCE {
                break;
            }
        }
    });
    (0..NAMES - DISTANCE).step_by(17).for_each(|number| look(&other, number));
    ground.run(&["check"]);
    ground.run(&["down"]);
}
