//! Checksums of pages: a read of a few bytes verifies the pages that it touches and no more.
//!
//! There is one number for each page of the data space. It speaks for a page of a committed chunk that has written
//! bytes: it is the CRC-32C of these, in their order. What else lies in the page does not count, so that bytes may
//! arrive there before anybody vouches for them, and power loss may leave them in any state.
//!
//! Invariants
//! 1. The number of a page changes with the record that changes which of its bytes are written, or what they are, and
//!    is in that record; checkpoints have those of all pages of a chunk beside the chunk.
//! 2. Bytes are never vouched for anew: where a part of a page stays, its number comes from the one before, or the page
//!    is verified first. What does not match and can't be refused, as in a cut that is decided, gets a number that does
//!    not match either, so that readers are told as before.

use super::StoreError;
use super::allocator::PAGE_SIZE;
use super::chunk::{self, Chunk, Extent};
use super::entries::ENTRY_HEADER_SIZE;
use super::state::{ChunkKey, StoreState};
use super::write::{ChunkChange, PendingWrite, WritePart, live_parts};
use std::ops::Range;
use std::sync::LazyLock;

const PAGE: u32 = PAGE_SIZE as u32;

/// What each bit of a checksum becomes when 2^n zeros follow, for each n. The library's own `crc32c_combine` works such
/// tables out anew each time, which takes as long as the checksum of 100 KiB.
static SHIFTS: LazyLock<[[u32; 32]; 32]> = LazyLock::new(|| {
    let mut shifts = [std::array::from_fn(|bit| crc32c::crc32c_combine(1 << bit, 0, 1)); 32];
    for power in 1..32 {
        let half = shifts[power - 1];
        shifts[power] = half.map(|bit| shift(&half, bit));
    }
    shifts
});

/// The same for a page of zeros, by each value of the four bytes.
static PAGE_SHIFT: LazyLock<[[u32; 256]; 4]> = LazyLock::new(|| {
    let bits = &SHIFTS[PAGE.trailing_zeros() as usize];
    std::array::from_fn(|byte| std::array::from_fn(|value| shift(bits, (value as u32) << (8 * byte))))
});

fn shift(bits: &[u32; 32], sum: u32) -> u32 {
    bits.iter().enumerate().fold(0, |shifted, (bit, becomes)| shifted ^ (becomes & (sum >> bit & 1).wrapping_neg()))
}

/// What a checksum becomes when `size` zeros follow.
fn shifted(sum: u32, size: u32) -> u32 {
    match size {
        _ if sum == 0 => 0,
        PAGE => {
            let (bytes, table) = (sum.to_le_bytes(), &*PAGE_SHIFT);
            (0..4).fold(0, |shifted, byte| shifted ^ table[byte][usize::from(bytes[byte])])
        }
        size => (0..32).filter(|power| size >> power & 1 == 1).fold(sum, |sum, power| shift(&SHIFTS[power], sum)),
    }
}

/// The checksum of bytes with one and `size` more with another checksum behind them.
pub fn join(first: u32, second: u32, size: u32) -> u32 {
    shifted(first, size) ^ second
}

/// The checksum of so many zeros.
pub fn of_zeros(size: u32) -> u32 {
    !shifted(!0, size)
}

/// Bytes of a page of a chunk.
fn bytes_of(page: u32) -> (u32, u32) {
    (page * PAGE, (page + 1).saturating_mul(PAGE))
}

/// The page of the data space that a page of a chunk lies in, which has to have one.
fn place_of(extents: &[Extent], page: u32) -> u32 {
    let extent = extents[extents.partition_point(|extent| extent.logical_end() <= page)];
    assert!(extent.logical <= page, "page {page} of the chunk has a place");
    extent.start + (page - extent.logical)
}

/// Bytes of the entry of a run of pages, and of each number in it.
pub const RUN_ENTRY_SIZE: usize = ENTRY_HEADER_SIZE + 4;
pub const SUM_SIZE: usize = 4;

/// Numbers of pages that a change gives, in the order in which they are to be written: the page of the data space, and
/// its number.
pub type NewSums = Vec<(u32, u32)>;

