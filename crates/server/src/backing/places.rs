//! Where things are behind: asked for at their homes, once.

use super::{BackingUse, Brought, joined};
use crate::core::{Core, Failure, Notice};
use crate::handlers::Progress;
use crate::journal::records::Record;
use crate::store::FastMap;
use reactor::backing::{BackingDirectory, BackingError};
use reactor::{Class, LocalFuture, Nanos};
use std::cell::Cell;
use std::rc::Rc;
use wire::messages::{AskCarriedReply, AskCarriedRequest, AskPlaceRequest, BackingPlace};
use wire::{Decode, Encode, FileId, Kind, Operation, Status};

/// Between two questions for the place of a file that is being moved.
const BUSY_PAUSE_NS: Nanos = 20_000_000;
/// Bytes of directories that are remembered, at most.
pub const PATHS_SIZE_MAX: usize = 16 << 20;
/// Of one beside its path.
const PLACE_SIZE: usize = 96;

/// Where a directory is behind, and the number of its inode there.
#[derive(Clone)]
pub struct DirectoryBehind {
    pub path: Rc<[u8]>,
    pub inode: u64,
}

/// A directory, where it is and open; or why not.
pub type OpenedBehind = Result<(DirectoryBehind, BackingDirectory), Failure>;

/// Where directories of other servers are.
#[derive(Default)]
pub struct RememberedPlaces {
    places: FastMap<u64, DirectoryBehind>,
    size: usize,
}

impl RememberedPlaces {
    /// `memos`: of how many at most.
    fn put(&mut self, directory: FileId, place: DirectoryBehind, memos: usize) {
        if self.size >= PATHS_SIZE_MAX || self.places.len() >= memos {
            *self = RememberedPlaces::default();
        }
        self.size += PLACE_SIZE + place.path.len();
        if let Some(before) = self.places.insert(directory.0, place) {
            self.size -= PLACE_SIZE + before.path.len();
        }
    }

    /// Forgets where a directory is, if that is what is remembered.
    fn forget(&mut self, directory: FileId, place: &DirectoryBehind) -> bool {
        let is_it = |known: &&DirectoryBehind| known.inode == place.inode;
        // By then it may have another path.
        let Some(size) = self.places.get(&directory.0).filter(is_it).map(|known| PLACE_SIZE + known.path.len()) else {
            return false;
        };
        self.places.remove(&directory.0);
        self.size -= size;
        true
    }
}

/// A question under way for the place of a file, shared by all who wait for it.
pub struct Ask {
    /// The file was cut or removed here meanwhile: what is answered may be from before.
    is_late: Cell<bool>,
    done: Brought,
}

/// `AskPlace`, at the home. A server that asks about a file is a holder of it from now on.
pub fn ask_place(
    core: &Rc<Core>,
    caller: &crate::core::Caller,
    params: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let id = AskPlaceRequest::from_bytes(params)?.id;
    core.check_home(id)?;
    let inode = core.inode(id)?;
    let moving = core.backing.as_ref().and_then(|backing| backing.moving.borrow().get(&id.0).cloned());
    let moved = moving.as_ref().and_then(|moving| moving.place.clone());
    if moving.is_some() && moved.is_none() {
        return Err(Failure::with_text(Status::Busy, "the file is being given its name behind"));
    }
    if moved.is_none() && core.tables.borrow().backing.next(id).is_some() {
        // Of an earlier life, perhaps: whether it has got its name is to be seen first.
        core.begin_to_settle(id);
        return Err(Failure::with_text(Status::Busy, "the file may have been given its name behind"));
    }
    let known = core.tables.borrow().backing.place(id).cloned();
    // Who asks learns the base of the home.
    let base = known.as_ref().map_or(0, |known| known.base);
    let place = moved.map(|moved| BackingPlace { base, ..moved }).or(known);
    let place = place.ok_or_else(|| Failure::new(Status::StaleFile, id))?;
    let server = caller.peer.from_server;
    if inode.attributes.kind == Kind::File && server != core.index && !inode.holders().contains(&server) {
        let mut inode = inode;
        inode.spread_mut().holders.push(server);
        core.change([Record::InodePut(inode)])?;
    }
    place.encode(reply);
    Ok(Progress::Done)
}

