//! The driver over io_uring: for servers.
//!
//! Each socket has one multishot poll, so readiness arrives as completions; bytes are then moved by non-blocking calls,
//! straight into or out of their final place, and the kernel never owns a buffer for a socket. The ring defers its work
//! to this thread and says so by a flag, so that polling for events costs a look at memory.
//!
//! Invariants
//! 1. The ring is used by the thread that made it alone (`SINGLE_ISSUER`).
//! 2. Whatever an operation in flight refers to (a file, a buffer) is held by its entry in `operations` until its
//!    completion, also when nobody waits for it any more; the driver's end waits for all of them.

use crate::Nanos;
use crate::backing::{self, Backing};
use crate::busy_poll::{BusyPoll, BusySocket, KernelWatch};
use crate::device::open::{self, OpenedFile};
use crate::device::queue::{DeviceQueue, Handover, Piece, is_batch_due};
use crate::device::ring::{FileName, Slots, entry_of};
use crate::device::{BufferPool, Device, DeviceOptions, Registration};
use crate::driver::Driver;
use crate::local::{self, HasPorts, Ports};
use crate::operations::{Held, OperationDelays, OperationTable};
use crate::region::{LocalFuture, Storage};
use crate::storage::{FileSync, MappedStorage};
use crate::stream::{Listener, Readiness, Stream};
use crate::system::{self, FastRandom, Watch, WatchTable};
use crate::task::ReadyQueue;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;

/// Entries of the submission ring; when it is full it is submitted early.
const SUBMISSIONS: u32 = 256;
/// Entries of the completion ring; the kernel keeps what overflows, and multishot polls that end by it are made again.
const COMPLETIONS: u32 = 4096;
/// Completions handled at a time.
const BATCH: usize = 64;
/// `IORING_ENTER_GETEVENTS`: run the deferred work, which makes completions.
const ENTER_GETEVENTS: u32 = 1;

/// The upper eight bits of the user data say what completed; below is a watch token or an operation's index.
const KIND_SHIFT: u32 = 56;
const KIND_POLL: u64 = 0;
const KIND_POKE: u64 = 1;
const KIND_IGNORED: u64 = 2;
const KIND_OPERATION: u64 = 3;

struct RingCore {
    ring: RefCell<IoUring>,
    poke: OwnedFd,
    table: WatchTable,
    ports: Ports,
    busy: BusyPoll,
    operations: Rc<OperationTable>,
    slots: RefCell<Slots>,
    prepared: Cell<bool>,
    /// Operations on devices among what is prepared.
    prepared_operations: Cell<usize>,
    /// The driver is gone: nothing is handed over any more.
    ended: Cell<bool>,
}

/// The io_uring driver.
pub(crate) struct UringDriver {
    core: Rc<RingCore>,
    random: FastRandom,
}

impl UringDriver {
    /// Errors: `EPERM` or `ENOSYS` where io_uring is switched off, `EINVAL` where the kernel is older than 6.1.
    pub fn new() -> io::Result<UringDriver> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            .build(SUBMISSIONS)?;
        if !ring.params().is_feature_nodrop() || !ring.params().is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let core = Rc::new(RingCore {
            ring: RefCell::new(ring),
            poke: system::event_descriptor()?,
            table: WatchTable::default(),
            ports: Ports::default(),
            busy: BusyPoll::default(),
            operations: Rc::new(OperationTable::new(Box::new(system::monotonic))),
            slots: RefCell::default(),
            prepared: Cell::new(false),
            prepared_operations: Cell::new(0),
            ended: Cell::new(false),
        });
        core.arm_poke();
        core.submit();
        Ok(UringDriver { core, random: FastRandom::new() })
    }
}

