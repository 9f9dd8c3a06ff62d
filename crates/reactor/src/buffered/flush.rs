//! One flush of the device for all syncs that wait for one.
//!
//! Invariants
//! 1. A flush speaks for a sync only if all writes of that had ended before it was handed over.
//! 2. A sync ends well only if no flush has failed since it began: what the device was given then may be lost, whoever
//!    gave it.
//! 3. A flush waits for no sync that began after the first one had ended its writes for which it is made: a stream of
//!    syncs holds nobody up.

use crate::device::DeviceError;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A sync whose writes have ended.
struct Waiter {
    /// The newest sync that had begun by then.
    newest: u64,
    result: RefCell<Option<Result<(), DeviceError>>>,
    waker: RefCell<Option<Waker>>,
}

/// See the module.
#[derive(Default)]
pub struct FlushGate {
    newest: Cell<u64>,
    /// Syncs that still write.
    writing: RefCell<BTreeSet<u64>>,
    waiting: RefCell<Vec<Rc<Waiter>>>,
    is_flushing: Cell<bool>,
    /// Flushes that have failed, and what the last of them came to.
    failures: Cell<u64>,
    failure: RefCell<Option<DeviceError>>,
}

/// A sync that has begun. Its end is told by [`FlushGate::end_writes`], or when it is dropped.
pub struct Writing {
    gate: Rc<FlushGate>,
    number: u64,
    /// Flushes that had failed when it began.
    failures: u64,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.gate.writing.borrow_mut().remove(&self.number);
    }
}

/// Those for whom a flush is made.
pub struct FlushGroup(Vec<Rc<Waiter>>);

impl FlushGate {
    /// A sync begins.
    pub fn begin(self: &Rc<Self>) -> Writing {
        let number = self.newest.get() + 1;
        self.newest.set(number);
        self.writing.borrow_mut().insert(number);
        Writing { gate: self.clone(), number, failures: self.failures.get() }
    }

    /// All writes of a sync have ended: it waits for a flush. `flush` is called when one is to be made; whoever makes
    /// it asks for the group, and tells its result.
    pub async fn end_writes(self: &Rc<Self>, writing: Writing, flush: impl FnOnce()) -> Result<(), DeviceError> {
        let failures = writing.failures;
        drop(writing);
        let (result, waker) = Default::default();
        let waiter = Rc::new(Waiter { newest: self.newest.get(), result, waker });
        self.waiting.borrow_mut().push(waiter.clone());
        if self.is_due() {
            flush();
        }
        poll_fn(|context| match waiter.result.borrow_mut().take() {
            Some(result) => Poll::Ready(result),
            None => {
                waiter.waker.replace(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await?;
        self.check_since(failures)
    }

    /// Flushes that have failed.
    pub fn failures(&self) -> u64 {
        self.failures.get()
    }

    /// Errors: the last flush that failed, if there was one more than so many.
    pub fn check_since(&self, failures: u64) -> Result<(), DeviceError> {
        match &*self.failure.borrow() {
            Some(error) if self.failures.get() != failures => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Whether a flush is to be made now.
    pub fn is_due(&self) -> bool {
        let waiting = self.waiting.borrow();
        let Some(first) = waiting.first() else { return false };
        let oldest = self.writing.borrow().first().copied();
        !self.is_flushing.get() && oldest.is_none_or(|oldest| oldest > first.newest)
    }

    /// Takes those for whom the next flush is made: all that wait.
    pub fn take_group(&self) -> FlushGroup {
        assert!(!self.is_flushing.replace(true), "there is one flush at a time");
        FlushGroup(std::mem::take(&mut *self.waiting.borrow_mut()))
    }

    /// A flush has ended.
    pub fn end_flush(&self, group: FlushGroup, result: Result<(), DeviceError>) {
        self.is_flushing.set(false);
        if let Err(error) = &result {
            self.failures.set(self.failures.get() + 1);
            self.failure.replace(Some(error.clone()));
        }
        for waiter in group.0 {
            waiter.result.replace(Some(result.clone()));
            if let Some(waker) = waiter.waker.take() {
                waker.wake();
            }
        }
    }
}
