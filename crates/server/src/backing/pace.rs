//! When changes go behind by themselves, and how fast. Each server judges for itself, by what clients ask of it: it
//! asks the home of the root for a flush when it has changes and its policy says that it is time, and it holds up its
//! own part of one, call by call, when that is over. Flushes that somebody waits for are held up by nothing.
//!
//! The quiet spell after which a server counts as idle is learnt from the gaps between accesses: it is the shortest one
//! that, once it has passed without any, was mostly followed by three times as much of quiet.
//!
//! Invariants
//! 1. What is begun at all is done or given up, and never waits for anything that waits for it: a task that is held up
//!    here holds no lock and no turn.
//! 2. Without a backing tree nothing of this costs anything, and nothing wakes a server that has no changes.

use super::BackingUse;
use crate::core::{Core, Failure};
use crate::process::options::{FlushPolicy, Flushing};
use reactor::{Class, Nanos};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use wire::messages::{AskForFlushReply, AskForFlushRequest, flush_patience};
use wire::{FileId, Operation};

const MILLISECOND: Nanos = 1_000_000;
/// Gaps are counted by powers of two of a millisecond, from this one up to this number of them.
const GAP_UNIT: Nanos = MILLISECOND;
const GAP_KINDS: usize = 16;
/// Gaps after which old ones count half.
const GAPS_KEPT: u32 = 256;
/// Kinds of gaps of which one may become the spell: 4 ms to 1 s.
const SPELLS: std::ops::RangeInclusive<usize> = 2..=10;
/// The spell while nothing is known of gaps.
const SPELL_FIRST: Nanos = 64 * MILLISECOND;
/// How long whoever is held up waits at most before he looks again whether somebody waits for the flush now.
pub const LOOK_NS: Nanos = 20 * MILLISECOND;
/// Between two questions for a flush while nothing changes that: it grows from the one to the other.
const ASK_PAUSE_MIN: Nanos = 100 * MILLISECOND;
const ASK_PAUSE_MAX: Nanos = 30_000 * MILLISECOND;
const CLOSE_PAUSE_MAX: Nanos = 1_000 * MILLISECOND;
/// What is held back for its age has one part in so many of the time.
const BUSY_PARTS: Nanos = 10;
const BUSY_REST_MAX: Nanos = 200 * MILLISECOND;
/// Bytes that may go at once, of a rate.
const BURST_NS: Nanos = 50 * MILLISECOND;

/// What accesses were like, by the gaps between them: how many were of 2^i ms up to twice that.
#[derive(Default)]
struct Gaps {
    counts: [u32; GAP_KINDS],
}

impl Gaps {
    fn note(&mut self, gap: Nanos) {
        let Some(kind) = (gap / GAP_UNIT).checked_ilog2() else { return };
        self.counts[(kind as usize).min(GAP_KINDS - 1)] += 1;
        if self.counts.iter().sum::<u32>() >= GAPS_KEPT {
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
    }

    /// Quiet after which most gaps go on for three times as long.
    fn spell(&self) -> Nanos {
        let from = |kind: usize| self.counts[kind..].iter().sum::<u32>();
        let is_over = |kind: &usize| from(*kind) > 0 && 4 * from(kind + 2) >= 3 * from(*kind);
        match SPELLS.clone().find(is_over) {
            Some(kind) => GAP_UNIT << kind,
            None if from(*SPELLS.start()) == 0 => SPELL_FIRST,
            None => GAP_UNIT << SPELLS.end(),
        }
    }
}

/// When this server's part of flushes goes on that nobody waits for.
pub struct Pace {
    flushing: Flushing,
    last_access: Cell<Nanos>,
    gaps: RefCell<Gaps>,
    /// Since when something has been different here, at a stretch; 0 while nothing is.
    changed_since: Cell<Nanos>,
    is_watching: Cell<bool>,
    /// Closes of files that were told.
    closes: Cell<u64>,
    /// When a rate, or work beside accesses, lets the next bytes go, and when the last ones went.
    next_at: Cell<Nanos>,
    went_at: Cell<Nanos>,
    /// Turns that were held up, for reports.
    held: Cell<u64>,
}

/// How patient whoever waits for what is being carried is (`flush_patience`); tasks look again and again.
pub type Patience = Rc<Cell<u8>>;

impl Pace {
    pub fn new(flushing: Flushing) -> Pace {
        Pace {
            flushing,
            last_access: Cell::new(0),
            gaps: RefCell::default(),
            changed_since: Cell::new(0),
            is_watching: Cell::new(false),
            closes: Cell::new(0),
            next_at: Cell::new(0),
            went_at: Cell::new(0),
            held: Cell::new(0),
        }
    }

    pub fn policy(&self) -> FlushPolicy {
        self.flushing.policy
    }

    /// Files that are carried at a time.
    pub fn writers(&self) -> usize {
        self.flushing.writers as usize
    }

    /// The quiet after which this server counts as idle.
    pub fn spell(&self) -> Nanos {
        match self.flushing.idle {
            0 => self.gaps.borrow().spell(),
            idle => idle,
        }
    }

