//! Connections that go through another server, over real sockets: three servers and their clients in one process.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use reactor::{
    Call, Channel, ChannelOptions, Class, DriverKind, Incoming, Peer, Reactor, Relay, ReplyBody, ServeOptions,
    ServerHandle, Service, serve,
};
use std::cell::{Cell, RefCell};
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;
use wire::credentials::Credentials;
use wire::handshake::Role;
use wire::messages::{Empty, FileRequest};
use wire::{Cluster, FileId, Operation, Placement, Protection, ServerAddress, Status};

const SECOND: u64 = 1_000_000_000;

/// Answers `Ping`, echoes bodies, keeps `StatId` until told, and does not take bodies while `is_slow`.
struct Echo {
    reactor: Reactor,
    peers: RefCell<Vec<Peer>>,
    held: RefCell<Vec<Incoming>>,
    is_slow: Cell<bool>,
    calls: Cell<u64>,
}

impl Service for Echo {
    fn connected(&self, peer: &Peer, welcomes: u64) -> Result<bool, Status> {
        self.peers.borrow_mut().push(peer.clone());
        Ok(welcomes > 0)
    }

    fn disconnected(&self, peer: &Peer) {
        self.peers.borrow_mut().retain(|other| other.connection != peer.connection);
    }

    fn request(self: Rc<Self>, incoming: Incoming) {
        self.calls.set(self.calls.get() + 1);
        match incoming.operation {
            Operation::Ping => incoming.reply(&Empty {}),
            Operation::StatId => self.held.borrow_mut().push(incoming),
            _ if self.is_slow.get() => self.held.borrow_mut().push(incoming),
            _ => self.reactor.clone().spawn(Class::Data, echo(self.reactor.clone(), incoming)),
        }
    }
}

