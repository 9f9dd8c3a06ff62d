//! Read and Write: bytes between chunks and the wire, without a copy of our own.

use crate::core::{Caller, Core, Failure};
use crate::files::inodes::Inode;
use crate::handlers::bytes::append::grown;
use crate::journal::records::Record;
use crate::store::{ChunkRead, ChunkWrite, Piece, StoreError};
use reactor::{BodyPiece, Disconnected, Incoming, ReplyBody, Span};
use std::collections::BTreeMap;
use std::rc::Rc;
use wire::layout::ChunkRange;
use wire::limits::{BODY_SIZE_MAX, FILE_SIZE_MAX};
use wire::messages::{
    BytePlace, DataRequest, LocateReply, OPEN_PLACE_COUNT_MAX, PLACE_COUNT_MAX, ReadReply, WriteReply,
};
use wire::{Attributes, Decode, Encode, FileId, Kind, Layout, Status};

/// Why a write has no reply.
pub enum WriteEnd {
    Failed(Failure),
    /// The connection ended before the body was there: nothing happened.
    Disconnected,
}

impl<E: Into<Failure>> From<E> for WriteEnd {
    fn from(error: E) -> Self {
        WriteEnd::Failed(error.into())
    }
}

/// Checks that all pieces are ranges of chunks that live here; returns the sum of their sizes.
pub fn check(core: &Core, request: &DataRequest) -> Result<usize, Failure> {
    let layout = &request.layout;
    core.check_layout(layout)?;
    if core.cluster.home_of(request.file).is_none() {
        return Err(Failure::with_text(Status::BadMessage, "file id is out of range"));
    }
    let mut total = 0usize;
    for piece in &request.pieces.0 {
        if piece.size == 0 || u64::from(piece.chunk_offset) + u64::from(piece.size) > u64::from(layout.chunk_size) {
            return Err(Failure::with_text(Status::BadMessage, "a piece is empty or leaves its chunk"));
        }
        if piece_end(piece, layout.chunk_size).is_none_or(|end| end > FILE_SIZE_MAX) {
            return Err(Status::TooLarge.into());
        }
        if core.cluster.chunk_server(request.file, layout, piece.chunk_index) != core.index {
            return Err(Status::WrongServer.into());
        }
        total += piece.size as usize;
    }
    if total > BODY_SIZE_MAX {
        return Err(Failure::with_text(Status::TooLarge, "the pieces together are larger than a message's body"));
    }
    Ok(total)
}

/// End of a piece as an offset in the file.
pub fn piece_end(piece: &ChunkRange, chunk_size: u32) -> Option<u64> {
    let start = piece.chunk_index.checked_mul(u64::from(chunk_size))?;
    start.checked_add(u64::from(piece.chunk_offset) + u64::from(piece.size))
}

/// Whether a request fits the inode here, at the file's home.
pub fn check_inode(inode: Option<&Inode>, request: &DataRequest) -> Result<(), Failure> {
    check_layout_of(inode, request.file, &request.layout)
}

/// Whether a layout that a client names is that of the inode here, at the file's home.
pub fn check_layout_of(inode: Option<&Inode>, file: FileId, layout: &Layout) -> Result<(), Failure> {
    let inode = inode.ok_or_else(|| Failure::new(Status::StaleFile, file))?;
    if inode.attributes.kind != Kind::File {
        return Err(Status::IsDirectory.into());
    }
    if inode.attributes.layout.chunk_size != layout.chunk_size {
        return Err(Status::ChunkSizeMismatch.into());
    }
    if inode.attributes.layout != *layout {
        return Err(Failure::with_text(Status::Invalid, "the layout is not the file's"));
    }
    Ok(())
}

