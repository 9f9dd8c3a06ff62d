//! Non-blocking byte streams and listeners, the same for every driver.
//!
//! Readiness has edge semantics: a direction stays ready until an operation found it exhausted, and becomes ready again
//! when the driver reports an event. An operation that moved fewer bytes than it was offered has exhausted its
//! direction too, unless the peer has hung up (then only another receive shows the end of the stream).

use crate::Reactor;
use crate::hazard_pointers::HazardPointers;
use crate::short_circuit::{SharedStore, StampedRegion, StoreMapping};
use shm::client_counters::{ClientCounter, ClientCounters};
use shm::mapping::Mapped;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Who waits for one direction. The waker is kept after it was used, so that a task that waits again need not clone it.
#[derive(Default)]
struct Interest {
    waker: RefCell<Option<Waker>>,
    armed: Cell<bool>,
}

impl Interest {
    fn arm(&self, context: &Context<'_>) {
        self.armed.set(true);
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|old| old.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
    }

    fn wake(&self) {
        if self.armed.replace(false)
            && let Some(waker) = &*self.waker.borrow()
        {
            waker.wake_by_ref();
        }
    }
}

/// What a driver has told about one socket, and who wants to know.
#[derive(Default)]
pub struct Readiness {
    readable: Cell<bool>,
    writable: Cell<bool>,
    hung_up: Cell<bool>,
    /// Whether nothing is expected to come now.
    quiet: Cell<bool>,
    reader: Interest,
    writer: Interest,
}

impl Readiness {
    /// Nothing is known yet.
    pub fn new() -> Rc<Readiness> {
        Rc::default()
    }

    /// Bytes, a connection, an error or the end have arrived.
    pub fn set_readable(&self) {
        self.readable.set(true);
        self.reader.wake();
    }

    /// There is room to send, or connecting has ended.
    pub fn set_writable(&self) {
        self.writable.set(true);
        self.writer.wake();
    }

    /// The peer will send nothing more, or the stream broke: both directions tell so from now on.
    pub fn set_hung_up(&self) {
        self.hung_up.set(true);
        self.set_readable();
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.readable.get()
    }

    pub(crate) fn is_hung_up(&self) -> bool {
        self.hung_up.get()
    }

    /// Has whoever waits for bytes ask for them, though nobody said that there are any. False if nobody waits, or bytes
    /// are not expected.
    pub(crate) fn look(&self) -> bool {
        let waits = self.reader.armed.get() && !self.quiet.get() && !self.readable.get();
        if waits {
            self.set_readable();
        }
        waits
    }

    pub(crate) fn poll_readable(&self, context: &Context<'_>) -> Poll<()> {
        if self.readable.get() {
            return Poll::Ready(());
        }
        self.reader.arm(context);
        Poll::Pending
    }

    pub(crate) fn poll_writable(&self, context: &Context<'_>) -> Poll<()> {
        if self.writable.get() {
            return Poll::Ready(());
        }
        self.writer.arm(context);
        Poll::Pending
    }
}

/// How the two ends of a stream are joined, as both see it alike. A handshake is about one way, so that nobody passes
/// it on to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Over the network.
    Network,
    /// Through another server.
    Relayed,
    /// Between two processes of this machine, whose users the kernel has told both.
    Local(Parties),
}

/// Whose processes the two ends of a local stream are. Users have numbers that mean the same to both unless they are in
/// different user namespaces; that both are one and the same holds there too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parties {
    OneUser,
    Users { caller: u32, listener: u32 },
}

impl Parties {
    pub(crate) fn new(caller: u32, listener: u32) -> Parties {
        if caller == listener { Parties::OneUser } else { Parties::Users { caller, listener } }
    }
}

impl Way {
    /// What stands for it in a proof.
    pub(crate) fn to_bytes(self) -> [u8; 9] {
        let (kind, caller, listener) = match self {
            Way::Network => (1, 0, 0),
            Way::Relayed => (2, 0, 0),
            Way::Local(Parties::OneUser) => (3, 0, 0),
            Way::Local(Parties::Users { caller, listener }) => (4, caller, listener),
        };
        let mut bytes = [0; 9];
        bytes[0] = kind;
        bytes[1..5].copy_from_slice(&caller.to_le_bytes());
        bytes[5..].copy_from_slice(&listener.to_le_bytes());
        bytes
    }
}

