//! Open files: descriptors, reading, writing.

use crate::convert::*;
use crate::layout::TabaneLayout;
use crate::{mounted, started};
use client::{Error, FileRange, Kind, OpenHow, Result, Status};
use libc::{c_char, c_int, c_void, iovec, mode_t, off_t, size_t, ssize_t};
use std::io::{IoSlice, IoSliceMut};

fn is_temporary(flags: c_int) -> bool {
    flags & libc::O_TMPFILE == libc::O_TMPFILE
}

fn how_of(flags: c_int, mode: mode_t) -> Result<OpenHow> {
    if flags & libc::O_PATH != 0 {
        return Err(Error::new(Status::NotSupported, "O_PATH is not supported"));
    }
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => return Err(Error::new(Status::Invalid, "the access mode is none of O_RDONLY, O_WRONLY and O_RDWR")),
    };
    Ok(OpenHow {
        read,
        write,
        create: flags & libc::O_CREAT != 0,
        exclusive: flags & libc::O_EXCL != 0,
        truncate: flags & libc::O_TRUNC != 0,
        append: flags & libc::O_APPEND != 0,
        no_follow: flags & libc::O_NOFOLLOW != 0,
        temporary: is_temporary(flags),
        mode,
        ..OpenHow::default()
    })
}

/// Opens a file as open(2) does. `mode` counts with O_CREAT and O_TMPFILE only, and is always passed. Returns a
/// descriptor.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { tabane_open_layout(path, flags, mode, std::ptr::null()) }
}

/// As `tabane_open`; a file that is made by it is spread over the servers as `layout` says: `chunk_size`, `width` and
/// `run`, each 0 for the usual, and `first`, -1 for the usual. `servers` and `is_hashed` don't count; with ring
/// placement `chunk_size` alone does. A `width` beyond the number of servers stands for all of them. NULL: all as
/// usual.
/// Errors: EINVAL for a chunk size out of range, or a server that isn't there.
///
/// # Safety
/// `path` is a NUL-terminated string; `layout` is NULL or may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_open_layout(
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    layout: *const TabaneLayout,
) -> c_int {
    let open = || {
        let mounted = mounted()?;
        // SAFETY: the caller promises it.
        let (path, layout) = unsafe { (bytes_of(path, "path")?, layout.as_ref()) };
        let mut how = how_of(flags, mode)?;
        if let Some(layout) = layout {
            layout.put_into(&mut how)?;
        }
        let file = mounted.client.open(path, &how)?;
        if flags & libc::O_DIRECTORY != 0 && !is_temporary(flags) && file.kind != Kind::Directory {
            let path = String::from_utf8_lossy(path);
            return Err(Error::new(Status::NotDirectory, format!("{path}: {}", Status::NotDirectory)));
        }
        mounted.insert(file)
    };
    number_of(open())
}

/// Makes a file, or cuts it to no bytes, and opens it for writing.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_creat(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { tabane_open(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
}

/// Closes a descriptor, after the calls that were started on it are done.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_close(descriptor: c_int) -> c_int {
    started::settle(Some(descriptor));
    status_of(mounted().and_then(|mounted| mounted.close(descriptor)))
}

/// Reads at the file position and moves it. Returns the bytes read, 0 at the end of the file.
///
/// # Safety
/// `buffer` points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_read(descriptor: c_int, buffer: *mut c_void, size: size_t) -> ssize_t {
    // SAFETY: the caller promises it.
    let place = unsafe { destination_of(buffer, size) };
    count_of(place.and_then(|place| mounted()?.read(descriptor, &mut [IoSliceMut::new(place)])))
}

/// Writes at the file position, or at the end with O_APPEND, and moves the position. Returns the bytes written.
///
/// # Safety
/// `buffer` points to `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_write(descriptor: c_int, buffer: *const c_void, size: size_t) -> ssize_t {
    // SAFETY: the caller promises it.
    let bytes = unsafe { source_of(buffer, size) };
    count_of(bytes.and_then(|bytes| mounted()?.write(descriptor, &[IoSlice::new(bytes)])))
}

/// Reads at an offset; the file position stays.
///
/// # Safety
/// `buffer` points to `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_pread(descriptor: c_int, buffer: *mut c_void, size: size_t, offset: off_t) -> ssize_t {
    // SAFETY: the caller promises it.
    let place = unsafe { destination_of(buffer, size) };
    count_of(place.and_then(|place| mounted()?.read_at(descriptor, &mut [IoSliceMut::new(place)], offset)))
}

