//! Attributes of nodes, rights, and the file system as a whole.

use crate::protocol::{Access, Attr, GETATTR_HANDLE, Getattr, Header, Input, Setattr, setattr};
use crate::serve::{Answer, Handled, Work, file_of, node_of};
use client::{AttributeChanges, Attributes, Kind, Space, Status, Timestamp};

/// What stat(2) tells programs about the size of reads and writes that serve them best.
const BLOCK_SIZE: u32 = 128 << 10;
/// The unit that `st_blocks` is in.
const SECTOR_SIZE: u64 = 512;
/// Bytes of a block of statfs(2).
const FILE_SYSTEM_BLOCK_SIZE: u64 = 4096;
/// Bytes of a store that an inode takes, roughly: how many more there may be is told by it.
const INODE_SIZE: u64 = 512;
const SECOND: i64 = 1_000_000_000;

/// Attributes in the kernel's form. How much of a file is holes is not told: blocks are those of the size.
pub fn attr_of(attributes: &Attributes) -> Attr {
    Attr {
        node: node_of(attributes.id),
        size: attributes.size,
        blocks: attributes.size.div_ceil(SECTOR_SIZE),
        atime: attributes.atime,
        mtime: attributes.mtime,
        ctime: attributes.ctime,
        mode: attributes.st_mode(),
        links: attributes.link_count,
        uid: attributes.uid,
        gid: attributes.gid,
        device: attributes.device(),
        block_size: BLOCK_SIZE,
    }
}

/// What is left of a directory that somebody still stands in: it has no link and no entries, which anybody may see.
fn removed_directory(node: u64) -> Attr {
    Attr {
        node,
        size: 0,
        blocks: 0,
        atime: 0,
        mtime: 0,
        ctime: 0,
        mode: libc::S_IFDIR | 0o777,
        links: 0,
        uid: 0,
        gid: 0,
        device: 0,
        block_size: BLOCK_SIZE,
    }
}

fn time_of(seconds: u64, nanoseconds: u32) -> i64 {
    (seconds as i64).saturating_mul(SECOND).saturating_add(i64::from(nanoseconds))
}

/// What a request changes.
fn changes_of(request: &Setattr) -> AttributeChanges {
    let has = |flag: u32| request.valid & flag != 0;
    let time = |set: u32, now: u32, seconds, nanoseconds| match (has(now), has(set)) {
        (true, _) => Timestamp::Now,
        (false, true) => Timestamp::At(time_of(seconds, nanoseconds)),
        (false, false) => Timestamp::Keep,
    };
    AttributeChanges {
        mode: has(setattr::MODE).then_some(request.mode & 0o7777),
        uid: has(setattr::UID).then_some(request.uid),
        gid: has(setattr::GID).then_some(request.gid),
        atime: time(setattr::ATIME, setattr::ATIME_NOW, request.atime, request.atime_ns),
        mtime: time(setattr::MTIME, setattr::MTIME_NOW, request.mtime, request.mtime_ns),
        size: has(setattr::SIZE).then_some(request.size),
    }
}

/// Whether attributes are complete, and nothing but changes that the kernel knows of or is told of takes them back: not
/// those of a directory without a server's share of its times (a link count of 1), nor those of programs with set-user
/// or set-group bits, which writes take away.
pub fn may_keep(attributes: &Attributes) -> bool {
    let is_whole = attributes.kind != Kind::Directory || attributes.link_count >= 2;
    is_whole && (attributes.kind == Kind::Directory || attributes.mode & 0o6000 == 0)
}

impl Work<'_> {
    pub async fn get_attributes(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let request = Getattr::parse(&mut input)?;
        let beginning = self.begin_keeping();
        let attributes = if request.flags & GETATTR_HANDLE != 0 {
            let open = self.mounted.files.get(request.handle)?;
            self.run(async |files| files.stat_file(&open.file).await).await?
        } else {
            let file = file_of(header.node);
            match self.run(async |files| files.look_id(file).await).await {
                Err(error) if error.status == Status::StaleFile && self.mounted.directories.contains(header.node) => {
                    self.output.attributes(&removed_directory(header.node), 0);
                    return Ok(Answer::Output);
                }
                Err(error) if error.status == Status::StaleFile => match self.mounted.held.of_gone(file) {
                    Some((attributes, _)) => {
                        self.output.attributes(&attr_of(&attributes), 0);
                        return Ok(Answer::Output);
                    }
                    None => return Err(error.into()),
                },
                other => other?,
            }
        };
        let valid_ns = self.attribute_validity(beginning, &attributes);
        self.output.attributes(&attr_of(&attributes), valid_ns);
        Ok(Answer::Output)
    }

    pub async fn set_attributes(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let request = Setattr::parse(&mut input)?;
        let node = file_of(header.node);
        let changes = changes_of(&request);
        let attributes = if changes.size.is_some() && request.valid & setattr::HANDLE != 0 {
            // Whoever has the file open for writing may cut it, whatever its rights are by now.
            let open = self.mounted.files.get(request.handle)?;
            self.for_caller(header, async |files| files.set_file_attributes(&open.file, &changes).await).await?
        } else {
            self.for_caller(header, async |files| files.set_attributes_id(node, &changes).await).await?
        };
        let changes_rights = changes.mode.is_some() || changes.uid.is_some() || changes.gid.is_some();
        if changes_rights && attributes.kind == Kind::Directory {
            // What is kept of its entries is so by the rights that it had.
            self.mounted.keeping.forget_entries();
        }
        // The kernel takes these in whatever it was told meanwhile.
        self.output.attributes(&attr_of(&attributes), 0);
        Ok(Answer::Output)
    }

    /// access(2), which the kernel asks about only where it does not check rights itself.
    pub async fn access(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let Access { mask, .. } = Access::parse(&mut input)?;
        let node = file_of(header.node);
        self.for_caller(header, async |files| files.access_id(node, (mask & 7) as u8).await).await?;
        Ok(Answer::Output)
    }

    pub async fn stat_file_system(&mut self) -> Handled {
        let servers = self.run(async |files| files.stat_file_system().await).await?;
        let sum = client::total(&servers);
        let Space { total, free, available } = Space::of(&sum);
        let more = available / INODE_SIZE;
        let [total, free, available] = [total, free, available].map(|bytes| bytes / FILE_SYSTEM_BLOCK_SIZE);
        self.output.u64(total).u64(free).u64(available);
        self.output.u64(sum.inodes.saturating_add(more)).u64(more);
        self.output.u32(FILE_SYSTEM_BLOCK_SIZE as u32).u32(wire::limits::NAME_SIZE_MAX as u32);
        self.output.u32(FILE_SYSTEM_BLOCK_SIZE as u32).bytes(&[0; 28]);
        Ok(Answer::Output)
    }
}
