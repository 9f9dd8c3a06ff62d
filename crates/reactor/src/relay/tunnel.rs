//! One end of a tunnel: the streams in it, what has arrived for each, and what it may still send.

use super::stream::End;
use crate::link::{Link, LinkError, RawSlice, ReplyBody, ReplyHeld};
use crate::log::{self, Level};
use crate::stream::Readiness;
use crate::{BodyPiece, Class, Nanos, Reactor, Stream};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use wire::relay::{Credit, OpenStream, STREAM_DATA_SIZE_MAX, STREAM_FRAME_COST, STREAM_WINDOW, StreamFrame};
use wire::{Decode, Encode, FrameKind, Header, Status};

/// Frames handled before other tasks get their turn.
const FRAMES_PER_TURN: usize = 32;
/// Data up to this size travels as parameters, which come in with the header.
const SMALL_SIZE_MAX: usize = 4096;
/// Room is returned in parts of this size at least.
const CREDIT_SIZE_MIN: usize = STREAM_WINDOW / 4;
/// Numbers of streams are below this. A tunnel that has used them up ends, and another one begins anew.
const NUMBER_END: u64 = u64::MAX;
/// Frames without data that one stream may have waiting to be sent: its beginning, its end, and room returned.
const CONTROLS_PER_STREAM: usize = 2 + STREAM_WINDOW / CREDIT_SIZE_MIN;
/// The same of a tunnel without streams: questions and answers of life.
const CONTROLS_MIN: usize = 64;

pub(crate) struct TunnelOptions {
    /// Silence after which callers give up. A tunnel of which nothing is heard for half of it, after something was
    /// sent, ends.
    pub timeout: Nanos,
    /// Most streams at a time.
    pub stream_count_max: usize,
    /// Whether the peer begins the streams.
    pub accepts: bool,
    /// Whether what goes wrong is told in this process's log: that of a server.
    pub is_logged: bool,
    /// The number of the first stream that begins here: 1, and another one in tests.
    pub first_stream: u64,
}

/// Bytes that came in one frame.
pub(super) struct TunnelPiece {
    pub(super) bytes: Vec<u8>,
    pub(super) taken: usize,
}

impl TunnelPiece {
    /// Room in the window that it takes.
    pub(super) fn cost(&self) -> usize {
        self.bytes.len() + STREAM_FRAME_COST
    }
}

pub(super) struct StreamState {
    pub(super) readiness: Rc<Readiness>,
    /// Who passes its bytes on, to be woken by any change.
    pub(super) passer: Option<Waker>,
    pub(super) incoming: VecDeque<TunnelPiece>,
    /// Room at the peer.
    pub(super) credit: usize,
    /// Room here that the peer knows of.
    registered: usize,
    /// Room here that is free again and that the peer was not told of.
    pub(super) freed: Rc<Cell<usize>>,
    pub(super) ended_here: bool,
    pub(super) ended_there: Option<Status>,
}

impl StreamState {
    fn new() -> StreamState {
        let readiness = Readiness::new();
        readiness.set_writable();
        StreamState {
            readiness,
            passer: None,
            incoming: VecDeque::new(),
            credit: STREAM_WINDOW,
            registered: STREAM_WINDOW,
            freed: Rc::default(),
            ended_here: false,
            ended_there: None,
        }
    }

    fn wake_passer(&self) {
        if let Some(waker) = &self.passer {
            waker.wake_by_ref();
        }
    }
}

/// A frame of data whose bytes are arriving.
struct Arriving {
    stream: u64,
    bytes: Vec<u8>,
    received: usize,
}

pub(super) struct TunnelState {
    link: Link,
    arriving: Option<Arriving>,
    pub(super) streams: BTreeMap<u64, StreamState>,
    /// The number of the next stream that begins.
    next_stream: u64,
    /// Frames without data that wait to be sent.
    controls: Rc<Cell<usize>>,
    /// When something was sent, if nothing was heard since.
    unheard_since: Option<Nanos>,
    has_pinged: bool,
    watcher: Option<Waker>,
    pub(super) closed: bool,
}

