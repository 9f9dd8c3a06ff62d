//! Which sessions have which files open, and what becomes of files that lose their last name meanwhile.
//!
//! Registrations are kept in memory only: after a restart the sessions that were known tell again what they have open.
//! Clients of this machine that look at this server's attribute cache (docs/shared-memory.md) have files open without
//! a word: they hold them in memory that both share. What is held when such a connection ends is registered for its
//! session.
//!
//! Invariants
//! 1. The numbers of opens rise, also over restarts, so that a close names all opens that its session knew of, and none
//!    after them.
//! 2. `orphans` are the inodes here with link count 0. They change with the inodes only.
//! 3. An orphan is not reaped while a session has it open, nor, if it may be older than this life, while a session that
//!    was known at the start has not said what it has open, nor while one asks again and again to register it where
//!    there is no room. Afterwards it is (`reap_orphans`).

use crate::coordination::retry::Backoff;
use crate::core::{Caller, Core, Failure};
use crate::handlers::reap_orphan;
use crate::process::options::Bounds;
use crate::store::FastMap;
use reactor::{Class, HazardPointers, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use wire::{FileId, Kind, Status};

/// Bytes of one registration, in both tables, and of one that is awaited at most.
pub const REGISTRATION_SIZE: u64 = 64;
/// Opens for one number of `Core::next_number`.
const NUMBERS_SHIFT: u32 = 20;
/// Orphans that are reaped in one go.
const STEP_COUNT: usize = 64;
/// Files that are awaited at a time.
pub const AWAITED_MAX: usize = 65_536;

/// See the module.
#[derive(Default)]
pub struct OpenFiles {
    bounds: Bounds,
    /// Per session: the latest number of each file that it has open.
    sessions: FastMap<u64, FastMap<u64, u64>>,
    /// Per file: the sessions that have it open.
    counts: FastMap<u64, u32>,
    total: usize,
    next_number: u64,
    number_limit: u64,
    orphans: BTreeSet<u64>,
    /// Orphans that were made without a name and may be given one.
    linkable: BTreeSet<u64>,
    /// Sessions that were known at the start and have not told what they have open.
    unreclaimed: BTreeSet<u64>,
    /// Files from this sequence on were made in this life, so that those sessions have nothing to say about them.
    first_new: Option<u64>,
    reaping: bool,
    /// Files that sessions have open which found no room for that here: what they had open with a contact that is gone,
    /// or held. Each with the time until which they are expected to ask again.
    awaited: BTreeMap<u64, Nanos>,
    /// What clients hold, by connection.
    holders: BTreeMap<u64, Rc<HazardPointers>>,
}

impl OpenFiles {
    pub fn new(bounds: &Bounds) -> OpenFiles {
        OpenFiles { bounds: *bounds, ..OpenFiles::default() }
    }

    /// Whether more files fit; those that the session has open always do, so that what is asked for once more is
    /// answered once more.
    fn check_room(&self, session: u64, files: &[FileId]) -> Result<(), Failure> {
        match self.sessions.get(&session).map_or(0, FastMap::len) < self.bounds.session_open_files {
            true => self.check_room_of_all(session, files),
            false => self.check_known(session, files),
        }
    }

    /// The same, whatever the session has open.
    fn check_room_of_all(&self, session: u64, files: &[FileId]) -> Result<(), Failure> {
        if self.total < self.bounds.open_files { Ok(()) } else { self.check_known(session, files) }
    }

    fn check_known(&self, session: u64, files: &[FileId]) -> Result<(), Failure> {
        let of_session = self.sessions.get(&session);
        if files.iter().all(|file| of_session.is_some_and(|known| known.contains_key(&file.0))) {
            return Ok(());
        }
        let Bounds { session_open_files, open_files, .. } = self.bounds;
        let text = format!("a session may have {session_open_files} files open at a server, all together {open_files}");
        Err(Failure::with_text(Status::TooManyOpen, text))
    }

    fn put(&mut self, session: u64, file: FileId, number: u64) {
        let files = self.sessions.entry(session).or_default();
        if let Some(registered) = files.get_mut(&file.0) {
            *registered = number.max(*registered);
            return;
        }
        files.insert(file.0, number);
        *self.counts.entry(file.0).or_default() += 1;
        self.total += 1;
    }

    /// True when this was the last one that had the file open.
    fn remove(&mut self, session: u64, file: FileId, number: u64) -> bool {
        let Some(files) = self.sessions.get_mut(&session) else { return false };
        if files.get(&file.0).is_none_or(|registered| *registered > number) {
            return false;
        }
        files.remove(&file.0);
        if files.is_empty() {
            self.sessions.remove(&session);
        }
        self.release(file.0)
    }

    fn release(&mut self, file: u64) -> bool {
        self.total -= 1;
        let Some(count) = self.counts.get_mut(&file) else { unreachable!("a registration is counted") };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.counts.remove(&file);
        }
        last
    }

    /// The session is gone, with all that it had open.
    pub fn end_session(&mut self, session: u64) {
        for file in self.sessions.remove(&session).unwrap_or_default().into_keys() {
            self.release(file);
        }
        self.unreclaimed.remove(&session);
    }

    /// Begins a life of the server: these sessions may have anything open.
    pub fn await_reclaim(&mut self, sessions: Vec<u64>) {
        self.unreclaimed = sessions.into_iter().collect();
    }

    /// Files whose ids have this sequence or a later one are made from now on.
    pub fn begin_new(&mut self, sequence: u64) {
        self.first_new = Some(sequence);
    }

    /// Whether a session of an earlier life may have a file open that nobody has said anything about.
    fn may_be_claimed(&self, file: u64) -> bool {
        !self.unreclaimed.is_empty() && self.first_new.is_none_or(|first| FileId(file).sequence() < first)
    }

    /// Whether a file may be open. What leads to it in the attribute cache was taken away before
    /// (`Tables::may_be_open`).
    pub fn may_be_open(&self, file: FileId) -> bool {
        self.may_be_claimed(file.0) || self.has_opener(file.0)
    }

    fn has_opener(&self, file: u64) -> bool {
        self.counts.contains_key(&file) || self.awaited.contains_key(&file) || self.is_held(file)
    }

    /// Files stay until then whose registration was refused; those beyond the bound do not.
    fn await_again(&mut self, files: &[FileId], until: Nanos) {
        for file in files {
            if self.awaited.len() < AWAITED_MAX || self.awaited.contains_key(&file.0) {
                self.awaited.insert(file.0, until);
            }
        }
    }

    /// Nobody has asked again for what was to be asked for by now. When that is to be looked at next.
    fn end_awaited(&mut self, now: Nanos) -> Option<Nanos> {
        self.awaited.retain(|_, until| *until > now);
        self.awaited.values().min().copied()
    }

    /// Whether a client holds a file.
    fn is_held(&self, file: u64) -> bool {
        HazardPointers::before_look();
        self.holders.values().any(|hazards| hazards.has(file))
    }

    /// The client of a connection may hold files from now on.
    fn add_holder(&mut self, connection: u64, hazards: Rc<HazardPointers>, life: u64) {
        hazards.begin(life);
        self.holders.insert(connection, hazards);
    }

    /// A connection has ended; tells what its client holds.
    fn remove_holder(&mut self, connection: u64) -> Vec<u64> {
        self.holders.remove(&connection).map_or_else(Vec::new, |hazards| hazards.end())
    }

    /// Whether a session has the file open.
    pub fn is_open(&self, file: FileId) -> bool {
        self.counts.contains_key(&file.0)
    }

    /// Whether a session has nothing open, as far as is known.
    pub fn has_none(&self, session: u64) -> bool {
        !self.sessions.contains_key(&session) && !self.unreclaimed.contains(&session)
    }

    /// Ends what a session opened before a number.
    fn end_before(&mut self, session: u64, number: u64) {
        let Some(files) = self.sessions.get(&session) else { return };
        let ended: Vec<(u64, u64)> =
            files.iter().filter(|(_, opened)| **opened < number).map(|(file, opened)| (*file, *opened)).collect();
        for (file, opened) in ended {
            self.remove(session, FileId(file), opened);
        }
    }

    /// Whether an inode is here without a name.
    pub fn is_orphan(&self, file: FileId) -> bool {
        !self.orphans.is_empty() && self.orphans.contains(&file.0)
    }

    pub fn is_linkable(&self, file: FileId) -> bool {
        self.linkable.contains(&file.0)
    }

    /// Takes in that an inode is put.
    pub fn note_inode(&mut self, file: FileId, link_count: u32) {
        if link_count == 0 {
            self.orphans.insert(file.0);
        } else if !self.orphans.is_empty() || !self.linkable.is_empty() {
            self.note_no_orphan(file);
        }
    }

    /// Takes in that an inode was given a name, or is gone.
    pub fn note_no_orphan(&mut self, file: FileId) {
        self.orphans.remove(&file.0);
        self.linkable.remove(&file.0);
    }

    /// Takes in that an orphan may be given a name.
    pub fn note_linkable(&mut self, file: FileId) {
        self.linkable.insert(file.0);
    }

    pub fn linkable(&self) -> impl Iterator<Item = FileId> {
        self.linkable.iter().map(|file| FileId(*file))
    }

    /// Registrations, orphans, and sessions that are still to tell.
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.total as u64, self.orphans.len() as u64, self.unreclaimed.len() as u64)
    }

    /// Orphans that nobody has open, a few.
    fn reapable(&self, after: u64) -> Vec<FileId> {
        let first = match (self.unreclaimed.is_empty(), self.first_new) {
            (true, _) => 0,
            (false, Some(first_new)) => first_new,
            (false, None) => return Vec::new(),
        };
        let is_free = |file: &&u64| FileId(**file).sequence() >= first && !self.has_opener(**file);
        let free = self.orphans.range(after..).filter(is_free);
        free.take(STEP_COUNT).map(|file| FileId(*file)).collect()
    }

    /// Whether there is any orphan that nobody has open and nobody is about to reap: never, at rest.
    pub fn leaks(&self) -> bool {
        !self.reaping && !self.reapable(0).is_empty()
    }
}

