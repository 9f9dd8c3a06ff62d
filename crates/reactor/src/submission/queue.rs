//! The client's side of submissions: whether something is locked or being written, and submitting.

use crate::Nanos;
use crate::region::MappingLock;
use crate::system;
use crate::waiting::is_core_wanted;
use shm::mapping::Mapped;
use shm::submission::{Beginning, NO_INTENT_LOCK, SLOT_COUNT, SubmissionArea, SubmissionWords};
use std::cell::Cell;
use std::rc::{Rc, Weak};

/// Submissions that wait before one with which a server that sleeps is woken.
pub(super) const BELL_COUNT: u64 = SLOT_COUNT / 2;
/// Looks whether a step has ended, some two microseconds; and times that the core is given away until it has, or there
/// is room in the queue: where the server has to wait for the core that we have, it is there the sooner, and else these
/// cost less than asking it.
const SPINS_MAX: u32 = 50;
const YIELDS_MAX: u32 = 3;
/// Longest look before the first yield, where the last one has shown that nobody else wants the core; before each
/// further one it may take twice as long. Together that is the time of a queue full of submissions.
const ALONE_NS_FIRST: Nanos = 10_000;

/// Wakes a server that sleeps, at other times it does nothing.
pub(crate) trait Bell {
    fn ring(&self);
}

/// A client's side. See the module.
pub(crate) struct SubmissionQueue {
    area: Mapped<SubmissionArea>,
    /// Which queue is ours, once that was found, and whose we are in it.
    index: Cell<Option<(usize, u64)>>,
    /// Whether one is about to be submitted.
    is_submitting: Cell<bool>,
    /// The first number that we have not used.
    next_number: Cell<u64>,
    /// What the submission in each slot is about.
    locked: Vec<Cell<[usize; 2]>>,
    /// Times that the core is given away for a server that is busy.
    pub(super) yields_max: u32,
    /// Submissions that wait at most.
    pub(super) slot_count_max: u64,
    /// Whether nobody wanted the core when it was last given away.
    is_alone: Cell<bool>,
    pub(super) ignores_intent_locks: bool,
    /// As long as there is a connection.
    pub(super) bell: Option<Weak<dyn Bell>>,
    /// In simulations: what the queue is lent through, which is held as a mapping holds it.
    _mapping_lock: Option<Rc<dyn MappingLock>>,
}

impl SubmissionQueue {
    /// The submissions in an area that was mapped.
    pub fn at(area: Mapped<SubmissionArea>, bell: Weak<dyn Bell>) -> SubmissionQueue {
        SubmissionQueue { bell: Some(bell), ..SubmissionQueue::new(area, None) }
    }

    pub(super) fn new(area: Mapped<SubmissionArea>, mapping_lock: Option<Rc<dyn MappingLock>>) -> SubmissionQueue {
        SubmissionQueue {
            area,
            index: Cell::new(None),
            is_submitting: Cell::new(false),
            next_number: Cell::new(0),
            locked: vec![Cell::new([NO_INTENT_LOCK; 2]); SLOT_COUNT as usize],
            yields_max: YIELDS_MAX,
            slot_count_max: SLOT_COUNT,
            is_alone: Cell::new(false),
            ignores_intent_locks: false,
            bell: None,
            _mapping_lock: mapping_lock,
        }
    }

    /// Whether somebody has submitted a change of what comes to this intent lock, or is about to, that the server has
    /// not taken up.
    pub fn is_locked(&self, intent_lock: usize) -> bool {
        !self.ignores_intent_locks && self.area.is_locked(intent_lock)
    }

    /// Whether somebody has submitted a write to a file that comes to this word, or is about to, that the server may
    /// not have taken up.
    pub fn is_written(&self, file: usize) -> bool {
        !self.ignores_intent_locks && self.area.is_written(file)
    }

    /// Whether the server has taken up a submission of the client `owner`, if need be after it was let run.
    pub fn waits_until_taken(&self, owner: u64, number: u64) -> bool {
        if !self.is_waiting(owner, number) {
            return true;
        }
        self.ring();
        self.waits_for(|| !self.is_waiting(owner, number))
    }

    /// Whether the server does something soon, if need be after it was let run. Where it has another core than we,
    /// looking longer spares the system calls; where it waits for ours, giving that away is all there is to do.
    fn waits_for(&self, is_done: impl Fn() -> bool) -> bool {
        (0..self.yields_max).any(|round| {
            if self.is_alone.get() && spins_until(&is_done, ALONE_NS_FIRST << round) {
                return true;
            }
            self.is_alone.set(!is_core_wanted());
            is_done()
        })
    }

    /// Whether the server has not taken up a submission of the client `owner`.
    pub fn is_waiting(&self, owner: u64, number: u64) -> bool {
        self.find(owner).is_some_and(|queue| self.area.is_waiting(queue, number))
    }

    /// See `StoreMapping::unused_number`.
    pub fn unused_number(&self, owner: u64) -> Option<u64> {
        let numbers = self.area.numbers_of(self.find(owner)?);
        let number = self.next_number.get().max(numbers.start);
        (number != 0 && number < numbers.end).then_some(number)
    }

