//! Streams over the real drivers: bytes arrive whole and in order, ends and errors are told, nothing hangs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "two ends in two threads")]

use reactor::{Class, DriverKind, Reactor, Stream};
use std::cell::Cell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;

const KINDS: [DriverKind; 2] = [DriverKind::IoUring, DriverKind::Epoll];

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Both ends of a new connection.
async fn pair(reactor: &Reactor) -> (Stream, Stream) {
    let listener = reactor.listen(loopback()).unwrap();
    let address = listener.local_address().unwrap();
    let client = reactor.spawn_joinable(Class::Data, {
        let reactor = reactor.clone();
        async move { reactor.connect(address).await.unwrap() }
    });
    let (server, _) = listener.accept().await.unwrap();
    (client.await, server)
}

/// Goal: what is sent arrives, in order, also when it is far more than the buffers hold, in both directions at once.
/// Method: 100 connections echo a pattern of 0.5 MiB each through small socket buffers.
#[test]
fn echo() {
    for kind in KINDS {
        let reactor = Reactor::open(kind).unwrap();
        let done = Rc::new(Cell::new(0));
        reactor.block_on(async {
            let mut joins = Vec::new();
            for number in 0..100u64 {
                let (client, server) = pair(&reactor).await;
                client.set_buffer_sizes(16 << 10, 16 << 10).unwrap();
                reactor.spawn(Class::Data, async move {
                    let mut buffer = vec![0; 30_000];
                    loop {
                        let received = server.recv(&mut buffer).await.unwrap();
                        if received == 0 {
                            break;
                        }
                        server.send_all(&buffer[..received]).await.unwrap();
                    }
                });
                let pattern: Vec<u8> = (0..500_000u64).map(|at| ((at * (number + 3)) >> 3) as u8).collect();
                let (reader, expected, done) = (client.clone(), pattern.clone(), done.clone());
                joins.push(reactor.spawn_joinable(Class::Data, async move {
                    let mut echoed = vec![0; expected.len()];
                    reader.recv_exact(&mut echoed).await.unwrap();
                    assert!(echoed == expected);
                    done.set(done.get() + 1);
                }));
                reactor.spawn(Class::Data, async move { client.send_all(&pattern).await.unwrap() });
            }
            for join in joins {
                join.await;
            }
        });
        assert_eq!(done.get(), 100);
        reactor.shutdown();
    }
}

/// Goal: a closed connection is told to the peer, a refused one to the caller.
/// Method: drop one end while the other waits; connect to a port that was just given back.
#[test]
fn ends_and_refusals() {
    for kind in KINDS {
        let reactor = Reactor::open(kind).unwrap();
        reactor.block_on(async {
            let (client, server) = pair(&reactor).await;
            let reader = reactor.spawn_joinable(Class::Data, async move {
                let mut buffer = [0; 16];
                server.recv(&mut buffer).await.unwrap()
            });
            reactor.yield_now().await;
            drop(client);
            assert_eq!(reader.await, 0);

            let (client, server) = pair(&reactor).await;
            client.shutdown();
            assert_eq!(server.recv(&mut [0; 4]).await.unwrap(), 0);
            assert_eq!(client.recv(&mut [0; 4]).await.unwrap(), 0);
            assert!(client.send_all(b"late").await.is_err());

            let address = reactor.listen(loopback()).unwrap().local_address().unwrap();
            let refused = reactor.connect(address).await;
            assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::ConnectionRefused));
        });
    }
}

/// Goal: slots of closed sockets are reused without mixing up their events.
/// Method: thousands of short connections one after the other, each with one message both ways.
#[test]
fn short_connections() {
    for kind in KINDS {
        let reactor = Reactor::open(kind).unwrap();
        reactor.block_on(async {
            let listener = reactor.listen(loopback()).unwrap();
            let address = listener.local_address().unwrap();
            reactor.spawn(Class::Metadata, {
                let reactor = reactor.clone();
                async move {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        reactor.spawn(Class::Metadata, async move {
                            let mut request = [0; 8];
                            stream.recv_exact(&mut request).await.unwrap();
                            stream.send_all(&request).await.unwrap();
                        });
                    }
                }
            });
            for number in 0..3000u64 {
                let stream = reactor.connect(address).await.unwrap();
                stream.send_all(&number.to_le_bytes()).await.unwrap();
                let mut reply = [0; 8];
                stream.recv_exact(&mut reply).await.unwrap();
                assert_eq!(u64::from_le_bytes(reply), number);
                assert_eq!(stream.recv(&mut reply).await.unwrap(), 0);
            }
        });
        reactor.shutdown();
    }
}

