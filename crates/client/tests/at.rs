//! Operations by identity, on behalf of several users of one client, against real servers in the simulator.

#[path = "common/simulated.rs"]
mod common;

use client::{AttributeChanges, Credentials, FileId, FileSystem, Kind, OpenHow, RENAME_NO_REPLACE, Status, Timestamp};
use common::Stage;
use std::collections::BTreeSet;
use wire::Placement;

const ROOT: FileId = FileId::ROOT;

fn creating() -> OpenHow {
    OpenHow { create: true, ..OpenHow::reading_and_writing() }
}

/// Goal: every operation on names and inodes can be had without a path, at the cost of its twin.
/// Method: each once on three servers, with the round trips counted where they are promised, and looked at by path.
#[test]
fn every_operation() {
    let stage = Stage::new(21, 3, 4096, Placement::Modular);
    let guest = stage.client();
    let (made, trips) = guest.run(async |fs| fs.mkdir_at(ROOT, b"d", 0o777).await);
    let directory = made.expect("made").id;
    // Whether the directory that it is made in has the setgid bit is asked once.
    assert_eq!(trips, 2);
    let (opened, trips) = guest.run(async move |fs| fs.open_at(directory, b"f", &creating()).await);
    let (file, attributes) = opened.expect("created");
    assert_eq!((trips, attributes.mode, attributes.kind), (2, 0o644, Kind::File));
    let (looked, trips) = guest.run(async move |fs| fs.lookup_at(directory, b"f").await);
    assert_eq!((looked.expect("is there").id, trips), (file.id, 1));
    let id = file.id;
    guest.get(async move |fs| {
        assert_eq!(fs.write_at(&file, b"hello", 0).await, Ok(5));
        let (again, attributes) = fs.open_id(id, &OpenHow::reading(), 4).await.expect("opened");
        assert_eq!((attributes.size, again.id), (5, id));
        assert_eq!(fs.read_at(&again, &mut [0; 9], 0).await, Ok(5));
        let changes =
            AttributeChanges { mode: Some(0o600), size: Some(3), mtime: Timestamp::At(7), ..Default::default() };
        let changed = fs.set_attributes_id(id, &changes).await.expect("changed");
        assert_eq!((changed.mode, changed.size, changed.mtime), (0o600, 3, 7));
        fs.symlink_at(b"nowhere", directory, b"s").await.expect("made");
        let link = fs.lookup_at(directory, b"s").await.expect("is there");
        assert_eq!(fs.readlink_id(link.id).await.expect("is a link"), b"nowhere");
        assert_eq!(fs.readlink_id(id).await.expect_err("is a file").status, Status::Invalid);
        let refused = fs.open_at(directory, b"s", &OpenHow::reading()).await.expect_err("is not followed");
        assert_eq!(refused.status, Status::SymlinkLoop);
        fs.link_id(id, ROOT, b"second").await.expect("linked");
        fs.link_id(link.id, ROOT, b"second link").await.expect("a symbolic link has names like a file");
        assert_eq!(fs.link_id(directory, ROOT, b"x").await.expect_err("a directory").status, Status::NotPermitted);
        assert_eq!(fs.lstat(b"/second").await.expect("by path").link_count, 2);
        fs.set_extended_id(id, b"user.a", b"b", 0).await.expect("set");
        assert_eq!(fs.get_extended(b"/d/f", true, b"user.a").await.expect("by path"), b"b");
        assert_eq!(fs.list_extended_id(id).await.expect("listed"), b"user.a\0");
        fs.remove_extended_id(id, b"user.a").await.expect("removed");
        let flags = RENAME_NO_REPLACE;
        let taken = fs.rename_at(directory, b"f", ROOT, b"second", flags).await.expect_err("is taken");
        assert_eq!(taken.status, Status::Exists);
        fs.rename_at(directory, b"f", ROOT, b"moved", 0).await.expect("renamed");
        assert_eq!(fs.stat(b"/moved").await.expect("by path").id, id);
        let (temporary, _) = fs.open_temporary_at(directory, &OpenHow::reading_and_writing()).await.expect("made");
        fs.link_id(temporary.id, directory, b"t").await.expect("named");
        for name in [b"s", b"t"] {
            fs.unlink_at(directory, name).await.expect("removed");
        }
        assert_eq!(fs.unlink_at(ROOT, b"d").await.expect_err("a directory").status, Status::IsDirectory);
        fs.rmdir_at(ROOT, b"d").await.expect("removed");
        assert_eq!(fs.stat(b"/d").await.expect_err("gone").status, Status::NotFound);
        for wrong in [&b""[..], b".", b"..", b"a/b"] {
            assert_eq!(fs.lookup_at(ROOT, wrong).await.expect_err("no name").status, Status::Invalid);
        }
    });
}

