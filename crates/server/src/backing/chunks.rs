//! Chunks of files that were taken up: which of them are here, and how the others come.

use super::table::{Standing, TakenUp};
use super::{BackingFault, BackingUse, Brought, add};
use crate::core::{Core, Failure, Notice, all, until};
use crate::journal::records::Record;
use crate::store::ChunkWrite;
use reactor::backing::{BackingError, BackingFile, CALL_SIZE_MAX, CallMemory, Identity};
use reactor::{Class, LocalFuture, Nanos, Span};
use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::rc::Rc;
use wire::layout::ChunkRange;
use wire::messages::BackingPlace;
use wire::{FileId, Layout};

/// Attempts at a chunk whose file is cut while it is fetched.
const ATTEMPTS_MAX: u32 = 8;

/// Fetches that one request has begun and not seen the end of, at most.
const REQUEST_FETCHES_MAX: usize = 16;

/// Calls that read one chunk at a time.
const READS_AT_ONCE: usize = 8;

/// Chunks of a server that are fetched ahead: twice as many as are here of those before, within these bounds, and no
/// more bytes than that. How far away they are looked for.
const READ_AHEAD_CHUNKS: RangeInclusive<usize> = 2..=8;
const READ_AHEAD_SIZE: usize = 16 << 20;
const READ_AHEAD_LOOKS: u64 = 4096;

/// A chunk that is being brought here, for all who wait for it.
pub struct Fetch {
    done: Brought,
    /// It waits for the backing tree, and not for room here.
    is_calling: Cell<bool>,
    /// When it began to wait for that.
    since: Cell<Nanos>,
}

impl Fetch {
    pub(super) fn new(core: &Core) -> Fetch {
        let since = Cell::new(core.reactor.now());
        Fetch { done: Notice::new(), is_calling: Cell::new(false), since }
    }

    pub(super) fn note(&self, core: &Core, is_calling: bool) {
        self.is_calling.set(is_calling);
        self.since.set(core.reactor.now());
    }
}

/// What is known of a chunk.
enum ChunkState {
    /// All that is to be read of it is here.
    Here,
    Absent,
    /// Its file's home knows.
    Unknown,
}

impl Core {
    fn chunk_state(&self, file: FileId, index: u64) -> ChunkState {
        let Some(backing) = &self.backing else { return ChunkState::Here };
        match self.tables.borrow().backing.get(file) {
            Some(taken_up) if taken_up.is_absent(index) && !backing.has_fault(BackingFault::AbsentAsZeros) => {
                ChunkState::Absent
            }
            Some(_) => ChunkState::Here,
            // At the home it is gone; and what was made here is behind only where its place is known.
            None if !file.is_from_behind() || self.cluster.home_of(file) == Some(self.index) => ChunkState::Here,
            None => ChunkState::Unknown,
        }
    }

    /// Whether bytes of a chunk have to be fetched, or asked for, before anybody reads it.
    pub fn lacks_chunk(&self, file: FileId, index: u64) -> bool {
        !matches!(self.chunk_state(file, index), ChunkState::Here)
    }

    /// Whether a write to a chunk here need not wait: all of the chunk is here, or replaced by the write.
    fn takes_piece(&self, file: FileId, piece: &ChunkRange) -> bool {
        match self.chunk_state(file, piece.chunk_index) {
            ChunkState::Here => true,
            ChunkState::Unknown => false,
            ChunkState::Absent => self.covers(file, piece.chunk_index, piece.chunk_offset, piece.size),
        }
    }

    /// Whether bytes of a chunk are all that may be behind of it.
    pub(super) fn covers(&self, file: FileId, index: u64, offset: u32, size: u32) -> bool {
        let tables = self.tables.borrow();
        tables.backing.get(file).is_some_and(|taken_up| offset == 0 && size >= taken_up.size_behind(index))
    }

