//! Streams between processes of one machine, through memory that both share ([`shm::segment`]). To everything above
//! they are streams like any other.
//!
//! The server listens at a Unix socket of the abstract name space. A caller connects there, looks who listens, and
//! passes the file of a fresh segment; from then on bytes go through the segment, and the socket only wakes a side
//! that sleeps (one byte) and tells when the other one has gone. While both sides are awake no system call is made.
//!
//! Invariants
//! 1. Every open port is in its driver's list; the driver looks at all of them in each turn, and announces and ends its
//!    sleep to all of them.
//! 2. Whoever sends the byte never waits: a hostile peer that does not read its bytes only misses its own. So each side
//!    takes its bytes whenever it learns that it was woken; left to pile up they would fill the socket and the next one
//!    be lost.
//! 3. A name belongs to whoever takes it first. So a caller says nothing to a process of a user who has no business
//!    there, and what the kernel tells each side about the other one's user is part of their proofs (`Way`): somebody
//!    between the two is seen by both, unless he is one of them.

use crate::Reactor;
use crate::hazard_pointers::HazardPointers;
use crate::mapping_lock::FileMappingLock;
use crate::region::MappingLock;
use crate::short_circuit::{SharedStore, StampedRegion, StoreMapping};
use crate::stream::{ListenSocket, Listener, Parties, Readiness, Socket, Stream, Way};
use crate::submission::Bell;
use crate::system::{INCOMING, Watch, check};
use shm::client_counters::{ClientCounter, ClientCounters};
use shm::mapping::Mapped;
use shm::segment::{SEGMENT_SIZE, Segment, WANTS_BYTES, WANTS_ROOM, before_last_look};
use std::cell::{Cell, OnceCell, RefCell};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::{offset_of, size_of};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

/// Memory that a server maps for one connection, in bytes; it is the caller's.
pub const MEMORY_PER_CONNECTION: u64 = SEGMENT_SIZE as u64;

/// The name at which a server of a cluster listens for processes of its own machine.
pub fn local_name(cluster: &wire::Cluster, server: u32) -> Vec<u8> {
    format!("tabane/{:032x}/{server}", cluster.id).into_bytes()
}

/// A stream to a server whose address is this machine's, if somebody listens in its name who may be that server.
/// `WouldBlock`: more callers wait there than the kernel keeps.
pub(crate) fn reach(reactor: &Reactor, cluster: &wire::Cluster, server: u32) -> Option<io::Result<Stream>> {
    if !reactor.is_own_address(cluster.servers[server as usize].address.ip()) {
        return None;
    }
    Some(reactor.connect_local(&local_name(cluster, server), cluster.owner))
}

/// What a connection's end and its peer share.
struct Line {
    socket: OwnedFd,
    /// At a server: nothing until the caller's segment has come.
    segment: OnceCell<Rc<Segment>>,
}

impl Line {
    /// Wakes the peer if it sleeps for this.
    fn tell(&self, wish: u32) {
        if self.segment.get().is_some_and(|segment| segment.must_wake_peer(wish)) {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: sends one byte of a constant. A failure means that the peer has gone or does not read (invariant
            // 2).
            unsafe { libc::send(self.socket.as_raw_fd(), [1u8].as_ptr().cast(), 1, flags) };
        }
    }
}

impl Bell for Line {
    fn ring(&self) {
        self.tell(WANTS_BYTES);
    }
}

/// One connection's end.
struct Port {
    line: Rc<Line>,
    readiness: Rc<Readiness>,
    /// A send found no room.
    wants_room: Cell<bool>,
    /// The driver has announced its sleep to the peer.
    announced: Cell<bool>,
    /// At a caller: what the server has lent.
    mapping: OnceCell<Rc<StoreMapping>>,
    /// Looks for what it lends that are left; it sends it before its first reply, or never.
    looks_for_mapping: Cell<u32>,
}

impl Port {
    fn segment(&self) -> Option<&Rc<Segment>> {
        self.line.segment.get()
    }

