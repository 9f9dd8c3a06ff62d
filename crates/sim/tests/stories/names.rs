//! Stories about names. Names at server 0 have the root directory's home; the others have theirs elsewhere.

use super::stage::{CHUNK, Cast};
use super::{Story, told};
use client::{OpenHow, RENAME_EXCHANGE, RENAME_NO_REPLACE};

fn exclusive() -> OpenHow {
    OpenHow { create: true, exclusive: true, ..OpenHow::reading_and_writing() }
}

/// Makes a file with some chunks as the other one, who keeps nothing open.
pub async fn make(cast: &Cast, path: &[u8], chunks: u64, byte: u8) {
    let file = cast.other.open(path, &exclusive()).await.expect("created");
    let bytes = vec![byte; (chunks * CHUNK) as usize];
    cast.other.write_at(&file, &bytes, 0).await.expect("written");
    cast.other.close(&file).await;
}

/// Writes all of it, or tells the error.
pub async fn write_all(cast: &Cast, handle: &str, byte: u8, size: u64, offset: u64) -> String {
    let (file, bytes) = (cast.handle(handle), vec![byte; size as usize]);
    let mut written = 0;
    while written < bytes.len() {
        match cast.actor.write_at(&file, &bytes[written..], offset + written as u64).await {
            Ok(count) => written += count,
            error => return told(error),
        }
    }
    "written".to_owned()
}

const PLAIN: Story = Story { name: "", set_up: |_| Box::pin(async {}), deeds: &[], in_parts: false, restarted: false };

pub const FILES: &[Story] = &[
    Story {
        name: "exclusive create",
        deeds: &[
            |cast| {
                Box::pin(async move {
                    let made = cast.actor.open(&cast.at(1, "a"), &exclusive()).await;
                    if let Ok(file) = &made {
                        cast.keep("a", file);
                    }
                    told(made)
                })
            },
            |cast| Box::pin(async move { told(cast.actor.open(&cast.at(1, "a"), &exclusive()).await) }),
        ],
        ..PLAIN
    },
    Story {
        name: "symlink",
        deeds: &[|cast| Box::pin(async move { told(cast.actor.symlink(b"target", &cast.at(2, "s")).await) })],
        ..PLAIN
    },
    Story {
        name: "unlink with recovery",
        set_up: |cast| Box::pin(async move { make(&cast, &cast.at(1, "a"), 7, 3).await }),
        deeds: &[|cast| Box::pin(async move { told(cast.actor.unlink(&cast.at(1, "a")).await) })],
        ..PLAIN
    },
    Story {
        name: "unlink of a parted name",
        set_up: |cast| {
            Box::pin(async move {
                make(&cast, &cast.at(1, "a"), 4, 3).await;
                cast.other.rename(&cast.at(1, "a"), &cast.at(2, "b"), 0).await.expect("renamed");
            })
        },
        deeds: &[|cast| Box::pin(async move { told(cast.actor.unlink(&cast.at(2, "b")).await) })],
        ..PLAIN
    },
    Story {
        name: "link",
        set_up: |cast| Box::pin(async move { make(&cast, &cast.at(1, "a"), 2, 3).await }),
        deeds: &[
            |cast| Box::pin(async move { told(cast.actor.link(&cast.at(1, "a"), &cast.at(2, "b")).await) }),
            |cast| Box::pin(async move { told(cast.actor.unlink(&cast.at(1, "a")).await) }),
        ],
        ..PLAIN
    },
    Story {
        name: "rename over a file",
        set_up: |cast| {
            Box::pin(async move {
                make(&cast, &cast.at(1, "a"), 2, 3).await;
                make(&cast, &cast.at(0, "old"), 4, 5).await;
                cast.other.rename(&cast.at(0, "old"), &cast.at(2, "b"), 0).await.expect("renamed");
            })
        },
        deeds: &[|cast| Box::pin(async move { told(cast.actor.rename(&cast.at(1, "a"), &cast.at(2, "b"), 0).await) })],
        ..PLAIN
    },
    Story {
        name: "exchange of files",
        set_up: |cast| {
            Box::pin(async move {
                make(&cast, &cast.at(1, "a"), 2, 3).await;
                make(&cast, &cast.at(2, "b"), 1, 5).await;
            })
        },
        deeds: &[
            |cast| {
                Box::pin(
                    async move { told(cast.actor.rename(&cast.at(1, "a"), &cast.at(2, "b"), RENAME_EXCHANGE).await) },
                )
            },
            |cast| {
                Box::pin(
                    async move { told(cast.actor.rename(&cast.at(1, "a"), &cast.at(2, "b"), RENAME_NO_REPLACE).await) },
                )
            },
        ],
        ..PLAIN
    },
];

