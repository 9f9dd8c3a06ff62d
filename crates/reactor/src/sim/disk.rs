//! Simulated storage: regions that outlive their node's process, with torn writes, lost writes and failing calls.
//!
//! Invariants
//! 1. `memory` is what the processes see; `durable` holds the pages that differ from zero on the medium, with the
//!    number of the change that they contain; a page of `memory`
//!    that is not `dirty` equals the medium's.
//! 2. While a node is frozen every change is recorded in `undo`, and taken back when the node goes down: the crashed
//!    process sees its own writes to the end of its turn, its next life does not. What it moves in by address (bytes of
//!    a connection that it had received before) is not seen to be recorded; therefore `images` has all pages as they
//!    were when the node froze.
//! 3. Writing to a page that was not allocated is a bug (it may be a SIGBUS on a full tmpfs) and asserts.

use super::world::{CrashKind, Node, NodeId, Universe, World};
use crate::region::{LocalFuture, MappingLock, OpenMode, Region, Storage};
use crate::{Nanos, system::mix};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

const PAGE: u64 = 4096;
/// What the medium writes in one piece.
const LINE: usize = 64;
/// How long a sync takes.
const SYNC_NS: (Nanos, Nanos) = (20_000, 800_000);

type Page = Box<[u8; PAGE as usize]>;

/// Memory of regions that are gone, which those that come use again.
const SPARE_SIZE_MAX: usize = 128 << 20;

/// Pages of zeros, one behind the other.
struct Pages {
    /// The first page boundary in what was allocated at `block`.
    memory: *mut u8,
    block: *mut u8,
    layout: Layout,
}

thread_local! {
    static SPARE_PAGES: RefCell<Vec<Pages>> = const { RefCell::new(Vec::new()) };
}

impl Pages {
    /// So many pages, which is at least one.
    fn new(count: u64) -> Pages {
        // Aligned by hand: for large alignments the allocator would write the zeros, and so touch all of a region of
        // which little is ever used.
        let layout = Layout::from_size_align(((count + 1) * PAGE) as usize, 16).expect("a region fits into memory");
        let spare = SPARE_PAGES.with_borrow_mut(|spare| {
            spare.iter().rposition(|pages| pages.layout == layout).map(|index| spare.swap_remove(index))
        });
        spare.unwrap_or_else(|| {
            // SAFETY: the layout is not empty.
            let block = unsafe { alloc_zeroed(layout) };
            if block.is_null() {
                handle_alloc_error(layout);
            }
            // SAFETY: less than a page is skipped, and a page more than needed was allocated.
            let memory = unsafe { block.add(block.align_offset(PAGE as usize)) };
            Pages { memory, block, layout }
        })
    }

    /// Nobody needs the pages any more, of which no others than these were written to. The allocator would write zeros
    /// into all of them for whoever is next, which took most of the time of short simulations.
    fn recycle(&mut self, written: impl Iterator<Item = u64>) {
        SPARE_PAGES.with_borrow_mut(|spare| {
            let size: usize = spare.iter().map(|pages| pages.layout.size()).sum();
            if size + self.layout.size() > SPARE_SIZE_MAX {
                return;
            }
            for page in written {
                // SAFETY: the page lies within the memory, and nobody else has it.
                unsafe { std::ptr::write_bytes(self.memory.add((page * PAGE) as usize), 0, PAGE as usize) };
            }
            let block = std::mem::replace(&mut self.block, std::ptr::null_mut());
            spare.push(Pages { memory: self.memory, block, layout: self.layout });
        });
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if !self.block.is_null() {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.block, self.layout) };
        }
    }
}

/// A region's contents.
struct SimFile {
    pages: Pages,
    size: u64,
    durable: RefCell<BTreeMap<u64, (u64, Page)>>,
    /// Pages that changed since they were last synced, with a number that grows by every change.
    dirty: RefCell<BTreeMap<u64, u64>>,
    /// Pages whose sync failed: as Linux does, they count as clean, though the medium does not have them.
    lost: RefCell<BTreeMap<u64, u64>>,
    changes: Cell<u64>,
    /// Which pages have space, a bit for each.
    allocated: RefCell<Vec<u64>>,
    /// Pages that were given back; their bytes are not zero.
    released: RefCell<BTreeSet<u64>>,
    /// What is held by mapping locks that somebody still has, whatever became of the node.
    mapping_locks: RefCell<BTreeMap<u64, Vec<Range<u64>>>>,
}

