//! Looking: Ping, Lookup, Stat, StatId, StatFileSystem; and Shutdown. Look and LookId are Stat and StatId for who would
//! rather have a directory without the times that a server does not tell than wait for that server
//! (`directories::WaitPolicy`).

use crate::core::{Caller, Core, Failure};
use crate::files::inodes::Inode;
use crate::handlers::{Progress, absent, check_lock, later, locate};
use crate::journal::tables::Tables;
use crate::tree::shares::WaitPolicy;
use std::rc::Rc;
use wire::messages::{BackingShare, Empty, EntryReply, EntryRequest, FileRequest, FileSystemReply};
use wire::{Decode, Encode, FileId, Kind, Status};

pub fn ping(params: &[u8]) -> Result<Progress, Failure> {
    Empty::from_bytes(params)?;
    Ok(Progress::Done)
}

/// Only the owner of the root directory and uid 0 may stop a server.
pub fn shutdown(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    Empty::from_bytes(params)?;
    let uid = caller.peer.user.uid;
    if uid != 0 && uid != crate::process::process_owner().0 {
        return Err(Failure::with_text(Status::NotPermitted, "only who started the server may stop it"));
    }
    core.life.request_shutdown(caller.peer.session);
    Ok(Progress::Done)
}

/// An entry's inode on this server; or why it is not told: it does not exist, or something has to end before.
enum Lookup {
    Inode(Inode),
    Other(Result<Progress, Failure>),
}

fn find(core: &Core, tables: &Tables, request: &EntryRequest<'_>) -> Result<Lookup, Failure> {
    let place = locate(core, tables, &request.entry)?;
    if let Some(blocked) = check_lock(tables, &request.entry) {
        return Ok(Lookup::Other(Ok(blocked)));
    }
    let found = tables.names.get(request.entry.parent, request.entry.name.as_bytes(), place.cursor);
    let Some((id, _)) = found else { return Ok(Lookup::Other(absent(tables, request.entry.parent))) };
    tables.inodes.get(id).map(Lookup::Inode).ok_or_else(|| missing_inode(core, id))
}

/// A dentry without its inode here: rename and link parted them, and the caller goes on at the inode's home.
pub fn missing_inode(core: &Core, id: FileId) -> Failure {
    if is_elsewhere(core, id) {
        return Failure::new(Status::Elsewhere, id);
    }
    Failure::with_text(Status::Corrupt, format!("the entry's inode {id} is missing"))
}

/// Whether an inode has its home on another server.
pub fn is_elsewhere(core: &Core, id: FileId) -> bool {
    core.cluster.home_of(id).is_some_and(|home| home != core.index)
}

pub fn lookup(core: &Rc<Core>, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = EntryRequest::from_bytes(params)?;
    let tables = core.tables.borrow();
    let inode = match find(core, &tables, &request)? {
        Lookup::Inode(inode) => inode,
        Lookup::Other(step) => return step,
    };
    EntryReply { attributes: tables.visible(&inode, core.index), target: inode.target() }.encode(reply);
    core.publish_answer(&tables, Some((request.entry.parent, request.entry.name.as_bytes())), &inode);
    Ok(Progress::Done)
}

pub fn stat(
    core: &Rc<Core>,
    caller: &Caller,
    params: &[u8],
    wait_policy: WaitPolicy,
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let request = EntryRequest::from_bytes(params)?;
    let tables = core.tables.borrow();
    let inode = match find(core, &tables, &request)? {
        Lookup::Inode(inode) => inode,
        Lookup::Other(step) => return step,
    };
    core.publish_answer(&tables, Some((request.entry.parent, request.entry.name.as_bytes())), &inode);
    stat_inode(core, &tables, caller, &inode, wait_policy, reply)
}

pub fn stat_id(
    core: &Rc<Core>,
    caller: &Caller,
    params: &[u8],
    wait_policy: WaitPolicy,
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let file = FileRequest::from_bytes(params)?.file;
    core.check_home(file)?;
    let tables = core.tables.borrow();
    let inode = tables.inodes.get(file).ok_or_else(|| Failure::new(Status::StaleFile, file))?;
    core.publish_answer(&tables, None, &inode);
    stat_inode(core, &tables, caller, &inode, wait_policy, reply)
}

/// While the number of an inode's names is being changed, it is not told.
fn stat_inode(
    core: &Rc<Core>,
    tables: &Tables,
    caller: &Caller,
    inode: &Inode,
    wait_policy: WaitPolicy,
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    if let Some(lock) = tables.locks.of_inode(inode.attributes.id) {
        return Ok(Progress::Blocked(lock));
    }
    if inode.attributes.kind == Kind::Directory {
        // One that moves has its new times here only when that has ended.
        if let Some(moving) = tables.tree.wait_for(0, std::iter::once(inode.attributes.id)) {
            return Ok(Progress::Blocked(moving));
        }
        return crate::handlers::directories::attributes::stat(core, tables, caller, inode, wait_policy, reply);
    }
    if inode.is_announced() {
        return stat_by_glimpse(core, caller, inode.attributes.id);
    }
    encode_entry(inode, reply);
    Ok(Progress::Done)
}

/// Only files are announced, and they have no target.
fn stat_by_glimpse(core: &Rc<Core>, caller: &Caller, file: FileId) -> Result<Progress, Failure> {
    let (core, deadline) = (core.clone(), caller.deadline);
    later(async move {
        let attributes = core.glimpse(file, deadline).await?;
        Ok(EntryReply { attributes, target: b"" })
    })
}

fn encode_entry(inode: &Inode, reply: &mut Vec<u8>) {
    inode.attributes.encode(reply);
    inode.target().encode(reply);
}

pub fn stat_file_system(core: &Rc<Core>, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    Empty::from_bytes(params)?;
    if core.backing.is_none() {
        space_of(core, None).encode(reply);
        return Ok(Progress::Done);
    }
    let core = core.clone();
    later(async move {
        let share = core.backing_share().await;
        Ok(space_of(&core, share))
    })
}

fn space_of(core: &Core, backing: Option<BackingShare>) -> FileSystemReply {
    let usage = core.store.usage();
    FileSystemReply {
        bytes_total: usage.size,
        bytes_free: usage.free,
        inodes: core.tables.borrow().inodes.count(),
        chunks: usage.chunks,
        journal_bytes: usage.journal_used,
        backing,
    }
}
