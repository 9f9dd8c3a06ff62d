//! Locks of files: flock, POSIX ranges and ranges of open file descriptions, kept by the file's home.
//!
//! A lock that has to be waited for is asked for twice: `Lock` puts it into the home's queue and is answered at once,
//! and `AwaitLock` is answered when it was granted. After a restart of the home, which forgets its queues, both are
//! repeated.

use crate::error::{Attempt, Error, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::open_files::file::File;
use crate::servers::Servers;
use reactor::{Class, Nanos};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use wire::messages::{
    AwaitLockRequest, HeldLock, LockDescription, LockRange, LockReply, LockRequest, LockSpace, LockState, OwnerKind,
    TestLockReply, TestLockRequest, UnlockRequest,
};
use wire::{Decode, Encode, FileId, Operation, Status};

/// How often a server is asked to release what nobody uses any more, before that is left to the end of the session.
const RELEASE_COUNT_MAX: u32 = 32;
const RELEASE_PAUSE: Nanos = 200_000_000;
/// How often one who wants to lock again looks whether that is done.
const LOOK_PAUSE: Nanos = 5_000_000;

/// Pauses before one asks again who is one too many of those who wait, each twice the one before.
const CROWD_PAUSE_MIN: Nanos = 5_000_000;
const CROWD_PAUSE_MAX: Nanos = 160_000_000;

/// Who locks, and in which of the two spaces, which know nothing of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Locker {
    /// The open file, whole: flock(2).
    Whole,
    /// The open file, by ranges: F_OFD_SETLK of fcntl(2).
    Description,
    /// A process of this number, by ranges: F_SETLK of fcntl(2).
    Process(u64),
}

impl Locker {
    fn space(self) -> LockSpace {
        if self == Locker::Whole { LockSpace::Whole } else { LockSpace::Ranges }
    }
}

/// File, space, and kind and number of an owner.
type OwnerKey = (FileId, LockSpace, OwnerKind, u64);

fn owner_of(wish: &LockDescription) -> OwnerKey {
    (wish.file, wish.space, wish.kind, wish.owner)
}

/// What the client remembers of its locks.
pub(crate) struct LockBook {
    /// Next number of an open file; 0 before the first.
    next_description: Cell<u64>,
    next_ticket: Cell<u64>,
    /// Owners for whom something is being released behind the callers' backs, and how many times. They lock again only
    /// after it, for it would take the new lock along.
    releasing: RefCell<BTreeMap<OwnerKey, u32>>,
    /// Processes that may have locks of a file.
    processes: RefCell<BTreeMap<FileId, BTreeSet<u64>>>,
}

impl LockBook {
    pub(crate) fn new() -> LockBook {
        LockBook {
            next_description: Cell::new(0),
            next_ticket: Cell::new(1),
            releasing: RefCell::default(),
            processes: RefCell::default(),
        }
    }

    fn ticket(&self) -> u64 {
        self.next_ticket.replace(self.next_ticket.get() + 1)
    }
}

impl FileSystem {
    /// Locks a range of a file (`LockRange::WHOLE` for `Locker::Whole`), waiting for it as long as it takes; what this
    /// owner had of the range before changes to the new mode. Dropping the future gives up.
    ///
    /// A server lets a limited number wait in a queue. A process beyond is refused, for it would not be seen where
    /// processes wait for each other; an open file asks again and again, and has no turn among the others.
    ///
    /// Errors: `Deadlock` when processes would wait for each other, `NoLocks` when there are too many, `BadHandle` when
    /// a process or description has not opened the file for reading (a shared lock) or writing (an exclusive one), and
    /// what concerns the server.
    pub async fn lock(&self, file: &File, locker: Locker, range: LockRange, exclusive: bool) -> Result<()> {
        self.ask_for_lock(file, locker, range, exclusive, true)
            .await
            .map_err(|request_error| request_error.about_file(file.id))
    }

    /// Locks like `lock`, but fails with `WouldBlock` when somebody else has a conflicting lock.
    pub async fn try_lock(&self, file: &File, locker: Locker, range: LockRange, exclusive: bool) -> Result<()> {
        self.ask_for_lock(file, locker, range, exclusive, false)
            .await
            .map_err(|request_error| request_error.about_file(file.id))
    }

    /// Releases what this owner has locked of a range; nothing happens when that is nothing.
    pub async fn unlock(&self, file: &File, locker: Locker, range: LockRange) -> Result<()> {
        let wish = self.servers.wish(file, locker, range, false);
        self.servers.unlock(&wish).await.map_err(|request_error| request_error.about_file(file.id))
    }

