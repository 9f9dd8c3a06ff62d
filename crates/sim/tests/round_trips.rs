//! What operations cost (ARCHITECTURE.md, section 4): round trips of a warm client. Messages between servers are not
//! among them.

use client::{File, FileSystem, OpenHow, Timestamp};
use server::ReadLeasing;
use sim::harness::Harness;
use sim::profile::{Overrides, Profile, SECOND};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;
use wire::Placement;

const CHUNK_SIZE: u32 = 4096;
const SERVERS: u32 = 4;

/// Runs `work` on a client of a quiet cluster whose directory `/d` the client knows.
fn on_cluster<F: Future<Output = ()> + 'static>(work: impl FnOnce(Rc<FileSystem>) -> F) {
    on_cluster_that(|_| {}, work);
}

/// The same, of a cluster that is set up otherwise.
fn on_cluster_that<F: Future<Output = ()> + 'static>(
    set_up: impl FnOnce(&mut Profile),
    work: impl FnOnce(Rc<FileSystem>) -> F,
) {
    let overrides = Overrides { no_faults: true, servers: Some(SERVERS), ..Overrides::default() };
    let mut profile = Profile::new(7, &overrides);
    profile.remember_all();
    (profile.placement, profile.chunk_sizes) = (Placement::Modular, vec![CHUNK_SIZE]);
    profile.read_leasing = ReadLeasing::OFF;
    set_up(&mut profile);
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(60 * SECOND).expect("servers start");
    let client = harness.add_client();
    let file_system = Rc::new(client.client.file_system.clone());
    let warm = file_system.clone();
    harness.world.run(client.node, async move { warm.mkdir(b"/d", 0o755).await }, 60 * SECOND);
    harness.world.run(client.node, work(file_system), 600 * SECOND).expect("the work ends");
}

/// Counts the round trips of an operation and unwraps its result.
async fn cost<T>(file_system: &FileSystem, operation: impl Future<Output = client::Result<T>>) -> (u64, T) {
    let before = file_system.round_trips();
    let result = operation.await.expect("the operation succeeds");
    (file_system.round_trips() - before, result)
}

async fn make(file_system: &FileSystem, path: &[u8]) -> File {
    let how = OpenHow { create: true, ..OpenHow::reading_and_writing() };
    file_system.open(path, &how).await.expect("create")
}

/// Goal: operations on names cost one round trip.
#[test]
fn names() {
    on_cluster(|fs| async move {
        let how = OpenHow { create: true, ..OpenHow::reading_and_writing() };
        for index in 0..8 {
            let file = format!("/d/file{index}").into_bytes();
            let directory = format!("/d/directory{index}").into_bytes();
            let link = format!("/d/link{index}").into_bytes();
            assert_eq!(cost(&fs, fs.open(&file, &how)).await.0, 1, "create");
            assert_eq!(cost(&fs, fs.open(&file, &OpenHow::reading())).await.0, 1, "open");
            assert_eq!(cost(&fs, fs.stat(&file)).await.0, 1, "stat");
            assert_eq!(cost(&fs, fs.lstat(&file)).await.0, 1, "lstat");
            assert_eq!(cost(&fs, fs.symlink(b"target", &link)).await.0, 1, "symlink");
            assert_eq!(cost(&fs, fs.readlink(&link)).await.0, 1, "readlink");
            assert_eq!(cost(&fs, fs.mkdir(&directory, 0o755)).await.0, 1, "mkdir");
            assert_eq!(cost(&fs, fs.unlink(&file)).await.0, 1, "unlink of a file");
            assert_eq!(cost(&fs, fs.unlink(&link)).await.0, 1, "unlink of a link");
            assert_eq!(cost(&fs, fs.rmdir(&directory)).await.0, 1, "rmdir");
        }
    });
}

