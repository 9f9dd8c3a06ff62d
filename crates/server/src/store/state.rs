//! The store's state and what all operations on it share: space, pins, and the release of both.
//!
//! Invariants
//! 1. `files` is exactly what the journal and the newest checkpoint say; everything volatile is in `active`.
//! 2. Each used page is in one extent of a committed chunk, or in `active` (capacity, held), or in a `ChunkWrite` that
//!    lands in staged space, or in `deferred`, or in a chunk of `graveyard`, or rests (`durability`). Each free page is
//!    the allocator's, or a registered buffer's (`registered`).
//! 3. The copies of every journal record but the last are done; `deferred` is what those of the last one read from.

use super::active::{ActiveChunk, Pin};
use super::allocator::{Allocator, PAGE_SIZE, Run};
use super::checkpoint::CheckpointWriter;
use super::chunk::{Chunk, Extent};
use super::durability::Durability;
use super::files::{Chunks, Files};
use super::inline_vec::InlineVec;
use super::journal::{Journal, RECORD_HEADER_SIZE};
use super::prefault::PrefaultGoal;
use super::read_ahead::ReadAhead;
use super::registered_buffers::RegisteredBuffers;
use super::superblock::Superblock;
use super::{StoreError, Usage};
use reactor::{Region, StampedRegion, Storage};
use std::collections::{VecDeque, btree_map};
use std::io;
use std::rc::Rc;
use wire::FastMap;

/// Chunks that are freed with each commit when large files were dropped.
const BURY_STEP: usize = 256;
/// Files of up to this many chunks are freed at once.
const BURY_AT_ONCE: u64 = 64;
/// Pages that are faulted in at a time: 256 KiB, which takes some 0.3 ms; a huge page takes no longer.
const PREFAULT_STEP_PAGES: u32 = 64;

/// File id and chunk index.
pub type ChunkKey = (u64, u64);

/// What the copies of the last record may still be repeated from.
#[derive(Default)]
pub struct DeferredRelease {
    /// Staged space.
    pub runs: Vec<Run>,
    /// Writers whose landing space was overtaken by another write.
    pub pins: Vec<(ChunkKey, u64)>,
}

/// See the module.
pub struct StoreState {
    pub storage: Rc<dyn Storage>,
    pub superblock: Superblock,
    pub data: Rc<dyn Region>,
    /// Whether only a part of it is in memory at a time.
    pub is_partial: bool,
    /// The data space again, where others may read by short circuit.
    pub stamped: Option<Rc<StampedRegion>>,
    pub journal: Journal,
    pub files: Files,
    pub active: FastMap<ChunkKey, ActiveChunk>,
    pub allocator: Allocator,
    /// Pages that clients write into by themselves.
    pub registered: RegisteredBuffers,
    /// Counts pins; see `active`.
    pub clock: u64,
    pub chunk_count: u64,
    /// Bytes of the pages that the data space was seen to lie on.
    pub page_size: u64,
    prefault: PrefaultGoal,
    /// See [`super::Store::keep_pages`].
    pub kept_pages: u64,
    pub deferred: DeferredRelease,
    pub checkpoint: Option<CheckpointWriter>,
    pub durability: Durability,
    /// Pages that belong to writes on their way and to nothing else.
    pub staged_pages: u64,
    /// Who reads from front to back; nothing where all of the data space is in memory.
    pub read_ahead: Option<ReadAhead>,
    /// Checksums of the pages of the data space (`sums`); none where the store keeps none.
    pub page_sums: Vec<u32>,
    /// Buffers of finished transactions, to be used again.
    pub buffers: Vec<Vec<u8>>,
    graveyard: VecDeque<(u64, btree_map::IntoIter<u64, Chunk>)>,
}

