//! What a server has of a file, written to a file behind that is in the making. The file's home asks for it, with a
//! wish of which a server keeps the last for each file; a task does it, and the wish asked for again tells how far it
//! has come.
//!
//! Invariants
//! 1. Every change of a file on this server that comes after a wish is noted by it (`note_change`, from
//!    `Core::commit`).
//! 2. Of the wishes about one file one is at work at a time: what a call writes late, for a wish that nobody waits for
//!    any more, is not written to what a later one makes.
//! 3. A share counts as carried only if its bytes were synced behind (by this server, or by the home, which is the last
//!    to sync the file) after the last of them was written, and nothing was noted since the wish began
//!    (`note_carried`); a server that does not know the wish says that it was changed.

use super::base_copy::BaseCopy;
use super::flush::WAIT_NS;
use super::pace::Patience;
use super::table::{CarriedState, Standing};
use super::wishes::{Wish, WishState};
use super::{BackingFault, BackingUse, add};
use crate::core::{Core, Failure, Notice, until};
use crate::files::inodes::Inode;
use crate::handlers::{Progress, later};
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::store::{ChunkChanges, Piece};
use reactor::backing::{BackingFile, CALL_SIZE_MAX};
use reactor::{Class, Nanos};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use wire::messages::{
    BackingPlace, Empty, NoteCarriedRequest, WriteShareReply, WriteShareRequest, flush_states, share_modes,
};
use wire::{Decode, FileId, Kind, Layout};

/// Wishes that are kept; those that have ended go first.
pub const SHARES_MAX: usize = 65_536;

/// Chunks of a file that are known to have been changed since a wish; with more all count as changed.
const CHANGED_MAX: usize = 1024;

/// Synced files that are remembered.
const SYNCED_MAX: usize = 65_536;

/// Chunks that are looked at in one step of the loop.
pub const LOOKS_AT_ONCE: u64 = 1024;

type ShareResult = Result<(), Failure>;

/// What of a file was changed by one step on this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileChange {
    /// Nothing that chunks have.
    Attributes,
    /// Chunks, from an index to another one.
    Chunks { first: u64, limit: u64 },
    /// Nobody knows.
    All,
}

impl FileChange {
    pub fn of_chunks(change: ChunkChanges, tables: &Tables, file: FileId) -> FileChange {
        match change {
            ChunkChanges::Write { index, .. } => FileChange::Chunks { first: index, limit: index + 1 },
            ChunkChanges::Hole { start, end } => match tables.backing.place(file) {
                Some(place) if place.chunk_size > 0 => {
                    let chunk_size = u64::from(place.chunk_size);
                    FileChange::Chunks { first: start / chunk_size, limit: end.div_ceil(chunk_size) }
                }
                _ => FileChange::All,
            },
        }
    }
}

/// How much of what a server has of a file is behind.
pub enum CarriedShare {
    Whole,
    /// All but these chunks, and perhaps others of other servers.
    AllBut(BTreeSet<u64>, Layout),
    /// What was before, and perhaps more.
    Unknown,
}

/// Chunks that were changed since a wish, or nothing if that may be all.
struct ChangedChunks(Option<BTreeSet<u64>>);

impl Default for ChangedChunks {
    fn default() -> ChangedChunks {
        ChangedChunks(Some(BTreeSet::new()))
    }
}

impl ChangedChunks {
    fn add(&mut self, change: FileChange) {
        let Some(known) = &mut self.0 else { return };
        match change {
            FileChange::Attributes => {}
            FileChange::Chunks { first, limit } if limit - first <= (CHANGED_MAX - known.len()) as u64 => {
                known.extend(first..limit);
            }
            _ => self.0 = None,
        }
    }
}

/// A wish.
pub struct ShareWrite {
    wish: u64,
    layout: Layout,
    is_begun: Cell<bool>,
    /// Something of the file was changed since: anything, and which chunks.
    is_changed: Cell<bool>,
    changed: RefCell<ChangedChunks>,
    /// It was cut.
    is_cut: Cell<bool>,
    /// A later wish has come.
    pub is_late: Cell<bool>,
    /// All of this server's chunks were written, as they were when it was their turn.
    is_whole: Cell<bool>,
    state: WishState,
    done: Notice<ShareResult>,
    /// Bytes that were written so far.
    written: Cell<u64>,
    pub patience: Patience,
    /// An earlier wish about the file that is at work still.
    before: RefCell<Option<Rc<ShareWrite>>>,
    /// The file behind, where it is open here already.
    opened: RefCell<Option<BackingFile>>,
}

