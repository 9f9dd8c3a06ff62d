//! One connection of the serving side: what of its stream was read, which requests it holds, and what goes out.

use super::{Disconnected, Incoming, Peer, Serving, hang_up};
use crate::link::{BodyPiece, Link, LinkError, RawSlice, ReplyBody, ReplyHeld};
use crate::log::{self, Level};
use crate::schedule::{ConnectionClass, STEP_MESSAGES_MAX};
use crate::{Nanos, Span, Stream};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use wire::credentials::Credentials;
use wire::limits::REQUEST_WINDOW;
use wire::messages::ErrorDetail;
use wire::{Decode, Encode, FileId, FrameKind, Header, Malformed, Operation, Status};

/// Parameters of requests that a connection may hold before it is paused, in bytes.
pub(super) const PARAMS_HELD_MAX: usize = 64 * 1024;
/// Replies that a connection may hold because the peer does not read, in bytes.
pub(super) const REPLIES_HELD_MAX: usize = 256 * 1024;
/// A sender that stays silent within a body for so many working intervals, of at least this length, is given up.
const STALLS_MAX: u64 = 10;
const STALL_NS_MIN: Nanos = 1_000_000_000;

/// Where a connection stands with the stream of incoming bytes.
pub(super) enum RequestStage {
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
    },
    Discard {
        left: usize,
    },
}

pub(super) struct PendingRequest {
    pub(super) call_id: u64,
    pub(super) params_size: usize,
    pub(super) arrived: Nanos,
}

/// Bytes of a stream that were read together.
#[derive(Clone, Copy, Default)]
struct LastRead {
    /// Of the whole stream by then.
    bytes: u64,
    /// When they were read, and when they can have arrived at the earliest.
    read: Nanos,
    arrived: Nanos,
    /// Whether nothing more was there.
    is_all: bool,
}

pub(super) struct ConnectionState {
    pub(super) receiving: RequestStage,
    /// Bytes of the stream when somebody last looked, and since when nothing was added to them.
    heard: u64,
    pub(super) silent_since: Nanos,
    pub(super) held: Vec<PendingRequest>,
    pub(super) params_held: usize,
    /// The last bytes of the stream that were read.
    last_read: LastRead,
    pub(super) replies_held: Rc<Cell<usize>>,
    pub(super) body_waker: Option<Waker>,
    /// While the driving task runs, replies wait for its end to travel together.
    pub(super) corked: bool,
    /// Replies go out, then the connection is closed.
    pub(super) closing: bool,
    pub(super) closed: bool,
    /// A body can't be received to its end: whoever waits for it has no answer to give, and the connection is about
    /// to close.
    is_broken: bool,
    /// The peer has said that its session has ended, and listens no more.
    pub(super) has_ended: bool,
}

pub(super) struct Connection {
    pub(super) peer: Rc<Peer>,
    /// Whether it came through another server.
    pub(super) is_relayed: bool,
    /// What the link's own stream rests on, to read on there when that gives nothing more.
    pub(super) below: Stream,
    pub(super) link: RefCell<Link>,
    pub(super) state: RefCell<ConnectionState>,
    /// Of the driving task, and the bytes that were moved when it was last found out.
    class: Cell<ConnectionClass>,
    bytes_counted: Cell<u64>,
}

pub(super) enum ReceiveProgress {
    Request(Header, Vec<u8>),
    Progress,
    Wait,
}

impl Connection {
    pub(super) fn new(peer: Peer, below: Stream, stream: &Stream, is_relayed: bool) -> Connection {
        Connection {
            peer: Rc::new(peer),
            is_relayed,
            link: RefCell::new(Link::new(stream.clone())),
            class: Cell::default(),
            bytes_counted: Cell::new(0),
            below,
            state: RefCell::new(ConnectionState {
                receiving: RequestStage::Head,
                heard: 0,
                silent_since: 0,
                held: Vec::new(),
                params_held: 0,
                last_read: LastRead { is_all: true, ..LastRead::default() },
                replies_held: Rc::default(),
                body_waker: None,
                corked: false,
                closing: false,
                closed: false,
                is_broken: false,
                has_ended: false,
            }),
        }
    }

