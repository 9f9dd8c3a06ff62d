//! Changes that clients of this machine make without waiting for the server: they *post* them in memory that both share, and the server
//! takes up what is posted before it does anything else.
//!
//! | part | written by | holds |
//! |---|---|---|
//! | a word | server | 0 while clients may post, 1 during a step, 2 while they may not after it either |
//! | `CLAIM_COUNT` words | clients, and the server to free them | which lane has posted, or is about to post, changes of something that comes to this word by its hash, and how many; 0 for none |
//! | `LANE_COUNT` lanes | see below | what one client posts |
//! | two words for numbers, and one for permission | clients; server; server | the next number of a posted write, the first one that may still be under way, and whether writes may be posted |
//! | words in what lanes leave free | clients | the highest number of a posted write of a file that comes to this word by its hash |
//!
//! A lane has a word for its state (how many posts there were; the lowest bit is set while its client is about to post one more), one
//! for its owner and one for how many the server has taken up (both are the server's), and `SLOT_COUNT` slots for posts.
//!
//! A server does what it does in steps between which it gives control away (the polls of its tasks). What is posted counts as done
//! between two of them:
//!
//! 1. Who wants to post claims what it is about, writes the slot, sets the lane's bit, fences, and looks whether posting is allowed, and
//!    then whether what the post rests on stands (cells of a board). If so it exchanges the state for one with one post more and no bit.
//!    With that the change is made; if the exchange fails, or something does not stand, it takes all of this back.
//! 2. A server that begins a step first forbids posting, fences, and takes away the bits that it finds set (so those exchanges fail).
//!    Then it takes up everything that was posted, and only then does the step, after which posting is allowed again.
//!
//! What is posted already it takes up before it forbids posting, so that others go on posting meanwhile: changes that are claimed by different
//! clients are of different things, so it does not matter which comes first, and none of them changes what else posts rest on.
//!
//! Writes claim nothing, for many clients may write to a file at a time. Each takes a number instead after its lane's bit is set, and notes it in
//! its file's word. Who looks at something of the file asks the server while that word is not below the first number that may be under way,
//! which the server raises with each step. It takes writes up in the order of their numbers; before it forbids posting, only those whose numbers were
//! taken before it began to look at lanes: whatever was posted before one of these was taken is there then.
//!
//! So of a post and a step one comes first, and the other one sees it (the fences are those of Dekker's algorithm), and what a post rests
//! on cannot change between the look and the exchange. What is posted lies in memory of the store: a server that is killed
//! leaves it there, and the next one takes it up before anything else. Whoever looks at something that is claimed asks the server.
//!
//! Invariants
//! 1. A lane is given to a client only when nobody else has it mapped (`Region::borrowed`), so that nobody writes to another one's slots.
//! 2. Who posts for something has claimed it before, and the server frees it after it has taken the post up. So at most one
//!    lane has posted a change of the same thing.
//! 3. The server trusts no word: posts are checked as requests are, counts are bounded, and there is no place in here that leads anywhere
//!    else.

use crate::region::{Loan, Region};
use crate::system::yield_core;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use wire::posts::{NO_CLAIM, POST_WORDS, TICKET_WORD};

/// One post.
pub type PostWords = [u64; POST_WORDS];
/// Things that can be told apart while changes of them are posted.
pub const CLAIM_COUNT: usize = 8192;
/// Posts of a client that its server has not taken up.
pub const SLOT_COUNT: u64 = 32;
const LANE_COUNT: usize = 64;
/// Posts that wait before one with which a server that sleeps is woken.
const BELL_COUNT: u64 = SLOT_COUNT / 2;
/// Looks whether a step has ended, some two microseconds; and times that the core is given away until it has, or there is room in the lane: where
/// the server has to wait for the core that we have, it is there the sooner, and else these cost less than asking it.
const SPINS_MAX: u32 = 50;
const YIELDS_MAX: u32 = 3;
/// Values of the first word.
const ALLOWED: u64 = 0;
const STEP: u64 = 1;
const REFUSED: u64 = 2;