impl Wish for ShareWrite {
    fn state(&self) -> &WishState {
        &self.state
    }
}

impl ShareWrite {
    /// A share that is begun from now on is written to this open file.
    pub fn use_open(&self, file: &BackingFile) {
        self.opened.replace(Some(file.clone()));
    }
}

impl BackingUse {
    /// Something of a file has changed here.
    pub fn note_change(&self, file: FileId, change: FileChange) {
        add(&self.counters.changes, 1);
        let mut synced = self.synced.borrow_mut();
        if !synced.is_empty() {
            synced.remove(&file.0);
        }
        drop(synced);
        if let Some(share) = self.shares.get(&file.0)
            && !self.has_fault(BackingFault::LosesWritesInFlush)
        {
            share.is_changed.set(true);
            share.is_cut.set(share.is_cut.get() || matches!(change, FileChange::All));
            if !self.has_fault(BackingFault::LosesChunkChanges) {
                share.changed.borrow_mut().add(change);
            }
        }
    }

    /// Somebody has synced a file.
    pub fn note_synced(&self, file: FileId) {
        let mut synced = self.synced.borrow_mut();
        if synced.len() < SYNCED_MAX.min(self.memos) {
            synced.insert(file.0);
        }
    }

    pub(super) fn is_synced(&self, file: FileId) -> bool {
        self.synced.borrow().contains(&file.0)
    }

    /// The wish about a file, if it is this one.
    pub(super) fn share(&self, file: FileId, wish: u64) -> Option<Rc<ShareWrite>> {
        self.shares.get(&file.0).filter(|share| share.wish == wish)
    }

    /// The last wish of this server about a file of its own is over.
    pub(super) fn settle_own_share(&self, file: FileId, now: Nanos) {
        if let Some(share) = self.shares.get(&file.0) {
            if !share.is_begun.get() {
                share.state.end(now);
            }
            share.state.settle();
        }
    }

    /// Whether a file was cut at its home, which this server is, since a wish. A holder that was told of that before he
    /// heard of the wish takes what he wrote for what is behind, which is longer.
    pub(super) fn is_cut_since(&self, file: FileId, wish: u64) -> bool {
        self.share(file, wish).is_none_or(|share| share.is_cut.get())
    }

    /// How much of what is here of a file is behind when a wish has ended.
    pub(super) fn carried_by(&self, file: FileId, wish: u64) -> CarriedShare {
        match self.share(file, wish) {
            Some(share) if !share.is_changed.get() => CarriedShare::Whole,
            Some(share) if share.is_whole.get() => match &share.changed.borrow().0 {
                Some(changed) => CarriedShare::AllBut(changed.clone(), share.layout),
                None => CarriedShare::Unknown,
            },
            _ => CarriedShare::Unknown,
        }
    }
}

/// `WriteShare`, at a holder.
pub fn write_share(core: &Rc<Core>, params: &[u8]) -> Result<Progress, Failure> {
    let request = WriteShareRequest::from_bytes(params)?;
    core.check_backing()?;
    core.check_layout(&request.layout)?;
    let core = core.clone();
    later(async move { Ok(core.write_share(request).await) })
}

/// `NoteCarried`, at a holder.
pub fn note_carried(core: &Rc<Core>, params: &[u8]) -> Result<Progress, Failure> {
    let NoteCarriedRequest { file, wish, place } = NoteCarriedRequest::from_bytes(params)?;
    core.check_backing()?;
    // It is gone, and this comes late.
    if core.tables.borrow().backing.place(file).is_none() && core.store.share(file.0).is_none() {
        return Ok(Progress::Done);
    }
    let core = core.clone();
    later(async move {
        core.put_carried(file, place, &|| core.backing().carried_by(file, wish)).await?;
        // A later wish may have come meanwhile.
        if let Some(share) = core.backing().share(file, wish) {
            share.state.settle();
        }
        Ok(Empty {})
    })
}

impl Core {
    /// A file is cut by its home: what a flush writes of it right now counts as changed.
    pub fn note_cut(&self, file: FileId) {
        if let Some(backing) = &self.backing {
            backing.note_change(file, FileChange::All);
        }
    }

    /// The tree, or a refusal of what is asked about one.
    pub(super) fn check_backing(&self) -> Result<&BackingUse, Failure> {
        let words = "there is no backing directory";
        self.backing.as_ref().ok_or_else(|| Failure::with_text(wire::Status::Invalid, words))
    }

