//! Open files of the CHFS interface.

use crate::convert::*;
use crate::{mounted, path_of, settings};
use client::{Error, OpenHow, Result, Status};
use libc::{c_char, c_int, c_void, mode_t, off_t, size_t, ssize_t};
use std::io::{IoSlice, IoSliceMut};

/// # Safety
/// `path` is a NUL-terminated string.
unsafe fn open(path: *const c_char, flags: i32, how: OpenHow) -> Result<c_int> {
    let mounted = mounted()?;
    let how = OpenHow {
        read: true,
        write: true,
        exclusive: how.create && flags & libc::O_EXCL != 0,
        truncate: flags & libc::O_TRUNC != 0,
        append: flags & libc::O_APPEND != 0,
        ..how
    };
    // SAFETY: the caller promises it.
    let file = mounted.client.open_unchecked(unsafe { path_of(path) }?, &how)?;
    mounted.insert(file)
}

/// Makes a file, or opens it as it is when it is there already, with the chunk size that was set.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_create(path: *const c_char, flags: i32, mode: mode_t) -> c_int {
    let how = OpenHow { create: true, mode, chunk_size: settings::chunk_size(), ..OpenHow::default() };
    // SAFETY: the caller promises it.
    number_of(unsafe { open(path, flags, how) })
}

/// As `chfs_create`, with a chunk size of its own, in bytes.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_create_chunk_size(
    path: *const c_char,
    flags: i32,
    mode: mode_t,
    chunk_size: c_int,
) -> c_int {
    let chunk_size = u32::try_from(chunk_size).ok().filter(|size| *size > 0);
    let result = match chunk_size {
        Some(chunk_size) => {
            let how = OpenHow { create: true, mode, chunk_size, ..OpenHow::default() };
            // SAFETY: the caller promises it.
            unsafe { open(path, flags, how) }
        }
        None => Err(Error::new(Status::Invalid, "the chunk size is not positive")),
    };
    number_of(result)
}

/// Opens a file that is there.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_open(path: *const c_char, flags: i32) -> c_int {
    // SAFETY: the caller promises it.
    number_of(unsafe { open(path, flags, OpenHow::default()) })
}

/// Closes a descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_close(fd: c_int) -> c_int {
    status_of(mounted().and_then(|mounted| mounted.close(fd)))
}

/// Writes at an offset.
///
/// # Safety
/// `buf` points to `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_pwrite(fd: c_int, buf: *const c_void, size: size_t, offset: off_t) -> ssize_t {
    // SAFETY: the caller promises it.
    let bytes = unsafe { source_of(buf, size) };
    count_of(bytes.and_then(|bytes| mounted()?.write_at(fd, &[IoSlice::new(bytes)], offset)))
}

/// Writes at the file position, or at the end with O_APPEND, and moves the position.
///
/// # Safety
/// `buf` points to `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_write(fd: c_int, buf: *const c_void, size: size_t) -> ssize_t {
    // SAFETY: the caller promises it.
    let bytes = unsafe { source_of(buf, size) };
    count_of(bytes.and_then(|bytes| mounted()?.write(fd, &[IoSlice::new(bytes)])))
}

/// Reads at an offset.
///
/// # Safety
/// `buf` points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_pread(fd: c_int, buf: *mut c_void, size: size_t, offset: off_t) -> ssize_t {
    // SAFETY: the caller promises it.
    let place = unsafe { destination_of(buf, size) };
    count_of(place.and_then(|place| mounted()?.read_at(fd, &mut [IoSliceMut::new(place)], offset)))
}

/// Reads at the file position and moves it.
///
/// # Safety
/// `buf` points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_read(fd: c_int, buf: *mut c_void, size: size_t) -> ssize_t {
    // SAFETY: the caller promises it.
    let place = unsafe { destination_of(buf, size) };
    count_of(place.and_then(|place| mounted()?.read(fd, &mut [IoSliceMut::new(place)])))
}

/// Moves the file position: SEEK_SET, SEEK_CUR or SEEK_END. Returns the new one.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_seek(fd: c_int, off: off_t, whence: c_int) -> off_t {
    offset_of(whence_of(whence).and_then(|whence| mounted()?.seek(fd, off, whence)))
}

/// As `tabane_fsync`.
#[unsafe(no_mangle)]
pub extern "C" fn chfs_fsync(fd: c_int) -> c_int {
    status_of(mounted().and_then(|mounted| mounted.synchronise(fd)))
}
