//! Changes of names that may concern several servers: Link, LinkOpen, Rename, and Unlink of a name that is parted from
//! its inode.
//!
//! The server of the (old) name coordinates; of a link of an open file, its home. Up to three others have a part: the
//! server of the new name, the home of the inode whose link count rises, and the home of one that is replaced or loses
//! a name. Each is asked to prepare its part (`prepare`); then one journal record here decides: it holds this server's
//! own share, the outcome for the caller, and the intent that the others are told. Before it nothing has happened, from
//! then on everything has.
//!
//! A directory that moves is a part of its own, which the sequencer prepares (`sequencer`): it lets one rename of
//! directories after the other happen, and has all servers mark the directory until the end is known.
//!
//! Invariants
//! 1. From the first look at a name to the decision its lock is held: here in memory, elsewhere journalled.
//! 2. Nobody waits for a lock while holding one. Who meets one lets go of everything and starts over.
//! 3. A part's number is in `Core::undecided` from before the part is asked for until it is given up or in an intent.

mod directories;
mod guards;
mod permission;
pub mod times;

pub use guards::LocalLocks;

use crate::backing;
use crate::coordination::intents::Intent;
use crate::coordination::retry::{Backoff, retry};
use crate::coordination::{ask, settle};
use crate::core::{Caller, Core, Failure, Notice, all};
use crate::files::inodes::Inode;
use crate::handlers::names::lookup::{is_elsewhere, missing_inode};
use crate::handlers::names::prepare::{check_link, check_rule, resolve};
use crate::handlers::names::unlink::drop_link;
use crate::handlers::{EncodedParams, Progress, later, locate, lock_of, path_of};
use crate::journal::records::Record;
use crate::tree::Trail;
use guards::Participants;
use permission::Permission;
use reactor::{Class, LocalFuture, Nanos};
use std::rc::Rc;
use wire::identity::dentry_slot;
use wire::messages::{
    Empty, Entry, LinkOpenRequest, LinkRequest, PrepareDentryRequest, PrepareLinkRequest, PrepareReply, RemoveRequest,
    RenameRequest, ResolvePreparedRequest, entry_rules, rename_flags,
};
use wire::{Decode, Encode, FileId, Kind, Operation, Status};

/// Longest pause before a change that met a lock elsewhere starts over, at first and at most.
const PAUSE_NS_FIRST: Nanos = 1_000_000;
const PAUSE_NS_MAX: Nanos = 64_000_000;
/// The turn of the one rename of directories that this server coordinates; no file has this id.
const TURN: u64 = u64::MAX - 1;

/// What is wanted.
#[derive(Clone, Copy, PartialEq)]
enum NameChange {
    Link,
    LinkOpen,
    Rename { no_replace: bool, exchange: bool },
    Unlink,
}

impl NameChange {
    /// The request that asks for it.
    fn operation(self) -> Operation {
        match self {
            NameChange::Link => Operation::Link,
            NameChange::LinkOpen => Operation::LinkOpen,
            NameChange::Rename { .. } => Operation::Rename,
            NameChange::Unlink => Operation::Unlink,
        }
    }

    fn rule(self) -> u8 {
        match self {
            NameChange::Link | NameChange::LinkOpen | NameChange::Rename { no_replace: true, .. } => {
                entry_rules::ABSENT
            }
            NameChange::Rename { exchange: true, .. } => entry_rules::EXCHANGE,
            _ => entry_rules::REPLACE,
        }
    }

    fn is_exchange(self) -> bool {
        matches!(self, NameChange::Rename { exchange: true, .. })
    }

    fn check_source(self, kind: Kind) -> Result<(), Failure> {
        match (kind, self) {
            (Kind::Directory, NameChange::Link | NameChange::LinkOpen) => Err(Status::NotPermitted.into()),
            (Kind::Directory, NameChange::Unlink) => Err(Status::IsDirectory.into()),
            _ => Ok(()),
        }
    }
}

/// What a change begins with.
enum Source<'a> {
    Name(Entry<'a>),
    Open(FileId),
}

