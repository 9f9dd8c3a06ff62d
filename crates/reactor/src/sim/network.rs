//! The simulated network: TCP-like connections with latency, bounded buffers, and faults.
//!
//! Invariants
//! 1. What arrives at one end of a connection arrives in the order in which it was sent; connections overtake each
//!    other.
//! 2. `in_flight` of an end is the sum of the bytes that were sent to it and have not arrived; together with what
//!    arrived and was not read it never exceeds the buffer size.
//! 3. A partition delays what is on its way, and what is sent meanwhile; nothing is lost unless the connection breaks.
//!    A black hole does so with all but the begin of large pieces, and what comes behind them over the same connection.

use super::model::CostModel;
use super::socket::{SimListener, SimSocket};
use super::world::{CrashKind, NodeId, Universe, World};
use crate::Nanos;
use crate::hazard_pointers::HazardPointers;
use crate::short_circuit::StoreMapping;
use crate::stream::{Listener, Readiness, Stream};
use shm::client_counters::ClientCounters;
use shm::mapping::Mapped;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Waker;

/// What travels to one end of a connection.
pub(super) enum Arrival {
    Accepted,
    Refused,
    Bytes(Vec<u8>),
    Finish,
    Reset,
    /// The other end has read: there is room to send again.
    Room,
}

enum NetworkEvent {
    Connect { connection: u64 },
    Arrive { connection: u64, end: usize, arrival: Arrival },
    Wake(NodeId, Waker),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EndState {
    /// The side that is connected to, before the request has arrived there.
    Unborn,
    Connecting,
    Open,
    /// Closed by its program, or by the end of its process.
    Closed,
    /// Its machine lost power: it is silent, and once the machine is back it answers with resets.
    Vanished,
}

pub(super) struct SimEnd {
    pub(super) node: Option<NodeId>,
    pub(super) address: SocketAddr,
    pub(super) state: EndState,
    pub(super) readiness: Rc<Readiness>,
    pub(super) received: VecDeque<u8>,
    pub(super) in_flight: usize,
    pub(super) last_arrival: Nanos,
    /// Arrivals that a partition holds back.
    pub(super) held: VecDeque<Arrival>,
    pub(super) finished: bool,
    pub(super) finish_sent: bool,
    pub(super) broken: Option<ErrorKind>,
    pub(super) wants_room: bool,
}

impl SimEnd {
    fn new(node: Option<NodeId>, address: SocketAddr, state: EndState) -> SimEnd {
        SimEnd {
            node,
            address,
            state,
            readiness: Readiness::new(),
            received: VecDeque::new(),
            in_flight: 0,
            last_arrival: 0,
            held: VecDeque::new(),
            finished: false,
            finish_sent: false,
            broken: None,
            wants_room: false,
        }
    }

    pub(super) fn is_alive(&self) -> bool {
        matches!(self.state, EndState::Connecting | EndState::Open)
    }

    fn break_with(&mut self, kind: ErrorKind) {
        self.broken.get_or_insert(kind);
        self.readiness.set_hung_up();
        self.readiness.set_writable();
    }
}

pub(super) struct SimConnection {
    pub(super) ends: [SimEnd; 2],
    /// The first bytes that the caller sent, for somebody who listens in.
    pub(super) overheard: Vec<u8>,
    /// What the called end lends the caller.
    pub(super) shared: Option<Rc<StoreMapping>>,
    pub(super) hazards: Option<Rc<HazardPointers>>,
    pub(super) counters: Option<Mapped<ClientCounters>>,
    /// Nobody holds the caller's end: it is a connection that is repeated, and sends what it was overheard to say.
    is_repeated: bool,
}

impl SimConnection {
    fn new(ends: [SimEnd; 2]) -> SimConnection {
        let (overheard, is_repeated) = (Vec::new(), false);
        SimConnection { ends, overheard, shared: None, hazards: None, counters: None, is_repeated }
    }

