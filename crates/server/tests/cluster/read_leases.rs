//! Contents that opens are told, and who waits for the end of the leases.

use crate::support::*;
use reactor::{Call, Nanos, Reactor};
use std::future::Future;
use std::io::IoSlice;
use std::pin::Pin;
use wire::layout::ChunkRange;
use wire::limits::LEASED_SIZE_MAX;
use wire::messages::*;
use wire::{Attributes, FileId, Operation};

const ROOT: FileId = FileId::ROOT;
const MILLISECOND: Nanos = 1_000_000;
/// After this a file has not changed lately.
const QUIET: Nanos = 25 * MILLISECOND;
/// What a lease lasts.
const TIME: Nanos = 2 * MILLISECOND;
const CHUNK: u32 = 4096;

async fn told(caller: &Caller, name: &str) -> Option<Box<[u8]>> {
    let opened = caller.open(ROOT, name, open_flags::CONTENTS).await.expect("opened");
    let contents = opened.contents?;
    assert_eq!((contents.time, contents.bytes.len() as u64), (TIME, opened.attributes.size));
    Some(contents.bytes)
}

/// Creates a file whose home does not hold its second chunk alone, with 1,000 bytes.
async fn make(caller: &Caller, name: &str) -> Attributes {
    let made = caller.create(ROOT, name).await.expect("made");
    caller.write(made.id, made.layout, 0, &[7; 1000]).await.expect("written");
    made
}

type Change = for<'a> fn(&'a Caller, Attributes) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

macro_rules! change {
    (|$caller:ident, $at:ident| $body:expr) => {{
        fn change<'a>($caller: &'a Caller, $at: Attributes) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
            Box::pin(async move {
                $body;
            })
        }
        change as Change
    }};
}

async fn allocate(caller: &Caller, at: Attributes, mode: u8, grow: bool) {
    let request = AllocateRequest { file: at.id, layout: at.layout, offset: 100, size: 2000, mode, grow };
    caller.call(caller.home(at.id), Operation::Allocate, &request).await.expect("allocated");
}

/// Goal: whatever changes contents or size waits until the lease has ended, and nothing else does; what is told
/// afterwards is new. Method: a change of each kind, of a file that was opened a moment before. Two servers, so that
/// the second chunk is elsewhere.
#[test]
fn changes_wait() {
    let waiting: [(&str, Change); 11] = [
        ("write", change!(|caller, at| caller.write(at.id, at.layout, 10, b"new").await.expect("written"))),
        ("grow", change!(|caller, at| caller.write(at.id, at.layout, 2000, b"new").await.expect("written"))),
        ("write elsewhere", change!(|caller, at| caller.write(at.id, at.layout, 5000, b"new").await.expect("written"))),
        ("cut", change!(|caller, at| caller.truncate(at.id, 10).await.expect("cut"))),
        ("extend", change!(|caller, at| caller.truncate(at.id, 1 << 20).await.expect("extended"))),
        ("open", change!(|caller, _at| caller.open(ROOT, "open", open_flags::TRUNCATE).await.expect("cut"))),
        (
            "append",
            change!(|caller, at| {
                let body = [IoSlice::new(b"new")];
                let call = Call {
                    body: &body,
                    ..Call::new(Operation::Append, &AppendRequest { file: at.id, sum: Some(crc32c::crc32c(b"new")) })
                };
                caller.send(caller.home(at.id), call).await.expect("appended")
            }),
        ),
        (
            "reserve",
            change!(|caller, at| {
                let request = ReserveAppendRequest { file: at.id, size: 10 };
                caller.call(caller.home(at.id), Operation::ReserveAppend, &request).await.expect("moved")
            }),
        ),
        ("allocate", change!(|caller, at| allocate(caller, at, allocate_mode::GROW, true).await)),
        ("punch", change!(|caller, at| allocate(caller, at, allocate_mode::PUNCH, false).await)),
        (
            "copy",
            change!(|caller, at| {
                let range = |chunk_offset| ChunkRange { chunk_index: 0, chunk_offset, size: 100 };
                let request = CopyRangeRequest {
                    source: at.id,
                    source_layout: at.layout,
                    from: range(0),
                    target: at.id,
                    target_layout: at.layout,
                    to: range(950),
                };
                caller.call(caller.home(at.id), Operation::CopyRange, &request).await.expect("copied")
            }),
        ),
    ];
    let free: [(&str, Change); 5] = [
        (
            "touch",
            change!(|caller, at| {
                let mask = set_mask::ATIME_NOW | set_mask::MTIME_NOW;
                let request = SetAttributesRequest { file: at.id, mask, mode: 0, uid: 0, gid: 0, atime: 0, mtime: 0 };
                caller.set(request).await.expect("set")
            }),
        ),
        ("stat", change!(|caller, at| caller.stat(at.id).await.expect("there"))),
        ("link", change!(|caller, _at| caller.link(ROOT, "link", "second").await.expect("linked"))),
        ("unlink", change!(|caller, _at| caller.unlink(ROOT, "unlink").await.expect("unlinked"))),
        (
            "times",
            change!(|caller, at| {
                let request = SetAttributesRequest {
                    file: at.id,
                    mask: set_mask::MTIME,
                    mode: 0,
                    uid: 0,
                    gid: 0,
                    atime: 0,
                    mtime: 5,
                };
                caller.set(request).await.expect("set")
            }),
        ),
    ];
    let test = TestCluster::without_checksums(1, 2);
    let (reader, writer) = (test.caller(0, 1), test.caller(1, 2));
    let reactor = test.world.reactor(test.callers[0]);
    let servers = [test.server(0), test.server(1)];
    let awaited = move || -> u64 {
        let numbers = servers.iter().flat_map(|server| server.contact_numbers());
        numbers.filter(|(name, _)| *name == "read_leases_awaited").map(|(_, count)| count).sum()
    };
    test.run(0, async move {
        let waits = waiting.map(|(name, change)| (name, change, true));
        for (name, change, waits) in waits.into_iter().chain(free.map(|(name, change)| (name, change, false))) {
            let at = make(&writer, name).await;
            assert_eq!(told(&reader, name).await, None, "{name}: it has just changed");
            reactor.sleep(QUIET).await;
            let (asked, awaited_before) = (reactor.now(), awaited());
            let before = told(&reader, name).await;
            assert!(before.is_some_and(|bytes| *bytes == [7; 1000]), "{name}");
            change(&writer, at.clone()).await;
            let took = reactor.now() - asked;
            assert_eq!(awaited() - awaited_before, u64::from(waits), "{name}");
            assert!(!waits || (TIME..4 * TIME).contains(&took), "{name} was done {took} ns after the open");
            if waits {
                assert_eq!(told(&reader, name).await, None, "{name}: it has just changed");
                reactor.sleep(QUIET).await;
                let after = told(&reader, name).await;
                let is_elsewhere = name == "write elsewhere";
                assert!(is_elsewhere || name == "extend" || after.is_some_and(|bytes| *bytes != [7; 1000]), "{name}");
            }
        }
    });
    test.settle();
}

