//! Renames.

use crate::error::{Attempt, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::names::resolve::{EntryTarget, Resolution, Target};
use crate::names::rights::Wanted;
use crate::servers::Servers;
use reactor::channel::Reply;
use wire::credentials::access;
use wire::messages::{RenameRequest, RenamedReply, rename_flags};
use wire::{Decode, Kind, Operation, Status};

impl FileSystem {
    /// Renames a file, symbolic link or directory; what `to` named is replaced. `flags` are those of
    /// `wire::messages::rename_flags`.
    ///
    /// Errors: `NotFound`, `IsDirectory` and `NotDirectory` where the two kinds do not fit, `Exists` with `NO_REPLACE`,
    /// `NotEmpty` for a directory that would be replaced, `Invalid` for one that would come to be in itself, and
    /// others. They name `from`.
    pub async fn rename(&self, from: &[u8], to: &[u8], flags: u32) -> Result<()> {
        self.servers.on_path(from, async |source| rename(&self.servers, source, to, flags).await).await
    }
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
