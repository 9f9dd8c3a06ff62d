//! Operations on names: open and create, directories, symbolic links, unlink. Each is one round trip once the parent
//! directory is known.

use crate::attribute_cache::NewFile;
use crate::error::{RequestError, Result};
use crate::file::{File, OpenHow};
use crate::filesystem::FileSystem;
use crate::resolve::{EntryTarget, Resolution, Target};
use crate::rights::Wanted;
use crate::servers::Servers;
use reactor::channel::Reply;
use std::cell::Cell;
use wire::credentials::access;
use wire::limits::{CHUNK_SIZE_MAX, CHUNK_SIZE_MIN, PATH_SIZE_MAX};
use wire::messages::{
    self, EntryReply, LinkRequest, MakeDirectoryRequest, MakeSymlinkRequest, OpenIdRequest, OpenReply, OpenRequest,
    RemoveRequest, RenameRequest, RenamedReply, open_flags, rename_flags,
};
use wire::{Attributes, Decode, Kind, Operation, Status};

type Attempt<R> = std::result::Result<R, RequestError>;

const MODE_BITS: u32 = 0o7777;

impl FileSystem {
    /// Opens a file, or a directory for reading (to stat or list it).
    ///
    /// Errors: `NotFound`, `Exists`, `IsDirectory`, `NotDirectory`, `AccessDenied`, `SymlinkLoop`, `Invalid` for a
    /// chunk size out of range, and what concerns the server.
    pub async fn open(&self, path: &[u8], how: &OpenHow) -> Result<File> {
        if how.temporary {
            return self.open_temporary(path, how).await;
        }
        self.open_checking(path, how, how.access()).await
    }

    /// Opens like `open`, without a check of the file's permission bits.
    pub async fn open_unchecked(&self, path: &[u8], how: &OpenHow) -> Result<File> {
        self.open_checking(path, how, 0).await
    }

    async fn open_checking(&self, path: &[u8], how: &OpenHow, access: u8) -> Result<File> {
        let route = Route { name_server: Cell::new(None), may_ask_contact: true };
        let attributes =
            self.servers.on_path(path, async |target| open_target(&self.servers, target, how, access, &route).await);
        let file = File::new(&attributes.await?, how, self.servers.session());
        file.note_opened(self.servers.reactor.wall_clock(), route.name_server.get());
        Ok(file)
    }

    /// Ends the use of a handle and its clones. Waits for nothing: the home is told at once when sizes have to be
    /// settled in or the file's name may be gone, else with later traffic.
    pub async fn close(&self, file: &File) {
        self.release_description(file).await;
        let settle = file.take_wrote_beyond_home();
        let first = file.close();
        self.servers.read_leases.forget(file.id);
        if file.kind == Kind::File && (first || settle) {
            self.servers.note_close(file, settle, first).await;
        }
    }

    /// Makes a directory. `mode` is taken before the umask. Errors: `Exists`, `NotFound` and others.
    pub async fn mkdir(&self, path: &[u8], mode: u32) -> Result<Attributes> {
        let mode = directory_mode(&self.servers, mode);
        self.servers.on_path(path, async |target| make_directory(&self.servers, target, mode).await).await
    }

    /// Makes a directory and all that are missing above it; what exists is left as it is.
    ///
    /// Errors: `NotDirectory` when something on the path is a file, and others.
    pub async fn create_all(&self, path: &[u8], mode: u32) -> Result<()> {
        if self.directory(path).await.is_ok() {
            return Ok(());
        }
        let ends = (1..path.len()).filter(|end| path[*end] == b'/' && path[*end - 1] != b'/');
        for end in ends.chain([path.len()]) {
            match self.mkdir(&path[..end], mode).await {
                Ok(_) => {}
                Err(error) if error.status == Status::Exists => {}
                Err(error) => return Err(error),
            }
        }
        self.directory(path).await.map(|_| ())
    }

