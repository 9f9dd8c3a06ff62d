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
        // A bare colon is the root.
        Some(b"") => Sided::Inside(b"/".to_vec()),
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

/// A name for a terminal: with control characters quoted as ls(1) does, for these could tell the terminal anything.
pub fn visible(name: &[u8]) -> Cow<'_, [u8]> {
    if !name.iter().any(u8::is_ascii_control) {
        return Cow::Borrowed(name);
    }
    let mut quoted = b"'".to_vec();
    for part in name.chunk_by(|left, right| left.is_ascii_control() == right.is_ascii_control()) {
        if !part[0].is_ascii_control() {
            part.iter().for_each(|byte| match byte {
                b'\'' => quoted.extend_from_slice(b"'\\''"),
                _ => quoted.push(*byte),
            });
            continue;
        }
        quoted.extend_from_slice(b"'$'");
        for byte in part {
            match byte {
                b'\n' => quoted.extend_from_slice(b"\\n"),
                b'\t' => quoted.extend_from_slice(b"\\t"),
                b'\r' => quoted.extend_from_slice(b"\\r"),
                _ => quoted.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            }
        }
        quoted.extend_from_slice(b"''");
    }
    quoted.push(b'\'');
    Cow::Owned(quoted)
}

/// A path in quotes, so that a shell reads it as it is.
pub fn quoted(path: &[u8]) -> Vec<u8> {
    if path.iter().any(u8::is_ascii_control) {
        return visible(path).into_owned();
    }
    let inner = path.split(|byte| *byte == b'\'').collect::<Vec<_>>().join(&b"'\\''"[..]);
    [b"'", &inner[..], b"'"].concat()
}

/// The last component of a path; `None` for the root, `.` and `..`, which name no entry.
pub fn base_name(path: &[u8]) -> Option<&[u8]> {
    let name = path.split(|byte| *byte == b'/').rfind(|component| !component.is_empty())?;
    (name != b"." && name != b"..").then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: control characters never reach a terminal, other names do as they are; a shell reads what is shown as the
    /// name.
    #[test]
    fn control_characters() {
        assert_eq!(visible(b"it's plain"), b"it's plain".as_slice());
        assert_eq!(visible(b"a\nb"), b"'a'$'\\n''b'".as_slice());
        assert_eq!(visible(b"\x1b[2J'"), b"''$'\\033''[2J'\\'''".as_slice());
        assert_eq!(visible(b"a\x7f"), b"'a'$'\\177'''".as_slice());
        assert_eq!(quoted(b":/a b"), b"':/a b'".as_slice());
        assert_eq!(quoted(b"it's"), b"'it'\\''s'".as_slice());
        assert_eq!(quoted(b"a\nb"), visible(b"a\nb").into_owned());
    }

    /// Goal: the colon tells the sides apart, and last components are found behind slashes.
    #[test]
    fn forms() {
        assert_eq!(sided(b":/a"), Sided::Inside(b"/a".to_vec()));
        assert_eq!(sided(b"tabane:a"), Sided::Inside(b"a".to_vec()));
        assert_eq!(sided(b"./:a"), Sided::Local(b"./:a".to_vec()));
        assert_eq!(sided(b":"), Sided::Inside(b"/".to_vec()));
        assert_eq!(inside(b"/a"), b"/a");
        assert_eq!(
            (join(b"/", b"a"), join(b"x", b"a"), join(b"", b"a")),
            (b"/a".to_vec(), b"x/a".to_vec(), b"a".to_vec())
        );
        assert_eq!(base_name(b"/a/b//"), Some(&b"b"[..]));
        assert_eq!((base_name(b"/"), base_name(b"a/..")), (None, None));
    }
}
