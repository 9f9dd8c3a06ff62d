//! A backing tree of this machine: its calls are made by at most four threads, so that one that hangs holds neither the
//! loop nor the end of the process.
//!
//! Invariants
//! 1. The loop's thread makes no system call on the tree, not even a close.
//! 2. A thread holds no lock while it makes one.
//! 3. A thread that is stuck at the end keeps what it needs; it ends with its call, or with the process.

use super::operation::{Backing, BackingOperation, BackingOutcome, CallId};
use super::system::{CallResult, HandleFiles};
use crate::{Nanos, system, threads};
use std::collections::VecDeque;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Threads of one tree at most.
pub const WORKERS_MAX: usize = 4;

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<(CallId, BackingOperation)>,
    /// Threads there are, and those of them that wait for a job.
    threads: usize,
    idle: usize,
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

impl WorkerPool {
    /// The next job; nothing when there will be none.
    fn next(&self) -> Option<(CallId, BackingOperation)> {
        let mut queue = locked(&self.queue);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.is_ended {
                return None;
            }
            queue.idle += 1;
            queue = self.news.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    fn work(&self) {
        hold_signals();
        while let Some((call, operation)) = self.next() {
            self.note_ended(call, self.files.perform(operation));
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

    /// Starts one more thread if all are busy. False if there is none, and none can be started.
    fn has_thread(self: &Arc<Self>) -> bool {
        {
            let mut queue = locked(&self.queue);
            if queue.idle > 0 && queue.jobs.len() < queue.idle || queue.threads == WORKERS_MAX {
                return true;
            }
            queue.threads += 1;
        }
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
        if !pool.has_thread() {
            return pool.note_ended(call, Err(libc::EAGAIN));
        }
        locked(&pool.queue).jobs.push_back((call, operation));
        pool.news.notify_one();
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
