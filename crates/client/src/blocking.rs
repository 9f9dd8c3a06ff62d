//! The blocking face: any number of threads share one reactor, one session and one directory cache.

use crate::bytes::ranges::Allocation;
use crate::bytes::stripe::FileRange;
use crate::error::{Error, Result};
use crate::filesystem::FileSystem;
use crate::names::directory::{DirectoryEntry, DirectoryStream};
use crate::names::inodes::{AttributeChanges, Timestamp};
use crate::names::listing::DirectoryListing;
use crate::names::search::{FoundPage, Search, SearchStream};
use crate::open_files::file::{File, OpenHow};
use crate::open_files::locks::Locker;
use crate::options::{Options, own_cluster};
use crate::servers::Actor;
use reactor::{Reactor, Shared};
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use wire::credentials::Credentials;
use wire::messages::StatisticsFormat;
use wire::messages::{FileSystemReply, HeldLock, LockRange};
use wire::{Attributes, Cluster, FileId, Kind, Status};

/// A client for all threads of a process. Clones share it. It starts no thread; a child after fork gets a session and
/// connections of its own, and the files that were open stay usable in both.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared<FileSystem>>,
    cluster: Arc<Cluster>,
    options: Arc<Options>,
    /// Who is acted for, when that is not the client's own user.
    actor: Option<Arc<Actor>>,
}

impl Client {
    /// A client of a cluster. Connections are made when first used. Errors: `Io` when the kernel gives no descriptor.
    pub fn connect(cluster: Cluster, options: Options) -> Result<Client> {
        let cluster = Arc::new(cluster);
        let (template, kept) = (cluster.clone(), Arc::new(options.clone()));
        let umask = Arc::new(AtomicU32::new(options.umask));
        let shared = Shared::new(move |reactor: &Reactor| {
            FileSystem::with_umask(reactor, Rc::new((*template).clone()), options.clone(), umask.clone())
        });
        let shared = shared.map_err(|error| Error::new(Status::Io, format!("event loop of the client: {error}")))?;
        Ok(Client { shared: Arc::new(shared), cluster, options: kept, actor: None })
    }

    /// A client of the same cluster with the same options and a session of its own. Errors: as `connect`.
    pub fn another(&self) -> Result<Client> {
        Client::connect((*self.cluster).clone(), Options { session: None, ..(*self.options).clone() })
    }

    /// A client of the cluster of this process (`own_cluster`), with its options.
    pub fn from_environment() -> Result<Client> {
        Client::connect(own_cluster()?, Options::of_this_process()?)
    }

    /// Runs an async piece of work on the client's file system and waits for it.
    pub fn run<R: Send>(&self, work: impl AsyncFnOnce(&Reactor, &FileSystem) -> R + Send) -> R {
        let Some(actor) = &self.actor else { return self.shared.run(work) };
        self.shared
            .run(async |reactor, file_system: &FileSystem| work(reactor, &file_system.acting(actor.clone())).await)
    }

    /// Takes in what servers have answered, for calls that go on by themselves; waits for nothing.
    pub(crate) fn look(&self) {
        self.shared.look();
    }

    /// See `FileSystem::acting_as`.
    pub fn acting_as(&self, user: Credentials, umask: u32) -> Client {
        Client { actor: Some(Arc::new(Actor { user, umask: umask & 0o777 })), ..self.clone() }
    }

