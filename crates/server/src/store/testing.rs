//! A storage in memory that crashes at a chosen write, or loses what was not synced when power is lost, and a small
//! generator of pseudo-random numbers, for tests.

use reactor::{LocalFuture, MappingLock, OpenMode, Region, Storage};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::rc::Rc;
use std::task::Poll;

/// SplitMix64 (Steele, Lea, Flood, 2014).
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// What all regions of a disk share.
#[derive(Default)]
struct Power {
    /// Writes that still succeed; the one after is torn, all later ones are lost.
    left: Cell<Option<u64>>,
    is_off: Cell<bool>,
    writes: Cell<u64>,
    tear: Cell<u64>,
    /// What was allocated after the end, and is to be forgotten.
    vain: RefCell<Vec<(Rc<TestRegion>, usize)>>,
    /// Bytes that regions may still take.
    bytes_left: Cell<Option<u64>>,
    /// Allocations that still succeed.
    allocations_left: Cell<Option<u64>>,
    /// Whether the medium keeps what was synced; else it keeps everything, or nothing.
    is_stable: Cell<bool>,
    cycle: Cell<u128>,
    /// Syncs that still succeed; the one after ends all.
    syncs_left: Cell<Option<u64>>,
    /// Syncs that fail from now on.
    failing_syncs: Cell<u64>,
    /// Whether syncs end later than they begin.
    has_slow_syncs: Cell<bool>,
}

const PAGE: usize = 4096;
const LINE: usize = 64;

impl Power {
    /// The end of a sync.
    fn told(&self, result: io::Result<()>) -> LocalFuture<io::Result<()>> {
        let (mut result, mut is_early) = (Some(result), self.has_slow_syncs.get());
        Box::pin(poll_fn(move |_| match std::mem::take(&mut is_early) {
            true => Poll::Pending,
            false => Poll::Ready(result.take().expect("it ends once")),
        }))
    }

    /// How many of `size` bytes reach the medium.
    fn spend(&self, size: u64) -> u64 {
        if self.is_off.get() {
            return 0;
        }
        self.writes.set(self.writes.get() + 1);
        match self.left.get() {
            None => size,
            Some(0) => {
                self.is_off.set(true);
                self.tear.get() % (size + 1)
            }
            Some(left) => {
                self.left.set(Some(left - 1));
                size
            }
        }
    }
}

/// A storage in memory. Clones share it.
#[derive(Clone, Default)]
pub struct TestDisk {
    regions: Rc<RefCell<BTreeMap<String, Rc<TestRegion>>>>,
    power: Rc<Power>,
}

impl TestDisk {
    /// Lets `writes` more writes succeed; of the next one an arbitrary first part arrives, picked by `tear`.
    pub fn crash_after(&self, writes: u64, tear: u64) {
        self.power.left.set(Some(writes));
        self.power.tear.set(tear);
    }

    /// A disk that keeps what was synced when power is lost.
    pub fn stable() -> TestDisk {
        let disk = TestDisk::default();
        disk.power.is_stable.set(true);
        disk
    }

    /// Lets `syncs` more syncs of regions succeed; the process ends in the next.
    pub fn crash_after_syncs(&self, syncs: u64) {
        self.power.syncs_left.set(Some(syncs));
    }

    /// Makes the next syncs of regions fail.
    pub fn fail_syncs(&self, count: u64) {
        self.power.failing_syncs.set(count);
    }

    /// Has syncs from now on end when they are asked for the second time.
    pub fn slow_syncs(&self, are_slow: bool) {
        self.power.has_slow_syncs.set(are_slow);
    }

    /// What was not synced is kept, lost or torn, page by page.
    pub fn lose_power(&self, random: &mut Random) {
        self.revive();
        self.power.cycle.set(self.power.cycle.get() + 1);
        for region in self.regions.borrow().values() {
            region.lose_power(random);
        }
    }

    /// Whether the crash has happened.
    pub fn is_crashed(&self) -> bool {
        self.power.is_off.get()
    }

