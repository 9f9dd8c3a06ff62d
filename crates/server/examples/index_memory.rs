//! What the index of names and inodes takes in memory, and how fast it is: `cargo run --release -p server --example
//! index_memory -- [COUNT]` puts COUNT files of one directory into the tables of one server.

#![allow(clippy::disallowed_methods, reason = "it measures the table alone, without a loop")]

use server::files::inodes::{Inode, Inodes};
use server::names::{Names, cursor_of};
use std::time::Instant;
use wire::{Attributes, FileId, Kind, Layout, LayoutPolicy};

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn name(number: u64) -> String {
    format!("file.mdtest.{}.{}", number % 4, number)
}

fn inode(id: FileId) -> Inode {
    Inode::new(Attributes {
        id,
        kind: Kind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        link_count: 1,
        size: 0,
        atime: 1,
        mtime: 1,
        ctime: 1,
        version: 1,
        truncate_generation: 0,
        times_set: 0,
        layout: Layout::default_for(LayoutPolicy::Modular, 0, 1024, 1 << 20),
    })
}

fn main() {
    let count: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let before = resident_bytes();
    let started = Instant::now();
    let mut names = Names::default();
    for number in 0..count {
        names.put(FileId::ROOT, name(number).as_bytes(), FileId::new(number + 2, 7), Kind::File, 1);
    }
    let after_names = resident_bytes();
    let mut inodes = Inodes::default();
    for number in 0..count {
        inodes.put(&inode(FileId::new(number + 2, 7)));
    }
    let after = resident_bytes();
    let put = started.elapsed();
    let started = Instant::now();
    let mut found = 0u64;
    for number in 0..count {
        let name = name(number * 7919 % count);
        let entry = names.get(FileId::ROOT, name.as_bytes(), cursor_of(FileId::ROOT, name.as_bytes()));
        found += entry.and_then(|(id, _)| inodes.get(id)).map_or(0, |inode| u64::from(inode.attributes.link_count));
    }
    assert_eq!(found, count);
    println!(
        "{count} files: names {} bytes each, inodes {} bytes each; put {} ns, look-up {} ns",
        (after_names - before) / count,
        (after - after_names) / count,
        put.as_nanos() as u64 / count,
        started.elapsed().as_nanos() as u64 / count,
    );
}
