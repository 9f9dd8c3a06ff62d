//! What a device, its file system and this process can, asked once when the device is opened.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;

/// Alignment where the kernel does not tell one (before 6.1): what every disk takes.
const ALIGNMENT_DEFAULT: u64 = 4096;

/// Whether the page cache is passed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// It is, with these alignments of memory and of offsets and sizes.
    Yes {
        /// Of memory, in bytes.
        memory: u64,
        /// Of offsets and sizes, in bytes.
        offset: u64,
    },
    /// The file system takes the flag and ignores it: bytes are in memory anyway.
    Ignored,
    /// The file system can't.
    Refused,
    /// Nobody asked for it.
    Off,
}

/// What a device can do, and what stands behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// `io_uring`, `aio` or `sim`.
    pub interface: &'static str,
    /// Whether it is a block device, and not a file.
    pub is_block_device: bool,
    /// Bytes, when it was opened.
    pub size: u64,
    /// Whether the page cache is passed by.
    pub direct: Direct,
    /// Whether everything is gone with power (tmpfs).
    pub is_volatile: bool,
    /// Whether the driver knows the file, so that it need not be looked up for each operation.
    pub is_file_registered: bool,
    /// Bytes of memory that this process may lock, and so register; nothing where there is no limit.
    pub locked_memory_max: Option<u64>,
    /// Whether the kernel could poll the device for completions (IOPOLL).
    pub can_poll: bool,
    /// Requests that the kernel queues for the device, where it tells.
    pub requests_max: Option<u64>,
    /// Whether the medium has a cache that a flush empties, where the kernel tells.
    pub has_write_cache: Option<bool>,
}

impl Abilities {
    /// What offsets, sizes and memory of reads and writes have to be multiples of.
    pub fn alignment(&self) -> u64 {
        match self.direct {
            Direct::Yes { memory, offset } => memory.max(offset),
            _ => 1,
        }
    }
}

impl fmt::Display for Abilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_block_device { "block device" } else { "file" };
        write!(f, "{kind} of {} bytes over {}", self.size, self.interface)?;
        match self.direct {
            Direct::Yes { memory, offset } => write!(f, ", direct (memory by {memory}, offsets by {offset} bytes)")?,
            Direct::Ignored => f.write_str(", direct I/O is ignored by the file system, in memory")?,
            Direct::Refused => f.write_str(", through the page cache: the file system has no direct I/O")?,
            Direct::Off => f.write_str(", through the page cache")?,
        }
        f.write_str(if self.is_volatile { ", gone with power" } else { "" })?;
        f.write_str(if self.is_file_registered { ", registered" } else { ", not registered" })?;
        match self.locked_memory_max {
            Some(bytes) => write!(f, ", may lock {bytes} bytes")?,
            None => f.write_str(", may lock any memory")?,
        }
        f.write_str(if self.can_poll { ", can be polled" } else { ", can't be polled" })?;
        if let Some(requests) = self.requests_max {
            write!(f, ", {requests} requests")?;
        }
        match self.has_write_cache {
            Some(true) => f.write_str(", write cache"),
            Some(false) => f.write_str(", no write cache"),
            None => Ok(()),
        }
    }
}

/// What the kernel says of an open file.
pub(crate) struct FileFacts {
    pub is_block_device: bool,
    pub size: u64,
    /// Memory and offset; zeros where there is no direct I/O, nothing where the kernel does not tell.
    pub alignments: Option<(u64, u64)>,
    pub is_volatile: bool,
    queue: Option<PathBuf>,
}

impl FileFacts {
    /// Errors: whatever the kernel says of the descriptor.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<FileFacts> {
        let mut status = MaybeUninit::<libc::statx>::zeroed();
        let mask = libc::STATX_BASIC_STATS | libc::STATX_DIOALIGN;
        // SAFETY: writes the status, which is a valid value even where it stays zeroed; the path is empty.
        let status = unsafe {
            let path = c"".as_ptr();
            let result = libc::statx(file.as_raw_fd(), path, libc::AT_EMPTY_PATH, mask, status.as_mut_ptr());
            crate::system::check(result)?;
            status.assume_init()
        };
        let mut system = MaybeUninit::<libc::statfs>::zeroed();
        // SAFETY: as above.
        let system = unsafe {
            crate::system::check(libc::fstatfs(file.as_raw_fd(), system.as_mut_ptr()))?;
            system.assume_init()
        };
        let kind = u32::from(status.stx_mode) & libc::S_IFMT;
        let is_block_device = kind == libc::S_IFBLK;
        if !is_block_device && kind != libc::S_IFREG {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "is neither a file nor a block device"));
        }
        // SAFETY: no pointers. Of a block device `stat` tells no size; the end is where seeking ends.
        let end = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) };
        let size = u64::try_from(end).map_err(|_| io::Error::last_os_error())?;
        let alignments = (status.stx_mask & libc::STATX_DIOALIGN != 0)
            .then(|| (u64::from(status.stx_dio_mem_align), u64::from(status.stx_dio_offset_align)));
        let (major, minor) = match is_block_device {
            true => (status.stx_rdev_major, status.stx_rdev_minor),
            false => (status.stx_dev_major, status.stx_dev_minor),
        };
        // A device's node in /dev lies in memory, the device does not.
        let is_volatile = !is_block_device && crate::storage::is_volatile(&system);
        Ok(FileFacts { is_block_device, size, alignments, is_volatile, queue: queue_of(major, minor) })
    }

    /// What the flag O_DIRECT, which the kernel has taken, means for the file.
    pub fn direct(&self) -> Direct {
        match self.alignments {
            Some((0, _) | (_, 0)) => Direct::Refused,
            Some((memory, offset)) => Direct::Yes { memory, offset },
            None if self.is_volatile => Direct::Ignored,
            None => Direct::Yes { memory: ALIGNMENT_DEFAULT, offset: ALIGNMENT_DEFAULT },
        }
    }

    pub fn abilities(&self, interface: &'static str, direct: Direct, is_file_registered: bool) -> Abilities {
        Abilities {
            interface,
            is_block_device: self.is_block_device,
            size: self.size,
            direct,
            is_volatile: self.is_volatile,
            is_file_registered,
            locked_memory_max: locked_memory_max(),
            can_poll: self.attribute("io_poll").is_some_and(|text| text == "1"),
            requests_max: self.attribute("nr_requests").and_then(|text| text.parse().ok()),
            has_write_cache: self.attribute("write_cache").map(|text| text == "write back"),
        }
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.queue.as_ref()?.join(name)).ok()?;
        Some(text.trim().to_owned())
    }
}

/// Where the kernel tells about the queue of a device; that of a partition is its disk's.
fn queue_of(major: u32, minor: u32) -> Option<PathBuf> {
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    [device.join("queue"), device.join("../queue")].into_iter().find(|queue| queue.is_dir())
}

/// Bytes of memory that this process may lock; nothing where there is no limit.
pub fn locked_memory_max() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes a local.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