    /// Whether this process itself has a client here, not only one that it was forked from, and this thread is in no
    /// call.
    pub(crate) fn is_in_use(&self) -> bool {
        self.shared.is_in_use()
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub fn server_count(&self) -> u32 {
        self.cluster.server_count()
    }

    /// The server of a chunk of an open file.
    pub fn chunk_server(&self, file: &File, chunk_index: u64) -> u32 {
        self.cluster.chunk_server(file.id, &file.layout, chunk_index)
    }

    /// See `FileSystem::is_local`.
    pub fn is_local(&self, server: u32) -> bool {
        self.run(async |_, file_system: &FileSystem| file_system.is_local(server))
    }

    /// Lists a directory; see `FileSystem::read_directory`. `on_entry` may use the client.
    pub fn read_directory(
        &self,
        path: &[u8],
        with_attributes: bool,
        on_entry: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<()> {
        let stream = self.open_directory(path, with_attributes)?;
        self.drain(stream, on_entry)
    }

    /// Lists the share of one server; see `FileSystem::read_directory_server`.
    pub fn read_directory_server(
        &self,
        path: &[u8],
        server: u32,
        with_attributes: bool,
        on_entry: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<()> {
        let stream = self.open_directory_server(path, server, with_attributes)?;
        self.drain(stream, on_entry)
    }

    fn drain(&self, mut stream: DirectoryStream, on_entry: &mut dyn FnMut(&DirectoryEntry) -> bool) -> Result<()> {
        while !stream.is_at_end() {
            for entry in self.next_page(&mut stream)? {
                if !on_entry(&entry) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Blocking twins of the async operations of the same names.
macro_rules! blocking {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {
        impl Client {
            $(
                $(#[$meta])*
                pub fn $name(&self, $($argument: $type),*) -> $result {
                    self.run(async |_, file_system: &FileSystem| file_system.$name($($argument),*).await)
                }
            )*
        }
    };
}

blocking! {
    /// See `FileSystem::open`.
    fn open(path: &[u8], how: &OpenHow) -> Result<File>;
    /// See `FileSystem::open_unchecked`.
    fn open_unchecked(path: &[u8], how: &OpenHow) -> Result<File>;
    /// See `FileSystem::read_at`.
    fn read_at(file: &File, place: &mut [u8], offset: u64) -> Result<usize>;
    /// See `FileSystem::read_vectored_at`.
    fn read_vectored_at(file: &File, places: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize>;
    /// See `FileSystem::write_at`.
    fn write_at(file: &File, bytes: &[u8], offset: u64) -> Result<usize>;
    /// See `FileSystem::write_vectored_at`.
    fn write_vectored_at(file: &File, places: &[IoSlice<'_>], offset: u64) -> Result<usize>;
    /// See `FileSystem::read_list_at`.
    fn read_list_at(file: &File, ranges: &[FileRange], places: &mut [IoSliceMut<'_>]) -> Result<Vec<usize>>;
    /// See `FileSystem::write_list_at`.
    fn write_list_at(file: &File, ranges: &[FileRange], places: &[IoSlice<'_>]) -> Result<usize>;
    /// See `FileSystem::append`.
    fn append(file: &File, bytes: &[u8]) -> Result<u64>;
    /// See `FileSystem::synchronise`.
    fn synchronise(file: &File) -> Result<()>;
    /// See `FileSystem::synchronise_all`.
    fn synchronise_all() -> Result<()>;
    /// See `FileSystem::allocate`.
    fn allocate(file: &File, kind: Allocation, keep_size: bool, offset: u64, size: u64) -> Result<()>;
    /// See `FileSystem::seek_data`.
    fn seek_data(file: &File, offset: u64) -> Result<u64>;
    /// See `FileSystem::seek_hole`.
    fn seek_hole(file: &File, offset: u64) -> Result<u64>;
    /// See `FileSystem::copy_range`.
    fn copy_range(source: &File, from: u64, target: &File, to: u64, size: u64) -> Result<u64>;
    /// See `FileSystem::close`.
    fn close(file: &File) -> ();
    /// See `FileSystem::stat`.
    fn stat(path: &[u8]) -> Result<Attributes>;
    /// See `FileSystem::lstat`.
    fn lstat(path: &[u8]) -> Result<Attributes>;
    /// See `FileSystem::stat_whole`.
    fn stat_whole(path: &[u8], follow: bool) -> Result<Attributes>;
    /// See `FileSystem::access`.
    fn access(path: &[u8], wanted: u8, user: Option<&Credentials>) -> Result<()>;
    /// See `FileSystem::stat_file`.
    fn stat_file(file: &File) -> Result<Attributes>;
    /// See `FileSystem::stat_id`.
    fn stat_id(id: FileId) -> Result<Attributes>;
    /// See `FileSystem::stat_entry`.
    fn stat_entry(entry: &DirectoryEntry) -> Result<Attributes>;
    /// See `FileSystem::set_attributes`.
    fn set_attributes(path: &[u8], follow: bool, changes: &AttributeChanges) -> Result<Attributes>;
    /// See `FileSystem::set_file_attributes`.
    fn set_file_attributes(file: &File, changes: &AttributeChanges) -> Result<Attributes>;
    /// See `FileSystem::chmod`.
    fn chmod(path: &[u8], mode: u32) -> Result<Attributes>;
    /// See `FileSystem::chown`.
    fn chown(path: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<Attributes>;
    /// See `FileSystem::utimens`.
    fn utimens(path: &[u8], atime: Timestamp, mtime: Timestamp) -> Result<Attributes>;
    /// See `FileSystem::lock`.
    fn lock(file: &File, locker: Locker, range: LockRange, exclusive: bool) -> Result<()>;
    /// See `FileSystem::try_lock`.
    fn try_lock(file: &File, locker: Locker, range: LockRange, exclusive: bool) -> Result<()>;
    /// See `FileSystem::unlock`.
    fn unlock(file: &File, locker: Locker, range: LockRange) -> Result<()>;
    /// See `FileSystem::test_lock`.
    fn test_lock(file: &File, locker: Locker, range: LockRange, exclusive: bool) -> Result<Option<HeldLock>>;
    /// See `FileSystem::close_as`.
    fn close_as(file: &File, process: u64) -> ();
    /// See `FileSystem::release_process`.
    fn release_process(file: &File, process: u64) -> ();
    /// See `FileSystem::get_extended`.
    fn get_extended(path: &[u8], follow: bool, name: &[u8]) -> Result<Vec<u8>>;
    /// See `FileSystem::set_extended`.
    fn set_extended(path: &[u8], follow: bool, name: &[u8], value: &[u8], flags: u32) -> Result<()>;
    /// See `FileSystem::list_extended`.
    fn list_extended(path: &[u8], follow: bool) -> Result<Vec<u8>>;
    /// See `FileSystem::remove_extended`.
    fn remove_extended(path: &[u8], follow: bool, name: &[u8]) -> Result<()>;
    /// See `FileSystem::get_file_extended`.
    fn get_file_extended(file: &File, name: &[u8]) -> Result<Vec<u8>>;
    /// See `FileSystem::set_file_extended`.
    fn set_file_extended(file: &File, name: &[u8], value: &[u8], flags: u32) -> Result<()>;
    /// See `FileSystem::list_file_extended`.
    fn list_file_extended(file: &File) -> Result<Vec<u8>>;
    /// See `FileSystem::remove_file_extended`.
    fn remove_file_extended(file: &File, name: &[u8]) -> Result<()>;
    /// See `FileSystem::mkdir`.
    fn mkdir(path: &[u8], mode: u32) -> Result<Attributes>;
    /// See `FileSystem::create_all`.
    fn create_all(path: &[u8], mode: u32) -> Result<()>;
    /// See `FileSystem::rmdir`.
    fn rmdir(path: &[u8]) -> Result<()>;
    /// See `FileSystem::unlink`.
    fn unlink(path: &[u8]) -> Result<()>;
    /// See `FileSystem::symlink`.
    fn symlink(link: &[u8], path: &[u8]) -> Result<Attributes>;
    /// See `FileSystem::make_node`.
    fn make_node(path: &[u8], kind: Kind, mode: u32, device: u32) -> Result<Attributes>;
    /// See `FileSystem::link`.
    fn link(from: &[u8], to: &[u8]) -> Result<()>;
    /// See `FileSystem::link_open`.
    fn link_open(file: &File, path: &[u8]) -> Result<()>;
    /// See `FileSystem::rename`.
    fn rename(from: &[u8], to: &[u8], flags: u32) -> Result<()>;
    /// See `FileSystem::readlink`.
    fn readlink(path: &[u8]) -> Result<Vec<u8>>;
    /// See `FileSystem::truncate`.
    fn truncate(path: &[u8], size: u64) -> Result<Attributes>;
    /// See `FileSystem::truncate_file`.
    fn truncate_file(file: &File, size: u64) -> Result<Attributes>;
    /// See `FileSystem::directory`.
    fn directory(path: &[u8]) -> Result<FileId>;
    /// See `FileSystem::open_directory`.
    fn open_directory(path: &[u8], with_attributes: bool) -> Result<DirectoryStream>;
    /// See `FileSystem::open_directory_server`.
    fn open_directory_server(path: &[u8], server: u32, with_attributes: bool) -> Result<DirectoryStream>;
    /// See `FileSystem::next_page`.
    fn next_page(stream: &mut DirectoryStream) -> Result<Vec<DirectoryEntry>>;
    /// See `FileSystem::complete_entries`.
    fn complete_entries(entries: &mut [DirectoryEntry]) -> Result<()>;
    /// See `FileSystem::open_search`.
    fn open_search(path: &[u8], search: &Search) -> Result<SearchStream>;
    /// See `FileSystem::next_found`.
    fn next_found(stream: &mut SearchStream) -> Result<FoundPage>;
    /// See `FileSystem::is_empty_directory`.
    fn is_empty_directory(path: &[u8]) -> Result<bool>;
    /// See `FileSystem::lookup_at`.
    fn lookup_at(parent: FileId, name: &[u8]) -> Result<Attributes>;
    /// See `FileSystem::open_at`.
    fn open_at(parent: FileId, name: &[u8], how: &OpenHow) -> Result<(File, Attributes)>;
    /// See `FileSystem::open_id`.
    fn open_id(file: FileId, how: &OpenHow, access: u8) -> Result<(File, Attributes)>;
    /// See `FileSystem::open_temporary_at`.
    fn open_temporary_at(parent: FileId, how: &OpenHow) -> Result<(File, Attributes)>;
    /// See `FileSystem::mkdir_at`.
    fn mkdir_at(parent: FileId, name: &[u8], mode: u32) -> Result<Attributes>;
    /// See `FileSystem::symlink_at`.
    fn symlink_at(link: &[u8], parent: FileId, name: &[u8]) -> Result<Attributes>;
    /// See `FileSystem::make_node_at`.
    fn make_node_at(parent: FileId, name: &[u8], kind: Kind, mode: u32, device: u32) -> Result<Attributes>;
    /// See `FileSystem::link_id`.
    fn link_id(file: FileId, parent: FileId, name: &[u8]) -> Result<()>;
    /// See `FileSystem::unlink_at`.
    fn unlink_at(parent: FileId, name: &[u8]) -> Result<()>;
    /// See `FileSystem::rmdir_at`.
    fn rmdir_at(parent: FileId, name: &[u8]) -> Result<()>;
    /// See `FileSystem::rename_at`.
    fn rename_at(from_parent: FileId, from: &[u8], to_parent: FileId, to: &[u8], flags: u32) -> Result<()>;
    /// See `FileSystem::set_attributes_id`.
    fn set_attributes_id(id: FileId, changes: &AttributeChanges) -> Result<Attributes>;
    /// See `FileSystem::readlink_id`.
    fn readlink_id(id: FileId) -> Result<Vec<u8>>;
    /// See `FileSystem::access_id`.
    fn access_id(id: FileId, wanted: u8) -> Result<()>;
    /// See `FileSystem::get_extended_id`.
    fn get_extended_id(id: FileId, name: &[u8]) -> Result<Vec<u8>>;
    /// See `FileSystem::set_extended_id`.
    fn set_extended_id(id: FileId, name: &[u8], value: &[u8], flags: u32) -> Result<()>;
    /// See `FileSystem::list_extended_id`.
    fn list_extended_id(id: FileId) -> Result<Vec<u8>>;
    /// See `FileSystem::remove_extended_id`.
    fn remove_extended_id(id: FileId, name: &[u8]) -> Result<()>;
    /// See `FileSystem::open_directory_id`.
    fn open_directory_id(directory: FileId) -> Result<DirectoryListing>;
    /// See `FileSystem::entries_from`.
    fn entries_from(
        listing: &mut DirectoryListing,
        position: u64,
        count_max: usize,
        with_attributes: bool,
    ) -> Result<Vec<DirectoryEntry>>;
    /// See `FileSystem::stat_file_system`.
    fn stat_file_system() -> Result<Vec<FileSystemReply>>;
    /// See `FileSystem::stat_server`.
    fn stat_server(server: u32) -> Result<FileSystemReply>;
    /// See `FileSystem::server_statistics`.
    fn server_statistics(server: u32, format: StatisticsFormat) -> Result<String>;
    /// See `FileSystem::ping`.
    fn ping(server: u32) -> Result<()>;
    /// See `FileSystem::shutdown`.
    fn shutdown(server: u32) -> Result<()>;
}

impl Client {
    /// On whose behalf it acts.
    pub fn user(&self) -> Credentials {
        self.run(async |_, file_system: &FileSystem| file_system.user().clone())
    }

    /// See `FileSystem::set_umask`.
    pub fn set_umask(&self, umask: u32) -> u32 {
        self.run(async |_, file_system: &FileSystem| file_system.set_umask(umask))
    }

    /// See `FileSystem::round_trips`.
    pub fn round_trips(&self) -> u64 {
        self.run(async |_, file_system: &FileSystem| file_system.round_trips())
    }
}

const _: () = {
    const fn is_shareable<T: Send + Sync + Clone>() {}
    is_shareable::<Client>();
    is_shareable::<File>();
    is_shareable::<DirectoryStream>();
};
