//! Holes and reservations: bytes that are taken out of chunks, pages that are given to them before anything is written.
//!
//! Bytes outside the written ranges read as zeros whatever their pages hold, so a hole moves no byte: it shortens the
//! ranges, and pages that lie wholly in it leave the chunk. Nothing here waits for readers or writers: pages that one
//! of them uses are held for it as after a truncate, and a write on its way that is overtaken is applied from where it
//! is.

use super::StoreError;
use super::allocator::{PAGE_SIZE, Run};
use super::chunk::{self, Chunk, Extent, ValidRange};
use super::entries;
use super::files::File;
use super::inline_vec::InlineVec;
use super::state::{ChunkKey, StoreState};
use super::write::{ChunkChange, RANGES_MAX};

const PAGE: u32 = PAGE_SIZE as u32;
/// A chunk with more written ranges than this, some more than writes leave, keeps the pages of a further hole: its
/// entry has to fit into a record.
const HOLES_MAX: usize = RANGES_MAX + 32;
/// Chunks that one look for data or a hole goes through at most.
pub const LOOK_COUNT_MAX: usize = 4096;

/// A hole that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Hole {
    pub file: u64,
    /// First byte, as an offset in the file.
    pub start: u64,
    /// Byte after the last.
    pub end: u64,
    /// Whether the chunks keep all of their pages, for later writes.
    pub keep_pages: bool,
    /// Modification time of the file.
    pub mtime: i64,
}

/// A hole that is worked out but not made.
pub struct HoleChange {
    pub hole: Hole,
    /// Indexes of chunks that go as a whole.
    pub dropped: std::ops::Range<u64>,
    /// Chunks of which a part goes, with its first byte.
    pub cuts: Vec<(ChunkChange, u32)>,
}

impl StoreState {
    /// Works out a hole; nothing where the file has no chunks.
    pub fn plan_hole(&self, hole: &Hole) -> Option<HoleChange> {
        let file = self.files.get(hole.file).filter(|file| file.chunk_size > 0)?;
        let chunk_size = u64::from(file.chunk_size);
        let (first, limit) = (hole.start / chunk_size, hole.end.div_ceil(chunk_size));
        let dropped = match hole.keep_pages {
            true => 0..0,
            false => hole.start.div_ceil(chunk_size)..(hole.end / chunk_size).max(hole.start.div_ceil(chunk_size)),
        };
        let mut cuts = Vec::new();
        let mut from = first;
        while let Some((index, current)) = file.chunks.next(from).filter(|(index, _)| *index < limit) {
            if dropped.contains(&index) {
                from = dropped.end;
                continue;
            }
            let start = (hole.start.saturating_sub(index * chunk_size)) as u32;
            let end = (hole.end - index * chunk_size).min(chunk_size) as u32;
            cuts.push((self.cut_out((hole.file, index), file.chunk_size, current, start..end, hole.keep_pages), start));
            from = index + 1;
        }
        Some(HoleChange { hole: *hole, dropped, cuts })
    }

    /// The chunk without the bytes of a range.
    fn cut_out(
        &self,
        key: ChunkKey,
        chunk_size: u32,
        current: &Chunk,
        out: std::ops::Range<u32>,
        keep_pages: bool,
    ) -> ChunkChange {
        let mut ranges = Vec::with_capacity(current.ranges.len() + 1);
        for range in current.ranges.iter() {
            let parts = [(range.start, range.end.min(out.start)), (range.start.max(out.end), range.end)];
            for (start, end) in parts.into_iter().filter(|(start, end)| start < end) {
                ranges.push(ValidRange { start, end });
            }
        }
        let end_page = if out.end >= chunk_size { chunk::page_end(chunk_size) } else { out.end / PAGE };
        let (first, last) = (chunk::page_end(out.start), end_page);
        let mut extents: Vec<Extent> = current.extents.to_vec();
        let mut gone = Vec::new();
        if !keep_pages && first < last && ranges.len() <= HOLES_MAX {
            gone = extents.iter().filter_map(|extent| extent.clip(first, last)).collect();
            let rest = |extent: &Extent| [extent.clip(0, first), extent.clip(last, u32::MAX)];
            extents = current.extents.iter().flat_map(rest).flatten().collect();
        }
        let chunk = Chunk { extents: InlineVec::from_slice(&extents), ranges: InlineVec::from_slice(&ranges) };
        let sums = self.sums_of_cut(key, current, &chunk, [out.start, out.end]);
        ChunkChange { key, chunk, gone, copies: Vec::new(), absorbs_capacity: false, sums }
    }

    /// Appends the entries of a hole and returns their number.
    pub fn encode_hole(&self, change: &HoleChange, out: &mut Vec<u8>) -> u32 {
        let hole = &change.hole;
        let (chunk_size, end) = self.files.get(hole.file).map_or((0, 0), |file| (file.chunk_size, file.end));
        let mut count = 1;
        for (cut, _) in &change.cuts {
            entries::put_chunk(out, cut.key.0, cut.key.1, chunk_size, hole.mtime, &cut.chunk);
            count += 1 + entries::put_new_sums(out, &cut.sums);
        }
        entries::put_drop(out, hole.file, change.dropped.clone(), end, hole.mtime);
        count
    }

