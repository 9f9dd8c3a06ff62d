//! Streams through shared memory: as good as any other stream, also when a side sleeps, dies or lies.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "the tests are about threads")]

use reactor::{Class, DriverKind, Reactor, Shared, Stream};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const KINDS: [DriverKind; 2] = [DriverKind::IoUring, DriverKind::Epoll];

fn fresh_name() -> Vec<u8> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("tabane-test/{}/{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst)).into_bytes()
}

/// Answers every byte with the same byte.
async fn echo(stream: Stream) {
    let mut buffer = vec![0; 300_000];
    while let Ok(received) = stream.recv(&mut buffer).await {
        if received == 0 || stream.send_all(&buffer[..received]).await.is_err() {
            return;
        }
    }
}

/// A server in a thread of its own that echoes what comes to `name`, with a loop of its own that sleeps when idle.
fn start_server(kind: DriverKind, name: &[u8]) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let name = name.to_vec();
    std::thread::spawn(move || {
        let reactor = Reactor::open(kind).unwrap();
        let listener = reactor.listen_local(&name).unwrap();
        sender.send(()).unwrap();
        reactor.block_on(async {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                reactor.spawn(Class::Data, echo(stream));
            }
        });
    });
    receiver.recv().unwrap();
}

/// Goal: what is sent arrives, in order, also when it is far more than the rings hold, in both directions at once.
/// Method: 20 connections echo 3 MB each, both ends of all of them in two loops.
#[test]
fn echo_of_much() {
    for (server_kind, kind) in [(KINDS[0], KINDS[1]), (KINDS[1], KINDS[0])] {
        let name = fresh_name();
        start_server(server_kind, &name);
        let reactor = Reactor::open(kind).unwrap();
        reactor.block_on(async {
            let mut joins = Vec::new();
            for number in 0..20u64 {
                let stream = reactor.connect_local(&name, None).unwrap();
                let pattern: Vec<u8> = (0..3_000_000u64).map(|at| ((at * (number + 3)) >> 3) as u8).collect();
                let (reader, expected) = (stream.clone(), pattern.clone());
                joins.push(reactor.spawn_joinable(Class::Data, async move {
                    let mut echoed = vec![0; expected.len()];
                    reader.recv_exact(&mut echoed).await.unwrap();
                    assert!(echoed == expected);
                }));
                reactor.spawn(Class::Data, async move { stream.send_all(&pattern).await.unwrap() });
            }
            for join in joins {
                join.await;
            }
        });
    }
}

/// Goal: a side that sleeps is woken, whichever it is and whatever it sleeps for.
/// Method: single bytes with pauses longer than any polling, and blocks larger than the ring into a reader that pauses.
#[test]
fn sleepers_are_woken() {
    for (server_kind, kind) in [(KINDS[0], KINDS[1]), (KINDS[1], KINDS[0])] {
        let name = fresh_name();
        start_server(server_kind, &name);
        let reactor = Reactor::open(kind).unwrap();
        reactor.block_on(async {
            let stream = reactor.connect_local(&name, None).unwrap();
            for number in 0..20u8 {
                reactor.sleep(5_000_000).await;
                stream.send_all(&[number]).await.unwrap();
                let mut byte = [0];
                stream.recv_exact(&mut byte).await.unwrap();
                assert_eq!(byte, [number]);
            }
            let block = vec![7; 4 << 20];
            let writer = stream.clone();
            let sent = reactor.spawn_joinable(Class::Data, async move { writer.send_all(&block).await.unwrap() });
            reactor.sleep(50_000_000).await;
            let mut echoed = vec![0; 4 << 20];
            for part in echoed.chunks_mut(1 << 20) {
                reactor.sleep(5_000_000).await;
                stream.recv_exact(part).await.unwrap();
            }
            sent.await;
            assert!(echoed.iter().all(|byte| *byte == 7));
        });
    }
}

/// Goal: the end of one side is seen by the other, after what was sent before it.
#[test]
fn ends_are_seen() {
    for kind in KINDS {
        let name = fresh_name();
        let reactor = Reactor::open(kind).unwrap();
        let listener = reactor.listen_local(&name).unwrap();
        reactor.block_on(async {
            let caller = reactor.connect_local(&name, None).unwrap();
            let (server, _) = listener.accept().await.unwrap();
            caller.send_all(b"last words").await.unwrap();
            drop(caller);
            let mut words = [0; 10];
            server.recv_exact(&mut words).await.unwrap();
            assert_eq!(&words, b"last words");
            assert_eq!(server.recv(&mut words).await.unwrap(), 0);
            let caller = reactor.connect_local(&name, None).unwrap();
            let (server, _) = listener.accept().await.unwrap();
            caller.send_all(b"x").await.unwrap();
            server.recv_exact(&mut words[..1]).await.unwrap();
            server.shutdown();
            assert_eq!(caller.recv(&mut words).await.unwrap(), 0);
            assert_eq!(caller.try_send(&[std::io::IoSlice::new(b"x")]).unwrap_err().kind(), ErrorKind::BrokenPipe);
        });
    }
}