    /// Notes what the caller sends.
    pub(super) fn overhear(&mut self, bytes: &[u8]) {
        let room = OVERHEARD_SIZE_MAX.saturating_sub(self.overheard.len()).min(bytes.len());
        self.overheard.extend_from_slice(&bytes[..room]);
    }
}

pub(super) struct Listening {
    pub(super) node: NodeId,
    pub(super) id: u64,
    pub(super) readiness: Rc<Readiness>,
    pub(super) queue: VecDeque<u64>,
}

#[derive(Clone, Copy, Default)]
struct SimLink {
    latency: Option<(Nanos, Nanos)>,
    parted: bool,
    /// Of larger pieces of bytes no more arrives.
    piece_size_max: Option<usize>,
}

impl SimLink {
    /// The part of a piece of bytes that gets through a black hole, and the one that does not.
    fn torn(&self, arrival: &Arrival) -> Option<(Arrival, Arrival)> {
        let (Arrival::Bytes(bytes), Some(size_max)) = (arrival, self.piece_size_max) else { return None };
        let (first, rest) = bytes.split_at_checked(size_max)?;
        (!rest.is_empty()).then(|| (Arrival::Bytes(first.to_vec()), Arrival::Bytes(rest.to_vec())))
    }
}

/// Connections that wait to be accepted at one listener; more are tried again later, as by a full backlog.
const BACKLOG: usize = 128;
/// A connection request that finds no machine is repeated after this long.
const CONNECT_AGAIN_NS: Nanos = 200_000_000;
/// Bytes of each connection that somebody who listens in may repeat.
const OVERHEARD_SIZE_MAX: usize = 64 << 10;
/// First port given to those who do not care.
const FIRST_PORT: u16 = 20_000;

/// The network of a world.
pub(crate) struct Network {
    events: BTreeMap<(Nanos, u64), NetworkEvent>,
    sequence: u64,
    pub(super) connections: BTreeMap<u64, SimConnection>,
    pub(super) listeners: BTreeMap<SocketAddr, Listening>,
    links: BTreeMap<(NodeId, NodeId), SimLink>,
    next_id: u64,
    next_port: u16,
    latency: (Nanos, Nanos),
    pub(super) buffer_size: usize,
    /// Pieces of bytes that were sent, and that arrived (moments.rs).
    pub(super) traffic: u64,
    flips: Flips,
    /// What the way from card to card takes, instead of latencies at random.
    pub(super) model: Option<CostModel>,
}

fn link_key(one: NodeId, other: NodeId) -> (NodeId, NodeId) {
    (one.min(other), one.max(other))
}

impl Network {
    pub fn new() -> Network {
        Network {
            events: BTreeMap::new(),
            sequence: 0,
            connections: BTreeMap::new(),
            listeners: BTreeMap::new(),
            links: BTreeMap::new(),
            next_id: 1,
            next_port: FIRST_PORT,
            latency: (3_000, 60_000),
            buffer_size: 256 << 10,
            traffic: 0,
            flips: Flips::default(),
            model: None,
        }
    }

    /// When the next event is due.
    pub fn next_event(&self) -> Option<Nanos> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    fn schedule(&mut self, at: Nanos, event: NetworkEvent) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }

    /// Wakes somebody on a node at a world time.
    pub fn wake_at(&mut self, at: Nanos, node: NodeId, waker: Waker) {
        self.schedule(at, NetworkEvent::Wake(node, waker));
    }

    fn link(&self, one: Option<NodeId>, other: Option<NodeId>) -> SimLink {
        let (Some(one), Some(other)) = (one, other) else { return SimLink::default() };
        self.links.get(&link_key(one, other)).copied().unwrap_or_default()
    }

