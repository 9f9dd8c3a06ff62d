//! Delegations that this server has given of its names: which other servers answer opens of which files here.
//!
//! Only names whose inodes are here too are delegated, and only of plain files with one name, so that delegations are
//! kept by file: whatever takes a name from a file, or changes who may open it, first has all delegations of that file
//! end. So nobody who begins to open a name after such a change was answered is told what was there before.
//!
//! Invariants
//! 1. While a delegation of a file may stand, no record is journalled that takes a name from the file or changes its
//!    rights (`may_stand`; `Core::commit` asserts it). From the end of the delegations to the change there is no await,
//!    or the name is locked.
//! 2. A delegation ends here later than at its holder: from a later moment on, and by `MARGIN_NS` more, for clocks
//!    differ.
//! 3. That delegations were given is journalled before the first one is told. A life of this server that finds that
//!    waits for the time of a delegation before its first change.

use crate::core::{Core, Failure, Notice, all, until};
use crate::handlers::EncodedParams;
use crate::journal::records::Record;
use crate::process::options::Bounds;
use crate::store::FastMap;
use reactor::{Class, LocalFuture, Nanos};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use wire::messages::{Empty, RecallRequest};
use wire::{Encode, FileId, Operation};

/// Time of a delegation, for its holder.
pub const DELEGATION_MS: u32 = 2_000;
const DELEGATION_NS: Nanos = DELEGATION_MS as Nanos * 1_000_000;
const MARGIN_NS: Nanos = DELEGATION_NS / 10;
/// For this long after delegations were called back none are given of the file: it is being changed.
const REST_NS: Nanos = 1_000_000_000;
/// Delegations of one file.
#[derive(Default)]
struct FileDelegations {
    /// Servers that may hold one, each with the time until which.
    holders: Vec<(u32, Nanos)>,
    /// They are being called back.
    ending: Option<Notice<()>>,
    rests_until: Nanos,
}

/// See the module.
#[derive(Default)]
pub struct Delegations {
    /// Files of which delegations may stand at a time, each of every other server.
    file_count_max: usize,
    files: RefCell<FastMap<u64, FileDelegations>>,
    /// Told when what an earlier life of this server gave has ended.
    earlier: RefCell<Option<Notice<()>>>,
    sweeping: Cell<bool>,
    /// For each other server the connection over which it asks for delegations, its newest. An earlier one is over,
    /// even where nobody has noticed: what comes late over it has been given up by who asked.
    connections: RefCell<BTreeMap<u32, u64>>,
    /// For tests: nobody is told of the end.
    skips_recalls: Cell<bool>,
    given_count: Cell<u64>,
    refused_count: Cell<u64>,
    recalled_count: Cell<u64>,
    /// Delegations that ended by time while a change waited.
    expired_count: Cell<u64>,
}

