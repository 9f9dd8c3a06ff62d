//! Reading another process's region: a server lends its store's mapping to clients of its machine, which copy bytes
//! straight out of it, under a version check.
//!
//! Beside the region lies a table of stamps, one for each 64 KiB (several share one where the region is large). Before
//! any byte of a region changes, or what its bytes stand for, the server raises a number and writes it as the stamp of
//! all that is concerned. Who was told at number `n` where some bytes are, copies them and then looks at their stamps:
//! none above `n` means that the copy is what the bytes were all the time since then; else the copy is worth nothing.
//!
//! Invariants
//! 1. A stamp is written before the first byte changes (release fence between, which holds for non-temporal stores
//!    too), and read after the last byte was copied (acquire fence between). So a copy that holds a changed byte is
//!    followed by a look that sees its stamp.
//! 2. The number only grows, also from one life of a server to the next: the table is a region of the store, and a new
//!    life begins by stamping everything.
//! 3. What is copied is used only after the check; until then it is bytes without any meaning.
//! 4. The borrower maps both read-only: it can damage nothing. What it may write to are single pages that it was
//!    registered (`mapping_lock`).

use crate::attribute_cache::{AttributeCache, CellPlace, Words};
use crate::copying::{self, before_streaming};
use crate::hazard_pointers::{HazardPointer, HazardPointers};
use crate::mapping_lock::RegisteredPages;
use crate::prefetch::prefetch_range;
use crate::region::{LocalFuture, MappingLock, Region};
use crate::submission::{
    Bell, PendingSubmission, SUBMISSION_QUEUES_SIZE, SubmissionQueue, SubmissionQueues, SubmissionWords,
};
use crate::system::check;
use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Size of a table of stamps in bytes. What its file has beyond is an attribute cache ([`AttributeCache`]).
pub const STAMPS_SIZE: u64 = STAMP_COUNT * 8;
const STAMP_COUNT: u64 = 1 << 16;
/// Bytes of a region that have one stamp.
const GRANULE: u64 = 64 << 10;

/// Bytes that are fetched ahead: no more than a core has lines under way for in the time that an open takes.
const NEAR_SIZE_MAX: u64 = 4 << 10;

/// The table, in whoever's mapping.
#[derive(Clone, Copy)]
struct Stamps(*const AtomicU64);

impl Stamps {
    fn of_range(self, offset: u64, size: u64) -> impl Iterator<Item = &'static AtomicU64> {
        let (first, last) = (offset / GRANULE, (offset + size).div_ceil(GRANULE));
        let count = (last - first).min(STAMP_COUNT);
        (first..first + count).map(move |granule| {
            // SAFETY: the table has that many entries; whoever holds a `Stamps` holds its mapping for as long.
            unsafe { &*self.0.add((granule % STAMP_COUNT) as usize) }
        })
    }
}

/// A region whose changes are stamped, to be lent.
pub struct StampedRegion {
    region: Rc<dyn Region>,
    table: Rc<dyn Region>,
    /// What the submissions lie in.
    shared: Rc<dyn Region>,
    number: Cell<u64>,
    life: u64,
    attribute_cache: Rc<AttributeCache>,
    submissions: Rc<SubmissionQueues>,
}

impl StampedRegion {
    /// Stamps a region. `table` has [`STAMPS_SIZE`] bytes and those of the attribute cache, all of them allocated; it
    /// begins with zeros and is kept with the region, as `submissions` is, of [`SUBMISSION_QUEUES_SIZE`] bytes. Panics
    /// when one is smaller.
    pub fn new(region: Rc<dyn Region>, table: Rc<dyn Region>, submissions: Rc<dyn Region>) -> Rc<StampedRegion> {
        assert!(table.size() >= STAMPS_SIZE, "a table of stamps is whole");
        // What others write by itself, and we: a simulated medium is to know of it.
        submissions.note_received(0, SUBMISSION_QUEUES_SIZE);
        table.note_received(0, table.size());
        let shared = submissions.clone();
        // In this order: nobody submits from here on, and so nobody rests in an attribute cache that is being emptied.
        let submissions = Rc::new(SubmissionQueues::new(submissions));
        let attribute_cache = Rc::new(AttributeCache::new(table.clone(), STAMPS_SIZE));
        let mut stamped =
            StampedRegion { region, table, shared, number: Cell::new(0), life: 0, attribute_cache, submissions };
        let everything = STAMP_COUNT * GRANULE;
        let newest = stamped.stamps().of_range(0, everything).map(|stamp| stamp.load(Ordering::Relaxed)).max();
        stamped.number.set(newest.unwrap_or(0));
        stamped.stamp(0, everything);
        stamped.life = stamped.number.get();
        Rc::new(stamped)
    }

