//! Clients of this machine that read by short circuit: where the bytes of chunks are, and what has to be said before
//! that changes.

use super::allocator::PAGE_SIZE;
use super::chunk::{self, Chunk};
use super::files::Chunks;
use super::state::{ChunkKey, StoreState};
use reactor::StampedRegion;
use std::rc::Rc;

/// Chunks whose pages are announced one by one when a file goes; with more, all of the data space is at once.
const ANNOUNCED_MAX: u64 = 64;

/// Bytes of a chunk, and where they lie in the data space.
pub struct BytesPlace {
    pub offset: u32,
    pub size: u32,
    pub at: u64,
}

impl StoreState {
    /// What others may read by short circuit from. Where blocks have checksums nobody may: they are checked on the way.
    pub fn shared(&self) -> Option<&Rc<StampedRegion>> {
        self.stamped.as_ref().filter(|_| !self.checksums())
    }

    /// Where all written bytes of a chunk are.
    pub fn places(&self, key: ChunkKey, mut told: impl FnMut(BytesPlace)) {
        let Some(chunk) = self.files.get(key.0).and_then(|file| file.chunks.get(key.1)) else { return };
        for range in chunk.ranges.iter() {
            let mut offset = range.start;
            chunk::for_each_piece(&chunk.extents, range.start, range.end, |at, _, size| {
                told(BytesPlace { offset, size, at });
                offset += size;
            });
        }
    }

    /// A chunk has become another one: unless all its bytes are where they were, whoever knows their places is told.
    pub fn stamp_change(&self, key: ChunkKey, before: &Chunk) {
        if self.stamped.is_none() {
            return;
        }
        let now = self.files.get(key.0).and_then(|file| file.chunks.get(key.1));
        if !now.is_some_and(|now| keeps_bytes(before, now)) {
            self.stamp_pages(before);
        }
    }

    /// Whoever knows the places of a chunk's bytes is told to ask anew.
    pub fn stamp_chunk(&self, key: ChunkKey) {
        let chunk = self.files.get(key.0).and_then(|file| file.chunks.get(key.1));
        if let Some(chunk) = chunk.filter(|_| self.stamped.is_some()) {
            self.stamp_pages(chunk);
        }
    }

    /// Chunks go.
    pub fn stamp_gone(&self, chunks: &Chunks) {
        if self.stamped.is_none() {
            return;
        }
        if chunks.count() > ANNOUNCED_MAX {
            self.data.announce(0, self.data.size());
            return;
        }
        let mut next = 0;
        while let Some((index, chunk)) = chunks.next(next) {
            self.stamp_pages(chunk);
            next = index + 1;
        }
    }

    fn stamp_pages(&self, chunk: &Chunk) {
        for extent in chunk.extents.iter() {
            self.data.announce(u64::from(extent.start) * PAGE_SIZE, u64::from(extent.pages) * PAGE_SIZE);
        }
    }
}

/// Whether every written byte of `before` is one of `now`, at the same place.
fn keeps_bytes(before: &Chunk, now: &Chunk) -> bool {
    let has_range = |range: &chunk::ValidRange| {
        let holder = now.ranges.get(now.ranges.partition_point(|other| other.end <= range.start));
        holder.is_some_and(|other| other.start <= range.start && range.end <= other.end)
    };
    let has_extent = |extent: &chunk::Extent| {
        let holder = now.extents.get(now.extents.partition_point(|other| other.logical_end() <= extent.logical));
        holder.is_some_and(|other| {
            other.logical <= extent.logical
                && extent.logical_end() <= other.logical_end()
                && other.start + (extent.logical - other.logical) == extent.start
        })
    };
    before.ranges.iter().all(has_range) && before.extents.iter().all(has_extent)
}
