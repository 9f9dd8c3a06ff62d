//! Cells: a few words with a version in front, which one process writes and others read (a sequence lock: Lameter,
//! "Effective synchronization on Linux/NUMA systems", 2005; for the fences Boehm, "Can seqlocks get along with
//! programming language memory models?", MSPC 2012).
//!
//! | bytes | written by | holds |
//! |---|---|---|
//! | 0 to 7 | owner | the version: odd while the cell is written to, and another one for whatever else stands there |
//! | 8 to the end | owner | words; a cell whose first word is 0 is empty |
//!
//! Who reads copies the words, looks at the version again, and throws the copy away if it has changed. What the words
//! mean is for those who use them to agree on.
//!
//! Invariants
//! 1. Only the owner writes, and the readers map it read-only. Words are touched as atomic words by both.
//! 2. A version is made odd before the first word changes (release fence between) and even after the last one (release
//!    store). It is read before the first word (acquire load) and after the last (acquire fence between).
//! 3. Versions only grow, also from one life of the owner to the next, which begins by emptying everything
//!    (`CellRow::empty`). So whoever sees the same even version twice has seen the words of one state, which lasted all
//!    the time between.
//! 4. What the owner changes after it has emptied a cell, bytes that the cell led to for instance, is seen by nobody
//!    who then finds the version that he knows: the fence behind the odd version lies in front of that as well.

use crate::sync::{AtomicU64, Barrier, LINE_SIZE, Ordering, fence_at, order_at};

/// Bytes of a cell are a multiple of this, a cache line.
pub const CELL_SIZE_MIN: u64 = LINE_SIZE as u64;
const WORD_SIZE: u64 = 8;

/// Where a cell is: its first byte in its row, and the words that it has beside its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellPlace {
    pub offset: u64,
    pub words: usize,
}

impl CellPlace {
    /// Cell `index` of cells with `size` bytes each that begin at `start`.
    pub fn in_row(start: u64, size: u64, index: u64) -> CellPlace {
        assert!(size.is_multiple_of(CELL_SIZE_MIN) && start.is_multiple_of(CELL_SIZE_MIN));
        CellPlace { offset: start + index * size, words: (size / WORD_SIZE) as usize - 1 }
    }
}

/// One cell.
#[repr(C)]
pub struct SequenceCell<W: ?Sized = [AtomicU64]> {
    version: AtomicU64,
    words: W,
}

#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(SequenceCell<[AtomicU64; 7]>, words) == WORD_SIZE as usize);
#[cfg(not(loom))]
const _: () = assert!(size_of::<SequenceCell<[AtomicU64; 7]>>() == CELL_SIZE_MIN as usize);