    fn stamps(&self) -> Stamps {
        Stamps(self.table.base().cast_const().cast())
    }

    fn stamp(&self, offset: u64, size: u64) {
        if size == 0 {
            return;
        }
        let number = self.number.get() + 1;
        self.number.set(number);
        for stamp in self.stamps().of_range(offset, size) {
            stamp.store(number, Ordering::Relaxed);
        }
        before_streaming();
    }

    /// What a borrower is told together with the places of bytes.
    pub fn number(&self) -> u64 {
        self.number.get()
    }

    /// Names this life of the server, differently from all others.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// What is shown beside it.
    pub fn attribute_cache(&self) -> &Rc<AttributeCache> {
        &self.attribute_cache
    }

    /// What clients submit changes to.
    pub fn submissions(&self) -> &Rc<SubmissionQueues> {
        &self.submissions
    }

    /// The files behind the region, its table and the submissions, where there are any.
    pub(crate) fn files(&self) -> Option<[Rc<OwnedFd>; 3]> {
        Some([self.region.file()?, self.table.file()?, self.shared.file()?])
    }

    /// Read access within one process: for simulations. `trust`: the check that is left out, as a broken client might.
    pub(crate) fn mapping(
        self: &Rc<Self>,
        trust: Option<Validation>,
        shared: &SharedStore,
        hazards: Option<Rc<HazardPointers>>,
    ) -> Rc<StoreMapping> {
        let (bytes, size) = (self.region.base().cast_const(), self.region.size());
        let (stamps, attribute_cache) = (self.stamps(), self.attribute_cache.words());
        let queue = shared.submissions.clone().map(|submissions| Rc::new(self.submissions.seen_by(submissions)));
        let mapping_lock = shared.pages.clone();
        let (queue, has_ended) = (RefCell::new(queue), Cell::new(false));
        let source = Source::SharedStore(self.clone());
        Rc::new(StoreMapping {
            bytes,
            size,
            stamps,
            attribute_cache,
            trust,
            hazards,
            queue,
            has_ended,
            mapping_lock,
            _source: source,
        })
    }
}

impl Region for StampedRegion {
    fn size(&self) -> u64 {
        self.region.size()
    }

    fn allocate(&self, offset: u64, size: u64) -> io::Result<()> {
        self.region.allocate(offset, size)
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.region.read(offset, into);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.stamp(offset, from.len() as u64);
        self.region.write(offset, from);
    }

    fn copy_within(&self, from: u64, to: u64, size: u64) {
        self.stamp(to, size);
        self.region.copy_within(from, to, size);
    }

    fn fill_zero(&self, offset: u64, size: u64) {
        self.stamp(offset, size);
        self.region.fill_zero(offset, size);
    }

    fn crc32c(&self, offset: u64, size: u64) -> u32 {
        self.region.crc32c(offset, size)
    }

    fn base(&self) -> *mut u8 {
        self.region.base()
    }

    fn announce(&self, offset: u64, size: u64) {
        self.stamp(offset, size);
    }

    fn note_received(&self, offset: u64, size: u64) {
        self.region.note_received(offset, size);
    }

    fn sync(&self, offset: u64, size: u64) -> LocalFuture<io::Result<()>> {
        self.region.sync(offset, size)
    }

    fn is_volatile(&self) -> bool {
        self.region.is_volatile()
    }

    fn page_size(&self) -> u64 {
        self.region.page_size()
    }

    fn file(&self) -> Option<Rc<OwnedFd>> {
        self.region.file()
    }

    fn mapping_lock(&self) -> io::Result<Rc<dyn MappingLock>> {
        self.region.mapping_lock()
    }

    fn borrowed(&self, offset: u64, size: u64) -> Option<Range<u64>> {
        self.region.borrowed(offset, size)
    }
}

/// A check by which who reads in shared memory finds out whether what was read is so still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validation {
    /// The version of a cell.
    Cell,
    /// That a name is not there.
    Absence,
    /// That no write to a file is submitted.
    Unwritten,
    /// That a submission waits.
    Waiting,
    /// The stamps of bytes.
    Bytes,
    /// That the server looks at a hazard pointer.
    Hazard,
}

/// What a borrower writes through, as far as it can be lent.
#[derive(Clone, Default)]
pub struct SharedStore {
    /// To pages of the region that are registered for it.
    pub pages: Option<Rc<dyn MappingLock>>,
    /// To submissions.
    pub submissions: Option<Rc<dyn MappingLock>>,
}

