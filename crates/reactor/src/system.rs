//! The system calls behind the real drivers: clocks, randomness, sockets.

use crate::Nanos;
use crate::busy_poll::{BusyPoll, BusySocket, KernelWatch};
use crate::socket_users::user_of_other_end;
use crate::stream::{ListenSocket, Listener, Readiness, Socket, Stream};
use shm::copying::note_copied;
use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

/// Turns the -1 of a system call into its error.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn clock(which: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one local; both clocks always exist.
    unsafe { libc::clock_gettime(which, &mut time) };
    time
}

/// Monotonic time.
pub(crate) fn monotonic() -> Nanos {
    let time = clock(libc::CLOCK_MONOTONIC);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds since the epoch.
pub(crate) fn wall_clock() -> i64 {
    let time = clock(libc::CLOCK_REALTIME);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Gives the core to whoever else wants it.
pub(crate) fn yield_core() {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::sched_yield() };
}

/// The cheapest of system calls, to see what one costs.
pub(crate) fn call_cheaply() {
    // SAFETY: no arguments, cannot fail, and the C library keeps no copy of its answer.
    unsafe { libc::getppid() };
}

/// Random bytes from the kernel.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        // SAFETY: writes at most the rest of the slice.
        let filled = unsafe { libc::getrandom(bytes[done..].as_mut_ptr().cast(), bytes.len() - done, 0) };
        if filled > 0 {
            done += filled as usize;
        } else {
            let error = io::Error::last_os_error();
            assert!(error.kind() == ErrorKind::Interrupted, "the kernel gives random bytes: {error}");
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): fast numbers that are random enough for jitter, choices and hash seeds.
pub(crate) struct FastRandom(Cell<u64>);

impl FastRandom {
    /// Seeded by the kernel.
    pub fn new() -> FastRandom {
        let mut seed = [0; 8];
        fill_random(&mut seed);
        FastRandom::with_seed(u64::from_ne_bytes(seed))
    }

    /// Seeded as told.
    pub fn with_seed(seed: u64) -> FastRandom {
        FastRandom(Cell::new(seed))
    }

    /// The next number.
    pub fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.0.set(state);
        mix(state)
    }
}

/// The output function of SplitMix64.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// An event descriptor, for pokes from other threads.
pub(crate) fn event_descriptor() -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor, which is owned from here on.
    unsafe { check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)).map(|raw| OwnedFd::from_raw_fd(raw)) }
}

