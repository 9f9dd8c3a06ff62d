//! Changes that clients of this machine make without waiting for the server: they *submit* them in memory that both
//! share, and the server takes up what is submitted before it does anything else.
//!
//! | part | written by | holds |
//! |---|---|---|
//! | a word | server | 0 while clients may submit, 1 during a step, 2 while they may not after it either |
//! | `INTENT_LOCK_COUNT` locks, two bytes each | clients, and the server to free them | which queue has submitted, or is about to submit, changes of something that comes to this intent lock by its hash, and how many; 0 for none |
//! | `QUEUE_COUNT` queues | see below | what one client submits |
//! | two words for numbers, and one for permission | clients; server; server | the next number of a submitted write, the first one that may still be under way, and whether writes may be submitted |
//! | one word, at the same place in every version | server | the version of all of this, with its highest bit set while
//! nothing is left that was submitted |
//! | words in what queues leave free | clients | the highest number of a submitted write of a file that comes to this word by its hash |
//!
//! A queue has a word for its state (how many submissions there were; the lowest bit is set while its client is about
//! to submit one more), one for its owner and one for how many the server has taken up (both are the server's), and
//! `SLOT_COUNT` slots for submissions.
//!
//! A server does what it does in steps between which it gives control away (the polls of its tasks). What is submitted
//! counts as done between two of them:
//!
//! 1. Who wants to submit locks what it is about, writes the slot, sets the queue's bit, fences, and looks whether
//!    submitting is allowed, and then whether what the submission rests on stands (cells of an attribute cache). If so
//!    it exchanges the state for one with one submission more and no bit. With that the change is made; if the exchange
//!    fails, or something does not stand, it takes all of this back.
//! 2. A server that begins a step first forbids submitting, fences, and takes away the bits that it finds set (so those
//!    exchanges fail). Then it takes up everything that was submitted, and only then does the step, after which
//!    submitting is allowed again.
//!
//! What is submitted already it takes up before it forbids submitting, so that others go on submitting meanwhile:
//! changes that are locked by different clients are of different things, so it does not matter which comes first, and
//! none of them changes what else submissions rest on.
//!
//! Writes lock nothing, for many clients may write to a file at a time. Each takes a number instead after its queue's
//! bit is set, and notes it in its file's word. Who looks at something of the file asks the server while that word is
//! not below the first number that may be under way, which the server raises with each step. It takes writes up in the
//! order of their numbers; before it forbids submitting, only those whose numbers were taken before it began to look at
//! queues: whatever was submitted before one of these was taken is there then.
//!
//! So of a submission and a step one comes first, and the other one sees it (the fences are those of Dekker's
//! algorithm), and what a submission rests on cannot change between the look and the exchange. What is submitted lies
//! in memory of the store: a server that is killed leaves it there, and the next one takes it up before anything else.
//! Whoever looks at something that is locked asks the server.
//!
//! Invariants
//! 1. A queue is given to a client only when nobody else has it mapped (`Region::borrowed`), so that nobody writes to
//!    another one's slots.
//! 2. Who submits for something has locked it before, and the server frees it after it has taken the submission up. So
//!    at most one change of the same thing is submitted, beside those that a client submits on top of its own
//!    (`SubmissionQueue::begin_on_top`).
//! 3. The server trusts no word: submissions are checked as requests are, counts are bounded, and there is no place in
//!    here that leads anywhere else.

mod queue;
#[cfg(test)]
mod tests;

use crate::region::{MappingLock, Region};
pub use queue::PendingSubmission;
pub(crate) use queue::{Bell, SubmissionQueue};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};
use wire::submission::{NO_INTENT_LOCK, SEQUENCE_WORD, SUBMISSION_WORDS};

/// One submission.
pub type SubmissionWords = [u64; SUBMISSION_WORDS];
/// Things that can be told apart while changes of them are submitted.
pub const INTENT_LOCK_COUNT: usize = 1 << 15;
/// Submissions of a client that its server has not taken up.
pub const SLOT_COUNT: u64 = 32;
const QUEUE_COUNT: usize = 64;
/// Submissions that wait before one with which a server that sleeps is woken.
const BELL_COUNT: u64 = SLOT_COUNT / 2;
/// Values of the first word.
const ALLOWED: u64 = 0;
const STEP: u64 = 1;
const REFUSED: u64 = 2;

