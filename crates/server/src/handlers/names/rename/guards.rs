//! What a change of names holds until it is decided, and lets go of when it is dropped: locks here, and the numbers of
//! parts that other servers were asked to prepare.

use crate::core::{Core, Failure};
use std::rc::Rc;
use wire::FileId;

/// Locks of this server's own names and inodes, in memory: until the decision nothing has happened, so that a restart
/// may forget them.
pub struct LocalLocks {
    core: Rc<Core>,
    dentries: Vec<(FileId, Box<[u8]>)>,
    inodes: Vec<FileId>,
}

impl LocalLocks {
    pub fn new(core: &Rc<Core>) -> LocalLocks {
        LocalLocks { core: core.clone(), dentries: Vec::new(), inodes: Vec::new() }
    }

    pub fn dentry(&mut self, parent: FileId, name: &[u8]) {
        self.core.tables.borrow_mut().locks.lock_dentry(parent, name);
        self.dentries.push((parent, name.into()));
    }

    pub fn inode(&mut self, file: FileId) {
        self.core.tables.borrow_mut().locks.lock_inode(file);
        self.inodes.push(file);
    }
}

impl Drop for LocalLocks {
    fn drop(&mut self) {
        let locks = &mut self.core.tables.borrow_mut().locks;
        self.dentries.iter().for_each(|(parent, name)| locks.unlock_dentry(*parent, name));
        self.inodes.iter().for_each(|file| locks.unlock_inode(*file));
    }
}

/// What other servers were asked to prepare.
pub struct Participants {
    core: Rc<Core>,
    pub list: Vec<(u32, u64)>,
}

impl Participants {
    pub fn new(core: &Rc<Core>) -> Participants {
        Participants { core: core.clone(), list: Vec::new() }
    }

    /// Has one more server take part. Returns the number of its part. Errors: `NoSpace`.
    pub fn add(&mut self, server: u32) -> Result<u64, Failure> {
        let number = self.core.next_number()?;
        self.core.undecided.add(number);
        self.list.push((server, number));
        Ok(number)
    }
}

impl Drop for Participants {
    fn drop(&mut self) {
        self.list.iter().for_each(|(_, number)| self.core.undecided.remove(*number));
    }
}
