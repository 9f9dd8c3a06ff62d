//! What this server knows as a contact: names of other servers that are delegated to it, so that it answers opens of
//! them itself.
//!
//! A name is asked for when it is asked for here the second time within a second, so that files which only one process
//! opens are not kept; the first time, and whenever the home delegates nothing, the client is told to ask the home
//! itself. A delegated file is open at its home for us, once, for as long as we hold the delegation or a client has it
//! open with us.
//!
//! Invariants
//! 1. A delegation counts from the moment at which it was asked for, and nothing is answered from it after its time:
//!    the clock is read after the request was.
//! 2. What a home has called back, or taken as closed (`floors`), is below a number; a grant with a number below it is
//!    none. While a home is told what is open there, it may have closed a grant that it was not told of, whose number
//!    is below one that is still on its way: no grant that arrives meanwhile is one (`reclaiming`).
//! 3. Each file in `remote_opens` is open at its home under the number there. It leaves when nothing here needs it, and
//!    the home is told. While there is any, the home is told of all some times within the time of grace, and forgets a
//!    contact that does not.

pub mod requests;

use crate::coordination::ask;
use crate::coordination::retry::Backoff;
use crate::core::{Core, Failure, Notice};
use crate::process::options::Bounds;
use crate::store::FastMap;
use reactor::channel::Turnabout;
use reactor::{Class, Nanos};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use wire::limits::CLOSE_COUNT_MAX;
use wire::messages::{
    Batch, CloseHeldRequest, Closed, Delegation, DelegationReply, DelegationRequest, Entry, ReclaimHeldRequest,
    ReclaimReply,
};
use wire::{Attributes, Encode, FileId, Kind, Operation};

/// Names that were asked for last and are not delegated; one forgets another.
const RECENT_COUNT: usize = 4_096;
/// Within this time a second request for a name has it asked for at its home.
const RECENT_NS: Nanos = 1_000_000_000;
/// Bytes of a delegation with its name.
const DELEGATION_SIZE: u64 = 512;
/// Bytes of a file held open at its home.
const REMOTE_OPEN_SIZE: u64 = 64;
/// For this long a home is waited for; then clients are sent to it.
const ASK_NS_MAX: Nanos = 1_000_000_000;
/// After a home has delegated nothing it is not asked for the same name for this long.
const REFUSED_NS: Nanos = 1_000_000_000;
/// A delegation is held for so many eighths of its time, for clocks differ.
const DELEGATION_EIGHTHS: Nanos = 7;
const DELEGATION_MS_MAX: u32 = 60_000;
const SWEEP_NS: Nanos = 1_000_000_000;
/// Times within the time of grace of sessions that a home hears of a contact.
const REFRESHES: Nanos = 4;
const PAUSE_NS_FIRST: Nanos = 50_000_000;
const PAUSE_NS_MAX: Nanos = 2_000_000_000;

/// What is known of a name.
enum NameState {
    /// Its home is being asked; told when the answer is here or takes too long.
    Asking(Notice<()>),
    Delegated {
        attributes: Attributes,
        until: Nanos,
    },
    /// The home delegates nothing until then.
    Refused(Nanos),
}

struct ContactName {
    parent: FileId,
    name: Box<[u8]>,
    state: NameState,
}

/// A file that is open at its home for us.
struct RemoteOpen {
    home: u32,
    number: u64,
}

/// What becomes of a request for a name.
pub enum ContactAnswer {
    Delegated(Attributes),
    /// Told when it is to be tried again.
    Asking(Notice<()>),
    /// The home is to be asked.
    Unknown,
}

/// See the module.
#[derive(Default)]
pub struct Contact {
    bounds: Bounds,
    /// By the lower bits of the name's hash: the whole hash, and when it was asked for.
    recent: RefCell<Vec<(u64, Nanos)>>,
    names: RefCell<FastMap<u64, ContactName>>,
    remote_opens: RefCell<FastMap<u64, RemoteOpen>>,
    /// Per home.
    floors: RefCell<BTreeMap<u32, u64>>,
    /// Homes that are being told what is open there, and whether they are to be told once more.
    reclaiming: RefCell<BTreeMap<u32, bool>>,
    sweeping: Cell<bool>,
    /// Homes that are told again and again what is open there.
    refreshing: RefCell<BTreeSet<u32>>,
    hits: Cell<u64>,
    misses: Cell<u64>,
    sessions_lost: Cell<u64>,
    /// The homes that had.
    forgetful: RefCell<BTreeSet<u32>>,
}

impl Contact {
    pub fn new(bounds: &Bounds) -> Contact {
        Contact { bounds: *bounds, ..Contact::default() }
    }

