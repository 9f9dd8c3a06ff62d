//! Operations on contents, locks and extended attributes of files.

use crate::stage::{CHUNK_SIZE, Measured, Stage, creating};
use crate::table::Row;
use client::{Allocation, FileRange, LockRange, Locker, OpenHow};
use std::io::{IoSlice, IoSliceMut};

const FILES: Row = Row::FILES;
/// Closes that are told together.
const CLOSES: usize = 64;

pub fn rows() -> Vec<Row> {
    let mut rows = reading_and_writing();
    rows.extend(sizes());
    rows.extend(ranges());
    rows.extend(attributes_and_locks());
    rows
}

fn reading_and_writing() -> Vec<Row> {
    vec![
        Row {
            what: "read or write within a chunk; a file's end is read with it where nobody else holds parts of the \
                   file",
            cases: &[write_home, read_home, read_end_home, write_far_again, read_far],
            ..FILES
        },
        Row {
            what: "read or write over m servers, also of a list of ranges",
            requests: "m",
            cases: &[read_wide, write_wide_again, read_list, write_list_again],
            ..FILES
        },
        Row {
            what: "first write since the last close over m servers, one of which is the home",
            requests: "m",
            waits: "2",
            messages: "m - 1",
            holders_min: 2,
            servers_min: 2,
            cases: &[write_wide],
            ..FILES
        },
        Row {
            what: "read up to the end of a file, on m servers that are announced, by a client that knows of all these \
                   bytes",
            requests: "m + 1",
            waits: "3",
            messages: "m - 1",
            holders_min: 2,
            servers_min: 2,
            cases: &[read_end_known],
            ..FILES
        },
        Row {
            what: "the same by a client that knows of fewer bytes",
            requests: "2 m + 1",
            waits: "4",
            messages: "m - 1",
            holders_min: 2,
            servers_min: 2,
            cases: &[read_end_unknown],
            ..FILES
        },
        Row { what: "append of up to 64 KiB to the home's chunk", cases: &[append_home], ..FILES },
        Row {
            what: "append of up to 64 KiB to m servers, one of which is the home, the first since the last close",
            waits: "4",
            messages: "3 (m - 1)",
            holders_min: 2,
            servers_min: 2,
            cases: &[append_wide],
            ..FILES
        },
        Row {
            what: "append to the chunk of a server that is announced and not the home",
            waits: "4",
            messages: "3",
            servers_min: 2,
            cases: &[append_far_again],
            ..FILES
        },
        Row {
            what: "larger append to m servers, when they are announced",
            requests: "m + 1",
            waits: "3",
            messages: "m - 1",
            holders_min: 2,
            servers_min: 2,
            cases: &[append_large],
            ..FILES
        },
        Row {
            what: "64 closes of files of one home that were read, or written in one chunk: sent together, with a later \
                   request or after a second",
            waits: "0",
            cases: &[closes],
            ..FILES
        },
        Row {
            what: "close of a file that was written on m servers",
            waits: "0",
            messages: "m - 1",
            holders_min: 2,
            servers_min: 2,
            cases: &[close_wide],
            ..FILES
        },
    ]
}

fn sizes() -> Vec<Row> {
    vec![
        Row {
            what: "stat while m servers are announced",
            waits: "2",
            messages: "m - 1",
            holders_min: 2,
            servers_min: 2,
            cases: &[stat_announced],
            ..FILES
        },
        Row {
            what: "truncate by descriptor of a file with parts on m servers",
            waits: "2",
            messages: "m - 1",
            holders_min: 2,
            servers_min: 2,
            cases: &[cut_wide],
            ..FILES
        },
        Row {
            what: "fsync, fdatasync after writes to m servers",
            requests: "m",
            waits: "2",
            holders_min: 2,
            servers_min: 2,
            cases: &[synchronise_wide],
            ..FILES
        },
        Row {
            what: "the same by a client that wrote to none of these m servers",
            requests: "m",
            waits: "2",
            holders_min: 2,
            servers_min: 2,
            cases: &[synchronise_others],
            ..FILES
        },
        Row { what: "the same when only the home was written to", cases: &[synchronise_home], ..FILES },
        Row {
            what: "the same by a name that was parted from its inode",
            requests: "2",
            servers_min: 2,
            cases: &[synchronise_parted],
            ..FILES
        },
    ]
}