const FORBIDDEN_WORD: usize = 0;
/// See `hide_leftovers`; it counts in simulations only.
const HIDDEN_WORD: usize = 8;
/// The next number of a posted write, the first that may be under way, and whether writes may be posted, each on a line of its own.
const NEXT_TICKET_WORD: usize = 16;
const OPEN_TICKET_WORD: usize = 24;
const WRITES_WORD: usize = 32;
const CLAIMS_START: usize = 512;
const LANES_START: usize = CLAIMS_START + CLAIM_COUNT;
const LANE_WORDS: usize = 1024;
/// Within a lane: the state on a line of its own, then what the server writes, then the slots.
const STATE_WORD: usize = 0;
const OWNER_WORD: usize = 8;
const TAKEN_WORD: usize = 9;
const NUMBERS_WORD: usize = 10;
const NUMBERS_END_WORD: usize = 11;
const SLOTS_START: usize = 512;
const WORD_COUNT: usize = LANES_START + LANE_COUNT * LANE_WORDS;
/// Files that can be told apart while writes to them are posted; their words lie where lanes leave room.
const WRITTEN_PER_LANE: usize = 64;
const WRITTEN_START: usize = 64;
/// The first number of a posted write: 0 is none.
const FIRST_TICKET: u64 = 1;
/// Bytes of all of it.
pub const POSTS_SIZE: u64 = WORD_COUNT as u64 * 8;
/// The bit of a state.
const ABOUT_TO: u64 = 1;

const _: () = assert!(SLOTS_START + SLOT_COUNT as usize * POST_WORDS <= LANE_WORDS);
const _: () = assert!(WRITTEN_START + WRITTEN_PER_LANE <= SLOTS_START);

/// The words, in whoever's mapping.
#[derive(Clone, Copy)]
struct Words(*const AtomicU64);

impl Words {
    fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORD_COUNT);
        // SAFETY: just checked; whoever holds this holds the mapping for as long, and the words are only touched as atomic ones.
        unsafe { &*self.0.add(index) }
    }

    fn lane(&self, lane: usize, word: usize) -> &AtomicU64 {
        self.at(LANES_START + lane * LANE_WORDS + word)
    }

    fn claim(&self, claim: usize) -> &AtomicU64 {
        self.at(CLAIMS_START + claim % CLAIM_COUNT)
    }

    fn written(&self, file: usize) -> &AtomicU64 {
        let (lane, word) = (file / WRITTEN_PER_LANE % LANE_COUNT, file % WRITTEN_PER_LANE);
        self.lane(lane, WRITTEN_START + word)
    }

    fn slot(&self, lane: usize, number: u64) -> impl Iterator<Item = &AtomicU64> {
        let first = SLOTS_START + (number % SLOT_COUNT) as usize * POST_WORDS;
        (first..first + POST_WORDS).map(move |word| self.lane(lane, word))
    }

    /// Claims something for a post of a lane. False when it is another lane's.
    fn take(&self, lane: usize, claim: usize) -> bool {
        let word = self.claim(claim);
        let add = |word: u64| match word {
            0 => Some(tag_of(lane) | ONE_POST),
            _ if word & TAG_MASK == tag_of(lane) => word.checked_add(ONE_POST),
            _ => None,
        };
        word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, add).is_ok()
    }

    /// Frees what a lane has claimed for a post.
    fn free(&self, lane: usize, claims: impl Iterator<Item = usize>) {
        for claim in claims {
            let less = |word: u64| match word {
                _ if word & TAG_MASK != tag_of(lane) => None,
                _ if word < 2 * ONE_POST => Some(0),
                _ => Some(word - ONE_POST),
            };
            let _ = self.claim(claim).fetch_update(Ordering::Release, Ordering::Relaxed, less);
        }
    }

    /// Frees all that a lane has claimed, whose client has gone.
    fn free_all(&self, lane: usize) {
        for claim in 0..CLAIM_COUNT {
            let none = |word: u64| (word & TAG_MASK == tag_of(lane)).then_some(0);
            let _ = self.claim(claim).fetch_update(Ordering::Release, Ordering::Relaxed, none);
        }
    }
}

/// Both claims, or the one that both are: freed once, it may be somebody else's. Or none.
fn different(claims: [usize; 2]) -> impl Iterator<Item = usize> {
    let count = if claims[0] % CLAIM_COUNT == claims[1] % CLAIM_COUNT { 1 } else { 2 };
    claims.into_iter().take(count).filter(|claim| *claim != NO_CLAIM)
}

/// What a lane writes to what it claims, in the lower bits; above them is for how many posts.
fn tag_of(lane: usize) -> u64 {
    lane as u64 + 1
}

const ONE_POST: u64 = 1 << 8;
const TAG_MASK: u64 = ONE_POST - 1;
const _: () = assert!((LANE_COUNT as u64) < TAG_MASK);

/// Bytes of the region that are a lane's.
fn lane_range(lane: usize) -> (u64, u64) {
    ((LANES_START + lane * LANE_WORDS) as u64 * 8, LANE_WORDS as u64 * 8)
}

/// A client's lane, as the server knows it, which relies on nothing that the client may write.
struct OpenLane {
    lane: usize,
    /// Posts that were taken up.
    taken: u64,
    /// Posts that there were at the last look.
    posted: u64,
    /// See `Posts::numbers`.
    numbers: Range<u64>,
}

