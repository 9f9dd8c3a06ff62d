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
use super::{BackingFault, BackingUse, add};
use crate::core::{Core, Failure, Notice, until};
use crate::handlers::{Progress, later};
use crate::journal::records::Record;
use crate::store::Piece;
use reactor::Class;
use reactor::backing::{BackingFile, CALL_SIZE_MAX};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use wire::messages::{BackingPlace, Empty, NoteCarriedRequest, WriteShareReply, WriteShareRequest, flush_states};
use wire::{Decode, FileId, Kind};

/// Wishes that are kept; those that have ended go first.
const SHARES_MAX: usize = 65_536;

/// Synced files that are remembered.
const SYNCED_MAX: usize = 65_536;

/// Chunks that are looked at in one step of the loop.
pub const LOOKS_AT_ONCE: u64 = 1024;

type ShareResult = Result<(), Failure>;

/// A wish.
pub struct ShareWrite {
    wish: u64,
    is_begun: Cell<bool>,
    is_changed: Cell<bool>,
    is_done: Cell<bool>,
    done: Notice<ShareResult>,
    /// Bytes that were written so far.
    written: Cell<u64>,
    patience: Patience,
    /// An earlier wish about the file that is at work still.
    before: RefCell<Option<Rc<ShareWrite>>>,
}

impl BackingUse {
    /// Something of a file has changed here.
    pub fn note_change(&self, file: FileId) {
        add(&self.counters.changes, 1);
        let mut synced = self.synced.borrow_mut();
        if !synced.is_empty() {
            synced.remove(&file.0);
        }
        drop(synced);
        let shares = self.shares.borrow();
        if let Some(share) = shares.get(&file.0)
            && !self.has_fault(BackingFault::LosesWritesInFlush)
        {
            share.is_changed.set(true);
        }
    }

    /// Somebody has synced a file.
    pub fn note_synced(&self, file: FileId) {
        let mut synced = self.synced.borrow_mut();
        if synced.len() < SYNCED_MAX {
            synced.insert(file.0);
        }
    }

    pub(super) fn is_synced(&self, file: FileId) -> bool {
        self.synced.borrow().contains(&file.0)
    }

    /// The wish about a file, if it is this one.
    pub(super) fn share(&self, file: FileId, wish: u64) -> Option<Rc<ShareWrite>> {
        self.shares.borrow().get(&file.0).filter(|share| share.wish == wish).cloned()
    }

    pub(super) fn is_changed_since(&self, file: FileId, wish: u64) -> bool {
        self.share(file, wish).is_none_or(|share| share.is_changed.get())
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
        core.put_carried(file, place, &|| core.backing().is_changed_since(file, wish)).await?;
        Ok(Empty {})
    })
}

impl Core {
    /// A file is cut by its home: what a flush writes of it right now counts as changed.
    pub fn note_cut(&self, file: FileId) {
        if let Some(backing) = &self.backing {
            backing.note_change(file);
        }
    }

    /// The tree, or a refusal of what is asked about one.
    pub(super) fn check_backing(&self) -> Result<&BackingUse, Failure> {
        let words = "there is no backing directory";
        self.backing.as_ref().ok_or_else(|| Failure::with_text(wire::Status::Invalid, words))
    }

    /// Notes where a file is behind, with all that was here of it, or but for what was changed since, which is asked at
    /// last: what is changed after that is noted in the journal.
    pub(super) async fn put_carried(
        self: &Rc<Self>,
        file: FileId,
        place: BackingPlace,
        is_written: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        if self.is_journal_low() {
            self.checkpoints.finished().wait().await;
        }
        let (known, kind) = {
            let tables = self.tables.borrow();
            (tables.backing.place(file).map(|known| (known.base, known.carried)), tables.inodes.kind(file))
        };
        let base = if file.is_from_behind() { known.map_or(place.base, |(base, _)| base.min(place.base)) } else { 0 };
        let is_written = is_written();
        let carried = match known {
            _ if self.backing().has_fault(BackingFault::ForgetsEvicted) => base,
            // Only files have their inodes elsewhere.
            _ if !is_written && kind.is_none_or(|kind| kind == Kind::File) => place.size,
            Some((_, carried)) => carried,
            None => base,
        };
        self.change([Record::Carried { id: file, place: BackingPlace { base, carried, ..place }, is_written }])
    }

