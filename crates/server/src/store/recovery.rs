//! Creating a store, and opening one again: checkpoint, journal, space, copies.

use super::allocator::{Allocator, PAGE_SIZE, Run};
use super::checkpoint::{self, NAME_PREFIX, segment_name};
use super::durability::{Durability, NAME_REFUSED};
use super::entries::{self, Copy, Entry};
use super::files::Files;
use super::journal::{self, Journal, Position};
use super::registered_buffers::{RegisteredBuffers, mapped_runs};
use super::state::StoreState;
use super::superblock::{Head, SUPER_SIZE, Superblock};
use super::sync_record;
use super::{EntryError, JournalGrowth, KIND_FOREIGN_FIRST, StoreError, StoreIdentity, StoreOptions};
use reactor::{
    OpenMode, Region, STAMPS_SIZE, SUBMISSION_LAYOUT, SUBMISSION_QUEUES_SIZE, StampedRegion, Storage, SubmissionsLeft,
    submissions_left,
};
use std::rc::Rc;
use wire::attribute_cache::AttributeCacheShape;

const NAME_SUPER: &str = "super";
const NAME_JOURNAL: &str = "journal";
/// The region of the data space.
pub const NAME_DATA: &str = "data";
/// When which part of the data space changed, for those who read by short circuit.
const NAME_STAMPS: &str = "stamps";
/// Stores that were made before submissions were called so have it too.
const NAME_SUBMISSIONS: &str = "posts";
/// More bytes than any journal ever has written to it, more records, and more checkpoints.
const POSITION_MAX: u64 = 1 << 62;
/// Smallest journal.
pub const JOURNAL_SIZE_MIN: u64 = 64 * 1024;

/// The caller's entries, handed back.
pub type Replay<'a> = &'a mut dyn FnMut(u8, &[u8]) -> Result<(), EntryError>;

/// See [`super::Store::exists`].
pub fn exists(storage: &dyn Storage) -> bool {
    let open = |name: &str| storage.exists(name).then(|| storage.open(name, 0, OpenMode::Existing).ok()).flatten();
    let is_complete =
        open(NAME_SUPER).is_some_and(|region| region.size() >= SUPER_SIZE && Superblock::is_complete(region.as_ref()));
    let is_complete = is_complete && open(NAME_DATA).is_some() && open(NAME_JOURNAL).is_some();
    // A store whose superblock is gone but whose journal was used is to be looked at by a person, not created anew. One
    // whose journal never was used holds nothing: power was lost while it was created.
    let is_used = || {
        open(NAME_JOURNAL).is_some_and(|region| {
            let mut start = [0; 64];
            region.size() >= 64 && {
                region.read(0, &mut start);
                start != [0; 64]
            }
        })
    };
    is_complete || is_used()
}

