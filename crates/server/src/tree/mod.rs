//! What a server knows of tree changes: the log of those that happened, the mark of the one that is under way, and who
//! is on the way through which directories.
//!
//! There is one tree change at a time in a cluster, and all servers have heard the end of one before the next begins.
//! So every server's log is whole up to its last number, and one mark is enough.
//!
//! Invariants
//! 1. `gate` is `number` while no mark stands, else a number that nobody has: a request that knows what we know passes
//!    with one comparison.
//! 2. Numbers rise. What is told of a number up to `settled` is late, and changes nothing. A change has two: its own,
//!    and the next one (`undone`), under which it is in the log if it was prepared and came to nothing: a server that
//!    lost power may have told that it happened. Whoever has gone by that, with the number of before or with that of
//!    the change, is refused. All servers were marked then, so that all know that there may be this number.
//! 3. `latest` has the directories of `log`, each with the last change of it.
//! 4. Whoever knows less than `floor` is refused without a directory being named, forgets all that he has cached, and
//!    begins at the number that the refusal tells.

pub mod invalidation;
pub mod shares;

use crate::core::{Failure, Notice};
use crate::store::FastMap;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use wire::messages::{KNOWN_UNCHECKED, TreeEntry, TreeLogEntry, tree_kinds};
use wire::{FileId, Status};

/// No change ever has this number.
const GATE_SHUT: u64 = u64::MAX - 1;

/// The number under which change `number` is in the log if it came to nothing after it was prepared.
pub fn undone(number: u64) -> u64 {
    number + 1
}

/// A tree change that is under way.
pub struct TreeMark {
    pub number: u64,
    pub entries: Vec<TreeEntry>,
    resolved: Notice<()>,
}

impl TreeMark {
    fn moves(&self, directory: FileId) -> bool {
        self.entries.iter().any(|entry| entry.kind == tree_kinds::MOVED && entry.directory == directory)
    }
}

/// See the module.
pub struct Tree {
    /// Entries of the log at most.
    log_count_max: usize,
    gate: u64,
    number: u64,
    settled: u64,
    mark: Option<TreeMark>,
    log: VecDeque<TreeLogEntry>,
    latest: FastMap<u64, u64>,
    /// The last number that fell out of the log.
    floor: u64,
    /// The last change of everything in this life.
    emptied: u64,
}

/// Entries of the log that one change makes at most: a log keeps the last change whole.
pub const LOG_COUNT_MIN: usize = 2;

impl Tree {
    /// A tree of which nothing is known, with so many entries of the log at most.
    pub fn new(log_count_max: usize) -> Tree {
        assert!(log_count_max >= LOG_COUNT_MIN, "the log keeps at least one change");
        Tree {
            log_count_max,
            gate: 0,
            number: 0,
            settled: 0,
            mark: None,
            log: VecDeque::new(),
            latest: FastMap::default(),
            floor: 0,
            emptied: 0,
        }
    }