    /// Begins to write what is here of a file, or joins whoever does at the same wish; waits a moment for the end.
    pub(super) async fn write_share(self: &Rc<Self>, request: WriteShareRequest) -> WriteShareReply {
        let (file, wish) = (request.file, request.wish);
        let known = self.backing().share(file, wish);
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
        let share = Rc::new(ShareWrite {
            wish: request.wish,
            is_begun: Cell::new(false),
            is_changed: Cell::new(false),
            is_done: Cell::new(false),
            done: Notice::new(),
            written: Cell::new(0),
            patience: Rc::new(Cell::new(request.patience)),
            before: RefCell::new(None),
        });
        let mut shares = self.backing().shares.borrow_mut();
        if shares.len() >= SHARES_MAX {
            shares.retain(|_, share| !share.is_done.get());
        }
        if let Some(before) = shares.insert(request.file.0, share.clone()) {
            // It need not go on.
            before.is_changed.set(true);
            let is_at_work = before.is_begun.get() && !before.is_done.get();
            share.before.replace(if is_at_work { Some(before) } else { before.before.take() });
        }
        share
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
            own.is_done.set(true);
            own.done.tell(result.map_err(|failure| match failure.text.is_empty() {
                true => Failure::with_text(failure.status, format!("{:?}", failure.status)),
                false => failure,
            }));
        });
    }

    async fn write_share_now(self: &Rc<Self>, share: &ShareWrite, request: &WriteShareRequest) -> ShareResult {
        let backing = self.backing();
        let failed = |error| backing.failure(error);
        let _chunk_use = self.use_file(request.file);
        let is_home = self.cluster.home_of(request.file) == Some(self.index);
        if !is_home {
            // Who holds a file has asked for its place; but perhaps he has not heard yet.
            self.know_place(request.file, self.reactor.now() + self.options.timeout).await?;
        }
        let chunks = self.chunks_here(request).await;
        let absent = self.absent_below(request).await;
        if chunks.is_empty() && absent.is_none() {
            return Ok(());
        }
        let target = async { backing.tree.root().await?.open_to_write(&request.path).await };
        let target = target.await.map_err(failed)?;
        if share.is_changed.get() {
            return Ok(());
        }
        // The home copies its own absent chunks, with those of servers that know nothing of the file.
        if let Some(old) = absent.filter(|_| !is_home) {
            let wants = |index| {
                self.cluster.chunk_server(request.file, &request.layout, index) == self.index
                    && self.tables.borrow().backing.get(request.file).is_some_and(|known| known.is_absent(index))
            };
            let copy = BaseCopy {
                file: request.file,
                old: &old,
                layout: &request.layout,
                size: request.size,
                is_over: &|| share.is_changed.get(),
                written: &share.written,
            };
            self.copy_base(copy, &wants, &target, &share.patience).await?;
        }
        for index in chunks {
            self.write_chunk(share, request, index, &target).await?;
            // It is written anew in any case.
            if share.is_changed.get() {
                return Ok(());
            }
        }
        // The home syncs the file when all have written.
        if !is_home && !backing.has_fault(BackingFault::SyncsNothing) {
            target.sync().await.map_err(failed)?;
        }
        Ok(())
    }

    /// The chunks of a file that have bytes here, or zeros that are not behind.
    async fn chunks_here(self: &Rc<Self>, request: &WriteShareRequest) -> BTreeSet<u64> {
        let (file, chunk_size) = (request.file, u64::from(request.layout.chunk_size));
        let mut found: BTreeSet<u64> = match self.tables.borrow().backing.get(file) {
            Some(taken_up) => taken_up.standings().map(|(index, _)| index).collect(),
            None => BTreeSet::new(),
        };
        let mut from = 0;
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
        for index in 0..limit {
            if index.is_multiple_of(LOOKS_AT_ONCE) && index > 0 {
                self.reactor.yield_now().await;
            }
            let is_absent = || self.tables.borrow().backing.get(request.file).is_some_and(|it| it.is_absent(index));
            if self.cluster.chunk_server(request.file, &request.layout, index) == self.index && is_absent() {
                return Some(place);
            }
        }
        None
    }

    /// Writes a chunk of which all that counts is here.
    async fn write_chunk(
        self: &Rc<Self>,
        share: &ShareWrite,
        request: &WriteShareRequest,
        index: u64,
        target: &BackingFile,
    ) -> ShareResult {
        let (file, chunk_size) = (request.file, u64::from(request.layout.chunk_size));
        let start = index * chunk_size;
        let size = request.size.saturating_sub(start).min(chunk_size) as u32;
        // What was there before has other bytes where zeros are here.
        let (is_absent, writes_zeros) = match self.tables.borrow().backing.get(file) {
            Some(taken_up) => (taken_up.is_absent(index), taken_up.begins_below_base(index)),
            None => (false, false),
        };
        let mut offset = 0;
        while offset < size && !is_absent && !share.is_changed.get() {
            let part = (size - offset).min(CALL_SIZE_MAX as u32);
            self.flush_turn(&share.patience, u64::from(part)).await;
            let read = self.store.read(file.0, index, offset, part)?;
            let has_bytes = read.pieces.iter().any(|piece| matches!(piece, Piece::Bytes(_)));
            if has_bytes || writes_zeros {
                let mut bytes = Vec::with_capacity(part as usize);
                read.append_to(&mut bytes);
                let moved = target.write(start + u64::from(offset), bytes).await.0;
                let written = moved.map_err(|error| self.backing().failure(error))? as u64;
                add(&share.written, written);
                add(&self.backing().counters.carried_bytes, written);
            }
            offset += part;
        }
        Ok(())
    }
}
