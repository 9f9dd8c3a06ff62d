//! A group memory that several processes share: a barrier and a row of words, for programs that measure as a group.
//!
//! One process creates the group memory (an unlinked memory file), the others open it by the path that
//! [`GroupMemory::path`] names.
//!
//! Invariants:
//! 1. `arrived` counts the parties that wait in the current generation; it is below `parties` whenever nobody is inside
//!    `wait`.
//! 2. `generation` rises by one when the last party arrives, after `arrived` went back to zero, and once more at each
//!    abort.
//! 3. `aborted` never goes back to zero.

use crate::Nanos;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Most parties of a barrier.
pub const PARTY_COUNT_MAX: u32 = 4096;
const MAGIC: u32 = 0x7a62_6f31;

#[repr(C, align(64))]
struct Head {
    magic: AtomicU32,
    parties: AtomicU32,
    arrived: AtomicU32,
    generation: AtomicU32,
    aborted: AtomicU32,
}

const _: () = assert!(size_of::<Head>() == 64);

/// The group was told to stop; there is nobody to wait for any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aborted;

/// A barrier and words in memory that several processes map.
pub struct GroupMemory {
    file: File,
    base: NonNull<Head>,
    map_size: usize,
    word_count: usize,
}

// SAFETY: all access to the mapping goes through atomics, and it stays mapped until the group memory is dropped.
unsafe impl Send for GroupMemory {}
// SAFETY: as above.
unsafe impl Sync for GroupMemory {}

impl GroupMemory {
    /// A new group memory for `parties` processes with `word_count` words that are zero.
    pub fn create(parties: u32, word_count: usize) -> io::Result<GroupMemory> {
        assert!((1..=PARTY_COUNT_MAX).contains(&parties));
        // SAFETY: the name is a constant string with its NUL; the call touches no other memory of ours.
        let descriptor = unsafe { libc::memfd_create(c"tabane-group-memory".as_ptr(), libc::MFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else owns it.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len((size_of::<Head>() + word_count * size_of::<u64>()) as u64)?;
        let group_memory = GroupMemory::map(file)?;
        group_memory.head().parties.store(parties, Ordering::Relaxed);
        group_memory.head().magic.store(MAGIC, Ordering::Release);
        Ok(group_memory)
    }

    /// Opens a group memory that another process created, by the path that its [`GroupMemory::path`] gave.
    pub fn open(path: &Path) -> io::Result<GroupMemory> {
        let file = File::options().read(true).write(true).open(path)?;
        let group_memory = GroupMemory::map(file)?;
        let parties = group_memory.head().parties.load(Ordering::Relaxed);
        if group_memory.head().magic.load(Ordering::Acquire) != MAGIC || !(1..=PARTY_COUNT_MAX).contains(&parties) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "is not the memory of a group"));
        }
        Ok(group_memory)
    }

    /// Where other processes of the same user find the group memory as long as this one lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    pub fn parties(&self) -> u32 {
        self.head().parties.load(Ordering::Relaxed)
    }

    pub fn word_count(&self) -> usize {
        self.word_count
    }

    /// Word `index`. Panics beyond the word count.
    pub fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    /// Sets word `index`. Panics beyond the word count.
    pub fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }

    /// Adds to word `index`, whoever else does at the same time. Panics beyond the word count.
    pub fn add(&self, index: usize, value: u64) {
        self.word(index).fetch_add(value, Ordering::AcqRel);
    }

    /// Raises word `index` to `value` where it is less. Panics beyond the word count.
    pub fn raise(&self, index: usize, value: u64) {
        self.word(index).fetch_max(value, Ordering::AcqRel);
    }

    /// The words as bytes, from one to another. Panics beyond the word count.
    ///
    /// # Safety
    ///
    /// As long as the slice is used nobody else, in this process or another one, writes to these bytes, and nobody
    /// reads them while they are written: [`GroupMemory::wait`] parts what one does from what another one does.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn bytes(&self, range: std::ops::Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.word_count * size_of::<u64>());
        // SAFETY: the words follow the head, and the range was checked; the caller sees to it that nobody else has it.
        unsafe {
            let first = self.base.as_ptr().add(1).cast::<u8>().add(range.start);
            std::slice::from_raw_parts_mut(first, range.end - range.start)
        }
    }

    /// Waits until all parties have called this as often as this one. What a party stored before, all others see after.
    pub fn wait(&self) -> Result<(), Aborted> {
        let head = self.head();
        let generation = head.generation.load(Ordering::Acquire);
        if head.aborted.load(Ordering::Acquire) != 0 {
            return Err(Aborted);
        }
        let arrived = head.arrived.fetch_add(1, Ordering::AcqRel) + 1;
        assert!(arrived <= self.parties(), "more processes than parties wait (invariant 1)");
        if arrived == self.parties() {
            head.arrived.store(0, Ordering::Relaxed);
            head.generation.fetch_add(1, Ordering::AcqRel);
            wake_all(&head.generation);
            return Ok(());
        }
        while head.generation.load(Ordering::Acquire) == generation {
            sleep_while(&head.generation, generation);
        }
        if head.aborted.load(Ordering::Acquire) != 0 { Err(Aborted) } else { Ok(()) }
    }

    /// Releases everybody with [`Aborted`], now and from now on.
    pub fn abort(&self) {
        let head = self.head();
        head.aborted.store(1, Ordering::SeqCst);
        head.generation.fetch_add(1, Ordering::SeqCst);
        wake_all(&head.generation);
    }

    fn map(file: File) -> io::Result<GroupMemory> {
        let map_size = file.metadata()?.len() as usize;
        if map_size < size_of::<Head>() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "is not the memory of a group"));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping of a file that we hold open; nothing else lies at the address the kernel picks.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), map_size, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<Head>()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(GroupMemory { file, base, map_size, word_count: (map_size - size_of::<Head>()) / size_of::<u64>() })
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping is at least as large as the head, page aligned, and lives as long as `self`.
        unsafe { self.base.as_ref() }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.word_count, "word {index} of {}", self.word_count);
        // SAFETY: the words follow the 64-byte head, eight-byte aligned, and the index was checked.
        unsafe { &*self.base.as_ptr().add(1).cast::<AtomicU64>().add(index) }
    }
}