    /// Removes an empty directory. Errors: `NotEmpty`, `NotDirectory`, `NotFound`, `Busy` for the root.
    pub async fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.servers.on_path(path, async |target| remove_directory(&self.servers, target).await).await
    }

    /// Removes a file or symbolic link. Errors: `IsDirectory`, `NotFound` and others.
    pub async fn unlink(&self, path: &[u8]) -> Result<()> {
        self.servers.on_path(path, async |target| unlink(&self.servers, target).await).await
    }

    /// Makes `to` one more name of the file or symbolic link `from`, which is not followed.
    ///
    /// Errors: `NotFound`, `Exists`, `NotPermitted` for a directory, `TooManyLinks`, and others. They name `from`.
    pub async fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        self.servers.on_path(from, async |source| link(&self.servers, source, to).await).await
    }

    /// Renames a file, symbolic link or directory; what `to` named is replaced. `flags` are those of
    /// `wire::messages::rename_flags`.
    ///
    /// Errors: `NotFound`, `IsDirectory` and `NotDirectory` where the two kinds do not fit, `Exists` with `NO_REPLACE`,
    /// `NotEmpty` for a directory that would be replaced, `Invalid` for one that would come to be in itself, and
    /// others. They name `from`.
    pub async fn rename(&self, from: &[u8], to: &[u8], flags: u32) -> Result<()> {
        self.servers.on_path(from, async |source| rename(&self.servers, source, to, flags).await).await
    }

    /// Makes a symbolic link at `path` that leads to `link`, whether or not that exists.
    ///
    /// Errors: `Exists`; `NotFound` for an empty target, `NameTooLong` from 4,096 bytes on, `Invalid` for a NUL in it.
    pub async fn symlink(&self, link: &[u8], path: &[u8]) -> Result<Attributes> {
        check_link_target(link).map_err(|request_error| request_error.about(path))?;
        self.servers.on_path(path, async |target| make_symlink(&self.servers, target, link).await).await
    }

    /// The target of a symbolic link. Errors: `Invalid` for anything else.
    pub async fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        let read = async |target: &Target| {
            let Target::Entry(entry) = target else { return Err(RequestError::local(Status::Invalid)) };
            let (attributes, link) = self.servers.look_up(entry, Operation::Lookup).await?;
            match attributes.kind {
                Kind::Symlink if entry.must_be_directory => Ok(Resolution::Follow(link)),
                Kind::Symlink => Ok(Resolution::Done(link)),
                _ => Err(RequestError::local(Status::Invalid)),
            }
        };
        self.servers.on_path(path, read).await
    }
}

/// The permission bits of a directory that is made with `mode`. As Linux does: only the directory that it is made in
/// gives it the setgid bit.
pub(crate) fn directory_mode(servers: &Servers, mode: u32) -> u32 {
    mode & (MODE_BITS & !0o6000) & !servers.umask()
}

/// Whether a symbolic link may lead to this.
pub(crate) fn check_link_target(link: &[u8]) -> Attempt<()> {
    let status = match link.len() {
        0 => Status::NotFound,
        1..PATH_SIZE_MAX if link.contains(&0) => Status::Invalid,
        1..PATH_SIZE_MAX => return Ok(()),
        _ => Status::NameTooLong,
    };
    Err(RequestError::Local(status, format!("target of the link: {status}")))
}

/// The way of an open.
pub(crate) struct Route {
    /// The server of the name, when the inode is elsewhere.
    pub name_server: Cell<Option<u32>>,
    /// Whether attributes will do that are not of this moment.
    pub may_ask_contact: bool,
}

pub(crate) async fn open_target(
    servers: &Servers,
    target: &Target,
    how: &OpenHow,
    access: u8,
    route: &Route,
) -> Attempt<Resolution<Attributes>> {
    let entry = match target {
        Target::Itself(_) if how.create && how.exclusive => return Err(RequestError::local(Status::Exists)),
        Target::Itself(_) if how.write || how.create || how.truncate => {
            return Err(RequestError::local(Status::IsDirectory));
        }
        Target::Itself(directory) => {
            servers.permit(directory, access).await?;
            return servers.stat_directory(directory, Operation::Look).await.map(Resolution::Done);
        }
        Target::Entry(entry) => entry,
    };
    if how.create && entry.must_be_directory {
        return Err(RequestError::local(Status::IsDirectory));
    }
    match open_or_create(servers, entry, how, access, route).await {
        Ok(attributes) if attributes.kind != Kind::Directory && entry.must_be_directory => {
            Err(RequestError::local(Status::NotDirectory))
        }
        Ok(attributes) if attributes.kind == Kind::Directory && (how.write || how.create || how.truncate) => {
            Err(RequestError::local(Status::IsDirectory))
        }
        Ok(attributes) => Ok(Resolution::Done(attributes)),
        Err(request_error) if request_error.status() == Status::IsSpecial && entry.must_be_directory => {
            Err(RequestError::local(Status::NotDirectory))
        }
        Err(request_error) if request_error.status() == Status::IsSymlink => {
            match (how.create && how.exclusive, how.no_follow) {
                (true, _) => Err(RequestError::local(Status::Exists)),
                (false, true) => Err(RequestError::local(Status::SymlinkLoop)),
                (false, false) => request_error.into_symlink_target().map(Resolution::Follow),
            }
        }
        Err(request_error) => Err(request_error),
    }
}

