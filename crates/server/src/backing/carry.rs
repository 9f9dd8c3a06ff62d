//! Carrying one inode behind, at its home: a file is written whole to a hidden name in the directory where it belongs,
//! by all servers that have bytes of it, and renamed into place when all of it is there and synced, and nothing of it
//! was changed meanwhile. Directories and symbolic links go the same way, without bytes.
//!
//! Invariants
//! 1. Who may replace what is behind is known: the rename happens only if the name has what the wish says, or nothing
//!    where it says nothing. Else it is a conflict (`conflicts`).
//! 2. Before the rename the name's server has journalled what is about to be there, and this server the place that the
//!    inode is about to have: so a later life finds its own work by the inode's number.
//! 3. Chunks that are absent come from the place of before, which is looked at before that and after it. Until this
//!    server has journalled the new place nobody is told the old one (`moving`).
//! 4. What is written counts as carried only when all holders have said that nothing was changed since they began.

use super::attributes_behind::{owner_wanted, set_as_far_as_allowed};
use super::base_copy::BaseCopy;
use super::conflicts::is_conflict;
use super::flush::WAIT_NS;
use super::in_place::InPlace;
use super::pace::Patience;
use super::shared_syncs::SMALL_FILE_SIZE;
use super::shares::CarriedShare;
use super::wishes::{Wish, WishState};
use super::{BackingFault, BackingUse, add, joined};
use crate::core::{Core, Failure, Notice, all, until};
use crate::files::inodes::Inode;
use crate::handlers::{Progress, later};
use crate::process::options::FlushPolicy;
use reactor::backing::{AttributeChange, BackingAttributes, BackingDirectory, FileKind};
use reactor::{Class, LocalFuture, Nanos};
use std::cell::Cell;
use std::rc::Rc;
use wire::messages::*;
use wire::{Attributes, Decode, FileId, Kind, Operation, Status};

/// Attempts at a file that is written to meanwhile.
const ATTEMPTS_MAX: u32 = 3;
const ATTEMPT_PAUSE_NS: Nanos = 200_000_000;
/// Wishes that are kept; those that have ended go first.
pub const CARRIES_MAX: usize = 4096;
/// What a directory has to wait for that takes another one's name.
pub const NOT_EMPTY: &str = "the directory is not empty there";
/// Why a file has not gone for which there was no moment.
const WRITTEN_MEANWHILE: &str = "it is written to all the time";
/// Bits of rights while a file is written.
const HIDDEN_MODE: u32 = 0o600;

/// A wish to carry an inode, and what came of it.
pub struct CarryTask {
    wish: u64,
    done: Notice<Result<Carried, Failure>>,
    state: WishState,
    pub patience: Patience,
    /// Bytes that were written so far.
    written: Cell<u64>,
    /// Other names that it has behind are none of it any more.
    pub has_parted: Cell<bool>,
}

impl Wish for CarryTask {
    fn state(&self) -> &WishState {
        &self.state
    }
}

/// An inode that is behind now.
#[derive(Clone)]
pub struct Carried {
    pub known: KnownBehind,
    /// What became of somebody else's that had its name.
    pub settled: Vec<u8>,
}

/// `CarryInode`, at the home.
pub fn carry_inode(core: &Rc<Core>, params: &[u8]) -> Result<Progress, Failure> {
    let request = CarryInodeRequest::from_bytes(params)?;
    core.check_backing()?;
    core.check_home(request.id)?;
    let core = core.clone();
    later(async move { Ok(core.carry_inode(request).await) })
}

/// Whether something behind is what is known of it. Of a directory its inode counts.
pub fn is_known(found: &BackingAttributes, known: &KnownBehind) -> bool {
    let identity = &found.identity;
    match found.kind {
        FileKind::Directory => known.inode == identity.inode || known.inode == 0,
        _ => {
            let is_same = (identity.size, identity.mtime, identity.ctime) == (known.size, known.mtime, known.ctime);
            let is_like = (identity.size, identity.mtime) == (known.size, known.mtime);
            let is_same = is_same || known.ctime == CTIME_OF_LINKS && is_like;
            identity.inode == known.inode && (is_same || known.ctime == CTIME_UNKNOWN)
        }
    }
}
///  Whether a name of something behind may go by which it is known: it is what is known of it, or has other names that
/// were given to it here, so that nothing is lost with this one, whatever has become of the file meanwhile. Of those
/// that
/// go so one goes at a time.
pub fn may_lose_name(found: &BackingAttributes, known: &KnownBehind) -> bool {
    let is_one_of_several = known.may_have_links() && found.link_count > 1 && found.kind != FileKind::Directory;
    is_known(found, known) || is_one_of_several && found.identity.inode == known.inode
}

