//! Extended attributes.

use crate::convert::*;
use crate::mounted;
use client::{Client, Error, File, Result, Status};
use libc::{c_char, c_int, c_void, size_t, ssize_t};

/// # Safety
/// `path` is a NUL-terminated string or NULL.
unsafe fn on_path<R>(path: *const c_char, operation: impl FnOnce(&Client, &[u8]) -> Result<R>) -> Result<R> {
    let mounted = mounted()?;
    // SAFETY: the caller promises it.
    operation(&mounted.client, unsafe { bytes_of(path, "path") }?)
}

fn on_file<R>(descriptor: c_int, operation: impl FnOnce(&Client, &File) -> Result<R>) -> Result<R> {
    let mounted = mounted()?;
    let open = mounted.get(descriptor)?;
    operation(&mounted.client, &open.file)
}

/// Hands a value or list over; with `size` 0 only its size is told.
///
/// # Safety
/// `place` points to `size` writable bytes.
pub unsafe fn hand_over(bytes: Result<Vec<u8>>, place: *mut c_void, size: size_t) -> Result<usize> {
    let bytes = bytes?;
    if size == 0 {
        return Ok(bytes.len());
    }
    // SAFETY: the caller promises it.
    let place = unsafe { destination_of(place, size) }?;
    let Some(place) = place.get_mut(..bytes.len()) else {
        let words = format!("{} bytes do not fit into a buffer of {size}", bytes.len());
        return Err(Error::new(Status::OutOfRange, words));
    };
    place.copy_from_slice(&bytes);
    Ok(bytes.len())
}

fn flags_of(flags: c_int) -> Result<u32> {
    match flags {
        0 => Ok(0),
        libc::XATTR_CREATE => Ok(client::EXTENDED_CREATE),
        libc::XATTR_REPLACE => Ok(client::EXTENDED_REPLACE),
        _ => Err(Error::new(Status::Invalid, "flags are XATTR_CREATE, XATTR_REPLACE or none")),
    }
}

/// # Safety
/// `path` and `name` are NUL-terminated strings; `value` points to `size` writable bytes.
unsafe fn get(path: *const c_char, follow: bool, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t {
    // SAFETY: the caller promises it.
    let name = unsafe { bytes_of(name, "name") };
    let get = |name| {
        // SAFETY: the caller promises it.
        let found = unsafe { on_path(path, |client, path| client.get_extended(path, follow, name)) };
        // SAFETY: the caller promises it.
        unsafe { hand_over(found, value, size) }
    };
    count_of(name.and_then(get))
}

/// The value of an extended attribute of what a path leads to. Returns its size; a `size` of 0 asks for that alone.
///
/// # Safety
/// `path` and `name` are NUL-terminated strings; `value` points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_getxattr(
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: size_t,
) -> ssize_t {
    // SAFETY: the caller promises it.
    unsafe { get(path, true, name, value, size) }
}

/// As `tabane_getxattr`; of a symbolic link, its own.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_lgetxattr(
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: size_t,
) -> ssize_t {
    // SAFETY: the caller promises it.
    unsafe { get(path, false, name, value, size) }
}

/// As `tabane_getxattr`, of an open file.
///
/// # Safety
/// `name` is a NUL-terminated string; `value` points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_fgetxattr(
    descriptor: c_int,
    name: *const c_char,
    value: *mut c_void,
    size: size_t,
) -> ssize_t {
    // SAFETY: the caller promises it.
    let name = unsafe { bytes_of(name, "name") };
    let get = |name| on_file(descriptor, |client, file| client.get_file_extended(file, name));
    // SAFETY: the caller promises it.
    count_of(unsafe { hand_over(name.and_then(get), value, size) })
}

/// # Safety
/// `path` and `name` are NUL-terminated strings; `value` points to `size` readable bytes.
unsafe fn set(
    path: *const c_char,
    follow: bool,
    name: *const c_char,
    value: *const c_void,
    size: size_t,
    flags: c_int,
) -> c_int {
    let set = || {
        // SAFETY: the caller promises it.
        let (name, value) = unsafe { (bytes_of(name, "name")?, source_of(value, size)?) };
        let flags = flags_of(flags)?;
        // SAFETY: the caller promises it.
        unsafe { on_path(path, |client, path| client.set_extended(path, follow, name, value, flags)) }
    };
    status_of(set())
}

/// Sets an extended attribute of what a path leads to. `flags`: XATTR_CREATE, XATTR_REPLACE or 0.
///
/// # Safety
/// `path` and `name` are NUL-terminated strings; `value` points to `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_setxattr(
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: size_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { set(path, true, name, value, size, flags) }
}

/// As `tabane_setxattr`; of a symbolic link, its own.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_lsetxattr(
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: size_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { set(path, false, name, value, size, flags) }
}

/// As `tabane_setxattr`, of an open file.
///
/// # Safety
/// `name` is a NUL-terminated string; `value` points to `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_fsetxattr(
    descriptor: c_int,
    name: *const c_char,
    value: *const c_void,
    size: size_t,
    flags: c_int,
) -> c_int {
    let set = || {
        // SAFETY: the caller promises it.
        let (name, value) = unsafe { (bytes_of(name, "name")?, source_of(value, size)?) };
        let flags = flags_of(flags)?;
        on_file(descriptor, |client, file| client.set_file_extended(file, name, value, flags))
    };
    status_of(set())
}

/// The names of the extended attributes of what a path leads to, each with a NUL behind it. Returns the size of the
/// list; a `size` of 0 asks for that alone.
///
/// # Safety
/// `path` is a NUL-terminated string; `list` points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_listxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t {
    // SAFETY: the caller promises it.
    count_of(unsafe { hand_over(on_path(path, |client, path| client.list_extended(path, true)), list.cast(), size) })
}

/// As `tabane_listxattr`; of a symbolic link, its own.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_llistxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t {
    // SAFETY: the caller promises it.
    count_of(unsafe { hand_over(on_path(path, |client, path| client.list_extended(path, false)), list.cast(), size) })
}

/// As `tabane_listxattr`, of an open file.
///
/// # Safety
/// `list` points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_flistxattr(descriptor: c_int, list: *mut c_char, size: size_t) -> ssize_t {
    let names = on_file(descriptor, |client, file| client.list_file_extended(file));
    // SAFETY: the caller promises it.
    count_of(unsafe { hand_over(names, list.cast(), size) })
}

/// # Safety
/// `path` and `name` are NUL-terminated strings.
unsafe fn remove(path: *const c_char, follow: bool, name: *const c_char) -> c_int {
    // SAFETY: the caller promises it.
    let name = unsafe { bytes_of(name, "name") };
    // SAFETY: the caller promises it.
    let remove = |name| unsafe { on_path(path, |client, path| client.remove_extended(path, follow, name)) };
    status_of(name.and_then(remove))
}

/// Removes an extended attribute of what a path leads to.
///
/// # Safety
/// `path` and `name` are NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_removexattr(path: *const c_char, name: *const c_char) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { remove(path, true, name) }
}

/// As `tabane_removexattr`; of a symbolic link, its own.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_lremovexattr(path: *const c_char, name: *const c_char) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { remove(path, false, name) }
}

/// As `tabane_removexattr`, of an open file.
///
/// # Safety
/// `name` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_fremovexattr(descriptor: c_int, name: *const c_char) -> c_int {
    // SAFETY: the caller promises it.
    let name = unsafe { bytes_of(name, "name") };
    status_of(name.and_then(|name| on_file(descriptor, |client, file| client.remove_file_extended(file, name))))
}
