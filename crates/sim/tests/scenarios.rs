//! Single stories that random runs found to go wrong, or that they meet too seldom.

use client::{File, FileId, FileSystem, OpenHow, Status};
use reactor::sim::NodeId;
use reactor::{Class, Nanos};
use server::journal::Record;
use sim::harness::{Harness, SimClient};
use sim::profile::{Overrides, Profile, SECOND};
use std::cell::RefCell;
use std::rc::Rc;
use wire::Placement;
use wire::limits::LINK_COUNT_MAX;

const CHUNK_SIZE: u32 = 4096;
const LIMIT: Nanos = 600 * SECOND;

fn cluster(servers: u32) -> Harness {
    cluster_on(servers, Profile::new(1, &Overrides::default()).stable_media)
}

/// A cluster on media that keep what was synced when power is lost, or nothing.
fn cluster_on(servers: u32, stable_media: bool) -> Harness {
    cluster_of_seed(1, servers, stable_media)
}

fn cluster_of_seed(seed: u64, servers: u32, stable_media: bool) -> Harness {
    let overrides = Overrides { no_faults: true, servers: Some(servers), ..Overrides::default() };
    let mut profile = Profile::new(seed, &overrides);
    (profile.placement, profile.chunk_sizes) = (Placement::Modular, vec![CHUNK_SIZE]);
    (profile.client_timeout, profile.server_timeout) = (10 * SECOND, 2 * SECOND);
    (profile.latency, profile.stable_media) = ((10_000, 200_000), stable_media);
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(LIMIT).expect("servers start");
    harness
}

fn creating() -> OpenHow {
    OpenHow { create: true, ..OpenHow::reading_and_writing() }
}

/// Starts something on a client and hands back where its result will be.
fn start<T: 'static>(
    harness: &Harness,
    client: &SimClient,
    work: impl AsyncFnOnce(FileSystem) -> T + 'static,
) -> Rc<RefCell<Option<T>>> {
    let result = Rc::new(RefCell::new(None));
    let (place, file_system) = (result.clone(), client.client.file_system.clone());
    harness.world.reactor(client.node).spawn(Class::Data, async move {
        let value = work(file_system).await;
        *place.borrow_mut() = Some(value);
    });
    result
}

fn wait<T>(harness: &Harness, result: &Rc<RefCell<Option<T>>>) -> T {
    assert!(harness.world.run_until(|| result.borrow().is_some(), LIMIT), "it never ends");
    result.borrow_mut().take().expect("just seen")
}

fn run<T: 'static>(harness: &Harness, client: &SimClient, work: impl AsyncFnOnce(FileSystem) -> T + 'static) -> T {
    wait(harness, &start(harness, client, work))
}

/// The first name of one letter in a directory that belongs to a server, other than `but`.
fn name_at(cluster: &wire::Cluster, server: u32, parent: FileId, but: &str) -> String {
    let mut names = ('a'..='z').map(String::from).filter(|name| name != but);
    names.find(|name| cluster.dentry_server(parent, name.as_bytes()) == server).expect("every server has names")
}

/// A file whose home is `home`, and its path, which is found by trying.
async fn file_at(file_system: &FileSystem, home: u32) -> (String, File) {
    for index in 0.. {
        let path = format!("/file{index}");
        let file = file_system.open(path.as_bytes(), &creating()).await.expect("create");
        if file_system.cluster().home_of(file.id) == Some(home) {
            return (path, file);
        }
    }
    unreachable!("some name fits")
}

