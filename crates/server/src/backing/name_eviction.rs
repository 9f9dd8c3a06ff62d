//! Names that were taken up go when there are more of them than an eighth of the store has room for, those first that
//! nobody has asked for lately: they are forgotten, and taken up anew when somebody asks, by another id. The order is
//! that of chunks (`clean_queue`), and as with them candidates are taken from sight some time before they go, for what
//! clients of this machine know by themselves no server sees.
//!
//! Invariants
//! 1. Only what is behind as it was taken up goes: nothing of it was ever changed here, and it has one name, no
//!    extended attributes, and nobody who has it open (`may_forget`).
//! 2. Names of a directory that is being listed, or was a moment ago, stay: whoever lists it page by page needs all of
//!    them; and so do those that were just taken up or looked at. So there may be as many more than the bound.

use super::add;
use super::table::TakenUp;
use crate::core::{Core, Failure};
use crate::journal::tables::Tables;
use reactor::{Class, Nanos};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use wire::FileId;

/// Bytes that a name takes with its inode and place, in the tables and in what clients of this machine see, at most
/// (notes/2026-11-29-check.md has 600 of 200,000 names and 740 of 1,000,000).
pub const NAME_SIZE: u64 = 768;
/// Names may take this part of the store, and so many in any case.
const STORE_PARTS: u64 = 8;
const NAMES_MIN: u64 = 4096;
/// This part of them goes at a time.
const STEP_PARTS: u64 = 16;
/// Names that go, or are looked at, in one step of the loop.
const STEP_COUNT: usize = 256;
/// Names that are looked at before a pause, if they are in use.
const LOOKS_MAX: usize = 1 << 14;
/// Names out of sight that are next to go: one in so many, and bounds of that.
const NEXT_PARTS: u64 = 32;
const NEXT_MIN: u64 = 64;
const NEXT_MAX: u64 = 4096;
/// For how long names of a directory stay after it was listed.
const LISTED_NS: Nanos = 30_000_000_000;
/// Whoever was told of a name that was just taken up may be about to open it.
const YOUNG_NS: Nanos = 1_000_000_000;
/// Between two attempts where all that there are were in use.
const PAUSE_NS: Nanos = 1_000_000_000;

/// See the module.
#[derive(Default)]
pub struct NameEviction {
    is_running: Cell<bool>,
    /// Candidates that were taken from sight, in the order in which they go.
    next: RefCell<VecDeque<u64>>,
    pub evicted: Cell<u64>,
}

/// What became of one.
enum Candidate {
    Gone,
    /// It is considered again.
    InUse,
    /// It never goes.
    Unfit,
}

impl Core {
    /// Names that were taken up and that this server keeps, but for those that are in use.
    pub fn taken_up_names_max(&self) -> u64 {
        let wanted = self.options.bounds.taken_up_names as u64;
        (self.store.usage().size / STORE_PARTS / NAME_SIZE).max(NAMES_MIN).min(wanted)
    }

    /// Names that were taken up and may go some time, or might: of those that never go it comes out in time.
    fn evictable_names(&self) -> u64 {
        self.tables.borrow().backing.offered_names() + self.backing().names.next.borrow().len() as u64
    }

    /// Has names go if there are too many.
    pub(super) fn keep_names(self: &Rc<Self>) {
        let names = &self.backing().names;
        if self.evictable_names() <= self.taken_up_names_max() || names.is_running.replace(true) {
            return;
        }
        let core = self.clone();
        self.reactor.spawn(Class::Background, async move {
            let max = core.taken_up_names_max();
            while !core.life.is_stopping() && core.evictable_names() > max {
                // Where that fails, it is tried again.
                let gone = core.evict_names(max - max / STEP_PARTS).await.unwrap_or(0);
                if gone == 0 {
                    core.reactor.sleep(PAUSE_NS).await;
                }
            }
            core.backing().names.is_running.set(false);
        });
    }

    /// Forgets names until there are no more than a number, or many were looked at. How many have gone.
    async fn evict_names(self: &Rc<Self>, goal: u64) -> Result<u64, Failure> {
        let deadline = self.reactor.now() + self.options.timeout;
        let caller = self.flush_caller(deadline);
        let _change = self.begin_change(&caller);
        self.await_recalled_entries(&caller).await?;
        let (mut gone, mut left) = (0, LOOKS_MAX);
        while left > 0 && self.evictable_names() > goal {
            if self.is_journal_low() {
                self.until_journal_has_room(0, deadline).await?;
            }
            self.take_names_from_sight();
            if self.backing().names.next.borrow().is_empty() {
                break;
            }
            for _ in 0..STEP_COUNT.min(left) {
                left -= 1;
                let Some(id) = self.backing().names.next.borrow_mut().pop_front() else { break };
                match self.evict_name(FileId(id))? {
                    Candidate::Gone => gone += 1,
                    Candidate::InUse => self.tables.borrow_mut().backing.offer_name(id),
                    Candidate::Unfit => {}
                }
            }
            self.reactor.yield_now().await;
        }
        add(&self.backing().names.evicted, gone);
        Ok(gone)
    }

    fn take_names_from_sight(&self) {
        let next = &self.backing().names.next;
        let mut tables = self.tables.borrow_mut();
        let limit = (tables.backing.offered_names() / NEXT_PARTS).clamp(NEXT_MIN, NEXT_MAX) as usize;
        let mut looks = STEP_COUNT;
        while next.borrow().len() < limit && looks > 0 {
            looks -= 1;
            let Some(id) = tables.backing.next_name(LOOKS_MAX) else { return };
            if let (Some(publisher), Some(place)) = (&tables.publisher, tables.backing.place(FileId(id))) {
                publisher.invalidate_name(place.parent, place.name());
            }
            next.borrow_mut().push_back(id);
        }
    }

    /// Forgets a name if nobody needs it.
    fn evict_name(self: &Rc<Self>, id: FileId) -> Result<Candidate, Failure> {
        let (directory, name, agreed) = {
            let tables = self.tables.borrow();
            let Some(place) = tables.backing.place(id) else { return Ok(Candidate::Unfit) };
            let (directory, name) = (place.parent, place.name().to_vec());
            let agreed = self.agreed_name(&tables, directory, &name).filter(|agreed| agreed.id == id);
            let is_pristine = tables.backing.get(id).is_some_and(TakenUp::is_unchanged)
                && tables.backing.difference(directory, &name).is_none()
                && !super::keeps_extended(&tables, id);
            let Some(agreed) = agreed.filter(|_| is_pristine) else {
                // A directory, or it was changed here.
                return Ok(Candidate::Unfit);
            };
            let young = self.reactor.now().saturating_sub(YOUNG_NS);
            let is_wanted = tables.backing.takes_name_use(id)
                || tables.backing.get(id).is_some_and(|known| known.checked() > young)
                || self.is_being_listed(&tables, directory)
                || self.lacks_share(&tables, directory);
            if is_wanted {
                return Ok(Candidate::InUse);
            }
            (directory, name, agreed)
        };
        let is_gone = self.recall_delegations(id).is_none() && self.forget_now(directory, &name, &agreed)?;
        Ok(if is_gone { Candidate::Gone } else { Candidate::InUse })
    }

    fn is_being_listed(&self, tables: &Tables, directory: FileId) -> bool {
        let now = self.reactor.now();
        let is_young = |used: Nanos| used > 0 && now.saturating_sub(used) < LISTED_NS;
        self.backing().listings.borrow().contains_key(&directory.0)
            || tables.backing.listed_directory(directory).is_some_and(|listed| is_young(listed.used.get()))
    }
}