    /// A lock of somebody else that would be in the way of this one now.
    pub async fn test_lock(
        &self,
        file: &File,
        locker: Locker,
        range: LockRange,
        exclusive: bool,
    ) -> Result<Option<HeldLock>> {
        let wish = self.servers.wish(file, locker, range, exclusive);
        self.servers.test_lock(wish).await.map_err(|request_error| request_error.about_file(file.id))
    }

    /// Ends the use of a handle by a process, as `close` does; with it go all locks of that process on the file
    /// (POSIX).
    pub async fn close_as(&self, file: &File, process: u64) {
        self.release_process(file, process).await;
        self.close(file).await;
    }

    /// Releases all locks of a process on a file.
    pub async fn release_process(&self, file: &File, process: u64) {
        let locked = {
            let mut processes = self.servers.locks.processes.borrow_mut();
            processes.get_mut(&file.id).is_some_and(|of_file| of_file.remove(&process))
        };
        if locked {
            self.servers.locks.processes.borrow_mut().retain(|_, of_file| !of_file.is_empty());
            let wish = self.servers.wish(file, Locker::Process(process), LockRange::WHOLE, false);
            self.release(wish).await;
        }
    }

    /// Releases the locks of an open file that is closed.
    pub(crate) async fn release_description(&self, file: &File) {
        for locker in [Locker::Whole, Locker::Description] {
            if file.take_locked(locker.space()) {
                let wish = self.servers.wish(file, locker, LockRange::WHOLE, false);
                self.release(wish).await;
            }
        }
    }

    /// Releases, and when the server can't be reached goes on trying behind the caller's back.
    async fn release(&self, wish: LockDescription) {
        if let Err(request_error) = self.servers.unlock(&wish).await
            && is_open(request_error.status())
        {
            release_later(self.servers.clone(), wish);
        }
    }

    async fn ask_for_lock(
        &self,
        file: &File,
        locker: Locker,
        range: LockRange,
        exclusive: bool,
        wait: bool,
    ) -> Attempt<()> {
        if locker != Locker::Whole && !(if exclusive { file.write } else { file.read }) {
            return Err(RequestError::local(Status::BadHandle));
        }
        let wish = self.servers.wish(file, locker, range, exclusive);
        match locker {
            Locker::Process(process) => {
                self.servers.locks.processes.borrow_mut().entry(file.id).or_default().insert(process);
            }
            Locker::Whole | Locker::Description => file.note_locked(locker.space()),
        }
        self.servers.wait_for_releases(&wish).await?;
        let mut asked = LockAttempt { servers: self.servers.clone(), wish: Some(wish.clone()) };
        let outcome = self.servers.obtain(&wish, wait).await;
        if outcome.as_ref().map_or_else(|request_error| !is_open(request_error.status()), |()| true) {
            asked.wish = None;
        }
        outcome
    }
}

/// Whether a failure leaves open what the server did or will do.
fn is_open(status: Status) -> bool {
    matches!(status, Status::Unreachable | Status::TimedOut | Status::Io | Status::Draining | Status::Busy)
}

/// A lock that was asked for. Dropped before it is known what came of it, the server is told that nobody wants it.
struct LockAttempt {
    servers: Rc<Servers>,
    wish: Option<LockDescription>,
}

impl Drop for LockAttempt {
    fn drop(&mut self) {
        if let Some(wish) = self.wish.take() {
            release_later(self.servers.clone(), wish);
        }
    }
}

fn release_later(servers: Rc<Servers>, wish: LockDescription) {
    let reactor = servers.reactor.clone();
    *servers.locks.releasing.borrow_mut().entry(owner_of(&wish)).or_default() += 1;
    reactor.clone().spawn(Class::Background, async move {
        for _ in 0..RELEASE_COUNT_MAX {
            match servers.unlock(&wish).await {
                Err(request_error) if is_open(request_error.status()) => reactor.sleep(RELEASE_PAUSE).await,
                _ => break,
            }
        }
        let mut releasing = servers.locks.releasing.borrow_mut();
        if let Some(count) = releasing.get_mut(&owner_of(&wish)) {
            *count -= 1;
        }
        releasing.retain(|_, count| *count > 0);
    });
}

impl Servers {
    fn wish(&self, file: &File, locker: Locker, range: LockRange, exclusive: bool) -> LockDescription {
        let (kind, owner) = match locker {
            Locker::Process(process) => (OwnerKind::Process, process),
            Locker::Whole | Locker::Description => (OwnerKind::Description, self.description(file)),
        };
        LockDescription {
            file: file.id,
            space: locker.space(),
            kind,
            owner,
            range,
            exclusive,
            ticket: self.locks.ticket(),
        }
    }

