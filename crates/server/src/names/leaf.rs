//! Entries of one leaf of a directory's tree, packed one behind the other in one piece of memory: a directory of many
//! files takes little more than their names, and a search touches few cache lines.
//!
//! An entry is its cursor (8 bytes), the file id (8), kind (1), the size of the name (1), and the name.
//!
//! Invariants
//! 1. Entries are whole and sorted by (cursor, name).

use reactor::prefetch;
use std::cmp::Ordering;
use wire::{FileId, Kind};

/// Bytes of an entry before its name.
const HEAD_SIZE: usize = 18;

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dentry<'a> {
    pub cursor: u64,
    pub id: FileId,
    pub kind: Kind,
    pub name: &'a [u8],
}

impl Dentry<'_> {
    fn head(&self) -> [u8; HEAD_SIZE] {
        let mut head = [0; HEAD_SIZE];
        head[..8].copy_from_slice(&self.cursor.to_le_bytes());
        head[8..16].copy_from_slice(&self.id.0.to_le_bytes());
        head[16] = self.kind as u8;
        head[17] = self.name.len() as u8;
        head
    }

    fn size(&self) -> usize {
        HEAD_SIZE + self.name.len()
    }
}

/// See the module.
#[derive(Default)]
pub struct Leaf {
    bytes: Vec<u8>,
}

/// Goes through the entries from an offset on.
pub struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Entries<'a> {
    type Item = Dentry<'a>;

    fn next(&mut self) -> Option<Dentry<'a>> {
        let (head, rest) = self.rest.split_first_chunk::<HEAD_SIZE>()?;
        let (name, rest) = rest.split_at(head[17] as usize);
        self.rest = rest;
        let [c0, c1, c2, c3, c4, c5, c6, c7, i0, i1, i2, i3, i4, i5, i6, i7, kind, _] = *head;
        let Some(kind) = Kind::from_code(kind) else { unreachable!("invariant 1: entries are whole") };
        Some(Dentry {
            cursor: u64::from_le_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
            id: FileId(u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7])),
            kind,
            name,
        })
    }
}

impl Leaf {
    /// All entries in order.
    pub fn iter(&self) -> Entries<'_> {
        Entries { rest: &self.bytes }
    }

    /// Reads where the entries begin and end, and says nothing of them.
    pub fn touch(&self) -> u8 {
        self.bytes.first().unwrap_or(&0) ^ self.bytes.last().unwrap_or(&0)
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Has all of it fetched.
    pub fn prefetch(&self) {
        prefetch(&*self.bytes);
    }

    pub fn count(&self) -> usize {
        self.iter().count()
    }

    /// The entry of a name.
    pub fn get(&self, cursor: u64, name: &[u8]) -> Option<Dentry<'_>> {
        // Where an entry begins is known only from the one before it: line by line the search would wait for each.
        prefetch(&*self.bytes);
        self.iter()
            .find(|entry| entry.cursor >= cursor && (entry.cursor > cursor || entry.name == name))
            .filter(|entry| entry.cursor == cursor)
    }

    /// Where an entry of this place is (`Ok`) or would be (`Err`), in bytes.
    fn offset(&self, cursor: u64, name: &[u8]) -> Result<usize, usize> {
        prefetch(&*self.bytes);
        let mut offset = 0;
        for entry in self.iter() {
            match entry.cursor.cmp(&cursor).then_with(|| entry.name.cmp(name)) {
                Ordering::Less => offset += entry.size(),
                Ordering::Equal => return Ok(offset),
                Ordering::Greater => break,
            }
        }
        Err(offset)
    }

    fn kind_at(&self, offset: usize) -> Option<Kind> {
        Entries { rest: &self.bytes[offset..] }.next().map(|entry| entry.kind)
    }

    /// Adds an entry, or replaces that of its name and returns the kind of the one that was there.
    pub fn put(&mut self, entry: &Dentry<'_>) -> Option<Kind> {
        assert!(entry.name.len() <= usize::from(u8::MAX));
        match self.offset(entry.cursor, entry.name) {
            Ok(offset) => {
                let replaced = self.kind_at(offset);
                self.bytes[offset..offset + HEAD_SIZE].copy_from_slice(&entry.head());
                replaced
            }
            Err(offset) => {
                self.make_room(entry.size());
                let end = self.bytes.len();
                self.bytes.extend_from_slice(&entry.head());
                self.bytes.extend_from_slice(entry.name);
                self.bytes[offset..].rotate_right(entry.size());
                assert_eq!(self.bytes.len(), end + entry.size());
                None
            }
        }
    }

    /// Adds an entry behind all others.
    pub fn push(&mut self, entry: &Dentry<'_>) {
        self.make_room(entry.size());
        self.bytes.extend_from_slice(&entry.head());
        self.bytes.extend_from_slice(entry.name);
    }

    /// Removes an entry and returns its kind; nothing when there is none.
    pub fn remove(&mut self, cursor: u64, name: &[u8]) -> Option<Kind> {
        let offset = self.offset(cursor, name).ok()?;
        let removed = self.kind_at(offset);
        self.bytes.drain(offset..offset + HEAD_SIZE + name.len());
        if self.bytes.len() < self.bytes.capacity() / 2 {
            self.bytes.shrink_to(self.bytes.len() + self.bytes.len() / 8);
        }
        removed
    }

    /// An eighth in advance: less than `Vec` would take, for there are very many leaves.
    fn make_room(&mut self, size: usize) {
        if self.bytes.capacity() - self.bytes.len() < size {
            self.bytes.reserve_exact(size + self.bytes.len() / 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Goal: a leaf behaves like an ordered map, also where many entries share a cursor.
    /// Method: random puts and removes over eight cursors beside a `BTreeMap`.
    #[test]
    fn behaves_like_an_ordered_map() {
        let mut leaf = Leaf::default();
        let mut model: BTreeMap<(u64, Vec<u8>), u64> = BTreeMap::new();
        let mut state = 99u64;
        for step in 0..5000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let cursor = (state >> 40) % 8;
            let name = vec![b'x'; ((state >> 50) % 9) as usize + 1];
            if state >> 63 == 0 {
                let entry = Dentry { cursor, id: FileId(step), kind: Kind::Symlink, name: &name };
                assert_eq!(leaf.put(&entry).is_some(), model.insert((cursor, name.clone()), step).is_some());
            } else {
                assert_eq!(leaf.remove(cursor, &name).is_some(), model.remove(&(cursor, name.clone())).is_some());
            }
            assert_eq!(leaf.get(cursor, &name).map(|entry| entry.id.0), model.get(&(cursor, name)).copied());
            let seen: Vec<_> = leaf.iter().map(|entry| ((entry.cursor, entry.name.to_vec()), entry.id.0)).collect();
            assert_eq!(seen, model.clone().into_iter().collect::<Vec<_>>());
        }
    }
}
