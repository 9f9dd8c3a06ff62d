//! Locks of files, each story by itself: holders that die, servers that die, and who comes next.

use client::{FileSystem, LockRange, Locker, OpenHow, Status};
use reactor::Class;
use reactor::sim::CrashKind;
use sim::harness::{Harness, SimClient};
use sim::profile::{Overrides, Profile, SECOND};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

const MILLISECOND: u64 = SECOND / 1000;
const GRACE: u64 = 5 * SECOND;

type Cell<T> = Rc<RefCell<Option<T>>>;

fn cluster(seed: u64) -> Harness {
    let overrides = Overrides { no_faults: true, servers: Some(2), ..Overrides::default() };
    let mut profile = Profile::new(seed, &overrides);
    profile.session_grace = GRACE;
    profile.client_timeout = 20 * SECOND;
    profile.latency = (100_000, 100_000);
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(60 * SECOND).expect("servers start");
    harness
}

fn start<T: 'static, F: Future<Output = T> + 'static>(
    harness: &Harness,
    client: &SimClient,
    work: impl FnOnce(FileSystem) -> F,
) -> Cell<T> {
    let told = Cell::default();
    let (future, place) = (work(client.client.file_system.clone()), told.clone());
    harness.world.reactor(client.node).spawn(Class::Metadata, async move {
        let value = future.await;
        place.replace(Some(value));
    });
    told
}

fn wait<T>(harness: &Harness, told: &Cell<T>) -> T {
    assert!(harness.world.run_until(|| told.borrow().is_some(), 600 * SECOND), "it never ends");
    told.borrow_mut().take().expect("it has ended")
}

fn run<T: 'static, F: Future<Output = T> + 'static>(
    harness: &Harness,
    client: &SimClient,
    work: impl FnOnce(FileSystem) -> F,
) -> T {
    let told = start(harness, client, work);
    wait(harness, &told)
}

async fn open(fs: &FileSystem) -> client::File {
    let how = OpenHow { create: true, ..OpenHow::reading_and_writing() };
    fs.open(b"/f", &how).await.expect("open")
}

fn range(start: u64, end: u64) -> LockRange {
    LockRange { start, end }
}

/// Starts a client that locks all of the file; the future ends when it has it.
fn locking(harness: &Harness, client: &SimClient, locker: Locker) -> Cell<client::Result<client::File>> {
    start(harness, client, async move |fs| {
        let file = open(&fs).await;
        fs.lock(&file, locker, LockRange::WHOLE, true).await.map(|()| file)
    })
}

fn home(harness: &Harness, file: &client::File) -> u32 {
    harness.cluster.home_of(file.id).expect("a home")
}

/// Goal: when the holder of a lock dies, who waits gets it after the grace time, not before; for each kind of lock.
#[test]
fn holder_is_killed() {
    for locker in [Locker::Whole, Locker::Description, Locker::Process(7)] {
        let harness = cluster(1);
        let (holder, waiter) = (harness.add_client(), harness.add_client());
        let held = locking(&harness, &holder, locker);
        wait(&harness, &held).expect("nobody has it");
        let second = locking(&harness, &waiter, locker);
        harness.world.run_for(SECOND);
        harness.world.crash(holder.node, CrashKind::Kill);
        harness.world.run_for(GRACE - 500 * MILLISECOND);
        assert!(second.borrow().is_none(), "{locker:?}: the session may still come back");
        wait(&harness, &second).expect("the session is forgotten");
    }
}

/// Goal: a lock survives its server: it is still held, waiters still wait, and both go on without being told.
#[test]
fn server_is_killed() {
    for locker in [Locker::Whole, Locker::Description, Locker::Process(7)] {
        let harness = cluster(2);
        let (holder, waiter, other) = (harness.add_client(), harness.add_client(), harness.add_client());
        let held = locking(&harness, &holder, locker);
        let file = wait(&harness, &held).expect("nobody has it");
        let second = locking(&harness, &waiter, locker);
        harness.world.run_for(SECOND);
        let server = home(&harness, &file);
        harness.kill(server);
        harness.restart(server);
        harness.wait_for_servers(60 * SECOND).expect("the server comes back");
        let refused = run(&harness, &other, async move |fs| {
            let file = open(&fs).await;
            fs.try_lock(&file, locker, LockRange::WHOLE, false).await.expect_err("it is held").status
        });
        assert_eq!(refused, Status::WouldBlock, "{locker:?}");
        harness.world.run_for(SECOND);
        assert!(second.borrow().is_none(), "{locker:?}: it is still held");
        run(&harness, &holder, async move |fs| fs.unlock(&file, locker, LockRange::WHOLE).await).expect("unlocked");
        wait(&harness, &second).expect("it is free");
    }
}

