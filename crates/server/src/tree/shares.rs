//! Times and link counts of directories: every server has a share of the entries, and the home glimpses what they say.
//!
//! A server that is about to change an entry announces itself once to the directory's home. The home keeps the list of
//! such servers for as long as the directory lives; whoever looks asks them. A utimens makes the home remember what
//! each share told until then; later changes have later times, since each server's are strictly increasing.
//!
//! Invariants
//! 1. Entries of a directory whose home is elsewhere change here only after the home knows of this server's share.
//! 2. What is remembered for a share only rises, so that a glimpse that comes late undoes no utimens.
//! 3. A glimpse that a stat shares begins after the stat arrived.
//! 4. A share is told only once the changes of its names are done that may have been decided before it was asked for.

use crate::core::{Caller, Core, Failure, Notice, Turns, all};
use crate::files::inodes::Inode;
use crate::handlers::Progress;
use crate::journal::tables::Tables;
use crate::names::{NO_TIME, Share};
use crate::store::FastMap;
use reactor::{Class, LocalFuture, Nanos};
use std::cell::RefCell;
use std::rc::Rc;
use wire::messages::{
    AnnounceDirectoryReply, AnnounceDirectoryRequest, GlimpseDirectoryReply, GlimpseDirectoryRequest,
};
use wire::{Attributes, FileId, Kind, Operation, Status};

/// What other servers said of a directory, by server.
pub type Shares = Vec<(u32, Share)>;
/// One server's answer; none of our own.
type ShareAnswer = Result<Option<(u32, Share)>, Failure>;
type SharesResult = Result<Rc<Shares>, Failure>;

/// At the home: the servers with shares of each directory, with the times through which these count no more.
#[derive(Default)]
pub struct AnnouncedDirectories(FastMap<u64, Vec<(u32, i64)>>);

impl AnnouncedDirectories {
    pub fn get(&self, directory: FileId) -> &[(u32, i64)] {
        self.0.get(&directory.0).map_or(&[], Vec::as_slice)
    }

    pub fn put(&mut self, directory: FileId, shares: Vec<(u32, i64)>) {
        self.0.insert(directory.0, shares);
    }

    /// Notes one more server; of one that is known already nothing changes.
    pub fn add(&mut self, directory: FileId, server: u32) {
        let shares = self.0.entry(directory.0).or_default();
        if !shares.iter().any(|(known, _)| *known == server) {
            shares.push((server, NO_TIME));
        }
    }

    pub fn forget(&mut self, directory: FileId) {
        self.0.remove(&directory.0);
    }

    /// All directories with a list, in order.
    pub fn ids(&self) -> Vec<FileId> {
        let mut ids: Vec<FileId> = self.0.keys().map(|id| FileId(*id)).collect();
        ids.sort_unstable_by_key(|id| id.0);
        ids
    }
}

/// What is done about servers with a share of a directory that do not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitPolicy {
    /// They are waited for as long as the caller waits, and it is an error when they do not.
    Whole,
    /// The directory is told without them, with 1 for the link count. Whoever is first waits `PATIENCE`, and as long as
    /// they do not answer nobody else does.
    Short,
}

/// So long a server may be busy before it is held to be gone.
const PATIENCE: Nanos = 2_000_000_000;
/// Directories that are remembered for being incomplete.
const INCOMPLETE_COUNT_MAX: usize = 4096;

/// See `Core::directories`.
#[derive(Default)]
pub struct DirectoryWork {
    announcing: RefCell<FastMap<u64, Notice<Result<(), Failure>>>>,
    /// Glimpses that have not started yet: who comes now may share them.
    /// First those of which nothing is kept, then those that are remembered.
    glimpses: [RefCell<FastMap<u64, Notice<SharesResult>>>; 2],
    turns: Turns,
    /// Of these the last glimpse failed, or takes long.
    incomplete: RefCell<FastMap<u64, ()>>,
}

impl Tables {
    /// Servers other than `own` that have a share of a directory whose home is here.
    pub fn other_shares(&self, directory: FileId, own: u32) -> Vec<u32> {
        self.announced.get(directory).iter().map(|(server, _)| *server).filter(|server| *server != own).collect()
    }

    /// Whether this server alone can tell the attributes of a directory whose home is here: no other one has a share,
    /// and no entry here is part of a change that may be decided already.
    pub fn is_settled(&self, directory: FileId, own: u32) -> bool {
        let shared = self.announced.get(directory).iter().any(|(server, _)| *server != own);
        !shared && self.locks.in_directory(directory).is_empty()
    }