impl StoreState {
    /// A state without pins, around what was created or recovered.
    pub fn new(
        storage: Rc<dyn Storage>,
        superblock: Superblock,
        (data, stamped): (Rc<dyn Region>, Option<Rc<StampedRegion>>),
        journal: Journal,
        (files, page_sums): (Files, Vec<u32>),
        (allocator, registered): (Allocator, RegisteredBuffers),
        durability: Durability,
    ) -> StoreState {
        let data = stamped.clone().map_or(data, |stamped| stamped as Rc<dyn Region>);
        let prefault = PrefaultGoal::new(&allocator);
        let chunk_count = files.iter().map(|file| file.chunks.count()).sum();
        let is_partial = data.is_partial();
        data.note_unused(u64::from(allocator.backed()) * PAGE_SIZE);
        let read_ahead = is_partial.then(|| ReadAhead::new(data.memory()));
        StoreState {
            storage,
            superblock,
            data,
            is_partial,
            stamped,
            journal,
            files,
            active: FastMap::default(),
            allocator,
            registered,
            clock: 0,
            chunk_count,
            page_size: PAGE_SIZE,
            prefault,
            kept_pages: 0,
            deferred: DeferredRelease::default(),
            checkpoint: None,
            durability,
            staged_pages: 0,
            read_ahead,
            page_sums,
            buffers: Vec::new(),
            graveyard: VecDeque::new(),
        }
    }

    /// Whether chunks carry checksums.
    pub fn checksums(&self) -> bool {
        self.superblock.options.checksums
    }

    /// Takes `pages` pages, in one run if there is one. Errors: `Full`, and what the medium says.
    pub fn allocate(&mut self, pages: u32, into: &mut Vec<Run>) -> Result<(), StoreError> {
        if self.try_allocate(pages, into).is_ok() {
            return Ok(());
        }
        self.bury_some(usize::MAX);
        self.end_unmapped();
        self.release_deferred_now()?;
        match self.try_allocate(pages, into) {
            Err(StoreError::Full) if self.durability.resting_pages() > 0 => Err(StoreError::Resting),
            result => result,
        }
    }

    /// Takes one run of `pages` pages if that is possible without effort.
    pub fn allocate_run(&mut self, pages: u32) -> Option<Run> {
        let data = &self.data;
        self.allocator.take_run(pages, &mut |from, to| back(data.as_ref(), from, to).is_ok())
    }

    /// The same, beginning at a multiple of `align` pages, of what the medium has not given yet.
    pub fn grow_aligned(&mut self, pages: u32, align: u32) -> Option<Run> {
        let data = &self.data;
        self.allocator.grow_aligned(pages, align, &mut |from, to| back(data.as_ref(), from, to).is_ok())
    }

    /// Just these pages, if they are free: in a registered buffer whose holder has gone, or for everybody.
    pub fn take_exactly(&mut self, run: Run) -> bool {
        let is_inside = u64::from(run.start) + u64::from(run.pages) <= u64::from(self.allocator.total());
        let data = &self.data;
        is_inside
            && (self.registered.take_exactly(run)
                || self.allocator.take_exactly(run, &mut |from, to| back(data.as_ref(), from, to).is_ok()))
    }

    fn try_allocate(&mut self, pages: u32, into: &mut Vec<Run>) -> Result<(), StoreError> {
        let data = &self.data;
        let mut failure = None;
        let mut grow = |from, to| match back(data.as_ref(), from, to) {
            Ok(()) => true,
            Err(error) => {
                failure = Some(error);
                false
            }
        };
        if self.allocator.take(pages, &mut grow, into) {
            return Ok(());
        }
        match failure {
            Some(error) if error.kind() != io::ErrorKind::StorageFull => {
                Err(StoreError::Medium("allocate data space", error))
            }
            _ => Err(StoreError::Full),
        }
    }

    /// Gives runs back that were part of a committed chunk, or may have been.
    pub fn release(&mut self, runs: impl IntoIterator<Item = Run>) {
        for run in runs {
            if self.durability.is_volatile {
                self.recycle(run);
            } else {
                self.durability.rest(run);
            }
        }
    }

    /// Gives runs back that never were part of a committed chunk.
    pub fn release_unused(&mut self, runs: impl IntoIterator<Item = Run>) {
        runs.into_iter().for_each(|run| self.recycle(run));
    }

    /// Pages hold nothing that counts: where only a part of all is in memory they make room there.
    pub fn forget_bytes(&self, run: Run) {
        if self.is_partial {
            self.data.release(u64::from(run.start) * PAGE_SIZE, u64::from(run.pages) * PAGE_SIZE);
        }
    }

