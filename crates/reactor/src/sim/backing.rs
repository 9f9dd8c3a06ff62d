//! The simulated site: one file system for a world, calls on it that take their time, hang, fail or move less than they
//! should. `outsider.rs` has who else changes things, and what tests set.
//!
//! Invariants
//! 1. A call does what it does at one moment, between the steps of all nodes: then it ends.
//! 2. What is under way when its node goes down has happened or not, and nobody is told.
//! 3. Memory of a call is touched while its tree lives and its node is up, and not after that; bytes that are written
//!    are those that there were when the call began, and it asserts that nobody has changed them meanwhile.

use super::backing_tree::{ROOT, SiteNew, SiteResult, SiteTree};
use super::world::{CrashKind, Node, NodeId, Universe};
use crate::Nanos;
use crate::backing::name::is_within;
use crate::backing::{
    Backing, BackingOperation, BackingOutcome, CallId, EntryName, FileKind, FileRead, HandleId, ListPosition,
    MemoryPlace, OpenAs, RelativePath, RenameMode,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Where the site's file system is on each node. There is nothing at any other path.
pub const BACKING_ROOT: &str = "/site";

/// How long calls take that move bytes, that make something durable, and others.
const MOVE_NS: (Nanos, Nanos) = (100_000, 3_000_000);
const SYNC_NS: (Nanos, Nanos) = (500_000, 20_000_000);
const CALL_NS: (Nanos, Nanos) = (50_000, 1_000_000);
/// How much longer the slow ones take.
const SLOWNESS: Nanos = 100;
/// Names of one piece of a listing at most.
const LIST_COUNT_MAX: u64 = 64;

/// How often calls on the site do what. 0 is never, 1 always, and else one in so many calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackingFaults {
    /// 100 times as slow.
    pub slow: u32,
    /// Fewer bytes than asked for, in reads and writes.
    pub short: u32,
    /// EIO; what was to be done is done or not.
    pub error: u32,
    /// Listings that do not say what names stand for.
    pub unknown_kinds: u32,
    /// Searches for holes and data that call everything data.
    pub hides_holes: u32,
    /// Time that each call takes on top.
    pub delay_ns: Nanos,
}

impl Default for BackingFaults {
    fn default() -> BackingFaults {
        BackingFaults { slow: 50, short: 50, error: 0, unknown_kinds: 10, hides_holes: 10, delay_ns: 0 }
    }
}

/// What moving bytes to and from the site costs beside the time of a call: what all nodes share, and what they take
/// from each other. Off unless somebody sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackingCosts {
    /// Of the site, in bytes per second, for all nodes and both ways together.
    pub bandwidth: u64,
    /// Bytes of a stripe.
    pub stripe_size: u64,
    /// What a write waits for whose stripe another node has written last, as locks on extents are called back in
    /// Lustre: for that node's write to end, and this time.
    pub stripe_ns: Nanos,
}

/// What [`BackingCosts`] knows of the past.
#[derive(Default)]
pub(super) struct BackingTraffic {
    /// When all bytes that are under way by now have been moved.
    free: Nanos,
    /// By inode and number of a stripe: who wrote to it last, and when that ends.
    stripes: BTreeMap<(u64, u64), (NodeId, Nanos)>,
}

impl BackingTraffic {
    /// When bytes are moved that go to their way at a time.
    fn moved(
        &mut self,
        costs: &BackingCosts,
        node: NodeId,
        inode: u64,
        range: Range<u64>,
        is_write: bool,
        at: Nanos,
    ) -> Nanos {
        let size = range.end - range.start;
        let transfer = (u128::from(size) * 1_000_000_000 / u128::from(costs.bandwidth)) as Nanos;
        self.free = self.free.max(at) + transfer;
        if !is_write || size == 0 {
            return self.free;
        }
        let stripes = range.start / costs.stripe_size..range.end.div_ceil(costs.stripe_size);
        let others = stripes.clone().filter_map(|stripe| self.stripes.get(&(inode, stripe)));
        let waits = others.filter(|(last, _)| *last != node).map(|(_, end)| at.max(*end) + costs.stripe_ns).max();
        let end = self.free.max(waits.map_or(0, |waits| waits + transfer));
        self.stripes.extend(stripes.map(|stripe| ((inode, stripe), (node, end))));
        end
    }
}

