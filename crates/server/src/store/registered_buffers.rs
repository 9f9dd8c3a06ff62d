//! Pages that clients of this machine write into by themselves (docs/shared-memory.md): which they are, what of
//! them is free, and when they are everybody's again.
//!
//! Invariants
//! 1. A page that somebody else may have mapped for writing lies in exactly one registered buffer. Of its free pages
//!    the allocator has none: they are the registered buffer's, `unused` if nothing was ever committed in them since it
//!    was made, else `withheld`.
//! 2. An unused page is taken by one commit, of the holder and under the registered buffer's generation; it never is
//!    unused again.
//! 3. A registered buffer ends when its holder says that it has nothing of it mapped any more, or, once the holder has
//!    gone, when the region says so: never before.
//! 4. Live pages in a registered buffer are their chunks', like all others; only where they go to when they are freed
//!    differs.

use super::allocator::{PAGE_SIZE, Run};
use super::chunk::{self, Extent};
use super::inline_vec::InlineVec;
use super::state::{ChunkKey, StoreState};
use super::write::{PendingWrite, WritePart};
use super::{CHUNK_SIZE_MAX, ChunkWrite, Store, StoreError};
use reactor::{MappingLock, Region};
use std::collections::BTreeMap;
use std::rc::Rc;

const PAGE: u32 = PAGE_SIZE as u32;
/// Most pages of one registered buffer: 8 MiB.
const BUFFER_PAGES_MAX: u32 = 2048;
/// Most pages of all registered buffers that one holder has: 64 MiB.
const HOLDER_PAGES_MAX: u64 = 16_384;
/// A registered buffer takes at most this part of what is free, and all registered buffers together at most that part
/// of the store.
const FREE_SHARE: u64 = 32;
const STORE_SHARE: u64 = 4;
/// A registered buffer takes at most this part of what is free and faulted in, though that may be as few pages as these
/// (1 MiB): for what waits in the hands of one client others are given pages that have to be faulted in first, and that
/// costs more than a copy.
const READY_SHARE: u64 = 4;
const READY_PAGES_MIN: u64 = 256;

/// Who writes into a registered buffer: a connection, and what its client maps the pages through.
#[derive(Clone)]
pub struct Holder {
    /// The connection's number.
    pub connection: u64,
    /// See [`MappingLock`].
    pub mapping_lock: Rc<dyn MappingLock>,
}

/// Consecutive pages that a holder may write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisteredRun {
    /// Names the registered buffer; never repeats.
    pub generation: u64,
    /// First page of the data space.
    pub start: u32,
    /// Number of pages.
    pub pages: u32,
}

/// Pages with the bytes of a write that was submitted to an earlier life. They are given to nobody until this is
/// dropped.
pub struct HeldPages {
    store: Store,
    /// Nothing once they are a write's.
    run: Option<Run>,
}

impl Drop for HeldPages {
    fn drop(&mut self) {
        if let Some(run) = self.run {
            self.store.state.borrow_mut().let_go_of_pages(run);
        }
    }
}

impl Store {
    /// Keeps pages from `first_page` on from everybody, which a client has filled in an earlier life: before anything
    /// is written in this one. Nothing if one of them is not free.
    pub fn hold_pages(&self, first_page: u32, pages: u32) -> Option<HeldPages> {
        let run = Run { start: first_page, pages };
        let is_held = self.state.borrow_mut().hold_pages(run);
        is_held.then(|| HeldPages { store: self.clone(), run: Some(run) })
    }

    /// A write whose `bytes` (offset and size in the chunk) are in pages that are held, as in `reserve_registered`.
    /// Errors: `TooLarge` when these are more or fewer than the bytes need, and those of `reserve_write`.
    pub fn write_held(
        &self,
        (file, index): (u64, u64),
        chunk_size: u32,
        bytes: (u32, u32),
        mut held: HeldPages,
    ) -> Result<ChunkWrite, StoreError> {
        let run = held.run.filter(|_| chunk_size <= CHUNK_SIZE_MAX && index != u64::MAX).ok_or(StoreError::TooLarge)?;
        let write = self.state.borrow_mut().write_held((file, index), chunk_size, bytes, run)?;
        let pending_write = write.ok_or(StoreError::TooLarge)?;
        held.run = None;
        Ok(self.staged_write(pending_write))
    }
}

struct RegisteredBuffer {
    generation: u64,
    pages: u32,
    /// Nothing once it has gone.
    holder: Option<Holder>,
    /// A bit for each page.
    unused: Vec<u64>,
    withheld: Vec<Run>,
}

