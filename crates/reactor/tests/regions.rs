//! Real regions: what is written is there after mapping again; misuse and missing space are errors.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use reactor::device::DeviceOptions;
use reactor::{BufferedStorage, DriverKind, OpenMode, Reactor, Storage};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A directory that is removed at the end, on disk or on tmpfs.
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &str, name: &str) -> Scratch {
        let path = PathBuf::from(parent).join(format!("tabane-regions-{name}-{}", std::process::id()));
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Goal: regions keep what is written, over all drivers and media, and every accessor moves the right bytes.
/// Method: write patterns, sync, drop, open again, compare.
#[test]
fn contents() {
    let places = [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"];
    for (number, kind) in [DriverKind::IoUring, DriverKind::Epoll].into_iter().enumerate() {
        for place in places {
            let scratch = Scratch::new(place, &format!("contents{number}"));
            let reactor = Reactor::open(kind).unwrap();
            let storage = reactor.storage(&scratch.0).unwrap();
            assert!(!storage.exists("data"));
            let size = 3 * 1024 * 1024 + 5;
            let region = storage.open("data", size, OpenMode::CreateNew).unwrap();
            region.allocate(0, size).unwrap();
            let pattern: Vec<u8> = (0..size).map(|at| ((at * 31) >> 4) as u8).collect();
            region.write(0, &pattern);
            region.copy_within(100, 50, 1000);
            region.fill_zero(size - 5, 5);
            let synced = reactor.block_on(async { (region.sync(0, 4096).await, region.sync(0, size).await) });
            assert!(synced.0.is_ok() && synced.1.is_ok());
            assert_eq!(region.is_volatile(), place == "/dev/shm");
            let mut expected = pattern;
            expected.copy_within(100..1100, 50);
            expected[size as usize - 5..].fill(0);
            assert_eq!(region.crc32c(0, size), crc32c::crc32c(&expected));
            drop(region);
            let region = storage.open("data", 0, OpenMode::Existing).unwrap();
            assert_eq!(region.size(), size);
            let mut found = vec![0; size as usize];
            region.read(0, &mut found);
            assert!(found == expected);
            assert_eq!(storage.list(), ["data"]);
            storage.remove("data").unwrap();
            region.write(0, b"still mapped");
            assert!(storage.list().is_empty() && storage.free_bytes() > 0);
        }
    }
}

/// Goal: misuse is an error, and a directory belongs to one storage at a time.
/// Method: wrong names, modes and sizes; two storages on one directory.
#[test]
fn refusals() {
    let scratch = Scratch::new("/dev/shm", "refusals");
    let reactor = Reactor::open(DriverKind::Auto).unwrap();
    let storage = reactor.storage(&scratch.0).unwrap();
    let kind = |name: &str, size, mode| storage.open(name, size, mode).err().map(|error| error.kind());
    assert_eq!(kind("missing", 1, OpenMode::Existing), Some(ErrorKind::NotFound));
    assert_eq!(kind("../data", 1, OpenMode::CreateNew), Some(ErrorKind::InvalidInput));
    assert_eq!(kind("empty", 0, OpenMode::CreateNew), Some(ErrorKind::InvalidInput));
    assert_eq!(kind("huge", u64::MAX, OpenMode::CreateNew), Some(ErrorKind::InvalidInput));
    assert!(storage.list().is_empty(), "nothing half made stays behind");
    assert_eq!(kind("data", 4096, OpenMode::CreateNew), None);
    assert_eq!(kind("data", 4096, OpenMode::CreateNew), Some(ErrorKind::AlreadyExists));

    let other = reactor.storage(&scratch.0).unwrap();
    storage.lock_exclusive().unwrap();
    assert_eq!(other.lock_exclusive().err().map(|error| error.kind()), Some(ErrorKind::WouldBlock));
    drop(storage);
    other.lock_exclusive().unwrap();
}

/// Goal: space that is not there is an error at `allocate`, never a SIGBUS later. Method: allocate more than any
/// machine's memory, which is refused at once: only somewhat more than what is free would be given piece by piece until
/// the machine is out of memory.
#[test]
fn no_space() {
    let scratch = Scratch::new("/dev/shm", "space");
    let reactor = Reactor::open(DriverKind::Auto).unwrap();
    let storage = reactor.storage(&scratch.0).unwrap();
    let size = 1 << 42;
    assert!(storage.free_bytes() < size);
    let region = storage.open("data", size, OpenMode::CreateNew).unwrap();
    region.allocate(0, 4096).unwrap();
    assert_eq!(region.allocate(0, size).unwrap_err().kind(), ErrorKind::StorageFull);
    region.write(0, &[1; 4096]);
}

/// Goal: how far space was taken is known after a file was opened again, also where a copy has got holes, and on a
/// disk.
/// Method: allocate piece by piece, or write behind a hole; the kernel may take a huge page at a time.
#[test]
fn taken_space_is_known() {
    const HUGE: u64 = 2 << 20;
    for place in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let scratch = Scratch::new(place, "taken");
        let reactor = Reactor::open(DriverKind::Auto).unwrap();
        let storage = reactor.storage(&scratch.0).unwrap();
        let size = 1 << 30;
        let region = storage.open("data", size, OpenMode::CreateNew).unwrap();
        assert_eq!(region.data_end(), 0);
        for (start, end) in [(0, 64 << 10), (64 << 10, 5 << 20)] {
            region.allocate(start, end - start).unwrap();
            for region in [region.clone(), storage.open("data", 0, OpenMode::Existing).unwrap()] {
                assert!((end..end + HUGE).contains(&region.data_end()), "{place}: {}", region.data_end());
            }
        }
        let copy = storage.open("copy", size, OpenMode::CreateNew).unwrap();
        copy.allocate(7 << 20, 1).unwrap();
        assert!(((7 << 20) + 1..=(7 << 20) + HUGE).contains(&copy.data_end()), "{place}: {}", copy.data_end());
    }
}

fn open_buffered(reactor: &Reactor, memory: &Path, device: &Path, create: Option<u64>) -> io::Result<BufferedStorage> {
    let device = reactor.open_device(device, &DeviceOptions { create, ..DeviceOptions::default() })?;
    BufferedStorage::open(reactor, reactor.storage(memory)?, device, 16 << 20, None)
}

/// Goal: regions in memory that a device keeps are there for the next process, and what was synced also where the
/// memory is gone. Method: over both drivers, on a file of the disk, which is read past the page cache.
#[test]
fn regions_that_a_device_keeps() {
    for (number, kind) in [DriverKind::IoUring, DriverKind::Epoll].into_iter().enumerate() {
        let disk = Scratch::new(env!("CARGO_TARGET_TMPDIR"), &format!("buffered{number}"));
        std::fs::create_dir_all(&disk.0).unwrap();
        let (device, memory) = (disk.0.join("device"), Scratch::new("/dev/shm", &format!("buffered{number}")));
        let size = (5 << 20) + 4097;
        let pattern: Vec<u8> = (0..size).map(|at| ((at * 31) >> 4) as u8).collect();
        let read = |storage: &BufferedStorage| {
            let mut found = vec![0; size as usize];
            storage.open("data", 0, OpenMode::Existing).unwrap().read(0, &mut found);
            found
        };
        {
            let reactor = Reactor::open(kind).unwrap();
            let storage = open_buffered(&reactor, &memory.0, &device, Some(16 << 20)).unwrap();
            let region = storage.open("data", size, OpenMode::CreateNew).unwrap();
            region.allocate(0, size).unwrap();
            region.write(0, &pattern);
            assert!(reactor.block_on(region.sync(0, size)).is_ok());
            region.write(4096, b"since the last sync");
        }
        let mut newer = pattern.clone();
        newer[4096..4096 + 19].copy_from_slice(b"since the last sync");
        {
            let reactor = Reactor::open(kind).unwrap();
            let storage = open_buffered(&reactor, &memory.0, &device, None).unwrap();
            assert!(read(&storage) == newer, "memory holds what the device lacks");
        }
        std::fs::remove_dir_all(&memory.0).unwrap();
        let reactor = Reactor::open(kind).unwrap();
        let storage = open_buffered(&reactor, &memory.0, &device, None).unwrap();
        assert!(read(&storage) == pattern, "without it there is what was synced");
        drop(storage);
        // Memory with changes of another device is left as it is, and so is a device that somebody has.
        {
            let reactor = Reactor::open(kind).unwrap();
            let storage = open_buffered(&reactor, &memory.0, &device, None).unwrap();
            storage.open("data", 0, OpenMode::Existing).unwrap().write(0, b"since");
        }
        let other = disk.0.join("other");
        let told = open_buffered(&reactor, &memory.0, &other, Some(16 << 20)).err().unwrap();
        assert!(told.to_string().contains("changes that this device lacks"), "{told}");
        let exclusive = DeviceOptions { exclusive: true, ..DeviceOptions::default() };
        let held = reactor.open_device(&device, &exclusive).unwrap();
        let told = reactor.open_device(&device, &exclusive).err().unwrap();
        assert_eq!(told.kind(), ErrorKind::WouldBlock);
        drop(held);
        let storage = open_buffered(&reactor, &memory.0, &device, None).unwrap();
        let mut found = [0; 5];
        storage.open("data", 0, OpenMode::Existing).unwrap().read(0, &mut found);
        assert_eq!(&found, b"since");
        drop(storage);
        std::fs::remove_dir_all(&memory.0).unwrap();
        // One that is too small, one that is cut short, and one that holds something else.
        let told = open_buffered(&reactor, &memory.0, &disk.0.join("small"), Some(2 << 20)).err().unwrap();
        assert!(told.to_string().contains("takes 16777216"), "{told}");
        std::fs::File::options().write(true).open(&device).unwrap().set_len(2 << 20).unwrap();
        let told = open_buffered(&reactor, &memory.0, &device, None).err().unwrap();
        assert!(told.to_string().contains("shorter"), "{told}");
        std::fs::write(&device, vec![7; 2 << 20]).unwrap();
        let told = open_buffered(&reactor, &memory.0, &device, None).err().unwrap();
        assert!(told.to_string().contains("holds no store"), "{told}");
        assert!(std::fs::read(&device).unwrap().iter().all(|byte| *byte == 7), "nothing is written over");
    }
}
