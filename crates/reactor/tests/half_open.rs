//! Calls over a connection whose server has forgotten it, in the simulated twin.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use reactor::sim::{CrashKind, NodeId, World};
use reactor::{
    BodyPiece, Call, Channel, ChannelOptions, Class, Incoming, OpenMode, Peer, Reactor, ReplyBody, ServeOptions,
    Service, Span, serve,
};
use std::cell::{Cell, RefCell};
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use wire::credentials::Credentials;
use wire::handshake::Role;
use wire::messages::{Empty, FileRequest};
use wire::{Cluster, FileId, Operation, Placement, ServerAddress, Status};

const SECOND: u64 = 1_000_000_000;
const TIMEOUT: u64 = 30 * SECOND;
/// Bytes of what is read.
const BODY_SIZE: usize = 4 << 20;

#[derive(Default)]
/// Answers in its second life, and keeps what it is asked in its first one.
struct Keeper {
    answers: bool,
    reactor: Option<Reactor>,
    held: RefCell<Vec<Incoming>>,
    connected: Cell<u32>,
    reads: Cell<u32>,
    /// Bodies are taken, not refused as soon as they are seen.
    takes: Cell<bool>,
    /// Bodies that were refused, and that came whole.
    refused: Cell<u32>,
    taken: Cell<u32>,
    places: Cell<u32>,
}

impl Keeper {
    async fn take(self: Rc<Self>, mut incoming: Incoming) {
        let size = incoming.body_size() as u64;
        let storage = self.reactor.as_ref().unwrap().storage(Path::new("/store")).unwrap();
        let region = storage.open(
            &format!("place-{}", self.places.replace(self.places.get() + 1)),
            size.next_multiple_of(4096),
            OpenMode::CreateNew,
        );
        let region = region.unwrap();
        region.allocate(0, size.next_multiple_of(4096)).unwrap();
        let place = Span { region, offset: 0, size };
        if incoming.receive_body(std::slice::from_ref(&place)).await.is_ok() {
            self.taken.set(self.taken.get() + 1);
            incoming.reply(&Empty {});
        }
    }
}

impl Service for Keeper {
    fn connected(&self, _: &Peer, _: u64) -> Result<bool, Status> {
        self.connected.set(self.connected.get() + 1);
        Ok(true)
    }

    fn disconnected(&self, _: &Peer) {
        self.connected.set(self.connected.get() - 1);
    }

    fn request(self: Rc<Self>, incoming: Incoming) {
        if incoming.body_size() > 0 && self.takes.get() {
            let reactor = self.reactor.clone().unwrap();
            reactor.spawn(Class::Data, async move { self.take(incoming).await });
        } else if incoming.body_size() > 0 {
            self.refused.set(self.refused.get() + 1);
            incoming.fail(Status::NoSpace, FileId::ROOT, b"the store is full");
        } else if self.answers && incoming.operation == Operation::Read {
            self.reads.set(self.reads.get() + 1);
            let pieces = vec![BodyPiece::Zero(BODY_SIZE)];
            incoming.reply_with_body(&Empty {}, ReplyBody { pieces, guard: None });
        } else if self.answers {
            incoming.reply(&Empty {});
        } else {
            self.held.borrow_mut().push(incoming);
        }
    }
}

fn start(reactor: &Reactor, cluster: &Rc<Cluster>, incarnation: u64) -> Rc<Keeper> {
    let service = Rc::new(Keeper { answers: incarnation > 1, reactor: Some(reactor.clone()), ..Keeper::default() });
    let listener = reactor.listen(cluster.servers[0].address).unwrap();
    let options = ServeOptions {
        cluster: cluster.clone(),
        server: 0,
        connections_max: 4,
        incarnation,
        shared: None,
        local_clients_only: false,
        registers_buffers: false,
        working_interval: TIMEOUT / 4,
        timeout: TIMEOUT,
    };
    std::mem::forget(serve(reactor, listener, options, service.clone()));
    service
}

