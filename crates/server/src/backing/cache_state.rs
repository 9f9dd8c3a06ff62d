//! What of a file is here, and what behind: for `tabane status PATHS`, and `tabane evict`, which gives it up.

use super::table::Standing;
use crate::core::{Core, Failure};
use crate::handlers::Progress;
use std::rc::Rc;
use wire::messages::{CacheStateReply, CacheStateRequest};
use wire::{Decode, Encode};

/// Chunks that one request looks at, and gives up, at most.
const LOOKS_MAX: u64 = 16_384;
const EVICTIONS_MAX: u64 = 256;

/// What is to be said of a chunk.
enum ChunkKind {
    /// Changed here, and not behind yet.
    Dirty,
    /// Here and behind.
    Clean,
    /// Behind alone.
    Absent,
    /// Zeros, nowhere.
    Hole,
}

/// `CacheState`, at a server with chunks.
pub fn cache_state(core: &Rc<Core>, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = CacheStateRequest::from_bytes(params)?;
    core.check_backing()?;
    core.check_layout(&request.layout)?;
    let CacheStateRequest { file, layout, size, from, evicts } = request;
    let chunk_size = u64::from(layout.chunk_size);
    let chunk_count = size.div_ceil(chunk_size);
    let mut found = CacheStateReply { dirty: 0, clean: 0, absent: 0, evicted: 0, next: u64::MAX };
    let mut evictions = 0;
    for index in from..chunk_count {
        if index - from == LOOKS_MAX || evictions == EVICTIONS_MAX {
            found.next = index;
            break;
        }
        if core.cluster.chunk_server(file, &layout, index) != core.index {
            continue;
        }
        let bytes = (size - index * chunk_size).min(chunk_size);
        match core.chunk_kind(&request, index) {
            ChunkKind::Clean if evicts && core.evict_chunk(file, index)? => {
                (found.absent, found.evicted, evictions) = (found.absent + bytes, found.evicted + bytes, evictions + 1);
            }
            ChunkKind::Clean => found.clean += bytes,
            ChunkKind::Dirty => found.dirty += bytes,
            ChunkKind::Absent => found.absent += bytes,
            ChunkKind::Hole => {}
        }
    }
    found.encode(reply);
    Ok(Progress::Done)
}

impl Core {
    fn chunk_kind(&self, request: &CacheStateRequest, index: u64) -> ChunkKind {
        let (file, start) = (request.file, index * u64::from(request.layout.chunk_size));
        let end = start + u64::from(request.layout.chunk_size);
        let has_data = matches!(self.store.next_data(file.0, start), (Some(offset), true) if offset < end);
        let tables = self.tables.borrow();
        match tables.backing.get(file) {
            Some(known) if known.is_absent(index) => ChunkKind::Absent,
            Some(known) if known.standing(index) == Some(Standing::Clean) => ChunkKind::Clean,
            Some(known) if has_data && known.is_clean(index) => ChunkKind::Clean,
            // Its home knows more; at the home it is gone.
            None if file.is_from_behind() => ChunkKind::Absent,
            _ if has_data => ChunkKind::Dirty,
            _ => ChunkKind::Hole,
        }
    }
}
