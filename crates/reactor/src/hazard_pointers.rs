//! What a client of this machine has open without a word: the words in shared memory ([`shm::hazard_pointers`], which
//! has the rules), with what each side keeps beside them.

use shm::hazard_pointers::{HAZARD_COUNT, Hazards, before_look};
use shm::mapping::Mapped;
use std::cell::Cell;
use std::rc::Rc;

/// See the module.
pub struct HazardPointers {
    hazards: Mapped<Hazards>,
    /// At the client: which words have an id.
    used: Cell<u64>,
    /// See `ignore`.
    is_ignored: Cell<bool>,
    /// Of these words a client uses so many.
    count_max: Cell<usize>,
}

impl HazardPointers {
    /// Those in words that lie somewhere, all of them zeros at first.
    pub(crate) fn new(hazards: Mapped<Hazards>) -> Rc<HazardPointers> {
        Rc::new(HazardPointers {
            hazards,
            used: Cell::new(0),
            is_ignored: Cell::new(false),
            count_max: Cell::new(HAZARD_COUNT),
        })
    }

    /// Words that only this process sees: for simulations.
    pub(crate) fn of_simulation() -> Rc<HazardPointers> {
        HazardPointers::new(Mapped::alone())
    }

    /// From now on its client uses at most so many words.
    pub(crate) fn limit(&self, count: usize) {
        self.count_max.set(count.min(HAZARD_COUNT));
    }

    /// From now on the server finds nothing here: a fault that tests must notice.
    pub(crate) fn ignore(&self) {
        self.is_ignored.set(true);
    }

    /// Client: asks the server to keep what has an id; what led to it is to be looked at again after this, and whether
    /// it `stands`. Nothing when all words are taken.
    pub fn hold(self: &Rc<Self>, id: u64) -> Option<HazardPointer> {
        let place = self.used.get().trailing_ones() as usize;
        if place >= self.count_max.get() || id == 0 {
            return None;
        }
        self.used.set(self.used.get() | 1 << place);
        self.hazards.hold(place, id, self.count());
        Some(HazardPointer { hazards: self.clone(), place })
    }

    fn count(&self) -> u64 {
        self.used.get().count_ones().into()
    }

    /// Server: looks at these words from now on, in a life of this number, which is not 0.
    pub fn begin(&self, life: u64) {
        self.hazards.begin(life);
    }

    /// Server: looks at them no more, and takes over what is held.
    pub fn end(&self) -> Vec<u64> {
        let held = self.hazards.end();
        if self.is_ignored.get() { Vec::new() } else { held }
    }

    /// Server: to be called once between taking away what leads to something and asking any client's words for it.
    pub fn before_look() {
        before_look();
    }

    /// Server: whether an id is held. To be asked after `before_look`.
    pub fn has(&self, id: u64) -> bool {
        !self.is_ignored.get() && self.hazards.has(id)
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
        self.hazards.hazards.stands(life)
    }

    /// Ends this. False when the server may have taken it over, for it looks at it no more.
    pub fn release(self) -> bool {
        let hazards = self.hazards.clone();
        drop(self);
        hazards.hazards.is_looked_at()
    }
}

impl Drop for HazardPointer {
    fn drop(&mut self) {
        let hazards = &self.hazards;
        hazards.used.set(hazards.used.get() & !(1 << self.place));
        hazards.hazards.let_go(self.place, hazards.count());
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
