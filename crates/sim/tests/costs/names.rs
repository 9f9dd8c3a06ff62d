//! Operations on names and inodes.

use crate::stage::{Measured, Stage, creating};
use crate::table::{About, Row};
use client::{AttributeChanges, OpenHow, RENAME_EXCHANGE, Timestamp};

const FILES: Row = Row::FILES;

pub fn rows() -> Vec<Row> {
    let mut rows = single_names();
    rows.extend(several_names());
    rows.extend(directories());
    rows
}

fn single_names() -> Vec<Row> {
    vec![
        Row {
            what: "open, create (also exclusive), make a file without a name, mkdir, symlink, mknod, readlink, stat, \
                   lstat, access",
            cases: &[
                open,
                create,
                create_exclusive,
                make_temporary,
                mkdir,
                symlink,
                mknod,
                readlink,
                stat,
                lstat,
                access,
                look,
                look_id,
            ],
            ..FILES
        },
        Row {
            what: "open (also with O_TRUNC), stat, lstat, readlink by a name that was parted from its inode",
            requests: "2",
            waits: "2",
            servers_min: 2,
            cases: &[open_parted, open_to_cut_parted, stat_parted, lstat_parted, readlink_parted, look_parted],
            ..FILES
        },
        Row {
            what: "chmod, chown, utimens, truncate of a file by path",
            requests: "2",
            waits: "2",
            cases: &[chmod, chown, utimens, truncate],
            ..FILES
        },
        Row {
            what: "the same by a name that was parted from its inode",
            requests: "3",
            waits: "3",
            servers_min: 2,
            cases: &[chmod_parted, truncate_parted],
            ..FILES
        },
        Row { what: "the same, and stat, by descriptor", cases: &[stat_file, chmod_file, truncate_file], ..FILES },
        Row { what: "unlink of a file with parts on m servers", messages: "m - 1", cases: &[unlink], ..FILES },
    ]
}

fn several_names() -> Vec<Row> {
    vec![
        Row {
            what: "link, rename, a name for a file without one, where both names are on one server",
            cases: &[link_beside, rename_beside, link_open_beside],
            ..FILES
        },
        Row {
            what: "the same to a name on another server",
            waits: "2",
            messages: "2",
            servers_min: 2,
            cases: &[link, rename, link_open],
            ..FILES
        },
        Row {
            what: "rename over a file whose name and inode are on two further servers",
            waits: "3",
            messages: "4",
            servers_min: 3,
            cases: &[rename_over_parted],
            ..FILES
        },
        Row {
            what: "exchange of two names on two servers",
            waits: "2",
            messages: "2",
            servers_min: 2,
            cases: &[exchange],
            ..FILES
        },
        Row {
            what: "rename by a name that was parted from its inode, whose home has no other part in it, on one server",
            waits: "2",
            messages: "1",
            servers_min: 2,
            cases: &[rename_parted_beside],
            ..FILES
        },
        Row {
            what: "the same to a name on another server",
            waits: "3",
            messages: "3",
            servers_min: 3,
            cases: &[rename_parted],
            ..FILES
        },
        Row {
            what: "unlink by a name that was parted from its inode",
            waits: "2",
            messages: "2",
            servers_min: 2,
            cases: &[unlink_parted],
            ..FILES
        },
        Row {
            what: "the same in a sticky directory of another user",
            waits: "3",
            messages: "3",
            servers_min: 2,
            cases: &[unlink_parted_sticky],
            ..FILES
        },
        Row {
            what: "first change of an entry by a server in a directory whose home is another",
            waits: "2",
            messages: "1",
            servers_min: 2,
            cases: &[first_entry],
            ..FILES
        },
    ]
}

