//! The simulated site's file system: inodes, names and bytes, and what of them power loss takes.
//!
//! Invariants
//! 1. Names and attributes are made durable in the order in which they changed, as by a journal: power loss takes back
//!    the last of them, any number, and nothing before the last sync of a directory.
//! 2. Bytes are made durable page by page, in any order, and independently of names: a file may have its name and not
//!    its bytes. After a sync of a file that fails what was written counts as clean, though the medium does not have
//!    it. That a file was cut is not lost so: like its size it is durable after the next sync.
//! 3. Times are those of the site's clock in steps of 4 ms, as kernels take them: two changes within one step have one
//!    time.

use super::world::{NodeId, Universe};
use crate::backing::layout::{LAYOUT_KEY, stripe_size};
use crate::backing::{
    AttributeChange, BackingAttributes, FileKind, FreeSpace, Identity, ListEntry, ListPiece, ListPosition, RenameMode,
    SeekKind,
};
use std::collections::BTreeMap;

const PAGE: u64 = 4096;
const TIME_STEP: i64 = 4_000_000;
const CAPACITY_DEFAULT: u64 = 1 << 40;
/// Changes of names that are not durable at most; older ones were written by the site in its own time.
const LOG_MAX: usize = 4096;
/// Number of the root's inode.
pub(super) const ROOT: u64 = 2;

type SitePage = Box<[u8; PAGE as usize]>;
/// A result, or an error number.
pub(super) type SiteResult<T> = Result<T, i32>;

/// Attributes that names' journal makes durable.
#[derive(Clone)]
struct SiteMeta {
    mode: u32,
    owner: u32,
    group: u32,
    mtime: i64,
    ctime: i64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What the medium has in place of a page that was written since.
struct Unsynced {
    node: NodeId,
    before: Option<SitePage>,
    is_written: bool,
    /// The file was cut before it.
    is_cut: bool,
    /// A sync of what was written has failed.
    is_lost: bool,
}

impl Unsynced {
    /// What was written is not written any more; a cut is.
    fn lose(&mut self) {
        self.is_lost = self.is_written;
        if self.is_lost && self.is_cut {
            (self.before, self.is_cut) = (None, false);
        }
    }
}

#[derive(Default)]
struct SiteBytes {
    size: u64,
    pages: BTreeMap<u64, SitePage>,
    unsynced: BTreeMap<u64, Unsynced>,
    /// The size that the medium has, and who has changed it.
    size_before: Option<(NodeId, u64)>,
}

#[derive(Default)]
struct SiteNames {
    /// What a name stands for, and its place in listings.
    entries: BTreeMap<Vec<u8>, (u64, u64)>,
    order: BTreeMap<u64, Vec<u8>>,
    parent: u64,
}

enum SiteContent {
    File(SiteBytes),
    Directory(SiteNames),
    Symlink(Vec<u8>),
    Other,
}

struct SiteInode {
    content: SiteContent,
    meta: SiteMeta,
    link_count: u64,
    opens: u64,
}

/// A change that power loss may take back.
enum SiteUndo {
    Entry { directory: u64, name: Vec<u8>, before: Option<u64> },
    Meta { inode: u64, before: SiteMeta },
}

/// What something new is.
pub(super) enum SiteNew<'a> {
    File,
    Directory,
    Symlink(&'a [u8]),
    Other,
}

pub(super) struct SiteTree {
    inodes: BTreeMap<u64, SiteInode>,
    next_inode: u64,
    next_place: u64,
    /// Changes that are not durable, each with the number of what was done; what was done at once is lost at once.
    log: Vec<(u64, SiteUndo)>,
    step: u64,
    time: i64,
    pub capacity: u64,
    /// What the file system calls itself.
    pub file_system: u64,
    pub is_read_only: bool,
}

impl SiteBytes {
    /// Keeps what the medium has of a page. Nobody's changes are durable at once.
    fn note(&mut self, page: u64, node: Option<NodeId>, is_cut: bool) {
        let Some(node) = node else {
            self.unsynced.remove(&page);
            return;
        };
        let before = self.pages.get(&page).cloned();
        let unsynced = self.unsynced.entry(page).or_insert(Unsynced {
            node,
            before,
            is_written: false,
            is_cut: false,
            is_lost: false,
        });
        (unsynced.node, unsynced.is_lost) = (node, false);
        unsynced.is_written = !is_cut;
        unsynced.is_cut |= is_cut;
    }

