//! Kernel AIO, io_submit(2), for the driver over epoll.
//!
//! What is prepared in a turn is handed over by one call at its end. An event descriptor that epoll watches tells of
//! completions; while the loop is awake it sees them in memory, where the kernel keeps its ring of events.
//!
//! Direct reads and writes are done beside other work, flushes too. Reads and writes through the page cache are done
//! within `io_submit`, and whoever has such a file waits for them.

use super::OperationKind;
use super::open::{discard_now, move_now};
use super::queue::{Handover, Piece, is_batch_due};
use crate::operations::OperationTable;
use crate::system::{self, check};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU32, Ordering};

/// Operations that a context can have under way: as many as the deepest device.
const EVENTS: u32 = super::DEPTH_MAX;
/// Completions taken by one system call.
const BATCH: usize = 64;
/// `IOCB_CMD_PREAD`, `IOCB_CMD_PWRITE` and `IOCB_CMD_FDSYNC` of linux/aio_abi.h.
const COMMAND_READ: u16 = 0;
const COMMAND_WRITE: u16 = 1;
const COMMAND_SYNC: u16 = 3;
/// `IOCB_FLAG_RESFD`: tell an event descriptor.
const FLAG_EVENT: u32 = 1;
/// `AIO_RING_MAGIC` of the kernel's fs/aio.c: the ring of events has the layout of `EventRing`.
const RING_MAGIC: u32 = 0xa10a_10a1;

/// `struct iocb` of linux/aio_abi.h, little-endian.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ControlBlock {
    data: u64,
    key: u32,
    flags_of_call: u32,
    command: u16,
    priority: i16,
    descriptor: u32,
    address: u64,
    size: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct AioEvent {
    data: u64,
    block: u64,
    result: i64,
    result2: i64,
}

/// The head of what the kernel maps at the address that is a context's id.
#[repr(C)]
struct EventRing {
    id: u32,
    count: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
}

const _: () = assert!(size_of::<ControlBlock>() == 64 && size_of::<AioEvent>() == 32);

/// One context of kernel AIO.
pub(crate) struct Aio {
    context: libc::c_ulong,
    event: OwnedFd,
    prepared: RefCell<Vec<ControlBlock>>,
    table: Rc<OperationTable>,
    ended: Cell<bool>,
}

impl Aio {
    /// Errors: `EAGAIN` where the machine's `fs.aio-max-nr` is used up, `ENOSYS` where the kernel has none.
    pub fn new(table: &Rc<OperationTable>) -> io::Result<Aio> {
        let mut context: libc::c_ulong = 0;
        // SAFETY: writes a local.
        check(unsafe { libc::syscall(libc::SYS_io_setup, EVENTS, &raw mut context) } as libc::c_int)?;
        let event = system::event_descriptor()?;
        Ok(Aio { context, event, prepared: RefCell::default(), table: table.clone(), ended: Cell::new(false) })
    }

    /// Becomes readable when something completes.
    pub fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Hands over what is prepared.
    pub fn submit(&self) {
        self.table.note_submitted();
        while !self.prepared.borrow().is_empty() {
            let mut batch = std::mem::take(&mut *self.prepared.borrow_mut());
            let mut blocks: Vec<*mut ControlBlock> = batch.iter_mut().map(|block| block as *mut _).collect();
            // SAFETY: the kernel copies the blocks; what they refer to is held by the table until they complete.
            let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.context, blocks.len(), blocks.as_mut_ptr()) };
            let error = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            let (taken, refused) = match taken {
                // There is no room until something completes: then the next turn tries again.
                _ if taken < 0 && error == libc::EAGAIN => return self.put_back(&batch),
                _ if taken < 0 => (0, Some(batch[0].data)),
                _ => (taken as usize, None),
            };
            self.put_back(&batch[taken + usize::from(refused.is_some())..]);
            if let Some(index) = refused {
                self.table.complete(index as u32, -error);
            }
        }
    }

    fn put_back(&self, rest: &[ControlBlock]) {
        self.prepared.borrow_mut().splice(0..0, rest.iter().copied());
    }

    /// Whether there may be completions, by a look at memory.
    fn has_news(&self) -> bool {
        let ring = self.context as *const EventRing;
        // SAFETY: the kernel has mapped the ring of events there for as long as the context lives.
        let ring = unsafe { &*ring };
        ring.magic != RING_MAGIC || ring.head.load(Ordering::Relaxed) != ring.tail.load(Ordering::Acquire)
    }

    /// Handles what has completed. True if there was anything.
    pub fn reap(&self) -> bool {
        let mut any = false;
        while self.table.under_way() > 0 && self.has_news() {
            let count = self.take(0);
            any |= count > 0;
            if count < BATCH {
                break;
            }
        }
        any
    }

    /// Handles some completions, waiting for so many. Returns how many there were.
    fn take(&self, least: usize) -> usize {
        let mut events = [AioEvent::default(); BATCH];
        let time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let time = if least == 0 { &raw const time } else { std::ptr::null() };
        // SAFETY: the kernel writes at most that many events into a local; the time is a local or none.
        let count =
            unsafe { libc::syscall(libc::SYS_io_getevents, self.context, least, BATCH, events.as_mut_ptr(), time) };
        if count < 0 {
            let error = io::Error::last_os_error();
            assert!(error.kind() == io::ErrorKind::Interrupted, "asking our own context works: {error}");
            return 0;
        }
        for event in &events[..count as usize] {
            self.table.complete(event.data as u32, event.result as i32);
        }
        count as usize
    }

    /// Waits for everything that was handed over, and refuses the rest.
    pub fn end(&self) {
        self.ended.set(true);
        for block in self.prepared.take() {
            self.table.complete(block.data as u32, -libc::ECANCELED);
        }
        while self.table.under_way() > 0 {
            self.take(1);
        }
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: our own context, with which nothing is under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

/// A file whose operations go through a context.
pub(crate) struct AioFile {
    pub aio: Weak<Aio>,
    pub descriptor: OwnedFd,
}

impl Handover for AioFile {
    fn prepare(&self, index: u32, piece: &Piece) -> bool {
        let Some(aio) = self.aio.upgrade().filter(|aio| !aio.ended.get()) else { return false };
        let command = match piece.kind {
            OperationKind::Read => COMMAND_READ,
            OperationKind::Write => COMMAND_WRITE,
            OperationKind::Flush => COMMAND_SYNC,
            // There is no such command.
            OperationKind::Discard => {
                aio.table.complete(index, discard_now(self.descriptor.as_fd(), piece));
                return true;
            }
        };
        let block = ControlBlock {
            data: u64::from(index),
            command,
            descriptor: self.descriptor.as_raw_fd() as u32,
            address: piece.address as u64,
            size: piece.size,
            offset: piece.offset as i64,
            flags: FLAG_EVENT,
            event: aio.event.as_raw_fd() as u32,
            ..ControlBlock::default()
        };
        aio.table.note_prepared();
        aio.prepared.borrow_mut().push(block);
        let prepared = aio.prepared.borrow().len();
        if is_batch_due(prepared, aio.table.under_way()) {
            aio.submit();
        }
        true
    }

    fn move_now(&self, piece: &Piece) -> i32 {
        move_now(self.descriptor.as_fd(), piece)
    }
}