/// `AskCarried`, at the home.
pub fn ask_carried(core: &Rc<Core>, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = AskCarriedRequest::from_bytes(params)?;
    core.check_home(request.id)?;
    core.carried_but_for(&request).encode(reply);
    Ok(Progress::Done)
}

/// Whether bytes of a file may be at a place alone: those that never came, or that a server has evicted.
fn is_needed(place: &BackingPlace) -> bool {
    place.base > 0 || place.inode != 0 && place.size > 0 && place.chunk_size > 0
}

impl BackingUse {
    /// Opens a directory behind, if it is the one that was taken up, or that a flush has made.
    pub(super) async fn open_known(&self, place: &DirectoryBehind) -> Result<BackingDirectory, BackingError> {
        self.tree.root().await?.open_known(&place.path, place.inode).await
    }
}

impl Core {
    /// The same of one that something else keeps from being carried, which is noted for who has it open.
    pub(super) fn carried_but_for(&self, request: &AskCarriedRequest) -> AskCarriedReply {
        if !request.hindrance.is_empty() {
            self.late_errors.note_carry(request.id, &request.hindrance, self.reactor.wall_clock());
        }
        self.carried(request.id)
    }

    /// What is known here of an inode whose home this is, and of its place.
    pub(crate) fn carried(&self, id: FileId) -> AskCarriedReply {
        let tables = self.tables.borrow();
        let inode = tables.inodes.get(id);
        let taken_up = tables.backing.get(id);
        let is_directory = inode.as_ref().is_some_and(|inode| inode.attributes.kind == Kind::Directory);
        AskCarriedReply {
            is_directory,
            names: inode.map(|inode| inode.attributes.link_count),
            place: match (taken_up, tables.backing.next(id)) {
                (Some(taken_up), _) => Some(taken_up.place.clone()),
                // Perhaps it is there: nobody has looked.
                (None, Some(next)) => Some(BackingPlace { inode: 0, ..next.clone() }),
                (None, None) => None,
            },
            next: tables.backing.next(id).cloned(),
            is_moving: self.is_carrying(id),
            is_written: taken_up.is_none_or(|taken_up| taken_up.is_written),
            is_needed: taken_up.is_some_and(|taken_up| is_needed(&taken_up.place)) || self.lacks_extended(id),
        }
    }

    /// Asks anew where a file is behind that is not where it was. Whether that is somewhere else.
    pub(super) async fn learn_new_place(self: &Rc<Self>, file: FileId, old: &BackingPlace) -> Result<bool, Failure> {
        if self.learn_place_at_home(file, old).await? {
            return Ok(true);
        }
        self.follow_directory(file, old).await
    }

    /// Whether the directory in which a file is behind has another path by now, which it has then here as well.
    pub(super) async fn follow_directory(self: &Rc<Self>, file: FileId, old: &BackingPlace) -> Result<bool, Failure> {
        let limit = self.reactor.now() + self.options.timeout;
        self.backing().tree.set_all_stale();
        let (directory, _) = self.open_behind(old.parent, limit).await?;
        let path = joined(&directory.path, old.name());
        let now = self.tables.borrow().backing.place(file).cloned();
        let Some(now) = now.filter(|now| now.parent == old.parent) else { return Ok(false) };
        // Others may have found that out meanwhile.
        let is_news = old.path != path;
        if now.path != path {
            self.change([Record::PlacePut { id: file, place: BackingPlace { path, ..now } }])?;
        }
        Ok(is_news)
    }