impl RingCore {
    /// Prepares an operation; it is submitted at the end of the turn, or now if the ring is full.
    fn push(&self, entry: &squeue::Entry) {
        let mut ring = self.ring.borrow_mut();
        loop {
            // SAFETY: what the entries refer to outlives them: sockets are unwatched before they close, and files are
            // held by `operations` (invariant 2).
            if unsafe { ring.submission().push(entry) }.is_ok() {
                self.prepared.set(true);
                return;
            }
            if let Err(error) = ring.submit() {
                assert!(is_passing(&error), "the kernel takes what is prepared: {error}");
            }
        }
    }

    fn submit(&self) {
        if !self.prepared.get() {
            return;
        }
        self.operations.note_submitted();
        let mut ring = self.ring.borrow_mut();
        // The completion ring may be full, or a signal may come: then the next turn tries again.
        if let Err(error) = ring.submit() {
            assert!(is_passing(&error), "the kernel takes what is prepared: {error}");
        }
        self.note_submitted(&mut ring);
    }

    fn note_submitted(&self, ring: &mut IoUring) {
        self.prepared.set(!ring.submission().is_empty());
        self.prepared_operations.set(0);
    }

    fn arm_poke(&self) {
        let poll = opcode::PollAdd::new(types::Fd(self.poke.as_raw_fd()), libc::EPOLLIN as u32).multi(true).build();
        self.push(&poll.user_data(KIND_POKE << KIND_SHIFT));
    }

    fn arm_socket(&self, descriptor: libc::c_int, token: u64, events: u32) {
        let poll = opcode::PollAdd::new(types::Fd(descriptor), events).multi(true).build();
        self.push(&poll.user_data(token | KIND_POLL << KIND_SHIFT));
    }

    /// Handles what has completed.
    fn reap(&self) -> bool {
        let mut any = false;
        loop {
            let mut batch = [(0u64, 0i32, 0u32); BATCH];
            let mut count = 0;
            {
                let mut ring = self.ring.borrow_mut();
                let waiting = {
                    let submission = ring.submission();
                    submission.taskrun() || submission.cq_overflow()
                };
                if waiting {
                    // SAFETY: no argument is passed.
                    let entered = unsafe { ring.submitter().enter::<libc::sigset_t>(0, 0, ENTER_GETEVENTS, None) };
                    if let Err(error) = entered {
                        assert!(is_passing(&error), "the kernel runs deferred work: {error}");
                    }
                }
                for completion in ring.completion().take(BATCH) {
                    batch[count] = (completion.user_data(), completion.result(), completion.flags());
                    count += 1;
                }
            }
            for &(user_data, result, flags) in &batch[..count] {
                self.complete(user_data, result, flags);
            }
            any |= count > 0;
            if count < BATCH {
                return any;
            }
        }
    }

    fn complete(&self, user_data: u64, result: i32, flags: u32) {
        let token = user_data & ((1 << KIND_SHIFT) - 1);
        match user_data >> KIND_SHIFT {
            KIND_POLL => self.complete_poll(token, result, cqueue::more(flags)),
            KIND_POKE => {
                if !cqueue::more(flags) {
                    self.arm_poke();
                }
            }
            KIND_OPERATION => self.operations.complete(token as u32, result),
            kind => assert!(kind == KIND_IGNORED, "completions carry what was submitted"),
        }
    }

    fn complete_poll(&self, token: u64, result: i32, more: bool) {
        // The socket may be closed by now: a late completion finds nothing.
        let Some(watched) = self.table.find(token) else { return };
        if result == -libc::ECANCELED {
            // We ended it, to ask the socket ourselves.
            return;
        }
        if result < 0 {
            // The kernel gave up on this poll (memory): look again, whatever there is will be reported at once.
            self.arm_socket(watched.descriptor, token, watched.events);
            return;
        }
        let dead = result & (libc::EPOLLHUP | libc::EPOLLERR) != 0;
        if !more && !dead {
            self.arm_socket(watched.descriptor, token, watched.events);
        }
        system::report(&watched.readiness, result as u32);
    }
}

