//! The serving side of the message layer: accepts connections, authenticates them, hands requests to a `Service` and
//! sends its replies.
//!
//! Invariants:
//! 1. A connection holds at most `REQUEST_WINDOW` requests, `PARAMS_HELD_MAX` bytes of their parameters (plus one
//!    block) and `REPLIES_HELD_MAX` bytes of replies (plus one); beyond these it is not read, so the sender waits.
//! 2. Every request gets exactly one reply, or its connection is closed.
//! 3. A newer connection of the same session and level closes the older one before the service hears of it.
//! 4. Nothing is borrowed while the service runs.
//! 5. A peer that has not proved itself holds a place among the strangers (`strangers`) and nothing else, for
//!    `HANDSHAKE_NS` at most; a client that has waits for its turn where all connections are in use (`queue`). Servers
//!    never wait for clients.

mod connection;
mod incoming;
mod queue;
mod strangers;
mod tunnels;

pub use incoming::Incoming;
pub use strangers::STRANGERS_MAX;
pub use tunnels::RelayStatistics;

use crate::executor::until;
use crate::handshake::{Guest, HandshakeError, examine};
use crate::link::RECEIVE_BUFFER_SIZE_MAX;
use crate::log::{self, Level};
use crate::relay::Passed;
use crate::sealing::SEALED_MEMORY_MAX;
use crate::short_circuit::SharedStore;
use crate::{Class, HazardPointers, Listener, MappingLock, Nanos, Reactor, Region, Relay, StampedRegion, Stream};
use connection::{Connection, PARAMS_HELD_MAX, REPLIES_HELD_MAX};
use queue::{Queue, WAITING_SHARED_SIZE, waiting_max};
use shm::client_counters::ClientCounters;
use shm::mapping::Mapped;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use strangers::{Room, STRANGER_SHARED_SIZE, STRANGER_SIZE, StrangerOrigin, Strangers};
use tunnels::OpenTunnel;
use wire::credentials::Credentials;
use wire::handshake::{Hello, Role, Welcome};
use wire::label::Label;
use wire::limits::{BYTES_WINDOW, PARAMS_SIZE_MAX, REQUEST_WINDOW};
use wire::{Cluster, Protection, Status};

/// A handshake takes at most this long.
const HANDSHAKE_NS: Nanos = 10_000_000_000;
const TIMED_OUT: std::io::ErrorKind = std::io::ErrorKind::TimedOut;
/// Of all connections, the part that is kept for clients' tunnels, and the most that is kept for these and for servers:
/// a server that has no room for them could not be reached through others where it has none for clients.
const TUNNELS_SHARE: usize = 8;
const KEPT_SHARE_MAX: usize = 4;
/// Connections of one other server: one for each of three levels, and a tunnel.
const CONNECTIONS_PER_SERVER: usize = 4;
/// Connections that are accepted before other tasks get their turn, and those that had to go have gone.
const ACCEPTS_PER_TURN: usize = 32;

/// Who is at the other end of a connection, after authentication.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Unique per server process.
    pub connection: u64,
    pub role: Role,
    pub level: u8,
    pub session: u64,
    /// The peer's own index, when it is a server.
    pub from_server: u32,
    pub user: Credentials,
    /// Whose job it is of, as it says itself.
    pub label: Rc<Label>,
    /// A number that the service has for it.
    pub tag: Cell<u32>,
    /// What pages that are registered for the peer are mapped through, where that is possible.
    pub mapping_lock: Option<Borrowing>,
    /// Where a peer that was lent a region says what is to be kept for it.
    pub hazards: Option<Hazards>,
    /// Where a client that shares memory with us counts what it does by itself.
    pub counters: Option<Mapped<ClientCounters>>,
    /// The queue in which it submits changes.
    pub queue: Option<usize>,
}

/// What a peer holds.
#[derive(Clone)]
pub struct Hazards(pub Rc<HazardPointers>);

impl std::fmt::Debug for Hazards {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Hazards")
    }
}

/// A mapping lock, for whoever registers something of it.
#[derive(Clone)]
pub struct Borrowing(pub Rc<dyn MappingLock>);

impl std::fmt::Debug for Borrowing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Borrowing")
    }
}

