//! Single stories that random runs found to go wrong, or that they meet too seldom.

use client::{File, FileSystem, OpenHow, Status};
use reactor::sim::NodeId;
use reactor::{Class, Nanos};
use sim::harness::{Harness, SimClient};
use sim::profile::{Profile, SECOND, Wishes};
use std::cell::RefCell;
use std::rc::Rc;
use wire::Placement;

const CHUNK_SIZE: u32 = 4096;
const LIMIT: Nanos = 600 * SECOND;

fn cluster(servers: u32) -> Harness {
    let wishes = Wishes { no_faults: true, servers: Some(servers), ..Wishes::default() };
    let mut profile = Profile::new(1, &wishes);
    (profile.placement, profile.chunk_sizes) = (Placement::Modular, vec![CHUNK_SIZE]);
    (profile.client_timeout, profile.server_timeout) = (10 * SECOND, 2 * SECOND);
    profile.latency = (10_000, 200_000);
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(LIMIT).expect("servers start");
    harness
}

fn creating() -> OpenHow {
    OpenHow { create: true, ..OpenHow::reading_and_writing() }
}

/// Starts something on a client and hands back where its result will be.
fn start<T: 'static>(
    harness: &Harness,
    client: &SimClient,
    work: impl AsyncFnOnce(FileSystem) -> T + 'static,
) -> Rc<RefCell<Option<T>>> {
    let result = Rc::new(RefCell::new(None));
    let (place, file_system) = (result.clone(), client.client.file_system.clone());
    harness.world.reactor(client.node).spawn(Class::Data, async move {
        let value = work(file_system).await;
        *place.borrow_mut() = Some(value);
    });
    result
}

fn wait<T>(harness: &Harness, result: &Rc<RefCell<Option<T>>>) -> T {
    assert!(harness.world.run_until(|| result.borrow().is_some(), LIMIT), "it never ends");
    result.borrow_mut().take().expect("just seen")
}

fn run<T: 'static>(harness: &Harness, client: &SimClient, work: impl AsyncFnOnce(FileSystem) -> T + 'static) -> T {
    wait(harness, &start(harness, client, work))
}

/// A file whose home is `home`; its name is found by trying.
async fn file_at(file_system: &FileSystem, home: u32) -> File {
    for index in 0.. {
        let path = format!("/file{index}");
        let file = file_system.open(path.as_bytes(), &creating()).await.expect("create");
        if file_system.cluster().home_of(file.id) == Some(home) {
            return file;
        }
    }
    unreachable!("some name fits")
}

/// Goal: a server that is stopped between two truncates of a file starts again, and both are done once the other server
/// is back.
/// Method: a chunk lies on server 1, which is killed; two truncates wait for it at server 0, which is stopped and
/// started again before server 1 comes back.
#[test]
fn stop_between_two_truncates() {
    let harness = cluster(2);
    let client = harness.add_client();
    let file = run(&harness, &client, async |fs| {
        let file = file_at(&fs, 0).await;
        fs.write_at(&file, &[7; 3 * CHUNK_SIZE as usize], 0).await.expect("write");
        file
    });
    harness.kill(1);
    let truncates: Vec<_> = [100, 5000]
        .into_iter()
        .map(|size| {
            let file = file.clone();
            start(&harness, &client, async move |fs| fs.truncate_file(&file, size).await.map(|seen| seen.size))
        })
        .collect();
    harness.world.run_for(SECOND / 2);
    harness.stop(0);
    assert!(harness.world.run_until(|| harness.has_stopped(0), LIMIT));
    harness.kill(0);
    harness.restart(0);
    harness.world.run_for(SECOND / 10);
    harness.restart(1);
    harness.wait_for_servers(LIMIT).expect("servers start");
    for truncate in truncates {
        // Whoever was answered by the server that was about to stop knows that it did not happen, or may still.
        if let Err(error) = wait(&harness, &truncate) {
            assert!(matches!(error.status, Status::Draining | Status::TimedOut | Status::Unreachable), "{error}");
        }
    }
    let size = run(&harness, &client, async move |fs| fs.stat_file(&file).await.expect("stat").size);
    assert!(size == 100 || size == 5000, "{size}");
}

/// Goal: a listing of a directory that is removed and made again and again ends with what there is, or with `NotFound`.
/// Method: one client lists without pause, another removes and makes the directory with a name in it.
#[test]
fn listing_of_a_restless_directory() {
    let harness = cluster(3);
    let (restless, lister) = (harness.add_client(), harness.add_client());
    let done = start(&harness, &restless, async |fs| {
        for _ in 0..200 {
            fs.mkdir(b"/d", 0o755).await.expect("mkdir");
            fs.symlink(b"x", b"/d/l").await.expect("symlink");
            fs.unlink(b"/d/l").await.expect("unlink");
            fs.rmdir(b"/d").await.expect("rmdir");
        }
    });
    while done.borrow().is_none() {
        let listing = run(&harness, &lister, async |fs| fs.read_directory(b"/d", &mut |_| true).await);
        if let Err(error) = listing {
            assert_eq!(error.status, Status::NotFound, "{error}");
        }
    }
}

/// Goal: what arrives behind a reset does not fill the gap that the reset stands for.
/// Method: connections are cut all the time under small and large writes; no call may fail for broken framing.
#[test]
fn cuts_lose_the_end_only() {
    let harness = cluster(1);
    let client = harness.add_client();
    let server: NodeId = harness.node(0);
    let done = start(&harness, &client, async |fs| {
        let file = fs.open(b"/f", &creating()).await.expect("create");
        for round in 0..300u64 {
            let bytes = vec![round as u8; 1 + (round as usize * 97) % 9000];
            fs.write_at(&file, &bytes, round % 5000).await.expect("write");
        }
    });
    let mut round = 0;
    while done.borrow().is_none() {
        round += 1;
        harness.world.run_until(|| done.borrow().is_some(), 3_000_000 + round % 7 * 2_500_000);
        harness.world.cut(client.node, server);
        assert!(harness.world.now() < LIMIT, "it never ends");
    }
}
