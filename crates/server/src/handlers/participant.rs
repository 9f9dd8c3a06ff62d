//! What other servers ask: Announce at a file's home; Glimpse, ReapChunks, TruncateChunks at holders of chunks;
//! MarkDirectory and ResolveDirectory. All run at once and are idempotent, so that they may be repeated freely and
//! never wait for one another.

use super::Progress;
use crate::core::{Caller, Core, Failure};
use crate::files::rights::drop_for_announced;
use crate::journal::records::Record;
use std::rc::Rc;
use wire::messages::{
    AnnounceReply, AnnounceRequest, GlimpseReply, GlimpseRequest, MarkDirectoryRequest, ReapChunksRequest,
    ResolveDirectoryRequest, TruncateChunksRequest,
};
use wire::{Decode, Encode, FileId, Kind, Status};

pub fn announce(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = AnnounceRequest::from_bytes(params)?;
    core.check_home(request.file)?;
    if request.server != caller.peer.from_server || request.server == core.index {
        return Err(Failure::with_text(Status::BadMessage, "a server announces itself only"));
    }
    let mut inode = core.inode(request.file)?;
    if inode.attributes.kind != Kind::File {
        return Err(Failure::new(Status::StaleFile, request.file));
    }
    if let Some(leased) = core.read_lease_end(request.file) {
        return Ok(Progress::Blocked(leased));
    }
    if let Some(reopened) = core.announcements_reopen(request.file) {
        return Ok(Progress::Blocked(reopened));
    }
    AnnounceReply { truncate_generation: inode.attributes.truncate_generation, times_set: inode.attributes.times_set }
        .encode(reply);
    if inode.announce(request.server, request.generation) {
        let mode = inode.attributes.mode;
        drop_for_announced(&mut inode.attributes);
        let AnnounceRequest { file, server, generation } = request;
        // Not the inode with all that are announced, unless more of it changes: a thousand servers would fill the
        // journal.
        let record = match inode.attributes.mode == mode {
            true => Record::FileAnnounced { file, server, generation },
            false => Record::InodePut(inode),
        };
        core.change([record])?;
    }
    Ok(Progress::Done)
}

pub fn glimpse(core: &Rc<Core>, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = GlimpseRequest::from_bytes(params)?;
    let share = core.store.share(request.file.0);
    let stands = share.and_then(|share| share.announced);
    if request.retract && stands.is_some() {
        let mut transaction = core.store.begin();
        core.store.set_announced(request.file.0, None, 0, &mut transaction);
        core.commit(transaction, [])?;
    }
    let announce_generation = match stands {
        Some(generation) => generation,
        None => core.ended_generation(request.file),
    };
    GlimpseReply {
        end: share.map_or(0, |share| share.end),
        mtime: share.map_or(0, |share| share.mtime),
        truncate_generation: share.map_or(0, |share| share.generation),
        announce_generation,
    }
    .encode(reply);
    Ok(Progress::Done)
}

pub fn reap_chunks(core: &Rc<Core>, params: &[u8]) -> Result<Progress, Failure> {
    let file = ReapChunksRequest::from_bytes(params)?.file;
    check_elsewhere(core, file)?;
    core.cancel_announcement(file);
    let mut transaction = core.store.begin();
    core.store.reap_file(file.0, &mut transaction);
    let changed = core.tables.borrow().changes.contains_key(&file.0);
    let change = if changed { Record::ChangeDelete(file) } else { Record::Nothing };
    core.commit(transaction, [change, core.forget_place(file)])?;
    Ok(Progress::Done)
}

pub fn truncate_chunks(core: &Rc<Core>, params: &[u8]) -> Result<Progress, Failure> {
    let request = TruncateChunksRequest::from_bytes(params)?;
    check_elsewhere(core, request.file)?;
    core.check_layout(&request.layout)?;
    // Without a share there is nothing to cut; what is written from now on comes after the truncate.
    let share = core.store.share(request.file.0);
    let seen = share.is_none_or(|share| share.generation >= request.generation);
    if !seen || share.is_none() {
        core.shrink_base(request.file, request.size)?;
        core.note_cut(request.file);
    }
    if !seen {
        let mut transaction = core.store.begin();
        core.store.truncate_file(request.file.0, request.size, request.generation, &mut transaction);
        core.commit(transaction, [])?;
    }
    Ok(Progress::Done)
}

/// Only a file's home asks for these, and it does not ask itself.
fn check_elsewhere(core: &Core, file: FileId) -> Result<(), Failure> {
    match core.cluster.home_of(file) {
        Some(home) if home != core.index => Ok(()),
        _ => Err(Failure::with_text(Status::BadMessage, "file id is not one of another server")),
    }
}

pub fn mark_directory(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let MarkDirectoryRequest { directory, coordinator, attempt } = MarkDirectoryRequest::from_bytes(params)?;
    if coordinator != caller.peer.from_server || directory == FileId::ROOT {
        return Err(Failure::with_text(
            Status::BadMessage,
            "the coordinator is not the caller, or it is about the root",
        ));
    }
    {
        let tables = core.tables.borrow();
        if tables.tombstones.contains_key(&directory.0) {
            return Ok(Progress::Done);
        }
        core.check_removable(&tables, directory)?;
        // Something may be about to come into it.
        if !tables.locks.in_directory(directory).is_empty() {
            return Err(Status::Busy.into());
        }
        match tables.marks.get(&directory.0) {
            // Names move, and with them who coordinates their removal; attempts of two can't be compared.
            Some(mark) if mark.coordinator != coordinator => return Err(Status::Busy.into()),
            Some(mark) if mark.attempt == attempt => return Ok(Progress::Done),
            Some(mark) if mark.attempt > attempt => return Err(Status::Busy.into()),
            _ => {}
        }
    }
    core.check_room_for_tombstone()?;
    core.change([Record::MarkPut { directory, coordinator, attempt }])?;
    Ok(Progress::Done)
}

pub fn resolve_directory(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let ResolveDirectoryRequest { directory, attempt, removed } = ResolveDirectoryRequest::from_bytes(params)?;
    let (marked, buried) = {
        let tables = core.tables.borrow();
        // A mark of a later attempt or of another one is not ours to lift, unless the directory is gone.
        let marked = tables
            .marks
            .get(&directory.0)
            .is_some_and(|mark| removed || (mark.coordinator == caller.peer.from_server && mark.attempt <= attempt));
        (marked, tables.tombstones.contains_key(&directory.0))
    };
    let tombstone = if removed && !buried { Record::Tombstone(directory) } else { Record::Nothing };
    let mark = if marked { Record::MarkDelete(directory) } else { Record::Nothing };
    // The directory's name may be parted from its inode.
    let inode = if removed && !buried { Record::InodeDelete(directory) } else { Record::Nothing };
    if marked || tombstone != Record::Nothing {
        core.change([tombstone, mark, inode])?;
    }
    Ok(Progress::Done)
}
