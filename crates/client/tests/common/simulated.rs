//! A cluster in a simulated world for the tests of the client: servers that stay up, and clients on nodes of their own.

use client::{FileSystem, Options};
use reactor::sim::{NodeId, World};
use reactor::{Class, Nanos};
use server::{Flushing, ReadLeasing, Server, ServerOptions};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use wire::{Cluster, Placement, ServerAddress};

pub const SECOND: Nanos = 1_000_000_000;

pub struct Stage {
    pub world: Rc<World>,
    pub cluster: Rc<Cluster>,
    nodes: Vec<NodeId>,
    servers: RefCell<Vec<Server>>,
    client_count: RefCell<u8>,
    checksums: bool,
    /// How what is changed goes to a site, if there is one.
    flushing: Option<Flushing>,
}

impl Stage {
    /// A running cluster.
    #[allow(dead_code)] // Not every test needs it.
    pub fn new(seed: u64, server_count: u8, chunk_size: u32, placement: Placement) -> Stage {
        Stage::with_checksums(seed, server_count, chunk_size, placement, false)
    }

    /// One whose servers keep checksums, or don't.
    #[allow(dead_code)] // Not every test needs it.
    pub fn with_checksums(
        seed: u64,
        server_count: u8,
        chunk_size: u32,
        placement: Placement,
        checksums: bool,
    ) -> Stage {
        Stage::with(seed, server_count, (chunk_size, placement), checksums, None)
    }

    /// One over a backing directory.
    #[allow(dead_code)] // Not every test needs it.
    pub fn over_a_site(seed: u64, server_count: u8, chunk_size: u32, flushing: Flushing) -> Stage {
        Stage::with(seed, server_count, (chunk_size, Placement::Modular), false, Some(flushing))
    }

    fn with(
        seed: u64,
        server_count: u8,
        (chunk_size, placement): (u32, Placement),
        checksums: bool,
        flushing: Option<Flushing>,
    ) -> Stage {
        println!("seed {seed}, {server_count} servers, chunks of {chunk_size} bytes, {placement:?}");
        let world = Rc::new(World::new(seed));
        let address = |index| SocketAddr::from((Ipv4Addr::new(10, 0, 0, index + 1), 4000));
        let servers = (0..server_count).map(|index| ServerAddress { address: address(index) }).collect();
        let cluster = Rc::new(Cluster::new(u128::from(seed), [3; 32], placement, chunk_size, servers));
        let nodes: Vec<NodeId> =
            (0..server_count).map(|index| world.add_node(&format!("server{index}"), address(index).ip())).collect();
        let (servers, client_count) = (RefCell::default(), RefCell::new(0));
        let stage = Stage { world, cluster, nodes, servers, client_count, checksums, flushing };
        for index in 0..server_count {
            let server = stage.start_server(u32::from(index));
            stage.servers.borrow_mut().push(server);
        }
        stage
    }

    fn start_server(&self, index: u32) -> Server {
        let node = self.nodes[index as usize];
        let options = ServerOptions {
            cluster: self.cluster.clone(),
            index,
            directory: PathBuf::from("store"),
            store_size: 64 << 20,
            journal_size: 4 << 20,
            journal_growth: server::JournalGrowth::NONE,
            checksums: self.checksums,
            connections_max: 64,
            timeout: 10 * SECOND,
            session_grace: 600 * SECOND,
            transport: server::Transport::Tcp,
            short_circuit: true,
            registered_buffers: true,
            read_leasing: ReadLeasing::default(),
            bounds: server::Bounds::default(),
            pages_note: String::new(),
            device: None,
            metrics_port: None,
            backing: self.flushing.map(|_| PathBuf::from("/site")),
            flushing: self.flushing.unwrap_or_default(),
        };
        let reactor = self.world.reactor(node);
        let started = self.world.run(node, async move { Server::start(&reactor, options).await }, 60 * SECOND);
        started.expect("the server starts in time").expect("the server starts")
    }

    /// A client on a node of its own.
    pub fn client(&self) -> Rc<Guest> {
        *self.client_count.borrow_mut() += 1;
        let number = *self.client_count.borrow();
        let node = self.world.add_node(&format!("client{number}"), IpAddr::V4(Ipv4Addr::new(10, 1, 0, number)));
        let options = Options { umask: 0o022, ..Options::default() };
        let file_system = FileSystem::new(&self.world.reactor(node), self.cluster.clone(), options);
        Rc::new(Guest { world: self.world.clone(), node, file_system })
    }

    /// Makes the next sync of a server's medium fail; the first thing that is synced is data.
    #[allow(dead_code)] // Not every test needs it.
    pub fn fail_sync(&self, server: u32) {
        self.world.fail_sync(self.nodes[server as usize], 1);
    }

    /// Takes a server away.
    #[allow(dead_code)] // Not every test needs it.
    pub fn kill(&self, server: u32) {
        self.world.crash(self.nodes[server as usize], reactor::sim::CrashKind::Kill);
    }

    /// Lets time pass.
    #[allow(dead_code)] // Not every test needs it.
    pub fn pass(&self, time: Nanos) {
        self.world.run_for(time);
    }

    /// Chunks that all servers hold together.
    #[allow(dead_code)] // Not every test needs it.
    pub fn chunk_count(&self) -> u64 {
        self.servers.borrow().iter().map(|server| server.audit().chunks).sum()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.servers.borrow_mut().clear();
        for node in &self.nodes {
            self.world.crash(*node, reactor::sim::CrashKind::Kill);
        }
    }
}

/// A client and its node.
pub struct Guest {
    world: Rc<World>,
    node: NodeId,
    pub file_system: FileSystem,
}

impl Guest {
    /// Runs a piece of work to its end and tells how many round trips it took.
    pub fn run<R: 'static, F: Future<Output = R> + 'static>(&self, work: impl FnOnce(FileSystem) -> F) -> (R, u64) {
        let before = self.file_system.round_trips();
        let result = self.world.run(self.node, work(self.file_system.clone()), 120 * SECOND);
        let result =
            result.unwrap_or_else(|| panic!("no answer in two minutes of virtual time, seed {}", self.world.seed()));
        (result, self.file_system.round_trips() - before)
    }

    /// Starts a piece of work that goes on beside others. The result becomes true when it has ended.
    #[allow(dead_code)] // Not every test needs it.
    pub fn spawn<F: Future<Output = ()> + 'static>(&self, work: impl FnOnce(FileSystem) -> F) -> Rc<Cell<bool>> {
        let ended = Rc::new(Cell::new(false));
        let (work, flag) = (work(self.file_system.clone()), ended.clone());
        self.world.reactor(self.node).spawn(Class::Metadata, async move {
            work.await;
            flag.set(true);
        });
        ended
    }

    /// As `run`, without the count.
    pub fn get<R: 'static, F: Future<Output = R> + 'static>(&self, work: impl FnOnce(FileSystem) -> F) -> R {
        self.run(work).0
    }
}