/// Goal: a server that is stopped between two truncates of a file starts again, and both are done once the other server
/// is back.
/// Method: a chunk lies on server 1, which is killed; two truncates wait for it at server 0, which is stopped and
/// started again before server 1 comes back.
#[test]
fn stop_between_two_truncates() {
    let harness = cluster(2);
    let client = harness.add_client();
    let file = run(&harness, &client, async |fs| {
        let (_, file) = file_at(&fs, 0).await;
        fs.write_at(&file, &[7; 3 * CHUNK_SIZE as usize], 0).await.expect("write");
        file
    });
    harness.kill(1);
    let truncates: Vec<_> = [100, 5000]
        .into_iter()
        .map(|size| {
            let file = file.clone();
            start(&harness, &client, async move |fs| fs.truncate_file(&file, size).await.map(|seen| seen.size))
        })
        .collect();
    harness.world.run_for(SECOND / 2);
    harness.stop(0);
    assert!(harness.world.run_until(|| harness.has_stopped(0), LIMIT));
    harness.kill(0);
    harness.restart(0);
    harness.world.run_for(SECOND / 10);
    harness.restart(1);
    harness.wait_for_servers(LIMIT).expect("servers start");
    for truncate in truncates {
        if let Err(error) = wait(&harness, &truncate) {
            assert!(matches!(error.status, Status::TimedOut | Status::Unreachable), "{error}");
        }
    }
    let size = run(&harness, &client, async move |fs| fs.stat_file(&file).await.expect("stat").size);
    assert!(size == 100 || size == 5000, "{size}");
}

/// Goal: nobody is told that a server stops in good order: what it is asked meanwhile, by clients and by other servers,
/// is done before or after its restart. Method: a truncate that waits for server 1, which is down, keeps server 0
/// stopping; clients ask it for names, bytes and attributes then, one of them for what server 2 has to ask it.
#[test]
fn a_stop_in_good_order_is_told_to_nobody() {
    let harness = cluster(3);
    let (client, other) = (harness.add_client(), harness.add_client());
    let (file, path) = run(&harness, &client, async |fs| {
        let (path, file) = file_at(&fs, 0).await;
        fs.write_at(&file, &[7; 2 * CHUNK_SIZE as usize], 0).await.expect("write");
        (file, path)
    });
    harness.kill(1);
    let held = file.clone();
    let truncate = start(&harness, &client, async move |fs| fs.truncate_file(&held, 100).await.map(|seen| seen.size));
    harness.world.run_for(SECOND / 10);
    harness.stop(0);
    harness.world.run_for(SECOND / 10);
    assert!(!harness.has_stopped(0), "nothing keeps it, so that nothing is tested");
    let written = start(&harness, &client, async move |fs| fs.write_at(&file, &[8; 50], 0).await.map(|_| ()));
    let seen = start(&harness, &other, async move |fs| {
        fs.stat(path.as_bytes()).await?;
        for index in 0..30 {
            fs.symlink(b"x", format!("/link{index}").as_bytes()).await?;
        }
        Ok::<_, client::Error>(())
    });
    let two = start(&harness, &other, async move |fs| {
        let (_, far) = file_at(&fs, 2).await;
        // Chunks of all servers; the two that can be asked come first.
        fs.write_at(&far, &[9; 2 * CHUNK_SIZE as usize], 0).await?;
        fs.stat_file(&far).await.map(|seen| assert_eq!(seen.size, 2 * u64::from(CHUNK_SIZE)))
    });
    assert!(harness.world.run_until(|| harness.has_stopped(0), LIMIT));
    harness.kill(0);
    harness.world.run_for(SECOND);
    harness.restart(0);
    harness.restart(1);
    harness.wait_for_servers(LIMIT).expect("servers start");
    wait(&harness, &written).expect("write");
    wait(&harness, &seen).expect("names");
    wait(&harness, &two).expect("a file of three servers");
    assert_eq!(wait(&harness, &truncate).expect("truncate"), 100);
}

/// Goal: fsync of a directory makes all changes of its entries survive a loss of power: those that made names, renamed
/// and removed them, on whichever server. Method: all servers lose power right after the fsync; without it, names are
/// lost.
#[test]
fn synced_directories_survive_power_loss() {
    let names_after = |synced: bool| {
        let harness = cluster_on(3, true);
        let client = harness.add_client();
        run(&harness, &client, async move |fs| {
            fs.mkdir(b"/d", 0o755).await.expect("made");
            for number in 0..20 {
                let file = fs.open(format!("/d/f{number}").as_bytes(), &creating()).await.expect("created");
                fs.close(&file).await;
            }
            fs.rename(b"/d/f0", b"/d/g", 0).await.expect("renamed");
            fs.link(b"/d/f1", b"/d/h").await.expect("linked");
            fs.unlink(b"/d/f2").await.expect("removed");
            if synced {
                let directory = fs.open(b"/d", &OpenHow::reading()).await.expect("opened");
                fs.synchronise(&directory).await.expect("synced");
            }
        });
        harness.server_indexes().for_each(|server| harness.lose_power(server));
        harness.server_indexes().for_each(|server| harness.restart(server));
        harness.wait_for_servers(LIMIT).expect("servers start");
        run(&harness, &harness.add_client(), async |fs| {
            let mut names = Vec::new();
            let mut note = |entry: &client::DirectoryEntry| {
                names.push(String::from_utf8_lossy(&entry.name).into_owned());
                true
            };
            let listed = fs.read_directory(b"/d", true, &mut note).await;
            names.sort();
            listed.map(|()| names).map_err(|error| error.status)
        })
    };
    let mut expected: Vec<String> = (3..20).map(|number| format!("f{number}")).collect();
    expected.extend(["f1", "g", "h"].map(str::to_owned));
    expected.sort();
    assert_eq!(names_after(true), Ok(expected.clone()));
    assert_ne!(names_after(false), Ok(expected));
}

