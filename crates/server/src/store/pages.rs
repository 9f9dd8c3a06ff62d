//! Which pages of the data space an operation touches, where only a part of it is in memory.
//!
//! Invariants
//! 1. What a commit of a settled write reads or writes is pinned by it: the pages that its bytes have landed in, the
//!    live bytes beside them, and all of a chunk whose gaps have to be filled. Below that, gaps whose pages are not in
//!    memory stay, and so do chunks in many pieces.
//! 2. A page counts as fresh only if no byte of it is live, now or in the state that power loss would leave.

use super::StoreError;
use super::allocator::{PAGE_SIZE, Run};
use super::chunk::{self, Chunk, Extent};
use super::commit::StoreOperation;
use super::error::AbsentPages;
use super::state::{ChunkKey, StoreState};
use super::write::{PendingWrite, RANGES_MAX, live_parts, rest_of_pages};
use reactor::{PageNeed, PagePin, PageRoom};
use std::ops::Range;

const PAGE: u32 = PAGE_SIZE as u32;

/// Pages that are about to be written to, and hold nothing.
pub fn fresh_pages(runs: impl IntoIterator<Item = Run>) -> PageNeed {
    let pages = |run: Run| u64::from(run.start)..u64::from(run.start) + u64::from(run.pages);
    PageNeed { fresh: runs.into_iter().map(pages).collect(), ..PageNeed::default() }
}

impl StoreState {
    /// Pins what `need` tells of a chunk; nothing where all of the data space is in memory. Errors: `Absent`.
    pub fn pin_pages(
        &self,
        (file, index): ChunkKey,
        room: PageRoom<'_>,
        need: impl FnOnce() -> PageNeed,
    ) -> Result<PagePin, StoreError> {
        if !self.is_partial {
            return Ok(PagePin::default());
        }
        let need = need();
        if need.is_empty() {
            return Ok(PagePin::default());
        }
        self.data.try_pin(&need, room).ok_or(StoreError::Absent(AbsentPages { file, index, need }))
    }

    /// What a read of bytes `from..to` of a chunk looks at.
    pub fn pages_to_read(&self, chunk: &Chunk, from: u32, to: u32) -> PageNeed {
        let mut need = PageNeed::default();
        let behind = &chunk.ranges[chunk.ranges.partition_point(|range| range.end <= from)..];
        for range in behind.iter().take_while(|range| range.start < to) {
            let (first, last) = (range.start.max(from), range.end.min(to));
            chunk::pages_of_bytes(&chunk.extents, first, last, &mut need.filled);
        }
        need
    }

    /// Pins what the commit of a write touches, as its chunk is now, and as its body is there or not. Errors: `Absent`.
    pub fn pin_for_write(
        &self,
        pending_write: &mut PendingWrite,
        room: PageRoom<'_>,
        has_body: bool,
    ) -> Result<(), StoreError> {
        if self.is_partial {
            // The new pin holds before the old one goes.
            let need = || self.pages_to_write(pending_write, has_body);
            pending_write.pages = Some(self.pin_pages(pending_write.key, room, need)?);
        }
        Ok(())
    }

    /// Pins what writes touch that are reserved, all of them or none. Errors: `Absent`, with the pages of all together:
    /// who waits for a part while it holds another may wait for ever.
    pub fn pin_writes(&self, writes: &mut [&mut PendingWrite], room: PageRoom<'_>) -> Result<(), StoreError> {
        if !self.is_partial || writes.iter().all(|write| write.pages.is_some()) {
            return Ok(());
        }
        if writes.iter_mut().try_for_each(|write| self.pin_for_write(write, room, false)).is_ok() {
            return Ok(());
        }
        let mut all = PageNeed::default();
        for write in writes.iter_mut() {
            write.pages = None;
            let PageNeed { filled, fresh } = self.pages_to_write(write, false);
            all.filled.extend(filled);
            all.fresh.extend(fresh);
        }
        let (file, index) = writes.first().map_or((0, 0), |write| write.key);
        Err(StoreError::Absent(AbsentPages { file, index, need: all }))
    }

