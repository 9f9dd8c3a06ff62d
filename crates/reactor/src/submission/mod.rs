//! Changes that clients of this machine make without waiting for the server: they *submit* them in memory that both
//! share, and the server takes up what is submitted before it does anything else. What lies there, and in which order
//! each side does what, is in [`shm::submission`]; here is what takes a region, a mapping lock or the time.
//!
//! Invariants
//! 1. A queue is given to a client only when nobody else has it mapped (`Region::borrowed`), so that nobody writes to
//!    another one's slots.

mod queue;
#[cfg(test)]
mod tests;

use crate::region::{MappingLock, Region};
pub use queue::PendingSubmission;
pub(crate) use queue::{Bell, SubmissionQueue};
use shm::mapping::Mapped;
use shm::submission::{
    LAYOUT_OFFSET, LeftoverFault, NOTHING_LEFT, QUEUE_COUNT, SLOT_COUNT, SUBMISSION_LAYOUT, SUBMISSION_QUEUES_SIZE,
    SubmissionConsumer, SubmissionWords, Submitted, queue_range,
};
use std::any::Any;
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::rc::Rc;

const _: () = assert!(shm::submission::SUBMISSION_WORDS == wire::submission::SUBMISSION_WORDS);
const _: () = assert!(shm::submission::SEQUENCE_WORD == wire::submission::SEQUENCE_WORD);
const _: () = assert!(shm::submission::NO_INTENT_LOCK == wire::submission::NO_INTENT_LOCK);

/// What an earlier life of a server has left in its file for submissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmissionsLeft {
    /// What this program can take up.
    Ours,
    /// Nothing that anybody would miss: the file is of no use.
    Nothing,
    /// What a program of this other version has to take up.
    OfLayout(u64),
}

/// Looks what a file for submissions holds, before it is used. One without a version is from before there were any,
/// when all lay as in the first.
pub fn submissions_left(region: &dyn Region) -> SubmissionsLeft {
    let is_whole = region.size() == SUBMISSION_QUEUES_SIZE;
    let mut word = [0; 8];
    if region.size() >= LAYOUT_OFFSET + 8 {
        region.read(LAYOUT_OFFSET, &mut word);
    }
    let word = u64::from_le_bytes(word);
    match word & !NOTHING_LEFT {
        0 | SUBMISSION_LAYOUT if is_whole => SubmissionsLeft::Ours,
        0 => SubmissionsLeft::Nothing,
        _ if word & NOTHING_LEFT != 0 => SubmissionsLeft::Nothing,
        layout => SubmissionsLeft::OfLayout(layout),
    }
}

/// The server's side.
pub struct SubmissionQueues {
    consumer: SubmissionConsumer,
    region: Rc<dyn Region>,
    /// See `ignore_intent_locks`, `ignore_order` and `come_late`.
    ignores_intent_locks: Cell<bool>,
    ignores_order: Cell<bool>,
    lateness: Cell<Option<u32>>,
    /// Queues that are given out.
    queue_count_max: Cell<usize>,
    /// Of these slots a client uses so many, in simulations.
    slot_count_max: Cell<u64>,
}

/// Of so many steps a server that comes late takes up submissions before one.
const LATE_STEPS: u32 = 8;

impl SubmissionQueues {
    /// The submissions in a region of [`SUBMISSION_QUEUES_SIZE`] bytes, which is allocated; what an earlier life has
    /// left is there (`leftovers`). Nobody may submit until `allow`. Panics when it is smaller.
    pub(crate) fn new(region: Rc<dyn Region>) -> SubmissionQueues {
        assert!(region.size() >= SUBMISSION_QUEUES_SIZE, "a region for submissions is whole");
        let memory: Rc<dyn Any> = Rc::new(region.clone());
        // SAFETY: just checked; the region is held, and clients have it mapped to touch it as this struct says.
        let area = unsafe { Mapped::at(region.base(), memory) };
        SubmissionQueues {
            consumer: SubmissionConsumer::new(area),
            region,
            ignores_intent_locks: Cell::new(false),
            ignores_order: Cell::new(false),
            lateness: Cell::new(None),
            queue_count_max: Cell::new(QUEUE_COUNT),
            slot_count_max: Cell::new(SLOT_COUNT),
        }
    }

    /// Server, when it begins: what was submitted to an earlier life and not noted as taken up, each queue's in order,
    /// and writes in theirs. That life may have taken up one of them.
    pub fn leftovers(&self) -> Vec<Submitted> {
        let fault = self.consumer.leftover_fault();
        match fault {
            // Real clients have it mapped, and are not to be trusted with this.
            _ if self.region.file().is_some() => self.consumer.leftovers(),
            LeftoverFault::None => self.consumer.leftovers(),
            LeftoverFault::Lost => Vec::new(),
            LeftoverFault::Repeated => [self.consumer.last_taken(), self.consumer.leftovers()].concat(),
        }
    }

    /// Server, when it begins: a leftover is taken up, the first of its queue that was not.
    pub fn leftover_taken(&self, leftover: &Submitted) {
        self.consumer.leftover_taken(leftover);
    }

    /// Server, when it begins, after it has taken up the leftovers: all queues are free, and nothing is locked.
    pub fn reset(&self) {
        self.consumer.reset();
    }

