//! What others have asked a server to do to the tree behind, and ask again about until it has ended.

use reactor::Nanos;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash};
use std::rc::Rc;
use wire::IdHasher;

/// How long one that has ended stays for whoever asked for it, who may have gone.
const UNSETTLED_NS: Nanos = 60_000_000_000;

/// How far a wish is.
#[derive(Default)]
pub struct WishState {
    ended: Cell<Option<Nanos>>,
    is_settled: Cell<bool>,
    /// This server asked for it itself, and settles it in any case.
    is_own: bool,
}

impl WishState {
    /// Of a wish of this server's own.
    pub fn own() -> WishState {
        WishState { is_own: true, ..WishState::default() }
    }

    /// Nothing is being done for it any more.
    pub fn end(&self, now: Nanos) {
        self.ended.set(Some(now));
    }

    pub fn is_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    /// Whoever asked for it knows all that he will ask.
    pub fn settle(&self) {
        self.is_settled.set(true);
    }

    fn may_go(&self, now: Nanos) -> bool {
        let Some(ended) = self.ended.get() else { return false };
        self.is_settled.get() || !self.is_own && now.saturating_sub(ended) >= UNSETTLED_NS
    }
}

/// Something that was asked for.
pub trait Wish {
    fn state(&self) -> &WishState;
}

/// The last wish about each of some things. When there are too many, then of those that have ended and are settled, or
/// ended long ago, the older half goes: asked about again, one is done again, or counts as if everything had been
/// changed since. The others all stay: whoever asks has a bounded number of them under way, and of those that failed as
/// many stay as can fail in the meantime.
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
        self.by_key.borrow().values().any(|(_, wish)| !wish.state().is_ended())
    }

    /// Adds a wish, and returns the one about the same thing before it.
    pub fn put(&self, now: Nanos, key: K, wish: Rc<W>) -> Option<Rc<W>> {
        let number = self.next_number.replace(self.next_number.get() + 1);
        let mut by_key = self.by_key.borrow_mut();
        if by_key.len() >= self.count_max {
            let done = by_key.values().filter(|(_, wish)| wish.state().may_go(now));
            let mut done: Vec<u64> = done.map(|(number, _)| *number).collect();
            done.sort_unstable();
            done.truncate(done.len().div_ceil(2));
            by_key.retain(|_, (number, _)| done.binary_search(number).is_err());
        }
        by_key.insert(key, (number, wish)).map(|(_, before)| before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Plain(WishState);

    impl Wish for Plain {
        fn state(&self) -> &WishState {
            &self.0
        }
    }

    /// Goal: beyond the bound the older half of what is settled goes, what is not stays until it has ended for long,
    /// and what is at work stays whatever its age.
    #[test]
    fn bounded() {
        let wishes: Wishes<u64, Plain> = Wishes::new(4);
        let put = |now, key| {
            let wish = Rc::new(Plain::default());
            assert!(wishes.put(now, key, wish.clone()).is_none());
            wish
        };
        let known = || (0..20).filter(|key| wishes.get(key).is_some()).collect::<Vec<_>>();
        let first: Vec<Rc<Plain>> = (0..4).map(|key| put(0, key)).collect();
        let _at_work = put(1, 4);
        assert_eq!(known(), [0, 1, 2, 3, 4]);
        first[..3].iter().for_each(|wish| wish.0.end(1));
        first[1..3].iter().for_each(|wish| wish.0.settle());
        put(2, 5);
        assert_eq!(known(), [0, 2, 3, 4, 5]);
        put(UNSETTLED_NS + 1, 6);
        assert_eq!(known(), [2, 3, 4, 5, 6]);
        let own = Rc::new(Plain(WishState::own()));
        assert!(wishes.put(UNSETTLED_NS, 7, own.clone()).is_none());
        own.0.end(UNSETTLED_NS);
        put(3 * UNSETTLED_NS, 8);
        assert!(known().contains(&7), "a wish of one's own goes by time");
        assert!(wishes.are_at_work() && wishes.put(0, 3, Rc::new(Plain::default())).is_some());
    }
}
