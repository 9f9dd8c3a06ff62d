//! One pass of a flush, at the home of the root: what there is to do, and a step for each of it. Directories first,
//! then files, then removals; what has to wait for something else waits for the next pass.
//!
//! Invariants
//! 1. A directory is there before anything in it, and goes after all of it.
//! 2. What lives on here and is not all here is never unlinked behind: its place moves first, or its name stays. Where
//!    files take each other's names one of them is parked under a hidden name.
//! 3. Nothing is removed that is not what is known to be there.

mod removals;
mod synced;

use crate::backing::carry::{NOT_EMPTY, is_next, known_as, reason_of};
use crate::backing::change_list::{LIST_INODES, LIST_NAMES, LIST_SETTLED};
use crate::backing::flush::{Failures, FlushRun, MOVING_PAUSE_NS, NOT_DONE};
use crate::backing::links::{OTHER_IS_CHANGED, is_no_link};
use crate::backing::places::DirectoryBehind;
use crate::backing::shared_syncs::SMALL_FILE_SIZE;
use crate::backing::{add, joined};
use crate::core::{Core, Failure, Turn, Turns};
use reactor::{Class, LocalFuture};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use wire::limits::PATH_SIZE_MAX;
use wire::messages::*;
use wire::{FileId, Kind, Operation, Status};

/// Small files that count as one of those that are written at a time.
const SMALL_FILES_A_WRITER: usize = 8;

/// What has to wait, or can't be done at all.
enum Hindrance {
    /// Something else may have to be done first.
    Waits(String),
    /// The name that is wanted is in the way of what moves elsewhere itself, which can give way.
    Occupied(GivesWay),
    /// Nobody waits for it, and it is not the time for it.
    NotNow,
    /// Somebody else has changed the name, and ours is to be given up.
    Conflict,
    Failed(Vec<u8>),
}

/// What can be parked under a hidden name.
#[derive(Clone, Copy)]
struct GivesWay {
    id: FileId,
    /// Where, if not in the directory in which it is.
    directory: Option<FileId>,
}

impl From<Failure> for Hindrance {
    fn from(failure: Failure) -> Hindrance {
        Hindrance::Failed(reason_of(&failure))
    }
}

/// Whether something was done.
type StepResult = Result<bool, Hindrance>;

/// What one pass knows.
pub struct Pass {
    core: Rc<Core>,
    run: Rc<FlushRun>,
    names: Vec<ChangedEntry>,
    /// Where in `names` directories are that have other names behind, or none.
    changed: BTreeMap<u64, usize>,
    /// What this pass has noted of names, by directory and name.
    noted: BTreeMap<(u64, Vec<u8>), NameBehind>,
    /// Inodes that were changed and keep their names, with whether they are open, and their sizes.
    written: BTreeMap<u64, (bool, u64)>,
    /// Inodes with names behind that are not theirs here any more: directories and names.
    moved: BTreeSet<(u64, u64, Vec<u8>)>,
    /// Where directories are behind.
    places: RefCell<BTreeMap<u64, DirectoryBehind>>,
    /// Files whose other names are to be linked anew.
    parted: RefCell<BTreeSet<u64>>,
    /// Names of which all is done.
    done: RefCell<BTreeSet<usize>>,
    /// Inodes behind of which a name is being replaced that may go for it is one of several: one of them at a time, so
    /// that the last one is seen to be that.
    replaced: Turns,
    /// Files that are carried in this pass, and those that got one more name.
    taken: RefCell<BTreeSet<u64>>,
    linked: RefCell<BTreeSet<u64>>,
    occupied: RefCell<BTreeMap<u64, (GivesWay, Vec<u8>)>>,
    /// Directories that can't be put where they ought to be, with reasons.
    refused: RefCell<BTreeMap<u64, Vec<u8>>>,
    pub failures: RefCell<Failures>,
    pub progress: Cell<u64>,
    pub waiting: Cell<u64>,
}

/// Whether what is of a kind can be behind.
fn can_go(kind: Kind) -> bool {
    matches!(kind, Kind::File | Kind::Directory | Kind::Symlink)
}