/// Errors of `io_uring_enter` that only mean "later".
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME))
}

impl Watch for RingCore {
    fn watch(&self, descriptor: &OwnedFd, readiness: &Rc<Readiness>, events: u32) -> io::Result<u64> {
        let token = self.table.add(descriptor.as_raw_fd(), readiness, events);
        self.arm_socket(descriptor.as_raw_fd(), token, events);
        Ok(token)
    }

    fn unwatch(&self, descriptor: &OwnedFd, token: u64) {
        self.table.remove(token);
        // The poll in the ring holds the socket open beyond `close`: end the connection now, then remove the poll. A
        // poll that is still only prepared must not meet the descriptor's next owner, so everything is submitted here.
        // SAFETY: no pointers; a failure means that it is disconnected already.
        unsafe { libc::shutdown(descriptor.as_raw_fd(), libc::SHUT_RDWR) };
        let remove = opcode::PollRemove::new(token | KIND_POLL << KIND_SHIFT).build();
        self.push(&remove.user_data(KIND_IGNORED << KIND_SHIFT));
        self.submit();
    }

    fn busy_poll(&self) -> &BusyPoll {
        &self.busy
    }
}

impl KernelWatch for RingCore {
    fn suspend(&self, socket: &BusySocket) {
        let cancel = opcode::AsyncCancel::new(socket.token | KIND_POLL << KIND_SHIFT).build();
        self.push(&cancel.user_data(KIND_IGNORED << KIND_SHIFT));
    }

    fn resume(&self, socket: &BusySocket) {
        self.arm_socket(socket.descriptor, socket.token, socket.events);
    }
}

impl HasPorts for RingCore {
    fn ports(&self) -> &Ports {
        &self.ports
    }
}

impl Driver for UringDriver {
    fn name(&self) -> &'static str {
        "io_uring"
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
        Ok(Rc::new(MappedStorage::open(directory, Rc::new(RingSync(Rc::downgrade(&self.core))))?))
    }

    fn device(&self, path: &Path, options: &DeviceOptions) -> io::Result<Device> {
        let OpenedFile { descriptor, facts, direct } = open::open(path, options)?;
        let core = &self.core;
        let slot = core.slots.borrow_mut().add_file(&core.ring.borrow().submitter(), descriptor.as_raw_fd()).ok();
        let abilities = facts.abilities(self.name(), direct, slot.is_some());
        let file = RingFile { core: Rc::downgrade(core), descriptor, slot };
        Ok(Device::new(&core.operations, DeviceQueue::new(path.into(), abilities, Box::new(file), options.depth)))
    }

    fn buffer_pool(&self, size: usize, count: u32) -> io::Result<BufferPool> {
        BufferPool::new(size, count, |base, size| {
            let core = &self.core;
            let slot = core.slots.borrow_mut().add_pool(&core.ring.borrow().submitter(), base, size).ok()?;
            Some(Box::new(RingPool { core: Rc::downgrade(core), slot }))
        })
    }

    fn backing(&self, root: &Path) -> io::Result<Box<dyn Backing>> {
        backing::over_threads(root)
    }

    fn poll(&self) -> bool {
        let news = self.core.ports.poll();
        self.core.reap() | news
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
        self.core.submit();
    }

    fn wait(&self, until: Option<Nanos>) {
        if !self.core.ports.begin_sleep() {
            return;
        }
        self.core.operations.note_submitted();
        let mut ring = self.core.ring.borrow_mut();
        let result = match until {
            None => ring.submit_and_wait(1),
            Some(until) => {
                let left = until.saturating_sub(system::monotonic());
                let time = types::Timespec::new().sec(left / 1_000_000_000).nsec((left % 1_000_000_000) as u32);
                ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&time))
            }
        };
        if let Err(error) = result {
            assert!(is_passing(&error), "the kernel waits for completions: {error}");
        }
        self.core.note_submitted(&mut ring);
        drop(ring);
        self.core.ports.end_sleep();
    }

    fn attach(&self, queue: &Arc<ReadyQueue>) {
        queue.set_poke_descriptor(self.core.poke.as_raw_fd());
    }
}