fn directories() -> Vec<Row> {
    const OTHERS: Row = Row { about: About::Others, ..FILES };
    vec![
        Row { what: "rmdir", waits: "2", messages: "2 (N - 1)", servers_min: 2, cases: &[rmdir], ..OTHERS },
        Row {
            what: "stat of a directory of which all servers have had entries",
            waits: "2",
            messages: "N - 1",
            servers_min: 2,
            cases: &[stat_directory, stat_whole_directory],
            ..OTHERS
        },
        Row {
            what: "utimens of such a directory",
            requests: "2",
            waits: "3",
            messages: "N - 1",
            servers_min: 2,
            cases: &[utimens_directory],
            ..OTHERS
        },
        Row {
            what: "rename of a directory within another one, both names on a server that is not the root's home",
            waits: "3",
            messages: "2 N",
            servers_min: 2,
            cases: &[rename_directory],
            ..OTHERS
        },
        Row {
            what: "rename of a directory into one that is in the root (deeper: 1 and 1 more for each directory on the \
                   way)",
            waits: "4",
            messages: "2 N + 1",
            servers_min: 2,
            cases: &[move_directory],
            ..OTHERS
        },
        Row {
            what: "chmod, chown of a directory that take rights away",
            requests: "2",
            waits: "5",
            messages: "2 N - 1",
            servers_min: 2,
            cases: &[take_rights],
            ..OTHERS
        },
        Row {
            what: "the first path after either, by a client that knows directories",
            requests: "2",
            waits: "2",
            cases: &[first_path],
            ..OTHERS
        },
        Row { what: "each directory of a path that the client does not know", cases: &[unknown_directory], ..OTHERS },
        Row {
            what: "what the rights of a directory forbid: asked about once more before it is refused",
            waits: "2",
            messages: "N - 1",
            servers_min: 2,
            cases: &[denied],
            ..OTHERS
        },
        Row {
            what: "each entry with a name parted from its inode, in a listing with attributes",
            servers_min: 2,
            cases: &[list_parted],
            ..OTHERS
        },
        Row {
            what: "listing of a small directory, also with attributes; find in it",
            requests: "N",
            cases: &[list, list_attributes, find],
            ..OTHERS
        },
        Row { what: "a listing of what one server has of it", cases: &[list_server], ..OTHERS },
    ]
}

fn open(stage: &Stage) -> Measured {
    let (path, _) = stage.file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.open(path.as_bytes(), &OpenHow::reading()).await.expect("open") })
}

fn create(stage: &Stage) -> Measured {
    let path = stage.name(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.open(path.as_bytes(), &creating()).await.expect("create") })
}

fn create_exclusive(stage: &Stage) -> Measured {
    let path = stage.name(&stage.directory(), 0, "file");
    let how = OpenHow { exclusive: true, ..creating() };
    stage.measure(move |fs| async move { fs.open(path.as_bytes(), &how).await.expect("create") })
}

fn make_temporary(stage: &Stage) -> Measured {
    let path = stage.directory();
    let how = OpenHow { temporary: true, ..OpenHow::reading_and_writing() };
    stage.measure(move |fs| async move { fs.open(path.as_bytes(), &how).await.expect("made") })
}

fn mkdir(stage: &Stage) -> Measured {
    let path = stage.name(&stage.directory(), 0, "directory");
    stage.measure(|fs| async move { fs.mkdir(path.as_bytes(), 0o755).await.expect("mkdir") })
}

fn symlink(stage: &Stage) -> Measured {
    let path = stage.name(&stage.directory(), 0, "link");
    stage.measure(|fs| async move { fs.symlink(b"target", path.as_bytes()).await.expect("symlink") })
}

fn mknod(stage: &Stage) -> Measured {
    let path = stage.name(&stage.directory(), 0, "pipe");
    stage.measure(|fs| async move { fs.make_node(path.as_bytes(), wire::Kind::Fifo, 0o600, 0).await.expect("mknod") })
}

fn readlink(stage: &Stage) -> Measured {
    let path = stage.name(&stage.directory(), 0, "link");
    let made = path.clone();
    stage.run(|fs| async move { fs.symlink(b"target", made.as_bytes()).await.expect("symlink") });
    stage.measure(|fs| async move { fs.readlink(path.as_bytes()).await.expect("readlink") })
}

fn stat(stage: &Stage) -> Measured {
    let (path, _) = stage.file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.stat(path.as_bytes()).await.expect("stat") })
}

