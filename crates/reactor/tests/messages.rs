//! The message layer over real sockets: both sides in one process, on one loop.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use reactor::{
    BodyPiece, Call, Channel, ChannelOptions, Class, DriverKind, Failure, Incoming, Peer, Reactor, ReplyBody,
    ServeOptions, ServerHandle, Service, serve,
};
use std::cell::{Cell, RefCell};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::rc::Rc;
use wire::credentials::Credentials;
use wire::handshake::Role;
use wire::messages::{Empty, FileRequest};
use wire::{Cluster, Decode, Encode, FileId, Operation, Placement, ServerAddress, Status};

const SECOND: u64 = 1_000_000_000;

/// Echoes bodies, and answers `StatId` and `RemoveDirectory` only when told to.
#[derive(Default)]
struct Echo {
    reactor: RefCell<Option<Reactor>>,
    held: RefCell<Vec<Incoming>>,
    sequences: RefCell<Vec<u64>>,
    /// Sessions that have said that they ended.
    ended: RefCell<Vec<u64>>,
}

impl Service for Echo {
    fn connected(&self, _: &Peer, _: u64) -> Result<bool, Status> {
        Ok(true)
    }

    fn disconnected(&self, _: &Peer) {}

    fn session_ended(&self, peer: &Peer) {
        self.ended.borrow_mut().push(peer.session);
    }

    fn request(self: Rc<Self>, incoming: Incoming) {
        if incoming.header.session_sequence != 0 {
            self.sequences.borrow_mut().push(incoming.header.session_sequence);
        }
        match incoming.operation {
            Operation::Ping => incoming.reply(&Empty {}),
            Operation::StatId | Operation::RemoveDirectory => self.held.borrow_mut().push(incoming),
            Operation::Truncate => incoming.fail(Status::NoSpace, FileId(7), b"no room"),
            Operation::Unlink => drop(incoming),
            _ => {
                let reactor = self.reactor.borrow().clone().unwrap();
                reactor.clone().spawn(Class::Data, echo(reactor, incoming));
            }
        }
    }
}

async fn echo(reactor: Reactor, mut incoming: Incoming) {
    let size = incoming.body_size() as u64;
    let directory = std::env::temp_dir().join(format!("tabane-echo-{}-{}", std::process::id(), reactor.random()));
    std::fs::create_dir_all(&directory).unwrap();
    let storage = reactor.storage(&directory).unwrap();
    let region = storage.open("place", size.max(4096), reactor::OpenMode::CreateNew).unwrap();
    region.allocate(0, size.max(4096)).unwrap();
    let half = size / 2;
    let places = [
        reactor::Span { region: region.clone(), offset: 0, size: half },
        reactor::Span { region: region.clone(), offset: half, size: size - half },
    ];
    if incoming.receive_body(&places).await.is_ok() {
        let pieces = vec![BodyPiece::Span(places[0].clone()), BodyPiece::Span(places[1].clone()), BodyPiece::Zero(3)];
        incoming.reply_with_body(&Empty {}, ReplyBody { pieces, guard: None });
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

struct Fixture {
    reactor: Reactor,
    cluster: Rc<Cluster>,
    handle: ServerHandle,
    service: Rc<Echo>,
}

fn fixture(kind: DriverKind, working_interval: u64) -> Fixture {
    let service = Rc::new(Echo::default());
    let (reactor, cluster, handle) = serving(kind, working_interval, service.clone());
    *service.reactor.borrow_mut() = Some(reactor.clone());
    Fixture { reactor, cluster, handle, service }
}

/// A loop on which a service is served, and where.
fn serving(kind: DriverKind, working_interval: u64, service: Rc<impl Service>) -> (Reactor, Rc<Cluster>, ServerHandle) {
    let reactor = Reactor::open(kind).unwrap();
    let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let cluster = Rc::new(cluster_at(listener.local_address().unwrap(), 9));
    let options = ServeOptions {
        cluster: cluster.clone(),
        server: 0,
        connections_max: 4,
        incarnation: 1,
        shared: None,
        local_clients_only: false,
        registers_buffers: false,
        working_interval,
        timeout: 10 * SECOND,
    };
    let handle = serve(&reactor, listener, options, service);
    (reactor, cluster, handle)
}

fn cluster_at(address: SocketAddr, key: u8) -> Cluster {
    Cluster::new(77, [key; 32], Placement::Modular, 1 << 20, vec![ServerAddress { address }])
}

fn channel(fixture: &Fixture, cluster: &Rc<Cluster>, session: u64, timeout: u64) -> Channel {
    channel_on(&fixture.reactor, cluster, session, timeout)
}

fn channel_on(reactor: &Reactor, cluster: &Rc<Cluster>, session: u64, timeout: u64) -> Channel {
    let options = ChannelOptions {
        cluster: cluster.clone(),
        server: 0,
        role: Role::Client,
        from_server: 0,
        level: 0,
        session,
        user: Credentials::new(0, 0),
        label: wire::label::Label::default(),
        timeout,
        relay: None,
    };
    Channel::new(reactor, options)
}

fn stat() -> Call<'static> {
    Call::new(Operation::StatId, &FileRequest { file: FileId::ROOT })
}

fn ping() -> Call<'static> {
    Call::new(Operation::Ping, &Empty {})
}