impl Drop for UringDriver {
    fn drop(&mut self) {
        let core = &*self.core;
        core.ended.set(true);
        while core.operations.under_way() > 0 {
            let result = core.ring.borrow_mut().submit_and_wait(1);
            if let Err(error) = result {
                assert!(is_passing(&error), "the kernel waits for completions: {error}");
            }
            core.reap();
        }
        core.slots.borrow_mut().end(&core.ring.borrow().submitter());
    }
}

/// Makes files durable beside other work. The ring may be gone before the regions are; then it is done waiting.
struct RingSync(Weak<RingCore>);

impl FileSync for RingSync {
    fn sync(&self, file: &Rc<OwnedFd>) -> LocalFuture<io::Result<()>> {
        let Some(core) = self.0.upgrade().filter(|core| !core.ended.get()) else {
            // SAFETY: no pointers.
            let result = system::check(unsafe { libc::fdatasync(file.as_raw_fd()) }).map(drop);
            return Box::pin(std::future::ready(result));
        };
        let table = core.operations.clone();
        let index = table.add(Held::File { _file: file.clone() });
        table.note_handed_over(index);
        let entry = opcode::Fsync::new(types::Fd(file.as_raw_fd())).flags(types::FsyncFlags::DATASYNC).build();
        core.push(&entry.user_data(u64::from(index) | KIND_OPERATION << KIND_SHIFT));
        Box::pin(SyncFuture { table, index: Some(index) })
    }
}

struct SyncFuture {
    table: Rc<OperationTable>,
    index: Option<u32>,
}

impl Future for SyncFuture {
    type Output = io::Result<()>;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
        let index = self.index.expect("a future is not polled after it completed");
        let Poll::Ready(ended) = self.table.poll(index, context) else { return Poll::Pending };
        self.index = None;
        Poll::Ready(if ended.result < 0 { Err(io::Error::from_raw_os_error(-ended.result)) } else { Ok(()) })
    }
}

impl Drop for SyncFuture {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            self.table.abandon(index);
        }
    }
}

/// A file of a device, known to the ring if there was a slot.
struct RingFile {
    core: Weak<RingCore>,
    descriptor: OwnedFd,
    slot: Option<u32>,
}

impl Handover for RingFile {
    fn prepare(&self, index: u32, piece: &Piece) -> bool {
        let Some(core) = self.core.upgrade().filter(|core| !core.ended.get()) else { return false };
        let name = self.slot.map_or(FileName::Descriptor(self.descriptor.as_raw_fd()), FileName::Slot);
        core.push(&entry_of(name, piece).user_data(u64::from(index) | KIND_OPERATION << KIND_SHIFT));
        core.operations.note_prepared();
        let prepared = core.prepared_operations.get() + 1;
        core.prepared_operations.set(prepared);
        if is_batch_due(prepared, core.operations.under_way()) {
            core.submit();
        }
        true
    }

    fn move_now(&self, piece: &Piece) -> i32 {
        open::move_now(self.descriptor.as_fd(), piece)
    }
}

impl Drop for RingFile {
    fn drop(&mut self) {
        if let (Some(slot), Some(core)) = (self.slot, self.core.upgrade()) {
            core.slots.borrow_mut().remove_file(&core.ring.borrow().submitter(), slot);
        }
    }
}

/// Memory of a pool that the ring knows.
struct RingPool {
    core: Weak<RingCore>,
    slot: u16,
}

impl Registration for RingPool {
    fn slot(&self) -> u16 {
        self.slot
    }
}

impl Drop for RingPool {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.slots.borrow_mut().remove_pool(&core.ring.borrow().submitter(), self.slot);
        }
    }
}
