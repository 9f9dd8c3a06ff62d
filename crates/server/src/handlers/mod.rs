//! What each request does, one file a subject; `operations` has the table of them.
//!
//! A handler runs at once and to its end when it needs nothing from others (`Progress::Done`). Else it has done nothing
//! yet and says what it waits for: `Blocked` and `After` are tried again from the start, `Later` goes on by itself.

pub mod bytes;
mod check;
pub mod directories;
pub mod files;
pub mod names;
pub mod operations;
mod participant;

pub use bytes::append::resume_append;
pub use bytes::copy::{COPY_COUNT_MAX, Copies};
pub use bytes::holders::Rounds;
pub use bytes::read_write::WriteEnd;
pub use bytes::registered_buffers::{SubmittedSource, hold_left, submitted_operation, watch_buffers, write_submitted};
pub use directories::rights::{change_rights, resume_rights};
pub use directories::rmdir::resume_removal;
pub use directories::sequencer::{Sequencer, have_all_know, resume_tree};
pub use files::close::reopened;
pub use files::file_locks::{after_release, forget_listeners};
pub use files::truncate::resume_truncate;
pub use names::listing::{LISTING_BYTES_MAX, Listings, removal_under_way, wait_for_names};
pub use names::open::create_submitted;
pub use names::prepare::watch;
pub use names::rename::drive_names;
pub use names::unlink::{drive_reap, reap_orphan, unlink, unlink_submitted};

use crate::core::{Core, Failure, Notice};
use crate::journal::tables::Tables;
use crate::names::cursor_of_hash;
use reactor::LocalFuture;
use wire::identity::dentry_hash;
use wire::messages::Entry;
use wire::{Encode, FileId, Kind, Slot, Status};

/// How far a handler has come.
pub enum Progress {
    /// The reply is written.
    Done,
    /// Nothing happened; to be tried again when this is told.
    Blocked(Notice<()>),
    /// Nothing happened; to be tried again when this has come about. Its failure is the request's.
    After(LocalFuture<Result<(), Failure>>),
    /// The reply's parameters come from this. What was done before it is first polled is undone where it is dropped
    /// then: a client's request that has queued for longer than its time begins anew.
    Later(LocalFuture<Result<Vec<u8>, Failure>>),
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
    core.prefetch_name(tables, (entry.parent, entry.name.as_bytes()), hash);
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
        Some(_) => match tables.inodes.kind(directory) {
            None => Err(Failure::new(Status::StaleDirectory, directory)),
            Some(Kind::Directory) => Ok(()),
            Some(_) => Err(Status::NotDirectory.into()),
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
