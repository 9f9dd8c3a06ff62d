//! C programs over libchfs, against real servers, and the list of what it has to export.

#[path = "../../client/tests/common/c_program.rs"]
mod c_program;
#[path = "../../client/tests/common/real.rs"]
mod real;

use c_program::Program;
use real::Real;
use std::path::Path;

fn run(name: &str, source: &str, environment: &dyn Fn(&str) -> Vec<(&'static str, String)>) {
    // Over stores in memory programs read, look and write by themselves.
    for start in [Real::start, Real::in_memory] {
        let cluster = start(name, 3, 65_536);
        let environment = environment(&cluster.directory.to_string_lossy());
        let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
        Program { crate_root, source, library: "chfs", place: &cluster.directory }.run(&environment);
    }
}

/// Goal: every function does what programs written for CHFS rely on.
/// Method: tests/c/interface.c checks each call; the cluster is named as such programs' scripts do.
#[test]
fn interface() {
    run("chfs-interface", "interface.c", &|directory| {
        let settings = [("CHFS_CHUNK_SIZE", "5000"), ("CHFS_ASYNC_ACCESS", "1"), ("CHFS_BUF_SIZE", "0")];
        let mut environment = vec![("CHFS_SERVER", directory.to_owned())];
        environment.extend(settings.map(|(name, value)| (name, value.to_owned())));
        environment
    });
}

/// Goal: `TABANE_CLUSTER` names the cluster, also beside a `CHFS_SERVER` that is an address of another system.
#[test]
fn our_own_variable_counts_first() {
    run("chfs-variable", "variable.c", &|directory| {
        vec![("TABANE_CLUSTER", directory.to_owned()), ("CHFS_SERVER", "ofi+tcp://192.0.2.1:4000".to_owned())]
    });
}

/// Goal: a program that uses every function of the interface, with its argument lists, compiles and links.
/// Method: tests/c/complete.c takes the address of each in a pointer of the right type.
#[test]
fn complete() {
    run("chfs-complete", "complete.c", &|_| Vec::new());
}

/// Runs a program over a cluster with a backing directory, in which there is one file.
fn run_over(name: &str, source: &str) {
    let backing = std::env::temp_dir().join(format!("tabane-test-{name}-backing-{}", std::process::id()));
    std::fs::create_dir_all(&backing).expect("a directory for the test can be made");
    std::fs::write(backing.join("there"), "there").expect("it can be written");
    let cluster = Real::over(&backing, name, 3, 65_536);
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (directory, of) = (cluster.directory.to_string_lossy(), backing.to_string_lossy());
    let environment = [("TABANE_CLUSTER", &*directory), ("BACKING", &*of)];
    Program { crate_root, source, library: "chfs", place: &cluster.directory }.run(&environment);
    drop(cluster);
    std::fs::remove_dir_all(&backing).expect("the test's directory can be removed");
}

/// Goal: `chfs_sync` carries what was changed back to the backing directory, and errno says when not all could go.
#[test]
fn flush() {
    run_over("chfs-flush", "flush.c");
}

/// Goal: what `chfs_stagein` has fetched is here, whatever becomes of the backing directory.
#[test]
fn stage_in() {
    run_over("chfs-stage", "stage.c");
}

/// Goal: a cluster file in a directory of another user is not believed. Method: one that leads to servers of ours,
/// given to user 65534, as root.
#[test]
#[expect(clippy::disallowed_methods, reason = "whether a test is left out is for whoever runs it")]
fn foreign_directories() {
    if std::env::var("TABANE_CI_NO_ROOT").is_ok_and(|value| value == "1") {
        return;
    }
    let cluster = Real::start("chfs-foreign", 1, 4096);
    let theirs = c_program::foreign_copy(&cluster.directory);
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Program { crate_root, source: "foreign.c", library: "chfs", place: &cluster.directory };
    program.run(&[("CHFS_SERVER", &theirs.to_string_lossy())]);
    assert!(cluster.client().stat(b"/stolen").is_err() && cluster.client().stat(b"/x").is_err());
}
