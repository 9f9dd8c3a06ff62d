//! Operations on inodes: attributes and sizes. By path they cost a lookup more than by handle.

use crate::error::{Attempt, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::names::resolve::{Resolution, Target};
use crate::names::rights::Rights;
use crate::open_files::file::File;
use crate::servers::Servers;
use wire::credentials::Credentials;
use wire::limits::FILE_SIZE_MAX;
use wire::messages::{EntryReply, FileRequest, SetAttributesRequest, TruncateRequest, set_mask};
use wire::{Attributes, Decode, Encode, FileId, Kind, Operation, Status};

/// What to do with a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timestamp {
    /// Leave it.
    #[default]
    Keep,
    /// The server's now.
    Now,
    /// Nanoseconds since the epoch.
    At(i64),
}

/// Changes to an inode; `None` and `Keep` leave things as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttributeChanges {
    /// Permission bits (12).
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    /// Bytes that a file is cut or extended to, before anything else changes.
    pub size: Option<u64>,
}

impl AttributeChanges {
    fn request(&self, file: FileId) -> SetAttributesRequest {
        let mut request = SetAttributesRequest { file, mask: 0, mode: 0, uid: 0, gid: 0, atime: 0, mtime: 0 };
        let mut set = |value: Option<u32>, field: &mut u32, bit: u32| {
            if let Some(value) = value {
                *field = value;
                request.mask |= bit;
            }
        };
        set(self.mode, &mut request.mode, set_mask::MODE);
        set(self.uid, &mut request.uid, set_mask::UID);
        set(self.gid, &mut request.gid, set_mask::GID);
        let time = |timestamp, at_bit, now_bit| match timestamp {
            Timestamp::Keep => (0, 0),
            Timestamp::Now => (0, now_bit),
            Timestamp::At(nanoseconds) => (nanoseconds, at_bit),
        };
        let (atime, atime_bit) = time(self.atime, set_mask::ATIME, set_mask::ATIME_NOW);
        let (mtime, mtime_bit) = time(self.mtime, set_mask::MTIME, set_mask::MTIME_NOW);
        SetAttributesRequest { mask: request.mask | atime_bit | mtime_bit, atime, mtime, ..request }
    }
}

impl FileSystem {
    /// Attributes of what a path leads to, symbolic links followed; sizes are gathered from all servers.
    ///
    /// A directory is told without the share of a server that does not answer: its times are then those that the others
    /// know of, and its link count is 1, as file systems say that do not count.
    pub async fn stat(&self, path: &[u8]) -> Result<Attributes> {
        self.stat_path(path, Operation::Look, true).await
    }

    /// Attributes of what a path names; of a symbolic link, its own. Directories as with `stat`.
    pub async fn lstat(&self, path: &[u8]) -> Result<Attributes> {
        self.stat_path(path, Operation::Look, false).await
    }

    /// As `stat`, or `lstat` without `follow`, for who goes by the times or link counts of directories.
    ///
    /// Errors: `Unreachable` or `TimedOut` while a server does not answer that has a share of the directory.
    pub async fn stat_whole(&self, path: &[u8], follow: bool) -> Result<Attributes> {
        self.stat_path(path, Operation::Stat, follow).await
    }

    async fn stat_path(&self, path: &[u8], operation: Operation, follow: bool) -> Result<Attributes> {
        self.servers.on_path(path, async |target| inspect(&self.servers, target, operation, follow).await).await
    }

    /// Errors unless a user has all rights of `wanted` (4 read, 2 write, 1 execute; 0 only asks whether it is there) to
    /// what a path leads to: `AccessDenied`, `NotFound` and others. `None` is the client's own user; programs that act
    /// for others ask for these (access(2) asks for the real user).
    pub async fn access(&self, path: &[u8], wanted: u8, user: Option<&Credentials>) -> Result<()> {
        let user = user.unwrap_or(self.servers.user());
        let look = async |target: &Target| {
            let attributes = match inspect(&self.servers, target, Operation::Lookup, true).await? {
                Resolution::Done(attributes) => attributes,
                Resolution::Follow(link) => return Ok(Resolution::Follow(link)),
            };
            if user.may(&attributes, wanted) {
                Ok(Resolution::Done(()))
            } else {
                Err(RequestError::local(Status::AccessDenied))
            }
        };
        self.servers.on_path_as(user, path, look).await
    }

