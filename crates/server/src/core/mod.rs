//! What all handlers of a server share.
//!
//! Invariants
//! 1. No borrow of the tables is held across an await or while a reply is sent.
//! 2. A handler journals all of a change and its outcome in one transaction, before the tables change.

pub mod background;
pub mod clock;
pub mod failure;
pub mod slab;
pub mod waiting;

use crate::coordination::intents::Origin;
use crate::coordination::peers::Peers;
use crate::coordination::undecided::Undecided;
use crate::core::background::BackgroundTasks;
use crate::core::clock::Clock;
use crate::core::failure::Failure;
use crate::core::waiting::{Turns, until};
use crate::files::announcement::Announcements;
use crate::files::file_locks::queue::Queues;
use crate::files::glimpse::Glimpses;
use crate::files::inodes::Inode;
use crate::files::rights::has_dropped_bits;
use crate::handlers::{Copies, Listings, Sequencer};
use crate::journal::checkpoint::Checkpoints;
use crate::journal::durability::Syncs;
use crate::journal::records::Record;
use crate::journal::tables::{NUMBER_BLOCK, Tables};
use crate::leases::Leases;
use crate::names::NO_TIME;
use crate::publish::attribute_cache::Changes;
use crate::publish::submission::SubmissionWork;
use crate::server::life::Life;
use crate::server::options::ServerOptions;
use crate::server::statistics::Statistics;
use crate::sessions::low_priority::LowPriority;
use crate::sessions::service::Request;
use crate::store::{Store, Transaction};
use crate::tree::Trails;
use crate::tree::shares::DirectoryWork;
use crate::tree::tombstones;
use reactor::{Nanos, Peer, Reactor, StampedRegion};
use std::cell::RefCell;
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;
use wire::attribute_cache::FirstBytes;
use wire::identity::SEQUENCE_MAX;
use wire::{Attributes, Cluster, FileId, Kind, Layout, Slot, Status};

/// Numbers from here on are for no new files.
const FILE_NUMBER_END: u64 = SEQUENCE_MAX - (1 << 40);

