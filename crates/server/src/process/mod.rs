//! A running server: how it starts, recovers, and stops.

pub mod audit;
pub mod life;
pub mod options;
pub mod prefault;
pub mod statistics;

use crate::backing::{BackingFault, BackingUse};
use crate::coordination::intents::Intent;
use crate::core::{Core, Failure};
use crate::files::inodes::Inode;
use crate::files::open_files;
use crate::handlers;
use crate::journal::checkpoint;
use crate::journal::durability;
use crate::journal::records::Record;
use crate::journal::tables::Tables;
use crate::leases::read_leases;
use crate::process::audit::{Audit, audit};
use crate::process::options::{DeviceStore, ServerOptions, StartError, Transport};
use crate::process::statistics::Statistics;
use crate::process::statistics::metrics;
use crate::process::statistics::report;
use crate::process::statistics::samples::{SAMPLES_SIZE, Samples};
use crate::publish::attribute_cache::Publisher;
use crate::sessions::expiry::start_expiry;
use crate::sessions::service::Front;
use crate::store::{NAME_DATA, PAGE_SIZE, Store, StoreError, StoreIdentity, StoreOptions, SyncError};
use crate::tree::invalidation;
use reactor::backing::CallStatus;
use reactor::device::DeviceOptions;
use reactor::log::{self, Level};
use reactor::{BufferedStorage, Class, Listener, Nanos, PartialRegion, Reactor, ServeOptions, Storage};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use wire::limits::{COPY_SIZE_MAX, EXTENDED_SIZE_MAX, OUTCOME_SIZE_MAX, PARAMS_SIZE_MAX, REQUEST_WINDOW};
use wire::{Cluster, FileId, Kind, LayoutWish, Protection};

/// Sessions that are remembered for each connection that there may be.
const SESSIONS_PER_CONNECTION: usize = 4;
/// A request that is still held shows a sign of life this many times within the time-out.
const SIGNS_PER_TIMEOUT: u64 = 4;
const WORKING_INTERVAL_NS_MAX: Nanos = 5_000_000_000;
const STOP_PAUSE_NS: Nanos = 1_000_000;
/// Longest wait for requests under way when a server stops.
const STOP_NS_MAX: Nanos = 2_000_000_000;
/// Longest wait for the name at which clients of this machine connect, and between two looks.
const NAME_NS_MAX: Nanos = 1_000_000_000;
const NAME_PAUSE_NS: Nanos = 10_000_000;

/// Directory in that of the store, for the memory of a store that a device keeps.
const DEVICE_MEMORY: &str = "buffer";
/// How long a device may be in use by what an earlier life has handed over, and between two looks.
const DEVICE_NS_MAX: Nanos = 5_000_000_000;
const DEVICE_PAUSE_NS: Nanos = 20_000_000;

/// A running server; a cheap handle.
#[derive(Clone)]
pub struct Server {
    core: Rc<Core>,
    _last: Rc<LastHandle>,
}

/// uid and gid that this process runs as: the owner of the root directory.
pub fn process_owner() -> (u32, u32) {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").map_or((0, 0), |metadata| (metadata.uid(), metadata.gid()))
}

/// The listener for clients of this machine; nothing where they come over TCP.
async fn listen_locally(reactor: &Reactor, options: &ServerOptions) -> Result<Option<Listener>, StartError> {
    if options.transport == Transport::Tcp {
        return Ok(None);
    }
    let name = reactor::local_name(&options.cluster, options.index);
    let limit = reactor.now() + NAME_NS_MAX;
    loop {
        match reactor.listen_local(&name) {
            Ok(listener) => return Ok(Some(listener)),
            // The kernel gives up the socket of a life that was killed a moment after that has ended.
            Err(error) if error.kind() == ErrorKind::AddrInUse && reactor.now() < limit => {
                reactor.sleep(NAME_PAUSE_NS).await;
            }
            Err(error) if options.transport == Transport::Shm => return Err(StartError::NoSharedMemory(error)),
            Err(error) => {
                let words = "clients of this machine come over TCP: another process listens in our place";
                log::event(Level::Warning, "no-shared-memory", words, &[("reason", &error)]);
                return Ok(None);
            }
        }
    }
}

