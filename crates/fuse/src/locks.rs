//! Locks: flock(2) by open file, fcntl(2) by owner. All of them are kept by the servers.
//!
//! The kernel gives each owner of ranges a number: a process has one for F_SETLK, an open file one for F_OFD_SETLK.
//! Locks of the former go when that process closes any descriptor of the file, which the kernel tells (flush). Of the
//! latter nothing is told, so that what was locked through a handle, and by nobody who was heard of since, goes with
//! the handle.

use crate::errno::Errno;
use crate::open_file::OpenFile;
use crate::protocol::{Header, Input, Interrupt, LOCK_FLOCK, Lock};
use crate::serve::{Answer, Handled, Work};
use client::{LockRange, Locker, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::FileId;

/// Who has locked ranges, of which file, and through which handles. An entry needs a lock at a server, of which there
/// are no more than the servers allow.
#[derive(Debug, Default)]
pub struct LockOwners {
    /// Whether anybody ever did; until then closing a file costs no look at the rest.
    any: AtomicBool,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    /// The process that an owner is, for F_GETLK.
    processes: BTreeMap<(FileId, u64), u32>,
    /// Owners by the handle that they have locked through.
    handles: BTreeMap<u64, BTreeSet<u64>>,
}

impl LockOwners {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, file: FileId, owner: u64, handle: u64, process: u32) {
        self.any.store(true, Ordering::Relaxed);
        let mut book = self.book();
        book.processes.insert((file, owner), process);
        book.handles.entry(handle).or_default().insert(owner);
    }

    /// Forgets an owner. False if it has locked nothing.
    fn forget(&self, file: FileId, owner: u64) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut book = self.book();
        if book.processes.remove(&(file, owner)).is_none() {
            return false;
        }
        book.handles.retain(|_, owners| {
            owners.remove(&owner);
            !owners.is_empty()
        });
        true
    }

    /// The owners that are left of a handle.
    fn of_handle(&self, handle: u64) -> BTreeSet<u64> {
        match self.any.load(Ordering::Relaxed) {
            true => self.book().handles.remove(&handle).unwrap_or_default(),
            false => BTreeSet::new(),
        }
    }

    /// The process of an owner, or 0 for one of another mount or node.
    fn process(&self, file: FileId, owner: u64) -> u32 {
        self.book().processes.get(&(file, owner)).copied().unwrap_or(0)
    }
}

/// What a request wants locked, by whom. Errors: `EINVAL` for a range that ends before it begins.
fn wish_of(request: &Lock) -> Result<(Locker, LockRange), Errno> {
    if request.flags & LOCK_FLOCK != 0 {
        return Ok((Locker::Whole, LockRange::WHOLE));
    }
    let end = request.end.checked_add(1).filter(|end| request.start < *end && *end <= LockRange::WHOLE.end);
    let range = LockRange { start: request.start, end: end.ok_or(Errno(libc::EINVAL))? };
    Ok((Locker::Process(request.owner), range))
}

/// Whether a kind of lock is exclusive; `None` for an unlock.
fn exclusive(kind: u32) -> Result<Option<bool>, Errno> {
    match kind as i32 {
        libc::F_RDLCK => Ok(Some(false)),
        libc::F_WRLCK => Ok(Some(true)),
        libc::F_UNLCK => Ok(None),
        _ => Err(Errno(libc::EINVAL)),
    }
}

