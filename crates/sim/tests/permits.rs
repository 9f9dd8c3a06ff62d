//! Permits for large bodies of collective calls: a few at a time, in order, and nobody waits for ever, whoever stops,
//! dies or is started again.

use client::OpenHow;
use reactor::Class;
use reactor::sim::CrashKind;
use server::{Bounds, HOLD_NS_MAX};
use sim::harness::{Harness, SimClient};
use sim::profile::{MILLISECOND, Overrides, Profile, SECOND};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const BODY_SIZE: usize = 200_000;

/// One server, and clients beside it whose writes and reads all need permits.
fn cluster(bounds: Bounds) -> Harness {
    let overrides = Overrides { no_faults: true, servers: Some(1), ..Overrides::default() };
    let mut profile = Profile::new(7, &overrides);
    profile.client_timeout = 20 * SECOND;
    profile.bounds = bounds;
    profile.client_bounds.free_body_size = 0;
    let harness = Harness::new(&profile, false);
    harness.wait_for_servers(60 * SECOND).expect("the server starts");
    harness
}

/// How far the work of a client has come.
#[derive(Default)]
struct Work {
    is_open: Cell<bool>,
    ended: Cell<Option<u64>>,
}

/// Has a client make a file, and write and read it `rounds` times in large calls, when all are told to go on.
fn start(harness: &Harness, client: &SimClient, number: usize, rounds: usize, go: &Rc<Cell<bool>>) -> Rc<Work> {
    let work = Rc::new(Work::default());
    let (files, told, go) = (client.client.file_system.clone(), work.clone(), go.clone());
    harness.world.reactor(client.node).spawn(Class::Metadata, async move {
        let how = OpenHow { create: true, ..OpenHow::reading_and_writing() };
        let file = files.open(format!("/f{number}").as_bytes(), &how).await.expect("made");
        file.set_throttled(true);
        told.is_open.set(true);
        while !go.get() {
            files.reactor().sleep(MILLISECOND).await;
        }
        for round in 0..rounds {
            let bytes = vec![(number + round) as u8; BODY_SIZE];
            assert_eq!(files.write_at(&file, &bytes, 0).await.expect("written"), BODY_SIZE);
            let mut read = vec![0; BODY_SIZE];
            assert_eq!(files.read_at(&file, &mut read, 0).await.expect("read"), BODY_SIZE);
            assert!(read == bytes, "client {number}, round {round}");
        }
        files.close(&file).await;
        told.ended.set(Some(files.reactor().now()));
    });
    work
}

/// The most permits and waiters that were seen until all works end, one of them after the other.
fn run(harness: &Harness, works: &[Rc<Work>], go: &Cell<bool>) -> (u64, u64) {
    assert!(harness.world.run_until(|| works.iter().all(|work| work.is_open.get()), 60 * SECOND));
    go.set(true);
    let most = RefCell::new((0, 0));
    let look = || {
        for (_, audit) in harness.audits() {
            let (permits, waiters) = *most.borrow();
            most.replace((permits.max(audit.permits), waiters.max(audit.permit_waiters)));
        }
        works.iter().all(|work| work.ended.get().is_some())
    };
    assert!(harness.world.run_until(look, 600 * SECOND), "somebody waits for ever");
    most.into_inner()
}

fn is_at_rest(harness: &Harness) -> bool {
    harness.audits().iter().all(|(_, audit)| audit.permits + audit.permit_waiters == 0)
}

/// Goal: no more than the bound are out at a time while many wait, also where hardly any may wait or be told; all is
/// written and read; and in the end nothing is left.
#[test]
fn a_few_at_a_time() {
    for (permits, permit_waiters, session_permit_listeners) in [(1, 100, 32), (2, 100, 32), (2, 100, 0), (1, 3, 1)] {
        let harness = cluster(Bounds { permits, permit_waiters, session_permit_listeners, ..Bounds::default() });
        let go = Rc::new(Cell::new(false));
        let clients: Vec<_> = (0..12).map(|_| harness.add_client()).collect();
        let works: Vec<_> =
            clients.iter().enumerate().map(|(number, client)| start(&harness, client, number, 3, &go)).collect();
        let (most, waited) = run(&harness, &works, &go);
        assert!(most <= permits as u64, "{most} of {permits}");
        assert!(waited <= permit_waiters as u64, "{waited} of {permit_waiters}");
        assert_eq!(waited > 2, session_permit_listeners > 0, "{waited} wait");
        assert!(harness.world.run_until(|| is_at_rest(&harness), 10 * SECOND), "something is left");
    }
}

/// Goal: who stops or dies with a permit, or while it waits, does not keep others; nor does a server that is killed.
#[test]
fn whoever_stops() {
    for fault in 0..3 {
        let harness = cluster(Bounds { permits: 1, ..Bounds::default() });
        let go = Rc::new(Cell::new(false));
        let clients: Vec<_> = (0..6).map(|_| harness.add_client()).collect();
        let works: Vec<_> =
            clients.iter().enumerate().map(|(number, client)| start(&harness, client, number, 4, &go)).collect();
        assert!(harness.world.run_until(|| works.iter().all(|work| work.is_open.get()), 60 * SECOND));
        go.set(true);
        let has_waiters = || harness.audits().iter().any(|(_, audit)| audit.permits > 0 && audit.permit_waiters > 3);
        assert!(harness.world.run_until(has_waiters, 10 * SECOND), "nobody waits");
        let others = match fault {
            // All but the last: one of them has the permit, the others wait.
            0 => {
                for client in &clients[..5] {
                    harness.world.crash(client.node, CrashKind::Kill);
                }
                &works[5..]
            }
            1 => {
                for client in &clients[..5] {
                    harness.world.set_slowness(client.node, 200 * SECOND, 200 * SECOND);
                }
                &works[5..]
            }
            _ => {
                harness.kill(0);
                harness.restart(0);
                &works[..]
            }
        };
        let begun = harness.world.now();
        let have_ended = || others.iter().all(|work| work.ended.get().is_some());
        assert!(harness.world.run_until(have_ended, 300 * SECOND), "fault {fault}: somebody waits for ever");
        let took = harness.world.now() - begun;
        // Five in the queue before the last one, of which each may keep the permit once.
        assert!(took < 6 * HOLD_NS_MAX + 40 * SECOND, "fault {fault}: {took} ns");
    }
}
