//! Patterns in paths inside the cluster, and what is left when a command is interrupted. Real servers.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::Ground;
use reactor::process::ProcessId;
use std::io::Write;
use std::process::{Child, Stdio};

const SIGINT: i32 = 2;

fn put(ground: &Ground, path: &str, text: &str) {
    let mut child = ground.command(&["put", path]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{path}");
}

/// Goal: patterns match within components, hidden names only when asked for, in order; what exists as it is written
/// stands for itself; a backslash takes the meaning away; what matches nothing is said as it was written; local
/// patterns are left alone.
#[test]
fn patterns() {
    let ground = Ground::new("patterns");
    ground.run(&["up", "--servers", "3"]);
    ground.run(&["mkdir", "/a", "/b", "/c*"]);
    for path in ["/a/1.dat", "/a/2.dat", "/a/.hidden.dat", "/b/1.dat", "/b/[x]", "/b/x", "/c*/in"] {
        put(&ground, path, path);
    }
    assert_eq!(ground.run(&["cat", "/a/*.dat"]), "/a/1.dat/a/2.dat");
    assert_eq!(ground.run(&["cat", ":/?/1.*"]), "/a/1.dat/b/1.dat");
    assert_eq!(ground.run(&["cat", "/a/.h*"]), "/a/.hidden.dat");
    assert_eq!(ground.run(&["cat", "/b/[x]"]), "/b/[x]");
    assert_eq!(ground.run(&["cat", "/b/[wx]"]), "/b/x");
    assert_eq!(ground.run(&["cat", "/c\\*/i*"]), "/c*/in");
    assert_eq!(ground.run(&["ls", "/c*"]), "in\n");
    let complaint = ground.fail(1, &["cat", "/no*"]);
    assert!(complaint.contains("/no*: no such file or directory"), "{complaint}");
    std::fs::create_dir(ground.path.join("out")).unwrap();
    ground.run(&["cp", "-q", ":/a/*.dat", "out"]);
    assert_eq!(std::fs::read_dir(ground.path.join("out")).unwrap().count(), 2);
    assert_eq!(ground.run(&["checksum", ":/a/*.dat"]).lines().count(), 2);
    ground.fail(1, &["cp", "-q", "out/*.dat", ":/b"]);
    ground.run(&["chmod", "600", "/a/*.dat"]);
    ground.run(&["rm", "/a/*.dat"]);
    assert_eq!(ground.run(&["ls", "-a", "/a"]), ".hidden.dat\n");
    // What makes something makes what it is told.
    ground.run(&["mkdir", "/b/*"]);
    assert!(ground.run(&["ls", "/b"]).contains("*\n"));
}

fn interrupt(child: &mut Child) {
    if let Some(process) = ProcessId::of(child.id()) {
        process.signal(SIGINT).unwrap();
    }
}

/// Goal: a copy that is interrupted leaves whole files or none, and says how far it came.
/// Method: interrupted as soon as its first file is there, until one of the tries is interrupted in time.
#[test]
fn interrupted_copy() {
    let ground = Ground::new("interrupted-copy");
    ground.run(&["up", "--servers", "2"]);
    let tree = ground.path.join("tree");
    std::fs::create_dir(&tree).unwrap();
    let bytes: Vec<u8> = (0..20 << 20).map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for name in ["one", "two", "three"] {
        std::fs::write(tree.join(name), &bytes).unwrap();
    }
    for attempt in 0..20 {
        let target = format!(":/copy-{attempt}");
        let mut command = ground.command(&["cp", "-r", "-q", "--jobs", "2", "tree", &target]);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() && ground.try_run(&["ls", &target]).stdout.is_empty() {}
        interrupt(&mut child);
        let output = child.wait_with_output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        for name in ground.run(&["ls", &target]).lines() {
            let size = ground.run(&["ls", "-l", &format!("{target}/{name}")]);
            assert!(size.contains(&bytes.len().to_string()), "{size}{complaint}");
        }
        ground.run(&["rm", "-rf", &target[1..]]);
        if output.status.code() == Some(128 + SIGINT) {
            assert!(complaint.contains("interrupted: ") && !complaint.contains("incomplete"), "{complaint}");
            return;
        }
    }
    panic!("no copy was interrupted in time");
}

/// Goal: a removal that is interrupted ends what it began and says how much is gone; what is left is sound.
#[test]
fn interrupted_removal() {
    let ground = Ground::new("interrupted-removal");
    ground.run(&["up", "--servers", "2"]);
    let tree = ground.path.join("tree");
    for directory in 0..20 {
        std::fs::create_dir_all(tree.join(directory.to_string())).unwrap();
        for file in 0..40 {
            std::fs::write(tree.join(format!("{directory}/{file}")), "x").unwrap();
        }
    }
    for _ in 0..20 {
        ground.run(&["cp", "-r", "-q", "tree", ":/"]);
        let count = || ground.try_run(&["find", "/tree", "-type", "f", "-count"]).stdout;
        let mut command = ground.command(&["rm", "-r", "--jobs", "1", "/tree"]);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() && count() == b"800\n" {}
        interrupt(&mut child);
        let output = child.wait_with_output().unwrap();
        if output.status.code() == Some(128 + SIGINT) {
            let complaint = String::from_utf8(output.stderr).unwrap();
            assert!(complaint.contains("interrupted: ") && complaint.contains("removed"), "{complaint}");
            assert!(ground.run(&["check"]).contains("all is well"));
            ground.run(&["rm", "-r", "/tree"]);
            return;
        }
    }
    panic!("no removal was interrupted in time");
}
