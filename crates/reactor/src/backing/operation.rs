//! What calls on a backing tree ask for and bring, and the trait of those who carry them out.

use super::name::{EntryName, RelativePath, XattrKey};
use crate::Nanos;
use crate::region::Span;
use std::task::{Context, Poll};

/// The most bytes that one call reads or writes.
pub const CALL_SIZE_MAX: usize = 256 << 10;

/// Names an open handle, below [`super::HANDLES_MAX`]. It names another one only after its close has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HandleId(pub(crate) u32);

/// Names a call under way. It names another one only after this one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub(crate) u32);

/// What something is opened as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenAs {
    /// A directory, to do something in it (`O_PATH`): its own bits of reading are not needed.
    Directory,
    /// A directory, to list its names.
    Listing,
    /// A regular file, to read.
    Read,
    /// A regular file, to read and write.
    Write,
    /// A regular file that is not there yet, with these bits, to read and write. The process's umask counts.
    Create(u32),
}

/// What a rename does with a name that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    Replace,
    /// The rename fails with `EEXIST`. `EINVAL` where the file system can't.
    NoReplace,
    /// Both names change places; both have to be there. `EINVAL` where the file system can't.
    Exchange,
}

/// What is looked for from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekKind {
    /// The first byte of data.
    Data,
    /// The first byte of a hole; there is one at the end of every file.
    Hole,
}

/// What something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO, a socket or a device, of which this seam opens none.
    Other,
}

/// What tells a file of now from a file of then: if all of it is equal, nobody has changed it (docs/cache.md has the
/// limits of that).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The file system's number.
    pub device: u64,
    /// The inode's number in it.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Nanoseconds since the epoch.
    pub mtime: i64,
    /// Nanoseconds since the epoch.
    pub ctime: i64,
}

/// What the tree says of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingAttributes {
    /// What it is.
    pub kind: FileKind,
    /// Inode number, size and times.
    pub identity: Identity,
    /// The twelve bits of rights.
    pub mode: u32,
    /// User that owns it.
    pub owner: u32,
    /// Group that owns it.
    pub group: u32,
    /// Names that it has.
    pub link_count: u64,
    /// Bytes that it takes, where the file system tells.
    pub space: u64,
    /// Bytes that one is to read and write at a time (`st_blksize`).
    pub block_size: u64,
    /// Where a symbolic link leads; nobody follows it.
    pub target: Option<Box<[u8]>>,
}

/// What was read of a file from its beginning, and what it was after that. If that is what it was known as before, it
/// was that all the time, for ctime does not go back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRead {
    /// Bytes that there were: fewer than asked for only where the file ends.
    pub size: usize,
    /// Its attributes when all of that was read.
    pub after: BackingAttributes,
}

/// Attributes to be set; those that are none stay. The owner is set first, then mode, then times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// User and group.
    pub owner: Option<(u32, u32)>,
    /// The twelve bits. `EOPNOTSUPP` for symbolic links, which have none.
    pub mode: Option<u32>,
    /// When it was last read: nanoseconds since the epoch.
    pub atime: Option<i64>,
    /// When it was last written to: nanoseconds since the epoch.
    pub mtime: Option<i64>,
}

/// A name of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListEntry {
    /// The name, which may be any bytes but NUL and `/`.
    pub name: Box<[u8]>,
    /// What it stands for, where the file system tells; else it has to be looked at.
    pub kind: Option<FileKind>,
    /// Its inode's number.
    pub inode: u64,
}

/// Some names of a directory, at most 64 KiB as the kernel gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPiece {
    /// The names, without `.` and `..`. There may be none although there are more.
    pub entries: Vec<ListEntry>,
    /// Where to go on; nothing at the end.
    pub next: Option<ListPosition>,
}

/// Where a listing goes on (`d_off`): of use for the directory that it came from, also after it was opened again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListPosition(pub(crate) u64);

/// How much a file system has. Sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpace {
    /// What the file system calls itself, the same on all hosts and over mounts; 0 where it does not say (NFS, FUSE).
    pub file_system: u64,
    /// All of it.
    pub size: u64,
    /// What this user may still take.
    pub available: u64,
    /// Files there may be; 0 where that is not known.
    pub file_count: u64,
    /// Files that this user may still make.
    pub file_count_available: u64,
}

/// Memory of a call. Whoever carries the call out touches it until the call has ended.
#[derive(Clone, Copy, Debug)]
pub struct MemoryPlace {
    pub(crate) address: *mut u8,
    pub(crate) size: usize,
}

// SAFETY: an address and a number; whoever reads or writes there is told by `Backing` for how long he may.
unsafe impl Send for MemoryPlace {}

impl MemoryPlace {
    /// What is left behind the first bytes.
    pub(crate) fn rest(self, done: usize) -> MemoryPlace {
        assert!(done <= self.size, "no more is moved than was asked for");
        MemoryPlace { address: self.address.wrapping_add(done), size: self.size - done }
    }
}

/// Memory that is read into or written from.
#[derive(Debug)]
pub enum CallMemory {
    /// A part of a region.
    Span(Span),
    /// Bytes of their own.
    Bytes(Vec<u8>),
}

impl CallMemory {
    pub(crate) fn place(&mut self) -> MemoryPlace {
        match self {
            CallMemory::Span(span) => MemoryPlace { address: span.pointer(), size: span.size as usize },
            CallMemory::Bytes(bytes) => MemoryPlace { address: bytes.as_mut_ptr(), size: bytes.len() },
        }
    }

    /// The bytes, if it is no span.
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            CallMemory::Bytes(bytes) => bytes,
            CallMemory::Span(_) => Vec::new(),
        }
    }
}