impl SimFile {
    fn new(size: u64) -> Rc<SimFile> {
        let rounded = size.next_multiple_of(PAGE);
        assert!(rounded > 0, "a region is not empty");
        let words = (rounded / PAGE).div_ceil(64) as usize;
        Rc::new(SimFile {
            pages: Pages::new(rounded / PAGE),
            size,
            durable: RefCell::default(),
            dirty: RefCell::default(),
            lost: RefCell::default(),
            changes: Cell::new(0),
            allocated: RefCell::new(vec![0; words]),
            released: RefCell::default(),
            mapping_locks: RefCell::default(),
        })
    }

    fn at(&self, offset: u64, size: u64) -> *mut u8 {
        assert!(
            offset <= self.size && size <= self.size - offset,
            "range {offset}+{size} lies within a region of {} bytes",
            self.size
        );
        // SAFETY: just checked.
        unsafe { self.pages.memory.add(offset as usize) }
    }

    fn copy_out(&self, offset: u64, size: u64) -> Vec<u8> {
        let mut bytes = vec![0; size as usize];
        // SAFETY: the range was checked, and the vector is new.
        unsafe { std::ptr::copy_nonoverlapping(self.at(offset, size), bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    fn copy_in(&self, offset: u64, bytes: &[u8]) {
        // SAFETY: the range was checked; the slice is not part of the region (invariant 1 of `region`).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset, bytes.len() as u64), bytes.len()) };
    }

    fn page(&self, page: u64) -> Page {
        let mut bytes = Box::new([0; PAGE as usize]);
        // SAFETY: the memory is a whole number of pages.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.pages.memory.add((page * PAGE) as usize),
                bytes.as_mut_ptr(),
                PAGE as usize,
            )
        };
        bytes
    }

    fn set_page(&self, page: u64, bytes: &[u8; PAGE as usize]) {
        // SAFETY: as above.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pages.memory.add((page * PAGE) as usize), PAGE as usize)
        };
    }

    fn note_dirty(&self, offset: u64, size: u64) {
        if size == 0 {
            return;
        }
        let allocated = self.allocated.borrow();
        let mut dirty = self.dirty.borrow_mut();
        for page in offset / PAGE..(offset + size).div_ceil(PAGE) {
            assert!(
                allocated[(page / 64) as usize] >> (page % 64) & 1 == 1,
                "page {page} is written before it was allocated"
            );
            self.changes.set(self.changes.get() + 1);
            dirty.insert(page, self.changes.get());
            self.lost.borrow_mut().remove(&page);
        }
    }

    fn allocated_pages(&self) -> u64 {
        self.allocated.borrow().iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// All pages that were ever written.
    fn image(&self) -> Vec<(u64, Page)> {
        let (durable, dirty, lost) = (self.durable.borrow(), self.dirty.borrow(), self.lost.borrow());
        let pages: BTreeSet<u64> = durable.keys().chain(dirty.keys()).chain(lost.keys()).copied().collect();
        pages.into_iter().map(|page| (page, self.page(page))).collect()
    }

    /// What power loss does to pages that were not synced: each is kept, lost, or torn by lines. What is left then is
    /// what the medium has.
    fn lose_power(&self, universe: &Universe) {
        let mut durable = self.durable.borrow_mut();
        let mut dirty = std::mem::take(&mut *self.dirty.borrow_mut());
        dirty.append(&mut self.lost.borrow_mut());
        for (page, change) in dirty {
            let zero = [0; PAGE as usize];
            let old = durable.get(&page).map_or(&zero, |(_, page)| &**page);
            match universe.below(3) {
                0 => {}
                1 => self.set_page(page, old),
                _ => {
                    let mut torn = self.page(page);
                    for (line, old) in torn.chunks_mut(LINE).zip(old.chunks(LINE)) {
                        if universe.below(2) == 0 {
                            line.copy_from_slice(old);
                        }
                    }
                    self.set_page(page, &torn);
                }
            }
            durable.insert(page, (change, self.page(page)));
            universe.trace(0x50, page);
        }
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let allocated = self.allocated.borrow();
        let released = self.released.borrow();
        let is_allocated =
            |page: &u64| allocated[(page / 64) as usize] >> (page % 64) & 1 == 1 || released.contains(page);
        self.pages.recycle((0..self.size.div_ceil(PAGE)).filter(is_allocated));
    }
}

/// A change of a frozen node, to be taken back.
enum Undo {
    Bytes { file: Rc<SimFile>, offset: u64, old: Vec<u8> },
    Created { directory: String, name: String },
    Removed { directory: String, name: String, file: Rc<SimFile> },
}

#[derive(Default)]
struct Directory {
    files: BTreeMap<String, Rc<SimFile>>,
    /// Names that came or went since names were last synced, with what they stood for on the medium.
    unsynced: BTreeMap<String, Option<Rc<SimFile>>>,
    /// Which storage has it for itself.
    locked_by: Option<u64>,
}

/// A file and its changed pages.
type Image = (Rc<SimFile>, Vec<(u64, Page)>);

/// All that a node stores.
#[derive(Default)]
pub(crate) struct Disk {
    directories: BTreeMap<String, Directory>,
    undo: Vec<Undo>,
    images: Vec<Image>,
    volatile: bool,
    capacity: Option<u64>,
    next_storage: u64,
    power_cycle: u64,
    syncs_until_failure: Option<u64>,
    allocations_until_failure: Option<u64>,
}

/// Space of a node that was not given another capacity.
const CAPACITY_DEFAULT: u64 = 1 << 40;

/// Counts a plan down. True at its last.
fn comes_due(plan: &mut Option<u64>) -> bool {
    match plan {
        Some(1) => {
            *plan = None;
            true
        }
        Some(left) => {
            *left -= 1;
            false
        }
        None => false,
    }
}

impl Directory {
    fn change(&mut self, name: &str, file: Option<Rc<SimFile>>) -> Option<Rc<SimFile>> {
        let before = match file {
            Some(file) => self.files.insert(name.to_owned(), file),
            None => self.files.remove(name),
        };
        self.unsynced.entry(name.to_owned()).or_insert_with(|| before.clone());
        before
    }

