//! Parts of changes that this server coordinates, asked for and not decided yet: a participant that asks how one ended
//! is to wait.

use crate::store::FastMap;
use std::cell::RefCell;

/// Their numbers.
#[derive(Default)]
pub struct Undecided(RefCell<FastMap<u64, ()>>);

impl Undecided {
    /// A part is about to be asked for.
    pub fn add(&self, number: u64) {
        self.0.borrow_mut().insert(number, ());
    }

    /// It was given up, or is in an intent.
    pub fn remove(&self, number: u64) {
        self.0.borrow_mut().remove(&number);
    }

    pub fn contains(&self, number: u64) -> bool {
        self.0.borrow().contains_key(&number)
    }
}