/// One end of a tunnel.
pub(crate) struct Tunnel {
    reactor: Reactor,
    options: TunnelOptions,
    pub(super) state: RefCell<TunnelState>,
    /// The task that drives it, while it does not run.
    driver: RefCell<Option<Waker>>,
    is_driving: Cell<bool>,
    /// Streams that have enough room to tell the peer of.
    freed: RefCell<Vec<u64>>,
}

enum TunnelProgress {
    Nothing,
    Progress,
    Opened(u64, u32),
}

fn protocol<T>(words: &'static str) -> Result<T, LinkError> {
    Err(LinkError::Protocol(Status::BadMessage, words))
}

fn frame(kind: StreamFrame, stream: u64) -> Header {
    let mut header = Header::new(FrameKind::Stream, kind as u16);
    header.call_id = stream;
    header
}

impl Tunnel {
    /// An end over a connection whose handshake is done. Nothing moves until `run`.
    pub(crate) fn new(reactor: &Reactor, stream: Stream, options: TunnelOptions) -> Rc<Tunnel> {
        let next_stream = options.first_stream;
        Rc::new(Tunnel {
            reactor: reactor.clone(),
            options,
            state: RefCell::new(TunnelState {
                link: Link::new(stream),
                arriving: None,
                streams: BTreeMap::new(),
                next_stream,
                controls: Rc::default(),
                unheard_since: None,
                has_pinged: false,
                watcher: None,
                closed: false,
            }),
            driver: RefCell::default(),
            is_driving: Cell::new(false),
            freed: RefCell::default(),
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.borrow().closed
    }

    /// Whether it can begin no more streams.
    pub(crate) fn is_used_up(&self) -> bool {
        self.state.borrow().next_stream == NUMBER_END
    }

    /// Bytes received and sent.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        let state = self.state.borrow();
        (state.link.bytes_received, state.link.bytes_sent)
    }

    fn controls_max(&self) -> usize {
        CONTROLS_MIN.saturating_add(CONTROLS_PER_STREAM.saturating_mul(self.options.stream_count_max))
    }

    /// Begins a stream to a server. Errors: the tunnel has ended, or has its most streams.
    pub(crate) fn open(self: &Rc<Self>, server: u32) -> io::Result<End> {
        assert!(!self.options.accepts);
        let mut state = self.state.borrow_mut();
        if state.closed {
            return Err(ErrorKind::NotConnected.into());
        }
        if state.streams.len() >= self.options.stream_count_max {
            return Err(io::Error::new(ErrorKind::QuotaExceeded, "the tunnel has its most streams"));
        }
        let number = state.next_stream;
        if number == NUMBER_END {
            return Err(io::Error::new(ErrorKind::QuotaExceeded, "the tunnel has used up its numbers"));
        }
        state.next_stream += 1;
        state.streams.insert(number, StreamState::new());
        self.send_control(&mut state, frame(StreamFrame::Open, number), &OpenStream { server }.to_bytes());
        drop(state);
        Ok(self.end_of(number))
    }

    /// This side of a stream that has begun.
    pub(crate) fn end_of(self: &Rc<Self>, stream: u64) -> End {
        End::new(self.clone(), stream)
    }

    /// Carries streams until the connection ends; `opened` gets the streams that the peer begins, and for whom.
    pub(crate) async fn run(self: Rc<Self>, opened: &dyn Fn(&Rc<Tunnel>, u64, u32)) {
        self.reactor.spawn(Class::Metadata, watch(Rc::downgrade(&self)));
        let error = poll_fn(|cx| {
            let mut driver = self.driver.borrow_mut();
            if !driver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *driver = Some(cx.waker().clone());
                self.state.borrow_mut().link.set_waker(cx.waker());
            }
            drop(driver);
            self.is_driving.set(true);
            let outcome = self.advance(cx.waker(), opened);
            self.is_driving.set(false);
            match outcome.and_then(|()| self.flush()) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(error),
            }
        })
        .await;
        if let LinkError::Protocol(status, words) = error
            && self.options.is_logged
        {
            log::event(Level::Warning, "tunnel-ended", words, &[("status", &status)]);
        }
        self.close();
    }

    fn advance(self: &Rc<Self>, waker: &Waker, opened: &dyn Fn(&Rc<Tunnel>, u64, u32)) -> Result<(), LinkError> {
        for _ in 0..FRAMES_PER_TURN {
            match self.step()? {
                TunnelProgress::Nothing => return Ok(()),
                TunnelProgress::Progress => {}
                TunnelProgress::Opened(stream, server) => opened(self, stream, server),
            }
        }
        waker.wake_by_ref();
        Ok(())
    }

    /// Returns room, and sends what the connection takes.
    fn flush(&self) -> Result<(), LinkError> {
        let mut state = self.state.borrow_mut();
        let freed = std::mem::take(&mut *self.freed.borrow_mut());
        for number in freed {
            let Some(stream) = state.streams.get_mut(&number) else { continue };
            let size = stream.freed.take();
            if stream.ended_here || stream.ended_there.is_some() {
                continue;
            }
            stream.registered += size;
            let params = Credit { size: size as u32 }.to_bytes();
            self.send_control(&mut state, frame(StreamFrame::Credit, number), &params);
        }
        state.link.flush().map(|_| ())
    }

    fn step(&self) -> Result<TunnelProgress, LinkError> {
        let state = &mut *self.state.borrow_mut();
        if state.closed {
            return Err(io::Error::from(ErrorKind::NotConnected).into());
        }
        if state.controls.get() > self.controls_max() {
            // A peer that keeps us answering and reads nothing (an honest one has no more than this open).
            return protocol("the peer does not read what it asks for");
        }
        if let Some(arriving) = &mut state.arriving {
            let place = RawSlice { pointer: arriving.bytes.as_mut_ptr(), size: arriving.bytes.len() };
            if !state.link.receive_body(&[place], &mut arriving.received)? {
                return Ok(TunnelProgress::Nothing);
            }
            if let Some(arriving) = state.arriving.take() {
                state.note_heard();
                state.deliver(arriving.stream, arriving.bytes);
            }
            return Ok(TunnelProgress::Progress);
        }
        match state.link.next_frame()? {
            None => Ok(TunnelProgress::Nothing),
            Some((header, params)) => {
                state.note_heard();
                self.take_frame(state, &header, params)
            }
        }
    }

    fn take_frame(
        &self,
        state: &mut TunnelState,
        header: &Header,
        params: Vec<u8>,
    ) -> Result<TunnelProgress, LinkError> {
        let malformed = |error: wire::Malformed| LinkError::Protocol(Status::BadMessage, error.0);
        if header.kind != FrameKind::Stream {
            return protocol("only streams are expected on a tunnel");
        }
        let kind = StreamFrame::from_code(header.operation).map_err(malformed)?;
        if header.body_size > 0 && kind != StreamFrame::Data {
            return protocol("only data has a body on a tunnel");
        }
        let number = header.call_id;
        match kind {
            StreamFrame::Ping => {
                self.send_control(state, frame(StreamFrame::Pong, 0), &[]);
                return Ok(TunnelProgress::Progress);
            }
            StreamFrame::Pong => return Ok(TunnelProgress::Progress),
            StreamFrame::Open => {
                let server = OpenStream::from_bytes(&params).map_err(malformed)?.server;
                if !self.options.accepts || !(state.next_stream..NUMBER_END).contains(&number) {
                    return protocol("a stream begins that can't");
                }
                if state.streams.len() >= self.options.stream_count_max {
                    return Err(LinkError::Protocol(Status::WindowExceeded, "more streams than a tunnel may have"));
                }
                state.next_stream = number + 1;
                state.streams.insert(number, StreamState::new());
                return Ok(TunnelProgress::Opened(number, server));
            }
            StreamFrame::Data | StreamFrame::Credit | StreamFrame::End => {}
        }
        let Some(stream) = state.streams.get_mut(&number).filter(|stream| stream.ended_there.is_none()) else {
            return protocol("a frame of a stream that is over");
        };
        match kind {
            StreamFrame::Data => {
                let body_size = header.body_size as usize;
                let size = params.len() + body_size;
                if size == 0 || size > STREAM_DATA_SIZE_MAX || (body_size > 0 && !params.is_empty()) {
                    return protocol("data of a wrong size");
                }
                let Some(registered) = stream.registered.checked_sub(size + STREAM_FRAME_COST) else {
                    return Err(LinkError::Protocol(Status::WindowExceeded, "more data than there is room for"));
                };
                stream.registered = registered;
                if body_size > 0 {
                    state.arriving = Some(Arriving { stream: number, bytes: vec![0; body_size], received: 0 });
                } else {
                    state.deliver(number, params);
                }
            }
            StreamFrame::Credit => {
                stream.credit += Credit::from_bytes(&params).map_err(malformed)?.size as usize;
                if stream.credit > STREAM_WINDOW {
                    return protocol("more room than a window has");
                }
                stream.readiness.set_writable();
                stream.wake_passer();
            }
            _ => {
                stream.ended_there = Some(Status::from_code(header.status).unwrap_or(Status::BadMessage));
                stream.readiness.set_hung_up();
                stream.readiness.set_writable();
                stream.wake_passer();
                if stream.ended_here {
                    state.streams.remove(&number);
                }
            }
        }
        Ok(TunnelProgress::Progress)
    }

    /// Queues a frame without data.
    fn send_control(&self, state: &mut TunnelState, header: Header, params: &[u8]) {
        let keep = ReplyHeld::new(&state.controls, 1, ReplyBody::default());
        state.link.enqueue(header, params, Vec::new(), 0, Some(keep));
        if header.operation != StreamFrame::Pong as u16 {
            self.note_sent(state);
        }
        self.wake();
    }

    /// Queues data, for which the caller has found room. `guard` is dropped when the bytes have left.
    pub(super) fn send_data(&self, state: &mut TunnelState, number: u64, bytes: Vec<u8>, guard: Option<Freeing>) {
        let Some(stream) = state.streams.get_mut(&number) else { return };
        assert!(bytes.len() <= STREAM_DATA_SIZE_MAX && stream.credit >= bytes.len() + STREAM_FRAME_COST);
        stream.credit -= bytes.len() + STREAM_FRAME_COST;
        let header = frame(StreamFrame::Data, number);
        let guard = guard.map(|guard| Box::new(guard) as Box<dyn std::any::Any>);
        // Data is bounded by its windows, so that nothing counts it here.
        let nobody = Rc::default();
        if bytes.len() <= SMALL_SIZE_MAX {
            let keep = ReplyHeld::new(&nobody, 0, ReplyBody { pieces: Vec::new(), guard });
            state.link.enqueue(header, &bytes, Vec::new(), 0, Some(keep));
        } else {
            let slices = vec![RawSlice::of_bytes(&bytes)];
            let body = ReplyBody { pieces: vec![BodyPiece::Bytes(bytes)], guard };
            state.link.enqueue(header, &[], slices, 0, Some(ReplyHeld::new(&nobody, 0, body)));
        }
        self.note_sent(state);
        self.wake();
    }

    fn note_sent(&self, state: &mut TunnelState) {
        if state.unheard_since.is_none() {
            state.unheard_since = Some(self.reactor.now());
            if let Some(waker) = state.watcher.take() {
                waker.wake();
            }
        }
    }

    /// Ends our side of a stream, once.
    pub(super) fn end_stream(&self, number: u64, status: Status) {
        let mut state = self.state.borrow_mut();
        let is_closed = state.closed;
        let Some(stream) = state.streams.get_mut(&number) else { return };
        let was_ended = std::mem::replace(&mut stream.ended_here, true);
        stream.incoming.clear();
        stream.passer = None;
        if is_closed || stream.ended_there.is_some() {
            state.streams.remove(&number);
        }
        if !was_ended && !is_closed {
            let mut header = frame(StreamFrame::End, number);
            header.status = status as u32;
            self.send_control(&mut state, header, &[]);
        }
    }

    /// Has the driving task return room and send what is queued.
    fn wake(&self) {
        if !self.is_driving.get()
            && let Some(waker) = &*self.driver.borrow()
        {
            waker.wake_by_ref();
        }
    }

    /// Ends the connection and all streams.
    pub(crate) fn close(&self) {
        let mut state = self.state.borrow_mut();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        state.link.shutdown();
        if let Some(waker) = state.watcher.take() {
            waker.wake();
        }
        state.streams.retain(|_, stream| !stream.ended_here);
        for stream in state.streams.values() {
            stream.readiness.set_hung_up();
            stream.readiness.set_writable();
            stream.wake_passer();
        }
        drop(state);
        self.wake();
    }

    /// Asks for a sign of life after a while of silence, and ends the tunnel when there is none. False when it has
    /// ended.
    fn look_for_life(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let silence = state.unheard_since.map_or(0, |since| self.reactor.now().saturating_sub(since));
        // The rest of the time-out is for what was under way, on another connection.
        if state.has_pinged && silence >= self.options.timeout / 2 {
            drop(state);
            if self.options.is_logged {
                let words = "a connection that carries others was silent; it is ended";
                log::event(Level::Warning, "tunnel-silent", words, &[]);
            }
            self.close();
            return false;
        }
        if silence >= self.options.timeout / 4 && !std::mem::replace(&mut state.has_pinged, true) {
            self.send_control(&mut state, frame(StreamFrame::Ping, 0), &[]);
        }
        !state.closed
    }
}

