//! Changes that clients of this machine make without waiting for the server: they *submit* them in memory that both
//! share, and the server takes up what is submitted before it does anything else.
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
//! `client` has the client's side, `server` the server's; this file has what lies where (`SubmissionArea`).
//!
//! Invariants
//! 1. A queue is given to a client only when nobody else has it mapped, so that nobody writes to another one's slots.
//! 2. Who submits for something has locked it before, and the server frees it after it has taken the submission up. So
//!    at most one change of the same thing is submitted, beside those that a client submits on top of its own.
//! 3. The server trusts no word: submissions are checked as requests are, counts are bounded, and there is no place in
//!    here that leads anywhere else.

mod client;
mod server;

use crate::mapping::Layout;
#[cfg(not(loom))]
use crate::sync::LINE_SIZE;
use crate::sync::{AtomicU16, AtomicU64, Barrier, CacheLine, Ordering, Padding, Watch, order_at};
pub use client::Beginning;
pub use server::{LeftoverFault, SubmissionConsumer, Submitted};
use std::ops::Range;

/// Words of a submission.
pub const SUBMISSION_WORDS: usize = if cfg!(loom) { 2 } else { 16 };
/// The word in which the order of writes is that several clients submit; 0 in other submissions.
pub const SEQUENCE_WORD: usize = if cfg!(loom) { 1 } else { 14 };
/// Stands for an intent lock where there is none.
pub const NO_INTENT_LOCK: usize = usize::MAX;
/// One submission.
pub type SubmissionWords = [u64; SUBMISSION_WORDS];
/// Things that can be told apart while changes of them are submitted.
pub const INTENT_LOCK_COUNT: usize = if cfg!(loom) { 2 } else { 1 << 15 };
/// Submissions of a client that its server has not taken up.
pub const SLOT_COUNT: u64 = if cfg!(loom) { 2 } else { 32 };
/// Clients that may submit at a time.
pub const QUEUE_COUNT: usize = if cfg!(loom) { 2 } else { 64 };
/// Files that can be told apart while writes to them are submitted; their words lie where queues leave room.
const WRITTEN_PER_QUEUE: usize = if cfg!(loom) { 1 } else { 64 };
/// The first number of a submitted write: 0 is none.
const FIRST_SEQUENCE: u64 = 1;
/// The bit of a state.
const ABOUT_TO: u64 = 1;

/// Version of what lies where, and of what submissions say: whoever changes either raises it.
pub const SUBMISSION_LAYOUT: u64 = 2;
/// Beside the version: an earlier life has taken up everything and ended.
pub const NOTHING_LEFT: u64 = 1 << 63;

/// Whether clients may submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    Allowed = 0,
    /// Not during this step, which ends soon.
    Step = 1,
    /// Not after the step either.
    Refused = 2,
}

/// All of it.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct SubmissionArea {
    /// Server: a `Permission`.
    permission: CacheLine<AtomicU64>,
    /// Simulations: a `LeftoverFault`.
    leftover_fault: CacheLine<AtomicU64>,
    /// Clients: the next number of a submitted write.
    next_sequence: CacheLine<AtomicU64>,
    /// Server: the first number of a submitted write that may still be under way.
    open_sequence: CacheLine<AtomicU64>,
    /// Server: not 0 where writes may be submitted.
    writes: CacheLine<AtomicU64>,
    /// Server: the version, with its highest bit set while nothing is left that was submitted. It is at the same place
    /// in every version.
    layout: CacheLine<AtomicU64>,
    _unused: Padding<{ 4096 - 6 * 64 }>,
    /// Clients, and the server to free them: which queue has submitted, or is about to submit, changes of something
    /// that comes to this lock by its hash, and how many; 0 for none.
    intent_locks: [AtomicU16; INTENT_LOCK_COUNT],
    queues: [QueueArea; QUEUE_COUNT],
}