/// Goal: what a client knows of the names of directories ends with the power loss that takes them: nothing is made
/// where nobody looks for it. Method: a client knows a directory by its new name; the rename is lost, and its number
/// given to another one, so that the number tells nothing.
#[test]
fn lost_names_of_directories_are_forgotten() {
    let harness = cluster_on(1, true);
    let (mover, other) = (harness.add_client(), harness.add_client());
    run(&harness, &mover, async |fs| {
        fs.mkdir(b"/d", 0o755).await.expect("made");
        fs.synchronise_all().await.expect("synced");
        fs.rename(b"/d", b"/e", 0).await.expect("renamed");
    });
    let gone = run(&harness, &other, async |fs| fs.stat(b"/e/f").await.expect_err("it is empty"));
    assert_eq!(gone.status, Status::NotFound);
    harness.lose_power(0);
    harness.restart(0);
    harness.wait_for_servers(LIMIT).expect("servers start");
    run(&harness, &mover, async |fs| {
        fs.stat(b"/").await.expect("it is connected again");
        fs.mkdir(b"/x", 0o755).await.expect("made");
        fs.rename(b"/x", b"/y", 0).await.expect("renamed");
    });
    let created = run(&harness, &other, async |fs| {
        fs.stat(b"/").await.expect("it is connected again");
        fs.open(b"/e/f", &creating()).await.map(drop).map_err(|error| error.status)
    });
    assert_eq!(created, Err(Status::NotFound), "the directory is called /d again");
    let there = run(&harness, &mover, async |fs| fs.stat(b"/d/f").await.map(drop).map_err(|error| error.status));
    assert_eq!(there, Err(Status::NotFound));
}

/// Goal: a directory's new name that somebody has gone by at another server survives power loss, and with it what he
/// made there; one that nobody has gone by may go, and what was in the directory is found under the old name then.
/// Method: a directory is renamed at one server, in half of the runs a file made in it at the other; then the first one
/// loses power, before it has made the rename durable unless somebody waited for that.
#[test]
fn names_of_directories_that_were_gone_by_survive_power_loss() {
    let mut lost_count = 0;
    for seed in 0..40 {
        let harness = cluster_of_seed(seed, 2, true);
        let client = harness.add_client();
        let is_gone_by = seed % 2 == 0;
        let at = |fs: &FileSystem, server, parent, but: &str| name_at(fs.cluster(), server, parent, but);
        let paths = run(&harness, &client, async move |fs| {
            let root = fs.cluster().home_of(FileId::ROOT).expect("it has one");
            let old = at(&fs, root, FileId::ROOT, "");
            let new = at(&fs, root, FileId::ROOT, &old);
            let (old, new) = (format!("/{old}"), format!("/{new}"));
            let directory = fs.mkdir(old.as_bytes(), 0o755).await.expect("made").id;
            // The directory's home knows of the other server's names in it: telling it makes all durable that it has
            // done so far.
            let first = at(&fs, 1 - root, directory, "");
            fs.open(format!("{old}/{first}").as_bytes(), &creating()).await.expect("created");
            fs.synchronise_all().await.expect("synced");
            fs.rename(old.as_bytes(), new.as_bytes(), 0).await.expect("renamed");
            let mut name = first.clone();
            if is_gone_by {
                name = at(&fs, 1 - root, directory, &first);
                fs.open(format!("{new}/{name}").as_bytes(), &creating()).await.expect("created");
            }
            [old + "/" + &name, new + "/" + &name]
        });
        let root = harness.cluster.home_of(FileId::ROOT).expect("it has one");
        harness.lose_power(root);
        harness.restart(root);
        harness.wait_for_servers(LIMIT).expect("servers start");
        let found = run(&harness, &harness.add_client(), async move |fs| {
            [fs.stat(paths[0].as_bytes()).await.is_ok(), fs.stat(paths[1].as_bytes()).await.is_ok()]
        });
        assert!(found[0] != found[1], "seed {seed}: {found:?}");
        assert!(found[1] || !is_gone_by, "seed {seed}: the new name is gone");
        lost_count += u32::from(found[0]);
    }
    assert!((1..=20).contains(&lost_count), "the rename was lost in {lost_count} runs");
}

