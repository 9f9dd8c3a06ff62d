//! What happens to a write: a place is reserved, the body arrives there, and a commit makes it part of the chunk.
//!
//! - Bytes that the chunk does not hold land *in place*: in the chunk's own pages, or in new ones given to it. The
//!   commit only extends the written ranges.
//! - Anything that overlaps written bytes, or bytes that somebody else has a claim on, lands in *staged* pages. The
//!   commit swaps them in, after copying the live rest of the first and last page into them; or, where that copies less
//!   or the chunk is in too many pieces already, and no reader is there, journals a copy onto the live bytes and
//!   performs it when the record is written.
//! - A write in place may be overtaken by another write or a truncate. Then its landing pages count as staged ones,
//!   except that they are not its own and cannot be swapped in.

use super::StoreError;
use super::active::ActiveChunk;
use super::allocator::{PAGE_SIZE, Run};
use super::chunk::{self, Chunk, Extent, ValidRange};
use super::entries::Copy;
use super::inline_vec::InlineVec;
use super::state::{ChunkKey, StoreState};

const PAGE: u32 = PAGE_SIZE as u32;
/// A chunk of more extents than this is overwritten by copies, where swapping pages would make them even more.
const EXTENTS_MAX: usize = 16;
/// With more extents, a chunk that is never copied over is moved as a whole.
const SCATTERED_MAX: usize = 64;
/// A chunk gets all its pages at once when so many chunks of the file before it have theirs.
const FULL_CHUNKS_MIN: u32 = 2;
/// With more written ranges, the smallest gaps between them are filled with zeros.
const RANGES_MAX: usize = 8;

/// Bytes that the entry of a chunk takes beside its extents and ranges; those of each of them; those of a copy.
const CHUNK_ENTRY_SIZE: usize = 41;
const PART_SIZE: usize = 12;
const REDO_ENTRY_SIZE: usize = 25;

/// A write between its reservation and its commit.
pub struct PendingWrite {
    /// File and chunk.
    pub key: ChunkKey,
    /// Bytes of a chunk.
    pub chunk_size: u32,
    /// First byte in the chunk.
    pub start: u32,
    /// Byte after the last.
    pub end: u32,
    /// Number of its pin.
    pub at: u64,
    /// Where the pages of the range are while the body arrives.
    pub landing: InlineVec<Extent>,
    /// Whether `landing` belongs to this write alone.
    pub staged: bool,
    /// Checksum of the bytes, from whoever has made them.
    pub sum: Option<u32>,
}

impl PendingWrite {
    /// Number of pages that the bytes reach into.
    pub fn pages(&self) -> u64 {
        self.landing.iter().map(|extent| u64::from(extent.pages)).sum()
    }
}

/// Pages `start..limit` that a chunk lacks, of which a write needs `first..last`.
#[derive(Clone, Copy)]
struct Gap {
    start: u32,
    first: u32,
    last: u32,
    limit: u32,
}

/// What a commit is going to do to one chunk.
pub struct ChunkChange {
    /// File and chunk.
    pub key: ChunkKey,
    /// The chunk afterwards.
    pub chunk: Chunk,
    /// Extents that leave the chunk.
    pub gone: Vec<Extent>,
    /// Copies to be performed when the record is written.
    pub copies: Vec<Copy>,
    /// Whether space given to the chunk by reservations is now part of it.
    pub absorbs_capacity: bool,
}

impl StoreState {
    /// See [`super::Store::reserve_write`].
    pub fn reserve(
        &mut self,
        key: ChunkKey,
        chunk_size: u32,
        offset: u32,
        size: u32,
    ) -> Result<PendingWrite, StoreError> {
        let end = self.check_fits(key, chunk_size, offset, size)?;
        let chunk = self.files.get(key.0).and_then(|file| file.chunks.get(key.1));
        let active = self.active.get(&key);
        let staged = chunk.is_some_and(|chunk| chunk::overlaps(&chunk.ranges, offset, end))
            || active.is_some_and(|active| !active.is_unclaimed(offset, end, None))
            || self.durability.is_cut(key, end);
        let (first, last) = if size == 0 { (0, 0) } else { (offset / PAGE, chunk::page_end(end)) };
        let landing = if size == 0 {
            InlineVec::default()
        } else if staged {
            let extents = self.allocate_extents(first, last - first)?;
            self.staged_pages += u64::from(last - first);
            InlineVec::from_slice(&extents)
        } else {
            self.prepare_in_place(key, chunk_size, first, last)?
        };
        let at = self.pin(key, false, (!staged).then_some((offset, end)));
        Ok(PendingWrite { key, chunk_size, start: offset, end, at, landing, staged, sum: None })
    }

