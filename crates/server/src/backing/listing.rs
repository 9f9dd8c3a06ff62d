//! Listings: a server reads the names of a directory behind and takes up those that belong to it. Each does so for its
//! own share of the names and needs no other one for that; the directory is listed here then, and absence is known.
//!
//! First all names are read, and shown to whoever wants no more than names and kinds (`listed_names.rs`). Then each is
//! looked at, sixteen by one call: directories first, so that searches go on below, then in the order in which pages
//! show them, from the page on that somebody waits for.

use super::listed_names::{FAILED_NAMES_MAX, ListedNames, ListingNeed};
use super::places::DirectoryBehind;
use super::{add, joined};
use crate::core::{Core, Failure, Notice, all, until};
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use reactor::backing::{BackingAttributes, BackingDirectory, BackingError, BackingListing, ListPosition};
use reactor::{Class, LocalFuture, Nanos};
use std::cell::RefCell;
use std::rc::Rc;
use wire::{FileId, Name, Status};

/// Attempts at a directory that changes while it is listed.
const ATTEMPTS_MAX: u32 = 8;
/// Names that one call looks at, and calls that a listing has under way.
const CALL_LOOKS: usize = 16;
const CALLS_AT_ONCE: usize = 8;
/// A look of a listing may take this part of a server's time-out, and a smaller one once others have taken all of it.
const LOOK_PART: Nanos = 4;
const LOOK_PART_LATER: Nanos = 32;

/// Told when a listing has come further: nothing, or how it has ended.
pub(super) type ListingStep = Notice<Option<Result<(), Failure>>>;

/// A name in the table of its directory.
type NameToLook = (usize, Box<[u8]>);
/// What a listing waits for of one of its names, and of some: why it can't be looked at, if so.
type Look = LocalFuture<Result<(usize, Option<Failure>), Failure>>;
type Looks = LocalFuture<Result<Vec<(usize, Option<Failure>)>, Failure>>;

impl Core {
    /// Whether a directory has to be listed, or its listing has to come further, for what somebody needs of it.
    pub(super) fn needs_listing(&self, tables: &Tables, directory: FileId, need: ListingNeed) -> bool {
        self.lacks_listing(tables, directory) && !self.shows_listed_names(directory, need)
    }

    /// Has of the names of a directory that belong to this server known what somebody needs. One listing serves all who
    /// wait for it.
    pub(super) async fn list_behind(
        self: &Rc<Self>,
        directory: FileId,
        need: ListingNeed,
        deadline: Nanos,
    ) -> Result<(), Failure> {
        while self.needs_listing(&self.tables.borrow(), directory, need) {
            let step = self.start_listing(directory);
            self.note_need(directory, need);
            match until(&self.reactor, deadline, step.wait()).await {
                Some(None) => {}
                Some(Some(result)) => return result,
                None => return Err(self.late()),
            }
        }
        Ok(())
    }

    /// Begins to list a directory, unless somebody does.
    pub(super) fn start_listing(self: &Rc<Self>, directory: FileId) -> ListingStep {
        if let Some(under_way) = self.backing().listings.borrow().get(&directory.0) {
            return under_way.clone();
        }
        let step = ListingStep::new();
        self.backing().listings.borrow_mut().insert(directory.0, step.clone());
        let core = self.clone();
        self.reactor.spawn(Class::Metadata, async move {
            let result = core.list_now(directory).await;
            let backing = core.backing();
            let last = backing.listings.borrow_mut().remove(&directory.0);
            backing.disturbed.borrow_mut().remove(&directory.0);
            backing.end_listed_names(directory);
            last.iter().for_each(|step| step.tell(Some(result.clone())));
        });
        step
    }

    /// Tells who waits for a listing that it has come further.
    fn tell_step(&self, directory: FileId) {
        let mut listings = self.backing().listings.borrow_mut();
        let before = listings.insert(directory.0, ListingStep::new());
        drop(listings);
        before.iter().for_each(|step| step.tell(None));
    }

    async fn list_now(self: &Rc<Self>, directory: FileId) -> Result<(), Failure> {
        add(&self.backing().counters.listings, 1);
        let (place, behind) = self.open_behind(directory, self.reactor.now() + self.options.timeout).await?;
        let failed = |error| self.backing().failure(error);
        let mut attempts = 0;
        while attempts < ATTEMPTS_MAX {
            self.backing().disturbed.borrow_mut().remove(&directory.0);
            let before = behind.look_open().await.map_err(failed)?.identity;
            let times = self.settled_times((before.mtime, before.ctime));
            let names = self.take_up_all(directory, &place, &behind, times).await?;
            if names.borrow().is_outdated {
                // What was looked at is known; the next attempt has less to do.
                continue;
            }
            attempts += 1;
            let after = behind.look_open().await.map_err(failed)?.identity;
            // A name that was forgotten meanwhile may have been passed over.
            if before == after && !self.backing().disturbed.borrow_mut().remove(&directory.0) {
                let is_there = {
                    let tables = self.tables.borrow();
                    tables.check_not_removed(std::iter::once(directory))?;
                    crate::handlers::check_directory(self, &tables, directory)?;
                    !tables.backing.is_listed(directory)
                };
                // Others may have been found by themselves meanwhile.
                self.note_those_known(directory, &mut names.borrow_mut());
                let are_all_known = names.borrow().failed_count() == 0;
                return match are_all_known {
                    true if is_there => {
                        self.change([Record::Listed(directory)])?;
                        self.note_listed_as(directory, times);
                        Ok(())
                    }
                    true => Ok(()),
                    false => {
                        self.backing().put_failed_names(directory, &names, self.reactor.now());
                        Ok(())
                    }
                };
            }
        }
        let path = &place.path;
        let words = format!("backing directory: {} changes all the time while it is listed", path.escape_ascii());
        Err(Failure::with_text(Status::Busy, words))
    }

