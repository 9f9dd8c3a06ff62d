//! The sequencer of tree changes, which the home of the root directory is: it numbers them, lets one after the other
//! happen, looks for cycles, has all servers mark what moves, and tells them how it ended.
//!
//! A rename of directories asks for it as for one more part of the change (`rename`): it is prepared here, its
//! coordinator decides, and a sequencer that hears nothing asks. A change of rights is the sequencer's own to decide;
//! it is marked too, though nothing waits for that, so that every server knows which numbers there may be.
//!
//! Invariants
//! 1. Who has the turn at `TURN` has an intent in the journal from before the first mark until all servers have heard
//!    the end; a restart takes the turn for it first. So there is one tree change at a time.
//! 2. A change whose intent says `Marking` and that is not among the prepared ones is given up by a restart.

use crate::coordination::intents::{Intent, RemovalPhase};
use crate::coordination::prepared::PreparedChange;
use crate::coordination::retry::{Backoff, LastFailure, retry};
use crate::coordination::{ask_all, settle};
use crate::core::{Caller, Core, Failure, Notice, Turn, all};
use crate::handlers::directories::tree::{check_entries, mark, parents, resolution, wait_for_trails};
use crate::handlers::names::prepare::check_coordinator;
use crate::handlers::{EncodedParams, Progress, later};
use crate::journal::records::Record;
use crate::store::FastMap;
use crate::tree::undone;
use reactor::{Class, LocalFuture, Nanos};
use std::cell::RefCell;
use std::rc::Rc;
use wire::messages::{
    AskParentsReply, AskParentsRequest, Empty, MarkTreeRequest, NumberChangeRequest, PrepareTreeReply,
    PrepareTreeRequest, ResolveTreeRequest, SINCE_ASKED, TreeEntry, tree_kinds,
};
use wire::{Decode, Encode, FileId, Operation, Status};

/// The turn of the one tree change; no file has this id.
const TURN: u64 = u64::MAX;
const PAUSE_NS: Nanos = 100_000_000;
/// More directories than this above one another mean that something is wrong.
const DEPTH_MAX: usize = 1 << 20;

/// What the sequencer keeps in memory.
#[derive(Default)]
pub struct Sequencer {
    /// Held for the change that is prepared, until it is resolved.
    turn: RefCell<Option<Turn>>,
    /// Changes that are being prepared: one that is asked for twice is prepared once.
    preparing: RefCell<FastMap<(u32, u64), Notice<()>>>,
    /// Why the change that is ending has not ended.
    last_failure: LastFailure,
}

/// The server that is the sequencer.
pub fn sequencer(core: &Core) -> u32 {
    core.cluster.home_of(FileId::ROOT).unwrap_or_default()
}

fn check_sequencer(core: &Core) -> Result<(), Failure> {
    if sequencer(core) == core.index { Ok(()) } else { Err(Status::WrongServer.into()) }
}

pub fn prepare_tree(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = PrepareTreeRequest::from_bytes(params)?;
    check_sequencer(core)?;
    check_coordinator(caller, request.coordinator)?;
    check_entries(core, &request.entries)?;
    let key = (request.coordinator, request.number);
    if let Some(PreparedChange::Tree { number }) = core.tables.borrow().prepared.get(&key) {
        PrepareTreeReply { verdict: Status::Ok as u32, number: *number }.encode(reply);
        return Ok(Progress::Done);
    }
    if let Some(ended) = core.sequencer.preparing.borrow().get(&key) {
        return Ok(Progress::Blocked(ended.clone()));
    }
    let ended = Notice::new();
    core.sequencer.preparing.borrow_mut().insert(key, ended.clone());
    let (core, deadline) = (core.clone(), caller.deadline);
    later(async move {
        let result = prepare(&core, &request, deadline).await;
        core.sequencer.preparing.borrow_mut().remove(&key);
        ended.tell(());
        let (verdict, number) = match result {
            Ok(number) => (Status::Ok, number),
            Err(failure) if is_verdict(failure.status) => (failure.status, 0),
            Err(failure) => return Err(failure),
        };
        Ok(PrepareTreeReply { verdict: verdict as u32, number })
    })
}

