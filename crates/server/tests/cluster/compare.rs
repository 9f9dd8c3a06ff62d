//! Comparing what is here with what is behind (`--verify`).

use crate::backing::{contents, find, flush, populate, write};
use crate::support::*;
use std::collections::BTreeSet;
use wire::messages::*;
use wire::{Decode, FileId, Operation};

const ROOT: FileId = FileId::ROOT;

/// Has all servers compare all that they have; bytes that were compared, and paths of what is not the same.
async fn compare(caller: &Caller) -> (u64, BTreeSet<String>) {
    let (mut bytes, mut paths) = (0, BTreeSet::new());
    let servers = 0..caller.cluster.server_count();
    let mut files = Vec::new();
    for server in servers.clone() {
        let mut from = Some(ListCarriedRequest { directory: 0, cursor: 0 });
        while let Some(request) = from {
            let reply = caller.call(server, Operation::ListCarried, &request).await.expect("listed");
            let reply = ListCarriedReply::from_bytes(&reply.params).expect("the reply is well-formed");
            files.extend(reply.files);
            from = (!reply.is_last).then_some(reply.next);
        }
    }
    for file in files {
        let attributes = caller.stat(file).await.expect("there");
        for server in servers.clone() {
            let mut from = 0;
            while from < u64::MAX {
                let (layout, size) = (attributes.layout, attributes.size);
                let request = CompareShareRequest { file, layout, size, from, paths: Vec::new() };
                let reply = caller.call(server, Operation::CompareShare, &request).await.expect("compared");
                let reply = CompareShareReply::from_bytes(&reply.params).expect("the reply is well-formed");
                bytes += reply.bytes;
                from = reply.next;
                if !reply.difference.is_empty() {
                    paths.insert(String::from_utf8(reply.path).expect("text"));
                }
            }
        }
    }
    (bytes, paths)
}

/// Goal: bytes that are not the same are found wherever they are, holes included, by contents alone; what is only
/// behind, or was changed here since, is none; and nothing is fetched for it.
#[test]
fn differences_are_found() {
    for seed in 0..12 {
        let (test, _) = TestCluster::over_a_site(seed, 1 + seed as u32 % 4, populate);
        let caller = test.caller(0, 1);
        let own = caller.clone();
        test.run(0, async move {
            let made = own.create(ROOT, "made").await.expect("made");
            write(&own, &made, 0, &[7; 5_000]).await;
            write(&own, &made, 300_000, &[8; 5_000]).await;
            own.create(ROOT, "renamed").await.expect("made");
            let d = find(&own, "d").await.expect("there").id;
            own.rename_to((ROOT, "renamed"), (d, "parted"), 0).await.expect("renamed");
            let parted = find(&own, "d/parted").await.expect("there");
            write(&own, &parted, 0, &[9; 20_000]).await;
            let large = find(&own, "d/large").await.expect("there");
            contents(&own, &large).await.expect("read");
            find(&own, "whole").await.expect("there");
        });
        let own = caller.clone();
        let reply = test.run(0, async move { flush(&own).await });
        assert_eq!((reply.failed, &reply.paths), (0, &Vec::new()), "seed {seed}");
        let own = caller.clone();
        let (bytes, paths) = test.run(0, async move { compare(&own).await });
        assert_eq!(paths, BTreeSet::new(), "seed {seed}");
        // Two chunks with data at each end of the hole, two of them cut by it; what is all zeros need not be read.
        assert!((50_000 + 20_000 + 10_000..50_000 + 20_000 + 30_000).contains(&bytes), "seed {seed}: {bytes}");
        // As if the site had lost or changed them without a word.
        let site = test.world.outsider();
        let places = [("made", 100_000), ("d/parted", 19_999), ("d/large", 0), ("whole", 5)];
        let (path, at) = places[seed as usize % places.len()];
        site.write(path, at, b"!");
        for server in test.server_indexes() {
            test.server(server).set_backing_fault(server::BackingFault::IdentityUnchecked);
        }
        let own = caller.clone();
        let (_, paths) = test.run(0, async move { compare(&own).await });
        let expected = if path == "whole" { BTreeSet::new() } else { BTreeSet::from([path.to_owned()]) };
        assert_eq!(paths, expected, "seed {seed}");
        let own = caller.clone();
        let (_, paths) = test.run(0, async move {
            let file = find(&own, path).await.expect("there");
            write(&own, &file, 0, b"changed").await;
            compare(&own).await
        });
        // Servers that have no part in the change say still what they found.
        assert!(paths.is_subset(&expected), "seed {seed}: {paths:?}");
        test.settle();
    }
}