/// Goal: nobody goes by a directory that went with a power loss once there may be another one of its name, though he
/// asks only servers that kept their power.
/// Method: a client makes a directory, and another one looks for a name in it that is at the other server; the first
/// server loses power before the directory is durable, in half of the runs it is killed while it starts. Somebody makes
/// the directory again, and the name in it; whoever looked before finds it.
#[test]
fn lost_directories_are_forgotten_everywhere() {
    let mut lost_count = 0;
    for seed in 0..40 {
        let harness = cluster_of_seed(seed, 2, true);
        let root = harness.cluster.home_of(FileId::ROOT).expect("it has one");
        let (maker, other) = (harness.add_client(), harness.add_client());
        let cluster = harness.cluster.clone();
        let name_at = move |server, parent| name_at(&cluster, server, parent, "");
        let path = format!("/{}", name_at(root, FileId::ROOT));
        let made = path.clone();
        let directory = run(&harness, &maker, async move |fs| fs.mkdir(made.as_bytes(), 0o755).await.expect("made").id);
        let within = format!("{path}/{}", name_at(1 - root, directory));
        let looked = within.clone();
        run(&harness, &other, async move |fs| fs.stat(looked.as_bytes()).await.map(drop)).expect_err("it is not there");
        harness.lose_power(root);
        harness.restart(root);
        if seed % 2 == 1 {
            harness.world.run_for(seed * 500_000);
            harness.kill(root);
            harness.restart(root);
        }
        harness.wait_for_servers(LIMIT).expect("servers start");
        let (again, file) = (path.clone(), within.clone());
        let is_lost = run(&harness, &harness.add_client(), async move |fs| {
            let is_lost = fs.stat(again.as_bytes()).await.is_err();
            if is_lost {
                let anew = fs.mkdir(again.as_bytes(), 0o755).await.expect("made").id;
                assert_ne!(anew, directory, "numbers are never given out twice");
            }
            fs.open(file.as_bytes(), &creating()).await.expect("created");
            is_lost
        });
        let found = run(&harness, &other, async move |fs| fs.stat(within.as_bytes()).await.map(drop));
        found.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        lost_count += u32::from(is_lost);
    }
    assert!(lost_count >= 10, "the directory was lost in {lost_count} runs");
}

