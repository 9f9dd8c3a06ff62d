//! What a server knows for good of the backing tree: where its files and directories are behind, which chunks of them
//! are here, which names differ, and which directories are listed. Part of `Tables`; only journal records change it.
//!
//! Invariants
//! 1. A place here is of an inode whose home is here, or of a file of which this server is a holder, as its home knows.
//! 2. A chunk that begins below its file's base and has no standing is absent, and every other one is here: what the
//!    store has not of it are zeros.
//! 3. A difference is of a name whose directory was taken up from behind; who has one is never looked at behind.

use crate::journal::records::Record;
use crate::store::FastMap;
use std::collections::{BTreeMap, BTreeSet};
use wire::FileId;
use wire::messages::BackingPlace;

/// What a chunk that is here is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    /// The same is behind.
    Clean = 1,
    /// Something of it was changed here.
    Dirty = 2,
}

impl Standing {
    pub fn of_code(code: u8) -> Option<Standing> {
        [Standing::Clean, Standing::Dirty].into_iter().find(|standing| *standing as u8 == code)
    }
}

/// Something that was taken up.
pub struct TakenUp {
    pub place: BackingPlace,
    /// Of its chunks on this server that begin below its base and are here.
    standings: BTreeMap<u64, Standing>,
    /// Those of them that are dirty.
    dirty: u64,
    /// Whether its inode is here.
    is_home: bool,
}

impl TakenUp {
    pub fn is_absent(&self, index: u64) -> bool {
        self.begins_below_base(index) && !self.standings.contains_key(&index)
    }

    pub fn begins_below_base(&self, index: u64) -> bool {
        index.saturating_mul(u64::from(self.place.chunk_size)) < self.place.base
    }

    /// Bytes of a chunk that may be behind.
    pub fn size_behind(&self, index: u64) -> u32 {
        let chunk_size = u64::from(self.place.chunk_size);
        self.place.base.saturating_sub(index.saturating_mul(chunk_size)).min(chunk_size) as u32
    }

    pub fn standing(&self, index: u64) -> Option<Standing> {
        self.standings.get(&index).copied()
    }

    pub fn is_dirty(&self) -> bool {
        self.dirty > 0
    }

    fn counts(&self) -> Counts {
        Counts { here: self.standings.len() as u64, dirty: self.dirty, homes: u64::from(self.is_home), differing: 0 }
    }

    pub fn standings(&self) -> impl Iterator<Item = (u64, Standing)> {
        self.standings.iter().map(|(index, standing)| (*index, *standing))
    }
}

/// The root of the backing tree, as it was when this server first saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootIdentity {
    /// What its file system calls itself; 0 where it does not say.
    pub file_system: u64,
    pub inode: u64,
}

impl RootIdentity {
    /// Whether nothing says that another one is another directory.
    pub fn may_be(&self, other: &RootIdentity) -> bool {
        let is_silent = self.file_system == 0 || other.file_system == 0;
        self.inode == other.inode && (is_silent || self.file_system == other.file_system)
    }
}

/// Names that differ: what the tree has there, by its inode number; nothing where it has nothing.
type Differences = BTreeMap<Box<[u8]>, Option<u64>>;

/// How many there are of what, kept as it changes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    /// Chunks that are here, and dirty ones of them.
    here: u64,
    dirty: u64,
    /// What was taken up and has its inode here.
    homes: u64,
    /// Names.
    differing: u64,
}

/// See the module.
#[derive(Default)]
pub struct BackingTables {
    /// Nothing without a backing tree.
    pub root: Option<RootIdentity>,
    taken_up: FastMap<u64, TakenUp>,
    differences: FastMap<u64, Differences>,
    listed: FastMap<u64, ()>,
    counts: Counts,
    /// What is not any more what it was when it was taken up (`changes.rs`).
    changed: BTreeSet<u64>,
}

impl Counts {
    fn replace(&mut self, before: Counts, after: Counts) {
        self.here = self.here - before.here + after.here;
        self.dirty = self.dirty - before.dirty + after.dirty;
        self.homes = self.homes - before.homes + after.homes;
        self.differing = self.differing - before.differing + after.differing;
    }
}

impl BackingTables {
    pub fn get(&self, id: FileId) -> Option<&TakenUp> {
        if self.taken_up.is_empty() { None } else { self.taken_up.get(&id.0) }
    }

    pub fn place(&self, id: FileId) -> Option<&BackingPlace> {
        self.get(id).map(|taken_up| &taken_up.place)
    }

    pub fn put_place(&mut self, id: FileId, place: BackingPlace) {
        let Some(known) = self.taken_up.get_mut(&id.0) else {
            let (standings, dirty, is_home) = Default::default();
            self.taken_up.insert(id.0, TakenUp { place, standings, dirty, is_home });
            return;
        };
        let (base, chunk_size, before) = (place.base, u64::from(place.chunk_size), known.counts());
        known.place = place;
        known.standings.retain(|index, _| index.saturating_mul(chunk_size) < base);
        known.dirty = known.standings.values().filter(|standing| **standing == Standing::Dirty).count() as u64;
        self.counts.replace(before, known.counts());
    }

    pub fn remove_place(&mut self, id: FileId) {
        if let Some(known) = self.taken_up.remove(&id.0) {
            self.counts.replace(known.counts(), Counts::default());
            self.changed.remove(&id.0);
        }
    }

