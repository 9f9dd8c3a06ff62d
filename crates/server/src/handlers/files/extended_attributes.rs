//! Extended attributes: GetAttribute, SetAttribute, ListAttributes, RemoveAttribute, at the inode's home. Values and
//! lists travel as bodies.

use crate::backing::EXTENDED_MARK;
use crate::core::{Caller, Core, Failure, until};
use crate::files::inodes::Inode;
use crate::handlers::{Progress, WriteEnd};
use crate::journal::records::Record;
use reactor::{BodyPiece, Disconnected, Incoming, ReplyBody, Span};
use std::rc::Rc;
use wire::limits::EXTENDED_SIZE_MAX;
use wire::messages::{
    ExtendedReply, GetExtendedRequest, ListExtendedRequest, RemoveExtendedRequest, SetExtendedRequest, extended_flags,
};
use wire::{Attributes, Decode, FileId, Kind, Status};

/// Extended attributes may take one of so many parts of the size of the store.
const STORE_PARTS: u64 = 8;
const READ: u8 = 4;
const WRITE: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    /// Users' own, under the rights of the file.
    User,
    /// The superuser's own; hidden from others.
    Trusted,
    /// Read by all, written by the superuser.
    Security,
}

/// The name space of a name. Errors: `NotSupported` for those that are not kept, `Invalid` for a bare prefix.
fn space_of(name: &[u8]) -> Result<Space, Status> {
    let spaces: [(&[u8], Space); 3] =
        [(b"user.", Space::User), (b"trusted.", Space::Trusted), (b"security.", Space::Security)];
    let found = spaces.into_iter().find(|(prefix, _)| name.starts_with(prefix));
    match found.ok_or(Status::NotSupported)? {
        (prefix, _) if prefix.len() == name.len() => Err(Status::Invalid),
        (_, space) => Ok(space),
    }
}

/// Refuses what the rules of xattr(7) refuse.
fn check_access(caller: &Caller, attributes: &Attributes, name: &[u8], access: u8) -> Result<(), Status> {
    let is_root = caller.peer.user.is_root();
    let writes = access == WRITE;
    match space_of(name)? {
        Space::Trusted | Space::Security if is_root => Ok(()),
        Space::Security if !writes => Ok(()),
        Space::Trusted if !writes => Err(Status::NoAttribute),
        Space::Trusted | Space::Security => Err(Status::NotPermitted),
        Space::User if attributes.kind == Kind::Symlink || attributes.kind.is_special() => {
            Err(if writes { Status::NotPermitted } else { Status::NoAttribute })
        }
        Space::User => {
            let is_sticky = attributes.kind == Kind::Directory && attributes.mode & 0o1000 != 0;
            if writes && is_sticky && !caller.owns(attributes) {
                return Err(Status::NotPermitted);
            }
            if caller.may(attributes, access) { Ok(()) } else { Err(Status::AccessDenied) }
        }
    }
}

/// What a caller who takes `size_max` bytes gets.
fn answer(bytes: Vec<u8>, size_max: u32) -> Result<(ExtendedReply, ReplyBody), Failure> {
    let reply = ExtendedReply { size: bytes.len() as u32 };
    if size_max == 0 {
        return Ok((reply, ReplyBody::default()));
    }
    if bytes.len() > size_max as usize {
        return Err(Status::OutOfRange.into());
    }
    Ok((reply, ReplyBody { pieces: vec![BodyPiece::Bytes(bytes)], guard: None }))
}

pub fn get_extended(core: &Core, caller: &Caller, params: &[u8]) -> Result<(ExtendedReply, ReplyBody), Failure> {
    let request = GetExtendedRequest::from_bytes(params)?;
    core.check_home(request.file)?;
    let tables = core.tables.borrow();
    let inode = tables.inodes.get(request.file).ok_or_else(|| Failure::new(Status::StaleFile, request.file))?;
    check_access(caller, &inode.attributes, request.name.as_bytes(), READ)?;
    let value = tables.extended.get(request.file, request.name.as_bytes()).ok_or(Status::NoAttribute)?;
    answer(value.to_vec(), request.size_max)
}

pub fn list_extended(core: &Core, caller: &Caller, params: &[u8]) -> Result<(ExtendedReply, ReplyBody), Failure> {
    let request = ListExtendedRequest::from_bytes(params)?;
    core.check_home(request.file)?;
    let tables = core.tables.borrow();
    if !tables.inodes.contains(request.file) {
        return Err(Failure::new(Status::StaleFile, request.file));
    }
    let is_seen = |name: &[u8]| {
        !name.starts_with(EXTENDED_MARK) && (caller.peer.user.is_root() || !name.starts_with(b"trusted."))
    };
    let mut list = Vec::new();
    for (name, _) in tables.extended.of_inode(request.file).filter(|(name, _)| is_seen(name)) {
        list.extend_from_slice(name);
        list.push(0);
    }
    answer(list, request.size_max)
}

