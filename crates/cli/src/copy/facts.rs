//! What is known of an entry that is copied, and what of it a copy is given.

use client::{AttributeChanges, Attributes, Kind, Layout, Timestamp};
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

const NANOS_PER_SECOND: i64 = 1_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    /// A pipe, socket or device.
    Special(Kind),
}

/// An inode: on this machine or not, its device, its number.
pub type Inode = (bool, u64, u64);

/// What is kept of an entry. Times are nanoseconds since the epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub kind: EntryKind,
    pub inode: Inode,
    /// How many names the inode has.
    pub link_count: u64,
    /// The group is given to a copy also by others than the superuser, who have to be in it.
    pub keeps_group: bool,
    pub size: u64,
    /// The number of a device, in the 32 bits that the kernel uses; of others 0.
    pub device: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub atime: i64,
    pub mtime: i64,
    /// Of a file of the cluster: where its chunks are.
    pub layout: Option<Layout>,
}

impl Facts {
    /// Those of a file of this machine.
    pub fn of_metadata(metadata: &Metadata) -> Facts {
        let file_type = metadata.file_type();
        let kind = if file_type.is_file() {
            EntryKind::File
        } else if file_type.is_dir() {
            EntryKind::Directory
        } else if file_type.is_symlink() {
            EntryKind::Symlink
        } else if file_type.is_socket() {
            EntryKind::Special(Kind::Socket)
        } else if file_type.is_fifo() {
            EntryKind::Special(Kind::Fifo)
        } else if file_type.is_block_device() {
            EntryKind::Special(Kind::BlockDevice)
        } else {
            EntryKind::Special(Kind::CharacterDevice)
        };
        let nanoseconds = |seconds: i64, rest: i64| seconds.saturating_mul(NANOS_PER_SECOND).saturating_add(rest);
        Facts {
            kind,
            inode: (true, metadata.dev(), metadata.ino()),
            link_count: metadata.nlink(),
            keeps_group: false,
            size: metadata.size(),
            // The two halves of larger numbers lie apart; no device has one.
            device: metadata.rdev() as u32,
            mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            atime: nanoseconds(metadata.atime(), metadata.atime_nsec()),
            mtime: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            layout: None,
        }
    }

    /// Those of a file of the cluster.
    pub fn of_attributes(attributes: &Attributes) -> Facts {
        let kind = match attributes.kind {
            Kind::File => EntryKind::File,
            Kind::Directory => EntryKind::Directory,
            Kind::Symlink => EntryKind::Symlink,
            special => EntryKind::Special(special),
        };
        let Attributes { id, size, mode, uid, gid, atime, mtime, .. } = *attributes;
        let device = attributes.device();
        let (inode, link_count) = ((false, 0, id.0), u64::from(attributes.link_count));
        let layout = (kind == EntryKind::File).then_some(attributes.layout);
        Facts { kind, inode, link_count, keeps_group: false, size, device, mode, uid, gid, atime, mtime, layout }
    }

    /// The bytes that a copy moves.
    pub fn bytes(&self) -> u64 {
        if self.kind == EntryKind::File { self.size } else { 0 }
    }

    /// The mode to give to a copy: without the rights of another user's setuid program, unless its owner is kept too.
    pub fn kept_mode(&self) -> u32 {
        let user = reactor::process::user();
        if user == 0 || user == self.uid { self.mode } else { self.mode & !0o6000 }
    }

    /// Owner and group to give to a copy, where the caller may.
    pub fn kept_owner(&self) -> (Option<u32>, Option<u32>) {
        let is_root = reactor::process::user() == 0;
        (is_root.then_some(self.uid), (is_root || self.keeps_group).then_some(self.gid))
    }

    /// What a copy in the cluster is to be given.
    pub fn changes(&self) -> AttributeChanges {
        let (uid, gid) = self.kept_owner();
        AttributeChanges {
            mode: (self.kind != EntryKind::Symlink).then(|| self.kept_mode()),
            uid,
            gid,
            atime: Timestamp::At(self.atime),
            mtime: Timestamp::At(self.mtime),
            size: None,
        }
    }
}
