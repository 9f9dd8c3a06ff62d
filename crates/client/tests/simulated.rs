//! The client against real servers in the simulator.

#[path = "common/simulated.rs"]
mod common;

use client::{Allocation, FileRange, Kind, OpenHow, Status, Timestamp};
use common::Stage;
use std::io::{IoSlice, IoSliceMut};
use wire::Placement;

fn pattern(size: usize, salt: u64) -> Vec<u8> {
    (0..size as u64).map(|i| ((i * 2_654_435_761 + salt) >> 7) as u8).collect()
}

/// Goal: the round trips of the architecture's table (section 4), for a client whose directories are resolved.
/// Method: count the calls around each operation on three servers; server-to-server messages are not counted.
#[test]
fn round_trips() {
    let stage = Stage::new(1, 3, 4096, Placement::Modular);
    let guest = stage.client();
    guest.get(async |fs| fs.create_all(b"/a/b/c", 0o755).await.map(|_| ())).expect("directories are made");
    let how = OpenHow::creating(0o644);
    let count = |what: &str, expected: u64, measured: u64| assert_eq!(measured, expected, "round trips of {what}");

    let (file, trips) = guest.run(async move |fs| fs.open(b"/a/b/c/file", &how).await);
    let file = file.expect("created");
    count("create", 1, trips);
    let (opened, trips) = guest.run(async |fs| fs.open(b"/a/b/c/file", &OpenHow::reading()).await.map(|_| ()));
    opened.expect("opened");
    count("open", 1, trips);
    let handle = file.clone();
    let (written, trips) = guest.run(async move |fs| fs.write_at(&handle, &pattern(4000, 1), 0).await);
    assert_eq!(written, Ok(4000));
    count("write within a chunk", 1, trips);
    let handle = file.clone();
    let (read, trips) = guest.run(async move |fs| fs.read_at(&handle, &mut [0; 4000], 0).await);
    assert_eq!(read, Ok(4000));
    count("read within a chunk", 1, trips);
    let handle = file.clone();
    let (written, trips) = guest.run(async move |fs| fs.write_at(&handle, &pattern(40_960, 2), 0).await);
    assert_eq!(written, Ok(40_960));
    count("write of ten chunks on three servers", 3, trips);
    let handle = file.clone();
    let (read, trips) = guest.run(async move |fs| fs.read_at(&handle, &mut [0; 40_960], 0).await);
    assert_eq!(read, Ok(40_960));
    count("read of ten chunks on three servers", 3, trips);
    let ((), trips) = guest.run(async move |fs| fs.close(&file).await);
    count("close", 0, trips);

    let (result, trips) = guest.run(async |fs| fs.stat(b"/a/b/c/file").await);
    assert_eq!(result.expect("is there").size, 40_960);
    count("stat", 1, trips);
    let (result, trips) = guest.run(async |fs| fs.mkdir(b"/a/b/c/d", 0o755).await);
    result.expect("made");
    count("mkdir", 1, trips);
    let (result, trips) = guest.run(async |fs| fs.symlink(b"file", b"/a/b/c/link").await);
    result.expect("made");
    count("symlink", 1, trips);
    let (result, trips) = guest.run(async |fs| fs.readlink(b"/a/b/c/link").await);
    assert_eq!(result.expect("is one"), b"file");
    count("readlink", 1, trips);
    let (result, trips) = guest.run(async |fs| fs.unlink(b"/a/b/c/file").await);
    result.expect("removed");
    count("unlink", 1, trips);
    let (result, trips) = guest.run(async |fs| fs.rmdir(b"/a/b/c/d").await);
    result.expect("removed");
    count("rmdir", 1, trips);
    let (result, trips) = guest.run(async |fs| fs.read_directory(b"/a/b/c", true, &mut |_| true).await);
    result.expect("listed");
    count("readdir", 3, trips);
    let (result, trips) = guest.run(async |fs| fs.read_directory_server(b"/a/b/c", 1, false, &mut |_| true).await);
    result.expect("listed");
    count("readdir of one server", 1, trips);
}

