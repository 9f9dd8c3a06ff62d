//! Framing over a byte stream, the same for both sides of a connection: header first, body to its final place.
//!
//! Invariants:
//! 1. A frame's bytes leave in one piece: nothing is sent between its head and the end of its body.
//! 2. Frames are counted on both sides; a frame out of sequence closes the connection.
//! 3. A body never passes through memory that is sized by the peer: it goes to places that the receiver chose, save for
//!    at most `READ_AHEAD_SIZE` bytes that arrived together with the header.
//! 4. Memory named by raw slices outlives the frame: `OutgoingFrame::keep` holds it, or the owner of the borrowed
//!    memory closes the link before letting go (`channel`).

use crate::schedule::bytes_of_rest;
use crate::sealing::{CHANGED, is_changed};
use crate::{Span, Stream};
use shm::copying::copy;
use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::rc::Rc;
use std::task::{Context, Waker};
use wire::header::HEADER_SIZE;
use wire::limits::PARAMS_SIZE_MAX;
use wire::{Header, Status};

/// Bytes asked for while waiting for a header: small bodies come along, large ones mostly don't pass the buffer.
const READ_AHEAD_SIZE: usize = 4608;
/// Pieces of memory given to the kernel in one call.
const SLICE_COUNT_MAX: usize = 128;
/// Largest receive buffer of a connection, in bytes.
pub(crate) const RECEIVE_BUFFER_SIZE_MAX: usize = HEADER_SIZE + PARAMS_SIZE_MAX;
/// Memory that stands for bytes that were never written.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Why a link ended.
#[derive(Debug)]
pub(crate) enum LinkError {
    /// The stream broke or ended.
    Broken(io::Error),
    /// The peer broke the protocol: it is told so and the connection is closed.
    Protocol(Status, &'static str),
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        if is_changed(&error) { LinkError::Protocol(Status::ChangedOnWay, CHANGED) } else { LinkError::Broken(error) }
    }
}

/// Memory by address; see invariant 4.
#[derive(Clone, Copy)]
pub(crate) struct RawSlice {
    pub pointer: *mut u8,
    pub size: usize,
}

impl RawSlice {
    pub(crate) fn of_bytes(bytes: &[u8]) -> RawSlice {
        RawSlice { pointer: bytes.as_ptr().cast_mut(), size: bytes.len() }
    }

    pub(crate) fn of_span(span: &Span) -> RawSlice {
        assert!(span.offset.checked_add(span.size).is_some_and(|end| end <= span.region.size()));
        // SAFETY: the offset lies within the mapped region, as just asserted.
        let pointer = unsafe { span.region.base().add(span.offset as usize) };
        RawSlice { pointer, size: span.size as usize }
    }
}

/// One part of a reply's body.
pub enum BodyPiece {
    Span(Span),
    /// So many zero bytes.
    Zero(usize),
    Bytes(Vec<u8>),
}

/// A reply's body, sent straight from where it lies. `guard` is dropped when the last byte was handed to the kernel.
#[derive(Default)]
pub struct ReplyBody {
    pub pieces: Vec<BodyPiece>,
    pub guard: Option<Box<dyn Any>>,
}

impl ReplyBody {
    pub(crate) fn slices(&self) -> Vec<RawSlice> {
        let mut slices = Vec::with_capacity(self.pieces.len());
        for piece in &self.pieces {
            match piece {
                BodyPiece::Span(span) => slices.push(RawSlice::of_span(span)),
                BodyPiece::Bytes(bytes) => slices.push(RawSlice::of_bytes(bytes)),
                BodyPiece::Zero(size) => {
                    let mut left = *size;
                    while left > 0 {
                        let part = left.min(ZEROS.len());
                        slices.push(RawSlice::of_bytes(&ZEROS[..part]));
                        left -= part;
                    }
                }
            }
        }
        slices
    }
}

/// A frame on its way out.
struct OutgoingFrame {
    head: Vec<u8>,
    body: Vec<RawSlice>,
    size: usize,
    sent: usize,
    /// The call that owns the body's memory, or 0.
    call_id: u64,
    _keep: Option<ReplyHeld>,
}

/// A reply while it is queued: its bytes are counted, and the memory of its body is kept.
pub(crate) struct ReplyHeld {
    counted_in: Rc<Cell<usize>>,
    size: usize,
    _body: ReplyBody,
}

