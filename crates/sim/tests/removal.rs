//! A tree of very many directories is removed while others work.

use client::{FileSystem, OpenHow, Options};
use reactor::Nanos;
use sim::harness::Harness;
use sim::profile::{Overrides, Profile, SECOND};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use wire::Placement;

const SERVERS: u32 = 4;
const DIRECTORIES: u32 = 10_000;
/// As many directories as `tabane rm -r` has under way.
const JOBS: usize = 4;
/// A fast network, with the way through the processor of whoever has it for himself; and how long a server is busy with
/// a step, of which a request is two.
const LATENCY: Nanos = 25_000;
const POLL_TIME: Nanos = 3_000;
const LIMIT: Nanos = 3600 * SECOND;
/// How much slower others may be, with some room to what is promised.
const RATIO_MAX: f64 = 1.1;
/// How long the removal may take while others are at work all the time.
const REMOVAL_NS_MAX: Nanos = 30 * SECOND;

/// What a client's rounds took.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    rounds: u64,
    requests: u64,
    time: Nanos,
}

impl Work {
    fn per_round(&self) -> (f64, f64) {
        (self.requests as f64 / self.rounds as f64, self.time as f64 / self.rounds as f64)
    }
}

/// Warm operations on files in a directory of its own, one after the other.
async fn work(files: FileSystem, stop: Rc<Cell<bool>>) -> Work {
    let how = OpenHow { create: true, ..OpenHow::reading_and_writing() };
    let (mut work, before, start) = (Work::default(), files.round_trips(), files.reactor().now());
    while !stop.get() {
        let path = format!("/others/file{}", work.rounds % 64).into_bytes();
        let file = files.open(&path, &how).await.expect("create");
        files.write_at(&file, &[1; 1000], 0).await.expect("write");
        files.stat(&path).await.expect("stat");
        files.read_at(&file, &mut [0; 1000], 0).await.expect("read");
        files.close(&file).await;
        files.unlink(&path).await.expect("unlink");
        work.rounds += 1;
    }
    (work.requests, work.time) = (files.round_trips() - before, files.reactor().now() - start);
    work
}

/// Carries out something for each number, several at a time.
async fn for_each<F: Future<Output = ()>>(count: u32, jobs: usize, act: impl Fn(u32) -> F) {
    let next = RefCell::new(0..count);
    let worker = || async {
        loop {
            let Some(number) = next.borrow_mut().next() else { return };
            act(number).await;
        }
    };
    let mut workers: Vec<Pin<Box<_>>> = (0..jobs).map(|_| Box::pin(worker())).collect();
    std::future::poll_fn(|context| {
        workers.retain_mut(|worker| worker.as_mut().poll(context).is_pending());
        if workers.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

fn path_of(number: u32) -> Vec<u8> {
    format!("/tree/{}/{number}", number % 100).into_bytes()
}

/// Goal: removing 10,000 directories costs other clients' warm operations no request more, and no more than 1.2 times
/// the time. Method: 4 servers whose processors take a time for everything; a client works on files, first alone and
/// then while another one removes a tree as `tabane rm -r` does, which gets on nevertheless.
#[test]
fn others_go_on() {
    let overrides = Overrides { no_faults: true, servers: Some(SERVERS), ..Overrides::default() };
    let mut profile = Profile::new(11, &overrides);
    profile.remember_all();
    (profile.placement, profile.chunk_sizes, profile.stable_media) = (Placement::Modular, vec![1 << 20], false);
    profile.latency = (LATENCY, LATENCY);
    (profile.journal_size, profile.checksums) = (64 << 20, false);
    // Who reads a server's memory asks now and then all the same.
    profile.short_circuit = false;
    let harness = Harness::new(&profile, false);
    harness.world.set_socket_buffer(256 << 10);
    harness.wait_for_servers(LIMIT).expect("servers start");
    let low_priority = Options { is_low_priority: true, ..Options::default() };
    let (worker, remover) = (harness.add_client(), harness.add_client_with(low_priority));
    let (files, others) = (remover.client.file_system.clone(), worker.client.file_system.clone());
    let set_up = files.clone();
    let made = harness.world.run(
        remover.node,
        async move {
            for directory in ["/tree", "/others"] {
                set_up.mkdir(directory.as_bytes(), 0o755).await.expect("mkdir");
            }
            for number in 0..100 {
                set_up.mkdir(format!("/tree/{number}").as_bytes(), 0o755).await.expect("mkdir");
            }
            for_each(DIRECTORIES, 64, |number| {
                let files = set_up.clone();
                async move {
                    files.mkdir(&path_of(number), 0o755).await.expect("mkdir");
                }
            })
            .await;
        },
        LIMIT,
    );
    made.expect("the tree is made");
    for server in harness.server_indexes() {
        harness.world.set_poll_time(harness.node(server), POLL_TIME);
    }
    let run = |duration: Option<Nanos>| {
        let (stop, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(None)));
        let (stopped, told, others) = (stop.clone(), done.clone(), others.clone());
        harness.world.reactor(worker.node).spawn(reactor::Class::Metadata, async move {
            told.set(Some(work(others, stopped).await));
        });
        match duration {
            Some(duration) => harness.world.run_for(duration),
            None => {
                let files = files.clone();
                let removed = harness.world.run(
                    remover.node,
                    async move {
                        for_each(DIRECTORIES, JOBS, |number| {
                            let files = files.clone();
                            async move {
                                let mut stream = files.open_directory(&path_of(number), false).await.expect("opened");
                                while !stream.is_at_end() {
                                    files.next_page(&mut stream).await.expect("listed");
                                }
                                files.rmdir(&path_of(number)).await.expect("rmdir");
                            }
                        })
                        .await;
                    },
                    LIMIT,
                );
                removed.expect("the tree is removed");
            }
        }
        stop.set(true);
        assert!(harness.world.run_until(|| done.get().is_some(), LIMIT));
        done.get().expect("it is there")
    };
    run(Some(SECOND / 10));
    let alone = run(Some(SECOND));
    let beside = run(None);
    let ((requests, time), (requests_beside, time_beside)) = (alone.per_round(), beside.per_round());
    println!(
        "alone: {requests:.2} requests and {:.1} us a round; beside the removal: {requests_beside:.2} and {:.1} us, \
         {:.2} times, for {:.2} s",
        time / 1e3,
        time_beside / 1e3,
        time_beside / time,
        beside.time as f64 / 1e9
    );
    assert!(requests_beside <= requests * 1.001, "{requests_beside} requests a round instead of {requests}");
    assert!(time_beside <= time * RATIO_MAX, "{} times as slow", time_beside / time);
    assert!(beside.time <= REMOVAL_NS_MAX, "the removal took {} s", beside.time as f64 / 1e9);
}
