//! Real server processes whose stores are kept by devices, which are files of the disk: killed, and without their
//! memory.

use client::{CLUSTER_FILE_NAME, Client, Cluster, OpenHow, Options};
use reactor::{DriverKind, Reactor};
use server::{DeviceStore, ReadLeasing, Server, ServerOptions, StartError};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use wire::{Placement, ServerAddress};

/// Tells a process what it is: the server over this directory.
const ROLE: &str = "TABANE_TEST_SERVER";
const SECOND: u64 = 1_000_000_000;
const CHUNK: u32 = 1 << 20;
const FILES: usize = 40;

/// The places of a cluster of one server, which go with the test.
struct Places {
    /// In memory: the cluster file, and what the server has in memory.
    memory: PathBuf,
    /// On the disk: the device.
    disk: PathBuf,
}

impl Places {
    fn new(name: &str) -> Places {
        let own = format!("tabane-{name}-{}", std::process::id());
        let places = Places {
            memory: Path::new("/dev/shm").join(&own),
            disk: Path::new(env!("CARGO_TARGET_TMPDIR")).join(&own),
        };
        [&places.memory, &places.disk].iter().for_each(|path| std::fs::create_dir_all(path).expect("it can be made"));
        places
    }

    /// Makes the cluster file.
    fn make_cluster(&self) -> Cluster {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
        let address: SocketAddr = listener.local_addr().expect("it is bound");
        let id = u128::from(std::process::id());
        let cluster = Cluster::new(id, [42; 32], Placement::Modular, CHUNK, vec![ServerAddress { address }]);
        std::fs::write(self.memory.join(CLUSTER_FILE_NAME), cluster.to_text()).expect("it can be written");
        cluster
    }

    fn start_server(&self, cluster: &Cluster) -> (Child, Client) {
        let mut command = Command::new(std::env::current_exe().expect("a test knows its own path"));
        command.args(["--exact", "server_process"]).env(ROLE, &self.memory);
        command.env(format!("{ROLE}_DEVICE"), self.disk.join("device"));
        reactor::process::signal_at_our_death(&mut command, 9);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a process can be made");
        let options = Options { timeout_ms: 20_000, ..Options::of_this_process().expect("the environment is fine") };
        (child, Client::connect(cluster.clone(), options).expect("a client can be made"))
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let _ = (std::fs::remove_dir_all(&self.memory), std::fs::remove_dir_all(&self.disk));
    }
}

/// Not a test of its own: what `kills_and_lost_memory` starts in other processes.
#[test]
#[expect(clippy::disallowed_methods, reason = "the test has started it with these")]
fn server_process() {
    let (Ok(memory), Ok(device)) = (std::env::var(ROLE), std::env::var(format!("{ROLE}_DEVICE"))) else { return };
    let memory = Path::new(&memory);
    let text = std::fs::read_to_string(memory.join(CLUSTER_FILE_NAME)).expect("the cluster file is there");
    let options = ServerOptions {
        cluster: Rc::new(Cluster::parse(&text).expect("it was written so")),
        index: 0,
        directory: memory.join("store"),
        store_size: 128 << 20,
        journal_size: 8 << 20,
        journal_growth: server::JournalGrowth::NONE,
        checksums: false,
        connections_max: 64,
        timeout: 10 * SECOND,
        session_grace: 60 * SECOND,
        transport: server::Transport::Tcp,
        short_circuit: true,
        registered_buffers: true,
        read_leasing: ReadLeasing::default(),
        bounds: server::Bounds::default(),
        pages_note: String::new(),
        device: Some(DeviceStore { path: device.into(), buffer: 8 << 20 }),
        metrics_port: None,
        backing: None,
        flushing: server::Flushing::default(),
    };
    let reactor = Reactor::open(DriverKind::Auto).expect("the kernel gives a loop");
    reactor.block_on(async {
        // The kernel takes the loop of a killed server apart in its own time, and its address is free then.
        let mut tries = 0;
        let server = loop {
            match Server::start(&reactor, options.clone()).await {
                Err(StartError::Listen(_, error)) if error.kind() == ErrorKind::AddrInUse && tries < 100 => tries += 1,
                started => break started.expect("the server starts"),
            }
            reactor.sleep(SECOND / 20).await;
        };
        server.wait_for_shutdown_request().await;
    });
}

fn contents(round: usize, number: usize) -> Vec<u8> {
    let size = [3, 4096, 70_001, 3 << 20][number % 4];
    (0..size).map(|at| (at * 31 + round * 7 + number) as u8).collect()
}

fn path(number: usize) -> String {
    format!("/d/file{number}")
}

fn fill(client: &Client, round: usize, syncs: bool) {
    for number in 0..FILES {
        let file = client.open(path(number).as_bytes(), &OpenHow::creating(0o644)).expect("opened");
        let bytes = contents(round, number);
        assert_eq!(client.write_at(&file, &bytes, 0), Ok(bytes.len()));
        if syncs {
            client.synchronise(&file).expect("synced");
        }
        client.close(&file);
    }
}

fn compare(client: &Client, round: usize) {
    for number in 0..FILES {
        let file = client.open(path(number).as_bytes(), &OpenHow::reading()).expect("is there");
        let expected = contents(round, number);
        let mut place = vec![0; expected.len() + 1];
        assert_eq!(client.read_at(&file, &mut place, 0), Ok(expected.len()));
        assert!(place[..expected.len()] == expected, "{} in round {round}", path(number));
        client.close(&file);
    }
}

fn kill(mut server: Child) {
    server.kill().expect("it is ours");
    server.wait().expect("it is ours");
}

/// Goal: a server that is killed loses nothing that it has acknowledged, and where its memory is gone too, nothing that
/// was synced. Method: kill it, compare, write without syncs, kill, compare; sync, kill, remove the memory, compare.
#[test]
fn kills_and_lost_memory() {
    let places = Places::new("kills-and-lost-memory");
    let cluster = places.make_cluster();
    let (mut server, mut client) = places.start_server(&cluster);
    client.mkdir(b"/d", 0o755).expect("made");
    for round in 0..3 {
        for syncs in [false, true] {
            let round = 2 * round + usize::from(syncs);
            fill(&client, round, syncs);
            kill(server);
            drop(client);
            if syncs {
                std::fs::remove_dir_all(places.memory.join("store")).expect("it is there");
            }
            (server, client) = places.start_server(&cluster);
            compare(&client, round);
        }
    }
    kill(server);
}
