//! The time of change of what a rename gives another name, at its home: NoteRenamed, and the record for it.
//!
//! Where the home has a part in the rename anyway the time goes with that part: with the decision, with the new name,
//! or, of a directory, with the end of the tree change. Any other home is told before the decision, so that nobody who
//! sees the new name sees the old time. What comes to nothing afterwards has then moved a time of change, and nothing
//! else.

use super::{Blocker, NameChange, NameTransaction};
use crate::core::{Core, Failure};
use crate::handlers::Progress;
use crate::journal::records::Record;
use reactor::Nanos;
use std::rc::Rc;
use wire::messages::{Empty, NoteRenamedRequest};
use wire::{Attributes, Decode, FileId, Kind, Operation};

/// The record by which an inode here changes now; later than any change before, also while our clock is behind others'.
/// Nothing for directories, whose tree change says it, and for what is not here.
pub fn renamed(core: &Core, file: FileId) -> Option<Record<'static>> {
    let tables = core.tables.borrow();
    let inode = tables.inodes.get(file).filter(|inode| inode.attributes.kind != Kind::Directory)?;
    let mut inode = inode.clone();
    note_change(core, &mut inode.attributes);
    Some(Record::InodePut(inode))
}

/// Moves the time of change on.
pub fn note_change(core: &Core, attributes: &mut Attributes) {
    attributes.ctime = core.clock.time().max(attributes.ctime.saturating_add(1));
    attributes.version += 1;
}

pub fn note_renamed(core: &Rc<Core>, params: &[u8]) -> Result<Progress, Failure> {
    let NoteRenamedRequest { file, time } = NoteRenamedRequest::from_bytes(params)?;
    core.check_home(file)?;
    core.clock.note(time);
    if let Some(record) = renamed(core, file) {
        core.change([record])?;
    }
    Ok(Progress::Done)
}

impl NameTransaction {
    /// What gets another name, directories left out.
    fn renamed_files(&self) -> impl Iterator<Item = FileId> {
        let exchanged = self.destination.filter(|_| self.name_change.is_exchange());
        let is_rename = matches!(self.name_change, NameChange::Rename { .. });
        let found = [Some(self.source), exchanged].into_iter().flatten();
        found.filter(move |(_, kind)| is_rename && *kind != Kind::Directory).map(|(file, _)| file)
    }

    /// Whether the home of what gets another name has no other part in this.
    pub(super) fn has_distant_home(&self) -> bool {
        self.distant_homes().next().is_some()
    }

    fn distant_homes(&self) -> impl Iterator<Item = (FileId, u32)> {
        let part = self.to.as_ref().and_then(|to| to.server);
        let homes = self.renamed_files().filter_map(|file| Some((file, self.core.cluster.home_of(file)?)));
        homes.filter(move |(_, home)| *home != self.core.index && Some(*home) != part)
    }

    /// Tells the homes that have no other part in this.
    pub(super) async fn note_times(&self, deadline: Nanos) -> Result<(), Blocker> {
        let homes: Vec<(FileId, u32)> = self.distant_homes().collect();
        for (file, home) in homes {
            let request = NoteRenamedRequest { file, time: self.core.clock.time() };
            let _: Empty = self.core.peers.call(home, Operation::NoteRenamed, &request, Some(deadline)).await?;
        }
        Ok(())
    }

    /// What goes with the decision, for what lives here.
    pub(super) fn times(&self) -> Vec<Record<'static>> {
        self.renamed_files().filter_map(|file| renamed(&self.core, file)).collect()
    }
}
