//! Buffers for devices: equal parts of one mapping, registered with the driver where it has use for that.
//!
//! Invariants
//! 1. A part of the mapping belongs to one `Buffer`, or is in `free`; so a buffer is read and written through plain
//!    references. While the kernel has it, the `Buffer` lies in the operation's entry, where nobody borrows it.
//! 2. The mapping lives until the last buffer is gone.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The most that one pool takes, which is the most that the ring takes as one buffer.
const POOL_SIZE_MAX: usize = 1 << 30;
/// Buffers begin at page boundaries, which suits every device's alignment of memory.
const PAGE_SIZE: usize = 4096;

/// A part of a driver that knows a pool's memory. Dropped with the pool.
pub(crate) trait Registration {
    /// Where it is known by.
    fn slot(&self) -> u16;
}

/// Anonymous memory, given back when dropped.
struct Mapping {
    base: *mut u8,
    size: usize,
}

impl Mapping {
    fn new(size: usize) -> io::Result<Mapping> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Huge pages if there are any, all of them now, and none in forked children, for whom the kernel would have to
        // copy what a device is just writing to. None of it is needed to be right.
        // SAFETY: advice about our own mapping.
        unsafe {
            libc::madvise(base, size, libc::MADV_HUGEPAGE);
            libc::madvise(base, size, libc::MADV_DONTFORK);
            libc::madvise(base, size, libc::MADV_POPULATE_WRITE);
        }
        Ok(Mapping { base: base.cast(), size })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no buffer of it is left (invariant 2).
        unsafe { libc::munmap(self.base.cast(), self.size) };
    }
}

struct PoolMemory {
    /// Before the memory that it is about.
    registration: Option<Box<dyn Registration>>,
    mapping: Mapping,
    buffer_size: usize,
    free: RefCell<Vec<u32>>,
    waiting: RefCell<VecDeque<(u64, Waker)>>,
    next_wait: Cell<u64>,
}

/// A number of equal buffers. Clones are the same pool.
#[derive(Clone)]
pub struct BufferPool(Rc<PoolMemory>);

impl BufferPool {
    /// Makes `count` buffers of at least `size` bytes each, rounded up to pages. `register` tells the driver.
    pub(crate) fn new(
        size: usize,
        count: u32,
        register: impl FnOnce(*mut u8, usize) -> Option<Box<dyn Registration>>,
    ) -> io::Result<BufferPool> {
        let buffer_size = size.next_multiple_of(PAGE_SIZE);
        let total = buffer_size.checked_mul(count as usize).filter(|total| (1..=POOL_SIZE_MAX).contains(total));
        let total = total.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "a pool has 4 KiB to 1 GiB"))?;
        let mapping = Mapping::new(total)?;
        let registration = register(mapping.base, total);
        let (waiting, next_wait) = Default::default();
        // The first is given out first.
        let free = RefCell::new((0..count).rev().collect());
        Ok(BufferPool(Rc::new(PoolMemory { registration, mapping, buffer_size, free, waiting, next_wait })))
    }

    /// A buffer, if one is free. What is in it is whatever was.
    pub fn take(&self) -> Option<Buffer> {
        let index = self.0.free.borrow_mut().pop()?;
        Some(Buffer { pool: self.0.clone(), index })
    }

    /// Resolves with a buffer when one is free, first come first served among those who wait.
    pub fn get(&self) -> BufferWait {
        BufferWait { pool: self.clone(), ticket: None }
    }

    /// Bytes of each buffer.
    pub fn buffer_size(&self) -> usize {
        self.0.buffer_size
    }

    /// Bytes of memory that the pool takes.
    pub fn memory(&self) -> u64 {
        self.0.mapping.size as u64
    }

    /// Buffers that nobody has.
    pub fn free_count(&self) -> usize {
        self.0.free.borrow().len()
    }

    /// Whether the driver knows the memory, so that nothing has to be looked up for each operation.
    pub fn is_registered(&self) -> bool {
        self.0.registration.is_some()
    }
}

impl PoolMemory {
    fn wake_next(&self) {
        let next = self.waiting.borrow_mut().pop_front();
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}

/// A part of a pool that nobody else has.
pub struct Buffer {
    pool: Rc<PoolMemory>,
    index: u32,
}

impl Buffer {
    /// Address of the first byte, for drivers.
    pub(crate) fn address(&self) -> *mut u8 {
        // SAFETY: indexes of buffers lie within the mapping.
        unsafe { self.pool.mapping.base.add(self.index as usize * self.pool.buffer_size) }
    }

    /// Where the driver knows its pool by.
    pub(crate) fn slot(&self) -> Option<u16> {
        self.pool.registration.as_ref().map(|registration| registration.slot())
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped for as long as the buffer lives, initialised by the kernel, and nobody else's (invariant 1).
        unsafe { std::slice::from_raw_parts(self.address(), self.pool.buffer_size) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.pool.buffer_size) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.pool.free.borrow_mut();
        assert!(!free.contains(&self.index), "a buffer is given back once");
        free.push(self.index);
        drop(free);
        self.pool.wake_next();
    }
}

/// Waits for a buffer; see [`BufferPool::get`].
pub struct BufferWait {
    pool: BufferPool,
    ticket: Option<u64>,
}

impl Future for BufferWait {
    type Output = Buffer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Buffer> {
        let pool = self.pool.0.clone();
        let mut waiting = pool.waiting.borrow_mut();
        let place = self.ticket.and_then(|ticket| waiting.iter().position(|(other, _)| *other == ticket));
        let waker = context.waker().clone();
        match (place, self.ticket) {
            // Not its turn yet, whoever polled it.
            (Some(place), Some(ticket)) => waiting[place] = (ticket, waker),
            // Those who wait go first, but for one who was just told that it is his turn.
            (None, ticket) if ticket.is_some() || waiting.is_empty() => match self.pool.take() {
                Some(buffer) => {
                    self.ticket = None;
                    return Poll::Ready(buffer);
                }
                None => {
                    let ticket = ticket.unwrap_or_else(|| pool.next_wait.replace(pool.next_wait.get() + 1));
                    self.ticket = Some(ticket);
                    waiting.push_front((ticket, waker));
                }
            },
            _ => {
                let ticket = pool.next_wait.replace(pool.next_wait.get() + 1);
                self.ticket = Some(ticket);
                waiting.push_back((ticket, waker));
            }
        }
        Poll::Pending
    }
}

impl Drop for BufferWait {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut waiting = self.pool.0.waiting.borrow_mut();
        let place = waiting.iter().position(|(other, _)| *other == ticket);
        let own = place.and_then(|place| waiting.remove(place));
        drop(waiting);
        // It was told that it is its turn, and did not take it.
        if own.is_none() && self.pool.free_count() > 0 {
            self.pool.0.wake_next();
        }
    }
}
