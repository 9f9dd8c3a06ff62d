//! Renames of directories: alone, against one another, and with a crash at every step.

use crate::support::*;
use wire::messages::*;
use wire::{FileId, LayoutWish, Operation, Status};

const ROOT: FileId = FileId::ROOT;
const SERVERS: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// To another name in the same directory.
    Beside,
    /// To another directory.
    Away,
    /// Over an empty directory.
    Over,
    /// In exchange with a directory, or with a file.
    Exchange,
    ExchangeFile,
}

const FORMS: [Form; 5] = [Form::Beside, Form::Away, Form::Over, Form::Exchange, Form::ExchangeFile];

/// The scene of a rename: where things are before it.
#[derive(Clone, Debug)]
struct Scene {
    form: Form,
    old: (FileId, String),
    new: (FileId, String),
    source: FileId,
    destination: Option<FileId>,
}

impl Scene {
    fn flags(&self) -> u32 {
        if matches!(self.form, Form::Exchange | Form::ExchangeFile) { rename_flags::EXCHANGE } else { 0 }
    }

    /// What the two names lead to before and after.
    fn before(&self) -> [Option<FileId>; 2] {
        [Some(self.source), self.destination]
    }

    fn after(&self) -> [Option<FileId>; 2] {
        let left = if self.flags() == 0 { None } else { self.destination };
        [left, Some(self.source)]
    }
}

/// Makes directories so that the old name is at server 1, the new one at server 2, and both inodes at server 3; the
/// sequencer is server 0.
async fn set_up(caller: &Caller, form: Form) -> Scene {
    let cluster = caller.cluster.clone();
    let make = async |parent: FileId, server: u32, is_file: bool| {
        // Names are parted from their inodes by a rename, so that each server has one part only.
        let first = name_at(&cluster, ROOT, 3);
        let id = match is_file {
            true => caller.create(ROOT, &first).await.expect("created").id,
            false => caller.make_directory(ROOT, &first).await.expect("made"),
        };
        let name = name_at(&cluster, parent, server);
        caller.rename_to((ROOT, &first), (parent, &name), 0).await.expect("parted");
        (id, name)
    };
    let parent = match form {
        Form::Beside => ROOT,
        _ => caller.make_directory(ROOT, "parent").await.expect("made"),
    };
    let (source, old) = make(ROOT, 1, false).await;
    let new = name_at(&cluster, parent, 2);
    let mut destination = None;
    if matches!(form, Form::Over | Form::Exchange | Form::ExchangeFile) {
        destination = Some(make(parent, 2, form == Form::ExchangeFile).await.0);
    }
    caller.create(source, "inside").await.expect("created");
    Scene { form, old: (ROOT, old), new: (parent, new), source, destination }
}

async fn rename(caller: &Caller, scene: &Scene) -> Answer<()> {
    let (old, new) = (&scene.old, &scene.new);
    caller.rename_to((old.0, &old.1), (new.0, &new.1), scene.flags()).await
}

/// What the two names lead to.
async fn look(caller: &Caller, scene: &Scene) -> [Option<FileId>; 2] {
    let mut found = [None; 2];
    for (place, (parent, name)) in found.iter_mut().zip([&scene.old, &scene.new]) {
        *place = caller.look(*parent, name).await.ok().map(|(id, _)| id);
    }
    found
}

/// The status of a look-up on each server by a path that was resolved before anything moved.
async fn old_paths(caller: &Caller, directory: FileId) -> Vec<Status> {
    let mut told = Vec::new();
    for server in 0..SERVERS {
        let name = name_at(&caller.cluster, directory, server);
        let entry = Entry { known: 0, ..entry(directory, &name) };
        told.push(status(&caller.call(server, Operation::Lookup, &EntryRequest { entry }).await));
    }
    told
}

