//! The participants of a change of names (link, rename, unlink of a name that is parted from its inode): PrepareDentry,
//! PrepareLink, ResolvePrepared; and AskDecision, by which a participant that hears nothing learns how it ended.
//!
//! Invariants
//! 1. What is prepared was checked, and its lock keeps that true until it is resolved. Nothing here waits for a lock.
//! 2. What is prepared ends only by the coordinator's word. One that knows nothing of a number has given it up, or all
//!    of it is done: it keeps the decision until every participant has heard it.

use crate::coordination::intents::Intent;
use crate::coordination::prepared::PreparedChange;
use crate::coordination::retry::Backoff;
use crate::core::{Caller, Core, Failure};
use crate::handlers::directories::sequencer;
use crate::handlers::names::rename::times::renamed;
use crate::handlers::names::unlink::drop_link;
use crate::handlers::{Progress, check_directory};
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::cursor_of_hash;
use reactor::{Class, Nanos};
use std::rc::Rc;
use wire::identity::dentry_hash;
use wire::limits::LINK_COUNT_MAX;
use wire::messages::{
    AskDecisionReply, AskDecisionRequest, PrepareDentryRequest, PrepareLinkRequest, PrepareReply,
    ResolvePreparedRequest, entry_rules,
};
use wire::{Decode, Encode, FileId, Kind, Operation, Slot, Status};

/// How long a participant waits for word before it asks, at first and at most.
const ASK_NS_FIRST: Nanos = 250_000_000;
const ASK_NS_MAX: Nanos = 2_000_000_000;

/// Whether what is at a name may give way to an inode of a kind, as a rule has it.
pub fn check_rule(rule: u8, kind: Kind, found: Option<(FileId, Kind)>) -> Result<(), Status> {
    let Some((_, old)) = found else {
        return if rule == entry_rules::EXCHANGE { Err(Status::NotFound) } else { Ok(()) };
    };
    match (rule, kind, old) {
        (entry_rules::ABSENT, ..) => Err(Status::Exists),
        (entry_rules::REPLACE, Kind::Directory, Kind::Directory) | (entry_rules::EXCHANGE, ..) => Ok(()),
        (entry_rules::REPLACE, Kind::Directory, _) => Err(Status::NotDirectory),
        (entry_rules::REPLACE, _, Kind::Directory) => Err(Status::IsDirectory),
        (entry_rules::REPLACE, ..) => Ok(()),
        _ => Err(Status::BadMessage),
    }
}

/// Whether an inode here may get one name more or less.
pub fn check_link(tables: &Tables, file: FileId, up: bool) -> Result<(), Status> {
    let inode = tables.inodes.get(file).ok_or(Status::StaleFile)?;
    match inode.attributes.kind {
        Kind::Directory => Err(Status::NotPermitted),
        _ if up && inode.attributes.link_count == 0 && !tables.open.is_linkable(file) => Err(Status::NotFound),
        _ if up && inode.attributes.link_count >= LINK_COUNT_MAX => Err(Status::TooManyLinks),
        _ => Ok(()),
    }
}

pub fn prepare_dentry(
    core: &Rc<Core>,
    caller: &Caller,
    params: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let request = PrepareDentryRequest::from_bytes(params)?;
    check_coordinator(caller, request.coordinator)?;
    let name = request.name.as_bytes();
    let hash = dentry_hash(request.parent, name);
    if !core.owns_slot((hash % u64::from(core.cluster.slot_count)) as Slot) {
        return Err(Failure::with_text(Status::BadMessage, "the name belongs to another server"));
    }
    let key = (request.coordinator, request.number);
    let (verdict, found, known) = {
        let tables = core.tables.borrow();
        tables.check_not_removed(std::iter::once(request.parent))?;
        let found = tables.names.get(request.parent, name, cursor_of_hash(hash));
        let known = tables.prepared.contains_key(&key);
        let verdict = if known {
            Ok(())
        } else if let Err(failure) = check_directory(core, &tables, request.parent) {
            if failure.status == Status::StaleDirectory {
                return Err(failure);
            }
            Err(failure.status)
        } else if tables.is_loss_untold
            || tables.locks.of_dentry(request.parent, name).is_some()
            || tables.marks.contains_key(&request.parent.0)
        {
            Err(Status::Busy)
        } else {
            check_rule(request.rule, request.kind, found)
        };
        if verdict.is_ok()
            && !known
            && let Some(step) = core.check_share(&tables, caller, request.parent)
        {
            return Ok(step);
        }
        // No lock, and it ends by itself, soon.
        if verdict.is_ok()
            && !known
            && let Some(delegated) = found.and_then(|(file, _)| core.recall_delegations(file))
        {
            return Ok(Progress::Blocked(delegated));
        }
        (verdict, found, known)
    };
    if verdict.is_ok() && !known {
        let change =
            PreparedChange::Dentry { parent: request.parent, name: name.into(), id: request.id, kind: request.kind };
        prepare(core, key, change)?;
    }
    answer(verdict, found, reply)
}

