//! What it costs to protect a connection: bodies of 1 MiB to a server and from it, and calls without any, over TCP of
//! this machine, with each protection in turns. Medians of the turns; processor time counts both sides, and holds on a
//! busy machine too.
//!
//!     cargo run --profile checked -p reactor --example sealed -- TURNS
#![expect(clippy::disallowed_methods, reason = "the server runs in a thread of its own")]

use reactor::{
    Call, Channel, ChannelOptions, Class, DriverKind, Incoming, OpenMode, Peer, Reactor, Region, ReplyBody,
    ServeOptions, Service, Span, serve,
};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::mpsc;
use wire::credentials::Credentials;
use wire::handshake::Role;
use wire::messages::Empty;
use wire::{Cluster, Operation, Placement, Protection, ServerAddress, Status};

const BODY_SIZE: usize = 1 << 20;
const BODIES: usize = 512;
const CALLS: usize = 10_000;

/// Takes bodies, answers `Read` with one.
struct Store {
    reactor: Reactor,
    region: Rc<dyn Region>,
}

impl Service for Store {
    fn connected(&self, _: &Peer, welcomes: u64) -> Result<bool, Status> {
        Ok(welcomes > 0)
    }

    fn disconnected(&self, _: &Peer) {}

    fn request(self: Rc<Self>, mut incoming: Incoming) {
        let place = |size: usize| Span { region: self.region.clone(), offset: 0, size: size as u64 };
        match incoming.operation {
            Operation::Ping => incoming.reply(&Empty {}),
            Operation::Read => {
                let pieces = vec![reactor::BodyPiece::Span(place(BODY_SIZE))];
                incoming.reply_with_body(&Empty {}, ReplyBody { pieces, guard: None });
            }
            _ => {
                let place = place(incoming.body_size());
                self.reactor.spawn(Class::Data, async move {
                    if incoming.receive_body(&[place]).await.is_ok() {
                        incoming.reply(&Empty {});
                    }
                });
            }
        }
    }
}

fn cluster(address: SocketAddr, protection: Protection) -> Rc<Cluster> {
    let mut cluster = Cluster::new(1, [1; 32], Placement::Modular, 1 << 20, vec![ServerAddress { address }]);
    cluster.protection = protection;
    Rc::new(cluster)
}

fn start_server(protection: Protection) -> SocketAddr {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let reactor = Reactor::open(DriverKind::Auto).expect("the driver opens");
        let directory = std::env::temp_dir().join(format!("tabane-sealed-{}-{protection:?}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a place for memory");
        let storage = reactor.storage(&directory).expect("storage");
        let region = storage.open("place", BODY_SIZE as u64, OpenMode::CreateNew).expect("a region");
        region.allocate(0, BODY_SIZE as u64).expect("room");
        std::fs::remove_dir_all(&directory).expect("it is ours");
        let listener = reactor.listen("127.0.0.1:0".parse().expect("an address")).expect("a port is free");
        let address = listener.local_address().expect("the listener has an address");
        let options = ServeOptions {
            cluster: cluster(address, protection),
            server: 0,
            connections_max: 100,
            incarnation: 1,
            shared: None,
            local_clients_only: false,
            registers_buffers: false,
            working_interval: 1_000_000_000,
            timeout: 60_000_000_000,
        };
        serve(&reactor, listener, options, Rc::new(Store { reactor: reactor.clone(), region }));
        tell.send(address).expect("somebody waits");
        reactor.block_on(std::future::pending::<()>());
    });
    told.recv().expect("the server has begun")
}

/// Seconds of processor time of all threads so far.
fn processor_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a local.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Processor time and time of one go.
fn measured(reactor: &Reactor, work: impl Future<Output = ()>) -> (f64, f64) {
    let (time, now) = (processor_time(), reactor.now());
    reactor.block_on(work);
    (processor_time() - time, (reactor.now() - now) as f64 * 1e-9)
}

async fn call(channel: &Channel, operation: Operation, body: &[u8], place: &mut [u8]) {
    let body = [IoSlice::new(body)];
    let mut call = Call::new(operation, &Empty {});
    call.body = if operation == Operation::Write { &body } else { &[] };
    if operation == Operation::Read {
        call.place = vec![IoSliceMut::new(place)];
    }
    channel.call(call).await.expect("the server answers");
}

fn main() {
    let turns: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).expect("usage: sealed TURNS");
    let reactor = Reactor::open(DriverKind::Epoll).expect("the driver opens");
    let channels = Protection::ALL.map(|protection| {
        let options = ChannelOptions {
            cluster: cluster(start_server(protection), protection),
            server: 0,
            role: Role::Client,
            from_server: 0,
            level: 0,
            session: 1,
            user: Credentials::new(0, 0),
            label: wire::label::Label::default(),
            timeout: 60_000_000_000,
            relay: None,
        };
        Channel::new(&reactor, options)
    });
    let kinds =
        [(Operation::Write, BODIES, "write"), (Operation::Read, BODIES, "read"), (Operation::Ping, CALLS, "ping")];
    let body = vec![7u8; BODY_SIZE];
    let mut place = vec![7u8; BODY_SIZE];
    for (operation, count, name) in kinds {
        let mut results: [Vec<(f64, f64)>; 3] = Default::default();
        for _ in 0..turns {
            for (channel, results) in channels.iter().zip(&mut results) {
                results.push(measured(&reactor, async {
                    for _ in 0..count {
                        call(channel, operation, &body, &mut place).await;
                    }
                }));
            }
        }
        for (protection, mut results) in Protection::ALL.into_iter().zip(results) {
            results.sort_by(|one, other| one.0.total_cmp(&other.0));
            let processor = results[turns / 2].0 / count as f64;
            results.sort_by(|one, other| one.1.total_cmp(&other.1));
            let wall = results[turns / 2].1 / count as f64;
            println!(
                "{name:5} {:10} {:7.1} us of processor time, {:7.1} us, least {:7.1}",
                protection.name(),
                processor * 1e6,
                wall * 1e6,
                results[0].1 / count as f64 * 1e6
            );
        }
    }
}
