//! Tree changes: renames of directories, changes of rights on them, and the order to forget everything, as the
//! sequencer, the other servers and clients tell each other of them. docs/names.md has the steps.

use crate::identity::FileId;
use crate::message;

/// In place of a number, by who asks for a directory by its id alone: no path has to be right for that.
pub const KNOWN_UNCHECKED: u64 = u64::MAX;

/// What happens to a directory.
pub mod tree_kinds {
    /// It gets another name, and `parent` is the directory that it is in then.
    pub const MOVED: u8 = 1;
    /// It is empty and goes, for another one takes its name.
    pub const REMOVED: u8 = 2;
    /// Somebody has less rights on it than before, or others.
    pub const RIGHTS: u8 = 3;
    /// Everything that clients have cached counts no more; `directory` is the root then.
    pub const ALL: u8 = 4;
}

message! {
    /// What a tree change does to one directory.
    pub struct TreeEntry {
        pub directory: FileId,
        /// One of `tree_kinds`.
        pub kind: u8,
        /// Of a directory that moves; else 0.
        pub parent: FileId,
    }
}

message! {
    /// `TreeLog`, to any server: the tree changes after number `since`. Reply: `TreeLogReply`.
    pub struct TreeLogRequest {
        pub since: u64,
    }
}

message! {
    /// A directory that cached paths and rights may be wrong about since tree change `number`.
    pub struct TreeLogEntry {
        pub number: u64,
        pub directory: FileId,
        /// One of `tree_kinds`.
        pub kind: u8,
    }
}

message! {
    /// Reply of `TreeLog`, in ascending order.
    pub struct TreeLogReply {
        /// The last tree change that the server knows.
        pub number: u64,
        /// Whether `entries` are all since then; else everything cached has to be forgotten.
        pub complete: bool,
        pub entries: Vec<TreeLogEntry>,
    }
}

message! {
    /// Reply of a `Rename` of directories: the tree change that it was. Who knows the one before, and forgets these
    /// directories, knows this one too.
    pub struct RenamedReply {
        pub number: u64,
        /// The last one before it.
        pub before: u64,
        /// Directories that were moved, and one that was replaced.
        pub directories: Vec<FileId>,
    }
}

message! {
    /// `PrepareTree`, to the sequencer: a rename of directories is about to happen. The answer comes when it is this
    /// one's turn, it makes no cycle, and all servers have marked the directories. Idempotent by (coordinator, number);
    /// resolved by `ResolvePrepared`. Reply: `PrepareTreeReply`.
    pub struct PrepareTreeRequest {
        pub coordinator: u32,
        pub number: u64,
        pub entries: Vec<TreeEntry>,
        /// Whether directories get other parents, so that a cycle could form.
        pub reparents: bool,
    }
}

message! {
    /// Reply of `PrepareTree`.
    pub struct PrepareTreeReply {
        /// Code of a `Status`: `Ok` when it is prepared; `Busy` when something else is under way; else why it can't be.
        pub verdict: u32,
        /// The number that the change has in the log of tree changes if it is decided so.
        pub number: u64,
    }
}

message! {
    /// `NumberChange`, to the sequencer: rights on a directory have changed, or all that clients have cached is to be
    /// forgotten (`RIGHTS`, `ALL`). The answer comes when all servers know. Reply: `Empty`. Repeating it does no harm.
    pub struct NumberChangeRequest {
        pub directory: FileId,
        /// One of `tree_kinds`.
        pub kind: u8,
        /// Of `ALL`: nothing is done if that has happened after this number, or has begun after this request came
        /// (`SINCE_ASKED`).
        pub since: u64,
    }
}

/// See `NumberChangeRequest::since`.
pub const SINCE_ASKED: u64 = u64::MAX;

message! {
    /// `MarkTree`, from the sequencer: requests by paths through directories that move wait from now on, and nothing is
    /// created in one that goes. `NotEmpty` and `Busy` refuse. Idempotent by number.
    pub struct MarkTreeRequest {
        pub number: u64,
        pub entries: Vec<TreeEntry>,
    }
}

message! {
    /// `ResolveTree`, from the sequencer: the change has happened, or will not. Idempotent by number; numbers rise.
    pub struct ResolveTreeRequest {
        pub number: u64,
        pub commit: bool,
        pub entries: Vec<TreeEntry>,
    }
}

message! {
    /// `AskParents`, to a directory's home: the directories that it is in, nearest first, as far as they live there.
    pub struct AskParentsRequest {
        pub directory: FileId,
    }
}

message! {
    /// Reply of `AskParents`. Ends with the root or with a directory that lives elsewhere.
    pub struct AskParentsReply {
        pub parents: Vec<FileId>,
    }
}