/// The operations of one driver's sockets. Dropping it closes the socket.
pub trait Socket {
    /// As [`Stream::try_recv`].
    fn try_recv(&self, places: &mut [IoSliceMut<'_>]) -> io::Result<usize>;
    /// As [`Stream::try_send`].
    fn try_send(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;
    /// As [`Stream::flush`].
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    /// As [`Stream::shutdown`].
    fn shutdown(&self);
    /// As [`Stream::peer_address`].
    fn peer_address(&self) -> io::Result<SocketAddr>;
    /// As [`Stream::peer_user`].
    fn peer_user(&self) -> Option<u32> {
        None
    }
    /// As [`Stream::origin_user`].
    fn origin_user(&self) -> Option<u32> {
        self.peer_user()
    }
    /// As [`Stream::prepare`].
    fn prepare(&self) {}
    /// As [`Stream::local_address`].
    fn local_address(&self) -> io::Result<SocketAddr>;
    /// How connecting ended: `WouldBlock` while it has not.
    fn take_error(&self) -> io::Result<()>;
    /// As [`Stream::way`].
    fn way(&self) -> Way {
        Way::Network
    }
    /// As [`Stream::share`].
    fn share(&self, _region: &Rc<StampedRegion>, _lent: &SharedStore) -> bool {
        false
    }
    /// As [`Stream::holds`].
    fn hazards(&self) -> Option<Rc<HazardPointers>> {
        None
    }
    /// As [`Stream::counters`].
    fn counters(&self) -> Option<Mapped<ClientCounters>> {
        None
    }
    /// As [`Stream::count`].
    fn count(&self, _counts: &[(ClientCounter, u64)]) -> bool {
        false
    }
    /// As [`Stream::mapping`].
    fn mapping(&self) -> Option<Rc<StoreMapping>> {
        None
    }
    /// As [`Stream::set_buffer_sizes`].
    fn set_buffer_sizes(&self, receive: usize, send: usize) -> io::Result<()>;
}

struct StreamInner<S: ?Sized> {
    readiness: Rc<Readiness>,
    socket: S,
}

/// A connected byte stream. Clones share it; it closes when the last one is dropped.
#[derive(Clone)]
pub struct Stream(Rc<StreamInner<dyn Socket>>);

impl Stream {
    /// Wraps a driver's socket.
    pub fn new(socket: impl Socket + 'static, readiness: Rc<Readiness>) -> Stream {
        Stream(Rc::new(StreamInner { readiness, socket }))
    }

    /// Receives what is there into the places, in order. `Ok(0)` is the end of the stream. Errors: `WouldBlock` when
    /// nothing is there now; anything else means that the stream is broken.
    pub fn try_recv(&self, places: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let asked: usize = places.iter().map(|place| place.len()).sum();
        assert!(asked > 0, "receiving nothing would look like the end of the stream");
        let result = self.0.socket.try_recv(places);
        let exhausted = match &result {
            Ok(received) => *received < asked && !self.0.readiness.hung_up.get(),
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        if exhausted {
            self.0.readiness.readable.set(false);
        }
        result
    }

    /// Sends as many bytes as there is room for, from the pieces in order. Errors: `WouldBlock` when there is no room
    /// now; anything else means that the stream is broken. Never raises SIGPIPE.
    pub fn try_send(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let result = self.0.socket.try_send(pieces);
        if matches!(&result, Err(error) if error.kind() == ErrorKind::WouldBlock) {
            self.0.readiness.writable.set(false);
        }
        result
    }

    /// Sends what was taken by `try_send` and has not left yet. Errors: as there.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.0.socket.flush()
    }

    pub(crate) fn readiness(&self) -> &Rc<Readiness> {
        &self.0.readiness
    }

    /// Ready when it is worth trying to receive; otherwise the task is woken then. One task waits per direction.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        self.0.readiness.poll_readable(context)
    }

    /// Ready when it is worth trying to send; otherwise the task is woken then. One task waits per direction.
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<()> {
        self.0.readiness.poll_writable(context)
    }

    /// Waits until it is worth trying to receive.
    pub async fn readable(&self) {
        poll_fn(|context| self.poll_readable(context)).await;
    }

    /// Waits until it is worth trying to send.
    pub async fn writable(&self) {
        poll_fn(|context| self.poll_writable(context)).await;
    }

    /// Receives at least one byte, or 0 at the end of the stream.
    pub async fn recv(&self, place: &mut [u8]) -> io::Result<usize> {
        loop {
            self.readable().await;
            match self.try_recv(&mut [IoSliceMut::new(place)]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }

    /// Receives exactly as many bytes as fit. Errors: `UnexpectedEof`, and as `try_recv`.
    pub async fn recv_exact(&self, place: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < place.len() {
            match self.recv(&mut place[done..]).await? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                received => done += received,
            }
        }
        Ok(())
    }

    /// Sends all bytes.
    pub async fn send_all(&self, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            self.writable().await;
            match self.try_send(&[IoSlice::new(&bytes[done..])]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
                Ok(sent) => done += sent,
            }
        }
        Ok(())
    }

    /// Says whether bytes are expected to come soon. They may come in any case.
    pub(crate) fn expect(&self, expected: bool) {
        self.0.readiness.quiet.set(!expected);
    }

    /// Ends both directions now, for all clones; the peer sees the end of the stream.
    pub fn shutdown(&self) {
        self.0.socket.shutdown();
        self.0.readiness.set_hung_up();
        self.0.readiness.set_writable();
    }

    /// How it leads to the peer.
    pub fn way(&self) -> Way {
        self.0.socket.way()
    }

    /// Lends the peer a region to read from, and what it is to write through, where that is possible: to the same user
    /// on the same machine. True if it was sent.
    pub fn share(&self, region: &Rc<StampedRegion>, shared: &SharedStore) -> bool {
        self.0.socket.share(region, shared)
    }

    /// What a peer holds that was lent a region.
    pub fn hazards(&self) -> Option<Rc<HazardPointers>> {
        self.0.socket.hazards()
    }

    /// What a peer counts that does things by itself, where it shares memory with us.
    pub fn counters(&self) -> Option<Mapped<ClientCounters>> {
        self.0.socket.counters()
    }

    /// Counts something that was done without the peer. False where it shares no memory with us.
    pub fn count(&self, counts: &[(ClientCounter, u64)]) -> bool {
        self.0.socket.count(counts)
    }

    /// What the peer has lent, once it is here.
    pub fn mapping(&self) -> Option<Rc<StoreMapping>> {
        self.0.socket.mapping()
    }

    /// Address of the other end.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        self.0.socket.peer_address()
    }

    /// The user of the process at the other end when it connected, where that is one of this machine and the kernel
    /// knows it.
    pub fn peer_user(&self) -> Option<u32> {
        self.0.socket.peer_user()
    }

    /// The user of this machine from whom the stream comes, as far as the kernel can tell: for budgets, and proof of
    /// nothing.
    pub fn origin_user(&self) -> Option<u32> {
        self.0.socket.origin_user()
    }

    /// Makes ready for much traffic, which is not worth while before it is known who is at the other end.
    pub fn prepare(&self) {
        self.0.socket.prepare();
    }

    /// Address of this end.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.0.socket.local_address()
    }