/// Whether something behind is what was about to be put there, whose ctime its rename may have moved.
pub fn is_next(found: &BackingAttributes, next: &KnownBehind) -> bool {
    let identity = &found.identity;
    match found.kind {
        FileKind::Directory => next.inode == 0 || next.inode == identity.inode,
        _ => {
            let is_same = (identity.size, identity.mtime) == (next.size, next.mtime);
            identity.inode == next.inode && (is_same || next.ctime == CTIME_UNKNOWN)
        }
    }
}

/// By what something is known that was found.
pub fn known_found(found: &BackingAttributes) -> KnownBehind {
    let identity = &found.identity;
    KnownBehind { inode: identity.inode, size: identity.size, mtime: identity.mtime, ctime: identity.ctime }
}

/// By what something is known that was found where it was expected. Of a file that is being written to its inode counts
/// still: the rest is safe, and nobody else's, when an update of it has ended well.
pub fn known_as(found: &BackingAttributes, expected: &KnownBehind) -> KnownBehind {
    let known = known_found(found);
    match expected.ctime {
        CTIME_UNKNOWN => known.by_inode(),
        CTIME_OF_LINKS => KnownBehind { ctime: CTIME_OF_LINKS, ..known },
        _ => known,
    }
}

pub(super) fn words(text: impl Into<String>) -> Failure {
    Failure::with_text(Status::Io, text)
}

impl BackingUse {
    /// What a name stands for; nothing where there is none.
    pub(super) async fn look_for(
        &self,
        directory: &BackingDirectory,
        name: &[u8],
    ) -> Result<Option<BackingAttributes>, Failure> {
        match directory.look(name).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(self.failure(error)),
        }
    }

    /// Removes a name of our own, if it is there.
    pub(super) async fn remove_hidden(&self, directory: &BackingDirectory, name: &[u8]) -> Result<(), Failure> {
        match directory.remove(name).await {
            Err(error) if !error.is_not_found() => Err(self.failure(error)),
            _ => Ok(()),
        }
    }
}

impl Core {
    /// Begins to carry an inode, or joins whoever does at the same wish; waits a moment for the end.
    pub(super) async fn carry_inode(self: &Rc<Self>, request: CarryInodeRequest) -> CarryInodeReply {
        let at = |state, written, reason: &[u8], has_parted| {
            let reason = reason.to_vec();
            CarryInodeReply { state, behind: None, bytes: written, reason, has_parted }
        };
        // Whoever lists names may have done so before another wish has parted some.
        let other = |state| at(state, 0, b"", state == flush_states::RUNNING);
        let known = self.backing().carries.get(&request.id.0);
        let task = match known {
            Some(task) if task.wish == request.wish => task,
            Some(task) if !task.state.is_ended() => {
                // That of somebody who has gone; it ends by itself, and sooner if it is waited for.
                task.patience.set(request.patience.min(task.patience.get()));
                until(&self.reactor, self.reactor.now() + WAIT_NS, task.done.wait()).await;
                return other(flush_states::RUNNING);
            }
            _ if !self.may_carry(&request) => return other(flush_states::NOT_NOW),
            _ => self.start_carry(request.clone()),
        };
        task.patience.set(request.patience.min(task.patience.get()));
        let ended = until(&self.reactor, self.reactor.now() + WAIT_NS, task.done.wait()).await;
        if ended.is_some() {
            task.state.settle();
        }
        let (bytes, has_parted) = (task.written.get(), task.has_parted.get());
        let at = |state, reason: &[u8]| at(state, bytes, reason, has_parted);
        match ended {
            None => at(flush_states::RUNNING, b""),
            // Written to meanwhile, and nobody waits for it.
            Some(Err(failure)) if failure.status == Status::Busy => at(flush_states::NOT_NOW, b""),
            Some(Err(failure)) if is_conflict(&failure) => at(flush_states::CONFLICT, &reason_of(&failure)),
            Some(Err(failure)) => at(flush_states::ENDED, &reason_of(&failure)),
            Some(Ok(Carried { known, settled })) => {
                CarryInodeReply { behind: Some(known), ..at(flush_states::ENDED, &settled) }
            }
        }
    }

