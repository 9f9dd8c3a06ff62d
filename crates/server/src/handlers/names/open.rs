//! Open and OpenExisting: by name, creating and cutting as asked, as POSIX has it.

use crate::core::{Caller, Core, Failure};
use crate::files::inodes::Inode;
use crate::files::rights::inherit_group;
use crate::handlers::bytes::read_write::locate_start;
use crate::handlers::files::truncate;
use crate::handlers::names::lookup::missing_inode;
use crate::handlers::{DentryPosition, Progress, absent, check_directory, check_lock, check_mark, locate};
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::cursor_of;
use std::borrow::Cow;
use std::cell::Ref;
use std::rc::Rc;
use wire::messages::{OpenIdRequest, OpenReply, OpenRequest, open_flags};
use wire::submission::{Made, Submission};
use wire::{Decode, Encode, FileId, Kind, LayoutWish, Operation, Status};

/// Rights of `OpenRequest::access` that change a file.
const ACCESS_WRITE: u8 = 2;
/// What an open is told beside what it asks for.
const TOLD_BESIDE: u32 = open_flags::PLACES | open_flags::CONTENTS;
/// Permission bits that a submitted file may have.
const MODE_SUBMITTED: u32 = 0o1777;
const MUST_CREATE: u32 = open_flags::CREATE | open_flags::EXCLUSIVE;

pub fn open(
    core: &Rc<Core>,
    caller: &Caller,
    operation: Operation,
    params: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let request = OpenRequest::from_bytes(params)?;
    check_open(&request, operation)?;
    core.check_wish(&request.layout)?;
    let tables = core.tables.borrow();
    let place = locate(core, &tables, &request.entry)?;
    if let Some(blocked) = check_lock(&tables, &request.entry) {
        return Ok(blocked);
    }
    match tables.names.get(request.entry.parent, request.entry.name.as_bytes(), place.cursor) {
        Some((id, _)) => {
            core.store.prefetch(id.0);
            if request.flags & (open_flags::CREATE | open_flags::EXCLUSIVE) == MUST_CREATE {
                return Err(Status::Exists.into());
            }
            let inode = tables.inodes.get(id).ok_or_else(|| missing_inode(core, id))?;
            check_existing(caller, request.flags, request.access, &inode)?;
            finish(core, caller, tables, id, request.flags, reply)
        }
        None if request.flags & open_flags::CREATE == 0 => absent(&tables, request.entry.parent),
        None => create(core, caller, tables, &request, place, reply),
    }
}

/// The rest of an open whose name is on another server.
pub fn open_id(
    core: &Rc<Core>,
    caller: &Caller,
    operation: Operation,
    params: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let OpenIdRequest { file, flags, access } = OpenIdRequest::from_bytes(params)?;
    core.check_home(file)?;
    let cutting = flags & open_flags::TRUNCATE != 0;
    let allowed = open_flags::ALL & !open_flags::EXCLUSIVE | open_flags::NAMELESS;
    let wrong_places = cutting && flags & TOLD_BESIDE != 0;
    if flags & !allowed != 0 || access > 7 || wrong_places || cutting != (operation == Operation::OpenId) {
        return Err(Failure::with_text(Status::Invalid, "open flags or rights do not fit an open by id"));
    }
    let tables = core.tables.borrow();
    let inode = tables.inodes.get(file).ok_or_else(|| Failure::new(Status::StaleFile, file))?;
    if inode.attributes.link_count == 0 && flags & open_flags::NAMELESS == 0 {
        // The name was removed since it led here: whoever came by it looks for it again.
        return Err(Failure::new(Status::StaleFile, file));
    }
    check_existing(caller, flags, access, &inode)?;
    finish(core, caller, tables, file, flags, reply)
}

/// Opens what is there and may be opened, cutting it first where that is wanted.
fn finish(
    core: &Rc<Core>,
    caller: &Caller,
    tables: Ref<'_, Tables>,
    file: FileId,
    flags: u32,
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let Some(inode) = tables.inodes.get(file) else { unreachable!("the caller has just seen the inode") };
    if flags & open_flags::TRUNCATE == 0 {
        let kind = inode.attributes.kind;
        let wants_places = flags & open_flags::PLACES != 0 && kind == Kind::File;
        let places = if wants_places { locate_start(core, &inode.attributes) } else { None };
        tables.visible(&inode, core.index).encode(reply);
        false.encode(reply);
        drop(tables);
        core.opened(caller, file, kind)?.encode(reply);
        places.encode(reply);
        core.tell_contents(file, flags & open_flags::CONTENTS != 0, reply);
        return Ok(Progress::Done);
    }
    drop(tables);
    if let Some(leased) = core.read_lease_end(file) {
        return Ok(Progress::Blocked(leased));
    }
    let held = HeldOpen::new(core, file, core.open_number(caller, &[file])?);
    let session = caller.peer.session;
    match truncate::truncate(core, caller, file, 0, Some(held.number), reply) {
        Ok(Progress::Later(cut)) => Ok(Progress::Later(Box::pin(async move {
            let result = cut.await;
            held.end(session, result.is_ok());
            result
        }))),
        other => {
            held.end(session, other.is_ok());
            other
        }
    }
}

/// A file that is open until it has been cut, in nobody's name: what the session has opened before must outlive a
/// failure. A cut that is given up before it has begun ends it too.
struct HeldOpen {
    core: Rc<Core>,
    file: FileId,
    number: u64,
}

impl HeldOpen {
    fn new(core: &Rc<Core>, file: FileId, number: u64) -> HeldOpen {
        core.hold_open(file, number);
        HeldOpen { core: core.clone(), file, number }
    }