    fn set_size(&mut self, size: u64, node: Option<NodeId>) {
        if size < self.size {
            let gone: Vec<u64> = self.pages.range(size.div_ceil(PAGE)..).map(|(page, _)| *page).collect();
            for page in gone {
                self.note(page, node, true);
                self.pages.remove(&page);
            }
            if !size.is_multiple_of(PAGE) && self.pages.contains_key(&(size / PAGE)) {
                // The zeros behind the end are written into the page.
                self.note(size / PAGE, node, false);
                self.pages.entry(size / PAGE).and_modify(|page| page[(size % PAGE) as usize..].fill(0));
            }
        }
        if size != self.size {
            self.size_before = node.map(|node| (node, self.size_before.map_or(self.size, |(_, before)| before)));
            self.size = size;
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8], node: Option<NodeId>) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE, (at % PAGE) as usize);
            let count = (PAGE as usize - within).min(bytes.len() - done);
            self.note(page, node, false);
            let into = self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE as usize]));
            into[within..within + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
        self.set_size(self.size.max(offset + bytes.len() as u64), node);
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        let count = self.size.saturating_sub(offset).min(into.len() as u64) as usize;
        let mut done = 0;
        while done < count {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE, (at % PAGE) as usize);
            let part = (PAGE as usize - within).min(count - done);
            let into = &mut into[done..done + part];
            match self.pages.get(&page) {
                Some(page) => into.copy_from_slice(&page[within..within + part]),
                None => into.fill(0),
            }
            done += part;
        }
        count
    }

    /// One machine syncs what it has written last; pages of others are theirs.
    fn sync(&mut self, node: NodeId, fails: bool) {
        if fails {
            let own = self.unsynced.values_mut().filter(|unsynced| unsynced.node == node);
            own.for_each(Unsynced::lose);
        } else {
            self.unsynced.retain(|_, unsynced| unsynced.is_lost || unsynced.node != node);
            self.size_before.take_if(|(changed, _)| *changed == node);
        }
    }

    /// Power goes, of one machine or of all: of what is not durable each page stays or goes.
    fn lose_power(&mut self, universe: &Universe, node: Option<NodeId>) {
        let of = |writer: NodeId| node.is_none_or(|node| node == writer);
        let pages: Vec<u64> =
            self.unsynced.iter().filter(|(_, unsynced)| of(unsynced.node)).map(|(page, _)| *page).collect();
        for page in pages {
            let Some(unsynced) = self.unsynced.remove(&page) else { continue };
            let stays = !unsynced.is_lost && universe.below(2) == 0;
            universe.trace(0x74, page << 1 | u64::from(stays));
            if !stays {
                match unsynced.before {
                    Some(before) => drop(self.pages.insert(page, before)),
                    None => drop(self.pages.remove(&page)),
                }
            }
        }
        if let Some((writer, before)) = self.size_before
            && of(writer)
        {
            self.size_before = None;
            if universe.below(2) == 0 {
                self.set_size(before, None);
            }
        }
        // Bytes beyond the end are none, whatever pages came back.
        self.set_size_of_pages();
    }

    fn set_size_of_pages(&mut self) {
        let size = self.size;
        self.size = u64::MAX;
        self.set_size(size, None);
    }
}

impl SiteContent {
    fn kind(&self) -> FileKind {
        match self {
            SiteContent::File(_) => FileKind::File,
            SiteContent::Directory(_) => FileKind::Directory,
            SiteContent::Symlink(_) => FileKind::Symlink,
            SiteContent::Other => FileKind::Other,
        }
    }
}