/// Goal: a cold client pays one lookup for each directory on the path, once.
#[test]
fn cold_paths() {
    let stage = Stage::new(2, 2, 4096, Placement::Modular);
    stage.client().get(async |fs| fs.create_all(b"/a/b/c", 0o755).await).expect("made");
    let guest = stage.client();
    let (_, trips) = guest.run(async |fs| fs.stat(b"/a/b/c/nothing").await);
    assert_eq!(trips, 4);
    let (_, trips) = guest.run(async |fs| fs.stat(b"a/b/c/nothing").await);
    assert_eq!(trips, 1);
    let (result, trips) = guest.run(async |fs| fs.lstat(b"//a/./b/../b//c/").await);
    assert_eq!((result.expect("is there").kind, trips), (Kind::Directory, 1));
}

/// Goal: what is written comes back, in every split of offsets, sizes and slices; holes read as zeros; the size is
/// right at every moment, for the writer and for others. Method: random writes and reads on several chunk sizes,
/// placements and server counts, beside a plain byte vector.
#[test]
fn contents_match_a_plain_vector() {
    let cases = [
        (1, 4096, Placement::Modular),
        (2, 47_008, Placement::Modular),
        (4, 4096, Placement::Ring),
        (3, 1 << 20, Placement::Modular),
    ];
    for (seed, (servers, chunk_size, placement)) in cases.into_iter().enumerate() {
        let stage = Stage::new(10 + seed as u64, servers, chunk_size, placement);
        let (writer, reader) = (stage.client(), stage.client());
        let how = OpenHow::creating(0o600);
        let file = writer.get(async move |fs| fs.open(b"file", &how).await).expect("created");
        let other = reader.get(async |fs| fs.open(b"file", &OpenHow::reading()).await).expect("is there");
        let mut model: Vec<u8> = Vec::new();
        for round in 0..60u64 {
            let random = |below: u64| stage.world.random() % below;
            let (offset, size) =
                (random(5 * u64::from(chunk_size)) as usize, random(3 * u64::from(chunk_size)) as usize);
            let bytes = pattern(size, round);
            if round % 3 != 2 {
                let (handle, data, cut) = (file.clone(), bytes.clone(), random(size as u64 + 1) as usize);
                let written = writer.get(async move |fs| {
                    let (head, tail) = data.split_at(cut);
                    let slices = [IoSlice::new(head), IoSlice::new(tail)];
                    fs.write_vectored_at(&handle, &slices, offset as u64).await
                });
                assert_eq!(written, Ok(size));
                if size > 0 {
                    model.resize(model.len().max(offset + size), 0);
                    model[offset..offset + size].copy_from_slice(&bytes);
                }
            }
            for (guest, handle) in [(&writer, &file), (&reader, &other)] {
                let (handle, expected) =
                    (handle.clone(), model.get(offset..(offset + size).min(model.len())).unwrap_or(&[]).to_vec());
                let found = guest.get(async move |fs| {
                    let (mut head, mut tail) = (vec![7; size / 3], vec![7; size - size / 3]);
                    let mut slices = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
                    let count = fs.read_vectored_at(&handle, &mut slices, offset as u64).await.expect("read");
                    head.extend_from_slice(&tail);
                    head.truncate(count);
                    head
                });
                assert!(found == expected, "seed {} round {round}: {size} bytes at {offset}", stage.world.seed());
            }
            let size = reader.get(async |fs| fs.stat(b"file").await).expect("is there").size;
            assert_eq!(size, model.len() as u64, "seed {} round {round}", stage.world.seed());
        }
        writer.get(async move |fs| fs.close(&file).await);
        let size = reader.get(async |fs| fs.stat(b"file").await).expect("is there").size;
        assert_eq!(size, model.len() as u64);
        writer.get(async |fs| fs.unlink(b"file").await).expect("removed");
        reader.get(async move |fs| {
            let seen = fs.stat_file(&other).await.expect("it is open");
            assert_eq!((seen.link_count, seen.size), (0, size));
            fs.close(&other).await;
        });
        let emptied = stage.world.run_until(|| stage.chunk_count() == 0, 60 * common::SECOND);
        assert!(emptied, "chunks are left after unlink");
    }
}