fn is_verdict(status: Status) -> bool {
    matches!(status, Status::Busy | Status::NotEmpty | Status::Invalid)
}

/// Has a change marked everywhere; its number. Refusals are `Invalid` for a cycle, `NotEmpty` for a directory that
/// can't be replaced, and `Busy`.
pub async fn prepare(core: &Rc<Core>, request: &PrepareTreeRequest, deadline: Nanos) -> Result<u64, Failure> {
    let turn = take_turn(core, deadline).await?;
    if request.reparents {
        for moved in request.entries.iter().filter(|entry| entry.kind == tree_kinds::MOVED) {
            check_cycle(core, moved, deadline).await?;
        }
    }
    let number = next_number(core)?;
    let entries = request.entries.clone();
    core.change([intent(number, RemovalPhase::Marking, &entries)])?;
    let marked = match mark_all(core, number, &entries, deadline).await {
        Ok(()) => {
            let change = PreparedChange::Tree { number };
            core.change([Record::PreparedPut { coordinator: request.coordinator, number: request.number, change }])
        }
        Err(failure) => Err(failure),
    };
    match marked {
        Ok(()) => {
            core.sequencer.turn.replace(Some(turn));
            crate::handlers::names::prepare::watch(core, request.coordinator, request.number);
            if request.coordinator == core.index {
                // As if it were confirmed to another server: where a power loss takes our decision back, this is left,
                // and says that the change may have been told. A medium that refuses it stops the server, or has it say
                // so with the next sync.
                let _: Result<(), Failure> = core.syncs.durable().await;
            }
            Ok(number)
        }
        Err(failure) => {
            give_up(core, number, entries, turn);
            Err(failure)
        }
    }
}

/// A number for a change, after which the next one is left for the case that it comes to nothing.
fn next_number(core: &Rc<Core>) -> Result<u64, Failure> {
    let numbers = core.next_numbers(2)?;
    assert_eq!(numbers.end - 1, undone(numbers.start), "tree, invariant 2");
    Ok(numbers.start)
}

fn intent(number: u64, phase: RemovalPhase, entries: &[TreeEntry]) -> Record<'static> {
    Record::IntentPut { number, intent: Intent::Tree { phase, entries: entries.to_vec() } }
}

async fn take_turn(core: &Rc<Core>, deadline: Nanos) -> Result<Turn, Failure> {
    let turn = core.wait_until(deadline, "", core.turns.take(TURN)).await;
    turn.map_err(|_| {
        let tables = core.tables.borrow();
        let undecided = tables.prepared.iter().find(|(_, change)| matches!(change, PreparedChange::Tree { .. }));
        let text = match (&*core.sequencer.last_failure.borrow(), undecided) {
            (Some(last_failure), _) => {
                let words = String::from_utf8_lossy(&last_failure.text);
                format!("not all servers know the end of an earlier change of directories: {words}")
            }
            (None, Some(((coordinator, _), _))) => {
                format!("server {coordinator} has not said how an earlier change of directories ended")
            }
            (None, None) => "earlier changes of directories take long".to_owned(),
        };
        Failure::with_text(Status::TimedOut, text)
    })
}

/// Walks from the new parent to the root; parents do not change meanwhile, for the turn is ours.
async fn check_cycle(core: &Rc<Core>, moved: &TreeEntry, deadline: Nanos) -> Result<(), Failure> {
    let mut here = moved.parent;
    for _ in 0..DEPTH_MAX {
        if here == moved.directory {
            return Err(Failure::with_text(Status::Invalid, "a directory can't be moved into itself"));
        }
        if here == FileId::ROOT {
            return Ok(());
        }
        let above = match core.cluster.home_of(here) {
            Some(home) if home == core.index => parents(core, here)?,
            Some(home) => {
                let request = AskParentsRequest { directory: here };
                let reply: AskParentsReply =
                    core.peers.call(home, Operation::AskParents, &request, Some(deadline)).await?;
                reply.parents
            }
            None => return Err(Failure::with_text(Status::BadMessage, "id of a directory is out of range")),
        };
        if above.contains(&moved.directory) {
            return Err(Failure::with_text(Status::Invalid, "a directory can't be moved into itself"));
        }
        here = above.last().copied().ok_or_else(|| Failure::new(Status::StaleDirectory, here))?;
    }
    Err(Failure::with_text(Status::Corrupt, "a directory has no way to the root"))
}

