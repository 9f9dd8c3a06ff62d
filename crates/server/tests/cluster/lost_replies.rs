use crate::support::*;
use reactor::{Call, LocalFuture, Nanos};
use std::io::IoSlice;
use wire::layout::ChunkRange;
use wire::messages::*;
use wire::operation::LEVEL_CLIENT;
use wire::{Attributes, Decode, Encode, FileId, Kind, Layout, Operation, Status};

const ROOT: FileId = FileId::ROOT;
const CHUNK: u64 = 4096;
/// Moments at which the connections break, from the start of the request on.
const CUT_STEP: Nanos = 4_000;

/// Goal: a change whose answer is larger than what sessions keep is refused, and the server goes on.
/// Method: such a record, of the largest size and beyond it.
#[test]
fn answers_that_are_too_large_to_keep() {
    let test = TestCluster::new(8, 1);
    let server = test.server(0);
    let keep = |size: usize| {
        let reply = vec![7; size];
        server.damage(vec![server::journal::Record::Outcome { session: 1, sequence: 1, reply: &reply }])
    };
    assert_eq!(keep(wire::limits::OUTCOME_SIZE_MAX), Ok(()));
    assert!(keep(wire::limits::OUTCOME_SIZE_MAX + 1).is_err_and(|words| words.contains("larger")));
    let caller = test.caller(0, 1);
    test.run(0, async move {
        caller.create(ROOT, "f").await.expect("created");
    });
}

/// What all deeds find: files `f` (in chunks of both servers) and `g`, an empty directory `d`, an attribute of `f`, a
/// lock of it, and an open file without a name.
#[derive(Clone)]
struct Scene {
    caller: Caller,
    file: FileId,
    layout: Layout,
    other: Attributes,
    nameless: FileId,
}

