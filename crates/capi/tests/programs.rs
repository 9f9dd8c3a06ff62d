//! C programs over libtabane, against real servers.

#[path = "../../client/tests/common/c_program.rs"]
mod c_program;
#[path = "../../client/tests/common/real.rs"]
mod real;

use c_program::Program;
use real::Real;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Runs a program over stores on a disk and over stores in memory, where it reads, looks and writes by itself; `after`
/// looks at what is left.
fn run(name: &str, source: &str, servers: usize, chunk_size: u32, after: &dyn Fn(&Real)) {
    for start in [Real::start, Real::in_memory] {
        let cluster = start(name, servers, chunk_size);
        let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = Program { crate_root, source, library: "tabane", place: &cluster.directory };
        program.run(&[("TABANE_CLUSTER", &cluster.directory.to_string_lossy())]);
        after(&cluster);
    }
}

/// Goal: every function does what its POSIX namesake does, failures and errno included.
/// Method: tests/c/interface.c checks each call and exits with the line that went wrong.
#[test]
fn interface() {
    run("capi-interface", "interface.c", 3, 4096, &|_| ());
}

/// Goal: threads share the library and one descriptor; a child after fork goes on with what was open, beside its
/// parent.
#[test]
fn threads_and_fork() {
    run("capi-fork", "fork.c", 2, 47_008, &|_| ());
}

/// Goal: calls that were started move their bytes while the program goes on, in any order and number, and end as such
/// that are waited for at once; a descriptor is closed after them, and a child has none of its parent's.
#[test]
fn started_calls() {
    run("capi-started", "started.c", 3, 4096, &|_| ());
}

/// Goal: a process that is handed an open file as bytes has it open, with its rights and as long as its exporter has
/// it, and is told what is wrong with bytes that are none.
#[test]
fn exported_files() {
    run("capi-exported", "exported.c", 3, 4096, &|_| ());
}

/// Goal: who may do what is as on Linux: owners, groups and others, supplementary groups, sticky and setgid
/// directories, what chmod, chown, writes and cuts leave of setuid and setgid, umask and access. Method:
/// tests/c/rights.c does the same calls, drawn from a fixed seed, as several users on a tmpfs and here, and compares
/// errno and the attributes of everything after each. It needs root, and says so where it is not.
#[test]
fn rights() {
    run("capi-rights", "rights.c", 3, 4096, &|_| ());
}

/// Goal: a program that ends without closing anything leaves nothing open behind, and its children nothing closed.
/// Method: tests/c/exit.c ends with an unlinked file open; when it has ended, no server has an inode but the root.
#[test]
fn exit_closes() {
    run("capi-exit", "exit.c", 2, 4096, &|cluster| {
        let servers = cluster.client().stat_file_system().expect("servers are up");
        assert_eq!(servers.iter().map(|server| server.inodes).sum::<u64>(), 1, "{servers:?}");
    });
}

/// Goal: without `TABANE_CLUSTER` programs find the cluster where `tabane up` puts it by itself. Method: exit.c once
/// more, with the cluster file in a directory of the usual name.
#[test]
fn clusters_are_found_where_they_usually_are() {
    let cluster = Real::start("capi-usual", 1, 4096);
    let usual = cluster.directory.join(format!("tabane-{}", reactor::process::user()));
    std::fs::DirBuilder::new().mode(0o700).create(&usual).expect("a directory");
    std::fs::copy(cluster.directory.join("cluster"), usual.join("cluster")).expect("a copy");
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Program { crate_root, source: "exit.c", library: "tabane", place: &cluster.directory };
    program.run(&[("XDG_RUNTIME_DIR", &cluster.directory.to_string_lossy())]);
}

/// Goal: a child that goes on after its parent has ended, and never uses the library, keeps nothing of what its parent
/// was lent.
/// Method: tests/c/queues.c leaves 80 of them behind; once the servers have noticed that the programs have ended,
/// nothing is locked for any client in the files that they lend (mapping lock.rs).
#[test]
fn children_keep_no_queue() {
    let cluster = Real::in_memory("capi-queues", 1, 1 << 20);
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Program { crate_root, source: "queues.c", library: "tabane", place: &cluster.directory };
    program.run(&[("TABANE_CLUSTER", &cluster.directory.to_string_lossy())]);
    let inodes: Vec<String> = std::fs::read_dir(cluster.directory.join("store0"))
        .expect("the store is there")
        .map(|entry| format!(":{} ", entry.expect("it is there").metadata().expect("it is there").ino()))
        .collect();
    let locks = || std::fs::read_to_string("/proc/locks").expect("the kernel tells of locks");
    let lent = || locks().lines().filter(|line| inodes.iter().any(|inode| line.contains(inode))).count();
    // Whatever the server holds on its own store by itself is one lock at most for each file.
    let client = cluster.client();
    for _ in 0..1_000 {
        if lent() <= inodes.len() {
            break;
        }
        client.stat_file_system().expect("servers are up");
    }
    let left = locks().lines().filter(|line| inodes.iter().any(|inode| line.contains(inode))).count();
    drop(client);
    // Only now, for they were to be there all the time.
    drop(std::fs::OpenOptions::new().write(true).open(cluster.directory.join("children")).expect("children wait"));
    assert!(left <= inodes.len(), "{left} locks are left by 80 programs");
}

/// Goal: a cluster file in a directory of another user is not believed. Method: one that leads to servers of ours,
/// given to user 65534, as root.
#[test]
#[expect(clippy::disallowed_methods, reason = "whether a test is left out is for whoever runs it")]
fn foreign_directories() {
    if std::env::var("TABANE_CI_NO_ROOT").is_ok_and(|value| value == "1") {
        return;
    }
    let cluster = Real::start("capi-foreign", 1, 4096);
    let theirs = c_program::foreign_copy(&cluster.directory);
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Program { crate_root, source: "foreign.c", library: "tabane", place: &cluster.directory };
    program.run(&[("TABANE_CLUSTER", &theirs.to_string_lossy())]);
    assert!(cluster.client().stat(b"/stolen").is_err() && cluster.client().stat(b"/x").is_err());
}
