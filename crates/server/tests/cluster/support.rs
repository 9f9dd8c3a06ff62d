//! A small cluster in a simulated world, and a caller that speaks the protocol by hand.

use reactor::channel::Turnabout;
use reactor::sim::{CrashKind, NodeId, World};
use reactor::{Call, Channel, ChannelOptions, Class, Failure, Nanos, Reactor, Reply};
use server::{Audit, ConflictPolicy, FlushPolicy, Flushing, ReadLeasing, Server, ServerOptions};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use wire::handshake::Role;
use wire::messages::*;
use wire::{
    Attributes, Cluster, Decode, Encode, FileId, Kind, Layout, LayoutWish, Name, Operation, Placement, ServerAddress,
    Status, cluster,
};

pub const SECOND: Nanos = 1_000_000_000;
pub const LIMIT: Nanos = 600 * SECOND;
/// Directory of each server's store, on a disk of its own.
pub const DIRECTORY: &str = "store";

type Slot = Rc<RefCell<Option<Server>>>;
/// Fills the site of a world.
type Fill<'f> = Box<dyn FnOnce(&World) + 'f>;

/// Nothing goes back but by a flush that somebody asks for.
pub const MANUAL: Flushing = Flushing {
    policy: FlushPolicy::Manual,
    idle: 0,
    age: 300 * SECOND,
    rate: 0,
    writers: 16,
    on_conflict: ConflictPolicy::Both,
    grace: 20 * SECOND,
    atomic_below: 1 << 20,
    check: 10 * SECOND,
    fsync_carries: false,
};

/// A world with servers and nodes for callers.
pub struct TestCluster {
    pub world: World,
    pub cluster: Rc<Cluster>,
    pub servers: Vec<NodeId>,
    running: Vec<Slot>,
    pub callers: Vec<NodeId>,
    session_grace: Nanos,
    checksums: bool,
    /// The backing directory.
    pub backing: Option<PathBuf>,
    pub flushing: Flushing,
    bounds: server::Bounds,
    timeout: Nanos,
}

impl TestCluster {
    pub fn new(seed: u64, server_count: u32) -> TestCluster {
        TestCluster::with_grace(seed, server_count, 60 * SECOND)
    }

    pub fn with_grace(seed: u64, server_count: u32, session_grace: Nanos) -> TestCluster {
        let bounds = server::Bounds::default();
        TestCluster::with(seed, server_count, session_grace, true, None, MANUAL, bounds)
    }

    /// One whose servers tell contents with opens, which those that keep checksums do not.
    pub fn without_checksums(seed: u64, server_count: u32) -> TestCluster {
        let bounds = server::Bounds::default();
        TestCluster::with(seed, server_count, 60 * SECOND, false, None, MANUAL, bounds)
    }

    /// One over a site that `populate` has filled; with what that returns.
    pub fn over_a_site<T>(seed: u64, server_count: u32, populate: impl FnOnce(&World) -> T) -> (TestCluster, T) {
        TestCluster::over_a_flushed_site(seed, server_count, MANUAL, populate)
    }

    /// The same, whose servers carry changes back by themselves.
    pub fn over_a_flushed_site<T>(
        seed: u64,
        server_count: u32,
        flushing: Flushing,
        populate: impl FnOnce(&World) -> T,
    ) -> (TestCluster, T) {
        TestCluster::over_a_bounded_site(seed, server_count, flushing, server::Bounds::default(), populate)
    }

    /// The same, whose servers keep as much as they are told.
    pub fn over_a_bounded_site<T>(
        seed: u64,
        server_count: u32,
        flushing: Flushing,
        bounds: server::Bounds,
        populate: impl FnOnce(&World) -> T,
    ) -> (TestCluster, T) {
        let mut populated = None;
        let fill = |world: &World| populated = Some(populate(world));
        let (grace, checksums) = (60 * SECOND, seed.is_multiple_of(2));
        let test = TestCluster::with(seed, server_count, grace, checksums, Some(Box::new(fill)), flushing, bounds);
        (test, populated.expect("the site was filled"))
    }

