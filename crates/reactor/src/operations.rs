//! Operations on files that a driver has under way, each with what it refers to. One table a driver: the completions of
//! the ring, of kernel AIO and of the simulated machine carry an entry's index.
//!
//! Invariants
//! 1. What an operation refers to (its file, its buffer) is held by its entry until it has ended, also when nobody
//!    waits for it any more.
//! 2. An entry is used again only after its operation has ended and its result was taken or abandoned, so each
//!    completion finds its own operation.
//! 3. No borrow of the table is held while a waker is woken, something held is dropped, or a device is told anything.

use crate::Nanos;
#[cfg(test)]
use crate::device::queue::TransferMemory;
use crate::device::queue::{Next, Transfer};
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// What an operation refers to.
pub(crate) enum Held {
    /// A file whose bytes are being made durable.
    File { _file: Rc<OwnedFd> },
    /// An operation on a device, with its buffer.
    Device(Transfer),
}

struct OperationEntry {
    held: Held,
    /// What the operation came to: a count, or a negated error number.
    result: Option<i32>,
    waker: Option<Waker>,
    abandoned: bool,
    /// Whether somebody outside works on it.
    under_way: bool,
    /// Since when it has waited for its turn, then when it was handed over, and then when it ended.
    since: Option<Nanos>,
    /// Whether somebody was waiting for it when it ended.
    was_awaited: bool,
}

/// What has ended.
pub(crate) struct Ended {
    /// A count, or a negated error number.
    pub result: i32,
    pub held: Held,
}

/// Times of one kind: how many, and their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSum {
    /// How many there were.
    pub count: u64,
    /// Nanoseconds of all of them.
    pub total_ns: u64,
}

/// What a loop adds to the time of operations on devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationDelays {
    /// From preparing an operation to handing it over to the kernel, with others.
    pub handover: TimeSum,
    /// From seeing the completion of one to going on with whoever waited for it.
    pub resumption: TimeSum,
}

/// Reads the monotonic time of a driver.
pub(crate) type Clock = Box<dyn Fn() -> Nanos>;

/// The operations of one driver.
pub(crate) struct OperationTable {
    clock: Clock,
    entries: RefCell<Vec<Option<OperationEntry>>>,
    free: RefCell<Vec<u32>>,
    under_way: Cell<usize>,
    delays: Cell<OperationDelays>,
    /// Those that are prepared and not handed to the kernel yet, and when they were prepared, all times together.
    prepared: Cell<TimeSum>,
    /// Gives up what abandoned operations hold although they are under way: a fault that tests must notice.
    #[cfg(test)]
    pub forgets_early: Cell<bool>,
}

impl OperationTable {
    pub fn new(clock: Clock) -> OperationTable {
        let (entries, free, under_way, delays, prepared) = Default::default();
        OperationTable {
            clock,
            entries,
            free,
            under_way,
            delays,
            prepared,
            #[cfg(test)]
            forgets_early: Cell::new(false),
        }
    }

    /// What the loop adds to the time of operations on devices, up to now.
    pub fn delays(&self) -> OperationDelays {
        self.delays.get()
    }

    /// A driver has prepared an operation on a device, and hands it to the kernel later.
    pub fn note_prepared(&self) {
        let TimeSum { count, total_ns } = self.prepared.get();
        self.prepared.set(TimeSum { count: count + 1, total_ns: total_ns.wrapping_add((self.clock)()) });
    }

    /// All that is prepared is handed to the kernel now.
    pub fn note_submitted(&self) {
        let TimeSum { count, total_ns } = self.prepared.take();
        if count > 0 {
            let mut delays = self.delays.get();
            let took = count.wrapping_mul((self.clock)()).wrapping_sub(total_ns);
            delays.handover.count += count;
            delays.handover.total_ns += took;
            self.delays.set(delays);
        }
    }