/// Goal: truncate up and down by one client is what another client reads, also through handles that knew another size.
#[test]
fn truncate_is_seen_by_others() {
    let stage = Stage::new(20, 3, 4096, Placement::Modular);
    let (one, two) = (stage.client(), stage.client());
    let how = OpenHow::creating(0o600);
    let file = one.get(async move |fs| fs.open(b"f", &how).await).expect("created");
    let other = two.get(async |fs| fs.open(b"f", &OpenHow::reading_and_writing()).await).expect("is there");
    let bytes = pattern(30_000, 5);
    let (handle, data) = (file.clone(), bytes.clone());
    assert_eq!(one.get(async move |fs| fs.write_at(&handle, &data, 0).await), Ok(30_000));
    for (size, expected) in
        [(9_000usize, bytes[..9_000].to_vec()), (20_000, [&bytes[..9_000], &[0; 11_000]].concat()), (0, vec![])]
    {
        let handle = other.clone();
        let cut = two.get(async move |fs| fs.truncate_file(&handle, size as u64).await).expect("cut");
        assert_eq!(cut.size, size as u64);
        for (guest, handle) in [(&one, file.clone()), (&two, other.clone())] {
            let found = guest.get(async move |fs| {
                let mut place = vec![9; 40_000];
                let count = fs.read_at(&handle, &mut place, 0).await.expect("read");
                place.truncate(count);
                place
            });
            assert!(found == expected, "after a cut to {size}");
        }
    }
    let too_far = one.get(async |fs| fs.truncate(b"f", 1 << 63).await).expect_err("beyond the largest size");
    assert_eq!(too_far.status, Status::TooLarge);
}

/// Goal: appends of two clients never overlap, and offsets up to 2^63 - 1 work while those beyond are EFBIG.
#[test]
fn append_and_large_offsets() {
    let stage = Stage::new(21, 2, 4096, Placement::Modular);
    let guests = [stage.client(), stage.client()];
    let how = OpenHow { append: true, ..OpenHow::creating(0o600) };
    let first = guests[0].get(async move |fs| fs.open(b"log", &how).await).expect("created");
    let how = OpenHow { truncate: false, ..how };
    let second = guests[1].get(async move |fs| fs.open(b"log", &how).await).expect("opened");
    let mut offsets = Vec::new();
    for round in 0..10 {
        for (guest, handle) in [(&guests[0], &first), (&guests[1], &second)] {
            let handle = handle.clone();
            offsets.push(guest.get(async move |fs| fs.append(&handle, &pattern(3000, round)).await).expect("appended"));
        }
    }
    let expected: Vec<u64> = (0..20).map(|i| i * 3000).collect();
    assert_eq!(offsets, expected);

    let handle = first.clone();
    let last = i64::MAX as u64 - 1;
    assert_eq!(guests[0].get(async move |fs| fs.write_at(&handle, b"x", last).await), Ok(1));
    assert_eq!(guests[1].get(async |fs| fs.stat(b"log").await).expect("is there").size, i64::MAX as u64);
    let handle = first.clone();
    let found = guests[0].get(async move |fs| {
        let mut place = [0; 4];
        let count = fs.read_at(&handle, &mut place, last - 1).await?;
        Ok::<_, client::Error>(place[..count].to_vec())
    });
    assert_eq!(found, Ok(vec![0, b'x']));
    let error = guests[0].get(async move |fs| fs.write_at(&first, b"xy", last).await).expect_err("beyond 2^63 - 1");
    assert_eq!((error.status, error.errno()), (Status::TooLarge, 27));
}

