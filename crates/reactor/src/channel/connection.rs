//! Sending calls, connecting, and what happens to calls when the connection ends.

use super::table::{ChannelConnection, ChannelState, Outstanding, ReplyStage, WINDOW, body_size};
use super::{ChannelInner, Failure, Turnabout};
use crate::executor::until;
use crate::handshake::{HandshakeError, Introduction, introduce};
use crate::link::{Link, LinkError, RawSlice};
use crate::local::reach;
use crate::log::{self, Level};
use crate::sealing::CHANGED;
use crate::{Class, Nanos, Relay, Stream};
use std::future::poll_fn;
use std::io::ErrorKind;
use std::rc::Rc;
use std::task::{Poll, Waker};
use wire::handshake::{Role, Welcome};
use wire::{FileId, FrameKind, Header, Operation, Protection, Status};

const FRAMES_PER_TURN: usize = 32;
/// First and longest pause between attempts to connect.
const PAUSE_NS_FIRST: Nanos = 5_000_000;
const PAUSE_NS_MAX: Nanos = 500_000_000;
/// The longest where even the queue for the server's connections is full: many come again and again then.
const FULL_PAUSE_NS_MAX: Nanos = 2_000_000_000;
/// Whoever listens on this machine in a server's name answers at once, or is not that server.
const LOCAL_HANDSHAKE_NS_MAX: Nanos = 2_000_000_000;
/// Refusals in a row that are not believed where frames are protected: a refusal is no proof, for it may have been made
/// of anything on the way, and one more than these in a row is no accident.
const DISBELIEVED_REFUSAL_COUNT: u32 = 3;
/// Shortest pause after which a caller comes again where too many others wait to be heard.
const CROWD_PAUSE_NS: Nanos = 10_000_000;
/// Longest wait for an answer through another server, before the server's own address is tried.
const RELAYED_HANDSHAKE_NS_MAX: Nanos = 3_000_000_000;

impl ChannelInner {
    pub(super) fn close(self: &Rc<Self>) {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        self.disconnect(&mut state, "the channel was closed");
        self.fail_all(&mut state, Status::Unreachable, "the channel was closed");
        state.wake_watcher();
    }

    pub(super) fn failure(&self, operation: Operation, status: Status, words: &str) -> Failure {
        let address = self.options.cluster.servers[self.options.server as usize].address;
        let text = format!("{words}; its address is {address}").into_bytes();
        Failure { status, id: FileId(0), text, server: self.options.server, operation, served: 0 }
    }

    /// Puts a call into the table and on the wire.
    pub(super) fn register(
        self: &Rc<Self>,
        state: &mut ChannelState,
        operation: Operation,
        (params, user_size): (Vec<u8>, u32),
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
        let session_sequence = if operation.is_mutating() { state.sequences.take() } else { 0 };
        state.bytes_outstanding += body_size(&body);
        state.outstanding += 1;
        state.statistics.calls += 1;
        let outstanding = Outstanding {
            call_id: state.next_call,
            operation,
            params,
            user_size,
            body,
            place,
            session_sequence,
            deadline,
            last_life: self.reactor.now(),
            was_sent: false,
            sent_on: 0,
            life: None,
            once: false,
            abandoned: false,
            was_changed: false,
            answered: false,
            outcome: None,
            waker: None,
        };
        state.calls[slot] = Some(match state.spare.take() {
            Some(mut memory) => {
                *memory = outstanding;
                memory
            }
            None => Box::new(outstanding),
        });
        state.next_call += 1;
        if matches!(state.connection, ChannelConnection::None) {
            self.start_connecting(state);
        } else {
            self.send(state, slot);
        }
        if !state.watching {
            state.watching = true;
            self.reactor.spawn(Class::Metadata, super::ending::watch(Rc::downgrade(self)));
        }
        state.wake_watcher();
        slot
    }

