//! The client's side of posts: whether something is claimed or being written, and posting.

use super::{
    ABOUT_TO, ALLOWED, BELL_COUNT, FORBIDDEN_WORD, LANE_COUNT, NEXT_TICKET_WORD, NUMBERS_END_WORD, NUMBERS_WORD,
    OPEN_TICKET_WORD, OWNER_WORD, PostWords, SLOT_COUNT, STATE_WORD, STEP, TAG_MASK, TAKEN_WORD, WRITES_WORD, Words,
    different, tag_of,
};
use crate::Nanos;
use crate::system;
use crate::waiting::is_core_wanted;
use std::any::Any;
use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::sync::atomic::{Ordering, fence};
use wire::posts::{NO_CLAIM, TICKET_WORD};

/// Looks whether a step has ended, some two microseconds; and times that the core is given away until it has, or there
/// is room in the lane: where the server has to wait for the core that we have, it is there the sooner, and else these
/// cost less than asking it.
const SPINS_MAX: u32 = 50;
const YIELDS_MAX: u32 = 3;
/// Longest look before the first yield, where the last one has shown that nobody else wants the core; before each
/// further one it may take twice as long. Together that is the time of a lane full of posts.
const ALONE_NS_FIRST: Nanos = 10_000;

/// Wakes a server that sleeps, at other times it does nothing.
pub(crate) trait Bell {
    fn ring(&self);
}

/// A client's side. See the module.
pub(crate) struct Lane {
    words: Words,
    /// Which lane is ours, once that was found, and whose we are in it.
    index: Cell<Option<(usize, u64)>>,
    /// Whether one is about to be posted.
    is_posting: Cell<bool>,
    /// The first number that we have not used.
    next_number: Cell<u64>,
    /// What the post in each slot is about.
    claimed: Vec<Cell<[usize; 2]>>,
    /// Times that the core is given away for a server that is busy.
    pub(super) yields_max: u32,
    /// Whether nobody wanted the core when it was last given away.
    is_alone: Cell<bool>,
    pub(super) ignores_claims: bool,
    /// As long as there is a connection.
    pub(super) bell: Option<Weak<dyn Bell>>,
    _memory: Rc<dyn Any>,
}

impl Lane {
    /// The words at an address in `memory`, of [`POSTS_SIZE`] bytes.
    pub fn at(address: *const u8, memory: Rc<dyn Any>, bell: Weak<dyn Bell>) -> Lane {
        Lane { bell: Some(bell), ..Lane::new(Words(address.cast()), memory) }
    }

    pub(super) fn new(words: Words, memory: Rc<dyn Any>) -> Lane {
        Lane {
            words,
            index: Cell::new(None),
            is_posting: Cell::new(false),
            next_number: Cell::new(0),
            claimed: vec![Cell::new([NO_CLAIM; 2]); SLOT_COUNT as usize],
            yields_max: YIELDS_MAX,
            is_alone: Cell::new(false),
            ignores_claims: false,
            bell: None,
            _memory: memory,
        }
    }

    /// Whether somebody has posted a change of what comes to this claim, or is about to, that the server has not taken
    /// up.
    pub fn is_claimed(&self, claim: usize) -> bool {
        !self.ignores_claims && self.words.claim(claim).load(Ordering::Acquire) != 0
    }

    /// Whether somebody has posted a write to a file that comes to this word, or is about to, that the server may not
    /// have taken up.
    pub fn is_written(&self, file: usize) -> bool {
        if self.ignores_claims {
            return false;
        }
        let ticket = self.words.written(file).load(Ordering::Acquire);
        ticket != 0 && ticket >= self.words.at(OPEN_TICKET_WORD).load(Ordering::Acquire)
    }

    /// Whether the server has taken up a post of the client `owner`, if need be after it was let run.
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

