//! Files that are open when they lose their name, as clients see them.

use client::{FileSystem, OpenHow, Status};
use reactor::sim::CrashKind;
use reactor::{Class, Nanos};
use server::Bounds;
use sim::harness::{Harness, SimClient};
use sim::profile::{Overrides, Profile, SECOND};
use std::cell::RefCell;
use std::rc::Rc;
use wire::Placement;

const CHUNK_SIZE: u32 = 4096;
const LIMIT: Nanos = 600 * SECOND;
const GRACE: Nanos = 5 * SECOND;

fn cluster(servers: u32) -> Harness {
    cluster_with_room(servers, Bounds::default().session_open_files)
}

/// One whose servers let a session have so many files open.
fn cluster_with_room(servers: u32, session_open_files: usize) -> Harness {
    let overrides = Overrides { no_faults: true, servers: Some(servers), ..Overrides::default() };
    let mut profile = Profile::new(1, &overrides);
    (profile.placement, profile.chunk_sizes) = (Placement::Modular, vec![CHUNK_SIZE]);
    (profile.client_timeout, profile.server_timeout) = (10 * SECOND, 2 * SECOND);
    (profile.session_grace, profile.latency) = (GRACE, (10_000, 200_000));
    profile.bounds.session_open_files = session_open_files;
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(LIMIT).expect("servers start");
    harness
}

fn run<T: 'static>(harness: &Harness, client: &SimClient, work: impl AsyncFnOnce(FileSystem) -> T + 'static) -> T {
    let file_system = client.client.file_system.clone();
    harness.world.run(client.node, async move { work(file_system).await }, LIMIT).expect("it ends")
}

fn creating() -> OpenHow {
    OpenHow { create: true, ..OpenHow::reading_and_writing() }
}

/// Orphans, registrations and chunks of all servers.
fn counts(harness: &Harness) -> (u64, u64, u64) {
    harness.audits().iter().fold((0, 0, 0), |(orphans, open, chunks), (server, audit)| {
        assert_eq!(audit.errors, Vec::<String>::new(), "server {server}");
        (orphans + audit.orphans, open + audit.open_files, chunks + audit.chunks)
    })
}

fn wait_for(harness: &Harness, expected: (u64, u64, u64)) {
    let reached = harness.world.run_until(|| counts(harness) == expected, LIMIT);
    assert!(reached, "{:?} instead of {expected:?}", counts(harness));
}

/// Goal: what a client has open stays over restarts of all servers, before and after it is unlinked, and goes with the
/// last close; the client needs not be told of anything.
#[test]
fn open_over_restarts() {
    let harness = cluster(3);
    let (holder, remover) = (harness.add_client(), harness.add_client());
    let bytes: Vec<u8> = (0..50_000u32).map(|index| index as u8).collect();
    let data = bytes.clone();
    let file = run(&harness, &holder, async move |fs| {
        let file = fs.open(b"/f", &creating()).await.expect("create");
        fs.write_at(&file, &data, 0).await.expect("write");
        file
    });
    let restart = || {
        harness.server_indexes().for_each(|server| harness.kill(server));
        harness.server_indexes().for_each(|server| harness.restart(server));
        harness.wait_for_servers(LIMIT).expect("servers start");
    };
    restart();
    run(&harness, &remover, async |fs| fs.unlink(b"/f").await.expect("unlink"));
    for _ in 0..2 {
        let (handle, expected) = (file.clone(), bytes.clone());
        run(&harness, &holder, async move |fs| {
            let mut place = vec![0; expected.len()];
            assert_eq!(fs.read_at(&handle, &mut place, 0).await, Ok(expected.len()));
            assert!(place == expected);
            let seen = fs.stat_file(&handle).await.expect("stat");
            assert_eq!((seen.link_count, seen.size), (0, expected.len() as u64));
        });
        restart();
    }
    harness.world.run_for(3 * GRACE);
    assert_eq!(counts(&harness).0, 1, "its client is there");
    run(&harness, &holder, async move |fs| fs.close(&file).await);
    wait_for(&harness, (0, 0, 0));
}

