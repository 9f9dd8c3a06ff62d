//! Writing to another process's region: a server lends pages of its store to a client of its machine, which copies
//! bytes straight into them. How the server knows whether they are still mapped is in [`shm::mapping_lock`].

use crate::forks;
use crate::region::MappingLock;
use shm::copying::{copy, copy_streaming};
use shm::mapping::{Mapping, Protection};
use shm::mapping_lock::{hold, let_go, open_anew};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// An open file of one borrower.
pub(crate) struct FileMappingLock(OwnedFd);

impl FileMappingLock {
    /// Opens a file anew. Errors: those of open(2), also where /proc is not mounted.
    pub fn of(file: &OwnedFd) -> io::Result<FileMappingLock> {
        open_anew(file).map(FileMappingLock)
    }

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
        hold(&self.0, offset, size)
    }

    fn let_go(&self, offset: u64, size: u64) {
        let_go(&self.0, offset, size);
    }

    fn file(&self) -> Option<&OwnedFd> {
        Some(&self.0)
    }
}

/// A range of somebody else's region, to write to. Dropping it ends the mapping.
pub struct RegisteredPages {
    offset: u64,
    size: u64,
    mapping_lock: Rc<dyn MappingLock>,
    /// Where it is mapped; nothing in simulations.
    mapping: Option<Mapping>,
}

impl RegisteredPages {
    /// Maps a range that the mapping lock holds. Errors: those of mmap(2).
    pub(crate) fn map(mapping_lock: &Rc<dyn MappingLock>, offset: u64, size: u64) -> io::Result<RegisteredPages> {
        let mapping = match mapping_lock.file() {
            Some(file) => {
                let mapping = Mapping::new(file, offset, size, Protection::ReadAndWrite)?;
                // The pages are there already: faulting them in together is cheaper than one by one.
                mapping.populate();
                Some(mapping)
            }
            None => None,
        };
        Ok(RegisteredPages { offset, size, mapping_lock: mapping_lock.clone(), mapping })
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
        self.mapping.as_ref().map(|mapping| unsafe { mapping.base().add((offset - self.offset) as usize) })
    }

    /// Whether the owner is a part of the same simulation, which does nothing while we copy.
    pub fn is_simulated(&self) -> bool {
        self.mapping.is_none()
    }
}

impl Drop for RegisteredPages {
    fn drop(&mut self) {
        self.mapping = None;
        // What it was mapped through may well be kept for longer.
        self.mapping_lock.let_go(self.offset, self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::mapping_lock::borrowed;
    use std::os::fd::{AsRawFd, FromRawFd};

    const SIZE: u64 = 1 << 20;

    fn file() -> OwnedFd {
        // SAFETY: a new descriptor, owned from here on; the name is a constant.
        unsafe {
            let raw = libc::memfd_create(c"mapping-lock".as_ptr(), libc::MFD_CLOEXEC);
            assert!(raw >= 0 && libc::ftruncate(raw, SIZE as libc::off_t) == 0);
            OwnedFd::from_raw_fd(raw)
        }
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
