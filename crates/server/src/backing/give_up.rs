//! Giving a name up to somebody else who has changed it behind (`--on-conflict theirs`), at the server of the name:
//! what is here loses the name, as if somebody had removed it, and what is behind is taken up in its place. The home of
//! the root asks for it, with a wish; a task does it, and the wish asked for again tells how far it has come. So no
//! request waits for another server.
//!
//! Invariants
//! 1. Before ours loses the name it is journalled that what is behind there is nobody's that we know (`UNKNOWN_THERE`):
//!    whoever is cut off leaves a name that differs, which nobody takes for a removal of theirs.
//! 2. Nothing is given up for what this cluster has put there itself, or is about to.
//! 3. Clients keep nothing of the name from before it goes until theirs is there.

use super::carry::{is_known, reason_of, words};
use super::flush::WAIT_NS;
use super::wishes::{Wish, WishState};
use crate::core::{Caller, Core, Failure, Notice, until};
use crate::handlers::{Progress, later, unlink};
use crate::journal::records::Record;
use crate::names::cursor_of;
use crate::process::statistics::NO_JOB;
use reactor::backing::{BackingAttributes, FileKind};
use reactor::log::{self, Level};
use reactor::service::Peer;
use reactor::{Class, Nanos};
use std::cell::Cell;
use std::rc::Rc;
use wire::credentials::Credentials;
use wire::handshake::Role;
use wire::identity::dentry_slot;
use wire::messages::*;
use wire::{Decode, Encode, FileId, Name, Status};

/// By what is known what nobody here knows: no file has it, so that it is somebody else's whatever it is.
pub const UNKNOWN_THERE: KnownBehind = KnownBehind { inode: u64::MAX, size: 0, mtime: 0, ctime: 0 };
/// Names that are kept; those that have ended go first.
pub const GIVE_UPS_MAX: usize = 1024;
/// Between two looks whether a name may be taken up.
const PAUSE_NS: Nanos = 5_000_000;

/// Whether a name shows what is behind by now; else something was changed meanwhile.
type GiveUpResult = Result<bool, Failure>;

/// A name that is given up.
pub struct GiveUp {
    wish: u64,
    state: WishState,
    done: Notice<GiveUpResult>,
}

/// A directory and a name in it.
pub type NameKey = (u64, Vec<u8>);

impl Wish for GiveUp {
    fn state(&self) -> &WishState {
        &self.state
    }
}

/// `GiveUpName`, at the server of a name.
pub fn give_up_name(core: &Rc<Core>, params: &[u8]) -> Result<Progress, Failure> {
    let request = GiveUpNameRequest::from_bytes(params)?;
    core.check_backing()?;
    Name::new(&request.name)?;
    if !core.owns_slot(dentry_slot(request.directory, &request.name, core.cluster.slot_count)) {
        return Err(Status::WrongServer.into());
    }
    let core = core.clone();
    later(async move { Ok(core.give_up_name(request).await) })
}

impl Core {
    /// Begins to give a name up, or joins whoever does; waits a moment for the end.
    pub(super) async fn give_up_name(self: &Rc<Self>, request: GiveUpNameRequest) -> GiveUpNameReply {
        let key = (request.directory.0, request.name.clone());
        let known = self.backing().give_ups.get(&key);
        let known = known.filter(|known| known.wish == request.wish || !known.state.is_ended());
        let give_up = known.unwrap_or_else(|| self.start_giving_up(key, request));
        let state = flush_states::ENDED;
        let ended = until(&self.reactor, self.reactor.now() + WAIT_NS, give_up.done.wait()).await;
        if ended.is_some() {
            give_up.state.settle();
        }
        match ended {
            None => GiveUpNameReply { state: flush_states::RUNNING, is_given_up: false, reason: Vec::new() },
            Some(Ok(is_given_up)) => GiveUpNameReply { state, is_given_up, reason: Vec::new() },
            Some(Err(failure)) => GiveUpNameReply { state, is_given_up: false, reason: reason_of(&failure) },
        }
    }

    fn start_giving_up(self: &Rc<Self>, key: NameKey, request: GiveUpNameRequest) -> Rc<GiveUp> {
        let give_up = Rc::new(GiveUp { wish: request.wish, state: WishState::default(), done: Notice::new() });
        self.backing().give_ups.put(self.reactor.now(), key, give_up.clone());
        let (core, own) = (self.clone(), give_up.clone());
        self.reactor.spawn(Class::Background, async move {
            let result = core.give_up_now(&request).await;
            own.state.end(core.reactor.now());
            own.done.tell(result);
        });
        give_up
    }

    async fn give_up_now(self: &Rc<Self>, request: &GiveUpNameRequest) -> GiveUpResult {
        let (directory, name) = (request.directory, request.name.as_slice());
        let deadline = self.reactor.now() + 2 * self.options.timeout + self.leases.kept_entries.kept_for();
        let seen = self.recorded(directory, name);
        let Some((_, theirs)) = self.look_at_theirs(directory, name, deadline).await? else { return Ok(false) };
        // Clients are asked to forget, and get nothing to keep before the end.
        let caller = self.flush_caller(deadline);
        let _change = self.begin_change(&caller);
        self.await_recalled_entries(&caller).await?;
        self.until_journal_has_room(0, deadline).await?;
        // From here on nothing is awaited, up to the mark.
        if self.recorded(directory, name) != seen || self.here(directory, name) != request.id {
            return Ok(false);
        }
        if theirs.kind == FileKind::Directory {
            return Err(words("somebody else has a directory of that name there"));
        }
        if !self.is_somebody_elses(directory, name, seen.as_ref(), &theirs) {
            return Ok(false);
        }
        let mark = NameBehind { known: Some(UNKNOWN_THERE), next: None, same_as: FileId::default() };
        if seen.as_ref() != Some(&mark) {
            self.change([Record::DifferencePut { directory, name, behind: mark.clone() }])?;
        }
        if request.id.is_some() {
            self.unlink_given_up(directory, name, &caller).await?;
        }
        self.show_theirs(directory, name, &mark, deadline).await
    }

