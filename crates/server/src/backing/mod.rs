//! A cache of the site's file system: files and directories of a backing tree are taken up when they are asked for, and
//! their bytes fetched when they are read (docs/cache.md has the states).
//!
//! What has to be known of the tree before a request can be done is brought here before its handler runs
//! (`preparation`), in a task of its own, so that handlers look at their tables alone and never wait for the tree: they
//! find what is there, and "not here" is an answer. Only what learns late which bytes it is about (writes, appends)
//! asks by itself (`Core::take_in`), at the last moment before its commit.
//!
//! Who holds what: the server of a name looks for it and is the home of what it takes up, with its place. Other servers
//! ask the home for a place once (`AskPlace`); of a file they keep it and are among its holders from then on, so that
//! truncates and reaps reach them. Ids tell by themselves what was taken up (`FileId::is_from_behind`), so that for
//! what was made here nothing is asked, looked up or kept.
//!
//! Levels: preparations ask other servers at level 3 alone (`AskPlace`, `AnnounceDirectory`), which answers from
//! tables. So whatever waits for the tree or for such an answer, nothing waits for it in a circle.
//!
//! What is known of the tree is looked at again when it is old (`check`).
//!
//! What was changed here goes back by flushes (`flush`): the home of the root says what and in which order (`pass`),
//! the homes of inodes carry them (`carry`), and holders of chunks write these (`shares`). When that happens unasked,
//! and how fast, each server judges for itself (`pace`), also when it is told to end (`grace`). Where somebody else has
//! changed a name as well, `conflicts` says what becomes of it, and `give_up` has it show what is behind.
//!
//! Invariants
//! 1. A name that is neither here nor known not to be is looked at before any handler of a request about it runs; what
//!    is found is taken up, unless it differs, or its directory is listed, locked for it, or going.
//! 2. No chunk that is absent is read, and none is written to but as a whole (`derive` asserts it).
//! 3. Bytes count only if the file behind was what its place says when they had been read, and still has that place.
//! 4. A call on the tree that hangs keeps those alone waiting that need what it is about, and not beyond their time.

mod attributes_behind;
mod base_copy;
mod cache_state;
mod carried_place;
mod carry;
mod carry_directory;
mod change_list;
mod changes;
mod check;
mod chunks;
mod clean_queue;
mod compare;
mod conflicts;
mod derive;
mod eviction;
mod extended_behind;
mod fetch_gate;
mod flush;
mod give_up;
mod grace;
mod hidden;
mod in_place;
mod links;
mod listed_names;
mod listing;
mod lost;
mod name_eviction;
mod names;
mod notes;
mod pace;
mod pass;
mod places;
mod preparation;
mod settled;
mod shared_syncs;
mod shares;
mod small_fetch;
mod space;
mod stage;
pub mod table;
mod wishes;

pub use cache_state::cache_state;
pub use carry::carry_inode;
pub use change_list::list_changes;
pub use compare::{compare_share, list_carried};
pub use derive::OutlivedName;
pub use eviction::{ChunkUse, ranges_of};
pub use extended_behind::{EXTENDED_MARK, keeps_extended};
pub use flush::{ask_for_flush, flush};
pub use give_up::give_up_name;
pub use hidden::HiddenName;
pub use shares::{note_carried, write_share};
pub use stage::stage;

pub use name_eviction::NAME_SIZE;
pub use names::attributes_of;
pub use notes::note_behind;
pub use places::{ask_carried, ask_place};
pub use preparation::{lacking, preparation, preparation_number};

