//! Clients whose connections go through one server: contacts that die or are cut off at any moment, servers behind them
//! that are slow or silent, and how many connections there are.

use client::{FileSystem, OpenHow, Options, Relaying, Status};
use reactor::{Class, Nanos};
use sim::harness::{Harness, SimClient};
use sim::profile::{MILLISECOND, Overrides, Profile, SECOND};
use std::cell::RefCell;
use std::rc::Rc;
use wire::Placement;

const CHUNK_SIZE: u32 = 4096;
const LIMIT: Nanos = 600 * SECOND;

fn cluster(seed: u64, servers: u32) -> Harness {
    cluster_of(seed, servers, 256)
}

fn cluster_of(seed: u64, servers: u32, connections_max: usize) -> Harness {
    let overrides = Overrides { no_faults: true, servers: Some(servers), ..Overrides::default() };
    let mut profile = Profile::new(seed, &overrides);
    profile.connections_max = connections_max;
    (profile.placement, profile.chunk_sizes) = (Placement::Modular, vec![CHUNK_SIZE]);
    (profile.client_timeout, profile.server_timeout) = (10 * SECOND, 2 * SECOND);
    (profile.session_grace, profile.latency) = (60 * SECOND, (10_000, 200_000));
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(LIMIT).expect("servers start");
    harness
}

/// A client whose connections go through `contact`.
fn relayed(harness: &Harness, contact: u32, number: u64) -> SimClient {
    let servers = harness.server_indexes().len() as u64;
    let session = Some((number + 1) * servers + u64::from(contact));
    harness.add_client_with(Options { relaying: Relaying::Always, session, ..Options::default() })
}

fn start<T: 'static>(
    harness: &Harness,
    client: &SimClient,
    work: impl AsyncFnOnce(FileSystem) -> T + 'static,
) -> Rc<RefCell<Option<T>>> {
    let result = Rc::new(RefCell::new(None));
    let (place, file_system) = (result.clone(), client.client.file_system.clone());
    harness.world.reactor(client.node).spawn(Class::Data, async move {
        let value = work(file_system).await;
        *place.borrow_mut() = Some(value);
    });
    result
}

fn wait<T>(harness: &Harness, result: &Rc<RefCell<Option<T>>>) -> T {
    assert!(harness.world.run_until(|| result.borrow().is_some(), LIMIT), "it never ends");
    result.borrow_mut().take().expect("just seen")
}

fn run<T: 'static>(harness: &Harness, client: &SimClient, work: impl AsyncFnOnce(FileSystem) -> T + 'static) -> T {
    wait(harness, &start(harness, client, work))
}

fn creating() -> OpenHow {
    OpenHow { create: true, ..OpenHow::reading_and_writing() }
}

/// A path whose file's home is `home`.
async fn path_at(file_system: &FileSystem, home: u32) -> String {
    for index in 0.. {
        let path = format!("/file{index}");
        let file = file_system.open(path.as_bytes(), &creating()).await.expect("create");
        if file_system.cluster().home_of(file.id) == Some(home) {
            return path;
        }
    }
    unreachable!("some name fits")
}

/// Appends `count` records of eight bytes and names as many files that must not exist.
async fn change(fs: FileSystem, path: String, count: u64) -> Result<(), String> {
    let file = fs.open(path.as_bytes(), &OpenHow::reading_and_writing()).await.map_err(|error| error.to_string())?;
    for index in 0..count {
        fs.append(&file, &index.to_le_bytes()).await.map_err(|error| format!("append {index}: {error}"))?;
        let how = OpenHow { exclusive: true, ..creating() };
        let name = format!("/own{index}");
        let own = fs.open(name.as_bytes(), &how).await.map_err(|error| format!("{name}: {error}"))?;
        fs.close(&own).await;
    }
    Ok(())
}

/// What the records of `change` must be: each once, in order.
async fn look(fs: FileSystem, path: String, count: u64) {
    let file = fs.open(path.as_bytes(), &OpenHow::reading_and_writing()).await.expect("open");
    let mut bytes = vec![0; count as usize * 8 + 64];
    let size = fs.read_at(&file, &mut bytes, 0).await.expect("read");
    let expected: Vec<u8> = (0..count).flat_map(u64::to_le_bytes).collect();
    assert_eq!(&bytes[..size], &expected[..]);
}