/// What a server does with requests.
pub trait Service: 'static {
    /// A peer has proved itself. Answers whether its session is known here, since before the last of the `welcomes`
    /// that it has received; without any a new one begins. An error refuses the connection.
    fn connected(&self, peer: &Peer, welcomes: u64) -> Result<bool, Status>;
    /// A peer that was just taken in shares memory with us: it is lent a region from now on, or counts there.
    fn shared(&self, _peer: &Peer) {}
    fn disconnected(&self, peer: &Peer);
    /// After that: a client had said that its session ended with the connection.
    fn session_ended(&self, _peer: &Peer) {}
    /// A request whose header and parameters are here. Its body, if any, waits until it is received or the reply is
    /// given; until then nothing more is read from that connection.
    fn request(self: Rc<Self>, incoming: Incoming);
}

pub struct ServeOptions {
    pub cluster: Rc<Cluster>,
    /// This server's index.
    pub server: u32,
    /// Connections at a time, and as many that come through other servers.
    pub connections_max: usize,
    /// Changes with every start.
    pub incarnation: u64,
    /// Time within which a request that is still held shows a sign of life.
    pub working_interval: Nanos,
    /// Silence of another server after which what is passed on to it ends.
    pub timeout: Nanos,
    /// What clients of this machine may read from by themselves.
    pub shared: Option<Rc<StampedRegion>>,
    /// Whether these may also register pages to write to.
    pub registers_buffers: bool,
    /// Whether clients must come through shared memory. Servers need not.
    pub local_clients_only: bool,
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionOrigin {
    /// A socket of the network.
    Network,
    /// A process of this machine, through shared memory.
    Local,
    /// Another server, which passes it on.
    Relay,
}

impl ServeOptions {
    /// Connections that are not for clients' own.
    fn kept(&self) -> usize {
        let others = self.cluster.servers.len() - 1;
        let wanted =
            if others == 0 { 0 } else { others * CONNECTIONS_PER_SERVER + self.connections_max / TUNNELS_SHARE };
        wanted.min(self.connections_max / KEPT_SHARE_MAX)
    }
}

/// The connection ended before the body was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disconnected;

type FenceKey = (u8, u8, u64, u32);

struct Serving {
    reactor: Reactor,
    options: ServeOptions,
    service: Rc<dyn Service>,
    /// Ordered, so that whoever goes through all of them does it in the same order in every simulated run of a seed.
    connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    fences: RefCell<BTreeMap<FenceKey, u64>>,
    /// Connections that carry others, by the same numbers.
    tunnels: RefCell<BTreeMap<u64, OpenTunnel>>,
    /// Ways to other servers, for what clients have passed on.
    ways: RefCell<BTreeMap<u32, Relay>>,
    /// Connections that came through other servers, and those of clients that did not.
    relayed: Cell<usize>,
    of_clients: Cell<usize>,
    /// Streams that are passed on now, and that ever were.
    passing: Cell<usize>,
    passed_streams: Cell<u64>,
    passed: Passed,
    next_connection: Cell<u64>,
    strangers: RefCell<Strangers<Stream>>,
    /// Who waits for one of them to go.
    room_wakers: RefCell<Vec<Waker>>,
    queue: RefCell<Queue>,
    refused: Cell<u64>,
    closed: Cell<bool>,
    requests_held: Cell<usize>,
    watcher: RefCell<Option<Waker>>,
    bytes_received: Cell<u64>,
    bytes_sent: Cell<u64>,
    tree_number: Cell<u64>,
    late_error: Cell<u64>,
}

/// Counters of the serving side.
#[derive(Debug, Clone, Copy, Default)]
pub struct ServeStatistics {
    pub connections: usize,
    pub connections_refused: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
    pub relay: RelayStatistics,
}

/// A running service.
#[derive(Clone)]
pub struct ServerHandle(Rc<Serving>);

/// Starts to accept connections.
pub fn serve(reactor: &Reactor, listener: Listener, options: ServeOptions, service: Rc<dyn Service>) -> ServerHandle {
    let serving = Rc::new(Serving {
        reactor: reactor.clone(),
        options,
        service,
        connections: RefCell::default(),
        fences: RefCell::default(),
        tunnels: RefCell::default(),
        ways: RefCell::default(),
        relayed: Cell::new(0),
        of_clients: Cell::new(0),
        passing: Cell::new(0),
        passed_streams: Cell::new(0),
        passed: Passed::default(),
        next_connection: Cell::new(1),
        strangers: RefCell::new(Strangers::new()),
        room_wakers: RefCell::default(),
        queue: RefCell::default(),
        refused: Cell::new(0),
        closed: Cell::new(false),
        requests_held: Cell::new(0),
        watcher: RefCell::default(),
        bytes_received: Cell::new(0),
        bytes_sent: Cell::new(0),
        tree_number: Cell::new(0),
        late_error: Cell::new(0),
    });
    reactor.spawn(Class::Metadata, accept_all(serving.clone(), listener, ConnectionOrigin::Network));
    reactor.spawn(Class::Metadata, watch(serving.clone()));
    ServerHandle(serving)
}

impl ServerHandle {
    /// Accepts connections through shared memory too.
    pub fn accept_local(&self, listener: Listener) {
        self.0.reactor.spawn(Class::Metadata, accept_all(self.0.clone(), listener, ConnectionOrigin::Local));
    }

