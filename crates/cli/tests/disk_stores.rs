//! Stores on a disk: larger than what is in memory of them, found again after a kill and after the loss of that memory,
//! and gone with `down`.
#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::Ground;
use std::path::{Path, PathBuf};

const FILE_SIZE: usize = 96 << 20;

/// A directory on the disk; it is removed at the end.
struct Disk(PathBuf);

impl Disk {
    fn new(name: &str) -> Disk {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tabane-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Disk(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Bytes that differ everywhere.
fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()
    };
    (0..FILE_SIZE / 8).flat_map(|_| next()).collect()
}

/// Goal: a store larger than its part in memory gives every byte back, also after its servers were killed, and after
/// their memory was lost what was synced; memory stays within the buffer; `down` leaves nothing on the disk.
/// Method: files of 96 MiB through two servers with buffers of 16 MiB, compared after each of these.
#[test]
fn larger_than_memory() {
    let (ground, disk) = (Ground::new("disk"), Disk::new("disk"));
    let store = format!("nvme:{},size=256M,buffer=16M", disk.0.display());
    let told = ground.run(&["up", "--servers", "2", "--store", &store]);
    assert!(told.contains("stores on") && told.contains("16.0 MiB of each in memory"), "{told}");
    let memory = PathBuf::from(told.lines().next().unwrap().rsplit_once(" in ").unwrap().1);
    assert_eq!(disk.names().len(), 2);
    let (from, to) = (ground.path.join("from"), ground.path.join("to"));
    let compare = |name: &str, wanted: &[u8]| {
        ground.run(&["cp", &format!(":/{name}"), to.to_str().unwrap()]);
        assert!(std::fs::read(&to).unwrap() == wanted, "{name} is as it was");
    };
    let files = [("one", bytes(1)), ("two", bytes(2))];
    for (name, bytes) in &files {
        std::fs::write(&from, bytes).unwrap();
        ground.run(&["cp", from.to_str().unwrap(), &format!(":/{name}")]);
    }
    files.iter().for_each(|(name, bytes)| compare(name, bytes));
    let told: serde_json::Value = serde_json::from_str(&ground.run(&["status", "--json"])).unwrap();
    let counted = |name: &str| -> u64 {
        let servers = told["servers"].as_array().unwrap();
        servers.iter().map(|server| server["report"]["device"][name].as_u64().unwrap()).sum()
    };
    let (size, buffers) = (2 * FILE_SIZE as u64, 2 * (16 << 20));
    assert!(counted("buffer_resident") <= buffers && counted("buffer_dirty") <= buffers, "{told:#}");
    // What is not dirty any more was written, once; what was read had gone.
    let written = counted("written_bytes") + counted("buffer_dirty");
    assert!(written >= size && written < size + size / 4, "{told:#}");
    assert!(counted("read_bytes") >= size - buffers && counted("read_bytes") < size + size / 4, "{told:#}");
    assert!(counted("flushes") > 0 && counted("buffer_waits") > 0 && counted("failed") == 0, "{told:#}");
    let line = ground.run(&["status"]);
    let line = line.lines().find(|line| line.starts_with("devices: ")).unwrap();
    assert!(line.contains(" for each byte that came), ") && line.contains(" of the data in memory, "), "{line}");
    assert!(ground.run(&["status", "--metrics"]).contains("\ntabane_device_handover_seconds_total{server=\"1\"} 0."));
    let held: u64 = (0..2)
        .map(|index| {
            std::os::unix::fs::MetadataExt::blocks(
                &memory.join(format!("server-{index}/buffer/data")).metadata().unwrap(),
            )
        })
        .sum();
    assert!(held * 512 <= 2 * (16 << 20), "{held} blocks are in memory");
    let kill = |index| {
        let process = reactor::process::ProcessId::of(ground.pid(index)).unwrap();
        assert!(process.signal(reactor::process::SIGKILL).unwrap());
    };
    kill(0);
    assert!(ground.run(&["up"]).contains("1 server started again: 0"));
    files.iter().for_each(|(name, bytes)| compare(name, bytes));
    ground.run(&["sync", "/"]);
    [0, 1].into_iter().for_each(kill);
    // What is in use by a process that is going stays in use for a moment.
    assert!((0..10_000).any(|_| std::fs::remove_dir_all(&memory).is_ok()));
    ground.run(&["up"]);
    files.iter().for_each(|(name, bytes)| compare(name, bytes));
    ground.run(&["down"]);
    assert_eq!((disk.names(), memory.exists()), (Vec::new(), false));
}

/// Goal: a file that is there stays, whatever becomes of the cluster: nothing is written over, and after `down` it is
/// blank and as large as before. What is wrong with a wish is told with what to do. Method: a file that holds
/// something, then zeros; two servers for it; a buffer and a size that are none.
#[test]
fn a_file_that_is_there() {
    let (ground, disk) = (Ground::new("disk-file"), Disk::new("disk-file"));
    let file = disk.0.join("device");
    std::fs::write(&file, vec![7; 200 << 20]).unwrap();
    let up = |more: &str| ["up".to_owned(), "--store".to_owned(), format!("nvme:{}{more}", file.display())];
    let fail = |code: i32, more: &str, others: &[&str]| {
        let words = up(more);
        let words: Vec<&str> = words.iter().map(String::as_str).chain(others.iter().copied()).collect();
        ground.fail(code, &words)
    };
    let told = fail(1, ",size=64M,buffer=16M", &["--servers", "1"]);
    assert!(told.contains("no store") && told.contains("name another one"), "{told}");
    assert!(std::fs::read(&file).unwrap().iter().all(|byte| *byte == 7), "nothing was written over");
    std::fs::write(&file, vec![0; 200 << 20]).unwrap();
    assert!(fail(1, ",size=64M,buffer=16M", &["--servers", "2"]).contains("would both have"));
    assert!(fail(1, ",size=190M,buffer=16M", &["--servers", "1"]).contains("takes"));
    assert!(fail(2, ",size=64M,buffer=1M", &[]).contains("a size from 16.0 MiB"));
    assert!(fail(2, ",size=64M,speed=9", &[]).contains("is not known"));
    let words = up(",size=64M,buffer=16M");
    let words: Vec<&str> = words.iter().map(String::as_str).chain(["--servers", "1"]).collect();
    ground.run(&words);
    ground.run(&["mkdir", "/here"]);
    ground.run(&["down"]);
    let left = std::fs::read(&file).unwrap();
    assert_eq!(left.len(), 200 << 20);
    assert!(left[..1 << 20].iter().all(|byte| *byte == 0), "it can be taken again");
}

/// Goal: a device that is cut short below a server is an error of who reads there, which names file, chunk and place,
/// and of nobody else. Method: a file of 96 MiB, of which 16 are in memory, on a device that loses its end.
#[test]
fn a_device_that_is_cut_short() {
    let (ground, disk) = (Ground::new("disk-cut"), Disk::new("disk-cut"));
    let store = format!("nvme:{},size=256M,buffer=16M", disk.0.display());
    ground.run(&["up", "--servers", "1", "--store", &store]);
    let (from, to) = (ground.path.join("from"), ground.path.join("to"));
    std::fs::write(&from, bytes(3)).unwrap();
    ground.run(&["cp", from.to_str().unwrap(), ":/long"]);
    ground.run(&["sync", "/"]);
    let device = disk.0.join(&disk.names()[0]);
    let size = device.metadata().unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(&device).unwrap();
    file.set_len(2 << 20).unwrap();
    let told = ground.fail(1, &["cp", ":/long", to.to_str().unwrap()]);
    assert!(told.contains("chunk ") && told.contains("within what it should hold"), "{told}");
    ground.run(&["stat", "/long"]);
    ground.run(&["status"]);
    // As large as before, so that what is in memory can be written and the server ends well.
    file.set_len(size).unwrap();
}

/// Goal: a byte that goes bad on the disk is an error of who reads its page, which names file, chunk and place, and of
/// nobody else, and `tabane check --data` finds it. Method: a byte of a file of 96 MiB is changed on the device, where
/// no more than 16 MiB of it are in memory.
#[test]
fn a_byte_that_goes_bad() {
    use std::os::unix::fs::FileExt;
    let (ground, disk) = (Ground::new("disk-rot"), Disk::new("disk-rot"));
    let store = format!("nvme:{},size=256M,buffer=16M", disk.0.display());
    ground.run(&["up", "--servers", "1", "--store", &store]);
    let (from, to) = (ground.path.join("from"), ground.path.join("to"));
    let wanted = bytes(4);
    std::fs::write(&from, &wanted).unwrap();
    ground.run(&["cp", from.to_str().unwrap(), ":/rotten"]);
    ground.run(&["sync", "/"]);
    let device = std::fs::OpenOptions::new().read(true).write(true).open(disk.0.join(&disk.names()[0])).unwrap();
    let page = 1000;
    let mut found = None;
    let mut held = vec![0; 4096];
    for at in (0..device.metadata().unwrap().len()).step_by(held.len()) {
        device.read_exact_at(&mut held, at).unwrap();
        if held == wanted[page * 4096..][..4096] {
            found = Some(at);
        }
    }
    device.write_all_at(&[!wanted[page * 4096 + 77]], found.unwrap() + 77).unwrap();
    let told = ground.fail(1, &["cp", ":/rotten", to.to_str().unwrap()]);
    assert!(told.contains("checksum") || told.contains("Input/output"), "{told}");
    let checked = ground.try_run(&["check", "--data"]);
    let told = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.status.code() == Some(4) && told.contains("does not match its checksum"), "{told}");
    std::fs::write(&from, &wanted[..4096]).unwrap();
    ground.run(&["cp", from.to_str().unwrap(), ":/sound"]);
    ground.run(&["cp", ":/sound", to.to_str().unwrap()]);
    ground.run(&["down"]);
}
