//! Operations by identity: on names in a directory that the caller knows by its id, and on inodes by theirs. For
//! callers who resolve paths themselves, such as a mount. The operations are those on paths (`names/mod.rs`); what is
//! left out is the walk.
//!
//! Nothing of a path can be out of date, so that the directory alone is checked: by servers, whether it is still there,
//! and here, whether the user may search it and change names in it (`rights.rs`). What is above it is the caller's
//! business.
//!
//! A directory that was removed is `NotFound` for whoever names an entry of it, as on any system. An inode that is gone
//! is `StaleFile` (ESTALE).

use crate::error::{Attempt, Error, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::names;
use crate::names::inodes::{AttributeChanges, inspect};
use crate::names::resolve::{EntryTarget, Resolution, Target};
use crate::names::rights::{Rights, Wanted};
use crate::names::temporary::make_temporary;
use crate::open_files::file::{File, OpenHow};
use crate::servers::Servers;
use std::cell::Cell;
use wire::credentials::access;
use wire::messages::{EntryReply, FileRequest, LinkOpenRequest, OpenIdRequest, OpenReply, open_flags};
use wire::{Attributes, Decode, FileId, Kind, Operation, Status};

/// A name in a directory.
pub(crate) type EntryAt<'n> = (FileId, &'n [u8]);

impl FileSystem {
    /// Attributes of what a name leads to, sizes gathered. Symbolic links are not followed.
    ///
    /// Errors: `NotFound`, `AccessDenied` when the user may not search the directory, and others.
    pub async fn lookup_at(&self, parent: FileId, name: &[u8]) -> Result<Attributes> {
        let look = async |target: Target| inspect(&self.servers, &target, Operation::Look, false).await.map(done);
        self.on_place((parent, name), look).await
    }

    /// Opens by name like `open`, never through a symbolic link (`SymlinkLoop`). The attributes are those at that
    /// moment; of a file that others write to, `stat_file` tells the size.
    pub async fn open_at(&self, parent: FileId, name: &[u8], how: &OpenHow) -> Result<(File, Attributes)> {
        let how = OpenHow { no_follow: true, ..*how };
        let route = names::open::Route { name_server: Cell::new(None), may_ask_contact: false };
        let access = how.access();
        let open = async |target: Target| {
            names::open::open_target(&self.servers, &target, &how, access, &route).await.map(done)
        };
        let attributes = self.on_place((parent, name), open).await?;
        Ok((self.opened(&attributes, &how, route.name_server.get()), attributes))
    }

    /// Opens what has an id: a file, also one that has lost its last name while somebody has it open, or a directory.
    /// `access` are the rights that the user has to have: 4 read, 2 write, 1 execute; 0 asks for no check. With
    /// `how.truncate` the file is cut; it is not created.
    ///
    /// Errors: `StaleFile`, `AccessDenied`, `SymlinkLoop` for a symbolic link, and others.
    pub async fn open_id(&self, file: FileId, how: &OpenHow, access: u8) -> Result<(File, Attributes)> {
        let attributes =
            self.ask_to_open_id(file, how, access).await.map_err(|request_error| request_error.about_file(file))?;
        Ok((self.opened(&attributes, how, None), attributes))
    }

    async fn ask_to_open_id(&self, file: FileId, how: &OpenHow, access: u8) -> Attempt<Attributes> {
        let home = self.servers.home_of(file)?;
        if let Some(attributes) = self.servers.open_cached_id(home, file, how, access).await {
            return Ok(attributes);
        }
        let flags = if how.truncate { open_flags::TRUNCATE } else { 0 };
        let operation = if how.truncate { Operation::OpenId } else { Operation::OpenIdExisting };
        let wish = self.servers.wish_of_open(home, how);
        let flags = flags | open_flags::NO_FOLLOW | open_flags::NAMELESS | wish.flag();
        let request = OpenIdRequest { file, flags, access };
        let _under_way = self.servers.begin_open(home);
        let reply = self.servers.ask(home, operation, &request).await?;
        let malformed = |malformed| RequestError::malformed(operation, home, malformed);
        let reply = OpenReply::from_bytes(&reply.params).map_err(malformed)?;
        if reply.attributes.kind == Kind::File {
            reply.attributes.layout.check(self.servers.cluster.slot_count).map_err(malformed)?;
        }
        if reply.open_number != 0 {
            self.servers.note_open(file, reply.open_number, reply.attributes.link_count == 0);
        }
        self.servers.note_told(&reply.attributes, wish, reply.places, reply.contents);
        Ok(reply.attributes)
    }

    fn opened(&self, attributes: &Attributes, how: &OpenHow, name_server: Option<u32>) -> File {
        let file = File::new(attributes, how, self.servers.session(), self.servers.sessions_lost());
        file.note_opened(self.servers.reactor.wall_clock(), name_server);
        file
    }

