//! A request as the service sees it, from its parameters to its reply.

use super::connection::{Connection, RequestStage};
use super::{Disconnected, Peer, Serving};
use crate::link::{RawSlice, ReplyBody};
use crate::{Nanos, Span};
use std::future::poll_fn;
use std::rc::Rc;
use wire::messages::ErrorDetail;
use wire::{Encode, FileId, FrameKind, Header, Operation, Status};

/// A request on its way through the server. Dropped without a reply it answers `Io`.
pub struct Incoming {
    pub header: Header,
    pub operation: Operation,
    pub params: Vec<u8>,
    pub peer: Rc<Peer>,
    /// When its last bytes can have arrived at the earliest: they were not there when the loop looked before.
    pub arrived: Nanos,
    /// When its last bytes were read from the stream, as far as that is known: those of a batch came together.
    pub read: Nanos,
    /// When it was handed to the service: later than it arrived by the time that those before it took.
    pub taken: Nanos,
    /// How long the service has waited for its body.
    pub(super) body_wait: Nanos,
    pub(super) connection: Rc<Connection>,
    pub(super) serving: Rc<Serving>,
    pub(super) answered: bool,
}

impl Incoming {
    /// Bytes of the request's body.
    pub fn body_size(&self) -> usize {
        self.header.body_size as usize
    }

    /// When the caller stops waiting.
    pub fn deadline(&self) -> Nanos {
        self.read + Nanos::from(self.header.time) * 1_000_000
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
        for place in places {
            place.region.announce(place.offset, place.size);
        }
        {
            let mut state = connection.state.borrow_mut();
            match state.receiving {
                RequestStage::Waiting { call_id: waiting, .. } if waiting == call_id && !state.closed => {}
                _ => return Err(Disconnected),
            }
            state.receiving = RequestStage::Body {
                call_id,
                places: places.iter().map(RawSlice::of_span).collect(),
                _keep: places.to_vec(),
                received: 0,
            };
            state.silent_since = self.serving.reactor.now();
        }
        let begun = self.serving.reactor.now();
        let _guard = BodyGuard { connection: &connection, call_id };
        let reactor = self.serving.reactor.clone();
        poll_fn(|cx| connection.poll_body(call_id, reactor.step_bytes(), cx.waker())).await?;
        self.body_wait += self.serving.reactor.now().saturating_sub(begun);
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
        header.tree_number = self.serving.tree_number.get();
        header.late_error = self.serving.late_error.get();
        let served = self.serving.reactor.now().saturating_sub(self.arrived).saturating_sub(self.body_wait);
        header.time = u32::try_from(served / 1000).unwrap_or(u32::MAX);
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

/// Takes the places back when the handler goes away in the middle of a body.
struct BodyGuard<'a> {
    connection: &'a Connection,
    call_id: u64,
}

impl Drop for BodyGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.connection.state.borrow_mut();
        if let RequestStage::Body { call_id, places, received, .. } = &state.receiving
            && *call_id == self.call_id
        {
            let left = places.iter().map(|place| place.size).sum::<usize>() - received;
            state.receiving = RequestStage::Discard { left };
            self.connection.link.borrow().wake();
        }
    }
}
