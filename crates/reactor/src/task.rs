//! Tasks and the queue of those that are ready.
//!
//! A task is one allocation: its header and its future. Wakers are counted references to it and may be used and dropped
//! on any thread; the future is touched by the queue's owner alone.
//!
//! Invariants
//! 1. Only the owner (the thread whose marker is in `ReadyQueue::owner`) touches `local` and the futures. For a plain
//!    reactor that is the thread that made it, for good; for `Shared` it is whoever holds the lock.
//! 2. A task is in a queue at most once: whoever turns `scheduled` from false to true puts it there.
//! 3. A future is dropped by the owner, when it completes, is cancelled, or the reactor shuts down; so dropping the
//!    last waker on another thread frees memory but runs no foreign destructor.

use crate::Class;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Number of classes.
pub(crate) const CLASS_COUNT: usize = 3;

/// A number that differs between threads that are alive.
pub(crate) fn thread_marker() -> usize {
    thread_local!(static MARKER: u8 = const { 0 });
    MARKER.with(|marker| std::ptr::from_ref(marker) as usize)
}

/// Tasks that are ready to run, by class, and the means to wake a sleeping loop.
pub struct ReadyQueue {
    owner: AtomicUsize,
    local: UnsafeCell<[VecDeque<Arc<dyn Runnable>>; CLASS_COUNT]>,
    remote: Mutex<Vec<Arc<dyn Runnable>>>,
    remote_pending: AtomicBool,
    /// Another thread has woken the future that `block_on` polls, which has not looked since. Nobody else may take
    /// that.
    root_pending: AtomicBool,
    sleeping: AtomicBool,
    closed: AtomicBool,
    poke_descriptor: AtomicI32,
}

// SAFETY: `local` is touched by the owner only (invariant 1), everything else is synchronised.
unsafe impl Send for ReadyQueue {}
// SAFETY: as above.
unsafe impl Sync for ReadyQueue {}

impl ReadyQueue {
    /// An empty queue owned by this thread.
    pub(crate) fn new() -> Arc<ReadyQueue> {
        Arc::new(ReadyQueue {
            owner: AtomicUsize::new(thread_marker()),
            local: UnsafeCell::new(Default::default()),
            remote: Mutex::new(Vec::new()),
            remote_pending: AtomicBool::new(false),
            root_pending: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            poke_descriptor: AtomicI32::new(-1),
        })
    }

    /// Names the event descriptor that interrupts the driver's sleep. The driver must clear it (-1) before closing it.
    pub(crate) fn set_poke_descriptor(&self, descriptor: i32) {
        self.poke_descriptor.store(descriptor, Ordering::Release);
    }

    /// Makes this thread the owner (`Shared`, with its lock held), or nobody.
    pub(crate) fn set_owner(&self, marker: usize) {
        self.owner.store(marker, Ordering::Relaxed);
    }

    /// Whether this thread is the owner.
    pub(crate) fn is_owner(&self) -> bool {
        // Relaxed suffices: the value equals this thread's marker only if this thread stored it.
        self.owner.load(Ordering::Relaxed) == thread_marker()
    }

    /// Runs `with` on the local queues.
    fn with_local<R>(&self, with: impl FnOnce(&mut [VecDeque<Arc<dyn Runnable>>; CLASS_COUNT]) -> R) -> R {
        assert!(self.is_owner());
        // SAFETY: only the owner comes here (invariant 1), and none of the callers' closures call back into the queue.
        with(unsafe { &mut *self.local.get() })
    }

    /// Number of ready tasks of a class.
    pub(crate) fn ready_count(&self, class: Class) -> usize {
        self.with_local(|local| local[class as usize].len())
    }

    /// Takes the oldest ready task of a class.
    pub(crate) fn pop(&self, class: Class) -> Option<Arc<dyn Runnable>> {
        self.with_local(|local| local[class as usize].pop_front())
    }

    /// Moves tasks woken by other threads into the local queues.
    pub(crate) fn take_remote(&self) {
        if !self.remote_pending.swap(false, Ordering::Acquire) {
            return;
        }
        let woken = std::mem::take(&mut *self.remote.lock().unwrap_or_else(PoisonError::into_inner));
        self.with_local(|local| {
            for task in woken {
                local[task.header().class() as usize].push_back(task);
            }
        });
    }

    /// Whether nothing is ready.
    pub(crate) fn is_empty(&self) -> bool {
        !self.remote_pending.load(Ordering::Acquire)
            && !self.root_pending.load(Ordering::Acquire)
            && self.with_local(|local| local.iter().all(VecDeque::is_empty))
    }