    /// Makes a hole whose record is written.
    pub fn apply_hole(&mut self, change: HoleChange) {
        let file: &mut File = self.files.entry(change.hole.file);
        file.mtime = change.hole.mtime;
        let dropped = file.chunks.take_range(change.dropped.start, change.dropped.end);
        self.bury(change.hole.file, dropped);
        for (cut, start) in change.cuts {
            self.durability.note_cut(cut.key, start);
            if let Some(active) = self.active.get_mut(&cut.key) {
                // Readers may still look at bytes that are in the hole, in pages that stay.
                active.freeze(start);
            }
            self.install(cut);
        }
    }

    /// Works out a reservation: the chunk with pages for all of `start..end`; nothing when it has them. New pages are
    /// appended to `fresh`. Errors: `Full`, `Gone`, `ChunkSizeMismatch`, `TooLarge`.
    pub fn plan_reserve(
        &mut self,
        key: ChunkKey,
        chunk_size: u32,
        bytes: std::ops::Range<u32>,
        fresh: &mut Vec<Run>,
    ) -> Result<Option<ChunkChange>, StoreError> {
        if bytes.end > chunk_size || chunk_size > super::CHUNK_SIZE_MAX {
            return Err(StoreError::TooLarge);
        }
        let file = self.files.get(key.0);
        if let Some(known) = file.map(|file| file.chunk_size).filter(|&known| known != 0 && known != chunk_size) {
            return Err(StoreError::ChunkSizeMismatch { file: key.0, known, given: chunk_size });
        }
        let active = self.active.get(&key);
        if active.is_some_and(|active| active.reaped) {
            return Err(StoreError::Gone { file: key.0 });
        }
        let current = file.and_then(|file| file.chunks.get(key.1)).cloned().unwrap_or_default();
        let capacity = active.map_or(&[][..], |active| &active.capacity);
        let mut extents = chunk::replace_pages(&current.extents, capacity, &mut Vec::new());
        let (mut page, last) = (bytes.start / PAGE, chunk::page_end(bytes.end));
        if chunk::is_mapped(&current.extents, page, last) {
            return Ok(None);
        }
        let mut added = Vec::new();
        while page < last {
            let holder = extents.iter().find(|extent| extent.logical <= page && page < extent.logical_end());
            if let Some(extent) = holder {
                page = extent.logical_end();
                continue;
            }
            let next = extents.iter().map(|extent| extent.logical).find(|&logical| logical > page);
            let limit = next.unwrap_or(last).min(last);
            let pages = self.allocate_extents(page, limit - page)?;
            fresh.extend(pages.iter().map(Extent::run));
            added.extend(pages);
            page = limit;
        }
        extents = chunk::replace_pages(&extents, &added, &mut Vec::new());
        let chunk = Chunk { extents: InlineVec::from_slice(&extents), ranges: current.ranges };
        Ok(Some(ChunkChange {
            key,
            chunk,
            gone: Vec::new(),
            copies: Vec::new(),
            absorbs_capacity: true,
            sums: Vec::new(),
        }))
    }

    /// See [`super::Store::next_data`].
    pub fn next_data(&self, id: u64, offset: u64) -> (Option<u64>, bool) {
        let Some(file) = self.files.get(id).filter(|file| file.chunk_size > 0) else { return (None, true) };
        let chunk_size = u64::from(file.chunk_size);
        let mut from = offset / chunk_size;
        for _ in 0..LOOK_COUNT_MAX {
            let Some((index, chunk)) = file.chunks.next(from) else { return (None, true) };
            let within = offset.saturating_sub(index * chunk_size);
            if let Some(range) = chunk.ranges.iter().find(|range| u64::from(range.end) > within) {
                return (Some(index * chunk_size + u64::from(range.start).max(within)), true);
            }
            from = index + 1;
        }
        (Some(from.saturating_mul(chunk_size)), false)
    }

    /// See [`super::Store::allocated`].
    pub fn allocated(&self, id: u64, from: u64, left: &mut usize) -> (u64, Option<u64>) {
        let Some(file) = self.files.get(id) else { return (0, None) };
        let (mut pages, mut index) = (0, from);
        while let Some((found, chunk)) = file.chunks.next(index) {
            if *left == 0 {
                return (pages * PAGE_SIZE, Some(found));
            }
            *left -= 1;
            pages += chunk.extents.iter().map(|extent| u64::from(extent.pages)).sum::<u64>();
            index = found + 1;
        }
        (pages * PAGE_SIZE, None)
    }

    /// See [`super::Store::allocated_in_chunk`].
    pub fn allocated_in_chunk(&self, (id, index): ChunkKey) -> u64 {
        let chunk = self.files.get(id).and_then(|file| file.chunks.get(index));
        chunk.map_or(0, |chunk| chunk.extents.iter().map(|extent| u64::from(extent.pages)).sum::<u64>() * PAGE_SIZE)
    }

    /// See [`super::Store::next_hole`].
    pub fn next_hole(&self, (id, index): ChunkKey, chunk_size: u32, from: u32) -> Option<u32> {
        let mut byte = from;
        if let Some(chunk) = self.files.get(id).and_then(|file| file.chunks.get(index)) {
            for range in chunk.ranges.iter().filter(|range| range.end > from) {
                if range.start > byte {
                    break;
                }
                byte = range.end;
            }
        }
        (byte < chunk_size).then_some(byte)
    }
}