/// Goal: directories are renamed as POSIX has it, with all that is in them, and no server lets old paths through after.
#[test]
fn forms() {
    for form in FORMS {
        let test = TestCluster::new(1, SERVERS);
        let caller = test.caller(0, 1);
        let (scene, asking) = test.run(0, async move { (set_up(&caller, form).await, caller) });
        test.settle();
        let caller = asking.clone();
        let (seen, known) = (scene.clone(), scene.clone());
        test.run(0, async move {
            rename(&asking, &seen).await.unwrap_or_else(|failure| panic!("{form:?}: {failure}"));
            assert_eq!(look(&asking, &seen).await, seen.after(), "{form:?}");
            assert!(asking.look(seen.source, "inside").await.is_ok());
            assert_eq!(old_paths(&asking, seen.source).await, [Status::StaleDirectory; SERVERS as usize]);
        });
        test.settle();
        test.restart(0);
        test.restart(1);
        test.run(0, async move {
            assert_eq!(look(&caller, &known).await, known.after(), "{form:?}");
            assert_eq!(old_paths(&caller, known.source).await, [Status::StaleDirectory; SERVERS as usize]);
        });
        test.settle();
    }
}

/// Goal: what POSIX refuses is refused, wherever names and inodes live.
#[test]
fn refusals() {
    for seed in 0..4 {
        let test = TestCluster::new(seed, 1 + seed as u32);
        let caller = test.caller(0, 1);
        test.run(0, async move {
            let a = caller.make_directory(ROOT, "a").await.expect("made");
            let b = caller.make_directory(a, "b").await.expect("made");
            let c = caller.make_directory(b, "c").await.expect("made");
            caller.create(ROOT, "file").await.expect("created");
            let told = async |from: (FileId, &str), to: (FileId, &str), flags: u32| {
                status(&caller.rename_to(from, to, flags).await)
            };
            assert_eq!(told((ROOT, "a"), (c, "x"), 0).await, Status::Invalid);
            assert_eq!(told((ROOT, "a"), (a, "x"), 0).await, Status::Invalid);
            assert_eq!(told((b, "c"), (ROOT, "a"), rename_flags::EXCHANGE).await, Status::Invalid);
            assert_eq!(told((b, "c"), (ROOT, "a"), 0).await, Status::NotEmpty);
            assert_eq!(told((b, "c"), (ROOT, "a"), rename_flags::NO_REPLACE).await, Status::Exists);
            assert_eq!(told((b, "c"), (ROOT, "file"), 0).await, Status::NotDirectory);
            assert_eq!(told((ROOT, "file"), (b, "c"), 0).await, Status::IsDirectory);
            assert_eq!(told((b, "c"), (b, "y"), rename_flags::EXCHANGE).await, Status::NotFound);
            assert_eq!(told((b, "c"), (b, "c"), 0).await, Status::Ok);
            assert_eq!(told((b, "c"), (ROOT, "c"), 0).await, Status::Ok);
            assert_eq!(told((ROOT, "a"), (c, "a"), 0).await, Status::Ok);
            caller.remove_directory(b, "c").await.expect_err("it is gone from there");
            caller.remove_directory(a, "b").await.expect("removed");
            caller.remove_directory(c, "a").await.expect("removed, parted or not");
        });
        test.settle();
    }
}

/// Goal: `mv a b/x` against `mv b a/y`, and `mv a b` against `mv b a`: one of them is done, and nothing is lost in a
/// cycle.
#[test]
fn against_each_other() {
    for (seed, inside) in (0..12).flat_map(|seed| [(seed, true), (seed, false)]) {
        let test = TestCluster::new(seed, 3);
        let setup = test.caller(0, 1);
        let (a, b) = test.run(0, async move {
            (setup.make_directory(ROOT, "a").await.expect("made"), setup.make_directory(ROOT, "b").await.expect("made"))
        });
        let wishes = match inside {
            true => [("a", (b, "x")), ("b", (a, "y"))],
            false => [("a", (ROOT, "b")), ("b", (ROOT, "a"))],
        };
        let workers: Vec<_> = wishes
            .into_iter()
            .enumerate()
            .map(|(node, (from, to))| {
                let caller = test.caller(node, 10 + node as u64);
                test.spawn(node, async move { status(&caller.rename_to((ROOT, from), to, 0).await) })
            })
            .collect();
        let outcomes: Vec<Status> = workers.iter().map(|worker| test.wait(worker)).collect();
        let done = outcomes.iter().filter(|status| **status == Status::Ok).count();
        let audits = test.settle();
        let left: u64 = audits.iter().map(|audit| audit.dentries).sum();
        if inside {
            assert!(done == 1 && left == 2, "seed {seed}: {outcomes:?}, {left} left");
            assert!(outcomes.contains(&Status::Invalid) || outcomes.contains(&Status::NotFound), "{outcomes:?}");
        } else {
            assert!(done >= 1 && left == 1, "seed {seed}: {outcomes:?}, {left} left");
        }
    }
}

