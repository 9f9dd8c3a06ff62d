//! Counts of everything a server holds, and contradictions between its tables.

use crate::coordination::intents::Intent;
use crate::core::Core;
use crate::store::FastMap;
use std::collections::BTreeMap;
use wire::identity::dentry_slot;
use wire::{FileId, Kind};

/// What the tables of a server hold, and what does not fit together in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    pub dentries: u64,
    pub inodes: u64,
    /// Extended attributes.
    pub extended: u64,
    /// Ranges of files that are locked.
    pub locked: u64,
    /// Requests that wait for locks.
    pub lock_waiters: u64,
    /// Permits for large bodies that are out, and who waits for one.
    pub permits: u64,
    pub permit_waiters: u64,
    /// Chunks in the store.
    pub chunks: u64,
    /// Files that the store remembers anything of.
    pub files: u64,
    /// Bytes of data space that are taken.
    pub bytes_used: u64,
    pub sessions: u64,
    pub intents: u64,
    pub tombstones: u64,
    pub marks: u64,
    /// Registrations of sessions that have a file open.
    pub open_files: u64,
    /// Inodes without a name, which somebody has open.
    pub orphans: u64,
    /// Sessions that have not told since the start what they have open.
    pub unreclaimed: u64,
    /// Changes that wait for the decision of another server.
    pub prepared: u64,
    /// Tree changes that are under way.
    pub tree_marks: u64,
    /// Announcements of other servers that stand here, at the home.
    pub announced: u64,
    /// Directories but the root that this server keeps a share of, or whose shares at other servers it knows of.
    pub shares: u64,
    /// Requests that are being worked on, and their operations.
    pub active: u64,
    pub at_work: Vec<&'static str>,
    /// Names here that a file's link count does not account for, or less than 0 for names that must be elsewhere; by
    /// file id. Over all servers they come to 0 once no intent is left (`check_links`).
    pub links: BTreeMap<u64, i64>,
    /// For each directory with its name here the directory that it is in, and for each with its inode here what that
    /// says.
    pub placed: BTreeMap<u64, u64>,
    pub parents: BTreeMap<u64, u64>,
    /// Changes that clients of this machine submitted, as far as this life has taken them up.
    pub submissions: u64,
    /// Those that the life before had made and not noted.
    pub submissions_found_made: u64,
    /// Numbers that are set aside and were not given out.
    pub numbers_left: u64,
    /// Of the backing tree: what was taken up, its chunks that are here, those of them that are dirty, names that
    /// differ, directories that are listed.
    pub backing: [u64; 5],
    /// Contradictions found, in words.
    pub errors: Vec<String>,
}

/// Counts and checks.
pub fn audit(core: &Core) -> Audit {
    let usage = core.store.usage();
    let tables = core.tables.borrow();
    let (open_files, orphans, unreclaimed) = tables.open.counts();
    let mut audit = Audit {
        open_files,
        orphans,
        unreclaimed,
        dentries: tables.names.count(),
        inodes: tables.inodes.count(),
        extended: tables.extended.count(),
        locked: tables.file_locks.count() as u64,
        lock_waiters: core.lock_queues.borrow().count() as u64,
        permits: core.throttle.permit_count() as u64,
        permit_waiters: core.throttle.waiter_count() as u64,
        chunks: usage.chunks,
        files: usage.files,
        bytes_used: usage.size - usage.free,
        sessions: tables.sessions.count() as u64,
        intents: tables.intents.len() as u64,
        tombstones: tables.tombstones.len() as u64,
        marks: tables.marks.len() as u64,
        prepared: tables.prepared.len() as u64,
        tree_marks: u64::from(tables.tree.mark().is_some()),
        active: core.statistics.work_under_way(),
        at_work: core.statistics.operations_under_way(),
        submissions: core.submissions.numbers().0,
        submissions_found_made: core.submissions.found_made(),
        numbers_left: tables.number_limit - tables.next_number,
        backing: tables.backing.counts(),
        ..Audit::default()
    };
    // Removals that were begun before there were too many may still end (tombstones, invariant 3).
    let bound = 2 * core.options.bounds.tombstones + core.options.bounds.active_requests;
    if tables.tombstones.len() > bound {
        audit.errors.push(format!("{} removed directories are remembered, {bound} at most", tables.tombstones.len()));
    }
    if core.submissions.numbers().1 > 0 {
        audit.errors.push(format!("{} changes that were submitted could not be done", core.submissions.numbers().1));
    }
    if let Some(publisher) = &tables.publisher {
        let is_kept = |directory: FileId| {
            core.lacks_share(&tables, directory)
                || core.lacks_listing(&tables, directory)
                || tables.marks.contains_key(&directory.0)
                || tables.check_not_removed(std::iter::once(directory)).is_err()
        };
        audit.errors.extend(publisher.contradictions(
            &tables,
            |attributes| core.first_bytes(attributes),
            is_kept,
            |file| core.takes_writes(&tables, file),
        ));
    }
    drop(tables);
    check_names(core, &mut audit);
    check_inodes(core, &mut audit);
    check_shares(core, &mut audit);
    check_chunks(core, &mut audit);
    check_backing(core, &mut audit);
    audit
}

