//! Names that somebody else has changed behind as well as we have here, and what `--on-conflict` makes of them.

use crate::backing::{contents, find, flush, populate, write};
use crate::support::*;
use reactor::sim::World;
use server::{ConflictPolicy, Flushing};
use std::collections::BTreeMap;
use wire::{FileId, Status};

const ROOT: FileId = FileId::ROOT;

/// What is at a path here: bytes, or nothing.
type View = BTreeMap<String, Option<Vec<u8>>>;

fn over_a_site(seed: u64, on_conflict: ConflictPolicy) -> (TestCluster, BTreeMap<String, Vec<u8>>) {
    let flushing = Flushing { on_conflict, ..MANUAL };
    TestCluster::over_a_flushed_site(seed, 1 + seed as u32 % 4, flushing, populate)
}

fn ours(path: &str) -> Vec<u8> {
    format!("ours at {path}, which is a bit longer").into_bytes()
}

fn theirs(path: &str) -> Vec<u8> {
    format!("theirs at {path}").into_bytes()
}

/// Puts a file of theirs at a path, as another inode.
fn replace(world: &World, path: &str) {
    let site = world.outsider();
    site.write("theirs", 0, &theirs(path));
    site.rename("theirs", path);
}

/// Names beside a path.
fn beside(world: &World, path: &str) -> Vec<String> {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let names = world.outsider().list(directory).into_iter().map(|name| String::from_utf8(name).expect("text"));
    let own = names.filter(|own| own.starts_with(&format!("{name}.tabane-")));
    own.map(|own| if directory.is_empty() { own } else { format!("{directory}/{own}") }).collect()
}

/// Everything at some paths.
async fn view(caller: &Caller, paths: &[String]) -> View {
    let mut view = View::new();
    for path in paths {
        let found = match find(caller, path).await {
            Ok(file) => contents(caller, &file).await.ok(),
            Err(failure) => {
                assert_eq!(failure.status, Status::NotFound, "{path}");
                None
            }
        };
        view.insert(path.clone(), found);
    }
    view
}

fn pass(test: &TestCluster) {
    let later = test.world.now() + 2 * SECOND;
    test.world.run_until(|| test.world.now() > later, LIMIT);
}

/// Files that are changed here, and one that is removed; all of them are quarrelled about afterwards.
async fn change_some(caller: &Caller) -> Vec<String> {
    let mut paths = Vec::new();
    let own = caller.make_directory(ROOT, "own").await.expect("made");
    let d = find(caller, "d").await.expect("there").id;
    for (parent, directory) in [(own, "own"), (d, "d"), (ROOT, "")] {
        let path = |name: &str| if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
        for number in 0..3 {
            // Carried once before it is changed, and made by another name, so that names and inodes part.
            for name in [format!("carried{number}"), format!("parted{number}")] {
                let made = caller.create(ROOT, &format!("{name}.made")).await.expect("made");
                write(caller, &made, 0, &ours(&path(&name))).await;
                caller.rename_to((ROOT, &format!("{name}.made")), (parent, &name), 0).await.expect("renamed");
                paths.push(path(&name));
            }
            caller.create(parent, &format!("removed{number}")).await.expect("made");
        }
    }
    let reply = flush(caller).await;
    assert_eq!((reply.failed, &reply.paths), (0, &Vec::new()));
    for (parent, directory) in [(own, "own"), (d, "d"), (ROOT, "")] {
        let path = |name: &str| if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
        for number in 0..3 {
            for name in [format!("carried{number}"), format!("parted{number}")] {
                let file = find(caller, &path(&name)).await.expect("there");
                write(caller, &file, 0, &ours(&path(&name))).await;
            }
            let made = caller.create(parent, &format!("new{number}")).await.expect("made");
            write(caller, &made, 0, &ours(&path(&format!("new{number}")))).await;
            paths.push(path(&format!("new{number}")));
            caller.unlink(parent, &format!("removed{number}")).await.expect("removed");
            paths.push(path(&format!("removed{number}")));
        }
    }
    paths
}

