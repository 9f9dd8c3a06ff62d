//! What files and directories have behind beside their bytes and names: owner, mode, times and extended attributes.

use super::BackingUse;
use super::extended_behind::KEY_SPACE;
use crate::core::{Core, Failure};
use reactor::backing::{AttributeChange, BackingAttributes, BackingDirectory, BackingError, BackingFile};
use std::rc::Rc;
use wire::messages::BackingPlace;
use wire::{Attributes, FileId};

impl Core {
    /// Sets a file's size and what it has beside its bytes, and tells what it has then.
    pub(super) async fn set_attributes_behind(
        self: &Rc<Self>,
        file: FileId,
        attributes: &Attributes,
        old: Option<&BackingPlace>,
        (parent, hidden): (&BackingDirectory, &[u8]),
        target: &BackingFile,
    ) -> Result<BackingAttributes, Failure> {
        let backing = self.backing();
        if let Some(old) = old {
            let knows_extended = self.knows_extended(file);
            self.copy_xattrs(old, (parent, hidden), knows_extended).await?;
        }
        self.set_extended_behind(&self.own_extended(file), (parent, hidden)).await?;
        let change = AttributeChange {
            owner: Some((attributes.uid, attributes.gid)),
            mode: Some(attributes.mode & 0o7777),
            atime: Some(attributes.atime),
            mtime: Some(attributes.mtime),
        };
        let set = match target.set_attributes(attributes.size, change).await {
            // Owners are set as far as this user may.
            Err(error) if error.is_refused() => {
                target.set_attributes(attributes.size, AttributeChange { owner: None, ..change }).await
            }
            other => other,
        };
        set.map_err(|error| backing.failure(error))
    }

    /// Whether a directory, which did not open, is there no more, is another one, or may not be seen by this user; not
    /// whether it can't be seen just now.
    async fn is_out_of_reach(self: &Rc<Self>, directory: FileId) -> bool {
        match self.directory_behind(directory, self.reactor.now() + self.options.timeout).await {
            Ok(place) => {
                let opened = self.backing().open_known(&place).await;
                opened.is_err_and(|error| error.is_missing() || error.is_replaced() || error.is_refused())
            }
            Err(failure) => failure.status == wire::Status::StaleDirectory,
        }
    }

    /// What of a file is not shown here stays with it, as far as this user may have it so; of users' extended
    /// attributes, where they are known, those here are all.
    async fn copy_xattrs(
        self: &Rc<Self>,
        old: &BackingPlace,
        (parent, hidden): (&BackingDirectory, &[u8]),
        knows_extended: bool,
    ) -> Result<(), Failure> {
        let backing = self.backing();
        let is_none = |error: &BackingError| {
            error.is_unsupported() || error.is_no_xattr() || error.is_refused() || error.is_missing()
        };
        let opened = match self.open_parent_of(old).await {
            Ok(opened) => opened,
            // Nothing is to be had of it.
            Err(_) if self.is_out_of_reach(old.parent).await => return Ok(()),
            Err(failure) => return Err(failure),
        };
        let keys = match opened.xattrs(old.name()).await {
            Err(error) if is_none(&error) => return Ok(()),
            other => other.map_err(|error| backing.failure(error))?,
        };
        for key in keys.into_iter().filter(|key| !knows_extended || !key.starts_with(KEY_SPACE)) {
            let copied = async { parent.set_xattr(hidden, &key, opened.xattr(old.name(), &key).await?).await };
            match copied.await {
                Err(error) if !is_none(&error) => return Err(backing.failure(error)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Owner and group, where they are other ones.
pub(super) fn owner_wanted(attributes: &Attributes, found: &BackingAttributes) -> Option<(u32, u32)> {
    let wanted = (attributes.uid, attributes.gid);
    (wanted != (found.owner, found.group)).then_some(wanted)
}

pub(super) async fn set_rights(
    backing: &BackingUse,
    parent: &BackingDirectory,
    name: &[u8],
    attributes: &Attributes,
    found: &BackingAttributes,
) -> Result<(), Failure> {
    let change = AttributeChange { owner: owner_wanted(attributes, found), ..AttributeChange::default() };
    set_as_far_as_allowed(backing, parent, name, change).await?;
    let mode = attributes.mode & 0o7777;
    if mode == found.mode && change.owner.is_none() {
        return Ok(());
    }
    let change = AttributeChange { mode: Some(mode), ..AttributeChange::default() };
    parent.set_attributes(name, change).await.map(drop).map_err(|error| backing.failure(error))
}

/// Owners are set as far as this user may.
pub(super) async fn set_as_far_as_allowed(
    backing: &BackingUse,
    parent: &BackingDirectory,
    name: &[u8],
    change: AttributeChange,
) -> Result<(), Failure> {
    if change == AttributeChange::default() {
        return Ok(());
    }
    match parent.set_attributes(name, change).await {
        Err(error) if !error.is_refused() => Err(backing.failure(error)),
        _ => Ok(()),
    }
}
