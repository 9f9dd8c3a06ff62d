//! RemoveDirectory. The server of the directory's entry, which is its home too unless it was renamed, coordinates all
//! others in two phases: each marks the directory (empty here, nothing is created under it until resolved), then all
//! set a tombstone or lift the mark. The decision is this server's journal record; the others hear it sooner or later.

use crate::coordination::intents::{Intent, RemovalPhase};
use crate::coordination::retry::{Backoff, retry};
use crate::coordination::{ask_all, settle};
use crate::core::{Caller, Core, Failure, all};
use crate::handlers::files::rights::Demand;
use crate::handlers::names::rename::LocalLocks;
use crate::handlers::{EncodedParams, Progress, absent, check_lock, later, locate, path_of};
use crate::journal::records::Record;
use reactor::{Class, LocalFuture, Nanos};
use std::rc::Rc;
use wire::messages::{Empty, MarkDirectoryRequest, PrepareReply, RemoveRequest, ResolveDirectoryRequest};
use wire::{Decode, FileId, Kind, Operation, Status};

const PAUSE_NS: Nanos = 100_000_000;

pub fn remove_directory(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    // A rename may be about to give the name to something else.
    if let Some(blocked) = check_lock(&core.tables.borrow(), &RemoveRequest::from_bytes(params)?.entry) {
        return Ok(blocked);
    }
    let directory = match find(core, caller, params) {
        Err(failure) if failure.status == Status::NotFound => {
            let request = RemoveRequest::from_bytes(params)?;
            return absent(&core.tables.borrow(), request.entry.parent);
        }
        found => found?,
    };
    if let Some(lock) = core.tables.borrow().locks.in_directory(directory).pop() {
        return Ok(Progress::Blocked(lock));
    }
    let parent = RemoveRequest::from_bytes(params)?.entry.parent;
    if let Some(step) = core.check_share(&core.tables.borrow(), caller, parent) {
        return Ok(step);
    }
    core.check_room_for_tombstone()?;
    if core.cluster.server_count() == 1 {
        let request = RemoveRequest::from_bytes(params)?;
        core.change([
            Record::DentryDelete { parent: request.entry.parent, name: request.entry.name.as_bytes() },
            Record::InodeDelete(directory),
            Record::Tombstone(directory),
            caller.outcome(&[]),
        ])?;
        return Ok(Progress::Done);
    }
    let (core, caller, params) = (core.clone(), caller.clone(), params.to_vec());
    later(async move {
        remove(&core, &caller, &params).await?;
        Ok(EncodedParams(Vec::new()))
    })
}

/// The directory that a request names, when this server's share of it is empty.
fn find(core: &Core, caller: &Caller, params: &[u8]) -> Result<FileId, Failure> {
    let request = RemoveRequest::from_bytes(params)?;
    let tables = core.tables.borrow();
    let place = locate(core, &tables, &request.entry)?;
    let found = tables.names.get(request.entry.parent, request.entry.name.as_bytes(), place.cursor);
    let (id, kind) = found.ok_or(Status::NotFound)?;
    if kind != Kind::Directory {
        return Err(Status::NotDirectory.into());
    }
    let inode = tables.inodes.get(id).filter(|_| request.owned);
    if inode.is_some_and(|inode| !caller.owns(&inode.attributes)) {
        return Err(Status::NotPermitted.into());
    }
    core.check_emptied(&tables, id)?;
    Ok(id)
}

