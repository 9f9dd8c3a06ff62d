//! Backing trees, for real and simulated: one table of cases with the same assertions for both, over a directory of
//! this machine with each driver and over the site of a world.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use reactor::backing::{
    AttributeChange, BackingDirectory, BackingError, BackingFile, BackingTree, CALL_SIZE_MAX, CALLS_MAX, FileKind,
    HANDLES_MAX, ListEntry, ListPosition, RenameMode, SeekKind,
};
use reactor::sim::{BACKING_ROOT, BackingFaults, NodeId, World};
use reactor::{Class, DriverKind, OpenMode, Reactor, Span};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;

const SECOND: u64 = 1_000_000_000;

/// Somebody who changes the tree behind our back, and looks at it.
trait Outside {
    fn write(&self, path: &str, bytes: &[u8]);
    fn read(&self, path: &str) -> Option<Vec<u8>>;
    fn make_directory(&self, path: &str);
    fn make_symlink(&self, path: &str, target: &str);
    fn make_fifo(&self, path: &str);
    fn rename(&self, from: &str, to: &str);
    fn remove(&self, path: &str);
    fn remove_root(&self);
}

struct RealOutside(PathBuf);

impl Outside for RealOutside {
    fn write(&self, path: &str, bytes: &[u8]) {
        std::fs::write(self.0.join(path), bytes).unwrap();
    }
    fn read(&self, path: &str) -> Option<Vec<u8>> {
        std::fs::read(self.0.join(path)).ok()
    }
    fn make_directory(&self, path: &str) {
        std::fs::create_dir(self.0.join(path)).unwrap();
    }
    fn make_symlink(&self, path: &str, target: &str) {
        std::os::unix::fs::symlink(target, self.0.join(path)).unwrap();
    }
    fn make_fifo(&self, path: &str) {
        let status = std::process::Command::new("mkfifo").arg(self.0.join(path)).status().unwrap();
        assert!(status.success());
    }
    fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.0.join(from), self.0.join(to)).unwrap();
    }
    fn remove(&self, path: &str) {
        let path = self.0.join(path);
        if path.symlink_metadata().unwrap().is_dir() {
            std::fs::remove_dir(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
    }
    fn remove_root(&self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

struct SimOutside(Rc<World>);

impl Outside for SimOutside {
    fn write(&self, path: &str, bytes: &[u8]) {
        let outsider = self.0.outsider();
        outsider.write(path, 0, bytes);
        outsider.set_size(path, bytes.len() as u64);
    }
    fn read(&self, path: &str) -> Option<Vec<u8>> {
        self.0.outsider().read(path)
    }
    fn make_directory(&self, path: &str) {
        self.0.outsider().make_directory(path);
    }
    fn make_symlink(&self, path: &str, target: &str) {
        self.0.outsider().make_symlink(path, target);
    }
    fn make_fifo(&self, path: &str) {
        self.0.outsider().make_other(path);
    }
    fn rename(&self, from: &str, to: &str) {
        self.0.outsider().rename(from, to);
    }
    fn remove(&self, path: &str) {
        self.0.outsider().remove(path);
    }
    fn remove_root(&self) {
        self.0.outsider().remove_root();
    }
}

/// What a case runs on.
struct Bench {
    reactor: Reactor,
    tree: BackingTree,
    outside: Rc<dyn Outside>,
    /// Where a store may be, outside the tree.
    store: PathBuf,
}

type CaseFuture = Pin<Box<dyn Future<Output = ()>>>;

/// A directory that goes with the test, and beside it one for a store.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new(name: &str) -> TestDirectory {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("backing-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("root")).unwrap();
        TestDirectory(path)
    }

    fn root(&self) -> PathBuf {
        self.0.join("root")
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn world(seed: u64) -> (Rc<World>, NodeId) {
    let world = World::new(seed);
    let node = world.add_node("node", IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    (Rc::new(world), node)
}

/// Runs a case over both drivers and over some worlds.
fn everywhere(name: &str, case: fn(Bench) -> CaseFuture) {
    for kind in [DriverKind::IoUring, DriverKind::Epoll] {
        let directory = TestDirectory::new(&format!("{name}-{kind:?}"));
        let reactor = Reactor::open(kind).unwrap();
        let tree = reactor.backing_tree(&directory.root()).unwrap();
        assert_eq!(tree.carrier(), "threads");
        let outside = Rc::new(RealOutside(directory.root()));
        let bench = Bench { reactor: reactor.clone(), tree: tree.clone(), outside, store: directory.0.join("store") };
        reactor.block_on(case(bench));
        drop(tree);
        reactor.shutdown();
    }
    for seed in 0..10 {
        let (world, node) = world(seed);
        // What is allowed is left to other tests: here the answers are to be the same.
        world.set_backing_faults(BackingFaults { hides_holes: 0, ..BackingFaults::default() });
        let reactor = world.reactor(node);
        let tree = reactor.backing_tree(Path::new(BACKING_ROOT)).unwrap();
        assert_eq!(tree.carrier(), "sim");
        let outside = Rc::new(SimOutside(world.clone()));
        let bench = Bench { reactor, tree, outside, store: PathBuf::from("store") };
        assert!(world.run(node, case(bench), 3600 * SECOND).is_some(), "seed {seed}: the case ends");
    }
}

fn errno<T>(result: Result<T, BackingError>) -> i32 {
    result.map(drop).unwrap_err().errno()
}

async fn write_all(file: &BackingFile, offset: u64, bytes: &[u8]) {
    for (index, part) in bytes.chunks(CALL_SIZE_MAX).enumerate() {
        let offset = offset + (index * CALL_SIZE_MAX) as u64;
        let (count, memory) = file.write(offset, part.to_vec()).await;
        assert_eq!((count.unwrap(), memory.into_bytes()), (part.len(), part.to_vec()));
    }
}

async fn read(file: &BackingFile, offset: u64, size: usize) -> Vec<u8> {
    let (count, memory) = file.read(offset, vec![0xAA; size]).await;
    let mut bytes = memory.into_bytes();
    bytes.truncate(count.unwrap());
    bytes
}

async fn list_all(directory: &BackingDirectory) -> Vec<ListEntry> {
    let listing = directory.open_listing().await.unwrap();
    let (mut entries, mut from) = (Vec::new(), ListPosition::default());
    loop {
        let piece = listing.list(from).await.unwrap();
        entries.extend(piece.entries);
        let Some(next) = piece.next else { return entries };
        from = next;
    }
}

fn pattern(size: usize, seed: u8) -> Vec<u8> {
    (0..size).map(|index| (index as u8).wrapping_mul(31) ^ (index >> 8) as u8 ^ seed).collect()
}

/// Goal: what is made is what is seen, with its kind, number, links and target.
#[test]
fn things_are_what_they_were_made() {
    everywhere("made", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            assert!(root.path().is_empty());
            root.make_directory("directory", 0o700).await.unwrap();
            let file = root.make_file("file", 0o600).await.unwrap();
            write_all(&file, 0, b"twelve bytes").await;
            root.make_symlink("link", "../anywhere").await.unwrap();
            let directory = root.open_directory("directory").await.unwrap();
            root.link("file", &directory, "other").await.unwrap();
            assert_eq!(errno(root.make_directory("file", 0o700).await), libc::EEXIST);
            assert_eq!(errno(root.make_file("link", 0o600).await), libc::EEXIST);
            assert_eq!(errno(root.make_symlink("directory", "x").await), libc::EEXIST);
            assert_eq!(errno(root.link("file", &directory, "other").await), libc::EEXIST);
            assert_eq!(errno(root.link("directory", &root, "more").await), libc::EPERM);
            assert_eq!(errno(root.link("none", &root, "more").await), libc::ENOENT);

            let seen = root.look("file").await.unwrap();
            assert_eq!((seen.kind, seen.identity.size, seen.link_count), (FileKind::File, 12, 2));
            assert_eq!(seen.identity, directory.look("other").await.unwrap().identity);
            assert_eq!(seen.identity, file.look().await.unwrap().identity);
            let link = root.look("link").await.unwrap();
            assert_eq!((link.kind, link.target.as_deref()), (FileKind::Symlink, Some(&b"../anywhere"[..])));
            let below = root.look("directory").await.unwrap();
            assert_eq!(below.kind, FileKind::Directory);
            assert_eq!(below.identity.inode, directory.look_open().await.unwrap().identity.inode);
            assert_eq!(errno(root.look("none").await), libc::ENOENT);
            assert_eq!(bench.outside.read("directory/other").as_deref(), Some(&b"twelve bytes"[..]));
            let error = root.look("none").await.unwrap_err();
            let words = "backing directory: look of none: No such file or directory (os error 2)";
            assert_eq!((error.path(), error.to_string().as_str()), (&b"none"[..], words));
            assert!(root.space().await.unwrap().available > 0);
            assert!(root.preferred_size().await.unwrap() > 0 && file.preferred_size().await.unwrap() > 0);
            root.sync().await.unwrap();
        })
    });
}

/// Goal: listings tell every name once, whatever its bytes are, go on where they stopped, and know kinds or say that
/// they don't.
#[test]
fn listings_are_whole() {
    everywhere("listings", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            let mut expected: BTreeMap<Vec<u8>, FileKind> = BTreeMap::new();
            for number in 0..2000 {
                let name = format!("{number}-{}", "n".repeat(number % 200));
                bench.outside.write(&name, b"");
                expected.insert(name.into_bytes(), FileKind::File);
            }
            for name in [&b"\xff\xfe\x80"[..], b" ", b"new\nline", &[b'x'; 255]] {
                root.make_directory(name, 0o700).await.unwrap();
                expected.insert(name.to_vec(), FileKind::Directory);
            }
            bench.outside.make_symlink("link", "nowhere");
            expected.insert(b"link".to_vec(), FileKind::Symlink);
            let check = |entries: &[ListEntry]| {
                let names: BTreeSet<&[u8]> = entries.iter().map(|entry| &*entry.name).collect();
                assert_eq!(names.len(), entries.len(), "each is told once");
                assert!(names.into_iter().eq(expected.keys().map(|name| &**name)));
                for entry in entries {
                    assert!(entry.kind.is_none_or(|kind| kind == expected[&*entry.name]), "{entry:?}");
                }
            };
            check(&list_all(&root).await);
            // The first piece by one listing, the rest by another.
            let listing = root.open_listing().await.unwrap();
            let first = listing.list(ListPosition::default()).await.unwrap();
            assert!(first.entries.len() < expected.len(), "a piece is bounded");
            drop(listing);
            let listing = root.open_listing().await.unwrap();
            let (mut entries, mut next) = (first.entries, first.next);
            while let Some(from) = next {
                let piece = listing.list(from).await.unwrap();
                entries.extend(piece.entries);
                next = piece.next;
            }
            check(&entries);
            let one = &entries[17];
            assert_eq!(root.look(&one.name).await.unwrap().identity.inode, one.inode);
            assert!(list_all(&root.open_directory(" ").await.unwrap()).await.is_empty());
        })
    });
}

