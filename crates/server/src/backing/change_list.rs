//! The list of what is not behind as it is here, as far as a server knows, for the home of the root. It goes through
//! the server's tables step by step, so that no step of the loop takes long.
//!
//! Inodes come first, names when all servers have told theirs: an inode that an earlier life was about to move is where
//! its names say, or not, and they are noted as that turns out (`take_next_place`).

use super::flush::WAIT_NS;
use super::notes::nothing_behind;
use crate::coordination::intents::Intent;
use crate::core::{Core, Failure};
use crate::handlers::{Progress, later};
use crate::journal::tables::Tables;
use crate::names::{WalkPosition, cursor_of};
use reactor::{Class, Nanos};
use std::rc::Rc;
use wire::messages::*;
use wire::{Decode, Encode, FileId, Kind};

/// Names that a server looks through for one answer and at a time, and entries of one, which have to fit into a
/// message.
const WALK_COUNT: usize = 4096;
const STEP_COUNT: usize = 16;
const ENTRIES_MAX: usize = 64;
/// Between two looks whether changes have come to all servers.
const DECIDED_PAUSE_NS: Nanos = 1_000_000;

/// `ListChanges`: what is not behind as it is here, as far as this server knows.
pub fn list_changes(core: &Rc<Core>, params: &[u8], reply: &mut Vec<u8>) -> Result<Progress, Failure> {
    let request = ListChangesRequest::from_bytes(params)?;
    core.check_backing()?;
    let decided = if is_settled(&request) { core.decided_changes() } else { Vec::new() };
    if decided.is_empty() {
        core.list_changes(&request).encode(reply);
        return Ok(Progress::Done);
    }
    let core = core.clone();
    later(async move {
        core.await_decided(&decided).await;
        Ok(core.list_changes(&request))
    })
}

/// The stages of a list of changes.
mod stages {
    pub const END: u8 = 0;
    pub const NAMES: u8 = 1;
    pub const RECORDS: u8 = 2;
    pub const INODES: u8 = 3;
    pub const LINKS: u8 = 4;
}

/// Where the list of inodes begins that were changed. Those of which nobody knows whether they have their next place
/// have it in their entries, and are being looked for.
pub const LIST_INODES: ListChangesRequest =
    ListChangesRequest { stage: stages::INODES, directory: 0, cursor: 0, name: Vec::new(), files: Vec::new() };
/// The same when changes have come to all servers that were answered before.
pub const LIST_SETTLED: ListChangesRequest =
    ListChangesRequest { stage: stages::INODES, directory: 0, cursor: 1, name: Vec::new(), files: Vec::new() };
/// Where the list of names begins that differ.
pub const LIST_NAMES: ListChangesRequest =
    ListChangesRequest { stage: stages::NAMES, directory: 0, cursor: 0, name: Vec::new(), files: Vec::new() };

/// Whether a list begins when changes have come to all servers that were answered before.
pub fn is_settled(request: &ListChangesRequest) -> bool {
    *request == ListChangesRequest { files: request.files.clone(), ..LIST_SETTLED }
}

/// Where the list of names begins by which an inode is behind that has several.
pub fn list_links(id: FileId) -> ListChangesRequest {
    ListChangesRequest { stage: stages::LINKS, directory: id.0, cursor: 0, name: Vec::new(), files: Vec::new() }
}

impl Core {
    /// Changes over several servers that were answered, and may not have come to all of them.
    pub(super) fn decided_changes(&self) -> Vec<u64> {
        let tables = self.tables.borrow();
        let decided = tables.intents.iter().filter(|(_, intent)| !matches!(intent, Intent::Reap { .. }));
        decided.map(|(number, _)| *number).collect()
    }

    /// Waits until they have, so that a flush carries what its caller was told before it; for a moment at most, as a
    /// server that they are to come to may be down.
    pub(super) async fn await_decided(&self, decided: &[u64]) {
        let limit = self.reactor.now() + WAIT_NS;
        let is_under_way = || decided.iter().any(|number| self.tables.borrow().intents.contains_key(number));
        while self.reactor.now() < limit && is_under_way() {
            self.reactor.sleep(DECIDED_PAUSE_NS).await;
        }
    }

    /// What all servers list from a position on.
    pub(super) async fn list_all(
        self: &Rc<Self>,
        start: &ListChangesRequest,
        take: &mut dyn FnMut(ChangedEntry),
    ) -> Result<(), Failure> {
        for server in 0..self.cluster.server_count() {
            let mut from = start.clone();
            while from.stage != stages::END {
                let reply = self.changes_of(server, &from).await?;
                reply.entries.into_iter().for_each(&mut *take);
                from = reply.next;
            }
        }
        Ok(())
    }

