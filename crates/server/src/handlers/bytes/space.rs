//! Allocated: what files take on this server's medium, for du(1). It is not among the attributes, for then stat would
//! have to ask all servers with chunks of a file.

use crate::core::{Core, Failure};
use crate::handlers::Progress;
use crate::store::LOOK_COUNT_MAX;
use wire::messages::{ALLOCATED_COUNT_MAX, AllocatedReply, AllocatedRequest};
use wire::{Decode, Encode, Status};

pub fn allocated(core: &Core, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let AllocatedRequest { files, from_chunk } = AllocatedRequest::from_bytes(params)?;
    if files.is_empty() || files.len() > ALLOCATED_COUNT_MAX {
        return Err(Failure::with_text(Status::BadMessage, "it names no file, or too many"));
    }
    let mut told = AllocatedReply { bytes: Vec::with_capacity(files.len()), next_chunk: 0 };
    let (mut left, mut from) = (LOOK_COUNT_MAX, from_chunk);
    for file in files {
        let (bytes, next) = core.store.allocated(file.0, std::mem::take(&mut from), &mut left);
        told.bytes.push(bytes);
        if let Some(next) = next {
            told.next_chunk = next;
            break;
        }
    }
    told.encode(reply);
    Ok(Progress::Done)
}
