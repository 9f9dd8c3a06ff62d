//! Connections whose peers say nothing, and crowds of peers that come at once: who holds the key is let in.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use reactor::process::{allow_open_files, user};
use reactor::{
    Call, Channel, ChannelOptions, Class, DriverKind, Incoming, Peer, Reactor, ServeOptions, ServerHandle, Service,
    local_name, serve,
};
use std::cell::Cell;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::credentials::Credentials;
use wire::handshake::Role;
use wire::messages::Empty;
use wire::{Cluster, Operation, Placement, ServerAddress, Status};

const SECOND: u64 = 1_000_000_000;
const NOBODY: libc::uid_t = 65_534;
const SILENT: usize = 4_000;
/// docs/security.md: strangers at a time, and bytes that each may cost.
const STRANGERS_MAX: u64 = 256;
const STRANGER_SIZE: u64 = 16 << 10;
/// What this process has for each silent connection as the one that makes it.
const OWN_SIZE: u64 = 256;

/// Answers pings.
struct Pong;

impl Service for Pong {
    fn connected(&self, _: &Peer, _: u64) -> Result<bool, Status> {
        Ok(true)
    }

    fn disconnected(&self, _: &Peer) {}

    fn request(self: Rc<Self>, incoming: Incoming) {
        incoming.reply(&Empty {});
    }
}

struct Fixture {
    reactor: Reactor,
    cluster: Rc<Cluster>,
    handle: ServerHandle,
    next_session: Cell<u64>,
}

fn fixture(connections_max: usize, is_local: bool) -> Fixture {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let files = allow_open_files().unwrap();
    assert!(files >= 10_000, "this test needs 10,000 open files (ulimit -Hn), of which {files} are allowed");
    let reactor = Reactor::open(DriverKind::Epoll).unwrap();
    let listener = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let id = 7 << 120 | u128::from(std::process::id()) << 64 | u128::from(COUNT.fetch_add(1, Ordering::SeqCst));
    let servers = vec![
        ServerAddress { address: listener.local_address().unwrap() },
        // Another server, whose connections come first.
        ServerAddress { address: "127.0.0.1:1".parse().unwrap() },
    ];
    let cluster = Rc::new(Cluster::new(id, [9; 32], Placement::Modular, 1 << 20, servers));
    let options = ServeOptions {
        cluster: cluster.clone(),
        server: 0,
        connections_max,
        incarnation: 1,
        shared: None,
        local_clients_only: false,
        registers_buffers: false,
        working_interval: SECOND / 10,
        timeout: 30 * SECOND,
    };
    let handle = serve(&reactor, listener, options, Rc::new(Pong));
    if is_local {
        handle.accept_local(reactor.listen_local(&local_name(&cluster, 0)).unwrap());
    }
    Fixture { reactor, cluster, handle, next_session: Cell::new(1) }
}

impl Fixture {
    fn channel(&self, role: Role, level: u8) -> Channel {
        let options = ChannelOptions {
            cluster: self.cluster.clone(),
            server: 0,
            role,
            from_server: u32::from(role == Role::Server),
            level,
            session: self.next_session.replace(self.next_session.get() + 1),
            user: Credentials::new(0, 0),
            label: wire::label::Label::default(),
            timeout: 60 * SECOND,
            relay: None,
        };
        Channel::new(&self.reactor, options)
    }

    /// A client comes, is served over its first connection, and goes.
    fn come_and_go(&self) {
        let client = self.channel(Role::Client, 0);
        self.ping(&client);
        assert_eq!(client.statistics().connects, 1);
    }

    fn ping(&self, channel: &Channel) {
        self.reactor.block_on(channel.call(Call::new(Operation::Ping, &Empty {}))).unwrap();
    }
}

/// A connection of which nothing is ever heard.
enum Silent {
    Network(TcpStream),
    Local(UnixStream),
}

impl Silent {
    /// Whether the server has not closed it.
    fn is_open(&mut self) -> bool {
        let mut byte = [0];
        let read = match self {
            Silent::Network(stream) => stream.set_nonblocking(true).and_then(|()| stream.read(&mut byte)),
            Silent::Local(stream) => stream.set_nonblocking(true).and_then(|()| stream.read(&mut byte)),
        };
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }
}

impl Fixture {
    fn silent(&self, is_local: bool) -> Silent {
        if is_local {
            let name = SocketAddr::from_abstract_name(local_name(&self.cluster, 0)).unwrap();
            Silent::Local(UnixStream::connect_addr(&name).unwrap())
        } else {
            Silent::Network(TcpStream::connect(self.cluster.servers[0].address).unwrap())
        }
    }
}

/// One test after the other: what a crowd takes is seen in what the process has.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that this process has by itself.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Sets the effective user of this thread alone, which the C library's call of that name does not do.
fn become_user(user: libc::uid_t) {
    // SAFETY: no pointers. The thread is this test's own.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, -1i32, user, -1i32) };
    assert_eq!(result, 0, "this test changes its user: run it as root, or set TABANE_CI_NO_ROOT=1 to leave it out");
}

