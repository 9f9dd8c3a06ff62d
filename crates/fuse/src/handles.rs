//! What the kernel has open here: files and listings by the number that it was given. An entry comes with open or
//! opendir and goes with release, which the kernel sends exactly once, so the table is as large as what programs have
//! open.

use crate::errno::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// See the module.
#[derive(Debug)]
pub struct Handles<T> {
    table: RwLock<HashMap<u64, Arc<T>>>,
    next: AtomicU64,
}

impl<T> Default for Handles<T> {
    fn default() -> Handles<T> {
        Handles { table: RwLock::default(), next: AtomicU64::new(1) }
    }
}

impl<T> Handles<T> {
    /// Keeps something under a number that nothing else has or had.
    pub fn insert(&self, value: T) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.table.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(value));
        number
    }

    /// Errors: `EBADF` for a number that was never given or was given back.
    pub fn get(&self, number: u64) -> Result<Arc<T>, Errno> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&number).cloned().ok_or(Errno(libc::EBADF))
    }

    /// Gives a number back.
    pub fn remove(&self, number: u64) -> Result<Arc<T>, Errno> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.remove(&number).ok_or(Errno(libc::EBADF))
    }

    /// Takes out all that is left.
    pub fn drain(&self) -> Vec<Arc<T>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner).drain().map(|(_, value)| value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a number leads to what it was given for until it is given back, and never to anything else.
    #[test]
    fn numbers_are_not_reused() {
        let handles = Handles::default();
        let first = handles.insert("first");
        assert_eq!(handles.get(first).map(|value| *value), Ok("first"));
        assert!(handles.remove(first).is_ok());
        let second = handles.insert("second");
        assert_ne!(first, second);
        assert_eq!(handles.get(first), Err(Errno(libc::EBADF)));
        assert_eq!(handles.remove(first), Err(Errno(libc::EBADF)));
        assert_eq!((handles.drain().len(), handles.drain().len()), (1, 0));
    }
}
