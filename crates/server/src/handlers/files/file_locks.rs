//! Locks of files: Lock, AwaitLock, TestLock, Unlock, at the file's home; and whose turn it is when something was
//! released.
//!
//! A lock that has to be waited for is put into a queue and answered at once, so that it holds up neither the session's
//! sequences nor one of the places for requests under way; AwaitLock, which changes nothing, is answered when it is
//! granted.
//!
//! Invariants
//! 1. What is granted is journalled, as an after-image of the range that it is about, before anybody is told.
//! 2. After each change of what is held or who waits, nobody waits whose turn it is (`grant_turns`), except while the
//!    journal is full.

use crate::core::{Caller, Core, Failure};
use crate::files::file_locks::LockKey;
use crate::files::file_locks::queue::Waiter;
use crate::files::file_locks::ranges::OwnerRange;
use crate::handlers::Progress;
use crate::journal::records::Record;
use crate::sessions::service::{Request, finish};
use reactor::Class;
use std::rc::Rc;
use wire::messages::{
    AwaitLockRequest, HeldLock, LockDescription, LockOwner, LockRange, LockReply, LockRequest, LockSpace, LockState,
    OwnerKind, TestLockReply, TestLockRequest, UnlockRequest,
};
use wire::{Decode, Encode, Kind, Status};

/// A lock that is asked for, as the tables know it.
struct LockClaim {
    key: LockKey,
    owner: LockOwner,
    range: OwnerRange,
    ticket: u64,
}

fn claim_of(core: &Core, caller: &Caller, lock: &LockDescription) -> Result<LockClaim, Failure> {
    core.check_home(lock.file)?;
    let is_whole = lock.kind == OwnerKind::Description && lock.range == LockRange::WHOLE;
    if lock.ticket == 0 || (lock.space == LockSpace::Whole && !is_whole) {
        return Err(Failure::with_text(Status::Invalid, "a lock of a whole file is one of an open file description"));
    }
    Ok(LockClaim {
        key: (lock.file, lock.space),
        owner: LockOwner { session: caller.peer.session, kind: lock.kind, id: lock.owner },
        range: OwnerRange { start: lock.range.start, end: lock.range.end, exclusive: lock.exclusive },
        ticket: lock.ticket,
    })
}

fn check_file(core: &Core, claim: &LockClaim) -> Result<(), Failure> {
    let tables = core.tables.borrow();
    match tables.inodes.kind(claim.key.0) {
        None => Err(Failure::new(Status::StaleFile, claim.key.0)),
        Some(Kind::Symlink) => Err(Status::Invalid.into()),
        Some(_) => Ok(()),
    }
}

/// The entry by which a claim is granted, or undone. Errors: `NoLocks` beyond the bounds.
fn change(core: &Core, claim: &LockClaim, lock: bool) -> Result<Record<'static>, Status> {
    let tables = core.tables.borrow();
    match tables.file_locks.has_room(claim.key, &claim.owner, &claim.range, lock) {
        true => Ok(entry(claim, lock)),
        false => Err(Status::NoLocks),
    }
}

fn entry(claim: &LockClaim, held: bool) -> Record<'static> {
    let (file, space) = claim.key;
    Record::LockSet { file, space, owner: claim.owner, range: claim.range, held }
}

fn must_wait(core: &Core, claim: &LockClaim, before: usize) -> bool {
    let tables = core.tables.borrow();
    core.lock_queues.borrow().must_wait(&tables.file_locks, claim.key, &claim.owner, &claim.range, before)
}

fn holds(core: &Core, claim: &LockClaim) -> bool {
    let tables = core.tables.borrow();
    tables.file_locks.table(claim.key).is_some_and(|table| table.covers(&claim.owner, &claim.range))
}

pub fn lock(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = LockRequest::from_bytes(params)?;
    let claim = claim_of(core, caller, &request.wish)?;
    check_file(core, &claim)?;
    // Who does not wait looks at what is held alone.
    let queued_before = if request.wait { usize::MAX } else { 0 };
    if !must_wait(core, &claim, queued_before) {
        let granted = change(core, &claim, true)?;
        LockReply { state: LockState::Granted }.encode(reply);
        core.change([granted, caller.outcome(reply)])?;
        grant_turns(core);
        return Ok(Progress::Done);
    }
    if !request.wait {
        return Err(Status::WouldBlock.into());
    }
    let state = wait_in_queue(core, caller, &claim)?;
    LockReply { state }.encode(reply);
    Ok(Progress::Done)
}

