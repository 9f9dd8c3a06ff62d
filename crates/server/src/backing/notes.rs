//! What the servers of names know of what is behind there, told by those who carry.
//!
//! Invariants
//! 1. What is about to be put at a name is noted before it is, and refused where something else is to be there by now.
//! 2. What was concluded from an older note is not noted over a newer one (`have_noted_if`).

use super::carry::request_name;
use crate::core::{Core, Failure};
use crate::handlers::{Progress, later};
use crate::journal::records::Record;
use crate::names::cursor_of;
use std::rc::Rc;
use wire::messages::*;
use wire::{Decode, FileId, Kind, Operation, Status};

/// `NoteBehind`, at the server of a name.
pub fn note_behind(core: &Rc<Core>, params: &[u8]) -> Result<Progress, Failure> {
    let request = NoteBehindRequest::from_bytes(params)?;
    core.check_backing()?;
    let core = core.clone();
    later(async move {
        core.note_behind(request).await?;
        Ok(Empty {})
    })
}

impl Core {
    pub(super) async fn note_next(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        next: KnownBehind,
    ) -> Result<(), Failure> {
        let next = Some(NextBehind { known: next, id: request.id });
        let behind = NameBehind { known: request.known.clone(), next, same_as: request.same_as };
        self.have_noted(request.parent, request_name(request), behind).await
    }

    pub(super) async fn note_now(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        known: &KnownBehind,
    ) -> Result<(), Failure> {
        let behind = NameBehind { known: Some(known.clone()), next: None, same_as: request.id };
        self.have_noted(request.parent, request_name(request), behind).await
    }

    /// Has the server of a name know what is behind there.
    pub(super) async fn have_noted(
        self: &Rc<Self>,
        directory: FileId,
        name: &[u8],
        behind: NameBehind,
    ) -> Result<(), Failure> {
        let server = self.cluster.dentry_server(directory, name);
        let request = NoteBehindRequest { directory, name: name.to_vec(), behind, kind: note_kinds::NOW, seen: None };
        self.send_note(server, request).await
    }