/// Goal: several files are synced by one call, and each gets its answer; none is as good.
#[test]
fn files_are_synced_together() {
    everywhere("together", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            let mut files = Vec::new();
            for number in 0..20 {
                let file = root.make_file(format!("file-{number}"), 0o600).await.unwrap();
                write_all(&file, 0, &pattern(5000, number)).await;
                files.push(file);
            }
            let results = bench.tree.sync_files(&files).await;
            assert_eq!((results.len(), results.iter().filter(|result| result.is_ok()).count()), (20, 20));
            assert_eq!(bench.tree.sync_files(&[]).await, []);
            assert_eq!(bench.outside.read("file-7").unwrap(), pattern(5000, 7));
        })
    });
}

/// Pages of a file that are in the kernel's memory alone: dirty, or being written back.
fn unwritten_pages(file: &std::fs::File) -> u64 {
    const CACHESTAT: libc::c_long = 451;
    let all = [0u64; 2];
    // Cached, dirty, written back, evicted, recently evicted.
    let mut counts = [0u64; 5];
    // SAFETY: a range of offset and size, and room for the five counts, as cachestat(2) has them.
    let result = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), all.as_ptr(), counts.as_mut_ptr(), 0) };
    assert_eq!(result, 0, "cachestat, since Linux 6.5: {}", std::io::Error::last_os_error());
    assert!(counts[0] > 0, "what was written is in the page cache");
    counts[1] + counts[2]
}

