//! The handles of a backing tree: which are open, which of these nobody uses, and who waits for one.
//!
//! Invariants
//! 1. At most `HANDLES_MAX` are open, being opened or being closed at a time.
//! 2. Whoever asks while all are in use waits, first come first served; nobody who waits is passed by.
//! 3. An idle handle is used again only for the path that it was opened by, within `HANDLE_AGE_NS_MAX` of that, and not
//!    after this tree has renamed or removed anything on its way.

use super::HANDLES_MAX;
use super::name::{TreePath, is_within};
use super::operation::{HandleId, OpenAs};
use crate::Nanos;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Weak;
use std::task::Waker;

/// For how long after it was opened a handle that nobody uses may be used again.
pub(super) const HANDLE_AGE_NS_MAX: Nanos = 1_000_000_000;

/// What is known of an open handle.
pub(super) struct OpenedAs {
    pub path: TreePath,
    pub open_as: OpenAs,
    pub opened: Nanos,
    /// The number of the inode that was opened; 0 until it is.
    pub inode: u64,
    /// Whether whoever opens the path again may get this one.
    pub is_reusable: bool,
}

/// What a handle number stands for.
enum HandleState<G> {
    Free,
    /// Given to somebody who is going to open it, or being closed.
    Moving,
    /// Being opened.
    Opening(OpenedAs),
    /// In use, by whoever holds the guard.
    Used(OpenedAs, Weak<G>),
    /// Open, and nobody uses it. With its place among those.
    Idle(OpenedAs, u64),
}

/// A handle that is to be closed, and its path, for people.
pub(super) type ToClose = (HandleId, TreePath);

/// The handles of one tree. `G` is what users of a handle share.
pub(super) struct HandleTable<G> {
    states: Vec<HandleState<G>>,
    free: Vec<u32>,
    /// Idle ones, by when they became so.
    idle: BTreeMap<u64, HandleId>,
    next_stamp: u64,
    openers: VecDeque<(u64, Waker)>,
    next_ticket: u64,
    /// What those who waited have been given.
    granted: BTreeMap<u64, HandleId>,
    used_most: usize,
}

/// Someone may go on.
pub(super) type Woken = Option<Waker>;

impl<G> HandleTable<G> {
    pub fn new() -> HandleTable<G> {
        HandleTable {
            states: Vec::new(),
            free: Vec::new(),
            idle: BTreeMap::new(),
            next_stamp: 0,
            openers: VecDeque::new(),
            next_ticket: 0,
            granted: BTreeMap::new(),
            used_most: 0,
        }
    }

    /// A handle of a path that may be used once more. An idle one is in use from here on, with `revive`'s guard.
    pub fn reuse(
        &mut self,
        path: &[u8],
        open_as: OpenAs,
        now: Nanos,
        revive: impl FnOnce(HandleId, TreePath, u64) -> std::rc::Rc<G>,
    ) -> Option<std::rc::Rc<G>> {
        let fits = |opened: &OpenedAs| {
            opened.is_reusable
                && opened.open_as == open_as
                && *opened.path == *path
                && now.saturating_sub(opened.opened) <= HANDLE_AGE_NS_MAX
        };
        let found = self.states.iter().position(|state| match state {
            HandleState::Used(opened, guard) => fits(opened) && guard.strong_count() > 0,
            HandleState::Idle(opened, _) => fits(opened),
            _ => false,
        })?;
        match std::mem::replace(&mut self.states[found], HandleState::Moving) {
            HandleState::Used(opened, guard) => {
                let shared = guard.upgrade();
                self.states[found] = HandleState::Used(opened, guard);
                shared
            }
            HandleState::Idle(opened, stamp) => {
                self.idle.remove(&stamp);
                let guard = revive(HandleId(found as u32), opened.path.clone(), opened.inode);
                self.states[found] = HandleState::Used(opened, std::rc::Rc::downgrade(&guard));
                Some(guard)
            }
            _ => unreachable!("only what is open was looked for"),
        }
    }

    /// A number for a handle that is to be opened, if one is free and nobody waits.
    pub fn take(&mut self) -> Option<HandleId> {
        if self.openers.is_empty() { self.take_free() } else { None }
    }

