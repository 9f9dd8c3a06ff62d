//! Reading from the region that a server of this machine lends, against real servers with their stores in memory.

#[path = "common/real.rs"]
mod real;

use client::{Client, OpenHow, Status};
use real::Real;

const CHUNK: u32 = 1 << 16;
/// Questions whether something has happened, before it counts as not happening: seconds.
const QUESTIONS_MAX: u32 = 2_000_000;

/// Bytes that name their version and their place.
fn version(number: u64, size: usize) -> Vec<u8> {
    (0..size).map(|at| (number * 101 + at as u64 / 7) as u8).collect()
}

/// Goal: what was read once is read again without a message, and what others change is seen at once nevertheless,
/// however they change it. Method: one client reads a file of five chunks on two servers again and again and counts its
/// round trips; another one overwrites, cuts, punches, extends and removes it in between, and each read has to see it.
#[test]
fn changes_are_seen_without_messages() {
    const SIZE: usize = 5 * CHUNK as usize - 1_000;
    let cluster = Real::in_memory("shared", 2, CHUNK);
    let (reader, writer) = (cluster.client(), cluster.client());
    let to_write = writer.open(b"/f", &OpenHow::creating(0o644)).expect("made");
    let to_read = reader.open(b"/f", &OpenHow::reading()).expect("is there");
    let mut bytes = version(1, SIZE);
    assert_eq!(writer.write_at(&to_write, &bytes, 0), Ok(SIZE));
    let read = |offset: usize, size: usize| {
        let mut place = vec![0xEE; size];
        let count = reader.read_at(&to_read, &mut place, offset as u64).expect("read");
        place.truncate(count);
        place
    };
    // The first one connects, the second one asks for places.
    assert!(read(0, SIZE) == bytes);
    assert!(read(0, SIZE) == bytes);
    let before = reader.round_trips();
    for step in 0..100 {
        let offset = step * 2_711;
        assert!(read(offset, 5_000) == bytes[offset..offset + 5_000]);
        assert!(read(offset, 3) == bytes[offset..offset + 3]);
    }
    assert_eq!(reader.round_trips(), before, "nobody was asked");

    for number in 2..60u64 {
        let offset = (number as usize * 7_919) % (SIZE - 20_000);
        let size = 1 + (number as usize * 3_001) % 20_000;
        let fresh = version(number, size);
        assert_eq!(writer.write_at(&to_write, &fresh, offset as u64), Ok(size));
        bytes[offset..offset + size].copy_from_slice(&fresh);
        assert!(read(0, SIZE) == bytes, "after write {number}");
        assert!(read(offset, size) == fresh, "after write {number}");
    }

    writer.truncate_file(&to_write, 100_000).expect("cut");
    assert!(read(90_000, 20_000) == bytes[90_000..100_000]);
    writer.truncate_file(&to_write, 130_000).expect("extended");
    assert!(read(99_000, 2_000) == [&bytes[99_000..100_000], &[0; 1_000]].concat());
    assert_eq!(writer.write_at(&to_write, &bytes[100_000..110_000], 100_000), Ok(10_000));
    assert!(read(95_000, 12_000) == bytes[95_000..107_000], "written where others were before the cut");
    writer.close(&to_write);
}

/// Goal: a file that has a name is opened by its number without a message, as mounts do it; one that has lost its name
/// is still there for those who have it open, and goes after the last close: up to a second later, for who has not
/// learnt that somebody else has removed it tells of a close in passing. Method: round trips of one client, while
/// another one removes the file.
#[test]
fn opens_by_number_need_no_message() {
    let cluster = Real::in_memory("numbers", 2, CHUNK);
    let (reader, writer) = (cluster.client(), cluster.client());
    let mut files = Vec::new();
    for number in 0..20 {
        let path = format!("/f{number}").into_bytes();
        let file = writer.open(&path, &OpenHow::creating(0o644)).expect("made");
        assert_eq!(writer.write_at(&file, &version(number, 100), 0), Ok(100));
        writer.close(&file);
        let id = reader.stat(&path).expect("is there").id;
        // The first ones connect.
        reader.close(&reader.open_id(id, &OpenHow::reading(), 4).expect("is there").0);
        files.push((path, id));
    }
    let before = reader.round_trips();
    let opened: Vec<_> =
        files.iter().map(|(_, id)| reader.open_id(*id, &OpenHow::reading(), 4).expect("opens").0).collect();
    assert_eq!(reader.round_trips(), before, "nobody was asked");
    for (number, ((path, _), file)) in files.iter().zip(&opened).enumerate() {
        writer.unlink(path).expect("removed");
        let mut place = vec![0; 100];
        assert_eq!(reader.read_at(file, &mut place, 0), Ok(100));
        assert!(place == version(number as u64, 100), "it is there for who has it open");
        reader.close(file);
    }
    let give_up = reactor::barrier::monotonic_now() + 60_000_000_000;
    for (_, id) in &files {
        // A look opens nothing, so it keeps nothing; and it takes along what its client has put aside.
        while reader.stat_id(*id).is_ok() {
            assert!(reactor::barrier::monotonic_now() < give_up, "{id:?} is there though nobody has it open");
            std::thread::yield_now();
        }
        let opened = reader.open_id(*id, &OpenHow::reading(), 4).err().map(|error| error.status);
        assert_eq!(opened, Some(Status::StaleFile));
    }
}