impl Core {
    /// A number for opens of these files by the caller, who has room for them.
    pub fn open_number(self: &Rc<Self>, caller: &Caller, files: &[FileId]) -> Result<u64, Failure> {
        self.tables.borrow().open.check_room(caller.peer.session, files)?;
        self.next_open_number()
    }

    /// A number for opens that there are already: those of an earlier life, and of a contact that is gone. However many
    /// the caller has open, for the contact had room for them; all together are bounded still. What there is no room
    /// for is not given up while the caller asks again.
    pub fn reclaim_number(self: &Rc<Self>, caller: &Caller, files: &[FileId]) -> Result<u64, Failure> {
        let room = self.tables.borrow().open.check_room_of_all(caller.peer.session, files);
        if room.is_err() {
            self.await_again(files);
        }
        room?;
        self.next_open_number()
    }

    fn await_again(self: &Rc<Self>, files: &[FileId]) {
        let until = self.reactor.now() + self.options.session_grace;
        let is_watched = {
            let open = &mut self.tables.borrow_mut().open;
            let is_watched = !open.awaited.is_empty();
            open.await_again(files, until);
            is_watched || open.awaited.is_empty()
        };
        if is_watched {
            return;
        }
        let core = self.clone();
        self.reactor.spawn(Class::Background, async move {
            let mut next = Some(until);
            while let Some(until) = next.filter(|_| !core.life.is_stopping()) {
                core.reactor.sleep_until(until).await;
                next = core.tables.borrow_mut().open.end_awaited(core.reactor.now());
                core.reap_orphans();
            }
        });
    }

