//! What others have asked a server to do to the tree behind, and ask again about until it has ended.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash};
use std::rc::Rc;
use wire::IdHasher;

/// Something that was asked for.
pub trait Wish {
    /// Whether nothing is being done for it any more.
    fn is_done(&self) -> bool;
}

/// The last wish about each of some things. Of those that have ended the later half is kept whenever there are too many:
/// one that was forgotten before its end was asked for is done again, or counts as if everything had been changed since.
/// Those that have not ended are all kept; whoever asks has a bounded number of them under way.
pub struct Wishes<K, W, S = BuildHasherDefault<IdHasher>> {
    /// With their numbers, in the order in which they came.
    by_key: RefCell<HashMap<K, (u64, Rc<W>), S>>,
    count_max: usize,
    next_number: Cell<u64>,
}

impl<K: Eq + Hash, W: Wish, S: BuildHasher + Default> Wishes<K, W, S> {
    pub fn new(count_max: usize) -> Wishes<K, W, S> {
        Wishes { by_key: RefCell::default(), count_max, next_number: Cell::new(0) }
    }

    pub fn get(&self, key: &K) -> Option<Rc<W>> {
        self.by_key.borrow().get(key).map(|(_, wish)| wish.clone())
    }

    /// Whether one of them has not ended.
    pub fn are_at_work(&self) -> bool {
        self.by_key.borrow().values().any(|(_, wish)| !wish.is_done())
    }

    /// Adds a wish, and returns the one about the same thing before it.
    pub fn put(&self, key: K, wish: Rc<W>) -> Option<Rc<W>> {
        let number = self.next_number.replace(self.next_number.get() + 1);
        let mut by_key = self.by_key.borrow_mut();
        if by_key.len() >= self.count_max {
            let ended = by_key.values().filter(|(_, wish)| wish.is_done());
            let mut ended: Vec<u64> = ended.map(|(number, _)| *number).collect();
            ended.sort_unstable();
            ended.truncate(ended.len().div_ceil(2));
            by_key.retain(|_, (number, _)| ended.binary_search(number).is_err());
        }
        by_key.insert(key, (number, wish)).map(|(_, before)| before)
    }
}