    pub(super) async fn run(self: &Rc<Self>, serving: &Rc<Serving>) {
        let last_words = poll_fn(|cx| {
            self.link.borrow_mut().set_waker(cx.waker());
            self.begin_step(serving);
            self.state.borrow_mut().corked = true;
            let end = self.advance(serving, cx.waker());
            self.state.borrow_mut().corked = false;
            let was_held_up = self.is_held_up();
            let was_spent = self.link.borrow().is_spent();
            // Replies don't wait until nothing more comes.
            self.begin_step(serving);
            let flushed = self.flush();
            self.end_step(serving);
            if was_held_up && !self.is_held_up() || was_spent || self.link.borrow().is_spent() {
                // What the replies, or the end of the step, kept us from moving nobody else tells of.
                cx.waker().wake_by_ref();
            }
            match (end, flushed) {
                (Err(LinkError::Protocol(status, words)), _) => Poll::Ready(Some((status, words))),
                (Err(LinkError::Broken(_)), _) | (_, Err(_)) => Poll::Ready(None),
                (Ok(()), Ok(true)) if self.is_finished() => Poll::Ready(None),
                _ if self.state.borrow().closed || self.state.borrow().has_ended => Poll::Ready(None),
                _ => Poll::Pending,
            }
        })
        .await;
        if let Some((status, words)) = last_words {
            if status == Status::ChangedOnWay {
                let words = "a connection was changed on its way, and is closed; nothing of it was taken in since";
                log::event(Level::Error, "connection-changed", words, &[("session", &self.peer.session)]);
            }
            self.say_goodbye(status, words);
            hang_up(&serving.reactor, &self.below).await;
        } else if self.state.borrow().closing {
            hang_up(&serving.reactor, &self.below).await;
        }
        self.close();
    }

    fn begin_step(&self, serving: &Serving) {
        self.link.borrow_mut().begin_step(serving.reactor.step_bytes());
    }

    /// The driving task goes on as one that moves bytes, or short messages; also those count that other tasks have
    /// moved since its last step.
    fn end_step(&self, serving: &Serving) {
        let link = self.link.borrow();
        let bytes = link.bytes_received + link.bytes_sent;
        let moved = bytes - self.bytes_counted.replace(bytes);
        let mut class = self.class.get();
        if let Some(next) = class.note_step(moved as usize) {
            serving.reactor.set_class(next);
        }
        self.class.set(class);
    }

    /// Whether no request is read until the peer has read replies.
    fn is_held_up(&self) -> bool {
        self.state.borrow().replies_held.get() > REPLIES_HELD_MAX
    }

    pub(super) fn is_finished(&self) -> bool {
        self.state.borrow().closing
    }

    pub(super) fn flush(&self) -> Result<bool, LinkError> {
        self.link.borrow_mut().flush()
    }

    /// Handles what has arrived.
    pub(super) fn advance(self: &Rc<Self>, serving: &Rc<Serving>, waker: &Waker) -> Result<(), LinkError> {
        for _ in 0..STEP_MESSAGES_MAX {
            let step = self.step()?;
            match step {
                ReceiveProgress::Wait => return Ok(()),
                ReceiveProgress::Progress => {}
                ReceiveProgress::Request(header, params) => {
                    let incoming = self.take_request(serving, header, params)?;
                    serving.service.clone().request(incoming);
                }
            }
        }
        waker.wake_by_ref();
        Ok(())
    }

    pub(super) fn step(&self) -> Result<ReceiveProgress, LinkError> {
        let mut state = self.state.borrow_mut();
        let mut link = self.link.borrow_mut();
        if state.closed || state.closing || state.has_ended {
            return Ok(ReceiveProgress::Wait);
        }
        let done = match &mut state.receiving {
            RequestStage::Waiting { .. } => return Ok(ReceiveProgress::Wait),
            RequestStage::Body { places, received, .. } => link.receive_body(places, received)?,
            RequestStage::Discard { left } => link.discard_body(left)?,
            RequestStage::Head => {
                if state.params_held > PARAMS_HELD_MAX || state.replies_held.get() > REPLIES_HELD_MAX {
                    return Ok(ReceiveProgress::Wait);
                }
                return Ok(match link.next_frame()? {
                    Some((header, params)) if header.kind == FrameKind::Waiting => {
                        if header.body_size > 0 || !params.is_empty() {
                            return Err(LinkError::Protocol(Status::BadMessage, "a sign of waiting carries nothing"));
                        }
                        ReceiveProgress::Progress
                    }
                    Some((header, params)) if header.kind == FrameKind::Goodbye && self.peer.role.is_client() => {
                        if header.body_size > 0 || !params.is_empty() {
                            return Err(LinkError::Protocol(Status::BadMessage, "a client's goodbye carries nothing"));
                        }
                        state.has_ended = true;
                        ReceiveProgress::Wait
                    }
                    Some((header, params)) => ReceiveProgress::Request(header, params),
                    None => {
                        state.last_read.is_all = !link.is_spent();
                        ReceiveProgress::Wait
                    }
                });
            }
        };
        if !done {
            return Ok(ReceiveProgress::Wait);
        }
        state.receiving = RequestStage::Head;
        if let Some(waker) = state.body_waker.take() {
            waker.wake();
        }
        Ok(ReceiveProgress::Progress)
    }

