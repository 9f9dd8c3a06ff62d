//! Directory entries of this server, by parent and by the hash of their names.
//!
//! Each directory is a radix tree over the 63-bit cursors of its entries (the upper bits of the names' hash). Hashes
//! are even, so the tree is flat and shallow, and walking it gives the entries in the order of their cursors, whatever
//! is inserted or removed meanwhile.
//!
//! Invariants
//! 1. A directory is in the table from its first entry, or the announcement of one, until it is forgotten because it
//!    was removed. What this server's share of it tells (`Share`) outlives the last entry.

pub use leaf::Dentry;
mod leaf;
pub mod locks;

use crate::core::slab::Slab;
use crate::names::leaf::Leaf;
use crate::store::FastMap;
use wire::identity::dentry_hash;
use wire::{FileId, Kind};

/// Children of an inner node, and the bits of the cursor that choose one.
const FANOUT_BITS: u32 = 4;
const FANOUT: usize = 1 << FANOUT_BITS;
/// Entries of a leaf before it is split.
const LEAF_COUNT_MAX: usize = 32;
/// The first cursors are left to callers for entries of their own, such as `.` and `..`.
const CURSOR_MIN: u64 = 16;
const CURSOR_MAX: u64 = (1 << 63) - 2;

/// Where an entry stands in a listing, by `dentry_hash`.
pub fn cursor_of_hash(hash: u64) -> u64 {
    (hash >> 1).clamp(CURSOR_MIN, CURSOR_MAX)
}

/// Where an entry stands in a listing.
pub fn cursor_of(parent: FileId, name: &[u8]) -> u64 {
    cursor_of_hash(dentry_hash(parent, name))
}

enum Node {
    Leaf(Leaf),
    Inner(Box<[Node; FANOUT]>),
}

impl Node {
    fn child_index(cursor: u64, depth: u32) -> usize {
        (cursor >> (63 - FANOUT_BITS * (depth + 1))) as usize % FANOUT
    }

    fn leaf(&self, cursor: u64) -> &Leaf {
        let mut node = self;
        let mut depth = 0;
        loop {
            match node {
                Node::Leaf(entries) => return entries,
                Node::Inner(children) => node = &children[Node::child_index(cursor, depth)],
            }
            depth += 1;
        }
    }

    fn leaf_mut(&mut self, cursor: u64) -> (&mut Node, u32) {
        let mut node = self;
        let mut depth = 0;
        while let Node::Inner(children) = node {
            node = &mut children[Node::child_index(cursor, depth)];
            depth += 1;
        }
        (node, depth)
    }

    fn split(&mut self, depth: u32) {
        // Sixty bits are enough to tell entries apart; what is equal in all of them stays together.
        if FANOUT_BITS * (depth + 1) > 60 {
            return;
        }
        let Node::Leaf(entries) = self else { unreachable!("only leaves are split") };
        let entries = std::mem::take(entries);
        let mut children: [Node; FANOUT] = std::array::from_fn(|_| Node::Leaf(Leaf::default()));
        for entry in entries.iter() {
            let Node::Leaf(leaf) = &mut children[Node::child_index(entry.cursor, depth)] else {
                unreachable!("children of a fresh split are leaves");
            };
            leaf.push(&entry);
        }
        *self = Node::Inner(Box::new(children));
    }

    /// Visits entries from `from` on, in order, until the visitor says false.
    fn walk<V: FnMut(&Dentry<'_>) -> bool>(&self, from: u64, depth: u32, visit: &mut V) -> bool {
        match self {
            Node::Leaf(entries) => entries.iter().skip_while(|entry| entry.cursor < from).all(|entry| visit(&entry)),
            Node::Inner(children) => {
                prefetch(children);
                let first = Node::child_index(from, depth);
                for (index, child) in children.iter().enumerate().skip(first) {
                    let start = if index == first { from } else { 0 };
                    // Below a later child every cursor counts, and 0 is below all of them.
                    let go_on =
                        if index == first { child.walk(start, depth + 1, visit) } else { child.walk_all(visit) };
                    if !go_on {
                        return false;
                    }
                }
                true
            }
        }
    }

