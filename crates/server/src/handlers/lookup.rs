//! Looking: Ping, Lookup, Stat, StatId, StatFileSystem; and Shutdown.

use super::{Step, absent, later, locate};
use crate::core::{Caller, Core};
use crate::failure::Failure;
use crate::inodes::Inode;
use crate::tables::Tables;
use std::rc::Rc;
use wire::messages::{Empty, EntryReply, EntryRequest, FileRequest, FileSystemReply};
use wire::{Decode, Encode, FileId, Status};

pub fn ping(params: &[u8]) -> Result<Step, Failure> {
    Empty::from_bytes(params)?;
    Ok(Step::Done)
}

/// Only the owner of the root directory and uid 0 may stop a server.
pub fn shutdown(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Step, Failure> {
    Empty::from_bytes(params)?;
    let uid = caller.peer.uid;
    if uid != 0 && uid != crate::server::process_owner().0 {
        return Err(Failure::with_text(Status::NotPermitted, "only who started the server may stop it"));
    }
    core.shutdown_asked.tell(());
    Ok(Step::Done)
}

/// An entry's inode on this server; `None` when there is no such entry.
fn find<'a>(core: &Core, tables: &'a Tables, request: &EntryRequest<'_>) -> Result<Option<&'a Inode>, Failure> {
    let place = locate(core, tables, &request.entry)?;
    let found = tables.names.get(request.entry.parent, request.entry.name.as_bytes(), place.cursor);
    found.map(|(id, _)| tables.inodes.get(id).ok_or_else(|| missing_inode(id))).transpose()
}

/// A dentry without its inode: names part from inodes only by rename and link, which this version does not offer.
pub fn missing_inode(id: FileId) -> Failure {
    Failure::with_text(Status::Corrupt, format!("the entry's inode {id} is missing"))
}

pub fn lookup(core: &Rc<Core>, params: &[u8], reply: &mut Vec<u8>) -> Result<Step, Failure> {
    let request = EntryRequest::from_bytes(params)?;
    let tables = core.tables.borrow();
    let Some(inode) = find(core, &tables, &request)? else { return absent(&tables, request.entry.parent) };
    encode_entry(inode, reply);
    Ok(Step::Done)
}

pub fn stat(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Step, Failure> {
    let request = EntryRequest::from_bytes(params)?;
    let tables = core.tables.borrow();
    let Some(inode) = find(core, &tables, &request)? else { return absent(&tables, request.entry.parent) };
    if inode.is_announced() {
        return stat_gathered(core, caller, inode.attributes.id);
    }
    encode_entry(inode, reply);
    Ok(Step::Done)
}

pub fn stat_id(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Step, Failure> {
    let file = FileRequest::from_bytes(params)?.file;
    core.check_home(file)?;
    let tables = core.tables.borrow();
    let inode = tables.inodes.get(file).ok_or_else(|| Failure::new(Status::StaleFile, file))?;
    if inode.is_announced() {
        return stat_gathered(core, caller, file);
    }
    encode_entry(inode, reply);
    Ok(Step::Done)
}

/// Only files are announced, and they have no target.
fn stat_gathered(core: &Rc<Core>, caller: &Caller, file: FileId) -> Result<Step, Failure> {
    let (core, deadline) = (core.clone(), caller.deadline);
    later(async move {
        let attributes = core.gathered(file, deadline).await?;
        Ok(EntryReply { attributes, target: b"" })
    })
}

fn encode_entry(inode: &Inode, reply: &mut Vec<u8>) {
    inode.attributes.encode(reply);
    (&*inode.target).encode(reply);
}

pub fn stat_file_system(core: &Rc<Core>, params: &[u8], reply: &mut Vec<u8>) -> Result<Step, Failure> {
    Empty::from_bytes(params)?;
    let usage = core.store.usage();
    let share = FileSystemReply {
        bytes_total: usage.size,
        bytes_free: usage.free,
        inodes: core.tables.borrow().inodes.count(),
        chunks: usage.chunks,
        journal_bytes: usage.journal_used,
    };
    share.encode(reply);
    Ok(Step::Done)
}
