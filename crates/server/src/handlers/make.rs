//! MakeDirectory, MakeSymlink and MakeNode.

use super::{Step, check_lock, check_mark, locate};
use crate::core::{Caller, Core};
use crate::failure::Failure;
use crate::inodes::Inode;
use crate::records::Record;
use crate::rights::inherit_group;
use std::rc::Rc;
use wire::messages::{Entry, EntryReply, MakeDirectoryRequest, MakeNodeRequest, MakeSymlinkRequest};
use wire::{Decode, Encode, FileId, Kind, Status};

pub fn make_directory(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Step, Failure> {
    let request = MakeDirectoryRequest::from_bytes(params)?;
    make(core, caller, &request.entry, (Kind::Directory, 0), request.mode, request.group, b"", reply)
}

pub fn make_symlink(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Step, Failure> {
    let request = MakeSymlinkRequest::from_bytes(params)?;
    make(core, caller, &request.entry, (Kind::Symlink, 0), 0o777, request.group, request.target.0, reply)
}

/// Pipes and sockets may be made by everybody, devices by uid 0.
pub fn make_node(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Step, Failure> {
    let request = MakeNodeRequest::from_bytes(params)?;
    if !request.kind.is_special() || (request.device != 0 && !request.kind.is_device()) {
        return Err(Failure::with_text(
            Status::Invalid,
            "a node is a pipe, a socket or a device, and only that has a number",
        ));
    }
    if request.kind.is_device() && !caller.credentials().is_root() {
        return Err(Status::NotPermitted.into());
    }
    let node = (request.kind, request.device);
    make(core, caller, &request.entry, node, request.mode, request.group, b"", reply)
}

/// A device's number comes with its kind. The reply's target stays empty: the caller has just sent it, and outcomes that are kept are small.
#[allow(clippy::too_many_arguments)] // What the three requests have in common and where they differ.
fn make(
    core: &Rc<Core>,
    caller: &Caller,
    entry: &Entry<'_>,
    (kind, device): (Kind, u32),
    mode: u32,
    group: Option<u32>,
    target: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Step, Failure> {
    let name = entry.name.as_bytes();
    let place = {
        let tables = core.tables.borrow();
        let place = locate(core, &tables, entry)?;
        if let Some(blocked) = check_lock(&tables, entry) {
            return Ok(blocked);
        }
        if tables.names.get(entry.parent, name, place.cursor).is_some() {
            return Err(Status::Exists.into());
        }
        if let Some(blocked) = check_mark(&tables, entry.parent) {
            return Ok(blocked);
        }
        if let Some(step) = core.check_share(&tables, caller, entry.parent) {
            return Ok(step);
        }
        place
    };
    let id = FileId::new(core.next_number()?, place.slot);
    let mut attributes = core.new_attributes(id, kind, mode, caller, 0);
    inherit_group(&mut attributes, group, caller.credentials());
    attributes.size = target.len() as u64;
    if kind.is_device() {
        attributes.layout.first = device;
    }
    let inode = match kind {
        Kind::Directory => Inode::directory(attributes, entry.parent),
        _ => Inode { target: target.into(), ..Inode::new(attributes) },
    };
    let shown = core.tables.borrow().shown(&inode, core.index);
    EntryReply { attributes: shown, target: b"" }.encode(reply);
    core.change([
        Record::DentryPut { parent: entry.parent, name, id, kind },
        Record::InodePut(inode),
        caller.outcome(reply),
    ])?;
    Ok(Step::Done)
}