    /// Whether submitting is allowed, if need be after the step that is just being done: most take no longer than this
    /// waits.
    fn waits_for_a_step(&self) -> bool {
        let is_over = || !self.area.is_in_step();
        let looks_again = |_| {
            std::hint::spin_loop();
            is_over()
        };
        let _ = is_over() || (0..SPINS_MAX).any(looks_again) || self.waits_for(is_over);
        self.area.is_allowed()
    }

    fn ring(&self) {
        if let Some(bell) = self.bell.as_ref().and_then(Weak::upgrade) {
            bell.ring();
        }
    }

    /// Whether there is room for submission `number`, if need be after the server was let run.
    fn waits_for_room(&self, queue: usize, number: u64) -> bool {
        let has_room = || self.area.waiting_before(queue, number) < self.slot_count_max;
        if has_room() {
            return true;
        }
        self.ring();
        self.waits_for(has_room)
    }

    fn find(&self, owner: u64) -> Option<usize> {
        if let Some((queue, of)) = self.index.get()
            && of == owner
            && self.area.is_owner(queue, owner)
        {
            return Some(queue);
        }
        let queue = self.area.queue_of(owner)?;
        self.index.set(Some((queue, owner)));
        Some(queue)
    }

    /// Whether we have submitted something about the same that the server has not taken up.
    fn has_submitted(&self, queue: usize, number: u64, intent_lock: usize) -> bool {
        let mut waiting = number - self.area.waiting_before(queue, number).min(SLOT_COUNT)..number;
        waiting.any(|number| self.locked[(number % SLOT_COUNT) as usize].get().contains(&intent_lock))
    }

    /// Begins to submit for client `owner` what comes to these locks. Nothing when it has no queue or no room in it,
    /// something is locked, or nobody may submit now. What only comes to the same intent lock as another submission of
    /// ours is no hindrance.
    pub fn begin(
        self: &Rc<Self>,
        owner: u64,
        intent_locks: [usize; 2],
        submission: &SubmissionWords,
    ) -> Option<PendingSubmission> {
        self.begin_as(owner, intent_locks, submission, false)
    }

    /// The same for a submission that rests on one of this client which the server has not taken up: both intent lock
    /// the same.
    pub fn begin_on_top(
        self: &Rc<Self>,
        owner: u64,
        intent_locks: [usize; 2],
        submission: &SubmissionWords,
    ) -> Option<PendingSubmission> {
        self.begin_as(owner, intent_locks, submission, true)
    }

    fn begin_as(
        self: &Rc<Self>,
        owner: u64,
        intent_locks: [usize; 2],
        submission: &SubmissionWords,
        on_top: bool,
    ) -> Option<PendingSubmission> {
        // Whatever else this client submits meanwhile would take the same slot.
        if !self.waits_for_a_step() || self.is_submitting.get() {
            return None;
        }
        let queue = self.find(owner)?;
        let number = self.area.next_number(queue)?;
        if !self.waits_for_room(queue, number) {
            return None;
        }
        let again = |intent_lock| on_top || !self.has_submitted(queue, number, intent_lock);
        let beginning = self.area.begin(owner, (queue, number), intent_locks, submission, again)?;
        self.locked[(number % SLOT_COUNT) as usize].set(intent_locks);
        self.is_submitting.set(true);
        let pending = PendingSubmission { of: self.clone(), beginning, is_submitted: false };
        // Whoever looks at anything else from here on sees it as the last step has left it.
        self.area.may_go_on(&beginning).then_some(pending)
    }
}

/// A submission that is about to be made; dropping it makes none.
pub struct PendingSubmission {
    of: Rc<SubmissionQueue>,
    beginning: Beginning,
    is_submitted: bool,
}

impl PendingSubmission {
    /// Takes a number for a write to a file with this intent lock ([`wire::submission::file_intent_lock`]). False when
    /// the write may not be submitted: writes may not now, or somebody else has locked the file. To be called before
    /// what the write rests on is looked at.
    pub fn number_write(&self, file: usize) -> bool {
        self.of.area.number_write(&self.beginning, file)
    }

    /// As `commit`, for something that is made with a number (`StoreMapping::unused_number`), which nothing else gets
    /// then.
    pub fn commit_made(self, number: u64) -> Option<u64> {
        let queue = self.of.clone();
        let submitted = self.commit()?;
        queue.next_number.set(number + 1);
        Some(submitted)
    }

    /// Submissions it, if nothing was done by the server since this began, and returns which submit of the queue it is.
    /// What it rests on was looked at since then.
    pub fn commit(mut self) -> Option<u64> {
        let (area, queue, number) = (&self.of.area, self.beginning.queue(), self.beginning.number());
        self.is_submitted = area.commit(&self.beginning);
        if self.is_submitted && area.waiting_before(queue, number) == BELL_COUNT {
            self.of.ring();
        }
        self.is_submitted.then_some(number)
    }
}

impl Drop for PendingSubmission {
    fn drop(&mut self) {
        if !self.is_submitted {
            self.of.area.abandon(&self.beginning);
        }
        self.of.is_submitting.set(false);
    }
}

/// Looks for so long without giving the core away.
fn spins_until(is_done: impl Fn() -> bool, limit: Nanos) -> bool {
    let begun = system::monotonic();
    loop {
        for _ in 0..SPINS_MAX {
            if is_done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if system::monotonic() - begun > limit {
            return false;
        }
    }
}