    fn walk_all<V: FnMut(&Dentry<'_>) -> bool>(&self, visit: &mut V) -> bool {
        match self {
            Node::Leaf(entries) => entries.iter().all(|entry| visit(&entry)),
            Node::Inner(children) => {
                prefetch(children);
                children.iter().all(|child| child.walk_all(visit))
            }
        }
    }
}

/// Touches the memory of all leaves in turn, which lies anywhere: the processor fetches them together then, where a
/// walk that met them one by one would wait for each.
fn prefetch(children: &[Node; FANOUT]) {
    let touched = children.iter().fold(0, |sum, child| match child {
        Node::Leaf(entries) => sum ^ entries.touch(),
        Node::Inner(_) => sum,
    });
    std::hint::black_box(touched);
}

/// The time of a share in which nothing ever changed, and of an entry that says nothing about it.
pub const NO_TIME: i64 = i64::MIN;

/// What the entries on one server say of their directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// When one of them came, went or changed last.
    pub time: i64,
    /// How many of them are directories.
    pub subdirectories: u64,
}

impl Share {
    pub const NONE: Share = Share { time: NO_TIME, subdirectories: 0 };
}

struct Directory {
    parent: FileId,
    count: u64,
    share: Share,
    /// The directory's home knows of this share. In memory only: after a restart it is taken from whether there are
    /// entries, or were some
    /// (`note_restart`), and else told once more.
    announced: bool,
    root: Node,
}

impl Directory {
    fn new(parent: FileId) -> Directory {
        Directory { parent, count: 0, share: Share::NONE, announced: false, root: Node::Leaf(Leaf::default()) }
    }
}

/// All entries of this server.
#[derive(Default)]
pub struct Names {
    directories: FastMap<u64, u32>,
    slab: Slab<Directory>,
    count: u64,
    /// The latest time of any share.
    latest_time: Option<i64>,
}

/// A place in a walk over all entries that may be left and taken up again.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct WalkPosition {
    directory: u32,
    cursor: u64,
}

impl WalkPosition {
    /// The place that `numbers` told.
    pub fn from_numbers((directory, cursor): (u64, u64)) -> WalkPosition {
        WalkPosition { directory: directory as u32, cursor: cursor.min(CURSOR_MAX) }
    }

    pub fn numbers(self) -> (u64, u64) {
        (u64::from(self.directory), self.cursor)
    }
}

impl Names {
    fn directory(&self, parent: FileId) -> Option<&Directory> {
        self.slab.get(*self.directories.get(&parent.0)?)
    }

    /// The entry of a name. `cursor` is `cursor_of(parent, name)`.
    pub fn get(&self, parent: FileId, name: &[u8], cursor: u64) -> Option<(FileId, Kind)> {
        let entry = self.directory(parent)?.root.leaf(cursor).get(cursor, name)?;
        Some((entry.id, entry.kind))
    }

    /// Has the memory fetched in which a name is, or will be.
    pub fn prefetch(&self, parent: FileId, cursor: u64) {
        if let Some(directory) = self.directory(parent) {
            directory.root.leaf(cursor).prefetch();
        }
    }

    fn directory_mut(&mut self, parent: FileId) -> &mut Directory {
        let slab = &mut self.slab;
        let index = *self.directories.entry(parent.0).or_insert_with(|| slab.insert(Directory::new(parent)));
        let Some(directory) = slab.get_mut(index) else { unreachable!("the table of directories names live ones") };
        directory
    }

