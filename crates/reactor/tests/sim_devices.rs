//! Simulated devices: power loss, errors and delays are what the seed says, and what a device promised holds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use reactor::device::{Device, DeviceOptions};
use reactor::sim::{CrashKind, DeviceFaults, NodeId, World};
use reactor::{Class, Reactor};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::rc::Rc;

const SECOND: u64 = 1_000_000_000;
const PATH: &str = "/dev/simulated";
const BLOCKS: u64 = 64;
const BLOCK: usize = 8192;

fn world(seed: u64) -> (World, NodeId) {
    let world = World::new(seed);
    let node = world.add_node("node", IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    (world, node)
}

fn open(reactor: &Reactor, create: bool) -> Device {
    let create = create.then_some(BLOCKS * BLOCK as u64);
    reactor.open_device(Path::new(PATH), &DeviceOptions { create, depth: 8, ..DeviceOptions::default() }).unwrap()
}

/// What a process knows of a device: the versions that a block may have after a crash.
#[derive(Clone)]
struct Model {
    /// Versions by block. The first is durable; later ones were written or begun since.
    possible: Vec<Vec<u64>>,
    next: u64,
}

impl Model {
    fn new() -> Model {
        Model { possible: vec![vec![0]; BLOCKS as usize], next: 1 }
    }
}

fn part(block: u64, version: u64, index: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    if version > 0 {
        bytes[..8].copy_from_slice(&version.to_le_bytes());
        bytes[8..16].copy_from_slice(&block.to_le_bytes());
        bytes[16..24].copy_from_slice(&index.to_le_bytes());
    }
    bytes
}

/// Writes blocks at random, a few at a time, and flushes now and then, for ever.
async fn work(reactor: Reactor, device: Device, model: Rc<RefCell<Model>>) {
    let pool = reactor.buffer_pool(BLOCK, 16).unwrap();
    loop {
        let mut under_way = Vec::new();
        let blocks: BTreeSet<u64> = (0..1 + reactor.random() % 12).map(|_| reactor.random() % BLOCKS).collect();
        for block in blocks {
            let version = {
                let mut model = model.borrow_mut();
                model.next += 1;
                let version = model.next;
                model.possible[block as usize].push(version);
                version
            };
            let mut buffer = pool.get().await;
            for (index, bytes) in buffer.chunks_mut(512).enumerate() {
                bytes.copy_from_slice(&part(block, version, index as u64));
            }
            under_way.push((block, version, device.write(block * BLOCK as u64, buffer, BLOCK)));
        }
        let drops = reactor.random().is_multiple_of(8);
        let mut written = Vec::new();
        for (block, version, write) in under_way {
            if drops && reactor.random().is_multiple_of(2) {
                continue;
            }
            if write.await.0.is_ok() {
                written.push((block, version));
            }
        }
        if drops {
            // What nobody waits for may still be under way: no order holds until the device is quiet.
            while device.statistics().in_flight > 0 {
                reactor.sleep(100_000).await;
            }
            continue;
        }
        if reactor.random().is_multiple_of(3) {
            let before = model.borrow().clone();
            if device.flush().await.is_ok() {
                settle(&mut model.borrow_mut(), &before, &written);
            }
        }
    }
}

/// A flush has ended: of the blocks that were written as a whole just before it nothing older is possible.
fn settle(model: &mut Model, before: &Model, written: &[(u64, u64)]) {
    for (block, version) in written {
        let possible = &mut model.possible[*block as usize];
        assert_eq!(before.possible[*block as usize].last(), Some(version));
        possible.retain(|other| other >= version);
    }
}

/// What is on the device is possible, each part of `tear_size` of one version. Returns what is wrong.
fn judge(bytes: &[u8], block: u64, model: &Model, tear_size: usize) -> Option<String> {
    let possible = &model.possible[block as usize];
    for (index, unit) in bytes.chunks(tear_size).enumerate() {
        let is = |version: u64| {
            let first = (index * tear_size / 512) as u64;
            unit.chunks(512).enumerate().all(|(at, bytes)| bytes == part(block, version, first + at as u64))
        };
        if !possible.iter().any(|version| is(*version)) {
            return Some(format!("block {block}, part {index} is none of {possible:?}"));
        }
    }
    None
}

/// Crashes a node at work now and then, and compares. Returns what is wrong, and the trace.
fn crash_run(seed: u64, faults: DeviceFaults) -> (Option<String>, u64) {
    let (world, node) = world(seed);
    world.set_device_faults(node, faults);
    let model = Rc::new(RefCell::new(Model::new()));
    let mut device = open(&world.reactor(node), true);
    for _ in 0..4 {
        let reactor = world.reactor(node);
        reactor.spawn(Class::Data, work(reactor.clone(), device.clone(), model.clone()));
        world.run_for(SECOND / 50 + world.random() % (SECOND / 10));
        drop(device);
        let kind = if world.random().is_multiple_of(3) { CrashKind::Kill } else { CrashKind::PowerLoss };
        world.crash(node, kind);
        let reactor = world.restart(node);
        device = open(&reactor, false);
        world.set_device_faults(node, DeviceFaults { error: 0, ..faults });
        let (known, read, again) = (model.clone(), device.clone(), reactor.clone());
        let judged = world.run(
            node,
            async move {
                let pool = again.buffer_pool(BLOCK, 1).unwrap();
                for block in 0..BLOCKS {
                    let (result, buffer) = read.read(block * BLOCK as u64, pool.get().await, BLOCK).await;
                    assert_eq!(result.unwrap(), BLOCK);
                    let wrong = judge(&buffer, block, &known.borrow(), faults.tear_size as usize);
                    if wrong.is_some() {
                        return wrong;
                    }
                }
                None
            },
            100 * SECOND,
        );
        world.set_device_faults(node, faults);
        if let Some(wrong) = judged.expect("reads end") {
            return (Some(wrong), world.trace_hash());
        }
    }
    (None, world.trace_hash())
}

/// Goal: after a crash each block is as a flush left it, or as something written later, in parts of the size that the
/// device writes in one piece. Method: 200 seeds, devices that tear at 512 bytes and at 4 KiB, slow, short and with
/// errors, four crashes each, some operations dropped.
#[test]
fn what_was_flushed_is_there() {
    // What is short or fails leaves a mixture of sectors, whatever the device tears at.
    for (tear_size, short, error) in [(512, 50, 0), (512, 20, 40), (4096, 0, 0)] {
        let faults = DeviceFaults { tear_size, short, error, ..DeviceFaults::default() };
        for seed in 0..200 {
            let (wrong, _) = crash_run(seed, faults);
            assert!(wrong.is_none(), "seed {seed}, {faults:?}: {wrong:?}");
        }
    }
}

/// Goal: a flush that does not wait is noticed. Method: the same, on devices whose flushes do nothing.
#[test]
fn a_flush_that_does_not_wait_is_noticed() {
    let faults = DeviceFaults { tear_size: 512, ignores_flushes: true, ..DeviceFaults::default() };
    let noticed = (0..20).filter(|seed| crash_run(*seed, faults).0.is_some()).count();
    assert!(noticed >= 15, "{noticed} of 20");
}

/// Goal: a seed is a run.
#[test]
fn runs_are_replayed() {
    let faults = DeviceFaults { error: 30, ..DeviceFaults::default() };
    for seed in 0..5 {
        assert_eq!(crash_run(seed, faults).1, crash_run(seed, faults).1, "seed {seed}");
    }
    assert_ne!(crash_run(1, faults).1, crash_run(2, faults).1);
}

/// Goal: a write from within a buffer goes on where a short one stopped, with the bytes that lie there. Method: every
/// write is short; the bytes before the part are others.
#[test]
fn parts_of_buffers_go_on_after_shorts() {
    let (world, node) = world(11);
    world.set_device_faults(node, DeviceFaults { short: 1, ..DeviceFaults::default() });
    let reactor = world.reactor(node);
    let device = open(&reactor, true);
    let pool = reactor.buffer_pool(2 * BLOCK, 1).unwrap();
    let write = async move {
        let mut buffer = pool.get().await;
        buffer[..4096].fill(0xEE);
        buffer[4096..].iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 512) as u8);
        let (result, buffer) = device.write_part(BLOCK as u64, buffer, 4096, BLOCK).await;
        assert_eq!(result.unwrap(), BLOCK);
        assert!(device.statistics().shorts > 0);
        let (result, buffer) = device.read(BLOCK as u64, buffer, BLOCK).await;
        assert_eq!(result.unwrap(), BLOCK);
        assert!(buffer[..BLOCK].iter().enumerate().all(|(at, byte)| *byte == (at / 512) as u8));
    };
    assert!(world.run(node, write, 10 * SECOND).is_some());
}

