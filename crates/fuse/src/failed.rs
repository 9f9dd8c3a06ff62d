//! Look-ups that have just failed because a server did not answer.
//!
//! The kernel asks for the node of a name that it knows once more before it goes on. If that fails, whatever the
//! reason, it forgets what it knew and looks the name up as one that it has never seen: the program would wait for the
//! server's time-out twice. So the second look-up of the same name, by the same thread and right after the first, is
//! answered as that was.

use crate::errno::Errno;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::FileId;

/// Look-ups that are remembered at once; beyond, the oldest is done again.
const COUNT_MAX: usize = 256;
/// Calls of `age` that one is remembered for: a quarter of a second to a half.
const AGE_MAX: u32 = 1;

#[derive(Debug)]
struct LookUp {
    thread: u32,
    directory: FileId,
    name: Vec<u8>,
    errno: Errno,
    age: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub struct FailedLookUps {
    /// Whether there is any; until then a look-up costs no look at the list.
    any: AtomicBool,
    list: Mutex<VecDeque<LookUp>>,
}

impl FailedLookUps {
    fn list(&self) -> MutexGuard<'_, VecDeque<LookUp>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread of a program is told that a look-up has failed after the time-out.
    pub fn note(&self, thread: u32, directory: FileId, name: &[u8], errno: Errno) {
        let mut list = self.list();
        list.retain(|known| known.thread != thread);
        if list.len() >= COUNT_MAX {
            list.pop_front();
        }
        list.push_back(LookUp { thread, directory, name: name.to_vec(), errno, age: 0 });
        self.any.store(true, Ordering::Relaxed);
    }

    /// What a thread's look-up has come to just now; that counts once.
    pub fn take(&self, thread: u32, directory: FileId, name: &[u8]) -> Option<Errno> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let mut list = self.list();
        let place = list.iter().position(|known| known.thread == thread)?;
        let known = list.remove(place)?;
        (known.directory == directory && known.name == name).then_some(known.errno)
    }

    /// Time has passed.
    pub fn age(&self) {
        if self.any.load(Ordering::Relaxed) {
            let mut list = self.list();
            list.iter_mut().for_each(|known| known.age += 1);
            list.retain(|known| known.age <= AGE_MAX);
            self.any.store(!list.is_empty(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a failure is told once more to the thread that had it, for the same name, once and for a while; the list
    /// is bounded.
    #[test]
    fn told_once_and_for_a_while() {
        let (failed, errno) = (FailedLookUps::default(), Errno(libc::ETIMEDOUT));
        let (here, there) = (FileId(7), FileId(8));
        failed.note(1, here, b"name", errno);
        assert_eq!(failed.take(2, here, b"name"), None);
        assert_eq!(failed.take(1, here, b"name"), Some(errno));
        assert_eq!(failed.take(1, here, b"name"), None);
        for (directory, name) in [(there, &b"name"[..]), (here, b"other")] {
            failed.note(1, here, b"name", errno);
            assert_eq!(failed.take(1, directory, name), None);
            assert_eq!(failed.take(1, here, b"name"), None, "it went on to another one");
        }
        failed.note(1, here, b"name", errno);
        (0..=AGE_MAX).for_each(|_| failed.age());
        assert_eq!(failed.take(1, here, b"name"), None);
        (0..COUNT_MAX as u32 + 1).for_each(|thread| failed.note(thread, here, b"name", errno));
        assert_eq!(failed.take(0, here, b"name"), None);
        assert_eq!(failed.take(1, here, b"name"), Some(errno));
    }
}