fn add(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

impl Delegations {
    pub fn new(bounds: &Bounds) -> Delegations {
        Delegations { file_count_max: bounds.delegated_files, ..Delegations::default() }
    }

    /// Whether there is nothing to look for: the common case.
    pub fn is_empty(&self) -> bool {
        self.files.borrow().is_empty() && self.earlier.borrow().is_none()
    }

    /// Whether a delegation of the file may stand that this life gave.
    pub fn may_stand(&self, file: FileId, now: Nanos) -> bool {
        let files = self.files.borrow();
        files.get(&file.0).is_some_and(|given| given.holders.iter().any(|(_, until)| *until > now))
    }

    /// Whether a delegation of the file may be given now.
    pub fn has_room(&self, file: FileId, now: Nanos) -> bool {
        let files = self.files.borrow();
        match files.get(&file.0) {
            Some(given) => given.ending.is_none() && given.rests_until <= now,
            None => files.len() < self.file_count_max,
        }
    }

    /// Takes in that a server that may be a contact has connected.
    pub fn note_connected(&self, server: u32, connection: u64) {
        self.connections.borrow_mut().insert(server, connection);
    }

    /// Takes in that a connection has gone.
    pub fn note_disconnected(&self, server: u32, connection: u64) {
        if self.is_connected(server, connection) {
            self.connections.borrow_mut().remove(&server);
        }
    }

    /// Whether a request of a server came over the connection that it has now.
    pub fn is_connected(&self, server: u32, connection: u64) -> bool {
        self.connections.borrow().get(&server).is_some_and(|current| *current == connection)
    }

    /// Bytes that the table takes at most, in a cluster of so many servers.
    pub fn memory_max(&self, server_count: u32) -> u64 {
        self.file_count_max as u64 * (128 + u64::from(server_count) * size_of::<(u32, Nanos)>() as u64 * 2)
    }

    pub fn note_refused(&self) {
        add(&self.refused_count);
    }

    /// Delegations given, refused, called back, ended by time while somebody waited; and files of which some stand.
    pub fn numbers(&self) -> [(&'static str, u64); 5] {
        [
            ("delegations_given", self.given_count.get()),
            ("delegations_refused", self.refused_count.get()),
            ("delegations_recalled", self.recalled_count.get()),
            ("delegations_expired", self.expired_count.get()),
            ("delegated_files", self.files.borrow().len() as u64),
        ]
    }

    /// Has this server break its word, for tests of the simulation's checker.
    pub fn skip_recalls(&self) {
        self.skips_recalls.set(true);
    }
}

impl Core {
    /// Notes that a server holds a delegation of a file from now on.
    pub fn note_delegation(self: &Rc<Self>, file: FileId, server: u32) {
        let until = self.reactor.now() + DELEGATION_NS + MARGIN_NS;
        add(&self.leases.delegations.given_count);
        let mut files = self.leases.delegations.files.borrow_mut();
        let given = files.entry(file.0).or_default();
        given.holders.retain(|(holder, _)| *holder != server);
        given.holders.push((server, until));
        drop(files);
        self.sweep_delegations();
    }

    /// Forgets delegations that have ended by time, for as long as there are any.
    fn sweep_delegations(self: &Rc<Self>) {
        if self.leases.delegations.sweeping.replace(true) {
            return;
        }
        let core = self.clone();
        self.reactor.spawn(Class::Background, async move {
            while !core.leases.delegations.files.borrow().is_empty() && !core.life.is_stopping() {
                core.reactor.sleep(DELEGATION_NS).await;
                let now = core.reactor.now();
                core.leases.delegations.files.borrow_mut().retain(|_, given| {
                    given.holders.retain(|(_, until)| *until > now);
                    !given.holders.is_empty() || given.ending.is_some() || given.rests_until > now
                });
            }
            core.leases.delegations.sweeping.set(false);
        });
    }

    /// Recalls the delegations of a file. Told when none stands any more; nothing when none does. Who is told looks
    /// again.
    pub fn recall_delegations(self: &Rc<Self>, file: FileId) -> Option<Notice<()>> {
        if self.leases.delegations.is_empty() {
            return None;
        }
        let now = self.reactor.now();
        let mut files = self.leases.delegations.files.borrow_mut();
        let given = match files.get_mut(&file.0) {
            Some(given) => given,
            None => return self.leases.delegations.earlier.borrow().clone(),
        };
        if let Some(ending) = &given.ending {
            return Some(ending.clone());
        }
        given.holders.retain(|(_, until)| *until > now);
        given.rests_until = now + REST_NS;
        if given.holders.is_empty() || self.leases.delegations.skips_recalls.get() {
            given.holders.clear();
            return self.leases.delegations.earlier.borrow().clone();
        }
        let ended = Notice::new();
        given.ending = Some(ended.clone());
        let holders = given.holders.clone();
        drop(files);
        let (core, told) = (self.clone(), ended.clone());
        self.reactor.spawn(Class::Metadata, async move {
            recall(&core, file, holders).await;
            if let Some(given) = core.leases.delegations.files.borrow_mut().get_mut(&file.0) {
                given.holders.clear();
                given.ending = None;
                given.rests_until = core.reactor.now() + REST_NS;
            }
            told.tell(());
        });
        Some(ended)
    }

    /// At the start: what an earlier life gave stands until its time is over.
    pub fn await_earlier_delegations(self: &Rc<Self>) {
        if !self.tables.borrow().delegations_given {
            return;
        }
        let ended = Notice::new();
        self.leases.delegations.earlier.replace(Some(ended.clone()));
        let core = self.clone();
        self.reactor.spawn(Class::Metadata, async move {
            core.reactor.sleep(DELEGATION_NS + MARGIN_NS).await;
            core.leases.delegations.earlier.replace(None);
            if core.leases.delegations.files.borrow().is_empty() && !core.life.is_stopping() {
                // Where this fails, the next life waits once more, in vain.
                let _: Result<(), Failure> = core.change([Record::DelegationsGiven(false)]);
            }
            ended.tell(());
        });
    }
}

/// Has all holders let go of a file, or waits until their delegations have ended.
async fn recall(core: &Rc<Core>, file: FileId, holders: Vec<(u32, Nanos)>) {
    let ends = holders.iter().map(|(_, until)| *until).max().unwrap_or(0);
    let Ok(number) = core.next_open_number() else {
        // Without room for a number in the journal nobody can be told.
        return core.reactor.sleep_until(ends).await;
    };
    let params = RecallRequest { file, number }.to_bytes();
    let asked = holders.into_iter().map(|(server, ends)| {
        let (core, params) = (core.clone(), EncodedParams(params.clone()));
        Box::pin(async move {
            let call = core.peers.call::<Empty>(server, Operation::Recall, &params, Some(ends));
            match until(&core.reactor, ends, call).await {
                Some(Ok(_)) => add(&core.leases.delegations.recalled_count),
                _ => {
                    core.reactor.sleep_until(ends).await;
                    add(&core.leases.delegations.expired_count);
                }
            }
        }) as LocalFuture<()>
    });
    all(asked.collect()).await;
}