    /// Checks a range against its chunk, and the chunk's size against what is known of the file; returns the range's
    /// end. Errors: `TooLarge`, `ChunkSizeMismatch`.
    pub fn check_fits(&self, key: ChunkKey, chunk_size: u32, offset: u32, size: u32) -> Result<u32, StoreError> {
        let end = offset.checked_add(size).filter(|&end| end <= chunk_size).ok_or(StoreError::TooLarge)?;
        let known = self.files.get(key.0).map(|file| file.chunk_size);
        match known.filter(|&known| known != 0 && known != chunk_size) {
            Some(known) => Err(StoreError::ChunkSizeMismatch { file: key.0, known, given: chunk_size }),
            None => Ok(end),
        }
    }

    /// Bytes that the entries of a write take at most, as its chunk is now: the chunk, and what is copied.
    pub fn entry_size(&self, pending_write: &PendingWrite) -> usize {
        let key = pending_write.key;
        let chunk = self.files.get(key.0).and_then(|file| file.chunks.get(key.1));
        let (extents, ranges) = chunk.map_or((0, 0), |chunk| (chunk.extents.len(), chunk.ranges.len()));
        let places = extents + self.active.get(&key).map_or(0, |active| active.capacity.len());
        let landing = pending_write.landing.len();
        CHUNK_ENTRY_SIZE + (places + landing + ranges + 4) * PART_SIZE + (places + landing) * REDO_ENTRY_SIZE
    }

    /// Undoes a reservation.
    pub fn abandon(&mut self, pending_write: &PendingWrite) {
        self.unpin(pending_write.key, pending_write.at);
        if pending_write.staged {
            self.staged_pages -= pending_write.pages();
            self.release_unused(pending_write.landing.iter().map(Extent::run));
        }
    }

    /// New pages for `pages` pages of a chunk from `first` on.
    pub fn allocate_extents(&mut self, first: u32, pages: u32) -> Result<Vec<Extent>, StoreError> {
        let mut runs = Vec::with_capacity(1);
        self.allocate(pages, &mut runs)?;
        let mut logical = first;
        let birth = self.clock;
        let place = |run: Run| {
            let extent = Extent { logical, start: run.start, pages: run.pages, birth };
            logical += run.pages;
            extent
        };
        Ok(runs.into_iter().map(place).collect())
    }

    /// Gives the chunk the pages `first..last` that it lacks, and says where all of them are.
    fn prepare_in_place(
        &mut self,
        key: ChunkKey,
        chunk_size: u32,
        first: u32,
        last: u32,
    ) -> Result<InlineVec<Extent>, StoreError> {
        let committed =
            self.files.get(key.0).and_then(|file| file.chunks.get(key.1)).map_or(&[][..], |chunk| &chunk.extents);
        let capacity = self.active.get(&key).map_or(&[][..], |active| &active.capacity);
        let mut mapped = committed.to_vec();
        mapped.extend_from_slice(capacity);
        mapped.sort_unstable_by_key(|extent| extent.logical);
        let chunk_pages = chunk::page_end(chunk_size);
        let mut added: Vec<Extent> = Vec::new();
        let mut page = first;
        while page < last {
            if let Some(extent) = mapped.iter().find(|extent| extent.logical <= page && page < extent.logical_end()) {
                page = extent.logical_end();
                continue;
            }
            let limit = mapped.iter().map(|extent| extent.logical).find(|&logical| logical > page);
            let gap = Gap {
                start: mapped
                    .iter()
                    .chain(&added)
                    .map(Extent::logical_end)
                    .filter(|&end| end <= page)
                    .max()
                    .unwrap_or(0),
                first: page,
                last: limit.map_or(last, |limit| last.min(limit)),
                limit: limit.unwrap_or(chunk_pages),
            };
            let held = mapped.iter().chain(&added).map(|extent| extent.pages).sum();
            let fills_chunks = self.fills_chunks(key, chunk_pages);
            match self.fill_gap(key.1, chunk_pages, gap, fills_chunks, held) {
                Ok(extents) => {
                    page = extents.last().map_or(gap.limit, Extent::logical_end);
                    added.extend(extents);
                }
                Err(error) => {
                    self.release_unused(added.iter().map(Extent::run));
                    return Err(error);
                }
            }
        }
        if added.is_empty() {
            return Ok(clip_all(&mapped, first, last));
        }
        mapped.extend_from_slice(&added);
        mapped.sort_unstable_by_key(|extent| extent.logical);
        let active = self.active.entry(key).or_default();
        let all = chunk::replace_pages(&active.capacity, &added, &mut Vec::new());
        active.capacity = InlineVec::from_slice(&all);
        Ok(clip_all(&mapped, first, last))
    }