/// See [`super::Store::create`].
pub fn create(
    storage: Rc<dyn Storage>,
    options: &StoreOptions,
    identity: StoreIdentity,
) -> Result<StoreState, StoreError> {
    lock(storage.as_ref())?;
    if exists(storage.as_ref()) {
        return Err(StoreError::Incompatible("there is a store here already".into()));
    }
    let mut options = StoreOptions {
        size: options.size / PAGE_SIZE * PAGE_SIZE,
        journal_size: options.journal_size / PAGE_SIZE * PAGE_SIZE,
        journal_growth: JournalGrowth {
            size_max: journal_size_max(storage.as_ref(), options),
            ..options.journal_growth
        },
        checksums: options.checksums,
    };
    if options.size == 0 || options.size / PAGE_SIZE > u64::from(u32::MAX) {
        return Err(StoreError::Incompatible("its size must be between 4 KiB and 16 TiB".into()));
    }
    if options.journal_size < JOURNAL_SIZE_MIN {
        return Err(StoreError::Incompatible(format!("its journal must have at least {JOURNAL_SIZE_MIN} bytes")));
    }
    for name in storage.list() {
        let own = [NAME_SUPER, NAME_JOURNAL, NAME_DATA, NAME_STAMPS, NAME_SUBMISSIONS];
        if own.contains(&name.as_str()) || name.starts_with(NAME_PREFIX) {
            storage
                .remove(&name)
                .map_err(|error| StoreError::Medium("remove what an interrupted creation left", error))?;
        }
    }
    let data = make(storage.as_ref(), NAME_DATA, options.size, false)?;
    let mut journal = make(storage.as_ref(), NAME_JOURNAL, options.journal_growth.size_max, false)?;
    if options.journal_growth.size_max > options.journal_size && journal.data_end() > 0 {
        // A medium that can't tell what was taken of a file (ramfs): there it does not grow.
        storage.remove(NAME_JOURNAL).map_err(|error| StoreError::Medium("make the journal anew", error))?;
        options.journal_growth.size_max = options.journal_size;
        journal = make(storage.as_ref(), NAME_JOURNAL, options.journal_size, false)?;
    }
    allocate(journal.as_ref(), options.journal_size)?;
    let superblock = make(storage.as_ref(), NAME_SUPER, SUPER_SIZE, true)?;
    let start = Position { at: 0, lsn: 1, previous: 0 };
    let power_cycle = power_cycle(storage.as_ref())?;
    let head = Head { sequence: 1, start, segments: 0, blocks: 0, durable: start.lsn, power_cycle };
    let superblock = Superblock::create(superblock, options, identity, head);
    let space = (new_allocator(options.size, Vec::new())?, RegisteredBuffers::default());
    let durability = Durability::new(storage.is_volatile(), power_cycle);
    let stamped = stamped(storage.as_ref(), &data)?;
    let mut journal = Journal::new(journal, options.journal_size, start);
    journal.grow_on(storage.clone());
    journal.fit(0, options.journal_growth.checkpoint_percent);
    let page_sums = no_sums(options.checksums, options.size);
    Ok(StoreState::new(storage, superblock, (data, stamped), journal, (Files::default(), page_sums), space, durability))
}

fn make(storage: &dyn Storage, name: &str, size: u64, is_whole: bool) -> Result<Rc<dyn Region>, StoreError> {
    let region = storage
        .open(name, size, OpenMode::CreateNew)
        .map_err(|error| StoreError::Medium("create a file of the store", error))?;
    if is_whole {
        allocate(region.as_ref(), size)?;
    }
    Ok(region)
}

fn allocate(region: &dyn Region, size: u64) -> Result<(), StoreError> {
    region.allocate(0, size).map_err(|error| StoreError::Medium("allocate a file of the store", error))
}

/// Bytes of the region of a new journal. On media that keep what was synced it does not grow: holes are slow to write
/// there.
fn journal_size_max(storage: &dyn Storage, options: &StoreOptions) -> u64 {
    let grown = if storage.is_volatile() { options.journal_growth.size_max.min(journal::GROWN_SIZE_MAX) } else { 0 };
    grown.max(options.journal_size) / PAGE_SIZE * PAGE_SIZE
}

/// Part of a store's size that an attribute cache may have beside it, once there are so many files.
const ATTRIBUTE_CACHE_SHARE: u64 = 4;

/// The data space with its stamps and an attribute cache, where others can read by short circuit: in memory only, for a
/// table of stamps is written to all the time.
fn stamped(storage: &dyn Storage, data: &Rc<dyn Region>) -> Result<Option<Rc<StampedRegion>>, StoreError> {
    if !storage.is_volatile() {
        return Ok(None);
    }
    let size = AttributeCacheShape::size_within(data.size() / ATTRIBUTE_CACHE_SHARE);
    // Clients read all that leads to its blocks as they please, so that there must be no holes.
    let start = AttributeCacheShape::of_size(size).map_or(0, AttributeCacheShape::blocks_start);
    forget_other_stamps(storage, STAMPS_SIZE + size);
    let table = kept(storage, NAME_STAMPS, STAMPS_SIZE + size, STAMPS_SIZE + start)?;
    let submissions = submissions(storage)?;
    Ok(Some(StampedRegion::new(data.clone(), table, submissions)))
}

/// Where an earlier program had a table of another size, whoever still reads it is to find that nothing there is so any
/// more.
fn forget_other_stamps(storage: &dyn Storage, size: u64) {
    if let Ok(region) = storage.open(NAME_STAMPS, 0, OpenMode::Existing)
        && region.size() != size
        && region.allocate(0, region.size()).is_ok()
    {
        region.fill_zero(0, region.size());
    }
}

