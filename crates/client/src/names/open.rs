//! Opening and closing files by their paths.

use crate::error::{Attempt, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::names::MODE_BITS;
use crate::names::resolve::{EntryTarget, Resolution, Target};
use crate::names::rights::Wanted;
use crate::open_files::file::{File, OpenHow};
use crate::servers::Servers;
use crate::shared_memory::attribute_cache::NewFile;
use std::cell::Cell;
use wire::credentials::access;
use wire::messages::{OpenIdRequest, OpenReply, OpenRequest, open_flags};
use wire::{Attributes, Decode, Kind, LayoutWish, Operation, Status};

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
        let file = File::new(&attributes.await?, how, self.servers.session(), self.servers.sessions_lost());
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

impl Servers {
    /// How a new file is to be spread over the servers. Errors: `Invalid`.
    pub(crate) fn layout_wish(&self, how: &OpenHow) -> Attempt<LayoutWish> {
        let chunk_size = if how.chunk_size == 0 { self.options.chunk_size } else { how.chunk_size };
        let wish = LayoutWish { chunk_size, width: how.width, run: how.run, first: how.first };
        match wish.check(self.server_count()) {
            Ok(()) => Ok(wish),
            Err(words) => Err(RequestError::Local(Status::Invalid, words)),
        }
    }
}

async fn ask_to_open(
    servers: &Servers,
    entry: &EntryTarget,
    how: &OpenHow,
    access: u8,
    route: &Route,
) -> Attempt<Attributes> {
    let layout = servers.layout_wish(how)?;
    let flag = |wanted: bool, flag: u32| if wanted { flag } else { 0 };
    let flags = flag(how.create, open_flags::CREATE)
        | flag(how.create && how.exclusive, open_flags::EXCLUSIVE)
        | flag(how.truncate, open_flags::TRUNCATE)
        | flag(how.no_follow, open_flags::NO_FOLLOW);
    let operation = if how.create || how.truncate { Operation::Open } else { Operation::OpenExisting };
    let mode = how.mode & MODE_BITS & !servers.umask();
    let group = if how.create { servers.inherited_group(&entry.parent).await? } else { None };
    let server = servers.cluster.dentry_server(entry.parent.id, &entry.name);
    let new = NewFile { mode, chunk_size: layout.chunk_size, group };
    if how.create
        && layout.is_plain()
        && let Some(attributes) = servers.submit_create(server, entry, &new).await
    {
        return Ok(attributes);
    }
    let mut request = OpenRequest { entry: entry.entry()?, flags, access, mode, layout, group };
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
