//! An attribute cache of cells: what a server shows to clients of its machine in memory that they have mapped, cell by
//! cell, so that they need not ask.
//!
//! A cell is a few words with a version in front (a sequence lock: odd while it is written to, and another one whenever
//! something else stands there). Who reads copies the words, looks at the version again, and throws the copy away if it
//! has changed. What the cells mean is for those who use them to agree on.
//!
//! Invariants
//! 1. Only the owner writes, and the borrowers map it read-only. Its words are touched as atomic words by both.
//! 2. A version is made odd before the first word changes (release fence between) and even after the last one (release
//!    store). It is read before the first word (acquire load) and after the last (acquire fence between).
//! 3. Versions only grow, also from one life of a server to the next, which begins by emptying everything (`empty`). So
//!    whoever sees the same even version twice has seen the words of one state, which lasted all the time between.
//! 4. A cell whose first word is 0 is empty.

use crate::prefetch::prefetch;
use crate::region::Region;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes of a cell are a multiple of this, a cache line.
pub const CELL_SIZE_MIN: u64 = 64;
const WORD_SIZE: u64 = 8;

/// Where a cell is: its first byte in the attribute cache, and the words that it has beside its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellPlace {
    pub offset: u64,
    pub words: usize,
}

impl CellPlace {
    /// Cell `index` of a row of cells with `size` bytes each that begins at `start`.
    pub fn in_row(start: u64, size: u64, index: u64) -> CellPlace {
        assert!(size.is_multiple_of(CELL_SIZE_MIN) && start.is_multiple_of(CELL_SIZE_MIN));
        CellPlace { offset: start + index * size, words: (size / WORD_SIZE) as usize - 1 }
    }
}

/// Words of an attribute cache in whoever's mapping.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    first: *const AtomicU64,
    size: u64,
}

impl Words {
    /// The attribute cache in `size` bytes at `address`, which must stay mapped for as long as this is used and be
    /// aligned to words.
    pub fn at(address: *const u8, size: u64) -> Words {
        Words { first: address.cast(), size }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// The version and the words of a cell; nothing if it does not lie in the attribute cache.
    fn cell(&self, place: CellPlace) -> Option<(&AtomicU64, &[AtomicU64])> {
        let size = (place.words as u64 + 1) * WORD_SIZE;
        if !place.offset.is_multiple_of(WORD_SIZE) || place.offset > self.size || size > self.size - place.offset {
            return None;
        }
        // SAFETY: just checked; whoever holds this holds the mapping for as long, and the words are only touched as
        // atomic ones.
        let all =
            unsafe { std::slice::from_raw_parts(self.first.add((place.offset / WORD_SIZE) as usize), place.words + 1) };
        all.split_first()
    }

    /// Copies a cell's words and returns the version that they have; nothing if it is empty or just being written to.
    pub fn read(&self, place: CellPlace, into: &mut [u64]) -> Option<u64> {
        let (version, words) = self.cell(place)?;
        let seen = version.load(Ordering::Acquire);
        if !seen.is_multiple_of(2) || words[0].load(Ordering::Relaxed) == 0 {
            return None;
        }
        for (target, word) in into.iter_mut().zip(words) {
            *target = word.load(Ordering::Relaxed);
        }
        self.is_same(place, seen).then_some(seen)
    }

    /// A word outside of all cells; nothing if it does not lie in the attribute cache.
    pub fn word(&self, offset: u64) -> Option<&AtomicU64> {
        self.cell(CellPlace { offset, words: 0 }).map(|(word, _)| word)
    }

    /// Whether a cell still has the version that it had.
    pub fn is_same(&self, place: CellPlace, seen: u64) -> bool {
        fence(Ordering::Acquire);
        self.cell(place).is_some_and(|(version, _)| version.load(Ordering::Relaxed) == seen)
    }
}

/// An attribute cache, in its owner's hands.
pub struct AttributeCache {
    words: Words,
    /// Whether anybody may look at it: until then nothing is written.
    is_published: Cell<bool>,
    /// See `keep_everything`.
    keeps: Cell<bool>,
    _memory: Rc<dyn Region>,
}

impl AttributeCache {
    /// The attribute cache in a region from `offset` on, which is allocated; whatever an earlier life has left there is
    /// gone.
    pub(crate) fn new(memory: Rc<dyn Region>, offset: u64) -> AttributeCache {
        let size = memory.size().saturating_sub(offset) / CELL_SIZE_MIN * CELL_SIZE_MIN;
        let address = memory.base().cast_const().wrapping_add(offset as usize);
        let attribute_cache = AttributeCache {
            words: Words::at(address, size),
            is_published: Cell::new(false),
            keeps: Cell::new(false),
            _memory: memory,
        };
        attribute_cache.empty();
        attribute_cache
    }

    /// Bytes that it has.
    pub fn size(&self) -> u64 {
        self.words.size()
    }

    pub(crate) fn words(&self) -> Words {
        self.words
    }

    /// From now on somebody may look at it.
    pub(crate) fn publish(&self) {
        self.is_published.set(true);
    }

    /// Whether somebody may look at it, so that it is worth while to write to it.
    pub fn is_published(&self) -> bool {
        self.is_published.get()
    }

    /// From now on nothing is taken away any more: a fault that tests must notice.
    pub(crate) fn keep_everything(&self) {
        self.keeps.set(true);
    }

    /// Empties all cells. They are taken for one line each: of a larger one the first line is its beginning, and in the
    /// others nothing counts once that is empty.
    fn empty(&self) {
        for index in 0..self.size() / CELL_SIZE_MIN {
            let place = CellPlace::in_row(0, CELL_SIZE_MIN, index);
            let Some((version, words)) = self.words.cell(place) else {
                unreachable!("the line lies in the attribute cache")
            };
            let last = version.load(Ordering::Relaxed);
            if last != 0 || words[0].load(Ordering::Relaxed) != 0 {
                // A life that ended while it wrote has left an odd one.
                change(version, last | 1, || words[0].store(0, Ordering::Relaxed));
            }
        }
    }

