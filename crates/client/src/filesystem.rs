//! The async face, and what concerns the cluster as a whole. Names, inodes and listings are in `names/`, bytes in
//! `bytes/`.

use crate::error::{Error, RequestError, Result};
use crate::open_files::file::File;
use crate::options::Options;
use crate::servers::counters::END_WAIT_MAX;
use crate::servers::join::join_all;
use crate::servers::{Actor, Servers, Traffic};
use reactor::{Class, Reactor};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::task::Poll;
use wire::credentials::Credentials;
use wire::messages::{
    BackingShare, BackingSpace, CarryTime, Empty, FileSystemReply, StatisticsFormat, StatisticsRequest,
};
use wire::{Cluster, Decode, Operation, Status};

/// A client's view of one cluster: one session, one channel to each server it talks to, one directory cache. Clones
/// share all of it. Paths are bytes, relative to the file system's root with or without a slash in front.
///
/// Dropping the future of an operation that changes something leaves open whether it is applied.
#[derive(Clone)]
pub struct FileSystem {
    pub(crate) servers: Rc<Servers>,
}

impl FileSystem {
    /// A file system that has not talked to anyone yet; connections are made when first used.
    pub fn new(reactor: &Reactor, cluster: Rc<Cluster>, options: Options) -> FileSystem {
        let umask = Arc::new(AtomicU32::new(options.umask));
        FileSystem::with_umask(reactor, cluster, options, umask)
    }

    /// One whose umask others may have a share in.
    pub(crate) fn with_umask(
        reactor: &Reactor,
        cluster: Rc<Cluster>,
        options: Options,
        umask: Arc<AtomicU32>,
    ) -> FileSystem {
        FileSystem { servers: Servers::new(reactor, cluster, options, umask) }
    }

    /// The same file system on behalf of another user: with one session, one connection to each server, and files,
    /// locks and directories that are shared. For programs that serve many users. `umask` takes the place of the
    /// client's.
    pub fn acting_as(&self, user: Credentials, umask: u32) -> FileSystem {
        self.acting(Arc::new(Actor { user, umask: umask & 0o777 }))
    }

    pub(crate) fn acting(&self, actor: Arc<Actor>) -> FileSystem {
        FileSystem { servers: self.servers.acting_as(actor) }
    }

    /// The file system as a child has it that this process forks now: with a session of its own, and all that was known
    /// of directories to be learnt anew. For simulations; a real child gets one by itself.
    #[doc(hidden)]
    pub fn forked(&self) -> FileSystem {
        let options = Options { session: None, ..self.options().clone() };
        FileSystem::new(self.reactor(), self.cluster().clone(), options)
    }

    /// Whether its session has a file open, which a child has only once it has used it.
    #[doc(hidden)]
    pub fn has_registered(&self, file: &File) -> bool {
        self.servers.has_registered(file)
    }

    /// On whose behalf it acts.
    pub fn user(&self) -> &Credentials {
        self.servers.user()
    }

    /// Sets the permission bits that new files and directories do not get, and returns what they were before.
    pub fn set_umask(&self, umask: u32) -> u32 {
        self.servers.set_umask(umask)
    }

    pub fn cluster(&self) -> &Rc<Cluster> {
        &self.servers.cluster
    }

    pub fn options(&self) -> &Options {
        &self.servers.options
    }

    pub fn reactor(&self) -> &Reactor {
        &self.servers.reactor
    }

    pub fn server_count(&self) -> u32 {
        self.servers.server_count()
    }

    /// Whether a server runs on this machine.
    pub fn is_local(&self, server: u32) -> bool {
        self.servers.is_here(server)
    }

    /// The number of this client's session.
    pub fn session(&self) -> u64 {
        self.servers.session()
    }

    /// Requests sent so far, those sent again over a new connection not counted twice.
    pub fn round_trips(&self) -> u64 {
        self.servers.round_trips()
    }