impl Drop for GroupMemory {
    fn drop(&mut self) {
        // SAFETY: this mapping was made in `map` with this size, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.map_size) };
    }
}

/// Nanoseconds of the machine's monotonic clock, which all its processes share.
pub fn monotonic_now() -> Nanos {
    crate::system::monotonic()
}

fn sleep_while(word: &AtomicU32, value: u32) {
    // SAFETY: the word is mapped; the kernel only compares it. Returning early is allowed, callers look again.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, std::ptr::null::<libc::timespec>());
    }
}

fn wake_all(word: &AtomicU32) {
    // SAFETY: the word is mapped; waking touches no memory.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: nobody passes a barrier before everybody came, over many generations. Method: before each barrier every
    /// party writes the round into its word; after it, it must see that round in all words.
    #[test]
    fn all_wait_for_all() {
        const PARTIES: usize = 4;
        let group_memory = GroupMemory::create(PARTIES as u32, PARTIES).unwrap();
        std::thread::scope(|scope| {
            for party in 0..PARTIES {
                let group_memory = GroupMemory::open(&group_memory.path()).unwrap();
                scope.spawn(move || {
                    for round in 1..=500 {
                        group_memory.store(party, round);
                        group_memory.wait().unwrap();
                        for other in 0..PARTIES {
                            assert_eq!(group_memory.load(other), round);
                        }
                        group_memory.wait().unwrap();
                    }
                });
            }
        });
        assert_eq!(group_memory.load(0), 500);
    }

    /// Goal: an abort releases those who wait and those who come later.
    #[test]
    fn abort_releases_everybody() {
        let group_memory = GroupMemory::create(2, 1).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                group_memory.store(0, 1);
                group_memory.wait()
            });
            while group_memory.load(0) == 0 {
                std::thread::yield_now();
            }
            group_memory.abort();
            assert_eq!(waiter.join().unwrap(), Err(Aborted));
        });
        assert_eq!(group_memory.wait(), Err(Aborted));
    }

    /// Goal: a file that is no group memory is refused.
    #[test]
    fn other_files_are_refused() {
        assert!(GroupMemory::open(Path::new("/dev/null")).is_err());
        let group_memory = GroupMemory::create(1, 1).unwrap();
        group_memory.head().magic.store(1, Ordering::Relaxed);
        assert!(GroupMemory::open(&group_memory.path()).is_err());
    }

    /// Goal: the clock is one for all processes and never runs backwards.
    #[test]
    fn clock_is_monotonic() {
        let first = monotonic_now();
        assert!(first > 0 && monotonic_now() >= first);
    }
}