    /// Sends something to an end of a connection; it arrives after the link's latency, in order.
    pub(super) fn send_to(&mut self, universe: &Universe, id: u64, end: usize, arrival: Arrival) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(model) = &self.model {
            self.traffic += u64::from(matches!(arrival, Arrival::Bytes(_)));
            let at = model.arrival_time(universe, connection, end, &arrival);
            self.schedule(at, NetworkEvent::Arrive { connection: id, end, arrival });
            return;
        }
        let ends = [connection.ends[0].node, connection.ends[1].node];
        let link = self.link(ends[0], ends[1]);
        let (least, most) = link.latency.unwrap_or(self.latency);
        // Mostly near the least, with a long tail: the smallest of three draws.
        let extra = (0..3).map(|_| universe.below(most - least + 1)).min().unwrap_or(0);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        self.traffic += u64::from(matches!(arrival, Arrival::Bytes(_)));
        let target = &mut connection.ends[end];
        let at = (universe.time.get() + least + extra).max(target.last_arrival);
        target.last_arrival = at;
        self.schedule(at, NetworkEvent::Arrive { connection: id, end, arrival });
    }

    /// Does everything that is due.
    pub fn deliver_due(universe: &Universe) {
        loop {
            let mut network = universe.network.borrow_mut();
            match network.events.first_entry() {
                Some(entry) if entry.key().0 <= universe.time.get() => {
                    let event = entry.remove();
                    network.handle(universe, event);
                }
                _ => return,
            }
        }
    }

    fn handle(&mut self, universe: &Universe, event: NetworkEvent) {
        match event {
            NetworkEvent::Wake(node, waker) => {
                universe.touch(Some(node));
                waker.wake();
            }
            NetworkEvent::Connect { connection } => self.connect_arrives(universe, connection),
            NetworkEvent::Arrive { connection: id, end, arrival } => {
                let Some(connection) = self.connections.get(&id) else { return };
                let link = self.link(connection.ends[0].node, connection.ends[1].node);
                let Some(connection) = self.connections.get_mut(&id) else { return };
                let target = &mut connection.ends[end];
                // A reset is a small packet of its own, which waits for nothing before it.
                let overtakes = matches!(arrival, Arrival::Reset) && !link.parted;
                if link.parted || !target.held.is_empty() && !overtakes {
                    target.held.push_back(arrival);
                } else if let Some((first, rest)) = link.torn(&arrival) {
                    target.held.push_back(rest);
                    self.arrives(universe, id, end, first);
                } else {
                    self.arrives(universe, id, end, arrival);
                }
            }
        }
    }

    fn arrives(&mut self, universe: &Universe, id: u64, end: usize, arrival: Arrival) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let target = &mut connection.ends[end];
        universe.touch(target.node);
        universe.trace(0x10 + end as u64, id);
        match target.state {
            EndState::Connecting | EndState::Open => {}
            EndState::Closed | EndState::Unborn => {
                if let Arrival::Bytes(bytes) = arrival {
                    target.in_flight -= bytes.len();
                    self.send_to(universe, id, 1 - end, Arrival::Reset);
                }
                return;
            }
            EndState::Vanished => {
                let back = target.node.is_some_and(|node| universe.node(node).host_up.get());
                if back && matches!(arrival, Arrival::Bytes(_)) {
                    self.send_to(universe, id, 1 - end, Arrival::Reset);
                }
                return;
            }
        }
        match arrival {
            Arrival::Accepted => {
                target.state = EndState::Open;
                target.readiness.set_writable();
            }
            Arrival::Refused => target.break_with(ErrorKind::ConnectionRefused),
            Arrival::Reset => target.break_with(ErrorKind::ConnectionReset),
            Arrival::Room => target.readiness.set_writable(),
            Arrival::Finish => {
                target.finished = true;
                target.readiness.set_hung_up();
            }
            // What comes behind a reset is lost, as what was on its way before it may be: it is not to fill that gap.
            Arrival::Bytes(bytes) if target.broken.is_some() => target.in_flight -= bytes.len(),
            // An answer to a repeated connection: nobody reads it.
            Arrival::Bytes(bytes) if end == 0 && connection.is_repeated => connection.ends[0].in_flight -= bytes.len(),
            Arrival::Bytes(mut bytes) => {
                self.flips.apply(universe, &mut bytes);
                universe.trace(0x12, u64::from(crc32c::crc32c(&bytes)));
                self.traffic += 1;
                target.in_flight -= bytes.len();
                target.received.extend(bytes);
                target.readiness.set_readable();
            }
        }
        let Some(connection) = self.connections.get(&id) else { return };
        let caller = &connection.ends[0];
        if connection.is_repeated && (caller.finished || caller.broken.is_some()) {
            self.close(universe, id, 0);
        }
    }

    fn connect_arrives(&mut self, universe: &Universe, id: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        let [caller, called] = &connection.ends;
        if caller.state != EndState::Connecting || caller.broken.is_some() {
            return;
        }
        universe.trace(0x20, id);
        let reachable = called.node.is_some_and(|node| universe.node(node).host_up.get())
            && !self.link(caller.node, called.node).parted;
        if !reachable {
            self.schedule(universe.time.get() + CONNECT_AGAIN_NS, NetworkEvent::Connect { connection: id });
            return;
        }
        let Some(listening) = self.listeners.get_mut(&called.address) else {
            self.send_to(universe, id, 0, Arrival::Refused);
            return;
        };
        if listening.queue.len() >= BACKLOG {
            self.schedule(universe.time.get() + CONNECT_AGAIN_NS, NetworkEvent::Connect { connection: id });
            return;
        }
        universe.touch(Some(listening.node));
        listening.queue.push_back(id);
        listening.readiness.set_readable();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.ends[1].state = EndState::Open;
        connection.ends[1].readiness.set_writable();
        let repeated = connection.is_repeated.then(|| std::mem::take(&mut connection.overheard));
        self.send_to(universe, id, 0, Arrival::Accepted);
        if let Some(bytes) = repeated
            && let Some(connection) = self.connections.get_mut(&id)
        {
            connection.ends[1].in_flight += bytes.len();
            self.send_to(universe, id, 1, Arrival::Bytes(bytes));
        }
    }

    /// Makes the same connection as an earlier one again, as somebody might who listened in. Nobody reads the answers.
    fn repeat(&mut self, universe: &Universe, id: u64) {
        let Some(earlier) = self.connections.get(&id) else { return };
        let overheard = earlier.overheard.clone();
        let [caller, called] = &earlier.ends;
        let (node, address) = (caller.node, caller.address);
        let ends = [
            SimEnd::new(node, address, EndState::Connecting),
            SimEnd::new(called.node, called.address, EndState::Unborn),
        ];
        let again = self.new_id();
        self.connections.insert(again, SimConnection { overheard, is_repeated: true, ..SimConnection::new(ends) });
        let at = universe.time.get() + universe.between(self.latency.0, self.latency.1);
        self.schedule(at, NetworkEvent::Connect { connection: again });
    }

    /// Starts a connection.
    pub fn connect(universe: &Rc<Universe>, from: NodeId, to: SocketAddr) -> io::Result<Stream> {
        let node = universe.node(from);
        let called = universe.nodes.borrow().iter().position(|node| node.ip == to.ip()).map(NodeId);
        let mut network = universe.network.borrow_mut();
        let id = network.new_id();
        let local = SocketAddr::new(node.ip, network.new_port());
        let caller = SimEnd::new(Some(from), local, EndState::Connecting);
        let readiness = caller.readiness.clone();
        network.connections.insert(id, SimConnection::new([caller, SimEnd::new(called, to, EndState::Unborn)]));
        if !node.frozen.get() {
            let (least, most) = network.link(Some(from), called).latency.unwrap_or(network.latency);
            let at = match &network.model {
                Some(model) => node.moment(universe) + model.latency_ns,
                None => universe.time.get() + universe.between(least, most),
            };
            network.schedule(at, NetworkEvent::Connect { connection: id });
        }
        drop(network);
        Ok(Stream::new(SimSocket { universe: universe.clone(), node: from, connection: id, end: 0 }, readiness))
    }

    /// Listens on an address of a node.
    pub fn listen(universe: &Rc<Universe>, id: NodeId, mut address: SocketAddr) -> io::Result<Listener> {
        let node = universe.node(id);
        if address.ip().is_unspecified() {
            address.set_ip(node.ip);
        }
        if address.ip() != node.ip {
            return Err(ErrorKind::AddrNotAvailable.into());
        }
        let mut network = universe.network.borrow_mut();
        if address.port() == 0 {
            address.set_port(network.new_port());
        }
        if network.listeners.contains_key(&address) {
            return Err(ErrorKind::AddrInUse.into());
        }
        let readiness = Readiness::new();
        let listener = network.new_id();
        network.listeners.insert(
            address,
            Listening { node: id, id: listener, readiness: readiness.clone(), queue: VecDeque::new() },
        );
        drop(network);
        Ok(Listener::new(SimListener { universe: universe.clone(), node: id, address, id: listener }, readiness))
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn new_port(&mut self) -> u16 {
        self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
        self.next_port
    }

    /// Loses what is on its way to an end, from a random point on.
    fn lose_in_flight(&mut self, universe: &Universe, id: u64, end: usize) {
        let mut arrivals = self.take_in_flight(id, end);
        let kept = universe.below(arrivals.len() as u64 + 1) as usize;
        let lost: usize = arrivals
            .drain(kept..)
            .map(|arrival| if let Arrival::Bytes(bytes) = arrival { bytes.len() } else { 0 })
            .sum();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.ends[end].in_flight -= lost;
        for arrival in arrivals {
            self.send_to(universe, id, end, arrival);
        }
    }

    /// Takes everything that is on its way to an end, in order, including what a partition holds.
    pub(super) fn take_in_flight(&mut self, id: u64, end: usize) -> Vec<Arrival> {
        let Some(connection) = self.connections.get_mut(&id) else { return Vec::new() };
        let mut arrivals: Vec<Arrival> = connection.ends[end].held.drain(..).collect();
        connection.ends[end].last_arrival = 0;
        let mine = |event: &NetworkEvent| {
            matches!(
                event,
                NetworkEvent::Arrive { connection, end: to, .. } if (*connection, *to) == (id, end)
            )
        };
        let keys: Vec<(Nanos, u64)> =
            self.events.iter().filter(|(_, event)| mine(event)).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(NetworkEvent::Arrive { arrival, .. }) = self.events.remove(&key) {
                arrivals.push(arrival);
            }
        }
        arrivals
    }

    /// Forgets a connection of which nobody holds an end any more.
    fn forget_if_dead(&mut self, id: u64) {
        if self.connections.get(&id).is_some_and(|connection| connection.ends.iter().all(|end| !end.is_alive())) {
            self.connections.remove(&id);
        }
    }

    pub(super) fn close(&mut self, universe: &Universe, id: u64, end: usize) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let closing = &mut connection.ends[end];
        if !closing.is_alive() {
            return;
        }
        universe.trace(0x30 + end as u64, id);
        let unread = !closing.received.is_empty();
        let silent = closing.broken.is_some() || closing.state == EndState::Connecting;
        let finish_sent = closing.finish_sent;
        closing.state = EndState::Closed;
        closing.received.clear();
        if !silent && unread {
            self.send_to(universe, id, 1 - end, Arrival::Reset);
        } else if !silent && !finish_sent {
            self.send_to(universe, id, 1 - end, Arrival::Finish);
        }
        self.forget_if_dead(id);
    }

    /// Ids of the connections between two nodes, or of one node with anybody.
    pub(super) fn connections_of(&self, one: NodeId, other: Option<NodeId>) -> Vec<u64> {
        let matches = |connection: &SimConnection| {
            let [caller, called] = [connection.ends[0].node, connection.ends[1].node];
            match other {
                Some(other) => {
                    (caller, called) == (Some(one), Some(other)) || (caller, called) == (Some(other), Some(one))
                }
                None => caller == Some(one) || called == Some(one),
            }
        };
        self.connections.iter().filter(|(_, connection)| matches(connection)).map(|(id, _)| *id).collect()
    }

    /// What becomes of a node's connections when it goes down.
    pub fn crash(universe: &Universe, node: NodeId, kind: CrashKind) {
        let mut network = universe.network.borrow_mut();
        network.listeners.retain(|_, listening| listening.node != node);
        for id in network.connections_of(node, None) {
            for end in 0..2 {
                network.crash_end(universe, node, id, end, kind);
            }
            network.forget_if_dead(id);
        }
    }

    fn crash_end(&mut self, universe: &Universe, node: NodeId, id: u64, end: usize, kind: CrashKind) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.ends[end].node != Some(node) || !connection.ends[end].is_alive() {
            return;
        }
        if kind == CrashKind::PowerLoss {
            connection.ends[end].state = EndState::Vanished;
            self.lose_in_flight(universe, id, 1 - end);
            let at = universe.time.get() + KEEPALIVE_NS;
            self.schedule(at, NetworkEvent::Arrive { connection: id, end: 1 - end, arrival: Arrival::Reset });
        } else if universe.below(2) == 0 {
            self.close(universe, id, end);
        } else {
            connection.ends[end].state = EndState::Closed;
            self.lose_in_flight(universe, id, 1 - end);
            self.send_to(universe, id, 1 - end, Arrival::Reset);
        }
    }

    /// A machine that is back answers what its earlier life left unanswered.
    pub fn restarted(universe: &Universe, node: NodeId) {
        let mut network = universe.network.borrow_mut();
        for id in network.connections_of(node, None) {
            for end in 0..2 {
                let Some(connection) = network.connections.get(&id) else { continue };
                let ended = &connection.ends[end];
                if ended.node == Some(node) && ended.state == EndState::Vanished && ended.in_flight > 0 {
                    network.send_to(universe, id, 1 - end, Arrival::Reset);
                }
            }
        }
    }
}