/// Goal: opens do what POSIX says for each combination that matters.
#[test]
fn open_flags() {
    let stage = Stage::new(22, 2, 4096, Placement::Modular);
    let guest = stage.client();
    let open = |path: &'static [u8], how: OpenHow| guest.get(async move |fs| fs.open(path, &how).await);
    let status = |path: &'static [u8], how: OpenHow| open(path, how).expect_err("must fail").status;
    let creating = OpenHow { truncate: false, ..OpenHow::creating(0o666) };
    let exclusive = OpenHow { exclusive: true, ..creating };
    assert_eq!(status(b"f", OpenHow::reading()), Status::NotFound);
    let file = open(b"f", creating).expect("created");
    guest.get(async move |fs| fs.write_at(&file, b"hello", 0).await).expect("written");
    assert_eq!(guest.get(async |fs| fs.stat(b"f").await).expect("is there").mode, 0o644, "the umask counts");
    open(b"f", creating).expect("is there already");
    assert_eq!(guest.get(async |fs| fs.stat(b"f").await).expect("is there").size, 5, "kept without truncate");
    assert_eq!(status(b"f", exclusive), Status::Exists);
    open(b"f", OpenHow { write: true, truncate: true, ..OpenHow::default() }).expect("cut");
    assert_eq!(guest.get(async |fs| fs.stat(b"f").await).expect("is there").size, 0);
    assert_eq!(status(b"f/", OpenHow::reading()), Status::NotDirectory);
    assert_eq!(status(b"f/x", OpenHow::reading()), Status::NotDirectory);
    guest.get(async |fs| fs.mkdir(b"d", 0o755).await).expect("made");
    assert_eq!(status(b"d", OpenHow::reading_and_writing()), Status::IsDirectory);
    assert_eq!(status(b"d", creating), Status::IsDirectory);
    assert_eq!(status(b"/", OpenHow::reading_and_writing()), Status::IsDirectory);
    let directory = open(b"d/", OpenHow::reading()).expect("directories open for reading");
    let error = guest.get(async move |fs| fs.read_at(&directory, &mut [0; 4], 0).await).expect_err("not a file");
    assert_eq!(error.status, Status::IsDirectory);
    assert_eq!(status(b"missing/f", creating), Status::NotFound);
    assert_eq!(status(b"g", OpenHow { chunk_size: 100, ..creating }), Status::Invalid);
    assert_eq!(open(b"g", OpenHow { chunk_size: 47_008, ..creating }).expect("made").layout.chunk_size, 47_008);
    let reading = open(b"g", OpenHow::reading()).expect("is there");
    let error = guest.get(async move |fs| fs.write_at(&reading, b"x", 0).await).expect_err("not open for writing");
    assert_eq!(error.status, Status::BadHandle);
    let long: &'static [u8] = &[b'n'; 256];
    assert_eq!(status(long, creating), Status::NameTooLong);
    open(&long[..255], creating).expect("255 bytes are fine");
}

