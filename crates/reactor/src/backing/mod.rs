//! The seam to a backing tree: a directory of the site's file system, with all below it (docs/cache.md).
//!
//! [`BackingTree`] is what its users see. It keeps the bounds, the handles and the calls under way; whoever carries the
//! calls out stands behind the trait [`Backing`]: threads of this process ([`workers`]), or the simulated site
//! (`sim/backing.rs`).
//!
//! Invariants
//! 1. Nothing outside the root is looked at or touched: whatever is opened is resolved beneath an open directory and
//!    through no symbolic link, everything else is one name in an open directory, and `..` is no name.
//! 2. No call is made on the loop's thread; one that hangs delays those alone that need its place.
//! 3. A call owns its memory until it has ended (`calls.rs`); a dropped future changes nothing about that, nor about
//!    whether the call happens.
//! 4. `ENOENT` says that a name is not there. Where the directory itself was removed it is `ESTALE`, so that absence is
//!    never concluded from a tree that has gone.

mod calls;
mod directory;
mod file;
mod handles;
mod lanes;
pub(crate) mod layout;
pub(crate) mod name;
mod operation;
mod system;
#[cfg(test)]
pub(crate) mod tests;
mod workers;

pub use directory::{BackingDirectory, BackingListing};
pub use file::BackingFile;
pub use name::{EntryName, NAME_SIZE_MAX, PATH_SIZE_MAX, RelativePath, XattrKey};
pub use operation::{
    AttributeChange, Backing, BackingAttributes, BackingOperation, BackingOutcome, CALL_SIZE_MAX, CallId, CallMemory,
    FileKind, FileRead, FreeSpace, HandleId, Identity, ListEntry, ListPiece, ListPosition, MemoryPlace, OpenAs,
    RenameMode, SeekKind,
};
pub use workers::WORKERS_MAX;
pub(crate) use workers::WorkerBacking;

use crate::{Class, Nanos, Reactor};
use calls::{CallCore, CallHeld, CallPump, CallRequest, HandleGuard};
use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

/// Calls of one tree that are under way at a time at most.
pub const CALLS_MAX: usize = 32;
/// Handles of one tree that are open at a time at most.
pub const HANDLES_MAX: usize = 1024;

/// Why a call failed. It names what to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingError {
    word: &'static str,
    path: Rc<[u8]>,
    errno: i32,
}

impl BackingError {
    /// The kernel's number for it.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// Whether what the call was about is not there, in a directory that is.
    pub fn is_not_found(&self) -> bool {
        self.errno == libc::ENOENT
    }

    /// Whether a path leads to something else than what was there once, or nowhere.
    pub fn is_gone(&self) -> bool {
        matches!(self.errno, libc::ENOENT | libc::ENOTDIR | libc::EISDIR | libc::ELOOP | libc::ESTALE)
    }

    /// Whether a path below the root leads nowhere, or through what is no directory. A stale handle says nothing of the
    /// kind, and the root is never missing: what can't be seen just now may be there all the same.
    pub fn is_missing(&self) -> bool {
        let leads_nowhere = matches!(self.errno, libc::ENOENT | libc::ENOTDIR | libc::EISDIR | libc::ELOOP);
        leads_nowhere && !self.path.is_empty()
    }

    /// Whether another directory is where one was once (`BackingDirectory::open_known`).
    pub fn is_replaced(&self) -> bool {
        self.word == directory::OPEN_KNOWN && self.errno == libc::ESTALE
    }

    /// Whether this process has not the right to make the call.
    pub fn is_refused(&self) -> bool {
        matches!(self.errno, libc::EACCES | libc::EPERM)
    }

    /// Whether something is there that may not be.
    pub fn is_taken(&self) -> bool {
        self.errno == libc::EEXIST
    }

    /// Whether a directory is not empty that has to be.
    pub fn is_not_empty(&self) -> bool {
        matches!(self.errno, libc::ENOTEMPTY | libc::EEXIST)
    }

    /// Whether the file system has no such call, or not of this kind.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno, libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS)
    }

    /// Whether a file can't have one more name: the file system has no links, or not so many, or not from one of its
    /// parts to another, or not of files of others.
    pub fn is_no_link(&self) -> bool {
        self.is_unsupported() || matches!(self.errno, libc::EPERM | libc::EMLINK | libc::EXDEV)
    }

    /// Whether there is no extended attribute of that key.
    pub fn is_no_xattr(&self) -> bool {
        self.errno == libc::ENODATA
    }

    /// What the call was about, from the root; empty for the root itself.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The name of the operation, for people.
    pub fn operation(&self) -> &'static str {
        self.word
    }
}

impl fmt::Display for BackingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { b"." } else { &*self.path };
        let error = io::Error::from_raw_os_error(self.errno);
        write!(f, "backing directory: {} of {}: {error}", self.word, path.escape_ascii())
    }
}

impl std::error::Error for BackingError {}

impl From<BackingError> for io::Error {
    fn from(error: BackingError) -> io::Error {
        io::Error::new(io::Error::from_raw_os_error(error.errno).kind(), error.to_string())
    }
}

/// A call that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallStatus {
    /// Name of the operation, for people.
    pub operation: &'static str,
    /// What it is about, from the root.
    pub path: Vec<u8>,
    /// It is about several names in that, and which of them takes long is not known.
    pub is_of_several: bool,
    /// When it was asked for, by the loop's clock.
    pub since: Nanos,
    /// Whether it is under way, or waits for its turn.
    pub is_begun: bool,
    /// Whether nobody waits for it.
    pub is_abandoned: bool,
}