impl StoreState {
    /// Checksum of bytes `from..to` of a chunk, all of which are written; verifies the pages that they are in. 0 where
    /// the store keeps none. Errors: `Corrupt`.
    pub fn verified_sum(&self, key: ChunkKey, chunk: &Chunk, from: u32, to: u32) -> Result<u32, StoreError> {
        let mut sum = 0;
        if self.checksums() {
            for page in from / PAGE..chunk::page_end(to) {
                let (start, end) = bytes_of(page);
                let wanted = (start.max(from), end.min(to));
                sum = join(sum, self.verify_page(key, chunk, page, wanted)?, wanted.1 - wanted.0);
            }
        }
        Ok(sum)
    }

    /// Verifies a page of a chunk; returns the checksum of some of its bytes, all of which are written.
    fn verify_page(&self, key: ChunkKey, chunk: &Chunk, page: u32, wanted: (u32, u32)) -> Result<u32, StoreError> {
        let (start, end) = bytes_of(page);
        let (mut all, mut found) = (0, 0);
        for (from, to) in live_parts(&chunk.ranges, start, end) {
            // What is asked for is looked at once, with all the rest.
            let cut = |byte: u32| byte.clamp(from, to);
            for (from, to) in [(from, cut(wanted.0)), (cut(wanted.0), cut(wanted.1)), (cut(wanted.1), to)] {
                let sum = self.sum_of(&chunk.extents, from, to);
                all = join(all, sum, to - from);
                if (from, to) == wanted {
                    found = sum;
                }
            }
        }
        if self.page_sums[place_of(&chunk.extents, page) as usize] != all {
            let offset = live_parts(&chunk.ranges, start, end).next().map_or(start, |(from, _)| from);
            return Err(StoreError::Corrupt { file: key.0, index: key.1, offset });
        }
        Ok(found)
    }

    fn sum_of(&self, extents: &[Extent], from: u32, to: u32) -> u32 {
        match from < to {
            true => chunk::crc_of(self.data.as_ref(), extents, from, to),
            false => 0,
        }
    }

    /// Checksums of the bytes of a part that have arrived, cut at the ends of pages.
    pub fn piece_sums(&self, landing: &[Extent], part: &WritePart) -> Vec<u32> {
        let piece = |page: u32| {
            let (start, end) = bytes_of(page);
            self.sum_of(landing, start.max(part.start), end.min(part.end))
        };
        (part.start / PAGE..chunk::page_end(part.end)).map(piece).collect()
    }

    /// Numbers for a chunk that a write makes of another one; `filled` are gaps that were filled with zeros, and
    /// `is_moved` says whether pages that it does not touch are elsewhere now. Errors: `Corrupt` where bytes stay in a
    /// page that does not match.
    pub fn sums_of_write(
        &self,
        pending_write: &PendingWrite,
        current: &Chunk,
        new: &Chunk,
        filled: &[(u32, u32)],
        is_moved: bool,
    ) -> Result<NewSums, StoreError> {
        if !self.checksums() {
            return Ok(NewSums::new());
        }
        let arrived: Vec<Vec<u32>> =
            (0..pending_write.parts.len()).map(|number| self.vouched(pending_write, number)).collect();
        let spans = pending_write.parts.iter().map(|part| (part.start, part.end)).chain(filled.iter().copied());
        let mut pages: Vec<u32> = spans.flat_map(|(from, to)| from / PAGE..chunk::page_end(to)).collect();
        pages.sort_unstable();
        pages.dedup();
        let mut sums = NewSums::with_capacity(pages.len());
        for &page in &pages {
            let sum = self.sum_of_written(pending_write, &arrived, current, new, page)?;
            sums.push((place_of(&new.extents, page), sum));
        }
        if is_moved {
            let touched = pages.len();
            pages.extend(new.extents.iter().flat_map(|extent| extent.logical..extent.logical_end()));
            for page in pages.split_off(touched) {
                let (start, end) = bytes_of(page);
                if pages.binary_search(&page).is_err() && chunk::overlaps(&new.ranges, start, end) {
                    let sum = self.page_sums[place_of(&current.extents, page) as usize];
                    sums.push((place_of(&new.extents, page), sum));
                }
            }
        }
        Ok(sums)
    }