    /// Those of these files that are here and can be registered.
    pub fn registrable(&self, files: &[FileId]) -> Vec<FileId> {
        let tables = self.tables.borrow();
        files.iter().copied().filter(|file| tables.inodes.kind(*file) == Some(Kind::File)).collect()
    }

    /// A number later than those of all opens before.
    pub fn next_open_number(self: &Rc<Self>) -> Result<u64, Failure> {
        {
            let open = &mut self.tables.borrow_mut().open;
            if open.next_number < open.number_limit {
                open.next_number += 1;
                return Ok(open.next_number - 1);
            }
        }
        let block = self.next_number()?;
        let open = &mut self.tables.borrow_mut().open;
        (open.next_number, open.number_limit) = ((block << NUMBERS_SHIFT) + 1, (block + 1) << NUMBERS_SHIFT);
        Ok(open.next_number - 1)
    }

    /// Registers a file that a session has just opened.
    /// A session that has ended meanwhile has nothing open any more.
    pub fn register_open(&self, session: u64, file: FileId, number: u64) {
        let mut tables = self.tables.borrow_mut();
        if tables.sessions.is_known(session) {
            tables.open.put(session, file, number);
        }
    }

    /// Holds a file open for a change under way, under a number of its own instead of a session; `closed` ends it.
    pub fn hold_open(&self, file: FileId, number: u64) {
        self.tables.borrow_mut().open.put(number, file, number);
    }