    /// Turns that were held up since the start.
    pub fn held(&self) -> u64 {
        self.held.get()
    }

    /// A client uses this server.
    pub fn note_access(&self, now: Nanos) {
        let gap = now.saturating_sub(self.last_access.replace(now));
        if gap >= GAP_UNIT && self.flushing.idle == 0 {
            self.gaps.borrow_mut().note(gap);
        }
    }

    /// A file was closed.
    pub fn note_close(&self) {
        self.closes.set(self.closes.get() + 1);
    }

    /// For how long this server is not idle yet; nothing if it is.
    fn quiet_in(&self, now: Nanos) -> Option<Nanos> {
        let quiet_at = self.last_access.get() + self.spell();
        (self.flushing.policy == FlushPolicy::Idle && now < quiet_at).then(|| quiet_at - now)
    }

    /// Whether something here has been different for so long that it goes even while clients are at work.
    fn is_old(&self, now: Nanos) -> bool {
        let since = self.changed_since.get();
        since > 0 && now.saturating_sub(since) >= self.flushing.age
    }

    /// Whether something may be begun of that patience.
    pub fn may_begin(&self, now: Nanos, patience: u8) -> bool {
        patience < flush_patience::IDLE || self.quiet_in(now).is_none()
    }

    /// For how long the next bytes are held up.
    fn wait_time(&self, now: Nanos, patience: u8) -> Option<Nanos> {
        if let Some(quiet_in) = self.quiet_in(now)
            && patience == flush_patience::IDLE
        {
            return Some(quiet_in);
        }
        let next_at = self.next_at.get();
        (next_at > now + BURST_NS).then(|| next_at - now - BURST_NS)
    }

    /// So many bytes go now.
    fn note_bytes(&self, now: Nanos, bytes: u64) {
        let mut next_at = self.next_at.get().max(now);
        if let Some(time) = (bytes * 1_000_000_000).checked_div(self.flushing.rate) {
            next_at += time;
        }
        self.next_at.set(next_at);
        self.went_at.set(now);
    }

    /// The bytes that went last have gone: beside accesses nothing goes for nine times as long as that took.
    fn note_gone(&self, now: Nanos) {
        if self.quiet_in(now).is_some() && self.went_at.get() > 0 {
            let took = now.saturating_sub(self.went_at.replace(0));
            let rest = (took * (BUSY_PARTS - 1)).clamp(MILLISECOND, BUSY_REST_MAX);
            self.next_at.set(self.next_at.get().max(now + BURST_NS + rest));
        }
    }
}

/// Whether a request is a use of the file system by a client, as far as flushes in idle spells step back for it.
pub fn is_access(operation: Operation) -> bool {
    use Operation as O;
    !matches!(
        operation,
        O::Ping
            | O::Statistics
            | O::Shutdown
            | O::Flush
            | O::CacheState
            | O::ListCarried
            | O::CompareShare
            | O::Close
            | O::CloseMany
            | O::Reclaim
            | O::TreeLog
            | O::Check
            | O::KeepEntries
            | O::AwaitLock
            | O::ReturnPermit
            | O::NoteCounters
            | O::StatFileSystem
    )
}

impl BackingUse {
    /// A client uses this server, at a time.
    pub fn note_access(&self, operation: Operation, now: Nanos) {
        if is_access(operation) {
            self.pace.note_access(now);
        }
        if matches!(operation, Operation::Close | Operation::CloseMany) {
            self.pace.note_close();
        }
    }
}

impl Core {
    /// Waits until the next bytes of a flush may go, unless somebody waits for it.
    pub(super) async fn flush_turn(&self, patience: &Patience, bytes: u64) {
        let pace = &self.backing().pace;
        let mut is_held = false;
        pace.note_gone(self.reactor.now());
        while patience.get() > flush_patience::NONE {
            let now = self.reactor.now();
            let Some(wait) = pace.wait_time(now, patience.get()) else {
                pace.note_bytes(now, bytes);
                break;
            };
            is_held = true;
            self.reactor.sleep(wait.min(LOOK_NS)).await;
        }
        if is_held {
            pace.held.set(pace.held.get() + 1);
        }
    }

    /// Whether something here is not behind as it is.
    pub(super) fn has_backing_changes(&self) -> bool {
        let tables = self.tables.borrow();
        tables.backing.written().len() > 0 || tables.backing.differing() > 0 || tables.made_here() > 0
    }

    /// Something has changed, or this life begins: from now on it is seen to that what is different here goes behind.
    pub fn watch_changes(self: &Rc<Self>) {
        let Some(backing) = &self.backing else { return };
        let pace = &backing.pace;
        if !pace.policy().is_automatic() || pace.is_watching.get() || !self.has_backing_changes() {
            return;
        }
        pace.is_watching.set(true);
        pace.changed_since.set(self.reactor.now().max(1));
        let core = self.clone();
        self.reactor.spawn(Class::Background, async move {
            core.ask_while_changed().await;
            let pace = &core.backing().pace;
            pace.changed_since.set(0);
            pace.is_watching.set(false);
        });
    }