    /// Whether the server has not taken up a post of the client `owner`.
    pub fn is_waiting(&self, owner: u64, number: u64) -> bool {
        self.find(owner).is_some_and(|lane| self.words.lane(lane, TAKEN_WORD).load(Ordering::Acquire) <= number)
    }

    /// See `Window::unused_number`.
    pub fn unused_number(&self, owner: u64) -> Option<u64> {
        let lane = self.find(owner)?;
        // In this order: the end of other numbers never comes with the start of those before them.
        let end = self.words.lane(lane, NUMBERS_END_WORD).load(Ordering::Acquire);
        let start = self.words.lane(lane, NUMBERS_WORD).load(Ordering::Relaxed);
        let number = self.next_number.get().max(start);
        (number != 0 && number < end).then_some(number)
    }

    fn is_allowed(&self) -> bool {
        self.words.at(FORBIDDEN_WORD).load(Ordering::Acquire) == ALLOWED
    }

    /// Whether posting is allowed, if need be after the step that is just being done: most take no longer than this
    /// waits.
    fn waits_for_a_step(&self) -> bool {
        let is_over = || self.words.at(FORBIDDEN_WORD).load(Ordering::Acquire) != STEP;
        let looks_again = |_| {
            std::hint::spin_loop();
            is_over()
        };
        let _ = is_over() || (0..SPINS_MAX).any(looks_again) || self.waits_for(is_over);
        self.is_allowed()
    }

    fn ring(&self) {
        if let Some(bell) = self.bell.as_ref().and_then(Weak::upgrade) {
            bell.ring();
        }
    }

    /// Posts before this one that the server has not taken up.
    fn waiting_before(&self, lane: usize, number: u64) -> u64 {
        number.wrapping_sub(self.words.lane(lane, TAKEN_WORD).load(Ordering::Acquire))
    }

    /// Whether there is room for post `number`, if need be after the server was let run.
    fn waits_for_room(&self, lane: usize, number: u64) -> bool {
        let has_room = || self.waiting_before(lane, number) < SLOT_COUNT;
        if has_room() {
            return true;
        }
        self.ring();
        self.waits_for(has_room)
    }

    fn is_ours(&self, lane: usize, owner: u64) -> bool {
        self.words.lane(lane, OWNER_WORD).load(Ordering::Acquire) == owner
    }

    fn find(&self, owner: u64) -> Option<usize> {
        if let Some((lane, of)) = self.index.get()
            && of == owner
            && self.is_ours(lane, owner)
        {
            return Some(lane);
        }
        let lane = (0..LANE_COUNT).find(|lane| self.is_ours(*lane, owner))?;
        self.index.set(Some((lane, owner)));
        Some(lane)
    }

    /// Whether we have posted something about the same that the server has not taken up.
    fn has_posted(&self, lane: usize, number: u64, claim: usize) -> bool {
        let mut waiting = number - self.waiting_before(lane, number).min(SLOT_COUNT)..number;
        waiting.any(|number| self.claimed[(number % SLOT_COUNT) as usize].get().contains(&claim))
    }

    /// Begins to post for client `owner` what comes to these claims. Nothing when it has no lane or no room in it,
    /// something is claimed, or nobody may post now. What only comes to the same claim as another post of ours is no
    /// hindrance.
    pub fn begin(self: &Rc<Self>, owner: u64, claims: [usize; 2], post: &PostWords) -> Option<Posting> {
        self.begin_as(owner, claims, post, false)
    }

    /// The same for a post that rests on one of this client which the server has not taken up: both claim the same.
    pub fn begin_on_top(self: &Rc<Self>, owner: u64, claims: [usize; 2], post: &PostWords) -> Option<Posting> {
        self.begin_as(owner, claims, post, true)
    }