    fn recycle(&mut self, run: Run) {
        self.forget_bytes(run);
        if self.registered.is_empty() {
            self.allocator.release(run);
        } else {
            let allocator = &mut self.allocator;
            self.registered.keep(run, |run| allocator.release(run));
        }
    }

    /// See [`super::Store::measure_pages`]. On media other than memory the question makes no sense.
    pub fn measure_pages(&mut self) -> u64 {
        // One page has to be there to be seen.
        if self.durability.is_volatile && self.data.allocate(0, PAGE_SIZE).is_ok() {
            self.page_size = self.data.page_size();
        }
        self.page_size
    }

    /// Pages that are to be free and faulted in. Files that are not in memory get none ahead: their pages would be
    /// written out.
    fn prefault_goal(&self) -> u64 {
        if self.durability.is_volatile { self.prefault.ready(&self.allocator) } else { 0 }
    }

    /// See [`super::Store::is_prefault_due`]. Not for every page: half of the goal is used up first.
    pub fn is_prefault_due(&self) -> bool {
        self.allocator.ready() < self.prefault_goal() / 2 && self.allocator.backed() < self.allocator.total()
    }

    /// See [`super::Store::prefault_step`].
    pub fn prefault_step(&mut self) -> bool {
        self.prefault.learn(&self.allocator);
        if self.allocator.ready() >= self.prefault_goal() {
            return false;
        }
        self.grow_ready()
    }

    /// Faults some more pages in. False where there are none left, or the medium refuses.
    fn grow_ready(&mut self) -> bool {
        let step = PREFAULT_STEP_PAGES.max((self.page_size / PAGE_SIZE) as u32);
        let (data, before) = (&self.data, self.allocator.backed());
        let grown = self.allocator.grow_step(step, &mut |from, to| back(data.as_ref(), from, to).is_ok());
        self.prefault.note_ahead(u64::from(self.allocator.backed() - before));
        self.prefault.is_refused = grown.is_err();
        grown.unwrap_or(false)
    }

    /// See [`super::Store::approach_kept_pages`].
    pub fn approach_kept_pages(&mut self) {
        if self.allocator.ready() < 2 * self.kept_pages && !self.prefault.is_refused {
            self.grow_ready();
        }
    }

    /// Registers a reader or writer of a chunk and returns its number.
    pub fn pin(&mut self, key: ChunkKey, reader: bool, in_place: InlineVec<(u32, u32)>) -> u64 {
        self.clock += 1;
        self.active.entry(key).or_default().pin(Pin { at: self.clock, in_place, reader });
        self.clock
    }

    /// Removes a reader or writer; space that only it used is free.
    pub fn unpin(&mut self, key: ChunkKey, at: u64) {
        let (mut free, mut unused) = (Vec::new(), Vec::new());
        let active = self.active.get_mut(&key).expect("a pin is registered until it is removed");
        if active.unpin(at, &mut free, &mut unused) {
            self.active.remove(&key);
        }
        self.release(free);
        self.release_unused(unused);
    }

    /// Extents leave a chunk.
    pub fn let_go(&mut self, key: ChunkKey, extents: &[Extent]) {
        if extents.is_empty() {
            return;
        }
        let mut free = Vec::new();
        match self.active.get_mut(&key) {
            Some(active) => extents.iter().for_each(|&extent| active.let_go(extent, self.clock, &mut free)),
            None => free.extend(extents.iter().map(Extent::run)),
        }
        self.release(free);
    }

    /// Chunks leave the tables; their space follows, in steps if they are many.
    pub fn bury(&mut self, file: u64, chunks: Chunks) {
        self.chunk_count -= chunks.count();
        self.stamp_gone(&chunks);
        let many = chunks.count() > BURY_AT_ONCE;
        match chunks {
            Chunks::None => {}
            Chunks::One(index, chunk) => self.let_go((file, index), &chunk.extents),
            Chunks::Several(tree) if many => self.graveyard.push_back((file, tree.into_iter())),
            Chunks::Several(tree) => tree.iter().for_each(|(&index, chunk)| self.let_go((file, index), &chunk.extents)),
        }
    }

    /// Frees the space of a bounded number of buried chunks.
    pub fn bury_step(&mut self) {
        self.bury_some(BURY_STEP);
    }

