//! Close and CloseMany, and Reclaim, by which a session tells anew what it has open. All may be repeated.

use crate::core::{Caller, Core, Failure};
use crate::handlers::Progress;
use std::rc::Rc;
use wire::messages::{CloseManyRequest, CloseRequest, OpenReply, ReclaimReply, ReclaimRequest};
use wire::{Decode, Encode};

/// The caller let go of a file. If it wrote, sizes and times are settled in, in the background.
pub fn close(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let CloseRequest { closed, settle } = CloseRequest::from_bytes(params)?;
    // Of what is open here with its home elsewhere there is nothing to settle.
    if settle {
        core.check_home(closed.file)?;
    }
    core.closed(caller.peer.session, closed.file, closed.number);
    let announced = settle && core.tables.borrow().inodes.get(closed.file).is_some_and(|inode| inode.is_announced());
    if announced {
        core.start_settling(closed.file);
    }
    Ok(Progress::Done)
}

pub fn close_many(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    for closed in CloseManyRequest::from_bytes(params)?.closed.0 {
        core.closed(caller.peer.session, closed.file, closed.number);
    }
    Ok(Progress::Done)
}

/// What is gone meanwhile is passed over: the session will be told when it uses it.
pub fn reclaim(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = ReclaimRequest::from_bytes(params)?;
    for file in &request.files.0 {
        core.check_home(*file)?;
    }
    let files = core.registrable(&request.files.0);
    let number = core.reclaim_number(caller, &files)?;
    for file in files {
        core.register_open(caller.peer.session, file, number);
    }
    if request.last {
        core.reclaimed(caller.peer.session);
    }
    ReclaimReply { number }.encode(reply);
    Ok(Progress::Done)
}

/// An open of an earlier life of this server, whose caller does not know yet that it has the file open and so does not
/// reclaim it: its reply is sent, and the file is open again.
pub fn reopened(core: &Core, session: u64, reply: &[u8]) {
    let Ok(opened) = OpenReply::from_bytes(reply) else { return };
    let file = opened.attributes.id;
    let is_there = core.tables.borrow().inodes.contains(file);
    if is_there && opened.open_number != 0 {
        core.register_open(session, file, opened.open_number);
    }
}