    /// Ends the crash.
    pub fn revive(&self) {
        self.power.is_off.set(false);
        self.power.left.set(None);
        self.power.syncs_left.set(None);
        for (region, page) in self.power.vain.take() {
            region.allocated.borrow_mut().remove(&page);
        }
    }

    /// Writes so far.
    pub fn writes(&self) -> u64 {
        self.power.writes.get()
    }

    /// Lets regions take so many bytes more.
    pub fn leave_bytes(&self, size: u64) {
        self.power.bytes_left.set(Some(size));
    }

    /// Lets that many allocations succeed, then none; `None`: all.
    pub fn fail_allocations_after(&self, count: Option<u64>) {
        self.power.allocations_left.set(count);
    }

    /// Inverts bits of a byte.
    pub fn flip(&self, name: &str, offset: u64, bits: u8) {
        self.regions.borrow()[name].bytes.borrow_mut()[offset as usize] ^= bits;
    }

    /// A copy with a life of its own.
    pub fn duplicate(&self) -> TestDisk {
        let copy = TestDisk::default();
        for (name, region) in self.regions.borrow().iter() {
            let allocated = region.allocated.clone();
            let region = TestRegion::new(PageAligned::of(&region.bytes.borrow()), copy.power.clone());
            region.allocated.swap(&allocated);
            copy.regions.borrow_mut().insert(name.clone(), region);
        }
        copy
    }
}

impl Storage for TestDisk {
    fn open(&self, name: &str, size: u64, mode: OpenMode) -> io::Result<Rc<dyn Region>> {
        if mode == OpenMode::Existing {
            let found = self.regions.borrow().get(name).cloned().ok_or(io::ErrorKind::NotFound)?;
            return Ok(found);
        }
        if self.exists(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let region = TestRegion::new(PageAligned::zeros(size as usize), self.power.clone());
        if self.power.spend(0) == 0 && !self.is_crashed() {
            self.regions.borrow_mut().insert(name.into(), region.clone());
        }
        Ok(region)
    }

    fn exists(&self, name: &str) -> bool {
        self.regions.borrow().contains_key(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.power.spend(0);
        if !self.is_crashed() {
            let region = self.regions.borrow_mut().remove(name).ok_or(io::ErrorKind::NotFound)?;
            let taken = (region.allocated.borrow().len() * PAGE) as u64;
            self.power.bytes_left.set(self.power.bytes_left.get().map(|left| left + taken));
        }
        Ok(())
    }

    fn list(&self) -> Vec<String> {
        self.regions.borrow().keys().cloned().collect()
    }

    fn lock_exclusive(&self) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> u64 {
        self.power.bytes_left.get().unwrap_or(u64::MAX)
    }

    fn is_volatile(&self) -> bool {
        !self.power.is_stable.get()
    }

    fn power_cycle(&self) -> io::Result<u128> {
        Ok(self.power.cycle.get())
    }

    fn sync_names(&self) -> LocalFuture<io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Bytes that begin at a page boundary, as those of a mapping do.
struct PageAligned {
    block: Vec<u8>,
    bytes: Range<usize>,
}

impl PageAligned {
    fn zeros(size: usize) -> PageAligned {
        let block = vec![0u8; size + PAGE];
        let start = block.as_ptr().align_offset(PAGE);
        PageAligned { block, bytes: start..start + size }
    }

    fn of(bytes: &[u8]) -> PageAligned {
        let mut copy = PageAligned::zeros(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }
}

impl Deref for PageAligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.block[self.bytes.clone()]
    }
}

impl DerefMut for PageAligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.block[self.bytes.clone()]
    }
}