/// Says in the log where connections between hosts are not protected.
fn tell_protection(cluster: &Cluster) {
    let between_hosts = cluster.servers.iter().any(|server| !server.address.ip().is_loopback());
    if between_hosts && cluster.protection == Protection::Off {
        let words = "connections between hosts are not protected from those on the network; --protect of a new cluster \
                     does that";
        log::event(Level::Info, "not-protected", words, &[]);
    }
}

/// What is dropped with the last handle.
struct LastHandle(Rc<Core>);

impl Drop for LastHandle {
    fn drop(&mut self) {
        // What serves owns the core: break the cycle.
        self.0.life.forget_handle();
    }
}

impl Server {
    /// Creates or recovers the store in the directory, listens on the cluster's address of this server and serves.
    /// Errors say what to do; then nothing was started.
    pub async fn start(reactor: &Reactor, options: ServerOptions) -> Result<Server, StartError> {
        Self::start_told(reactor, options, |_| {}).await
    }

    /// The same for simulations, which are told the first journal record that was not there before this start: as soon
    /// as the store is open, for a life that ends while it starts has journalled more.
    pub async fn start_told(
        reactor: &Reactor,
        options: ServerOptions,
        recovered: impl FnOnce(u64),
    ) -> Result<Server, StartError> {
        let server_count = options.cluster.server_count();
        let Some(address) = options.cluster.servers.get(options.index as usize).map(|server| server.address) else {
            return Err(StartError::NoSuchServer { index: options.index, server_count });
        };
        let directory = lock_storage(reactor, &options)?;
        // An earlier life has ended by now, and changes nothing any more that it has told clients.
        reactor.sleep(read_leases::kept_for(options.read_leasing)).await;
        let listener = reactor.listen(address).map_err(|error| StartError::Listen(address, error))?;
        let local = listen_locally(reactor, &options).await?;
        let page = match options.metrics_port {
            Some(port) => Some(listen_for_metrics(reactor, port)?),
            None => None,
        };
        let storage = match &options.device {
            Some(device) => open_device(reactor, device, &options).await?,
            None => directory.clone(),
        };
        let (store, tables) = open_store(reactor, storage, &options)?;
        recovered(store.recovered_end());
        let samples = Samples::open(&*directory);
        make_durable(&store, &options).await?;
        let backing = BackingUse::open(reactor, &options, &tables).await?;
        let (backing, backing_root) = match backing {
            Some((backing, record)) => (Some(backing), record),
            None => (None, Record::Nothing),
        };
        let core = Rc::new(Core::new(reactor, options, store, tables, backing, samples));
        if core.store.power_was_lost() {
            let words = "the machine lost its power; what was not synced may be gone";
            log::event(Level::Warning, "power-was-lost", words, &[]);
            if let Some(((file, chunk), page)) = core.store.lacking_page() {
                let words = format!(
                    "a sync had not ended when power was lost, or page {page} of the data has gone bad since (chunk \
                     {chunk} of file {file:#x}): the store is as it was when the sync before began"
                );
                log::event(Level::Warning, "sync-not-ended", &words, &[]);
            }
            let failed = |error| StartError::Store(core.options.directory.clone(), error);
            durability::forget_after_power_loss(&core).map_err(failed)?;
            if !core.tables.borrow().entry_keepers.is_empty() {
                // What they keep may be gone.
                core.reactor.sleep(core.leases.kept_entries.kept_for()).await;
            }
            core.store.power_loss_is_over();
        }
        make_root(&core, backing_root)?;
        // What was changed meanwhile may have begun a checkpoint, which syncs too.
        core.syncs.sync().await.map_err(|failure| {
            let error = std::io::Error::other(String::from_utf8_lossy(&failure.text).into_owned());
            let what = "make what the start has changed durable";
            StartError::Store(core.options.directory.clone(), StoreError::Medium(what, error))
        })?;
        let own = Rc::downgrade(&core);
        core.peers.observe(Rc::new(move |server, turnabout| {
            if let Some(core) = own.upgrade() {
                core.home_turned(server, turnabout);
            }
        }));
        resume(&core);
        core.begin_submissions();
        core.begin_new_files();
        core.store.measure_pages();
        prefault::start(&core);
        let shared = core.shared();
        if let Some(shared) = &shared {
            shared.submissions().limit_queues(core.options.bounds.submission_queues);
        }
        if let Some(publisher) = shared
            .as_ref()
            .and_then(|shared| Publisher::on(shared.attribute_cache(), shared.life(), core.options.bounds.index_blocks))
        {
            core.tables.borrow_mut().publish(publisher);
        }
        let serve_options = ServeOptions {
            shared,
            registers_buffers: core.registers_pages(),
            cluster: core.cluster.clone(),
            server: core.index,
            connections_max: core.options.connections_max,
            incarnation: reactor.random(),
            working_interval: (core.options.timeout / SIGNS_PER_TIMEOUT).clamp(1_000_000, WORKING_INTERVAL_NS_MAX),
            timeout: core.options.timeout,
            local_clients_only: core.options.transport == Transport::Shm,
        };
        tell_protection(&core.cluster);
        let handle = reactor::serve(reactor, listener, serve_options, Rc::new(Front::new(&core)));
        if let Some(listener) = local {
            handle.accept_local(listener);
        }
        core.life.serve(handle);
        core.watch_changes();
        core.publish_tree(&core.tables.borrow());
        let weak = Rc::downgrade(&core);
        core.late_errors.when_noted(move || {
            if let Some(core) = weak.upgrade() {
                core.publish_late_error();
            }
        });
        invalidation::start(&core);
        if let Some(listener) = page {
            reactor.spawn(Class::Background, metrics::serve(core.clone(), listener));
        }
        Ok(Server { _last: Rc::new(LastHandle(core.clone())), core })
    }

