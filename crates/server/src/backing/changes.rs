//! What was changed over the backing tree, for whoever is about to end the cluster: nothing carries it back yet.

use super::table::{Standing, TakenUp};
use crate::core::Core;
use crate::journal::tables::Tables;
use wire::{FileId, Kind};

/// Changes that are told one by one.
const TOLD_MAX: usize = 20;

/// Whether something that was taken up is not any more what it was. Its home knows by its ctime, which every change
/// moves, and by who else may have written to it; another server knows of its own bytes alone.
fn is_changed(tables: &Tables, id: FileId, taken_up: &TakenUp) -> bool {
    let place = &taken_up.place;
    let is_cut = place.base < place.size && place.chunk_size > 0;
    let inode = tables.inodes.get(id);
    taken_up.standings().any(|(_, standing)| standing == Standing::Dirty)
        || is_cut && inode.as_ref().is_none_or(|inode| inode.attributes.kind == Kind::File)
        || inode.is_some_and(|inode| inode.attributes.ctime != place.ctime || inode.is_announced())
}

impl Core {
    /// How many there are, by name: what of the tree has other bytes, another size or other attributes, names of the tree
    /// that stand for something else or nothing, and what was made here.
    pub fn backing_changes(&self) -> [(&'static str, u64); 6] {
        let tables = self.tables.borrow();
        let changed = tables.backing.taken_up().filter(|(id, taken_up)| is_changed(&tables, *id, taken_up)).count();
        let [taken_up, here, dirty, differing, _] = tables.backing.counts();
        let made_here = tables.inodes.count()
            - tables.inodes.iter().filter(|inode| self.is_behind(inode.attributes.id)).count() as u64;
        [
            ("known", taken_up),
            ("chunks_here", here),
            ("chunks_dirty", dirty),
            ("changed_here", changed as u64),
            ("names_differing", differing),
            ("made_here", made_here),
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
        let changed = tables.backing.taken_up().filter(|(id, taken_up)| is_changed(&tables, *id, taken_up));
        told.extend(changed.take(TOLD_MAX).map(|(_, taken_up)| ("changed", taken_up.place.path.clone())));
        let names = tables.backing.differences().take(TOLD_MAX.saturating_sub(told.len()));
        told.extend(names.map(|(directory, name, _)| ("removed", super::joined(&of_directory(directory), name))));
        let left = TOLD_MAX.saturating_sub(told.len());
        let mut made = Vec::new();
        tables.names.for_each(&mut |parent, entry| {
            if made.len() < left && self.is_behind(parent) && !entry.id.is_from_behind() {
                made.push(("made", super::joined(&of_directory(parent), entry.name)));
            }
        });
        told.extend(made);
        told
    }
}
