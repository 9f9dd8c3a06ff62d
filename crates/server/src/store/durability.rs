//! What survives power loss, on media that keep what was synced.
//!
//! The kernel writes pages of a mapped file when it likes, in any order. So what is on the medium between two syncs
//! tells nothing, and the store goes back to the last sync that was completed: a power loss leaves the state that the
//! journal had at that moment, on every medium that does not forget everything anyway.
//!
//! Invariants (media that are not volatile)
//! 1. The newest head in the superblock that is known to be on the medium, or the record of a later sync that has ended
//!    (`sync_record`), says how far the journal is durable. All that replay needs to get there, and all pages of the
//!    chunks as they were there, stay as they are until the next sync has ended: pages that leave a chunk *rest* until
//!    then, bytes that a truncate or a hole took away are not written in place, and live bytes are never copied over.
//! 2. A head is written only when everything that it speaks of is on the medium, and not over the one that counts.
//! 3. A checkpoint saw changes up to its end; it is named by a head only together with a journal that is durable to
//!    there.
//! 4. While the medium may lack what the kernel takes for written, because a sync failed, there is a region `refused`.
//!    Whoever opens the store before power is lost writes everything once more.

use super::allocator::{PAGE_SIZE, Run};
use super::state::{ChunkKey, StoreState};
use super::superblock::Head;
use super::sync_record::ChangedPages;
use super::{Lsn, Store, StoreError, recovery};
use crate::core::all;
use reactor::{LocalFuture, OpenMode, Region, Storage};
use std::io;
use std::rc::Rc;
use wire::FastMap;

/// See invariant 4; its contents say nothing.
pub const NAME_REFUSED: &str = "refused";

/// Files that may change, or chunks that may be cut, before a sync begins by itself.
const CHANGED_COUNT_MAX: usize = 1 << 16;

/// A checkpoint that is written but not named by a head yet.
pub struct FinishedCheckpoint {
    /// What the head will say of it; how far the journal is durable is filled in then.
    pub head: Head,
    /// Its segments, to be made durable.
    pub segments: Vec<Rc<dyn Region>>,
}

/// See the module.
#[derive(Default)]
pub struct Durability {
    /// Whether there is nothing to do, for the medium forgets everything or nothing.
    pub is_volatile: bool,
    /// Names the time since power came on, as the head is to say; after a power loss the one before, until what was
    /// lost is dealt with (`Store::power_loss_is_over`).
    pub power_cycle: u128,
    /// Names it as it is.
    pub power_cycle_now: u128,
    /// Records below this one survive power loss.
    pub durable: Lsn,
    /// Whether power was lost before this store was opened.
    pub power_was_lost: bool,
    /// A chunk, and a page of the data space, because of which the last sync before that does not count.
    pub lacking: Option<(ChunkKey, u32)>,
    /// The first record that was not there when this store was opened.
    pub recovered_end: Lsn,
    /// Pages that were freed since the last sync began, and before it.
    resting: Vec<Run>,
    settling: Vec<Run>,
    resting_pages: u64,
    /// From which byte on a chunk was cut off, since the last sync began and before it.
    cut: FastMap<ChunkKey, u32>,
    cut_settling: FastMap<ChunkKey, u32>,
    /// Files whose data changed since the last sync began.
    changed: FastMap<u64, ()>,
    /// Files that the last failed sync may have left on the medium as they were before.
    suspect: FastMap<u64, ()>,
    /// Writers that began by then had a sync fail under them. What they bring is written once more when it is
    /// committed: the next sync may have been one of a later life, which knows of none that failed.
    suspect_until: u64,
    /// Pages that changed since the last sync began, and before it since the last one that has ended.
    pub changed_pages: ChangedPages,
    group: ChangedPages,
    /// The checkpoint that the next head will name.
    pub finished: Option<FinishedCheckpoint>,
    /// Whether the head that was read at opening is known to be on the medium.
    is_head_durable: bool,
    is_syncing: bool,
    /// Whether the region of invariant 4 may be there.
    pub is_refused: bool,
    /// Whether the medium refused the journal once: what it took since is not known, so nothing is promised any more.
    is_broken: bool,
}

/// What a sync that is under way is about.
struct Plan {
    /// Whether the journal has a record of it, so that no head is needed.
    is_recorded: bool,
    /// Records below this one will be durable.
    tail: Lsn,
    checkpoint: Option<u64>,
    changed: FastMap<u64, ()>,
    suspect: FastMap<u64, ()>,
    /// Syncs of the data, first, and of all else that the head will speak of.
    syncs: Vec<LocalFuture<io::Result<()>>>,
}

