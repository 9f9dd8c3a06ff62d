//! What servers ask each other about the backing tree (docs/cache.md).

use crate::identity::FileId;
use crate::message;

message! {
    /// `AskPlace`, to the home of what was taken up from the backing tree. Who asks about a file is one of its holders
    /// from then on. Reply: `BackingPlace`.
    pub struct AskPlaceRequest {
        pub id: FileId,
    }
}

message! {
    /// Where in the backing tree something was when it was taken up, and what it was then. Also as it is journalled.
    pub struct BackingPlace {
        /// The directory whose name it is behind; 0 of the root.
        pub parent: FileId,
        /// From the root of the tree, which has an empty one; it ends with that name.
        pub path: Vec<u8>,
        /// Its identity: numbers of file system and inode, size in bytes, times in nanoseconds since the epoch.
        pub device: u64,
        pub inode: u64,
        pub size: u64,
        pub mtime: i64,
        pub ctime: i64,
        /// The number of the file's first bytes that may be behind. It only ever shrinks.
        pub base: u64,
        /// Bytes of one of the file's chunks.
        pub chunk_size: u32,
    }
}

impl BackingPlace {
    /// The name that it has behind.
    pub fn name(&self) -> &[u8] {
        self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }
}
