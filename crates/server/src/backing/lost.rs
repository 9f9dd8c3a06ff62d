//! What was known of directories of the backing tree and is known no more: names in them, listings, names that can't be
//! looked at. Requests that were prepared before look again (`preparation::lacking`).
//!
//! Invariant: the number of a directory rises with each loss in it. It may rise without one.

use crate::store::FastMap;
use std::cell::{Cell, RefCell};
use wire::FileId;

/// Directories whose losses are counted by themselves.
const DIRECTORIES_MAX: usize = 4096;

/// See the module.
pub struct Lost {
    memos: usize,
    /// All losses, and what all directories of which nothing else is known have.
    all: Cell<u64>,
    floor: Cell<u64>,
    counts: RefCell<FastMap<u64, u64>>,
}

impl Lost {
    /// `memos`: of how many directories at most.
    pub fn new(memos: usize) -> Lost {
        Lost { memos, all: Cell::new(0), floor: Cell::new(0), counts: RefCell::default() }
    }

    /// Something of a directory is known no more.
    pub fn note(&self, directory: FileId) {
        let mut counts = self.counts.borrow_mut();
        self.all.set(self.all.get() + 1);
        if counts.len() >= DIRECTORIES_MAX.min(self.memos) {
            counts.clear();
            // More than any directory had.
            self.floor.set(self.all.get());
        }
        *counts.entry(directory.0).or_default() += 1;
    }

    /// The same of any.
    pub fn note_all(&self) {
        self.all.set(self.all.get() + 1);
        self.counts.borrow_mut().clear();
        self.floor.set(self.all.get());
    }

    pub fn number(&self, directory: FileId) -> u64 {
        self.floor.get() + self.counts.borrow().get(&directory.0).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each loss moves the number of its directory, however many others there are.
    #[test]
    fn numbers_rise() {
        let lost = Lost::new(usize::MAX);
        let mut last = [0; 3];
        for round in 0..3 * DIRECTORIES_MAX as u64 {
            lost.note(FileId(1_000 + round));
            let which = round % 3;
            lost.note(FileId(which));
            let number = lost.number(FileId(which));
            assert!(number > last[which as usize], "round {round}");
            last[which as usize] = number;
            assert!(lost.counts.borrow().len() <= DIRECTORIES_MAX);
        }
        lost.note_all();
        assert!((0..3).all(|which| lost.number(FileId(which)) > last[which as usize]));
    }
}
