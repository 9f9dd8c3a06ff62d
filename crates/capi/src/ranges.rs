//! Ranges of open files: room, holes, zeros, and copies between files.

use crate::convert::*;
use crate::mounted;
use client::{Allocation, Error, Result, Status};
use libc::{c_int, c_uint, off_t, size_t, ssize_t};

/// Reserves, punches or zeroes a range as fallocate(2) does: `mode` is 0 or a sum of FALLOC_FL_KEEP_SIZE, and one of
/// FALLOC_FL_PUNCH_HOLE (with FALLOC_FL_KEEP_SIZE only) and FALLOC_FL_ZERO_RANGE. Other modes fail with EOPNOTSUPP.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_fallocate(descriptor: c_int, mode: c_int, offset: off_t, size: off_t) -> c_int {
    let allocate = || {
        let mounted = mounted()?;
        let open = mounted.get(descriptor)?;
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let kind = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocation::Reserve,
            libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero,
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Allocation::Punch,
            _ => return Err(Error::new(Status::NotSupported, "this mode of fallocate is not offered")),
        };
        let (Ok(offset), Ok(size)) = (u64::try_from(offset), u64::try_from(size)) else {
            return Err(Error::new(Status::Invalid, "offset or size is negative"));
        };
        mounted.client.allocate(&open.file, kind, keep_size, offset, size)
    };
    status_of(allocate())
}

/// # Safety
/// `place` is NULL or points to an offset.
unsafe fn offset_at<'a>(place: *mut off_t) -> Option<&'a mut off_t> {
    // SAFETY: the caller promises it.
    unsafe { place.as_mut() }
}

/// Copies between two open files, on the servers, as copy_file_range(2) does: from and to the offsets, which move, or,
/// where one is NULL, the file position. Returns the bytes copied: fewer than `size` at the end of the source, and in
/// very large calls. `flags` is 0.
///
/// # Safety
/// `offset_in` and `offset_out` are NULL or point to offsets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_copy_file_range(
    descriptor_in: c_int,
    offset_in: *mut off_t,
    descriptor_out: c_int,
    offset_out: *mut off_t,
    size: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller promises it.
    let (from, to) = unsafe { (offset_at(offset_in), offset_at(offset_out)) };
    let copy = || -> Result<usize> {
        if flags != 0 {
            return Err(Error::new(Status::Invalid, "flags of copy_file_range are 0"));
        }
        mounted()?.copy_range(descriptor_in, from, descriptor_out, to, size)
    };
    count_of(copy())
}
