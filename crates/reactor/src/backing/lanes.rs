//! What calls on one thing leave of a tree's places for others. A file or directory that hangs keeps so many of them
//! and no more, whoever asks for it.
//!
//! Invariants
//! 1. Of the calls under way, at most `RESOLVE_CALLS_MAX` look at or open one path each, `PATH_CALLS_MAX` are about one
//!    path, and `DIRECTORY_CALLS_MAX` about names of one directory.
//! 2. A call that is held waits in one lane that is full, and is looked at again as soon as a call of that lane ends.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Looks at one path, and opens of it, that are under way at a time: those that follow find what the first one knows.
const RESOLVE_CALLS_MAX: u32 = 1;
/// Calls about one path, and about what has its name in one directory: a quarter of all.
const PATH_CALLS_MAX: u32 = super::CALLS_MAX as u32 / 4;
const DIRECTORY_CALLS_MAX: u32 = super::CALLS_MAX as u32 / 4;

/// The lanes of a call, by hash: two that have the same one share a bound, which is no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallLanes([Option<(u64, u32)>; 3]);

impl CallLanes {
    /// Of a call on a path, which looks for it by a way of its own, or is about something open.
    pub fn new(path: &[u8], resolves: Option<&'static str>) -> CallLanes {
        let hash = |what: &str, path: &[u8]| {
            let mut hasher = DefaultHasher::new();
            (what, path).hash(&mut hasher);
            hasher.finish()
        };
        let directory = &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
        CallLanes([
            resolves.map(|word| (hash(word, path), RESOLVE_CALLS_MAX)),
            Some((hash("", path), PATH_CALLS_MAX)),
            // The root has no directory.
            (!path.is_empty()).then(|| (hash("in", directory), DIRECTORY_CALLS_MAX)),
        ])
    }

    fn iter(self) -> impl Iterator<Item = (u64, u32)> {
        self.0.into_iter().flatten()
    }
}

#[derive(Default)]
struct Lane {
    under_way: u32,
    held: VecDeque<u32>,
}

/// See the module. Calls are numbers.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: HashMap<u64, Lane>,
    held_count: usize,
}

impl Lanes {
    /// Whether a call may begin, and counts from now on; else it is held until then.
    pub fn enter(&mut self, call: u32, of: CallLanes) -> bool {
        let is_full = |(lane, most): &(u64, u32)| self.lanes.get(lane).is_some_and(|lane| lane.under_way >= *most);
        if let Some((full, _)) = of.iter().find(is_full) {
            self.lanes.entry(full).or_default().held.push_back(call);
            self.held_count += 1;
            return false;
        }
        of.iter().for_each(|(lane, _)| self.lanes.entry(lane).or_default().under_way += 1);
        true
    }

    /// A call that had begun has ended. What was held for it comes back, to be tried once more.
    pub fn leave(&mut self, of: CallLanes) -> impl Iterator<Item = u32> {
        let mut freed = [None; 3];
        for ((lane, _), freed) in of.iter().zip(&mut freed) {
            let Some(known) = self.lanes.get_mut(&lane) else { unreachable!("who leaves a lane has entered it") };
            known.under_way -= 1;
            *freed = known.held.pop_front();
            self.held_count -= usize::from(freed.is_some());
            if known.under_way == 0 && known.held.is_empty() {
                self.lanes.remove(&lane);
            }
        }
        freed.into_iter().flatten()
    }

    /// Nobody waits for a call that may be held.
    pub fn forget(&mut self, call: u32, of: CallLanes) {
        for (lane, _) in of.iter() {
            let Some(known) = self.lanes.get_mut(&lane) else { continue };
            let before = known.held.len();
            known.held.retain(|held| *held != call);
            self.held_count -= before - known.held.len();
        }
    }

    /// All calls that are held, which are no more.
    pub fn take_held(&mut self) -> Vec<u32> {
        self.held_count = 0;
        self.lanes.values_mut().flat_map(|lane| std::mem::take(&mut lane.held)).collect()
    }

    pub fn held_count(&self) -> usize {
        self.held_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each bound holds, and whoever is held goes on when a call of that lane ends, first come first served.
    #[test]
    fn bounds_and_turns() {
        let mut lanes = Lanes::default();
        let look = CallLanes::new(b"d/file", Some("look"));
        assert!(lanes.enter(0, look) && !lanes.enter(1, look) && !lanes.enter(2, look));
        assert!(lanes.enter(3, CallLanes::new(b"d/file", Some("open"))), "an open is none");
        let read = CallLanes::new(b"d/file", None);
        let reads = 10..8 + PATH_CALLS_MAX;
        assert!(reads.clone().all(|call| lanes.enter(call, read)) && !lanes.enter(reads.end, read));
        assert!(!lanes.enter(30, CallLanes::new(b"d/30", None)), "of one directory as many");
        assert!(lanes.enter(31, CallLanes::new(b"e/30", None)), "another directory");
        assert_eq!(lanes.held_count(), 4);
        lanes.forget(1, look);
        assert_eq!(lanes.leave(look).collect::<Vec<_>>(), [2, reads.end, 30]);
        assert_eq!(lanes.held_count(), 0);
        assert!(lanes.enter(2, look) && !lanes.enter(reads.end, read));
        assert_eq!(lanes.take_held(), [reads.end]);
    }
}