impl OpenLane {
    fn new(lane: usize) -> OpenLane {
        OpenLane { lane, taken: 0, posted: 0, numbers: 0..0 }
    }

    /// There were so many posts. Whether some are to be taken up.
    fn saw(&mut self, posted: u64) -> bool {
        self.posted = posted;
        if self.posted.wrapping_sub(self.taken) > SLOT_COUNT {
            // More than there is room for was never posted: the client has written nonsense.
            self.taken = self.posted;
        }
        self.posted != self.taken
    }
}

/// The server's side. See the module.
pub struct Posts {
    words: Words,
    region: Rc<dyn Region>,
    /// Lanes that clients have.
    open: RefCell<Vec<OpenLane>>,
    /// Writes with lower numbers are to be taken up, and those below the second one are all there once that is done.
    due_ticket: Cell<u64>,
    closed_ticket: Cell<u64>,
    /// See `ignore_claims`, `ignore_order` and `come_late`.
    ignores_claims: Cell<bool>,
    ignores_order: Cell<bool>,
    lateness: Cell<Option<u32>>,
}

/// Of so many steps a server that comes late takes up posts before one.
const LATE_STEPS: u32 = 8;

impl Posts {
    /// The posts in a region of [`POSTS_SIZE`] bytes, which is allocated; what an earlier life has left is there (`leftovers`). Nobody may post until
    /// `allow`. Panics when it is smaller.
    pub(crate) fn new(region: Rc<dyn Region>) -> Posts {
        assert!(region.size() >= POSTS_SIZE, "a region for posts is whole");
        let words = Words(region.base().cast_const().cast());
        let posts = Posts {
            words,
            region,
            open: RefCell::new((0..LANE_COUNT).map(OpenLane::new).collect()),
            due_ticket: Cell::new(FIRST_TICKET),
            closed_ticket: Cell::new(FIRST_TICKET),
            ignores_claims: Cell::new(false),
            ignores_order: Cell::new(false),
            lateness: Cell::new(None),
        };
        posts.forbid();
        // What was written by posts before counts as taken up when it is (`reset`).
        posts.words.at(FORBIDDEN_WORD).store(REFUSED, Ordering::Release);
        posts.open.borrow_mut().clear();
        posts
    }

    /// Server, when it begins: what was posted to an earlier life and not taken up, each lane's in order, and writes in theirs.
    pub fn leftovers(&self) -> Vec<PostWords> {
        let hidden = self.region.file().is_none() && self.words.at(HIDDEN_WORD).load(Ordering::Relaxed) != 0;
        let lanes = (0..LANE_COUNT).filter(|_| !hidden);
        let mut waiting: Vec<VecDeque<PostWords>> = lanes.map(|lane| self.waiting_in(lane).collect()).collect();
        let mut all = Vec::new();
        loop {
            let heads =
                waiting.iter().enumerate().filter_map(|(lane, posts)| Some((posts.front()?[TICKET_WORD], lane)));
            let Some((_, lane)) = heads.min() else { return all };
            all.extend(waiting[lane].pop_front());
        }
    }

    /// Server, when it begins, after it has taken up the leftovers: all lanes are free, and nothing is claimed.
    pub fn reset(&self) {
        for lane in 0..LANE_COUNT {
            self.end_lane(lane);
        }
        for claim in 0..CLAIM_COUNT {
            self.words.claim(claim).store(0, Ordering::Relaxed);
        }
        // Numbers go on, for clients of an earlier life may still note theirs.
        let next = self.words.at(NEXT_TICKET_WORD).fetch_max(FIRST_TICKET, Ordering::SeqCst).max(FIRST_TICKET);
        self.closed_ticket.set(next);
        self.words.at(OPEN_TICKET_WORD).store(next, Ordering::Release);
    }

    /// Gives the client `owner`, which is not 0, a lane. `loan` is what it maps the region through. Nothing when all lanes are
    /// taken, or it can't be lent.
    pub(crate) fn open_lane(&self, owner: u64, loan: &Rc<dyn Loan>) -> Option<usize> {
        let mut open = self.open.borrow_mut();
        let lane = (0..LANE_COUNT).find(|lane| {
            let (offset, size) = lane_range(*lane);
            !open.iter().any(|open| open.lane == *lane) && self.region.borrowed(offset, size).is_none()
        })?;
        let (offset, size) = lane_range(lane);
        loan.hold(offset, size).ok()?;
        // Nobody else has it mapped, so whatever it says now is left by somebody who has gone.
        self.end_lane(lane);
        self.words.lane(lane, STATE_WORD).store(0, Ordering::Relaxed);
        self.words.lane(lane, TAKEN_WORD).store(0, Ordering::Relaxed);
        self.words.free_all(lane);
        self.words.lane(lane, OWNER_WORD).store(owner, Ordering::Release);
        open.push(OpenLane::new(lane));
        Some(lane)
    }