    /// Says that the future of `block_on` is about to be looked at.
    pub(crate) fn begin_root(&self) {
        self.root_pending.store(false, Ordering::SeqCst);
    }

    /// Empties the queue for good: wakers do nothing from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.take_remote();
        // Dropping a task may run destructors that wake others: take them out first.
        drop(self.with_local(std::mem::take));
    }

    pub(crate) fn push(task: Arc<dyn Runnable>) {
        let class = task.header().class() as usize;
        if task.header().queue.is_owner() {
            let queue = Arc::as_ptr(&task.header().queue);
            // SAFETY: the task holds the queue, and the queue will hold the task.
            let queue = unsafe { &*queue };
            if !queue.closed.load(Ordering::Relaxed) {
                queue.with_local(|local| local[class].push_back(task));
            }
            return;
        }
        let queue = task.header().queue.clone();
        queue.push_remote(task);
    }

    fn push_remote(&self, task: Arc<dyn Runnable>) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        self.remote.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        self.remote_pending.store(true, Ordering::SeqCst);
        self.poke_if_sleeping();
    }

    /// Says that the loop is about to sleep. False, and no sleep, if something is ready already.
    pub(crate) fn begin_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        // Pairs with the stores before `poke_if_sleeping`: one of both sides sees the other.
        if self.remote_pending.load(Ordering::SeqCst) || self.root_pending.load(Ordering::SeqCst) {
            self.sleeping.store(false, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Says that the loop is awake again.
    pub(crate) fn end_sleep(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Interrupts the driver's sleep, if it sleeps.
    pub(crate) fn poke_if_sleeping(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst) {
            self.poke();
        }
    }

    /// Interrupts the driver's sleep, or its next one.
    pub(crate) fn poke(&self) {
        let descriptor = self.poke_descriptor.load(Ordering::Acquire);
        if descriptor >= 0 {
            let one = 1u64;
            // SAFETY: writes eight bytes of a local to an event descriptor; a failure means that it is poked already.
            unsafe { libc::write(descriptor, (&raw const one).cast(), 8) };
        }
    }
}

/// What all tasks have.
pub(crate) struct Header {
    scheduled: AtomicBool,
    /// One of `Class`, by its number.
    class: AtomicU8,
    slot: AtomicU32,
    queue: Arc<ReadyQueue>,
}

impl Header {
    /// Place in the reactor's table of live tasks.
    pub fn slot(&self) -> u32 {
        self.slot.load(Ordering::Relaxed)
    }

    /// Remembers the place in the table.
    pub fn set_slot(&self, slot: u32) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    pub fn class(&self) -> Class {
        Class::ALL[usize::from(self.class.load(Ordering::Relaxed)).min(CLASS_COUNT - 1)]
    }

    /// From its next step on the task is of this class.
    pub fn set_class(&self, class: Class) {
        self.class.store(class as u8, Ordering::Relaxed);
    }
}

/// What became of a task that was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It waits for a waker.
    Pending,
    /// It completed, or was cancelled while it ran.
    Finished,
    /// It had ended before; a late waker had queued it.
    Gone,
}

/// A task without the type of its future.
pub(crate) trait Runnable: Send + Sync {
    fn header(&self) -> &Header;
    /// Polls the future; by the owner only.
    fn run(self: Arc<Self>) -> Outcome;
    /// Drops the future, or has it dropped when the poll in progress returns; by the owner only. True if it was dropped
    /// now.
    fn cancel(&self) -> bool;
    /// Queues the task for its first run.
    fn schedule(self: Arc<Self>);
}

enum Stage<F> {
    Waiting(F),
    Ended,
}

struct Task<F> {
    header: Header,
    running: AtomicBool,
    cancelled: AtomicBool,
    stage: UnsafeCell<Stage<F>>,
}

// SAFETY: the future is touched and dropped by the owner only (invariants 1 and 3); the rest is atomic.
unsafe impl<F> Send for Task<F> {}
// SAFETY: as above.
unsafe impl<F> Sync for Task<F> {}

/// Makes a task; it is not queued yet.
pub(crate) fn new_task<F: Future<Output = ()> + 'static>(
    class: Class,
    queue: Arc<ReadyQueue>,
    future: F,
) -> Arc<dyn Runnable> {
    Arc::new(Task {
        header: Header {
            scheduled: AtomicBool::new(false),
            class: AtomicU8::new(class as u8),
            slot: AtomicU32::new(u32::MAX),
            queue,
        },
        running: AtomicBool::new(false),
        cancelled: AtomicBool::new(false),
        stage: UnsafeCell::new(Stage::Waiting(future)),
    })
}

