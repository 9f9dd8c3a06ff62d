//! From a request to its reply: what all threads of a mount share, and the loop that each of them runs.
//!
//! A thread takes a request from its port (`port.rs`), does what it asks for as a piece of work on the client, and
//! hands the reply back. Work that has to wait, for a server or for a lock, stays with its thread, which takes others
//! meanwhile: so who waits for a server that does not answer keeps nobody from being served.
//!
//! Invariants
//! 1. While nothing is under way a thread sleeps in its port, without the client's lock; else in the client, whose loop
//!    watches the port too.
//! 2. Each request is answered once, through the port that it came by.

use crate::attributes::may_keep;
use crate::caller::Callers;
use crate::device::{Device, DevicePort};
use crate::errno::Errno;
use crate::failed::FailedLookUps;
use crate::handles::Handles;
use crate::held::HeldNodes;
use crate::interrupts::Interrupts;
use crate::keeping::{Beginning, Keeping};
use crate::listing::Listing;
use crate::locks::LockOwners;
use crate::open_file::OpenFile;
use crate::port::{Message, Port, Taken};
use crate::protocol::{Header, Input, Output, opcode};
use crate::seen::SeenDirectories;
use client::{Attributes, Client, Credentials, File, FileSystem, Status};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use reactor::{Doorbell, Nanos, Reactor};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use wire::FileId;

/// Requests that one thread has under way at most, beside those that wait for locks: these are bounded by themselves,
/// and must not keep out who unlocks.
pub const UNDER_WAY_MAX: usize = 256;

const NANOS_PER_MS: Nanos = 1_000_000;

/// Requests that a thread takes before it looks after those that are under way.
const TAKEN_IN_ROW_MAX: usize = 16;

/// What all threads of one mount share.
pub struct Mounted {
    pub client: Client,
    /// Who runs the mount.
    pub user: Credentials,
    pub device: Arc<Device>,
    pub callers: Callers,
    pub files: Handles<OpenFile>,
    pub listings: Handles<Listing>,
    pub directories: SeenDirectories,
    pub held: HeldNodes,
    pub failed: FailedLookUps,
    pub owners: LockOwners,
    pub interrupts: Interrupts,
    pub keeping: Arc<Keeping>,
}

/// What a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The kernel expects none.
    None,
    /// What the output holds.
    Output,
    /// So many bytes at the front of the message's place.
    Data(usize),
}

pub type Handled = Result<Answer, Errno>;

/// A request that has been done.
pub struct Reply {
    pub message: Message,
    pub output: Output,
    pub handled: Handled,
}

/// A request under way.
pub struct Work<'w> {
    pub mounted: &'w Mounted,
    pub files: &'w FileSystem,
    pub output: Output,
}

type UnderWay<'w> = Pin<Box<dyn Future<Output = Reply> + 'w>>;

/// The kernel's number of the root directory.
pub const ROOT_NODE: u64 = 1;

/// The file of a node. Numbers of nodes are those of files, which are never used twice; so there is no table of nodes
/// that a forgotten one could be missing from.
pub fn file_of(node: u64) -> FileId {
    if node == ROOT_NODE { FileId::ROOT } else { FileId(node) }
}

/// The node of a file.
pub fn node_of(file: FileId) -> u64 {
    if file == FileId::ROOT { ROOT_NODE } else { file.0 }
}

impl Mounted {
    /// Closes files that no program has open.
    pub fn close_all(&self, left: &[File]) {
        if !left.is_empty() {
            self.client.run(async |_, files| close_all(files, left).await);
        }
    }

    /// Serves requests that come by a port until the file system is not mounted any more.
    pub fn serve(&self, port: &mut impl Port) -> io::Result<()> {
        loop {
            match port.wait()? {
                Taken::Nothing => {}
                Taken::Ended => break,
                Taken::Message(first) => {
                    let served =
                        self.client.run(async |reactor, files| self.serve_from(reactor, files, port, first).await);
                    if served? {
                        break;
                    }
                }
            }
        }
        self.interrupts.close();
        Ok(())
    }