    /// Takes the bytes that woke us, and with them what the server has lent, if it is here.
    fn drain(&self) {
        let left = self.looks_for_mapping.get();
        if left == 0 {
            let mut bytes = [0u8; BYTES_AT_ONCE];
            // SAFETY: receives into a local. The end of the stream is reported by the driver.
            unsafe {
                libc::recv(self.line.socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT)
            };
            return;
        }
        self.looks_for_mapping.set(left - 1);
        // What another user lends could be taken away again while we read it.
        if !is_our_user(&self.line.socket) {
            self.looks_for_mapping.set(0);
            return;
        }
        let Ok(files) = receive_files(&self.line.socket) else { return };
        let mut files = files.into_iter();
        if let (Some(region), Some(table), Some(submissions)) = (files.next(), files.next(), files.next()) {
            self.looks_for_mapping.set(0);
            let mapping_lock = files.next().map(|file| Rc::new(FileMappingLock::received(file)) as Rc<dyn MappingLock>);
            let hazards = self.segment().map(|segment| HazardPointers::new(segment.hazards()));
            let counters = self.segment().map(|segment| segment.counters());
            let line: Rc<dyn Bell> = self.line.clone();
            if let Ok(mapping) = StoreMapping::map(
                [&region, &table, &submissions],
                mapping_lock,
                hazards,
                counters,
                Rc::downgrade(&line),
            ) {
                self.mapping.get_or_init(|| Rc::new(mapping));
            }
        }
    }

    /// Tells the readiness what is new. True if anything is.
    fn look(&self) -> bool {
        let Some(segment) = self.segment() else { return false };
        let mut news = false;
        if !self.readiness.is_readable() && segment.has_bytes() {
            self.readiness.set_readable();
            news = true;
        }
        if self.wants_room.get() && segment.has_room() {
            self.wants_room.set(false);
            self.readiness.set_writable();
            news = true;
        }
        news
    }
}

/// The open ports of one driver.
#[derive(Default)]
pub(crate) struct Ports {
    list: RefCell<Vec<Rc<Port>>>,
}

impl Ports {
    pub fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }

    /// Looks at all ports. True if anything is new.
    pub fn poll(&self) -> bool {
        self.list.borrow().iter().fold(false, |news, port| port.look() | news)
    }

    /// Announces to all peers that this loop is going to sleep. False, and nobody thinks so, if something is new.
    pub fn begin_sleep(&self) -> bool {
        let list = self.list.borrow();
        for port in list.iter() {
            let Some(segment) = port.segment() else { continue };
            // Bytes that nobody here wants to read yet are no reason to be woken.
            let bytes = if port.readiness.is_readable() { 0 } else { WANTS_BYTES };
            let room = if port.wants_room.get() { WANTS_ROOM } else { 0 };
            // With `Shared` one thread may announce anew what another one sleeps for already and was woken for.
            let rung = port.announced.get() && segment.end_sleep();
            segment.announce_sleep(bytes | room);
            port.announced.set(bytes | room != 0);
            if rung {
                port.drain();
            }
        }
        before_last_look();
        drop(list);
        if self.poll() {
            self.end_sleep();
            return false;
        }
        true
    }

    /// Tells all peers that this loop is awake.
    pub fn end_sleep(&self) {
        for port in self.list.borrow().iter() {
            if port.announced.replace(false)
                && let Some(segment) = port.segment()
                && segment.end_sleep()
            {
                port.drain();
            }
        }
    }

    fn add(&self, port: &Rc<Port>) {
        self.list.borrow_mut().push(port.clone());
    }

    fn remove(&self, port: &Rc<Port>) {
        self.list.borrow_mut().retain(|other| !Rc::ptr_eq(other, port));
    }
}

/// The part of a driver that local streams need.
pub(crate) trait HasPorts: Watch {
    fn ports(&self) -> &Ports;
}

/// A local stream's socket.
struct LocalSocket<W: HasPorts> {
    port: Rc<Port>,
    parties: Parties,
    driver: Rc<W>,
    token: u64,
}

impl<W: HasPorts> Drop for LocalSocket<W> {
    fn drop(&mut self) {
        self.driver.ports().remove(&self.port);
        if let Some(mapping) = self.port.mapping.get() {
            mapping.end();
        }
        self.driver.unwatch(&self.port.line.socket, self.token);
    }
}

