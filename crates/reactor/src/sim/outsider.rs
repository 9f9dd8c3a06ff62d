//! Who changes the simulated site's files besides the nodes, and what tests say of the site.

use super::backing::{BackingCosts, BackingFaults, PathRule, Site};
use super::backing_tree::{SiteNew, SiteResult};
use super::world::{Universe, World};
use crate::backing::{FileKind, ListPosition, RenameMode};
use std::collections::BTreeMap;

/// Somebody who is no node of the world and changes the site's files, at once and durably. Paths are from the root, and
/// what they lead to is to be there; methods panic else.
pub struct Outsider<'a>(&'a Universe);

impl Outsider<'_> {
    fn with<T>(&self, act: impl FnOnce(&mut Site) -> SiteResult<T>) -> T {
        let mut site = self.0.site.borrow_mut();
        self.0.trace(0x72, 0);
        site.tree.begin(self.0.site_clock());
        act(&mut site)
            .unwrap_or_else(|errno| panic!("an outsider's change: {}", std::io::Error::from_raw_os_error(errno)))
    }

    fn make(&self, path: &str, new: SiteNew<'_>, mode: u32) -> u64 {
        self.with(|site| {
            let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
            let directory = site.walk(directory)?;
            site.tree.make(directory, name.as_bytes(), new, mode)
        })
    }

    /// Makes a directory.
    pub fn make_directory(&self, path: &str) {
        self.make(path, SiteNew::Directory, 0o755);
    }

    /// Makes a symbolic link.
    pub fn make_symlink(&self, path: &str, target: &str) {
        self.make(path, SiteNew::Symlink(target.as_bytes()), 0o777);
    }

    /// Makes something that is no file, directory or link.
    pub fn make_other(&self, path: &str) {
        self.make(path, SiteNew::Other, 0o644);
    }

    /// Writes to a file, which is made if it is not there.
    pub fn write(&self, path: &str, offset: u64, bytes: &[u8]) {
        let found = self.0.site.borrow().walk(path);
        let inode = match found {
            Ok(inode) => inode,
            Err(_) => self.make(path, SiteNew::File, 0o644),
        };
        self.with(|site| site.tree.write(inode, offset, bytes, None));
    }

    /// Sets a file's size.
    pub fn set_size(&self, path: &str, size: u64) {
        self.with(|site| {
            let inode = site.walk(path)?;
            site.tree.set_size(inode, size, None)
        });
    }

    /// All bytes of a file; nothing where there is none.
    pub fn read(&self, path: &str) -> Option<Vec<u8>> {
        let site = self.0.site.borrow();
        let inode = site.walk(path).ok()?;
        let mut bytes = vec![0; site.tree.look(inode).ok()?.identity.size as usize];
        site.tree.read(inode, 0, &mut bytes).ok()?;
        Some(bytes)
    }

    /// First bytes of a file of this inode number, at most so many, if it has this size and mtime; none of number 0.
    pub fn read_inode(&self, inode: u64, known: (u64, i64), size_max: u64) -> Option<Vec<u8>> {
        if inode == 0 {
            return Some(Vec::new());
        }
        let site = self.0.site.borrow();
        let identity = site.tree.look(inode).ok()?.identity;
        let mut bytes = vec![0; identity.size.min(size_max) as usize];
        site.tree.read(inode, 0, &mut bytes).ok()?;
        ((identity.size, identity.mtime) == known).then_some(bytes)
    }

    /// The number of the inode at a path.
    pub fn inode(&self, path: &str) -> u64 {
        self.0.site.borrow().walk(path).expect("it is there")
    }

    /// Size of a file and its pages that have anything but zeros, by number: what a file with large holes can be read
    /// by. Nothing where there is none.
    pub fn read_pages(&self, path: &str) -> Option<(u64, BTreeMap<u64, Vec<u8>>)> {
        let site = self.0.site.borrow();
        site.tree.pages(site.walk(path).ok()?)
    }

    /// Names of a directory, sorted.
    pub fn list(&self, path: &str) -> Vec<Vec<u8>> {
        let site = self.0.site.borrow();
        let piece = site.walk(path).and_then(|inode| site.tree.list(inode, ListPosition::default(), usize::MAX, true));
        let mut names: Vec<Vec<u8>> =
            piece.into_iter().flat_map(|piece| piece.entries).map(|entry| entry.name.into_vec()).collect();
        names.sort_unstable();
        names
    }

    /// Whether a path leads to a directory.
    pub fn is_directory(&self, path: &str) -> bool {
        let site = self.0.site.borrow();
        let found = site.walk(path).and_then(|inode| site.tree.look(inode));
        found.is_ok_and(|found| found.kind == FileKind::Directory)
    }

    /// Whether a path leads to anything.
    pub fn exists(&self, path: &str) -> bool {
        self.0.site.borrow().walk(path).is_ok()
    }

    /// Removes a name, also that of an empty directory.
    pub fn remove(&self, path: &str) {
        self.with(|site| {
            let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
            let (directory, inode) = (site.walk(directory)?, site.walk(path)?);
            let is_directory = site.tree.kind(inode)? == FileKind::Directory;
            site.tree.remove(directory, name.as_bytes(), is_directory)
        });
    }

    /// Renames, and replaces what is there.
    pub fn rename(&self, from: &str, to: &str) {
        self.with(|site| {
            let split = |path: &str| {
                let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
                site.walk(directory).map(|directory| (directory, name.as_bytes().to_vec()))
            };
            let (from, to) = (split(from)?, split(to)?);
            site.tree.rename((from.0, &from.1), (to.0, &to.1), RenameMode::Replace)
        });
    }

    /// Sets an extended attribute, of any key.
    pub fn set_xattr(&self, path: &str, key: &str, value: &[u8]) {
        self.with(|site| {
            let inode = site.walk(path)?;
            site.tree.set_xattr(inode, key.as_bytes(), Some(value))
        });
    }

    /// The value of an extended attribute; nothing where there is none.
    pub fn xattr(&self, path: &str, key: &str) -> Option<Vec<u8>> {
        let site = self.0.site.borrow();
        site.tree.xattr(site.walk(path).ok()?, key.as_bytes()).ok()
    }

    /// Takes the root away, with all in it.
    pub fn remove_root(&self) {
        self.with(|site| {
            site.tree.remove_root();
            Ok(())
        });
    }
}

