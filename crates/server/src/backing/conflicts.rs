//! What becomes of a name behind that somebody else has changed, at the home of the inode that is to have it
//! (`--on-conflict`). Directories are nobody's to settle: where either side has one, both stay, and it is listed.
//!
//! Ours that was put beside theirs is not written again by later flushes, as long as both are as they were.
//!
//! Invariants
//! 1. Nothing of theirs is replaced or removed: it keeps its name, or is renamed to one that nothing has.
//! 2. Ours is given up only if nothing else of it is behind or has a name here: no other place, no second name.

use super::BackingFault;
use super::carry::{is_at, is_known, known_found, may_lose_name, request_name, words};
use crate::core::{Core, Failure};
use crate::process::options::ConflictPolicy;
use reactor::backing::{BackingAttributes, BackingDirectory, FileKind, RenameMode};
use reactor::log::{self, Level};
use std::rc::Rc;
use wire::messages::{BackingPlace, CarryInodeRequest, KnownBehind, NameBehind};
use wire::{Attributes, Status};

/// Files that were put beside others that are remembered.
const BESIDES_MAX: usize = 1024;
pub(super) const SOMEBODY: &str = "somebody else has changed it there";

/// Ours that was put beside theirs. In memory alone: the next life writes it once more.
pub struct Beside {
    /// The path that it was to have.
    path: Vec<u8>,
    /// What it was when it was written, but for its atime.
    attributes: Attributes,
    /// What it is known by there.
    known: KnownBehind,
}

/// The failure that says that ours is to be given up.
fn conflict() -> Failure {
    Failure::with_text(Status::Exists, SOMEBODY)
}

/// Whether a carry has failed only for that.
pub fn is_conflict(failure: &Failure) -> bool {
    failure.status == Status::Exists
}

/// What a flush says of ours that is beside theirs.
fn is_beside(beside: &[u8]) -> Failure {
    words(format!("{SOMEBODY}; theirs keeps the name, ours is beside it as {}", beside.escape_ascii()))
}

fn without_atime(attributes: &Attributes) -> Attributes {
    Attributes { atime: 0, ..attributes.clone() }
}

impl Core {
    /// Whether what has a name behind is what a wish may replace there.
    pub(super) fn may_be_replaced(&self, request: &CarryInodeRequest, found: &BackingAttributes) -> bool {
        let tables = self.tables.borrow();
        let own = tables.backing.place(request.id).filter(|own| is_at(own, request)).map(BackingPlace::known);
        // A name of our own is nobody else's.
        !self.checks_identity()
            || self.backing().has_fault(BackingFault::ReplacesOthers)
            || request.is_parked()
            || request.known.as_ref().is_some_and(|known| match request.same_as == request.id {
                true => is_known(found, known),
                false => may_lose_name(found, known),
            })
            || own.as_ref().is_some_and(|own| is_known(found, own))
    }

    /// Whether ours gives way to what somebody else has put at its name.
    fn gives_way(&self, request: &CarryInodeRequest, found: &BackingAttributes) -> bool {
        let tables = self.tables.borrow();
        let has_one_name = tables.inodes.get(request.id).is_some_and(|inode| inode.attributes.link_count == 1);
        let is_elsewhere =
            tables.backing.place(request.id).is_some_and(|place| place.inode != 0 && !is_at(place, request));
        self.backing().on_conflict == ConflictPolicy::Theirs
            && found.kind != FileKind::Directory
            && has_one_name
            && !is_elsewhere
    }

    /// Before a file is written: it need not be if it gives way in any case, and what is behind alone of it may be
    /// gone.
    pub(super) async fn check_gives_way(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        parent: &BackingDirectory,
    ) -> Result<(), Failure> {
        if self.backing().on_conflict != ConflictPolicy::Theirs {
            return Ok(());
        }
        let found = self.backing().look_for(parent, request_name(request)).await?;
        match found.filter(|found| !self.may_be_replaced(request, found)) {
            Some(found) if self.gives_way(request, &found) => Err(conflict()),
            _ => Ok(()),
        }
    }