    /// Every term of the memory that the server may ever hold beside what is stored, with its reason; bytes.
    pub fn memory_max(&self) -> Vec<(&'static str, u64)> {
        memory_terms(&self.core)
    }

    /// Before the end of a server that was told to go: has what was changed over a backing tree go there, within
    /// `--grace-ms`, and logs what has not. Clients are served meanwhile.
    pub async fn flush_before_end(&self) {
        self.core.flush_before_end(self.core.options.flushing.grace).await;
    }

    /// Stops cleanly: starts no more requests of clients, lets those under way end (for two seconds at most), closes
    /// all connections and writes a checkpoint. Clients send what was not answered to the next server of this place, as
    /// after a kill.
    pub async fn stop(&self) {
        let core = &self.core;
        if !core.life.stop() {
            return;
        }
        // Whoever looks for something by its path is to notice that nobody is here.
        if let Some(publisher) = &core.tables.borrow().publisher {
            publisher.invalidate_tree();
        }
        let latest = core.reactor.now() + STOP_NS_MAX;
        core.leases.kept_entries.stop();
        // Who waits for a lock asks again, at the next server of this place.
        let waiters = core.lock_queues.borrow().listener_count() as u64;
        while core.statistics.under_way() > waiters && core.reactor.now() < latest {
            core.reactor.sleep(STOP_PAUSE_NS).await;
        }
        if let Some(handle) = core.life.end_serving() {
            handle.close();
        }
        if let Some(session) = core.life.shutdown_session() {
            // It can't say goodbye to who does not serve; the next life is not to wait for it.
            let _: Result<(), Failure> = core.change([Record::SessionDelete(session)]);
        }
        drop((core.lock_queues.take(), core.throttle.take()));
        drop(core.life.take_left_requests());
        core.end_submissions();
        core.peers.close();
        // Without a checkpoint the journal has everything as well; recovery only takes longer.
        let _: Result<(), StoreError> = checkpoint::complete(core).await;
        let synced = core.syncs.sync().await;
        if let Err(failure) = synced {
            core.syncs.broken.tell(String::from_utf8_lossy(&failure.text).into_owned());
        }
    }

    /// Lets go of what holds itself, after the server's node was taken down without `stop`: for simulations, whose
    /// process goes on.
    pub fn abandon(&self) {
        let handle = self.core.life.end_serving();
        drop(handle);
        let waiting = (self.core.lock_queues.take(), self.core.throttle.take(), self.core.life.take_left_requests());
        drop(waiting);
    }

