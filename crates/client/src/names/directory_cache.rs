//! The directory cache: canonical path -> directory, bounded, with the ancestors that requests carry; and directories
//! by their ids, for callers who have no paths.
//!
//! Invariants
//! 1. Only real directories are kept, under paths without symbolic links: a link can change without notice, while a
//!    directory that was removed or renamed is announced by the servers (`StaleDirectory`, tree numbers).
//! 2. A directory is never kept after one of its ancestors, by id, was forgotten.
//! 3. The root is not in the tables; it never goes away. Who may use it may be known, and turn out wrong, also while
//!    the tables are empty.
//! 4. A directory that is known by its id alone is in no path: it has neither ancestors nor parent, nothing is kept
//!    beneath it, and only who may use it can turn out wrong.
//! 5. When all is forgotten, because a server may have taken back what it had told, nothing is kept beneath what was
//!    found before: whoever is still on the way has found it as it never was. Numbers of tree changes don't tell, for
//!    these are taken back too.

use crate::names::rights::Rights;
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use wire::FileId;
use wire::limits::ANCESTOR_COUNT_MAX;
use wire::messages::Ancestors;

/// A resolved directory.
#[derive(Debug, PartialEq)]
pub(crate) struct Directory {
    pub id: FileId,
    /// Canonical path: names joined by `/`, without one in front; empty for the root.
    pub path: Vec<u8>,
    /// Nearest first, without the directory itself.
    pub ancestors: Ancestors,
    /// `None` for the root, and for a directory that is known by its id alone.
    pub parent: Option<Rc<Directory>>,
    /// Who may use it, as last seen.
    pub rights: Cell<Option<Rights>>,
    /// In this epoch of rights the client's user was found to be allowed to search it and all on the way to it.
    pub searchable_in: Cell<u64>,
    /// Of a directory that a path ended at: the last tree change known when it was resolved. Else 0.
    pub known: Cell<u64>,
}

impl Directory {
    pub(crate) fn root() -> Rc<Directory> {
        Rc::new(Directory::new(FileId::ROOT, Vec::new(), Ancestors::default(), None))
    }

    fn new(id: FileId, path: Vec<u8>, ancestors: Ancestors, parent: Option<Rc<Directory>>) -> Directory {
        let (rights, searchable_in, known) = (Cell::new(None), Cell::new(0), Cell::new(0));
        Directory { id, path, ancestors, parent, rights, searchable_in, known }
    }

    /// A directory of which only the id is known.
    fn by_id(id: FileId) -> Rc<Directory> {
        Rc::new(Directory::new(id, Vec::new(), Ancestors::default(), None))
    }

    /// Whether its path is known.
    pub(crate) fn has_path(&self) -> bool {
        self.parent.is_some() || self.id == FileId::ROOT
    }

    /// The directory `name` with the given id, within this one.
    pub(crate) fn child(self: &Rc<Self>, name: &[u8], id: FileId) -> Rc<Directory> {
        let above = self.ancestors.0.len().min(ANCESTOR_COUNT_MAX - 1);
        let mut ancestors = Vec::with_capacity(above + 1);
        ancestors.push(self.id);
        ancestors.extend_from_slice(&self.ancestors.0[..above]);
        let path = self.child_path(name);
        Rc::new(Directory::new(id, path, Ancestors(ancestors), Some(self.clone())))
    }

    /// Whether `parent` is, as we know it, the directory that this one is in.
    pub(crate) fn lies_directly_in(&self, parent: &Rc<Directory>) -> bool {
        self.parent.as_ref().is_some_and(|own| Rc::ptr_eq(own, parent))
    }

    /// Canonical path of an entry of this directory.
    pub(crate) fn child_path(&self, name: &[u8]) -> Vec<u8> {
        let mut path = Vec::with_capacity(self.path.len() + 1 + name.len());
        path.extend_from_slice(&self.path);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }

    /// Its name in the directory that it is in; empty for the root.
    pub(crate) fn name(&self) -> &[u8] {
        match self.path.iter().rposition(|byte| *byte == b'/') {
            Some(position) => &self.path[position + 1..],
            None => &self.path,
        }
    }

    /// Notes that a path ended here, when tree change `known` was the last one known. Who has it from the cache has it
    /// as of the last change there, so that the higher number is right for all.
    pub(crate) fn note_known(&self, known: u64) {
        self.known.set(self.known.get().max(known));
    }

    /// Whether this is the directory `id` or lies beneath it. What was seen of that one counts no more then.
    fn lies_in(&self, id: FileId) -> bool {
        let mut directory = Some(self);
        while let Some(here) = directory {
            if here.id == id {
                here.rights.set(None);
                return true;
            }
            directory = here.parent.as_deref();
        }
        false
    }