    /// Bytes that all of this takes at most.
    pub fn memory_max(&self) -> u64 {
        let recent = (self.recent_count() * size_of::<(u64, Nanos)>()) as u64;
        recent
            + self.bounds.contact_names as u64 * DELEGATION_SIZE
            + self.bounds.contact_files as u64 * REMOTE_OPEN_SIZE
    }

    /// Opens answered here, and sent on to homes; how often a home had forgotten us, and so what our clients had open;
    /// names delegated to us now, and files open at homes.
    pub fn numbers(&self) -> [(&'static str, u64); 5] {
        let names = self.names.borrow();
        let delegated = names.values().filter(|name| matches!(name.state, NameState::Delegated { .. })).count();
        [
            ("contact_hits", self.hits.get()),
            ("contact_misses", self.misses.get()),
            ("contact_sessions_lost", self.sessions_lost.get()),
            ("contact_names", delegated as u64),
            ("contact_files", self.remote_opens.borrow().len() as u64),
        ]
    }

    /// Homes that had forgotten us while we had files open there for our clients.
    pub fn forgetful_homes(&self) -> BTreeSet<u32> {
        self.forgetful.borrow().clone()
    }

    fn recent_count(&self) -> usize {
        RECENT_COUNT.min(self.bounds.memos)
    }

    /// Whether the name was asked for a moment ago; it was from now on.
    fn is_second(&self, hash: u64, now: Nanos) -> bool {
        let mut recent = self.recent.borrow_mut();
        if recent.is_empty() {
            recent.resize(self.recent_count(), (0, 0));
        }
        let place = &mut recent[hash as usize % self.recent_count()];
        let (before, at) = std::mem::replace(place, (hash, now));
        before == hash && at + RECENT_NS > now
    }

    fn has_room(&self, now: Nanos) -> bool {
        let mut names = self.names.borrow_mut();
        if names.len() >= self.bounds.contact_names {
            names.retain(|_, name| match name.state {
                NameState::Asking(_) => true,
                NameState::Delegated { until, .. } | NameState::Refused(until) => until > now,
            });
        }
        names.len() < self.bounds.contact_names && self.remote_opens.borrow().len() < self.bounds.contact_files
    }

    fn raise_floor(&self, home: u32, number: u64) {
        let mut floors = self.floors.borrow_mut();
        let floor = floors.entry(home).or_default();
        *floor = number.max(*floor);
    }

    /// The end of a question: what is known from now on.
    fn settle(&self, hash: u64, asked: &Notice<()>, state: NameState) -> bool {
        let mut names = self.names.borrow_mut();
        let Some(name) = names.get_mut(&hash) else { return false };
        let stands = matches!(&name.state, NameState::Asking(notice) if notice.is_same(asked));
        if stands {
            name.state = state;
        }
        stands
    }

    /// Forgets all delegations of a file, or all those of a home.
    fn forget(&self, is_concerned: impl Fn(&Attributes) -> bool) {
        self.names.borrow_mut().retain(|_, name| match &name.state {
            NameState::Delegated { attributes, .. } => !is_concerned(attributes),
            _ => true,
        });
    }
}

impl Core {
    /// What is known here of a name of another server, whose hash is given.
    pub fn ask_contact(self: &Rc<Self>, home: u32, hash: u64, entry: &Entry<'_>) -> ContactAnswer {
        let contact = &self.leases.contact;
        let now = self.reactor.now();
        {
            let names = contact.names.borrow();
            if let Some(name) = names.get(&hash) {
                let is_same = name.parent == entry.parent && *name.name == *entry.name.as_bytes();
                match &name.state {
                    NameState::Delegated { attributes, until } if is_same && *until > now => {
                        contact.hits.set(contact.hits.get() + 1);
                        return ContactAnswer::Delegated(attributes.clone());
                    }
                    NameState::Asking(notice) if is_same => return ContactAnswer::Asking(notice.clone()),
                    NameState::Refused(until) if *until > now => return self.unknown(),
                    // Another name of the same hash.
                    NameState::Asking(_) => return self.unknown(),
                    _ => {}
                }
            }
        }
        if !contact.is_second(hash, now) || !contact.has_room(now) || self.life.is_stopping() {
            return self.unknown();
        }
        let asked = Notice::new();
        let name = ContactName {
            parent: entry.parent,
            name: entry.name.as_bytes().into(),
            state: NameState::Asking(asked.clone()),
        };
        contact.names.borrow_mut().insert(hash, name);
        let params = DelegationRequest { entry: entry.clone() }.to_bytes();
        self.reactor.spawn(Class::Metadata, ask_for_delegation(self.clone(), home, hash, params, asked.clone()));
        self.reactor.spawn(Class::Metadata, limit_question(self.clone(), hash, asked.clone()));
        self.sweep_names();
        ContactAnswer::Asking(asked)
    }

