//! The driver over epoll: for clients inside foreign processes, and where io_uring is switched off.
//!
//! Nothing in it is bound to a thread; `Shared` uses it from whichever thread holds its lock and sleeps in
//! [`EventBuffer::wait`] without the lock.

use crate::Nanos;
use crate::backing::{self, Backing};
use crate::busy_poll::{BusyPoll, BusySocket, KernelWatch};
use crate::device::aio::{Aio, AioFile};
use crate::device::open::{self, OpenedFile};
use crate::device::queue::DeviceQueue;
use crate::device::{Device, DeviceOptions};
use crate::driver::Driver;
use crate::forks;
use crate::local::{self, HasPorts, Ports};
use crate::operations::{OperationDelays, OperationTable};
use crate::region::{LocalFuture, Storage};
use crate::storage::{FileSync, MappedStorage};
use crate::stream::{Listener, Readiness, Stream};
use crate::system::{self, FastRandom, Watch, WatchTable};
use crate::task::ReadyQueue;
use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Events taken by one system call.
const EVENTS_MAX: usize = 64;
/// Token of the event descriptor by which other threads interrupt a sleep.
const POKE_TOKEN: u64 = u64::MAX;
/// Token of the event descriptor that tells of completions.
const AIO_TOKEN: u64 = u64::MAX - 1;
/// Looks at local ports for each look at the kernel's events, which is a system call: few at first, twice as many after
/// each that was in vain. After events it is asked at once again.
const KERNEL_POLL_INTERVALS: (u32, u32) = (8, 512);
/// Looks at local ports in vain, one after the other, from which on the kernel is asked as often as at first: an answer
/// of a local peer takes fewer, and whoever waits for others must not wait for long. Where looks take no time, as they
/// do while nobody else wants the core, so much passes between two questions.
const LOCAL_PATIENCE: u32 = 32;
const KERNEL_POLL_PAUSE_NS: Nanos = 5_000;

/// Events taken from the kernel and not delivered yet.
pub(crate) struct EventBuffer {
    events: [libc::epoll_event; EVENTS_MAX],
    count: usize,
}

impl EventBuffer {
    pub fn new() -> EventBuffer {
        EventBuffer { events: [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX], count: 0 }
    }

    /// Takes events, waiting for the first one for `timeout` nanoseconds (`None`: for ever).
    pub fn wait(&mut self, epoll: libc::c_int, timeout: Option<Nanos>) {
        let time = timeout.map(|timeout| libc::timespec {
            tv_sec: (timeout / 1_000_000_000) as i64,
            tv_nsec: (timeout % 1_000_000_000) as i64,
        });
        let pointer = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // A zero time-out needs no precision: the older call is the cheaper one.
        let count = if timeout == Some(0) {
            // SAFETY: the buffer takes that many events.
            unsafe { libc::epoll_wait(epoll, self.events.as_mut_ptr(), EVENTS_MAX as libc::c_int, 0) }
        } else {
            let mask = std::ptr::null::<libc::sigset_t>();
            // SAFETY: the buffer takes that many events; the time-out is a local or null; no signal mask is given.
            let count = unsafe {
                libc::syscall(libc::SYS_epoll_pwait2, epoll, self.events.as_mut_ptr(), EVENTS_MAX, pointer, mask, 8)
            };
            if count < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
                let milliseconds =
                    timeout.map_or(-1, |timeout| timeout.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
                // SAFETY: as above; kernels before 5.11 know milliseconds only.
                unsafe { libc::epoll_wait(epoll, self.events.as_mut_ptr(), EVENTS_MAX as libc::c_int, milliseconds) }
            } else {
                count as libc::c_int
            }
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            assert!(error.kind() == io::ErrorKind::Interrupted, "waiting on our own epoll descriptor works: {error}");
        }
        self.count = count.max(0) as usize;
    }
}

struct EpollCore {
    epoll: OwnedFd,
    poke: OwnedFd,
    table: WatchTable,
    ports: Ports,
    busy: BusyPoll,
    /// Whether forked children shall close the sockets.
    shared: bool,
    operations: Rc<OperationTable>,
    /// From the first device on.
    aio: OnceCell<Rc<Aio>>,
}