    fn with(
        seed: u64,
        server_count: u32,
        session_grace: Nanos,
        checksums: bool,
        fill: Option<Fill<'_>>,
        flushing: Flushing,
        bounds: server::Bounds,
    ) -> TestCluster {
        let world = World::new(seed);
        let backing = fill.is_some().then(|| PathBuf::from("/site"));
        fill.into_iter().for_each(|fill| fill(&world));
        let addresses: Vec<SocketAddr> =
            (0..server_count).map(|index| SocketAddr::from(([10, 0, 0, index as u8 + 1], 4000))).collect();
        let servers = addresses.iter().map(|address| ServerAddress { address: *address }).collect();
        let cluster = Rc::new(Cluster::new(7, [3; cluster::KEY_SIZE], Placement::Modular, 4096, servers));
        let nodes =
            addresses.iter().map(|address| world.add_node(&format!("server {}", address.ip()), address.ip())).collect();
        let callers =
            (0..3).map(|index| world.add_node(&format!("caller {index}"), [10, 0, 1, index + 1].into())).collect();
        let running = (0..server_count).map(|_| Slot::default()).collect();
        let servers = nodes;
        let test = TestCluster {
            world,
            cluster,
            servers,
            running,
            callers,
            session_grace,
            checksums,
            backing,
            flushing,
            bounds,
            timeout: 2 * SECOND,
        };
        for index in 0..server_count {
            test.start(index);
        }
        test
    }

    /// Starts all servers again, with another time-out.
    pub fn restart_with_timeout(&mut self, timeout: Nanos) {
        self.timeout = timeout;
        for index in 0..self.servers.len() as u32 {
            self.kill(index);
            self.world.restart(self.servers[index as usize]);
            self.start(index);
        }
    }

    /// Starts a server on its running node and waits until it serves.
    pub fn start(&self, index: u32) {
        self.begin_start(index);
        let slot = &self.running[index as usize];
        assert!(self.world.run_until(|| slot.borrow().is_some(), LIMIT), "server {index} did not start");
    }

    /// Starts a server that dies with its `count`-th write, if it comes to that before it serves. True if it died.
    pub fn start_or_die(&self, index: u32, count: u64) -> bool {
        let node = self.servers[index as usize];
        self.world.crash_after_writes(node, count, false);
        self.begin_start(index);
        let slot = &self.running[index as usize];
        let ended = || slot.borrow().is_some() || !self.world.is_running(node);
        assert!(self.world.run_until(ended, LIMIT), "server {index} neither started nor died");
        let died = !self.world.is_running(node);
        if died {
            slot.replace(None);
        }
        // Writes of the server that serves do not count any more.
        self.world.crash_after_writes(node, u64::MAX, false);
        died
    }

    /// A start that has to fail; gives the words of that.
    pub fn fail_start(&self, index: u32) -> String {
        let node = self.servers[index as usize];
        let (reactor, options) = (self.world.reactor(node), self.options(index));
        let started = self.world.run(node, async move { Server::start(&reactor, options).await.map(drop) }, LIMIT);
        started.expect("the start ends").expect_err("the server starts").to_string()
    }

    fn begin_start(&self, index: u32) {
        let own = self.world.reactor(self.servers[index as usize]);
        let (slot, options) = (self.running[index as usize].clone(), self.options(index));
        let reactor = own.clone();
        reactor.spawn(Class::Metadata, async move {
            let server = Server::start(&own, options).await.expect("the server starts");
            slot.replace(Some(server));
        });
    }