fn encode(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let size = match address {
        SocketAddr::V4(address) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as _,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger than and aligned for every kind of address.
            unsafe { storage.as_mut_ptr().cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as _,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            unsafe { storage.as_mut_ptr().cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    // SAFETY: zeroed storage is a valid value, whatever part of it was written.
    (unsafe { storage.assume_init() }, size as libc::socklen_t)
}

fn decode(storage: &libc::sockaddr_storage) -> io::Result<SocketAddr> {
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which kind of address the storage holds, and it is aligned for all of them.
            let raw = unsafe { &*std::ptr::from_ref(storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { &*std::ptr::from_ref(storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            Ok(SocketAddrV6::new(ip, u16::from_be(raw.sin6_port), raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => Err(ErrorKind::Unsupported.into()),
    }
}

type NameCall = unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn address_of(descriptor: &OwnedFd, call: NameCall) -> io::Result<SocketAddr> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut size = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the storage is as large as is said.
    check(unsafe { call(descriptor.as_raw_fd(), storage.as_mut_ptr().cast(), &mut size) })?;
    // SAFETY: zeroed storage is a valid value, whatever part of it was written.
    decode(&unsafe { storage.assume_init() })
}

fn set_option(descriptor: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: passes one local integer and its size.
    check(unsafe { libc::setsockopt(descriptor.as_raw_fd(), level, option, (&raw const value).cast(), size) }).map(drop)
}

fn new_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: makes a descriptor, which is owned from here on.
    unsafe { check(libc::socket(family, kind, 0)).map(|raw| OwnedFd::from_raw_fd(raw)) }
}

/// The part of a driver that watches descriptors.
pub(crate) trait Watch: KernelWatch + 'static {
    /// Reports these events of the descriptor to the readiness from now on, beginning with what is true already.
    fn watch(&self, descriptor: &OwnedFd, readiness: &Rc<Readiness>, events: u32) -> io::Result<u64>;
    /// Stops that; the descriptor is about to be closed.
    fn unwatch(&self, descriptor: &OwnedFd, token: u64);
    /// The sockets that it does not watch for now.
    fn busy_poll(&self) -> &BusyPoll;
}

/// The readiness of each watched descriptor, by slot and generation.
#[derive(Default)]
pub(crate) struct WatchTable {
    slots: RefCell<Vec<WatchSlot>>,
    free: RefCell<Vec<u32>>,
}

struct WatchSlot {
    generation: u32,
    descriptor: libc::c_int,
    events: u32,
    readiness: Option<Rc<Readiness>>,
}

/// A descriptor that is watched.
pub(crate) struct Watched {
    pub descriptor: libc::c_int,
    pub events: u32,
    pub readiness: Rc<Readiness>,
}

/// Generations fit into 24 bits, so that drivers have eight bits of a token for themselves.
const GENERATION_MASK: u32 = 0xFF_FFFF;

impl WatchTable {
    /// Adds a descriptor; the token names it in events.
    pub fn add(&self, descriptor: libc::c_int, readiness: &Rc<Readiness>, events: u32) -> u64 {
        let mut slots = self.slots.borrow_mut();
        let slot = self.free.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(WatchSlot { generation: 0, descriptor: -1, events: 0, readiness: None });
            (slots.len() - 1) as u32
        });
        let entry = &mut slots[slot as usize];
        entry.descriptor = descriptor;
        entry.events = events;
        entry.readiness = Some(readiness.clone());
        u64::from(slot) | u64::from(entry.generation) << 32
    }

    /// Forgets a token; later events that carry it find nothing.
    pub fn remove(&self, token: u64) {
        let slot = token as u32;
        let mut slots = self.slots.borrow_mut();
        let entry = &mut slots[slot as usize];
        entry.generation = (entry.generation + 1) & GENERATION_MASK;
        let readiness = entry.readiness.take();
        drop(slots);
        drop(readiness);
        self.free.borrow_mut().push(slot);
    }

    /// What a token names that is still watched.
    pub fn find(&self, token: u64) -> Option<Watched> {
        let slots = self.slots.borrow();
        let entry = slots.get(token as u32 as usize)?;
        if u64::from(entry.generation) != token >> 32 {
            return None;
        }
        Some(Watched { descriptor: entry.descriptor, events: entry.events, readiness: entry.readiness.clone()? })
    }
}

/// Events of a socket that carries bytes: both directions, and the peer's end.
pub(crate) const BOTH_DIRECTIONS: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP) as u32;
/// Events of a socket that is listened at, or that only wakes: it tells of room at each byte that the peer takes, which
/// would wake whoever sleeps for nothing.
pub(crate) const INCOMING: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;

/// Tells a readiness about poll events.
pub(crate) fn report(readiness: &Readiness, events: u32) {
    if events & (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32 != 0 {
        readiness.set_hung_up();
    } else if events & libc::EPOLLIN as u32 != 0 {
        readiness.set_readable();
    }
    if events & (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLOUT) as u32 != 0 {
        readiness.set_writable();
    }
}

/// A kernel socket watched by a driver.
struct WatchedSocket<W: Watch> {
    descriptor: OwnedFd,
    driver: Rc<W>,
    socket: Rc<BusySocket>,
}

impl<W: Watch> WatchedSocket<W> {
    fn new(
        driver: &Rc<W>,
        descriptor: OwnedFd,
        readiness: &Rc<Readiness>,
        events: u32,
    ) -> io::Result<WatchedSocket<W>> {
        let token = driver.watch(&descriptor, readiness, events)?;
        let socket = BusySocket::new(descriptor.as_raw_fd(), token, events, readiness.clone());
        Ok(WatchedSocket { descriptor, driver: driver.clone(), socket })
    }
}

impl<W: Watch> Drop for WatchedSocket<W> {
    fn drop(&mut self) {
        self.driver.busy_poll().forget(&self.socket);
        self.driver.unwatch(&self.descriptor, self.socket.token);
    }
}

/// Bytes that the kernel may buffer in each direction of a connection within one machine. What is under way beyond the
/// processor's caches is only slower: left to itself, the kernel takes up to 32 MiB.
const LOCAL_BUFFER_SIZE: i32 = 1 << 20;

/// Longest pause between two attempts of TCP to send what was not acknowledged, in milliseconds. By itself it doubles
/// the pauses, up to two minutes, so that after a cut of 20 seconds the next attempt may come 20 seconds later.
const RETRANSMIT_PAUSE_MS_MAX: libc::c_int = 1_000;
/// `TCP_RTO_MAX_MS`, of Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// A machine that has lost power tells nobody. So the kernel asks the other end of a connection on which nothing has
/// come for this long, in seconds, and gives it up after so many questions without an answer, at such intervals: in
/// time for sessions, which are remembered for a minute longer. Processes are not woken for it.
const KEEPALIVE: [(libc::c_int, libc::c_int); 3] =
    [(libc::TCP_KEEPIDLE, 30), (libc::TCP_KEEPINTVL, 10), (libc::TCP_KEEPCNT, 3)];

/// Sets what all connections want: no delay, no long silence after a cut, an end when the other machine is gone, and
/// between processes of one machine no model of a network. There, BBR takes scheduling delays for a slow path and
/// halves the throughput; Reno is always there and always allowed.
pub fn tune(descriptor: &OwnedFd, peer: SocketAddr) -> io::Result<()> {
    set_option(descriptor, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    set_option(descriptor, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    for (option, value) in KEEPALIVE {
        set_option(descriptor, libc::IPPROTO_TCP, option, value)?;
    }
    // Older kernels refuse it: then cuts last longer than they have to.
    let _ = set_option(descriptor, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, RETRANSMIT_PAUSE_MS_MAX);
    if address_of(descriptor, libc::getsockname)?.ip() == peer.ip() {
        set_option(descriptor, libc::SOL_SOCKET, libc::SO_RCVBUF, LOCAL_BUFFER_SIZE)?;
        set_option(descriptor, libc::SOL_SOCKET, libc::SO_SNDBUF, LOCAL_BUFFER_SIZE)?;
        let name = b"reno";
        // A failure leaves the machine's default, which works too.
        // SAFETY: passes a constant and its size.
        unsafe {
            let option = libc::TCP_CONGESTION;
            let size = name.len() as libc::socklen_t;
            libc::setsockopt(descriptor.as_raw_fd(), libc::IPPROTO_TCP, option, name.as_ptr().cast(), size)
        };
    }
    Ok(())
}

fn watch_stream<W: Watch>(driver: &Rc<W>, descriptor: OwnedFd, connected: bool) -> io::Result<Stream> {
    let readiness = Readiness::new();
    if connected {
        readiness.set_writable();
    }
    let socket = WatchedSocket::new(driver, descriptor, &readiness, BOTH_DIRECTIONS)?;
    Ok(Stream::new(socket, readiness))
}

/// Watches a connected socket that was made elsewhere, and makes it non-blocking.
pub(crate) fn adopt<W: Watch>(driver: &Rc<W>, socket: OwnedFd) -> io::Result<Stream> {
    // SAFETY: no pointers; the flag is set on a descriptor that is ours.
    unsafe {
        let flags = check(libc::fcntl(socket.as_raw_fd(), libc::F_GETFL))?;
        check(libc::fcntl(socket.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK))?;
    }
    watch_stream(driver, socket, true)
}

/// Starts to connect.
pub(crate) fn connect<W: Watch>(driver: &Rc<W>, address: SocketAddr) -> io::Result<Stream> {
    let descriptor = new_socket(address)?;
    let (raw, size) = encode(address);
    // SAFETY: the address is a local of that size.
    let result = unsafe { libc::connect(descriptor.as_raw_fd(), (&raw const raw).cast(), size) };
    if let Err(error) = check(result)
        && error.raw_os_error() != Some(libc::EINPROGRESS)
    {
        return Err(error);
    }
    tune(&descriptor, address)?;
    watch_stream(driver, descriptor, false)
}

/// Listens on an address.
pub(crate) fn listen<W: Watch>(driver: &Rc<W>, address: SocketAddr) -> io::Result<Listener> {
    let descriptor = new_socket(address)?;
    set_option(&descriptor, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    let (raw, size) = encode(address);
    // SAFETY: the address is a local of that size.
    check(unsafe { libc::bind(descriptor.as_raw_fd(), (&raw const raw).cast(), size) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::listen(descriptor.as_raw_fd(), 4096) })?;
    let readiness = Readiness::new();
    let socket = WatchedSocket::new(driver, descriptor, &readiness, INCOMING)?;
    Ok(Listener::new(socket, readiness))
}

impl<W: Watch> ListenSocket for WatchedSocket<W> {
    fn try_accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no address is asked for; the new descriptor is owned from here on.
        let descriptor = unsafe {
            let raw = libc::accept4(self.descriptor.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags);
            OwnedFd::from_raw_fd(check(raw)?)
        };
        // A peer that has gone already has no address; the caller shall just take the next one.
        let Ok(peer) = address_of(&descriptor, libc::getpeername) else {
            return Err(ErrorKind::ConnectionAborted.into());
        };
        tune(&descriptor, peer)?;
        Ok((watch_stream(&self.driver, descriptor, true)?, peer))
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        address_of(&self.descriptor, libc::getsockname)
    }
}

impl<W: Watch> Socket for WatchedSocket<W> {
    fn try_recv(&self, places: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let descriptor = self.descriptor.as_raw_fd();
        loop {
            let received = match places {
                // SAFETY: the place is writable memory of that size.
                [place] => unsafe { libc::recv(descriptor, place.as_mut_ptr().cast(), place.len(), 0) },
                _ => {
                    let mut message = MaybeUninit::<libc::msghdr>::zeroed();
                    // SAFETY: a zeroed message is a valid one; IoSliceMut has the layout of iovec, each a writable
                    // place.
                    unsafe {
                        let message = message.assume_init_mut();
                        message.msg_iov = places.as_mut_ptr().cast();
                        message.msg_iovlen = places.len() as _;
                        libc::recvmsg(descriptor, message, 0)
                    }
                }
            };
            if received >= 0 {
                self.driver.busy_poll().note_received(&self.socket, &*self.driver);
                note_copied(received as usize);
                return Ok(received as usize);
            }
            let error = io::Error::last_os_error();
            if error.kind() == ErrorKind::WouldBlock {
                self.driver.busy_poll().note_vain(&self.socket, &*self.driver);
            }
            if error.kind() != ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    fn try_send(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let descriptor = self.descriptor.as_raw_fd();
        loop {
            let sent = match pieces {
                // SAFETY: the piece is readable memory of that size.
                [piece] => unsafe { libc::send(descriptor, piece.as_ptr().cast(), piece.len(), libc::MSG_NOSIGNAL) },
                _ => {
                    let mut message = MaybeUninit::<libc::msghdr>::zeroed();
                    // SAFETY: a zeroed message is a valid one; IoSlice has the layout of iovec, and sending only reads
                    // them.
                    unsafe {
                        let message = message.assume_init_mut();
                        message.msg_iov = pieces.as_ptr().cast_mut().cast();
                        message.msg_iovlen = pieces.len() as _;
                        libc::sendmsg(descriptor, message, libc::MSG_NOSIGNAL)
                    }
                }
            };
            if sent >= 0 {
                note_copied(sent as usize);
                return Ok(sent as usize);
            }
            let error = io::Error::last_os_error();
            if error.kind() == ErrorKind::WouldBlock {
                // Only the kernel tells when there is room.
                self.driver.busy_poll().end(&self.socket, &*self.driver);
            }
            if error.kind() != ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    fn shutdown(&self) {
        // SAFETY: no pointers; a failure means that it is disconnected already.
        unsafe { libc::shutdown(self.descriptor.as_raw_fd(), libc::SHUT_RDWR) };
    }

    fn peer_address(&self) -> io::Result<SocketAddr> {
        address_of(&self.descriptor, libc::getpeername)
    }

    fn origin_user(&self) -> Option<u32> {
        user_of_other_end(Socket::local_address(self).ok()?, self.peer_address().ok()?)
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        address_of(&self.descriptor, libc::getsockname)
    }

    fn take_error(&self) -> io::Result<()> {
        let mut error: libc::c_int = 0;
        let mut size = size_of::<libc::c_int>() as libc::socklen_t;
        let descriptor = self.descriptor.as_raw_fd();
        // SAFETY: writes one local integer.
        check(unsafe {
            libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &mut size)
        })?;
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        match address_of(&self.descriptor, libc::getpeername) {
            Err(error) if error.kind() == ErrorKind::NotConnected => Err(ErrorKind::WouldBlock.into()),
            result => result.map(drop),
        }
    }

    fn set_buffer_sizes(&self, receive: usize, send: usize) -> io::Result<()> {
        for (option, size) in [(libc::SO_RCVBUF, receive), (libc::SO_SNDBUF, send)] {
            if size > 0 {
                set_option(&self.descriptor, libc::SOL_SOCKET, option, size.min(1 << 30) as libc::c_int)?;
            }
        }
        Ok(())
    }
}