fn lstat(stage: &Stage) -> Measured {
    let (path, _) = stage.file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.lstat(path.as_bytes()).await.expect("lstat") })
}

fn access(stage: &Stage) -> Measured {
    let (path, _) = stage.file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.access(path.as_bytes(), 4, None).await.expect("access") })
}

fn open_parted(stage: &Stage) -> Measured {
    let path = stage.parted_file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.open(path.as_bytes(), &OpenHow::reading()).await.expect("open") })
}

fn open_to_cut_parted(stage: &Stage) -> Measured {
    let path = stage.parted_file(&stage.directory(), 0, "file");
    let how = OpenHow { truncate: true, ..OpenHow::reading_and_writing() };
    stage.measure(move |fs| async move { fs.open(path.as_bytes(), &how).await.expect("open") })
}

fn stat_parted(stage: &Stage) -> Measured {
    let path = stage.parted_file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.stat(path.as_bytes()).await.expect("stat") })
}

fn lstat_parted(stage: &Stage) -> Measured {
    let path = stage.parted_file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.lstat(path.as_bytes()).await.expect("lstat") })
}

fn readlink_parted(stage: &Stage) -> Measured {
    let directory = stage.directory();
    let (old, new) = (stage.name(&directory, 1, "old"), stage.name(&directory, 0, "new"));
    let path = new.clone();
    stage.run(|fs| async move {
        fs.symlink(b"target", old.as_bytes()).await.expect("symlink");
        fs.rename(old.as_bytes(), new.as_bytes(), 0).await.expect("rename");
    });
    stage.measure(|fs| async move { fs.readlink(path.as_bytes()).await.expect("readlink") })
}

fn chmod(stage: &Stage) -> Measured {
    let (path, _) = stage.file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.chmod(path.as_bytes(), 0o600).await.expect("chmod") })
}

fn chown(stage: &Stage) -> Measured {
    let (path, _) = stage.file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.chown(path.as_bytes(), Some(7), Some(8)).await.expect("chown") })
}

fn utimens(stage: &Stage) -> Measured {
    let (path, _) = stage.file(&stage.directory(), 0, "file");
    stage.measure(
        |fs| async move { fs.utimens(path.as_bytes(), Timestamp::Keep, Timestamp::At(5)).await.expect("utimens") },
    )
}

fn truncate(stage: &Stage) -> Measured {
    let (path, _) = stage.file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.truncate(path.as_bytes(), 77).await.expect("truncate") })
}

fn chmod_parted(stage: &Stage) -> Measured {
    let path = stage.parted_file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.chmod(path.as_bytes(), 0o600).await.expect("chmod") })
}

fn truncate_parted(stage: &Stage) -> Measured {
    let path = stage.parted_file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.truncate(path.as_bytes(), 77).await.expect("truncate") })
}

fn look_at(stage: &Stage, directory: String, path: String) -> Measured {
    let parent = stage.stat(&directory).id;
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    stage.measure(move |fs| async move { fs.lookup_at(parent, name.as_bytes()).await.expect("look") })
}

fn look(stage: &Stage) -> Measured {
    let directory = stage.directory();
    let path = stage.file(&directory, 0, "file").0;
    look_at(stage, directory, path)
}

fn look_parted(stage: &Stage) -> Measured {
    let directory = stage.directory();
    let path = stage.parted_file(&directory, 0, "file");
    look_at(stage, directory, path)
}

fn look_id(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    stage.measure(move |fs| async move { fs.look_id(file.id).await.expect("look") })
}

fn stat_file(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.stat_file(&file).await.expect("stat") })
}

fn chmod_file(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    let changes = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
    stage.measure(move |fs| async move { fs.set_file_attributes(&file, &changes).await.expect("chmod") })
}

fn truncate_file(stage: &Stage) -> Measured {
    let (_, file) = stage.file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.truncate_file(&file, 100).await.expect("truncate") })
}