/// Goal: a read or write costs one round trip to each server that holds a part, and a close is not waited for.
#[test]
fn contents() {
    on_cluster(|fs| async move {
        let chunk = u64::from(CHUNK_SIZE);
        let mut bytes = vec![7; 10 * CHUNK_SIZE as usize];
        let file = make(&fs, b"/d/small").await;
        assert_eq!(cost(&fs, fs.write_at(&file, &bytes[..3901], 0)).await.0, 1, "write within a chunk");
        assert_eq!(cost(&fs, fs.read_at(&file, &mut bytes[..3901], 0)).await, (1, 3901), "read within a chunk");
        assert_eq!(cost(&fs, fs.write_at(&file, &bytes[..100], 5 * chunk)).await.0, 1, "write within a far chunk");
        assert_eq!(cost(&fs, fs.read_at(&file, &mut bytes[..100], 5 * chunk)).await, (1, 100), "read of a far chunk");
        let wide = make(&fs, b"/d/wide").await;
        let servers = u64::from(SERVERS);
        assert_eq!(cost(&fs, fs.write_at(&wide, &bytes, 0)).await.0, servers, "write over all servers");
        assert_eq!(cost(&fs, fs.read_at(&wide, &mut bytes, 0)).await.0, servers, "read over all servers");
        let two = 2 * CHUNK_SIZE as usize;
        assert_eq!(cost(&fs, fs.write_at(&wide, &bytes[..two], chunk)).await.0, 2, "write over two servers");
        assert_eq!(cost(&fs, fs.read_at(&wide, &mut bytes[..two], chunk)).await, (2, two), "read over two servers");
        let before = fs.round_trips();
        fs.close(&file).await;
        assert_eq!(fs.round_trips(), before, "close");
    });
}

/// Goal: a small file that lies at its home costs no more to read to its end than one round trip.
#[test]
fn end_of_small_file() {
    on_cluster(|fs| async move {
        let file = make(&fs, b"/d/small").await;
        fs.write_at(&file, &[1; 1000], 0).await.expect("write");
        let opened = fs.open(b"/d/small", &OpenHow::reading()).await.expect("open");
        let mut place = vec![0; 4096];
        assert_eq!(cost(&fs, fs.read_at(&opened, &mut place, 0)).await, (1, 1000));
    });
}

/// Goal: where servers lend their memory, opening a small file, reading it and closing it costs one round trip at most,
/// and what was written meanwhile is read nevertheless.
#[test]
fn lent_small_files() {
    // In the simulation some servers are on the client's machine, and lend, and others are not: one of each has to come
    // up.
    let lending = Rc::new(RefCell::new(BTreeSet::new()));
    for seed in 0..8 {
        let lent = |profile: &mut Profile| {
            profile.seed = seed;
            (profile.stable_media, profile.checksums, profile.short_circuit) = (false, false, true);
        };
        let lending = lending.clone();
        on_cluster_that(lent, |fs| async move {
            let mut place = vec![0; 3901];
            let mut lenders = [None; SERVERS as usize];
            for index in 0..24 {
                let path = format!("/d/small{index}").into_bytes();
                let written = make(&fs, &path).await;
                fs.write_at(&written, &[1; 3901], 0).await.expect("write");
                let (opening, file) = cost(&fs, fs.open(&path, &OpenHow::reading())).await;
                let is_shown = opening == 0;
                let (reading, count) = cost(&fs, fs.read_at(&file, &mut place, 0)).await;
                let home = fs.cluster().home_of(file.id).expect("it has a home") as usize;
                assert!(opening <= 1 && reading <= 1 && count == 3901, "read after open");
                assert_eq!(is_shown, reading == 0, "who lends shows");
                assert_eq!(*lenders[home].get_or_insert(reading == 0), reading == 0, "server {home} lends or not");
                lending.borrow_mut().insert(reading == 0);
                assert!(place.iter().all(|byte| *byte == 1));
                let before = fs.round_trips();
                fs.close(&file).await;
                assert_eq!(fs.round_trips(), before, "close");

                let file = fs.open(&path, &OpenHow::reading()).await.expect("open");
                fs.write_at(&written, &[2; 1000], 500).await.expect("write");
                assert_eq!(fs.read_at(&file, &mut place, 0).await, Ok(3901));
                assert!(place[500..1500].iter().all(|byte| *byte == 2), "an older version was read");
                fs.close(&file).await;
                fs.close(&written).await;
            }
        });
    }
    assert_eq!(*lending.borrow(), BTreeSet::from([false, true]));
}

