//! Words by which a client of this machine says, in memory that it shares with a server, what the server is to keep for
//! it (hazard pointers: Michael, "Hazard Pointers: Safe Memory Reclamation for Lock-Free Objects", IEEE TPDS 15(6),
//! 2004): here files that it has open without having said so by a message.
//!
//! | word | written by | holds |
//! |---|---|---|
//! | 0 | client | how many ids there are |
//! | 8 to 71 | client | ids, 0 where there is none |
//! | 72 | server | the number of its life, while it looks at these words; else 0 |
//!
//! Invariants
//! 1. A client writes an id, then fences, then looks whether what led it there still stands (a cell of the server's
//!    attribute cache) and whether the server looks at its words: if not, it takes the id back, and has nothing.
//! 2. A server that is about to give something up first takes away what leads there, then fences, then looks for the
//!    id. So at least one of the two sees what the other one has written.
//! 3. Before it looks at the words no more, a server says so, fences, and takes over what is there.
//!    A client that takes an id back fences after that, and looks whether the server still looks.
//! 4. The server trusts no word: an id that nobody should hold keeps a file that has lost its name until the connection
//!    ends, as an open does.

use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Ids that a client can hold over one connection.
pub const HAZARD_COUNT: usize = 64;
const COUNT_WORD: usize = 0;
const IDS_START: usize = 8;
const SERVER_WORD: usize = IDS_START + HAZARD_COUNT;
const WORD_COUNT: usize = SERVER_WORD + 1;
/// Bytes of all words.
pub(crate) const HAZARDS_SIZE: usize = WORD_COUNT * 8;

/// See the module.
pub struct HazardPointers {
    words: *const AtomicU64,
    /// At the client: which words have an id.
    used: Cell<u64>,
    /// See `ignore`.
    is_ignored: Cell<bool>,
    _memory: Rc<dyn Any>,
}

impl HazardPointers {
    /// The words at an address within `memory`, aligned, all of them zeros at first. Whoever else touches them does so
    /// as atomic words.
    pub(crate) fn at(address: *const u8, memory: Rc<dyn Any>) -> HazardPointers {
        HazardPointers { words: address.cast(), used: Cell::new(0), is_ignored: Cell::new(false), _memory: memory }
    }

    /// Words that only this process sees: for simulations.
    pub(crate) fn of_simulation() -> Rc<HazardPointers> {
        let memory: Rc<[AtomicU64; WORD_COUNT]> = Rc::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let address = memory.as_ptr().cast();
        Rc::new(HazardPointers::at(address, memory))
    }

    /// From now on the server finds nothing here: a fault that tests must notice.
    pub(crate) fn ignore(&self) {
        self.is_ignored.set(true);
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORD_COUNT);
        // SAFETY: there are so many words at the address, for as long as the memory is held.
        unsafe { &*self.words.add(index) }
    }

    /// Client: asks the server to keep what has an id; what led to it is to be looked at again after this, and whether
    /// it `stands`. Nothing when all words are taken.
    pub fn hold(self: &Rc<Self>, id: u64) -> Option<HazardPointer> {
        let place = self.used.get().trailing_ones() as usize;
        if place == HAZARD_COUNT || id == 0 {
            return None;
        }
        self.used.set(self.used.get() | 1 << place);
        self.word(IDS_START + place).store(id, Ordering::Relaxed);
        self.word(COUNT_WORD).store(u64::from(self.used.get().count_ones()), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Some(HazardPointer { hazards: self.clone(), place })
    }

    /// Server: looks at these words from now on, in a life of this number, which is not 0.
    pub fn begin(&self, life: u64) {
        self.word(SERVER_WORD).store(life, Ordering::Release);
    }

    /// Server: looks at them no more, and takes over what is held.
    pub fn end(&self) -> Vec<u64> {
        self.word(SERVER_WORD).store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let ids = (0..HAZARD_COUNT).map(|place| self.word(IDS_START + place).load(Ordering::Acquire));
        ids.filter(|id| *id != 0 && !self.is_ignored.get()).collect()
    }

    /// Server: whether an id is held. To be asked after a full fence, before which what leads there was taken away.
    pub fn has(&self, id: u64) -> bool {
        self.word(COUNT_WORD).load(Ordering::Acquire) != 0
            && !self.is_ignored.get()
            && (0..HAZARD_COUNT).any(|place| self.word(IDS_START + place).load(Ordering::Acquire) == id)
    }
}

/// An id that is held until this is dropped.
pub struct HazardPointer {
    hazards: Rc<HazardPointers>,
    place: usize,
}

impl HazardPointer {
    /// Whether the server looks at what is held, in the life of this number.
    pub fn stands(&self, life: u64) -> bool {
        life != 0 && self.hazards.word(SERVER_WORD).load(Ordering::Acquire) == life
    }

    /// Ends this. False when the server may have taken it over, for it looks at it no more.
    pub fn release(self) -> bool {
        let hazards = self.hazards.clone();
        drop(self);
        // The counterpart of the fence in `end`.
        fence(Ordering::SeqCst);
        hazards.word(SERVER_WORD).load(Ordering::Relaxed) != 0
    }
}

impl Drop for HazardPointer {
    fn drop(&mut self) {
        let hazards = &self.hazards;
        hazards.used.set(hazards.used.get() & !(1 << self.place));
        // What was read under it was read before.
        hazards.word(IDS_START + self.place).store(0, Ordering::Release);
        hazards.word(COUNT_WORD).store(u64::from(hazards.used.get().count_ones()), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is held is seen until it is dropped, there is an end to it, and a server that goes takes over what is
    /// there.
    #[test]
    fn holding() {
        let hazards = HazardPointers::of_simulation();
        let first = hazards.hold(7).expect("room");
        assert!(!first.stands(3) && hazards.has(7) && !hazards.has(8));
        hazards.begin(3);
        assert!(first.stands(3) && !first.stands(4));
        let second = hazards.hold(8).expect("room");
        assert!(first.release());
        assert!(!hazards.has(7) && hazards.has(8));
        let more: Vec<HazardPointer> =
            (0..HAZARD_COUNT - 1).map(|id| hazards.hold(100 + id as u64).expect("room")).collect();
        assert!(hazards.hold(9).is_none());
        drop(more);
        assert_eq!(hazards.end(), [8]);
        assert!(!second.stands(3));
        assert!(!second.release(), "it was taken over");
        assert!(!hazards.has(8) && hazards.end().is_empty());
    }
}
