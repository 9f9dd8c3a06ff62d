//! Real storage: files mapped into memory, on tmpfs, a DAX file system or a disk.

use crate::mapping_lock::FileMappingLock;
use crate::region::{LocalFuture, MappingLock, OpenMode, Region, Storage};
use crate::system::check;
use shm::copying::{copy, copy_streaming, note_copied};
use shm::mapping_lock::borrowed;
use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// How a driver makes a file durable.
pub(crate) trait FileSync {
    /// Resolves when all that was written before the call is on the medium.
    fn sync(&self, file: &Rc<OwnedFd>) -> LocalFuture<io::Result<()>>;
}

/// The regions in one directory.
pub(crate) struct MappedStorage {
    directory: PathBuf,
    descriptor: Rc<OwnedFd>,
    volatile: bool,
    sync: Rc<dyn FileSync>,
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, what.to_owned())
}

/// A name is one component of a path.
fn checked_name(name: &str) -> io::Result<CString> {
    if name.is_empty() || name == "." || name == ".." || name.contains('/') {
        return Err(invalid("a region's name is one component of a path"));
    }
    CString::new(name).map_err(|_| invalid("a region's name has no NUL"))
}

/// Whether a file system forgets at power loss.
pub(crate) fn is_volatile(status: &libc::statfs) -> bool {
    // Magic numbers of statfs(2), as the C libraries give them different types.
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    #[allow(clippy::unnecessary_cast)]
    [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(status.f_type as u64))
}

impl MappedStorage {
    /// Opens a directory, creating it for its owner alone if it is missing.
    pub fn open(directory: &Path, sync: Rc<dyn FileSync>) -> io::Result<MappedStorage> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let path = CString::new(directory.as_os_str().as_bytes()).map_err(|_| invalid("a path has no NUL"))?;
        // SAFETY: the path is a C string; the descriptor is owned from here on.
        let descriptor = unsafe {
            let raw = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC);
            OwnedFd::from_raw_fd(check(raw)?)
        };
        let mut status = std::mem::MaybeUninit::<libc::statfs>::zeroed();
        // SAFETY: writes the status, which is a valid value even where it stays zeroed.
        let status = unsafe {
            check(libc::fstatfs(descriptor.as_raw_fd(), status.as_mut_ptr()))?;
            status.assume_init()
        };
        let volatile = is_volatile(&status);
        Ok(MappedStorage { directory: directory.to_owned(), descriptor: Rc::new(descriptor), volatile, sync })
    }
}

impl Storage for MappedStorage {
    fn open(&self, name: &str, size: u64, mode: OpenMode) -> io::Result<Rc<dyn Region>> {
        let path = checked_name(name)?;
        let flags = libc::O_RDWR
            | libc::O_CLOEXEC
            | libc::O_NOFOLLOW
            | if mode == OpenMode::CreateNew { libc::O_CREAT | libc::O_EXCL } else { 0 };
        // SAFETY: the path is a C string; the descriptor is owned from here on.
        let file = unsafe {
            OwnedFd::from_raw_fd(check(libc::openat(self.descriptor.as_raw_fd(), path.as_ptr(), flags, 0o600))?)
        };
        let result =
            MappedRegion::map(file, (mode == OpenMode::CreateNew).then_some(size), self.volatile, self.sync.clone());
        if result.is_err() && mode == OpenMode::CreateNew {
            // Nothing half made stays behind; the error that matters is the first one.
            let _ = self.remove(name);
        }
        Ok(Rc::new(result?))
    }

    fn exists(&self, name: &str) -> bool {
        checked_name(name).is_ok() && self.directory.join(name).symlink_metadata().is_ok()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = checked_name(name)?;
        // SAFETY: the path is a C string.
        check(unsafe { libc::unlinkat(self.descriptor.as_raw_fd(), path.as_ptr(), 0) }).map(drop)
    }