/// Goal: over a network too, opening a small file that has not changed lately, reading it to its end and closing it
/// cost one round trip; so do those of whoever comes later, while a read that comes late, or after a write of the same
/// client, asks and is told what is true.
#[test]
fn leased_small_files() {
    let far = |profile: &mut Profile| {
        (profile.short_circuit, profile.latency) = (false, (5_000, 50_000));
        // With them what an open brings is asked for by a read, which can be checked.
        profile.checksums = false;
        // The servers' clocks differ, and with them what is lately.
        profile.read_leasing = ReadLeasing { rest: 0, ..ReadLeasing::default() };
    };
    on_cluster_that(far, |fs| async move {
        let (mut place, mut nothing) = (vec![0; 4096], vec![0; 4096]);
        let reactor = fs.reactor().clone();
        let time = ReadLeasing::default().time;
        for index in 0..24 {
            let path = format!("/d/small{index}").into_bytes();
            let written = make(&fs, &path).await;
            fs.write_at(&written, &[1; 3901], 0).await.expect("write");
            for _ in 0..2 {
                let (opening, file) = cost(&fs, fs.open(&path, &OpenHow::reading())).await;
                let (reading, count) = cost(&fs, fs.read_at(&file, &mut place, 0)).await;
                let (ending, end) = cost(&fs, fs.read_at(&file, &mut nothing, 3901)).await;
                assert_eq!((opening, reading, ending, count, end), (1, 0, 0, 3901, 0));
                assert!(place[..3901].iter().all(|byte| *byte == 1));
                fs.close(&file).await;
            }
            let file = fs.open(&path, &OpenHow::reading()).await.expect("open");
            fs.write_at(&written, &[2; 1000], 500).await.expect("write");
            assert_eq!(cost(&fs, fs.read_at(&file, &mut place, 0)).await, (1, 3901));
            assert!(place[500..1500].iter().all(|byte| *byte == 2), "an older version was read");
            fs.close(&file).await;
            let file = fs.open(&path, &OpenHow::reading()).await.expect("open");
            reactor.sleep(time).await;
            assert_eq!(cost(&fs, fs.read_at(&file, &mut place, 0)).await, (1, 3901), "it comes too late");
            // Who opens a file to write too does not wait for itself.
            let file = fs.open(&path, &OpenHow::reading_and_writing()).await.expect("open");
            assert_eq!(cost(&fs, fs.read_at(&file, &mut place, 0)).await, (1, 3901));
            fs.close(&written).await;
        }
    });
}

/// Goal: listings ask all servers at once, or one alone; attributes by path cost a lookup and the change.
#[test]
fn listings_and_attributes() {
    on_cluster(|fs| async move {
        for index in 0..20 {
            make(&fs, format!("/d/{index}").as_bytes()).await;
        }
        let mut seen = 0;
        let mut count = |_: &client::DirectoryEntry| {
            seen += 1;
            true
        };
        assert_eq!(cost(&fs, fs.read_directory(b"/d", true, &mut count)).await.0, u64::from(SERVERS), "readdir");
        assert_eq!(cost(&fs, fs.read_directory_server(b"/d", 1, false, &mut |_| true)).await.0, 1, "readdir by server");
        assert_eq!(seen, 20);
        assert!(cost(&fs, fs.chmod(b"/d/1", 0o600)).await.0 <= 2, "chmod");
        assert!(cost(&fs, fs.utimens(b"/d/1", Timestamp::Keep, Timestamp::At(5))).await.0 <= 2, "utimens");
        assert!(cost(&fs, fs.truncate(b"/d/1", 77)).await.0 <= 2, "truncate");
    });
}