    /// Asks for flushes, when it is time for them, as long as there is something to carry.
    async fn ask_while_changed(self: &Rc<Self>) {
        let pace = &self.backing().pace;
        let mut pause = ASK_PAUSE_MIN;
        let mut known = None;
        while self.has_backing_changes() && !self.life.is_stopping() {
            let now = self.reactor.now();
            let patience = if pace.is_old(now) { flush_patience::OLD } else { flush_patience::IDLE };
            if !pace.may_begin(now, patience) {
                let wait = pace.quiet_in(now).unwrap_or(ASK_PAUSE_MIN);
                self.reactor.sleep(wait.clamp(MILLISECOND, ASK_PAUSE_MIN)).await;
                continue;
            }
            // One that can't be asked is asked again.
            let _: Result<AskForFlushReply, Failure> = self.ask_for_automatic_flush(patience).await;
            // What can't go is tried again, more and more rarely.
            let changes = self.change_count();
            // Not all closes are told: clients of this machine may have files open without a word.
            let longest = if pace.policy() == FlushPolicy::OnClose { CLOSE_PAUSE_MAX } else { ASK_PAUSE_MAX };
            pause = if known == Some(changes) { (2 * pause).min(longest) } else { ASK_PAUSE_MIN };
            known = Some(changes);
            let limit = self.reactor.now() + pause;
            while self.reactor.now() < limit && self.has_backing_changes() && known == Some(self.change_count()) {
                self.reactor.sleep(ASK_PAUSE_MIN.min(limit - self.reactor.now()).max(MILLISECOND)).await;
            }
        }
    }

    /// Changes whenever something is changed that has to go behind, or has gone, or may go since a file was closed.
    fn change_count(&self) -> (u64, [(&'static str, u64); 6]) {
        let backing = self.backing();
        (backing.counters.changes.get() + backing.pace.closes.get(), self.backing_changes())
    }

    /// Has a flush begun, unless one is under way. How far flushes have come.
    pub(super) async fn ask_for_automatic_flush(self: &Rc<Self>, patience: u8) -> Result<AskForFlushReply, Failure> {
        match self.cluster.home_of(FileId::ROOT).filter(|home| *home != self.index) {
            Some(home) => {
                let request = AskForFlushRequest { patience };
                self.peers.call(home, Operation::AskForFlush, &request, None).await
            }
            None => Ok(self.begin_automatic_flush(patience)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(idle: Nanos) -> Pace {
        Pace::new(Flushing { policy: FlushPolicy::Idle, idle, ..Flushing::default() })
    }

    #[test]
    fn spells_are_learnt_from_gaps() {
        let pace = pace(0);
        assert_eq!(pace.spell(), SPELL_FIRST);
        // Phases of computing of 3 s, between them writes with 10 ms from one to the next.
        let mut now = 1_000 * MILLISECOND;
        for _ in 0..20 {
            for _ in 0..10 {
                now += 10 * MILLISECOND;
                pace.note_access(now);
            }
            now += 3_000 * MILLISECOND;
            pace.note_access(now);
        }
        assert_eq!(pace.spell(), 16 * MILLISECOND, "gaps of 8 to 16 ms end, longer ones last");
        assert!(!pace.may_begin(now + 15 * MILLISECOND, flush_patience::IDLE));
        assert!(pace.may_begin(now + 16 * MILLISECOND, flush_patience::IDLE));
    }

    #[test]
    fn spells_without_pattern_are_long() {
        let pace = pace(0);
        let mut now = 1;
        for i in 0..100 {
            now += (4 + 4 * (i % 3)) * MILLISECOND;
            pace.note_access(now);
        }
        assert_eq!(pace.spell(), GAP_UNIT << SPELLS.end(), "no quiet has lasted yet");
    }

    #[test]
    fn what_is_old_goes_in_a_part_of_the_time() {
        let pace = pace(SPELL_FIRST);
        let mut now = 2_000 * MILLISECOND;
        let (begin, mut calls) = (now, 0);
        while now < begin + 1_000 * MILLISECOND {
            pace.note_access(now);
            match pace.wait_time(now, flush_patience::OLD) {
                Some(wait) => now += wait,
                None => {
                    pace.note_bytes(now, 1 << 18);
                    now += 2 * MILLISECOND;
                    pace.note_access(now);
                    pace.note_gone(now);
                    calls += 1;
                }
            }
        }
        assert!((20..=60).contains(&calls), "{calls} calls of 2 ms in a second");
    }

    #[test]
    fn rates_hold() {
        let flushing = Flushing { policy: FlushPolicy::Immediate, rate: 10 << 20, ..Flushing::default() };
        let pace = Pace::new(flushing);
        let (mut now, mut bytes) = (1, 0u64);
        while now < 2_000 * MILLISECOND {
            match pace.wait_time(now, flush_patience::IDLE) {
                Some(wait) => now += wait,
                None => {
                    pace.note_bytes(now, 1 << 18);
                    bytes += 1 << 18;
                }
            }
        }
        let rate = bytes / 2;
        assert!((10 << 20..12 << 20).contains(&rate), "{rate}");
    }
}
