//! The memory store: chunks in mapped extents, and one journal for everything that a server must not forget.
//!
//! The byte layout and the invariants are described in docs/store.md. All methods are synchronous and deterministic;
//! the store reads no clock and draws no randomness. Entries of kind 64 and above are the caller's and opaque here.

mod active;
mod allocator;
mod checkpoint;
mod chunk;
mod commit;
mod durability;
mod entries;
mod error;
mod files;
pub mod fuzz;
mod holes;
mod inline_vec;
mod journal;
mod pages;
mod prefault;
mod read;
mod read_ahead;
mod recovery;
mod registered_buffers;
mod salvage;
mod short_circuit;
mod state;
mod sums;
mod superblock;
mod sync_record;
mod write;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use allocator::PAGE_SIZE;
pub use durability::SyncError;
pub use error::{AbsentPages, EntryError, StoreError};
pub use registered_buffers::{HeldPages, Holder, RegisteredRun, RegisteredUsage};
pub use short_circuit::BytesPlace;

pub use holes::{Hole, LOOK_COUNT_MAX};
pub use recovery::{JOURNAL_SIZE_MIN, NAME_DATA, Replay};
pub use salvage::{Findings, FlippedBit, salvage};
pub use wire::{FastMap, hash_id};

use commit::{StoreOperation, TransactionBody};
use files::Announcement;
use inline_vec::InlineVec;
use reactor::{BufferStatistics, PageNeed, PagePin, PageRoom, Span, StampedRegion, Storage};
use read::ReadPlan;
use state::{ChunkKey, StoreState};
use std::cell::RefCell;
use std::rc::Rc;
use wire::Placement;
use write::{PendingWrite, WritePart};

/// Decodes the store's own entries in bytes of any origin, checks the chunks among them, and returns how many are
/// sound. For fuzzing and check tools.
pub fn count_sound_entries(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Some((kind, body)) = entries::next_entry(&mut bytes) {
        count += usize::from(match entries::decode(kind, body) {
            Some(entries::Entry::Chunk { chunk_size, chunk, .. }) => {
                chunk.is_empty() || chunk.check(chunk_size, u32::MAX).is_ok()
            }
            other => other.is_some(),
        });
    }
    count
}

/// Number of a journal record; each commit gets the next one.
pub type Lsn = u64;

/// Largest chunk, in bytes.
pub const CHUNK_SIZE_MAX: u32 = 1 << 30;

/// Bytes of the largest record for each part that a change takes: its copy and its range, and as much again for the
/// chunk as it was and what is journalled beside it.
const PART_SHARE: usize = 128;

/// First entry kind that belongs to the caller; smaller ones are the store's own.
pub const KIND_FOREIGN_FIRST: u8 = 64;

/// How a journal grows with the checkpoints: it is to have a share of the size of the last one, for then a name is
/// written to checkpoints a bounded number of times, however many names there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalGrowth {
    /// Bytes that it has at most; what is more than 4 GiB counts as that, and what is less than it begins with as that.
    pub size_max: u64,
    /// Bytes that it is to have for each 100 bytes of the last checkpoint.
    pub checkpoint_percent: u32,
}

impl JournalGrowth {
    /// Of a journal that does not grow.
    pub const NONE: JournalGrowth = JournalGrowth { size_max: 0, checkpoint_percent: 0 };

    /// Of a store for `size` bytes of data: some 110 bytes a name, of which a checkpoint has some 150.
    pub fn of_store(size: u64) -> JournalGrowth {
        JournalGrowth { size_max: size / 16, checkpoint_percent: 75 }
    }
}

/// How a store is laid out; fixed at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Bytes for data; rounded down to pages of 4 KiB.
    pub size: u64,
    /// Bytes for the journal, taken from the medium at once.
    pub journal_size: u64,
    /// How it grows beyond that, on media that forget.
    pub journal_growth: JournalGrowth,
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
    /// How these are assigned to servers.
    pub placement: Placement,
}

/// What is in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes for data.
    pub size: u64,
    /// Bytes of it that are free, including what was never used.
    pub free: u64,
    /// Bytes of data space that were ever taken from the medium, in whole pages of the size that it lies on.
    pub backed: u64,
    /// Bytes that the journal has taken from the medium.
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
    /// Largest written end of this server's chunks since the last truncate, as an offset in the file; holes that were
    /// punched later count.
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
    /// CRC-32C of the pieces together, as they were given once; nothing when the store keeps no checksums.
    pub sum: Option<u32>,
    pin: Option<(Store, ChunkKey, u64)>,
    _pages: PagePin,
}