/// The pieces asked for, as spans of the store that stay as they are until they are sent.
pub fn read(core: &Core, params: &[u8]) -> Result<(ReadReply, ReplyBody), Failure> {
    let request = DataRequest::from_bytes(params)?;
    check(core, &request)?;
    let chunk_size = request.layout.chunk_size;
    let mut reply = ReadReply { complete: true, size: None, sums: Vec::new() };
    // The home knows that everything below its size exists, be it a hole.
    let mut known_size = 0;
    if core.cluster.home_of(request.file) == Some(core.index) {
        let tables = core.tables.borrow();
        let inode = tables.inodes.get(request.file);
        check_inode(inode.as_ref(), &request)?;
        if let Some(inode) = inode {
            known_size = inode.attributes.size;
            reply.size = (!inode.is_announced()).then_some(known_size);
        }
    }
    let mut reads: Vec<ChunkRead> = Vec::with_capacity(request.pieces.0.len());
    let mut pieces = Vec::with_capacity(request.pieces.0.len());
    for piece in &request.pieces.0 {
        let read = match core.store.read(request.file.0, piece.chunk_index, piece.chunk_offset, piece.size) {
            Err(StoreError::Absent(_)) => {
                let all = request.pieces.0.iter().map(|piece| (piece.chunk_index, piece.chunk_offset, piece.size));
                return Err(core.store.absent_pages(request.file.0, all).into());
            }
            read => read?,
        };
        let within = piece.chunk_offset + piece.size <= read.valid_end;
        reply.sums.extend(read.sum);
        reply.complete &= within || piece_end(piece, chunk_size).is_some_and(|end| end <= known_size);
        for part in &read.pieces {
            pieces.push(match part {
                Piece::Bytes(span) => BodyPiece::Span(span.clone()),
                Piece::Zero(size) => BodyPiece::Zero(*size as usize),
            });
        }
        reads.push(read);
    }
    // Who asks beyond the end of a file need not be sent zeros, and they are no bytes that were read.
    while matches!(pieces.last(), Some(BodyPiece::Zero(_))) {
        pieces.pop();
    }
    Ok((reply, ReplyBody { pieces, guard: Some(Box::new(reads)) }))
}

/// Where all bytes of the chunks are that the pieces asked for are in, for a client that reads by short circuit.
pub fn locate_bytes(core: &Core, params: &[u8]) -> Result<(LocateReply, ReplyBody), Failure> {
    let request = DataRequest::from_bytes(params)?;
    check(core, &request)?;
    if core.cluster.home_of(request.file) == Some(core.index) {
        check_inode(core.tables.borrow().inodes.get(request.file).as_ref(), &request)?;
    }
    let mut reply = LocateReply { number: 0, places: Vec::new() };
    let Some(shared) = core.shared() else { return Ok((reply, ReplyBody::default())) };
    reply.number = shared.number();
    let mut chunks: Vec<u64> = request.pieces.0.iter().map(|piece| piece.chunk_index).collect();
    chunks.sort_unstable();
    chunks.dedup();
    for chunk in chunks {
        let of_chunk = places_of(core, request.file, chunk);
        if reply.places.len() + of_chunk.len() > PLACE_COUNT_MAX {
            break;
        }
        reply.places.extend(of_chunk);
    }
    Ok((reply, ReplyBody::default()))
}

/// Where the bytes of a file's first chunk are, for a client that opens it here, at its home, and reads by short
/// circuit.
pub fn locate_start(core: &Core, attributes: &Attributes) -> Option<LocateReply> {
    let shared = core.shared()?;
    if core.cluster.chunk_server(attributes.id, &attributes.layout, 0) != core.index {
        return None;
    }
    let places = places_of(core, attributes.id, 0);
    let is_handy = (1..=OPEN_PLACE_COUNT_MAX).contains(&places.len());
    is_handy.then(|| LocateReply { number: shared.number(), places })
}

fn places_of(core: &Core, file: FileId, chunk: u64) -> Vec<BytePlace> {
    let mut places = Vec::new();
    core.store.places(file.0, chunk, |place| {
        places.push(BytePlace { chunk, offset: place.offset, size: place.size, at: place.at });
    });
    places
}