/// Goal: more events than the completion ring holds are not lost.
/// Method: 600 connections become readable many times over while the loop does not look.
#[test]
fn overflowing_completions() {
    for kind in KINDS {
        let reactor = Reactor::open(kind).unwrap();
        reactor.block_on(async {
            let mut pairs = Vec::new();
            for _ in 0..600 {
                pairs.push(pair(&reactor).await);
            }
            for _ in 0..20 {
                for (client, _) in &pairs {
                    assert_eq!(client.try_send(&[std::io::IoSlice::new(b"x")]).unwrap(), 1);
                }
            }
            for (client, server) in &pairs {
                server.recv_exact(&mut [0; 20]).await.unwrap();
                server.send_all(b"y").await.unwrap();
                client.recv_exact(&mut [0; 1]).await.unwrap();
            }
            // Polls that the overflow ended were made again.
            for (client, server) in &pairs {
                client.send_all(b"z").await.unwrap();
                server.recv_exact(&mut [0; 1]).await.unwrap();
            }
        });
    }
}

/// Goal: no message is missed where a socket goes to and fro between busy polling and being watched. Method: two
/// threads with a reactor each send a number to and fro. Bursts without a pause make their sockets busy; pauses of 0 to
/// 3 ms, chosen by the number, put either side to sleep at all kinds of moments. One message in 64 is larger than what
/// the sockets' buffers hold, so that sending waits for room too. A minute without an end is a hang.
#[test]
fn bursts_and_pauses() {
    const COUNT: u64 = 2_000;
    const LARGE: usize = 200_000;
    fn message(number: u64) -> Vec<u8> {
        let size = if number.is_multiple_of(64) { LARGE } else { 8 };
        let mut bytes = vec![number as u8; size];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes
    }
    async fn expect(stream: &Stream, number: u64) {
        let expected = message(number);
        let mut bytes = vec![0; expected.len()];
        stream.recv_exact(&mut bytes).await.unwrap();
        assert!(bytes == expected, "message {number}");
    }
    async fn pause(reactor: &Reactor, number: u64, side: u64) {
        let burst = number / 100;
        let random = (burst * 2 + side).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        if number % 100 < 10 {
            reactor.sleep(random % 3_000_000).await;
        }
    }
    for kind in KINDS {
        let (tell, told) = std::sync::mpsc::channel();
        let server = std::thread::spawn(move || {
            let reactor = Reactor::open(kind).unwrap();
            reactor.block_on(async {
                let listener = reactor.listen(loopback()).unwrap();
                tell.send(listener.local_address().unwrap()).unwrap();
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_buffer_sizes(16 << 10, 16 << 10).unwrap();
                for number in 0..COUNT {
                    expect(&stream, number).await;
                    pause(&reactor, number, 0).await;
                    stream.send_all(&message(number)).await.unwrap();
                }
            });
            reactor.shutdown();
        });
        let reactor = Reactor::open(kind).unwrap();
        let address = told.recv().unwrap();
        reactor.block_on(async {
            let stream = reactor.connect(address).await.unwrap();
            let limit = reactor.now() + 60_000_000_000;
            let talk = async {
                for number in 0..COUNT {
                    pause(&reactor, number, 1).await;
                    stream.send_all(&message(number)).await.unwrap();
                    expect(&stream, number).await;
                }
            };
            let (mut talk, mut end) = (std::pin::pin!(talk), std::pin::pin!(reactor.sleep_until(limit)));
            std::future::poll_fn(|context| {
                assert!(end.as_mut().poll(context).is_pending(), "a message was missed");
                talk.as_mut().poll(context)
            })
            .await;
        });
        server.join().unwrap();
        reactor.shutdown();
    }
}
