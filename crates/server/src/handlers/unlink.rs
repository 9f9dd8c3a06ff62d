//! Unlink: the name and the inode go at once, chunks elsewhere follow by a journalled intent.

use super::lookup::missing_inode;
use super::{Step, absent, locate};
use crate::coordination::ask_all;
use crate::core::{Caller, Core};
use crate::failure::Failure;
use crate::intents::Intent;
use crate::records::Record;
use reactor::Class;
use std::rc::Rc;
use wire::messages::{EntryRequest, ReapChunksRequest};
use wire::{Decode, FileId, Kind, Operation, Status};

pub fn unlink(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Step, Failure> {
    let request = EntryRequest::from_bytes(params)?;
    let (parent, name) = (request.entry.parent, request.entry.name.as_bytes());
    let (id, kind, holders) = {
        let tables = core.tables.borrow();
        let place = locate(core, &tables, &request.entry)?;
        let Some((id, kind)) = tables.names.get(parent, name, place.cursor) else { return absent(&tables, parent) };
        if kind == Kind::Directory {
            return Err(Status::IsDirectory.into());
        }
        let inode = tables.inodes.get(id).ok_or_else(|| missing_inode(id))?;
        (id, kind, inode.holders().to_vec())
    };
    let mut transaction = core.store.begin();
    if kind == Kind::File {
        core.store.reap_file(id.0, &mut transaction);
    }
    let (dentry, inode) = (Record::DentryDelete { parent, name }, Record::InodeDelete(id));
    if holders.is_empty() {
        core.commit(transaction, [dentry, inode, caller.outcome(&[])])?;
        return Ok(Step::Done);
    }
    let number = core.next_number()?;
    let intent = Intent::Reap { file: id, holders: holders.clone() };
    core.commit(transaction, [dentry, inode, Record::IntentPut { number, intent }, caller.outcome(&[])])?;
    drive_reap(core, number, id, holders);
    Ok(Step::Done)
}

/// Has the chunks of a file freed on all servers that may hold some, until all have done so.
pub fn drive_reap(core: &Rc<Core>, number: u64, file: FileId, holders: Vec<u32>) {
    let core = core.clone();
    core.reactor.clone().spawn(Class::Metadata, async move {
        let request = ReapChunksRequest { file };
        if ask_all(&core, holders, Operation::ReapChunks, &request, None).await {
            crate::coordination::settle(&core, number).await;
        }
    });
}
