//! Clean chunks go when the store is full, or nearly so: the same bytes are behind, and are fetched again when somebody
//! asks for them. That holds for what was fetched and for what was made here and carried alike.
//!
//! What clients of this machine read by short circuit no server sees. So a candidate is taken from sight some time
//! before it goes; whoever reads it after that asks, and it stays.
//!
//! Invariants
//! 1. What is dirty never goes; `derive` asserts it once more.
//! 2. No chunk goes that a request needs here which has had it brought, or a flush that copies or writes the file
//!    (`ChunkUse`), nor one that an append which was decided may be about to write to (`hold_chunks`).
//! 3. Its pages are stamped as by a hole that is punched, so whoever reads them by short circuit asks anew.

use super::clean_queue::{CleanKey, WHOLE_FILE};
use super::table::{Standing, TakenUp};
use super::{BackingFault, add};
use crate::core::{Core, Failure};
use crate::journal::records::Record;
use crate::process::options::FlushPolicy;
use crate::store::{FastMap, Hole};
use reactor::{Class, Nanos};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use wire::layout::ChunkRange;
use wire::messages::{AskForFlushReply, flush_patience};
use wire::{FileId, Status};

/// Free parts of the store, in percent, below which clean chunks go, and below which the next ones are out of sight.
const LOW_PERCENT: u64 = 10;
const SIGHT_PERCENT: u64 = 20;
/// Part of the store that is given up at a time.
const STEP_PARTS: u64 = 64;
/// Chunks that go, or are looked at, in one step of the loop at most.
const STEP_CHUNKS: usize = 256;
const STEP_LOOKS: usize = 4 * STEP_CHUNKS;
/// Chunks out of sight that are next to go: one in so many of those that are here, and bounds of that.
const NEXT_PARTS: u64 = 32;
const NEXT_MIN: u64 = 64;
const NEXT_MAX: u64 = 4096;
/// Chunks of one file that become candidates at a time.
const REST_STEP: usize = 64;
/// Chunks that are held for other servers.
const HELD_MAX: usize = 65_536;
/// Between two looks whether something has become clean, for whoever needs room, and two times a flush is asked for.
const CLEAN_PAUSE_NS: Nanos = 20_000_000;
const ASK_PAUSE_NS: Nanos = 100_000_000;
/// When there is nothing to flush, what others use is waited for for this part of a time-out.
const VAIN_PARTS: Nanos = 8;

/// Chunks of a file, by ranges of their indexes.
type ChunkRanges = Vec<(u64, u64)>;
/// All chunks of a file.
const ALL_CHUNKS: (u64, u64) = (0, u64::MAX);

/// What this server knows about chunks that go.
#[derive(Default)]
pub struct Eviction {
    /// Which chunks have to stay, by file.
    in_use: RefCell<FastMap<u64, ChunkRanges>>,
    /// Those that do so up to a time.
    held: RefCell<HeldChunks>,
    /// Candidates that were taken from sight, in the order in which they go.
    next: RefCell<VecDeque<CleanKey>>,
    /// Requests that wait for something to become clean, and how far flushes had come when they were asked for last.
    waiting: Cell<usize>,
    is_asking: Cell<bool>,
    flushes: Cell<Option<FlushesKnown>>,
}

/// Chunks of files that stay up to a time: another server is about to have something written to them. Of too many those
/// that come last are not held, and may have to be fetched again.
#[derive(Default)]
struct HeldChunks(FastMap<(u64, u64), Nanos>);

impl HeldChunks {
    fn hold(&mut self, key: (u64, u64), now: Nanos, until: Nanos) {
        if self.0.len() >= HELD_MAX {
            self.0.retain(|_, until| *until > now);
        }
        if self.0.len() < HELD_MAX || self.0.contains_key(&key) {
            self.0.insert(key, until);
        }
    }

    fn is_held(&self, key: (u64, u64), now: Nanos) -> bool {
        self.0.get(&key).is_some_and(|until| *until > now)
    }

    fn release(&mut self, key: (u64, u64)) {
        self.0.remove(&key);
    }
}

/// Tickets of the flushes that began and ended last, what that one has done, and bytes that all have written.
#[derive(Debug, Clone, Copy)]
struct FlushesKnown {
    newest: u64,
    ended: u64,
    done: u64,
    bytes: u64,
}

/// A request that waits for something to become clean.
struct CleanWait<'a>(&'a Eviction);

impl Drop for CleanWait<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl Eviction {
    /// Whether a request needs chunks of a file, or a flush.
    pub fn is_in_use(&self, file: FileId) -> bool {
        self.in_use.borrow().contains_key(&file.0)
    }