    /// Bytes that the directory takes in the cache, roughly.
    fn weight(&self) -> usize {
        self.path.len() * 2 + self.ancestors.0.len() * size_of::<FileId>() + ENTRY_OVERHEAD
    }
}

impl std::fmt::Display for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.has_path() {
            true => write!(f, "/{}", String::from_utf8_lossy(&self.path)),
            false => write!(f, "{}", self.id),
        }
    }
}

/// Table slot, reference counts and allocator overhead of one entry, roughly, in bytes.
const ENTRY_OVERHEAD: usize = 256;
/// Bytes of the cache for each directory that may be known by its id alone.
const BY_ID_WEIGHT: usize = 512;

type Table = HashMap<Vec<u8>, Rc<Directory>>;
type IdTable = HashMap<FileId, Rc<Directory>>;

/// Two generations approximate "least recently used": what is used moves to the young one; when that is full the old
/// one is dropped and the young one becomes it.
pub(crate) struct DirectoryCache {
    root: Rc<Directory>,
    young: Table,
    old: Table,
    young_weight: usize,
    weight_max: usize,
    /// What was found last, mostly what is asked for next. Unset whenever the tables change.
    last: Option<Rc<Directory>>,
    young_by_id: IdTable,
    old_by_id: IdTable,
    /// Rises whenever rights that were seen count no more.
    rights_epoch: u64,
}

impl DirectoryCache {
    /// A cache of which one of the two generations takes so many bytes at most.
    pub(crate) fn new(weight_max: usize) -> DirectoryCache {
        DirectoryCache {
            root: Directory::root(),
            young: Table::new(),
            old: Table::new(),
            young_weight: 0,
            weight_max,
            last: None,
            young_by_id: IdTable::new(),
            old_by_id: IdTable::new(),
            rights_epoch: 1,
        }
    }

    pub(crate) fn root(&self) -> Rc<Directory> {
        self.root.clone()
    }

    /// The directory at a canonical path.
    pub(crate) fn get(&mut self, path: &[u8]) -> Option<Rc<Directory>> {
        if path.is_empty() {
            return Some(self.root.clone());
        }
        if let Some(last) = self.last.as_ref().filter(|last| last.path == path) {
            return Some(last.clone());
        }
        if let Some(directory) = self.young.get(path) {
            self.last = Some(directory.clone());
            return Some(directory.clone());
        }
        let directory = self.old.remove(path)?;
        self.insert(directory.clone());
        Some(directory)
    }

    /// A directory by its id alone; who may use it is known if it was asked before.
    pub(crate) fn by_id(&mut self, id: FileId) -> Rc<Directory> {
        if id == FileId::ROOT {
            return self.root.clone();
        }
        if let Some(directory) = self.young_by_id.get(&id) {
            return directory.clone();
        }
        let directory = self.old_by_id.remove(&id).unwrap_or_else(|| Directory::by_id(id));
        if self.young_by_id.len() * BY_ID_WEIGHT >= self.weight_max {
            self.old_by_id = std::mem::take(&mut self.young_by_id);
        }
        self.young_by_id.insert(id, directory.clone());
        directory
    }

    pub(crate) fn insert(&mut self, directory: Rc<Directory>) {
        if directory.parent.is_none() {
            return; // Invariant 3.
        }
        self.last = None;
        let weight = directory.weight();
        if self.young_weight + weight > self.weight_max {
            self.old = std::mem::take(&mut self.young);
            self.young_weight = 0;
        }
        if self.young.insert(directory.path.clone(), directory).is_none() {
            self.young_weight += weight;
        }
    }

    /// Forgets one path. Nothing may be cached beneath it: for a directory that was just found empty and removed.
    pub(crate) fn forget_path(&mut self, path: &[u8]) {
        self.last = None;
        if let Some(directory) = self.young.remove(path) {
            self.young_weight -= directory.weight();
        }
        self.old.remove(path);
    }

    pub(crate) fn rights_epoch(&self) -> u64 {
        self.rights_epoch
    }

    /// Keeps who may use a directory, as its home has just said.
    pub(crate) fn note_rights(&mut self, directory: &Directory, rights: Rights) {
        if directory.rights.replace(Some(rights)).is_some_and(|before| before != rights) {
            self.rights_epoch += 1;
        }
    }

    /// Forgets a directory and everything beneath it, and who may use it.
    pub(crate) fn forget(&mut self, id: FileId) {
        self.last = None;
        self.rights_epoch += 1;
        self.root.lies_in(id);
        let by_id = self.young_by_id.remove(&id).or_else(|| self.old_by_id.remove(&id));
        by_id.inspect(|directory| directory.rights.set(None));
        let mut dropped = 0;
        self.young.retain(|_, directory| {
            let keep = !directory.lies_in(id);
            dropped += if keep { 0 } else { directory.weight() };
            keep
        });
        self.young_weight -= dropped;
        self.old.retain(|_, directory| !directory.lies_in(id));
    }