/// What keeps a mapping's memory.
enum Source {
    Mapped(#[allow(dead_code)] RawMapping, #[allow(dead_code)] RawMapping),
    SharedStore(#[allow(dead_code)] Rc<StampedRegion>),
}

/// Somebody else's region, to read from, and to write to where pages of it were registered.
pub struct StoreMapping {
    bytes: *const u8,
    size: u64,
    stamps: Stamps,
    attribute_cache: Words,
    trust: Option<Validation>,
    /// Where we submit changes, and see what others have submitted, until the connection ends.
    queue: RefCell<Option<Rc<SubmissionQueue>>>,
    has_ended: Cell<bool>,
    /// Where we say what the owner is to keep.
    hazards: Option<Rc<HazardPointers>>,
    /// What pages that are registered for us are mapped through.
    mapping_lock: Option<Rc<dyn MappingLock>>,
    _source: Source,
}

impl StoreMapping {
    /// Maps what was lent, to read from, and to submit to; `mapping_lock` is for what may be registered later. Errors:
    /// `InvalidData` where the files are not what is lent, and those of `mmap`.
    pub(crate) fn map(
        [region, table, submissions]: [&OwnedFd; 3],
        mapping_lock: Option<Rc<dyn MappingLock>>,
        hazards: Option<Rc<HazardPointers>>,
        bell: Weak<dyn Bell>,
    ) -> io::Result<StoreMapping> {
        let region = RawMapping::new(region, libc::PROT_READ)?;
        let table = RawMapping::new(table, libc::PROT_READ)?;
        let submissions = RawMapping::new(submissions, libc::PROT_READ | libc::PROT_WRITE)?;
        if table.size < STAMPS_SIZE || submissions.size < SUBMISSION_QUEUES_SIZE {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the table of stamps or the submissions are too small",
            ));
        }
        let address = submissions.address.cast_const().cast();
        let queue = Rc::new(SubmissionQueue::at(address, Rc::new(submissions), bell));
        let stamps = Stamps(table.address.cast_const().cast());
        let shown = table.address.cast_const().cast::<u8>().wrapping_add(STAMPS_SIZE as usize);
        Ok(StoreMapping {
            bytes: region.address.cast_const().cast(),
            size: region.size,
            stamps,
            attribute_cache: Words::at(shown, table.size - STAMPS_SIZE),
            trust: None,
            queue: RefCell::new(Some(queue)),
            has_ended: Cell::new(false),
            hazards,
            mapping_lock,
            _source: Source::Mapped(region, table),
        })
    }

    /// Copies bytes out. False, and nothing copied, if they do not lie within the region.
    pub fn copy(&self, offset: u64, into: &mut [u8]) -> bool {
        let size = into.len() as u64;
        if offset > self.size || size > self.size - offset {
            return false;
        }
        // SAFETY: just checked. The owner may change the bytes meanwhile; `is_unchanged` tells, and nobody uses them
        // before.
        unsafe { copying::copy(self.bytes.add(offset as usize), into.as_mut_ptr(), into.len()) };
        true
    }

    /// Has the first bytes of a range fetched from memory, for a read that comes soon.
    pub fn prefetch(&self, offset: u64, size: u64) {
        if offset < self.size {
            let most = (self.size - offset).min(NEAR_SIZE_MAX);
            prefetch_range(self.bytes.wrapping_add(offset as usize), size.min(most) as usize);
        }
    }

    /// Whether nothing in the range has changed since the owner was at `number`. No stamp at all is a medium that has
    /// lost everything.
    pub fn is_unchanged(&self, offset: u64, size: u64, number: u64) -> bool {
        fence(Ordering::Acquire);
        self.stamps.of_range(offset, size).all(|stamp| (1..=number).contains(&stamp.load(Ordering::Relaxed)))
    }

    /// Bytes of the owner's attribute cache.
    pub fn attribute_cache_size(&self) -> u64 {
        self.attribute_cache.size()
    }

    /// Copies a cell of the owner's attribute cache and returns the version that it has; nothing if there is none, it
    /// is empty, or it is just being written to.
    pub fn read_cell(&self, place: CellPlace, into: &mut [u64]) -> Option<u64> {
        self.attribute_cache.read(place, into)
    }