/// Path of a name in a directory.
fn below(directory: &[u8], name: &str) -> Vec<u8> {
    [directory, b"/", name.as_bytes()].concat()
}

pub const DIRECTORIES: &[Story] = &[
    Story {
        name: "mkdir",
        deeds: &[
            |cast| Box::pin(async move { told(cast.actor.mkdir(&cast.at(2, "d"), 0o755).await) }),
            |cast| Box::pin(async move { told(cast.actor.mkdir(&below(&cast.at(2, "d"), "e"), 0o755).await) }),
        ],
        ..PLAIN
    },
    Story {
        name: "rmdir",
        set_up: |cast| {
            Box::pin(async move {
                cast.other.mkdir(&cast.at(1, "d"), 0o755).await.expect("made");
            })
        },
        deeds: &[|cast| Box::pin(async move { told(cast.actor.rmdir(&cast.at(1, "d")).await) })],
        ..PLAIN
    },
    Story {
        name: "rmdir of one that is not empty",
        set_up: |cast| {
            Box::pin(async move {
                cast.other.mkdir(&cast.at(1, "d"), 0o755).await.expect("made");
                make(&cast, &below(&cast.at(1, "d"), "a"), 1, 3).await;
            })
        },
        deeds: &[|cast| Box::pin(async move { told(cast.actor.rmdir(&cast.at(1, "d")).await) })],
        ..PLAIN
    },
    Story {
        name: "rename of a directory",
        set_up: |cast| {
            Box::pin(async move {
                cast.other.mkdir(&cast.at(1, "d"), 0o755).await.expect("made");
                cast.other.mkdir(&cast.at(2, "e"), 0o755).await.expect("made");
                make(&cast, &below(&cast.at(1, "d"), "a"), 1, 3).await;
            })
        },
        deeds: &[|cast| {
            Box::pin(async move { told(cast.actor.rename(&cast.at(1, "d"), &below(&cast.at(2, "e"), "d"), 0).await) })
        }],
        ..PLAIN
    },
    Story {
        name: "rename over a directory",
        set_up: |cast| {
            Box::pin(async move {
                cast.other.mkdir(&cast.at(1, "d"), 0o755).await.expect("made");
                cast.other.mkdir(&cast.at(2, "e"), 0o755).await.expect("made");
                make(&cast, &below(&cast.at(1, "d"), "a"), 1, 3).await;
            })
        },
        deeds: &[|cast| Box::pin(async move { told(cast.actor.rename(&cast.at(1, "d"), &cast.at(2, "e"), 0).await) })],
        ..PLAIN
    },
    Story {
        name: "chmod that takes rights away",
        set_up: |cast| {
            Box::pin(async move {
                cast.other.mkdir(&cast.at(2, "d"), 0o755).await.expect("made");
                make(&cast, &below(&cast.at(2, "d"), "a"), 1, 3).await;
            })
        },
        deeds: &[|cast| Box::pin(async move { told(cast.actor.chmod(&cast.at(2, "d"), 0o700).await) })],
        ..PLAIN
    },
];