    /// Whether the last chunks of the file before this one have all their pages: then this one will most likely be
    /// filled too.
    fn fills_chunks(&self, key: ChunkKey, chunk_pages: u32) -> bool {
        let Some(file) = self.files.get(key.0) else { return false };
        let mut index = key.1;
        (0..FULL_CHUNKS_MIN).all(|_| match file.chunks.before(index) {
            Some((before, chunk)) => {
                index = before;
                chunk.extents.iter().map(|extent| extent.pages).sum::<u32>() == chunk_pages
            }
            None => false,
        })
    }

    /// New pages for the needed ones of a gap, and more of it when more is likely to come: the whole gap for a big
    /// first write, or where the chunks before are whole, whichever piece comes first; else as much again as the chunk
    /// has (`held` pages), so that a chunk that grows piece by piece is in few pieces.
    fn fill_gap(
        &mut self,
        index: u64,
        chunk_pages: u32,
        gap: Gap,
        fills_chunks: bool,
        held: u32,
    ) -> Result<Vec<Extent>, StoreError> {
        let Gap { start, first, last, limit } = gap;
        let needed = last - first;
        let start_size = if index > 0 { chunk_pages / 8 } else { 0 };
        let (from, wanted) = if fills_chunks {
            (start, chunk_pages)
        } else if needed >= chunk_pages / 4 {
            (first, chunk_pages)
        } else {
            (first, needed.max(held).max(start_size))
        };
        let wanted = wanted.min(limit - from);
        let is_scarce = self.allocator.free() < u64::from(self.allocator.total()) / 16
            || self.kept_pages > 0 && self.allocator.ready() < self.kept_pages + u64::from(wanted);
        if wanted > needed
            && !is_scarce
            && let Some(run) = self.allocate_run(wanted)
        {
            return Ok(vec![Extent { logical: from, start: run.start, pages: run.pages, birth: self.clock }]);
        }
        self.allocate_extents(first, needed)
    }

    /// Gives a write in place that was overtaken pages of its own, so that its commit takes none, where that may fail
    /// for want of a sync. Errors: `Full`, `Resting`.
    pub fn settle(&mut self, pending_write: &mut PendingWrite) -> Result<(), StoreError> {
        let is_settled =
            self.durability.is_volatile || pending_write.staged || pending_write.start == pending_write.end;
        let Some(active) = self.active.get(&pending_write.key).filter(|active| !is_settled && !active.reaped) else {
            return Ok(());
        };
        let current = self.files.get(pending_write.key.0).and_then(|file| file.chunks.get(pending_write.key.1));
        let extents = current.map_or(&[][..], |chunk| &chunk.extents);
        let base = chunk::replace_pages(extents, &active.capacity, &mut Vec::new());
        let (first, last) = (pending_write.start / PAGE, chunk::page_end(pending_write.end));
        if chunk::is_same_place(&base, &pending_write.landing, first, last) {
            return Ok(());
        }
        let pages = self.own_pages(pending_write, &mut Vec::new())?;
        self.staged_pages += u64::from(last - first);
        (pending_write.landing, pending_write.staged) = (InlineVec::from_slice(&pages), true);
        Ok(())
    }

