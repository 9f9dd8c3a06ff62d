//! Connections over a network that somebody changes, repeats and listens to: what he does is noticed, nothing of it
//! is taken in, and what was under way is sent again.
//!
//! Server, client and the one in between are in one process, over real sockets.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use reactor::{
    BodyPiece, Call, Channel, ChannelOptions, Class, DriverKind, Failure, Incoming, OpenMode, Peer, Reactor, Region,
    ReplyBody, ServeOptions, Service, Span, Stream, serve,
};
use std::cell::{Cell, RefCell};
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;
use wire::credentials::{Credentials, Groups};
use wire::handshake::Role;
use wire::messages::Empty;
use wire::{Cluster, Operation, Placement, Protection, ServerAddress, Status};

const SECOND: u64 = 1_000_000_000;
const PROTECTED: [Protection; 2] = [Protection::Integrity, Protection::Encryption];

/// Echoes bodies, and keeps the sums of those that it took in.
struct Store {
    reactor: Reactor,
    region: Rc<dyn Region>,
    is_busy: Cell<bool>,
    taken: RefCell<Vec<u32>>,
}

const REGION_SIZE: u64 = 16 << 20;

impl Service for Store {
    fn connected(&self, _: &Peer, welcomes: u64) -> Result<bool, Status> {
        Ok(welcomes > 0)
    }

    fn disconnected(&self, _: &Peer) {}

    fn request(self: Rc<Self>, incoming: Incoming) {
        self.reactor.clone().spawn(Class::Data, self.echo(incoming));
    }
}

impl Store {
    async fn echo(self: Rc<Self>, mut incoming: Incoming) {
        while self.is_busy.replace(true) {
            self.reactor.yield_now().await;
        }
        let place = Span { region: self.region.clone(), offset: 0, size: incoming.body_size() as u64 };
        if incoming.receive_body(std::slice::from_ref(&place)).await.is_ok() {
            let mut bytes = vec![0; place.size as usize];
            self.region.read(0, &mut bytes);
            self.taken.borrow_mut().push(crc32c::crc32c(&bytes));
            incoming.reply_with_body(&Empty {}, ReplyBody { pieces: vec![BodyPiece::Bytes(bytes)], guard: None });
        }
        self.is_busy.set(false);
    }
}

/// What somebody in between does to one connection, whose bytes he sees as they come.
trait Meddler {
    /// What he passes on in place of these bytes of a direction (0: of the client), of which `at` have come before.
    fn pass(&mut self, direction: usize, at: usize, bytes: Vec<u8>) -> Vec<u8>;
}

struct Fixture {
    reactor: Reactor,
    store: Rc<Store>,
    /// Where the one in between is called.
    cluster: Rc<Cluster>,
    /// Where the server is called.
    direct: Rc<Cluster>,
    /// For the next connection.
    meddler: Rc<RefCell<Option<Box<dyn Meddler>>>>,
    /// Bytes of either direction of the last connection.
    seen: Rc<RefCell<[Vec<u8>; 2]>>,
    /// Connections that were made through him.
    calls: Rc<Cell<usize>>,
    sessions: Cell<u64>,
}

fn fixture(protection: Protection) -> Fixture {
    let reactor = Reactor::open(DriverKind::Epoll).unwrap();
    let directory = std::env::temp_dir().join(format!("tabane-protection-{}-{}", std::process::id(), reactor.random()));
    std::fs::create_dir_all(&directory).unwrap();
    let region = reactor.storage(&directory).unwrap().open("place", REGION_SIZE, OpenMode::CreateNew).unwrap();
    region.allocate(0, REGION_SIZE).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_address().unwrap();
    let between = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let servers = vec![ServerAddress { address: between.local_address().unwrap() }];
    let mut cluster = Cluster::new(u128::from(reactor.random()), [9; 32], Placement::Modular, 1 << 20, servers);
    cluster.protection = protection;
    let servers = vec![ServerAddress { address }];
    let mut direct = cluster.clone();
    direct.servers = servers;
    let direct = Rc::new(direct);
    let cluster = Rc::new(cluster);
    let store =
        Rc::new(Store { reactor: reactor.clone(), region, is_busy: Cell::new(false), taken: RefCell::default() });
    let options = ServeOptions {
        cluster: cluster.clone(),
        server: 0,
        connections_max: 8,
        incarnation: 1,
        shared: None,
        local_clients_only: false,
        registers_buffers: false,
        working_interval: SECOND,
        timeout: 10 * SECOND,
    };
    std::mem::forget(serve(&reactor, listener, options, store.clone()));
    let meddler: Rc<RefCell<Option<Box<dyn Meddler>>>> = Rc::default();
    let seen: Rc<RefCell<[Vec<u8>; 2]>> = Rc::default();
    let calls: Rc<Cell<usize>> = Rc::default();
    let (own, next, records, count) = (reactor.clone(), meddler.clone(), seen.clone(), calls.clone());
    reactor.spawn(Class::Metadata, async move {
        loop {
            let (client, _) = between.accept().await.unwrap();
            count.set(count.get() + 1);
            let server = own.connect(address).await.unwrap();
            let meddler = Rc::new(RefCell::new(next.take()));
            *records.borrow_mut() = Default::default();
            for (direction, (from, to)) in [(client.clone(), server.clone()), (server, client)].into_iter().enumerate()
            {
                own.spawn(Class::Metadata, pump(direction, from, to, meddler.clone(), records.clone()));
            }
        }
    });
    Fixture { reactor, store, cluster, direct, meddler, seen, calls, sessions: Cell::new(1) }
}

