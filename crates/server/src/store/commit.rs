//! Transactions: many changes, one journal record.
//!
//! A commit first works out every change without touching what anybody can see, then writes the record, and only then
//! applies the changes. So it either happens as a whole or, with an error, not at all.

use super::allocator::Run;
use super::chunk::{self, Chunk, Extent, ValidRange};
use super::entries;
use super::files::{Announcement, File};
use super::holes::{Hole, HoleChange};
use super::inline_vec::InlineVec;
use super::journal::RECORD_HEADER_SIZE;
use super::state::{ChunkKey, StoreState};
use super::write::{ChunkChange, PendingWrite};
use super::{KIND_FOREIGN_FIRST, Lsn, StoreError};
use std::mem;

/// Buffers that are kept for later transactions, and the largest that is worth it.
const BUFFERS_MAX: usize = 8;
const BUFFER_SIZE_MAX: usize = 64 * 1024;
/// Above this share of the journal (in quarters) each commit takes part in the running checkpoint.
const PRESSURE_QUARTERS: u64 = 3;

/// One change of the store's own.
pub enum StoreOperation {
    /// A write whose body has arrived.
    Write(PendingWrite, i64),
    /// See [`super::Store::truncate_file`].
    Truncate { file: u64, size: u64, generation: u32 },
    /// See [`super::Store::punch`].
    Hole(Hole),
    /// See [`super::Store::reserve_pages`].
    Reserve { key: ChunkKey, chunk_size: u32, bytes: std::ops::Range<u32> },
    /// See [`super::Store::reap_file`].
    Reap(u64),
    /// See [`super::Store::set_announced`].
    Announced(Announcement),
}

impl StoreOperation {
    pub fn file(&self) -> u64 {
        match self {
            StoreOperation::Write(pending_write, _) => pending_write.key.0,
            StoreOperation::Hole(hole) => hole.file,
            StoreOperation::Reserve { key, .. } => key.0,
            StoreOperation::Truncate { file, .. } | StoreOperation::Reap(file) => *file,
            StoreOperation::Announced(announcement) => announcement.file,
        }
    }
}

impl StoreOperation {
    /// Whether a file's share here ends, or the announcement of it.
    pub fn ends_share(&self) -> bool {
        matches!(self, StoreOperation::Reap(_) | StoreOperation::Announced(Announcement { announced: None, .. }))
    }
}

/// What a transaction consists of.
pub struct TransactionBody {
    /// The record so far: room for its header, then entries.
    pub buffer: Vec<u8>,
    /// Number of entries in `buffer`.
    pub count: u32,
    /// Changes whose entries are not in `buffer` yet.
    pub operations: Vec<StoreOperation>,
}

impl TransactionBody {
    /// Appends an entry of the caller's.
    pub fn put(&mut self, kind: u8, fill: impl FnOnce(&mut Vec<u8>)) {
        assert!(kind >= KIND_FOREIGN_FIRST, "kinds below {KIND_FOREIGN_FIRST} are the store's own");
        entries::put_entry(&mut self.buffer, kind, fill);
        self.count += 1;
    }

    /// Checks that an operation goes together with those that are there already.
    ///
    /// Errors: `TouchedTwice` for a second write to a chunk, `ChunkSizeMismatch` for two sizes of one file.
    pub fn check(&self, operation: &StoreOperation) -> Result<(), StoreError> {
        for present in self.operations.iter().filter(|present| present.file() == operation.file()) {
            match (present, operation) {
                (StoreOperation::Write(one, _), StoreOperation::Write(other, _)) if one.key == other.key => {
                    return Err(StoreError::TouchedTwice { file: other.key.0, index: other.key.1 });
                }
                (StoreOperation::Write(one, _), StoreOperation::Write(other, _))
                    if one.chunk_size != other.chunk_size =>
                {
                    return Err(StoreError::ChunkSizeMismatch {
                        file: one.key.0,
                        known: one.chunk_size,
                        given: other.chunk_size,
                    });
                }
                (
                    StoreOperation::Write(..) | StoreOperation::Announced(..),
                    StoreOperation::Write(..) | StoreOperation::Announced(..),
                ) => {}
                (StoreOperation::Reserve { key: one, .. }, StoreOperation::Reserve { key: other, .. })
                    if one != other => {}
                _ => panic!("a truncate, hole or reap of a file is the only operation on it in its transaction"),
            }
        }
        Ok(())
    }
}

/// A change that is worked out but not applied.
enum ChangePlan {
    Write(ChunkChange, WriteEffects),
    Truncate { file: u64, generation: u32, keep_below: u64, cut: Option<(ChunkChange, u32)> },
    Hole(HoleChange),
    Reserve(ChunkChange, u32),
    Reap(u64),
    Announced(Announcement),
}

/// What else a write changes.
struct WriteEffects {
    chunk_size: u32,
    mtime: i64,
    at: u64,
    /// Pages that were staged for the write.
    staged: Vec<Run>,
}

impl StoreState {
    /// An empty transaction.
    pub fn begin(&mut self) -> TransactionBody {
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.clear();
        buffer.resize(RECORD_HEADER_SIZE, 0);
        TransactionBody { buffer, count: 0, operations: Vec::new() }
    }