    fn options(&self, index: u32) -> ServerOptions {
        ServerOptions {
            cluster: self.cluster.clone(),
            index,
            directory: PathBuf::from(DIRECTORY),
            store_size: 16 << 20,
            journal_size: 256 << 10,
            journal_growth: server::JournalGrowth::NONE,
            checksums: self.checksums,
            connections_max: 128,
            timeout: self.timeout,
            session_grace: self.session_grace,
            transport: server::Transport::Tcp,
            short_circuit: true,
            registered_buffers: true,
            read_leasing: ReadLeasing::default(),
            bounds: self.bounds,
            pages_note: String::new(),
            device: None,
            metrics_port: None,
            backing: self.backing.clone(),
            flushing: self.flushing,
        }
    }

    /// Kills a server.
    pub fn kill(&self, index: u32) {
        self.running[index as usize].replace(None);
        self.world.crash(self.servers[index as usize], CrashKind::Kill);
    }

    /// A server was killed.
    pub fn forget(&self, index: u32) {
        self.running[index as usize].replace(None);
    }

    /// Kills a server and starts it over what it left.
    pub fn restart(&self, index: u32) {
        self.kill(index);
        self.world.restart(self.servers[index as usize]);
        self.start(index);
    }

    /// A server that was to die after some writes does so no more; one that has starts again.
    pub fn revive(&self, index: u32) {
        let node = self.servers[index as usize];
        self.world.crash_after_writes(node, u64::MAX, false);
        if !self.world.is_running(node) {
            self.forget(index);
            self.world.restart(node);
            self.start(index);
        }
    }

    /// Cuts the power of a server's node; what was not synced may be lost or torn.
    pub fn lose_power(&self, index: u32) {
        self.running[index as usize].replace(None);
        self.world.crash(self.servers[index as usize], CrashKind::PowerLoss);
    }

    pub fn server_indexes(&self) -> std::ops::Range<u32> {
        0..self.servers.len() as u32
    }

    pub fn server(&self, index: u32) -> Server {
        self.running[index as usize].borrow().clone().expect("the server runs")
    }

    pub fn audits(&self) -> Vec<Audit> {
        let audits: Vec<Audit> = (0..self.servers.len() as u32).map(|index| self.server(index).audit()).collect();
        for (index, audit) in audits.iter().enumerate() {
            assert_eq!(audit.errors, Vec::<String>::new(), "server {index}, seed {}", self.world.seed());
        }
        audits
    }

    /// Waits until no server has anything left to do for others, and checks all tables.
    pub fn settle(&self) -> Vec<Audit> {
        let quiet = || {
            self.running.iter().all(|slot| {
                slot.borrow().as_ref().is_some_and(|server| {
                    let audit = server.audit();
                    let waits_for_word = audit.orphans > 0 && audit.unreclaimed > 0;
                    let under_way = audit.intents + audit.marks + audit.active + audit.prepared + audit.tree_marks;
                    under_way == 0 && !waits_for_word
                })
            })
        };
        assert!(self.world.run_until(quiet, LIMIT), "intents are never done, seed {}", self.world.seed());
        let audits = self.audits();
        assert_eq!(server::check_links(&audits), Vec::<String>::new(), "seed {}", self.world.seed());
        audits
    }

    /// A caller on one of the callers' nodes with a session of its own.
    pub fn caller(&self, node: usize, session: u64) -> Caller {
        self.caller_as(node, session, 0)
    }

    pub fn caller_as(&self, node: usize, session: u64, uid: u32) -> Caller {
        self.caller_of(node, session, uid, "")
    }

    /// A caller that names a job.
    pub fn caller_of(&self, node: usize, session: u64, uid: u32, job: &str) -> Caller {
        let reactor = self.world.reactor(self.callers[node]);
        let channels = (0..self.servers.len() as u32)
            .map(|server| {
                let options = ChannelOptions {
                    cluster: self.cluster.clone(),
                    server,
                    role: Role::Client,
                    from_server: 0,
                    level: 0,
                    session,
                    user: wire::credentials::Credentials::new(uid, uid),
                    label: wire::label::Label::new(job, "", "", "", "test"),
                    timeout: 20 * SECOND,
                    relay: None,
                };
                Channel::new(&reactor, options)
            })
            .collect();
        let channels = Rc::new(channels);
        let kept = Kept::default();
        reclaim_when_renewed(&reactor, &channels, &kept, &self.cluster);
        Caller { cluster: self.cluster.clone(), channels, kept }
    }