/// What calls on a path do from now on.
pub(super) struct PathRule {
    pub path: Vec<u8>,
    pub operation: Option<&'static str>,
    /// The error, or nothing for those that hang.
    pub errno: Option<i32>,
    /// Calls that are left to it; nothing for all.
    pub left: Option<u32>,
}

/// The site.
pub(crate) struct Site {
    pub(super) tree: SiteTree,
    pub(super) faults: BackingFaults,
    pub(super) rules: Vec<PathRule>,
    /// Calls that have ended, by the name of their operation.
    pub(super) counts: BTreeMap<&'static str, u64>,
    /// Bytes that calls of nodes have written.
    pub(super) written: u64,
    pub(super) costs: Option<BackingCosts>,
    pub(super) traffic: BackingTraffic,
    /// Each file has to be synced by itself.
    pub(super) syncs_apart: bool,
    /// Renames do nothing but replace (`RenameMode`), as over FUSE and NFS.
    pub(super) renames_plainly: bool,
}

impl Default for Site {
    fn default() -> Site {
        let (faults, rules, counts, written, costs, traffic) = Default::default();
        Site {
            tree: SiteTree::new(),
            faults,
            rules,
            counts,
            written,
            costs,
            traffic,
            syncs_apart: false,
            renames_plainly: false,
        }
    }
}

struct SiteHandle {
    inode: u64,
    path: Vec<u8>,
    can_write: bool,
}

/// What one life of a node has open.
struct SiteMount {
    node: NodeId,
    handles: RefCell<BTreeMap<HandleId, SiteHandle>>,
    ended: RefCell<VecDeque<(CallId, SiteResult<BackingOutcome>)>>,
    waker: RefCell<Option<Waker>>,
    is_ended: Cell<bool>,
}

/// A call that is under way.
struct SiteCall {
    mount: Rc<SiteMount>,
    call: CallId,
    operation: BackingOperation,
    path: Vec<u8>,
    /// What is to be written.
    bytes: Vec<u8>,
    /// Errors of each of the names that it looks at.
    rules: Vec<Option<i32>>,
}

/// The calls of one node.
#[derive(Default)]
pub(crate) struct SiteCalls {
    /// By time, and in the order in which they were begun.
    pending: RefCell<BTreeMap<(Nanos, u64), SiteCall>>,
    hung: RefCell<Vec<SiteCall>>,
    begun: Cell<u64>,
}

impl Site {
    fn one_in(universe: &Universe, count: u32) -> bool {
        count > 0 && universe.below(u64::from(count)) == 0
    }

    /// What a rule says of a call: that it hangs, or an error.
    fn rule(&mut self, word: &str, path: &[u8]) -> Option<Option<i32>> {
        let fits =
            |rule: &PathRule| rule.operation.is_none_or(|operation| operation == word) && is_within(path, &rule.path);
        let index = self.rules.iter().position(fits)?;
        let rule = &mut self.rules[index];
        let errno = rule.errno;
        if let Some(left) = &mut rule.left {
            *left -= 1;
            if *left == 0 {
                self.rules.remove(index);
            }
        }
        Some(errno)
    }

    /// The same of a call. One about several names hangs if one of them does, and notes the errors of others.
    fn rule_of(&mut self, call: &mut SiteCall) -> Option<Option<i32>> {
        let word = call.operation.word();
        let Some(names) = call.names() else { return self.rule(word, &call.path) };
        let path_of = |name: &[u8]| match call.path.is_empty() {
            true => name.to_vec(),
            false => [&*call.path, name].join(&b'/'),
        };
        let paths: Vec<_> = names.into_iter().map(path_of).collect();
        let rules: Vec<_> = paths.iter().map(|path| self.rule(word, path)).collect();
        call.rules = rules.iter().map(|rule| rule.flatten()).collect();
        rules.contains(&Some(None)).then_some(None)
    }

    pub(super) fn walk(&self, path: &str) -> SiteResult<u64> {
        self.tree.walk(ROOT, path.as_bytes().split(|byte| *byte == b'/'))
    }
}

impl SiteCalls {
    /// When the next call ends, in world time.
    pub fn next_completion(&self) -> Option<Nanos> {
        self.pending.borrow().keys().next().map(|(due, _)| *due)
    }