    pub(super) async fn learn_place_at_home(
        self: &Rc<Self>,
        file: FileId,
        old: &BackingPlace,
    ) -> Result<bool, Failure> {
        // Its path is nobody's word: a directory above it may have been moved.
        let key = |at: &BackingPlace| (at.parent, at.name().to_vec(), at.inode, at.ctime, at.has_links);
        let is_other = |place: &BackingPlace| key(place) != key(old);
        let Some(home) = self.cluster.home_of(file) else { return Ok(false) };
        let limit = self.reactor.now() + self.options.timeout;
        if home != self.index {
            let now = self.tables.borrow().backing.place(file).cloned();
            if now.as_ref().is_none_or(is_other) {
                return Ok(true);
            }
            let place = self.ask_for_place(home, file, limit).await?;
            if !is_other(&place) {
                return Ok(false);
            }
            let known = self.tables.borrow().backing.place(file).map(|known| (known.base, known.carried));
            let (base, carried) = known.unwrap_or_default();
            self.change([Record::PlacePut { id: file, place: BackingPlace { base, carried, ..place } }])?;
            return Ok(true);
        }
        let moving = self.backing().moving.borrow().get(&file.0).cloned();
        if let Some(moving) = moving {
            if moving.place.as_ref().is_some_and(is_other) {
                return Ok(true);
            }
            moving.done.wait().await;
        }
        self.take_next_place(file).await?;
        Ok(self.tables.borrow().backing.place(file).is_none_or(is_other))
    }

    /// Where a directory that was taken up is behind, from the root of the tree.
    pub(super) async fn directory_behind(
        self: &Rc<Self>,
        directory: FileId,
        deadline: Nanos,
    ) -> Result<DirectoryBehind, Failure> {
        if directory == FileId::ROOT {
            return Ok(DirectoryBehind { path: Rc::from([]), inode: self.backing().root.identity.inode });
        }
        let behind = |place: &BackingPlace| DirectoryBehind { path: place.path.as_slice().into(), inode: place.inode };
        if let Some(place) = self.tables.borrow().backing.place(directory) {
            return Ok(behind(place));
        }
        let known = self.backing().paths.borrow().places.get(&directory.0).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let stale = || Failure::new(Status::StaleDirectory, directory);
        let home = self.cluster.home_of(directory).filter(|home| *home != self.index).ok_or_else(stale)?;
        let asked = self.ask_for_place(home, directory, deadline).await;
        let place = asked.map_err(|failure| if failure.status == Status::StaleFile { stale() } else { failure })?;
        self.backing().paths.borrow_mut().put(directory, behind(&place), self.backing().memos);
        Ok(behind(&place))
    }

    /// Opens a directory behind, if it is the one that was taken up. A flush may have made it anew, or moved it with
    /// one of the directories above it: so its home is asked again where it is not found, and then its parent.
    pub(super) fn open_behind(self: &Rc<Self>, directory: FileId, deadline: Nanos) -> LocalFuture<OpenedBehind> {
        self.open_behind_for(directory, deadline, Vec::new())
    }

    /// The same for what `asked` are in, or were about to be: none of them is asked for again.
    fn open_behind_for(
        self: &Rc<Self>,
        directory: FileId,
        deadline: Nanos,
        asked: Vec<FileId>,
    ) -> LocalFuture<OpenedBehind> {
        let core = self.clone();
        Box::pin(async move { core.open_behind_now(directory, deadline, asked).await })
    }

