//! What a server knows for good of the backing tree: where its files and directories are behind, which chunks of them
//! are here, which names differ, and which directories are listed. Part of `Tables`; only journal records change it.
//!
//! Invariants
//! 1. A place here is of an inode whose home is here, or of a file of which this server is a holder, as its home knows.
//! 2. A chunk that begins below its file's base and has no standing is absent, and every other one is here: what the
//!    store has not of it are zeros.
//! 3. A difference is of a name whose directory is behind; who has one is never looked at for a request. One that
//!    agrees (`NameBehind::agrees`) says what a flush has put there.
//! 4. The places of directories that are gone, and the differences in them, stay until they are gone behind as well.

use crate::journal::records::Record;
use crate::store::FastMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use wire::FileId;
use wire::messages::{BackingPlace, KnownBehind, NameBehind};

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
    /// Whether its inode is here, and has a name.
    pub is_named: bool,
    /// Something of it was changed on this server since both sides were the same.
    pub is_written: bool,
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

    fn counts(&self) -> Counts {
        Counts { here: self.standings.len() as u64, dirty: self.dirty, named: u64::from(self.is_named) }
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

/// Names that differ, or did: what the tree has there.
type Differences = BTreeMap<Box<[u8]>, NameBehind>;

/// By what the tree knows what is at a place.
pub fn known_of(place: &BackingPlace) -> KnownBehind {
    KnownBehind { inode: place.inode, size: place.size, mtime: place.mtime, ctime: place.ctime }
}

/// How many there are of what, kept as it changes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    /// Chunks that are here, and dirty ones of them.
    here: u64,
    dirty: u64,
    /// What was taken up, or carried behind, and has its inode here and a name.
    named: u64,
}

/// See the module.
#[derive(Default)]
pub struct BackingTables {
    /// Nothing without a backing tree.
    pub root: Option<RootIdentity>,
    taken_up: FastMap<u64, TakenUp>,
    differences: BTreeMap<u64, Differences>,
    listed: FastMap<u64, ()>,
    /// Where inodes of this server are going to be behind, with what a flush has written there: that may have happened.
    nexts: BTreeMap<u64, BackingPlace>,
    counts: Counts,
    /// Names with a record.
    recorded: u64,
    /// Names that stand for something else here than behind (`changes.rs`).
    differing: u64,
    /// What was taken up and is written.
    written: BTreeSet<u64>,
}