/// Goal: a directory that was removed is an empty one without a way in or out, and one that was moved goes on as it is.
/// Method: a second client removes, moves and closes directories that the first has known by id.
#[test]
fn directories_of_others() {
    let stage = Stage::new(22, 3, 4096, Placement::Modular);
    let (guest, other) = (stage.client(), stage.client());
    let (gone, moved) = guest.get(async |fs| {
        fs.open_at(ROOT, b"file", &creating()).await.expect("made");
        let gone = fs.mkdir_at(ROOT, b"gone", 0o777).await.expect("made").id;
        let moved = fs.mkdir_at(ROOT, b"moved", 0o777).await.expect("made").id;
        fs.mkdir_at(moved, b"inner", 0o777).await.expect("made");
        fs.chmod(b"/moved", 0o777).await.expect("changed");
        (gone, moved)
    });
    let user = |fs: &FileSystem| fs.acting_as(Credentials::new(7, 7), 0);
    let opened = guest.get(async move |fs| fs.open_id(gone, &OpenHow::reading(), 4).await).expect("opened").0;
    guest.get(async move |fs| user(&fs).open_at(moved, b"first", &creating()).await.map(drop)).expect("may");
    other.get(async |fs| {
        fs.rmdir(b"/gone").await.expect("removed");
        fs.rename(b"/moved", b"/elsewhere", 0).await.expect("moved");
    });
    guest.get(async move |fs| {
        let seen = fs.stat_file(&opened).await.expect("it is open");
        assert_eq!((seen.id, seen.kind, seen.link_count), (gone, Kind::Directory, 0));
        fs.close(&opened).await;
        assert_eq!(fs.stat_id(gone).await.expect_err("gone").status, Status::StaleFile);
        let file = fs.lookup_at(ROOT, b"file").await.expect("is there").id;
        let statuses = [
            fs.lookup_at(gone, b"x").await.map(drop),
            fs.open_at(gone, b"x", &creating()).await.map(drop),
            fs.open_temporary_at(gone, &OpenHow::reading_and_writing()).await.map(drop),
            fs.mkdir_at(gone, b"x", 0o777).await.map(drop),
            fs.symlink_at(b"x", gone, b"x").await.map(drop),
            fs.link_id(file, gone, b"x").await,
            fs.unlink_at(gone, b"x").await,
            fs.rmdir_at(gone, b"x").await,
            fs.rename_at(ROOT, b"file", gone, b"x", 0).await,
            fs.rename_at(gone, b"x", ROOT, b"y", 0).await,
        ];
        for (index, status) in statuses.into_iter().enumerate() {
            assert_eq!(status.expect_err("removed").status, Status::NotFound, "operation {index}");
        }
        let mut listing = fs.open_directory_id(gone).await.expect("nobody is asked yet");
        assert_eq!(fs.entries_from(&mut listing, 0, 10, true).await.expect("is empty"), []);
        for name in [&b"inner"[..], b"first"] {
            fs.lookup_at(moved, name).await.expect("is where it was");
        }
        user(&fs).open_at(moved, b"second", &creating()).await.expect("may still");
    });
    other.get(async |fs| fs.chmod(b"/elsewhere", 0o755).await).expect("closed");
    guest.get(async move |fs| {
        let denied = user(&fs).open_at(moved, b"third", &creating()).await.expect_err("closed to others");
        assert_eq!(denied.status, Status::AccessDenied);
        fs.open_at(moved, b"third", &creating()).await.expect("root may");
        let entered = user(&fs).open_at(moved, b"first", &OpenHow::reading()).await;
        entered.expect("what is there may still be opened");
    });
}