/// After this time without a sign of life from a machine the other one's kernel gives a connection up.
const KEEPALIVE_NS: Nanos = 60_000_000_000;

/// Bits that are going to change under way.
#[derive(Default)]
pub(super) struct Flips {
    count: u64,
    size_min: usize,
}

impl Flips {
    fn apply(&mut self, universe: &Universe, bytes: &mut [u8]) {
        if self.count > 0 && bytes.len() >= self.size_min {
            self.count -= 1;
            // The first half may be the head of a frame, which is checked by itself.
            let at = bytes.len() / 2 + universe.below((bytes.len() / 2) as u64) as usize;
            bytes[at] ^= 1 << universe.below(8);
        }
    }
}

impl World {
    /// Changes a bit in each of the next `count` pieces of at least `size_min` bytes that arrive anywhere: as a part of
    /// the network does whose own sums don't notice.
    pub fn flip_bits(&self, count: u64, size_min: usize) {
        assert!(size_min >= 2);
        self.universe.network.borrow_mut().flips = Flips { count, size_min };
    }

    /// Breaks all connections between two nodes: both sides see a reset, what is on its way is lost from a random point
    /// on.
    pub fn cut(&self, one: NodeId, other: NodeId) {
        let universe = &*self.universe;
        universe.trace(0x40, (one.0 as u64) << 32 | other.0 as u64);
        let mut network = universe.network.borrow_mut();
        for id in network.connections_of(one, Some(other)) {
            for end in 0..2 {
                network.lose_in_flight(universe, id, end);
                network.send_to(universe, id, end, Arrival::Reset);
            }
        }
    }

