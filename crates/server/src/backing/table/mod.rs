//! What a server knows for good of the backing tree: where its files and directories are behind, which chunks of them
//! are here, which names differ, and which directories are listed. Part of `Tables`; only journal records change it.
//!
//! Invariants
//! 1. A place here is of an inode whose home is here, or of a file of which this server is a holder, as its home knows.
//! 2. A chunk that begins below its file's base and has no standing is absent, and every other one is here: what the
//!    store has not of it are zeros. Of a file that was carried what was evicted is absent, too (`Standing::Absent`).
//! 3. A difference is of a name whose directory is behind; who has one is never looked at for a request. One that
//!    agrees (`NameBehind::agrees`) says what a flush has put there.
//! 4. The places of directories that are gone, and the differences in them, stay until they are gone behind as well.

mod taken_up;

use taken_up::KnownChunk;
pub use taken_up::{CarriedState, Standing, TakenUp};

use super::clean_queue::{ChunkUses, CleanKey, CleanQueue, WHOLE_FILE};
use crate::journal::records::Record;
use crate::store::FastMap;
use reactor::Nanos;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use wire::FileId;
use wire::messages::{BackingPlace, KnownBehind, NameBehind};

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

/// A directory all of whose names are known. What is in here is in memory alone.
#[derive(Default)]
pub struct ListedDirectory {
    /// When it was last looked at; 0 if that was in another life.
    pub checked: Cell<Nanos>,
    /// Its mtime and ctime behind when it was listed.
    pub times: Cell<Option<(i64, i64)>>,
    /// When somebody last asked for its names.
    pub used: Cell<Nanos>,
}

/// Names that differ, or did: what the tree has there.
type Differences = BTreeMap<Box<[u8]>, NameBehind>;

/// A name by which an inode is behind that may have several: inode, directory, name.
pub type LinkBehind = (u64, u64, Box<[u8]>);