/// Where nothing may be created, what is there may still be opened.
async fn open_or_create(
    servers: &Servers,
    entry: &EntryTarget,
    how: &OpenHow,
    access: u8,
    route: &Route,
) -> Attempt<Attributes> {
    if !how.create {
        return ask_to_open(servers, entry, how, access, route).await;
    }
    let denied = match servers.permit(&entry.parent, access::WRITE).await {
        Ok(()) => return ask_to_open(servers, entry, how, access, route).await,
        Err(request_error) if request_error.status() != Status::AccessDenied => return Err(request_error),
        Err(denied) => denied,
    };
    if how.exclusive {
        servers.permit_change(entry, Wanted::Absent).await?;
        return Err(denied);
    }
    match ask_to_open(servers, entry, &OpenHow { create: false, ..*how }, access, route).await {
        Err(request_error) if request_error.status() == Status::NotFound => Err(denied),
        other => other,
    }
}

async fn ask_to_open(
    servers: &Servers,
    entry: &EntryTarget,
    how: &OpenHow,
    access: u8,
    route: &Route,
) -> Attempt<Attributes> {
    let chunk_size = if how.chunk_size == 0 { servers.options.chunk_size } else { how.chunk_size };
    if chunk_size != 0 && !(CHUNK_SIZE_MIN..=CHUNK_SIZE_MAX).contains(&chunk_size) {
        let words = format!("chunk size {chunk_size} is not between {CHUNK_SIZE_MIN} and {CHUNK_SIZE_MAX} bytes");
        return Err(RequestError::Local(Status::Invalid, words));
    }
    let flag = |wanted: bool, flag: u32| if wanted { flag } else { 0 };
    let flags = flag(how.create, open_flags::CREATE)
        | flag(how.create && how.exclusive, open_flags::EXCLUSIVE)
        | flag(how.truncate, open_flags::TRUNCATE)
        | flag(how.no_follow, open_flags::NO_FOLLOW);
    let operation = if how.create || how.truncate { Operation::Open } else { Operation::OpenExisting };
    let mode = how.mode & MODE_BITS & !servers.umask();
    let group = if how.create { servers.inherited_group(&entry.parent).await? } else { None };
    let server = servers.cluster.dentry_server(entry.parent.id, &entry.name);
    let new = NewFile { mode, chunk_size, group };
    if how.create
        && let Some(attributes) = servers.submit_create(server, entry, &new).await
    {
        return Ok(attributes);
    }
    let mut request = OpenRequest { entry: entry.entry()?, flags, access, mode, chunk_size, group };
    if operation == Operation::OpenExisting
        && let Some(attributes) = servers.open_cached(server, entry, how, access).await
    {
        return Ok(attributes);
    }
    let _under_way = servers.begin_open(server);
    if route.may_ask_contact
        && operation == Operation::OpenExisting
        && let Some(attributes) = servers.open_near(server, &request).await?
    {
        return Ok(attributes);
    }
    let mut wish = servers.wish_of_open(server, how);
    request.flags |= wish.flag();
    let _at_home;
    let (server, operation, reply) = match servers.ask(server, operation, &request).await {
        // The name is parted from its inode: the open goes on at the inode's home.
        Err(request_error) if request_error.status() == Status::Elsewhere => {
            let file = request_error.id();
            let home = servers.home_of(file)?;
            route.name_server.set(Some(server));
            let operation = if how.truncate { Operation::OpenId } else { Operation::OpenIdExisting };
            wish = servers.wish_of_open(home, how);
            let request = OpenIdRequest { file, flags: flags | wish.flag(), access };
            _at_home = servers.begin_open(home);
            (home, operation, servers.ask(home, operation, &request).await?)
        }
        other => (server, operation, other?),
    };
    let reply = OpenReply::from_bytes(&reply.params)
        .map_err(|malformed| RequestError::malformed(operation, server, malformed))?;
    let slot_count = servers.cluster.slot_count;
    if reply.attributes.kind == Kind::File {
        let layout = reply.attributes.layout.check(slot_count);
        layout.map_err(|malformed| RequestError::malformed(operation, server, malformed))?;
    }
    if reply.open_number != 0 {
        servers.note_open(reply.attributes.id, reply.open_number, false);
    }
    servers.note_told(&reply.attributes, wish, reply.places, reply.contents);
    Ok(reply.attributes)
}