    /// Repeats a connection that one of two nodes has made to the other: everything that its caller said arrives once
    /// more, over a new connection. What was repeated is thrown away at the caller's side.
    pub fn repeat_connection(&self, one: NodeId, other: NodeId) {
        let universe = &*self.universe;
        let mut network = universe.network.borrow_mut();
        let mut ids = network.connections_of(one, Some(other));
        ids.retain(|id| network.connections.get(id).is_some_and(|connection| !connection.overheard.is_empty()));
        if ids.is_empty() {
            return;
        }
        let id = ids[universe.below(ids.len() as u64) as usize];
        universe.trace(0x43, id);
        network.repeat(universe, id);
    }

    /// Parts two nodes: what is sent between them does not arrive, and nobody is told, until `heal`.
    pub fn partition(&self, one: NodeId, other: NodeId) {
        self.universe.trace(0x41, (one.0 as u64) << 32 | other.0 as u64);
        self.universe.network.borrow_mut().links.entry(link_key(one, other)).or_default().parted = true;
    }

    /// Has no more than so many bytes of each piece that is sent between two nodes arrive, nor what comes behind it
    /// over the same connection, and nobody told, until `heal`: a black hole of path MTU discovery (RFC 2923).
    pub fn black_hole(&self, one: NodeId, other: NodeId, piece_size_max: usize) {
        self.universe.trace(0x44, (one.0 as u64) << 32 | other.0 as u64);
        let mut network = self.universe.network.borrow_mut();
        network.links.entry(link_key(one, other)).or_default().piece_size_max = Some(piece_size_max);
    }

