//! The message that asks what files take, which is not among their attributes.

use crate::identity::FileId;
use crate::message;

/// Files that one request may name.
pub const ALLOCATED_COUNT_MAX: usize = 512;

message! {
    /// `Allocated`, to any server: what it has set aside for each of these files, of the first one from a chunk on.
    pub struct AllocatedRequest {
        pub files: Vec<FileId>,
        pub from_chunk: u64,
    }
}

message! {
    /// Reply of `Allocated`: for the first of the files, in their order, bytes on the server's medium.
    pub struct AllocatedReply {
        pub bytes: Vec<u64>,
        /// Where the last of them goes on, which had too many chunks for one look; 0 if it is complete.
        pub next_chunk: u64,
    }
}