    /// Numbers and registers an open. Only files are registered; the number of others is 0.
    pub fn opened(self: &Rc<Self>, caller: &Caller, file: FileId, kind: Kind) -> Result<u64, Failure> {
        if kind != Kind::File {
            return Ok(0);
        }
        let number = self.open_number(caller, &[file])?;
        self.register_open(caller.peer.session, file, number);
        Ok(number)
    }

    /// The client of a connection may hold files from now on.
    pub fn holder_connected(&self, connection: u64, hazards: Rc<HazardPointers>) {
        if let Some(shared) = self.shared() {
            self.tables.borrow_mut().open.add_holder(connection, hazards, shared.life());
        }
    }

    /// A connection has ended: what its client holds is open for its session until that says what is.
    pub fn holder_disconnected(self: &Rc<Self>, connection: u64, session: u64) {
        let held = self.tables.borrow_mut().open.remove_holder(connection);
        for file in held.into_iter().map(FileId) {
            let is_file = self.tables.borrow().inodes.kind(file) == Some(Kind::File);
            if is_file {
                // Where the journal has no room for more numbers, the first that is not given out yet: later ones are
                // above it.
                let none_left = |_| self.tables.borrow().open.number_limit;
                let number = self.next_open_number().unwrap_or_else(none_left);
                self.register_open(session, file, number);
            }
        }
        self.reap_orphans();
    }

    /// Ends all opens of a session up to a number; the last one of all takes a file without a name along.
    pub fn closed(self: &Rc<Self>, session: u64, file: FileId, number: u64) {
        let last = self.tables.borrow_mut().open.remove(session, file, number);
        // Number 0 is of a client that held the file, and does no more.
        if (last || number == 0) && self.tables.borrow().open.orphans.contains(&file.0) {
            self.reap_orphans();
        }
        if last && self.cluster.home_of(file) != Some(self.index) {
            self.release_remote_opens();
        }
    }

    /// Ends what a session opened before a number.
    pub fn closed_before(self: &Rc<Self>, session: u64, number: u64) {
        self.tables.borrow_mut().open.end_before(session, number);
        self.reap_orphans();
    }

    /// The session has told all that it has open here, or has nothing.
    pub fn reclaimed(self: &Rc<Self>, session: u64) {
        let removed = self.tables.borrow_mut().open.unreclaimed.remove(&session);
        if removed {
            self.reap_orphans();
        }
    }

    /// Reaps orphans that nobody has open: one at once, more in the background, for as long as there are any.
    pub fn reap_orphans(self: &Rc<Self>) {
        let ready = {
            let tables = self.tables.borrow();
            if tables.open.orphans.is_empty() || tables.open.reaping {
                return;
            }
            tables.open.reapable(0)
        };
        let done = match ready[..] {
            [] => true,
            [file] => reap_orphan(self, file),
            _ => false,
        };
        if !done {
            self.tables.borrow_mut().open.reaping = true;
            self.reactor.spawn(Class::Metadata, reap_all(self.clone()));
        }
    }
}

