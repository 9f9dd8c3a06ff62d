//! A cluster in a simulated world: server nodes with their stores, and client nodes.

use crate::actor::{Client, Recorder, SiteReader};
use crate::behind::{self, Behind};
use crate::carried;
use crate::profile::{Profile, Sabotage};
use crate::random::Random;
use client::{Credentials, FileSystem, Options};
use reactor::sim::{CrashKind, DeviceFaults, NodeId, World};
use reactor::{Class, Nanos};
use server::{Audit, Server, ServerOptions};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use wire::label::Label;
use wire::{Cluster, FileId, ServerAddress};

const PORT: u16 = 4000;
/// Between two times that a server gives up clean chunks, and how often one does in a life.
const EVICTION_PAUSE_NS: Nanos = 7_000_000;
const EVICTIONS_MAX: u32 = 2000;
const STORE: &str = "store";
/// Where its regions are, of a store that a device keeps; and that device.
const BUFFER: &str = "store/buffer";
const DEVICE: &str = "/dev/store";
/// The region of the store that holds the chunks.
const DATA_REGION: &str = "data";

/// What became of starting a server.
type Started = Rc<RefCell<Option<Result<Server, String>>>>;

struct SimServer {
    node: NodeId,
    started: Started,
    stopped: Rc<Cell<bool>>,
    /// Its medium refused to make something durable, so that the server has to go.
    failed: Rc<Cell<bool>>,
    /// Its medium may do so in this life.
    may_fail: Cell<bool>,
}

/// A client's node. A crashed client's node stays down; its successor gets another.
pub struct SimClient {
    pub node: NodeId,
    pub client: Rc<Client>,
}

/// The cluster, its world, and the record of what its clients did.
pub struct Harness {
    pub world: Rc<World>,
    pub profile: Profile,
    pub cluster: Rc<Cluster>,
    pub recorder: Rc<Recorder>,
    servers: Vec<SimServer>,
    pub(crate) client_count: Rc<Cell<u32>>,
    stranger_count: Cell<u32>,
    /// Servers of nodes that went down: what they hold is freed at the end, when that changes nothing any more.
    gone: RefCell<Vec<Server>>,
    /// Homes that had forgotten contacts, told by contacts that are gone.
    forgetful: RefCell<BTreeSet<u32>>,
    /// What is behind, if there is a backing tree.
    pub behind: Option<Behind>,
    /// Whether servers give up clean chunks, in runs in which they do.
    evicts: Rc<Cell<bool>>,
    /// What servers that are gone took up of it.
    taken_up: RefCell<Vec<(FileId, u64)>>,
}