async fn pump(
    direction: usize,
    from: Stream,
    to: Stream,
    meddler: Rc<RefCell<Option<Box<dyn Meddler>>>>,
    records: Rc<RefCell<[Vec<u8>; 2]>>,
) {
    let (mut buffer, mut at) = (vec![0; 64 * 1024], 0);
    while let Ok(size @ 1..) = from.recv(&mut buffer).await {
        let mut bytes = buffer[..size].to_vec();
        records.borrow_mut()[direction].extend_from_slice(&bytes);
        if let Some(meddler) = &mut *meddler.borrow_mut() {
            bytes = meddler.pass(direction, at, bytes);
        }
        at += size;
        if to.send_all(&bytes).await.is_err() {
            break;
        }
    }
    to.shutdown();
    from.shutdown();
}

impl Fixture {
    /// A client of its own session, which gives up after a while.
    fn client(&self) -> Channel {
        self.client_of(self.cluster.clone())
    }

    fn client_of(&self, cluster: Rc<Cluster>) -> Channel {
        let session = self.sessions.replace(self.sessions.get() + 1);
        let options = ChannelOptions {
            cluster,
            server: 0,
            role: Role::Client,
            from_server: 0,
            level: 0,
            session,
            user: Credentials { uid: 1, gid: 2, groups: Groups::new(&[0x5a5a_5a5a]) },
            label: wire::label::Label::default(),
            timeout: SECOND,
            relay: None,
        };
        Channel::new(&self.reactor, options)
    }

    /// Has bytes echoed, which come back as they were.
    fn echoed(&self, channel: &Channel, sent: &[u8]) -> Result<(), Failure> {
        let back = self.sent(channel, sent)?;
        assert!(back == sent, "{} bytes came back as others", sent.len());
        Ok(())
    }

    /// What comes back for bytes.
    fn sent(&self, channel: &Channel, sent: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut place = vec![1; sent.len()];
        let (one, other) = sent.split_at(sent.len() / 3);
        let body = [IoSlice::new(one), IoSlice::new(other)];
        let mut call = Call::new(Operation::Write, &Empty {});
        call.body = &body;
        call.place = vec![IoSliceMut::new(&mut place)];
        self.reactor.block_on(channel.call(call))?;
        Ok(place)
    }
}

fn some_bytes(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 7 + i / 251 + size) as u8).collect()
}

/// Flips one bit.
struct Flip {
    direction: usize,
    place: usize,
    bit: u8,
}

impl Meddler for Flip {
    fn pass(&mut self, direction: usize, at: usize, mut bytes: Vec<u8>) -> Vec<u8> {
        if direction == self.direction && (at..at + bytes.len()).contains(&self.place) {
            bytes[self.place - at] ^= 1 << self.bit;
        }
        bytes
    }
}

/// How a connection with a flipped bit went.
struct Flipped {
    /// Of its two calls.
    outcomes: Vec<Result<(), Failure>>,
    /// Whether one side has taken in what nobody sent.
    is_foreign: bool,
    /// Whether the connection was made anew.
    is_noticed: bool,
}

