//! Stories about contents. The file is at server 1; with seven chunks it has some at every server.

use super::names::{make, write_all};
use super::stage::{CHUNK, Cast};
use super::{SetUp, Story, told};
use client::{Allocation, OpenHow};
use reactor::LocalFuture;

/// The actor has a file open, and another one to copy from.
const OPEN: SetUp = |cast| {
    Box::pin(async move {
        make(&cast, &cast.at(1, "a"), 7, 3).await;
        make(&cast, &cast.at(2, "source"), 7, 5).await;
        for (name, path) in [("a", cast.at(1, "a")), ("source", cast.at(2, "source"))] {
            let file = cast.actor.open(&path, &OpenHow::reading_and_writing()).await.expect("opened");
            cast.keep(name, &file);
        }
    })
};

const PLAIN: Story = Story { name: "", set_up: OPEN, deeds: &[], in_parts: false, restarted: false };

fn append(cast: Cast, size: usize, byte: u8) -> LocalFuture<String> {
    Box::pin(async move { told(cast.actor.append(&cast.handle("a"), &vec![byte; size]).await) })
}

fn allocate(cast: Cast, kind: Allocation, keep_size: bool, offset: u64, size: u64) -> LocalFuture<String> {
    Box::pin(async move { told(cast.actor.allocate(&cast.handle("a"), kind, keep_size, offset, size).await) })
}

fn close(cast: Cast) -> LocalFuture<String> {
    Box::pin(async move {
        cast.close("a").await;
        "closed".to_owned()
    })
}

pub const STORIES: &[Story] = &[
    Story {
        name: "write and close",
        in_parts: true,
        deeds: &[|cast| Box::pin(async move { write_all(&cast, "a", 7, 4 * CHUNK, 5 * CHUNK + 100).await }), close],
        ..PLAIN
    },
    Story { name: "append", deeds: &[|cast| append(cast, 100, 7), |cast| append(cast, 9000, 9)], ..PLAIN },
    Story { name: "append of much", deeds: &[|cast| append(cast, 70_000, 7), close], in_parts: true, ..PLAIN },
    Story {
        name: "truncate",
        deeds: &[
            |cast| Box::pin(async move { told(cast.actor.truncate_file(&cast.handle("a"), CHUNK + 5).await) }),
            |cast| Box::pin(async move { told(cast.actor.truncate(&cast.at(1, "a"), 6 * CHUNK).await) }),
        ],
        ..PLAIN
    },
    Story {
        name: "open that truncates",
        deeds: &[|cast| {
            Box::pin(async move {
                let file = cast.actor.open(&cast.at(1, "a"), &OpenHow::creating(0o644)).await;
                if let Ok(file) = &file {
                    cast.keep("again", file);
                }
                told(file)
            })
        }],
        ..PLAIN
    },
    Story {
        name: "reserve",
        in_parts: true,
        deeds: &[|cast| allocate(cast, Allocation::Reserve, false, 5 * CHUNK, 6 * CHUNK), close],
        ..PLAIN
    },
    Story {
        name: "punch",
        in_parts: true,
        deeds: &[|cast| allocate(cast, Allocation::Punch, true, 100, 5 * CHUNK), close],
        ..PLAIN
    },
    Story {
        name: "zero",
        in_parts: true,
        deeds: &[|cast| allocate(cast, Allocation::Zero, false, 4 * CHUNK + 9, 5 * CHUNK), close],
        ..PLAIN
    },
    Story {
        name: "copy",
        in_parts: true,
        deeds: &[
            |cast| {
                Box::pin(async move {
                    let (source, target, mut copied) = (cast.handle("source"), cast.handle("a"), 0);
                    while copied < 4 * CHUNK {
                        let left = 4 * CHUNK - copied;
                        match cast.actor.copy_range(&source, copied, &target, 2 * CHUNK + copied, left).await {
                            Ok(count) => copied += count,
                            error => return told(error),
                        }
                    }
                    "copied".to_owned()
                })
            },
            close,
        ],
        ..PLAIN
    },
];