impl TunnelState {
    fn note_heard(&mut self) {
        self.unheard_since = None;
        self.has_pinged = false;
    }

    fn deliver(&mut self, number: u64, bytes: Vec<u8>) {
        if let Some(stream) = self.streams.get_mut(&number).filter(|stream| !stream.ended_here) {
            stream.incoming.push_back(TunnelPiece { bytes, taken: 0 });
            stream.readiness.set_readable();
            stream.wake_passer();
        }
    }
}

/// Gives room in a window back when it is dropped.
pub(super) struct Freeing {
    tunnel: Weak<Tunnel>,
    stream: u64,
    freed: Rc<Cell<usize>>,
    size: usize,
}

impl Freeing {
    pub(super) fn new(tunnel: &Rc<Tunnel>, stream: u64, freed: &Rc<Cell<usize>>, size: usize) -> Freeing {
        Freeing { tunnel: Rc::downgrade(tunnel), stream, freed: freed.clone(), size }
    }
}

impl Drop for Freeing {
    fn drop(&mut self) {
        let before = self.freed.get();
        self.freed.set(before + self.size);
        if before < CREDIT_SIZE_MIN
            && before + self.size >= CREDIT_SIZE_MIN
            && let Some(tunnel) = self.tunnel.upgrade()
        {
            tunnel.freed.borrow_mut().push(self.stream);
            tunnel.wake();
        }
    }
}

/// Watches over silence. Sleeps while nothing is owed to us.
async fn watch(tunnel: Weak<Tunnel>) {
    loop {
        let Some(strong) = tunnel.upgrade() else { return };
        let (reactor, pause) = (strong.reactor.clone(), (strong.options.timeout / 4).max(1_000_000));
        drop(strong);
        let is_alive = poll_fn(|cx| {
            let Some(strong) = tunnel.upgrade() else { return Poll::Ready(false) };
            let mut state = strong.state.borrow_mut();
            if state.closed || state.unheard_since.is_some() {
                return Poll::Ready(!state.closed);
            }
            state.watcher = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        if !is_alive {
            return;
        }
        reactor.sleep(pause).await;
        if !tunnel.upgrade().is_some_and(|strong| strong.look_for_life()) {
            return;
        }
    }
}
