//! Which of some inodes change while a checker looks at them, on this server: what it saw of one that did not change on
//! any server fits together, and what does not fit is wrong.
//!
//! Kept in memory alone: a watch that a restart forgot says so, and the checker looks again.

use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::cursor_of;
use crate::store::FastMap;
use wire::FileId;

/// Watches at a time; the oldest gives way.
const WATCH_COUNT_MAX: usize = 4;
/// Records that a watch looks at before it is dropped, for checkers that never come back.
const RECORD_COUNT_MAX: u64 = 10_000_000;

struct Watch {
    number: u64,
    /// Whether each changed.
    ids: FastMap<u64, bool>,
    records_left: u64,
}

/// See the module.
#[derive(Default)]
pub struct Watches {
    watches: Vec<Watch>,
}

impl Watches {
    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// Watches these from now on, in place of what was watched under the number.
    pub fn begin(&mut self, number: u64, ids: &[FileId]) {
        self.watches.retain(|watch| watch.number != number);
        if self.watches.len() == WATCH_COUNT_MAX {
            self.watches.remove(0);
        }
        let ids = ids.iter().map(|id| (id.0, false)).collect();
        self.watches.push(Watch { number, ids, records_left: RECORD_COUNT_MAX });
    }

    /// Ends a watch: those that changed. `None` when nothing is known of it.
    pub fn end(&mut self, number: u64) -> Option<Vec<FileId>> {
        let place = self.watches.iter().position(|watch| watch.number == number)?;
        let watch = self.watches.remove(place);
        let mut changed: Vec<FileId> =
            watch.ids.iter().filter(|(_, changed)| **changed).map(|(id, _)| FileId(*id)).collect();
        changed.sort_unstable_by_key(|id| id.0);
        Some(changed)
    }

    fn changed(&mut self, ids: &[FileId]) {
        for watch in &mut self.watches {
            watch.records_left -= 1;
            for id in ids {
                if let Some(changed) = watch.ids.get_mut(&id.0) {
                    *changed = true;
                }
            }
        }
        self.watches.retain(|watch| watch.records_left > 0);
    }
}

/// Notes what a record is about to change.
pub fn note(tables: &mut Tables, record: &Record<'_>) {
    let there =
        |parent: FileId, name: &[u8]| tables.names.get(parent, name, cursor_of(parent, name)).map(|found| found.0);
    let ids = match record {
        Record::DentryPut { parent, name, id, .. } => [Some(*id), there(*parent, name), Some(*parent)],
        Record::DentryDelete { parent, name } => [there(*parent, name), Some(*parent), None],
        Record::InodePut(inode) => [Some(inode.attributes.id), None, None],
        Record::FileAnnounced { file, .. } => [Some(*file), None, None],
        Record::InodeDelete(id) | Record::Tombstone(id) | Record::TombstoneDelete(id) => [Some(*id), None, None],
        _ => return,
    };
    let ids: Vec<FileId> = ids.into_iter().flatten().collect();
    tables.watches.changed(&ids);
}
