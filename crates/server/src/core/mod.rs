//! What all handlers of a server share.
//!
//! Invariants
//! 1. No borrow of the tables is held across an await or while a reply is sent.
//! 2. A handler journals all of a change and its outcome in one transaction, before the tables change.

pub mod background;
pub mod clock;
mod commit;
mod failure;
mod numbers;
pub mod slab;
mod waiting;

pub use failure::Failure;
pub use reactor::until;
pub use waiting::{Notice, Turn, Turns, all};

use crate::backing::BackingUse;
use crate::coordination::intents::Origin;
use crate::coordination::peers::Peers;
use crate::coordination::undecided::Undecided;
use crate::core::background::BackgroundTasks;
use crate::core::clock::Clock;
use crate::files::announcement::Announcements;
use crate::files::file_locks::queue::Queues;
use crate::files::glimpse::Glimpses;
use crate::files::inodes::Inode;
use crate::files::late_errors::LateErrors;
use crate::handlers::{Copies, Listings, Sequencer};
use crate::journal::checkpoint::Checkpoints;
use crate::journal::durability::Syncs;
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::leases::Leases;
use crate::process::life::Life;
use crate::process::options::ServerOptions;
use crate::process::statistics::Statistics;
use crate::process::statistics::samples::Samples;
use crate::publish::submission::SubmissionWork;
use crate::sessions::low_priority::LowPriority;
use crate::sessions::service::Request;
use crate::sessions::throttle::Throttle;
use crate::store::Store;
use crate::tree::Trails;
use crate::tree::shares::DirectoryWork;
use reactor::{Nanos, Peer, Reactor, StampedRegion};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use wire::{Attributes, Cluster, FileId, Kind, Layout, LayoutWish, Slot, Status};

/// See the module.
pub struct Core {
    pub reactor: Reactor,
    pub options: ServerOptions,
    pub cluster: Rc<Cluster>,
    /// This server's number.
    pub index: u32,
    pub life: Life,
    pub clock: Clock,
    pub background: BackgroundTasks,
    pub store: Store,
    pub tables: RefCell<Tables>,
    /// Turns at files and directories: glimpses, truncates, appends, explicit times and removals of one go one by one.
    pub turns: Turns,
    /// Requests that wait for locks of files.
    pub lock_queues: RefCell<Queues<Request>>,
    /// Who may bring or fetch a large body of a collective call.
    pub throttle: Throttle,
    /// Turns of sessions at sending the value of an extended attribute.
    pub value_turns: Turns,
    pub copies: Copies,
    pub peers: Peers,
    pub late_errors: Rc<LateErrors>,
    pub syncs: Rc<Syncs>,
    pub glimpses: Glimpses,
    pub announcements: Announcements,
    /// Changes of names under way that wait for other servers, by the directories that they came through.
    pub trails: Rc<Trails>,
    pub sequencer: Sequencer,
    pub leases: Leases,
    /// Announcements and glimpses of directories that are under way.
    pub directories: DirectoryWork,
    pub undecided: Undecided,
    pub statistics: Statistics,
    pub checkpoints: Checkpoints,
    pub submissions: SubmissionWork,
    pub listings: Listings,
    /// Requests of clients that wait while others are at work.
    pub low_priority: LowPriority,
    /// The backing tree, if there is one.
    pub backing: Option<BackingUse>,
}

/// On whose behalf a request is handled.
#[derive(Clone)]
pub struct Caller {
    pub peer: Rc<Peer>,
    /// Session and sequence of a mutating request.
    pub origin: Option<Origin>,
    /// When the caller stops waiting.
    pub deadline: Nanos,
}

impl Caller {
    /// The journal entry that keeps the reply, beside the effect that it tells of.
    pub fn outcome<'a>(&self, reply: &'a [u8]) -> Record<'a> {
        Record::outcome(self.origin, reply)
    }

    /// The journal entry that keeps how many pieces of a request are live, beside the effect of the last of them.
    pub fn steps_done(&self, pieces: usize) -> Record<'static> {
        Record::steps_done(self.origin, pieces as u32)
    }
}

