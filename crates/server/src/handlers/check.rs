//! Check: this server's tables in pages, for a checker that puts those of all servers side by side; and Repair.
//!
//! Names and inodes that fit together on this server alone, as most do, are left out and told as sums: the sum over the
//! inodes is the sum over the names unless something is missing or there twice.

use super::{Progress, check_lock};
use crate::coordination::intents::Intent;
use crate::coordination::prepared::PreparedChange;
use crate::core::{Caller, Core, Failure};
use crate::files::inodes::Inode;
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::names::{Dentry, WalkPosition, cursor_of};
use reactor::{BodyPiece, ReplyBody};
use std::rc::Rc;
use wire::identity::dentry_slot;
use wire::messages::{
    Ancestors, CHECK_PART_COUNT, CheckDamage, CheckId, CheckInode, CheckName, CheckPromise, CheckReply, CheckRequest,
    CheckShare, CheckSum, CheckTable, CheckWanted, Entry, RepairRequest, RepairStep, check_part, check_reasons,
    check_term,
};
use wire::{Decode, Encode, FileId, Kind, Name, Status};

/// Entries that one request walks, and bytes of rows after which a page ends.
const STEP_COUNT: usize = 4096;
const PAGE_SIZE: usize = 128 << 10;
/// Bytes that one request reads to verify them.
const DATA_STEP_BYTES: u64 = 8 << 20;

/// A page in the making.
struct CheckPage<'a> {
    core: &'a Core,
    tables: &'a Tables,
    wanted: &'a CheckWanted,
    rows: Vec<u8>,
    sums: [u64; CHECK_PART_COUNT],
    walked: u64,
}

/// Where a walk goes on; nothing at its end.
type NextPosition = Option<(u64, u64)>;

