//! Names of the backing tree: looked for one by one, and taken up when they are there.

use super::carry::known_found;
use super::listed_names::ListingNeed;
use super::places::DirectoryBehind;
use super::{BackingFault, add, joined};
use crate::core::{Core, Failure};
use crate::files::inodes::Inode;
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::{NO_TIME, cursor_of};
use reactor::backing::{BackingAttributes, FileKind};
use reactor::{Class, Nanos};
use std::rc::Rc;
use wire::limits::FILE_SIZE_MAX;
use wire::messages::{BackingPlace, KnownBehind, NameBehind};
use wire::{Attributes, FileId, Kind, LayoutWish};

/// Names of a directory that are looked for in vain before it is listed.
const MISSES_MAX: u32 = 64;
/// Directories of which they are counted.
const MISSED_DIRECTORIES_MAX: usize = 4096;

/// What something of the tree is here. Of what no byte can be had, only that it is there: nobody can open a socket.
pub(super) fn kind_of(kind: FileKind) -> Kind {
    match kind {
        FileKind::File => Kind::File,
        FileKind::Directory => Kind::Directory,
        FileKind::Symlink => Kind::Symlink,
        FileKind::Other => Kind::Socket,
    }
}

/// The attributes with which something is taken up.
pub fn attributes_of(behind: &BackingAttributes, new: Attributes) -> Attributes {
    let size = match behind.kind {
        FileKind::File | FileKind::Symlink => behind.identity.size,
        FileKind::Directory | FileKind::Other => 0,
    };
    let (mtime, ctime) = (behind.identity.mtime, behind.identity.ctime);
    Attributes { size, atime: mtime, mtime, ctime, ..new }
}

impl Core {
    /// Whether nobody here knows what a name that belongs here stands for.
    pub(super) fn is_unknown(&self, tables: &Tables, directory: FileId, name: &[u8]) -> bool {
        self.lacks_listing(tables, directory)
            && !self.is_hidden(name)
            && tables.names.get(directory, name, cursor_of(directory, name)).is_none()
            && tables.backing.difference(directory, name).is_none()
    }

    /// Looks for a name behind, and takes up what is there. After it the name is known: what is not here is not there.
    pub(super) async fn take_up_name(
        self: &Rc<Self>,
        directory: FileId,
        name: &[u8],
        deadline: Nanos,
    ) -> Result<(), Failure> {
        if !self.is_unknown(&self.tables.borrow(), directory, name) {
            return Ok(());
        }
        let backing = self.backing();
        let (DirectoryBehind { path, .. }, opened) = self.open_behind(directory, deadline).await?;
        self.announce_before_looks(directory, deadline).await?;
        add(&backing.counters.looks, 1);
        match opened.look(name).await {
            Ok(found) => {
                if !self.take_up_found(directory, &path, name, found, deadline).await? {
                    return Box::pin(self.take_up_name(directory, name, deadline)).await;
                }
            }
            // Where the directory itself is gone it is another error, or its path.
            Err(error) if error.is_not_found() && error.path() == joined(&path, name) => {
                backing.note_known_name(directory, name);
                self.note_miss(directory);
            }
            Err(error) => return Err(backing.failure(error)),
        }
        Ok(())
    }

    /// A name was looked for in vain. After many the directory is listed, in the background, so that the next ones need
    /// not be looked for.
    fn note_miss(self: &Rc<Self>, directory: FileId) {
        let count = {
            let mut misses = self.backing().misses.borrow_mut();
            if misses.len() >= MISSED_DIRECTORIES_MAX.min(self.backing().memos) {
                misses.clear();
            }
            let count = misses.entry(directory.0).or_default();
            *count += 1;
            *count
        };
        if count.is_multiple_of(MISSES_MAX) {
            let core = self.clone();
            self.reactor.spawn(Class::Background, async move {
                let deadline = core.reactor.now() + core.options.timeout;
                // Whoever needs the listing asks for it, and is told why there is none.
                let _: Result<(), Failure> = core.list_behind(directory, ListingNeed::All, deadline).await;
            });
        }
    }

    /// Takes up what a look has found. False if it had to wait for something first: by now something else may be there.
    pub(super) async fn take_up_found(
        self: &Rc<Self>,
        directory: FileId,
        path: &[u8],
        name: &[u8],
        found: BackingAttributes,
        deadline: Nanos,
    ) -> Result<bool, Failure> {
        if !self.may_take_up(directory, path, name, &found, deadline).await? {
            return Ok(false);
        }
        // From here on nothing is awaited.
        let may_be_taken_up = {
            let tables = self.tables.borrow();
            self.is_unknown(&tables, directory, name) && self.has_no_hindrance(&tables, directory, name)
        };
        if may_be_taken_up {
            self.put_taken_up(directory, path, name, found, None)?;
        }
        Ok(true)
    }

