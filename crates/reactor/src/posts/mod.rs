//! Changes that clients of this machine make without waiting for the server: they *post* them in memory that both
//! share, and the server takes up what is posted before it does anything else.
//!
//! | part | written by | holds |
//! |---|---|---|
//! | a word | server | 0 while clients may post, 1 during a step, 2 while they may not after it either |
//! | `CLAIM_COUNT` claims, two bytes each | clients, and the server to free them | which lane has posted, or is about to post, changes of something that comes to this claim by its hash, and how many; 0 for none |
//! | `LANE_COUNT` lanes | see below | what one client posts |
//! | two words for numbers, and one for permission | clients; server; server | the next number of a posted write, the first one that may still be under way, and whether writes may be posted |
//! | one word, at the same place in every version | server | the version of all of this, with its highest bit set while
//! nothing is left that was posted |
//! | words in what lanes leave free | clients | the highest number of a posted write of a file that comes to this word by its hash |
//!
//! A lane has a word for its state (how many posts there were; the lowest bit is set while its client is about to post
//! one more), one for its owner and one for how many the server has taken up (both are the server's), and `SLOT_COUNT`
//! slots for posts.
//!
//! A server does what it does in steps between which it gives control away (the polls of its tasks). What is posted
//! counts as done between two of them:
//!
//! 1. Who wants to post claims what it is about, writes the slot, sets the lane's bit, fences, and looks whether
//!    posting is allowed, and then whether what the post rests on stands (cells of an attribute cache). If so it
//!    exchanges the state for one with one post more and no bit. With that the change is made; if the exchange fails,
//!    or something does not stand, it takes all of this back.
//! 2. A server that begins a step first forbids posting, fences, and takes away the bits that it finds set (so those
//!    exchanges fail). Then it takes up everything that was posted, and only then does the step, after which posting is
//!    allowed again.
//!
//! What is posted already it takes up before it forbids posting, so that others go on posting meanwhile: changes that
//! are claimed by different clients are of different things, so it does not matter which comes first, and none of them
//! changes what else posts rest on.
//!
//! Writes claim nothing, for many clients may write to a file at a time. Each takes a number instead after its lane's
//! bit is set, and notes it in its file's word. Who looks at something of the file asks the server while that word is
//! not below the first number that may be under way, which the server raises with each step. It takes writes up in the
//! order of their numbers; before it forbids posting, only those whose numbers were taken before it began to look at
//! lanes: whatever was posted before one of these was taken is there then.
//!
//! So of a post and a step one comes first, and the other one sees it (the fences are those of Dekker's algorithm), and
//! what a post rests on cannot change between the look and the exchange. What is posted lies in memory of the store: a
//! server that is killed leaves it there, and the next one takes it up before anything else. Whoever looks at something
//! that is claimed asks the server.
//!
//! Invariants
//! 1. A lane is given to a client only when nobody else has it mapped (`Region::borrowed`), so that nobody writes to
//!    another one's slots.
//! 2. Who posts for something has claimed it before, and the server frees it after it has taken the post up. So at most
//!    one change of the same thing is posted, beside those that a client posts on top of its own
//!    (`Lane::begin_on_top`).
//! 3. The server trusts no word: posts are checked as requests are, counts are bounded, and there is no place in here
//!    that leads anywhere else.

mod lane;
#[cfg(test)]
mod tests;

use crate::region::{MappingLock, Region};
pub use lane::Posting;
pub(crate) use lane::{Bell, Lane};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};
use wire::posts::{NO_CLAIM, POST_WORDS, TICKET_WORD};

/// One post.
pub type PostWords = [u64; POST_WORDS];
/// Things that can be told apart while changes of them are posted.
pub const CLAIM_COUNT: usize = 1 << 15;
/// Posts of a client that its server has not taken up.
pub const SLOT_COUNT: u64 = 32;
const LANE_COUNT: usize = 64;
/// Posts that wait before one with which a server that sleeps is woken.
const BELL_COUNT: u64 = SLOT_COUNT / 2;
/// Values of the first word.
const ALLOWED: u64 = 0;
const STEP: u64 = 1;
const REFUSED: u64 = 2;