    /// Makes a file without a name, as `open` does with `OpenHow::temporary`, in a directory.
    pub async fn open_temporary_at(&self, parent: FileId, how: &OpenHow) -> Result<(File, Attributes)> {
        let make = async |target: Target| {
            let Target::Entry(entry) = target else { unreachable!("a place is an entry") };
            make_temporary(&self.servers, &entry.parent, how).await
        };
        let attributes = self.on_place((parent, b""), make).await?;
        Ok((self.opened(&attributes, how, None), attributes))
    }

    /// Makes a directory. `mode` is taken before the umask. Errors: `Exists`, `NotFound`, and others.
    pub async fn mkdir_at(&self, parent: FileId, name: &[u8], mode: u32) -> Result<Attributes> {
        let mode = names::directory_mode(&self.servers, mode);
        let make = async |target: Target| names::make_directory(&self.servers, &target, mode).await.map(done);
        self.on_place((parent, name), make).await
    }

    /// Makes a symbolic link that leads to `link`. Errors: as `symlink`.
    pub async fn symlink_at(&self, link: &[u8], parent: FileId, name: &[u8]) -> Result<Attributes> {
        names::check_link_target(link).map_err(|request_error| request_error.about(name))?;
        let make = async |target: Target| names::make_symlink(&self.servers, &target, link).await.map(done);
        self.on_place((parent, name), make).await
    }

    /// Gives a file or symbolic link one more name.
    ///
    /// Errors: `Exists`; `NotFound` for one that is gone or has lost its last name; `NotPermitted` for a directory;
    /// `TooManyLinks`, and others.
    pub async fn link_id(&self, file: FileId, parent: FileId, name: &[u8]) -> Result<()> {
        let link = async |target: Target| {
            let Target::Entry(entry) = target else { unreachable!("a place is an entry") };
            self.servers.permit_change(&entry, Wanted::Absent).await?;
            let request = LinkOpenRequest { file, to: entry.entry()? };
            match self.servers.ask(self.servers.home_of(file)?, Operation::LinkOpen, &request).await {
                Err(request_error) if request_error.status() == Status::StaleFile && request_error.id() == file => {
                    Err(RequestError::local(Status::NotFound))
                }
                other => other.map(drop),
            }
        };
        self.on_place((parent, name), link).await?;
        self.servers.note_links(file, 1);
        Ok(())
    }

    /// Removes a file or symbolic link. Errors: `IsDirectory`, `NotFound`, and others.
    pub async fn unlink_at(&self, parent: FileId, name: &[u8]) -> Result<()> {
        let remove = async |target: Target| names::unlink(&self.servers, &target).await.map(done);
        self.on_place((parent, name), remove).await
    }

    /// Removes an empty directory. Errors: `NotEmpty`, `NotDirectory`, `NotFound`, and others.
    pub async fn rmdir_at(&self, parent: FileId, name: &[u8]) -> Result<()> {
        let remove = async |target: Target| names::remove_directory(&self.servers, &target).await.map(done);
        self.on_place((parent, name), remove).await
    }

    /// Renames like `rename`, from a name in one directory to a name in another or the same one.
    pub async fn rename_at(
        &self,
        from_parent: FileId,
        from: &[u8],
        to_parent: FileId,
        to: &[u8],
        flags: u32,
    ) -> Result<()> {
        let rename = async |entries: &[EntryTarget]| {
            let [source, target] = entries else { unreachable!("two places were given") };
            names::rename::rename_entry(&self.servers, source, target, flags).await
        };
        self.on_places(&[(from_parent, from), (to_parent, to)], rename).await
    }

    /// Changes attributes of what has an id, its size included (`AttributeChanges::size`).
    pub async fn set_attributes_id(&self, id: FileId, changes: &AttributeChanges) -> Result<Attributes> {
        let known = self.servers.tree_known();
        let attributes =
            self.servers.change(id, changes, true).await.map_err(|request_error| request_error.about_file(id))?;
        if attributes.kind == Kind::Directory {
            self.servers.note_rights_by_id(&attributes, known);
        }
        Ok(attributes)
    }

    /// The target of a symbolic link. Errors: `Invalid` for anything else, `StaleFile`.
    pub async fn readlink_id(&self, id: FileId) -> Result<Vec<u8>> {
        let read = async || {
            let home = self.servers.home_of(id)?;
            let operation = Operation::StatId;
            let reply = self.servers.ask(home, operation, &FileRequest { file: id }).await?;
            let reply = EntryReply::from_bytes(&reply.params);
            let reply = reply.map_err(|malformed| RequestError::malformed(operation, home, malformed))?;
            match reply.attributes.kind {
                Kind::Symlink => Ok(reply.target.to_vec()),
                _ => Err(RequestError::local(Status::Invalid)),
            }
        };
        read().await.map_err(|request_error| request_error.about_file(id))
    }