/// Receives the value beside the tables, then journals it in one step with the inode.
pub async fn set_extended(core: &Rc<Core>, caller: &Caller, incoming: &mut Incoming) -> Result<Vec<u8>, WriteEnd> {
    let params = std::mem::take(&mut incoming.params);
    let request = SetExtendedRequest::from_bytes(&params).map_err(Failure::from)?;
    let size = incoming.body_size();
    // What has to be fetched is, when the value has come: until then this client's connection stands still.
    check_set(core, caller, &request, size, core.lacks_extended(request.file))?;
    // A session has one value on its way, so that those who wait for room in the journal hold a bounded number.
    let turn = core.value_turns.take(caller.peer.session);
    let _turn = core.wait_until(caller.deadline, "another extended attribute of this client takes long", turn).await?;
    let place: Span = reactor::scratch(size);
    incoming.receive_body(std::slice::from_ref(&place)).await.map_err(|Disconnected| WriteEnd::Disconnected)?;
    core.until_journal_has_room(size, caller.deadline).await?;
    core.await_recalled_entries(caller).await?;
    know_others(core, caller, &request).await?;
    check_set(core, caller, &request, size, false)?;
    let mut value = vec![0; size];
    place.region.read(0, &mut value);
    let inode = changed(core, request.file)?;
    let (file, name) = (request.file, request.name.as_bytes());
    let mark = core.extended_mark(&inode.attributes, name);
    let mark = mark.as_deref().map(|name| Record::ExtendedPut { file, name, value: b"" });
    let put = Record::ExtendedPut { file, name, value: &value };
    core.change([Record::InodePut(inode), put, mark.unwrap_or(Record::Nothing), caller.outcome(&[])])?;
    Ok(Vec::new())
}

impl Core {
    /// Bytes that all extended attributes here may take.
    pub fn extended_size_max(&self) -> u64 {
        self.store.usage().size / STORE_PARTS
    }
}

/// Has those here that a file has behind before one is set.
async fn know_others(core: &Rc<Core>, caller: &Caller, request: &SetExtendedRequest<'_>) -> Result<(), Failure> {
    let is_user = matches!(space_of(request.name.as_bytes()), Ok(Space::User));
    if !is_user || !core.lacks_extended(request.file) {
        return Ok(());
    }
    let known = core.know_extended(request.file, caller.deadline);
    until(&core.reactor, caller.deadline, known).await.unwrap_or_else(|| Err(core.late()))
}

/// Refuses what can't be set; `lacks_others`: whether it exists is not known yet.
fn check_set(
    core: &Core,
    caller: &Caller,
    request: &SetExtendedRequest<'_>,
    size: usize,
    lacks_others: bool,
) -> Result<(), Failure> {
    let (file, name) = (request.file, request.name.as_bytes());
    core.check_home(file)?;
    let tables = core.tables.borrow();
    let inode = tables.inodes.get(file).ok_or_else(|| Failure::new(Status::StaleFile, file))?;
    check_access(caller, &inode.attributes, name, WRITE)?;
    if size > EXTENDED_SIZE_MAX {
        return Err(Status::ArgumentTooLarge.into());
    }
    let exists = tables.extended.get(file, name).is_some();
    match request.flags {
        extended_flags::CREATE | extended_flags::REPLACE if lacks_others => {}
        extended_flags::CREATE if exists => return Err(Status::Exists.into()),
        extended_flags::REPLACE if !exists => return Err(Status::NoAttribute.into()),
        0 | extended_flags::CREATE | extended_flags::REPLACE => {}
        _ => return Err(Failure::with_text(Status::Invalid, "flags of the extended attribute are not known")),
    }
    tables.extended.check_room(file, name, size, core.extended_size_max()).map_err(|status| {
        Failure::with_text(status, "the file's or the server's extended attributes have no room for this one")
    })
}

pub fn remove_extended(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let request = RemoveExtendedRequest::from_bytes(params)?;
    let (file, name) = (request.file, request.name.as_bytes());
    core.check_home(file)?;
    let inode = changed(core, file)?;
    check_access(caller, &inode.attributes, name, WRITE)?;
    if core.tables.borrow().extended.get(file, name).is_none() {
        return Err(Status::NoAttribute.into());
    }
    let mark = core.extended_mark(&inode.attributes, name);
    let mark = mark.as_deref().map(|name| Record::ExtendedPut { file, name, value: b"" });
    let delete = Record::ExtendedDelete { file, name };
    core.change([Record::InodePut(inode), delete, mark.unwrap_or(Record::Nothing), caller.outcome(&[])])?;
    Ok(Progress::Done)
}

/// The inode as it is once an extended attribute has changed.
fn changed(core: &Core, file: FileId) -> Result<Inode, Failure> {
    let mut inode = core.inode(file)?;
    inode.attributes.ctime = core.clock.time();
    inode.attributes.version += 1;
    Ok(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the name spaces of xattr(7), and nothing else.
    #[test]
    fn spaces() {
        assert!(matches!(space_of(b"user.x"), Ok(Space::User)));
        assert!(matches!(space_of(b"trusted.x"), Ok(Space::Trusted)));
        assert!(matches!(space_of(b"security.x"), Ok(Space::Security)));
        assert_eq!(space_of(b"user.").err(), Some(Status::Invalid));
        for name in [b"system.posix_acl_access".as_slice(), b"user", b"other.x", b".x"] {
            assert_eq!(space_of(name).err(), Some(Status::NotSupported));
        }
    }
}