    /// A word outside of all cells, which clients that may submit see as the last step has left it. Panics when it does
    /// not lie in the attribute cache.
    pub fn word(&self, offset: u64) -> u64 {
        self.words.word(offset).expect("a word lies in the attribute cache").load(Ordering::Relaxed)
    }

    /// Writes such a word. Panics when it does not lie in the attribute cache.
    pub fn set_word(&self, offset: u64, value: u64) {
        self.words.word(offset).expect("a word lies in the attribute cache").store(value, Ordering::Relaxed);
    }

    /// Has a cell fetched from memory, for a change that comes soon.
    pub fn prefetch(&self, place: CellPlace) {
        if let Some((_, words)) = self.words.cell(place) {
            prefetch(words);
        }
    }

    /// The words of a cell into `into`. False when it is empty.
    pub fn get(&self, place: CellPlace, into: &mut [u64]) -> bool {
        self.words.read(place, into).is_some()
    }

    /// Writes a cell; words that are not given become 0. Panics when it does not lie in the attribute cache.
    pub fn put(&self, place: CellPlace, content: &[u64]) {
        let Some((version, words)) = self.words.cell(place) else { panic!("a cell lies in the attribute cache") };
        change(version, version.load(Ordering::Relaxed) + 1, || {
            for (index, word) in words.iter().enumerate() {
                word.store(content.get(index).copied().unwrap_or(0), Ordering::Relaxed);
            }
        });
    }

    /// Empties a cell. Whoever looks from now on finds it so, or sees that it has changed. Panics when it does not lie
    /// in the attribute cache.
    pub fn clear(&self, place: CellPlace) {
        let Some((version, words)) = self.words.cell(place) else { panic!("a cell lies in the attribute cache") };
        if words[0].load(Ordering::Relaxed) != 0 && !self.keeps.get() {
            change(version, version.load(Ordering::Relaxed) + 1, || words[0].store(0, Ordering::Relaxed));
            // What is done next is seen after this.
            fence(Ordering::Release);
        }
    }
}

/// Changes words under an odd version (invariant 2).
fn change(version: &AtomicU64, odd: u64, write: impl FnOnce()) {
    version.store(odd, Ordering::Relaxed);
    fence(Ordering::Release);
    write();
    version.store(odd + 1, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::OpenMode;
    use crate::sim::World;

    const SIZE: u64 = 1024;

    fn region() -> Rc<dyn Region> {
        let world = World::new(1);
        let reactor = world.reactor(world.add_node("server", [10, 0, 0, 1].into()));
        let storage = reactor.storage("store".as_ref()).expect("storage");
        let region = storage.open("attribute-cache", SIZE, OpenMode::CreateNew).expect("room for an attribute cache");
        region.allocate(0, SIZE).expect("room for an attribute cache");
        region
    }

    fn place(index: u64) -> CellPlace {
        CellPlace::in_row(128, 128, index)
    }

    /// Goal: what is put is read, and whoever has read it before sees that it has changed, also when the same is put
    /// again.
    #[test]
    fn changes_are_seen() {
        let attribute_cache = AttributeCache::new(region(), 0);
        let mut words = [0; 15];
        assert_eq!(attribute_cache.words().read(place(0), &mut words), None);
        attribute_cache.put(place(0), &[1, 2, 3]);
        let seen = attribute_cache.words().read(place(0), &mut words).expect("it is there");
        assert_eq!(words[..4], [1, 2, 3, 0]);
        assert!(attribute_cache.words().is_same(place(0), seen));
        attribute_cache.put(place(1), &[9]);
        assert!(attribute_cache.words().is_same(place(0), seen), "another cell");
        attribute_cache.put(place(0), &[1, 2, 3]);
        assert!(!attribute_cache.words().is_same(place(0), seen));
        attribute_cache.clear(place(0));
        assert_eq!(attribute_cache.words().read(place(0), &mut words), None);
        assert!(attribute_cache.get(place(1), &mut words));
    }

    /// Goal: a new life shows nothing of the one before, and versions go on, also where that one ended within a change.
    #[test]
    fn lives() {
        let memory = region();
        let attribute_cache = AttributeCache::new(memory.clone(), 0);
        let mut words = [0; 15];
        attribute_cache.put(place(0), &[1; 15]);
        attribute_cache.put(place(1), &[2; 15]);
        let seen = attribute_cache.words().read(place(0), &mut words).expect("it is there");
        let all = attribute_cache.words();
        let (version, _) = all.cell(place(1)).expect("it lies there");
        version.store(version.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let next = AttributeCache::new(memory, 0);
        for index in 0..2 {
            assert_eq!(next.words().read(place(index), &mut words), None);
            next.put(place(index), &[1; 15]);
            assert!(next.words().read(place(index), &mut words).is_some_and(|version| version.is_multiple_of(2)));
        }
        assert!(!next.words().is_same(place(0), seen));
    }

    /// Goal: places beyond the attribute cache are refused, wherever they come from.
    #[test]
    fn bounds() {
        let attribute_cache = AttributeCache::new(region(), 512);
        assert_eq!(attribute_cache.size(), SIZE - 512);
        let mut words = [0; 7];
        for offset in [512, u64::MAX, u64::MAX - 63, 1] {
            assert_eq!(attribute_cache.words().read(CellPlace { offset, words: 7 }, &mut words), None);
        }
        assert_eq!(attribute_cache.words().read(CellPlace { offset: 448, words: 8 }, &mut words), None);
    }
}