    /// What power loss does to names that were not synced: each is as it was, or as it is.
    fn lose_power(&mut self, universe: &Universe) {
        for (name, before) in std::mem::take(&mut self.unsynced) {
            if universe.below(2) == 0 {
                match before {
                    Some(file) => self.files.insert(name, file),
                    None => self.files.remove(&name),
                };
            }
        }
    }
}

impl Disk {
    fn files(&self) -> impl Iterator<Item = &Rc<SimFile>> {
        self.directories.values().flat_map(|directory| directory.files.values())
    }

    fn free_bytes(&self) -> u64 {
        let used: u64 = self.files().map(|file| file.allocated_pages() * PAGE).sum();
        self.capacity.unwrap_or(CAPACITY_DEFAULT).saturating_sub(used)
    }

    fn directory(&mut self, name: &str) -> &mut Directory {
        self.directories.entry(name.to_owned()).or_default()
    }

    /// The node went down.
    pub fn crash(&mut self, universe: &Universe, kind: CrashKind) {
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Bytes { file, offset, old } => file.copy_in(offset, &old),
                Undo::Created { directory, name } => drop(self.directory(&directory).change(&name, None)),
                Undo::Removed { directory, name, file } => {
                    drop(self.directory(&directory).change(&name, Some(file)));
                }
            }
        }
        for (file, pages) in std::mem::take(&mut self.images) {
            for (page, bytes) in pages {
                file.set_page(page, &bytes);
            }
        }
        for directory in self.directories.values_mut() {
            directory.locked_by = None;
        }
        self.syncs_until_failure = None;
        self.allocations_until_failure = None;
        if kind == CrashKind::PowerLoss {
            if self.volatile {
                self.directories.clear();
            }
            self.power_cycle += 1;
            for directory in self.directories.values_mut() {
                directory.lose_power(universe);
            }
            for file in self.files() {
                file.lose_power(universe);
            }
        }
    }
}

impl World {
    /// Says whether a node's storage forgets at power loss (tmpfs). It does not, unless told.
    pub fn set_volatile(&self, node: NodeId, volatile: bool) {
        self.universe.node(node).disk.borrow_mut().volatile = volatile;
    }

    /// Sets how many bytes a node can allocate in all.
    pub fn set_capacity(&self, node: NodeId, bytes: u64) {
        self.universe.node(node).disk.borrow_mut().capacity = Some(bytes);
    }

    /// Makes the `count`-th next sync of a node (counted from 1) fail with EIO.
    pub fn fail_sync(&self, node: NodeId, count: u64) {
        assert!(count > 0);
        self.universe.node(node).disk.borrow_mut().syncs_until_failure = Some(count);
    }

