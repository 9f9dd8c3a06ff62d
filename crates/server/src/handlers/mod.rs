//! What each request does, one file a subject.
//!
//! A handler runs at once and to its end when it needs nothing from others (`Progress::Done`). Else it has done nothing
//! yet and says what it waits for: `Blocked` and `After` are tried again from the start, `Later` goes on by itself.

pub mod bytes;
mod check;
pub mod directories;
pub mod files;
pub mod names;
mod participant;

pub use bytes::append::{append, resume_append, write_chunks};
pub use bytes::copy::COPY_COUNT_MAX;
pub use bytes::read_write::{WriteEnd, locate_bytes, read, write};
pub use bytes::registered_buffers::{
    SubmittedSource, begin_submitted, commit_registered, watch_buffers, write_submitted,
};
pub use check::check;
pub use directories::rights::{change_rights, resume_rights};
pub use directories::rmdir::resume_removal;
pub use directories::sequencer::{Sequencer, have_all_know, resume_tree};
pub use files::close::reopened;
pub use files::extended_attributes::{get_extended, list_extended, set_extended};
pub use files::file_locks::{after_release, await_lock, forget_listeners};
pub use files::truncate::resume_truncate;
pub use names::find::find;
pub use names::listing::{LISTING_BYTES_MAX, read_directory, removal_under_way, wait_for_names};
pub use names::open::create_submitted;
pub use names::prepare::watch;
pub use names::rename::drive_names;
pub use names::unlink::{drive_reap, reap_orphan, unlink_submitted};

use crate::core::failure::Failure;
use crate::core::waiting::Notice;
use crate::core::{Caller, Core};
use crate::journal::tables::Tables;
use crate::leases::contact::requests as contact;
use crate::names::cursor_of_hash;
use crate::tree::shares::WaitPolicy;
use bytes::{allocate, copy, holders, registered_buffers, seek, space};
use directories::{rmdir, sequencer, tree};
use files::{attributes, close, extended_attributes, file_locks, rights, synchronise, truncate};
use names::{lookup, make, open, prepare, rename, temporary, unlink};
use reactor::LocalFuture;
use std::rc::Rc;
use wire::identity::dentry_hash;
use wire::messages::Entry;
use wire::{Encode, FileId, Kind, Operation, Slot, Status};

/// How far a handler has come.
pub enum Progress {
    /// The reply is written.
    Done,
    /// Nothing happened; to be tried again when this is told.
    Blocked(Notice<()>),
    /// Nothing happened; to be tried again when this has come about. Its failure is the request's.
    After(LocalFuture<Result<(), Failure>>),
    /// The reply's parameters come from this.
    Later(LocalFuture<Result<Vec<u8>, Failure>>),
}

