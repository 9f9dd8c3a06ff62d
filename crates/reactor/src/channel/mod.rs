//! The calling side of the message layer: one server at one call level, through whatever happens to the connection.
//!
//! A call is put on the wire at once, waits for its reply, and is resent with the same session sequence when the
//! connection breaks; the server answers a repeated sequence from its kept outcome. Silence past the time-out is an
//! error that names the server.
//!
//! Invariants:
//! 1. At most `REQUEST_WINDOW` calls are outstanding; a call's slot in the table is its call id modulo the window.
//! 2. A session sequence is used once, and not given out while another one without a reply has its place (`Sequences`).
//! 3. The memory of a call's body and place belongs to its `CallGuard`. When that goes away early, the place is
//!    recalled, and a body that is half sent takes the connection with it.
//! 4. A call that gave up (or never waited) keeps its slot until its reply has come or the connection has ended.

mod call;
mod connection;
mod ending;
mod receiving;
mod table;

pub use call::{Call, ChannelOptions, ChannelStatistics, Failure, Reply};

use crate::link::RawSlice;
use crate::{Nanos, Reactor, StoreMapping};
use shm::client_counters::ClientCounter;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use table::{ChannelConnection, ChannelState, WINDOW};
use wire::{Operation, Status};

/// A way to one server. Clones share it; with the last one the connection ends.
#[derive(Clone)]
pub struct Channel(Rc<ChannelInner>, #[allow(dead_code)] Rc<ChannelOwner>);

/// What becomes of a channel beside its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turnabout {
    /// The connection ended, or whoever waited for one gave up. For calls that still wait another one is made by
    /// itself, which can take as long as they wait; else there will be one with the next call only.
    Lost,
    /// There is a new connection, to a server that has lost what it kept of this session in memory, for it was started
    /// anew or had forgotten the session. `life` is for `Channel::call_in_life`.
    Renewed { session_known: bool, life: u64 },
    /// There is a new connection to a server that has kept what it knew of this session.
    Resumed,
}

/// Told of turnabouts.
pub type Observer = Rc<dyn Fn(Turnabout)>;

/// Held by channels alone, not by the tasks that serve them.
struct ChannelOwner(std::rc::Weak<ChannelInner>);

impl Drop for ChannelOwner {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.close();
        }
    }
}

struct ChannelInner {
    reactor: Reactor,
    options: ChannelOptions,
    observer: RefCell<Option<Observer>>,
    state: RefCell<ChannelState>,
    /// Until when a server that has no connection left may let us wait.
    queued_until: Cell<Nanos>,
    /// How many others it had let in when we heard of it last (`Welcome::turns`).
    turns_seen: Cell<u64>,
}

impl Channel {
    /// A channel that connects with its first call.
    pub fn new(reactor: &Reactor, options: ChannelOptions) -> Channel {
        let inner = Rc::new(ChannelInner {
            reactor: reactor.clone(),
            options,
            observer: RefCell::default(),
            state: RefCell::new(ChannelState::new()),
            queued_until: Cell::new(0),
            turns_seen: Cell::new(0),
        });
        let owner = Rc::new(ChannelOwner(Rc::downgrade(&inner)));
        Channel(inner, owner)
    }

    /// Has `observer` called at each turnabout; of a new connection after the requests under way were sent again.
    pub fn observe(&self, observer: Observer) {
        self.0.observer.replace(Some(observer));
    }

    pub fn server(&self) -> u32 {
        self.0.options.server
    }

    pub fn statistics(&self) -> ChannelStatistics {
        let state = self.0.state.borrow();
        let mut statistics = state.statistics;
        if let ChannelConnection::Open { link, .. } = &state.connection {
            statistics.bytes_sent += link.bytes_sent;
            statistics.bytes_received += link.bytes_received;
            statistics.sends += link.sends;
        }
        statistics
    }

    /// The last tree change that the server knew when it last replied, if only to refuse.
    pub fn tree_number(&self) -> u64 {
        self.0.state.borrow().tree_number
    }

