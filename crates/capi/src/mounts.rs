//! Mounts: where a path of this machine leads within the cluster.

use crate::convert::*;
use crate::mounted;
use client::{Error, Status, mounts, own_cluster, status_of_system};
use libc::{c_char, size_t, ssize_t};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Tells the path within the cluster of a path below a mount of it (`tabane mount`), so that a program can reach the
/// file without the mount; the file itself need not be there. The cluster is that of this process: the one that it is
/// connected to, else the one that `tabane_init(NULL)` would take. Returns the bytes of the path, which are put into
/// `buffer` with a zero behind them.
///
/// Fails with EXDEV where the path is below no mount of the cluster, or below one that is read only, and with ERANGE if
/// the buffer is too small.
///
/// # Safety
/// `path` is a NUL-terminated string; `size` bytes of `buffer` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tabane_path_below_mount(path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t {
    let tell = || {
        // SAFETY: the caller promises it.
        let (path, place) = unsafe { (bytes_of(path, "path")?, destination_of(buffer.cast(), size)?) };
        let path = Path::new(OsStr::from_bytes(path));
        let within = match mounted() {
            Ok(mounted) => mounts::path_within(mounted.client.cluster(), path),
            // Most programs have no mount, and need not look for a cluster.
            Err(_) if mounts::mount_points().is_empty() => Ok(None),
            Err(_) => mounts::path_within(&own_cluster()?, path),
        };
        let within =
            within.map_err(|error| Error::new(status_of_system(&error), format!("{}: {error}", path.display())))?;
        let elsewhere = || Error::new(Status::CrossDirectory, format!("{}: is below no mount of it", path.display()));
        let within = within.ok_or_else(elsewhere)?;
        let bytes = within.as_os_str().as_bytes();
        let Some((end, text)) = place.get_mut(..=bytes.len()).and_then(|place| place.split_last_mut()) else {
            return Err(Error::new(
                Status::OutOfRange,
                format!("a path of {} bytes in a buffer of {size}", bytes.len()),
            ));
        };
        text.copy_from_slice(bytes);
        *end = 0;
        Ok(bytes.len())
    };
    count_of(tell())
}