/// What clients have submitted to an earlier life, if this program can take it up. Errors: `Incompatible`.
fn submissions(storage: &dyn Storage) -> Result<Rc<dyn Region>, StoreError> {
    if storage.exists(NAME_SUBMISSIONS)
        && let Ok(region) = storage.open(NAME_SUBMISSIONS, 0, OpenMode::Existing)
    {
        match submissions_left(region.as_ref()) {
            SubmissionsLeft::Ours => {}
            SubmissionsLeft::Nothing => storage
                .remove(NAME_SUBMISSIONS)
                .map_err(|error| StoreError::Medium("remove a file of submissions that is of no use", error))?,
            SubmissionsLeft::OfLayout(layout) => {
                return Err(StoreError::Incompatible(format!(
                    "changes that clients have submitted (file `posts`) are of layout {layout}, and this program reads \
                     layout {SUBMISSION_LAYOUT}; start the server with the program that it ran with and stop it \
                     ('tabane down --keep'), which takes them up, or remove that file if they may be lost"
                )));
            }
        }
    }
    kept(storage, NAME_SUBMISSIONS, SUBMISSION_QUEUES_SIZE, SUBMISSION_QUEUES_SIZE)
}

/// What is shared with clients of this machine, as an earlier life has left it. So many of its bytes are allocated.
fn kept(storage: &dyn Storage, name: &str, size: u64, allocated: u64) -> Result<Rc<dyn Region>, StoreError> {
    let present = storage.exists(name).then(|| storage.open(name, 0, OpenMode::Existing));
    let region = match present {
        Some(Ok(region)) if region.size() == size => region,
        Some(Err(error)) => return Err(StoreError::Medium("open a file that clients read by short circuit", error)),
        // A store from before there was such a file, or one whose creation was interrupted: nobody has it.
        Some(Ok(_)) => {
            let words = "remove a broken file that clients read by short circuit";
            storage.remove(name).map_err(|error| StoreError::Medium(words, error))?;
            make(storage, name, size, false)?
        }
        None => make(storage, name, size, false)?,
    };
    allocate(region.as_ref(), allocated)?;
    Ok(region)
}

fn lock(storage: &dyn Storage) -> Result<(), StoreError> {
    storage
        .lock_exclusive()
        .map_err(|error| StoreError::Medium("lock its directory, which another server may be using", error))
}

/// Which time since power came on this is; where it makes no difference, always the same.
fn power_cycle(storage: &dyn Storage) -> Result<u128, StoreError> {
    if storage.is_volatile() {
        return Ok(0);
    }
    storage.power_cycle().map_err(|error| StoreError::Medium("tell whether power was lost", error))
}

/// See [`super::Store::open`].
pub fn open(storage: Rc<dyn Storage>, identity: StoreIdentity, replay: Replay) -> Result<StoreState, StoreError> {
    lock(storage.as_ref())?;
    let superblock = open_region(storage.as_ref(), NAME_SUPER)?;
    let superblock = Superblock::open(superblock, identity)?;
    let (data, journal) = (open_region(storage.as_ref(), NAME_DATA)?, open_region(storage.as_ref(), NAME_JOURNAL)?);
    let options = superblock.options;
    if data.size() != options.size || journal.size() != options.journal_growth.size_max {
        return Err(StoreError::Damaged(
            "the files `data` and `journal` do not have the sizes that `super` says".into(),
        ));
    }
    let head = superblock.head;
    check_head(&head)?;
    let mut durability = Durability::new(storage.is_volatile(), power_cycle(storage.as_ref())?);
    durability.power_was_lost = !durability.is_volatile && durability.power_cycle_now != head.power_cycle;
    durability.power_cycle = head.power_cycle;
    let page_sums = no_sums(options.checksums, options.size);
    let mut tables = RecoveryTables { files: Files::default(), copies: Vec::new(), page_sums, replay };
    let mut checkpoint_size = 0;
    checkpoint::load(storage.as_ref(), &superblock.head, &mut |block| {
        checkpoint_size += block.len() as u64;
        tables.apply_all("checkpoint block", 0, None, block)
    })?;
    let new_journal = || Journal::new(journal.clone(), options.journal_size, superblock.head.start);
    let mut end = head.durable;
    if durability.power_was_lost && options.checksums {
        let synced = sync_record::synced_end(&new_journal, (head.durable, identity.cluster_id), data.as_ref())?;
        (end, durability.lacking) = (synced.end, synced.lacking);
    }
    let mut journal = new_journal();
    journal.grow_on(storage.clone());
    journal.fit(checkpoint_size, options.journal_growth.checkpoint_percent);
    let mut visit = |lsn, count, bytes: &[u8]| {
        // The copies of the record before are done: they were made before this one was written (state, invariant 3).
        tables.copies.clear();
        tables.apply_all("journal record", lsn, Some(count), bytes)
    };
    if durability.power_was_lost {
        journal.replay_durable(end, &mut visit)?;
    } else {
        journal.replay(&mut visit)?;
    }
    durability.recovered_end = journal.tail().lsn;
    let RecoveryTables { files, copies, page_sums, .. } = tables;
    // Nothing but memory is ever lent.
    let mapped = if storage.is_volatile() { mapped_runs(data.as_ref()) } else { Vec::new() };
    let space = open_space(data.size(), mapped, used_runs(&files, options.size)?)?;
    // Whoever still reads by short circuit from the life before sees all of it change now.
    let stamped = stamped(storage.as_ref(), &data)?;
    let mut state =
        StoreState::new(storage, superblock, (data, stamped), journal, (files, page_sums), space, durability);
    state.durability.is_refused = state.storage.exists(NAME_REFUSED);
    if state.durability.is_refused && !state.durability.power_was_lost {
        state.suspect_everything();
    }
    if !copies.is_empty() {
        repeat_copies(&state, &copies)?;
        state.append_mark()?;
    }
    if state.durability.is_volatile {
        remove_leftovers(&state)?;
    }
    Ok(state)
}

