//! fsync and its kin.

use crate::convert::*;
use crate::mounted;
use libc::c_int;

/// Makes a file's contents, its attributes and its name survive power loss, as far as the servers' media can (not on
/// tmpfs); of a directory, its entries. Reports data that was acknowledged and could not be kept, once to each
/// descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_fsync(descriptor: c_int) -> c_int {
    status_of(mounted().and_then(|mounted| mounted.synchronise(descriptor)))
}

/// As `tabane_fsync`.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_fdatasync(descriptor: c_int) -> c_int {
    tabane_fsync(descriptor)
}

/// Makes everything that was acknowledged to anybody survive power loss. Unlike sync(2) it can fail.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_sync() -> c_int {
    status_of(mounted().and_then(|mounted| mounted.client.synchronise_all()))
}

/// As `tabane_sync`; the descriptor has to be an open one.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_syncfs(descriptor: c_int) -> c_int {
    status_of(mounted().and_then(|mounted| {
        mounted.get(descriptor)?;
        mounted.client.synchronise_all()
    }))
}