    /// Attributes of an open file, directories as with `stat`. One that was removed meanwhile has no links and is as it
    /// was last seen.
    pub async fn stat_file(&self, file: &File) -> Result<Attributes> {
        self.servers.adopt(file).await;
        let attributes = match self.servers.look_id(file.id).await {
            Ok(attributes) => attributes,
            Err(request_error) => {
                let removed = file.removed_directory().filter(|_| request_error.status() == Status::StaleFile);
                return removed.ok_or_else(|| request_error.about_file(file.id));
            }
        };
        file.note_attributes(&attributes);
        self.servers.note_links(file.id, attributes.link_count);
        Ok(attributes)
    }

    /// Attributes by id, such as those of a listed entry; of directories with the shares of all servers.
    pub async fn stat_id(&self, id: FileId) -> Result<Attributes> {
        self.servers.stat_id(id).await.map_err(|request_error| request_error.about_file(id))
    }

    /// The same for who asks on the way to something else: of a directory without the times that a server does not tell
    /// which is not there, with a link count of 1 then.
    pub async fn look_id(&self, id: FileId) -> Result<Attributes> {
        self.servers.look_id(id).await.map_err(|request_error| request_error.about_file(id))
    }

    /// Changes attributes of what a path names, or leads to with `follow`. Returns them as they are then.
    ///
    /// Errors: `NotPermitted` for those who are not the owner, and others.
    pub async fn set_attributes(&self, path: &[u8], follow: bool, changes: &AttributeChanges) -> Result<Attributes> {
        let change = async |target: &Target| {
            let id = match inspect_id(&self.servers, target, follow).await? {
                Resolution::Done((id, _)) => id,
                Resolution::Follow(link) => return Ok(Resolution::Follow(link)),
            };
            let attributes = self.servers.change(id, changes, true).await?;
            match target {
                Target::Itself(directory) => {
                    self.servers.cache.borrow_mut().note_rights(directory, Rights::of(&attributes));
                }
                Target::Entry(entry) if attributes.kind == Kind::Directory => {
                    self.servers.remember(entry, &attributes);
                }
                Target::Entry(_) => {}
            }
            Ok(Resolution::Done(attributes))
        };
        self.servers.on_path(path, change).await
    }

    /// Changes attributes of an open file.
    pub async fn set_file_attributes(&self, file: &File, changes: &AttributeChanges) -> Result<Attributes> {
        self.servers.adopt(file).await;
        let check_size = !file.write;
        self.servers
            .change(file.id, changes, check_size)
            .await
            .map_err(|request_error| request_error.about_file(file.id))
    }

    /// Sets the permission bits.
    pub async fn chmod(&self, path: &[u8], mode: u32) -> Result<Attributes> {
        let changes = AttributeChanges { mode: Some(mode & 0o7777), ..AttributeChanges::default() };
        self.set_attributes(path, true, &changes).await
    }

    /// Sets owner and group; `None` leaves one as it is.
    pub async fn chown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<Attributes> {
        let changes = AttributeChanges { uid, gid, ..AttributeChanges::default() };
        self.set_attributes(path, true, &changes).await
    }

    /// Sets the times of access and modification.
    pub async fn utimens(&self, path: &[u8], atime: Timestamp, mtime: Timestamp) -> Result<Attributes> {
        let changes = AttributeChanges { atime, mtime, ..AttributeChanges::default() };
        self.set_attributes(path, true, &changes).await
    }

    /// Cuts or extends a file to `size` bytes. Errors: `IsDirectory`, `TooLarge`, and others.
    pub async fn truncate(&self, path: &[u8], size: u64) -> Result<Attributes> {
        let cut = async |target: &Target| {
            let (id, kind) = match inspect_id(&self.servers, target, true).await? {
                Resolution::Done(found) => found,
                Resolution::Follow(link) => return Ok(Resolution::Follow(link)),
            };
            if kind == Kind::Directory {
                return Err(RequestError::local(Status::IsDirectory));
            }
            truncate_id(&self.servers, id, size, true).await.map(Resolution::Done)
        };
        self.servers.on_path(path, cut).await
    }

