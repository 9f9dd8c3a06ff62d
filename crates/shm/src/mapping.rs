//! Mappings of files, and structs that lie in memory which other processes have mapped too.

use crate::check;
use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;

/// What may be done with the bytes of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    Read,
    ReadAndWrite,
}

/// A shared mapping of a file's bytes, at an address of the kernel's choice. A child that is forked does not have it.
pub struct Mapping {
    base: NonNull<u8>,
    size: u64,
}

impl Mapping {
    /// Maps `size` bytes from `offset` on. Errors: `InvalidInput` where there are none, and those of mmap(2).
    pub fn new(file: &OwnedFd, offset: u64, size: u64, protection: Protection) -> io::Result<Mapping> {
        let (Ok(start), Ok(length)) = (libc::off_t::try_from(offset), usize::try_from(size)) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let protection = match protection {
            Protection::Read => libc::PROT_READ,
            Protection::ReadAndWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address that the kernel picks.
        let base = unsafe {
            let base = libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), start);
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            libc::madvise(base, length, libc::MADV_DONTFORK);
            base
        };
        let Some(base) = NonNull::new(base.cast()) else { unreachable!("mappings are not at address 0") };
        Ok(Mapping { base, size })
    }

    /// Maps all of a file. Errors: `InvalidData` where it is none that has bytes, and those of mmap(2).
    pub fn of_whole(file: &OwnedFd, protection: Protection) -> io::Result<Mapping> {
        let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: writes the status, which is a valid value even where it stays zeroed.
        let status = unsafe {
            check(libc::fstat(file.as_raw_fd(), status.as_mut_ptr()))?;
            status.assume_init()
        };
        if status.st_mode & libc::S_IFMT != libc::S_IFREG || status.st_size <= 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "what is shared is a file that is not empty"));
        }
        Mapping::new(file, 0, status.st_size as u64, protection)
    }

    /// Has all pages here before they are needed. A kernel that can't do it takes a fault for each page instead.
    pub fn populate(&self) {
        // SAFETY: the mapping is ours; its bytes stay as they are.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.size as usize, libc::MADV_POPULATE_WRITE) };
    }

    /// Address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes that are mapped.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever points into it holds it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.size as usize) };
    }
}

/// A struct that processes share.
///
/// # Safety
/// Any bytes are a value of it, zeros the one that it begins with, and all that is in it may be written to by others at
/// any time: it consists of atomics and of cells that are only touched by their address.
#[cfg(not(loom))]
pub unsafe trait Layout: 'static {}
/// A struct that processes share.
///
/// # Safety
/// None: models have it on their own.
#[cfg(loom)]
pub unsafe trait Layout: Default + 'static {}

/// A struct in memory that others may have mapped too, for as long as this is held.
pub struct Mapped<T: Layout> {
    first: NonNull<T>,
    memory: Rc<dyn Any>,
}

impl<T: Layout> Clone for Mapped<T> {
    fn clone(&self) -> Self {
        Mapped { first: self.first, memory: self.memory.clone() }
    }
}

impl<T: Layout> Mapped<T> {
    /// The struct at an address. Panics when that is not aligned.
    ///
    /// # Safety
    /// As many bytes as it has are mapped there for as long as `memory` is held, and whoever else touches them does so
    /// as this struct says.
    pub unsafe fn at(address: *const u8, memory: Rc<dyn Any>) -> Mapped<T> {
        let Some(first) = NonNull::new(address.cast_mut().cast::<T>()) else {
            panic!("nothing is shared at address 0")
        };
        assert!(first.is_aligned(), "what is shared is aligned");
        Mapped { first, memory }
    }

    /// A struct of zeros that only this process sees.
    pub fn alone() -> Mapped<T> {
        #[cfg(not(loom))]
        let value = Rc::<T>::new_zeroed();
        #[cfg(not(loom))]
        // SAFETY: zeros are a value of a shared struct.
        let value = unsafe { value.assume_init() };
        #[cfg(loom)]
        let value = Rc::new(T::default());
        Mapped { first: NonNull::from(value.as_ref()), memory: value }
    }
}

impl<T: Layout> fmt::Debug for Mapped<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Mapped")
    }
}

impl<T: Layout> Deref for Mapped<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: it lies there for as long as the memory is held (`at`, `alone`).
        unsafe { self.first.as_ref() }
    }
}
