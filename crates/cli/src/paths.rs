//! How paths are written: `:/path` and `tabane:/path` are inside the cluster.

use std::borrow::Cow;

/// A path and the side that it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sided {
    Local(Vec<u8>),
    Inside(Vec<u8>),
}

/// A path of a command that knows both sides.
pub fn sided(text: &[u8]) -> Sided {
    match text.strip_prefix(b"tabane:").or_else(|| text.strip_prefix(b":")) {
        Some(path) => Sided::Inside(path.to_vec()),
        None => Sided::Local(text.to_vec()),
    }
}

/// A path of a command that works inside the cluster only: the colon may be there or not.
pub fn inside(text: &[u8]) -> Vec<u8> {
    let (Sided::Inside(path) | Sided::Local(path)) = sided(text);
    path
}

/// A name below a directory.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + 1 + name.len());
    path.extend_from_slice(directory);
    if !directory.is_empty() && !directory.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// A path inside the cluster with its leading slash, for messages.
pub fn shown(path: &[u8]) -> Cow<'_, [u8]> {
    if path.starts_with(b"/") { Cow::Borrowed(path) } else { Cow::Owned([b"/", path].concat()) }
}

/// The last component of a path; `None` for the root, `.` and `..`, which name no entry.
pub fn base_name(path: &[u8]) -> Option<&[u8]> {
    let name = path.split(|byte| *byte == b'/').rfind(|component| !component.is_empty())?;
    (name != b"." && name != b"..").then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the colon tells the sides apart, and last components are found behind slashes.
    #[test]
    fn forms() {
        assert_eq!(sided(b":/a"), Sided::Inside(b"/a".to_vec()));
        assert_eq!(sided(b"tabane:a"), Sided::Inside(b"a".to_vec()));
        assert_eq!(sided(b"./:a"), Sided::Local(b"./:a".to_vec()));
        assert_eq!(inside(b"/a"), b"/a");
        assert_eq!(
            (join(b"/", b"a"), join(b"x", b"a"), join(b"", b"a")),
            (b"/a".to_vec(), b"x/a".to_vec(), b"a".to_vec())
        );
        assert_eq!(base_name(b"/a/b//"), Some(&b"b"[..]));
        assert_eq!((base_name(b"/"), base_name(b"a/..")), (None, None));
    }
}