/// Files up to this size are shown with the place of their bytes.
const PUBLISHED_SIZE_MAX: u64 = 64 << 10;

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
    /// Turns of sessions at sending the value of an extended attribute.
    pub value_turns: Turns,
    pub copies: Copies,
    pub peers: Peers,
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

    pub fn new(reactor: &Reactor, options: ServerOptions, store: Store, tables: Tables) -> Core {
        let syncs = Syncs::new(reactor, &store);
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
            value_turns: Turns::default(),
            copies: Copies::default(),
            peers,
            syncs,
            glimpses: Glimpses::default(),
            announcements: Announcements::default(),
            trails: Rc::default(),
            sequencer: Sequencer::default(),
            leases,
            directories: DirectoryWork::default(),
            undecided: Undecided::default(),
            statistics: Statistics::new(),
            checkpoints: Checkpoints::default(),
            submissions: SubmissionWork::default(),
            listings: Listings::default(),
            low_priority: LowPriority::default(),
        }
    }

    /// Time for a change of names: later than that of any other one here, so that a directory's home can tell from two
    /// times of this server's share whether something happened between.
    fn change_time(&self) -> i64 {
        self.clock.time().max(self.tables.borrow().names.latest_time().saturating_add(1))
    }

    /// Makes a change: journals the records together with what the transaction holds, then applies them.
    pub fn commit<'a>(
        self: &Rc<Self>,
        mut transaction: Transaction,
        records: impl AsRef<[Record<'a>]> + IntoIterator<Item = Record<'a>>,
    ) -> Result<(), Failure> {
        self.leases.check_kept(records.as_ref(), &self.tables.borrow(), self.reactor.now());
        if records.as_ref().iter().any(Record::is_too_large) {
            let words = "the answer to this change is larger than what a server keeps of answers";
            return Err(Failure::with_text(Status::TooLarge, words));
        }
        let changes_names = records.as_ref().iter().any(Record::is_dentry);
        let time = if changes_names { self.change_time() } else { NO_TIME };
        for record in records.as_ref() {
            if let Some(kind) = record.kind() {
                transaction.put(kind, |out| record.encode(time, out));
            }
        }
        let mut invalidated = Changes::default();
        if let Some(publisher) = &self.tables.borrow().publisher {
            // Before anything of the change can be seen (attribute cache, invariant 1).
            transaction.files().for_each(|file| publisher.invalidate_inode(FileId(file)));
            records.as_ref().iter().for_each(|record| publisher.invalidate(record, &mut invalidated));
        }
        self.store.commit(transaction)?;
        let released = {
            let mut tables = self.tables.borrow_mut();
            for record in records {
                tables.apply(record, time, None);
            }
            self.publish_changes(&tables, &invalidated);
            tables.file_locks.is_released()
        };
        if released {
            crate::handlers::after_release(self);
        }
        tombstones::start(self);
        if self.store.checkpoint_due() {
            crate::journal::checkpoint::start(self);
        }
        if self.store.is_sync_due() {
            self.syncs.start();
        }
        crate::server::prefault::start(self);
        Ok(())
    }

    /// Shows what a change has put.
    fn publish_changes(&self, tables: &Tables, changes: &Changes<'_>) {
        if let Some(publisher) = &tables.publisher {
            changes.names().for_each(|name| publisher.publish_name(name, &tables.locks));
            changes.files().for_each(|file| self.publish(tables, file));
        }
    }

    /// Shows a file as it is now.
    fn publish(&self, tables: &Tables, file: FileId) {
        if let (Some(publisher), Some(inode)) = (&tables.publisher, tables.inodes.get(file)) {
            publisher.publish_inode(inode, self.first_bytes(&inode.attributes), &tables.locks);
        }
    }

    /// Whether nothing has to be done before a write to a file: no server has to be told, nobody to be waited for, and
    /// no bit of its mode goes.
    pub fn takes_writes(&self, tables: &Tables, file: FileId) -> bool {
        if self.cluster.home_of(file) != Some(self.index) {
            return self.is_announced(file);
        }
        let is_fit = |inode: &Inode| inode.attributes.kind == Kind::File && !has_dropped_bits(inode.attributes.mode);
        tables.inodes.get(file).is_some_and(is_fit) && !self.leases.read_leases.may_stand(file, self.reactor.now())
    }

    /// Somebody who may submit has written to a file: the next writes need not be asked for.
    pub fn invite_writes(&self, queue: Option<usize>, file: FileId) {
        let tables = self.tables.borrow();
        if let (Some(_), Some(publisher)) = (queue, &tables.publisher)
            && self.takes_writes(&tables, file)
        {
            publisher.publish_writable(file);
            // Where somebody always writes, nothing is faulted in ahead.
            self.store.approach_kept_pages();
        }
    }

    /// From now on who writes to the file asks.
    pub fn forget_writable(&self, file: FileId) {
        if let Some(publisher) = &self.tables.borrow().publisher {
            publisher.invalidate_writable(file);
        }
    }

    /// Shows a file that somebody was just told of, unless it is shown.
    pub fn publish_missing(&self, tables: &Tables, inode: &Inode) {
        if tables.publisher.as_ref().is_some_and(|publisher| publisher.lacks_inode(inode)) {
            self.publish(tables, inode.attributes.id);
        }
    }

    /// Where all bytes of a small file lie, if they are here and one behind the other.
    pub fn first_bytes(&self, attributes: &Attributes) -> FirstBytes {
        let is_small = attributes.kind == Kind::File && (1..=PUBLISHED_SIZE_MAX).contains(&attributes.size);
        if !is_small || self.cluster.chunk_server(attributes.id, &attributes.layout, 0) != self.index {
            return FirstBytes::default();
        }
        let mut first = None;
        self.store.places(attributes.id.0, 0, |place| {
            first = match first {
                None if place.offset == 0 => Some(FirstBytes { at: place.at, size: place.size }),
                _ => Some(FirstBytes::default()),
            }
        });
        first.filter(|first| u64::from(first.size) >= attributes.size).unwrap_or_default()
    }

    /// Makes a change that has no chunks in it.
    pub fn change<'a>(
        self: &Rc<Self>,
        records: impl AsRef<[Record<'a>]> + IntoIterator<Item = Record<'a>>,
    ) -> Result<(), Failure> {
        self.commit(self.store.begin(), records)
    }

    /// A number that this server never gave out before: the sequence of a file id, of an intent, of an attempt.
    pub fn next_number(self: &Rc<Self>) -> Result<u64, Failure> {
        let (next, limit, generation_limit) = {
            let tables = self.tables.borrow();
            (tables.next_number, tables.number_limit, tables.generation_limit)
        };
        if next >= limit {
            if limit + NUMBER_BLOCK > SEQUENCE_MAX {
                return Err(Failure::with_text(Status::NoSpace, "all numbers of this server are used up"));
            }
            self.change([Record::Numbers { number_limit: limit + NUMBER_BLOCK, generation_limit }])?;
        }
        self.tables.borrow_mut().next_number = next + 1;
        Ok(next)
    }

    /// The id of a file that is about to be made. The last numbers are kept for what is to be done to those that there
    /// are: opening, changing and removing them takes numbers too. Errors: `NoSpace`.
    pub fn next_file(self: &Rc<Self>, slot: Slot) -> Result<FileId, Failure> {
        self.check_file_numbers()?;
        Ok(FileId::new(self.next_number()?, slot))
    }

    /// Refuses to give out more numbers for files than there may be.
    pub fn check_file_numbers(&self) -> Result<(), Failure> {
        match self.tables.borrow().next_number < FILE_NUMBER_END {
            true => Ok(()),
            false => Err(Failure::with_text(Status::NoSpace, "all file ids of this server are used up")),
        }
    }

    /// Numbers as `next_number` gives them, so many in a row.
    pub fn next_numbers(self: &Rc<Self>, count: u64) -> Result<Range<u64>, Failure> {
        // Numbers that are left before the next block are lost.
        let first = self.next_number()?;
        let (limit, generation_limit) = {
            let tables = self.tables.borrow();
            (tables.number_limit, tables.generation_limit)
        };
        if first + count > limit {
            if limit + NUMBER_BLOCK > SEQUENCE_MAX {
                return Err(Failure::with_text(Status::NoSpace, "all numbers of this server are used up"));
            }
            self.change([Record::Numbers { number_limit: limit + NUMBER_BLOCK, generation_limit }])?;
        }
        self.tables.borrow_mut().next_number = first + count;
        Ok(first..first + count)
    }

    /// A generation of announcements that this server never gave out before.
    pub fn next_generation(self: &Rc<Self>) -> Result<u32, Failure> {
        let (next, limit, number_limit) = {
            let tables = self.tables.borrow();
            (tables.next_generation, tables.generation_limit, tables.number_limit)
        };
        if next >= limit {
            let Some(generation_limit) = limit.checked_add(NUMBER_BLOCK as u32) else {
                return Err(Failure::with_text(Status::NoSpace, "all generations of this server are used up"));
            };
            self.change([Record::Numbers { number_limit, generation_limit }])?;
        }
        self.tables.borrow_mut().next_generation = next + 1;
        Ok(next)
    }

    /// Attributes of an inode that begins now.
    pub fn new_attributes(&self, id: FileId, kind: Kind, mode: u32, caller: &Caller, chunk_size: u32) -> Attributes {
        let user = &caller.peer.user;
        self.attributes_of(id, kind, mode, (user.uid, user.gid), chunk_size)
    }

    /// The same for an owner and group.
    pub fn attributes_of(&self, id: FileId, kind: Kind, mode: u32, owner: (u32, u32), chunk_size: u32) -> Attributes {
        Attributes::of_new(id, kind, mode, owner, self.clock.time(), self.cluster.layout_for(id.home(), chunk_size))
    }

    /// Has replies name the last tree change from now on.
    pub fn publish_tree_number(&self) {
        if let Some(handle) = self.life.handle() {
            handle.set_tree_number(self.tables.borrow().tree.number());
        }
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
        self.tables.borrow().inodes.get(file).cloned().ok_or_else(|| Failure::new(Status::StaleFile, file))
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

/// Part of the journal, in eighths, beyond which changes wait for the checkpoint that runs.
const JOURNAL_LOW_EIGHTHS: u64 = 7;

/// Bytes of a record beside one large entry: its header, an inode, an outcome.
const RECORD_REST: u64 = 4096;

impl Core {
    /// Whether a record with an entry of this size has to wait until a checkpoint has made room for it. Not for one
    /// that never fits, which is refused when it is journalled.
    pub fn lacks_journal_room(&self, entry_size: usize) -> bool {
        let usage = self.store.usage();
        // What the record may leave unused before the ring's end counts as well.
        let needed = 2 * (entry_size as u64 + RECORD_REST) + RECORD_REST;
        needed <= usage.journal_size / 2 && usage.journal_used + needed > usage.journal_size
    }

    /// Whether changes have to wait until a checkpoint has given the journal room again.
    pub fn is_journal_low(&self) -> bool {
        if !self.checkpoints.is_running() {
            return false;
        }
        let (room, size) = self.store.journal_room();
        size - room > size / 8 * JOURNAL_LOW_EIGHTHS
    }
}
