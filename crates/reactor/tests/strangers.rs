//! Processes of other users of the machine: who listens in a server's place is told nothing, and who passes a
//! handshake on to another way gets nowhere.
//!
//! Two real users: this test plays the other one, for which it has to be run as root; TABANE_CI_NO_ROOT=1 leaves it
//! out.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(
    clippy::disallowed_methods,
    reason = "whether a test is left out is for whoever runs it; others run in threads"
)]

use reactor::{
    Call, Channel, ChannelOptions, Class, DriverKind, Failure, Incoming, Listener, Parties, Peer, Reactor, Relay,
    ServeOptions, Service, Stream, Way, local_name, serve,
};
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use wire::credentials::Credentials;
use wire::handshake::{Greeting, Role};
use wire::messages::Empty;
use wire::{Cluster, Encode, Operation, Placement, Protection, ServerAddress, Status};

const SECOND: u64 = 1_000_000_000;
const NOBODY: u32 = 65_534;

fn is_left_out() -> bool {
    std::env::var("TABANE_CI_NO_ROOT").is_ok_and(|value| value == "1")
}

/// Makes this thread one of another user, which the C library's call of that name does not do.
fn become_user(user: u32) {
    // SAFETY: no pointers. The thread is this test's own.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, -1i32, user, -1i32) };
    assert_eq!(result, 0, "this test changes its user: run it as root, or set TABANE_CI_NO_ROOT=1 to leave it out");
}

/// Answers everything, and counts who comes.
#[derive(Default)]
struct Answers(Arc<AtomicU64>);

impl Service for Answers {
    fn connected(&self, _: &Peer, _: u64) -> Result<bool, Status> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(true)
    }

    fn disconnected(&self, _: &Peer) {}

    fn request(self: Rc<Self>, incoming: Incoming) {
        incoming.reply(&Empty {});
    }
}

fn some_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// An address at which nobody listens, and which nobody else is given.
fn nowhere() -> SocketAddr {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let [low, high, ..] = std::process::id().to_le_bytes();
    let ip = [127, high, low, COUNT.fetch_add(1, Ordering::SeqCst) as u8];
    std::net::TcpListener::bind(SocketAddr::from((ip, 0))).unwrap().local_addr().unwrap()
}

/// A cluster of one server of that address.
fn cluster_at(address: SocketAddr) -> Cluster {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let id = u128::from(std::process::id()) << 64 | u128::from(COUNT.fetch_add(1, Ordering::SeqCst));
    Cluster::new(id, [9; 32], Placement::Modular, 1 << 20, vec![ServerAddress { address }])
}

/// A thread with a loop of its own, until it is dropped.
struct Process {
    thread: Option<JoinHandle<()>>,
    stop: SocketAddr,
}

impl Process {
    /// Has a loop, as a user, do what `begin` starts.
    fn new<B: FnOnce(&Reactor) + Send + 'static>(user: u32, begin: B) -> Process {
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            if user != 0 {
                become_user(user);
            }
            let reactor = Reactor::open(DriverKind::Epoll).unwrap();
            let stop = reactor.listen(some_port()).unwrap();
            begin(&reactor);
            tell.send(stop.local_address().unwrap()).unwrap();
            reactor.block_on(stop.accept()).unwrap();
            // What tasks hold would outlive the loop.
            reactor.shutdown();
        });
        Process { thread: Some(thread), stop: told.recv().expect("the other thread has begun") }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        std::net::TcpStream::connect(self.stop).unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// The first server; at which name it takes processes of the machine, if at any. Counts those who were let in.
fn server(user: u32, cluster: &Cluster, address: SocketAddr, name: Option<Vec<u8>>) -> (Process, Arc<AtomicU64>) {
    server_of(user, cluster, 0, address, name)
}

