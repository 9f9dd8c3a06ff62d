//! Operations on names. Each is one round trip once the parent directory is known. Here are those of directories, links
//! and removal; those of which there is more to say have files of their own.

pub(crate) mod at;
pub(crate) mod directory;
pub(crate) mod directory_cache;
pub(crate) mod extended_attributes;
pub(crate) mod inodes;
pub(crate) mod listing;
pub(crate) mod nodes;
pub(crate) mod open;
pub(crate) mod rename;
pub(crate) mod resolve;
mod retries;
pub(crate) mod rights;
pub(crate) mod search;
pub(crate) mod temporary;

use crate::error::{Attempt, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::names::resolve::{EntryTarget, Resolution, Target};
use crate::names::rights::Wanted;
use crate::servers::Servers;
use wire::limits::PATH_SIZE_MAX;
use wire::messages::{self, EntryReply, LinkRequest, MakeDirectoryRequest, MakeSymlinkRequest, RemoveRequest};
use wire::{Attributes, Decode, Kind, Operation, Status};

/// Permission bits, with the set-user, set-group and sticky bits.
pub(crate) const MODE_BITS: u32 = 0o7777;

impl FileSystem {
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