/// A page of a table. Only who may stop the servers may look into their tables.
pub fn check(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<(CheckReply, ReplyBody), Failure> {
    let request = CheckRequest::from_bytes(params)?;
    check_owner(caller)?;
    match (request.table, &request.wanted) {
        (CheckTable::Watch, CheckWanted::Ids(ids)) => core.tables.borrow_mut().watches.begin(request.position, ids),
        (CheckTable::Watched, CheckWanted::Ids(_)) => {}
        (CheckTable::Watch | CheckTable::Watched, _) => return Err(refused("a watch needs ids")),
        (CheckTable::Names, _) | (_, CheckWanted::Parts { .. }) => {}
        (CheckTable::Inodes | CheckTable::Shares | CheckTable::Removed, CheckWanted::Ids(_)) => {}
        (CheckTable::Removed, _) => return Err(refused("removed directories are asked for by their ids")),
        _ => return Err(refused("this table can't be looked at so")),
    }
    let changed = match request.table {
        CheckTable::Watched => core.tables.borrow_mut().watches.end(request.position),
        _ => Some(Vec::new()),
    };
    let tables = core.tables.borrow();
    let mut page = CheckPage {
        core,
        tables: &tables,
        wanted: &request.wanted,
        rows: Vec::new(),
        sums: [0; CHECK_PART_COUNT],
        walked: 0,
    };
    let from = (request.position, request.position_within);
    let next = match request.table {
        CheckTable::Names => page.names(from),
        CheckTable::Inodes => page.inodes(from.0),
        CheckTable::Shares => page.shares(from.0),
        CheckTable::Parents => page.parents(from.0),
        CheckTable::Removed => page.removed(),
        CheckTable::Watch | CheckTable::Watched => page.promises(changed),
        CheckTable::Data => page.data(from)?,
    };
    let sums = page.sums.iter().enumerate().filter(|(_, sum)| **sum != 0);
    let reply = CheckReply {
        next_position: next.unwrap_or_default().0,
        next_position_within: next.unwrap_or_default().1,
        end: next.is_none(),
        walked: page.walked,
        sums: sums.map(|(part, sum)| CheckSum { part: part as u8, sum: *sum }).collect(),
    };
    Ok((reply, ReplyBody { pieces: vec![BodyPiece::Bytes(page.rows)], guard: None }))
}

fn refused(words: &str) -> Failure {
    Failure::with_text(Status::Invalid, words)
}

fn check_owner(caller: &Caller) -> Result<(), Failure> {
    let uid = caller.peer.user.uid;
    if uid != 0 && uid != crate::process::process_owner().0 {
        return Err(Failure::with_text(Status::NotPermitted, "only who started the servers may check them"));
    }
    Ok(())
}

impl CheckPage<'_> {
    fn wants(&self, id: FileId) -> bool {
        match self.wanted {
            CheckWanted::Parts { bits, .. } => {
                let part = check_part(id);
                bits[part / 8] >> (part % 8) & 1 == 1
            }
            CheckWanted::Ids(ids) | CheckWanted::Under(ids) => ids.contains(&id),
        }
    }

    fn leaves_plain_out(&self) -> bool {
        matches!(self.wanted, CheckWanted::Parts { leave_plain_out: true, .. })
    }

    fn leave_out(&mut self, id: FileId, kind: Kind) {
        let sum = &mut self.sums[check_part(id)];
        *sum = sum.wrapping_add(check_term(id, kind));
    }

    /// Whether nothing about the inode can be wrong that is not seen here, but for the number of its names.
    fn is_plain(&self, inode: &Inode) -> bool {
        let attributes = &inode.attributes;
        let is_alone = attributes.kind != Kind::Directory && attributes.link_count == 1 && inode.spread().is_none();
        is_alone && self.core.owns_slot(attributes.id.home()) && {
            let share = self.core.store.share(attributes.id.0);
            share.is_none_or(|share| share.end <= attributes.size && share.announced.is_none())
        }
    }

    fn names(&mut self, from: (u64, u64)) -> NextPosition {
        if let CheckWanted::Under(directories) = self.wanted {
            return self.names_under(directories, from);
        }
        let tables = self.tables;
        let next = tables.names.walk_step(WalkPosition::from_numbers(from), STEP_COUNT, &mut |parent, entry| {
            self.walked += 1;
            if !self.wants(entry.id) {
                return;
            }
            let inode = if self.leaves_plain_out() { tables.inodes.get(entry.id) } else { None };
            let belongs = self.core.owns_slot(dentry_slot(parent, entry.name, self.core.cluster.slot_count));
            match inode {
                Some(inode) if belongs && inode.attributes.kind == entry.kind && self.is_plain(&inode) => {
                    self.leave_out(entry.id, entry.kind);
                }
                _ => self.add_name(parent, entry),
            }
        });
        next.map(WalkPosition::numbers)
    }

    fn names_under(&mut self, directories: &[FileId], from: (u64, u64)) -> NextPosition {
        let mut cursor = from.1;
        for (position, directory) in directories.iter().enumerate().skip(from.0 as usize) {
            let tables = self.tables;
            let mut next = None;
            tables.names.walk(*directory, cursor, &mut |entry| {
                // Entries of one cursor are never parted.
                if self.rows.len() >= PAGE_SIZE && entry.cursor != cursor {
                    next = Some((position as u64, entry.cursor));
                    return false;
                }
                cursor = entry.cursor;
                self.walked += 1;
                self.add_name(*directory, entry);
                true
            });
            if next.is_some() {
                return next;
            }
            cursor = 0;
        }
        None
    }

    fn add_name(&mut self, parent: FileId, entry: &Dentry) {
        // Names in the table were checked when they came in.
        if let Ok(name) = Name::new(entry.name) {
            CheckName { parent, id: entry.id, kind: entry.kind, name }.encode(&mut self.rows);
        }
    }

    fn inodes(&mut self, from: u64) -> NextPosition {
        let tables = self.tables;
        if let CheckWanted::Ids(ids) = self.wanted {
            ids.iter().filter_map(|id| tables.inodes.get(*id)).for_each(|inode| self.add_inode(&inode));
            return None;
        }
        let next = tables.inodes.walk_step(from as u32, STEP_COUNT as u32, &mut |inode| {
            self.walked += 1;
            if !self.wants(inode.attributes.id) {
            } else if self.leaves_plain_out() && self.is_plain(inode) {
                self.leave_out(inode.attributes.id, inode.attributes.kind);
            } else {
                self.add_inode(inode);
            }
        });
        next.map(|next| (u64::from(next), 0))
    }

    fn add_inode(&mut self, inode: &Inode) {
        let attributes = &inode.attributes;
        CheckInode {
            id: attributes.id,
            kind: attributes.kind,
            link_count: attributes.link_count,
            size: attributes.size,
            truncate_generation: attributes.truncate_generation,
            parent: inode.parent(),
            holders: inode.holders().to_vec(),
            announced: inode.announced().iter().map(|(server, _)| *server).collect(),
        }
        .encode(&mut self.rows);
    }

    fn shares(&mut self, from: u64) -> NextPosition {
        if let CheckWanted::Ids(ids) = self.wanted {
            for id in ids {
                if let Some(share) = self.core.store.share(id.0) {
                    self.add_share(*id, share);
                }
            }
            return None;
        }
        let core = self.core;
        let next = core.store.walk_files(from as u32, STEP_COUNT as u32, &mut |file, share| {
            self.walked += 1;
            let id = FileId(file);
            let plain = self.leaves_plain_out()
                && self.tables.inodes.get(id).is_some_and(|inode| {
                    inode.attributes.kind == Kind::File
                        && share.end <= inode.attributes.size
                        && share.announced.is_none()
                });
            if self.wants(id) && !plain {
                self.add_share(id, *share);
            }
        });
        next.map(|next| (u64::from(next), 0))
    }

    /// What is remembered of a file without chunks, such as the generation of a truncate, takes no space and does no
    /// harm.
    fn add_share(&mut self, file: FileId, share: crate::store::FileShare) {
        if share.chunk_count > 0 || share.announced.is_some() {
            CheckShare {
                file,
                end: share.end,
                chunk_count: share.chunk_count,
                generation: share.generation,
                announced: share.announced,
            }
            .encode(&mut self.rows);
        }
    }

    fn parents(&mut self, from: u64) -> NextPosition {
        let tables = self.tables;
        let next = tables.names.walk_parents(from as u32, STEP_COUNT as u32, &mut |parent| {
            self.walked += 1;
            if self.wants(parent) {
                CheckId { id: parent }.encode(&mut self.rows);
            }
        });
        next.map(|next| (u64::from(next), 0))
    }

    fn removed(&mut self) -> NextPosition {
        let CheckWanted::Ids(ids) = self.wanted else { return None };
        for id in ids.iter().filter(|id| self.tables.tombstones.contains_key(&id.0)) {
            CheckId { id: *id }.encode(&mut self.rows);
        }
        None
    }

    /// What is under way for the ids; also those that changed, or all of them if nobody knows.
    fn promises(&mut self, changed: Option<Vec<FileId>>) -> NextPosition {
        let CheckWanted::Ids(ids) = self.wanted else { return None };
        for id in changed.as_ref().unwrap_or(ids) {
            self.add_promise(*id, check_reasons::CHANGED);
        }
        let tables = self.tables;
        for intent in tables.intents.values() {
            match intent {
                Intent::Reap { file: id, .. }
                | Intent::Truncate { file: id, .. }
                | Intent::RemoveDirectory { directory: id, .. }
                | Intent::Rights { directory: id, .. } => self.add_promise(*id, check_reasons::INTENT),
                Intent::Append { file, stage, .. } => {
                    self.add_promise(*file, check_reasons::INTENT);
                    self.add_promise(*stage, check_reasons::INTENT);
                }
                Intent::Tree { entries, .. } => {
                    for entry in entries {
                        self.add_promise(entry.directory, check_reasons::INTENT);
                    }
                }
                _ => {}
            }
        }
        for change in tables.prepared.values() {
            match change {
                PreparedChange::Dentry { parent, name, id, .. } => {
                    self.add_promise(*id, check_reasons::PREPARED);
                    if let Some((replaced, _)) = tables.names.get(*parent, name, cursor_of(*parent, name)) {
                        self.add_promise(replaced, check_reasons::PREPARED);
                    }
                }
                PreparedChange::Link { file, .. } => self.add_promise(*file, check_reasons::PREPARED),
                // The directories are named by the intent.
                PreparedChange::Tree { .. } => {}
            }
        }
        for directory in tables.marks.keys() {
            self.add_promise(FileId(*directory), check_reasons::MARK);
        }
        None
    }

    fn add_promise(&mut self, id: FileId, reason: u8) {
        if self.wants(id) {
            CheckPromise { id, reason }.encode(&mut self.rows);
        }
    }

    fn data(&mut self, from: (u64, u64)) -> Result<NextPosition, Failure> {
        let core = self.core;
        let next =
            core.store.verify_step((from.0 as u32, from.1), DATA_STEP_BYTES, &mut |file, chunk_index, damaged| {
                self.walked += 1;
                if damaged {
                    CheckDamage { file: FileId(file), chunk_index }.encode(&mut self.rows);
                }
            })?;
        Ok(next.map(|(cell, index)| (u64::from(cell), index)))
    }
}

