//! Small files that lie in one directory behind are fetched together: one call reads them all, and one record of the
//! journal says that they are here. What does not come that way, for whatever reason, is fetched by itself
//! (`chunks.rs`), where all reasons are known.
//!
//! Invariants
//! 1. Each fetch of a group ends: it is told here, or handed on, once.
//! 2. Memory that a call reads into is its own until it has ended, also when nobody waits for it any more.

use super::chunks::{Fetch, ReadBytes, is_same};
use super::table::Standing;
use super::{BackingUse, add};
use crate::core::{Core, Failure, until};
use crate::handlers::Rounds;
use crate::journal::records::Record;
use crate::store::ChunkWrite;
use reactor::backing::{CALL_SIZE_MAX, CallMemory, FileRead};
use reactor::{Class, Nanos, PageRoom};
use std::cell::Cell;
use std::rc::Rc;
use wire::FileId;
use wire::messages::BackingPlace;

/// Files that one call reads at most, where it takes no longer than this.
const GROUP_FILES_MAX: usize = 16;
const GROUP_NS: Nanos = 20_000_000;
/// Files of a call that takes longer than this are fetched one by one, for one of them may hang.
const GROUP_NS_MAX: Nanos = 250_000_000;

/// How long a call is for each of its files. It is thought to be slow until it was seen not to be.
pub struct FileTime(Cell<Nanos>);

impl Default for FileTime {
    fn default() -> FileTime {
        FileTime(Cell::new(GROUP_NS))
    }
}

impl FileTime {
    /// A call that read some files took so long. Slower ones count at once, quicker ones little by little.
    fn note(&self, time: Nanos, files: usize) {
        self.0.set((time / files.max(1) as Nanos).max(self.0.get() / 2).max(1));
    }

    /// How many files one call is to read.
    fn group_size(&self) -> usize {
        (GROUP_NS / self.0.get()).clamp(1, GROUP_FILES_MAX as Nanos) as usize
    }
}

/// A small file whose fetch has begun.
struct SmallFile {
    file: FileId,
    fetch: Rc<Fetch>,
    place: BackingPlace,
    size: u32,
}

/// One that is being read.
struct SmallRead {
    small: SmallFile,
    write: ChunkWrite,
    bytes: ReadBytes,
}

impl Core {
    /// Begins to fetch chunks, each unless that is under way. It goes on whoever waits for them: memory that a call
    /// reads into is its own until it has ended.
    pub(super) fn start_fetches(self: &Rc<Self>, chunks: &[(FileId, u64)]) -> Vec<Rc<Fetch>> {
        let mut group: Vec<SmallFile> = Vec::new();
        let mut begun = Vec::with_capacity(chunks.len());
        for (file, index) in chunks {
            let under_way = self.backing().fetches.borrow().get(&(file.0, *index)).cloned();
            if let Some(fetch) = under_way {
                begun.push(fetch);
                continue;
            }
            let fetch = Rc::new(Fetch::new(self));
            self.backing().fetches.borrow_mut().insert((file.0, *index), fetch.clone());
            begun.push(fetch.clone());
            let Some(small) = self.small_file(*file, *index, &fetch) else {
                self.start_single(*file, *index, fetch);
                continue;
            };
            if !self.goes_with(&group, &small) {
                self.start_group(std::mem::take(&mut group));
            }
            group.push(small);
        }
        self.start_group(group);
        begun
    }

    /// Whether a file may be read by the same call as others.
    fn goes_with(&self, group: &[SmallFile], small: &SmallFile) -> bool {
        let size: u64 = group.iter().map(|other| u64::from(other.size)).sum();
        group.last().is_none_or(|last| {
            last.place.parent == small.place.parent
                && group.len() < self.backing().file_time.group_size()
                && size + u64::from(small.size) <= CALL_SIZE_MAX as u64
        })
    }