/// Receives a body into fresh space and makes it live in one step.
pub async fn write(core: &Rc<Core>, caller: &Caller, incoming: &mut Incoming) -> Result<Vec<u8>, WriteEnd> {
    let request = DataRequest::from_bytes(&incoming.params).map_err(Failure::from)?;
    if check(core, &request)? != incoming.body_size() {
        return Err(Failure::with_text(Status::BadMessage, "the body is not as long as its pieces").into());
    }
    let is_home = core.cluster.home_of(request.file) == Some(core.index);
    if is_home {
        check_inode(core.tables.borrow().inodes.get(request.file).as_ref(), &request)?;
    } else {
        // The announcement travels while the body arrives.
        core.start_announcement(request.file)?;
    }
    // What an earlier life of this server has made live others may have written over since.
    let done = match caller.origin {
        Some(origin) if request.pieces.0.len() > 1 => {
            (core.tables.borrow().sessions.pieces_done(origin) as usize).min(request.pieces.0.len() - 1)
        }
        _ => 0,
    };
    let mut reserved = core.with_room(|| Reserved::new(core, &request, done)).await?;
    core.pin_writes(reserved.steps.iter_mut().flat_map(|step| &mut step.writes)).await?;
    let places = reserved.places();
    incoming.receive_body(&places).await.map_err(|Disconnected| WriteEnd::Disconnected)?;
    drop(places);
    reserved.verify_sums(core, &request.sums)?;
    let mut steps = reserved.steps;
    steps.retain(|step| done == 0 || step.end > done);
    let reply = write_pieces(core, caller, &request, steps, |end| reply_of(core, end)).await?;
    core.invite_writes(caller.peer.queue, request.file);
    Ok(reply)
}

/// The reply of a write after which the file is as long as that.
pub fn reply_of(core: &Core, end: u64) -> Vec<u8> {
    WriteReply { end, keeps_sums: core.store.keeps_sums() }.to_bytes()
}

/// Checks that bytes which have arrived are those that were sent, where checksums are kept; each write has one part.
/// Errors: `Damaged`; then nothing is kept.
pub fn verify_sums(core: &Core, writes: &mut [ChunkWrite], sums: &[u32]) -> Result<(), Failure> {
    if !core.store.keeps_sums() {
        return Ok(());
    }
    if sums.len() != writes.len() {
        return Err(Failure::with_text(Status::Damaged, "the bytes came without their checksums"));
    }
    match writes.iter_mut().zip(sums).all(|(write, sum)| write.verify(0, *sum)) {
        true => Ok(()),
        false => Err(Failure::with_text(Status::Damaged, WRONG_SUM_WORDS)),
    }
}

/// What one commit makes live of a request's pieces: those up to `end`, those of a chunk as one change.
pub struct Step {
    pub writes: Vec<ChunkWrite>,
    pub end: usize,
}

/// Space for the pieces of a request, before the first byte of the body is taken.
struct Reserved {
    steps: Vec<Step>,
    /// The step, write and part that each piece is, unless they are in the order of the pieces.
    order: Option<Vec<PieceRoom>>,
}

#[derive(Clone, Copy, Default)]
struct PieceRoom {
    step: usize,
    write: usize,
    part: usize,
}