/// Goal: whenever a contact dies, each change that it carried happens once, and the client goes on over direct
/// connections. Method: appends and exclusive creates through server 0, which is killed at 40 moments and started
/// again.
#[test]
fn contact_is_killed_at_any_moment() {
    const COUNT: u64 = 30;
    for moment in 0..40 {
        let harness = cluster(100 + moment, 3);
        let client = relayed(&harness, 0, moment);
        let path = run(&harness, &client, async |fs| path_at(&fs, 1).await);
        let (same, again) = (path.clone(), path.clone());
        let changed = start(&harness, &client, async move |fs| change(fs, same, COUNT).await);
        harness.world.run_for(moment * 600_000);
        harness.kill(0);
        harness.world.run_for(50 * MILLISECOND);
        harness.restart(0);
        let done = wait(&harness, &changed);
        assert_eq!(done, Ok(()), "moment {moment}");
        run(&harness, &client, async move |fs| look(fs, again, COUNT).await);
    }
}

/// Goal: the same when the contact is cut off from the client, or from the server behind it, for longer than the
/// time-outs; each change happens once. Method: partitions at 24 moments; what the client is told of as failed is not
/// looked at, for its outcome is open.
#[test]
fn contact_is_cut_off() {
    const COUNT: u64 = 20;
    for moment in 0..24 {
        let harness = cluster(300 + moment, 3);
        let client = relayed(&harness, 0, moment);
        let path = run(&harness, &client, async |fs| path_at(&fs, 1).await);
        let (same, again) = (path.clone(), path.clone());
        let changed = start(&harness, &client, async move |fs| {
            let file = fs.open(same.as_bytes(), &OpenHow::reading_and_writing()).await.expect("open");
            for index in 0..COUNT {
                fs.append(&file, &index.to_le_bytes()).await.expect("append");
            }
        });
        harness.world.run_for(moment / 2 * 700_000);
        let other = if moment % 2 == 0 { client.node } else { harness.node(1) };
        harness.world.partition(harness.node(0), other);
        wait(&harness, &changed);
        harness.world.heal_all();
        run(&harness, &client, async move |fs| look(fs, again, COUNT).await);
    }
}

/// Goal: a server that does not answer delays its own requests only, also for clients that share its contact.
/// Method: server 2 gets very slow; clients of contact 0 go on with server 1 in their usual time.
#[test]
fn slow_server_behind_a_contact() {
    let harness = cluster(7, 3);
    let (stuck, others) = (relayed(&harness, 0, 1), relayed(&harness, 0, 2));
    let slow = run(&harness, &stuck, async |fs| path_at(&fs, 2).await);
    let quick = run(&harness, &others, async |fs| path_at(&fs, 1).await);
    harness.world.set_slowness(harness.node(2), SECOND, SECOND);
    let writing = start(&harness, &stuck, async move |fs| {
        let file = fs.open(slow.as_bytes(), &OpenHow::reading_and_writing()).await.expect("open");
        fs.write_at(&file, &vec![7; 4 << 20], 0).await.expect("write");
    });
    harness.world.run_for(20 * MILLISECOND);
    let before = harness.world.now();
    run(&harness, &others, async move |fs| {
        for _ in 0..20 {
            fs.stat(quick.as_bytes()).await.expect("stat");
        }
    });
    let took = harness.world.now() - before;
    assert!(took < SECOND / 2, "{took} ns for what is not slow");
    assert!(writing.borrow().is_none());
    harness.world.set_slowness(harness.node(2), 0, 0);
    wait(&harness, &writing);
}

/// Goal: rights are those of the client's own user, as on a direct connection.
#[test]
fn rights_go_along() {
    let harness = cluster(8, 3);
    let root = relayed(&harness, 0, 1);
    let path = run(&harness, &root, async |fs| {
        let path = path_at(&fs, 1).await;
        fs.chmod(path.as_bytes(), 0o600).await.expect("chmod");
        path
    });
    let session = Some(3 * 50);
    let user = client::Credentials::new(1000, 1000);
    let other = harness.add_client_with(Options { relaying: Relaying::Always, user, session, ..Options::default() });
    let status = run(&harness, &other, async move |fs| {
        fs.open(path.as_bytes(), &OpenHow::reading_and_writing()).await.map(|_| ()).map_err(|error| error.status)
    });
    assert_eq!(status, Err(Status::AccessDenied));
}