/// Goal: of a large file that is written little is left to its sync. Method: the page cache is looked at all the time.
#[test]
fn writes_reach_the_disk_before_the_sync() {
    let directory = TestDirectory::new("windows");
    let reactor = Reactor::open(DriverKind::IoUring).unwrap();
    let tree = reactor.backing_tree(&directory.root()).unwrap();
    let (root, path) = (tree.clone(), directory.root().join("file"));
    reactor.block_on(async move {
        let file = root.root().await.unwrap().make_file("file", 0o600).await.unwrap();
        let looked_at = std::fs::File::open(path).unwrap();
        let bytes = pattern(1 << 20, 3);
        for number in 0..64 {
            write_all(&file, number << 20, &bytes).await;
            let unwritten = unwritten_pages(&looked_at) * 4096;
            assert!(unwritten <= 9 << 20, "{unwritten} bytes after {} MiB", number + 1);
        }
        file.sync().await.unwrap();
        assert_eq!(unwritten_pages(&looked_at), 0);
    });
    drop(tree);
    reactor.shutdown();
}

/// Goal: bytes are where they were written, files end where they end, and regions are read into and written from.
#[test]
fn bytes_are_where_they_were_written() {
    everywhere("bytes", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            let bytes = pattern(3 * CALL_SIZE_MAX + 1234, 7);
            let file = root.make_file("file", 0o600).await.unwrap();
            write_all(&file, 0, &bytes).await;
            file.sync().await.unwrap();
            assert_eq!(bench.outside.read("file").unwrap(), bytes);
            let file = root.open_file("file").await.unwrap();
            assert_eq!(read(&file, 100, CALL_SIZE_MAX).await, bytes[100..100 + CALL_SIZE_MAX]);
            let end = bytes.len() as u64;
            assert_eq!(read(&file, end - 5, 4096).await, bytes[bytes.len() - 5..]);
            assert!(read(&file, end, 1).await.is_empty());
            assert!(read(&file, 1 << 40, 1).await.is_empty());
            assert_eq!(file.write(0, vec![1]).await.0.unwrap_err().errno(), libc::EBADF);
            assert_eq!(errno(file.set_size(0).await), libc::EINVAL);

            let file = root.open_to_write("file").await.unwrap();
            file.set_size(10).await.unwrap();
            file.set_size(5000).await.unwrap();
            let cut = bench.outside.read("file").unwrap();
            assert_eq!((cut.len(), &cut[..10]), (5000, &bytes[..10]));
            assert!(cut[10..].iter().all(|byte| *byte == 0));
            assert_eq!(file.write(1 << 63, vec![1]).await.0.unwrap_err().errno(), libc::EFBIG);

            let storage = bench.reactor.storage(&bench.store).unwrap();
            let region = storage.open("region", 1 << 20, OpenMode::CreateNew).unwrap();
            region.allocate(0, 1 << 20).unwrap();
            region.write(8192, &bytes[..10_000]);
            let span = Span { region: region.clone(), offset: 8192, size: 10_000 };
            assert_eq!(file.write(3, span).await.0.unwrap(), 10_000);
            let span = Span { region: region.clone(), offset: 65_536, size: 20_000 };
            assert_eq!(file.read(3, span).await.0.unwrap(), 10_000);
            let mut there = vec![0; 10_000];
            region.read(65_536, &mut there);
            assert_eq!(there, bytes[..10_000]);
        })
    });
}

