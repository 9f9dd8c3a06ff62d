//! Extended attributes of the inodes here, apart from these: most inodes have none.
//!
//! Invariants
//! 1. An inode's names and values are at most `INODE_SIZE_MAX` bytes, its list of names at most `EXTENDED_SIZE_MAX`.
//! 2. `size` is the sum of all charges; who sets an attribute keeps it under the server's bound.

use std::collections::BTreeMap;
use wire::limits::EXTENDED_SIZE_MAX;
use wire::{FileId, Status};

/// Most bytes of names and values of one inode.
pub const INODE_SIZE_MAX: usize = 2 * EXTENDED_SIZE_MAX;
/// What an attribute takes beside its name and value, in bytes.
pub const ENTRY_SIZE: usize = 64;

type AttributeName = Box<[u8]>;
type AttributeValue = Box<[u8]>;

/// See the module.
#[derive(Default)]
pub struct ExtendedAttributes {
    inodes: BTreeMap<u64, BTreeMap<AttributeName, AttributeValue>>,
    size: u64,
}

fn charge(name: &[u8], value: &[u8]) -> u64 {
    (name.len() + value.len() + ENTRY_SIZE) as u64
}

impl ExtendedAttributes {
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Bytes that all attributes take.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Attributes of all inodes.
    pub fn count(&self) -> u64 {
        self.inodes.values().map(|names| names.len() as u64).sum()
    }

    pub fn get(&self, file: FileId, name: &[u8]) -> Option<&[u8]> {
        Some(self.inodes.get(&file.0)?.get(name)?)
    }

    /// Names and values of an inode, by name.
    pub fn of_inode(&self, file: FileId) -> impl Iterator<Item = (&[u8], &[u8])> {
        let names = self.inodes.get(&file.0).into_iter().flatten();
        names.map(|(name, value)| (&**name, &**value))
    }

    /// Ids of inodes that have attributes, from `from` on.
    pub fn files_from(&self, from: u64) -> impl Iterator<Item = FileId> {
        self.inodes.range(from..).map(|(file, _)| FileId(*file))
    }

    /// Whether an attribute may be set to a value of `value_size` bytes, by the bounds of its inode and by `total_max`,
    /// that of the server.
    pub fn check_room(&self, file: FileId, name: &[u8], value_size: usize, total_max: u64) -> Result<(), Status> {
        let (mut names_size, mut whole_size) = (name.len() + 1, name.len() + value_size);
        for (other, value) in self.of_inode(file).filter(|(other, _)| *other != name) {
            names_size += other.len() + 1;
            whole_size += other.len() + value.len();
        }
        let replaced = self.get(file, name).map_or(0, |value| charge(name, value));
        let total = self.size - replaced + (name.len() + value_size + ENTRY_SIZE) as u64;
        let fits = names_size <= EXTENDED_SIZE_MAX && whole_size <= INODE_SIZE_MAX && total <= total_max;
        if fits { Ok(()) } else { Err(Status::NoSpace) }
    }

    pub fn put(&mut self, file: FileId, name: &[u8], value: &[u8]) {
        self.remove(file, name);
        self.size += charge(name, value);
        self.inodes.entry(file.0).or_default().insert(name.into(), value.into());
    }

    /// Removes an attribute; nothing happens when there is none.
    pub fn remove(&mut self, file: FileId, name: &[u8]) {
        let Some(names) = self.inodes.get_mut(&file.0) else { return };
        if let Some(value) = names.remove(name) {
            self.size -= charge(name, &value);
        }
        if names.is_empty() {
            self.inodes.remove(&file.0);
        }
    }

    /// Removes all attributes of an inode that goes.
    pub fn remove_inode(&mut self, file: FileId) {
        if self.inodes.is_empty() {
            return;
        }
        for (name, value) in self.inodes.remove(&file.0).into_iter().flatten() {
            self.size -= charge(&name, &value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(7);

    /// Goal: puts replace, removals of what is not there do nothing, and the sum follows.
    #[test]
    fn after_images() {
        let mut extended = ExtendedAttributes::default();
        for _ in 0..2 {
            extended.put(FILE, b"user.a", b"one");
            extended.put(FILE, b"user.b", b"");
        }
        extended.put(FILE, b"user.a", b"other");
        assert_eq!(extended.get(FILE, b"user.a"), Some(b"other".as_slice()));
        assert_eq!(extended.of_inode(FILE).count(), 2);
        for _ in 0..2 {
            extended.remove(FILE, b"user.a");
        }
        assert_eq!((extended.count(), extended.size()), (1, 6 + 64));
        extended.remove_inode(FILE);
        extended.remove_inode(FILE);
        assert!(extended.is_empty() && extended.size() == 0);
    }

    /// Goal: the bounds hold for names, for names and values together, and for the server; what is replaced makes room.
    #[test]
    fn bounds() {
        let mut extended = ExtendedAttributes::default();
        let huge = vec![1; EXTENDED_SIZE_MAX];
        assert_eq!(extended.check_room(FILE, b"user.a", huge.len(), u64::MAX), Ok(()));
        extended.put(FILE, b"user.a", &huge);
        assert_eq!(extended.check_room(FILE, b"user.b", huge.len(), u64::MAX), Err(Status::NoSpace));
        assert_eq!(extended.check_room(FILE, b"user.b", huge.len() - 12, u64::MAX), Ok(()));
        assert_eq!(extended.check_room(FILE, b"user.b", 0, extended.size()), Err(Status::NoSpace));
        assert_eq!(extended.check_room(FILE, b"user.a", huge.len(), extended.size()), Ok(()));
        extended.remove_inode(FILE);
        for number in 0..EXTENDED_SIZE_MAX / 256 {
            let name = format!("user.{number:0>250}");
            assert_eq!(extended.check_room(FILE, name.as_bytes(), 0, u64::MAX), Ok(()));
            extended.put(FILE, name.as_bytes(), b"");
        }
        assert_eq!(extended.check_room(FILE, b"user.more", 0, u64::MAX), Err(Status::NoSpace));
    }
}
