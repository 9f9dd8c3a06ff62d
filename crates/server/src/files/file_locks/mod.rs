//! Locks of the files whose home is here (flock, POSIX ranges, ranges of open file descriptions), as the journal knows
//! them. Who waits for one is in `queue`, in memory alone.
//!
//! Invariants
//! 1. Whoever holds a lock here has a session that is known, and its file an inode.
//! 2. `count` and `by_session` count ranges; who locks keeps them under the server's `Bounds`.

pub mod queue;
pub mod ranges;

use crate::process::options::Bounds;
use ranges::{LockRanges, OwnerRange, RangeTable};
use std::collections::BTreeMap;
use wire::FileId;
use wire::messages::{LockOwner, LockSpace};

/// The locks of a file in a space.
pub type LockKey = (FileId, LockSpace);

/// See the module.
#[derive(Default)]
pub struct FileLocks {
    bounds: Bounds,
    tables: BTreeMap<(u64, LockSpace), RangeTable>,
    count: usize,
    by_session: BTreeMap<u64, usize>,
    /// Whether locks may have gone with their session or file since this was last asked.
    released: bool,
}

impl FileLocks {
    pub fn new(bounds: &Bounds) -> FileLocks {
        FileLocks { bounds: *bounds, ..FileLocks::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Ranges that are locked.
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn count_of_session(&self, session: u64) -> usize {
        self.by_session.get(&session).copied().unwrap_or(0)
    }

    pub fn table(&self, (file, space): LockKey) -> Option<&RangeTable> {
        self.tables.get(&(file.0, space))
    }

    /// What an owner holds.
    pub fn held(&self, key: LockKey, owner: &LockOwner) -> Option<&LockRanges> {
        self.table(key).map(|table| table.of_owner(owner))
    }

    pub fn iter(&self) -> impl Iterator<Item = (LockKey, &LockOwner, &LockRanges)> {
        self.tables.iter().flat_map(|((file, space), table)| {
            table.iter().map(move |(owner, held)| ((FileId(*file), *space), owner, held))
        })
    }

    /// Whether the bounds let an owner lock a range, or unlock it, which may split one.
    pub fn has_room(&self, key: LockKey, owner: &LockOwner, range: &OwnerRange, lock: bool) -> bool {
        let (of_file, before, after) = match self.table(key) {
            None => (0, 0, usize::from(lock)),
            Some(table) => {
                let held = table.of_owner(owner);
                (table.count(), held.count(), held.count_after(range, lock))
            }
        };
        let more = after.saturating_sub(before);
        more == 0
            || (of_file + more <= self.bounds.file_lock_ranges
                && self.count_of_session(owner.session) + more <= self.bounds.session_lock_ranges
                && self.count + more <= self.bounds.lock_ranges)
    }

    /// Has an owner hold a range in its mode, or nothing of it.
    pub fn set(&mut self, key: LockKey, owner: LockOwner, range: &OwnerRange, lock: bool) {
        self.change(key, owner, |table| table.set(owner, range, lock));
    }

    fn change(&mut self, (file, space): LockKey, owner: LockOwner, change: impl FnOnce(&mut RangeTable)) {
        let key = (file.0, space);
        let table = self.tables.entry(key).or_default();
        let before = table.count();
        change(table);
        let after = table.count();
        if table.is_empty() {
            self.tables.remove(&key);
        }
        self.count = self.count + after - before;
        let of_session = self.by_session.entry(owner.session).or_default();
        *of_session = *of_session + after - before;
        if *of_session == 0 {
            self.by_session.remove(&owner.session);
        }
    }

    /// Owners that hold what excludes each other, in words.
    pub fn contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        for ((file, _), table) in &self.tables {
            for (owner, held) in table.iter() {
                let conflict =
                    held.iter().find_map(|range| table.conflicts(owner, &range).next().map(|(other, _)| *other));
                if let Some(other) = conflict {
                    found.push(format!("file {}: {owner:?} and {other:?} hold conflicting locks", FileId(*file)));
                }
            }
        }
        found
    }

    /// The locks of a file that goes.
    pub fn remove_file(&mut self, file: FileId) {
        if !self.tables.is_empty() {
            self.remove_where(|(other, _), _| other == file);
        }
    }

    /// The locks of a session that is forgotten.
    pub fn remove_session(&mut self, session: u64) {
        // It may have waited without holding anything.
        self.released = true;
        if !self.tables.is_empty() {
            self.remove_where(|_, owner| owner.session == session);
        }
    }

    fn remove_where(&mut self, gone: impl Fn(LockKey, &LockOwner) -> bool) {
        let found: Vec<(LockKey, LockOwner)> =
            self.iter().filter(|(key, owner, _)| gone(*key, owner)).map(|(key, owner, _)| (key, *owner)).collect();
        self.released |= !found.is_empty();
        for (key, owner) in found {
            self.change(key, owner, |table| table.remove(&owner));
        }
    }

    pub fn is_released(&self) -> bool {
        self.released
    }

    /// Whether others may have got their turn, asked once.
    pub fn take_released(&mut self) -> bool {
        self.released && std::mem::take(&mut self.released)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::messages::OwnerKind;

    /// Goal: locks go with their owner, session or file, and the counts follow.
    #[test]
    fn counts() {
        let owner = |session| LockOwner { session, kind: OwnerKind::Process, id: 1 };
        let range = |start| OwnerRange { start, end: start + 5, exclusive: false };
        let (one, two) = ((FileId(1), LockSpace::Ranges), (FileId(2), LockSpace::Ranges));
        let mut locks = FileLocks::default();
        for _ in 0..2 {
            locks.set(one, owner(7), &range(0), true);
            locks.set(one, owner(7), &range(10), true);
            locks.set(two, owner(7), &range(0), true);
            locks.set(one, owner(8), &range(0), true);
        }
        assert_eq!((locks.count(), locks.count_of_session(7), locks.take_released()), (4, 3, false));
        locks.remove_session(7);
        assert!(locks.take_released() && !locks.take_released());
        assert_eq!((locks.count(), locks.count_of_session(7)), (1, 0));
        locks.remove_file(FileId(2));
        assert!(!locks.take_released());
        locks.remove_file(FileId(1));
        assert!(locks.is_empty() && locks.count() == 0);
    }

    /// Goal: the bound of a file holds for all its owners together, an unlock that would split a range included; what
    /// makes nothing more always gets through.
    #[test]
    fn bound_of_a_file() {
        let owner = |id| LockOwner { session: 1, kind: OwnerKind::Process, id };
        let range = |start, end| OwnerRange { start, end, exclusive: true };
        let key = (FileId(1), LockSpace::Ranges);
        let mut locks = FileLocks::default();
        for number in 0..Bounds::default().file_lock_ranges as u64 {
            let wanted = range(number * 10, number * 10 + 5);
            assert!(locks.has_room(key, &owner(number % 2), &wanted, true), "{number}");
            locks.set(key, owner(number % 2), &wanted, true);
        }
        assert!(!locks.has_room(key, &owner(0), &range(7, 8), true));
        assert!(!locks.has_room(key, &owner(0), &range(1, 2), false), "it splits a range");
        assert!(locks.has_room(key, &owner(0), &range(5, 6), true), "it joins one");
        assert!(locks.has_room(key, &owner(1), &range(10, 12), false));
        assert!(locks.has_room((FileId(2), LockSpace::Ranges), &owner(0), &range(7, 8), true));
    }
}
