//! Syncs of small files behind, shared by those who wait for one, where the file system can sync many files at once:
//! whoever comes while one is under way waits for the next, which is one for all of them. A sync of one small file may
//! take as long as that of a hundred, as each ends a transaction of the file system's journal.
//!
//! Invariant: a sync counts only for those who asked before it began.

use super::BackingUse;
use crate::core::{Failure, Notice};
use reactor::backing::BackingFile;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Files up to this size are synced with others.
pub const SMALL_FILE_SIZE: u64 = 64 << 10;

/// What became of each file.
type Synced = Rc<Vec<Result<(), Failure>>>;

/// Those who wait for the next sync. The first of them makes it.
#[derive(Default)]
struct FileGroup {
    files: RefCell<Vec<BackingFile>>,
    turn: Notice<()>,
    done: Notice<Synced>,
}

/// The sync that is under way, if one is, with who waits for the next.
#[derive(Default)]
pub struct FileSyncs {
    is_under_way: Cell<bool>,
    next: RefCell<Option<Rc<FileGroup>>>,
}

impl FileSyncs {
    /// One has ended.
    fn leave(&self) {
        match &*self.next.borrow() {
            Some(group) => group.turn.tell(()),
            None => self.is_under_way.set(false),
        }
    }
}

impl BackingUse {
    /// Makes durable what was written to a file, whose size this is at least.
    pub(super) async fn sync_file(&self, file: &BackingFile, size: u64) -> Result<(), Failure> {
        let syncs = &self.file_syncs;
        let is_shared = size <= SMALL_FILE_SIZE && self.tree.syncs_at_once();
        if !is_shared || !syncs.is_under_way.replace(true) {
            let result = file.sync().await.map_err(|error| self.failure(error));
            if is_shared {
                syncs.leave();
            }
            return result;
        }
        let group = syncs.next.borrow_mut().get_or_insert_default().clone();
        let place = group.files.borrow().len();
        group.files.borrow_mut().push(file.clone());
        let results = match place {
            0 => {
                group.turn.wait().await;
                // Who comes now waits for the one after it.
                syncs.next.take();
                let files = group.files.take();
                let results = self.tree.sync_files(&files).await;
                syncs.leave();
                let results: Synced =
                    Rc::new(results.into_iter().map(|result| result.map_err(|error| self.failure(error))).collect());
                group.done.tell(results.clone());
                results
            }
            _ => group.done.wait().await,
        };
        results[place].clone()
    }
}
