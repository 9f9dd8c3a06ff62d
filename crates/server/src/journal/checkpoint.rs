//! Checkpoints in the background: the tables are walked in steps while requests change them. What changes meanwhile is
//! in the journal after the checkpoint's begin, and entries are after-images, so the two fit together.

use crate::core::{Core, Notice};
use crate::files::file_locks::LockKey;
use crate::journal::records::Record;
use crate::names::{NO_TIME, WalkPosition};
use crate::process::statistics::waits::WaitReason;
use crate::store::{Checkpoint, StoreError};
use crate::tree::Tree;
use reactor::log::{self, Level};
use reactor::{Class, Nanos};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use wire::messages::LockOwner;

/// Entries of one step.
const STEP_COUNT: usize = 256;

/// The state of checkpoints.
#[derive(Default)]
pub struct Checkpoints {
    running: Cell<bool>,
    finished: RefCell<Notice<()>>,
    pub count: Cell<u64>,
    pub failed: Cell<u64>,
    /// When the last one failed.
    failed_at: Cell<Nanos>,
}

impl Checkpoints {
    pub fn is_running(&self) -> bool {
        self.running.get()
    }

    /// Told when the checkpoint that runs now has ended.
    pub fn finished(&self) -> Notice<()> {
        self.finished.borrow().clone()
    }
}

/// Pause after a checkpoint that failed, while the journal is full.
const FAILURE_PAUSE: Nanos = 500_000_000;

/// Starts a checkpoint where nothing can be journalled any more, unless one runs or has just failed.
pub fn start_again(core: &Rc<Core>) {
    let failed_at = core.checkpoints.failed_at.get();
    if failed_at == 0 || core.reactor.now() >= failed_at + FAILURE_PAUSE {
        start(core);
    }
}

/// Starts a checkpoint unless one runs.
pub fn start(core: &Rc<Core>) {
    if core.checkpoints.running.replace(true) {
        return;
    }
    let core = core.clone();
    core.reactor.clone().spawn(Class::Background, async move {
        // A failure shows in the statistics; the journal keeps everything, and the next commit tries again, also one
        // that finds the journal full.
        match run(&core).await {
            Ok(()) => core.checkpoints.count.set(core.checkpoints.count.get() + 1),
            Err(error) => {
                core.checkpoints.failed.set(core.checkpoints.failed.get() + 1);
                core.checkpoints.failed_at.set(core.reactor.now());
                let words =
                    "a checkpoint could not be written; the journal has everything, and the next one tries again";
                log::event(Level::Error, "checkpoint-failed", words, &[("reason", &error)]);
            }
        }
        core.checkpoints.running.set(false);
        let finished = core.checkpoints.finished.replace(Notice::of(WaitReason::Journal));
        finished.tell(());
    });
}

/// Writes a checkpoint now; for a clean stop.
pub async fn complete(core: &Rc<Core>) -> Result<(), StoreError> {
    while core.checkpoints.is_running() {
        core.checkpoints.finished().wait().await;
    }
    core.checkpoints.running.set(true);
    let result = run(core).await;
    core.checkpoints.running.set(false);
    core.checkpoints.finished.replace(Notice::of(WaitReason::Journal)).tell(());
    result
}

async fn run(core: &Rc<Core>) -> Result<(), StoreError> {
    let mut writer = TableWriter { checkpoint: core.store.checkpoint_begin(), bytes: Vec::new(), failed: None };
    small_tables(core, &mut writer)?;
    tombstone_steps(core, &mut writer).await?;
    let sessions = core.tables.borrow().sessions.ids();
    for session in sessions {
        session_step(core, &mut writer, session)?;
        core.reactor.yield_now().await;
    }
    let mut from = Some(0);
    while let Some(place) = from {
        from = core.tables.borrow().inodes.walk_step(place, STEP_COUNT as u32, &mut |inode| {
            writer.put(&Record::InodePut(inode.clone()));
        });
        writer.check()?;
        core.reactor.yield_now().await;
    }
    let mut from = 0;
    while let Some(next) = extended_step(core, &mut writer, from)? {
        from = next;
        core.reactor.yield_now().await;
    }
    let mut from = Some(WalkPosition::default());
    while let Some(place) = from {
        from = core.tables.borrow().names.walk_step(place, STEP_COUNT, &mut |parent, entry| {
            writer.put(&Record::DentryPut { parent, name: entry.name, id: entry.id, kind: entry.kind });
        });
        writer.check()?;
        core.reactor.yield_now().await;
    }
    directory_steps(core, &mut writer).await?;
    backing_steps(core, &mut writer).await?;
    lock_steps(core, &mut writer).await?;
    while writer.checkpoint.store_step()? {
        core.reactor.yield_now().await;
    }
    writer.checkpoint.finish()?;
    // Where the medium keeps what is synced, a checkpoint counts from the next sync on.
    core.syncs.sync().await.map_err(|failure| StoreError::Damaged(String::from_utf8_lossy(&failure.text).into_owned()))
}

