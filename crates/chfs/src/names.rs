//! Names, attributes and listings of the CHFS interface.

use crate::convert::*;
use crate::listing::each_entry;
use crate::{mounted, path_of};
use client::{Client, Error, Result, Status};
use libc::{c_char, c_int, c_void, mode_t, off_t, size_t};

/// Gets one entry of a listing: the caller's buffer, the name, its attributes, and 0. Other than 0 ends the listing.
pub type Filler = Option<unsafe extern "C" fn(*mut c_void, *const c_char, *const libc::stat, off_t) -> c_int>;

/// # Safety
/// `path` is a NUL-terminated string or NULL.
unsafe fn on_path<R>(path: *const c_char, operation: impl FnOnce(&Client, &[u8]) -> Result<R>) -> Result<R> {
    let mounted = mounted()?;
    // SAFETY: the caller promises it.
    operation(&mounted.client, unsafe { path_of(path) }?)
}

/// Cuts or extends a file.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_truncate(path: *const c_char, len: off_t) -> c_int {
    let size = u64::try_from(len).map_err(|_| Error::new(Status::Invalid, format!("file size {len} is negative")));
    // SAFETY: the caller promises it.
    status_of(size.and_then(|size| unsafe { on_path(path, |client, path| client.truncate(path, size)) }))
}

/// Removes a file or a symbolic link.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_unlink(path: *const c_char) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { on_path(path, |client, path| client.unlink(path)) })
}

/// Makes a directory.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_mkdir(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { on_path(path, |client, path| client.mkdir(path, mode)) })
}

/// Removes an empty directory.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_rmdir(path: *const c_char) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { on_path(path, |client, path| client.rmdir(path)) })
}

/// Attributes of what a path names; of a symbolic link, its own.
///
/// # Safety
/// `path` is a NUL-terminated string; `st` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_stat(path: *const c_char, st: *mut libc::stat) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { store_stat(on_path(path, |client, path| client.lstat(path)), st) })
}

/// Lists a directory; all servers are asked at once. `.` and `..` are not listed.
///
/// # Safety
/// `path` is a NUL-terminated string; `filler` is NULL or may be called with `buf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_readdir(path: *const c_char, buf: *mut c_void, filler: Filler) -> c_int {
    let list = || {
        let mounted = mounted()?;
        // SAFETY: the caller promises it.
        let stream = mounted.client.open_directory(unsafe { path_of(path) }?, true)?;
        let Some(filler) = filler else { return Ok(()) };
        // SAFETY: the caller promises that the filler may be called.
        each_entry(&mounted, stream, &mut |name, stat| unsafe { filler(buf, name, stat, 0) } == 0)
    };
    status_of(list())
}

/// Lists the share of server `index` of a directory, from 0 to `chfs_size() - 1`. A server that there is not has no
/// share.
///
/// # Safety
/// `path` is a NUL-terminated string; `filler` is NULL or may be called with `buf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_readdir_index(
    path: *const c_char,
    index: c_int,
    buf: *mut c_void,
    filler: Filler,
) -> c_int {
    let list = || {
        let mounted = mounted()?;
        // SAFETY: the caller promises it.
        let path = unsafe { path_of(path) }?;
        let server = u32::try_from(index);
        let server = server.map_err(|_| Error::new(Status::Invalid, format!("server index {index} is negative")))?;
        let Some(filler) = filler.filter(|_| server < mounted.client.server_count()) else { return Ok(()) };
        let stream = mounted.client.open_directory_server(path, server, true)?;
        // SAFETY: the caller promises that the filler may be called.
        each_entry(&mounted, stream, &mut |name, stat| unsafe { filler(buf, name, stat, 0) } == 0)
    };
    status_of(list())
}

/// Makes a symbolic link at `path` that leads to `target`.
///
/// # Safety
/// Both are NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_symlink(target: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: the caller promises it.
    let target = unsafe { bytes_of(target, "target of the link") };
    // SAFETY: the caller promises it.
    status_of(target.and_then(|target| unsafe { on_path(path, |client, path| client.symlink(target, path)) }))
}

/// Stores the target of a symbolic link, cut to `size` bytes, with a NUL behind it where there is room. Returns its
/// size without the NUL.
///
/// # Safety
/// `path` is a NUL-terminated string; `buf` points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn chfs_readlink(path: *const c_char, buf: *mut c_char, size: size_t) -> c_int {
    // SAFETY: the caller promises it.
    let read = unsafe { on_path(path, |client, path| client.readlink(path)) };
    let store = |target: Vec<u8>| {
        // SAFETY: the caller promises it.
        let place = unsafe { destination_of(buf.cast(), size) }?;
        let count = target.len().min(size);
        place[..count].copy_from_slice(&target[..count]);
        if let Some(end) = place.get_mut(count) {
            *end = 0;
        }
        Ok(count as i32)
    };
    number_of(read.and_then(store))
}