fn in_both(test: fn(DriverKind)) {
    test(DriverKind::Epoll);
    test(DriverKind::IoUring);
}

/// Goal: who ends a session is heard by the time that it has, whatever it had under way; who merely goes is not taken
/// for ended.
#[test]
fn sessions_end_when_they_say_so() {
    in_both(|kind| {
        let fixture = fixture(kind, SECOND);
        let channels: Vec<Channel> =
            (0..4).map(|session| channel(&fixture, &fixture.cluster, session, 10 * SECOND)).collect();
        fixture.reactor.block_on(async {
            for channel in &channels[..3] {
                channel.call(ping()).await.unwrap();
            }
            channels[0].end().await;
            assert_eq!(*fixture.service.ended.borrow(), [0]);
            let refused = channels[0].call(ping()).await;
            assert!(matches!(refused, Err(failure) if failure.status == Status::Unreachable));
            let (busy, cut_off) = (channels[1].clone(), Rc::new(Cell::new(false)));
            let seen = cut_off.clone();
            fixture.reactor.spawn(Class::Data, async move {
                let failed = busy.call(stat()).await;
                seen.set(matches!(failed, Err(failure) if failure.status == Status::Unreachable));
            });
            while fixture.service.held.borrow().is_empty() {
                fixture.reactor.sleep(SECOND / 1000).await;
            }
            channels[1].end().await;
            channels[1].end().await;
            assert!(cut_off.get() && *fixture.service.ended.borrow() == [0, 1]);
            channels[2].close();
            while fixture.handle.statistics().connections > 0 {
                fixture.reactor.sleep(SECOND / 1000).await;
            }
            // It has no connection to say it over.
            channels[3].end().await;
            assert_eq!(*fixture.service.ended.borrow(), [0, 1]);
        });
    });
}

/// Takes a while for each request, and notes when it came and when its turn was.
#[derive(Default)]
struct Slow {
    reactor: RefCell<Option<Reactor>>,
    times: RefCell<Vec<(u64, u64)>>,
    /// When the last one can have arrived.
    arrived: Cell<u64>,
}

const SLOW_NS: u64 = 200_000;

impl Service for Slow {
    fn connected(&self, _: &Peer, _: u64) -> Result<bool, Status> {
        Ok(true)
    }

    fn disconnected(&self, _: &Peer) {}

    fn request(self: Rc<Self>, incoming: Incoming) {
        assert!(incoming.arrived <= incoming.read && incoming.read <= incoming.taken);
        self.arrived.set(incoming.arrived);
        self.times.borrow_mut().push((incoming.read, incoming.taken));
        let reactor = self.reactor.borrow().clone().unwrap();
        while reactor.now() < incoming.taken + SLOW_NS {}
        incoming.reply(&Empty {});
    }
}