/// Goal: holes are found where nobody wrote, and there is one at the end.
#[test]
fn holes_are_told() {
    everywhere("holes", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            let file = root.make_file("file", 0o600).await.unwrap();
            let far = 1 << 20;
            write_all(&file, far, &pattern(8192, 1)).await;
            file.set_size(4 * far).await.unwrap();
            assert_eq!(file.seek(0, SeekKind::Data).await.unwrap(), Some(far));
            assert_eq!(file.seek(0, SeekKind::Hole).await.unwrap(), Some(0));
            assert_eq!(file.seek(far + 1, SeekKind::Data).await.unwrap(), Some(far + 1));
            assert_eq!(file.seek(far, SeekKind::Hole).await.unwrap(), Some(far + 8192));
            assert_eq!(file.seek(far + 8192, SeekKind::Data).await.unwrap(), None);
            assert_eq!(file.seek(4 * far, SeekKind::Hole).await.unwrap(), None);
            assert!(read(&file, 0, 4096).await.iter().all(|byte| *byte == 0));
        })
    });
}

/// Goal: renames replace, refuse or exchange as they are told, and never half.
#[test]
fn renames_do_what_they_are_told() {
    everywhere("renames", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            for name in ["a", "b"] {
                bench.outside.write(name, name.as_bytes());
            }
            for name in ["d", "d/e", "full", "full/x"] {
                bench.outside.make_directory(name);
            }
            let (directory, full) =
                (root.open_directory("d").await.unwrap(), root.open_directory("full").await.unwrap());
            let replace = RenameMode::Replace;
            assert_eq!(errno(root.rename("a", &root, "b", RenameMode::NoReplace).await), libc::EEXIST);
            assert_eq!(errno(root.rename("a", &root, "c", RenameMode::Exchange).await), libc::ENOENT);
            assert_eq!(errno(root.rename("none", &root, "c", replace).await), libc::ENOENT);
            assert_eq!(errno(root.rename("d", &directory, "in", replace).await), libc::EINVAL);
            assert_eq!(errno(root.rename("d", &root, "full", replace).await), libc::ENOTEMPTY);
            assert_eq!(errno(root.rename("d", &root, "a", replace).await), libc::ENOTDIR);
            assert_eq!(errno(root.rename("a", &root, "d", replace).await), libc::EISDIR);
            root.rename("a", &root, "b", RenameMode::Exchange).await.unwrap();
            assert_eq!(bench.outside.read("a").as_deref(), Some(&b"b"[..]));
            root.rename("a", &directory, "c", RenameMode::NoReplace).await.unwrap();
            root.rename("b", &directory, "c", replace).await.unwrap();
            assert_eq!(bench.outside.read("d/c").as_deref(), Some(&b"a"[..]));
            root.rename("d", &full, "d", replace).await.unwrap();
            assert_eq!(bench.outside.read("full/d/c").as_deref(), Some(&b"a"[..]));
            // A handle is of the directory, and its old path leads nowhere now.
            assert_eq!(directory.look("c").await.unwrap().identity.size, 1);
            assert_eq!(errno(root.open_directory("d").await), libc::ENOENT);
            assert_eq!(root.look("full").await.unwrap().link_count, 4);
        })
    });
}

/// Goal: only what may go goes, and whoever has a removed directory open is told that it is stale.
#[test]
fn removals_are_told_apart() {
    everywhere("removals", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            bench.outside.write("file", b"kept");
            bench.outside.make_directory("directory");
            bench.outside.make_directory("directory/below");
            assert_eq!(errno(root.remove("directory").await), libc::EISDIR);
            assert_eq!(errno(root.remove_directory("file").await), libc::ENOTDIR);
            assert_eq!(errno(root.remove_directory("directory").await), libc::ENOTEMPTY);
            assert_eq!(errno(root.remove("none").await), libc::ENOENT);
            let file = root.open_file("file").await.unwrap();
            root.remove("file").await.unwrap();
            assert_eq!(read(&file, 0, 10).await, b"kept", "what is open stays");
            assert_eq!(file.look().await.unwrap().link_count, 0);
            assert_eq!(errno(root.open_file("file").await), libc::ENOENT, "no idle handle is taken for it");

            let directory = root.open_directory("directory").await.unwrap();
            let below = directory.open_directory("below").await.unwrap();
            directory.remove_directory("below").await.unwrap();
            assert_eq!(errno(below.look("x").await), libc::ESTALE);
            assert_eq!(errno(below.make_file("x", 0o600).await), libc::ESTALE);
            assert_eq!(errno(below.open_listing().await), libc::ESTALE);
            assert_eq!(errno(directory.rename("x", &below, "y", RenameMode::Replace).await), libc::ESTALE);
            assert_eq!(errno(directory.link("x", &below, "y").await), libc::ESTALE);
            bench.outside.write("directory/x", b"");
            assert_eq!(errno(directory.rename("x", &below, "y", RenameMode::Replace).await), libc::ESTALE);
            assert_eq!(errno(directory.look("below").await), libc::ENOENT);
        })
    });
}