    fn begin_as(self: &Rc<Self>, owner: u64, claims: [usize; 2], post: &PostWords, on_top: bool) -> Option<Posting> {
        // Whatever else this client posts meanwhile would take the same slot.
        if !self.waits_for_a_step() || self.is_posting.get() {
            return None;
        }
        let lane = self.find(owner)?;
        let state = self.words.lane(lane, STATE_WORD).load(Ordering::Relaxed);
        let number = state >> 1;
        if state & ABOUT_TO != 0 || !self.waits_for_room(lane, number) {
            return None;
        }
        for (count, claim) in different(claims).enumerate() {
            let again = || on_top || !self.has_posted(lane, number, claim);
            if !self.words.take(lane, claim, again) {
                self.words.free(lane, different(claims).take(count));
                return None;
            }
        }
        for (word, value) in self.words.slot(lane, number).zip(post) {
            word.store(*value, Ordering::Relaxed);
        }
        self.claimed[(number % SLOT_COUNT) as usize].set(claims);
        self.is_posting.set(true);
        let posting = Posting { of: self.clone(), owner, lane, state, claims, is_posted: false };
        self.words.lane(lane, STATE_WORD).store(state | ABOUT_TO, Ordering::Relaxed);
        // The counterpart of the fence in `Posts::forbid`.
        fence(Ordering::SeqCst);
        // Whoever looks at anything else from here on sees it as the last step has left it.
        posting.is_allowed().then_some(posting)
    }
}

/// A post that is about to be made; dropping it makes none.
pub struct Posting {
    of: Rc<Lane>,
    owner: u64,
    lane: usize,
    state: u64,
    claims: [usize; 2],
    is_posted: bool,
}

impl Posting {
    fn is_allowed(&self) -> bool {
        self.of.is_allowed() && self.of.is_ours(self.lane, self.owner)
    }

    /// Takes a number for a write to a file with this claim ([`wire::posts::file_claim`]). False when the write may not
    /// be posted: writes may not now, or somebody else has claimed the file. To be called before what the write rests
    /// on is looked at.
    pub fn number_write(&self, file: usize) -> bool {
        let words = &self.of.words;
        let ticket = words.at(NEXT_TICKET_WORD).fetch_add(1, Ordering::SeqCst);
        if let Some(word) = words.slot(self.lane, self.state >> 1).nth(TICKET_WORD) {
            word.store(ticket, Ordering::Relaxed);
        }
        words.written(file).fetch_max(ticket, Ordering::SeqCst);
        // Who claims the file and looks whether it is being written, or we, see the other one.
        fence(Ordering::SeqCst);
        let claim = words.claim(file).load(Ordering::Acquire);
        let is_free = claim == 0 || claim & TAG_MASK == tag_of(self.lane);
        is_free && words.at(WRITES_WORD).load(Ordering::Relaxed) != 0
    }

    /// As `commit`, for something that is made with a number (`Window::unused_number`), which nothing else gets then.
    pub fn commit_made(self, number: u64) -> Option<u64> {
        let lane = self.of.clone();
        let posted = self.commit()?;
        lane.next_number.set(number + 1);
        Some(posted)
    }

    /// Posts it, if nothing was done by the server since this began, and returns which post of the lane it is. What it
    /// rests on was looked at since then.
    pub fn commit(mut self) -> Option<u64> {
        let (old, new) = (self.state | ABOUT_TO, self.state + 2);
        let state = self.of.words.lane(self.lane, STATE_WORD);
        self.is_posted = state.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let number = self.state >> 1;
        if self.is_posted && self.of.waiting_before(self.lane, number) == BELL_COUNT {
            self.of.ring();
        }
        self.is_posted.then_some(number)
    }
}

impl Drop for Posting {
    fn drop(&mut self) {
        if self.is_posted {
            self.of.is_posting.set(false);
            return;
        }
        let words = &self.of.words;
        let about = self.state | ABOUT_TO;
        let state = words.lane(self.lane, STATE_WORD);
        let _ = state.compare_exchange(about, self.state, Ordering::AcqRel, Ordering::Relaxed);
        self.of.is_posting.set(false);
        words.free(self.lane, different(self.claims));
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