/// Errors: `Damaged` when the head has a place or a number that no journal comes to in its life. All arithmetic on
/// positions and on numbers of records rests on that.
pub fn check_head(head: &Head) -> Result<(), StoreError> {
    let highest = head.start.at.max(head.start.lsn).max(head.durable).max(head.sequence);
    if highest > POSITION_MAX || !head.start.at.is_multiple_of(journal::ALIGNMENT) {
        return Err(StoreError::Damaged(format!(
            "the checkpoint head in `super` makes no sense: replay would start at byte {} with record {}",
            head.start.at, head.start.lsn
        )));
    }
    Ok(())
}

fn open_region(storage: &dyn Storage, name: &str) -> Result<Rc<dyn Region>, StoreError> {
    if !storage.exists(name) {
        return Err(StoreError::Incompatible(format!("the file `{name}` is missing; is this the store's directory?")));
    }
    storage.open(name, 0, OpenMode::Existing).map_err(|error| StoreError::Medium("open a file of the store", error))
}

/// What replay builds.
struct RecoveryTables<'a> {
    files: Files,
    /// Copies of the last record.
    copies: Vec<Copy>,
    /// See `sums`.
    page_sums: Vec<u32>,
    replay: Replay<'a>,
}

impl RecoveryTables<'_> {
    fn apply_all(&mut self, place: &str, lsn: u64, count: Option<u32>, mut bytes: &[u8]) -> Result<(), StoreError> {
        let damaged = |what: &str| StoreError::Damaged(format!("{place} {lsn}: {what}"));
        let mut found = 0;
        while !bytes.is_empty() {
            let (kind, body) = entries::next_entry(&mut bytes).ok_or_else(|| damaged("it ends within an entry"))?;
            if kind >= KIND_FOREIGN_FIRST {
                (self.replay)(kind, body).map_err(|error| damaged(&format!("entry of kind {kind}: {error}")))?;
            } else {
                let entry = entries::decode(kind, body)
                    .ok_or_else(|| damaged(&format!("entry of kind {kind} is malformed")))?;
                self.apply(entry).map_err(damaged)?;
            }
            found += 1;
        }
        match count {
            Some(count) if count != found => Err(damaged("it has another number of entries than it says")),
            _ => Ok(()),
        }
    }

    fn apply(&mut self, entry: Entry) -> Result<(), &'static str> {
        match entry {
            Entry::Chunk { file: id, index, chunk_size, mtime, chunk } => {
                let file = self.files.entry(id);
                (file.chunk_size, file.mtime) = (chunk_size, mtime);
                drop(file.put(index, chunk));
            }
            Entry::Truncate { file: id, generation, keep_below } => {
                let file = self.files.entry(id);
                file.generation = generation;
                drop(file.chunks.split_off(keep_below));
                file.end = file.chunks.written_end(file.chunk_size);
            }
            Entry::Drop { file: id, from, to, end, mtime } => {
                let file = self.files.entry(id);
                drop(file.chunks.take_range(from, to));
                (file.end, file.mtime) = (end, mtime);
            }
            Entry::Reap { file } => drop(self.files.remove(file)),
            Entry::Announced(announcement) => self.files.announce(announcement),
            Entry::Redo(copy) => self.copies.push(copy),
            // What it says matters before replay alone.
            Entry::Sync { .. } => {}
            Entry::Sums { first, sums } => {
                let first = first as usize;
                let Some(place) = self.page_sums.get_mut(first..first.saturating_add(sums.len())) else {
                    return Err("it has checksums of pages that the store has not");
                };
                place.copy_from_slice(&sums);
            }
            Entry::File { file: id, chunk_size, generation, announced, mtime } => {
                let file = self.files.entry(id);
                (file.chunk_size, file.generation, file.announced, file.mtime) =
                    (chunk_size, generation, announced, mtime);
            }
        }
        Ok(())
    }
}

