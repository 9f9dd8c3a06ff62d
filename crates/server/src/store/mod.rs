//! The memory store: chunks in mapped extents, and one journal for everything that a server must not forget.
//!
//! The byte layout and the invariants are described in docs/store.md. All methods are synchronous and deterministic; the
//! store reads no clock and draws no randomness. Entries of kind 64 and above are the caller's and opaque here.

mod error;

pub use error::{Corrupt, StoreError};

use reactor::{LocalFuture, Span, Storage};
use std::rc::Rc;

/// Number of a journal record; each commit gets the next one.
pub type Lsn = u64;

/// First entry kind that belongs to the caller; smaller ones are the store's own.
pub const KIND_FOREIGN_FIRST: u8 = 64;

/// How a store is laid out; fixed at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Bytes for data; rounded down to pages of 4 KiB.
    pub size: u64,
    /// Bytes for the journal.
    pub journal_size: u64,
    /// Whether chunks carry checksums that are verified at each read.
    pub checksums: bool,
}

/// Whose store it is; a store opens only under the identity it was created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    /// Id of the cluster.
    pub cluster_id: u128,
    /// Number of the server in its cluster.
    pub server: u32,
    /// Number of slots of the cluster.
    pub slots: u32,
}

/// What is in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes for data.
    pub size: u64,
    /// Bytes of it that are free, including what was never used.
    pub free: u64,
    /// Bytes of data space that were ever taken from the medium.
    pub backed: u64,
    /// Bytes of the journal.
    pub journal_size: u64,
    /// Bytes of the journal that the next recovery would have to replay.
    pub journal_used: u64,
    /// Chunks with data.
    pub chunks: u64,
    /// Files that the store remembers anything of.
    pub files: u64,
}

/// This server's share of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileShare {
    /// Largest written end in this server's chunks, as an offset in the file; 0 without chunks.
    pub end: u64,
    /// Modification time in nanoseconds since the epoch, as given with the last write; 0 if there was none.
    pub mtime: i64,
    /// Bytes of a chunk; 0 while no chunk was ever written.
    pub chunk_size: u32,
    /// Chunks of the file that this server holds.
    pub chunk_count: u64,
    /// Generation given with the last truncate; 0 if there was none.
    pub generation: u32,
    /// Generation under which this server's share is announced to the file's home, if it is.
    pub announced: Option<u32>,
}

/// One piece of what was read.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Bytes in the store.
    Bytes(Span),
    /// That many zeros: nothing was written there.
    Zero(u32),
}

/// The result of a read. While it lives, the bytes of its pieces neither change nor are recycled.
pub struct ChunkRead {
    /// Pieces in order; together they are as long as the range asked for.
    pub pieces: Vec<Piece>,
    /// End of the last byte ever written in the chunk, counted from the chunk's start; 0 when there is no chunk.
    pub valid_end: u32,
}

/// Space for a write whose bytes are on their way. Dropped without a commit, nothing happened.
pub struct ChunkWrite {
    /// Where the bytes belong, in order; together they are as long as the write.
    pub places: Vec<Span>,
}

/// Entries that become durable together. Dropped without a commit, nothing happened.
pub struct Transaction {}

impl Transaction {
    /// Adds one entry of the caller's, of kind [`KIND_FOREIGN_FIRST`] or above.
    pub fn put(&mut self, kind: u8, fill: impl FnOnce(&mut Vec<u8>)) {
        unimplemented!()
    }
}

/// A checkpoint in the making; dropped before `finish`, it is given up.
pub struct Checkpoint {}

impl Checkpoint {
    /// Adds one entry of the caller's. Errors: the medium is full or fails; the checkpoint is then to be dropped.
    pub fn put(&mut self, kind: u8, bytes: &[u8]) -> Result<(), StoreError> {
        unimplemented!()
    }

    /// Adds a bounded number of the store's own entries; false when there are no more.
    pub fn store_step(&mut self) -> Result<bool, StoreError> {
        unimplemented!()
    }

    /// Makes this checkpoint the one that recovery starts from and releases the journal before its begin.
    /// Steps of the store's own that are still missing are done now.
    pub fn finish(self) -> Result<(), StoreError> {
        unimplemented!()
    }
}

