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
/// Signals that are remembered of requests that do not wait yet, or do not wait at all.
const EARLY_COUNT_MAX: usize = 256;

/// A request that waits.
#[derive(Default)]
struct Wait {
    is_over: bool,
    waker: Option<Waker>,
}

#[derive(Default)]
struct State {
    /// By the number of the request.
    waiting: BTreeMap<u64, Wait>,
    /// Interrupted before they began to wait.
    early: VecDeque<u64>,
    /// The file system is not mounted any more: nobody waits.
    closed: bool,
}

impl State {
    fn admit(&mut self, unique: u64) -> Result<(), Errno> {
        if let Some(place) = self.early.iter().position(|early| *early == unique) {
            self.early.remove(place);
            return Err(Errno(libc::EINTR));
        }
        if self.closed {
            return Err(Errno(libc::EINTR));
        }
        if self.waiting.len() >= WAITING_COUNT_MAX {
            return Err(Errno(libc::ENOLCK));
        }
        self.waiting.insert(unique, Wait::default());
        Ok(())
    }

    /// Ends the wait of a request; its waker, if it waits.
    fn interrupt(&mut self, unique: u64) -> Option<Waker> {
        if let Some(wait) = self.waiting.get_mut(&unique) {
            wait.is_over = true;
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
#[derive(Default)]
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits on behalf of a request until it gets a signal: what is waited for is dropped then. Errors: `EINTR`,
    /// `ENOLCK` when too many wait.
    pub async fn unless_interrupted<T>(&self, unique: u64, wanted: impl Future<Output = T>) -> Result<T, Errno> {
        self.state().admit(unique)?;
        self.waiting_count.fetch_add(1, Ordering::Relaxed);
        let leave = Leave(self, unique);
        let mut wanted = pin!(wanted);
        let outcome = poll_fn(|context| {
            if let Some(wait) = self.state().waiting.get_mut(&unique) {
                if wait.is_over {
                    return Poll::Ready(Err(Errno(libc::EINTR)));
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
            state.waiting.values_mut().for_each(|wait| wait.is_over = true);
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
        let mut state = State::default();
        assert!(state.interrupt(7).is_none());
        assert_eq!(state.admit(7), Err(Errno(libc::EINTR)));
        assert_eq!(state.admit(9), Ok(()));
        state.interrupt(9);
        assert!(state.waiting[&9].is_over);
        for unique in 100..100 + 2 * EARLY_COUNT_MAX as u64 {
            state.interrupt(unique);
        }
        assert_eq!(state.early.len(), EARLY_COUNT_MAX);
        (1000..1000 + WAITING_COUNT_MAX as u64 - 1).for_each(|unique| assert_eq!(state.admit(unique), Ok(())));
        assert_eq!(state.admit(50), Err(Errno(libc::ENOLCK)));
    }
}
