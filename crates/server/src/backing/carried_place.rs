//! The end of carrying an inode: what was written behind under a hidden name gets its own, and that is where the inode
//! is from then on. A later attempt, or a later life, finds out how far an earlier one has come. Part of `carry`, whose
//! invariants hold here.

use super::carry::{is_next, known_found, request_name, words};
use super::shares::CarriedShare;
use crate::core::{Core, Failure, Notice};
use crate::journal::records::Record;
use reactor::backing::{BackingAttributes, BackingDirectory, RenameMode};
use std::rc::Rc;
use wire::messages::*;
use wire::{Attributes, FileId, Operation, Status};

/// The number of no wish.
const NO_WISH: u64 = 0;

/// A file that is being given its name behind, or a directory that has got it.
#[derive(Clone, Default)]
pub struct MovingPlace {
    /// Told when its place is journalled.
    pub done: Notice<()>,
    /// Its place from when it has its name on; the names of its directory have to be synced still, which may take long.
    pub place: Option<BackingPlace>,
}

impl Core {
    /// Gives what was written under a hidden name its own; `written` is what that has, if it is known. Returns what is
    /// behind there now, and what became of somebody else's that was there.
    pub(super) async fn give_name(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        (parent, hidden, name): (&BackingDirectory, &[u8], &[u8]),
        attributes: &Attributes,
        written: Option<BackingAttributes>,
    ) -> Result<(KnownBehind, Vec<u8>), Failure> {
        let backing = self.backing();
        let failed = |error| backing.failure(error);
        let written = match written {
            Some(written) => written,
            None => parent.look(hidden).await.map_err(failed)?,
        };
        if !request.is_parked() {
            self.note_next(request, known_found(&written)).await?;
        }
        // Where nothing ought to be the rename sees whether that is so.
        let (mut is_looked_at, mut found, mut settled) = (false, None, Vec::new());
        if request.known.is_some() {
            (is_looked_at, found) = (true, backing.look_for(parent, name).await?);
        }
        loop {
            if let Some(theirs) = found.take_if(|found| !self.may_be_replaced(request, found)) {
                settled = self.settle_conflict(request, (parent, hidden, name), attributes, &theirs).await?;
            }
            let place = self.place_of(request, &written, attributes, self.base_of(request.id));
            if self.is_journal_low() {
                self.checkpoints.finished().wait().await;
            }
            self.change([Record::NextPut { id: request.id, place: place.clone() }])?;
            self.syncs.durable().await?;
            let moving = MovingPlace::default();
            backing.moving.borrow_mut().insert(request.id.0, moving.clone());
            let replaces = is_looked_at && found.is_some();
            let named = self.rename_hidden(request, (parent, hidden, name), replaces, &place).await;
            backing.moving.borrow_mut().remove(&request.id.0);
            moving.done.tell(());
            match named {
                Ok(found) => return Ok((known_found(&found), settled)),
                Err(failure) if failure.status == Status::Exists && is_looked_at => {
                    return Err(self.end_conflict(request, (parent, hidden, name), attributes).await);
                }
                Err(failure) if failure.status == Status::Exists => {
                    (is_looked_at, found) = (true, backing.look_for(parent, name).await?);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn rename_hidden(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        (parent, hidden, name): (&BackingDirectory, &[u8], &[u8]),
        replaces: bool,
        place: &BackingPlace,
    ) -> Result<BackingAttributes, Failure> {
        let backing = self.backing();
        let renamed = match replaces {
            true => parent.rename(hidden, parent, name, RenameMode::Replace).await,
            false => parent.rename_new(hidden, parent, name).await,
        };
        let is_ours = |found: &BackingAttributes| is_next(found, &place.known());
        let found = match renamed {
            Ok(found) if is_ours(&found) => found,
            Ok(_) => return Err(words("somebody else is changing the same name there")),
            Err(error) if error.is_taken() && !replaces => return Err(Status::Exists.into()),
            // It may have happened all the same: whether it has is to be seen.
            Err(error) => match backing.look_for(parent, name).await?.filter(is_ours) {
                Some(found) => found,
                None => return Err(backing.failure(error)),
            },
        };
        let KnownBehind { inode, size, mtime, ctime } = known_found(&found);
        let place = BackingPlace { inode, size, mtime, ctime, ..place.clone() };
        if let Some(moving) = backing.moving.borrow_mut().get_mut(&request.id.0) {
            moving.place = Some(place.clone());
        }
        backing.sync_names(parent).await?;
        self.leave(request.id, request.parent, request_name(request)).await?;
        self.put_carried_here(request.id, place, &|| CarriedShare::Unknown).await?;
        Ok(found)
    }

    /// Tells the holders where the file is now; what none of them has changed is carried.
    pub(super) async fn settle_place(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        holders: &[u32],
        wish: u64,
    ) -> Result<(), Failure> {
        let place = self.tables.borrow().backing.place(request.id).cloned();
        let Some(place) = place else { return Ok(()) };
        for holder in holders.iter().filter(|holder| **holder != self.index) {
            let wish = if self.backing().is_cut_since(request.id, wish) { NO_WISH } else { wish };
            let note = NoteCarriedRequest { file: request.id, wish, place: place.clone() };
            // One that can't be told leaves the file changed, so that it is carried again.
            let _: Empty = self.peers.call(*holder, Operation::NoteCarried, &note, None).await?;
        }
        self.put_carried_here(request.id, place, &|| self.backing().carried_by(request.id, wish)).await
    }

    /// Notes a place at the home, if the inode is here still.
    pub(super) async fn put_carried_here(
        self: &Rc<Self>,
        id: FileId,
        place: BackingPlace,
        carried: &dyn Fn() -> CarriedShare,
    ) -> Result<(), Failure> {
        if self.is_journal_low() {
            self.checkpoints.finished().wait().await;
        }
        // Of a directory that is gone the place is wanted until it is gone behind.
        let kind = self.tables.borrow().inodes.kind(id);
        if kind.is_none() && place.base > 0 {
            return Err(Failure::new(Status::StaleFile, id));
        }
        if kind.is_none() {
            return Ok(());
        }
        self.put_carried(id, place, carried).await
    }

    pub(super) fn base_of(&self, id: FileId) -> u64 {
        self.tables.borrow().backing.place(id).map_or(0, |place| place.base)
    }

    pub(super) fn place_of(
        &self,
        request: &CarryInodeRequest,
        found: &BackingAttributes,
        attributes: &Attributes,
        base: u64,
    ) -> BackingPlace {
        let identity = &found.identity;
        BackingPlace {
            parent: request.parent,
            path: request.path.clone(),
            device: identity.device,
            inode: identity.inode,
            size: identity.size,
            mtime: identity.mtime,
            ctime: identity.ctime,
            base,
            carried: base,
            chunk_size: attributes.layout.chunk_size,
            has_links: false,
        }
    }

    /// Finishes what an earlier attempt, or an earlier life, may have begun: if the file has got its name it is there.
    pub(super) async fn take_next_place(self: &Rc<Self>, id: FileId) -> Result<(), Failure> {
        self.take_next_place_as(id, false).await
    }

    /// The same, by whoever carries the file if `is_carrier`: nobody else has to wait for what is not there then.
    pub(super) async fn take_next_place_as(self: &Rc<Self>, id: FileId, is_carrier: bool) -> Result<(), Failure> {
        let next = self.tables.borrow().backing.next(id).cloned();
        let Some(next) = next else { return Ok(()) };
        let backing = self.backing();
        let opened = self.open_parent_of(&next).await?;
        let found = backing.look_for(&opened, next.name()).await?;
        let old = self.tables.borrow().backing.place(id).cloned();
        let seen = next.clone();
        let is_settled = || self.tables.borrow().backing.next(id) != Some(&seen);
        match (found.filter(|found| is_next(found, &next.known())), old) {
            (Some(found), _) => {
                backing.sync_names(&opened).await?;
                let KnownBehind { inode, size, mtime, ctime } = known_found(&found);
                self.leave(id, next.parent, next.name()).await?;
                let base = self.base_of(id);
                let place = match next.is_being_written() {
                    // Somebody may write to it still: its identity is known when an update of it has ended well.
                    true => BackingPlace { size, base, ..next },
                    false => BackingPlace { inode, size, mtime, ctime, base, ..next },
                };
                // Somebody else has seen it meanwhile, and may know more by now.
                if is_settled() {
                    return Ok(());
                }
                self.put_carried_here(id, place, &|| CarriedShare::Unknown).await
            }
            // It is not there: what was known before holds.
            (None, Some(old)) if is_carrier || !self.is_carrying(id) => {
                self.put_carried_here(id, old, &|| CarriedShare::Unknown).await
            }
            _ => Ok(()),
        }
    }
}