impl ChunkRead {
    /// Appends the bytes of the range.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        for piece in &self.pieces {
            let start = bytes.len();
            match piece {
                Piece::Zero(size) => bytes.resize(start + *size as usize, 0),
                Piece::Bytes(span) => {
                    bytes.resize(start + span.size as usize, 0);
                    span.region.read(span.offset, &mut bytes[start..]);
                }
            }
        }
    }
}

impl Drop for ChunkRead {
    fn drop(&mut self) {
        if let Some((store, key, at)) = self.pin.take() {
            store.state.borrow_mut().unpin(key, at);
        }
    }
}

/// Space for a write whose bytes are on their way. Dropped without a commit, nothing happened.
pub struct ChunkWrite {
    /// Where the bytes belong, in order, those of a part behind those of the one before it; together they are as long
    /// as the write.
    pub places: Vec<Span>,
    /// Number of the first place of each part but the first.
    first_places: Vec<usize>,
    reservation: Reservation,
}

impl ChunkWrite {
    /// Which bytes of a chunk it writes; of several parts the first, which alone can begin with the chunk and reach
    /// beyond all that is behind of it.
    pub fn piece(&self) -> Option<wire::layout::ChunkRange> {
        let PendingWrite { key, parts, .. } = self.reservation.pending_write.as_ref()?;
        let WritePart { start, end, .. } = *parts.first()?;
        Some(wire::layout::ChunkRange { chunk_index: key.1, chunk_offset: start, size: end - start })
    }

    /// Number of its parts.
    pub fn part_count(&self) -> usize {
        self.first_places.len() + 1
    }

    /// Where the bytes of a part belong.
    pub fn places_of(&self, part: usize) -> &[Span] {
        let first = part.checked_sub(1).map_or(0, |before| self.first_places[before]);
        let end = self.first_places.get(part).copied().unwrap_or(self.places.len());
        &self.places[first..end]
    }

    /// Whether the bytes of a part that have arrived have this checksum, which is kept with them from then on.
    #[must_use]
    pub fn verify(&mut self, part: usize, sum: u32) -> bool {
        self.keep_part_sum(part, sum);
        let Reservation { store, pending_write: Some(pending_write) } = &mut self.reservation else { return false };
        let Some(of) = pending_write.parts.get(part) else { return sum == 0 };
        let pieces = store.state.borrow().piece_sums(&pending_write.landing, of);
        let is_same = sums::whole_sum(of, &pieces) == sum;
        pending_write.piece_sums.resize_with(pending_write.parts.len(), Vec::new);
        pending_write.piece_sums[part] = pieces;
        is_same
    }

    /// Has the bytes of a write of one part keep a checksum that was computed where they come from.
    pub fn keep_sum(&mut self, sum: u32) {
        self.keep_part_sum(0, sum);
    }

    fn keep_part_sum(&mut self, part: usize, sum: u32) {
        let pending_write = self.reservation.pending_write.as_mut();
        if let Some(part) = pending_write.and_then(|pending_write| pending_write.parts.get_mut(part)) {
            part.sum = Some(sum);
        }
    }
}

/// A pending write that is given back when it was not used.
struct Reservation {
    store: Store,
    pending_write: Option<PendingWrite>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(pending_write) = self.pending_write.take() {
            self.store.state.borrow_mut().abandon(&pending_write);
        }
    }
}

/// A change of contents in a transaction.
#[derive(Debug, Clone, Copy)]
pub enum ChunkChanges {
    /// Bytes of a chunk: of a write of several parts the first.
    Write { index: u64, start: u32, end: u32 },
    /// Bytes of the file, of chunks here.
    Hole { start: u64, end: u64 },
}

impl ChunkChanges {
    /// The part of it below a size of the file, if it is a hole.
    pub fn below(self, size: u64) -> ChunkChanges {
        match self {
            ChunkChanges::Hole { start, end } => ChunkChanges::Hole { start, end: end.min(size).max(start) },
            write => write,
        }
    }
}