/// Has all servers mark the directories. That something is not empty outranks that a server can't be reached.
async fn mark_all(core: &Rc<Core>, number: u64, entries: &[TreeEntry], deadline: Nanos) -> Result<(), Failure> {
    mark(core, number, entries)?;
    let mut asked: Vec<LocalFuture<Result<(), Failure>>> = Vec::new();
    for server in core.other_servers() {
        let (core, request) = (core.clone(), MarkTreeRequest { number, entries: entries.to_vec() });
        asked.push(Box::pin(async move {
            core.peers.call::<Empty>(server, Operation::MarkTree, &request, Some(deadline)).await.map(drop)
        }));
    }
    let (own, moved) = (core.clone(), entries.to_vec());
    asked.push(Box::pin(async move { wait_for_trails(&own, &moved, deadline).await }));
    let answers = all(asked).await;
    let refusals = || answers.iter().filter_map(|answer| answer.as_ref().err());
    let not_empty = refusals().find(|failure| failure.status == Status::NotEmpty);
    not_empty.or_else(|| refusals().next()).map_or(Ok(()), |failure| Err(failure.clone()))
}

/// What the coordinator decided of a change that was prepared here.
pub fn resolve_prepared(core: &Rc<Core>, key: (u32, u64), number: u64, commit: bool) -> Result<(), Failure> {
    let entries = match core.tables.borrow().intents.get(&number) {
        Some(Intent::Tree { entries, .. }) => entries.clone(),
        _ => return Err(Failure::with_text(Status::Corrupt, format!("tree change {number} has no intent"))),
    };
    let done = Record::PreparedDelete { coordinator: key.0, number: key.1 };
    // A coordinator that lost power may have decided otherwise before, and told so.
    let (ended, renamed) = match commit {
        true => (number, Record::Nothing),
        false => (undone(number), Record::IntentDelete(number)),
    };
    conclude(core, ended, commit, &entries, [done, renamed])?;
    if let Some(turn) = core.sequencer.turn.take() {
        drive(core, ended, entries, commit, turn, Notice::new());
    }
    Ok(())
}

