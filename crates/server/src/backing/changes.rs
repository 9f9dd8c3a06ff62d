//! What was changed over the backing tree, for whoever is about to end the cluster: nothing carries it back yet.

use super::table::Standing;
use crate::core::Core;
use wire::{FileId, Kind};

/// Changes that are told one by one.
const TOLD_MAX: usize = 20;

impl Core {
    /// How many there are, by name: files of the tree with other bytes or another size, names of the tree that stand for
    /// something else or nothing, and what was made here.
    pub fn backing_changes(&self) -> [(&'static str, u64); 5] {
        let tables = self.tables.borrow();
        let [taken_up, here, dirty, differing, _] = tables.backing.counts();
        let made_here = tables.inodes.count()
            - tables.inodes.iter().filter(|inode| self.is_behind(inode.attributes.id)).count() as u64;
        [
            ("known", taken_up),
            ("chunks_here", here),
            ("chunks_dirty", dirty),
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
        let is_dirty = |(_, standing): (u64, Standing)| standing == Standing::Dirty;
        let changed = tables.backing.taken_up().filter(|(_, taken_up)| {
            taken_up.standings().any(is_dirty)
                || taken_up.place.base < taken_up.place.size && taken_up.place.chunk_size > 0
        });
        let files = changed.filter(|(id, _)| tables.inodes.kind(*id).is_none_or(|kind| kind == Kind::File));
        told.extend(files.take(TOLD_MAX).map(|(_, taken_up)| ("changed", taken_up.place.path.clone())));
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
