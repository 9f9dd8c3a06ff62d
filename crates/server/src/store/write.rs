//! What happens to a write: a place is reserved, the body arrives there, and a commit makes it part of the chunk. It
//! may bring several parts of the chunk, which are one change then.
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
use super::entries::{self, Copy};
use super::inline_vec::InlineVec;
use super::pages::fresh_pages;
use super::state::{ChunkKey, StoreState};
use super::sums::{self, NewSums};
use reactor::{PageNeed, PagePin, PageRoom};

const PAGE: u32 = PAGE_SIZE as u32;
/// A chunk of more extents than this is overwritten by copies, where swapping pages would make them even more.
const EXTENTS_MAX: usize = 16;
/// With more extents, a chunk that is never copied over is moved as a whole.
const SCATTERED_MAX: usize = 64;
/// A chunk gets all its pages at once when so many chunks of the file before it have theirs.
const FULL_CHUNKS_MIN: u32 = 2;
/// With more written ranges than a change may keep, the smallest gaps between them are filled with zeros. Any may keep
/// so many; one for each of its parts, and for each so many bytes that it brings, so that what it journals is in
/// proportion; none more than the last.
const RANGES_MIN: usize = 8;
const BYTES_PER_RANGE: usize = 256;
pub const RANGES_MAX: usize = 256;
/// Parts of a chunk that bodies arrive in at a time within its own pages: between them gaps stay open. Others are
/// staged.
const LANDINGS_MAX: usize = RANGES_MAX - 1;
/// What the entry of a copy that is journalled counts as, of a write with many parts, against bytes that are copied
/// now.
const REDO_WEIGHT: u32 = 256;

/// A write between its reservation and its commit.
pub struct PendingWrite {
    /// File and chunk.
    pub key: ChunkKey,
    /// Bytes of a chunk.
    pub chunk_size: u32,
    /// What it brings: sorted, none empty, and no byte twice.
    pub parts: InlineVec<WritePart>,
    /// Number of its pin.
    pub at: u64,
    /// Where the pages of the parts are while the body arrives.
    pub landing: InlineVec<Extent>,
    /// Whether `landing` belongs to this write alone.
    pub staged: bool,
    /// Keeps in memory what its body and its commit touch, once that is there; where all of the data space is in memory
    /// there is nothing to keep.
    pub pages: Option<PagePin>,
    /// Checksums of the bytes of parts, cut at the ends of pages, as far as they are known.
    pub piece_sums: Vec<Vec<u32>>,
}

/// Bytes of a chunk that a write brings.
#[derive(Clone, Copy, Debug)]
pub struct WritePart {
    /// First byte in the chunk.
    pub start: u32,
    /// Byte after the last.
    pub end: u32,
    /// Checksum of the bytes, from whoever has made them.
    pub sum: Option<u32>,
}

impl PendingWrite {
    /// Number of pages that the bytes reach into.
    pub fn pages(&self) -> u64 {
        self.landing.iter().map(|extent| u64::from(extent.pages)).sum()
    }

    /// Number of bytes.
    fn size(&self) -> u32 {
        self.parts.iter().map(|part| part.end - part.start).sum()
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
    /// Numbers that its pages get.
    pub sums: NewSums,
}

impl StoreState {
    /// See [`super::Store::reserve_write`] and [`super::Store::reserve_parts`].
    pub fn reserve(
        &mut self,
        key: ChunkKey,
        chunk_size: u32,
        parts: InlineVec<WritePart>,
    ) -> Result<PendingWrite, StoreError> {
        let spans = page_spans(&parts);
        let staged = !self.may_land_in_place(key, &parts);
        let landing = if staged {
            let extents = self.allocate_spans(&spans)?;
            self.staged_pages += extents.iter().map(|extent| u64::from(extent.pages)).sum::<u64>();
            InlineVec::from_slice(&extents)
        } else if parts.is_empty() {
            InlineVec::default()
        } else {
            self.prepare_in_place(key, chunk_size, &spans)?
        };
        let claims = if staged { InlineVec::default() } else { parts.map(|part| (part.start, part.end)) };
        let at = self.pin(key, false, claims);
        let mut pending_write =
            PendingWrite { key, chunk_size, parts, at, landing, staged, pages: None, piece_sums: Vec::new() };
        // Where they are not at hand the caller waits for them, with all that it has reserved.
        self.pin_for_write(&mut pending_write, PageRoom::Left, false).ok();
        Ok(pending_write)
    }