/// Goal: after a flush each of two versions of a name is where the policy says, here and behind, and stays there over
/// later flushes and restarts; what is not settled is listed each time, what is settled once.
#[test]
fn both_versions_are_where_the_policy_says() {
    for seed in 0..12 {
        for policy in [ConflictPolicy::Both, ConflictPolicy::Ours, ConflictPolicy::Theirs] {
            let (test, _) = over_a_site(seed, policy);
            let caller = test.caller(0, 1);
            let own = caller.clone();
            let paths = test.run(0, async move { change_some(&own).await });
            paths.iter().for_each(|path| replace(&test.world, path));
            pass(&test);
            let is_removed = |path: &str| path.contains("removed");
            for round in 0..3 {
                let own = caller.clone();
                let written = test.world.backing_bytes_written();
                let reply = test.run(0, async move { flush(&own).await });
                let at = format!("seed {seed}, {policy:?}, round {round}");
                let words = |texts: &[Vec<u8>]| -> Vec<String> {
                    texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect()
                };
                let count = paths.len() as u64;
                match policy {
                    ConflictPolicy::Both => {
                        assert_eq!((reply.failed, reply.settled), (count, 0), "{at}");
                        let more = test.world.backing_bytes_written() - written;
                        assert!(round != 1 || more == 0, "{at}: {more} bytes are put beside theirs once more");
                    }
                    _ => {
                        let settled = if round == 0 { count } else { 0 };
                        let told = words(&reply.reasons);
                        assert_eq!((reply.failed, reply.settled), (0, settled), "{at}: {told:?}");
                    }
                }
                let (own, asked) = (test.caller(1, 10 + round), paths.clone());
                let view = test.run(1, async move { view(&own, &asked).await });
                let site = test.world.outsider();
                for path in &paths {
                    let ours = (!is_removed(path)).then(|| ours(path));
                    let theirs = Some(theirs(path));
                    let here = view[path].clone();
                    let aside: Vec<Option<Vec<u8>>> =
                        beside(&test.world, path).iter().map(|path| site.read(path)).collect();
                    let expected = match policy {
                        ConflictPolicy::Both => (ours.clone(), theirs, ours.into_iter().map(Some).collect::<Vec<_>>()),
                        ConflictPolicy::Ours => (ours.clone(), ours, vec![theirs]),
                        ConflictPolicy::Theirs => (theirs.clone(), theirs, Vec::new()),
                    };
                    assert!(
                        (here.clone(), site.read(path), aside.clone()) == expected,
                        "{at}: {path}: {here:?} {aside:?}"
                    );
                }
                if round == 1 {
                    test.server_indexes().for_each(|index| test.restart(index));
                }
                test.settle();
            }
        }
    }
}

fn reasons(reply: &wire::messages::FlushReply) -> Vec<String> {
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    reply.paths.iter().zip(&reply.reasons).map(|(path, reason)| format!("{}: {}", text(path), text(reason))).collect()
}

/// Goal: a server that is killed at any step of settling a name leaves nothing of theirs removed or replaced, and what
/// it left is settled afterwards.
#[test]
fn killed_while_names_are_settled() {
    for policy in [ConflictPolicy::Ours, ConflictPolicy::Theirs] {
        for step in 1..60 {
            let flushing = Flushing { on_conflict: policy, ..MANUAL };
            let (test, _) = TestCluster::over_a_flushed_site(step, 3, flushing, populate);
            let caller = test.caller(0, 1);
            let own = caller.clone();
            let paths = test.run(0, async move { change_some(&own).await });
            // All of them would take long, and each name has its own steps.
            let paths: Vec<String> = paths.into_iter().skip(step as usize % 7).step_by(7).collect();
            paths.iter().for_each(|path| replace(&test.world, path));
            pass(&test);
            let victim = (step % 3) as u32;
            test.world.crash_after_writes(test.servers[victim as usize], step, false);
            let own = caller.clone();
            let first = test.spawn(0, async move {
                let request = wire::messages::FlushRequest { ticket: 0, paths: Vec::new(), file: FileId::default() };
                let _ = own.call(own.home(ROOT), wire::Operation::Flush, &request).await;
            });
            let is_over = || !test.world.is_running(test.servers[victim as usize]);
            let end = test.world.now() + 10 * SECOND;
            test.world.run_until(|| is_over() || test.world.now() > end, LIMIT);
            test.revive(victim);
            test.wait(&first);
            let at = format!("{policy:?}, step {step}");
            let own = test.caller(1, 2);
            let reply = test.run(1, async move { flush(&own).await });
            assert_eq!((reply.failed, reasons(&reply)), (0, Vec::new()), "{at}");
            let (own, asked) = (test.caller(1, 3), paths.clone());
            let view = test.run(1, async move { view(&own, &asked).await });
            let site = test.world.outsider();
            for path in &paths {
                let ours = (!path.contains("removed")).then(|| ours(path));
                let aside: Vec<_> = beside(&test.world, path).iter().map(|path| site.read(path)).collect();
                let (here, there) = (view[path].clone(), site.read(path));
                match policy {
                    ConflictPolicy::Theirs => {
                        assert_eq!((here, there), (Some(theirs(path)), Some(theirs(path))), "{at}: {path}");
                    }
                    _ => {
                        assert_eq!((here, there), (ours.clone(), ours), "{at}: {path}");
                        assert_eq!(aside, [Some(theirs(path))], "{at}: {path}");
                    }
                }
            }
            test.settle();
        }
    }
}

