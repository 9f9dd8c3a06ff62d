//! Those who wait for locks. One thread waits for all of them, so that threads that serve others are not used up; a
//! signal to who waits ends its wait alone. The same thread looks after the client's own work while nobody calls, and
//! lets go of files that are held (`held.rs`).

use crate::errno::Errno;
use crate::open_file::OpenFile;
use crate::serve::Mounted;
use client::{FileSystem, LockRange, Locker};
use std::collections::{BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Locks that are waited for at once; more are refused with `ENOLCK`.
const WAITING_COUNT_MAX: usize = 4096;
/// Signals that are remembered of requests that do not wait yet, or do not wait at all.
const EARLY_COUNT_MAX: usize = 256;
/// How often the client's own work is looked after, and for how long.
const TEND_INTERVAL: Duration = Duration::from_millis(250);
const TEND_NS: reactor::Nanos = 1_000_000;

/// A lock that has to be waited for.
pub struct LockRequest {
    /// The request that is answered when it is granted.
    pub unique: u64,
    pub open: Arc<OpenFile>,
    pub locker: Locker,
    pub range: LockRange,
    pub exclusive: bool,
}

#[derive(Default)]
struct State {
    arrived: Vec<LockRequest>,
    /// All that wait, arrived ones included.
    waiting: BTreeSet<u64>,
    interrupted: Vec<u64>,
    /// Interrupted before they began to wait.
    early: VecDeque<u64>,
    /// Who polls the waits, while somebody does.
    waker: Option<Waker>,
    closed: bool,
}

impl State {
    fn admit(&mut self, unique: u64) -> Result<(), Errno> {
        if let Some(place) = self.early.iter().position(|early| *early == unique) {
            self.early.remove(place);
            return Err(Errno(libc::EINTR));
        }
        if self.waiting.len() >= WAITING_COUNT_MAX {
            return Err(Errno(libc::ENOLCK));
        }
        self.waiting.insert(unique);
        Ok(())
    }

    /// Whether the request waits here.
    fn interrupt(&mut self, unique: u64) -> bool {
        if self.waiting.contains(&unique) {
            self.interrupted.push(unique);
            return true;
        }
        if self.early.len() >= EARLY_COUNT_MAX {
            self.early.pop_front();
        }
        self.early.push_back(unique);
        false
    }
}

/// See the module.
#[derive(Default)]
pub struct WaitingRoom {
    state: Mutex<State>,
    bell: Condvar,
}

/// A wait under way.
struct Wait<'f> {
    unique: u64,
    future: Waited<'f>,
}

type Waited<'f> = Pin<Box<dyn Future<Output = client::Result<()>> + 'f>>;

impl WaitingRoom {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, state: &mut State) {
        match state.waker.take() {
            Some(waker) => waker.wake(),
            None => self.bell.notify_one(),
        }
    }

    /// Leaves a lock to the thread that waits, which answers the request. Errors: `EINTR`, `ENOLCK`.
    pub fn enter(&self, wish: LockRequest) -> Result<(), Errno> {
        let mut state = self.state();
        state.admit(wish.unique)?;
        state.arrived.push(wish);
        self.ring(&mut state);
        Ok(())
    }

    /// Who made a request has got a signal. It may wait, be about to, or be of another kind: then it goes on.
    pub fn interrupt(&self, unique: u64) {
        let mut state = self.state();
        if state.interrupt(unique) {
            self.ring(&mut state);
        }
    }

    /// Ends the thread that waits.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        self.ring(&mut state);
    }

    /// The thread that waits, until the room is closed.
    pub fn attend(&self, mounted: &Mounted) {
        loop {
            let state = self.state();
            if state.closed {
                return;
            }
            if state.arrived.is_empty() {
                let (state, timeout) =
                    self.bell.wait_timeout(state, TEND_INTERVAL).unwrap_or_else(PoisonError::into_inner);
                drop(state);
                if timeout.timed_out() {
                    mounted.client.run(async |reactor, _| reactor.sleep(TEND_NS).await);
                    mounted.close_all(&mounted.held.age());
                    mounted.failed.age();
                }
                continue;
            }
            drop(state);
            mounted.client.run(async |_, files| {
                let mut waits = Vec::new();
                poll_fn(|context| self.poll(mounted, files, &mut waits, context)).await;
            });
        }
    }

    /// Moves everything on by a step. Ready when nobody waits any more.
    fn poll<'f>(
        &self,
        mounted: &Mounted,
        files: &'f FileSystem,
        waits: &mut Vec<Wait<'f>>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let (arrived, interrupted) = {
            let mut state = self.state();
            if state.closed {
                return Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            (std::mem::take(&mut state.arrived), std::mem::take(&mut state.interrupted))
        };
        waits.extend(arrived.into_iter().map(|wish| Wait { unique: wish.unique, future: wait_for(files, wish) }));
        for unique in interrupted {
            // Its dropped future tells the server that nobody wants the lock any more.
            let before = waits.len();
            waits.retain(|wait| wait.unique != unique);
            if waits.len() < before {
                self.leave(mounted, unique, libc::EINTR);
            }
        }
        waits.retain_mut(|wait| match wait.future.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(outcome) => {
                self.leave(mounted, wait.unique, outcome.map_or_else(|error| Errno::from(error).0, |()| 0));
                false
            }
        });
        let mut state = self.state();
        if waits.is_empty() && state.arrived.is_empty() {
            state.waker = None;
            return Poll::Ready(());
        }
        if !state.arrived.is_empty() || !state.interrupted.is_empty() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn leave(&self, mounted: &Mounted, unique: u64, errno: i32) {
        self.state().waiting.remove(&unique);
        mounted.device.reply_errno(unique, errno);
    }
}

fn wait_for(files: &FileSystem, wish: LockRequest) -> Waited<'_> {
    Box::pin(async move { files.lock(&wish.open.file, wish.locker, wish.range, wish.exclusive).await })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a signal ends the wait of its request, also when it comes before the wait begins; what is remembered is
    /// bounded.
    #[test]
    fn signals_find_their_requests() {
        let mut state = State::default();
        assert!(!state.interrupt(7));
        assert_eq!(state.admit(7), Err(Errno(libc::EINTR)));
        assert_eq!(state.admit(9), Ok(()));
        assert!(state.interrupt(9) && state.interrupted == [9]);
        for unique in 100..100 + 2 * EARLY_COUNT_MAX as u64 {
            assert!(!state.interrupt(unique));
        }
        assert_eq!(state.early.len(), EARLY_COUNT_MAX);
        (1000..1000 + WAITING_COUNT_MAX as u64 - 1).for_each(|unique| assert_eq!(state.admit(unique), Ok(())));
        assert_eq!(state.admit(50), Err(Errno(libc::ENOLCK)));
    }
}