/// Entries that become durable together. Dropped without a commit, nothing happened.
pub struct Transaction {
    store: Store,
    parts: TransactionBody,
}

impl Transaction {
    /// Adds one entry of the caller's, of kind [`KIND_FOREIGN_FIRST`] or above.
    pub fn put(&mut self, kind: u8, fill: impl FnOnce(&mut Vec<u8>)) {
        self.parts.put(kind, fill);
    }

    /// The files whose chunks it changes.
    pub fn files(&self) -> impl Iterator<Item = u64> {
        self.parts.operations.iter().map(StoreOperation::file)
    }

    /// Visits what it changes of the contents of files: file ids, and bytes that are written or become holes.
    pub fn for_each_change(&self, visit: &mut dyn FnMut(u64, ChunkChanges)) {
        for operation in &self.parts.operations {
            match operation {
                StoreOperation::Write(write, _) => {
                    if let Some(&WritePart { start, end, .. }) = write.parts.first() {
                        visit(write.key.0, ChunkChanges::Write { index: write.key.1, start, end });
                    }
                }
                StoreOperation::Hole(hole) => visit(hole.file, ChunkChanges::Hole { start: hole.start, end: hole.end }),
                _ => {}
            }
        }
    }

    /// Files whose share here ends with it, or the announcement of that to their homes.
    pub fn ended_shares(&self) -> impl Iterator<Item = u64> {
        self.parts.operations.iter().filter(|operation| operation.ends_share()).map(StoreOperation::file)
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.parts.count == 0 && self.parts.operations.is_empty()
    }

    fn add_alone(&mut self, operation: StoreOperation) {
        self.parts.check(&operation).expect("only writes can be refused here");
        self.parts.operations.push(operation);
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        for operation in self.parts.operations.drain(..) {
            if let StoreOperation::Write(pending_write, _) = operation {
                self.store.state.borrow_mut().abandon(&pending_write);
            }
        }
    }
}

/// A checkpoint in the making; dropped before `finish`, it is given up.
pub struct Checkpoint {
    store: Store,
}

impl Checkpoint {
    /// Adds one entry of the caller's. Errors: the medium is full or fails; the checkpoint is then to be dropped.
    pub fn put(&mut self, kind: u8, bytes: &[u8]) -> Result<(), StoreError> {
        assert!(kind >= KIND_FOREIGN_FIRST, "kinds below {KIND_FOREIGN_FIRST} are the store's own");
        self.store.state.borrow_mut().checkpoint_put(kind, bytes)
    }

    /// Adds a bounded number of the store's own entries; false when there are no more. Errors: as `put`.
    pub fn store_step(&mut self) -> Result<bool, StoreError> {
        self.store.state.borrow_mut().checkpoint_step()
    }

    /// Makes this checkpoint the one that recovery starts from and releases the journal before its begin; on a medium
    /// that is not volatile only the next sync does so. Steps of the store's own that are still missing are done now.
    /// Errors: as `put`; the checkpoint before still counts.
    pub fn finish(self) -> Result<(), StoreError> {
        self.store.state.borrow_mut().checkpoint_finish()
    }
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        self.store.state.borrow_mut().checkpoint_give_up();
    }
}

/// The store of one server; a cheap handle.
#[derive(Clone)]
pub struct Store {
    state: Rc<RefCell<StoreState>>,
}

impl Store {
    /// Creates a store in a directory without one. Errors: `Incompatible` when there is one or a size is out of bounds,
    /// `Medium` when the medium is full or fails or the directory is in use.
    pub fn create(
        storage: Rc<dyn Storage>,
        options: &StoreOptions,
        identity: StoreIdentity,
    ) -> Result<Store, StoreError> {
        recovery::create(storage, options, identity).map(Store::around)
    }

    /// Opens a store: loads the newest complete checkpoint and replays the journal. `replay` gets each entry of the
    /// caller's in order, those of the checkpoint first; each must be an after-image, for it may come more than once.
    /// Errors: `Incompatible`, `Damaged`, `Medium`.
    pub fn open(storage: Rc<dyn Storage>, identity: StoreIdentity, replay: Replay) -> Result<Store, StoreError> {
        recovery::open(storage, identity, replay).map(Store::around)
    }

    /// Whether the directory holds a store; what an interrupted creation left does not count.
    pub fn exists(storage: &dyn Storage) -> bool {
        recovery::exists(storage)
    }

