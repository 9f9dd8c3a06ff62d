//! Attributes and sizes, of paths and of descriptors.

use crate::convert::*;
use crate::mounted;
use client::{AttributeChanges, Attributes, Client, Error, File, Result, Space, Status, Timestamp, total};
use libc::{c_char, c_int, gid_t, mode_t, off_t, timespec, uid_t};

const NANOS_PER_SECOND: i64 = 1_000_000_000;
/// Bytes that `statvfs` counts in.
const SPACE_BLOCK_SIZE: u64 = 4096;

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

/// Attributes of what a path leads to.
///
/// # Safety
/// `path` is a NUL-terminated string; `place` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_stat(path: *const c_char, place: *mut libc::stat) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { store_stat(on_path(path, |client, path| client.stat(path)), place) })
}

/// Attributes of what a path names; of a symbolic link, its own.
///
/// # Safety
/// `path` is a NUL-terminated string; `place` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_lstat(path: *const c_char, place: *mut libc::stat) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { store_stat(on_path(path, |client, path| client.lstat(path)), place) })
}

/// Attributes of an open file.
///
/// # Safety
/// `place` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_fstat(descriptor: c_int, place: *mut libc::stat) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { store_stat(on_file(descriptor, |client, file| client.stat_file(file)), place) })
}

/// # Safety
/// `path` is a NUL-terminated string or NULL.
unsafe fn change_path(path: *const c_char, follow: bool, changes: &AttributeChanges) -> Result<Attributes> {
    // SAFETY: the caller promises it.
    unsafe { on_path(path, |client, path| client.set_attributes(path, follow, changes)) }
}

fn change_file(descriptor: c_int, changes: &AttributeChanges) -> Result<Attributes> {
    on_file(descriptor, |client, file| client.set_file_attributes(file, changes))
}

fn mode_change(mode: mode_t) -> AttributeChanges {
    AttributeChanges { mode: Some(mode & 0o7777), ..AttributeChanges::default() }
}

/// An id of all ones leaves that field as it is, as in chown(2).
fn owner_change(uid: uid_t, gid: gid_t) -> AttributeChanges {
    let chosen = |id: u32| (id != u32::MAX).then_some(id);
    AttributeChanges { uid: chosen(uid), gid: chosen(gid), ..AttributeChanges::default() }
}

/// # Safety
/// `times` is NULL or points to two elements.
unsafe fn time_change(times: *const timespec) -> Result<AttributeChanges> {
    if times.is_null() {
        return Ok(AttributeChanges { atime: Timestamp::Now, mtime: Timestamp::Now, ..AttributeChanges::default() });
    }
    // SAFETY: not null, and the caller promises the rest.
    let times = unsafe { std::slice::from_raw_parts(times, 2) };
    Ok(AttributeChanges {
        atime: timestamp_of(times[0])?,
        mtime: timestamp_of(times[1])?,
        ..AttributeChanges::default()
    })
}

fn timestamp_of(time: timespec) -> Result<Timestamp> {
    match time.tv_nsec {
        libc::UTIME_NOW => return Ok(Timestamp::Now),
        libc::UTIME_OMIT => return Ok(Timestamp::Keep),
        _ => {}
    }
    let out_of_range = || Error::new(Status::Invalid, "time stamp is out of range");
    if !(0..NANOS_PER_SECOND).contains(&time.tv_nsec) {
        return Err(out_of_range());
    }
    let nanoseconds = time.tv_sec.checked_mul(NANOS_PER_SECOND).and_then(|seconds| seconds.checked_add(time.tv_nsec));
    nanoseconds.map(Timestamp::At).ok_or_else(out_of_range)
}

/// Sets the permission bits.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_chmod(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { change_path(path, true, &mode_change(mode)) })
}

/// Sets the permission bits of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_fchmod(descriptor: c_int, mode: mode_t) -> c_int {
    status_of(change_file(descriptor, &mode_change(mode)))
}

/// Sets owner and group; -1 leaves one as it is.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { change_path(path, true, &owner_change(uid, gid)) })
}

/// Sets owner and group, of a symbolic link its own.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { change_path(path, false, &owner_change(uid, gid)) })
}

/// Sets owner and group of an open file.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_fchown(descriptor: c_int, uid: uid_t, gid: gid_t) -> c_int {
    status_of(change_file(descriptor, &owner_change(uid, gid)))
}

/// Sets the times of access and modification, in this order, with UTIME_NOW and UTIME_OMIT; NULL sets both to now. With
/// AT_SYMLINK_NOFOLLOW in `flags`, those of a symbolic link itself.
///
/// # Safety
/// `path` is a NUL-terminated string; `times` is NULL or points to two elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_utimens(path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
    if flags & !libc::AT_SYMLINK_NOFOLLOW != 0 {
        return status_of::<()>(Err(Error::new(Status::Invalid, "flags other than AT_SYMLINK_NOFOLLOW are not known")));
    }
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    // SAFETY: the caller promises it.
    status_of(unsafe { time_change(times).and_then(|changes| change_path(path, follow, &changes)) })
}

/// Sets the times of an open file, as `tabane_utimens` does.
///
/// # Safety
/// `times` is NULL or points to two elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_futimens(descriptor: c_int, times: *const timespec) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { time_change(times) }.and_then(|changes| change_file(descriptor, &changes)))
}

fn size_of_file(size: off_t) -> Result<u64> {
    u64::try_from(size).map_err(|_| Error::new(Status::Invalid, format!("file size {size} is negative")))
}

/// Cuts or extends a file.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_truncate(path: *const c_char, size: off_t) -> c_int {
    // SAFETY: the caller promises it.
    status_of(size_of_file(size).and_then(|size| unsafe { on_path(path, |client, path| client.truncate(path, size)) }))
}

/// Cuts or extends an open file.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_ftruncate(descriptor: c_int, size: off_t) -> c_int {
    let cut = |size| on_file(descriptor, |client, file| client.truncate_file(file, size));
    status_of(size_of_file(size).and_then(cut))
}

/// Space and counts of the whole file system; over a backing directory the space of that, as far as what is written
/// gets there. `path` has to exist.
///
/// # Safety
/// `path` is a NUL-terminated string; `place` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_statvfs(path: *const c_char, place: *mut libc::statvfs) -> c_int {
    let ask = |client: &Client, path: &[u8]| {
        client.stat(path)?;
        Ok((client.stat_file_system()?, client.cluster().chunk_size))
    };
    let store = |(servers, chunk_size): (Vec<_>, u32)| {
        if place.is_null() {
            return Err(Error::new(Status::Invalid, "place for the figures is a null pointer"));
        }
        let sum = total(&servers);
        // SAFETY: all fields are integers, for which zeros are a value.
        let mut figures: libc::statvfs = unsafe { std::mem::zeroed() };
        figures.f_bsize = chunk_size as _;
        figures.f_frsize = SPACE_BLOCK_SIZE;
        let Space { total, free, available } = Space::of(&sum);
        figures.f_blocks = total / SPACE_BLOCK_SIZE;
        figures.f_bfree = free / SPACE_BLOCK_SIZE;
        figures.f_bavail = available / SPACE_BLOCK_SIZE;
        figures.f_files = sum.inodes;
        figures.f_namemax = wire::limits::NAME_SIZE_MAX as u64;
        // SAFETY: not null, and the caller promises the rest.
        unsafe { place.write(figures) };
        Ok(())
    };
    // SAFETY: the caller promises it.
    status_of(unsafe { on_path(path, ask) }.and_then(store))
}