    /// Hands it over to the session, if the cut has succeeded.
    fn end(self, session: u64, is_open: bool) {
        if is_open {
            self.core.register_open(session, self.file, self.number);
        }
    }
}

impl Drop for HeldOpen {
    fn drop(&mut self) {
        self.core.closed(self.number, self.file, self.number);
    }
}

/// Refuses what an open can't ask for.
pub fn check_open(request: &OpenRequest<'_>, operation: Operation) -> Result<(), Failure> {
    let changing = open_flags::CREATE | open_flags::TRUNCATE | open_flags::EXCLUSIVE;
    if operation == Operation::Open && request.flags & TOLD_BESIDE != 0 {
        return Err(Failure::with_text(
            Status::Invalid,
            "an open that may create or cut is told neither places nor contents",
        ));
    }
    if request.flags & !open_flags::ALL != 0 || request.access > 7 {
        return Err(Failure::with_text(Status::Invalid, "open flags or rights are unknown"));
    }
    if operation == Operation::OpenExisting && request.flags & changing != 0 {
        return Err(Failure::with_text(Status::Invalid, "OpenExisting neither creates nor cuts"));
    }
    Ok(())
}

/// Whether what is there may be opened in this way.
fn check_existing(caller: &Caller, flags: u32, access: u8, inode: &Inode) -> Result<(), Failure> {
    let creating = flags & open_flags::CREATE != 0;
    match inode.attributes.kind {
        Kind::Symlink if flags & open_flags::NO_FOLLOW != 0 => return Err(Status::SymlinkLoop.into()),
        Kind::Symlink => {
            let text = Cow::Owned(inode.target().to_vec());
            return Err(Failure { text, ..Failure::new(Status::IsSymlink, inode.attributes.id) });
        }
        Kind::Directory => {
            let truncating = flags & open_flags::TRUNCATE != 0;
            if creating || truncating || access & ACCESS_WRITE != 0 {
                return Err(Status::IsDirectory.into());
            }
        }
        Kind::File => {}
        Kind::Fifo | Kind::Socket | Kind::CharacterDevice | Kind::BlockDevice => {
            return Err(Failure::new(Status::IsSpecial, inode.attributes.id));
        }
    }
    if !caller.may(&inode.attributes, access) {
        return Err(Status::AccessDenied.into());
    }
    Ok(())
}

fn create(
    core: &Rc<Core>,
    caller: &Caller,
    tables: Ref<'_, Tables>,
    request: &OpenRequest<'_>,
    place: DentryPosition,
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    if let Some(blocked) = check_mark(&tables, request.entry.parent) {
        return Ok(blocked);
    }
    if let Some(step) = core.check_share(&tables, caller, request.entry.parent) {
        return Ok(step);
    }
    drop(tables);
    let id = core.next_file(place.slot)?;
    core.prefetch_cell(id);
    let mut attributes = core.new_attributes(id, Kind::File, request.mode, caller, &request.layout);
    inherit_group(&mut attributes, request.group, caller.credentials());
    let open_number = core.open_number(caller, &[id])?;
    OpenReply { attributes: attributes.clone(), created: true, open_number, places: None, contents: None }
        .encode(reply);
    core.change([
        Record::DentryPut { parent: request.entry.parent, name: request.entry.name.as_bytes(), id, kind: Kind::File },
        Record::InodePut(Inode::new(attributes)),
        caller.outcome(reply),
    ])?;
    core.register_open(caller.peer.session, id, open_number);
    if let Some(queue) = caller.peer.queue {
        core.invite_submissions(queue, request.entry.parent);
    }
    Ok(Progress::Done)
}

/// A file that was made by a submission, for whoever submitted it, who holds it open (docs/shared-memory.md);
/// `taken` says which submission it is. Errors: it can't be made, which must not happen.
pub fn create_submitted(
    core: &Rc<Core>,
    submission: &Submission<'_>,
    made: &Made,
    taken: Record<'_>,
) -> Result<(), Failure> {
    let (parent, name, id) = (submission.parent, submission.name, submission.file);
    {
        let tables = core.tables.borrow();
        match tables.names.get(parent, name, cursor_of(parent, name)) {
            Some((known, Kind::File)) if known == id => return Err(Status::Exists.into()),
            Some(_) => return Err(Failure::with_text(Status::Busy, "there is another file of that name")),
            None => {}
        }
        let slot = core.cluster.dentry_slot(parent, name);
        let is_kept = tables.locks.of_dentry(parent, name).is_some()
            || check_mark(&tables, parent).is_some()
            || core.lacks_share(&tables, parent)
            || core.lacks_listing(&tables, parent)
            || check_directory(core, &tables, parent).is_err()
            || tables.check_not_removed(std::iter::once(parent)).is_err();
        let is_new = id == FileId::new(id.sequence(), slot)
            && id.sequence() < tables.next_number
            && core.owns_slot(slot)
            && !tables.inodes.contains(id);
        if is_kept || !is_new {
            return Err(Failure::with_text(Status::Busy, "something has to be done before the file can be made"));
        }
    }
    core.prefetch_cell(id);
    let wish = LayoutWish::of_chunk_size(made.chunk_size);
    let wish = if core.check_wish(&wish).is_ok() { wish } else { LayoutWish::default() };
    let attributes = core.attributes_of(id, Kind::File, made.mode & MODE_SUBMITTED, (made.uid, made.gid), &wish);
    let put = Record::DentryPut { parent, name, id, kind: Kind::File };
    core.change([put, Record::InodePut(Inode::new(attributes)), taken])
}