/// Goal: a request that came together with others has waited for those before it, and one that came alone for nobody.
/// Method: several at once, small enough to be read at once, to a service that takes its time; then one alone.
#[test]
fn requests_wait_for_those_before_them() {
    in_both(|kind| {
        let service = Rc::new(Slow::default());
        let (reactor, cluster, _handle) = serving(kind, SECOND, service.clone());
        service.reactor.replace(Some(reactor.clone()));
        let channel = Rc::new(channel_on(&reactor, &cluster, 1, 10 * SECOND));
        reactor.block_on(async {
            channel.call(ping()).await.unwrap();
            service.times.borrow_mut().clear();
            let calls: Vec<_> = (0..8)
                .map(|_| {
                    let channel = channel.clone();
                    reactor.spawn_joinable(Class::Metadata, async move { channel.call(ping()).await.map(|_| ()) })
                })
                .collect();
            for call in calls {
                call.await.unwrap();
            }
            let times = service.times.take();
            assert_eq!(times.len(), 8);
            for pair in times.windows(2) {
                assert!(pair[1].1 >= pair[0].1 + SLOW_NS && pair[1].0 >= pair[0].0, "{times:?}");
            }
            // However the loop cut them into batches, somebody has waited, and nobody longer than since the first one
            // came.
            let waited: Vec<u64> = times.iter().map(|(read, taken)| taken - read).collect();
            assert_eq!(waited[0], 0);
            assert!(waited[7] >= SLOW_NS && waited[7] <= times[7].1 - times[0].0, "{times:?}");
            // The loop slept, and does not take that for waiting.
            reactor.sleep(100_000_000).await;
            channel.call(ping()).await.unwrap();
            let (read, taken) = service.times.take()[0];
            assert_eq!(read, taken, "it came alone");
            assert!(taken - service.arrived.get() < 50_000_000, "it had not come long before");
        });
    });
}

