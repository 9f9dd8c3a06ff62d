//! Incoming frames: replies to their calls, bodies to their places.

use super::table::{BodyTarget, ChannelConnection, ChannelState, ReplyStage};
use super::{ChannelInner, Failure, Reply};
use crate::Nanos;
use crate::link::{LinkError, RawSlice};
use wire::messages::ErrorDetail;
use wire::{Decode, FrameKind, Header, Status};

impl ChannelInner {
    /// Handles one incoming frame or part of a body. False when nothing more has arrived.
    pub(super) fn step(&self, state: &mut ChannelState) -> Result<bool, LinkError> {
        let ChannelConnection::Open { link, receiving, .. } = &mut state.connection else {
            return Ok(false);
        };
        if let ReplyStage::Body { target, received, .. } = receiving {
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
            let ReplyStage::Body { slot, header, params, target, .. } = std::mem::replace(receiving, ReplyStage::Head)
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

    pub(super) fn take_frame(
        &self,
        state: &mut ChannelState,
        header: Header,
        params: Vec<u8>,
    ) -> Result<(), LinkError> {
        match header.kind {
            FrameKind::Reply => {}
            FrameKind::Working => return self.note_working(state, &header, &params),
            FrameKind::Goodbye => {
                let status = Status::from_code(header.status).unwrap_or(Status::BadMessage);
                return Err(LinkError::Protocol(status, "the server closed the connection because of our request"));
            }
            FrameKind::Request | FrameKind::Stream | FrameKind::Waiting => {
                return Err(LinkError::Protocol(Status::BadMessage, "the server sent a request where a reply was due"));
            }
        }
        let Some(slot) = state.slot_of(header.call_id) else {
            return Err(LinkError::Protocol(Status::BadMessage, "the server answered a call that nobody made"));
        };
        let (Some(outstanding), ChannelConnection::Open { receiving, .. }) =
            (&mut state.calls[slot], &mut state.connection)
        else {
            unreachable!("the call's slot was just found on an open connection");
        };
        let size = header.body_size as usize;
        if size == 0 {
            return self.take_reply(state, slot, header, params, Vec::new());
        }
        outstanding.last_life = self.reactor.now();
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
        *receiving = ReplyStage::Body { slot, header, params, target, received: 0 };
        Ok(())
    }

    pub(super) fn take_reply(
        &self,
        state: &mut ChannelState,
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
        state.tree_number = header.tree_number;
        state.late_error = (header.late_error, self.reactor.now());
        let served = Nanos::from(header.time) * 1000;
        let outcome = match Status::from_code(header.status) {
            Some(Status::Ok) => {
                let (body_size, tree_number) = (header.body_size as usize, header.tree_number);
                Ok(Reply { params, body_size, body, tree_number, served })
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
                    served,
                })
            }
            None => return Err(LinkError::Protocol(Status::BadMessage, "the server answered an unknown status")),
        };
        state.finish(slot, outcome);
        Ok(())
    }

    pub(super) fn note_working(
        &self,
        state: &mut ChannelState,
        header: &Header,
        params: &[u8],
    ) -> Result<(), LinkError> {
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
pub(super) fn first_bytes(places: &[RawSlice], size: usize) -> Vec<RawSlice> {
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