fn unlink(stage: &Stage) -> Measured {
    let (path, file) = stage.full_file(&stage.directory(), 0, "file");
    stage.run(|fs| async move { fs.close(&file).await });
    stage.measure(|fs| async move { fs.unlink(path.as_bytes()).await.expect("unlink") })
}

fn link_to(stage: &Stage, server: u32) -> Measured {
    let directory = stage.directory();
    let (old, new) = (stage.file(&directory, 0, "old").0, stage.name(&directory, server, "new"));
    stage.measure(|fs| async move { fs.link(old.as_bytes(), new.as_bytes()).await.expect("link") })
}

fn rename_to(stage: &Stage, server: u32) -> Measured {
    let directory = stage.directory();
    let (old, new) = (stage.file(&directory, 0, "old").0, stage.name(&directory, server, "new"));
    stage.measure(|fs| async move { fs.rename(old.as_bytes(), new.as_bytes(), 0).await.expect("rename") })
}

/// The home of a file without a name is drawn by its maker.
fn link_open_to(stage: &Stage, distance: u32) -> Measured {
    let directory = stage.directory();
    let path = directory.clone();
    let how = OpenHow { temporary: true, ..OpenHow::reading_and_writing() };
    let (home, file) = stage.run(move |fs| async move {
        loop {
            let file = fs.open(path.as_bytes(), &how).await.expect("made");
            let home = fs.cluster().home_of(file.id).expect("it has one");
            if home == 0 {
                return (home, file);
            }
            fs.close(&file).await;
        }
    });
    let name = stage.name(&directory, home + distance, "name");
    stage.measure(|fs| async move { fs.link_open(&file, name.as_bytes()).await.expect("named") })
}

fn link_beside(stage: &Stage) -> Measured {
    link_to(stage, 0)
}

fn rename_beside(stage: &Stage) -> Measured {
    rename_to(stage, 0)
}

fn link_open_beside(stage: &Stage) -> Measured {
    link_open_to(stage, 0)
}

fn link(stage: &Stage) -> Measured {
    link_to(stage, 1)
}

fn rename(stage: &Stage) -> Measured {
    rename_to(stage, 1)
}

fn link_open(stage: &Stage) -> Measured {
    link_open_to(stage, 1)
}

fn rename_over_parted(stage: &Stage) -> Measured {
    let directory = stage.directory();
    let old = stage.file(&directory, 0, "old").0;
    let new = stage.parted_file(&directory, 1, "new");
    stage.measure(|fs| async move { fs.rename(old.as_bytes(), new.as_bytes(), 0).await.expect("rename") })
}

/// Of a file with its inode on the server after that of its name.
fn rename_parted_to(stage: &Stage, server: u32) -> Measured {
    let directory = stage.directory();
    let (old, new) = (stage.parted_file(&directory, 0, "old"), stage.name(&directory, server, "new"));
    stage.measure(|fs| async move { fs.rename(old.as_bytes(), new.as_bytes(), 0).await.expect("rename") })
}

fn rename_parted_beside(stage: &Stage) -> Measured {
    rename_parted_to(stage, 0)
}

fn rename_parted(stage: &Stage) -> Measured {
    rename_parted_to(stage, 2)
}

fn exchange(stage: &Stage) -> Measured {
    let directory = stage.directory();
    let (old, new) = (stage.file(&directory, 0, "old").0, stage.file(&directory, 1, "new").0);
    let work = |fs: client::FileSystem| async move { fs.rename(old.as_bytes(), new.as_bytes(), RENAME_EXCHANGE).await };
    stage.measure(|fs| async move { work(fs).await.expect("exchange") })
}

fn unlink_parted(stage: &Stage) -> Measured {
    let path = stage.parted_file(&stage.directory(), 0, "file");
    stage.measure(|fs| async move { fs.unlink(path.as_bytes()).await.expect("unlink") })
}