/// Why a sync failed.
#[derive(Debug)]
pub enum SyncError {
    /// The medium refused data; these files may be older on it than the store says, until a later sync succeeds.
    Data {
        /// Their ids.
        files: Vec<u64>,
        /// What the medium said.
        error: StoreError,
    },
    /// The medium refused the journal or the superblock: no promise can be kept any more, now and later.
    Journal(StoreError),
}

impl Durability {
    /// Nothing is durable yet.
    pub fn new(is_volatile: bool, power_cycle: u128) -> Durability {
        Durability { is_volatile, power_cycle, power_cycle_now: power_cycle, ..Durability::default() }
    }

    /// Whether bytes of the chunk before `end` may be live in the state that power loss would leave.
    pub fn is_cut(&self, key: ChunkKey, end: u32) -> bool {
        [&self.cut, &self.cut_settling].iter().any(|cut| cut.get(&key).is_some_and(|&from| from < end))
    }

    /// A truncate cut the chunk at byte `from`, or a hole was made there: what is behind stays as it is until a sync.
    pub fn note_cut(&mut self, key: ChunkKey, from: u32) {
        if !self.is_volatile {
            let cut = self.cut.entry(key).or_insert(from);
            *cut = from.min(*cut);
        }
    }

    /// The file's data changed.
    pub fn note_changed(&mut self, file: u64) {
        if !self.is_volatile {
            self.changed.insert(file, ());
        }
    }

    /// Whether a sync failed under a writer that began at `at`: what it brought may count as clean though it is not.
    pub fn is_suspect(&self, at: u64) -> bool {
        at <= self.suspect_until
    }

    /// Whether a head has nothing new to say but how far the journal is durable.
    pub fn has_newest_head(&self, head: &Head) -> bool {
        self.is_head_durable && self.finished.is_none() && head.power_cycle == self.power_cycle
    }

    /// A page run left a committed chunk.
    pub fn rest(&mut self, run: Run) {
        self.resting_pages += u64::from(run.pages);
        self.resting.push(run);
    }

    /// Pages that are free after the next sync.
    pub fn resting_pages(&self) -> u64 {
        self.resting_pages
    }

    /// All runs that rest.
    pub fn resting_runs(&self) -> impl Iterator<Item = Run> {
        self.resting.iter().chain(&self.settling).copied()
    }
}

/// A sync whose failure is remembered before anything else happens (invariant 4).
fn watched(storage: &Rc<dyn Storage>, sync: LocalFuture<io::Result<()>>) -> LocalFuture<io::Result<()>> {
    let storage = storage.clone();
    Box::pin(async move {
        let result = sync.await;
        if result.is_err() && !storage.exists(NAME_REFUSED) {
            // A medium that takes no new name either has nothing to promise; its errors are told.
            drop(storage.open(NAME_REFUSED, PAGE_SIZE, OpenMode::CreateNew));
        }
        result
    })
}

/// Writes a region once more, up to its byte `end`.
fn rewrite(region: &dyn Region, end: u64) {
    let mut bytes = vec![0; PAGE_SIZE as usize];
    for offset in (0..end).step_by(PAGE_SIZE as usize) {
        bytes.truncate((end - offset).min(PAGE_SIZE) as usize);
        region.read(offset, &mut bytes);
        region.write(offset, &bytes);
    }
}

impl StoreState {
    /// Has everything written once more by the next sync (invariant 4).
    pub fn suspect_everything(&mut self) {
        rewrite(self.journal.region().as_ref(), self.journal.backed());
        rewrite(self.superblock.region().as_ref(), self.superblock.region().size());
        self.durability.suspect = self.files.iter().map(|file| (file.id, ())).collect();
    }

    /// Whether there is anything that a sync would make durable.
    pub fn wants_sync(&self) -> bool {
        let durability = &self.durability;
        !durability.is_volatile
            && (durability.durable < self.journal.tail().lsn
                || durability.finished.is_some()
                || durability.resting_pages > 0
                || !durability.suspect.is_empty())
    }