    pub(crate) fn forget_all(&mut self) {
        self.last = None;
        self.rights_epoch += 1;
        self.root.rights.set(None);
        self.root = Directory::root();
        let by_id = self.young_by_id.values().chain(self.old_by_id.values());
        self.young.values().chain(self.old.values()).chain(by_id).for_each(|directory| directory.rights.set(None));
        self.young.clear();
        self.old.clear();
        self.young_by_id.clear();
        self.old_by_id.clear();
        self.young_weight = 0;
    }

    /// Whether a directory was found since all was last forgotten (invariant 5). One that is known by its id alone may
    /// have been dropped since.
    pub(crate) fn has_found(&self, directory: &Rc<Directory>) -> bool {
        if !directory.has_path() {
            let by_id = self.young_by_id.get(&directory.id).or_else(|| self.old_by_id.get(&directory.id));
            return by_id.is_some_and(|found| Rc::ptr_eq(found, directory));
        }
        let mut top = directory;
        while let Some(parent) = &top.parent {
            top = parent;
        }
        Rc::ptr_eq(top, &self.root)
    }

    /// Whether nothing is known that a tree change could make wrong (invariant 3).
    pub(crate) fn is_empty(&self) -> bool {
        let by_id = self.young_by_id.is_empty() && self.old_by_id.is_empty();
        by_id && self.young.is_empty() && self.old.is_empty() && self.root.rights.get().is_none()
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> FileId {
        FileId::new(number, 5)
    }

    /// Goal: a directory is found by its canonical path and names its ancestors, nearest first.
    #[test]
    fn ancestors_are_nearest_first() {
        let mut cache = DirectoryCache::new(8 << 20);
        let a = cache.root().child(b"a", id(10));
        let b = a.child(b"b", id(11));
        cache.insert(a);
        cache.insert(b.clone());
        let found = cache.get(b"a/b").expect("was inserted");
        assert_eq!(found.ancestors.0, vec![id(10), FileId::ROOT]);
        assert_eq!(found, b);
        assert_eq!(cache.get(b"b"), None);
        assert_eq!(cache.get(b"").map(|root| root.id), Some(FileId::ROOT));
    }

    /// Goal: forgetting an id drops what lies beneath it and nothing else.
    #[test]
    fn forget_drops_what_lies_beneath() {
        let mut cache = DirectoryCache::new(8 << 20);
        let a = cache.root().child(b"a", id(10));
        let b = a.child(b"b", id(11));
        let c = b.child(b"c", id(12));
        let other = cache.root().child(b"other", id(13));
        for directory in [a, b, c, other] {
            cache.insert(directory);
        }
        assert!(cache.get(b"a/b").is_some());
        cache.forget(id(11));
        assert!(cache.get(b"a/b").is_none(), "found last, and forgotten");
        assert!(cache.get(b"a").is_some() && cache.get(b"other").is_some());
        assert!(cache.get(b"a/b").is_none() && cache.get(b"a/b/c").is_none());
        assert!(cache.get(b"a").is_some());
        cache.forget_path(b"a");
        assert!(cache.get(b"a").is_none() && cache.get(b"other").is_some());
        assert_eq!(cache.count(), 1);
        let (root, by_id) = (cache.root(), cache.by_id(id(14)));
        let beneath = root.child(b"d", id(15));
        assert!(cache.has_found(&root) && cache.has_found(&beneath) && cache.has_found(&by_id));
        cache.forget_all();
        assert!(cache.get(b"other").is_none());
        assert_eq!((cache.count(), cache.young_weight), (0, 0));
        assert!(!cache.has_found(&root) && !cache.has_found(&beneath) && !cache.has_found(&by_id));
        assert!(cache.has_found(&cache.root().child(b"d", id(15))));
    }

    /// Goal: the cache stays within its bound and keeps what is used often.
    /// Method: ten thousand directories pass through a small cache while one of them is looked up again and again.
    #[test]
    fn bounded_and_keeps_the_used() {
        let mut cache = DirectoryCache::new(64 << 10);
        let used = cache.root().child(b"used", id(1));
        cache.insert(used);
        for number in 2..10_000 {
            let directory = cache.root().child(format!("directory {number}").as_bytes(), id(number));
            cache.insert(directory);
            assert!(cache.get(b"used").is_some(), "forgotten after {number}");
            assert!(cache.count() * ENTRY_OVERHEAD <= 2 * (64 << 10));
        }
    }

    /// Goal: very deep directories name no more ancestors than a request may carry.
    #[test]
    fn ancestors_are_bounded() {
        let mut directory = Directory::root();
        for depth in 0..200 {
            directory = directory.child(b"d", id(depth + 2));
        }
        assert_eq!(directory.ancestors.0.len(), ANCESTOR_COUNT_MAX);
        assert_eq!(directory.ancestors.0[0], id(200));
    }
}