/// A region of a [`TestDisk`].
pub struct TestRegion {
    bytes: RefCell<PageAligned>,
    /// What is on the medium.
    durable: RefCell<Vec<u8>>,
    /// Pages where the two may differ; those of failed syncs count as clean.
    dirty: RefCell<BTreeSet<usize>>,
    lost: RefCell<BTreeSet<usize>>,
    /// Pages that have space.
    allocated: RefCell<BTreeSet<usize>>,
    power: Rc<Power>,
    /// Ranges that are lent for writing, by mapping lock.
    mapping_locks: RefCell<BTreeMap<u64, Vec<Range<u64>>>>,
    mapping_lock_count: Cell<u64>,
    /// This, for its mapping locks.
    own: std::rc::Weak<TestRegion>,
}

/// See [`MappingLock`].
struct TestMappingLock {
    region: Rc<TestRegion>,
    id: u64,
}

impl MappingLock for TestMappingLock {
    fn hold(&self, offset: u64, size: u64) -> io::Result<()> {
        self.region.mapping_locks.borrow_mut().entry(self.id).or_default().push(offset..offset + size);
        Ok(())
    }

    fn let_go(&self, offset: u64, size: u64) {
        if let Some(held) = self.region.mapping_locks.borrow_mut().get_mut(&self.id) {
            held.retain(|held| *held != (offset..offset + size));
        }
    }

