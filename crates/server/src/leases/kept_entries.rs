//! Delegations of all entries and attributes of this server to clients that keep what they are told: mounts, whose
//! kernels keep it (docs/kept-entries.md).
//!
//! A client keeps something only while it holds the delegations of all servers. So it is enough that a change that
//! others ask for is recalled at the server that is asked: what that has others do for it is covered until the request
//! has ended, for until then the client gets no delegation here.
//!
//! Invariants
//! 1. Nothing that a client asks for changes while another client may hold a delegation of this server: the request
//!    waits until the holder has confirmed that it has forgotten everything, or its delegation has ended by time.
//! 2. None is given while a change is under way here that another client asked for, or that the holder itself has given
//!    up; nor while a change of names, rights or sizes that several servers have a part in is undecided here.
//! 3. A delegation ends here later than at its holder: he counts from the moment at which he sent a request, and clocks
//!    differ by less than `MARGIN`.
//! 4. Who may hold one is journalled, and durable, before he is told. A life of this server that finds that waits for
//!    him, or the time of a delegation, before its first change; after a loss of power before it serves at all.
//! 5. While one may be held nobody submits changes (`Core::may_submit`): who submits does not wait.

use crate::coordination::intents::Intent;
use crate::core::{Caller, Core, Failure, Notice, until};
use crate::journal::records::Record;
use crate::process::options::{Bounds, EntryKeeping};
use crate::sessions::service::{Request, finish};
use reactor::{Class, Nanos};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use wire::messages::{KeepEntriesReply, KeepEntriesRequest, kept};
use wire::{Decode, Encode};

/// A delegation is kept to for a time longer than it was given for by this part of it.
const MARGIN: Nanos = 8;
/// A request is answered after this part of it at the latest.
const PATIENCE: Nanos = 8;
/// Between two looks whether changes have ended.
const LOOK_NS: Nanos = 10_000_000;
const NANOS_PER_MS: Nanos = 1_000_000;

struct Holder {
    session: u64,
    number: u64,
    /// From then on it has ended by time.
    until: Nanos,
    /// Told when it is called back.
    recalled: Notice<()>,
    /// Told when it has ended; whoever is told looks again.
    ended: Notice<()>,
    is_ending: bool,
}

/// Changes that are under way, each by a number that rises, with the session that asked for it.
#[derive(Default)]
struct Changes {
    next: u64,
    under_way: Vec<(u64, u64)>,
}

/// See the module.
pub struct KeptEntries {
    keeping: EntryKeeping,
    holders: RefCell<Vec<Holder>>,
    changes: RefCell<Changes>,
    /// Sessions that wait for one, each with the number of its last request for it; of an earlier one nothing comes.
    asking: RefCell<Vec<(u64, u64)>>,
    next_asking: Cell<u64>,
    /// The last change and its session, and the last one of any other session.
    latest: Cell<[(u64, Nanos); 2]>,
    /// Sessions that may hold one of an earlier life, and what is told when none does any more.
    earlier: RefCell<Option<(BTreeSet<u64>, Notice<()>)>>,
    stopped: Notice<()>,
    /// For tests: changes do not wait.
    hurries: Cell<bool>,
    given_count: Cell<u64>,
    recalled_count: Cell<u64>,
    /// That ended by time while a change waited.
    expired_count: Cell<u64>,
}

/// A change that is under way, until this is dropped.
pub struct ChangeUnderWay {
    core: Rc<Core>,
    number: u64,
}

impl Drop for ChangeUnderWay {
    fn drop(&mut self) {
        let mut changes = self.core.leases.kept_entries.changes.borrow_mut();
        changes.under_way.retain(|(number, _)| *number != self.number);
    }
}

/// A request that waits for a delegation.
struct Asking<'k> {
    kept: &'k KeptEntries,
    number: u64,
}