/// Goal: a server that was started anew waits no longer than clients need to come back, also those that have nothing
/// open there and do nothing, and one that has ended is not waited for; what one of them holds stays, however soon a
/// server dies again that it has just come back to.
#[test]
fn idle_clients_come_back() {
    let harness = cluster(2);
    let [holder, idle, ending] = [(); 3].map(|()| harness.add_client());
    let file = run(&harness, &holder, async |fs| {
        let file = fs.open(b"/f", &creating()).await.expect("create");
        fs.write_at(&file, &[1; 100], 0).await.expect("write");
        file
    });
    let meet = async |fs: FileSystem| {
        for server in 0..fs.server_count() {
            fs.ping(server).await.expect("it is up");
        }
    };
    run(&harness, &idle, meet);
    run(&harness, &holder, async |fs| fs.unlink(b"/f").await.expect("unlink"));
    let restart = || {
        harness.server_indexes().for_each(|server| harness.kill(server));
        harness.server_indexes().for_each(|server| harness.restart(server));
        harness.wait_for_servers(LIMIT).expect("servers start");
    };
    for step in 0..40 {
        restart();
        harness.world.run_for(step * step * 100_000);
    }
    harness.world.run_for(3 * GRACE);
    assert_eq!(counts(&harness), (1, 1, 1), "its client is there");
    run(&harness, &idle, meet);
    run(&harness, &ending, async move |fs: FileSystem| {
        meet(fs.clone()).await;
        fs.end(async {}).await;
    });
    restart();
    run(&harness, &holder, async move |fs| fs.close(&file).await);
    let gone = harness.world.run_until(|| counts(&harness) == (0, 0, 0), GRACE / 5);
    assert!(gone, "{:?}", counts(&harness));
}

/// Goal: a client that its server does not hear of for the grace time loses what has no name, and is told ESTALE; what
/// has a name stays open.
/// Method: its node is parted from the servers for longer than that.
#[test]
fn forgotten_sessions() {
    let harness = cluster(2);
    let (holder, remover) = (harness.add_client(), harness.add_client());
    let (named, nameless) = run(&harness, &holder, async |fs| {
        let named = fs.open(b"/named", &creating()).await.expect("create");
        let nameless = fs.open(b"/nameless", &creating()).await.expect("create");
        fs.write_at(&nameless, &[1; 100], 0).await.expect("write");
        (named, nameless)
    });
    run(&harness, &remover, async |fs| fs.unlink(b"/nameless").await.expect("unlink"));
    let node = holder.node;
    harness.server_indexes().for_each(|server| harness.world.partition(node, harness.node(server)));
    // Servers notice when the connections end; a start anew makes sure of that.
    harness.server_indexes().for_each(|server| harness.kill(server));
    harness.server_indexes().for_each(|server| harness.restart(server));
    harness.wait_for_servers(LIMIT).expect("servers start");
    harness.world.run_for(3 * GRACE);
    assert_eq!(counts(&harness), (0, 0, 0));
    harness.server_indexes().for_each(|server| harness.world.heal(node, harness.node(server)));
    run(&harness, &holder, async move |fs| {
        assert_eq!(fs.stat_file(&nameless).await.expect_err("gone").status, Status::StaleFile);
        assert!(fs.sessions_lost() > 0);
        fs.stat_file(&named).await.expect("it has a name");
    });
    // The named one is registered again, and stays when it is unlinked.
    wait_for(&harness, (0, 1, 0));
    run(&harness, &remover, async |fs| fs.unlink(b"/named").await.expect("unlink"));
    assert_eq!(counts(&harness).0, 1);
    harness.world.crash(holder.node, CrashKind::Kill);
    wait_for(&harness, (0, 0, 0));
}

/// Goal: closes go in batches and cost no round trips; those that are collected go ahead of an unlink by the same
/// client, which then frees the file at once, and leave by themselves after a second.
#[test]
fn closes_are_collected() {
    let harness = cluster(2);
    let client = harness.add_client();
    run(&harness, &client, async |fs| {
        fs.mkdir(b"/d", 0o755).await.expect("mkdir");
        let before = fs.round_trips();
        for index in 0..1000 {
            let file = fs.open(format!("/f{index}").as_bytes(), &creating()).await.expect("create");
            fs.write_at(&file, &[1; 100], 0).await.expect("write");
            fs.close(&file).await;
        }
        assert_eq!(fs.round_trips() - before, 2000);
        let mut arrivals = 0;
        for server in 0..2 {
            let text = fs.server_statistics(server, client::StatisticsFormat::JSON).await.expect("statistics");
            assert!(!text.contains("\"Close\":"), "nobody waits for any of these: {text}");
            let (_, rest) = text.split_once("\"CloseMany\":{\"arrivals\":").expect("some were sent");
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            arrivals += digits.parse::<u64>().expect("a number");
        }
        assert!(arrivals <= 24, "{arrivals} messages for 1000 closes");
    });
    assert!(counts(&harness).1 < 128);
    run(&harness, &client, async |fs| {
        for index in 0..1000 {
            fs.unlink(format!("/f{index}").as_bytes()).await.expect("unlink");
        }
    });
    assert_eq!(counts(&harness).0, 0, "closed before they were unlinked");
    wait_for(&harness, (0, 0, 0));
    run(&harness, &client, async |fs| {
        let file = fs.open(b"/last", &creating()).await.expect("create");
        fs.close(&file).await;
    });
    assert_eq!(counts(&harness).1, 1);
    harness.world.run_for(2 * SECOND);
    assert_eq!(counts(&harness).1, 0, "left alone");
}