/// Goal: bodies of every size arrive whole in both directions, scattered as asked.
/// Method: echo bodies around the read-ahead, the socket buffers and several MiB, into two uneven places.
#[test]
fn bodies_arrive_whole() {
    in_both(|kind| {
        let fixture = fixture(kind, SECOND);
        let channel = channel(&fixture, &fixture.cluster, 1, 10 * SECOND);
        fixture.reactor.block_on(async {
            for size in [1usize, 2, 4000, 4608, 4609, 47_008, 1 << 20, 9_000_001] {
                let sent: Vec<u8> = (0..size).map(|i| (i * 7 + size) as u8).collect();
                let mut first = vec![1; size / 3];
                let mut second = vec![1; size - size / 3 + 3];
                let reply = {
                    let body = [IoSlice::new(&sent[..size / 2]), IoSlice::new(&sent[size / 2..])];
                    let place = vec![IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
                    let mut call = Call::new(Operation::Write, &Empty {});
                    call.body = &body;
                    call.place = place;
                    channel.call(call).await.unwrap()
                };
                assert_eq!(reply.body_size, size + 3);
                first.extend_from_slice(&second);
                assert_eq!(&first[..size], &sent[..]);
                assert_eq!(&first[size..], [0, 0, 0]);
            }
        });
    });
}

/// Goal: many calls at once share a connection and its window, each getting its own answer.
#[test]
fn window_is_kept() {
    in_both(|kind| {
        let fixture = fixture(kind, SECOND);
        let channel = channel(&fixture, &fixture.cluster, 1, 10 * SECOND);
        let reactor = fixture.reactor.clone();
        fixture.reactor.block_on(async {
            let handles: Vec<_> = (0..1000)
                .map(|_| {
                    let channel = channel.clone();
                    reactor.spawn_joinable(Class::Metadata, async move { channel.call(ping()).await.map(|_| ()) })
                })
                .collect();
            for handle in handles {
                handle.await.unwrap();
            }
        });
        assert_eq!(channel.statistics().connects, 1);
        assert_eq!(channel.outstanding(), 0);
    });
}

/// Goal: one that is not answered takes its own place of the session's window and no more: others go on, without end
/// and in order.
#[test]
fn one_that_waits_holds_up_no_other() {
    in_both(|kind| {
        let fixture = fixture(kind, SECOND);
        let channel = channel(&fixture, &fixture.cluster, 1, 10 * SECOND);
        let (reactor, service) = (fixture.reactor.clone(), fixture.service.clone());
        let count = 5 * wire::limits::REQUEST_WINDOW as usize;
        fixture.reactor.block_on(async {
            let call = {
                let channel = channel.clone();
                let remove = Call::new(Operation::RemoveDirectory, &Empty {});
                reactor.spawn_joinable(Class::Metadata, async move { channel.call(remove).await.map(|_| ()) })
            };
            while service.held.borrow().is_empty() {
                reactor.yield_now().await;
            }
            for _ in 0..count {
                let failure = channel.call(Call::new(Operation::Truncate, &Empty {})).await.unwrap_err();
                assert_eq!(failure.status, Status::NoSpace);
            }
            let held = service.held.borrow_mut().pop().unwrap();
            assert_eq!(held.header.session_sequence, 1);
            held.reply(&Empty {});
            call.await.unwrap();
        });
        let sequences = service.sequences.borrow();
        assert_eq!(sequences.len(), count + 1);
        assert!(sequences.windows(2).all(|pair| pair[0] < pair[1]), "{sequences:?}");
        let window = u64::from(wire::limits::REQUEST_WINDOW);
        assert!(
            sequences[1..].iter().all(|sequence| sequence % window != 1),
            "a place is taken while it is waited for"
        );
    });
}

fn outcome(fixture: &Fixture, channel: &Channel, call: Call<'_>) -> Result<(), Failure> {
    fixture.reactor.block_on(channel.call(call)).map(|_| ())
}

/// Goal: a failure keeps its status, id and words; a dropped request is answered; an unreachable server is named.
#[test]
fn failures_say_why() {
    let fixture = fixture(DriverKind::Epoll, SECOND);
    let first = channel(&fixture, &fixture.cluster, 1, SECOND);
    let failure = outcome(&fixture, &first, Call::new(Operation::Truncate, &Empty {})).unwrap_err();
    assert_eq!((failure.status, failure.id, &failure.text[..]), (Status::NoSpace, FileId(7), &b"no room"[..]));
    let failure = outcome(&fixture, &first, Call::new(Operation::Unlink, &Empty {})).unwrap_err();
    assert_eq!(failure.status, Status::Io);
    let gone = fixture.reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap().local_address().unwrap();
    let lost = channel(&fixture, &Rc::new(cluster_at(gone, 9)), 1, SECOND / 5);
    let failure = outcome(&fixture, &lost, ping()).unwrap_err();
    assert_eq!(failure.status, Status::Unreachable);
    assert!(String::from_utf8_lossy(&failure.text).contains(&gone.to_string()));
}

/// Goal: without the key nothing is served, and the caller is told; others go on undisturbed.
#[test]
fn wrong_key_is_refused() {
    let fixture = fixture(DriverKind::Epoll, SECOND);
    let good = channel(&fixture, &fixture.cluster, 1, SECOND);
    outcome(&fixture, &good, ping()).unwrap();
    let address = fixture.cluster.servers[0].address;
    let bad = channel(&fixture, &Rc::new(cluster_at(address, 8)), 2, SECOND);
    assert_eq!(outcome(&fixture, &bad, ping()).unwrap_err().status, Status::KeyMismatch);
    let mut other = cluster_at(address, 9);
    other.id = 78;
    let stranger = channel(&fixture, &Rc::new(other), 3, SECOND);
    assert_eq!(outcome(&fixture, &stranger, ping()).unwrap_err().status, Status::ClusterMismatch);
    outcome(&fixture, &good, ping()).unwrap();
    assert_eq!(good.statistics().connects, 1);
}

/// Goal: a request that takes long is no silence; one that nobody holds any more is.
/// Method: hold a request for several time-outs with signs of life; then a server that gives none.
#[test]
fn silence_ends_calls_and_work_does_not() {
    let fixture = fixture(DriverKind::Epoll, SECOND / 50);
    let low_priority = channel(&fixture, &fixture.cluster, 1, SECOND / 5);
    let reactor = fixture.reactor.clone();
    let service = fixture.service.clone();
    fixture.reactor.block_on(async {
        let call = {
            let low_priority = low_priority.clone();
            reactor.spawn_joinable(Class::Metadata, async move { low_priority.call(stat()).await.map(|_| ()) })
        };
        reactor.sleep(SECOND).await;
        let incoming = service.held.borrow_mut().pop().unwrap();
        incoming.reply(&Empty {});
        call.await.unwrap();
    });
    let mute = self::fixture(DriverKind::Epoll, 1000 * SECOND);
    let channel = channel(&mute, &mute.cluster, 1, SECOND / 5);
    assert_eq!(outcome(&mute, &channel, stat()).unwrap_err().status, Status::TimedOut);
}

/// Goal: after a cut connection a mutating request is sent again with the same sequence, and the old connection is
/// gone.
#[test]
fn cut_connection_resends_the_same_sequence() {
    let fixture = fixture(DriverKind::Epoll, SECOND);
    let first = channel(&fixture, &fixture.cluster, 1, 10 * SECOND);
    let reactor = fixture.reactor.clone();
    let service = fixture.service.clone();
    fixture.reactor.block_on(async {
        let call = {
            let first = first.clone();
            reactor.spawn_joinable(Class::Metadata, async move { first.call(stat()).await.map(|_| ()) })
        };
        while service.held.borrow().is_empty() {
            reactor.yield_now().await;
        }
        // A second connection of the same session fences the first one.
        let second = channel(&fixture, &fixture.cluster, 1, 10 * SECOND);
        second.call(ping()).await.unwrap();
        second.close();
        while service.held.borrow().len() < 2 {
            reactor.yield_now().await;
        }
        let old = service.held.borrow_mut().remove(0);
        assert!(!old.is_connected());
        drop(old);
        service.held.borrow_mut().remove(0).reply(&Empty {});
        call.await.unwrap();
    });
    assert!(first.statistics().resends == 1 && first.statistics().connects == 2);
}

/// Goal: with the last handle the connection ends, on both sides.
#[test]
fn dropped_channel_disconnects() {
    let fixture = fixture(DriverKind::Epoll, SECOND);
    let first = channel(&fixture, &fixture.cluster, 1, SECOND);
    outcome(&fixture, &first, ping()).unwrap();
    assert_eq!(fixture.handle.statistics().connections, 1);
    drop(first);
    fixture.reactor.block_on(async {
        while fixture.handle.statistics().connections > 0 {
            fixture.reactor.yield_now().await;
        }
    });
}

/// Goal: a call that is dropped half way neither corrupts the stream nor its memory, and others go on.
/// Method: drop a call whose reply is on its way, and one whose body is too large for the socket.
#[test]
fn dropped_calls_disturb_nobody() {
    let fixture = fixture(DriverKind::Epoll, SECOND);
    let first = channel(&fixture, &fixture.cluster, 1, 10 * SECOND);
    let body = vec![5; 30 << 20];
    for _ in 0..3 {
        let mut place = vec![0; (30 << 20) + 3];
        fixture.reactor.block_on(async {
            let slices = [IoSlice::new(&body)];
            let mut call = Call::new(Operation::Write, &Empty {});
            call.body = &slices;
            call.place = vec![IoSliceMut::new(&mut place)];
            let mut future = std::pin::pin!(first.call(call));
            let mut polls = 0;
            std::future::poll_fn(|cx| {
                polls += 1;
                let _ = future.as_mut().poll(cx);
                cx.waker().wake_by_ref();
                if polls > 20 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
        });
        drop(place);
        outcome(&fixture, &first, ping()).unwrap();
    }
    assert_eq!(first.outstanding(), 0);
}

/// Goal: strangers and broken peers get one error and are closed, and disturb nobody.
/// Method: random bytes, a truncated hello, an oversized one, and an authenticated peer that sends nonsense.
#[test]
fn bad_peers_are_closed() {
    let fixture = fixture(DriverKind::Epoll, SECOND);
    let good = channel(&fixture, &fixture.cluster, 1, SECOND);
    outcome(&fixture, &good, ping()).unwrap();
    let address = fixture.cluster.servers[0].address;
    let reactor = fixture.reactor.clone();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 600], &[2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]] {
        let answer = reactor.block_on(async {
            let stream = reactor.connect(address).await.unwrap();
            stream.send_all(bytes).await.unwrap();
            let mut size = [0; 2];
            stream.recv_exact(&mut size).await.unwrap();
            let mut answer = vec![0; u16::from_le_bytes(size) as usize];
            stream.recv_exact(&mut answer).await.unwrap();
            answer
        });
        let challenge = wire::handshake::Challenge::from_bytes(&answer).unwrap();
        assert_ne!(challenge.status, Status::Ok as u32);
    }
    outcome(&fixture, &good, ping()).unwrap();
    assert_eq!(good.statistics().connects, 1);
    assert!(fixture.handle.statistics().connections_refused >= 3);
    assert!(Empty {}.to_bytes().is_empty());
}