impl SiteTree {
    pub fn new() -> SiteTree {
        let mut tree = SiteTree {
            inodes: BTreeMap::new(),
            next_inode: ROOT,
            next_place: 1,
            log: Vec::new(),
            step: 0,
            time: 0,
            capacity: CAPACITY_DEFAULT,
            file_system: 1,
            is_read_only: false,
        };
        let root = tree.add_inode(SiteNew::Directory, 0o755);
        let inode = tree.inode_mut(root);
        inode.link_count = 2;
        tree
    }

    /// What happens from here to the next beginning happens at this time, and whole or not at all.
    pub fn begin(&mut self, time: i64) {
        self.step += 1;
        self.time = time - time.rem_euclid(TIME_STEP);
    }

    fn inode(&self, inode: u64) -> SiteResult<&SiteInode> {
        self.inodes.get(&inode).ok_or(libc::ESTALE)
    }

    fn inode_mut(&mut self, inode: u64) -> &mut SiteInode {
        self.inodes.get_mut(&inode).expect("an inode with a name is there")
    }

    fn add_inode(&mut self, new: SiteNew<'_>, mode: u32) -> u64 {
        let content = match new {
            SiteNew::File => SiteContent::File(SiteBytes::default()),
            SiteNew::Directory => SiteContent::Directory(SiteNames::default()),
            SiteNew::Symlink(target) => SiteContent::Symlink(target.to_vec()),
            SiteNew::Other => SiteContent::Other,
        };
        let (xattrs, owner, group) = Default::default();
        let meta = SiteMeta { mode, owner, group, mtime: self.time, ctime: self.time, xattrs };
        let number = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(number, SiteInode { content, meta, link_count: 0, opens: 0 });
        number
    }

    fn names(&self, directory: u64) -> SiteResult<&SiteNames> {
        match &self.inode(directory)?.content {
            SiteContent::Directory(names) => Ok(names),
            SiteContent::Symlink(_) => Err(libc::ELOOP),
            _ => Err(libc::ENOTDIR),
        }
    }

    fn names_mut(&mut self, directory: u64) -> &mut SiteNames {
        match &mut self.inode_mut(directory).content {
            SiteContent::Directory(names) => names,
            _ => unreachable!("names are in directories"),
        }
    }

    /// Names of a directory that is still there.
    fn living(&self, directory: u64) -> SiteResult<&SiteNames> {
        let names = self.names(directory)?;
        if self.inode(directory)?.link_count > 0 { Ok(names) } else { Err(libc::ESTALE) }
    }

    /// What a name stands for. Errors: `ENOENT`, `ENOTDIR`, `ELOOP`; `ESTALE` for a directory that was removed.
    pub fn find(&self, directory: u64, name: &[u8]) -> SiteResult<u64> {
        self.living(directory)?.entries.get(name).map(|(inode, _)| *inode).ok_or(libc::ENOENT)
    }