    fn pages_to_write(&self, pending_write: &PendingWrite, has_body: bool) -> PageNeed {
        let PendingWrite { key, parts, landing, .. } = pending_write;
        if parts.is_empty() {
            return PageNeed::default();
        }
        let empty = Chunk::default();
        let current = self.files.get(key.0).and_then(|file| file.chunks.get(key.1)).unwrap_or(&empty);
        let mut need = PageNeed::default();
        for extent in landing.iter() {
            match has_body {
                true => need.filled.push(chunk::pages_of(extent)),
                // Pages of its own hold nothing.
                false if pending_write.staged => need.fresh.push(chunk::pages_of(extent)),
                false => self.put_landing(*key, current, extent, &mut need),
            }
        }
        if current.ranges.len() + parts.len() > RANGES_MAX {
            // The smallest gaps have to be filled, wherever they are.
            need.filled.extend(current.extents.iter().map(chunk::pages_of));
            let capacity = self.active.get(key).map_or(&[][..], |active| &active.capacity);
            need.fresh.extend(capacity.iter().map(chunk::pages_of));
            return need;
        }
        for (from, to) in rest_of_pages(parts) {
            for (first, last) in live_parts(&current.ranges, from, to) {
                chunk::pages_of_bytes(&current.extents, first, last, &mut need.filled);
            }
        }
        need
    }

    /// Pages of a chunk where bytes are about to land: there may be live ones beside them, also such that a truncate or
    /// a hole has taken away since the last sync.
    fn put_landing(&self, key: ChunkKey, current: &Chunk, landing: &Extent, need: &mut PageNeed) {
        let is_live = |page: u32| {
            let (start, end) = (page * PAGE_SIZE as u32, (page + 1).saturating_mul(PAGE_SIZE as u32));
            chunk::overlaps(&current.ranges, start, end) || self.durability.is_cut(key, end)
        };
        let (mut first, pages): (u32, Range<u32>) = (landing.logical, landing.logical..landing.logical_end());
        while first < pages.end {
            let live = is_live(first);
            let end = (first + 1..pages.end).find(|page| is_live(*page) != live).unwrap_or(pages.end);
            if let Some(part) = landing.clip(first, end) {
                let list = if live { &mut need.filled } else { &mut need.fresh };
                list.push(chunk::pages_of(&part));
            }
            first = end;
        }
    }

    /// Whether bytes `from..to` of a chunk, all of which are mapped, lie in pages that are in memory.
    pub fn has_bytes_at_hand(&self, extents: &[Extent], from: u32, to: u32) -> bool {
        let mut is_here = true;
        if self.is_partial {
            chunk::for_each_piece(extents, from, to, |place, _, size| {
                is_here &= self.data.is_resident(place, u64::from(size));
            });
        }
        is_here
    }

    /// Pins the pages that a truncate or a hole takes a part of, whose checksums have to be computed anew.
    /// Errors: `Absent`; then there is nothing to be undone.
    pub fn pin_for_cut(&self, operation: &StoreOperation) -> Result<Vec<PagePin>, StoreError> {
        if !self.is_partial || !self.checksums() {
            return Ok(Vec::new());
        }
        let (file, out) = match operation {
            StoreOperation::Truncate { file, size, .. } => (*file, *size..u64::MAX),
            StoreOperation::Hole(hole) => (hole.file, hole.start..hole.end),
            _ => return Ok(Vec::new()),
        };
        let Some(known) = self.files.get(file).filter(|file| file.chunk_size > 0) else { return Ok(Vec::new()) };
        let chunk_size = u64::from(known.chunk_size);
        let mut pins = Vec::new();
        // Only in the first and the last chunk is there something to be cut.
        let mut edges = [out.start / chunk_size, out.end.saturating_sub(1) / chunk_size];
        edges.sort_unstable();
        for (number, index) in edges.into_iter().enumerate() {
            if number == 1 && edges[0] == index {
                continue;
            }
            let Some(chunk) = known.chunks.get(index) else { continue };
            let start = index.saturating_mul(chunk_size);
            let within = |byte: u64| byte.saturating_sub(start).min(chunk_size) as u32;
            let out = within(out.start)..within(out.end);
            pins.push(self.pin_pages((file, index), PageRoom::Left, || {
                let mut need = PageNeed::default();
                for edge in [out.start, out.end] {
                    let (from, to) = (edge / PAGE * PAGE, edge.checked_next_multiple_of(PAGE).unwrap_or(u32::MAX));
                    for (first, last) in live_parts(&chunk.ranges, from, to) {
                        chunk::pages_of_bytes(&chunk.extents, first, last, &mut need.filled);
                    }
                }
                need
            })?);
        }
        Ok(pins)
    }
}