/// Places are of inodes here, or of files of other servers; what was taken up here has one, and no chunk is here that
/// counts as absent.
fn check_backing(core: &Core, audit: &mut Audit) {
    let tables = core.tables.borrow();
    if !tables.backing_is_counted() {
        audit.errors.push("what was taken up is counted wrong".to_owned());
    }
    for (id, taken_up) in tables.backing.taken_up() {
        let is_home = core.cluster.home_of(id) == Some(core.index);
        // Of a directory that is gone the place stays until it is gone behind.
        if is_home && taken_up.place.base > 0 && !tables.inodes.contains(id) {
            audit.errors.push(format!("{id} has a place behind, but is not here"));
        }
        if is_home
            && tables
                .inodes
                .get(id)
                .is_some_and(|inode| inode.attributes.size < taken_up.place.base.max(taken_up.place.carried))
        {
            audit.errors.push(format!("file {id} is smaller than what counts of it behind"));
        }
    }
    for inode in tables.inodes.iter().filter(|inode| inode.attributes.id.is_from_behind()) {
        if tables.backing.place(inode.attributes.id).is_none() {
            audit.errors.push(format!("inode {} was taken up, but nobody knows from where", inode.attributes.id));
        }
    }
}

/// Whether the link counts of all files are the numbers of their names, over all servers of a cluster at rest.
pub fn check_links(audits: &[Audit]) -> Vec<String> {
    let mut sums: BTreeMap<u64, i64> = BTreeMap::new();
    for (file, count) in audits.iter().flat_map(|audit| &audit.links) {
        *sums.entry(*file).or_default() += count;
    }
    let mut wrong_places = check_places(audits);
    let wrong = sums.into_iter().filter(|(_, sum)| *sum != 0);
    let words = wrong.map(|(file, sum)| format!("file {} has {sum} names more than its link count says", FileId(file)));
    wrong_places.extend(words);
    wrong_places
}

/// Whether every directory is where its inode says, and leads to the root.
fn check_places(audits: &[Audit]) -> Vec<String> {
    let placed: BTreeMap<u64, u64> = audits.iter().flat_map(|audit| &audit.placed).map(|(id, at)| (*id, *at)).collect();
    let parents: BTreeMap<u64, u64> =
        audits.iter().flat_map(|audit| &audit.parents).map(|(id, at)| (*id, *at)).collect();
    let mut wrong = Vec::new();
    for (id, parent) in &parents {
        let place = placed.get(id).copied();
        if place != Some(*parent) {
            let place = place.map_or("nowhere".to_owned(), |place| format!("in {}", FileId(place)));
            wrong.push(format!("directory {} is {place}, but its inode says {}", FileId(*id), FileId(*parent)));
        }
        let mut here = *id;
        let mut depth = 0;
        while here != FileId::ROOT.0 && depth <= parents.len() {
            depth += 1;
            match parents.get(&here) {
                Some(above) => here = *above,
                None => break,
            }
        }
        if here != FileId::ROOT.0 {
            wrong.push(format!("directory {} does not lead to the root", FileId(*id)));
        }
    }
    wrong
}

