//! One reactor for all threads of a process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "the tests are about threads")]

use reactor::{Class, Shared, Stream, fork_generation};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A client with one connection: requests of 8 bytes, replies of 8 bytes in order, received by one task for all
/// callers.
struct Client {
    stream: RefCell<Option<Stream>>,
    waiting: RefCell<VecDeque<Rc<ReplySlot>>>,
    generation: u64,
}

#[derive(Default)]
struct ReplySlot {
    value: Cell<Option<u64>>,
    waker: RefCell<Option<std::task::Waker>>,
}

/// A server in a thread of its own: answers each number with its double, and counts connections begun and ended.
fn start_server() -> (SocketAddr, Arc<AtomicU64>) {
    let (address, begun, _) = start_counting_server();
    (address, begun)
}

fn start_counting_server() -> (SocketAddr, Arc<AtomicU64>, Arc<AtomicU64>) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let connections = Arc::new(AtomicU64::new(0));
    let ended = Arc::new(AtomicU64::new(0));
    let (counted, counted_end) = (connections.clone(), ended.clone());
    std::thread::spawn(move || {
        let reactor = reactor::Reactor::open(reactor::DriverKind::Auto).unwrap();
        let listener = reactor.listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        sender.send(listener.local_address().unwrap()).unwrap();
        reactor.block_on(async {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let counted_end = counted_end.clone();
                reactor.spawn(Class::Data, async move {
                    let mut request = [0; 8];
                    while stream.recv_exact(&mut request).await.is_ok() {
                        let reply = (u64::from_le_bytes(request) * 2).to_le_bytes();
                        if stream.send_all(&reply).await.is_err() {
                            break;
                        }
                    }
                    counted_end.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
    });
    (receiver.recv().unwrap(), connections, ended)
}

fn shared() -> Shared<Rc<Client>> {
    Shared::new(|_| {
        Rc::new(Client { stream: RefCell::default(), waiting: RefCell::default(), generation: fork_generation() })
    })
    .unwrap()
}

/// One call: connects if need be, sends, and waits for the reply that the receiving task finds.
fn call(shared: &Shared<Rc<Client>>, address: SocketAddr, number: u64) -> u64 {
    shared.run(async |reactor, client| {
        assert_eq!(client.generation, fork_generation());
        if client.stream.borrow().is_none() {
            let stream = reactor.connect(address).await.unwrap();
            let mut place = client.stream.borrow_mut();
            if place.is_none() {
                *place = Some(stream.clone());
                let client = client.clone();
                reactor.spawn(Class::Data, async move {
                    let mut reply = [0; 8];
                    while stream.recv_exact(&mut reply).await.is_ok() {
                        let slot = client.waiting.borrow_mut().pop_front().unwrap();
                        slot.value.set(Some(u64::from_le_bytes(reply)));
                        if let Some(waker) = slot.waker.take() {
                            waker.wake();
                        }
                    }
                });
            }
        }
        let slot = Rc::new(ReplySlot::default());
        client.waiting.borrow_mut().push_back(slot.clone());
        let stream = client.stream.borrow().clone().unwrap();
        let request = number.to_le_bytes();
        assert_eq!(stream.try_send(&[std::io::IoSlice::new(&request)]).unwrap(), 8);
        wait_for(&slot).await
    })
}

async fn wait_for(slot: &ReplySlot) -> u64 {
    std::future::poll_fn(|context| match slot.value.get() {
        Some(value) => std::task::Poll::Ready(value),
        None => {
            *slot.waker.borrow_mut() = Some(context.waker().clone());
            std::task::Poll::Pending
        }
    })
    .await
}

/// Goal: many threads share one connection; every call gets its own reply; nobody hangs.
/// Method: 16 threads call thousands of times; one thread receives for others all the time.
#[test]
fn many_threads() {
    let (address, connections) = start_server();
    let shared = shared();
    assert_eq!(call(&shared, address, 21), 42);
    std::thread::scope(|scope| {
        for thread in 0..16u64 {
            let shared = &shared;
            scope.spawn(move || {
                for round in 0..1000 {
                    let number = thread << 32 | round;
                    assert_eq!(call(shared, address, number), number * 2);
                }
            });
        }
    });
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

/// Whether a thread of this process sleeps in the kernel.
fn is_asleep(thread: u64) -> bool {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

/// Keeps this thread on the first core that it may use; a patient one waits there until others give it away.
fn share_core(low_priority: bool) {
    // SAFETY: the sets and the parameter are locals, valid when zeroed; this concerns the calling thread alone.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let mut first: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed), 0);
        let core = (0..libc::CPU_SETSIZE as usize).find(|core| libc::CPU_ISSET(*core, &allowed)).unwrap();
        libc::CPU_SET(core, &mut first);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&first), &first), 0);
        if low_priority {
            let parameter: libc::sched_param = std::mem::zeroed();
            assert_eq!(libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameter), 0);
        }
    }
}

