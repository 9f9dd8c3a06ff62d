//! The order in which clean chunks go: S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP
//! 2023). What was read once goes by a short queue and soon; what is read again while it is there, or soon after it
//! went, comes to the long one. So a scan of whatever size takes the place of other scans alone.
//!
//! Invariants
//! 1. Every clean chunk is in one of the queues; what is in a queue need not be clean any more, or there.
//! 2. The queues have at most twice as many entries as there were clean chunks when they were last rid of others, and
//!    `SLACK`.

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};

/// The short queue's part of all chunks, in percent.
const SHORT_PERCENT: usize = 10;
/// Uses that are remembered of a chunk.
const USES_MAX: u8 = 3;
/// Uses of a chunk within so many seconds are one: whoever reads it piece by piece reads it once.
const USE_SECONDS: u16 = 2;
/// Entries of what is gone that are of no concern.
const SLACK: usize = 1024;

/// A chunk: its file, and its index; or with `WHOLE_FILE` the rest of a file that was carried, chunk by chunk.
pub type CleanKey = (u64, u64);
pub const WHOLE_FILE: u64 = u64::MAX;

/// How a chunk was used since it came, or since it was last considered.
#[derive(Debug, Default)]
pub struct ChunkUses {
    count: Cell<u8>,
    second: Cell<u16>,
}

impl ChunkUses {
    /// It is used, at a time in seconds.
    pub fn note(&self, second: u64) {
        let second = second as u16;
        if second.wrapping_sub(self.second.get()) >= USE_SECONDS {
            self.second.set(second);
            self.count.set((self.count.get() + 1).min(USES_MAX));
        }
    }

    pub fn take_one(&self) -> bool {
        let is_used = self.count.get() > 0;
        self.count.set(self.count.get().saturating_sub(1));
        is_used
    }
}

/// See the module.
#[derive(Default)]
pub struct CleanQueue {
    short: VecDeque<CleanKey>,
    long: VecDeque<CleanKey>,
    /// What went by the short queue lately.
    gone: VecDeque<CleanKey>,
    is_gone: HashSet<CleanKey>,
    /// The fewest entries that the queues have had since they were rid of others.
    fewest: usize,
}

impl CleanQueue {
    /// A chunk is clean from now on. `is_clean` tells which ones are so still.
    pub fn push(&mut self, key: CleanKey, is_clean: impl Fn(&CleanKey) -> bool) {
        self.fewest = self.fewest.min(self.count());
        if self.count() > 2 * self.fewest + SLACK {
            // What was dirty meanwhile may be in them twice.
            let mut seen = HashSet::new();
            self.short.retain(|key| is_clean(key) && seen.insert(*key));
            self.long.retain(|key| is_clean(key) && seen.insert(*key));
            self.fewest = self.count();
        }
        match self.is_gone.remove(&key) {
            true => self.long.push_back(key),
            false => self.short.push_back(key),
        }
    }

    /// What is in the queues.
    pub fn count(&self) -> usize {
        self.short.len() + self.long.len()
    }

    /// The next chunk that is to go; nothing if there is none. `look` says whether one may go still, and is asked for
    /// its uses; what may not is forgotten. Every entry is considered a few times at most, and no more than `looks_max`
    /// in all.
    pub fn next(
        &mut self,
        looks_max: usize,
        look: impl Fn(&CleanKey, &mut dyn FnMut(&ChunkUses)) -> bool,
    ) -> Option<CleanKey> {
        let limit = ((2 + usize::from(USES_MAX)) * self.count()).min(looks_max);
        for _ in 0..limit {
            let all = self.count();
            let is_short = self.long.is_empty() || self.short.len() * 100 >= all * SHORT_PERCENT;
            let key = if is_short { self.short.pop_front() } else { self.long.pop_front() }?;
            let mut is_used = false;
            if !look(&key, &mut |uses| is_used = uses.take_one()) {
                continue;
            }
            if is_used {
                self.long.push_back(key);
                continue;
            }
            if is_short {
                self.note_gone(key);
            }
            return Some(key);
        }
        None
    }

    fn note_gone(&mut self, key: CleanKey) {
        if self.is_gone.insert(key) {
            self.gone.push_back(key);
        }
        // As many as the long queue has (section 4.1 of the paper).
        while self.gone.len() > self.long.len().max(SLACK) {
            if let Some(oldest) = self.gone.pop_front() {
                self.is_gone.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A cache of so many chunks.
    #[derive(Default)]
    struct Cache {
        queue: CleanQueue,
        here: BTreeMap<CleanKey, ChunkUses>,
        second: u64,
        misses: usize,
    }

    impl Cache {
        fn read(&mut self, index: u64) {
            self.second += 10;
            let key = (1, index);
            if let Some(uses) = self.here.get(&key) {
                return uses.note(self.second);
            }
            self.misses += 1;
            if self.here.len() == 100 {
                let here = &self.here;
                let gone = self.queue.next(usize::MAX, |key, uses| here.get(key).map(uses).is_some());
                self.here.remove(&gone.expect("something may go"));
            }
            self.here.insert(key, ChunkUses::default());
            self.queue.push(key, |_| true);
        }
    }

    /// Goal: what is read again and again stays while ten times as much is read once.
    #[test]
    fn a_scan_leaves_what_is_used() {
        let mut cache = Cache::default();
        for _ in 0..5 {
            (0..50).for_each(|index| cache.read(index));
        }
        let before = cache.misses;
        assert_eq!(before, 50);
        for index in 0..1000 {
            cache.read(1000 + index);
            cache.read(index % 50);
        }
        assert!(cache.misses - before <= 1010, "{}", cache.misses - before);
    }

    /// Goal: what may not go any more is forgotten, and the search ends.
    #[test]
    fn what_is_not_clean_any_more_is_forgotten() {
        let mut queue = CleanQueue::default();
        (0..10).for_each(|index| queue.push((1, index), |_| true));
        assert_eq!(queue.next(usize::MAX, |key, _| key.1 >= 7), Some((1, 7)));
        assert_eq!(queue.next(usize::MAX, |_, _| false), None);
        assert!(queue.short.is_empty() && queue.long.is_empty());
    }

    /// Goal: a queue of many chunks, all of them clean, costs each of them a few looks.
    #[test]
    fn linear() {
        let (mut queue, looks) = (CleanQueue::default(), Cell::new(0));
        let is_clean = |_: &CleanKey| {
            looks.set(looks.get() + 1);
            true
        };
        (0..100_000u64).for_each(|index| queue.push((1, index), is_clean));
        assert_eq!(queue.count(), 100_000);
        assert!(looks.get() <= 200_000, "{}", looks.get());
    }

    /// Goal: the queues stay bounded, however often something becomes clean.
    #[test]
    fn bounded() {
        let mut queue = CleanQueue::default();
        (0..100_000u64).for_each(|time| queue.push((1, time % 10), |_| true));
        assert!(queue.count() <= 20 + SLACK + 1);
        for time in 0..100_000 {
            queue.push((2, time), |_| true);
            assert_eq!(queue.next(usize::MAX, |key, _| key.0 == 2), Some((2, time)));
        }
        assert!(queue.gone.len() <= 2 * SLACK && queue.is_gone.len() <= queue.gone.len());
    }
}
