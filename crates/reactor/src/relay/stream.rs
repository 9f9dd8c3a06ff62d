//! One side of a stream in a tunnel, for whoever sends and receives there.

use super::tunnel::{Freeing, Tunnel, TunnelPiece};
use crate::Stream;
use crate::stream::{Readiness, Socket, Way};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::task::Waker;
use wire::Status;
use wire::relay::{STREAM_DATA_SIZE_MAX, STREAM_FRAME_COST};

/// Room below which nothing is sent when more is at hand, so that windows are not used up by small frames.
const ROOM_MIN: usize = 4096;

/// One side of a stream. Ends it when dropped.
pub(crate) struct End {
    tunnel: Rc<Tunnel>,
    number: u64,
}

impl End {
    pub(super) fn new(tunnel: Rc<Tunnel>, number: u64) -> End {
        End { tunnel, number }
    }

    /// As a stream like any other.
    pub(crate) fn into_stream(self) -> Stream {
        let state = self.tunnel.state.borrow();
        let readiness = match state.streams.get(&self.number) {
            Some(stream) => stream.readiness.clone(),
            None => {
                let over = Readiness::new();
                over.set_hung_up();
                over
            }
        };
        drop(state);
        Stream::new(self, readiness)
    }

    /// Ends it, saying why.
    pub(crate) fn finish(&self, status: Status) {
        self.tunnel.end_stream(self.number, status);
    }

    /// Has a task woken when anything about it changes.
    pub(super) fn watch(&self, waker: &Waker) {
        if let Some(stream) = self.tunnel.state.borrow_mut().streams.get_mut(&self.number)
            && !stream.passer.as_ref().is_some_and(|old| old.will_wake(waker))
        {
            stream.passer = Some(waker.clone());
        }
    }

    /// The room that the next bytes take, if any are here.
    pub(super) fn next_cost(&self) -> Option<usize> {
        let state = self.tunnel.state.borrow();
        state.streams.get(&self.number)?.incoming.front().map(TunnelPiece::cost)
    }

    /// Whether the other side has room.
    pub(super) fn has_room(&self, cost: usize) -> bool {
        let state = self.tunnel.state.borrow();
        state.streams.get(&self.number).is_some_and(|stream| !stream.ended_here && stream.credit >= cost)
    }

    /// Why nothing more will come, once everything that came was taken.
    pub(super) fn over(&self) -> Option<Status> {
        let state = self.tunnel.state.borrow();
        let Some(stream) = state.streams.get(&self.number) else { return Some(Status::Unreachable) };
        let end = stream.ended_there.or(state.closed.then_some(Status::Unreachable));
        end.filter(|_| stream.incoming.is_empty())
    }

    /// Takes the next bytes; their room is free again when the second part is dropped.
    pub(super) fn take(&self) -> Option<(Vec<u8>, Freeing)> {
        let mut state = self.tunnel.state.borrow_mut();
        let stream = state.streams.get_mut(&self.number)?;
        let piece = stream.incoming.pop_front()?;
        let freeing = Freeing::new(&self.tunnel, self.number, &stream.freed, piece.cost());
        Some((piece.bytes, freeing))
    }

    /// Sends bytes for which there is room.
    pub(super) fn put(&self, bytes: Vec<u8>, freeing: Freeing) {
        let mut state = self.tunnel.state.borrow_mut();
        self.tunnel.send_data(&mut state, self.number, bytes, Some(freeing));
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.finish(Status::Ok);
    }
}

impl Socket for End {
    fn try_recv(&self, places: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut state = self.tunnel.state.borrow_mut();
        let is_closed = state.closed;
        let Some(stream) = state.streams.get_mut(&self.number).filter(|stream| !stream.ended_here) else {
            return Ok(0);
        };
        if stream.incoming.is_empty() {
            return match (stream.ended_there, is_closed) {
                (Some(_), _) => Ok(0),
                (None, true) => Err(ErrorKind::ConnectionReset.into()),
                (None, false) => Err(ErrorKind::WouldBlock.into()),
            };
        }
        let mut received = 0;
        let mut room = 0;
        for place in places {
            let mut filled = 0;
            while filled < place.len()
                && let Some(piece) = stream.incoming.front_mut()
            {
                let rest = &piece.bytes[piece.taken..];
                let size = rest.len().min(place.len() - filled);
                place[filled..filled + size].copy_from_slice(&rest[..size]);
                filled += size;
                piece.taken += size;
                if piece.taken == piece.bytes.len() {
                    room += piece.cost();
                    stream.incoming.pop_front();
                }
            }
            received += filled;
        }
        let freeing = Freeing::new(&self.tunnel, self.number, &stream.freed, room);
        drop(state);
        drop(freeing);
        Ok(received)
    }

    fn try_send(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.tunnel.state.borrow_mut();
        let is_closed = state.closed;
        let Some(stream) = state.streams.get(&self.number) else { return Err(ErrorKind::BrokenPipe.into()) };
        if is_closed || stream.ended_here || stream.ended_there.is_some() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let offered: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut room = stream.credit;
        let mut left = pieces.iter().map(|piece| &piece[..]);
        let mut rest: &[u8] = &[];
        let mut sent = 0;
        while sent < offered && room >= STREAM_FRAME_COST + (offered - sent).min(ROOM_MIN) {
            let size = (offered - sent).min(STREAM_DATA_SIZE_MAX).min(room - STREAM_FRAME_COST);
            let mut bytes = Vec::with_capacity(size);
            while bytes.len() < size {
                if rest.is_empty() {
                    let Some(next) = left.next() else { break };
                    rest = next;
                    continue;
                }
                let (part, after) = rest.split_at(rest.len().min(size - bytes.len()));
                bytes.extend_from_slice(part);
                rest = after;
            }
            room -= size + STREAM_FRAME_COST;
            sent += size;
            self.tunnel.send_data(&mut state, self.number, bytes, None);
        }
        if sent == 0 && offered > 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(sent) }
    }

    fn shutdown(&self) {
        self.finish(Status::Ok);
    }

    /// The other end is behind the contact; nobody relies on where.
    fn peer_address(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))
    }

    fn way(&self) -> Way {
        Way::Relayed
    }

    fn take_error(&self) -> io::Result<()> {
        Ok(())
    }

    /// The windows of the tunnel count.
    fn set_buffer_sizes(&self, _receive: usize, _send: usize) -> io::Result<()> {
        Ok(())
    }
}