impl Work<'_> {
    /// F_GETLK: a lock that is in the way, or that none is.
    pub async fn test_lock(&mut self, _header: &Header, mut input: Input<'_>) -> Handled {
        let request = Lock::parse(&mut input)?;
        let open = self.mounted.files.get(request.handle)?;
        let (locker, range) = wish_of(&request)?;
        let exclusive = exclusive(request.kind)?.ok_or(Errno(libc::EINVAL))?;
        let held = self.run(async |files| files.test_lock(&open.file, locker, range, exclusive).await).await?;
        match held {
            None => self.output.u64(request.start).u64(request.end).u32(libc::F_UNLCK as u32).u32(0),
            Some(held) => {
                let kind = if held.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                let process = self.mounted.owners.process(open.file.id, held.owner.id);
                self.output.u64(held.range.start).u64(held.range.end - 1).u32(kind as u32).u32(process)
            }
        };
        Ok(Answer::Output)
    }

    /// flock(2), F_SETLK and F_OFD_SETLK, and with `wait` their forms that wait.
    pub async fn set_lock(&mut self, header: &Header, mut input: Input<'_>, wait: bool) -> Handled {
        let request = Lock::parse(&mut input)?;
        let open = self.mounted.files.get(request.handle)?;
        let (locker, range) = wish_of(&request)?;
        let Some(exclusive) = exclusive(request.kind)? else {
            self.run(async |files| files.unlock(&open.file, locker, range).await).await?;
            return Ok(Answer::Output);
        };
        if let Locker::Process(owner) = locker {
            self.mounted.owners.note(open.file.id, owner, request.handle, request.pid);
        }
        let tried = self.run(async |files| files.try_lock(&open.file, locker, range, exclusive).await).await;
        match tried {
            Err(error) if error.status == Status::WouldBlock && wait => {
                let lock = self.files.lock(&open.file, locker, range, exclusive);
                self.mounted.interrupts.unless_interrupted(header.unique, lock).await??;
                Ok(Answer::Output)
            }
            other => {
                other?;
                Ok(Answer::Output)
            }
        }
    }

    /// Whoever made a request has got a signal. Only waiting for a lock can be given up.
    pub fn interrupt(&mut self, mut input: Input<'_>) -> Handled {
        let Interrupt { unique } = Interrupt::parse(&mut input)?;
        self.mounted.interrupts.interrupt(unique);
        Ok(Answer::None)
    }

    /// Releases the ranges of an owner who closes a descriptor.
    pub async fn release_owner(&self, file: FileId, open: &Arc<OpenFile>, owner: u64) {
        if self.mounted.owners.forget(file, owner) {
            self.run(async |files| files.release_process(&open.file, owner).await).await;
        }
    }

    /// Releases what was locked through a handle that is closed.
    pub async fn release_owners_of(&self, handle: u64, open: &Arc<OpenFile>) {
        for owner in self.mounted.owners.of_handle(handle) {
            self.release_owner(open.file.id, open, owner).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: locks of a process go with its flush, those that nobody was heard of go with their handle, and no others.
    /// Method: a process and an open file lock through one handle; the process closes, locks again through another.
    #[test]
    fn owners_go_when_they_should() {
        let (owners, file) = (LockOwners::default(), FileId(77));
        assert!(!owners.forget(file, 1) && owners.of_handle(10).is_empty());
        owners.note(file, 1, 10, 100);
        owners.note(file, 2, 10, 0);
        assert_eq!(owners.process(file, 1), 100);
        assert!(owners.forget(file, 1) && !owners.forget(file, 1));
        owners.note(file, 1, 11, 100);
        assert_eq!(owners.of_handle(10), BTreeSet::from([2]));
        assert!(owners.forget(file, 2));
        assert_eq!(owners.of_handle(11), BTreeSet::from([1]));
    }

    /// Goal: ranges are taken as the kernel gives them, the last byte included, and nonsense is refused.
    #[test]
    fn ranges_of_the_kernel() {
        let lock = |start, end, flags| Lock { handle: 1, owner: 5, start, end, kind: 0, pid: 0, flags, padding: 0 };
        let range = |start, end| Ok((Locker::Process(5), LockRange { start, end }));
        assert_eq!(wish_of(&lock(0, i64::MAX as u64, 0)), range(0, LockRange::WHOLE.end));
        assert_eq!(wish_of(&lock(3, 3, 0)), range(3, 4));
        assert_eq!(wish_of(&lock(3, 3, LOCK_FLOCK)), Ok((Locker::Whole, LockRange::WHOLE)));
        assert!(wish_of(&lock(4, 2, 0)).is_err() && wish_of(&lock(0, u64::MAX, 0)).is_err());
    }
}
