//! The one place through which everything that a server knows changes.

use crate::backing::OutlivedName;
use crate::core::{Core, Failure};
use crate::handlers;
use crate::journal::checkpoint;
use crate::journal::records::Record;
use crate::names::NO_TIME;
use crate::process::prefault;
use crate::store::{StoreError, Transaction};
use crate::tree::invalidation;
use reactor::Nanos;
use std::rc::Rc;
use wire::Status;

/// Part of the journal, in eighths, beyond which changes wait for the checkpoint that runs.
const JOURNAL_LOW_EIGHTHS: u64 = 7;

/// Bytes of a record beside one large entry: its header, an inode, an outcome.
const RECORD_REST: u64 = 4096;

impl Core {
    /// Time for a change of names: later than that of any other one here, so that a directory's home can tell from two
    /// times of this server's share whether something happened between.
    fn change_time(&self) -> i64 {
        self.clock.time().max(self.tables.borrow().names.latest_time().saturating_add(1))
    }

    /// Makes a change: journals the records together with what the transaction holds, then applies them.
    pub fn commit<'a>(
        self: &Rc<Self>,
        transaction: Transaction,
        records: impl AsRef<[Record<'a>]> + IntoIterator<Item = Record<'a>>,
    ) -> Result<(), Failure> {
        let changes_names = records.as_ref().iter().any(Record::is_dentry);
        let time = if changes_names { self.change_time() } else { NO_TIME };
        self.commit_at(time, transaction, records)
    }

    /// The same at a time of changes of names. `NO_TIME` for names that come to be known, by which no directory
    /// changes.
    pub fn commit_at<'a>(
        self: &Rc<Self>,
        time: i64,
        mut transaction: Transaction,
        records: impl AsRef<[Record<'a>]> + IntoIterator<Item = Record<'a>>,
    ) -> Result<(), Failure> {
        self.leases.check_kept(records.as_ref(), &self.tables.borrow(), &self.reactor);
        if records.as_ref().iter().any(Record::is_too_large) {
            let words = "the answer to this change is larger than what a server keeps of answers";
            return Err(Failure::with_text(Status::TooLarge, words));
        }
        let changes_tree = records.as_ref().iter().any(Record::is_tree_change);
        let derived = self.derive(&transaction, records.as_ref());
        let outlived = self.outlived_names(records.as_ref());
        for record in records.as_ref().iter().chain(&derived) {
            if let Some(kind) = record.kind() {
                transaction.put(kind, |out| record.encode(time, out));
            }
        }
        for record in outlived.iter().map(OutlivedName::record) {
            if let Some(kind) = record.kind() {
                transaction.put(kind, |out| record.encode(time, out));
            }
        }
        let changes = self.invalidate_changes(&transaction, records.as_ref());
        if let Err(error) = self.store.commit(transaction) {
            // The medium may have room for a checkpoint again, which gives the journal room.
            if matches!(error, StoreError::JournalFull) && self.store.checkpoint_due() {
                checkpoint::start_again(self);
            }
            return Err(error.into());
        }
        let released = {
            let mut tables = self.tables.borrow_mut();
            // Not by a loop: each step of it would move the record once more.
            records.into_iter().chain(derived).for_each(|record| tables.apply(record, time, None));
            outlived.iter().for_each(|name| tables.apply(name.record(), time, None));
            self.publish_changes(&tables, &changes);
            if changes_tree {
                self.publish_tree(&tables);
            }
            tables.file_locks.is_released()
        };
        if released {
            handlers::after_release(self);
        }
        invalidation::start(self);
        if self.store.checkpoint_due() {
            checkpoint::start(self);
        }
        if self.store.is_sync_due() {
            self.syncs.start();
        }
        prefault::start(self);
        self.watch_changes();
        Ok(())
    }

    /// Makes a change that has no chunks in it.
    pub fn change<'a>(
        self: &Rc<Self>,
        records: impl AsRef<[Record<'a>]> + IntoIterator<Item = Record<'a>>,
    ) -> Result<(), Failure> {
        self.commit(self.store.begin(), records)
    }

    /// Returns when a record with entries of this size need not wait for the journal. What is committed before the next
    /// await finds room. Where a checkpoint fails meanwhile it returns as well, for a commit to say what is lacking.
    pub async fn until_journal_has_room(self: &Rc<Self>, entry_size: usize, deadline: Nanos) -> Result<(), Failure> {
        let failed = self.checkpoints.failed.get();
        // Making room, before, may have taken all of its time and more.
        let deadline = deadline.max(self.reactor.now() + self.options.timeout);
        while self.waits_for_journal(entry_size) && self.checkpoints.failed.get() == failed {
            checkpoint::start(self);
            let finished = self.checkpoints.finished();
            self.wait_until(deadline, "the journal is full", finished.wait()).await?;
        }
        Ok(())
    }

    /// Whether a record with entries of this size has to wait until a checkpoint has made room for it. Not one that
    /// never fits, which is refused when it is journalled.
    pub fn waits_for_journal(&self, entry_size: usize) -> bool {
        self.is_journal_low() || entry_size > 0 && self.lacks_journal_room(entry_size)
    }

    fn lacks_journal_room(&self, entry_size: usize) -> bool {
        // What the record may leave unused before the ring's end counts as well.
        let needed = 2 * (entry_size as u64 + RECORD_REST) + RECORD_REST;
        needed <= self.store.usage().journal_size / 2 && needed > self.store.journal_room()
    }

    /// Whether changes have to wait until a checkpoint has given the journal room again.
    pub fn is_journal_low(&self) -> bool {
        if !self.checkpoints.is_running() {
            return false;
        }
        let (used, size) = self.store.journal_fill();
        used > size / 8 * JOURNAL_LOW_EIGHTHS
    }
}