impl<'k> Asking<'k> {
    fn new(kept: &'k KeptEntries, session: u64) -> Asking<'k> {
        let number = kept.next_asking.replace(kept.next_asking.get() + 1);
        kept.asking.borrow_mut().push((session, number));
        Asking { kept, number }
    }

    /// Whether the session has asked for nothing else since.
    fn counts(&self) -> bool {
        self.kept.asking.borrow().iter().any(|(_, number)| *number == self.number)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.kept.asking.borrow_mut().retain(|(_, number)| *number != self.number);
    }
}

fn add(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl KeptEntries {
    pub fn new(bounds: &Bounds) -> KeptEntries {
        KeptEntries {
            keeping: bounds.entry_keeping,
            holders: RefCell::default(),
            changes: RefCell::default(),
            asking: RefCell::default(),
            next_asking: Cell::new(0),
            latest: Cell::new([(0, 0); 2]),
            earlier: RefCell::default(),
            stopped: Notice::new(),
            hurries: Cell::new(false),
            given_count: Cell::new(0),
            recalled_count: Cell::new(0),
            expired_count: Cell::new(0),
        }
    }

    /// Whether there is nothing to look for: the common case.
    pub fn is_idle(&self) -> bool {
        self.asking.borrow().is_empty() && !self.may_be_held()
    }

    /// Whether anybody may hold a delegation.
    pub fn may_be_held(&self) -> bool {
        !self.holders.borrow().is_empty() || self.earlier.borrow().is_some()
    }

    /// Takes in that a session changes something; 0 for one that is not known.
    pub fn note_change(&self, session: u64, now: Nanos) {
        let [(last, at), other] = self.latest.get();
        self.latest.set([(session, now), if last == session { other } else { (last, at) }]);
    }

    /// When somebody else has changed something the last time.
    fn last_change_by_others(&self, session: u64) -> Nanos {
        let [latest, other] = self.latest.get();
        if latest.0 == session { other.1 } else { latest.1 }
    }

    /// For how long a delegation is kept to here.
    pub fn kept_for(&self) -> Nanos {
        self.keeping.time + self.keeping.time / MARGIN
    }

    /// Bytes that are held at most.
    pub fn memory_max(&self, request_count_max: u64) -> u64 {
        let notices = 2 * 96;
        self.keeping.holders as u64 * (size_of::<Holder>() as u64 * 2 + notices + 64)
            + request_count_max * 2 * size_of::<(u64, u64)>() as u64
    }

    /// Delegations given, called back, ended by time while somebody waited; and how many there are.
    pub fn numbers(&self) -> [(&'static str, u64); 4] {
        [
            ("entry_delegations_given", self.given_count.get()),
            ("entry_delegations_recalled", self.recalled_count.get()),
            ("entry_delegations_expired", self.expired_count.get()),
            ("entry_delegations", self.holders.borrow().len() as u64),
        ]
    }

    /// Has this server break its word, for tests of the simulation's checker.
    pub fn hurry(&self) {
        self.hurries.set(true);
    }

    /// From now on none is given, and whoever holds one is told to forget.
    pub fn stop(&self) {
        self.stopped.tell(());
        let recalled: Vec<Notice<()>> = self.holders.borrow().iter().map(|holder| holder.recalled.clone()).collect();
        recalled.iter().for_each(|recalled| recalled.tell(()));
    }

    fn is_held(&self, session: u64, number: u64) -> bool {
        self.holders.borrow().iter().any(|holder| (holder.session, holder.number) == (session, number))
    }

    /// The delegation that a session may hold.
    fn number_of(&self, session: u64) -> Option<u64> {
        self.holders.borrow().iter().find(|holder| holder.session == session).map(|holder| holder.number)
    }

    fn reply(&self, state: u8, number: u64) -> KeepEntriesReply {
        KeepEntriesReply { state, number, time_ms: (self.keeping.time / NANOS_PER_MS) as u32 }
    }
}

impl Core {
    /// Notes that a change is under way that a client asked for.
    pub fn begin_change(self: &Rc<Self>, caller: &Caller) -> ChangeUnderWay {
        let mut changes = self.leases.kept_entries.changes.borrow_mut();
        let number = changes.next;
        changes.next += 1;
        changes.under_way.push((number, caller.peer.session));
        ChangeUnderWay { core: self.clone(), number }
    }

    /// Calls back the delegations of all others than who is about to change something. Told when one has ended; who is
    /// told looks again. Nothing when none is held: what happens before the next await is covered.
    pub fn recall_entries(self: &Rc<Self>, session: u64) -> Option<Notice<()>> {
        let kept = &self.leases.kept_entries;
        if kept.is_idle() {
            return None;
        }
        let now = self.reactor.now();
        kept.note_change(session, now);
        if let Some((_, ended)) = &*kept.earlier.borrow() {
            return (!kept.hurries.get()).then(|| ended.clone());
        }
        let (mut first, mut told) = (None, Vec::new());
        for holder in kept.holders.borrow_mut().iter_mut().filter(|holder| holder.session != session) {
            if !std::mem::replace(&mut holder.is_ending, true) {
                told.push((holder.session, holder.number, holder.until, holder.recalled.clone()));
            }
            first.get_or_insert_with(|| holder.ended.clone());
        }
        for (session, number, until, recalled) in told {
            add(&kept.recalled_count);
            recalled.tell(());
            let core = self.clone();
            self.reactor.spawn(Class::Metadata, async move {
                core.reactor.sleep_until(until).await;
                if core.end_entries(session, number) {
                    add(&core.leases.kept_entries.expired_count);
                }
            });
        }
        first.filter(|_| !kept.hurries.get())
    }

    /// Waits until nobody else holds a delegation. To be called while the change is noted as under way.
    pub async fn await_recalled_entries(self: &Rc<Self>, caller: &Caller) -> Result<(), Failure> {
        while let Some(ended) = self.recall_entries(caller.peer.session) {
            let words = "a mount that keeps entries, and what it has to forget first";
            self.wait_until(caller.deadline, words, ended.wait()).await?;
        }
        Ok(())
    }

    /// A delegation has ended. False if it had before.
    fn end_entries(self: &Rc<Self>, session: u64, number: u64) -> bool {
        let kept = &self.leases.kept_entries;
        let place = {
            let holders = kept.holders.borrow();
            holders.iter().position(|holder| (holder.session, holder.number) == (session, number))
        };
        let Some(place) = place else { return false };
        let holder = kept.holders.borrow_mut().remove(place);
        // Where that fails, the next life waits for it in vain.
        let _: Result<(), Failure> = self.change([Record::EntriesKept { session, held: false }]);
        holder.ended.tell(());
        true
    }

    /// A session has said that it holds nothing of an earlier life's.
    fn end_earlier_entries(self: &Rc<Self>, session: u64) {
        let kept = &self.leases.kept_entries;
        let is_over = {
            let mut earlier = kept.earlier.borrow_mut();
            let Some((sessions, _)) = &mut *earlier else { return };
            if !sessions.remove(&session) {
                return;
            }
            sessions.is_empty()
        };
        let _: Result<(), Failure> = self.change([Record::EntriesKept { session, held: false }]);
        if is_over && let Some((_, ended)) = kept.earlier.take() {
            ended.tell(());
        }
    }

    /// At the start: what an earlier life gave is held until who holds it says otherwise, or its time is over.
    pub fn await_earlier_entries(self: &Rc<Self>) {
        let sessions = self.tables.borrow().entry_keepers.clone();
        if sessions.is_empty() {
            return;
        }
        self.leases.kept_entries.earlier.replace(Some((sessions, Notice::new())));
        let core = self.clone();
        self.reactor.spawn(Class::Metadata, async move {
            core.reactor.sleep(core.leases.kept_entries.kept_for()).await;
            let left: Vec<u64> =
                core.leases.kept_entries.earlier.borrow().iter().flat_map(|(left, _)| left.iter().copied()).collect();
            left.into_iter().for_each(|session| core.end_earlier_entries(session));
        });
    }

    /// `KeepEntries`.
    pub fn keep_entries(self: &Rc<Self>, request: Request) {
        let core = self.clone();
        self.reactor.spawn(Class::Metadata, async move {
            match KeepEntriesRequest::from_bytes(&request.incoming.params) {
                Ok(params) => {
                    let reply = core.tell_of_entries(&params).await;
                    finish(&core, request, Ok(&reply.to_bytes()));
                }
                Err(malformed) => finish(&core, request, Err(&malformed.into())),
            }
        });
    }

    async fn tell_of_entries(self: &Rc<Self>, request: &KeepEntriesRequest) -> KeepEntriesReply {
        let session = request.session;
        self.leases.kept_entries.asking.borrow_mut().retain(|(asking, _)| *asking != session);
        let kept = &self.leases.kept_entries;
        let limit = self.reactor.now() + kept.keeping.time / PATIENCE;
        if request.held != 0 {
            return self.renew_entries(session, request.held, limit).await;
        }
        self.end_earlier_entries(session);
        if request.ended != 0 {
            self.end_entries(session, request.ended);
        }
        if !request.wanted {
            return kept.reply(kept::NONE, 0);
        }
        // What comes to be known of a backing tree is no change that anybody asks for.
        if kept.keeping.time == 0 || kept.keeping.holders == 0 || self.backing.is_some() {
            return kept.reply(kept::NEVER, 0);
        }
        let asking = Asking::new(kept, session);
        let first_new = kept.changes.borrow().next;
        let mut is_noted = false;
        loop {
            let now = self.reactor.now();
            if !asking.counts() {
                return kept.reply(kept::NONE, 0);
            }
            if let Some(number) = kept.number_of(session) {
                // That was lost on the way, and perhaps has been called back.
                return kept.reply(kept::ENDED, number);
            }
            is_noted &= self.tables.borrow().entry_keepers.contains(&session);
            match self.entries_not_before(session, first_new, now) {
                Some(at) if at.max(now) >= limit => {
                    until(&self.reactor, limit, kept.stopped.wait()).await;
                    return kept.reply(kept::NONE, 0);
                }
                Some(at) => {
                    if until(&self.reactor, at, kept.stopped.wait()).await.is_some() {
                        return kept.reply(kept::NONE, 0);
                    }
                }
                None if is_noted => return self.give_entries(session),
                None => {
                    let noted = self.change([Record::EntriesKept { session, held: true }]);
                    is_noted = noted.is_ok() && self.durable().await.is_ok();
                    if !is_noted {
                        return kept.reply(kept::NONE, 0);
                    }
                }
            }
        }
    }

    /// Gives a delegation from now on (invariants 2 and 4 hold).
    fn give_entries(&self, session: u64) -> KeepEntriesReply {
        let kept = &self.leases.kept_entries;
        // Never used twice, and by no other life.
        let number = self.reactor.random() | 1;
        add(&kept.given_count);
        kept.holders.borrow_mut().push(Holder {
            session,
            number,
            until: self.reactor.now() + kept.kept_for(),
            recalled: Notice::new(),
            ended: Notice::new(),
            is_ending: false,
        });
        kept.reply(kept::HELD, number)
    }

    /// Keeps to a delegation for its whole time from now on, unless it is called back; and tells when that happens.
    async fn renew_entries(self: &Rc<Self>, session: u64, number: u64, limit: Nanos) -> KeepEntriesReply {
        let kept = &self.leases.kept_entries;
        let now = self.reactor.now();
        let recalled = {
            let mut holders = kept.holders.borrow_mut();
            let mut holding = holders.iter_mut();
            let holder = holding.find(|holder| (holder.session, holder.number) == (session, number));
            let Some(holder) = holder.filter(|holder| !holder.is_ending && now < holder.until) else {
                return kept.reply(kept::ENDED, number);
            };
            holder.until = now + kept.kept_for();
            holder.recalled.clone()
        };
        match until(&self.reactor, limit, recalled.wait()).await {
            None if kept.is_held(session, number) => kept.reply(kept::HELD, number),
            _ => kept.reply(kept::ENDED, number),
        }
    }

    /// The next moment at which a delegation may be given, as far as is known now; `None` for now.
    fn entries_not_before(self: &Rc<Self>, session: u64, first_new: u64, now: Nanos) -> Option<Nanos> {
        let kept = &self.leases.kept_entries;
        let expired: Vec<(u64, u64)> = {
            let holders = kept.holders.borrow();
            let is_over = |holder: &&Holder| holder.until <= now && !holder.is_ending;
            holders.iter().filter(is_over).map(|holder| (holder.session, holder.number)).collect()
        };
        for (session, number) in expired {
            self.end_entries(session, number);
        }
        if self.life.is_stopping() || kept.holders.borrow().len() >= kept.keeping.holders {
            return Some(Nanos::MAX);
        }
        let rested = kept.last_change_by_others(session) + kept.keeping.rest;
        if kept.latest.get() != [(0, 0); 2] && rested > now {
            return Some(rested);
        }
        let is_changing = {
            let changes = kept.changes.borrow();
            changes.under_way.iter().any(|(number, changer)| *changer != session || *number < first_new)
        };
        (is_changing || self.is_undecided()).then_some(now + LOOK_NS)
    }

    /// Whether something may change here without being asked for.
    fn is_undecided(&self) -> bool {
        let tables = self.tables.borrow();
        // The bytes of files that are gone are nobody's.
        let mut intents = tables.intents.values();
        intents.any(|intent| !matches!(intent, Intent::Reap { .. }))
            || !tables.prepared.is_empty()
            || !tables.marks.is_empty()
            || tables.tree.mark().is_some()
    }
}
