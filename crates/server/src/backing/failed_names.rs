//! Names that a listing has brought and that can't be looked at: a stale handle, a dead mount, a file that is too
//! large. The rest of their directory is listed all the same. They are shown in listings, by a kind that the tree tells
//! and an id that nobody has, and whoever wants to know more of one looks for it by name, and gets its error.
//!
//! Invariants
//! 1. A directory that has such names is not listed: that they are absent is never concluded, and no client looks for
//!    names in it by itself.
//! 2. They are in memory alone, and forgotten after `AGE_NS_MAX`: whoever lists the directory then has it listed anew.

use super::BackingUse;
use crate::core::Core;
use crate::journal::tables::Tables;
use crate::names::{Dentry, cursor_of};
use reactor::Nanos;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;
use wire::{FileId, Kind, Status};

/// Such names that one directory has on one server at most; if there are more, the listing fails.
pub const FAILED_NAMES_MAX: usize = 256;
/// Directories that have some at most.
const FAILED_DIRECTORIES_MAX: usize = 256;
/// For how long they are shown without another try.
const AGE_NS_MAX: Nanos = 10_000_000_000;

/// The names of a directory, by cursor.
pub type FailedEntries = BTreeMap<(u64, Box<[u8]>), (FileId, Kind)>;

/// See the module.
pub struct FailedNames {
    names: FailedEntries,
    listed: Nanos,
}

impl BackingUse {
    /// A directory was listed, but for these names.
    pub(super) fn put_failed_names(&self, directory: FileId, names: FailedEntries, now: Nanos) {
        let mut failed = self.failed_names.borrow_mut();
        if failed.len() >= FAILED_DIRECTORIES_MAX.min(self.memos) {
            failed.clear();
            self.lost.note_all();
        }
        failed.insert(directory.0, FailedNames { names, listed: now });
    }

    /// Other names of a directory may be unknown now: it was not listed but for these any more.
    pub(super) fn forget_failed_names(&self, directory: FileId) {
        self.failed_names.borrow_mut().remove(&directory.0);
        self.lost.note(directory);
    }

    /// What a name stands for is known now. The last of them leaves a directory that is to be listed anew.
    pub(super) fn remove_failed_name(&self, directory: FileId, name: &[u8]) {
        let mut failed = self.failed_names.borrow_mut();
        if let Some(known) = failed.get_mut(&directory.0) {
            known.names.remove(&(cursor_of(directory, name), name.into()));
            if known.names.is_empty() {
                failed.remove(&directory.0);
            }
        }
    }
}

impl Core {
    /// Whether a directory was listed, but for some of its names.
    pub(super) fn has_failed_names(&self, directory: FileId) -> bool {
        let Some(backing) = &self.backing else { return false };
        let now = self.reactor.now();
        let is_young = |failed: &FailedNames| now.saturating_sub(failed.listed) < AGE_NS_MAX;
        backing.failed_names.borrow().get(&directory.0).is_some_and(is_young)
    }

    /// Whether this server's share of a directory has no names: `NotEmpty`, or `Busy` where nobody knows yet.
    pub fn check_emptied(&self, tables: &Tables, directory: FileId) -> Result<(), Status> {
        if !tables.names.is_empty(directory) || self.has_failed_names(directory) {
            return Err(Status::NotEmpty);
        }
        if self.lacks_listing(tables, directory) { Err(Status::Busy) } else { Ok(()) }
    }

    /// The same, for whoever tries again if nobody knows: it is listed meanwhile.
    pub fn check_removable(self: &Rc<Self>, tables: &Tables, directory: FileId) -> Result<(), Status> {
        let emptied = self.check_emptied(tables, directory);
        if emptied == Err(Status::Busy) {
            self.start_listing(directory);
        }
        emptied
    }

    /// Visits a directory's entries from a cursor on, in the order of cursors, until the visitor says false.
    pub fn walk_names(
        &self,
        tables: &Tables,
        directory: FileId,
        from: u64,
        visit: &mut dyn FnMut(&Dentry<'_>) -> bool,
    ) {
        if !self.has_failed_names(directory) {
            return tables.names.walk(directory, from, &mut |entry: &Dentry<'_>| visit(entry));
        }
        let Some(backing) = &self.backing else { return };
        let failed = backing.failed_names.borrow();
        let names =
            failed.get(&directory.0).into_iter().flat_map(|failed| failed.names.range((from, Box::default())..));
        // By now somebody may have found out what is there, and have removed it.
        let is_shown = |name: &[u8]| self.is_unknown(tables, directory, name);
        let mut left = names
            .map(|((cursor, name), (id, kind))| Dentry { cursor: *cursor, id: *id, kind: *kind, name })
            .filter(|entry| is_shown(entry.name))
            .peekable();
        let mut flow = ControlFlow::Continue(());
        tables.names.walk(directory, from, &mut |entry: &Dentry<'_>| {
            while flow.is_continue()
                && let Some(failed) = left.next_if(|failed| failed.cursor <= entry.cursor)
            {
                flow = to_flow(visit(&failed));
            }
            if flow.is_continue() {
                flow = to_flow(visit(entry));
            }
            flow.is_continue()
        });
        while flow.is_continue()
            && let Some(failed) = left.next()
        {
            flow = to_flow(visit(&failed));
        }
    }
}

fn to_flow(goes_on: bool) -> ControlFlow<()> {
    if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}