    /// What a borrower maps the region through. Errors: it can't be lent.
    pub(crate) fn loan(&self) -> io::Result<Rc<dyn Loan>> {
        self.region.loan()
    }

    /// A client has gone; what it has posted was taken up in this step.
    pub fn close_lane(&self, lane: usize) {
        self.open.borrow_mut().retain(|open| open.lane != lane);
        self.end_lane(lane);
        self.words.free_all(lane);
    }

    fn end_lane(&self, lane: usize) {
        self.words.lane(lane, OWNER_WORD).store(0, Ordering::Relaxed);
        self.tell_numbers(lane, &(0..0));
        let state = self.words.lane(lane, STATE_WORD).fetch_and(!ABOUT_TO, Ordering::AcqRel);
        self.words.lane(lane, TAKEN_WORD).store(state >> 1, Ordering::Release);
    }

    /// Numbers that the client of a lane has for what it makes, and has not used in what was taken up.
    pub fn numbers(&self, lane: usize) -> Range<u64> {
        self.open.borrow().iter().find(|open| open.lane == lane).map_or(0..0, |open| open.numbers.clone())
    }

    /// Gives the client of a lane other ones. They are higher than all that it had.
    pub fn set_numbers(&self, lane: usize, numbers: Range<u64>) {
        let mut open = self.open.borrow_mut();
        let Some(open) = open.iter_mut().find(|open| open.lane == lane) else { return };
        open.numbers = numbers;
        self.tell_numbers(lane, &open.numbers);
    }

    fn tell_numbers(&self, lane: usize, numbers: &Range<u64>) {
        self.words.lane(lane, NUMBERS_WORD).store(numbers.start, Ordering::Relaxed);
        self.words.lane(lane, NUMBERS_END_WORD).store(numbers.end, Ordering::Release);
    }

    /// A number is used.
    pub fn use_number(&self, lane: usize, number: u64) {
        if let Some(open) = self.open.borrow_mut().iter_mut().find(|open| open.lane == lane) {
            // The client knows itself what it has used.
            open.numbers.start = number + 1;
        }
    }

    /// Whether anybody has a lane.
    pub fn has_lanes(&self) -> bool {
        !self.open.borrow().is_empty()
    }

    /// Lanes that clients have.
    pub fn lane_count(&self) -> usize {
        self.open.borrow().len()
    }

    /// Looks for what was posted, before a step begins: what is found can be taken up (`next`) while others still post. Whether there is
    /// something.
    pub fn look(&self) -> bool {
        if self.lateness.get().is_some() {
            return false;
        }
        // In this order: what was posted before one of these numbers was taken is seen.
        self.due_ticket.set(self.words.at(NEXT_TICKET_WORD).load(Ordering::SeqCst));
        let mut any = false;
        for open in self.open.borrow_mut().iter_mut() {
            let state = self.words.lane(open.lane, STATE_WORD).load(Ordering::Acquire);
            any |= open.saw(state >> 1);
        }
        any && self.head().is_some()
    }