/// Goal: what a client has found on its way is not kept when it has forgotten all names of directories meanwhile, for a
/// server lost power.
/// Method: one client renames a directory, another one makes a directory in it by the new name, at a server that it
/// can't reach; the server of the name loses power, in some runs before the rename is durable, and the other one is
/// reached again. Nothing is made where nobody looks for it, neither by the request that was on its way nor by the next
/// one.
#[test]
fn lost_names_of_directories_are_forgotten_on_the_way() {
    let mut lost_count = 0;
    for seed in 0..40 {
        let harness = cluster_of_seed(seed, 2, true);
        let root = harness.cluster.home_of(FileId::ROOT).expect("it has one");
        let (mover, other) = (harness.add_client(), harness.add_client());
        let cluster = harness.cluster.clone();
        let name_at = move |server: u32, parent: FileId, but: &str| name_at(&cluster, server, parent, but);
        let old = name_at(root, FileId::ROOT, "");
        let new = format!("/{}", name_at(root, FileId::ROOT, &old));
        let old = format!("/{old}");
        let (from, to, name_of) = (old.clone(), new.clone(), name_at.clone());
        let within = run(&harness, &mover, async move |fs| {
            let directory = fs.mkdir(from.as_bytes(), 0o755).await.expect("made").id;
            let first = name_of(1 - root, directory, "");
            fs.mkdir(format!("{from}/{first}").as_bytes(), 0o755).await.expect("made");
            fs.synchronise_all().await.expect("synced");
            name_of(1 - root, directory, &first)
        });
        run(&harness, &other, async |fs| fs.stat(b"/").await.map(drop)).expect("it is there");
        harness.world.partition(other.node, harness.node(1 - root));
        let (from, to_path) = (old.clone(), to.clone());
        run(&harness, &mover, async move |fs| fs.rename(from.as_bytes(), to_path.as_bytes(), 0).await)
            .expect("renamed");
        let path = format!("{to}/{within}");
        let made = path.clone();
        let making = start(&harness, &other, async move |fs| fs.mkdir(made.as_bytes(), 0o755).await.is_ok());
        harness.world.run_for(200_000);
        harness.lose_power(root);
        harness.restart(root);
        harness.wait_for_servers(LIMIT).expect("servers start");
        run(&harness, &other, async |fs| fs.stat(b"/").await.map(drop)).expect("it is connected again");
        harness.world.heal(other.node, harness.node(1 - root));
        let is_directory_made = wait(&harness, &making);
        let file = format!("{path}/f");
        let looked_for = file.clone();
        let is_made = run(&harness, &other, async move |fs| fs.open(file.as_bytes(), &creating()).await.is_ok());
        let is_found =
            run(&harness, &harness.add_client(), async move |fs| fs.stat(looked_for.as_bytes()).await.is_ok());
        assert_eq!(is_made, is_found, "seed {seed}");
        let is_lost = run(&harness, &mover, async move |fs| fs.stat(old.as_bytes()).await.is_ok());
        assert_eq!(is_directory_made, !is_lost, "seed {seed}: it is made in the directory of that name, or not at all");
        lost_count += u32::from(is_lost);
    }
    assert!((1..40).contains(&lost_count), "the rename was lost in {lost_count} runs");
}

/// Goal: a listing of a directory that is removed and made again and again ends with what there is, or with `NotFound`.
/// Method: one client lists without pause, another removes and makes the directory with a name in it.
#[test]
fn listing_of_a_restless_directory() {
    let harness = cluster(3);
    let (restless, lister) = (harness.add_client(), harness.add_client());
    let done = start(&harness, &restless, async |fs| {
        for _ in 0..200 {
            fs.mkdir(b"/d", 0o755).await.expect("mkdir");
            fs.symlink(b"x", b"/d/l").await.expect("symlink");
            fs.unlink(b"/d/l").await.expect("unlink");
            fs.rmdir(b"/d").await.expect("rmdir");
        }
    });
    while done.borrow().is_none() {
        let listing = run(&harness, &lister, async |fs| fs.read_directory(b"/d", true, &mut |_| true).await);
        if let Err(error) = listing {
            assert_eq!(error.status, Status::NotFound, "{error}");
        }
    }
}

/// Goal: a file has as many names as it may and no more, wherever these are; who is refused has changed nothing, and a
/// name that goes makes room for another. Method: an inode is written with one name less than the most, then it is
/// linked on its own server and on others, as is a symbolic link.
#[test]
fn as_many_names_as_a_file_may_have() {
    let harness = cluster(2);
    let client = harness.add_client();
    let file = run(&harness, &client, async |fs| file_at(&fs, 0).await.1);
    let symlink = run(&harness, &client, async |fs| {
        fs.symlink(b"nowhere", b"/symlink").await.expect("symlink");
        fs.lstat(b"/symlink").await.expect("lstat").id
    });
    for id in [file.id, symlink] {
        let home = harness.server(harness.cluster.home_of(id).expect("a home"));
        let mut inode = home.inode(id).expect("an inode");
        inode.attributes.link_count = LINK_COUNT_MAX - 1;
        home.damage(vec![Record::InodePut(inode)]).expect("written");
        run(&harness, &client, async move |fs| {
            let link = async |name: &[u8]| fs.link_id(id, FileId::ROOT, name).await;
            let refused = async |name: &[u8]| link(name).await.expect_err("one too many").status;
            link(b"last").await.expect("the last name");
            for index in 0..8 {
                let name = format!("beyond{index}");
                assert_eq!(refused(name.as_bytes()).await, Status::TooManyLinks);
                assert_eq!(
                    fs.lstat(format!("/{name}").as_bytes()).await.expect_err("no name").status,
                    Status::NotFound
                );
            }
            assert_eq!(fs.stat_id(id).await.expect("stat").link_count, LINK_COUNT_MAX);
            fs.rename(b"/last", b"/renamed", 0).await.expect("a rename takes no name more");
            fs.unlink(b"/renamed").await.expect("unlink");
            link(b"after").await.expect("room for one");
            assert_eq!(refused(b"beyond").await, Status::TooManyLinks);
            fs.unlink(b"/after").await.expect("unlink");
        });
    }
}

