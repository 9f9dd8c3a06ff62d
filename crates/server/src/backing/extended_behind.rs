//! Extended attributes of what was taken up: those of users come here when somebody asks for any of them, or changes
//! one, all at once; and those of directories are carried behind. Those of files are written with the file.
//!
//! Invariants
//! 1. That they are known is journalled in one record with them, and from then on those here are the ones there are.
//! 2. What came from behind is no change, and nobody's names are kept here for it.

use super::chunks::is_same;
use super::table::TakenUp;
use crate::core::{Core, Failure};
use crate::files::extended_attributes::{ENTRY_SIZE, INODE_SIZE_MAX};
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::NO_TIME;
use reactor::Nanos;
use reactor::backing::{BackingAttributes, BackingDirectory, BackingError, FileKind};
use std::rc::Rc;
use wire::messages::BackingPlace;
use wire::{Attributes, FileId, Kind, Status};

/// Extended attributes of this space are the same on both sides.
pub(super) const KEY_SPACE: &[u8] = b"user.";
/// Before the names of those of directories that were changed here: see `Core::extended_mark`.
pub const EXTENDED_MARK: &[u8] = b"changed.";
/// Attempts where a flush changes the place meanwhile.
const ATTEMPTS_MAX: u32 = 4;

/// Names and values.
type ExtendedList = Vec<(Vec<u8>, Vec<u8>)>;

/// Whether extended attributes are here that are nowhere behind, whatever a flush does.
pub fn keeps_extended(tables: &Tables, id: FileId) -> bool {
    tables.extended.of_inode(id).any(|(name, _)| !name.starts_with(KEY_SPACE))
}

impl Core {
    /// Whether users' extended attributes of an inode are to be fetched before they are asked for or changed.
    pub fn lacks_extended(&self, id: FileId) -> bool {
        if self.backing.is_none() || !id.is_from_behind() || self.cluster.home_of(id) != Some(self.index) {
            return false;
        }
        let tables = self.tables.borrow();
        let has_any = |kind| matches!(kind, Kind::File | Kind::Directory);
        tables.backing.get(id).is_some_and(|taken_up| !taken_up.knows_extended && taken_up.place.inode != 0)
            && tables.inodes.get(id).is_some_and(|inode| has_any(inode.attributes.kind))
    }

    /// Fetches what `lacks_extended` says. Errors: what was taken up is not there any more, as it was; calls fail;
    /// there are more than one inode may have, or than this server has room for.
    pub async fn know_extended(self: &Rc<Self>, id: FileId, deadline: Nanos) -> Result<(), Failure> {
        for _ in 0..ATTEMPTS_MAX {
            if !self.lacks_extended(id) {
                return Ok(());
            }
            let Some(place) = self.place_now(id) else { return Ok(()) };
            let found = match self.fetch_extended(&place).await {
                Ok(found) => found,
                Err(failure) => match self.learn_new_place(id, &place).await {
                    Ok(true) => continue,
                    _ => {
                        // Whoever asks for its name is to have it looked at.
                        self.doubt(id);
                        return Err(failure);
                    }
                },
            };
            let size: usize = found.iter().map(|(name, value)| name.len() + value.len()).sum();
            self.until_journal_has_room(size, deadline).await?;
            // From here on nothing is awaited. Somebody else may have fetched them, and changed one by now.
            if self.lacks_extended(id) && self.place_now(id).as_ref() == Some(&place) {
                return self.put_extended(id, &place, &found);
            }
        }
        Err(Status::Busy.into())
    }

    async fn fetch_extended(self: &Rc<Self>, place: &BackingPlace) -> Result<ExtendedList, Failure> {
        let backing = self.backing();
        let (parent, name) = (self.open_parent_of(place).await?, place.name());
        let is_it = |found: &BackingAttributes| match found.kind {
            FileKind::Directory => found.identity.inode == place.inode,
            _ => !self.checks_identity() || is_same(&found.identity, place),
        };
        let check = async || match backing.look_for(&parent, name).await? {
            Some(found) if is_it(&found) => Ok(()),
            _ => Err(backing.changed(&place.path)),
        };
        check().await?;
        let mut found = Vec::new();
        for key in keys_behind(&parent, name).await.map_err(|error| backing.failure(error))? {
            match parent.xattr(name, &key).await {
                Ok(value) => found.push((key, value)),
                // Removed just now, or for others to read.
                Err(error) if error.is_no_xattr() || error.is_refused() => {}
                Err(error) => return Err(backing.failure(error)),
            }
        }
        check().await?;
        Ok(found)
    }

    fn put_extended(self: &Rc<Self>, id: FileId, place: &BackingPlace, found: &ExtendedList) -> Result<(), Failure> {
        let size: usize = found.iter().map(|(name, value)| name.len() + value.len()).sum();
        if size > INODE_SIZE_MAX || !self.make_extended_room((size + found.len() * ENTRY_SIZE) as u64)? {
            let path = place.path.escape_ascii();
            let words = format!("backing directory: {path} has more extended attributes than there is room for here");
            return Err(Failure::with_text(Status::NoSpace, words));
        }
        let taken_up = found.iter().map(|(name, value)| Record::ExtendedTakenUp { file: id, name, value });
        let records: Vec<Record<'_>> = taken_up.chain([Record::ExtendedKnown(id)]).collect();
        self.commit_at(NO_TIME, self.store.begin(), records)
    }

    pub(super) fn knows_extended(&self, id: FileId) -> bool {
        self.tables.borrow().backing.knows_extended(id)
    }