    /// Works out what committing a write does. Bytes are moved already where nobody can see them; new pages that this
    /// takes are appended to `fresh`, for the caller to give back if the commit comes to nothing.
    pub fn plan_write(
        &mut self,
        pending_write: &PendingWrite,
        fresh: &mut Vec<Run>,
    ) -> Result<ChunkChange, StoreError> {
        let PendingWrite { key, start, end, .. } = *pending_write;
        let active = self.active.get(&key).expect("a writer is registered until its commit");
        if active.reaped {
            return Err(StoreError::Gone { file: key.0 });
        }
        let file = self.files.get(key.0);
        if let Some(known) =
            file.map(|file| file.chunk_size).filter(|&known| known != 0 && known != pending_write.chunk_size)
        {
            return Err(StoreError::ChunkSizeMismatch { file: key.0, known, given: pending_write.chunk_size });
        }
        let empty = Chunk::default();
        let current = file.and_then(|file| file.chunks.get(key.1)).unwrap_or(&empty);
        let mut gone = Vec::new();
        let base = chunk::replace_pages(&current.extents, &active.capacity, &mut gone);
        assert!(gone.is_empty(), "capacity only fills what a chunk lacks");
        let ranges = self.merge_ranges(pending_write, current)?;
        let (first, last) = (start / PAGE, chunk::page_end(end));
        let mut copies = Vec::new();
        let extents = if !pending_write.staged && chunk::is_same_place(&base, &pending_write.landing, first, last) {
            assert!(
                !chunk::overlaps(&current.ranges, start, end),
                "nobody else writes where a body lands (active, invariant 3)"
            );
            base
        } else if self.durability.is_volatile
            && may_copy(active, &base, pending_write)
            && prefers_copy(current, &base, pending_write)
        {
            plan_copies(&pending_write.landing, &base, start, end, &mut copies);
            base
        } else {
            let ranges_before = current.ranges.clone();
            let pages = self.own_pages(pending_write, fresh)?;
            self.copy_edges(&base, &ranges_before, &pages, start, end);
            let extents = chunk::replace_pages(&base, &pages, &mut gone);
            if self.durability.is_volatile { extents } else { self.gather_extents(extents, &mut gone, fresh) }
        };
        let ranges = self.fill_gaps(pending_write, &extents, ranges);
        let chunk = Chunk { extents: InlineVec::from_slice(&extents), ranges: InlineVec::from_slice(&ranges) };
        Ok(ChunkChange { key, chunk, gone, copies, absorbs_capacity: true })
    }

    /// Where live bytes are never copied over, overwrites scatter a chunk: when it is in very many pieces, all of it
    /// moves to one run of pages, if there is one.
    fn gather_extents(&mut self, extents: Vec<Extent>, gone: &mut Vec<Extent>, fresh: &mut Vec<Run>) -> Vec<Extent> {
        if extents.len() <= SCATTERED_MAX {
            return extents;
        }
        let pages = extents.iter().map(|extent| extent.pages).sum();
        let Some(run) = self.allocate_run(pages) else { return extents };
        fresh.push(run);
        let mut start = run.start;
        let mut glimpse = Vec::with_capacity(1);
        for extent in &extents {
            let (from, to) = (u64::from(extent.start) * PAGE_SIZE, u64::from(start) * PAGE_SIZE);
            self.data.copy_within(from, to, u64::from(extent.pages) * PAGE_SIZE);
            glimpse.push(Extent { start, birth: self.clock, ..*extent });
            start += extent.pages;
        }
        gone.extend(extents);
        chunk::join_extents(&mut glimpse);
        glimpse
    }

    /// Pages with the write's bytes that can become the chunk's: the staged ones, or new ones when the landing pages
    /// are shared.
    fn own_pages(&mut self, pending_write: &PendingWrite, fresh: &mut Vec<Run>) -> Result<Vec<Extent>, StoreError> {
        let born = |extent: &Extent| Extent { birth: self.clock, ..*extent };
        if pending_write.staged {
            return Ok(pending_write.landing.iter().map(born).collect());
        }
        let first = pending_write.start / PAGE;
        let pages = self.allocate_extents(first, chunk::page_end(pending_write.end) - first)?;
        fresh.extend(pages.iter().map(Extent::run));
        let mut copies = Vec::new();
        plan_copies(&pending_write.landing, &pages, pending_write.start, pending_write.end, &mut copies);
        for copy in copies {
            self.data.copy_within(copy.from, copy.to, u64::from(copy.size));
        }
        Ok(pages)
    }