/// Goal: whoever comes first is granted first, and a large range is not starved by small ones. Method: while one has a
/// byte, one asks for everything, then ten ask for the bytes that are free; they get them after it.
#[test]
fn in_order() {
    let harness = cluster(3);
    let holder = harness.add_client();
    let file = run(&harness, &holder, async |fs| {
        let file = open(&fs).await;
        fs.lock(&file, Locker::Process(1), range(0, 1), true).await.expect("nobody has it");
        file
    });
    let order = Rc::new(RefCell::new(Vec::new()));
    let mut stories = Vec::new();
    for number in 0..11 {
        let client = harness.add_client();
        let order = order.clone();
        stories.push(start(&harness, &client, async move |fs| {
            let file = open(&fs).await;
            let wanted = if number == 0 { LockRange::WHOLE } else { range(number, number + 1) };
            fs.lock(&file, Locker::Process(1), wanted, true).await.expect("in the end");
            order.borrow_mut().push(number);
            fs.reactor().sleep(10 * MILLISECOND).await;
            fs.close_as(&file, 1).await;
        }));
        harness.world.run_for(5 * MILLISECOND);
    }
    assert!(order.borrow().is_empty());
    run(&harness, &holder, async move |fs| fs.close_as(&file, 1).await);
    stories.iter().for_each(|story| wait(&harness, story));
    let order = order.borrow();
    assert_eq!((order[0], order.len()), (0, 11), "{order:?}");
}

/// Goal: processes that would wait for each other are told so; the others go on.
#[test]
fn deadlock() {
    let harness = cluster(4);
    let (one, two) = (harness.add_client(), harness.add_client());
    let lock = async |fs: &FileSystem, process, at| {
        let file = open(fs).await;
        fs.lock(&file, Locker::Process(process), range(at, at + 1), true).await.map(|()| file)
    };
    run(&harness, &one, async move |fs| lock(&fs, 1, 0).await.map(drop)).expect("free");
    let file = run(&harness, &two, async move |fs| lock(&fs, 2, 1).await).expect("free");
    let waits = start(&harness, &one, async move |fs| lock(&fs, 1, 1).await.map(drop));
    harness.world.run_for(SECOND);
    let closing = run(&harness, &two, async move |fs| lock(&fs, 2, 0).await.map(drop)).expect_err("a cycle");
    assert_eq!(closing.status, Status::Deadlock);
    assert!(waits.borrow().is_none());
    run(&harness, &two, async move |fs| fs.close_as(&file, 2).await);
    wait(&harness, &waits).expect("it is free");
}

/// Goal: what undoes a lock of unknown outcome takes no lock away that its owner was granted afterwards. Method: one
/// asks for a lock again and again while the server is down, for various times; soon after it was granted at last, and
/// long after, nobody else gets it.
#[test]
fn undoing_ends_before_the_next_lock() {
    for seconds in [21, 33, 41, 47, 62, 70, 85] {
        for locker in [Locker::Whole, Locker::Process(7)] {
            let harness = cluster(6);
            let (holder, other) = (harness.add_client(), harness.add_client());
            let file = run(&harness, &holder, async |fs| open(&fs).await);
            let server = home(&harness, &file);
            harness.kill(server);
            let granted = start(&harness, &holder, async move |fs| {
                while let Err(error) = fs.try_lock(&file, locker, LockRange::WHOLE, true).await {
                    assert!(matches!(error.status, Status::Unreachable | Status::TimedOut), "{error}");
                }
                file
            });
            harness.world.run_for(seconds * SECOND);
            harness.restart(server);
            let _held = wait(&harness, &granted);
            for _ in 0..20 {
                let refused = run(&harness, &other, async move |fs| {
                    let file = open(&fs).await;
                    fs.try_lock(&file, locker, LockRange::WHOLE, false).await.map_err(|error| error.status)
                });
                assert_eq!(refused, Err(Status::WouldBlock), "{locker:?}, down for {seconds} s");
                harness.world.run_for(100 * MILLISECOND);
            }
        }
    }
}