    fn needs(&self, file: u64, index: u64, now: Nanos) -> bool {
        let has = |ranges: &ChunkRanges| ranges.iter().any(|(from, to)| (*from..*to).contains(&index));
        self.in_use.borrow().get(&file).is_some_and(has) || self.held.borrow().is_held((file, index), now)
    }
}

/// Chunks of a file stay here while this is.
pub struct ChunkUse {
    core: Rc<Core>,
    file: FileId,
    ranges: ChunkRanges,
}

impl Drop for ChunkUse {
    fn drop(&mut self) {
        let mut in_use = self.core.backing().eviction.in_use.borrow_mut();
        if let Some(known) = in_use.get_mut(&self.file.0) {
            for range in &self.ranges {
                let place = known.iter().position(|other| other == range);
                if let Some(place) = place {
                    known.swap_remove(place);
                }
            }
            if known.is_empty() {
                in_use.remove(&self.file.0);
            }
        }
    }
}

/// Ranges of the indexes of chunks.
pub fn ranges_of(indexes: impl IntoIterator<Item = u64>) -> ChunkRanges {
    let mut ranges = ChunkRanges::new();
    for index in indexes {
        match ranges.last_mut().filter(|(_, to)| *to == index) {
            Some((_, to)) => *to = index + 1,
            None => ranges.push((index, index + 1)),
        }
    }
    ranges
}

impl Core {
    /// Whether chunks of a file may be behind alone.
    pub fn may_lack(&self, file: FileId) -> bool {
        self.backing.is_some()
            && self.tables.borrow().backing.get(file).map_or(file.is_from_behind(), TakenUp::may_lack)
    }

    /// Has chunks of a file stay here that are here, or come; nothing for files of which nothing can go yet, but where
    /// a flush may make them such while they are in use.
    pub fn use_chunks(
        self: &Rc<Self>,
        file: FileId,
        may_wait: bool,
        ranges: impl FnOnce() -> ChunkRanges,
    ) -> Option<ChunkUse> {
        let backing = self.backing.as_ref()?;
        if !may_wait && !file.is_from_behind() && self.tables.borrow().backing.get(file).is_none() {
            return None;
        }
        let ranges = ranges();
        backing.eviction.in_use.borrow_mut().entry(file.0).or_default().extend_from_slice(&ranges);
        Some(ChunkUse { core: self.clone(), file, ranges })
    }

    /// The same of all chunks, also of those of a file that is not behind yet.
    pub(super) fn use_file(self: &Rc<Self>, file: FileId) -> ChunkUse {
        let ranges = vec![ALL_CHUNKS];
        self.backing().eviction.in_use.borrow_mut().entry(file.0).or_default().push(ALL_CHUNKS);
        ChunkUse { core: self.clone(), file, ranges }
    }

    /// Has them stay for a while.
    pub(super) fn hold_chunks(&self, chunk_use: &ChunkUse) {
        let now = self.reactor.now();
        let mut held = self.backing().eviction.held.borrow_mut();
        for index in chunk_use.ranges.iter().flat_map(|(from, to)| *from..*to) {
            held.hold((chunk_use.file.0, index), now, now + 2 * self.options.timeout);
        }
    }

    /// That has been written, and the chunks may go.
    pub fn release_chunks(&self, file: FileId, pieces: &[ChunkRange]) {
        let Some(backing) = &self.backing else { return };
        let mut held = backing.eviction.held.borrow_mut();
        for piece in pieces {
            held.release((file.0, piece.chunk_index));
        }
    }

    fn has_free(&self, percent: u64) -> bool {
        let usage = self.store.usage();
        usage.free >= usage.size / 100 * percent
    }

    /// Whether nothing has to go, nor may have to soon.
    pub fn is_roomy(&self) -> bool {
        self.has_free(SIGHT_PERCENT)
    }

    /// Gives up clean chunks if there is little room, so that whoever needs some finds it.
    pub(super) fn keep_room(self: &Rc<Self>) {
        if !self.has_free(LOW_PERCENT) {
            // What can't be journalled now goes the next time.
            let _: bool = self.evict_some();
        } else if !self.is_roomy() {
            self.fill_next();
        }
    }

    /// Gives up a part of the store that clean chunks have. Whether anything went.
    pub fn evict_some(self: &Rc<Self>) -> bool {
        let Some(backing) = &self.backing else { return false };
        let wanted = (self.store.usage().size / STEP_PARTS).max(1);
        let now = self.reactor.now();
        let (mut bytes, mut count) = (0, 0);
        for _ in 0..STEP_LOOKS {
            if bytes >= wanted || count == STEP_CHUNKS || self.is_journal_low() {
                break;
            }
            self.fill_next();
            let next = backing.eviction.next.borrow_mut().pop_front();
            let Some(key) = next else { break };
            let is_used = self.tables.borrow().backing.takes_use(key);
            if is_used || backing.eviction.needs(key.0, key.1, now) {
                self.tables.borrow_mut().backing.offer(key);
                continue;
            }
            match self.evict(key) {
                Ok(size) => (bytes, count) = (bytes + u64::from(size), count + usize::from(size > 0)),
                Err(_) => {
                    self.tables.borrow_mut().backing.offer(key);
                    break;
                }
            }
        }
        bytes > 0
    }