    /// Adds an entry or replaces what the name stood for. Returns the `dentry_hash` of a name that was not there.
    pub fn put(&mut self, parent: FileId, name: &[u8], id: FileId, kind: Kind, time: i64) -> Option<u64> {
        let hash = dentry_hash(parent, name);
        let cursor = cursor_of_hash(hash);
        self.latest_time = self.latest_time.max(Some(time));
        let directory = self.directory_mut(parent);
        directory.share.time = directory.share.time.max(time);
        directory.share.subdirectories += u64::from(kind == Kind::Directory);
        let (leaf, depth) = directory.root.leaf_mut(cursor);
        let Node::Leaf(entries) = leaf else { unreachable!("a search ends at a leaf") };
        match entries.put(&Dentry { cursor, id, kind, name }) {
            Some(replaced) => {
                directory.share.subdirectories -= u64::from(replaced == Kind::Directory);
                None
            }
            None => {
                directory.count += 1;
                if entries.count() > LEAF_COUNT_MAX {
                    leaf.split(depth);
                }
                self.count += 1;
                Some(hash)
            }
        }
    }

    /// Removes an entry, and returns the `dentry_hash` of its name; nothing when there is none.
    pub fn remove(&mut self, parent: FileId, name: &[u8], time: i64) -> Option<u64> {
        let hash = dentry_hash(parent, name);
        let cursor = cursor_of_hash(hash);
        self.latest_time = self.latest_time.max(Some(time));
        let index = *self.directories.get(&parent.0)?;
        let Some(directory) = self.slab.get_mut(index) else {
            unreachable!("the table of directories names live ones")
        };
        directory.share.time = directory.share.time.max(time);
        let (leaf, _) = directory.root.leaf_mut(cursor);
        let Node::Leaf(entries) = leaf else { unreachable!("a search ends at a leaf") };
        let removed = entries.remove(cursor, name)?;
        directory.share.subdirectories -= u64::from(removed == Kind::Directory);
        if entries.is_empty() {
            *entries = Leaf::default();
        }
        directory.count -= 1;
        self.count -= 1;
        if directory.count == 0 {
            directory.root = Node::Leaf(Leaf::default());
        }
        Some(hash)
    }

    /// Whether this server holds no entry of the directory.
    pub fn is_empty(&self, parent: FileId) -> bool {
        self.directory(parent).is_none_or(|directory| directory.count == 0)
    }

    /// What the entries here say of their directory.
    pub fn share(&self, parent: FileId) -> Share {
        self.directory(parent).map_or(Share::NONE, |directory| directory.share)
    }

    /// Notes when the entries here changed last, if that is later than what is known.
    pub fn note_time(&mut self, parent: FileId, time: i64) {
        self.latest_time = self.latest_time.max(Some(time));
        let share = &mut self.directory_mut(parent).share;
        share.time = share.time.max(time);
    }

    /// The latest time of any share here, now or earlier.
    pub fn latest_time(&self) -> i64 {
        self.latest_time.unwrap_or(NO_TIME)
    }

    pub fn is_announced(&self, parent: FileId) -> bool {
        self.directory(parent).is_some_and(|directory| directory.announced)
    }

    pub fn set_announced(&mut self, parent: FileId) {
        self.directory_mut(parent).announced = true;
    }

    /// After a restart: entries are here, or were here, only because their directory's home knew of this share, and it
    /// keeps that for as long as the directory lives. Names that were submitted to the life before rest on it, also
    /// where no other ones are left.
    pub fn note_restart(&mut self) {
        for index in self.directories.values() {
            if let Some(directory) = self.slab.get_mut(*index) {
                directory.announced = true;
            }
        }
    }

    /// The directory is gone, and what the entries here said of it.
    pub fn forget(&mut self, parent: FileId) {
        if let Some(index) = self.directories.remove(&parent.0)
            && let Some(directory) = self.slab.remove(index)
        {
            self.count -= directory.count;
        }
    }

    /// Directories that have entries here or had some.
    pub fn directories(&self) -> impl Iterator<Item = FileId> {
        self.slab.iter().map(|directory| directory.parent)
    }