const NOTHING: [Record<'static>; 2] = [Record::Nothing, Record::Nothing];

/// Journals the end of a change, with this server's share of it.
fn conclude(
    core: &Rc<Core>,
    number: u64,
    commit: bool,
    entries: &[TreeEntry],
    done: [Record<'static>; 2],
) -> Result<(), Failure> {
    let phase = if commit { RemovalPhase::Committed } else { RemovalPhase::Aborting };
    let mut records = resolution(core, number, commit, entries);
    records.push(intent(number, phase, entries));
    records.extend(done);
    core.change(records)
}

/// Tells all others the end of a change until each has heard it; only then the next one's turn comes.
fn drive(core: &Rc<Core>, number: u64, entries: Vec<TreeEntry>, commit: bool, turn: Turn, done: Notice<()>) {
    let core = core.clone();
    core.reactor.clone().spawn(Class::Metadata, async move {
        let request = ResolveTreeRequest { number, commit, entries };
        let last_failure = core.sequencer.last_failure.clone();
        last_failure.take();
        if !ask_all(&core, core.other_servers(), Operation::ResolveTree, &request, Some(last_failure.clone())).await {
            // This server stops, and goes on with it after its next start. Nobody else's turn comes until then.
            std::future::pending::<()>().await;
        }
        settle(&core, number).await;
        last_failure.take();
        drop(turn);
        done.tell(());
    });
}

/// Ends a change of which nothing came.
fn give_up(core: &Rc<Core>, number: u64, entries: Vec<TreeEntry>, turn: Turn) {
    let core = core.clone();
    core.reactor.clone().spawn(Class::Metadata, async move {
        let attempt = async || conclude(&core, number, false, &entries, NOTHING);
        if !retry(&core, Backoff::steady(PAUSE_NS), None, attempt).await {
            std::future::pending::<()>().await;
        }
        drive(&core, number, entries, false, turn, Notice::new());
    });
}

/// Goes on with a change after a restart; before anything else asks for its turn.
pub fn resume_tree(core: &Rc<Core>, number: u64, phase: RemovalPhase, entries: Vec<TreeEntry>) {
    let Some(turn) = core.turns.try_take(TURN) else {
        unreachable!("there is one tree change under way, and nothing else runs at recovery");
    };
    let is_prepared =
        |change: &PreparedChange| matches!(change, PreparedChange::Tree { number: prepared } if *prepared == number);
    let waits = core.tables.borrow().prepared.values().any(is_prepared);
    match phase {
        RemovalPhase::Marking if waits => drop(core.sequencer.turn.replace(Some(turn))),
        RemovalPhase::Marking => give_up(core, number, entries, turn),
        RemovalPhase::Aborting => drive(core, number, entries, false, turn, Notice::new()),
        RemovalPhase::Committed => drive(core, number, entries, true, turn, Notice::new()),
    }
}

pub fn number_change(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let NumberChangeRequest { directory, kind, since } = NumberChangeRequest::from_bytes(params)?;
    let since = since_asked(core, since);
    check_sequencer(core)?;
    if !matches!(kind, tree_kinds::RIGHTS | tree_kinds::ALL) {
        return Err(Failure::with_text(Status::BadMessage, "a tree change is not valid"));
    }
    let (core, deadline) = (core.clone(), caller.deadline);
    later(async move {
        number_one(&core, directory, kind, since, deadline).await?;
        Ok(EncodedParams(Vec::new()))
    })
}

/// The number that a change of everything has to be above, for whoever asks now.
fn since_asked(core: &Core, since: u64) -> u64 {
    if since == SINCE_ASKED { core.tables.borrow().next_number - 1 } else { since }
}

/// Has the sequencer number something that has happened (`RIGHTS`, `ALL`), and all servers know it. `since`: see
/// `NumberChangeRequest`.
pub async fn have_all_know(core: &Rc<Core>, directory: FileId, kind: u8, since: u64) -> Result<(), Failure> {
    let server = sequencer(core);
    if server == core.index {
        let since = since_asked(core, since);
        return number_one(core, directory, kind, since, core.reactor.now() + core.options.timeout).await;
    }
    let request = NumberChangeRequest { directory, kind, since };
    core.peers.call::<Empty>(server, Operation::NumberChange, &request, None).await.map(drop)
}

async fn number_one(core: &Rc<Core>, directory: FileId, kind: u8, since: u64, deadline: Nanos) -> Result<(), Failure> {
    let entries = vec![TreeEntry { directory, kind, parent: FileId::default() }];
    check_entries(core, &entries)?;
    let turn = take_turn(core, deadline).await?;
    // All servers ask for it at the same time, for all bury the same directories; once is enough.
    if kind == tree_kinds::ALL && core.tables.borrow().tree.emptied() > since {
        return Ok(());
    }
    let number = next_number(core)?;
    core.change([intent(number, RemovalPhase::Marking, &entries)])?;
    let marked = mark_all(core, number, &entries, deadline).await;
    if let Err(failure) = marked.and_then(|()| conclude(core, number, true, &entries, NOTHING)) {
        give_up(core, number, entries, turn);
        return Err(failure);
    }
    let done = Notice::new();
    drive(core, number, entries, true, turn, done.clone());
    core.wait_until(deadline, "not all servers could be told of the new rights yet", done.wait()).await
}