    /// Stops accepting and closes all connections.
    pub fn close(&self) {
        self.0.closed.set(true);
        let connections: Vec<_> = self.0.connections.borrow().values().cloned().collect();
        for connection in connections {
            connection.close();
        }
        self.0.close_tunnels();
        self.0.queue.borrow_mut().wake_all();
        self.0.wake_watcher();
    }

    /// Ends the connections of a session that the service knows no more: with the next one its peer is told so.
    pub fn end_session(&self, session: u64) {
        let connections: Vec<_> = self.0.connections.borrow().values().cloned().collect();
        for connection in connections.iter().filter(|connection| connection.peer.session == session) {
            connection.close();
            self.0.forget(connection);
        }
    }

    /// The most memory that streams in tunnels may hold, in bytes: those that are passed on, and those that end here.
    pub fn relay_memory_max(&self) -> u64 {
        (2 * self.0.options.connections_max * 2 * wire::relay::STREAM_WINDOW) as u64
    }

    /// Sets the number of the last tree change, which every reply from now on names.
    pub fn set_tree_number(&self, number: u64) {
        self.0.tree_number.set(number);
    }

    /// Sets the number of the last error that was learnt of late, which every reply from now on names.
    pub fn set_late_error(&self, number: u64) {
        self.0.late_error.set(number);
    }

    /// The most memory that all connections together may hold, in bytes.
    pub fn memory_max(&self) -> u64 {
        let sealed = if self.0.options.cluster.protection == Protection::Off { 0 } else { SEALED_MEMORY_MAX };
        let per_connection =
            RECEIVE_BUFFER_SIZE_MAX + PARAMS_HELD_MAX + PARAMS_SIZE_MAX + 2 * REPLIES_HELD_MAX + 8192 + sealed;
        let connections_max = self.0.options.connections_max;
        let strangers = (STRANGERS_MAX + waiting_max(connections_max)) * STRANGER_SIZE;
        (2 * connections_max * per_connection + strangers) as u64
    }

    /// The most memory of other processes, in bytes, that connections through shared memory may have mapped here.
    pub fn shared_memory_max(&self) -> u64 {
        let connections_max = self.0.options.connections_max;
        let strangers = STRANGERS_MAX * STRANGER_SHARED_SIZE + waiting_max(connections_max) * WAITING_SHARED_SIZE;
        connections_max as u64 * crate::LOCAL_MEMORY_PER_CONNECTION + strangers as u64
    }

    pub fn statistics(&self) -> ServeStatistics {
        let mut statistics = ServeStatistics {
            connections: self.0.connections.borrow().len(),
            connections_refused: self.0.refused.get(),
            bytes_received: self.0.bytes_received.get(),
            bytes_sent: self.0.bytes_sent.get(),
            relay: self.0.relay_statistics(),
        };
        for connection in self.0.connections.borrow().values() {
            let link = connection.link.borrow();
            statistics.bytes_received += link.bytes_received;
            statistics.bytes_sent += link.bytes_sent;
        }
        statistics
    }

