//! How a server is set up, and why it may not start.

use crate::store::{JournalGrowth, StoreError};
use reactor::{BufferedStorage, Nanos};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use wire::Cluster;

/// Leases of the contents of small files (`crate::leases::read_leases`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLeasing {
    /// For how long they are given; 0 gives none.
    pub time: Nanos,
    /// How long the file must not have changed.
    pub rest: Nanos,
}

impl ReadLeasing {
    pub const OFF: ReadLeasing = ReadLeasing { time: 0, rest: 0 };
}

impl Default for ReadLeasing {
    /// Long enough for a read that follows its open, and short enough to wait for; of who changes a file again and
    /// again it takes a tenth of his time at most.
    fn default() -> ReadLeasing {
        ReadLeasing { time: 2_000_000, rest: 20_000_000 }
    }
}

/// Delegations of all entries to clients that keep them (`crate::leases::kept_entries`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryKeeping {
    /// Clients that may hold one at a time; 0 gives none.
    pub holders: usize,
    /// For how long one is given at a time; who holds it asks again in time.
    pub time: Nanos,
    /// How long nobody else must have changed anything before one is given.
    pub rest: Nanos,
}

impl Default for EntryKeeping {
    /// The time is what a change waits at most for a mount that was killed, once, and for how long the kernel of a
    /// mount need not ask again. The rest keeps a tree that several work in from being kept by turns.
    fn default() -> EntryKeeping {
        EntryKeeping { holders: 64, time: 10_000_000_000, rest: 100_000_000 }
    }
}

/// When what was changed over a backing tree goes behind without being asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushPolicy {
    /// In spells without accesses of clients.
    Idle,
    /// At once.
    Immediate,
    /// Files when nobody has them open any more, and what else was changed along with them.
    OnClose,
    /// When somebody says so.
    Manual,
    /// Not at all: who asks for it is refused.
    Never,
}

impl FlushPolicy {
    /// All, by their words.
    pub const WORDS: [(&str, FlushPolicy); 5] = [
        ("idle", FlushPolicy::Idle),
        ("immediate", FlushPolicy::Immediate),
        ("on-close", FlushPolicy::OnClose),
        ("manual", FlushPolicy::Manual),
        ("never", FlushPolicy::Never),
    ];

    /// `None` for a word that stands for none.
    pub fn of_word(word: &str) -> Option<FlushPolicy> {
        FlushPolicy::WORDS.into_iter().find(|(own, _)| *own == word).map(|(_, policy)| policy)
    }

    pub fn word(self) -> &'static str {
        FlushPolicy::WORDS.into_iter().find(|(_, own)| *own == self).map_or("", |(word, _)| word)
    }

    /// Whether servers ask for flushes by themselves.
    pub fn is_automatic(self) -> bool {
        matches!(self, FlushPolicy::Idle | FlushPolicy::Immediate | FlushPolicy::OnClose)
    }
}

/// What becomes of a name behind that somebody else has changed, when what is here is to go there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictPolicy {
    /// Theirs keeps the name, ours goes beside it, and that is listed by each flush.
    Both,
    /// Ours takes the name, theirs is moved beside it.
    Ours,
    /// Ours is given up: the name shows theirs here from then on.
    Theirs,
}

impl ConflictPolicy {
    /// All, by their words.
    pub const WORDS: [(&str, ConflictPolicy); 3] =
        [("both", ConflictPolicy::Both), ("ours", ConflictPolicy::Ours), ("theirs", ConflictPolicy::Theirs)];

    /// `None` for a word that stands for none.
    pub fn of_word(word: &str) -> Option<ConflictPolicy> {
        ConflictPolicy::WORDS.into_iter().find(|(own, _)| *own == word).map(|(_, policy)| policy)
    }

    pub fn word(self) -> &'static str {
        ConflictPolicy::WORDS.into_iter().find(|(_, own)| *own == self).map_or("", |(word, _)| word)
    }
}

/// When changes go behind, how fast (`crate::backing::pace`), and over what; and when what is there is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flushing {
    pub policy: FlushPolicy,
    /// Quiet time after which a server counts as idle; 0 has it learnt.
    pub idle: Nanos,
    /// How long something may have been different here, at a stretch, until it goes beside accesses.
    pub age: Nanos,
    /// Bytes a second of each server, of what nobody waits for; 0 for any number.
    pub rate: u64,
    /// Inodes that are carried at a time, by all servers together.
    pub writers: u32,
    pub on_conflict: ConflictPolicy,
    /// How long a server that is told to end carries changes at most.
    pub grace: Nanos,
    /// Files of fewer bytes are replaced as a whole behind, larger ones updated where they are; `u64::MAX` has all
    /// replaced.
    pub atomic_below: u64,
    /// What was looked at behind longer ago is looked at again when it is asked for; `Nanos::MAX` for never.
    pub check: Nanos,
    /// Whether who syncs a file waits until it is behind.
    pub fsync_carries: bool,
}

