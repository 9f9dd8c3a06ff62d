//! The table of operations: what this server does with each, one row an operation.
//!
//! Number, call level, class, and whether an operation has an outcome that is kept (else it may be repeated freely)
//! are the protocol's and stand in `wire::operation`. Everything else that depends on the operation stands here.

use super::bytes::{allocate, append, copy, holders, read_write, registered_buffers, seek, space};
use super::directories::{attributes as directories, rmdir, sequencer, tree};
use super::files::{attributes, close, extended_attributes, file_locks, rights, synchronise, truncate};
use super::names::{find, listing, lookup, make, open, prepare, rename, temporary, unlink};
use super::{Progress, check, participant};
use crate::backing;
use crate::core::{Caller, Core, Failure};
use crate::leases::contact::requests as contact;
use crate::process::statistics::report;
use crate::sessions::service::{Front, Request};
use crate::sessions::throttle;
use crate::tree::shares::WaitPolicy;
use reactor::ReplyBody;
use std::rc::Rc;
use wire::messages::{GlimpseDirectoryRequest, GlimpseRequest, NoteCountersRequest};
use wire::operation::LEVEL_CLIENT;
use wire::{Decode, Encode, Operation};

/// Does a request without body at once, or says what it waits for. Takes the parameters; appends those of the reply.
pub type StepHandler = fn(&Rc<Core>, &Caller, &[u8], &mut Vec<u8>) -> Result<Progress, Failure>;

/// Answers a question, which changes nothing, at once, with a reply that has a body. Takes and appends the same.
pub type QuestionHandler = fn(&Rc<Core>, &Caller, &[u8], &mut Vec<u8>) -> Result<ReplyBody, Failure>;

/// How an operation is done.
pub enum Handler {
    Step(StepHandler),
    Question(QuestionHandler),
    /// A question about the names of a directory, which waits for changes of them that are under way.
    Listing(QuestionHandler),
    /// In a task of its own, because its body has to arrive.
    Body(fn(Rc<Front>, Request)),
    /// Answered when something else has happened, without a task of its own.
    Parked(fn(&Rc<Core>, Request)),
}

/// Whether the answer to another server is a promise, to be given only when it is durable (durability, invariant 1).
pub enum Promise {
    Never,
    Always,
    /// It depends on the parameters.
    If(fn(&[u8]) -> bool),
}

/// A row of the table.
pub struct OperationRow {
    pub handler: Handler,
    pub promise: Promise,
    /// Whether another server may be asked this only when what we know is durable (durability, invariant 1).
    pub is_consequence: bool,
    /// Whether its reply is that of an open.
    pub opens: bool,
    /// Whether who asks this may go on by submissions (docs/shared-memory.md).
    pub leads_to_submissions: bool,
}

impl OperationRow {
    /// Tells of nothing that we did: a question, a wish for room, or what ends with the lives of both servers.
    fn no_consequence(self) -> OperationRow {
        OperationRow { is_consequence: false, ..self }
    }

    fn promise(self, promise: Promise) -> OperationRow {
        OperationRow { promise, ..self }
    }

    fn opens(self) -> OperationRow {
        OperationRow { opens: true, ..self }
    }

    fn leads_to_submissions(self) -> OperationRow {
        OperationRow { leads_to_submissions: true, ..self }
    }
}

fn encoded<R: Encode>(answer: Result<(R, ReplyBody), Failure>, reply: &mut Vec<u8>) -> Result<ReplyBody, Failure> {
    let (params, body) = answer?;
    params.encode(reply);
    Ok(body)
}

/// `NoteCounters`.
fn note_counters(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    core.statistics.note_client(&caller.peer, &NoteCountersRequest::from_bytes(params)?);
    Ok(Progress::Done)
}