/// What one client submits.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
struct QueueArea {
    /// Client, and the server for the lowest bit: how many submissions there were; the lowest bit is set while the
    /// client is about to submit one more.
    state: CacheLine<AtomicU64>,
    server: CacheLine<QueueLine>,
    _unused_before: Padding<{ 512 - 2 * 64 }>,
    /// Clients, all of them: the highest number of a submitted write of a file that comes to this word by its hash.
    written: [AtomicU64; WRITTEN_PER_QUEUE],
    _unused_behind: Padding<{ 4096 - 1024 }>,
    /// Client.
    slots: [Slot; SLOT_COUNT as usize],
}

/// What the server writes to a queue.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
struct QueueLine {
    /// Whose it is; 0 for nobody's.
    owner: AtomicU64,
    /// Submissions that were taken up.
    taken: AtomicU64,
    /// Numbers that the client has for what it makes.
    numbers_start: AtomicU64,
    numbers_end: AtomicU64,
}

/// The words of a submission.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
struct Slot {
    words: [AtomicU64; SUBMISSION_WORDS],
    watch: Watch,
}

/// Bytes of all of it.
pub const SUBMISSION_QUEUES_SIZE: u64 = size_of::<SubmissionArea>() as u64;

#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(SubmissionArea, permission) == 0 && offset_of!(SubmissionArea, leftover_fault) == LINE_SIZE);
    assert!(offset_of!(SubmissionArea, next_sequence) == 128 && offset_of!(SubmissionArea, open_sequence) == 192);
    assert!(offset_of!(SubmissionArea, writes) == 256 && offset_of!(SubmissionArea, layout) == 320);
    assert!(offset_of!(SubmissionArea, intent_locks) == 4096 && offset_of!(SubmissionArea, queues) == 69_632);
    assert!(size_of::<SubmissionArea>() == 593_920 && size_of::<QueueArea>() == 8192);
    assert!(offset_of!(QueueArea, server) == LINE_SIZE && offset_of!(QueueArea, written) == 512);
    assert!(offset_of!(QueueArea, slots) == 4096 && size_of::<Slot>() == 2 * LINE_SIZE);
    assert!(offset_of!(QueueLine, taken) == 8 && offset_of!(QueueLine, numbers_end) == 24);
};

/// First byte of the version.
#[cfg(not(loom))]
pub const LAYOUT_OFFSET: u64 = std::mem::offset_of!(SubmissionArea, layout) as u64;

/// First byte of the intent locks, two for each.
#[cfg(not(loom))]
pub const INTENT_LOCKS_OFFSET: u64 = std::mem::offset_of!(SubmissionArea, intent_locks) as u64;

/// Bytes that are a queue's: the first one, and how many.
#[cfg(not(loom))]
pub fn queue_range(queue: usize) -> (u64, u64) {
    let start = std::mem::offset_of!(SubmissionArea, queues) + queue * size_of::<QueueArea>();
    (start as u64, size_of::<QueueArea>() as u64)
}

// SAFETY: atomics, and bytes that are nobody's.
unsafe impl Layout for SubmissionArea {}

impl Slot {
    #[inline]
    fn write(&self, submission: &SubmissionWords) {
        self.watch.writes();
        for (word, value) in self.words.iter().zip(submission) {
            word.store(*value, Ordering::Relaxed);
        }
    }

    #[inline]
    fn read(&self) -> SubmissionWords {
        self.watch.reads();
        std::array::from_fn(|word| self.words[word].load(Ordering::Relaxed))
    }

    #[inline]
    fn sequence(&self) -> u64 {
        self.watch.reads();
        self.words[SEQUENCE_WORD].load(Ordering::Relaxed)
    }

    #[inline]
    fn set_sequence(&self, sequence: u64) {
        self.watch.writes();
        self.words[SEQUENCE_WORD].store(sequence, Ordering::Relaxed);
    }
}

impl QueueArea {
    #[inline]
    fn slot(&self, number: u64) -> &Slot {
        &self.slots[(number % SLOT_COUNT) as usize]
    }