/// Goal: what is created while its directory moves or is replaced is there afterwards, or its creation was refused.
/// Method: many creates in a directory that is renamed, and in one that another is renamed over, at once.
#[test]
fn creates_meanwhile() {
    for (seed, over) in (0..10).flat_map(|seed| [(seed, true), (seed, false)]) {
        let test = TestCluster::new(seed, 3);
        let setup = test.caller(0, 1);
        let (a, b) = test.run(0, async move {
            (setup.make_directory(ROOT, "a").await.expect("made"), setup.make_directory(ROOT, "b").await.expect("made"))
        });
        let target = if over { b } else { a };
        let creating = test.caller(1, 2);
        let creates = test.spawn(1, async move {
            let mut made = 0;
            for number in 0..6 {
                let name = format!("file.{number}");
                let entry = Entry { known: 0, ancestors: Ancestors(vec![ROOT]), ..entry(target, &name) };
                let flags = open_flags::CREATE | open_flags::EXCLUSIVE;
                let request =
                    OpenRequest { entry, flags, access: 0, mode: 0o644, layout: LayoutWish::default(), group: None };
                let server = creating.cluster.dentry_server(target, name.as_bytes());
                match status(&creating.call(server, Operation::Open, &request).await) {
                    Status::Ok => made += 1,
                    Status::StaleDirectory => break,
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
            made
        });
        let moving = test.caller(0, 3);
        let moved = test.spawn(0, async move { status(&moving.rename_to((ROOT, "a"), (ROOT, "b"), 0).await) });
        let (made, moved) = (test.wait(&creates), test.wait(&moved));
        let audits = test.settle();
        let left: u64 = audits.iter().map(|audit| audit.dentries).sum();
        match (over, made) {
            (true, 0) => assert_eq!((moved, left), (Status::Ok, 1), "seed {seed}"),
            (true, _) => assert_eq!((moved, left), (Status::NotEmpty, 2 + made), "seed {seed}"),
            (false, _) => assert_eq!((moved, left), (Status::Ok, 1 + made), "seed {seed}"),
        }
    }
}

/// Goal: with a server cut off no directory moves, the error names that server, and afterwards all goes on.
#[test]
fn a_server_is_cut_off() {
    let test = TestCluster::new(5, 3);
    let caller = test.caller(0, 1);
    let setup = caller.clone();
    test.run(0, async move { setup.make_directory(ROOT, "a").await.expect("made") });
    let down = (0..3).find(|server| {
        let part = [test.cluster.dentry_server(ROOT, b"a"), test.cluster.dentry_server(ROOT, b"b"), 0];
        !part.contains(server)
    });
    let down = down.unwrap_or(2);
    test.kill(down);
    let asking = caller.clone();
    let answer = test.run(0, async move { asking.rename(ROOT, "a", "b", 0).await });
    let failure = answer.expect_err("a server is down");
    assert!(matches!(failure.status, Status::Unreachable | Status::TimedOut), "{failure}");
    assert!(failure.to_string().contains(&format!("server {down}")), "{failure}");
    test.world.restart(test.servers[down as usize]);
    test.start(down);
    test.settle();
    test.run(0, async move {
        caller.look(ROOT, "a").await.expect("it stayed");
        caller.rename(ROOT, "a", "b", 0).await.expect("renamed");
        caller.look(ROOT, "b").await.expect("it moved");
    });
    test.settle();
}

/// Goal: a rename of a directory that a crash interrupts anywhere happens as a whole or not at all, once, and leaves
/// nothing; and old paths are let through by no server once it has happened.
/// Method: for each form, each server and n, the server's n-th write is torn and its last; it is started again, and the
/// caller, whose channel resends, gets its answer.
#[test]
fn renames_survive_a_crash_at_each_write() {
    for form in FORMS {
        for victim in 0..SERVERS {
            let crashes = (1..40).take_while(|crash_at| crash_during(form, victim, *crash_at)).count();
            // The mark and its end; each server has a part.
            assert!((2..39).contains(&crashes), "{form:?}, victim {victim}: struck {crashes} times");
        }
    }
}

/// False when the victim did not write that often.
fn crash_during(form: Form, victim: u32, crash_at: u64) -> bool {
    let words = format!("{form:?}, victim {victim}, write {crash_at}");
    let test = TestCluster::new(crash_at, SERVERS);
    let setup = test.caller(0, 1);
    let scene = test.run(0, async move { set_up(&setup, form).await });
    test.settle();
    let node = test.servers[victim as usize];
    test.world.crash_after_writes(node, crash_at, true);
    let caller = test.caller(1, 2);
    let (asking, seen) = (caller.clone(), scene.clone());
    let worker = test.spawn(1, async move { rename(&asking, &seen).await });
    let ended = || !test.world.is_running(node) || worker.borrow().is_some();
    assert!(test.world.run_until(ended, LIMIT), "{words}");
    // What follows the decision may strike the victim too.
    test.world.run_for(SECOND);
    let struck = !test.world.is_running(node);
    if struck {
        test.world.restart(node);
        test.start(victim);
    }
    let outcome = status(&test.wait(&worker));
    test.world.crash_after_writes(node, u64::MAX, false);
    test.settle();
    let done = match outcome {
        Status::Ok => true,
        Status::Unreachable | Status::TimedOut => false,
        other => panic!("{words}: {other:?}"),
    };
    let seen = scene.clone();
    let (found, told) = test.run(1, async move { (look(&caller, &seen).await, old_paths(&caller, seen.source).await) });
    let moved = found == scene.after();
    // An error tells nothing; success tells everything.
    assert!(moved || (!done && found == scene.before()), "{words}: told {outcome:?}, found {found:?}");
    if moved {
        assert_eq!(told, [Status::StaleDirectory; SERVERS as usize], "{words}");
    }
    struck
}

/// Goal: when rights on a directory were taken away, every server knows before the caller is told, also when servers
/// crash on the way.
/// Method: a directory at server 3; for each server and n, the server's n-th write is torn and its last.
#[test]
fn rights_survive_a_crash_at_each_write() {
    for victim in 0..SERVERS {
        let crashes = (1..30).take_while(|crash_at| crash_during_chmod(victim, *crash_at)).count();
        assert!((2..29).contains(&crashes), "victim {victim}: struck {crashes} times");
    }
}

/// False when the victim did not write that often.
fn crash_during_chmod(victim: u32, crash_at: u64) -> bool {
    let words = format!("victim {victim}, write {crash_at}");
    let test = TestCluster::new(crash_at, SERVERS);
    let name = name_at(&test.cluster, ROOT, 3);
    let setup = test.caller(0, 1);
    let directory = test.run(0, async move { setup.make_directory(ROOT, &name).await.expect("made") });
    test.settle();
    let node = test.servers[victim as usize];
    test.world.crash_after_writes(node, crash_at, true);
    let caller = test.caller(1, 2);
    let asking = caller.clone();
    let worker = test.spawn(1, async move {
        let request = SetAttributesRequest {
            file: directory,
            mask: set_mask::MODE,
            mode: 0o700,
            uid: 0,
            gid: 0,
            atime: 0,
            mtime: 0,
        };
        asking.set(request).await
    });
    let ended = || !test.world.is_running(node) || worker.borrow().is_some();
    assert!(test.world.run_until(ended, LIMIT), "{words}");
    test.world.run_for(SECOND);
    let struck = !test.world.is_running(node);
    if struck {
        test.world.restart(node);
        test.start(victim);
    }
    let answer = test.wait(&worker);
    test.world.crash_after_writes(node, u64::MAX, false);
    let told = test.run(1, async move { (caller.stat(directory).await, old_paths(&caller, directory).await) });
    let mode = told.0.expect("it is there").mode;
    match answer {
        Ok(attributes) => {
            assert_eq!((attributes.mode, mode), (0o700, 0o700), "{words}");
            assert_eq!(told.1, [Status::StaleDirectory; SERVERS as usize], "{words}");
        }
        Err(failure) => assert!(matches!(failure.status, Status::Unreachable | Status::TimedOut), "{words}: {failure}"),
    }
    test.settle();
    struck
}