    fn unknown(&self) -> ContactAnswer {
        self.leases.contact.misses.set(self.leases.contact.misses.get() + 1);
        ContactAnswer::Unknown
    }

    /// A home has recalled its delegations of a file.
    pub fn recalled(self: &Rc<Self>, home: u32, file: FileId, number: u64) {
        self.leases.contact.raise_floor(home, number);
        self.leases.contact.forget(|attributes| attributes.id == file);
        self.release_remote_opens();
    }

    /// Lets go of files that nobody needs here any more.
    pub fn release_remote_opens(self: &Rc<Self>) {
        if self.leases.contact.remote_opens.borrow().is_empty() {
            return;
        }
        let mut closed: BTreeMap<u32, Vec<Closed>> = BTreeMap::new();
        {
            let (tables, names) = (self.tables.borrow(), self.leases.contact.names.borrow());
            let now = self.reactor.now();
            let delegated: BTreeSet<FileId> = names
                .values()
                .filter_map(|name| match &name.state {
                    NameState::Delegated { attributes, until } if *until > now => Some(attributes.id),
                    _ => None,
                })
                .collect();
            self.leases.contact.remote_opens.borrow_mut().retain(|file, open| {
                let file = FileId(*file);
                let is_needed = tables.open.is_open(file) || delegated.contains(&file);
                if !is_needed {
                    closed.entry(open.home).or_default().push(Closed { file, number: open.number });
                }
                is_needed
            });
        }
        for (home, closed) in closed {
            for page in closed.chunks(CLOSE_COUNT_MAX) {
                let params = CloseHeldRequest { closed: Batch(page.to_vec()) }.to_bytes();
                let told = ask(self.clone(), home, Operation::CloseHeld, params, None);
                self.reactor.spawn(Class::Metadata, async move {
                    let _: bool = told.await;
                });
            }
        }
    }

    /// Forgets names whose delegations have ended by time, for as long as there are any.
    fn sweep_names(self: &Rc<Self>) {
        if self.leases.contact.sweeping.replace(true) {
            return;
        }
        let core = self.clone();
        self.reactor.spawn(Class::Background, async move {
            while !core.leases.contact.names.borrow().is_empty() && !core.life.is_stopping() {
                core.reactor.sleep(SWEEP_NS).await;
                let now = core.reactor.now();
                core.leases.contact.names.borrow_mut().retain(|_, name| match name.state {
                    NameState::Asking(_) => true,
                    NameState::Delegated { until, .. } | NameState::Refused(until) => until > now,
                });
                core.release_remote_opens();
            }
            core.leases.contact.sweeping.set(false);
        });
    }

    /// The way to a home was lost, or the home has begun a new life or forgotten us: its delegations count no more, for
    /// a power loss may have taken it; and it is told what we hold.
    pub fn home_turned(self: &Rc<Self>, home: u32, turnabout: Turnabout) {
        if turnabout == Turnabout::Resumed {
            return;
        }
        self.leases.contact.forget(|attributes| self.cluster.home_of(attributes.id) == Some(home));
        if !self.leases.contact.floors.borrow().contains_key(&home) {
            return;
        }
        let holds = !self.remote_opens_at(home).is_empty();
        if holds && matches!(turnabout, Turnabout::Renewed { session_known: false, .. }) {
            self.leases.contact.sessions_lost.set(self.leases.contact.sessions_lost.get() + 1);
            self.leases.contact.forgetful.borrow_mut().insert(home);
        }
        self.reclaim_remote_opens(home);
    }

    /// Lets a home know that we are still there, for as long as we hold anything there.
    fn refresh_remote_opens(self: &Rc<Self>, home: u32) {
        if !self.leases.contact.refreshing.borrow_mut().insert(home) {
            return;
        }
        let core = self.clone();
        self.reactor.spawn(Class::Background, async move {
            while !core.remote_opens_at(home).is_empty() && !core.life.is_stopping() {
                core.reactor.sleep(core.options.session_grace / REFRESHES).await;
                core.reclaim_remote_opens(home);
            }
            core.leases.contact.refreshing.borrow_mut().remove(&home);
        });
    }

    fn remote_opens_at(&self, home: u32) -> Vec<FileId> {
        let opens = self.leases.contact.remote_opens.borrow();
        let mut files: Vec<FileId> =
            opens.iter().filter(|(_, open)| open.home == home).map(|(file, _)| FileId(*file)).collect();
        files.sort_unstable();
        files
    }

