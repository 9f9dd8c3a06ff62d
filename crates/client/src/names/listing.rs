//! Listing a directory by its id, in one order over all servers, with positions that callers may keep: for a mount,
//! whose readers come back with a number and want to go on there.
//!
//! Invariants
//! 1. The order is that of the cursors, which are the hashes of the names: the same on all servers and for ever. A
//!    position is the least cursor that may come; those up to `POSITION_RESERVED` are before all entries.
//! 2. An entry is given out when every server has shown what it has before it.
//! 3. What is kept of a page is of the time when it was fetched; starting over fetches anew.

use crate::error::{Attempt, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::names::directory::{DirectoryEntry, ListingShare, goes_away};
use crate::servers::join::join_all;
use std::collections::VecDeque;
use wire::credentials::access;
use wire::messages::{Ancestors, KNOWN_UNCHECKED};
use wire::{FileId, Status};

/// Positions up to this one are before all entries; callers may have `.` and `..` there.
pub const POSITION_RESERVED: u64 = 15;

/// Bytes of entries that are asked for at a time, of all servers together, and of each at least and at most.
const FETCH_SIZE: u32 = 1 << 20;
const PAGE_SIZE_MIN: u32 = 4 << 10;
const PAGE_SIZE_MAX: u32 = 128 << 10;

/// What one server has shown and was not asked for yet.
#[derive(Debug, Clone)]
struct Shown {
    share: ListingShare,
    entries: VecDeque<DirectoryEntry>,
}

impl Shown {
    fn is_spent(&self) -> bool {
        self.entries.is_empty() && !self.share.end
    }

    fn next(&self) -> Option<u64> {
        self.entries.front().map(cursor_of)
    }
}

/// A listing by id. It holds no connection: dropping it needs no message.
#[derive(Debug, Clone)]
pub struct DirectoryListing {
    directory: FileId,
    /// The last tree change that was known when the user was found to be allowed to list it, until something was
    /// listed.
    known: u64,
    shown: Vec<Shown>,
    /// Nothing before this is kept.
    position: u64,
}

impl DirectoryListing {
    /// The directory's id.
    pub fn id(&self) -> FileId {
        self.directory
    }

    /// Goes to a position: what is before it is dropped; what is no longer kept is fetched again.
    fn go_to(&mut self, position: u64) {
        let from_begin = position <= POSITION_RESERVED;
        let backwards = position < self.position;
        self.position = if from_begin { 0 } else { position };
        for shown in &mut self.shown {
            if from_begin || backwards {
                shown.entries.clear();
                (shown.share.cursor, shown.share.end) = (self.position, false);
                continue;
            }
            while shown.next().is_some_and(|cursor| cursor < position) {
                shown.entries.pop_front();
            }
            if shown.is_spent() {
                shown.share.cursor = shown.share.cursor.max(position);
            }
        }
    }

    /// The directory is gone, and with it its entries.
    fn end(&mut self) {
        for shown in &mut self.shown {
            shown.entries.clear();
            shown.share.end = true;
        }
    }
}

fn cursor_of(entry: &DirectoryEntry) -> u64 {
    entry.next_cursor - 1
}

impl FileSystem {
    /// Starts a listing by id.
    ///
    /// Errors: `AccessDenied` when the user may not list the directory; what is not a directory shows with the first
    /// entries.
    pub async fn open_directory_id(&self, directory: FileId) -> Result<DirectoryListing> {
        let known = self.may_list(directory).await.map_err(|request_error| match goes_away(&request_error) {
            true => RequestError::local(Status::NotFound).about_file(directory),
            false => request_error.about_file(directory),
        })?;
        let share = |server| ListingShare { server, cursor: 0, end: false };
        let shown = (0..self.server_count()).map(|server| Shown { share: share(server), entries: VecDeque::new() });
        Ok(DirectoryListing { directory, known, shown: shown.collect(), position: 0 })
    }

    /// Entries from a position on, at most `count_max`; none at the end, and of a directory that was removed. The
    /// `next_cursor` of each is the position after it. Those that the caller does not come past are kept for the next
    /// call. Those that are fetched now come with attributes, if wanted, where these are at hand (`complete_entries`
    /// fetches the others).
    pub async fn entries_from(
        &self,
        listing: &mut DirectoryListing,
        position: u64,
        count_max: usize,
        with_attributes: bool,
    ) -> Result<Vec<DirectoryEntry>> {
        listing.go_to(position);
        let mut taken = vec![0; listing.shown.len()];
        let mut entries: Vec<DirectoryEntry> = Vec::new();
        while entries.len() < count_max {
            if listing.shown.iter().zip(&taken).any(|(shown, taken)| shown.entries.len() == *taken && !shown.share.end)
            {
                let fetched = self.fetch(listing, &taken, with_attributes).await;
                fetched.map_err(|request_error| request_error.about_file(listing.directory))?;
                if listing.shown.iter().all(|shown| shown.entries.is_empty() && shown.share.end) {
                    break;
                }
                continue;
            }
            let next =
                |(index, taken): (usize, &usize)| Some((cursor_of(listing.shown[index].entries.get(*taken)?), index));
            let Some((cursor, index)) = taken.iter().enumerate().filter_map(next).min() else { break };
            let mut entry = listing.shown[index].entries[taken[index]].clone();
            taken[index] += 1;
            entry.next_cursor = cursor + 1;
            // Two names of one hash: who comes back in between sees the first once more rather than miss the second.
            if let Some(before) = entries.last_mut().filter(|before| before.next_cursor == cursor + 1) {
                before.next_cursor = cursor;
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Asks the servers that have shown no more than was taken of them.
    async fn fetch(&self, listing: &mut DirectoryListing, taken: &[usize], with_attributes: bool) -> Attempt<()> {
        let mut retries = self.servers.retries();
        while retries.again().await {
            let request_error = match self.try_fetch(listing, taken, with_attributes).await {
                Ok(()) => return Ok(()),
                Err(request_error) => request_error,
            };
            if listing.known != KNOWN_UNCHECKED && self.servers.is_outdated(&request_error, listing.known) {
                // Rights on it may have changed before the listing began.
                listing.known = self.may_list(listing.directory).await?;
            } else if goes_away(&request_error) {
                listing.end();
                return Ok(());
            } else {
                return Err(request_error);
            }
        }
        Err(RequestError::local(Status::NotFound))
    }

    async fn try_fetch(&self, listing: &mut DirectoryListing, taken: &[usize], with_attributes: bool) -> Attempt<()> {
        let size = (FETCH_SIZE / listing.shown.len().max(1) as u32).clamp(PAGE_SIZE_MIN, PAGE_SIZE_MAX);
        let ancestors = Ancestors::default();
        let place = (listing.directory, &ancestors, listing.known);
        let spent = listing.shown.iter().zip(taken).filter(|(shown, taken)| shown.entries.len() == **taken);
        let asked = spent.filter(|(shown, _)| !shown.share.end).map(|(shown, _)| shown.share);
        let pages = join_all(asked.map(|share| self.servers.list(place, share, with_attributes, size))).await;
        for (share, page) in pages.into_iter().collect::<Attempt<Vec<_>>>()? {
            let shown = listing.shown.iter_mut().find(|shown| shown.share.server == share.server);
            let shown = shown.expect("a page belongs to a server of the listing");
            shown.share = share;
            shown.entries.extend(page);
        }
        listing.known = KNOWN_UNCHECKED;
        Ok(())
    }

    /// Errors unless the user may list a directory. The last tree change that this takes into account.
    pub(crate) async fn may_list(&self, directory: FileId) -> Attempt<u64> {
        let known = self.servers.known_tree_changes().await;
        let directory = self.servers.cache.borrow_mut().by_id(directory);
        self.servers.permit(&directory, access::READ).await?;
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Kind;

    fn listing(cursors: &[&[u64]]) -> DirectoryListing {
        let entry = |cursor: &u64| DirectoryEntry {
            name: cursor.to_string().into_bytes(),
            id: FileId(*cursor),
            kind: Kind::File,
            attributes: None,
            size_final: true,
            server: 0,
            next_cursor: cursor + 1,
        };
        let shown = cursors.iter().enumerate().map(|(server, cursors)| Shown {
            share: ListingShare { server: server as u32, cursor: 1000, end: false },
            entries: cursors.iter().map(entry).collect(),
        });
        DirectoryListing { directory: FileId::ROOT, known: 0, shown: shown.collect(), position: 0 }
    }

    /// Goal: going on keeps what lies ahead, going back and starting over keep nothing.
    #[test]
    fn positions() {
        let mut ahead = listing(&[&[20, 40], &[30]]);
        ahead.go_to(31);
        assert_eq!(ahead.shown[0].next(), Some(40));
        assert!(ahead.shown[1].is_spent() && ahead.shown[1].share.cursor == 1000);
        let mut back = ahead.clone();
        back.go_to(30);
        assert!(back.shown.iter().all(|shown| shown.is_spent() && shown.share.cursor == 30));
        ahead.go_to(2);
        assert!(ahead.shown.iter().all(|shown| shown.is_spent() && shown.share.cursor == 0));
    }
}
