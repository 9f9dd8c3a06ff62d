//! Who waits for locks, and whose turn it is. In memory alone: after a restart of the server those who wait ask again.
//!
//! Invariants
//! 1. Of one file and space, waiters are granted in the order in which they came, as far as their ranges conflict. Two
//!    exceptions: a request that does not wait looks at what is held alone, and one goes before those who (by whatever
//!    detours) wait for its own owner, for else nobody would ever get on.
//! 2. There are at most as many as the server's `Bounds` say, of all sessions and of one; and at most half of what a
//!    connection may have under way are requests to be told, so that unlocking always gets through.

use super::ranges::OwnerRange;
use super::{FileLocks, LockKey};
use std::collections::{BTreeMap, BTreeSet};
use wire::FileId;
use wire::messages::{LockOwner, LockSpace, OwnerKind};

/// A request that waits; `L` is who is told when it is granted, as soon as somebody asks to be.
pub struct Waiter<L> {
    pub owner: LockOwner,
    pub range: OwnerRange,
    pub ticket: u64,
    pub listener: Option<L>,
}

/// See the module.
pub struct Queues<L> {
    queues: BTreeMap<(u64, LockSpace), Vec<Waiter<L>>>,
}

impl<L> Default for Queues<L> {
    fn default() -> Self {
        Queues { queues: BTreeMap::new() }
    }
}

impl<L> Queues<L> {
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub fn count(&self) -> usize {
        self.queues.values().map(Vec::len).sum()
    }

    pub fn count_of_session(&self, session: u64) -> usize {
        self.all().filter(|(_, waiter)| waiter.owner.session == session).count()
    }

    /// Those who are waited on by a request of their own.
    pub fn listener_count(&self) -> usize {
        self.all().filter(|(_, waiter)| waiter.listener.is_some()).count()
    }

    /// Those of a session but for one ticket.
    pub fn other_listeners(&self, session: u64, ticket: u64) -> usize {
        let of_session = self.all().filter(|(_, waiter)| waiter.owner.session == session && waiter.ticket != ticket);
        of_session.filter(|(_, waiter)| waiter.listener.is_some()).count()
    }

    fn all(&self) -> impl Iterator<Item = (LockKey, &Waiter<L>)> {
        self.queues
            .iter()
            .flat_map(|((file, space), queue)| queue.iter().map(move |waiter| ((FileId(*file), *space), waiter)))
    }

    pub fn push(&mut self, (file, space): LockKey, waiter: Waiter<L>) {
        self.queues.entry((file.0, space)).or_default().push(waiter);
    }

    /// The waiter of a ticket.
    pub fn find(&mut self, (file, space): LockKey, session: u64, ticket: u64) -> Option<&mut Waiter<L>> {
        let queue = self.queues.get_mut(&(file.0, space))?;
        queue.iter_mut().find(|waiter| waiter.owner.session == session && waiter.ticket == ticket)
    }

    pub fn remove(&mut self, key: LockKey, session: u64, ticket: u64) -> Option<Waiter<L>> {
        let removed =
            self.remove_where(|at, waiter| at == key && waiter.owner.session == session && waiter.ticket == ticket);
        removed.into_iter().next()
    }