use crate::backing::table::RootIdentity;
use crate::core::{Core, Failure, Notice, Turns, until};
use crate::files::late_errors::{CARRY_FILES_MAX, ERROR_SIZE, REASON_SIZE_MAX};
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::process::options::{ConflictPolicy, ServerOptions, StartError};
use crate::store::FastMap;
use fetch_gate::FetchGate;
use listed_names::{LISTED_SIZE_MAX, ListedNames, ListedTotal};
use places::{Ask, RememberedPlaces};
use reactor::backing::{BackingAttributes, BackingError, BackingTree, CallStatus, FreeSpace};
use reactor::backing::{CALL_SIZE_MAX, CALLS_MAX};
use reactor::{Nanos, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::hash::RandomState;
use std::path::Path;
use std::rc::Rc;
use wire::{FileId, Status};
use wishes::Wishes;

/// Between two looks at a root that fail.
const LOOK_PAUSE_NS: Nanos = 50_000_000;

/// Ids that were given to what was taken up, and paths behind.
type TakenUpLog = Vec<(FileId, u64)>;

/// Told of something that was brought here, or why not.
type Brought = Notice<Result<(), Failure>>;

/// A backing tree in use. What is in here is in memory alone.
pub struct BackingUse {
    tree: BackingTree,
    /// `Bounds::memos`.
    memos: usize,
    /// What the root was when this life began.
    root: BackingAttributes,
    /// Where directories of other servers are behind; forgotten when there are too many.
    paths: RefCell<RememberedPlaces>,
    /// Places that are being asked for.
    asks: RefCell<FastMap<u64, Rc<Ask>>>,
    /// Chunks that are being fetched, by file and index.
    fetches: RefCell<FastMap<(u64, u64), Rc<chunks::Fetch>>>,
    /// Those of them that hold space.
    fetch_gate: FetchGate,
    /// How long reading small files takes.
    file_time: small_fetch::FileTime,
    eviction: eviction::Eviction,
    checks: check::Checks,
    names: name_eviction::NameEviction,
    space_known: space::SpaceKnown,
    /// The inode whose extended attributes went last, for there was no room.
    extended_gone: Cell<u64>,
    lost: lost::Lost,
    /// Directories that are being listed.
    listings: RefCell<FastMap<u64, listing::ListingStep>>,
    /// Those of them in which a name was forgotten meanwhile.
    disturbed: RefCell<BTreeSet<u64>>,
    /// Names that were looked for in vain, by directory.
    misses: RefCell<FastMap<u64, u32>>,
    /// Names that were read and that nobody has looked at, by directory.
    listed_names: RefCell<FastMap<u64, Rc<RefCell<ListedNames>>>>,
    listed_total: Rc<ListedTotal>,
    /// When some of them were shown last, and whose turn it is to look at those that nobody needs.
    names_shown: Cell<Nanos>,
    idle_looks: Turns,
    counters: Counters,
    /// What of files is being written behind here, or was; by file.
    shares: Wishes<u64, shares::ShareWrite>,
    /// Inodes that are being carried behind by this server, or were.
    carries: Wishes<u64, carry::CarryTask>,
    /// Those of them whose place changes right now; told when that is over.
    moving: RefCell<FastMap<u64, carried_place::MovingPlace>>,
    /// Names that are given up to somebody else, or were.
    give_ups: Wishes<give_up::NameKey, give_up::GiveUp, RandomState>,
    flushes: flush::Flushes,
    settled: settled::Settled,
    /// Files that are beside what somebody else has put at their names.
    besides: RefCell<FastMap<u64, conflicts::Beside>>,
    /// Files that were synced since this server knows of a change of theirs, some of them.
    synced: RefCell<BTreeSet<u64>>,
    on_conflict: ConflictPolicy,
    pace: pace::Pace,
    file_syncs: shared_syncs::FileSyncs,
    name_syncs: shared_syncs::NameSyncs,
    /// For tests of the simulation's checkers.
    fault: Cell<Option<BackingFault>>,
    /// For simulations: what this life took up.
    log: RefCell<Option<TakenUpLog>>,
}

/// Bytes that calls under way, remembered paths and names that were read take at most; a table of names that grows has
/// twice its size; and why files can't be carried. What was taken up counts with the names and inodes.
pub const MEMORY_MAX: u64 = 2 * (CALLS_MAX * CALL_SIZE_MAX) as u64
    + places::PATHS_SIZE_MAX as u64
    + 2 * LISTED_SIZE_MAX as u64
    + (CARRY_FILES_MAX * (REASON_SIZE_MAX + ERROR_SIZE)) as u64;

/// What a server does wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackingFault {
    /// Absent chunks read as zeros.
    AbsentAsZeros,
    /// Directories that are not listed count as listed.
    UnlistedAsListed,
    /// Nothing is kept of names that differ.
    ForgetsDifferences,
    /// Files behind are not looked at again.
    IdentityUnchecked,
    /// What is written while a flush is under way counts as carried.
    LosesWritesInFlush,
    /// The same of chunks, where a flush goes on in spite of writes.
    LosesChunkChanges,
    /// What is written behind is not synced before it counts.
    SyncsNothing,
    /// What is dirty goes as what is clean does.
    EvictsDirty,
    /// What somebody else has put at a name is replaced by ours.
    ReplacesOthers,
    /// A base that has risen is forgotten when a flush notes a new place.
    ForgetsEvicted,
    /// What somebody else has changed as well is forgotten here.
    ForgetsChanges,
    /// A file that is written anew keeps its other names behind, which are those of the one before.
    ForgetsLinks,
    /// Who syncs a file is told that it is behind before it is.
    FsyncsTooSoon,
}