    /// The last tree change that happened.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn settled(&self) -> u64 {
        self.settled
    }

    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// The last number with which everything was to be forgotten, as far as this life of the server has seen it.
    pub fn emptied(&self) -> u64 {
        self.emptied
    }

    pub fn mark(&self) -> Option<&TreeMark> {
        self.mark.as_ref()
    }

    pub fn log(&self) -> impl Iterator<Item = &TreeLogEntry> {
        self.log.iter()
    }

    /// The number that a request passes with by one comparison, if there is one.
    pub fn passing(&self) -> Option<u64> {
        (self.gate != GATE_SHUT).then_some(self.gate)
    }

    /// Refuses a path that leads through a directory that was moved, or closed to someone, after change `known`.
    #[inline]
    pub fn check(&self, known: u64, path: impl Iterator<Item = FileId>) -> Result<(), Failure> {
        if known == self.gate { Ok(()) } else { self.check_path(known, path) }
    }

    #[cold]
    fn check_path(&self, known: u64, mut path: impl Iterator<Item = FileId>) -> Result<(), Failure> {
        if known == KNOWN_UNCHECKED {
            return Ok(());
        }
        // Who knows the change that is under way here, or that it came to nothing, has seen that elsewhere.
        let last = self.mark.as_ref().map_or(self.number, |mark| undone(mark.number));
        if known > last {
            // It never was, or a power loss took it back: the caller begins anew.
            return Err(Failure::with_text(
                Status::StaleDirectory,
                "the request knows of a tree change that is not known",
            ));
        }
        if known < self.floor && path.next().is_some() {
            return Err(Failure::with_text(
                Status::StaleDirectory,
                "the request knows of no tree change that is still in the log",
            ));
        }
        let stale = path.find(|directory| self.latest.get(&directory.0).is_some_and(|number| *number > known));
        stale.map_or(Ok(()), |directory| Err(Failure::new(Status::StaleDirectory, directory)))
    }

    /// Told when it is known whether a path holds: a directory on it may be on the move. Also for who has seen the end
    /// of the move elsewhere: a power loss may have taken that back.
    #[inline]
    pub fn wait_for(&self, known: u64, path: impl Iterator<Item = FileId>) -> Option<Notice<()>> {
        if known == self.gate { None } else { self.wait_for_path(known, path) }
    }

    #[cold]
    fn wait_for_path(&self, known: u64, mut path: impl Iterator<Item = FileId>) -> Option<Notice<()>> {
        let mark = self.mark.as_ref().filter(|mark| known <= undone(mark.number))?;
        path.any(|directory| mark.moves(directory)).then(|| mark.resolved.clone())
    }

    /// Notes that a change is under way.
    pub fn put_mark(&mut self, number: u64, entries: Vec<TreeEntry>) {
        let resolved = self.mark.take().map_or_else(Notice::new, |mark| mark.resolved);
        self.mark = Some(TreeMark { number, entries, resolved });
        self.gate = GATE_SHUT;
    }

    /// Notes that what there was to know of a change is known.
    pub fn settle(&mut self, number: u64) {
        self.settled = self.settled.max(number);
        if let Some(mark) = self.mark.take_if(|mark| mark.number <= number) {
            mark.resolved.tell(());
        }
        self.gate = if self.mark.is_some() { GATE_SHUT } else { self.number };
    }

    /// Takes a change into the log.
    pub fn put_log(&mut self, entry: TreeLogEntry) {
        let known = self.log.iter().rev().take_while(|other| other.number >= entry.number);
        if entry.number < self.number || known.into_iter().any(|other| *other == entry) {
            return;
        }
        if entry.kind == tree_kinds::ALL {
            self.emptied = entry.number;
            self.put_floor(entry.number);
            return;
        }
        self.number = entry.number;
        self.latest.insert(entry.directory.0, entry.number);
        self.log.push_back(entry);
        while self.log.len() > self.log_count_max {
            let Some(oldest) = self.log.pop_front() else { break };
            self.floor = self.floor.max(oldest.number);
            if self.latest.get(&oldest.directory.0) == Some(&oldest.number) {
                self.latest.remove(&oldest.directory.0);
            }
        }
        self.gate = if self.mark.is_some() { GATE_SHUT } else { self.number };
    }

    /// Notes how far back the log goes: what it has up to a number counts no more.
    pub fn put_floor(&mut self, number: u64) {
        if number <= self.floor {
            return;
        }
        self.floor = number;
        self.number = self.number.max(number);
        self.log.retain(|entry| entry.number > number);
        self.latest.retain(|_, latest| *latest > number);
        self.gate = if self.mark.is_some() { GATE_SHUT } else { self.number };
    }
}

/// Changes of names under way that wait for other servers: each with the directories that its paths lead through. A
/// tree change lets those end first that came through its directories; later ones wait for it.
#[derive(Default)]
pub struct Trails {
    next: Cell<u64>,
    held: RefCell<BTreeMap<u64, PathUse>>,
}

/// The directories that a change came through, and who is told of its end.
type PathUse = (Vec<FileId>, Notice<()>);

/// A change of names on its way.
pub struct Trail {
    trails: Rc<Trails>,
    key: u64,
}

impl Trails {
    pub fn hold(self: &Rc<Self>, directories: Vec<FileId>) -> Trail {
        let key = self.next.replace(self.next.get() + 1);
        self.held.borrow_mut().insert(key, (directories, Notice::new()));
        Trail { trails: self.clone(), key }
    }