    fn poke(&self, offset: u64, bytes: &[u8]) {
        self.region.bytes.borrow_mut()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

impl Drop for TestMappingLock {
    fn drop(&mut self) {
        self.region.mapping_locks.borrow_mut().remove(&self.id);
    }
}

impl TestRegion {
    fn new(bytes: PageAligned, power: Rc<Power>) -> Rc<TestRegion> {
        let durable = RefCell::new(vec![0; bytes.len()]);
        let dirty = RefCell::new((0..bytes.len().div_ceil(PAGE)).collect());
        Rc::new_cyclic(|own| TestRegion {
            bytes: RefCell::new(bytes),
            durable,
            dirty,
            lost: RefCell::default(),
            allocated: RefCell::default(),
            power,
            mapping_locks: RefCell::default(),
            mapping_lock_count: Cell::new(0),
            own: own.clone(),
        })
    }

    /// What is read or written has space.
    fn check_allocated(&self, offset: u64, size: u64) {
        let pages = offset as usize / PAGE..((offset + size) as usize).div_ceil(PAGE);
        let count = self.allocated.borrow().range(pages.clone()).count();
        assert!(size == 0 || count == pages.len(), "bytes {offset}+{size} are in a hole");
    }

    fn note_dirty(&self, offset: u64, size: u64) {
        if size > 0 && self.power.is_stable.get() {
            for page in offset as usize / PAGE..((offset + size) as usize).div_ceil(PAGE) {
                self.dirty.borrow_mut().insert(page);
                self.lost.borrow_mut().remove(&page);
            }
        }
    }

    fn lose_power(&self, random: &mut Random) {
        let (mut bytes, mut durable) = (self.bytes.borrow_mut(), self.durable.borrow_mut());
        let mut pages = std::mem::take(&mut *self.dirty.borrow_mut());
        pages.append(&mut self.lost.borrow_mut());
        for page in pages {
            let range = page * PAGE..bytes.len().min((page + 1) * PAGE);
            let how = random.below(3);
            for (new, old) in bytes[range.clone()].chunks_mut(LINE).zip(durable[range].chunks_mut(LINE)) {
                if how == 0 || (how == 1 && random.below(2) == 0) {
                    old.copy_from_slice(new);
                } else {
                    new.copy_from_slice(old);
                }
            }
        }
    }
}

impl Region for TestRegion {
    fn size(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    fn allocate(&self, offset: u64, size: u64) -> io::Result<()> {
        assert!(offset + size <= self.size());
        let pages = offset as usize / PAGE..((offset + size) as usize).div_ceil(PAGE);
        let new_count = pages.filter(|page| !self.allocated.borrow().contains(page)).count();
        let left = self.power.bytes_left.get().map(|left| left.checked_sub((new_count * PAGE) as u64));
        if left == Some(None) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.power.bytes_left.set(left.flatten());
        match self.power.allocations_left.get() {
            Some(0) => Err(io::ErrorKind::StorageFull.into()),
            left => {
                self.power.allocations_left.set(left.map(|left| left - 1));
                let pages = offset as usize / PAGE..((offset + size) as usize).div_ceil(PAGE);
                let mut allocated = self.allocated.borrow_mut();
                for page in pages {
                    if allocated.insert(page) && self.power.is_off.get() {
                        let own = self.own.upgrade().expect("it is in use");
                        self.power.vain.borrow_mut().push((own, page));
                    }
                }
                Ok(())
            }
        }
    }

    fn data_end(&self) -> u64 {
        self.allocated.borrow().last().map_or(0, |page| (((page + 1) * PAGE) as u64).min(self.size()))
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.check_allocated(offset, into.len() as u64);
        into.copy_from_slice(&self.bytes.borrow()[offset as usize..offset as usize + into.len()]);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.check_allocated(offset, from.len() as u64);
        let kept = self.power.spend(from.len() as u64) as usize;
        self.note_dirty(offset, kept as u64);
        self.bytes.borrow_mut()[offset as usize..][..from.len()][..kept].copy_from_slice(&from[..kept]);
    }

    fn copy_within(&self, from: u64, to: u64, size: u64) {
        let kept = self.power.spend(size);
        assert!(from.max(to) + size <= self.size());
        self.note_dirty(to, kept);
        self.bytes.borrow_mut().copy_within(from as usize..(from + kept) as usize, to as usize);
    }

    fn fill_zero(&self, offset: u64, size: u64) {
        let kept = self.power.spend(size);
        self.note_dirty(offset, kept);
        self.bytes.borrow_mut()[offset as usize..][..kept as usize].fill(0);
    }

    fn crc32c(&self, offset: u64, size: u64) -> u32 {
        crc32c::crc32c(&self.bytes.borrow()[offset as usize..][..size as usize])
    }

    fn base(&self) -> *mut u8 {
        self.bytes.borrow_mut().as_mut_ptr()
    }

    fn note_received(&self, _offset: u64, _size: u64) {}

    fn sync(&self, offset: u64, size: u64) -> LocalFuture<io::Result<()>> {
        let refused = || self.power.told(Err(io::Error::from_raw_os_error(5)));
        match self.power.syncs_left.get() {
            Some(0) => self.power.is_off.set(true),
            left => self.power.syncs_left.set(left.map(|left| left - 1)),
        }
        if self.power.is_off.get() {
            return refused();
        }
        let pages = offset as usize / PAGE..((offset + size) as usize).div_ceil(PAGE);
        let taken: Vec<usize> = self.dirty.borrow().range(pages).copied().collect();
        let fails = self.power.failing_syncs.get() > 0;
        for page in taken {
            self.dirty.borrow_mut().remove(&page);
            if fails {
                self.lost.borrow_mut().insert(page);
                continue;
            }
            let bytes = self.bytes.borrow();
            let range = page * PAGE..bytes.len().min((page + 1) * PAGE);
            self.durable.borrow_mut()[range.clone()].copy_from_slice(&bytes[range]);
        }
        if fails {
            self.power.failing_syncs.set(self.power.failing_syncs.get() - 1);
            return refused();
        }
        self.power.told(Ok(()))
    }

    fn is_volatile(&self) -> bool {
        !self.power.is_stable.get()
    }

    fn mapping_lock(&self) -> io::Result<Rc<dyn MappingLock>> {
        self.mapping_lock_count.set(self.mapping_lock_count.get() + 1);
        let region = self.own.upgrade().expect("it is in use");
        Ok(Rc::new(TestMappingLock { region, id: self.mapping_lock_count.get() }))
    }

    fn borrowed(&self, offset: u64, size: u64) -> Option<Range<u64>> {
        let mapping_locks = self.mapping_locks.borrow();
        let held = mapping_locks.values().flatten().filter(|held| held.start < offset + size && offset < held.end);
        let first = held.min_by_key(|held| held.start)?;
        Some(first.start.max(offset)..first.end.min(offset + size))
    }
}