    /// Joins two nodes again, and lets pieces of all sizes through.
    pub fn heal(&self, one: NodeId, other: NodeId) {
        let universe = &*self.universe;
        universe.trace(0x42, (one.0 as u64) << 32 | other.0 as u64);
        let mut network = universe.network.borrow_mut();
        let link = network.links.entry(link_key(one, other)).or_default();
        (link.parted, link.piece_size_max) = (false, None);
        for id in network.connections_of(one, Some(other)) {
            for end in 0..2 {
                for arrival in network.take_in_flight(id, end) {
                    network.send_to(universe, id, end, arrival);
                }
            }
        }
    }

    /// Joins all nodes again.
    pub fn heal_all(&self) {
        let is_harmed = |link: &SimLink| link.parted || link.piece_size_max.is_some();
        let harmed: Vec<(NodeId, NodeId)> = self
            .universe
            .network
            .borrow()
            .links
            .iter()
            .filter(|(_, link)| is_harmed(link))
            .map(|(key, _)| *key)
            .collect();
        for (one, other) in harmed {
            self.heal(one, other);
        }
    }

    /// Whether two nodes are parted.
    pub fn is_parted(&self, one: NodeId, other: NodeId) -> bool {
        self.universe.network.borrow().link(Some(one), Some(other)).parted
    }

    /// Sets the latency of messages between two nodes, or of all that have none of their own.
    pub fn set_latency(&self, between: Option<(NodeId, NodeId)>, least: Nanos, most: Nanos) {
        assert!(least <= most);
        let mut network = self.universe.network.borrow_mut();
        match between {
            Some((one, other)) => network.links.entry(link_key(one, other)).or_default().latency = Some((least, most)),
            None => network.latency = (least, most),
        }
    }

    /// Sets how many bytes one direction of a connection takes before its sender has to wait.
    pub fn set_socket_buffer(&self, size: usize) {
        assert!(size > 0);
        self.universe.network.borrow_mut().buffer_size = size;
    }

    /// Number of connections that somebody still holds an end of.
    pub fn connection_count(&self) -> usize {
        self.universe.network.borrow().connections.len()
    }
}