/// Numbers since the start.
#[derive(Default)]
struct Counters {
    looks: Cell<u64>,
    taken_up: Cell<u64>,
    listings: Cell<u64>,
    fetched_chunks: Cell<u64>,
    fetched_bytes: Cell<u64>,
    evicted_chunks: Cell<u64>,
    evicted_bytes: Cell<u64>,
    failed: Cell<u64>,
    changed: Cell<u64>,
    flushes: Cell<u64>,
    /// Inodes of this server that were carried behind, and bytes of this server that were written for it.
    carried: Cell<u64>,
    carried_bytes: Cell<u64>,
    /// Changes of anything that is behind.
    changes: Cell<u64>,
}

fn add(counter: &Cell<u64>, count: u64) {
    counter.set(counter.get() + count);
}

impl BackingUse {
    /// Opens the backing tree that the options name, and checks that it is the one of before; with the record that says
    /// so of a new store. Nothing without one. Errors say what to do.
    pub async fn open(
        reactor: &Reactor,
        options: &ServerOptions,
        tables: &Tables,
    ) -> Result<Option<(BackingUse, Record<'static>)>, StartError> {
        let known = tables.backing.root;
        let Some(path) = &options.backing else {
            return match known {
                None => Ok(None),
                Some(_) => Err(StartError::BackingMissing(options.directory.clone())),
            };
        };
        let failed = |words: String| StartError::Backing(path.clone(), words);
        let tree = reactor.backing_tree(path).map_err(|error| failed(error.to_string()))?;
        let root = look_at_root(reactor, options, &tree).await.map_err(failed)?;
        let space = look_at_space(reactor, options, &tree).await.map_err(failed)?;
        let identity = RootIdentity { file_system: space.file_system, inode: root.identity.inode };
        let record = match known {
            None if !tables.is_untouched() => {
                return Err(failed("the cluster was made without a backing directory".to_owned()));
            }
            None => Record::BackingRoot(identity),
            Some(known) if !known.may_be(&identity) => {
                return Err(failed("it is another directory than the one that the cluster was made with".to_owned()));
            }
            Some(_) => Record::Nothing,
        };
        let wishes_max = options.bounds.wishes;
        let used = BackingUse {
            tree,
            memos: options.bounds.memos,
            root,
            paths: RefCell::default(),
            asks: RefCell::default(),
            fetches: RefCell::default(),
            fetch_gate: FetchGate::default(),
            file_time: Default::default(),
            eviction: eviction::Eviction::default(),
            lost: lost::Lost::new(options.bounds.memos),
            names: name_eviction::NameEviction::default(),
            space_known: space::SpaceKnown::default(),
            extended_gone: Cell::default(),
            checks: check::Checks::new(options.flushing.check),
            listings: RefCell::default(),
            disturbed: RefCell::default(),
            misses: RefCell::default(),
            listed_names: RefCell::default(),
            listed_total: Rc::default(),
            names_shown: Cell::new(0),
            idle_looks: Turns::default(),
            shares: Wishes::new(shares::SHARES_MAX.min(wishes_max)),
            carries: Wishes::new(carry::CARRIES_MAX.min(wishes_max)),
            moving: RefCell::default(),
            give_ups: Wishes::new(give_up::GIVE_UPS_MAX.min(wishes_max)),
            flushes: flush::Flushes::default(),
            settled: settled::Settled::default(),
            besides: RefCell::default(),
            synced: RefCell::default(),
            on_conflict: options.flushing.on_conflict,
            pace: pace::Pace::new(options.flushing),
            file_syncs: shared_syncs::FileSyncs::default(),
            name_syncs: shared_syncs::NameSyncs::default(),
            counters: Counters::default(),
            fault: Cell::new(None),
            log: RefCell::new(None),
        };
        Ok(Some((used, record)))
    }

