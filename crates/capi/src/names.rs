//! Names: making, removing, linking.

use crate::convert::*;
use crate::mounted;
use client::{Client, Result};
use libc::{c_char, c_int, c_uint, dev_t, mode_t, size_t, ssize_t};

/// # Safety
/// `path` is a NUL-terminated string or NULL.
unsafe fn on_path<R>(path: *const c_char, operation: impl FnOnce(&Client, &[u8]) -> Result<R>) -> Result<R> {
    let mounted = mounted()?;
    // SAFETY: the caller promises it.
    operation(&mounted.client, unsafe { bytes_of(path, "path") }?)
}

/// Makes a directory.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_mkdir(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { on_path(path, |client, path| client.mkdir(path, mode)) })
}

/// Removes an empty directory.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_rmdir(path: *const c_char) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { on_path(path, |client, path| client.rmdir(path)) })
}

/// Removes a file or a symbolic link.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_unlink(path: *const c_char) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { on_path(path, |client, path| client.unlink(path)) })
}

/// Makes a symbolic link at `path` that leads to `target`.
///
/// # Safety
/// Both are NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_symlink(target: *const c_char, path: *const c_char) -> c_int {
    // SAFETY: the caller promises it.
    let target = unsafe { bytes_of(target, "target of the link") };
    // SAFETY: the caller promises it.
    status_of(target.and_then(|target| unsafe { on_path(path, |client, path| client.symlink(target, path)) }))
}

/// Makes a pipe, socket or device, as mknod(2): the type in `mode`, the number of a device in `device`, which takes the
/// superuser. It can be opened through a mount alone (else ENXIO).
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
    let made = node_kind_of(mode).and_then(|kind| {
        let device = if kind.is_device() { device_of(device)? } else { 0 };
        // SAFETY: the caller promises it.
        unsafe { on_path(path, |client, path| client.make_node(path, kind, mode, device)) }
    });
    status_of(made)
}

/// Makes `to` one more name of the file or symbolic link `from`, which is not followed.
///
/// # Safety
/// Both are NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_link(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller promises it.
    let to = unsafe { bytes_of(to, "new path") };
    // SAFETY: the caller promises it.
    status_of(to.and_then(|to| unsafe { on_path(from, |client, from| client.link(from, to)) }))
}

/// Gives an open file a name, as linkat(2) does with AT_EMPTY_PATH: its first one if it was opened with O_TMPFILE, else
/// one more. A file without a name that had one, or that was opened with O_TMPFILE and O_EXCL, fails with ENOENT.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_link_open(descriptor: c_int, path: *const c_char) -> c_int {
    let link = |client: &Client, path: &[u8]| client.link_open(&mounted()?.get(descriptor)?.file, path);
    // SAFETY: the caller promises it.
    status_of(unsafe { on_path(path, link) })
}

/// Renames a file, symbolic link or directory; what `to` named is replaced, if it is no directory or an empty one.
///
/// # Safety
/// Both are NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { tabane_rename2(from, to, 0) }
}

/// As `tabane_rename`. `flags` are those of renameat2: 0, RENAME_NOREPLACE (1) or RENAME_EXCHANGE (2).
///
/// # Safety
/// Both are NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_rename2(from: *const c_char, to: *const c_char, flags: c_uint) -> c_int {
    // SAFETY: the caller promises it.
    let to = unsafe { bytes_of(to, "new path") };
    // SAFETY: the caller promises it.
    status_of(to.and_then(|to| unsafe { on_path(from, |client, from| client.rename(from, to, flags)) }))
}

/// Stores the target of a symbolic link, cut to `size` bytes and without a NUL at its end. Returns the bytes stored.
///
/// # Safety
/// `path` is a NUL-terminated string; `buffer` points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_readlink(path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t {
    // SAFETY: the caller promises it.
    let read = unsafe { on_path(path, |client, path| client.readlink(path)) };
    let store = |target: Vec<u8>| {
        // SAFETY: the caller promises it.
        let place = unsafe { destination_of(buffer.cast(), size) }?;
        let count = target.len().min(size);
        place[..count].copy_from_slice(&target[..count]);
        Ok(count)
    };
    count_of(read.and_then(store))
}
