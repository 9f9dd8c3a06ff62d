//! Tree changes on every server: MarkTree, ResolveTree and AskParents, which the sequencer asks (`sequencer`), and
//! TreeLog, by which clients learn what to forget.
//!
//! Invariants
//! 1. From its mark to its end no request by a path through a directory that moves is begun here, and those that were
//!    begun before have ended when the mark is confirmed.
//! 2. The log, the parents of what moved, and the end of what was removed are one journal record.

use crate::core::{Caller, Core, Failure};
use crate::handlers::Progress;
use crate::handlers::names::lookup::is_elsewhere;
use crate::journal::records::Record;
use crate::journal::tables::TREE_COORDINATOR;
use crate::tree::undone;
use reactor::Nanos;
use std::rc::Rc;
use wire::limits::ANCESTOR_COUNT_MAX;
use wire::messages::{
    AskParentsReply, AskParentsRequest, Empty, MarkTreeRequest, ResolveTreeRequest, TreeEntry, TreeLogEntry,
    TreeLogReply, TreeLogRequest, tree_kinds,
};
use wire::{Decode, Encode, FileId, Kind, Status};

/// Directories that one change concerns at most.
const ENTRY_COUNT_MAX: usize = 2;

/// Checks what another server says of a change.
pub fn check_entries(core: &Core, entries: &[TreeEntry]) -> Result<(), Failure> {
    let right = |entry: &TreeEntry| {
        let is_root = entry.directory == FileId::ROOT;
        let fits = match entry.kind {
            tree_kinds::MOVED | tree_kinds::REMOVED => !is_root,
            tree_kinds::RIGHTS => true,
            tree_kinds::ALL => is_root,
            _ => false,
        };
        fits && core.cluster.home_of(entry.directory).is_some()
    };
    match (1..=ENTRY_COUNT_MAX).contains(&entries.len()) && entries.iter().all(right) {
        true => Ok(()),
        false => Err(Failure::with_text(Status::BadMessage, "a tree change is not valid")),
    }
}

/// Only the sequencer marks and resolves.
fn check_sequencer(core: &Core, caller: &Caller) -> Result<(), Failure> {
    if core.cluster.home_of(FileId::ROOT) == Some(caller.peer.from_server) {
        return Ok(());
    }
    Err(Failure::with_text(Status::BadMessage, "the caller is not the sequencer"))
}

pub fn mark_tree(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let MarkTreeRequest { number, entries } = MarkTreeRequest::from_bytes(params)?;
    check_sequencer(core, caller)?;
    check_entries(core, &entries)?;
    mark(core, number, &entries)?;
    let (core, deadline) = (core.clone(), caller.deadline);
    crate::handlers::later(async move {
        wait_for_trails(&core, &entries, deadline).await?;
        Ok(Empty {})
    })
}

/// Marks what is about to change. `Busy` or `NotEmpty` when a directory can't be replaced.
pub fn mark(core: &Rc<Core>, number: u64, entries: &[TreeEntry]) -> Result<(), Failure> {
    let mut records = vec![Record::TreeMark { number, entries: entries.to_vec() }];
    {
        let tables = core.tables.borrow();
        if number <= tables.tree.settled() {
            return Err(Status::Busy.into());
        }
        for directory in entries.iter().filter(|entry| entry.kind == tree_kinds::REMOVED).map(|entry| entry.directory) {
            core.check_removable(&tables, directory)?;
            // Something may be about to come into it, or an attempt to remove it has not wholly ended.
            let is_marked = tables.marks.contains_key(&directory.0);
            let other = is_marked && !tables.is_marked_by(directory, TREE_COORDINATOR, number);
            if other || !tables.locks.in_directory(directory).is_empty() {
                return Err(Status::Busy.into());
            }
            core.check_room_for_tombstone()?;
            records.push(Record::MarkPut { directory, coordinator: TREE_COORDINATOR, attempt: number });
        }
    }
    core.change(records)
}