/// Goal: a server that is killed and started anew keeps what it has told, however fast it is.
#[test]
fn leases_outlive_their_server() {
    for pause in [0, TIME / 4, TIME / 2, TIME] {
        let test = TestCluster::without_checksums(pause, 1);
        let (reader, writer) = (test.caller(0, 1), test.caller(1, 2));
        let reactor = test.world.reactor(test.callers[0]);
        let own = writer.clone();
        let clock = reactor.clone();
        let (at, asked) = test.run(0, async move {
            let at = make(&own, "file").await;
            reactor.sleep(QUIET).await;
            let asked = reactor.now();
            assert!(told(&reader, "file").await.is_some());
            reactor.sleep(pause).await;
            (at, asked)
        });
        test.kill(0);
        test.world.restart(test.servers[0]);
        let written = test.spawn(1, async move { writer.write(at.id, at.layout, 0, b"new").await.expect("written") });
        test.start(0);
        test.wait(&written);
        assert!(clock.now() > asked + TIME, "written {} ns after the open", clock.now() - asked);
    }
}

/// Goal: only what the home knows wholly is told: small files, without chunks elsewhere, that nobody is changing; holes
/// as zeros.
#[test]
fn what_is_told() {
    let test = TestCluster::without_checksums(3, 2);
    let caller = test.caller(0, 1);
    let reactor: Reactor = test.world.reactor(test.callers[0]);
    test.run(0, async move {
        let empty = caller.create(ROOT, "empty").await.expect("made");
        let hole = caller.create(ROOT, "hole").await.expect("made");
        caller.write(hole.id, hole.layout, 3000, b"end").await.expect("written");
        let full = caller.create(ROOT, "full").await.expect("made");
        caller.write(full.id, full.layout, 0, &[1; CHUNK as usize]).await.expect("written");
        let large = caller.create(ROOT, "large").await.expect("made");
        caller.truncate(large.id, u64::from(CHUNK) + 1).await.expect("extended");
        let request = OpenRequest {
            entry: entry(ROOT, "wide"),
            flags: open_flags::CREATE,
            access: 0,
            mode: 0o644,
            layout: wire::LayoutWish::of_chunk_size(1 << 20),
            group: None,
        };
        let server = caller.cluster.dentry_server(ROOT, b"wide");
        let reply = caller.call(server, Operation::Open, &request).await.expect("made");
        let wide = <OpenReply as wire::Decode>::from_bytes(&reply.params).expect("well-formed").attributes;
        caller.write(wide.id, wide.layout, 0, &[2; LEASED_SIZE_MAX]).await.expect("written");
        reactor.sleep(QUIET).await;
        assert_eq!(told(&caller, "empty").await.as_deref(), Some(&[][..]));
        let bytes = told(&caller, "hole").await.expect("told");
        assert!(bytes[..3000].iter().all(|byte| *byte == 0) && bytes[3000..] == *b"end");
        assert_eq!(told(&caller, "full").await.as_deref(), Some(&[1; CHUNK as usize][..]));
        assert_eq!(told(&caller, "large").await, None, "its second chunk is elsewhere");
        assert_eq!(told(&caller, "wide").await.as_deref(), Some(&[2; LEASED_SIZE_MAX][..]));
        caller.write(wide.id, wide.layout, LEASED_SIZE_MAX as u64, b"x").await.expect("written");
        reactor.sleep(QUIET).await;
        assert_eq!(told(&caller, "wide").await, None, "it is too large");
        caller.write(empty.id, empty.layout, u64::from(CHUNK), b"x").await.expect("written");
        caller.truncate(empty.id, 0).await.expect("cut");
        reactor.sleep(QUIET).await;
        assert_eq!(told(&caller, "empty").await, None, "another server may hold bytes");
    });
}
