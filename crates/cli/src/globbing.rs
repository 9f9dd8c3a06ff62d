//! Patterns in paths inside the cluster, which the shell leaves alone for it knows nothing of them: `tabane ls
//! '/a/*.dat'`.
//!
//! Invariant: a path that exists as it is written stands for itself, whatever letters are in it; so does one that
//! matches nothing, as in a shell, and the command says then what it misses.

use crate::paths::{Sided, join, sided};
use client::{FileSystem, Kind};
use wire::glob::matches;

/// Paths that one pattern may become.
const MATCH_COUNT_MAX: usize = 1 << 20;

/// Whether a path may be a pattern.
pub fn is_special(path: &[u8]) -> bool {
    path.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Whether letters of a component mean others than themselves.
fn is_pattern(component: &[u8]) -> bool {
    let mut escaped = false;
    component.iter().any(|byte| {
        let special = !escaped && matches!(byte, b'*' | b'?' | b'[');
        escaped = !escaped && *byte == b'\\';
        special
    })
}

/// A component without its backslashes.
fn plain(component: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(component.len());
    let mut escaped = false;
    for byte in component {
        escaped = !escaped && *byte == b'\\';
        if !escaped {
            plain.push(*byte);
        }
    }
    plain
}

/// An operand with its pattern replaced by what it matches, in order of names. `both_sides`: only behind a colon.
pub async fn expanded(files: &FileSystem, operand: Vec<u8>, both_sides: bool) -> Vec<Vec<u8>> {
    let path = match sided(&operand) {
        Sided::Local(_) if both_sides => return vec![operand],
        Sided::Local(path) | Sided::Inside(path) => path,
    };
    if !is_special(&path) || files.lstat(&path).await.is_ok() {
        return vec![operand];
    }
    let prefix = operand[..operand.len() - path.len()].to_vec();
    let found = find(files, &path).await;
    if found.is_empty() {
        return vec![operand];
    }
    found.into_iter().map(|path| [&prefix[..], &path].concat()).collect()
}

/// The paths that match, component by component.
async fn find(files: &FileSystem, path: &[u8]) -> Vec<Vec<u8>> {
    let root: &[u8] = if path.starts_with(b"/") { b"/" } else { b"" };
    let mut found = vec![root.to_vec()];
    let mut components = path.split(|byte| *byte == b'/').filter(|component| !component.is_empty()).peekable();
    while let Some(component) = components.next() {
        let is_last = components.peek().is_none();
        let mut next = Vec::new();
        for directory in &found {
            if is_pattern(component) {
                next.extend(
                    names(files, directory, component, !is_last).await.iter().map(|name| join(directory, name)),
                );
            } else {
                next.push(join(directory, &plain(component)));
            }
            next.truncate(MATCH_COUNT_MAX);
        }
        found = next;
    }
    let mut there = Vec::new();
    for path in found {
        if files.lstat(&path).await.is_ok() {
            there.push(path);
        }
    }
    there
}

/// The names in a directory that match, sorted; hidden ones only if the pattern begins with a dot too. None where it
/// can't be read.
async fn names(files: &FileSystem, directory: &[u8], pattern: &[u8], directories: bool) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut take = |entry: &client::DirectoryEntry| {
        let hidden = entry.name.starts_with(b".") && !pattern.starts_with(b".");
        let leads_on = !directories || matches!(entry.kind, Kind::Directory | Kind::Symlink);
        if !hidden && leads_on && matches(pattern, &entry.name) {
            names.push(entry.name.clone());
        }
        names.len() < MATCH_COUNT_MAX
    };
    let path = if directory.is_empty() { b"/" } else { directory };
    // A directory that can't be read matches nothing, as in a shell; the command says what it misses.
    let _ = files.read_directory(path, false, &mut take).await;
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: patterns are told from escaped letters, and backslashes go where they escape.
    #[test]
    fn escapes() {
        assert!(is_pattern(b"*.dat") && is_pattern(b"a[12]") && is_pattern(b"\\\\*"));
        assert!(!is_pattern(b"\\*.dat") && !is_pattern(b"a\\[12]") && !is_pattern(b"plain"));
        assert_eq!(plain(b"\\*a\\\\b\\?"), b"*a\\b?");
    }
}
