//! Opening files and block devices of this machine.

use super::abilities::FileFacts;
use super::queue::Piece;
use super::{DEPTH_MAX, DeviceOptions, Direct, DirectMode, OperationKind};
use crate::system::check;
use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// A file that was opened, and what is known of it.
pub(crate) struct OpenedFile {
    pub descriptor: OwnedFd,
    pub facts: FileFacts,
    pub direct: Direct,
}

/// Opens a file as the options say. Errors: they name the path.
pub(crate) fn open(path: &Path, options: &DeviceOptions) -> io::Result<OpenedFile> {
    try_open(path, options).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Errors: the depth is none.
pub(crate) fn check_depth(depth: u32) -> io::Result<()> {
    if (1..=DEPTH_MAX).contains(&depth) {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::InvalidInput, format!("the depth of a device is 1 to {DEPTH_MAX}, not {depth}")))
}

fn try_open(path: &Path, options: &DeviceOptions) -> io::Result<OpenedFile> {
    check_depth(options.depth)?;
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    let mut flags = libc::O_CLOEXEC | if options.writable { libc::O_RDWR } else { libc::O_RDONLY };
    if options.create.is_some() {
        flags |= libc::O_CREAT | libc::O_EXCL;
    } else if options.writable && std::fs::metadata(path)?.file_type().is_block_device() {
        // Of a block device this means: not while it is mounted, or another has it so.
        flags |= libc::O_EXCL;
    }
    let open = |flags: libc::c_int| {
        // SAFETY: the path is a C string; the descriptor is owned from here on.
        unsafe { check(libc::open(name.as_ptr(), flags, 0o600)).map(|raw| OwnedFd::from_raw_fd(raw)) }
    };
    let opened = match options.direct {
        DirectMode::Never => open(flags).map(|file| (file, Direct::Off)),
        _ => match open(flags | libc::O_DIRECT) {
            Ok(file) => Ok((file, Direct::Ignored)),
            // What was created before the flag was refused is there now.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                open(flags & !(libc::O_CREAT | libc::O_EXCL)).map(|file| (file, Direct::Refused))
            }
            Err(error) => Err(error),
        },
    };
    let (descriptor, tried) = opened?;
    if options.exclusive {
        // The kernel holds it until all that was handed over has ended, also for a process that is gone.
        // SAFETY: no pointers; the descriptor is ours.
        check(unsafe { libc::flock(descriptor.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) })?;
    }
    let result = finish(path, descriptor, tried, options);
    if result.is_err() && options.create.is_some() {
        // Nothing half made stays behind; the error that matters is the first one.
        let _ = std::fs::remove_file(path);
    }
    result
}

fn finish(path: &Path, descriptor: OwnedFd, tried: Direct, options: &DeviceOptions) -> io::Result<OpenedFile> {
    if let Some(size) = options.create {
        let size = libc::off_t::try_from(size).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
        // SAFETY: no pointers.
        match unsafe { libc::posix_fallocate(descriptor.as_raw_fd(), 0, size) } {
            0 => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        sync_directory(path)?;
    }
    let facts = FileFacts::of(descriptor.as_fd())?;
    let direct = if tried == Direct::Ignored { facts.direct() } else { tried };
    if tried != direct && direct == Direct::Refused {
        // The kernel took the flag, and would refuse each operation.
        // SAFETY: no pointers; the descriptor is ours.
        unsafe {
            let flags = check(libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFL))?;
            check(libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFL, flags & !libc::O_DIRECT))?;
        }
    }
    if options.direct == DirectMode::Required && !matches!(direct, Direct::Yes { .. }) {
        return Err(io::Error::new(ErrorKind::Unsupported, "its file system has no direct I/O"));
    }
    Ok(OpenedFile { descriptor, facts, direct })
}

/// Makes the name of a new file durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(parent)?.sync_all()
}

/// Reads, writes or flushes at once. A count, or a negated error number.
pub(crate) fn move_now(file: BorrowedFd<'_>, piece: &Piece) -> i32 {
    let (descriptor, size, offset) = (file.as_raw_fd(), piece.size as usize, piece.offset as libc::off_t);
    // SAFETY: the piece lies within memory that the caller holds.
    let result = unsafe {
        match piece.kind {
            OperationKind::Read => libc::pread(descriptor, piece.address.cast(), size, offset),
            OperationKind::Flush => libc::fdatasync(descriptor) as libc::ssize_t,
            _ => libc::pwrite(descriptor, piece.address.cast(), size, offset),
        }
    };
    if result < 0 { -errno() } else { result as i32 }
}

/// Gives up a range of a file at once. Zero, or a negated error number.
pub(crate) fn discard_now(file: BorrowedFd<'_>, piece: &Piece) -> i32 {
    let (offset, size) = (piece.offset as libc::off_t, piece.size as libc::off_t);
    // SAFETY: no pointers.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), DISCARD_MODE, offset, size) };
    if result < 0 { -errno() } else { 0 }
}

/// The mode of fallocate(2) by which a range is given up, on files and block devices alike.
pub(crate) const DISCARD_MODE: libc::c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