/// Goal: symbolic links lead on wherever POSIX has them followed, `..` behind them is the true parent, and loops end.
#[test]
fn symbolic_links() {
    let stage = Stage::new(23, 3, 4096, Placement::Modular);
    let guest = stage.client();
    guest
        .get(async |fs| {
            fs.create_all(b"/real/deep", 0o755).await?;
            fs.mkdir(b"/other", 0o755).await?;
            fs.open(b"/real/beside", &OpenHow::creating(0o600)).await?;
            fs.open(b"/real/deep/file", &OpenHow::creating(0o600)).await?;
            fs.symlink(b"../real/deep", b"/other/relative").await?;
            fs.symlink(b"/real/deep", b"/absolute").await?;
            fs.symlink(b"loop2", b"/loop1").await?;
            fs.symlink(b"loop1", b"/loop2").await?;
            fs.symlink(b"nowhere", b"/dangling").await
        })
        .expect("the tree is made");
    let stat = |path: &'static [u8]| guest.get(async move |fs| fs.stat(path).await);
    let lstat = |path: &'static [u8]| guest.get(async move |fs| fs.lstat(path).await);
    let file = stat(b"/real/deep/file").expect("is there").id;
    for path in
        [&b"/absolute/file"[..], b"/other/relative/file", b"other/relative/../deep/file", b"/other/relative/./file"]
    {
        assert_eq!(stat(path).expect("leads there").id, file, "{}", String::from_utf8_lossy(path));
    }
    assert_eq!(stat(b"/other/relative/../beside").expect("the true parent").kind, Kind::File);
    assert_eq!(stat(b"/../../absolute").expect("the root is its own parent").kind, Kind::Directory);
    assert_eq!(lstat(b"/absolute").expect("is there").kind, Kind::Symlink);
    assert_eq!(lstat(b"/absolute/").expect("is there").kind, Kind::Directory);
    assert_eq!(stat(b"/loop1").expect_err("endless").status, Status::SymlinkLoop);
    assert_eq!(stat(b"/loop1/x").expect_err("endless").status, Status::SymlinkLoop);
    assert_eq!(stat(b"/dangling").expect_err("leads nowhere").status, Status::NotFound);

    let open = |path: &'static [u8], how: OpenHow| guest.get(async move |fs| fs.open(path, &how).await);
    let creating = OpenHow::creating(0o600);
    let error = open(b"/dangling", OpenHow { exclusive: true, ..creating }).expect_err("the link itself exists");
    assert_eq!(error.status, Status::Exists);
    let error = open(b"/dangling", OpenHow { no_follow: true, ..OpenHow::reading() }).expect_err("is a link");
    assert_eq!((error.status, error.errno()), (Status::SymlinkLoop, 40));
    open(b"/dangling", creating).expect("creates what it leads to");
    assert_eq!(lstat(b"/nowhere").expect("was made").kind, Kind::File);

    // A link that is changed by another client is followed anew at once.
    let second = stage.client();
    second.get(async |fs| fs.unlink(b"/absolute").await).expect("removed");
    second.get(async |fs| fs.symlink(b"/real", b"/absolute").await).expect("made anew");
    assert_eq!(stat(b"/absolute/beside").expect("the new target").kind, Kind::File);
}

/// Goal: a directory that another client removes, and makes again, is never taken for the old one.
#[test]
fn stale_directories() {
    let stage = Stage::new(24, 3, 4096, Placement::Modular);
    let (one, two) = (stage.client(), stage.client());
    one.get(async |fs| fs.create_all(b"/a/b/c", 0o755).await).expect("made");
    one.get(async |fs| fs.open(b"/a/b/c/f", &OpenHow::creating(0o600)).await).expect("made");
    two.get(async |fs| {
        fs.unlink(b"/a/b/c/f").await?;
        fs.rmdir(b"/a/b/c").await?;
        fs.rmdir(b"/a/b").await
    })
    .expect("removed");
    for path in [&b"/a/b/c/f"[..], b"/a/b/c/g", b"/a/b/x"] {
        let error = one.get(async move |fs| fs.open(path, &OpenHow::creating(0o600)).await).expect_err("is gone");
        assert_eq!(error.status, Status::NotFound, "{error}");
    }
    two.get(async |fs| fs.create_all(b"/a/b/c", 0o755).await).expect("made again");
    one.get(async |fs| fs.open(b"/a/b/c/f", &OpenHow::creating(0o600)).await).expect("goes into the new one");
    two.get(async |fs| fs.stat(b"/a/b/c/f").await).expect("is seen");

    // The same for listings, and for a directory whose id was cached as the target itself.
    two.get(async |fs| fs.mkdir(b"/l", 0o755).await).expect("made");
    one.get(async |fs| fs.stat(b"/l/.").await).expect("is there");
    two.get(async |fs| fs.rmdir(b"/l").await).expect("removed");
    let error = one.get(async |fs| fs.read_directory(b"/l", true, &mut |_| true).await).expect_err("is gone");
    assert_eq!(error.status, Status::NotFound);
    two.get(async |fs| fs.mkdir(b"/l", 0o755).await).expect("made again");
    one.get(async |fs| fs.stat(b"/l/.").await).expect("is there again");
    two.get(async |fs| fs.rmdir(b"/l").await).expect("removed again");
    let error = one.get(async |fs| fs.stat(b"/l/.").await).expect_err("is gone");
    assert_eq!(error.status, Status::NotFound);
}