    /// The failure of a wish whose file is beside theirs already, as it is now: nothing has to be written.
    pub(super) async fn beside_still(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        (parent, name): (&BackingDirectory, &[u8]),
        attributes: &Attributes,
    ) -> Result<Option<Failure>, Failure> {
        let backing = self.backing();
        let known = {
            let besides = backing.besides.borrow();
            let is_same =
                |beside: &&Beside| beside.path == request.path && beside.attributes == without_atime(attributes);
            let Some(beside) = besides.get(&request.id.0).filter(is_same) else { return Ok(None) };
            beside.known.clone()
        };
        let theirs = backing.look_for(parent, name).await?;
        if theirs.is_none_or(|theirs| self.may_be_replaced(request, &theirs)) {
            return Ok(None);
        }
        let beside = self.name_beside(name, request.id);
        let ours = backing.look_for(parent, &beside).await?;
        Ok(ours.filter(|ours| is_known(ours, &known)).map(|_| is_beside(&beside)))
    }

    /// What is written under a hidden name meets with somebody else's. Returns what became of that, if the name is free
    /// now.
    pub(super) async fn settle_conflict(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        (parent, hidden, name): (&BackingDirectory, &[u8], &[u8]),
        attributes: &Attributes,
        found: &BackingAttributes,
    ) -> Result<Vec<u8>, Failure> {
        match self.backing().on_conflict {
            ConflictPolicy::Ours if found.kind != FileKind::Directory => {
                match self.move_aside((parent, name), &request.path, found).await {
                    Ok(told) => Ok(told),
                    Err(_) => Err(self.put_beside(request, (parent, hidden, name), attributes).await),
                }
            }
            ConflictPolicy::Theirs if self.gives_way(request, found) => {
                self.take_back_next(request).await?;
                Err(conflict())
            }
            _ => Err(self.put_beside(request, (parent, hidden, name), attributes).await),
        }
    }

    /// Somebody has come in between.
    pub(super) async fn end_conflict(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        at: (&BackingDirectory, &[u8], &[u8]),
        attributes: &Attributes,
    ) -> Failure {
        if self.backing().on_conflict == ConflictPolicy::Both {
            return self.put_beside(request, at, attributes).await;
        }
        match self.take_back_next(request).await {
            Ok(()) => words("somebody else is changing the same name there"),
            Err(failure) => failure,
        }
    }

    /// Moves theirs out of the way, to a name that nothing has. Returns what to tell of it.
    pub(super) async fn move_aside(
        self: &Rc<Self>,
        (parent, name): (&BackingDirectory, &[u8]),
        path: &[u8],
        found: &BackingAttributes,
    ) -> Result<Vec<u8>, Failure> {
        let backing = self.backing();
        let aside = super::hidden::name_of_theirs(name, found.identity.inode);
        let renamed = parent.rename_new(name, parent, &aside).await;
        // It may have happened all the same.
        let moved = backing.look_for(parent, &aside).await?;
        if let Err(error) = renamed
            && moved.is_none_or(|moved| moved.identity.inode != found.identity.inode)
        {
            return Err(backing.failure(error));
        }
        backing.sync_names(parent).await?;
        let told = format!("{SOMEBODY}; ours has the name, theirs is beside it as {}", aside.escape_ascii());
        log::event(Level::Warning, "conflict-settled", &told, &[("path", &path.escape_ascii())]);
        Ok(told.into_bytes())
    }

    /// Theirs keeps the name. Returns what is told of that.
    async fn put_beside(
        self: &Rc<Self>,
        request: &CarryInodeRequest,
        (parent, hidden, name): (&BackingDirectory, &[u8], &[u8]),
        attributes: &Attributes,
    ) -> Failure {
        let (backing, beside) = (self.backing(), self.name_beside(name, request.id));
        let renamed = parent.rename(hidden, parent, &beside, RenameMode::Replace).await;
        let noted = self.take_back_next(request).await;
        match (renamed, noted) {
            (Err(error), _) => return backing.failure(error),
            (_, Err(failure)) => return failure,
            _ => {}
        }
        // Where that can't be told, it is written again.
        if let Ok(Some(found)) = backing.look_for(parent, &beside).await {
            let (path, attributes) = (request.path.clone(), without_atime(attributes));
            let mut besides = backing.besides.borrow_mut();
            if besides.len() >= BESIDES_MAX.min(backing.memos) {
                besides.clear();
            }
            besides.insert(request.id.0, Beside { path, attributes, known: known_found(&found) });
        }
        is_beside(&beside)
    }

    /// Nothing is about to be put at the name of a wish any more.
    async fn take_back_next(self: &Rc<Self>, request: &CarryInodeRequest) -> Result<(), Failure> {
        let behind = NameBehind { known: request.known.clone(), next: None, same_as: request.same_as };
        self.have_noted(request.parent, request_name(request), behind).await
    }
}
