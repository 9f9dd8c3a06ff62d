//! The calling side of the message layer: one server at one call level, through whatever happens to the connection.
//!
//! A call is put on the wire at once, waits for its reply, and is resent with the same session sequence when the
//! connection breaks; the server answers a repeated sequence from its kept outcome. Silence past the time-out is an
//! error that names the server.
//!
//! Invariants:
//! 1. At most `REQUEST_WINDOW` calls are outstanding; a call's slot in the table is its call id modulo the window.
//! 2. A session sequence is used once. All sequences up to `acknowledged` have their replies; none beyond
//!    `acknowledged + REQUEST_WINDOW` is given out.
//! 3. The memory of a call's body and place belongs to its `CallGuard`. When that goes away early, the place is
//!    revoked, and a body that is half sent takes the connection with it.
//! 4. A call that gave up (or never waited) keeps its slot until its reply has come or the connection has ended.

use crate::handshake::{HandshakeError, Introduction, introduce};
use crate::link::{Link, LinkError, RawSlice};
use crate::service::within;
use crate::{Class, Nanos, Reactor, Stream};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;
use std::task::{Poll, Waker};
use wire::handshake::{Role, Welcome};
use wire::limits::{BYTES_WINDOW, REQUEST_WINDOW};
use wire::messages::ErrorDetail;
use wire::{Cluster, Decode, Encode, FileId, FrameKind, Header, Operation, Status};

const WINDOW: usize = REQUEST_WINDOW as usize;
const FRAMES_PER_TURN: usize = 32;
/// First and longest pause between attempts to connect.
const PAUSE_NS_FIRST: Nanos = 5_000_000;
const PAUSE_NS_MAX: Nanos = 500_000_000;

/// Whom a channel speaks to, and as whom.
#[derive(Clone)]
pub struct ChannelOptions {
    pub cluster: Rc<Cluster>,
    /// The server to call.
    pub server: u32,
    pub role: Role,
    /// The caller's own index, when it is a server.
    pub from_server: u32,
    /// Call level of all calls on this channel.
    pub level: u8,
    pub session: u64,
    pub uid: u32,
    pub gid: u32,
    /// Silence after which a call fails.
    pub timeout: Nanos,
}

/// One request.
pub struct Call<'a> {
    pub operation: Operation,
    pub params: Vec<u8>,
    /// Bytes that travel with the request.
    pub body: &'a [IoSlice<'a>],
    /// Where the reply's body goes. Without one it is returned in `Reply::body`.
    pub place: Vec<IoSliceMut<'a>>,
    /// When the caller gives up whatever the server says; `None`: only silence counts.
    pub deadline: Option<Nanos>,
}

impl<'a> Call<'a> {
    /// A request without body and place.
    pub fn new(operation: Operation, params: &impl Encode) -> Call<'a> {
        Call { operation, params: params.to_bytes(), body: &[], place: Vec::new(), deadline: None }
    }
}

/// A successful reply.
#[derive(Debug, Default)]
pub struct Reply {
    pub params: Vec<u8>,
    /// Bytes of the body.
    pub body_size: usize,
    /// The body, where the call gave no place.
    pub body: Vec<u8>,
    pub tree_number: u64,
}

/// A call that did not succeed, in the server's words or our own.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub status: Status,
    /// The stale directory or file; else 0.
    pub id: FileId,
    /// The target of a symbolic link for `IsSymlink`; else words for people.
    pub text: Vec<u8>,
    pub server: u32,
    pub operation: Operation,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on server {}: {}", self.operation.name(), self.server, self.status)?;
        if !self.text.is_empty() && self.status != Status::IsSymlink {
            write!(f, " ({})", String::from_utf8_lossy(&self.text))?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Counters of one channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChannelStatistics {
    pub calls: u64,
    pub resends: u64,
    pub connects: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

/// A way to one server. Clones share it; with the last one the connection ends.
#[derive(Clone)]
pub struct Channel(Rc<Inner>, #[allow(dead_code)] Rc<Owner>);

/// Held by channels alone, not by the tasks that serve them.
struct Owner(std::rc::Weak<Inner>);

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.close();
        }
    }
}