    /// Checksums of the pieces of a part. What has a sum of whoever made it, and does not match that, gets numbers that
    /// do not match it either.
    fn vouched(&self, pending_write: &PendingWrite, number: usize) -> Vec<u32> {
        let part = &pending_write.parts[number];
        let mut pieces = match pending_write.piece_sums.get(number) {
            Some(known) if !known.is_empty() => known.clone(),
            _ => self.piece_sums(&pending_write.landing, part),
        };
        if part.sum.is_some_and(|sum| sum != whole_sum(part, &pieces)) {
            pieces.iter_mut().for_each(|piece| *piece = !*piece);
        }
        pieces
    }

    /// The number of a page that a write brings bytes of, or whose gaps it has filled.
    fn sum_of_written(
        &self,
        pending_write: &PendingWrite,
        arrived: &[Vec<u32>],
        current: &Chunk,
        new: &Chunk,
        page: u32,
    ) -> Result<u32, StoreError> {
        let (parts, (start, end)) = (&pending_write.parts, bytes_of(page));
        let first_part = parts.partition_point(|part| part.end <= start);
        let first_new = parts.get(first_part).map_or(end, |part| part.start.clamp(start, end));
        let before = || live_parts(&current.ranges, start, end);
        let (mut sum, mut byte, mut is_sound) = (0, start, true);
        if let Some(first) = before().next() {
            if before().eq(live_parts(&new.ranges, start, first_new)) {
                // What is new comes behind all that was there: that need not be looked at.
                sum = self.page_sums[place_of(&current.extents, page) as usize];
                byte = first_new;
            } else if before().any(|(from, to)| !is_covered(parts, from, to)) {
                let verified = self.verify_page(pending_write.key, current, page, first);
                // A gap beside rotten bytes is no business of who writes elsewhere.
                is_sound = verified.is_ok();
                if first_new < end {
                    verified?;
                }
            }
        }
        for (from, to) in live_parts(&new.ranges, start, end) {
            let mut from = from.max(byte);
            while from < to {
                let number = parts.partition_point(|part| part.end <= from);
                let (piece, until) = match parts.get(number).filter(|part| part.start < to) {
                    Some(part) if part.start <= from => {
                        (arrived[number][(page - part.start / PAGE) as usize], part.end.min(to))
                    }
                    next => {
                        let until = next.map_or(to, |part| part.start);
                        self.sum_of_old(current, from, until)
                    }
                };
                sum = join(sum, piece, until - from);
                from = until;
            }
        }
        Ok(if is_sound { sum } else { !sum })
    }

    /// Checksum of bytes that were there before, or are zeros, up to where that changes.
    fn sum_of_old(&self, current: &Chunk, from: u32, to: u32) -> (u32, u32) {
        let next = current.ranges.get(current.ranges.partition_point(|range| range.end <= from));
        match next.filter(|range| range.start < to) {
            Some(range) if range.start <= from => {
                let until = range.end.min(to);
                (self.sum_of(&current.extents, from, until), until)
            }
            next => {
                let until = next.map_or(to, |range| range.start);
                (of_zeros(until - from), until)
            }
        }
    }

    /// Numbers for pages of a chunk of which bytes were cut out, if some of theirs stay. The cut may be decided
    /// already, so what does not match its number gets one that does not match either.
    pub fn sums_of_cut(&self, key: ChunkKey, current: &Chunk, new: &Chunk, edges: [u32; 2]) -> NewSums {
        let mut sums = NewSums::new();
        let pages = [edges[0] / PAGE, edges[1] / PAGE];
        for page in &pages[..if pages[0] == pages[1] { 1 } else { 2 }] {
            let (start, end) = bytes_of(*page);
            let rest: Vec<(u32, u32)> = live_parts(&new.ranges, start, end).collect();
            if !self.checksums() || rest.is_empty() || live_parts(&current.ranges, start, end).eq(rest.iter().copied())
            {
                continue;
            }
            let is_sound = self.verify_page(key, current, *page, rest[0]).is_ok();
            let sum =
                rest.iter().fold(0, |sum, &(from, to)| join(sum, self.sum_of(&current.extents, from, to), to - from));
            sums.push((place_of(&new.extents, *page), if is_sound { sum } else { !sum }));
        }
        sums
    }

