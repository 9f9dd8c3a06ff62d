//! What this client has open, file by file, and how its servers learn of it and of closes.
//!
//! Opens register at the file's home by themselves, and those that a contact answered at the contact (`contact`), which
//! has the file open at its home meanwhile. Files that were opened by a look at the home's attribute cache
//! (`attribute_cache`) are not registered but held, in memory that the server looks at before it gives a file up, for
//! as long as the connection lasts. Closes of the last handle of a file are told at once where something waits for
//! them: sizes to be settled in, much space, or a name that may be gone. Others are collected and ride on later
//! messages to that server. Nobody waits for any of them.
//!
//! Invariants
//! 1. `number` of an entry is the latest number that a server gave to an open of the file which this client knows of.
//! 2. A close names all opens up to its number, also those whose answers this client has not taken in. So a file is
//!    closed only once all opens are settled that had been sent to its home before its last handle went; until then its
//!    entry stays, with 0 handles, and whoever opened it takes it over. An open through a contact counts as one that is
//!    sent to the home.
//! 3. A server that has lost its registrations (by a restart, or with the session) is told all entries of its files
//!    anew.
//! 4. When a contact may have lost its registrations, what is open with it is opened at the homes.
//! 5. What is held when its connection ends is registered by the server, under a number that this client does not know.
//!    Such an entry is unsettled: it stays until the server has told a later number, also with 0 handles.

pub(crate) mod contact;
pub(crate) mod exported;
pub(crate) mod file;
pub(crate) mod kept_entries;
pub(crate) mod locks;
pub(crate) mod read_leases;

use crate::error::RequestError;
use crate::open_files::file::File;
use crate::servers::Common;
use crate::shared_memory::attribute_cache::is_shown;
use crate::shared_memory::snapshot::CellVersion;
use reactor::channel::{Call, Channel};
use reactor::{Class, HazardPointer, LocalFuture, Nanos, StoreMapping};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use wire::limits::CLOSE_COUNT_MAX;
use wire::messages::{Batch, CloseManyRequest, CloseRequest, Closed, Empty, ReclaimReply, ReclaimRequest};
use wire::{Decode, Encode, FileId, Kind, Operation};

/// Closes to one server that are collected before they are sent by themselves.
const COLLECTED_COUNT_MAX: usize = 64;
/// Age from which collected closes ride on the next message to their server, and age at which they leave alone.
const RIDE_AGE: Nanos = 100_000_000;
const LEAVE_AGE: Nanos = 1_000_000_000;
/// First and longest pause before a server is told again what it could not be told.
const PAUSE_FIRST: Nanos = 50_000_000;
const PAUSE_MAX: Nanos = 5_000_000_000;

/// A file that is open here.
struct Opened {
    /// 0 while the close waits for opens under way.
    handles: u32,
    /// At the home; 0 when it is open with a contact alone.
    number: u64,
    /// A contact with which it is open, and the number there.
    through: Option<Closing>,
    /// By which the home knows of it without a number, as long as the connection lasts.
    held: Option<HeldFile>,
    /// Whether the home may have registered it under a number that is not known here (invariant 5).
    is_unsettled: bool,
    /// Whether it has no name as far as we know.
    nameless: bool,
    /// Names that this client had removed when the file was opened: if there are more now, its own may be among them.
    removals: u64,
}

impl Opened {
    /// Whether somebody may wait for its close: for the space of a file that has no name any more.
    fn is_waited_for(&self, open_files: &OpenFiles) -> bool {
        self.nameless || self.removals != open_files.removals.get()
    }
}

/// A file that is held, over the mapping of its inode's cell.
pub(crate) struct HeldFile {
    pub hazard: HazardPointer,
    pub inode: CellVersion,
    /// The submission by which the file was made, and whose it is.
    pub made: Option<(u64, u64)>,
}

impl Opened {
    fn new(number: u64, nameless: bool, open_files: &OpenFiles) -> Opened {
        let removals = open_files.removals.get();
        Opened { handles: 0, number, through: None, held: None, is_unsettled: false, nameless, removals }
    }

