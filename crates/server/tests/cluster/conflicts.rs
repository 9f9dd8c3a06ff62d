//! Names that somebody else has changed behind as well as we have here, and what `--on-conflict` makes of them.

use crate::backing::{contents, find, flush, populate, write};
use crate::support::*;
use reactor::sim::World;
use server::{ConflictPolicy, Flushing};
use std::collections::BTreeMap;
use wire::messages::*;
use wire::{FileId, Operation, Status};

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
                let reply = test.run(0, async move { flush(&own).await });
                let at = format!("seed {seed}, {policy:?}, round {round}");
                let words = |texts: &[Vec<u8>]| -> Vec<String> {
                    texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect()
                };
                let count = paths.len() as u64;
                match policy {
                    ConflictPolicy::Both => assert_eq!((reply.failed, reply.settled), (count, 0), "{at}"),
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
                        ConflictPolicy::Both => {
                            (ours.clone(), theirs, ours.into_iter().map(Some).collect::<Vec<_>>())
                        }
                        ConflictPolicy::Ours => (ours.clone(), ours, vec![theirs]),
                        ConflictPolicy::Theirs => (theirs.clone(), theirs, Vec::new()),
                    };
                    assert!((here.clone(), site.read(path), aside.clone()) == expected, "{at}: {path}: {here:?} {aside:?}");
                }
                if round == 1 {
                    test.server_indexes().for_each(|index| test.restart(index));
                }
                test.settle();
            }
        }
    }
}
