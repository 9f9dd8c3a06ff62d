//! What the caller may do, and what new files do not get.

use crate::convert::*;
use crate::mounted;
use client::{Credentials, Error, Result, Status};
use libc::{c_char, c_int, mode_t};

/// Sets the permission bits that new files and directories do not get, and returns those before. At the start they are
/// the umask that the process has then: later calls of umask(2) are not seen, for the kernel tells a process its umask
/// only while it changes it. (mode_t)-1 when not connected.
#[unsafe(no_mangle)]
pub extern "C" fn tabane_umask(mask: mode_t) -> mode_t {
    match mounted() {
        Ok(mounted) => mounted.client.set_umask(mask),
        Err(error) => {
            status_of::<()>(Err(error));
            mode_t::MAX
        }
    }
}

/// # Safety
/// `path` is a NUL-terminated string or NULL.
unsafe fn check(path: *const c_char, mode: c_int, effective: bool) -> Result<()> {
    let mounted = mounted()?;
    // SAFETY: the caller promises it.
    let path = unsafe { bytes_of(path, "path") }?;
    let wanted = u8::try_from(mode).ok().filter(|wanted| *wanted <= 7);
    let wanted = wanted
        .ok_or_else(|| Error::new(Status::Invalid, format!("mode {mode} is not made of R_OK, W_OK, X_OK and F_OK")))?;
    if effective {
        return mounted.client.access(path, wanted, None);
    }
    // SAFETY: these only tell the ids.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let real = Credentials { uid, gid, groups: mounted.client.user().groups };
    mounted.client.access(path, wanted, Some(&real))
}

/// Whether the process's real user may read (R_OK), write (W_OK) and execute or search (X_OK) what a path leads to, or
/// whether it is there (F_OK), as access(2) has it.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller promises it.
    status_of(unsafe { check(path, mode, false) })
}

/// As `tabane_access`, with AT_EACCESS in `flags` for the effective user.
///
/// # Safety
/// `path` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_faccess(path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    if flags & !libc::AT_EACCESS != 0 {
        return status_of::<()>(Err(Error::new(Status::Invalid, "flags other than AT_EACCESS are not known")));
    }
    // SAFETY: the caller promises it.
    status_of(unsafe { check(path, mode, flags & libc::AT_EACCESS != 0) })
}