    /// Serves a request, and others as long as any is under way. True if the file system is not mounted any more.
    async fn serve_from(
        &self,
        reactor: &Reactor,
        files: &FileSystem,
        port: &mut impl Port,
        first: Message,
    ) -> io::Result<bool> {
        let mut under_way: FuturesUnordered<UnderWay<'_>> = FuturesUnordered::new();
        let mut doorbell: Option<Doorbell> = None;
        let mut next = Some(first);
        let (mut has_ended, mut taken_in_row) = (false, 0);
        loop {
            if let Some(message) = next.take() {
                taken_in_row += 1;
                let mut work = self.begin(files, message);
                // Most requests end at the first step.
                match poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
                    Poll::Ready(reply) => port.reply(reply)?,
                    Poll::Pending => under_way.push(work),
                }
            }
            let room = UNDER_WAY_MAX + self.interrupts.waiting_count();
            let may_take = !has_ended && under_way.len() < room;
            if may_take && (port.looks_are_free() || !under_way.is_empty()) {
                if let Some(doorbell) = &doorbell {
                    doorbell.clear();
                }
                match port.take()? {
                    Taken::Message(message) => next = Some(message),
                    Taken::Ended => {
                        has_ended = true;
                        self.interrupts.close();
                    }
                    Taken::Nothing => {}
                }
            }
            if under_way.is_empty() && next.is_none() {
                return Ok(has_ended);
            }
            port.flush()?;
            if next.is_some() && taken_in_row < TAKEN_IN_ROW_MAX {
                continue;
            }
            taken_in_row = 0;
            if next.is_some() {
                // Others get their turn, and those under way.
                reactor.yield_now().await;
                let ended = poll_fn(|context| Poll::Ready(under_way.poll_next_unpin(context))).await;
                if let Poll::Ready(Some(reply)) = ended {
                    port.reply(reply)?;
                }
                continue;
            }
            if doorbell.is_none()
                && let Some(descriptor) = port.descriptor()?
            {
                doorbell = Some(reactor.doorbell(descriptor)?);
            }
            let rings = doorbell.as_ref().filter(|_| may_take && !has_ended);
            let ended = poll_fn(|context| {
                if let Poll::Ready(Some(reply)) = under_way.poll_next_unpin(context) {
                    return Poll::Ready(Some(reply));
                }
                rings.map_or(Poll::Pending, |doorbell| doorbell.poll_rung(context).map(|()| None))
            });
            if let Some(reply) = ended.await {
                port.reply(reply)?;
            }
        }
    }

    fn begin<'w>(&'w self, files: &'w FileSystem, mut message: Message) -> UnderWay<'w> {
        let mut work = Work { mounted: self, files, output: Output::default() };
        Box::pin(async move {
            let is_change = self.keeping.is_on() && changes_something(message.header.opcode);
            if is_change {
                self.keeping.begin_change();
            }
            let handled = work.handle(&mut message).await;
            if is_change {
                self.keeping.end_change();
            }
            match handled {
                Err(Errno(libc::ESTALE)) => self.held.note_misled(message.header.pid),
                Err(errno) if changes_something(message.header.opcode) && !errno.says_what_happened() => {
                    self.keeping.doubt(files.reactor(), files.options().timeout_ms * NANOS_PER_MS).await;
                }
                _ => {}
            }
            Reply { message, output: work.output, handled }
        })
    }

    /// A port of the device, for one thread.
    pub fn device_port(&self) -> DevicePort {
        DevicePort::new(&self.device)
    }
}

/// Whether a request may change something that the kernel keeps.
fn changes_something(operation: u32) -> bool {
    matches!(
        operation,
        opcode::SETATTR
            | opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::LINK
            | opcode::OPEN
            | opcode::CREATE
            | opcode::TMPFILE
            | opcode::WRITE
            | opcode::FALLOCATE
            | opcode::COPY_FILE_RANGE
            | opcode::COPY_FILE_RANGE_64
            | opcode::SETXATTR
            | opcode::REMOVEXATTR
    )
}

/// Closes files that no program has open.
pub async fn close_all(files: &FileSystem, left: &[File]) {
    for file in left {
        files.close(file).await;
    }
}

