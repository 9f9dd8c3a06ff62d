//! What only a fault in the table shows.

use super::{Buffer, BufferPool, DeviceOptions};
use crate::sim::{DeviceFaults, World};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

const SECOND: u64 = 1_000_000_000;
const BLOCK: usize = 4096;

/// Drops reads that are under way, and takes all buffers that the pool then gives. Returns how many of these somebody
/// wrote to who does not own them.
fn written_by_others(forgets_early: bool) -> usize {
    let world = World::new(1);
    let node = world.add_node("node", IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    world.set_device_faults(node, DeviceFaults { short: 0, ..DeviceFaults::default() });
    let reactor = world.reactor(node);
    let options = DeviceOptions { create: Some(16 * BLOCK as u64), depth: 8, ..DeviceOptions::default() };
    let device = reactor.open_device(Path::new("/dev/simulated"), &options).unwrap();
    device.table.forgets_early.set(forgets_early);
    let pool = reactor.buffer_pool(BLOCK, 8).unwrap();
    let reads: Vec<_> = (0..4).map(|number| device.read(number * BLOCK as u64, pool.take().unwrap(), BLOCK)).collect();
    drop(reads);
    let take_all = |pool: &BufferPool| {
        let mut taken: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
        taken.iter_mut().for_each(|buffer| buffer.fill(0xAB));
        taken
    };
    let taken = take_all(&pool);
    assert_eq!(taken.len(), if forgets_early { 8 } else { 4 });
    world.run_for(SECOND);
    assert_eq!(device.statistics().in_flight, 0);
    let written = taken.iter().filter(|buffer| buffer.iter().any(|byte| *byte != 0xAB)).count();
    drop(taken);
    assert_eq!(pool.free_count(), 8, "each comes back once");
    written
}

/// Goal: what a dropped read will still write to is given to nobody. Method: without the table's hold on it, the same
/// steps show bytes that their owner has not written.
#[test]
fn buffers_are_not_used_again_early() {
    assert_eq!(written_by_others(false), 0);
    assert_eq!(written_by_others(true), 4);
}

/// Goal: a write whose buffer somebody else uses meanwhile is noticed by the simulated device.
#[test]
fn the_simulation_notices_early_use() {
    let run = || {
        let world = World::new(2);
        let node = world.add_node("node", IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
        let reactor = world.reactor(node);
        let options = DeviceOptions { create: Some(16 * BLOCK as u64), ..DeviceOptions::default() };
        let device = reactor.open_device(Path::new("/dev/simulated"), &options).unwrap();
        device.table.forgets_early.set(true);
        let pool = reactor.buffer_pool(BLOCK, 1).unwrap();
        drop(device.write(0, pool.take().unwrap(), BLOCK));
        pool.take().unwrap().fill(0xAB);
        world.run_for(SECOND);
    };
    let noticed = std::panic::catch_unwind(run).unwrap_err();
    let words = noticed.downcast_ref::<&str>().copied().unwrap_or_default();
    assert!(words.contains("a buffer belongs to its write"), "{words}");
}