/// What a tree is doing and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackingStatistics {
    /// Calls that were begun.
    pub calls: u64,
    /// Calls that are under way.
    pub under_way: usize,
    /// The most there ever were.
    pub under_way_most: usize,
    /// Calls that wait for one of these to end.
    pub waiting: usize,
    /// Handles that are open, being opened or being closed.
    pub handles: usize,
    /// Those of them that nobody uses.
    pub handles_idle: usize,
    /// The most there ever were.
    pub handles_most: usize,
    /// Opens that wait for a handle.
    pub openers_waiting: usize,
}

/// What users of a tree share; the last of them ends it.
struct TreeUse(Rc<CallCore>);

impl Drop for TreeUse {
    fn drop(&mut self) {
        self.0.close_down();
    }
}

/// A backing tree of one loop. Clones, and what was opened through it, are uses of the same one; when the last is gone
/// no more calls are begun, and nobody waits for those that hang.
#[derive(Clone)]
pub struct BackingTree(Rc<TreeUse>);

impl Reactor {
    /// The backing tree at a directory; nothing is asked of the file system yet. Errors: `InvalidInput` for a path that
    /// is not absolute or has a NUL.
    pub fn backing_tree(&self, root: &Path) -> io::Result<BackingTree> {
        let is_good = root.is_absolute() && !root.as_os_str().as_bytes().contains(&0);
        if !is_good {
            let words = format!("{}: a backing directory has an absolute path", root.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
        }
        Ok(self.backing_tree_over(self.driver().backing(root)?))
    }

    /// A tree whose calls somebody else carries out.
    pub fn backing_tree_over(&self, backing: Box<dyn Backing>) -> BackingTree {
        let core = CallCore::new(backing);
        self.spawn(Class::Data, CallPump(core.clone()));
        BackingTree(Rc::new(TreeUse(core)))
    }
}

/// Threads of this process for the tree at a path, which has no NUL.
pub(crate) fn over_threads(root: &Path) -> io::Result<Box<dyn Backing>> {
    let root = CString::new(root.as_os_str().as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(Box::new(WorkerBacking::new(root)))
}

impl BackingTree {
    /// Who carries out its calls: `threads` or `sim`.
    pub fn carrier(&self) -> &'static str {
        self.core().name()
    }

    /// What is open by now is opened anew by whoever asks for it next: its path may lead elsewhere.
    pub fn set_all_stale(&self) {
        self.core().set_all_stale();
    }

    /// The root. It is opened by the first who asks, and stays what it was then for as long as anybody uses it. Errors:
    /// `ENOENT`, `ENOTDIR`, whatever the file system says.
    pub async fn root(&self) -> Result<BackingDirectory, BackingError> {
        let core = self.core();
        let shared = core.root.borrow().upgrade();
        let guard = match shared {
            Some(guard) => guard,
            None => {
                let open = |handle| BackingOperation::OpenRoot { handle };
                let guard = core.open(Rc::from([]), OpenAs::Directory, None, open).await?;
                // Another one may have opened it meanwhile: then that one is everybody's.
                let mut root = core.root.borrow_mut();
                match root.upgrade() {
                    Some(other) => other,
                    None => {
                        *root = Rc::downgrade(&guard);
                        guard
                    }
                }
            }
        };
        Ok(BackingDirectory::new(self.clone(), guard))
    }

    /// The calls that have not ended, longest first; for `status`.
    pub fn calls(&self) -> Vec<CallStatus> {
        self.core().calls()
    }

    /// Whether `sync_files` is one sync for all of them, which is known when the root is open.
    pub fn syncs_at_once(&self) -> bool {
        self.core().syncs_at_once()
    }

    /// Makes several files durable, as [`BackingFile::sync`] does one: by one sync of the file system where that says
    /// what was lost, else one after the other. What comes is what became of each.
    pub async fn sync_files(&self, files: &[BackingFile]) -> Vec<Result<(), BackingError>> {
        let Some(first) = files.first() else { return Vec::new() };
        let held = CallHeld { files: files.iter().map(|file| file.guard().clone()).collect(), ..CallHeld::default() };
        let operation = BackingOperation::SyncFiles { files: held.files.iter().map(|guard| guard.id).collect() };
        let (path, changes, word) = (first.guard().path.clone(), Default::default(), operation.word());
        let result = self.core().call(CallRequest { operation, path, held, changes }).await.result;
        match result.map(|outcome| expect_outcome!(outcome, Synced)) {
            Ok(results) => {
                let told = |(file, result): (&BackingFile, Result<(), i32>)| {
                    result.map_err(|errno| BackingError { word, path: file.guard().path.clone(), errno })
                };
                files.iter().zip(results).map(told).collect()
            }
            Err(error) => files.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// What it is doing.
    pub fn statistics(&self) -> BackingStatistics {
        self.core().statistics()
    }

    fn core(&self) -> &Rc<CallCore> {
        &self.0.0
    }

    /// Makes a call that is about a path and refers to a handle.
    async fn ask(
        &self,
        handle: &Rc<HandleGuard>,
        path: Rc<[u8]>,
        operation: BackingOperation,
    ) -> Result<BackingOutcome, BackingError> {
        let held = CallHeld { handles: [Some(handle.clone()), None], ..CallHeld::default() };
        let changes = Default::default();
        self.core().call(CallRequest { operation, path, held, changes }).await.result
    }
}

/// The error of a call that was not made, for a name that is none.
fn refusal(word: &'static str, directory: &[u8], name: &[u8]) -> impl FnOnce(i32) -> BackingError {
    let path = name::joined(directory, name);
    move |errno| BackingError { word, path, errno }
}

/// Takes what a call brought, which is what was asked for.
macro_rules! expect_outcome {
    ($outcome:expr, $kind:ident) => {
        match $outcome {
            BackingOutcome::$kind(value) => value,
            other => unreachable!("a call brings what was asked for, not {other:?}"),
        }
    };
}
use expect_outcome;