    /// Whether what was synced survives power loss; if not, nothing does.
    pub fn survives_power_loss(&self) -> bool {
        !self.core.store.is_volatile()
    }

    /// Resolves when the medium refused the journal, so that the server can promise nothing any more and has to stop;
    /// with the reason.
    pub async fn wait_for_medium_failure(&self) -> String {
        self.core.syncs.broken.wait().await
    }

    /// Begins a sync, as when so much waits for one that nobody has to ask.
    pub fn start_sync(&self) {
        self.core.syncs.start();
    }

    /// The first journal record that power loss would take, and the first that is still to be written.
    pub fn journal_limits(&self) -> (u64, u64) {
        self.core.store.journal_limits()
    }

    pub fn is_stopping(&self) -> bool {
        self.core.life.is_stopping()
    }

    /// Resolves when a peer asked the server to shut down.
    pub async fn wait_for_shutdown_request(&self) {
        self.core.life.wait_for_shutdown_request().await;
    }

    /// Counters and the last sample as JSON.
    pub fn statistics_json(&self) -> String {
        report::json(&self.core, 1)
    }

    /// Counters as Prometheus text.
    pub fn statistics_prometheus(&self) -> String {
        report::prometheus(&self.core)
    }

    /// Writes records as they are, right or wrong, for tests of the checker. Errors: words.
    pub fn damage(&self, records: Vec<Record<'_>>) -> Result<(), String> {
        let words = |failure: crate::core::Failure| String::from_utf8_lossy(&failure.text).into_owned();
        self.core.change(records).map_err(words)
    }

    /// Stores bytes, of nobody knows what, as a chunk of any file, for tests of the checker. Errors: words.
    pub fn damage_with_chunk(&self, file: wire::FileId, chunk_index: u64, size: u32) -> Result<(), String> {
        let store = &self.core.store;
        let write = store.reserve_write(file.0, chunk_index, 4096, 0, size).map_err(|error| error.to_string())?;
        let mut transaction = store.begin();
        store.commit_write(write, &mut transaction, 1).map_err(|error| error.to_string())?;
        store.commit(transaction).map(|_| ()).map_err(|error| error.to_string())
    }

    /// Has this server let changes happen without calling delegations back, for tests of the simulation's checker.
    pub fn skip_recalls(&self) {
        self.core.leases.delegations.skip_recalls();
    }

    /// Has this server change things before those who keep entries have confirmed that they have forgotten them, for
    /// the same.
    pub fn hurry_changes(&self) {
        self.core.leases.kept_entries.hurry();
    }

    /// Has this server change contents that it has told by leases, for the same.
    pub fn ignore_read_leases(&self) {
        self.core.leases.read_leases.ignore();
    }

    /// Has this server do something wrong with its backing tree, for the same.
    pub fn set_backing_fault(&self, fault: BackingFault) {
        if let Some(backing) = &self.core.backing {
            backing.set_fault(fault);
        }
    }

    /// Has this server remember what it takes up of its backing tree, for simulations.
    pub fn note_taken_up(&self) {
        if let Some(backing) = &self.core.backing {
            backing.begin_log();
        }
    }

    /// Whether its store has so much room that nothing is evicted.
    pub fn is_roomy(&self) -> bool {
        self.core.is_roomy()
    }

    /// Ids of what it has taken up since, and numbers of the inodes behind.
    pub fn taken_up(&self) -> Vec<(wire::FileId, u64)> {
        self.core.backing.as_ref().map_or_else(Vec::new, BackingUse::log)
    }

    /// Of a file of this server that has names: the number of its inode behind, its size and its mtime there; zeros if
    /// it is not behind. Nothing if that is not known, or is being changed. For simulations.
    pub fn file_behind(&self, file: wire::FileId) -> Option<(u64, u64, i64)> {
        if self.core.check_home(file).is_err() {
            return None;
        }
        let carried = self.core.carried(file);
        let is_settled = !carried.is_moving && carried.next.is_none() && carried.names.is_some_and(|names| names > 0);
        let Some(place) = carried.place else { return is_settled.then_some((0, 0, 0)) };
        let is_known = is_settled && !place.is_being_written() && !self.core.is_hidden(place.name());
        is_known.then_some((place.inode, place.size, place.mtime))
    }

