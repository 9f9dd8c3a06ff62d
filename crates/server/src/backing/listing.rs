//! Listings: a server reads the names of a directory behind and takes up those that belong to it. Each does so for its
//! own share of the names and needs no other one for that; the directory is listed here then, and absence is known.

use super::add;
use crate::core::{Core, Failure, Notice, all};
use crate::journal::records::Record;
use reactor::backing::{BackingDirectory, ListPosition};
use reactor::{Class, LocalFuture, Nanos};
use std::rc::Rc;
use wire::{FileId, Name, Status};

/// Attempts at a directory that changes while it is listed.
const ATTEMPTS_MAX: u32 = 8;
/// Names that are looked at at a time.
const LOOKS_AT_ONCE: usize = 16;

impl Core {
    /// Has all names of a directory known that belong to this server. One listing serves all who wait for it.
    pub(super) async fn list_behind(self: &Rc<Self>, directory: FileId, deadline: Nanos) -> Result<(), Failure> {
        if !self.lacks_listing(&self.tables.borrow(), directory) {
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
            told.tell(result);
        });
        notice
    }

    async fn list_now(self: &Rc<Self>, directory: FileId) -> Result<(), Failure> {
        add(&self.backing().counters.listings, 1);
        let path = self.path_behind(directory, self.reactor.now() + self.options.timeout).await?;
        let failed = |error| self.backing().failure(error);
        for _ in 0..ATTEMPTS_MAX {
            let root = self.backing().tree.root().await.map_err(failed)?;
            let behind = if path.is_empty() { root } else { root.open_directory(&path).await.map_err(failed)? };
            let before = behind.look_open().await.map_err(failed)?.identity;
            self.take_up_all(directory, &behind).await?;
            let after = behind.look_open().await.map_err(failed)?.identity;
            if before == after {
                let is_there = {
                    let tables = self.tables.borrow();
                    tables.check_not_removed(std::iter::once(directory))?;
                    crate::handlers::check_directory(self, &tables, directory)?;
                    !tables.backing.is_listed(directory)
                };
                return if is_there { self.change([Record::Listed(directory)]) } else { Ok(()) };
            }
        }
        let words = format!("backing directory: {} changes all the time while it is listed", path.escape_ascii());
        Err(Failure::with_text(Status::Busy, words))
    }

    /// Takes up all names of an open directory that belong here.
    async fn take_up_all(self: &Rc<Self>, directory: FileId, behind: &BackingDirectory) -> Result<(), Failure> {
        let failed = |error| self.backing().failure(error);
        let listing = behind.open_listing().await.map_err(failed)?;
        let mut from = Some(ListPosition::default());
        while let Some(position) = from {
            let piece = listing.list(position).await.map_err(failed)?;
            from = piece.next;
            let names: Vec<Box<[u8]>> = {
                let tables = self.tables.borrow();
                let is_wanted = |name: &[u8]| {
                    Name::new(name).is_ok()
                        && self.cluster.dentry_server(directory, name) == self.index
                        && self.is_unknown(&tables, directory, name)
                };
                piece.entries.into_iter().map(|entry| entry.name).filter(|name| is_wanted(name)).collect()
            };
            for some in names.chunks(LOOKS_AT_ONCE) {
                let deadline = self.reactor.now().saturating_add(Nanos::MAX / 4);
                let looks = some.iter().map(|name| {
                    let (core, name) = (self.clone(), name.clone());
                    Box::pin(async move { core.take_up_name(directory, &name, deadline).await })
                        as LocalFuture<Result<(), Failure>>
                });
                all(looks.collect()).await.into_iter().collect::<Result<(), Failure>>()?;
            }
            self.reactor.yield_now().await;
        }
        Ok(())
    }
}