async fn echo(reactor: Reactor, mut incoming: Incoming) {
    let size = incoming.body_size() as u64;
    let directory = std::env::temp_dir().join(format!("tabane-relay-{}-{}", std::process::id(), reactor.random()));
    std::fs::create_dir_all(&directory).unwrap();
    let storage = reactor.storage(&directory).unwrap();
    let region = storage.open("place", size.max(4096), reactor::OpenMode::CreateNew).unwrap();
    region.allocate(0, size.max(4096)).unwrap();
    let place = reactor::Span { region, offset: 0, size };
    if incoming.receive_body(std::slice::from_ref(&place)).await.is_ok() {
        let pieces = vec![reactor::BodyPiece::Span(place)];
        incoming.reply_with_body(&Empty {}, ReplyBody { pieces, guard: None });
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

struct Servers {
    reactor: Reactor,
    cluster: Rc<Cluster>,
    handles: Vec<ServerHandle>,
    services: Vec<Rc<Echo>>,
}

fn servers(kind: Kind, count: usize) -> Servers {
    let reactor = Reactor::open(kind.0).unwrap();
    let listeners: Vec<_> = (0..count).map(|_| reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap()).collect();
    let addresses = listeners.iter().map(|listener| ServerAddress { address: listener.local_address().unwrap() });
    let mut cluster = Cluster::new(78, [5; 32], Placement::Modular, 1 << 20, addresses.collect());
    cluster.protection = kind.1;
    let cluster = Rc::new(cluster);
    let mut handles = Vec::new();
    let mut services = Vec::new();
    for (index, listener) in listeners.into_iter().enumerate() {
        let service = Rc::new(Echo {
            reactor: reactor.clone(),
            peers: RefCell::default(),
            held: RefCell::default(),
            is_slow: Cell::new(false),
            calls: Cell::new(0),
        });
        let options = ServeOptions {
            cluster: cluster.clone(),
            server: index as u32,
            connections_max: 32,
            incarnation: index as u64 + 1,
            shared: None,
            local_clients_only: false,
            registers_buffers: false,
            working_interval: SECOND / 10,
            timeout: 2 * SECOND,
        };
        handles.push(serve(&reactor, listener, options, service.clone()));
        services.push(service);
    }
    Servers { reactor, cluster, handles, services }
}

/// A client: its way, and a channel to each server.
fn client(servers: &Servers, contact: u32, session: u64) -> (Relay, Vec<Channel>) {
    let options = |server, role, relay| ChannelOptions {
        cluster: servers.cluster.clone(),
        server,
        role,
        from_server: 0,
        level: 0,
        session,
        user: Credentials::new(session as u32, 7),
        label: wire::label::Label::default(),
        timeout: 4 * SECOND,
        relay,
    };
    let relay = Relay::new(&servers.reactor, options(contact, Role::ClientTunnel, None));
    let channels = (0..servers.handles.len() as u32)
        .map(|server| Channel::new(&servers.reactor, options(server, Role::Client, Some(relay.clone()))))
        .collect();
    (relay, channels)
}

fn ping() -> Call<'static> {
    Call::new(Operation::Ping, &Empty {})
}

async fn echoed(channel: &Channel, size: usize) {
    let sent: Vec<u8> = (0..size).map(|i| (i * 7 + size) as u8).collect();
    let mut place = vec![1; size];
    let reply = {
        let body = [IoSlice::new(&sent[..size / 2]), IoSlice::new(&sent[size / 2..])];
        let mut call = Call::new(Operation::Write, &Empty {});
        call.body = &body;
        call.place = vec![IoSliceMut::new(&mut place)];
        channel.call(call).await.unwrap()
    };
    assert_eq!(reply.body_size, size);
    assert!(place == sent, "bytes changed on their way, {size} of them");
}

/// How it is done over networks.
#[derive(Clone, Copy)]
struct Kind(DriverKind, Protection);

fn in_both(test: fn(Kind)) {
    test(Kind(DriverKind::Epoll, Protection::Off));
    test(Kind(DriverKind::IoUring, Protection::Integrity));
    test(Kind(DriverKind::Epoll, Protection::Encryption));
}

/// Goal: C clients and N servers have C connections of clients and at most N (N - 1) between servers; bodies of every
/// size arrive whole; the server that acts knows each client by its session and user, as on a direct connection.
/// Method: five clients of three servers, with different contacts; sizes around the frames and windows of a stream.
#[test]
fn one_connection_for_each_client() {
    in_both(|kind| {
        let servers = servers(kind, 3);
        let clients: Vec<_> = (0..5).map(|number| client(&servers, number % 3, 100 + u64::from(number))).collect();
        servers.reactor.block_on(async {
            for (_, channels) in &clients {
                for channel in channels {
                    channel.call(ping()).await.unwrap();
                }
            }
            for size in [1, 4096, 4097, 32 << 10, (32 << 10) + 1, 100_000, 5_000_001] {
                for channel in &clients[1].1 {
                    echoed(channel, size).await;
                }
            }
        });
        let statistics: Vec<_> = servers.handles.iter().map(|handle| handle.statistics().relay).collect();
        assert_eq!(statistics.iter().map(|relay| relay.tunnels_of_clients).sum::<usize>(), 5);
        assert_eq!(statistics.iter().map(|relay| relay.tunnels_of_servers).sum::<usize>(), 6);
        assert_eq!(statistics.iter().map(|relay| relay.streams).sum::<usize>(), 5 * 2);
        assert!(statistics[1].bytes > 2 * 2 * 5_000_001, "{:?}", statistics[1]);
        for service in &servers.services {
            let mut peers: Vec<_> =
                service.peers.borrow().iter().map(|peer| (peer.session, peer.user.uid, peer.role)).collect();
            peers.sort_by_key(|peer| peer.0);
            let expected: Vec<_> = (100..105).map(|session| (session, session as u32, Role::Client)).collect();
            assert_eq!(peers, expected);
        }
    });
}

/// Goal: a server that takes no bodies delays neither other clients of the same contact at that server, nor the same
/// client at other servers; and what the contact holds meanwhile is bounded. Method: server 2 keeps a large write of
/// client 0 waiting; others go on; then it takes it after all.
#[test]
fn slow_server_delays_nobody_else() {
    in_both(|kind| {
        let servers = servers(kind, 3);
        let (slow, others) = (client(&servers, 0, 1), client(&servers, 0, 2));
        servers.reactor.block_on(async {
            others.1[2].call(ping()).await.unwrap();
            servers.services[2].is_slow.set(true);
            let channel = slow.1[2].clone();
            let stuck = servers.reactor.spawn_joinable(Class::Data, async move { echoed(&channel, 8 << 20).await });
            while servers.services[2].held.borrow().is_empty() {
                servers.reactor.yield_now().await;
            }
            // Everything that has a place to wait in is there once nothing moves any more.
            let mut before = u64::MAX;
            while servers.handles[0].statistics().relay.bytes != before {
                before = servers.handles[0].statistics().relay.bytes;
                servers.reactor.sleep(SECOND / 50).await;
            }
            assert!(before < 1 << 20, "{before} bytes have left the contact for a server that takes none");
            for round in 0..20 {
                others.1[2].call(ping()).await.unwrap();
                echoed(&others.1[1], 100_000 + round).await;
                echoed(&slow.1[1], 100_000 + round).await;
                slow.1[0].call(ping()).await.unwrap();
            }
            assert!(!stuck.is_finished());
            servers.services[2].is_slow.set(false);
            let held = servers.services[2].held.take();
            for incoming in held {
                servers.reactor.spawn(Class::Data, echo(servers.reactor.clone(), incoming));
            }
            stuck.await;
        });
    });
}

/// Goal: a tunnel whose numbers of streams are used up ends, and another one carries what it carried.
/// Method: a tunnel that begins with the last two numbers, for three channels; a large body before and after.
#[test]
fn numbers_of_streams_are_used_up() {
    in_both(|kind| {
        let servers = servers(kind, 3);
        let (relay, channels) = client(&servers, 0, 1);
        relay.count_from(u64::MAX - 2);
        servers.reactor.block_on(async {
            echoed(&channels[1], 100_000).await;
            echoed(&channels[2], 100_000).await;
            relay.count_from(1);
            assert_eq!(channels[1].statistics().connects, 1);
            channels[0].call(ping()).await.unwrap();
            echoed(&channels[1], 100_000).await;
            echoed(&channels[2], 100_000).await;
        });
        assert_eq!(channels[1].statistics().connects, 2, "the first tunnel has ended");
        assert_eq!(channels[2].statistics().connects, 2);
        assert_eq!(servers.handles[0].statistics().relay.tunnels_of_clients, 1);
    });
}

/// Goal: when a contact goes, calls under way are sent again over the server's own address, with the same sequence, and
/// the caller notices nothing. Method: a call is held by server 1 when contact 0 closes; its copy is answered.
#[test]
fn contact_goes() {
    in_both(|kind| {
        let servers = servers(kind, 2);
        let (_relay, channels) = client(&servers, 0, 1);
        servers.reactor.block_on(async {
            let channel = channels[1].clone();
            let waiting = servers.reactor.spawn_joinable(Class::Data, async move {
                channel.call(Call::new(Operation::StatId, &FileRequest { file: FileId::ROOT })).await.unwrap();
            });
            let held = |count| servers.services[1].held.borrow().len() == count;
            while !held(1) {
                servers.reactor.yield_now().await;
            }
            servers.handles[0].close();
            while !held(2) {
                servers.reactor.yield_now().await;
            }
            let copies = servers.services[1].held.take();
            assert!(!copies[0].is_connected() && copies[1].is_connected());
            for incoming in copies {
                incoming.reply(&Empty {});
            }
            waiting.await;
        });
        assert_eq!(channels[1].statistics().resends, 1);
        assert_eq!(servers.handles[1].statistics().relay.tunnels_of_servers, 0);
    });
}

/// Goal: a server that is gone is an error that names it, in time, also through a contact, which others go on using.
#[test]
fn server_behind_the_contact_is_gone() {
    let servers = servers(Kind(DriverKind::Epoll, Protection::Integrity), 3);
    let (_relay, channels) = client(&servers, 0, 1);
    servers.handles[2].close();
    servers.reactor.block_on(async {
        channels[1].call(ping()).await.unwrap();
        let failure = channels[2].call(ping()).await.unwrap_err();
        assert!(matches!(failure.status, Status::Unreachable | Status::TimedOut), "{failure}");
        assert_eq!(failure.server, 2);
        channels[1].call(ping()).await.unwrap();
    });
}