impl From<Vec<u8>> for CallMemory {
    fn from(bytes: Vec<u8>) -> CallMemory {
        CallMemory::Bytes(bytes)
    }
}

impl From<Span> for CallMemory {
    fn from(span: Span) -> CallMemory {
        CallMemory::Span(span)
    }
}

/// One call, as it is carried out. No name in it can lead out of its directory.
#[derive(Debug)]
#[expect(missing_docs, reason = "the methods of BackingDirectory, BackingFile and BackingListing say what each does")]
pub enum BackingOperation {
    OpenRoot { handle: HandleId },
    Open { handle: HandleId, parent: HandleId, path: RelativePath, open_as: OpenAs },
    OpenListing { handle: HandleId, directory: HandleId },
    Close { handle: HandleId },
    List { listing: HandleId, from: ListPosition },
    Look { directory: HandleId, name: EntryName },
    LookAll { directory: HandleId, names: Vec<EntryName> },
    LookOpen { handle: HandleId },
    Read { file: HandleId, offset: u64, memory: MemoryPlace },
    ReadFiles { directory: HandleId, files: Vec<(RelativePath, MemoryPlace)> },
    Write { file: HandleId, offset: u64, memory: MemoryPlace },
    Sync { handle: HandleId },
    SyncFiles { files: Vec<HandleId> },
    SetSize { file: HandleId, size: u64 },
    SetOpenAttributes { file: HandleId, size: u64, change: AttributeChange },
    MakeDirectory { directory: HandleId, name: EntryName, mode: u32 },
    MakeSymlink { directory: HandleId, name: EntryName, target: std::ffi::CString },
    Link { from: (HandleId, EntryName), to: (HandleId, EntryName) },
    Rename { from: (HandleId, EntryName), to: (HandleId, EntryName), mode: RenameMode },
    Remove { directory: HandleId, name: EntryName, is_directory: bool },
    SetAttributes { directory: HandleId, name: EntryName, change: AttributeChange },
    ListXattrs { directory: HandleId, name: EntryName },
    GetXattr { directory: HandleId, name: EntryName, key: XattrKey },
    SetXattr { directory: HandleId, name: EntryName, key: XattrKey, value: Vec<u8> },
    RemoveXattr { directory: HandleId, name: EntryName, key: XattrKey },
    Space { handle: HandleId },
    PreferredSize { handle: HandleId },
    Seek { file: HandleId, offset: u64, kind: SeekKind },
}

impl BackingOperation {
    /// Its name for people.
    pub fn word(&self) -> &'static str {
        use BackingOperation::*;
        match self {
            OpenRoot { .. } | Open { .. } | OpenListing { .. } => "open",
            Close { .. } => "close",
            List { .. } => "list",
            Look { .. } | LookAll { .. } | LookOpen { .. } => "look",
            Read { .. } | ReadFiles { .. } => "read",
            Write { .. } => "write",
            Sync { .. } | SyncFiles { .. } => "sync",
            SetSize { .. } => "set size",
            MakeDirectory { .. } | MakeSymlink { .. } => "make",
            Link { .. } => "link",
            Rename { .. } => "rename",
            Remove { .. } => "remove",
            SetAttributes { .. } | SetOpenAttributes { .. } => "set attributes",
            ListXattrs { .. } | GetXattr { .. } => "get xattr",
            SetXattr { .. } | RemoveXattr { .. } => "set xattr",
            Space { .. } => "space",
            PreferredSize { .. } => "preferred size",
            Seek { .. } => "seek",
        }
    }
}

/// What a call came to.
#[derive(Debug)]
#[expect(missing_docs, reason = "each is what the method of that call returns; of an open, the inode's number")]
pub enum BackingOutcome {
    Done,
    Opened(u64),
    Piece(ListPiece),
    Attributes(Box<BackingAttributes>),
    /// What each of several names stands for.
    Looked(Vec<Result<BackingAttributes, i32>>),
    Moved(usize),
    /// What was read of each of several files.
    FilesRead(Vec<Result<FileRead, i32>>),
    Keys(Vec<Box<[u8]>>),
    Value(Vec<u8>),
    Space(FreeSpace),
    Size(u64),
    Offset(Option<u64>),
    /// What became of each of several files.
    Synced(Vec<Result<(), i32>>),
}

/// Whoever carries out calls on one tree: threads of this process, or the simulated site. All methods are called on
/// the loop's thread and none waits. Everything that is not about one call (bounds, handles that nobody uses, what
/// becomes of a call whose caller is gone) is [`super::BackingTree`]'s, for every kind alike.
pub trait Backing {
    /// Its name for people.
    fn name(&self) -> &'static str;
    /// Monotonic time in nanoseconds.
    fn now(&self) -> Nanos;
    /// Begins a call. Its memory belongs to whoever carries it out until the call has ended, and no longer. A handle
    /// that is opened has the number that the operation says, if and only if the call does not fail. Bytes moved may be
    /// fewer than asked for; none at all are the end of the file.
    fn begin(&self, call: CallId, operation: BackingOperation);
    /// The next call that has ended, once, with what it came to or an error number.
    fn poll_ended(&self, context: &mut Context<'_>) -> Poll<(CallId, Result<BackingOutcome, i32>)>;
    /// Whether `SyncFiles` is one sync for all of them.
    fn syncs_at_once(&self) -> bool;
    /// Begins nothing from now on, and closes all handles as soon as that can be done without waiting. Returns whether
    /// calls that are under way may touch their memory still.
    fn end(&self) -> bool;
}