    /// Queues a call's frame on the open connection, if there is one.
    pub(super) fn send(&self, state: &mut ChannelState, slot: usize) {
        let ChannelConnection::Open { link, stream, .. } = &mut state.connection else {
            return;
        };
        let Some(outstanding) = &mut state.calls[slot] else {
            return;
        };
        stream.expect(true);
        let mut header = Header::new(FrameKind::Request, outstanding.operation as u16);
        header.level = self.options.level;
        header.status = outstanding.user_size;
        header.call_id = outstanding.call_id;
        header.session_sequence = outstanding.session_sequence;
        if outstanding.session_sequence != 0 {
            header.session_acknowledged = state.sequences.acknowledged();
        }
        let until = |deadline: Nanos| deadline.saturating_sub(self.reactor.now());
        let remaining = outstanding.deadline.map_or(self.options.timeout, until);
        header.time = u32::try_from(remaining / 1_000_000).unwrap_or(u32::MAX);
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

    pub(super) fn start_connecting(self: &Rc<Self>, state: &mut ChannelState) {
        if state.closed {
            return;
        }
        state.connection = ChannelConnection::Connecting;
        self.reactor.spawn(Class::Metadata, connect(self.clone()));
    }

    /// Ends the connection. Calls stay, to be sent again, except those that nobody waits for.
    pub(super) fn disconnect(self: &Rc<Self>, state: &mut ChannelState, words: &str) {
        if let ChannelConnection::Open { mut link, stream, .. } =
            std::mem::replace(&mut state.connection, ChannelConnection::None)
        {
            state.statistics.bytes_sent += link.bytes_sent;
            state.statistics.bytes_received += link.bytes_received;
            state.statistics.sends += link.sends;
            link.shutdown();
            link.wake();
            drop(stream);
            self.tell_lost(state);
        }
        state.last_error = words.to_string();
        state.wake_drained();
        // Whoever waits for room, or for the end of the connection, looks again.
        state.room.drain(..).for_each(Waker::wake);
        for slot in 0..WINDOW {
            if state.calls[slot].as_ref().is_some_and(|outstanding| outstanding.abandoned)
                && let Some(outstanding) = state.release(slot)
            {
                state.sequences.acknowledge(outstanding.session_sequence);
            }
        }
    }

    pub(super) fn fail_all(&self, state: &mut ChannelState, status: Status, words: &str) {
        for slot in 0..WINDOW {
            if let Some(operation) = state.calls[slot].as_ref().map(|outstanding| outstanding.operation) {
                state.finish(slot, Err(self.failure(operation, status, words)));
            }
        }
    }

    /// The server does not know the session any more: calls that it may have executed end with `OutcomeUnknown`.
    pub(super) fn fail_unknown(&self, state: &mut ChannelState) {
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

    /// Ends the calls that are not sent over another connection.
    fn fail_once(&self, state: &mut ChannelState, status: Status) {
        for slot in 0..WINDOW {
            if let Some(outstanding) = &state.calls[slot]
                && outstanding.once
                && outstanding.outcome.is_none()
            {
                let failure = self.failure(outstanding.operation, status, &state.last_error);
                state.finish(slot, Err(failure));
            }
        }
    }

    /// What is outstanding met with a connection that was changed on its way. It is sent again, and says so if it
    /// fails after all.
    fn note_changed(self: &Rc<Self>) {
        let mut state = self.state.borrow_mut();
        self.disconnect(&mut state, CHANGED);
        state.calls.iter_mut().flatten().for_each(|outstanding| outstanding.was_changed = true);
        // To callers it is as good as gone.
        self.fail_once(&mut state, Status::Unreachable);
    }

    /// Ends the calls that were meant for an earlier life of the server.
    fn fail_outdated(&self, state: &mut ChannelState) {
        for slot in 0..WINDOW {
            if let Some(outstanding) = &state.calls[slot]
                && outstanding.life.is_some_and(|life| life != state.life)
            {
                let failure = self.outdated(outstanding.operation);
                state.finish(slot, Err(failure));
            }
        }
    }

    pub(super) fn outdated(&self, operation: Operation) -> Failure {
        self.failure(operation, Status::Unreachable, "the server was started anew, or has forgotten the session")
    }

    pub(super) fn introduction(&self, welcomes: u64) -> Introduction {
        let options = &self.options;
        Introduction {
            role: options.role,
            level: options.level,
            server: options.server,
            from_server: options.from_server,
            session: options.session,
            welcomes,
            user: options.user.clone(),
            label: options.label.clone(),
        }
    }

    pub(super) async fn try_connect(&self) -> Result<(Stream, Welcome), HandshakeError> {
        let relay = self.options.relay.as_ref().filter(|relay| relay.is_for_full_servers());
        let outcome = self.try_each_way(relay.is_none()).await;
        if let Err(HandshakeError::Refused(Status::TooManyConnections, _)) = &outcome
            && let Some(relay) = relay
        {
            if let Some(Ok(relayed)) = self.connect_through(relay).await {
                return Ok(relayed);
            }
            return self.try_each_way(true).await;
        }
        outcome
    }

    /// `waits`: where the server has no connection left, until it has.
    async fn try_each_way(&self, waits: bool) -> Result<(Stream, Welcome), HandshakeError> {
        let options = &self.options;
        match self.connect_locally(waits).await {
            Some(Some(Ok(connected))) => return Ok(connected),
            // Another way to the same server finds no more room.
            Some(Some(Err(HandshakeError::Refused(Status::TooManyConnections, words)))) => {
                return Err(HandshakeError::Refused(Status::TooManyConnections, words));
            }
            _ => {}
        }
        if let Some(relay) = options.relay.as_ref().filter(|relay| !relay.is_for_full_servers()) {
            // What the server itself refuses is refused. Without an answer it may still be reached directly.
            match self.connect_through(relay).await {
                Some(Err(HandshakeError::Broken(_))) | None => {}
                Some(outcome) => return outcome,
            }
        }
        let direct = self.connect_directly(waits).await;
        if let Err(HandshakeError::Refused(Status::NotLocal, _)) = &direct {
            // It may have come up since we looked; by now it listens here, if it is on this machine.
            match self.connect_locally(waits).await {
                Some(Some(Ok(connected))) => return Ok(connected),
                Some(_) => return Err(HandshakeError::Broken(ErrorKind::TimedOut.into())),
                None => {}
            }
        }
        direct
    }

    /// Through shared memory. Nothing where nobody listens for it who may be the server, and nothing within where
    /// nobody answers as the server would: only the handshake shows who it is.
    async fn connect_locally(&self, waits: bool) -> Option<Option<Result<(Stream, Welcome), HandshakeError>>> {
        let options = &self.options;
        let limit = self.reactor.now() + LOCAL_HANDSHAKE_NS_MAX.min(options.timeout);
        let stream = loop {
            match reach(&self.reactor, &options.cluster, options.server)? {
                Ok(stream) => break stream,
                // More callers wait there than the kernel keeps.
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.reactor.now() < limit => {
                    let pause = CROWD_PAUSE_NS + self.reactor.random() % CROWD_PAUSE_NS;
                    self.reactor.sleep(pause).await;
                }
                Err(_) => return None,
            }
        };
        let outcome = self.within_patience(limit, self.shake_hands(&stream, waits)).await;
        Some(outcome)
    }

    async fn connect_directly(&self, waits: bool) -> Result<(Stream, Welcome), HandshakeError> {
        let options = &self.options;
        let stream = self.reactor.connect(options.cluster.servers[options.server as usize].address).await?;
        self.shake_hands(&stream, waits).await
    }

    /// Nothing where no answer came in time.
    async fn connect_through(&self, relay: &Relay) -> Option<Result<(Stream, Welcome), HandshakeError>> {
        let limit = self.reactor.now() + RELAYED_HANDSHAKE_NS_MAX.min(self.options.timeout / 4);
        let relayed = std::pin::pin!(async {
            let stream = relay.open(self.options.server).await?;
            self.shake_hands(&stream, false).await
        });
        until(&self.reactor, limit, relayed).await
    }

    async fn shake_hands(&self, stream: &Stream, waits: bool) -> Result<(Stream, Welcome), HandshakeError> {
        let welcomes = self.state.borrow().statistics.connects;
        let in_queue = |places_before, turns| waits && self.note_queue(places_before, turns);
        introduce(&self.reactor, stream, &self.options.cluster, &self.introduction(welcomes), in_queue).await
    }

    /// As `within`, but while the server says that we wait our turn, and it moves, there is no limit.
    async fn within_patience<T>(&self, mut limit: Nanos, future: impl Future<Output = T>) -> Option<T> {
        let mut future = std::pin::pin!(future);
        loop {
            let outcome = until(&self.reactor, limit, future.as_mut()).await;
            let until = self.queued_until.get();
            if outcome.is_some() || until <= limit {
                return outcome;
            }
            limit = until;
        }
    }

    /// Takes in that we wait for a connection of the server's, in its queue or, where that is full too, outside. While
    /// others get theirs this is no silence. True if anybody here waits.
    fn note_queue(&self, places_before: u32, turns: u64) -> bool {
        let now = self.reactor.now();
        let has_moved = self.turns_seen.replace(turns) != turns;
        let mut state = self.state.borrow_mut();
        if places_before > 0 {
            self.queued_until.set(now + self.options.timeout);
            state.last_error = format!("all connections of the server are in use; place {places_before} in the queue");
        }
        if places_before > 0 || has_moved {
            state.calls.iter_mut().flatten().for_each(|outstanding| outstanding.last_life = now);
        }
        self.fail_once(&mut state, Status::TooManyConnections);
        state.outstanding > 0 && !state.closed
    }

    /// Takes in that an attempt to connect has failed.
    fn note_attempt(&self, words: String, status: Status) {
        let mut state = self.state.borrow_mut();
        state.last_error = words;
        self.fail_once(&mut state, status);
    }

    /// Tells of an event of this channel, if it is one between servers.
    fn log(&self, level: Level, name: &'static str, words: &str) {
        if self.options.role == Role::Server {
            let reason = &self.state.borrow().last_error;
            log::event(level, name, words, &[("peer", &self.options.server), ("reason", reason)]);
        }
    }

    fn tell(&self, turnabout: Turnabout) {
        let observer = self.observer.borrow().clone();
        if let Some(observer) = observer {
            observer(turnabout);
        }
    }

    /// Tells that the connection is gone, for the session may still count on being heard of.
    pub(super) fn tell_lost(self: &Rc<Self>, state: &ChannelState) {
        if state.established && !state.closed {
            let inner = self.clone();
            self.reactor.spawn(Class::Metadata, async move { inner.tell(Turnabout::Lost) });
        }
    }

    /// Takes a new connection into use and sends what is outstanding.
    pub(super) fn open(self: &Rc<Self>, stream: Stream, welcome: &Welcome) {
        let mut state = self.state.borrow_mut();
        if state.closed {
            return;
        }
        let resumed = std::mem::replace(&mut state.established, true);
        let same = std::mem::replace(&mut state.incarnation, welcome.incarnation) == welcome.incarnation;
        state.statistics.connects += 1;
        if resumed && !welcome.session_known {
            self.fail_unknown(&mut state);
        }
        let renewed = resumed && !(same && welcome.session_known);
        if renewed {
            state.life += 1;
            self.fail_outdated(&mut state);
        }
        stream.prepare();
        state.connection = ChannelConnection::Open {
            link: Link::new(stream.clone()),
            stream: stream.clone(),
            receiving: ReplyStage::Head,
        };
        let mut slots: Vec<usize> = (0..WINDOW)
            .filter(|slot| state.calls[*slot].as_ref().is_some_and(|outstanding| outstanding.outcome.is_none()))
            .collect();
        slots.sort_by_key(|slot| state.calls[*slot].as_ref().map(|outstanding| outstanding.call_id));
        for slot in slots {
            state.statistics.resends += u64::from(state.calls[slot].as_ref().is_some_and(|call| call.was_sent));
            self.send(&mut state, slot);
        }
        self.reactor.spawn(Class::Metadata, drive(self.clone(), state.statistics.connects));
        let life = state.life;
        drop(state);
        if renewed {
            self.tell(Turnabout::Renewed { session_known: welcome.session_known, life });
        } else if resumed {
            self.tell(Turnabout::Resumed);
        }
    }
}

/// Connects until it succeeds, the server refuses us, or nobody waits any more.
pub(super) async fn connect(inner: Rc<ChannelInner>) {
    let mut pause = PAUSE_NS_FIRST;
    let mut refusals_left =
        if inner.options.cluster.protection == Protection::Off { 0 } else { DISBELIEVED_REFUSAL_COUNT };
    loop {
        let mut pause_max = PAUSE_NS_MAX;
        let limit = inner.reactor.now() + inner.options.timeout;
        match inner.within_patience(limit, inner.try_connect()).await {
            Some(Ok((stream, welcome))) => {
                if pause > PAUSE_NS_FIRST {
                    inner.log(Level::Info, "server-reached", "another server can be reached again");
                }
                return inner.open(stream, &welcome);
            }
            Some(Err(HandshakeError::Refused(status, _))) if !is_passing(status) && refusals_left > 0 => {
                refusals_left -= 1;
                continue;
            }
            Some(Err(HandshakeError::Refused(status, words))) if !is_passing(status) => {
                let mut state = inner.state.borrow_mut();
                state.connection = ChannelConnection::None;
                inner.fail_all(&mut state, status, words);
                return;
            }
            Some(Err(HandshakeError::Refused(Status::ChangedOnWay, words))) => {
                inner.note_attempt(words.to_string(), Status::Unreachable);
            }
            Some(Err(HandshakeError::Refused(status, _))) => {
                pause_max = if status == Status::TooManyConnections { FULL_PAUSE_NS_MAX } else { PAUSE_NS_MAX };
                inner.note_attempt(status.to_string(), status);
            }
            Some(Err(HandshakeError::Broken(error))) => inner.note_attempt(error.to_string(), Status::Unreachable),
            None => inner.note_attempt("no answer to the handshake".to_string(), Status::Unreachable),
        }
        if pause == PAUSE_NS_FIRST {
            inner.log(Level::Warning, "server-unreachable", "another server can't be reached; it is tried again");
        }
        inner.reactor.sleep(pause + inner.reactor.random() % pause).await;
        pause = (pause * 2).min(pause_max);
        let mut state = inner.state.borrow_mut();
        if state.outstanding == 0 || state.closed {
            state.connection = ChannelConnection::None;
            inner.tell_lost(&state);
            return;
        }
    }
}

/// Refusals that may end by themselves while the caller still waits.
pub(super) fn is_passing(status: Status) -> bool {
    matches!(status, Status::TooManyConnections | Status::Draining | Status::ChangedOnWay)
}

/// Drives one open connection until it ends; then calls that still wait get a new one.
pub(super) async fn drive(inner: Rc<ChannelInner>, generation: u64) {
    let end = poll_fn(|cx| {
        let mut state = inner.state.borrow_mut();
        let current = state.statistics.connects == generation;
        match &mut state.connection {
            ChannelConnection::Open { link, .. } if current => link.set_waker(cx.waker()),
            _ => return Poll::Ready(None),
        }
        for _ in 0..FRAMES_PER_TURN {
            match inner.step(&mut state) {
                Ok(true) => {}
                Ok(false) => {
                    let ChannelConnection::Open { link, .. } = &mut state.connection else {
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
    let Some(error) = end else {
        return;
    };
    if matches!(error, LinkError::Protocol(Status::ChangedOnWay, _)) {
        inner.note_changed();
        // The next connection may meet with the same.
        inner.reactor.sleep(PAUSE_NS_FIRST).await;
        let mut state = inner.state.borrow_mut();
        if state.outstanding > 0 && matches!(state.connection, ChannelConnection::None) {
            inner.start_connecting(&mut state);
        }
        return;
    }
    let mut state = inner.state.borrow_mut();
    match error {
        LinkError::Broken(error) => inner.disconnect(&mut state, &error.to_string()),
        LinkError::Protocol(status, words) => {
            inner.disconnect(&mut state, words);
            if !is_passing(status) {
                inner.fail_all(&mut state, status, words);
            }
        }
    }
    inner.fail_once(&mut state, Status::Unreachable);
    if state.outstanding > 0 {
        inner.start_connecting(&mut state);
    }
}
