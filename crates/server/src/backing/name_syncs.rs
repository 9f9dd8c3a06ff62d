//! Syncs of directories behind, shared by those who wait for one of the same directory: whoever comes while one is
//! under way waits for the next, which is one for all of them.
//!
//! Invariant: a sync counts only for those who asked before it began.

use super::{BackingFault, BackingUse};
use crate::core::{Failure, Notice};
use reactor::backing::BackingDirectory;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Those who wait for the next sync of a directory. The first of them makes it.
#[derive(Default)]
struct NextSync {
    turn: Notice<()>,
    done: Notice<Result<(), Failure>>,
}

/// A directory by inode and path: numbers are those of one file system, and others may be mounted within.
type DirectoryKey = (u64, Vec<u8>);

/// Directories that are being synced, with who waits for the next sync.
#[derive(Default)]
pub struct NameSyncs(RefCell<BTreeMap<DirectoryKey, Option<Rc<NextSync>>>>);

impl NameSyncs {
    /// The next sync of a directory, and whether the caller has to make it; nothing if it may begin at once.
    fn join(&self, key: &DirectoryKey) -> Option<(Rc<NextSync>, bool)> {
        let mut under_way = self.0.borrow_mut();
        let Some(next) = under_way.get_mut(key) else {
            under_way.insert(key.clone(), None);
            return None;
        };
        let is_first = next.is_none();
        Some((next.get_or_insert_default().clone(), is_first))
    }

    /// One has ended.
    fn leave(&self, key: &DirectoryKey) {
        let mut under_way = self.0.borrow_mut();
        match under_way.get_mut(key).and_then(Option::take) {
            Some(next) => next.turn.tell(()),
            None => drop(under_way.remove(key)),
        }
    }
}

impl BackingUse {
    /// Makes what was done to names of a directory durable.
    pub(super) async fn sync_names(&self, directory: &BackingDirectory) -> Result<(), Failure> {
        if self.has_fault(BackingFault::SyncsNothing) {
            return Ok(());
        }
        let key = (directory.inode(), directory.path().to_vec());
        let next = match self.name_syncs.join(&key) {
            Some((next, false)) => return next.done.wait().await,
            Some((next, true)) => {
                next.turn.wait().await;
                Some(next)
            }
            None => None,
        };
        let result = directory.sync().await.map_err(|error| self.failure(error));
        self.name_syncs.leave(&key);
        if let Some(next) = next {
            next.done.tell(result.clone());
        }
        result
    }
}