    fn add(&self, due: Nanos, call: SiteCall) {
        let order = self.begun.replace(self.begun.get() + 1);
        self.pending.borrow_mut().insert((due, order), call);
    }

    /// Does what is due. True if there was anything.
    pub fn complete_due(&self, universe: &Universe) -> bool {
        let mut any = false;
        while let Some(call) = self.take_due(universe) {
            any = true;
            let mut call = call;
            let rule = universe.site.borrow_mut().rule_of(&mut call);
            if rule == Some(None) {
                self.hung.borrow_mut().push(call);
                continue;
            }
            let result = call.end(universe, rule.flatten());
            universe.trace(0x70, u64::from(call.call.0) << 32 | result.as_ref().err().map_or(0, |errno| *errno as u64));
            let SiteCall { mount, call, .. } = call;
            if mount.is_ended.get() {
                self.settle(universe, &mount);
                continue;
            }
            mount.ended.borrow_mut().push_back((call, result));
            let waker = mount.waker.take();
            waker.into_iter().for_each(Waker::wake);
        }
        any
    }

    fn take_due(&self, universe: &Universe) -> Option<SiteCall> {
        let mut pending = self.pending.borrow_mut();
        let first = pending.first_entry()?;
        if first.key().0 > universe.time.get() {
            return None;
        }
        Some(first.remove())
    }

    /// The node went down. What was under way has happened or not.
    pub fn crash(&self, universe: &Universe, node: NodeId, kind: CrashKind) {
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        let hung = std::mem::take(&mut *self.hung.borrow_mut());
        let mut mounts = Vec::new();
        for call in pending.into_values().chain(hung) {
            call.mount.is_ended.set(true);
            if call.changes_something() && universe.below(2) == 0 {
                // Nobody hears of it.
                let _ = call.end(universe, None);
            }
            mounts.push(call.mount);
        }
        mounts.iter().for_each(|mount| self.settle(universe, mount));
        if kind == CrashKind::PowerLoss {
            universe.site.borrow_mut().tree.lose_node_power(universe, node);
        }
    }

    /// A tree that nobody uses any more closes what it has open, once nothing is under way in it.
    fn settle(&self, universe: &Universe, mount: &Rc<SiteMount>) {
        let of = |call: &SiteCall| Rc::ptr_eq(&call.mount, mount);
        if !self.pending.borrow().values().any(of) && !self.hung.borrow().iter().any(of) {
            mount.close_all(&mut universe.site.borrow_mut().tree);
        }
    }

    /// Calls that hang go on now.
    pub(super) fn release(&self, time: Nanos) {
        let hung = std::mem::take(&mut *self.hung.borrow_mut());
        hung.into_iter().for_each(|call| self.add(time, call));
    }

    /// The world ends.
    pub fn clear(&self) {
        self.pending.take();
        self.hung.take();
    }
}

impl SiteMount {
    fn inode(&self, handle: HandleId) -> SiteResult<u64> {
        self.handles.borrow().get(&handle).map(|handle| handle.inode).ok_or(libc::EBADF)
    }

    /// The inode of a file that was opened to write.
    fn writable(&self, handle: HandleId, errno: i32) -> SiteResult<u64> {
        match self.handles.borrow().get(&handle) {
            Some(SiteHandle { inode, can_write: true, .. }) => Ok(*inode),
            Some(_) => Err(errno),
            None => Err(libc::EBADF),
        }
    }

    fn path(&self, handle: HandleId, below: &[u8]) -> Vec<u8> {
        let handles = self.handles.borrow();
        let above = handles.get(&handle).map_or(&[][..], |handle| &handle.path);
        let parts = [above, below];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(&b'/')
    }

    fn open(&self, tree: &mut SiteTree, handle: HandleId, inode: u64, path: Vec<u8>, can_write: bool) {
        tree.open(inode);
        let before = self.handles.borrow_mut().insert(handle, SiteHandle { inode, path, can_write });
        assert!(before.is_none(), "a handle is used again only after its close");
    }

    fn close(&self, tree: &mut SiteTree, handle: HandleId) {
        if let Some(handle) = self.handles.borrow_mut().remove(&handle) {
            tree.close(handle.inode);
        }
    }