    /// Whether an inode is being carried behind by its home, which is this server.
    pub(super) fn is_carrying(&self, id: FileId) -> bool {
        let task = self.backing.as_ref().and_then(|backing| backing.carries.get(&id.0));
        task.is_some_and(|task| !task.state.is_ended())
    }

    fn start_carry(self: &Rc<Self>, request: CarryInodeRequest) -> Rc<CarryTask> {
        let task = Rc::new(CarryTask {
            wish: request.wish,
            done: Notice::new(),
            state: WishState::default(),
            patience: Rc::new(Cell::new(request.patience)),
            written: Cell::new(0),
            has_parted: Cell::new(false),
        });
        self.backing().carries.put(self.reactor.now(), request.id.0, task.clone());
        let (core, own) = (self.clone(), task.clone());
        self.reactor.spawn(Class::Background, async move {
            let result = core.carry_now(&request, &own).await;
            add(&core.backing().counters.carried, u64::from(result.is_ok()));
            core.note_outcome(&request, &result);
            own.state.end(core.reactor.now());
            // The home itself asks for nothing more.
            core.backing().settle_own_share(request.id, core.reactor.now());
            own.done.tell(result);
        });
        task
    }

    /// Whoever has a file open is told of what keeps its contents from going; not of what is over by the next attempt,
    /// or is settled elsewhere.
    fn note_outcome(&self, request: &CarryInodeRequest, result: &Result<Carried, Failure>) {
        match result {
            _ if request.is_link() || request.is_parked() => {}
            Ok(_) => self.late_errors.forget_carry(request.id),
            // Another server is away: who needs it hears of that.
            Err(failure) if matches!(failure.status, Status::Unreachable | Status::TimedOut) => {}
            Err(failure) if matches!(failure.status, Status::Busy | Status::StaleFile) || is_conflict(failure) => {}
            Err(failure) => {
                let reason = reason_of(failure);
                let is_passing = [NOT_EMPTY, WRITTEN_MEANWHILE].iter().any(|words| words.as_bytes() == reason);
                if !is_passing {
                    self.late_errors.note_carry(request.id, &reason, self.reactor.wall_clock());
                }
            }
        }
    }

    /// Whether it is time to carry an inode.
    fn may_carry(&self, request: &CarryInodeRequest) -> bool {
        let pace = &self.backing().pace;
        let is_awaited = request.patience == flush_patience::IDLE && pace.policy() == FlushPolicy::OnClose;
        let is_open = is_awaited && self.tables.borrow().open.is_open(request.id);
        !is_open && pace.may_begin(self.reactor.now(), request.patience)
    }

    async fn carry_now(self: &Rc<Self>, request: &CarryInodeRequest, task: &Rc<CarryTask>) -> Result<Carried, Failure> {
        // Nothing of this wish is under way yet.
        self.take_next_place_as(request.id, true).await?;
        // Of one that keeps its name what is known is its place, as it is now: whoever asks may know less, where this
        // server was started again when the file had got its name and its note had not been made.
        let own = self
            .tables
            .borrow()
            .backing
            .place(request.id)
            .filter(|place| is_at(place, request))
            .map(BackingPlace::known);
        let (known, same_as) = match (&request.known, own) {
            (known, Some(own)) if known.is_none() || request.same_as == request.id => (Some(own), request.id),
            (known, _) => (known.clone(), request.same_as),
        };
        let request = &CarryInodeRequest { known, same_as, ..request.clone() };
        let inode = self.inode(request.id)?;
        if request.is_link() {
            return self.carry_link(request).await;
        }
        match inode.attributes.kind {
            Kind::Directory => self.carry_directory(request, &inode).await,
            Kind::File => self.carry_file(request, task).await,
            Kind::Symlink => self.carry_symlink(request, &inode, task).await,
            _ => Err(words("pipes, sockets and devices are not carried behind")),
        }
    }