    /// An inode's attributes as far as this server alone can tell: of a directory, with its own share of the entries.
    pub fn visible(&self, inode: &Inode, own: u32) -> Attributes {
        match inode.attributes.kind {
            Kind::Directory => self.visible_directory(&inode.attributes, own, &[]),
            _ => inode.attributes.clone(),
        }
    }

    /// A directory's attributes with this server's share of the entries and those of others.
    pub fn visible_directory(&self, inode: &Attributes, own: u32, others: &[(u32, Share)]) -> Attributes {
        let ended = self.announced.get(inode.id);
        let own = [(own, self.names.share(inode.id))];
        let mut attributes = inode.clone();
        let mut subdirectories = 0;
        let mut changed = NO_TIME;
        for (server, share) in own.iter().chain(others) {
            subdirectories += share.subdirectories;
            let through = ended.iter().find(|(known, _)| known == server).map_or(NO_TIME, |(_, time)| *time);
            if share.time > through {
                changed = changed.max(share.time);
            }
        }
        // How many directories of the backing tree are in it is known to nobody before it was listed by all: 1 says
        // that its links do not tell, as with other file systems.
        let is_behind = self.backing.root.is_some() && (inode.id.is_from_behind() || inode.id == FileId::ROOT);
        attributes.link_count = if is_behind { 1 } else { u32::try_from(2 + subdirectories).unwrap_or(u32::MAX) };
        if changed != NO_TIME {
            // A time in the future was set by a utimens; a change after it moves the time back to the clock's.
            attributes.mtime = changed.max(inode.mtime.min(inode.ctime));
            attributes.ctime = changed.max(inode.ctime);
        }
        attributes
    }

    /// The list of shares of a directory, as it is once everything that they told so far counts no more.
    pub fn shares_ended(&self, directory: FileId, own: u32, others: &[(u32, Share)]) -> Vec<(u32, i64)> {
        let mut list = self.announced.get(directory).to_vec();
        let own = [(own, self.names.share(directory))];
        for (server, share) in own.iter().chain(others) {
            match list.iter_mut().find(|(known, _)| known == server) {
                Some((_, through)) => *through = share.time.max(*through),
                None => list.push((*server, share.time)),
            }
        }
        list
    }
}

impl Core {
    /// Whether entries of the directory may change here now. Else the step that makes it so, after which the request is
    /// tried again.
    pub fn check_share(self: &Rc<Self>, tables: &Tables, caller: &Caller, directory: FileId) -> Option<Progress> {
        if !self.lacks_share(tables, directory) {
            return None;
        }
        let (core, deadline) = (self.clone(), caller.deadline);
        Some(Progress::After(Box::pin(async move { core.announce_share(directory, deadline).await })))
    }

    /// Whether the directory's home has to be told before an entry changes here.
    pub fn lacks_share(&self, tables: &Tables, directory: FileId) -> bool {
        self.cluster.home_of(directory).is_some_and(|home| home != self.index) && !tables.names.is_announced(directory)
    }

    /// Tells the directory's home that entries are about to change here; all who wait share one message.
    pub async fn announce_share(self: &Rc<Self>, directory: FileId, deadline: Nanos) -> Result<(), Failure> {
        let under_way = self.directories.announcing.borrow().get(&directory.0).cloned();
        let notice = under_way.unwrap_or_else(|| self.start_share(directory));
        let words = "the directory's home did not take the announcement of a change in time";
        self.wait_until(deadline, words, notice.wait()).await?
    }

    fn start_share(self: &Rc<Self>, directory: FileId) -> Notice<Result<(), Failure>> {
        let notice = Notice::new();
        self.directories.announcing.borrow_mut().insert(directory.0, notice.clone());
        let (core, told) = (self.clone(), notice.clone());
        self.reactor.spawn(Class::Metadata, async move {
            let result = announce(&core, directory).await;
            core.directories.announcing.borrow_mut().remove(&directory.0);
            told.tell(result);
        });
        notice
    }