    /// Whether nothing is written where the parts are, and nobody has a claim on it.
    fn may_land_in_place(&self, key: ChunkKey, parts: &[WritePart]) -> bool {
        let Some(last) = parts.last() else { return true };
        let chunk = self.files.get(key.0).and_then(|file| file.chunks.get(key.1));
        let is_unwritten =
            |part: &WritePart| chunk.is_none_or(|chunk| !chunk::overlaps(&chunk.ranges, part.start, part.end));
        let active = self.active.get(&key);
        let is_unclaimed =
            |part: &WritePart| active.is_none_or(|active| active.is_unclaimed(part.start, part.end, None));
        let landings = parts.len() + active.map_or(0, ActiveChunk::landing_count);
        landings <= LANDINGS_MAX
            && !self.durability.is_cut(key, last.end)
            && parts.iter().all(is_unwritten)
            && parts.iter().all(is_unclaimed)
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
        let (landing, parts) = (pending_write.landing.len(), pending_write.parts.len());
        // Pages that are swapped in may cut an extent in two, at either end.
        let lists = places + 2 * landing + ranges + parts;
        let sums = match self.checksums() {
            true => (landing + places + parts) * sums::RUN_ENTRY_SIZE + pending_write.pages() as usize * sums::SUM_SIZE,
            false => 0,
        };
        entries::CHUNK_ENTRY_SIZE
            + lists * entries::RANGE_SIZE
            + (places + landing + parts) * entries::REDO_ENTRY_SIZE
            + sums
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
        self.allocate_spans(&[(first, first + pages)])
    }

    /// New pages for spans `first..last` of a chunk's pages, in one run if there is one.
    fn allocate_spans(&mut self, spans: &[(u32, u32)]) -> Result<Vec<Extent>, StoreError> {
        let mut runs = Vec::with_capacity(1);
        self.allocate(spans.iter().map(|(first, last)| last - first).sum(), &mut runs)?;
        let birth = self.clock;
        let mut extents = Vec::with_capacity(spans.len().max(runs.len()));
        let mut runs = runs.into_iter();
        let mut run = Run { start: 0, pages: 0 };
        for &(first, last) in spans {
            let mut logical = first;
            while logical < last {
                if run.pages == 0 {
                    run = runs.next().expect("as many pages are allocated as there are in the spans");
                }
                let pages = run.pages.min(last - logical);
                extents.push(Extent { logical, start: run.start, pages, birth });
                run = Run { start: run.start + pages, pages: run.pages - pages };
                logical += pages;
            }
        }
        Ok(extents)
    }