/// Goal: a lock that nobody wants any more is neither waited for nor kept.
/// Method: the future of a waiting lock is dropped, before it is granted, at each of many moments around the grant.
#[test]
fn given_up() {
    for step in 0..40 {
        let harness = cluster(5);
        let (holder, waiter, third) = (harness.add_client(), harness.add_client(), harness.add_client());
        let held = locking(&harness, &holder, Locker::Process(1));
        let file = wait(&harness, &held).expect("nobody has it");
        let gives_up = start(&harness, &waiter, async move |fs| {
            let file = open(&fs).await;
            let lock = fs.lock(&file, Locker::Process(1), LockRange::WHOLE, true);
            let sleep = fs.reactor().sleep(5 * MILLISECOND + step * 20_000);
            let (mut lock, mut sleep) = (Box::pin(lock), Box::pin(sleep));
            std::future::poll_fn(|context| {
                let done = lock.as_mut().poll(context).is_ready();
                if done || sleep.as_mut().poll(context).is_ready() {
                    std::task::Poll::Ready(done)
                } else {
                    std::task::Poll::Pending
                }
            })
            .await
        });
        let released = start(&harness, &holder, async move |fs| {
            fs.reactor().sleep(5 * MILLISECOND).await;
            fs.unlock(&file, Locker::Process(1), LockRange::WHOLE).await
        });
        let has_it = wait(&harness, &gives_up);
        wait(&harness, &released).expect("unlocked");
        let third = locking(&harness, &third, Locker::Process(1));
        if has_it {
            harness.world.run_for(SECOND);
            assert!(third.borrow().is_none(), "step {step}: the second has it");
        } else {
            wait(&harness, &third).expect("nobody wants it any more");
        }
    }
}

/// Goal: exclusion and exactly once at every step: whatever breaks while locks are taken, waited for and released, two
/// never have one at once, nobody waits for ever, and nothing is left. Method: two clients take turns at a lock; at
/// each of many moments the server is killed, the connections are cut, or the one client dies; then the other has to
/// get through.
#[test]
fn at_every_step() {
    for fault in 0..3 {
        for step in 0..30u64 {
            let mut harness = cluster(6);
            let (one, two) = (harness.add_client(), harness.add_client());
            let file = run(&harness, &one, async |fs| open(&fs).await);
            let server = home(&harness, &file);
            let inside = Rc::new(std::cell::Cell::new(0u32));
            let turns = |client: &SimClient, process: u64| {
                let inside = inside.clone();
                start(&harness, client, async move |fs| {
                    let file = open(&fs).await;
                    for _ in 0..6 {
                        fs.lock(&file, Locker::Process(process), range(0, 10), true).await.expect("locked");
                        assert_eq!(inside.replace(1), 0, "fault {fault} step {step}: two are inside");
                        fs.reactor().sleep(200_000).await;
                        inside.set(0);
                        fs.unlock(&file, Locker::Process(process), LockRange::WHOLE).await.expect("unlocked");
                    }
                    fs.close_as(&file, process).await;
                })
            };
            let (first, second) = (turns(&one, 1), turns(&two, 2));
            harness.world.run_for(300_000 + step * 130_000);
            match fault {
                0 => {
                    harness.kill(server);
                    harness.restart(server);
                    harness.wait_for_servers(60 * SECOND).expect("the server comes back");
                }
                1 => {
                    harness.world.cut(one.node, harness.node(server));
                    harness.world.cut(two.node, harness.node(server));
                }
                _ => {
                    harness.world.crash(one.node, CrashKind::Kill);
                    // Whether it was inside or not, it is not any more.
                    inside.set(0);
                }
            }
            if fault != 2 {
                wait(&harness, &first);
            }
            wait(&harness, &second);
            let locked = |harness: &Harness| {
                harness.audits().iter().map(|(_, audit)| audit.locked + audit.lock_waiters).sum::<u64>()
            };
            harness.world.run_for(2 * GRACE);
            assert_eq!(locked(&harness), 0, "fault {fault} step {step}: locks are left");
            let _ = &mut harness;
        }
    }
}

/// Goal: unlocking gets through however many of the same client wait, and who is one too many for the server's queue
/// has the lock too, some time after it is free.
#[test]
fn many_waiters_of_one_client() {
    let harness = cluster(7);
    let client = harness.add_client();
    let file = run(&harness, &client, async |fs| {
        let file = open(&fs).await;
        fs.lock(&file, Locker::Process(0), LockRange::WHOLE, true).await.expect("nobody has it");
        file
    });
    let waiting: Vec<_> = (1..=48).map(|process| locking(&harness, &client, Locker::Process(process))).collect();
    harness.world.run_for(SECOND);
    assert!(waiting.iter().all(|story| story.borrow().is_none()), "somebody has it beside another");
    run(&harness, &client, async move |fs| fs.unlock(&file, Locker::Process(0), LockRange::WHOLE).await)
        .expect("unlocked");
    for (index, story) in waiting.iter().enumerate() {
        let file = wait(&harness, story).expect("its turn");
        run(&harness, &client, async move |fs| fs.close_as(&file, index as u64 + 1).await);
    }
}