/// Handles one request without body. The reply's parameters are appended to `reply`.
pub fn handle(
    core: &Rc<Core>,
    caller: &Caller,
    operation: Operation,
    params: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    match operation {
        Operation::Ping => lookup::ping(params),
        Operation::Lookup => lookup::lookup(core, params, reply),
        Operation::Stat => lookup::stat(core, caller, params, WaitPolicy::Whole, reply),
        Operation::StatId => lookup::stat_id(core, caller, params, WaitPolicy::Whole, reply),
        Operation::Look => lookup::stat(core, caller, params, WaitPolicy::Short, reply),
        Operation::LookId => lookup::stat_id(core, caller, params, WaitPolicy::Short, reply),
        Operation::StatFileSystem => lookup::stat_file_system(core, params, reply),
        Operation::Open | Operation::OpenExisting => open::open(core, caller, operation, params, reply),
        Operation::OpenId | Operation::OpenIdExisting => open::open_id(core, caller, operation, params, reply),
        Operation::OpenThrough => contact::open_through(core, caller, params, reply),
        Operation::Delegate => contact::delegation(core, caller, params, reply),
        Operation::Recall => contact::recall(core, caller, params),
        Operation::CloseHeld => contact::close_held(core, caller, params),
        Operation::ReclaimHeld => contact::reclaim_held(core, caller, params, reply),
        Operation::Link => rename::link(core, caller, params),
        Operation::Rename => rename::rename(core, caller, params),
        Operation::SetAttributes => attributes::set_attributes(core, caller, params, reply),
        Operation::MakeDirectory => make::make_directory(core, caller, params, reply),
        Operation::MakeSymlink => make::make_symlink(core, caller, params, reply),
        Operation::MakeNode => make::make_node(core, caller, params, reply),
        Operation::Unlink => unlink::unlink(core, caller, params),
        Operation::RemoveDirectory => rmdir::remove_directory(core, caller, params),
        Operation::Close => close::close(core, caller, params),
        Operation::CloseMany => close::close_many(core, caller, params),
        Operation::Reclaim => close::reclaim(core, caller, params, reply),
        Operation::MakeTemporary => temporary::make_temporary(core, caller, params, reply),
        Operation::LinkOpen => rename::link_open(core, caller, params),
        Operation::Truncate => truncate::truncate_request(core, caller, params, reply),
        Operation::ReserveAppend => truncate::reserve_append(core, caller, params, reply),
        Operation::Repair => check::repair(core, caller, params),
        Operation::Check => unreachable!("its reply has a body"),
        Operation::Allocate => allocate::allocate(core, caller, params, reply),
        Operation::Seek => seek::seek(core, params, reply),
        Operation::Allocated => space::allocated(core, params, reply),
        Operation::CopyRange => copy::copy_range(core, caller, params),
        Operation::ReserveChunks => holders::reserve_chunks(core, caller, params),
        Operation::Shutdown => lookup::shutdown(core, caller, params),
        Operation::Announce => participant::announce(core, caller, params, reply),
        Operation::Glimpse => participant::glimpse(core, params, reply),
        Operation::AnnounceDirectory => directories::attributes::announce_directory(core, caller, params, reply),
        Operation::GlimpseDirectory => directories::attributes::glimpse_directory(core, caller, params, reply),
        Operation::ReapChunks => participant::reap_chunks(core, params),
        Operation::TruncateChunks => participant::truncate_chunks(core, params),
        Operation::MarkDirectory => participant::mark_directory(core, caller, params),
        Operation::ResolveDirectory => participant::resolve_directory(core, caller, params),
        Operation::PrepareDentry => prepare::prepare_dentry(core, caller, params, reply),
        Operation::PrepareLink => prepare::prepare_link(core, caller, params, reply),
        Operation::NoteRenamed => rename::times::note_renamed(core, params),
        Operation::CheckCaller => rights::check_caller(core, params, reply),
        Operation::ResolvePrepared => prepare::resolve_prepared(core, caller, params),
        Operation::Synchronise => synchronise::synchronise(core, params, reply),
        Operation::AskDecision => prepare::ask_decision(core, caller, params, reply),
        Operation::Lock => file_locks::lock(core, caller, params, reply),
        Operation::Unlock => file_locks::unlock(core, caller, params),
        Operation::TestLock => file_locks::test_lock(core, caller, params, reply),
        Operation::AwaitLock => unreachable!("who waits for a lock is parked"),
        Operation::RemoveAttribute => extended_attributes::remove_extended(core, caller, params),
        Operation::GetAttribute | Operation::SetAttribute | Operation::ListAttributes => {
            unreachable!("requests with bodies have handlers of their own")
        }
        Operation::TreeLog => tree::tree_log(core, params, reply),
        Operation::PrepareTree => sequencer::prepare_tree(core, caller, params, reply),
        Operation::NumberChange => sequencer::number_change(core, caller, params),
        Operation::MarkTree => tree::mark_tree(core, caller, params),
        Operation::ResolveTree => tree::resolve_tree(core, caller, params),
        Operation::AskParents => tree::ask_parents(core, params, reply),
        Operation::RegisterBuffers => registered_buffers::register(core, caller, params, reply),
        Operation::Read
        | Operation::Locate
        | Operation::Write
        | Operation::CommitRegistered
        | Operation::Append
        | Operation::FetchChunks
        | Operation::WriteChunks
        | Operation::ReadDirectory
        | Operation::Find
        | Operation::Statistics => {
            unreachable!("requests with bodies have handlers of their own")
        }
    }
}