    /// Gives up a chunk if it is clean and nobody needs it. Whether it went.
    pub(super) fn evict_chunk(self: &Rc<Self>, file: FileId, index: u64) -> Result<bool, Failure> {
        let is_needed = self.backing().eviction.needs(file.0, index, self.reactor.now());
        Ok(!is_needed && !self.is_journal_low() && self.evict((file.0, index))? > 0)
    }

    /// Takes candidates from sight.
    fn fill_next(&self) {
        let backing = self.backing();
        let takes_dirty = backing.has_fault(BackingFault::EvictsDirty);
        let limit = {
            let [_, here, ..] = self.tables.borrow().backing.counts();
            (here / NEXT_PARTS).clamp(NEXT_MIN, NEXT_MAX) as usize
        };
        let mut looks = STEP_CHUNKS;
        while backing.eviction.next.borrow().len() < limit && looks > 0 {
            looks -= 1;
            let next = self.tables.borrow_mut().backing.next_clean(takes_dirty);
            let keys = match next {
                None => return,
                Some((file, WHOLE_FILE)) => self.next_of_rest(FileId(file)),
                Some(key) => vec![key],
            };
            for (file, index) in keys {
                self.store.take_from_sight(file, index);
                if let Some(publisher) = &self.tables.borrow().publisher {
                    publisher.invalidate_inode(FileId(file));
                }
                backing.eviction.next.borrow_mut().push_back((file, index));
            }
        }
    }

    /// The next chunks of a file that was carried, from its base on; the rest of them come later.
    fn next_of_rest(&self, file: FileId) -> Vec<CleanKey> {
        let Some((first, chunk_size)) = self.rest_of(file) else { return Vec::new() };
        let (indexes, next) = self.chunks_with_data(file, chunk_size, first, u64::MAX, REST_STEP);
        let mut tables = self.tables.borrow_mut();
        if let Some(next) = next {
            tables.backing.note_offered(file.0, next);
            tables.backing.offer((file.0, WHOLE_FILE));
        }
        indexes
            .into_iter()
            .filter(|index| tables.backing.get(file).is_some_and(|known| known.is_clean(*index)))
            .map(|index| (file.0, index))
            .collect()
    }

    fn rest_of(&self, file: FileId) -> Option<(u64, u64)> {
        let tables = self.tables.borrow();
        let first = tables.backing.rest_from(file)?;
        Some((first, u64::from(tables.backing.place(file)?.chunk_size)))
    }

    /// Chunks of this server with data, from one on up to another one, `count` at most; and where to go on if there may
    /// be more.
    pub(super) fn chunks_with_data(
        &self,
        file: FileId,
        chunk_size: u64,
        first: u64,
        limit: u64,
        count: usize,
    ) -> (Vec<u64>, Option<u64>) {
        let mut indexes = Vec::new();
        let mut next = first;
        loop {
            match self.store.next_data(file.0, next.saturating_mul(chunk_size)) {
                (Some(offset), _) if offset / chunk_size >= limit => return (indexes, None),
                (Some(_), _) if indexes.len() == count => return (indexes, Some(next)),
                (Some(offset), true) => {
                    indexes.push(offset / chunk_size);
                    next = offset / chunk_size + 1;
                }
                (Some(offset), false) => next = (offset / chunk_size).max(next + 1),
                (None, _) => return (indexes, None),
            }
        }
    }

    /// Gives up one chunk if it is clean. The number of its bytes that are behind.
    fn evict(self: &Rc<Self>, (file, index): CleanKey) -> Result<u32, Failure> {
        let (id, backing) = (FileId(file), self.backing());
        let (chunk_size, carried) = {
            let tables = self.tables.borrow();
            let known = tables.backing.get(id);
            let may_go = |known: &&TakenUp| known.is_clean(index) || backing.has_fault(BackingFault::EvictsDirty);
            let Some(known) = known.filter(may_go) else { return Ok(0) };
            (u64::from(known.place.chunk_size), known.place.carried)
        };
        let (start, end) = (index * chunk_size, (index + 1) * chunk_size);
        let size = carried.saturating_sub(start).min(chunk_size) as u32;
        let mut transaction = self.store.begin();
        if let Some(share) = self.store.share(file) {
            let hole = Hole { file, start, end, keep_pages: false, mtime: share.mtime };
            self.store.punch(hole, &mut transaction);
        }
        self.commit(transaction, [Record::StandingPut { file: id, index, standing: Standing::Absent }])?;
        add(&backing.counters.evicted_chunks, 1);
        add(&backing.counters.evicted_bytes, u64::from(size));
        backing.space_known.note_evicted(u64::from(size));
        Ok(size)
    }