    /// A step begins: nobody may post any more. Whether something was posted.
    pub fn forbid(&self) -> bool {
        self.words.at(FORBIDDEN_WORD).store(STEP, Ordering::Relaxed);
        // The counterpart of the fence in `Lane::begin`.
        fence(Ordering::SeqCst);
        // Whoever takes a higher number finds that he may not post.
        self.closed_ticket.set(self.words.at(NEXT_TICKET_WORD).load(Ordering::SeqCst));
        self.due_ticket.set(u64::MAX);
        let mut any = false;
        for open in self.open.borrow_mut().iter_mut() {
            let state = self.words.lane(open.lane, STATE_WORD);
            let seen = state.load(Ordering::Acquire);
            let seen = match seen & ABOUT_TO {
                0 => seen,
                // Whoever is about to post does not; if that fails, it has.
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

    /// The step has ended: posting is allowed again, that of writes if `writes` says so.
    pub fn allow(&self, writes: bool) {
        self.words.at(WRITES_WORD).store(writes.into(), Ordering::Relaxed);
        self.leave(ALLOWED);
    }

    /// The step has ended, but nobody may post.
    pub fn refuse(&self) {
        self.leave(REFUSED);
    }

    fn leave(&self, word: u64) {
        let open_ticket = self.words.at(OPEN_TICKET_WORD);
        if open_ticket.load(Ordering::Relaxed) != self.closed_ticket.get() {
            open_ticket.store(self.closed_ticket.get(), Ordering::Release);
        }
        self.words.at(FORBIDDEN_WORD).store(word, Ordering::Release);
    }

    /// Something that was posted before the last look. Of one client what it posted first, of several writes that with the lowest number.
    pub fn next(&self) -> Option<(usize, PostWords)> {
        let (lane, number) = self.head()?;
        Some((lane, self.post(lane, number)))
    }

    /// The lane of what is next, and which of its posts that is.
    fn head(&self) -> Option<(usize, u64)> {
        let open = self.open.borrow();
        let mut first: Option<(u64, usize, u64)> = None;
        for open in open.iter().filter(|open| open.taken != open.posted) {
            let ticket = match self.ignores_order.get() {
                true => 0,
                false => self.ticket(open.lane, open.taken),
            };
            if ticket == 0 {
                return Some((open.lane, open.taken));
            }
            if ticket < self.due_ticket.get() && first.is_none_or(|(lowest, ..)| ticket < lowest) {
                first = Some((ticket, open.lane, open.taken));
            }
        }
        first.map(|(_, lane, number)| (lane, number))
    }

    fn ticket(&self, lane: usize, number: u64) -> u64 {
        // Nonsense is some number as well, and taken up in the next step at the latest.
        self.words.slot(lane, number).nth(TICKET_WORD).map_or(0, |word| word.load(Ordering::Relaxed)).min(u64::MAX - 1)
    }

    /// What `next` will tell of a lane after that.
    pub fn next_but_one(&self, lane: usize) -> Option<PostWords> {
        let open = self.open.borrow();
        let open = open.iter().find(|open| open.lane == lane)?;
        let number = open.taken.wrapping_add(1);
        (number != open.posted).then(|| self.post(lane, number))
    }

    /// What `next` has told is taken up; the claims for it are free.
    pub fn taken(&self, lane: usize, claims: [usize; 2]) {
        if let Some(open) = self.open.borrow_mut().iter_mut().find(|open| open.lane == lane) {
            open.taken = open.taken.wrapping_add(1);
            self.words.lane(lane, TAKEN_WORD).store(open.taken, Ordering::Release);
        }
        self.words.free(lane, different(claims));
    }

    fn waiting_in(&self, lane: usize) -> impl Iterator<Item = PostWords> + '_ {
        let posted = self.words.lane(lane, STATE_WORD).load(Ordering::Acquire) >> 1;
        let taken = self.words.lane(lane, TAKEN_WORD).load(Ordering::Relaxed);
        // More than there is room for was never posted: the client has written nonsense.
        let taken = if posted.wrapping_sub(taken) > SLOT_COUNT { posted } else { taken };
        (taken..posted).map(move |number| self.post(lane, number))
    }

    fn post(&self, lane: usize, number: u64) -> PostWords {
        let mut post = [0; POST_WORDS];
        for (target, word) in post.iter_mut().zip(self.words.slot(lane, number)) {
            *target = word.load(Ordering::Relaxed);
        }
        post
    }

    /// Has the next life find nothing that was posted to this one: a fault that tests must notice.
    pub(crate) fn hide_leftovers(&self) {
        self.words.at(HIDDEN_WORD).store(1, Ordering::Relaxed);
    }

    /// From now on nobody sees what is claimed: a fault that tests must notice.
    pub(crate) fn ignore_claims(&self) {
        self.ignores_claims.set(true);
    }

    /// From now on writes are taken up lane by lane: a fault that tests must notice.
    pub(crate) fn ignore_order(&self) {
        self.ignores_order.set(true);
    }

    /// From now on the server takes posts up late: a fault that tests must notice.
    pub(crate) fn come_late(&self) {
        self.lateness.set(Some(self.lateness.get().unwrap_or(0)));
    }

    /// The client's side, within one process: for simulations.
    pub(crate) fn seen_by(self: &Rc<Self>, loan: Rc<dyn Loan>) -> Lane {
        let lane = Lane::new(self.words, Rc::new((self.clone(), loan)));
        // Nothing else happens in a simulation meanwhile.
        Lane { ignores_claims: self.ignores_claims.get(), yields_max: 0, ..lane }
    }
}

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
    /// Times that the core is given away for a server that is busy.
    yields_max: u32,
    ignores_claims: bool,
    /// As long as there is a connection.
    bell: Option<Weak<dyn Bell>>,
    _memory: Rc<dyn Any>,
}

impl Lane {
    /// The words at an address in `memory`, of [`POSTS_SIZE`] bytes.
    pub fn at(address: *const u8, memory: Rc<dyn Any>, bell: Weak<dyn Bell>) -> Lane {
        Lane { bell: Some(bell), ..Lane::new(Words(address.cast()), memory) }
    }

    fn new(words: Words, memory: Rc<dyn Any>) -> Lane {
        Lane {
            words,
            index: Cell::new(None),
            is_posting: Cell::new(false),
            next_number: Cell::new(0),
            yields_max: YIELDS_MAX,
            ignores_claims: false,
            bell: None,
            _memory: memory,
        }
    }