/// What is being given a name just now, and what the journal has no room for, is tried again.
async fn reap_all(core: Rc<Core>) {
    let mut backoff = Backoff::default();
    let mut after = 0;
    loop {
        let ready = core.tables.borrow().open.reapable(after);
        let (Some(last), false) = (ready.last(), core.life.is_stopping()) else {
            if after == 0 || core.life.is_stopping() {
                break;
            }
            // The end of a round in which some were left.
            backoff.pause(&core.reactor).await;
            after = 0;
            continue;
        };
        after = last.0 + 1;
        for file in ready {
            if reap_orphan(&core, file) {
                backoff.reset();
            }
        }
        core.reactor.yield_now().await;
    }
    core.tables.borrow_mut().open.reaping = false;
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(5 << 20);

    /// Goal: a close ends the opens that it knows of and none after them, in whatever order they arrive.
    #[test]
    fn closes_name_opens() {
        let mut open = OpenFiles::default();
        open.put(1, FILE, 10);
        open.put(2, FILE, 11);
        open.put(1, FILE, 12);
        assert!(!open.remove(1, FILE, 10), "a later open stands");
        assert!(!open.remove(1, FILE, 12), "another session has it open");
        assert!(!open.remove(1, FILE, 12), "a close that is repeated");
        assert!(open.may_be_open(FILE));
        assert!(open.remove(2, FILE, 11));
        assert!(!open.may_be_open(FILE));
        // A resend of an open that was answered before does not take a later one's place.
        open.put(1, FILE, 20);
        open.put(1, FILE, 15);
        assert!(!open.remove(1, FILE, 15));
        assert!(open.remove(1, FILE, 20));
        assert_eq!(open.counts(), (0, 0, 0));
    }

    /// Goal: orphans wait for who has them open, and for all who have not said so yet.
    #[test]
    fn orphans_wait() {
        let mut open = OpenFiles::default();
        open.await_reclaim(vec![1, 2]);
        open.note_inode(FILE, 0);
        open.note_inode(FileId(7), 1);
        assert!(open.reapable(0).is_empty());
        open.put(1, FILE, 10);
        open.unreclaimed.remove(&1);
        open.end_session(2);
        assert!(open.reapable(0).is_empty());
        open.end_session(1);
        assert_eq!(open.reapable(0), [FILE]);
        assert_eq!(open.reapable(FILE.0 + 1), []);
        open.note_inode(FILE, 1);
        assert!(open.reapable(0).is_empty());
        assert_eq!(open.counts(), (0, 0, 0));
    }

    /// Goal: an orphan for which a session found no room stays while it is asked for again, and no longer; files beyond
    /// the bound are not remembered.
    #[test]
    fn orphans_wait_for_room() {
        let mut open = OpenFiles::default();
        open.note_inode(FILE, 0);
        open.await_again(&[FILE], 10);
        open.await_again(&[FILE], 20);
        assert!(open.may_be_open(FILE) && open.reapable(0).is_empty());
        assert_eq!(open.end_awaited(10), Some(20));
        assert!(open.reapable(0).is_empty());
        let many: Vec<FileId> = (0..2 * AWAITED_MAX as u64).map(FileId).collect();
        open.await_again(&many, 30);
        assert_eq!(open.awaited.len(), AWAITED_MAX);
        assert_eq!(open.end_awaited(20), Some(30));
        assert_eq!(open.reapable(0), [FILE]);
        assert_eq!(open.end_awaited(30), None);
        assert!(open.awaited.is_empty());
    }

    /// Goal: what was made in this life need not wait for sessions of earlier ones, but for those that have it open.
    #[test]
    fn new_files_wait_for_nobody_of_before() {
        let mut open = OpenFiles::default();
        open.await_reclaim(vec![1]);
        let (old, new) = (FileId::new(8, 3), FileId::new(9, 0));
        [old, new].into_iter().for_each(|file| open.note_inode(file, 0));
        assert!(open.may_be_open(new) && open.reapable(0).is_empty(), "changes of an earlier life are still taken up");
        open.begin_new(9);
        assert!(open.may_be_open(old) && !open.may_be_open(new));
        assert_eq!(open.reapable(0), [new]);
        open.put(2, new, 10);
        assert!(open.may_be_open(new) && open.reapable(0).is_empty());
        open.end_session(1);
        assert_eq!(open.reapable(0), [old]);
    }

    /// Goal: a session has no more than its share, and is answered about what is in it.
    #[test]
    fn bounded() {
        let mut open = OpenFiles::default();
        for file in 0..Bounds::default().session_open_files as u64 {
            open.check_room(1, &[FileId(file)]).expect("there is room");
            open.put(1, FileId(file), file);
        }
        let [known, new] = [FileId(4), FILE];
        assert_eq!(open.check_room(1, &[known, new]).expect_err("full").status, Status::TooManyOpen);
        open.check_room(1, &[known]).expect("it is open");
        open.check_room(1, &[]).expect("nothing needs no room");
        open.check_room(2, &[new]).expect("others have theirs");
        assert!(open.remove(1, FileId(3), 3));
        open.check_room(1, &[known, new]).expect("one was closed");
        open.put(1, new, 7);
        open.check_room_of_all(1, &[FileId(u64::MAX)]).expect("what a contact had opened has room");
        open.bounds.open_files = open.total;
        let full = open.check_room_of_all(1, &[FileId(u64::MAX)]).expect_err("all together are bounded");
        assert_eq!(full.status, Status::TooManyOpen);
    }
}
