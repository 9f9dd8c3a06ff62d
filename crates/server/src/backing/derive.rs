//! What a change means for what is known of the backing tree, in the one place through which all changes go
//! (`Core::commit`), so that no way of changing something can forget it.

use super::shares::FileChange;
use super::table::Standing;
use super::{BackingFault, EXTENDED_MARK};
use crate::core::Core;
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::cursor_of;
use crate::store::{ChunkChanges, Transaction};
use wire::messages::{BackingPlace, NameBehind};
use wire::{FileId, Kind};

/// Chunks in which a hole is noted one by one.
const HOLE_CHUNKS_MAX: usize = 1024;

impl Core {
    /// The records that follow from a change which is about to be journalled; none without a backing tree.
    pub fn derive<'a>(&self, transaction: &Transaction, records: &[Record<'a>]) -> Vec<Record<'a>> {
        let Some(backing) = &self.backing else { return Vec::new() };
        let tables = self.tables.borrow();
        let mut derived = Vec::new();
        if !backing.has_fault(BackingFault::ForgetsDifferences) {
            records.iter().for_each(|record| derive_difference(self, &tables, record, records, &mut derived));
        }
        for record in records {
            if let Record::InodePut(inode) = record
                && let Some(place) = shrunk(&tables, inode.attributes.id, inode.attributes.size)
            {
                derived.push(Record::PlacePut { id: inode.attributes.id, place });
            }
        }
        for record in records {
            if let Record::StandingPut { file, index, standing: Standing::Absent } = record {
                let is_clean = tables.backing.get(*file).is_some_and(|taken_up| taken_up.is_clean(*index));
                assert!(is_clean || backing.has_fault(BackingFault::EvictsDirty), "what is dirty never goes");
            }
        }
        let is_told = |file: u64| {
            records.iter().any(|record| matches!(record, Record::StandingPut { file: told, .. } if told.0 == file))
        };
        let size_after = |file: u64| records.iter().find_map(|record| size_put(record, FileId(file)));
        let mut written = Vec::new();
        transaction.for_each_change(&mut |file, change| {
            if !is_told(file) {
                let (file, size_after) = (FileId(file), size_after(file).unwrap_or(u64::MAX));
                derive_standings(self, &tables, file, change.below(size_after), &mut derived);
                written.push((file, FileChange::of_chunks(change, &tables, file)));
            }
        });
        written.extend(records.iter().filter_map(|record| written_by(&tables, record)));
        for (file, change) in written {
            backing.note_change(file, change);
            let record = Record::Written { id: file, rest: false };
            let is_news = tables.backing.get(file).is_some_and(|taken_up| !taken_up.is_written);
            if is_news && !derived.contains(&record) {
                derived.push(record);
            }
        }
        derived
    }
}

/// A name behind whose entry here leads to an inode that goes before it: an exchange with another name of that inode
/// has come half way when the other one is removed. What the tree has at the name is known by the inode alone.
pub struct OutlivedName {
    directory: FileId,
    name: Vec<u8>,
    behind: NameBehind,
}

impl OutlivedName {
    pub fn record(&self) -> Record<'_> {
        Record::DifferencePut { directory: self.directory, name: &self.name, behind: self.behind.clone() }
    }
}

impl Core {
    /// The names whose entries outlive their inodes by a change that is about to be journalled.
    pub fn outlived_names(&self, records: &[Record<'_>]) -> Vec<OutlivedName> {
        let Some(backing) = &self.backing else { return Vec::new() };
        if backing.has_fault(BackingFault::ForgetsDifferences) {
            return Vec::new();
        }
        let tables = self.tables.borrow();
        let outlived = |record: &Record<'_>| {
            let Record::InodeDelete(id) = record else { return None };
            let place = tables.backing.place(*id).filter(|_| tables.inodes.contains(*id))?;
            let (directory, name) = (place.parent, place.name());
            let is_changed = records.iter().any(|other| match other {
                Record::DentryPut { parent, name: other, .. } | Record::DentryDelete { parent, name: other } => {
                    *parent == directory && *other == name
                }
                _ => false,
            });
            let entry = tables.names.get(directory, name, cursor_of(directory, name)).map(|(at, _)| at);
            let stays = entry == Some(*id);
            let is_news = stays && !is_changed && self.is_behind(directory);
            (is_news && tables.backing.difference(directory, name).is_none()).then(|| OutlivedName {
                directory,
                name: name.to_vec(),
                behind: NameBehind { known: Some(place.known()), next: None, same_as: *id },
            })
        };
        records.iter().filter_map(outlived).collect()
    }
}

/// The size that a record gives a file.
fn size_put(record: &Record<'_>, file: FileId) -> Option<u64> {
    match record {
        Record::InodePut(inode) if inode.attributes.id == file => Some(inode.attributes.size),
        _ => None,
    }
}