    /// On whose behalf a name is given up: nobody's who has a session.
    pub(super) fn flush_caller(&self, deadline: Nanos) -> Caller {
        let peer = Peer {
            connection: 0,
            role: Role::Server,
            level: wire::operation::LEVEL_COORDINATION,
            session: 0,
            from_server: self.index,
            user: Credentials::new(0, 0),
            label: Rc::default(),
            tag: Cell::new(NO_JOB),
            mapping_lock: None,
            hazards: None,
            counters: None,
            queue: None,
        };
        Caller { peer: Rc::new(peer), origin: None, deadline }
    }

    fn recorded(&self, directory: FileId, name: &[u8]) -> Option<NameBehind> {
        self.tables.borrow().backing.difference(directory, name).cloned()
    }

    fn here(&self, directory: FileId, name: &[u8]) -> Option<FileId> {
        let tables = self.tables.borrow();
        tables.names.get(directory, name, cursor_of(directory, name)).map(|(id, _)| id)
    }

    /// What is behind at a name, with the path of its directory; nothing if nothing is.
    async fn look_at_theirs(
        self: &Rc<Self>,
        directory: FileId,
        name: &[u8],
        deadline: Nanos,
    ) -> Result<Option<(Rc<[u8]>, BackingAttributes)>, Failure> {
        let look = async {
            let (place, opened) = self.open_behind(directory, deadline).await?;
            let found = self.backing().look_for(&opened, name).await?;
            Ok(found.map(|found| (place.path, found)))
        };
        until(&self.reactor, deadline, look).await.unwrap_or_else(|| Err(self.late()))
    }

    /// Whether what is behind at a name is none of ours, by all that this server knows.
    fn is_somebody_elses(
        &self,
        directory: FileId,
        name: &[u8],
        seen: Option<&NameBehind>,
        found: &BackingAttributes,
    ) -> bool {
        if let Some(seen) = seen {
            return seen.next.is_none() && seen.known.as_ref().is_none_or(|known| !is_known(found, known));
        }
        // Of one that was ever behind, and has its home elsewhere, there is a record.
        let tables = self.tables.borrow();
        let own = self.here(directory, name).and_then(|id| tables.backing.place(id));
        let own = own.filter(|place| place.parent == directory && place.name() == name);
        own.is_none_or(|place| !is_known(found, &place.known()))
    }

    /// Takes its name from what is here, as if somebody had removed it.
    async fn unlink_given_up(self: &Rc<Self>, directory: FileId, name: &[u8], caller: &Caller) -> Result<(), Failure> {
        let ancestors = Ancestors(Vec::new());
        let entry = Entry { parent: directory, name: Name::new(name)?, ancestors, known: KNOWN_UNCHECKED };
        let params = RemoveRequest { entry, owned: false }.to_bytes();
        loop {
            self.until_journal_has_room(0, caller.deadline).await?;
            let progress = match unlink(self, caller, &params) {
                Err(failure) if failure.status == Status::NotFound => return Ok(()),
                progress => progress?,
            };
            match progress {
                Progress::Done => return Ok(()),
                Progress::Later(end) => match end.await {
                    Err(failure) if failure.status == Status::NotFound => return Ok(()),
                    ended => return ended.map(drop),
                },
                Progress::After(before) => before.await?,
                Progress::Blocked(notice) => {
                    let what = "a change of the name takes long";
                    self.wait_until(caller.deadline, what, notice.wait()).await?;
                }
            }
        }
    }

    /// Takes up what is behind at a name that is marked as given up.
    async fn show_theirs(
        self: &Rc<Self>,
        directory: FileId,
        name: &[u8],
        mark: &NameBehind,
        deadline: Nanos,
    ) -> GiveUpResult {
        while self.here(directory, name).is_none() && self.recorded(directory, name).as_ref() == Some(mark) {
            if self.reactor.now() >= deadline {
                return Err(words("it is given up here, and what is there could not be taken up yet"));
            }
            let Some((path, theirs)) = self.look_at_theirs(directory, name, deadline).await? else {
                // They have removed it again: so nothing is there, and nothing here.
                if self.here(directory, name).is_none() && self.recorded(directory, name).as_ref() == Some(mark) {
                    self.change([Record::DifferenceDelete { directory, name }])?;
                }
                return Ok(true);
            };
            if theirs.kind == FileKind::Directory {
                return Err(words("somebody else has a directory of that name there"));
            }
            if !self.take_up_over((directory, name), &path, theirs, mark, deadline).await? {
                self.reactor.sleep(PAUSE_NS).await;
                continue;
            }
            let told = "somebody else has changed it there; theirs is here now, and what was changed here is dropped";
            let path = super::joined(&path, name);
            log::event(Level::Warning, "conflict-settled", told, &[("path", &path.escape_ascii())]);
            return Ok(true);
        }
        // Somebody else has been here.
        Ok(false)
    }
}