    /// Visits the shares in `count` places from `from` on; returns where to go on, or nothing at the end.
    pub fn share_step(&self, from: u32, count: u32, visit: &mut dyn FnMut(FileId, Share)) -> Option<u32> {
        let end = (from + count).min(self.slab.limit());
        for directory in (from..end).filter_map(|index| self.slab.get(index)) {
            visit(directory.parent, directory.share);
        }
        (end < self.slab.limit()).then_some(end)
    }

    /// Entries on this server.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Visits a directory's entries from a cursor on, in the order of cursors, until the visitor says false.
    pub fn walk<V: FnMut(&Dentry<'_>) -> bool>(&self, parent: FileId, from: u64, visit: &mut V) {
        if let Some(directory) = self.directory(parent) {
            directory.root.walk(from.min(CURSOR_MAX + 1), 0, visit);
        }
    }

    /// Visits about `count` entries of all directories from a place on; returns where to go on, or nothing at the end.
    pub fn walk_step(
        &self,
        from: WalkPosition,
        count: usize,
        visit: &mut dyn FnMut(FileId, &Dentry<'_>),
    ) -> Option<WalkPosition> {
        let mut left = count;
        let mut place = from;
        while place.directory < self.slab.limit() {
            if let Some(directory) = self.slab.get(place.directory) {
                let mut last = place.cursor;
                let finished = directory.root.walk(place.cursor, 0, &mut |entry| {
                    // Entries of one cursor are never parted, or going on would lose the later ones.
                    if left == 0 && entry.cursor != last {
                        last = entry.cursor;
                        return false;
                    }
                    last = entry.cursor;
                    left = left.saturating_sub(1);
                    visit(directory.parent, entry);
                    true
                });
                if !finished {
                    return Some(WalkPosition { directory: place.directory, cursor: last });
                }
            }
            place = WalkPosition { directory: place.directory + 1, cursor: 0 };
            if left == 0 {
                return Some(place);
            }
        }
        None
    }

    /// Visits the directories that have entries here, in `count` places from one on; returns where to go on.
    pub fn walk_parents(&self, from: u32, count: u32, visit: &mut dyn FnMut(FileId)) -> Option<u32> {
        let end = from.saturating_add(count).min(self.slab.limit());
        let directories = (from..end).filter_map(|index| self.slab.get(index));
        directories.filter(|directory| directory.count > 0).for_each(|directory| visit(directory.parent));
        (end < self.slab.limit()).then_some(end)
    }

    /// Visits all entries.
    pub fn for_each(&self, visit: &mut dyn FnMut(FileId, &Dentry<'_>)) {
        for directory in self.slab.iter() {
            directory.root.walk_all(&mut |entry| {
                visit(directory.parent, entry);
                true
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const PARENT: FileId = FileId(77 << 20);

    fn check(names: &Names, model: &BTreeMap<(u64, Vec<u8>), u64>) {
        let mut seen = Vec::new();
        names.walk(PARENT, 0, &mut |entry| {
            seen.push(((entry.cursor, entry.name.to_vec()), entry.id.0));
            true
        });
        let expected: Vec<_> = model.iter().map(|(key, id)| (key.clone(), *id)).collect();
        assert_eq!(seen, expected);
        assert_eq!(names.count(), model.len() as u64);
        assert_eq!(names.is_empty(PARENT), model.is_empty());
    }

    /// Goal: the table behaves like an ordered map, through growth and shrinkage.
    /// Method: random puts and removes beside a `BTreeMap`, compared in full now and then.
    #[test]
    fn behaves_like_an_ordered_map() {
        let mut names = Names::default();
        let mut model = BTreeMap::new();
        let mut state = 12345u64;
        for step in 0..20_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let name = format!("file.{}", (state >> 33) % 2000).into_bytes();
            let cursor = cursor_of(PARENT, &name);
            let growing = step < 10_000;
            if (state >> 20) % 4 < if growing { 3 } else { 1 } {
                names.put(PARENT, &name, FileId(step), Kind::File, 0);
                model.insert((cursor, name.clone()), step);
            } else {
                assert_eq!(names.remove(PARENT, &name, 0).is_some(), model.remove(&(cursor, name.clone())).is_some());
            }
            assert_eq!(
                names.get(PARENT, &name, cursor).map(|(id, _)| id.0),
                model.get(&(cursor, name.clone())).copied()
            );
            if step % 997 == 0 {
                check(&names, &model);
            }
        }
        check(&names, &model);
        for (_, name) in model.keys() {
            assert!(names.remove(PARENT, name, 0).is_some());
        }
        check(&names, &BTreeMap::new());
    }

    /// Goal: a listing in pages meets every entry that was there all along exactly once, whatever else changes.
    /// Method: pages of 7 entries; between pages other names are removed and added.
    #[test]
    fn cursors_stay_valid() {
        let mut names = Names::default();
        for index in 0..1000u64 {
            names.put(PARENT, format!("stays.{index}").as_bytes(), FileId(index), Kind::File, 0);
            names.put(PARENT, format!("goes.{index}").as_bytes(), FileId(index), Kind::File, 0);
        }
        let mut seen = Vec::new();
        let mut cursor = 0;
        for round in 0.. {
            let mut page = Vec::new();
            names.walk(PARENT, cursor, &mut |entry| {
                page.push((entry.cursor, entry.id.0, entry.name.to_vec()));
                page.len() < 7
            });
            let Some(last) = page.last() else { break };
            cursor = last.0 + 1;
            seen.extend(page.into_iter().filter(|entry| entry.2.starts_with(b"stays")).map(|entry| entry.1));
            names.remove(PARENT, format!("goes.{round}").as_bytes(), 0);
            names.put(PARENT, format!("new.{round}").as_bytes(), FileId(5), Kind::File, 0);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
    }

    /// Goal: a share tells the last change and the number of directories, over replaced and missing entries, and when
    /// nothing is left of them; a forgotten one is gone.
    #[test]
    fn shares() {
        let mut names = Names::default();
        assert_eq!(names.share(PARENT), Share::NONE);
        names.put(PARENT, b"a", FileId(1), Kind::Directory, 5);
        names.put(PARENT, b"a", FileId(1), Kind::Directory, 7);
        names.put(PARENT, b"b", FileId(2), Kind::File, 6);
        assert_eq!(names.share(PARENT), Share { time: 7, subdirectories: 1 });
        names.put(PARENT, b"b", FileId(3), Kind::Directory, NO_TIME);
        names.put(PARENT, b"a", FileId(4), Kind::File, 8);
        assert_eq!(names.share(PARENT), Share { time: 8, subdirectories: 1 });
        assert!(names.remove(PARENT, b"a", 9).is_some() && names.remove(PARENT, b"b", 10).is_some());
        assert!(names.remove(PARENT, b"b", 11).is_none() && names.is_empty(PARENT));
        assert_eq!((names.share(PARENT), names.latest_time()), (Share { time: 11, subdirectories: 0 }, 11));
        names.put(PARENT, b"c", FileId(4), Kind::File, 12);
        names.forget(PARENT);
        assert_eq!((names.share(PARENT), names.count(), names.directories().count()), (Share::NONE, 0, 0));
    }

    /// Goal: a walk in steps over several directories meets every entry.
    #[test]
    fn steps_meet_everything() {
        let mut names = Names::default();
        for index in 0..5000u64 {
            names.put(FileId((index % 13) << 20), format!("{index}").as_bytes(), FileId(index), Kind::File, 0);
        }
        let mut seen = Vec::new();
        let mut place = Some(WalkPosition::default());
        while let Some(from) = place {
            place = names.walk_step(from, 17, &mut |_, entry| seen.push(entry.id.0));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..5000).collect::<Vec<_>>());
    }
}