impl Watch for EpollCore {
    fn watch(&self, descriptor: &OwnedFd, readiness: &Rc<Readiness>, events: u32) -> io::Result<u64> {
        let token = self.table.add(descriptor.as_raw_fd(), readiness, events);
        self.control(libc::EPOLL_CTL_ADD, descriptor.as_raw_fd(), events | libc::EPOLLET as u32, token)
            .inspect_err(|_| self.table.remove(token))?;
        if self.shared {
            forks::track(descriptor);
        }
        Ok(token)
    }

    fn unwatch(&self, descriptor: &OwnedFd, token: u64) {
        self.table.remove(token);
        if self.shared {
            forks::untrack(descriptor);
        }
        // Closing alone would not do where a forked child still holds the socket.
        // SAFETY: no event is passed.
        unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, descriptor.as_raw_fd(), std::ptr::null_mut())
        };
    }

    fn busy_poll(&self) -> &BusyPoll {
        &self.busy
    }
}

impl KernelWatch for EpollCore {
    fn suspend(&self, socket: &BusySocket) {
        self.modify(socket, 0);
    }

    fn resume(&self, socket: &BusySocket) {
        self.modify(socket, socket.events | libc::EPOLLET as u32);
    }
}

impl HasPorts for EpollCore {
    fn ports(&self) -> &Ports {
        &self.ports
    }
}

impl Drop for EpollCore {
    fn drop(&mut self) {
        if let Some(aio) = self.aio.get() {
            aio.end();
        }
    }
}

impl EpollCore {
    fn control(&self, action: libc::c_int, descriptor: RawFd, events: u32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: the event is a local.
        system::check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), action, descriptor, &mut event) }).map(drop)
    }

    /// What does operations on devices.
    fn aio(&self) -> io::Result<&Rc<Aio>> {
        if let Some(aio) = self.aio.get() {
            return Ok(aio);
        }
        let aio = Aio::new(&self.operations)?;
        // Edges: each completion is one, and nobody has to empty the descriptor.
        let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
        self.control(libc::EPOLL_CTL_ADD, aio.event().as_raw_fd(), events, AIO_TOKEN)?;
        Ok(self.aio.get_or_init(|| Rc::new(aio)))
    }

    /// Handles completions of operations on devices.
    fn reap(&self) -> bool {
        self.aio.get().is_some_and(|aio| aio.reap())
    }

    fn modify(&self, socket: &BusySocket, events: u32) {
        let result = self.control(libc::EPOLL_CTL_MOD, socket.descriptor, events, socket.token);
        assert!(result.is_ok(), "a socket that was added can be changed: {result:?}");
    }
}

/// When to look at the kernel's events next, while looks cost less elsewhere.
struct KernelLooks {
    /// Looks elsewhere until then.
    skips: Cell<u32>,
    /// Looks elsewhere after the next one that is in vain.
    interval: Cell<u32>,
    /// Looks elsewhere in a row that found nothing.
    vain: Cell<u32>,
    /// When the kernel was asked last while there were many of these.
    asked: Cell<Nanos>,
}

impl Default for KernelLooks {
    fn default() -> KernelLooks {
        let interval = Cell::new(KERNEL_POLL_INTERVALS.0);
        KernelLooks { interval, skips: Cell::default(), vain: Cell::default(), asked: Cell::default() }
    }
}

impl KernelLooks {
    /// Whether to ask the kernel after one more look elsewhere, which found something or not.
    fn is_due(&self, found: bool, now: impl Fn() -> Nanos) -> bool {
        let vain = if found { 0 } else { self.vain.get() + 1 };
        self.vain.set(vain);
        if vain > LOCAL_PATIENCE {
            let least = KERNEL_POLL_INTERVALS.0;
            self.skips.set(self.skips.get().min(least));
            self.interval.set(least);
        }
        let skips = self.skips.get();
        self.skips.set(skips.saturating_sub(1));
        if skips > 0 || vain <= LOCAL_PATIENCE {
            return skips == 0;
        }
        let now = now();
        let is_time = now - self.asked.get() >= KERNEL_POLL_PAUSE_NS;
        if is_time {
            self.asked.set(now);
        }
        is_time
    }

    /// The kernel was asked.
    fn note(&self, found: bool) {
        let (least, most) = KERNEL_POLL_INTERVALS;
        let interval = self.interval.get();
        self.skips.set(if found { 0 } else { interval - 1 });
        self.interval.set(if found { least } else { (2 * interval).min(most) });
    }
}

