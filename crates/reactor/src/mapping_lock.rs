//! Writing to another process's region: a server lends pages of its store to a client of its machine, which copies
//! bytes straight into them.
//!
//! A mapping can't be taken back, so whoever lends has to know when it is gone. The kernel knows: each borrower gets an
//! open file of his own (an *open file description*, see open(2)), on which the lender has locked what he lends
//! (`F_OFD_SETLK`, see fcntl(2)). Such a lock lasts as long as the open file does, and that as long as a descriptor of
//! it or a mapping made through it is left, in whatever process: while the borrower is stopped, in his forked children,
//! after the lender was killed. So a range on which there is no lock is mapped for writing by nobody but the lender.
//!
//! Invariants
//! 1. A borrower maps for writing only through the open file that he was given, and only what is locked on it.
//! 2. The lender's own open files hold no locks.

use crate::copying::{copy, copy_streaming};
use crate::forks;
use crate::region::MappingLock;
use crate::system::check;
use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;

/// An open file of one borrower.
pub(crate) struct FileMappingLock(OwnedFd);

impl FileMappingLock {
    /// Opens a file anew. Errors: those of open(2), also where /proc is not mounted.
    pub fn of(file: &OwnedFd) -> io::Result<FileMappingLock> {
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        // SAFETY: makes a descriptor, which is owned from here on; the path is a local.
        unsafe {
            let raw = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            Ok(FileMappingLock(OwnedFd::from_raw_fd(check(raw)?)))
        }
    }
}

impl FileMappingLock {
    /// What a borrower has got from whom he borrows. His forked children don't have it: what is lent through it would
    /// stay so for as long as they are there.
    pub fn received(file: OwnedFd) -> FileMappingLock {
        forks::track(&file);
        FileMappingLock(file)
    }
}

impl Drop for FileMappingLock {
    fn drop(&mut self) {
        forks::untrack(&self.0);
    }
}

impl MappingLock for FileMappingLock {
    fn hold(&self, offset: u64, size: u64) -> io::Result<()> {
        let mut lock = lock_of(libc::F_WRLCK, offset, size)?;
        // SAFETY: the lock is a local.
        check(unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) }).map(drop)
    }

    fn let_go(&self, offset: u64, size: u64) {
        let Ok(mut lock) = lock_of(libc::F_UNLCK, offset, size) else { return };
        // A lock that stays keeps the range from others, and does no other harm.
        // SAFETY: the lock is a local.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) };
    }

    fn file(&self) -> Option<&OwnedFd> {
        Some(&self.0)
    }
}