const FORBIDDEN_WORD: usize = 0;
/// See `hide_leftovers`; it counts in simulations only.
const HIDDEN_WORD: usize = 8;
/// The next number of a submitted write, the first that may be under way, and whether writes may be submitted, each on
/// a line of its own.
const NEXT_SEQUENCE_WORD: usize = 16;
const OPEN_SEQUENCE_WORD: usize = 24;
const WRITES_WORD: usize = 32;
/// The version; at the same place whatever the version is.
const LAYOUT_WORD: usize = 40;
const INTENT_LOCKS_START: usize = 512;
const QUEUES_START: usize = INTENT_LOCKS_START + INTENT_LOCK_COUNT / INTENT_LOCKS_PER_WORD;
const INTENT_LOCKS_PER_WORD: usize = size_of::<AtomicU64>() / size_of::<AtomicU16>();
const QUEUE_WORDS: usize = 1024;
/// Within a queue: the state on a line of its own, then what the server writes, then the slots.
const STATE_WORD: usize = 0;
const OWNER_WORD: usize = 8;
const TAKEN_WORD: usize = 9;
const NUMBERS_WORD: usize = 10;
const NUMBERS_END_WORD: usize = 11;
const SLOTS_START: usize = 512;
const WORD_COUNT: usize = QUEUES_START + QUEUE_COUNT * QUEUE_WORDS;
/// Files that can be told apart while writes to them are submitted; their words lie where queues leave room.
const WRITTEN_PER_QUEUE: usize = 64;
const WRITTEN_START: usize = 64;
/// The first number of a submitted write: 0 is none.
const FIRST_SEQUENCE: u64 = 1;
/// Bytes of all of it.
pub const SUBMISSION_QUEUES_SIZE: u64 = WORD_COUNT as u64 * 8;
/// The bit of a state.
const ABOUT_TO: u64 = 1;

const _: () = assert!(SLOTS_START + SLOT_COUNT as usize * SUBMISSION_WORDS <= QUEUE_WORDS);
const _: () = assert!(WRITTEN_START + WRITTEN_PER_QUEUE <= SLOTS_START);

/// Version of what lies where, and of what submissions say (`wire::submission`): whoever changes either raises it.
pub const SUBMISSION_LAYOUT: u64 = 1;
/// Beside the version: an earlier life has taken up everything and ended.
const NOTHING_LEFT: u64 = 1 << 63;

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
    if region.size() >= (LAYOUT_WORD as u64 + 1) * 8 {
        region.read(LAYOUT_WORD as u64 * 8, &mut word);
    }
    let word = u64::from_le_bytes(word);
    match word & !NOTHING_LEFT {
        0 | SUBMISSION_LAYOUT if is_whole => SubmissionsLeft::Ours,
        0 => SubmissionsLeft::Nothing,
        _ if word & NOTHING_LEFT != 0 => SubmissionsLeft::Nothing,
        layout => SubmissionsLeft::OfLayout(layout),
    }
}

/// The words and locks, in whoever's mapping.
#[derive(Clone, Copy)]
struct Words(*const AtomicU64);