    fn take_free(&mut self) -> Option<HandleId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.states.len() < HANDLES_MAX => {
                self.states.push(HandleState::Free);
                (self.states.len() - 1) as u32
            }
            None => return None,
        };
        assert!(matches!(self.states[index as usize], HandleState::Free), "a free number stands for nothing");
        self.states[index as usize] = HandleState::Moving;
        self.used_most = self.used_most.max(self.states.len() - self.free.len());
        Some(HandleId(index))
    }

    /// Waits for a number. With it comes the idle handle that is to be closed for it, if there is any.
    pub fn join_queue(&mut self, waker: Waker) -> (u64, Option<ToClose>) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.openers.push_back((ticket, waker));
        let oldest = self.idle.pop_first();
        (ticket, oldest.map(|(_, handle)| (handle, self.take_idle(handle))))
    }

    /// An idle handle is going to be closed.
    fn take_idle(&mut self, handle: HandleId) -> TreePath {
        match std::mem::replace(&mut self.states[handle.0 as usize], HandleState::Moving) {
            HandleState::Idle(opened, _) => opened.path,
            _ => unreachable!("what is among the idle ones is idle"),
        }
    }

    /// What somebody who waits was given; else his waker is kept, and the old one comes back.
    pub fn poll_queue(&mut self, ticket: u64, waker: &Waker) -> Result<HandleId, Woken> {
        if let Some(handle) = self.granted.remove(&ticket) {
            return Ok(handle);
        }
        let place = self.openers.iter_mut().find(|(other, _)| *other == ticket);
        Err(place.map(|(_, old)| std::mem::replace(old, waker.clone())))
    }

    /// Somebody waits no longer.
    pub fn leave_queue(&mut self, ticket: u64) -> Woken {
        let left = self.openers.iter().position(|(other, _)| *other == ticket);
        if let Some((_, waker)) = left.and_then(|index| self.openers.remove(index)) {
            // Not to be woken, but to be dropped where nothing is borrowed.
            return Some(waker);
        }
        self.granted.remove(&ticket).and_then(|handle| self.set_free(handle))
    }

    /// A handle is being opened from now on. What happens to its path until it is open counts too (invariant 3).
    pub fn set_opening(&mut self, handle: HandleId, opened: OpenedAs) {
        let state = &mut self.states[handle.0 as usize];
        assert!(matches!(state, HandleState::Moving), "what is opened was given for it");
        *state = HandleState::Opening(opened);
    }

    /// A handle was opened, of that inode.
    pub fn set_used(&mut self, handle: HandleId, inode: u64, guard: Weak<G>) {
        let state = &mut self.states[handle.0 as usize];
        let HandleState::Opening(opened) = std::mem::replace(state, HandleState::Moving) else {
            unreachable!("what was opened was being opened")
        };
        *state = HandleState::Used(OpenedAs { inode, ..opened }, guard);
    }

    /// Nobody uses a handle any more. It stays open, or comes back to be closed.
    pub fn release(&mut self, handle: HandleId) -> Option<ToClose> {
        let state = &mut self.states[handle.0 as usize];
        let HandleState::Used(opened, _) = std::mem::replace(state, HandleState::Moving) else {
            unreachable!("only what is in use is released")
        };
        if !opened.is_reusable || !self.openers.is_empty() {
            return Some((handle, opened.path));
        }
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        self.idle.insert(stamp, handle);
        *state = HandleState::Idle(opened, stamp);
        None
    }

    /// A handle is closed, or was not opened after all: its number goes to whoever waits longest.
    pub fn set_free(&mut self, handle: HandleId) -> Woken {
        let state = &self.states[handle.0 as usize];
        assert!(matches!(state, HandleState::Moving | HandleState::Opening(_)), "what is in use is not free");
        if let Some((ticket, waker)) = self.openers.pop_front() {
            // Of an open that failed nothing is left.
            self.states[handle.0 as usize] = HandleState::Moving;
            self.granted.insert(ticket, handle);
            return Some(waker);
        }
        self.states[handle.0 as usize] = HandleState::Free;
        self.free.push(handle.0);
        None
    }

    /// Something has another name, or none. Handles at it and below it are not used again; those that come back are to
    /// be closed.
    pub fn note_changed(&mut self, path: &[u8]) -> Vec<ToClose> {
        let mut idle = Vec::new();
        for (index, state) in self.states.iter_mut().enumerate() {
            match state {
                HandleState::Used(opened, _) | HandleState::Opening(opened) if is_within(&opened.path, path) => {
                    opened.is_reusable = false;
                }
                HandleState::Idle(opened, stamp) if is_within(&opened.path, path) => {
                    self.idle.remove(stamp);
                    idle.push(HandleId(index as u32));
                }
                _ => {}
            }
        }
        idle.into_iter().map(|handle| (handle, self.take_idle(handle))).collect()
    }

    /// A handle that is in use is stale: nobody gets it, nor any other one of its path, which may be of the same time;
    /// idle ones come back to be closed.
    pub fn note_stale(&mut self, handle: HandleId) -> Vec<ToClose> {
        match &self.states[handle.0 as usize] {
            HandleState::Used(opened, _) => self.note_changed(&opened.path.clone()),
            _ => Vec::new(),
        }
    }

    /// Handles that are open, being opened or being closed; those of them that are idle; the most there ever were; and
    /// how many wait for one.
    pub fn counts(&self) -> (usize, usize, usize, usize) {
        (self.states.len() - self.free.len(), self.idle.len(), self.used_most, self.openers.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn opened(path: &str, opened: Nanos) -> OpenedAs {
        OpenedAs { path: path.as_bytes().into(), open_as: OpenAs::Directory, opened, inode: 0, is_reusable: true }
    }

    fn open(table: &mut HandleTable<HandleId>, path: &str, now: Nanos) -> Rc<HandleId> {
        let handle = table.take().unwrap();
        let guard = Rc::new(handle);
        table.set_opening(handle, opened(path, now));
        table.set_used(handle, 7, Rc::downgrade(&guard));
        guard
    }

    /// Goal: no more numbers than there are, the longest idle goes first, and those who wait are served in order, also
    /// when some of them leave.
    #[test]
    fn numbers_go_in_order() {
        let mut table = HandleTable::new();
        let guards: Vec<_> = (0..HANDLES_MAX).map(|number| open(&mut table, &number.to_string(), 0)).collect();
        assert_eq!(table.take(), None);
        assert_eq!((table.release(*guards[5]), table.release(*guards[3])), (None, None));
        let waker = || Waker::noop().clone();
        let (first, closed) = table.join_queue(waker());
        assert_eq!(closed, Some((HandleId(5), (*b"5").into())));
        let (second, closed) = table.join_queue(waker());
        assert_eq!(closed.map(|(handle, _)| handle), Some(HandleId(3)));
        let (third, closed) = table.join_queue(waker());
        assert_eq!(closed, None);
        assert!(table.release(*guards[7]).is_some(), "somebody waits");
        assert!(table.set_free(HandleId(5)).is_some());
        assert!(table.poll_queue(second, Waker::noop()).is_err());
        assert!(table.leave_queue(second).is_some(), "its waker");
        // What was given to one who leaves goes to the next.
        assert!(table.leave_queue(first).is_some());
        assert_eq!(table.poll_queue(third, Waker::noop()).ok(), Some(HandleId(5)));
        assert!(table.set_free(HandleId(3)).is_none());
        assert_eq!(table.take(), Some(HandleId(3)));
        assert_eq!(table.counts(), (HANDLES_MAX, 0, HANDLES_MAX, 0));
    }

    /// Goal: the number of an open that failed serves whoever waits for one.
    #[test]
    fn numbers_of_failed_opens_go_on() {
        let mut table = HandleTable::<HandleId>::new();
        let taken: Vec<_> = (0..HANDLES_MAX).map(|_| table.take().unwrap()).collect();
        table.set_opening(taken[4], opened("missing", 0));
        let (ticket, _) = table.join_queue(Waker::noop().clone());
        assert!(table.set_free(taken[4]).is_some());
        assert_eq!(table.poll_queue(ticket, Waker::noop()).ok(), Some(taken[4]));
        table.set_opening(taken[4], opened("there", 0));
    }

    /// Goal: a handle is used again while it is young and nothing on its way has changed.
    #[test]
    fn idle_handles_are_used_again() {
        let mut table = HandleTable::new();
        let reuse = |table: &mut HandleTable<HandleId>, path: &str, now| {
            table.reuse(path.as_bytes(), OpenAs::Directory, now, |handle, _, _| Rc::new(handle)).map(|guard| *guard)
        };
        let guard = open(&mut table, "a/b", 0);
        assert_eq!(reuse(&mut table, "a/b", HANDLE_AGE_NS_MAX), Some(*guard), "shared with who uses it");
        assert_eq!(reuse(&mut table, "a", 0), None);
        table.release(*guard);
        assert_eq!(reuse(&mut table, "a/b", HANDLE_AGE_NS_MAX + 1), None);
        assert_eq!(reuse(&mut table, "a/b", 1), Some(*guard));
        table.release(*guard);
        assert_eq!(table.note_changed(b"a/bc"), []);
        assert_eq!(table.note_changed(b"a"), [(*guard, (*b"a/b").into())]);
        assert_eq!(reuse(&mut table, "a/b", 1), None);
        let other = open(&mut table, "a/b", 1);
        assert_eq!(table.note_changed(b"a/b"), []);
        assert!(table.release(*other).is_some());
        // Something happens to the path while it is being opened.
        let late = table.take().unwrap();
        table.set_opening(late, opened("b", 1));
        assert_eq!(table.note_changed(b"b"), []);
        let guard = Rc::new(late);
        table.set_used(late, 7, Rc::downgrade(&guard));
        assert_eq!(reuse(&mut table, "b", 1), None);
        // Two that were opened at once are of one time.
        let (stale, idle) = (open(&mut table, "c", 1), open(&mut table, "c", 1));
        assert_eq!(table.release(*idle), None);
        assert_eq!(table.note_stale(*stale), [(*idle, (*b"c").into())]);
        assert_eq!(reuse(&mut table, "c", 1), None);
    }
}