    /// The peers that are connected now, with the bytes received from and sent to each.
    pub fn peers(&self) -> Vec<(Peer, u64, u64)> {
        let connections = self.0.connections.borrow();
        let mut peers: Vec<_> = connections
            .values()
            .map(|connection| {
                let link = connection.link.borrow();
                ((*connection.peer).clone(), link.bytes_received, link.bytes_sent)
            })
            .collect();
        peers.sort_by_key(|(peer, _, _)| peer.connection);
        peers
    }
}

async fn accept_all(serving: Rc<Serving>, listener: Listener, origin: ConnectionOrigin) {
    let mut accepted = 0;
    while !serving.closed.get() {
        match listener.accept().await {
            Ok((stream, _)) => {
                serving.wait_for_room().await;
                meet(&serving, StrangerOrigin::of(&stream), stream, origin);
            }
            // Out of descriptors, most likely.
            Err(error) => {
                let least_wanted = serving.strangers.borrow().least_wanted();
                if let Some(number) = least_wanted {
                    serving.dismiss(number);
                    serving.reactor.yield_now().await;
                    continue;
                }
                let words = "a connection can't be accepted; allow more open files (ulimit -n)";
                log::event(Level::Error, "accept-failed", words, &[("reason", &error)]);
                serving.reactor.sleep(100_000_000).await;
            }
        }
        accepted += 1;
        if accepted % ACCEPTS_PER_TURN == 0 {
            serving.reactor.yield_now().await;
        }
    }
}

/// Takes in a connection of somebody unknown, which may have come through another server. Somebody else may have to go
/// for it; if nobody has to, it is refused.
fn meet(serving: &Rc<Serving>, source: StrangerOrigin, stream: Stream, origin: ConnectionOrigin) {
    let room = serving.strangers.borrow().room(serving.reactor.now());
    match room {
        Room::Free => {}
        Room::Instead(number) => serving.dismiss(number),
        Room::NotBefore(_) => return serving.refused.set(serving.refused.get() + 1),
    }
    let number = serving.strangers.borrow_mut().enter(source, stream.clone());
    serving.reactor.spawn(Class::Metadata, welcome(serving.clone(), stream, origin, number));
}

/// Who has been let in.
enum Admitted {
    Connection(Rc<Connection>),
    Tunnel(u64),
}

/// One connection from its first byte to its last.
async fn welcome(serving: Rc<Serving>, stream: Stream, origin: ConnectionOrigin, number: u64) {
    let outcome = match serving.prove(&stream, number).await {
        Ok(guest) => serving.take_in(&stream, origin, &guest).await,
        Err(error) => Err(error),
    };
    match outcome {
        Ok(Admitted::Connection(connection)) => {
            connection.run(&serving).await;
            serving.forget(&connection);
        }
        Ok(Admitted::Tunnel(number)) => tunnels::carry(&serving, number).await,
        Err(HandshakeError::Refused(status, words)) => {
            log::event(Level::Warning, "connection-refused", words, &[("status", &status)]);
            serving.refused.set(serving.refused.get() + 1);
            hang_up(&serving.reactor, &stream).await;
        }
        Err(HandshakeError::Broken(_)) => serving.refused.set(serving.refused.get() + 1),
    }
    // Who was not let in was one of them until here.
    serving.part_with(number);
}

/// Reads on for a moment, so that the peer gets our last words instead of a reset.
async fn hang_up(reactor: &Reactor, stream: &Stream) {
    let drain = async {
        let mut scratch = [0; 1024];
        while stream.recv(&mut scratch).await.is_ok_and(|received| received > 0) {}
    };
    until(reactor, reactor.now() + 1_000_000_000, std::pin::pin!(drain)).await;
}

impl Serving {
    /// Waits until there is room for another stranger, which may be that of one who has to go.
    async fn wait_for_room(&self) {
        loop {
            let room = self.strangers.borrow().room(self.reactor.now());
            let Room::NotBefore(limit) = room else { return };
            let mut waited = false;
            let changed = std::pin::pin!(poll_fn(|cx| {
                if std::mem::replace(&mut waited, true) {
                    return Poll::Ready(());
                }
                self.room_wakers.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }));
            until(&self.reactor, limit, changed).await;
        }
    }

    /// Ends the connection of a stranger, for another one.
    fn dismiss(&self, number: u64) {
        if let Some(stream) = self.part_with(number) {
            stream.shutdown();
        }
    }

    /// Takes one of the strangers off the books, if it still is on them.
    fn part_with(&self, number: u64) -> Option<Stream> {
        let stream = self.strangers.borrow_mut().leave(number)?;
        self.room_wakers.borrow_mut().drain(..).for_each(Waker::wake);
        Some(stream)
    }

    /// Who a stranger is; it is none any more.
    async fn prove(&self, stream: &Stream, number: u64) -> Result<Guest, HandshakeError> {
        let limit = self.reactor.now() + HANDSHAKE_NS;
        let vouched = || {
            self.strangers.borrow_mut().vouch(number, self.reactor.now());
        };
        let options = &self.options;
        let examined = std::pin::pin!(examine(&self.reactor, stream, &options.cluster, options.server, vouched));
        let guest =
            until(&self.reactor, limit, examined).await.unwrap_or(Err(HandshakeError::Broken(TIMED_OUT.into())))?;
        match self.part_with(number) {
            Some(_) => Ok(guest),
            None => Err(HandshakeError::Broken(std::io::ErrorKind::ConnectionAborted.into())),
        }
    }

