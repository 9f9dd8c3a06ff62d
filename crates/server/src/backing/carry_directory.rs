//! Carrying a directory behind, at its home: it is made where it is not there yet, or moved with all that is in it if
//! it was moved here, and gets its rights.

use super::attributes_behind::set_rights;
use super::carried_place::MovingPlace;
use super::carry::{Carried, NOT_EMPTY, is_at, is_known, known_found, request_name, words};
use super::shares::CarriedShare;
use crate::core::{Core, Failure};
use crate::files::inodes::Inode;
use crate::journal::records::Record;
use reactor::backing::{BackingAttributes, BackingDirectory, FileKind, RenameMode};
use std::rc::Rc;
use wire::messages::*;
use wire::{Attributes, FileId};

/// What stands for a directory that is not there yet.
const NEW_DIRECTORY: KnownBehind = KnownBehind { inode: 0, size: 0, mtime: 0, ctime: 0 };

impl Core {
    pub(super) async fn carry_directory(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        inode: &Inode,
    ) -> Result<Carried, Failure> {
        let backing = self.backing();
        let failed = |error| backing.failure(error);
        let (parent, _, name) = self.open_parent(request).await?;
        let attributes = &inode.attributes;
        self.move_directory(request, (&parent, name)).await?;
        let was_there = backing.look_for(&parent, name).await?.is_some();
        if !was_there {
            self.note_next(request, NEW_DIRECTORY).await?;
            match parent.make_directory(name, 0o700).await {
                Err(error) if !error.is_taken() => return Err(failed(error)),
                _ => {}
            }
        }
        let found = backing.look_for(&parent, name).await?;
        let found = found.filter(|found| found.kind == FileKind::Directory);
        let found = found.ok_or_else(|| words("there is something else there that is no directory"))?;
        if was_there && self.checks_identity() && !self.may_be_own(request, &found) {
            return Err(backing.changed(&request.path));
        }
        // Their rights may forbid it later.
        let extended = self.carry_extended(request.id, (&parent, name), was_there).await?;
        set_rights(backing, &parent, name, attributes, &found).await?;
        backing.sync_names(&parent).await?;
        let known = known_found(&found);
        let place = self.place_of(request, &found, attributes, 0);
        let is_changed =
            || has_other_rights(self, request.id, attributes) || self.directory_extended(request.id) != extended;
        self.put_carried_here(request.id, place, &|| match is_changed() {
            true => CarriedShare::Unknown,
            false => CarriedShare::Whole,
        })
        .await?;
        self.forget_marks(request.id, &extended)?;
        if !request.is_parked() {
            self.note_now(request, &known).await?;
        }
        Ok(Carried { known, settled: Vec::new() })
    }

    /// Moves a directory behind to where it is here, with all that is in it. Whoever has a path that leads through it
    /// finds that out when he meets with something else there (`open_behind`).
    async fn move_directory(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        (parent, name): (&BackingDirectory, &[u8]),
    ) -> Result<(), Failure> {
        let backing = self.backing();
        let old = self.tables.borrow().backing.place(request.id).cloned();
        let Some(old) = old.filter(|old| old.inode != 0 && !is_at(old, request)) else { return Ok(()) };
        let place = BackingPlace { parent: request.parent, path: request.path.clone(), ..old.clone() };
        let old_parent = self.open_parent_of(&old).await?;
        let is_it = |found: &BackingAttributes| found.kind == FileKind::Directory && found.identity.inode == old.inode;
        let there = backing.look_for(parent, name).await?;
        // Else an earlier attempt has moved it.
        if !there.as_ref().is_some_and(is_it) {
            if !backing.look_for(&old_parent, old.name()).await?.as_ref().is_some_and(is_it) {
                return Err(backing.changed(&old.path));
            }
            let is_known =
                |found: &BackingAttributes| request.known.as_ref().is_some_and(|known| is_known(found, known));
            let mode = match &there {
                None => RenameMode::NoReplace,
                Some(found) if is_known(found) && found.kind == FileKind::Directory => RenameMode::Replace,
                Some(_) => return Err(words("there is something else of that name there")),
            };
            if !request.is_parked() {
                self.note_next(request, KnownBehind { inode: old.inode, ..NEW_DIRECTORY }).await?;
            }
            if self.is_journal_low() {
                self.checkpoints.finished().wait().await;
            }
            self.change([Record::NextPut { id: request.id, place: place.clone() }])?;
            self.syncs.durable().await?;
            let renamed = match mode {
                RenameMode::NoReplace => old_parent.rename_new(old.name(), parent, name).await,
                mode => old_parent.rename(old.name(), parent, name, mode).await,
            };
            let now = backing.look_for(parent, name).await?;
            match (now.as_ref().is_some_and(is_it), renamed) {
                (true, _) => {}
                (false, Err(error)) if error.is_not_empty() => return Err(words(NOT_EMPTY)),
                (false, Err(error)) => return Err(backing.failure(error)),
                (false, Ok(_)) => return Err(words("somebody else is changing the same name there")),
            }
        }
        // Who asks for its place is told from here on, whatever the rest takes.
        let moving = MovingPlace { place: Some(place.clone()), ..MovingPlace::default() };
        backing.moving.borrow_mut().insert(request.id.0, moving.clone());
        let ended = self.end_move(request, place, (parent, &old_parent)).await;
        backing.moving.borrow_mut().remove(&request.id.0);
        moving.done.tell(());
        ended
    }

    /// The rest of a move, when the directory is where it is to be.
    async fn end_move(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        place: BackingPlace,
        (parent, old_parent): (&BackingDirectory, &BackingDirectory),
    ) -> Result<(), Failure> {
        let backing = self.backing();
        backing.sync_names(parent).await?;
        backing.sync_names(old_parent).await?;
        self.leave(request.id, request.parent, request_name(request)).await?;
        self.put_carried_here(request.id, place, &|| CarriedShare::Unknown).await
    }

    /// Whether a directory that is there already is this one: the one that it was, or that an earlier flush made; or
    /// anybody's, if it was never there.
    fn may_be_own(&self, request: &CarryInodeRequest, found: &BackingAttributes) -> bool {
        let tables = self.tables.borrow();
        let own = tables.backing.place(request.id).filter(|own| is_at(own, request) && own.inode != 0);
        own.is_none_or(|own| own.inode == found.identity.inode)
            || request.known.as_ref().is_some_and(|known| is_known(found, known))
    }
}

/// Whether a directory's rights were changed since attributes of it were read.
fn has_other_rights(core: &Core, id: FileId, attributes: &Attributes) -> bool {
    let rights = |of: &Attributes| (of.mode, of.uid, of.gid);
    core.inode(id).is_ok_and(|inode| rights(&inode.attributes) != rights(attributes))
}
