//! Rights of the directories on a path. Whoever holds the cluster's key is trusted with the user that it names, so they
//! are checked here, by what was last seen of the directories; those of the inode itself are checked at its home.
//!
//! Invariants
//! 1. What allows is never older than the last tree change that the client was told of: servers tell of rights that
//!    were taken away, and refuse requests of those who do not know yet; `DirectoryCache::forget` drops what was seen.
//! 2. What denies was asked for after the operation began: rights that were added are not told of.

use crate::error::{Attempt, RequestError};
use crate::names::directory_cache::Directory;
use crate::names::resolve::EntryTarget;
use crate::servers::Servers;
use std::rc::Rc;
use wire::credentials::{Credentials, access};
use wire::{Attributes, Kind, Operation, Status};

const SETGID: u32 = 0o2000;
const STICKY: u32 = 0o1000;

/// What of a directory's attributes says who may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rights {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Rights {
    pub(crate) fn of(attributes: &Attributes) -> Rights {
        Rights { mode: attributes.mode, uid: attributes.uid, gid: attributes.gid }
    }

    fn allow(&self, user: &Credentials, wanted: u8) -> bool {
        user.may_by(Kind::Directory, self.mode, self.uid, self.gid, wanted)
    }
}

/// Whether the name that an operation is about has to be there.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Wanted {
    Present,
    Absent,
}

impl Servers {
    fn is_own(&self, user: &Credentials) -> bool {
        std::ptr::eq(user, &self.options.user)
    }

    /// Errors: `AccessDenied` when the user may not search the directory, or one on the way to it.
    pub(crate) async fn search(&self, user: &Credentials, directory: &Rc<Directory>) -> Attempt<()> {
        if user.is_root() || self.is_searchable(user, directory) {
            return Ok(());
        }
        let mut way = vec![directory];
        while let Some(parent) = &way[way.len() - 1].parent {
            way.push(parent);
        }
        for directory in way.into_iter().rev() {
            self.demand(user, directory, access::EXECUTE).await?;
        }
        Ok(())
    }

    /// Whether what was last seen lets the user search a directory and all on the way to it.
    fn is_searchable(&self, user: &Credentials, directory: &Directory) -> bool {
        let epoch = self.cache.borrow().rights_epoch();
        let own = self.is_own(user);
        let mut here = Some(directory);
        while let Some(directory) = here {
            if own && directory.searchable_in.get() == epoch {
                break;
            }
            if !directory.rights.get().is_some_and(|rights| rights.allow(user, access::EXECUTE)) {
                return false;
            }
            here = directory.parent.as_deref();
        }
        if own {
            directory.searchable_in.set(epoch);
        }
        true
    }

    /// Errors: `AccessDenied` when the caller has not all of the rights wanted to the directory itself.
    pub(crate) async fn permit(&self, directory: &Directory, wanted: u8) -> Attempt<()> {
        if self.user().is_root() {
            return Ok(());
        }
        self.demand(self.user(), directory, wanted).await
    }

    async fn demand(&self, user: &Credentials, directory: &Directory, wanted: u8) -> Attempt<()> {
        if directory.rights.get().is_some_and(|rights| rights.allow(user, wanted)) {
            return Ok(());
        }
        let rights = self.look_at(directory).await?;
        if rights.allow(user, wanted) {
            return Ok(());
        }
        let Rights { mode, uid, gid } = rights;
        let right = match wanted {
            access::READ => "list",
            access::WRITE => "change names in",
            _ => "search",
        };
        let words = format!(
            "permission denied: user {} may not {right} directory {directory} (mode {mode:04o}, owner {uid}, group \
             {gid})",
            user.uid
        );
        Err(RequestError::Local(Status::AccessDenied, words))
    }

    /// What a directory's home says now.
    async fn look_at(&self, directory: &Directory) -> Attempt<Rights> {
        let known = self.tree_known();
        let attributes = match self.look_id(directory.id).await {
            Err(request_error) if matches!(request_error.status(), Status::StaleFile | Status::StaleDirectory) => {
                self.cache.borrow_mut().forget(directory.id);
                return Err(request_error);
            }
            other => other?,
        };
        let rights = Rights::of(&attributes);
        // What was said before a change that is known by now may be out of date (invariant 1).
        if known == self.tree_known() {
            self.cache.borrow_mut().note_rights(directory, rights);
        }
        Ok(rights)
    }

    pub(crate) async fn known_rights(&self, directory: &Directory) -> Attempt<Rights> {
        match directory.rights.get() {
            Some(rights) => Ok(rights),
            None => self.look_at(directory).await,
        }
    }

    /// Whether names may be changed in an entry's directory. Where they may not, whether the name itself is there is
    /// what callers are told first, as on any system. Errors: `AccessDenied`; `Exists`, `NotFound`.
    pub(crate) async fn permit_change(&self, entry: &EntryTarget, wanted: Wanted) -> Attempt<()> {
        let denied = match self.permit(&entry.parent, access::WRITE).await {
            Err(request_error) if request_error.status() == Status::AccessDenied => request_error,
            other => return other,
        };
        match self.look_up(entry, Operation::Lookup).await {
            Ok(_) if wanted == Wanted::Absent => Err(RequestError::local(Status::Exists)),
            Err(request_error) if wanted == Wanted::Present || request_error.status() != Status::NotFound => {
                Err(request_error)
            }
            _ => Err(denied),
        }
    }

    /// Errors: `NotFound` when an entry is not there, `NotPermitted` when its directory is sticky and it is another
    /// user's.
    pub(crate) async fn permit_taking(&self, entry: &EntryTarget) -> Attempt<()> {
        let (attributes, _) = self.look_up(entry, Operation::Lookup).await?;
        let restricted = self.is_restricted(&entry.parent).await?;
        if restricted && !self.user().owns(&attributes) {
            return Err(RequestError::local(Status::NotPermitted));
        }
        Ok(())
    }

    /// The group of what is made in a directory, when that is the directory's own (setgid) and not the caller's.
    pub(crate) async fn inherited_group(&self, directory: &Directory) -> Attempt<Option<u32>> {
        let rights = self.known_rights(directory).await?;
        Ok((rights.mode & SETGID != 0).then_some(rights.gid))
    }

    /// Whether the caller may remove, rename or replace only what is his own in a directory.
    pub(crate) async fn is_restricted(&self, directory: &Directory) -> Attempt<bool> {
        let user = self.user();
        if user.is_root() {
            return Ok(false);
        }
        let rights = self.known_rights(directory).await?;
        Ok(rights.mode & STICKY != 0 && rights.uid != user.uid)
    }

    /// Whether a directory that had restricted the caller does so no more. A refusal is asked about once (invariant 2).
    pub(crate) async fn was_freed(&self, directory: &Directory) -> Attempt<bool> {
        let before = directory.rights.get();
        Ok(before != Some(self.look_at(directory).await?) && !self.is_restricted(directory).await?)
    }
}
