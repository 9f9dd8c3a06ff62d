//! Unlink: the name goes, and the inode with its last name; chunks elsewhere follow by a journalled intent. A name
//! whose inode lives on another server is removed together with that server (`rename`).

use crate::coordination::ask_all;
use crate::coordination::intents::Intent;
use crate::core::{Caller, Core, Failure};
use crate::files::inodes::Inode;
use crate::handlers::names::lookup::missing_inode;
use crate::handlers::names::rename;
use crate::handlers::{Progress, absent, check_lock, locate};
use crate::journal::records::Record;
use crate::names::cursor_of;
use crate::store::Transaction;
use reactor::Class;
use std::rc::Rc;
use wire::messages::{ReapChunksRequest, RemoveRequest};
use wire::submission::Submission;
use wire::{Decode, FileId, Kind, Operation, Status};

pub fn unlink(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let request = RemoveRequest::from_bytes(params)?;
    let (parent, name) = (request.entry.parent, request.entry.name.as_bytes());
    let id = {
        let tables = core.tables.borrow();
        let place = locate(core, &tables, &request.entry)?;
        if let Some(blocked) = check_lock(&tables, &request.entry) {
            return Ok(blocked);
        }
        let Some((id, kind)) = tables.names.get(parent, name, place.cursor) else { return absent(&tables, parent) };
        if kind == Kind::Directory {
            return Err(Status::IsDirectory.into());
        }
        core.prefetch_file(&tables, id);
        let inode = tables.inodes.get(id);
        if inode.as_ref().is_some_and(|inode| request.owned && !caller.owns(&inode.attributes)) {
            return Err(Status::NotPermitted.into());
        }
        if inode.is_none() {
            let failure = missing_inode(core, id);
            if failure.status != Status::Elsewhere {
                return Err(failure);
            }
            drop(tables);
            return rename::unlink_parted(core, caller, params);
        }
        if let Some(lock) = tables.locks.of_inode(id) {
            return Ok(Progress::Blocked(lock));
        }
        if let Some(step) = core.check_share(&tables, caller, parent) {
            return Ok(step);
        }
        if let Some(delegated) = core.recall_delegations(id) {
            return Ok(Progress::Blocked(delegated));
        }
        id
    };
    remove(core, (parent, name), id, caller.outcome(&[]))?;
    Ok(Progress::Done)
}

fn remove(core: &Rc<Core>, (parent, name): (FileId, &[u8]), id: FileId, outcome: Record<'_>) -> Result<(), Failure> {
    let mut transaction = core.store.begin();
    let mut records = Vec::with_capacity(4);
    records.push(Record::DentryDelete { parent, name });
    records.push(outcome);
    let reap = drop_link(core, id, &mut transaction, &mut records)?;
    core.commit(transaction, records)?;
    reap.start(core);
    Ok(())
}

/// An unlink that was submitted: done already, for whoever submitted it; `taken` says which submission it is. Errors:
/// it can't be done, which must not happen.
pub fn unlink_submitted(core: &Rc<Core>, submission: &Submission<'_>, taken: Record<'_>) -> Result<(), Failure> {
    let (parent, name, file) = (submission.parent, submission.name, submission.file);
    {
        let tables = core.tables.borrow();
        let is_there = tables.names.get(parent, name, cursor_of(parent, name)) == Some((file, Kind::File));
        let is_locked = tables.locks.of_dentry(parent, name).is_some() || tables.locks.of_inode(file).is_some();
        if !is_there {
            return Err(Status::NotFound.into());
        }
        if is_locked || !tables.inodes.contains(file) || core.lacks_share(&tables, parent) {
            return Err(Failure::with_text(Status::Busy, "something has to be done before the name can be removed"));
        }
    }
    remove(core, (parent, name), file, taken)
}

/// Chunks on other servers that are to be freed, once the change that says so is journalled.
#[must_use]
pub struct Reap(Option<(u64, FileId, Vec<u32>)>);

impl Reap {
    pub fn start(self, core: &Rc<Core>) {
        if let Some((number, file, holders)) = self.0 {
            drive_reap(core, number, file, holders);
        }
    }
}

/// Adds to a change that an inode here loses one of its names; with the last one it goes, and all of its chunks.
pub fn drop_link(
    core: &Rc<Core>,
    file: FileId,
    transaction: &mut Transaction,
    records: &mut Vec<Record<'_>>,
) -> Result<Reap, Failure> {
    let tables = core.tables.borrow();
    let inode = tables.inodes.get(file).ok_or_else(|| Failure::new(Status::StaleFile, file))?;
    if inode.attributes.link_count > 1 {
        let mut inode = inode;
        drop(tables);
        inode.attributes.link_count -= 1;
        inode.attributes.ctime = core.clock.time();
        inode.attributes.version += 1;
        records.push(Record::InodePut(inode));
        return Ok(Reap(None));
    }
    if inode.attributes.kind == Kind::File && tables.may_be_open(file) {
        // Without a name, but somebody may still read and write it: the last close reaps it.
        let mut inode = inode;
        drop(tables);
        inode.attributes.link_count = 0;
        inode.attributes.ctime = core.clock.time();
        inode.attributes.version += 1;
        records.push(Record::InodePut(inode));
        return Ok(Reap(None));
    }
    drop(tables);
    reap_inode(core, &inode, transaction, records)
}

/// Adds to a change that an inode here goes, with all of its chunks.
fn reap_inode(
    core: &Rc<Core>,
    inode: &Inode,
    transaction: &mut Transaction,
    records: &mut Vec<Record<'_>>,
) -> Result<Reap, Failure> {
    let (file, holders) = (inode.attributes.id, inode.holders().to_vec());
    let reap = match holders.is_empty() {
        true => None,
        false => Some((core.next_number()?, file, holders)),
    };
    if inode.attributes.kind == Kind::File {
        core.store.reap_file(file.0, transaction);
    }
    records.push(Record::InodeDelete(file));
    if let Some((number, file, holders)) = &reap {
        records.push(Record::IntentPut {
            number: *number,
            intent: Intent::Reap { file: *file, holders: holders.clone() },
        });
    }
    Ok(Reap(reap))
}

/// Reaps a file that has no name and that nobody has open. False when it has to be tried again.
pub fn reap_orphan(core: &Rc<Core>, file: FileId) -> bool {
    if core.is_journal_low() || core.tables.borrow().locks.of_inode(file).is_some() {
        return false;
    }
    let mut transaction = core.store.begin();
    let mut records = Vec::with_capacity(2);
    let reaped = core
        .inode(file)
        .and_then(|inode| reap_inode(core, &inode, &mut transaction, &mut records))
        .and_then(|reap| core.commit(transaction, records).map(|()| reap.start(core)));
    reaped.is_ok()
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
