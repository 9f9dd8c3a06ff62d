//! The server's side of submissions: steps, and taking up what was submitted.

use super::{
    ABOUT_TO, FIRST_SEQUENCE, INTENT_LOCK_COUNT, NOTHING_LEFT, Permission, QUEUE_COUNT, SEQUENCE_WORD, SLOT_COUNT,
    SUBMISSION_LAYOUT, SubmissionArea, SubmissionWords, different,
};
use crate::mapping::Mapped;
use crate::sync::{Barrier, Ordering, fence_at, order_at};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::{Deref, Range};

/// Something that was submitted. No other submission of the area ever has the same queue and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    pub queue: usize,
    pub number: u64,
    pub words: SubmissionWords,
}

/// Where a queue's numbers begin anew: only a client that has written nonsense comes to this.
const NUMBER_LIMIT: u64 = 1 << 48;

/// A client's queue, as the server knows it, which relies on nothing that the client may write.
struct OpenQueue {
    queue: usize,
    /// Submissions that were taken up.
    taken: u64,
    /// Submissions that there were at the last look.
    submitted: u64,
    /// See `SubmissionConsumer::numbers`.
    numbers: Range<u64>,
}

impl OpenQueue {
    /// A queue in which everything before a number was taken up.
    fn new(queue: usize, taken: u64) -> OpenQueue {
        OpenQueue { queue, taken, submitted: taken, numbers: 0..0 }
    }

    /// There were so many submissions. Whether some are to be taken up.
    #[inline]
    fn saw(&mut self, submitted: u64) -> bool {
        self.submitted = submitted;
        if self.submitted.wrapping_sub(self.taken) > SLOT_COUNT {
            // More than there is room for was never submitted: the client has written nonsense.
            self.taken = self.submitted;
        }
        self.submitted != self.taken
    }
}

/// The server's side. See the module above.
pub struct SubmissionConsumer {
    area: Mapped<SubmissionArea>,
    /// Queues that clients have.
    open: RefCell<Vec<OpenQueue>>,
    /// Writes with lower numbers are to be taken up, and those below the second one are all there once that is done.
    due_sequence: Cell<u64>,
    closed_sequence: Cell<u64>,
    has_ended: Cell<bool>,
}

impl Deref for SubmissionConsumer {
    type Target = Mapped<SubmissionArea>;

    fn deref(&self) -> &Mapped<SubmissionArea> {
        &self.area
    }
}

impl SubmissionConsumer {
    /// The server of an area; what an earlier life has left is there (`leftovers`). Nobody may submit until `allow`.
    pub fn new(area: Mapped<SubmissionArea>) -> SubmissionConsumer {
        let consumer = SubmissionConsumer {
            area,
            open: RefCell::new((0..QUEUE_COUNT).map(|queue| OpenQueue::new(queue, 0)).collect()),
            due_sequence: Cell::new(FIRST_SEQUENCE),
            closed_sequence: Cell::new(FIRST_SEQUENCE),
            has_ended: Cell::new(false),
        };
        consumer.forbid();
        // What was written by submissions before counts as taken up when it is (`reset`).
        consumer.permit(Permission::Refused);
        consumer.open.borrow_mut().clear();
        consumer
    }

    /// When it begins: what was submitted to an earlier life, and not noted as taken up (`leftover_taken`), each
    /// queue's in order, and writes in theirs. That life may have taken up one of them.
    pub fn leftovers(&self) -> Vec<Submitted> {
        let mut waiting: Vec<VecDeque<Submitted>> =
            (0..QUEUE_COUNT).map(|queue| self.waiting_in(queue).collect()).collect();
        let mut all = Vec::new();
        loop {
            let fronts = waiting.iter().filter_map(VecDeque::front);
            let Some((_, queue)) = fronts.map(|front| (front.words[SEQUENCE_WORD], front.queue)).min() else {
                return all;
            };
            all.extend(waiting[queue].pop_front());
        }
    }

    /// When it begins: a leftover is taken up, the first of its queue that was not.
    pub fn leftover_taken(&self, leftover: &Submitted) {
        self.area.queues[leftover.queue].set_taken(leftover.number.wrapping_add(1));
    }

    /// When it begins, after it has taken up the leftovers: all queues are free, and nothing is locked.
    pub fn reset(&self) {
        for queue in 0..QUEUE_COUNT {
            self.end_queue(queue);
        }
        for intent_lock in 0..INTENT_LOCK_COUNT {
            self.area.intent_lock(intent_lock).store(0, Ordering::Relaxed);
        }
        // Numbers go on, for clients of an earlier life may still note theirs.
        let next = self.area.next_sequence.fetch_max(FIRST_SEQUENCE, Ordering::Relaxed).max(FIRST_SEQUENCE);
        self.closed_sequence.set(next);
        self.area.open_sequence.store(next, order_at(Barrier::OpenLeave, Ordering::Release));
        self.set_layout(SUBMISSION_LAYOUT);
    }