/// Goal: operations end in any order, shorts are made up for, and errors name path and offset; beyond a device that was
/// cut short there is EIO, and a rotten byte is read as it is.
#[test]
fn devices_do_what_they_are_told() {
    let (world, node) = world(7);
    world.set_device_faults(node, DeviceFaults { short: 1, slow: 3, ..DeviceFaults::default() });
    let reactor = world.reactor(node);
    let (device, order) = (open(&reactor, true), Rc::new(RefCell::new(Vec::new())));
    let pool = reactor.buffer_pool(BLOCK, 8).unwrap();
    for number in 0..8u64 {
        let (device, order, pool) = (device.clone(), order.clone(), pool.clone());
        reactor.spawn(Class::Data, async move {
            let mut buffer = pool.get().await;
            buffer.fill(number as u8 + 1);
            assert_eq!(device.write(number * BLOCK as u64, buffer, BLOCK).await.0.unwrap(), BLOCK);
            order.borrow_mut().push(number);
        });
    }
    assert!(world.run_until(|| order.borrow().len() == 8, 10 * SECOND));
    assert_ne!(*order.borrow(), [0, 1, 2, 3, 4, 5, 6, 7], "in any order");
    assert!(device.statistics().shorts > 8, "{:?}", device.statistics());
    world.corrupt_device(node, PATH, 3 * BLOCK as u64 + 700, 0x80);
    world.cut_device(node, PATH, 6 * BLOCK as u64);
    let reads = world.run(
        node,
        async move {
            let (result, buffer) = device.read(3 * BLOCK as u64, pool.get().await, BLOCK).await;
            assert_eq!(result.unwrap(), BLOCK);
            assert_eq!((buffer[699], buffer[700], buffer[701]), (4, 0x84, 4));
            let (result, _) = device.read(6 * BLOCK as u64, buffer, BLOCK).await;
            let error = result.unwrap_err();
            assert_eq!((error.errno(), error.offset()), (libc::EIO, 6 * BLOCK as u64));
            let words = error.to_string();
            assert!(words.contains(PATH) && words.contains(&format!("offset {}", 6 * BLOCK)), "{words}");
        },
        SECOND,
    );
    assert!(reads.is_some());
}