impl ReplyHeld {
    /// Adds `size` bytes to a count until this is dropped.
    pub(crate) fn new(counted_in: &Rc<Cell<usize>>, size: usize, body: ReplyBody) -> ReplyHeld {
        counted_in.set(counted_in.get() + size);
        ReplyHeld { counted_in: counted_in.clone(), size, _body: body }
    }
}

impl Drop for ReplyHeld {
    fn drop(&mut self) {
        self.counted_in.set(self.counted_in.get() - self.size);
    }
}

/// One connection's framing state.
pub(crate) struct Link {
    stream: Stream,
    /// The task that drives this connection; all readiness is delivered to it.
    waker: Waker,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    receive_sequence: u64,
    send_sequence: u64,
    queue: VecDeque<OutgoingFrame>,
    spare_heads: Vec<Vec<u8>>,
    /// Bytes that may be moved still in this step; without steps any number.
    budget: usize,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Times that frames were handed to the stream: those that are queued together go together.
    pub sends: u64,
}

impl Link {
    pub(crate) fn new(stream: Stream) -> Link {
        Link {
            stream,
            waker: Waker::noop().clone(),
            buffer: vec![0; HEADER_SIZE + READ_AHEAD_SIZE],
            start: 0,
            end: 0,
            receive_sequence: 0,
            send_sequence: 0,
            queue: VecDeque::new(),
            spare_heads: Vec::new(),
            budget: usize::MAX,
            bytes_sent: 0,
            bytes_received: 0,
            sends: 0,
        }
    }

    pub(crate) fn set_waker(&mut self, waker: &Waker) {
        if !self.waker.will_wake(waker) {
            self.waker = waker.clone();
        }
    }

    /// From here on so many bytes are moved; then it is as if nothing more could be received or sent.
    pub(crate) fn begin_step(&mut self, bytes_max: usize) {
        self.budget = bytes_max;
    }

    /// Whether it may be the end of a step for which nothing more was moved: then nobody else wakes the driving task.
    pub(crate) fn is_spent(&self) -> bool {
        self.budget == 0
    }

    /// Lets the driving task run soon, to flush what was queued.
    pub(crate) fn wake(&self) {
        self.waker.wake_by_ref();
    }

    pub(crate) fn shutdown(&mut self) {
        self.queue.clear();
        self.stream.shutdown();
    }

    // ------------------------------------------------------------------------------------------------ sending

    /// Queues a frame. Sizes and sequence are filled in here.
    pub(crate) fn enqueue(
        &mut self,
        mut header: Header,
        params: &[u8],
        body: Vec<RawSlice>,
        call_id: u64,
        keep: Option<ReplyHeld>,
    ) {
        assert!(params.len() <= PARAMS_SIZE_MAX);
        let body_size: usize = body.iter().map(|slice| slice.size).sum();
        header.params_size = params.len() as u32;
        header.body_size = u32::try_from(body_size).unwrap_or(u32::MAX);
        header.frame_sequence = self.send_sequence;
        self.send_sequence += 1;
        let mut head = self.spare_heads.pop().unwrap_or_default();
        head.clear();
        head.extend_from_slice(&header.to_array());
        head.extend_from_slice(params);
        let size = head.len() + body_size;
        self.queue.push_back(OutgoingFrame { head, body, size, sent: 0, call_id, _keep: keep });
    }