fn ranges() -> Vec<Row> {
    vec![
        Row { what: "fallocate in chunks of the home", cases: &[reserve_home, punch_home], ..FILES },
        Row {
            what: "fallocate over m servers that are announced",
            requests: "m + 1",
            waits: "2",
            holders_min: 2,
            servers_min: 2,
            cases: &[reserve_wide],
            ..FILES
        },
        Row {
            what: "punch a hole over m servers that are announced",
            requests: "m",
            holders_min: 2,
            servers_min: 2,
            cases: &[punch_wide],
            ..FILES
        },
        Row {
            what: "seek to data or hole in a file with parts on m servers",
            requests: "m + 1",
            waits: "2",
            cases: &[seek],
            ..FILES
        },
        Row {
            what: "copy of a piece (of one chunk, at most 256 KiB) from one server to another",
            requests: "2",
            waits: "3",
            messages: "1",
            servers_min: 2,
            cases: &[copy],
            ..FILES
        },
        Row { what: "the same within one server", requests: "2", waits: "2", cases: &[copy_beside], ..FILES },
    ]
}

fn attributes_and_locks() -> Vec<Row> {
    vec![
        Row {
            what: "get, set, list, remove an extended attribute by descriptor",
            cases: &[set_extended_file, get_extended_file, list_extended_file, remove_extended_file],
            ..FILES
        },
        Row { what: "the same by path", requests: "2", waits: "2", cases: &[set_extended, get_extended], ..FILES },
        Row {
            what: "the same by a name that was parted from its inode",
            requests: "3",
            waits: "3",
            servers_min: 2,
            cases: &[set_extended_parted],
            ..FILES
        },
        Row {
            what: "lock that is free or refused, unlock, test of a lock",
            cases: &[lock, refused_lock, unlock, test_lock],
            ..FILES
        },
        Row {
            what: "close by which locks go, and after which nothing else is to be told at once",
            cases: &[close_locked],
            ..FILES
        },
        Row {
            what: "lock that is waited for, and the unlock that it waited for",
            requests: "3",
            waits: "2",
            cases: &[awaited_lock],
            ..FILES
        },
    ]
}

fn wide(stage: &Stage) -> Vec<u8> {
    vec![2; (u64::from(stage.holders) * CHUNK_SIZE) as usize]
}

fn write_home(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.write_at(&file, &[1; 100], 50).await.expect("written") })
}

fn read_home(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    let written = file.clone();
    stage.run(|fs| async move { fs.write_at(&written, &[1; 100], 0).await.expect("written") });
    stage.measure(|fs| async move { assert_eq!(fs.read_at(&file, &mut [0; 100], 0).await, Ok(100)) })
}

fn read_end_home(stage: &Stage) -> Measured {
    let (path, file) = stage.file(&stage.directory(), 0, "file");
    let file = stage.run(|fs| async move {
        fs.write_at(&file, &[1; 100], 0).await.expect("written");
        fs.close(&file).await;
        fs.open(path.as_bytes(), &OpenHow::reading()).await.expect("open")
    });
    stage.measure(|fs| async move { assert_eq!(fs.read_at(&file, &mut [0; 4096], 0).await, Ok(100)) })
}

/// A chunk of another server, where there is one.
fn write_far_again(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    let written = file.clone();
    stage.run(|fs| async move { fs.write_at(&written, &[1; 100], CHUNK_SIZE).await.expect("written") });
    stage.measure(|fs| async move { fs.write_at(&file, &[2; 100], CHUNK_SIZE + 7).await.expect("written") })
}

fn read_far(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    let written = file.clone();
    stage.run(|fs| async move { fs.write_at(&written, &[1; 100], CHUNK_SIZE).await.expect("written") });
    stage.measure(|fs| async move { assert_eq!(fs.read_at(&file, &mut [0; 100], CHUNK_SIZE).await, Ok(100)) })
}

fn read_wide(stage: &Stage) -> Measured {
    let (_, file) = stage.full_file(&stage.directory(), 0, "file");
    let mut bytes = wide(stage);
    stage.measure(|fs| async move { fs.read_at(&file, &mut bytes, 0).await.expect("read") })
}