    /// Forgets those that are behind as they are here, until others have room. Whether they have.
    fn make_extended_room(self: &Rc<Self>, size: u64) -> Result<bool, Failure> {
        let (backing, size_max) = (self.backing(), self.extended_size_max());
        let is_full = || self.tables.borrow().extended.size() + size > size_max;
        let mut passed = 0;
        while is_full() {
            // From where the last one went; at the end it begins once more.
            let next = {
                let tables = self.tables.borrow();
                let may_go = |id: &FileId| {
                    let known = tables.backing.get(*id).filter(|taken_up| taken_up.knows_extended);
                    id.is_from_behind()
                        && known.is_some_and(TakenUp::is_unchanged)
                        && tables.extended.of_inode(*id).all(|(name, _)| name.starts_with(KEY_SPACE))
                        && !self.is_carrying(*id)
                };
                tables.extended.files_from(backing.extended_gone.get()).find(may_go)
            };
            match next {
                Some(id) => {
                    backing.extended_gone.set(id.0);
                    self.commit_at(NO_TIME, self.store.begin(), [Record::ExtendedForgotten(id)])?;
                }
                None if passed == 1 => return Ok(false),
                None => {
                    passed += 1;
                    backing.extended_gone.set(0);
                }
            }
        }
        Ok(true)
    }

    /// What says of a directory that an extended attribute of users was changed here: another one beside it, of a name
    /// that nobody can ask for. So a flush leaves alone what others have changed of the rest. Files have none: those
    /// that others have changed are conflicts.
    pub fn extended_mark(&self, attributes: &Attributes, name: &[u8]) -> Option<Vec<u8>> {
        let is_marked = self.backing.is_some()
            && attributes.kind == Kind::Directory
            && attributes.id != FileId::ROOT
            && name.starts_with(KEY_SPACE);
        is_marked.then(|| [EXTENDED_MARK, name].concat())
    }

    /// Extended attributes of a directory that go behind, and marks.
    pub(super) fn directory_extended(&self, id: FileId) -> ExtendedList {
        let tables = self.tables.borrow();
        let is_told = |name: &[u8]| name.starts_with(KEY_SPACE) || name.starts_with(EXTENDED_MARK);
        let own = tables.extended.of_inode(id).filter(|(name, _)| is_told(name));
        own.map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
    }

    /// Sets and removes those of a directory behind that were changed here; of a new one all are set. Returns what was
    /// here then.
    pub(super) async fn carry_extended(
        &self,
        id: FileId,
        (parent, name): (&BackingDirectory, &[u8]),
        was_there: bool,
    ) -> Result<ExtendedList, Failure> {
        let backing = self.backing();
        let all = self.directory_extended(id);
        let value_of = |wanted: &[u8]| all.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
        let marked = all.iter().filter_map(|(name, _)| name.strip_prefix(EXTENDED_MARK));
        let own = all.iter().map(|(name, _)| name.as_slice()).filter(|name| !was_there && name.starts_with(KEY_SPACE));
        let mut keys: Vec<&[u8]> = marked.chain(own).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in &keys {
            let done = match value_of(key) {
                Some(value) => parent.set_xattr(name, key, value).await,
                None => parent.remove_xattr(name, key).await,
            };
            match done {
                Err(error) if value_of(key).is_none() && (error.is_no_xattr() || error.is_unsupported()) => {}
                done => done.map_err(|error| backing.failure(error))?,
            }
        }
        if !keys.is_empty() {
            let directory = parent.open_directory(name).await.map_err(|error| backing.failure(error))?;
            backing.sync_names(&directory).await?;
        }
        Ok(all)
    }

    /// What is behind by now is no change any more.
    pub(super) fn forget_marks(self: &Rc<Self>, id: FileId, carried: &ExtendedList) -> Result<(), Failure> {
        if self.directory_extended(id) != *carried {
            return Ok(());
        }
        let marks = carried.iter().filter(|(name, _)| name.starts_with(EXTENDED_MARK));
        let records: Vec<Record<'_>> = marks.map(|(name, _)| Record::ExtendedDelete { file: id, name }).collect();
        if records.is_empty() { Ok(()) } else { self.commit_at(NO_TIME, self.store.begin(), records) }
    }

    /// Users' extended attributes that an inode has here.
    pub(super) fn own_extended(&self, id: FileId) -> ExtendedList {
        let tables = self.tables.borrow();
        let own = tables.extended.of_inode(id).filter(|(name, _)| name.starts_with(KEY_SPACE));
        own.map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
    }

    /// Removes those behind that an inode does not have here, if they are known.
    pub(super) async fn remove_extended_behind(
        &self,
        id: FileId,
        own: &ExtendedList,
        (parent, name): (&BackingDirectory, &[u8]),
    ) -> Result<(), Failure> {
        if !self.knows_extended(id) {
            return Ok(());
        }
        let failed = |error| self.backing().failure(error);
        let keys = keys_behind(parent, name).await.map_err(failed)?;
        for key in keys.iter().filter(|key| own.iter().all(|(name, _)| name != *key)) {
            match parent.remove_xattr(name, key).await {
                Err(error) if !error.is_no_xattr() => return Err(failed(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Sets those behind that an inode has here.
    pub(super) async fn set_extended_behind(
        &self,
        own: &ExtendedList,
        (parent, name): (&BackingDirectory, &[u8]),
    ) -> Result<(), Failure> {
        for (key, value) in own {
            parent.set_xattr(name, key, value.clone()).await.map_err(|error| self.backing().failure(error))?;
        }
        Ok(())
    }
}

/// Names of users' extended attributes behind; none where the file system has none.
async fn keys_behind(parent: &BackingDirectory, name: &[u8]) -> Result<Vec<Vec<u8>>, BackingError> {
    match parent.xattrs(name).await {
        Err(error) if error.is_unsupported() => Ok(Vec::new()),
        keys => Ok(keys?.into_iter().filter(|key| key.starts_with(KEY_SPACE)).map(Vec::from).collect()),
    }
}
