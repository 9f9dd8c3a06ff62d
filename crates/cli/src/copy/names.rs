//! Files of several names, for `tabane cp -a`: the name that is found first is copied, and the others become names of
//! that copy once it is whole.

use super::CopyEntry;
use super::facts::{EntryKind, Facts, Inode};
use std::cell::RefCell;
use std::collections::HashMap;

/// See the module.
#[derive(Default)]
pub struct Names {
    are_kept: bool,
    /// Inodes of several names that were found, each with its copy as soon as that is whole.
    copies: RefCell<HashMap<Inode, Option<Vec<u8>>>>,
    others: RefCell<Vec<CopyEntry>>,
}

impl Names {
    /// Without `are_kept` every name stands for a file of its own.
    pub fn new(are_kept: bool) -> Names {
        Names { are_kept, ..Names::default() }
    }

    fn counts(&self, facts: &Facts) -> bool {
        self.are_kept && facts.link_count > 1 && facts.kind != EntryKind::Directory
    }

    /// Gives the entry back if it is to be copied now: it is the first name of its inode. Others are put aside.
    pub fn first_of(&self, entry: CopyEntry) -> Option<CopyEntry> {
        if self.counts(&entry.facts) {
            let mut copies = self.copies.borrow_mut();
            if copies.contains_key(&entry.facts.inode) {
                self.others.borrow_mut().push(entry);
                return None;
            }
            copies.insert(entry.facts.inode, None);
        }
        Some(entry)
    }

    /// Says that a whole copy of an inode is at this path.
    pub fn note_copied(&self, facts: &Facts, target: &[u8]) {
        if self.counts(facts) {
            self.copies.borrow_mut().insert(facts.inode, Some(target.to_vec()));
        }
    }

    /// Where the copy of an inode is.
    pub fn copy_of(&self, facts: &Facts) -> Option<Vec<u8>> {
        self.copies.borrow().get(&facts.inode).cloned().flatten()
    }

    /// The entries that were put aside, in the order in which they were found.
    pub fn take_others(&self) -> Vec<CopyEntry> {
        self.others.take()
    }
}