    /// Holds the file no more. Whether the server is to be told, since something has happened to the file meanwhile.
    fn release(&mut self, file: FileId) -> bool {
        let Some(HeldFile { hazard, inode, made }) = self.held.take() else { return false };
        // In this order: who changes the file now does not find it held, or is noticed.
        let is_ours = hazard.release();
        self.is_unsettled |= !is_ours;
        if !is_ours || inode.holds() {
            return false;
        }
        if made.is_some_and(|(session, number)| inode.mapping().is_waiting(session, number)) {
            // Nothing happens to it before it is made.
            return false;
        }
        // What is shown has a name; who takes that away from now on does not find it held.
        !is_shown(inode.mapping(), file)
    }
}

/// A server that is to be told of a close, and up to which number.
#[derive(Clone, Copy)]
struct Closing {
    server: u32,
    number: u64,
}

/// What is to be closed with the last handle of a file.
struct Ended {
    number: u64,
    through: Option<Closing>,
    is_waited_for: bool,
    /// It was held, and something has happened to it.
    is_held: bool,
}

/// Closes that one server has not been told of.
#[derive(Default)]
struct Collected {
    closed: Vec<Closed>,
    since: Nanos,
}

/// See the module.
#[derive(Default)]
pub(crate) struct OpenFiles {
    files: RefCell<BTreeMap<u64, Opened>>,
    collected: RefCell<BTreeMap<u32, Collected>>,
    /// Whether anything is collected.
    any_collected: Cell<bool>,
    flushing: Cell<bool>,
    /// Servers that were told of closes, or will be.
    homes: RefCell<BTreeSet<u32>>,
    /// Opens that were sent and are not settled, by server, in the order in which they began.
    under_way: RefCell<BTreeSet<(u32, u64)>>,
    opens_begun: Cell<u64>,
    /// Files whose close waits for the opens to a server that began before a moment, counted in `opens_begun`.
    waiting: RefCell<BTreeSet<(u32, u64, u64)>>,
    removals: Cell<u64>,
    /// Per server: the life in which it has no registrations but those that it was told of since.
    renewals: RefCell<BTreeMap<u32, u64>>,
    /// Servers to which a connection was lost, and that are asked for a sign of life until they give one; with the
    /// number of connections that were lost meanwhile.
    returning: RefCell<BTreeMap<u32, u64>>,
    sessions_lost: Cell<u64>,
    /// Until then no inherited file is registered: its home did not answer.
    adoption_pause_end: Cell<Nanos>,
}

/// An open that is about to be sent to a server; it is settled when this is dropped: noted, or known to have failed.
pub(crate) struct OpenUnderWay<'a> {
    servers: &'a Common,
    server: u32,
    order: u64,
}

impl Drop for OpenUnderWay<'_> {
    fn drop(&mut self) {
        self.servers.open_files.under_way.borrow_mut().remove(&(self.server, self.order));
        self.servers.close_what_waited(self.server);
    }
}