pub(crate) async fn make_directory(servers: &Servers, target: &Target, mode: u32) -> Attempt<Resolution<Attributes>> {
    let Target::Entry(entry) = target else { return Err(RequestError::local(Status::Exists)) };
    servers.permit_change(entry, Wanted::Absent).await?;
    let group = servers.inherited_group(&entry.parent).await?;
    let mode = if group.is_some() { mode | 0o2000 } else { mode };
    let request = MakeDirectoryRequest { entry: entry.entry()?, mode, group };
    let attributes = ask_to_make(servers, entry, Operation::MakeDirectory, &request).await?;
    servers.remember(entry, &attributes);
    Ok(Resolution::Done(attributes))
}

pub(crate) async fn make_symlink(servers: &Servers, target: &Target, link: &[u8]) -> Attempt<Resolution<Attributes>> {
    let Target::Entry(entry) = target else { return Err(RequestError::local(Status::Exists)) };
    if entry.must_be_directory {
        return Err(RequestError::local(Status::NotFound));
    }
    servers.permit_change(entry, Wanted::Absent).await?;
    let group = servers.inherited_group(&entry.parent).await?;
    let request = MakeSymlinkRequest { entry: entry.entry()?, target: messages::Target(link), group };
    ask_to_make(servers, entry, Operation::MakeSymlink, &request).await.map(Resolution::Done)
}

pub(crate) async fn ask_to_make(
    servers: &Servers,
    entry: &EntryTarget,
    operation: Operation,
    request: &impl wire::Encode,
) -> Attempt<Attributes> {
    let server = servers.cluster.dentry_server(entry.parent.id, &entry.name);
    let reply = servers.ask(server, operation, request).await?;
    let reply = EntryReply::from_bytes(&reply.params);
    Ok(reply.map_err(|malformed| RequestError::malformed(operation, server, malformed))?.attributes)
}

pub(crate) async fn remove_directory(servers: &Servers, target: &Target) -> Attempt<Resolution<()>> {
    let entry = match target {
        Target::Itself(directory) if directory.parent.is_none() => return Err(RequestError::local(Status::Busy)),
        Target::Itself(_) => return Err(RequestError::Local(Status::Invalid, "the path ends in . or ..".to_owned())),
        Target::Entry(entry) => entry,
    };
    ask_to_remove(servers, entry, Operation::RemoveDirectory).await?;
    if entry.parent.has_path() {
        servers.cache.borrow_mut().forget_path(&entry.parent.child_path(&entry.name));
    }
    Ok(Resolution::Done(()))
}

pub(crate) async fn unlink(servers: &Servers, target: &Target) -> Attempt<Resolution<()>> {
    let Target::Entry(entry) = target else { return Err(RequestError::local(Status::IsDirectory)) };
    if entry.must_be_directory {
        // Never right, but POSIX wants to know which way it is wrong.
        let (attributes, _) = servers.look_up(entry, Operation::Lookup).await?;
        let is_directory = attributes.kind == Kind::Directory;
        return Err(RequestError::local(if is_directory { Status::IsDirectory } else { Status::NotDirectory }));
    }
    servers.note_removal(servers.cluster.dentry_server(entry.parent.id, &entry.name)).await;
    ask_to_remove(servers, entry, Operation::Unlink).await?;
    Ok(Resolution::Done(()))
}

async fn ask_to_remove(servers: &Servers, entry: &EntryTarget, operation: Operation) -> Attempt<()> {
    servers.permit_change(entry, Wanted::Present).await?;
    let server = servers.cluster.dentry_server(entry.parent.id, &entry.name);
    let owned = servers.is_restricted(&entry.parent).await?;
    if operation == Operation::Unlink && !owned && servers.submit_unlink(server, entry).await {
        return Ok(());
    }
    let request = RemoveRequest { entry: entry.entry()?, owned };
    let Err(request_error) = servers.ask(server, operation, &request).await else { return Ok(()) };
    if !owned || request_error.status() != Status::NotPermitted || !servers.was_freed(&entry.parent).await? {
        return Err(request_error);
    }
    servers.ask(server, operation, &RemoveRequest { owned: false, ..request }).await.map(drop)
}