impl Words {
    fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORD_COUNT);
        // SAFETY: just checked; whoever holds this holds the mapping for as long, and the words are only touched as
        // atomic ones.
        unsafe { &*self.0.add(index) }
    }

    fn queue(&self, queue: usize, word: usize) -> &AtomicU64 {
        self.at(QUEUES_START + queue * QUEUE_WORDS + word)
    }

    fn intent_lock(&self, intent_lock: usize) -> &AtomicU16 {
        // SAFETY: as in `at`: they lie between the words in front of them and the queues, none of which is among them.
        unsafe { &*self.0.add(INTENT_LOCKS_START).cast::<AtomicU16>().add(intent_lock % INTENT_LOCK_COUNT) }
    }

    fn written(&self, file: usize) -> &AtomicU64 {
        let (queue, word) = (file / WRITTEN_PER_QUEUE % QUEUE_COUNT, file % WRITTEN_PER_QUEUE);
        self.queue(queue, WRITTEN_START + word)
    }

    fn slot(&self, queue: usize, number: u64) -> impl Iterator<Item = &AtomicU64> {
        let first = SLOTS_START + (number % SLOT_COUNT) as usize * SUBMISSION_WORDS;
        (first..first + SUBMISSION_WORDS).map(move |word| self.queue(queue, word))
    }

    /// Locks something for a submission of a queue. False when it is locked already, by another queue or, unless
    /// `again` says that it may be locked once more, by this one.
    fn take(&self, queue: usize, intent_lock: usize, again: impl Fn() -> bool) -> bool {
        let word = self.intent_lock(intent_lock);
        let add = |word: u16| match word {
            0 => Some(tag_of(queue) | ONE_SUBMISSION),
            _ if word & TAG_MASK == tag_of(queue) && again() => word.checked_add(ONE_SUBMISSION),
            _ => None,
        };
        word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, add).is_ok()
    }

    /// Frees what a queue has locked for a submission.
    fn free(&self, queue: usize, intent_locks: impl Iterator<Item = usize>) {
        for intent_lock in intent_locks {
            let less = |word: u16| match word {
                _ if word & TAG_MASK != tag_of(queue) => None,
                _ if word < 2 * ONE_SUBMISSION => Some(0),
                _ => Some(word - ONE_SUBMISSION),
            };
            let _ = self.intent_lock(intent_lock).fetch_update(Ordering::Release, Ordering::Relaxed, less);
        }
    }

    /// Frees all that a queue has locked, whose client has gone.
    fn free_all(&self, queue: usize) {
        for intent_lock in 0..INTENT_LOCK_COUNT {
            let none = |word: u16| (word & TAG_MASK == tag_of(queue)).then_some(0);
            let _ = self.intent_lock(intent_lock).fetch_update(Ordering::Release, Ordering::Relaxed, none);
        }
    }
}

/// Both locks, or the one that both are: freed once, it may be somebody else's. Or none.
fn different(intent_locks: [usize; 2]) -> impl Iterator<Item = usize> {
    let count = if intent_locks[0] % INTENT_LOCK_COUNT == intent_locks[1] % INTENT_LOCK_COUNT { 1 } else { 2 };
    intent_locks.into_iter().take(count).filter(|intent_lock| *intent_lock != NO_INTENT_LOCK)
}

/// What a queue writes to what it locks, in the lower bits; above them is for how many submissions.
fn tag_of(queue: usize) -> u16 {
    queue as u16 + 1
}

const ONE_SUBMISSION: u16 = 1 << 8;
const TAG_MASK: u16 = ONE_SUBMISSION - 1;
const _: () = assert!(QUEUE_COUNT < TAG_MASK as usize && 2 * SLOT_COUNT < (u16::MAX / ONE_SUBMISSION) as u64);

/// Bytes of the region that are a queue's.
fn queue_range(queue: usize) -> (u64, u64) {
    ((QUEUES_START + queue * QUEUE_WORDS) as u64 * 8, QUEUE_WORDS as u64 * 8)
}

/// A client's queue, as the server knows it, which relies on nothing that the client may write.
struct OpenQueue {
    queue: usize,
    /// Submissions that were taken up.
    taken: u64,
    /// Submissions that there were at the last look.
    submitted: u64,
    /// See `SubmissionQueues::numbers`.
    numbers: Range<u64>,
}

impl OpenQueue {
    fn new(queue: usize) -> OpenQueue {
        OpenQueue { queue, taken: 0, submitted: 0, numbers: 0..0 }
    }

    /// There were so many submissions. Whether some are to be taken up.
    fn saw(&mut self, submitted: u64) -> bool {
        self.submitted = submitted;
        if self.submitted.wrapping_sub(self.taken) > SLOT_COUNT {
            // More than there is room for was never submitted: the client has written nonsense.
            self.taken = self.submitted;
        }
        self.submitted != self.taken
    }
}

/// The server's side. See the module.
pub struct SubmissionQueues {
    words: Words,
    region: Rc<dyn Region>,
    /// Queues that clients have.
    open: RefCell<Vec<OpenQueue>>,
    /// Writes with lower numbers are to be taken up, and those below the second one are all there once that is done.
    due_sequence: Cell<u64>,
    closed_sequence: Cell<u64>,
    has_ended: Cell<bool>,
    /// See `ignore_intent_locks`, `ignore_order` and `come_late`.
    ignores_intent_locks: Cell<bool>,
    ignores_order: Cell<bool>,
    lateness: Cell<Option<u32>>,
}