    pub fn reactor_of_caller(&self, node: usize) -> Reactor {
        self.world.reactor(self.callers[node])
    }

    /// Runs something on a caller's node to its end.
    pub fn run<T: 'static>(&self, node: usize, future: impl Future<Output = T> + 'static) -> T {
        let result = self.world.run(self.callers[node], future, LIMIT);
        result.unwrap_or_else(|| panic!("an operation never ended, seed {}", self.world.seed()))
    }

    /// Starts something on a caller's node; its result shows in the cell.
    pub fn spawn<T: 'static>(&self, node: usize, future: impl Future<Output = T> + 'static) -> Rc<RefCell<Option<T>>> {
        let slot = Rc::new(RefCell::new(None));
        let told = slot.clone();
        self.world.reactor(self.callers[node]).spawn(Class::Metadata, async move {
            let value = future.await;
            told.replace(Some(value));
        });
        slot
    }

    pub fn wait<T>(&self, slot: &Rc<RefCell<Option<T>>>) -> T {
        let ended = self.world.run_until(|| slot.borrow().is_some(), LIMIT);
        assert!(ended, "an operation never ended, seed {}", self.world.seed());
        slot.borrow_mut().take().expect("it has ended")
    }
}

/// Files that a caller has open, with the numbers that closes name.
type Kept = Rc<RefCell<BTreeMap<FileId, u64>>>;

/// After a restart of a server the session tells it what it has open there.
fn reclaim_when_renewed(reactor: &Reactor, channels: &Rc<Vec<Channel>>, kept: &Kept, cluster: &Rc<Cluster>) {
    for (server, channel) in channels.iter().enumerate() {
        let (reactor, channels) = (reactor.clone(), Rc::downgrade(channels));
        let (kept, cluster) = (kept.clone(), cluster.clone());
        channel.observe(Rc::new(move |turnabout| {
            let Turnabout::Renewed { life, .. } = turnabout else { return };
            let Some(channels) = channels.upgrade() else { return };
            let (kept, cluster) = (kept.clone(), cluster.clone());
            reactor.spawn(Class::Metadata, async move {
                let is_here = |file: &FileId| cluster.home_of(*file) == Some(server as u32);
                let files: Vec<FileId> = kept.borrow().keys().copied().filter(is_here).collect();
                let request = ReclaimRequest { files: Batch(files.clone()), last: true };
                let call = Call::new(Operation::Reclaim, &request);
                // When the server is started anew meanwhile, it is told anew as well.
                let Ok(reply) = channels[server].call_in_life(call, life).await else { return };
                let number = ReclaimReply::from_bytes(&reply.params).expect("the reply is well-formed").number;
                for file in files {
                    kept.borrow_mut().entry(file).and_modify(|known| *known = number.max(*known));
                }
            });
        }));
    }
}

/// The request that has sizes folded in after writes.
pub fn fold(file: FileId) -> CloseRequest {
    CloseRequest { closed: Closed { file, number: 0 }, settle: true }
}

/// Speaks to all servers.
#[derive(Clone)]
pub struct Caller {
    pub cluster: Rc<Cluster>,
    channels: Rc<Vec<Channel>>,
    kept: Kept,
}

pub type Answer<T> = Result<T, Failure>;

pub fn entry<'a>(parent: FileId, name: &'a str) -> Entry<'a> {
    let name = Name::new(name.as_bytes()).expect("names in tests are valid");
    Entry { parent, name, ancestors: Ancestors::default(), known: KNOWN_UNCHECKED }
}

fn decode<T: for<'a> Decode<'a>>(reply: &Reply) -> T {
    T::from_bytes(&reply.params).expect("the reply is well-formed")
}