    /// Takes up what a look has found at a name that stands for nothing here, with a certain record, also where it is
    /// known that there was nothing. Whether it has.
    pub(super) async fn take_up_over(
        self: &Rc<Self>,
        (directory, name): (FileId, &[u8]),
        path: &[u8],
        found: BackingAttributes,
        record: &NameBehind,
        deadline: Nanos,
    ) -> Result<bool, Failure> {
        if !self.may_take_up(directory, path, name, &found, deadline).await? {
            return Ok(false);
        }
        // From here on nothing is awaited.
        let may_be_taken_up = {
            let tables = self.tables.borrow();
            tables.names.get(directory, name, cursor_of(directory, name)).is_none()
                && tables.backing.difference(directory, name) == Some(record)
                && self.has_no_hindrance(&tables, directory, name)
        };
        if may_be_taken_up {
            let known = Some(known_found(&found));
            self.put_taken_up(directory, path, name, found, known)?;
        }
        Ok(may_be_taken_up)
    }

    /// Whether nothing has to be waited for, or was, before something is taken up.
    async fn may_take_up(
        self: &Rc<Self>,
        directory: FileId,
        path: &[u8],
        name: &[u8],
        found: &BackingAttributes,
        deadline: Nanos,
    ) -> Result<bool, Failure> {
        if found.kind == FileKind::File && found.identity.size > FILE_SIZE_MAX {
            let words = format!("backing directory: {} is too large", joined(path, name).escape_ascii());
            return Err(Failure::with_text(wire::Status::TooLarge, words));
        }
        if self.announce_before_looks(directory, deadline).await? {
            return Ok(false);
        }
        if self.is_journal_low() {
            let finished = self.checkpoints.finished();
            self.wait_until(deadline, "the journal is full", finished.wait()).await?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Tells the directory's home that names are about to be taken up here. What was looked at before would have to be
    /// looked at again. Whether it had to.
    pub(super) async fn announce_before_looks(
        self: &Rc<Self>,
        directory: FileId,
        deadline: Nanos,
    ) -> Result<bool, Failure> {
        let lacks_share = self.lacks_share(&self.tables.borrow(), directory);
        if lacks_share {
            self.announce_share(directory, deadline).await?;
        }
        Ok(lacks_share)
    }

    /// Whether nobody is changing a name or removing its directory.
    fn has_no_hindrance(&self, tables: &Tables, directory: FileId, name: &[u8]) -> bool {
        !self.lacks_share(tables, directory)
            && !tables.marks.contains_key(&directory.0)
            && tables.locks.of_dentry(directory, name).is_none()
            && tables.check_not_removed(std::iter::once(directory)).is_ok()
            && crate::handlers::check_directory(self, tables, directory).is_ok()
    }

    /// Takes something up, at a name whose record it becomes as what is known there, if that is given.
    fn put_taken_up(
        self: &Rc<Self>,
        directory: FileId,
        path: &[u8],
        name: &[u8],
        found: BackingAttributes,
        known: Option<KnownBehind>,
    ) -> Result<(), Failure> {
        let slot = self.cluster.dentry_slot(directory, name);
        self.check_file_numbers()?;
        let id = match self.backing().listed_id(directory, name) {
            Some(id) => id,
            None => FileId::taken_up(self.next_number()?, slot),
        };
        let kind = kind_of(found.kind);
        let new = self.attributes_of(id, kind, found.mode, (found.owner, found.group), &LayoutWish::default());
        let attributes = attributes_of(&found, new);
        let identity = found.identity;
        let place = BackingPlace {
            parent: directory,
            path: joined(path, name),
            device: identity.device,
            inode: identity.inode,
            size: identity.size,
            mtime: identity.mtime,
            ctime: identity.ctime,
            base: if kind == Kind::File { identity.size } else { 0 },
            carried: if kind == Kind::File { identity.size } else { 0 },
            chunk_size: attributes.layout.chunk_size,
            has_links: false,
        };
        let inode = match kind {
            Kind::Directory => Inode::directory(attributes, directory),
            _ => Inode::with_target(attributes, found.target.as_deref().unwrap_or_default()),
        };
        add(&self.backing().counters.taken_up, 1);
        let told = (id, place.inode);
        let put = Record::DentryPut { parent: directory, name, id, kind };
        let mut records = vec![put, Record::InodePut(inode), Record::PlacePut { id, place }];
        // A name that was known to be something else changes for whoever lists it.
        let time_is_kept = known.is_none();
        if let Some(known) = known {
            let behind = NameBehind { known: Some(known), next: None, same_as: id };
            records.push(Record::DifferencePut { directory, name, behind });
        }
        match time_is_kept {
            true => self.commit_at(NO_TIME, self.store.begin(), records)?,
            false => self.commit(self.store.begin(), records)?,
        }
        self.backing().note_taken_up(directory, name);
        if let Some(taken_up) = self.tables.borrow().backing.get(id) {
            taken_up.note_checked(self.reactor.now());
        }
        self.note_shown(directory, id);
        self.keep_names();
        if let Some(log) = &mut *self.backing().log.borrow_mut() {
            log.push(told);
        }
        Ok(())
    }

    /// Whether identities are compared.
    pub(super) fn checks_identity(&self) -> bool {
        !self.backing().has_fault(BackingFault::IdentityUnchecked)
    }
}
