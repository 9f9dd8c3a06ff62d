//! Reading another process's region: a server lends its store's mapping to clients of its machine, which copy bytes
//! straight out of it, under a version check.
//!
//! Beside the region lies a table of stamps ([`shm::stamps`]), which are written before any byte of the region changes,
//! or what its bytes stand for, and looked at after bytes were copied out.
//!
//! Invariants
//! 1. Whatever changes the region goes through a `StampedRegion`.
//! 2. What is copied is used only after the check; until then it is bytes without any meaning.
//! 3. The borrower maps both read-only: it can damage nothing. What it may write to are single pages that it was
//!    registered (`mapping_lock`).

use crate::attribute_cache::AttributeCache;
use crate::hazard_pointers::{HazardPointer, HazardPointers};
use crate::mapping_lock::RegisteredPages;
use crate::prefetch::prefetch_range;
use crate::region::{LocalFuture, MappingLock, Region};
use crate::submission::{Bell, PendingSubmission, SubmissionQueue, SubmissionQueues};
use shm::cells::{CellPlace, CellRow};
use shm::client_counters::{ClientCounter, ClientCounters};
use shm::copying::copy;
use shm::mapping::{Mapped, Mapping, Protection};
use shm::stamps::{STAMPS_SIZE, Stamps};
use shm::submission::{SUBMISSION_QUEUES_SIZE, SubmissionArea, SubmissionWords};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering;
use wire::attribute_cache::AttributeCacheShape;

/// Bytes that are fetched ahead: no more than a core has lines under way for in the time that an open takes.
const NEAR_SIZE_MAX: u64 = 4 << 10;

/// A region whose changes are stamped, to be lent.
pub struct StampedRegion {
    region: Rc<dyn Region>,
    table: Rc<dyn Region>,
    stamps: Mapped<Stamps>,
    /// What the submissions lie in.
    shared: Rc<dyn Region>,
    number: Cell<u64>,
    life: u64,
    attribute_cache: Rc<AttributeCache>,
    submissions: Rc<SubmissionQueues>,
}

impl StampedRegion {
    /// Stamps a region. `table` has [`STAMPS_SIZE`] bytes and those of the attribute cache, of which the first page is
    /// allocated; it begins with zeros and is kept with the region, as `submissions` is, of [`SUBMISSION_QUEUES_SIZE`]
    /// bytes. Panics when one is smaller.
    pub fn new(region: Rc<dyn Region>, table: Rc<dyn Region>, submissions: Rc<dyn Region>) -> Rc<StampedRegion> {
        assert!(table.size() >= STAMPS_SIZE, "a table of stamps is whole");
        // What others write by itself, and we: a simulated medium is to know of it.
        submissions.note_received(0, SUBMISSION_QUEUES_SIZE);
        table.note_received(0, STAMPS_SIZE);
        let shared = submissions.clone();
        // In this order: nobody submits from here on, and so nobody rests in an attribute cache that is being emptied.
        let submissions = Rc::new(SubmissionQueues::new(submissions));
        let attribute_cache = Rc::new(AttributeCache::new(table.clone(), STAMPS_SIZE));
        let memory: Rc<dyn Any> = Rc::new(table.clone());
        // SAFETY: the table is large enough, and held; clients have it mapped to read it as this struct alone.
        let stamps: Mapped<Stamps> = unsafe { Mapped::at(table.base(), memory) };
        let life = stamps.begin();
        let number = Cell::new(life);
        Rc::new(StampedRegion { region, table, stamps, shared, number, life, attribute_cache, submissions })
    }

