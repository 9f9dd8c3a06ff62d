//! What can go wrong in the store.

use reactor::PageNeed;
use std::fmt;
use std::io;

/// Why the store refused an operation. Whatever the error, nothing was half written.
#[derive(Debug)]
pub enum StoreError {
    /// No space for the data (ENOSPC).
    Full,
    /// No space for the data until the next sync, after which pages that rest are free (ENOSPC).
    Resting,
    /// Bytes of a chunk have to be in memory first: `Store::pin_pages`, and then the same again.
    Absent(AbsentPages),
    /// The journal has no room before the running checkpoint is finished (ENOSPC; a retry after `Checkpoint::finish`
    /// works).
    JournalFull,
    /// Bytes of a chunk do not match their checksum (EIO).
    Corrupt {
        /// File id.
        file: u64,
        /// Chunk index within the file.
        index: u64,
        /// First byte of the written range that fails, within the chunk.
        offset: u32,
    },
    /// The file's chunks on this server have another size than the request says (EINVAL).
    ChunkSizeMismatch {
        /// File id.
        file: u64,
        /// Chunk size in bytes that the store knows.
        known: u32,
        /// Chunk size in bytes of the request.
        given: u32,
    },
    /// The range lies outside the chunk, or a transaction is larger than the journal can ever take (EINVAL).
    TooLarge,
    /// The file was reaped while the write was on its way (ESTALE).
    Gone {
        /// File id.
        file: u64,
    },
    /// A transaction writes to the same chunk twice (EINVAL).
    TouchedTwice {
        /// File id.
        file: u64,
        /// Chunk index within the file.
        index: u64,
    },
    /// The store on the medium is damaged; the text names the place and says what was found.
    Damaged(String),
    /// The store on the medium is of another format, cluster or server, or there is none; the text says which.
    Incompatible(String),
    /// The medium failed; the text says what was attempted.
    Medium(&'static str, io::Error),
}

/// Pages that an operation on a chunk needs in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsentPages {
    /// File id.
    pub file: u64,
    /// Chunk index within the file.
    pub index: u64,
    /// The pages.
    pub need: PageNeed,
}

/// An entry that the caller of [`super::Store::open`] could not make sense of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryError(pub String);

impl fmt::Display for EntryError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for EntryError {}

impl fmt::Display for StoreError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Full => write!(formatter, "the store is full"),
            StoreError::Resting => write!(formatter, "the store is full until the next sync"),
            StoreError::Absent(AbsentPages { file, index, .. }) => {
                write!(formatter, "file {file:#x}, chunk {index}: its bytes are not in memory yet")
            }
            StoreError::JournalFull => {
                write!(formatter, "the journal is full until the running checkpoint has finished")
            }
            StoreError::Corrupt { file, index, offset } => {
                write!(
                    formatter,
                    "file {file:#x}, chunk {index}: the bytes from {offset} on do not match their checksum"
                )
            }
            StoreError::ChunkSizeMismatch { file, known, given } => {
                write!(formatter, "file {file:#x} has chunks of {known} bytes, not {given}")
            }
            StoreError::TooLarge => {
                write!(formatter, "the range lies outside the chunk or the transaction exceeds the journal")
            }
            StoreError::Gone { file } => write!(formatter, "file {file:#x} was removed while the write was on its way"),
            StoreError::TouchedTwice { file, index } => {
                write!(formatter, "file {file:#x}, chunk {index} is written twice in one step")
            }
            StoreError::Damaged(what) => write!(formatter, "the store is damaged: {what}"),
            StoreError::Incompatible(what) => write!(formatter, "the store cannot be opened: {what}"),
            StoreError::Medium(attempt, error) => write!(formatter, "the store's medium failed to {attempt}: {error}"),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StoreError::Medium(_, error) => Some(error),
            _ => None,
        }
    }
}
