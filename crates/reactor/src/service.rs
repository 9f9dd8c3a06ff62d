//! The serving side of the message layer: accepts connections, authenticates them, hands requests to a `Service` and
//! sends its replies.
//!
//! Invariants:
//! 1. A connection holds at most `REQUEST_WINDOW` requests, `PARAMS_HELD_MAX` bytes of their parameters (plus one
//!    block) and `REPLIES_HELD_MAX` bytes of replies (plus one); beyond these it is not read, so the sender waits.
//! 2. Every request gets exactly one reply, or its connection is closed.
//! 3. A newer connection of the same session and level closes the older one before the service hears of it.
//! 4. Nothing is borrowed while the service runs.

use crate::handshake::{HandshakeError, examine, refusal, send_welcome};
use crate::link::{Link, LinkError, RECEIVE_BUFFER_SIZE_MAX, RawSlice, ReplyBody};
use crate::{Class, Listener, Nanos, Reactor, Span, Stream};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use wire::handshake::{Role, Welcome};
use wire::limits::{BYTES_WINDOW, PARAMS_SIZE_MAX, REQUEST_WINDOW};
use wire::messages::ErrorDetail;
use wire::{Cluster, Encode, FileId, FrameKind, Header, Operation, Status};

/// Parameters of requests that a connection may hold before it is paused, in bytes.
const PARAMS_HELD_MAX: usize = 64 * 1024;
/// Replies that a connection may hold because the peer does not read, in bytes.
const REPLIES_HELD_MAX: usize = 256 * 1024;
/// Frames handled before other tasks get their turn.
const FRAMES_PER_TURN: usize = 32;
/// A handshake takes at most this long.
const HANDSHAKE_NS: Nanos = 10_000_000_000;
/// Connections that may be in their handshake beyond `connections_max`.
const STRANGERS_MAX: usize = 64;

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
    pub uid: u32,
    pub gid: u32,
}

/// What a server does with requests.
pub trait Service: 'static {
    /// A peer has proved itself. Answers whether its session is known here; with `resume` false a new one begins.
    /// An error refuses the connection.
    fn connected(&self, peer: &Peer, resume: bool) -> Result<bool, Status>;
    fn disconnected(&self, peer: &Peer);
    /// A request whose header and parameters are here. Its body, if any, waits until it is received or the reply is
    /// given; until then nothing more is read from that connection.
    fn request(self: Rc<Self>, incoming: Incoming);
}

pub struct ServeOptions {
    pub cluster: Rc<Cluster>,
    /// This server's index.
    pub server: u32,
    pub connections_max: usize,
    /// Changes with every start.
    pub incarnation: u64,
    /// Time within which a request that is still held shows a sign of life.
    pub working_interval: Nanos,
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
    next_connection: Cell<u64>,
    strangers: Cell<usize>,
    refused: Cell<u64>,
    closed: Cell<bool>,
    requests_held: Cell<usize>,
    watcher: RefCell<Option<Waker>>,
    bytes_received: Cell<u64>,
    bytes_sent: Cell<u64>,
}

/// Counters of the serving side.
#[derive(Debug, Clone, Copy, Default)]
pub struct ServeStatistics {
    pub connections: usize,
    pub connections_refused: u64,
    pub bytes_received: u64,
    pub bytes_sent: u64,
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
        next_connection: Cell::new(1),
        strangers: Cell::new(0),
        refused: Cell::new(0),
        closed: Cell::new(false),
        requests_held: Cell::new(0),
        watcher: RefCell::default(),
        bytes_received: Cell::new(0),
        bytes_sent: Cell::new(0),
    });
    reactor.spawn(Class::Metadata, accept_all(serving.clone(), listener));
    reactor.spawn(Class::Metadata, watch(serving.clone()));
    ServerHandle(serving)
}

impl ServerHandle {
    /// Stops accepting and closes all connections.
    pub fn close(&self) {
        self.0.closed.set(true);
        let connections: Vec<_> = self.0.connections.borrow().values().cloned().collect();
        for connection in connections {
            connection.close();
        }
        self.0.wake_watcher();
    }