    fn sync_begin(&mut self) -> Plan {
        assert!(!self.durability.is_syncing, "there is one sync at a time");
        self.rewrite_suspects();
        let mut group = std::mem::take(&mut self.durability.group);
        group.merge(std::mem::take(&mut self.durability.changed_pages));
        let is_recorded = self.record_sync(&group);
        let durability = &mut self.durability;
        durability.group = group;
        durability.is_syncing = true;
        durability.settling.append(&mut durability.resting);
        for (key, from) in std::mem::take(&mut durability.cut) {
            let cut = durability.cut_settling.entry(key).or_insert(from);
            *cut = from.min(*cut);
        }
        let data_end = u64::from(self.allocator.backed()) * PAGE_SIZE;
        let mut syncs = vec![self.data.sync(0, data_end), self.journal.region().sync(0, self.journal.region().size())];
        if let Some(finished) = &durability.finished {
            syncs.extend(finished.segments.iter().map(|segment| segment.sync(0, segment.size())));
        }
        syncs.push(self.storage.sync_names());
        if !durability.is_head_durable {
            let superblock = self.superblock.region();
            syncs.push(superblock.sync(0, superblock.size()));
        }
        let syncs = syncs.into_iter().map(|sync| watched(&self.storage, sync)).collect();
        Plan {
            is_recorded,
            tail: self.journal.tail().lsn,
            checkpoint: durability.finished.as_ref().map(|finished| finished.head.sequence),
            changed: std::mem::take(&mut durability.changed),
            suspect: std::mem::take(&mut durability.suspect),
            syncs,
        }
    }

    /// After a failed sync the kernel takes pages for clean that the medium may not have: they are written once more.
    fn rewrite_suspects(&mut self) {
        for (&id, ()) in &self.durability.suspect {
            let Some(file) = self.files.get(id) else { continue };
            let mut from = Some(0);
            while let Some((index, _)) = from.and_then(|from| file.chunks.next(from)) {
                self.rewrite_chunk((id, index));
                from = index.checked_add(1);
            }
        }
    }

    /// Writes the pages of a chunk once more.
    pub fn rewrite_chunk(&self, (id, index): ChunkKey) {
        let Some(chunk) = self.files.get(id).and_then(|file| file.chunks.get(index)) else { return };
        let mut bytes = vec![0; PAGE_SIZE as usize];
        let pages = chunk.extents.iter().flat_map(|extent| extent.start..extent.start + extent.pages);
        // One that went from memory is on the device for good.
        for page in pages.filter(|page| self.data.is_resident(u64::from(*page) * PAGE_SIZE, PAGE_SIZE)) {
            self.data.read(u64::from(page) * PAGE_SIZE, &mut bytes);
            self.data.write(u64::from(page) * PAGE_SIZE, &bytes);
        }
    }

    /// Writes the head that says what is durable now (invariant 2).
    fn sync_publish(&mut self, plan: &Plan) -> LocalFuture<io::Result<()>> {
        let finished =
            self.durability.finished.as_ref().filter(|finished| Some(finished.head.sequence) == plan.checkpoint);
        let head = finished.map_or(self.superblock.head, |finished| finished.head);
        let power_cycle = self.durability.power_cycle;
        self.superblock.prepare(Head { durable: plan.tail, power_cycle, ..head });
        let superblock = self.superblock.region();
        watched(&self.storage, superblock.sync(0, superblock.size()))
    }

    fn sync_end(&mut self, plan: &Plan) {
        let before = self.superblock.head;
        self.superblock.accept();
        self.durability.group.clear();
        self.durability.is_syncing = false;
        self.durability.durable = plan.tail;
        self.durability.cut_settling.clear();
        for run in std::mem::take(&mut self.durability.settling) {
            self.durability.resting_pages -= u64::from(run.pages);
            self.forget_bytes(run);
            self.allocator.release(run);
        }
        if plan.checkpoint.is_some()
            && let Some(finished) = self.durability.finished.take()
        {
            self.journal.release(finished.head.start.at);
            self.remove_segments(before.sequence, before.segments);
        }
        if self.durability.is_refused && self.durability.suspect.is_empty() {
            self.durability.is_refused =
                self.storage.remove(NAME_REFUSED).is_err() && self.storage.exists(NAME_REFUSED);
        }
        if !std::mem::replace(&mut self.durability.is_head_durable, true) {
            // What cannot be removed now is removed at the next opening.
            recovery::remove_leftovers(self).ok();
        }
    }