/// Puts a request into the queue, unless it may be granted after all once it is there.
fn wait_in_queue(core: &Rc<Core>, caller: &Caller, claim: &LockClaim) -> Result<LockState, Failure> {
    let session = claim.owner.session;
    if core.lock_queues.borrow_mut().find(claim.key, session, claim.ticket).is_some() {
        return Ok(LockState::Waiting);
    }
    let is_crowded = {
        let (queues, bounds) = (core.lock_queues.borrow(), &core.options.bounds);
        queues.count() >= bounds.lock_waiters || queues.count_of_session(session) >= bounds.session_lock_waiters
    };
    let has_other_mode =
        core.tables.borrow().file_locks.held(claim.key, &claim.owner).is_some_and(|held| !held.is_empty());
    // As flock(2): a change of mode that has to wait, here or by asking again, lets go first, or two that share would
    // wait for each other.
    let lets_go = claim.key.1 == LockSpace::Whole && has_other_mode;
    if is_crowded {
        if lets_go {
            core.change([entry(claim, false)])?;
            grant_turns(core);
        }
        return Err(Failure::with_text(Status::NoLocks, "too many requests wait for locks already"));
    }
    if lets_go {
        core.change([entry(claim, false), caller.outcome(&LockReply { state: LockState::Waiting }.to_bytes())])?;
    }
    let waiter = Waiter { owner: claim.owner, range: claim.range, ticket: claim.ticket, listener: None };
    core.lock_queues.borrow_mut().push(claim.key, waiter);
    grant_turns(core);
    if core.lock_queues.borrow_mut().find(claim.key, session, claim.ticket).is_none() {
        return if holds(core, claim) { Ok(LockState::Granted) } else { Err(Status::NoLocks.into()) };
    }
    let is_deadlock = {
        let tables = core.tables.borrow();
        let queues = core.lock_queues.borrow();
        queues.is_deadlock(&tables.file_locks, claim.key, &claim.owner, &claim.range)
    };
    if is_deadlock {
        core.lock_queues.borrow_mut().remove(claim.key, session, claim.ticket);
        grant_turns(core);
        return Err(Status::Deadlock.into());
    }
    Ok(LockState::Waiting)
}

/// Answers when a request that is in the queue was granted; at once when it is not there, or when its session has as
/// many requests of this kind as it may: then it is asked again.
pub fn await_lock(core: &Rc<Core>, parked: Request) {
    match try_await(core, &parked) {
        Ok(None) => {}
        Ok(Some(state)) => return finish(core, parked, Ok(&LockReply { state }.to_bytes())),
        Err(failure) => return finish(core, parked, Err(&failure)),
    }
    let Ok(request) = AwaitLockRequest::from_bytes(&parked.incoming.params) else { return };
    let key = (request.wish.file, request.wish.space);
    let earlier = {
        let mut queues = core.lock_queues.borrow_mut();
        let waiter = queues.find(key, parked.caller.peer.session, request.wish.ticket);
        waiter.and_then(|waiter| waiter.listener.replace(parked))
    };
    earlier.into_iter().for_each(|earlier| dismiss(core, earlier));
}

/// `None` when the request waits.
fn try_await(core: &Core, parked: &Request) -> Result<Option<LockState>, Failure> {
    let request = AwaitLockRequest::from_bytes(&parked.incoming.params)?;
    let claim = claim_of(core, &parked.caller, &request.wish)?;
    check_file(core, &claim)?;
    let mut queues = core.lock_queues.borrow_mut();
    if queues.find(claim.key, claim.owner.session, claim.ticket).is_some() {
        let listeners = queues.other_listeners(claim.owner.session, claim.ticket);
        let may_listen = listeners < core.options.bounds.session_lock_listeners;
        return Ok((!may_listen).then_some(LockState::Waiting));
    }
    Ok(Some(if holds(core, &claim) { LockState::Granted } else { LockState::Unknown }))
}