/// Waits for changes of names that came through what is about to move, and are under way.
pub async fn wait_for_trails(core: &Rc<Core>, entries: &[TreeEntry], deadline: Nanos) -> Result<(), Failure> {
    for entry in entries.iter().filter(|entry| entry.kind == tree_kinds::MOVED) {
        while let Some(ended) = core.trails.through(entry.directory) {
            core.wait_until(deadline, "a change of names within the directory takes long", ended.wait()).await?;
        }
    }
    Ok(())
}

pub fn resolve_tree(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let ResolveTreeRequest { number, commit, entries } = ResolveTreeRequest::from_bytes(params)?;
    check_sequencer(core, caller)?;
    check_entries(core, &entries)?;
    let records = resolution(core, number, commit, &entries);
    if !records.is_empty() {
        core.change(records)?;
    }
    Ok(Progress::Done)
}

/// This server's share of the end of a tree change; nothing when it is known already. One that came to nothing is told
/// of by its own number, or by the next one if somebody may have been told that it happened (`undone`).
pub fn resolution(core: &Core, number: u64, commit: bool, entries: &[TreeEntry]) -> Vec<Record<'static>> {
    let tables = core.tables.borrow();
    let mut records = Vec::with_capacity(2 + 3 * entries.len());
    if number <= tables.tree.settled() {
        return records;
    }
    let marked = tables.tree.mark().map(|mark| mark.number);
    let is_undone = !commit && marked.map(undone) == Some(number);
    for entry in entries {
        let TreeEntry { directory, kind, parent } = *entry;
        let home = !is_elsewhere(core, directory);
        let attempt = if is_undone { marked } else { Some(number) };
        let is_ours = attempt.is_some_and(|attempt| tables.is_marked_by(directory, TREE_COORDINATOR, attempt));
        if kind == tree_kinds::REMOVED && is_ours {
            records.push(Record::MarkDelete(directory));
        }
        if !commit {
            // What was removed is there as before, and what was moved where it was: whoever was told otherwise looks
            // again.
            let log = Record::TreeLog(TreeLogEntry { number, directory, kind });
            records.extend((is_undone && kind != tree_kinds::REMOVED).then_some(log));
            continue;
        }
        if kind == tree_kinds::REMOVED {
            records.push(Record::Tombstone(directory));
            records.extend(home.then_some(Record::InodeDelete(directory)));
            continue;
        }
        records.push(Record::TreeLog(TreeLogEntry { number, directory, kind }));
        if kind == tree_kinds::MOVED
            && let Some(inode) = tables.inodes.get(directory)
        {
            let mut inode = inode.clone();
            inode.set_parent(parent);
            crate::handlers::names::rename::times::note_change(core, &mut inode.attributes);
            records.push(Record::InodePut(inode));
        }
    }
    records.push(Record::TreeSettled(number));
    records
}

pub fn tree_log(core: &Rc<Core>, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let since = TreeLogRequest::from_bytes(params)?.since;
    let tables = core.tables.borrow();
    let entries = tables.tree.log().filter(|entry| entry.number > since).cloned().collect();
    TreeLogReply { number: tables.tree.number(), complete: since >= tables.tree.floor(), entries }.encode(reply);
    Ok(Progress::Done)
}

pub fn ask_parents(core: &Rc<Core>, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let directory = AskParentsRequest::from_bytes(params)?.directory;
    core.check_home(directory)?;
    AskParentsReply { parents: parents(core, directory)? }.encode(reply);
    Ok(Progress::Done)
}

/// The directories that one here is in, nearest first, up to the first whose inode is not here.
pub fn parents(core: &Core, directory: FileId) -> Result<Vec<FileId>, Failure> {
    let tables = core.tables.borrow();
    let mut parents = Vec::new();
    let mut here = directory;
    while here != FileId::ROOT && parents.len() < ANCESTOR_COUNT_MAX {
        let inode = tables.inodes.get(here).filter(|inode| inode.attributes.kind == Kind::Directory);
        match inode.and_then(|inode| inode.parent()) {
            Some(parent) => here = parent,
            None if parents.is_empty() => return Err(Failure::new(Status::StaleDirectory, directory)),
            None => break,
        }
        parents.push(here);
    }
    Ok(parents)
}