/// Of so many steps a server that comes late takes up submissions before one.
const LATE_STEPS: u32 = 8;

impl SubmissionQueues {
    /// The submissions in a region of [`SUBMISSION_QUEUES_SIZE`] bytes, which is allocated; what an earlier life has
    /// left is there (`leftovers`). Nobody may submit until `allow`. Panics when it is smaller.
    pub(crate) fn new(region: Rc<dyn Region>) -> SubmissionQueues {
        assert!(region.size() >= SUBMISSION_QUEUES_SIZE, "a region for submissions is whole");
        let words = Words(region.base().cast_const().cast());
        let submissions = SubmissionQueues {
            words,
            region,
            open: RefCell::new((0..QUEUE_COUNT).map(OpenQueue::new).collect()),
            due_sequence: Cell::new(FIRST_SEQUENCE),
            closed_sequence: Cell::new(FIRST_SEQUENCE),
            has_ended: Cell::new(false),
            ignores_intent_locks: Cell::new(false),
            ignores_order: Cell::new(false),
            lateness: Cell::new(None),
        };
        submissions.forbid();
        // What was written by submissions before counts as taken up when it is (`reset`).
        submissions.words.at(FORBIDDEN_WORD).store(REFUSED, Ordering::Release);
        submissions.open.borrow_mut().clear();
        submissions
    }

    /// Server, when it begins: what was submitted to an earlier life and not taken up, each queue's in order, and
    /// writes in theirs.
    pub fn leftovers(&self) -> Vec<SubmissionWords> {
        let hidden = self.region.file().is_none() && self.words.at(HIDDEN_WORD).load(Ordering::Relaxed) != 0;
        let queues = (0..QUEUE_COUNT).filter(|_| !hidden);
        let mut waiting: Vec<VecDeque<SubmissionWords>> =
            queues.map(|queue| self.waiting_in(queue).collect()).collect();
        let mut all = Vec::new();
        loop {
            let heads = waiting
                .iter()
                .enumerate()
                .filter_map(|(queue, submissions)| Some((submissions.front()?[SEQUENCE_WORD], queue)));
            let Some((_, queue)) = heads.min() else { return all };
            all.extend(waiting[queue].pop_front());
        }
    }

    /// Server, when it begins, after it has taken up the leftovers: all queues are free, and nothing is locked.
    pub fn reset(&self) {
        for queue in 0..QUEUE_COUNT {
            self.end_queue(queue);
        }
        for intent_lock in 0..INTENT_LOCK_COUNT {
            self.words.intent_lock(intent_lock).store(0, Ordering::Relaxed);
        }
        // Numbers go on, for clients of an earlier life may still note theirs.
        let next = self.words.at(NEXT_SEQUENCE_WORD).fetch_max(FIRST_SEQUENCE, Ordering::SeqCst).max(FIRST_SEQUENCE);
        self.closed_sequence.set(next);
        self.words.at(OPEN_SEQUENCE_WORD).store(next, Ordering::Release);
        self.words.at(LAYOUT_WORD).store(SUBMISSION_LAYOUT.to_le(), Ordering::Release);
    }

    /// Server, when it ends, after a step in which it has taken up everything: nobody submits any more, and whatever
    /// version begins next finds nothing left.
    pub fn end(&self) {
        self.has_ended.set(true);
        self.refuse();
        if (0..QUEUE_COUNT).all(|queue| self.waiting_in(queue).next().is_none()) {
            self.words.at(LAYOUT_WORD).store((SUBMISSION_LAYOUT | NOTHING_LEFT).to_le(), Ordering::Release);
        }
    }

    /// Gives the client `owner`, which is not 0, a queue. `mapping_lock` is what it maps the region through. Nothing
    /// when all queues are taken, or it can't be lent.
    pub(crate) fn open_queue(&self, owner: u64, mapping_lock: &Rc<dyn MappingLock>) -> Option<usize> {
        let mut open = self.open.borrow_mut();
        let queue = (0..QUEUE_COUNT).find(|queue| {
            let (offset, size) = queue_range(*queue);
            !open.iter().any(|open| open.queue == *queue) && self.region.borrowed(offset, size).is_none()
        })?;
        let (offset, size) = queue_range(queue);
        mapping_lock.hold(offset, size).ok()?;
        // Nobody else has it mapped, so whatever it says now is left by somebody who has gone.
        self.end_queue(queue);
        self.words.queue(queue, STATE_WORD).store(0, Ordering::Relaxed);
        self.words.queue(queue, TAKEN_WORD).store(0, Ordering::Relaxed);
        self.words.free_all(queue);
        self.words.queue(queue, OWNER_WORD).store(owner, Ordering::Release);
        open.push(OpenQueue::new(queue));
        Some(queue)
    }