    pub(super) fn take_request(
        self: &Rc<Self>,
        serving: &Rc<Serving>,
        header: Header,
        mut params: Vec<u8>,
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
        let params_size = params.len();
        let peer = match header.status {
            0 => self.peer.clone(),
            user_size => self.acting_peer(&mut params, user_size as usize)?,
        };
        let mut state = self.state.borrow_mut();
        if state.held.len() >= REQUEST_WINDOW as usize {
            return protocol(Status::WindowExceeded, "more requests than the window allows");
        }
        if state.held.iter().any(|held| held.call_id == header.call_id) {
            return protocol(Status::BadMessage, "call id is in use");
        }
        let taken = serving.reactor.now();
        let bytes = self.link.borrow().bytes_received;
        if state.last_read.bytes != bytes {
            // What was not read before may have been there since then.
            let floor = serving.reactor.arrival_floor();
            let arrived = if state.last_read.is_all { floor } else { state.last_read.read };
            state.last_read = LastRead { bytes, read: taken, arrived: arrived.min(taken), is_all: false };
        }
        let LastRead { read, arrived, .. } = state.last_read;
        state.held.push(PendingRequest { call_id: header.call_id, params_size, arrived: taken });
        state.params_held += params_size;
        serving.requests_held.set(serving.requests_held.get() + 1);
        serving.wake_watcher();
        if header.body_size > 0 {
            state.receiving = RequestStage::Waiting { call_id: header.call_id, size: header.body_size as usize };
        }
        Ok(Incoming {
            header,
            operation,
            params,
            peer,
            arrived,
            read,
            taken,
            connection: self.clone(),
            serving: serving.clone(),
            body_wait: 0,
            answered: false,
        })
    }

    /// The peer on behalf of another user, whom the first bytes of the parameters name. Who may connect as a client is
    /// trusted with any user.
    #[cold]
    fn acting_peer(&self, params: &mut Vec<u8>, user_size: usize) -> Result<Rc<Peer>, LinkError> {
        let user = match params.get(..user_size) {
            Some(bytes) if self.peer.role.is_client() => Credentials::from_bytes(bytes),
            _ => Err(Malformed("only clients act for users, whom they name")),
        };
        let user = user.map_err(|malformed| LinkError::Protocol(Status::BadMessage, malformed.0))?;
        params.drain(..user_size);
        Ok(Rc::new(Peer { user, ..Peer::clone(&self.peer) }))
    }

    /// Sends a reply, unless the connection is gone.
    pub(super) fn respond(&self, serving: &Serving, mut header: Header, params: &[u8], body: ReplyBody, close: bool) {
        let mut state = self.state.borrow_mut();
        let Some(index) = state.held.iter().position(|held| held.call_id == header.call_id) else {
            return;
        };
        let held = state.held.swap_remove(index);
        serving.requests_held.set(serving.requests_held.get() - 1);
        let was_paused = state.params_held > PARAMS_HELD_MAX || state.replies_held.get() > REPLIES_HELD_MAX;
        state.params_held -= held.params_size;
        let left = match &state.receiving {
            RequestStage::Waiting { call_id, size } if *call_id == header.call_id => Some(*size),
            RequestStage::Body { call_id, places, received, .. } if *call_id == header.call_id => {
                Some(places.iter().map(|place| place.size).sum::<usize>() - received)
            }
            _ => None,
        };
        if let Some(left) = left {
            state.receiving = RequestStage::Discard { left };
            state.silent_since = serving.reactor.now();
        }
        if state.closed || state.is_broken {
            return;
        }
        state.closing |= close;
        header.level = self.peer.level;
        let slices = body.slices();
        let owned = owned_size(&body) + params.len();
        let keep = ReplyHeld::new(&state.replies_held, owned, body);
        let mut link = self.link.borrow_mut();
        link.enqueue(header, params, slices, 0, Some(keep));
        if state.corked {
            return;
        }
        link.begin_step(serving.reactor.step_bytes());
        // An error shows again when the driving task meets it.
        let drained = link.flush().unwrap_or(false);
        if !drained || left.is_some() || was_paused || close {
            link.wake();
        }
    }

