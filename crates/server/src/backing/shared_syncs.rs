//! Syncs behind, shared by those who wait for one of the same thing: whoever comes while one is under way waits for the
//! next, which is one for all of them. A sync ends a transaction of the file system's journal, and one for a hundred
//! takes no longer than one for one.
//!
//! Invariant: a sync counts only for those who asked before it began.

use super::{BackingFault, BackingUse};
use crate::core::{Failure, Notice};
use reactor::backing::{BackingDirectory, BackingFile};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Files up to this size are synced with others.
pub const SMALL_FILE_SIZE: u64 = 64 << 10;

/// A directory by inode and path: numbers are those of one file system, and others may be mounted within.
type DirectoryKey = (u64, Vec<u8>);

/// Syncs of names of directories.
pub type NameSyncs = SharedSyncs<DirectoryKey, (), Result<(), Failure>>;
/// Syncs of small files, with what became of each.
pub type FileSyncs = SharedSyncs<(), BackingFile, Rc<Vec<Result<(), Failure>>>>;

/// Those who wait for the next sync, each with what it is about. The first of them makes it.
struct NextSync<I, T> {
    items: RefCell<Vec<I>>,
    turn: Notice<()>,
    done: Notice<T>,
}

/// Those who wait, if there are any.
type Waiting<I, T> = Option<Rc<NextSync<I, T>>>;

/// Syncs that are under way, by what they are of, each with who waits for the next.
pub struct SharedSyncs<K, I, T>(RefCell<BTreeMap<K, Waiting<I, T>>>);

impl<K, I, T> Default for SharedSyncs<K, I, T> {
    fn default() -> Self {
        SharedSyncs(RefCell::default())
    }
}

impl<K: Ord + Clone, I, T: Clone> SharedSyncs<K, I, T> {
    /// The next sync; nothing if it may begin at once.
    fn next(&self, key: &K) -> Waiting<I, T> {
        let mut under_way = self.0.borrow_mut();
        let Some(next) = under_way.get_mut(key) else {
            under_way.insert(key.clone(), None);
            return None;
        };
        let empty = || Rc::new(NextSync { items: RefCell::default(), turn: Notice::new(), done: Notice::new() });
        Some(next.get_or_insert_with(empty).clone())
    }

    /// One has ended.
    fn leave(&self, key: &K) {
        let mut under_way = self.0.borrow_mut();
        match under_way.get_mut(key).and_then(Option::take) {
            Some(next) => next.turn.tell(()),
            None => drop(under_way.remove(key)),
        }
    }

    /// What comes of the first sync that begins from now on, and the place of the caller's item among those that it is
    /// for. One of those who wait calls `sync`, with all of them.
    async fn join(&self, key: K, item: I, sync: impl AsyncFnOnce(Vec<I>) -> T) -> (usize, T) {
        let Some(next) = self.next(&key) else {
            let result = sync(vec![item]).await;
            self.leave(&key);
            return (0, result);
        };
        let place = next.items.borrow().len();
        next.items.borrow_mut().push(item);
        if place > 0 {
            return (place, next.done.wait().await);
        }
        next.turn.wait().await;
        let result = sync(next.items.take()).await;
        self.leave(&key);
        next.done.tell(result.clone());
        (0, result)
    }
}

impl BackingUse {
    /// Makes what was done to names of a directory durable.
    pub(super) async fn sync_names(&self, directory: &BackingDirectory) -> Result<(), Failure> {
        if self.has_fault(BackingFault::SyncsNothing) {
            return Ok(());
        }
        let key = (directory.inode(), directory.path().to_vec());
        let sync = async |_| directory.sync().await.map_err(|error| self.failure(error));
        self.name_syncs.join(key, (), sync).await.1
    }

    /// Makes durable what was written to a file, whose size this is at least: with others that are small, where the
    /// file system can do that.
    pub(super) async fn sync_file(&self, file: &BackingFile, size: u64) -> Result<(), Failure> {
        let sync_one = async |file: &BackingFile| file.sync().await.map_err(|error| self.failure(error));
        if size > SMALL_FILE_SIZE || !self.tree.syncs_at_once() {
            return sync_one(file).await;
        }
        let sync = async |files: Vec<BackingFile>| {
            Rc::new(match &files[..] {
                [only] => vec![sync_one(only).await],
                files => {
                    let results = self.tree.sync_files(files).await;
                    results.into_iter().map(|result| result.map_err(|error| self.failure(error))).collect()
                }
            })
        };
        let (place, results) = self.file_syncs.join((), file.clone(), sync).await;
        results[place].clone()
    }
}