impl Default for Flushing {
    fn default() -> Flushing {
        Flushing {
            policy: FlushPolicy::Idle,
            idle: 0,
            age: 300_000_000_000,
            rate: 0,
            writers: 16,
            on_conflict: ConflictPolicy::Both,
            grace: 20_000_000_000,
            atomic_below: 1 << 20,
            check: 10_000_000_000,
            fsync_carries: false,
        }
    }
}

/// How clients may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Those of this machine through shared memory, all others over TCP.
    Auto,
    /// All through shared memory, so those of this machine alone. Other servers come as with `Auto`.
    Shm,
    /// All over TCP.
    Tcp,
}

impl Transport {
    /// All, by their words.
    pub const WORDS: [(&str, Transport); 3] =
        [("auto", Transport::Auto), ("shm", Transport::Shm), ("tcp", Transport::Tcp)];

    /// `None` for a word that stands for none.
    pub fn of_word(word: &str) -> Option<Transport> {
        Transport::WORDS.into_iter().find(|(own, _)| *own == word).map(|(_, transport)| transport)
    }

    pub fn word(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
        }
    }
}

/// How much a server remembers of each kind. Beyond it something is forgotten, refused, or asked for anew; nothing goes
/// wrong. Simulations choose small ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Directories in the log of tree changes; 2 at least.
    pub tree_log: usize,
    /// Removed directories, until all clients are told to forget what they have cached; twice as many at most.
    pub tombstones: usize,
    /// Files of which other servers may hold delegations.
    pub delegated_files: usize,
    /// Names that a contact knows.
    pub contact_names: usize,
    /// Files that a contact holds open for clients.
    pub contact_files: usize,
    /// Files whose contents clients have a lease of.
    pub read_leased_files: usize,
    /// Blocks of 4 KiB in which local clients see names and files.
    pub index_blocks: u64,
    /// Sessions, beside what four for each connection that there may be are.
    pub sessions: usize,
    /// Files that a session has open, and all of them.
    pub session_open_files: usize,
    pub open_files: usize,
    /// Ranges that are locked: of a file, of a session, all of them.
    pub file_lock_ranges: usize,
    pub session_lock_ranges: usize,
    pub lock_ranges: usize,
    /// Who waits for locks: of a session, all of them.
    pub session_lock_waiters: usize,
    pub lock_waiters: usize,
    /// Requests of a session to be told of its turn, of those who wait; others ask again and again.
    pub session_lock_listeners: usize,
    /// Permits for large bodies of collective calls that are out at a time; who waits for one, beyond which nobody
    /// waits any more; and requests of a connection that do.
    pub permits: usize,
    pub permit_waiters: usize,
    pub session_permit_listeners: usize,
    /// Requests of clients at work; others queue.
    pub active_requests: usize,
    /// Clients of this machine with a submission queue.
    pub submission_queues: usize,
    /// Entries of each table of which any may be forgotten at any time, where it has no lower bound of its own.
    pub memos: usize,
    /// Names that were taken up from a backing tree and are not in use.
    pub taken_up_names: usize,
    /// Wishes of flushes of each kind.
    pub wishes: usize,
    pub entry_keeping: EntryKeeping,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            tree_log: 1024,
            tombstones: 65_536,
            delegated_files: 1024,
            contact_names: 1024,
            contact_files: 16_384,
            read_leased_files: 4096,
            index_blocks: u64::MAX,
            sessions: usize::MAX,
            session_open_files: wire::limits::OPEN_COUNT_MAX,
            open_files: 1 << 20,
            file_lock_ranges: 32_768,
            session_lock_ranges: 65_536,
            lock_ranges: 131_072,
            session_lock_waiters: 512,
            lock_waiters: 1024,
            // Half of what a connection may have under way, so that unlocking always gets through.
            session_lock_listeners: wire::limits::REQUEST_WINDOW as usize / 2,
            permits: 2,
            permit_waiters: 65_536,
            session_permit_listeners: wire::limits::REQUEST_WINDOW as usize / 2,
            active_requests: 256,
            submission_queues: reactor::QUEUE_COUNT,
            memos: usize::MAX,
            taken_up_names: usize::MAX,
            wishes: usize::MAX,
            entry_keeping: EntryKeeping::default(),
        }
    }
}

/// What keeps a store whose directory is in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStore {
    /// A file or block device; one that is not there is made.
    pub path: PathBuf,
    /// Bytes of data that are in memory at most.
    pub buffer: u64,
}

/// Room for checkpoints on a device, at least.
const CHECKPOINTS_SIZE_MIN: u64 = 64 << 20;
/// Part of a store's size that checkpoints have on a device: there are three at a time, one of which is gone already.
const CHECKPOINTS_SHARE: u64 = 16;

