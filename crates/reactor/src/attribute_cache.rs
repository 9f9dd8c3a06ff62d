//! An attribute cache of cells: what a server shows to clients of its machine in memory that they have mapped, cell by
//! cell, so that they need not ask.
//!
//! What a cell is, and how it is read while it may be written to, is in [`shm::cells`]; what the cells mean is for
//! those who use them to agree on.

use crate::prefetch::prefetch;
use crate::region::Region;
use shm::cells::{CELL_SIZE_MIN, CellPlace, CellRow, SequenceCell};
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::attribute_cache::{BLOCK_SIZE, CELL_WORDS, CELLS_PER_BLOCK, USED_OFFSET};

/// What an owner may do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CacheFault {
    #[default]
    None,
    /// Nothing is taken away any more.
    KeepsEverything,
    /// What finds no room is left out as if it were not there.
    OmitsInSilence,
}

/// An attribute cache, in its owner's hands.
pub struct AttributeCache {
    row: CellRow,
    /// The word that tells the bytes which this life or an earlier one has used, from the first on.
    used: u64,
    fault: Cell<CacheFault>,
    memory: Rc<dyn Region>,
    offset: u64,
}

impl AttributeCache {
    /// The attribute cache in a region from `offset` on, of which the first page is allocated; whatever an earlier life
    /// has left there is gone.
    pub(crate) fn new(memory: Rc<dyn Region>, offset: u64) -> AttributeCache {
        let size = memory.size().saturating_sub(offset) / CELL_SIZE_MIN * CELL_SIZE_MIN;
        let address = memory.base().cast_const().wrapping_add(offset as usize);
        // SAFETY: so many bytes of the region, which is held with this; clients have them mapped to read them as this
        // row alone.
        let row = unsafe { CellRow::at(address, size) };
        let cache = AttributeCache { row, used: USED_OFFSET, fault: Cell::new(CacheFault::None), memory, offset };
        if row.word(cache.used).is_some() {
            row.empty(cache.word(cache.used));
        }
        cache
    }

    /// Where it begins in its file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes that it has room for.
    pub fn size(&self) -> u64 {
        self.row.size()
    }

    /// Has memory for a range, which is one behind the others: so far there were `range.start` bytes at least. Errors:
    /// those of `Region::allocate`.
    pub fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        let size = range.end - range.start;
        self.memory.allocate(self.offset + range.start, size)?;
        self.memory.note_received(self.offset + range.start, size);
        self.set_word(self.used, self.word(self.used).max(range.end));
        Ok(())
    }

    /// The cells of all of it.
    pub fn row(&self) -> CellRow {
        self.row
    }

    fn cell(&self, place: CellPlace) -> &SequenceCell {
        self.row.cell(place).expect("a cell lies in the attribute cache")
    }

    /// From now on something is done wrong, which tests must notice.
    pub(crate) fn set_fault(&self, fault: CacheFault) {
        self.fault.set(fault);
    }

    /// Whether that is done wrong.
    pub fn has_fault(&self, fault: CacheFault) -> bool {
        self.fault.get() == fault
    }

    /// A word outside of all cells, which clients that may submit see as the last step has left it. Panics when it does
    /// not lie in the attribute cache.
    pub fn word(&self, offset: u64) -> u64 {
        self.row.word(offset).expect("a word lies in the attribute cache").load(Ordering::Relaxed)
    }

    /// Writes such a word. Panics when it does not lie in the attribute cache.
    pub fn set_word(&self, offset: u64, value: u64) {
        self.row.word(offset).expect("a word lies in the attribute cache").store(value, Ordering::Release);
    }

    /// Has a cell fetched from memory, for a change that comes soon.
    pub fn prefetch(&self, place: CellPlace) {
        if let Some(cell) = self.row.cell(place) {
            prefetch(cell.words());
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

    /// The words of a cell, whatever they are.
    pub fn words<const WORDS: usize>(&self, place: CellPlace) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        self.cell(place).get(&mut words);
        words
    }

    /// A word of a cell, as it is.
    pub fn cell_word(&self, place: CellPlace, index: usize) -> u64 {
        self.cell(place).words()[index].load(Ordering::Relaxed)
    }

    /// Writes single words of a cell. Panics when it does not lie in the attribute cache.
    pub fn put_words(&self, place: CellPlace, content: &[(usize, u64)]) {
        self.cell(place).put_words(content);
    }

    /// Empties a cell. Whoever looks from now on finds it so, or sees that it has changed. Panics when it does not lie
    /// in the attribute cache.
    pub fn clear(&self, place: CellPlace) {
        if !self.has_fault(CacheFault::KeepsEverything) {
            self.cell(place).clear();
        }
    }
}

const PAGE_WORDS: usize = BLOCK_SIZE as usize / 8;

#[repr(C, align(4096))]
struct OwnPage([AtomicU64; PAGE_WORDS]);

enum PageMemory {
    Own(#[allow(dead_code)] Box<OwnPage>),
    Shared(#[allow(dead_code)] Rc<AttributeCache>),
}

/// A page of cells of two lines, which lie in an attribute cache, or nobody else sees.
pub struct CellPage {
    row: CellRow,
    start: u64,
    _memory: PageMemory,
}

impl CellPage {
    /// One of this process, whose cells are empty.
    pub fn own() -> CellPage {
        let page = Box::new(OwnPage(std::array::from_fn(|_| AtomicU64::new(0))));
        // SAFETY: so many bytes, which are held with this; nobody else has them.
        let row = unsafe { CellRow::at(page.0.as_ptr().cast(), BLOCK_SIZE) };
        CellPage { row, start: 0, _memory: PageMemory::Own(page) }
    }

    /// One of an attribute cache, from a byte on, where memory was allocated. Panics when it does not lie there.
    pub fn shared(cache: &Rc<AttributeCache>, start: u64) -> CellPage {
        let page = CellPage { row: cache.row(), start, _memory: PageMemory::Shared(cache.clone()) };
        page.cell(CELLS_PER_BLOCK as usize - 1);
        page
    }

    fn cell(&self, index: usize) -> &SequenceCell {
        let place = CellPlace::in_row(self.start, BLOCK_SIZE / CELLS_PER_BLOCK, index as u64);
        self.row.cell(place).expect("a page has so many cells")
    }

    /// A word of a cell.
    pub fn word(&self, index: usize, word: usize) -> u64 {
        self.cell(index).words()[word].load(Ordering::Relaxed)
    }

    /// The words of a cell.
    pub fn get(&self, index: usize) -> [u64; CELL_WORDS] {
        let mut words = [0; CELL_WORDS];
        self.cell(index).get(&mut words);
        words
    }

    /// Writes a cell.
    pub fn put(&self, index: usize, words: &[u64; CELL_WORDS]) {
        self.cell(index).put(words);
    }

    /// Empties a cell.
    pub fn clear(&self, index: usize) {
        self.cell(index).clear();
    }

    /// Has a cell fetched from memory.
    pub fn prefetch(&self, index: usize) {
        prefetch(self.cell(index).words());
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
        attribute_cache.allocate(0..SIZE).expect("room");
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
        assert_eq!((next.word(USED_OFFSET), next.size()), (SIZE, SIZE), "what is in use is known in the next life");
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