/// Goal: a root that vanishes is never taken for an empty one.
#[test]
fn a_root_that_vanishes_is_stale() {
    everywhere("vanishes", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            bench.outside.make_directory("d");
            bench.outside.write("d/file", b"x");
            let directory = root.open_directory("d").await.unwrap();
            bench.outside.remove_root();
            for directory in [&root, &directory] {
                assert_eq!(errno(directory.look("file").await), libc::ESTALE);
                assert_eq!(errno(directory.open_file("file").await), libc::ESTALE);
                assert_eq!(errno(directory.make_directory("x", 0o700).await), libc::ESTALE);
                assert_eq!(errno(directory.remove("file").await), libc::ESTALE);
                assert_eq!(directory.look_open().await.unwrap().link_count, 0);
            }
            drop((root, directory));
        })
    });
}

/// Goal: a root that is not there, or no directory, or no path.
#[test]
fn roots_that_are_none() {
    let reactor = Reactor::open(DriverKind::Auto).unwrap();
    let directory = TestDirectory::new("roots");
    std::fs::write(directory.root().join("file"), b"").unwrap();
    for (path, expected) in [("none", libc::ENOENT), ("file", libc::ENOTDIR), ("file/x", libc::ENOTDIR)] {
        let tree = reactor.backing_tree(&directory.root().join(path)).unwrap();
        assert_eq!(errno(reactor.block_on(tree.root())), expected);
        assert_eq!(tree.statistics().handles, 0, "a handle that was not opened is none");
    }
    for path in ["", "relative", "/with\0nul"] {
        let error = reactor.backing_tree(Path::new(path)).err().unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
    let (world, node) = world(1);
    let tree = world.reactor(node).backing_tree(Path::new("/elsewhere")).unwrap();
    let error = world.run(node, async move { errno(tree.root().await) }, SECOND);
    assert_eq!(error, Some(libc::ENOENT));
    reactor.shutdown();
}

/// Goal: no path leads out of a directory, and no link is followed, by any call.
#[test]
fn no_way_leads_out() {
    everywhere("out", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            for name in ["a", "a/b"] {
                bench.outside.make_directory(name);
            }
            bench.outside.write("a/file", b"within");
            for (name, target) in [("up", ".."), ("etc", "/etc"), ("within", "a"), ("a/file-link", "file")] {
                bench.outside.make_symlink(name, target);
            }
            let directory = root.open_directory("a").await.unwrap();
            for bad in ["", ".", "..", "/", "/etc", "a/", "a//b", "../a", "a/..", "a/../a", "./a", "a\0"] {
                assert_eq!(errno(root.open_directory(bad).await), libc::EINVAL, "{bad:?}");
                assert_eq!(errno(root.open_file(bad).await), libc::EINVAL, "{bad:?}");
            }
            for bad in ["", ".", "..", "a/b", "/a", "a\0"] {
                let target = RenameMode::Replace;
                let change = AttributeChange { mode: Some(0o777), ..AttributeChange::default() };
                let results = [
                    errno(root.look(bad).await),
                    errno(root.make_file(bad, 0o600).await),
                    errno(root.make_directory(bad, 0o700).await),
                    errno(root.make_symlink(bad, "x").await),
                    errno(root.link("a", &root, bad).await),
                    errno(root.link(bad, &root, "x").await),
                    errno(root.rename(bad, &root, "x", target).await),
                    errno(root.rename("a", &root, bad, target).await),
                    errno(root.remove(bad).await),
                    errno(root.remove_directory(bad).await),
                    errno(root.set_attributes(bad, change).await),
                    errno(root.xattrs(bad).await),
                ];
                assert!(results.iter().all(|errno| *errno == libc::EINVAL), "{bad:?}: {results:?}");
            }
            for way in ["up", "etc", "within", "up/etc", "etc/ssl", "within/b", "a/file-link/x"] {
                let refused = errno(root.open_directory(way).await);
                assert!([libc::ELOOP, libc::ENOTDIR].contains(&refused), "{way}: {refused}");
            }
            for way in ["etc/passwd", "within/file", "a/file-link", "up"] {
                assert_eq!(errno(root.open_file(way).await), libc::ELOOP, "{way}");
                assert_eq!(errno(root.open_to_write(way).await), libc::ELOOP, "{way}");
            }
            assert_eq!(read(&root.open_file("a/file").await.unwrap(), 0, 10).await, b"within");
            // One that is a link by the time that it is used.
            bench.outside.rename("a", "moved");
            bench.outside.make_symlink("a", "/");
            assert_eq!(errno(root.open_file("a/etc/hostname").await), libc::ELOOP);
            assert_eq!(directory.look("file").await.unwrap().identity.size, 6);

            let long = [b'x'; 256];
            assert_eq!(errno(root.make_directory(long, 0o700).await), libc::ENAMETOOLONG);
            root.make_directory(&long[..255], 0o700).await.unwrap();
            let odd = b"\xff\x80 \n\\";
            root.make_file(odd, 0o600).await.unwrap();
            assert_eq!(root.look(odd).await.unwrap().kind, FileKind::File);
            for bad in [&b""[..], b"a\0b"] {
                assert_eq!(errno(root.make_symlink("new", bad).await), libc::EINVAL);
            }
            assert_eq!(errno(root.make_symlink("new", [b'x'; 4096]).await), libc::ENAMETOOLONG);
        })
    });
}