    fn close_all(&self, tree: &mut SiteTree) {
        for handle in std::mem::take(&mut *self.handles.borrow_mut()).into_values() {
            tree.close(handle.inode);
        }
    }
}

/// What one of several names fails with: as somebody has said, or by accident.
fn rule_or_accident(universe: &Universe, error: u32, rule: Option<i32>) -> SiteResult<()> {
    let is_accident = Site::one_in(universe, error);
    rule.or(is_accident.then_some(libc::EIO)).map_or(Ok(()), Err)
}

impl SiteCall {
    /// What it is about, for rules.
    fn path_of(mount: &SiteMount, operation: &BackingOperation) -> Vec<u8> {
        use BackingOperation::*;
        match operation {
            OpenRoot { .. } => Vec::new(),
            Open { parent: directory, path, .. } => mount.path(*directory, path.bytes()),
            LookAll { directory, .. } | ReadFiles { directory, .. } => mount.path(*directory, b""),
            OpenListing { directory: handle, .. }
            | Close { handle }
            | List { listing: handle, .. }
            | LookOpen { handle }
            | Read { file: handle, .. }
            | Write { file: handle, .. }
            | Sync { handle }
            | SetSize { file: handle, .. }
            | SetOpenAttributes { file: handle, .. }
            | Space { handle }
            | PreferredSize { handle }
            | Seek { file: handle, .. } => mount.path(*handle, b""),
            SyncFiles { files } => files.first().map_or_else(Vec::new, |file| mount.path(*file, b"")),
            Look { directory, name }
            | MakeDirectory { directory, name, .. }
            | MakeSymlink { directory, name, .. }
            | Link { from: (directory, name), .. }
            | Rename { from: (directory, name), .. }
            | Remove { directory, name, .. }
            | SetAttributes { directory, name, .. }
            | ListXattrs { directory, name }
            | GetXattr { directory, name, .. }
            | SetXattr { directory, name, .. }
            | RemoveXattr { directory, name, .. } => mount.path(*directory, name.bytes()),
        }
    }

    /// The names below its path that it is about, if it is about several, each of which fails by itself.
    fn names(&self) -> Option<Vec<&[u8]>> {
        match &self.operation {
            BackingOperation::LookAll { names, .. } => Some(names.iter().map(EntryName::bytes).collect()),
            BackingOperation::ReadFiles { files, .. } => Some(files.iter().map(|(path, _)| path.bytes()).collect()),
            _ => None,
        }
    }

    fn opens(&self) -> Option<HandleId> {
        match self.operation {
            BackingOperation::OpenRoot { handle }
            | BackingOperation::Open { handle, .. }
            | BackingOperation::OpenListing { handle, .. } => Some(handle),
            _ => None,
        }
    }

    fn changes_something(&self) -> bool {
        use BackingOperation::*;
        !matches!(
            self.operation,
            OpenRoot { .. }
                | OpenListing { .. }
                | Close { .. }
                | List { .. }
                | Look { .. }
                | LookAll { .. }
                | LookOpen { .. }
                | Read { .. }
                | ReadFiles { .. }
        )
    }

    /// Does what the call does, unless it fails.
    fn end(&self, universe: &Universe, errno: Option<i32>) -> SiteResult<BackingOutcome> {
        let site = &mut *universe.site.borrow_mut();
        let names = self.names().map(|names| names.len() as u64);
        *site.counts.entry(self.operation.word()).or_default() += names.unwrap_or(1);
        site.tree.begin(universe.site_clock());
        // Each of several names has its own.
        let may_fail = errno.is_none() && names.is_none();
        let is_accident = may_fail && Site::one_in(universe, site.faults.error);
        let Some(errno) = errno.or(is_accident.then_some(libc::EIO)) else {
            return self.perform(universe, site);
        };
        match self.operation {
            // Whatever it says, the handle is gone.
            BackingOperation::Close { handle } => self.mount.close(&mut site.tree, handle),
            BackingOperation::Sync { handle } => {
                let _: SiteResult<()> = site.tree.sync(self.mount.inode(handle)?, self.mount.node, true);
            }
            // Some of them are lost, and tell of it.
            BackingOperation::SyncFiles { ref files } if is_accident => {
                let synced = files.iter().map(|file| {
                    let fails = universe.below(2) == 0;
                    site.tree.sync(self.mount.inode(*file)?, self.mount.node, fails)?;
                    if fails { Err(libc::EIO) } else { Ok(()) }
                });
                return Ok(BackingOutcome::Synced(synced.collect()));
            }
            _ if is_accident && universe.below(2) == 0 => {
                let happened = self.perform(universe, site).is_ok();
                if let Some(handle) = self.opens().filter(|_| happened) {
                    self.mount.close(&mut site.tree, handle);
                }
            }
            _ => {}
        }
        Err(errno)
    }