    /// Submissions that the server has taken up; what it has done with them is seen after this.
    #[inline]
    fn taken(&self) -> u64 {
        self.server.taken.load(order_at(Barrier::TakenLook, Ordering::Acquire))
    }

    /// Server: so many were taken up.
    #[inline]
    fn set_taken(&self, taken: u64) {
        self.server.taken.store(taken, order_at(Barrier::TakenLeave, Ordering::Release));
    }

    fn set_numbers(&self, numbers: &Range<u64>) {
        self.server.numbers_start.store(numbers.start, Ordering::Relaxed);
        self.server.numbers_end.store(numbers.end, order_at(Barrier::NumbersLeave, Ordering::Release));
    }

    #[inline]
    fn numbers(&self) -> Range<u64> {
        // In this order: the end of other numbers never comes with the start of those before them.
        let end = self.server.numbers_end.load(order_at(Barrier::NumbersLook, Ordering::Acquire));
        self.server.numbers_start.load(Ordering::Relaxed)..end
    }
}

/// What a queue writes to what it locks, in the lower bits; above them is for how many submissions.
#[inline]
fn tag_of(queue: usize) -> u16 {
    queue as u16 + 1
}

const ONE_SUBMISSION: u16 = 1 << 8;
const TAG_MASK: u16 = ONE_SUBMISSION - 1;
const _: () = assert!(QUEUE_COUNT < TAG_MASK as usize && 2 * SLOT_COUNT < (u16::MAX / ONE_SUBMISSION) as u64);

/// Both locks, or the one that both are: freed once, it may be somebody else's. Or none.
fn different(intent_locks: [usize; 2]) -> impl Iterator<Item = usize> {
    let count = if intent_locks[0] % INTENT_LOCK_COUNT == intent_locks[1] % INTENT_LOCK_COUNT { 1 } else { 2 };
    intent_locks.into_iter().take(count).filter(|intent_lock| *intent_lock != NO_INTENT_LOCK)
}

impl SubmissionArea {
    #[inline]
    fn intent_lock(&self, intent_lock: usize) -> &AtomicU16 {
        &self.intent_locks[intent_lock % INTENT_LOCK_COUNT]
    }

    #[inline]
    fn written(&self, file: usize) -> &AtomicU64 {
        &self.queues[file / WRITTEN_PER_QUEUE % QUEUE_COUNT].written[file % WRITTEN_PER_QUEUE]
    }

    /// Locks something for a submission of a queue. False when it is locked already, by another queue or, unless
    /// `again` says that it may be locked once more, by this one. What was done under it before is seen after the fence
    /// of `begin`.
    #[inline]
    fn lock(&self, queue: usize, intent_lock: usize, again: impl Fn() -> bool) -> bool {
        let add = |word: u16| match word {
            0 => Some(tag_of(queue) | ONE_SUBMISSION),
            _ if word & TAG_MASK == tag_of(queue) && again() => word.checked_add(ONE_SUBMISSION),
            _ => None,
        };
        self.intent_lock(intent_lock).fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Frees what a queue has locked for a submission.
    #[inline]
    fn free(&self, queue: usize, intent_locks: impl Iterator<Item = usize>) {
        for intent_lock in intent_locks {
            self.update_lock(intent_lock, |word: u16| match word {
                _ if word & TAG_MASK != tag_of(queue) => None,
                _ if word < 2 * ONE_SUBMISSION => Some(0),
                _ => Some(word - ONE_SUBMISSION),
            });
        }
    }

    /// Frees all that a queue has locked, whose client has gone.
    fn free_all(&self, queue: usize) {
        for intent_lock in 0..INTENT_LOCK_COUNT {
            self.update_lock(intent_lock, |word| (word & TAG_MASK == tag_of(queue)).then_some(0));
        }
    }

    #[inline]
    fn update_lock(&self, intent_lock: usize, change: impl FnMut(u16) -> Option<u16>) {
        let released = order_at(Barrier::LockFree, Ordering::Release);
        let _ = self.intent_lock(intent_lock).fetch_update(released, Ordering::Relaxed, change);
    }
}