impl Counts {
    fn replace(&mut self, before: Counts, after: Counts) {
        self.here = self.here - before.here + after.here;
        self.dirty = self.dirty - before.dirty + after.dirty;
        self.named = self.named - before.named + after.named;
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
            let (standings, dirty, is_named, is_written) = Default::default();
            self.taken_up.insert(id.0, TakenUp { place, standings, dirty, is_named, is_written });
            return;
        };
        let (base, chunk_size, before) = (place.base, u64::from(place.chunk_size), known.counts());
        known.place = place;
        known.standings.retain(|index, _| index.saturating_mul(chunk_size) < base);
        known.dirty = known.standings.values().filter(|standing| **standing == Standing::Dirty).count() as u64;
        self.counts.replace(before, known.counts());
    }

    /// What was here when a flush began is behind now, at this place.
    pub fn put_carried(&mut self, id: FileId, place: BackingPlace, is_written: bool) {
        self.put_place(id, place);
        self.nexts.remove(&id.0);
        let Some(taken_up) = self.taken_up.get_mut(&id.0) else { return };
        taken_up.is_written = is_written;
        if is_written {
            self.written.insert(id.0);
            return;
        }
        self.written.remove(&id.0);
        let before = taken_up.counts();
        taken_up.standings.values_mut().for_each(|standing| *standing = Standing::Clean);
        taken_up.dirty = 0;
        self.counts.replace(before, taken_up.counts());
    }

    pub fn note_written(&mut self, id: FileId) {
        if let Some(taken_up) = self.taken_up.get_mut(&id.0) {
            taken_up.is_written = true;
            self.written.insert(id.0);
        }
    }

    pub fn put_next(&mut self, id: FileId, place: BackingPlace) {
        self.nexts.insert(id.0, place);
    }

    pub fn next(&self, id: FileId) -> Option<&BackingPlace> {
        if self.nexts.is_empty() { None } else { self.nexts.get(&id.0) }
    }

    pub fn remove_place(&mut self, id: FileId) {
        if let Some(known) = self.taken_up.remove(&id.0) {
            self.counts.replace(known.counts(), Counts::default());
            self.written.remove(&id.0);
        }
        if self.root.is_some() {
            self.nexts.remove(&id.0);
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

    /// Whether the inode of something that was taken up, or carried, is here and has a name.
    pub fn note_named(&mut self, id: FileId, is_named: bool) {
        let Some(taken_up) = self.taken_up.get_mut(&id.0) else { return };
        let before = taken_up.counts();
        taken_up.is_named = is_named;
        self.counts.replace(before, taken_up.counts());
    }

    pub fn difference(&self, directory: FileId, name: &[u8]) -> Option<&NameBehind> {
        if self.differences.is_empty() { None } else { self.differences.get(&directory.0)?.get(name) }
    }

    pub fn put_difference(&mut self, directory: FileId, name: &[u8], behind: NameBehind) {
        let before = self.differences.entry(directory.0).or_default().insert(name.into(), behind);
        self.recorded += u64::from(before.is_none());
    }

    pub fn remove_difference(&mut self, directory: FileId, name: &[u8]) {
        if let Some(names) = self.differences.get_mut(&directory.0) {
            self.recorded -= u64::from(names.remove(name).is_some());
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

    /// A directory is gone here.
    pub fn note_removed(&mut self, directory: FileId) {
        if self.root.is_some() {
            self.listed.remove(&directory.0);
        }
    }

    /// A directory is gone behind as well, and what is known of it and its names.
    pub fn forget_directory(&mut self, directory: FileId) {
        self.listed.remove(&directory.0);
        let names = self.differences.remove(&directory.0);
        self.recorded -= names.map_or(0, |names| names.len() as u64);
        self.remove_place(directory);
    }

    /// Names with records, from one of a directory on, in the order of directories.
    pub fn differences_from(
        &self,
        directory: FileId,
        name: &[u8],
    ) -> impl Iterator<Item = (FileId, &[u8], &NameBehind)> {
        let of_first = self.differences.get(&directory.0).map(|names| {
            let rest = names.range::<[u8], _>((Bound::Included(name), Bound::Unbounded));
            rest.map(move |(name, behind)| (directory, &**name, behind))
        });
        let later = self.differences.range((Bound::Excluded(directory.0), Bound::Unbounded));
        let of_later = later
            .flat_map(|(directory, names)| names.iter().map(|(name, behind)| (FileId(*directory), &**name, behind)));
        of_first.into_iter().flatten().chain(of_later)
    }

    /// Names of a directory with records.
    pub fn recorded_names(&self, directory: FileId) -> impl Iterator<Item = &[u8]> {
        self.differences.get(&directory.0).into_iter().flat_map(|names| names.keys().map(|name| &**name))
    }

    /// What was changed on this server since both sides were the same, from an id on, in order, `count` at most.
    pub fn written_from(&self, id: u64, count: usize) -> Vec<u64> {
        let written = self.written.range(id..).take(count);
        // Of what has a next place nobody knows whether it is there, and what of it was changed since.
        let nexts = self.nexts.range(id..).map(|(own, _)| own).take(count);
        let mut written: Vec<u64> = written.chain(nexts).copied().collect();
        written.sort_unstable();
        written.dedup();
        written.truncate(count);
        written
    }

    /// Files and directories that were taken up, or carried; their chunks that are here and those among them that are
    /// dirty; names with records, and directories that are listed.
    pub fn counts(&self) -> [u64; 5] {
        let Counts { here, dirty, .. } = self.counts;
        [self.taken_up.len() as u64, here, dirty, self.recorded, self.listed.len() as u64]
    }

    /// What was taken up, or carried, and has its inode here and a name.
    pub fn named_count(&self) -> u64 {
        self.counts.named
    }

    /// Names that stand for something else here than behind.
    pub fn differing(&self) -> u64 {
        self.differing
    }

    /// Of some names so many differed, and so many do.
    pub fn replace_differing(&mut self, before: u64, after: u64) {
        self.differing = self.differing - before + after;
    }

    /// What was changed on this server since both sides were the same, by id.
    pub fn written(&self) -> impl ExactSizeIterator<Item = FileId> {
        self.written.iter().copied().map(FileId)
    }

    /// Counts everything, for whoever checks that nothing was forgotten.
    pub fn is_counted(&self) -> bool {
        let mut counts = Counts::default();
        self.taken_up.values().for_each(|taken_up| counts.replace(Counts::default(), taken_up.counts()));
        let recorded: u64 = self.differences.values().map(|names| names.len() as u64).sum();
        let is_dirty = |taken_up: &TakenUp| taken_up.standings.values().filter(|it| **it == Standing::Dirty).count();
        let written = self.taken_up.values().filter(|taken_up| taken_up.is_written).count();
        let is_right = |(id, taken_up): (&u64, &TakenUp)| {
            is_dirty(taken_up) as u64 == taken_up.dirty && taken_up.is_written == self.written.contains(id)
        };
        counts == self.counts
            && recorded == self.recorded
            && written == self.written.len()
            && self.taken_up.iter().all(is_right)
    }

    /// Everything that was taken up, by id.
    pub fn taken_up(&self) -> impl Iterator<Item = (FileId, &TakenUp)> {
        self.taken_up.iter().map(|(id, taken_up)| (FileId(*id), taken_up))
    }

    /// Everything that differs: directory, name, what is behind.
    pub fn differences(&self) -> impl Iterator<Item = (FileId, &[u8], &NameBehind)> {
        self.differences
            .iter()
            .flat_map(|(directory, names)| names.iter().map(|(name, behind)| (FileId(*directory), &**name, behind)))
    }

    /// The ids of what a checkpoint has to tell of, in order: what was taken up; directories with differences; listed
    /// ones.
    pub fn ids(&self) -> [Vec<u64>; 3] {
        let mut ids = [
            self.taken_up.keys().chain(self.nexts.keys()).copied().collect::<Vec<u64>>(),
            self.differences.keys().copied().collect(),
            self.listed.keys().copied().collect(),
        ];
        ids.iter_mut().for_each(|ids| ids.sort_unstable());
        ids[0].dedup();
        ids
    }

    /// The records that say all of one thing that was taken up.
    pub fn records_of(&self, id: FileId, put: &mut dyn FnMut(&Record<'_>)) {
        if let Some(taken_up) = self.get(id) {
            put(&Record::PlacePut { id, place: taken_up.place.clone() });
            for (index, standing) in taken_up.standings() {
                put(&Record::StandingPut { file: id, index, standing });
            }
            if taken_up.is_written {
                put(&Record::Written(id));
            }
        }
        if let Some(place) = self.next(id) {
            put(&Record::NextPut { id, place: place.clone() });
        }
    }

    /// The same of all names of a directory that differ.
    pub fn differences_of(&self, directory: FileId, put: &mut dyn FnMut(&Record<'_>)) {
        for (name, behind) in self.differences.get(&directory.0).into_iter().flatten() {
            put(&Record::DifferencePut { directory, name, behind: behind.clone() });
        }
    }
}