    /// Lets somebody in who has proved itself, where need be when its turn has come.
    async fn take_in(
        &self,
        stream: &Stream,
        origin: ConnectionOrigin,
        guest: &Guest,
    ) -> Result<Admitted, HandshakeError> {
        let hello = &guest.hello;
        let is_own_client =
            hello.role.is_client() && origin != ConnectionOrigin::Relay && !self.is_foreign(hello, origin);
        let waits = is_own_client && !self.closed.get() && !self.takes_over(hello);
        if waits && (self.queue.borrow().len() > 0 || self.is_full(hello.role)) {
            let turn = self.wait_for_turn(stream, guest).await;
            if let Err(HandshakeError::Refused(status, _)) = &turn {
                return Err(self.refuse(guest, *status).await?);
            }
            turn?;
        }
        let limit = self.reactor.now() + HANDSHAKE_NS;
        let admitted = std::pin::pin!(self.admit(stream, origin, guest));
        until(&self.reactor, limit, admitted).await.unwrap_or(Err(HandshakeError::Broken(TIMED_OUT.into())))
    }

    /// Says why not, to somebody who may not listen.
    async fn refuse(&self, guest: &Guest, status: Status) -> Result<HandshakeError, HandshakeError> {
        let limit = self.reactor.now() + HANDSHAKE_NS;
        let turns = self.queue.borrow().turns();
        let told = std::pin::pin!(guest.refuse(status, turns));
        until(&self.reactor, limit, told).await.unwrap_or(Err(HandshakeError::Broken(TIMED_OUT.into())))
    }

    fn is_foreign(&self, hello: &Hello, origin: ConnectionOrigin) -> bool {
        self.options.local_clients_only && hello.role == Role::Client && origin != ConnectionOrigin::Local
    }

    /// Whether there is a connection whose place this one takes.
    fn takes_over(&self, hello: &Hello) -> bool {
        let key: FenceKey = (hello.role as u8, hello.level, hello.session, hello.from_server);
        self.fences.borrow().get(&key).is_some_and(|older| self.connections.borrow().contains_key(older))
    }

    async fn admit(
        &self,
        stream: &Stream,
        origin: ConnectionOrigin,
        guest: &Guest,
    ) -> Result<Admitted, HandshakeError> {
        let hello = &guest.hello;
        let key: FenceKey = (hello.role as u8, hello.level, hello.session, hello.from_server);
        let older = self.fences.borrow().get(&key).copied();
        if let Some(older) = older.and_then(|id| self.connections.borrow().get(&id).cloned()) {
            older.close();
            self.forget(&older);
        }
        if hello.role.is_tunnel() {
            return self.admit_tunnel(guest, key).await.map(Admitted::Tunnel);
        }
        let is_relayed = origin == ConnectionOrigin::Relay;
        let full = if is_relayed { self.has_all_relayed() } else { self.is_full(hello.role) };
        let mut peer = Peer {
            connection: self.next_connection.replace(self.next_connection.get() + 1),
            role: hello.role,
            level: hello.level,
            session: hello.session,
            from_server: hello.from_server,
            user: hello.user.clone(),
            label: Rc::new(hello.label.clone()),
            tag: Cell::new(0),
            mapping_lock: None,
            hazards: None,
            counters: None,
            queue: None,
        };
        let known = if self.is_foreign(hello, origin) {
            Err(Status::NotLocal)
        } else if full || self.closed.get() {
            Err(if full { Status::TooManyConnections } else { Status::Draining })
        } else {
            self.service.connected(&peer, hello.welcomes)
        };
        let session_known = match known {
            Ok(known) => known,
            Err(status) => return Err(self.refuse(guest, status).await?),
        };
        if hello.role == Role::Client {
            self.share(stream, &mut peer);
        }
        if hello.role.is_client() {
            peer.counters = stream.counters();
        }
        stream.prepare();
        if peer.hazards.is_some() || peer.counters.is_some() {
            self.service.shared(&peer);
        }
        let connection = Rc::new(Connection::new(peer, stream.clone(), &guest.stream, is_relayed));
        self.count(&connection, true);
        self.fences.borrow_mut().insert(key, connection.peer.connection);
        self.connections.borrow_mut().insert(connection.peer.connection, connection.clone());
        let admitting = Admitting { serving: self, connection: Some(connection) };
        guest.welcome(&self.welcome(session_known)).await?;
        Ok(Admitted::Connection(admitting.done()))
    }

