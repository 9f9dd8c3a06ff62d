//! Seek: the first data or hole among this server's chunks of a file. The caller takes the least of all servers.

use crate::core::{Core, Failure};
use crate::handlers::Progress;
use crate::store::LOOK_COUNT_MAX;
use wire::limits::FILE_SIZE_MAX;
use wire::messages::{SeekReply, SeekRequest};
use wire::{Decode, Encode, Kind, Status};

/// Chunk indexes of all servers that one look for a hole counts through at most.
const INDEX_COUNT_MAX: u64 = 1 << 16;

pub fn seek(core: &Core, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = SeekRequest::from_bytes(params)?;
    core.check_layout(&request.layout)?;
    if request.offset > FILE_SIZE_MAX {
        return Err(Status::TooLarge.into());
    }
    if core.cluster.home_of(request.file) == Some(core.index) && core.inode(request.file)?.attributes.kind != Kind::File
    {
        return Err(Status::Invalid.into());
    }
    let (found, exact) = match request.hole {
        true => next_hole(core, &request),
        false => {
            let (found, exact) = core.store.next_data(request.file.0, request.offset);
            // What is behind counts as data, whatever it is.
            match core.next_absent(request.file, &request.layout, request.offset) {
                Some(absent) if found.is_none_or(|found| absent <= found) => (Some(absent), true),
                _ => (found, exact),
            }
        }
    };
    SeekReply { found, exact }.encode(reply);
    Ok(Progress::Done)
}

/// The first hole in a chunk that belongs here. One is always there, for at some index this server has no chunk.
fn next_hole(core: &Core, request: &SeekRequest) -> (Option<u64>, bool) {
    let SeekRequest { file, layout, offset, .. } = *request;
    let chunk_size = u64::from(layout.chunk_size);
    let (first, within) = (offset / chunk_size, (offset % chunk_size) as u32);
    let mut looked = 0;
    for index in first..first + INDEX_COUNT_MAX {
        if index.saturating_mul(chunk_size) > FILE_SIZE_MAX {
            return (None, true);
        }
        if core.cluster.chunk_server(file, &layout, index) != core.index {
            continue;
        }
        let from = if index == first { within } else { 0 }.max(core.absent_end(file, index));
        if from == layout.chunk_size {
            continue;
        }
        if let Some(byte) = core.store.next_hole(file.0, index, layout.chunk_size, from) {
            return (Some(index * chunk_size + u64::from(byte)), true);
        }
        looked += 1;
        if looked == LOOK_COUNT_MAX {
            return (Some((index + 1).saturating_mul(chunk_size)), false);
        }
    }
    (Some((first + INDEX_COUNT_MAX).saturating_mul(chunk_size)), false)
}