    /// A file that is one chunk and one read behind, and is as it was when it was taken up, as far as is known.
    fn small_file(&self, file: FileId, index: u64, fetch: &Rc<Fetch>) -> Option<SmallFile> {
        let tables = self.tables.borrow();
        let taken_up = tables.backing.get(file).filter(|taken_up| index == 0 && taken_up.is_absent(0))?;
        let place = self.place_now(file)?;
        let size = taken_up.size_behind(0);
        // Of one with links less is compared, so that one look is not enough.
        let is_small = !place.is_being_written()
            && !place.has_links
            && place.size <= u64::from(place.chunk_size).min(CALL_SIZE_MAX as u64)
            && size > 0;
        is_small.then(|| SmallFile { file, fetch: fetch.clone(), place, size })
    }

    fn start_group(self: &Rc<Self>, group: Vec<SmallFile>) {
        if !group.is_empty() {
            let core = self.clone();
            self.reactor.spawn(Class::Data, async move { core.fetch_group(group).await });
        }
    }

    /// Has each of them fetched by itself.
    fn start_singles(self: &Rc<Self>, group: impl IntoIterator<Item = SmallFile>) {
        group.into_iter().for_each(|small| self.start_single(small.file, 0, small.fetch));
    }

    async fn fetch_group(self: &Rc<Self>, group: Vec<SmallFile>) {
        let backing = self.backing();
        let (first, is_one) = (&group[0], group.len() == 1);
        let held = backing.fetch_gate.enter(first.file.0, first.place.parent.0).await;
        // Others were seen to be slow meanwhile.
        if !is_one && backing.file_time.group_size() == 1 {
            return self.start_singles(group);
        }
        let reads = self.reserve_group(group);
        if reads.is_empty() {
            return;
        }
        let since = self.reactor.now();
        let (paths, memories) = reads.iter().map(|read| (read.small.place.path.clone(), read.memory())).unzip();
        let mut call = Box::pin(backing.read_together(paths, memories));
        // One alone keeps no other one back.
        let read = match is_one {
            true => Some(call.as_mut().await),
            false => until(&self.reactor, since + GROUP_NS_MAX, call.as_mut()).await,
        };
        let Some((results, memories)) = read else {
            // The places are for those that follow: calls that hang are bounded as such.
            drop(held);
            backing.file_time.note(GROUP_NS_MAX, 1);
            let (files, writes): (Vec<_>, Vec<_>) = reads.into_iter().map(|read| (read.small, read.write)).unzip();
            self.start_singles(files);
            call.await;
            return drop(writes);
        };
        backing.file_time.note(self.reactor.now() - since, reads.len());
        let mut whole = Vec::with_capacity(reads.len());
        for ((mut read, result), memory) in reads.into_iter().zip(results).zip(memories) {
            match read.take(result, memory, self) {
                true => whole.push(read),
                false => self.start_singles([read.small]),
            }
        }
        self.commit_group(whole).await;
    }

    fn reserve_group(self: &Rc<Self>, group: Vec<SmallFile>) -> Vec<SmallRead> {
        let mut reads = Vec::with_capacity(group.len());
        for small in group {
            let reserved = self.store.reserve_write(small.file.0, 0, small.place.chunk_size, 0, small.size);
            let pinned = reserved.and_then(|mut write| {
                self.store.pin_writes([&mut write].into_iter(), PageRoom::Left)?;
                Ok(write)
            });
            match pinned {
                Ok(write) if write.places.len() == 1 => {
                    small.fetch.note(self, true);
                    reads.push(SmallRead { small, write, bytes: ReadBytes::new(self.store.keeps_sums()) });
                }
                // Room has to be made for it, in the store or in memory, or it lies in pieces.
                _ => self.start_singles([small]),
            }
        }
        reads
    }