/// Goal: what can't be settled is listed, with both versions where they are: a directory of theirs, and, where ours
/// would be given up, what has another name here or was moved; and, where ours goes there, what is not whole here.
#[test]
fn what_is_not_settled_is_listed() {
    for seed in 0..8 {
        for policy in [ConflictPolicy::Ours, ConflictPolicy::Theirs] {
            let (test, files) = over_a_site(seed, policy);
            let caller = test.caller(0, 1);
            let own = caller.clone();
            test.run(0, async move {
                let made = own.create(ROOT, "made").await.expect("made");
                write(&own, &made, 0, &ours("made")).await;
                let two = own.create(ROOT, "two").await.expect("made");
                write(&own, &two, 0, &ours("two")).await;
                own.rename(ROOT, "whole", "moved", 0).await.expect("renamed");
            });
            let own = caller.clone();
            let reply = test.run(0, async move { flush(&own).await });
            assert_eq!((reply.failed, reasons(&reply)), (0, Vec::new()));
            let own = caller.clone();
            test.run(0, async move {
                // One chunk of many; the others are behind alone.
                let large = find(&own, "d/large").await.expect("there");
                write(&own, &large, 0, &[7; 4096]).await;
                own.create(ROOT, "directory").await.expect("made");
                let two = find(&own, "two").await.expect("there");
                own.link(ROOT, "two", "second").await.expect("linked");
                write(&own, &two, 0, b"ours").await;
                let small = find(&own, "small").await.expect("there");
                contents(&own, &small).await.expect("read");
                own.rename(ROOT, "small", "elsewhere", 0).await.expect("renamed");
            });
            test.world.outsider().make_directory("directory");
            ["two", "elsewhere", "d/large"].iter().for_each(|path| replace(&test.world, path));
            pass(&test);
            for round in 0..2 {
                let own = caller.clone();
                let reply = test.run(0, async move { flush(&own).await });
                let told = reasons(&reply);
                let is_told = |start: &str| told.iter().any(|line| line.starts_with(start));
                let at = format!("seed {seed}, {policy:?}, round {round}: {told:?}");
                let is_theirs = policy == ConflictPolicy::Theirs;
                assert!(is_told("directory: ") && is_told("second: ") == is_theirs, "{at}");
                assert_eq!((is_told("two: "), is_told("elsewhere: ")), (is_theirs, is_theirs), "{at}");
                assert_eq!(is_told("d/large: "), !is_theirs, "{at}");
                let paths = ["two", "elsewhere", "second", "directory", "d/large"].map(str::to_owned);
                let own = test.caller(1, 10 + round);
                let view = test.run(1, async move { view(&own, &paths).await });
                let site = test.world.outsider();
                assert!(view["two"].as_ref().is_some_and(|bytes| bytes.starts_with(b"ours")), "{at}");
                assert_eq!(view["two"], view["second"], "{at}");
                assert_eq!(view["elsewhere"].as_ref(), Some(&files["small"]), "{at}");
                assert_eq!(site.read("two") == Some(theirs("two")), is_theirs, "{at}");
                assert_eq!(site.read("second"), view["second"].clone().filter(|_| !is_theirs), "{at}");
                assert_eq!(site.read("d/large"), Some(theirs("d/large")), "{at}");
                if is_theirs {
                    assert_eq!(view["d/large"], Some(theirs("d/large")), "{at}");
                    assert_eq!(site.read("elsewhere"), Some(theirs("elsewhere")), "{at}");
                } else {
                    assert_eq!(site.read("elsewhere").as_ref(), Some(&files["small"]), "{at}");
                }
            }
            test.settle();
        }
    }
}

/// Goal: who has a file open that is given up reads and writes on; others see theirs.
#[test]
fn open_files_outlive_their_names() {
    for seed in 0..8 {
        let (test, _) = over_a_site(seed, ConflictPolicy::Theirs);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        let opened = test.run(0, async move {
            let opened = own.open_for_good(ROOT, "small", 0).await.expect("opened");
            write(&own, &opened.attributes, 0, b"ours").await;
            opened
        });
        replace(&test.world, "small");
        pass(&test);
        let (own, other) = (caller.clone(), test.caller(1, 2));
        let reply = test.run(0, async move { flush(&own).await });
        assert_eq!((reply.failed, reply.settled, reasons(&reply)), (0, 1, Vec::new()), "seed {seed}");
        test.run(0, async move {
            let file = &opened.attributes;
            write(&caller, file, 4, b", still").await;
            let (_, bytes) = caller.read(file.id, file.layout, 0, 11).await.expect("read");
            assert_eq!(bytes, b"ours, still");
            caller.close(&opened).await.expect("closed");
        });
        test.run(1, async move {
            let small = find(&other, "small").await.expect("there");
            assert_eq!(contents(&other, &small).await.expect("read"), theirs("small"));
        });
        test.settle();
    }
}