    /// Takes up all names of an open directory that belong here, of which the times are these. Those that can't be
    /// looked at come back, among others; or names that are outdated, before all were looked at.
    async fn take_up_all(
        self: &Rc<Self>,
        directory: FileId,
        place: &DirectoryBehind,
        behind: &BackingDirectory,
        times: Option<(i64, i64)>,
    ) -> Result<Rc<RefCell<ListedNames>>, Failure> {
        let start = self.reactor.now();
        let listing = behind.open_listing().await.map_err(|error| self.backing().failure(error))?;
        let known = (place.clone(), behind.clone());
        let mut from = Some(ListPosition::default());
        let mut is_begin = true;
        let mut failed_names = ListedNames::new(&self.backing().listed_total);
        let mut part = LOOK_PART;
        while let Some(position) = from {
            let (mut names, next) = self.read_names(directory, &listing, position).await?;
            if next.is_none() {
                self.check_unmet(directory, start).await;
            }
            names.sort();
            (names.times, names.checked) = (times, start);
            // What was forgotten just now is lacking in it.
            names.is_outdated = is_begin && next.is_none() && self.is_disturbed(directory);
            let names = Rc::new(RefCell::new(names));
            // Only all of them are what the directory has.
            let is_all = is_begin && next.is_none() && !names.borrow().is_outdated;
            let has_waiting = !names.borrow().has_no_waiting();
            let is_shown = is_all && has_waiting && self.backing().show_listed_names(directory, &names);
            if is_shown {
                self.backing().names_shown.set(self.reactor.now());
                self.tell_step(directory);
                self.wait_for_need(&names).await;
            }
            let failed_count = failed_names.failed_count();
            self.look_at_all(directory, &known, (&names, is_shown), failed_count, &mut part).await?;
            if is_begin && next.is_none() {
                // The table that was shown, if it was: what was taken up is known in it.
                return Ok(names);
            }
            (is_begin, from) = (false, next);
            failed_names.add_failed(&names.borrow(), directory);
        }
        failed_names.sort();
        Ok(Rc::new(RefCell::new(failed_names)))
    }

    fn is_disturbed(&self, directory: FileId) -> bool {
        self.backing().disturbed.borrow().contains(&directory.0)
    }

    /// Reads names of a directory that belong here and that nobody knows, from a position on: to its end, or for as
    /// long as there is room for them. Where to go on.
    async fn read_names(
        self: &Rc<Self>,
        directory: FileId,
        listing: &BackingListing,
        position: ListPosition,
    ) -> Result<(ListedNames, Option<ListPosition>), Failure> {
        let backing = self.backing();
        let mut names = ListedNames::new(&backing.listed_total);
        let mut from = Some(position);
        while let Some(position) = from {
            let piece = listing.list(position).await.map_err(|error| backing.failure(error))?;
            from = piece.next;
            for entry in piece.entries {
                let name = &*entry.name;
                let slot = self.cluster.dentry_slot(directory, name);
                if Name::new(name).is_err() || !self.owns_slot(slot) {
                    continue;
                }
                let is_wanted = {
                    let tables = self.tables.borrow();
                    self.note_met(&tables, directory, name, entry.inode);
                    self.is_unknown(&tables, directory, name)
                };
                if is_wanted {
                    names.push(directory, name, entry.kind, FileId::taken_up(self.next_number()?, slot));
                }
            }
            if !backing.has_room_for_names() {
                break;
            }
            self.reactor.yield_now().await;
        }
        Ok((names, from))
    }