impl DeviceStore {
    /// Bytes of a device for so much data and such a journal.
    pub fn device_size(store_size: u64, journal_size: u64) -> u64 {
        let checkpoints = (store_size / CHECKPOINTS_SHARE).max(CHECKPOINTS_SIZE_MIN);
        BufferedStorage::device_size(store_size + journal_size + checkpoints)
    }

    /// Bytes of data that a device of so many bytes has room for, about; 0 if it is too small.
    pub fn data_size(device_size: u64, journal_size: u64) -> u64 {
        let rest = device_size.saturating_sub(BufferedStorage::device_size(journal_size));
        (rest / (CHECKPOINTS_SHARE + 1) * CHECKPOINTS_SHARE).min(rest.saturating_sub(CHECKPOINTS_SIZE_MIN))
    }
}

/// What a server has to be told.
#[derive(Clone)]
pub struct ServerOptions {
    pub cluster: Rc<Cluster>,
    /// Number of this server in the cluster.
    pub index: u32,
    /// Directory of the store; nobody else may use it meanwhile.
    pub directory: PathBuf,
    /// What keeps the store, where the directory is in memory.
    pub device: Option<DeviceStore>,
    /// Bytes for data, of a store that is created.
    pub store_size: u64,
    /// Bytes of the journal, of a store that is created.
    pub journal_size: u64,
    /// How it grows, of a store that is created in memory.
    pub journal_growth: JournalGrowth,
    /// Whether chunks carry checksums, of a store that is created.
    pub checksums: bool,
    /// Most connections at a time, of clients and other servers together.
    pub connections_max: usize,
    pub transport: Transport,
    /// Whether processes of this machine and user may read from the store's mapping by themselves.
    pub short_circuit: bool,
    /// Whether they may also register pages of it to write to.
    pub registered_buffers: bool,
    pub read_leasing: ReadLeasing,
    pub bounds: Bounds,
    /// Why the store lies on the pages that it lies on, in words for reports; empty where that needs none.
    pub pages_note: String,
    /// Silence of another server after which it counts as unreachable.
    pub timeout: Nanos,
    /// How long a session without a connection is remembered.
    pub session_grace: Nanos,
    /// Loopback port of the Prometheus page.
    pub metrics_port: Option<u16>,
    /// Root of the backing tree, which the cluster shows and caches (docs/cache.md).
    pub backing: Option<PathBuf>,
    pub flushing: Flushing,
}

/// Why a server did not start. The words say what to do.
#[derive(Debug)]
pub enum StartError {
    /// Nobody could connect through shared memory, and clients must.
    NoSharedMemory(io::Error),
    /// The index is not one of the cluster's.
    NoSuchServer { index: u32, server_count: u32 },
    /// The directory can't be used.
    Directory(PathBuf, io::Error),
    /// The device of the store can't be used. The error names it.
    Device(io::Error),
    /// Another server uses the directory.
    InUse(PathBuf),
    /// The store can't be created or opened.
    Store(PathBuf, StoreError),
    /// The address can't be listened on.
    Listen(SocketAddr, io::Error),
    /// The backing directory can't be used, with why.
    Backing(PathBuf, String),
    /// The store in the directory is one of a cluster with a backing directory, and there is none.
    BackingMissing(PathBuf),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StartError::NoSuchServer { index, server_count } => {
                write!(f, "server {index} is not in the cluster file, which names servers 0 to {}", server_count - 1)
            }
            StartError::NoSharedMemory(error) => {
                write!(
                    f,
                    "clients can't connect through shared memory: {error}; use --transport auto to let them use TCP"
                )
            }
            StartError::Directory(path, error) => write!(
                f,
                "directory {} can't be used: {error}; choose another with --dir or make it writable",
                path.display()
            ),
            StartError::Device(error) => write!(f, "the device of the store can't be used: {error}"),
            StartError::InUse(path) => write!(
                f,
                "directory {} is in use by another server; stop that one or choose another directory",
                path.display()
            ),
            StartError::Store(path, error) => {
                write!(f, "store in {}: {error}", path.display())?;
                match error {
                    StoreError::Medium(_, error) if error.kind() == io::ErrorKind::StorageFull => {
                        write!(f, "; make room there or choose another directory with --dir")
                    }
                    StoreError::Damaged(_) => {
                        write!(f, "; 'tabane salvage {}' tells whether it can be mended", path.display())
                    }
                    _ => Ok(()),
                }
            }
            StartError::Backing(path, words) => write!(
                f,
                "backing directory {} can't be used: {words}; mend that, or name the right one with --backing",
                path.display()
            ),
            StartError::BackingMissing(path) => write!(
                f,
                "the store in {} is one of a cluster with a backing directory; name that with --backing",
                path.display()
            ),
            StartError::Listen(address, error) => write!(
                f,
                "address {address} can't be listened on: {error}; stop what uses the port or choose another one"
            ),
        }
    }
}

impl std::error::Error for StartError {}
