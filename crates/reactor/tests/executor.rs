//! The executor: classes share the loop, timers fire in time, cancelled and finished tasks leave nothing behind.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use reactor::sim::World;
use reactor::{Class, DriverKind, Reactor};
use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::task::Poll;

const KINDS: [DriverKind; 2] = [DriverKind::IoUring, DriverKind::Epoll];

/// Goal: no class starves: metadata and data have as much of the loop, background work steps back while others are busy
/// but goes on. How much exactly is the schedule's own test; here the clock is the machine's.
/// Method: endless tasks of all classes yield in turns; compare how often each ran after a number of turns.
#[test]
fn classes_share() {
    let reactor = Reactor::open(DriverKind::Auto).unwrap();
    let runs: [Rc<Cell<u64>>; 3] = Default::default();
    for class in Class::ALL {
        for _ in 0..100 {
            let (looping, runs) = (reactor.clone(), runs[class as usize].clone());
            reactor.spawn(class, async move {
                loop {
                    runs.set(runs.get() + 1);
                    looping.yield_now().await;
                }
            });
        }
    }
    for _ in 0..1600 {
        reactor.turn(false);
    }
    let [metadata, data, background] = runs.map(|runs| runs.get());
    let all = metadata + data + background;
    assert!(4 * metadata > all && 4 * data > all, "{metadata} {data} {background}");
    assert!(40 * background > all && 4 * background < all, "{metadata} {data} {background}");
    let statistics = reactor.statistics();
    assert_eq!(statistics.tasks_live, [100; 3]);
    assert_eq!(statistics.polls, metadata + data + background);
    reactor.shutdown();
    assert_eq!(reactor.statistics().tasks_live, [0; 3]);
}

/// Goal: background work has the loop to itself when nobody else wants it.
/// Method: one background task alone; every turn runs it.
#[test]
fn background_alone() {
    let reactor = Reactor::open(DriverKind::Epoll).unwrap();
    let runs = Rc::new(Cell::new(0));
    let (looping, counted) = (reactor.clone(), runs.clone());
    reactor.spawn(Class::Background, async move {
        loop {
            counted.set(counted.get() + 1);
            looping.yield_now().await;
        }
    });
    for _ in 0..100 {
        assert!(reactor.turn(false));
    }
    assert_eq!(runs.get(), 100);
    reactor.shutdown();
}

struct NoteDrop(Rc<Cell<u32>>);

impl Drop for NoteDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// Goal: cancelling drops the future at once, from outside, from a sibling and from within; dropping a handle detaches.
/// Method: futures that note their drop.
#[test]
fn cancelling() {
    let reactor = Reactor::open(DriverKind::Epoll).unwrap();
    let drops = Rc::new(Cell::new(0));
    let endless = |drops: &Rc<Cell<u32>>| {
        let note = NoteDrop(drops.clone());
        reactor.spawn_joinable(Class::Data, async move {
            let _note = note;
            pending::<()>().await;
        })
    };
    let never_run = endless(&drops);
    never_run.cancel();
    assert_eq!(drops.get(), 1);
    let running = endless(&drops);
    reactor.turn(false);
    running.cancel();
    assert_eq!(drops.get(), 2);
    assert_eq!(reactor.statistics().tasks_live, [0; 3]);

    let own: Rc<RefCell<Option<reactor::JoinHandle<()>>>> = Rc::default();
    let (mine, note) = (own.clone(), NoteDrop(drops.clone()));
    let handle = reactor.spawn_joinable(Class::Data, async move {
        let _note = note;
        mine.borrow_mut().take().unwrap().cancel();
        assert_eq!(_note.0.get(), 2, "it is dropped only when its poll returns");
        pending::<()>().await;
    });
    *own.borrow_mut() = Some(handle);
    reactor.turn(false);
    assert_eq!(drops.get(), 3);
    assert_eq!(reactor.statistics().tasks_live, [0; 3]);

    drop(endless(&drops));
    reactor.turn(false);
    assert_eq!((drops.get(), reactor.statistics().tasks_live), (3, [0, 1, 0]));
    reactor.shutdown();
    assert_eq!(drops.get(), 4);
    reactor.spawn(Class::Data, {
        let note = NoteDrop(drops.clone());
        async move { drop(note) }
    });
    assert_eq!(drops.get(), 5, "after shutdown a new task is dropped");
}