    /// The number of the last error that the server had learnt of late when it last replied, and when that was.
    pub fn late_error(&self) -> (u64, Nanos) {
        self.0.state.borrow().late_error
    }

    /// What the server lends us to read from, if we run on its machine.
    pub fn mapping(&self) -> Option<Rc<StoreMapping>> {
        match &self.0.state.borrow().connection {
            ChannelConnection::Open { stream, .. } => stream.mapping(),
            _ => None,
        }
    }

    /// Counts things that are done without the server. False where it shares no memory with us.
    pub fn count(&self, counts: &[(ClientCounter, u64)]) -> bool {
        match &self.0.state.borrow().connection {
            ChannelConnection::Open { stream, .. } => stream.count(counts),
            _ => false,
        }
    }

    /// Calls without a reply so far, those that nobody waits for included.
    pub fn outstanding(&self) -> usize {
        self.0.state.borrow().outstanding
    }

    /// Closes the connection for good; outstanding calls fail.
    pub fn close(&self) {
        self.0.close();
    }

    /// Closes the connection for good, as `close`, and tells the server that the session has ended, so that it need not
    /// wait for it to come back. Returns when the server has heard of that, or can't.
    pub async fn end(&self) {
        self.0.end().await;
    }

    /// Sends a request and waits for its reply. It reaches the wire when first polled. A call that is dropped early may
    /// still be applied. Errors: the server's, or `Unreachable`, `TimedOut`, `OutcomeUnknown`, `KeyMismatch`, ...
    pub async fn call(&self, call: Call<'_>) -> Result<Reply, Failure> {
        self.call_within(call, None).await
    }

    /// As `call`, for a request that tells the server what it has lost: once the server has lost it again, the request
    /// is not true any more and fails instead of being sent again.
    pub async fn call_in_life(&self, call: Call<'_>, life: u64) -> Result<Reply, Failure> {
        self.call_within(call, Some(life)).await
    }

    async fn call_within(&self, mut call: Call<'_>, life: Option<u64>) -> Result<Reply, Failure> {
        let body_size: u64 = call.body.iter().map(|slice| slice.len() as u64).sum();
        let mutating = call.operation.is_mutating();
        self.room(call.operation, body_size, mutating, call.deadline).await?;
        let slot = {
            let mut state = self.0.state.borrow_mut();
            if life.is_some_and(|life| life != state.life) {
                return Err(self.0.outdated(call.operation));
            }
            let body = call.body.iter().map(|slice| RawSlice::of_bytes(slice)).collect();
            let place = call
                .place
                .iter_mut()
                .map(|slice| RawSlice { pointer: slice.as_mut_ptr(), size: slice.len() })
                .collect();
            let params = (call.params, call.user_size);
            let slot = self.0.register(&mut state, call.operation, params, body, place, call.deadline);
            if let Some(outstanding) = &mut state.calls[slot] {
                outstanding.life = life;
                outstanding.once = call.once;
            }
            slot
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
                ChannelConnection::Open { link, .. } => {
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

    /// Sends a request whose reply nobody waits for. False, and nothing is sent, when the window is full or the channel
    /// is not connected: for hints only.
    pub fn notify(&self, operation: Operation, params: Vec<u8>) -> bool {
        assert!(!operation.is_mutating());
        let mut state = self.0.state.borrow_mut();
        if state.outstanding == WINDOW || !matches!(state.connection, ChannelConnection::Open { .. }) {
            return false;
        }
        let slot = self.0.register(&mut state, operation, (params, 0), Vec::new(), Vec::new(), None);
        if let Some(outstanding) = &mut state.calls[slot] {
            outstanding.abandoned = true;
        }
        true
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

/// Stands for the caller of a call, until its outcome was taken or its future is dropped.
struct CallGuard<'a> {
    inner: &'a Rc<ChannelInner>,
    slot: usize,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.inner.part(self.slot);
    }
}