/// The epoll driver. Clones are the same one.
#[derive(Clone)]
pub(crate) struct EpollDriver {
    core: Rc<EpollCore>,
    events: Rc<RefCell<EventBuffer>>,
    random: Rc<FastRandom>,
    kernel: Rc<KernelLooks>,
}

impl EpollDriver {
    /// For one thread's loop.
    pub fn new() -> io::Result<EpollDriver> {
        EpollDriver::make(false)
    }

    /// For `Shared`: forked children close its sockets.
    pub fn new_shared() -> io::Result<EpollDriver> {
        EpollDriver::make(true)
    }

    fn make(shared: bool) -> io::Result<EpollDriver> {
        // SAFETY: makes a descriptor, which is owned from here on.
        let epoll = unsafe { OwnedFd::from_raw_fd(system::check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        let core = EpollCore {
            epoll,
            poke: system::event_descriptor()?,
            table: WatchTable::default(),
            ports: Ports::default(),
            busy: BusyPoll::default(),
            shared,
            operations: Rc::new(OperationTable::new(Box::new(system::monotonic))),
            aio: OnceCell::new(),
        };
        // Level triggered: with `Shared`, a thread that looks for events must not take the poke that is to wake the
        // leader.
        core.control(libc::EPOLL_CTL_ADD, core.poke.as_raw_fd(), libc::EPOLLIN as u32, POKE_TOKEN)?;
        let random = Rc::new(FastRandom::new());
        Ok(EpollDriver {
            core: Rc::new(core),
            events: Rc::new(RefCell::new(EventBuffer::new())),
            random,
            kernel: Rc::default(),
        })
    }

    /// The descriptor to wait on.
    pub fn descriptor(&self) -> libc::c_int {
        self.core.epoll.as_raw_fd()
    }

    /// The ports of local streams.
    pub fn ports(&self) -> &Ports {
        &self.core.ports
    }

    /// Tells the sockets about events. True if there were any; pokes are none.
    pub fn deliver(&self, buffer: &mut EventBuffer) -> bool {
        let count = std::mem::take(&mut buffer.count);
        let mut any = false;
        for event in &buffer.events[..count] {
            let (token, events) = (event.u64, event.events);
            if token == POKE_TOKEN {
                continue;
            }
            any = true;
            if token == AIO_TOKEN {
                self.core.reap();
                continue;
            }
            if let Some(watched) = self.core.table.find(token) {
                system::report(&watched.readiness, events);
            }
        }
        any
    }

    /// Ends the pokes so far, by whoever they were for: the one that slept.
    pub fn end_pokes(&self, buffer: &EventBuffer) {
        if buffer.events[..buffer.count].iter().any(|event| event.u64 == POKE_TOKEN) {
            let mut count = 0u64;
            // SAFETY: reads eight bytes into a local; there is nothing to read if somebody was faster.
            unsafe { libc::read(self.core.poke.as_raw_fd(), (&raw mut count).cast(), 8) };
        }
    }

    /// Waits for events and tells the sockets. True if there were any.
    pub fn take_events(&self, timeout: Option<Nanos>) -> bool {
        let mut events = self.events.borrow_mut();
        events.wait(self.descriptor(), timeout);
        if !self.core.shared {
            self.end_pokes(&events);
        }
        self.deliver(&mut events)
    }
}

impl Driver for EpollDriver {
    fn name(&self) -> &'static str {
        "epoll"
    }

    fn now(&self) -> Nanos {
        system::monotonic()
    }

    fn wall_clock(&self) -> i64 {
        system::wall_clock()
    }

    fn random(&self) -> u64 {
        self.random.next()
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        system::fill_random(bytes);
    }

    fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        system::connect(&self.core, address)
    }

    fn listen(&self, address: SocketAddr) -> io::Result<Listener> {
        system::listen(&self.core, address)
    }

    fn adopt(&self, socket: OwnedFd) -> io::Result<Stream> {
        system::adopt(&self.core, socket)
    }

    fn own_addresses(&self) -> Vec<IpAddr> {
        crate::interfaces::own_addresses()
    }

    fn connect_local(&self, name: &[u8], owner: Option<u32>) -> io::Result<Stream> {
        local::connect(&self.core, name, owner)
    }

    fn listen_local(&self, name: &[u8]) -> io::Result<Listener> {
        local::listen(&self.core, name)
    }