async fn set_scene(caller: Caller) -> Scene {
    let made = caller.create(ROOT, "f").await.expect("created");
    for chunk in 0..4 {
        caller.write(made.id, made.layout, chunk * CHUNK, &[3; 4000]).await.expect("written");
    }
    let other = caller.create(ROOT, "g").await.expect("created");
    caller.make_directory(ROOT, "d").await.expect("made");
    let nameless = caller.make_temporary(1, true).await.expect("made").attributes.id;
    let scene = Scene { caller, file: made.id, layout: made.layout, other, nameless };
    set_extended(&scene, "user.old").await;
    lock(&scene, 1).await;
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

async fn make_node(scene: &Scene) -> String {
    let request = MakeNodeRequest { entry: entry(ROOT, "new"), kind: Kind::Fifo, mode: 0o600, device: 0, group: None };
    let server = scene.caller.cluster.dentry_server(ROOT, b"new");
    ask(scene, server, Operation::MakeNode, &request).await
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

/// Nobody is granted anything here, where stores keep checksums; what is granted is committed in the simulator.
async fn commit_registered(scene: &Scene) -> String {
    let layout = scene.caller.stat(scene.file).await.expect("there").layout;
    let piece = ChunkRange { chunk_index: 0, chunk_offset: 0, size: 4096 };
    let places = vec![RegisteredPlace { generation: 1, at: 0 }];
    let request = CommitRegisteredRequest { file: scene.file, layout, pieces: Pieces(vec![piece]), places };
    let server = scene.caller.cluster.chunk_server(scene.file, &layout, 0);
    let reply = scene.caller.call(server, Operation::CommitRegistered, &request).await;
    told(reply, |reply| format!("{:?}", CommitRegisteredReply::from_bytes(&reply.params)))
}

async fn remove_extended(scene: &Scene) -> String {
    let request = RemoveExtendedRequest { file: scene.file, name: ExtendedName::new(b"user.old").expect("a name") };
    ask(scene, scene.caller.home(scene.file), Operation::RemoveAttribute, &request).await
}

async fn open_by_id(scene: &Scene) -> String {
    let request = OpenIdRequest { file: scene.file, flags: open_flags::TRUNCATE, access: 0 };
    let reply = scene.caller.call(scene.caller.home(scene.file), Operation::OpenId, &request).await;
    told(reply, |reply| {
        let opened = OpenReply::from_bytes(&reply.params).expect("the reply is well-formed");
        format!("number {}, version {}", opened.open_number, opened.attributes.version)
    })
}

async fn append(scene: &Scene) -> String {
    let bytes = [5; 9000];
    let slices = [IoSlice::new(&bytes)];
    let call = Call {
        body: &slices,
        ..Call::new(Operation::Append, &AppendRequest { file: scene.file, sum: Some(crc32c::crc32c(&bytes)) })
    };
    let reply = scene.caller.send(scene.caller.home(scene.file), call).await;
    told(reply, |reply| format!("at {:?}", reply.params))
}

/// Room beyond the end, at the home, which is told that the file grows.
async fn allocate(scene: &Scene) -> String {
    let (file, layout, mode) = (scene.file, scene.layout, allocate_mode::RESERVE);
    let request = AllocateRequest { file, layout, offset: 4 * CHUNK, size: CHUNK, mode, grow: true };
    ask(scene, scene.caller.home(file), Operation::Allocate, &request).await
}

/// A chunk of `f` becomes the second one of `g`.
async fn copy(scene: &Scene) -> String {
    let (source, target) = (scene.file, &scene.other);
    let piece = |layout: &Layout, offset| -> ChunkRange { layout.pieces(offset, 4000).next().expect("a piece") };
    let request = CopyRangeRequest {
        source,
        source_layout: scene.layout,
        from: piece(&scene.layout, 0),
        target: target.id,
        target_layout: target.layout,
        to: piece(&target.layout, CHUNK),
    };
    let server = scene.caller.cluster.chunk_server(target.id, &target.layout, 1);
    ask(scene, server, Operation::CopyRange, &request).await
}

/// What an open gives but its number, which the server draws anew; and the end of it, for good.
async fn open_and_close(scene: &Scene) -> String {
    let opened = match scene.caller.open_for_good(ROOT, "f", 0).await {
        Ok(opened) => opened,
        Err(failure) => return format!("{:?}", failure.status),
    };
    told(scene.caller.close(&opened).await, |()| format!("{:?}", opened.attributes))
}

async fn open_existing_by_id(scene: &Scene) -> String {
    let request = OpenIdRequest { file: scene.file, flags: 0, access: 0 };
    let home = scene.caller.home(scene.file);
    let reply = match scene.caller.call(home, Operation::OpenIdExisting, &request).await {
        Ok(reply) => OpenReply::from_bytes(&reply.params).expect("the reply is well-formed"),
        Err(failure) => return format!("{:?}", failure.status),
    };
    let closed = Batch(vec![Closed { file: scene.file, number: reply.open_number }]);
    ask(scene, home, Operation::CloseMany, &CloseManyRequest { closed }).await
}

/// The last close of a file without a name, which takes it along.
async fn close_nameless(scene: &Scene) -> String {
    let closed = Closed { file: scene.nameless, number: u64::MAX };
    let home = scene.caller.home(scene.nameless);
    ask(scene, home, Operation::Close, &CloseRequest { closed, settle: false }).await
}

/// Sizes that other servers know of are folded in.
async fn settle_sizes(scene: &Scene) -> String {
    ask(scene, scene.caller.home(scene.file), Operation::Close, &fold(scene.file)).await
}

fn wish(scene: &Scene, owner: u64) -> LockDescription {
    let range = LockRange { start: owner * 10, end: owner * 10 + 5 };
    let kind = OwnerKind::Process;
    LockDescription { file: scene.file, space: LockSpace::Ranges, kind, owner, range, exclusive: true, ticket: owner }
}

async fn lock(scene: &Scene, owner: u64) -> String {
    let request = LockRequest { wish: wish(scene, owner), wait: false };
    let reply = scene.caller.call(scene.caller.home(scene.file), Operation::Lock, &request).await;
    told(reply, |reply| format!("{:?}", reply.params))
}

async fn unlock(scene: &Scene) -> String {
    let request = UnlockRequest { wish: wish(scene, 1) };
    ask(scene, scene.caller.home(scene.file), Operation::Unlock, &request).await
}

async fn repair(scene: &Scene) -> String {
    let step = RepairStep::SetSize { file: scene.other.id, from: 0, to: 5 };
    ask(scene, scene.caller.home(scene.other.id), Operation::Repair, &RepairRequest { step }).await
}

/// Requests that change something, by name, and what they send; hardly any could be executed twice without being told
/// otherwise.
const DEEDS: [(&str, Operation); 30] = [
    ("create", Operation::Open),
    ("open by id", Operation::OpenId),
    ("make temporary", Operation::MakeTemporary),
    ("link open", Operation::LinkOpen),
    ("mkdir", Operation::MakeDirectory),
    ("symlink", Operation::MakeSymlink),
    ("node", Operation::MakeNode),
    ("unlink", Operation::Unlink),
    ("rmdir", Operation::RemoveDirectory),
    ("rename", Operation::Rename),
    ("exchange", Operation::Rename),
    ("link", Operation::Link),
    ("chmod", Operation::SetAttributes),
    ("truncate", Operation::Truncate),
    ("reserve", Operation::ReserveAppend),
    ("append", Operation::Append),
    ("allocate", Operation::Allocate),
    ("copy", Operation::CopyRange),
    ("write", Operation::Write),
    ("commit what is not granted", Operation::CommitRegistered),
    ("set attribute", Operation::SetAttribute),
    ("remove attribute", Operation::RemoveAttribute),
    ("lock", Operation::Lock),
    ("unlock", Operation::Unlock),
    ("repair", Operation::Repair),
    // What has no outcome to be kept: sent again, it does the same again, and that must do no harm.
    ("open and close", Operation::OpenExisting),
    ("open by id and close", Operation::OpenIdExisting),
    ("close with others", Operation::CloseMany),
    ("close what has no name", Operation::Close),
    ("fold sizes", Operation::Close),
];

/// Requests of clients that change nothing but what their own connection or session is told of.
const LOOKS: [Operation; 34] = [
    // What is here is not fetched again.
    Operation::Stage,
    // What has gone already is not there to go again.
    Operation::CacheState,
    // One that comes again begins nothing that the first one did not: a flush finds what is left to do.
    Operation::Flush,
    Operation::ListCarried,
    Operation::CompareShare,
    Operation::Ping,
    Operation::Lookup,
    Operation::Stat,
    Operation::StatId,
    Operation::Look,
    Operation::LookId,
    Operation::ReadDirectory,
    Operation::StatFileSystem,
    Operation::Read,
    Operation::Locate,
    // What it gives belongs to the connection: `crates/client/tests/granted.rs`.
    Operation::RegisterBuffers,
    Operation::Statistics,
    Operation::Shutdown,
    Operation::Synchronise,
    Operation::GetAttribute,
    Operation::ListAttributes,
    // Tells the server what it had forgotten: `open_files.rs`.
    Operation::Reclaim,
    Operation::TestLock,
    Operation::AwaitLock,
    Operation::AwaitPermit,
    Operation::ReturnPermit,
    // Only numbers that have grown count: `statistics::clients`.
    Operation::NoteCounters,
    // The simulator loses replies of contacts; what they opened ends with the session at the latest.
    Operation::OpenThrough,
    // Not sent again: `crates/sim/tests/kept_entries.rs`.
    Operation::KeepEntries,
    Operation::Find,
    Operation::TreeLog,
    Operation::Check,
    Operation::Allocated,
    Operation::Seek,
];

/// Goal: no request of a client that changes something is left out here, whether its outcome is kept or not; what is
/// new has to be entered in one of the lists. What servers send each other is struck at each of its steps in the
/// stories of the simulator.
#[test]
fn every_mutating_operation_has_a_case() {
    for operation in Operation::ALL.iter().filter(|operation| operation.level() == LEVEL_CLIENT) {
        let has_case = DEEDS.iter().any(|(_, sent)| sent == operation);
        let is_look = !operation.is_mutating() && LOOKS.contains(operation);
        assert!(has_case != is_look, "{} belongs in either DEEDS or LOOKS", operation.name());
    }
}

async fn act(deed: &str, scene: Scene) -> String {
    let caller = &scene.caller;
    let plain = |answer: Answer<()>| told(answer, |()| "done".into());
    match deed {
        "create" => told(caller.create(ROOT, "new").await, |made| format!("{:?}", made.id)),
        "open by id" => open_by_id(&scene).await,
        "make temporary" => told(caller.make_temporary(0, true).await, |made| format!("{:?}", made.attributes.id)),
        "link open" => plain(caller.link_open(scene.nameless, ROOT, "new").await),
        "append" => append(&scene).await,
        "allocate" => allocate(&scene).await,
        "copy" => copy(&scene).await,
        "lock" => lock(&scene, 2).await,
        "unlock" => unlock(&scene).await,
        "repair" => repair(&scene).await,
        "open and close" => open_and_close(&scene).await,
        "open by id and close" | "close with others" => open_existing_by_id(&scene).await,
        "close what has no name" => close_nameless(&scene).await,
        "fold sizes" => settle_sizes(&scene).await,
        "mkdir" => told(caller.make_directory(ROOT, "new").await, |id| format!("{id:?}")),
        "symlink" => make_symlink(&scene).await,
        "node" => make_node(&scene).await,
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
        "commit what is not granted" => commit_registered(&scene).await,
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

/// Requests of an operation that all servers together have taken in.
fn arrivals(test: &TestCluster, operation: Operation) -> u64 {
    let of_server = |index: u32| test.server(index).arrivals(operation);
    test.server_indexes().map(of_server).sum()
}

/// Does one deed, with all connections cut at a moment of it; what it was told and what is seen then, and how long it
/// took.
fn play((deed, operation): (&'static str, Operation), cut_at: Option<Nanos>) -> (String, String, Nanos) {
    let test = TestCluster::new(5, 2);
    // So that no request is over before there was a moment to cut at.
    test.world.set_latency(None, 3 * CUT_STEP, 60_000);
    let caller = test.caller(0, 1);
    let scene = test.run(0, set_scene(caller));
    let file = scene.file;
    let begun = test.world.now();
    let arrived = arrivals(&test, operation);
    let future: LocalFuture<String> = Box::pin(act(deed, scene));
    let doing = test.spawn(0, future);
    if let Some(at) = cut_at {
        test.world.run_for(at);
        test.servers.iter().for_each(|server| test.world.cut(test.callers[0], *server));
    }
    let answer = test.wait(&doing);
    let took = test.world.now() - begun;
    assert!(arrivals(&test, operation) > arrived, "{deed} sends no {}", operation.name());
    let other = test.caller(1, 2);
    let seen = test.run(1, look_around(other, file));
    let counts = test.settle().iter().fold([0; 6], |counts, audit| {
        let own = [audit.inodes, audit.orphans, audit.open_files, audit.chunks, audit.locked, audit.bytes_used];
        std::array::from_fn(|index| counts[index] + own[index])
    });
    (answer, format!("{seen}; {counts:?}"), took)
}

/// Goal: a request whose reply is lost is sent again over a new connection, gets the same answer, and is applied once.
/// Method: each request that changes something, with the connections cut at every moment from its start to its end;
/// answers and what others see are compared with a run in which nothing breaks.
#[test]
fn same_answer_and_once() {
    for case in DEEDS {
        let (deed, _) = case;
        let (answer, seen, took) = play(case, None);
        assert!(Status::ALL.iter().all(|status| answer != format!("{status:?}")), "{deed}: {answer}");
        assert!(took > 5 * CUT_STEP, "{deed} takes {took} ns: no moment to cut at");
        for step in 0..=took / CUT_STEP {
            let (answer_again, seen_again, _) = play(case, Some(step * CUT_STEP));
            assert_eq!(answer_again, answer, "{deed}, cut after {} us", step * CUT_STEP / 1000);
            assert_eq!(seen_again, seen, "{deed}, cut after {} us", step * CUT_STEP / 1000);
        }
    }
}