/// Goal: an owner may hold thousands of ranges, which survive the end of their server in any form; what is released is
/// free. Method: 5,000 ranges apart; the server is killed (its journal is replayed) or stopped (it writes a checkpoint)
/// and started again; every second range is released, and the server killed once more.
#[test]
fn thousands_of_ranges() {
    const COUNT: u64 = 5_000;
    for stopped in [false, true] {
        let harness = cluster(8);
        let (holder, other) = (harness.add_client(), harness.add_client());
        let file = run(&harness, &holder, async |fs| {
            let file = open(&fs).await;
            for number in 0..COUNT {
                let wanted = range(number * 10, number * 10 + 5);
                fs.lock(&file, Locker::Process(1), wanted, number % 3 > 0).await.expect("nobody has it");
            }
            file
        });
        let server = home(&harness, &file);
        let again = |stop: bool| {
            if stop {
                harness.stop(server);
                assert!(harness.world.run_until(|| harness.has_stopped(server), 60 * SECOND), "it does not stop");
            }
            harness.kill(server);
            harness.restart(server);
            harness.wait_for_servers(60 * SECOND).expect("the server comes back");
        };
        let expect = |held: fn(u64) -> bool| {
            run(&harness, &other, async move |fs| {
                let file = open(&fs).await;
                for number in (0..COUNT).step_by(7) {
                    let asked = range(number * 10, number * 10 + 10);
                    let found = fs.test_lock(&file, Locker::Process(2), asked, true).await.expect("asked");
                    let wanted = held(number).then_some((range(number * 10, number * 10 + 5), number % 3 > 0));
                    assert_eq!(found.map(|found| (found.range, found.exclusive)), wanted, "range {number}");
                }
                fs.close(&file).await;
            });
        };
        again(stopped);
        expect(|_| true);
        let file = run(&harness, &holder, async move |fs| {
            for number in (1..COUNT).step_by(2) {
                let wanted = range(number * 10, number * 10 + 5);
                fs.unlock(&file, Locker::Process(1), wanted).await.expect("unlocked");
            }
            file
        });
        again(false);
        expect(|number| number % 2 == 0);
        let locked = |harness: &Harness| harness.audits().iter().map(|(_, audit)| audit.locked).sum::<u64>();
        assert_eq!(locked(&harness), COUNT / 2);
        run(&harness, &holder, async move |fs| fs.close_as(&file, 1).await);
        assert_eq!(locked(&harness), 0);
    }
}

/// Goal: a range that is split, joined or changes its mode is either as before or as after, whatever happens to the
/// server. Method: one lock is split by an unlock, the hole locked in the other mode, then all of it joined; the server
/// is killed at each of many moments. The request is sent again by itself; after each step the other client sees
/// exactly what it should.
#[test]
fn splits_at_every_step() {
    for step in 0..25u64 {
        let harness = cluster(9);
        let (holder, other) = (harness.add_client(), harness.add_client());
        let file = run(&harness, &holder, async |fs| {
            let file = open(&fs).await;
            fs.lock(&file, Locker::Process(1), range(0, 100), true).await.expect("nobody has it");
            file
        });
        let server = home(&harness, &file);
        let changes = start(&harness, &holder, async move |fs| {
            fs.unlock(&file, Locker::Process(1), range(40, 60)).await.expect("split");
            fs.lock(&file, Locker::Process(1), range(45, 55), false).await.expect("in the hole");
            fs.lock(&file, Locker::Process(1), range(55, 60), true).await.expect("joins what is behind it");
        });
        harness.world.run_for(50_000 + step * 40_000);
        harness.kill(server);
        harness.restart(server);
        harness.wait_for_servers(60 * SECOND).expect("the server comes back");
        wait(&harness, &changes);
        run(&harness, &other, async move |fs| {
            let file = open(&fs).await;
            let seen = [(0, 40, true), (45, 55, false), (55, 100, true)];
            for (asked, wanted) in [
                (range(0, 45), Some(seen[0])),
                (range(40, 45), None),
                (range(41, 55), Some(seen[1])),
                (range(56, 300), Some(seen[2])),
            ] {
                let found = fs.test_lock(&file, Locker::Process(2), asked, true).await.expect("asked");
                let found = found.map(|found| (found.range.start, found.range.end, found.exclusive));
                assert_eq!(found, wanted, "step {step}: {asked:?}");
            }
        });
    }
}