    fn perform(&self, universe: &Universe, site: &mut Site) -> SiteResult<BackingOutcome> {
        use BackingOperation::*;
        let (tree, mount, faults) = (&mut site.tree, &*self.mount, site.faults);
        let at = |directory: HandleId| mount.inode(directory);
        match &self.operation {
            OpenRoot { handle } => {
                if !tree.has_root() {
                    return Err(libc::ENOENT);
                }
                mount.open(tree, *handle, ROOT, Vec::new(), false);
                return Ok(BackingOutcome::Opened(ROOT));
            }
            Open { handle, parent, path, open_as } => {
                return self.open(tree, *handle, at(*parent)?, path, *open_as).map(BackingOutcome::Opened);
            }
            OpenListing { handle, directory } => {
                let inode = at(*directory)?;
                if tree.look(inode)?.link_count == 0 {
                    return Err(libc::ESTALE);
                }
                mount.open(tree, *handle, inode, self.path.clone(), false);
                return Ok(BackingOutcome::Opened(inode));
            }
            Close { handle } => mount.close(tree, *handle),
            List { listing, from } => {
                let count = 1 + universe.below(LIST_COUNT_MAX) as usize;
                let tells_kind = !Site::one_in(universe, faults.unknown_kinds);
                return self.list(tree, at(*listing)?, *from, count, tells_kind);
            }
            Look { directory, name } => {
                let inode = tree.find(at(*directory)?, name.bytes())?;
                return Ok(BackingOutcome::Attributes(Box::new(tree.look(inode)?)));
            }
            LookAll { directory, names } => {
                let directory = at(*directory)?;
                let looks = names.iter().zip(&self.rules).map(|(name, rule)| {
                    rule_or_accident(universe, faults.error, *rule)?;
                    tree.look(tree.find(directory, name.bytes())?)
                });
                return Ok(BackingOutcome::Looked(looks.collect()));
            }
            LookOpen { handle } => return Ok(BackingOutcome::Attributes(Box::new(tree.look(at(*handle)?)?))),
            Read { offset, .. } | Write { offset, .. } | SetSize { size: offset, .. } if *offset > i64::MAX as u64 => {
                return Err(libc::EFBIG);
            }
            ReadFiles { directory, files } => {
                let directory = at(*directory)?;
                let reads = files.iter().zip(&self.rules).map(|((path, memory), rule)| {
                    rule_or_accident(universe, faults.error, *rule)?;
                    let inode = self.find(tree, directory, path, OpenAs::Read)?;
                    let size = self.read(tree, inode, 0, memory, memory.size)?;
                    Ok(FileRead { size, after: tree.look(inode)? })
                });
                return Ok(BackingOutcome::FilesRead(reads.collect()));
            }
            Read { file, offset, memory } => {
                let size = self.moved(universe, faults, memory.size);
                return self.read(tree, at(*file)?, *offset, memory, size).map(BackingOutcome::Moved);
            }
            Write { file, offset, memory } => {
                let size = self.moved(universe, faults, memory.size);
                self.check_memory(memory);
                let inode = mount.writable(*file, libc::EBADF)?;
                tree.write(inode, *offset, &self.bytes[..size], Some(mount.node))?;
                site.written += size as u64;
                return Ok(BackingOutcome::Moved(size));
            }
            Sync { handle } => tree.sync(at(*handle)?, mount.node, false)?,
            SyncFiles { files } => {
                let synced = files.iter().map(|file| tree.sync(at(*file)?, mount.node, false));
                return Ok(BackingOutcome::Synced(synced.collect()));
            }
            SetSize { file, size } => tree.set_size(mount.writable(*file, libc::EINVAL)?, *size, Some(mount.node))?,
            SetOpenAttributes { file, size, change } => {
                let inode = mount.writable(*file, libc::EINVAL)?;
                if tree.look(inode)?.identity.size != *size {
                    tree.set_size(inode, *size, Some(mount.node))?;
                }
                tree.set_attributes(inode, change)?;
                return Ok(BackingOutcome::Attributes(Box::new(tree.look(inode)?)));
            }
            Space { .. } => return Ok(BackingOutcome::Space(tree.space())),
            PreferredSize { handle } => return Ok(BackingOutcome::Size(tree.preferred_size(at(*handle)?)?)),
            Seek { file, offset, kind } => {
                let inode = at(*file)?;
                let size = tree.look(inode)?.identity.size;
                let found = match Site::one_in(universe, faults.hides_holes) {
                    true if *offset >= size => None,
                    true => Some(if *kind == crate::backing::SeekKind::Data { *offset } else { size }),
                    false => tree.seek(inode, *offset, *kind)?,
                };
                return Ok(BackingOutcome::Offset(found));
            }
            Rename { mode, .. } if site.renames_plainly && *mode != RenameMode::Replace => return Err(libc::EINVAL),
            _ => return self.change_name(tree),
        }
        Ok(BackingOutcome::Done)
    }