    /// What a borrower maps the region through. Errors: it can't be lent.
    pub(crate) fn mapping_lock(&self) -> io::Result<Rc<dyn MappingLock>> {
        self.region.mapping_lock()
    }

    /// A client has gone; what it has submitted was taken up in this step.
    pub fn close_queue(&self, queue: usize) {
        self.open.borrow_mut().retain(|open| open.queue != queue);
        self.end_queue(queue);
        self.words.free_all(queue);
    }

    fn end_queue(&self, queue: usize) {
        self.words.queue(queue, OWNER_WORD).store(0, Ordering::Relaxed);
        self.tell_numbers(queue, &(0..0));
        let state = self.words.queue(queue, STATE_WORD).fetch_and(!ABOUT_TO, Ordering::AcqRel);
        self.words.queue(queue, TAKEN_WORD).store(state >> 1, Ordering::Release);
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
        self.tell_numbers(queue, &open.numbers);
    }

    fn tell_numbers(&self, queue: usize, numbers: &Range<u64>) {
        self.words.queue(queue, NUMBERS_WORD).store(numbers.start, Ordering::Relaxed);
        self.words.queue(queue, NUMBERS_END_WORD).store(numbers.end, Ordering::Release);
    }

    /// A number is used.
    pub fn use_number(&self, queue: usize, number: u64) {
        if let Some(open) = self.open.borrow_mut().iter_mut().find(|open| open.queue == queue) {
            // The client knows itself what it has used.
            open.numbers.start = number + 1;
        }
    }

    /// Whether anybody has a queue.
    pub fn has_queues(&self) -> bool {
        !self.open.borrow().is_empty()
    }

    /// Queues that clients have.
    pub fn queue_count(&self) -> usize {
        self.open.borrow().len()
    }

    /// Looks for what was submitted, before a step begins: what is found can be taken up (`next`) while others still
    /// submit. Whether there is something.
    pub fn look(&self) -> bool {
        if self.lateness.get().is_some() {
            return false;
        }
        // In this order: what was submitted before one of these numbers was taken is seen.
        self.due_sequence.set(self.words.at(NEXT_SEQUENCE_WORD).load(Ordering::SeqCst));
        let mut any = false;
        for open in self.open.borrow_mut().iter_mut() {
            let state = self.words.queue(open.queue, STATE_WORD).load(Ordering::Acquire);
            any |= open.saw(state >> 1);
        }
        any && self.head().is_some()
    }

    /// A step begins: nobody may submit any more. Whether something was submitted.
    pub fn forbid(&self) -> bool {
        self.words.at(FORBIDDEN_WORD).store(STEP, Ordering::Relaxed);
        // The counterpart of the fence in `SubmissionQueue::begin`.
        fence(Ordering::SeqCst);
        // Whoever takes a higher number finds that he may not submit.
        self.closed_sequence.set(self.words.at(NEXT_SEQUENCE_WORD).load(Ordering::SeqCst));
        self.due_sequence.set(u64::MAX);
        let mut any = false;
        for open in self.open.borrow_mut().iter_mut() {
            let state = self.words.queue(open.queue, STATE_WORD);
            let seen = state.load(Ordering::Acquire);
            let seen = match seen & ABOUT_TO {
                0 => seen,
                // Whoever is about to submit does not; if that fails, it has.
                _ => state.fetch_and(!ABOUT_TO, Ordering::AcqRel) & !ABOUT_TO,
            };
            any |= open.saw(seen >> 1);
        }
        if let Some(steps) = self.lateness.get() {
            self.lateness.set(Some((steps + 1) % LATE_STEPS));
            return any && steps == 0;
        }
        any
    }

    /// The step has ended: submitting is allowed again, that of writes if `writes` says so.
    pub fn allow(&self, writes: bool) {
        self.words.at(WRITES_WORD).store(writes.into(), Ordering::Relaxed);
        self.leave(ALLOWED);
    }

