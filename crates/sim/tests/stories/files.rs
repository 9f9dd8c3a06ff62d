//! Stories about open files, files without names, locks, attributes and times.

use super::names::{make, write_all};
use super::stage::{CHUNK, Cast};
use super::{SetUp, Story, told};
use client::{AttributeChanges, EXTENDED_CREATE, LockRange, Locker, OpenHow, Timestamp};
use reactor::{Class, LocalFuture};
use sim::profile::MILLISECOND;
use std::task::Poll;

/// The actor and the other one have the same file open.
const BOTH_OPEN: SetUp = |cast| {
    Box::pin(async move {
        make(&cast, &cast.at(1, "a"), 4, 3).await;
        let mine = cast.actor.open(&cast.at(1, "a"), &OpenHow::reading_and_writing()).await.expect("opened");
        cast.keep("a", &mine);
        let theirs = cast.other.open(&cast.at(1, "a"), &OpenHow::reading_and_writing()).await.expect("opened");
        cast.others.borrow_mut().insert("a", theirs);
    })
};

const PLAIN: Story = Story { name: "", set_up: BOTH_OPEN, deeds: &[], in_parts: false, restarted: false };

fn close(cast: Cast) -> LocalFuture<String> {
    Box::pin(async move {
        cast.close("a").await;
        "closed".to_owned()
    })
}

fn unlink(cast: Cast) -> LocalFuture<String> {
    Box::pin(async move { told(cast.actor.unlink(&cast.at(1, "a")).await) })
}

fn write(cast: Cast) -> LocalFuture<String> {
    Box::pin(async move { told(cast.actor.write_at(&cast.handle("a"), &[9; 3000], CHUNK).await) })
}

fn make_temporary(cast: Cast) -> LocalFuture<String> {
    Box::pin(async move {
        let how = OpenHow { temporary: true, ..OpenHow::reading_and_writing() };
        let file = cast.actor.open(b"/", &how).await;
        if let Ok(file) = &file {
            cast.keep("a", file);
        }
        told(file)
    })
}

async fn lock(cast: &Cast, locker: Locker) -> String {
    told(cast.actor.lock(&cast.handle("a"), locker, LockRange::WHOLE, true).await)
}

async fn unlock(cast: &Cast, locker: Locker) -> String {
    told(cast.actor.unlock(&cast.handle("a"), locker, LockRange::WHOLE).await)
}

const FIRST: [&str; 6] = ["t0", "t1", "t2", "t3", "t4", "t5"];
const SECOND: [&str; 6] = ["u0", "u1", "u2", "u3", "u4", "u5"];