impl Reserved {
    /// `done` pieces are live; they get space where their bytes arrive, and no more comes of them.
    fn new(core: &Core, request: &DataRequest, done: usize) -> Result<Reserved, StoreError> {
        let pieces = &request.pieces.0;
        let parts_max = core.store.parts_max();
        if done == 0 && pieces.len() <= parts_max && pieces.is_sorted_by(is_apart) {
            let writes = reserve_sorted(core, request, pieces.iter())?;
            return Ok(Reserved { steps: vec![Step { writes, end: pieces.len() }], order: None });
        }
        let mut order = vec![PieceRoom::default(); pieces.len()];
        let mut steps = Vec::new();
        let mut start = 0;
        while start < pieces.len() {
            let limit = if start < done { done } else { pieces.len() };
            let numbers = step_from(&pieces[..limit.min(start + parts_max)], start);
            let mut room = PieceRoom { step: steps.len(), ..PieceRoom::default() };
            let mut before: Option<&ChunkRange> = None;
            for &number in &numbers {
                let piece = &pieces[number];
                match before.is_some_and(|before| before.chunk_index == piece.chunk_index) {
                    true => room.part += 1,
                    false => (room.write, room.part) = (before.map_or(0, |_| room.write + 1), 0),
                }
                order[number] = room;
                before = Some(piece);
            }
            let writes = reserve_sorted(core, request, numbers.iter().map(|number| &pieces[*number]))?;
            start += numbers.len();
            steps.push(Step { writes, end: start });
        }
        Ok(Reserved { steps, order: Some(order) })
    }

    /// Where the body belongs.
    fn places(&self) -> Vec<Span> {
        match &self.order {
            None => self.steps.iter().flat_map(|step| &step.writes).flat_map(|write| &write.places).cloned().collect(),
            Some(order) => {
                let places_of = |room: &PieceRoom| self.steps[room.step].writes[room.write].places_of(room.part);
                order.iter().flat_map(places_of).cloned().collect()
            }
        }
    }

    /// As the function of that name, for all pieces.
    fn verify_sums(&mut self, core: &Core, sums: &[u32]) -> Result<(), Failure> {
        if !core.store.keeps_sums() {
            return Ok(());
        }
        let order = self.order.take().unwrap_or_else(|| {
            let writes = self.steps[0].writes.iter().enumerate();
            let parts = |(write, of): (usize, &ChunkWrite)| {
                (0..of.part_count()).map(move |part| PieceRoom { step: 0, write, part })
            };
            writes.flat_map(parts).collect()
        });
        if sums.len() != order.len() {
            return Err(Failure::with_text(Status::Damaged, "the bytes came without their checksums"));
        }
        let is_right =
            |(room, sum): (&PieceRoom, &u32)| self.steps[room.step].writes[room.write].verify(room.part, *sum);
        match order.iter().zip(sums).all(is_right) {
            true => Ok(()),
            false => Err(Failure::with_text(Status::Damaged, WRONG_SUM_WORDS)),
        }
    }
}

const WRONG_SUM_WORDS: &str = "bytes of a write came with another checksum than they have";

/// Whether a piece lies behind another one, in its chunk or a later one.
fn is_apart(one: &ChunkRange, next: &ChunkRange) -> bool {
    (one.chunk_index, u64::from(one.chunk_offset) + u64::from(one.size)) <= (next.chunk_index, next.chunk_offset.into())
}

/// The numbers of the pieces from `start` on, up to the first that has a byte of another one of them, in the order of
/// chunks and offsets.
fn step_from(pieces: &[ChunkRange], start: usize) -> Vec<usize> {
    let mut sorted: BTreeMap<(u64, u32), usize> = BTreeMap::new();
    for (number, piece) in pieces.iter().enumerate().skip(start) {
        let place = (piece.chunk_index, piece.chunk_offset);
        let before = sorted.range(..=place).next_back().map(|(_, before)| &pieces[*before]);
        let behind = sorted.range(place..).next().map(|(_, behind)| &pieces[*behind]);
        if before.is_some_and(|before| !is_apart(before, piece))
            || behind.is_some_and(|behind| !is_apart(piece, behind))
        {
            break;
        }
        sorted.insert(place, number);
    }
    sorted.into_values().collect()
}

