//! Two things have all clients forget what they have cached of directories, by a tree change of its own kind
//! (`tree_kinds::ALL`): whoever knows less than its number is refused, and whoever knows it has looked every path up
//! since.
//! - There are too many tombstones: removed directories are remembered, because clients may have cached their paths.
//! - The server lost power: what it has forgotten may have been seen, a directory among it, and clients would go by
//!   that at other servers, which have not lost it.
//!
//! Invariants
//! 1. A server forgets what it had buried when it takes that change into its log, in the same journal record; but not
//!    what it has buried since it was marked, for it may be told late. The name of the rest was gone before the change
//!    was decided, so nobody finds a way to it who knows the change.
//! 2. Who has a removed directory by its id alone is refused without a tombstone too: at its home by the inode that is
//!    missing, elsewhere because the home does not take the share that a server has to announce before it puts a name
//!    into it.
//! 3. There are never more than twice as many tombstones as `Bounds::tombstones` says: beyond, nothing is marked for
//!    removal.
//! 4. From a power loss until all servers know of that change a server takes no clients, and no names from other
//!    servers: so it makes nothing anew that clients still have otherwise. The journal keeps that there was a loss, for
//!    a server that is killed meanwhile.

use crate::coordination::retry::Backoff;
use crate::core::{Core, Failure};
use crate::handlers::have_all_know;
use crate::journal::records::Record;
use reactor::log::{self, Level};
use reactor::{Class, Nanos};
use std::rc::Rc;
use wire::messages::{SINCE_ASKED, tree_kinds};
use wire::{FileId, Status};

/// Bytes that a removed directory takes: its id, in a hash table that may just have grown.
pub const TOMBSTONE_SIZE: u64 = 40;

/// Pauses between attempts: clients wait for it after a power loss.
const PAUSE_NS_MIN: Nanos = 20_000_000;
const PAUSE_NS_MAX: Nanos = 200_000_000;

impl Core {
    /// Refuses to mark one more directory for removal while too many are remembered (invariant 3). The caller asks
    /// again.
    pub fn check_room_for_tombstone(&self) -> Result<(), Failure> {
        match self.tables.borrow().tombstones.len() < 2 * self.options.bounds.tombstones {
            true => Ok(()),
            false => Err(Failure::with_text(Status::Busy, "clients are being told of removed directories")),
        }
    }
}

fn is_due(core: &Core) -> bool {
    let tables = core.tables.borrow();
    tables.is_loss_untold || tables.tombstones.len() >= core.options.bounds.tombstones
}

/// Has everything forgotten, if there is a reason and nobody is at it. Not before this server serves, for a tree change
/// of an earlier life has the turn first.
pub fn start(core: &Rc<Core>) {
    if !is_due(core) || !core.life.is_serving() || !core.background.invalidation.begin() {
        return;
    }
    let core = core.clone();
    core.reactor.clone().spawn(Class::Background, async move {
        let (mut backoff, mut is_logged) = (Backoff::new(PAUSE_NS_MIN, PAUSE_NS_MAX), false);
        while is_due(&core) && !core.life.is_stopping() {
            if let Err(failure) = invalidate(&core).await {
                if core.tables.borrow().is_loss_untold && !std::mem::replace(&mut is_logged, true) {
                    let words = "clients wait until all servers know that power was lost here";
                    let reason = String::from_utf8_lossy(&failure.text).into_owned();
                    log::event(Level::Warning, "loss-untold", words, &[("reason", &reason)]);
                }
                backoff.pause(&core.reactor).await;
            }
        }
        core.background.invalidation.end();
    });
}

async fn invalidate(core: &Rc<Core>) -> Result<(), Failure> {
    let (is_loss_untold, number) = {
        let tables = core.tables.borrow();
        (tables.is_loss_untold, tables.tree.number())
    };
    let since = if is_loss_untold { SINCE_ASKED } else { number };
    have_all_know(core, FileId::ROOT, tree_kinds::ALL, since).await?;
    match is_loss_untold {
        true => core.change([Record::LossUntold(false)]),
        false => Ok(()),
    }
}
