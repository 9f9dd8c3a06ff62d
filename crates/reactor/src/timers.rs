//! Timers: a heap of deadlines whose entries may be stale.
//!
//! Most timers are deadlines that never fire: they are set and dropped by the thousand. Setting pushes onto the heap
//! (constant on average, for deadlines mostly grow), dropping only frees the slot, and the heap is rebuilt when most of
//! it is stale.
//!
//! Invariants
//! 1. A slot's generation grows whenever its timer fires or is dropped; a heap entry of an older generation is stale.
//! 2. `stale` counts exactly the heap entries that are stale.

use crate::Nanos;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::task::Waker;

/// Names one timer that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerKey {
    slot: u32,
    generation: u32,
}

struct TimerEntry {
    deadline: Nanos,
    sequence: u64,
    key: TimerKey,
}

impl PartialEq for TimerEntry {
    fn eq(&self, other: &TimerEntry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for TimerEntry {}

impl PartialOrd for TimerEntry {
    fn partial_cmp(&self, other: &TimerEntry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TimerEntry {
    /// The heap gives its greatest first, so the earliest deadline is the greatest; ties go in the order of setting.
    fn cmp(&self, other: &TimerEntry) -> Ordering {
        (other.deadline, other.sequence).cmp(&(self.deadline, self.sequence))
    }
}

struct Slot {
    generation: u32,
    waker: Option<Waker>,
}

/// All timers of one loop.
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<TimerEntry>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    stale: usize,
    sequence: u64,
}

/// Below this many entries a rebuild is not worth it.
const REBUILD_COUNT_MIN: usize = 64;

impl Timers {
    /// Sets a timer.
    pub fn set(&mut self, deadline: Nanos, waker: Waker) -> TimerKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, waker: None });
            (self.slots.len() - 1) as u32
        });
        let entry = &mut self.slots[slot as usize];
        assert!(entry.waker.is_none());
        entry.waker = Some(waker);
        let key = TimerKey { slot, generation: entry.generation };
        self.sequence += 1;
        self.heap.push(TimerEntry { deadline, sequence: self.sequence, key });
        key
    }

    /// Whether the timer has neither fired nor been dropped.
    pub fn is_set(&self, key: TimerKey) -> bool {
        self.slots[key.slot as usize].generation == key.generation
    }

    /// Changes who is woken.
    pub fn update(&mut self, key: TimerKey, waker: &Waker) {
        assert!(self.is_set(key));
        let slot = &mut self.slots[key.slot as usize];
        if !slot.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            slot.waker = Some(waker.clone());
        }
    }

    /// Drops a timer; nothing happens if it has fired. The waker comes back so that it is dropped outside of any
    /// borrow.
    pub fn drop_timer(&mut self, key: TimerKey) -> Option<Waker> {
        if !self.is_set(key) {
            return None;
        }
        let waker = self.release(key);
        self.stale += 1;
        if self.stale > REBUILD_COUNT_MIN && self.stale > self.heap.len() / 2 {
            let slots = &self.slots;
            self.heap.retain(|entry| slots[entry.key.slot as usize].generation == entry.key.generation);
            self.stale = 0;
        }
        waker
    }

    /// Deadline of the next timer.
    pub fn next_deadline(&mut self) -> Option<Nanos> {
        while let Some(entry) = self.heap.peek() {
            if self.is_set(entry.key) {
                return Some(entry.deadline);
            }
            self.heap.pop();
            self.stale -= 1;
        }
        assert_eq!(self.stale, 0);
        None
    }

    /// Takes the waker of one timer that is due.
    pub fn pop_due(&mut self, now: Nanos) -> Option<Waker> {
        if self.next_deadline()? > now {
            return None;
        }
        let key = self.heap.pop()?.key;
        self.release(key)
    }

    /// Number of timers that are set.
    pub fn count(&self) -> usize {
        self.heap.len() - self.stale
    }

    fn release(&mut self, key: TimerKey) -> Option<Waker> {
        let slot = &mut self.slots[key.slot as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.slot);
        slot.waker.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: timers fire once, in the order of their deadlines, and dropped ones never do.
    /// Method: set thousands in scattered order, drop two of three, pop all and compare with a sorted list.
    #[test]
    fn order_and_dropping() {
        let mut timers = Timers::default();
        let mut expected = Vec::new();
        let mut keys = Vec::new();
        for index in 0..5000u64 {
            let deadline = index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            let key = timers.set(deadline, Waker::noop().clone());
            if index % 3 == 0 {
                expected.push(deadline);
            } else {
                keys.push(key);
            }
        }
        for key in &keys {
            assert!(timers.drop_timer(*key).is_some());
            assert!(timers.drop_timer(*key).is_none());
        }
        assert_eq!(timers.count(), expected.len());
        assert!(timers.heap.len() <= 2 * expected.len() + REBUILD_COUNT_MIN, "stale entries do not pile up");
        expected.sort_unstable();
        let mut fired = Vec::new();
        while let Some(deadline) = timers.next_deadline() {
            assert!(deadline == 0 || timers.pop_due(deadline - 1).is_none());
            assert!(timers.pop_due(deadline).is_some());
            fired.push(deadline);
        }
        assert_eq!(fired, expected);
    }
}
