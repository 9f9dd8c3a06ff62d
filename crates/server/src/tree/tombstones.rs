//! Removed directories are remembered, because clients may have cached their paths, until there are too many. Then all
//! clients are told to forget everything, by a tree change of its own kind (`tree_kinds::ALL`): whoever knows less than
//! its number is refused, and whoever knows it has looked every path up since.
//!
//! Invariants
//! 1. A server forgets what it had buried when it takes that change into its log, in the same journal record. The name
//!    of what it had buried was gone before, so nobody finds a way to it who knows the change.
//! 2. Who has a removed directory by its id alone is refused without a tombstone too: at its home by the inode that is
//!    missing, elsewhere because the home does not take the share that a server has to announce before it puts a name
//!    into it.
//! 3. There are never more than twice as many tombstones as `Bounds::tombstones` says: beyond, nothing is marked for
//!    removal.

use crate::coordination::retry::Backoff;
use crate::core::{Core, Failure};
use crate::handlers::have_all_know;
use reactor::Class;
use std::rc::Rc;
use wire::messages::tree_kinds;
use wire::{FileId, Status};

/// Bytes that a removed directory takes: its id, in a hash table that may just have grown.
pub const TOMBSTONE_SIZE: u64 = 40;

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
    core.tables.borrow().tombstones.len() >= core.options.bounds.tombstones
}

/// Has everything forgotten, if there is too much and nobody is at it. Not before this server serves, for a tree change
/// of an earlier life has the turn first.
pub fn start(core: &Rc<Core>) {
    if !is_due(core) || !core.life.is_serving() || !core.background.tombstones.begin() {
        return;
    }
    let core = core.clone();
    core.reactor.clone().spawn(Class::Background, async move {
        let mut backoff = Backoff::default();
        while is_due(&core) && !core.life.is_stopping() {
            if have_all_know(&core, FileId::ROOT, tree_kinds::ALL).await.is_err() {
                backoff.pause(&core.reactor).await;
            }
        }
        core.background.tombstones.end();
    });
}