    /// Looks at all names of a table that nobody knows by now, and takes them up; `failed_count` can't be looked at
    /// already.
    async fn look_at_all(
        self: &Rc<Self>,
        directory: FileId,
        known: &(DirectoryBehind, BackingDirectory),
        (names, is_shown): (&RefCell<ListedNames>, bool),
        failed_count: usize,
        part: &mut Nanos,
    ) -> Result<(), Failure> {
        loop {
            self.tell_step(directory);
            // What nobody waits for comes one directory at a time.
            let _turn = if is_shown { self.turn_or_need(names).await } else { None };
            if names.borrow().is_outdated {
                return Ok(());
            }
            let Some(batch) = self.next_batch(directory, names) else { return Ok(()) };
            self.announce_before_looks(directory, self.reactor.now() + self.options.timeout).await?;
            let patience = self.options.timeout / *part;
            let look = |some: &[NameToLook]| {
                Box::pin(self.clone().take_up_some(directory, known.clone(), some.to_vec(), patience)) as Looks
            };
            for looked in all(batch.chunks(CALL_LOOKS).map(look).collect()).await {
                for (index, failure) in looked? {
                    let Some(failure) = failure else {
                        names.borrow_mut().note_known(index);
                        continue;
                    };
                    if failure.status == Status::TimedOut {
                        *part = LOOK_PART_LATER;
                    }
                    // Others have found out meanwhile what is there.
                    if !self.is_unknown(&self.tables.borrow(), directory, names.borrow().name(index)) {
                        names.borrow_mut().note_known(index);
                        continue;
                    }
                    names.borrow_mut().note_failed(index);
                    if failed_count + names.borrow().failed_count() > FAILED_NAMES_MAX.min(self.backing().memos) {
                        return Err(failure);
                    }
                }
            }
            self.reactor.yield_now().await;
        }
    }

    /// Names of a table to look at next, if there are more.
    fn next_batch(&self, directory: FileId, names: &RefCell<ListedNames>) -> Option<Vec<NameToLook>> {
        let tables = self.tables.borrow();
        let mut names = names.borrow_mut();
        loop {
            let batch = names.next(CALL_LOOKS * CALLS_AT_ONCE);
            if batch.is_empty() {
                return None;
            }
            let mut unknown = Vec::with_capacity(batch.len());
            for index in batch {
                match self.is_unknown(&tables, directory, names.name(index)) {
                    true => unknown.push((index, names.name(index).into())),
                    false => names.note_known(index),
                }
            }
            if !unknown.is_empty() {
                return Some(unknown);
            }
        }
    }

    /// Notes those names of a table that somebody has looked at.
    fn note_those_known(&self, directory: FileId, names: &mut ListedNames) {
        let tables = self.tables.borrow();
        for index in names.failed() {
            if !self.is_unknown(&tables, directory, names.name(index)) {
                names.note_known(index);
            }
        }
    }

    /// Takes up some names of a listing, or tells why one can't be looked at: if one of them makes all of them late,
    /// each is looked at by itself.
    async fn take_up_some(
        self: Rc<Self>,
        directory: FileId,
        (place, behind): (DirectoryBehind, BackingDirectory),
        some: Vec<NameToLook>,
        patience: Nanos,
    ) -> Result<Vec<(usize, Option<Failure>)>, Failure> {
        let names: Vec<_> = some.iter().map(|(_, name)| name.clone()).collect();
        add(&self.backing().counters.looks, names.len() as u64);
        let limit = self.reactor.now() + patience / 2;
        let mut found = match until(&self.reactor, limit, behind.look_all(&names)).await {
            Some(Ok(found)) => found.into_iter(),
            _ => Vec::new().into_iter(),
        };
        let limit = self.reactor.now() + patience / 2;
        let take_up = |name| {
            let known = (place.clone(), behind.clone());
            Box::pin(self.clone().take_up_listed(directory, known, name, found.next(), limit)) as Look
        };
        all(some.into_iter().map(take_up).collect()).await.into_iter().collect()
    }

    /// Takes up one name of a listing, which was looked at or has to be, or tells why it can't be looked at.
    async fn take_up_listed(
        self: Rc<Self>,
        directory: FileId,
        (place, behind): (DirectoryBehind, BackingDirectory),
        (index, name): NameToLook,
        found: Option<Result<BackingAttributes, BackingError>>,
        limit: Nanos,
    ) -> Result<(usize, Option<Failure>), Failure> {
        let backing = self.backing();
        let found = match found {
            Some(found) => Some(found),
            None => {
                add(&backing.counters.looks, 1);
                until(&self.reactor, limit, behind.look(&name)).await
            }
        };
        let found = match found {
            None => return Ok((index, Some(self.late()))),
            Some(Ok(found)) => found,
            Some(Err(error)) => {
                let failure = match error.path() == joined(&place.path, &name) {
                    // It is gone meanwhile.
                    true if error.is_not_found() => return Ok((index, None)),
                    true => backing.failure(error),
                    false => return Err(backing.failure(error)),
                };
                return Ok((index, Some(failure)));
            }
        };
        let deadline = self.reactor.now().saturating_add(Nanos::MAX / 4);
        match self.take_up_found(directory, &place.path, &name, found, deadline).await {
            Ok(false) => {
                Box::pin(self.clone().take_up_listed(directory, (place, behind), (index, name), None, limit)).await
            }
            Err(failure) if failure.status == Status::TooLarge => Ok((index, Some(failure))),
            // Somebody is changing it, and has not decided.
            Ok(true) if self.is_unknown(&self.tables.borrow(), directory, &name) => {
                Ok((index, Some(Status::Busy.into())))
            }
            result => result.map(|_| (index, None)),
        }
    }
}