fn write_wide(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    let bytes = wide(stage);
    stage.measure(|fs| async move { fs.write_at(&file, &bytes, 0).await.expect("written") })
}

fn write_wide_again(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    let (bytes, written) = (wide(stage), file.clone());
    let first = bytes.clone();
    stage.run(|fs| async move { fs.write_at(&written, &first, 0).await.expect("written") });
    stage.measure(|fs| async move { fs.write_at(&file, &bytes, 0).await.expect("written") })
}

/// Every other kibibyte of the bytes of all servers, the last one first, with memory for them.
fn every_other(stage: &Stage) -> (Vec<FileRange>, Vec<u8>) {
    let offsets = (0..wide(stage).len()).step_by(2048).rev();
    let ranges: Vec<FileRange> = offsets.map(|offset| FileRange { offset: offset as u64, size: 1024 }).collect();
    let bytes = vec![7; 1024 * ranges.len()];
    (ranges, bytes)
}

fn read_list(stage: &Stage) -> Measured {
    let (_, file) = stage.full_file(&stage.directory(), 0, "file");
    let (ranges, mut bytes) = every_other(stage);
    stage.measure(|fs| async move {
        fs.read_list_at(&file, &ranges, &mut [IoSliceMut::new(&mut bytes)]).await.expect("read")
    })
}

fn write_list_again(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    let (written, first) = (file.clone(), wide(stage));
    stage.run(|fs| async move { fs.write_at(&written, &first, 0).await.expect("written") });
    let (ranges, bytes) = every_other(stage);
    stage.measure(|fs| async move { fs.write_list_at(&file, &ranges, &[IoSlice::new(&bytes)]).await.expect("written") })
}

/// Another client that has the file open; the file ends within its last chunk.
fn read_end(stage: &Stage, times: usize) -> Measured {
    let (path, file) = stage.file(&stage.directory(), 0, "file");
    let reader = stage.other(0);
    let size = wide(stage).len() - 100;
    let (opened, servers) = (path.clone(), stage.servers);
    stage.run_as(&reader, |fs| async move {
        for server in 0..servers {
            fs.ping(server).await.expect("there");
        }
    });
    stage.run(move |fs| async move { fs.write_at(&file, &vec![3; size], 0).await.expect("written") });
    let reading =
        stage.run_as(&reader, |fs| async move { fs.open(opened.as_bytes(), &OpenHow::reading()).await.expect("open") });
    let read = |file: client::File| {
        let mut bytes = wide(stage);
        async move |fs: client::FileSystem| assert_eq!(fs.read_at(&file, &mut bytes, 0).await, Ok(size))
    };
    for _ in 1..times {
        stage.run_as(&reader, read(reading.clone()));
    }
    stage.measure_as(&reader, read(reading))
}

fn read_end_unknown(stage: &Stage) -> Measured {
    read_end(stage, 1)
}

fn read_end_known(stage: &Stage) -> Measured {
    read_end(stage, 2)
}

/// A file that was just written to on all its servers, and not closed.
fn announced_file(stage: &Stage) -> (String, client::File) {
    let (path, file) = stage.file(&stage.directory(), 0, "file");
    let (bytes, written) = (wide(stage), file.clone());
    stage.run(|fs| async move { fs.write_at(&written, &bytes, 0).await.expect("written") });
    (path, file)
}

fn append_home(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.append(&file, &[1; 100]).await.expect("appended") })
}

fn append_wide(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    let bytes = wide(stage);
    stage.measure(|fs| async move { fs.append(&file, &bytes).await.expect("appended") })
}

fn append_far_again(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    let appended = file.clone();
    stage.run(|fs| async move {
        fs.append(&appended, &[1; CHUNK_SIZE as usize]).await.expect("appended");
        fs.append(&appended, &[1; 10]).await.expect("appended");
    });
    stage.measure(|fs| async move { fs.append(&file, &[1; 10]).await.expect("appended") })
}

