//! What was changed over the backing tree and is not behind: for whoever is about to end the cluster, and for people.
//! It is counted as records are applied, so that nobody who asks waits for a walk of all tables.

use super::table::RootIdentity;
use crate::core::Core;
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::{Dentry, WalkPosition, cursor_of};
use std::borrow::Cow;
use wire::FileId;
use wire::messages::BackingPlace;

/// Changes that are told one by one.
const TOLD_MAX: usize = 20;
/// Names among which examples are looked for.
const EXAMINED_MAX: usize = 1 << 16;

/// A name in a directory.
type NameIn<'a> = (FileId, Cow<'a, [u8]>);

/// What a record may change of what is counted here.
pub struct Counted<'a> {
    /// Names that may stand for something else then, and how many of them differ now.
    names: Vec<NameIn<'a>>,
    differing: u64,
    /// Something that was taken up, or carried, which may get a name or lose it.
    id: Option<FileId>,
}

fn name_of(place: &BackingPlace) -> NameIn<'static> {
    (place.parent, Cow::Owned(place.name().to_vec()))
}

impl Tables {
    /// Whether an inode of this server has that name behind.
    fn is_at(&self, id: FileId, directory: FileId, name: &[u8]) -> bool {
        let is_there = |place: &BackingPlace| place.parent == directory && place.name() == name;
        self.backing.place(id).is_some_and(is_there) && self.inodes.contains(id)
    }

    /// Whether a name stands for something else here than behind, as far as anything was there.
    fn differs(&self, directory: FileId, name: &[u8]) -> bool {
        let here = self.names.get(directory, name, cursor_of(directory, name)).map(|(id, _)| id);
        match self.backing.difference(directory, name) {
            Some(behind) => !behind.agrees(here),
            None => here.is_some_and(|id| id.is_from_behind() && !self.is_at(id, directory, name)),
        }
    }