    /// The step has ended, but nobody may submit.
    pub fn refuse(&self) {
        self.leave(REFUSED);
    }

    fn leave(&self, word: u64) {
        let open_sequence = self.words.at(OPEN_SEQUENCE_WORD);
        if open_sequence.load(Ordering::Relaxed) != self.closed_sequence.get() {
            open_sequence.store(self.closed_sequence.get(), Ordering::Release);
        }
        let word = if self.has_ended.get() { REFUSED } else { word };
        self.words.at(FORBIDDEN_WORD).store(word, Ordering::Release);
    }

    /// Something that was submitted before the last look. Of one client what it submitted first, of several writes that
    /// with the lowest number.
    pub fn next(&self) -> Option<(usize, SubmissionWords)> {
        let (queue, number) = self.head()?;
        Some((queue, self.submission(queue, number)))
    }

    /// The queue of what is next, and which of its submissions that is.
    fn head(&self) -> Option<(usize, u64)> {
        let open = self.open.borrow();
        let mut first: Option<(u64, usize, u64)> = None;
        for open in open.iter().filter(|open| open.taken != open.submitted) {
            let sequence = match self.ignores_order.get() {
                true => 0,
                false => self.sequence(open.queue, open.taken),
            };
            if sequence == 0 {
                return Some((open.queue, open.taken));
            }
            if sequence < self.due_sequence.get() && first.is_none_or(|(lowest, ..)| sequence < lowest) {
                first = Some((sequence, open.queue, open.taken));
            }
        }
        first.map(|(_, queue, number)| (queue, number))
    }

    fn sequence(&self, queue: usize, number: u64) -> u64 {
        // Nonsense is some number as well, and taken up in the next step at the latest.
        self.words
            .slot(queue, number)
            .nth(SEQUENCE_WORD)
            .map_or(0, |word| word.load(Ordering::Relaxed))
            .min(u64::MAX - 1)
    }

    /// What `next` will tell of a queue after that.
    pub fn next_but_one(&self, queue: usize) -> Option<SubmissionWords> {
        let open = self.open.borrow();
        let open = open.iter().find(|open| open.queue == queue)?;
        let number = open.taken.wrapping_add(1);
        (number != open.submitted).then(|| self.submission(queue, number))
    }

    /// What `next` has told is taken up; the locks for it are free.
    pub fn taken(&self, queue: usize, intent_locks: [usize; 2]) {
        if let Some(open) = self.open.borrow_mut().iter_mut().find(|open| open.queue == queue) {
            open.taken = open.taken.wrapping_add(1);
            self.words.queue(queue, TAKEN_WORD).store(open.taken, Ordering::Release);
        }
        self.words.free(queue, different(intent_locks));
    }

    fn waiting_in(&self, queue: usize) -> impl Iterator<Item = SubmissionWords> + '_ {
        let submitted = self.words.queue(queue, STATE_WORD).load(Ordering::Acquire) >> 1;
        let taken = self.words.queue(queue, TAKEN_WORD).load(Ordering::Relaxed);
        // More than there is room for was never submitted: the client has written nonsense.
        let taken = if submitted.wrapping_sub(taken) > SLOT_COUNT { submitted } else { taken };
        (taken..submitted).map(move |number| self.submission(queue, number))
    }

    fn submission(&self, queue: usize, number: u64) -> SubmissionWords {
        let mut submission = [0; SUBMISSION_WORDS];
        for (target, word) in submission.iter_mut().zip(self.words.slot(queue, number)) {
            *target = word.load(Ordering::Relaxed);
        }
        submission
    }

    /// Has the next life find nothing that was submitted to this one: a fault that tests must notice.
    pub(crate) fn hide_leftovers(&self) {
        self.words.at(HIDDEN_WORD).store(1, Ordering::Relaxed);
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

    /// The client's side, within one process: for simulations.
    pub(crate) fn seen_by(self: &Rc<Self>, mapping_lock: Rc<dyn MappingLock>) -> SubmissionQueue {
        let mut queue = SubmissionQueue::new(self.words, Rc::new((self.clone(), mapping_lock)));
        // Nothing else happens in a simulation meanwhile.
        (queue.ignores_intent_locks, queue.yields_max) = (self.ignores_intent_locks.get(), 0);
        queue
    }
}