/// Goal: a listing of many pages has every name once, with attributes, whichever server holds it.
#[test]
fn listings() {
    let stage = Stage::new(25, 3, 4096, Placement::Modular);
    let guest = stage.client();
    let count = 5_000;
    guest
        .get(async move |fs| {
            fs.mkdir(b"/d", 0o755).await?;
            for number in 0..count {
                let name = format!("/d/{}{number}", "a long name ".repeat(8));
                fs.open(name.as_bytes(), &OpenHow::creating(0o640)).await?;
            }
            fs.mkdir(b"/d/sub", 0o755).await
        })
        .expect("made");
    let (entries, trips) = guest.run(async |fs| {
        let mut entries = Vec::new();
        fs.read_directory(b"/d", true, &mut |entry| {
            entries.push(entry.clone());
            true
        })
        .await
        .map(|()| entries)
    });
    let entries = entries.expect("listed");
    assert!(trips > 3, "more than one page of each server");
    let names: std::collections::BTreeSet<&[u8]> = entries.iter().map(|entry| &entry.name[..]).collect();
    assert_eq!((names.len(), entries.len()), (count + 1, count + 1));
    for entry in &entries {
        let attributes = entry.attributes.as_ref().expect("names and inodes are together");
        assert_eq!((attributes.id, attributes.kind), (entry.id, entry.kind));
    }
    let shares: usize = (0..3)
        .map(|server| {
            guest.get(async move |fs| {
                let mut share = 0;
                let mut add = |_: &client::DirectoryEntry| {
                    share += 1;
                    true
                };
                fs.read_directory_server(b"/d", server, false, &mut add).await.expect("listed");
                share
            })
        })
        .sum();
    assert_eq!(shares, count + 1);
    let seen = guest.get(async |fs| {
        let mut seen = 0;
        let mut stop_early = |_: &client::DirectoryEntry| {
            seen += 1;
            seen < 10
        };
        fs.read_directory(b"/d", true, &mut stop_early).await.expect("listed");
        seen
    });
    assert_eq!(seen, 10);
    let error = guest.get(async |fs| fs.read_directory_server(b"/d", 3, false, &mut |_| true).await);
    assert_eq!(error.expect_err("there is no such server").status, Status::Invalid);
    let error = guest.get(async |fs| fs.rmdir(b"/d").await).expect_err("is full");
    assert_eq!((error.status, error.errno()), (Status::NotEmpty, 39));
}