    /// Some of what is not behind as it is here.
    pub(super) fn list_changes(self: &Rc<Self>, from: &ListChangesRequest) -> ListChangesReply {
        let tables = self.tables.borrow();
        let mut entries = Vec::new();
        let wanted = &from.files;
        let at = |stage, directory, cursor| {
            let (name, files) = (Vec::new(), wanted.clone());
            ListChangesRequest { stage, directory, cursor, name, files }
        };
        let is_wanted = |id: FileId| wanted.is_empty() || wanted.binary_search(&id.0).is_ok();
        // What is new is in nobody's way.
        let is_new = |id| {
            let (backing, is_home) = (&tables.backing, self.cluster.home_of(id) == Some(self.index));
            is_home && backing.place(id).is_none() && backing.next(id).is_none()
        };
        let concerns =
            |kind, id, directory| kind == Kind::Directory || is_wanted(id) || is_wanted(directory) || !is_new(id);
        let next = match from.stage {
            stages::NAMES => {
                let mut position = Some(WalkPosition::from_numbers((from.directory, from.cursor)));
                let mut seen = 0;
                while let Some(place) = position.filter(|_| seen < WALK_COUNT && entries.len() < ENTRIES_MAX) {
                    position = tables.names.walk_step(place, STEP_COUNT, &mut |directory, entry| {
                        let (id, kind) = (entry.id, entry.kind);
                        if concerns(kind, id, directory) && self.is_new_name(&tables, directory, entry.name, id) {
                            let (name, behind) = (entry.name.to_vec(), nothing_behind());
                            let (is_open, size) = self.rank_of(&tables, id);
                            entries.push(ChangedEntry { directory, name, id: Some(id), kind, behind, is_open, size });
                        }
                    });
                    seen += STEP_COUNT;
                }
                match position {
                    Some(next) => at(stages::NAMES, next.numbers().0, next.numbers().1),
                    None => at(stages::RECORDS, 0, 0),
                }
            }
            stages::RECORDS => {
                let mut next = None;
                let names = tables.backing.differences_from(FileId(from.directory), &from.name);
                for (seen, (directory, name, behind)) in names.enumerate() {
                    if seen == WALK_COUNT || entries.len() == ENTRIES_MAX {
                        let (stage, name) = (stages::RECORDS, name.to_vec());
                        next = Some(ListChangesRequest { name, ..at(stage, directory.0, 0) });
                        break;
                    }
                    let here = tables.names.get(directory, name, cursor_of(directory, name));
                    if !behind.agrees(here.map(|(id, _)| id)) {
                        let (id, kind) = here.map_or((None, Kind::File), |(id, kind)| (Some(id), kind));
                        let (name, behind) = (name.to_vec(), behind.clone());
                        let (is_open, size) = id.map_or((false, 0), |id| self.rank_of(&tables, id));
                        entries.push(ChangedEntry { directory, name, id, kind, behind, is_open, size });
                    }
                }
                next.unwrap_or_else(|| at(stages::END, 0, 0))
            }
            stages::LINKS => {
                let mut next = None;
                let links = tables.backing.links_from(FileId(from.directory), (from.cursor, &from.name));
                for (directory, name, behind) in links {
                    let (name, behind) = (name.to_vec(), behind.clone());
                    if entries.len() == ENTRIES_MAX {
                        next = Some(ListChangesRequest { cursor: directory.0, name, ..from.clone() });
                        break;
                    }
                    let here = tables.names.get(directory, &name, cursor_of(directory, &name));
                    let (id, kind) = here.map_or((None, Kind::File), |(id, kind)| (Some(id), kind));
                    entries.push(ChangedEntry { directory, name, id, kind, behind, is_open: false, size: 0 });
                }
                next.unwrap_or_else(|| at(stages::END, 0, 0))
            }
            _ => {
                let written = tables.backing.written_from(from.directory, ENTRIES_MAX + 1);
                let last = written.get(ENTRIES_MAX).copied();
                entries.extend(written.into_iter().take(ENTRIES_MAX).map(|id| {
                    let (directory, name, kind) = (FileId::default(), Vec::new(), Kind::File);
                    let (is_open, size) = self.rank_of(&tables, FileId(id));
                    let next = tables.backing.next(FileId(id)).filter(|_| tables.backing.place(FileId(id)).is_some());
                    let next = next.map(|next| NextBehind { known: next.known(), id: FileId(id) });
                    if next.is_some() {
                        self.begin_to_settle(FileId(id));
                    }
                    let behind = NameBehind { next, ..nothing_behind() };
                    ChangedEntry { directory, name, id: Some(FileId(id)), kind, behind, is_open, size }
                }));
                last.map_or(at(stages::END, 0, 0), |last| at(stages::INODES, last, 0))
            }
        };
        ListChangesReply { entries, next }
    }

    /// Has it found out whether an inode has its next place, unless somebody carries it, who does that himself.
    pub(super) fn begin_to_settle(self: &Rc<Self>, id: FileId) {
        if self.is_carrying(id) {
            return;
        }
        let core = self.clone();
        self.reactor.spawn(Class::Background, async move {
            // Who wants to know comes again.
            let _: Result<(), Failure> = core.take_next_place(id).await;
        });
    }

    /// Whether somebody has an inode of this server open who has not synced it, and its size: what goes first.
    fn rank_of(&self, tables: &Tables, id: FileId) -> (bool, u64) {
        let size = tables.inodes.get(id).map_or(0, |inode| inode.attributes.size);
        let is_synced = self.backing.as_ref().is_some_and(|backing| backing.is_synced(id));
        (tables.open.is_open(id) && !is_synced, size)
    }

    /// Whether a name without a record stands for what is not behind there. That of another server's inode has a
    /// record, if it was carried.
    fn is_new_name(&self, tables: &Tables, directory: FileId, name: &[u8], id: FileId) -> bool {
        let is_home = self.cluster.home_of(id) == Some(self.index);
        let place = tables.backing.place(id).filter(|_| is_home);
        tables.backing.difference(directory, name).is_none()
            && !place.is_some_and(|place| place.parent == directory && place.name() == name)
    }
}
