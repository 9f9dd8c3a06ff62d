//! When what a server says of itself must survive power loss first, and syncs that many wait for share.
//!
//! On a medium that keeps what was synced, a power loss takes a server back to its last sync (docs/store.md). Clients
//! are told so and call fsync. Between servers there is one rule:
//!
//! Invariants (media that are not volatile; `handlers::operations` says which operations are concerned)
//! 1. What a server asks of another one, or confirms to it, is durable before it is said. So whatever another server
//!    has done because of us, its cause is not forgotten; and what we were promised is not.
//! 2. After a power loss no session is known and no number is given out that may have been given out before.

use crate::core::{Core, Failure, Notice};
use crate::files::late_errors::LateErrors;
use crate::journal::records::Record;
use crate::journal::tables::NUMBER_BLOCK;
use crate::process::statistics::waits::WaitReason;
use crate::store::{Store, StoreError, SyncError};
use reactor::{Class, Reactor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use wire::identity::SEQUENCE_MAX;

/// Least bytes of the journal that setting numbers aside takes.
const RECORD_SIZE_MIN: u64 = 64;

type SyncResult = Result<(), Failure>;

/// Syncs of the store, one at a time; all who come while one runs share the next.
pub struct Syncs {
    reactor: Reactor,
    store: Store,
    running: Cell<bool>,
    next: RefCell<Option<Notice<SyncResult>>>,
    /// Syncs that were carried out, and that failed.
    pub count: Cell<u64>,
    pub failed: Cell<u64>,
    late_errors: Rc<LateErrors>,
    /// Told when the medium refused the journal: the server must stop.
    pub broken: Notice<String>,
}

impl Syncs {
    pub fn new(reactor: &Reactor, store: &Store, late_errors: &Rc<LateErrors>) -> Rc<Syncs> {
        Rc::new(Syncs {
            reactor: reactor.clone(),
            store: store.clone(),
            running: Cell::new(false),
            next: RefCell::default(),
            count: Cell::new(0),
            failed: Cell::new(0),
            late_errors: late_errors.clone(),
            broken: Notice::new(),
        })
    }

    /// Resolves when everything that was committed so far survives power loss, as far as the medium can.
    /// Errors: `Io`, with what the medium said.
    pub async fn durable(self: &Rc<Self>) -> SyncResult {
        if self.store.is_durable() {
            return Ok(());
        }
        self.round().wait().await
    }

    /// One sync, also when only the store itself has something to gain: space that rests, a checkpoint that waits.
    pub async fn sync(self: &Rc<Self>) -> SyncResult {
        if self.store.is_volatile() {
            return Ok(());
        }
        self.round().wait().await
    }

    /// Begins a sync in the background.
    pub fn start(self: &Rc<Self>) {
        if !self.running.get() {
            self.round();
        }
    }

    /// The sync that begins next.
    fn round(self: &Rc<Self>) -> Notice<SyncResult> {
        let notice = self.next.borrow_mut().get_or_insert_with(|| Notice::of(WaitReason::Sync)).clone();
        if !self.running.replace(true) {
            let syncs = self.clone();
            self.reactor.spawn(Class::Metadata, async move { syncs.run().await });
        }
        notice
    }

    async fn run(self: Rc<Self>) {
        loop {
            let next = self.next.borrow_mut().take();
            let Some(notice) = next else { break };
            let result = self.store.sync().await;
            self.count.set(self.count.get() + 1);
            notice.tell(result.map_err(|error| self.note_failure(error)));
        }
        self.running.set(false);
    }

    fn note_failure(&self, error: SyncError) -> Failure {
        self.failed.set(self.failed.get() + 1);
        match error {
            SyncError::Journal(error) => {
                self.broken.tell(error.to_string());
                error.into()
            }
            SyncError::Data { files, error } => {
                self.late_errors.note_medium(&files, self.reactor.wall_clock());
                error.into()
            }
        }
    }
}

impl Core {
    /// See `Syncs::durable`.
    pub async fn durable(&self) -> SyncResult {
        self.syncs.durable().await
    }
}

/// Invariant 2, before anybody is served: sessions are forgotten, so that what they did and what is lost is never
/// mistaken; numbers go on beyond all that the lost part of the journal can have set aside; and clients will have to
/// forget what they have cached (`tree::invalidation`).
pub fn forget_after_power_loss(core: &Rc<Core>) -> Result<(), StoreError> {
    let failed = |failure: Failure| StoreError::Damaged(String::from_utf8_lossy(&failure.text).into_owned());
    let blocks = core.store.usage().journal_size / RECORD_SIZE_MIN + 1;
    let (number_limit, generation_limit) = {
        let mut tables = core.tables.borrow_mut();
        let number_limit = tables.number_limit.saturating_add(blocks * NUMBER_BLOCK).min(SEQUENCE_MAX);
        let generations = u32::try_from(blocks).unwrap_or(u32::MAX).saturating_add(NUMBER_BLOCK as u32);
        let generation_limit = tables.generation_limit.saturating_add(generations);
        (tables.next_number, tables.next_generation) = (number_limit, generation_limit);
        (number_limit, generation_limit)
    };
    core.change([Record::Numbers { number_limit, generation_limit }, Record::LossUntold(true)]).map_err(failed)?;
    let sessions = core.tables.borrow().sessions.ids();
    for session in sessions {
        core.change([Record::SessionDelete(session)]).map_err(failed)?;
    }
    Ok(())
}