fn dismiss(core: &Core, parked: Request) {
    let failure = Failure::with_text(Status::TimedOut, "nobody waits for the lock over this connection any more");
    finish(core, parked, Err(&failure));
}

pub fn test_lock(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let claim = claim_of(core, caller, &TestLockRequest::from_bytes(params)?.wish)?;
    check_file(core, &claim)?;
    let tables = core.tables.borrow();
    let table = tables.file_locks.table(claim.key);
    let first = table.and_then(|table| table.conflicts(&claim.owner, &claim.range).min_by_key(|(_, held)| held.start));
    let held = first.map(|(owner, held)| HeldLock {
        owner: *owner,
        range: LockRange { start: held.start, end: held.end },
        exclusive: held.exclusive,
    });
    TestLockReply { held }.encode(reply);
    Ok(Progress::Done)
}

/// Takes a request out of the queue; one that is not there any more, or never was, means what is held.
pub fn unlock(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let claim = claim_of(core, caller, &UnlockRequest::from_bytes(params)?.wish)?;
    let waiter = core.lock_queues.borrow_mut().remove(claim.key, claim.owner.session, claim.ticket);
    if let Some(waiter) = waiter {
        // Journalled although nothing of it is: sent again after a restart, it must not release what is held.
        let journalled = core.change([caller.outcome(&[])]);
        waiter.listener.into_iter().for_each(|listener| dismiss(core, listener));
        grant_turns(core);
        return journalled.map(|()| Progress::Done);
    }
    let is_held = {
        let tables = core.tables.borrow();
        let held = tables.file_locks.held(claim.key, &claim.owner);
        held.is_some_and(|held| held.overlapping(&claim.range).next().is_some())
    };
    if is_held {
        let released = change(core, &claim, false)?;
        core.change([released, caller.outcome(&[])])?;
        grant_turns(core);
    }
    Ok(Progress::Done)
}

/// Grants whatever may be granted now.
fn grant_turns(core: &Rc<Core>) {
    if core.tables.borrow_mut().file_locks.take_released() {
        end_stale_waiters(core);
    }
    if core.lock_queues.borrow().is_empty() {
        return;
    }
    while !core.is_journal_low() {
        let next = core.lock_queues.borrow().next_turn(&core.tables.borrow().file_locks);
        let Some((key, session, ticket)) = next else { return };
        let waiter = core.lock_queues.borrow_mut().remove(key, session, ticket);
        let Some(waiter) = waiter else { unreachable!("whose turn it is waits") };
        let claim = LockClaim { key, owner: waiter.owner, range: waiter.range, ticket };
        let granted = check_file(core, &claim).and_then(|()| Ok(change(core, &claim, true)?));
        let granted = granted.and_then(|granted| core.change([granted]));
        if let Some(listener) = waiter.listener {
            let reply = granted.map(|()| LockReply { state: LockState::Granted }.to_bytes());
            finish(core, listener, reply.as_ref().map(Vec::as_slice));
        }
    }
    let core = core.clone();
    core.reactor.clone().spawn(Class::Metadata, async move {
        core.checkpoints.finished().wait().await;
        grant_turns(&core);
    });
}

/// Locks went with their sessions or files: others may have got their turn.
pub fn after_release(core: &Rc<Core>) {
    let core = core.clone();
    core.reactor.clone().spawn(Class::Metadata, async move { grant_turns(&core) });
}

/// Those whose session or file is gone wait no longer.
fn end_stale_waiters(core: &Core) {
    let gone = {
        let tables = core.tables.borrow();
        core.lock_queues.borrow_mut().remove_where(|(file, _), waiter| {
            !tables.inodes.contains(file) || !tables.sessions.is_known(waiter.owner.session)
        })
    };
    let failure = Failure::with_text(Status::StaleFile, "the file is gone");
    for waiter in gone {
        waiter.listener.into_iter().for_each(|listener| finish(core, listener, Err(&failure)));
    }
}

/// Forgets who listened over a connection that ended; they wait on and may ask again.
pub fn forget_listeners(core: &Core, connection: u64) {
    if core.lock_queues.borrow().is_empty() {
        return;
    }
    let gone = core.lock_queues.borrow_mut().take_listeners(|parked| parked.caller.peer.connection == connection);
    gone.into_iter().for_each(|parked| dismiss(core, parked));
}