    /// The most memory that all connections together may hold, in bytes.
    pub fn memory_max(&self) -> u64 {
        let per_connection = RECEIVE_BUFFER_SIZE_MAX + PARAMS_HELD_MAX + PARAMS_SIZE_MAX + 2 * REPLIES_HELD_MAX + 8192;
        ((self.0.options.connections_max + STRANGERS_MAX) * per_connection) as u64
    }

    pub fn statistics(&self) -> ServeStatistics {
        let mut statistics = ServeStatistics {
            connections: self.0.connections.borrow().len(),
            connections_refused: self.0.refused.get(),
            bytes_received: self.0.bytes_received.get(),
            bytes_sent: self.0.bytes_sent.get(),
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

async fn accept_all(serving: Rc<Serving>, listener: Listener) {
    while !serving.closed.get() {
        match listener.accept().await {
            Ok((stream, _)) if serving.strangers.get() < STRANGERS_MAX => {
                serving.strangers.set(serving.strangers.get() + 1);
                serving.reactor.spawn(Class::Metadata, welcome(serving.clone(), stream));
            }
            Ok(_) => serving.refused.set(serving.refused.get() + 1),
            // Out of descriptors, most likely: others will be closed.
            Err(_) => serving.reactor.sleep(100_000_000).await,
        }
    }
}

/// One connection from its first byte to its last.
async fn welcome(serving: Rc<Serving>, stream: Stream) {
    let outcome = {
        let limit = serving.reactor.now() + HANDSHAKE_NS;
        let handshake = std::pin::pin!(serving.admit(&stream));
        within(&serving.reactor, limit, handshake).await
    };
    serving.strangers.set(serving.strangers.get() - 1);
    match outcome {
        Some(Ok(connection)) => {
            connection.run(&serving).await;
            serving.forget(&connection);
        }
        Some(Err(HandshakeError::Refused(..))) => {
            serving.refused.set(serving.refused.get() + 1);
            hang_up(&serving.reactor, &stream).await;
        }
        Some(Err(HandshakeError::Broken(_))) | None => serving.refused.set(serving.refused.get() + 1),
    }
}

/// Reads on for a moment, so that the peer gets our last words instead of a reset.
async fn hang_up(reactor: &Reactor, stream: &Stream) {
    let drain = async {
        let mut scratch = [0; 1024];
        while stream.recv(&mut scratch).await.is_ok_and(|received| received > 0) {}
    };
    within(reactor, reactor.now() + 1_000_000_000, std::pin::pin!(drain)).await;
}

/// The future's output, or `None` past the deadline.
pub(crate) async fn within<T>(
    reactor: &Reactor,
    deadline: Nanos,
    mut future: std::pin::Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let mut sleep = std::pin::pin!(reactor.sleep_until(deadline));
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        sleep.as_mut().poll(cx).map(|()| None)
    })
    .await
}

impl Serving {
    async fn admit(&self, stream: &Stream) -> Result<Rc<Connection>, HandshakeError> {
        let options = &self.options;
        let hello = examine(&self.reactor, stream, &options.cluster, options.server).await?;
        let key: FenceKey = (hello.role as u8, hello.level, hello.session, hello.from_server);
        let older = self.fences.borrow().get(&key).copied();
        if let Some(older) = older.and_then(|id| self.connections.borrow().get(&id).cloned()) {
            older.close();
            self.forget(&older);
        }
        let full = self.connections.borrow().len() >= options.connections_max;
        let peer = Peer {
            connection: self.next_connection.replace(self.next_connection.get() + 1),
            role: hello.role,
            level: hello.level,
            session: hello.session,
            from_server: hello.from_server,
            uid: hello.uid,
            gid: hello.gid,
        };
        let known = if full || self.closed.get() {
            Err(if full { Status::TooManyConnections } else { Status::Draining })
        } else {
            self.service.connected(&peer, hello.resume)
        };
        let session_known = match known {
            Ok(known) => known,
            Err(status) => {
                send_welcome(stream, &refusal(status)).await?;
                return Err(HandshakeError::Refused(status, "the connection was refused"));
            }
        };
        let connection = Rc::new(Connection::new(peer, stream.clone()));
        self.fences.borrow_mut().insert(key, connection.peer.connection);
        self.connections.borrow_mut().insert(connection.peer.connection, connection.clone());
        let welcome = Welcome {
            status: Status::Ok as u32,
            request_window: REQUEST_WINDOW,
            bytes_window: BYTES_WINDOW,
            session_known,
            incarnation: options.incarnation,
            working_interval_ms: (options.working_interval / 1_000_000) as u32,
        };
        if let Err(error) = send_welcome(stream, &welcome).await {
            connection.close();
            self.forget(&connection);
            return Err(error.into());
        }
        Ok(connection)
    }

