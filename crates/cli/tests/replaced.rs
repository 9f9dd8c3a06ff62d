//! Names on a mount that others replace all the time. Without /dev/fuse these tests fail, unless TABANE_CI_NO_FUSE=1.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, fuse_is_here, mount_point, text};
use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Goal: a name that is replaced all the time is always there, for open and stat, and leads to a whole file.
/// Method: one thread replaces a file by rename through one mount, others read it through another one, without pause.
#[test]
fn replaced_files_are_always_there() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-replaced");
    let (writing, reading) = (mount_point(&ground, "writing"), mount_point(&ground, "reading"));
    ground.run(&["up", "--servers", "2", "--mount", text(&writing)]);
    ground.run(&["mount", text(&reading)]);
    fs::write(writing.join("config"), [0; 100]).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let read = || {
            let path = reading.join("config");
            while !ended.load(Ordering::Relaxed) {
                let bytes = fs::read(&path).unwrap();
                assert!(bytes.len() == 100 && bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
                assert_eq!(fs::metadata(&path).unwrap().len(), 100);
            }
        };
        let readers: Vec<_> = (0..6).map(|_| scope.spawn(read)).collect();
        let written = scope.spawn(|| {
            for version in 0..1000 {
                fs::write(writing.join("new"), [version as u8; 100]).unwrap();
                fs::rename(writing.join("new"), writing.join("config")).unwrap();
            }
        });
        let written = written.join();
        ended.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        written.unwrap();
    });
}

/// Goal: a symbolic link that is replaced all the time is always there, to be read, followed and looked at; so is a
/// socket. Method: one thread replaces both by rename through one mount, others use them through another one, without
/// pause.
#[test]
fn replaced_links_are_always_there() {
    if !fuse_is_here() {
        return;
    }
    let ground = Ground::new("mount-links");
    let (writing, reading) = (mount_point(&ground, "writing"), mount_point(&ground, "reading"));
    ground.run(&["up", "--servers", "2", "--mount", text(&writing)]);
    ground.run(&["mount", text(&reading)]);
    for version in 0..2u8 {
        fs::write(writing.join(format!("target-{version}")), [version; 100]).unwrap();
    }
    let make_link = |version: u32| {
        symlink(format!("target-{}", version % 2), writing.join("new-link")).unwrap();
        fs::rename(writing.join("new-link"), writing.join("link")).unwrap();
    };
    let make_socket = || {
        UnixListener::bind(writing.join("new-socket")).unwrap();
        fs::rename(writing.join("new-socket"), writing.join("socket")).unwrap();
    };
    make_link(0);
    make_socket();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let read = || {
            let (link, socket) = (reading.join("link"), reading.join("socket"));
            while !ended.load(Ordering::Relaxed) {
                let target = fs::read_link(&link).unwrap();
                assert!(target == Path::new("target-0") || target == Path::new("target-1"), "{target:?}");
                let bytes = fs::read(&link).unwrap();
                assert!(bytes.len() == 100 && bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
                let about = fs::symlink_metadata(&link).unwrap();
                assert!(about.is_symlink() && about.len() == 8, "{about:?}");
                assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
            }
        };
        let readers: Vec<_> = (0..6).map(|_| scope.spawn(read)).collect();
        let written = scope.spawn(|| {
            for version in 0..1000 {
                make_link(version);
                make_socket();
            }
        });
        let written = written.join();
        ended.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        written.unwrap();
    });
}