    /// The root of the tree, as this life found it.
    pub fn root(&self) -> &BackingAttributes {
        &self.root
    }

    /// The calls that have not ended, longest first.
    pub fn calls(&self) -> Vec<CallStatus> {
        self.tree.calls()
    }

    /// Has this server do something wrong.
    pub fn set_fault(&self, fault: BackingFault) {
        self.fault.set(Some(fault));
    }

    /// Has this life remember what it takes up.
    pub fn begin_log(&self) {
        self.log.replace(Some(Vec::new()));
    }

    /// What it remembers: ids, and numbers of the inodes behind.
    pub fn log(&self) -> TakenUpLog {
        self.log.borrow().clone().unwrap_or_default()
    }

    fn has_fault(&self, fault: BackingFault) -> bool {
        self.fault.get() == Some(fault)
    }

    /// Counters by name.
    pub fn numbers(&self) -> [(&'static str, u64); 19] {
        let (counters, calls) = (&self.counters, self.tree.statistics());
        [
            ("calls", calls.calls),
            ("calls_under_way", calls.under_way as u64),
            ("looks", counters.looks.get()),
            ("taken_up", counters.taken_up.get()),
            ("listings", counters.listings.get()),
            ("fetched_chunks", counters.fetched_chunks.get()),
            ("fetched_bytes", counters.fetched_bytes.get()),
            ("evicted_chunks", counters.evicted_chunks.get()),
            ("evicted_bytes", counters.evicted_bytes.get()),
            ("failed", counters.failed.get()),
            ("changed_behind", counters.changed.get()),
            ("checks", self.checks.looks.get()),
            ("forgotten_names", self.checks.forgotten.get()),
            ("evicted_names", self.names.evicted.get()),
            ("flushes", counters.flushes.get()),
            ("carried", counters.carried.get()),
            ("carried_bytes", counters.carried_bytes.get()),
            ("flush_spell_ns", self.pace.spell()),
            ("flush_turns_held", self.pace.held()),
        ]
    }

    /// The failure of a call, as a request is told of it.
    fn failure(&self, error: BackingError) -> Failure {
        add(&self.counters.failed, 1);
        let status = if error.is_refused() { Status::AccessDenied } else { Status::Io };
        match error.is_replaced() {
            true => self.changed(error.path()),
            false => Failure::with_text(status, error.to_string()),
        }
    }

    /// The failure of whoever needs what has changed in the tree since it was taken up.
    fn changed(&self, path: &[u8]) -> Failure {
        add(&self.counters.changed, 1);
        let path = path.escape_ascii();
        let words =
            format!("backing directory: {path} has changed there since it was taken up, so it can't be fetched");
        Failure::with_text(Status::Io, words)
    }
}

/// Looks at the root of the tree. Errors: words.
async fn look_at_root(
    reactor: &Reactor,
    options: &ServerOptions,
    tree: &BackingTree,
) -> Result<BackingAttributes, String> {
    insist(reactor, options, async || tree.root().await?.look_open().await).await
}

async fn look_at_space(reactor: &Reactor, options: &ServerOptions, tree: &BackingTree) -> Result<FreeSpace, String> {
    insist(reactor, options, async || tree.root().await?.space().await).await
}

/// Makes a call on the root, and again for a while if that fails otherwise than for good. Errors: words.
async fn insist<T>(
    reactor: &Reactor,
    options: &ServerOptions,
    call: impl AsyncFn() -> Result<T, BackingError>,
) -> Result<T, String> {
    let limit = reactor.now() + options.timeout;
    loop {
        match until(reactor, limit, call()).await {
            Some(Ok(root)) => return Ok(root),
            Some(Err(error)) if error.is_gone() || error.is_refused() => return Err(io_words(&error)),
            Some(Err(error)) if reactor.now() + LOOK_PAUSE_NS >= limit => return Err(io_words(&error)),
            Some(Err(_)) => reactor.sleep(LOOK_PAUSE_NS).await,
            None => return Err("its file system does not answer".to_owned()),
        }
    }
}

/// The words of an error, without what it was about.
fn io_words(error: &BackingError) -> String {
    std::io::Error::from_raw_os_error(error.errno()).to_string()
}

/// The path of a name below a directory of the tree.
fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"" => name.to_vec(),
        _ => [directory, b"/", name].concat(),
    }
}