/// Space for pieces in the order of chunks and offsets.
fn reserve_sorted<'p>(
    core: &Core,
    request: &DataRequest,
    pieces: impl Iterator<Item = &'p ChunkRange>,
) -> Result<Vec<ChunkWrite>, StoreError> {
    let (file, chunk_size) = (request.file.0, request.layout.chunk_size);
    let mut writes = Vec::new();
    let mut pieces = pieces.peekable();
    while let Some(first) = pieces.next() {
        let index = first.chunk_index;
        let mut next = || pieces.next_if(|next| next.chunk_index == index);
        writes.push(match next() {
            None => core.store.reserve_write(file, index, chunk_size, first.chunk_offset, first.size)?,
            Some(second) => {
                let parts = [first, second].into_iter().chain(std::iter::from_fn(next));
                let parts = parts.map(|piece| (piece.chunk_offset, piece.size));
                core.store.reserve_parts((file, index), chunk_size, parts)?
            }
        });
    }
    Ok(writes)
}

/// Makes writes whose bytes are there live, with what follows for the file, and returns the reply, which tells the
/// file's size. Where pieces have bytes in common, or are very many for the journal, this takes several steps, each of
/// which says how far it has come, and the last has the outcome.
pub async fn write_pieces(
    core: &Rc<Core>,
    caller: &Caller,
    request: &DataRequest,
    steps: Vec<Step>,
    reply_of: impl FnOnce(u64) -> Vec<u8>,
) -> Result<Vec<u8>, Failure> {
    let pieces = &request.pieces.0;
    let (mut seen, mut written_end) = (0, 0);
    let mut steps = steps.into_iter().peekable();
    while let Some(Step { mut writes, end: next }) = steps.next() {
        until_ready(core, caller, request.file, &mut writes).await?;
        // From here to the commit nothing is awaited.
        let ends = pieces[seen..next].iter().filter_map(|piece| piece_end(piece, request.layout.chunk_size));
        (seen, written_end) = (next, ends.max().unwrap_or(0).max(written_end));
        let (mut inode, mut now, mut end) = (Record::Nothing, core.clock.time(), written_end);
        if core.cluster.home_of(request.file) == Some(core.index) {
            let before = core.inode(request.file)?;
            check_inode(Some(&before), request)?;
            // Each step takes the size along: no bytes lie beyond it.
            let after = grown(core, before, end, Some(caller.credentials()));
            (end, now) = (after.attributes.size, after.attributes.mtime);
            inode = Record::InodePut(after);
        } else {
            end = end.max(core.store.share(request.file.0).map_or(0, |share| share.end));
        }
        let mut transaction = core.store.begin();
        for write in writes {
            core.store.commit_write(write, &mut transaction, now)?;
        }
        if steps.peek().is_none() {
            let reply = reply_of(end);
            core.commit(transaction, [inode, caller.outcome(&reply)])?;
            return Ok(reply);
        }
        core.commit(transaction, [inode, caller.steps_done(next)])?;
    }
    unreachable!("the last step is never noted as done")
}

/// Returns when writes whose bytes are there may be committed, with whatever a commit may have to wait for: room in the
/// journal, and all that `until_writes_stand` says. That holds until the next await.
async fn until_ready(core: &Rc<Core>, caller: &Caller, file: FileId, writes: &mut [ChunkWrite]) -> Result<(), Failure> {
    loop {
        core.until_journal_has_room(entry_size(core, writes), caller.deadline).await?;
        core.await_recalled_entries(caller).await?;
        core.until_writes_stand(file, writes, caller.deadline).await?;
        // Others that waited as well may have used the room up.
        if !core.waits_for_journal(entry_size(core, writes)) {
            return Ok(());
        }
    }
}

/// Bytes that the entries of writes take in a record at most, where they are several or have several parts; those of
/// one are few enough for what the journal has left whenever it is not low.
fn entry_size(core: &Core, writes: &[ChunkWrite]) -> usize {
    match writes {
        [] => 0,
        [only] if only.part_count() == 1 => 0,
        several => core.store.entry_size(several),
    }
}
