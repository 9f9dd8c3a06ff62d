//! `Stage`: chunks of files, which may be many, come here before anybody reads them.

use crate::core::{Caller, Core, Failure};
use crate::handlers::bytes::read_write::check_layout_of;
use crate::handlers::{Progress, later};
use reactor::Nanos;
use std::rc::Rc;
use wire::layout::ChunkRange;
use wire::messages::{StageFailure, StagePart, StageReply, StageRequest};
use wire::{Decode, Encode, FileId};

/// Fetches of one request that are under way at a time.
const FETCHES_MAX: usize = 64;

/// `Stage`, at a server with chunks.
pub fn stage(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let parts = StageRequest::from_bytes(params)?.parts.0;
    let (core, deadline) = (core.clone(), caller.deadline);
    parts.iter().try_for_each(|part| core.check_layout(&part.layout))?;
    let is_here = |part: &StagePart| core.check_staged(part).is_ok() && core.has_chunks(part);
    if parts.iter().all(is_here) {
        StageReply { failures: Vec::new() }.encode(reply);
        return Ok(Progress::Done);
    }
    later(async move { Ok(StageReply { failures: core.stage(&parts, deadline).await }) })
}

/// The chunks of a part that are this server's.
fn own_chunks(core: &Core, part: &StagePart) -> impl Iterator<Item = u64> {
    let is_own = |index: &u64| core.cluster.chunk_server(part.file, &part.layout, *index) == core.index;
    (part.first..part.first.saturating_add(u64::from(part.count))).filter(is_own)
}

fn pieces(core: &Core, part: &StagePart) -> Vec<ChunkRange> {
    let piece = |chunk_index| ChunkRange { chunk_index, chunk_offset: 0, size: 1 };
    own_chunks(core, part).map(piece).collect()
}

impl Core {
    /// Whether the file is there, and is what the client thinks, which its home knows.
    fn check_staged(&self, part: &StagePart) -> Result<(), Failure> {
        if self.cluster.home_of(part.file) != Some(self.index) {
            return Ok(());
        }
        check_layout_of(self.tables.borrow().inodes.get(part.file).as_ref(), part.file, &part.layout)
    }

    fn has_chunks(&self, part: &StagePart) -> bool {
        !self.may_lack(part.file) || self.has_pieces(part.file, &part.layout, &pieces(self, part), false)
    }

    /// Brings chunks here, and says which of the parts are not whole by the deadline, and why.
    async fn stage(self: &Rc<Self>, parts: &[StagePart], deadline: Nanos) -> Vec<StageFailure> {
        let mut failed: Vec<Option<Failure>> = parts.iter().map(|part| self.check_staged(part).err()).collect();
        let mut wanted: Vec<(usize, FileId, u64)> = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            if failed[number].is_none() && !self.has_chunks(part) {
                failed[number] = self.know_place(part.file, deadline).await.err();
                let lacking = own_chunks(self, part).filter(|index| self.lacks_chunk(part.file, *index));
                wanted.extend(lacking.map(|index| (number, part.file, index)));
            }
        }
        for some in wanted.chunks(FETCHES_MAX) {
            let chunks: Vec<(FileId, u64)> = some.iter().map(|(_, file, index)| (*file, *index)).collect();
            for ((number, ..), fetch) in some.iter().zip(self.start_fetches(&chunks)) {
                let result = self.wait_for_fetch(&fetch, deadline).await;
                failed[*number] = failed[*number].take().or(result.err());
            }
        }
        for (number, part) in parts.iter().enumerate().filter(|_| !wanted.is_empty()) {
            // What has gone meanwhile comes once more.
            if failed[number].is_none() && !self.has_chunks(part) {
                let brought = self.take_in(part.file, &part.layout, &pieces(self, part), false, deadline).await;
                failed[number] = brought.err();
            }
            failed[number] = failed[number].take().or_else(|| self.check_staged(part).err());
        }
        let told = |(number, failure): (usize, Option<Failure>)| {
            let Failure { status, text, .. } = failure?;
            Some(StageFailure { part: number as u32, status: status as u32, text: text.into_owned() })
        };
        failed.into_iter().enumerate().filter_map(told).collect()
    }
}
