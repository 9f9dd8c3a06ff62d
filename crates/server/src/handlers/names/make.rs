//! MakeDirectory, MakeSymlink and MakeNode.

use crate::core::{Caller, Core, Failure};
use crate::files::inodes::Inode;
use crate::files::rights::inherit_group;
use crate::handlers::{Progress, check_lock, check_mark, locate};
use crate::journal::records::Record;
use std::rc::Rc;
use wire::messages::{Entry, EntryReply, MakeDirectoryRequest, MakeNodeRequest, MakeSymlinkRequest};
use wire::{Decode, Encode, Kind, LayoutWish, Status};

/// What is to be made.
struct NewNode<'a> {
    kind: Kind,
    mode: u32,
    group: Option<u32>,
    /// Of a symbolic link; else empty.
    target: &'a [u8],
    /// Of a device; else 0.
    device: u32,
}

pub fn make_directory(
    core: &Rc<Core>,
    caller: &Caller,
    params: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let MakeDirectoryRequest { entry, mode, group } = Decode::from_bytes(params)?;
    let node = NewNode { kind: Kind::Directory, mode, group, target: b"", device: 0 };
    make(core, caller, &entry, &node, reply)
}

pub fn make_symlink(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let MakeSymlinkRequest { entry, target, group } = Decode::from_bytes(params)?;
    let node = NewNode { kind: Kind::Symlink, mode: 0o777, group, target: target.0, device: 0 };
    make(core, caller, &entry, &node, reply)
}

pub fn make_node(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let MakeNodeRequest { entry, kind, mode, device, group } = Decode::from_bytes(params)?;
    if !kind.is_special() || (device != 0 && !kind.is_device()) {
        return Err(Failure::with_text(Status::Invalid, "only pipes, sockets and devices are made in this way"));
    }
    if kind.is_device() && !caller.credentials().is_root() {
        return Err(Status::NotPermitted.into());
    }
    make(core, caller, &entry, &NewNode { kind, mode, group, target: b"", device }, reply)
}

/// The reply's target stays empty: the caller has just sent it, and outcomes that are kept are small.
fn make(
    core: &Rc<Core>,
    caller: &Caller,
    entry: &Entry<'_>,
    node: &NewNode<'_>,
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
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
    let id = core.next_file(place.slot)?;
    let mut attributes = core.new_attributes(id, node.kind, node.mode, caller, &LayoutWish::default());
    inherit_group(&mut attributes, node.group, caller.credentials());
    attributes.size = node.target.len() as u64;
    if node.kind.is_device() {
        attributes.set_device(node.device);
    }
    let inode = match node.kind {
        Kind::Directory => Inode::directory(attributes, entry.parent),
        _ => Inode::with_target(attributes, node.target),
    };
    let visible = core.tables.borrow().visible(&inode, core.index);
    EntryReply { attributes: visible, target: b"" }.encode(reply);
    core.change([
        Record::DentryPut { parent: entry.parent, name, id, kind: node.kind },
        Record::InodePut(inode),
        caller.outcome(reply),
    ])?;
    Ok(Progress::Done)
}