/// Repairs one thing, if it is still as the checker saw it.
pub fn repair(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    check_owner(caller)?;
    match RepairRequest::from_bytes(params)?.step {
        RepairStep::RemoveName { parent, name, id } => repair_name(core, caller, (parent, name), Some(id), None),
        RepairStep::PutName { parent, name, id, kind } => {
            repair_name(core, caller, (parent, name), None, Some((id, kind)))
        }
        RepairStep::SetLinks { file, from, to } => repair_inode(core, caller, file, |inode| {
            let as_seen = inode.attributes.link_count == from;
            inode.attributes.link_count = to;
            as_seen
        }),
        RepairStep::SetSize { file, from, to } => repair_inode(core, caller, file, |inode| {
            let as_seen = inode.attributes.size == from && inode.attributes.kind == Kind::File;
            inode.attributes.size = to;
            as_seen
        }),
        RepairStep::AddHolder { file, server, announced } => {
            if server >= core.cluster.server_count() || server == core.index {
                return Err(refused("this server can't be a holder"));
            }
            repair_inode(core, caller, file, |inode| {
                let spread = inode.spread_mut();
                if !spread.holders.contains(&server) {
                    spread.holders.push(server);
                }
                if let Some(generation) = announced {
                    inode.announce(server, generation);
                }
                inode.attributes.kind == Kind::File
            })
        }
        RepairStep::SetParent { directory, parent } => repair_inode(core, caller, directory, |inode| {
            let is_directory = inode.attributes.kind == Kind::Directory && directory != FileId::ROOT;
            inode.set_parent(parent);
            is_directory
        }),
        RepairStep::LiftTombstone { directory } => {
            if !core.tables.borrow().tombstones.contains_key(&directory.0) {
                return Err(changed_meanwhile(directory));
            }
            core.change([Record::TombstoneDelete(directory), caller.outcome(&[])])?;
            Ok(Progress::Done)
        }
        RepairStep::FreeChunks { file } => {
            if core.tables.borrow().inodes.contains(file) {
                return Err(changed_meanwhile(file));
            }
            core.cancel_announcement(file);
            let mut transaction = core.store.begin();
            core.store.reap_file(file.0, &mut transaction);
            core.commit(transaction, [caller.outcome(&[])])?;
            Ok(Progress::Done)
        }
    }
}