fn server_of(
    user: u32,
    cluster: &Cluster,
    server: u32,
    address: SocketAddr,
    name: Option<Vec<u8>>,
) -> (Process, Arc<AtomicU64>) {
    let (cluster, count) = (cluster.clone(), Arc::new(AtomicU64::new(0)));
    let counted = count.clone();
    let process = Process::new(user, move |reactor| {
        let options = ServeOptions {
            cluster: Rc::new(cluster),
            server,
            connections_max: 8,
            incarnation: 1,
            shared: None,
            local_clients_only: false,
            registers_buffers: false,
            working_interval: SECOND,
            timeout: 10 * SECOND,
        };
        let listener = reactor.listen(address).unwrap();
        let handle = serve(reactor, listener, options, Rc::new(Answers(counted)));
        if let Some(name) = name {
            handle.accept_local(reactor.listen_local(&name).unwrap());
        }
    });
    (process, count)
}

fn channel(reactor: &Reactor, cluster: &Cluster) -> Channel {
    Channel::new(reactor, options_for(cluster, 0, Role::Client))
}

fn options_for(cluster: &Cluster, server: u32, role: Role) -> ChannelOptions {
    ChannelOptions {
        cluster: Rc::new(cluster.clone()),
        server,
        role,
        from_server: 0,
        level: 0,
        session: 1,
        user: Credentials::new(0, 0),
        label: wire::label::Label::default(),
        timeout: 20 * SECOND,
        relay: None,
    }
}

/// One call, over one connection or none.
fn ping(reactor: &Reactor, channel: &Channel) -> Result<(), Failure> {
    let mut call = Call::new(Operation::Ping, &Empty {});
    call.once = true;
    reactor.block_on(channel.call(call)).map(|_| ())
}

/// Somebody who listens at a name as another user, and what is said to him.
fn squat(name: &[u8]) -> UnixListener {
    let name = UnixAddress::from_abstract_name(name).unwrap();
    let listener = std::thread::spawn(move || {
        become_user(NOBODY);
        UnixListener::bind_addr(&name).unwrap()
    });
    listener.join().unwrap()
}

/// Everything that callers have said to him, who have all gone.
fn heard(listener: &UnixListener) -> (usize, Vec<u8>) {
    listener.set_nonblocking(true).unwrap();
    let (mut count, mut bytes) = (0, Vec::new());
    while let Ok((mut caller, _)) = listener.accept() {
        caller.read_to_end(&mut bytes).unwrap();
        count += 1;
    }
    (count, bytes)
}

/// Goal: whoever sits on a server's name, before its start or after a kill, is told nothing, and keeps nobody from
/// the server.
/// Method: another user takes the name before a server starts, which so has none; and in the moment between two lives
/// of a server. A client of either life reaches it, and the other user has got no byte and no file.
#[test]
fn name_of_a_server_is_taken() {
    if is_left_out() {
        return;
    }
    let reactor = Reactor::open(DriverKind::Epoll).unwrap();
    let cluster = cluster_at(nowhere());
    let (address, name) = (cluster.servers[0].address, local_name(&cluster, 0));
    let squatter = squat(&name);
    let first = server(0, &cluster, address, None);
    ping(&reactor, &channel(&reactor, &cluster)).expect("over the network");
    assert_eq!(heard(&squatter), (1, Vec::new()), "somebody looked who listens, and left");
    drop((first, squatter));

    let life = server(0, &cluster, address, Some(name.clone()));
    let client = channel(&reactor, &cluster);
    ping(&reactor, &client).expect("through shared memory");
    drop(life);
    let squatter = squat(&name);
    let _life = server(0, &cluster, address, None);
    reactor.block_on(client.call(Call::new(Operation::Ping, &Empty {}))).expect("over the network");
    let (callers, bytes) = heard(&squatter);
    assert!(callers >= 1 && bytes.is_empty(), "{callers} callers said {bytes:?}");
}

