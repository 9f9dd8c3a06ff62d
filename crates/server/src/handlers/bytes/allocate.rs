//! Allocate: room for bytes to come, holes, zeros, and the growth of a file that goes with them.
//!
//! A client asks each server with chunks in the range, exactly once by its session, and the home for the growth when
//! all others have done their parts. Each does what concerns it in one journal record with the outcome, so that a
//! request sent again never takes away what was written since, and a client that dies leaves a part of its wish, which
//! harms nobody: a hole or room in some of the chunks.

use crate::core::{Caller, Core, Failure};
use crate::files::rights::drop_for_contents;
use crate::handlers::bytes::holders::Rounds;
use crate::handlers::bytes::read_write::check_layout_of;
use crate::handlers::{Progress, later};
use crate::journal::records::Record;
use crate::store::Hole;
use std::rc::Rc;
use wire::limits::{ALLOCATE_CHUNK_COUNT_MAX, FILE_SIZE_MAX};
use wire::messages::{AllocateRequest, allocate_mode};
use wire::{Decode, Status};

/// A range of one of this server's chunks: index and bytes.
type ChunkPart = (u64, std::ops::Range<u32>);

pub fn allocate(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = AllocateRequest::from_bytes(params)?;
    let is_home = check(core, &request)?;
    let parts = parts_of(core, &request)?;
    let touches = match request.mode {
        allocate_mode::PUNCH => core.store.share(request.file.0).is_some(),
        _ => !parts.is_empty(),
    };
    if is_home && let Some(leased) = core.read_lease_end(request.file) {
        return Ok(Progress::Blocked(leased));
    }
    if is_home || !touches {
        match perform(core, caller, &request, &parts, is_home, touches) {
            Err(failure) if core.may_gain_room(&failure) => {}
            result => {
                *reply = result?;
                return Ok(Progress::Done);
            }
        }
    }
    let (core, caller) = (core.clone(), caller.clone());
    later(async move {
        let mut rounds = Rounds::default();
        loop {
            if !is_home && touches {
                core.announce_until_stands(request.file, caller.deadline).await?;
            }
            if is_home {
                core.wait_for_read_leases(request.file).await;
            }
            match perform(&core, &caller, &request, &parts, is_home, touches) {
                Err(failure) => rounds.next(&core, failure).await?,
                Ok(reply) => return Ok(crate::handlers::EncodedParams(reply)),
            }
        }
    })
}

/// Checks what a client sent; says whether this is the file's home.
fn check(core: &Core, request: &AllocateRequest) -> Result<bool, Failure> {
    core.check_layout(&request.layout)?;
    if request.size == 0 || request.mode > allocate_mode::GROW {
        return Err(Failure::with_text(Status::Invalid, "the range is empty or the mode is unknown"));
    }
    if request.offset.checked_add(request.size).is_none_or(|end| end > FILE_SIZE_MAX) {
        return Err(Status::TooLarge.into());
    }
    match core.cluster.home_of(request.file) {
        None => Err(Failure::with_text(Status::BadMessage, "file id is out of range")),
        Some(home) if home == core.index => {
            check_layout_of(core.tables.borrow().inodes.get(request.file).as_ref(), request.file, &request.layout)?;
            Ok(true)
        }
        Some(_) if request.grow || request.mode == allocate_mode::GROW => Err(Status::WrongServer.into()),
        Some(_) => Ok(false),
    }
}

/// This server's part of the range, chunk by chunk, where the mode needs that. Errors: `Invalid` when they are too
/// many.
fn parts_of(core: &Core, request: &AllocateRequest) -> Result<Vec<ChunkPart>, Failure> {
    let mut parts = Vec::new();
    if !matches!(request.mode, allocate_mode::RESERVE | allocate_mode::ZERO) {
        return Ok(parts);
    }
    let servers = core.cluster.server_count() as usize;
    for (count, piece) in request.layout.pieces(request.offset, request.size).enumerate() {
        let is_ours = core.cluster.chunk_server(request.file, &request.layout, piece.chunk_index) == core.index;
        if is_ours {
            parts.push((piece.chunk_index, piece.chunk_offset..piece.chunk_offset + piece.size));
        }
        // Who asks for more than a few chunks of each server asks in several requests.
        if parts.len() > ALLOCATE_CHUNK_COUNT_MAX || count > ALLOCATE_CHUNK_COUNT_MAX * 64 * servers {
            return Err(Failure::with_text(Status::Invalid, "the range has too many chunks for one request"));
        }
    }
    Ok(parts)
}

fn perform(
    core: &Rc<Core>,
    caller: &Caller,
    request: &AllocateRequest,
    parts: &[ChunkPart],
    is_home: bool,
    touches: bool,
) -> Result<Vec<u8>, Failure> {
    let file = request.file;
    let (start, end) = (request.offset, request.offset + request.size);
    let now = core.clock.time();
    let cuts = touches && matches!(request.mode, allocate_mode::PUNCH | allocate_mode::ZERO);
    let mut transaction = core.store.begin();
    if touches && matches!(request.mode, allocate_mode::RESERVE | allocate_mode::ZERO) {
        for (index, bytes) in parts {
            let chunk_size = request.layout.chunk_size;
            core.store.reserve_pages(file.0, *index, chunk_size, bytes.clone(), &mut transaction);
        }
    }
    if cuts {
        if request.mode == allocate_mode::ZERO {
            // Room first, which changes nothing that anybody sees. Nothing else runs before the zeros.
            core.commit(std::mem::replace(&mut transaction, core.store.begin()), [])?;
        }
        let keep_pages = request.mode == allocate_mode::ZERO;
        core.store.punch(Hole { file: file.0, start, end, keep_pages, mtime: now }, &mut transaction);
    }
    let mut reply = Vec::with_capacity(8);
    let mut inode = None;
    if is_home {
        let mut changed = core.inode(file)?;
        let attributes = &mut changed.attributes;
        let grows = request.grow && attributes.size < end;
        if grows {
            attributes.size = end;
        }
        reply.extend(crate::handlers::bytes::read_write::reply_of(core, attributes.size));
        if grows || cuts {
            drop_for_contents(attributes, caller.credentials());
            attributes.mtime = now;
            attributes.ctime = now;
            attributes.version += 1;
            inode = Some(changed);
        }
    } else {
        reply.extend(crate::handlers::bytes::read_write::reply_of(
            core,
            core.store.share(file.0).map_or(0, |share| share.end),
        ));
    }
    let inode = inode.map_or(Record::Nothing, Record::InodePut);
    core.commit(transaction, [inode, caller.outcome(&reply)])?;
    Ok(reply)
}