    /// Takes a connection off the books, once.
    fn forget(&self, connection: &Rc<Connection>) {
        let peer = &connection.peer;
        if self.connections.borrow_mut().remove(&peer.connection).is_none() {
            return;
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
    }

    fn wake_watcher(&self) {
        if let Some(waker) = self.watcher.borrow_mut().take() {
            waker.wake();
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

/// Where a connection stands with the stream of incoming bytes.
enum Receiving {
    /// Between frames.
    Head,
    /// The body of this call waits for its place.
    Waiting {
        call_id: u64,
        size: usize,
    },
    Body {
        call_id: u64,
        places: Vec<RawSlice>,
        _keep: Vec<Span>,
        received: usize,
        since: Nanos,
    },
    Discard {
        left: usize,
    },
}

struct Held {
    call_id: u64,
    params_size: usize,
    arrived: Nanos,
}

struct ConnectionState {
    receiving: Receiving,
    held: Vec<Held>,
    params_held: usize,
    replies_held: Rc<Cell<usize>>,
    body_waker: Option<Waker>,
    /// While the driving task runs, replies wait for its end to travel together.
    corked: bool,
    /// Replies go out, then the connection is closed.
    closing: bool,
    closed: bool,
}

struct Connection {
    peer: Rc<Peer>,
    stream: Stream,
    link: RefCell<Link>,
    state: RefCell<ConnectionState>,
}

/// Counts a reply's bytes while it is queued.
struct ReplyHeld(Rc<Cell<usize>>, usize, #[allow(dead_code)] ReplyBody);

impl Drop for ReplyHeld {
    fn drop(&mut self) {
        self.0.set(self.0.get() - self.1);
    }
}

enum Step {
    Request(Header, Vec<u8>),
    Progress,
    Wait,
}

impl Connection {
    fn new(peer: Peer, stream: Stream) -> Connection {
        Connection {
            peer: Rc::new(peer),
            link: RefCell::new(Link::new(stream.clone())),
            stream,
            state: RefCell::new(ConnectionState {
                receiving: Receiving::Head,
                held: Vec::new(),
                params_held: 0,
                replies_held: Rc::default(),
                body_waker: None,
                corked: false,
                closing: false,
                closed: false,
            }),
        }
    }

    async fn run(self: &Rc<Self>, serving: &Rc<Serving>) {
        let last_words = poll_fn(|cx| {
            self.link.borrow_mut().set_waker(cx.waker());
            self.state.borrow_mut().corked = true;
            let end = self.advance(serving, cx.waker());
            self.state.borrow_mut().corked = false;
            match (end, self.flush()) {
                (Err(LinkError::Protocol(status, words)), _) => Poll::Ready(Some((status, words))),
                (Err(LinkError::Broken(_)), _) | (_, Err(_)) => Poll::Ready(None),
                (Ok(()), Ok(true)) if self.is_finished() => Poll::Ready(None),
                _ if self.state.borrow().closed => Poll::Ready(None),
                _ => Poll::Pending,
            }
        })
        .await;
        if let Some((status, words)) = last_words {
            self.say_goodbye(status, words);
            hang_up(&serving.reactor, &self.stream).await;
        } else if self.state.borrow().closing {
            hang_up(&serving.reactor, &self.stream).await;
        }
        self.close();
    }

    fn is_finished(&self) -> bool {
        self.state.borrow().closing
    }

    fn flush(&self) -> Result<bool, LinkError> {
        self.link.borrow_mut().flush()
    }

    /// Handles what has arrived.
    fn advance(self: &Rc<Self>, serving: &Rc<Serving>, waker: &Waker) -> Result<(), LinkError> {
        for _ in 0..FRAMES_PER_TURN {
            let step = self.step()?;
            match step {
                Step::Wait => return Ok(()),
                Step::Progress => {}
                Step::Request(header, params) => {
                    let incoming = self.take_request(serving, header, params)?;
                    serving.service.clone().request(incoming);
                }
            }
        }
        waker.wake_by_ref();
        Ok(())
    }

    fn step(&self) -> Result<Step, LinkError> {
        let mut state = self.state.borrow_mut();
        let mut link = self.link.borrow_mut();
        if state.closed || state.closing {
            return Ok(Step::Wait);
        }
        let done = match &mut state.receiving {
            Receiving::Waiting { .. } => return Ok(Step::Wait),
            Receiving::Body { places, received, .. } => link.receive_body(places, received)?,
            Receiving::Discard { left } => link.discard_body(left)?,
            Receiving::Head => {
                if state.params_held > PARAMS_HELD_MAX || state.replies_held.get() > REPLIES_HELD_MAX {
                    return Ok(Step::Wait);
                }
                return Ok(match link.next_frame()? {
                    Some((header, params)) => Step::Request(header, params),
                    None => Step::Wait,
                });
            }
        };
        if !done {
            return Ok(Step::Wait);
        }
        state.receiving = Receiving::Head;
        if let Some(waker) = state.body_waker.take() {
            waker.wake();
        }
        Ok(Step::Progress)
    }

    fn take_request(
        self: &Rc<Self>,
        serving: &Rc<Serving>,
        header: Header,
        params: Vec<u8>,
    ) -> Result<Incoming, LinkError> {
        let protocol = |status, words| Err(LinkError::Protocol(status, words));
        if header.kind != FrameKind::Request {
            return protocol(Status::BadMessage, "only requests are expected in this direction");
        }
        let Some(operation) = Operation::from_code(header.operation) else {
            return protocol(Status::UnknownOperation, "operation is not known");
        };
        if header.level != self.peer.level || operation.level() != self.peer.level {
            return protocol(Status::BadMessage, "operation does not belong to this connection's call level");
        }
        if operation.is_mutating() != (header.session_sequence != 0) {
            return protocol(Status::BadMessage, "session sequence does not fit the operation");
        }
        let mut state = self.state.borrow_mut();
        if state.held.len() >= REQUEST_WINDOW as usize {
            return protocol(Status::WindowExceeded, "more requests than the window allows");
        }
        if state.held.iter().any(|held| held.call_id == header.call_id) {
            return protocol(Status::BadMessage, "call id is in use");
        }
        let arrived = serving.reactor.now();
        state.held.push(Held { call_id: header.call_id, params_size: params.len(), arrived });
        state.params_held += params.len();
        serving.requests_held.set(serving.requests_held.get() + 1);
        serving.wake_watcher();
        if header.body_size > 0 {
            state.receiving = Receiving::Waiting { call_id: header.call_id, size: header.body_size as usize };
        }
        Ok(Incoming {
            header,
            operation,
            params,
            peer: self.peer.clone(),
            arrived,
            connection: self.clone(),
            serving: serving.clone(),
            answered: false,
        })
    }

    /// Sends a reply, unless the connection is gone.
    fn respond(&self, serving: &Serving, mut header: Header, params: &[u8], body: ReplyBody, close: bool) {
        let mut state = self.state.borrow_mut();
        let Some(index) = state.held.iter().position(|held| held.call_id == header.call_id) else {
            return;
        };
        let held = state.held.swap_remove(index);
        serving.requests_held.set(serving.requests_held.get() - 1);
        let was_paused = state.params_held > PARAMS_HELD_MAX;
        state.params_held -= held.params_size;
        let left = match &state.receiving {
            Receiving::Waiting { call_id, size } if *call_id == header.call_id => Some(*size),
            Receiving::Body { call_id, places, received, .. } if *call_id == header.call_id => {
                Some(places.iter().map(|place| place.size).sum::<usize>() - received)
            }
            _ => None,
        };
        if let Some(left) = left {
            state.receiving = Receiving::Discard { left };
        }
        if state.closed {
            return;
        }
        state.closing |= close;
        header.level = self.peer.level;
        let slices = body.slices();
        let owned = owned_size(&body) + params.len();
        state.replies_held.set(state.replies_held.get() + owned);
        let keep = ReplyHeld(state.replies_held.clone(), owned, body);
        let mut link = self.link.borrow_mut();
        link.enqueue(header, params, slices, 0, Some(Box::new(keep)));
        if state.corked {
            return;
        }
        // An error shows again when the driving task meets it.
        let drained = link.flush().unwrap_or(false);
        if !drained || left.is_some() || was_paused || close {
            link.wake();
        }
    }

    fn show_life(&self, now: Nanos, interval: Nanos) {
        let mut state = self.state.borrow_mut();
        if state.closed {
            return;
        }
        let stalled = match &mut state.receiving {
            Receiving::Body { received, since, places, .. } => {
                let total: usize = places.iter().map(|place| place.size).sum();
                // The place shrinks the time that a sender may be silent to ten signs of life.
                *received < total && now.saturating_sub(*since) > 10 * interval.max(1_000_000_000)
            }
            _ => false,
        };
        if stalled {
            drop(state);
            self.close();
            return;
        }
        let ids: Vec<u64> = state
            .held
            .iter()
            .filter(|held| now.saturating_sub(held.arrived) >= interval)
            .map(|held| held.call_id)
            .collect();
        let paused = !matches!(state.receiving, Receiving::Head)
            || state.params_held > PARAMS_HELD_MAX
            || state.replies_held.get() > REPLIES_HELD_MAX;
        let mut link = self.link.borrow_mut();
        // A peer that does not read its replies needs no further news.
        if (ids.is_empty() && !paused) || link.has_queued() {
            return;
        }
        let mut header = Header::new(FrameKind::Working, u16::from(paused));
        header.level = self.peer.level;
        link.enqueue(header, &ids.to_bytes(), Vec::new(), 0, None);
        if !matches!(link.flush(), Ok(true)) {
            link.wake();
        }
    }

    fn say_goodbye(&self, status: Status, words: &str) {
        let mut header = Header::new(FrameKind::Goodbye, 0);
        header.level = self.peer.level;
        header.status = status as u32;
        let detail = ErrorDetail { id: FileId(0), text: words.as_bytes() };
        let mut link = self.link.borrow_mut();
        link.enqueue(header, &detail.to_bytes(), Vec::new(), 0, None);
        // The connection ends here either way.
        let _ = link.flush();
    }

    fn close(&self) {
        let mut state = self.state.borrow_mut();
        if state.closed {
            return;
        }
        state.closed = true;
        state.receiving = Receiving::Head;
        if let Some(waker) = state.body_waker.take() {
            waker.wake();
        }
        let mut link = self.link.borrow_mut();
        link.shutdown();
        link.wake();
    }
}

/// Bytes of a body that the reply itself holds in memory.
fn owned_size(body: &ReplyBody) -> usize {
    body.pieces
        .iter()
        .map(|piece| match piece {
            crate::link::BodyPiece::Bytes(bytes) => bytes.len(),
            _ => 64,
        })
        .sum()
}

/// A request on its way through the server. Dropped without a reply it answers `Io`.
pub struct Incoming {
    pub header: Header,
    pub operation: Operation,
    pub params: Vec<u8>,
    pub peer: Rc<Peer>,
    /// When the header was read.
    pub arrived: Nanos,
    connection: Rc<Connection>,
    serving: Rc<Serving>,
    answered: bool,
}

impl Incoming {
    /// Bytes of the request's body.
    pub fn body_size(&self) -> usize {
        self.header.body_size as usize
    }

    /// When the caller stops waiting.
    pub fn deadline(&self) -> Nanos {
        self.arrived + Nanos::from(self.header.remaining_ms) * 1_000_000
    }

    /// Whether the caller has stopped waiting.
    pub fn expired(&self, now: Nanos) -> bool {
        now > self.deadline()
    }

    /// Whether the reply can still reach the caller on this connection.
    pub fn is_connected(&self) -> bool {
        !self.connection.state.borrow().closed
    }

    /// Receives the body straight into `places`, whose sizes must add up to the body's. Panics when they don't.
    pub async fn receive_body(&mut self, places: &[Span]) -> Result<(), Disconnected> {
        let call_id = self.header.call_id;
        let total: u64 = places.iter().map(|place| place.size).sum();
        assert_eq!(total, u64::from(self.header.body_size));
        if total == 0 {
            return Ok(());
        }
        let connection = self.connection.clone();
        {
            let mut state = connection.state.borrow_mut();
            match state.receiving {
                Receiving::Waiting { call_id: waiting, .. } if waiting == call_id && !state.closed => {}
                _ => return Err(Disconnected),
            }
            state.receiving = Receiving::Body {
                call_id,
                places: places.iter().map(RawSlice::of_span).collect(),
                _keep: places.to_vec(),
                received: 0,
                since: self.serving.reactor.now(),
            };
        }
        let _guard = BodyGuard { connection: &connection, call_id };
        poll_fn(|cx| connection.poll_body(call_id, cx.waker())).await?;
        for place in places {
            place.region.note_received(place.offset, place.size);
        }
        Ok(())
    }

    /// Answers `Ok` with these parameters.
    pub fn reply(self, params: &impl Encode) {
        self.reply_encoded(&params.to_bytes());
    }

    pub fn reply_encoded(self, params: &[u8]) {
        self.answer(Status::Ok, params, ReplyBody::default());
    }

    pub fn reply_with_body(self, params: &impl Encode, body: ReplyBody) {
        self.answer(Status::Ok, &params.to_bytes(), body);
    }

    /// Answers a failure. `text` is for people; `id` says which directory or file is stale. A request that no correct
    /// peer sends also ends the connection.
    pub fn fail(self, status: Status, id: FileId, text: &[u8]) {
        assert_ne!(status, Status::Ok);
        let detail = ErrorDetail { id, text };
        self.answer(status, &detail.to_bytes(), ReplyBody::default());
    }

    /// Answers with an encoded reply of any status, such as a kept outcome.
    pub fn answer(mut self, status: Status, params: &[u8], body: ReplyBody) {
        self.send(status, params, body);
    }

    fn send(&mut self, status: Status, params: &[u8], body: ReplyBody) {
        self.answered = true;
        let mut header = Header::new(FrameKind::Reply, self.header.operation);
        header.call_id = self.header.call_id;
        header.status = status as u32;
        let close = matches!(status, Status::BadMessage | Status::WrongServer | Status::UnknownOperation);
        self.connection.respond(&self.serving, header, params, body, close);
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.answered {
            let detail = ErrorDetail { id: FileId(0), text: b"the server dropped the request" };
            self.send(Status::Io, &detail.to_bytes(), ReplyBody::default());
        }
    }
}

impl Connection {
    fn poll_body(&self, call_id: u64, waker: &Waker) -> Poll<Result<(), Disconnected>> {
        let mut state = self.state.borrow_mut();
        if state.closed {
            return Poll::Ready(Err(Disconnected));
        }
        let Receiving::Body { call_id: receiving, places, received, since: _, .. } = &mut state.receiving else {
            return Poll::Ready(Ok(()));
        };
        if *receiving != call_id {
            return Poll::Ready(Ok(()));
        }
        let mut link = self.link.borrow_mut();
        match link.receive_body(places, received) {
            Ok(true) => {
                state.receiving = Receiving::Head;
                // More frames may be in the buffer already.
                link.wake();
                Poll::Ready(Ok(()))
            }
            Ok(false) => {
                state.body_waker = Some(waker.clone());
                Poll::Pending
            }
            // The driving task meets the same error and closes the connection.
            Err(_) => {
                link.wake();
                Poll::Ready(Err(Disconnected))
            }
        }
    }
}

/// Takes the places back when the handler goes away in the middle of a body.
struct BodyGuard<'a> {
    connection: &'a Connection,
    call_id: u64,
}

impl Drop for BodyGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.connection.state.borrow_mut();
        if let Receiving::Body { call_id, places, received, .. } = &state.receiving
            && *call_id == self.call_id
        {
            let left = places.iter().map(|place| place.size).sum::<usize>() - received;
            state.receiving = Receiving::Discard { left };
            self.connection.link.borrow().wake();
        }
    }
}