    /// What was sent and received so far.
    pub fn traffic(&self) -> Traffic {
        self.servers.traffic()
    }

    /// How often a server had forgotten this client's session because it heard nothing for its grace time. Files
    /// without a name that were open then are gone.
    pub fn sessions_lost(&self) -> u64 {
        self.servers.sessions_lost()
    }

    /// Forgets all resolved directories: the next use of each costs a round trip.
    pub fn forget_directories(&self) {
        self.servers.cache.borrow_mut().forget_all();
    }

    fn check_server(&self, server: u32) -> Result<()> {
        if server < self.server_count() {
            return Ok(());
        }
        let count = self.server_count();
        Err(Error::new(
            Status::Invalid,
            format!("there is no server {server}: the cluster has servers 0 to {}", count - 1),
        ))
    }

    /// Ends the use of a handle from where nothing can be waited for.
    pub fn close_later(&self, file: &File) {
        let (files, file) = (self.clone(), file.clone());
        self.servers.note_close_coming(&file);
        self.servers.reactor.spawn(Class::Metadata, async move { files.close(&file).await });
    }

    /// Returns when all servers know what was closed, and what this client has counted.
    pub async fn finish(&self) {
        self.servers.settle_closes().await;
        self.servers.tell_counters_and_wait().await;
    }

    /// To be called before the process ends: does what comes `last`, and then nothing any more with this file system or
    /// one that shares its session. Servers forget what they keep for a client that may come back, which they do after
    /// the grace time else. Returns when they have, after a second at most.
    pub async fn end(&self, last: impl Future<Output = ()>) {
        let told = async {
            last.await;
            self.servers.settle_closes().await;
            self.servers.end().await;
        };
        let (mut told, mut late) = (pin!(told), pin!(self.servers.reactor.sleep(END_WAIT_MAX)));
        poll_fn(|context| match told.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => late.as_mut().poll(context),
        })
        .await;
    }

    /// Asks a server for a sign of life.
    pub async fn ping(&self, server: u32) -> Result<()> {
        self.check_server(server)?;
        self.servers
            .ask(server, Operation::Ping, &Empty {})
            .await
            .map_err(|request_error| about_server(request_error, server))?;
        Ok(())
    }

    /// Asks a server to stop cleanly; returns when it has agreed.
    pub async fn shutdown(&self, server: u32) -> Result<()> {
        self.check_server(server)?;
        self.servers
            .ask(server, Operation::Shutdown, &Empty {})
            .await
            .map_err(|request_error| about_server(request_error, server))?;
        Ok(())
    }

    /// A server's statistics as text. Formats: 0 JSON of the counters and the last sample, 1 Prometheus, 2 JSON with
    /// all kept samples.
    pub async fn server_statistics(&self, server: u32, format: StatisticsFormat) -> Result<String> {
        self.check_server(server)?;
        let request = StatisticsRequest { format };
        let reply = self.servers.ask(server, Operation::Statistics, &request).await;
        let reply = reply.map_err(|request_error| about_server(request_error, server))?;
        Ok(String::from_utf8_lossy(&reply.body).into_owned())
    }

    /// Space and counts of every server, in their order; all are asked at once.
    pub async fn stat_file_system(&self) -> Result<Vec<FileSystemReply>> {
        let replies = join_all((0..self.server_count()).map(|server| self.stat_server(server))).await;
        replies.into_iter().collect()
    }

    /// Space and counts of one server.
    pub async fn stat_server(&self, server: u32) -> Result<FileSystemReply> {
        self.check_server(server)?;
        let operation = Operation::StatFileSystem;
        let reply = self.servers.ask(server, operation, &Empty {}).await;
        let reply = reply.map_err(|request_error| about_server(request_error, server))?;
        FileSystemReply::from_bytes(&reply.params)
            .map_err(|malformed| about_server(RequestError::malformed(operation, server, malformed), server))
    }
}