    /// Copies the live bytes around `start..end` that share its first and last page into the pages that replace these.
    fn copy_edges(&self, base: &[Extent], ranges: &[ValidRange], pages: &[Extent], start: u32, end: u32) {
        for (from, to) in edges(start, end) {
            for range in ranges {
                let (first, last) = (range.start.max(from), range.end.min(to));
                if first < last {
                    let mut copies = Vec::new();
                    plan_copies(base, pages, first, last, &mut copies);
                    for copy in copies {
                        self.data.copy_within(copy.from, copy.to, u64::from(copy.size));
                    }
                }
            }
        }
    }

    /// The written ranges when `start..end` is written from `landing`. With checksums, a range of which only a part
    /// stays is verified first. The checksum of what is new is the one that it came with. Errors: `Corrupt`.
    fn merge_ranges(&self, pending_write: &PendingWrite, current: &Chunk) -> Result<Vec<ValidRange>, StoreError> {
        let PendingWrite { key, start, end, .. } = *pending_write;
        let computed = || chunk::crc_of(self.data.as_ref(), &pending_write.landing, start, end);
        let crc = if self.checksums() { pending_write.sum.unwrap_or_else(computed) } else { 0 };
        let mut merged = ValidRange { start, end, crc };
        let mut all = Vec::with_capacity(current.ranges.len() + 1);
        let mut right = None;
        for range in current.ranges.iter() {
            if range.end < start || range.start > end {
                all.push(*range);
                continue;
            }
            let is_cut = (range.start < start && range.end > start) || (range.start < end && range.end > end);
            if is_cut {
                self.verify(key, &current.extents, range)?;
            }
            if range.start < start {
                let left = self.part_crc(&current.extents, range, range.start, start);
                merged.crc = self.join_crc(left, merged.crc, end - start);
                merged.start = range.start;
            }
            if range.end > end {
                right = Some((self.part_crc(&current.extents, range, end, range.end), range.end));
            }
        }
        if let Some((crc, right_end)) = right {
            merged.crc = self.join_crc(merged.crc, crc, right_end - end);
            merged.end = right_end;
        }
        let place = all.partition_point(|range| range.start < merged.start);
        all.insert(place, merged);
        Ok(all)
    }

    /// Checks a written range against its checksum, if the store keeps them. Errors: `Corrupt`.
    pub fn verify(&self, key: ChunkKey, extents: &[Extent], range: &ValidRange) -> Result<(), StoreError> {
        if self.checksums() && chunk::crc_of(self.data.as_ref(), extents, range.start, range.end) != range.crc {
            return Err(StoreError::Corrupt { file: key.0, index: key.1, offset: range.start });
        }
        Ok(())
    }

    /// Checksum of bytes `from..to` of a range, which with those of the rest makes up the one that is kept; 0 when the
    /// store keeps none. Errors: `Corrupt`.
    pub fn verified_part(
        &self,
        key: ChunkKey,
        extents: &[Extent],
        range: &ValidRange,
        from: u32,
        to: u32,
    ) -> Result<u32, StoreError> {
        if !self.checksums() {
            return Ok(0);
        }
        let sum_of = |from, to| chunk::crc_of(self.data.as_ref(), extents, from, to);
        let part = sum_of(from, to);
        let whole = self.join_crc(sum_of(range.start, from), part, to - from);
        if self.join_crc(whole, sum_of(to, range.end), range.end - to) != range.crc {
            return Err(StoreError::Corrupt { file: key.0, index: key.1, offset: range.start });
        }
        Ok(part)
    }

    /// Checksum for the part `from..to` that a cut leaves of a range. The part of a range that does not match its
    /// checksum gets one that does not match either: a cut, which may be decided already, succeeds, and readers are
    /// told as before.
    pub fn cut_crc(&self, key: ChunkKey, extents: &[Extent], range: &ValidRange, from: u32, to: u32) -> u32 {
        let is_sound = (from, to) == (range.start, range.end) || self.verify(key, extents, range).is_ok();
        let crc = self.part_crc(extents, range, from, to);
        if is_sound { crc } else { !crc }
    }

    /// Checksum of bytes `from..to` of a range; 0 when the store keeps none.
    pub fn part_crc(&self, extents: &[Extent], range: &ValidRange, from: u32, to: u32) -> u32 {
        if !self.checksums() {
            0
        } else if (from, to) == (range.start, range.end) {
            range.crc
        } else {
            chunk::crc_of(self.data.as_ref(), extents, from, to)
        }
    }