    fn change_name(&self, tree: &mut SiteTree) -> SiteResult<BackingOutcome> {
        use BackingOperation::*;
        let at = |directory: &HandleId| self.mount.inode(*directory);
        let new = |inode: SiteResult<u64>| inode.map(drop);
        match &self.operation {
            MakeDirectory { directory, name, mode } => {
                new(tree.make(at(directory)?, name.bytes(), SiteNew::Directory, *mode))?;
            }
            MakeSymlink { directory, name, target } => {
                let target = SiteNew::Symlink(target.as_bytes());
                new(tree.make(at(directory)?, name.bytes(), target, 0o777))?;
            }
            Link { from, to } => tree.link((at(&from.0)?, from.1.bytes()), (at(&to.0)?, to.1.bytes()))?,
            Rename { from, to, mode } => {
                tree.rename((at(&from.0)?, from.1.bytes()), (at(&to.0)?, to.1.bytes()), *mode)?;
                let inode = tree.find(at(&to.0)?, to.1.bytes())?;
                return Ok(BackingOutcome::Attributes(Box::new(tree.look(inode)?)));
            }
            Remove { directory, name, is_directory } => tree.remove(at(directory)?, name.bytes(), *is_directory)?,
            SetAttributes { directory, name, change } => {
                let inode = tree.find(at(directory)?, name.bytes())?;
                tree.set_attributes(inode, change)?;
                return Ok(BackingOutcome::Attributes(Box::new(tree.look(inode)?)));
            }
            ListXattrs { directory, name } => {
                let inode = tree.find(at(directory)?, name.bytes())?;
                return Ok(BackingOutcome::Keys(tree.xattrs(inode)?));
            }
            GetXattr { directory, name, key } => {
                let inode = tree.find(at(directory)?, name.bytes())?;
                return Ok(BackingOutcome::Value(tree.xattr(inode, key.bytes())?));
            }
            SetXattr { directory, name, key, value } => {
                let inode = tree.find(at(directory)?, name.bytes())?;
                tree.set_xattr(inode, key.bytes(), Some(value))?;
            }
            RemoveXattr { directory, name, key } => {
                let inode = tree.find(at(directory)?, name.bytes())?;
                tree.set_xattr(inode, key.bytes(), None)?;
            }
            other => unreachable!("{} is no call about a name", other.word()),
        }
        Ok(BackingOutcome::Done)
    }

    fn open(
        &self,
        tree: &mut SiteTree,
        handle: HandleId,
        parent: u64,
        path: &RelativePath,
        open_as: OpenAs,
    ) -> SiteResult<u64> {
        let (inode, can_write) = match open_as {
            OpenAs::Create(mode) => {
                let names: Vec<&[u8]> = path.names().collect();
                let (last, above) = names.split_last().ok_or(libc::EINVAL)?;
                let directory = tree.walk(parent, above.iter().copied())?;
                (tree.make(directory, last, SiteNew::File, mode)?, true)
            }
            _ => (self.find(tree, parent, path, open_as)?, open_as == OpenAs::Write),
        };
        self.mount.open(tree, handle, inode, self.path.clone(), can_write);
        Ok(inode)
    }

