//! The client's side of submissions: whether something is locked or being written, and submitting.

use super::{ABOUT_TO, Permission, QUEUE_COUNT, SubmissionArea, SubmissionWords, TAG_MASK, different, tag_of};
use crate::sync::{Barrier, Ordering, fence_at, order_at};
use std::ops::Range;

/// A submission that its client has begun, and either commits or abandons.
#[derive(Clone, Copy, Debug)]
pub struct Beginning {
    owner: u64,
    queue: usize,
    /// The queue's state before.
    state: u64,
    intent_locks: [usize; 2],
}

impl Beginning {
    /// Which submission of its queue it is.
    #[inline]
    pub fn number(&self) -> u64 {
        self.state >> 1
    }

    /// Its queue.
    #[inline]
    pub fn queue(&self) -> usize {
        self.queue
    }
}

impl SubmissionArea {
    /// Whether somebody has submitted a change of what comes to this intent lock, or is about to, that the server has
    /// not taken up. What it has taken up is seen after this.
    #[inline]
    pub fn is_locked(&self, intent_lock: usize) -> bool {
        self.intent_lock(intent_lock).load(order_at(Barrier::LockLook, Ordering::Acquire)) != 0
    }

    /// Whether somebody has submitted a write to a file that comes to this word, or is about to, that the server may
    /// not have taken up. What it has taken up is seen after this.
    #[inline]
    pub fn is_written(&self, file: usize) -> bool {
        let sequence = self.written(file).load(Ordering::Relaxed);
        sequence != 0 && sequence >= self.open_sequence.load(order_at(Barrier::OpenLook, Ordering::Acquire))
    }

    /// The queue of a client, if it has one.
    #[inline]
    pub fn queue_of(&self, owner: u64) -> Option<usize> {
        (0..QUEUE_COUNT).find(|queue| self.is_owner(*queue, owner))
    }

    /// Whether a queue is this client's.
    #[inline]
    pub fn is_owner(&self, queue: usize, owner: u64) -> bool {
        self.queues[queue].server.owner.load(order_at(Barrier::OwnerLook, Ordering::Acquire)) == owner
    }

    /// Numbers that the client of a queue has for what it makes.
    #[inline]
    pub fn numbers_of(&self, queue: usize) -> Range<u64> {
        self.queues[queue].numbers()
    }

    /// Whether a step is being done now, after which submitting may be allowed.
    #[inline]
    pub fn is_in_step(&self) -> bool {
        self.permission.load(Ordering::Relaxed) == Permission::Step as u64
    }

    /// Whether submitting is allowed. If so, all is seen as the last step has left it.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.permission.load(order_at(Barrier::PermissionLook, Ordering::Acquire)) == Permission::Allowed as u64
    }

    /// Which submission of a queue the next one is; nothing while its client is about to submit one.
    #[inline]
    pub fn next_number(&self, queue: usize) -> Option<u64> {
        let state = self.queues[queue].state.load(Ordering::Relaxed);
        (state & ABOUT_TO == 0).then_some(state >> 1)
    }

    /// Submissions of a queue before this one that the server has not taken up.
    #[inline]
    pub fn waiting_before(&self, queue: usize, number: u64) -> u64 {
        number.wrapping_sub(self.queues[queue].taken())
    }

    /// Whether the server has not taken up a submission.
    #[inline]
    pub fn is_waiting(&self, queue: usize, number: u64) -> bool {
        self.queues[queue].taken() <= number
    }

    /// Begins to submit as `number` of a queue what comes to these locks. Nothing when something is locked; what the
    /// queue itself has locked it locks again where `again` says so. There is room for it (`waiting_before`). Whether
    /// this is allowed (`may_go_on`) and what it rests on is to be looked at after this.
    #[inline]
    pub fn begin(
        &self,
        owner: u64,
        (queue, number): (usize, u64),
        intent_locks: [usize; 2],
        submission: &SubmissionWords,
        again: impl Fn(usize) -> bool,
    ) -> Option<Beginning> {
        for (count, intent_lock) in different(intent_locks).enumerate() {
            if !self.lock(queue, intent_lock, || again(intent_lock)) {
                self.free(queue, different(intent_locks).take(count));
                return None;
            }
        }
        let area = &self.queues[queue];
        area.slot(number).write(submission);
        let state = number << 1;
        // Who finds the bit set finds what was submitted before.
        area.state.store(state | ABOUT_TO, order_at(Barrier::SubmissionNote, Ordering::Release));
        // The counterpart of the fence in `SubmissionConsumer::forbid`.
        fence_at(Barrier::SubmissionBegin, Ordering::SeqCst);
        Some(Beginning { owner, queue, state, intent_locks })
    }

    /// Whether submitting is allowed, and the queue still its client's. Whoever looks at anything else from here on
    /// sees it as the last step has left it.
    #[inline]
    pub fn may_go_on(&self, beginning: &Beginning) -> bool {
        self.is_allowed() && self.is_owner(beginning.queue, beginning.owner)
    }

    /// Takes a number for a write to a file with this intent lock. False when the write may not be submitted: writes
    /// may not now, or somebody else has locked the file. To be called before what the write rests on is looked at.
    #[inline]
    pub fn number_write(&self, beginning: &Beginning, file: usize) -> bool {
        // Whoever reads this number or a later one finds what was submitted before: the fence of `begin` lies between.
        let sequence = self.next_sequence.fetch_add(1, Ordering::Relaxed);
        self.queues[beginning.queue].slot(beginning.number()).set_sequence(sequence);
        self.written(file).fetch_max(sequence, Ordering::Relaxed);
        // Who locks the file and looks whether it is being written, or we, see the other one.
        fence_at(Barrier::WriteNumber, Ordering::SeqCst);
        let intent_lock = self.intent_lock(file).load(order_at(Barrier::LockLook, Ordering::Acquire));
        let is_free = intent_lock == 0 || intent_lock & TAG_MASK == tag_of(beginning.queue);
        is_free && self.writes.load(Ordering::Relaxed) != 0
    }

    /// Submits it, if nothing was done by the server since this began. What it rests on was looked at since then. If
    /// this fails it is to be abandoned.
    #[inline]
    pub fn commit(&self, beginning: &Beginning) -> bool {
        let (old, new) = (beginning.state | ABOUT_TO, beginning.state + 2);
        let committed = order_at(Barrier::SubmissionCommit, Ordering::Release);
        self.queues[beginning.queue].state.compare_exchange(old, new, committed, Ordering::Relaxed).is_ok()
    }

    /// Takes back what was begun.
    #[inline]
    pub fn abandon(&self, beginning: &Beginning) {
        let (about, before) = (beginning.state | ABOUT_TO, beginning.state);
        let state = &self.queues[beginning.queue].state;
        let _ = state.compare_exchange(about, before, Ordering::Relaxed, Ordering::Relaxed);
        self.free(beginning.queue, different(beginning.intent_locks));
    }
}