    /// Makes the `count`-th next allocation of a node (counted from 1) fail with ENOSPC.
    pub fn fail_allocate(&self, node: NodeId, count: u64) {
        assert!(count > 0);
        self.universe.node(node).disk.borrow_mut().allocations_until_failure = Some(count);
    }

    /// Whether a node has a region.
    pub fn has_region(&self, node: NodeId, directory: &str, name: &str) -> bool {
        let node = self.universe.node(node);
        let disk = node.disk.borrow();
        disk.directories.get(directory).is_some_and(|directory| directory.files.contains_key(name))
    }

    /// Flips the bits of `mask` in one stored byte. Panics if there is no such region.
    pub fn corrupt(&self, node: NodeId, directory: &str, name: &str, offset: u64, mask: u8) {
        self.universe.trace(0x51, offset << 8 | u64::from(mask));
        let node = self.universe.node(node);
        let disk = node.disk.borrow();
        let file =
            disk.directories.get(directory).and_then(|directory| directory.files.get(name)).expect("the region exists");
        let byte = file.copy_out(offset, 1)[0] ^ mask;
        file.copy_in(offset, &[byte]);
        if let Some((_, page)) = file.durable.borrow_mut().get_mut(&(offset / PAGE)) {
            page[(offset % PAGE) as usize] ^= mask;
        }
    }

    /// A hash of everything that a node stores, for tests that compare.
    pub fn disk_hash(&self, node: NodeId) -> u64 {
        let node = self.universe.node(node);
        let disk = node.disk.borrow();
        let mut hash = 0;
        for (directory, name, file) in disk
            .directories
            .iter()
            .flat_map(|(path, directory)| directory.files.iter().map(move |(name, file)| (path, name, file)))
        {
            for text in [directory, name] {
                hash = mix(hash ^ u64::from(crc32c::crc32c(text.as_bytes())));
            }
            hash = mix(hash ^ u64::from(crc32c::crc32c(&file.copy_out(0, file.size))));
        }
        hash
    }
}

/// One directory of a node, as a life of that node has it open.
pub(crate) struct SimStorage {
    universe: Rc<Universe>,
    node: Rc<Node>,
    incarnation: u64,
    directory: String,
    id: u64,
}

impl SimStorage {
    pub fn new(universe: Rc<Universe>, node: NodeId, directory: &str) -> SimStorage {
        let node = universe.node(node);
        let id = {
            let mut disk = node.disk.borrow_mut();
            disk.next_storage += 1;
            disk.next_storage
        };
        SimStorage { universe, incarnation: node.incarnation.get(), node, directory: directory.to_owned(), id }
    }
}

impl Storage for SimStorage {
    fn open(&self, name: &str, size: u64, mode: OpenMode) -> io::Result<Rc<dyn Region>> {
        if name.is_empty()
            || name == "."
            || name == ".."
            || name.contains(['/', '\0'])
            || (mode == OpenMode::CreateNew && size == 0)
        {
            return Err(ErrorKind::InvalidInput.into());
        }
        let mut disk = self.node.disk.borrow_mut();
        let volatile = disk.volatile;
        let file = match (disk.directory(&self.directory).files.get(name), mode) {
            (Some(_), OpenMode::CreateNew) => return Err(ErrorKind::AlreadyExists.into()),
            (Some(file), OpenMode::Existing) => file.clone(),
            (None, OpenMode::Existing) => return Err(ErrorKind::NotFound.into()),
            (None, OpenMode::CreateNew) => {
                let file = SimFile::new(size);
                if self.node.frozen.get() {
                    disk.undo.push(Undo::Created { directory: self.directory.clone(), name: name.to_owned() });
                }
                disk.directory(&self.directory).change(name, Some(file.clone()));
                file
            }
        };
        let (universe, node) = (self.universe.clone(), self.node.clone());
        Ok(Rc::new(SimRegion { universe, node, incarnation: self.incarnation, volatile, file }))
    }