    /// The medium refused; what was to be durable is tried again with the next sync.
    fn sync_fail(&mut self, plan: Plan) {
        self.durability.is_syncing = false;
        self.durability.is_refused = true;
        self.durability.suspect.extend(plan.suspect);
        self.durability.suspect.extend(plan.changed);
        // What was committed meanwhile had bytes that arrived before: they went with this sync.
        self.durability.suspect.extend(self.durability.changed.iter().map(|(file, ())| (*file, ())));
        self.durability.suspect_until = self.clock;
    }
}

impl Store {
    /// Whether the medium forgets everything at power loss, so that there is nothing to sync.
    pub fn is_volatile(&self) -> bool {
        self.state.borrow().durability.is_volatile
    }

    /// Whether power was lost before this store was opened: then it is as it was at some sync, and what came after
    /// that is gone.
    pub fn power_was_lost(&self) -> bool {
        self.state.borrow().durability.power_was_lost
    }

    /// A chunk, and a page of the data space that the medium lacks of it: because of that the last sync that was begun
    /// before the power loss does not count.
    pub fn lacking_page(&self) -> Option<(ChunkKey, u32)> {
        self.state.borrow().durability.lacking
    }

    /// What follows from a power loss is committed: with the next sync that is for good. Until then a start that is
    /// killed leaves all of it to the next one.
    pub fn power_loss_is_over(&self) {
        let durability = &mut self.state.borrow_mut().durability;
        durability.power_cycle = durability.power_cycle_now;
    }

    /// Whether all that was committed so far survives whatever the medium survives.
    pub fn is_durable(&self) -> bool {
        let state = self.state.borrow();
        state.durability.is_volatile || state.durability.durable == state.journal.tail().lsn
    }

    /// The first record that power loss would take, and the first that is still to be written.
    pub fn journal_limits(&self) -> (Lsn, Lsn) {
        let state = self.state.borrow();
        (state.durability.durable, state.journal.tail().lsn)
    }

    /// The first record that was not there when the store was opened: power loss took it, if there was any.
    pub fn recovered_end(&self) -> Lsn {
        self.state.borrow().durability.recovered_end
    }

    /// Whether a sync gives room: pages that rest are free then, and so is the journal before a checkpoint that is
    /// done.
    pub fn gains_by_sync(&self) -> bool {
        let durability = &self.state.borrow().durability;
        durability.resting_pages > 0 || durability.finished.is_some()
    }

    /// Whether so much waits for the next sync that one should begin although nobody asks for it.
    pub fn is_sync_due(&self) -> bool {
        let state = self.state.borrow();
        let durability = &state.durability;
        !durability.is_volatile
            && (durability.changed.len() > CHANGED_COUNT_MAX
                || durability.cut.len() > CHANGED_COUNT_MAX
                || durability.resting_pages > u64::from(state.allocator.total()) / 8)
    }

    /// Makes all that was committed before the call durable, as far as the medium can. To be called once at a time, and
    /// once before the first commit after the store was created or opened. Errors: see [`SyncError`]; the next call
    /// tries again.
    pub async fn sync(&self) -> Result<(), SyncError> {
        if !self.state.borrow().wants_sync() {
            return Ok(());
        }
        if self.state.borrow().durability.is_broken {
            let error = io::Error::other("it refused the journal before");
            return Err(SyncError::Journal(StoreError::Medium("make the journal durable", error)));
        }
        let mut plan = self.state.borrow_mut().sync_begin();
        let mut results = all(std::mem::take(&mut plan.syncs)).await;
        let data = results.remove(0);
        let mut rest: Result<Vec<()>, io::Error> = results.into_iter().collect();
        if data.is_ok() && rest.is_ok() && !plan.is_recorded {
            let published = self.state.borrow_mut().sync_publish(&plan);
            rest = published.await.map(|()| Vec::new());
        }
        let mut state = self.state.borrow_mut();
        match (data, rest) {
            (Ok(()), Ok(_)) => {
                state.sync_end(&plan);
                Ok(())
            }
            (data, rest) => {
                state.sync_fail(plan);
                if let Err(error) = rest {
                    state.durability.is_broken = true;
                    return Err(SyncError::Journal(StoreError::Medium("make the journal durable", error)));
                }
                let mut files: Vec<u64> = state.durability.suspect.keys().copied().collect();
                files.sort_unstable();
                let error = data.err().unwrap_or_else(|| io::ErrorKind::Other.into());
                Err(SyncError::Data { files, error: StoreError::Medium("make data durable", error) })
            }
        }
    }
}