/// The row of an operation.
pub fn row(operation: Operation) -> OperationRow {
    use Handler::{Body, Listing, Parked, Question, Step};
    use Operation as O;
    let row = |handler| OperationRow {
        handler,
        promise: if operation.level() > LEVEL_CLIENT { Promise::Always } else { Promise::Never },
        is_consequence: true,
        opens: false,
        leads_to_submissions: false,
    };
    match operation {
        // Names.
        O::Lookup => row(Step(|core, _, params, reply| lookup::lookup(core, params, reply))),
        O::Stat => {
            row(Step(|core, caller, params, reply| lookup::stat(core, caller, params, WaitPolicy::Whole, reply)))
        }
        O::StatId => {
            row(Step(|core, caller, params, reply| lookup::stat_id(core, caller, params, WaitPolicy::Whole, reply)))
        }
        O::Look => {
            row(Step(|core, caller, params, reply| lookup::stat(core, caller, params, WaitPolicy::Short, reply)))
        }
        O::LookId => {
            row(Step(|core, caller, params, reply| lookup::stat_id(core, caller, params, WaitPolicy::Short, reply)))
        }
        O::Open => row(Step(|core, caller, params, reply| open::open(core, caller, O::Open, params, reply)))
            .opens()
            .leads_to_submissions(),
        O::OpenExisting => {
            row(Step(|core, caller, params, reply| open::open(core, caller, O::OpenExisting, params, reply)))
        }
        O::OpenId => {
            row(Step(|core, caller, params, reply| open::open_id(core, caller, O::OpenId, params, reply))).opens()
        }
        O::OpenIdExisting => {
            row(Step(|core, caller, params, reply| open::open_id(core, caller, O::OpenIdExisting, params, reply)))
        }
        O::MakeDirectory => row(Step(make::make_directory)),
        O::MakeSymlink => row(Step(make::make_symlink)),
        O::MakeNode => row(Step(make::make_node)),
        O::MakeTemporary => row(Step(temporary::make_temporary)).opens(),
        O::Unlink => row(Step(|core, caller, params, _| unlink::unlink(core, caller, params))).leads_to_submissions(),
        O::Link => row(Step(|core, caller, params, _| rename::link(core, caller, params))),
        O::LinkOpen => row(Step(|core, caller, params, _| rename::link_open(core, caller, params))),
        O::Rename => row(Step(|core, caller, params, _| rename::rename(core, caller, params))),
        O::PrepareDentry => row(Step(prepare::prepare_dentry)),
        O::PrepareLink => row(Step(prepare::prepare_link)),
        O::ResolvePrepared => row(Step(|core, caller, params, _| prepare::resolve_prepared(core, caller, params))),
        O::AskDecision => row(Step(prepare::ask_decision)).no_consequence(),
        O::NoteRenamed => row(Step(|core, _, params, _| rename::times::note_renamed(core, params))),
        O::ReadDirectory => {
            row(Listing(|core, _, params, reply| encoded(listing::read_directory(core, params), reply)))
        }
        O::Find => row(Listing(|core, _, params, reply| encoded(find::find(core, params), reply))),

        // Directories, and the tree of them.
        O::RemoveDirectory => row(Step(|core, caller, params, _| rmdir::remove_directory(core, caller, params))),
        O::MarkDirectory => row(Step(|core, caller, params, _| participant::mark_directory(core, caller, params))),
        O::ResolveDirectory => {
            row(Step(|core, caller, params, _| participant::resolve_directory(core, caller, params)))
        }
        O::AnnounceDirectory => row(Step(directories::announce_directory)),
        // The times of the own share, which only a utimens at the home keeps: changes to come must be later than that.
        O::GlimpseDirectory => {
            row(Step(directories::glimpse_directory)).no_consequence().promise(Promise::If(|params| {
                GlimpseDirectoryRequest::from_bytes(params).is_ok_and(|request| request.kept)
            }))
        }
        O::TreeLog => row(Step(|core, _, params, reply| tree::tree_log(core, params, reply))),
        O::PrepareTree => row(Step(sequencer::prepare_tree)),
        O::NumberChange => row(Step(|core, caller, params, _| sequencer::number_change(core, caller, params))),
        O::MarkTree => row(Step(|core, caller, params, _| tree::mark_tree(core, caller, params))),
        O::ResolveTree => row(Step(|core, caller, params, _| tree::resolve_tree(core, caller, params))),
        O::AskParents => row(Step(|core, _, params, reply| tree::ask_parents(core, params, reply))),

        // Files: attributes, size, who has them open, locks.
        O::SetAttributes => row(Step(attributes::set_attributes)),
        O::CheckCaller => row(Step(|core, _, params, reply| rights::check_caller(core, params, reply))),
        O::Close => row(Step(|core, caller, params, _| close::close(core, caller, params))),
        O::CloseMany => row(Step(|core, caller, params, _| close::close_many(core, caller, params))),
        O::Reclaim => row(Step(close::reclaim)),
        O::Truncate => row(Step(truncate::truncate_request)),
        O::ReserveAppend => row(Step(truncate::reserve_append)),
        O::TruncateChunks => row(Step(|core, _, params, _| participant::truncate_chunks(core, params))),
        O::ReapChunks => row(Step(|core, _, params, _| participant::reap_chunks(core, params))),
        O::Announce => row(Step(participant::announce)).no_consequence(),
        O::Glimpse => row(Step(|core, _, params, reply| participant::glimpse(core, params, reply)))
            .no_consequence()
            .promise(Promise::If(|params| GlimpseRequest::from_bytes(params).is_ok_and(|request| request.retract))),
        O::Synchronise => row(Step(|core, _, params, reply| synchronise::synchronise(core, params, reply))),
        O::GetAttribute => row(Question(|core, caller, params, reply| {
            encoded(extended_attributes::get_extended(core, caller, params), reply)
        })),
        O::ListAttributes => row(Question(|core, caller, params, reply| {
            encoded(extended_attributes::list_extended(core, caller, params), reply)
        })),
        O::SetAttribute => row(Body(|front, request| front.receive(request, extended_attributes::set_extended))),
        O::RemoveAttribute => {
            row(Step(|core, caller, params, _| extended_attributes::remove_extended(core, caller, params)))
        }
        O::Lock => row(Step(file_locks::lock)),
        O::Unlock => row(Step(|core, caller, params, _| file_locks::unlock(core, caller, params))),
        O::TestLock => row(Step(file_locks::test_lock)),
        O::AwaitLock => row(Parked(file_locks::await_lock)),

        // Bytes.
        O::Read | O::FetchChunks => {
            row(Question(|core, _, params, reply| encoded(read_write::read(core, params), reply)))
        }
        O::Locate => row(Question(|core, _, params, reply| encoded(read_write::locate_bytes(core, params), reply))),
        O::Write => row(Body(|front, request| front.receive(request, read_write::write))).leads_to_submissions(),
        O::RegisterBuffers => row(Step(registered_buffers::register)),
        O::CommitRegistered => {
            row(Body(|front, request| front.receive(request, registered_buffers::commit_registered)))
                .leads_to_submissions()
        }
        O::Append => row(Body(|front, request| front.receive(request, append::append))),
        O::WriteChunks => row(Body(|front, request| front.receive(request, append::write_chunks))),
        O::ReserveChunks => {
            row(Step(|core, caller, params, _| holders::reserve_chunks(core, caller, params))).no_consequence()
        }
        O::Allocate => row(Step(allocate::allocate)),
        O::Allocated => row(Step(|core, _, params, reply| space::allocated(core, params, reply))),
        O::Seek => row(Step(|core, _, params, reply| seek::seek(core, params, reply))),
        O::CopyRange => row(Step(|core, caller, params, _| copy::copy_range(core, caller, params))),

        // Contacts: what they hold ends with the lives of both servers.
        O::OpenThrough => row(Step(contact::open_through)),
        O::Delegate => row(Step(contact::delegation)).no_consequence(),
        O::Recall => row(Step(|core, caller, params, _| contact::recall(core, caller, params)))
            .no_consequence()
            .promise(Promise::Never),
        O::AwaitPermit => row(Parked(throttle::await_permit)).no_consequence(),
        O::ReturnPermit => {
            row(Step(|core, caller, params, _| throttle::return_permit(core, caller, params))).no_consequence()
        }
        O::NoteCounters => row(Step(|core, caller, params, _| note_counters(core, caller, params))).no_consequence(),
        O::KeepEntries => row(Parked(Core::keep_entries)).no_consequence(),
        O::CloseHeld => row(Step(|core, caller, params, _| contact::close_held(core, caller, params))).no_consequence(),
        O::ReclaimHeld => row(Step(contact::reclaim_held)).no_consequence(),

        // The backing tree.
        O::AskPlace => row(Step(backing::ask_place)).no_consequence(),
        O::Flush => row(Step(backing::flush)),
        O::AskForFlush => row(Step(|core, _, params, reply| backing::ask_for_flush(core, params, reply)))
            .no_consequence()
            .promise(Promise::Never),
        O::Stage => row(Step(backing::stage)).no_consequence(),
        O::CacheState => row(Step(|core, _, params, reply| backing::cache_state(core, params, reply))).no_consequence(),
        O::ListCarried => row(Step(backing::list_carried)).no_consequence(),
        O::CompareShare => {
            row(Step(|core, caller, params, _| backing::compare_share(core, caller, params))).no_consequence()
        }
        O::ListChanges => row(Step(|core, _, params, reply| backing::list_changes(core, params, reply))),
        O::AskCarried => row(Step(|core, _, params, reply| backing::ask_carried(core, params, reply))),
        O::CarryInode => row(Step(|core, _, params, _| backing::carry_inode(core, params))),
        O::GiveUpName => row(Step(|core, _, params, _| backing::give_up_name(core, params))),
        O::WriteShare => row(Step(|core, _, params, _| backing::write_share(core, params))),
        O::NoteCarried => row(Step(|core, _, params, _| backing::note_carried(core, params))),
        O::NoteBehind => row(Step(|core, _, params, _| backing::note_behind(core, params))),

        // The server itself.
        O::Ping => row(Step(|_, _, params, _| lookup::ping(params))),
        O::StatFileSystem => row(Step(|core, _, params, reply| lookup::stat_file_system(core, params, reply))),
        O::Statistics => row(Question(|core, _, params, reply| encoded(report::statistics(core, params), reply))),
        O::Check => row(Question(|core, caller, params, reply| encoded(check::check(core, caller, params), reply))),
        O::Repair => row(Step(|core, caller, params, _| check::repair(core, caller, params))),
        O::Shutdown => row(Step(|core, caller, params, _| lookup::shutdown(core, caller, params))),
    }
}

/// Whether an operation of a client may change what others were told of names and attributes. Closing changes nothing
/// of it: sizes and times that are settled are those that were told before.
pub fn changes_entries(operation: Operation) -> bool {
    let is_lock = matches!(operation, Operation::Lock | Operation::Unlock);
    operation.level() == LEVEL_CLIENT && operation.is_mutating() && !is_lock
}
