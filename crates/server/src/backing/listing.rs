//! Listings: a server reads the names of a directory behind and takes up those that belong to it. Each does so for its
//! own share of the names and needs no other one for that; the directory is listed here then, and absence is known.

use super::failed_names::{FAILED_NAMES_MAX, FailedEntries};
use super::places::DirectoryBehind;
use super::{add, joined, names};
use crate::core::{Core, Failure, Notice, all, until};
use crate::journal::records::Record;
use crate::names::cursor_of;
use reactor::backing::{BackingAttributes, BackingDirectory, BackingError, FileKind, ListEntry, ListPosition};
use reactor::{Class, LocalFuture, Nanos};
use std::rc::Rc;
use wire::{FileId, Name, Status};

/// Attempts at a directory that changes while it is listed.
const ATTEMPTS_MAX: u32 = 8;
/// Names that one call looks at, and calls that a listing has under way.
const CALL_LOOKS: usize = 16;
const CALLS_AT_ONCE: usize = 4;
/// A look of a listing may take this part of a server's time-out, and a smaller one once others have taken all of it.
const LOOK_PART: Nanos = 4;
const LOOK_PART_LATER: Nanos = 32;

/// What a listing waits for of one of its names, and of some: what can't be looked at comes back, with why.
type Look = LocalFuture<Result<Option<(ListEntry, Failure)>, Failure>>;
type Looks = LocalFuture<Result<Vec<(ListEntry, Failure)>, Failure>>;

impl Core {
    /// Has all names of a directory known that belong to this server. One listing serves all who wait for it.
    pub(super) async fn list_behind(self: &Rc<Self>, directory: FileId, deadline: Nanos) -> Result<(), Failure> {
        if !self.needs_listing(&self.tables.borrow(), directory) {
            return Ok(());
        }
        let under_way = self.backing().listings.borrow().get(&directory.0).cloned();
        let brought = under_way.unwrap_or_else(|| self.start_listing(directory));
        self.wait_for_backing(&brought, deadline).await
    }

    /// Begins to list a directory, unless somebody does.
    pub fn start_listing(self: &Rc<Self>, directory: FileId) -> Notice<Result<(), Failure>> {
        if let Some(under_way) = self.backing().listings.borrow().get(&directory.0) {
            return under_way.clone();
        }
        let notice = Notice::new();
        self.backing().listings.borrow_mut().insert(directory.0, notice.clone());
        let (core, told) = (self.clone(), notice.clone());
        self.reactor.spawn(Class::Metadata, async move {
            let result = core.list_now(directory).await;
            core.backing().listings.borrow_mut().remove(&directory.0);
            core.backing().disturbed.borrow_mut().remove(&directory.0);
            told.tell(result);
        });
        notice
    }

    async fn list_now(self: &Rc<Self>, directory: FileId) -> Result<(), Failure> {
        add(&self.backing().counters.listings, 1);
        let (place, behind) = self.open_behind(directory, self.reactor.now() + self.options.timeout).await?;
        let failed = |error| self.backing().failure(error);
        for _ in 0..ATTEMPTS_MAX {
            let start = self.reactor.now();
            self.backing().disturbed.borrow_mut().remove(&directory.0);
            let before = behind.look_open().await.map_err(failed)?.identity;
            let mut failed_names = self.take_up_all(directory, &place, &behind).await?;
            self.check_unmet(directory, start).await;
            let after = behind.look_open().await.map_err(failed)?.identity;
            // A name that was forgotten meanwhile may have been passed over.
            if before == after && !self.backing().disturbed.borrow_mut().remove(&directory.0) {
                let is_there = {
                    let tables = self.tables.borrow();
                    // Others may have been found by themselves meanwhile.
                    failed_names.retain(|(_, name), _| self.is_unknown(&tables, directory, name));
                    tables.check_not_removed(std::iter::once(directory))?;
                    crate::handlers::check_directory(self, &tables, directory)?;
                    !tables.backing.is_listed(directory)
                };
                return match failed_names.is_empty() {
                    true if is_there => {
                        self.change([Record::Listed(directory)])?;
                        self.note_listed_as(directory, (after.mtime, after.ctime));
                        Ok(())
                    }
                    true => Ok(()),
                    false => {
                        self.backing().put_failed_names(directory, failed_names, self.reactor.now());
                        Ok(())
                    }
                };
            }
        }
        let path = &place.path;
        let words = format!("backing directory: {} changes all the time while it is listed", path.escape_ascii());
        Err(Failure::with_text(Status::Busy, words))
    }

