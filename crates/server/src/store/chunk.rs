//! One chunk: which pages hold it and which of its bytes were ever written.
//!
//! Invariants of a committed chunk
//! 1. Extents are sorted by `logical`, do not overlap, and lie within the chunk's pages.
//! 2. Ranges are sorted, not empty, neither overlap nor touch, and every byte in them lies in an extent.
//! 3. There is at least one range or one extent: pages may be reserved before anything is written.

use super::allocator::{PAGE_SIZE, Run};
use super::inline_vec::InlineVec;
use super::sums;
use reactor::Region;

const PAGE: u32 = PAGE_SIZE as u32;

/// Consecutive pages of a chunk that lie in consecutive pages of the data space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First page within the chunk.
    pub logical: u32,
    /// First page within the data space.
    pub start: u32,
    /// Number of pages.
    pub pages: u32,
    /// Pin clock when the extent became part of the chunk; only pins taken later can refer to it.
    pub birth: u64,
}

impl Extent {
    /// Page of the chunk after the last.
    pub fn logical_end(&self) -> u32 {
        self.logical + self.pages
    }

    /// The pages in the data space.
    pub fn run(&self) -> Run {
        Run { start: self.start, pages: self.pages }
    }

    /// The part that lies in pages `from..to` of the chunk, if any.
    pub fn clip(&self, from: u32, to: u32) -> Option<Extent> {
        let first = self.logical.max(from);
        let end = self.logical_end().min(to);
        (first < end).then(|| Extent {
            logical: first,
            start: self.start + (first - self.logical),
            pages: end - first,
            birth: self.birth,
        })
    }
}

/// Bytes `start..end` of a chunk that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidRange {
    /// First byte.
    pub start: u32,
    /// Byte after the last.
    pub end: u32,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    /// Where the pages are.
    pub extents: InlineVec<Extent>,
    /// What was written.
    pub ranges: InlineVec<ValidRange>,
}

impl Chunk {
    /// End of the last written byte.
    pub fn valid_end(&self) -> u32 {
        self.ranges.last().map_or(0, |range| range.end)
    }

    /// The page of the chunk that lies in a page of the data space.
    pub fn page_at(&self, place: u32) -> Option<u32> {
        let extent = self.extents.iter().find(|extent| (extent.start..extent.start + extent.pages).contains(&place))?;
        Some(extent.logical + (place - extent.start))
    }

    /// Whether nothing is written in it and it has no pages.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.extents.is_empty()
    }

    /// Says which invariant does not hold in a chunk that was read from the medium.
    pub fn check(&self, chunk_size: u32, data_pages: u32) -> Result<(), &'static str> {
        let mut page = 0;
        for extent in self.extents.iter() {
            let fits = u64::from(extent.logical) + u64::from(extent.pages) <= u64::from(page_end(chunk_size))
                && u64::from(extent.start) + u64::from(extent.pages) <= u64::from(data_pages);
            if extent.pages == 0 || extent.logical < page || !fits {
                return Err("its extents are not in order");
            }
            page = extent.logical_end();
        }
        let mut end = None;
        for range in self.ranges.iter() {
            if range.start >= range.end || range.end > chunk_size || end.is_some_and(|end| range.start <= end) {
                return Err("its written ranges are not in order");
            }
            if !is_mapped(&self.extents, range.start / PAGE, page_end(range.end)) {
                return Err("a written range has no space");
            }
            end = Some(range.end);
        }
        if self.is_empty() { Err("it has neither pages nor written bytes") } else { Ok(()) }
    }
}

/// Number of pages that bytes `0..end` reach into.
pub fn page_end(end: u32) -> u32 {
    end.div_ceil(PAGE)
}

/// Whether all pages `from..to` are in the extents.
pub fn is_mapped(extents: &[Extent], from: u32, to: u32) -> bool {
    let mut page = from;
    for extent in &extents[extents.partition_point(|extent| extent.logical_end() <= from)..] {
        if extent.logical > page {
            break;
        }
        page = page.max(extent.logical_end());
        if page >= to {
            return true;
        }
    }
    page >= to
}

/// Whether both lists place pages `from..to` in the same pages of the data space.
pub fn is_same_place(one: &[Extent], other: &[Extent], from: u32, to: u32) -> bool {
    let mut page = from;
    while page < to {
        let find = |extents: &[Extent]| {
            let holder = extents.get(extents.partition_point(|extent| extent.logical_end() <= page));
            holder.and_then(|extent| extent.clip(page, to)).filter(|part| part.logical == page)
        };
        match (find(one), find(other)) {
            (Some(here), Some(there)) if here.start == there.start => page += here.pages.min(there.pages),
            _ => return false,
        }
    }
    true
}