impl Caller {
    /// Says goodbye to all servers.
    pub async fn end(&self) {
        for channel in self.channels.iter() {
            channel.end().await;
        }
    }

    pub async fn call(&self, server: u32, operation: Operation, request: &impl Encode) -> Answer<Reply> {
        self.channels[server as usize].call(Call::new(operation, request)).await
    }

    pub async fn send(&self, server: u32, call: Call<'_>) -> Answer<Reply> {
        self.channels[server as usize].call(call).await
    }

    fn at(&self, parent: FileId, name: &str) -> u32 {
        self.cluster.dentry_server(parent, name.as_bytes())
    }

    pub fn home(&self, file: FileId) -> u32 {
        self.cluster.home_of(file).expect("the id is in range")
    }

    /// Opens a file and closes it again.
    pub async fn open(&self, parent: FileId, name: &str, flags: u32) -> Answer<OpenReply> {
        let reply = self.ask_to_open(parent, name, flags).await?;
        let closed = Closed { file: reply.attributes.id, number: reply.open_number };
        let home = self.home(closed.file);
        self.call(home, Operation::Close, &CloseRequest { closed, settle: false }).await?;
        Ok(reply)
    }

    pub async fn close(&self, opened: &OpenReply) -> Answer<()> {
        let (file, mut number) = (opened.attributes.id, opened.open_number);
        if let Some(reclaimed) = self.kept.borrow_mut().remove(&file) {
            number = number.max(reclaimed);
        }
        let request = CloseRequest { closed: Closed { file, number }, settle: false };
        self.call(self.home(file), Operation::Close, &request).await.map(drop)
    }

    /// Opens a file and keeps it open, also when its home is restarted.
    pub async fn open_for_good(&self, parent: FileId, name: &str, flags: u32) -> Answer<OpenReply> {
        let reply = self.ask_to_open(parent, name, flags).await?;
        self.kept.borrow_mut().insert(reply.attributes.id, reply.open_number);
        Ok(reply)
    }

    /// A file without a name whose home is a server, kept open.
    pub async fn make_temporary(&self, server: u32, linkable: bool) -> Answer<OpenReply> {
        let slot = (0..).find(|slot| self.cluster.server_of(*slot) == server).expect("every server has slots");
        let request = MakeTemporaryRequest {
            directory: FileId::ROOT,
            slot,
            mode: 0o600,
            layout: LayoutWish::default(),
            linkable,
            group: None,
        };
        let reply: OpenReply = decode(&self.call(server, Operation::MakeTemporary, &request).await?);
        self.kept.borrow_mut().insert(reply.attributes.id, reply.open_number);
        Ok(reply)
    }

    pub async fn link_open(&self, file: FileId, parent: FileId, to: &str) -> Answer<()> {
        let request = LinkOpenRequest { file, to: entry(parent, to) };
        self.call(self.home(file), Operation::LinkOpen, &request).await.map(drop)
    }

    async fn ask_to_open(&self, parent: FileId, name: &str, flags: u32) -> Answer<OpenReply> {
        let request = OpenRequest {
            entry: entry(parent, name),
            flags,
            access: 0,
            mode: 0o644,
            layout: LayoutWish::default(),
            group: None,
        };
        let operation = if flags & (open_flags::CREATE | open_flags::TRUNCATE) == 0 {
            Operation::OpenExisting
        } else {
            Operation::Open
        };
        Ok(decode(&self.call(self.at(parent, name), operation, &request).await?))
    }

    pub async fn create(&self, parent: FileId, name: &str) -> Answer<Attributes> {
        let reply = self.open(parent, name, open_flags::CREATE | open_flags::EXCLUSIVE).await?;
        assert!(reply.created);
        Ok(reply.attributes)
    }

    pub async fn make_directory(&self, parent: FileId, name: &str) -> Answer<FileId> {
        let request = MakeDirectoryRequest { entry: entry(parent, name), mode: 0o755, group: None };
        let reply = self.call(self.at(parent, name), Operation::MakeDirectory, &request).await?;
        Ok(EntryReply::from_bytes(&reply.params).expect("the reply is well-formed").attributes.id)
    }