    /// Of a file without a place it is late: the file is gone.
    pub fn put_standing(&mut self, id: FileId, index: u64, standing: Standing) {
        if let Some(taken_up) = self.taken_up.get_mut(&id.0)
            && taken_up.begins_below_base(index)
        {
            let before = taken_up.counts();
            let old = taken_up.standings.insert(index, standing);
            taken_up.dirty += u64::from(standing == Standing::Dirty);
            taken_up.dirty -= u64::from(old == Some(Standing::Dirty));
            self.counts.replace(before, taken_up.counts());
        }
    }

    /// Something that was taken up may have changed: whether its inode is here, and whether it is what it was.
    pub fn note(&mut self, id: FileId, is_home: bool, is_changed: bool) {
        let Some(taken_up) = self.taken_up.get_mut(&id.0) else { return };
        let before = taken_up.counts();
        taken_up.is_home = is_home;
        self.counts.replace(before, taken_up.counts());
        match is_changed {
            true => drop(self.changed.insert(id.0)),
            false => drop(self.changed.remove(&id.0)),
        }
    }

    pub fn difference(&self, directory: FileId, name: &[u8]) -> Option<Option<u64>> {
        if self.differences.is_empty() { None } else { self.differences.get(&directory.0)?.get(name).copied() }
    }

    pub fn put_difference(&mut self, directory: FileId, name: &[u8], behind: Option<u64>) {
        let before = self.differences.entry(directory.0).or_default().insert(name.into(), behind);
        self.counts.differing += u64::from(before.is_none());
    }

    pub fn remove_difference(&mut self, directory: FileId, name: &[u8]) {
        if let Some(names) = self.differences.get_mut(&directory.0) {
            self.counts.differing -= u64::from(names.remove(name).is_some());
            if names.is_empty() {
                self.differences.remove(&directory.0);
            }
        }
    }

    pub fn is_listed(&self, directory: FileId) -> bool {
        self.listed.contains_key(&directory.0)
    }

    pub fn note_listed(&mut self, directory: FileId) {
        self.listed.insert(directory.0, ());
    }

    /// A directory is gone, and what is known of its names.
    pub fn forget_directory(&mut self, directory: FileId) {
        if self.root.is_some() {
            self.listed.remove(&directory.0);
            let names = self.differences.remove(&directory.0);
            self.counts.differing -= names.map_or(0, |names| names.len() as u64);
        }
    }

    /// Files and directories that were taken up, their chunks that are here and those among them that are dirty, names
    /// that differ, and directories that are listed.
    pub fn counts(&self) -> [u64; 5] {
        let Counts { here, dirty, differing, .. } = self.counts;
        [self.taken_up.len() as u64, here, dirty, differing, self.listed.len() as u64]
    }

    /// What was taken up and has its inode here.
    pub fn home_count(&self) -> u64 {
        self.counts.homes
    }

    /// What is not any more what it was when it was taken up, by id.
    pub fn changed(&self) -> impl ExactSizeIterator<Item = FileId> {
        self.changed.iter().copied().map(FileId)
    }

    pub fn is_changed(&self, id: FileId) -> bool {
        self.changed.contains(&id.0)
    }

    /// Counts everything, for whoever checks that nothing was forgotten.
    pub fn is_counted(&self) -> bool {
        let mut counts = Counts::default();
        self.taken_up.values().for_each(|taken_up| counts.replace(Counts::default(), taken_up.counts()));
        counts.differing = self.differences.values().map(|names| names.len() as u64).sum();
        let is_dirty = |taken_up: &TakenUp| taken_up.standings.values().filter(|it| **it == Standing::Dirty).count();
        counts == self.counts && self.taken_up.values().all(|taken_up| is_dirty(taken_up) as u64 == taken_up.dirty)
    }

    /// Everything that was taken up, by id.
    pub fn taken_up(&self) -> impl Iterator<Item = (FileId, &TakenUp)> {
        self.taken_up.iter().map(|(id, taken_up)| (FileId(*id), taken_up))
    }

    /// Everything that differs: directory, name, what is behind.
    pub fn differences(&self) -> impl Iterator<Item = (FileId, &[u8], Option<u64>)> {
        self.differences
            .iter()
            .flat_map(|(directory, names)| names.iter().map(|(name, behind)| (FileId(*directory), &**name, *behind)))
    }

    /// The ids of what a checkpoint has to tell of, in order: what was taken up; directories with differences; listed
    /// ones.
    pub fn ids(&self) -> [Vec<u64>; 3] {
        let mut ids = [
            self.taken_up.keys().copied().collect::<Vec<u64>>(),
            self.differences.keys().copied().collect(),
            self.listed.keys().copied().collect(),
        ];
        ids.iter_mut().for_each(|ids| ids.sort_unstable());
        ids
    }

    /// The records that say all of one thing that was taken up.
    pub fn records_of(&self, id: FileId, put: &mut dyn FnMut(&Record<'_>)) {
        let Some(taken_up) = self.get(id) else { return };
        put(&Record::PlacePut { id, place: taken_up.place.clone() });
        for (index, standing) in taken_up.standings() {
            put(&Record::StandingPut { file: id, index, standing });
        }
    }

    /// The same of all names of a directory that differ.
    pub fn differences_of(&self, directory: FileId, put: &mut dyn FnMut(&Record<'_>)) {
        for (name, behind) in self.differences.get(&directory.0).into_iter().flatten() {
            put(&Record::DifferencePut { directory, name, behind: *behind });
        }
    }
}