/// Goal: a server of another user is taken for the server only where that user is root or the owner of the cluster
/// file, and then its clients, whom it has to let in by the key alone, come through shared memory.
/// Method: a server of nobody's, which can't be reached over the network; its name with and without its owner told.
#[test]
fn servers_of_other_users() {
    if is_left_out() {
        return;
    }
    let reactor = Reactor::open(DriverKind::Epoll).unwrap();
    let mut cluster = cluster_at(nowhere());
    let name = local_name(&cluster, 0);
    let _server = server(NOBODY, &cluster, some_port(), Some(name.clone()));
    for owner in [None, Some(0), Some(NOBODY - 1)] {
        let error = reactor.connect_local(&name, owner).map(|_| ()).expect_err("it is another one's");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        cluster.owner = owner;
        assert_eq!(ping(&reactor, &channel(&reactor, &cluster)).map_err(|f| f.status), Err(Status::Unreachable));
    }
    let stream = reactor.connect_local(&name, Some(NOBODY)).unwrap();
    assert_eq!(stream.way(), Way::Local(Parties::Users { caller: 0, listener: NOBODY }));
    cluster.owner = Some(NOBODY);
    ping(&reactor, &channel(&reactor, &cluster)).expect("both see the same two users");
}

/// Where somebody in between is called, or calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Network,
    Local,
}

/// Bytes that a client has said.
type Overheard = Arc<Mutex<Vec<u8>>>;

/// Another user between a client and a server, who passes on all that both say. Tells where he listens.
fn between(front: (Side, Vec<u8>), back: (Side, Vec<u8>, SocketAddr)) -> (Process, SocketAddr, Overheard) {
    let (tell, told) = mpsc::channel();
    let overheard = Overheard::default();
    let record = overheard.clone();
    let process = Process::new(NOBODY, move |reactor| {
        let network = reactor.listen(some_port()).unwrap();
        tell.send(network.local_address().unwrap()).unwrap();
        let listener = if front.0 == Side::Network { network } else { reactor.listen_local(&front.1).unwrap() };
        reactor.spawn(Class::Metadata, pass_on(reactor.clone(), listener, back, record));
    });
    (process, told.recv().unwrap(), overheard)
}

async fn pass_on(reactor: Reactor, listener: Listener, back: (Side, Vec<u8>, SocketAddr), record: Overheard) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let server = match back.0 {
            Side::Network => reactor.connect(back.2).await.unwrap(),
            Side::Local => reactor.connect_local(&back.1, None).unwrap(),
        };
        reactor.spawn(Class::Metadata, pump(server.clone(), client.clone(), None));
        reactor.spawn(Class::Metadata, pump(client, server, Some(record.clone())));
    }
}

async fn pump(from: Stream, to: Stream, record: Option<Overheard>) {
    let mut bytes = [0; 4096];
    while let Ok(size @ 1..) = from.recv(&mut bytes).await {
        if let Some(record) = &record {
            record.lock().unwrap().extend_from_slice(&bytes[..size]);
        }
        if to.send_all(&bytes[..size]).await.is_err() {
            break;
        }
    }
    to.shutdown();
    from.shutdown();
}

/// Goal: nobody gets in between by passing a handshake on, by whichever way on either side, and he does not learn who
/// the client is.
/// Method: another user listens in a server's place, where clients believe that he may, and passes every byte on to
/// the server by each way. Clients have no other way to it.
#[test]
fn handshakes_are_not_passed_on() {
    if is_left_out() {
        return;
    }
    let sides = [Side::Local, Side::Network];
    for (front, back) in sides.into_iter().flat_map(|front| sides.map(|back| (front, back))) {
        let reactor = Reactor::open(DriverKind::Epoll).unwrap();
        let mut cluster = cluster_at(nowhere());
        cluster.owner = Some(NOBODY);
        let (name, behind) = (local_name(&cluster, 0), [&local_name(&cluster, 0)[..], b"/behind"].concat());
        let address = nowhere();
        let (_server, let_in) = server(0, &cluster, address, Some(behind.clone()));
        let (_between, called_at, overheard) = between((front, name), (back, behind, address));
        if front == Side::Network {
            cluster.servers[0].address = called_at;
        }
        let failure = ping(&reactor, &channel(&reactor, &cluster)).expect_err("nobody is at the other end");
        assert!(matches!(failure.status, Status::KeyMismatch | Status::Unreachable), "{front:?}-{back:?}: {failure}");
        assert_eq!(let_in.load(Ordering::SeqCst), 0, "{front:?}-{back:?}: the server let somebody in");
        assert!(are_greetings(&overheard), "{front:?}-{back:?}");
    }
}

