//! Between C and Rust: pointers, errno, `struct stat`. Used by libtabane and, by path, by libchfs.

use client::descriptors::Whence;
use client::{Attributes, Error, Kind, Result, Status};
use libc::{c_char, c_int, c_uchar, c_void, iovec, off_t, size_t, ssize_t};
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::io::{IoSlice, IoSliceMut};

const NANOS_PER_SECOND: i64 = 1_000_000_000;
/// Bytes that `st_blocks` counts in.
const STAT_BLOCK_SIZE: u64 = 512;

thread_local! {
    static LAST_MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

/// Sets errno and this thread's message.
pub fn note_error(error: &Error) {
    let text: Vec<u8> = error.message.bytes().filter(|byte| *byte != 0).collect();
    LAST_MESSAGE.with_borrow_mut(|message| *message = CString::new(text).unwrap_or_default());
    set_errno(error.errno());
}

/// The kind of an entry as `d_type` tells it.
pub fn type_of(kind: Kind) -> c_uchar {
    match kind {
        Kind::File => libc::DT_REG,
        Kind::Directory => libc::DT_DIR,
        Kind::Symlink => libc::DT_LNK,
        Kind::Fifo => libc::DT_FIFO,
        Kind::Socket => libc::DT_SOCK,
        Kind::CharacterDevice => libc::DT_CHR,
        Kind::BlockDevice => libc::DT_BLK,
    }
}

/// This thread's errno.
pub fn errno() -> c_int {
    // SAFETY: the C library gives every thread a place for errno that is always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets errno alone.
pub fn set_errno(errno: c_int) {
    // SAFETY: the C library gives every thread a place for errno that is always valid.
    unsafe { *libc::__errno_location() = errno };
}

/// This thread's message, valid until its next failure.
pub fn last_message() -> *const c_char {
    LAST_MESSAGE.with_borrow(|message| message.as_ptr())
}

/// 0, or -1 with errno set.
pub fn status_of<T>(result: Result<T>) -> c_int {
    match result {
        Ok(_) => 0,
        Err(error) => {
            note_error(&error);
            -1
        }
    }
}

/// The number, or -1 with errno set.
pub fn number_of(result: Result<i32>) -> c_int {
    result.unwrap_or_else(|error| {
        note_error(&error);
        -1
    })
}

/// The count of bytes, or -1 with errno set.
pub fn count_of(result: Result<usize>) -> ssize_t {
    match result {
        Ok(count) => count as ssize_t,
        Err(error) => {
            note_error(&error);
            -1
        }
    }
}

/// The offset, or -1 with errno set.
pub fn offset_of(result: Result<i64>) -> off_t {
    result.unwrap_or_else(|error| {
        note_error(&error);
        -1
    })
}

fn null_pointer(what: &str) -> Error {
    Error::new(Status::Invalid, format!("{what} is a null pointer"))
}

/// A string argument. Errors: `Invalid` when it is null.
///
/// # Safety
/// `text` is null or points to a NUL-terminated string that outlives the use of the result.
pub unsafe fn bytes_of<'a>(text: *const c_char, what: &str) -> Result<&'a [u8]> {
    if text.is_null() {
        return Err(null_pointer(what));
    }
    // SAFETY: not null, and the caller promises the rest.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Memory to write from. Errors: `Invalid` when it is null and not empty, or larger than can be.
///
/// # Safety
/// `buffer` points to `size` readable bytes that stay unchanged while the result is used.
pub unsafe fn source_of<'a>(buffer: *const c_void, size: size_t) -> Result<&'a [u8]> {
    check_buffer(buffer, size)?;
    if size == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, not too large, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(buffer.cast(), size) })
}

/// Memory to read into. Errors: as `source_of`.
///
/// # Safety
/// `buffer` points to `size` writable bytes that nobody else uses while the result is used.
pub unsafe fn destination_of<'a>(buffer: *mut c_void, size: size_t) -> Result<&'a mut [u8]> {
    check_buffer(buffer, size)?;
    if size == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not null, not too large, and the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), size) })
}

fn check_buffer(buffer: *const c_void, size: size_t) -> Result<()> {
    if buffer.is_null() && size > 0 {
        return Err(null_pointer("buffer"));
    }
    if size > isize::MAX as usize {
        return Err(Error::new(Status::Invalid, "buffer is larger than the address space"));
    }
    Ok(())
}

/// Most elements of an `iovec` array, as in Linux (IOV_MAX).
const VECTOR_COUNT_MAX: c_int = 1024;