    fn exists(&self, name: &str) -> bool {
        self.node.disk.borrow_mut().directory(&self.directory).files.contains_key(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.node.disk.borrow_mut();
        let file = disk.directory(&self.directory).change(name, None).ok_or(ErrorKind::NotFound)?;
        if self.node.frozen.get() {
            disk.undo.push(Undo::Removed { directory: self.directory.clone(), name: name.to_owned(), file });
        }
        Ok(())
    }

    fn list(&self) -> Vec<String> {
        self.node.disk.borrow_mut().directory(&self.directory).files.keys().cloned().collect()
    }

    fn lock_exclusive(&self) -> io::Result<()> {
        let mut disk = self.node.disk.borrow_mut();
        let directory = disk.directory(&self.directory);
        match directory.locked_by {
            Some(other) if other != self.id => Err(ErrorKind::WouldBlock.into()),
            _ => {
                directory.locked_by = Some(self.id);
                Ok(())
            }
        }
    }

    fn free_bytes(&self) -> u64 {
        self.node.disk.borrow().free_bytes()
    }

    fn is_volatile(&self) -> bool {
        self.node.disk.borrow().volatile
    }

    fn power_cycle(&self) -> io::Result<u128> {
        Ok(self.node.disk.borrow().power_cycle.into())
    }

    fn sync_names(&self) -> LocalFuture<io::Result<()>> {
        if self.node.incarnation.get() == self.incarnation && !self.node.frozen.get() {
            self.node.disk.borrow_mut().directory(&self.directory).unsynced.clear();
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Drop for SimStorage {
    fn drop(&mut self) {
        let mut disk = self.node.disk.borrow_mut();
        if let Some(directory) = disk.directories.get_mut(&self.directory)
            && directory.locked_by == Some(self.id)
        {
            directory.locked_by = None;
        }
    }
}

struct SimRegion {
    universe: Rc<Universe>,
    node: Rc<Node>,
    incarnation: u64,
    volatile: bool,
    file: Rc<SimFile>,
}

impl SimRegion {
    /// Does one write, unless it belongs to an earlier life of the node; counts it towards a planned crash.
    fn change(&self, offset: u64, size: u64, write: impl FnOnce()) {
        self.file.at(offset, size);
        if self.node.incarnation.get() != self.incarnation {
            return;
        }
        self.universe.trace(0x52, offset.rotate_left(32) ^ size);
        if self.node.frozen.get() {
            self.remember(offset, size);
        }
        let is_last = self.is_last_write();
        let kept = if is_last.is_some_and(|torn| torn) && size > 0 { self.universe.below(size) } else { size };
        if is_last.is_some() {
            let rest = self.file.copy_out(offset + kept, size - kept);
            write();
            self.file.note_dirty(offset, size);
            let whole = self.file.copy_out(offset + kept, size - kept);
            self.file.copy_in(offset + kept, &rest);
            self.freeze();
            self.file.copy_in(offset + kept, &whole);
        } else {
            write();
            self.node.spend(|costs| costs.store_ns(size));
            self.file.note_dirty(offset, size);
        }
    }

    /// Counts a write towards a planned crash: whether it is the last, and then whether it is to be torn.
    fn is_last_write(&self) -> Option<bool> {
        let (left, torn) = self.node.writes_left.get().filter(|_| !self.node.frozen.get())?;
        self.node.writes_left.set(if left > 1 { Some((left - 1, torn)) } else { None });
        (left == 1).then_some(torn)
    }

    /// Nothing that the process does from here on counts.
    fn freeze(&self) {
        self.node.frozen.set(true);
        let mut disk = self.node.disk.borrow_mut();
        disk.images = disk.files().map(|file| (file.clone(), file.image())).collect();
    }

    fn remember(&self, offset: u64, size: u64) {
        if size > 0 {
            let old = self.file.copy_out(offset, size);
            self.node.disk.borrow_mut().undo.push(Undo::Bytes { file: self.file.clone(), offset, old });
        }
    }
}

impl Region for SimRegion {
    fn size(&self) -> u64 {
        self.file.size
    }

    fn allocate(&self, offset: u64, size: u64) -> io::Result<()> {
        self.file.at(offset, size);
        let mut disk = self.node.disk.borrow_mut();
        if comes_due(&mut disk.allocations_until_failure) {
            return Err(ErrorKind::StorageFull.into());
        }
        let pages = offset / PAGE..(offset + size).div_ceil(PAGE);
        let missing = {
            let allocated = self.file.allocated.borrow();
            pages.clone().filter(|page| allocated[(page / 64) as usize] >> (page % 64) & 1 == 0).count() as u64
        };
        if missing * PAGE > disk.free_bytes() {
            return Err(ErrorKind::StorageFull.into());
        }
        let mut allocated = self.file.allocated.borrow_mut();
        for page in pages {
            allocated[(page / 64) as usize] |= 1 << (page % 64);
        }
        Ok(())
    }

    fn data_end(&self) -> u64 {
        let allocated = self.file.allocated.borrow();
        let last = allocated.iter().rposition(|word| *word != 0);
        last.map_or(0, |word| (word as u64 * 64 + 64 - u64::from(allocated[word].leading_zeros())) * PAGE)
            .min(self.file.size)
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let from = self.file.at(offset, into.len() as u64);
        // SAFETY: the range was checked; the slice is not part of the region (invariant 1 of `region`).
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.change(offset, from.len() as u64, || self.file.copy_in(offset, from));
    }

    fn copy_within(&self, from: u64, to: u64, size: u64) {
        let source = self.file.at(from, size);
        let target = self.file.at(to, size);
        // SAFETY: both ranges were checked; they may overlap.
        self.change(to, size, || unsafe { std::ptr::copy(source, target, size as usize) });
    }

    fn fill_zero(&self, offset: u64, size: u64) {
        let target = self.file.at(offset, size);
        // SAFETY: the range was checked.
        self.change(offset, size, || unsafe { std::ptr::write_bytes(target, 0, size as usize) });
    }

    fn crc32c(&self, offset: u64, size: u64) -> u32 {
        let from = self.file.at(offset, size);
        // SAFETY: the range was checked, and nobody writes to it while this short borrow lives: a world has one thread.
        crc32c::crc32c(unsafe { std::slice::from_raw_parts(from, size as usize) })
    }

    fn base(&self) -> *mut u8 {
        self.file.pages.memory
    }

    fn note_received(&self, offset: u64, size: u64) {
        self.file.at(offset, size);
        if self.node.incarnation.get() != self.incarnation {
            return;
        }
        self.node.spend(|costs| costs.store_ns(size));
        self.file.note_dirty(offset, size);
        // The bytes are there already, so this can be a node's last write but not a torn one.
        if self.is_last_write().is_some() {
            self.freeze();
        }
    }

    fn release(&self, offset: u64, size: u64) {
        self.file.at(offset, size);
        if self.node.incarnation.get() != self.incarnation || self.node.frozen.get() {
            return;
        }
        for page in offset / PAGE..(offset + size) / PAGE {
            let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
            if self.file.allocated.borrow()[word] & bit == 0 {
                continue;
            }
            // Who looks at it all the same is to notice.
            self.file.copy_in(page * PAGE, &[0xd5; PAGE as usize]);
            self.file.allocated.borrow_mut()[word] &= !bit;
            self.file.released.borrow_mut().insert(page);
        }
    }

    fn sync(&self, offset: u64, size: u64) -> LocalFuture<io::Result<()>> {
        self.file.at(offset, size);
        if self.volatile {
            return Box::pin(std::future::ready(Ok(())));
        }
        let failed = comes_due(&mut self.node.disk.borrow_mut().syncs_until_failure);
        let pages = offset / PAGE..(offset + size).div_ceil(PAGE);
        let dirty: Vec<(u64, u64)> =
            self.file.dirty.borrow().range(pages).map(|(page, change)| (*page, *change)).collect();
        let pages = dirty.into_iter().map(|(page, change)| (page, change, self.file.page(page))).collect();
        let due = self.universe.time.get() + self.universe.between(SYNC_NS.0, SYNC_NS.1);
        let (universe, node, file) = (self.universe.clone(), self.node.clone(), self.file.clone());
        Box::pin(SimSync { universe, node, incarnation: self.incarnation, file, pages, due, failed })
    }

    fn is_volatile(&self) -> bool {
        self.volatile
    }

    fn mapping_lock(&self) -> io::Result<Rc<dyn MappingLock>> {
        let mut mapping_locks = self.file.mapping_locks.borrow_mut();
        let id = mapping_locks.last_key_value().map_or(0, |(id, _)| id + 1);
        mapping_locks.insert(id, Vec::new());
        Ok(Rc::new(SimMappingLock {
            file: self.file.clone(),
            id,
            universe: self.universe.clone(),
            copied: RefCell::default(),
        }))
    }

    fn borrowed(&self, offset: u64, size: u64) -> Option<Range<u64>> {
        self.file.at(offset, size);
        if self.universe.forgets_mapping_locks.get() {
            return None;
        }
        let mapping_locks = self.file.mapping_locks.borrow();
        let held = mapping_locks.values().flatten().filter(|held| held.start < offset + size && offset < held.end);
        let first = held.min_by_key(|held| held.start)?;
        Some(first.start.max(offset)..first.end.min(offset + size))
    }
}

/// What a borrower in the same simulation writes through, on whichever node.
struct SimMappingLock {
    file: Rc<SimFile>,
    id: u64,
    universe: Rc<Universe>,
    /// The last copies, in worlds where they are made once more (`World::write_on`).
    copied: RefCell<VecDeque<(u64, Vec<u8>)>>,
}

/// Copies that are made before an earlier one is made again: as many as a few writes are.
const COPIES_BETWEEN: usize = 12;

impl SimMappingLock {
    fn copy_in(&self, offset: u64, bytes: &[u8]) {
        self.file.copy_in(offset, bytes);
        self.file.note_dirty(offset, bytes.len() as u64);
    }

    /// Whether it may still be mapped.
    fn is_held(&self, offset: u64, size: u64) -> bool {
        let mapping_locks = self.file.mapping_locks.borrow();
        mapping_locks
            .get(&self.id)
            .is_some_and(|own| own.iter().any(|held| held.start <= offset && offset + size <= held.end))
    }

    /// Makes an earlier copy again, where its pages are still held.
    fn write_on(&self, offset: u64, bytes: &[u8]) {
        let mut copied = self.copied.borrow_mut();
        copied.push_back((offset, bytes.to_vec()));
        if copied.len() > COPIES_BETWEEN
            && let Some((offset, bytes)) = copied.pop_front()
            && self.is_held(offset, bytes.len() as u64)
        {
            self.copy_in(offset, &bytes);
        }
    }
}

impl MappingLock for SimMappingLock {
    fn hold(&self, offset: u64, size: u64) -> io::Result<()> {
        self.file.at(offset, size);
        let mut mapping_locks = self.file.mapping_locks.borrow_mut();
        let is_held = mapping_locks.values().flatten().any(|held| held.start < offset + size && offset < held.end);
        assert!(!is_held || self.universe.forgets_mapping_locks.get(), "what is borrowed is shared to nobody else");
        mapping_locks.entry(self.id).or_default().push(offset..offset + size);
        Ok(())
    }

    fn let_go(&self, offset: u64, size: u64) {
        if let Some(held) = self.file.mapping_locks.borrow_mut().get_mut(&self.id) {
            held.retain(|held| *held != (offset..offset + size));
        }
    }

    fn poke(&self, offset: u64, bytes: &[u8]) {
        self.copy_in(offset, bytes);
        if self.universe.writes_on.get() {
            self.write_on(offset, bytes);
        }
    }
}

impl Drop for SimMappingLock {
    fn drop(&mut self) {
        self.file.mapping_locks.borrow_mut().remove(&self.id);
    }
}

/// A sync on its way. The pages as they were when it began become durable when it ends.
struct SimSync {
    universe: Rc<Universe>,
    node: Rc<Node>,
    incarnation: u64,
    file: Rc<SimFile>,
    pages: Vec<(u64, u64, Page)>,
    due: Nanos,
    failed: bool,
}

impl Future for SimSync {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.node.frozen.get() || self.node.incarnation.get() != self.incarnation {
            return Poll::Pending;
        }
        if self.universe.time.get() < self.due {
            // Every poll asks for a wake, for it may come from another task than the last one; early wakes do no harm.
            self.universe.network.borrow_mut().wake_at(self.due, self.node.id, context.waker().clone());
            return Poll::Pending;
        }
        let pages = std::mem::take(&mut self.pages);
        if self.failed {
            let (mut dirty, mut lost) = (self.file.dirty.borrow_mut(), self.file.lost.borrow_mut());
            for (page, change, _) in pages {
                if dirty.get(&page) == Some(&change) {
                    dirty.remove(&page);
                    lost.insert(page, change);
                }
            }
            return Poll::Ready(Err(io::Error::from_raw_os_error(libc::EIO)));
        }
        let mut durable = self.file.durable.borrow_mut();
        let mut dirty = self.file.dirty.borrow_mut();
        for (page, change, bytes) in pages {
            // A later sync may have ended before this one.
            if durable.get(&page).is_none_or(|(newest, _)| *newest < change) {
                durable.insert(page, (change, bytes));
            }
            if dirty.get(&page) == Some(&change) {
                dirty.remove(&page);
            }
        }
        Poll::Ready(Ok(()))
    }
}
