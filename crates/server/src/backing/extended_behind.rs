//! Extended attributes of what was taken up: those of users come here when somebody asks for any of them, or changes
//! one, all at once; and those of directories are carried behind. Those of files are written with the file.
//!
//! Invariants
//! 1. That they are known is journalled in one record with them, and from then on those here are the ones there are.
//! 2. What came from behind is no change, and nobody's names are kept here for it.

use super::chunks::is_same;
use crate::core::{Core, Failure};
use crate::files::extended_attributes::INODE_SIZE_MAX;
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::NO_TIME;
use reactor::Nanos;
use reactor::backing::{BackingAttributes, BackingDirectory, BackingError, FileKind};
use std::rc::Rc;
use wire::messages::BackingPlace;
use wire::{FileId, Kind, Status};

/// Extended attributes of this space are the same on both sides.
pub(super) const KEY_SPACE: &[u8] = b"user.";
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
                Err(_) if self.place_now(id).is_some_and(|now| now != place) => continue,
                Err(failure) => {
                    // Whoever asks for its name is to have it looked at.
                    self.doubt(id);
                    return Err(failure);
                }
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

    /// Where something is behind, also while a flush gives it its name.
    fn place_now(&self, id: FileId) -> Option<BackingPlace> {
        let moving = self.backing().moving.borrow();
        let moved = moving.get(&id.0).and_then(|moving| moving.place.clone());
        moved.or_else(|| self.tables.borrow().backing.place(id).cloned())
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
        let size: u64 = found.iter().map(|(name, value)| (name.len() + value.len()) as u64).sum();
        let room = self.extended_size_max().saturating_sub(self.tables.borrow().extended.size());
        if size > (INODE_SIZE_MAX as u64).min(room) {
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