    /// Keeps what a change says, whose record is written.
    pub fn keep_sums(&mut self, change: &ChunkChange) {
        for &(page, sum) in &change.sums {
            self.page_sums[page as usize] = sum;
            if !self.durability.is_volatile {
                self.durability.changed_pages.note(page, change.key);
            }
        }
    }
}

/// Whether any byte of a page of a chunk is written.
pub fn has_bytes(chunk: &Chunk, page: u32) -> bool {
    let (start, end) = bytes_of(page);
    chunk::overlaps(&chunk.ranges, start, end)
}

/// The number of a page of a chunk that holds these bytes.
pub fn sum_of_page(bytes: &[u8], chunk: &Chunk, page: u32) -> u32 {
    let (start, end) = bytes_of(page);
    live_parts(&chunk.ranges, start, end)
        .fold(0, |sum, (from, to)| crc32c::crc32c_append(sum, &bytes[(from - start) as usize..(to - start) as usize]))
}

/// Calls `put` for each run of pages of the data space that hold written bytes of a chunk, with their numbers; for none
/// where the store keeps none.
pub fn for_each_sum_run(page_sums: &[u32], chunk: &Chunk, mut put: impl FnMut(u32, &[u32])) {
    if page_sums.is_empty() {
        return;
    }
    let mut next = 0;
    for range in chunk.ranges.iter() {
        let pages = (range.start / PAGE).max(next)..chunk::page_end(range.end);
        next = pages.end.max(next);
        let mut runs: Vec<Range<u64>> = Vec::new();
        if !pages.is_empty() {
            let last = bytes_of(pages.end - 1).1;
            chunk::pages_of_bytes(&chunk.extents, pages.start * PAGE, last, &mut runs);
        }
        for run in runs {
            put(run.start as u32, &page_sums[run.start as usize..run.end as usize]);
        }
    }
}

/// The checksum of a part whose pieces have these.
pub fn whole_sum(part: &WritePart, pieces: &[u32]) -> u32 {
    (part.start / PAGE..).zip(pieces).fold(0, |sum, (page, piece)| {
        let (start, end) = bytes_of(page);
        join(sum, *piece, end.min(part.end) - start.max(part.start))
    })
}

/// Whether parts have all of bytes `from..to`.
fn is_covered(parts: &[WritePart], from: u32, to: u32) -> bool {
    let mut byte = from;
    for part in &parts[parts.partition_point(|part| part.end <= from)..] {
        if part.start > byte {
            break;
        }
        byte = part.end;
    }
    byte >= to
}

/// What a change gives, as runs of pages that follow one another in it and in the data space.
pub fn runs_of(sums: &NewSums) -> impl Iterator<Item = (u32, &[(u32, u32)])> {
    let follows = |one: &(u32, u32), next: &(u32, u32)| one.0.checked_add(1) == Some(next.0);
    sums.chunk_by(follows).map(|run| (run[0].0, run))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: joined checksums are those of the joined bytes, whatever the sizes, pages among them.
    #[test]
    fn joined() {
        let bytes: Vec<u8> = (0..3 * PAGE).map(|number| (number * number / 7) as u8).collect();
        for (first, second) in
            [(0, 5), (5, 0), (7, PAGE), (4097, 3000), (PAGE, PAGE), (PAGE, 1), (2 * PAGE, PAGE), (1, PAGE - 1)]
        {
            let (one, rest) = bytes.split_at(first as usize);
            let other = &rest[..second as usize];
            let joined = join(crc32c::crc32c(one), crc32c::crc32c(other), second);
            assert_eq!(joined, crc32c::crc32c(&bytes[..(first + second) as usize]), "{first} {second}");
            assert_eq!(of_zeros(first), crc32c::crc32c(&vec![0; first as usize]), "{first}");
        }
    }
}
