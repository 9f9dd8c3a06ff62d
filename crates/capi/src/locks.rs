//! Locks of files: flock(2), and the record locks of fcntl(2).

use crate::convert::*;
use crate::mounted;
use client::descriptors::{Mounted, Whence, own_process};
use client::{Error, LockRange, Locker, OwnerKind, Result, Status, lock_range};
use libc::{c_int, c_short};

fn invalid(words: &str) -> Error {
    Error::new(Status::Invalid, words)
}

/// Locks a whole file for its descriptor, as flock(2) does. `operation`: LOCK_SH, LOCK_EX or LOCK_UN, with LOCK_NB or
/// without.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_flock(descriptor: c_int, operation: c_int) -> c_int {
    let lock = || {
        let mounted = mounted()?;
        let open = mounted.get(descriptor)?;
        let (file, range) = (&open.file, LockRange::WHOLE);
        let exclusive = match operation & !libc::LOCK_NB {
            libc::LOCK_UN => return mounted.client.unlock(file, Locker::Whole, range),
            libc::LOCK_SH => false,
            libc::LOCK_EX => true,
            _ => return Err(invalid("the operation is none of LOCK_SH, LOCK_EX and LOCK_UN")),
        };
        if operation & libc::LOCK_NB != 0 {
            mounted.client.try_lock(file, Locker::Whole, range, exclusive)
        } else {
            mounted.client.lock(file, Locker::Whole, range, exclusive)
        }
    };
    status_of(lock())
}

/// Locks and unlocks a range of a file, or asks who has a lock, as fcntl(2) does with F_SETLK, F_SETLKW and F_GETLK
/// (owned by this process) and with F_OFD_SETLK, F_OFD_SETLKW and F_OFD_GETLK (owned by the descriptor).
///
/// # Safety
/// `lock` may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_fcntl_lock(descriptor: c_int, command: c_int, lock: *mut libc::flock) -> c_int {
    // SAFETY: the caller promises that a pointer that is not null may be used.
    let lock = unsafe { lock.as_mut() };
    let lock = lock.ok_or_else(|| invalid("the description of the lock is a null pointer"));
    status_of(lock.and_then(|lock| fcntl_lock(descriptor, command, lock)))
}

fn fcntl_lock(descriptor: c_int, command: c_int, lock: &mut libc::flock) -> Result<()> {
    let mounted = mounted()?;
    let open = mounted.get(descriptor)?;
    let (file, client) = (&open.file, &mounted.client);
    let by_process = matches!(command, libc::F_SETLK | libc::F_SETLKW | libc::F_GETLK);
    let locker = if by_process { Locker::Process(own_process()) } else { Locker::Description };
    if !by_process && lock.l_pid != 0 {
        return Err(invalid("l_pid is not 0, as the locks of descriptors want it"));
    }
    let range = range_of(&mounted, descriptor, lock)?;
    let exclusive = match c_int::from(lock.l_type) {
        libc::F_RDLCK => false,
        libc::F_WRLCK => true,
        libc::F_UNLCK if !matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) => {
            return client.unlock(file, locker, range);
        }
        _ => return Err(invalid("l_type is none of F_RDLCK, F_WRLCK and F_UNLCK")),
    };
    match command {
        libc::F_SETLK | libc::F_OFD_SETLK => client.try_lock(file, locker, range, exclusive),
        libc::F_SETLKW | libc::F_OFD_SETLKW => client.lock(file, locker, range, exclusive),
        libc::F_GETLK | libc::F_OFD_GETLK => {
            let Some(held) = client.test_lock(file, locker, range, exclusive)? else {
                lock.l_type = libc::F_UNLCK as c_short;
                return Ok(());
            };
            let to_end = held.range.end == LockRange::WHOLE.end;
            lock.l_type = if held.exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as c_short;
            lock.l_whence = libc::SEEK_SET as c_short;
            lock.l_start = held.range.start as libc::off_t;
            lock.l_len = if to_end { 0 } else { (held.range.end - held.range.start) as libc::off_t };
            let is_process = held.owner.kind == OwnerKind::Process;
            lock.l_pid = if is_process { libc::pid_t::try_from(held.owner.id).unwrap_or(-1) } else { -1 };
            Ok(())
        }
        _ => Err(invalid("the command is none that locks")),
    }
}

/// The range that a `struct flock` describes: from whichever end, forwards or backwards.
fn range_of(mounted: &Mounted, descriptor: c_int, lock: &libc::flock) -> Result<LockRange> {
    let base = match whence_of(c_int::from(lock.l_whence))? {
        Whence::Start => 0,
        Whence::Current => mounted.seek(descriptor, 0, Whence::Current)?,
        Whence::End => mounted.client.stat_file(&mounted.get(descriptor)?.file)?.size as i64,
        Whence::Data | Whence::Hole => {
            return Err(Error::new(Status::Invalid, "locks count from SEEK_SET, SEEK_CUR or SEEK_END"));
        }
    };
    let out_of_range = || invalid("the range begins before the file, or ends too far behind it");
    let point = base.checked_add(lock.l_start).ok_or_else(out_of_range)?;
    let start = if lock.l_len < 0 { point.checked_add(lock.l_len).ok_or_else(out_of_range)? } else { point };
    lock_range(u64::try_from(start).map_err(|_| out_of_range())?, lock.l_len.unsigned_abs())
}