/// Checksums of the pages of a data space that holds nothing. Memory is taken as they are used.
fn no_sums(checksums: bool, size: u64) -> Vec<u32> {
    vec![0; if checksums { (size / PAGE_SIZE) as usize } else { 0 }]
}

/// The pages of all chunks; each chunk is checked first.
fn used_runs(files: &Files, size: u64) -> Result<Vec<Run>, StoreError> {
    let mut runs = Vec::new();
    for file in files.iter() {
        let mut index = 0;
        while let Some((found, chunk)) = file.chunks.next(index) {
            chunk
                .check(file.chunk_size, (size / PAGE_SIZE) as u32)
                .map_err(|what| StoreError::Damaged(format!("chunk {found} of file {:#x}: {what}", file.id)))?;
            runs.extend(chunk.extents.iter().map(|extent| extent.run()));
            index = found.saturating_add(1);
            if found == u64::MAX {
                break;
            }
        }
    }
    Ok(runs)
}

fn new_allocator(size: u64, used: Vec<Run>) -> Result<Allocator, StoreError> {
    Allocator::new((size / PAGE_SIZE) as u32, used)
        .map_err(|(one, other)| StoreError::Damaged(format!("two chunks share space: {one:?} and {other:?}")))
}

/// The free pages: those that somebody of an earlier life can still write to are nobody's until he can't.
fn open_space(size: u64, mapped: Vec<Run>, mut used: Vec<Run>) -> Result<(Allocator, RegisteredBuffers), StoreError> {
    let mut buffers = RegisteredBuffers::default();
    used.sort_unstable();
    let withheld: Vec<Run> = mapped.into_iter().flat_map(|run| buffers.adopt(run, &used)).collect();
    used.extend(withheld);
    Ok((new_allocator(size, used)?, buffers))
}

/// Performs the copies of the last record again: the crash may have come before or within them.
fn repeat_copies(state: &StoreState, copies: &[Copy]) -> Result<(), StoreError> {
    let size = state.data.size();
    if state.is_partial && !copies.is_empty() {
        return Err(StoreError::Damaged("the last journal record copies, which it does not on such a medium".into()));
    }
    for copy in copies {
        let end = copy.from.max(copy.to).checked_add(u64::from(copy.size));
        if end.is_none_or(|end| end > size) {
            return Err(StoreError::Damaged("the last journal record copies from or to beyond the data".into()));
        }
        state.data.copy_within(copy.from, copy.to, u64::from(copy.size));
    }
    Ok(())
}

/// Removes segments of checkpoints that do not count.
pub fn remove_leftovers(state: &StoreState) -> Result<(), StoreError> {
    let head = state.superblock.head;
    let current: Vec<String> = (0..head.segments).map(|number| segment_name(head.sequence, number)).collect();
    for name in state.storage.list() {
        if name.starts_with(NAME_PREFIX) && !current.contains(&name) {
            state
                .storage
                .remove(&name)
                .map_err(|error| StoreError::Medium("remove an unfinished checkpoint", error))?;
        }
    }
    Ok(())
}