impl World {
    /// Somebody else at the site.
    pub fn outsider(&self) -> Outsider<'_> {
        Outsider(&self.universe)
    }

    /// Sets what calls on the site do wrong from now on.
    pub fn set_backing_faults(&self, faults: BackingFaults) {
        self.universe.site.borrow_mut().faults = faults;
    }

    /// Has each file of the site be synced by itself.
    pub fn set_backing_syncs_apart(&self) {
        self.universe.site.borrow_mut().syncs_apart = true;
    }

    /// Renames of the site do nothing but replace, as over FUSE and NFS: other modes fail with `EINVAL`.
    pub fn set_backing_renames_plainly(&self) {
        self.universe.site.borrow_mut().renames_plainly = true;
    }

    /// Sets what moving bytes to and from the site costs from now on.
    pub fn set_backing_costs(&self, costs: BackingCosts) {
        assert!(costs.bandwidth > 0 && costs.stripe_size > 0);
        self.universe.site.borrow_mut().costs = Some(costs);
    }

    /// Bytes that nodes have written to the site's files since the beginning.
    pub fn backing_bytes_written(&self) -> u64 {
        self.universe.site.borrow().written
    }

    /// Sets how many bytes the site's file system takes.
    pub fn set_backing_size(&self, size: u64) {
        self.universe.site.borrow_mut().tree.capacity = size;
    }

    /// Sets what the site's file system calls itself, as if another one were mounted there.
    pub fn set_backing_file_system(&self, file_system: u64) {
        self.universe.site.borrow_mut().tree.file_system = file_system;
    }

    /// Makes the site's file system read-only, or writable again.
    pub fn set_backing_read_only(&self, is_read_only: bool) {
        self.universe.site.borrow_mut().tree.is_read_only = is_read_only;
    }

    /// Makes calls fail from now on that are about a path or what lies below it: those with this name (as `calls` of a
    /// tree has it) or all, so many of them or all. An error of a sync takes along what it was about.
    pub fn fail_backing(&self, path: &str, operation: Option<&'static str>, errno: i32, count: Option<u32>) {
        assert!(count != Some(0));
        self.add_rule(path, operation, Some(errno), count);
    }

    /// Makes calls hang from now on that are about a path or what lies below it, until they are released.
    pub fn hang_backing(&self, path: &str, operation: Option<&'static str>) {
        self.add_rule(path, operation, None, None);
    }

    fn add_rule(&self, path: &str, operation: Option<&'static str>, errno: Option<i32>, left: Option<u32>) {
        let rule = PathRule { path: path.into(), operation, errno, left };
        self.universe.site.borrow_mut().rules.push(rule);
    }

    /// No call fails or hangs any more because of its path; those that hang go on.
    pub fn release_backing(&self) {
        self.universe.trace(0x73, 0);
        self.universe.site.borrow_mut().rules.clear();
        for node in self.universe.nodes.borrow().iter() {
            node.site_calls.release(self.now());
        }
    }

    /// The site loses power and is back at once: what was not synced may be gone. Calls under way are as they were.
    pub fn lose_backing_power(&self) {
        self.universe.site.borrow_mut().tree.lose_power(&self.universe);
    }

    /// Calls with this name that have ended, of all nodes.
    pub fn backing_calls(&self, operation: &str) -> u64 {
        self.universe.site.borrow().counts.get(operation).copied().unwrap_or(0)
    }
}