    /// Sets the sizes of the kernel's buffers, in bytes; 0 leaves one as it is. The kernel may give less.
    pub fn set_buffer_sizes(&self, receive: usize, send: usize) -> io::Result<()> {
        self.0.socket.set_buffer_sizes(receive, send)
    }

    /// Waits until connecting has ended.
    pub(crate) async fn connected(&self) -> io::Result<()> {
        loop {
            self.writable().await;
            match self.0.socket.take_error() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.0.readiness.writable.set(false),
                result => return result,
            }
        }
    }
}

/// The operations of one driver's listening sockets. Dropping it stops listening.
pub trait ListenSocket {
    /// Accepts a connection that is there. Errors: `WouldBlock` when there is none.
    fn try_accept(&self) -> io::Result<(Stream, SocketAddr)>;
    /// As [`Listener::local_address`].
    fn local_address(&self) -> io::Result<SocketAddr>;
}

/// Accepts connections at one address.
pub struct Listener {
    readiness: Rc<Readiness>,
    socket: Box<dyn ListenSocket>,
}

impl Listener {
    /// Wraps a driver's socket.
    pub fn new(socket: impl ListenSocket + 'static, readiness: Rc<Readiness>) -> Listener {
        Listener { readiness, socket: Box::new(socket) }
    }

    /// Waits for a connection. Errors such as `EMFILE` concern one connection or the moment: log them, wait a little
    /// ([`Reactor::sleep`]) and accept again.
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            poll_fn(|context| self.readiness.poll_readable(context)).await;
            match self.socket.try_accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readiness.readable.set(false),
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                result => return result,
            }
        }
    }

    /// The address that it listens at, with the port that was picked.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_address()
    }
}

/// A descriptor that somebody else reads, watched by the loop.
pub struct Doorbell(Stream);

impl Doorbell {
    /// Ready when it may have become readable since `clear`; otherwise the task is woken then. One task waits.
    pub fn poll_rung(&self, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll_readable(context)
    }

    /// To be called before what is there is read.
    pub fn clear(&self) {
        self.0.0.readiness.readable.set(false);
    }
}

impl Reactor {
    /// Watches a descriptor, beginning with what is true already, and makes it non-blocking. Errors: those of
    /// epoll_ctl(2); `Unsupported` where there are no descriptors, as in simulations.
    pub fn doorbell(&self, descriptor: OwnedFd) -> io::Result<Doorbell> {
        self.driver().adopt(descriptor).map(Doorbell)
    }

    /// Connects to an address. Dropping the future gives up. There is no time limit of its own.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        let stream = self.driver().connect(address)?;
        stream.connected().await?;
        Ok(stream)
    }

    /// Listens on an address; port 0 picks one.
    pub fn listen(&self, address: SocketAddr) -> io::Result<Listener> {
        self.driver().listen(address)
    }

    /// The addresses of this machine; none where that is not known, as in simulations.
    pub fn own_addresses(&self) -> Vec<IpAddr> {
        self.driver().own_addresses()
    }

    /// Whether an address is this machine's.
    pub fn is_own_address(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.own_addresses().contains(&address)
    }

    /// Connects to a process of this machine through shared memory. Anybody may listen at a name, so it has to be one
    /// of our own user, of root or of `owner`. Errors: `ConnectionRefused` when nobody listens there,
    /// `PermissionDenied` when somebody else does, who is told nothing; `Unsupported` where there is no such thing.
    pub fn connect_local(&self, name: &[u8], owner: Option<u32>) -> io::Result<Stream> {
        self.driver().connect_local(name, owner)
    }

    /// Listens for processes of this machine. Errors: `AddrInUse`, `Unsupported`.
    pub fn listen_local(&self, name: &[u8]) -> io::Result<Listener> {
        self.driver().listen_local(name)
    }
}
