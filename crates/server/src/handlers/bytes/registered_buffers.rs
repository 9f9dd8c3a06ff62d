//! Writes of clients of this machine that copy their bytes into registered pages by themselves
//! (docs/shared-memory.md): giving the pages out, and making what is in them live.

use crate::core::{Caller, Core, Failure};
use crate::handlers::Progress;
use crate::handlers::bytes::append::grown;
use crate::handlers::bytes::read_write::{Step, WriteEnd, check, check_inode, piece_end, write_pieces};
use crate::journal::records::Record;
use crate::process::statistics::waits::Asker;
use crate::store::{ChunkWrite, HeldPages, Holder, PAGE_SIZE, RegisteredRun};
use reactor::{Class, Incoming, Nanos};
use std::rc::Rc;
use wire::layout::ChunkRange;
use wire::messages::{
    BUFFER_COUNT_MAX, CommitRegisteredReply, CommitRegisteredRequest, DataRequest, Pieces, REGISTERED_PIECE_COUNT_MAX,
    RegisterBuffersReply, RegisterBuffersRequest, RegisteredPlace,
};
use wire::submission::{ByteTransfer, SUBMITTED_CHUNK_SIZE_MAX, SubmittedBytes, WriteOrder, Written};
use wire::{Decode, Encode, FileId, Operation, Status};

/// Times after which it is looked whether what somebody had who has gone is still mapped; later whenever space is asked
/// for.
const LOOKS_NS: [Nanos; 5] = [1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000];

/// `RegisterBuffers`: takes back what the client has unmapped, and gives it pages.
pub fn register(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = RegisterBuffersRequest::from_bytes(params)?;
    if request.returned.len() > BUFFER_COUNT_MAX {
        return Err(Failure::with_text(Status::BadMessage, "too many buffers are given back at once"));
    }
    let connection = caller.peer.connection;
    request.returned.iter().for_each(|generation| core.store.end_buffer(connection, *generation));
    let wanted = u32::try_from(request.size / PAGE_SIZE).unwrap_or(u32::MAX);
    let mut answer = RegisterBuffersReply { generation: 0, at: 0, size: 0 };
    if let Some(mapping_lock) = caller.peer.mapping_lock.as_ref().filter(|_| wanted > 0) {
        let holder = Holder { connection, mapping_lock: mapping_lock.0.clone() };
        if let Some(run) = core.store.register_buffer(&holder, core.next_number()?, wanted) {
            let (at, size) = (u64::from(run.start) * PAGE_SIZE, u64::from(run.pages) * PAGE_SIZE);
            answer = RegisterBuffersReply { generation: run.generation, at, size };
        }
    }
    answer.encode(reply);
    Ok(Progress::Done)
}

/// `CommitRegistered`: makes bytes that are in registered pages live in one step.
pub async fn commit_registered(core: &Rc<Core>, caller: &Caller, incoming: &mut Incoming) -> Result<Vec<u8>, WriteEnd> {
    let CommitRegisteredRequest { file, layout, pieces, places } =
        CommitRegisteredRequest::from_bytes(&incoming.params).map_err(Failure::from)?;
    if places.len() != pieces.0.len() || places.len() > REGISTERED_PIECE_COUNT_MAX {
        return Err(Failure::with_text(Status::BadMessage, "pieces and their places do not fit together").into());
    }
    if !pieces.0.is_sorted_by(|one, next| one.chunk_index < next.chunk_index) {
        return Err(Failure::with_text(Status::BadMessage, "the pieces are not in the order of their chunks").into());
    }
    let request = DataRequest { file, layout, pieces, sums: Vec::new() };
    let size = check(core, &request)?;
    let is_home = core.cluster.home_of(file) == Some(core.index);
    if is_home {
        check_inode(core.tables.borrow().inodes.get(file).as_ref(), &request)?;
    } else {
        core.start_announcement(file)?;
    }
    let Some(writes) = reserve(core, caller, &request, &places)? else {
        return Ok(CommitRegisteredReply { end: None }.to_bytes());
    };
    let reply_of = |end| CommitRegisteredReply { end: Some(end) }.to_bytes();
    let steps = vec![Step { writes, end: request.pieces.0.len() }];
    let reply = write_pieces(core, caller, &request, steps, reply_of).await?;
    let who = Asker { operation: Operation::CommitRegistered, job: caller.peer.tag.get() };
    core.statistics.arrived_by_themselves(who, file, size as u64);
    core.invite_writes(caller.peer.queue, file);
    Ok(reply)
}

/// Whose the pages are in which the bytes of a submitted write lie.
pub enum SubmittedSource {
    /// They were registered for this connection.
    Registered(u64),
    /// The write was submitted to an earlier life. Nothing if they do not lie in pages that were registered.
    Left(Option<HeldPages>),
}

/// Keeps the pages of a write that was submitted to an earlier life. To be called for all such writes before anything
/// is written: as far as this life knows the pages are free.
pub fn hold_left(core: &Core, written: &Written, bytes: &SubmittedBytes) -> Option<HeldPages> {
    let within = match written.transfer {
        ByteTransfer::Copy => 0,
        ByteTransfer::Swap => u64::from(written.chunk_offset) % PAGE_SIZE,
    };
    let first_page = u32::try_from(bytes.at / PAGE_SIZE).ok().filter(|_| bytes.at.is_multiple_of(PAGE_SIZE))?;
    core.store.hold_pages(first_page, (within + u64::from(bytes.size)).div_ceil(PAGE_SIZE) as u32)
}

