//! The simulated twin: exact replay, faults that do what they say, crashes that keep what they must.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use reactor::sim::{CrashKind, NodeId, World};
use reactor::{Class, OpenMode, Reactor, Region};
use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;

const SECOND: u64 = 1_000_000_000;

fn ip(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number).into()
}

fn address(number: u8) -> SocketAddr {
    SocketAddr::new(ip(number), 700)
}

/// Serves every connection by sending back what arrives.
fn serve_echo(reactor: &Reactor, number: u8) {
    let listener = reactor.listen(address(number)).unwrap();
    let spawner = reactor.clone();
    reactor.spawn(Class::Metadata, async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawner.spawn(Class::Data, async move {
                let mut buffer = vec![0; 10_000];
                while let Ok(received @ 1..) = stream.recv(&mut buffer).await {
                    if stream.send_all(&buffer[..received]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
}

/// A small cluster that echoes, with faults from the seed. Returns the trace and what the clients saw.
fn eventful_run(seed: u64) -> (u64, Vec<u64>) {
    let world = World::new(seed);
    let servers: Vec<NodeId> = (1..=3).map(|number| world.add_node(&format!("server{number}"), ip(number))).collect();
    for (number, server) in servers.iter().enumerate() {
        serve_echo(&world.reactor(*server), number as u8 + 1);
    }
    let log = Rc::new(RefCell::new(Vec::new()));
    let clients: Vec<NodeId> =
        (0..4).map(|number| world.add_node(&format!("client{number}"), ip(100 + number))).collect();
    for client in &clients {
        let reactor = world.reactor(*client);
        let (log, looping) = (log.clone(), reactor.clone());
        reactor.spawn(Class::Data, async move {
            for round in 0..40 {
                let server = 1 + (looping.random() % 3) as u8;
                let size = (looping.random() % 50_000) as usize + 1;
                let Ok(stream) = looping.connect(address(server)).await else {
                    looping.sleep(1_000_000).await;
                    continue;
                };
                let mut bytes = vec![0; size];
                looping.fill_random(&mut bytes);
                let (sender, sent) = (stream.clone(), bytes.clone());
                let sending = looping.spawn_joinable(Class::Data, async move { sender.send_all(&sent).await });
                let mut echoed = vec![0; size];
                let result = stream.recv_exact(&mut echoed).await;
                sending.cancel();
                if result.is_ok() {
                    assert!(echoed == bytes, "what comes back is what was sent");
                }
                log.borrow_mut().push(looping.now() ^ u64::from(result.is_ok()) << 60 ^ round);
            }
        });
    }
    for _ in 0..30 {
        world.run_for(world.random() % 3_000_000);
        let server = servers[(world.random() % 3) as usize];
        let client = clients[(world.random() % 4) as usize];
        match world.random() % 6 {
            0 => world.cut(server, client),
            1 => world.partition(server, client),
            2 => world.heal_all(),
            3 => world.set_slowness(server, 0, world.random() % 100_000),
            kind => {
                world.crash(server, if kind == 4 { CrashKind::Kill } else { CrashKind::PowerLoss });
                world.run_for(500_000);
                let reactor = world.restart(server);
                serve_echo(&reactor, servers.iter().position(|other| *other == server).unwrap() as u8 + 1);
            }
        }
    }
    world.heal_all();
    world.run_for(5 * SECOND);
    let seen = log.borrow().clone();
    (world.trace_hash(), seen)
}

/// Goal: the same seed replays exactly; different seeds differ; faults never deliver wrong bytes.
/// Method: run an eventful cluster twice per seed and compare the traces and what the clients saw.
#[test]
fn replay() {
    let mut traces = std::collections::BTreeSet::new();
    for seed in 0..30 {
        let first = eventful_run(seed);
        assert_eq!(first, eventful_run(seed), "seed {seed}");
        assert!(!first.1.is_empty(), "seed {seed}: clients got somewhere");
        traces.insert(first.0);
    }
    assert_eq!(traces.len(), 30);
}

/// Goal: a partition delays and hides, a healed one delivers everything.
/// Method: connect, part, send; nothing arrives; a new connection hangs; after healing both go on.
#[test]
fn partition() {
    let world = World::new(7);
    let (server, client) = (world.add_node("server", ip(1)), world.add_node("client", ip(2)));
    serve_echo(&world.reactor(server), 1);
    let reactor = world.reactor(client);
    let stream = world.run(client, async move { reactor.connect(address(1)).await.unwrap() }, SECOND).unwrap();
    world.partition(server, client);
    assert!(world.is_parted(client, server));
    let (echoed, connected) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let reactor = world.reactor(client);
    reactor.spawn(Class::Data, {
        let echoed = echoed.clone();
        async move {
            stream.send_all(&[5; 1000]).await.unwrap();
            let mut reply = [0; 1000];
            stream.recv_exact(&mut reply).await.unwrap();
            echoed.set(reply == [5; 1000]);
        }
    });
    reactor.spawn(Class::Data, {
        let (reactor, connected) = (reactor.clone(), connected.clone());
        async move {
            reactor.connect(address(1)).await.unwrap();
            connected.set(true);
        }
    });
    world.run_for(3 * SECOND);
    assert!(!echoed.get() && !connected.get());
    world.heal(server, client);
    assert!(world.run_until(|| echoed.get() && connected.get(), SECOND));
}

/// Goal: connecting tells a missing listener from a missing machine; cuts and crashes are seen as they would be.
/// Method: one case each.
#[test]
fn connection_faults() {
    let world = World::new(9);
    let (server, client) = (world.add_node("server", ip(1)), world.add_node("client", ip(2)));
    let connect = || {
        let reactor = world.reactor(client);
        world.run(client, async move { reactor.connect(address(1)).await }, SECOND)
    };
    assert_eq!(connect().unwrap().err().unwrap().kind(), ErrorKind::ConnectionRefused);
    serve_echo(&world.reactor(server), 1);
    let stream = connect().unwrap().unwrap();
    world.cut(server, client);
    let broken = stream.clone();
    let result = world.run(client, async move { broken.recv(&mut [0; 8]).await }, SECOND).unwrap();
    assert_eq!(result.err().unwrap().kind(), ErrorKind::ConnectionReset);

    // A killed process: the peer hears of it at once.
    let stream = connect().unwrap().unwrap();
    world.crash(server, CrashKind::Kill);
    let ended = world.run(client, async move { stream.recv(&mut [0; 8]).await }, SECOND).unwrap();
    assert!(matches!(ended, Ok(0)) || ended.is_err());
    assert_eq!(connect().unwrap().err().unwrap().kind(), ErrorKind::ConnectionRefused);
    serve_echo(&world.restart(server), 1);

    // A machine without power: silence, until it is back and knows nothing of the connection.
    let stream = connect().unwrap().unwrap();
    world.crash(server, CrashKind::PowerLoss);
    let heard = Rc::new(RefCell::new(None));
    world.reactor(client).spawn(Class::Data, {
        let heard = heard.clone();
        async move {
            stream.send_all(b"anybody there?").await.unwrap();
            let result = stream.recv(&mut [0; 8]).await;
            *heard.borrow_mut() = Some(result);
        }
    });
    assert!(connect().is_none());
    assert!(heard.borrow().is_none());
    serve_echo(&world.restart(server), 1);
    assert!(world.run_until(|| heard.borrow().is_some(), SECOND));
    assert_eq!(heard.take().unwrap().err().unwrap().kind(), ErrorKind::ConnectionReset);
    assert!(connect().unwrap().is_ok());
}

fn region(reactor: &Reactor, mode: OpenMode) -> Rc<dyn Region> {
    let region = reactor.storage(Path::new("data")).unwrap().open("region", 1 << 16, mode).unwrap();
    region.allocate(0, 1 << 16).unwrap();
    region
}

/// Goal: a crash planned for the n-th write leaves exactly the writes before it, the n-th torn at some byte if so
/// wished, and nothing that came after, sends included. Method: a task writes a known sequence, then sends; every n,
/// torn and whole; compare after the restart.
#[test]
fn crash_after_writes() {
    const SIZE: u64 = 1000;
    let mut torn_seen = 0;
    for count in 1..=10u64 {
        for torn in [false, true] {
            let world = World::new(count);
            let (server, client) = (world.add_node("server", ip(1)), world.add_node("client", ip(2)));
            serve_echo(&world.reactor(client), 2);
            let reactor = world.reactor(server);
            let received = Rc::new(Cell::new(false));
            reactor.spawn(Class::Data, {
                let (reactor, received) = (reactor.clone(), received.clone());
                async move {
                    let stream = reactor.connect(address(2)).await.unwrap();
                    let region = region(&reactor, OpenMode::CreateNew);
                    for index in 0..10u64 {
                        region.write(index * SIZE, &[index as u8 + 1; SIZE as usize]);
                    }
                    // Its own writes are seen by the doomed process, so that it does not stumble over them.
                    let mut last = [0; 1];
                    region.read(10 * SIZE - 1, &mut last);
                    assert_eq!(last[0], 10);
                    stream.send_all(b"done").await.unwrap();
                    received.set(stream.recv(&mut [0; 4]).await.is_ok());
                    std::future::pending::<()>().await;
                }
            });
            world.crash_after_writes(server, count, torn);
            assert!(world.run_until(|| !world.is_running(server), SECOND));
            world.run_for(SECOND);
            assert!(!received.get());
            let region = region(&world.restart(server), OpenMode::Existing);
            let mut bytes = vec![0; 10 * SIZE as usize];
            region.read(0, &mut bytes);
            let written = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()) as u64;
            assert!(bytes[written as usize..].iter().all(|byte| *byte == 0));
            for (at, byte) in bytes[..written as usize].iter().enumerate() {
                assert_eq!(u64::from(*byte), at as u64 / SIZE + 1);
            }
            if torn {
                assert!(((count - 1) * SIZE..count * SIZE).contains(&written), "write {count} ended at {written}");
                torn_seen += u64::from(!written.is_multiple_of(SIZE));
            } else {
                assert_eq!(written, count * SIZE);
            }
        }
    }
    assert!(torn_seen > 5, "writes are torn in the middle");
}

/// Goal: bytes that a crashed process moves to live ones by address, as a link does with what it had read ahead, do not
/// count either.
/// Method: a task writes twice, then a third time by address; the second write is its last.
#[test]
fn received_bytes_after_a_crash() {
    let world = World::new(1);
    let server = world.add_node("server", ip(1));
    let reactor = world.reactor(server);
    reactor.spawn(Class::Data, {
        let reactor = reactor.clone();
        async move {
            let region = region(&reactor, OpenMode::CreateNew);
            region.write(0, &[1; 100]);
            region.write(200, &[2; 100]);
            // SAFETY: the range lies within the region, and nothing else refers to it.
            unsafe { std::ptr::write_bytes(region.base().add(50), 9, 200) };
            region.note_received(50, 200);
        }
    });
    world.crash_after_writes(server, 2, false);
    assert!(world.run_until(|| !world.is_running(server), SECOND));
    let region = region(&world.restart(server), OpenMode::Existing);
    let mut bytes = [0; 300];
    region.read(0, &mut bytes);
    assert!(bytes[..100] == [1; 100] && bytes[100..200] == [0; 100] && bytes[200..] == [2; 100]);
}

/// Goal: power loss keeps what was synced, may lose or tear the rest, and a kill keeps everything.
/// Method: sync one half of the pages, change others, crash both ways; many seeds; all three fates are met.
#[test]
fn power_loss() {
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for seed in 0..40 {
        for kind in [CrashKind::Kill, CrashKind::PowerLoss] {
            let world = World::new(seed);
            let server = world.add_node("server", ip(1));
            let reactor = world.reactor(server);
            world
                .run(
                    server,
                    async move {
                        let region = region(&reactor, OpenMode::CreateNew);
                        region.write(0, &[1; 1 << 15]);
                        region.sync(0, 1 << 15).await.unwrap();
                        reactor.storage(Path::new("data")).unwrap().sync_names().await.unwrap();
                        region.write(4096, &[2; 4096]);
                        region.write(1 << 15, &[3; 4096]);
                    },
                    SECOND,
                )
                .unwrap();
            world.crash(server, kind);
            let reactor = world.restart(server);
            let region = region(&reactor, OpenMode::Existing);
            let page = |number: u64| {
                let mut bytes = [0; 4096];
                region.read(number * 4096, &mut bytes);
                bytes
            };
            for number in [0, 2, 3, 4, 5, 6, 7] {
                assert!(page(number) == [1; 4096], "synced pages stay");
            }
            for (number, old, new) in [(1, 1, 2), (8, 0, 3)] {
                let bytes = page(number);
                let is_new = bytes.iter().filter(|byte| **byte == new).count();
                assert_eq!(is_new + bytes.iter().filter(|byte| **byte == old).count(), 4096);
                match is_new {
                    4096 => kept += u32::from(kind == CrashKind::PowerLoss),
                    _ if kind == CrashKind::Kill => panic!("a kill loses nothing"),
                    0 => lost += 1,
                    _ => torn += 1,
                }
            }
        }
    }
    assert!(kept > 5 && lost > 5 && torn > 5, "{kept} {lost} {torn}");
}

/// Goal: planned failures hit the call that was named; capacity is finite; volatile media forget; locks exclude and end
/// with the process.
/// Method: one case each.
#[test]
fn disk_faults() {
    let world = World::new(3);
    let server = world.add_node("server", ip(1));
    let reactor = world.reactor(server);
    let storage = reactor.storage(Path::new("data")).unwrap();
    let other = reactor.storage(Path::new("data")).unwrap();
    storage.lock_exclusive().unwrap();
    assert_eq!(other.lock_exclusive().unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(storage);
    other.lock_exclusive().unwrap();
    let region = region(&reactor, OpenMode::CreateNew);
    assert_eq!(other.list(), ["region"]);

    world.fail_sync(server, 2);
    let syncing = region.clone();
    let results = world.run(
        server,
        async move { [syncing.sync(0, 10).await, syncing.sync(0, 10).await, syncing.sync(0, 10).await] },
        SECOND,
    );
    assert_eq!(results.unwrap().map(|result| result.is_ok()), [true, false, true]);

    world.fail_allocate(server, 1);
    assert_eq!(region.allocate(0, 1).unwrap_err().kind(), ErrorKind::StorageFull);
    region.allocate(0, 1).unwrap();
    world.set_capacity(server, (1 << 16) + 8192);
    let more = other.open("more", 1 << 16, OpenMode::CreateNew).unwrap();
    assert_eq!(more.allocate(0, 12_288).unwrap_err().kind(), ErrorKind::StorageFull);
    more.allocate(0, 8192).unwrap();
    assert_eq!(other.free_bytes(), 0);

    region.write(77, &[0b1000]);
    world.corrupt(server, "data", "region", 77, 1);
    let mut byte = [0];
    region.read(77, &mut byte);
    assert_eq!(byte, [0b1001]);

    world.set_volatile(server, true);
    world.crash(server, CrashKind::PowerLoss);
    let storage = world.restart(server).storage(Path::new("data")).unwrap();
    storage.lock_exclusive().unwrap();
    assert!(storage.list().is_empty());
}

/// Goal: clocks differ between nodes as told, and timers follow the node's own clock.
/// Method: a node whose clock runs 10 % fast sleeps a second of its own.
#[test]
fn clocks() {
    let world = World::new(1);
    let node = world.add_node("node", ip(1));
    world.set_clock(node, -5_000_000_000, 100_000);
    let reactor = world.reactor(node);
    let before = (world.now(), reactor.now(), reactor.wall_clock());
    world.run(node, async move { reactor.sleep(SECOND).await }, 10 * SECOND).unwrap();
    let reactor = world.reactor(node);
    assert!(reactor.now() - before.1 >= SECOND);
    let passed = world.now() - before.0;
    assert!((909_090_000..910_000_000).contains(&passed), "{passed}");
    assert_eq!((reactor.wall_clock() - before.2) as u64, passed);
}

/// Goal: a repeated connection says once more what its caller said, over a new connection, and nothing of it stays.
/// Method: a server notes what each connection brings; the caller's connection is repeated while it is open.
#[test]
fn repeated_connections() {
    for seed in 0..20 {
        let world = World::new(seed);
        let [server, client] = [world.add_node("server", ip(1)), world.add_node("client", ip(2))];
        let heard: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
        let reactor = world.reactor(server);
        let listener = reactor.listen(address(1)).unwrap();
        let (spawner, notes) = (reactor.clone(), heard.clone());
        reactor.spawn(Class::Metadata, async move {
            while let Ok((stream, _)) = listener.accept().await {
                let notes = notes.clone();
                spawner.spawn(Class::Data, async move {
                    let mut bytes = vec![0; 12];
                    if stream.recv_exact(&mut bytes).await.is_ok() {
                        notes.borrow_mut().push(bytes);
                        let _ = stream.send_all(b"an answer").await;
                    }
                });
            }
        });
        let caller = world.reactor(client);
        let stream = world.run(client, async move { caller.connect(address(1)).await.unwrap() }, SECOND).unwrap();
        let sent = stream.clone();
        world.run(client, async move { sent.send_all(b"twelve bytes").await.unwrap() }, SECOND).unwrap();
        world.repeat_connection(client, server);
        assert!(world.run_until(|| heard.borrow().len() == 2, 5 * SECOND), "seed {seed}");
        assert_eq!(*heard.borrow(), [b"twelve bytes"; 2]);
        drop(stream);
        world.run_for(5 * SECOND);
        assert_eq!(world.connection_count(), 0, "seed {seed}");
    }
}