    /// Notes where a file is behind, and how much of what was here of it, which is asked at last: what is changed after
    /// that is noted in the journal.
    pub(super) async fn put_carried(
        self: &Rc<Self>,
        file: FileId,
        place: BackingPlace,
        carried: &dyn Fn() -> CarriedShare,
    ) -> Result<(), Failure> {
        if self.is_journal_low() {
            self.checkpoints.finished().wait().await;
        }
        let (known, kind) = {
            let tables = self.tables.borrow();
            (tables.backing.place(file).map(|known| (known.base, known.carried)), tables.inodes.kind(file))
        };
        let base = if file.is_from_behind() { known.map_or(place.base, |(base, _)| base.min(place.base)) } else { 0 };
        let (state, changed) = match carried() {
            CarriedShare::Whole => (CarriedState::Whole, BTreeSet::new()),
            CarriedShare::AllBut(mut changed, layout) => {
                // Holes are made at all holders, and in chunks of which nothing is here: all of these is behind.
                let tables = self.tables.borrow();
                let is_absent = |index: u64| tables.backing.get(file).is_some_and(|known| known.is_absent(index));
                changed.retain(|index| {
                    self.cluster.chunk_server(file, &layout, *index) == self.index && !is_absent(*index)
                });
                (CarriedState::Partly, changed)
            }
            CarriedShare::Unknown => (CarriedState::Unknown, BTreeSet::new()),
        };
        let carried = match known {
            _ if self.backing().has_fault(BackingFault::ForgetsEvicted) => base,
            // Only files have their inodes elsewhere.
            _ if state != CarriedState::Unknown && kind.is_none_or(|kind| kind == Kind::File) => place.size,
            Some((_, carried)) => carried,
            None => base,
        };
        let put = |index| Record::StandingPut { file, index, standing: Standing::Dirty };
        let carried = Record::Carried { id: file, place: BackingPlace { base, carried, ..place }, state };
        self.change(std::iter::once(carried).chain(changed.into_iter().map(put)).collect::<Vec<_>>())
    }

    /// Begins to write what is here of a file, or joins whoever does at the same wish; waits a moment for the end.
    pub(super) async fn write_share(self: &Rc<Self>, request: WriteShareRequest) -> WriteShareReply {
        let (file, wish) = (request.file, request.wish);
        let known = self.backing().share(file, wish);
        if known.is_none() && request.mode == share_modes::QUESTION {
            return WriteShareReply { state: flush_states::ENDED, is_changed: true, bytes: 0, reason: Vec::new() };
        }
        let share = known.unwrap_or_else(|| self.register_share(&request));
        share.patience.set(request.patience.min(share.patience.get()));
        if !share.is_begun.replace(true) {
            self.begin_share(&share, request);
        }
        let ended = until(&self.reactor, self.reactor.now() + WAIT_NS, share.done.wait()).await;
        let (state, reason) = match ended {
            None => (flush_states::RUNNING, Vec::new()),
            Some(Ok(())) => (flush_states::ENDED, Vec::new()),
            Some(Err(failure)) => (flush_states::ENDED, failure.text.into_owned()),
        };
        WriteShareReply { state, is_changed: share.is_changed.get(), bytes: share.written.get(), reason }
    }

    /// From here on changes of the file are noted.
    pub(super) fn register_share(&self, request: &WriteShareRequest) -> Rc<ShareWrite> {
        let is_own = self.cluster.home_of(request.file) == Some(self.index);
        let share = Rc::new(ShareWrite {
            wish: request.wish,
            layout: request.layout,
            is_begun: Cell::new(false),
            is_changed: Cell::new(false),
            changed: RefCell::default(),
            is_cut: Cell::new(false),
            is_late: Cell::new(false),
            is_whole: Cell::new(false),
            state: if is_own { WishState::own() } else { WishState::default() },
            done: Notice::new(),
            written: Cell::new(0),
            patience: Rc::new(Cell::new(request.patience)),
            before: RefCell::new(None),
            opened: RefCell::new(None),
        });
        // What was written beyond the size that the home knows is none of this, up to the end of the chunk.
        if self.store.share(request.file.0).is_some_and(|known| known.end > request.size) {
            let index = request.size / u64::from(request.layout.chunk_size);
            share.is_changed.set(true);
            share.changed.borrow_mut().add(FileChange::Chunks { first: index, limit: index + 1 });
        }
        if let Some(before) = self.backing().shares.put(self.reactor.now(), request.file.0, share.clone()) {
            // It need not go on.
            before.is_changed.set(true);
            before.is_late.set(true);
            let is_at_work = before.is_begun.get() && !before.state.is_ended();
            share.before.replace(if is_at_work { Some(before) } else { before.before.take() });
        }
        share
    }

