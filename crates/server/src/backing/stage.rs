//! `Stage`: chunks of files, which may be many, come here before anybody reads them.

use crate::core::{Caller, Core, Failure};
use crate::handlers::bytes::read_write::check_layout_of;
use crate::handlers::{Progress, later};
use reactor::Nanos;
use std::collections::BTreeMap;
use std::rc::Rc;
use wire::layout::ChunkRange;
use wire::limits::PARAMS_SIZE_MAX;
use wire::messages::{StageFailure, StagePart, StageReply, StageRequest};
use wire::{Decode, Encode, FileId};

/// Fetches of one request that are begun at a time: all of those of ordinary files, of which one may hang.
const FETCHES_MAX: usize = 512;

/// Bytes of all words of one reply.
const WORDS_SIZE_MAX: usize = PARAMS_SIZE_MAX / 2;

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
    later(async move { Ok(StageReply { failures: told(core.stage(&parts, deadline).await) }) })
}

/// Failures by their parts, with as much of the words as one reply holds.
fn told(failures: BTreeMap<usize, Failure>) -> Vec<StageFailure> {
    let size = WORDS_SIZE_MAX / failures.len().max(1);
    let told = |(part, Failure { status, text, .. }): (usize, Failure)| {
        let mut text = text.into_owned();
        if text.len() > size {
            text.truncate(size.saturating_sub(3));
            text.extend_from_slice(b"...");
        }
        StageFailure { part: part as u32, status: status as u32, text }
    };
    failures.into_iter().map(told).collect()
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

    /// Brings chunks here, and says which of the parts are not whole, and why. Nothing is begun after the deadline.
    async fn stage(self: &Rc<Self>, parts: &[StagePart], deadline: Nanos) -> BTreeMap<usize, Failure> {
        let (mut failures, mut wanted) = (BTreeMap::new(), Vec::new());
        // What has come stays until all of it has, also of files that go behind only while others come.
        let range = |part: &StagePart| vec![(part.first, part.first.saturating_add(u64::from(part.count)))];
        let _in_use: Vec<_> = parts.iter().map(|part| self.use_chunks(part.file, true, || range(part))).collect();
        for (number, part) in parts.iter().enumerate() {
            match self.lacking_chunks(part, deadline).await {
                Ok(chunks) => wanted.extend(chunks.into_iter().map(|index| (number, part.file, index))),
                Err(failure) => drop(failures.insert(number, failure)),
            }
        }
        for some in wanted.chunks(FETCHES_MAX) {
            let mut some = some.to_vec();
            // Of what has failed no more is needed.
            some.retain(|(number, ..)| !failures.contains_key(number));
            if self.reactor.now() >= deadline {
                some.drain(..).for_each(|(number, ..)| drop(failures.insert(number, self.late())));
            }
            let chunks: Vec<(FileId, u64)> = some.iter().map(|(_, file, index)| (*file, *index)).collect();
            for ((number, ..), fetch) in some.iter().zip(self.start_fetches(&chunks)) {
                if let Err(failure) = self.wait_for_fetch(&fetch, deadline).await {
                    failures.entry(*number).or_insert(failure);
                }
            }
            self.reactor.yield_now().await;
        }
        for (number, part) in parts.iter().enumerate().filter(|_| !wanted.is_empty()) {
            if !failures.contains_key(&number)
                && let Err(failure) = self.finish_part(part, deadline).await
            {
                failures.insert(number, failure);
            }
        }
        failures
    }

    /// The chunks of a part that have to be fetched.
    async fn lacking_chunks(self: &Rc<Self>, part: &StagePart, deadline: Nanos) -> Result<Vec<u64>, Failure> {
        self.check_staged(part)?;
        if self.has_chunks(part) {
            return Ok(Vec::new());
        }
        if self.reactor.now() >= deadline {
            return Err(self.late());
        }
        self.know_place(part.file, deadline).await?;
        Ok(own_chunks(self, part).filter(|index| self.lacks_chunk(part.file, *index)).collect())
    }

    /// What has gone meanwhile, or is another file by now, comes once more.
    async fn finish_part(self: &Rc<Self>, part: &StagePart, deadline: Nanos) -> Result<(), Failure> {
        if !self.has_chunks(part) {
            if self.reactor.now() >= deadline {
                return Err(self.late());
            }
            self.take_in(part.file, &part.layout, &pieces(self, part), false, deadline).await?;
        }
        self.check_staged(part)
    }
}