    /// Told when one ends that leads through the directory.
    pub fn through(&self, directory: FileId) -> Option<Notice<()>> {
        let held = self.held.borrow();
        held.values().find(|(directories, _)| directories.contains(&directory)).map(|(_, ended)| ended.clone())
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        let held = self.trails.held.borrow_mut().remove(&self.key);
        if let Some((_, ended)) = held {
            ended.tell(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(number: u64, directory: u64) -> TreeLogEntry {
        TreeLogEntry { number, directory: FileId(directory), kind: tree_kinds::MOVED }
    }

    fn path(directories: &[u64]) -> impl Iterator<Item = FileId> {
        directories.iter().map(|id| FileId(*id)).collect::<Vec<_>>().into_iter()
    }

    /// Goal: a path is refused when it leads through what was moved since, waits while that is moving, and passes else.
    #[test]
    fn paths_are_checked() {
        let mut tree = Tree::new(1024);
        assert!(tree.check(0, path(&[7])).is_ok());
        assert!(tree.check(1, path(&[7])).is_err(), "no such change");
        tree.put_mark(5, vec![TreeEntry { directory: FileId(7), kind: tree_kinds::MOVED, parent: FileId(1) }]);
        assert!(tree.wait_for(0, path(&[9, 7])).is_some() && tree.wait_for(0, path(&[9])).is_none());
        assert!(tree.wait_for(5, path(&[7])).is_some(), "what was seen may be taken back by a power loss");
        assert!(tree.wait_for(KNOWN_UNCHECKED, path(&[7])).is_none());
        assert!(tree.check(5, path(&[7])).is_ok() && tree.check(0, path(&[9])).is_ok());
        assert!(tree.check(undone(5), path(&[7])).is_ok() && tree.check(undone(5) + 1, path(&[9])).is_err());
        tree.put_log(moved(5, 7));
        tree.settle(5);
        assert!(tree.wait_for(0, path(&[7])).is_none());
        assert_eq!(tree.check(0, path(&[9, 7])).expect_err("stale").id, FileId(7));
        assert!(tree.check(0, path(&[9])).is_ok() && tree.check(5, path(&[7])).is_ok());
        assert!(tree.check(KNOWN_UNCHECKED, path(&[7])).is_ok());
    }

    /// Goal: the log is bounded, and who knows less than it holds forgets everything and goes on from the number that
    /// he is told.
    #[test]
    fn log_is_bounded() {
        for bound in [2, 3, 1024] {
            let mut tree = Tree::new(bound);
            let count = bound as u64;
            for number in 1..=2 * count {
                tree.put_log(moved(number, number % 1500));
                tree.put_log(moved(number, number % 1500));
            }
            assert_eq!(tree.log.len(), bound);
            assert_eq!((tree.number, tree.floor), (2 * count, count));
            let refusal = |known, directory| tree.check(known, path(&[directory])).expect_err("too old").id;
            assert_eq!((refusal(count - 1, 9999), refusal(0, FileId::ROOT.0)), (FileId::default(), FileId::default()));
            assert!(tree.check(count, path(&[9999])).is_ok() && tree.check(tree.number, path(&[9999])).is_ok());
        }
    }

    /// Goal: a change of everything empties the log, late entries change nothing, and a floor that is read back is a
    /// number that is known.
    #[test]
    fn everything_is_forgotten() {
        let everything = |number| TreeLogEntry { number, directory: FileId::ROOT, kind: tree_kinds::ALL };
        let mut tree = Tree::new(8);
        tree.put_log(moved(3, 7));
        tree.put_log(everything(5));
        assert_eq!((tree.number(), tree.floor(), tree.log().count()), (5, 5, 0));
        assert!(tree.check(4, path(&[9])).is_err() && tree.check(5, path(&[7])).is_ok());
        tree.put_log(moved(6, 8));
        tree.put_log(everything(5));
        tree.put_log(moved(3, 7));
        assert_eq!((tree.number(), tree.floor(), tree.log().count()), (6, 5, 1));
        let mut later = Tree::new(8);
        later.put_floor(5);
        later.settle(5);
        assert_eq!((later.number(), later.passing()), (5, Some(5)));
    }
}