/// Goal: attributes are set as they are given, of the thing itself and not of what a link leads to.
#[test]
fn attributes_are_set() {
    everywhere("attributes", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            bench.outside.write("file", b"x");
            bench.outside.make_symlink("link", "file");
            let before = root.look("file").await.unwrap();
            let mtime = -1_500_000_000_000_000_001;
            let owner = (before.owner, before.group);
            let change = AttributeChange { owner: Some(owner), mode: Some(0o4751), atime: None, mtime: Some(mtime) };
            root.set_attributes("file", change).await.unwrap();
            let seen = root.look("file").await.unwrap();
            assert_eq!((seen.mode, seen.identity.mtime, seen.owner), (0o4751, mtime, owner.0));
            assert_ne!(seen.identity, before.identity);
            let change = AttributeChange { mtime: Some(1), ..AttributeChange::default() };
            root.set_attributes("link", change).await.unwrap();
            assert_eq!(root.look("link").await.unwrap().identity.mtime, 1);
            assert_eq!(root.look("file").await.unwrap().identity.mtime, mtime);
            let change = AttributeChange { mode: Some(0), ..AttributeChange::default() };
            assert_eq!(errno(root.set_attributes("link", change).await), libc::EOPNOTSUPP);
            assert_eq!(root.look("file").await.unwrap().mode, 0o4751);
            assert_eq!(errno(root.set_attributes("none", change).await), libc::ENOENT);
        })
    });
}

/// Goal: an open file gets size and attributes by one call, which tells what it has then, as a rename does.
#[test]
fn attributes_of_open_files() {
    everywhere("open-attributes", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            let file = root.make_file("hidden", 0o600).await.unwrap();
            write_all(&file, 0, &pattern(100, 3)).await;
            let mtime = 1_234_567_890_123_456_000;
            let before = root.look("hidden").await.unwrap();
            let owner = Some((before.owner, before.group));
            let change = AttributeChange { owner, mode: Some(0o640), atime: None, mtime: Some(mtime) };
            let set = file.set_attributes(5000, change).await.unwrap();
            assert_eq!((set.identity.size, set.mode, set.identity.mtime), (5000, 0o640, mtime));
            assert_eq!(set, root.look("hidden").await.unwrap());
            let same = file.set_attributes(5000, AttributeChange::default()).await.unwrap();
            assert_eq!((same.identity.size, same.identity.mtime), (5000, mtime));
            let named = root.rename("hidden", &root, "name", RenameMode::NoReplace).await.unwrap();
            assert_eq!(named, root.look("name").await.unwrap());
            assert_eq!(named.identity.inode, set.identity.inode);
            let reader = root.open_file("name").await.unwrap();
            assert_eq!(errno(reader.set_attributes(1, change).await), libc::EINVAL);
        })
    });
}

/// Goal: extended attributes come back as they were set.
#[test]
fn xattrs_come_back() {
    everywhere("xattrs", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            bench.outside.make_directory("d");
            bench.outside.make_symlink("link", "d");
            assert!(root.xattrs("d").await.unwrap().iter().all(|key| !key.starts_with(b"user.")));
            root.set_xattr("d", "user.a/b", b"one\0\xff".to_vec()).await.unwrap();
            root.set_xattr("d", "user.empty", Vec::new()).await.unwrap();
            assert_eq!(root.xattr("d", "user.a/b").await.unwrap(), b"one\0\xff");
            assert!(root.xattr("d", "user.empty").await.unwrap().is_empty());
            let keys = root.xattrs("d").await.unwrap();
            assert!([&b"user.a/b"[..], b"user.empty"].iter().all(|key| keys.iter().any(|other| **other == **key)));
            root.remove_xattr("d", "user.a/b").await.unwrap();
            assert_eq!(errno(root.xattr("d", "user.a/b").await), libc::ENODATA);
            assert_eq!(errno(root.remove_xattr("d", "user.a/b").await), libc::ENODATA);
            assert_eq!(errno(root.xattr("d", [b'k'; 256]).await), libc::ERANGE);
            assert_eq!(errno(root.xattr("d", "").await), libc::EINVAL);
            assert_eq!(errno(root.set_xattr("link", "user.x", vec![1]).await), libc::EPERM, "links have none");
            assert!(root.xattrs("d").await.unwrap().iter().all(|key| **key != *b"user.x"));
        })
    });
}

