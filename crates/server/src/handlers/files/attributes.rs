//! SetAttributes (chmod, chown, utimens), and Close, which settles sizes and times in.

use crate::core::{Caller, Core, Failure};
use crate::files::inodes::Inode;
use crate::files::rights;
use crate::handlers::{EncodedParams, Progress, later};
use crate::journal::records::Record;
use crate::process::statistics::waits::{WaitReason, because};
use std::rc::Rc;
use wire::messages::{EntryReply, SetAttributesRequest, set_mask};
use wire::{Attributes, Decode, Encode, Kind, Status};

const TIMES: u32 = set_mask::ATIME | set_mask::MTIME | set_mask::ATIME_NOW | set_mask::MTIME_NOW;
/// Sets after which others may open the file.
const RIGHTS: u32 = set_mask::MODE | set_mask::UID | set_mask::GID;
/// Sets that anyone with write access may do: both times to now.
const TOUCH: u32 = set_mask::ATIME_NOW | set_mask::MTIME_NOW;

pub fn set_attributes(
    core: &Rc<Core>,
    caller: &Caller,
    params: &[u8],
    reply: &mut Vec<u8>,
) -> Result<Progress, Failure> {
    let request = SetAttributesRequest::from_bytes(params)?;
    core.check_home(request.file)?;
    let inode = core.inode(request.file)?;
    if inode.attributes.kind == Kind::Directory {
        return crate::handlers::directories::attributes::set_attributes(core, caller, request, reply);
    }
    check(caller, &request, &inode.attributes)?;
    let changes_rights = request.mask & RIGHTS != 0;
    if changes_rights && let Some(delegated) = core.recall_delegations(request.file) {
        return Ok(Progress::Blocked(delegated));
    }
    if !inode.is_announced() && !core.turns.is_taken(request.file.0) {
        set(core, caller, &request, inode, reply)?;
        return Ok(Progress::Done);
    }
    let (core, caller) = (core.clone(), caller.clone());
    later(async move {
        let turn = core.turns.take(request.file.0);
        let turn =
            core.wait_until(caller.deadline, "another change of the file's size or times takes long", turn).await?;
        // Announced times end before explicit ones begin, so that no late one can undo these. And who writes to what is
        // to be a set-user program has to say so anew, which ends that. Who announces itself meanwhile is asked again,
        // and from then on nobody else can.
        let is_set_user = request.mask & set_mask::MODE != 0 && rights::has_dropped_bits(request.mode);
        let retract = request.mask & TIMES != 0 || is_set_user;
        let mut closed = None;
        let (glimpse, mut inode) = loop {
            let glimpse = core.glimpse_in_turn(request.file, retract, &turn).await?;
            while changes_rights && let Some(delegated) = core.recall_delegations(request.file) {
                let ended = because(WaitReason::Lock, delegated.wait());
                core.wait_until(caller.deadline, "delegations of the file take long to end", ended).await?;
            }
            let inode = core.inode(request.file)?;
            if !retract || !inode.is_announced() {
                break (glimpse, inode);
            }
            closed.get_or_insert_with(|| core.close_to_announcements(request.file, &turn));
        };
        check(&caller, &request, &inode.attributes)?;
        // What was glimpse is true and the turn is ours, so that the inode may know it.
        inode.attributes.size = inode.attributes.size.max(glimpse.size);
        inode.attributes.mtime = inode.attributes.mtime.max(glimpse.mtime);
        let mut bytes = Vec::new();
        set(&core, &caller, &request, inode, &mut bytes)?;
        Ok(EncodedParams(bytes))
    })
}

fn set(
    core: &Rc<Core>,
    caller: &Caller,
    request: &SetAttributesRequest,
    mut inode: Inode,
    reply: &mut Vec<u8>,
) -> Result<(), Failure> {
    inode.attributes = changed(core, caller, request, &inode.attributes);
    EntryReply { attributes: inode.attributes.clone(), target: b"" }.encode(reply);
    core.change([Record::InodePut(inode), caller.outcome(reply)])
}

/// Whether someone has less rights on a directory afterwards, or what is created in it gets others.
pub fn restricts(request: &SetAttributesRequest, old: &Attributes) -> bool {
    let asks = |bits: u32| request.mask & bits != 0;
    let taken = old.mode & !request.mode & 0o777 != 0 || (old.mode ^ request.mode) & 0o7000 != 0;
    (asks(set_mask::MODE) && taken)
        || (asks(set_mask::UID) && request.uid != old.uid)
        || (asks(set_mask::GID) && request.gid != old.gid)
}

pub fn check(caller: &Caller, request: &SetAttributesRequest, attributes: &Attributes) -> Result<(), Failure> {
    let asks = |bits: u32| request.mask & bits != 0;
    if request.mask & !set_mask::ALL != 0 {
        return Err(Failure::with_text(Status::Invalid, "unknown attributes are to be set"));
    }
    let owns = caller.owns(attributes);
    if asks(set_mask::MODE) && !owns {
        return Err(Status::NotPermitted.into());
    }
    let root = caller.credentials().is_root();
    if asks(set_mask::UID) && !root && !(owns && request.uid == attributes.uid) {
        return Err(Status::NotPermitted.into());
    }
    let own_group = request.gid == attributes.gid || caller.credentials().is_in_group(request.gid);
    if asks(set_mask::GID) && !root && !(owns && own_group) {
        return Err(Status::NotPermitted.into());
    }
    if asks(TIMES) && !owns {
        let touching = request.mask & TIMES == TOUCH;
        return match touching && caller.may(attributes, 2) {
            true => Ok(()),
            false if touching => Err(Status::AccessDenied.into()),
            false => Err(Status::NotPermitted.into()),
        };
    }
    Ok(())
}

/// The attributes after a change; times that were glimpse before are not in them.
pub fn changed(core: &Core, caller: &Caller, request: &SetAttributesRequest, attributes: &Attributes) -> Attributes {
    let now = core.clock.time();
    let asks = |bits: u32| request.mask & bits != 0;
    let mut attributes = attributes.clone();
    if asks(set_mask::UID | set_mask::GID) {
        // Before they end: a mode in the same request is the new owner's.
        rights::drop_for_owner(&mut attributes, caller.credentials());
    }
    if asks(set_mask::UID) {
        attributes.uid = request.uid;
    }
    if asks(set_mask::GID) {
        attributes.gid = request.gid;
    }
    if asks(set_mask::MODE) {
        attributes.mode = rights::chosen_mode(request.mode, attributes.gid, caller.credentials());
    }
    if asks(set_mask::ATIME) {
        attributes.atime = request.atime;
    }
    if asks(set_mask::MTIME) {
        attributes.mtime = request.mtime;
    }
    if asks(set_mask::ATIME_NOW) {
        attributes.atime = now;
    }
    if asks(set_mask::MTIME_NOW) {
        attributes.mtime = now;
    }
    if asks(TIMES) {
        // Later than all that was glimpse, and than the last time.
        attributes.times_set = now.max(attributes.ctime).max(attributes.times_set.saturating_add(1));
    }
    attributes.ctime = now;
    attributes.version += 1;
    attributes
}