/// Each entry belongs here, and its inode is here if that is its home; nothing lies in a removed directory.
fn check_names(core: &Core, audit: &mut Audit) {
    let tables = core.tables.borrow();
    let mut named: FastMap<u64, i64> = FastMap::default();
    tables.names.for_each(&mut |parent, entry| {
        let words = || format!("entry {}/{}", parent, String::from_utf8_lossy(entry.name));
        if !core.owns_slot(dentry_slot(parent, entry.name, core.cluster.slot_count)) {
            audit.errors.push(format!("{} belongs to another server", words()));
        }
        if tables.tombstones.contains_key(&parent.0) {
            audit.errors.push(format!("{} lies in a directory that was removed", words()));
        }
        match tables.inodes.get(entry.id) {
            None if core.cluster.home_of(entry.id) == Some(core.index) => {
                audit.errors.push(format!("{} has no inode", words()));
            }
            Some(inode) if inode.attributes.kind != entry.kind => {
                audit.errors.push(format!("{} has an inode of another kind", words()));
            }
            _ => {}
        }
        *named.entry(entry.id.0).or_default() += 1;
        if entry.kind == Kind::Directory {
            audit.placed.insert(entry.id.0, parent.0);
        }
    });
    for inode in tables.inodes.iter().filter(|inode| inode.attributes.id != FileId::ROOT) {
        *named.entry(inode.attributes.id.0).or_default() -= i64::from(inode.attributes.link_count);
        if let Some(parent) = inode.parent() {
            audit.parents.insert(inode.attributes.id.0, parent.0);
        }
        if inode.attributes.link_count == 0 && inode.attributes.kind != Kind::File {
            audit.errors.push(format!("inode {} has no name", inode.attributes.id));
        }
    }
    if tables.open.leaks() {
        audit.errors.push("a file without a name that nobody has open is not reaped".to_owned());
    }
    audit.links.extend(named.into_iter().filter(|(_, count)| *count != 0));
}

fn check_inodes(core: &Core, audit: &mut Audit) {
    let tables = core.tables.borrow();
    for file in tables.extended.files_from(0).filter(|file| !tables.inodes.contains(*file)) {
        audit.errors.push(format!("extended attributes of file {file} are here, but its inode is gone"));
    }
    for ((file, _), owner, _) in tables.file_locks.iter() {
        if !tables.inodes.contains(file) {
            audit.errors.push(format!("file {file} is locked, but its inode is gone"));
        }
        if !tables.sessions.is_known(owner.session) {
            audit.errors.push(format!("file {file} is locked by session {}, which is not known", owner.session));
        }
    }
    audit.errors.extend(tables.file_locks.contradictions());
    for inode in tables.inodes.iter() {
        let id = inode.attributes.id;
        audit.announced += inode.announced().len() as u64;
        if !core.owns_slot(id.home()) {
            audit.errors.push(format!("inode {id} belongs to another server"));
        }
        if inode.attributes.kind != Kind::File && inode.spread().is_some() {
            audit.errors.push(format!("inode {id} is no file, but servers hold chunks of it"));
        }
        if inode.announced().iter().any(|(server, _)| !inode.holders().contains(server)) {
            audit.errors.push(format!("inode {id} is announced by a server that is none of its holders"));
        }
    }
}

/// What is kept of directories belongs to living ones.
fn check_shares(core: &Core, audit: &mut Audit) {
    let tables = core.tables.borrow();
    let announced = tables.announced.ids();
    for directory in &announced {
        match tables.inodes.get(*directory) {
            Some(inode) if inode.attributes.kind == Kind::Directory => {}
            _ => audit.errors.push(format!("servers have shares of {directory}, which is no directory here")),
        }
    }
    for directory in tables.names.directories().filter(|directory| tables.tombstones.contains_key(&directory.0)) {
        audit.errors.push(format!("a share of directory {directory} is left, which was removed"));
    }
    let kept = announced.into_iter().chain(tables.names.directories());
    audit.shares = kept.filter(|directory| *directory != FileId::ROOT).count() as u64;
}

/// Chunks at their home have an inode that covers them; chunks elsewhere belong to this server.
fn check_chunks(core: &Core, audit: &mut Audit) {
    let tables = core.tables.borrow();
    let changes_now = |file: u64| {
        let is_changed = |intent: &Intent| match intent {
            Intent::Truncate { file: changed, .. } | Intent::Append { file: changed, .. } => changed.0 == file,
            _ => false,
        };
        tables.intents.values().any(is_changed)
    };
    let is_stage = |id: FileId| {
        tables.intents.values().any(|intent| matches!(intent, Intent::Append { stage, .. } if *stage == id))
    };
    core.store.for_each_file(&mut |file, share| {
        let id = FileId(file);
        if core.cluster.home_of(id) != Some(core.index) {
            return;
        }
        match tables.inodes.get(id) {
            None if is_stage(id) => {}
            None => audit.errors.push(format!("chunks of file {id} are here, but its inode is gone")),
            Some(inode) if inode.attributes.size < share.end && !changes_now(file) => {
                let (size, end) = (inode.attributes.size, share.end);
                audit.errors.push(format!("file {id} has {size} bytes, but chunks up to {end}"));
            }
            Some(_) => {}
        }
    });
}