/// Goal: where nobody listens there is an error at once, and a name is listened at once.
#[test]
fn refusals() {
    for kind in KINDS {
        let (name, reactor) = (fresh_name(), Reactor::open(kind).unwrap());
        assert_eq!(reactor.connect_local(&name, None).err().unwrap().kind(), ErrorKind::ConnectionRefused);
        let _listener = reactor.listen_local(&name).unwrap();
        assert_eq!(reactor.listen_local(&name).err().unwrap().kind(), ErrorKind::AddrInUse);
    }
}

/// Goal: a caller that passes no memory, or goes before it does, loses its connection and nothing else happens.
#[test]
fn strangers_without_memory() {
    for kind in KINDS {
        let (name, reactor) = (fresh_name(), Reactor::open(kind).unwrap());
        let listener = reactor.listen_local(&name).unwrap();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        reactor.block_on(async {
            let mut talker = UnixStream::connect_addr(&address).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            talker.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            assert_eq!(stream.recv(&mut [0; 8]).await.unwrap_err().kind(), ErrorKind::InvalidData);
            drop(UnixStream::connect_addr(&address).unwrap());
            let (stream, _) = listener.accept().await.unwrap();
            assert_eq!(stream.recv(&mut [0; 8]).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            let caller = reactor.connect_local(&name, None).unwrap();
            let (server, _) = listener.accept().await.unwrap();
            caller.send_all(b"ok").await.unwrap();
            let mut words = [0; 2];
            server.recv_exact(&mut words).await.unwrap();
        });
    }
}

/// An answer, once it is there, and who waits for it.
type Place = RefCell<(Option<u64>, Option<std::task::Waker>)>;

/// Calls of 8 bytes over one connection, answered in order; the first waiter in line gets the next answer.
struct Client {
    stream: Stream,
    waiting: RefCell<VecDeque<Rc<Place>>>,
}

async fn receive_answers(client: Rc<Client>) {
    let mut answer = [0; 8];
    while client.stream.recv_exact(&mut answer).await.is_ok() {
        let place = client.waiting.borrow_mut().pop_front().unwrap();
        let waker = {
            let mut place = place.borrow_mut();
            place.0 = Some(u64::from_le_bytes(answer));
            place.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Goal: threads that share a client lose no wake-up, whoever of them sleeps, leads, or comes and goes meanwhile.
/// Method: 6 threads make 400 calls each over one connection, with pauses of all lengths between them, so that sleeping
/// as the leader, following and polling alternate; a lost wake-up hangs the test.
#[test]
fn threads_share_a_client() {
    let name = fresh_name();
    start_server(DriverKind::Auto, &name);
    let shared = Shared::new(move |reactor: &Reactor| {
        let client =
            Rc::new(Client { stream: reactor.connect_local(&name, None).unwrap(), waiting: RefCell::default() });
        reactor.spawn(Class::Data, receive_answers(client.clone()));
        client
    });
    let shared = shared.unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let shared = &shared;
            scope.spawn(move || {
                for round in 0..400u64 {
                    let number = thread << 32 | round;
                    let answer = shared.run(async |_, client: &Rc<Client>| {
                        let place = Rc::new(RefCell::new((None, None)));
                        client.waiting.borrow_mut().push_back(place.clone());
                        client.stream.send_all(&number.to_le_bytes()).await.unwrap();
                        std::future::poll_fn(|context| {
                            let mut place = place.borrow_mut();
                            match place.0.take() {
                                Some(answer) => std::task::Poll::Ready(answer),
                                None => {
                                    place.1 = Some(context.waker().clone());
                                    std::task::Poll::Pending
                                }
                            }
                        })
                        .await
                    });
                    assert_eq!(answer, number);
                    if (round + thread) % 7 == 0 {
                        std::thread::sleep(Duration::from_micros((round * 37 + thread * 101) % 3_000));
                    }
                }
            });
        }
    });
}
