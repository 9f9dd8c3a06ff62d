use crate::support::*;
use reactor::{Call, LocalFuture, Nanos};
use std::io::IoSlice;
use wire::messages::*;
use wire::{Encode, FileId, Operation, Status};

const ROOT: FileId = FileId::ROOT;
const CHUNK: u64 = 4096;
/// Moments at which the connections break, from the start of the request on.
const CUT_STEP: Nanos = 4_000;

/// What all deeds find: files `f` (in chunks of both servers) and `g`, an empty directory `d`, an attribute of `f`.
#[derive(Clone)]
struct Scene {
    caller: Caller,
    file: FileId,
}

async fn set_scene(caller: Caller) -> Scene {
    let made = caller.create(ROOT, "f").await.expect("created");
    for chunk in 0..4 {
        caller.write(made.id, made.layout, chunk * CHUNK, &[3; 4000]).await.expect("written");
    }
    caller.create(ROOT, "g").await.expect("created");
    caller.make_directory(ROOT, "d").await.expect("made");
    let scene = Scene { caller, file: made.id };
    set_extended(&scene, "user.old").await;
    scene
}

fn told<T>(answer: Answer<T>, of: impl FnOnce(T) -> String) -> String {
    match answer {
        Ok(value) => of(value),
        Err(failure) => format!("{:?}", failure.status),
    }
}

async fn set_extended(scene: &Scene, name: &str) -> String {
    let slices = [IoSlice::new(b"value")];
    let name = ExtendedName::new(name.as_bytes()).expect("a name");
    let request = SetExtendedRequest { file: scene.file, name, flags: extended_flags::CREATE };
    let mut call = Call::new(Operation::SetAttribute, &request);
    call.body = &slices;
    told(scene.caller.send(scene.caller.home(scene.file), call).await, |_| "set".into())
}

async fn ask(scene: &Scene, server: u32, operation: Operation, request: &impl Encode) -> String {
    told(scene.caller.call(server, operation, request).await, |_| "done".into())
}

async fn make_symlink(scene: &Scene) -> String {
    let request = MakeSymlinkRequest { entry: entry(ROOT, "new"), target: Target(b"f"), group: None };
    let server = scene.caller.cluster.dentry_server(ROOT, b"new");
    ask(scene, server, Operation::MakeSymlink, &request).await
}

async fn reserve(scene: &Scene) -> String {
    let request = ReserveAppendRequest { file: scene.file, size: 10 };
    let reply = scene.caller.call(scene.caller.home(scene.file), Operation::ReserveAppend, &request).await;
    told(reply, |reply| format!("at {:?}", reply.params))
}

async fn change_mode(scene: &Scene) -> String {
    let mask = set_mask::MODE;
    let request = SetAttributesRequest { file: scene.file, mask, mode: 0o600, uid: 0, gid: 0, atime: 0, mtime: 0 };
    told(scene.caller.set(request).await, |attributes| format!("{:o}, version {}", attributes.mode, attributes.version))
}

async fn write(scene: &Scene) -> String {
    let layout = scene.caller.stat(scene.file).await.expect("there").layout;
    told(scene.caller.write(scene.file, layout, CHUNK, &[9; 100]).await, |_| "written".into())
}

async fn remove_extended(scene: &Scene) -> String {
    let request = RemoveExtendedRequest { file: scene.file, name: ExtendedName::new(b"user.old").expect("a name") };
    ask(scene, scene.caller.home(scene.file), Operation::RemoveAttribute, &request).await
}

/// One request that changes something, by name; none of them could be executed twice without being told otherwise.
const DEEDS: [&str; 14] = [
    "create",
    "mkdir",
    "symlink",
    "unlink",
    "rmdir",
    "rename",
    "exchange",
    "link",
    "chmod",
    "truncate",
    "reserve",
    "write",
    "set attribute",
    "remove attribute",
];

async fn act(deed: &str, scene: Scene) -> String {
    let caller = &scene.caller;
    let plain = |answer: Answer<()>| told(answer, |()| "done".into());
    match deed {
        "create" => told(caller.create(ROOT, "new").await, |made| format!("{:?}", made.id)),
        "mkdir" => told(caller.make_directory(ROOT, "new").await, |id| format!("{id:?}")),
        "symlink" => make_symlink(&scene).await,
        "unlink" => plain(caller.unlink(ROOT, "f").await),
        "rmdir" => plain(caller.remove_directory(ROOT, "d").await),
        "rename" => plain(caller.rename(ROOT, "f", "new", 0).await),
        "exchange" => plain(caller.rename(ROOT, "f", "g", rename_flags::EXCHANGE).await),
        "link" => plain(caller.link(ROOT, "f", "new").await),
        "chmod" => change_mode(&scene).await,
        "truncate" => {
            told(caller.truncate(scene.file, 5000).await, |attributes| format!("version {}", attributes.version))
        }
        "reserve" => reserve(&scene).await,
        "write" => write(&scene).await,
        "set attribute" => set_extended(&scene, "user.new").await,
        "remove attribute" => remove_extended(&scene).await,
        other => unreachable!("{other} is no deed"),
    }
}

/// What everybody sees afterwards.
async fn look_around(caller: Caller, file: FileId) -> String {
    let mut seen = Vec::new();
    for name in ["f", "g", "d", "new"] {
        seen.push(told(caller.look(ROOT, name).await, |(id, links)| format!("{name}: {id:?} with {links} links")));
    }
    let attributes = told(caller.stat(file).await, |attributes| {
        format!("size {}, mode {:o}, version {}", attributes.size, attributes.mode, attributes.version)
    });
    seen.push(attributes);
    seen.join("; ")
}

/// Does one deed, with all connections cut at a moment of it; what it was told and what is seen then, and how long it took.
fn play(deed: &'static str, cut_at: Option<Nanos>) -> (String, String, Nanos) {
    let test = TestCluster::new(5, 2);
    // So that no request is over before there was a moment to cut at.
    test.world.set_latency(None, 3 * CUT_STEP, 60_000);
    let caller = test.caller(0, 1);
    let scene = test.run(0, set_scene(caller));
    let file = scene.file;
    let begun = test.world.now();
    let future: LocalFuture<String> = Box::pin(act(deed, scene));
    let doing = test.spawn(0, future);
    if let Some(at) = cut_at {
        test.world.run_for(at);
        test.servers.iter().for_each(|server| test.world.cut(test.callers[0], *server));
    }
    let answer = test.wait(&doing);
    let took = test.world.now() - begun;
    let other = test.caller(1, 2);
    let seen = test.run(1, look_around(other, file));
    test.settle();
    (answer, seen, took)
}

/// Goal: a request whose reply is lost is sent again over a new connection, gets the same answer, and is applied once.
/// Method: each request that changes something, with the connections cut at every moment from its start to its end;
/// answers and what others see are compared with a run in which nothing breaks.
#[test]
fn same_answer_and_once() {
    for deed in DEEDS {
        let (answer, seen, took) = play(deed, None);
        assert!(Status::ALL.iter().all(|status| answer != format!("{status:?}")), "{deed}: {answer}");
        assert!(took > 5 * CUT_STEP, "{deed} takes {took} ns: no moment to cut at");
        for step in 0..=took / CUT_STEP {
            let (answer_again, seen_again, _) = play(deed, Some(step * CUT_STEP));
            assert_eq!(answer_again, answer, "{deed}, cut after {} us", step * CUT_STEP / 1000);
            assert_eq!(seen_again, seen, "{deed}, cut after {} us", step * CUT_STEP / 1000);
        }
    }
}