    /// The directory that a wish is about, its path, and the name in it.
    pub(super) async fn open_parent<'a>(
        self: &Rc<Self>,
        request: &'a CarryInodeRequest,
    ) -> Result<(BackingDirectory, &'a [u8], &'a [u8]), Failure> {
        let (path, name) = match request.path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&request.path[..at], &request.path[at + 1..]),
            None => (&[][..], &request.path[..]),
        };
        // What is open still may have had another path.
        for _ in 0..2 {
            let (place, opened) = self.open_behind(request.parent, self.reactor.now() + self.options.timeout).await?;
            if *place.path == *path {
                return Ok((opened, path, name));
            }
            self.backing().tree.set_all_stale();
        }
        Err(words("its directory is moved there"))
    }

    /// The directory in which something is behind, if it is there.
    pub(super) async fn open_parent_of(self: &Rc<Self>, place: &BackingPlace) -> Result<BackingDirectory, Failure> {
        Ok(self.open_behind(place.parent, self.reactor.now() + self.options.timeout).await?.1)
    }

    async fn carry_symlink(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        inode: &Inode,
        task: &CarryTask,
    ) -> Result<Carried, Failure> {
        let backing = self.backing();
        let (parent, _, name) = self.open_parent(request).await?;
        let hidden = self.hidden_name(request.id);
        backing.remove_hidden(&parent, &hidden).await?;
        parent.make_symlink(&hidden, inode.target()).await.map_err(|error| backing.failure(error))?;
        let found = parent.look(&hidden).await.map_err(|error| backing.failure(error))?;
        let attributes = &inode.attributes;
        let change = AttributeChange {
            owner: owner_wanted(attributes, &found),
            atime: Some(attributes.atime),
            mtime: Some(attributes.mtime),
            mode: None,
        };
        set_as_far_as_allowed(backing, &parent, &hidden, change).await?;
        self.part_links(request, task).await?;
        let named = self.give_name(request, (&parent, &hidden, name), attributes, None).await;
        if named.is_err() {
            // It goes with the next attempt, if not now.
            let _: Result<(), Failure> = backing.remove_hidden(&parent, &hidden).await;
        }
        let (known, settled) = named?;
        let place = self.tables.borrow().backing.place(request.id).cloned();
        if let Some(place) = place {
            self.put_carried_here(request.id, place, &|| CarriedShare::Whole).await?;
        }
        self.note_now(request, &known).await?;
        Ok(Carried { known, settled })
    }

    async fn carry_file(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        task: &Rc<CarryTask>,
    ) -> Result<Carried, Failure> {
        let mut is_unfit = false;
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 && task.patience.get() > flush_patience::NONE {
                return Err(Status::Busy.into());
            }
            if attempt > 0 {
                self.reactor.sleep(ATTEMPT_PAUSE_NS).await;
            }
            let (parent, directory, name) = self.open_parent(request).await?;
            self.check_gives_way(request, &parent).await?;
            let size = self.inode(request.id)?.attributes.size;
            let old = self.tables.borrow().backing.place(request.id).cloned();
            if !is_unfit && old.as_ref().is_some_and(|old| self.may_be_in_place(request, old, size)) {
                match self.update_in_place(request, (&parent, directory, name), task).await? {
                    InPlace::Done(carried) => return Ok(carried),
                    InPlace::Changed => continue,
                    InPlace::Unfit => is_unfit = true,
                }
            }
            let hidden = self.hidden_name(request.id);
            // One that is written to all the time gets its name when it is quiet, or somebody syncs it; until then it
            // is kept under another.
            let is_new = old.is_none() && size >= self.options.flushing.atomic_below;
            let keeps = attempt > 0 && (is_new || request.is_snapshot());
            let mode = if keeps { share_modes::KEPT } else { share_modes::WHOLE };
            let done = self.write_and_name(request, (&parent, directory, name), (&hidden, mode), task).await;
            match done {
                Ok(Some(carried)) => return Ok(carried),
                Ok(None) => {}
                Err(failure) => {
                    // It goes with the next attempt at this file, if not now.
                    let _: Result<(), Failure> = self.backing().remove_hidden(&parent, &hidden).await;
                    return Err(failure);
                }
            }
        }
        Err(words(WRITTEN_MEANWHILE))
    }

    /// Writes a file whole and gives it its name; nothing if it was changed meanwhile.
    async fn write_and_name(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        (parent, directory, name): (&BackingDirectory, &[u8], &[u8]),
        (hidden, mode): (&[u8], u8),
        task: &Rc<CarryTask>,
    ) -> Result<Option<Carried>, Failure> {
        let (backing, file) = (self.backing(), request.id);
        let failed = |error| backing.failure(error);
        // What is copied is what is absent now.
        let _chunk_use = self.use_file(file);
        let target = (joined(directory, hidden), 0, 0);
        let Some((inode, share)) = self.begin_wish(file, target, mode, task).await? else { return Ok(None) };
        let wish = share.wish;
        let old = self.tables.borrow().backing.place(file).cloned().filter(|place| place.inode != 0);
        let attributes = &inode.attributes;
        if let Some(failure) = self.beside_still(request, (parent, name), attributes).await? {
            return Err(failure);
        }
        let target = match parent.make_file(hidden, HIDDEN_MODE).await {
            // An earlier attempt was cut off.
            Err(error) if error.is_taken() => {
                backing.remove_hidden(parent, hidden).await?;
                parent.make_file(hidden, HIDDEN_MODE).await
            }
            made => made,
        };
        let target = target.map_err(failed)?;
        // A small file is as long as what is written, in most cases.
        let is_small = attributes.size <= SMALL_FILE_SIZE;
        if !is_small {
            target.set_size(attributes.size).await.map_err(failed)?;
        }
        if let Some(old) = old.as_ref().filter(|old| old.base.max(old.carried) > 0) {
            let is_absent = |index| self.tables.borrow().backing.get(file).is_some_and(|it| it.is_absent(index));
            // Other holders copy what is absent there.
            let wants = |index| match self.cluster.chunk_server(file, &attributes.layout, index) {
                server if server == self.index => is_absent(index),
                server => !inode.holders().contains(&server),
            };
            let (layout, size) = (&attributes.layout, attributes.size);
            let copy = BaseCopy { file, old, layout, size, is_over: &|| false, written: &task.written };
            self.copy_base(copy, &wants, &target, &task.patience).await?;
        }
        if let Some(own) = backing.share(file, wish) {
            own.use_open(&target);
        }
        let holders = inode.other_holders(self.index);
        let loses = backing.has_fault(BackingFault::LosesWritesInFlush);
        let mut is_changed = self.have_all_written(&holders, &share, task).await? && !loses;
        if is_changed && mode == share_modes::WHOLE {
            drop(target);
            backing.remove_hidden(parent, hidden).await?;
            return Ok(None);
        }
        let mut written = None;
        if !is_changed || request.is_snapshot() {
            let at = (parent, hidden);
            written = Some(self.set_attributes_behind(file, attributes, old.as_ref(), at, &target).await?);
        } else if is_small {
            target.set_size(attributes.size).await.map_err(failed)?;
        }
        if !backing.has_fault(BackingFault::SyncsNothing) {
            backing.sync_file(&target, attributes.size).await?;
        }
        drop(target);
        is_changed = is_changed || self.was_changed(&holders, &share).await?;
        let is_snapshot = mode == share_modes::KEPT && request.is_snapshot();
        if is_changed && mode == share_modes::KEPT && !is_snapshot {
            self.park_changed(request, (parent, directory, hidden), attributes, (&holders, wish)).await?;
            return Ok(None);
        }
        if is_changed && !is_snapshot {
            backing.remove_hidden(parent, hidden).await?;
            return Ok(None);
        }
        self.part_links(request, task).await?;
        let (known, settled) = self.give_name(request, (parent, hidden, name), attributes, written).await?;
        self.settle_place(request, &holders, wish).await?;
        if !request.is_parked() {
            self.note_now(request, &known).await?;
        }
        self.remove_parked(request, old.as_ref()).await?;
        Ok(Some(Carried { known, settled }))
    }

    /// Begins to have a file written to a path: to a new file there, or to the inode of a number, with the bytes that
    /// it has so far. Nothing if that is of no use already.
    pub(super) async fn begin_wish(
        self: &Rc<Self>,
        file: FileId,
        (path, inode_behind, size_behind): (Vec<u8>, u64, u64),
        mode: u8,
        task: &Rc<CarryTask>,
    ) -> Result<Option<(Inode, WriteShareRequest)>, Failure> {
        // What other servers know of size and times comes into the inode, and no truncate or append is half done.
        let turn = self.turns.take(file.0).await;
        self.glimpse_in_turn(file, true, &turn).await?;
        let inode = self.inode(file)?;
        // Somebody has announced a write since he was asked, and may have written before he is asked for it.
        if !inode.announced().is_empty() && mode == share_modes::WHOLE {
            return Ok(None);
        }
        let share = WriteShareRequest {
            file,
            wish: self.reactor.random(),
            layout: inode.attributes.layout,
            size: inode.attributes.size,
            path,
            patience: task.patience.get(),
            mode,
            inode: inode_behind,
            size_behind,
        };
        self.register_share(&share);
        self.note_announced(&inode);
        Ok(Some((inode, share)))
    }

    /// Keeps a file that was changed while it was written under a hidden name, so that the next attempt need not write
    /// all of it, and what was not changed may go here.
    async fn park_changed(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        (parent, directory, hidden): (&BackingDirectory, &[u8], &[u8]),
        attributes: &Attributes,
        (holders, wish): (&[u32], u64),
    ) -> Result<(), Failure> {
        let parked = self.parked_name(request.id);
        let path = joined(directory, &parked);
        let (known, same_as, way) = (None, FileId::default(), carry_ways::PARKED);
        let request = CarryInodeRequest { path, known, same_as, way, ..request.clone() };
        self.give_name(&request, (parent, hidden, &parked), attributes, None).await?;
        self.settle_place(&request, holders, wish).await
    }

    /// Has all holders, and this server, write their shares. Whether anything was changed meanwhile.
    pub(super) async fn have_all_written(
        self: &Rc<Self>,
        holders: &[u32],
        share: &WriteShareRequest,
        task: &Rc<CarryTask>,
    ) -> Result<bool, Failure> {
        let asked = holders.iter().chain([&self.index]).map(|holder| {
            let (core, share, holder, task) = (self.clone(), share.clone(), *holder, task.clone());
            Box::pin(async move { core.have_written(holder, share, &task).await })
                as LocalFuture<Result<WriteShareReply, Failure>>
        });
        let mut is_changed = false;
        for share in all(asked.collect()).await {
            is_changed |= share?.is_changed;
        }
        Ok(is_changed)
    }

    /// Has a holder write its share, and waits for the end of that.
    async fn have_written(
        self: &Rc<Self>,
        holder: u32,
        mut share: WriteShareRequest,
        task: &Rc<CarryTask>,
    ) -> Result<WriteShareReply, Failure> {
        let mut told = 0;
        loop {
            share.patience = task.patience.get();
            let reply = self.ask_share(holder, &share).await?;
            // A holder that was started again begins anew.
            add(&task.written, reply.bytes.saturating_sub(told));
            told = reply.bytes;
            match reply.state {
                flush_states::RUNNING => {}
                _ if reply.reason.is_empty() => return Ok(reply),
                _ => return Err(words(String::from_utf8_lossy(&reply.reason))),
            }
        }
    }

    async fn ask_share(self: &Rc<Self>, holder: u32, share: &WriteShareRequest) -> Result<WriteShareReply, Failure> {
        if holder == self.index {
            return Ok(self.write_share(share.clone()).await);
        }
        self.peers.call(holder, Operation::WriteShare, share, None).await
    }

    /// Whether a file was changed since its holders began to write, or a holder has come.
    pub(super) async fn was_changed(
        self: &Rc<Self>,
        holders: &[u32],
        share: &WriteShareRequest,
    ) -> Result<bool, Failure> {
        // One that was started again is not to write anew, to what is known as it is by now.
        let share = &WriteShareRequest { mode: share_modes::QUESTION, ..share.clone() };
        for holder in holders.iter().filter(|holder| **holder != self.index) {
            let reply = self.ask_share(*holder, share).await?;
            if reply.is_changed || reply.state == flush_states::RUNNING {
                return Ok(true);
            }
        }
        // At last the home, which hears of every new holder and every truncate.
        let is_changed = self.ask_share(self.index, share).await?.is_changed;
        Ok(is_changed && !self.backing().has_fault(BackingFault::LosesWritesInFlush))
    }

    /// What a file parked while another one took its name is not needed for any more.
    async fn remove_parked(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        old: Option<&BackingPlace>,
    ) -> Result<(), Failure> {
        let Some(old) = old.filter(|old| self.is_hidden(old.name()) && !is_at(old, request)) else { return Ok(()) };
        let opened = self.open_parent_of(old).await?;
        self.backing().remove_hidden(&opened, old.name()).await
    }
}

/// The words of a failure.
pub fn reason_of(failure: &Failure) -> Vec<u8> {
    match failure.text.is_empty() {
        true => format!("{:?}", failure.status).into_bytes(),
        false => failure.text.to_vec(),
    }
}

/// Whether something is behind already where a wish wants it.
pub fn is_at(place: &BackingPlace, request: &CarryInodeRequest) -> bool {
    (place.parent, place.name()) == (request.parent, request_name(request))
}

pub fn request_name(request: &CarryInodeRequest) -> &[u8] {
    request.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}