    /// What the other servers with a share of a directory say. One glimpse serves all who wait for it. `kept`:
    /// something of it will be journalled here.
    pub async fn glimpse_directory(self: &Rc<Self>, directory: FileId, kept: bool, deadline: Nanos) -> SharesResult {
        let waiting = self.directories.glimpses[usize::from(kept)].borrow().get(&directory.0).cloned();
        let notice = waiting.unwrap_or_else(|| self.start_directory_glimpse(directory, kept));
        let words = "servers with entries of the directory did not tell its times in time";
        self.wait_until(deadline, words, notice.wait()).await?
    }

    /// The same for who is not low-priority; nothing when there are servers that do not answer.
    pub async fn glimpse_directory_soon(
        self: &Rc<Self>,
        directory: FileId,
        deadline: Nanos,
    ) -> Result<Option<Rc<Shares>>, Failure> {
        let now = self.reactor.now();
        let is_incomplete = self.directories.incomplete.borrow().contains_key(&directory.0);
        let limit = if is_incomplete { now } else { now.saturating_add(PATIENCE) };
        match self.glimpse_directory(directory, false, limit.min(deadline)).await {
            Ok(shares) => Ok(Some(shares)),
            Err(failure) if matches!(failure.status, Status::Unreachable | Status::TimedOut) => {
                let mut incomplete = self.directories.incomplete.borrow_mut();
                if incomplete.len() >= INCOMPLETE_COUNT_MAX.min(self.options.bounds.memos) {
                    incomplete.clear();
                }
                incomplete.insert(directory.0, ());
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Waits until those changes of names in a directory are done that are under way here now (invariant 4).
    pub async fn names_decided(&self, directory: FileId) {
        let locks = self.tables.borrow().locks.in_directory(directory);
        for lock in locks {
            lock.wait().await;
        }
    }

    fn start_directory_glimpse(self: &Rc<Self>, directory: FileId, kept: bool) -> Notice<SharesResult> {
        let notice = Notice::new();
        self.directories.glimpses[usize::from(kept)].borrow_mut().insert(directory.0, notice.clone());
        let (core, told) = (self.clone(), notice.clone());
        self.reactor.spawn(Class::Metadata, async move {
            let turn = core.directories.turns.take(directory.0).await;
            // Invariant 3: from here on the next stat needs a glimpse of its own.
            core.directories.glimpses[usize::from(kept)].borrow_mut().remove(&directory.0);
            let result = glimpse(&core, directory, kept).await;
            if result.is_ok() {
                core.directories.incomplete.borrow_mut().remove(&directory.0);
            }
            drop(turn);
            told.tell(result.map(Rc::new));
        });
        notice
    }
}

async fn announce(core: &Rc<Core>, directory: FileId) -> Result<(), Failure> {
    let Some(home) = core.cluster.home_of(directory) else {
        return Err(Failure::with_text(Status::BadMessage, "id of a directory is out of range"));
    };
    let request = AnnounceDirectoryRequest { directory, server: core.index };
    loop {
        let floor = core.tables.borrow().tree.floor();
        let reply: AnnounceDirectoryReply = core.peers.call(home, Operation::AnnounceDirectory, &request, None).await?;
        core.clock.note(reply.time);
        // It may have been removed meanwhile; then its share is forgotten already and must not come back.
        core.tables.borrow().check_not_removed(std::iter::once(directory))?;
        // That it was removed may be forgotten as well.
        if core.tables.borrow().tree.floor() == floor {
            core.tables.borrow_mut().names.set_announced(directory);
            return Ok(());
        }
    }
}

async fn glimpse(core: &Rc<Core>, directory: FileId, kept: bool) -> Result<Shares, Failure> {
    let servers = core.tables.borrow().other_shares(directory, core.index);
    let mut asked: Vec<LocalFuture<ShareAnswer>> = servers
        .into_iter()
        .map(|server| {
            let core = core.clone();
            let future = async move {
                let request = GlimpseDirectoryRequest { directory, time: core.clock.time(), kept };
                let reply: GlimpseDirectoryReply =
                    core.peers.call(server, Operation::GlimpseDirectory, &request, None).await?;
                core.clock.note(reply.time);
                Ok(Some((server, Share { time: reply.time, subdirectories: reply.subdirectories })))
            };
            Box::pin(future) as LocalFuture<_>
        })
        .collect();
    let core = core.clone();
    asked.push(Box::pin(async move {
        core.names_decided(directory).await;
        Ok(None)
    }));
    let answers: Result<Vec<_>, Failure> = all(asked).await.into_iter().collect();
    Ok(answers?.into_iter().flatten().collect())
}