impl<W: HasPorts> LocalSocket<W> {
    fn stream(driver: &Rc<W>, socket: OwnedFd, parties: Parties, segment: Option<Rc<Segment>>) -> io::Result<Stream> {
        let readiness = Readiness::new();
        readiness.set_writable();
        let token = driver.watch(&socket, &readiness, INCOMING)?;
        let port = Rc::new(Port {
            line: Rc::new(Line { socket, segment: OnceCell::new() }),
            readiness: readiness.clone(),
            wants_room: Cell::new(false),
            announced: Cell::new(false),
            mapping: OnceCell::new(),
            looks_for_mapping: Cell::new(if segment.is_some() { MAPPING_LOOKS } else { 0 }),
        });
        if let Some(segment) = segment {
            let fresh = port.line.segment.set(segment).is_ok();
            assert!(fresh, "a port begins without a segment");
        }
        driver.ports().add(&port);
        Ok(Stream::new(LocalSocket { port, parties, driver: driver.clone(), token }, readiness))
    }

    /// The segment, once the caller has sent it. Errors: `WouldBlock` before, `InvalidData` for anything else.
    fn segment(&self) -> io::Result<&Segment> {
        if let Some(segment) = self.port.segment() {
            return Ok(segment);
        }
        let segment = Rc::new(Segment::open(&receive_file(&self.port.line.socket)?)?);
        Ok(self.port.line.segment.get_or_init(|| segment))
    }
}

impl<W: HasPorts> Socket for LocalSocket<W> {
    fn try_recv(&self, places: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let segment = self.segment()?;
        match segment.receive(places) {
            Ok(received) => {
                self.port.line.tell(WANTS_ROOM);
                Ok(received)
            }
            // What the peer sent before it went is taken first.
            Err(error) if error.kind() == ErrorKind::WouldBlock && self.port.readiness.is_hung_up() => {
                if segment.has_bytes() { segment.receive(places) } else { Ok(0) }
            }
            Err(error) => Err(error),
        }
    }

    fn try_send(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.port.readiness.is_hung_up() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let segment = self.segment()?;
        match segment.send(pieces) {
            Ok(sent) => {
                self.port.line.tell(WANTS_BYTES);
                Ok(sent)
            }
            Err(error) => {
                self.port.wants_room.set(error.kind() == ErrorKind::WouldBlock);
                Err(error)
            }
        }
    }

    fn shutdown(&self) {
        // SAFETY: no pointers; a failure means that it is disconnected already.
        unsafe { libc::shutdown(self.port.line.socket.as_raw_fd(), libc::SHUT_RDWR) };
    }

    fn peer_address(&self) -> io::Result<SocketAddr> {
        Ok(NO_ADDRESS)
    }

    fn peer_user(&self) -> Option<u32> {
        peer_user(&self.port.line.socket).ok()
    }

    fn prepare(&self) {
        if let Some(segment) = self.port.segment() {
            segment.populate();
        }
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(NO_ADDRESS)
    }

    fn take_error(&self) -> io::Result<()> {
        Ok(())
    }

    fn way(&self) -> Way {
        Way::Local(self.parties)
    }

    fn share(&self, region: &Rc<StampedRegion>, shared: &SharedStore) -> bool {
        let Some([region, table, submissions]) = region.files() else { return false };
        // Without a mapping lock of its own nobody gets a queue, but everybody sees what is locked.
        let submissions =
            shared.submissions.as_ref().and_then(|submissions| submissions.file()).unwrap_or(&submissions);
        let mut files: Vec<&OwnedFd> = vec![&region, &table, submissions];
        files.extend(shared.pages.as_ref().and_then(|mapping_lock| mapping_lock.file()));
        // A caller that can't take them reads and writes as all others do.
        is_our_user(&self.port.line.socket) && send_files(&self.port.line.socket, &files).is_ok()
    }

    fn hazards(&self) -> Option<Rc<HazardPointers>> {
        self.port.segment().map(|segment| HazardPointers::new(segment.hazards()))
    }

    fn counters(&self) -> Option<Mapped<ClientCounters>> {
        self.port.segment().map(|segment| segment.counters())
    }