    /// A word of the owner's attribute cache outside of all cells.
    pub fn word(&self, offset: u64) -> Option<u64> {
        Some(self.attribute_cache.word(offset)?.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// Whether a cell has been all the time as it was when it had this version.
    pub fn is_same_cell(&self, place: CellPlace, version: u64) -> bool {
        self.attribute_cache.is_same(place, version)
    }

    /// Whether a check is left out, and what it asks about taken for so: a fault that tests must notice.
    pub fn trusts(&self, validation: Validation) -> bool {
        self.trust == Some(validation)
    }

    /// Whether the connection by which this was lent has ended.
    pub fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// Asks the owner to keep what has an id; see [`HazardPointers::hold`].
    pub fn hold(&self, id: u64) -> Option<HazardPointer> {
        self.hazards.as_ref()?.hold(id)
    }

    /// Whether somebody has submitted a change, or is about to, of something that comes to this intent lock; after the
    /// end nobody knows.
    pub fn is_locked(&self, intent_lock: usize) -> bool {
        self.queue.borrow().as_ref().map_or(self.has_ended.get(), |queue| queue.is_locked(intent_lock))
    }

    /// Whether somebody has submitted a write to a file with this intent lock ([`wire::submission::file_intent_lock`]),
    /// or is about to, that the owner may not have taken up; after the end nobody knows.
    pub fn is_written(&self, file: usize) -> bool {
        self.queue.borrow().as_ref().map_or(self.has_ended.get(), |queue| queue.is_written(file))
    }

    /// Whether the owner has taken up a submission of the client `owner`, if need be after it was woken and the core
    /// given away.
    pub fn waits_until_taken(&self, owner: u64, number: u64) -> bool {
        self.queue.borrow().as_ref().is_none_or(|queue| queue.waits_until_taken(owner, number))
    }

    /// Whether the owner of this has not taken up a submission of the client `owner`, which
    /// [`PendingSubmission::commit`] told the number of.
    pub fn is_waiting(&self, owner: u64, number: u64) -> bool {
        self.queue.borrow().as_ref().is_some_and(|queue| queue.is_waiting(owner, number))
    }

    /// The next number that the server has given the client `owner` for something that it makes by a submission
    /// ([`PendingSubmission::commit_made`]; until then nothing is to be awaited). Nothing when it has none left, or
    /// can't submission.
    pub fn unused_number(&self, owner: u64) -> Option<u64> {
        self.queue.borrow().as_ref()?.unused_number(owner)
    }

    /// Begins to submit a change for the client `owner`. Nothing when that is not possible now. What the change rests
    /// on is to be looked at after this.
    pub fn begin_submission(
        &self,
        owner: u64,
        intent_locks: [usize; 2],
        submission: &SubmissionWords,
    ) -> Option<PendingSubmission> {
        self.queue.borrow().as_ref()?.begin(owner, intent_locks, submission)
    }

    /// The same for a change that rests on one that this client has submitted before, of the same thing.
    pub fn begin_submission_on_top(
        &self,
        owner: u64,
        intent_locks: [usize; 2],
        submission: &SubmissionWords,
    ) -> Option<PendingSubmission> {
        self.queue.borrow().as_ref()?.begin_on_top(owner, intent_locks, submission)
    }

    /// The connection has ended: nothing is submitted any more, and the queue is free for another client. What is read
    /// along stays where it is.
    pub(crate) fn end(&self) {
        self.has_ended.set(true);
        self.queue.replace(None);
    }

    /// Whether the owner may register pages for us to write to.
    pub fn may_be_registered(&self) -> bool {
        self.mapping_lock.is_some()
    }

    /// Maps pages that the owner has registered for whom this mapping was given. Errors: they do not lie within the
    /// region, or can't be mapped.
    pub fn registered(&self, offset: u64, size: u64) -> io::Result<RegisteredPages> {
        let Some(mapping_lock) = &self.mapping_lock else { return Err(io::ErrorKind::Unsupported.into()) };
        if offset > self.size || size > self.size - offset {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        RegisteredPages::map(mapping_lock, offset, size)
    }

    /// Whether the owner is a part of the same simulation, which does nothing while we copy.
    pub fn is_simulated(&self) -> bool {
        matches!(self._source, Source::SharedStore(_))
    }
}

/// A mapping of a whole file.
struct RawMapping {
    address: *mut libc::c_void,
    size: u64,
}

impl RawMapping {
    fn new(file: &OwnedFd, protection: libc::c_int) -> io::Result<RawMapping> {
        let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: writes the status, which is a valid value even where it stays zeroed.
        let status = unsafe {
            check(libc::fstat(file.as_raw_fd(), status.as_mut_ptr()))?;
            status.assume_init()
        };
        if status.st_mode & libc::S_IFMT != libc::S_IFREG || status.st_size <= 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "what is shared is a file that is not empty"));
        }
        let (size, descriptor) = (status.st_size as u64, file.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice; a forked child does not inherit it, and so keeps
        // no queue.
        let address = unsafe {
            let address = libc::mmap(std::ptr::null_mut(), size as usize, protection, libc::MAP_SHARED, descriptor, 0);
            if address == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            libc::madvise(address, size as usize, libc::MADV_DONTFORK);
            address
        };
        Ok(RawMapping { address, size })
    }
}

impl Drop for RawMapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the mapping that points into it goes at the same time.
        unsafe { libc::munmap(self.address, self.size as usize) };
    }
}