    fn bury_some(&mut self, count: usize) {
        for _ in 0..count {
            let Some((file, chunks)) = self.graveyard.front_mut() else { return };
            let file = *file;
            match chunks.next() {
                Some((index, chunk)) => self.let_go((file, index), &chunk.extents),
                None => {
                    self.graveyard.pop_front();
                }
            }
        }
    }

    /// A record was written after the last one with copies: what they read from is free (invariant 3).
    pub fn release_deferred(&mut self) {
        if self.deferred.runs.is_empty() && self.deferred.pins.is_empty() {
            return;
        }
        let DeferredRelease { runs, pins } = std::mem::take(&mut self.deferred);
        self.release(runs);
        for (key, at) in pins {
            self.unpin(key, at);
        }
    }

    fn release_deferred_now(&mut self) -> Result<(), StoreError> {
        if self.deferred.runs.is_empty() && self.deferred.pins.is_empty() {
            return Ok(());
        }
        self.append_mark()?;
        self.release_deferred();
        Ok(())
    }

    /// Appends a record without entries: the copies of the one before need not be repeated.
    pub fn append_mark(&mut self) -> Result<(), StoreError> {
        self.journal.append(&mut [0; RECORD_HEADER_SIZE], 0, true).map(|_| ())
    }

    /// See [`super::Store::check`].
    pub fn check(&mut self) -> Result<(), String> {
        self.bury_some(usize::MAX);
        let mut runs: Vec<Run> = self
            .active
            .values()
            .flat_map(|active| active.held_runs())
            .chain(self.deferred.runs.iter().copied())
            .chain(self.durability.resting_runs())
            .collect();
        let mut chunk_count = 0;
        for file in self.files.iter() {
            let mut from = Some(0);
            while let Some((index, chunk)) = from.and_then(|from| file.chunks.next(from)) {
                chunk
                    .check(file.chunk_size, self.allocator.total())
                    .map_err(|what| format!("chunk {index} of file {:#x}: {what}", file.id))?;
                runs.extend(chunk.extents.iter().map(Extent::run));
                chunk_count += 1;
                from = index.checked_add(1);
            }
        }
        let used: u64 = runs.iter().map(|run| u64::from(run.pages)).sum::<u64>() + self.staged_pages;
        let registered: Vec<Run> = self.registered.free_runs();
        if registered.iter().map(|run| u64::from(run.pages)).sum::<u64>() != self.registered.free() {
            return Err(format!(
                "free pages of registered buffers are {registered:?}, counted as {}",
                self.registered.free()
            ));
        }
        let used = used + self.registered.free();
        runs.extend(registered);
        let (free_runs, frontier) = self.allocator.free_runs();
        let free = free_runs.iter().map(|run| u64::from(run.pages)).sum::<u64>()
            + u64::from(self.allocator.total() - frontier);
        runs.extend(free_runs);
        runs.sort_unstable();
        if let Some(pair) = runs.windows(2).find(|pair| pair[0].start + pair[0].pages > pair[1].start) {
            return Err(format!("pages are used twice: {:?} and {:?}", pair[0], pair[1]));
        }
        if free != self.allocator.free() || used + free != u64::from(self.allocator.total()) {
            return Err(format!("{used} pages are used and {free} free, of {}", self.allocator.total()));
        }
        if chunk_count != self.chunk_count {
            Err(format!("{chunk_count} chunks, counted as {}", self.chunk_count))
        } else {
            Ok(())
        }
    }

    /// See [`Usage`].
    pub fn usage(&mut self) -> Usage {
        self.bury_some(BURY_STEP * 16);
        Usage {
            size: u64::from(self.allocator.total()) * PAGE_SIZE,
            free: (self.allocator.free() + self.registered.free() + self.durability.resting_pages()) * PAGE_SIZE,
            backed: (u64::from(self.allocator.backed()) * PAGE_SIZE)
                .next_multiple_of(self.page_size)
                .min(u64::from(self.allocator.total()) * PAGE_SIZE),
            journal_size: self.journal.backed(),
            journal_used: self.journal.used(),
            chunks: self.chunk_count,
            files: self.files.count(),
        }
    }
}

fn back(data: &dyn Region, from: u32, to: u32) -> io::Result<()> {
    data.allocate(u64::from(from) * PAGE_SIZE, u64::from(to - from) * PAGE_SIZE)
}