/// A server's machine and a client's.
fn machines(seed: u64) -> (World, NodeId, NodeId, Rc<Cluster>) {
    let world = World::new(seed);
    let ip = |number| IpAddr::from(Ipv4Addr::new(10, 0, 0, number));
    let (server, client) = (world.add_node("server", ip(1)), world.add_node("client", ip(2)));
    let servers = vec![ServerAddress { address: SocketAddr::new(ip(1), 700) }];
    (world, server, client, Rc::new(Cluster::new(77, [3; 32], Placement::Modular, 1 << 20, servers)))
}

fn channel(reactor: &Reactor, cluster: &Rc<Cluster>) -> Channel {
    let options = ChannelOptions {
        cluster: cluster.clone(),
        server: 0,
        role: Role::Client,
        from_server: 0,
        level: 0,
        session: 5,
        user: Credentials::new(0, 0),
        label: wire::label::Label::default(),
        timeout: TIMEOUT,
        relay: None,
    };
    Channel::new(reactor, options)
}

/// Goal: a client whose machine loses power while nothing is under way does not count as connected for ever: it would
/// hold a connection, and its files open. Method: one answered call, power loss, and more than a minute.
#[test]
fn a_machine_that_is_gone_is_noticed() {
    let (world, server, client, cluster) = machines(4);
    let service = start(&world.reactor(server), &cluster, 2);
    let reactor = world.reactor(client);
    let channel = channel(&reactor, &cluster);
    let call = async move { channel.call(Call::new(Operation::Ping, &Empty {})).await.map(|_| channel) };
    let _channel = world.run(client, call, SECOND).expect("in time").unwrap();
    assert_eq!(service.connected.get(), 1);
    world.crash(client, CrashKind::PowerLoss);
    assert!(world.run_until(|| service.connected.get() == 0, 61 * SECOND), "it still counts as connected");
}

/// Goal: a request that had reached a machine which then lost power is sent again soon after the machine is back, not
/// given up at the time-out: nothing is under way that the machine could refuse, so that the caller has to say
/// something first. Method: one request, or a whole window of them, held by the server; power loss; the server back at
/// once; all have to be answered within half of the time-out.
#[test]
fn a_machine_that_is_back_is_noticed() {
    for (seed, count) in [(1, 1), (2, 64), (3, 80)] {
        let (world, server, client, cluster) = machines(seed);
        let first = start(&world.reactor(server), &cluster, 1);
        let reactor = world.reactor(client);
        let channel = channel(&reactor, &cluster);
        let answered = Rc::new(Cell::new(0));
        for _ in 0..count {
            let (channel, answered) = (channel.clone(), answered.clone());
            reactor.spawn(Class::Metadata, async move {
                channel.call(Call::new(Operation::StatId, &FileRequest { file: FileId::ROOT })).await.unwrap();
                answered.set(answered.get() + 1);
            });
        }
        assert!(world.run_until(|| first.held.borrow().len() == count.min(64), SECOND));
        world.run_until(|| false, SECOND);
        world.crash(server, CrashKind::PowerLoss);
        start(&world.restart(server), &cluster, 2);
        assert!(world.run_until(|| answered.get() == count, TIMEOUT / 2), "{} of {count} answered", answered.get());
    }
}

/// Goal: a refusal that comes while the request's body is still leaving is told within the time-out, although the
/// machine that was to take the rest has lost power and stays away; the kernel would give up a minute later.
/// Method: a body that is larger than what is under way at once, refused at its head; power loss as soon as the
/// refusal has left.
#[test]
fn a_refusal_does_not_wait_for_a_machine_that_is_gone() {
    let (world, server, client, cluster) = machines(6);
    let service = start(&world.reactor(server), &cluster, 2);
    world.set_latency(Some((server, client)), SECOND / 2, SECOND / 2);
    let reactor = world.reactor(client);
    let channel = channel(&reactor, &cluster);
    let outcome = Rc::new(RefCell::new(None));
    let told = outcome.clone();
    reactor.spawn(Class::Data, async move {
        let body = vec![7; BODY_SIZE];
        let slices = [IoSlice::new(&body)];
        let mut call = Call::new(Operation::Write, &FileRequest { file: FileId::ROOT });
        call.body = &slices;
        *told.borrow_mut() = Some(channel.call(call).await.map(drop).map_err(|failure| failure.status));
    });
    assert!(world.run_until(|| service.refused.get() == 1, 10 * SECOND));
    world.run_until(|| false, 3 * SECOND);
    assert!(outcome.borrow().is_none(), "the body has left already");
    world.crash(server, CrashKind::PowerLoss);
    // Silence is looked for eight times in a time-out.
    assert!(world.run_until(|| outcome.borrow().is_some(), TIMEOUT + TIMEOUT / 4), "no answer in time");
    assert_eq!(*outcome.borrow(), Some(Err(Status::NoSpace)));
}

