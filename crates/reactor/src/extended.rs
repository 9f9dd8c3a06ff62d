//! Extended attributes of this machine's files, for commands that copy them. Symbolic links are followed.

use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The kernel's limits: of a list of names, and of a value.
const SIZE_MAX: usize = 64 << 10;

fn check_size(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn text(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from(ErrorKind::InvalidInput))
}

/// The names of a file's attributes. Errors: `Unsupported` where the file system has none.
pub fn names(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let path = text(path.as_os_str().as_bytes())?;
    let mut list = vec![0; SIZE_MAX];
    // SAFETY: the path ends with NUL, and the list is as long as it is said to be.
    let size = check_size(unsafe { libc::listxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) })?;
    let names = list[..size].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

/// An attribute's value.
pub fn value(path: &Path, name: &[u8]) -> io::Result<Vec<u8>> {
    let (path, name) = (text(path.as_os_str().as_bytes())?, text(name)?);
    let mut value = vec![0; SIZE_MAX];
    // SAFETY: path and name end with NUL, and the value is as long as it is said to be.
    let result = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(check_size(result)?);
    Ok(value)
}

/// Sets an attribute, whether or not it is there.
pub fn set(path: &Path, name: &[u8], value: &[u8]) -> io::Result<()> {
    let (path, name) = (text(path.as_os_str().as_bytes())?, text(name)?);
    // SAFETY: path and name end with NUL, and the value is as long as it is said to be.
    let result = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    crate::system::check(result).map(drop)
}