    /// Whether pieces of a file are all here, as far as they belong here and are not about to be written as a whole.
    pub fn has_pieces(&self, file: FileId, layout: &Layout, pieces: &[ChunkRange], is_write: bool) -> bool {
        let is_fit = |piece: &ChunkRange| match is_write {
            true => self.takes_piece(file, piece),
            false => !self.lacks_chunk(file, piece.chunk_index),
        };
        if self.backing.is_none() {
            return true;
        }
        if let Some(taken_up) = self.tables.borrow().backing.get(file) {
            let second = self.reactor.now() / 1_000_000_000;
            pieces.iter().for_each(|piece| taken_up.note_use(piece.chunk_index, second));
        }
        !self.may_lack(file)
            || pieces
                .iter()
                .filter(|piece| self.cluster.chunk_server(file, layout, piece.chunk_index) == self.index)
                .all(is_fit)
    }

    /// Brings what `has_pieces` lacks. What was here stays here.
    pub async fn take_in(
        self: &Rc<Self>,
        file: FileId,
        layout: &Layout,
        pieces: &[ChunkRange],
        is_write: bool,
        deadline: Nanos,
    ) -> Result<(), Failure> {
        if !is_write && self.is_read_ahead_due(file, pieces) && self.has_pieces(file, layout, pieces, is_write) {
            self.read_ahead(file, layout, pieces);
        }
        while !self.has_pieces(file, layout, pieces, is_write) {
            self.know_place(file, deadline).await?;
            let mut under_way: VecDeque<Rc<Fetch>> = VecDeque::new();
            for piece in pieces {
                let is_here = self.cluster.chunk_server(file, layout, piece.chunk_index) == self.index;
                if is_here && !self.has_pieces(file, layout, std::slice::from_ref(piece), is_write) {
                    if under_way.len() == REQUEST_FETCHES_MAX
                        && let Some(first) = under_way.pop_front()
                    {
                        self.wait_for_fetch(&first, deadline).await?;
                    }
                    under_way.push_back(self.start_fetch(file, piece.chunk_index));
                }
            }
            if !is_write {
                self.read_ahead(file, layout, pieces);
            }
            for fetch in under_way {
                self.wait_for_fetch(&fetch, deadline).await?;
            }
            if self.reactor.now() >= deadline && !self.has_pieces(file, layout, pieces, is_write) {
                // What comes goes again, for others.
                return Err(self.late());
            }
        }
        Ok(())
    }

    /// Whether somebody reads half of what was fetched ahead.
    pub fn is_read_ahead_due(&self, file: FileId, pieces: &[ChunkRange]) -> bool {
        let tables = self.tables.borrow();
        let next = tables.backing.get(file).map_or(u64::MAX, |taken_up| taken_up.next_read_ahead.get());
        pieces.last().is_some_and(|last| last.chunk_index >= next)
    }

    /// Begins to fetch the next chunks that belong here, where the one before those that are read is here already, so
    /// that who reads on need not wait for each. Whether they come is nobody's matter before he asks.
    fn read_ahead(self: &Rc<Self>, file: FileId, layout: &Layout, pieces: &[ChunkRange]) {
        let Some(index) = pieces.last().map(|last| last.chunk_index) else { return };
        let next: Vec<u64> = {
            let tables = self.tables.borrow();
            let Some(taken_up) = tables.backing.get(file) else { return };
            taken_up.next_read_ahead.set(u64::MAX);
            let is_own = |index: &u64| self.cluster.chunk_server(file, layout, *index) == self.index;
            let look_back = index.saturating_sub(READ_AHEAD_LOOKS);
            let before = (look_back..index).rev().filter(is_own).take(*READ_AHEAD_CHUNKS.end());
            let run = before.take_while(|before| !taken_up.is_absent(*before)).count();
            if run == 0 {
                return;
            }
            let most = (READ_AHEAD_SIZE / layout.chunk_size.max(1) as usize).max(1);
            let count = (2 * run).clamp(*READ_AHEAD_CHUNKS.start(), *READ_AHEAD_CHUNKS.end()).min(most);
            let ahead: Vec<u64> = (index + 1..index + READ_AHEAD_LOOKS).filter(is_own).take(count).collect();
            // As long as there is something to come, half of it has to be read first.
            let is_end = ahead.last().is_none_or(|last| taken_up.next_absent(*last).is_none());
            if let Some(half) = ahead.get(ahead.len() / 2).filter(|_| !is_end) {
                taken_up.next_read_ahead.set(*half);
            }
            ahead.into_iter().filter(|index| taken_up.is_absent(*index)).collect()
        };
        next.into_iter().for_each(|index| drop(self.start_fetch(file, index)));
    }