/// The inode that a record changes in a way that has to be carried behind.
fn written_by(tables: &Tables, record: &Record<'_>) -> Option<(FileId, FileChange)> {
    match record {
        Record::InodePut(inode) => {
            let (id, new) = (inode.attributes.id, &inode.attributes);
            let old = tables.inodes.get(id)?;
            let rights = |of: &wire::Attributes| (of.mode, of.uid, of.gid);
            let contents = |of: &wire::Attributes| (of.size, of.mtime, of.truncate_generation);
            let is_changed = rights(new) != rights(&old.attributes)
                || new.kind != Kind::Directory && contents(new) != contents(&old.attributes)
                || inode.announced().len() > old.announced().len();
            let is_cut =
                new.truncate_generation != old.attributes.truncate_generation || new.size < old.attributes.size;
            is_changed.then_some((id, if is_cut { FileChange::All } else { FileChange::Attributes }))
        }
        Record::FileAnnounced { file, .. } => Some((*file, FileChange::Attributes)),
        // A mark comes with what it says was changed, or goes when that is behind.
        Record::ExtendedPut { name, .. } | Record::ExtendedDelete { name, .. } if name.starts_with(EXTENDED_MARK) => {
            None
        }
        Record::ExtendedPut { file, .. } | Record::ExtendedDelete { file, .. } => Some((*file, FileChange::Attributes)),
        _ => None,
    }
}

/// The place of a file that is shorter now than what is behind of it.
fn shrunk(tables: &Tables, file: FileId, size: u64) -> Option<BackingPlace> {
    let place = tables.backing.place(file).filter(|place| place.base.max(place.carried) > size)?;
    Some(place.cut(size))
}

/// Whether a name differs afterwards that did not, or the other way round. One that goes with the listing of its
/// directory is forgotten, not removed: nothing is known of it any more.
fn derive_difference<'a>(
    core: &Core,
    tables: &Tables,
    record: &Record<'a>,
    records: &[Record<'a>],
    derived: &mut Vec<Record<'a>>,
) {
    let (directory, name, new) = match *record {
        Record::DentryPut { parent, name, id, .. } => (parent, name, Some(id)),
        Record::DentryDelete { parent, name } => (parent, name, None),
        _ => return,
    };
    let noted = tables.backing.difference(directory, name);
    if noted.is_none() && !core.is_behind(directory) {
        return;
    }
    if new.is_none() && records.contains(&Record::Unlisted(directory)) {
        derived.extend(noted.map(|_| Record::DifferenceDelete { directory, name }));
        return;
    }
    // Only inodes whose home is this server can be at the name that they have behind.
    let inode_behind = |id: FileId| {
        let place = tables.backing.place(id).filter(|_| core.cluster.home_of(id) == Some(core.index));
        let place = place.filter(|place| place.parent == directory && place.name() == name);
        place.map(BackingPlace::known)
    };
    if let Some(behind) = noted {
        let returns = new.and_then(inode_behind);
        let is_same = behind.next.is_none()
            && match new {
                // In a directory that was made here nobody would know later that anything is behind there.
                Some(_) => core.is_behind(directory) && returns.is_some() && returns == behind.known,
                None => behind.known.is_none(),
            };
        if is_same {
            derived.push(Record::DifferenceDelete { directory, name });
        }
        return;
    }
    let old = tables.names.get(directory, name, cursor_of(directory, name)).map(|(id, _)| id);
    let old = old.filter(|old| Some(*old) != new);
    if let Some((old, known)) = old.and_then(|old| Some((old, inode_behind(old)?))) {
        let behind = NameBehind { known: Some(known), next: None, same_as: old };
        derived.push(Record::DifferencePut { directory, name, behind });
    }
}

/// Which chunks of a file are here afterwards, or differ from what is behind.
fn derive_standings<'a>(
    core: &Core,
    tables: &Tables,
    file: FileId,
    change: ChunkChanges,
    derived: &mut Vec<Record<'a>>,
) {
    let Some(taken_up) = tables.backing.get(file) else { return };
    let put = |index| Record::StandingPut { file, index, standing: Standing::Dirty };
    let is_here = |index| !taken_up.is_absent(index);
    match change {
        ChunkChanges::Write { index, start, end } => {
            let is_here = is_here(index)
                || core.covers(file, index, start, end - start)
                || core.backing.as_ref().is_some_and(|backing| backing.has_fault(BackingFault::AbsentAsZeros));
            assert!(is_here, "what is written in the middle of an absent chunk would have zeros around it");
            if taken_up.notes_write(index) {
                derived.push(put(index));
            }
        }
        ChunkChanges::Hole { start, end } => {
            let chunk_size = u64::from(taken_up.place.chunk_size);
            let (first, limit) = (start / chunk_size, end.div_ceil(chunk_size));
            let clean = taken_up
                .standings()
                .filter(|(index, standing)| (first..limit).contains(index) && *standing == Standing::Clean);
            derived.extend(clean.map(|(index, _)| put(index)));
            let Some((first, limit)) = taken_up.rest_indexes(start, end) else { return };
            let (indexes, next) = core.chunks_with_data(file, chunk_size, first, limit, HOLE_CHUNKS_MAX);
            match next {
                None => {
                    derived.extend(indexes.into_iter().filter(|index| taken_up.standing(*index).is_none()).map(put))
                }
                Some(_) => derived.push(Record::Written { id: file, rest: true }),
            }
        }
    }
}