    /// Numbers of the inodes behind that a flush updates where they are, or has begun to.
    pub fn updated_behind(&self) -> Vec<u64> {
        self.core.tables.borrow().backing.being_written().collect()
    }

    /// Whether anything is being carried behind, for simulations.
    pub fn is_flushing(&self) -> bool {
        self.core.is_flushing()
    }

    /// Calls on the backing tree that have not ended, longest first.
    pub fn backing_calls(&self) -> Vec<CallStatus> {
        self.core.backing.as_ref().map_or_else(Vec::new, BackingUse::calls)
    }

    /// What this server did with its backing tree; nothing without one.
    pub fn backing_numbers(&self) -> Vec<(&'static str, u64)> {
        self.core.backing.as_ref().map_or_else(Vec::new, |backing| backing.numbers().to_vec())
    }

    /// Has this server give up some clean chunks although there is room, for simulations. Whether any went.
    pub fn evict_some(&self) -> bool {
        self.core.evict_some()
    }

    /// What this server counted as a contact and as a home.
    pub fn contact_numbers(&self) -> Vec<(&'static str, u64)> {
        self.core.leases.numbers().collect()
    }

    /// Requests of an operation that came in.
    pub fn arrivals(&self, operation: wire::Operation) -> u64 {
        self.core.statistics.arrivals_of(operation)
    }

    /// Homes that had forgotten this server while it had files open there, as a contact, for tests.
    pub fn forgetful_homes(&self) -> std::collections::BTreeSet<u32> {
        self.core.leases.contact.forgetful_homes()
    }

    /// An inode as this server has it, for tests of the checker.
    pub fn inode(&self, id: wire::FileId) -> Option<Inode> {
        self.core.tables.borrow().inodes.get(id)
    }

    /// Counts and contradictions.
    pub fn audit(&self) -> Audit {
        audit(&self.core)
    }
}

/// How many sessions are known at most.
fn session_count_max(options: &ServerOptions) -> usize {
    (options.connections_max * SESSIONS_PER_CONNECTION).min(options.bounds.sessions)
}

/// What is known of a page that is in memory of a store that a device keeps: six sets, a frame and its place.
const RESIDENT_PAGE_SIZE: u64 = 224;

/// See `Server::memory_max`.
pub fn memory_terms(core: &Core) -> Vec<(&'static str, u64)> {
    let options = &core.options;
    let (sessions, bounds) = (session_count_max(options) as u64, &options.bounds);
    let window = u64::from(REQUEST_WINDOW);
    // Those of this server's own, and those that come through others.
    let connections = 2 * options.connections_max as u64;
    let peers = u64::from(core.cluster.server_count() - 1) * 3;
    let mut terms = vec![
        ("outcomes of sessions", sessions * window * (OUTCOME_SIZE_MAX as u64 + 64)),
        ("requests under way", connections * window * 2048),
        ("listings on their way", handlers::LISTING_BYTES_MAX + connections * window * 8192),
        ("open files", (bounds.open_files + open_files::AWAITED_MAX) as u64 * open_files::REGISTRATION_SIZE),
        ("values of extended attributes on their way", connections * EXTENDED_SIZE_MAX as u64 * 2),
        ("permits, and who waits for them", (bounds.permits + bounds.permit_waiters) as u64 * 256),
        ("locks of files, and who waits for them", ((bounds.lock_ranges + bounds.lock_waiters) * 128) as u64),
        ("bytes of copies between servers", handlers::COPY_COUNT_MAX * u64::from(COPY_SIZE_MAX) * 2),
        ("counters", Statistics::memory_max(connections)),
        ("samples, in the store's directory", SAMPLES_SIZE),
        ("names shared to other servers", core.leases.delegations.memory_max(core.cluster.server_count())),
        ("names shared by other servers", core.leases.contact.memory_max()),
        ("contents told to clients", core.leases.read_leases.memory_max()),
        ("entries kept by mounts", core.leases.kept_entries.memory_max(connections * window)),
        ("log of moved directories", bounds.tree_log as u64 * 96),
        ("removed directories", 2 * bounds.tombstones as u64 * invalidation::TOMBSTONE_SIZE),
    ];
    if peers > 0 {
        let channel = window * 1024 + 2 * PARAMS_SIZE_MAX as u64 + (256 << 10);
        terms.push(("channels to other servers", peers * channel));
    }
    if let Some(handle) = core.life.handle() {
        terms.push(("buffers of connections", handle.memory_max()));
        terms.push(("bytes of relayed connections", handle.relay_memory_max()));
        if options.transport != Transport::Tcp {
            terms.push(("memory shared with processes of this machine", handle.shared_memory_max()));
        }
    }
    if let Some(shared) = core.shared() {
        terms.push(("stamps of what clients of this machine read by short circuit", reactor::STAMPS_SIZE));
        terms.push(("names and files that clients of this machine need not ask for", shared.attribute_cache().size()));
        terms.push(("changes that clients of this machine submit", reactor::SUBMISSION_QUEUES_SIZE));
    }
    if core.store.keeps_sums() {
        terms.push(("checksums", core.store.usage().size / PAGE_SIZE * size_of::<u32>() as u64));
    }
    if let Some(device) = &options.device {
        let pages = device.buffer / PAGE_SIZE * RESIDENT_PAGE_SIZE + options.store_size / PAGE_SIZE / 8;
        terms.push(("which bytes of the store are in memory, and which the device lacks", pages));
    }
    if core.backing.is_some() {
        terms.push(("calls on the backing directory, and paths and names that were read", crate::backing::MEMORY_MAX));
        let names = core.taken_up_names_max().saturating_mul(crate::backing::NAME_SIZE);
        terms.push(("names of the backing directory that nobody has changed, beside those in use", names));
    }
    if options.metrics_port.is_some() {
        terms.push(("metrics page", metrics::MEMORY_MAX));
    }
    terms
}