/// One connection with a bit flipped somewhere, drawn from `random`.
fn flipped(fixture: &Fixture, mut random: u64) -> Flipped {
    let bodies = [some_bytes(700), some_bytes(2_000)];
    let probe = fixture.client();
    bodies.iter().for_each(|body| fixture.echoed(&probe, body).unwrap());
    probe.close();
    let sizes = fixture.seen.borrow().each_ref().map(Vec::len);
    let mut draw = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let place = draw(sizes[0] + sizes[1]);
    let direction = usize::from(place >= sizes[0]);
    let place = place - direction * sizes[0];
    *fixture.meddler.borrow_mut() = Some(Box::new(Flip { direction, place, bit: draw(8) as u8 }));
    fixture.store.taken.borrow_mut().clear();
    let (client, calls) = (fixture.client(), fixture.calls.get());
    let back = bodies.each_ref().map(|body| fixture.sent(&client, body));
    let is_noticed = fixture.calls.get() > calls + 1 || back.iter().any(Result::is_err);
    client.close();
    let genuine = bodies.each_ref().map(|body| crc32c::crc32c(body));
    let mut is_foreign = fixture.store.taken.borrow().iter().any(|sum| !genuine.contains(sum));
    is_foreign |= back.iter().zip(&bodies).any(|(back, body)| back.as_ref().is_ok_and(|back| back != body));
    Flipped { outcomes: back.into_iter().map(|back| back.map(|_| ())).collect(), is_foreign, is_noticed }
}

/// Goal: a bit that is flipped anywhere on the way, in the handshake or later, in either direction, is noticed; the
/// server takes in nothing that was not sent and the client neither, and what was under way is sent again, or fails
/// with words that say why.
/// Method: 1,000 places of a connection that is like a recorded one, half of them encrypted, at random. The one in
/// between is called again each time, but where the bit was among bytes that nobody waited for any more.
#[test]
fn flipped_bits_are_noticed() {
    let told = Rc::new(Cell::new(0));
    let count = told.clone();
    reactor::log::take_events(move |event| count.set(count.get() + usize::from(event.name == "connection-changed")));
    for (seed, protection) in PROTECTED.into_iter().enumerate() {
        let fixture = fixture(protection);
        let (mut failures, mut noticed) = (0, 0);
        for index in 0..500 {
            let Flipped { outcomes, is_foreign, is_noticed } = flipped(&fixture, (seed * 1_000 + index) as u64);
            assert!(!is_foreign, "{protection:?} {index}: something else was taken in");
            noticed += usize::from(is_noticed);
            for failure in outcomes.into_iter().filter_map(Result::err) {
                let words = failure.to_string();
                failures += 1;
                assert!(words.contains("changed on its way") || words.contains("handshake"), "{index}: {words}");
            }
        }
        assert!(failures < 20, "{failures} of 1,000 calls failed where the next connection was sound");
        assert!(noticed > 490, "only {noticed} of 500 flips were met with");
        // Those that the server meets with, which are those of what clients send after the handshake.
        let told = told.replace(0);
        assert!((100..=500).contains(&told), "the server's log has {told} of 500");
    }
}

/// What is done to whole records.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Repeat,
    LeaveOut,
    Swap,
}

/// Does something to the second record of a direction, after the two messages of the handshake.
struct WithRecords {
    direction: usize,
    deed: Deed,
    waiting: Vec<u8>,
    messages: usize,
    records: Vec<Vec<u8>>,
    is_done: bool,
}

impl Meddler for WithRecords {
    fn pass(&mut self, direction: usize, _at: usize, bytes: Vec<u8>) -> Vec<u8> {
        if direction != self.direction || self.is_done {
            return bytes;
        }
        self.waiting.extend_from_slice(&bytes);
        let mut passed = Vec::new();
        while let Some(head) = self.waiting.first_chunk::<4>() {
            let size = match self.messages {
                0..2 => 2 + usize::from(u16::from_le_bytes([head[0], head[1]])),
                _ => 8 + u32::from_le_bytes(*head) as usize + 16,
            };
            if self.waiting.len() < size {
                break;
            }
            let unit: Vec<u8> = self.waiting.drain(..size).collect();
            self.messages += 1;
            if self.messages <= 2 {
                passed.extend_from_slice(&unit);
                continue;
            }
            self.records.push(unit);
            match (self.deed, &self.records[..]) {
                (Deed::Repeat, [first]) => passed.extend_from_slice(&[&first[..], first].concat()),
                (Deed::LeaveOut, [_, second]) => passed.extend_from_slice(second),
                (Deed::Swap, [first, second]) => passed.extend_from_slice(&[&second[..], first].concat()),
                (Deed::LeaveOut | Deed::Swap, [_]) => continue,
                _ => unreachable!("it was done"),
            }
            self.is_done = true;
            passed.append(&mut self.waiting);
            break;
        }
        passed
    }
}

