//! Clusters at scale: any number of servers and clients, as they are, over a network, processors and stores that have
//! their cost ([`reactor::sim::CostModel`]) and never fail. For the shape of figures, not for what may go wrong.

use client::{Contact, Credentials, FileSystem, Options, Relaying};
use reactor::backing::BackingTree;
use reactor::sim::{BACKING_ROOT, BackingCosts, BackingFaults, CostModel, NodeId, ProcessorCosts, World};
use reactor::{Class, Nanos, Reactor};
pub use server::FlushPolicy;
use server::{Flushing, ReadLeasing, Server, ServerOptions};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use wire::{Cluster, Placement, ServerAddress};

const PORT: u16 = 4000;
/// Virtual time after which a simulated step counts as hung.
const STEP_NS_MAX: Nanos = 3_600_000_000_000;
/// Silence after which a peer is given up on. Nothing fails here, but a thousand clients may queue at one server.
const TIMEOUT_NS: Nanos = 600_000_000_000;
/// What every server may have beyond the connections of clients and of other servers.
const CONNECTIONS_SPARE: usize = 64;
/// Bytes that one direction of a connection takes, as real ones are set.
const SOCKET_BUFFER_SIZE: usize = 1 << 20;
/// Clients have addresses from this number on, servers below.
const CLIENT_ADDRESS_FIRST: u32 = 1 << 20;

/// What a cluster is like.
#[derive(Clone, Debug)]
pub struct ScaleOptions {
    pub servers: u32,
    pub clients: u32,
    pub placement: Placement,
    pub chunk_size: u32,
    /// Bytes of the store of each server.
    pub store_size: u64,
    /// Bytes of the journal of each server.
    pub journal_size: u64,
    pub network: CostModel,
    pub server_processor: ProcessorCosts,
    pub client_processor: ProcessorCosts,
    pub contact: Contact,
    /// What moving bytes to and from the site's file system costs.
    pub backing_costs: Option<BackingCosts>,
    /// When what was changed over the site goes there; without it there is nothing behind the cluster.
    pub flush: Option<FlushPolicy>,
    pub seed: u64,
}

/// What became of starting a server.
type Started = Rc<RefCell<Option<Result<Server, String>>>>;

/// A future of a node.
pub type NodeFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// A cluster that runs.
pub struct ScaleCluster {
    world: World,
    servers: Vec<Server>,
    clients: Vec<(NodeId, FileSystem)>,
}

/// What clients did together.
#[derive(Debug)]
pub struct Together<T> {
    pub results: Vec<T>,
    /// Virtual time until the last of them had ended.
    pub took: Nanos,
}

fn address(number: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from((10 << 24) + number + 1))
}

impl ScaleCluster {
    /// Starts all servers and makes the clients. Errors: a server that does not start, in words.
    pub fn start(options: &ScaleOptions) -> Result<ScaleCluster, String> {
        let world = World::new(options.seed);
        world.set_cost_model(options.network);
        world.set_socket_buffer(SOCKET_BUFFER_SIZE);
        // For the shape of figures: nothing is slow at random.
        world.set_backing_faults(BackingFaults {
            slow: 0,
            short: 0,
            unknown_kinds: 0,
            hides_holes: 0,
            ..BackingFaults::default()
        });
        if let Some(costs) = options.backing_costs {
            world.set_backing_costs(costs);
        }
        let addresses = (0..options.servers).map(|index| SocketAddr::new(address(index), PORT));
        let addresses: Vec<ServerAddress> = addresses.map(|address| ServerAddress { address }).collect();
        let cluster = Cluster::new(1, [7; wire::cluster::KEY_SIZE], options.placement, options.chunk_size, addresses);
        let cluster = Rc::new(cluster);
        let started: Vec<Started> =
            (0..options.servers).map(|index| start_server(&world, &cluster, options, index)).collect();
        let settled = || started.iter().all(|place| place.borrow().is_some());
        if !world.run_until(settled, STEP_NS_MAX) {
            return Err("a simulated server does not come up".to_owned());
        }
        let taken = started.iter().map(|place| place.take().unwrap_or_else(|| Err("has gone".to_owned())));
        let servers = taken.collect::<Result<Vec<Server>, String>>()?;
        let clients = (0..options.clients).map(|number| {
            let node = world.add_node(&format!("client{number}"), address(CLIENT_ADDRESS_FIRST + number));
            world.set_processor(node, options.client_processor);
            let user = Credentials::new(0, 0);
            let own = Options {
                timeout_ms: TIMEOUT_NS / 1_000_000,
                user,
                umask: 0,
                contact: options.contact,
                // As published: whom a client asks it asks itself, however many servers there are.
                relaying: Relaying::Off,
                ..Options::default()
            };
            (node, FileSystem::new(&world.reactor(node), cluster.clone(), own))
        });
        let clients = clients.collect();
        Ok(ScaleCluster { world, servers, clients })
    }