    fn around(state: StoreState) -> Store {
        Store { state: Rc::new(RefCell::new(state)) }
    }

    /// Starts a transaction.
    pub fn begin(&self) -> Transaction {
        Transaction { store: self.clone(), parts: self.state.borrow_mut().begin() }
    }

    /// Makes a transaction durable as one record and applies it. Errors: `Full`, `JournalFull`, `Gone`, `TooLarge`,
    /// `ChunkSizeMismatch`, `Corrupt`, `Absent`; then nothing of it happened, and its reservations are released.
    pub fn commit(&self, mut transaction: Transaction) -> Result<Lsn, StoreError> {
        assert!(Rc::ptr_eq(&self.state, &transaction.store.state), "a transaction is committed to its own store");
        self.state.borrow_mut().commit(&mut transaction.parts)
    }

    /// Whether the journal is full enough that a checkpoint should begin (and none is under way).
    pub fn checkpoint_due(&self) -> bool {
        self.state.borrow().checkpoint_due()
    }

    /// Begins a checkpoint. There is at most one at a time.
    pub fn checkpoint_begin(&self) -> Checkpoint {
        self.state.borrow_mut().checkpoint_begin();
        Checkpoint { store: self.clone() }
    }

    /// What is in the store.
    pub fn usage(&self) -> Usage {
        self.state.borrow_mut().usage()
    }

    /// Bytes that the journal has left, also if the medium gives no more.
    pub fn journal_room(&self) -> u64 {
        self.state.borrow().journal.room()
    }

    /// Bytes of the journal that are used, and how many it may use now if the medium gives them.
    pub fn journal_fill(&self) -> (u64, u64) {
        let journal = &self.state.borrow().journal;
        (journal.used(), journal.size())
    }

    /// Checks that every page is used exactly once or free, and that all chunks are sound; says what is not. For tests
    /// and check tools; its cost grows with the store.
    pub fn check(&self) -> Result<(), String> {
        self.state.borrow_mut().check()
    }

    /// Looks what kind of pages the data space lies on, and returns their size in bytes. It takes milliseconds.
    pub fn measure_pages(&self) -> u64 {
        self.state.borrow_mut().measure_pages()
    }

    /// What the device does that keeps the store, if one does.
    pub fn buffer_statistics(&self) -> Option<BufferStatistics> {
        self.state.borrow().storage.buffer_statistics()
    }

    /// Bytes of the pages that the data space was seen to lie on.
    pub fn page_size(&self) -> u64 {
        self.state.borrow().page_size
    }

    /// Has what is known of a file fetched from memory, for an operation that comes to it soon.
    pub fn prefetch(&self, file: u64) {
        self.state.borrow().files.prefetch(file);
    }

    /// Whether data space should be taken from the medium ahead of its use.
    pub fn is_prefault_due(&self) -> bool {
        self.state.borrow().is_prefault_due()
    }

    /// Takes a little of the data space from the medium ahead of its use; false when there is enough ahead, or when the
    /// medium refuses, which is for whoever needs the space to say.
    pub fn prefault_step(&self) -> bool {
        self.state.borrow_mut().prefault_step()
    }

    /// Finds a place for `size` bytes at `offset` within a chunk; before anything arrives there it is pinned
    /// (`pin_writes`). Errors: `Full`, `ChunkSizeMismatch`; `TooLarge` when
    /// the range leaves the chunk or the chunk is larger than [`CHUNK_SIZE_MAX`].
    pub fn reserve_write(
        &self,
        file: u64,
        index: u64,
        chunk_size: u32,
        offset: u32,
        size: u32,
    ) -> Result<ChunkWrite, StoreError> {
        let end = self.state.borrow().check_fits((file, index), chunk_size, offset, size)?;
        let part = WritePart { start: offset, end, sum: None };
        let parts = if size == 0 { InlineVec::default() } else { InlineVec::One(part) };
        self.reserve_checked((file, index), chunk_size, parts)
    }

    /// Most parts that one change takes, so that its entries fit into a record whatever the chunk is like.
    pub fn parts_max(&self) -> usize {
        self.state.borrow().journal.record_size_max() as usize / PART_SHARE
    }

