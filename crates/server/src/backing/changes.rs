//! What was changed over the backing tree, for whoever is about to end the cluster: nothing carries it back yet.

use super::table::TakenUp;
use crate::core::Core;
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::WalkPosition;
use wire::{FileId, Kind};

/// Changes that are told one by one.
const TOLD_MAX: usize = 20;
/// Names among which those are looked for that were made here.
const EXAMINED_MAX: usize = 1 << 16;

/// Whether something that was taken up is not any more what it was. Its home knows by its ctime, which every change
/// moves, and by who else may have written to it; another server knows of its own bytes alone.
fn is_changed(tables: &Tables, id: FileId, taken_up: &TakenUp) -> bool {
    let place = &taken_up.place;
    let is_cut = place.base < place.size && place.chunk_size > 0;
    let inode = tables.inodes.get(id);
    taken_up.is_dirty()
        || is_cut && inode.as_ref().is_none_or(|inode| inode.attributes.kind == Kind::File)
        || inode.is_some_and(|inode| inode.attributes.ctime != place.ctime || inode.is_announced())
}

impl Tables {
    /// What a record is about, if that was taken up.
    pub fn of_backing(&self, record: &Record<'_>) -> Option<FileId> {
        self.backing.root?;
        let id = match record {
            Record::InodePut(inode) => inode.attributes.id,
            Record::FileAnnounced { file, .. } | Record::StandingPut { file, .. } => *file,
            Record::PlacePut { id, .. } => *id,
            _ => return None,
        };
        id.is_from_behind().then_some(id)
    }

    /// Whether what is counted as it changes is what there is, for audits.
    pub fn backing_is_counted(&self) -> bool {
        let is_noted = |(id, taken_up)| is_changed(self, id, taken_up) == self.backing.is_changed(id);
        self.backing.is_counted() && self.backing.taken_up().all(is_noted)
    }

    /// Something was journalled of what was taken up.
    pub fn note_backing_change(&mut self, id: FileId) {
        let Some(taken_up) = self.backing.get(id) else { return };
        let is_changed = is_changed(self, id, taken_up);
        self.backing.note(id, self.inodes.contains(id), is_changed);
    }
}

impl Core {
    /// How many there are, by name: what of the tree has other bytes, another size or other attributes, names of the tree
    /// that stand for something else or nothing, and what was made here.
    pub fn backing_changes(&self) -> [(&'static str, u64); 6] {
        let tables = self.tables.borrow();
        let [taken_up, here, dirty, differing, _] = tables.backing.counts();
        let behind = tables.backing.home_count() + u64::from(tables.inodes.contains(FileId::ROOT));
        [
            ("known", taken_up),
            ("chunks_here", here),
            ("chunks_dirty", dirty),
            ("changed_here", tables.backing.changed().len() as u64),
            ("names_differing", differing),
            ("made_here", tables.inodes.count().saturating_sub(behind)),
        ]
    }

    /// A few of them, with what they are: `changed`, `removed` or `made`.
    pub fn some_backing_changes(&self) -> Vec<(&'static str, Vec<u8>)> {
        let tables = self.tables.borrow();
        let of_directory = |directory: FileId| match directory {
            FileId::ROOT => Vec::new(),
            directory => match tables.backing.place(directory) {
                Some(place) => place.path.clone(),
                // Known since somebody looked for a name there in this life of the server.
                None => self.known_path(directory).map_or_else(|| b"...".to_vec(), |path| path.to_vec()),
            },
        };
        let mut told: Vec<(&'static str, Vec<u8>)> = Vec::new();
        let changed = tables.backing.changed().take(TOLD_MAX).filter_map(|id| tables.backing.place(id));
        told.extend(changed.map(|place| ("changed", place.path.clone())));
        let names = tables.backing.differences().take(TOLD_MAX.saturating_sub(told.len()));
        told.extend(names.map(|(directory, name, _)| ("removed", super::joined(&of_directory(directory), name))));
        let left = TOLD_MAX.saturating_sub(told.len());
        let mut made = Vec::new();
        // As many as one step of the loop may look at: they are examples.
        tables.names.walk_step(WalkPosition::default(), EXAMINED_MAX, &mut |parent, entry| {
            if made.len() < left && self.is_behind(parent) && !entry.id.is_from_behind() {
                made.push(("made", super::joined(&of_directory(parent), entry.name)));
            }
        });
        told.extend(made);
        told
    }
}