/// The first bytes in a range of a file that are lent; see [`crate::Region::borrowed`].
pub(crate) fn borrowed(file: &OwnedFd, offset: u64, size: u64) -> Option<Range<u64>> {
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

/// A range of somebody else's region, to write to. Dropping it ends the mapping.
pub struct RegisteredPages {
    offset: u64,
    size: u64,
    mapping_lock: Rc<dyn MappingLock>,
    /// Where it is mapped; nothing in simulations.
    base: Option<NonNull<u8>>,
}

impl RegisteredPages {
    /// Maps a range that the mapping lock holds. Errors: those of mmap(2).
    pub(crate) fn map(mapping_lock: &Rc<dyn MappingLock>, offset: u64, size: u64) -> io::Result<RegisteredPages> {
        let Some(file) = mapping_lock.file() else {
            return Ok(RegisteredPages { offset, size, mapping_lock: mapping_lock.clone(), base: None });
        };
        let (Ok(start), true) = (libc::off_t::try_from(offset), size > 0) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice. A child that is forked does not have it, and the
        // pages are there already: faulting them in together is cheaper than one by one.
        unsafe {
            let length = size as usize;
            let base = libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), start);
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            libc::madvise(base, length, libc::MADV_DONTFORK);
            libc::madvise(base, length, libc::MADV_POPULATE_WRITE);
            Ok(RegisteredPages { offset, size, mapping_lock: mapping_lock.clone(), base: NonNull::new(base.cast()) })
        }
    }

    /// Copies bytes to `offset` in the region, past the cache where that pays. What was copied is there for whoever
    /// hears of it by a message that is sent afterwards. Panics when they do not lie in this range.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let Some(target) = self.place(offset, bytes.len()) else { return self.mapping_lock.poke(offset, bytes) };
        // SAFETY: just checked; nobody's memory overlaps with pages that were registered for us alone.
        unsafe { copy_streaming(bytes.as_ptr(), target, bytes.len()) };
    }

    /// As `write`, for bytes that somebody reads soon.
    pub fn write_near(&self, offset: u64, bytes: &[u8]) {
        let Some(target) = self.place(offset, bytes.len()) else { return self.mapping_lock.poke(offset, bytes) };
        // SAFETY: as in `write`.
        unsafe { copy(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Where bytes of the region are mapped; nothing in simulations. Panics when they do not lie in this range.
    fn place(&self, offset: u64, size: usize) -> Option<*mut u8> {
        let size = size as u64;
        let fits =
            offset >= self.offset && offset - self.offset <= self.size && size <= self.size - (offset - self.offset);
        assert!(fits, "only registered pages are written to");
        // SAFETY: just checked.
        self.base.map(|base| unsafe { base.as_ptr().add((offset - self.offset) as usize) })
    }

    /// Whether the owner is a part of the same simulation, which does nothing while we copy.
    pub fn is_simulated(&self) -> bool {
        self.base.is_none()
    }
}

impl Drop for RegisteredPages {
    fn drop(&mut self) {
        if let Some(base) = self.base {
            // SAFETY: our own mapping, which nothing else points into.
            unsafe { libc::munmap(base.as_ptr().cast(), self.size as usize) };
        }
        // What it was mapped through may well be kept for longer.
        self.mapping_lock.let_go(self.offset, self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;

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
        let mapping_locks: Vec<FileMappingLock> = (0..3).map(|_| FileMappingLock::of(&own).expect("opened")).collect();
        let starts = [81_920, 16_384, 49_152, 8192, 65_536, 32_768];
        for (number, start) in starts.iter().enumerate() {
            mapping_locks[number % 3].hold(*start, 4096).expect("free");
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
        let (one, other) = (FileMappingLock::of(&own).expect("opened"), FileMappingLock::of(&own).expect("opened"));
        assert_eq!(borrowed(&own, 0, SIZE), None);
        one.hold(4096, 8192).expect("free");
        other.hold(65_536, 4096).expect("free");
        assert!(other.hold(8192, 4096).is_err(), "it is another one's");
        assert_eq!(borrowed(&own, 0, SIZE), Some(4096..12_288));
        assert_eq!(borrowed(&own, 12_288, SIZE - 12_288), Some(65_536..69_632));
        assert_eq!(borrowed(&own, 8192, 100), Some(8192..8292));
        other.let_go(65_536, 4096);
        assert_eq!(borrowed(&own, 12_288, SIZE - 12_288), None);

        let one: Rc<dyn MappingLock> = Rc::new(one);
        let pages = RegisteredPages::map(&one, 4096, 8192).expect("mapped");
        pages.write(4096 + 100, &[7; 8000]);
        drop(pages);
        assert_eq!(borrowed(&own, 0, SIZE), None, "though what it was mapped through is there");
        one.hold(4096, 8192).expect("free");
        // SAFETY: a new mapping, which is unmapped below and never looked into.
        let mapping = unsafe {
            let raw = one.file().expect("a file").as_raw_fd();
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_WRITE, libc::MAP_SHARED, raw, 8192)
        };
        assert!(mapping != libc::MAP_FAILED);
        drop(one);
        assert_eq!(borrowed(&own, 0, SIZE), Some(4096..12_288), "the mapping alone holds it");
        // SAFETY: as above.
        unsafe { libc::munmap(mapping, 4096) };
        assert_eq!(borrowed(&own, 0, SIZE), None);
        let mut bytes = [0u8; 8192];
        // SAFETY: reads into a local.
        let read = unsafe { libc::pread(own.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 4096) };
        assert_eq!(read, 8192);
        assert!(bytes[..100].iter().all(|byte| *byte == 0) && bytes[100..8100].iter().all(|byte| *byte == 7));
    }

    /// Goal: nothing is written beside what was registered.
    #[test]
    #[should_panic(expected = "only registered pages")]
    fn bounds_are_checked() {
        let mapping_lock: Rc<dyn MappingLock> = Rc::new(FileMappingLock::of(&file()).expect("opened"));
        RegisteredPages::map(&mapping_lock, 4096, 4096).expect("mapped").write(8191, &[1, 2]);
    }
}
