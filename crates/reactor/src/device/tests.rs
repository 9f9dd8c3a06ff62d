//! What only a fault in the table shows, and what completions mean, told by a driver that does nothing by itself.

use super::queue::{DeviceQueue, Handover, Piece, is_batch_due};
use super::{Abilities, Buffer, BufferPool, Device, DeviceOptions, DeviceStatistics, Direct, KindStatistics};
use crate::operations::{OperationDelays, OperationTable, TimeSum};
use crate::sim::{DeviceFaults, World};
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

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

/// Pieces that were prepared: the entry, and offset and size.
type Prepared = Rc<RefCell<Vec<(u32, u64, u64)>>>;

struct Script {
    prepared: Prepared,
    /// As a driver that has ended.
    is_ended: Rc<Cell<bool>>,
    table: RefCell<Weak<OperationTable>>,
}

impl Handover for Script {
    fn prepare(&self, index: u32, piece: &Piece) -> bool {
        if let Some(table) = self.table.borrow().upgrade() {
            table.note_prepared();
        }
        self.prepared.borrow_mut().push((index, piece.offset, piece.size));
        !self.is_ended.get()
    }

    fn move_now(&self, _piece: &Piece) -> i32 {
        -libc::ENOSYS
    }
}

/// A device whose completions the test says, aligned to 512 bytes.
struct Scripted {
    table: Rc<OperationTable>,
    device: Device,
    prepared: Prepared,
    is_ended: Rc<Cell<bool>>,
    pool: BufferPool,
    now: Rc<Cell<u64>>,
}

impl Scripted {
    fn new(depth: u32) -> Scripted {
        let (now, prepared) = (Rc::<Cell<u64>>::default(), Prepared::default());
        let clock = now.clone();
        let table = Rc::new(OperationTable::new(Box::new(move || clock.get())));
        let abilities = Abilities {
            interface: "script",
            is_block_device: false,
            size: 1 << 20,
            direct: Direct::Yes { memory: 512, offset: 512 },
            is_volatile: false,
            is_file_registered: false,
            locked_memory_max: None,
            can_poll: false,
            requests_max: None,
            has_write_cache: None,
        };
        let is_ended = Rc::default();
        let script = Script {
            prepared: prepared.clone(),
            is_ended: Rc::clone(&is_ended),
            table: RefCell::new(Rc::downgrade(&table)),
        };
        let queue = DeviceQueue::new(Path::new("/x").into(), abilities, Box::new(script), depth);
        let device = Device::new(&table, queue);
        Scripted { table, device, prepared, is_ended, pool: BufferPool::new(8192, 8, |_, _| None).unwrap(), now }
    }

    /// Begins an operation of 4 KiB at 8,192, completes it piece by piece, and tells its end and what was asked for.
    fn run(&self, is_write: bool, results: &[i32]) -> (Result<usize, i32>, Vec<(u64, u64)>) {
        self.prepared.borrow_mut().clear();
        let buffer = self.pool.take().unwrap();
        let mut transfer = pin!(match is_write {
            true => self.device.write(8192, buffer, 4096),
            false => self.device.read(8192, buffer, 4096),
        });
        let mut context = Context::from_waker(Waker::noop());
        for result in results {
            assert!(transfer.as_mut().poll(&mut context).is_pending());
            let (index, ..) = *self.prepared.borrow().last().unwrap();
            self.table.complete(index, *result);
        }
        let Poll::Ready((result, _)) = transfer.poll(&mut context) else { panic!("{results:?} do not end it") };
        let asked = self.prepared.borrow().iter().map(|(_, offset, size)| (*offset, *size)).collect();
        (result.map_err(|error| error.errno()), asked)
    }
}

/// Goal: what moved fewer bytes is asked for again until it is whole, from a block's start on where the device wants
/// that; the end of the file ends a read and nothing else does; errors are told, interruptions are not.
#[test]
fn completions_mean_what_they_say() {
    let scripted = Scripted::new(4);
    let whole = [(8192, 4096)];
    assert_eq!(scripted.run(false, &[4096]), (Ok(4096), whole.to_vec()));
    let rest = vec![(8192, 4096), (8704, 3584), (9216, 3072)];
    assert_eq!(scripted.run(false, &[512, 512, 3072]), (Ok(4096), rest.clone()));
    assert_eq!(scripted.run(true, &[512, 512, 3072]), (Ok(4096), rest));
    assert_eq!(scripted.run(false, &[0]), (Ok(0), whole.to_vec()));
    assert_eq!(scripted.run(false, &[700]), (Ok(700), whole.to_vec()), "within a block only a file's end stops a read");
    assert_eq!(scripted.run(false, &[512, 0]), (Ok(512), vec![(8192, 4096), (8704, 3584)]));
    assert_eq!(scripted.run(true, &[700, 3584]), (Ok(4096), vec![(8192, 4096), (8704, 3584)]));
    assert_eq!(scripted.run(true, &[0]), (Err(libc::EIO), whole.to_vec()), "a write that moves nothing would not end");
    assert_eq!(scripted.run(true, &[512, 100]).0, Err(libc::EIO));
    assert_eq!(scripted.run(true, &[-libc::EINTR, 4096]), (Ok(4096), vec![(8192, 4096); 2]));
    assert_eq!(scripted.run(true, &[1024, -libc::ENOSPC]).0, Err(libc::ENOSPC));
    assert_eq!((scripted.pool.free_count(), scripted.table.under_way()), (8, 0));
}