    pub(super) fn show_life(&self, now: Nanos, interval: Nanos) {
        let mut state = self.state.borrow_mut();
        if state.closed {
            return;
        }
        let bytes = self.link.borrow().bytes_received;
        if std::mem::replace(&mut state.heard, bytes) != bytes {
            state.silent_since = now;
        }
        // How long we have waited for the sender of a body, and for which call.
        let (silence, stalled) = match state.receiving {
            RequestStage::Body { call_id, .. } => (now.saturating_sub(state.silent_since), Some(call_id)),
            RequestStage::Discard { .. } => (now.saturating_sub(state.silent_since), None),
            _ => (0, None),
        };
        if silence > STALLS_MAX * interval.max(STALL_NS_MIN) {
            drop(state);
            self.close();
            return;
        }
        // Who is not heard is not worked for: were he told so, he would wait for ever for what can't get through.
        let is_stalled = silence >= interval;
        let ids: Vec<u64> = state
            .held
            .iter()
            .filter(|held| {
                now.saturating_sub(held.arrived) >= interval && !(is_stalled && stalled == Some(held.call_id))
            })
            .map(|held| held.call_id)
            .collect();
        let paused = !matches!(state.receiving, RequestStage::Head) && !is_stalled
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
        link.begin_step(usize::MAX);
        if !matches!(link.flush(), Ok(true)) {
            link.wake();
        }
    }

    pub(super) fn say_goodbye(&self, status: Status, words: &str) {
        let mut header = Header::new(FrameKind::Goodbye, 0);
        header.level = self.peer.level;
        header.status = status as u32;
        let detail = ErrorDetail { id: FileId(0), text: words.as_bytes() };
        let mut link = self.link.borrow_mut();
        link.enqueue(header, &detail.to_bytes(), Vec::new(), 0, None);
        link.begin_step(usize::MAX);
        // The connection ends here either way.
        let _ = link.flush();
    }

    pub(super) fn close(&self) {
        let mut state = self.state.borrow_mut();
        if state.closed {
            return;
        }
        state.closed = true;
        state.receiving = RequestStage::Head;
        if let Some(waker) = state.body_waker.take() {
            waker.wake();
        }
        let mut link = self.link.borrow_mut();
        link.shutdown();
        link.wake();
    }
}

/// Bytes of a body that the reply itself holds in memory.
pub(super) fn owned_size(body: &ReplyBody) -> usize {
    body.pieces
        .iter()
        .map(|piece| match piece {
            BodyPiece::Bytes(bytes) => bytes.len(),
            _ => 64,
        })
        .sum()
}

impl Connection {
    pub(super) fn poll_body(&self, call_id: u64, step_bytes: usize, waker: &Waker) -> Poll<Result<(), Disconnected>> {
        let mut state = self.state.borrow_mut();
        if state.closed {
            return Poll::Ready(Err(Disconnected));
        }
        let is_in_step = state.corked;
        let RequestStage::Body { call_id: receiving, places, received, .. } = &mut state.receiving else {
            return Poll::Ready(Ok(()));
        };
        if *receiving != call_id {
            return Poll::Ready(Ok(()));
        }
        let mut link = self.link.borrow_mut();
        // Within a step of the driving task it counts for that.
        if !is_in_step {
            link.begin_step(step_bytes);
        }
        match link.receive_body(places, received) {
            Ok(true) => {
                state.receiving = RequestStage::Head;
                // More frames may be in the buffer already.
                if !is_in_step {
                    link.wake();
                }
                Poll::Ready(Ok(()))
            }
            Ok(false) => {
                if link.is_spent() {
                    // The driving task goes on with it.
                    link.wake();
                }
                state.body_waker = Some(waker.clone());
                Poll::Pending
            }
            // The driving task meets the same error and closes the connection.
            Err(_) => {
                state.is_broken = true;
                link.wake();
                Poll::Ready(Err(Disconnected))
            }
        }
    }
}