    /// Adds an operation that has not been handed over.
    pub fn add(&self, held: Held) -> u32 {
        let entry = OperationEntry {
            held,
            result: None,
            waker: None,
            abandoned: false,
            under_way: false,
            since: None,
            was_awaited: false,
        };
        let mut entries = self.entries.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            entries.push(None);
            (entries.len() - 1) as u32
        });
        assert!(entries[index as usize].is_none(), "a free entry is empty");
        entries[index as usize] = Some(entry);
        index
    }

    /// The operation waits for others to end.
    pub fn note_queued(&self, index: u32) {
        if let Some(entry) = &mut self.entries.borrow_mut()[index as usize] {
            entry.since = Some((self.clock)());
        }
    }

    /// The operation is handed over now: from here to its completion nobody else touches what it holds.
    pub fn note_handed_over(&self, index: u32) {
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = &mut entries[index as usize] else { unreachable!("only what was added is handed over") };
        assert!(!entry.under_way && entry.result.is_none(), "an operation is handed over once");
        entry.under_way = true;
        let now = (self.clock)();
        if let (Some(asked), Held::Device(transfer)) = (entry.since.replace(now), &entry.held) {
            transfer.queue.counters.note_waited(now.saturating_sub(asked));
        }
        self.under_way.set(self.under_way.get() + 1);
    }

    /// Looks at an operation on a device. Nothing if it is gone.
    pub fn with_transfer<T>(&self, index: u32, look: impl FnOnce(&Transfer) -> T) -> Option<T> {
        match &self.entries.borrow()[index as usize] {
            Some(OperationEntry { held: Held::Device(transfer), .. }) => Some(look(transfer)),
            _ => None,
        }
    }

    /// Operations that were handed over and have not ended.
    pub fn under_way(&self) -> usize {
        self.under_way.get()
    }

    /// The driver was told what an operation that it had handed over came to.
    pub fn complete(&self, index: u32, result: i32) {
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = &mut entries[index as usize] else { unreachable!("an operation completes once") };
        assert!(entry.under_way, "only what was handed over completes");
        let (result, queue) = match &mut entry.held {
            Held::File { .. } => (result, None),
            Held::Device(transfer) => match transfer.advance(result) {
                // Nobody wants the rest of what was abandoned.
                Next::Again if !entry.abandoned => {
                    let queue = transfer.queue.clone();
                    drop(entries);
                    return queue.hand_over_again(self, index);
                }
                Next::Again => (result, Some(transfer.queue.clone())),
                Next::Ended(result) => (result, Some(transfer.queue.clone())),
            },
        };
        let now = (self.clock)();
        if let Held::Device(transfer) = &entry.held {
            transfer.queue.counters.note_ended(transfer, result, now.saturating_sub(entry.since.unwrap_or(now)));
        }
        (entry.since, entry.was_awaited) = (Some(now), entry.waker.is_some());
        entry.under_way = false;
        self.under_way.set(self.under_way.get() - 1);
        let waker = entry.waker.take();
        let mut ended = None;
        if entry.abandoned {
            ended = entries[index as usize].take();
            self.free.borrow_mut().push(index);
        } else {
            entry.result = Some(result);
        }
        drop(entries);
        drop(ended);
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some(queue) = queue {
            queue.note_ended(self);
        }
    }

    /// What the operation came to, with what it held, once.
    pub fn poll(&self, index: u32, context: &mut Context<'_>) -> Poll<Ended> {
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = &mut entries[index as usize] else {
            unreachable!("an entry stays until its future takes it")
        };
        let Some(result) = entry.result else {
            let old = entry.waker.replace(context.waker().clone());
            drop(entries);
            drop(old);
            return Poll::Pending;
        };
        let entry = entries[index as usize].take();
        self.free.borrow_mut().push(index);
        match entry {
            Some(OperationEntry { held, since, was_awaited, .. }) => {
                if let (true, Some(since), Held::Device(_)) = (was_awaited, since, &held) {
                    let mut delays = self.delays.get();
                    delays.resumption.count += 1;
                    delays.resumption.total_ns += (self.clock)().saturating_sub(since);
                    self.delays.set(delays);
                }
                Poll::Ready(Ended { result, held })
            }
            None => unreachable!("the entry was just seen"),
        }
    }

    /// Nobody waits for the operation any more. It keeps what it holds until it has ended (invariant 1).
    pub fn abandon(&self, index: u32) {
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = &mut entries[index as usize] else {
            unreachable!("an entry stays until its future leaves it")
        };
        let waker = entry.waker.take();
        let mut given_up = None;
        if entry.under_way {
            entry.abandoned = true;
            #[cfg(test)]
            if self.forgets_early.get()
                && let Held::Device(transfer) = &mut entry.held
            {
                transfer.memory = TransferMemory::None;
            }
        } else {
            given_up = entries[index as usize].take();
            self.free.borrow_mut().push(index);
        }
        drop(entries);
        drop(waker);
        if let Some(OperationEntry { held: Held::Device(transfer), .. }) = &given_up {
            transfer.queue.forget(index);
        }
    }
}