    /// The same for what was concluded from what somebody saw noted: not if that is old by now. Whether it is noted.
    pub(super) async fn have_noted_if(
        self: &Rc<Self>,
        (directory, name): (FileId, &[u8]),
        behind: NameBehind,
        seen: NameBehind,
    ) -> Result<bool, Failure> {
        let server = self.cluster.dentry_server(directory, name);
        let (name, seen) = (name.to_vec(), Some(seen));
        let request = NoteBehindRequest { directory, name, behind, kind: note_kinds::NOW, seen };
        match self.send_note(server, request).await {
            Ok(()) => Ok(true),
            Err(failure) if failure.status == Status::Busy => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    pub(super) async fn send_note(self: &Rc<Self>, server: u32, request: NoteBehindRequest) -> Result<(), Failure> {
        if server == self.index {
            return self.note_behind(request).await;
        }
        let _: Empty = self.peers.call(server, Operation::NoteBehind, &request, None).await?;
        Ok(())
    }

    async fn note_behind(self: &Rc<Self>, request: NoteBehindRequest) -> Result<(), Failure> {
        if self.is_journal_low() {
            self.checkpoints.finished().wait().await;
        }
        // Of a link this server alone knows, and nothing there tells what was known of it.
        let next = request.behind.next.as_ref();
        let may_have_links = request.behind.known.as_ref().is_some_and(KnownBehind::may_have_links)
            || next.is_some_and(|next| next.known.ctime == CTIME_OF_LINKS);
        match request.kind {
            note_kinds::NOW => self.note_there(request)?,
            note_kinds::LEFT => self.note_left(request.directory, &request.name, request.behind)?,
            note_kinds::LINKED => self.note_linked(request.directory, &request.name, request.behind)?,
            _ => return Err(Status::BadMessage.into()),
        }
        if may_have_links { self.syncs.durable().await } else { Ok(()) }
    }

    fn note_there(self: &Rc<Self>, request: NoteBehindRequest) -> Result<(), Failure> {
        let NoteBehindRequest { directory, name, behind, kind: _, seen } = request;
        if name.is_empty() {
            return self.change([Record::DirectoryForgotten(directory)]);
        }
        let is_same = {
            let tables = self.tables.borrow();
            let here = tables.names.get(directory, &name, cursor_of(directory, &name));
            let noted = tables.backing.difference(directory, &name);
            if noted == Some(&behind) {
                return Ok(());
            }
            if seen.is_some_and(|seen| seen != noted.cloned().unwrap_or_else(nothing_behind)) {
                return Err(Failure::with_text(Status::Busy, "somebody has carried it meanwhile"));
            }
            // Whoever is about to put something there has to know what is to be there now.
            let inode = |of: &NameBehind| of.known.as_ref().map(|known| known.inode);
            let noted_inode = noted.and_then(inode);
            let is_late = |next: &NextBehind| {
                here.is_none_or(|(id, _)| id != next.id)
                    || noted_inode.is_some() && noted_inode != inode(&behind) && !is_own(noted, &behind)
            };
            if behind.next.as_ref().is_some_and(is_late) {
                return Err(Failure::with_text(Status::Busy, "it was changed while it was carried behind"));
            }
            // Nothing on either side needs no record, unless somebody might look for it.
            here.is_none() && behind.known.is_none() && behind.next.is_none()
        };
        let (name, carried) = (name.as_slice(), behind.same_as);
        self.change([match is_same {
            true => Record::DifferenceDelete { directory, name },
            false => Record::DifferencePut { directory, name, behind },
        }])?;
        // From now on it is looked at again, for somebody else may change it.
        self.note_shown(directory, carried);
        Ok(())
    }

    fn note_left(self: &Rc<Self>, directory: FileId, name: &[u8], left: NameBehind) -> Result<(), Failure> {
        let behind = {
            let tables = self.tables.borrow();
            let here = tables.names.get(directory, name, cursor_of(directory, name));
            match tables.backing.difference(directory, name) {
                Some(noted) if noted.same_as == left.same_as => {
                    // A directory takes all with it.
                    let known = left.known.as_ref().and(noted.known.clone());
                    Some(NameBehind { known, same_as: FileId::default(), ..noted.clone() })
                }
                None if here.is_some_and(|(id, _)| id == left.same_as) => {
                    Some(NameBehind { same_as: FileId::default(), ..left })
                }
                _ => None,
            }
        };
        let is_here = self.tables.borrow().names.get(directory, name, cursor_of(directory, name)).is_some();
        match behind {
            Some(behind) if !is_here && behind.known.is_none() && behind.next.is_none() => {
                self.change([Record::DifferenceDelete { directory, name }])
            }
            Some(behind) => self.change([Record::DifferencePut { directory, name, behind }]),
            None => Ok(()),
        }
    }

    /// What is known at a name is known as one of several from now on, if it is that of the note.
    fn note_linked(self: &Rc<Self>, directory: FileId, name: &[u8], linked: NameBehind) -> Result<(), Failure> {
        let behind = {
            let tables = self.tables.borrow();
            let here = tables.names.get(directory, name, cursor_of(directory, name));
            let inode = |of: &NameBehind| of.known.as_ref().map(|known| known.inode);
            match tables.backing.difference(directory, name) {
                Some(noted) if noted.same_as == linked.same_as && inode(noted) == inode(&linked) => {
                    NameBehind { known: linked.known, ..noted.clone() }
                }
                None if here.is_some_and(|(id, _)| id == linked.same_as) => linked,
                _ => return Ok(()),
            }
        };
        self.change([Record::DifferencePut { directory, name, behind }])
    }

    /// Tells the name that an inode has behind, before it has another one there: a name that it keeps here differs
    /// then.
    pub(super) async fn leave(self: &Rc<Self>, id: FileId, directory: FileId, name: &[u8]) -> Result<(), Failure> {
        let old = self.tables.borrow().backing.place(id).cloned();
        let is_left = |old: &BackingPlace| {
            old.inode != 0 && (old.parent, old.name()) != (directory, name) && !self.is_hidden(old.name())
        };
        let Some(old) = old.filter(is_left) else { return Ok(()) };
        // A directory takes all with it, so that nothing is there.
        let is_directory = self.tables.borrow().inodes.kind(id) == Some(Kind::Directory);
        let known = (!is_directory).then(|| old.known());
        self.leave_name(id, (old.parent, old.name()), known).await
    }

    /// Tells a name that what is behind there is nothing's, if it was an inode's.
    pub(super) async fn leave_name(
        self: &Rc<Self>,
        id: FileId,
        (directory, name): (FileId, &[u8]),
        known: Option<KnownBehind>,
    ) -> Result<(), Failure> {
        let behind = NameBehind { known, next: None, same_as: id };
        let server = self.cluster.dentry_server(directory, name);
        let name = name.to_vec();
        let request = NoteBehindRequest { directory, name, behind, kind: note_kinds::LEFT, seen: None };
        self.send_note(server, request).await
    }
}

/// Whether what is known now is what somebody was about to put there.
fn is_own(noted: Option<&NameBehind>, behind: &NameBehind) -> bool {
    let next = noted.and_then(|noted| noted.next.as_ref());
    next.zip(behind.known.as_ref())
        .is_some_and(|(next, known)| next.known.inode == known.inode || next.known.inode == 0)
}

/// Of a name that nothing is known of behind.
pub fn nothing_behind() -> NameBehind {
    NameBehind { known: None, next: None, same_as: FileId::default() }
}