    /// See [`super::Store::commit`]. After an error the operations are still in `parts`.
    pub fn commit(&mut self, parts: &mut TransactionBody) -> Result<Lsn, StoreError> {
        self.bury_step();
        self.checkpoint_under_pressure();
        let mut changes = Vec::with_capacity(parts.operations.len());
        let mut fresh = Vec::new();
        let written = self.plan_all(parts, &mut changes, &mut fresh);
        let lsn = match written.and_then(|()| self.journal.append(&mut parts.buffer, parts.count, false)) {
            Ok(lsn) => lsn,
            Err(error) => {
                self.release_unused(fresh);
                return Err(error);
            }
        };
        self.release_deferred();
        parts.operations.clear();
        for change in changes {
            self.apply(change);
        }
        let buffer = mem::take(&mut parts.buffer);
        if self.buffers.len() < BUFFERS_MAX && buffer.capacity() <= BUFFER_SIZE_MAX {
            self.buffers.push(buffer);
        }
        Ok(lsn)
    }

    fn checkpoint_under_pressure(&mut self) {
        if self.checkpoint.is_some() && self.journal.used() > self.journal.size() / 4 * PRESSURE_QUARTERS {
            // An error stays with the checkpoint, whose next step by its owner reports it.
            self.checkpoint_step_kept();
        }
    }

    fn plan_all(
        &mut self,
        parts: &mut TransactionBody,
        changes: &mut Vec<ChangePlan>,
        fresh: &mut Vec<Run>,
    ) -> Result<(), StoreError> {
        // Half of a record is for the ranges of all chunks together.
        let ranges_size = self.journal.record_size_max() as usize / 2;
        let ranges_max = ranges_size / (entries::RANGE_SIZE * parts.operations.len().max(1));
        for operation in &parts.operations {
            let _pages = self.pin_for_cut(operation)?;
            let change = match operation {
                StoreOperation::Write(pending_write, mtime) => {
                    Some(self.plan_commit(pending_write, *mtime, ranges_max, fresh)?)
                }
                StoreOperation::Truncate { file, size, generation } => {
                    Some(self.plan_truncate(*file, *size, *generation))
                }
                StoreOperation::Hole(hole) => self.plan_hole(hole).map(ChangePlan::Hole),
                StoreOperation::Reserve { key, chunk_size, bytes } => self
                    .plan_reserve(*key, *chunk_size, bytes.clone(), fresh)?
                    .map(|change| ChangePlan::Reserve(change, *chunk_size)),
                StoreOperation::Reap(file) => Some(ChangePlan::Reap(*file)),
                StoreOperation::Announced(announcement) => Some(ChangePlan::Announced(*announcement)),
            };
            if let Some(change) = change {
                parts.count += self.encode(&change, &mut parts.buffer);
                changes.push(change);
            }
        }
        Ok(())
    }

    fn plan_commit(
        &mut self,
        pending_write: &PendingWrite,
        mtime: i64,
        ranges_max: usize,
        fresh: &mut Vec<Run>,
    ) -> Result<ChangePlan, StoreError> {
        let change = self.plan_write(pending_write, ranges_max, fresh)?;
        let staged =
            if pending_write.staged { pending_write.landing.iter().map(Extent::run).collect() } else { Vec::new() };
        Ok(ChangePlan::Write(
            change,
            WriteEffects { chunk_size: pending_write.chunk_size, mtime, at: pending_write.at, staged },
        ))
    }

    fn plan_truncate(&self, id: u64, size: u64, generation: u32) -> ChangePlan {
        let nothing = ChangePlan::Truncate { file: id, generation, keep_below: 0, cut: None };
        let Some(file) = self.files.get(id).filter(|file| file.chunk_size > 0) else { return nothing };
        let chunk_size = u64::from(file.chunk_size);
        let (index, within) = (size / chunk_size, (size % chunk_size) as u32);
        let Some(current) = file.chunks.get(index).filter(|_| within > 0) else {
            // The file may have no chunk there, but those before stay.
            let keep_below = if within > 0 { index + 1 } else { index };
            return ChangePlan::Truncate { file: id, generation, keep_below, cut: None };
        };
        let key = (id, index);
        let (chunk, gone) = cut_chunk(current, within);
        if chunk.is_empty() {
            return ChangePlan::Truncate { file: id, generation, keep_below: index, cut: None };
        }
        let shrinks = current.valid_end() > within || !gone.is_empty();
        let sums = self.sums_of_cut(key, current, &chunk, [within; 2]);
        let change = ChunkChange { key, chunk, gone, copies: Vec::new(), absorbs_capacity: false, sums };
        let cut = shrinks.then_some((change, within));
        ChangePlan::Truncate { file: id, generation, keep_below: index + 1, cut }
    }