fn unlink_parted_sticky(stage: &Stage) -> Measured {
    let directory = stage.directory();
    let user = stage.other(7000);
    let (first, second) = (stage.parted_file(&directory, 0, "first"), stage.parted_file(&directory, 0, "second"));
    let given = [first.clone(), second.clone()];
    stage.run(|fs| async move {
        for path in given {
            fs.chown(path.as_bytes(), Some(7000), Some(7000)).await.expect("chown");
        }
        fs.chmod(directory.as_bytes(), 0o1777).await.expect("chmod");
    });
    stage.run_as(&user, |fs| async move { fs.unlink(first.as_bytes()).await.expect("unlink") });
    stage.measure_as(&user, |fs| async move { fs.unlink(second.as_bytes()).await.expect("unlink") })
}

fn first_entry(stage: &Stage) -> Measured {
    let directory = stage.bare_directory();
    let path = stage.name(&directory, stage.home(&directory) + 1, "file");
    stage.measure(|fs| async move { fs.open(path.as_bytes(), &creating()).await.expect("create") })
}

fn rmdir(stage: &Stage) -> Measured {
    let path = stage.name(&stage.directory(), 0, "directory");
    let made = path.clone();
    stage.run(|fs| async move { fs.mkdir(made.as_bytes(), 0o755).await.expect("mkdir") });
    stage.measure(|fs| async move { fs.rmdir(path.as_bytes()).await.expect("rmdir") })
}

fn stat_directory(stage: &Stage) -> Measured {
    let path = stage.directory();
    stage.measure(|fs| async move { fs.stat(path.as_bytes()).await.expect("stat") })
}

fn stat_whole_directory(stage: &Stage) -> Measured {
    let path = stage.directory();
    stage.measure(|fs| async move { fs.stat_whole(path.as_bytes(), true).await.expect("stat") })
}

fn utimens_directory(stage: &Stage) -> Measured {
    let path = stage.directory();
    stage.measure(
        |fs| async move { fs.utimens(path.as_bytes(), Timestamp::Keep, Timestamp::At(5)).await.expect("utimens") },
    )
}

/// The server of both names is none that knows the order of tree changes by itself.
fn rename_directory(stage: &Stage) -> Measured {
    let directory = stage.directory();
    let sequencer = stage.home("/");
    let (old, new) = (stage.name(&directory, sequencer + 1, "old"), stage.name(&directory, sequencer + 1, "new"));
    let made = old.clone();
    stage.run(|fs| async move { fs.mkdir(made.as_bytes(), 0o755).await.expect("mkdir") });
    stage.measure(|fs| async move { fs.rename(old.as_bytes(), new.as_bytes(), 0).await.expect("rename") })
}

/// The walk from the new parent to the root asks that parent's home.
fn move_directory(stage: &Stage) -> Measured {
    let directory = stage.directory();
    let sequencer = stage.home("/");
    let what = format!("to{}-", &directory[1..]);
    let (from, to) = (directory.clone(), stage.name("/", sequencer + 1, &what));
    let (old, made) = (stage.name(&from, sequencer + 1, "old"), to.clone());
    stage.run(|fs| async move { fs.mkdir(made.as_bytes(), 0o755).await.expect("mkdir") });
    let (new, made) = (stage.name(&to, sequencer + 1, "new"), old.clone());
    stage.run(|fs| async move { fs.mkdir(made.as_bytes(), 0o755).await.expect("mkdir") });
    stage.measure(|fs| async move { fs.rename(old.as_bytes(), new.as_bytes(), 0).await.expect("rename") })
}

fn take_rights(stage: &Stage) -> Measured {
    let directory = stage.directory();
    let path = stage.name(&directory, stage.home("/") + 1, "directory");
    let made = path.clone();
    stage.run(|fs| async move { fs.mkdir(made.as_bytes(), 0o755).await.expect("mkdir") });
    stage.measure(|fs| async move { fs.chmod(path.as_bytes(), 0o700).await.expect("chmod") })
}