/// Goal: what arrives behind a reset does not fill the gap that the reset stands for.
/// Method: connections are cut all the time under small and large writes; no call may fail for broken framing.
#[test]
fn cuts_lose_the_end_only() {
    let harness = cluster(1);
    let client = harness.add_client();
    let server: NodeId = harness.node(0);
    let done = start(&harness, &client, async |fs| {
        let file = fs.open(b"/f", &creating()).await.expect("create");
        for round in 0..300u64 {
            let bytes = vec![round as u8; 1 + (round as usize * 97) % 9000];
            fs.write_at(&file, &bytes, round % 5000).await.expect("write");
        }
    });
    let mut round = 0;
    while done.borrow().is_none() {
        round += 1;
        harness.world.run_until(|| done.borrow().is_some(), 3_000_000 + round % 7 * 2_500_000);
        harness.world.cut(client.node, server);
        assert!(harness.world.now() < LIMIT, "it never ends");
    }
}

/// Goal: a truncate that happened is told as such, though the file was removed before all servers had followed.
/// Method: the server of the second chunk is parted from the home when the truncate and then the removal come.
#[test]
fn truncate_before_removal() {
    let harness = cluster(2);
    let (writer, remover) = (harness.add_client(), harness.add_client());
    let (path, file) = run(&harness, &writer, async |fs| {
        let (path, file) = file_at(&fs, 0).await;
        fs.write_at(&file, &[7; 2 * CHUNK_SIZE as usize], 0).await.expect("write");
        (path, file)
    });
    harness.world.partition(harness.node(0), harness.node(1));
    let truncate = start(&harness, &writer, async move |fs| fs.truncate_file(&file, 100).await.map(|seen| seen.size));
    harness.world.run_for(SECOND / 100);
    run(&harness, &remover, async move |fs| fs.unlink(path.as_bytes()).await).expect("unlink");
    harness.world.heal_all();
    assert_eq!(wait(&harness, &truncate), Ok(100));
}

/// Goal: whoever still has the id of a removed directory is not told that a name is missing which is in the new one.
/// Method: one server is parted from the directory's home so that it is marked and does not hear that the directory is
/// gone, at each of many moments; a client with the old id asks that server for a name in the new directory, and lists.
#[test]
fn names_in_a_directory_made_again() {
    let mut met = 0;
    for step in 0..60 {
        let harness = cluster(3);
        let (maker, old) = (harness.add_client(), harness.add_client());
        let id = run(&harness, &maker, async |fs| fs.mkdir(b"/d", 0o755).await.expect("mkdir").id);
        let missing = run(&harness, &old, async |fs| fs.stat(b"/d/x").await.expect_err("nothing is there").status);
        assert_eq!(missing, Status::NotFound);
        let home = harness.cluster.home_of(id).expect("a home");
        let parted = (home + 1) % 3;
        let removal = start(&harness, &maker, async |fs| fs.rmdir(b"/d").await);
        harness.world.run_for(step * 20_000);
        harness.world.partition(harness.node(home), harness.node(parted));
        let decided = harness.world.run_until(|| removal.borrow().is_some(), SECOND / 10);
        if !decided {
            continue;
        }
        wait(&harness, &removal).expect("the directory is empty");
        let name = run(&harness, &maker, async move |fs| {
            let id = fs.mkdir(b"/d", 0o755).await.expect("mkdir again").id;
            let names = (0..).map(|index| format!("n{index}"));
            let mut there = names.filter(|name| fs.cluster().dentry_server(id, name.as_bytes()) == parted);
            there.next().expect("some name fits")
        });
        // The parted server announces itself to the new directory's home before its first entry there.
        let entry = format!("/d/{name}");
        let making = start(&harness, &maker, async move |fs| fs.symlink(b"x", entry.as_bytes()).await);
        harness.world.run_for(SECOND / 20);
        harness.world.heal_all();
        wait(&harness, &making).expect("symlink");
        // The server is asked by the old id; the name may be at another one by that, so all are tried.
        let asked = start(&harness, &old, async move |fs| {
            let mut seen = 0;
            let mut count = |_: &client::DirectoryEntry| {
                seen += 1;
                true
            };
            fs.read_directory_server(b"/d", parted, false, &mut count).await.map(|()| seen)
        });
        let looked = start(&harness, &old, async move |fs| fs.lstat(format!("/d/{name}").as_bytes()).await);
        harness.world.run_for(SECOND / 20);
        harness.world.heal_all();
        assert_eq!(wait(&harness, &asked), Ok(1), "step {step}");
        assert!(wait(&harness, &looked).is_ok(), "step {step}");
        met += 1;
    }
    assert!(met > 5, "the server was parted between its mark and the decision {met} times");
}