    /// Errors unless the user has all rights of `wanted` (4 read, 2 write, 1 execute) to what has an id.
    pub async fn access_id(&self, id: FileId, wanted: u8) -> Result<()> {
        let attributes = self.look_id(id).await?;
        if self.servers.user().may(&attributes, wanted) {
            return Ok(());
        }
        Err(RequestError::local(Status::AccessDenied).about_file(id))
    }

    pub(crate) async fn on_place<R>(
        &self,
        place: EntryAt<'_>,
        operation: impl AsyncFn(Target) -> Attempt<R>,
    ) -> Result<R> {
        let on_entry = async |entries: &[EntryTarget]| operation(Target::Entry(entries[0].clone())).await;
        self.on_places(&[place], on_entry).await
    }

    /// Runs `operation` on entries, and again where what is known of their directories is out of date.
    async fn on_places<R>(
        &self,
        places: &[EntryAt<'_>],
        operation: impl AsyncFn(&[EntryTarget]) -> Attempt<R>,
    ) -> Result<R> {
        let mut retries = self.servers.further_retries();
        loop {
            let known = self.servers.known_tree_changes().await;
            let entry = |(parent, name): &EntryAt<'_>| {
                let parent = self.servers.cache.borrow_mut().by_id(*parent);
                EntryTarget { parent, name: name.to_vec(), must_be_directory: false, known }
            };
            let entries: Vec<EntryTarget> = places.iter().map(entry).collect();
            let request_error = match self.try_entries(&entries, &operation).await {
                Ok(result) => return Ok(result),
                Err(request_error) => request_error,
            };
            if is_of_removed(&request_error, places) {
                return Err(about_place(removed(), places[0]));
            }
            let is_outdated = self.servers.is_outdated(&request_error, known);
            if !is_outdated || !retries.again().await {
                // Whoever has asked too often in vain does not know that it was removed: that stays ESTALE.
                let removed = (!is_outdated && request_error.status() == Status::StaleDirectory).then(removed);
                return Err(about_place(removed.unwrap_or(request_error), places[0]));
            }
        }
    }

    async fn try_entries<R>(
        &self,
        entries: &[EntryTarget],
        operation: &impl AsyncFn(&[EntryTarget]) -> Attempt<R>,
    ) -> Attempt<R> {
        for entry in entries {
            self.servers.search(self.servers.user(), &entry.parent).await?;
        }
        operation(entries).await
    }
}

impl OpenHow {
    /// The rights that it takes to open a file in this way.
    pub fn access(&self) -> u8 {
        let read = if self.read { access::READ } else { 0 };
        let write = if self.write || self.truncate { access::WRITE } else { 0 };
        read | write
    }
}

/// What an operation came to that met no symbolic link to follow.
fn done<R>(step: Resolution<R>) -> R {
    match step {
        Resolution::Done(result) => result,
        Resolution::Follow(_) => unreachable!("nothing is followed by identity"),
    }
}

/// Whether a server said that the inode of one of the directories is gone.
fn is_of_removed(request_error: &RequestError, places: &[EntryAt<'_>]) -> bool {
    request_error.status() == Status::StaleFile && places.iter().any(|(parent, _)| *parent == request_error.id())
}

fn removed() -> RequestError {
    RequestError::Local(Status::NotFound, "the directory was removed".to_owned())
}

fn about_place(request_error: RequestError, (parent, name): EntryAt<'_>) -> Error {
    let mut place = name.to_vec();
    place.extend_from_slice(format!(" in directory {parent}").as_bytes());
    request_error.about(&place)
}

impl Servers {
    /// Keeps who may use a directory that a server has just told of; unless rights may have changed since `known`.
    pub(crate) fn note_rights_by_id(&self, attributes: &Attributes, known: u64) {
        if known == self.tree_known() {
            let mut cache = self.cache.borrow_mut();
            let directory = cache.by_id(attributes.id);
            cache.note_rights(&directory, Rights::of(attributes));
        }
    }

    /// Whether an operation by identity failed only because of something that was true until a moment ago; which is
    /// forgotten then. `known` is the last tree change that was known when it began.
    pub(crate) fn is_outdated(&self, request_error: &RequestError, known: u64) -> bool {
        match request_error.status() {
            // The name led to this file a moment ago: it is to be asked for again.
            Status::StaleFile => true,
            // All is forgotten already (`Servers::send`).
            Status::StaleDirectory if request_error.id() == FileId::default() => true,
            // It was moved, or closed to someone; or removed, about which there is no news to come.
            Status::StaleDirectory => {
                self.cache.borrow_mut().forget(request_error.id());
                self.tree_seen() > known
            }
            _ => false,
        }
    }
}
