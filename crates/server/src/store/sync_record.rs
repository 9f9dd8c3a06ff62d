//! Syncs that take one flush: a record in the journal says that one began, and recovery finds out whether it ended.
//!
//! Such a record is appended before the flush of which it tells, and is durable with it, or not. The *group* of a sync
//! is what was committed since the last sync that had ended when it began: which that is, its record says. After a
//! power loss the last record of a sync that can be read decides. All before its group is on the medium. The group's
//! records are there, for the journal is read along its chain; its pages may be lacking, for the medium takes what it
//! is given in any order, so that each is compared with its checksum. Where all match the store is as it was when that
//! sync began, else as it was when the one before did, which had ended.
//!
//! Invariants
//! 1. A group whose sync is recorded has `GROUP_PAGES_MAX` pages at most, all of which are in memory and match their
//!    checksums when it begins. So a page that does not after a power loss never reached the medium, or has gone bad
//!    since. Other syncs end with a head, in a flush of its own (`durability`).
//! 2. What a head has to say beyond how far the journal is durable (another checkpoint, another power cycle) needs a
//!    head; so does the first sync of a life, which knows nothing of the last one of the life before.

use super::allocator::PAGE_SIZE;
use super::chunk::Chunk;
use super::entries::{self, Entry};
use super::journal::{Journal, RECORD_HEADER_SIZE};
use super::state::{ChunkKey, StoreState};
use super::sums;
use super::{Lsn, StoreError};
use reactor::Region;
use std::collections::BTreeMap;
use wire::FastMap;

/// See invariant 1: 1 MiB, which takes as long to write as ten flushes do.
const GROUP_PAGES_MAX: usize = 256;

/// Pages of the data space that changed, and the chunks that they were part of then.
#[derive(Default)]
pub struct ChangedPages {
    pages: FastMap<u32, ChunkKey>,
    /// Whether there were more than a group may have.
    is_full: bool,
}

impl ChangedPages {
    /// A page of a chunk changed.
    pub fn note(&mut self, page: u32, key: ChunkKey) {
        if !self.is_full {
            self.pages.insert(page, key);
            self.is_full = self.pages.len() > GROUP_PAGES_MAX;
        }
    }

    /// Takes those of another set, whose pages changed later.
    pub fn merge(&mut self, later: ChangedPages) {
        self.is_full |= later.is_full;
        for (page, key) in later.pages {
            self.note(page, key);
        }
    }

    /// There are none.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.is_full = false;
    }
}

impl StoreState {
    /// Appends the record of a sync that is about to begin, if one flush is enough for it. `group` has all that changed
    /// since the last one that ended.
    pub fn record_sync(&mut self, group: &ChangedPages) -> bool {
        let durability = &self.durability;
        let may_be = self.checksums() && durability.has_newest_head(&self.superblock.head) && !group.is_full;
        if !may_be || !group.pages.iter().all(|(page, key)| self.is_page_sound(*page, *key)) {
            return false;
        }
        let mut record = vec![0; RECORD_HEADER_SIZE];
        entries::put_sync(&mut record, durability.durable, self.superblock.owner);
        self.journal.append(&mut record, 1, false).is_ok()
    }

    /// Whether a page that a chunk had is in memory and matches its checksum, if it still has it.
    fn is_page_sound(&self, page: u32, key: ChunkKey) -> bool {
        let Some(chunk) = self.files.get(key.0).and_then(|file| file.chunks.get(key.1)) else { return true };
        let offset = u64::from(page) * PAGE_SIZE;
        let read = |bytes: &mut [u8]| {
            let is_here = self.data.is_resident(offset, PAGE_SIZE);
            if is_here {
                self.data.read(offset, bytes);
            }
            is_here
        };
        matches_sum(chunk, page, self.page_sums[page as usize], read)
    }
}

/// Whether the written bytes of a page of the data space have this checksum, where a chunk has any there. `read` gives
/// the page, if it can be read.
fn matches_sum(chunk: &Chunk, page: u32, sum: u32, read: impl FnOnce(&mut [u8]) -> bool) -> bool {
    let Some(logical) = chunk.page_at(page) else { return true };
    let mut bytes = [0; PAGE_SIZE as usize];
    match sums::has_bytes(chunk, logical) {
        true => read(&mut bytes) && sums::sum_of_page(&bytes, chunk, logical) == sum,
        false => true,
    }
}