    fn count(&self, counts: &[(ClientCounter, u64)]) -> bool {
        self.port.segment().is_some_and(|segment| {
            counts.iter().for_each(|(counter, count)| segment.count(*counter, *count));
            true
        })
    }

    fn mapping(&self) -> Option<Rc<StoreMapping>> {
        if self.port.mapping.get().is_none() && self.port.looks_for_mapping.get() > 0 {
            self.port.drain();
        }
        self.port.mapping.get().cloned()
    }

    fn set_buffer_sizes(&self, _receive: usize, _send: usize) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes of wake-ups taken at once. More than one is rare: whoever sends one waits for the next announcement.
const BYTES_AT_ONCE: usize = 64;
/// Looks for what a server lends; see `Port::looks_for_mapping`.
const MAPPING_LOOKS: u32 = 1_000;

/// The user as whom the process at the other end ran when it connected or began to listen.
fn peer_user(socket: &OwnedFd) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: writes a local of that size.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut peer).cast(), &mut size) })?;
    Ok(peer.uid)
}

fn own_user() -> u32 {
    // SAFETY: no arguments; it never fails.
    unsafe { libc::geteuid() }
}

/// Whether the process at the other end ran as our own user: it could read our files anyway.
fn is_our_user(socket: &OwnedFd) -> bool {
    peer_user(socket).is_ok_and(|user| user == own_user())
}

/// Local streams have no addresses; this one stands for them.
const NO_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// As [`Reactor::connect_local`].
pub(crate) fn connect<W: HasPorts>(driver: &Rc<W>, name: &[u8], owner: Option<u32>) -> io::Result<Stream> {
    let socket = new_socket()?;
    let (address, size) = abstract_address(name)?;
    // SAFETY: the address is a local of at least that size.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size) })?;
    let (own, listener) = (own_user(), peer_user(&socket)?);
    if listener != own && listener != ROOT && Some(listener) != owner {
        return Err(ErrorKind::PermissionDenied.into());
    }
    let (segment, file) = Segment::create()?;
    send_files(&socket, &[&file])?;
    LocalSocket::stream(driver, socket, Parties::new(own, listener), Some(Rc::new(segment)))
}

/// The user whom nobody on the machine is kept from.
const ROOT: u32 = 0;

struct LocalListener<W: HasPorts> {
    socket: OwnedFd,
    /// As whom it listens, for callers are told that one.
    user: u32,
    driver: Rc<W>,
    token: u64,
}

impl<W: HasPorts> Drop for LocalListener<W> {
    fn drop(&mut self) {
        self.driver.unwatch(&self.socket, self.token);
    }
}

/// Listens at a name. Errors: `AddrInUse`.
pub(crate) fn listen<W: HasPorts>(driver: &Rc<W>, name: &[u8]) -> io::Result<Listener> {
    let socket = new_socket()?;
    let (address, size) = abstract_address(name)?;
    // SAFETY: the address is a local of at least that size.
    unsafe {
        check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size))?;
        check(libc::listen(socket.as_raw_fd(), 4096))?;
    }
    let readiness = Readiness::new();
    let token = driver.watch(&socket, &readiness, INCOMING)?;
    Ok(Listener::new(LocalListener { socket, user: own_user(), driver: driver.clone(), token }, readiness))
}

impl<W: HasPorts> ListenSocket for LocalListener<W> {
    fn try_accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no address is asked for; the new descriptor is owned from here on.
        let socket = unsafe {
            let raw = libc::accept4(self.socket.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags);
            OwnedFd::from_raw_fd(check(raw)?)
        };
        let parties = Parties::new(peer_user(&socket)?, self.user);
        Ok((LocalSocket::stream(&self.driver, socket, parties, None)?, NO_ADDRESS))
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(NO_ADDRESS)
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: makes a descriptor, which is owned from here on.
    unsafe { check(libc::socket(libc::AF_UNIX, kind, 0)).map(|raw| OwnedFd::from_raw_fd(raw)) }
}

fn abstract_address(name: &[u8]) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as _, sun_path: [0; 108] };
    let Some(place) = address.sun_path.get_mut(1..=name.len()) else { return Err(ErrorKind::InvalidInput.into()) };
    for (place, byte) in place.iter_mut().zip(name) {
        *place = *byte as libc::c_char;
    }
    Ok((address, (offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len()) as libc::socklen_t))
}