    /// What somebody has announced is not in the inode yet, so it is carried once more.
    pub(super) fn note_announced(&self, inode: &Inode) {
        if !inode.announced().is_empty() {
            self.backing().note_change(inode.attributes.id, FileChange::Attributes);
        }
    }

    fn begin_share(self: &Rc<Self>, share: &Rc<ShareWrite>, request: WriteShareRequest) {
        let (core, own) = (self.clone(), share.clone());
        self.reactor.spawn(Class::Background, async move {
            // A write of it that comes late would be one to what this one writes.
            let before = own.before.take();
            if let Some(before) = before {
                let _: ShareResult = before.done.wait().await;
            }
            let result = core.write_share_now(&own, &request).await;
            own.state.end(core.reactor.now());
            own.done.tell(result.map_err(|failure| match failure.text.is_empty() {
                true => Failure::with_text(failure.status, format!("{:?}", failure.status)),
                false => failure,
            }));
        });
    }

    async fn write_share_now(self: &Rc<Self>, share: &ShareWrite, request: &WriteShareRequest) -> ShareResult {
        let backing = self.backing();
        let _chunk_use = self.use_file(request.file);
        let is_home = self.cluster.home_of(request.file) == Some(self.index);
        if !is_home {
            // Who holds a file has asked for its place; but perhaps he has not heard yet.
            self.know_place(request.file, self.reactor.now() + self.options.timeout).await?;
        }
        let is_over = || share.is_late.get() || request.mode == share_modes::WHOLE && share.is_changed.get();
        let opened = share.opened.take().map_or_else(OnceCell::new, OnceCell::from);
        let target = Target { request, share, file: opened };
        match request.mode {
            share_modes::IN_PLACE => self.write_dirty(&target, is_home).await?,
            _ => {
                // The home copies its own absent chunks, with those of servers that know nothing of the file. What
                // comes here meanwhile is written with the others.
                if let Some(old) = self.absent_below(request).await.filter(|_| !is_home) {
                    self.copy_absent(&target, &old, &is_over).await?;
                }
                for index in self.chunks_here(request).await {
                    // It is written anew in any case.
                    if is_over() {
                        return Ok(());
                    }
                    self.write_chunk(&target, index, false).await?;
                }
            }
        }
        // The home syncs the file when all have written.
        if let Some(file) = target.file.get()
            && !is_home
            && !backing.has_fault(BackingFault::SyncsNothing)
        {
            backing.sync_file(file, request.size).await?;
        }
        share.is_whole.set(!is_over());
        Ok(())
    }

    async fn copy_absent(
        self: &Rc<Self>,
        target: &Target<'_>,
        old: &BackingPlace,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        let WriteShareRequest { file, layout, size, .. } = target.request;
        let wants = |index| {
            self.cluster.chunk_server(*file, layout, index) == self.index
                && self.tables.borrow().backing.get(*file).is_some_and(|known| known.is_absent(index))
        };
        let copy = BaseCopy { file: *file, old, layout, size: *size, is_over, written: &target.share.written };
        self.copy_base(copy, &wants, target.open(self).await?, &target.share.patience).await
    }

    /// The chunks of a file that have bytes here, or zeros that are not behind.
    async fn chunks_here(self: &Rc<Self>, request: &WriteShareRequest) -> BTreeSet<u64> {
        let file = request.file;
        let found: BTreeSet<u64> = match self.tables.borrow().backing.get(file) {
            Some(taken_up) => taken_up.standings().map(|(index, _)| index).collect(),
            None => BTreeSet::new(),
        };
        self.add_chunks_with_data(request, 0, found).await
    }

    /// Adds those that have bytes here, from a chunk on.
    pub(super) async fn add_chunks_with_data(
        self: &Rc<Self>,
        request: &WriteShareRequest,
        first: u64,
        mut found: BTreeSet<u64>,
    ) -> BTreeSet<u64> {
        let (file, chunk_size) = (request.file, u64::from(request.layout.chunk_size));
        let mut from = first * chunk_size;
        while from < request.size {
            match self.store.next_data(file.0, from) {
                (Some(offset), true) => {
                    found.insert(offset / chunk_size);
                    from = (offset / chunk_size + 1) * chunk_size;
                }
                (Some(offset), false) => from = offset.max(from + 1),
                (None, _) => break,
            }
            if found.len().is_multiple_of(1024) {
                self.reactor.yield_now().await;
            }
        }
        found
    }