    /// When it ends, after a step in which it has taken up everything: nobody submits any more, and whatever version
    /// begins next finds nothing left.
    pub fn end(&self) {
        self.has_ended.set(true);
        self.refuse();
        if (0..QUEUE_COUNT).all(|queue| self.waiting_in(queue).next().is_none()) {
            self.set_layout(SUBMISSION_LAYOUT | NOTHING_LEFT);
        }
    }

    /// Only the next life looks at it, which begins after this one; the order is for what a kill leaves.
    fn set_layout(&self, layout: u64) {
        self.area.layout.store(layout.to_le(), Ordering::Release);
    }

    /// Gives a queue that nobody else has, nor has mapped, to the client `owner`, which is not 0.
    pub fn open_queue(&self, queue: usize, owner: u64) {
        // Whatever it says now is left by somebody who has gone; numbers go on.
        self.end_queue(queue);
        let area = &self.area.queues[queue];
        let taken = area.server.taken.load(Ordering::Relaxed) % NUMBER_LIMIT;
        area.state.store(taken << 1, Ordering::Relaxed);
        area.server.taken.store(taken, Ordering::Relaxed);
        self.area.free_all(queue);
        area.server.owner.store(owner, order_at(Barrier::OwnerLeave, Ordering::Release));
        self.open.borrow_mut().push(OpenQueue::new(queue, taken));
    }

    /// A client has gone; what it has submitted was taken up in this step.
    pub fn close_queue(&self, queue: usize) {
        self.open.borrow_mut().retain(|open| open.queue != queue);
        self.end_queue(queue);
        self.area.free_all(queue);
    }

    fn end_queue(&self, queue: usize) {
        let area = &self.area.queues[queue];
        area.server.owner.store(0, Ordering::Relaxed);
        area.set_numbers(&(0..0));
        area.set_taken(self.stop(queue));
    }

    /// Queues that clients have.
    #[inline]
    pub fn queue_count(&self) -> usize {
        self.open.borrow().len()
    }

    /// Whether a client has this queue.
    pub fn is_open(&self, queue: usize) -> bool {
        self.open.borrow().iter().any(|open| open.queue == queue)
    }

    /// Numbers that the client of a queue has for what it makes, and has not used in what was taken up.
    pub fn numbers(&self, queue: usize) -> Range<u64> {
        self.open.borrow().iter().find(|open| open.queue == queue).map_or(0..0, |open| open.numbers.clone())
    }

    /// Gives the client of a queue other ones. They are higher than all that it had.
    pub fn set_numbers(&self, queue: usize, numbers: Range<u64>) {
        let mut open = self.open.borrow_mut();
        let Some(open) = open.iter_mut().find(|open| open.queue == queue) else { return };
        open.numbers = numbers;
        self.area.queues[queue].set_numbers(&open.numbers);
    }

    /// A number is used.
    pub fn use_number(&self, queue: usize, number: u64) {
        if let Some(open) = self.open.borrow_mut().iter_mut().find(|open| open.queue == queue) {
            // The client knows itself what it has used.
            open.numbers.start = number + 1;
        }
    }

    /// Looks for what was submitted, before a step begins: what is found can be taken up (`next`) while others still
    /// submit. Whether there may be something.
    #[inline]
    pub fn look(&self) -> bool {
        // In this order: what was submitted before one of these numbers was taken is seen.
        self.due_sequence.set(self.next_sequence());
        let mut any = false;
        for open in self.open.borrow_mut().iter_mut() {
            any |= open.saw(self.state(open.queue) >> 1);
        }
        any
    }

    /// A step begins: nobody may submit any more. Whether something was submitted.
    #[inline]
    pub fn forbid(&self) -> bool {
        self.area.permission.store(Permission::Step as u64, Ordering::Relaxed);
        // The counterpart of the fence in `SubmissionArea::begin`.
        fence_at(Barrier::StepForbid, Ordering::SeqCst);
        // Whoever takes a higher number finds that he may not submit.
        self.closed_sequence.set(self.next_sequence());
        self.due_sequence.set(u64::MAX);
        let mut any = false;
        for open in self.open.borrow_mut().iter_mut() {
            let seen = self.state(open.queue);
            let submitted = match seen & ABOUT_TO {
                0 => seen >> 1,
                // Whoever is about to submit does not; if that fails, it has.
                _ => self.stop(open.queue),
            };
            any |= open.saw(submitted);
        }
        any
    }

    #[inline]
    fn next_sequence(&self) -> u64 {
        self.area.next_sequence.load(order_at(Barrier::NumberLook, Ordering::Acquire))
    }

    #[inline]
    fn state(&self, queue: usize) -> u64 {
        self.area.queues[queue].state.load(order_at(Barrier::StateLook, Ordering::Acquire))
    }

    /// Has the client of a queue not submit what it is about to, and returns how many submissions there were.
    #[inline]
    fn stop(&self, queue: usize) -> u64 {
        let acquired = order_at(Barrier::StateLook, Ordering::Acquire);
        self.area.queues[queue].state.fetch_and(!ABOUT_TO, acquired) >> 1
    }