    /// Whether bytes owned by this call still wait to be sent.
    pub(crate) fn is_sending(&self, call_id: u64) -> bool {
        self.queue.iter().any(|frame| frame.call_id == call_id && !frame.body.is_empty())
    }

    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Sends what the stream takes. True when all of the queue was handed over; otherwise the driving task is woken
    /// when there is room again, or by the caller where the step may move no more (`is_spent`).
    pub(crate) fn flush(&mut self) -> Result<bool, LinkError> {
        loop {
            if self.is_spent() && self.has_queued() {
                return Ok(false);
            }
            let sent = match self.queue.front() {
                None => match self.stream.flush() {
                    Ok(()) => return Ok(true),
                    Err(error) => Err(error),
                },
                // Most often a lone frame without a body: no list is needed for it.
                Some(frame) if self.queue.len() == 1 && frame.body.is_empty() => {
                    self.stream.try_send(&[IoSlice::new(&frame.head[frame.sent..])])
                }
                _ => {
                    let (mut slices, mut left) = (Vec::with_capacity(8), self.budget);
                    for frame in &self.queue {
                        push_unsent(frame, &mut slices, &mut left);
                        if slices.len() >= SLICE_COUNT_MAX || left == 0 {
                            break;
                        }
                    }
                    self.stream.try_send(&slices)
                }
            };
            match sent {
                Ok(count) => self.note_sent(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let waker = self.waker.clone();
                    if self.stream.poll_writable(&mut Context::from_waker(&waker)).is_pending() {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn note_sent(&mut self, mut count: usize) {
        self.bytes_sent += count as u64;
        self.budget = self.budget.saturating_sub(count);
        self.sends += 1;
        while count > 0 {
            let Some(frame) = self.queue.front_mut() else {
                unreachable!("more bytes were sent than were queued");
            };
            let part = count.min(frame.size - frame.sent);
            frame.sent += part;
            count -= part;
            if frame.sent == frame.size
                && let Some(done) = self.queue.pop_front()
                && self.spare_heads.len() < 8
                && done.head.capacity() <= 4096
            {
                self.spare_heads.push(done.head);
            }
        }
    }

    // ---------------------------------------------------------------------------------------------- receiving

    /// The next frame's header and parameters, or `None` when more bytes have to arrive first.
    pub(crate) fn next_frame(&mut self) -> Result<Option<(Header, Vec<u8>)>, LinkError> {
        loop {
            let wanted = match self.parse_header()? {
                Some(header) => {
                    let size = HEADER_SIZE + header.params_size as usize;
                    if self.end - self.start >= size {
                        let params = self.buffer[self.start + HEADER_SIZE..self.start + size].to_vec();
                        self.consume(size);
                        self.receive_sequence += 1;
                        return Ok(Some((header, params)));
                    }
                    size
                }
                None => HEADER_SIZE,
            };
            if !self.fill(wanted)? {
                return Ok(None);
            }
        }
    }

    fn parse_header(&self) -> Result<Option<Header>, LinkError> {
        let Some(bytes) = self.buffer[self.start..self.end].first_chunk::<HEADER_SIZE>() else {
            return Ok(None);
        };
        let header = Header::from_array(bytes).map_err(|error| LinkError::Protocol(Status::BadMessage, error.0))?;
        if header.frame_sequence != self.receive_sequence {
            return Err(LinkError::Protocol(Status::BadMessage, "frame is out of sequence: replayed or lost"));
        }
        Ok(Some(header))
    }

    fn consume(&mut self, size: usize) {
        self.start += size;
        assert!(self.start <= self.end);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Receives into the buffer so that a frame head of `wanted` bytes fits. False when nothing has arrived.
    fn fill(&mut self, wanted: usize) -> Result<bool, LinkError> {
        let room_wanted = wanted.max(READ_AHEAD_SIZE);
        if self.start > 0 && self.start + room_wanted > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.buffer.len() < room_wanted {
            self.buffer.resize(room_wanted, 0);
        }
        let limit = (self.start + room_wanted).min(self.buffer.len());
        match self.receive(&[], limit)? {
            None => Ok(false),
            Some((_, buffered)) => {
                self.end += buffered;
                Ok(true)
            }
        }
    }

    /// One receive into `places`, then into the buffer up to `buffer_limit`. Bytes into (places, buffer).
    fn receive(&mut self, places: &[RawSlice], buffer_limit: usize) -> Result<Option<(usize, usize)>, LinkError> {
        let place_size: usize = places.iter().map(|slice| slice.size).sum();
        if self.is_spent() {
            return Ok(None);
        }
        loop {
            let waker = self.waker.clone();
            if self.stream.poll_readable(&mut Context::from_waker(&waker)).is_pending() {
                return Ok(None);
            }
            let received = if places.is_empty() {
                self.stream.try_recv(&mut [IoSliceMut::new(&mut self.buffer[self.end..buffer_limit])])
            } else {
                let mut slices: Vec<IoSliceMut> = Vec::with_capacity(places.len() + 1);
                for place in places {
                    // SAFETY: invariant 4: the owner of the place keeps it alive and unaliased while it is registered,
                    // and unregisters it before letting go.
                    let bytes = unsafe { std::slice::from_raw_parts_mut(place.pointer, place.size) };
                    slices.push(IoSliceMut::new(bytes));
                }
                slices.push(IoSliceMut::new(&mut self.buffer[self.end..buffer_limit]));
                self.stream.try_recv(&mut slices)
            };
            match received {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => {
                    self.bytes_received += count as u64;
                    self.budget = self.budget.saturating_sub(count);
                    let placed = count.min(place_size);
                    return Ok(Some((placed, count - placed)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives a body into `places`, of which `received` bytes are there already. True when the places are full.
    pub(crate) fn receive_body(&mut self, places: &[RawSlice], received: &mut usize) -> Result<bool, LinkError> {
        let total: usize = places.iter().map(|place| place.size).sum();
        while *received < total {
            let buffered = self.end - self.start;
            if buffered > 0 {
                let count = self.drain_buffer(&unreceived(places, *received, buffered));
                *received += count;
                continue;
            }
            if self.is_spent() {
                return Ok(false);
            }
            let rest = unreceived(places, *received, bytes_of_rest(total - *received, self.budget));
            // The buffer is empty here, so what follows the body lands at its start.
            let covered = rest.iter().map(|slice| slice.size).sum::<usize>() == total - *received;
            let limit = if covered { READ_AHEAD_SIZE } else { 0 };
            match self.receive(&rest, limit)? {
                None => return Ok(false),
                Some((placed, ahead)) => {
                    *received += placed;
                    self.end += ahead;
                }
            }
        }
        Ok(true)
    }

    fn drain_buffer(&mut self, places: &[RawSlice]) -> usize {
        let mut copied = 0;
        for place in places {
            let part = place.size.min(self.end - self.start);
            if part == 0 {
                break;
            }
            // SAFETY: invariant 4 for the place; the source is the buffer's own initialised memory, which no place
            // overlaps.
            unsafe { copy(self.buffer.as_ptr().add(self.start), place.pointer, part) };
            copied += part;
            self.consume(part);
        }
        copied
    }

    /// Throws away `left` bytes of a body. True when none are left.
    pub(crate) fn discard_body(&mut self, left: &mut usize) -> Result<bool, LinkError> {
        while *left > 0 {
            let part = (*left).min(self.end - self.start);
            if part > 0 {
                self.consume(part);
                *left -= part;
                continue;
            }
            let limit = (*left).min(self.buffer.len());
            match self.receive(&[], limit)? {
                None => return Ok(false),
                Some((_, buffered)) => self.end += buffered,
            }
        }
        Ok(true)
    }
}

/// Adds the memory of a frame that was not sent yet, as much as a step may send of it that has `left` bytes.
fn push_unsent<'a>(frame: &'a OutgoingFrame, slices: &mut Vec<IoSlice<'a>>, left: &mut usize) {
    let mut skip = frame.sent;
    let mut own = bytes_of_rest(frame.size - frame.sent, *left);
    *left = left.saturating_sub(own);
    if skip < frame.head.len() {
        let size = (frame.head.len() - skip).min(own);
        slices.push(IoSlice::new(&frame.head[skip..skip + size]));
        own -= size;
        skip = 0;
    } else {
        skip -= frame.head.len();
    }
    for slice in &frame.body {
        if skip >= slice.size {
            skip -= slice.size;
            continue;
        }
        if slices.len() >= SLICE_COUNT_MAX || own == 0 {
            return;
        }
        let size = (slice.size - skip).min(own);
        own -= size;
        // SAFETY: invariant 4; `skip < slice.size`, so the range lies within the slice.
        let bytes = unsafe { std::slice::from_raw_parts(slice.pointer.add(skip), size) };
        slices.push(IoSlice::new(bytes));
        skip = 0;
    }
}

/// The parts of `places` after the first `received` bytes, at most `SLICE_COUNT_MAX` of them and so many bytes.
fn unreceived(places: &[RawSlice], received: usize, bytes_max: usize) -> Vec<RawSlice> {
    let mut left = bytes_max;
    let mut rest = Vec::with_capacity(places.len().min(SLICE_COUNT_MAX));
    let mut skip = received;
    for place in places {
        if skip >= place.size {
            skip -= place.size;
            continue;
        }
        if rest.len() == SLICE_COUNT_MAX || left == 0 {
            break;
        }
        // SAFETY: `skip < place.size`, so the pointer stays within the place.
        let pointer = unsafe { place.pointer.add(skip) };
        let size = (place.size - skip).min(left);
        left -= size;
        rest.push(RawSlice { pointer, size });
        skip = 0;
    }
    rest
}