    pub async fn unlink(&self, parent: FileId, name: &str) -> Answer<()> {
        let request = RemoveRequest { entry: entry(parent, name), owned: false };
        self.call(self.at(parent, name), Operation::Unlink, &request).await.map(drop)
    }

    pub async fn link(&self, parent: FileId, from: &str, to: &str) -> Answer<()> {
        let request = LinkRequest { from: entry(parent, from), to: entry(parent, to) };
        self.call(self.at(parent, from), Operation::Link, &request).await.map(drop)
    }

    pub async fn rename(&self, parent: FileId, from: &str, to: &str, flags: u32) -> Answer<()> {
        let request = RenameRequest { from: entry(parent, from), to: entry(parent, to), flags };
        self.call(self.at(parent, from), Operation::Rename, &request).await.map(drop)
    }

    /// A rename between two directories.
    pub async fn rename_to(&self, from: (FileId, &str), to: (FileId, &str), flags: u32) -> Answer<()> {
        let request = RenameRequest { from: entry(from.0, from.1), to: entry(to.0, to.1), flags };
        self.call(self.at(from.0, from.1), Operation::Rename, &request).await.map(drop)
    }

    /// Id and link count of what a name leads to, wherever the inode is.
    pub async fn look(&self, parent: FileId, name: &str) -> Answer<(FileId, u32)> {
        let request = EntryRequest { entry: entry(parent, name) };
        let attributes = match self.call(self.at(parent, name), Operation::Stat, &request).await {
            Err(failure) if failure.status == Status::Elsewhere => self.stat(failure.id).await?,
            Err(failure) => return Err(failure),
            Ok(reply) => EntryReply::from_bytes(&reply.params).expect("the reply is well-formed").attributes,
        };
        Ok((attributes.id, attributes.link_count))
    }

    pub async fn remove_directory(&self, parent: FileId, name: &str) -> Answer<()> {
        let request = RemoveRequest { entry: entry(parent, name), owned: false };
        self.call(self.at(parent, name), Operation::RemoveDirectory, &request).await.map(drop)
    }

    /// Has all servers make everything durable.
    pub async fn synchronise(&self) -> Answer<()> {
        for server in 0..self.channels.len() as u32 {
            let request = SynchroniseRequest { file: FileId::default(), seen: 0, opened_at: 0, is_question: false };
            self.call(server, Operation::Synchronise, &request).await?;
        }
        Ok(())
    }

    pub async fn stat(&self, file: FileId) -> Answer<Attributes> {
        let reply = self.call(self.home(file), Operation::StatId, &FileRequest { file }).await?;
        Ok(EntryReply::from_bytes(&reply.params).expect("the reply is well-formed").attributes)
    }

    pub async fn truncate(&self, file: FileId, size: u64) -> Answer<Attributes> {
        let request = TruncateRequest { file, size, check: false };
        let reply = self.call(self.home(file), Operation::Truncate, &request).await?;
        Ok(EntryReply::from_bytes(&reply.params).expect("the reply is well-formed").attributes)
    }

    pub async fn set(&self, request: SetAttributesRequest) -> Answer<Attributes> {
        let reply = self.call(self.home(request.file), Operation::SetAttributes, &request).await?;
        Ok(EntryReply::from_bytes(&reply.params).expect("the reply is well-formed").attributes)
    }

    /// Writes within one chunk.
    pub async fn write(&self, file: FileId, layout: Layout, offset: u64, bytes: &[u8]) -> Answer<WriteReply> {
        let pieces: Vec<_> = layout.pieces(offset, bytes.len() as u64).collect();
        assert_eq!(pieces.len(), 1, "tests write within chunks");
        let server = self.cluster.chunk_server(file, &layout, pieces[0].chunk_index);
        let slices = [IoSlice::new(bytes)];
        let sums = vec![crc32c::crc32c(bytes)];
        let mut call = Call::new(Operation::Write, &DataRequest { file, layout, pieces: Pieces(pieces), sums });
        call.body = &slices;
        Ok(decode(&self.channels[server as usize].call(call).await?))
    }