    /// Gives the chunk the pages of spans `first..last` that it lacks, and says where all of them are.
    fn prepare_in_place(
        &mut self,
        key: ChunkKey,
        chunk_size: u32,
        spans: &[(u32, u32)],
    ) -> Result<InlineVec<Extent>, StoreError> {
        let committed =
            self.files.get(key.0).and_then(|file| file.chunks.get(key.1)).map_or(&[][..], |chunk| &chunk.extents);
        let capacity = self.active.get(&key).map_or(&[][..], |active| &active.capacity);
        let mut mapped = committed.to_vec();
        mapped.extend_from_slice(capacity);
        mapped.sort_unstable_by_key(|extent| extent.logical);
        let chunk_pages = chunk::page_end(chunk_size);
        let mut held: u32 = mapped.iter().map(|extent| extent.pages).sum();
        let mut added: Vec<Extent> = Vec::new();
        for &(first, last) in spans {
            // A span before may have got more than it needs.
            let mut page = added.last().map_or(first, |extent| first.max(extent.logical_end()));
            while page < last {
                let next = mapped.partition_point(|extent| extent.logical_end() <= page);
                let limit = match mapped.get(next) {
                    Some(extent) if extent.logical <= page => {
                        page = extent.logical_end();
                        continue;
                    }
                    next => next.map(|extent| extent.logical),
                };
                let before = next.checked_sub(1).map(|before| mapped[before].logical_end());
                let gap = Gap {
                    start: before.max(added.last().map(Extent::logical_end)).unwrap_or(0),
                    first: page,
                    last: limit.map_or(last, |limit| last.min(limit)),
                    limit: limit.unwrap_or(chunk_pages),
                };
                let fills_chunks = self.fills_chunks(key, chunk_pages);
                match self.fill_gap(key.1, chunk_pages, gap, fills_chunks, held) {
                    Ok(extents) => {
                        page = extents.last().map_or(gap.limit, Extent::logical_end);
                        held += extents.iter().map(|extent| extent.pages).sum::<u32>();
                        added.extend(extents);
                    }
                    Err(error) => {
                        self.release_unused(added.iter().map(Extent::run));
                        return Err(error);
                    }
                }
            }
        }
        if added.is_empty() {
            return Ok(clip_spans(&mapped, spans));
        }
        mapped.extend_from_slice(&added);
        mapped.sort_unstable_by_key(|extent| extent.logical);
        let active = self.active.entry(key).or_default();
        let all = chunk::replace_pages(&active.capacity, &added, &mut Vec::new());
        active.capacity = InlineVec::from_slice(&all);
        Ok(clip_spans(&mapped, spans))
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
    /// for want of a sync, and pins what the commit touches. Errors: `Full`, `Resting`, `Absent`.
    pub fn settle(&mut self, pending_write: &mut PendingWrite) -> Result<(), StoreError> {
        self.settle_place(pending_write)?;
        self.pin_for_write(pending_write, PageRoom::Any, true)
    }

    /// Whether a write that is reserved, and whose bytes are not there, may be committed as it is once they are; pins
    /// what that touches.
    pub fn stands(&self, pending_write: &mut PendingWrite) -> bool {
        let PendingWrite { key, staged, .. } = pending_write;
        let current = self.files.get(key.0).and_then(|file| file.chunks.get(key.1));
        let (extents, active) = (current.map_or(&[][..], |chunk| &chunk.extents), self.active.get(key));
        let capacity = active.map_or(&[][..], |active| &active.capacity);
        let base = chunk::replace_pages(extents, capacity, &mut Vec::new());
        (*staged || lands_in(&base, pending_write)) && self.pin_for_write(pending_write, PageRoom::Any, false).is_ok()
    }

    fn settle_place(&mut self, pending_write: &mut PendingWrite) -> Result<(), StoreError> {
        let is_settled = self.durability.is_volatile || pending_write.staged || pending_write.parts.is_empty();
        let Some(active) = self.active.get(&pending_write.key).filter(|active| !is_settled && !active.reaped) else {
            return Ok(());
        };
        let current = self.files.get(pending_write.key.0).and_then(|file| file.chunks.get(pending_write.key.1));
        let extents = current.map_or(&[][..], |chunk| &chunk.extents);
        let base = chunk::replace_pages(extents, &active.capacity, &mut Vec::new());
        if lands_in(&base, pending_write) {
            return Ok(());
        }
        let mut fresh = Vec::new();
        let (pages, pin) = match self.own_pages(pending_write, &mut fresh) {
            Ok(taken) => taken,
            Err(error) => {
                self.release_unused(fresh);
                return Err(error);
            }
        };
        (pending_write.landing, pending_write.staged) = (InlineVec::from_slice(&pages), true);
        pending_write.pages = self.is_partial.then_some(pin);
        self.staged_pages += pending_write.pages();
        Ok(())
    }

    /// Works out what committing a write does, whose chunk's entry is to have at most so many ranges by the record's
    /// size. Bytes are moved already where nobody can see them; new pages that this takes are appended to `fresh`, for
    /// the caller to give back if the commit comes to nothing.
    pub fn plan_write(
        &mut self,
        pending_write: &PendingWrite,
        ranges_max: usize,
        fresh: &mut Vec<Run>,
    ) -> Result<ChunkChange, StoreError> {
        let PendingWrite { key, chunk_size, parts, .. } = pending_write;
        let active = self.active.get(key).expect("a writer is registered until its commit");
        if active.reaped {
            return Err(StoreError::Gone { file: key.0 });
        }
        let file = self.files.get(key.0);
        if let Some(known) = file.map(|file| file.chunk_size).filter(|known| *known != 0 && known != chunk_size) {
            return Err(StoreError::ChunkSizeMismatch { file: key.0, known, given: *chunk_size });
        }
        let empty = Chunk::default();
        let current = file.and_then(|file| file.chunks.get(key.1)).unwrap_or(&empty);
        let mut gone = Vec::new();
        let base = chunk::replace_pages(&current.extents, &active.capacity, &mut gone);
        assert!(gone.is_empty(), "capacity only fills what a chunk lacks");
        let ranges = merge_ranges(&current.ranges, parts);
        let (mut copies, mut is_moved) = (Vec::new(), false);
        // Until the checksums are worked out, which look at old and new pages.
        let mut pins = Vec::new();
        let extents = if !pending_write.staged && lands_in(&base, pending_write) {
            assert!(
                !parts.iter().any(|part| chunk::overlaps(&current.ranges, part.start, part.end)),
                "nobody else writes where a body lands (active, invariant 3)"
            );
            base
        } else if self.durability.is_volatile
            && may_copy(active, &base, pending_write)
            && prefers_copy(current, &base, pending_write)
        {
            for part in parts.iter() {
                plan_copies(&pending_write.landing, &base, part.start, part.end, &mut copies);
            }
            base
        } else {
            let ranges_before = current.ranges.clone();
            let (pages, pin) = self.own_pages(pending_write, fresh)?;
            pins.push(pin);
            self.copy_rest(&base, &ranges_before, &pages, parts);
            let extents = chunk::replace_pages(&base, &pages, &mut gone);
            let gathered = if self.durability.is_volatile { None } else { self.gather_extents(&extents, fresh) };
            is_moved = gathered.is_some();
            match gathered {
                Some((gathered, pin)) => {
                    gone.extend(extents);
                    pins.push(pin);
                    gathered
                }
                None => extents,
            }
        };
        let kept = parts.len().max(pending_write.size() as usize / BYTES_PER_RANGE);
        let kept = kept.min(ranges_max).clamp(RANGES_MIN, RANGES_MAX);
        let (ranges, zeros) = self.fill_gaps(pending_write, &extents, ranges, kept);
        let chunk = Chunk { extents: InlineVec::from_slice(&extents), ranges: InlineVec::from_slice(&ranges) };
        let current = self.files.get(key.0).and_then(|file| file.chunks.get(key.1)).unwrap_or(&empty);
        let sums = self.sums_of_write(pending_write, current, &chunk, &zeros, is_moved)?;
        Ok(ChunkChange { key: *key, chunk, gone, copies, absorbs_capacity: true, sums })
    }

    /// Where live bytes are never copied over, overwrites scatter a chunk: when it is in very many pieces, all of it
    /// moves to one run of pages, if there is one. Tells where it is then, with what keeps old and new pages in memory;
    /// nothing if it stays.
    fn gather_extents(&mut self, extents: &[Extent], fresh: &mut Vec<Run>) -> Option<(Vec<Extent>, PagePin)> {
        let pages = extents.iter().map(|extent| extent.pages).sum();
        let sums_size = if self.checksums() { sums::RUN_ENTRY_SIZE + pages as usize * sums::SUM_SIZE } else { 0 };
        if extents.len() <= SCATTERED_MAX || sums_size > self.journal.record_size_max() as usize / 16 {
            return None;
        }
        let run = self.allocate_run(pages)?;
        let need = PageNeed { filled: extents.iter().map(chunk::pages_of).collect(), ..fresh_pages([run]) };
        let Some(pin) = self.data.try_pin(&need, PageRoom::Left) else {
            self.release_unused([run]);
            return None;
        };
        fresh.push(run);
        let mut start = run.start;
        let mut gathered = Vec::with_capacity(1);
        for extent in extents {
            let (from, to) = (u64::from(extent.start) * PAGE_SIZE, u64::from(start) * PAGE_SIZE);
            self.data.copy_within(from, to, u64::from(extent.pages) * PAGE_SIZE);
            gathered.push(Extent { start, birth: self.clock, ..*extent });
            start += extent.pages;
        }
        chunk::join_extents(&mut gathered);
        Some((gathered, pin))
    }

    /// Pages with the write's bytes that can become the chunk's: the staged ones, or new ones when the landing pages
    /// are shared, with what keeps these in memory.
    fn own_pages(
        &mut self,
        pending_write: &PendingWrite,
        fresh: &mut Vec<Run>,
    ) -> Result<(Vec<Extent>, PagePin), StoreError> {
        let born = |extent: &Extent| Extent { birth: self.clock, ..*extent };
        if pending_write.staged {
            return Ok((pending_write.landing.iter().map(born).collect(), PagePin::default()));
        }
        let pages = self.allocate_spans(&page_spans(&pending_write.parts))?;
        fresh.extend(pages.iter().map(Extent::run));
        // Its bytes are here already, and it is not to wait for room while it has that of others.
        let need = || fresh_pages(pages.iter().map(Extent::run));
        let pin = self.pin_pages(pending_write.key, PageRoom::Any, need)?;
        let mut copies = Vec::new();
        for part in pending_write.parts.iter() {
            plan_copies(&pending_write.landing, &pages, part.start, part.end, &mut copies);
        }
        self.copy_now(&copies);
        Ok((pages, pin))
    }

    /// Copies the live bytes beside the parts of a write into the pages that replace those that the parts reach into.
    fn copy_rest(&self, base: &[Extent], ranges: &[ValidRange], pages: &[Extent], parts: &[WritePart]) {
        let mut copies = Vec::new();
        for (from, to) in rest_of_pages(parts) {
            for (first, last) in live_parts(ranges, from, to) {
                plan_copies(base, pages, first, last, &mut copies);
            }
        }
        self.copy_now(&copies);
    }

    fn copy_now(&self, copies: &[Copy]) {
        copies.iter().for_each(|copy| self.data.copy_within(copy.from, copy.to, u64::from(copy.size)));
    }

    /// Writes zeros into the smallest gaps until the ranges are `kept`; returns what there is then, and those gaps.
    /// Others, without pages or with somebody else's claim on them, stay.
    fn fill_gaps(
        &self,
        pending_write: &PendingWrite,
        extents: &[Extent],
        ranges: Vec<ValidRange>,
        kept: usize,
    ) -> (Vec<ValidRange>, Vec<(u32, u32)>) {
        let Some(excess) = ranges.len().checked_sub(kept).filter(|excess| *excess > 0) else {
            return (ranges, Vec::new());
        };
        let active = &self.active[&pending_write.key];
        let fillable = |number: &usize| {
            let (from, to) = (ranges[*number].end, ranges[number + 1].start);
            active.is_unclaimed(from, to, Some(pending_write.at))
                && !self.durability.is_cut(pending_write.key, to)
                && chunk::is_mapped(extents, from / PAGE, chunk::page_end(to))
                && self.has_bytes_at_hand(extents, from, to)
        };
        let mut gaps: Vec<usize> = (0..ranges.len() - 1).filter(fillable).collect();
        if gaps.len() > excess {
            gaps.select_nth_unstable_by_key(excess - 1, |&number| {
                (ranges[number + 1].start - ranges[number].end, number)
            });
            gaps.truncate(excess);
            gaps.sort_unstable();
        }
        let mut gaps = gaps.into_iter().peekable();
        let (mut filled, mut zeros): (Vec<ValidRange>, _) = (Vec::with_capacity(kept), Vec::new());
        for (number, range) in ranges.iter().enumerate() {
            match filled.last_mut() {
                Some(last) if gaps.next_if(|gap| gap + 1 == number).is_some() => {
                    self.fill_gap_with_zeros(extents, last.end, range.start);
                    zeros.push((last.end, range.start));
                    last.end = range.end;
                }
                _ => filled.push(*range),
            }
        }
        (filled, zeros)
    }

    fn fill_gap_with_zeros(&self, extents: &[Extent], from: u32, to: u32) {
        chunk::for_each_piece(extents, from, to, |offset, _, size| self.data.fill_zero(offset, u64::from(size)));
    }
}

/// The written ranges when parts are written.
fn merge_ranges(ranges: &[ValidRange], parts: &[WritePart]) -> Vec<ValidRange> {
    let mut all = Vec::with_capacity(ranges.len() + 2 * parts.len());
    for range in ranges {
        push_rest(range, parts, &mut all);
    }
    all.extend(parts.iter().map(|part| ValidRange { start: part.start, end: part.end }));
    // Two sorted runs.
    all.sort_by_key(|range| range.start);
    all.dedup_by(|next, range| {
        let follows = range.end == next.start;
        if follows {
            range.end = next.end;
        }
        follows
    });
    all
}

/// Appends what parts leave of a written range.
fn push_rest(range: &ValidRange, parts: &[WritePart], all: &mut Vec<ValidRange>) {
    let mut from = range.start;
    let over = &parts[parts.partition_point(|part| part.end <= range.start)..];
    for part in over.iter().take_while(|part| part.start < range.end) {
        if from < part.start {
            all.push(ValidRange { start: from, end: part.start });
        }
        from = part.end;
    }
    if from < range.end {
        all.push(ValidRange { start: from, end: range.end });
    }
}

/// Pages that parts reach into, as spans `first..last` in order.
fn page_spans(parts: &[WritePart]) -> InlineVec<(u32, u32)> {
    let pages = |part: &WritePart| (part.start / PAGE, chunk::page_end(part.end));
    if let [part] = parts {
        return InlineVec::One(pages(part));
    }
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for (first, last) in parts.iter().map(pages) {
        match spans.last_mut() {
            Some(span) if first <= span.1 => span.1 = last,
            _ => spans.push((first, last)),
        }
    }
    InlineVec::from_slice(&spans)
}

/// Whether the pages in which a write's bytes have landed are still those of its chunk.
fn lands_in(base: &[Extent], pending_write: &PendingWrite) -> bool {
    let is_same = |&(first, last): &(u32, u32)| chunk::is_same_place(base, &pending_write.landing, first, last);
    page_spans(&pending_write.parts).iter().all(is_same)
}

/// Whether the write's bytes may be copied over what is in the chunk's pages.
fn may_copy(active: &ActiveChunk, base: &[Extent], pending_write: &PendingWrite) -> bool {
    let is_unclaimed = |part: &WritePart| !active.has_other_landing(part.start, part.end, Some(pending_write.at));
    !active.has_readers()
        && pending_write.parts.iter().all(is_unclaimed)
        && page_spans(&pending_write.parts).iter().all(|&(first, last)| chunk::is_mapped(base, first, last))
}

/// Whether copying the write's bytes is better than swapping its pages in: because it copies less, or because swapping
/// would leave the chunk in too many pieces. Each copy but the first costs its entry in the record.
fn prefers_copy(current: &Chunk, base: &[Extent], pending_write: &PendingWrite) -> bool {
    let live_rest: u32 = rest_of_pages(&pending_write.parts)
        .flat_map(|(from, to)| live_parts(&current.ranges, from, to))
        .map(|(from, to)| to - from)
        .sum();
    let entries = (pending_write.parts.len() - 1) as u32 * REDO_WEIGHT;
    !pending_write.staged || pending_write.size() + entries <= live_rest || swapping_scatters(base, pending_write)
}

/// Whether swapping the write's pages in would leave the chunk in more pieces than before, and in too many.
fn swapping_scatters(base: &[Extent], pending_write: &PendingWrite) -> bool {
    let pieces = match &pending_write.parts[..] {
        [part] => {
            let (first, last) = (part.start / PAGE, chunk::page_end(part.end));
            let rest = |extent: &Extent| usize::from(extent.logical < first) + usize::from(extent.logical_end() > last);
            base.iter().map(rest).sum::<usize>() + pending_write.landing.len()
        }
        _ => chunk::replace_pages(base, &pending_write.landing, &mut Vec::new()).len(),
    };
    pieces > EXTENTS_MAX && pieces > base.len()
}

/// Bytes of the pages that parts reach into, before, between and behind the parts.
pub fn rest_of_pages(parts: &[WritePart]) -> impl Iterator<Item = (u32, u32)> {
    let between = |number: usize| {
        let before = number.checked_sub(1).map(|before| parts[before].end);
        let next = parts.get(number).map(|part| part.start);
        let to_page_end = before.map(|end| (end, end.next_multiple_of(PAGE)));
        let from_page_start = next.map(|start| (start / PAGE * PAGE, start));
        match (to_page_end, from_page_start) {
            // Both are in the same page, or in two that follow one another.
            (Some((from, end)), Some((start, to))) if start <= end => [Some((from, to)), None],
            apart => [apart.0, apart.1],
        }
    };
    (0..=parts.len()).flat_map(between).flatten().filter(|(from, to)| from < to)
}

/// What of bytes `from..to` is written.
pub fn live_parts(ranges: &[ValidRange], from: u32, to: u32) -> impl Iterator<Item = (u32, u32)> {
    let behind = &ranges[ranges.partition_point(|range| range.end <= from)..];
    behind.iter().take_while(move |range| range.start < to).map(move |range| (range.start.max(from), range.end.min(to)))
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

/// The parts of sorted extents that lie in spans of pages.
fn clip_spans(extents: &[Extent], spans: &[(u32, u32)]) -> InlineVec<Extent> {
    let mut parts: Vec<Extent> = Vec::with_capacity(spans.len());
    for &(first, last) in spans {
        let behind = &extents[extents.partition_point(|extent| extent.logical_end() <= first)..];
        parts.extend(behind.iter().map_while(|extent| extent.clip(first, last)));
    }
    InlineVec::from_slice(&parts)
}