/// Goal: small files are opened and read without a message, and what others change after the open, or between opens, is
/// seen: bytes, length, and another file in the freed pages. Method: one client opens and reads files again and again
/// and counts its round trips; another one overwrites, cuts, extends and replaces them before the open and between open
/// and read.
#[test]
fn small_files_come_with_their_open() {
    const SIZE: usize = 3_901;
    let cluster = Real::in_memory("small", 2, CHUNK);
    let (reader, writer) = (cluster.client(), cluster.client());
    let write = |path: &[u8], bytes: &[u8]| {
        let file = writer.open(path, &OpenHow::creating(0o644)).expect("made");
        assert_eq!(writer.write_at(&file, bytes, 0), Ok(bytes.len()));
        writer.close(&file);
    };
    let read = |path: &[u8], between: &dyn Fn()| {
        let file = reader.open(path, &OpenHow::reading()).expect("is there");
        between();
        let mut place = vec![0xEE; SIZE];
        let count = reader.read_at(&file, &mut place, 0).expect("read");
        reader.close(&file);
        place.truncate(count);
        place
    };
    let path = |number: usize| format!("/f{number}").into_bytes();
    for number in 0..40 {
        write(&path(number), &version(number as u64, SIZE));
        // The first ones connect.
        assert!(read(&path(number), &|| ()) == version(number as u64, SIZE));
    }
    let before = reader.round_trips();
    for number in 0..40 {
        assert!(read(&path(number), &|| ()) == version(number as u64, SIZE));
    }
    assert_eq!(reader.round_trips(), before, "nobody was asked");

    for number in 0..40 {
        let (path, next) = (path(number), version(100 + number as u64, SIZE));
        let overwrite = || {
            let file = writer.open(&path, &OpenHow::reading_and_writing()).expect("is there");
            assert_eq!(writer.write_at(&file, &next, 0), Ok(SIZE));
            writer.close(&file);
        };
        assert!(read(&path, &overwrite) == next, "file {number}");
        let shorter = || {
            writer.truncate(&path, 1_000).expect("cut");
        };
        assert!(read(&path, &shorter) == next[..1_000], "file {number}");
        let replace = || {
            writer.unlink(&path).expect("removed");
            write(&path, &version(200 + number as u64, SIZE));
        };
        assert!(read(&path, &replace) == next[..1_000], "file {number}: the open one stays what it was");
        assert!(read(&path, &|| ()) == version(200 + number as u64, SIZE), "file {number}");
    }
}