pub fn prepare_link(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let PrepareLinkRequest { coordinator, number, file, up } = PrepareLinkRequest::from_bytes(params)?;
    check_coordinator(caller, coordinator)?;
    core.check_home(file)?;
    let key = (coordinator, number);
    let known = core.tables.borrow().prepared.contains_key(&key);
    let verdict = match known {
        true => Ok(()),
        false if core.tables.borrow().locks.of_inode(file).is_some() => Err(Status::Busy),
        false => check_link(&core.tables.borrow(), file, up),
    };
    if verdict.is_ok() && !known {
        prepare(core, key, PreparedChange::Link { file, up })?;
    }
    answer(verdict, None, reply)
}

pub fn check_coordinator(caller: &Caller, coordinator: u32) -> Result<(), Failure> {
    if coordinator == caller.peer.from_server {
        return Ok(());
    }
    Err(Failure::with_text(Status::BadMessage, "the coordinator is not the caller"))
}

fn answer(
    verdict: Result<(), Status>,
    found: Option<(FileId, Kind)>,
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let verdict = verdict.err().unwrap_or(Status::Ok) as u32;
    PrepareReply { verdict, found: found.map(|(id, _)| id), kind: found.map(|(_, kind)| kind) }.encode(reply);
    Ok(Progress::Done)
}

fn prepare(core: &Rc<Core>, (coordinator, number): (u32, u64), change: PreparedChange) -> Result<(), Failure> {
    core.change([Record::PreparedPut { coordinator, number, change }])?;
    watch(core, coordinator, number);
    Ok(())
}

pub fn resolve_prepared(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let ResolvePreparedRequest { coordinator, number, commit } = ResolvePreparedRequest::from_bytes(params)?;
    check_coordinator(caller, coordinator)?;
    resolve(core, coordinator, number, commit)?;
    Ok(Progress::Done)
}

/// Does what was prepared, or lets it go. What is not known any more has been resolved before.
pub fn resolve(core: &Rc<Core>, coordinator: u32, number: u64, commit: bool) -> Result<(), Failure> {
    let change = core.tables.borrow().prepared.get(&(coordinator, number)).cloned();
    let done = Record::PreparedDelete { coordinator, number };
    match change {
        None => Ok(()),
        Some(PreparedChange::Tree { number: change }) => {
            sequencer::resolve_prepared(core, (coordinator, number), change, commit)
        }
        Some(_) if !commit => core.change([done]),
        Some(PreparedChange::Dentry { parent, name, id, kind }) => {
            // Both change, as far as they live here: what gets the name, and what had it, which loses it or gets
            // another one.
            let cursor = cursor_of_hash(dentry_hash(parent, &name));
            let before = core.tables.borrow().names.get(parent, &name, cursor).map(|(id, _)| id);
            let mut records = vec![Record::DentryPut { parent, name: &name, id, kind }, done];
            records.extend([Some(id), before].into_iter().flatten().filter_map(|file| renamed(core, file)));
            core.change(records)
        }
        Some(PreparedChange::Link { file, up: true }) => {
            let inode = crate::handlers::names::rename::linked(core, file)?;
            core.change([Record::InodePut(inode), done])
        }
        Some(PreparedChange::Link { file, up: false }) => {
            let mut transaction = core.store.begin();
            let mut records = vec![done];
            let reap = drop_link(core, file, &mut transaction, &mut records)?;
            core.commit(transaction, records)?;
            reap.start(core);
            Ok(())
        }
    }
}

/// Asks the coordinator of a prepared change now and then how it ended, for as long as it has not said so itself.
pub fn watch(core: &Rc<Core>, coordinator: u32, number: u64) {
    let core = core.clone();
    core.reactor.clone().spawn(Class::Background, async move {
        let mut backoff = Backoff::new(ASK_NS_FIRST, ASK_NS_MAX);
        loop {
            backoff.pause(&core.reactor).await;
            let stands = core.tables.borrow().prepared.contains_key(&(coordinator, number));
            if !stands || core.life.is_stopping() {
                return;
            }
            let request = AskDecisionRequest { number };
            let answer: Result<AskDecisionReply, Failure> = match coordinator == core.index {
                true => Ok(decision(&core, core.index, number)),
                false => core.peers.call(coordinator, Operation::AskDecision, &request, None).await,
            };
            if let Ok(decision) = answer
                && (decision.commit || decision.abort)
            {
                // While the journal is full this fails, and it is asked again.
                let _: Result<(), Failure> = resolve(&core, coordinator, number, decision.commit);
            }
        }
    });
}

pub fn ask_decision(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let number = AskDecisionRequest::from_bytes(params)?.number;
    decision(core, caller.peer.from_server, number).encode(reply);
    Ok(Progress::Done)
}

/// What this server, as a coordinator, has decided of a part of a server.
fn decision(core: &Core, server: u32, number: u64) -> AskDecisionReply {
    let part = (server, number);
    let commit = core
        .tables
        .borrow()
        .intents
        .values()
        .any(|intent| matches!(intent, Intent::Names { parts } if parts.contains(&part)));
    let abort = !commit && !core.undecided.contains(number);
    AskDecisionReply { commit, abort }
}