const FORBIDDEN_WORD: usize = 0;
/// See `hide_leftovers`; it counts in simulations only.
const HIDDEN_WORD: usize = 8;
/// The next number of a posted write, the first that may be under way, and whether writes may be posted, each on a line
/// of its own.
const NEXT_TICKET_WORD: usize = 16;
const OPEN_TICKET_WORD: usize = 24;
const WRITES_WORD: usize = 32;
/// The version; at the same place whatever the version is.
const LAYOUT_WORD: usize = 40;
const CLAIMS_START: usize = 512;
const LANES_START: usize = CLAIMS_START + CLAIM_COUNT / CLAIMS_PER_WORD;
const CLAIMS_PER_WORD: usize = size_of::<AtomicU64>() / size_of::<AtomicU16>();
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

/// Version of what lies where, and of what posts say (`wire::posts`): whoever changes either raises it.
pub const POSTS_LAYOUT: u64 = 1;
/// Beside the version: an earlier life has taken up everything and ended.
const NOTHING_LEFT: u64 = 1 << 63;

/// What an earlier life of a server has left in its file for posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostsLeft {
    /// What this program can take up.
    Ours,
    /// Nothing that anybody would miss: the file is of no use.
    Nothing,
    /// What a program of this other version has to take up.
    OfLayout(u64),
}

/// Looks what a file for posts holds, before it is used. One without a version is from before there were any, when all
/// lay as in the first.
pub fn posts_left(region: &dyn Region) -> PostsLeft {
    let is_whole = region.size() == POSTS_SIZE;
    let mut word = [0; 8];
    if region.size() >= (LAYOUT_WORD as u64 + 1) * 8 {
        region.read(LAYOUT_WORD as u64 * 8, &mut word);
    }
    let word = u64::from_le_bytes(word);
    match word & !NOTHING_LEFT {
        0 | POSTS_LAYOUT if is_whole => PostsLeft::Ours,
        0 => PostsLeft::Nothing,
        _ if word & NOTHING_LEFT != 0 => PostsLeft::Nothing,
        layout => PostsLeft::OfLayout(layout),
    }
}

/// The words and claims, in whoever's mapping.
#[derive(Clone, Copy)]
struct Words(*const AtomicU64);