    /// The number of an open file among those of this client. Files that were open before a fork have theirs from the
    /// parent, so the count begins anywhere.
    fn description(&self, file: &File) -> u64 {
        let next = &self.locks.next_description;
        if next.get() == 0 {
            next.set(self.reactor.random() | 1);
        }
        file.description(|| next.replace(next.get().wrapping_add(2)))
    }

    /// Returns when nothing of this owner is being released any more. Errors: `TimedOut`.
    async fn wait_for_releases(&self, wish: &LockDescription) -> Attempt<()> {
        let owner = owner_of(wish);
        let latest = self.reactor.now().saturating_add(self.silence());
        while self.locks.releasing.borrow().contains_key(&owner) {
            if self.reactor.now() >= latest {
                let words =
                    "an earlier lock, of which the server did not tell what came of it, is still being released";
                return Err(RequestError::Local(Status::TimedOut, words.to_owned()));
            }
            self.reactor.sleep(LOOK_PAUSE).await;
        }
        Ok(())
    }

    async fn obtain(&self, wish: &LockDescription, wait: bool) -> Attempt<()> {
        let home = self.home_of(wish.file)?;
        let mut pause = CROWD_PAUSE_MIN;
        loop {
            let request = LockRequest { wish: wish.clone(), wait };
            match self.ask_for_state(home, Operation::Lock, &request).await {
                Ok(LockState::Granted) => return Ok(()),
                Ok(_) => {}
                Err(refused) if wait && refused.status() == Status::NoLocks && wish.kind != OwnerKind::Process => {
                    if !self.is_crowded(home, wish).await? {
                        return Ok(());
                    }
                    self.crowd_pause(&mut pause).await;
                    continue;
                }
                Err(error) => return Err(error),
            }
            let request = AwaitLockRequest { wish: wish.clone() };
            match self.ask_for_state(home, Operation::AwaitLock, &request).await? {
                LockState::Granted => return Ok(()),
                // In the queue, where too many want to be told.
                LockState::Waiting => self.crowd_pause(&mut pause).await,
                LockState::Unknown => {}
            }
        }
    }

    async fn crowd_pause(&self, pause: &mut Nanos) {
        self.reactor.sleep(*pause).await;
        *pause = (*pause * 2).min(CROWD_PAUSE_MAX);
    }

    /// After a lock was refused that was to be waited for: whether there are too many who wait, for it is not to be had
    /// now. False when it has been got. Errors: `NoLocks` when it is locks that there are too many of.
    async fn is_crowded(&self, home: u32, wish: &LockDescription) -> Attempt<bool> {
        let request = LockRequest { wish: wish.clone(), wait: false };
        match self.ask_for_state(home, Operation::Lock, &request).await {
            Ok(_) => Ok(false),
            Err(held) if held.status() == Status::WouldBlock => Ok(true),
            Err(error) => Err(error),
        }
    }

    async fn ask_for_state(&self, home: u32, operation: Operation, request: &impl Encode) -> Attempt<LockState> {
        let reply = self.ask(home, operation, request).await?;
        let reply = LockReply::from_bytes(&reply.params);
        Ok(reply.map_err(|malformed| RequestError::malformed(operation, home, malformed))?.state)
    }

    async fn unlock(&self, wish: &LockDescription) -> Attempt<()> {
        let home = self.home_of(wish.file)?;
        self.ask(home, Operation::Unlock, &UnlockRequest { wish: wish.clone() }).await.map(drop)
    }

    async fn test_lock(&self, wish: LockDescription) -> Attempt<Option<HeldLock>> {
        let home = self.home_of(wish.file)?;
        let reply = self.ask(home, Operation::TestLock, &TestLockRequest { wish }).await?;
        let reply = TestLockReply::from_bytes(&reply.params);
        Ok(reply.map_err(|malformed| RequestError::malformed(Operation::TestLock, home, malformed))?.held)
    }
}

/// The range of `size` bytes from `start` on, to the end of the file however long it gets when `size` is 0.
///
/// Errors: `Invalid` when it is out of bounds.
pub fn lock_range(start: u64, size: u64) -> Result<LockRange> {
    let end = if size == 0 { Some(wire::messages::LOCK_END) } else { start.checked_add(size) };
    match end.filter(|end| start < *end && *end <= wire::messages::LOCK_END) {
        Some(end) => Ok(LockRange { start, end }),
        None => Err(Error::new(Status::Invalid, format!("a lock of {size} bytes at {start} is out of range"))),
    }
}