pub(crate) fn about_server(request_error: RequestError, server: u32) -> Error {
    match request_error {
        RequestError::Server(failure) => Error::new(failure.status, failure.to_string()),
        RequestError::Local(status, words) => Error::new(status, format!("server {server}: {words}")),
    }
}

/// The sum over all servers; of the backing tree's file system what the one says that knows.
pub fn total(servers: &[FileSystemReply]) -> FileSystemReply {
    let mut sum =
        FileSystemReply { bytes_total: 0, bytes_free: 0, inodes: 0, chunks: 0, journal_bytes: 0, backing: None };
    for server in servers {
        sum.bytes_total = sum.bytes_total.saturating_add(server.bytes_total);
        sum.bytes_free = sum.bytes_free.saturating_add(server.bytes_free);
        sum.inodes = sum.inodes.saturating_add(server.inodes);
        sum.chunks = sum.chunks.saturating_add(server.chunks);
        sum.journal_bytes = sum.journal_bytes.saturating_add(server.journal_bytes);
        if let Some(share) = &server.backing {
            let all = sum.backing.get_or_insert(BackingShare { bytes_clean: 0, ..share.clone() });
            all.bytes_clean = all.bytes_clean.saturating_add(share.bytes_clean);
            all.space = all.space.or(share.space);
        }
    }
    sum
}

/// What statfs(2) says of a cluster. In bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    pub free: u64,
    /// What may still be written.
    pub available: u64,
}

impl Space {
    /// Of the sum of all servers. A cluster over a backing tree shows the file system of that, for what is written gets
    /// there in the end; where it gets there only when somebody asks, no more may be written than there is room here,
    /// what is clean included. Where nothing gets there, or that file system does not answer, the stores are all.
    pub fn of(sum: &FileSystemReply) -> Space {
        let clean = sum.backing.as_ref().map_or(0, |backing| backing.bytes_clean);
        let room = sum.bytes_free.saturating_add(clean).min(sum.bytes_total);
        let behind = sum.backing.as_ref().and_then(|backing| Some((backing.carries, backing.space?)));
        match behind {
            Some((CarryTime::ByItself, BackingSpace { bytes_total: total, bytes_free: free })) => {
                Space { total, free, available: free }
            }
            Some((CarryTime::Asked, BackingSpace { bytes_total: total, bytes_free: free })) => {
                Space { total, free, available: free.min(room) }
            }
            Some((CarryTime::Never, _)) | None => Space { total: sum.bytes_total, free: room, available: room },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(free: u64, clean: u64, carries: CarryTime, space: Option<BackingSpace>) -> FileSystemReply {
        let backing = Some(BackingShare { bytes_clean: clean, carries, space });
        FileSystemReply { bytes_total: 100, bytes_free: free, inodes: 1, chunks: 2, journal_bytes: 3, backing }
    }

    /// Goal: a cluster shows the file system behind where what is written gets there, and its own room where not.
    #[test]
    fn space_of_both_sides() {
        let behind = Some(BackingSpace { bytes_total: 1000, bytes_free: 400 });
        let space = |carries, behind| {
            let sum = total(&[server(10, 20, carries, None), server(30, 40, carries, behind)]);
            let Space { total, free, available } = Space::of(&sum);
            [total, free, available]
        };
        assert_eq!(space(CarryTime::ByItself, behind), [1000, 400, 400]);
        assert_eq!(space(CarryTime::Asked, behind), [1000, 400, 100]);
        assert_eq!(space(CarryTime::Never, behind), [200, 100, 100]);
        assert_eq!(space(CarryTime::ByItself, None), [200, 100, 100], "it does not answer");
        let own = FileSystemReply { backing: None, ..server(10, 0, CarryTime::Never, None) };
        assert_eq!(Space::of(&total(&[own])), Space { total: 100, free: 10, available: 10 });
    }
}