/// Goal: a read that overlaps the removal of its file gets the bytes or an error, never zeros in their place.
/// Method: the home is near and the server of the second chunk is far, so that this chunk is freed before the read
/// comes there, after the home has told the size.
#[test]
fn read_during_removal() {
    let harness = cluster(3);
    let (reader, remover) = (harness.add_client(), harness.add_client());
    let (path, file) = run(&harness, &reader, async |fs| {
        let (path, file) = file_at(&fs, 0).await;
        fs.write_at(&file, &[7; 2 * CHUNK_SIZE as usize], 0).await.expect("write");
        fs.close(&file).await;
        (path, file)
    });
    harness.world.run_for(SECOND);
    harness.world.set_latency(Some((reader.node, harness.node(1))), 50_000_000, 50_000_000);
    let read = start(&harness, &reader, async move |fs| {
        let mut place = vec![0; 2 * CHUNK_SIZE as usize];
        fs.read_at(&file, &mut place, 0).await.map(|size| (size, place))
    });
    harness.world.run_for(2_000_000);
    run(&harness, &remover, async move |fs| fs.unlink(path.as_bytes()).await).expect("unlink");
    match wait(&harness, &read) {
        Ok((size, place)) => assert!(size == place.len() && place.iter().all(|byte| *byte == 7)),
        Err(error) => assert_eq!(error.status, Status::StaleFile, "{error}"),
    }
}

/// Goal: exactly once also when far more is asked at a time than a window holds, over connections that keep breaking.
/// Method: one client makes 200 files at once, each exclusively and over several servers, reads them back and removes
/// them, while all its connections and some between servers are cut again and again.
#[test]
fn more_than_a_window_at_once() {
    const COUNT: usize = 200;
    let harness = cluster(4);
    harness.world.set_latency(None, 500_000, 1_500_000);
    harness.world.set_socket_buffer(3_000);
    let client = harness.add_client();
    let stories: Vec<_> = (0..COUNT)
        .map(|index| {
            start(&harness, &client, async move |fs| {
                let path = format!("/file{index}");
                let how = OpenHow { exclusive: true, ..creating() };
                let file = fs.open(path.as_bytes(), &how).await.expect("create");
                let bytes = vec![index as u8 + 1; 2 * CHUNK_SIZE as usize + index * 10];
                assert_eq!(fs.write_at(&file, &bytes, 100).await.expect("write"), bytes.len());
                let mut place = vec![0xee; bytes.len() + 200];
                let size = fs.read_at(&file, &mut place, 0).await.expect("read");
                assert!(size == bytes.len() + 100 && place[..100] == [0; 100] && place[100..size] == bytes);
                fs.unlink(path.as_bytes()).await.expect("unlink");
            })
        })
        .collect();
    let mut round = 0;
    while stories.iter().any(|story| story.borrow().is_none()) {
        round += 1;
        harness.world.run_until(|| false, 10_000_000 + round % 5 * 3_000_000);
        let server = (round % 4) as u32;
        harness.world.cut(client.node, harness.node(server));
        harness.world.cut(harness.node(server), harness.node((server + 1) % 4));
        assert!(harness.world.now() < LIMIT, "it never ends");
    }
    assert!(round > 5, "connections were cut {round} times");
}

