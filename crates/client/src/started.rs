//! Reads and writes that were started and go on while their caller does something else.
//!
//! They go on whenever a thread is in a call of the client, for there is no thread beside those of the program: what
//! was handed to servers is worked at by them meanwhile, and what they answered is taken in by the next call.

use crate::blocking::Client;
use crate::error::Result;
use crate::filesystem::FileSystem;
use reactor::Class;
use std::future::poll_fn;
use std::ops::AsyncFnOnce;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

#[derive(Default)]
struct Outcome {
    result: Option<Result<usize>>,
    /// Threads that wait for it.
    wakers: Vec<Waker>,
}

/// A call that was started.
#[derive(Clone, Default)]
pub struct StartedCall(Arc<Mutex<Outcome>>);

impl StartedCall {
    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What came of it, if it is done.
    pub fn result(&self) -> Option<Result<usize>> {
        self.outcome().result.clone()
    }
}

impl Client {
    /// Starts a call, whose first requests are on their way when this returns. It goes on, to its end, whoever forgets
    /// it; memory that it moves bytes from or to stays its own until then.
    pub fn start(&self, work: impl AsyncFnOnce(FileSystem) -> Result<usize> + Send + 'static) -> StartedCall {
        let call = StartedCall::default();
        let own = call.clone();
        self.run(async move |reactor, files: &FileSystem| {
            let files = files.clone();
            reactor.spawn(Class::Data, async move {
                let result = work(files).await;
                let mut outcome = own.outcome();
                outcome.result = Some(result);
                outcome.wakers.drain(..).for_each(Waker::wake);
            });
        });
        call
    }

    /// Takes in what servers have answered. Returns at once, with what came of the call, if it is done.
    pub fn test(&self, call: &StartedCall) -> Option<Result<usize>> {
        if call.result().is_none() {
            self.look();
        }
        call.result()
    }

    /// Waits until a call is done.
    pub fn wait(&self, call: &StartedCall) -> Result<usize> {
        self.run(async move |_, _| {
            let wait = poll_fn(|context| {
                let mut outcome = call.outcome();
                match outcome.result.clone() {
                    Some(result) => Poll::Ready(result),
                    None => {
                        outcome.wakers.push(context.waker().clone());
                        Poll::Pending
                    }
                }
            });
            wait.await
        })
    }
}