impl Words {
    fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORD_COUNT);
        // SAFETY: just checked; whoever holds this holds the mapping for as long, and the words are only touched as
        // atomic ones.
        unsafe { &*self.0.add(index) }
    }

    fn lane(&self, lane: usize, word: usize) -> &AtomicU64 {
        self.at(LANES_START + lane * LANE_WORDS + word)
    }

    fn claim(&self, claim: usize) -> &AtomicU16 {
        // SAFETY: as in `at`: they lie between the words in front of them and the lanes, none of which is among them.
        unsafe { &*self.0.add(CLAIMS_START).cast::<AtomicU16>().add(claim % CLAIM_COUNT) }
    }

    fn written(&self, file: usize) -> &AtomicU64 {
        let (lane, word) = (file / WRITTEN_PER_LANE % LANE_COUNT, file % WRITTEN_PER_LANE);
        self.lane(lane, WRITTEN_START + word)
    }

    fn slot(&self, lane: usize, number: u64) -> impl Iterator<Item = &AtomicU64> {
        let first = SLOTS_START + (number % SLOT_COUNT) as usize * POST_WORDS;
        (first..first + POST_WORDS).map(move |word| self.lane(lane, word))
    }

    /// Claims something for a post of a lane. False when it is claimed already, by another lane or, unless `again` says
    /// that it may be claimed once more, by this one.
    fn take(&self, lane: usize, claim: usize, again: impl Fn() -> bool) -> bool {
        let word = self.claim(claim);
        let add = |word: u16| match word {
            0 => Some(tag_of(lane) | ONE_POST),
            _ if word & TAG_MASK == tag_of(lane) && again() => word.checked_add(ONE_POST),
            _ => None,
        };
        word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, add).is_ok()
    }

    /// Frees what a lane has claimed for a post.
    fn free(&self, lane: usize, claims: impl Iterator<Item = usize>) {
        for claim in claims {
            let less = |word: u16| match word {
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
            let none = |word: u16| (word & TAG_MASK == tag_of(lane)).then_some(0);
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
fn tag_of(lane: usize) -> u16 {
    lane as u16 + 1
}

const ONE_POST: u16 = 1 << 8;
const TAG_MASK: u16 = ONE_POST - 1;
const _: () = assert!(LANE_COUNT < TAG_MASK as usize && 2 * SLOT_COUNT < (u16::MAX / ONE_POST) as u64);

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
    has_ended: Cell<bool>,
    /// See `ignore_claims`, `ignore_order` and `come_late`.
    ignores_claims: Cell<bool>,
    ignores_order: Cell<bool>,
    lateness: Cell<Option<u32>>,
}

/// Of so many steps a server that comes late takes up posts before one.
const LATE_STEPS: u32 = 8;

impl Posts {
    /// The posts in a region of [`POSTS_SIZE`] bytes, which is allocated; what an earlier life has left is there
    /// (`leftovers`). Nobody may post until `allow`. Panics when it is smaller.
    pub(crate) fn new(region: Rc<dyn Region>) -> Posts {
        assert!(region.size() >= POSTS_SIZE, "a region for posts is whole");
        let words = Words(region.base().cast_const().cast());
        let posts = Posts {
            words,
            region,
            open: RefCell::new((0..LANE_COUNT).map(OpenLane::new).collect()),
            due_ticket: Cell::new(FIRST_TICKET),
            closed_ticket: Cell::new(FIRST_TICKET),
            has_ended: Cell::new(false),
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

    /// Server, when it begins: what was posted to an earlier life and not taken up, each lane's in order, and writes in
    /// theirs.
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
        self.words.at(LAYOUT_WORD).store(POSTS_LAYOUT.to_le(), Ordering::Release);
    }

    /// Server, when it ends, after a step in which it has taken up everything: nobody posts any more, and whatever
    /// version begins next finds nothing left.
    pub fn end(&self) {
        self.has_ended.set(true);
        self.refuse();
        if (0..LANE_COUNT).all(|lane| self.waiting_in(lane).next().is_none()) {
            self.words.at(LAYOUT_WORD).store((POSTS_LAYOUT | NOTHING_LEFT).to_le(), Ordering::Release);
        }
    }

    /// Gives the client `owner`, which is not 0, a lane. `mapping_lock` is what it maps the region through. Nothing
    /// when all lanes are taken, or it can't be lent.
    pub(crate) fn open_lane(&self, owner: u64, mapping_lock: &Rc<dyn MappingLock>) -> Option<usize> {
        let mut open = self.open.borrow_mut();
        let lane = (0..LANE_COUNT).find(|lane| {
            let (offset, size) = lane_range(*lane);
            !open.iter().any(|open| open.lane == *lane) && self.region.borrowed(offset, size).is_none()
        })?;
        let (offset, size) = lane_range(lane);
        mapping_lock.hold(offset, size).ok()?;
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
    pub(crate) fn mapping_lock(&self) -> io::Result<Rc<dyn MappingLock>> {
        self.region.mapping_lock()
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

    /// Looks for what was posted, before a step begins: what is found can be taken up (`next`) while others still post.
    /// Whether there is something.
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
        let word = if self.has_ended.get() { REFUSED } else { word };
        self.words.at(FORBIDDEN_WORD).store(word, Ordering::Release);
    }

    /// Something that was posted before the last look. Of one client what it posted first, of several writes that with
    /// the lowest number.
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
    pub(crate) fn seen_by(self: &Rc<Self>, mapping_lock: Rc<dyn MappingLock>) -> Lane {
        let mut lane = Lane::new(self.words, Rc::new((self.clone(), mapping_lock)));
        // Nothing else happens in a simulation meanwhile.
        (lane.ignores_claims, lane.yields_max) = (self.ignores_claims.get(), 0);
        lane
    }
}