    fn list(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return Vec::new() };
        let mut names: Vec<String> = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    fn lock_exclusive(&self) -> io::Result<()> {
        // SAFETY: no pointers.
        check(unsafe { libc::flock(self.descriptor.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }).map(drop)
    }

    fn free_bytes(&self) -> u64 {
        let mut status = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
        // SAFETY: writes the status, which is a valid value even where it stays zeroed.
        unsafe {
            if libc::fstatvfs(self.descriptor.as_raw_fd(), status.as_mut_ptr()) != 0 {
                return 0;
            }
            let status = status.assume_init();
            status.f_bavail.saturating_mul(status.f_frsize)
        }
    }

    fn is_volatile(&self) -> bool {
        self.volatile
    }

    fn power_cycle(&self) -> io::Result<u128> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        u128::from_str_radix(&digits, 16).map_err(|_| invalid("the kernel's boot id is a number of 128 bits"))
    }

    fn sync_names(&self) -> LocalFuture<io::Result<()>> {
        if self.volatile {
            return Box::pin(std::future::ready(Ok(())));
        }
        self.sync.sync(&self.descriptor)
    }
}

struct MappedRegion {
    file: Rc<OwnedFd>,
    base: *mut u8,
    size: u64,
    volatile: bool,
    sync: Rc<dyn FileSync>,
}

impl MappedRegion {
    /// Maps a file, giving it a size first if one is named.
    fn map(file: OwnedFd, new_size: Option<u64>, volatile: bool, sync: Rc<dyn FileSync>) -> io::Result<MappedRegion> {
        let descriptor = file.as_raw_fd();
        if let Some(size) = new_size {
            let size = libc::off_t::try_from(size).map_err(|_| invalid("a region is smaller than 2^63 bytes"))?;
            // SAFETY: no pointers.
            check(unsafe { libc::ftruncate(descriptor, size) })?;
        }
        let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: writes the status, which is a valid value even where it stays zeroed.
        let status = unsafe {
            check(libc::fstat(descriptor, status.as_mut_ptr()))?;
            status.assume_init()
        };
        if status.st_mode & libc::S_IFMT != libc::S_IFREG || status.st_size <= 0 {
            return Err(invalid("a region is a file that is not empty"));
        }
        let size = status.st_size as u64;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping of our own file, at an address of the kernel's choice.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), size as usize, protection, libc::MAP_SHARED, descriptor, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Huge pages where the mount offers them, and no copies in forked children; neither is needed to be right.
        // SAFETY: advice about our own mapping.
        unsafe {
            libc::madvise(base, size as usize, libc::MADV_HUGEPAGE);
            libc::madvise(base, size as usize, libc::MADV_DONTFORK);
        }
        Ok(MappedRegion { file: Rc::new(file), base: base.cast(), size, volatile, sync })
    }

    /// Address of a range that lies within the mapping.
    fn at(&self, offset: u64, size: u64) -> *mut u8 {
        assert!(
            offset <= self.size && size <= self.size - offset,
            "range {offset}+{size} lies within a region of {} bytes",
            self.size
        );
        // SAFETY: just checked.
        unsafe { self.base.add(offset as usize) }
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        // SAFETY: our own mapping; spans that may still point into it hold the region.
        unsafe { libc::munmap(self.base.cast(), self.size as usize) };
    }
}

/// Page size that populating works in; a multiple of the machine's.
const PAGE: u64 = 4096;

impl Region for MappedRegion {
    fn size(&self) -> u64 {
        self.size
    }