/// Shares of directories here, and servers with shares of those whose home is here.
async fn directory_steps(core: &Rc<Core>, writer: &mut TableWriter) -> Result<(), StoreError> {
    let mut from = Some(0);
    while let Some(place) = from {
        from = core.tables.borrow().names.share_step(place, STEP_COUNT as u32, &mut |directory, share| {
            if share.time != NO_TIME {
                writer.put(&Record::Share { directory, time: share.time });
            }
        });
        writer.check()?;
        core.reactor.yield_now().await;
    }
    let announced = core.tables.borrow().announced.ids();
    for ids in announced.chunks(STEP_COUNT) {
        for directory in ids {
            let shares = core.tables.borrow().announced.get(*directory).to_vec();
            if !shares.is_empty() {
                writer.put(&Record::AnnouncedPut { directory: *directory, shares });
            }
        }
        writer.check()?;
        core.reactor.yield_now().await;
    }
    Ok(())
}

/// What is known of the backing tree. What goes meanwhile is in the journal after the checkpoint's begin.
async fn backing_steps(core: &Rc<Core>, writer: &mut TableWriter) -> Result<(), StoreError> {
    let Some(root) = core.tables.borrow().backing.root else { return Ok(()) };
    writer.put(&Record::BackingRoot(root));
    let [taken_up, differing, listed] = core.tables.borrow().backing.ids();
    for ids in taken_up.chunks(STEP_COUNT) {
        ids.iter().for_each(|id| {
            core.tables.borrow().backing.records_of(wire::FileId(*id), &mut |record| writer.put(record));
        });
        writer.check()?;
        core.reactor.yield_now().await;
    }
    for ids in differing.chunks(STEP_COUNT) {
        ids.iter().for_each(|id| {
            core.tables.borrow().backing.differences_of(wire::FileId(*id), &mut |record| writer.put(record));
        });
        writer.check()?;
        core.reactor.yield_now().await;
    }
    for ids in listed.chunks(STEP_COUNT) {
        for directory in ids.iter().map(|id| wire::FileId(*id)) {
            if core.tables.borrow().backing.is_listed(directory) {
                writer.put(&Record::Listed(directory));
            }
        }
        writer.check()?;
        core.reactor.yield_now().await;
    }
    Ok(())
}

/// Locks of files, range by range. Each entry is about its range alone, so changes between two steps do no harm.
async fn lock_steps(core: &Rc<Core>, writer: &mut TableWriter) -> Result<(), StoreError> {
    let owners: Vec<_> = core.tables.borrow().file_locks.iter().map(|(key, owner, _)| (key, *owner)).collect();
    for (key, owner) in owners {
        let mut from = Some(0);
        while let Some(place) = from {
            from = lock_step(core, writer, key, &owner, place);
            writer.check()?;
            core.reactor.yield_now().await;
        }
    }
    Ok(())
}

/// Some ranges of an owner from a place on; the next place to go on at.
fn lock_step(core: &Core, writer: &mut TableWriter, key: LockKey, owner: &LockOwner, place: u64) -> Option<u64> {
    let tables = core.tables.borrow();
    let mut next = None;
    for range in tables.file_locks.held(key, owner)?.iter_from(place).take(STEP_COUNT) {
        let (file, space) = key;
        writer.put(&Record::LockSet { file, space, owner: *owner, range, held: true });
        next = Some(range.end);
    }
    next
}