/// Goal: what is no file or directory is not opened, and nobody waits for its other end.
#[test]
fn only_files_and_directories_are_opened() {
    everywhere("kinds", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            bench.outside.make_directory("d");
            bench.outside.write("file", b"x");
            bench.outside.make_fifo("fifo");
            assert_eq!(root.look("fifo").await.unwrap().kind, FileKind::Other);
            assert_eq!(errno(root.open_file("fifo").await), libc::EINVAL);
            assert_eq!(errno(root.open_to_write("fifo").await), libc::EINVAL);
            assert_eq!(errno(root.open_file("d").await), libc::EISDIR);
            assert_eq!(errno(root.open_to_write("d").await), libc::EISDIR);
            assert_eq!(errno(root.open_directory("file").await), libc::ENOTDIR);
            assert_eq!(errno(root.open_directory("file/x").await), libc::ENOTDIR);
            assert_eq!(errno(root.open_file("none").await), libc::ENOENT);
            assert_eq!(bench.tree.statistics().handles_idle, 0);
            assert_eq!(bench.tree.statistics().handles, 1, "the root alone");
        })
    });
}

/// Goal: an outsider's changes are seen by the next look.
#[test]
fn changes_of_others_are_seen() {
    everywhere("others", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            bench.outside.write("file", b"one");
            let before = root.look("file").await.unwrap();
            assert_eq!(root.look("file").await.unwrap().identity, before.identity);
            bench.outside.write("file", b"other");
            assert_ne!(root.look("file").await.unwrap().identity, before.identity);
            bench.outside.write("new", b"one");
            bench.outside.rename("new", "file");
            let replaced = root.look("file").await.unwrap();
            assert_ne!(replaced.identity.inode, before.identity.inode);
            bench.outside.remove("file");
            assert_eq!(errno(root.look("file").await), libc::ENOENT);
        })
    });
}

/// Goal: never more than 32 calls are under way; the rest take turns, in order, and those who leave are passed by.
/// Method: names of eight directories, for one directory has but a part of the places.
#[test]
fn calls_are_bounded() {
    everywhere("calls", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            let mut directories = Vec::new();
            for number in 0..8 {
                bench.outside.make_directory(&format!("d{number}"));
                directories.push(root.open_directory(format!("d{number}")).await.unwrap());
            }
            for number in 0..200 {
                bench.outside.write(&format!("d{}/{number}", number % 8), b"x");
            }
            let ended = Rc::new(RefCell::new(BTreeSet::new()));
            let mut tasks = Vec::new();
            for number in 0..200 {
                let (directory, ended) = (directories[number % 8].clone(), ended.clone());
                tasks.push(bench.reactor.spawn_joinable(Class::Data, async move {
                    directory.look(number.to_string()).await.unwrap();
                    ended.borrow_mut().insert(number);
                }));
            }
            bench.reactor.yield_now().await;
            let statistics = bench.tree.statistics();
            assert!(statistics.under_way <= CALLS_MAX && statistics.waiting <= 200 - CALLS_MAX);
            let calls = bench.tree.calls();
            assert!(calls.iter().filter(|call| call.is_begun).count() <= CALLS_MAX);
            assert!(calls.iter().all(|call| call.operation == "look" && call.path.starts_with(b"d")));
            // Every tenth gives up.
            let mut kept = Vec::new();
            for (number, task) in tasks.into_iter().enumerate() {
                if number % 10 == 0 {
                    task.cancel();
                } else {
                    kept.push(task);
                }
            }
            for task in kept {
                task.await;
            }
            assert!(ended.borrow().len() >= 180);
            while bench.tree.statistics().under_way > 0 {
                bench.reactor.sleep(100_000).await;
            }
            let statistics = bench.tree.statistics();
            assert_eq!((statistics.under_way_most, statistics.waiting), (CALLS_MAX, 0));
        })
    });
}

/// Goal: never more than 1,024 handles are open; idle ones go first, and those who wait are served in order.
#[test]
fn handles_are_bounded() {
    raise_descriptors();
    everywhere("handles", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            for number in 0..HANDLES_MAX + 100 {
                bench.outside.make_directory(&number.to_string());
            }
            // Idle ones make room for others.
            for number in 0..HANDLES_MAX + 100 {
                root.open_directory(number.to_string()).await.unwrap();
            }
            let statistics = bench.tree.statistics();
            assert_eq!(statistics.handles_most, HANDLES_MAX);
            assert!(statistics.handles <= HANDLES_MAX);
            let mut open = Vec::new();
            for number in 0..HANDLES_MAX - 1 {
                open.push(root.open_directory(number.to_string()).await.unwrap());
            }
            let order = Rc::new(RefCell::new(Vec::new()));
            let mut tasks: Vec<_> = (0..20)
                .map(|number| {
                    let (root, order) = (root.clone(), order.clone());
                    bench.reactor.spawn_joinable(Class::Data, async move {
                        let path = (HANDLES_MAX + number).to_string();
                        let directory = root.open_directory(path).await.unwrap();
                        order.borrow_mut().push(number);
                        directory
                    })
                })
                .collect();
            while bench.tree.statistics().openers_waiting < 20 {
                bench.reactor.yield_now().await;
            }
            assert!(order.borrow().is_empty());
            // What is open is of use meanwhile.
            assert_eq!(open[5].look_open().await.unwrap().kind, FileKind::Directory);
            tasks.remove(3).cancel();
            for number in 0..19 {
                drop(open.pop());
                while order.borrow().len() <= number {
                    bench.reactor.sleep(100_000).await;
                }
            }
            let expected: Vec<usize> = (0..20).filter(|number| *number != 3).collect();
            assert_eq!(*order.borrow(), expected);
            assert_eq!(bench.tree.statistics().handles_most, HANDLES_MAX);
        })
    });
}