impl Work<'_> {
    /// Does a piece of work on behalf of a user.
    pub async fn run_as<R>(&self, user: &Credentials, work: impl AsyncFnOnce(&FileSystem) -> R) -> R {
        let mounted = self.mounted;
        // Of the superuser's groups none counts.
        let same_groups = user.is_root() || user.groups == mounted.user.groups;
        let own = (user.uid, user.gid) == (mounted.user.uid, mounted.user.gid) && same_groups;
        match own {
            true => work(self.files).await,
            false => work(&self.files.acting_as(user.clone(), 0)).await,
        }
    }

    /// Does a piece of work for which it does not matter who asks.
    pub async fn run<R>(&self, work: impl AsyncFnOnce(&FileSystem) -> R) -> R {
        work(self.files).await
    }

    /// Does a piece of work on behalf of the caller. Where that is refused and the caller has got other groups since
    /// they were looked up, it is tried with these.
    pub async fn for_caller<R>(
        &self,
        header: &Header,
        work: impl AsyncFn(&FileSystem) -> client::Result<R>,
    ) -> client::Result<R> {
        let callers = &self.mounted.callers;
        let user = callers.of(header);
        match self.run_as(&user, &work).await {
            Err(error)
                if matches!(error.status, Status::AccessDenied | Status::NotPermitted)
                    && callers.changed(header, &user) =>
            {
                self.run_as(&callers.of(header), &work).await
            }
            other => other,
        }
    }

    /// Nothing is kept of nodes but what the kernel may keep itself.
    fn forget(&self, header: &Header, mut input: Input<'_>) -> Handled {
        let now = self.files.reactor().now();
        if header.opcode == opcode::FORGET {
            self.mounted.keeping.note_forgotten(header.node, now);
        } else if self.mounted.keeping.is_on() {
            for node in input.forgotten_nodes()? {
                self.mounted.keeping.note_forgotten(node, now);
            }
        }
        Ok(Answer::None)
    }

    /// To be asked before what the kernel may keep is asked for.
    pub fn begin_keeping(&self) -> Option<Beginning> {
        match self.mounted.keeping.is_on() {
            true => self.mounted.keeping.begin(self.files.reactor().now()),
            false => None,
        }
    }

    /// For how long the kernel may keep an entry of a directory that was learnt since; nanoseconds.
    pub async fn entry_validity(&self, parent: FileId, beginning: Option<Beginning>) -> Nanos {
        if beginning.is_none() || !self.may_keep_beneath(parent).await {
            return 0;
        }
        self.mounted.keeping.entry_validity(beginning, self.files.reactor().now())
    }

    /// The same of attributes, which the kernel is told now.
    pub fn attribute_validity(&self, beginning: Option<Beginning>, attributes: &Attributes) -> Nanos {
        if beginning.is_none() || !may_keep(attributes) {
            return 0;
        }
        let node = node_of(attributes.id);
        self.mounted.keeping.attribute_validity(beginning, node, self.files.reactor().now())
    }

    /// Whether the kernel may keep entries of a directory: everybody who may use the mount may search it.
    pub async fn may_keep_beneath(&self, directory: FileId) -> bool {
        let keeping = &self.mounted.keeping;
        let alone = (!keeping.serves_others).then_some(self.mounted.user.uid);
        !keeping.is_on() || self.files.is_searchable_by_all(directory, alone).await
    }

    async fn handle(&mut self, message: &mut Message) -> Handled {
        let header = &message.header.clone();
        if header.opcode == opcode::READ {
            return self.read(message).await;
        }
        let input: Input<'_> = message.input();
        match header.opcode {
            opcode::LOOKUP => self.look_up(header, input).await,
            opcode::FORGET | opcode::BATCH_FORGET => self.forget(header, input),
            opcode::NOTIFY_REPLY => Ok(Answer::None),
            opcode::GETATTR => self.get_attributes(header, input).await,
            opcode::SETATTR => self.set_attributes(header, input).await,
            opcode::READLINK => self.read_link(header).await,
            opcode::SYMLINK => self.make_symlink(header, input).await,
            opcode::MKNOD => self.make_node(header, input).await,
            opcode::MKDIR => self.make_directory(header, input).await,
            opcode::UNLINK => self.unlink(header, input).await,
            opcode::RMDIR => self.remove_directory(header, input).await,
            opcode::RENAME => self.rename(header, input).await,
            opcode::RENAME2 => self.rename_with_flags(header, input).await,
            opcode::LINK => self.link(header, input).await,
            opcode::OPEN => self.open(header, input).await,
            opcode::CREATE => self.create(header, input).await,
            opcode::TMPFILE => self.make_temporary(header, input).await,
            opcode::WRITE => self.write(header, input).await,
            opcode::FLUSH => self.flush(header, input).await,
            opcode::RELEASE => self.release(input).await,
            opcode::FSYNC => self.synchronise(input).await,
            opcode::FALLOCATE => self.allocate(input).await,
            opcode::LSEEK => self.seek(input).await,
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => self.copy_range(header, input).await,
            opcode::OPENDIR => self.open_directory(header, input).await,
            opcode::READDIR => self.read_directory(header, input, false).await,
            opcode::READDIRPLUS => self.read_directory(header, input, true).await,
            opcode::RELEASEDIR => self.close_directory(input),
            opcode::FSYNCDIR | opcode::SYNCFS => self.synchronise_all().await,
            opcode::STATFS => self.stat_file_system().await,
            opcode::ACCESS => self.access(header, input).await,
            opcode::GETXATTR => self.get_extended(header, input).await,
            opcode::SETXATTR => self.set_extended(header, input).await,
            opcode::LISTXATTR => self.list_extended(header, input).await,
            opcode::REMOVEXATTR => self.remove_extended(header, input).await,
            opcode::GETLK => self.test_lock(header, input).await,
            opcode::SETLK => self.set_lock(header, input, false).await,
            opcode::SETLKW => self.set_lock(header, input, true).await,
            opcode::INTERRUPT => self.interrupt(input),
            // Nothing of the mount is told to anybody any more.
            opcode::DESTROY => Ok(Answer::Output),
            _ => Err(Errno(libc::ENOSYS)),
        }
    }
}