/// # Safety
/// `vector` points to `count` initialised elements.
unsafe fn vector_of<'a>(vector: *const iovec, count: c_int) -> Result<&'a [iovec]> {
    if !(0..=VECTOR_COUNT_MAX).contains(&count) {
        return Err(Error::new(
            Status::Invalid,
            format!("number of buffers {count} is not between 0 and {VECTOR_COUNT_MAX}"),
        ));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if vector.is_null() {
        return Err(null_pointer("vector of buffers"));
    }
    // SAFETY: not null, and the caller promises the rest.
    let elements = unsafe { std::slice::from_raw_parts(vector, count as usize) };
    let total = elements.iter().try_fold(0usize, |sum, element| sum.checked_add(element.iov_len));
    if total.is_none_or(|total| total > isize::MAX as usize) {
        return Err(Error::new(Status::Invalid, "buffers are larger than the address space"));
    }
    Ok(elements)
}

/// Several buffers to write from.
///
/// # Safety
/// `vector` points to `count` elements, each as `source_of` wants it.
pub unsafe fn sources_of<'a>(vector: *const iovec, count: c_int) -> Result<Vec<IoSlice<'a>>> {
    // SAFETY: the caller promises it.
    let elements = unsafe { vector_of(vector, count) }?;
    // SAFETY: the caller promises it of each element.
    let slice = |element: &iovec| unsafe { source_of(element.iov_base, element.iov_len) }.map(IoSlice::new);
    elements.iter().map(slice).collect()
}

/// Several buffers to read into.
///
/// # Safety
/// `vector` points to `count` elements, each as `destination_of` wants it, none overlapping another.
pub unsafe fn destinations_of<'a>(vector: *const iovec, count: c_int) -> Result<Vec<IoSliceMut<'a>>> {
    // SAFETY: the caller promises it.
    let elements = unsafe { vector_of(vector, count) }?;
    // SAFETY: the caller promises it of each element.
    let slice = |element: &iovec| unsafe { destination_of(element.iov_base, element.iov_len) }.map(IoSliceMut::new);
    elements.iter().map(slice).collect()
}

/// What `lseek`'s third argument says. Errors: `Invalid` for anything but SEEK_SET, SEEK_CUR and SEEK_END.
pub fn whence_of(whence: c_int) -> Result<Whence> {
    match whence {
        libc::SEEK_SET => Ok(Whence::Start),
        libc::SEEK_CUR => Ok(Whence::Current),
        libc::SEEK_END => Ok(Whence::End),
        libc::SEEK_DATA => Ok(Whence::Data),
        libc::SEEK_HOLE => Ok(Whence::Hole),
        _ => Err(Error::new(Status::Invalid, format!("seek cannot count from {whence}"))),
    }
}

/// Attributes as stat(2) has them. `st_blocks` counts what the size would take without holes.
pub fn stat_of(attributes: &Attributes) -> libc::stat {
    // SAFETY: all fields are integers, for which zeros are a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_ino = attributes.id.0;
    stat.st_mode = attributes.st_mode();
    stat.st_nlink = attributes.link_count as _;
    stat.st_uid = attributes.uid;
    stat.st_gid = attributes.gid;
    stat.st_size = attributes.size as off_t;
    stat.st_rdev = device_words(attributes.device());
    // A device has its number there.
    stat.st_blksize = if attributes.kind.is_device() { 4096 } else { attributes.layout.chunk_size as _ };
    stat.st_blocks = attributes.size.div_ceil(STAT_BLOCK_SIZE) as _;
    (stat.st_atime, stat.st_atime_nsec) = seconds_of(attributes.atime);
    (stat.st_mtime, stat.st_mtime_nsec) = seconds_of(attributes.mtime);
    (stat.st_ctime, stat.st_ctime_nsec) = seconds_of(attributes.ctime);
    stat
}

/// A device's number as the C library writes it, from the 32 bits that the kernel uses.
fn device_words(device: u32) -> libc::dev_t {
    libc::makedev(device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00)
}

/// The way back. Errors: `Invalid` for a number that does not fit into 32 bits.
pub fn device_of(number: libc::dev_t) -> Result<u32> {
    let (major, minor) = (libc::major(number), libc::minor(number));
    if major > 0xfff || minor > 0xf_ffff {
        return Err(Error::new(Status::Invalid, "the number of the device does not fit into 32 bits"));
    }
    Ok(minor & 0xff | major << 8 | (minor & !0xff) << 12)
}

/// The kind that the file type bits of a mode name. Errors: `Invalid` for none of those that mknod(2) makes.
pub fn node_kind_of(mode: libc::mode_t) -> Result<Kind> {
    match mode & libc::S_IFMT {
        libc::S_IFIFO => Ok(Kind::Fifo),
        libc::S_IFSOCK => Ok(Kind::Socket),
        libc::S_IFCHR => Ok(Kind::CharacterDevice),
        libc::S_IFBLK => Ok(Kind::BlockDevice),
        _ => Err(Error::new(Status::Invalid, "only pipes, sockets and devices are made in this way")),
    }
}

fn seconds_of(nanoseconds: i64) -> (i64, i64) {
    (nanoseconds.div_euclid(NANOS_PER_SECOND), nanoseconds.rem_euclid(NANOS_PER_SECOND))
}

/// Stores attributes where the caller wants them. Errors: `Invalid` when that is null.
///
/// # Safety
/// `place` is null or points to a `struct stat` that may be written.
pub unsafe fn store_stat(attributes: Result<Attributes>, place: *mut libc::stat) -> Result<()> {
    let attributes = attributes?;
    if place.is_null() {
        return Err(null_pointer("place for the attributes"));
    }
    // SAFETY: not null, and the caller promises the rest.
    unsafe { place.write(stat_of(&attributes)) };
    Ok(())
}

/// The file type bits of `st_mode`.
pub fn mode_of_kind(kind: Kind) -> libc::mode_t {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
        Kind::CharacterDevice => libc::S_IFCHR,
        Kind::BlockDevice => libc::S_IFBLK,
    }
}