/// Why a change did not come about.
enum Blocker {
    /// Something that this server will be told the end of.
    Locked(Notice<()>),
    /// A lock on another server.
    Busy,
    /// Directories change places one after the other, and it is not our turn.
    Turn,
    /// A directory whose home has to be told first that entries change here.
    Share(FileId),
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Blocker {
    fn from(error: E) -> Self {
        Blocker::Failed(error.into())
    }
}

/// A name.
struct NameLocation {
    parent: FileId,
    name: Box<[u8]>,
    /// The server that holds it, when that is another one.
    server: Option<u32>,
}

/// A change under way.
struct NameTransaction {
    core: Rc<Core>,
    name_change: NameChange,
    /// Nothing when the source is an open file.
    from: Option<NameLocation>,
    source: (FileId, Kind),
    to: Option<NameLocation>,
    /// What the new name leads to now.
    destination: Option<(FileId, Kind)>,
    up: Option<FileId>,
    down: Option<FileId>,
    held: LocalLocks,
    participants: Participants,
    asked: Permission,
    /// The paths that were asked for, each with the tree change that its caller knew.
    paths: Vec<(u64, Vec<FileId>)>,
    /// What the caller is told.
    reply: Vec<u8>,
    trail: Option<Trail>,
}

pub fn link(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    start(core, caller, NameChange::Link, params)
}

pub fn link_open(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    start(core, caller, NameChange::LinkOpen, params)
}

pub fn rename(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let flags = RenameRequest::from_bytes(params)?.flags;
    let both = rename_flags::NO_REPLACE | rename_flags::EXCHANGE;
    if flags & !rename_flags::ALL != 0 || flags & both == both {
        return Err(Failure::with_text(Status::Invalid, "rename flags are unknown or exclude each other"));
    }
    let (no_replace, exchange) = (flags & rename_flags::NO_REPLACE != 0, flags & rename_flags::EXCHANGE != 0);
    start(core, caller, NameChange::Rename { no_replace, exchange }, params)
}

/// Unlink of a name whose inode lives on another server.
pub fn unlink_parted(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    start(core, caller, NameChange::Unlink, params)
}

/// The names that a request is about.
fn parse(name_change: NameChange, params: &[u8]) -> Result<(Source<'_>, Option<Entry<'_>>), Failure> {
    Ok(match name_change {
        NameChange::Link => {
            let LinkRequest { from, to } = LinkRequest::from_bytes(params)?;
            (Source::Name(from), Some(to))
        }
        NameChange::LinkOpen => {
            let LinkOpenRequest { file, to } = LinkOpenRequest::from_bytes(params)?;
            (Source::Open(file), Some(to))
        }
        NameChange::Rename { .. } => {
            let RenameRequest { from, to, .. } = RenameRequest::from_bytes(params)?;
            (Source::Name(from), Some(to))
        }
        NameChange::Unlink => (Source::Name(RemoveRequest::from_bytes(params)?.entry), None),
    })
}

/// What concerns this server alone is done at once.
fn start(core: &Rc<Core>, caller: &Caller, name_change: NameChange, params: &[u8]) -> Result<Progress, Failure> {
    match begin(core, caller, name_change, params) {
        Ok(None) => return Ok(Progress::Done),
        Ok(Some(change)) if !change.needs_others() => {
            change.decide(caller)?;
            return Ok(Progress::Done);
        }
        // Locks are taken anew when the request's turn has come.
        Ok(Some(_)) | Err(Blocker::Busy | Blocker::Turn | Blocker::Share(_)) => {}
        Err(Blocker::Locked(lock)) => return Ok(Progress::Blocked(lock)),
        Err(Blocker::Failed(failure)) => return Err(failure),
    }
    let prepared = backing::preparation_number(core, name_change.operation(), params);
    let (core, caller, params) = (core.clone(), caller.clone(), params.to_vec());
    later(async move { Ok(EncodedParams(run(&core, &caller, name_change, &params, prepared).await?)) })
}

/// Tries until the change is decided or refused, or the caller gives up.
async fn run(
    core: &Rc<Core>,
    caller: &Caller,
    name_change: NameChange,
    params: &[u8],
    mut prepared: u64,
) -> Result<Vec<u8>, Failure> {
    const WORDS: &str = "another change of these names takes long";
    let mut backoff = Backoff::new(PAUSE_NS_FIRST, PAUSE_NS_MAX);
    let mut turn = None;
    loop {
        // What was here as the request came may be behind alone by now.
        while let Some(lacking) = backing::lacking(core, name_change.operation(), caller, params, &mut prepared) {
            lacking.await?;
        }
        match attempt(core, caller, name_change, params, turn.is_some()).await {
            Ok(reply) => return Ok(reply),
            Err(Blocker::Failed(failure)) => return Err(failure),
            Err(Blocker::Locked(lock)) => core.wait_until(caller.deadline, WORDS, lock.wait()).await?,
            Err(Blocker::Turn) => turn = Some(core.wait_until(caller.deadline, WORDS, core.turns.take(TURN)).await?),
            Err(Blocker::Share(directory)) => core.announce_share(directory, caller.deadline).await?,
            Err(Blocker::Busy) => {
                // Of changes that refuse each other, the draw lets one go first.
                let wait = 1 + core.reactor.random() % backoff.advance();
                if core.reactor.now() + wait >= caller.deadline {
                    return Err(Failure::with_text(Status::TimedOut, WORDS));
                }
                core.reactor.sleep(wait).await;
            }
        }
    }
}

async fn attempt(
    core: &Rc<Core>,
    caller: &Caller,
    name_change: NameChange,
    params: &[u8],
    has_turn: bool,
) -> Result<Vec<u8>, Blocker> {
    let Some(mut change) = begin(core, caller, name_change, params)? else { return Ok(Vec::new()) };
    if change.moves_directories() && !has_turn {
        return Err(Blocker::Turn);
    }
    // From here on no directory on our paths moves before we are through.
    change.trail = Some(core.trails.hold(change.paths.iter().flat_map(|(_, path)| path).copied().collect()));
    let prepared = change.prepare(caller, has_turn).await;
    let parts = change.participants.list.clone();
    let result = match prepared {
        Ok(true) => change.decide(caller).map_err(Blocker::Failed),
        Ok(false) => {
            give_up(core, &parts);
            return Ok(Vec::new());
        }
        Err(blocker) => Err(blocker),
    };
    if result.is_err() {
        give_up(core, &parts);
    }
    result
}

/// Looks at the names on this server, refuses what can be refused already, and takes this server's locks. `None` when
/// nothing is to be done.
fn begin(
    core: &Rc<Core>,
    caller: &Caller,
    name_change: NameChange,
    params: &[u8],
) -> Result<Option<NameTransaction>, Blocker> {
    let (from, to) = parse(name_change, params)?;
    let tables = core.tables.borrow();
    let (source, old) = match &from {
        Source::Open(file) => (open_source(core, *file)?, None),
        Source::Name(from) => match (find(core, from)?, tables.marks.get(&from.parent.0)) {
            (Some(found), _) => (found, Some((from.parent, from.name.as_bytes()))),
            // Whether the name is gone or the directory is known when the removal of the directory is decided.
            (None, Some(mark)) => return Err(Blocker::Locked(mark.resolved.clone())),
            (None, None) => return Err(Status::NotFound.into()),
        },
    };
    name_change.check_source(source.1)?;
    let mut destination = None;
    let mut new = None;
    let mut paths = Vec::with_capacity(2);
    if let Source::Name(from) = &from {
        paths.push((from.known, path_of(from).collect()));
    }
    if let Some(to) = &to {
        tables.check_not_removed(path_of(to))?;
        tables.tree.check(to.known, path_of(to))?;
        if let Some(moving) = tables.tree.wait_for(to.known, path_of(to)) {
            return Err(Blocker::Locked(moving));
        }
        if path_of(to).any(|directory| directory == source.0) {
            return Err(Failure::with_text(Status::Invalid, "a directory can't be moved into itself").into());
        }
        paths.push((to.known, path_of(to).collect()));
        if old == Some((to.parent, to.name.as_bytes())) {
            return if name_change.rule() == entry_rules::ABSENT { Err(Status::Exists.into()) } else { Ok(None) };
        }
        let server = core.cluster.server_of(dentry_slot(to.parent, to.name.as_bytes(), core.cluster.slot_count));
        let server = (server != core.index).then_some(server);
        if server.is_none() {
            destination = find(core, to)?;
            if let Some(mark) = tables.marks.get(&to.parent.0) {
                return Err(Blocker::Locked(mark.resolved.clone()));
            }
            check_rule(name_change.rule(), source.1, destination)?;
            if destination.is_some_and(|(id, _)| id == source.0) {
                return Ok(None);
            }
        }
        new = Some(NameLocation { parent: to.parent, name: to.name.as_bytes().into(), server });
    }
    let mut asked = Permission::new(name_change, params)?;
    asked.of_source(core, caller, source)?;
    asked.of_destination(core, caller, destination, name_change.is_exchange())?;
    let up = matches!(name_change, NameChange::Link | NameChange::LinkOpen).then_some(source.0);
    let losing = [(up.is_none()).then_some(source), destination].into_iter().flatten();
    if let Some(delegated) = losing.into_iter().find_map(|(file, _)| core.recall_delegations(file)) {
        return Err(Blocker::Locked(delegated));
    }
    let down = match name_change {
        NameChange::Unlink => Some(source.0),
        NameChange::Rename { exchange: false, .. } => replaced_file(destination),
        _ => None,
    };
    for (file, rises) in up.map(|file| (file, true)).into_iter().chain(down.map(|file| (file, false))) {
        check_inode(core, file, rises)?;
    }
    let changed = old.filter(|_| name_change != NameChange::Link).map(|(parent, _)| parent);
    let to_changed = new.as_ref().filter(|new| new.server.is_none()).map(|new| new.parent);
    for parent in changed.into_iter().chain(to_changed) {
        if core.lacks_share(&tables, parent) {
            return Err(Blocker::Share(parent));
        }
    }
    drop(tables);
    let mut held = LocalLocks::new(core);
    let old = old.map(|(parent, name)| NameLocation { parent, name: name.into(), server: None });
    for place in old.iter().chain(&new).filter(|place| place.server.is_none()) {
        held.dentry(place.parent, &place.name);
    }
    up.iter().chain(&down).filter(|file| !is_elsewhere(core, **file)).for_each(|file| held.inode(*file));
    let participants = Participants::new(core);
    let core = core.clone();
    let (from, to, reply, trail) = (old, new, Vec::new(), None);
    Ok(Some(NameTransaction {
        core,
        name_change,
        from,
        source,
        to,
        destination,
        up,
        down,
        held,
        participants,
        asked,
        paths,
        reply,
        trail,
    }))
}

/// What loses its name to another one and is no directory: its link count falls.
fn replaced_file(destination: Option<(FileId, Kind)>) -> Option<FileId> {
    destination.filter(|(_, kind)| *kind != Kind::Directory).map(|(id, _)| id)
}

/// An open file that is to get a name. One that had some and lost the last does not get another (as linkat(2)).
fn open_source(core: &Core, file: FileId) -> Result<(FileId, Kind), Failure> {
    core.check_home(file)?;
    Ok((file, core.inode(file)?.attributes.kind))
}

/// What a name on this server leads to, if nobody is changing it.
fn find(core: &Core, entry: &Entry<'_>) -> Result<Option<(FileId, Kind)>, Blocker> {
    let tables = core.tables.borrow();
    let place = locate(core, &tables, entry)?;
    match lock_of(&tables, entry) {
        Some(lock) => Err(Blocker::Locked(lock)),
        None => Ok(tables.names.get(entry.parent, entry.name.as_bytes(), place.cursor)),
    }
}

/// Checks an inode whose link count is to change, if it lives here.
fn check_inode(core: &Core, file: FileId, up: bool) -> Result<(), Blocker> {
    if is_elsewhere(core, file) {
        return Ok(());
    }
    let tables = core.tables.borrow();
    if let Some(lock) = tables.locks.of_inode(file) {
        return Err(Blocker::Locked(lock));
    }
    Ok(check_link(&tables, file, up).map_err(|status| match status {
        Status::StaleFile => missing_inode(core, file),
        other => other.into(),
    })?)
}

impl NameTransaction {
    fn needs_others(&self) -> bool {
        let to_elsewhere = self.to.as_ref().is_some_and(|to| to.server.is_some());
        to_elsewhere
            || !self.asked.elsewhere.is_empty()
            || self.moves_directories()
            || self.has_distant_home()
            || self.up.iter().chain(&self.down).any(|file| is_elsewhere(&self.core, *file))
    }