impl<const WORDS: usize> SequenceCell<[AtomicU64; WORDS]> {
    /// An empty cell.
    pub fn new() -> Self {
        SequenceCell { version: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl<const WORDS: usize> Default for SequenceCell<[AtomicU64; WORDS]> {
    fn default() -> Self {
        SequenceCell::new()
    }
}

impl SequenceCell {
    /// Copies the words and returns the version that they have; nothing if it is empty or just being written to.
    #[inline]
    pub fn read(&self, into: &mut [u64]) -> Option<u64> {
        let seen = self.version.load(order_at(Barrier::CellFirstLook, Ordering::Acquire));
        if !seen.is_multiple_of(2) || self.words[0].load(Ordering::Relaxed) == 0 {
            return None;
        }
        for (target, word) in into.iter_mut().zip(&self.words) {
            *target = word.load(Ordering::Relaxed);
        }
        self.is_same(seen).then_some(seen)
    }

    /// Whether it still has the version that it had.
    #[inline]
    pub fn is_same(&self, seen: u64) -> bool {
        fence_at(Barrier::CellLastLook, Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == seen
    }

    /// Owner: writes it; words that are not given become 0.
    #[inline]
    pub fn put(&self, content: &[u64]) {
        self.change(self.version.load(Ordering::Relaxed) + 1, || {
            for (index, word) in self.words.iter().enumerate() {
                word.store(content.get(index).copied().unwrap_or(0), Ordering::Relaxed);
            }
        });
    }

    /// Owner: writes single words; the others stay.
    #[inline]
    pub fn put_words(&self, content: &[(usize, u64)]) {
        self.change(self.version.load(Ordering::Relaxed) + 1, || {
            for (index, value) in content {
                self.words[*index].store(*value, Ordering::Relaxed);
            }
        });
    }

    /// Owner: copies the words, whatever they are.
    #[inline]
    pub fn get(&self, into: &mut [u64]) {
        for (target, word) in into.iter_mut().zip(&self.words) {
            *target = word.load(Ordering::Relaxed);
        }
    }

    /// Owner: empties it. Whoever looks from now on finds it so, or sees that it has changed.
    #[inline]
    pub fn clear(&self) {
        if self.words[0].load(Ordering::Relaxed) != 0 {
            self.change(self.version.load(Ordering::Relaxed) + 1, || self.words[0].store(0, Ordering::Relaxed));
        }
    }

    /// Owner, when its life begins: empties it, also where the life before has ended while it wrote.
    #[cfg(not(loom))]
    fn begin(&self) {
        let last = self.version.load(Ordering::Relaxed);
        if last != 0 || self.words[0].load(Ordering::Relaxed) != 0 {
            self.change(last | 1, || self.words[0].store(0, Ordering::Relaxed));
        }
    }

    /// Changes words under an odd version (invariant 2).
    #[inline]
    fn change(&self, odd: u64, write: impl FnOnce()) {
        self.version.store(odd, Ordering::Relaxed);
        fence_at(Barrier::CellOdd, Ordering::Release);
        write();
        // What is no version, in a line within a cell that is emptied, may be any number.
        self.version.store(odd.wrapping_add(1), order_at(Barrier::CellEven, Ordering::Release));
    }

    /// The words, to have them fetched from memory.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        &self.words
    }
}

/// Memory with cells one behind the other, of sizes that those who use it know, and single words.
#[cfg(not(loom))]
#[derive(Clone, Copy)]
pub struct CellRow {
    first: *const AtomicU64,
    size: u64,
}

#[cfg(not(loom))]
impl CellRow {
    /// The cells in `size` bytes at an address. Panics when that is not aligned.
    ///
    /// # Safety
    /// The bytes are mapped for as long as this is used, and whoever else touches them does so as atomic words.
    pub unsafe fn at(address: *const u8, size: u64) -> CellRow {
        let first = address.cast::<AtomicU64>();
        assert!(first.is_aligned(), "a row of cells is aligned");
        CellRow { first, size }
    }

    /// Bytes that it has.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// A cell; nothing if it does not lie in the row.
    #[inline]
    pub fn cell(&self, place: CellPlace) -> Option<&SequenceCell> {
        if !self.has(place.offset, (place.words as u64 + 1) * WORD_SIZE) {
            return None;
        }
        // SAFETY: just checked; whoever holds this holds the memory for as long (`at`). The cast keeps the count of
        // words, which is that of the cell's last field.
        unsafe {
            let version = self.first.add((place.offset / WORD_SIZE) as usize);
            Some(&*(std::ptr::slice_from_raw_parts(version, place.words) as *const SequenceCell))
        }
    }

    /// A word outside of all cells; nothing if it does not lie in the row.
    #[inline]
    pub fn word(&self, offset: u64) -> Option<&AtomicU64> {
        // SAFETY: as in `cell`.
        self.has(offset, WORD_SIZE).then(|| unsafe { &*self.first.add((offset / WORD_SIZE) as usize) })
    }

    #[inline]
    fn has(&self, offset: u64, size: u64) -> bool {
        offset.is_multiple_of(WORD_SIZE) && offset <= self.size && size <= self.size - offset
    }

    /// Owner, when its life begins: empties all cells in the first `size` bytes. They are taken for one line each: of a
    /// larger one the first line is its beginning, and in the others nothing counts once that is empty.
    pub fn empty(&self, size: u64) {
        for index in 0..size.min(self.size) / CELL_SIZE_MIN {
            let Some(cell) = self.cell(CellPlace::in_row(0, CELL_SIZE_MIN, index)) else {
                unreachable!("the line lies in the row")
            };
            cell.begin();
        }
    }
}