    fn join_crc(&self, first: u32, second: u32, second_size: u32) -> u32 {
        if self.checksums() { crc32c::crc32c_combine(first, second, second_size as usize) } else { 0 }
    }

    /// Writes zeros into the smallest gaps until the ranges are few. Gaps without pages, or with somebody else's claim
    /// on them, stay.
    fn fill_gaps(
        &self,
        pending_write: &PendingWrite,
        extents: &[Extent],
        mut ranges: Vec<ValidRange>,
    ) -> Vec<ValidRange> {
        while ranges.len() > RANGES_MAX {
            let active = &self.active[&pending_write.key];
            let fillable = |&number: &usize| {
                let (from, to) = (ranges[number].end, ranges[number + 1].start);
                active.is_unclaimed(from, to, Some(pending_write.at))
                    && !self.durability.is_cut(pending_write.key, to)
                    && chunk::is_mapped(extents, from / PAGE, chunk::page_end(to))
            };
            let gaps = (0..ranges.len() - 1).filter(fillable);
            let Some(number) = gaps.min_by_key(|&number| ranges[number + 1].start - ranges[number].end) else { break };
            let (from, to) = (ranges[number].end, ranges[number + 1].start);
            chunk::for_each_piece(extents, from, to, |offset, _, size| self.data.fill_zero(offset, u64::from(size)));
            let second = ranges.remove(number + 1);
            let zeros = if self.checksums() { chunk::crc_of(self.data.as_ref(), extents, from, to) } else { 0 };
            let crc = self.join_crc(ranges[number].crc, zeros, to - from);
            ranges[number] = ValidRange {
                start: ranges[number].start,
                end: second.end,
                crc: self.join_crc(crc, second.crc, second.end - second.start),
            };
        }
        ranges
    }
}

/// Whether the write's bytes may be copied over what is in the chunk's pages.
fn may_copy(active: &ActiveChunk, base: &[Extent], pending_write: &PendingWrite) -> bool {
    !active.has_readers()
        && !active.has_other_landing(pending_write.start, pending_write.end, Some(pending_write.at))
        && chunk::is_mapped(base, pending_write.start / PAGE, chunk::page_end(pending_write.end))
}

/// Whether copying the write's bytes is better than swapping its pages in: because it copies less, or because swapping
/// would leave the chunk in too many pieces.
fn prefers_copy(current: &Chunk, base: &[Extent], pending_write: &PendingWrite) -> bool {
    let live_edges: u32 = edges(pending_write.start, pending_write.end)
        .iter()
        .flat_map(|&(from, to)| {
            current.ranges.iter().map(move |range| range.end.min(to).saturating_sub(range.start.max(from)))
        })
        .sum();
    !pending_write.staged
        || pending_write.end - pending_write.start <= live_edges
        || swapping_scatters(base, pending_write)
}

/// Whether swapping the write's pages in would leave the chunk in more pieces than before, and in too many.
fn swapping_scatters(base: &[Extent], pending_write: &PendingWrite) -> bool {
    let (first, last) = (pending_write.start / PAGE, chunk::page_end(pending_write.end));
    let rest = |extent: &Extent| usize::from(extent.logical < first) + usize::from(extent.logical_end() > last);
    let pieces = base.iter().map(rest).sum::<usize>() + pending_write.landing.len();
    pieces > EXTENTS_MAX && pieces > base.len()
}

/// Bytes before and after `start..end` in its first and last page.
fn edges(start: u32, end: u32) -> [(u32, u32); 2] {
    [(start / PAGE * PAGE, start), (end, end.next_multiple_of(PAGE))]
}

/// The copies that bring bytes `start..end` of a chunk from one place to another; none where both are the same.
fn plan_copies(from: &[Extent], to: &[Extent], start: u32, end: u32, copies: &mut Vec<Copy>) {
    chunk::for_each_piece(from, start, end, |source, byte, size| {
        chunk::for_each_piece(to, byte, byte + size, |target, part, part_size| {
            let source = source + u64::from(part - byte);
            if source != target {
                copies.push(Copy { from: source, to: target, size: part_size });
            }
        });
    });
}

fn clip_all(extents: &[Extent], first: u32, last: u32) -> InlineVec<Extent> {
    let parts: Vec<Extent> = extents.iter().filter_map(|extent| extent.clip(first, last)).collect();
    InlineVec::from_slice(&parts)
}
