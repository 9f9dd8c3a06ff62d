//! From a request to its reply: what all threads of a mount share, and the loop that each of them runs.
//!
//! A thread reads a request, does what it asks for with the blocking face of the client, and writes the reply. Whatever
//! may take longer than the client's deadline, which is waiting for a lock, is left to the thread of `waiting.rs`; so
//! no number of programs that wait for locks keeps others from being served. Who waits for a server that does not
//! answer is stood in for by another thread (`crew.rs`).

use crate::caller::Callers;
use crate::crew::{Crew, Seat};
use crate::device::{Device, REQUEST_SIZE_MAX};
use crate::errno::Errno;
use crate::failed::FailedLookUps;
use crate::handles::Handles;
use crate::held::HeldNodes;
use crate::listing::Listing;
use crate::locks::LockOwners;
use crate::open_file::OpenFile;
use crate::protocol::{self, Header, Input, Output, opcode};
use crate::seen::SeenDirectories;
use crate::waiting::WaitingRoom;
use client::{Client, Credentials, File, FileSystem, Status};
use std::io;
use wire::FileId;

/// What all threads of one mount share.
pub struct Mounted {
    pub client: Client,
    /// Who runs the mount.
    pub user: Credentials,
    pub device: Device,
    pub callers: Callers,
    pub files: Handles<OpenFile>,
    pub listings: Handles<Listing>,
    pub directories: SeenDirectories,
    pub held: HeldNodes,
    pub failed: FailedLookUps,
    pub owners: LockOwners,
    pub waiting: WaitingRoom,
    pub crew: Crew,
}

/// What a request came to.
pub enum Answer {
    /// The kernel expects none, or somebody else gives it.
    None,
    /// What the thread's output holds.
    Output,
    /// So many bytes at the front of the thread's data.
    Data(usize),
}

pub type Handled = Result<Answer, Errno>;

/// A thread that serves a mount.
pub struct Worker<'m> {
    pub mounted: &'m Mounted,
    pub output: Output,
    /// What is read for the kernel.
    pub data: Vec<u8>,
}

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
    /// Runs a piece of work on the client on behalf of a user.
    pub fn run_as<R: Send>(&self, user: &Credentials, work: impl AsyncFnOnce(&FileSystem) -> R + Send) -> R {
        // Of the superuser's groups none counts.
        let same_groups = user.is_root() || user.groups == self.user.groups;
        let own = (user.uid, user.gid) == (self.user.uid, self.user.gid) && same_groups;
        self.client.run(async |_, files| match own {
            true => work(files).await,
            false => work(&files.acting_as(user.clone(), 0)).await,
        })
    }

    /// Runs a piece of work on the client for which it does not matter who asks.
    pub fn run<R: Send>(&self, work: impl AsyncFnOnce(&FileSystem) -> R + Send) -> R {
        self.client.run(async |_, files| work(files).await)
    }

    /// Closes files that no program has open.
    pub fn close_all(&self, left: &[File]) {
        if !left.is_empty() {
            self.run(async |files| {
                for file in left {
                    files.close(file).await;
                }
            });
        }
    }

    /// Runs a piece of work on behalf of the caller. Where that is refused and the caller has got other groups since
    /// they were looked up, it is tried with these.
    pub fn for_caller<R: Send>(
        &self,
        header: &Header,
        work: impl AsyncFn(&FileSystem) -> client::Result<R> + Send + Sync,
    ) -> client::Result<R> {
        let user = self.callers.of(header);
        match self.run_as(&user, &work) {
            Err(error)
                if matches!(error.status, Status::AccessDenied | Status::NotPermitted)
                    && self.callers.changed(header, &user) =>
            {
                self.run_as(&self.callers.of(header), &work)
            }
            other => other,
        }
    }
}

impl<'m> Worker<'m> {
    pub fn new(mounted: &'m Mounted) -> Worker<'m> {
        Worker { mounted, output: Output::default(), data: Vec::new() }
    }

    /// Serves requests until the file system is not mounted any more, or there are more threads than it takes.
    pub fn serve(&mut self, seat: &Seat) -> io::Result<()> {
        let mut buffer = vec![0; REQUEST_SIZE_MAX];
        while let Some(size) = self.mounted.device.receive(&mut buffer)? {
            let Ok((header, input)) = protocol::split(&buffer[..size]) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel sent a request without a header"));
            };
            if header.opcode == opcode::DESTROY {
                self.mounted.device.reply_errno(header.unique, 0);
                return Ok(());
            }
            self.output.clear();
            self.mounted.crew.begin(seat);
            let handled = self.handle(&header, input);
            let device = &self.mounted.device;
            match handled {
                Ok(Answer::None) => {}
                Ok(Answer::Output) => device.reply(header.unique, self.output.as_slice()),
                Ok(Answer::Data(size)) => device.reply(header.unique, &self.data[..size]),
                Err(Errno(errno)) => {
                    if errno == libc::ESTALE {
                        self.mounted.held.note_misled(header.pid);
                    }
                    device.reply_errno(header.unique, errno);
                }
            }
            if self.mounted.crew.end(seat) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn handle(&mut self, header: &Header, input: Input<'_>) -> Handled {
        match header.opcode {
            opcode::LOOKUP => self.look_up(header, input),
            // Nothing is kept of nodes, so there is nothing to forget.
            opcode::FORGET | opcode::BATCH_FORGET => Ok(Answer::None),
            opcode::GETATTR => self.get_attributes(header, input),
            opcode::SETATTR => self.set_attributes(header, input),
            opcode::READLINK => self.read_link(header),
            opcode::SYMLINK => self.make_symlink(header, input),
            opcode::MKNOD => self.make_node(header, input),
            opcode::MKDIR => self.make_directory(header, input),
            opcode::UNLINK => self.unlink(header, input),
            opcode::RMDIR => self.remove_directory(header, input),
            opcode::RENAME => self.rename(header, input),
            opcode::RENAME2 => self.rename_with_flags(header, input),
            opcode::LINK => self.link(header, input),
            opcode::OPEN => self.open(header, input),
            opcode::CREATE => self.create(header, input),
            opcode::TMPFILE => self.make_temporary(header, input),
            opcode::READ => self.read(input),
            opcode::WRITE => self.write(input),
            opcode::FLUSH => self.flush(header, input),
            opcode::RELEASE => self.release(input),
            opcode::FSYNC => self.synchronise(input),
            opcode::FALLOCATE => self.allocate(input),
            opcode::LSEEK => self.seek(input),
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => self.copy_range(header, input),
            opcode::OPENDIR => self.open_directory(header, input),
            opcode::READDIR => self.read_directory(header, input, false),
            opcode::READDIRPLUS => self.read_directory(header, input, true),
            opcode::RELEASEDIR => self.close_directory(input),
            opcode::FSYNCDIR | opcode::SYNCFS => self.synchronise_all(),
            opcode::STATFS => self.stat_file_system(),
            opcode::ACCESS => self.access(header, input),
            opcode::GETXATTR => self.get_extended(header, input),
            opcode::SETXATTR => self.set_extended(header, input),
            opcode::LISTXATTR => self.list_extended(header, input),
            opcode::REMOVEXATTR => self.remove_extended(header, input),
            opcode::GETLK => self.test_lock(header, input),
            opcode::SETLK => self.set_lock(header, input, false),
            opcode::SETLKW => self.set_lock(header, input, true),
            opcode::INTERRUPT => self.interrupt(input),
            _ => Err(Errno(libc::ENOSYS)),
        }
    }
}