    /// Reads within one chunk.
    pub async fn read(&self, file: FileId, layout: Layout, offset: u64, size: u64) -> Answer<(ReadReply, Vec<u8>)> {
        let pieces: Vec<_> = layout.pieces(offset, size).collect();
        assert_eq!(pieces.len(), 1, "tests read within chunks");
        let server = self.cluster.chunk_server(file, &layout, pieces[0].chunk_index);
        let request = DataRequest { file, layout, pieces: Pieces(pieces), sums: Vec::new() };
        let reply = self.call(server, Operation::Read, &request).await?;
        let (params, mut bytes) = (decode(&reply), reply.body);
        // Zeros at the end are not sent.
        assert!(bytes.len() as u64 <= size);
        bytes.resize(size as usize, 0);
        Ok((params, bytes))
    }

    /// All names of a directory, from all servers, sorted.
    pub async fn list(&self, directory: FileId) -> Answer<Vec<String>> {
        let mut names = Vec::new();
        for server in 0..self.channels.len() as u32 {
            names.extend(self.list_on(server, directory).await?);
        }
        names.sort();
        Ok(names)
    }

    /// The names that one server has of a directory.
    pub async fn list_on(&self, server: u32, directory: FileId) -> Answer<Vec<String>> {
        let entries = self.entries_on(server, directory, true).await?;
        for entry in &entries {
            let is_here = self.home(entry.id) == server;
            if is_here && !entry.has_attributes {
                assert!(entry.id.is_from_behind(), "attributes come where the inode is");
                assert_eq!(status(&self.stat(entry.id).await), Status::StaleFile, "a name that can't be looked at");
            } else {
                assert_eq!(entry.has_attributes, is_here, "attributes come where the inode is");
            }
        }
        Ok(entries.into_iter().map(|entry| entry.name).collect())
    }

    /// The entries that one server has of a directory.
    pub async fn entries_on(&self, server: u32, directory: FileId, with_attributes: bool) -> Answer<Vec<ListedEntry>> {
        let mut entries = Vec::new();
        let mut cursor = 0;
        loop {
            let request = ReadDirectoryRequest {
                directory,
                cursor,
                size_max: 4096,
                with_attributes,
                ancestors: Ancestors::default(),
                known: KNOWN_UNCHECKED,
            };
            let reply = self.call(server, Operation::ReadDirectory, &request).await?;
            let page: ListingReply = decode(&reply);
            let mut input = wire::Decoder::new(&reply.body);
            while input.remaining() > 0 {
                let entry = ListingEntry::decode(&mut input).expect("the listing is well-formed");
                entries.push(ListedEntry {
                    name: String::from_utf8_lossy(entry.name.as_bytes()).into_owned(),
                    id: entry.id,
                    kind: entry.kind,
                    has_attributes: entry.attributes.is_some(),
                });
            }
            if page.end {
                return Ok(entries);
            }
            assert!(page.next_cursor > cursor, "a page moves on");
            cursor = page.next_cursor;
        }
    }
}

/// What a listing tells of a name.
pub struct ListedEntry {
    pub name: String,
    pub id: FileId,
    pub kind: Kind,
    pub has_attributes: bool,
}

/// The status of an answer.
pub fn status<T>(answer: &Answer<T>) -> Status {
    answer.as_ref().map_or_else(|failure| failure.status, |_| Status::Ok)
}

/// A name in `parent` whose entry lives at a server.
pub fn name_at(cluster: &Cluster, parent: FileId, server: u32) -> String {
    let mut names = (0..).map(|number| format!("name.{number}"));
    names.find(|name| cluster.dentry_server(parent, name.as_bytes()) == server).expect("some name lives there")
}
