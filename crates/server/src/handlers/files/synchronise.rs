//! Synchronise: what was acknowledged survives power loss, as far as the medium can, and errors that came to light
//! later than the request they belong to are told, once to each open file.

use crate::core::{Core, Failure};
use crate::files::late_errors::Cause;
use crate::handlers::{Progress, later};
use std::rc::Rc;
use wire::messages::{SynchroniseReply, SynchroniseRequest};
use wire::{Decode, Encode, FileId};

pub fn synchronise(core: &Rc<Core>, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = SynchroniseRequest::from_bytes(params)?;
    if core.store.is_durable() || request.is_question {
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
    let carries = core.backing.as_ref().is_some_and(|_| core.options.flushing.fsync_carries);
    let mut reply = SynchroniseReply { trouble: 0, reason: Vec::new(), holders: Vec::new(), carries };
    if request.file == FileId::default() {
        return reply;
    }
    // Whoever has the file carried learns by that whether it can be.
    let last = if carries && !request.is_question { Cause::Medium } else { Cause::Carry };
    if let Some(error) = core.late_errors.take_next(request, last) {
        (reply.trouble, reply.reason) = (error.number, error.reason.to_vec());
    }
    if let Some(inode) = core.tables.borrow().inodes.get(request.file).filter(|_| !request.is_question) {
        if let Some(backing) = &core.backing {
            backing.note_synced(request.file);
        }
        reply.holders = inode.holders().to_vec();
    }
    reply
}