    /// What a path leads to, if it may be opened so.
    fn find(&self, tree: &SiteTree, parent: u64, path: &RelativePath, open_as: OpenAs) -> SiteResult<u64> {
        let inode = tree.walk(parent, path.names())?;
        match (tree.kind(inode)?, open_as) {
            (FileKind::Symlink, _) => Err(libc::ELOOP),
            (FileKind::Directory, OpenAs::Directory | OpenAs::Listing) => Ok(inode),
            (FileKind::Directory, _) => Err(libc::EISDIR),
            (_, OpenAs::Directory | OpenAs::Listing) => Err(libc::ENOTDIR),
            (FileKind::Other, _) => Err(libc::EINVAL),
            (FileKind::File, OpenAs::Write) if tree.is_read_only => Err(libc::EROFS),
            (FileKind::File, _) => Ok(inode),
        }
    }

    fn list(
        &self,
        tree: &SiteTree,
        inode: u64,
        from: ListPosition,
        count: usize,
        tells_kind: bool,
    ) -> SiteResult<BackingOutcome> {
        tree.list(inode, from, count, tells_kind).map(BackingOutcome::Piece)
    }

    /// How many bytes are moved of those that were asked for.
    fn moved(&self, universe: &Universe, faults: BackingFaults, size: usize) -> usize {
        match Site::one_in(universe, faults.short) {
            true => 1 + universe.below(size as u64) as usize,
            false => size,
        }
    }

    fn read(&self, tree: &SiteTree, inode: u64, offset: u64, memory: &MemoryPlace, size: usize) -> SiteResult<usize> {
        if self.mount.is_ended.get() {
            return Err(libc::ECANCELED);
        }
        // SAFETY: the entry holds the memory until this ends, and a tree that has ended was just ruled out.
        let into = unsafe { std::slice::from_raw_parts_mut(memory.address, size) };
        tree.read(inode, offset, into)
    }

    fn check_memory(&self, memory: &MemoryPlace) {
        if !self.mount.is_ended.get() {
            // SAFETY: as above.
            let now = unsafe { std::slice::from_raw_parts(memory.address, memory.size) };
            assert!(now == self.bytes, "memory belongs to its write until that ends");
        }
    }
}

/// The site as a life of a node sees it.
pub(crate) struct SimBacking {
    universe: Rc<Universe>,
    node: Rc<Node>,
    incarnation: u64,
    root: PathBuf,
    mount: Rc<SiteMount>,
}

impl SimBacking {
    pub fn new(universe: &Rc<Universe>, node: &Rc<Node>, root: &Path) -> SimBacking {
        let (handles, ended, waker, is_ended) = Default::default();
        let mount = Rc::new(SiteMount { node: node.id, handles, ended, waker, is_ended });
        let (universe, node, incarnation) = (universe.clone(), node.clone(), node.incarnation.get());
        SimBacking { universe, node, incarnation, root: root.to_owned(), mount }
    }

    fn due(&self, operation: &BackingOperation) -> Nanos {
        let universe = &*self.universe;
        let (least, most) = match operation {
            BackingOperation::Read { .. } | BackingOperation::Write { .. } => MOVE_NS,
            BackingOperation::ReadFiles { files, .. } => {
                let count = files.len() as Nanos;
                (count * (MOVE_NS.0 + CALL_NS.0), count * (MOVE_NS.1 + CALL_NS.1))
            }
            BackingOperation::LookAll { names, .. } => {
                (names.len() as Nanos * CALL_NS.0, names.len() as Nanos * CALL_NS.1)
            }
            BackingOperation::Sync { .. } | BackingOperation::SyncFiles { .. } => SYNC_NS,
            _ => CALL_NS,
        };
        let faults = universe.site.borrow().faults;
        let moves = |at: Nanos| self.moved(operation, at);
        if universe.agenda.borrow().is_some() {
            return moves(self.node.moment(universe) + least + faults.delay_ns);
        }
        let slowness = if Site::one_in(universe, faults.slow) { SLOWNESS } else { 1 };
        moves(universe.time.get() + slowness * universe.between(least, most) + faults.delay_ns)
    }