/// Chunks are as large as it takes for each server to have one.
fn append_large(stage: &Stage) -> Measured {
    let path = stage.name(&stage.directory(), 0, "file");
    let chunk = 128 << 10;
    let bytes = vec![1; (stage.holders * chunk) as usize];
    let (file, first) = (path.clone(), bytes.clone());
    let file = stage.run(move |fs| async move {
        let how = client::OpenHow { chunk_size: chunk, ..creating() };
        let file = fs.open(file.as_bytes(), &how).await.expect("create");
        fs.write_at(&file, &first, 0).await.expect("written");
        fs.truncate_file(&file, 0).await.expect("cut");
        fs.write_at(&file, &first, 0).await.expect("written");
        file
    });
    // The next chunks are those of the same servers only when these are all.
    let gap = u64::from(stage.servers - stage.holders) * u64::from(chunk);
    let written = file.clone();
    let end = bytes.len() as u64 + gap;
    stage.run(move |fs| async move { fs.truncate_file(&written, end).await.expect("extended") });
    let (written, first) = (file.clone(), bytes.clone());
    stage.run(move |fs| async move { fs.write_at(&written, &first, 0).await.expect("written") });
    stage.measure(|fs| async move { fs.append(&file, &bytes).await.expect("appended") })
}

fn closes(stage: &Stage) -> Measured {
    let directory = stage.directory();
    let files: Vec<_> = (0..CLOSES).map(|number| stage.file(&directory, 0, &format!("file{number}-")).1).collect();
    stage.measure(|fs| async move {
        for file in &files {
            fs.close(file).await;
        }
    })
}

fn close_wide(stage: &Stage) -> Measured {
    let (_, file) = announced_file(stage);
    stage.measure(|fs| async move { fs.close(&file).await })
}

fn stat_announced(stage: &Stage) -> Measured {
    let (path, _) = announced_file(stage);
    stage.measure(|fs| async move { fs.stat(path.as_bytes()).await.expect("stat") })
}

fn cut_wide(stage: &Stage) -> Measured {
    let (_, file) = stage.full_file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.truncate_file(&file, 100).await.expect("cut") })
}

fn synchronise_wide(stage: &Stage) -> Measured {
    let (_, file) = announced_file(stage);
    stage.measure(|fs| async move { fs.synchronise(&file).await.expect("synchronised") })
}

fn synchronise_others(stage: &Stage) -> Measured {
    let (_, file) = stage.full_file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.synchronise(&file).await.expect("synchronised") })
}

fn synchronise_home(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    let written = file.clone();
    stage.run(|fs| async move { fs.write_at(&written, &[1; 100], 0).await.expect("written") });
    stage.measure(|fs| async move { fs.synchronise(&file).await.expect("synchronised") })
}

fn synchronise_parted(stage: &Stage) -> Measured {
    let path = stage.parted_file(&stage.directory(), 0, "file");
    let file =
        stage.run(|fs| async move { fs.open(path.as_bytes(), &OpenHow::reading_and_writing()).await.expect("open") });
    stage.measure(|fs| async move { fs.synchronise(&file).await.expect("synchronised") })
}

fn reserve_home(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.allocate(&file, Allocation::Reserve, false, 0, 1000).await.expect("reserved") })
}

fn punch_home(stage: &Stage) -> Measured {
    let (_, file) = stage.full_file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.allocate(&file, Allocation::Punch, true, 0, 1000).await.expect("punched") })
}

fn reserve_wide(stage: &Stage) -> Measured {
    let (_, file) = announced_file(stage);
    let size = wide(stage).len() as u64;
    stage.measure(
        move |fs| async move { fs.allocate(&file, Allocation::Reserve, false, 0, size).await.expect("reserved") },
    )
}

fn punch_wide(stage: &Stage) -> Measured {
    let (_, file) = announced_file(stage);
    let size = wide(stage).len() as u64;
    stage.measure(move |fs| async move { fs.allocate(&file, Allocation::Punch, true, 0, size).await.expect("punched") })
}

fn seek(stage: &Stage) -> Measured {
    let (_, file) = stage.full_file(&stage.directory(), 0, "file");
    let size = wide(stage).len() as u64;
    stage.measure(move |fs| async move { assert_eq!(fs.seek_hole(&file, 0).await, Ok(size)) })
}

fn copy_to(stage: &Stage, server: u32) -> Measured {
    let directory = stage.directory();
    let (source, target) = (stage.full_file(&directory, 0, "source").1, stage.file(&directory, server, "target").1);
    stage.measure(|fs| async move { assert_eq!(fs.copy_range(&source, 0, &target, 0, 1000).await, Ok(1000)) })
}