    fn stamp(&self, offset: u64, size: u64) {
        if size == 0 {
            return;
        }
        let number = self.number.get() + 1;
        self.number.set(number);
        self.stamps.stamp(offset, size, number);
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
        counters: Option<Mapped<ClientCounters>>,
    ) -> Rc<StoreMapping> {
        let (bytes, size) = (self.region.base().cast_const(), self.region.size());
        let (stamps, attribute_cache) = (self.stamps.clone(), self.attribute_cache.row());
        let queue = shared.submissions.clone().map(|submissions| Rc::new(self.submissions.seen_by(submissions)));
        let mapping_lock = shared.pages.clone();
        let (queue, has_ended) = (RefCell::new(queue), Cell::new(false));
        let source = MappingOwner::SharedStore(self.clone());
        Rc::new(StoreMapping {
            bytes,
            size,
            stamps,
            attribute_cache,
            shape: AttributeCacheShape::of_size(attribute_cache.size()),
            trust,
            hazards,
            counters,
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

    fn data_end(&self) -> u64 {
        self.region.data_end()
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
enum MappingOwner {
    Mapped(#[allow(dead_code)] Mapping, #[allow(dead_code)] Rc<Mapping>),
    SharedStore(#[allow(dead_code)] Rc<StampedRegion>),
}

/// Somebody else's region, to read from, and to write to where pages of it were registered.
pub struct StoreMapping {
    bytes: *const u8,
    size: u64,
    stamps: Mapped<Stamps>,
    attribute_cache: CellRow,
    shape: Option<AttributeCacheShape>,
    trust: Option<Validation>,
    /// Where we submit changes, and see what others have submitted, until the connection ends.
    queue: RefCell<Option<Rc<SubmissionQueue>>>,
    has_ended: Cell<bool>,
    /// Where we say what the owner is to keep.
    hazards: Option<Rc<HazardPointers>>,
    /// Where we count what we do by ourselves.
    counters: Option<Mapped<ClientCounters>>,
    /// What pages that are registered for us are mapped through.
    mapping_lock: Option<Rc<dyn MappingLock>>,
    _source: MappingOwner,
}

impl StoreMapping {
    /// Maps what was lent, to read from, and to submit to; `mapping_lock` is for what may be registered later. Errors:
    /// `InvalidData` where the files are not what is lent, and those of `mmap`.
    pub(crate) fn map(
        [region, table, submissions]: [&OwnedFd; 3],
        mapping_lock: Option<Rc<dyn MappingLock>>,
        hazards: Option<Rc<HazardPointers>>,
        counters: Option<Mapped<ClientCounters>>,
        bell: Weak<dyn Bell>,
    ) -> io::Result<StoreMapping> {
        let region = Mapping::of_whole(region, Protection::Read)?;
        let table = Rc::new(Mapping::of_whole(table, Protection::Read)?);
        let submissions = Mapping::of_whole(submissions, Protection::ReadAndWrite)?;
        if table.size() < STAMPS_SIZE || submissions.size() < SUBMISSION_QUEUES_SIZE {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the table of stamps or the submissions are too small",
            ));
        }
        let (address, memory) = (submissions.base(), Rc::new(submissions));
        // SAFETY: so many bytes are mapped, and held; all others touch them as this struct says.
        let area: Mapped<SubmissionArea> = unsafe { Mapped::at(address, memory) };
        let queue = Rc::new(SubmissionQueue::at(area, bell));
        // SAFETY: both lie in the mapping of the table, which is held, and only the owner writes to them.
        let (stamps, attribute_cache) = unsafe {
            let cells = table.base().wrapping_add(STAMPS_SIZE as usize);
            (Mapped::at(table.base(), table.clone()), CellRow::at(cells, table.size() - STAMPS_SIZE))
        };
        Ok(StoreMapping {
            bytes: region.base(),
            size: region.size(),
            stamps,
            attribute_cache,
            shape: AttributeCacheShape::of_size(attribute_cache.size()),
            trust: None,
            queue: RefCell::new(Some(queue)),
            has_ended: Cell::new(false),
            hazards,
            counters,
            mapping_lock,
            _source: MappingOwner::Mapped(region, table),
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
        unsafe { copy(self.bytes.add(offset as usize), into.as_mut_ptr(), into.len()) };
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
        self.stamps.is_unchanged(offset, size, number)
    }

    /// How the owner's attribute cache is laid out, if there is one.
    pub fn attribute_cache_shape(&self) -> Option<AttributeCacheShape> {
        self.shape
    }

    /// Copies a cell of the owner's attribute cache and returns the version that it has; nothing if there is none, it
    /// is empty, or it is just being written to.
    pub fn read_cell(&self, place: CellPlace, into: &mut [u64]) -> Option<u64> {
        self.attribute_cache.cell(place)?.read(into)
    }

    /// The first word of a cell, as it happens to be.
    pub fn first_word(&self, place: CellPlace) -> Option<u64> {
        self.word(place.offset + 8)
    }

    /// A word of the owner's attribute cache outside of all cells.
    pub fn word(&self, offset: u64) -> Option<u64> {
        Some(self.attribute_cache.word(offset)?.load(Ordering::Acquire))
    }

    /// Whether a cell has been all the time as it was when it had this version.
    pub fn is_same_cell(&self, place: CellPlace, version: u64) -> bool {
        self.attribute_cache.cell(place).is_some_and(|cell| cell.is_same(version))
    }

    /// Whether a check is left out, and what it asks about taken for so: a fault that tests must notice.
    pub fn trusts(&self, validation: Validation) -> bool {
        self.trust == Some(validation)
    }

    /// Whether the connection by which this was lent has ended.
    pub fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// Counts things that are done without the owner.
    #[inline]
    pub fn count(&self, counts: &[(ClientCounter, u64)]) {
        if let Some(counters) = &self.counters {
            counts.iter().for_each(|(counter, count)| counters.add(*counter, *count));
        }
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
        matches!(self._source, MappingOwner::SharedStore(_))
    }
}