    /// Finds a place for several parts of a chunk, at most `parts_max`, as one change: offsets and sizes, sorted, none
    /// empty and no byte twice. Errors: as `reserve_write`.
    pub fn reserve_parts(
        &self,
        (file, index): (u64, u64),
        chunk_size: u32,
        parts: impl Iterator<Item = (u32, u32)>,
    ) -> Result<ChunkWrite, StoreError> {
        let mut checked: Vec<WritePart> = Vec::with_capacity(parts.size_hint().0);
        for (offset, size) in parts {
            let end = self.state.borrow().check_fits((file, index), chunk_size, offset, size)?;
            assert!(size > 0 && checked.last().is_none_or(|last| last.end <= offset), "the parts are in order");
            checked.push(WritePart { start: offset, end, sum: None });
        }
        self.reserve_checked((file, index), chunk_size, InlineVec::from_slice(&checked))
    }

    fn reserve_checked(
        &self,
        key: ChunkKey,
        chunk_size: u32,
        parts: InlineVec<WritePart>,
    ) -> Result<ChunkWrite, StoreError> {
        if chunk_size > CHUNK_SIZE_MAX || key.1 == u64::MAX {
            return Err(StoreError::TooLarge);
        }
        let mut state = self.state.borrow_mut();
        let pending_write = state.reserve(key, chunk_size, parts)?;
        let mut places = Vec::with_capacity(pending_write.parts.len());
        let mut first_places = Vec::new();
        for (number, part) in pending_write.parts.iter().enumerate() {
            if number > 0 {
                first_places.push(places.len());
            }
            chunk::for_each_piece(&pending_write.landing, part.start, part.end, |place, _, piece_size| {
                places.push(Span { region: state.data.clone(), offset: place, size: u64::from(piece_size) });
            });
        }
        let reservation = Reservation { store: self.clone(), pending_write: Some(pending_write) };
        Ok(ChunkWrite { places, first_places, reservation })
    }