pub fn is_below(path: &[u8], wanted: &[u8]) -> bool {
    wanted.is_empty() || path.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

impl Pass {
    pub async fn begin(core: &Rc<Core>, run: &Rc<FlushRun>, is_first: bool) -> Result<Pass, Failure> {
        let mut pass = Pass {
            core: core.clone(),
            run: run.clone(),
            names: Vec::new(),
            changed: BTreeMap::new(),
            noted: BTreeMap::new(),
            written: BTreeMap::new(),
            moved: BTreeSet::new(),
            places: RefCell::default(),
            parted: RefCell::default(),
            done: RefCell::default(),
            replaced: Turns::default(),
            taken: RefCell::default(),
            linked: RefCell::default(),
            occupied: RefCell::default(),
            refused: RefCell::default(),
            failures: RefCell::default(),
            progress: Cell::new(0),
            waiting: Cell::new(0),
        };
        let mut unsettled = BTreeSet::new();
        let mut take_inode = |entry: ChangedEntry| {
            let Some(id) = entry.id else { return };
            let known = pass.written.entry(id.0).or_default();
            *known = (*known).max((entry.is_open, entry.size));
            if entry.behind.next.is_some() && !run.passes_by(id) {
                unsettled.insert(id);
            }
        };
        // What was answered before somebody asked for a flush is to go with it.
        let is_awaited = is_first && run.patience.get() == flush_patience::NONE;
        let start = if is_awaited { LIST_SETTLED } else { LIST_INODES };
        let files = run.listed_files();
        core.list_all(&ListChangesRequest { files: files.clone(), ..start }, &mut take_inode).await?;
        pass.await_settled(unsettled).await?;
        let names = ListChangesRequest { files, ..LIST_NAMES };
        core.list_all(&names, &mut |entry| pass.names.push(entry)).await?;
        pass.resolve_next().await?;
        let names = pass.names.iter().enumerate().filter(|(_, entry)| entry.kind == Kind::Directory);
        pass.changed = names.filter_map(|(index, entry)| Some((entry.id?.0, index))).collect();
        for entry in &pass.names {
            let behind = &entry.behind;
            if behind.known.is_some() && behind.same_as != FileId::default() && entry.id != Some(behind.same_as) {
                pass.moved.insert((behind.same_as.0, entry.directory.0, entry.name.clone()));
            }
        }
        run.left.set((pass.names.len() + pass.written.len()) as u64);
        Ok(pass)
    }

    /// Waits until it is known where inodes are that somebody who was cut off was about to move, for a time-out at
    /// most. What is not known then the next pass sees, and this one is not the last.
    async fn await_settled(&self, unsettled: BTreeSet<FileId>) -> Result<(), Failure> {
        let limit = self.core.reactor.now() + self.core.options.timeout;
        for id in unsettled {
            while self.core.ask_carried_of(id).await?.next.is_some() {
                if self.core.reactor.now() >= limit || self.run.is_cut.get() {
                    self.waiting.set(self.waiting.get() + 1);
                    break;
                }
                self.core.reactor.sleep(MOVING_PAUSE_NS).await;
            }
        }
        Ok(())
    }

    /// Waits until nobody carries an inode, for a time-out at most. Whether nobody does.
    async fn await_carried(&self, id: FileId) -> Result<bool, Failure> {
        let limit = self.core.reactor.now() + self.core.options.timeout;
        while self.core.ask_carried_of(id).await?.is_moving {
            if self.core.reactor.now() >= limit || self.run.is_cut.get() || self.run.passes_by(id) {
                return Ok(false);
            }
            self.core.reactor.sleep(MOVING_PAUSE_NS).await;
        }
        Ok(true)
    }

    /// Finds out what became of what was about to be put behind names when somebody was cut off.
    async fn resolve_next(&mut self) -> Result<(), Failure> {
        let mut names = std::mem::take(&mut self.names);
        let mut was_cut_off = BTreeSet::new();
        for (index, entry) in names.iter_mut().enumerate().filter(|(_, entry)| entry.behind.next.is_some()) {
            was_cut_off.insert(index);
            let seen = entry.behind.clone();
            let Some(next) = entry.behind.next.take() else { continue };
            if !self.await_carried(next.id).await? {
                entry.behind.next = Some(next);
                continue;
            }
            let Some(place) = self.directory_place(entry.directory).await? else { continue };
            let backing = self.core.backing();
            let directory = backing.open_known(&place).await.map_err(|error| backing.failure(error))?;
            let found = backing.look_for(&directory, &entry.name).await?;
            let expected = self.expected_at(entry.directory, &entry.name, &next).await?;
            // Where it is still wanted the inode's home may know nothing of it, and whoever goes on has to see that.
            let left = match found.filter(|found| is_next(found, &expected)) {
                Some(found) => {
                    backing.sync_names(&directory).await?;
                    entry.behind.known = Some(known_as(&found, &expected));
                    entry.behind.same_as = self.owner_of_next(entry, next.id).await?;
                    Some(next.clone()).filter(|next| entry.id == Some(next.id))
                }
                None => None,
            };
            let behind = NameBehind { next: left, ..entry.behind.clone() };
            let name = (entry.directory, entry.name.as_slice());
            match self.core.have_noted_if(name, behind.clone(), seen).await? {
                true => drop(self.noted.insert((entry.directory.0, entry.name.clone()), behind)),
                // Somebody who goes on by himself knows better; what is known by now the next pass sees.
                false => entry.behind.next = Some(next),
            }
        }
        // The home of what was put there may know nothing of that.
        let mut index = 0..;
        names.retain(|entry| {
            let is_cut_off = index.next().is_some_and(|index| was_cut_off.contains(&index));
            is_cut_off && entry.id.is_some() || !entry.behind.agrees(entry.id)
        });
        self.names = names;
        Ok(())
    }

    /// Whose what was put behind a name is. It is nobody's if the inode has left the name before its home knew of that
    /// place: it is carried anew then, and if it comes back nobody may take it for carried.
    async fn owner_of_next(&self, entry: &ChangedEntry, id: FileId) -> Result<FileId, Failure> {
        if entry.id == Some(id) {
            return Ok(id);
        }
        let carried = self.core.ask_carried_of(id).await?;
        let is_entry = |place: &BackingPlace| (place.parent, place.name()) == (entry.directory, &*entry.name);
        let is_known = carried.names.is_none() || carried.place.iter().chain(&carried.next).any(is_entry);
        Ok(if is_known { id } else { FileId::default() })
    }

    /// What ought to be at a name that was about to get something. Of a file that was updated where it is the home may
    /// know more than its number by now: what differs then is somebody else's.
    async fn expected_at(&self, directory: FileId, name: &[u8], next: &NextBehind) -> Result<KnownBehind, Failure> {
        if next.known.ctime != CTIME_UNKNOWN {
            return Ok(next.known.clone());
        }
        let carried = self.core.ask_carried_of(next.id).await?;
        let is_it = |place: &BackingPlace| {
            (place.parent, place.name(), place.inode) == (directory, name, next.known.inode)
                && !place.is_being_written()
        };
        // One that has not ended well stands beside what was known before.
        let place = carried.place.filter(|_| carried.next.is_none());
        Ok(place.filter(is_it).map_or_else(|| next.known.clone(), |place| place.known()))
    }

    pub async fn work(self: &Rc<Self>) {
        let of_kind = |is_wanted: &dyn Fn(&ChangedEntry) -> bool| -> Vec<usize> {
            (0..self.names.len()).filter(|index| is_wanted(&self.names[*index])).collect()
        };
        // Directories, from above: one after another, as each may be the next one's.
        let mut directories = of_kind(&|entry| entry.id.is_some() && entry.kind == Kind::Directory);
        loop {
            let before = directories.len();
            let mut left = Vec::new();
            for index in directories {
                match self.directory_path(self.names[index].directory).await {
                    Ok(Some(_)) => self.name_step(index).await,
                    Ok(None) => left.push(index),
                    Err(failure) => self.note_failure(index, Hindrance::from(failure)).await,
                }
            }
            directories = left;
            if directories.is_empty() || directories.len() == before {
                break;
            }
        }
        for index in directories {
            self.note_failure(index, Hindrance::Waits("its directory is not there yet".to_owned())).await;
        }
        let files = of_kind(&|entry| entry.id.is_some() && entry.kind != Kind::Directory);
        let written: Vec<u64> = self.written.keys().copied().collect();
        // What somebody syncs goes first, and as a rule alone.
        let (own, others): (Vec<usize>, Vec<usize>) = files.into_iter().partition(|index| {
            let entry = &self.names[*index];
            self.run.is_of_files() && (self.run.has(entry.directory) || entry.id.is_some_and(|id| self.run.has(id)))
        });
        let (own_written, others_written): (Vec<u64>, Vec<u64>) =
            written.into_iter().partition(|id| self.run.is_of_files() && self.run.has(FileId(*id)));
        if self.run.is_of_files() {
            self.put_files(own, own_written).await;
            if !self.run.has_parked.get() && self.files_left().await.is_empty() {
                return;
            }
        }
        self.put_files(others, others_written).await;
        let mut removals = of_kind(&|entry| entry.id.is_none());
        let mut depths = BTreeMap::new();
        for index in &removals {
            let path = self.directory_path(self.names[*index].directory).await.ok().flatten();
            depths.insert(*index, path.map_or(0, |path| path.split(|byte| *byte == b'/').count()));
        }
        removals.sort_by_key(|index| std::cmp::Reverse(depths[index]));
        for index in removals {
            self.name_step(index).await;
        }
        if self.progress.get() == 0 {
            self.park_some().await;
        }
    }

    /// Has names of files stand for what they do here, and files be as they are here that keep their names.
    async fn put_files(self: &Rc<Self>, mut names: Vec<usize>, mut written: Vec<u64>) {
        // Whoever is cut off has as many as possible whole.
        names.sort_by_key(|index| (self.names[*index].is_open, self.names[*index].size));
        let size = |index: &usize| self.names[*index].size;
        self.at_once(&names, size, |pass, index| Box::pin(async move { pass.name_step(index).await })).await;
        written.sort_by_key(|id| self.written[id]);
        let size = |id: &u64| self.written[id].1;
        self.at_once(&written, size, |pass, id| Box::pin(async move { pass.written_step(FileId(id)).await })).await;
    }

    /// Does a step for each of some items in order, as many at a time as there are writers. Of small files, by their
    /// sizes, more: each of them waits for syncs most of its time, and those that wait together share them.
    async fn at_once<T: Copy + 'static>(
        self: &Rc<Self>,
        items: &[T],
        size: impl Fn(&T) -> u64,
        step: impl Fn(Rc<Pass>, T) -> LocalFuture<()> + Copy + 'static,
    ) {
        let is_small = |item: &T| size(item) <= SMALL_FILE_SIZE;
        for alike in items.chunk_by(|one, other| is_small(one) == is_small(other)) {
            let small = alike.first().is_some_and(is_small);
            let writers = self.core.backing().pace.writers() * if small { SMALL_FILES_A_WRITER } else { 1 };
            let left: VecDeque<T> = alike.iter().copied().collect();
            let (pass, left) = (self.clone(), Rc::new(RefCell::new(left)));
            let work = |_| {
                let (pass, left) = (pass.clone(), left.clone());
                self.core.reactor.spawn_joinable(Class::Background, async move {
                    loop {
                        let next = left.borrow_mut().pop_front();
                        let Some(item) = next.filter(|_| !pass.run.is_cut.get()) else { return };
                        step(pass.clone(), item).await;
                    }
                })
            };
            let working: Vec<_> = (0..writers.min(alike.len())).map(work).collect();
            for writer in working {
                writer.await;
            }
        }
    }

    fn is_wanted(&self, path: &[u8]) -> bool {
        let wanted = &self.run.paths;
        wanted.is_empty() || wanted.iter().any(|wanted| is_below(path, wanted) || is_below(wanted, path))
    }

    /// A directory's path here, as users know it; behind it may be elsewhere, or not yet.
    async fn path_here(&self, directory: FileId) -> Result<Option<Vec<u8>>, Failure> {
        let (mut path, mut directory) = (Vec::new(), directory);
        while directory != FileId::ROOT {
            let (parent, name) = match self.changed.get(&directory.0).map(|index| &self.names[*index]) {
                Some(entry) => (entry.directory, entry.name.clone()),
                None => match self.core.ask_carried_of(directory).await?.place {
                    Some(place) => (place.parent, place.name().to_vec()),
                    None => return Ok(None),
                },
            };
            path = if path.is_empty() { name } else { joined(&name, &path) };
            // What changes meanwhile may seem to go in a circle.
            if path.len() > PATH_SIZE_MAX {
                return Ok(None);
            }
            directory = parent;
        }
        Ok(Some(path))
    }

    async fn note_failure(&self, index: usize, hindrance: Hindrance) {
        let entry = &self.names[index];
        if let (Hindrance::Failed(reason), Kind::Directory, Some(id)) = (&hindrance, entry.kind, entry.id) {
            self.refused.borrow_mut().insert(id.0, reason.clone());
        }
        let path = match self.path_here(entry.directory).await.ok().flatten() {
            Some(directory) => joined(&directory, &entry.name),
            None => [b".../", entry.name.as_slice()].concat(),
        };
        let ids = [entry.id.unwrap_or_default(), if can_go(entry.kind) { entry.directory } else { FileId::default() }];
        self.note_failure_of((path, &ids), hindrance);
    }

    /// Something was not done, of which a flush of one of these files or directories is told.
    fn note_failure_of(&self, (path, ids): (Vec<u8>, &[FileId]), hindrance: Hindrance) {
        if !self.is_wanted(&path) {
            return;
        }
        let is_refused = matches!(hindrance, Hindrance::Failed(_) | Hindrance::Conflict);
        let reason = match hindrance {
            Hindrance::Failed(reason) => reason,
            Hindrance::Waits(_) | Hindrance::Occupied(_) if self.run.patience.get() > flush_patience::NONE => {
                // It goes with the next one, or whoever waits for one is told why not.
                if let Hindrance::Occupied(gives_way) = hindrance {
                    self.occupied.borrow_mut().insert(gives_way.id.0, (gives_way, path));
                }
                return self.waiting.set(self.waiting.get() + 1);
            }
            Hindrance::Waits(reason) => {
                self.waiting.set(self.waiting.get() + 1);
                reason.into_bytes()
            }
            Hindrance::NotNow if self.run.patience.get() > flush_patience::NONE || self.run.is_cut.get() => return,
            // It was begun when nobody waited.
            Hindrance::NotNow => {
                self.waiting.set(self.waiting.get() + 1);
                NOT_DONE.as_bytes().to_vec()
            }
            Hindrance::Conflict => b"somebody else has changed it there".to_vec(),
            Hindrance::Occupied(gives_way) => {
                self.waiting.set(self.waiting.get() + 1);
                self.occupied.borrow_mut().insert(gives_way.id.0, (gives_way, path.clone()));
                b"what has its name behind is not moved yet".to_vec()
            }
        };
        for id in ids.iter().filter(|id| self.run.has(**id)) {
            self.run.failed_files.borrow_mut().insert(id.0, (path.clone(), reason.clone()));
            if is_refused {
                self.run.refused_files.borrow_mut().insert(id.0);
            }
        }
        self.failures.borrow_mut().insert(path, reason);
    }

    fn note_done(&self) {
        self.progress.set(self.progress.get() + 1);
        add(&self.run.done, 1);
        add(&self.core.backing().flushes.done, 1);
        self.run.left.set(self.run.left.get().saturating_sub(1));
    }

    async fn name_step(&self, index: usize) {
        let entry = &self.names[index];
        if self.run.is_cut.get() {
            return;
        }
        if entry.id.is_none() {
            self.core.flush_turn(&self.run.patience, 0).await;
        }
        let result = match entry.id {
            Some(id) => self.put_step(entry, id).await,
            None => self.remove_step(entry).await,
        };
        match result {
            Ok(is_done) => {
                self.done.borrow_mut().insert(index);
                if is_done {
                    self.note_done();
                }
            }
            Err(hindrance) => self.note_failure(index, hindrance).await,
        }
    }

    /// Where a directory is behind; nothing if it is not yet.
    async fn directory_place(&self, directory: FileId) -> Result<Option<DirectoryBehind>, Failure> {
        self.find_directory(directory, &mut BTreeSet::new()).await
    }

    /// The same for what `asked` are in, or were about to be: each is asked for once, for where it was about to be
    /// several flushes that were cut off may say in a circle.
    async fn find_directory(
        &self,
        directory: FileId,
        asked: &mut BTreeSet<u64>,
    ) -> Result<Option<DirectoryBehind>, Failure> {
        if directory == FileId::ROOT {
            let inode = self.core.backing().root.identity.inode;
            return Ok(Some(DirectoryBehind { path: Rc::from([]), inode }));
        }
        if let Some(known) = self.places.borrow().get(&directory.0) {
            return Ok(Some(known.clone()));
        }
        if !asked.insert(directory.0) {
            return Ok(None);
        }
        let reply = self.core.ask_carried_of(directory).await?;
        let Some(place) = reply.place.filter(|place| place.inode != 0) else { return Ok(None) };
        // It is there, or where an earlier flush was about to move it.
        let next = reply.next.filter(|next| next.inode == place.inode);
        let mut found = DirectoryBehind { path: place.path.as_slice().into(), inode: place.inode };
        let mut is_there = self.is_there(&found).await?;
        if let Some(next) = next.as_ref().filter(|_| !is_there) {
            found.path = next.path.as_slice().into();
            is_there = self.is_there(&found).await?;
        }
        // One above it may have been moved.
        for way in std::iter::once(&place).chain(&next) {
            if is_there {
                break;
            }
            if let Some(parent) = Box::pin(self.find_directory(way.parent, asked)).await? {
                found.path = joined(&parent.path, way.name()).into();
                is_there = self.is_there(&found).await?;
            }
        }
        self.places.borrow_mut().insert(directory.0, found.clone());
        Ok(Some(found))
    }

    /// Whether a directory is where it was once. A call that fails otherwise says nothing about that.
    async fn is_there(&self, known: &DirectoryBehind) -> Result<bool, Failure> {
        match self.core.backing().open_known(known).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_missing() || error.is_replaced() => Ok(false),
            Err(error) => Err(self.core.backing().failure(error)),
        }
    }

    /// Where an inode is behind, whatever was moved above it.
    async fn path_of(&self, place: &BackingPlace, kind: Kind, id: FileId) -> Result<Option<Vec<u8>>, Failure> {
        if kind == Kind::Directory {
            return Ok(self.directory_place(id).await?.map(|place| place.path.to_vec()));
        }
        Ok(self.directory_path(place.parent).await?.map(|directory| joined(&directory, place.name())))
    }

    async fn directory_path(&self, directory: FileId) -> Result<Option<Rc<[u8]>>, Failure> {
        Ok(self.directory_place(directory).await?.map(|place| place.path))
    }

    /// Has a name behind stand for what it stands for here.
    async fn put_step(&self, entry: &ChangedEntry, id: FileId) -> StepResult {
        if entry.behind.next.is_some() {
            return Err(Hindrance::Waits("it is being carried by an earlier flush".to_owned()));
        }
        let Some(directory) = self.directory_place(entry.directory).await? else {
            return Err(self.lacks_directory(entry, id).await?);
        };
        let path = joined(&directory.path, &entry.name);
        if !self.is_wanted(&path) {
            return Ok(false);
        }
        if !can_go(entry.kind) {
            return Err(Hindrance::Failed(b"pipes, sockets and devices are not carried behind".to_vec()));
        }
        let carried = self.core.ask_carried_of(id).await?;
        if carried.names.is_none() {
            return Ok(false);
        }
        let has_place = |place: &&BackingPlace| place.inode != 0;
        let is_entry = |place: &BackingPlace| (place.parent, place.name()) == (entry.directory, &*entry.name);
        let elsewhere = carried.place.as_ref().filter(has_place).filter(|place| !is_entry(place));
        let linked_to = elsewhere.filter(|place| entry.kind != Kind::Directory && !self.core.is_hidden(place.name()));
        let linked_to = match linked_to {
            Some(place) if self.core.ask_carried_of(place.parent).await?.names.is_some() => Some(place),
            _ => None,
        };
        let now = match elsewhere {
            Some(place) => self.path_of(place, entry.kind, id).await?,
            None => None,
        };
        let is_within =
            |inner: &[u8], outer: &[u8]| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with(b"/"));
        if now.as_ref().is_some_and(|now| is_within(&path, now)) && entry.kind == Kind::Directory {
            return Err(Hindrance::Waits("what is to hold it is within it there".to_owned()));
        }
        if now.as_ref().is_some_and(|now| is_within(now, &path)) {
            // What has its name there can't go before this one, which is in it.
            return Err(Hindrance::Occupied(GivesWay { id, directory: Some(entry.directory) }));
        }
        let is_same_place = carried.place.as_ref().filter(has_place).is_some_and(is_entry);
        let is_clean = is_same_place && !carried.is_written && !self.written.contains_key(&id.0);
        if is_clean && self.note_found(entry, id, &directory, carried.place.as_ref()).await? {
            return Ok(true);
        }
        let mut known = entry.behind.known.clone();
        let there = entry.behind.same_as;
        if let Some(before) = known.as_ref().filter(|_| there != FileId::default() && there != id) {
            known = Some(self.check_free(there, entry, before).await?.known);
        }
        // What was in one that is gone here goes first; one that is elsewhere takes it along.
        let is_of_before = |other: &ChangedEntry| other.directory == there && other.behind.known.is_some();
        if entry.kind == Kind::Directory && there != id && self.names.iter().any(is_of_before) {
            return Err(Hindrance::Waits(NOT_EMPTY.to_owned()));
        }
        if known.is_some() && self.clear_other_kind(entry, &directory, known.as_ref()).await? {
            known = None;
        }
        let same_as = if known.is_some() { there } else { FileId::default() };
        let wish = |way| {
            let known = known.clone();
            CarryInodeRequest { known, same_as, way, ..self.wish(id, entry.directory, path.clone()) }
        };
        if let Some(place) = linked_to {
            let is_moved = self.moved.contains(&(id.0, place.parent.0, place.name().to_vec()));
            // What replaces something is whole, as it is here.
            let is_written = carried.is_written || self.written.contains_key(&id.0);
            let is_old = is_written && !self.run.has_carried(id) || place.is_being_written();
            // A small file is written sooner than it is linked, and its old name left.
            let is_small = place.size <= SMALL_FILE_SIZE && !place.has_links;
            if !is_moved && is_old && known.is_some() {
                return Err(Hindrance::Waits("what was changed of it is carried by its other name first".to_owned()));
            }
            if !is_moved || !is_old && !is_small {
                self.linked.borrow_mut().insert(id.0);
                let linked = self.carry(wish(carry_ways::LINK)).await;
                let has_none = match &linked {
                    Err(Hindrance::Failed(reason)) => is_no_link(reason),
                    Err(Hindrance::Waits(reason)) => is_no_link(reason.as_bytes()),
                    _ => false,
                };
                // One that has left its place can be written anew where no link can be made.
                if !is_moved || !has_none {
                    return linked.map(|()| true);
                }
            }
        }
        match self.carry(wish(carry_ways::PLACE)).await {
            Err(Hindrance::Conflict) => return self.give_up(entry.directory, &entry.name, Some(id), &path).await,
            other => other?,
        }
        if entry.kind == Kind::Directory {
            self.forget_paths();
            if there != id {
                self.forget_directory(there, entry).await?;
            }
        }
        Ok(true)
    }

    /// Why something has no directory to go to. Who has a file open that lacks one which can't be made is told so.
    async fn lacks_directory(&self, entry: &ChangedEntry, id: FileId) -> Result<Hindrance, Failure> {
        let mut above = entry.directory;
        while let Some(index) = self.changed.get(&above.0) {
            let reason = self.refused.borrow().get(&above.0).cloned();
            if let Some(reason) = reason {
                let reason = format!("its directory can't go there: {}", String::from_utf8_lossy(&reason));
                if entry.kind == Kind::File {
                    self.core.tell_hindrance(id, reason.as_bytes()).await?;
                }
                return Ok(Hindrance::Waits(reason));
            }
            above = self.names[*index].directory;
        }
        Ok(Hindrance::Waits("its directory is not there yet".to_owned()))
    }

    /// A directory may have been made anew, or moved with all that is in it.
    fn forget_paths(&self) {
        self.places.borrow_mut().clear();
        self.core.backing().tree.set_all_stale();
    }

    /// Has a name show what somebody else has put there. What was changed meanwhile is for the next pass.
    async fn give_up(&self, directory: FileId, name: &[u8], id: Option<FileId>, path: &[u8]) -> StepResult {
        if !self.core.have_given_up(directory, name, id).await? {
            return Err(Hindrance::Waits("it was changed again while it was given up to somebody else".to_owned()));
        }
        let words: &[u8] = match id {
            Some(_) => b"somebody else has changed it there; theirs is here now, and what was changed here is dropped",
            None => b"somebody else has changed it there, so it is here again as theirs",
        };
        self.core.backing().settled.note(path, words);
        if let Some(id) = id.filter(|id| self.run.has(*id)) {
            self.run.given_up_files.borrow_mut().insert(id.0, (path.to_vec(), words.to_vec()));
        }
        Ok(true)
    }

    /// Notes that what is behind at a name is the inode's place, if it is.
    async fn note_found(
        &self,
        entry: &ChangedEntry,
        id: FileId,
        directory: &DirectoryBehind,
        place: Option<&BackingPlace>,
    ) -> Result<bool, Failure> {
        let Some(place) = place else { return Ok(false) };
        let backing = self.core.backing();
        let opened = backing.open_known(directory).await.map_err(|error| backing.failure(error))?;
        let found = backing.look_for(&opened, &entry.name).await?;
        let Some(found) = found.filter(|found| found.identity.inode == place.inode) else { return Ok(false) };
        let known = Some(known_as(&found, &place.known()));
        let behind = NameBehind { known, next: None, same_as: id };
        let noted = self.noted.get(&(entry.directory.0, entry.name.clone()));
        let seen = noted.unwrap_or(&entry.behind).clone();
        self.core.have_noted_if((entry.directory, &entry.name), behind, seen).await
    }

    /// Carries a file that was changed and has the name that it has behind.
    async fn written_step(&self, id: FileId) {
        let result = async {
            let carried = self.core.ask_carried_of(id).await?;
            let Some(place) = carried.place else { return Ok(None) };
            let is_named = |entry: &ChangedEntry| entry.directory == place.parent && entry.name == place.name();
            // What has no name is nobody's, and one whose name behind is to be something else goes by its other name.
            if carried.names.unwrap_or(0) == 0
                || self.run.leaves(id)
                || self.taken.borrow().contains(&id.0)
                || self.names.iter().any(is_named)
                || self.core.is_hidden(place.name())
            {
                return Ok(None);
            }
            let Some(directory) = self.directory_place(place.parent).await? else { return Ok(None) };
            let path = joined(&directory.path, place.name());
            // What may be replaced is the inode's own place, as its home finds it.
            if !self.is_wanted(&path) {
                return Ok(None);
            }
            let mut carried = self.carry(self.wish(id, place.parent, path.clone())).await;
            if let Err(Hindrance::Conflict) = carried {
                carried = self.give_up(place.parent, place.name(), Some(id), &path).await.map(drop);
            }
            match carried {
                Ok(()) => Ok(Some((path, None))),
                Err(hindrance) => Ok(Some((path, Some(hindrance)))),
            }
        };
        match result.await {
            Ok(Some((_, None))) => self.note_done(),
            Ok(Some((path, Some(hindrance)))) => self.note_failure_of((path, &[id]), hindrance),
            Ok(None) => {}
            Err::<_, Failure>(failure) => self.note_failure_of((format!("({id})").into_bytes(), &[id]), failure.into()),
        }
    }

    /// A wish to have an inode at a path where nothing else is.
    fn wish(&self, id: FileId, parent: FileId, path: Vec<u8>) -> CarryInodeRequest {
        let (wish, same_as) = (self.core.reactor.random(), FileId::default());
        CarryInodeRequest {
            id,
            wish,
            parent,
            path,
            known: None,
            same_as,
            way: carry_ways::PLACE,
            patience: flush_patience::NONE,
        }
    }

    /// Waits until no other name of what a wish replaces is being replaced.
    async fn take_turn_at(&self, request: &CarryInodeRequest) -> Option<Turn> {
        let replaced = request.known.as_ref().filter(|known| known.may_have_links() && request.same_as != request.id);
        Some(self.replaced.take(replaced?.inode).await)
    }

    async fn carry(&self, mut request: CarryInodeRequest) -> Result<(), Hindrance> {
        let id = request.id;
        let is_its = self.run.has(id);
        if request.way == carry_ways::PLACE && (is_its || self.run.has(request.parent)) {
            request.way = carry_ways::SNAPSHOT;
        }
        // What goes on while this flush is stopped is what it has asked for.
        let key = (id.0, request.parent.0, request.path.clone(), request.way);
        if is_its {
            request.wish = *self.run.wishes.borrow_mut().entry(key.clone()).or_insert(request.wish);
        }
        if !request.is_link() && !self.taken.borrow_mut().insert(id.0) {
            return Err(Hindrance::Waits("it is carried by another name first".to_owned()));
        }
        let home = self.core.cluster.home_of(id).ok_or(Failure::from(Status::BadMessage))?;
        let _turn = self.take_turn_at(&request).await;
        let bytes = BytesUnderWay { core: &self.core, run: &self.run, bytes: Cell::new(0) };
        loop {
            request.patience = if self.run.is_cut.get() { flush_patience::NONE } else { self.run.patience.get() };
            let reply = match home == self.core.index {
                true => self.core.carry_inode(request.clone()).await,
                false => self.core.peers.call(home, Operation::CarryInode, &request, None).await?,
            };
            bytes.note(reply.bytes);
            // Names that are to be linked anew are for the next pass.
            self.waiting.set(self.waiting.get() + u64::from(reply.has_parted));
            if reply.has_parted {
                self.parted.borrow_mut().insert(id.0);
            }
            if reply.state != flush_states::RUNNING {
                self.run.wishes.borrow_mut().remove(&key);
            }
            match reply.state {
                // It goes on, and ends by itself, as soon as it can.
                flush_states::RUNNING if self.run.is_cut.get() && request.patience == flush_patience::NONE => {
                    return Err(Hindrance::NotNow);
                }
                flush_states::RUNNING => {}
                flush_states::NOT_NOW => return Err(Hindrance::NotNow),
                flush_states::CONFLICT => return Err(Hindrance::Conflict),
                _ if reply.behind.is_some() => {
                    if !reply.reason.is_empty() {
                        self.core.backing().settled.note(&request.path, &reply.reason);
                    }
                    self.run.bytes.set(self.run.bytes.get() + reply.bytes);
                    if is_its && !request.is_link() && !request.is_parked() {
                        self.run.carried_files.borrow_mut().insert(id.0);
                    }
                    return Ok(());
                }
                _ => {
                    let waits =
                        [NOT_EMPTY, OTHER_IS_CHANGED].into_iter().find(|words| words.as_bytes() == reply.reason);
                    return Err(match waits {
                        Some(words) => Hindrance::Waits(words.to_owned()),
                        None => Hindrance::Failed(reply.reason),
                    });
                }
            }
        }
    }

    /// What has each other's names behind: one of each ring gives way.
    async fn park_some(&self) {
        let occupied = self.occupied.borrow().clone();
        if let Some((gives_way, path)) = occupied.into_values().next() {
            match self.park(gives_way).await {
                Ok(()) => self.note_done(),
                Err(hindrance) => self.note_failure_of((path, &[]), hindrance),
            }
        }
    }

    async fn park(&self, GivesWay { id, directory }: GivesWay) -> Result<(), Hindrance> {
        let parent = match directory {
            Some(directory) => directory,
            None => self.core.ask_carried_of(id).await?.place.ok_or(Failure::from(Status::StaleFile))?.parent,
        };
        let directory = self.directory_place(parent).await?.ok_or(Failure::from(Status::StaleFile))?;
        let hidden = joined(&directory.path, &self.core.parked_name(id));
        self.taken.borrow_mut().remove(&id.0);
        self.run.has_parked.set(true);
        let parked = self.carry(CarryInodeRequest { way: carry_ways::PARKED, ..self.wish(id, parent, hidden) }).await;
        self.forget_paths();
        parked
    }
}

/// What was written so far of one inode that is being carried.
struct BytesUnderWay<'a> {
    core: &'a Core,
    run: &'a FlushRun,
    bytes: Cell<u64>,
}

impl BytesUnderWay<'_> {
    fn note(&self, bytes: u64) {
        let before = self.bytes.replace(bytes);
        let sum = &self.run.bytes_under_way;
        sum.set(sum.get() - before + bytes);
        add(&self.core.backing().flushes.bytes, bytes.saturating_sub(before));
    }
}

impl Drop for BytesUnderWay<'_> {
    fn drop(&mut self) {
        self.note(0);
    }
}
