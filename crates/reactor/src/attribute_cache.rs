//! An attribute cache of cells: what a server shows to clients of its machine in memory that they have mapped, cell by
//! cell, so that they need not ask.
//!
//! What a cell is, and how it is read while it may be written to, is in [`shm::cells`]; what the cells mean is for
//! those who use them to agree on.

use crate::prefetch::prefetch;
use crate::region::Region;
use shm::cells::{CELL_SIZE_MIN, CellPlace, CellRow, SequenceCell};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// An attribute cache, in its owner's hands.
pub struct AttributeCache {
    row: CellRow,
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
        // SAFETY: so many bytes of the region, which is held with this; clients have them mapped to read them as this
        // row alone.
        let row = unsafe { CellRow::at(address, size) };
        row.empty();
        AttributeCache { row, is_published: Cell::new(false), keeps: Cell::new(false), _memory: memory }
    }

    /// Bytes that it has.
    pub fn size(&self) -> u64 {
        self.row.size()
    }

    pub(crate) fn row(&self) -> CellRow {
        self.row
    }

    fn cell(&self, place: CellPlace) -> &SequenceCell {
        self.row.cell(place).expect("a cell lies in the attribute cache")
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

    /// A word outside of all cells, which clients that may submit see as the last step has left it. Panics when it does
    /// not lie in the attribute cache.
    pub fn word(&self, offset: u64) -> u64 {
        self.row.word(offset).expect("a word lies in the attribute cache").load(Ordering::Relaxed)
    }

    /// Writes such a word. Panics when it does not lie in the attribute cache.
    pub fn set_word(&self, offset: u64, value: u64) {
        self.row.word(offset).expect("a word lies in the attribute cache").store(value, Ordering::Relaxed);
    }

    /// Has a cell fetched from memory, for a change that comes soon.
    pub fn prefetch(&self, place: CellPlace) {
        if let Some(cell) = self.row.cell(place) {
            prefetch(cell.words());
        }
    }

    /// Has the line of a word outside of all cells fetched.
    pub fn prefetch_word(&self, offset: u64) {
        if let Some(word) = self.row.word(offset) {
            prefetch(std::slice::from_ref(word));
        }
    }

    /// The words of a cell into `into`. False when it is empty.
    pub fn get(&self, place: CellPlace, into: &mut [u64]) -> bool {
        self.row.cell(place).is_some_and(|cell| cell.read(into).is_some())
    }

    /// Writes a cell; words that are not given become 0. Panics when it does not lie in the attribute cache.
    pub fn put(&self, place: CellPlace, content: &[u64]) {
        self.cell(place).put(content);
    }

    /// Empties a cell. Whoever looks from now on finds it so, or sees that it has changed. Panics when it does not lie
    /// in the attribute cache.
    pub fn clear(&self, place: CellPlace) {
        if !self.keeps.get() {
            self.cell(place).clear();
        }
    }
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

    fn read(attribute_cache: &AttributeCache, place: CellPlace, into: &mut [u64]) -> Option<u64> {
        attribute_cache.row().cell(place)?.read(into)
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
        assert_eq!(read(&attribute_cache, place(0), &mut words), None);
        attribute_cache.put(place(0), &[1, 2, 3]);
        let seen = read(&attribute_cache, place(0), &mut words).expect("it is there");
        assert_eq!(words[..4], [1, 2, 3, 0]);
        assert!(attribute_cache.cell(place(0)).is_same(seen));
        attribute_cache.put(place(1), &[9]);
        assert!(attribute_cache.cell(place(0)).is_same(seen), "another cell");
        attribute_cache.put(place(0), &[1, 2, 3]);
        assert!(!attribute_cache.cell(place(0)).is_same(seen));
        attribute_cache.clear(place(0));
        assert_eq!(read(&attribute_cache, place(0), &mut words), None);
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
        let seen = read(&attribute_cache, place(0), &mut words).expect("it is there");
        let row = attribute_cache.row();
        let version = row.word(place(1).offset).expect("it lies there");
        version.store(version.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let next = AttributeCache::new(memory, 0);
        for index in 0..2 {
            assert_eq!(read(&next, place(index), &mut words), None);
            next.put(place(index), &[1; 15]);
            assert!(read(&next, place(index), &mut words).is_some_and(|version| version.is_multiple_of(2)));
        }
        assert!(!next.cell(place(0)).is_same(seen));
    }

    /// Goal: places beyond the attribute cache are refused, wherever they come from.
    #[test]
    fn bounds() {
        let attribute_cache = AttributeCache::new(region(), 512);
        assert_eq!(attribute_cache.size(), SIZE - 512);
        let mut words = [0; 7];
        for offset in [512, u64::MAX, u64::MAX - 63, 1] {
            assert_eq!(read(&attribute_cache, CellPlace { offset, words: 7 }, &mut words), None);
        }
        assert_eq!(read(&attribute_cache, CellPlace { offset: 448, words: 8 }, &mut words), None);
    }
}