    /// Whether something has to be brought before writes may be committed.
    pub fn lacks_for(&self, file: FileId, writes: &[ChunkWrite]) -> bool {
        self.may_lack(file) && self.lacking_piece(file, writes).is_some()
    }

    fn lacking_piece(&self, file: FileId, writes: &[ChunkWrite]) -> Option<ChunkRange> {
        writes.iter().filter_map(ChunkWrite::piece).find(|piece| !self.takes_piece(file, piece))
    }

    /// The same for writes that are on their way.
    pub async fn take_in_for(
        self: &Rc<Self>,
        file: FileId,
        writes: &[ChunkWrite],
        deadline: Nanos,
    ) -> Result<(), Failure> {
        if !self.may_lack(file) {
            return Ok(());
        }
        loop {
            let Some(piece) = self.lacking_piece(file, writes) else { return Ok(()) };
            self.know_place(file, deadline).await?;
            if !self.takes_piece(file, &piece) {
                let fetch = self.start_fetch(file, piece.chunk_index);
                self.wait_for_fetch(&fetch, deadline).await?;
            }
            if self.reactor.now() >= deadline && self.lacks_for(file, writes) {
                return Err(self.late());
            }
        }
    }

    /// Begins to fetch a chunk, unless that is under way.
    fn start_fetch(self: &Rc<Self>, file: FileId, index: u64) -> Rc<Fetch> {
        self.start_fetches(&[(file, index)]).remove(0)
    }

    /// Has a fetch that was begun go on by itself.
    pub(super) fn start_single(self: &Rc<Self>, file: FileId, index: u64, fetch: Rc<Fetch>) {
        let core = self.clone();
        self.reactor.spawn(Class::Data, async move {
            let result = core.fetch(file, index, &fetch).await;
            core.end_fetch(file, index, &fetch, result);
        });
    }

    /// A fetch has ended.
    pub(super) fn end_fetch(&self, file: FileId, index: u64, fetch: &Fetch, result: Result<(), Failure>) {
        self.backing().fetches.borrow_mut().remove(&(file.0, index));
        fetch.done.tell(result);
    }

    /// Waits for the end of a fetch, whose calls have a time-out from when they begin at least: room had to be made
    /// before, which takes as long as changes take to go behind, and ends if they don't (`await_clean`).
    pub(super) async fn wait_for_fetch(&self, fetch: &Fetch, deadline: Nanos) -> Result<(), Failure> {
        // However late it is, for another one took long: this one may have ended before.
        if let Some(result) = fetch.done.told() {
            return result;
        }
        loop {
            let (now, timeout) = (self.reactor.now(), self.options.timeout);
            let limit = match deadline.max(fetch.since.get() + timeout) {
                limit if limit > now => limit,
                _ if !fetch.is_calling.get() && self.is_making_room() => now + timeout,
                _ => return Err(self.late()),
            };
            if let Some(result) = until(&self.reactor, limit, fetch.done.wait()).await {
                return result;
            }
        }
    }

