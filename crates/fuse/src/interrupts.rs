//! Signals to those who wait for locks: nothing else that a request may wait for can be given up.

use crate::errno::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Locks that are waited for at once; more are refused with `ENOLCK`.
const WAITING_COUNT_MAX: usize = 4096;
/// Requests that are not to wait, where there is a bound of all.
const SPARED_COUNT: usize = 16;
/// Signals that are remembered of requests that do not wait yet, or do not wait at all.
const EARLY_COUNT_MAX: usize = 256;

/// A request that waits.
#[derive(Default)]
struct Wait {
    /// Why it waits no more.
    over: Option<Errno>,
    waker: Option<Waker>,
}

/// A signal came. The kernel begins the call anew if there is no handler for it, so this is for signals alone.
const SIGNALLED: Errno = Errno(libc::EINTR);
const NOT_MOUNTED: Errno = Errno(libc::ENOTCONN);

#[derive(Default)]
struct State {
    /// By the number of the request.
    waiting: BTreeMap<u64, Wait>,
    /// Interrupted before they began to wait.
    early: VecDeque<u64>,
    /// The file system is not mounted any more: nobody waits.
    closed: bool,
    /// Requests that may wait at once.
    count_max: usize,
}

impl State {
    fn admit(&mut self, unique: u64) -> Result<(), Errno> {
        if let Some(place) = self.early.iter().position(|early| *early == unique) {
            self.early.remove(place);
            return Err(SIGNALLED);
        }
        if self.closed {
            return Err(NOT_MOUNTED);
        }
        if self.waiting.len() >= self.count_max {
            return Err(Errno(libc::ENOLCK));
        }
        self.waiting.insert(unique, Wait::default());
        Ok(())
    }

    /// Ends the wait of a request; its waker, if it waits.
    fn interrupt(&mut self, unique: u64) -> Option<Waker> {
        if let Some(wait) = self.waiting.get_mut(&unique) {
            wait.over = Some(SIGNALLED);
            return wait.waker.take();
        }
        if self.early.len() >= EARLY_COUNT_MAX {
            self.early.pop_front();
        }
        self.early.push_back(unique);
        None
    }
}

/// See the module.
pub struct Interrupts {
    state: Mutex<State>,
    /// How many wait, for those who only want to know that.
    waiting_count: AtomicUsize,
}

/// Forgets a request that waits no more.
struct Leave<'i>(&'i Interrupts, u64);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.state().waiting.remove(&self.1);
        self.0.waiting_count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Interrupts {
    /// For a mount whose threads have so many requests under way at most, if there is a bound: some are left to those
    /// who unlock.
    pub fn new(request_count_max: Option<usize>) -> Interrupts {
        let count_max = request_count_max.map_or(WAITING_COUNT_MAX, |count| count - count.min(SPARED_COUNT));
        Interrupts { state: Mutex::new(State { count_max, ..State::default() }), waiting_count: AtomicUsize::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits on behalf of a request until it gets a signal: what is waited for is dropped then. Errors: `EINTR`,
    /// `ENOLCK` when too many wait, `ENOTCONN` when the file system is not mounted any more.
    pub async fn unless_interrupted<T>(&self, unique: u64, wanted: impl Future<Output = T>) -> Result<T, Errno> {
        self.state().admit(unique)?;
        self.waiting_count.fetch_add(1, Ordering::Relaxed);
        let leave = Leave(self, unique);
        let mut wanted = pin!(wanted);
        let outcome = poll_fn(|context| {
            if let Some(wait) = self.state().waiting.get_mut(&unique) {
                if let Some(errno) = wait.over {
                    return Poll::Ready(Err(errno));
                }
                wait.waker = Some(context.waker().clone());
            }
            wanted.as_mut().poll(context).map(Ok)
        })
        .await;
        drop(leave);
        outcome
    }

    /// Requests that wait.
    pub fn waiting_count(&self) -> usize {
        self.waiting_count.load(Ordering::Relaxed)
    }

    /// Who made a request has got a signal. It may wait, be about to, or be of another kind: then it goes on.
    pub fn interrupt(&self, unique: u64) {
        let waker = self.state().interrupt(unique);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends all waits, those to come included.
    pub fn close(&self) {
        let wakers: Vec<Waker> = {
            let mut state = self.state();
            state.closed = true;
            state.waiting.values_mut().for_each(|wait| wait.over = wait.over.or(Some(NOT_MOUNTED)));
            state.waiting.values_mut().filter_map(|wait| wait.waker.take()).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a signal ends the wait of its request, also when it comes before the wait begins; what is remembered is
    /// bounded.
    #[test]
    fn signals_find_their_requests() {
        let mut state = State { count_max: WAITING_COUNT_MAX, ..State::default() };
        assert!(state.interrupt(7).is_none());
        assert_eq!(state.admit(7), Err(Errno(libc::EINTR)));
        assert_eq!(state.admit(9), Ok(()));
        state.interrupt(9);
        assert_eq!(state.waiting[&9].over, Some(SIGNALLED));
        for unique in 100..100 + 2 * EARLY_COUNT_MAX as u64 {
            state.interrupt(unique);
        }
        assert_eq!(state.early.len(), EARLY_COUNT_MAX);
        (1000..1000 + WAITING_COUNT_MAX as u64 - 1).for_each(|unique| assert_eq!(state.admit(unique), Ok(())));
        assert_eq!(state.admit(50), Err(Errno(libc::ENOLCK)));
    }
}