/// Goal: what is sent again, left out or put into another order is noticed, in either direction.
/// Method: done to the first records after the handshake of a connection. The call is answered over the next one.
#[test]
fn records_are_counted() {
    for protection in PROTECTED {
        let fixture = fixture(protection);
        for direction in 0..2 {
            for deed in [Deed::Repeat, Deed::LeaveOut, Deed::Swap] {
                let meddler = WithRecords {
                    direction,
                    deed,
                    waiting: Vec::new(),
                    messages: 0,
                    records: Vec::new(),
                    is_done: false,
                };
                *fixture.meddler.borrow_mut() = Some(Box::new(meddler));
                fixture.store.taken.borrow_mut().clear();
                let client = fixture.client();
                // Of several records.
                let body = some_bytes(100_000);
                fixture.echoed(&client, &body).unwrap();
                fixture.echoed(&client, &body).unwrap();
                assert_eq!(client.statistics().connects, 2, "{protection:?}, {direction}: {deed:?} was not noticed");
                let sum = crc32c::crc32c(&body);
                assert!(fixture.store.taken.borrow().iter().all(|taken| *taken == sum), "something else was taken in");
            }
        }
    }
}

/// Goal: bytes of all sizes arrive whole, through small buffers too, and only encryption hides them: who the client
/// is and what it sends.
/// Method: bodies around the sizes of records, echoed; somebody in between looks for a part of each, and for a group.
#[test]
fn bodies_arrive_whole_and_are_hidden() {
    for protection in Protection::ALL {
        let fixture = fixture(protection);
        // Without protection nobody comes between.
        let is_direct = protection == Protection::Off;
        let client = fixture.client_of(if is_direct { &fixture.direct } else { &fixture.cluster }.clone());
        for size in [1, 15, 700, 4_096, 32_767, 32_768, 32_769, 131_072, 131_073, 1 << 20, 9_000_001] {
            fixture.echoed(&client, &some_bytes(size)).unwrap();
        }
        assert_eq!(client.statistics().connects, 1, "{protection:?}");
        if is_direct {
            continue;
        }
        let (body, group) = (some_bytes(700), [0x5a; 4]);
        for seen in &*fixture.seen.borrow() {
            let is_seen = seen.windows(64).any(|window| window == &body[100..164]);
            assert_eq!(is_seen, protection != Protection::Encryption, "{protection:?}");
        }
        let is_seen = fixture.seen.borrow()[0].windows(4).take(300).any(|window| window == group);
        assert_eq!(is_seen, protection != Protection::Encryption, "{protection:?}");
    }
}

/// Puts another protection into the greeting.
struct Downgrade(Protection);

impl Meddler for Downgrade {
    fn pass(&mut self, direction: usize, at: usize, mut bytes: Vec<u8>) -> Vec<u8> {
        // Size, magic, version, cluster and server come before it.
        const PLACE: usize = 2 + 8 + 4 + 16 + 4;
        if direction == 0 && (at..at + bytes.len()).contains(&PLACE) {
            bytes[PLACE - at] = self.0 as u8;
        }
        bytes
    }
}

/// Goal: both sides take their protection from their cluster files; where these differ the connection is refused with
/// words that say so, and nobody in between makes it another one.
/// Method: all pairs; then each pair with the greeting changed to what the server wants to hear.
#[test]
fn protection_is_what_both_files_say() {
    for of_server in Protection::ALL {
        let fixture = fixture(of_server);
        for of_client in Protection::ALL {
            let with = |cluster: &Cluster| {
                let mut cluster = cluster.clone();
                cluster.protection = of_client;
                Rc::new(cluster)
            };
            let (cluster, direct) = (with(&fixture.cluster), with(&fixture.direct));
            let outcome = fixture.echoed(&fixture.client_of(direct), b"x").map_err(|failure| failure.status);
            let wanted = if of_client == of_server { Ok(()) } else { Err(Status::ProtectionMismatch) };
            assert_eq!(outcome, wanted, "{of_client:?} to {of_server:?}");
            if of_client == of_server {
                continue;
            }
            *fixture.meddler.borrow_mut() = Some(Box::new(Downgrade(of_server)));
            let outcome = fixture.echoed(&fixture.client_of(cluster), b"x").map_err(|failure| failure.status);
            let wanted = [Err(Status::KeyMismatch), Err(Status::ProtectionMismatch)];
            assert!(wanted.contains(&outcome), "{of_client:?} to {of_server:?}, changed: {outcome:?}");
        }
    }
}
