//! Extended attributes, by path and by handle. By path they cost a lookup more.

use crate::error::{Attempt, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::names::inodes::inspect_id;
use crate::names::resolve::{Resolution, Target};
use crate::open_files::file::File;
use crate::servers::Servers;
use reactor::Call;
use std::io::IoSlice;
use wire::limits::EXTENDED_SIZE_MAX;
use wire::messages::{
    ExtendedName, ExtendedReply, GetExtendedRequest, ListExtendedRequest, RemoveExtendedRequest, SetExtendedRequest,
};
use wire::{Decode, Encode, FileId, Operation, Status};

/// Bytes that are asked for when all of a value or list is wanted.
const WHOLE: u32 = EXTENDED_SIZE_MAX as u32;

/// What is done to the inode of a path.
enum Act<'a> {
    Get(&'a [u8]),
    Set(&'a [u8], &'a [u8], u32),
    List,
    Remove(&'a [u8]),
}

impl FileSystem {
    /// The value of an extended attribute of what a path names, or leads to with `follow`.
    ///
    /// Errors: `NoAttribute`; `NotSupported` for a name outside `user.`, `trusted.` and `security.`; `OutOfRange` for
    /// an empty name or one of more than 255 bytes; `AccessDenied`, and others.
    pub async fn get_extended(&self, path: &[u8], follow: bool, name: &[u8]) -> Result<Vec<u8>> {
        self.on_inode(path, follow, &Act::Get(name)).await
    }

    /// Sets an extended attribute. `flags` are those of `wire::messages::extended_flags`.
    ///
    /// Errors: as `get_extended`; `Exists` with CREATE, `NoAttribute` with REPLACE, `ArgumentTooLarge` beyond 64 KiB,
    /// `NoSpace` when the file has too many already, `NotPermitted`, and others.
    pub async fn set_extended(&self, path: &[u8], follow: bool, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        self.on_inode(path, follow, &Act::Set(name, value, flags)).await.map(drop)
    }

    /// The names of all extended attributes that this user may know of, each with a NUL behind it, sorted.
    pub async fn list_extended(&self, path: &[u8], follow: bool) -> Result<Vec<u8>> {
        self.on_inode(path, follow, &Act::List).await
    }

    /// Removes an extended attribute. Errors: as `get_extended`, `NotPermitted`, and others.
    pub async fn remove_extended(&self, path: &[u8], follow: bool, name: &[u8]) -> Result<()> {
        self.on_inode(path, follow, &Act::Remove(name)).await.map(drop)
    }

    /// As `get_extended`, of an open file.
    pub async fn get_file_extended(&self, file: &File, name: &[u8]) -> Result<Vec<u8>> {
        self.on_file(file, &Act::Get(name)).await
    }

    /// As `set_extended`, of an open file.
    pub async fn set_file_extended(&self, file: &File, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        self.on_file(file, &Act::Set(name, value, flags)).await.map(drop)
    }

    /// As `list_extended`, of an open file.
    pub async fn list_file_extended(&self, file: &File) -> Result<Vec<u8>> {
        self.on_file(file, &Act::List).await
    }

    /// As `remove_extended`, of an open file.
    pub async fn remove_file_extended(&self, file: &File, name: &[u8]) -> Result<()> {
        self.on_file(file, &Act::Remove(name)).await.map(drop)
    }

    /// As `get_extended`, of what has an id.
    pub async fn get_extended_id(&self, id: FileId, name: &[u8]) -> Result<Vec<u8>> {
        self.on_id(id, &Act::Get(name)).await
    }

    /// As `set_extended`, of what has an id.
    pub async fn set_extended_id(&self, id: FileId, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        self.on_id(id, &Act::Set(name, value, flags)).await.map(drop)
    }

    /// As `list_extended`, of what has an id.
    pub async fn list_extended_id(&self, id: FileId) -> Result<Vec<u8>> {
        self.on_id(id, &Act::List).await
    }

    /// As `remove_extended`, of what has an id.
    pub async fn remove_extended_id(&self, id: FileId, name: &[u8]) -> Result<()> {
        self.on_id(id, &Act::Remove(name)).await.map(drop)
    }

    async fn on_id(&self, id: FileId, act: &Act<'_>) -> Result<Vec<u8>> {
        self.servers.act(id, act).await.map_err(|request_error| request_error.about_file(id))
    }

    async fn on_inode(&self, path: &[u8], follow: bool, act: &Act<'_>) -> Result<Vec<u8>> {
        let on_target = async |target: &Target| match inspect_id(&self.servers, target, follow).await? {
            Resolution::Done((id, _)) => self.servers.act(id, act).await.map(Resolution::Done),
            Resolution::Follow(link) => Ok(Resolution::Follow(link)),
        };
        self.servers.on_path(path, on_target).await
    }

    async fn on_file(&self, file: &File, act: &Act<'_>) -> Result<Vec<u8>> {
        self.on_id(file.id, act).await
    }
}

fn checked(name: &[u8]) -> Attempt<ExtendedName<'_>> {
    ExtendedName::new(name).map_err(RequestError::local)
}

impl Servers {
    /// Returns the body of the reply.
    async fn act(&self, file: FileId, act: &Act<'_>) -> Attempt<Vec<u8>> {
        let home = self.home_of(file)?;
        match *act {
            Act::Get(name) => {
                let request = GetExtendedRequest { file, name: checked(name)?, size_max: WHOLE };
                self.ask_for_body(home, Operation::GetAttribute, &request).await
            }
            Act::List => {
                let request = ListExtendedRequest { file, size_max: WHOLE };
                self.ask_for_body(home, Operation::ListAttributes, &request).await
            }
            Act::Set(name, value, flags) => {
                if value.len() > EXTENDED_SIZE_MAX {
                    return Err(RequestError::local(Status::ArgumentTooLarge));
                }
                let request = SetExtendedRequest { file, name: checked(name)?, flags };
                let body = [IoSlice::new(value)];
                let mut call = Call::new(Operation::SetAttribute, &request);
                call.body = if value.is_empty() { &[] } else { &body };
                self.send(home, call).await.map(|_| Vec::new())
            }
            Act::Remove(name) => {
                let request = RemoveExtendedRequest { file, name: checked(name)? };
                self.ask(home, Operation::RemoveAttribute, &request).await.map(|_| Vec::new())
            }
        }
    }

    async fn ask_for_body(&self, home: u32, operation: Operation, request: &impl Encode) -> Attempt<Vec<u8>> {
        let reply = self.ask(home, operation, request).await?;
        let told = ExtendedReply::from_bytes(&reply.params);
        let told = told.map_err(|malformed| RequestError::malformed(operation, home, malformed))?;
        if told.size as usize != reply.body.len() {
            let malformed = wire::Malformed("the body is not as long as it says");
            return Err(RequestError::malformed(operation, home, malformed));
        }
        Ok(reply.body)
    }
}
