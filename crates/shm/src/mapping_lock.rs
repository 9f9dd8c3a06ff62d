//! Writing to another process's memory: whoever lends pages of a file to another process has to know when they are not
//! mapped any more, and a mapping can't be taken back.
//!
//! The kernel knows: each borrower gets an open file of his own (an *open file description*, see open(2)), on which the
//! lender has locked what he lends (`F_OFD_SETLK`, see fcntl(2)). Such a lock lasts as long as the open file does, and
//! that as long as a descriptor of it or a mapping made through it is left, in whatever process: while the borrower is
//! stopped, in his forked children, after the lender was killed. So a range on which there is no lock is mapped for
//! writing by nobody but the lender.
//!
//! Invariants
//! 1. A borrower maps for writing only through the open file that he was given, and only what is locked on it.
//! 2. The lender's own open files hold no locks.

use crate::check;
use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Opens a file anew, for one borrower. Errors: those of open(2), also where /proc is not mounted.
pub fn open_anew(file: &OwnedFd) -> io::Result<OwnedFd> {
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    // SAFETY: makes a descriptor, which is owned from here on; the path is a local.
    unsafe {
        let raw = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        Ok(OwnedFd::from_raw_fd(check(raw)?))
    }
}

/// Locks a range on a borrower's open file. Errors: it can't be locked; then nobody is to be told of it.
pub fn hold(file: &OwnedFd, offset: u64, size: u64) -> io::Result<()> {
    let mut lock = lock_of(libc::F_WRLCK, offset, size)?;
    // SAFETY: the lock is a local.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) }).map(drop)
}

/// Unlocks a range on a borrower's open file, which has nothing of it mapped any more.
pub fn let_go(file: &OwnedFd, offset: u64, size: u64) {
    let Ok(mut lock) = lock_of(libc::F_UNLCK, offset, size) else { return };
    // A lock that stays keeps the range from others, and does no other harm.
    // SAFETY: the lock is a local.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) };
}

/// The first bytes in a range of a file that are lent for writing. What can't be told counts as lent.
pub fn borrowed(file: &OwnedFd, offset: u64, size: u64) -> Option<Range<u64>> {
    let mut first = any_borrowed(file, offset, size)?;
    // The kernel looks at one borrower after the other, each from its first lock on: others may have something before
    // this.
    while first.start > offset
        && let Some(earlier) = any_borrowed(file, offset, first.start - offset)
    {
        first = earlier;
    }
    Some(first)
}

/// Bytes in a range of a file that are lent, not always the first.
fn any_borrowed(file: &OwnedFd, offset: u64, size: u64) -> Option<Range<u64>> {
    let everything = offset..offset + size;
    let Ok(mut lock) = lock_of(libc::F_WRLCK, offset, size) else { return Some(everything) };
    // SAFETY: the lock is a local.
    if let Err(error) = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) }) {
        // Where there are no such locks nothing can have been lent.
        let has_none = [libc::EINVAL, libc::ENOSYS, libc::EOPNOTSUPP].map(Some).contains(&error.raw_os_error());
        return if has_none { None } else { Some(everything) };
    }
    if libc::c_int::from(lock.l_type) == libc::F_UNLCK {
        return None;
    }
    let start = (lock.l_start.max(0) as u64).max(offset);
    // No length is everything up to the end.
    let end =
        if lock.l_len <= 0 { offset + size } else { (lock.l_start.max(0) as u64).saturating_add(lock.l_len as u64) };
    Some(start..end.min(offset + size))
}

fn lock_of(kind: libc::c_int, offset: u64, size: u64) -> io::Result<libc::flock> {
    let (Ok(start), Ok(len)) = (libc::off_t::try_from(offset), libc::off_t::try_from(size)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // SAFETY: zeroed, it is a valid value; locks of open files want a process number of 0.
    let mut lock = unsafe { std::mem::zeroed::<libc::flock>() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (start, len);
    Ok(lock)
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::mapping::{Mapping, Protection};

    const SIZE: u64 = 1 << 20;

    fn file() -> OwnedFd {
        // SAFETY: a new descriptor, owned from here on; the name is a constant.
        unsafe {
            let raw = libc::memfd_create(c"mapping-lock".as_ptr(), libc::MFD_CLOEXEC);
            assert!(raw >= 0 && libc::ftruncate(raw, SIZE as libc::off_t) == 0);
            OwnedFd::from_raw_fd(raw)
        }
    }

    /// Goal: all that is lent is found from front to back, whichever borrower was there first.
    #[test]
    fn borrowers_come_in_any_order() {
        let own = file();
        let borrowers: Vec<OwnedFd> = (0..3).map(|_| open_anew(&own).expect("opened")).collect();
        let starts = [81_920, 16_384, 49_152, 8192, 65_536, 32_768];
        for (number, start) in starts.iter().enumerate() {
            hold(&borrowers[number % 3], *start, 4096).expect("free");
        }
        let (mut found, mut from) = (Vec::new(), 0);
        while let Some(range) = borrowed(&own, from, SIZE - from) {
            assert_eq!(range.end - range.start, 4096);
            found.push(range.start);
            from = range.end;
        }
        assert_eq!(found, [8192, 16_384, 32_768, 49_152, 65_536, 81_920]);
    }

    /// Goal: what is lent is seen as such by another open file for as long as a mapping is left, also when every
    /// descriptor is closed, and not a moment longer; what is returned is not lent.
    #[test]
    fn mappings_are_seen() {
        let own = file();
        let (one, other) = (open_anew(&own).expect("opened"), open_anew(&own).expect("opened"));
        assert_eq!(borrowed(&own, 0, SIZE), None);
        hold(&one, 4096, 8192).expect("free");
        hold(&other, 65_536, 4096).expect("free");
        assert!(hold(&other, 8192, 4096).is_err(), "it is another one's");
        assert_eq!(borrowed(&own, 0, SIZE), Some(4096..12_288));
        assert_eq!(borrowed(&own, 12_288, SIZE - 12_288), Some(65_536..69_632));
        assert_eq!(borrowed(&own, 8192, 100), Some(8192..8292));
        let_go(&other, 65_536, 4096);
        assert_eq!(borrowed(&own, 12_288, SIZE - 12_288), None);
        let mapping = Mapping::new(&one, 8192, 4096, Protection::ReadAndWrite).expect("mapped");
        drop(one);
        assert_eq!(borrowed(&own, 0, SIZE), Some(4096..12_288), "the mapping alone holds it");
        drop(mapping);
        assert_eq!(borrowed(&own, 0, SIZE), None);
    }
}