/// Writes at an offset; the file position stays.
///
/// # Safety
/// `buffer` points to `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_pwrite(
    descriptor: c_int,
    buffer: *const c_void,
    size: size_t,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller promises it.
    let bytes = unsafe { source_of(buffer, size) };
    count_of(bytes.and_then(|bytes| mounted()?.write_at(descriptor, &[IoSlice::new(bytes)], offset)))
}

/// Reads into several buffers at the file position and moves it.
///
/// # Safety
/// `vector` points to `count` elements that name writable bytes, none overlapping another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_readv(descriptor: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller promises it.
    let places = unsafe { destinations_of(vector, count) };
    count_of(places.and_then(|mut places| mounted()?.read(descriptor, &mut places)))
}

/// Writes from several buffers at the file position, or at the end with O_APPEND, and moves the position.
///
/// # Safety
/// `vector` points to `count` elements that name readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_writev(descriptor: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller promises it.
    let places = unsafe { sources_of(vector, count) };
    count_of(places.and_then(|places| mounted()?.write(descriptor, &places)))
}

/// Reads into several buffers at an offset; the file position stays.
///
/// # Safety
/// `vector` points to `count` elements that name writable bytes, none overlapping another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_preadv(
    descriptor: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller promises it.
    let places = unsafe { destinations_of(vector, count) };
    count_of(places.and_then(|mut places| mounted()?.read_at(descriptor, &mut places, offset)))
}

/// Writes from several buffers at an offset; the file position stays.
///
/// # Safety
/// `vector` points to `count` elements that name readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_pwritev(
    descriptor: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller promises it.
    let places = unsafe { sources_of(vector, count) };
    count_of(places.and_then(|places| mounted()?.write_at(descriptor, &places, offset)))
}

/// A range of a file, in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TabaneRange {
    pub offset: off_t,
    pub size: size_t,
}

/// # Safety
/// `ranges` points to `count` elements.
pub unsafe fn ranges_of(ranges: *const TabaneRange, count: size_t) -> Result<Vec<FileRange>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if ranges.is_null() {
        return Err(Error::new(Status::Invalid, "ranges is NULL"));
    }
    // SAFETY: the caller promises it.
    let ranges = unsafe { std::slice::from_raw_parts(ranges, count) };
    let range_of = |range: &TabaneRange| match u64::try_from(range.offset) {
        Ok(offset) => Ok(FileRange { offset, size: range.size as u64 }),
        Err(_) => Err(Error::new(Status::Invalid, format!("offset {} is negative", range.offset))),
    };
    ranges.iter().map(range_of).collect()
}

/// Reads a list of ranges, in any order, into several buffers, in which the bytes of one range follow those of the one
/// before it; the file position stays. All together are one request to each server that holds a part. Returns the bytes
/// read of all ranges: what of them lies beyond the end of the file is missing, and its place in the buffers has no
/// meaning. Errors: EINVAL unless the buffers are as large as the ranges.
///
/// # Safety
/// `ranges` points to `range_count` elements, `vector` to `count` elements that name writable bytes, none overlapping
/// another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_preadv_list(
    descriptor: c_int,
    ranges: *const TabaneRange,
    range_count: size_t,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: the caller promises it.
    let (ranges, places) = unsafe { (ranges_of(ranges, range_count), destinations_of(vector, count)) };
    count_of(ranges.and_then(|ranges| mounted()?.read_list_at(descriptor, &ranges, &mut places?)))
}

/// Writes a list of ranges, in any order, from several buffers, in which the bytes of one range follow those of the one
/// before it; the file position stays. All together are one request to each server that gets a part. Where ranges
/// overlap, either may win. Returns the bytes written, counted from the beginning of the list. Errors: EINVAL unless
/// the buffers are as large as the ranges.
///
/// # Safety
/// `ranges` points to `range_count` elements, `vector` to `count` elements that name readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_pwritev_list(
    descriptor: c_int,
    ranges: *const TabaneRange,
    range_count: size_t,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: the caller promises it.
    let (ranges, places) = unsafe { (ranges_of(ranges, range_count), sources_of(vector, count)) };
    count_of(ranges.and_then(|ranges| mounted()?.write_list_at(descriptor, &ranges, &places?)))
}

/// Moves the file position: SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE. Returns the new one.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_lseek(descriptor: c_int, offset: off_t, whence: c_int) -> off_t {
    offset_of(whence_of(whence).and_then(|whence| mounted()?.seek(descriptor, offset, whence)))
}