impl Core {
    /// Whether something may be behind.
    pub fn is_behind(&self, id: FileId) -> bool {
        self.backing.is_some() && (id.is_from_behind() || id == FileId::ROOT)
    }

    /// Whether names of a directory that belong to this server are not all known here.
    pub fn lacks_listing(&self, tables: &Tables, directory: FileId) -> bool {
        let Some(backing) = &self.backing else { return false };
        self.is_behind(directory)
            && !tables.backing.is_listed(directory)
            && !backing.has_fault(BackingFault::UnlistedAsListed)
    }

    /// The use of the tree, by whoever knows that there is one.
    fn backing(&self) -> &BackingUse {
        match &self.backing {
            Some(backing) => backing,
            None => unreachable!("nothing is behind without a backing tree"),
        }
    }

    /// Waits for something that is brought here by a task of its own, which goes on whatever becomes of the waiting.
    async fn wait_for_backing(&self, brought: &Brought, deadline: Nanos) -> Result<(), Failure> {
        match until(&self.reactor, deadline, brought.wait()).await {
            Some(result) => result,
            None => Err(self.late()),
        }
    }

    /// The failure of a request that waits for the tree for too long; it names the call that takes longest of those
    /// that are about one thing.
    pub fn late(&self) -> Failure {
        let calls = self.backing.as_ref().map(BackingUse::calls).unwrap_or_default();
        let of_one = calls.iter().find(|call| !call.is_of_several);
        let words = match of_one.or(calls.first()) {
            Some(call) => {
                let path = if call.path.is_empty() { b"." } else { &*call.path };
                let (operation, path) = (call.operation, path.escape_ascii());
                format!("the backing directory does not answer: {operation} of {path} takes long")
            }
            None => "the backing directory takes long".to_owned(),
        };
        Failure::with_text(Status::TimedOut, words)
    }
}

/// How a backing directory and another one, of a cluster's own files, are in each other's way, in words; nothing if
/// they are not.
pub fn conflict(backing: &Path, other: &Path) -> Option<&'static str> {
    match () {
        () if backing == other => Some("is"),
        () if backing.starts_with(other) => Some("lies within"),
        () if other.starts_with(backing) => Some("holds"),
        () => None,
    }
}
