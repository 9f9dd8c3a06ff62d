//! Opens through a contact server: OpenThrough, which clients ask of the contact; Delegate, CloseHeld and
//! ReclaimHeld, which the contact asks of a file's home; and Recall, which the home asks of the contact.

use crate::core::{Caller, Core, Failure};
use crate::handlers::names::open::check_open;
use crate::handlers::{Progress, check_directory, check_lock, locate, path_of};
use crate::journal::records::Record;
use crate::leases::contact::ContactAnswer;
use crate::leases::delegations::DELEGATION_MS;
use crate::sessions::expiry::start_expiry;
use reactor::Peer;
use std::rc::Rc;
use wire::handshake::Role;
use wire::identity::dentry_hash;
use wire::messages::{
    CloseHeldRequest, Delegation, DelegationReply, DelegationRequest, OpenReply, OpenRequest, OpenThroughReply,
    RecallRequest, ReclaimHeldRequest, ReclaimReply, open_flags,
};
use wire::operation::LEVEL_COORDINATION;
use wire::{Attributes, Decode, Encode, Kind, Operation, Slot, Status};

pub fn open_through(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = OpenRequest::from_bytes(params)?;
    check_open(&request, Operation::OpenExisting)?;
    if request.flags & (open_flags::PLACES | open_flags::CONTENTS) != 0 {
        return Err(Failure::with_text(Status::Invalid, "a contact tells neither places nor contents"));
    }
    let entry = &request.entry;
    let hash = dentry_hash(entry.parent, entry.name.as_bytes());
    let home = core.cluster.server_of((hash % u64::from(core.cluster.slot_count)) as Slot);
    {
        let tables = core.tables.borrow();
        tables.check_not_removed(path_of(entry))?;
        tables.tree.check(entry.known, path_of(entry))?;
        if let Some(moving) = tables.tree.wait_for(entry.known, path_of(entry)) {
            return Ok(Progress::Blocked(moving));
        }
        check_directory(core, &tables, entry.parent)?;
    }
    let answer = if home == core.index { ContactAnswer::Unknown } else { core.ask_contact(home, hash, entry) };
    let held = match answer {
        ContactAnswer::Asking(asked) => return Ok(Progress::Blocked(asked)),
        ContactAnswer::Unknown => None,
        ContactAnswer::Delegated(attributes) if !caller.may(&attributes, request.access) => {
            return Err(Status::AccessDenied.into());
        }
        ContactAnswer::Delegated(attributes) => {
            let open_number = core.opened(caller, attributes.id, attributes.kind)?;
            Some(OpenReply { attributes, created: false, open_number, places: None, contents: None })
        }
    };
    OpenThroughReply { held }.encode(reply);
    Ok(Progress::Done)
}

/// What may be delegated is delegated at once or not at all: whoever is refused has its clients ask here, where they
/// wait as always.
pub fn delegation(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let entry = DelegationRequest::from_bytes(params)?.entry;
    let attributes = {
        let tables = core.tables.borrow();
        let place = locate(core, &tables, &entry)?;
        let is_locked = check_lock(&tables, &entry).is_some();
        let found = tables.names.get(entry.parent, entry.name.as_bytes(), place.cursor).filter(|_| !is_locked);
        let inode = found.and_then(|(id, _)| tables.inodes.get(id));
        // One with several names may be about to lose another of them, whose lock is not looked at here.
        let may_be = |attributes: &Attributes| attributes.kind == Kind::File && attributes.link_count == 1;
        inode.map(|inode| inode.attributes.clone()).filter(may_be)
    };
    let granted = attributes.filter(|attributes| core.leases.delegations.has_room(attributes.id, core.reactor.now()));
    let delegated = match granted {
        None => {
            core.leases.delegations.note_refused();
            None
        }
        Some(attributes) => {
            core.add_contact(caller)?;
            if !core.tables.borrow().delegations_given {
                core.change([Record::DelegationsGiven(true)])?;
            }
            let open_number = core.opened(caller, attributes.id, attributes.kind)?;
            core.note_delegation(attributes.id, caller.peer.from_server);
            Some(Delegation { attributes, open_number, delegation_ms: DELEGATION_MS })
        }
    };
    DelegationReply { delegated }.encode(reply);
    Ok(Progress::Done)
}