/// Goal: results travel through join handles; finished tasks free their places.
/// Method: thousands of tasks that wait for each other.
#[test]
fn joining() {
    let reactor = Reactor::open(DriverKind::Auto).unwrap();
    let sum = reactor.block_on(async {
        let mut sum = 0;
        for round in 0..50u64 {
            let handles: Vec<_> = (0..100)
                .map(|index| {
                    let yielding = reactor.clone();
                    reactor.spawn_joinable(Class::Metadata, async move {
                        if index % 3 == 0 {
                            yielding.yield_now().await;
                        }
                        round * index
                    })
                })
                .collect();
            for handle in handles {
                sum += handle.await;
            }
        }
        sum
    });
    assert_eq!(sum, (0..50).sum::<u64>() * (0..100).sum::<u64>());
    assert_eq!(reactor.statistics().tasks_live, [0; 3]);
}

/// Goal: timers fire in order, never early, and dropped ones do nothing.
/// Method: virtual time, 1000 sleepers, of which every third is dropped.
#[test]
fn timers() {
    let world = World::new(5);
    let node = world.add_node("node", "10.0.0.1".parse().unwrap());
    let reactor = world.reactor(node);
    let woken = Rc::new(RefCell::new(Vec::new()));
    let start = reactor.now();
    let mut handles = Vec::new();
    for index in 0..1000u64 {
        let (sleeping, woken) = (reactor.clone(), woken.clone());
        let delay = (index * 7919) % 1000 * 1_000_000;
        handles.push(reactor.spawn_joinable(Class::Metadata, async move {
            sleeping.sleep_until(start + delay).await;
            assert!(sleeping.now() >= start + delay);
            woken.borrow_mut().push(delay);
        }));
    }
    world.run_until(|| reactor.statistics().timers == 999, 1_000_000_000);
    for handle in handles.into_iter().skip(1).step_by(3) {
        handle.cancel();
    }
    world.run_for(2_000_000_000);
    let woken = woken.borrow();
    assert!(woken.is_sorted());
    assert!(woken.len() >= 667 && woken.len() <= 669, "{}", woken.len());
    assert_eq!(reactor.statistics().timers, 0);
}

/// Goal: real loops sleep for timers, in the kernel, without spinning.
/// Method: sleep 30 ms; time has passed; the loop turned few times.
#[test]
fn idle_means_asleep() {
    for kind in KINDS {
        let reactor = Reactor::open(kind).unwrap();
        let before = reactor.now();
        reactor.block_on(reactor.sleep(30_000_000));
        let took = reactor.now() - before;
        let statistics = reactor.statistics();
        assert!(took >= 30_000_000, "{took}");
        assert!(statistics.sleeps >= 1 && statistics.turns < 20, "{statistics:?}");
        assert!(statistics.waiting_ns >= 29_000_000 && statistics.busy_ns < 20_000_000, "{statistics:?}");
    }
}

/// Goal: wakers work from other threads, also while the loop sleeps.
/// Method: threads wake a task and the root future after the loop went to sleep, many times; a lost wake would hang.
#[test]
#[expect(clippy::disallowed_methods, reason = "the test is about other threads")]
fn wakes_from_other_threads() {
    for kind in KINDS {
        let reactor = Reactor::open(kind).unwrap();
        for round in 0..300 {
            let mut started = false;
            let mut others = Vec::new();
            let woken = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
            let waiting = poll_fn(|context| {
                if woken.load(std::sync::atomic::Ordering::Acquire) {
                    return Poll::Ready(());
                }
                if !std::mem::replace(&mut started, true) {
                    let (waker, woken) = (context.waker().clone(), woken.clone());
                    others.push(std::thread::spawn(move || {
                        for _ in 0..round * 10 {
                            std::hint::spin_loop();
                        }
                        woken.store(true, std::sync::atomic::Ordering::Release);
                        waker.wake();
                    }));
                }
                Poll::Pending
            });
            reactor.block_on(waiting);
            for other in others {
                other.join().unwrap();
            }

            let (sender, receiver) = std::sync::mpsc::channel::<std::task::Waker>();
            let waker_thread = std::thread::spawn(move || receiver.recv().unwrap().wake());
            let mut sent = false;
            let task = reactor.spawn_joinable(
                Class::Data,
                poll_fn(move |context| {
                    if std::mem::replace(&mut sent, true) {
                        return Poll::Ready(());
                    }
                    sender.send(context.waker().clone()).unwrap();
                    Poll::Pending
                }),
            );
            reactor.block_on(task);
            waker_thread.join().unwrap();
        }
    }
}