    /// A client's file system.
    pub fn files(&self, client: usize) -> &FileSystem {
        &self.clients[client].1
    }

    /// The reactor of a client's host.
    pub fn reactor(&self, client: usize) -> Reactor {
        self.world.reactor(self.clients[client].0)
    }

    /// Where the hosts of clients are, by number.
    pub fn client_addresses(&self) -> impl Fn(u32) -> IpAddr + use<> {
        |client| address(CLIENT_ADDRESS_FIRST + client)
    }

    /// Lets clients (by number) do their work at once, until all have ended. Errors: work that does not end.
    pub fn run<T: 'static>(&self, work: Vec<(usize, NodeFuture<T>)>) -> Result<Together<T>, String> {
        let start = self.world.now();
        let left = Rc::new(Cell::new(work.len()));
        let places: Vec<Rc<RefCell<Option<T>>>> = work
            .into_iter()
            .map(|(client, future)| {
                let place = Rc::new(RefCell::new(None));
                let (own, left) = (place.clone(), left.clone());
                self.reactor(client).spawn(Class::Metadata, async move {
                    let result = future.await;
                    own.replace(Some(result));
                    left.set(left.get() - 1);
                });
                place
            })
            .collect();
        if !self.world.run_until(|| left.get() == 0, STEP_NS_MAX) {
            return Err(format!("{} of {} simulated clients do not end", left.get(), places.len()));
        }
        let took = self.world.now() - start;
        let results = places.iter().map(|place| place.take().ok_or("a simulated client has no result".to_owned()));
        Ok(Together { results: results.collect::<Result<Vec<T>, String>>()?, took })
    }

    /// Lets virtual time pass.
    pub fn pass(&self, time: Nanos) {
        self.world.run_for(time);
    }

    /// Virtual time.
    pub fn now(&self) -> Nanos {
        self.world.now()
    }

    /// The site's file system as a client's host has it. Errors: words.
    pub fn site(&self, client: usize) -> Result<BackingTree, String> {
        self.reactor(client).backing_tree(Path::new(BACKING_ROOT)).map_err(|error| error.to_string())
    }

    /// Bytes that hosts have written to the site's files.
    pub fn site_bytes_written(&self) -> u64 {
        self.world.backing_bytes_written()
    }

    /// All bytes of a file at the site, by its path there; nothing where there is none.
    pub fn read_site(&self, path: &str) -> Option<Vec<u8>> {
        self.world.outsider().read(path)
    }

    /// What each server counted, as JSON.
    pub fn statistics(&self) -> Vec<String> {
        self.servers.iter().map(Server::statistics_json).collect()
    }

    /// Connections that are there.
    pub fn connection_count(&self) -> usize {
        self.world.connection_count()
    }

    /// A number that folds everything that has happened.
    pub fn trace_hash(&self) -> u64 {
        self.world.trace_hash()
    }
}

fn start_server(world: &World, cluster: &Rc<Cluster>, options: &ScaleOptions, index: u32) -> Started {
    let node = world.add_node(&format!("server{index}"), address(index));
    world.set_volatile(node, true);
    world.set_processor(node, options.server_processor);
    let server_options = ServerOptions {
        cluster: cluster.clone(),
        index,
        directory: PathBuf::from("store"),
        store_size: options.store_size,
        journal_size: options.journal_size,
        journal_growth: server::JournalGrowth::NONE,
        checksums: false,
        connections_max: (options.clients as usize + options.servers as usize * 3 + CONNECTIONS_SPARE) * 4 / 3 + 1,
        timeout: TIMEOUT_NS,
        session_grace: TIMEOUT_NS,
        transport: server::Transport::Tcp,
        short_circuit: false,
        registered_buffers: false,
        read_leasing: ReadLeasing::default(),
        bounds: server::Bounds::default(),
        pages_note: String::new(),
        device: None,
        metrics_port: None,
        backing: options.flush.map(|_| PathBuf::from(BACKING_ROOT)),
        flushing: Flushing { policy: options.flush.unwrap_or(FlushPolicy::Manual), ..Flushing::default() },
    };
    let place = Rc::new(RefCell::new(None));
    let (own, reactor) = (place.clone(), world.reactor(node));
    world.reactor(node).spawn(Class::Metadata, async move {
        let started = Server::start(&reactor, server_options).await;
        own.replace(Some(started.map_err(|error| format!("simulated server {index}: {error}"))));
    });
    place
}

impl Drop for ScaleCluster {
    fn drop(&mut self) {
        // Servers and clients hold their reactors, and these the world: what runs ends first.
        self.world.stop_all();
        self.servers.iter().for_each(Server::abandon);
    }
}