    /// Has the other servers prepare their parts. False when nothing is to be done after all.
    async fn prepare(&mut self, caller: &Caller, has_turn: bool) -> Result<bool, Blocker> {
        let deadline = caller.deadline;
        if let Some((server, to)) = self.to.as_ref().and_then(|to| Some((to.server?, to))) {
            let number = self.participants.add(server)?;
            let request = PrepareDentryRequest {
                coordinator: self.core.index,
                number,
                parent: to.parent,
                name: wire::Name::new(&to.name)?,
                id: self.source.0,
                kind: self.source.1,
                rule: self.name_change.rule(),
            };
            let found = ask_to_prepare(&self.core, server, Operation::PrepareDentry, &request, deadline).await?;
            self.destination = found.id.zip(found.kind);
            if found.id == Some(self.source.0) {
                return Ok(false);
            }
            let exchange = self.name_change.is_exchange();
            self.asked.of_destination(&self.core, caller, self.destination, exchange)?;
            let replaced = replaced_file(self.destination).filter(|_| !exchange);
            if let Some(file) = replaced {
                check_inode(&self.core, file, false)?;
                if !is_elsewhere(&self.core, file) {
                    self.held.inode(file);
                }
                self.down = Some(file);
            }
        }
        for demand in std::mem::take(&mut self.asked.elsewhere) {
            let home = self.core.cluster.home_of(demand.file).unwrap_or(self.core.index);
            let request = demand.request(caller);
            ask_to_prepare(&self.core, home, Operation::CheckCaller, &request, deadline).await?;
        }
        let links = [(self.up, true), (self.down, false)];
        for (file, up) in links.into_iter().filter_map(|(file, up)| Some((file?, up))) {
            if let Some(home) = self.core.cluster.home_of(file).filter(|home| *home != self.core.index) {
                let number = self.participants.add(home)?;
                let request = PrepareLinkRequest { coordinator: self.core.index, number, file, up };
                ask_to_prepare(&self.core, home, Operation::PrepareLink, &request, deadline).await?;
            }
        }
        match (self.moves_directories(), has_turn) {
            (true, true) => self.prepare_tree(deadline).await?,
            (true, false) => return Err(Blocker::Turn),
            (false, _) => {}
        }
        self.note_times(deadline).await?;
        Ok(true)
    }