    /// The place of a file, if any of its chunks that belong here is there alone.
    async fn absent_below(self: &Rc<Self>, request: &WriteShareRequest) -> Option<BackingPlace> {
        let place = self.tables.borrow().backing.place(request.file).filter(|place| place.inode != 0).cloned()?;
        let has_evicted = |taken_up: &super::table::TakenUp| taken_up.has_evicted();
        if self.tables.borrow().backing.get(request.file).is_some_and(has_evicted) {
            return Some(place);
        }
        let limit = place.base.min(request.size).div_ceil(u64::from(request.layout.chunk_size));
        let (mut from, mut looks) = (0, 0);
        loop {
            let next = |known: &super::table::TakenUp| known.next_absent(from);
            let index = self.tables.borrow().backing.get(request.file).and_then(next).filter(|index| *index < limit)?;
            if self.cluster.chunk_server(request.file, &request.layout, index) == self.index {
                return Some(place);
            }
            from = index + 1;
            looks += 1;
            if looks % LOOKS_AT_ONCE == 0 {
                self.reactor.yield_now().await;
            }
        }
    }

    /// Writes a chunk of which all that counts is here; its zeros too, if there may be other bytes.
    pub(super) async fn write_chunk(
        self: &Rc<Self>,
        target: &Target<'_>,
        index: u64,
        writes_zeros: bool,
    ) -> Result<(), Failure> {
        let (share, request) = (target.share, target.request);
        let (file, chunk_size) = (request.file, u64::from(request.layout.chunk_size));
        let start = index * chunk_size;
        let size = request.size.saturating_sub(start).min(chunk_size) as u32;
        // What was there before has other bytes where zeros are here.
        let (is_absent, is_below_base) = match self.tables.borrow().backing.get(file) {
            Some(taken_up) => (taken_up.is_absent(index), taken_up.begins_below_base(index)),
            None => (false, false),
        };
        let mut offset = 0;
        while offset < size && !is_absent && !share.is_late.get() {
            let part = (size - offset).min(CALL_SIZE_MAX as u32);
            self.flush_turn(&share.patience, u64::from(part)).await;
            let read = self.with_room(|| self.store.read(file.0, index, offset, part)).await?;
            let has_bytes = read.pieces.iter().any(|piece| matches!(piece, Piece::Bytes(_)));
            if has_bytes || is_below_base || writes_zeros {
                let mut bytes = Vec::with_capacity(part as usize);
                read.append_to(&mut bytes);
                bytes.resize(part as usize, 0);
                self.write_behind(target, start + u64::from(offset), bytes).await?;
            }
            offset += part;
        }
        Ok(())
    }

    /// Writes bytes of a share behind.
    pub(super) async fn write_behind(
        self: &Rc<Self>,
        target: &Target<'_>,
        offset: u64,
        bytes: Vec<u8>,
    ) -> Result<(), Failure> {
        let backing = self.backing();
        let moved = target.open(self).await?.write(offset, bytes).await.0;
        let written = moved.map_err(|error| backing.failure(error))? as u64;
        add(&target.share.written, written);
        add(&backing.counters.carried_bytes, written);
        Ok(())
    }
}

/// The file behind to which a share is written; opened when something is.
pub struct Target<'a> {
    pub request: &'a WriteShareRequest,
    pub share: &'a ShareWrite,
    file: OnceCell<BackingFile>,
}

impl Target<'_> {
    /// Errors: there is another file by now, of one that is updated in place.
    pub async fn open(&self, core: &Rc<Core>) -> Result<&BackingFile, Failure> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let backing = core.backing();
        let (path, inode) = (&self.request.path, self.request.inode);
        let mut is_anew = false;
        loop {
            let opened = async { backing.tree.root().await?.open_to_write(path).await };
            let opened = opened.await.map_err(|error| backing.failure(error))?;
            if inode == 0 || opened.look().await.map_err(|error| backing.failure(error))?.identity.inode == inode {
                return Ok(self.file.get_or_init(|| opened));
            }
            if is_anew {
                return Err(backing.changed(path));
            }
            opened.set_stale();
            is_anew = true;
        }
    }
}