async fn link(servers: &Servers, source: &Target, to: &[u8]) -> Attempt<Resolution<()>> {
    let Target::Entry(source) = source else { return Err(RequestError::local(Status::NotPermitted)) };
    if source.must_be_directory {
        let (attributes, _) = servers.look_up(source, Operation::Lookup).await?;
        let is_directory = attributes.kind == Kind::Directory;
        return Err(RequestError::local(if is_directory { Status::NotPermitted } else { Status::NotDirectory }));
    }
    let target = match servers.resolve_other(to).await? {
        Target::Itself(_) => return Err(RequestError::local(Status::Exists)),
        Target::Entry(target) if target.must_be_directory => return Err(RequestError::local(Status::NotFound)),
        Target::Entry(target) => target,
    };
    servers.permit_change(&target, Wanted::Absent).await?;
    let request = LinkRequest { from: source.entry()?, to: target.entry()? };
    let server = servers.cluster.dentry_server(source.parent.id, &source.name);
    servers.ask(server, Operation::Link, &request).await?;
    Ok(Resolution::Done(()))
}

async fn rename(servers: &Servers, source: &Target, to: &[u8], flags: u32) -> Attempt<Resolution<()>> {
    let Target::Entry(source) = source else { return Err(RequestError::local(Status::Busy)) };
    if source.must_be_directory {
        let (attributes, _) = servers.look_up(source, Operation::Lookup).await?;
        if attributes.kind != Kind::Directory {
            return Err(RequestError::local(Status::NotDirectory));
        }
    }
    let target = match servers.resolve_other(to).await? {
        Target::Itself(_) => return Err(RequestError::local(Status::Busy)),
        Target::Entry(target) => target,
    };
    if target.must_be_directory && !source.must_be_directory {
        // Only a directory may come to be at such a path.
        let (attributes, _) = servers.look_up(source, Operation::Lookup).await?;
        if attributes.kind != Kind::Directory {
            return Err(RequestError::local(Status::NotDirectory));
        }
    }
    rename_entry(servers, source, &target, flags).await.map(Resolution::Done)
}

pub(crate) async fn rename_entry(
    servers: &Servers,
    source: &EntryTarget,
    target: &EntryTarget,
    flags: u32,
) -> Attempt<()> {
    servers.note_removal(servers.cluster.dentry_server(source.parent.id, &source.name)).await;
    let reply = ask_to_rename(servers, source, target, flags).await?;
    servers.forget_entry(source);
    servers.forget_entry(target);
    if !reply.params.is_empty() {
        let server = servers.cluster.dentry_server(source.parent.id, &source.name);
        let moved = RenamedReply::from_bytes(&reply.params);
        servers.note_moved(&moved.map_err(|malformed| RequestError::malformed(Operation::Rename, server, malformed))?);
    }
    Ok(())
}

async fn ask_to_rename(servers: &Servers, source: &EntryTarget, target: &EntryTarget, flags: u32) -> Attempt<Reply> {
    let server = servers.cluster.dentry_server(source.parent.id, &source.name);
    if (source.parent.id, &source.name) == (target.parent.id, &target.name) {
        // Nothing changes, which takes no right.
        let request = RenameRequest { from: source.entry()?, to: target.entry()?, flags };
        return servers.ask(server, Operation::Rename, &request).await;
    }
    servers.permit_change(source, Wanted::Present).await?;
    let permitted = match flags & rename_flags::NO_REPLACE {
        0 => servers.permit(&target.parent, access::WRITE).await,
        _ => servers.permit_change(target, Wanted::Absent).await,
    };
    if let Err(request_error) = permitted {
        // What is wrong with the old name is told first.
        servers.permit_taking(source).await?;
        return Err(request_error);
    }
    let owned = restrictions(servers, source, target).await?;
    let request = RenameRequest { from: source.entry()?, to: target.entry()?, flags: flags | owned };
    let request_error = match servers.ask(server, Operation::Rename, &request).await {
        Ok(reply) => return Ok(reply),
        Err(request_error) => request_error,
    };
    if owned == 0 || request_error.status() != Status::NotPermitted {
        return Err(request_error);
    }
    let freed = [servers.was_freed(&source.parent).await?, servers.was_freed(&target.parent).await?];
    if !freed.contains(&true) {
        return Err(request_error);
    }
    let owned = restrictions(servers, source, target).await?;
    servers.ask(server, Operation::Rename, &RenameRequest { flags: flags | owned, ..request }).await
}

/// What is to be the caller's own, for the directory of the one name or the other is sticky.
async fn restrictions(servers: &Servers, source: &EntryTarget, target: &EntryTarget) -> Attempt<u32> {
    let source = if servers.is_restricted(&source.parent).await? { rename_flags::OWNED_SOURCE } else { 0 };
    let target = if servers.is_restricted(&target.parent).await? { rename_flags::OWNED_TARGET } else { 0 };
    Ok(source | target)
}