/// Goal: nobody ever sees a mixture of two versions of a chunk, nor an older one than it saw before. Method: a thread
/// rewrites chunks of a file as a whole, with its version's number in every byte, also by unlinking the file and making
/// another one in its freed pages; three threads with a client each read whole chunks as fast as they can.
#[test]
fn no_mixture_is_seen() {
    const CHUNKS: usize = 6;
    const VERSIONS: u8 = 250;
    let cluster = Real::in_memory("mixture", 2, CHUNK);
    let writer = cluster.client();
    let file = writer.open(b"/f", &OpenHow::creating(0o644)).expect("made");
    let size = CHUNK as usize;
    for chunk in 0..CHUNKS {
        assert_eq!(writer.write_at(&file, &vec![1; size], (chunk * size) as u64), Ok(size));
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3usize {
            let (client, done) = (cluster.client(), &done);
            scope.spawn(move || {
                let file = client.open(b"/f", &OpenHow::reading()).expect("is there");
                let (mut seen, mut place, mut count) = ([0u8; CHUNKS], vec![0; size], 0u64);
                while !done.load(std::sync::atomic::Ordering::Relaxed) || count < 10 {
                    let chunk = (count as usize * 5 + thread) % CHUNKS;
                    assert_eq!(client.read_at(&file, &mut place, (chunk * size) as u64), Ok(size));
                    let first = place[0];
                    assert!(place.iter().all(|byte| *byte == first), "chunk {chunk} is a mixture");
                    assert!(first >= seen[chunk], "chunk {chunk} went back from {} to {first}", seen[chunk]);
                    seen[chunk] = first;
                    count += 1;
                }
            });
        }
        for number in 2..VERSIONS {
            for chunk in 0..CHUNKS {
                assert_eq!(writer.write_at(&file, &vec![number; size], (chunk * size) as u64), Ok(size));
            }
            // Others use the pages that the overwritten bytes leave.
            let other = writer.open(b"/other", &OpenHow::creating(0o644)).expect("made");
            assert_eq!(writer.write_at(&other, &vec![0xFF; 2 * size], 0), Ok(2 * size));
            writer.close(&other);
            writer.unlink(b"/other").expect("removed");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// Goal: a file that is gone is not read from its freed pages by who has no right to it any more. Method: read an open
/// file whole, remove it while it is open (it stays readable), close it, and read by the stale handle.
#[test]
fn removed_files_are_gone() {
    let cluster = Real::in_memory("removed", 1, CHUNK);
    let client = cluster.client();
    let file = client.open(b"/f", &OpenHow { read: true, ..OpenHow::creating(0o644) }).expect("made");
    let bytes = version(3, 50_000);
    assert_eq!(client.write_at(&file, &bytes, 0), Ok(bytes.len()));
    let mut place = vec![0; bytes.len()];
    assert_eq!(client.read_at(&file, &mut place, 0), Ok(bytes.len()));
    client.unlink(b"/f").expect("removed");
    assert_eq!(client.read_at(&file, &mut place, 0), Ok(bytes.len()));
    assert!(place == bytes);
    client.close(&file);
    let other = client.open(b"/g", &OpenHow::creating(0o644)).expect("made");
    assert_eq!(client.write_at(&other, &version(4, 50_000), 0), Ok(50_000));
    let error = client.read_at(&file, &mut place, 0).expect_err("it is gone");
    assert_eq!(error.status, Status::StaleFile);
}

/// Goal: who looks at files is told what others have done to them, without a message: made, changed, renamed, linked,
/// removed. Method: one client looks at files on two servers and counts its round trips; another one changes them in
/// between.
#[test]
fn looking_takes_no_message() {
    let cluster = Real::in_memory("looking", 2, CHUNK);
    let (reader, writer) = (cluster.client(), cluster.client());
    let path = |number: usize| format!("/d/f{number}").into_bytes();
    writer.mkdir(b"/d", 0o755).expect("made");
    let make = |number: usize| writer.close(&writer.open(&path(number), &OpenHow::creating(0o644)).expect("made"));
    (0..20).for_each(make);
    // The first ones connect, and find the directory.
    (0..20).for_each(|number| assert_eq!(reader.stat(&path(number)).expect("is there").size, 0));
    (20..60).for_each(make);
    // Whoever asks a server has it take up what was submitted.
    writer.stat(b"/d").expect("is there");
    let count = || reader.round_trips();
    let before = count();
    for number in 20..60 {
        let seen = reader.stat(&path(number)).expect("is there");
        assert_eq!((seen.mode, seen.link_count, seen.size), (0o644, 1, 0));
        let file = reader.open(&path(number), &OpenHow::reading()).expect("is there");
        assert_eq!(reader.stat_file(&file).expect("is there"), seen);
        reader.close(&file);
    }
    assert_eq!(count(), before, "nobody was asked");

    for number in 20..40 {
        writer.chmod(&path(number), 0o600).expect("changed");
        assert_eq!(reader.stat(&path(number)).expect("is there").mode, 0o600);
        writer.truncate(&path(number), 77).expect("extended");
        assert_eq!(reader.stat(&path(number)).expect("is there").size, 77);
        writer.link(&path(number), b"/d/more").expect("linked");
        assert_eq!(reader.stat(&path(number)).expect("is there").link_count, 2);
        writer.unlink(&path(number)).expect("removed");
        assert_eq!(reader.stat(&path(number)).expect_err("removed").status, Status::NotFound);
        assert_eq!(reader.stat(b"/d/more").expect("is there").link_count, 1);
        writer.rename(b"/d/more", &path(number), 0).expect("renamed");
        assert_eq!(reader.stat(b"/d/more").expect_err("renamed").status, Status::NotFound);
        assert_eq!(reader.stat(&path(number)).expect("is there").size, 77);
    }
    writer.rename(b"/d", b"/e", 0).expect("renamed");
    for number in 20..60 {
        assert_eq!(reader.stat(&path(number)).expect_err("elsewhere").status, Status::NotFound);
        reader.stat(format!("/e/f{number}").as_bytes()).expect("is there");
    }
}

/// Goal: who reads to the end with a buffer that is larger than the file, as most programs do, is told where that is
/// without a message, also after somebody has made the file longer or shorter. Method: a client reads files twice, of
/// which the second time counts; another one changes them in between.
#[test]
fn reading_to_the_end_takes_no_message() {
    let cluster = Real::in_memory("to-the-end", 2, CHUNK);
    let (reader, writer) = (cluster.client(), cluster.client());
    let sizes = [1, 3_901, 4_096, 10_000];
    let name = |index: usize| format!("/f{index}").into_bytes();
    let write = |index: usize, size: usize| {
        let file = writer.open(&name(index), &OpenHow::creating(0o644)).expect("made");
        writer.truncate(&name(index), 0).expect("emptied");
        assert_eq!(writer.write_at(&file, &version(index as u64, size), 0), Ok(size));
        writer.close(&file);
        writer.stat(&name(index)).expect("who asks has it taken up");
    };
    let read = |index: usize, size: usize| {
        let file = reader.open(&name(index), &OpenHow::reading()).expect("is there");
        let mut bytes = vec![0; 16_384];
        assert_eq!(reader.read_at(&file, &mut bytes, 0), Ok(size));
        assert!(bytes[..size] == version(index as u64, size));
        assert_eq!(reader.read_at(&file, &mut bytes, size as u64), Ok(0));
        assert_eq!(reader.read_at(&file, &mut bytes, size as u64 / 2), Ok(size - size / 2));
        reader.close(&file);
    };
    for (index, size) in sizes.into_iter().enumerate() {
        write(index, size);
        read(index, size);
        let before = reader.round_trips();
        read(index, size);
        assert_eq!(reader.round_trips(), before, "nobody was asked, of {size} bytes");
        let open = reader.open(&name(index), &OpenHow::reading()).expect("is there");
        for other in [size + 5_000, size / 2 + 1] {
            write(index, other);
            let mut bytes = vec![0; 20_000];
            assert_eq!(reader.read_at(&open, &mut bytes, 0), Ok(other));
            assert!(bytes[..other] == version(index as u64, other));
        }
        reader.close(&open);
    }
}

/// Goal: a file that was opened without a message stays whole when its name goes, for as long as it is open, and its
/// space is free afterwards. Method: a client opens files by a look; another one removes them and makes others in what
/// would be their pages.
#[test]
fn held_files_outlive_their_names() {
    const SIZE: usize = 30_000;
    let cluster = Real::in_memory("held", 1, CHUNK);
    let (reader, writer) = (cluster.client(), cluster.client());
    let write = |path: &[u8], bytes: &[u8]| {
        let file = writer.open(path, &OpenHow::creating(0o644)).expect("made");
        assert_eq!(writer.write_at(&file, bytes, 0), Ok(bytes.len()));
        writer.close(&file);
    };
    write(b"/first", b"connects");
    reader.stat(b"/first").expect("is there");
    let free = || writer.stat_server(0).expect("told").bytes_free;
    let at_first = free();
    let path = |number: usize| format!("/f{number}").into_bytes();
    // More than can be held at a time: the rest is opened by messages.
    let numbers = 0..reactor::HAZARD_COUNT + 20;
    numbers.clone().for_each(|number| write(&path(number), &version(number as u64, SIZE)));
    let before = reader.round_trips();
    let files: Vec<_> =
        numbers.clone().map(|number| reader.open(&path(number), &OpenHow::reading()).expect("is there")).collect();
    assert!(reader.round_trips() - before <= 20, "{} round trips", reader.round_trips() - before);
    for number in numbers.clone() {
        writer.unlink(&path(number)).expect("removed");
        write(b"/other", &version(1_000 + number as u64, SIZE));
        writer.unlink(b"/other").expect("removed");
    }
    let mut place = vec![0; SIZE];
    for (number, file) in files.iter().enumerate() {
        assert_eq!(reader.stat_file(file).expect("open").link_count, 0);
        assert_eq!(reader.read_at(file, &mut place, 0), Ok(SIZE));
        assert!(place == version(number as u64, SIZE), "file {number}");
    }
    assert!(free() < at_first);
    files.iter().for_each(|file| reader.close(file));
    let mut questions = 0;
    while free() < at_first {
        // Closes that nobody waits for travel with what comes.
        reader.stat(b"/nothing").expect_err("is not there");
        questions += 1;
        assert!(questions < QUESTIONS_MAX, "{} bytes are not freed", at_first - free());
    }
}

/// Goal: nobody ever sees a mixture of two files at one name, nor no file, nor one that was there before what he saw
/// last; and who opens one has just that one. Method: a thread replaces a file by others, whose modes, sizes and bytes
/// all tell their number; three threads with a client each look at it, open and read it as fast as they can.
#[test]
fn no_mixture_of_files_is_seen() {
    const VERSIONS: u32 = 3_000;
    // What no umask takes away.
    let mode_of = |number: u32| number & 0o77 << 6 | 0o400;
    let cluster = Real::in_memory("replaced", 1, CHUNK);
    let writer = cluster.client();
    let replace = |number: u32| {
        let file = writer.open(b"/next", &OpenHow::creating(mode_of(number))).expect("made");
        let bytes = vec![number as u8; number as usize];
        assert_eq!(writer.write_at(&file, &bytes, 0), Ok(bytes.len()));
        writer.close(&file);
        writer.rename(b"/next", b"/f", 0).expect("renamed");
    };
    replace(1);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (client, done) = (cluster.client(), &done);
            scope.spawn(move || {
                let mut seen = 0;
                let mut check = |attributes: &wire::Attributes| {
                    let number = attributes.size as u32;
                    assert_eq!(attributes.mode, mode_of(number), "file {number}");
                    assert!(number >= seen, "{number} after {seen}");
                    seen = number;
                };
                let mut place = vec![0; VERSIONS as usize];
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    check(&client.stat(b"/f").expect("there is always one"));
                    let file = client.open(b"/f", &OpenHow::reading()).expect("there is always one");
                    let attributes = client.stat_file(&file).expect("open");
                    check(&attributes);
                    assert_eq!(client.read_at(&file, &mut place, 0), Ok(attributes.size as usize));
                    let bytes = &place[..attributes.size as usize];
                    assert!(bytes.iter().all(|byte| *byte == attributes.size as u8), "file {}", attributes.size);
                    client.close(&file);
                }
                client.run(async |_, file_system| file_system.finish().await);
            });
        }
        (2..VERSIONS).for_each(replace);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    writer.unlink(b"/f").expect("removed");
    let mut questions = 0;
    while writer.stat_server(0).expect("told").chunks > 0 {
        questions += 1;
        assert!(questions < QUESTIONS_MAX, "chunks of files are left that nobody has open");
    }
}

fn count_names(client: &Client, path: &[u8]) -> u32 {
    let mut count = 0;
    let mut note = |_: &client::DirectoryEntry| {
        count += 1;
        true
    };
    client.read_directory(path, true, &mut note).expect("listed");
    count
}

/// Goal: names are removed without waiting for the server, and are gone for everybody at once all the same. Method: one
/// client makes files, looks at them and removes them, counting its round trips; after each one another client looks at
/// the name and at the open file, and makes a file of that name anew every now and then.
#[test]
fn removals_are_submitted() {
    const COUNT: u32 = 400;
    let cluster = Real::in_memory("submitted", 2, CHUNK);
    let (remover, other) = (cluster.client(), cluster.client());
    remover.mkdir(b"/d", 0o755).expect("made");
    let path = |number: u32| format!("/d/file-{number}").into_bytes();
    for number in 0..COUNT {
        let file = remover.open(&path(number), &OpenHow::creating(0o644)).expect("made");
        assert_eq!(remover.write_at(&file, &version(number.into(), 1_000), 0), Ok(1_000));
        remover.close(&file);
    }
    (0..COUNT).for_each(|number| assert_eq!(remover.stat(&path(number)).expect("is there").size, 1_000));
    let mut waited = 0;
    for number in 0..COUNT {
        let opened = other.open(&path(number), &OpenHow::reading()).expect("is there");
        let before = remover.round_trips();
        remover.unlink(&path(number)).expect("removed");
        waited += remover.round_trips() - before;
        assert_eq!(other.stat(&path(number)).expect_err("gone").status, Status::NotFound);
        assert_eq!(other.stat_file(&opened).expect("open").link_count, 0);
        let mut bytes = [0; 2_000];
        assert_eq!(other.read_at(&opened, &mut bytes, 0), Ok(1_000));
        assert!(bytes[..1_000] == version(number.into(), 1_000));
        other.close(&opened);
        assert_eq!(remover.unlink(&path(number)).expect_err("gone").status, Status::NotFound);
        if number % 7 == 0 {
            let again = OpenHow { exclusive: true, ..OpenHow::creating(0o600) };
            other.close(&other.open(&path(number), &again).expect("the name is free"));
            assert_eq!(remover.stat(&path(number)).expect("there is another one").mode, 0o600);
            remover.unlink(&path(number)).expect("removed");
        }
        if number % 50 == 49 {
            assert_eq!(count_names(&other, b"/d"), COUNT - number - 1);
        }
    }
    // Where the server is busy with the other client's requests, who removes waits as well.
    assert!(waited < u64::from(COUNT / 4 * 3), "{waited} of {COUNT} waited for a server");
    remover.rmdir(b"/d").expect("empty");
}

/// Goal: files are made without waiting for the server, and are there for everybody at once all the same; of a name
/// there is one. Method: one client makes files in two directories, writes to some, and closes or removes them,
/// counting the round trips of making, closing and removing; after each one another client looks at it, tries to make
/// it anew, reads it, and removes some.
#[test]
fn creations_are_submitted() {
    const COUNT: u32 = 400;
    let cluster = Real::in_memory("made", 2, CHUNK);
    let (maker, other) = (cluster.client(), cluster.client());
    maker.mkdir(b"/d", 0o755).expect("made");
    maker.mkdir(b"/e", 0o2775).expect("made");
    let path =
        |number: u32| format!("/{}/file-{number}", if number.is_multiple_of(2) { "d" } else { "e" }).into_bytes();
    let exclusively = |mode| OpenHow { exclusive: true, ..OpenHow::creating(mode) };
    let (mut waited, mut ids) = (0, std::collections::BTreeSet::new());
    for number in 0..COUNT {
        let bytes = version(number.into(), 700);
        let before = maker.round_trips();
        let file = maker.open(&path(number), &exclusively(0o640)).expect("the name is free");
        waited += maker.round_trips() - before;
        assert_eq!(other.open(&path(number), &exclusively(0o600)).expect_err("there").status, Status::Exists);
        assert_eq!(maker.open(&path(number), &exclusively(0o600)).expect_err("there").status, Status::Exists);
        let seen = other.stat(&path(number)).expect("it is there");
        assert_eq!((seen.mode, seen.size, seen.link_count), (0o640, 0, 1));
        assert_eq!(maker.stat_file(&file).expect("open"), seen);
        assert!(ids.insert(seen.id), "ids are given once");
        if number % 3 == 0 {
            assert_eq!(maker.write_at(&file, &bytes, 0), Ok(700));
            let opened = other.open(&path(number), &OpenHow::reading()).expect("it is there");
            let mut read = [0; 1_000];
            assert_eq!(other.read_at(&opened, &mut read, 0), Ok(700));
            assert!(read[..700] == bytes);
            other.close(&opened);
        }
        if number % 5 == 0 {
            // Open here, it goes with the close.
            other.unlink(&path(number)).expect("removed");
            assert_eq!(maker.stat_file(&file).expect("open").link_count, 0);
        }
        let before = maker.round_trips();
        maker.close(&file);
        // What has lost its name is told.
        waited += if number % 5 == 0 { 0 } else { maker.round_trips() - before };
    }
    let left = count_names(&other, b"/d") + count_names(&other, b"/e");
    assert_eq!(left, COUNT - COUNT / 5);
    assert!(waited < u64::from(COUNT / 4 * 3), "{waited} of {COUNT} waited for a server");
    // Nobody looks in between: many are submitted in a row.
    let before = maker.round_trips();
    for number in COUNT..2 * COUNT {
        maker.close(&maker.open(&path(number), &exclusively(0o640)).expect("the name is free"));
    }
    let waited = maker.round_trips() - before;
    assert!(waited < u64::from(COUNT / 4), "{waited} of {COUNT} waited for a server");
    assert_eq!(count_names(&other, b"/d") + count_names(&other, b"/e"), left + COUNT);
    for number in 0..2 * COUNT {
        match other.unlink(&path(number)) {
            Ok(()) => {}
            Err(error) => assert!(number < COUNT && number % 5 == 0, "{number}: {}", error.status),
        }
    }
    maker.rmdir(b"/d").expect("empty");
    maker.rmdir(b"/e").expect("empty");
    assert_eq!(maker.open(b"/d/file", &exclusively(0o640)).expect_err("no directory").status, Status::NotFound);
    let mut questions = 0;
    while (0..2).any(|server| maker.stat_server(server).expect("told").chunks > 0) {
        questions += 1;
        assert!(questions < QUESTIONS_MAX, "chunks of files are left that nobody has open");
    }
}

/// Goal: whoever reads a file from front to back asks seldom where its bytes are, and sees what others write meanwhile.
/// Method: reads a file of many chunks in halves of chunks and counts its round trips; then another client writes to
/// every third chunk while this one reads again.
#[test]
fn places_are_told_ahead() {
    const COUNT: u64 = 200;
    let cluster = Real::in_memory("ahead", 2, CHUNK);
    let (reader, writer) = (cluster.client(), cluster.client());
    let half = u64::from(CHUNK) / 2;
    let expected = |number: u64, at: u64| version(number * 2 + at % 2, half as usize);
    let file = writer.open(b"/f", &OpenHow::creating(0o644)).expect("made");
    for at in 0..2 * COUNT {
        assert_eq!(writer.write_at(&file, &expected(1, at), at * half), Ok(half as usize));
    }
    let seen = reader.open(b"/f", &OpenHow::reading()).expect("there");
    let mut place = vec![0; half as usize];
    let before = reader.round_trips();
    for at in 0..2 * COUNT {
        assert_eq!(reader.read_at(&seen, &mut place, at * half), Ok(half as usize));
        assert!(place == expected(1, at), "half {at}");
    }
    let asked = reader.round_trips() - before;
    assert!(asked < COUNT / 4, "{asked} round trips for {COUNT} chunks");
    for at in 0..2 * COUNT {
        // Its place is known to the reader by now, or soon.
        let ahead = (at + 3).min(2 * COUNT - 1);
        if ahead.is_multiple_of(3) {
            assert_eq!(writer.write_at(&file, &expected(2, ahead), ahead * half), Ok(half as usize));
        }
        assert_eq!(reader.read_at(&seen, &mut place, at * half), Ok(half as usize));
        let number = 1 + u64::from(at.is_multiple_of(3) && at >= 3);
        assert!(place == expected(number, at), "half {at}");
    }
    reader.close(&seen);
    writer.close(&file);
}

/// Goal: small files are made, written and closed without waiting for the server, and have their bytes for everybody at
/// once all the same. Method: one client makes files of sizes around those of pages and of what is submitted at most,
/// writes to some twice, and counts first writes without a round trip; another one reads some right after, and all of
/// them in the end, after which nothing of them is left when they are removed.
#[test]
fn first_bytes_are_submitted() {
    const COUNT: u64 = 800;
    const SIZES: [usize; 8] = [1, 700, 3_901, 4_096, 4_097, 20_000, 65_536, 65_537];
    let cluster = Real::in_memory("first", 2, CHUNK);
    let (maker, other) = (cluster.client(), cluster.client());
    maker.mkdir(b"/d", 0o755).expect("made");
    let path = |number: u64| format!("/d/file-{number}").into_bytes();
    let expected = |number: u64| {
        let mut bytes = version(number, SIZES[number as usize % SIZES.len()]);
        if number.is_multiple_of(5) {
            let second = version(number + COUNT, bytes.len() / 2 + 1);
            bytes[..second.len()].copy_from_slice(&second);
        }
        bytes
    };
    let check = |number| {
        let bytes = expected(number);
        let file = other.open(&path(number), &OpenHow::reading()).expect("it is there");
        assert_eq!(other.stat_file(&file).expect("open").size, bytes.len() as u64);
        let mut read = vec![0; bytes.len() + 100];
        assert_eq!(other.read_at(&file, &mut read, 0), Ok(bytes.len()));
        assert!(read[..bytes.len()] == bytes, "file {number} has other bytes");
        other.close(&file);
    };
    let mut submitted_count = 0;
    for number in 0..COUNT {
        let file = maker.open(&path(number), &OpenHow::creating(0o644)).expect("made");
        let first = version(number, SIZES[number as usize % SIZES.len()]);
        let before = maker.round_trips();
        assert_eq!(maker.write_at(&file, &first, 0), Ok(first.len()));
        submitted_count += u64::from(maker.round_trips() == before);
        if number.is_multiple_of(5) {
            let second = version(number + COUNT, first.len() / 2 + 1);
            assert_eq!(maker.write_at(&file, &second, 0), Ok(second.len()));
        }
        maker.close(&file);
        if number.is_multiple_of(7) {
            check(number);
        }
    }
    // A server with a core of its own takes up many files before their bytes come.
    assert!(submitted_count > 0, "all first writes waited");
    (0..COUNT).for_each(check);
    (0..COUNT).for_each(|number| maker.unlink(&path(number)).expect("there"));
    assert_eq!(count_names(&other, b"/d"), 0);
    // Closes of small files may be told later.
    other.run(async |_, file_system| file_system.finish().await);
    let mut questions = 0;
    while (0..2).any(|server| maker.stat_server(server).expect("told").chunks > 0) {
        questions += 1;
        assert!(questions < QUESTIONS_MAX, "chunks of files are left that nobody has open");
    }
}

/// Goal: small writes to a file take no round trip, whoever else writes to it, and everybody reads the last ones.
/// Method: two clients write to a file in turns, at places and of sizes without a pattern, which grows; now and then
/// one of them or a third one reads it, cuts it, or asks for its size. In the end one writes alone.
#[test]
fn small_writes_are_submitted() {
    const COUNT: u64 = 3_000;
    const SIZES: [usize; 7] = [1, 100, 4_096, 5_000, 47_008, 20_000, 65_536];
    let cluster = Real::in_memory("submitted-writes", 2, CHUNK);
    let clients = [cluster.client(), cluster.client(), cluster.client()];
    let how = OpenHow { create: true, ..OpenHow::reading_and_writing() };
    let files: Vec<_> = clients.iter().map(|client| client.open(b"/f", &how).expect("made")).collect();
    let mut all: Vec<u8> = Vec::new();
    let write = |all: &mut Vec<u8>, number: u64, who: usize| {
        let bytes = version(number, SIZES[(number * number % 31) as usize % SIZES.len()]);
        let at = (number * 7_919) as usize % (all.len() + 1_000).min(10 * CHUNK as usize);
        assert_eq!(clients[who].write_at(&files[who], &bytes, at as u64), Ok(bytes.len()));
        all.resize(all.len().max(at + bytes.len()), 0);
        all[at..at + bytes.len()].copy_from_slice(&bytes);
    };
    for number in 1..COUNT {
        write(&mut all, number, (number >> (number % 3)) as usize % 2);
        let reader = (number / 7) as usize % 3;
        match number % 29 {
            0..5 => {
                let mut read = vec![0xEE; all.len() + 100];
                assert_eq!(clients[reader].read_at(&files[reader], &mut read, 0), Ok(all.len()));
                assert!(read[..all.len()] == all, "after write {number}");
            }
            5 => assert_eq!(clients[reader].stat_file(&files[reader]).expect("open").size, all.len() as u64),
            6 => assert_eq!(clients[reader].stat(b"/f").expect("there").size, all.len() as u64),
            7 if number % 5 == 0 => {
                all.truncate(all.len() / 3 * 2);
                clients[reader].truncate_file(&files[reader], all.len() as u64).expect("cut");
            }
            _ => {}
        }
    }
    // Some of them cross from one chunk to the next, and some wait until the server has made room.
    let before = clients[0].round_trips();
    (0..COUNT).for_each(|number| write(&mut all, number, 0));
    let waited = clients[0].round_trips() - before;
    assert!(waited < COUNT / 2, "{waited} round trips for {COUNT} writes");
    let mut read = vec![0; all.len()];
    assert_eq!(clients[2].read_at(&files[2], &mut read, 0), Ok(all.len()));
    assert!(read == all);
    clients.iter().zip(&files).for_each(|(client, file)| client.close(file));
    clients[1].unlink(b"/f").expect("there");
    let mut questions = 0;
    while (0..2).any(|server| clients[0].stat_server(server).expect("told").chunks > 0) {
        questions += 1;
        assert!(questions < QUESTIONS_MAX, "chunks of a file are left that nobody has open");
    }
}

/// Goal: what is made later has no earlier time, whichever server it is on and whenever that takes it up.
#[test]
fn submissions_have_their_own_times() {
    const COUNT: u32 = 400;
    let cluster = Real::in_memory("times", 2, CHUNK);
    let (maker, other) = (cluster.client(), cluster.client());
    maker.mkdir(b"/d", 0o755).expect("made");
    let path = |number: u32| format!("/d/file-{number}").into_bytes();
    for number in 0..COUNT {
        let file = maker.open(&path(number), &OpenHow::creating(0o644)).expect("made");
        if number.is_multiple_of(3) {
            assert_eq!(maker.write_at(&file, b"bytes", 0), Ok(5));
        }
        maker.close(&file);
    }
    let times: Vec<i64> = (0..COUNT).map(|number| other.stat(&path(number)).expect("there").mtime).collect();
    let late = times.windows(2).position(|pair| pair[0] > pair[1]);
    assert_eq!(late, None, "a file is younger than one that was made after it");
}

/// Goal: what a client makes for another user is that user's.
#[test]
fn others_own_what_is_made_for_them() {
    let cluster = Real::in_memory("others", 1, CHUNK);
    let client = cluster.client();
    client.mkdir(b"/d", 0o777).expect("made");
    client.chmod(b"/d", 0o777).expect("changed");
    for number in 0..40 {
        let (own, other) = (format!("/d/own-{number}").into_bytes(), format!("/d/other-{number}").into_bytes());
        client.close(&client.open(&own, &OpenHow::creating(0o644)).expect("made"));
        let user = client::Credentials { uid: 4711, gid: 4712, ..client.user() };
        let open = async |_: &_, file_system: &client::FileSystem| {
            let acting = file_system.acting_as(user, 0);
            let file = acting.open(&other, &OpenHow::creating(0o644)).await.expect("made");
            acting.close(&file).await;
        };
        client.run(open);
        let seen = client.stat(&other).expect("it is there");
        assert_eq!((seen.uid, seen.gid), (4711, 4712));
    }
}

/// Goal: of many who make or remove the same name at once one does. Method: three threads with a client each make the
/// same files as fast as they can, and then remove them; those that succeeded are counted.
#[test]
fn one_makes_and_one_removes() {
    const COUNT: u32 = 2_000;
    let cluster = Real::in_memory("raced", 2, CHUNK);
    let watcher = cluster.client();
    watcher.mkdir(b"/d", 0o755).expect("made");
    let path = |number: u32| format!("/d/file-{number}").into_bytes();
    let count = || std::sync::atomic::AtomicU32::new(0);
    let (made, removed, gate) = (count(), count(), std::sync::Barrier::new(3));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (client, made, removed, gate) = (cluster.client(), &made, &removed, &gate);
            scope.spawn(move || {
                let add = |count: &std::sync::atomic::AtomicU32| {
                    count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                };
                let how = OpenHow { exclusive: true, ..OpenHow::creating(0o644) };
                gate.wait();
                for number in 0..COUNT {
                    match client.open(&path(number), &how) {
                        Ok(file) => {
                            client.close(&file);
                            add(made);
                        }
                        Err(error) => assert_eq!(error.status, Status::Exists),
                    }
                }
                gate.wait();
                for number in 0..COUNT {
                    match client.unlink(&path(number)) {
                        Ok(()) => add(removed),
                        Err(error) => assert_eq!(error.status, Status::NotFound),
                    }
                }
                client.run(async |_, file_system| file_system.finish().await);
            });
        }
    });
    assert_eq!((made.into_inner(), removed.into_inner()), (COUNT, COUNT));
    assert_eq!(count_names(&watcher, b"/d"), 0);
    watcher.rmdir(b"/d").expect("empty");
}
