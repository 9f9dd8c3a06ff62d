//! Directories as a whole: their attributes, which all servers with entries have a share of; and what servers ask each
//! other about that (AnnounceDirectory at the home, GlimpseDirectory elsewhere). Announcing waits for nobody, glimpsing
//! only for changes of names to be done, which need no glimpsing.

use crate::core::{Caller, Core, Failure};
use crate::files::inodes::Inode;
use crate::handlers::files::attributes::{changed, check, restricts};
use crate::handlers::{EncodedParams, Progress, change_rights, later};
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::Share;
use crate::tree::shares::Shares;
use crate::tree::shares::WaitPolicy;
use std::rc::Rc;
use wire::messages::{
    AnnounceDirectoryReply, AnnounceDirectoryRequest, EntryReply, GlimpseDirectoryReply, GlimpseDirectoryRequest,
    SetAttributesRequest, set_mask,
};
use wire::{Decode, Encode, FileId, Kind, Status};

const MTIME: u32 = set_mask::MTIME | set_mask::MTIME_NOW;

/// Stat of a directory whose home is here.
pub fn stat(
    core: &Rc<Core>,
    tables: &Tables,
    caller: &Caller,
    inode: &Inode,
    wait_policy: WaitPolicy,
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let directory = inode.attributes.id;
    if tables.is_settled(directory, core.index) {
        EntryReply { attributes: tables.visible(inode, core.index), target: b"" }.encode(reply);
        return Ok(Progress::Done);
    }
    let (core, deadline) = (core.clone(), caller.deadline);
    later(async move {
        let shares = match wait_policy {
            WaitPolicy::Whole => Some(core.glimpse_directory(directory, false, deadline).await?),
            WaitPolicy::Short => core.glimpse_directory_soon(directory, deadline).await?,
        };
        let tables = core.tables.borrow();
        let inode = tables.inodes.get(directory).ok_or_else(|| Failure::new(Status::StaleFile, directory))?;
        let known = shares.as_ref().map_or(&[][..], |shares| &shares[..]);
        let mut attributes = tables.visible_directory(&inode.attributes, core.index, known);
        if shares.is_none() {
            // As file systems say that do not count: not to be taken for the number of directories within.
            attributes.link_count = 1;
        }
        Ok(EncodedParams(EntryReply { attributes, target: b"" }.to_bytes()))
    })
}

/// chmod, chown and utimens of a directory whose home is here.
pub fn set_attributes(
    core: &Rc<Core>,
    caller: &Caller,
    request: SetAttributesRequest,
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let attributes = core.inode(request.file)?.attributes;
    check(caller, &request, &attributes)?;
    let restricts = restricts(&request, &attributes);
    if !restricts && core.tables.borrow().is_settled(request.file, core.index) {
        let mut records = plan(core, caller, &request, &Shares::new(), reply)?;
        records.push(caller.outcome(reply));
        core.change(records)?;
        return Ok(Progress::Done);
    }
    let (core, caller) = (core.clone(), caller.clone());
    later(async move {
        let kept = request.mask & MTIME != 0;
        let shares = core.glimpse_directory(request.file, kept, caller.deadline).await?;
        let mut bytes = Vec::new();
        let mut records = plan(&core, &caller, &request, &shares, &mut bytes)?;
        if restricts {
            // All servers know of it before the caller is answered.
            let transaction = core.store.begin();
            return Ok(EncodedParams(change_rights(&core, &caller, request.file, transaction, records, bytes).await?));
        }
        records.push(caller.outcome(&bytes));
        core.change(records)?;
        Ok(EncodedParams(bytes))
    })
}

/// What a change of attributes journals, and its reply. Changes that were glimpse come before a time that is set now,
/// and count no more.
fn plan(
    core: &Rc<Core>,
    caller: &Caller,
    request: &SetAttributesRequest,
    others: &Shares,
    reply: &mut Vec<u8>,
) -> Result<Vec<Record<'static>>, Failure> {
    let mut inode = core.inode(request.file)?;
    check(caller, request, &inode.attributes)?;
    inode.attributes = changed(core, caller, request, &inode.attributes);
    let tables = core.tables.borrow();
    let mut visible = tables.visible_directory(&inode.attributes, core.index, others);
    let mut records = Vec::with_capacity(3);
    if request.mask & MTIME != 0 {
        visible.mtime = inode.attributes.mtime;
        let shares = tables.shares_ended(request.file, core.index, others);
        records.push(Record::AnnouncedPut { directory: request.file, shares });
    }
    EntryReply { attributes: visible, target: b"" }.encode(reply);
    records.push(Record::InodePut(inode));
    Ok(records)
}

pub fn announce_directory(
    core: &Rc<Core>,
    caller: &Caller,
    params: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let AnnounceDirectoryRequest { directory, server } = AnnounceDirectoryRequest::from_bytes(params)?;
    core.check_home(directory)?;
    if server != caller.peer.from_server || server == core.index {
        return Err(Failure::with_text(Status::BadMessage, "a server announces itself only"));
    }
    let is_known = {
        let tables = core.tables.borrow();
        match tables.inodes.kind(directory) {
            None => return Err(Failure::new(Status::StaleDirectory, directory)),
            Some(Kind::Directory) => tables.announced.get(directory).iter().any(|(known, _)| *known == server),
            Some(_) => return Err(Status::NotDirectory.into()),
        }
    };
    if !is_known {
        // Not the list so far: all servers together would journal what grows with their number squared.
        core.change([Record::ShareAnnounced { directory, server }])?;
    }
    AnnounceDirectoryReply { time: core.clock.time() }.encode(reply);
    Ok(Progress::Done)
}

pub fn glimpse_directory(
    core: &Rc<Core>,
    caller: &Caller,
    params: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let GlimpseDirectoryRequest { directory, time, kept: _ } = GlimpseDirectoryRequest::from_bytes(params)?;
    match core.cluster.home_of(directory) {
        Some(home) if home != core.index => {}
        _ => return Err(Failure::with_text(Status::BadMessage, "id is not that of a directory of another server")),
    }
    core.clock.note(time);
    if core.tables.borrow().locks.in_directory(directory).is_empty() {
        tell_share(core, directory).encode(reply);
        return Ok(Progress::Done);
    }
    let (core, deadline) = (core.clone(), caller.deadline);
    later(async move {
        let words = "a change of names in the directory takes long";
        core.wait_until(deadline, words, core.names_decided(directory)).await?;
        Ok(tell_share(&core, directory))
    })
}

fn tell_share(core: &Core, directory: FileId) -> GlimpseDirectoryReply {
    let Share { time, subdirectories } = core.tables.borrow().names.share(directory);
    GlimpseDirectoryReply { time, subdirectories }
}