    /// Appends the entries of a change and returns their number.
    fn encode(&self, change: &ChangePlan, out: &mut Vec<u8>) -> u32 {
        match change {
            ChangePlan::Write(change, applied) => {
                entries::put_chunk(out, change.key.0, change.key.1, applied.chunk_size, applied.mtime, &change.chunk);
                change.copies.iter().for_each(|&copy| entries::put_redo(out, copy));
                1 + change.copies.len() as u32 + entries::put_new_sums(out, &change.sums)
            }
            ChangePlan::Truncate { file, generation, keep_below, cut } => {
                // The chunk comes first: the truncate takes the file's end from the chunks that are left.
                let mut count = 1;
                if let Some((change, _)) = cut {
                    let known = self.files.get(*file).map_or((0, 0), |file| (file.chunk_size, file.mtime));
                    entries::put_chunk(out, change.key.0, change.key.1, known.0, known.1, &change.chunk);
                    count += 1 + entries::put_new_sums(out, &change.sums);
                }
                entries::put_truncate(out, *file, *generation, *keep_below);
                count
            }
            ChangePlan::Hole(change) => self.encode_hole(change, out),
            ChangePlan::Reserve(change, chunk_size) => {
                let mtime = self.files.get(change.key.0).map_or(0, |file| file.mtime);
                entries::put_chunk(out, change.key.0, change.key.1, *chunk_size, mtime, &change.chunk);
                1
            }
            ChangePlan::Reap(file) => {
                entries::put_reap(out, *file);
                1
            }
            ChangePlan::Announced(announcement) => {
                entries::put_announced(out, *announcement);
                1
            }
        }
    }

    fn apply(&mut self, change: ChangePlan) {
        match change {
            ChangePlan::Write(change, applied) => self.apply_write(change, applied),
            ChangePlan::Truncate { file: id, generation, keep_below, cut } => {
                let file = self.files.entry(id);
                file.generation = generation;
                let dropped = file.chunks.split_off(keep_below);
                self.bury(id, dropped);
                if let Some((change, end)) = cut {
                    self.durability.note_cut(change.key, end);
                    if let Some(active) = self.active.get_mut(&change.key) {
                        active.freeze(end);
                    }
                    self.install(change);
                }
                let file = self.files.entry(id);
                file.end = file.chunks.written_end(file.chunk_size);
            }
            ChangePlan::Hole(change) => self.apply_hole(change),
            ChangePlan::Reserve(change, chunk_size) => {
                self.files.entry(change.key.0).chunk_size = chunk_size;
                self.install(change);
            }
            ChangePlan::Reap(id) => {
                let chunks = self.files.remove(id).map(|file| file.chunks);
                self.active.iter_mut().filter(|(key, _)| key.0 == id).for_each(|(_, active)| active.reaped = true);
                self.bury(id, chunks.unwrap_or_default());
            }
            ChangePlan::Announced(announcement) => self.files.announce(announcement),
        }
    }

    fn apply_write(&mut self, mut change: ChunkChange, applied: WriteEffects) {
        let file: &mut File = self.files.entry(change.key.0);
        file.chunk_size = applied.chunk_size;
        file.mtime = applied.mtime;
        let key = change.key;
        self.durability.note_changed(key.0);
        self.staged_pages -= applied.staged.iter().map(|run| u64::from(run.pages)).sum::<u64>();
        let copies = mem::take(&mut change.copies);
        for copy in &copies {
            self.data.copy_within(copy.from, copy.to, u64::from(copy.size));
        }
        self.install(change);
        if self.durability.is_suspect(applied.at) {
            self.rewrite_chunk(key);
        }
        if copies.is_empty() {
            self.unpin(key, applied.at);
            return;
        }
        if applied.staged.is_empty() {
            self.deferred.pins.push((key, applied.at));
        } else {
            self.deferred.runs.extend(applied.staged);
            self.unpin(key, applied.at);
        }
    }

    /// Makes a chunk what the change says.
    pub fn install(&mut self, change: ChunkChange) {
        self.keep_sums(&change);
        if change.absorbs_capacity
            && let Some(active) = self.active.get_mut(&change.key)
        {
            active.capacity = InlineVec::default();
        }
        let is_gone = change.chunk.is_empty();
        let before = self.files.entry(change.key.0).put(change.key.1, change.chunk);
        if let Some(before) = &before {
            self.stamp_change(change.key, before);
        }
        self.chunk_count = self.chunk_count + u64::from(!is_gone) - u64::from(before.is_some());
        self.let_go(change.key, &change.gone);
    }
}

/// The chunk when it ends at byte `end`, and the extents that it then no longer needs.
fn cut_chunk(current: &Chunk, end: u32) -> (Chunk, Vec<Extent>) {
    let cut = |range: &ValidRange| ValidRange { end: range.end.min(end), ..*range };
    let ranges: Vec<ValidRange> = current.ranges.iter().filter(|range| range.start < end).map(cut).collect();
    let keep_pages = chunk::page_end(end);
    let extents: Vec<Extent> = current.extents.iter().filter_map(|extent| extent.clip(0, keep_pages)).collect();
    let gone = current.extents.iter().filter_map(|extent| extent.clip(keep_pages, u32::MAX)).collect();
    (Chunk { extents: InlineVec::from_slice(&extents), ranges: InlineVec::from_slice(&ranges) }, gone)
}