impl RegisteredBuffer {
    /// Takes pages that are unused, counted from the registered buffer's first. False, and nothing is taken, if one of
    /// them is not.
    fn take(&mut self, first: u32, pages: u32) -> bool {
        let range = first..first + pages;
        let is_unused = |page: u32| self.unused[page as usize / 64] >> (page % 64) & 1 == 1;
        if !range.clone().all(is_unused) {
            return false;
        }
        range.for_each(|page| self.unused[page as usize / 64] &= !(1 << (page % 64)));
        true
    }

    /// Its unused pages as runs of the data space.
    fn unused_runs(&self, start: u32) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for page in (0..self.pages).filter(|page| self.unused[*page as usize / 64] >> (page % 64) & 1 == 1) {
            match runs.last_mut() {
                Some(run) if run.start + run.pages == start + page => run.pages += 1,
                _ => runs.push(Run { start: start + page, pages: 1 }),
            }
        }
        runs
    }
}

/// All registered buffers, by their first page.
#[derive(Default)]
pub struct RegisteredBuffers {
    table: BTreeMap<u32, RegisteredBuffer>,
    /// Pages of all registered buffers, and those of them that are free.
    pages: u64,
    free: u64,
}

/// What registered buffers there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisteredUsage {
    /// Bytes of all registered buffers, live ones included.
    pub registered: u64,
    /// Bytes of those whose holder has gone, while somebody may still have them mapped.
    pub orphaned: u64,
}

impl RegisteredBuffers {
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// See [`super::Store::is_registered`].
    pub fn has(&self, connection: u64, generation: u64, offset: u64, size: u64) -> bool {
        let Ok(page) = u32::try_from(offset / PAGE_SIZE) else { return false };
        let Some((start, buffer)) = self.table.range(..=page).next_back() else { return false };
        let (first, end) = (u64::from(*start) * PAGE_SIZE, u64::from(*start + buffer.pages) * PAGE_SIZE);
        buffer.generation == generation
            && buffer.holder.as_ref().is_some_and(|holder| holder.connection == connection)
            && (first..=end).contains(&offset)
            && size <= end - offset
    }

    /// Pages that are free, but for nobody else.
    pub fn free(&self) -> u64 {
        self.free
    }

    pub fn usage(&self) -> RegisteredUsage {
        let orphans = self.table.values().filter(|buffer| buffer.holder.is_none());
        let orphaned = orphans.map(|buffer| u64::from(buffer.pages)).sum::<u64>() * PAGE_SIZE;
        RegisteredUsage { registered: self.pages * PAGE_SIZE, orphaned }
    }

    /// Runs of all free pages. For checks.
    pub fn free_runs(&self) -> Vec<Run> {
        let runs_of = |(start, buffer): (&u32, &RegisteredBuffer)| {
            let mut runs = buffer.unused_runs(*start);
            runs.extend(&buffer.withheld);
            runs
        };
        self.table.iter().flat_map(runs_of).collect()
    }

    /// Takes just these pages of a registered buffer without a holder. False, and nothing is taken, if there they are
    /// not free.
    pub fn take_exactly(&mut self, run: Run) -> bool {
        let Some((_, buffer)) = self.table.range_mut(..=run.start).next_back() else { return false };
        let end = run.start + run.pages;
        let has = |free: &Run| free.start <= run.start && end <= free.start + free.pages;
        let Some(index) = buffer.withheld.iter().position(has).filter(|_| buffer.holder.is_none()) else {
            return false;
        };
        let free = buffer.withheld.swap_remove(index);
        let rests = [
            Run { start: free.start, pages: run.start - free.start },
            Run { start: end, pages: free.start + free.pages - end },
        ];
        buffer.withheld.extend(rests.into_iter().filter(|rest| rest.pages > 0));
        self.free -= u64::from(run.pages);
        true
    }

    /// Pages are free: those in registered buffers stay there, the others are given to `other`.
    pub fn keep(&mut self, run: Run, mut other: impl FnMut(Run)) {
        let end = run.start + run.pages;
        let mut page = run.start;
        let before = self.table.range(..=page).next_back().map(|(start, _)| *start);
        let from = before.unwrap_or(page);
        for (&start, buffer) in self.table.range_mut(from..end) {
            let (first, last) = (start.max(page), (start + buffer.pages).min(end));
            if first >= last {
                continue;
            }
            if page < first {
                other(Run { start: page, pages: first - page });
            }
            buffer.withheld.push(Run { start: first, pages: last - first });
            self.free += u64::from(last - first);
            page = last;
        }
        if page < end {
            other(Run { start: page, pages: end - page });
        }
    }

    fn insert(&mut self, start: u32, buffer: RegisteredBuffer, free: u64) {
        self.pages += u64::from(buffer.pages);
        self.free += free;
        let before = self.table.insert(start, buffer);
        assert!(before.is_none(), "a page lies in one buffer (invariant 1)");
    }