/// Where an entry belongs.
pub struct DentryPosition {
    pub slot: Slot,
    pub cursor: u64,
}

/// Checks an entry that a request names: its slot is ours, and its parent is a directory as far as this server knows.
pub fn locate(core: &Core, tables: &Tables, entry: &Entry<'_>) -> Result<DentryPosition, Failure> {
    let hash = dentry_hash(entry.parent, entry.name.as_bytes());
    let slot = (hash % u64::from(core.cluster.slot_count)) as Slot;
    if !core.owns_slot(slot) {
        return Err(Status::WrongServer.into());
    }
    if let Some(publisher) = &tables.publisher {
        publisher.prefetch_name(hash);
    }
    tables.check_not_removed(path_of(entry))?;
    tables.tree.check(entry.known, path_of(entry))?;
    check_directory(core, tables, entry.parent)?;
    Ok(DentryPosition { slot, cursor: cursor_of_hash(hash) })
}

/// The directories that an entry's path leads through, nearest first.
pub fn path_of<'e>(entry: &'e Entry<'_>) -> impl Iterator<Item = FileId> + 'e {
    std::iter::once(entry.parent).chain(entry.ancestors.0.iter().copied())
}

/// Refuses an id that is known here not to be a directory. Of a directory with its home elsewhere nothing is known.
pub fn check_directory(core: &Core, tables: &Tables, directory: FileId) -> Result<(), Failure> {
    match core.cluster.home_of(directory) {
        None => Err(Failure::with_text(Status::BadMessage, "id of a directory is out of range")),
        Some(home) if home != core.index => Ok(()),
        Some(_) => match tables.inodes.get(directory) {
            None => Err(Failure::new(Status::StaleDirectory, directory)),
            Some(inode) if inode.attributes.kind != Kind::Directory => Err(Status::NotDirectory.into()),
            Some(_) => Ok(()),
        },
    }
}

/// The mark under which nothing may be created in a directory now.
pub fn check_mark(tables: &Tables, directory: FileId) -> Option<Progress> {
    if tables.marks.is_empty() {
        return None;
    }
    tables.marks.get(&directory.0).map(|mark| Progress::Blocked(mark.resolved.clone()))
}

/// What is told about a name that is not here. While its directory is being removed nobody can tell: if it is gone, the
/// caller has to resolve it anew, for another one of its name may hold this one.
pub fn absent(tables: &Tables, directory: FileId) -> Result<Progress, Failure> {
    check_mark(tables, directory).ok_or_else(|| Status::NotFound.into())
}

/// What has to end before an entry may be looked at or changed: a change of names that other servers have a part in, or
/// the move of a directory that its path leads through.
pub fn lock_of(tables: &Tables, entry: &Entry<'_>) -> Option<Notice<()>> {
    let moving = tables.tree.wait_for(entry.known, path_of(entry));
    moving.or_else(|| tables.locks.of_dentry(entry.parent, entry.name.as_bytes()))
}

/// `lock_of`, as what a handler says.
pub fn check_lock(tables: &Tables, entry: &Entry<'_>) -> Option<Progress> {
    lock_of(tables, entry).map(Progress::Blocked)
}

/// Parameters that are encoded already.
pub struct EncodedParams(pub Vec<u8>);

impl Encode for EncodedParams {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

/// A step that goes on by itself.
pub fn later<R: Encode>(future: impl Future<Output = Result<R, Failure>> + 'static) -> Result<Progress, Failure> {
    Ok(Progress::Later(Box::pin(async move { Ok(future.await?.to_bytes()) })))
}
