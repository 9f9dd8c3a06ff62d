//! Threads for doors that have to wait in the kernel for others than servers. Nothing below the doors has any.

use std::io;
use std::sync::{Mutex, PoisonError};

/// Starts a thread that ends by itself, with the process at the latest.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Does something when the last of those who share it drops it.
pub struct LastOne<F: FnOnce()>(Mutex<Option<F>>);

impl<F: FnOnce()> LastOne<F> {
    pub fn new(then: F) -> LastOne<F> {
        LastOne(Mutex::new(Some(then)))
    }
}

impl<F: FnOnce()> Drop for LastOne<F> {
    fn drop(&mut self) {
        if let Some(then) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            then();
        }
    }
}
