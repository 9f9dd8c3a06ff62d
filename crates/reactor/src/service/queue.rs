//! Clients that have proved themselves while all connections are in use: each waits for its turn, in the order in which
//! they came. They hold a descriptor and what a stranger holds, and nothing of a connection.

use super::{HANDSHAKE_NS, Serving};
use crate::Stream;
use crate::executor::until;
use crate::handshake::{Guest, HandshakeError};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::{ErrorKind, IoSliceMut};
use std::task::{Context, Poll, Waker};
use wire::Status;
use wire::handshake::Role;

/// How many may wait, for each connection that there may be.
const WAITING_PER_CONNECTION: usize = 16;
/// Memory that one of them has mapped here, in bytes: what both sides have touched of it.
pub(super) const WAITING_SHARED_SIZE: usize = 32 << 10;

/// Most clients that wait.
pub(super) fn waiting_max(connections_max: usize) -> usize {
    WAITING_PER_CONNECTION * connections_max
}

#[derive(Default)]
pub(super) struct Queue {
    waiting: BTreeMap<u64, Option<Waker>>,
    next: u64,
    /// How many have left it.
    left: u64,
}

impl Queue {
    pub fn turns(&self) -> u64 {
        self.left
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Has the first one look whether there is room.
    pub fn wake_first(&mut self) {
        if let Some(waker) = self.waiting.first_entry().and_then(|mut first| first.get_mut().take()) {
            waker.wake();
        }
    }

    pub fn wake_all(&mut self) {
        self.waiting.values_mut().filter_map(Option::take).for_each(Waker::wake);
    }
}

/// A place in the queue, until it is dropped.
struct QueuePosition<'s> {
    serving: &'s Serving,
    ticket: u64,
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        let mut queue = self.serving.queue.borrow_mut();
        queue.waiting.remove(&self.ticket);
        queue.left += 1;
        queue.wake_first();
    }
}

impl QueuePosition<'_> {
    /// How many are served before the one behind this place: at most so many, for some may leave.
    fn places_before(&self) -> u32 {
        let queue = self.serving.queue.borrow();
        let first = queue.waiting.first_key_value().map_or(self.ticket, |(first, _)| *first);
        u32::try_from(self.ticket - first + 1).unwrap_or(u32::MAX)
    }

    fn poll(&self, role: Role, stream: &Stream, cx: &mut Context<'_>) -> Poll<Result<(), HandshakeError>> {
        if self.serving.closed.get() {
            return Poll::Ready(Err(HandshakeError::Refused(Status::Draining, "the connection was refused")));
        }
        while stream.poll_readable(cx).is_ready() {
            match stream.try_recv(&mut [IoSliceMut::new(&mut [0])]) {
                Ok(0) => return Poll::Ready(Err(HandshakeError::Broken(ErrorKind::UnexpectedEof.into()))),
                Ok(_) => {
                    let words = "nothing is to be said before the welcome";
                    return Poll::Ready(Err(HandshakeError::Refused(Status::BadMessage, words)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        let mut queue = self.serving.queue.borrow_mut();
        let is_first = queue.waiting.first_key_value().is_some_and(|(first, _)| *first == self.ticket);
        if is_first && !self.serving.is_full(role) {
            return Poll::Ready(Ok(()));
        }
        queue.waiting.insert(self.ticket, Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl Serving {
    /// Waits until a client may have a connection; it hears when it is nearer to it. Errors: the client has gone, or
    /// there are too many that wait.
    pub(super) async fn wait_for_turn(&self, stream: &Stream, guest: &Guest) -> Result<(), HandshakeError> {
        let role = guest.hello.role;
        let place = {
            let mut queue = self.queue.borrow_mut();
            if queue.len() >= waiting_max(self.options.connections_max) {
                return Err(HandshakeError::Refused(
                    Status::TooManyConnections,
                    "too many clients wait for a connection",
                ));
            }
            queue.next += 1;
            let ticket = queue.next;
            queue.waiting.insert(ticket, None);
            QueuePosition { serving: self, ticket }
        };
        loop {
            let left = self.queue.borrow().left;
            let limit = self.reactor.now() + HANDSHAKE_NS;
            let telling = std::pin::pin!(guest.tell_place(place.places_before(), left));
            let told = until(&self.reactor, limit, telling).await;
            told.ok_or(HandshakeError::Broken(ErrorKind::TimedOut.into()))??;
            // Who is told that nothing has moved would wait for ever where nobody leaves.
            loop {
                let limit = self.reactor.now() + self.options.working_interval;
                let turn = std::pin::pin!(poll_fn(|cx| place.poll(role, stream, cx)));
                if let Some(outcome) = until(&self.reactor, limit, turn).await {
                    return outcome;
                }
                if self.queue.borrow().left != left {
                    break;
                }
            }
        }
    }
}