    /// What names, one below the other, lead to.
    pub fn walk<'a>(&self, directory: u64, names: impl Iterator<Item = &'a [u8]>) -> SiteResult<u64> {
        names.filter(|name| !name.is_empty()).try_fold(directory, |directory, name| self.find(directory, name))
    }

    pub fn kind(&self, inode: u64) -> SiteResult<FileKind> {
        Ok(self.inode(inode)?.content.kind())
    }

    /// An inode is open once more.
    pub fn open(&mut self, inode: u64) {
        self.inode_mut(inode).opens += 1;
    }

    /// An inode is open once less.
    pub fn close(&mut self, inode: u64) {
        if let Some(found) = self.inodes.get_mut(&inode) {
            found.opens = found.opens.saturating_sub(1);
        }
        self.collect();
    }

    /// Forgets what has no name and is not open, once no undo can bring it back.
    fn collect(&mut self) {
        if self.log.is_empty() {
            self.inodes.retain(|_, inode| inode.link_count > 0 || inode.opens > 0);
        }
    }

    /// Has a name stand for something else, or nothing, and counts links.
    fn replace_entry(&mut self, directory: u64, name: &[u8], inode: Option<u64>) -> Option<u64> {
        let place = self.next_place;
        self.next_place += 1;
        let names = self.names_mut(directory);
        let before = names.entries.remove(name);
        if let Some((_, place)) = before {
            names.order.remove(&place);
        }
        if let Some(inode) = inode {
            names.entries.insert(name.to_vec(), (inode, place));
            names.order.insert(place, name.to_vec());
        }
        let before = before.map(|(inode, _)| inode);
        if let Some(old) = before {
            let old = self.inode_mut(old);
            match old.content {
                SiteContent::Directory(_) => {
                    old.link_count = 0;
                    self.inode_mut(directory).link_count -= 1;
                }
                _ => old.link_count -= 1,
            }
        }
        if let Some(new) = inode {
            let found = self.inode_mut(new);
            match &mut found.content {
                SiteContent::Directory(names) => {
                    names.parent = directory;
                    found.link_count = 2;
                    self.inode_mut(directory).link_count += 1;
                    let subdirectories = self.subdirectory_count(new);
                    self.inode_mut(new).link_count += subdirectories;
                }
                _ => found.link_count += 1,
            }
        }
        before
    }

    fn subdirectory_count(&self, directory: u64) -> u64 {
        let Ok(names) = self.names(directory) else { return 0 };
        let is_directory = |inode: &u64| self.kind(*inode) == Ok(FileKind::Directory);
        names.entries.values().filter(|(inode, _)| is_directory(inode)).count() as u64
    }

    fn set_entry(&mut self, directory: u64, name: &[u8], inode: Option<u64>) {
        let before = self.replace_entry(directory, name, inode);
        self.note(SiteUndo::Entry { directory, name: name.to_vec(), before });
        self.touch(directory, true);
        for inode in before.into_iter().chain(inode) {
            self.touch(inode, false);
        }
    }

    fn note(&mut self, undo: SiteUndo) {
        self.log.push((self.step, undo));
        if self.log.len() > LOG_MAX {
            self.log.drain(..self.step_start(LOG_MAX / 2));
        }
    }

    /// The last place in the log up to one at which nothing is cut in two.
    fn step_start(&self, mut place: usize) -> usize {
        while place > 0 && place < self.log.len() && self.log[place - 1].0 == self.log[place].0 {
            place -= 1;
        }
        place
    }

    /// An inode has changed, or its contents too.
    fn touch(&mut self, inode: u64, is_modified: bool) {
        let time = self.time;
        self.change_meta(inode, |meta| {
            meta.ctime = time;
            if is_modified {
                meta.mtime = time;
            }
        });
    }

    fn change_meta(&mut self, inode: u64, change: impl FnOnce(&mut SiteMeta)) {
        let before = self.inode_mut(inode).meta.clone();
        change(&mut self.inode_mut(inode).meta);
        self.note(SiteUndo::Meta { inode, before });
    }

    fn check_writable(&self) -> SiteResult<()> {
        if self.is_read_only { Err(libc::EROFS) } else { Ok(()) }
    }

    fn used(&self) -> u64 {
        let pages = self.inodes.values().map(|inode| match &inode.content {
            SiteContent::File(bytes) => bytes.pages.len() as u64,
            _ => 1,
        });
        pages.sum::<u64>() * PAGE
    }

    fn check_space(&self, size: u64) -> SiteResult<()> {
        // What is not limited is not counted.
        let has_room = self.capacity == CAPACITY_DEFAULT || self.used() + size <= self.capacity;
        if has_room { Ok(()) } else { Err(libc::ENOSPC) }
    }

    pub fn make(&mut self, directory: u64, name: &[u8], new: SiteNew<'_>, mode: u32) -> SiteResult<u64> {
        if self.living(directory)?.entries.contains_key(name) {
            return Err(libc::EEXIST);
        }
        self.check_writable()?;
        self.check_space(PAGE)?;
        let inode = self.add_inode(new, mode);
        self.set_entry(directory, name, Some(inode));
        Ok(inode)
    }

    pub fn link(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) -> SiteResult<()> {
        let is_there = self.living(to.0)?.entries.contains_key(to.1);
        let inode = self.find(from.0, from.1)?;
        if is_there {
            return Err(libc::EEXIST);
        }
        self.check_writable()?;
        if self.kind(inode)? == FileKind::Directory {
            return Err(libc::EPERM);
        }
        self.set_entry(to.0, to.1, Some(inode));
        Ok(())
    }

    pub fn remove(&mut self, directory: u64, name: &[u8], is_directory: bool) -> SiteResult<()> {
        let inode = self.find(directory, name)?;
        self.check_writable()?;
        match (self.kind(inode)?, is_directory) {
            (FileKind::Directory, false) => return Err(libc::EISDIR),
            (FileKind::Directory, true) if !self.names(inode)?.entries.is_empty() => return Err(libc::ENOTEMPTY),
            (FileKind::Directory, true) | (_, false) => {}
            (_, true) => return Err(libc::ENOTDIR),
        }
        self.set_entry(directory, name, None);
        self.collect();
        Ok(())
    }

    /// Whether a directory is another one or lies below it.
    fn lies_within(&self, mut directory: u64, other: u64) -> bool {
        loop {
            if directory == other {
                return true;
            }
            let Ok(names) = self.names(directory) else { return false };
            if directory == ROOT || names.parent == directory {
                return false;
            }
            directory = names.parent;
        }
    }

    pub fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), mode: RenameMode) -> SiteResult<()> {
        self.living(to.0)?;
        let moved = self.find(from.0, from.1)?;
        let there = match self.find(to.0, to.1) {
            Ok(inode) => Some(inode),
            Err(libc::ENOENT) => None,
            Err(error) => return Err(error),
        };
        self.check_writable()?;
        let is_directory = self.kind(moved)? == FileKind::Directory;
        match (mode, there) {
            (RenameMode::NoReplace, Some(_)) => return Err(libc::EEXIST),
            (RenameMode::Exchange, None) => return Err(libc::ENOENT),
            (_, Some(other)) if other == moved => return Ok(()),
            _ if is_directory && self.lies_within(to.0, moved) => return Err(libc::EINVAL),
            (RenameMode::Exchange, Some(other)) => {
                if self.kind(other)? == FileKind::Directory && self.lies_within(from.0, other) {
                    return Err(libc::EINVAL);
                }
                self.set_entry(from.0, from.1, None);
                self.set_entry(to.0, to.1, Some(moved));
                self.set_entry(from.0, from.1, Some(other));
                return Ok(());
            }
            (_, Some(other)) => match (is_directory, self.kind(other)? == FileKind::Directory) {
                (true, false) => return Err(libc::ENOTDIR),
                (false, true) if self.lies_within(from.0, other) => return Err(libc::ENOTEMPTY),
                (false, true) => return Err(libc::EISDIR),
                (true, true) if !self.names(other)?.entries.is_empty() => return Err(libc::ENOTEMPTY),
                _ => {}
            },
            (_, None) => {}
        }
        self.set_entry(from.0, from.1, None);
        self.set_entry(to.0, to.1, Some(moved));
        self.collect();
        Ok(())
    }

    pub fn look(&self, inode: u64) -> SiteResult<BackingAttributes> {
        let SiteInode { content, meta, link_count, .. } = self.inode(inode)?;
        let (size, space, target) = match content {
            SiteContent::File(bytes) => (bytes.size, bytes.pages.len() as u64 * PAGE, None),
            SiteContent::Directory(names) => (names.entries.len() as u64 * 32, PAGE, None),
            SiteContent::Symlink(target) => (target.len() as u64, 0, Some(target.as_slice().into())),
            SiteContent::Other => (0, 0, None),
        };
        Ok(BackingAttributes {
            kind: content.kind(),
            identity: Identity { device: 1, inode, size, mtime: meta.mtime, ctime: meta.ctime },
            mode: meta.mode,
            owner: meta.owner,
            group: meta.group,
            link_count: *link_count,
            space,
            block_size: PAGE,
            target,
        })
    }

    pub fn list(&self, directory: u64, from: ListPosition, count: usize, tells_kind: bool) -> SiteResult<ListPiece> {
        let names = self.living(directory)?;
        let mut rest = names.order.range(from.0 + 1..);
        let mut entries = Vec::new();
        let mut next = None;
        for (place, name) in rest.by_ref().take(count) {
            let (inode, _) = names.entries[name];
            let kind = if tells_kind { Some(self.kind(inode)?) } else { None };
            entries.push(ListEntry { name: name.as_slice().into(), kind, inode });
            next = Some(ListPosition(*place));
        }
        Ok(ListPiece { entries, next })
    }

    fn bytes(&self, inode: u64) -> SiteResult<&SiteBytes> {
        match &self.inode(inode)?.content {
            SiteContent::File(bytes) => Ok(bytes),
            _ => Err(libc::EISDIR),
        }
    }

    fn bytes_mut(&mut self, inode: u64) -> SiteResult<&mut SiteBytes> {
        self.bytes(inode)?;
        match &mut self.inode_mut(inode).content {
            SiteContent::File(bytes) => Ok(bytes),
            _ => unreachable!("just seen"),
        }
    }

    pub fn read(&self, inode: u64, offset: u64, into: &mut [u8]) -> SiteResult<usize> {
        Ok(self.bytes(inode)?.read(offset, into))
    }

    /// Writes; what nobody of the world's nodes writes is durable at once.
    pub fn write(&mut self, inode: u64, offset: u64, bytes: &[u8], node: Option<NodeId>) -> SiteResult<()> {
        self.check_writable()?;
        let new_pages = {
            let file = self.bytes(inode)?;
            let pages = offset / PAGE..(offset + bytes.len() as u64).div_ceil(PAGE);
            pages.filter(|page| !file.pages.contains_key(page)).count() as u64
        };
        if new_pages > 0 {
            self.check_space(new_pages * PAGE)?;
        }
        self.bytes_mut(inode)?.write(offset, bytes, node);
        self.touch(inode, true);
        Ok(())
    }

    pub fn set_size(&mut self, inode: u64, size: u64, node: Option<NodeId>) -> SiteResult<()> {
        self.check_writable()?;
        self.bytes_mut(inode)?.set_size(size, node);
        self.touch(inode, true);
        Ok(())
    }

    /// Size of a file and its pages that have anything but zeros.
    pub fn pages(&self, inode: u64) -> Option<(u64, BTreeMap<u64, Vec<u8>>)> {
        let bytes = self.bytes(inode).ok()?;
        let pages = bytes.pages.iter().filter(|(_, page)| page.iter().any(|byte| *byte != 0));
        Some((bytes.size, pages.map(|(number, page)| (*number, page.to_vec())).collect()))
    }

    pub fn seek(&self, inode: u64, offset: u64, kind: SeekKind) -> SiteResult<Option<u64>> {
        let bytes = self.bytes(inode)?;
        if offset >= bytes.size {
            return Ok(None);
        }
        let first = offset / PAGE;
        let data = bytes.pages.range(first..).map(|(page, _)| *page);
        let page = match kind {
            SeekKind::Data => data.take(1).next(),
            // The first number that is not that of the page in its turn.
            _ => Some(
                data.zip(first..)
                    .find(|(page, turn)| page != turn)
                    .map_or_else(|| first + bytes.pages.range(first..).count() as u64, |(_, turn)| turn),
            ),
        };
        let wanted = kind == SeekKind::Data;
        let found = page.map(|page| (page * PAGE).max(offset)).filter(|found| *found < bytes.size);
        // There is a hole at the end of every file.
        Ok(if wanted { found } else { Some(found.unwrap_or(bytes.size).min(bytes.size)) })
    }

    /// Makes durable what a machine has written to a file, or of a directory all names that have changed anywhere
    /// (invariant 1).
    pub fn sync(&mut self, inode: u64, node: NodeId, fails: bool) -> SiteResult<()> {
        match &mut self.inodes.get_mut(&inode).ok_or(libc::ESTALE)?.content {
            SiteContent::File(bytes) => bytes.sync(node, fails),
            _ if !fails => {
                self.log.clear();
                self.collect();
            }
            _ => {}
        }
        Ok(())
    }

    pub fn set_attributes(&mut self, inode: u64, change: &AttributeChange) -> SiteResult<()> {
        self.check_writable()?;
        if change.mode.is_some() && self.kind(inode)? == FileKind::Symlink {
            return Err(libc::EOPNOTSUPP);
        }
        self.inode(inode)?;
        let time = self.time;
        self.change_meta(inode, |meta| {
            (meta.owner, meta.group) = change.owner.unwrap_or((meta.owner, meta.group));
            meta.mode = change.mode.map_or(meta.mode, |mode| mode & 0o7777);
            meta.mtime = change.mtime.unwrap_or(meta.mtime);
            meta.ctime = time;
        });
        Ok(())
    }

    pub fn xattrs(&self, inode: u64) -> SiteResult<Vec<Box<[u8]>>> {
        Ok(self.inode(inode)?.meta.xattrs.keys().map(|key| key.as_slice().into()).collect())
    }

    pub fn xattr(&self, inode: u64, key: &[u8]) -> SiteResult<Vec<u8>> {
        self.inode(inode)?.meta.xattrs.get(key).cloned().ok_or(libc::ENODATA)
    }

    pub fn set_xattr(&mut self, inode: u64, key: &[u8], value: Option<&[u8]>) -> SiteResult<()> {
        self.check_writable()?;
        if matches!(self.kind(inode)?, FileKind::Symlink | FileKind::Other) && key.starts_with(b"user.") {
            return Err(libc::EPERM);
        }
        if value.is_none() {
            self.xattr(inode, key)?;
        }
        let time = self.time;
        self.change_meta(inode, |meta| {
            match value {
                Some(value) => drop(meta.xattrs.insert(key.to_vec(), value.to_vec())),
                None => drop(meta.xattrs.remove(key)),
            }
            meta.ctime = time;
        });
        Ok(())
    }

    pub fn preferred_size(&self, inode: u64) -> SiteResult<u64> {
        let layout = self.inode(inode)?.meta.xattrs.get(LAYOUT_KEY.to_bytes());
        Ok(layout.and_then(|layout| stripe_size(layout)).unwrap_or(PAGE))
    }

    pub fn space(&self) -> FreeSpace {
        let available = self.capacity.saturating_sub(self.used());
        let file_system = self.file_system;
        FreeSpace { file_system, size: self.capacity, available, file_count: 0, file_count_available: 0 }
    }

    /// The machine of a node loses power: what it has written and not synced may be gone. What it did to names was told
    /// to the site.
    pub fn lose_node_power(&mut self, universe: &Universe, node: NodeId) {
        self.lose_bytes(universe, Some(node));
    }

    /// The site loses power.
    pub fn lose_power(&mut self, universe: &Universe) {
        let kept = self.step_start(universe.below(self.log.len() as u64 + 1) as usize);
        universe.trace(0x75, kept as u64);
        for (_, undo) in self.log.split_off(kept).into_iter().rev() {
            match undo {
                SiteUndo::Entry { directory, name, before } => drop(self.replace_entry(directory, &name, before)),
                SiteUndo::Meta { inode, before } => self.inode_mut(inode).meta = before,
            }
        }
        self.log.clear();
        self.lose_bytes(universe, None);
        self.collect();
    }

    fn lose_bytes(&mut self, universe: &Universe, node: Option<NodeId>) {
        for inode in self.inodes.values_mut() {
            if let SiteContent::File(bytes) = &mut inode.content {
                bytes.lose_power(universe, node);
            }
        }
    }

    /// The root goes, with everything in it.
    pub fn remove_root(&mut self) {
        let inodes: Vec<u64> = self.inodes.keys().copied().collect();
        for inode in inodes {
            let found = self.inode_mut(inode);
            found.link_count = 0;
            if let SiteContent::Directory(names) = &mut found.content {
                names.entries.clear();
                names.order.clear();
            }
        }
        self.log.clear();
        self.collect();
    }

    /// Whether there is a root.
    pub fn has_root(&self) -> bool {
        self.inodes.get(&ROOT).is_some_and(|root| root.link_count > 0)
    }
}
