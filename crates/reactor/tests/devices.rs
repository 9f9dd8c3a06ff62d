//! Devices for real: over io_uring and over kernel AIO, on a file of the disk, a file in memory, and a loop device over
//! memory, which takes root; TABANE_CI_NO_ROOT=1 leaves that one out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use reactor::device::{Abilities, Buffer, BufferPool, Device, DeviceOptions, DeviceTransfer, Direct, DirectMode};
use reactor::{DriverKind, Reactor};
use std::path::{Path, PathBuf};
use std::process::Command;

const DRIVERS: [DriverKind; 2] = [DriverKind::IoUring, DriverKind::Epoll];
const SIZE: u64 = 4 << 20;
const BLOCK: usize = 16 << 10;

/// A file that goes with the test.
struct TestFile(PathBuf);

impl TestFile {
    fn new(directory: &str, name: &str) -> TestFile {
        let path = PathBuf::from(directory).join(format!("tabane-device-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        TestFile(path)
    }

    fn on_disk(name: &str) -> TestFile {
        TestFile::new(env!("CARGO_TARGET_TMPDIR"), name)
    }

    fn in_memory(name: &str) -> TestFile {
        TestFile::new("/dev/shm", name)
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A loop device over a file in memory.
struct LoopDevice {
    path: PathBuf,
    file: TestFile,
}

impl LoopDevice {
    /// Nothing if somebody said that this is not run as root.
    #[expect(clippy::disallowed_methods, reason = "whether a test is left out is for whoever runs it")]
    fn new(name: &str) -> Option<LoopDevice> {
        if std::env::var("TABANE_CI_NO_ROOT").is_ok_and(|value| value == "1") {
            return None;
        }
        let file = TestFile::in_memory(name);
        std::fs::File::create(&file.0).unwrap().set_len(SIZE).unwrap();
        let output = Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&file.0).output();
        let output = output.expect("losetup of util-linux is there");
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "run this as root, or set TABANE_CI_NO_ROOT=1 to leave it out: {words}");
        let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
        Some(LoopDevice { path, file })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

fn options(create: Option<u64>, depth: u32) -> DeviceOptions {
    DeviceOptions { create, depth, ..DeviceOptions::default() }
}

/// Runs a test on each driver and each kind of device, new for each.
fn everywhere(name: &str, test: impl Fn(&Reactor, &dyn Fn(u32) -> Device)) {
    for kind in DRIVERS {
        for file in [TestFile::on_disk(name), TestFile::in_memory(name)] {
            let reactor = Reactor::open(kind).unwrap();
            let first = std::cell::Cell::new(true);
            test(&reactor, &|depth| {
                reactor.open_device(&file.0, &options(first.replace(false).then_some(SIZE), depth)).unwrap()
            });
        }
        if let Some(device) = LoopDevice::new(name) {
            let reactor = Reactor::open(kind).unwrap();
            test(&reactor, &|depth| reactor.open_device(&device.path, &options(None, depth)).unwrap());
        }
    }
}

/// Bytes that tell where and in which round they were written.
fn fill(bytes: &mut [u8], offset: u64, round: u64) {
    for (index, word) in bytes.chunks_mut(8).enumerate() {
        let value = (offset + index as u64 * 8) ^ round << 48;
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

fn assert_filled(bytes: &[u8], offset: u64, round: u64) {
    let mut wanted = vec![0; bytes.len()];
    fill(&mut wanted, offset, round);
    assert!(bytes == wanted, "the bytes at {offset} are those of round {round}");
}

async fn write(device: &Device, pool: &BufferPool, offset: u64, size: usize, round: u64) {
    let mut buffer = pool.get().await;
    fill(&mut buffer[..size], offset, round);
    assert_eq!(device.write(offset, buffer, size).await.0.unwrap(), size);
}

async fn read(device: &Device, pool: &BufferPool, offset: u64, size: usize) -> (usize, Buffer) {
    let mut buffer = pool.get().await;
    buffer[..size].fill(0xEE);
    let (result, buffer) = device.read(offset, buffer, size).await;
    (result.unwrap(), buffer)
}

/// Goal: what was written is read, by the seam and by others; many operations are under way at once but no more than
/// the depth, and the rest waits; a file's end is told. Method: 64 writes at a depth of 8.
#[test]
fn bytes_come_back() {
    everywhere("back", |reactor, open| {
        let device = open(8);
        let pool = reactor.buffer_pool(BLOCK, 64).unwrap();
        assert_eq!(pool.memory(), 64 * BLOCK as u64);
        reactor.block_on(async {
            let mut writes: Vec<(u64, DeviceTransfer)> = Vec::new();
            for number in 0..64 {
                let (mut buffer, offset) = (pool.get().await, number * BLOCK as u64);
                fill(&mut buffer, offset, 1);
                writes.push((offset, device.write(offset, buffer, BLOCK)));
            }
            assert_eq!((device.statistics().in_flight, device.statistics().waiting), (8, 56));
            assert!(pool.take().is_none());
            for (_, write) in writes {
                let (result, buffer) = write.await;
                assert_eq!(result.unwrap(), BLOCK);
                drop(buffer);
            }
            device.flush().await.unwrap();
            for number in (0..64).rev() {
                let (count, buffer) = read(&device, &pool, number * BLOCK as u64, BLOCK).await;
                assert_eq!(count, BLOCK);
                assert_filled(&buffer, number * BLOCK as u64, 1);
            }
            let (count, _) = read(&device, &pool, SIZE - 4096, BLOCK).await;
            assert_eq!(count, 4096, "the end is told");
            assert_eq!(read(&device, &pool, SIZE, BLOCK).await.0, 0);
        });
        assert!(device.statistics().in_flight_most <= 8, "{:?}", device.statistics());
        let file = std::fs::read(device.path()).unwrap();
        assert_filled(&file[..64 * BLOCK], 0, 1);
        assert_eq!(pool.free_count(), 64);
    });
}

/// Goal: what is written from within a buffer is what lies there, and the rest of the device stays as it was. Method: a
/// header before each payload, as a message brings it; then a part that would reach beyond its buffer.
#[test]
fn parts_of_buffers_are_written() {
    everywhere("parts", |reactor, open| {
        let device = open(8);
        let pool = reactor.buffer_pool(4096 + BLOCK, 4).unwrap();
        reactor.block_on(async {
            write(&device, &pool, 0, BLOCK, 1).await;
            write(&device, &pool, 3 * BLOCK as u64, BLOCK, 1).await;
            let mut writes = Vec::new();
            for number in 1..3 {
                let (mut buffer, offset) = (pool.get().await, number * BLOCK as u64);
                buffer[..4096].fill(0xEE);
                fill(&mut buffer[4096..], offset, 2);
                writes.push(device.write_part(offset, buffer, 4096, BLOCK));
            }
            for write in writes {
                assert_eq!(write.await.0.unwrap(), BLOCK);
            }
            for (number, round) in [(0, 1), (1, 2), (2, 2), (3, 1)] {
                let (count, buffer) = read(&device, &pool, number * BLOCK as u64, BLOCK).await;
                assert_eq!(count, BLOCK);
                assert_filled(&buffer[..BLOCK], number * BLOCK as u64, round);
            }
        });
        for (start, size) in [(8192, BLOCK), (usize::MAX - 4095, 4096)] {
            let buffer = pool.take().unwrap();
            let attempt = || drop(device.write_part(0, buffer, start, size));
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt)).unwrap_err();
        }
        assert_eq!(pool.free_count(), 4);
    });
}

/// Goal: more operations than the ring has entries, and than a driver handles at a time, all end. Method: 1,024 reads
/// of 4 KiB at once, twice.
#[test]
fn rings_may_be_full() {
    everywhere("full", |reactor, open| {
        let device = open(1024);
        let pool = reactor.buffer_pool(4096, 1024).unwrap();
        reactor.block_on(async {
            for round in 0..2 {
                let offsets = (0..1024).map(|number| number * 4096);
                let writes: Vec<_> = offsets
                    .clone()
                    .map(|offset| {
                        let mut buffer = pool.take().unwrap();
                        fill(&mut buffer, offset, round);
                        device.write(offset, buffer, 4096)
                    })
                    .collect();
                for write in writes {
                    assert_eq!(write.await.0.unwrap(), 4096);
                }
                let reads: Vec<_> =
                    offsets.clone().map(|offset| device.read(offset, pool.take().unwrap(), 4096)).collect();
                for (offset, read) in offsets.zip(reads) {
                    let (result, buffer) = read.await;
                    assert_eq!(result.unwrap(), 4096);
                    assert_filled(&buffer, offset, round);
                }
            }
        });
        assert_eq!(device.statistics().in_flight_most, 1024);
    });
}

/// Goal: a future that is dropped leaves its buffer with the kernel until that is done, also where the loop ends
/// meanwhile; what had not been handed over is not done at all. Method: 32 writes at a depth of 16, all dropped.
#[test]
fn dropped_operations_keep_their_buffers() {
    everywhere("dropped", |reactor, open| {
        let device = open(16);
        let pool = reactor.buffer_pool(BLOCK, 32).unwrap();
        reactor.block_on(async {
            for number in 0..32 {
                write(&device, &pool, number * BLOCK as u64, BLOCK, 1).await;
            }
            let mut writes = Vec::new();
            for number in 0..32 {
                let (mut buffer, offset) = (pool.take().unwrap(), number * BLOCK as u64);
                fill(&mut buffer, offset, 2);
                writes.push(device.write(offset, buffer, BLOCK));
            }
            drop(writes);
            assert_eq!(pool.free_count(), 16, "those that were handed over are kept");
            // Whoever takes the others may do with them what he likes.
            let mut others: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
            others.iter_mut().for_each(|buffer| buffer.fill(0xAB));
            for _ in 0..16 {
                others.push(pool.get().await);
            }
            drop(others);
            for number in 0..32 {
                let (_, buffer) = read(&device, &pool, number * BLOCK as u64, BLOCK).await;
                assert_filled(&buffer, number * BLOCK as u64, if number < 16 { 2 } else { 1 });
            }
        });
        let reads: Vec<_> = (0..32).map(|number| device.read(number * 4096, pool.take().unwrap(), BLOCK)).collect();
        drop((reads, device));
        assert_eq!(pool.free_count(), 16);
    });
    // Now the loop goes first.
    for kind in DRIVERS {
        let file = TestFile::on_disk("ended");
        let reactor = Reactor::open(kind).unwrap();
        let device = reactor.open_device(&file.0, &options(Some(SIZE), 16)).unwrap();
        let pool = reactor.buffer_pool(BLOCK, 32).unwrap();
        let writes: Vec<_> = (0..32).map(|number| device.write(number << 14, pool.take().unwrap(), BLOCK)).collect();
        drop(reactor);
        let other = Reactor::open(kind).unwrap();
        let mut ends = Vec::new();
        for write in writes {
            let (result, _) = other.block_on(write);
            ends.push(result.map_err(|error| error.errno()));
        }
        assert!(ends[16..].iter().all(|end| *end == Err(libc::ECANCELED)), "{ends:?}");
        assert_eq!(pool.free_count(), 32);
        drop(other);
    }
}

/// Goal: whatever order operations end in, a device holds what a plain array would. Method: rounds of reads, writes and
/// discards that do not overlap within a round, at random sizes and places, against a model; seeds are printed.
#[test]
fn devices_are_arrays() {
    everywhere("model", |reactor, open| {
        let device = open(6);
        for seed in 0..4u64 {
            let mut state = seed;
            let mut random = move |bound: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % bound
            };
            let pool = reactor.buffer_pool(64 << 10, 24).unwrap();
            let mut model = std::fs::read(device.path()).unwrap();
            reactor.block_on(async {
                for round in 0..40 {
                    let mut reads = Vec::new();
                    let mut writes = Vec::new();
                    // One operation in each sixteenth of a sixteenth.
                    for place in 0..16u64 {
                        let size = (1 + random(16)) * 4096;
                        let offset = place * (SIZE / 16) + random((SIZE / 16 - size) / 4096) * 4096;
                        let mut buffer = pool.take().unwrap();
                        if random(2) == 0 {
                            fill(&mut buffer, offset, round + 3);
                            let range = offset as usize..(offset + size) as usize;
                            model[range].copy_from_slice(&buffer[..size as usize]);
                            writes.push(device.write(offset, buffer, size as usize));
                        } else {
                            reads.push((offset, device.read(offset, buffer, size as usize)));
                        }
                    }
                    for (offset, read) in reads {
                        let (result, buffer) = read.await;
                        let (count, offset) = (result.unwrap(), offset as usize);
                        assert!(buffer[..count] == model[offset..offset + count], "seed {seed}, round {round}");
                    }
                    for write in writes {
                        write.await.0.unwrap();
                    }
                    if round % 10 == 9 {
                        device.flush().await.unwrap();
                        let offset = random(SIZE / 65_536) * 65_536;
                        if device.discard(offset, 65_536).await.is_ok() {
                            model[offset as usize..][..65_536].fill(0);
                        }
                    }
                }
            });
            assert!(std::fs::read(device.path()).unwrap() == model, "seed {seed}");
        }
    });
}

/// Goal: what stands below a device may shrink: the end of a file is told, and a device whose own file is cut short is
/// an error that names path and offset, and no dead process.
#[test]
fn cut_short_below() {
    for kind in DRIVERS {
        let reactor = Reactor::open(kind).unwrap();
        let pool = reactor.buffer_pool(BLOCK, 2).unwrap();
        for file in [TestFile::on_disk("cut"), TestFile::in_memory("cut")] {
            let device = reactor.open_device(&file.0, &options(Some(SIZE), 2)).unwrap();
            std::fs::OpenOptions::new().write(true).open(&file.0).unwrap().set_len(SIZE / 2 + 700).unwrap();
            reactor.block_on(async {
                assert_eq!(read(&device, &pool, SIZE / 2, BLOCK).await.0, 700);
                assert_eq!(read(&device, &pool, SIZE - BLOCK as u64, BLOCK).await.0, 0);
            });
        }
        let Some(device) = LoopDevice::new("cut-loop") else { continue };
        let opened = reactor.open_device(&device.path, &options(None, 2)).unwrap();
        std::fs::OpenOptions::new().write(true).open(&device.file.0).unwrap().set_len(SIZE / 2).unwrap();
        reactor.block_on(async {
            let (result, buffer) = opened.read(SIZE - BLOCK as u64, pool.get().await, BLOCK).await;
            let error = result.unwrap_err();
            assert_eq!(error.errno(), libc::EIO);
            let words = error.to_string();
            let offset = (SIZE - BLOCK as u64).to_string();
            assert!(words.contains(device.path.to_str().unwrap()) && words.contains(&offset), "{words}");
            drop(buffer);
            assert_eq!(read(&opened, &pool, 0, BLOCK).await.0, BLOCK, "what is there is read");
        });
    }
}

fn abilities(path: &Path, create: Option<u64>, direct: DirectMode) -> std::io::Result<Abilities> {
    let reactor = Reactor::open(DriverKind::Auto).unwrap();
    let options = DeviceOptions { create, direct, ..DeviceOptions::default() };
    Ok(reactor.open_device(path, &options)?.abilities().clone())
}

/// Goal: what a device can is asked for, told in words, and what it can't is refused where it was asked for.
#[test]
fn abilities_are_asked_for() {
    let file = TestFile::in_memory("abilities");
    let memory = abilities(&file.0, Some(SIZE), DirectMode::Auto).unwrap();
    assert_eq!((memory.direct, memory.is_volatile, memory.size), (Direct::Ignored, true, SIZE));
    assert!(memory.to_string().contains("direct I/O is ignored"), "{memory}");
    let refused = abilities(&file.0, None, DirectMode::Required).unwrap_err();
    assert!(refused.to_string().contains(file.0.to_str().unwrap()) && refused.to_string().contains("direct"));
    assert_eq!(abilities(&file.0, None, DirectMode::Never).unwrap().direct, Direct::Off);
    let exists = abilities(&file.0, Some(SIZE), DirectMode::Auto).unwrap_err();
    assert_eq!(exists.kind(), std::io::ErrorKind::AlreadyExists);
    let directory = file.0.parent().unwrap();
    assert!(abilities(directory, None, DirectMode::Auto).unwrap_err().to_string().contains("/dev/shm"));
    let missing = abilities(Path::new("/dev/shm/tabane-no-such"), None, DirectMode::Auto).unwrap_err();
    assert!(missing.to_string().contains("/dev/shm/tabane-no-such"), "{missing}");
    assert!(abilities(Path::new("/dev/null"), None, DirectMode::Auto).unwrap_err().to_string().contains("neither"));
    if let Some(device) = LoopDevice::new("abilities-loop") {
        let found = abilities(&device.path, None, DirectMode::Required).unwrap();
        assert!(matches!(found.direct, Direct::Yes { offset, .. } if offset >= 512), "{found}");
        assert!(found.is_block_device && !found.is_volatile && found.size == SIZE && found.requests_max.is_some());
        // Two that write to it don't meet.
        let reactor = Reactor::open(DriverKind::Auto).unwrap();
        let first = reactor.open_device(&device.path, &options(None, 1)).unwrap();
        let second = reactor.open_device(&device.path, &options(None, 1)).err().unwrap();
        assert_eq!(second.kind(), std::io::ErrorKind::ResourceBusy, "{second}");
        drop(first);
        reactor.open_device(&device.path, &options(None, 1)).unwrap();
        // Nor is it kept by a loop that has ended.
        for kind in DRIVERS {
            let reactor = Reactor::open(kind).unwrap();
            let last = reactor.open_device(&device.path, &options(None, 1)).unwrap();
            drop((reactor, last));
        }
    }
}

/// Goal: pools are bounded, told, and give buffers in turn; a wait that is given up passes its turn on.
#[test]
fn pools_give_in_turn() {
    let reactor = Reactor::open(DriverKind::Auto).unwrap();
    assert!(reactor.buffer_pool(1 << 20, 1025).is_err() && reactor.buffer_pool(4096, 0).is_err());
    let pool = reactor.buffer_pool(5000, 1).unwrap();
    assert_eq!((pool.buffer_size(), pool.memory()), (8192, 8192));
    let order = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    reactor.block_on(async {
        let held = pool.get().await;
        let mut tasks = Vec::new();
        for number in 0..4 {
            let (pool, order) = (pool.clone(), order.clone());
            tasks.push(reactor.spawn_joinable(reactor::Class::Data, async move {
                let buffer = pool.get().await;
                order.borrow_mut().push(number);
                drop(buffer);
            }));
            reactor.yield_now().await;
        }
        tasks.remove(1).cancel();
        drop(held);
        // The first has been told, and is gone before it takes it.
        tasks.remove(0).cancel();
        for task in tasks {
            task.await;
        }
    });
    assert_eq!(*order.borrow(), [2, 3]);
}