impl Common {
    /// Says that an open goes to a server, or another request that registers one.
    pub(crate) fn begin_open(&self, server: u32) -> OpenUnderWay<'_> {
        let order = self.open_files.opens_begun.get();
        self.open_files.opens_begun.set(order + 1);
        self.open_files.under_way.borrow_mut().insert((server, order));
        OpenUnderWay { servers: self, server, order }
    }

    /// Whether opens are under way to a server that began before a moment.
    fn is_opening(&self, server: u32, before: u64) -> bool {
        self.open_files.under_way.borrow().range((server, 0)..(server, before)).next().is_some()
    }

    /// Closes files at a server that waited for opens which are settled now.
    fn close_what_waited(&self, server: u32) {
        loop {
            let first = {
                let waiting = self.open_files.waiting.borrow();
                waiting.range((server, 0, 0)..=(server, u64::MAX, u64::MAX)).next().copied()
            };
            let Some((_, before, file)) = first.filter(|(_, before, _)| !self.is_opening(server, *before)) else {
                return;
            };
            self.open_files.waiting.borrow_mut().remove(&(server, before, file));
            let ended = {
                let mut files = self.open_files.files.borrow_mut();
                match files.get(&file) {
                    // It may have been opened anew, or closed once more and wait for others.
                    Some(opened) if opened.handles == 0 && !opened.is_unsettled && !self.waits(server, file) => {
                        files.remove(&file)
                    }
                    _ => None,
                }
            };
            let (Some(ended), Some(servers)) = (ended, self.own.upgrade()) else { continue };
            let is_waited_for = ended.is_waited_for(&self.open_files);
            let at_home = Some(Closing { server, number: ended.number }).filter(|home| home.number != 0);
            for Closing { server, number } in at_home.into_iter().chain(ended.through) {
                let (servers, closed) = (servers.clone(), Closed { file: FileId(file), number });
                if is_waited_for {
                    self.reactor.spawn(Class::Metadata, async move { servers.close_now(server, closed, false).await });
                } else if self.put_aside(server, closed) {
                    self.reactor.spawn(Class::Metadata, async move { servers.send_collected(server).await });
                }
            }
        }
    }

    fn waits(&self, server: u32, file: u64) -> bool {
        let waiting = self.open_files.waiting.borrow();
        waiting.range((server, 0, 0)..=(server, u64::MAX, u64::MAX)).any(|(_, _, other)| *other == file)
    }

    /// Takes in that a file was opened, or is used here first after it was opened elsewhere.
    pub(crate) fn note_open(&self, file: FileId, number: u64, nameless: bool) {
        let mut files = self.open_files.files.borrow_mut();
        let opened = files.entry(file.0).or_insert_with(|| Opened::new(number, nameless, &self.open_files));
        opened.handles += 1;
        opened.number = opened.number.max(number);
    }

    /// The same of a file that is held.
    pub(crate) fn note_open_held(&self, file: FileId, held: HeldFile) {
        let mut files = self.open_files.files.borrow_mut();
        let opened = files.entry(file.0).or_insert_with(|| Opened::new(0, false, &self.open_files));
        opened.handles += 1;
        // The new one counts over the connection that there is now, which an older one or a number may not.
        opened.release(file);
        opened.held = Some(held);
    }

    /// The submission by which an open file was made, if it was, and where.
    pub(crate) fn made_by_submission(&self, file: FileId) -> Option<(Rc<StoreMapping>, u64)> {
        let files = self.open_files.files.borrow();
        let held = files.get(&file.0)?.held.as_ref()?;
        let (session, number) = held.made?;
        (session == self.session()).then(|| (held.inode.mapping().clone(), number))
    }

    /// A file that is held was not opened after all. The server may have seen it, and have kept a file because of it
    /// that it would have given up, or have registered it.
    pub(crate) fn let_go_of(&self, home: u32, file: FileId, hazard: HazardPointer) {
        let Some(servers) = self.own.upgrade() else { return };
        if !hazard.release() {
            let mut files = self.open_files.files.borrow_mut();
            let opened = files.entry(file.0).or_insert_with(|| Opened::new(0, false, &self.open_files));
            opened.is_unsettled = true;
            drop(files);
            return servers.resumed(home);
        }
        let closed = Closed { file, number: 0 };
        self.reactor.spawn(Class::Metadata, async move { servers.close_now(home, closed, false).await });
    }

    /// The same of a file that a contact opened.
    pub(crate) fn note_open_through(&self, file: FileId, contact: u32, number: u64) {
        let mut files = self.open_files.files.borrow_mut();
        let opened = files.entry(file.0).or_insert_with(|| Opened::new(0, false, &self.open_files));
        opened.handles += 1;
        let new = Closing { server: contact, number };
        match &mut opened.through {
            Some(known) if known.server == contact => known.number = known.number.max(number),
            known => {
                // Another one, which could not be reached: it may live on.
                let left = known.replace(new);
                drop(files);
                if let Some(Closing { server, number }) = left {
                    self.put_aside(server, Closed { file, number });
                }
            }
        }
    }

    /// Takes in whether an open file has a name.
    pub(crate) fn note_links(&self, file: FileId, link_count: u32) {
        if let Some(opened) = self.open_files.files.borrow_mut().get_mut(&file.0) {
            opened.nameless = link_count == 0;
        }
    }

    /// Takes in that a name is about to be removed: what was closed before is to be told before, and what is open may
    /// have lost its name.
    pub(crate) async fn note_removal(&self, server: u32) {
        self.open_files.removals.set(self.open_files.removals.get() + 1);
        if self.open_files.any_collected.get() {
            self.send_collected(server).await;
        }
    }

    /// How often a server had forgotten this client's session, and so what it had open.
    pub(crate) fn sessions_lost(&self) -> u64 {
        self.open_files.sessions_lost.get()
    }

    /// Whether an open file is registered by this session.
    pub(crate) fn has_registered(&self, file: &File) -> bool {
        file.is_registered_by(self.session())
    }

    /// Makes sure that an open file is registered by this session; a child after fork does that at the first use. What
    /// was imported never is.
    pub(crate) async fn adopt(&self, file: &File) {
        if file.kind == Kind::File && !file.is_registered_by(self.session()) && !file.is_imported() {
            self.adopt_inherited(file).await;
        }
    }

    async fn adopt_inherited(&self, file: &File) {
        let Ok(home) = self.home_of(file.id) else { return };
        if self.reactor.now() < self.open_files.adoption_pause_end.get() {
            return;
        }
        // Whoever comes meanwhile goes on without waiting.
        let Some(before) = file.register_by(self.session()) else { return };
        let request = ReclaimRequest { files: Batch(vec![file.id]), last: false };
        let _under_way = self.begin_open(home);
        let reply = self.ask(home, Operation::Reclaim, &request).await;
        match reply.map(|reply| ReclaimReply::from_bytes(&reply.params)) {
            Ok(Ok(reply)) => self.note_open(file.id, reply.number, false),
            // The operation that needs the file tells why; a later one tries again.
            _ => {
                file.register_by(before);
                self.open_files.adoption_pause_end.set(self.reactor.now().saturating_add(self.silence()));
            }
        }
    }

    /// Takes in that a handle was closed, `first` only once.
    pub(crate) async fn note_close(&self, file: &File, settle: bool, first: bool) {
        let Ok(home) = self.home_of(file.id) else { return };
        if !self.open_files.homes.borrow().contains(&home) {
            self.open_files.homes.borrow_mut().insert(home);
        }
        let ended = if first { self.let_go(file, home) } else { None };
        let large = file.known_size().size.max(file.written_end()) > u64::from(file.layout.chunk_size);
        let Some(Ended { number, through, is_waited_for, is_held }) = ended else {
            if settle {
                self.close_now(home, Closed { file: file.id, number: 0 }, true).await;
            }
            return;
        };
        if let Some(Closing { server, number }) = through {
            self.open_files.homes.borrow_mut().insert(server);
            match is_waited_for || large {
                true => self.close_now(server, Closed { file: file.id, number }, false).await,
                false => self.collect(server, Closed { file: file.id, number }).await,
            }
        }
        if number == 0 && !settle && !is_held {
            return;
        }
        match is_waited_for || settle || large {
            true => self.close_now(home, Closed { file: file.id, number }, settle).await,
            false => self.collect(home, Closed { file: file.id, number }).await,
        }
    }

    /// One handle less. With the last one: what to close, unless that has to wait.
    fn let_go(&self, file: &File, home: u32) -> Option<Ended> {
        // An imported one is not its own, also in the process that has exported it.
        if !file.is_registered_by(self.session()) || file.is_imported() {
            return None;
        }
        let mut files = self.open_files.files.borrow_mut();
        let opened = files.get_mut(&file.id.0)?;
        opened.handles -= 1;
        if opened.handles > 0 {
            return None;
        }
        let is_held = opened.release(file.id);
        if opened.is_unsettled {
            return None;
        }
        let is_waited_for = opened.is_waited_for(&self.open_files);
        if opened.number == 0 && opened.through.is_none() {
            files.remove(&file.id.0);
            return is_held.then_some(Ended { number: 0, through: None, is_waited_for, is_held });
        }
        let now = self.open_files.opens_begun.get();
        if self.is_opening(home, now) {
            self.open_files.waiting.borrow_mut().insert((home, now, file.id.0));
            return None;
        }
        let (number, through) = (opened.number, opened.through);
        files.remove(&file.id.0);
        Some(Ended { number, through, is_waited_for, is_held })
    }

    async fn close_now(&self, home: u32, closed: Closed, settle: bool) {
        let Some(servers) = self.own.upgrade() else { return };
        let channel = self.channel(home);
        let params = CloseRequest { closed: closed.clone(), settle }.to_bytes();
        let told: LocalFuture<()> = Box::pin(async move {
            if call(&channel, Operation::Close, params).await.is_err() {
                servers.collect_again(home, vec![closed]);
            }
        });
        self.start(told).await;
    }

    async fn collect(&self, home: u32, closed: Closed) {
        if self.put_aside(home, closed) {
            self.send_collected(home).await;
        }
    }

    /// Collects a close. True when so many are collected that they are to be sent.
    fn put_aside(&self, home: u32, closed: Closed) -> bool {
        let full = {
            let mut collected = self.open_files.collected.borrow_mut();
            let collected = collected.entry(home).or_default();
            if collected.closed.is_empty() {
                collected.since = self.reactor.now();
            }
            collected.closed.push(closed);
            collected.closed.len() >= COLLECTED_COUNT_MAX
        };
        self.open_files.any_collected.set(true);
        if !full && !self.open_files.flushing.replace(true) {
            self.start_flushing();
        }
        full
    }

    /// What could not be told is told later, unless there is far too much of it: then it ends with the session.
    fn collect_again(&self, home: u32, closed: Vec<Closed>) {
        let mut collected = self.open_files.collected.borrow_mut();
        let collected = collected.entry(home).or_default();
        if collected.closed.len() + closed.len() <= CLOSE_COUNT_MAX {
            collected.closed.extend(closed);
            collected.since = self.reactor.now();
            self.open_files.any_collected.set(true);
        }
    }

    /// Sends what rides on a message to a server, before that message.
    pub(crate) async fn send_due(&self, server: u32) {
        if !self.open_files.any_collected.get() {
            return;
        }
        let oldest = self.reactor.now().saturating_sub(RIDE_AGE);
        let due = self.open_files.collected.borrow().get(&server).is_some_and(|collected| collected.since <= oldest);
        if due {
            self.send_collected(server).await;
        }
    }

    /// Tells all servers of what was closed, and waits until they know it: a process that ends then leaves nothing open
    /// behind.
    pub(crate) async fn settle_closes(&self) {
        loop {
            let homes = std::mem::take(&mut *self.open_files.homes.borrow_mut());
            if homes.is_empty() {
                return;
            }
            for home in homes {
                self.settle_lost(home).await;
                self.send_collected(home).await;
                // It is answered after what was sent before it on the same connection; closes that were put off run
                // meanwhile.
                let _ = self.ask(home, Operation::Ping, &Empty {}).await;
            }
        }
    }

    /// Takes in that a handle will be closed soon.
    pub(crate) fn note_close_coming(&self, file: &File) {
        if let Ok(home) = self.home_of(file.id) {
            self.open_files.homes.borrow_mut().insert(home);
        }
    }

    async fn send_collected(&self, server: u32) {
        let taken = {
            let mut collected = self.open_files.collected.borrow_mut();
            let taken = collected.remove(&server).map(|collected| collected.closed).unwrap_or_default();
            self.open_files.any_collected.set(!collected.is_empty());
            taken
        };
        let Some(servers) = self.own.upgrade().filter(|_| !taken.is_empty()) else { return };
        let channel = self.channel(server);
        let told: LocalFuture<()> = Box::pin(async move {
            let params = CloseManyRequest { closed: Batch(taken.clone()) }.to_bytes();
            if call(&channel, Operation::CloseMany, params).await.is_err() {
                servers.collect_again(server, taken);
            }
        });
        self.start(told).await;
    }

    /// Puts a request on the wire now, before what comes next, and leaves it to itself.
    async fn start(&self, mut told: LocalFuture<()>) {
        let done = poll_fn(|context| Poll::Ready(told.as_mut().poll(context).is_ready())).await;
        if !done {
            self.reactor.spawn(Class::Metadata, told);
        }
    }

    /// Sends collected closes when nothing comes along for them to ride on.
    fn start_flushing(&self) {
        let (own, reactor) = (self.own.clone(), self.reactor.clone());
        self.reactor.spawn(Class::Background, async move {
            loop {
                reactor.sleep(LEAVE_AGE).await;
                let Some(servers) = own.upgrade() else { return };
                let waiting: Vec<u32> = servers.open_files.collected.borrow().keys().copied().collect();
                if waiting.is_empty() {
                    servers.open_files.flushing.set(false);
                    return;
                }
                for server in waiting {
                    servers.send_collected(server).await;
                }
            }
        });
    }

    /// A connection ended. The server is to hear of us within its grace time, also where nothing is open there: one
    /// that was started anew can't know that, and gives nothing up before all have told it. What is open with it as a
    /// contact is to be open at the homes within theirs, also while calls still wait for this one to come back.
    pub(crate) fn lost(self: &Rc<Self>, server: u32) {
        self.entries_lost(server);
        self.leave_contact(server);
        if let Some(losses) = self.open_files.returning.borrow_mut().get_mut(&server) {
            // Somebody is at it since a connection before, and asks once more: an answer may have come over one that
            // has ended since.
            *losses += 1;
            return;
        }
        self.open_files.returning.borrow_mut().insert(server, 0);
        let (own, reactor) = (Rc::downgrade(self), self.reactor.clone());
        self.reactor.spawn(Class::Background, async move {
            let mut pause = PAUSE_FIRST;
            while let Some(servers) = own.upgrade() {
                let losses = || servers.open_files.returning.borrow().get(&server).copied();
                let before = losses();
                let answer = call(&servers.channel(server), Operation::Ping, Vec::new()).await;
                if answer.is_ok() && losses() == before {
                    servers.open_files.returning.borrow_mut().remove(&server);
                    return;
                }
                drop(servers);
                reactor.sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        });
    }

    /// A server has lost its registrations: it is told what is open here. When it has lost them again, what was about
    /// to be told is out of date, for more was opened meanwhile: it must not count as all that is open.
    pub(crate) fn renewed(self: &Rc<Self>, server: u32, session_known: bool, life: u64) {
        if !session_known {
            self.open_files.sessions_lost.set(self.open_files.sessions_lost.get() + 1);
            // Perhaps it lost power, and with it what it had told of names.
            self.cache.borrow_mut().forget_all();
            self.forget_tree_changes();
        }
        self.entries_lost(server);
        self.open_files.renewals.borrow_mut().insert(server, life);
        self.leave_contact(server);
        let (own, reactor) = (Rc::downgrade(self), self.reactor.clone());
        self.reactor.spawn(Class::Metadata, async move {
            let mut pause = PAUSE_FIRST;
            while let Some(servers) = own.upgrade() {
                let outdated = servers.open_files.renewals.borrow().get(&server) != Some(&life);
                if outdated || servers.reclaim(server, life).await.is_ok() {
                    return;
                }
                drop(servers);
                reactor.sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        });
    }

    /// Whether a server's mapping is that of the connection that there is now.
    pub(crate) fn is_current(&self, server: u32, mapping: &Rc<StoreMapping>) -> bool {
        self.channel(server).mapping().is_some_and(|now| Rc::ptr_eq(&now, mapping))
    }

    /// Has the server tell numbers of what was held over connections that have ended. False when it is to be tried
    /// again.
    async fn settle_lost(&self, server: u32) -> bool {
        for page in self.lost_hazards(server).chunks(CLOSE_COUNT_MAX) {
            let request = ReclaimRequest { files: Batch(page.to_vec()), last: false };
            let Ok(reply) = self.ask(server, Operation::Reclaim, &request).await else { return false };
            let Ok(reply) = ReclaimReply::from_bytes(&reply.params) else { return false };
            self.note_reclaimed(server, page, reply.number);
        }
        true
    }

    /// There is a new connection: what was held over the one before gets a number.
    pub(crate) fn resumed(self: &Rc<Self>, server: u32) {
        if self.lost_hazards(server).is_empty() {
            return;
        }
        let (own, reactor) = (Rc::downgrade(self), self.reactor.clone());
        self.reactor.spawn(Class::Metadata, async move {
            let mut pause = PAUSE_FIRST;
            while let Some(servers) = own.upgrade() {
                if servers.settle_lost(server).await {
                    return;
                }
                drop(servers);
                reactor.sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        });
    }

    /// Files that were held over a connection that has ended, and have no number since.
    fn lost_hazards(&self, server: u32) -> Vec<FileId> {
        let files = self.open_files.files.borrow();
        let lost = files.iter().filter(|(file, opened)| {
            let is_lost = opened.held.as_ref().is_some_and(|held| !self.is_current(server, held.inode.mapping()));
            (is_lost || opened.is_unsettled) && self.cluster.home_of(FileId(**file)) == Some(server)
        });
        lost.map(|(file, _)| FileId(*file)).collect()
    }

    /// Opens at their homes what is open with a contact that may have lost it (invariant 4).
    fn leave_contact(self: &Rc<Self>, contact: u32) {
        if self.open_with(contact).is_empty() {
            return;
        }
        let (own, reactor) = (Rc::downgrade(self), self.reactor.clone());
        self.reactor.spawn(Class::Metadata, async move {
            let mut pause = PAUSE_FIRST;
            while let Some(servers) = own.upgrade() {
                let mut by_home: BTreeMap<u32, Vec<FileId>> = BTreeMap::new();
                for file in servers.open_with(contact) {
                    let home = servers.cluster.home_of(file).unwrap_or(contact);
                    by_home.entry(home).or_default().push(file);
                }
                if by_home.is_empty() {
                    return;
                }
                let mut all_moved = true;
                for (home, files) in by_home {
                    for page in files.chunks(CLOSE_COUNT_MAX) {
                        all_moved &= servers.move_home(contact, home, page).await.is_ok();
                    }
                }
                drop(servers);
                if !all_moved {
                    reactor.sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        });
    }

    /// Files that are open with a contact.
    fn open_with(&self, contact: u32) -> Vec<FileId> {
        let files = self.open_files.files.borrow();
        let with_it =
            files.iter().filter(|(_, opened)| opened.through.is_some_and(|through| through.server == contact));
        with_it.map(|(file, _)| FileId(*file)).collect()
    }

    async fn move_home(&self, contact: u32, home: u32, page: &[FileId]) -> Result<(), RequestError> {
        let request = ReclaimRequest { files: Batch(page.to_vec()), last: false };
        let _under_way = self.begin_open(home);
        let reply = self.ask(home, Operation::Reclaim, &request).await?;
        let reply = ReclaimReply::from_bytes(&reply.params);
        let number = reply.map_err(|malformed| RequestError::malformed(Operation::Reclaim, home, malformed))?.number;
        let mut left = Vec::new();
        for file in page {
            if let Some(opened) = self.open_files.files.borrow_mut().get_mut(&file.0)
                && let Some(through) = opened.through.take_if(|through| through.server == contact)
            {
                left.push(Closed { file: *file, number: through.number });
            }
        }
        // The contact may live on.
        self.collect_again(contact, left);
        self.note_reclaimed(home, page, number);
        Ok(())
    }

    async fn reclaim(&self, server: u32, life: u64) -> Result<(), RequestError> {
        let ids = || self.open_files.files.borrow().keys().map(|id| FileId(*id)).collect::<Vec<_>>();
        let files: Vec<FileId> = ids().into_iter().filter(|id| self.cluster.home_of(*id) == Some(server)).collect();
        let mut pages: Vec<&[FileId]> = files.chunks(CLOSE_COUNT_MAX).collect();
        if pages.is_empty() {
            pages.push(&[]);
        }
        let page_count = pages.len();
        for (index, page) in pages.into_iter().enumerate() {
            let request = ReclaimRequest { files: Batch(page.to_vec()), last: index + 1 == page_count };
            let reply = self.channel(server).call_in_life(Call::new(Operation::Reclaim, &request), life).await?;
            let reply = ReclaimReply::from_bytes(&reply.params);
            let reply = reply.map_err(|malformed| RequestError::malformed(Operation::Reclaim, server, malformed))?;
            self.note_reclaimed(server, page, reply.number);
        }
        Ok(())
    }

    /// What was closed while it was being reclaimed is closed once more.
    fn note_reclaimed(&self, server: u32, page: &[FileId], number: u64) {
        let mut gone = Vec::new();
        for file in page {
            let mut files = self.open_files.files.borrow_mut();
            match files.get_mut(&file.0) {
                Some(opened) => {
                    opened.number = opened.number.max(number);
                    opened.is_unsettled = false;
                    // The server took it over before it took in the connection over which it has answered.
                    drop(opened.held.take_if(|held| !self.is_current(server, held.inode.mapping())));
                    if opened.handles == 0 && !self.waits(server, file.0) {
                        // Closed since, at a contact with which it is open as well.
                        gone.extend(opened.through.map(|through| (through.server, *file, through.number)));
                        gone.push((server, *file, number));
                        files.remove(&file.0);
                    }
                }
                None => gone.push((server, *file, number)),
            }
        }
        for (server, file, number) in gone {
            if let (true, Some(servers)) = (self.put_aside(server, Closed { file, number }), self.own.upgrade()) {
                self.reactor.spawn(Class::Metadata, async move { servers.send_collected(server).await });
            }
        }
    }
}

/// A request that is no part of any operation, and counts as no round trip of one.
async fn call(
    channel: &Channel,
    operation: Operation,
    params: Vec<u8>,
) -> Result<reactor::channel::Reply, reactor::channel::Failure> {
    channel.call(Call::encoded(operation, params)).await
}
