//! Chunks of files that were taken up: which of them are here, and how the others come.

use super::table::Standing;
use super::{BackingFault, BackingUse, Brought, add};
use crate::core::{Core, Failure, Notice, until};
use crate::journal::records::Record;
use crate::store::ChunkWrite;
use reactor::backing::{BackingFile, CALL_SIZE_MAX, Identity};
use reactor::{Class, Nanos};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use wire::layout::ChunkRange;
use wire::messages::BackingPlace;
use wire::{FileId, Layout};

/// Attempts at a chunk whose file is cut while it is fetched.
const ATTEMPTS_MAX: u32 = 8;

/// Fetches that one request has begun and not seen the end of, at most.
const REQUEST_FETCHES_MAX: usize = 16;

/// Chunks of a server that are fetched ahead, and how far away one is looked for.
const READ_AHEAD_CHUNKS: usize = 2;
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
    fn note(&self, core: &Core, is_calling: bool) {
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
            if let Some(last) = pieces.last().filter(|_| !is_write) {
                self.read_ahead(file, layout, last.chunk_index);
            }
            for fetch in under_way {
                self.wait_for_fetch(&fetch, deadline).await?;
            }
        }
        Ok(())
    }

    /// Begins to fetch the next chunks that belong here, where the one before a chunk that is read is here already, so
    /// that who reads on need not wait for each. Whether they come is nobody's matter before he asks.
    fn read_ahead(self: &Rc<Self>, file: FileId, layout: &Layout, index: u64) {
        let next: Vec<u64> = {
            let tables = self.tables.borrow();
            let Some(taken_up) = tables.backing.get(file) else { return };
            let is_own = |index: &u64| self.cluster.chunk_server(file, layout, *index) == self.index;
            let look_back = index.saturating_sub(READ_AHEAD_LOOKS);
            let before = (look_back..index).rev().find(is_own);
            if before.is_none_or(|before| taken_up.is_absent(before)) {
                return;
            }
            let ahead = (index + 1..index + READ_AHEAD_LOOKS).filter(is_own).take(READ_AHEAD_CHUNKS);
            ahead.filter(|index| taken_up.is_absent(*index)).collect()
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
        }
    }

    /// Begins to fetch a chunk, unless that is under way. It goes on whoever waits for it: memory that a call reads
    /// into is its own until it has ended.
    fn start_fetch(self: &Rc<Self>, file: FileId, index: u64) -> Rc<Fetch> {
        if let Some(under_way) = self.backing().fetches.borrow().get(&(file.0, index)) {
            return under_way.clone();
        }
        let since = Cell::new(self.reactor.now());
        let fetch = Rc::new(Fetch { done: Notice::new(), is_calling: Cell::new(false), since });
        self.backing().fetches.borrow_mut().insert((file.0, index), fetch.clone());
        let (core, own) = (self.clone(), fetch.clone());
        self.reactor.spawn(Class::Data, async move {
            let result = core.fetch(file, index, &own).await;
            core.backing().fetches.borrow_mut().remove(&(file.0, index));
            own.done.tell(result);
        });
        fetch
    }

    /// Waits for the end of a fetch, whose calls have a time-out from when they begin at least: room had to be made
    /// before, which takes as long as changes take to go behind, and ends if they don't (`await_clean`).
    async fn wait_for_fetch(&self, fetch: &Fetch, deadline: Nanos) -> Result<(), Failure> {
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
                let moving = self.backing().moving.borrow();
                let moved = moving.get(&file.0).and_then(|moving| moving.place.clone());
                (moved.unwrap_or_else(|| taken_up.place.clone()), taken_up.size_behind(index))
            };
            // By now that may be over, and then its identity is known again.
            if place.is_being_written()
                && self.cluster.home_of(file) != Some(self.index)
                && self.learn_place_at_home(file, &place).await?
            {
                continue;
            }
            let offset = index * u64::from(place.chunk_size);
            let fetched = async {
                under_way.note(self, true);
                let source = self.backing().open_checked(&place, self.checks_identity()).await?;
                under_way.note(self, false);
                let held = self.backing().fetch_gate.enter(file.0).await;
                let write =
                    self.with_room(|| self.store.reserve_write(file.0, index, place.chunk_size, 0, size)).await?;
                under_way.note(self, true);
                let read = self.backing().read_into(&source, offset, &write, &place, self.store.keeps_sums()).await?;
                self.backing().check(&source, &place, self.checks_identity()).await?;
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
                tables.backing.get(file).map(|taken_up| (taken_up.is_absent(index), taken_up.size_behind(index)))
            };
            match now {
                Some((true, same)) if same == size => {}
                // Cut meanwhile: what is behind ends earlier.
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

fn is_same(identity: &Identity, place: &BackingPlace) -> bool {
    let Identity { device: _, inode, size, mtime, ctime } = *identity;
    inode == place.inode && (place.is_being_written() || (size, mtime, ctime) == (place.size, place.mtime, place.ctime))
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
        let mut read_bytes = ReadBytes { is_zero: true, sum: sums.then_some(0) };
        for span in &write.places {
            let mut done = 0;
            while done < span.size {
                let size = (span.size - done).min(CALL_SIZE_MAX as u64);
                let (read, memory) = file.read(offset, vec![0; size as usize]).await;
                if read.map_err(|error| self.failure(error))? as u64 != size && self.fault.get().is_none() {
                    return Err(self.changed(&place.path));
                }
                let bytes = memory.into_bytes();
                read_bytes.is_zero = read_bytes.is_zero && bytes.iter().all(|byte| *byte == 0);
                read_bytes.sum = read_bytes.sum.map(|sum| crc32c::crc32c_append(sum, &bytes));
                span.region.write(span.offset + done, &bytes);
                (done, offset) = (done + size, offset + size);
            }
        }
        Ok(read_bytes)
    }
}

/// What was read of a file.
struct ReadBytes {
    /// Whether all of them are zeros.
    is_zero: bool,
    /// CRC-32C of all of them, where that is wanted.
    sum: Option<u32>,
}