fn lock_storage(reactor: &Reactor, options: &ServerOptions) -> Result<Rc<dyn Storage>, StartError> {
    let directory = &options.directory;
    let failed = |error| StartError::Directory(directory.clone(), error);
    let storage = reactor.storage(directory).map_err(failed)?;
    match storage.lock_exclusive() {
        Ok(()) => Ok(storage),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Err(StartError::InUse(directory.clone())),
        Err(error) => Err(failed(error)),
    }
}

/// The store's regions in memory, which a device keeps.
async fn open_device(
    reactor: &Reactor,
    store: &DeviceStore,
    options: &ServerOptions,
) -> Result<Rc<dyn Storage>, StartError> {
    let path = store.path.as_path();
    let failed = |words: String| StartError::Device(std::io::Error::new(ErrorKind::InvalidInput, words));
    let memory = reactor.storage(&options.directory.join(DEVICE_MEMORY)).map_err(StartError::Device)?;
    if !memory.is_volatile() {
        let directory = options.directory.display();
        return Err(failed(format!("{directory} is not in memory, where its buffer has to be")));
    }
    let size = DeviceStore::device_size(options.store_size, options.journal_size);
    let limit = reactor.now() + DEVICE_NS_MAX;
    let is_in_use = |error: &std::io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ResourceBusy);
    let device = loop {
        let existing = DeviceOptions { exclusive: true, ..DeviceOptions::default() };
        match reactor.open_device(path, &existing) {
            Ok(device) => break device,
            Err(error) if error.kind() == ErrorKind::NotFound && memory.list().is_empty() => {
                let new = DeviceOptions { create: Some(size), ..existing };
                break reactor.open_device(path, &new).map_err(StartError::Device)?;
            }
            Err(error) if is_in_use(&error) && reactor.now() < limit => reactor.sleep(DEVICE_PAUSE_NS).await,
            Err(error) if is_in_use(&error) => {
                return Err(failed(format!("{} is in use by another server, or mounted", path.display())));
            }
            Err(error) => return Err(StartError::Device(error)),
        }
    };
    if device.abilities().is_volatile {
        return Err(failed(format!("{} is in memory itself; name a file or block device of a disk", path.display())));
    }
    let partial = PartialRegion { name: NAME_DATA.to_owned(), memory: store.buffer };
    let storage = BufferedStorage::open(reactor, memory, device, size, Some(partial)).map_err(StartError::Device)?;
    Ok(Rc::new(storage))
}

