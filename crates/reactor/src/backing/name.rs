//! Names and paths as calls on a backing tree take them: none of them can lead out of a directory.

use std::ffi::{CStr, CString};
use std::rc::Rc;

/// The most bytes of one name (`NAME_MAX`).
pub const NAME_SIZE_MAX: usize = 255;
/// The most bytes of a path from one directory to another, which the kernel takes with its NUL (`PATH_MAX`).
pub const PATH_SIZE_MAX: usize = 4095;

/// One name in a directory. Any bytes but NUL and `/`, 1 to 255 of them, and neither `.` nor `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryName(CString);

/// One or several names, one below the other, with `/` between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelativePath(CString);

/// The key of an extended attribute. Any bytes but NUL, 1 to 255 of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrKey(CString);

impl XattrKey {
    /// Errors: `EINVAL` for what is no key, `ERANGE` for one that is too long, as the kernel has it.
    pub fn new(bytes: &[u8]) -> Result<XattrKey, i32> {
        match bytes.len() {
            0 => Err(libc::EINVAL),
            1..=NAME_SIZE_MAX => CString::new(bytes).map(XattrKey).map_err(|_| libc::EINVAL),
            _ => Err(libc::ERANGE),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub(crate) fn as_c(&self) -> &CStr {
        &self.0
    }
}

fn check_name(bytes: &[u8]) -> Result<(), i32> {
    if bytes.len() > NAME_SIZE_MAX {
        return Err(libc::ENAMETOOLONG);
    }
    let is_name = !matches!(bytes, b"" | b"." | b"..") && !bytes.iter().any(|byte| matches!(byte, 0 | b'/'));
    if is_name { Ok(()) } else { Err(libc::EINVAL) }
}

impl EntryName {
    /// Errors: `EINVAL` for what is no name, `ENAMETOOLONG`.
    pub fn new(bytes: &[u8]) -> Result<EntryName, i32> {
        check_name(bytes)?;
        CString::new(bytes).map(EntryName).map_err(|_| libc::EINVAL)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub(crate) fn as_c(&self) -> &CStr {
        &self.0
    }
}

impl RelativePath {
    /// Errors: `EINVAL` for a path that is absolute, empty or has a part that is no name; `ENAMETOOLONG`.
    pub fn new(bytes: &[u8]) -> Result<RelativePath, i32> {
        if bytes.len() > PATH_SIZE_MAX {
            return Err(libc::ENAMETOOLONG);
        }
        bytes.split(|byte| *byte == b'/').try_for_each(check_name)?;
        CString::new(bytes).map(RelativePath).map_err(|_| libc::EINVAL)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Its names, outermost first.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes().split(|byte| *byte == b'/')
    }

    pub(crate) fn as_c(&self) -> &CStr {
        &self.0
    }
}

/// A path from the root, which is the empty one.
pub(super) type TreePath = Rc<[u8]>;

/// The path of what lies below another one.
pub(super) fn joined(path: &[u8], below: &[u8]) -> TreePath {
    match path {
        b"" => below.into(),
        _ => [path, b"/", below].concat().into(),
    }
}

/// Whether a path is another one, or lies below it.
pub(crate) fn is_within(path: &[u8], other: &[u8]) -> bool {
    other.is_empty() || path.strip_prefix(other).is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what the kernel would take as another directory, or cut, is no name; every other string of bytes is one.
    #[test]
    fn names_lead_nowhere_else() {
        for bad in ["", ".", "..", "a/b", "/", "/a", "a\0b"] {
            assert_eq!(EntryName::new(bad.as_bytes()).err(), Some(libc::EINVAL), "{bad:?}");
        }
        for bad in ["", ".", "..", "/a", "a/", "a//b", "a/../b", "../a", "./a", "a/.", "a\0b"] {
            assert_eq!(RelativePath::new(bad.as_bytes()).err(), Some(libc::EINVAL), "{bad:?}");
        }
        assert_eq!(EntryName::new(&[b'n'; 256]).err(), Some(libc::ENAMETOOLONG));
        assert_eq!(RelativePath::new(&[b'n'; 256]).err(), Some(libc::ENAMETOOLONG));
        assert_eq!(RelativePath::new(&b"a/".repeat(2500)).err(), Some(libc::ENAMETOOLONG));
        for good in [&b"..."[..], b"..a", b" ", b"\xff\xfe", b"a\nb", &[b'n'; 255]] {
            assert_eq!(EntryName::new(good).unwrap().bytes(), good);
        }
        let path = RelativePath::new(b"a/b.c/..d").unwrap();
        assert_eq!(path.names().collect::<Vec<_>>(), [&b"a"[..], b"b.c", b"..d"]);
    }

    #[test]
    fn paths_within_others() {
        assert!(is_within(b"a", b"a") && is_within(b"a/b", b"a") && is_within(b"a", b""));
        assert!(!is_within(b"ab", b"a") && !is_within(b"a", b"a/b") && !is_within(b"", b"a"));
        assert_eq!((&*joined(b"", b"a"), &*joined(b"a", b"b")), (&b"a"[..], &b"a/b"[..]));
    }
}