    /// Cuts or extends an open file. Errors: `Invalid` when it was not opened for writing, `TooLarge`, and others.
    pub async fn truncate_file(&self, file: &File, size: u64) -> Result<Attributes> {
        if !file.write {
            return Err(RequestError::local(Status::Invalid).about_file(file.id));
        }
        self.servers.adopt(file).await;
        let attributes = truncate_id(&self.servers, file.id, size, false).await;
        let attributes = attributes.map_err(|request_error| request_error.about_file(file.id))?;
        file.note_attributes(&attributes);
        Ok(attributes)
    }
}

impl Servers {
    pub(crate) async fn stat_id(&self, id: FileId) -> Attempt<Attributes> {
        if let Some(attributes) = self.cached_inode(self.home_of(id)?, id).await {
            return Ok(attributes);
        }
        ask_home(self, id, Operation::StatId, &FileRequest { file: id }).await
    }

    pub(crate) async fn look_id(&self, id: FileId) -> Attempt<Attributes> {
        if let Some(attributes) = self.cached_inode(self.home_of(id)?, id).await {
            return Ok(attributes);
        }
        ask_home(self, id, Operation::LookId, &FileRequest { file: id }).await
    }

    /// Changes an inode; its size first, for which the right to write is asked for with `check_size`.
    pub(crate) async fn change(&self, id: FileId, changes: &AttributeChanges, check_size: bool) -> Attempt<Attributes> {
        let mut request = changes.request(id);
        if let Some(size) = changes.size {
            let attributes = truncate_id(self, id, size, check_size).await?;
            // A change of the size sets this time already, which takes no ownership.
            request.mask &= !set_mask::MTIME_NOW;
            if request.mask == 0 {
                return Ok(attributes);
            }
        }
        ask_home(self, id, Operation::SetAttributes, &request).await
    }
}

/// A request about an inode to its home, answered with its attributes.
async fn ask_home(servers: &Servers, id: FileId, operation: Operation, request: &impl Encode) -> Attempt<Attributes> {
    let home = servers.home_of(id)?;
    let reply = servers.ask(home, operation, request).await?;
    let reply = EntryReply::from_bytes(&reply.params);
    Ok(reply.map_err(|malformed| RequestError::malformed(operation, home, malformed))?.attributes)
}

async fn truncate_id(servers: &Servers, id: FileId, size: u64, check: bool) -> Attempt<Attributes> {
    if size > FILE_SIZE_MAX {
        return Err(RequestError::local(Status::TooLarge));
    }
    ask_home(servers, id, Operation::Truncate, &TruncateRequest { file: id, size, check }).await
}

/// `Stat`, `Look` or `Lookup` of a target, with the rules for symbolic links and trailing slashes.
pub(crate) async fn inspect(
    servers: &Servers,
    target: &Target,
    operation: Operation,
    follow: bool,
) -> Attempt<Resolution<Attributes>> {
    let entry = match target {
        Target::Itself(directory) => return servers.stat_directory(directory, operation).await.map(Resolution::Done),
        Target::Entry(entry) => entry,
    };
    let (attributes, link) = servers.look_up(entry, operation).await?;
    match attributes.kind {
        Kind::Symlink if follow || entry.must_be_directory => return Ok(Resolution::Follow(link)),
        Kind::Directory => {
            servers.remember(entry, &attributes);
        }
        _ if entry.must_be_directory => return Err(RequestError::local(Status::NotDirectory)),
        _ => {}
    }
    Ok(Resolution::Done(attributes))
}

/// Id and kind of a target, for operations that go to the inode's home next.
pub(crate) async fn inspect_id(
    servers: &Servers,
    target: &Target,
    follow: bool,
) -> Attempt<Resolution<(FileId, Kind)>> {
    if let Target::Itself(directory) = target {
        let looked = servers.stat_directory(directory, Operation::Lookup).await;
        return looked.map(|found| Resolution::Done((found.id, Kind::Directory)));
    }
    Ok(match inspect(servers, target, Operation::Lookup, follow).await? {
        Resolution::Done(attributes) => Resolution::Done((attributes.id, attributes.kind)),
        Resolution::Follow(link) => Resolution::Follow(link),
    })
}