async fn remove(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<(), Failure> {
    let directory = find(core, caller, params)?;
    let turn = core.turns.take(directory.0);
    let _turn = core.wait_until(caller.deadline, "another removal of the directory takes long", turn).await?;
    // While we waited, it may have been removed, made again or filled; even the directory that it is in may be going,
    // and then the caller asks again.
    let entry = RemoveRequest::from_bytes(params)?.entry;
    if check_lock(&core.tables.borrow(), &entry).is_some() {
        return Err(Status::Busy.into());
    }
    let parent = entry.parent;
    match find(core, caller, params) {
        Ok(found) if found == directory => {}
        Err(failure) if failure.status != Status::NotFound => return Err(failure),
        _ if core.tables.borrow().marks.contains_key(&parent.0) => return Err(Status::Busy.into()),
        _ => return Err(Status::NotFound.into()),
    }
    if !core.tables.borrow().locks.in_directory(directory).is_empty() {
        return Err(Status::Busy.into());
    }
    let _trail = core.trails.hold(path_of(&entry).collect());
    let mut held = LocalLocks::new(core);
    held.dentry(parent, entry.name.as_bytes());
    check_owner(core, caller, directory, RemoveRequest::from_bytes(params)?.owned).await?;
    let attempt = core.next_number()?;
    let intent =
        |phase| Record::IntentPut { number: attempt, intent: Intent::RemoveDirectory { directory, attempt, phase } };
    core.change([intent(RemovalPhase::Marking), Record::MarkPut { directory, coordinator: core.index, attempt }])?;
    let decision = match mark_all(core, caller, directory, attempt).await {
        // Nothing but this attempt lifts its mark.
        Ok(()) if !core.tables.borrow().is_marked_by(directory, core.index, attempt) => Err(Status::Busy.into()),
        Ok(()) => {
            let request = RemoveRequest::from_bytes(params)?;
            core.change([
                Record::DentryDelete { parent: request.entry.parent, name: request.entry.name.as_bytes() },
                Record::InodeDelete(directory),
                Record::Tombstone(directory),
                Record::MarkDelete(directory),
                intent(RemovalPhase::Committed),
                caller.outcome(&[]),
            ])
        }
        Err(failure) => Err(failure),
    };
    drive(core, directory, attempt, decision.is_ok());
    decision
}

/// Has the home of a directory that is parted from its name check that it is the caller's own, if it has to be.
async fn check_owner(core: &Rc<Core>, caller: &Caller, directory: FileId, owned: bool) -> Result<(), Failure> {
    let demand = Demand::new(caller, (directory, Kind::Directory), owned, false);
    let home = core.cluster.home_of(directory).filter(|home| *home != core.index);
    let (Some(demand), Some(home)) = (demand, home) else { return Ok(()) };
    let request = demand.request(caller);
    let reply: PrepareReply = core.peers.call(home, Operation::CheckCaller, &request, Some(caller.deadline)).await?;
    match Status::from_code(reply.verdict) {
        Some(Status::Ok) => Ok(()),
        verdict => Err(verdict.unwrap_or(Status::Io).into()),
    }
}

/// Asks all other servers to mark the directory. `NotEmpty` of one outranks that another one can't be reached.
async fn mark_all(core: &Rc<Core>, caller: &Caller, directory: FileId, attempt: u64) -> Result<(), Failure> {
    let request = MarkDirectoryRequest { directory, coordinator: core.index, attempt };
    let deadline = caller.deadline;
    let asked = core
        .other_servers()
        .into_iter()
        .map(|server| {
            let (core, request) = (core.clone(), request.clone());
            let future = async move {
                core.peers.call::<Empty>(server, Operation::MarkDirectory, &request, Some(deadline)).await
            };
            Box::pin(future) as LocalFuture<Result<Empty, Failure>>
        })
        .collect();
    let mut outcome = Ok(());
    for answer in all(asked).await {
        if let Err(failure) = answer
            && (outcome.is_ok() || failure.status == Status::NotEmpty)
        {
            outcome = Err(failure);
        }
    }
    outcome.map_err(|failure| match failure.status {
        Status::NotEmpty | Status::Busy => failure.status.into(),
        _ => failure,
    })
}

/// Tells the decision to all others until each has heard it.
fn drive(core: &Rc<Core>, directory: FileId, attempt: u64, removed: bool) {
    let core = core.clone();
    core.reactor.clone().spawn(Class::Metadata, async move {
        if !removed && !give_up(&core, directory, attempt).await {
            return;
        }
        let request = ResolveDirectoryRequest { directory, attempt, removed };
        if ask_all(&core, core.other_servers(), Operation::ResolveDirectory, &request, None).await {
            settle(&core, attempt).await;
        }
    });
}

/// Journals that an attempt is given up and lifts our own mark. False when this server stops before.
async fn give_up(core: &Rc<Core>, directory: FileId, attempt: u64) -> bool {
    let phase = RemovalPhase::Aborting;
    retry(core, Backoff::steady(PAUSE_NS), None, async || {
        let stands = core.tables.borrow().is_marked_by(directory, core.index, attempt);
        let intent = Intent::RemoveDirectory { directory, attempt, phase };
        let mark = if stands { Record::MarkDelete(directory) } else { Record::Nothing };
        core.change([Record::IntentPut { number: attempt, intent }, mark])
    })
    .await
}

/// Goes on with a removal after a restart: what was not decided is given up.
pub fn resume_removal(core: &Rc<Core>, directory: FileId, attempt: u64, phase: RemovalPhase) {
    drive(core, directory, attempt, phase == RemovalPhase::Committed);
}