/// Goal: who waits behind large bodies on a slow network waits for them, and takes nothing for silence: were the
/// connection given up because of him, the body would be sent from its beginning again, and so for ever.
/// Method: bodies that take more than half of the time-out, one after the other, and small calls behind them; all are
/// answered, and each body is sent once.
#[test]
fn those_behind_large_bodies_wait() {
    let (world, server, client, cluster) = machines(5);
    let service = start(&world.reactor(server), &cluster, 2);
    // A way of 256 KiB at a time.
    world.set_latency(Some((server, client)), SECOND / 2, SECOND / 2);
    let reactor = world.reactor(client);
    let channel = channel(&reactor, &cluster);
    let answered = Rc::new(Cell::new(0));
    for number in 0..8 {
        let (channel, answered) = (channel.clone(), answered.clone());
        reactor.spawn(Class::Data, async move {
            let operation = if number % 2 == 0 { Operation::Read } else { Operation::StatId };
            channel.call(Call::new(operation, &FileRequest { file: FileId::ROOT })).await.unwrap();
            answered.set(answered.get() + 1);
        });
    }
    assert!(world.run_until(|| answered.get() == 8, 8 * TIMEOUT), "{} of 8 answered", answered.get());
    assert_eq!(service.reads.get(), 4);
}

/// Goal: a body that does not get through, where all else does, is given up at the time-out, also by those who wait
/// behind it, and not sent again and again for ever; when it gets through again, so does the next one.
/// Method: a black hole for pieces of more than 1,400 bytes; one large body, and small calls before, behind and after.
#[test]
fn a_body_that_gets_nowhere_is_given_up() {
    let (world, server, client, cluster) = machines(7);
    let service = start(&world.reactor(server), &cluster, 2);
    service.takes.set(true);
    let reactor = world.reactor(client);
    let channel = channel(&reactor, &cluster);
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    let call = |body_size: usize| {
        let (channel, outcomes) = (channel.clone(), outcomes.clone());
        reactor.spawn(Class::Data, async move {
            let body = vec![7; body_size];
            let slices = [IoSlice::new(&body)];
            let operation = if body_size == 0 { Operation::StatId } else { Operation::Write };
            let mut call = Call::new(operation, &FileRequest { file: FileId::ROOT });
            call.body = &slices;
            let outcome = channel.call(call).await.map(drop).map_err(|failure| failure.status);
            outcomes.borrow_mut().push((body_size, outcome));
        });
    };
    call(0);
    assert!(world.run_until(|| outcomes.borrow().len() == 1, SECOND));
    world.black_hole(server, client, 1400);
    for body_size in [BODY_SIZE, 0, 100] {
        call(body_size);
    }
    assert!(world.run_until(|| outcomes.borrow().len() == 4, 2 * TIMEOUT), "{:?}", outcomes.borrow());
    assert!(outcomes.borrow()[1..].contains(&(BODY_SIZE, Err(Status::TimedOut))), "{:?}", outcomes.borrow());
    call(0);
    assert!(world.run_until(|| outcomes.borrow().len() == 5, TIMEOUT), "{:?}", outcomes.borrow());
    assert_eq!((outcomes.borrow()[4], service.connected.get()), ((0, Ok(())), 1));
    world.heal(server, client);
    call(BODY_SIZE);
    assert!(world.run_until(|| outcomes.borrow().len() == 6, TIMEOUT), "{:?}", outcomes.borrow());
    assert_eq!(outcomes.borrow()[5], (BODY_SIZE, Ok(())));
}
