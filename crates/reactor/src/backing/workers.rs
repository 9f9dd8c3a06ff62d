//! A backing tree of this machine: its calls are made by threads, four at a time, so that one that hangs holds neither
//! the loop nor the end of the process. A call that takes longer than `SLOW_NS` counts no more, for it waits and needs
//! no core, and another thread takes its turn. So where calls are quick there are no more at a time than cores serve,
//! and where each takes its time, as over a network, as many as may be under way.
//!
//! Invariants
//! 1. The loop's thread makes no system call on the tree, not even a close.
//! 2. A thread holds no lock while it makes one.
//! 3. Where jobs wait, and there may be more threads, one waits to see whether those at work are slow.
//! 4. A thread whose call hangs at the end keeps what it needs; it ends with its call, or with the process.

use super::CALLS_MAX;
use super::operation::{Backing, BackingOperation, BackingOutcome, CallId};
use super::system::{CallResult, HandleFiles};
use crate::{Nanos, system, threads};
use std::collections::VecDeque;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Calls of one tree that threads are at, at a time; those that are slow do not count.
pub const WORKERS_MAX: usize = 4;
/// Threads of one tree at most.
const THREADS_MAX: usize = CALLS_MAX;
/// A call that takes longer is slow. Reading 256 KiB from the page cache takes a fifth of it.
const SLOW_NS: Nanos = 500_000;

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<(CallId, BackingOperation)>,
    /// Threads there are, and those of them that wait for a job or for their turn.
    threads: usize,
    idle: usize,
    /// When the calls that threads are at were begun.
    since: Vec<Nanos>,
    is_ended: bool,
}

#[derive(Default)]
struct EndedCalls {
    calls: VecDeque<(CallId, CallResult)>,
    /// Of the task that takes them.
    waker: Option<Waker>,
}

struct WorkerPool {
    files: HandleFiles,
    queue: Mutex<JobQueue>,
    news: Condvar,
    ended: Mutex<EndedCalls>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl JobQueue {
    /// For how long a thread has to wait until it may take a job.
    fn pause(&self, now: Nanos) -> Option<Nanos> {
        let until_slow = |since: &Nanos| (since + SLOW_NS).checked_sub(now).filter(|left| *left > 0);
        if self.since.iter().filter_map(until_slow).count() < WORKERS_MAX {
            return None;
        }
        let mut left: Vec<Nanos> = self.since.iter().filter_map(until_slow).collect();
        left.sort_unstable();
        left.len().checked_sub(WORKERS_MAX).map(|first| left[first])
    }

    /// Whether a thread is to be started for what waits (invariant 3). It counts from now on.
    fn starts_thread(&mut self) -> bool {
        let starts = !self.jobs.is_empty() && self.idle == 0 && self.threads < THREADS_MAX && !self.is_ended;
        self.threads += usize::from(starts);
        starts
    }
}

impl WorkerPool {
    /// The next job, with when it begins; nothing when there will be none.
    fn next(self: &Arc<Self>) -> Option<(CallId, BackingOperation, Nanos)> {
        let mut queue = locked(&self.queue);
        loop {
            if queue.is_ended {
                return None;
            }
            let now = system::monotonic();
            let pause = if queue.jobs.is_empty() { None } else { Some(queue.pause(now)) };
            if pause == Some(None)
                && let Some((call, operation)) = queue.jobs.pop_front()
            {
                queue.since.push(now);
                let starts = queue.starts_thread();
                drop(queue);
                if starts {
                    self.start_thread();
                }
                return Some((call, operation, now));
            }
            queue.idle += 1;
            queue = match pause.flatten() {
                None => self.news.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(pause) => {
                    let waited = self.news.wait_timeout(queue, Duration::from_nanos(pause));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            queue.idle -= 1;
        }
    }

    fn work(self: &Arc<Self>) {
        hold_signals();
        while let Some((call, operation, since)) = self.next() {
            let result = self.files.perform(operation);
            {
                let mut queue = locked(&self.queue);
                if let Some(place) = queue.since.iter().position(|other| *other == since) {
                    queue.since.swap_remove(place);
                }
            }
            self.note_ended(call, result);
        }
        // Closing may wait as well. What others are at stays open for as long as they are.
        self.files.close_all();
    }

    fn note_ended(&self, call: CallId, result: CallResult) {
        let waker = {
            let mut ended = locked(&self.ended);
            ended.calls.push_back((call, result));
            ended.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Starts a thread that was counted. False if there is none, and none can be started.
    fn start_thread(self: &Arc<Self>) -> bool {
        let pool = self.clone();
        let is_started = threads::start("tabane-backing", move || pool.work()).is_ok();
        let mut queue = locked(&self.queue);
        queue.threads -= usize::from(!is_started);
        queue.threads > 0
    }
}

/// Signals are for the threads that take them, and none shall cut off a call.
fn hold_signals() {
    let mut all = MaybeUninit::uninit();
    // SAFETY: the set is filled before it is used; the old one is not asked for.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// The tree below a directory of this machine.
pub(crate) struct WorkerBacking(Arc<WorkerPool>);

impl WorkerBacking {
    /// Nothing is opened yet, and no thread started.
    pub fn new(root: CString) -> WorkerBacking {
        let (queue, news, ended) = Default::default();
        WorkerBacking(Arc::new(WorkerPool { files: HandleFiles::new(root), queue, news, ended }))
    }
}

impl Backing for WorkerBacking {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn now(&self) -> Nanos {
        system::monotonic()
    }

    fn begin(&self, call: CallId, operation: BackingOperation) {
        let pool = &self.0;
        let mut queue = locked(&pool.queue);
        queue.jobs.push_back((call, operation));
        let (starts, is_awaited) = (queue.starts_thread(), queue.idle > 0);
        drop(queue);
        // Else those at work look for it when they are done; to say so costs a system call all the same.
        if is_awaited {
            pool.news.notify_one();
        }
        if starts && !pool.start_thread() {
            // Nobody is there to make any call.
            let jobs = std::mem::take(&mut locked(&pool.queue).jobs);
            jobs.into_iter().for_each(|(call, _)| pool.note_ended(call, Err(libc::EAGAIN)));
        }
    }

    fn poll_ended(&self, context: &mut Context<'_>) -> Poll<(CallId, Result<BackingOutcome, i32>)> {
        let mut ended = locked(&self.0.ended);
        if let Some(call) = ended.calls.pop_front() {
            return Poll::Ready(call);
        }
        let old = ended.waker.replace(context.waker().clone());
        drop(ended);
        drop(old);
        Poll::Pending
    }

    fn syncs_at_once(&self) -> bool {
        self.0.files.syncs_at_once()
    }

    fn end(&self) -> bool {
        let pool = &self.0;
        let waker = locked(&pool.ended).waker.take();
        drop(waker);
        let mut queue = locked(&pool.queue);
        queue.is_ended = true;
        // Handles are closed by the threads, which there are if there is a handle.
        queue.jobs.clear();
        drop(queue);
        pool.news.notify_all();
        true
    }
}