impl Core {
    /// What clients of this machine may read from by themselves.
    pub fn shared(&self) -> Option<Rc<StampedRegion>> {
        if self.options.short_circuit { self.store.shared() } else { None }
    }

    /// Whether these may also register pages to write to.
    pub fn registers_pages(&self) -> bool {
        self.options.registered_buffers && self.shared().is_some()
    }

    pub fn new(
        reactor: &Reactor,
        options: ServerOptions,
        store: Store,
        tables: Tables,
        backing: Option<BackingUse>,
        samples: Samples,
    ) -> Core {
        let late_errors = Rc::new(LateErrors::new(options.bounds.memos));
        let syncs = Syncs::new(reactor, &store, &late_errors);
        let peers = Peers::new(reactor, &options, &syncs);
        let leases = Leases::new(&options.bounds);
        Core {
            reactor: reactor.clone(),
            cluster: options.cluster.clone(),
            index: options.index,
            life: Life::new(reactor),
            clock: Clock::new(reactor),
            background: BackgroundTasks::default(),
            options,
            store,
            tables: RefCell::new(tables),
            turns: Turns::default(),
            lock_queues: RefCell::default(),
            throttle: Throttle::default(),
            value_turns: Turns::default(),
            copies: Copies::default(),
            peers,
            late_errors,
            syncs,
            glimpses: Glimpses::default(),
            announcements: Announcements::default(),
            trails: Rc::default(),
            sequencer: Sequencer::default(),
            leases,
            directories: DirectoryWork::default(),
            undecided: Undecided::default(),
            statistics: Statistics::new(samples),
            checkpoints: Checkpoints::default(),
            submissions: SubmissionWork::default(),
            listings: Listings::default(),
            low_priority: LowPriority::default(),
            backing,
        }
    }

    /// Attributes of an inode that begins now.
    pub fn new_attributes(&self, id: FileId, kind: Kind, mode: u32, caller: &Caller, wish: &LayoutWish) -> Attributes {
        let user = &caller.peer.user;
        self.attributes_of(id, kind, mode, (user.uid, user.gid), wish)
    }

    /// The same for an owner and group.
    pub fn attributes_of(&self, id: FileId, kind: Kind, mode: u32, owner: (u32, u32), wish: &LayoutWish) -> Attributes {
        Attributes::of_new(id, kind, mode, owner, self.clock.time(), self.cluster.layout_for(id.home(), wish))
    }

    pub fn owns_slot(&self, slot: Slot) -> bool {
        self.cluster.server_of(slot) == self.index
    }

    /// Refuses a file id whose home is not here.
    pub fn check_home(&self, file: FileId) -> Result<(), Failure> {
        match self.cluster.home_of(file) {
            Some(home) if home == self.index => Ok(()),
            Some(_) => Err(Status::WrongServer.into()),
            None => Err(Failure::with_text(Status::BadMessage, "file id is out of range")),
        }
    }

    /// The inode of a file whose home is here, or `StaleFile`.
    pub fn inode(&self, file: FileId) -> Result<Inode, Failure> {
        self.tables.borrow().inodes.get(file).ok_or_else(|| Failure::new(Status::StaleFile, file))
    }

    /// Checks how a new file is to be spread over the servers.
    pub fn check_wish(&self, wish: &LayoutWish) -> Result<(), Failure> {
        wish.check(self.cluster.server_count()).map_err(|words| Failure::with_text(Status::Invalid, words))
    }

    /// Checks a layout from outside.
    pub fn check_layout(&self, layout: &Layout) -> Result<(), Failure> {
        Ok(layout.check(self.cluster.slot_count)?)
    }

    /// All servers but this one.
    pub fn other_servers(&self) -> Vec<u32> {
        (0..self.cluster.server_count()).filter(|server| *server != self.index).collect()
    }

    /// Waits, but not beyond the deadline; `what` is told when that passes.
    pub async fn wait_until<T>(
        &self,
        deadline: Nanos,
        what: &'static str,
        future: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        until(&self.reactor, deadline, future).await.ok_or_else(|| Failure::with_text(Status::TimedOut, what))
    }
}