/// Goal: link and rename cost one round trip, and so does unlink wherever the inode is; other operations through a name
/// that is parted from its inode cost one more than usual.
#[test]
fn names_parted_from_inodes() {
    on_cluster(|fs| async move {
        for index in 0..8 {
            let (old, new) = (format!("/d/old{index}"), format!("/d/new{index}"));
            let second = format!("/d/second{index}");
            let file = make(&fs, old.as_bytes()).await;
            assert_eq!(cost(&fs, fs.link(old.as_bytes(), second.as_bytes())).await.0, 1, "link");
            assert_eq!(cost(&fs, fs.rename(old.as_bytes(), new.as_bytes(), 0)).await.0, 1, "rename");
            for name in [&second, &new] {
                let directory = fs.directory(b"/d").await.expect("it is known");
                let name_server = fs.cluster().dentry_server(directory, &name.as_bytes()[3..]);
                let trips = 1 + u64::from(fs.cluster().home_of(file.id) != Some(name_server));
                let (measured, attributes) = cost(&fs, fs.stat(name.as_bytes())).await;
                assert_eq!((measured, attributes.id), (trips, file.id), "stat");
                assert_eq!(cost(&fs, fs.open(name.as_bytes(), &OpenHow::reading())).await.0, trips, "open");
                assert_eq!(cost(&fs, fs.unlink(name.as_bytes())).await.0, 1, "unlink");
            }
        }
    });
}

/// Goal: a rename of a directory costs one round trip, and another client that knew it learns of it with one more.
#[test]
fn directories_move() {
    on_cluster(|fs| async move {
        for index in 0..8 {
            let (old, new) = (format!("/d/old{index}"), format!("/d/new{index}"));
            fs.mkdir(old.as_bytes(), 0o755).await.expect("mkdir");
            make(&fs, format!("{old}/file").as_bytes()).await;
            assert_eq!(cost(&fs, fs.rename(old.as_bytes(), new.as_bytes(), 0)).await.0, 1, "rename of a directory");
            // The log of tree changes if another one came before, the directory, which may be parted from its name now,
            // and the file.
            let path = format!("{new}/file").into_bytes();
            let first = cost(&fs, fs.stat(&path)).await.0;
            assert!(first <= 4, "first stat took {first} round trips");
            fs.stat(&path).await.expect("by now all is known");
            assert_eq!(cost(&fs, fs.stat(&path)).await.0, 1, "stat");
            let gone = fs.stat(format!("{old}/file").as_bytes()).await.expect_err("it has moved");
            assert_eq!(gone.status, client::Status::NotFound);
        }
    });
}

/// Goal: rights of directories cost a warm client of any user nothing, however deep the path and however often.
#[test]
fn rights_of_directories() {
    let overrides = Overrides { no_faults: true, servers: Some(SERVERS), ..Overrides::default() };
    let mut profile = Profile::new(7, &overrides);
    profile.remember_all();
    (profile.placement, profile.chunk_sizes) = (Placement::Modular, vec![CHUNK_SIZE]);
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(60 * SECOND).expect("servers start");
    let root = harness.add_client();
    let files = root.client.file_system.clone();
    let set_up = async move {
        files.create_all(b"/a/b/c", 0o755).await.expect("mkdir");
        files.chmod(b"/a/b/c", 0o3777).await.expect("chmod");
    };
    harness.world.run(root.node, set_up, 60 * SECOND).expect("the set-up ends");
    let user = harness.add_client_as(client::Credentials::new(7000, 7000));
    let fs = user.client.file_system.clone();
    let work = async move {
        let how = OpenHow { create: true, ..OpenHow::reading_and_writing() };
        fs.open(b"/a/b/c/first", &how).await.expect("create");
        for index in 0..4 {
            let file = format!("/a/b/c/file{index}").into_bytes();
            let directory = format!("/a/b/c/directory{index}").into_bytes();
            assert_eq!(cost(&fs, fs.open(&file, &how)).await.0, 1, "create");
            assert_eq!(cost(&fs, fs.stat(&file)).await.0, 1, "stat");
            assert_eq!(cost(&fs, fs.mkdir(&directory, 0o755)).await.0, 1, "mkdir");
            assert_eq!(cost(&fs, fs.unlink(&file)).await.0, 1, "unlink");
            assert_eq!(cost(&fs, fs.rmdir(&directory)).await.0, 1, "rmdir");
        }
    };
    harness.world.run(user.node, work, 60 * SECOND).expect("the work ends");
}
