//! What servers that hold chunks have in common, whatever is done to the chunks.

use crate::backing::ranges_of;
use crate::core::{Caller, Core, Failure};
use crate::process::statistics::waits::{WaitReason, because};
use crate::store::{ChunkWrite, StoreError};
use reactor::{Nanos, PagePin, PageRoom};
use std::rc::Rc;
use wire::layout::ChunkRange;
use wire::messages::{Empty, ReserveChunksRequest};
use wire::{Decode, Encode, FileId, Layout, Status};

use crate::handlers::{EncodedParams, Progress, later};

/// Pieces of one range, by the server that has them.
pub fn by_server(core: &Core, file: FileId, layout: &Layout, pieces: &[ChunkRange]) -> Vec<(u32, Vec<ChunkRange>)> {
    let mut shares: Vec<(u32, Vec<ChunkRange>)> = Vec::new();
    for piece in pieces {
        let server = core.cluster.chunk_server(file, layout, piece.chunk_index);
        match shares.iter_mut().find(|(known, _)| *known == server) {
            Some((_, share)) => share.push(*piece),
            None => shares.push((server, vec![*piece])),
        }
    }
    shares
}

/// Space for pieces of different chunks.
pub fn own_writes(
    core: &Core,
    file: FileId,
    layout: &Layout,
    pieces: &[ChunkRange],
) -> Result<Vec<ChunkWrite>, Failure> {
    let reserve = |piece: &ChunkRange| {
        core.store.reserve_write(file.0, piece.chunk_index, layout.chunk_size, piece.chunk_offset, piece.size)
    };
    Ok(pieces.iter().map(reserve).collect::<Result<_, _>>()?)
}

/// As `own_writes`, after a sync where space rests until one.
pub async fn own_writes_soon(
    core: &Rc<Core>,
    file: FileId,
    layout: &Layout,
    pieces: &[ChunkRange],
) -> Result<Vec<ChunkWrite>, Failure> {
    let mut writes = core.with_room(|| own_writes(core, file, layout, pieces)).await?;
    core.pin_writes(&mut writes).await?;
    Ok(writes)
}

/// Puts bytes into the places of a write, which are as many.
pub fn fill(write: &ChunkWrite, mut bytes: &[u8]) {
    for place in &write.places {
        let (part, rest) = bytes.split_at(place.size as usize);
        place.region.write(place.offset, part);
        bytes = rest;
    }
    assert!(bytes.is_empty(), "the bytes fill the write");
}

/// A copy of a range of a chunk here.
pub async fn read_bytes(core: &Rc<Core>, file: FileId, index: u64, offset: u32, size: u32) -> Result<Vec<u8>, Failure> {
    let read = core.with_room(|| core.store.read(file.0, index, offset, size)).await?;
    let mut bytes = Vec::with_capacity(size as usize);
    read.append_to(&mut bytes);
    Ok(bytes)
}

/// Checks a request of a file's home about chunks here, each named once.
pub fn check_from_home(
    core: &Core,
    caller: &Caller,
    file: FileId,
    layout: &Layout,
    pieces: &[ChunkRange],
) -> Result<(), Failure> {
    core.check_layout(layout)?;
    if core.cluster.home_of(file) != Some(caller.peer.from_server) || caller.peer.from_server == core.index {
        return Err(Failure::with_text(Status::BadMessage, "only a file's home asks for this, and not itself"));
    }
    for piece in pieces {
        let end = u64::from(piece.chunk_offset) + u64::from(piece.size);
        if piece.size == 0 || end > u64::from(layout.chunk_size) {
            return Err(Failure::with_text(Status::BadMessage, "a piece is empty or leaves its chunk"));
        }
        if core.cluster.chunk_server(file, layout, piece.chunk_index) != core.index {
            return Err(Status::WrongServer.into());
        }
    }
    if pieces.windows(2).any(|pair| pair[0].chunk_index >= pair[1].chunk_index) {
        return Err(Failure::with_text(Status::BadMessage, "the pieces are not in the order of their chunks"));
    }
    Ok(())
}

/// `ReserveChunks`: room for bytes that the home is about to send.
pub fn reserve_chunks(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let ReserveChunksRequest { file, layout, pieces, patient } = ReserveChunksRequest::from_bytes(params)?;
    check_from_home(core, caller, file, &layout, &pieces.0)?;
    if !patient && !core.has_pieces(file, &layout, &pieces.0, false) {
        return Err(Failure::with_text(Status::NoSpace, "a chunk of the file is behind alone, and has to come first"));
    }
    let (core, deadline) = (core.clone(), caller.deadline);
    later(async move {
        let take = || {
            let mut transaction = core.store.begin();
            for piece in &pieces.0 {
                let bytes = piece.chunk_offset..piece.chunk_offset + piece.size;
                core.store.reserve_pages(file.0, piece.chunk_index, layout.chunk_size, bytes, &mut transaction);
            }
            core.commit(transaction, [])
        };
        let mut rounds = Rounds { is_brief: !patient, ..Rounds::default() };
        loop {
            core.announce_until_stands(file, deadline).await?;
            match take() {
                Err(failure) => rounds.next(&core, failure).await?,
                Ok(()) => return Ok(EncodedParams(Empty {}.to_bytes())),
            }
        }
    })
}