    /// The step has ended: submitting is allowed again, that of writes if `writes` says so.
    #[inline]
    pub fn allow(&self, writes: bool) {
        self.area.writes.store(writes.into(), Ordering::Relaxed);
        self.leave(Permission::Allowed);
    }

    /// The step has ended, but nobody may submit.
    #[inline]
    pub fn refuse(&self) {
        self.leave(Permission::Refused);
    }

    #[inline]
    fn leave(&self, permission: Permission) {
        let open_sequence = &self.area.open_sequence;
        if open_sequence.load(Ordering::Relaxed) != self.closed_sequence.get() {
            open_sequence.store(self.closed_sequence.get(), order_at(Barrier::OpenLeave, Ordering::Release));
        }
        self.permit(if self.has_ended.get() { Permission::Refused } else { permission });
    }

    #[inline]
    fn permit(&self, permission: Permission) {
        self.area.permission.store(permission as u64, order_at(Barrier::PermissionLeave, Ordering::Release));
    }

    /// Something that was submitted before the last look, by which queue and as which of its submissions: of one client
    /// what it submitted first, of several writes that with the lowest number, unless they are taken up in no order.
    #[inline]
    pub fn head(&self, in_order: bool) -> Option<(usize, u64)> {
        let open = self.open.borrow();
        let mut first: Option<(u64, usize, u64)> = None;
        for open in open.iter().filter(|open| open.taken != open.submitted) {
            let sequence = if in_order { self.sequence(open.queue, open.taken) } else { 0 };
            if sequence == 0 {
                return Some((open.queue, open.taken));
            }
            if sequence < self.due_sequence.get() && first.is_none_or(|(lowest, ..)| sequence < lowest) {
                first = Some((sequence, open.queue, open.taken));
            }
        }
        first.map(|(_, queue, number)| (queue, number))
    }

    #[inline]
    fn sequence(&self, queue: usize, number: u64) -> u64 {
        // Nonsense is some number as well, and taken up in the next step at the latest.
        self.area.queues[queue].slot(number).sequence().min(u64::MAX - 1)
    }

    /// A submission of a queue.
    #[inline]
    pub fn submission(&self, queue: usize, number: u64) -> SubmissionWords {
        self.area.queues[queue].slot(number).read()
    }

    /// What `head` will tell of a queue so many submissions after what it tells now.
    #[inline]
    pub fn ahead(&self, queue: usize, count: u64) -> Option<SubmissionWords> {
        let open = self.open.borrow();
        let open = open.iter().find(|open| open.queue == queue)?;
        let is_there = open.submitted.wrapping_sub(open.taken) > count;
        is_there.then(|| self.submission(queue, open.taken.wrapping_add(count)))
    }

    /// What `head` has told is taken up; the locks for it are free.
    #[inline]
    pub fn taken(&self, queue: usize, intent_locks: [usize; 2]) {
        if let Some(open) = self.open.borrow_mut().iter_mut().find(|open| open.queue == queue) {
            open.taken = open.taken.wrapping_add(1);
            self.area.queues[queue].set_taken(open.taken);
        }
        self.area.free(queue, different(intent_locks));
    }

    fn waiting_in(&self, queue: usize) -> impl Iterator<Item = Submitted> + '_ {
        let submitted = self.state(queue) >> 1;
        let taken = self.area.queues[queue].server.taken.load(Ordering::Relaxed);
        // More than there is room for was never submitted: the client has written nonsense.
        let taken = if submitted.wrapping_sub(taken) > SLOT_COUNT { submitted } else { taken };
        (taken..submitted).map(move |number| Submitted { queue, number, words: self.submission(queue, number) })
    }
}

/// What the next life is made to find, in simulations: faults that tests must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum LeftoverFault {
    None = 0,
    /// Nothing of what was submitted.
    Lost = 1,
    /// Of each queue also the last submission that was taken up.
    Repeated = 2,
}

impl SubmissionArea {
    /// Has the next life find what the fault says.
    pub fn set_leftover_fault(&self, fault: LeftoverFault) {
        self.leftover_fault.store(fault as u64, Ordering::Relaxed);
    }

    /// The fault that was set in this life or an earlier one.
    pub fn leftover_fault(&self) -> LeftoverFault {
        match self.leftover_fault.load(Ordering::Relaxed) {
            0 => LeftoverFault::None,
            1 => LeftoverFault::Lost,
            _ => LeftoverFault::Repeated,
        }
    }

    /// The last submission of each queue that was taken up.
    pub fn last_taken(&self) -> Vec<Submitted> {
        let last_of = |queue: usize| {
            let area = &self.queues[queue];
            let number = area.server.taken.load(Ordering::Relaxed).checked_sub(1)?;
            Some(Submitted { queue, number, words: area.slot(number).read() })
        };
        (0..QUEUE_COUNT).filter_map(last_of).collect()
    }
}