    async fn fetch(self: &Rc<Self>, file: FileId, index: u64, under_way: &Fetch) -> Result<(), Failure> {
        let mut failed = None;
        for _ in 0..ATTEMPTS_MAX {
            let (place, size) = {
                let tables = self.tables.borrow();
                let Some(taken_up) = tables.backing.get(file).filter(|taken_up| taken_up.is_absent(index)) else {
                    return Ok(());
                };
                (self.place_now(file).unwrap_or_else(|| taken_up.place.clone()), taken_up.size_behind(index))
            };
            // By now that may be over, and then its identity is known again.
            if place.is_being_written()
                && self.cluster.home_of(file) != Some(self.index)
                && self.learn_place_at_home(file, &place).await?
            {
                continue;
            }
            let offset = index * u64::from(place.chunk_size);
            let (backing, checks, sums) = (self.backing(), self.checks_identity(), self.store.keeps_sums());
            let fetched = async {
                under_way.note(self, true);
                let source = backing.open_checked(&place, checks).await?;
                under_way.note(self, false);
                let held = backing.fetch_gate.enter(file.0, place.parent.0).await;
                let mut write =
                    self.with_room(|| self.store.reserve_write(file.0, index, place.chunk_size, 0, size)).await?;
                self.pin_writes([&mut write]).await?;
                under_way.note(self, true);
                let read = backing.read_into(&source, offset, &write, &place, sums).await?;
                backing.check(&source, &place, checks).await?;
                Ok((held, write, read))
            };
            let (_held, mut write, read) = match fetched.await {
                Ok(fetched) => fetched,
                Err::<_, Failure>(failure) => {
                    let is_cut = {
                        let tables = self.tables.borrow();
                        let taken_up = tables.backing.get(file);
                        let is_wanted = taken_up.is_some_and(|taken_up| taken_up.is_absent(index));
                        !is_wanted || taken_up.is_some_and(|taken_up| taken_up.size_behind(index) != size)
                    };
                    // Cut or written meanwhile, so that nobody wants it; or a flush may have put another one in its
                    // place, with the same bytes.
                    let lacks_room = failure.status == wire::Status::NoSpace;
                    let is_news = is_cut || !lacks_room && self.learn_new_place(file, &place).await?;
                    // A directory that was elsewhere just then may have come back: it is missing if it is so twice.
                    let is_twice = failed.replace(place.clone()) == Some(place);
                    match is_news || !lacks_room && !is_twice {
                        true => continue,
                        false => {
                            // Whoever asks for its name is to have it looked at.
                            self.doubt(file);
                            return Err(failure);
                        }
                    }
                }
            };
            under_way.note(self, false);
            // They have lain in the store for a while, where nobody had vouched for them yet.
            if read.sum.is_some_and(|sum| !write.verify(0, sum)) {
                continue;
            }
            let mut writes = [write];
            let mut rounds = crate::handlers::Rounds::default();
            loop {
                if self.is_journal_low() {
                    self.checkpoints.finished().wait().await;
                }
                match self.store.settle_writes(&mut writes) {
                    Err(error) => rounds.next(self, error.into()).await?,
                    Ok(()) => break,
                }
            }
            // From here on nothing is awaited.
            let now = {
                let tables = self.tables.borrow();
                let size_now = |taken_up: &TakenUp| (taken_up.is_absent(index), taken_up.size_behind(index));
                tables.backing.get(file).map(size_now)
            };
            let is_there = self.place_now(file).is_none_or(|now| now == place);
            match now {
                Some((true, same)) if same == size && is_there => {}
                // Cut meanwhile: what is behind ends earlier. Or carried and given up: something else is behind.
                Some((true, _)) => continue,
                // Gone, or written to as a whole.
                _ => return Ok(()),
            }
            let mut transaction = self.store.begin();
            let [write] = writes;
            if !read.is_zero {
                // The time of the last write here, which this is none.
                let mtime = self.store.share(file.0).map_or(0, |share| share.mtime);
                self.store.commit_write(write, &mut transaction, mtime)?;
            }
            self.commit(transaction, vec![Record::StandingPut { file, index, standing: Standing::Clean }])?;
            add(&self.backing().counters.fetched_chunks, 1);
            add(&self.backing().counters.fetched_bytes, u64::from(size));
            self.keep_room();
            return Ok(());
        }
        Err(Failure::with_text(wire::Status::Busy, "the file is cut again and again while it is fetched"))
    }
}

pub(super) fn is_same(identity: &Identity, place: &BackingPlace) -> bool {
    let Identity { device: _, inode, size, mtime, ctime } = *identity;
    let is_same = (size, mtime) == (place.size, place.mtime) && (ctime == place.ctime || place.has_links);
    inode == place.inode && (place.is_being_written() || is_same)
}

impl BackingUse {
    /// Opens a file behind, if it is the one that was taken up.
    pub(super) async fn open_checked(&self, place: &BackingPlace, checks: bool) -> Result<BackingFile, Failure> {
        // One that is open still may be that of before.
        let mut is_anew = false;
        loop {
            let opened = async { self.tree.root().await?.open_file(&place.path).await };
            let file = opened.await.map_err(|error| match error.is_gone() {
                true => self.changed(&place.path),
                false => self.failure(error),
            })?;
            match self.check(&file, place, checks).await {
                Ok(()) => return Ok(file),
                Err(_) if !is_anew => file.set_stale(),
                Err(failure) => return Err(failure),
            }
            is_anew = true;
        }
    }