    /// Tells a home what we hold, until it knows.
    fn reclaim_remote_opens(self: &Rc<Self>, home: u32) {
        if self.leases.contact.reclaiming.borrow_mut().insert(home, true).is_some() {
            return;
        }
        let core = self.clone();
        self.reactor.spawn(Class::Metadata, async move {
            let mut backoff = Backoff::new(PAUSE_NS_FIRST, PAUSE_NS_MAX);
            while core.leases.contact.reclaiming.borrow_mut().insert(home, false) == Some(true)
                && !core.life.is_stopping()
            {
                if send_remote_opens(&core, home).await.is_err() {
                    core.leases.contact.reclaiming.borrow_mut().insert(home, true);
                    backoff.pause(&core.reactor).await;
                }
            }
            core.leases.contact.reclaiming.borrow_mut().remove(&home);
            core.release_remote_opens();
        });
    }
}

async fn send_remote_opens(core: &Rc<Core>, home: u32) -> Result<(), Failure> {
    let files = core.remote_opens_at(home);
    let mut pages: Vec<&[FileId]> = files.chunks(CLOSE_COUNT_MAX).collect();
    if pages.is_empty() {
        pages.push(&[]);
    }
    let (page_count, mut since) = (pages.len(), 0);
    for (index, page) in pages.into_iter().enumerate() {
        let request = ReclaimHeldRequest { files: Batch(page.to_vec()), since, last: index + 1 == page_count };
        let reply: ReclaimReply = core.peers.call(home, Operation::ReclaimHeld, &request, None).await?;
        if since == 0 {
            since = reply.number;
            // A grant from before that we have not heard of is taken as closed.
            core.leases.contact.raise_floor(home, since);
        }
        let mut opens = core.leases.contact.remote_opens.borrow_mut();
        let mut gone = Vec::new();
        for file in page {
            match opens.get_mut(&file.0) {
                Some(open) => open.number = open.number.max(reply.number),
                None => gone.push(Closed { file: *file, number: reply.number }),
            }
        }
        drop(opens);
        if !gone.is_empty() {
            let params = CloseHeldRequest { closed: Batch(gone) }.to_bytes();
            let told = ask(core.clone(), home, Operation::CloseHeld, params, None);
            core.reactor.spawn(Class::Metadata, async move {
                let _: bool = told.await;
            });
        }
    }
    Ok(())
}

/// Asks a home for a name.
async fn ask_for_delegation(core: Rc<Core>, home: u32, hash: u64, params: Vec<u8>, asked: Notice<()>) {
    let sent = core.reactor.now();
    let reply: Result<DelegationReply, Failure> =
        core.peers.call(home, Operation::Delegate, &crate::handlers::EncodedParams(params), None).await;
    let refused = NameState::Refused(core.reactor.now() + REFUSED_NS);
    match reply {
        Ok(DelegationReply { delegated: Some(delegated) }) => {
            take_delegation(&core, home, hash, sent, delegated, &asked)
        }
        Ok(DelegationReply { delegated: None }) => drop(core.leases.contact.settle(hash, &asked, refused)),
        Err(_) => {
            core.leases.contact.settle(hash, &asked, refused);
            // Whether we have something open there now nobody knows, unless we tell.
            core.reclaim_remote_opens(home);
        }
    }
    asked.tell(());
}

fn take_delegation(core: &Rc<Core>, home: u32, hash: u64, sent: Nanos, delegated: Delegation, asked: &Notice<()>) {
    let Delegation { attributes, open_number, delegation_ms } = delegated;
    let now = core.reactor.now();
    let refused = NameState::Refused(now + REFUSED_NS);
    let is_sound = attributes.kind == Kind::File
        && core.cluster.home_of(attributes.id) == Some(home)
        && core.check_layout(&attributes.layout).is_ok();
    if !is_sound {
        core.leases.contact.settle(hash, asked, refused);
        return;
    }
    // From now on the home may know us.
    core.leases.contact.raise_floor(home, 0);
    {
        let mut opens = core.leases.contact.remote_opens.borrow_mut();
        let open = opens.entry(attributes.id.0).or_insert(RemoteOpen { home, number: open_number });
        open.number = open.number.max(open_number);
    }
    core.refresh_remote_opens(home);
    let until = sent + Nanos::from(delegation_ms.min(DELEGATION_MS_MAX)) * 1_000_000 / 8 * DELEGATION_EIGHTHS;
    let floor = core.leases.contact.floors.borrow().get(&home).copied().unwrap_or(0);
    let may_be_closed = open_number <= floor || core.leases.contact.reclaiming.borrow().contains_key(&home);
    let known = if may_be_closed || until <= now { refused } else { NameState::Delegated { attributes, until } };
    core.leases.contact.settle(hash, asked, known);
    core.release_remote_opens();
}

/// Ends the wait for a home that does not answer; its answer is taken in later.
async fn limit_question(core: Rc<Core>, hash: u64, asked: Notice<()>) {
    core.reactor.sleep(ASK_NS_MAX).await;
    core.leases.contact.settle(hash, &asked, NameState::Refused(core.reactor.now() + REFUSED_NS));
    asked.tell(());
}