/// What the records of a group leave of the chunks that they speak of.
#[derive(Default)]
struct Group {
    chunks: BTreeMap<ChunkKey, Chunk>,
    /// Pages that changed: the chunk, and the checksum.
    pages: FastMap<u32, (ChunkKey, u32)>,
}

impl Group {
    fn apply_all(&mut self, mut bytes: &[u8]) {
        let mut key = (0, 0);
        while let Some((kind, body)) = entries::next_entry(&mut bytes) {
            // What makes no sense is told by the replay that follows.
            let Some(entry) = entries::decode(kind, body) else { continue };
            match entry {
                Entry::Chunk { file, index, chunk_size, chunk, .. } => {
                    key = (file, index);
                    match chunk.check(chunk_size, u32::MAX) {
                        Ok(()) => self.chunks.insert(key, chunk),
                        Err(_) => self.chunks.remove(&key),
                    };
                }
                Entry::Sums { first, sums } => {
                    let pages = (first..=u32::MAX).zip(sums);
                    self.pages.extend(pages.map(|(page, sum)| (page, (key, sum))));
                }
                Entry::Truncate { file, keep_below, .. } => self.drop_chunks(file, keep_below, u64::MAX),
                Entry::Drop { file, from, to, .. } if from < to => self.drop_chunks(file, from, to - 1),
                Entry::Reap { file } => self.drop_chunks(file, 0, u64::MAX),
                _ => {}
            }
        }
    }

    fn drop_chunks(&mut self, file: u64, from: u64, last: u64) {
        let gone: Vec<ChunkKey> = self.chunks.range((file, from)..=(file, last)).map(|(key, _)| *key).collect();
        for key in gone {
            self.chunks.remove(&key);
        }
    }

    /// A page that is not on the medium as it should be.
    fn lacking_page(&self, data: &dyn Region) -> Option<(ChunkKey, u32)> {
        let lacks = |(page, (key, sum)): (&u32, &(ChunkKey, u32))| {
            let chunk = self.chunks.get(key)?;
            let offset = u64::from(*page) * PAGE_SIZE;
            let read =
                |bytes: &mut [u8]| offset + PAGE_SIZE <= data.size() && data.read_blocking(offset, bytes).is_ok();
            (!matches_sum(chunk, *page, *sum, read)).then_some((*key, *page))
        };
        self.pages.iter().filter_map(lacks).min()
    }
}

/// Where the journal ends after a power loss.
pub struct SyncedEnd {
    /// The first record that does not count.
    pub end: Lsn,
    /// A chunk of the last sync that was begun, and a page of the data space, because of which that does not count.
    pub lacking: Option<(ChunkKey, u32)>,
}

/// Finds out where the journal ends, after a power loss; it is durable below `known` at least, and `owner`'s. `journal`
/// gives it as it is before it was read. Errors: `Damaged`, where a record can't be read that a later sync tells was on
/// the medium.
pub fn synced_end(
    journal: &dyn Fn() -> Journal,
    (known, owner): (Lsn, u128),
    data: &dyn Region,
) -> Result<SyncedEnd, StoreError> {
    let mut last = None;
    let mut scan = journal();
    scan.replay_below(Lsn::MAX, &mut |lsn, _, bytes| {
        if let Some(since) = entries::synced_before(bytes, owner).filter(|_| lsn >= known) {
            last = Some((lsn, since));
        }
        Ok(())
    })?;
    scan.check_synced(scan.find_synced(owner))?;
    let Some((record, since)) = last else { return Ok(SyncedEnd { end: known, lacking: None }) };
    let since = since.max(known);
    let mut group = Group::default();
    journal().replay_below(record, &mut |lsn, _, bytes| {
        if lsn >= since {
            group.apply_all(bytes);
        }
        Ok(())
    })?;
    let lacking = group.lacking_page(data);
    Ok(SyncedEnd { end: if lacking.is_none() { record + 1 } else { since }, lacking })
}