    /// Whether an open file is what it was when it was taken up.
    pub(super) async fn check(&self, file: &BackingFile, place: &BackingPlace, checks: bool) -> Result<(), Failure> {
        if !checks {
            return Ok(());
        }
        let found = file.look().await.map_err(|error| self.failure(error))?;
        if is_same(&found.identity, place) { Ok(()) } else { Err(self.changed(&place.path)) }
    }

    /// Reads bytes of a file into the places of a write, which are as many.
    async fn read_into(
        &self,
        file: &BackingFile,
        mut offset: u64,
        write: &ChunkWrite,
        place: &BackingPlace,
        sums: bool,
    ) -> Result<ReadBytes, Failure> {
        let mut read_bytes = ReadBytes::new(sums);
        let parts = |span: &Span| {
            let (span, step) = (span.clone(), CALL_SIZE_MAX as u64);
            (0..span.size).step_by(CALL_SIZE_MAX).map(move |done| span.part(done, step.min(span.size - done)))
        };
        let parts: Vec<Span> = write.places.iter().flat_map(parts).collect();
        for some in parts.chunks(READS_AT_ONCE) {
            let read = |part: &Span| {
                let (file, from, memory) = (file.clone(), offset, read_bytes.memory(part));
                offset += part.size;
                Box::pin(async move { file.read(from, memory).await }) as LocalFuture<_>
            };
            let parts_read: Vec<(Result<usize, BackingError>, CallMemory)> = all(some.iter().map(read).collect()).await;
            for (part, (read, memory)) in some.iter().zip(parts_read) {
                self.check_size(read.map_err(|error| self.failure(error))?, part.size, place)?;
                read_bytes.take(part, memory);
            }
        }
        Ok(read_bytes)
    }

    /// That there were fewer bytes than asked for says that the file is another one by now.
    fn check_size(&self, read: usize, wanted: u64, place: &BackingPlace) -> Result<(), Failure> {
        if self.is_whole(read, wanted) { Ok(()) } else { Err(self.changed(&place.path)) }
    }

    pub(super) fn is_whole(&self, read: usize, wanted: u64) -> bool {
        read as u64 == wanted || self.fault.get().is_some()
    }
}

/// What was read of a file.
pub(super) struct ReadBytes {
    /// Whether all of them are zeros.
    is_zero: bool,
    /// CRC-32C of all of them, where that is wanted.
    sum: Option<u32>,
}

impl ReadBytes {
    pub(super) fn new(sums: bool) -> ReadBytes {
        ReadBytes { is_zero: true, sum: sums.then_some(0) }
    }

    /// Memory for what is to be read into a span: the span itself, unless sums are wanted of what was read, before
    /// anybody could touch it there.
    pub(super) fn memory(&self, span: &Span) -> CallMemory {
        match self.sum {
            Some(_) => vec![0; span.size as usize].into(),
            None => span.clone().into(),
        }
    }

    pub(super) fn is_zero(&self) -> bool {
        self.is_zero
    }

    pub(super) fn sum(&self) -> Option<u32> {
        self.sum
    }

    /// Takes what was read into that memory.
    pub(super) fn take(&mut self, span: &Span, memory: CallMemory) {
        let bytes = memory.into_bytes();
        match &mut self.sum {
            Some(sum) => {
                self.is_zero = self.is_zero && bytes.iter().all(|byte| *byte == 0);
                *sum = crc32c::crc32c_append(*sum, &bytes);
                span.region.write(span.offset, &bytes);
            }
            None => self.is_zero = self.is_zero && is_zero(span),
        }
    }
}

/// Whether a span has zeros alone, which is known at its first bytes most of the time.
fn is_zero(span: &Span) -> bool {
    let mut bytes = [0; 4096];
    (0..span.size).step_by(bytes.len()).all(|done| {
        let some = &mut bytes[..(span.size - done).min(4096) as usize];
        span.region.read(span.offset + done, some);
        some.iter().all(|byte| *byte == 0)
    })
}