    /// Whether somebody has posted a change of what comes to this claim, or is about to, that the server has not taken up.
    pub fn is_claimed(&self, claim: usize) -> bool {
        !self.ignores_claims && self.words.claim(claim).load(Ordering::Acquire) != 0
    }

    /// Whether somebody has posted a write to a file that comes to this word, or is about to, that the server may not have taken up.
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
        let is_taken = |_| {
            yield_core();
            !self.is_waiting(owner, number)
        };
        (0..self.yields_max).any(is_taken)
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

    /// Whether posting is allowed, if need be after the step that is just being done: most take no longer than this waits.
    fn waits_for_a_step(&self) -> bool {
        let allowed = |pause: fn()| match self.words.at(FORBIDDEN_WORD).load(Ordering::Acquire) {
            STEP => {
                pause();
                None
            }
            word => Some(word == ALLOWED),
        };
        let spun = (0..SPINS_MAX).find_map(|_| allowed(std::hint::spin_loop));
        spun.or_else(|| (0..self.yields_max).find_map(|_| allowed(yield_core))).unwrap_or_else(|| self.is_allowed())
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
        let waits = |_| {
            let has_room = has_room();
            if !has_room {
                yield_core();
            }
            has_room
        };
        (0..self.yields_max).any(waits) || has_room()
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

    /// Begins to post for client `owner` what comes to these claims. Nothing when it has no lane or no room in it, something is claimed, or
    /// nobody may post now.
    pub fn begin(self: &Rc<Self>, owner: u64, claims: [usize; 2], post: &PostWords) -> Option<Posting> {
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
            if !self.words.take(lane, claim) {
                self.words.free(lane, different(claims).take(count));
                return None;
            }
        }
        for (word, value) in self.words.slot(lane, number).zip(post) {
            word.store(*value, Ordering::Relaxed);
        }
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

    /// Takes a number for a write to a file with this claim ([`wire::posts::file_claim`]). False when the write may not be posted:
    /// writes may not now, or somebody else has claimed the file. To be called before what the write rests on is looked at.
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

    /// Posts it, if nothing was done by the server since this began, and returns which post of the lane it is. What it rests on was looked at since
    /// then.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::OpenMode;
    use crate::sim::World;

    /// A post that is told from others by its number, and is no write.
    fn words(number: u64) -> PostWords {
        let mut words = [number; POST_WORDS];
        words[TICKET_WORD] = 0;
        words
    }

    fn region() -> Rc<dyn Region> {
        let world = World::new(1);
        let node = world.add_node("node", std::net::IpAddr::from([10, 0, 0, 1]));
        let storage = world.reactor(node).storage(std::path::Path::new("/posts")).expect("storage");
        let region = storage.open("posts", POSTS_SIZE, OpenMode::CreateNew).expect("created");
        region.allocate(0, POSTS_SIZE).expect("allocated");
        region
    }

    fn client(posts: &Rc<Posts>, owner: u64) -> (Rc<Lane>, usize) {
        let loan = posts.loan().expect("lent");
        let lane = posts.open_lane(owner, &loan).expect("a lane");
        (Rc::new(posts.seen_by(loan)), lane)
    }

    /// Goal: what is posted is taken up once, in order; what is claimed is claimed once; there is an end to the room.
    #[test]
    fn posting() {
        let posts = Rc::new(Posts::new(region()));
        posts.reset();
        let ((one, lane), (other, _)) = (client(&posts, 7), client(&posts, 8));
        let begin = |who: &Rc<Lane>, owner, number: u64| who.begin(owner, [number as usize, 100], &words(number));
        assert!(begin(&one, 7, 1).is_none(), "nobody may post yet");
        posts.allow(true);
        assert!(begin(&one, 9, 1).is_none(), "nobody's lane");
        let first = begin(&one, 7, 1).expect("it begins");
        assert!(one.is_claimed(1) && one.is_claimed(100) && !other.is_claimed(2));
        assert!(begin(&other, 8, 2).is_none(), "the second claim is another one's");
        assert!(!other.is_claimed(2), "and the first is free again");
        assert_eq!(first.commit(), Some(0));
        assert!(begin(&other, 8, 2).is_none() && posts.forbid());
        assert_eq!(posts.next().map(|(at, post)| (at, post[0])), Some((lane, 1)));
        posts.taken(lane, [1, 100]);
        assert!(posts.next().is_none() && !one.is_claimed(1) && !one.is_claimed(100));
        posts.allow(true);
        for number in 0..SLOT_COUNT {
            assert!(one.begin(7, [number as usize; 2], &words(number)).and_then(Posting::commit).is_some());
        }
        assert!(one.begin(7, [200, 201], &words(0)).is_none(), "no room");
        assert!(posts.forbid());
        for number in 0..SLOT_COUNT {
            assert_eq!(posts.next(), Some((lane, words(number))));
            posts.taken(lane, [number as usize; 2]);
        }
        assert!(!posts.forbid());
    }

    /// Goal: a server that may sleep is woken when a lane is half full and when it is full, not for each post; and not any more when the connection has gone.
    #[test]
    fn bells() {
        struct Counted(Cell<u32>);
        impl Bell for Counted {
            fn ring(&self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let posts = Rc::new(Posts::new(region()));
        posts.reset();
        let loan = posts.loan().expect("lent");
        let lane = posts.open_lane(7, &loan).expect("a lane");
        let counted = Rc::new(Counted(Cell::new(0)));
        let bell: Rc<dyn Bell> = counted.clone();
        let client = Rc::new(Lane { bell: Some(Rc::downgrade(&bell)), ..posts.seen_by(loan) });
        posts.allow(true);
        let post = |number: u64| client.begin(7, [number as usize; 2], &words(number)).and_then(Posting::commit);
        let rung = |number| {
            assert_eq!(post(number), Some(number));
            counted.0.get()
        };
        let rings: Vec<u32> = (0..SLOT_COUNT).map(rung).collect();
        assert!((0..SLOT_COUNT).all(|number| rings[number as usize] == u32::from(number >= BELL_COUNT)));
        assert_eq!((post(100), counted.0.get()), (None, 2));
        drop(bell);
        drop(counted);
        assert!(post(100).is_none() && posts.look());
        posts.taken(lane, [0; 2]);
        assert!(post(100).is_some());
    }

    /// Goal: a number that was not used in a post is there for the next one, whatever became of the one that it was meant for.
    #[test]
    fn numbers_are_used_once() {
        let posts = Rc::new(Posts::new(region()));
        posts.reset();
        let (client, lane) = client(&posts, 7);
        posts.allow(true);
        assert_eq!(client.unused_number(7), None);
        posts.set_numbers(lane, 50..52);
        let begin = || client.begin(7, [1, 2], &words(5)).expect("it begins");
        drop(begin());
        assert_eq!(client.unused_number(7), Some(50));
        assert!(begin().commit_made(50).is_some() && posts.look());
        assert_eq!((client.unused_number(7), posts.numbers(lane)), (Some(51), 50..52));
        posts.use_number(lane, 50);
        posts.taken(lane, [1, 2]);
        let last = begin();
        posts.forbid();
        assert!(last.commit_made(51).is_none());
        posts.allow(true);
        assert_eq!((client.unused_number(7), posts.numbers(lane)), (Some(51), 51..52));
        assert!(begin().commit_made(51).is_some() && client.unused_number(7).is_none());
    }

    /// Goal: a lane claims the same thing for several posts, and it is free after the last of them; nonsense in a claim does no harm.
    #[test]
    fn claims_nest() {
        let posts = Rc::new(Posts::new(region()));
        posts.reset();
        let ((one, lane), (other, _)) = (client(&posts, 7), client(&posts, 8));
        posts.allow(true);
        for _ in 0..2 {
            assert!(one.begin(7, [1, 1], &words(5)).and_then(Posting::commit).is_some());
        }
        assert!(posts.look());
        posts.taken(lane, [1, 1]);
        assert!(one.is_claimed(1) && other.begin(8, [1, 2], &words(6)).is_none());
        posts.taken(lane, [1, 1]);
        assert!(!one.is_claimed(1) && posts.next().is_none());
        posts.words.claim(1).store(u64::MAX << 8 | tag_of(lane), Ordering::Relaxed);
        assert!(one.begin(7, [1, 1], &words(5)).is_none(), "no more can be counted");
        posts.close_lane(lane);
        assert!(!other.is_claimed(1));
    }

    /// Goal: a step that begins meanwhile undoes what is about to be posted, and nothing begins within it; who gives up leaves nothing.
    #[test]
    fn steps_come_between() {
        let posts = Rc::new(Posts::new(region()));
        posts.reset();
        let (client, lane) = client(&posts, 7);
        posts.allow(true);
        let begin = || client.begin(7, [1, 2], &words(5));
        let begun = begin().expect("it begins");
        assert!(!posts.forbid() && begin().is_none());
        posts.allow(true);
        assert!(begun.commit().is_none(), "a step has been");
        assert!(!client.is_claimed(1));
        drop(begin().expect("it begins"));
        assert!(!posts.forbid() && !client.is_claimed(1) && !client.is_claimed(2));
        posts.allow(true);
        let begun = begin().expect("it begins");
        posts.forbid();
        posts.close_lane(lane);
        posts.allow(true);
        assert!(begun.commit().is_none() && begin().is_none() && !posts.has_lanes());
    }

    /// Goal: what was posted to a server that ended is there for the next one, once; a lane is not given to another one while somebody
    /// has it mapped.
    #[test]
    fn lives() {
        let region = region();
        let posts = Rc::new(Posts::new(region.clone()));
        posts.reset();
        let (client, lane) = client(&posts, 7);
        posts.allow(true);
        assert!(client.begin(7, [1, 2], &words(5)).and_then(Posting::commit).is_some());
        let begun = client.begin(7, [3, 4], &words(6)).expect("it begins");
        let next = Rc::new(Posts::new(region));
        assert!(begun.commit().is_none());
        assert_eq!(next.leftovers(), [words(5)]);
        next.reset();
        assert!(next.leftovers().is_empty() && !client.is_claimed(1));
        next.allow(true);
        assert!(client.begin(7, [1, 2], &words(5)).is_none(), "the lane is nobody's");
        let loan = next.loan().expect("lent");
        assert_ne!(next.open_lane(8, &loan), Some(lane), "it is still mapped");
        drop((client, posts));
        let another = next.loan().expect("lent");
        assert_eq!(next.open_lane(9, &another), Some(lane));
    }

    /// Goal: nonsense in the shared words does no harm.
    #[test]
    fn nonsense() {
        let posts = Rc::new(Posts::new(region()));
        posts.reset();
        let (_client, lane) = client(&posts, 7);
        posts.words.lane(lane, STATE_WORD).store(u64::MAX, Ordering::Relaxed);
        assert!(!posts.forbid());
        assert!(posts.next().is_none());
        posts.close_lane(lane);
    }

    /// Goal: writes of several clients are taken up in the order of their numbers, and a file that is written to is known as such until all
    /// writes are taken up; who posts a name's change and who writes to its file see each other; nobody writes where that is not allowed.
    #[test]
    fn writes() {
        let posts = Rc::new(Posts::new(region()));
        posts.reset();
        let ((one, lane), (other, other_lane)) = (client(&posts, 7), client(&posts, 8));
        let begin = |who: &Rc<Lane>, owner, post| who.begin(owner, [NO_CLAIM; 2], &words(post)).expect("it begins");
        let write = |who, owner, post, file| {
            let posting = begin(who, owner, post);
            posting.number_write(file) && posting.commit().is_some()
        };
        posts.allow(false);
        assert!(!write(&one, 7, 1, 100));
        posts.forbid();
        posts.allow(true);
        assert!(!one.is_written(100));
        assert!(
            write(&one, 7, 1, 100) && write(&other, 8, 2, 100) && write(&one, 7, 3, 200) && write(&other, 8, 4, 100)
        );
        assert!(one.is_written(100) && one.is_written(200) && !other.is_written(300));
        assert!(posts.look());
        let mut all = Vec::new();
        while let Some((from, post)) = posts.next() {
            all.push((from, post[0]));
            posts.taken(from, [NO_CLAIM; 2]);
        }
        assert_eq!(all, [(lane, 1), (other_lane, 2), (lane, 3), (other_lane, 4)]);
        assert!(one.is_written(100), "until a step has been");
        posts.forbid();
        posts.allow(true);
        assert!(!one.is_written(100) && !one.is_written(200));

        // A number that was taken after the server had begun to look waits for the next time, and so does what is behind it.
        assert!(posts.look() || write(&one, 7, 5, 100));
        posts.open.borrow_mut().iter_mut().for_each(|open| open.posted += u64::from(open.lane == lane));
        assert!(posts.next().is_none() && posts.look());
        assert_eq!(posts.next().map(|(_, post)| post[0]), Some(5));
        posts.taken(lane, [NO_CLAIM; 2]);

        let removal = one.begin(7, [100, 100], &words(6)).expect("it begins");
        let late = begin(&other, 8, 7);
        assert!(!late.number_write(100) && other.is_written(100));
        drop((late, removal));
        let own = begin(&one, 7, 8);
        assert!(own.number_write(100));
        posts.forbid();
        posts.allow(true);
        assert!(own.commit().is_none() && !one.is_written(100));

        // What was posted to an earlier life counts as such until that is taken up, in the order of all writes.
        assert!(write(&other, 8, 9, 200) && write(&one, 7, 10, 100));
        let next = Posts::new(posts.region.clone());
        assert!(one.is_written(100) && one.is_written(200));
        assert_eq!(next.leftovers().iter().map(|post| post[0]).collect::<Vec<_>>(), [9, 10]);
        next.reset();
        assert!(!one.is_written(100) && !one.is_written(200));
    }
}
