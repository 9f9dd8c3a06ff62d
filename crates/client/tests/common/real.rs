//! A real cluster on the loopback interface for tests: all servers on one thread, their stores in a directory of its
//! own, all gone when it is dropped.

use client::{CLUSTER_FILE_NAME, Client, Cluster, Options};
use reactor::{DriverKind, Reactor};
use server::{ReadLeasing, Server, ServerOptions};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use wire::{Placement, ServerAddress};

const SECOND: u64 = 1_000_000_000;

pub struct Real {
    pub cluster: Cluster,
    /// The run directory: holds the cluster file and the stores.
    pub directory: PathBuf,
    servers: Option<JoinHandle<()>>,
}

impl Real {
    /// A running cluster. `name` tells it from those of other tests.
    #[allow(dead_code, reason = "most tests")]
    pub fn start(name: &str, server_count: usize, chunk_size: u32) -> Real {
        Real::start_in(&std::env::temp_dir(), name, server_count, chunk_size, None)
    }

    /// The same over a directory, to which changes go when somebody says so.
    #[allow(dead_code, reason = "some tests only")]
    pub fn over(backing: &Path, name: &str, server_count: usize, chunk_size: u32) -> Real {
        Real::start_in(&std::env::temp_dir(), name, server_count, chunk_size, Some(backing.to_owned()))
    }

    /// A cluster whose stores are in memory.
    #[allow(dead_code, reason = "some tests only")]
    pub fn in_memory(name: &str, server_count: usize, chunk_size: u32) -> Real {
        Real::start_in(Path::new("/dev/shm"), name, server_count, chunk_size, None)
    }

    fn start_in(parent: &Path, name: &str, server_count: usize, chunk_size: u32, backing: Option<PathBuf>) -> Real {
        let directory = parent.join(format!("tabane-test-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for the test can be made");
        // Ports that were free a moment ago; all are held until all are known, so that they differ.
        let held: Vec<TcpListener> =
            (0..server_count).map(|_| TcpListener::bind("127.0.0.1:0").expect("there are free ports")).collect();
        let addresses: Vec<SocketAddr> =
            held.iter().map(|listener| listener.local_addr().expect("it is bound")).collect();
        drop(held);
        let servers = addresses.into_iter().map(|address| ServerAddress { address }).collect();
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let id = u128::from(std::process::id()) << 64 | u128::from(STARTED.fetch_add(1, Ordering::Relaxed));
        let cluster = Cluster::new(id, [42; 32], Placement::Modular, chunk_size, servers);
        let cluster_file = directory.join(CLUSTER_FILE_NAME);
        std::fs::write(&cluster_file, cluster.to_text()).expect("the cluster file can be written");
        let ours_alone = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&cluster_file, ours_alone).expect("it is ours");
        let (report, started) = mpsc::channel();
        let (own_cluster, own_directory) = (cluster.clone(), directory.clone());
        let body = move || serve(own_cluster, &own_directory, backing, &report);
        let servers = std::thread::Builder::new().name("servers".to_owned()).spawn(body).expect("a thread can be made");
        started.recv().expect("the servers start");
        Real { cluster, directory, servers: Some(servers) }
    }

    /// A client of its own.
    pub fn client(&self) -> Client {
        let options = Options { timeout_ms: 10_000, ..Options::of_this_process().expect("the environment is fine") };
        Client::connect(self.cluster.clone(), options).expect("a client can be made")
    }
}

/// Runs all servers until each was asked to shut down.
fn serve(cluster: Cluster, directory: &Path, backing: Option<PathBuf>, report: &mpsc::Sender<()>) {
    let reactor = Reactor::open(DriverKind::Auto).expect("the kernel gives a loop");
    let cluster = Rc::new(cluster);
    reactor.block_on(async {
        let mut servers = Vec::new();
        for index in 0..cluster.server_count() {
            let options = ServerOptions {
                cluster: cluster.clone(),
                index,
                directory: directory.join(format!("store{index}")),
                store_size: 128 << 20,
                journal_size: 8 << 20,
                journal_growth: server::JournalGrowth::NONE,
                checksums: false,
                connections_max: 64,
                timeout: 10 * SECOND,
                session_grace: 60 * SECOND,
                transport: server::Transport::Auto,
                short_circuit: true,
                registered_buffers: true,
                read_leasing: ReadLeasing::default(),
                bounds: server::Bounds::default(),
                pages_note: String::new(),
                device: None,
                metrics_port: None,
                backing: backing.clone(),
                flushing: server::Flushing { policy: server::FlushPolicy::Manual, ..Default::default() },
            };
            servers.push(Server::start(&reactor, options).await.expect("the server starts"));
        }
        report.send(()).expect("the test waits");
        for server in &servers {
            server.wait_for_shutdown_request().await;
        }
        for server in &servers {
            server.stop().await;
        }
    });
}

impl Drop for Real {
    fn drop(&mut self) {
        let client = self.client();
        for server in 0..self.cluster.server_count() {
            if let Err(error) = client.shutdown(server) {
                eprintln!("{error}");
            }
        }
        let ended = self.servers.take().expect("dropped once").join();
        std::fs::remove_dir_all(&self.directory).expect("the test's directory can be removed");
        if !std::thread::panicking() {
            ended.expect("the servers end without a panic");
        }
    }
}