fn small_tables(core: &Rc<Core>, writer: &mut TableWriter) -> Result<(), StoreError> {
    let tables = core.tables.borrow();
    writer.put(&Record::Numbers { number_limit: tables.number_limit, generation_limit: tables.generation_limit });
    for (number, intent) in &tables.intents {
        writer.put(&Record::IntentPut { number: *number, intent: intent.clone() });
    }
    for ((coordinator, number), change) in &tables.prepared {
        writer.put(&Record::PreparedPut { coordinator: *coordinator, number: *number, change: change.clone() });
    }
    writer.put(&Record::DelegationsGiven(tables.delegations_given));
    writer.put(&Record::LossUntold(tables.is_loss_untold));
    for session in &tables.entry_keepers {
        writer.put(&Record::EntriesKept { session: *session, held: true });
    }
    if let Some((queue, number)) = tables.last_submission {
        writer.put(&Record::SubmissionTaken { queue, number });
    }
    for file in tables.open.linkable() {
        writer.put(&Record::LinkablePut(file));
    }
    let mut changed: Vec<u64> = tables.changes.keys().copied().collect();
    changed.sort_unstable();
    for file in changed {
        writer.put(&Record::ChangePut { file: wire::FileId(file), number: tables.changes[&file] });
    }
    let mut marked: Vec<u64> = tables.marks.keys().copied().collect();
    marked.sort_unstable();
    for directory in marked {
        let mark = &tables.marks[&directory];
        let directory = wire::FileId(directory);
        writer.put(&Record::MarkPut { directory, coordinator: mark.coordinator, attempt: mark.attempt });
    }
    tree(&tables.tree, writer);
    writer.check()
}

/// Removed directories. When some are forgotten meanwhile, the journal says so after what is put here. The tree change
/// that is under way comes first, so that none counts as older than it.
async fn tombstone_steps(core: &Rc<Core>, writer: &mut TableWriter) -> Result<(), StoreError> {
    tree_mark(&core.tables.borrow().tree, writer);
    let removed: Vec<u64> = core.tables.borrow().tombstones.keys().copied().collect();
    for directories in removed.chunks(STEP_COUNT) {
        directories.iter().for_each(|directory| writer.put(&Record::Tombstone(wire::FileId(*directory))));
        writer.check()?;
        core.reactor.yield_now().await;
    }
    Ok(())
}

fn tree(tree: &Tree, writer: &mut TableWriter) {
    writer.put(&Record::TreeFloor(tree.floor()));
    for entry in tree.log() {
        writer.put(&Record::TreeLog(entry.clone()));
    }
    writer.put(&Record::TreeSettled(tree.settled()));
    tree_mark(tree, writer);
}

fn tree_mark(tree: &Tree, writer: &mut TableWriter) {
    if let Some(mark) = tree.mark() {
        writer.put(&Record::TreeMark { number: mark.number, entries: mark.entries.clone() });
    }
}

fn session_step(core: &Rc<Core>, writer: &mut TableWriter, session: u64) -> Result<(), StoreError> {
    let tables = core.tables.borrow();
    let Some(born) = tables.sessions.born(session) else { return Ok(()) };
    writer.put(&Record::SessionPut { session, born });
    tables.sessions.for_each_outcome(session, &mut |sequence, reply| {
        writer.put(&Record::Outcome { session, sequence, reply });
    });
    writer.check()
}

/// The extended attributes of the first inode from `from` on that has any; the next place to go on at.
fn extended_step(core: &Rc<Core>, writer: &mut TableWriter, from: u64) -> Result<Option<u64>, StoreError> {
    let tables = core.tables.borrow();
    let Some(file) = tables.extended.files_from(from).next() else { return Ok(None) };
    for (name, value) in tables.extended.of_inode(file) {
        writer.put(&Record::ExtendedPut { file, name, value });
    }
    writer.check()?;
    Ok(Some(file.0 + 1))
}

struct TableWriter {
    checkpoint: Checkpoint,
    bytes: Vec<u8>,
    failed: Option<StoreError>,
}

impl TableWriter {
    fn put(&mut self, record: &Record<'_>) {
        let Some(kind) = record.kind() else { return };
        self.bytes.clear();
        record.encode(NO_TIME, &mut self.bytes);
        if self.failed.is_none()
            && let Err(error) = self.checkpoint.put(kind, &self.bytes)
        {
            self.failed = Some(error);
        }
    }

    fn check(&mut self) -> Result<(), StoreError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}
