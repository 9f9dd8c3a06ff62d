//! Everything a server knows beside chunks, as one set of tables that only journal records change: the same `apply`
//! runs when a request is handled and when the journal is replayed.
//!
//! Invariants
//! 1. Tables change only through `Tables::apply`, after the record was journalled.
//! 2. Numbers below `number_limit` and generations below `generation_limit` may have been given out; those from the
//!    limits on were not. A restart goes on from the limits.

use crate::backing::table::BackingTables;
use crate::coordination::intents::{Intent, Origin};
use crate::coordination::prepared::PreparedChange;
use crate::core::Notice;
use crate::files::extended_attributes::ExtendedAttributes;
use crate::files::file_locks::FileLocks;
use crate::files::inodes::Inodes;
use crate::files::open_files::OpenFiles;
use crate::journal::records::Record;
use crate::journal::watches::{self, Watches};
use crate::names::Names;
use crate::names::locks::Locks;
use crate::process::options::Bounds;
use crate::publish::attribute_cache::{PublishedName, Publisher};
use crate::sessions::Sessions;
use crate::store::FastMap;
use crate::tree::shares::AnnouncedDirectories;
use crate::tree::{Tree, undone};
use reactor::{Incoming, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use wire::attribute_cache::TableKey;
use wire::messages::tree_kinds;
use wire::{FileId, Kind, Status};

/// Numbers that one record sets aside.
pub const NUMBER_BLOCK: u64 = 4096;

/// Who has marked a directory that a tree change is to remove. Numbers of tree changes are not those of attempts at a
/// removal, whoever coordinates either.
pub const TREE_COORDINATOR: u32 = u32::MAX;

/// A directory that is about to be removed: nothing may be created under it here.
pub struct Mark {
    /// A server, or `TREE_COORDINATOR`.
    pub coordinator: u32,
    /// A number of the server, or of the tree change.
    pub attempt: u64,
    /// Told when the mark is resolved.
    pub resolved: Notice<()>,
}

/// See the module.
pub struct Tables {
    pub names: Names,
    pub inodes: Inodes,
    pub extended: ExtendedAttributes,
    pub file_locks: FileLocks,
    pub announced: AnnouncedDirectories,
    pub sessions: Sessions<Incoming>,
    pub intents: BTreeMap<u64, Intent>,
    /// Ids of removed directories that clients may have cached (`tree::invalidation`), each with the tree change that
    /// was under way when it was buried, or 0.
    pub tombstones: FastMap<u64, u64>,
    pub marks: FastMap<u64, Mark>,
    /// Changes that wait for the decision of their coordinator, by its number and the change's.
    pub prepared: BTreeMap<(u32, u64), PreparedChange>,
    /// Names and inodes that nobody may look at or change now: those of prepared changes, and those that this server
    /// is changing together with others.
    pub locks: Locks,
    pub open: OpenFiles,
    pub tree: Tree,
    /// What clients of this machine see by themselves, once this server serves.
    pub publisher: Option<Rc<Publisher>>,
    /// Whether other servers may hold delegations of names here: since some life of this server, until none can stand
    /// any more.
    pub delegations_given: bool,
    /// Sessions that may hold a delegation of this server's entries, or held one of an earlier life's.
    pub entry_keepers: BTreeSet<u64>,
    /// Whether this server lost power, and clients may still go by directories that it has forgotten.
    pub is_loss_untold: bool,
    /// The last submission that was taken up: its queue and number.
    pub last_submission: Option<(u32, u64)>,
    /// What a checker wants to know of changes.
    pub watches: Watches,
    /// Files with chunks here that their homes have changed in several steps: the number of the last that is done, for
    /// a late copy of it is not to be done again. Goes with the file.
    pub changes: FastMap<u64, u64>,
    /// Of the backing tree, if there is one.
    pub backing: BackingTables,
    pub next_number: u64,
    pub number_limit: u64,
    pub next_generation: u32,
    pub generation_limit: u32,
}

impl Tables {
    /// Empty tables for at most `session_count_max` sessions.
    pub fn new(session_count_max: usize, bounds: &Bounds) -> Tables {
        let first = FileId::ROOT.sequence() + 1;
        Tables {
            names: Names::default(),
            inodes: Inodes::default(),
            extended: ExtendedAttributes::default(),
            file_locks: FileLocks::new(bounds),
            announced: AnnouncedDirectories::default(),
            sessions: Sessions::new(session_count_max),
            intents: BTreeMap::new(),
            tombstones: FastMap::default(),
            marks: FastMap::default(),
            prepared: BTreeMap::new(),
            locks: Locks::default(),
            open: OpenFiles::new(bounds),
            tree: Tree::new(bounds.tree_log),
            publisher: None,
            delegations_given: false,
            entry_keepers: BTreeSet::new(),
            is_loss_untold: false,
            last_submission: None,
            watches: Watches::default(),
            changes: FastMap::default(),
            backing: BackingTables::default(),
            next_number: first,
            number_limit: first,
            next_generation: 1,
            generation_limit: 1,
        }
    }

    /// Whether no change was ever made here.
    pub fn is_untouched(&self) -> bool {
        self.number_limit == FileId::ROOT.sequence() + 1 && self.inodes.count() == 0
    }

    /// Changes the tables as the record says. Outcomes are taken in by the session that waits for them, and here only
    /// when `replaying` gives the time of the recovery. `time` is that of the change.
    pub fn apply(&mut self, record: Record<'_>, time: i64, replaying: Option<Nanos>) {
        if !self.watches.is_empty() {
            watches::note(self, &record);
        }
        if self.backing.root.is_none() {
            return self.apply_record(record, time, replaying);
        }
        let counted = self.before_backing_change(&record);
        self.apply_record(record, time, replaying);
        self.after_backing_change(counted);
    }

    fn apply_record(&mut self, record: Record<'_>, time: i64, replaying: Option<Nanos>) {
        match record {
            Record::Nothing => {}
            Record::DentryPut { parent, name, id, kind } => {
                let added = self.names.put(parent, name, id, kind, time);
                if let (Some(hash), Some(publisher)) = (added, &self.publisher) {
                    publisher.add_name(TableKey::of_hashed_name(hash, parent, name));
                }
            }
            Record::DentryDelete { parent, name } => {
                let removed = self.names.remove(parent, name, time);
                if let (Some(hash), Some(publisher)) = (removed, &self.publisher) {
                    publisher.remove_name(TableKey::of_hashed_name(hash, parent, name));
                }
            }
            Record::AnnouncedPut { directory, shares } => self.announced.put(directory, shares),
            Record::ShareAnnounced { directory, server } => self.announced.add(directory, server),
            // One that is gone was removed after a checkpoint began that came too late to see it.
            Record::FileAnnounced { file, server, generation } => {
                if let Some(mut inode) = self.inodes.get(file) {
                    inode.announce(server, generation);
                    self.inodes.put(&inode);
                }
            }
            Record::Share { directory, time } => self.names.note_time(directory, time),
            Record::InodePut(inode) => {
                self.open.note_inode(inode.attributes.id, inode.attributes.link_count);
                self.inodes.put(&inode);
            }
            Record::InodeDelete(id) => {
                self.open.note_no_orphan(id);
                match self.inodes.remove(id) {
                    Some(Kind::Directory) => self.announced.forget(id),
                    Some(_) => self.backing.remove_place(id),
                    // Late, and of a directory it stays.
                    None if self.backing.place(id).is_some_and(|place| place.base > 0) => self.backing.remove_place(id),
                    None => {}
                }
                self.extended.remove_inode(id);
                self.file_locks.remove_file(id);
            }
            Record::SessionPut { session, born } => self.sessions.add(session, born, replaying.unwrap_or(0)),
            Record::SessionDelete(session) => {
                self.sessions.remove(session);
                self.open.end_session(session);
                self.file_locks.remove_session(session);
            }
            Record::DelegationsGiven(given) => self.delegations_given = given,
            Record::LossUntold(untold) => self.is_loss_untold = untold,
            Record::EntriesKept { session, held: true } => drop(self.entry_keepers.insert(session)),
            Record::EntriesKept { session, held: false } => drop(self.entry_keepers.remove(&session)),
            Record::SubmissionTaken { queue, number } => self.last_submission = Some((queue, number)),
            Record::LinkablePut(file) => self.open.note_linkable(file),
            Record::Outcome { session, sequence, reply } => {
                if replaying.is_some() {
                    self.sessions.restore(Origin { session, sequence }, reply);
                }
            }
            Record::StepsDone { session, sequence, pieces } => {
                if replaying.is_some() {
                    self.sessions.restore_steps(Origin { session, sequence }, pieces);
                }
            }
            Record::IntentPut { number, intent } => {
                self.intents.insert(number, intent);
            }
            Record::IntentDelete(number) => {
                self.intents.remove(&number);
            }
            Record::Tombstone(directory) => {
                self.tombstones.insert(directory.0, self.tree.mark().map_or(0, |mark| mark.number));
                self.names.forget(directory);
                self.backing.note_removed(directory);
            }
            Record::TombstoneDelete(directory) => drop(self.tombstones.remove(&directory.0)),
            Record::MarkPut { directory, coordinator, attempt } => self.mark(directory, coordinator, attempt),
            Record::MarkDelete(directory) => {
                if let Some(mark) = self.marks.remove(&directory.0) {
                    mark.resolved.tell(());
                }
            }
            Record::PreparedPut { coordinator, number, change } => {
                change.lock(&mut self.locks);
                self.prepared.insert((coordinator, number), change);
            }
            Record::PreparedDelete { coordinator, number } => {
                if let Some(change) = self.prepared.remove(&(coordinator, number))
                    && !self.prepared.values().any(|other| other.shares_lock(&change))
                {
                    change.unlock(&mut self.locks);
                }
            }
            Record::LockSet { file, space, owner, range, held } => {
                self.file_locks.set((file, space), owner, &range, held);
            }
            Record::ExtendedPut { file, name, value } | Record::ExtendedTakenUp { file, name, value } => {
                self.extended.put(file, name, value);
            }
            Record::ExtendedDelete { file, name } => self.extended.remove(file, name),
            Record::TreeMark { number, entries } => self.tree.put_mark(number, entries),
            Record::TreeSettled(number) => self.tree.settle(number),
            Record::TreeLog(entry) => {
                if entry.kind == tree_kinds::ALL {
                    self.forget_tombstones(entry.number);
                }
                self.tree.put_log(entry);
            }
            Record::TreeFloor(number) => self.tree.put_floor(number),
            Record::ChangePut { file, number } => drop(self.changes.insert(file.0, number)),
            Record::ChangeDelete(file) => drop(self.changes.remove(&file.0)),
            Record::BackingRoot(root) => self.set_backing_root(root),
            Record::PlacePut { id, place } => self.backing.put_place(id, place),
            Record::PlaceDelete(id) => self.backing.remove_place(id),
            Record::StandingPut { file, index, standing } => self.backing.put_standing(file, index, standing),
            Record::DifferencePut { directory, name, behind } => {
                self.backing.put_difference(directory, name, behind);
            }
            Record::DifferenceDelete { directory, name } => self.backing.remove_difference(directory, name),
            Record::Listed(directory) => self.backing.note_listed(directory),
            Record::Unlisted(directory) => self.backing.note_unlisted(directory),
            Record::ExtendedKnown(id) => self.backing.note_extended_known(id, true),
            Record::ExtendedForgotten(id) => {
                self.backing.note_extended_known(id, false);
                self.extended.remove_inode(id);
            }
            Record::Written { id, rest } => self.backing.note_written(id, rest),
            Record::Carried { id, place, state } => self.backing.put_carried(id, place, state),
            Record::NextPut { id, place } => self.backing.put_next(id, place),
            Record::DirectoryForgotten(directory) => self.backing.forget_directory(directory),
            Record::Numbers { number_limit, generation_limit } => {
                self.number_limit = self.number_limit.max(number_limit);
                self.generation_limit = self.generation_limit.max(generation_limit);
                if replaying.is_some() {
                    self.next_number = self.number_limit;
                    self.next_generation = self.generation_limit;
                }
            }
        }
    }

    /// Whether a file may be open, also for a client that has only looked at the attribute cache: after this it
    /// believes that no more, until the file is published again.
    pub fn may_be_open(&self, file: FileId) -> bool {
        if let Some(publisher) = &self.publisher {
            publisher.invalidate_inode(file);
        }
        self.open.may_be_open(file)
    }

    /// Begins to show what clients of this machine need not ask for.
    pub fn publish(&mut self, publisher: Rc<Publisher>) {
        self.inodes.share(publisher.inodes());
        self.names.for_each(&mut |parent, entry| {
            let key = TableKey::of_name(parent, entry.name);
            publisher.add_name(key);
            // What is behind as well is looked at again first.
            if entry.kind == Kind::File && self.backing.get(entry.id).is_none() {
                let (name, file) = (entry.name, entry.id);
                publisher.publish_name(&PublishedName { parent, name, file, hash: key.hash });
            }
        });
        self.locks.set_publisher(publisher.clone());
        publisher.publish_tree(&self.tree);
        self.publisher = Some(publisher);
    }

    /// Whoever may know a directory that was removed before tree change `number` was decided is refused from now on
    /// (tree, invariant 4). This server may take the change in late, when it has buried others since: only what was
    /// buried before it was marked was so for sure.
    fn forget_tombstones(&mut self, number: u64) {
        let mark = self.tree.mark().map(|mark| mark.number).filter(|mark| [*mark, undone(*mark)].contains(&number));
        if let Some(mark) = mark {
            self.tombstones.retain(|_, under_way| *under_way == mark);
        }
    }

    /// A later attempt takes over the mark of an earlier one, with all who wait for it.
    fn mark(&mut self, directory: FileId, coordinator: u32, attempt: u64) {
        let mark =
            self.marks.entry(directory.0).or_insert_with(|| Mark { coordinator, attempt, resolved: Notice::new() });
        mark.coordinator = coordinator;
        mark.attempt = attempt;
    }

    /// Whether the mark of a directory is this one.
    pub fn is_marked_by(&self, directory: FileId, coordinator: u32, attempt: u64) -> bool {
        self.marks.get(&directory.0).is_some_and(|mark| (mark.coordinator, mark.attempt) == (coordinator, attempt))
    }

    /// Refuses what lies under a directory that was removed.
    pub fn check_not_removed(&self, directories: impl Iterator<Item = FileId>) -> Result<(), crate::core::Failure> {
        if self.tombstones.is_empty() {
            return Ok(());
        }
        for directory in directories {
            if self.tombstones.contains_key(&directory.0) {
                return Err(crate::core::Failure::new(Status::StaleDirectory, directory));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::messages::{TreeEntry, TreeLogEntry};

    /// Goal: a server that is told late that all is to be forgotten keeps what it has buried since it was marked, and
    /// one that knows nothing of the mark keeps all.
    #[test]
    fn late_invalidation_keeps_what_was_buried_since() {
        let all = |number| TreeLogEntry { number, directory: FileId::ROOT, kind: tree_kinds::ALL };
        let entry = TreeEntry { directory: FileId::ROOT, kind: tree_kinds::ALL, parent: FileId::ROOT };
        let mark = Record::TreeMark { number: 8, entries: vec![entry.clone()] };
        let bury = |directory| Record::Tombstone(FileId(directory));
        let left = |records: Vec<Record<'static>>| {
            let mut tables = Tables::new(1, &Bounds::default());
            records.into_iter().for_each(|record| tables.apply(record, 1, None));
            let mut left: Vec<u64> = tables.tombstones.keys().copied().collect();
            left.sort_unstable();
            left
        };
        let end = |number| vec![Record::TreeLog(all(number)), Record::TreeSettled(number)];
        let told = |number| left([vec![bury(100), mark.clone(), bury(200)], end(number)].concat());
        assert_eq!(told(8), [200]);
        assert_eq!(told(undone(8)), [200]);
        assert_eq!(told(7), [100, 200], "of another change");
        assert_eq!(left([vec![bury(100), bury(200)], end(8)].concat()), [100, 200], "no mark");
        let next = Record::TreeMark { number: 12, entries: vec![entry] };
        let later = [vec![mark.clone(), bury(200)], end(8), vec![next, bury(300)], end(12)].concat();
        assert_eq!(left(later), [300]);
    }
}