/// Attempts at something for which room was lacking: others may take what each of them frees, so they go on for a part
/// of the time-out.
#[derive(Default)]
pub struct Rounds {
    limit: Option<Nanos>,
    /// Whether the room that changes leave when they go behind is not waited for.
    is_brief: bool,
    /// What was absent before; who waits for more holds nothing meanwhile.
    pin: PagePin,
}

impl Rounds {
    /// Returns when it may be tried again, or with the failure when that is of no use.
    pub async fn next(&mut self, core: &Rc<Core>, failure: Failure) -> Result<(), Failure> {
        if let Some(absent) = &failure.absent {
            self.pin = PagePin::default();
            self.pin = because(WaitReason::Disk, core.store.pin_pages(absent)).await?;
            return Ok(());
        }
        let now = core.reactor.now();
        let limit = *self.limit.get_or_insert(now + core.options.timeout / 4);
        if failure.status != Status::NoSpace || now >= limit {
            return Err(failure);
        }
        if core.backing.is_some() && core.is_journal_low() {
            // Nothing goes before a checkpoint has given the journal room.
            core.checkpoints.finished().wait().await;
            return Ok(());
        }
        // What clean chunks leave rests until a sync too.
        if !core.evict_some() && !core.may_gain_room(&failure) {
            if self.is_brief {
                return Err(failure);
            }
            because(WaitReason::Disk, core.await_clean(failure)).await?;
            // However long that took, it went on all the time.
            self.limit = None;
        }
        core.syncs.sync().await
    }
}

impl Core {
    /// Whether a sync may give the room for which something failed: freed space rests until one.
    pub fn may_gain_room(&self, failure: &Failure) -> bool {
        failure.status == Status::NoSpace && self.store.gains_by_sync()
    }

    /// What `take` gives, tried again when bytes that were absent are in memory, and after a sync for as long as it
    /// only lacks room that rests until one.
    pub async fn with_room<T, E: Into<Failure>>(
        self: &Rc<Self>,
        mut take: impl FnMut() -> Result<T, E>,
    ) -> Result<T, Failure> {
        let mut rounds = Rounds::default();
        loop {
            match take() {
                Err(error) => rounds.next(self, error.into()).await?,
                Ok(taken) => return Ok(taken),
            }
        }
    }

    /// Whether what reserved writes touch is in memory, and stays there.
    pub fn is_pinned(&self, writes: &mut [ChunkWrite]) -> bool {
        self.store.pin_writes(writes.iter_mut(), PageRoom::Left).is_ok()
    }

    /// Returns when there is memory for the bytes of reserved writes, and what their commits look at is there.
    pub async fn pin_writes<'a>(&self, writes: impl IntoIterator<Item = &'a mut ChunkWrite>) -> Result<(), Failure> {
        let mut writes: Vec<&mut ChunkWrite> = writes.into_iter().collect();
        let mut granted: Option<PagePin> = None;
        loop {
            let room = granted.as_ref().map_or(PageRoom::Left, PageRoom::Granted);
            match self.store.pin_writes(writes.iter_mut().map(|write| &mut **write), room) {
                Ok(()) => return Ok(()),
                Err(StoreError::Absent(absent)) => {
                    // Who waits for more holds nothing meanwhile.
                    drop(granted.take());
                    granted = Some(because(WaitReason::Disk, self.store.pin_pages(&absent)).await?);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns when the commit of writes whose bytes are there takes no room, and their file is announced if its home
    /// is elsewhere. What is committed before the next await is covered.
    pub async fn until_writes_stand(
        self: &Rc<Self>,
        file: FileId,
        writes: &mut [ChunkWrite],
        deadline: Nanos,
    ) -> Result<(), Failure> {
        let pieces = || ranges_of(writes.iter().filter_map(ChunkWrite::piece).map(|piece| piece.chunk_index));
        let _chunk_use = self.use_chunks(file, true, pieces);
        let mut rounds = Rounds::default();
        loop {
            // Whatever is here stays here, so that this holds after the next waits.
            self.take_in_for(file, writes, deadline).await?;
            if self.cluster.home_of(file) == Some(self.index) {
                because(WaitReason::Lock, self.wait_for_read_leases(file)).await;
            } else {
                self.announce_until_stands(file, deadline).await?;
            }
            // What a write was to cover of an absent chunk may have become more: a flush has put more behind meanwhile.
            if self.lacks_for(file, writes) {
                continue;
            }
            match self.store.settle_writes(writes) {
                Err(error) => rounds.next(self, error.into()).await?,
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Announces a file whose home is elsewhere to it, unless that stands. What is committed before the next await is
    /// covered (announcement, invariant 1).
    pub async fn announce_until_stands(self: &Rc<Self>, file: FileId, deadline: Nanos) -> Result<(), Failure> {
        while !self.is_announced(file) {
            self.start_announcement(file)?;
            // Making room, before, may have taken all of its time and more.
            let limit = deadline.max(self.reactor.now() + self.options.timeout);
            self.wait_for_announcement(file, limit).await?;
        }
        Ok(())
    }

    /// Whether this server has done its part of a change that a file's home numbered, or of a later one.
    pub fn is_change_done(&self, file: FileId, number: u64) -> bool {
        self.tables.borrow().changes.get(&file.0).is_some_and(|done| *done >= number)
    }
}