struct Inner {
    reactor: Reactor,
    options: ChannelOptions,
    state: RefCell<State>,
}

#[expect(clippy::large_enum_variant, reason = "a channel has one, in place")]
enum Connection {
    None,
    /// The connecting task is at work.
    Connecting,
    Open {
        link: Link,
        stream: Stream,
        receiving: Receiving,
    },
}

/// Where the connection stands with the stream of incoming bytes.
enum Receiving {
    Head,
    Body { slot: usize, header: Header, params: Vec<u8>, target: BodyTarget, received: usize },
}

enum BodyTarget {
    Place(Vec<RawSlice>),
    Owned(Vec<u8>),
    /// Nobody wants it any more; so many bytes are left.
    Discard(usize),
}

struct Outstanding {
    call_id: u64,
    operation: Operation,
    params: Vec<u8>,
    body: Vec<RawSlice>,
    place: Vec<RawSlice>,
    session_sequence: u64,
    deadline: Option<Nanos>,
    /// When the server was last heard about this call.
    last_life: Nanos,
    /// Whether any byte of it may have left over some connection.
    was_sent: bool,
    /// The connection that it was last sent on, by its number.
    sent_on: u64,
    /// Nobody waits for it any more.
    abandoned: bool,
    /// Its reply has come, or it ended with its connection; else an outcome means that the caller gave up.
    answered: bool,
    outcome: Option<Result<Reply, Failure>>,
    waker: Option<Waker>,
}

struct State {
    connection: Connection,
    calls: Vec<Option<Box<Outstanding>>>,
    outstanding: usize,
    bytes_outstanding: u64,
    next_call: u64,
    next_sequence: u64,
    acknowledged: u64,
    /// Bit i: the reply of sequence `acknowledged + 1 + i` is here.
    answered: u64,
    established: bool,
    watching: bool,
    watcher: Option<Waker>,
    room: VecDeque<Waker>,
    /// Some answered call still has bytes to send.
    draining: bool,
    last_error: String,
    closed: bool,
    statistics: ChannelStatistics,
}

impl Channel {
    /// A channel that connects with its first call.
    pub fn new(reactor: &Reactor, options: ChannelOptions) -> Channel {
        let state = State {
            connection: Connection::None,
            calls: (0..WINDOW).map(|_| None).collect(),
            outstanding: 0,
            bytes_outstanding: 0,
            next_call: 1,
            next_sequence: 1,
            acknowledged: 0,
            answered: 0,
            established: false,
            watching: false,
            watcher: None,
            room: VecDeque::new(),
            draining: false,
            last_error: String::new(),
            closed: false,
            statistics: ChannelStatistics::default(),
        };
        let inner = Rc::new(Inner { reactor: reactor.clone(), options, state: RefCell::new(state) });
        let owner = Rc::new(Owner(Rc::downgrade(&inner)));
        Channel(inner, owner)
    }

    pub fn server(&self) -> u32 {
        self.0.options.server
    }

    pub fn statistics(&self) -> ChannelStatistics {
        let state = self.0.state.borrow();
        let mut statistics = state.statistics;
        if let Connection::Open { link, .. } = &state.connection {
            statistics.bytes_sent += link.bytes_sent;
            statistics.bytes_received += link.bytes_received;
        }
        statistics
    }

    /// Calls without a reply so far, those that nobody waits for included.
    pub fn outstanding(&self) -> usize {
        self.0.state.borrow().outstanding
    }

    /// Closes the connection for good; outstanding calls fail.
    pub fn close(&self) {
        self.0.close();
    }