/// Goal: a thread that sleeps as the leader is woken for its own future, whatever another thread looks for meanwhile.
/// Method: many rounds. One thread waits for a flag; the other sets it, looks for events at once many times, which used
/// to take the leader's poke away, and leaves. Nothing else happens that could wake the leader. Both share a core, and
/// the leader does not push the other one off it when it is woken, so that it always looks last.
#[test]
fn leader_is_woken() {
    let shared = shared();
    let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    let thread = AtomicU64::new(0);
    const ROUNDS: u64 = 100;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            share_core(true);
            // SAFETY: no arguments.
            thread.store(unsafe { libc::gettid() } as u64, Ordering::SeqCst);
            for round in 1..=ROUNDS {
                shared.run(async |_, client| {
                    let slot = Rc::new(ReplySlot::default());
                    client.waiting.borrow_mut().push_back(slot.clone());
                    begun.store(round, Ordering::SeqCst);
                    wait_for(&slot).await
                });
                ended.store(round, Ordering::SeqCst);
            }
        });
        share_core(false);
        for round in 1..=ROUNDS {
            while begun.load(Ordering::SeqCst) < round || !is_asleep(thread.load(Ordering::SeqCst)) {
                std::thread::yield_now();
            }
            shared.run(async |reactor, client| {
                let slot = client.waiting.borrow_mut().pop_front().unwrap();
                slot.value.set(Some(round));
                if let Some(waker) = slot.waker.take() {
                    waker.wake();
                }
                // Each task is run in a turn, which begins with a look for events.
                for _ in 0..50 {
                    reactor.spawn_joinable(Class::Data, async {}).await;
                }
            });
            while ended.load(Ordering::SeqCst) < round {
                std::thread::yield_now();
            }
        }
    });
}

/// Goal: a timer set while another thread sleeps as the leader fires in time, and calls return while others wait long.
/// Method: one thread sleeps 200 ms as the leader; others sleep 5 ms again and again meanwhile.
#[test]
fn timers_of_followers() {
    let shared = shared();
    let short_sleeps = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            shared.run(async |reactor, _| reactor.sleep(200_000_000).await);
            assert!(short_sleeps.load(Ordering::SeqCst) >= 10, "{short_sleeps:?}");
        });
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let took = shared.run(async |reactor, _| {
                        let before = reactor.now();
                        reactor.sleep(5_000_000).await;
                        reactor.now() - before
                    });
                    assert!(took >= 5_000_000);
                    short_sleeps.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(short_sleeps.load(Ordering::SeqCst), 60);
}

/// Goal: calls borrow the caller's memory.
/// Method: write into a buffer on the stack.
#[test]
fn borrows() {
    let shared = shared();
    let mut buffer = [0u8; 64];
    let given = [7u8; 64];
    let filled = shared.run(async |reactor, _| {
        reactor.yield_now().await;
        buffer.copy_from_slice(&given);
        buffer.len()
    });
    assert_eq!((filled, buffer), (64, [7; 64]));
}

/// Goal: a panic in one call leaves the others alone.
/// Method: panic in a call while another thread waits; both threads' later calls work.
#[test]
fn panics() {
    let (address, _) = start_server();
    let shared = shared();
    std::thread::scope(|scope| {
        let panicking = scope.spawn(|| {
            shared.run(async |reactor, _| {
                reactor.sleep(1_000_000).await;
                panic!("this panic is part of the test");
            })
        });
        let other = scope.spawn(|| {
            for _ in 0..5 {
                shared.run(async |reactor, _| reactor.sleep(2_000_000).await);
            }
            call(&shared, address, 4)
        });
        assert!(panicking.join().is_err());
        assert_eq!(other.join().unwrap(), 8);
    });
}

/// Goal: a forked child makes its own client and connection; the parent goes on undisturbed. Method: threads call all
/// the time (so that one of them holds the lock at the fork); children call and report by their exit status.
#[test]
fn fork() {
    let (address, connections) = start_server();
    let shared = shared();
    assert_eq!(call(&shared, address, 1), 2);
    let generation = fork_generation();
    let stop = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while stop.load(Ordering::SeqCst) == 0 {
                    assert_eq!(call(&shared, address, 33), 66);
                }
            });
        }
        for round in 0..20u64 {
            // SAFETY: the child calls nothing but `call` and `_exit`; the allocator survives forks on this C library.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let right = (0..10).all(|number| call(&shared, address, number) == number * 2);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!right || fork_generation() != generation + 1)) };
            }
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: waits for our own child.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
            assert_eq!(call(&shared, address, round), round * 2);
        }
        stop.store(1, Ordering::SeqCst);
    });
    assert_eq!(connections.load(Ordering::SeqCst), 21);
    assert_eq!(fork_generation(), generation);
}

/// Goal: a child does not keep its parent's connections open. Method: fork a child that waits on a pipe; the parent
/// drops its client; the server sees the end while the child lives.
#[test]
fn child_closes_sockets() {
    let (address, _, ended) = start_counting_server();
    let shared = shared();
    assert_eq!(call(&shared, address, 1), 2);
    let (reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the child only waits for the pipe and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(writer);
        let mut byte = [0];
        let ended = std::io::Read::read(&mut &reader, &mut byte);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!matches!(ended, Ok(0)))) };
    }
    drop(reader);
    assert_eq!(call(&shared, address, 3), 6);
    drop(shared);
    while ended.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    drop(writer);
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}