/// Calls `visit(offset in the data space, byte in the chunk, bytes)` for each piece of bytes `from..to`, in order.
/// All of them must be mapped.
pub fn for_each_piece(extents: &[Extent], from: u32, to: u32, mut visit: impl FnMut(u64, u32, u32)) {
    let mut byte = from;
    for extent in &extents[extents.partition_point(|extent| extent.logical_end() <= from / PAGE)..] {
        let extent_start = u64::from(extent.logical) * PAGE_SIZE;
        let extent_end = u64::from(extent.logical_end()) * PAGE_SIZE;
        if extent_end <= u64::from(byte) {
            continue;
        }
        if byte >= to {
            break;
        }
        assert!(extent_start <= u64::from(byte), "bytes {byte}..{to} are mapped");
        let end = extent_end.min(u64::from(to)) as u32;
        visit(u64::from(extent.start) * PAGE_SIZE + (u64::from(byte) - extent_start), byte, end - byte);
        byte = end;
    }
    assert!(byte >= to, "bytes {byte}..{to} are mapped");
}

/// Puts extents into a list in their places; what lay there before is appended to `freed`. Both lists are sorted.
/// Neighbours are joined.
pub fn replace_pages(old: &[Extent], new: &[Extent], freed: &mut Vec<Extent>) -> Vec<Extent> {
    let mut all: Vec<Extent> = Vec::with_capacity(old.len() + new.len() + 2);
    for extent in old {
        let mut page = extent.logical;
        for cover in &new[new.partition_point(|cover| cover.logical_end() <= page)..] {
            if cover.logical >= extent.logical_end() {
                break;
            }
            if let Some(part) = extent.clip(cover.logical, cover.logical_end()) {
                all.extend(extent.clip(page, part.logical));
                freed.push(part);
                page = part.logical_end();
            }
        }
        all.extend(extent.clip(page, extent.logical_end()));
    }
    all.extend_from_slice(new);
    all.sort_unstable_by_key(|extent| extent.logical);
    join_extents(&mut all);
    all
}

/// Joins extents that follow one another in the chunk and in the data space.
pub fn join_extents(extents: &mut Vec<Extent>) {
    extents.dedup_by(|next, extent| {
        let follows = extent.logical_end() == next.logical && extent.start + extent.pages == next.start;
        if follows {
            extent.pages += next.pages;
            extent.birth = extent.birth.min(next.birth);
        }
        follows
    });
}

/// Whether any range has a byte in `from..to`.
pub fn overlaps(ranges: &[ValidRange], from: u32, to: u32) -> bool {
    ranges.get(ranges.partition_point(|range| range.end <= from)).is_some_and(|range| range.start < to)
}

/// Whether any of the byte ranges, which are sorted and apart, has a byte in `from..to`.
pub fn has_bytes_of(ranges: &[(u32, u32)], from: u32, to: u32) -> bool {
    ranges.get(ranges.partition_point(|range| range.1 <= from)).is_some_and(|range| range.0 < to)
}

/// Appends the pages of the data space that hold bytes `from..to` of a chunk, as far as they are mapped.
pub fn pages_of_bytes(extents: &[Extent], from: u32, to: u32, into: &mut Vec<std::ops::Range<u64>>) {
    let (first, last) = (from / PAGE, page_end(to));
    let behind = &extents[extents.partition_point(|extent| extent.logical_end() <= first)..];
    into.extend(behind.iter().map_while(|extent| extent.clip(first, last)).map(|extent| pages_of(&extent)));
}

/// The pages of an extent, in the data space.
pub fn pages_of(extent: &Extent) -> std::ops::Range<u64> {
    u64::from(extent.start)..u64::from(extent.start) + u64::from(extent.pages)
}

/// CRC-32C of bytes `from..to` of a chunk, all of which must be mapped.
pub fn crc_of(data: &dyn Region, extents: &[Extent], from: u32, to: u32) -> u32 {
    let mut crc = 0;
    for_each_piece(extents, from, to, |offset, _, size| {
        crc = sums::join(crc, data.crc32c(offset, u64::from(size)), size);
    });
    crc
}