/// The inode of which a record says that it is behind at its name, and may be so at others.
fn linked_of(behind: &NameBehind) -> Option<u64> {
    let may_have_links = behind.known.as_ref().is_some_and(KnownBehind::may_have_links);
    (may_have_links && behind.same_as != FileId::default()).then_some(behind.same_as.0)
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
    /// Those of them that say that an inode here is there under the name, and may be so under others: of one that has
    /// several names behind all are here. By inode, directory and name.
    links: BTreeSet<LinkBehind>,
    listed: FastMap<u64, ListedDirectory>,
    /// Where inodes of this server are going to be behind, with what a flush has written there: that may have happened.
    nexts: BTreeMap<u64, BackingPlace>,
    counts: Counts,
    /// Names with a record.
    recorded: u64,
    /// Names that stand for something else here than behind (`changes.rs`).
    differing: u64,
    /// What was taken up and is written.
    written: BTreeSet<u64>,
    /// What is clean, in the order in which it goes; in memory alone.
    clean: CleanQueue,
    /// The same of names that were taken up.
    names: CleanQueue,
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
            let taken_up = TakenUp {
                place,
                standings: BTreeMap::new(),
                dirty: 0,
                absent: 0,
                knows_extended: false,
                is_named: false,
                is_written: false,
                is_rest_written: false,
                rest_uses: ChunkUses::default(),
                offered: 0,
                checked: Cell::new(0),
                listed: Cell::new(0),
                name_uses: ChunkUses::default(),
                hole: Cell::default(),
                next_read_ahead: Cell::new(u64::MAX),
            };
            let has_rest = taken_up.has_carried_rest();
            self.taken_up.insert(id.0, taken_up);
            if id.is_from_behind() {
                self.offer_name(id.0);
            }
            // Perhaps it is written: that comes later, and is seen when it is its turn.
            if has_rest {
                self.offer((id.0, WHOLE_FILE));
            }
            return;
        };
        let (end, chunk_size, before) = (place.base.max(place.carried), u64::from(place.chunk_size), known.counts());
        known.place = place;
        known.hole.set((0, 0));
        known.standings.retain(|index, _| index.saturating_mul(chunk_size) < end);
        known.dirty = known.count(Standing::Dirty);
        known.absent = known.count(Standing::Absent);
        self.counts.replace(before, known.counts());
    }

    /// What was here when a flush began is behind now, at this place.
    pub fn put_carried(&mut self, id: FileId, place: BackingPlace, state: CarriedState) {
        self.put_place(id, place);
        self.nexts.remove(&id.0);
        let Some(taken_up) = self.taken_up.get_mut(&id.0) else { return };
        taken_up.is_written = state != CarriedState::Whole;
        match taken_up.is_written {
            true => self.written.insert(id.0),
            false => self.written.remove(&id.0),
        };
        if state == CarriedState::Unknown {
            return;
        }
        taken_up.is_rest_written = false;
        let before = taken_up.counts();
        let mut clean = Vec::new();
        for (index, here) in taken_up.standings.iter_mut().filter(|(_, here)| here.standing == Standing::Dirty) {
            here.standing = Standing::Clean;
            clean.push((id.0, *index));
        }
        taken_up.dirty = 0;
        taken_up.offered = 0;
        if taken_up.has_carried_rest() {
            clean.push((id.0, WHOLE_FILE));
        }
        self.counts.replace(before, taken_up.counts());
        clean.into_iter().for_each(|key| self.offer(key));
    }

    pub fn note_written(&mut self, id: FileId, rest: bool) {
        if let Some(taken_up) = self.taken_up.get_mut(&id.0) {
            taken_up.is_written = true;
            taken_up.is_rest_written |= rest;
            self.written.insert(id.0);
        }
    }

    pub fn note_extended_known(&mut self, id: FileId, is_known: bool) {
        if let Some(taken_up) = self.taken_up.get_mut(&id.0) {
            taken_up.knows_extended = is_known;
        }
    }

    /// Whether users' extended attributes of an inode are those here: it was made here, or they were fetched.
    pub fn knows_extended(&self, id: FileId) -> bool {
        !id.is_from_behind() || self.get(id).is_some_and(|taken_up| taken_up.knows_extended)
    }

    /// Numbers of the inodes behind that are being written to, or were in an earlier life.
    pub fn being_written(&self) -> impl Iterator<Item = u64> {
        let places = self.taken_up.values().map(|taken_up| &taken_up.place).chain(self.nexts.values());
        places.filter(|place| place.is_being_written()).map(|place| place.inode)
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
            && (taken_up.begins_below_base(index) || taken_up.is_carried(index))
        {
            let before = taken_up.counts();
            // What lies below the base as a whole is absent without a word.
            let needs_none = standing == Standing::Absent && taken_up.begins_below_base(index + 1);
            let old = match needs_none {
                true => taken_up.standings.remove(&index),
                false => taken_up.standings.insert(index, KnownChunk { standing, uses: ChunkUses::default() }),
            };
            let (old, new) = (old.map(|old| old.standing), (!needs_none).then_some(standing));
            let change = |kind| (u64::from(new == Some(kind)), u64::from(old == Some(kind)));
            let ((more_dirty, less_dirty), (more_absent, less_absent)) =
                (change(Standing::Dirty), change(Standing::Absent));
            taken_up.dirty = taken_up.dirty + more_dirty - less_dirty;
            taken_up.absent = taken_up.absent + more_absent - less_absent;
            self.counts.replace(before, taken_up.counts());
            if standing == Standing::Clean {
                self.offer((id.0, index));
            }
        }
    }

    /// Something is clean, so it may go.
    pub fn offer(&mut self, key: CleanKey) {
        let taken_up = &self.taken_up;
        let is_clean = |(file, index): &CleanKey| taken_up.get(file).is_some_and(|known| known.may_go(*index));
        self.clean.push(key, is_clean);
    }

    /// Next what is to go, chunks or the rest of a file (`WHOLE_FILE`); what is dirty too, for who does that on
    /// purpose.
    pub fn next_clean(&mut self, takes_dirty: bool) -> Option<CleanKey> {
        if takes_dirty && let Some(dirty) = self.some_dirty() {
            return Some(dirty);
        }
        let taken_up = &self.taken_up;
        self.clean.next(usize::MAX, |(file, index), uses| {
            let known = taken_up.get(file).filter(|known| known.may_go(*index));
            known.map(|known| uses(known.uses_of(*index))).is_some()
        })
    }

    /// The name of something that was taken up may go some time.
    pub fn offer_name(&mut self, id: u64) {
        let taken_up = &self.taken_up;
        self.names.push((id, 0), |(id, _)| taken_up.contains_key(id));
    }

    /// Next what is to lose its name; nothing if all of a few were used.
    pub fn next_name(&mut self, looks_max: usize) -> Option<u64> {
        let taken_up = &self.taken_up;
        let look = |(id, _): &CleanKey, uses: &mut dyn FnMut(&ChunkUses)| {
            taken_up.get(id).map(|known| uses(&known.name_uses)).is_some()
        };
        self.names.next(looks_max, look).map(|(id, _)| id)
    }

    /// Names that were taken up and may go some time, but for those that were given out as the next ones.
    pub fn offered_names(&self) -> u64 {
        self.names.count() as u64
    }

    /// Whether somebody has asked for a name since that was last asked.
    pub fn takes_name_use(&self, id: FileId) -> bool {
        self.get(id).is_some_and(|known| known.name_uses.take_one())
    }

    /// Some chunk that is dirty.
    fn some_dirty(&self) -> Option<CleanKey> {
        let dirty_of = |file: &u64| {
            let mut standings = self.taken_up.get(file)?.standings();
            standings.find(|(_, standing)| *standing == Standing::Dirty).map(|(index, _)| (*file, index))
        };
        self.written.iter().find_map(dirty_of)
    }

    /// Whether a chunk, or the rest of a file, was used since it was last looked at.
    pub fn takes_use(&self, (file, index): CleanKey) -> bool {
        let known = self.taken_up.get(&file);
        known.is_some_and(|known| known.uses_of(index).take_one())
    }

    /// The chunk with which to go on with the rest of a file that was carried.
    pub fn rest_from(&self, file: FileId) -> Option<u64> {
        let known = self.get(file).filter(|known| known.has_carried_rest())?;
        Some(known.offered.max(known.place.base.div_ceil(known.chunk_size())))
    }

    /// It was gone through up to a chunk.
    pub fn note_offered(&mut self, file: u64, offered: u64) {
        if let Some(known) = self.taken_up.get_mut(&file) {
            known.offered = offered;
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
        let linked = linked_of(&behind);
        let before = self.differences.entry(directory.0).or_default().insert(name.into(), behind);
        self.recorded += u64::from(before.is_none());
        let linked_before = before.as_ref().and_then(linked_of);
        if linked_before != linked {
            self.replace_link(directory, name, linked_before, linked);
        }
    }

    fn replace_link(&mut self, directory: FileId, name: &[u8], before: Option<u64>, after: Option<u64>) {
        if let Some(id) = before {
            self.links.remove(&(id, directory.0, Box::from(name)));
        }
        if let Some(id) = after {
            self.links.insert((id, directory.0, Box::from(name)));
        }
    }

    /// Names by which an inode is behind that has several, from one on, in order.
    pub fn links_from(
        &self,
        id: FileId,
        (directory, name): (u64, &[u8]),
    ) -> impl Iterator<Item = (FileId, &[u8], &NameBehind)> {
        let start = (id.0, directory, Box::from(name));
        let of_id = self.links.range(start..).take_while(move |(of, ..)| *of == id.0);
        of_id.filter_map(|(_, directory, name)| {
            let behind = self.differences.get(directory)?.get(name)?;
            Some((FileId(*directory), &**name, behind))
        })
    }

    pub fn remove_difference(&mut self, directory: FileId, name: &[u8]) {
        if let Some(names) = self.differences.get_mut(&directory.0) {
            let before = names.remove(name);
            self.recorded -= u64::from(before.is_some());
            if names.is_empty() {
                self.differences.remove(&directory.0);
            }
            let linked = before.as_ref().and_then(linked_of);
            self.replace_link(directory, name, linked, None);
        }
    }

    pub fn is_listed(&self, directory: FileId) -> bool {
        self.listed.contains_key(&directory.0)
    }

    pub fn note_listed(&mut self, directory: FileId) {
        self.listed.insert(directory.0, ListedDirectory::default());
    }

    /// Names of a directory may be unknown, and are to be looked for from now on.
    pub fn note_unlisted(&mut self, directory: FileId) {
        self.listed.remove(&directory.0);
    }

    pub fn listed_directory(&self, directory: FileId) -> Option<&ListedDirectory> {
        self.listed.get(&directory.0)
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
        for (name, behind) in self.differences.remove(&directory.0).into_iter().flatten() {
            self.recorded -= 1;
            self.replace_link(directory, &name, linked_of(&behind), None);
        }
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
        let written = self.taken_up.values().filter(|taken_up| taken_up.is_written).count();
        let is_right = |(id, taken_up): (&u64, &TakenUp)| {
            taken_up.count(Standing::Dirty) == taken_up.dirty
                && taken_up.count(Standing::Absent) == taken_up.absent
                && taken_up.is_written == self.written.contains(id)
        };
        let links = self
            .differences()
            .filter_map(|(directory, name, behind)| linked_of(behind).map(|id| (id, directory.0, Box::from(name))));
        counts == self.counts
            && recorded == self.recorded
            && links.collect::<BTreeSet<LinkBehind>>() == self.links
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
            if taken_up.knows_extended {
                put(&Record::ExtendedKnown(id));
            }
            if taken_up.is_written {
                put(&Record::Written { id, rest: taken_up.is_rest_written });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_absent_chunk_is_found_without_a_look_at_all() {
        let id = FileId(9);
        let place = BackingPlace {
            parent: FileId::ROOT,
            path: b"f".as_slice().into(),
            device: 1,
            inode: 7,
            size: 1 << 50,
            mtime: 0,
            ctime: 0,
            base: 3 * 4096 + 1,
            carried: 1 << 50,
            chunk_size: 4096,
            has_links: false,
        };
        let mut tables = BackingTables::default();
        tables.put_place(id, place);
        let next = |tables: &BackingTables, first| tables.get(id).and_then(|known| known.next_absent(first));
        // Below the base all are absent that nothing is known of, and beyond it none.
        assert_eq!([0, 3, 4].map(|first| next(&tables, first)), [Some(0), Some(3), None]);
        for (index, standing) in [(0, Standing::Clean), (1, Standing::Dirty), (1 << 36, Standing::Absent)] {
            tables.put_standing(id, index, standing);
        }
        assert_eq!([0, 1, 3, 4].map(|first| next(&tables, first)), [Some(2), Some(2), Some(3), Some(1 << 36)]);
        assert_eq!(next(&tables, (1 << 36) + 1), None);
        tables.put_standing(id, 1 << 36, Standing::Clean);
        assert_eq!(next(&tables, 4), None);
    }
}
