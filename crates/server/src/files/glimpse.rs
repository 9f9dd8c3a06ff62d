//! Asking the announced servers of a file what they know of its size and times.
//!
//! Invariants
//! 1. A glimpse that a stat shares begins after the stat arrived, so that it covers everything acknowledged before.
//! 2. Glimpses of a file hold its turn: they are not mixed with truncates, appends and explicit times.
//! 3. An announcement ends at the home only after it ended at the announcing server, and only up to the generation
//!    that this server names.
//! 4. Explicit times are set only while nobody is announced: an announcement that stands has been told of earlier ones
//!    only, and what its server stamped before would undo these.

use crate::core::{Core, Failure, Notice, Turn, all};
use crate::files::inodes::Inode;
use crate::journal::records::Record;
use crate::store::FastMap;
use reactor::{Class, LocalFuture, Nanos};
use std::cell::RefCell;
use std::rc::Rc;
use wire::messages::{GlimpseReply, GlimpseRequest};
use wire::{Attributes, FileId, Operation};

/// What a glimpse ends with.
type GlimpseResult = Result<Attributes, Failure>;

/// Glimpses of files that have not started yet.
#[derive(Default)]
pub struct Glimpses {
    /// Who comes now may share them.
    pending: RefCell<FastMap<u64, Notice<GlimpseResult>>>,
    /// Of files whose last close asked for settling.
    settling: RefCell<FastMap<u64, ()>>,
    /// Files that take no announcement until this is told.
    closed: RefCell<FastMap<u64, Notice<()>>>,
}

/// While it lives a file takes no announcement.
pub struct ClosedFile {
    core: Rc<Core>,
    file: FileId,
}

impl Drop for ClosedFile {
    fn drop(&mut self) {
        let opened = self.core.glimpses.closed.borrow_mut().remove(&self.file.0);
        opened.iter().for_each(|opened| opened.tell(()));
    }
}

impl Core {
    /// The attributes of a file with all announced sizes and times. One glimpse serves all who wait for it.
    pub async fn glimpse(self: &Rc<Self>, file: FileId, deadline: Nanos) -> GlimpseResult {
        let inode = self.inode(file)?;
        if !inode.is_announced() {
            return Ok(inode.attributes);
        }
        let waiting = self.glimpses.pending.borrow().get(&file.0).cloned();
        let notice = match waiting {
            Some(notice) => notice,
            None => self.start_glimpse(file),
        };
        self.wait_until(deadline, "servers with parts of the file did not tell its size in time", notice.wait()).await?
    }

    fn start_glimpse(self: &Rc<Self>, file: FileId) -> Notice<GlimpseResult> {
        let notice = Notice::new();
        self.glimpses.pending.borrow_mut().insert(file.0, notice.clone());
        let (core, told) = (self.clone(), notice.clone());
        self.reactor.spawn(Class::Metadata, async move {
            let turn = core.turns.take(file.0).await;
            // Invariant 1: from here on the next stat needs a glimpse of its own.
            core.glimpses.pending.borrow_mut().remove(&file.0);
            let result = core.glimpse_in_turn(file, false, &turn).await;
            drop(turn);
            told.tell(result);
        });
        notice
    }

    /// Lets no server announce itself until the guard is dropped by whoever holds the file's turn.
    pub fn close_to_announcements(self: &Rc<Self>, file: FileId, _turn: &Turn) -> ClosedFile {
        self.glimpses.closed.borrow_mut().insert(file.0, Notice::new());
        ClosedFile { core: self.clone(), file }
    }

    /// Told when the file takes announcements again; nothing when it does.
    pub fn announcements_reopen(&self, file: FileId) -> Option<Notice<()>> {
        self.glimpses.closed.borrow().get(&file.0).cloned()
    }

    /// Settles what other servers know into the inode, in the background, when the last writer seems to be gone.
    pub fn start_settling(self: &Rc<Self>, file: FileId) {
        if self.glimpses.settling.borrow_mut().insert(file.0, ()).is_some() {
            return;
        }
        let core = self.clone();
        self.reactor.spawn(Class::Metadata, async move {
            let turn = core.turns.take(file.0).await;
            core.glimpses.settling.borrow_mut().remove(&file.0);
            // A server that can't be reached stays announced and is asked by whoever looks at the file.
            let _: GlimpseResult = core.glimpse_in_turn(file, true, &turn).await;
        });
    }

    /// Asks all announced servers of the file, whose turn the caller holds. With `retract` their announcements end and
    /// what they know becomes part of the inode.
    pub async fn glimpse_in_turn(self: &Rc<Self>, file: FileId, retract: bool, _turn: &Turn) -> GlimpseResult {
        let servers: Vec<u32> = self.inode(file)?.announced().iter().map(|(server, _)| *server).collect();
        if servers.is_empty() {
            return Ok(self.inode(file)?.attributes);
        }
        let asked: Vec<LocalFuture<Result<(u32, GlimpseReply), Failure>>> = servers
            .into_iter()
            .map(|server| {
                let core = self.clone();
                let future = async move {
                    let request = GlimpseRequest { file, retract };
                    let reply: GlimpseReply = core.peers.call(server, Operation::Glimpse, &request, None).await?;
                    Ok((server, reply))
                };
                Box::pin(future) as LocalFuture<_>
            })
            .collect();
        let mut replies = Vec::new();
        let mut failed = None;
        for answer in all(asked).await {
            match answer {
                Ok(reply) => replies.push(reply),
                Err(failure) => failed = Some(failure),
            }
        }
        let mut inode = self.inode(file)?;
        self.merge(&mut inode, &replies, retract);
        let attributes = inode.attributes.clone();
        if retract {
            self.change([Record::InodePut(inode)])?;
        }
        failed.map_or(Ok(attributes), Err)
    }

    fn merge(&self, inode: &mut Inode, replies: &[(u32, GlimpseReply)], retract: bool) {
        let announced = inode.announced().to_vec();
        for (server, reply) in replies {
            let attributes: &mut Attributes = &mut inode.attributes;
            attributes.size = attributes.size.max(reply.end);
            // Who is not told yet that its announcement stands, and what times were set before it, has not forgotten
            // what it stamped before these.
            let told =
                announced.iter().all(|(of, generation)| of != server || *generation <= reply.announce_generation);
            if told || reply.mtime > attributes.times_set {
                attributes.mtime = attributes.mtime.max(reply.mtime);
                attributes.ctime = attributes.ctime.max(reply.mtime);
            }
            self.clock.note(reply.mtime);
            if retract {
                inode.retract(*server, reply.announce_generation);
            }
        }
    }
}
