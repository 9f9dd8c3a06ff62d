//! Locks of the files whose home is here (flock, POSIX ranges, ranges of open file descriptions), as the journal knows
//! them. Who waits for one is in `queue`, in memory alone.
//!
//! Invariants
//! 1. Whoever holds a lock here has a session that is known, and its file an inode.
//! 2. `count` and `by_session` count ranges; who locks keeps them under the bounds below.

pub mod queue;
pub mod ranges;

use ranges::{Range, RangeTable};
use std::collections::BTreeMap;
use wire::FileId;
use wire::messages::{LockOwner, LockSpace};

/// Most ranges of one owner in one file, of one session, and of all on a server.
pub const RANGES_OF_OWNER_MAX: usize = 256;
pub const RANGES_OF_SESSION_MAX: usize = 4096;
pub const RANGES_MAX: usize = 65_536;

/// The locks of a file in a space.
pub type Key = (FileId, LockSpace);

/// See the module.
#[derive(Default)]
pub struct FileLocks {
    tables: BTreeMap<(u64, LockSpace), RangeTable>,
    count: usize,
    by_session: BTreeMap<u64, usize>,
    /// Whether locks may have gone with their session or file since this was last asked.
    released: bool,
}

impl FileLocks {
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

    pub fn table(&self, (file, space): Key) -> Option<&RangeTable> {
        self.tables.get(&(file.0, space))
    }

    /// What an owner holds.
    pub fn held(&self, key: Key, owner: &LockOwner) -> &[Range] {
        self.table(key).map_or(&[], |table| table.of_owner(owner))
    }

    pub fn iter(&self) -> impl Iterator<Item = (Key, &LockOwner, &[Range])> {
        self.tables.iter().flat_map(|((file, space), table)| {
            table.iter().map(move |(owner, held)| ((FileId(*file), *space), owner, held))
        })
    }

    /// Replaces all that an owner holds of a file.
    pub fn put(&mut self, (file, space): Key, owner: LockOwner, held: Vec<Range>) {
        let key = (file.0, space);
        let table = self.tables.entry(key).or_default();
        let (before, after) = (table.of_owner(&owner).len(), held.len());
        table.put(owner, held);
        if table.is_empty() {
            self.tables.remove(&key);
        }
        self.count = self.count - before + after;
        let of_session = self.by_session.entry(owner.session).or_default();
        *of_session = *of_session - before + after;
        if *of_session == 0 {
            self.by_session.remove(&owner.session);
        }
    }

    /// Owners that hold what excludes each other, in words.
    pub fn contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        for ((file, _), table) in &self.tables {
            for (owner, held) in table.iter() {
                let conflict = held.iter().find_map(|range| table.conflicts(owner, range).next());
                if let Some((other, _)) = conflict {
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

    fn remove_where(&mut self, gone: impl Fn(Key, &LockOwner) -> bool) {
        let found: Vec<(Key, LockOwner)> =
            self.iter().filter(|(key, owner, _)| gone(*key, owner)).map(|(key, owner, _)| (key, *owner)).collect();
        self.released |= !found.is_empty();
        for (key, owner) in found {
            self.put(key, owner, Vec::new());
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
        let range = |start| Range { start, end: start + 5, exclusive: false };
        let (one, two) = ((FileId(1), LockSpace::Ranges), (FileId(2), LockSpace::Ranges));
        let mut locks = FileLocks::default();
        for _ in 0..2 {
            locks.put(one, owner(7), vec![range(0), range(10)]);
            locks.put(two, owner(7), vec![range(0)]);
            locks.put(one, owner(8), vec![range(0)]);
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
}