/// Most descriptors sent at once.
const FILES_MAX: usize = 4;

/// Room for the control message that carries descriptors, aligned as it has to be.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Calls `with` with a message of some bytes and room for control data.
fn with_message<R>(
    size: usize,
    control: &mut Control,
    control_size: usize,
    with: impl FnOnce(&mut libc::msghdr) -> R,
) -> R {
    let mut bytes = [0u8; BYTES_AT_ONCE];
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: size.min(BYTES_AT_ONCE) };
    // SAFETY: zeroed, it is a valid message without anything.
    let mut message = unsafe { std::mem::zeroed::<libc::msghdr>() };
    message.msg_iov = &mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control_size as _;
    with(&mut message)
}

/// Sends at most `FILES_MAX` descriptors with one byte.
fn send_files(socket: &OwnedFd, files: &[&OwnedFd]) -> io::Result<()> {
    assert!(files.len() <= FILES_MAX);
    let mut control = Control([0; 64]);
    let files_size = size_of_val(&[0 as libc::c_int; FILES_MAX][..files.len()]) as u32;
    // SAFETY: computes a size.
    let size = unsafe { libc::CMSG_SPACE(files_size) } as usize;
    with_message(1, &mut control, size, |message| {
        // SAFETY: the message has room for one control message with these descriptors, and all it points to is alive.
        let sent = unsafe {
            let head = libc::CMSG_FIRSTHDR(message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(files_size) as _;
            let data = libc::CMSG_DATA(head).cast::<libc::c_int>();
            for (index, file) in files.iter().enumerate() {
                data.add(index).write_unaligned(file.as_raw_fd());
            }
            libc::sendmsg(socket.as_raw_fd(), message, libc::MSG_NOSIGNAL)
        };
        if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    })
}

/// The descriptor that the caller has sent. Errors: `WouldBlock`, `UnexpectedEof`, `InvalidData`.
fn receive_file(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut files = receive_files(socket)?;
    match files.pop() {
        Some(file) if files.is_empty() => Ok(file),
        _ => Err(io::Error::new(ErrorKind::InvalidData, "the caller sent no shared memory")),
    }
}

/// The descriptors that came with the next bytes, if any; the kernel gives no byte beyond those that carry some.
/// Errors: `WouldBlock`, `UnexpectedEof`.
fn receive_files(socket: &OwnedFd) -> io::Result<Vec<OwnedFd>> {
    let mut control = Control([0; 64]);
    with_message(BYTES_AT_ONCE, &mut control, 64, |message| {
        // SAFETY: all that the message points to is alive and as large as it says.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut files = Vec::new();
        // SAFETY: walks the control messages that the kernel wrote; each descriptor in them is ours from here on.
        unsafe {
            let mut head = libc::CMSG_FIRSTHDR(message);
            while !head.is_null() {
                if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                    let bytes = (*head).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let data = libc::CMSG_DATA(head).cast::<libc::c_int>();
                    for index in 0..bytes / size_of::<libc::c_int>() {
                        files.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                    }
                }
                head = libc::CMSG_NXTHDR(message, head);
            }
        }
        if received == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(files) }
    })
}

#[cfg(test)]
mod tests {
    use super::{abstract_address, is_our_user, local_name, new_socket, reach};
    use crate::Reactor;
    use crate::driver::Driver;
    use crate::epoll::EpollDriver;
    use crate::system::check;
    use std::future::Future;
    use std::io::{IoSlice, IoSliceMut};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const SECOND: crate::Nanos = 1_000_000_000;
    const NOBODY: libc::uid_t = 65_534;

    /// Sets the effective user of this thread alone, which the C library's call of that name does not do.
    fn become_user(user: libc::uid_t) {
        // SAFETY: no pointers. The thread is this test's own.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, -1i32, user, -1i32) };
        assert_eq!(result, 0, "this test changes its user: run it as root, or set TABANE_CI_NO_ROOT=1 to leave it out");
    }