    /// Makes files that were read live, by one record.
    async fn commit_group(self: &Rc<Self>, reads: Vec<SmallRead>) {
        let mut writes = Vec::with_capacity(reads.len());
        let mut files = Vec::with_capacity(reads.len());
        for SmallRead { small, write, bytes } in reads {
            writes.push(write);
            files.push((small, bytes.is_zero()));
        }
        let mut rounds = Rounds::default();
        loop {
            if self.is_journal_low() {
                self.checkpoints.finished().wait().await;
            }
            let Err(error) = self.store.settle_writes(&mut writes) else { break };
            if rounds.next(self, error.into()).await.is_err() {
                return self.start_singles(files.into_iter().map(|(small, _)| small));
            }
        }
        // From here on nothing is awaited.
        let mut transaction = self.store.begin();
        let (mut records, mut here) = (Vec::new(), Vec::new());
        for (write, (small, is_zero)) in writes.into_iter().zip(files) {
            let mtime = self.store.share(small.file.0).map_or(0, |share| share.mtime);
            let mut is_put = self.is_wanted(&small);
            if is_put && !is_zero {
                is_put = self.store.commit_write(write, &mut transaction, mtime).is_ok();
            }
            if is_put {
                records.push(Record::StandingPut { file: small.file, index: 0, standing: Standing::Clean });
                here.push(small);
            } else {
                self.start_singles([small]);
            }
        }
        if here.is_empty() {
            return;
        }
        if self.commit(transaction, records).is_err() {
            return self.start_singles(here);
        }
        let counters = &self.backing().counters;
        add(&counters.fetched_chunks, here.len() as u64);
        add(&counters.fetched_bytes, here.iter().map(|small| u64::from(small.size)).sum());
        for small in here {
            self.end_fetch(small.file, 0, &small.fetch, Ok(()));
        }
        self.keep_room();
    }

    /// Whether what was read of a file is what is missing here: it has not gone meanwhile, nor was it written to, cut,
    /// or carried and given up, after which something else is behind.
    fn is_wanted(&self, small: &SmallFile) -> bool {
        let tables = self.tables.borrow();
        let Some(taken_up) = tables.backing.get(small.file) else { return false };
        taken_up.is_absent(0)
            && taken_up.size_behind(0) == small.size
            && self.place_now(small.file).as_ref() == Some(&small.place)
    }
}

impl SmallRead {
    fn memory(&self) -> CallMemory {
        self.bytes.memory(&self.write.places[0])
    }

    /// Takes what was read, if it is all of what was to be read of the file that was taken up.
    fn take(&mut self, result: Result<FileRead, Failure>, memory: CallMemory, core: &Core) -> bool {
        self.small.fetch.note(core, false);
        let Ok(read) = result else { return false };
        let place = &self.small.place;
        let is_known = !core.checks_identity() || is_same(&read.after.identity, place);
        let span = self.write.places[0].clone();
        if !is_known || !core.backing().is_whole(read.size, span.size) {
            return false;
        }
        self.bytes.take(&span, memory);
        // They have lain in the store for a while, where nobody had vouched for them yet.
        self.bytes.sum().is_none_or(|sum| self.write.verify(0, sum))
    }
}

impl BackingUse {
    /// Reads the beginnings of files, which are as many as memories, by one call.
    async fn read_together(
        &self,
        paths: Vec<Vec<u8>>,
        memories: Vec<CallMemory>,
    ) -> (Vec<Result<FileRead, Failure>>, Vec<CallMemory>) {
        let (read, memories) = match self.tree.root().await {
            Ok(root) => root.read_files(&paths, memories).await,
            Err(error) => (Err(error), memories),
        };
        let failed = |error| self.failure(error);
        let results = match read {
            Ok(results) => results.into_iter().map(|result| result.map_err(failed)).collect(),
            Err(error) => {
                let failure = failed(error);
                paths.iter().map(|_| Err(failure.clone())).collect()
            }
        };
        (results, memories)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a call reads one file until reads were seen to be quick, and one again as soon as one is slow.
    #[test]
    fn groups_grow_with_speed() {
        let time = FileTime::default();
        assert_eq!(time.group_size(), 1);
        (0..3).for_each(|_| time.note(20_000, 1));
        assert_eq!(time.group_size(), 8);
        (0..20).for_each(|_| time.note(20_000 * 16, 16));
        assert_eq!(time.group_size(), GROUP_FILES_MAX);
        time.note(16 * 5_000_000, 16);
        assert_eq!(time.group_size(), 4);
        time.note(GROUP_NS_MAX, 1);
        assert_eq!(time.group_size(), 1);
    }
}