/// Lets this process have more files open than a bound of ours, which is the usual one of a shell too.
fn raise_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads into and from one local.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}

/// Goal: one call looks at many names, each of which has its own answer, or reads a file with what it is before and
/// after; what can't be opened is not read, and nothing stays open.
#[test]
fn calls_of_several_steps() {
    everywhere("steps", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            let bytes = pattern(CALL_SIZE_MAX, 5);
            bench.outside.make_directory("d");
            bench.outside.write("d/file", &bytes);
            let d = root.open_directory("d").await.unwrap();
            let looked = root.look_all(&["d", "missing"]).await.unwrap();
            assert_eq!(looked[0].as_ref().unwrap().kind, FileKind::Directory);
            let missing = looked[1].as_ref().unwrap_err();
            assert!(missing.is_not_found() && missing.is_missing() && missing.path() == b"missing");
            assert_eq!(d.look_all(&["file"]).await.unwrap()[0].clone().unwrap(), d.look("file").await.unwrap());
            assert_eq!(errno(root.look_all(&["d", "../d"]).await), libc::EINVAL);
            assert_eq!(root.look_all(&[""; 0]).await.unwrap(), []);

            for size in [bytes.len(), 5000, 1] {
                let (read, mut memories) = root.read_files(&["d/file"], vec![vec![0; size].into()]).await;
                let read = read.unwrap().remove(0).unwrap();
                assert_eq!((read.size, read.after), (size, d.look("file").await.unwrap()));
                assert!(memories.remove(0).into_bytes() == bytes[..size]);
            }
            bench.outside.write("d/short", b"short");
            let cases = [
                ("missing", Err(libc::ENOENT)),
                ("d/short", Ok(b"short\x07\x07\x07\x07\x07".as_slice())),
                ("d", Err(libc::EISDIR)),
                ("d/file/x", Err(libc::ENOTDIR)),
                ("d/file", Ok(&bytes[..10])),
            ];
            let memories = cases.iter().map(|_| vec![7; 10].into()).collect();
            let (read, memories) = root.read_files(&cases.map(|(path, _)| path), memories).await;
            for (((path, expected), read), memory) in cases.into_iter().zip(read.unwrap()).zip(memories) {
                let size = read.as_ref().map(|read| read.size).map_err(|error| error.errno());
                let is_short = path == "d/short";
                assert_eq!(size, expected.map(|_| if is_short { 5 } else { 10 }), "{path}");
                // Of what failed nothing is read.
                assert_eq!(memory.into_bytes(), expected.unwrap_or(&[7; 10]), "{path}");
            }
            assert_eq!(errno(root.read_files(&["/d/file"], vec![vec![0; 1].into()]).await.0), libc::EINVAL);
            assert_eq!(bench.tree.statistics().handles, 2, "the root and the directory");
        })
    });
}

/// Goal: what is dropped ends by itself, and leaves nothing open.
#[test]
fn dropped_calls_end_by_themselves() {
    everywhere("dropped", |bench| {
        Box::pin(async move {
            let root = bench.tree.root().await.unwrap();
            bench.outside.write("file", &pattern(CALL_SIZE_MAX, 3));
            let file = root.open_to_write("file").await.unwrap();
            let dropped = Cell::new(0);
            for number in 0..40u64 {
                let once = |future: CaseFuture| {
                    let mut future = future;
                    let waker = std::task::Waker::noop();
                    if future.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending() {
                        dropped.set(dropped.get() + 1);
                    }
                };
                let (root, other) = (root.clone(), file.clone());
                once(Box::pin(async move { drop(root.make_file(format!("new-{number}"), 0o600).await) }));
                once(Box::pin(async move { drop(other.read(0, vec![0; 65536]).await) }));
            }
            assert_eq!(dropped.get(), 80);
            drop(file);
            while bench.tree.statistics().under_way > 0 || bench.tree.statistics().waiting > 0 {
                bench.reactor.sleep(100_000).await;
            }
            // Some may not have been begun; what was made is closed again.
            let names = list_all(&root).await;
            assert!(names.iter().any(|entry| entry.name.starts_with(b"new-")));
            while bench.tree.statistics().handles > 1 {
                bench.reactor.sleep(100_000).await;
            }
        })
    });
}