    /// Takes up all names of an open directory that belong here. Those that can't be looked at come back.
    async fn take_up_all(
        self: &Rc<Self>,
        directory: FileId,
        place: &DirectoryBehind,
        behind: &BackingDirectory,
    ) -> Result<FailedEntries, Failure> {
        let failed = |error| self.backing().failure(error);
        let known = (place.clone(), behind.clone());
        let listing = behind.open_listing().await.map_err(failed)?;
        let mut from = Some(ListPosition::default());
        let mut failed_names = FailedEntries::new();
        let mut part = LOOK_PART;
        while let Some(position) = from {
            let piece = listing.list(position).await.map_err(failed)?;
            from = piece.next;
            let entries: Vec<ListEntry> = {
                let tables = self.tables.borrow();
                let is_wanted = |entry: &ListEntry| {
                    let name = &*entry.name;
                    let is_own = Name::new(name).is_ok() && self.cluster.dentry_server(directory, name) == self.index;
                    if is_own {
                        self.note_met(&tables, directory, name, entry.inode);
                    }
                    is_own && self.is_unknown(&tables, directory, name)
                };
                piece.entries.into_iter().filter(is_wanted).collect()
            };
            for some in entries.chunks(CALL_LOOKS * CALLS_AT_ONCE) {
                let patience = self.options.timeout / part;
                let look = |some: &[ListEntry]| {
                    Box::pin(self.clone().take_up_some(directory, known.clone(), some.to_vec(), patience)) as Looks
                };
                for looked in all(some.chunks(CALL_LOOKS).map(look).collect()).await {
                    for (entry, failure) in looked? {
                        if failure.status == Status::TimedOut {
                            part = LOOK_PART_LATER;
                        }
                        if failed_names.len() == FAILED_NAMES_MAX.min(self.backing().memos) {
                            return Err(failure);
                        }
                        // Others have found out meanwhile what is there.
                        if !self.is_unknown(&self.tables.borrow(), directory, &entry.name) {
                            continue;
                        }
                        let slot = self.cluster.dentry_slot(directory, &entry.name);
                        let id = FileId::taken_up(self.next_number()?, slot);
                        let kind = names::kind_of(entry.kind.unwrap_or(FileKind::File));
                        failed_names.insert((cursor_of(directory, &entry.name), entry.name), (id, kind));
                    }
                }
            }
            self.reactor.yield_now().await;
        }
        Ok(failed_names)
    }

    /// Takes up some names of a listing. Those that can't be looked at come back: if one of them makes all of them
    /// late, each is looked at by itself.
    async fn take_up_some(
        self: Rc<Self>,
        directory: FileId,
        (place, behind): (DirectoryBehind, BackingDirectory),
        entries: Vec<ListEntry>,
        patience: Nanos,
    ) -> Result<Vec<(ListEntry, Failure)>, Failure> {
        let names: Vec<_> = entries.iter().map(|entry| entry.name.clone()).collect();
        add(&self.backing().counters.looks, names.len() as u64);
        let limit = self.reactor.now() + patience / 2;
        let mut found = match until(&self.reactor, limit, behind.look_all(&names)).await {
            Some(Ok(found)) => found.into_iter(),
            _ => Vec::new().into_iter(),
        };
        let limit = self.reactor.now() + patience / 2;
        let take_up = |entry| {
            let known = (place.clone(), behind.clone());
            Box::pin(self.clone().take_up_listed(directory, known, entry, found.next(), limit)) as Look
        };
        let looked = all(entries.into_iter().map(take_up).collect()).await;
        looked.into_iter().filter_map(Result::transpose).collect()
    }

    /// Takes up one name of a listing, which was looked at or has to be. Comes back if it can't be, by itself.
    async fn take_up_listed(
        self: Rc<Self>,
        directory: FileId,
        (place, behind): (DirectoryBehind, BackingDirectory),
        entry: ListEntry,
        found: Option<Result<BackingAttributes, BackingError>>,
        limit: Nanos,
    ) -> Result<Option<(ListEntry, Failure)>, Failure> {
        let name = &*entry.name;
        let backing = self.backing();
        let found = match found {
            Some(found) => Some(found),
            None => {
                add(&backing.counters.looks, 1);
                until(&self.reactor, limit, behind.look(name)).await
            }
        };
        let found = match found {
            None => return Ok(Some((entry, self.late()))),
            Some(Ok(found)) => found,
            Some(Err(error)) => {
                let failure = match error.path() == joined(&place.path, name) {
                    // It is gone meanwhile.
                    true if error.is_not_found() => return Ok(None),
                    true => backing.failure(error),
                    false => return Err(backing.failure(error)),
                };
                return Ok(Some((entry, failure)));
            }
        };
        let deadline = self.reactor.now().saturating_add(Nanos::MAX / 4);
        match self.take_up_found(directory, &place.path, name, found, deadline).await {
            Ok(false) => Box::pin(self.clone().take_up_listed(directory, (place, behind), entry, None, limit)).await,
            Err(failure) if failure.status == Status::TooLarge => Ok(Some((entry, failure))),
            result => result.map(|_| None),
        }
    }
}