    /// Takes out all that are so.
    pub fn remove_where(&mut self, mut gone: impl FnMut(LockKey, &Waiter<L>) -> bool) -> Vec<Waiter<L>> {
        let mut removed = Vec::new();
        for ((file, space), queue) in &mut self.queues {
            let key = (FileId(*file), *space);
            removed.extend(queue.extract_if(.., |waiter| gone(key, waiter)));
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        removed
    }

    /// The listeners that are so, taken from their waiters, who go on waiting.
    pub fn take_listeners(&mut self, mut gone: impl FnMut(&L) -> bool) -> Vec<L> {
        let waiters = self.queues.values_mut().flatten();
        waiters.filter_map(|waiter| waiter.listener.take_if(|listener| gone(listener))).collect()
    }

    /// Whether a request of `owner` has to wait for what is held, or for one of the first `before` in the queue.
    pub fn must_wait(
        &self,
        locks: &FileLocks,
        key: LockKey,
        owner: &LockOwner,
        range: &OwnerRange,
        before: usize,
    ) -> bool {
        let Some(table) = locks.table(key) else { return false };
        if table.conflicts(owner, range).next().is_some() {
            return true;
        }
        // What the owner holds already takes nothing from anybody.
        !table.covers(owner, range)
            && self.ahead(key, owner, range, before).any(|waiter| !self.waits_for(locks, waiter.owner, owner, |_| true))
    }

    fn ahead<'a>(
        &'a self,
        (file, space): LockKey,
        owner: &'a LockOwner,
        range: &'a OwnerRange,
        before: usize,
    ) -> impl Iterator<Item = &'a Waiter<L>> {
        let queue = self.queues.get(&(file.0, space)).map_or(&[][..], Vec::as_slice);
        let ahead = queue[..before.min(queue.len())].iter();
        ahead.filter(move |waiter| waiter.owner != *owner && waiter.range.conflicts(range))
    }

    /// The first whose turn it is, with its place: in any queue, in order.
    pub fn next_turn(&self, locks: &FileLocks) -> Option<(LockKey, u64, u64)> {
        for ((file, space), queue) in &self.queues {
            let key = (FileId(*file), *space);
            for (position, waiter) in queue.iter().enumerate() {
                if !self.must_wait(locks, key, &waiter.owner, &waiter.range, position) {
                    return Some((key, waiter.owner.session, waiter.ticket));
                }
            }
        }
        None
    }

    /// Whether `from` waits, by whatever detours over owners that `counts` takes in, for `to`.
    fn waits_for(
        &self,
        locks: &FileLocks,
        from: LockOwner,
        to: &LockOwner,
        counts: impl Fn(&LockOwner) -> bool,
    ) -> bool {
        let mut seen = BTreeSet::from([from]);
        let mut open = vec![from];
        while let Some(owner) = open.pop() {
            for ((file, space), queue) in &self.queues {
                let key = (FileId(*file), *space);
                for (position, waiter) in queue.iter().enumerate().filter(|(_, waiter)| waiter.owner == owner) {
                    let table = locks.table(key);
                    let held = table.into_iter().flat_map(|table| table.conflicts(&owner, &waiter.range));
                    let ahead = self.ahead(key, &owner, &waiter.range, position).map(|waiter| &waiter.owner);
                    for other in held.map(|(holder, _)| holder).chain(ahead) {
                        if other == to {
                            return true;
                        }
                        if counts(other) && seen.insert(*other) {
                            open.push(*other);
                        }
                    }
                }
            }
        }
        false
    }

    /// Whether a process that waits for what is held in the way of `range` would wait for itself. Only processes count:
    /// others may have their locks released by whoever has the descriptor.
    pub fn is_deadlock(&self, locks: &FileLocks, key: LockKey, owner: &LockOwner, range: &OwnerRange) -> bool {
        let is_process = |owner: &LockOwner| owner.kind == OwnerKind::Process;
        let Some(table) = locks.table(key).filter(|_| is_process(owner)) else { return false };
        let mut holders = table.conflicts(owner, range).map(|(holder, _)| *holder).filter(is_process);
        holders.any(|holder| self.waits_for(locks, holder, owner, is_process))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: LockKey = (FileId(1), LockSpace::Ranges);
    const OTHER: LockKey = (FileId(2), LockSpace::Ranges);

    fn owner(id: u64) -> LockOwner {
        LockOwner { session: id, kind: OwnerKind::Process, id }
    }

    fn range(start: u64, end: u64, exclusive: bool) -> OwnerRange {
        OwnerRange { start, end, exclusive }
    }

    #[derive(Default)]
    struct Bench {
        locks: FileLocks,
        queues: Queues<()>,
        ticket: u64,
    }

    impl Bench {
        fn set(&mut self, key: LockKey, id: u64, range: OwnerRange, lock: bool) {
            self.locks.set(key, owner(id), &range, lock);
        }

        /// Whether it is granted at once.
        fn lock(&mut self, key: LockKey, id: u64, range: OwnerRange) -> bool {
            if !self.queues.must_wait(&self.locks, key, &owner(id), &range, usize::MAX) {
                self.set(key, id, range, true);
                return true;
            }
            self.ticket += 1;
            self.queues.push(key, Waiter { owner: owner(id), range, ticket: self.ticket, listener: None });
            false
        }

        /// Grants all whose turn it is, and says whose it was.
        fn grant(&mut self) -> Vec<u64> {
            let mut granted = Vec::new();
            while let Some((key, session, ticket)) = self.queues.next_turn(&self.locks) {
                let waiter = self.queues.remove(key, session, ticket).expect("it was just found");
                self.set(key, waiter.owner.id, waiter.range, true);
                granted.push(waiter.owner.id);
            }
            granted
        }
    }

    /// Goal: a large range is not starved by small ones that come after it, and what does not conflict passes by.
    #[test]
    fn in_order() {
        let mut bench = Bench::default();
        assert!(bench.lock(KEY, 1, range(0, 10, false)));
        assert!(!bench.lock(KEY, 2, range(0, 100, true)));
        assert!(!bench.lock(KEY, 3, range(50, 60, false)), "the large range came first");
        assert!(!bench.lock(KEY, 4, range(55, 70, false)));
        assert!(bench.lock(KEY, 5, range(100, 110, true)), "nobody waits for this one");
        assert_eq!(bench.grant(), []);
        bench.set(KEY, 1, range(0, 10, false), false);
        assert_eq!(bench.grant(), [2]);
        bench.set(KEY, 2, range(40, 100, true), false);
        assert_eq!(bench.grant(), [3, 4]);
        assert!(bench.queues.is_empty());
    }

    /// Goal: who is waited for is not held up by who waits, be it directly or by a detour over another file.
    #[test]
    fn no_lock_up_by_order() {
        let mut bench = Bench::default();
        assert!(bench.lock(KEY, 1, range(0, 10, false)));
        assert!(!bench.lock(KEY, 2, range(0, 10, true)));
        assert!(bench.lock(KEY, 1, range(5, 20, false)), "2 waits for 1 already");
        assert!(bench.lock(OTHER, 3, range(0, 1, true)));
        assert!(!bench.lock(OTHER, 1, range(0, 1, true)));
        assert!(bench.lock(KEY, 3, range(8, 9, false)), "2 waits for 1, and 1 for 3");
    }

    /// Goal: a cycle of processes is found at the request that would close it, over files too; open file descriptions
    /// are left out.
    #[test]
    fn deadlocks() {
        let mut bench = Bench::default();
        let all = range(0, 1, true);
        assert!(bench.lock(KEY, 1, all) && bench.lock(OTHER, 2, all));
        assert!(!bench.queues.is_deadlock(&bench.locks, OTHER, &owner(1), &all));
        assert!(!bench.lock(OTHER, 1, all));
        assert!(bench.queues.is_deadlock(&bench.locks, KEY, &owner(2), &all));
        assert!(!bench.queues.is_deadlock(&bench.locks, KEY, &owner(3), &all));
        let description = LockOwner { kind: OwnerKind::Description, ..owner(2) };
        assert!(!bench.queues.is_deadlock(&bench.locks, KEY, &description, &all));
    }
}