    /// Pins what reserved writes touch, before their bytes arrive, where `room` says. Errors: `Absent`, with what all
    /// of them need.
    pub fn pin_writes<'a>(
        &self,
        writes: impl Iterator<Item = &'a mut ChunkWrite>,
        room: PageRoom<'_>,
    ) -> Result<(), StoreError> {
        let state = self.state.borrow();
        if !state.is_partial {
            return Ok(());
        }
        let pending_write = |write: &'a mut ChunkWrite| write.reservation.pending_write.as_mut();
        let mut pending_writes: Vec<&mut PendingWrite> = writes.filter_map(pending_write).collect();
        state.pin_writes(&mut pending_writes, room)
    }

    /// Whether reserved writes, for which somebody has waited, may still be filled and committed as they are, before
    /// the next wait. Else they are to be reserved anew.
    pub fn writes_stand(&self, writes: &mut [ChunkWrite]) -> bool {
        let state = self.state.borrow();
        let mut pending_writes = writes.iter_mut().filter_map(|write| write.reservation.pending_write.as_mut());
        pending_writes.all(|pending_write| state.stands(pending_write))
    }

    /// Has the commit of writes whose bytes are there take no room, and find in memory what it looks at, also where
    /// others changed the chunks meanwhile; where nothing rests until a sync, there is nothing to do. What is committed
    /// at once stays so. Errors: `Full`, `Resting`, `Absent`.
    pub fn settle_writes(&self, writes: &mut [ChunkWrite]) -> Result<(), StoreError> {
        let mut state = self.state.borrow_mut();
        if state.durability.is_volatile {
            return Ok(());
        }
        let mut pending_writes = writes.iter_mut().filter_map(|write| write.reservation.pending_write.as_mut());
        pending_writes.try_for_each(|pending_write| state.settle(pending_write))
    }

    /// Bytes that the entries of writes take in a record at most, as their chunks are now.
    pub fn entry_size(&self, writes: &[ChunkWrite]) -> usize {
        let state = self.state.borrow();
        let pending_writes = writes.iter().filter_map(|write| write.reservation.pending_write.as_ref());
        pending_writes.map(|pending_write| state.entry_size(pending_write)).sum()
    }

    /// Gives a client of this machine up to `wanted` consecutive free pages to write into by itself, in whole pages of
    /// the size that the data space lies on. `generation` was never used before. Nothing where nothing is lent, or
    /// where that would be too much of what is free, of the store, or for one holder.
    pub fn register_buffer(&self, holder: &Holder, generation: u64, wanted: u32) -> Option<RegisteredRun> {
        self.state.borrow_mut().register_buffer(holder, generation, wanted)
    }

    /// Its holder has unmapped a registered buffer, and writes to no page of it any more.
    pub fn end_buffer(&self, connection: u64, generation: u64) {
        self.state.borrow_mut().end_buffer(connection, generation);
    }

    /// A holder has gone: nothing is committed in its registered buffers any more, and each of them ends when it is not
    /// mapped any more.
    pub fn end_holder(&self, connection: u64) {
        self.state.borrow_mut().end_holder(connection);
    }

    /// Ends the registered buffers of those that have gone that are not mapped any more. True if others are left.
    pub fn end_unmapped_buffers(&self) -> bool {
        self.state.borrow_mut().end_unmapped()
    }

    /// Whether bytes `offset..offset + size` of the data space lie in a registered buffer of this connection's.
    pub fn is_registered(&self, connection: u64, generation: u64, offset: u64, size: u64) -> bool {
        self.state.borrow().registered.has(connection, generation, offset, size)
    }

    /// Keeps so many pages that are free and faulted in for writes that must find some: nobody is given more than he
    /// needs of them.
    pub fn keep_pages(&self, pages: u64) {
        self.state.borrow_mut().kept_pages = pages;
    }

    /// Faults some pages in if fewer are free than twice those that are to be kept, for as long as a step of faulting
    /// in ahead takes.
    pub fn approach_kept_pages(&self) {
        self.state.borrow_mut().approach_kept_pages();
    }

    /// Whether so many pages are free and faulted in.
    pub fn has_ready_pages(&self, pages: u64) -> bool {
        self.state.borrow().allocator.ready() >= pages
    }

    /// What is registered.
    pub fn registered_usage(&self) -> RegisteredUsage {
        self.state.borrow().registered.usage()
    }

    /// A write whose `bytes` (offset and size in the chunk) are in pages of a registered buffer of this connection's
    /// already: at the offset within the first of them that they have within their page of the chunk. Nothing, if these
    /// pages are not such, or something was committed in them before. Errors: as `reserve_write`.
    pub fn reserve_registered(
        &self,
        (file, index): (u64, u64),
        chunk_size: u32,
        bytes: (u32, u32),
        connection: u64,
        run: RegisteredRun,
    ) -> Result<Option<ChunkWrite>, StoreError> {
        if chunk_size > CHUNK_SIZE_MAX || index == u64::MAX {
            return Err(StoreError::TooLarge);
        }
        let pending_write =
            self.state.borrow_mut().reserve_registered((file, index), chunk_size, bytes, (connection, run))?;
        Ok(pending_write.map(|pending_write| self.staged_write(pending_write)))
    }

    /// A write whose bytes are in their pages already.
    fn staged_write(&self, pending_write: PendingWrite) -> ChunkWrite {
        let reservation = Reservation { store: self.clone(), pending_write: Some(pending_write) };
        ChunkWrite { places: Vec::new(), first_places: Vec::new(), reservation }
    }

    /// Adds a write, whose bytes are all in its places, to a transaction; it happens when that is committed.
    /// `mtime` is in nanoseconds since the epoch and becomes the file's. A write of no bytes changes nothing.
    /// Errors: `TouchedTwice` when the transaction writes to that chunk already, `ChunkSizeMismatch`.
    pub fn commit_write(
        &self,
        mut write: ChunkWrite,
        transaction: &mut Transaction,
        mtime: i64,
    ) -> Result<(), StoreError> {
        assert!(
            Rc::ptr_eq(&self.state, &transaction.store.state),
            "a write is committed in a transaction of its own store"
        );
        let pending_write =
            write.reservation.pending_write.take().expect("a write has its place until it is committed");
        if pending_write.parts.is_empty() {
            self.state.borrow_mut().abandon(&pending_write);
            return Ok(());
        }
        let operation = StoreOperation::Write(pending_write, mtime);
        if let Err(error) = transaction.parts.check(&operation) {
            if let StoreOperation::Write(pending_write, _) = operation {
                write.reservation.pending_write = Some(pending_write);
            }
            return Err(error);
        }
        transaction.parts.operations.push(operation);
        Ok(())
    }

    /// Reads a range of a chunk; what was never written is zeros, also beyond the chunk's written end.
    /// Errors: `Corrupt`; `Absent`; `TooLarge` when the range's end exceeds 2^32-1.
    pub fn read(&self, file: u64, index: u64, offset: u32, size: u32) -> Result<ChunkRead, StoreError> {
        let found = {
            let mut state = self.state.borrow_mut();
            let found = state.read((file, index), offset, size)?;
            state.read_ahead((file, index), offset, offset + size);
            found
        };
        let pin = found.at.map(|at| (self.clone(), (file, index), at));
        let ReadPlan { pieces, valid_end, sum, pages, .. } = found;
        Ok(ChunkRead { pieces, valid_end, sum, pin, _pages: pages })
    }

    /// What reads of a file (chunk index, offset, size) need in memory, all together.
    pub fn absent_pages(&self, file: u64, reads: impl Iterator<Item = (u64, u32, u32)>) -> StoreError {
        let state = self.state.borrow();
        let mut absent = AbsentPages { file, index: 0, need: PageNeed::default() };
        for (index, offset, size) in reads {
            if let Some(chunk) = state.files.get(file).and_then(|file| file.chunks.get(index)) {
                absent.need.filled.extend(state.pages_to_read(chunk, offset, offset.saturating_add(size)).filled);
                absent.index = index;
            }
        }
        StoreError::Absent(absent)
    }

    /// Has pages in memory that an operation lacked, and room for those that are fresh, for as long as the pin lives.
    /// Errors: `Medium`.
    pub async fn pin_pages(&self, absent: &AbsentPages) -> Result<PagePin, StoreError> {
        let pinned = self.state.borrow().data.pin(absent.need.clone());
        let AbsentPages { file, index, .. } = absent;
        pinned.await.map_err(|error| {
            let words = format!("file {file:#x}, chunk {index}: {error}");
            StoreError::Medium("have bytes in memory", std::io::Error::new(error.kind(), words))
        })
    }

    /// Whether chunks carry checksums.
    pub fn keeps_sums(&self) -> bool {
        self.state.borrow().checksums()
    }

    /// What clients of this machine may read from by themselves: nothing where bytes have checksums, or on a disk.
    pub fn shared(&self) -> Option<Rc<StampedRegion>> {
        self.state.borrow().shared().cloned()
    }

    /// Tells where all written bytes of a chunk are, in their order. They stay there, and stay as they are, for as long
    /// as they have no younger stamp.
    pub fn places(&self, file: u64, index: u64, told: impl FnMut(BytesPlace)) {
        self.state.borrow().places((file, index), told);
    }

    /// Cuts this server's share of the file at `size` bytes of the file and remembers the truncate generation.
    /// It is the only operation on the file in its transaction.
    pub fn truncate_file(&self, file: u64, size: u64, generation: u32, transaction: &mut Transaction) {
        transaction.add_alone(StoreOperation::Truncate { file, size, generation });
    }

    /// Makes bytes `start..end` of the file, as far as they are here, read as zeros, as one change. Pages that lie
    /// wholly among them are freed, unless `keep_pages`; then every chunk in the range costs an entry of the record.
    /// The share's end stays. `mtime` becomes the file's. It is the only operation on the file in its transaction.
    pub fn punch(&self, hole: Hole, transaction: &mut Transaction) {
        assert!(hole.start <= hole.end, "a hole does not end before it starts");
        transaction.add_alone(StoreOperation::Hole(hole));
    }

    /// Gives a chunk pages for all of its bytes `bytes`, so that the first write to each of them finds room. The commit
    /// fails with `Full` when there is none. In its transaction there are only reservations for the file, one a chunk.
    pub fn reserve_pages(
        &self,
        file: u64,
        index: u64,
        chunk_size: u32,
        bytes: std::ops::Range<u32>,
        transaction: &mut Transaction,
    ) {
        transaction.add_alone(StoreOperation::Reserve { key: (file, index), chunk_size, bytes });
    }

    /// The first written byte of the file here from `offset` on, as an offset in the file. The second value is false
    /// when the look was given up after many chunks without any: then there is none before the offset that is returned.
    pub fn next_data(&self, file: u64, offset: u64) -> (Option<u64>, bool) {
        self.state.borrow().next_data(file, offset)
    }

    /// Bytes of the pages that the file's chunks here have, from chunk `from` on; looks at `left` chunks at most, and
    /// tells where to go on if that was too few.
    pub fn allocated(&self, file: u64, from: u64, left: &mut usize) -> (u64, Option<u64>) {
        self.state.borrow().allocated(file, from, left)
    }

    /// Bytes that a chunk takes on the medium.
    pub fn allocated_in_chunk(&self, file: u64, index: u64) -> u64 {
        self.state.borrow().allocated_in_chunk((file, index))
    }

    /// The first byte of a chunk from `from` on that is not written; nothing if all are.
    pub fn next_hole(&self, file: u64, index: u64, chunk_size: u32, from: u32) -> Option<u32> {
        self.state.borrow().next_hole((file, index), chunk_size, from)
    }

    /// Has whoever reads a chunk by short circuit ask for it the next time.
    pub fn take_from_sight(&self, file: u64, index: u64) {
        self.state.borrow().stamp_chunk((file, index));
    }

    /// Forgets the file and frees its chunks; if they are many, in steps with the commits that follow. Writes that are
    /// on their way fail with `Gone`. It is the only operation on the file in its transaction.
    pub fn reap_file(&self, file: u64, transaction: &mut Transaction) {
        transaction.add_alone(StoreOperation::Reap(file));
    }

    /// This server's share of a file; nothing if it has none.
    pub fn share(&self, file: u64) -> Option<FileShare> {
        self.state.borrow().files.get(file).map(files::File::share)
    }

    /// Remembers under which generation this server's share is announced to the file's home. The share's time is
    /// forgotten if it is not later than `times_set`.
    pub fn set_announced(&self, file: u64, announced: Option<u32>, times_set: i64, transaction: &mut Transaction) {
        let time = self.share(file).map_or(0, |share| share.mtime);
        let forgets_time = time != 0 && time <= times_set;
        transaction.add_alone(StoreOperation::Announced(Announcement { file, announced, forgets_time }));
    }

    /// Visits the files in `count` places from one on, and returns where to go on; nothing at the end.
    pub fn walk_files(&self, from: u32, count: u32, visit: &mut dyn FnMut(u64, &FileShare)) -> Option<u32> {
        let state = self.state.borrow();
        let limit = state.files.cell_count();
        let end = from.saturating_add(count).min(limit);
        let files = (from..end).filter_map(|cell| state.files.cell(cell));
        files.for_each(|file| visit(file.id, &file.share()));
        (end < limit).then_some(end)
    }

    /// Reads chunks of about `bytes` from a place on (number of the file's place, chunk index), and says of each
    /// whether its checksum fails. Returns where to go on; nothing at the end. Errors: `Medium`; `Absent` of the first
    /// chunk.
    pub fn verify_step(
        &self,
        from: (u32, u64),
        bytes: u64,
        visit: &mut dyn FnMut(u64, u64, bool),
    ) -> Result<Option<(u32, u64)>, StoreError> {
        let (mut cell, mut index) = from;
        let mut left = bytes as i64;
        loop {
            if left <= 0 {
                return Ok(Some((cell, index)));
            }
            let (file, found) = {
                let state = self.state.borrow();
                if cell >= state.files.cell_count() {
                    return Ok(None);
                }
                let Some(file) = state.files.cell(cell) else {
                    (cell, index, left) = (cell + 1, 0, left - 64);
                    continue;
                };
                (file.id, file.chunks.next(index).map(|(index, chunk)| (index, chunk.valid_end())))
            };
            let Some((chunk, end)) = found else {
                (cell, index, left) = (cell + 1, 0, left - 64);
                continue;
            };
            match self.read(file, chunk, 0, end) {
                Ok(_) => visit(file, chunk, false),
                Err(StoreError::Corrupt { .. }) => visit(file, chunk, true),
                // What was looked at so far counts.
                Err(StoreError::Absent(_)) if (cell, chunk) != from => return Ok(Some((cell, chunk))),
                Err(error) => return Err(error),
            }
            (index, left) = (chunk + 1, left - i64::from(end) - 64);
        }
    }

    /// Visits every file that the store remembers, in no particular order. The store is not to be used meanwhile.
    pub fn for_each_file(&self, visit: &mut dyn FnMut(u64, &FileShare)) {
        self.state.borrow().files.iter().for_each(|file| visit(file.id, &file.share()));
    }
}
