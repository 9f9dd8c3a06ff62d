//! Names and inodes that are being changed together with something on other servers: until that is decided nobody looks
//! at them or changes them.
//!
//! A lock is never waited for by someone who holds another one, so that no deadlock can form: a change of names that
//! meets a lock lets go of all of its own and starts over.

use crate::core::Notice;
use crate::process::statistics::waits::WaitReason;
use crate::publish::attribute_cache::Publisher;
use crate::store::FastMap;
use std::rc::Rc;
use wire::FileId;
use wire::attribute_cache::TableKey;

/// The locked names of a directory, each with who is told of its end.
type LockedNames = Vec<(Box<[u8]>, Notice<()>)>;

/// See the module. Notices are told when a lock is let go of.
#[derive(Default)]
pub struct Locks {
    dentries: FastMap<u64, LockedNames>,
    inodes: FastMap<u64, Notice<()>>,
    /// Shows nothing of what is locked.
    publisher: Option<Rc<Publisher>>,
}

impl Locks {
    /// From now on things are shown, but for what is locked.
    pub fn set_publisher(&mut self, publisher: Rc<Publisher>) {
        self.for_each_dentry(&mut |parent, name| publisher.lock_name(TableKey::of_name(parent, name)));
        self.publisher = Some(publisher);
    }

    /// The common case.
    pub fn is_empty(&self) -> bool {
        self.dentries.is_empty() && self.inodes.is_empty()
    }

    /// The lock of a name, for who wants to wait for its end.
    pub fn of_dentry(&self, parent: FileId, name: &[u8]) -> Option<Notice<()>> {
        if self.dentries.is_empty() {
            return None;
        }
        let held = self.dentries.get(&parent.0)?;
        held.iter().find(|(locked, _)| **locked == *name).map(|(_, notice)| notice.clone())
    }

    /// The lock of an inode.
    pub fn of_inode(&self, file: FileId) -> Option<Notice<()>> {
        if self.inodes.is_empty() {
            return None;
        }
        self.inodes.get(&file.0).cloned()
    }

    /// The locks of all names in a directory.
    pub fn in_directory(&self, directory: FileId) -> Vec<Notice<()>> {
        if self.dentries.is_empty() {
            return Vec::new();
        }
        let held = self.dentries.get(&directory.0);
        held.map_or_else(Vec::new, |held| held.iter().map(|(_, notice)| notice.clone()).collect())
    }

    /// Locks a name; one that is locked stays so. Whether or not it is there, nobody makes it without asking.
    pub fn lock_dentry(&mut self, parent: FileId, name: &[u8]) {
        let held = self.dentries.entry(parent.0).or_default();
        if !held.iter().any(|(locked, _)| **locked == *name) {
            held.push((name.into(), Notice::of(WaitReason::Lock)));
            if let Some(publisher) = &self.publisher {
                publisher.lock_name(TableKey::of_name(parent, name));
            }
        }
    }

    /// Visits all names that are locked.
    pub fn for_each_dentry(&self, visit: &mut dyn FnMut(FileId, &[u8])) {
        for (parent, held) in &self.dentries {
            held.iter().for_each(|(name, _)| visit(FileId(*parent), name));
        }
    }

    pub fn unlock_dentry(&mut self, parent: FileId, name: &[u8]) {
        let Some(held) = self.dentries.get_mut(&parent.0) else { return };
        if let Some(index) = held.iter().position(|(locked, _)| **locked == *name) {
            let (_, notice) = held.swap_remove(index);
            if let Some(publisher) = &self.publisher {
                publisher.unlock_name(TableKey::of_name(parent, name));
            }
            notice.tell(());
        }
        if held.is_empty() {
            self.dentries.remove(&parent.0);
        }
    }

    /// Locks the link count of an inode; one that is locked stays so.
    pub fn lock_inode(&mut self, file: FileId) {
        if let Some(publisher) = &self.publisher {
            publisher.invalidate_inode(file);
        }
        self.inodes.entry(file.0).or_default();
    }

    pub fn unlock_inode(&mut self, file: FileId) {
        if let Some(notice) = self.inodes.remove(&file.0) {
            notice.tell(());
        }
    }
}
