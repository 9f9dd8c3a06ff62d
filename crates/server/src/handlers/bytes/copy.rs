//! CopyRange: the server of the target's chunk fetches bytes from that of the source's and writes them, as one change.

use crate::core::{Caller, Core, Failure, Turn, Turns, until};
use crate::handlers::bytes::holders::{fill, own_writes_soon};
use crate::handlers::bytes::read_write::{Step, check_layout_of, piece_end, reply_of, write_pieces};
use crate::handlers::{EncodedParams, Progress, later};
use reactor::Nanos;
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use wire::layout::ChunkRange;
use wire::limits::{COPY_SIZE_MAX, FILE_SIZE_MAX};
use wire::messages::{CopyRangeRequest, DataRequest, Pieces, ReadReply};
use wire::{Decode, FileId, Layout, Operation, Status};

/// Copies whose bytes are in memory at a time; others wait for their turn.
pub const COPY_COUNT_MAX: u64 = 32;

/// Copies between servers, whose bytes take memory while they are under way.
#[derive(Default)]
pub struct Copies {
    turns: Turns,
    /// Copies so far.
    count: Cell<u64>,
    /// When one ended well last.
    ended: Cell<Nanos>,
}

impl Copies {
    /// The queue of one more copy.
    fn next_queue(&self) -> u64 {
        self.count.replace(self.count.get() + 1) % COPY_COUNT_MAX
    }
}

/// How often bytes are fetched that were changed on their way.
const ATTEMPTS_MAX: u32 = 3;

pub fn copy_range(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let request = CopyRangeRequest::from_bytes(params)?;
    check(core, &request)?;
    let (core, mut caller) = (core.clone(), caller.clone());
    let queue = core.copies.next_queue();
    later(async move {
        let _turn = take_turn(&core, queue, caller.deadline).await?;
        // However long that took, its own time begins.
        caller.deadline = caller.deadline.max(core.reactor.now() + core.options.timeout);
        let (bytes, sum) = fetch(&core, &request).await?;
        let target = DataRequest {
            file: request.target,
            layout: request.target_layout,
            pieces: Pieces(vec![request.to]),
            sums: Vec::new(),
        };
        if core.cluster.home_of(request.target) == Some(core.index) {
            let tables = core.tables.borrow();
            check_layout_of(tables.inodes.get(request.target).as_ref(), request.target, &request.target_layout)?;
        }
        let mut writes = own_writes_soon(&core, request.target, &request.target_layout, &[request.to]).await?;
        fill(&writes[0], &bytes);
        sum.inspect(|sum| writes[0].keep_sum(*sum));
        let steps = vec![Step { writes, end: 1 }];
        let reply = write_pieces(&core, &caller, &target, steps, |end| reply_of(&core, end)).await?;
        core.copies.ended.set(core.reactor.now());
        Ok(EncodedParams(reply))
    })
}

/// Waits for a turn. Who has it may have to wait for room, which takes as long as changes take to go behind: the
/// time-out counts from when room was made or a copy ended well.
async fn take_turn(core: &Rc<Core>, queue: u64, deadline: Nanos) -> Result<Turn, Failure> {
    let mut turn = pin!(core.copies.turns.take(queue));
    let mut limit = deadline;
    loop {
        if let Some(turn) = until(&core.reactor, limit, turn.as_mut()).await {
            return Ok(turn);
        }
        let now = core.reactor.now();
        let gone_on = if core.is_making_room() { now } else { core.copies.ended.get() };
        limit = gone_on + core.options.timeout;
        if limit <= now {
            return Err(Failure::with_text(Status::TimedOut, "other copies take long"));
        }
    }
}

fn check(core: &Core, request: &CopyRangeRequest) -> Result<(), Failure> {
    check_piece(core, request.source, &request.source_layout, &request.from)?;
    check_piece(core, request.target, &request.target_layout, &request.to)?;
    if request.from.size != request.to.size || request.to.size > COPY_SIZE_MAX {
        return Err(Failure::with_text(Status::BadMessage, "a copy is too large or its sides differ in size"));
    }
    if core.cluster.chunk_server(request.target, &request.target_layout, request.to.chunk_index) != core.index {
        return Err(Status::WrongServer.into());
    }
    Ok(())
}

fn check_piece(core: &Core, file: FileId, layout: &Layout, piece: &ChunkRange) -> Result<(), Failure> {
    core.check_layout(layout)?;
    if core.cluster.home_of(file).is_none() {
        return Err(Failure::with_text(Status::BadMessage, "file id is out of range"));
    }
    if piece.size == 0 || u64::from(piece.chunk_offset) + u64::from(piece.size) > u64::from(layout.chunk_size) {
        return Err(Failure::with_text(Status::BadMessage, "a piece is empty or leaves its chunk"));
    }
    match piece_end(piece, layout.chunk_size) {
        Some(end) if end <= FILE_SIZE_MAX => Ok(()),
        _ => Err(Status::TooLarge.into()),
    }
}

/// The bytes of the source, with zeros where nothing was written, and the checksum that is kept there.
async fn fetch(core: &Rc<Core>, request: &CopyRangeRequest) -> Result<(Vec<u8>, Option<u32>), Failure> {
    let (file, layout, from) = (request.source, request.source_layout, request.from);
    let server = core.cluster.chunk_server(file, &layout, from.chunk_index);
    if server == core.index {
        if core.cluster.home_of(file) == Some(core.index) {
            check_layout_of(core.tables.borrow().inodes.get(file).as_ref(), file, &layout)?;
        }
        let read = || core.store.read(file.0, from.chunk_index, from.chunk_offset, from.size);
        let read = core.with_room(read).await?;
        let mut bytes = Vec::with_capacity(from.size as usize);
        read.append_to(&mut bytes);
        return Ok((bytes, read.sum));
    }
    let read = DataRequest { file, layout, pieces: Pieces(vec![from]), sums: Vec::new() };
    for _ in 0..ATTEMPTS_MAX {
        let (ReadReply { sums, .. }, bytes) = core.peers.fetch(server, Operation::FetchChunks, &read).await?;
        let bytes = whole(server, from.size, bytes)?;
        let sum = sums.first().copied();
        if sum.is_none_or(|sum| sum == crc32c::crc32c(&bytes)) {
            return Ok((bytes, sum));
        }
    }
    Err(Failure::with_text(Status::Damaged, format!("bytes that server {server} sent came with another checksum")))
}

/// All bytes that a server was asked for.
fn whole(server: u32, size: u32, mut bytes: Vec<u8>) -> Result<Vec<u8>, Failure> {
    if bytes.len() > size as usize {
        return Err(Failure::with_text(Status::Io, format!("server {server} sent more bytes than it was asked for")));
    }
    // A server leaves out the zeros at the end.
    bytes.resize(size as usize, 0);
    Ok(bytes)
}