    /// When a call ends that would have at a time, by what moving its bytes costs.
    fn moved(&self, operation: &BackingOperation, at: Nanos) -> Nanos {
        let Site { costs: Some(costs), traffic, .. } = &mut *self.universe.site.borrow_mut() else { return at };
        let (inode, offset, size, is_write) = match operation {
            BackingOperation::Read { file, offset, memory } => (self.mount.inode(*file), *offset, memory.size, false),
            // Whose inodes these are matters for writes alone.
            BackingOperation::ReadFiles { files, .. } => {
                (Ok(0), 0, files.iter().map(|(_, memory)| memory.size).sum(), false)
            }
            BackingOperation::Write { file, offset, memory } => (self.mount.inode(*file), *offset, memory.size, true),
            _ => return at,
        };
        let Ok(inode) = inode else { return at };
        let range = offset..offset.saturating_add(size as u64);
        traffic.moved(costs, self.node.id, inode, range, is_write, at)
    }
}

impl Backing for SimBacking {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn now(&self) -> Nanos {
        self.node.local_time(self.node.moment(&self.universe))
    }

    fn begin(&self, call: CallId, operation: BackingOperation) {
        let is_alive = self.node.incarnation.get() == self.incarnation && self.node.running.get();
        if !is_alive || self.node.frozen.get() || self.mount.is_ended.get() {
            // It has crashed: nothing of this happens, and nobody hears of it.
            return;
        }
        self.universe.trace(0x71, u64::from(call.0));
        if matches!(operation, BackingOperation::OpenRoot { .. }) && self.root != Path::new(BACKING_ROOT) {
            self.mount.ended.borrow_mut().push_back((call, Err(libc::ENOENT)));
            return self.mount.waker.take().into_iter().for_each(Waker::wake);
        }
        let bytes = match &operation {
            BackingOperation::Write { memory, .. } => {
                // SAFETY: the entry holds the memory, which nobody else touches.
                unsafe { std::slice::from_raw_parts(memory.address, memory.size) }.to_vec()
            }
            _ => Vec::new(),
        };
        let (due, path) = (self.due(&operation), SiteCall::path_of(&self.mount, &operation));
        let rules = Vec::new();
        self.node.site_calls.add(due, SiteCall { mount: self.mount.clone(), call, operation, path, bytes, rules });
    }

    fn poll_ended(&self, context: &mut Context<'_>) -> Poll<(CallId, Result<BackingOutcome, i32>)> {
        if let Some(ended) = self.mount.ended.borrow_mut().pop_front() {
            return Poll::Ready(ended);
        }
        let old = self.mount.waker.replace(Some(context.waker().clone()));
        drop(old);
        Poll::Pending
    }

    fn syncs_at_once(&self) -> bool {
        !self.universe.site.borrow().syncs_apart
    }

    fn end(&self) -> bool {
        let waker = self.mount.waker.take();
        drop(waker);
        self.mount.is_ended.set(true);
        self.node.site_calls.settle(&self.universe, &self.mount);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: all nodes share the site's bandwidth, and a stripe that another node wrote to last costs its time, once
    /// for each change of hands, and nobody else's.
    #[test]
    fn traffic_has_its_price() {
        let costs = BackingCosts { bandwidth: 1_000_000_000, stripe_size: 1_000, stripe_ns: 50 };
        let mut traffic = BackingTraffic::default();
        let mut write = |node: usize, range: Range<u64>, at| traffic.moved(&costs, NodeId(node), 7, range, true, at);
        // A byte takes a nanosecond, whoever moves it; what comes while others are moved waits for these.
        assert_eq!(write(0, 0..400, 100), 500);
        assert_eq!(write(1, 1_000..2_000, 200), 1_500);
        assert_eq!(write(0, 400..500, 5_000), 5_100);
        // From hand to hand, and back; another stripe is free.
        assert_eq!(write(1, 500..600, 5_050), 5_100 + 50 + 100);
        assert_eq!(write(1, 600..700, 9_000), 9_100);
        assert_eq!(write(0, 0..10, 9_000), 9_100 + 50 + 10);
        assert_eq!(write(0, 2_000..2_010, 20_000), 20_010);
        // Two stripes at once: the later counts.
        assert_eq!(write(0, 900..1_100, 30_000), 30_000 + 50 + 200);
        // Reads take bandwidth alone.
        assert_eq!(traffic.moved(&costs, NodeId(3), 7, 0..1_000, false, 40_000), 41_000);
    }
}