/// Goal: thousands of silent connections of another user take nothing from those who hold the key, nor from others who
/// are silent, over either way.
/// Method: 4,000 of them, which stay as long as the server lets them; then a hundred clients one after the other, and
/// twenty more silent ones before each. A client that was there before keeps its connection, and so does one of our
/// user that is as silent and came first, while of the crowd the oldest go.
#[test]
#[expect(clippy::disallowed_methods, reason = "whether a test is left out is for whoever runs it")]
fn silent_crowd_of_another_user() {
    if std::env::var("TABANE_CI_NO_ROOT").is_ok_and(|value| value == "1") {
        return;
    }
    let _alone = alone();
    let own = user();
    for is_local in [false, true] {
        let fixture = fixture(16, is_local);
        let good = fixture.channel(Role::Client, 0);
        fixture.ping(&good);
        // What earlier rounds have left free would hide what this one takes.
        // SAFETY: no pointers.
        unsafe { libc::malloc_trim(0) };
        let before = resident();
        let mut own_silent = fixture.silent(is_local);
        become_user(NOBODY);
        let mut crowd: Vec<Silent> = (0..SILENT).map(|_| fixture.silent(is_local)).collect();
        become_user(own);
        fixture.come_and_go();
        assert!(own_silent.is_open() && !crowd[0].is_open(), "places are taken from the crowd");
        let grown = resident().saturating_sub(before);
        assert!(grown < STRANGERS_MAX * STRANGER_SIZE + SILENT as u64 * OWN_SIZE, "a silent crowd took {grown} bytes");
        for _ in 0..100 {
            become_user(NOBODY);
            crowd.extend((0..20).map(|_| fixture.silent(is_local)));
            become_user(own);
            fixture.come_and_go();
        }
        fixture.ping(&good);
        assert_eq!(good.statistics().connects, 1, "the client that was there kept its connection");
        assert!(fixture.handle.statistics().connections_refused > SILENT as u64 / 2, "most had to go");
    }
}

/// Goal: of a crowd that comes at once everybody is served, however few connections there are; and another server is
/// let in meanwhile without waiting for them.
/// Method: 2,000 clients of one process ask at the same time and leave after their answer; a server comes after them.
#[test]
fn crowd_that_comes_at_once() {
    let _alone = alone();
    for is_local in [false, true] {
        let fixture = fixture(64, is_local);
        let (served, failed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        for _ in 0..2_000 {
            let client = fixture.channel(Role::Client, 0);
            let (served, failed) = (served.clone(), failed.clone());
            fixture.reactor.spawn(Class::Data, async move {
                let outcome = client.call(Call::new(Operation::Ping, &Empty {})).await;
                let count = if outcome.is_ok() { &served } else { &failed };
                count.set(count.get() + 1);
                if let Err(failure) = outcome {
                    eprintln!("{}", String::from_utf8_lossy(&failure.text));
                }
            });
        }
        let server = fixture.channel(Role::Server, 3);
        fixture.reactor.block_on(server.call(Call::new(Operation::Announce, &Empty {}))).unwrap();
        assert_eq!(server.statistics().connects, 1);
        assert!(served.get() < 2_000, "the server did not wait for all of them");
        while served.get() + failed.get() < 2_000 {
            fixture.reactor.block_on(fixture.reactor.yield_now());
        }
        assert_eq!((served.get(), failed.get()), (2_000, 0));
        assert_eq!(server.statistics().connects, 1);
    }
}

/// Goal: who waits for a connection gets the first that is free; who is connected keeps it; and where nobody leaves,
/// whoever waits hears in the end that the server is full.
/// Method: as many clients as there may be stay; three more wait in turn; one leaves after the other.
#[test]
fn the_next_one_is_let_in() {
    let _alone = alone();
    let fixture = fixture(4, true);
    let mut inside: Vec<Channel> = (0..3).map(|_| fixture.channel(Role::Client, 0)).collect();
    inside.iter().for_each(|channel| fixture.ping(channel));
    let order: Rc<std::cell::RefCell<Vec<usize>>> = Rc::default();
    let (enough, done) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    for number in 0..3 {
        let client = fixture.channel(Role::Client, 0);
        let (order, enough, done) = (order.clone(), enough.clone(), done.clone());
        let reactor = fixture.reactor.clone();
        fixture.reactor.spawn(Class::Data, async move {
            client.call(Call::new(Operation::Ping, &Empty {})).await.unwrap();
            order.borrow_mut().push(number);
            while !enough.get() {
                reactor.yield_now().await;
            }
            done.set(done.get() + 1);
        });
        // It is in the queue before the next one comes.
        fixture.reactor.block_on(fixture.reactor.sleep(SECOND / 20));
    }
    assert!(order.borrow().is_empty());
    while let Some(channel) = inside.pop() {
        let before = order.borrow().len();
        drop(channel);
        while order.borrow().len() == before {
            fixture.reactor.block_on(fixture.reactor.yield_now());
        }
        assert_eq!(order.borrow().len(), before + 1, "one for one");
    }
    assert_eq!(*order.borrow(), [0, 1, 2]);
    enough.set(true);
    while done.get() < 3 {
        fixture.reactor.block_on(fixture.reactor.yield_now());
    }
}