    /// Sends a request and waits for its reply. It reaches the wire when first polled. A call that is dropped early may
    /// still be applied. Errors: the server's, or `Unreachable`, `TimedOut`, `OutcomeUnknown`, `KeyMismatch`, ...
    pub async fn call(&self, mut call: Call<'_>) -> Result<Reply, Failure> {
        let body_size: u64 = call.body.iter().map(|slice| slice.len() as u64).sum();
        let mutating = call.operation.is_mutating();
        self.room(call.operation, body_size, mutating, call.deadline).await?;
        let slot = {
            let mut state = self.0.state.borrow_mut();
            let body = call.body.iter().map(|slice| RawSlice::of_bytes(slice)).collect();
            let place = call
                .place
                .iter_mut()
                .map(|slice| RawSlice { pointer: slice.as_mut_ptr(), size: slice.len() })
                .collect();
            self.0.register(&mut state, call.operation, call.params, body, place, call.deadline)
        };
        let guard = CallGuard { inner: &self.0, slot };
        let outcome = poll_fn(|cx| {
            let mut state = self.0.state.borrow_mut();
            let state = &mut *state;
            let Some(outstanding) = &mut state.calls[slot] else {
                unreachable!("a call's slot is free while it waits");
            };
            // A reply may come before the body has left; the link has to let go of the body first.
            let is_leaving = match &state.connection {
                Connection::Open { link, .. } => {
                    outstanding.answered && !outstanding.body.is_empty() && link.is_sending(outstanding.call_id)
                }
                _ => false,
            };
            state.draining |= is_leaving;
            if !is_leaving && let Some(outcome) = outstanding.outcome.take() {
                return Poll::Ready(outcome);
            }
            match &outstanding.waker {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                _ => outstanding.waker = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
        .await;
        drop(guard);
        outcome
    }

    /// Sends a request whose reply nobody waits for. Dropped in silence when the window is full or the channel is not
    /// connected: for hints only.
    pub fn notify(&self, operation: Operation, params: Vec<u8>) {
        assert!(!operation.is_mutating());
        let mut state = self.0.state.borrow_mut();
        if state.outstanding == WINDOW || !matches!(state.connection, Connection::Open { .. }) {
            return;
        }
        let slot = self.0.register(&mut state, operation, params, Vec::new(), Vec::new(), None);
        if let Some(outstanding) = &mut state.calls[slot] {
            outstanding.abandoned = true;
        }
    }

    /// Waits until the windows have room for a call.
    async fn room(
        &self,
        operation: Operation,
        size: u64,
        mutating: bool,
        deadline: Option<Nanos>,
    ) -> Result<(), Failure> {
        poll_fn(|cx| {
            let mut state = self.0.state.borrow_mut();
            if state.closed {
                return Poll::Ready(Err(self.0.failure(operation, Status::Unreachable, "the channel was closed")));
            }
            if state.has_room(size, mutating) {
                return Poll::Ready(Ok(()));
            }
            if deadline.is_some_and(|deadline| self.0.reactor.now() > deadline) {
                return Poll::Ready(Err(self.0.failure(operation, Status::TimedOut, "the window stayed full")));
            }
            state.room.push_back(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl State {
    fn has_room(&self, size: u64, mutating: bool) -> bool {
        let sequence_fits = !mutating || self.next_sequence <= self.acknowledged + u64::from(REQUEST_WINDOW);
        let bytes_fit = self.bytes_outstanding == 0 || self.bytes_outstanding + size <= BYTES_WINDOW;
        // The slot of the next call id must be free; ids move on past slots that are still taken.
        self.outstanding < WINDOW && sequence_fits && bytes_fit
    }

    fn wake_watcher(&mut self) {
        if let Some(waker) = self.watcher.take() {
            waker.wake();
        }
    }

    fn acknowledge(&mut self, sequence: u64) {
        if sequence == 0 {
            return;
        }
        assert!(sequence > self.acknowledged && sequence <= self.acknowledged + u64::from(REQUEST_WINDOW));
        self.answered |= 1 << (sequence - self.acknowledged - 1);
        let count = self.answered.trailing_ones();
        self.acknowledged += u64::from(count);
        self.answered = self.answered.checked_shr(count).unwrap_or(0);
    }

    /// Frees a slot; invariant 4 holds its sequence until then.
    fn release(&mut self, slot: usize) -> Option<Box<Outstanding>> {
        let outstanding = self.calls[slot].take()?;
        self.outstanding -= 1;
        self.bytes_outstanding -= body_size(&outstanding.body);
        // Several may fit now, and a waker that waits in vain queues again.
        for waker in self.room.drain(..) {
            waker.wake();
        }
        Some(outstanding)
    }

    /// Gives a call its outcome.
    fn finish(&mut self, slot: usize, outcome: Result<Reply, Failure>) {
        let Some(outstanding) = &mut self.calls[slot] else {
            return;
        };
        if outstanding.answered {
            return;
        }
        let sequence = std::mem::take(&mut outstanding.session_sequence);
        outstanding.answered = true;
        if outstanding.abandoned {
            self.release(slot);
        } else {
            // A caller that has given up keeps the outcome that it was told.
            outstanding.outcome.get_or_insert(outcome);
            if let Some(waker) = &outstanding.waker {
                waker.wake_by_ref();
            }
        }
        self.acknowledge(sequence);
    }

    /// Lets calls whose reply came early look again whether their body has left.
    fn wake_drained(&mut self) {
        if !std::mem::take(&mut self.draining) {
            return;
        }
        for outstanding in self.calls.iter().flatten().filter(|outstanding| outstanding.answered) {
            if let Some(waker) = &outstanding.waker {
                waker.wake_by_ref();
            }
        }
    }

    fn slot_of(&self, call_id: u64) -> Option<usize> {
        let slot = (call_id % WINDOW as u64) as usize;
        self.calls[slot].as_ref().filter(|outstanding| outstanding.call_id == call_id).map(|_| slot)
    }
}

fn body_size(body: &[RawSlice]) -> u64 {
    body.iter().map(|slice| slice.size as u64).sum()
}

impl Inner {
    fn close(&self) {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        self.disconnect(&mut state, "the channel was closed");
        self.fail_all(&mut state, Status::Unreachable, "the channel was closed");
        state.wake_watcher();
    }

    fn failure(&self, operation: Operation, status: Status, words: &str) -> Failure {
        let address = self.options.cluster.servers[self.options.server as usize].address;
        let text = format!("{words}; its address is {address}").into_bytes();
        Failure { status, id: FileId(0), text, server: self.options.server, operation }
    }

    /// Puts a call into the table and on the wire.
    fn register(
        self: &Rc<Self>,
        state: &mut State,
        operation: Operation,
        params: Vec<u8>,
        body: Vec<RawSlice>,
        place: Vec<RawSlice>,
        deadline: Option<Nanos>,
    ) -> usize {
        assert!(operation.level() == self.options.level, "{} travels at another call level", operation.name());
        let slot = loop {
            let slot = (state.next_call % WINDOW as u64) as usize;
            if state.calls[slot].is_none() {
                break slot;
            }
            state.next_call += 1;
        };
        let session_sequence = if operation.is_mutating() { state.next_sequence } else { 0 };
        state.next_sequence += u64::from(operation.is_mutating());
        state.bytes_outstanding += body_size(&body);
        state.outstanding += 1;
        state.statistics.calls += 1;
        state.calls[slot] = Some(Box::new(Outstanding {
            call_id: state.next_call,
            operation,
            params,
            body,
            place,
            session_sequence,
            deadline,
            last_life: self.reactor.now(),
            was_sent: false,
            sent_on: 0,
            abandoned: false,
            answered: false,
            outcome: None,
            waker: None,
        }));
        state.next_call += 1;
        if matches!(state.connection, Connection::None) {
            self.start_connecting(state);
        } else {
            self.send(state, slot);
        }
        if !state.watching {
            state.watching = true;
            self.reactor.spawn(Class::Metadata, watch(Rc::downgrade(self)));
        }
        state.wake_watcher();
        slot
    }

    /// Queues a call's frame on the open connection, if there is one.
    fn send(&self, state: &mut State, slot: usize) {
        let now = self.reactor.now();
        let acknowledged = state.acknowledged;
        let Connection::Open { link, .. } = &mut state.connection else {
            return;
        };
        let Some(outstanding) = &mut state.calls[slot] else {
            return;
        };
        let mut header = Header::new(FrameKind::Request, outstanding.operation as u16);
        header.level = self.options.level;
        header.call_id = outstanding.call_id;
        header.session_sequence = outstanding.session_sequence;
        header.session_acknowledged = if outstanding.session_sequence == 0 { 0 } else { acknowledged };
        let remaining = outstanding.deadline.map_or(self.options.timeout, |deadline| deadline.saturating_sub(now));
        header.remaining_ms = u32::try_from(remaining / 1_000_000).unwrap_or(u32::MAX);
        outstanding.was_sent = true;
        outstanding.sent_on = state.statistics.connects;
        let is_first = !link.has_queued();
        link.enqueue(header, &outstanding.params, outstanding.body.clone(), outstanding.call_id, None);
        // A lone call leaves at once; others travel together at the end of this turn.
        let sent = if is_first && state.outstanding == 1 { link.flush() } else { Ok(false) };
        if !matches!(sent, Ok(true)) {
            link.wake();
        }
    }

    fn start_connecting(self: &Rc<Self>, state: &mut State) {
        if state.closed {
            return;
        }
        state.connection = Connection::Connecting;
        self.reactor.spawn(Class::Metadata, connect(self.clone()));
    }

    /// Ends the connection. Calls stay, to be sent again, except those that nobody waits for.
    fn disconnect(&self, state: &mut State, words: &str) {
        if let Connection::Open { mut link, stream, .. } = std::mem::replace(&mut state.connection, Connection::None) {
            state.statistics.bytes_sent += link.bytes_sent;
            state.statistics.bytes_received += link.bytes_received;
            link.shutdown();
            link.wake();
            drop(stream);
        }
        state.last_error = words.to_string();
        state.wake_drained();
        for slot in 0..WINDOW {
            if state.calls[slot].as_ref().is_some_and(|outstanding| outstanding.abandoned)
                && let Some(outstanding) = state.release(slot)
            {
                state.acknowledge(outstanding.session_sequence);
            }
        }
    }

    fn fail_all(&self, state: &mut State, status: Status, words: &str) {
        for slot in 0..WINDOW {
            if let Some(operation) = state.calls[slot].as_ref().map(|outstanding| outstanding.operation) {
                state.finish(slot, Err(self.failure(operation, status, words)));
            }
        }
    }

    /// The server does not know the session any more: calls that it may have executed end with `OutcomeUnknown`.
    fn fail_unknown(&self, state: &mut State) {
        for slot in 0..WINDOW {
            let Some(outstanding) = &state.calls[slot] else {
                continue;
            };
            if outstanding.was_sent && outstanding.session_sequence != 0 {
                let words = "the server lost the session while the request was under way; look whether it was applied";
                let failure = self.failure(outstanding.operation, Status::OutcomeUnknown, words);
                state.finish(slot, Err(failure));
            }
        }
    }

    fn introduction(&self, resume: bool) -> Introduction {
        let options = &self.options;
        Introduction {
            role: options.role,
            level: options.level,
            server: options.server,
            from_server: options.from_server,
            session: options.session,
            resume,
            uid: options.uid,
            gid: options.gid,
        }
    }

    async fn try_connect(&self) -> Result<(Stream, Welcome), HandshakeError> {
        let address = self.options.cluster.servers[self.options.server as usize].address;
        let stream = self.reactor.connect(address).await?;
        let resume = self.state.borrow().established;
        let welcome = introduce(&self.reactor, &stream, &self.options.cluster, &self.introduction(resume)).await?;
        Ok((stream, welcome))
    }

    /// Takes a new connection into use and sends what is outstanding.
    fn open(self: &Rc<Self>, stream: Stream, welcome: &Welcome) {
        let mut state = self.state.borrow_mut();
        if state.closed {
            return;
        }
        let resumed = std::mem::replace(&mut state.established, true);
        state.statistics.connects += 1;
        if resumed && !welcome.session_known {
            self.fail_unknown(&mut state);
        }
        state.connection =
            Connection::Open { link: Link::new(stream.clone()), stream: stream.clone(), receiving: Receiving::Head };
        let mut slots: Vec<usize> = (0..WINDOW)
            .filter(|slot| state.calls[*slot].as_ref().is_some_and(|outstanding| outstanding.outcome.is_none()))
            .collect();
        slots.sort_by_key(|slot| state.calls[*slot].as_ref().map(|outstanding| outstanding.call_id));
        for slot in slots {
            state.statistics.resends += u64::from(state.calls[slot].as_ref().is_some_and(|call| call.was_sent));
            self.send(&mut state, slot);
        }
        self.reactor.spawn(Class::Metadata, drive(self.clone(), state.statistics.connects));
    }
}

/// Connects until it succeeds, the server refuses us, or nobody waits any more.
async fn connect(inner: Rc<Inner>) {
    let mut pause = PAUSE_NS_FIRST;
    loop {
        let limit = inner.reactor.now() + inner.options.timeout;
        let attempt = std::pin::pin!(inner.try_connect());
        match within(&inner.reactor, limit, attempt).await {
            Some(Ok((stream, welcome))) => return inner.open(stream, &welcome),
            Some(Err(HandshakeError::Refused(status, words))) if !is_passing(status) => {
                let mut state = inner.state.borrow_mut();
                state.connection = Connection::None;
                inner.fail_all(&mut state, status, words);
                return;
            }
            Some(Err(HandshakeError::Refused(status, _))) => inner.state.borrow_mut().last_error = status.to_string(),
            Some(Err(HandshakeError::Broken(error))) => inner.state.borrow_mut().last_error = error.to_string(),
            None => inner.state.borrow_mut().last_error = "no answer to the handshake".to_string(),
        }
        inner.reactor.sleep(pause + inner.reactor.random() % pause).await;
        pause = (pause * 2).min(PAUSE_NS_MAX);
        let mut state = inner.state.borrow_mut();
        if state.outstanding == 0 || state.closed {
            state.connection = Connection::None;
            return;
        }
    }
}

/// Refusals that may end by themselves while the caller still waits.
fn is_passing(status: Status) -> bool {
    matches!(status, Status::TooManyConnections | Status::Draining)
}

/// Drives one open connection until it ends; then calls that still wait get a new one.
async fn drive(inner: Rc<Inner>, generation: u64) {
    let end = poll_fn(|cx| {
        let mut state = inner.state.borrow_mut();
        let current = state.statistics.connects == generation;
        match &mut state.connection {
            Connection::Open { link, .. } if current => link.set_waker(cx.waker()),
            _ => return Poll::Ready(None),
        }
        for _ in 0..FRAMES_PER_TURN {
            match inner.step(&mut state) {
                Ok(true) => {}
                Ok(false) => {
                    let Connection::Open { link, .. } = &mut state.connection else {
                        return Poll::Ready(None);
                    };
                    if let Err(error) = link.flush() {
                        return Poll::Ready(Some(error));
                    }
                    state.wake_drained();
                    return Poll::Pending;
                }
                Err(error) => return Poll::Ready(Some(error)),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
    let mut state = inner.state.borrow_mut();
    let Some(error) = end else {
        return;
    };
    match error {
        LinkError::Broken(error) => inner.disconnect(&mut state, &error.to_string()),
        LinkError::Protocol(status, words) => {
            inner.disconnect(&mut state, words);
            if !is_passing(status) {
                inner.fail_all(&mut state, status, words);
            }
        }
    }
    if state.outstanding > 0 {
        inner.start_connecting(&mut state);
    }
}

impl Inner {
    /// Handles one incoming frame or part of a body. False when nothing more has arrived.
    fn step(&self, state: &mut State) -> Result<bool, LinkError> {
        let Connection::Open { link, receiving, .. } = &mut state.connection else {
            return Ok(false);
        };
        if let Receiving::Body { target, received, .. } = receiving {
            let done = match target {
                BodyTarget::Place(places) => link.receive_body(places, received)?,
                BodyTarget::Owned(bytes) => {
                    let place = RawSlice { pointer: bytes.as_mut_ptr(), size: bytes.len() };
                    link.receive_body(&[place], received)?
                }
                BodyTarget::Discard(left) => link.discard_body(left)?,
            };
            if !done {
                return Ok(false);
            }
            let Receiving::Body { slot, header, params, target, .. } = std::mem::replace(receiving, Receiving::Head)
            else {
                unreachable!("it was a body just now");
            };
            let body = match target {
                BodyTarget::Owned(bytes) => bytes,
                _ => Vec::new(),
            };
            self.take_reply(state, slot, header, params, body)?;
            return Ok(true);
        }
        match link.next_frame()? {
            Some((header, params)) => self.take_frame(state, header, params).map(|()| true),
            None => Ok(false),
        }
    }

    fn take_frame(&self, state: &mut State, header: Header, params: Vec<u8>) -> Result<(), LinkError> {
        match header.kind {
            FrameKind::Reply => {}
            FrameKind::Working => return self.note_working(state, &header, &params),
            FrameKind::Goodbye => {
                let status = Status::from_code(header.status).unwrap_or(Status::BadMessage);
                return Err(LinkError::Protocol(status, "the server closed the connection because of our request"));
            }
            FrameKind::Request => {
                return Err(LinkError::Protocol(Status::BadMessage, "the server sent a request where a reply was due"));
            }
        }
        let Some(slot) = state.slot_of(header.call_id) else {
            return Err(LinkError::Protocol(Status::BadMessage, "the server answered a call that nobody made"));
        };
        let (Some(outstanding), Connection::Open { receiving, .. }) = (&mut state.calls[slot], &mut state.connection)
        else {
            unreachable!("the call's slot was just found on an open connection");
        };
        outstanding.last_life = self.reactor.now();
        let size = header.body_size as usize;
        if size == 0 {
            return self.take_reply(state, slot, header, params, Vec::new());
        }
        let room: usize = outstanding.place.iter().map(|place| place.size).sum();
        let target = if outstanding.abandoned {
            BodyTarget::Discard(size)
        } else if outstanding.place.is_empty() {
            BodyTarget::Owned(vec![0; size])
        } else if size <= room {
            BodyTarget::Place(first_bytes(&outstanding.place, size))
        } else {
            return Err(LinkError::Protocol(Status::BadMessage, "the server answered more bytes than were asked for"));
        };
        *receiving = Receiving::Body { slot, header, params, target, received: 0 };
        Ok(())
    }

    fn take_reply(
        &self,
        state: &mut State,
        slot: usize,
        header: Header,
        params: Vec<u8>,
        body: Vec<u8>,
    ) -> Result<(), LinkError> {
        let Some(outstanding) = &mut state.calls[slot] else {
            return Ok(());
        };
        if outstanding.call_id != header.call_id {
            return Ok(());
        }
        let outcome = match Status::from_code(header.status) {
            Some(Status::Ok) => {
                Ok(Reply { params, body_size: header.body_size as usize, body, tree_number: header.tree_number })
            }
            Some(status) => {
                let detail = ErrorDetail::from_bytes(&params)
                    .map_err(|error| LinkError::Protocol(Status::BadMessage, error.0))?;
                Err(Failure {
                    status,
                    id: detail.id,
                    text: detail.text.to_vec(),
                    server: self.options.server,
                    operation: outstanding.operation,
                })
            }
            None => return Err(LinkError::Protocol(Status::BadMessage, "the server answered an unknown status")),
        };
        state.finish(slot, outcome);
        Ok(())
    }

    fn note_working(&self, state: &mut State, header: &Header, params: &[u8]) -> Result<(), LinkError> {
        let ids = Vec::<u64>::from_bytes(params).map_err(|error| LinkError::Protocol(Status::BadMessage, error.0))?;
        let now = self.reactor.now();
        // A server that has paused reading this connection can't name the calls that it has not read yet.
        let paused = header.operation == 1;
        for outstanding in state.calls.iter_mut().flatten() {
            if paused || ids.contains(&outstanding.call_id) {
                outstanding.last_life = now;
            }
        }
        Ok(())
    }
}

/// The first `size` bytes of `places`.
fn first_bytes(places: &[RawSlice], size: usize) -> Vec<RawSlice> {
    let mut left = size;
    let mut first = Vec::with_capacity(places.len());
    for place in places {
        if left == 0 {
            break;
        }
        let part = place.size.min(left);
        first.push(RawSlice { pointer: place.pointer, size: part });
        left -= part;
    }
    first
}

/// Ends calls of which nothing was heard for too long. Sleeps while there are none.
async fn watch(inner: std::rc::Weak<Inner>) {
    loop {
        let Some(strong) = inner.upgrade() else {
            return;
        };
        let reactor = strong.reactor.clone();
        let period = (strong.options.timeout / 8).max(1_000_000);
        drop(strong);
        let alive = poll_fn(|cx| {
            let Some(strong) = inner.upgrade() else {
                return Poll::Ready(false);
            };
            let mut state = strong.state.borrow_mut();
            if state.closed && state.outstanding == 0 {
                return Poll::Ready(false);
            }
            if state.outstanding > 0 {
                return Poll::Ready(true);
            }
            state.watcher = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        if !alive {
            return;
        }
        reactor.sleep(period).await;
        if let Some(strong) = inner.upgrade() {
            strong.end_silent_calls();
        }
    }
}

impl Inner {
    fn end_silent_calls(self: &Rc<Self>) {
        let now = self.reactor.now();
        let mut state = self.state.borrow_mut();
        let mut silent = false;
        for slot in 0..WINDOW {
            let Some(outstanding) = &mut state.calls[slot] else {
                continue;
            };
            let is_silent = now.saturating_sub(outstanding.last_life) > self.options.timeout;
            let is_over = is_silent || outstanding.deadline.is_some_and(|limit| now > limit);
            if outstanding.outcome.is_some() || !is_over {
                continue;
            }
            let operation = outstanding.operation;
            let failure = if matches!(state.connection, Connection::Open { .. }) {
                silent |= is_silent;
                self.failure(operation, Status::TimedOut, "no sign of life from the server for the time-out")
            } else {
                let words = format!("no connection: {}", state.last_error);
                self.failure(operation, Status::Unreachable, &words)
            };
            if let Some(outstanding) = &mut state.calls[slot] {
                outstanding.outcome = Some(Err(failure));
                if let Some(waker) = &outstanding.waker {
                    waker.wake_by_ref();
                }
            }
        }
        if silent {
            // A connection that leaves a call unanswered is not trusted with the next one.
            self.disconnect(&mut state, "the server was silent");
            if state.outstanding > 0 {
                self.start_connecting(&mut state);
            }
        }
    }

    /// Ends the caller's part in a call: takes its memory back from the connection (invariant 3), and frees the slot
    /// unless the server may still answer (invariant 4).
    fn part(self: &Rc<Self>, slot: usize) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let Some(outstanding) = &mut state.calls[slot] else {
            return;
        };
        let call_id = outstanding.call_id;
        outstanding.place.clear();
        outstanding.waker = None;
        outstanding.abandoned = true;
        let mut is_sending = false;
        let mut is_expected = false;
        if let Connection::Open { link, receiving, .. } = &mut state.connection {
            is_sending = !outstanding.body.is_empty() && link.is_sending(call_id);
            is_expected = !outstanding.answered && outstanding.sent_on == state.statistics.connects;
            if let Receiving::Body { header, target, received, .. } = receiving
                && header.call_id == call_id
                && let BodyTarget::Place(_) = target
            {
                *target = BodyTarget::Discard(header.body_size as usize - *received);
            }
        }
        if !is_expected && let Some(outstanding) = state.release(slot) {
            state.acknowledge(outstanding.session_sequence);
        }
        if is_sending {
            self.disconnect(state, "a call was given up while its body was being sent");
            if state.outstanding > 0 {
                self.start_connecting(state);
            }
        }
    }
}

/// Stands for the caller of a call, until its outcome was taken or its future is dropped.
struct CallGuard<'a> {
    inner: &'a Rc<Inner>,
    slot: usize,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.inner.part(self.slot);
    }
}