impl Harness {
    /// A world with all servers about to start.
    pub fn new(profile: &Profile, trace: bool) -> Harness {
        let world = Rc::new(World::new(profile.seed));
        let clock = world.clone();
        let recorder = Recorder::new(move || clock.now(), trace, profile.stripes);
        let addresses: Vec<SocketAddr> = (0..profile.servers)
            .map(|index| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, index as u8 + 1)), PORT))
            .collect();
        let mut random = Random::new(profile.seed ^ 0x0063_6c75_7374);
        let mut key = [0; wire::cluster::KEY_SIZE];
        key.fill_with(|| random.next() as u8);
        let servers = addresses.iter().map(|address| ServerAddress { address: *address }).collect();
        let id = u128::from(random.next()) << 64 | u128::from(random.next());
        let mut cluster = Cluster::new(id, key, profile.placement, profile.chunk_sizes[0], servers);
        cluster.protection = profile.protection;
        let cluster = Rc::new(cluster);
        let servers: Vec<SimServer> = addresses
            .iter()
            .enumerate()
            .map(|(index, address)| SimServer {
                node: world.add_node(&format!("server{index}"), address.ip()),
                started: Started::default(),
                stopped: Rc::default(),
                failed: Rc::default(),
                may_fail: Cell::default(),
            })
            .collect();
        for server in &servers {
            world.set_volatile(server.node, !profile.stable_media || profile.is_on_devices());
        }
        if let Sabotage::LeaveOut(validation) = profile.sabotage {
            world.leave_out(validation);
        }
        if profile.sabotage == Sabotage::ForgetMappingLocks {
            world.forget_mapping_locks();
        }
        if let Sabotage::Cache(fault) = profile.sabotage {
            world.set_cache_fault(fault);
        }
        if profile.sabotage == Sabotage::IgnoreHazards {
            world.ignore_hazards();
        }
        if profile.sabotage == Sabotage::IgnoreIntentLocks {
            world.ignore_intent_locks();
        }
        if profile.sabotage == Sabotage::MixWrites {
            world.mix_writes();
        }
        if profile.sabotage == Sabotage::LateSubmissions {
            world.take_submissions_late();
        }
        if let Sabotage::Leftovers(fault) = profile.sabotage {
            world.set_leftover_fault(fault);
        }
        if profile.sabotage == Sabotage::IgnoreFlushes {
            let faults = DeviceFaults { ignores_flushes: true, ..DeviceFaults::default() };
            servers.iter().for_each(|server| world.set_device_faults(server.node, faults));
        }
        if profile.sabotage == Sabotage::WriteOn {
            world.write_on();
        }
        world.limit_clients(profile.hazards, profile.submissions);
        let behind = profile.backing.then(|| recorder.with_mut(|history| Behind::fill(&world, profile, history)));
        if profile.backing {
            world.set_backing_faults(behind::no_faults());
        }
        if profile.backing && behind::syncs_apart(profile) {
            world.set_backing_syncs_apart();
        }
        if profile.backing && behind::renames_plainly(profile) {
            world.set_backing_renames_plainly();
        }
        let (least, most) = profile.latency;
        world.set_latency(None, least, most);
        world.set_socket_buffer(*random.choose(&[3_000, 16 << 10, 256 << 10]));
        let (profile_of_run, client_count, gone) = (profile.clone(), Rc::default(), RefCell::default());
        let harness = Harness {
            world,
            profile: profile_of_run,
            cluster,
            recorder,
            servers,
            client_count,
            stranger_count: Cell::new(0),
            gone,
            forgetful: RefCell::default(),
            behind,
            evicts: Rc::new(Cell::new(behind::evicts(profile))),
            taken_up: RefCell::default(),
        };
        if profile.faults.power_losses {
            let servers: Vec<Started> = harness.servers.iter().map(|server| server.started.clone()).collect();
            harness.recorder.watch_progress(move || {
                let limits = |(index, started): (usize, &Started)| match &*started.borrow() {
                    Some(Ok(server)) => Some((index as u32, server.journal_limits())),
                    _ => None,
                };
                servers.iter().enumerate().filter_map(limits).collect()
            });
        }
        for index in 0..profile.servers {
            harness.skew_clock(index, &mut random);
            harness.start(index);
        }
        harness
    }

    /// Sets a server's clock wrong: by a second at most, and a little too fast or slow.
    pub fn skew_clock(&self, server: u32, random: &mut Random) {
        let wall_offset = random.below(2_000_000_000) as i64 - 1_000_000_000;
        let drift_ppm = random.below(400) as i64 - 200;
        self.world.set_clock(self.node(server), wall_offset, drift_ppm);
    }

    pub fn node(&self, server: u32) -> NodeId {
        self.servers[server as usize].node
    }

    pub fn server_indexes(&self) -> std::ops::Range<u32> {
        0..self.servers.len() as u32
    }

    /// Starts a server whose node is running, over whatever its store holds.
    fn start(&self, index: u32) {
        let server = &self.servers[index as usize];
        let reactor = self.world.reactor(server.node);
        let options = ServerOptions {
            cluster: self.cluster.clone(),
            index,
            directory: PathBuf::from(STORE),
            store_size: self.profile.store_size,
            journal_size: self.profile.journal_size,
            journal_growth: self.profile.journal_growth,
            checksums: self.profile.checksums,
            connections_max: self.profile.connections_max,
            timeout: self.profile.server_timeout,
            session_grace: self.profile.session_grace,
            transport: server::Transport::Tcp,
            short_circuit: self.profile.short_circuit,
            registered_buffers: self.profile.registered_buffers,
            read_leasing: self.profile.read_leasing,
            bounds: self.profile.bounds,
            pages_note: String::new(),
            device: self
                .profile
                .is_on_devices()
                .then(|| server::DeviceStore { path: PathBuf::from(DEVICE), buffer: self.profile.buffer }),
            metrics_port: None,
            backing: self.profile.backing.then(|| PathBuf::from(behind::SITE)),
            flushing: carried::flushing(&self.profile),
        };
        self.let_go(index);
        server.stopped.set(false);
        server.failed.set(false);
        let (started, failed) = (server.started.clone(), server.failed.clone());
        let own = reactor.clone();
        let (sabotage, recorder) = (self.profile.sabotage, self.recorder.clone());
        let evicts = self.evicts.clone();
        reactor.spawn(Class::Metadata, async move {
            let result = Server::start_told(&own, options, |end| recorder.note_recovery(index, end)).await;
            let result = result.map_err(|error| error.to_string());
            started.replace(Some(result.clone()));
            if let Ok(server) = result {
                recorder.note_return(index);
                server.note_taken_up();
                if evicts.get() {
                    let (reactor, server) = (own.clone(), server.clone());
                    own.spawn(Class::Background, async move {
                        for _ in 0..EVICTIONS_MAX {
                            reactor.sleep(EVICTION_PAUSE_NS).await;
                            if evicts.get() {
                                server.evict_some();
                            }
                        }
                    });
                }
                match sabotage {
                    Sabotage::KeepDelegations => server.skip_recalls(),
                    Sabotage::HurryChanges => server.hurry_changes(),
                    Sabotage::IgnoreReadLeases => server.ignore_read_leases(),
                    Sabotage::Backing(fault) => server.set_backing_fault(fault),
                    _ => {}
                }
                server.wait_for_medium_failure().await;
            }
            failed.set(true);
        });
    }

    /// The server of a node that goes down is not asked for anything any more.
    fn let_go(&self, index: u32) {
        if let Some(Ok(server)) = self.servers[index as usize].started.take() {
            self.forgetful.borrow_mut().extend(server.forgetful_homes());
            self.taken_up.borrow_mut().extend(server.taken_up());
            self.gone.borrow_mut().push(server);
        }
    }

    /// From now on nothing is given up.
    pub fn stop_evicting(&self) {
        self.evicts.set(false);
    }

    /// Has a medium refuse one of its next syncs.
    pub fn fail_sync(&self, index: u32, count: u64) {
        self.servers[index as usize].may_fail.set(true);
        match self.profile.is_on_devices() {
            true => self.world.fail_device(self.node(index), count),
            false => self.world.fail_sync(self.node(index), count),
        }
    }

    /// Whether a server's medium was told to refuse something in this life.
    pub fn may_fail(&self, index: u32) -> bool {
        self.servers[index as usize].may_fail.get()
    }

    /// Whether a server has to go because its medium refused something.
    pub fn has_failed(&self, index: u32) -> bool {
        let server = &self.servers[index as usize];
        server.may_fail.get() && server.failed.get()
    }

    /// One stored byte goes bad.
    pub fn rot(&self, index: u32, offset: u64) {
        self.recorder.note(&format!("a byte of server {index} goes bad at {offset}"));
        self.corrupt(index, offset, 0x10);
    }

    /// A server's node loses power now.
    pub fn lose_power(&self, index: u32) {
        self.recorder.note_loss(index);
        self.let_go(index);
        self.world.crash(self.node(index), CrashKind::PowerLoss);
    }

    /// Kills a server now.
    pub fn kill(&self, index: u32) {
        self.recorder.note(&format!("server {index} is killed"));
        self.let_go(index);
        self.world.crash(self.node(index), CrashKind::Kill);
    }

    /// Takes a server down in good order, which takes a while. Does nothing if it is not up.
    pub fn stop(&self, index: u32) {
        let entry = &self.servers[index as usize];
        let Some(Ok(server)) = entry.started.borrow().clone() else { return };
        self.recorder.note(&format!("server {index} is asked to stop"));
        let stopped = entry.stopped.clone();
        self.world.reactor(entry.node).spawn(Class::Metadata, async move {
            server.flush_before_end().await;
            server.stop().await;
            stopped.set(true);
        });
    }

    /// A server that is up.
    pub fn server(&self, index: u32) -> Server {
        match &*self.servers[index as usize].started.borrow() {
            Some(Ok(server)) => server.clone(),
            _ => panic!("server {index} is not up"),
        }
    }

    /// Whether a server that was asked to stop has done so. Its node is still to be taken down.
    pub fn has_stopped(&self, index: u32) -> bool {
        self.servers[index as usize].stopped.get()
    }

    /// A server loses all that it stores, or a part of it goes bad, and it is started again.
    pub fn sabotage(&self, index: u32, kind: CrashKind) {
        self.recorder.note(&format!("server {index} is sabotaged"));
        self.world.set_volatile(self.node(index), true);
        self.let_go(index);
        self.world.crash(self.node(index), kind);
        if kind == CrashKind::Kill {
            self.flip_bits(index);
        }
        if kind == CrashKind::PowerLoss {
            self.world.remove_devices(self.node(index));
        }
        self.restart(index);
    }

    /// Turns a byte over in each of the first pages of a server's data.
    pub fn flip_bits(&self, index: u32) {
        for page in 0..64 {
            self.corrupt(index, page * 4096 + 100, 0xff);
        }
    }

    fn corrupt(&self, index: u32, offset: u64, mask: u8) {
        let node = self.node(index);
        match self.profile.is_on_devices() {
            // What is in memory is gone with the power until the next start.
            true if !self.world.has_region(node, BUFFER, DATA_REGION) => {}
            true => self.world.corrupt(node, BUFFER, DATA_REGION, offset, mask),
            false => self.world.corrupt(node, STORE, DATA_REGION, offset, mask),
        }
    }

    /// Somebody connects to a server some times at once, and says what `draw` gives, which is no proof of anything, or
    /// nothing. He goes after a while, if the server has not sent him away before.
    pub fn send_strangers(&self, index: u32, words: Vec<Vec<u8>>, stay: Nanos) {
        let number = self.stranger_count.get();
        self.stranger_count.set(number + 1);
        let address = IpAddr::V4(Ipv4Addr::new(10, 2, (number >> 8) as u8, number as u8));
        let node = self.world.add_node(&format!("stranger{number}"), address);
        let (reactor, target) = (self.world.reactor(node), self.cluster.servers[index as usize].address);
        for said in words {
            let own = reactor.clone();
            reactor.spawn(Class::Metadata, async move {
                if let Ok(stream) = own.connect(target).await {
                    let _ = stream.send_all(&said).await;
                    own.sleep(stay).await;
                }
            });
        }
    }

    pub fn is_running(&self, index: u32) -> bool {
        self.world.is_running(self.node(index))
    }

    /// Whether it has found its store and takes requests.
    pub fn is_up(&self, index: u32) -> bool {
        self.is_running(index) && matches!(&*self.servers[index as usize].started.borrow(), Some(Ok(_)))
    }

    /// Starts a server that is down; does nothing if it runs.
    pub fn restart(&self, index: u32) {
        if !self.is_running(index) {
            self.recorder.note_start(index);
            self.let_go(index);
            self.servers[index as usize].may_fail.set(false);
            self.world.restart(self.node(index));
            self.start(index);
        }
    }

    /// Whether all servers are up, and none of them is about to go.
    pub fn is_calm(&self) -> bool {
        let is_calm = |server: &SimServer| {
            matches!(&*server.started.borrow(), Some(Ok(_))) && !server.may_fail.get() && !server.stopped.get()
        };
        self.servers.iter().all(is_calm)
    }

    /// Runs until all servers are up. Errors: one that could not start, or did not in time.
    pub fn wait_for_servers(&self, limit: Nanos) -> Result<(), String> {
        let settled = || self.servers.iter().all(|server| server.started.borrow().is_some());
        let in_time = self.world.run_until(settled, limit);
        self.start_error()?;
        if in_time { Ok(()) } else { Err("a server does not come up".to_owned()) }
    }

    /// The error of a server that could not start.
    pub fn start_error(&self) -> Result<(), String> {
        for (index, server) in self.servers.iter().enumerate() {
            if let (Some(Err(error)), false) = (&*server.started.borrow(), server.may_fail.get()) {
                return Err(format!("server {index} does not start: {error}"));
            }
        }
        Ok(())
    }

    /// What the tables of all servers that are up hold.
    pub fn audits(&self) -> Vec<(u32, Audit)> {
        let mut audits = Vec::new();
        self.for_each_up(|index, server| audits.push((index, server.audit())));
        audits
    }

    fn for_each_up(&self, mut look: impl FnMut(u32, &Server)) {
        for (index, server) in self.servers.iter().enumerate() {
            if let Some(Ok(server)) = &*server.started.borrow() {
                look(index as u32, server);
            }
        }
    }

    /// What tells clients whose syncs have files carried how these are at the site.
    fn site_reader(&self) -> Option<SiteReader> {
        let servers: Vec<Started> = self.servers.iter().map(|server| server.started.clone()).collect();
        let world = Rc::downgrade(&self.world);
        carried::flushing(&self.profile).fsync_carries.then(|| {
            Rc::new(move |file, size_max| {
                let known = servers.iter().find_map(|server| match &*server.borrow() {
                    Some(Ok(server)) => server.file_behind(file),
                    _ => None,
                });
                let (inode, size, mtime) = known?;
                world.upgrade()?.outsider().read_inode(inode, (size, mtime), size_max)
            }) as SiteReader
        })
    }

    /// Whether any server carries something behind.
    pub fn is_flushing(&self) -> bool {
        let mut is_flushing = false;
        self.for_each_up(|_, server| is_flushing |= server.is_flushing());
        is_flushing
    }

    /// Whether no server evicts anything for want of room.
    pub fn is_roomy(&self) -> bool {
        let is_roomy = Cell::new(true);
        self.for_each_up(|_, server| is_roomy.set(is_roomy.get() && server.is_roomy()));
        is_roomy.get()
    }

    /// Numbers of the inodes behind that are updated where they are.
    pub fn updated_behind(&self) -> BTreeSet<u64> {
        let mut updated = BTreeSet::new();
        self.for_each_up(|_, server| updated.extend(server.updated_behind()));
        updated
    }

    /// What servers took up of the backing tree, with its paths there.
    pub fn taken_up(&self) -> Vec<(FileId, u64)> {
        let mut taken_up = self.taken_up.borrow().clone();
        self.for_each_up(|_, server| taken_up.extend(server.taken_up()));
        taken_up
    }

    /// Homes that had forgotten a contact while that had files open for its clients.
    pub fn forgetful_homes(&self) -> BTreeSet<u32> {
        let mut homes = self.forgetful.borrow().clone();
        self.for_each_up(|_, server| homes.extend(server.forgetful_homes()));
        homes
    }

    /// Numbers of all clients so far.
    pub fn client_numbers(&self) -> std::ops::Range<u32> {
        0..self.client_count.get()
    }

    /// A new client of root on a node of its own.
    pub fn add_client(&self) -> SimClient {
        self.add_client_as(Credentials::new(0, 0))
    }

    /// A new client of some user.
    pub fn add_client_as(&self, user: Credentials) -> SimClient {
        self.add_client_with(Options { user, ..Options::default() })
    }

    /// A new client with options of its own; time-out and umask are the profile's.
    pub fn add_client_with(&self, options: Options) -> SimClient {
        let number = self.client_count.get();
        self.client_count.set(number + 1);
        let address = IpAddr::V4(Ipv4Addr::new(10, 1, (number >> 8) as u8, number as u8));
        let node = self.world.add_node(&format!("client{number}"), address);
        let timeout_ms = self.profile.client_timeout / 1_000_000;
        let (umask, bounds) = (0, self.profile.client_bounds);
        // Two jobs, and clients that name none.
        let job = ["", "812", "813"][number as usize % 3];
        let label = Label::new(job, "0", &number.to_string(), &format!("client{number}"), "sim");
        let options = Options { timeout_ms, umask, bounds, label, ..options };
        let file_system = FileSystem::new(&self.world.reactor(node), self.cluster.clone(), options);
        let (recorder, sabotage) = (self.recorder.clone(), self.profile.sabotage);
        SimClient {
            node,
            client: Rc::new(Client {
                number,
                file_system,
                recorder,
                sabotage,
                stripes: self.profile.stripes,
                searching: Default::default(),
                by_identity: Default::default(),
                whole: Default::default(),
                acting: Default::default(),
                is_leased: self.profile.read_leasing.time > 0,
                opening: Default::default(),
                kernel: Default::default(),
                exporter: None,
                site: self.site_reader(),
            }),
        }
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        // Servers hold their reactor, and the clock of the recorder holds the world.
        self.recorder.forget_progress();
        for index in self.server_indexes() {
            self.let_go(index);
            self.world.crash(self.node(index), CrashKind::Kill);
        }
        self.gone.take().iter().for_each(Server::abandon);
    }
}