/// Goal: whatever changes the contents of a set-user program ends that, unless the superuser does it.
/// Method: each way to change contents, over one and two servers, by root and by the file's owner.
#[test]
fn changes_of_contents_end_set_user_bits() {
    for (servers, user) in [(1, 0), (1, 1000), (2, 1000)] {
        let stage = Stage::new(27, servers, 4096, Placement::Modular);
        let guest = stage.client();
        for way in 0..6 {
            let mode = guest.get(async move |fs| {
                let own = fs.acting_as(client::Credentials::new(user, user), 0);
                fs.chmod(b"/", 0o1777).await.expect("changed");
                let file = own.open(b"f", &OpenHow { read: true, ..OpenHow::creating(0o755) }).await.expect("made");
                own.write_at(&file, &[1; 6000], 0).await.expect("written");
                own.chmod(b"f", 0o6755).await.expect("changed");
                match way {
                    0 => drop(own.write_at(&file, &[2; 6000], 0).await.expect("written")),
                    5 => drop(own.write_at(&file, &[2; 100], 5000).await.expect("written")),
                    1 => drop(own.append(&file, &[2; 3000]).await.expect("appended")),
                    2 => drop(own.truncate_file(&file, 5000).await.expect("cut")),
                    3 => own.allocate(&file, Allocation::Punch, true, 0, 5000).await.expect("punched"),
                    _ => drop(own.copy_range(&file, 0, &file, 7000, 100).await.expect("copied")),
                }
                let mode = own.stat(b"f").await.expect("is there").mode & 0o7777;
                own.close(&file).await;
                own.unlink(b"f").await.expect("removed");
                mode
            });
            let wanted = if user == 0 { 0o6755 } else { 0o755 };
            assert_eq!(mode, wanted, "way {way}, {servers} servers, user {user}");
        }
    }
}

/// Goal: attributes are set as asked, by path and by handle; what concerns the whole cluster answers.
#[test]
fn attributes_and_cluster() {
    let stage = Stage::new(26, 2, 4096, Placement::Modular);
    let guest = stage.client();
    let file = guest.get(async |fs| fs.open(b"f", &OpenHow::creating(0o600)).await).expect("made");
    let changed = guest.get(async |fs| fs.chmod(b"f", 0o4711).await).expect("changed");
    assert_eq!(changed.mode, 0o4711);
    let changed = guest.get(async |fs| fs.chown(b"f", Some(12), None).await).expect("changed");
    assert_eq!((changed.uid, changed.gid), (12, 0));
    let times = guest.get(async |fs| fs.utimens(b"f", Timestamp::Keep, Timestamp::At(-5)).await).expect("changed");
    assert_eq!(times.mtime, -5);
    let found = guest.get(async move |fs| fs.stat_file(&file).await).expect("is there");
    assert_eq!((found.mode & 0o777, found.uid, found.mtime, found.atime), (0o711, 12, -5, times.atime));
    guest.get(async |fs| fs.symlink(b"f", b"l").await).expect("made");
    let changes = client::AttributeChanges { uid: Some(7), ..Default::default() };
    let changed = guest.get(async move |fs| fs.set_attributes(b"l", false, &changes).await).expect("changed");
    assert_eq!((changed.kind, changed.uid), (Kind::Symlink, 7));
    assert_eq!(guest.get(async |fs| fs.chmod(b"missing", 0).await).expect_err("is not there").status, Status::NotFound);
    assert_eq!(guest.get(async |fs| fs.chmod(b"/", 0o1777).await).expect("the root too").mode, 0o1777);

    assert_eq!(guest.get(async |fs| fs.rmdir(b"/").await).expect_err("never").status, Status::Busy);
    assert_eq!(guest.get(async |fs| fs.mkdir(b"/", 0o755).await).expect_err("is there").status, Status::Exists);
    assert_eq!(guest.get(async |fs| fs.unlink(b"/").await).expect_err("never").status, Status::IsDirectory);
    assert_eq!(guest.get(async |fs| fs.readlink(b"f").await).expect_err("is none").status, Status::Invalid);

    let shares = guest.get(async |fs| fs.stat_file_system().await).expect("answered");
    assert_eq!(shares.len(), 2);
    let sum = client::total(&shares);
    assert!(sum.bytes_total >= sum.bytes_free && sum.bytes_free > 0 && sum.inodes == 3);
    for server in 0..2 {
        guest.get(async move |fs| fs.ping(server).await).expect("alive");
        let text = guest
            .get(async move |fs| fs.server_statistics(server, client::StatisticsFormat::JSON).await)
            .expect("answered");
        assert!(text.starts_with('{'), "{text}");
    }
    assert_eq!(guest.get(async |fs| fs.ping(2).await).expect_err("there is none").status, Status::Invalid);
}