fn copy(stage: &Stage) -> Measured {
    copy_to(stage, 1)
}

fn copy_beside(stage: &Stage) -> Measured {
    copy_to(stage, 0)
}

/// A file with an extended attribute.
fn named_value(stage: &Stage) -> (String, client::File) {
    let (path, file) = stage.file(&stage.directory(), 0, "file");
    let named = file.clone();
    stage.run(|fs| async move { fs.set_file_extended(&named, b"user.x", b"value", 0).await.expect("set") });
    (path, file)
}

fn set_extended_file(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.set_file_extended(&file, b"user.x", b"value", 0).await.expect("set") })
}

fn get_extended_file(stage: &Stage) -> Measured {
    let (_, file) = named_value(stage);
    stage.measure(|fs| async move { fs.get_file_extended(&file, b"user.x").await.expect("get") })
}

fn list_extended_file(stage: &Stage) -> Measured {
    let (_, file) = named_value(stage);
    stage.measure(|fs| async move { fs.list_file_extended(&file).await.expect("list") })
}

fn remove_extended_file(stage: &Stage) -> Measured {
    let (_, file) = named_value(stage);
    stage.measure(|fs| async move { fs.remove_file_extended(&file, b"user.x").await.expect("removed") })
}

fn set_extended(stage: &Stage) -> Measured {
    let (path, _) = stage.file(&stage.directory(), 0, "file");
    stage
        .measure(|fs| async move { fs.set_extended(path.as_bytes(), true, b"user.x", b"value", 0).await.expect("set") })
}

fn get_extended(stage: &Stage) -> Measured {
    let (path, _) = named_value(stage);
    stage.measure(|fs| async move { fs.get_extended(path.as_bytes(), true, b"user.x").await.expect("get") })
}

fn set_extended_parted(stage: &Stage) -> Measured {
    let path = stage.parted_file(&stage.directory(), 0, "file");
    stage
        .measure(|fs| async move { fs.set_extended(path.as_bytes(), true, b"user.x", b"value", 0).await.expect("set") })
}

fn lock(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.lock(&file, Locker::Whole, LockRange::WHOLE, true).await.expect("locked") })
}

/// A file of which another open file has the lock.
fn locked_file(stage: &Stage) -> (client::File, client::File) {
    let (path, file) = stage.file(&stage.directory(), 0, "file");
    let holder = file.clone();
    let other = stage.run(|fs| async move {
        fs.lock(&holder, Locker::Whole, LockRange::WHOLE, true).await.expect("locked");
        fs.open(path.as_bytes(), &OpenHow::reading_and_writing()).await.expect("open")
    });
    (file, other)
}

fn refused_lock(stage: &Stage) -> Measured {
    let (_, other) = locked_file(stage);
    stage.measure(
        |fs| async move { fs.try_lock(&other, Locker::Whole, LockRange::WHOLE, true).await.expect_err("refused") },
    )
}

fn unlock(stage: &Stage) -> Measured {
    let (file, _) = locked_file(stage);
    stage.measure(|fs| async move { fs.unlock(&file, Locker::Whole, LockRange::WHOLE).await.expect("unlocked") })
}

fn test_lock(stage: &Stage) -> Measured {
    let (_, other) = locked_file(stage);
    stage.measure(|fs| async move {
        let found = fs.test_lock(&other, Locker::Whole, LockRange::WHOLE, true).await.expect("tested");
        assert!(found.is_some());
    })
}

fn close_locked(stage: &Stage) -> Measured {
    let (file, _other) = locked_file(stage);
    stage.measure(|fs| async move { fs.close(&file).await })
}

/// The holder lets go when the request for the lock has come.
fn awaited_lock(stage: &Stage) -> Measured {
    let (file, other) = locked_file(stage);
    let holder = stage.fs();
    stage.measure(|fs| async move {
        let waiting = fs.lock(&other, Locker::Whole, LockRange::WHOLE, true);
        let releasing = holder.unlock(&file, Locker::Whole, LockRange::WHOLE);
        let mut waiting = std::pin::pin!(waiting);
        let first = std::future::poll_fn(|context| std::task::Poll::Ready(waiting.as_mut().poll(context))).await;
        assert!(first.is_pending());
        releasing.await.expect("unlocked");
        waiting.await.expect("locked");
    })
}
