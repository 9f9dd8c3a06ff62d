//! What a change of names asks of its caller towards the inodes that the names lead to; and CheckCaller, by which
//! another server than their home asks.

use crate::core::{Caller, Core, Failure};
use crate::handlers::Progress;
use std::rc::Rc;
use wire::credentials::access;
use wire::messages::{CheckCallerRequest, PrepareReply};
use wire::{Attributes, Decode, Encode, FileId, Kind, Status};

/// What is asked towards one inode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    pub file: FileId,
    /// It is to be the caller's own: its name is in a sticky directory of another user.
    pub owned: bool,
    /// It gets another parent: a directory's `..` changes then, which takes the right to write to it.
    pub moved: bool,
}

impl Demand {
    /// Of what a name leads to that is removed, renamed or replaced; nothing when nothing is to be checked.
    pub fn new(caller: &Caller, (file, kind): (FileId, Kind), owned: bool, moved: bool) -> Option<Demand> {
        let moved = moved && kind == Kind::Directory;
        ((owned || moved) && !caller.credentials().is_root()).then_some(Demand { file, owned, moved })
    }

    pub fn request(&self, caller: &Caller) -> CheckCallerRequest {
        let Demand { file, owned, moved } = *self;
        CheckCallerRequest { file, user: caller.credentials().clone(), owned, moved }
    }

    /// Checks an inode whose home is here; one that is not here is for its home.
    pub fn check_here(&self, core: &Core, caller: &Caller) -> Result<(), Status> {
        let tables = core.tables.borrow();
        let inode = tables.inodes.get(self.file);
        inode.map_or(Ok(()), |inode| check(&self.request(caller), &inode.attributes))
    }
}

pub fn check_caller(core: &Rc<Core>, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = CheckCallerRequest::from_bytes(params)?;
    core.check_home(request.file)?;
    let verdict = check(&request, &core.inode(request.file)?.attributes);
    PrepareReply { verdict: verdict.err().unwrap_or(Status::Ok) as u32, found: None, kind: None }.encode(reply);
    Ok(Progress::Done)
}

fn check(request: &CheckCallerRequest, attributes: &Attributes) -> Result<(), Status> {
    if request.owned && !request.user.owns(attributes) {
        return Err(Status::NotPermitted);
    }
    let closed = attributes.kind == Kind::Directory && !request.user.may(attributes, access::WRITE);
    if request.moved && closed { Err(Status::AccessDenied) } else { Ok(()) }
}