/// Goal: requests are on behalf of the user that the caller names, whatever others do at once over the same
/// connections. Method: three users and the client's own make, open and give away files; groups count, and so does the
/// umask.
#[test]
fn users() {
    let stage = Stage::new(23, 2, 4096, Placement::Modular);
    let guest = stage.client();
    guest.get(async |fs| {
        fs.chmod(b"/", 0o1777).await.expect("opened to all");
        let mut ann = Credentials::new(1, 10);
        ann.groups = client::Groups::new(&[77, 78]);
        let (ann, bob) = (fs.acting_as(ann, 0o077), fs.acting_as(Credentials::new(2, 77), 0o002));
        let (_, made) = ann.open_at(ROOT, b"ann", &creating()).await.expect("made");
        assert_eq!((made.uid, made.gid, made.mode), (1, 10, 0o600));
        let made = bob.mkdir(b"/bob", 0o777).await.expect("made");
        assert_eq!((made.uid, made.gid, made.mode), (2, 77, 0o775));
        let (_, root) = fs.open_at(ROOT, b"root", &creating()).await.expect("made");
        assert_eq!((root.uid, root.mode), (0, 0o644));
        let id = ann.lookup_at(ROOT, b"ann").await.expect("may look").id;
        assert_eq!(bob.open_id(id, &OpenHow::reading(), 4).await.expect_err("hers").status, Status::AccessDenied);
        bob.open_id(id, &OpenHow::reading(), 0).await.expect("unchecked");
        let group = AttributeChanges { gid: Some(77), mode: Some(0o640), ..Default::default() };
        assert_eq!(bob.set_attributes_id(id, &group).await.expect_err("hers").status, Status::NotPermitted);
        ann.set_attributes_id(id, &group).await.expect("one of her groups");
        let (handle, _) = bob.open_id(id, &OpenHow::reading(), 4).await.expect("of his group now");
        assert_eq!(bob.unlink_at(ROOT, b"ann").await.expect_err("sticky").status, Status::NotPermitted);
        assert_eq!(bob.rename(b"/ann", b"/bob/ann", 0).await.expect_err("sticky").status, Status::NotPermitted);
        // By way of group 77, which may write there.
        ann.open(b"/bob/x", &creating()).await.expect("may make names there");
        ann.unlink_at(ROOT, b"ann").await.expect("her own");
        assert_eq!(fs.stat_file(&handle).await.expect("still open").link_count, 0);
        let (again, attributes) = bob.open_id(id, &OpenHow::reading(), 4).await.expect("by identity");
        assert_eq!((again.id, attributes.link_count), (id, 0));
        for file in [&handle, &again] {
            fs.close(file).await;
        }
        let cut = AttributeChanges { size: Some(0), mtime: Timestamp::Now, ..Default::default() };
        let (_, open) = fs.open_at(ROOT, b"open", &OpenHow { mode: 0o666, ..creating() }).await.expect("made");
        fs.set_attributes_id(open.id, &AttributeChanges { mode: Some(0o666), ..Default::default() })
            .await
            .expect("set");
        bob.set_attributes_id(open.id, &cut).await.expect("who may write may cut");
    });
}

/// Goal: a listing by id shows every entry once, in one order, whatever positions its reader comes back with.
/// Method: 300 entries on four servers, read in pages of odd sizes, from each position again, and over from the start.
#[test]
fn listings() {
    let stage = Stage::new(24, 4, 4096, Placement::Modular);
    let guest = stage.client();
    guest.get(async |fs| {
        let directory = fs.mkdir_at(ROOT, b"d", 0o777).await.expect("made").id;
        for index in 0..300 {
            fs.open_at(directory, format!("file {index}").as_bytes(), &creating()).await.expect("made");
        }
        let mut listing = fs.open_directory_id(directory).await.expect("opened");
        let all = fs.entries_from(&mut listing, 0, 1000, true).await.expect("listed");
        assert_eq!(all.iter().map(|entry| &entry.name).collect::<BTreeSet<_>>().len(), 300);
        assert_eq!(all.len(), 300);
        assert!(all.windows(2).all(|pair| pair[0].next_cursor < pair[1].next_cursor));
        let mut seen = Vec::new();
        let mut position = 2;
        loop {
            let page = fs.entries_from(&mut listing, position, 7, true).await.expect("listed");
            // The reader has room for some of them only.
            let Some(last) = page.get(..page.len().min(4)).and_then(|taken| taken.last()) else { break };
            position = last.next_cursor;
            seen.extend(page.into_iter().take(4).map(|entry| entry.name));
        }
        assert_eq!(seen, all.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>());
        for index in [299, 0, 150, 17, 151] {
            let page = fs.entries_from(&mut listing, all[index].next_cursor, 1, true).await.expect("listed");
            assert_eq!(page.first().map(|entry| &entry.name), all.get(index + 1).map(|entry| &entry.name));
        }
        fs.unlink_at(directory, &all[0].name).await.expect("removed");
        let again = fs.entries_from(&mut listing, 0, 1000, true).await.expect("listed");
        assert_eq!(again[0].name, all[1].name);
        let file = again[0].id;
        let mut listing = fs.open_directory_id(file).await.expect("nobody is asked yet");
        let refused = fs.entries_from(&mut listing, 0, 1, true).await.expect_err("a file");
        assert_eq!(refused.status, Status::NotDirectory);
    });
}