/// Goal: many operations make no system call each, and a device with nothing to do does not wait for a turn's end.
#[test]
fn batches_are_neither_small_nor_late() {
    let calls = |idle: usize, burst: usize| {
        let (mut prepared, mut calls) = (0, 0);
        for number in 1..=burst {
            prepared += 1;
            if is_batch_due(prepared, idle + number) {
                (prepared, calls) = (0, calls + 1);
            }
        }
        calls + usize::from(prepared > 0)
    };
    assert_eq!((calls(0, 1), calls(0, 3), calls(0, 4), calls(0, 32)), (1, 1, 1, 5));
    assert_eq!((calls(64, 8), calls(64, 32)), (1, 4));
}

/// Goal: no more than the depth is handed over, the rest in order as others end; what is dropped before its turn is
/// never handed over, and what is dropped later goes no further than it is.
#[test]
fn operations_take_turns() {
    let scripted = Scripted::new(2);
    let begin = |number: u64| scripted.device.read(number * 4096, scripted.pool.take().unwrap(), 4096);
    let mut reads: Vec<_> = (0..6).map(|number| Some(begin(number))).collect();
    let offsets = || scripted.prepared.borrow().iter().map(|(_, offset, _)| offset / 4096).collect::<Vec<u64>>();
    assert_eq!((offsets(), scripted.device.statistics().waiting), (vec![0, 1], 4));
    let complete = |at: usize, result: i32| {
        let (index, ..) = scripted.prepared.borrow()[at];
        scripted.table.complete(index, result);
    };
    reads[2] = None;
    complete(1, 4096);
    assert_eq!(offsets(), [0, 1, 3]);
    // Under way: it keeps its place and its buffer until it ends, and its rest is not asked for.
    let free = scripted.pool.free_count();
    reads[0] = None;
    assert_eq!((offsets(), scripted.pool.free_count()), (vec![0, 1, 3], free));
    complete(0, 512);
    assert_eq!((offsets(), scripted.pool.free_count()), (vec![0, 1, 3, 4], free + 1));
    complete(3, -libc::EIO);
    complete(2, 4096);
    complete(4, 4096);
    assert_eq!(offsets(), [0, 1, 3, 4, 5]);
    let statistics = scripted.device.statistics();
    assert_eq!((statistics.in_flight, statistics.waiting, statistics.in_flight_most), (0, 0, 2));
    let errors = reads.into_iter().flatten().map(|mut read| {
        let Poll::Ready((result, _)) = pin!(&mut read).poll(&mut Context::from_waker(Waker::noop())) else { panic!() };
        result.err().map(|error| error.to_string())
    });
    let errors: Vec<String> = errors.flatten().collect();
    assert_eq!(errors, ["/x: read of 4096 bytes at offset 16384: Input/output error (os error 5)"]);
    assert_eq!(scripted.pool.free_count(), 8);
}

/// Goal: what is counted is what happened: each kind by itself, bytes that were moved, time with the device and before
/// it, and what the loop adds at both ends. Method: a write of two pieces, one that waits for it and fails, and a flush
/// that nobody waits for, by a clock that the test sets.
#[test]
fn what_is_counted() {
    let scripted = Scripted::new(1);
    let at = |time: u64| scripted.now.set(time);
    let begin = |number: u64| scripted.device.write(number * 4096, scripted.pool.take().unwrap(), 4096);
    let last = || scripted.prepared.borrow().last().unwrap().0;
    let mut context = Context::from_waker(Waker::noop());
    at(100);
    let (mut first, mut second) = (begin(0), begin(1));
    let flush = scripted.device.flush();
    assert!(pin!(&mut first).poll(&mut context).is_pending() && pin!(&mut second).poll(&mut context).is_pending());
    at(110);
    scripted.table.note_submitted();
    scripted.table.note_submitted();
    at(200);
    scripted.table.complete(last(), 1024);
    at(300);
    scripted.table.note_submitted();
    at(400);
    scripted.table.complete(last(), 3072);
    at(450);
    assert!(pin!(&mut first).poll(&mut context).is_ready());
    at(600);
    scripted.table.complete(last(), -libc::EIO);
    at(601);
    scripted.table.complete(last(), 0);
    at(900);
    assert!(pin!(&mut second).poll(&mut context).is_ready());
    assert!(pin!(flush).poll(&mut context).is_ready());
    let kind = |count, bytes, time_ns| KindStatistics { count, bytes, time_ns };
    let wanted = DeviceStatistics {
        writes: kind(2, 4096, 300 + 200),
        flushes: kind(1, 0, 1),
        failed: 1,
        shorts: 1,
        in_flight_most: 1,
        waited_ns: 300 + 500,
        ..DeviceStatistics::default()
    };
    assert_eq!(scripted.device.statistics(), wanted);
    // Two pieces were handed over so far; of what came later nothing was submitted.
    let wanted = OperationDelays {
        handover: TimeSum { count: 2, total_ns: 10 + 100 },
        resumption: TimeSum { count: 2, total_ns: 50 + 300 },
    };
    assert_eq!(scripted.table.delays(), wanted);
}

/// Goal: where handing over ends operations at once, as at a driver's end, any number of them may wait.
#[test]
fn very_many_end_at_once() {
    let scripted = Scripted::new(1);
    let flushes: Vec<_> = (0..200_000).map(|_| scripted.device.flush()).collect();
    scripted.is_ended.set(true);
    let (index, ..) = scripted.prepared.borrow()[0];
    scripted.table.complete(index, 0);
    let statistics = scripted.device.statistics();
    assert_eq!((statistics.in_flight, statistics.waiting, scripted.table.under_way()), (0, 0, 0));
    let errors = flushes.into_iter().filter_map(|mut flush| {
        match pin!(&mut flush).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result.err().map(|error| error.errno()),
            Poll::Pending => panic!("all have ended"),
        }
    });
    assert_eq!(errors.filter(|errno| *errno == libc::ECANCELED).count(), 199_999);
}