    /// Journals the decision with this server's share of the change, and has the others do theirs. Returns the reply.
    fn decide(self, caller: &Caller) -> Result<Vec<u8>, Failure> {
        let core = self.core.clone();
        let parts = self.participants.list.clone();
        let number = if parts.is_empty() { None } else { Some(core.next_number()?) };
        let mut transaction = core.store.begin();
        let mut records = Vec::with_capacity(8);
        if let Some(NameLocation { parent, name, .. }) = &self.from {
            match (self.name_change, self.destination) {
                (NameChange::Link, _) => {}
                (NameChange::Rename { exchange: true, .. }, Some((id, kind))) => {
                    records.push(Record::DentryPut { parent: *parent, name, id, kind });
                }
                _ => records.push(Record::DentryDelete { parent: *parent, name }),
            }
        }
        if let Some(to) = self.to.as_ref().filter(|to| to.server.is_none()) {
            let (id, kind) = self.source;
            records.push(Record::DentryPut { parent: to.parent, name: &to.name, id, kind });
        }
        if let Some(file) = self.up.filter(|file| !is_elsewhere(&core, *file)) {
            records.push(Record::InodePut(linked(&core, file)?));
        }
        records.extend(self.times());
        let mut reap = None;
        if let Some(file) = self.down.filter(|file| !is_elsewhere(&core, *file)) {
            reap = Some(drop_link(&core, file, &mut transaction, &mut records)?);
        }
        if let Some(number) = number {
            records.push(Record::IntentPut { number, intent: Intent::Names { parts: parts.clone() } });
        }
        records.push(caller.outcome(&self.reply));
        core.commit(transaction, records)?;
        if let Some(reap) = reap {
            reap.start(&core);
        }
        if let Some(number) = number {
            drive_names(&core, number, parts);
        }
        Ok(self.reply)
    }
}

/// What a participant says of a name.
struct Vote {
    id: Option<FileId>,
    kind: Option<Kind>,
}

async fn ask_to_prepare(
    core: &Rc<Core>,
    server: u32,
    operation: Operation,
    request: &impl Encode,
    deadline: Nanos,
) -> Result<Vote, Blocker> {
    let reply: PrepareReply = core.peers.call(server, operation, request, Some(deadline)).await?;
    match Status::from_code(reply.verdict) {
        Some(Status::Ok) => Ok(Vote { id: reply.found, kind: reply.kind }),
        Some(Status::Busy) => Err(Blocker::Busy),
        Some(status) => Err(status.into()),
        None => Err(unknown_verdict(server).into()),
    }
}

fn unknown_verdict(server: u32) -> Failure {
    Failure::with_text(Status::Io, format!("server {server} gave an unknown verdict"))
}

/// An inode here with one name more.
pub fn linked(core: &Core, file: FileId) -> Result<Inode, Failure> {
    let mut inode = core.inode(file)?;
    inode.attributes.link_count += 1;
    inode.attributes.ctime = core.clock.time();
    inode.attributes.version += 1;
    Ok(inode)
}

/// Tells participants that nothing came of it. Who can't be told asks by itself.
fn give_up(core: &Rc<Core>, parts: &[(u32, u64)]) {
    for (server, number) in parts.iter().copied() {
        if server == core.index {
            // What fails now is asked for again by who watches it.
            let _: Result<(), Failure> = resolve(core, server, number, false);
            continue;
        }
        let core = core.clone();
        core.reactor.clone().spawn(Class::Metadata, async move {
            let request = ResolvePreparedRequest { coordinator: core.index, number, commit: false };
            let _: Result<Empty, Failure> = core.peers.call(server, Operation::ResolvePrepared, &request, None).await;
        });
    }
}

/// Has a participant, which may be this server, do what it prepared. False when this server stops before.
async fn tell(core: Rc<Core>, server: u32, number: u64) -> bool {
    if server != core.index {
        let request = ResolvePreparedRequest { coordinator: core.index, number, commit: true };
        return ask(core, server, Operation::ResolvePrepared, request.to_bytes(), None).await;
    }
    retry(&core, Backoff::steady(PAUSE_NS_MAX), None, async || resolve(&core, server, number, true)).await
}

/// Has the participants do what they prepared, until all have done so.
pub fn drive_names(core: &Rc<Core>, number: u64, parts: Vec<(u32, u64)>) {
    let core = core.clone();
    core.reactor.clone().spawn(Class::Metadata, async move {
        let told = parts
            .into_iter()
            .map(|(server, number)| Box::pin(tell(core.clone(), server, number)) as LocalFuture<bool>)
            .collect();
        if all(told).await.into_iter().all(|told| told) {
            settle(&core, number).await;
        }
    });
}
