//! Clients that hold one connection to one server, which passes the others on: real processes.
#![allow(clippy::unwrap_used)] // What fails here fails the test.
#![allow(clippy::disallowed_methods)] // These are processes of their own.

mod common;

use client::{Client, Contact, FileId, FileSystem, OpenHow, Options, Relaying};
use common::{Ground, TABANE};
use reactor::Reactor;
use std::collections::HashSet;
use std::io::Write;
use std::process::{Child, Command, Stdio};

const SERVERS: usize = 4;
const CLIENTS: usize = 6;
/// Bytes that each client writes before it is looked at: chunks at every server.
const FIRST_SIZE: usize = 8 << 20;

/// A client that writes a file from what it is given, and waits for more.
fn writer(ground: &Ground, index: usize, relay: &str) -> Child {
    let mut command = Command::new(TABANE);
    command.args(["put", &format!(":/file-{index}")]).env("TABANE_CLUSTER", ground.run_directory());
    command.env("TABANE_RELAY", relay).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

fn bytes(index: usize, size: usize) -> Vec<u8> {
    (0..size).map(|place| (place / 7 + index * 31 + place % 251) as u8).collect()
}

/// TCP connections that a process holds.
fn connections(pid: u32) -> usize {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let own: HashSet<String> = links
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    // Local and remote address, state (1: established), queues, timers, and the socket's number as the tenth.
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[3] == "01" && own.contains(row[9])).count()
}

/// Sum of a number over all servers' reports.
fn sum(ground: &Ground, name: &str) -> u64 {
    let told: serde_json::Value = serde_json::from_str(&ground.run(&["status", "--json"])).unwrap();
    let servers = told["servers"].as_array().unwrap();
    servers.iter().map(|server| find(server, name).unwrap_or_else(|| panic!("no {name} in {server}"))).sum()
}

fn find(value: &serde_json::Value, name: &str) -> Option<u64> {
    match value {
        serde_json::Value::Object(fields) => fields
            .get(name)
            .and_then(serde_json::Value::as_u64)
            .or_else(|| fields.values().find_map(|one| find(one, name))),
        _ => None,
    }
}

/// Goal: C clients of N servers hold C connections instead of C N, and the servers at most N (N - 1) for them; and when
/// servers are killed under them, contacts among them, the clients go on and their files are whole. Method: clients
/// write to all servers and then wait; the kernel's table of connections is looked at; two servers are killed and
/// started again while the clients write the rest.
#[test]
fn one_connection_for_each_client() {
    let ground = Ground::new("relays");
    ground.run(&["up", "--servers", &SERVERS.to_string(), "--transport", "tcp"]);
    for (relay, expected) in [("off", SERVERS), ("always", 1)] {
        let mut clients: Vec<Child> = (0..CLIENTS).map(|index| writer(&ground, index, relay)).collect();
        for (index, client) in clients.iter_mut().enumerate() {
            client.stdin.as_mut().unwrap().write_all(&bytes(index, FIRST_SIZE)).unwrap();
        }
        for client in &clients {
            while connections(client.id()) != expected {
                std::thread::yield_now();
            }
        }
        if relay == "always" {
            assert_eq!(sum(&ground, "tunnels_of_clients"), CLIENTS as u64);
            assert!(sum(&ground, "tunnels_of_servers") <= (SERVERS * (SERVERS - 1)) as u64);
            assert!(sum(&ground, "relay_bytes") > (CLIENTS * FIRST_SIZE / 2) as u64);
        }
        for victim in 0..2 {
            if relay == "always" {
                ground.kill(victim);
                ground.run(&["up"]);
            }
            for (index, client) in clients.iter_mut().enumerate() {
                client.stdin.as_mut().unwrap().write_all(&bytes(index + 1, FIRST_SIZE / 2)).unwrap();
            }
        }
        for (index, mut client) in clients.into_iter().enumerate() {
            drop(client.stdin.take());
            assert!(client.wait().unwrap().success());
            let half = bytes(index + 1, FIRST_SIZE / 2);
            let expected = [bytes(index, FIRST_SIZE), half.clone(), half].concat();
            let output = ground.try_run(&["cat", &format!("/file-{index}")]);
            assert!(output.status.success() && output.stdout == expected, "file {index} of {relay}");
        }
    }
}

/// A client in this process.
fn client(ground: &Ground, options: Options) -> Client {
    let cluster = client::load_cluster(&ground.run_directory()).unwrap();
    Client::connect(cluster, options).unwrap()
}

/// A number that one server counts.
fn counted(client: &Client, server: u32, name: &str) -> u64 {
    let told = client.server_statistics(server, client::StatisticsFormat::JSON).unwrap();
    find(&serde_json::from_str(&told).unwrap(), name).unwrap_or_else(|| panic!("no {name} in {told}"))
}

/// Goal: a client whose contact is killed goes on with another one, and is told of no error: for opens, and for
/// connections. Method: the session says which contact is drawn, and which one comes next; both count what they do for
/// the client.
#[test]
fn dead_contacts_are_replaced() {
    let ground = Ground::new("contacts");
    ground.run(&["up", "--servers", &SERVERS.to_string(), "--transport", "tcp"]);
    let servers = SERVERS as u32;
    let own = Options::of_this_process().unwrap();

    let opener = client(&ground, Options { contact: Contact::Always, session: Some(3), ..own.clone() });
    let home = opener.cluster().dentry_server(FileId::ROOT, b"f");
    // Of the others the session draws the first.
    let others: Vec<u32> = (0..servers).filter(|server| *server != home).collect();
    let open = |times: usize| {
        opener.run(async |_: &Reactor, files: &FileSystem| {
            for _ in 0..times {
                let file = files.open(b"/f", &OpenHow::reading()).await.unwrap();
                files.close(&file).await;
            }
        });
    };
    opener.run(async |_: &Reactor, files: &FileSystem| {
        let how = OpenHow { create: true, ..OpenHow::reading_and_writing() };
        let file = files.open(b"/f", &how).await.unwrap();
        files.close(&file).await;
    });
    open(4);
    assert!(counted(&opener, others[0], "contact_hits") >= 2);
    ground.kill(others[0]);
    open(4);
    assert!(counted(&opener, others[1], "contact_hits") >= 2);
    ground.run(&["up"]);

    // A session that draws the contact that was not killed yet.
    let session = Some(u64::from(servers) + u64::from(others[1]));
    let relayed = client(&ground, Options { relaying: Relaying::Always, session, ..own });
    let next = (others[1] + 1) % servers;
    let before = counted(&opener, next, "tunnels_of_clients");
    let missing = |path: &str| {
        relayed.run(async |_: &Reactor, files: &FileSystem| {
            let status = files.stat(path.as_bytes()).await.map_err(|error| error.status).err();
            assert_eq!(status, Some(client::Status::NotFound), "{path}");
        });
    };
    let names: Vec<String> = (0..40).map(|number| format!("/missing{number}")).collect();
    names.iter().for_each(|name| missing(name));
    assert_eq!(counted(&opener, others[1], "tunnels_of_clients"), 1);
    ground.kill(others[1]);
    let cluster = relayed.cluster();
    let is_alive = |name: &&String| cluster.dentry_server(FileId::ROOT, &name.as_bytes()[1..]) != others[1];
    names.iter().filter(is_alive).for_each(|name| missing(name));
    assert_eq!(counted(&opener, next, "tunnels_of_clients"), before + 1);
    ground.run(&["up"]);
}