    async fn open_behind_now(
        self: &Rc<Self>,
        directory: FileId,
        deadline: Nanos,
        mut asked: Vec<FileId>,
    ) -> OpenedBehind {
        let backing = self.backing();
        let failure = match self.directory_behind(directory, deadline).await {
            Ok(place) => match backing.open_known(&place).await {
                Ok(opened) => return Ok((place, opened)),
                Err(error) if directory == FileId::ROOT || !error.is_gone() => return Err(backing.failure(error)),
                Err(error) => {
                    backing.paths.borrow_mut().forget(directory, &place);
                    backing.tree.set_all_stale();
                    backing.failure(error)
                }
            },
            Err(failure) if failure.status == Status::StaleDirectory => failure,
            Err(failure) => return Err(failure),
        };
        // One that is gone here, and what is in it, has its place still.
        asked.push(directory);
        let mut carried = self.ask_carried_of(directory).await?;
        let (anew, opened) = loop {
            let Some((anew, opened)) = self.open_carried(&carried, deadline, &asked).await? else {
                return Err(failure);
            };
            if !opened.as_ref().is_err_and(BackingError::is_gone) || self.reactor.now() >= deadline {
                break (anew, opened);
            }
            // A flush may have moved it while it was looked for.
            let now = self.ask_carried_of(directory).await?;
            if (&now.place, &now.next) == (&carried.place, &carried.next) {
                break (anew, opened);
            }
            carried = now;
        };
        let opened = opened.map_err(|error| backing.failure(error))?;
        let own = self.tables.borrow().backing.place(directory).cloned();
        match own {
            Some(own) if *own.path != *anew.path && own.inode == anew.inode => {
                let place = BackingPlace { path: anew.path.to_vec(), ..own.clone() };
                // Whoever gives it another name has to tell the server of the one before that it is left.
                if place.name() == own.name() {
                    self.change([Record::PlacePut { id: directory, place }])?;
                }
            }
            Some(_) => {}
            None => backing.paths.borrow_mut().put(directory, anew.clone(), backing.memos),
        }
        Ok((anew, opened))
    }

    /// Opens a directory where it is by its home's words, or about to be; or in its parent, whose place may be newer
    /// than these. None if it has no place.
    async fn open_carried(
        self: &Rc<Self>,
        carried: &AskCarriedReply,
        deadline: Nanos,
        asked: &[FileId],
    ) -> Result<Option<(DirectoryBehind, Result<BackingDirectory, BackingError>)>, Failure> {
        let backing = self.backing();
        let Some(known) = carried.place.as_ref().filter(|known| known.inode != 0) else { return Ok(None) };
        let mut anew = DirectoryBehind { path: known.path.as_slice().into(), inode: known.inode };
        let mut opened = backing.open_known(&anew).await;
        let is_gone = |opened: &Result<_, BackingError>| opened.as_ref().is_err_and(BackingError::is_gone);
        let next = carried.next.as_ref().filter(|next| next.inode == anew.inode);
        if let Some(next) = next.filter(|_| is_gone(&opened)) {
            anew.path = next.path.as_slice().into();
            opened = backing.open_known(&anew).await;
        }
        for way in std::iter::once(known).chain(next) {
            if !is_gone(&opened) || way.parent == FileId::default() || asked.contains(&way.parent) {
                continue;
            }
            let (parent, _) = self.open_behind_for(way.parent, deadline, asked.to_vec()).await?;
            let path = joined(&parent.path, way.name());
            if *path != *anew.path {
                anew.path = path.as_slice().into();
                opened = backing.open_known(&anew).await;
            }
        }
        Ok(Some((anew, opened)))
    }

    /// The path of a directory of another server, if it is remembered.
    pub(super) fn known_path(&self, directory: FileId) -> Option<Rc<[u8]>> {
        self.backing.as_ref()?.paths.borrow().places.get(&directory.0).map(|known| known.path.clone())
    }

    /// Asks until the file is not about to get another name behind.
    async fn ask_for_place(&self, home: u32, id: FileId, deadline: Nanos) -> Result<BackingPlace, Failure> {
        loop {
            let asked = self.peers.call(home, Operation::AskPlace, &AskPlaceRequest { id }, Some(deadline)).await;
            match asked {
                Err(Failure { status: Status::Busy, .. }) if self.reactor.now() < deadline => {
                    self.reactor.sleep(BUSY_PAUSE_NS).await;
                }
                Err(Failure { status: Status::Busy, .. }) => return Err(self.late()),
                other => return other,
            }
        }
    }

