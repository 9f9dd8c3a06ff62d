//! Calls on a backing tree that hang, for real: whoever opens a file on which somebody has a lease waits until that is
//! given back (fcntl(2), `F_SETLEASE`), and no signal of ours ends that.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use reactor::backing::{BackingTree, CALLS_MAX, WORKERS_MAX};
use reactor::{Class, DriverKind, Reactor};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// `F_SETSIG` of fcntl(2), which the crate `libc` does not have.
const F_SETSIG: libc::c_int = 10;

/// A file that hangs whoever opens it.
struct LeasedFile(File);

impl LeasedFile {
    fn new(path: PathBuf) -> LeasedFile {
        let file = File::options().create(true).truncate(true).read(true).write(true).open(path).unwrap();
        // SAFETY: no pointers. The signal of a lease that is asked back is one that nobody minds.
        unsafe {
            assert_eq!(libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG), 0);
            assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK), 0);
        }
        LeasedFile(file)
    }

    fn give_back(&self) {
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) }, 0);
    }
}

fn directory(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("hangs-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Waits until something is so.
async fn until(reactor: &Reactor, mut condition: impl FnMut() -> bool) {
    while !condition() {
        reactor.sleep(100_000).await;
    }
}

fn hung(tree: &BackingTree) -> Vec<(&'static str, Vec<u8>)> {
    tree.calls().into_iter().map(|call| (call.operation, call.path)).collect()
}

/// Goal: calls that hang hold up nobody, are named, and go on when they can. Method: three calls of the four that are
/// made at a time hang, then four.
#[test]
fn calls_that_hang_are_named() {
    for kind in [DriverKind::IoUring, DriverKind::Epoll] {
        let path = directory(&format!("named-{kind:?}"));
        let leases: Vec<_> =
            (0..WORKERS_MAX).map(|number| LeasedFile::new(path.join(format!("leased-{number}")))).collect();
        let reactor = Reactor::open(kind).unwrap();
        let tree = reactor.backing_tree(&path).unwrap();
        reactor.block_on(async {
            let root = tree.root().await.unwrap();
            let open = |number: usize| {
                let root = root.clone();
                let open =
                    async move { root.open_file(format!("leased-{number}")).await.map(|file| file.path().to_vec()) };
                reactor.spawn_joinable(Class::Data, open)
            };
            let mut opens: Vec<_> = (0..WORKERS_MAX - 1).map(open).collect();
            until(&reactor, || hung(&tree).len() == WORKERS_MAX - 1).await;
            // The loop goes on, and so do other calls.
            for _ in 0..10 {
                assert_eq!(root.look("leased-0").await.unwrap().identity.size, 0);
            }
            assert_eq!(hung(&tree)[1], ("open", b"leased-1".to_vec()));
            let since = tree.calls()[0].since;
            assert!(since <= reactor.now() && tree.calls()[0].is_begun);

            opens.push(open(WORKERS_MAX - 1));
            let behind = root.clone();
            let behind = reactor.spawn_joinable(Class::Data, async move { behind.look("leased-1").await.is_ok() });
            assert!(behind.await);
            assert_eq!(hung(&tree).len(), WORKERS_MAX);
            leases.iter().for_each(LeasedFile::give_back);
            for (number, open) in opens.into_iter().enumerate() {
                assert_eq!(open.await.unwrap(), format!("leased-{number}").into_bytes());
            }
            assert!(tree.calls().is_empty());
        });
        drop(tree);
        reactor.shutdown();
        std::fs::remove_dir_all(path).unwrap();
    }
}

/// Goal: what hangs leaves the rest of the tree what it needs, however many ask for it: one file in all ways, and a
/// directory all of whose files hang. Method: more opens of these than calls may be under way at a time.
#[test]
fn what_hangs_leaves_the_rest() {
    for kind in [DriverKind::IoUring, DriverKind::Epoll] {
        let path = directory(&format!("rest-{kind:?}"));
        std::fs::create_dir(path.join("hangs")).unwrap();
        std::fs::create_dir(path.join("d")).unwrap();
        std::fs::write(path.join("d/file"), "contents").unwrap();
        let names: Vec<String> = (0..2 * CALLS_MAX).map(|number| format!("hangs/{number}")).collect();
        let leases: Vec<_> = names.iter().map(|name| LeasedFile::new(path.join(name))).collect();
        let one = LeasedFile::new(path.join("one"));
        let reactor = Reactor::open(kind).unwrap();
        let tree = reactor.backing_tree(&path).unwrap();
        reactor.block_on(async {
            let root = tree.root().await.unwrap();
            let ones = (0..2 * CALLS_MAX).map(|_| "one".to_owned());
            let opens: Vec<_> = ones
                .chain(names)
                .map(|name| {
                    let root = root.clone();
                    reactor.spawn_joinable(Class::Data, async move { root.open_file(name).await.map(drop) })
                })
                .collect();
            until(&reactor, || tree.calls().len() == 4 * CALLS_MAX).await;
            for number in 0..50 {
                let file = root.open_file("d/file").await.unwrap();
                let (read, _) = file.read(0, vec![0; 8]).await;
                assert_eq!(read.unwrap(), 8, "{number}");
                assert_eq!(root.look("one").await.unwrap().identity.size, 0);
            }
            assert!(tree.statistics().under_way < CALLS_MAX / 2, "{:?}", tree.statistics());
            let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
            assert!(threads < 2 * CALLS_MAX, "{threads}");
            one.give_back();
            leases.iter().for_each(LeasedFile::give_back);
            for open in opens {
                open.await.unwrap();
            }
            assert!(tree.calls().is_empty());
        });
        drop(tree);
        reactor.shutdown();
        std::fs::remove_dir_all(path).unwrap();
    }
}

/// Goal: neither giving up a call that hangs nor the end of tree and loop waits for it.
#[test]
fn nobody_waits_for_calls_that_hang() {
    for kind in [DriverKind::IoUring, DriverKind::Epoll] {
        let path = directory(&format!("end-{kind:?}"));
        let leases: Vec<_> = (0..WORKERS_MAX).map(|number| LeasedFile::new(path.join(number.to_string()))).collect();
        let reactor = Reactor::open(kind).unwrap();
        let tree = reactor.backing_tree(&path).unwrap();
        reactor.block_on(async {
            let root = tree.root().await.unwrap();
            let opens: Vec<_> = (0..WORKERS_MAX)
                .map(|number| {
                    let root = root.clone();
                    reactor.spawn_joinable(Class::Data, async move { drop(root.open_file(number.to_string()).await) })
                })
                .collect();
            until(&reactor, || tree.statistics().under_way == WORKERS_MAX).await;
            opens.into_iter().for_each(reactor::JoinHandle::cancel);
            until(&reactor, || tree.calls().iter().all(|call| call.is_abandoned)).await;
            assert_eq!(tree.calls().len(), WORKERS_MAX, "they are under way still");
        });
        drop(tree);
        reactor.shutdown();
        drop(reactor);
        // Only here does anything go on.
        leases.iter().for_each(LeasedFile::give_back);
        std::fs::remove_dir_all(path).unwrap();
    }
}