/// Goal: a file without a name is made in one round trip, and given its name in one, on any servers.
#[test]
fn temporary_files() {
    let harness = cluster(4);
    let client = harness.add_client();
    run(&harness, &client, async |fs| {
        fs.mkdir(b"/d", 0o755).await.expect("mkdir");
        let how = OpenHow { temporary: true, mode: 0o640, ..OpenHow::reading_and_writing() };
        for index in 0..16 {
            let before = fs.round_trips();
            let file = fs.open(b"/d", &how).await.expect("made");
            assert_eq!(fs.round_trips() - before, 1);
            fs.write_at(&file, &[5; 30_000], 0).await.expect("write");
            let name = format!("/d/{index}").into_bytes();
            let before = fs.round_trips();
            fs.link_open(&file, &name).await.expect("named");
            assert_eq!(fs.round_trips() - before, 1);
            let seen = fs.stat(&name).await.expect("there");
            assert_eq!((seen.id, seen.link_count, seen.size, seen.mode), (file.id, 1, 30_000, 0o640));
            assert_eq!(fs.link_open(&file, &name).await.expect_err("taken").status, Status::Exists);
            fs.close(&file).await;
            fs.unlink(&name).await.expect("unlink");
        }
        let private = fs.open(b"/d", &OpenHow { exclusive: true, ..how }).await.expect("made");
        assert_eq!(fs.link_open(&private, b"/d/x").await.expect_err("private").status, Status::NotFound);
        fs.close(&private).await;
        assert_eq!(fs.open(b"/nowhere", &how).await.expect_err("no directory").status, Status::NotFound);
        let reading = OpenHow { write: false, ..how };
        assert_eq!(fs.open(b"/d", &reading).await.expect_err("nothing could come of it").status, Status::Invalid);
    });
    wait_for(&harness, (0, 0, 0));
}

/// Goal: an open whose answer gets lost is asked for again and answered, also where the first one took the last place
/// that the session had; and its close ends both. Method: the connection is cut at one moment after the other.
#[test]
fn opens_come_again_into_the_last_place() {
    for moment in 0..12 {
        let harness = cluster_with_room(1, 1);
        let client = harness.add_client();
        run(&harness, &client, async |fs| {
            let file = fs.open(b"/f", &creating()).await.expect("create");
            fs.close(&file).await;
        });
        wait_for(&harness, (0, 0, 0));
        harness.world.set_latency(None, 1_000_000, 1_000_000);
        for how in [OpenHow::reading(), OpenHow { truncate: true, ..OpenHow::reading_and_writing() }] {
            let (file_system, opened) = (client.client.file_system.clone(), Rc::new(RefCell::new(None)));
            let found = opened.clone();
            harness.world.reactor(client.node).spawn(Class::Metadata, async move {
                let outcome = file_system.open(b"/f", &how).await;
                found.replace(Some(outcome));
            });
            harness.world.run_for(moment * 250_000);
            harness.world.cut(client.node, harness.node(0));
            assert!(harness.world.run_until(|| opened.borrow().is_some(), LIMIT), "it never ends");
            let file = opened.take().expect("it has ended").expect("it is open");
            run(&harness, &client, async move |fs| fs.close(&file).await);
            wait_for(&harness, (0, 0, 0));
        }
    }
}

/// Goal: a client that has all open that it may have tells a server that has lost its memory so, however often the
/// answer gets lost; and then it can close all of it. Method: the server starts anew while the client has as many files
/// open as it may have; their connection is cut while the answer is on its way.
#[test]
fn full_clients_tell_what_they_have_open() {
    for moment in 0..10 {
        let harness = cluster_with_room(1, 2);
        let (holder, remover) = (harness.add_client(), harness.add_client());
        let files = run(&harness, &holder, async |fs| {
            let first = fs.open(b"/f", &creating()).await.expect("create");
            let second = fs.open(b"/g", &creating()).await.expect("create");
            [first, second]
        });
        harness.world.set_latency(None, 1_000_000, 1_000_000);
        harness.kill(0);
        harness.restart(0);
        assert!(harness.world.run_until(|| harness.is_up(0) && counts(&harness).1 == 2, LIMIT), "it is told");
        harness.world.run_for(moment * 100_000);
        harness.world.cut(holder.node, harness.node(0));
        harness.world.run_for(SECOND);
        run(&harness, &remover, async |fs| {
            fs.unlink(b"/f").await.expect("unlink");
            fs.unlink(b"/g").await.expect("unlink");
        });
        run(&harness, &holder, async move |fs| {
            for file in &files {
                fs.stat_file(file).await.expect("it is open");
                fs.close(file).await;
            }
        });
        let closed = harness.world.run_until(|| counts(&harness) == (0, 0, 0), 60 * SECOND);
        assert!(closed, "{moment}: {:?}", counts(&harness));
    }
}