/// Connections after all of `clients` have asked every server.
fn connections(clients: &dyn Fn(&Harness, u64) -> SimClient, client_count: u64, server_count: u32) -> usize {
    let harness = cluster(9, server_count);
    let clients: Vec<_> = (0..client_count).map(|number| clients(&harness, number)).collect();
    for client in &clients {
        run(&harness, client, async |fs| {
            for index in 0..200 {
                let missing = fs.stat(format!("/missing{index}").as_bytes()).await;
                assert_eq!(missing.map_err(|error| error.status).err(), Some(Status::NotFound));
            }
        });
    }
    harness.world.connection_count()
}

/// Goal: C clients and N servers hold C + N (N - 1) connections, and C N without relaying.
#[test]
fn connections_are_counted() {
    let (client_count, server_count) = (24, 6);
    let direct = connections(&|harness, _| harness.add_client(), client_count, server_count);
    assert_eq!(direct, 24 * 6);
    let through = |harness: &Harness, number: u64| relayed(harness, number as u32 % server_count, number);
    assert_eq!(connections(&through, client_count, server_count), 24 + 6 * 5);
}

/// Connections of clients that carry others, at a server.
fn tunnels_of_clients(harness: &Harness, server: u32) -> u64 {
    let text = harness.server(server).statistics_json();
    let key = "\"tunnels_of_clients\":";
    let tail = &text[text.find(key).expect("it is counted") + key.len()..];
    tail[..tail.find([',', '}']).expect("a number ends")].trim().parse().expect("a number")
}

/// Goal: a client whose contact has died goes through another server, and is told of no error.
/// Method: the contact is killed for good in the middle of changes, again and again at other moments.
#[test]
fn dead_contact_is_replaced() {
    const COUNT: u64 = 30;
    for moment in 0..20 {
        let harness = cluster(500 + moment, 4);
        let client = relayed(&harness, 0, moment);
        // Names whose home is the dead server can't be had at all.
        let path = run(&harness, &client, async |fs| path_at(&fs, 2).await);
        let (same, again) = (path.clone(), path.clone());
        let changed = start(&harness, &client, async move |fs| {
            let file = fs.open(same.as_bytes(), &OpenHow::reading_and_writing()).await.expect("open");
            for index in 0..COUNT {
                fs.append(&file, &index.to_le_bytes()).await.expect("append");
            }
        });
        harness.world.run_for(moment * 700_000);
        let (before, is_under_way) = (harness.world.now(), changed.borrow().is_none());
        harness.kill(0);
        wait(&harness, &changed);
        assert!(harness.world.now() - before < 2 * SECOND, "moment {moment}");
        run(&harness, &client, async move |fs| look(fs, again, COUNT).await);
        assert_eq!(tunnels_of_clients(&harness, 1), 1, "moment {moment}, under way: {is_under_way}");
    }
}

/// Goal: clients that a server has no connection for reach it through another one, by themselves; without contacts they
/// are refused.
/// Method: more clients than connections, each of which asks all servers.
#[test]
fn full_servers_are_reached_through_others() {
    const CONNECTIONS_MAX: usize = 40;
    const CLIENTS: u64 = 36;
    let ask = |contact: client::Contact| {
        let harness = cluster_of(11, 3, CONNECTIONS_MAX);
        let clients: Vec<SimClient> = (0..CLIENTS)
            .map(|number| {
                harness.add_client_with(Options { contact, session: Some(100 + number), ..Options::default() })
            })
            .collect();
        let mut served = 0;
        for (number, client) in clients.iter().enumerate() {
            let asked = start(&harness, client, async move |fs| {
                for server in 0..3 {
                    let path = format!("/of{number}-{server}");
                    let file = fs.open(path.as_bytes(), &creating()).await?;
                    fs.write_at(&file, &[7; 3 * CHUNK_SIZE as usize], 0).await?;
                    fs.close(&file).await;
                }
                for server in 0..3 {
                    fs.ping(server).await?;
                }
                Ok::<(), client::Error>(())
            });
            served += u64::from(wait(&harness, &asked).is_ok());
        }
        let tunnels: u64 = harness.server_indexes().map(|server| tunnels_of_clients(&harness, server)).sum();
        (served, tunnels)
    };
    // Ten of forty are kept for servers and tunnels.
    assert_eq!(ask(client::Contact::Auto), (CLIENTS, 6));
    assert_eq!(ask(client::Contact::Off), (30, 0));
}