    fn storage(&self, directory: &Path) -> io::Result<Rc<dyn Storage>> {
        Ok(Rc::new(MappedStorage::open(directory, Rc::new(BlockingSync))?))
    }

    fn device(&self, path: &Path, options: &DeviceOptions) -> io::Result<Device> {
        let aio = Rc::downgrade(self.core.aio()?);
        let OpenedFile { descriptor, facts, direct } = open::open(path, options)?;
        let abilities = facts.abilities("aio", direct, false);
        let file = Box::new(AioFile { aio, descriptor });
        Ok(Device::new(&self.core.operations, DeviceQueue::new(path.into(), abilities, file, options.depth)))
    }

    fn backing(&self, root: &Path) -> io::Result<Box<dyn Backing>> {
        backing::over_threads(root)
    }

    fn poll(&self) -> bool {
        let news = self.core.ports.poll() | self.core.reap();
        // While local peers or busy sockets answer, the kernel is asked now and then only.
        let elsewhere = !self.core.ports.is_empty() || !self.core.busy.is_empty();
        if elsewhere && !self.kernel.is_due(news, system::monotonic) {
            return news;
        }
        let events = self.take_events(Some(0));
        self.kernel.note(events);
        events | news
    }

    fn look(&self) -> usize {
        self.core.busy.look()
    }

    fn received(&self) -> u64 {
        self.core.busy.received()
    }

    fn bytes_copied(&self) -> u64 {
        shm::copying::bytes_copied()
    }

    fn is_core_wanted(&self) -> bool {
        crate::waiting::is_core_wanted()
    }

    fn has_busy(&self) -> bool {
        !self.core.busy.is_empty()
    }

    fn end_looks(&self) -> bool {
        let busy = !self.core.busy.is_empty();
        self.core.busy.end_all(&*self.core);
        busy
    }

    fn operation_delays(&self) -> OperationDelays {
        self.core.operations.delays()
    }

    fn submit(&self) {
        if let Some(aio) = self.core.aio.get() {
            aio.submit();
        }
    }

    fn wait(&self, until: Option<Nanos>) {
        if !self.core.ports.begin_sleep() {
            return;
        }
        let timeout = until.map(|until| until.saturating_sub(self.now()));
        self.take_events(timeout);
        self.core.ports.end_sleep();
    }

    fn attach(&self, queue: &Arc<ReadyQueue>) {
        queue.set_poke_descriptor(self.core.poke.as_raw_fd());
    }
}

/// Makes files durable by waiting for it: this driver has no way to do so beside other work.
struct BlockingSync;

impl FileSync for BlockingSync {
    fn sync(&self, file: &Rc<OwnedFd>) -> LocalFuture<io::Result<()>> {
        // SAFETY: no pointers.
        let result = system::check(unsafe { libc::fdatasync(file.as_raw_fd()) }).map(drop);
        Box::pin(std::future::ready(result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: while local peers answer, the kernel is asked less and less; once they don't, or it had something, as
    /// often as at first, but not without a pause.
    #[test]
    fn kernel_is_asked_as_often_as_it_pays() {
        let looks = KernelLooks::default();
        let now = Cell::new(0);
        let asked_every = |look_ns: Nanos, rounds: u32, found: bool| {
            let due = |_: &u32| {
                now.set(now.get() + look_ns);
                let due = looks.is_due(found, || now.get());
                if due {
                    looks.note(false);
                }
                due
            };
            (0..rounds).filter(due).count() as u32
        };
        let asked = |rounds, found| asked_every(KERNEL_POLL_PAUSE_NS, rounds, found);
        let (least, most) = KERNEL_POLL_INTERVALS;
        assert_eq!(asked(1, true), 1, "at once");
        asked(10 * most, true);
        assert!((1..=2).contains(&asked(most, true)));
        // Then nobody answers.
        asked(LOCAL_PATIENCE + 2 * least, false);
        assert!((10..=11).contains(&asked(10 * least, false)));
        assert!((4..=5).contains(&asked_every(KERNEL_POLL_PAUSE_NS / 100, 450, false)));
        // An event brings back the shortest interval.
        asked(10 * most, true);
        looks.note(true);
        assert_eq!(asked(1, true), 1);
        assert!(asked(3 * least, true) >= 1);
    }
}