    /// Goal: nobody lends to another user, and nobody takes what another user lends. Method: the kernel notes the user
    /// of either side when it connects or begins to listen; each side once another user's.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "whether a test is left out is for whoever runs it")]
    fn other_users_are_told_apart() {
        if std::env::var("TABANE_CI_NO_ROOT").is_ok_and(|value| value == "1") {
            return;
        }
        let own = crate::process::user();
        for (index, (listener_user, caller_user)) in [(own, own), (own, NOBODY), (NOBODY, own)].into_iter().enumerate()
        {
            let name = format!("tabane-test/users/{}/{index}", std::process::id()).into_bytes();
            let (address, size) = abstract_address(&name).expect("a short name");
            let sockets = [new_socket().expect("socket"), new_socket().expect("socket")];
            let [listener, caller] = &sockets;
            become_user(listener_user);
            // SAFETY: the address is a local of at least that size.
            unsafe {
                check(libc::bind(listener.as_raw_fd(), (&raw const address).cast(), size)).expect("the name is ours");
                check(libc::listen(listener.as_raw_fd(), 1)).expect("listens");
                become_user(own);
                become_user(caller_user);
                check(libc::connect(caller.as_raw_fd(), (&raw const address).cast(), size)).expect("somebody listens");
            }
            become_user(own);
            // SAFETY: no address is asked for; the new descriptor is owned from here on.
            let accepted = unsafe {
                let raw = libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut());
                OwnedFd::from_raw_fd(check(raw).expect("somebody called"))
            };
            assert_eq!(is_our_user(&accepted), caller_user == own, "the server looks at its caller");
            assert_eq!(is_our_user(caller), listener_user == own, "the caller looks at who listens");
        }
    }

    /// Goal: nobody on this machine is taken for a server of another one.
    /// Method: somebody of our own user listens in the name of a server, whose address is this machine's, or not (RFC
    /// 5737).
    #[test]
    fn servers_of_other_machines_are_not_looked_for_here() {
        let reactor = Reactor::open(crate::DriverKind::Epoll).expect("a loop");
        for (address, is_found) in [("127.0.0.1:9", true), ("192.0.2.1:9", false)] {
            let servers = vec![wire::ServerAddress { address: address.parse().expect("an address") }];
            let id = u128::from(std::process::id()) << 64;
            let cluster = wire::Cluster::new(id, [1; 32], wire::Placement::Modular, 1 << 20, servers);
            let _listener = reactor.listen_local(&local_name(&cluster, 0)).expect("the name is ours");
            assert_eq!(reach(&reactor, &cluster, 0).is_some_and(|reached| reached.is_ok()), is_found, "{address}");
        }
    }

    /// Goal: a sleeper is woken however often it was woken before, also where somebody else found what it was woken
    /// for. Method: what threads that share a driver do: one sleeps, the peer wakes it, another one takes the bytes
    /// first and announces the sleep anew. Far more often than the socket has room for wake-ups that nobody takes.
    #[test]
    fn wakeups_do_not_pile_up() {
        let name = format!("tabane-test/pile/{}", std::process::id()).into_bytes();
        let (server, client) = (EpollDriver::new().expect("driver"), EpollDriver::new().expect("driver"));
        let listener = server.listen_local(&name).expect("the name is ours");
        let caller = client.connect_local(&name, None).expect("somebody listens");
        assert!(server.take_events(Some(SECOND)));
        let accepted = pin!(listener.accept()).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Ok((answerer, _))) = accepted else { panic!("somebody called") };
        assert!(answerer.try_recv(&mut [IoSliceMut::new(&mut [0])]).is_err(), "the segment has come, but no bytes");
        for round in 0..3_000 {
            assert!(client.ports().begin_sleep(), "round {round}: nothing has come yet");
            answerer.try_send(&[IoSlice::new(b"x")]).expect("there is room");
            assert!(client.take_events(Some(SECOND)), "round {round}: the sleeper is woken");
            client.ports().poll();
            let taken = caller.try_recv(&mut [IoSliceMut::new(&mut [0])]);
            assert_eq!(taken.expect("it has come"), 1);
            assert!(caller.try_recv(&mut [IoSliceMut::new(&mut [0])]).is_err());
            assert!(client.ports().begin_sleep(), "round {round}: nothing else has come");
            client.ports().end_sleep();
        }
    }
}