/// Waits for nothing, so that a change at the home never waits for one here.
pub fn recall(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let RecallRequest { file, number } = RecallRequest::from_bytes(params)?;
    let home = caller.peer.from_server;
    if core.cluster.home_of(file) != Some(home) {
        return Err(Failure::with_text(Status::BadMessage, "only a file's home calls delegations back"));
    }
    core.recalled(home, file, number);
    Ok(Progress::Done)
}

pub fn close_held(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    for closed in CloseHeldRequest::from_bytes(params)?.closed.0 {
        core.check_home(closed.file)?;
        core.closed(caller.peer.session, closed.file, closed.number);
    }
    core.end_contact(caller)?;
    Ok(Progress::Done)
}

pub fn reclaim_held(core: &Rc<Core>, caller: &Caller, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let ReclaimHeldRequest { files, since, last } = ReclaimHeldRequest::from_bytes(params)?;
    for file in &files.0 {
        core.check_home(*file)?;
    }
    core.add_contact(caller)?;
    // However much it has open: what it does not know of is closed by its list alone.
    let number = core.next_open_number()?;
    for file in core.registrable(&files.0) {
        core.register_open(caller.peer.session, file, number);
    }
    if last {
        core.closed_before(caller.peer.session, if since == 0 { number } else { since });
        core.reclaimed(caller.peer.session);
        core.end_contact(caller)?;
    }
    ReclaimReply { number }.encode(reply);
    Ok(Progress::Done)
}

/// Whether a connection is the one over which a contact has files open.
fn is_of_contact(peer: &Peer) -> bool {
    peer.role == Role::Server && peer.level == LEVEL_COORDINATION
}

impl Core {
    /// A server has connected. One that has files open here is known as a session meanwhile; whether this one is. Of
    /// others nothing is to be known.
    pub fn contact_connected(self: &Rc<Self>, peer: &Peer, welcomes: u64) -> bool {
        if !is_of_contact(peer) {
            return true;
        }
        self.leases.delegations.note_connected(peer.from_server, peer.connection);
        let known = self.tables.borrow().sessions.is_known(peer.session);
        if known && welcomes == 0 {
            self.reclaimed(peer.session);
        }
        known || welcomes == 0
    }

    /// A connection has gone, which may have been that of a contact.
    pub fn contact_disconnected(&self, peer: &Peer) {
        if is_of_contact(peer) {
            self.leases.delegations.note_disconnected(peer.from_server, peer.connection);
        }
    }

    /// Knows a contact as a session, as which it has files open: for as long as it has any and is heard of within the
    /// time of grace, for the connection of a machine that has gone may seem to stand for ever.
    fn add_contact(self: &Rc<Self>, caller: &Caller) -> Result<(), Failure> {
        let session = caller.peer.session;
        if !self.leases.delegations.is_connected(caller.peer.from_server, caller.peer.connection) {
            // It has gone since it asked: it does not wait for an answer, and would never close what it was given now.
            return Err(Failure::with_text(Status::Unreachable, "the contact has gone"));
        }
        if !self.tables.borrow().sessions.is_known(session) {
            self.add_session(session, 0)?;
            start_expiry(self);
        }
        let now = self.reactor.now();
        self.tables.borrow_mut().sessions.heard(session, now);
        Ok(())
    }

    /// Forgets a contact that has nothing open.
    fn end_contact(self: &Rc<Self>, caller: &Caller) -> Result<(), Failure> {
        let session = caller.peer.session;
        let ended = {
            let tables = self.tables.borrow();
            tables.sessions.is_known(session) && tables.open.has_none(session)
        };
        if ended { self.change([Record::SessionDelete(session)]) } else { Ok(()) }
    }
}