fn listen_for_metrics(reactor: &Reactor, port: u16) -> Result<Listener, StartError> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    reactor.listen(address).map_err(|error| StartError::Listen(address, error))
}

fn open_store(
    reactor: &Reactor,
    storage: Rc<dyn Storage>,
    options: &ServerOptions,
) -> Result<(Store, Tables), StartError> {
    let identity = StoreIdentity {
        cluster_id: options.cluster.id,
        server: options.index,
        slots: options.cluster.slot_count,
        placement: options.cluster.placement,
    };
    let mut tables = Tables::new(session_count_max(options), &options.bounds);
    let now = reactor.now();
    let store = if Store::exists(&*storage) {
        Store::open(storage, identity, &mut |kind, bytes| {
            let (record, time) = Record::decode(kind, bytes)?;
            tables.apply(record, time, Some(now));
            Ok(())
        })
    } else {
        let store_options = StoreOptions {
            size: options.store_size,
            journal_size: options.journal_size,
            journal_growth: options.journal_growth,
            checksums: options.checksums,
        };
        Store::create(storage, &store_options, identity)
    };
    let store = store.map_err(|error| StartError::Store(options.directory.clone(), error))?;
    tables.names.note_restart();
    Ok((store, tables))
}

/// Syncs while nobody is served yet, and nothing was changed.
async fn make_durable(store: &Store, options: &ServerOptions) -> Result<(), StartError> {
    store.sync().await.map_err(|error| match error {
        SyncError::Data { error, .. } | SyncError::Journal(error) => {
            StartError::Store(options.directory.clone(), error)
        }
    })
}

/// The root directory's inode, at the server of its slot, together with what is to be noted of the backing tree.
fn make_root(core: &Rc<Core>, backing_root: Record<'static>) -> Result<(), StartError> {
    let id = FileId::ROOT;
    let is_made = !core.owns_slot(id.home()) || core.tables.borrow().inodes.contains(id);
    if is_made && backing_root == Record::Nothing {
        return Ok(());
    }
    let attributes = match &core.backing {
        None => core.attributes_of(id, Kind::Directory, 0o755, process_owner(), &LayoutWish::default()),
        Some(backing) => {
            let root = backing.root();
            let new =
                core.attributes_of(id, Kind::Directory, root.mode, (root.owner, root.group), &LayoutWish::default());
            crate::backing::attributes_of(root, new)
        }
    };
    let inode = if is_made { Record::Nothing } else { Record::InodePut(Inode::new(attributes)) };
    core.change([backing_root, inode]).map_err(|failure| {
        let words = String::from_utf8_lossy(&failure.text).into_owned();
        StartError::Store(core.options.directory.clone(), StoreError::Damaged(words))
    })
}

/// Goes on with what was under way when the server ended.
fn resume(core: &Rc<Core>) {
    let intents: Vec<(u64, Intent)> =
        core.tables.borrow().intents.iter().map(|(number, intent)| (*number, intent.clone())).collect();
    for (number, intent) in intents {
        match intent {
            Intent::Reap { file, holders } => handlers::drive_reap(core, number, file, holders),
            Intent::Truncate { .. } => handlers::resume_truncate(core, number, intent),
            Intent::Append { .. } => handlers::resume_append(core, number, intent),
            Intent::RemoveDirectory { directory, attempt, phase } => {
                handlers::resume_removal(core, directory, attempt, phase);
            }
            Intent::Names { parts } => handlers::drive_names(core, number, parts),
            Intent::Tree { phase, entries } => handlers::resume_tree(core, number, phase, entries),
            Intent::Rights { directory, origin, reply } => {
                handlers::resume_rights(core, number, directory, origin, reply);
            }
        }
    }
    let prepared: Vec<(u32, u64)> = core.tables.borrow().prepared.keys().copied().collect();
    for (coordinator, number) in prepared {
        handlers::watch(core, coordinator, number);
    }
    let sessions = core.tables.borrow().sessions.ids();
    if !sessions.is_empty() {
        start_expiry(core);
    }
    core.tables.borrow_mut().open.await_reclaim(sessions);
    core.await_earlier_delegations();
    core.await_earlier_entries();
    core.reap_orphans();
    crate::handlers::watch_buffers(core);
}