    /// Waits for something to become clean, and gives it up: the store is full of what is not behind yet, whichever
    /// server it belongs to. That goes now if anything goes by itself. Errors: nothing did for
    /// a time-out; `failure` then, with words.
    pub(crate) async fn await_clean(self: &Rc<Self>, failure: Failure) -> Result<(), Failure> {
        let Some(backing) = &self.backing else { return Err(failure) };
        let told = |words: &str| {
            let words = format!("the store is full, and what was changed is not in the backing directory yet; {words}");
            Failure::with_text(Status::NoSpace, words)
        };
        match backing.pace.policy() {
            FlushPolicy::Never => return Err(failure),
            FlushPolicy::Manual => return Err(told("`tabane flush` carries it there")),
            _ => {}
        }
        let eviction = &backing.eviction;
        let _waiting = self.ask_for_flushes();
        let done = || {
            let flushes = eviction.flushes.get();
            (backing.counters.carried.get(), flushes.and_then(|known| (known.done > 0).then_some(known.ended)))
        };
        let written = || (backing.counters.carried_bytes.get(), eviction.flushes.get().map(|known| known.bytes));
        let mut known = (done(), written());
        let mut limit = self.reactor.now() + self.options.timeout;
        let (mut first, mut is_vain) = (None, false);
        while self.reactor.now() < limit {
            self.reactor.sleep(CLEAN_PAUSE_NS).await;
            if self.evict_some() || self.store.gains_by_sync() {
                return Ok(());
            }
            let before = std::mem::replace(&mut known, (done(), written()));
            if before.0 != known.0 {
                (limit, first, is_vain) = (self.reactor.now() + self.options.timeout, None, false);
            } else if before.1 != known.1 && !is_vain {
                // Bytes alone may be those of a file that fails again and again.
                limit = self.reactor.now() + self.options.timeout;
            }
            let Some(flushes) = eviction.flushes.get() else { continue };
            let newest = *first.get_or_insert(flushes.newest);
            // A flush that began after this wait has ended, and there was nothing for it; one more than is known may
            // have begun before. What others need right now may go soon.
            if flushes.ended > newest + 1 && flushes.done == 0 {
                is_vain = true;
                limit = limit.min(self.reactor.now() + self.options.timeout / VAIN_PARTS);
            }
        }
        Err(told("`tabane status` says why"))
    }

    /// Whether anybody waits for room that something has to make by becoming clean.
    pub fn is_making_room(&self) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.eviction.waiting.get() > 0)
    }

    /// Has flushes asked for again and again while somebody waits.
    fn ask_for_flushes(self: &Rc<Self>) -> CleanWait<'_> {
        let eviction = &self.backing().eviction;
        eviction.waiting.set(eviction.waiting.get() + 1);
        if !eviction.is_asking.replace(true) {
            eviction.flushes.set(None);
            let core = self.clone();
            self.reactor.spawn(Class::Background, async move {
                let eviction = &core.backing().eviction;
                while eviction.waiting.get() > 0 {
                    // One that can't be asked is asked again.
                    if let Ok(reply) = core.ask_for_automatic_flush(flush_patience::NONE).await {
                        let AskForFlushReply { newest, ended, done, bytes } = reply;
                        eviction.flushes.set(Some(FlushesKnown { newest, ended, done, bytes }));
                    }
                    core.reactor.sleep(ASK_PAUSE_NS).await;
                }
                eviction.is_asking.set(false);
            });
        }
        CleanWait(eviction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: chunks are held up to their time, no more than so many, and those that are held already longer all the
    /// same; those whose time is over make room.
    #[test]
    fn held_chunks_are_bounded() {
        let mut held = HeldChunks::default();
        (0..2 * HELD_MAX as u64).for_each(|index| held.hold((1, index), 0, 10));
        assert_eq!(held.0.len(), HELD_MAX);
        assert!(held.is_held((1, 0), 9) && !held.is_held((1, 0), 10) && !held.is_held((1, HELD_MAX as u64), 9));
        held.hold((1, 5), 5, 20);
        held.hold((2, 0), 9, 20);
        assert!(held.is_held((1, 5), 19) && !held.is_held((2, 0), 9));
        held.release((1, 7));
        held.hold((2, 0), 9, 20);
        assert!(held.is_held((2, 0), 19) && !held.is_held((1, 7), 9));
        held.hold((2, 1), 10, 20);
        assert_eq!(held.0.len(), 3);
    }
}