/// The store of one server; a cheap handle.
#[derive(Clone)]
pub struct Store {}

impl Store {
    /// Creates a store in an empty directory. Errors: it is not empty, sizes out of bounds, the medium is full or fails.
    pub fn create(storage: Rc<dyn Storage>, options: &StoreOptions, identity: StoreIdentity) -> Result<Store, StoreError> {
        unimplemented!()
    }

    /// Opens a store: loads the newest complete checkpoint and replays the journal. `replay` gets each entry of the
    /// caller's in order, those of the checkpoint first; each is an after-image, so that it may come more than once.
    pub fn open(
        storage: Rc<dyn Storage>,
        identity: StoreIdentity,
        replay: &mut dyn FnMut(u8, &[u8]) -> Result<(), Corrupt>,
    ) -> Result<Store, StoreError> {
        unimplemented!()
    }

    /// Whether the directory holds a store.
    pub fn exists(storage: &dyn Storage) -> bool {
        unimplemented!()
    }

    /// Starts a transaction.
    pub fn begin(&self) -> Transaction {
        unimplemented!()
    }

    /// Makes a transaction durable as one record and applies it. Errors: `Full`, `JournalFull`, `Gone`, `TooLarge`,
    /// `Corrupt`; then nothing of it happened.
    pub fn commit(&self, transaction: Transaction) -> Result<Lsn, StoreError> {
        unimplemented!()
    }

    /// Resolves when the record survives whatever the medium can survive; at once on memory.
    pub fn durable(&self, lsn: Lsn) -> LocalFuture<Result<(), StoreError>> {
        unimplemented!()
    }

    /// Whether the journal is full enough that a checkpoint should begin (and none is under way).
    pub fn checkpoint_due(&self) -> bool {
        unimplemented!()
    }

    /// Begins a checkpoint. There is at most one at a time.
    pub fn checkpoint_begin(&self) -> Checkpoint {
        unimplemented!()
    }

    /// What is in the store.
    pub fn usage(&self) -> Usage {
        unimplemented!()
    }

    /// Takes one more step of data space from the medium ahead of its use; false when all of it is taken.
    pub fn prefault_step(&self) -> Result<bool, StoreError> {
        unimplemented!()
    }

    /// Finds a place for `size` bytes at `offset` within a chunk. Errors: `Full`, `ChunkSizeMismatch`, `TooLarge`.
    pub fn reserve_write(&self, file: u64, index: u64, chunk_size: u32, offset: u32, size: u32) -> Result<ChunkWrite, StoreError> {
        unimplemented!()
    }

    /// Adds a write, whose bytes are all in its places, to a transaction; it happens when that is committed.
    /// `mtime` is in nanoseconds since the epoch. A transaction touches each chunk at most once.
    /// Errors: `Gone`.
    pub fn commit_write(&self, write: ChunkWrite, transaction: &mut Transaction, mtime: i64) -> Result<(), StoreError> {
        unimplemented!()
    }

    /// Reads a range of a chunk; what was never written is zeros, also beyond the chunk's written end.
    /// Errors: `Corrupt`; `TooLarge` when the range's end exceeds 2^32-1.
    pub fn read(&self, file: u64, index: u64, offset: u32, size: u32) -> Result<ChunkRead, StoreError> {
        unimplemented!()
    }

    /// Cuts this server's share of the file at `size` bytes of the file and remembers the truncate generation.
    pub fn truncate_file(&self, file: u64, size: u64, generation: u32, transaction: &mut Transaction) {
        unimplemented!()
    }

    /// Forgets the file and frees its chunks. Writes that are on their way fail with `Gone`.
    pub fn reap_file(&self, file: u64, transaction: &mut Transaction) {
        unimplemented!()
    }

    /// This server's share of a file; nothing if it has none.
    pub fn share(&self, file: u64) -> Option<FileShare> {
        unimplemented!()
    }

    /// Remembers under which generation this server's share is announced to the file's home.
    pub fn set_announced(&self, file: u64, announced: Option<u32>, transaction: &mut Transaction) {
        unimplemented!()
    }

    /// Visits every file that the store remembers, in no particular order.
    pub fn for_each_file(&self, visit: &mut dyn FnMut(u64, &FileShare)) {
        unimplemented!()
    }
}