/// Goal: a listing of many pages shows every name that stayed exactly once, whatever comes and goes meanwhile.
/// Method: long names fill several pages of each server; half of them stay, the others are removed and made again while
/// the directory is listed, whole and by server.
#[test]
fn listing_in_pages() {
    const COUNT: usize = 3000;
    let name = |index: usize| format!("/d/{index:06}{}", "x".repeat(200));
    let harness = cluster(2);
    let (maker, lister) = (harness.add_client(), harness.add_client());
    run(&harness, &maker, async move |fs| {
        fs.mkdir(b"/d", 0o755).await.expect("mkdir");
        for index in 0..COUNT {
            fs.symlink(b"x", name(index).as_bytes()).await.expect("symlink");
        }
    });
    let restless = start(&harness, &maker, async move |fs| {
        for index in (1..COUNT).step_by(2).chain((1..COUNT).step_by(2)) {
            fs.unlink(name(index).as_bytes()).await.expect("unlink");
            fs.symlink(b"x", name(index).as_bytes()).await.expect("symlink");
        }
    });
    let mut listings = 0;
    while restless.borrow().is_none() {
        listings += 1;
        let by_server = listings % 2 == 0;
        let names = run(&harness, &lister, async move |fs| {
            let mut names = Vec::new();
            let mut keep = |entry: &client::DirectoryEntry| {
                names.push(String::from_utf8_lossy(&entry.name[..6]).into_owned());
                true
            };
            if by_server {
                for server in 0..2 {
                    fs.read_directory_server(b"/d", server, true, &mut keep).await.expect("list");
                }
            } else {
                fs.read_directory(b"/d", true, &mut keep).await.expect("list");
            }
            names
        });
        let mut sorted = names.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), names.len(), "a name is shown twice");
        for index in (0..COUNT).step_by(2) {
            assert!(sorted.binary_search(&format!("{index:06}")).is_ok(), "{index} is missed");
        }
    }
    assert!(listings > 5, "the directory was listed {listings} times");
}

/// Goal: a read at a server that has gone takes no longer than that is waited for once, also where the client was about
/// to ask it for places in the memory that it lends.
/// Method: a client reads a chunk, and other ones when the server is cut off, of which it does not hear.
#[test]
fn a_server_that_is_gone_is_waited_for_once() {
    const TIMEOUT: Nanos = 10 * SECOND;
    let overrides = Overrides { no_faults: true, servers: Some(1), ..Overrides::default() };
    let mut profile = Profile::new(1, &overrides);
    profile.remember_all();
    (profile.placement, profile.chunk_sizes) = (Placement::Modular, vec![CHUNK_SIZE]);
    (profile.stable_media, profile.checksums, profile.short_circuit) = (false, false, true);
    (profile.client_timeout, profile.server_timeout) = (TIMEOUT, 2 * SECOND);
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(LIMIT).expect("servers start");
    let client = harness.add_client();
    let file = run(&harness, &client, async |fs| {
        let file = fs.open(b"/f", &creating()).await.expect("made");
        let bytes = [7; 64 * CHUNK_SIZE as usize];
        assert_eq!(fs.write_at(&file, &bytes, 0).await, Ok(bytes.len()));
        let mut place = [0; CHUNK_SIZE as usize];
        assert_eq!(fs.read_at(&file, &mut place, 0).await, Ok(place.len()));
        file
    });
    harness.world.partition(client.node, harness.node(0));
    let before = harness.world.now();
    let read = run(&harness, &client, async move |fs| {
        let mut place = [0; 2 * CHUNK_SIZE as usize];
        fs.read_at(&file, &mut place, 40 * u64::from(CHUNK_SIZE)).await
    });
    let took = harness.world.now() - before;
    assert!(took < TIMEOUT + TIMEOUT / 5, "{took} ns");
    assert_eq!(read.map_err(|error| error.status), Err(Status::TimedOut));
}