fn first_path(stage: &Stage) -> Measured {
    let directory = stage.directory();
    let (path, _) = stage.file(&directory, 0, "file");
    let other = stage.other(0);
    let known = path.clone();
    stage.run_as(&other, |fs| async move {
        fs.stat(known.as_bytes()).await.expect("stat");
        fs.stat_file_system().await.expect("statfs");
    });
    let (old, new) = (format!("{directory}/old"), format!("{directory}/new"));
    stage.run(|fs| async move {
        fs.mkdir(old.as_bytes(), 0o755).await.expect("mkdir");
        fs.rename(old.as_bytes(), new.as_bytes(), 0).await.expect("rename");
    });
    stage.run_as(&other, |fs| async move { fs.stat_file_system().await.expect("statfs") });
    stage.measure_as(&other, |fs| async move { fs.stat(path.as_bytes()).await.expect("stat") })
}

/// What a path costs beyond the file at its end, which is one.
fn beyond_one(measured: Measured) -> Measured {
    Measured { requests: measured.requests - 1, waits: measured.waits - 1, ..measured }
}

fn unknown_directory(stage: &Stage) -> Measured {
    let (path, _) = stage.file(&stage.directory(), 0, "file");
    beyond_one(stage.measure(|fs| async move {
        fs.forget_directories();
        fs.stat(path.as_bytes()).await.expect("stat")
    }))
}

/// A directory that everybody may search, and only root may write to.
fn denied(stage: &Stage) -> Measured {
    let directory = stage.directory();
    let user = stage.other(7000);
    let path = stage.name(&directory, 0, "directory");
    stage.run(|fs| async move { fs.chmod(directory.as_bytes(), 0o755).await.expect("chmod") });
    let known = stage.name(path.rsplit_once('/').expect("a path").0, 0, "file");
    stage.run_as(&user, |fs| async move { drop(fs.stat(known.as_bytes()).await) });
    beyond_one(stage.measure_as(&user, |fs| async move {
        let error = fs.mkdir(path.as_bytes(), 0o755).await.expect_err("denied");
        assert_eq!(error.status, client::Status::AccessDenied);
    }))
}

/// The listing asks all servers at once.
fn list_parted(stage: &Stage) -> Measured {
    let directory = stage.directory();
    stage.parted_file(&directory, 0, "file");
    let measured = stage.measure(|fs| async move {
        let mut stream = fs.open_directory(directory.as_bytes(), true).await.expect("opened");
        while !stream.is_at_end() {
            let mut entries = fs.next_page(&mut stream).await.expect("listed");
            fs.complete_entries(&mut entries).await.expect("completed");
        }
    });
    let servers = u64::from(stage.servers);
    Measured { requests: measured.requests - servers, waits: measured.waits - 1, ..measured }
}

fn list_of(stage: &Stage, server: Option<u32>, with_attributes: bool) -> Measured {
    let directory = stage.directory();
    for server in 0..stage.servers {
        stage.file(&directory, server, "file");
    }
    stage.measure(move |fs| async move {
        let mut count = 0;
        let mut note = |_: &client::DirectoryEntry| {
            count += 1;
            true
        };
        if let Some(server) = server {
            fs.read_directory_server(directory.as_bytes(), server, with_attributes, &mut note).await.expect("listed");
            return;
        }
        let mut stream = fs.open_directory(directory.as_bytes(), with_attributes).await.expect("opened");
        while !stream.is_at_end() {
            fs.next_page(&mut stream).await.expect("listed").iter().for_each(|entry| assert!(note(entry)));
        }
    })
}

fn list(stage: &Stage) -> Measured {
    list_of(stage, None, false)
}

fn list_attributes(stage: &Stage) -> Measured {
    list_of(stage, None, true)
}

fn list_server(stage: &Stage) -> Measured {
    list_of(stage, Some(0), false)
}

fn find(stage: &Stage) -> Measured {
    let directory = stage.directory();
    for server in 0..stage.servers {
        stage.file(&directory, server, "file");
    }
    stage.measure(move |fs| async move {
        let tests = client::tests::Tests(vec![client::tests::Test::Owner(0)]);
        let search = client::Search { tests, ..client::Search::default() };
        let mut stream = fs.open_search(directory.as_bytes(), &search).await.expect("opened");
        while !stream.is_at_end() {
            fs.next_found(&mut stream).await.expect("found");
        }
    })
}