fn changed_meanwhile(id: FileId) -> Failure {
    let mut failure = Failure::with_text(Status::StaleFile, "it is not as it was seen any more");
    failure.id = id;
    failure
}

/// Replaces what a name leads to; `seen` and `wanted` are nothing where there is to be no name.
fn repair_name(
    core: &Rc<Core>,
    caller: &Caller,
    (parent, name): (FileId, Name<'_>),
    seen: Option<FileId>,
    wanted: Option<(FileId, Kind)>,
) -> Result<Progress, Failure> {
    let bytes = name.as_bytes();
    {
        let tables = core.tables.borrow();
        if let Some(blocked) = check_lock(&tables, &Entry { parent, name, ancestors: Ancestors::default(), known: 0 }) {
            return Ok(blocked);
        }
        if wanted.is_some() && !core.owns_slot(dentry_slot(parent, bytes, core.cluster.slot_count)) {
            return Err(Status::WrongServer.into());
        }
        let found = tables.names.get(parent, bytes, cursor_of(parent, bytes)).map(|found| found.0);
        if found != seen {
            return Err(changed_meanwhile(found.unwrap_or(parent)));
        }
        if let Some(delegated) = found.and_then(|file| core.recall_delegations(file)) {
            return Ok(Progress::Blocked(delegated));
        }
    }
    let record = match wanted {
        Some((id, kind)) => Record::DentryPut { parent, name: bytes, id, kind },
        None => Record::DentryDelete { parent, name: bytes },
    };
    core.change([record, caller.outcome(&[])])?;
    Ok(Progress::Done)
}

fn repair_inode(
    core: &Rc<Core>,
    caller: &Caller,
    file: FileId,
    repair: impl FnOnce(&mut Inode) -> bool,
) -> Result<Progress, Failure> {
    core.check_home(file)?;
    if let Some(lock) = core.tables.borrow().locks.of_inode(file) {
        return Ok(Progress::Blocked(lock));
    }
    let mut inode = core.inode(file)?;
    if !repair(&mut inode) {
        return Err(changed_meanwhile(file));
    }
    inode.attributes.version += 1;
    core.change([Record::InodePut(inode), caller.outcome(&[])])?;
    Ok(Progress::Done)
}