    /// Ends a registered buffer and returns what is free of it.
    fn remove(&mut self, start: u32) -> Vec<Run> {
        let buffer = self.table.remove(&start).expect("a buffer ends once");
        let mut runs = buffer.unused_runs(start);
        runs.extend(&buffer.withheld);
        self.pages -= u64::from(buffer.pages);
        self.free -= runs.iter().map(|run| u64::from(run.pages)).sum::<u64>();
        runs
    }

    /// What of the range that somebody has mapped since an earlier life is free, given all pages that are used: it
    /// rests as a registered buffer without a holder.
    pub fn adopt(&mut self, mapped: Run, used: &[Run]) -> Vec<Run> {
        let end = mapped.start + mapped.pages;
        let (mut page, mut withheld) = (mapped.start, Vec::new());
        for run in used.iter().filter(|run| run.start < end && mapped.start < run.start + run.pages) {
            if page < run.start {
                withheld.push(Run { start: page, pages: run.start - page });
            }
            page = page.max(run.start + run.pages);
        }
        if page < end {
            withheld.push(Run { start: page, pages: end - page });
        }
        let free = withheld.iter().map(|run| u64::from(run.pages)).sum();
        let unused = vec![0; mapped.pages.div_ceil(64) as usize];
        let buffer =
            RegisteredBuffer { generation: 0, pages: mapped.pages, holder: None, unused, withheld: withheld.clone() };
        self.insert(mapped.start, buffer, free);
        withheld
    }
}

/// Bytes that others may have mapped for writing, as runs of pages.
pub fn mapped_runs(data: &dyn Region) -> Vec<Run> {
    let (mut runs, mut from) = (Vec::new(), 0);
    while let Some(range) = data.borrowed(from, data.size() - from) {
        let (first, last) = (range.start / PAGE_SIZE, range.end.min(data.size()).div_ceil(PAGE_SIZE));
        runs.push(Run { start: first as u32, pages: (last - first) as u32 });
        from = last * PAGE_SIZE;
        if from >= data.size() {
            break;
        }
    }
    runs
}

impl StoreState {
    /// See [`super::Store::register_buffer`].
    pub fn register_buffer(&mut self, holder: &Holder, generation: u64, wanted: u32) -> Option<RegisteredRun> {
        self.shared()?;
        self.end_unmapped();
        let align = (self.page_size / PAGE_SIZE).max(1) as u32;
        let handy = (self.allocator.ready() / READY_SHARE).max(READY_PAGES_MIN).max(u64::from(align));
        let share = (self.allocator.free() / FREE_SHARE).min(u64::from(BUFFER_PAGES_MAX)).min(handy) as u32;
        let pages = wanted.max(align).min(share) / align * align;
        let of_holder = |buffer: &&RegisteredBuffer| {
            buffer.holder.as_ref().is_some_and(|other| other.connection == holder.connection)
        };
        let held: u64 = self.registered.table.values().filter(of_holder).map(|buffer| u64::from(buffer.pages)).sum();
        let is_too_much = held + u64::from(pages) > HOLDER_PAGES_MAX
            || self.registered.pages + u64::from(pages) > u64::from(self.allocator.total()) / STORE_SHARE;
        if pages == 0 || is_too_much {
            return None;
        }
        let run = self.allocate_buffer(pages, align)?;
        let pages = run.pages;
        let (offset, size) = (u64::from(run.start) * PAGE_SIZE, u64::from(run.pages) * PAGE_SIZE);
        // Before anybody hears of it, so that a server killed in between finds it mapped or not at all.
        if holder.mapping_lock.hold(offset, size).is_err() {
            self.allocator.release(run);
            return None;
        }
        // Who read by short circuit from an earlier life of these pages sees that they have another one now.
        self.data.announce(offset, size);
        let mut unused = vec![u64::MAX; pages.div_ceil(64) as usize];
        if !pages.is_multiple_of(64)
            && let Some(last) = unused.last_mut()
        {
            *last = (1 << (pages % 64)) - 1;
        }
        let buffer = RegisteredBuffer { generation, pages, holder: Some(holder.clone()), unused, withheld: Vec::new() };
        self.registered.insert(run.start, buffer, u64::from(pages));
        Some(RegisteredRun { generation, start: run.start, pages })
    }

    /// A run of so many pages, or of fewer where that is what was used before and is free again: only where there is
    /// none at all is the medium asked for more, as for a write.
    fn allocate_buffer(&mut self, pages: u32, align: u32) -> Option<Run> {
        let least = align.max(READY_PAGES_MIN as u32).min(pages);
        let mut fewer = pages;
        loop {
            if let Some(run) = self.allocator.take_aligned(fewer, align) {
                return Some(run);
            }
            if fewer / 2 / align * align < least {
                return self.grow_aligned(fewer, align);
            }
            fewer = fewer / 2 / align * align;
        }
    }