/// Goal: a read at the end of a growing file never returns a zero for a byte that was written in between.
/// Method: on many seeds one client writes a file front to back, without a zero in it, in pieces within chunks, while
/// another reads all of it again and again through one handle; every byte that a read returns is compared.
#[test]
fn growing_file_is_never_seen_with_holes() {
    const PIECE: usize = 1500;
    const PIECES: usize = 40;
    let byte = |position: usize| (position % 255) as u8 + 1;
    for seed in 100..120 {
        let stage = Stage::new(seed, 3, 4096, Placement::Modular);
        let (writer, reader) = (stage.client(), stage.client());
        let how = OpenHow::creating(0o600);
        let file = writer.get(async move |fs| fs.open(b"f", &how).await).expect("made");
        let other = reader.get(async |fs| fs.open(b"f", &OpenHow::reading()).await).expect("is there");
        let writing = writer.spawn(async move |fs| {
            for number in 0..PIECES {
                let bytes: Vec<u8> = (number * PIECE..(number + 1) * PIECE).map(byte).collect();
                // Pieces that straddle two chunks are written part by part: only those within a chunk are atomic.
                let cut = (4096 - number * PIECE % 4096).min(PIECE);
                for (start, part) in [(0, &bytes[..cut]), (cut, &bytes[cut..])] {
                    let written = fs.write_at(&file, part, (number * PIECE + start) as u64).await;
                    assert_eq!(written, Ok(part.len()));
                }
            }
        });
        let reads = reader.get(async move |fs| {
            let (mut reads, mut before) = (0, 0);
            while before < PIECE * PIECES {
                let mut place = vec![0; PIECE * PIECES + 1];
                let count = fs.read_at(&other, &mut place, 0).await.expect("read");
                for (position, found) in place[..count].iter().enumerate() {
                    assert_eq!(*found, byte(position), "seed {seed}: byte {position} of {count}");
                }
                assert!(count >= before, "seed {seed}: the file shrank from {before} to {count}");
                before = count;
                reads += 1;
            }
            reads
        });
        assert!(stage.world.run_until(|| writing.get(), common::SECOND), "seed {seed}: the writer does not end");
        assert!(reads > 3, "seed {seed}: {reads} reads");
    }
}

/// Goal: a long list of ranges that the file ends within is answered, though the replies of many requests are held at
/// once: a server that stopped to read requests because of them goes on once they are sent.
/// Method: one server, ranges for 8 requests, of which the last ones are all beyond the end.
#[test]
fn lists_that_end_beyond_the_file_are_answered() {
    const COUNT: usize = 8 * 1024;
    let stage = Stage::new(1, 1, 1 << 20, Placement::Modular);
    let (writer, reader) = (stage.client(), stage.client());
    let size = 20_000;
    writer.get(async move |fs| {
        let file = fs.open(b"f", &OpenHow::creating(0o644)).await.expect("created");
        fs.write_at(&file, &pattern(16 * COUNT, 3), 0).await.expect("written");
        fs.truncate_file(&file, size).await.expect("cut");
        fs.close(&file).await;
    });
    let read = reader.get(async move |fs| {
        let file = fs.open(b"f", &OpenHow::reading()).await.expect("is there");
        let ranges: Vec<FileRange> = (0..COUNT as u64).map(|i| FileRange { offset: 16 * i, size: 4 }).collect();
        let mut place = vec![0; 4 * COUNT];
        let read = fs.read_list_at(&file, &ranges, &mut [IoSliceMut::new(&mut place)]).await.expect("answered");
        let expected = pattern(16 * COUNT, 3);
        for (index, range) in ranges.iter().enumerate().take(size as usize / 16) {
            assert_eq!(place[4 * index..4 * index + 4], expected[range.offset as usize..range.offset as usize + 4]);
        }
        read.into_iter().sum::<usize>()
    });
    assert_eq!(read, size as usize / 16 * 4);
}