/// Goal: who is handed an open file asks nobody for it, writes it with one request, also when it has lost its name,
/// over restarts, and leaves no registration behind; what he wrote is there for others, and settled in when he closes
/// it. When the exporter has closed it, it is stale. Bytes that are changed, cut or of another cluster open nothing.
#[test]
fn imported_files() {
    let harness = cluster(3);
    let (exporter, importer, other) = (harness.add_client(), harness.add_client(), harness.add_client());
    let (file, bytes) = run(&harness, &exporter, async |fs| {
        let file = fs.open(b"/f", &creating()).await.expect("create");
        fs.write_at(&file, &[1; 3 * CHUNK_SIZE as usize], 0).await.expect("write");
        let bytes = fs.export(&file).expect("a file");
        let directory = fs.open(b"/", &OpenHow::reading()).await.expect("open");
        assert_eq!(fs.export(&directory).expect_err("a directory").status, Status::IsDirectory);
        (file, bytes)
    });
    wait_for(&harness, (0, 1, 3));
    let handed = bytes.clone();
    let imported = run(&harness, &importer, async move |fs| {
        let before = fs.round_trips();
        let file = fs.import(&handed).expect("exported");
        assert_eq!((fs.round_trips() - before, fs.has_registered(&file)), (0, false));
        let mut place = vec![0; CHUNK_SIZE as usize];
        assert_eq!(fs.read_at(&file, &mut place, 0).await, Ok(place.len()));
        assert_eq!(place, [1; CHUNK_SIZE as usize]);
        let before = fs.round_trips();
        fs.write_at(&file, &[2; CHUNK_SIZE as usize], 5 * u64::from(CHUNK_SIZE)).await.expect("write");
        assert_eq!(fs.round_trips() - before, 1);
        for end in [0, 3, 4, handed.len() - 1] {
            assert_eq!(fs.import(&handed[..end]).expect_err("cut").status, Status::Invalid, "{end}");
        }
        for position in 0..handed.len() {
            let mut changed = handed.clone();
            changed[position] ^= 1;
            assert_eq!(fs.import(&changed).expect_err("changed").status, Status::Invalid, "{position}");
        }
        // The cluster comes behind the first four bytes.
        let (mut foreign, end) = (handed.clone(), handed.len() - 4);
        foreign[4] ^= 1;
        let sum = crc32c::crc32c(&foreign[..end]).to_le_bytes();
        foreign[end..].copy_from_slice(&sum);
        let refusal = fs.import(&foreign).expect_err("of another cluster");
        assert!(refusal.message.contains("another cluster"), "{refusal}");
        file
    });
    assert_eq!(counts(&harness).1, 1, "the importer has registered");
    let size = 6 * u64::from(CHUNK_SIZE);
    run(&harness, &other, async move |fs| {
        assert_eq!(fs.stat(b"/f").await.expect("there").size, size);
        fs.unlink(b"/f").await.expect("unlink");
    });
    harness.server_indexes().for_each(|server| harness.kill(server));
    harness.server_indexes().for_each(|server| harness.restart(server));
    harness.wait_for_servers(LIMIT).expect("servers start");
    let handle = imported.clone();
    run(&harness, &importer, async move |fs| {
        fs.write_at(&handle, &[3], size).await.expect("write");
        let mut place = [0; 2];
        assert_eq!(fs.read_at(&handle, &mut place, size - 1).await, Ok(2));
        assert_eq!(place, [2, 3]);
        fs.close(&handle).await;
    });
    let again = run(&harness, &importer, async move |fs| fs.import(&bytes).expect("exported"));
    run(&harness, &exporter, async move |fs| {
        assert_eq!(fs.stat_file(&file).await.expect("open").size, size + 1);
        fs.close(&file).await;
    });
    wait_for(&harness, (0, 0, 0));
    run(&harness, &importer, async move |fs| {
        assert_eq!(fs.read_at(&again, &mut [0; 1], 0).await.expect_err("closed").status, Status::StaleFile);
        fs.close(&again).await;
    });
}
