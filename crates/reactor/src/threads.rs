//! Threads for doors that have to wait in the kernel for others than servers. Nothing below the doors has any.

use crate::process::stay_on;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The cores that this process may use, if a loop of it keeps to some of them.
static ALL_CORES: OnceLock<Vec<usize>> = OnceLock::new();

/// A loop that may use these cores keeps to some of them. Threads that are started from now on do not: they would have
/// to take its core from it.
pub(crate) fn note_all_cores(cores: &[usize]) {
    ALL_CORES.get_or_init(|| cores.to_vec());
}

/// Starts a thread that ends by itself, with the process at the latest. It may use all cores that the process may use,
/// wherever the loop that starts it stays.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let work = move || {
        if let Some(cores) = ALL_CORES.get() {
            // Where they are gone since, it stays where it is.
            let _ = stay_on(cores);
        }
        work();
    };
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