/// Whether somebody has said something, and nothing but what comes before any proof.
fn are_greetings(overheard: &Overheard) -> bool {
    let greeting = Greeting {
        magic: 0,
        protocol_version: 0,
        cluster: 0,
        server: 0,
        protection: 0,
        nonce: [0; 32],
        voucher: [0; 16],
    };
    let said = overheard.lock().unwrap().len();
    said > 0 && said.is_multiple_of(2 + greeting.to_bytes().len())
}

/// Goal: nobody gets between a client and the server through which it reaches others, nor between that one and another.
/// Method: another user passes on every byte of either connection. Straight ahead the relay carries calls.
#[test]
fn relayed_connections_are_not_passed_on() {
    if is_left_out() {
        return;
    }
    for place in ["nowhere", "before the relay", "behind the relay"] {
        let reactor = Reactor::open(DriverKind::Epoll).unwrap();
        let mut cluster = cluster_at(nowhere());
        cluster.servers.push(ServerAddress { address: nowhere() });
        let (target, relay) = (cluster.servers[0].address, cluster.servers[1].address);
        let passed = if place == "before the relay" { relay } else { target };
        let (_between, called_at, overheard) =
            between((Side::Network, Vec::new()), (Side::Network, Vec::new(), passed));
        let mut of_relay = cluster.clone();
        match place {
            "before the relay" => cluster.servers[1].address = called_at,
            "behind the relay" => of_relay.servers[0].address = called_at,
            _ => {}
        }
        let (_target, let_in) = server_of(0, &cluster, 0, target, None);
        let (_relay, _) = server_of(0, &of_relay, 1, relay, None);
        // Nobody is reached but through the relay.
        cluster.servers[0].address = nowhere();
        let way = Relay::new(&reactor, options_for(&cluster, 1, Role::ClientTunnel));
        let options = ChannelOptions { relay: Some(way), ..options_for(&cluster, 0, Role::Client) };
        let result = ping(&reactor, &Channel::new(&reactor, options));
        if place == "nowhere" {
            result.expect("the relay carries it");
            continue;
        }
        let failure = result.expect_err("somebody is in between");
        assert!(matches!(failure.status, Status::KeyMismatch | Status::Unreachable), "{place}: {failure}");
        assert_eq!(let_in.load(Ordering::SeqCst), 0, "{place}: the server let somebody in");
        assert!(are_greetings(&overheard), "{place}");
    }
}

/// Goal: who passes on a protected connection over the network is no more than a part of the network, as tunnels and
/// address translation are.
/// Method: another user passes every byte on, and calls come through.
#[test]
fn protected_connections_may_be_passed_on() {
    if is_left_out() {
        return;
    }
    for protection in [Protection::Integrity, Protection::Encryption] {
        let reactor = Reactor::open(DriverKind::Epoll).unwrap();
        let mut cluster = cluster_at(nowhere());
        cluster.protection = protection;
        let address = cluster.servers[0].address;
        let (_server, _) = server(0, &cluster, address, None);
        let (_between, called_at, _) = between((Side::Network, Vec::new()), (Side::Network, Vec::new(), address));
        cluster.servers[0].address = called_at;
        ping(&reactor, &channel(&reactor, &cluster)).expect("it is reached");
    }
}