/// A write that was submitted (docs/shared-memory.md) to a chunk that is here. Errors: `StaleFile` when the file is
/// not there any more; and it can't be done, which must not happen. `taken` says which submission it is.
pub fn write_submitted(
    core: &Rc<Core>,
    file: FileId,
    (written, bytes): (&Written, &SubmittedBytes),
    source: SubmittedSource,
    taken: Record<'_>,
) -> Result<(), Failure> {
    let piece = written.range(bytes.size);
    let request = DataRequest { file, layout: written.layout, pieces: Pieces(vec![piece]), sums: Vec::new() };
    check(core, &request)?;
    let is_home = core.cluster.home_of(file) == Some(core.index);
    if is_home {
        check_inode(core.tables.borrow().inodes.get(file).as_ref(), &request)?;
    }
    let chunk_size = request.layout.chunk_size;
    // What a file begins with is one record, however large its chunks are.
    let is_bounded = chunk_size <= SUBMITTED_CHUNK_SIZE_MAX || written.order == WriteOrder::IntentLock;
    if !is_bounded || !core.takes_writes(&core.tables.borrow(), file) {
        return Err(Failure::with_text(Status::Busy, "something has to be done before the file can be written to"));
    }
    let (key, range) = ((file.0, piece.chunk_index), (piece.chunk_offset, piece.size));
    let not_its_own = || Failure::with_text(Status::NotPermitted, "the bytes are not in its client's pages");
    let write = match (written.transfer, source) {
        (ByteTransfer::Swap, SubmittedSource::Registered(connection)) => {
            let place = RegisteredPlace { generation: bytes.generation, at: bytes.at };
            reserve_piece(core, connection, (file, chunk_size), &piece, &place)?.ok_or_else(not_its_own)?
        }
        (ByteTransfer::Swap, SubmittedSource::Left(held)) => {
            core.store.write_held(key, chunk_size, range, held.ok_or_else(not_its_own)?)?
        }
        (ByteTransfer::Copy, source) => {
            let is_its_own = match &source {
                SubmittedSource::Registered(connection) => {
                    core.store.is_registered(*connection, bytes.generation, bytes.at, bytes.size.into())
                }
                SubmittedSource::Left(held) => held.is_some(),
            };
            if !is_its_own {
                return Err(not_its_own());
            }
            let write = core.store.reserve_write(key.0, key.1, chunk_size, range.0, range.1)?;
            let mut at = bytes.at;
            for place in &write.places {
                place.region.copy_within(at, place.offset, place.size);
                at += place.size;
            }
            write
        }
    };
    let mut transaction = core.store.begin();
    // Who was told a time sees no earlier one, whenever this was submitted.
    match is_home {
        true => {
            let end = piece_end(&piece, chunk_size).ok_or(Status::TooLarge)?;
            let before = core.inode(file)?;
            let latest = before.attributes.ctime;
            let mut inode = grown(core, before, end, None);
            let attributes = &mut inode.attributes;
            attributes.ctime = attributes.ctime.max(latest);
            attributes.mtime = attributes.ctime;
            core.store.commit_write(write, &mut transaction, attributes.mtime)?;
            core.commit(transaction, [Record::InodePut(inode), taken])?;
        }
        false => {
            let latest = core.store.share(file.0).map_or(i64::MIN, |share| share.mtime);
            core.store.commit_write(write, &mut transaction, core.clock.time().max(latest))?;
            core.commit(transaction, [taken])?;
        }
    }
    Ok(())
}

/// What a submitted write counts as.
pub fn submitted_operation(written: &Written) -> Operation {
    match written.transfer {
        ByteTransfer::Copy => Operation::Write,
        ByteTransfer::Swap => Operation::CommitRegistered,
    }
}

/// Takes the pages of all pieces out of the caller's registered buffers. Nothing if some are not his to commit.
fn reserve(
    core: &Core,
    caller: &Caller,
    request: &DataRequest,
    places: &[RegisteredPlace],
) -> Result<Option<Vec<ChunkWrite>>, Failure> {
    let DataRequest { file, layout, pieces: Pieces(pieces), .. } = request;
    let mut writes = Vec::with_capacity(pieces.len());
    for (piece, place) in pieces.iter().zip(places) {
        match reserve_piece(core, caller.peer.connection, (*file, layout.chunk_size), piece, place)? {
            Some(write) => writes.push(write),
            None => return Ok(None),
        }
    }
    Ok(Some(writes))
}

/// The same for one piece, which lies within its chunk.
fn reserve_piece(
    core: &Core,
    connection: u64,
    (file, chunk_size): (FileId, u32),
    piece: &ChunkRange,
    place: &RegisteredPlace,
) -> Result<Option<ChunkWrite>, Failure> {
    let start = u32::try_from(place.at / PAGE_SIZE).ok().filter(|_| place.at.is_multiple_of(PAGE_SIZE));
    let Some(start) = start else { return Ok(None) };
    let first = u64::from(piece.chunk_offset) / PAGE_SIZE;
    let end = (u64::from(piece.chunk_offset) + u64::from(piece.size)).div_ceil(PAGE_SIZE);
    let run = RegisteredRun { generation: place.generation, start, pages: (end - first) as u32 };
    let bytes = (piece.chunk_offset, piece.size);
    Ok(core.store.reserve_registered((file.0, piece.chunk_index), chunk_size, bytes, connection, run)?)
}

/// A connection has ended, or a server begins after another life: what was registered then is free once nobody has it
/// mapped.
pub fn watch_buffers(core: &Rc<Core>) {
    if !core.store.end_unmapped_buffers() || !core.background.buffers.begin() {
        return;
    }
    let core = core.clone();
    core.reactor.clone().spawn(Class::Background, async move {
        for pause in LOOKS_NS {
            core.reactor.sleep(pause).await;
            if core.life.is_stopping() || !core.store.end_unmapped_buffers() {
                break;
            }
        }
        core.background.buffers.end();
    });
}