    fn allocate(&self, offset: u64, size: u64) -> io::Result<()> {
        if size == 0 {
            return Ok(());
        }
        self.at(offset, size);
        // The C library's call also serves file systems that cannot reserve space by themselves.
        // SAFETY: no pointers.
        let error = unsafe { libc::posix_fallocate(self.file.as_raw_fd(), offset as libc::off_t, size as libc::off_t) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        let first = offset / PAGE * PAGE;
        // SAFETY: the range lies within our mapping, whose last page is whole. Faulting in reads nothing and changes
        // nothing; kernels before 5.14 refuse, and then pages are faulted in as they are used.
        unsafe {
            libc::madvise(
                self.base.add(first as usize).cast(),
                (offset + size - first) as usize,
                libc::MADV_POPULATE_WRITE,
            )
        };
        Ok(())
    }

    fn data_end(&self) -> u64 {
        let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: writes the status, which is a valid value even where it stays zeroed.
        let status = unsafe {
            libc::fstat(self.file.as_raw_fd(), status.as_mut_ptr());
            status.assume_init()
        };
        // What was allocated and never written counts as blocks; a copy of the file may have got holes.
        let mut end = (status.st_blocks as u64 * 512).min(self.size);
        while end < self.size {
            // SAFETY: no pointers.
            let data = unsafe { libc::lseek(self.file.as_raw_fd(), end as libc::off_t, libc::SEEK_DATA) };
            if data < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) {
                return end;
            }
            // SAFETY: no pointers.
            let hole = unsafe { libc::lseek(self.file.as_raw_fd(), data.max(0), libc::SEEK_HOLE) };
            // Where the file system can't tell, all of it counts.
            end = if data < 0 || hole <= data { self.size } else { (hole as u64).min(self.size) };
        }
        end
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let from = self.at(offset, into.len() as u64);
        // SAFETY: the range was checked; a caller's slice never lies in the mapping (invariant 1 of `region`).
        unsafe { copy(from, into.as_mut_ptr(), into.len()) };
    }

    fn write(&self, offset: u64, from: &[u8]) {
        let to = self.at(offset, from.len() as u64);
        // SAFETY: as in `read`.
        unsafe { copy(from.as_ptr(), to, from.len()) };
    }

    fn copy_within(&self, from: u64, to: u64, size: u64) {
        let is_apart = from.abs_diff(to) >= size;
        let (from, to) = (self.at(from, size), self.at(to, size));
        // SAFETY: both ranges were checked, and whether they overlap.
        unsafe {
            if is_apart {
                copy_streaming(from, to, size as usize);
            } else {
                note_copied(size as usize);
                std::ptr::copy(from, to, size as usize);
            }
        }
    }

    fn fill_zero(&self, offset: u64, size: u64) {
        let to = self.at(offset, size);
        // SAFETY: the range was checked.
        unsafe { std::ptr::write_bytes(to, 0, size as usize) };
    }

    fn crc32c(&self, offset: u64, size: u64) -> u32 {
        let from = self.at(offset, size);
        // SAFETY: the range was checked, and nobody writes to it while this short borrow lives: we are the only thread
        // that maps this file and the kernel owns no buffer for sockets.
        crc32c::crc32c(unsafe { std::slice::from_raw_parts(from, size as usize) })
    }

    fn base(&self) -> *mut u8 {
        self.base
    }

    fn note_received(&self, offset: u64, size: u64) {
        self.at(offset, size);
    }

    fn sync(&self, offset: u64, size: u64) -> LocalFuture<io::Result<()>> {
        self.at(offset, size);
        if self.volatile {
            return Box::pin(std::future::ready(Ok(())));
        }
        // Durability of the mapping's dirty pages and of the file's extents needs one call on the file.
        self.sync.sync(&self.file)
    }

    fn release(&self, offset: u64, size: u64) {
        let from = self.at(offset, size);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: advice about our own mapping, and a hole in our own file where nobody has a byte. What can't be done
        // costs memory and nothing else.
        unsafe {
            // A huge page would bring back what is given up here.
            libc::madvise(from.cast(), size as usize, libc::MADV_NOHUGEPAGE);
            libc::fallocate(self.file.as_raw_fd(), mode, offset as libc::off_t, size as libc::off_t);
        }
    }

    fn page_size(&self) -> u64 {
        crate::pages::page_size_at(self.base)
    }

    fn file(&self) -> Option<Rc<OwnedFd>> {
        Some(self.file.clone())
    }

    fn mapping_lock(&self) -> io::Result<Rc<dyn MappingLock>> {
        Ok(Rc::new(FileMappingLock::of(&self.file)?))
    }

    fn borrowed(&self, offset: u64, size: u64) -> Option<Range<u64>> {
        self.at(offset, size);
        borrowed(&self.file, offset, size)
    }

    fn is_volatile(&self) -> bool {
        self.volatile
    }
}