    /// Where something is behind, also while a flush gives it its name.
    pub(super) fn place_now(&self, id: FileId) -> Option<BackingPlace> {
        let moving = self.backing().moving.borrow();
        let moved = moving.get(&id.0).and_then(|moving| moving.place.clone());
        moved.or_else(|| self.tables.borrow().backing.place(id).cloned())
    }

    /// Whether the place of a file that was taken up has to be asked for.
    pub(super) fn lacks_place(&self, file: FileId) -> bool {
        self.is_behind(file)
            && self.cluster.home_of(file) != Some(self.index)
            && self.tables.borrow().backing.place(file).is_none()
    }

    /// Has this server know the place of a file whose home is elsewhere.
    pub(super) async fn know_place(self: &Rc<Self>, file: FileId, deadline: Nanos) -> Result<(), Failure> {
        if !self.lacks_place(file) {
            return Ok(());
        }
        let Some(home) = self.cluster.home_of(file) else { return Ok(()) };
        let under_way = self.backing().asks.borrow().get(&file.0).cloned();
        let ask = under_way.unwrap_or_else(|| {
            let ask = Rc::new(Ask { is_late: Cell::new(false), done: Notice::new() });
            self.backing().asks.borrow_mut().insert(file.0, ask.clone());
            let (core, own) = (self.clone(), ask.clone());
            self.reactor.spawn(Class::Metadata, async move {
                let result = core.ask_until_timely(home, file, &own).await;
                core.backing().asks.borrow_mut().remove(&file.0);
                own.done.tell(result);
            });
            ask
        });
        self.wait_for_backing(&ask.done, deadline).await
    }

    async fn ask_until_timely(self: &Rc<Self>, home: u32, file: FileId, ask: &Ask) -> Result<(), Failure> {
        loop {
            ask.is_late.set(false);
            let deadline = self.reactor.now() + self.options.timeout;
            let place = self.ask_for_place(home, file, deadline).await?;
            if !ask.is_late.get() {
                // Nothing of it was evicted here.
                let place = BackingPlace { carried: place.base, ..place };
                return self.change([Record::PlacePut { id: file, place }]);
            }
        }
    }

    /// The home of a file says that its chunks from a size on are gone, and all bytes behind that follow.
    pub fn shrink_base(self: &Rc<Self>, file: FileId, size: u64) -> Result<(), Failure> {
        let Some(backing) = &self.backing else { return Ok(()) };
        if let Some(ask) = backing.asks.borrow().get(&file.0) {
            ask.is_late.set(true);
        }
        let is_cut = |place: &&BackingPlace| place.base.max(place.carried) > size;
        let place = self.tables.borrow().backing.place(file).filter(is_cut).map(|place| place.cut(size));
        match place {
            Some(place) => self.change([Record::PlacePut { id: file, place }]),
            None => Ok(()),
        }
    }

    /// The home of a file says that it is gone. Returns what is to be journalled of it here.
    pub fn forget_place(&self, file: FileId) -> Record<'static> {
        let Some(backing) = &self.backing else { return Record::Nothing };
        if let Some(ask) = backing.asks.borrow().get(&file.0) {
            ask.is_late.set(true);
        }
        let is_known = self.tables.borrow().backing.place(file).is_some();
        if is_known { Record::PlaceDelete(file) } else { Record::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_have_moved_are_forgotten_by_what_they_take() {
        let place = |path: &[u8], inode| DirectoryBehind { path: path.into(), inode };
        let mut places = RememberedPlaces::default();
        places.put(FileId(1), place(b"d", 7), usize::MAX);
        assert!(!places.forget(FileId(1), &place(b"d", 8)) && !places.forget(FileId(2), &place(b"d", 7)));
        // Whoever forgets it knows it by a longer path.
        assert!(places.forget(FileId(1), &place(b"moved/to/another/one", 7)));
        assert_eq!((places.places.len(), places.size), (0, 0));
        places.put(FileId(1), place(b"longer", 7), usize::MAX);
        places.put(FileId(1), place(b"d", 7), usize::MAX);
        assert_eq!(places.size, PLACE_SIZE + 1);
    }
}