    /// Server, when it ends, after a step in which it has taken up everything: nobody submits any more, and whatever
    /// version begins next finds nothing left.
    pub fn end(&self) {
        self.consumer.end();
    }

    /// From now on at most so many clients have a queue.
    pub fn limit_queues(&self, count: usize) {
        self.queue_count_max.set(count.min(QUEUE_COUNT));
    }

    /// Gives the client `owner`, which is not 0, a queue. `mapping_lock` is what it maps the region through. Nothing
    /// when all queues are taken, or it can't be lent.
    pub(crate) fn open_queue(&self, owner: u64, mapping_lock: &Rc<dyn MappingLock>) -> Option<usize> {
        let is_free = |queue: &usize| {
            let (offset, size) = queue_range(*queue);
            !self.consumer.is_open(*queue) && self.region.borrowed(offset, size).is_none()
        };
        let queue = (0..self.queue_count_max.get()).find(is_free)?;
        let (offset, size) = queue_range(queue);
        mapping_lock.hold(offset, size).ok()?;
        self.consumer.open_queue(queue, owner);
        Some(queue)
    }

    /// What a borrower maps the region through. Errors: it can't be lent.
    pub(crate) fn mapping_lock(&self) -> io::Result<Rc<dyn MappingLock>> {
        self.region.mapping_lock()
    }

    /// A client has gone; what it has submitted was taken up in this step.
    pub fn close_queue(&self, queue: usize) {
        self.consumer.close_queue(queue);
    }

    /// Numbers that the client of a queue has for what it makes, and has not used in what was taken up.
    pub fn numbers(&self, queue: usize) -> Range<u64> {
        self.consumer.numbers(queue)
    }

    /// Gives the client of a queue other ones. They are higher than all that it had.
    pub fn set_numbers(&self, queue: usize, numbers: Range<u64>) {
        self.consumer.set_numbers(queue, numbers);
    }

    /// A number is used.
    pub fn use_number(&self, queue: usize, number: u64) {
        self.consumer.use_number(queue, number);
    }

    /// Whether anybody has a queue.
    pub fn has_queues(&self) -> bool {
        self.consumer.queue_count() > 0
    }

    /// Queues that clients have.
    pub fn queue_count(&self) -> usize {
        self.consumer.queue_count()
    }

    /// Looks for what was submitted, before a step begins: what is found can be taken up (`next`) while others still
    /// submit. Whether there is something.
    pub fn look(&self) -> bool {
        self.lateness.get().is_none() && self.consumer.look() && self.head().is_some()
    }

    /// A step begins: nobody may submit any more. Whether something was submitted.
    pub fn forbid(&self) -> bool {
        let any = self.consumer.forbid();
        if let Some(steps) = self.lateness.get() {
            self.lateness.set(Some((steps + 1) % LATE_STEPS));
            return any && steps == 0;
        }
        any
    }

    /// The step has ended: submitting is allowed again, that of writes if `writes` says so.
    pub fn allow(&self, writes: bool) {
        self.consumer.allow(writes);
    }

    /// The step has ended, but nobody may submit.
    pub fn refuse(&self) {
        self.consumer.refuse();
    }

    /// Something that was submitted before the last look. Of one client what it submitted first, of several writes that
    /// with the lowest number.
    pub fn next(&self) -> Option<Submitted> {
        let (queue, number) = self.head()?;
        Some(Submitted { queue, number, words: self.consumer.submission(queue, number) })
    }

    fn head(&self) -> Option<(usize, u64)> {
        self.consumer.head(!self.ignores_order.get())
    }

    /// What `next` will tell of a queue so many submissions after that.
    pub fn ahead(&self, queue: usize, count: u64) -> Option<SubmissionWords> {
        self.consumer.ahead(queue, count)
    }

    /// What `next` has told is taken up; the locks for it are free.
    pub fn taken(&self, queue: usize, intent_locks: [usize; 2]) {
        self.consumer.taken(queue, intent_locks);
    }

    /// Has the next life find what the fault says, which tests must notice.
    pub(crate) fn set_leftover_fault(&self, fault: LeftoverFault) {
        self.consumer.set_leftover_fault(fault);
    }

    /// From now on nobody sees what is locked: a fault that tests must notice.
    pub(crate) fn ignore_intent_locks(&self) {
        self.ignores_intent_locks.set(true);
    }

    /// From now on writes are taken up queue by queue: a fault that tests must notice.
    pub(crate) fn ignore_order(&self) {
        self.ignores_order.set(true);
    }

    /// From now on the server takes submissions up late: a fault that tests must notice.
    pub(crate) fn come_late(&self) {
        self.lateness.set(Some(self.lateness.get().unwrap_or(0)));
    }

    /// From now on at most so many submissions of a client that connects wait: for simulations.
    pub(crate) fn limit_slots(&self, count: u64) {
        self.slot_count_max.set(count.min(SLOT_COUNT));
    }

    /// The client's side, within one process: for simulations.
    pub(crate) fn seen_by(self: &Rc<Self>, mapping_lock: Rc<dyn MappingLock>) -> SubmissionQueue {
        let mut queue = SubmissionQueue::new((*self.consumer).clone(), Some(mapping_lock));
        // Nothing else happens in a simulation meanwhile.
        (queue.ignores_intent_locks, queue.yields_max) = (self.ignores_intent_locks.get(), 0);
        queue.slot_count_max = self.slot_count_max.get();
        queue
    }
}