    fn count_differing(&self, names: &[NameIn<'_>]) -> u64 {
        names.iter().filter(|(directory, name)| self.differs(*directory, name)).count() as u64
    }

    /// What is counted is taken away, before a record is applied.
    pub fn before_backing_change<'a>(&self, record: &Record<'a>) -> Counted<'a> {
        let place = |id: FileId| self.backing.place(id).map(name_of);
        let (names, id) = match record {
            Record::DentryPut { parent: directory, name, .. }
            | Record::DentryDelete { parent: directory, name }
            | Record::DifferencePut { directory, name, .. }
            | Record::DifferenceDelete { directory, name } => (vec![(*directory, Cow::Borrowed(*name))], None),
            Record::InodePut(inode) => {
                let id = inode.attributes.id;
                let is_new = self.backing.get(id).is_some() && !self.inodes.contains(id);
                (is_new.then(|| place(id)).flatten().into_iter().collect(), Some(id))
            }
            Record::InodeDelete(id) | Record::PlaceDelete(id) => (place(*id).into_iter().collect(), Some(*id)),
            Record::PlacePut { id, place: new } | Record::Carried { id, place: new, .. } => {
                let old = self.backing.place(*id);
                let is_same = old.is_some_and(|old| old.parent == new.parent && old.path == new.path);
                let names = if is_same { None } else { Some(old.map(name_of).into_iter().chain([name_of(new)])) };
                let mut names: Vec<NameIn<'_>> = names.into_iter().flatten().collect();
                names.dedup();
                (names, Some(*id))
            }
            // It is empty, unless something comes late from a checkpoint.
            Record::Tombstone(directory) => {
                let mut names = Vec::new();
                self.names.walk(*directory, 0, &mut |entry: &Dentry<'_>| {
                    names.push((*directory, Cow::Owned(entry.name.to_vec())));
                    true
                });
                (names, None)
            }
            Record::DirectoryForgotten(id) => {
                let recorded = self.backing.recorded_names(*id).map(|name| (*id, Cow::Owned(name.to_vec())));
                (recorded.chain(place(*id)).collect(), None)
            }
            _ => (Vec::new(), None),
        };
        Counted { differing: self.count_differing(&names), names, id }
    }

    /// And counted again, when it was applied.
    pub fn after_backing_change(&mut self, counted: Counted<'_>) {
        let Counted { names, differing, id } = counted;
        if !names.is_empty() {
            self.backing.replace_differing(differing, self.count_differing(&names));
        }
        if let Some(id) = id.filter(|id| self.backing.get(*id).is_some()) {
            self.backing.note_named(id, self.is_named(id));
        }
    }

    fn is_named(&self, id: FileId) -> bool {
        self.inodes.contains(id) && !self.open.is_orphan(id)
    }

    /// Inodes here that have a name, and are behind by none.
    pub(super) fn made_here(&self) -> u64 {
        let (_, orphans, _) = self.open.counts();
        let root = u64::from(self.inodes.contains(FileId::ROOT));
        self.inodes.count().saturating_sub(orphans + root + self.backing.named_count())
    }

    /// From here on names are counted. Those that a checkpoint has told of before are counted now.
    pub fn set_backing_root(&mut self, root: RootIdentity) {
        self.backing.root = Some(root);
        self.backing.replace_differing(self.backing.differing(), self.differing_now());
    }

    /// Names that differ, counted one by one.
    fn differing_now(&self) -> u64 {
        let recorded = self.backing.differences().filter(|(directory, name, _)| self.differs(*directory, name));
        let mut differing = recorded.count() as u64;
        self.names.for_each(&mut |parent, entry| {
            let is_recorded = self.backing.difference(parent, entry.name).is_some();
            differing += u64::from(!is_recorded && self.differs(parent, entry.name));
        });
        differing
    }

    /// Whether what is counted as it changes is what there is, for audits.
    pub fn backing_is_counted(&self) -> bool {
        if self.backing.root.is_none() {
            return true;
        }
        let is_made = |id: FileId| id != FileId::ROOT && self.backing.get(id).is_none();
        let named = self.inodes.iter().filter(|inode| inode.attributes.link_count > 0);
        let made = named.filter(|inode| is_made(inode.attributes.id)).count() as u64;
        self.backing.is_counted()
            && self.differing_now() == self.backing.differing()
            && made == self.made_here()
            && self.backing.taken_up().all(|(id, taken_up)| taken_up.is_named == self.is_named(id))
    }
}

impl Core {
    /// How many there are, by name: what of the tree has other bytes, another size or other attributes, names of the
    /// tree that stand for something else or nothing, and what was made here.
    pub fn backing_changes(&self) -> [(&'static str, u64); 6] {
        let tables = self.tables.borrow();
        let [taken_up, here, dirty, _, _] = tables.backing.counts();
        [
            ("known", taken_up),
            ("chunks_here", here),
            ("chunks_dirty", dirty),
            ("changed_here", tables.backing.written().len() as u64),
            ("names_differing", tables.backing.differing()),
            ("made_here", tables.made_here()),
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
        let changed = tables.backing.written().take(TOLD_MAX).filter_map(|id| tables.backing.place(id));
        told.extend(changed.map(|place| ("changed", place.path.clone())));
        // As many as one step of the loop may look at: they are examples.
        let names = tables.backing.differences().take(EXAMINED_MAX);
        let names = names
            .filter(|(directory, name, behind)| behind.known.is_some() && tables.differs(*directory, name))
            .take(TOLD_MAX.saturating_sub(told.len()));
        told.extend(names.map(|(directory, name, _)| ("removed", super::joined(&of_directory(directory), name))));
        let left = TOLD_MAX.saturating_sub(told.len());
        let mut made = Vec::new();
        tables.names.walk_step(WalkPosition::default(), EXAMINED_MAX, &mut |parent, entry| {
            if made.len() == left || !self.is_behind(parent) {
                return;
            }
            let is_same = match tables.backing.difference(parent, entry.name) {
                Some(behind) => behind.agrees(Some(entry.id)),
                None => tables.is_at(entry.id, parent, entry.name),
            };
            if !is_same {
                made.push(("made", super::joined(&of_directory(parent), entry.name)));
            }
        });
        told.extend(made);
        told
    }
}