    /// See [`super::Store::end_buffer`].
    pub fn end_buffer(&mut self, connection: u64, generation: u64) {
        let found = self.registered.table.iter().find(|(_, buffer)| {
            buffer.generation == generation
                && buffer.holder.as_ref().is_some_and(|holder| holder.connection == connection)
        });
        let Some((&start, buffer)) = found else { return };
        if let Some(holder) = &buffer.holder {
            holder.mapping_lock.let_go(u64::from(start) * PAGE_SIZE, u64::from(buffer.pages) * PAGE_SIZE);
        }
        let free = self.registered.remove(start);
        self.release_unused(free);
    }

    /// See [`super::Store::end_holder`].
    pub fn end_holder(&mut self, connection: u64) {
        for buffer in self.registered.table.values_mut() {
            if buffer.holder.as_ref().is_some_and(|holder| holder.connection == connection) {
                buffer.holder = None;
            }
        }
        self.end_unmapped();
    }

    /// Ends the registered buffers without a holder that nobody has mapped. True if some are left.
    pub fn end_unmapped(&mut self) -> bool {
        let orphans = self.registered.table.iter().filter(|(_, buffer)| buffer.holder.is_none());
        let orphans: Vec<(u32, u32)> = orphans.map(|(start, buffer)| (*start, buffer.pages)).collect();
        let mut left = false;
        for (start, pages) in orphans {
            if self.data.borrowed(u64::from(start) * PAGE_SIZE, u64::from(pages) * PAGE_SIZE).is_some() {
                left = true;
                continue;
            }
            let free = self.registered.remove(start);
            self.release_unused(free);
        }
        left
    }

    /// See [`super::Store::reserve_registered`].
    pub fn reserve_registered(
        &mut self,
        key: ChunkKey,
        chunk_size: u32,
        (offset, size): (u32, u32),
        place: (u64, RegisteredRun),
    ) -> Result<Option<PendingWrite>, StoreError> {
        let end = self.check_fits(key, chunk_size, offset, size)?;
        let (connection, run) = place;
        let (first, last) = (offset / PAGE, chunk::page_end(end));
        if size == 0 || run.pages != last - first {
            return Ok(None);
        }
        let Some((&start, buffer)) = self.registered.table.range_mut(..=run.start).next_back() else { return Ok(None) };
        let is_holder = buffer.holder.as_ref().is_some_and(|holder| holder.connection == connection);
        let within = run.start - start;
        let fits = within < buffer.pages && run.pages <= buffer.pages - within;
        if !is_holder || buffer.generation != run.generation || !fits || !buffer.take(within, run.pages) {
            return Ok(None);
        }
        self.registered.free -= u64::from(run.pages);
        Ok(Some(self.staged_write(key, chunk_size, (offset, end), run.start)))
    }

    /// A write of bytes `start..end` of a chunk, whose pages from this one on have them and were just taken.
    fn staged_write(
        &mut self,
        key: ChunkKey,
        chunk_size: u32,
        (start, end): (u32, u32),
        first_page: u32,
    ) -> PendingWrite {
        let logical = start / PAGE;
        let pages = chunk::page_end(end) - logical;
        self.staged_pages += u64::from(pages);
        let landing = InlineVec::One(Extent { logical, start: first_page, pages, birth: self.clock });
        let at = self.pin(key, false, InlineVec::default());
        let parts = InlineVec::One(WritePart { start, end, sum: None });
        PendingWrite { key, chunk_size, parts, at, landing, staged: true, pages: None, piece_sums: Vec::new() }
    }

    /// See [`super::Store::hold_pages`].
    pub fn hold_pages(&mut self, run: Run) -> bool {
        if run.pages == 0 || !self.take_exactly(run) {
            return false;
        }
        self.staged_pages += u64::from(run.pages);
        // Who read by short circuit from an earlier life of these pages sees that they have another one now.
        self.data.announce(u64::from(run.start) * PAGE_SIZE, u64::from(run.pages) * PAGE_SIZE);
        true
    }

    /// Pages that were held are free again.
    pub fn let_go_of_pages(&mut self, run: Run) {
        self.staged_pages -= u64::from(run.pages);
        self.release_unused([run]);
    }

    /// See [`super::Store::write_held`]. Nothing when the pages are more or fewer than the bytes need; then they stay
    /// held.
    pub fn write_held(
        &mut self,
        key: ChunkKey,
        chunk_size: u32,
        (offset, size): (u32, u32),
        run: Run,
    ) -> Result<Option<PendingWrite>, StoreError> {
        let end = self.check_fits(key, chunk_size, offset, size)?;
        if size == 0 || run.pages != chunk::page_end(end) - offset / PAGE {
            return Ok(None);
        }
        self.staged_pages -= u64::from(run.pages);
        Ok(Some(self.staged_write(key, chunk_size, (offset, end), run.start)))
    }
}