    /// Whether no more connections of a role are taken, apart from those that come through others.
    fn is_full(&self, role: Role) -> bool {
        let held = self.connections.borrow().len() - self.relayed.get() + self.tunnels.borrow().len();
        let is_kept_for = role.is_tunnel() || role == Role::Server;
        held >= self.options.connections_max
            || (!is_kept_for && self.of_clients.get() + self.options.kept() >= self.options.connections_max)
    }

    fn count(&self, connection: &Connection, is_new: bool) {
        let counter = match (connection.is_relayed, connection.peer.role) {
            (true, _) => &self.relayed,
            (false, Role::Server) => return,
            _ => &self.of_clients,
        };
        counter.set(if is_new { counter.get() + 1 } else { counter.get() - 1 });
    }

    fn has_all_relayed(&self) -> bool {
        self.relayed.get() >= self.options.connections_max
    }

    fn welcome(&self, session_known: bool) -> Welcome {
        Welcome {
            status: Status::Ok as u32,
            request_window: REQUEST_WINDOW,
            bytes_window: BYTES_WINDOW,
            session_known,
            incarnation: self.options.incarnation,
            working_interval_ms: (self.options.working_interval / 1_000_000) as u32,
            places_before: 0,
            turns: self.queue.borrow().turns(),
        }
    }

    /// Lends what is to be lent, before the welcome; notes what pages may be registered through, what the peer holds,
    /// and where it submits.
    fn share(&self, stream: &Stream, peer: &mut Peer) {
        let Some(region) = &self.options.shared else { return };
        let pages = if self.options.registers_buffers { region.mapping_lock().ok() } else { None };
        let shared = SharedStore { pages, submissions: region.submissions().mapping_lock().ok() };
        if !stream.share(region, &shared) {
            return;
        }
        peer.mapping_lock = shared.pages.map(Borrowing);
        peer.hazards = stream.hazards().map(Hazards);
        peer.queue =
            shared.submissions.and_then(|submissions| region.submissions().open_queue(peer.session, &submissions));
    }

    /// Takes a connection off the books, once.
    fn forget(&self, connection: &Rc<Connection>) {
        let peer = &connection.peer;
        if self.connections.borrow_mut().remove(&peer.connection).is_none() {
            return;
        }
        self.count(connection, false);
        self.queue.borrow_mut().wake_first();
        if let (Some(queue), Some(region)) = (peer.queue, &self.options.shared) {
            region.submissions().close_queue(queue);
        }
        let key: FenceKey = (peer.role as u8, peer.level, peer.session, peer.from_server);
        if self.fences.borrow().get(&key) == Some(&peer.connection) {
            self.fences.borrow_mut().remove(&key);
        }
        let link = connection.link.borrow();
        self.bytes_received.set(self.bytes_received.get() + link.bytes_received);
        self.bytes_sent.set(self.bytes_sent.get() + link.bytes_sent);
        drop(link);
        self.requests_held.set(self.requests_held.get() - connection.state.borrow_mut().held.drain(..).count());
        self.service.disconnected(peer);
        if connection.state.borrow().has_ended {
            self.service.session_ended(peer);
        }
    }

    fn wake_watcher(&self) {
        if let Some(waker) = self.watcher.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// A connection that is on the books and was not told so: it ends unless that is done, also where the time for it is
/// up.
struct Admitting<'s> {
    serving: &'s Serving,
    connection: Option<Rc<Connection>>,
}

impl Admitting<'_> {
    fn done(mut self) -> Rc<Connection> {
        self.connection.take().unwrap_or_else(|| unreachable!("it is done once"))
    }
}

impl Drop for Admitting<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close();
            self.serving.forget(&connection);
        }
    }
}

/// Sends signs of life for requests that take long, and closes connections whose sender stalls within a body.
async fn watch(serving: Rc<Serving>) {
    while !serving.closed.get() {
        poll_fn(|cx| {
            if serving.requests_held.get() > 0 || serving.closed.get() {
                return Poll::Ready(());
            }
            *serving.watcher.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        serving.reactor.sleep(serving.options.working_interval).await;
        let now = serving.reactor.now();
        let mut connections: Vec<_> = serving.connections.borrow().values().cloned().collect();
        connections.sort_by_key(|connection| connection.peer.connection);
        for connection in connections {
            connection.show_life(now, serving.options.working_interval);
        }
    }
}
