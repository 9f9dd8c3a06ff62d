//! Synchronise: what was acknowledged survives power loss, as far as the medium can, and errors that came to light
//! later than the request they belong to are told, once to each open file.

use crate::core::{Core, Failure};
use crate::handlers::{Progress, later};
use crate::journal::durability::SyncFailure;
use std::rc::Rc;
use wire::messages::{SynchroniseReply, SynchroniseRequest};
use wire::{Decode, Encode, FileId};

/// By how much clocks of nodes may differ: within that, an error counts as later than an open.
const CLOCK_SLACK_NS: i64 = 2_000_000_000;

pub fn synchronise(core: &Rc<Core>, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = SynchroniseRequest::from_bytes(params)?;
    if core.store.is_durable() {
        answer(core, &request).encode(reply);
        return Ok(Progress::Done);
    }
    let core = core.clone();
    later(async move {
        let outcome = core.durable().await;
        let reply = answer(&core, &request);
        // An error that the file's caller is told of says it all.
        if reply.trouble == 0 { outcome.map(|()| reply) } else { Ok(reply) }
    })
}

fn answer(core: &Core, request: &SynchroniseRequest) -> SynchroniseReply {
    let mut reply = SynchroniseReply { trouble: 0, holders: Vec::new() };
    if request.file == FileId::default() {
        return reply;
    }
    if let Some(failure) = core.syncs.failure(request.file).filter(|failure| concerns(failure, request)) {
        core.syncs.note_told(request.file);
        reply.trouble = failure.number;
    }
    if let Some(inode) = core.tables.borrow().inodes.get(request.file) {
        if let Some(backing) = &core.backing {
            backing.note_synced(request.file);
        }
        reply.holders = inode.holders().to_vec();
    }
    reply
}

fn concerns(failure: &SyncFailure, request: &SynchroniseRequest) -> bool {
    let after_open = failure.number as i64 >= request.opened_at.saturating_sub(CLOCK_SLACK_NS);
    failure.number > request.seen && (request.seen > 0 || !failure.told || after_open)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an error is told to whoever had the file open, once; to others only if nobody was told.
    /// Method: one error, and requests of all kinds.
    #[test]
    fn an_error_is_told_once_to_each() {
        let second = 1_000_000_000;
        let failure = |told| SyncFailure { number: 100 * second as u64, told };
        let request = |seen, opened_at| SynchroniseRequest { file: FileId(1), seen, opened_at };
        assert!(concerns(&failure(false), &request(0, 200 * second)), "nobody was told");
        assert!(concerns(&failure(true), &request(0, 50 * second)), "open when it happened");
        assert!(!concerns(&failure(true), &request(0, 200 * second)), "opened later, and somebody knows");
        assert!(!concerns(&failure(true), &request(100 * second as u64, 50 * second)), "told already");
        assert!(concerns(&failure(true), &request(99 * second as u64, 200 * second)), "told of an earlier one");
    }
}
