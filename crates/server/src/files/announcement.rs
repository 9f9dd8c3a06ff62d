//! Telling a file's home, once, that this server is about to hold bytes of the file.
//!
//! Invariants
//! 1. A chunk of a file whose home is elsewhere is committed only while the share is announced: the check and the
//!    commit happen without an await between them.
//! 2. An announcement whose file is reaped while it is under way does not count, for the reap has passed already.

use crate::core::{Core, Failure, Notice};
use crate::store::FastMap;
use reactor::{Class, Nanos};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use wire::messages::{AnnounceReply, AnnounceRequest};
use wire::{FileId, Operation, Status};

/// An announcement under way, shared by all writers of the file here.
struct PendingAnnouncement {
    generation: u32,
    /// The file was reaped here meanwhile.
    reaped: Cell<bool>,
    done: Notice<Result<(), Failure>>,
}

/// Announcements under way, by file.
#[derive(Default)]
pub struct Announcements(RefCell<FastMap<u64, Rc<PendingAnnouncement>>>);

impl Core {
    pub fn is_announced(&self, file: FileId) -> bool {
        self.store.share(file.0).is_some_and(|share| share.announced.is_some())
    }

    /// Begins to announce the file unless that is done or under way.
    pub fn start_announcement(self: &Rc<Self>, file: FileId) -> Result<(), Failure> {
        if self.is_announced(file) || self.announcements.0.borrow().contains_key(&file.0) {
            return Ok(());
        }
        let generation = self.next_generation()?;
        let announcement = Rc::new(PendingAnnouncement { generation, reaped: Cell::new(false), done: Notice::new() });
        self.announcements.0.borrow_mut().insert(file.0, announcement.clone());
        let core = self.clone();
        self.reactor.spawn(Class::Metadata, async move {
            let result = announce(&core, file, &announcement).await;
            core.announcements.0.borrow_mut().remove(&file.0);
            announcement.done.tell(result);
        });
        Ok(())
    }

    /// Waits for the announcement under way, if there is one. The share may have been retracted again when this
    /// returns, so the caller looks again.
    pub async fn wait_for_announcement(&self, file: FileId, deadline: Nanos) -> Result<(), Failure> {
        let announcement = self.announcements.0.borrow().get(&file.0).cloned();
        match announcement {
            None => Ok(()),
            Some(announcement) => {
                self.wait_until(
                    deadline,
                    "the file's home did not take the announcement in time",
                    announcement.done.wait(),
                )
                .await?
            }
        }
    }

    /// The file is being reaped here: an announcement under way comes too late.
    pub fn cancel_announcement(&self, file: FileId) {
        if let Some(announcement) = self.announcements.0.borrow().get(&file.0) {
            announcement.reaped.set(true);
        }
    }

    /// Generation through which all announcements of the file have ended here, provided that none stands.
    pub fn ended_generation(&self, file: FileId) -> u32 {
        match self.announcements.0.borrow().get(&file.0) {
            Some(announcement) => announcement.generation - 1,
            None => self.tables.borrow().next_generation - 1,
        }
    }
}

async fn announce(core: &Rc<Core>, file: FileId, announcement: &PendingAnnouncement) -> Result<(), Failure> {
    let Some(home) = core.cluster.home_of(file) else {
        return Err(Failure::with_text(Status::BadMessage, "file id is out of range"));
    };
    let request = AnnounceRequest { file, server: core.index, generation: announcement.generation };
    let AnnounceReply { times_set, .. } = core.peers.call(home, Operation::Announce, &request, None).await?;
    if announcement.reaped.get() {
        return Err(Failure::new(Status::StaleFile, file));
    }
    // What is stamped from now on is later.
    core.clock.note(times_set.saturating_add(1));
    let mut transaction = core.store.begin();
    core.store.set_announced(file.0, Some(announcement.generation), times_set, &mut transaction);
    core.commit(transaction, [])
}