impl<F: Future<Output = ()> + 'static> Wake for Task<F> {
    fn wake(self: Arc<Self>) {
        self.schedule();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Only the owner may rely on a relaxed look: another thread's wake has to order what it did before the next
        // run.
        if !(self.header.queue.is_owner() && self.header.scheduled.load(Ordering::Relaxed)) {
            self.clone().schedule();
        }
    }
}

impl<F: Future<Output = ()> + 'static> Task<F> {
    /// Ends the task and drops its future in place.
    fn end(&self) {
        let stage = self.stage.get();
        // SAFETY: the owner is the only one here, and no reference into the stage is alive: `run` calls this after its
        // poll has returned, `cancel` only when no poll is in progress. The future was pinned in the allocation and is
        // dropped where it lies. `Ended` is written over it without dropping it a second time.
        unsafe {
            if let Stage::Waiting(future) = &mut *stage {
                let future: *mut F = future;
                self.running.store(true, Ordering::Relaxed);
                std::ptr::drop_in_place(future);
                std::ptr::write(stage, Stage::Ended);
                self.running.store(false, Ordering::Relaxed);
            }
        }
    }
}

impl<F: Future<Output = ()> + 'static> Runnable for Task<F> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn run(self: Arc<Self>) -> Outcome {
        // From here on a wake queues the task again. Acquire pairs with the waker's swap, so that what it did before is
        // seen.
        self.header.scheduled.swap(false, Ordering::AcqRel);
        // SAFETY: the waker borrows this reference: it is never dropped, and clones of it count for themselves.
        let waker = ManuallyDrop::new(Waker::from(unsafe { Arc::from_raw(Arc::as_ptr(&self)) }));
        let poll = {
            // SAFETY: the owner is the only one here, and a task is never run from within its own poll: it left the
            // queue.
            let Stage::Waiting(future) = (unsafe { &mut *self.stage.get() }) else {
                return Outcome::Gone;
            };
            self.running.store(true, Ordering::Relaxed);
            // SAFETY: the future lies in this allocation until it is dropped there (`end`).
            let poll = unsafe { Pin::new_unchecked(future) }.poll(&mut Context::from_waker(&waker));
            self.running.store(false, Ordering::Relaxed);
            poll
        };
        if poll == Poll::Pending && !self.cancelled.load(Ordering::Relaxed) {
            return Outcome::Pending;
        }
        self.end();
        Outcome::Finished
    }

    fn cancel(&self) -> bool {
        if self.running.load(Ordering::Relaxed) {
            self.cancelled.store(true, Ordering::Relaxed);
            return false;
        }
        // SAFETY: the owner is the only one here and no poll is in progress.
        let waiting = matches!(unsafe { &*self.stage.get() }, Stage::Waiting(_));
        self.end();
        waiting
    }

    fn schedule(self: Arc<Self>) {
        if !self.header.scheduled.swap(true, Ordering::AcqRel) {
            ReadyQueue::push(self);
        }
    }
}

/// The waker of a future that `block_on` polls itself.
pub(crate) struct RootWaker {
    pub woken: AtomicBool,
    pub queue: Arc<ReadyQueue>,
}

impl Wake for RootWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::SeqCst) && !self.queue.is_owner() {
            // A loop that goes to sleep looks at this once more after it said that it sleeps.
            self.queue.root_pending.store(true, Ordering::SeqCst);
            self.queue.poke_if_sleeping();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: that another thread has woken the root future keeps the loop awake until the future was looked at,
    /// whatever the loop does in between; a lost one would hang.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test is about other threads")]
    fn nobody_takes_the_wake_of_the_root() {
        let queue = ReadyQueue::new();
        let root = Arc::new(RootWaker { woken: AtomicBool::new(false), queue: queue.clone() });
        assert!(queue.is_empty() && queue.begin_sleep());
        queue.end_sleep();
        let other = root.clone();
        std::thread::spawn(move || other.wake_by_ref()).join().unwrap();
        queue.take_remote();
        assert!(!queue.is_empty() && !queue.begin_sleep());
        queue.begin_root();
        assert!(root.woken.load(Ordering::Acquire) && queue.is_empty() && queue.begin_sleep());
    }
}