/// Makes files without a name, all at once.
fn make_many(cast: Cast, names: [&'static str; 6]) -> LocalFuture<String> {
    Box::pin(async move {
        let how = OpenHow { temporary: true, ..OpenHow::reading_and_writing() };
        let mut waiting: Vec<(&'static str, LocalFuture<client::Result<client::File>>)> = Vec::new();
        for name in names {
            let actor = cast.actor.clone();
            waiting.push((name, Box::pin(async move { actor.open(b"/", &how).await })));
        }
        let mut answers = Vec::new();
        std::future::poll_fn(|context| {
            waiting.retain_mut(|(name, future)| match future.as_mut().poll(context) {
                Poll::Ready(made) => {
                    if let Ok(file) = &made {
                        cast.keep(name, file);
                    }
                    answers.push(told(made));
                    false
                }
                Poll::Pending => true,
            });
            if waiting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        answers.dedup();
        answers.join(", ")
    })
}

/// The other one has a lock of the file as well.
const OTHER_LOCKS: SetUp = |cast| {
    Box::pin(async move {
        BOTH_OPEN(cast.clone()).await;
        let file = cast.others_handle("a");
        cast.other.lock(&file, Locker::Process(1), LockRange::WHOLE, true).await.expect("locked");
    })
};

/// Waits for the lock, which the other one lets go of a moment later.
fn await_lock(cast: Cast) -> LocalFuture<String> {
    Box::pin(async move {
        let (other, file) = (cast.other.clone(), cast.others_handle("a"));
        cast.other.reactor().clone().spawn(Class::Metadata, async move {
            other.reactor().sleep(MILLISECOND).await;
            other.unlock(&file, Locker::Process(1), LockRange::WHOLE).await.expect("unlocked");
        });
        lock(&cast, Locker::Process(1)).await
    })
}

/// The actor has the lock, and the other one waits for it.
const OTHER_WAITS: SetUp = |cast| {
    Box::pin(async move {
        BOTH_OPEN(cast.clone()).await;
        lock(&cast, Locker::Whole).await;
        let (other, file) = (cast.other.clone(), cast.others_handle("a"));
        cast.other.reactor().clone().spawn(Class::Metadata, async move {
            other.lock(&file, Locker::Whole, LockRange::WHOLE, true).await.expect("locked in the end");
            other.set_file_extended(&file, b"user.locked", b"by the other", 0).await.expect("set");
            other.unlock(&file, Locker::Whole, LockRange::WHOLE).await.expect("unlocked");
        });
        cast.actor.reactor().sleep(10 * MILLISECOND).await;
    })
};

fn change(cast: Cast, changes: AttributeChanges) -> LocalFuture<String> {
    Box::pin(async move { told(cast.actor.set_file_attributes(&cast.handle("a"), &changes).await) })
}

pub const STORIES: &[Story] = &[
    Story { name: "unlink of an open file", deeds: &[unlink, write, close], ..PLAIN },
    Story {
        name: "unlink of what is opened again and closed",
        deeds: &[unlink, close, |cast| {
            Box::pin(async move {
                let file = cast.others.borrow_mut().remove("a").expect("open");
                cast.other.close(&file).await;
                "closed".to_owned()
            })
        }],
        ..PLAIN
    },
    Story {
        name: "file without a name",
        set_up: |_| Box::pin(async {}),
        deeds: &[
            make_temporary,
            write,
            |cast| Box::pin(async move { told(cast.actor.link_open(&cast.handle("a"), &cast.at(2, "b")).await) }),
            close,
        ],
        ..PLAIN
    },
    Story {
        name: "file that never has a name",
        set_up: |_| Box::pin(async {}),
        deeds: &[make_temporary, write, close],
        ..PLAIN
    },
    Story {
        name: "reclaim",
        set_up: |cast| {
            Box::pin(async move {
                BOTH_OPEN(cast.clone()).await;
                make(&cast, &cast.at(1, "named"), 1, 4).await;
                let named =
                    cast.actor.open(&cast.at(1, "named"), &OpenHow::reading_and_writing()).await.expect("opened");
                cast.keep("named", &named);
                cast.other.unlink(&cast.at(1, "a")).await.expect("unlinked");
                let theirs = cast.others.borrow_mut().remove("a").expect("open");
                cast.other.close(&theirs).await;
            })
        },
        deeds: &[write, |cast| Box::pin(async move { told(cast.actor.unlink(&cast.at(1, "named")).await) }), close],
        restarted: true,
        ..PLAIN
    },
    Story {
        name: "files without a name while others are reclaimed",
        set_up: |cast| Box::pin(async move { drop(make_many(cast, FIRST).await) }),
        deeds: &[
            |cast| Box::pin(async move { told(cast.actor.stat_file(&cast.handle("t0")).await) }),
            |cast| make_many(cast, SECOND),
        ],
        restarted: true,
        ..PLAIN
    },
    Story {
        name: "locks of a process",
        deeds: &[
            |cast| Box::pin(async move { lock(&cast, Locker::Process(1)).await }),
            |cast| Box::pin(async move { unlock(&cast, Locker::Process(1)).await }),
        ],
        ..PLAIN
    },
    Story {
        name: "locks that end with a close",
        deeds: &[|cast| Box::pin(async move { lock(&cast, Locker::Whole).await }), close],
        ..PLAIN
    },
    Story {
        name: "lock that is awaited",
        set_up: OTHER_LOCKS,
        deeds: &[await_lock, |cast| Box::pin(async move { unlock(&cast, Locker::Process(1)).await })],
        ..PLAIN
    },
    Story {
        name: "lock that another awaits",
        set_up: OTHER_WAITS,
        deeds: &[|cast| Box::pin(async move { unlock(&cast, Locker::Whole).await })],
        ..PLAIN
    },
    Story {
        name: "extended attributes",
        deeds: &[
            |cast| {
                Box::pin(async move {
                    let file = cast.handle("a");
                    told(cast.actor.set_file_extended(&file, b"user.one", b"first", EXTENDED_CREATE).await)
                })
            },
            |cast| {
                Box::pin(async move {
                    told(cast.actor.set_extended(&cast.at(1, "a"), true, b"user.one", b"second", 0).await)
                })
            },
            |cast| Box::pin(async move { told(cast.actor.remove_file_extended(&cast.handle("a"), b"user.one").await) }),
        ],
        ..PLAIN
    },
    Story {
        name: "times against a late settle",
        deeds: &[
            |cast| Box::pin(async move { write_all(&cast, "a", 9, 3 * CHUNK, 0).await }),
            |cast| change(cast, AttributeChanges { mtime: Timestamp::At(1000), ..AttributeChanges::default() }),
            close,
        ],
        in_parts: true,
        ..PLAIN
    },
    Story {
        name: "mode and owner",
        deeds: &[
            |cast| change(cast, AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() }),
            |cast| Box::pin(async move { told(cast.actor.chown(&cast.at(1, "a"), Some(7), Some(8)).await) }),
        ],
        ..PLAIN
    },
];
