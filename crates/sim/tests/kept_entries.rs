//! Entries that a client keeps under delegations (docs/kept-entries.md): what a change by others waits for, and for how
//! long. Random runs are in the seeds, and what breaks the rule in `sabotage.rs`.

use client::FileSystem;
use reactor::Nanos;
use reactor::sim::CrashKind;
use server::{Bounds, EntryKeeping};
use sim::harness::{Harness, SimClient};
use sim::kernel::Kernel;
use sim::profile::{MILLISECOND, Overrides, Profile, SECOND};
use std::rc::Rc;

const TIME: Nanos = SECOND;
const LIMIT: Nanos = 30 * SECOND;

struct Stage {
    harness: Harness,
    keeper: SimClient,
    kernel: Rc<Kernel>,
    other: SimClient,
}

impl Stage {
    /// A client that keeps what it is told, and another one, at two servers.
    fn new() -> Stage {
        let mut profile = Profile::new(7, &Overrides { servers: Some(2), no_faults: true, ..Overrides::default() });
        profile.remember_all();
        let entry_keeping = EntryKeeping { holders: 64, time: TIME, rest: 10 * MILLISECOND };
        profile.bounds = Bounds { entry_keeping, ..Bounds::default() };
        (profile.short_circuit, profile.relaying, profile.stable_media) = (false, false, false);
        profile.client_timeout = 20 * SECOND;
        let harness = Harness::new(&profile, false);
        harness.wait_for_servers(LIMIT).expect("servers start");
        let (keeper, other) = (harness.add_client(), harness.add_client());
        let kernel = Kernel::of(&keeper.client.file_system);
        Stage { harness, keeper, kernel, other }
    }

    /// Runs something on a client to its end. Returns how long it took.
    fn run<F: Future<Output = ()> + 'static>(&self, client: &SimClient, work: impl FnOnce(FileSystem) -> F) -> Nanos {
        let began = self.harness.world.now();
        let done = self.harness.world.run(client.node, work(client.client.file_system.clone()), LIMIT);
        done.expect("it ends in time");
        self.harness.world.now() - began
    }

    fn make(&self, name: &'static [u8]) -> Nanos {
        self.run(&self.other, |files| async move {
            files.mkdir(name, 0o755).await.expect("it is made");
        })
    }

    /// Lets the keeper look twice at a name that is absent, with the second look from what it keeps.
    fn keep(&self, name: &'static str) {
        self.harness.world.run_for(100 * MILLISECOND);
        let hits = self.kernel.hits();
        for _ in 0..2 {
            let kernel = self.kernel.clone();
            self.run(&self.keeper, |files| async move {
                kernel.look_up(&files, name).await.expect_err("it is absent");
            });
        }
        assert_eq!(self.kernel.hits(), hits + 1, "{name} is kept");
    }

    /// How the keeper sees a name now.
    fn sees(&self, name: &'static str) -> bool {
        let kernel = self.kernel.clone();
        let found = self.harness.world.run(
            self.keeper.node,
            {
                let files = self.keeper.client.file_system.clone();
                async move { kernel.look_up(&files, name).await.is_ok() }
            },
            LIMIT,
        );
        found.expect("it ends in time")
    }
}

/// Goal: what is kept needs no server, a change by another client waits for the confirmation alone, and the keeper sees
/// it then; its own changes take nothing back.
#[test]
fn changes_wait_for_the_confirmation() {
    let stage = Stage::new();
    stage.keep("first");
    let took = stage.make(b"/first");
    assert!(took < TIME / 2, "{took}");
    assert!(stage.sees("first"));
    stage.keep("second");
    stage.run(&stage.keeper, |files| async move {
        files.mkdir(b"/own", 0o755).await.expect("it is made");
    });
    let hits = stage.kernel.hits();
    assert!(!stage.sees("second") && stage.kernel.hits() == hits + 1);
}

/// Goal: a keeper that is cut off, or gone, holds up one change for the time of its delegation, and sees nothing that
/// is older once that is over.
#[test]
fn those_who_are_gone_hold_up_one_change() {
    for gone in [false, true] {
        let stage = Stage::new();
        stage.keep("first");
        for server in stage.harness.server_indexes() {
            stage.harness.world.partition(stage.harness.node(server), stage.keeper.node);
        }
        if gone {
            stage.harness.world.crash(stage.keeper.node, CrashKind::Kill);
        }
        let took = stage.make(b"/first");
        assert!((TIME / 2..TIME * 5 / 4).contains(&took), "{took}");
        assert!(stage.make(b"/second") < TIME / 4);
        if !gone {
            let hits = stage.kernel.hits();
            stage.harness.world.heal_all();
            assert!(stage.sees("first") && stage.kernel.hits() == hits, "nothing old was seen");
        }
    }
}

/// Goal: a server that is killed with delegations out changes nothing before who held one has forgotten, and waits for
/// no longer than that; for one who is gone as well, until his time is over.
#[test]
fn restarts_wait_for_who_held_one() {
    for gone in [false, true] {
        let stage = Stage::new();
        stage.keep("first");
        stage.harness.server_indexes().for_each(|server| stage.harness.kill(server));
        if gone {
            stage.harness.world.crash(stage.keeper.node, CrashKind::Kill);
        }
        stage.harness.server_indexes().for_each(|server| stage.harness.restart(server));
        stage.harness.wait_for_servers(LIMIT).expect("servers start");
        let took = stage.make(b"/first");
        match gone {
            true => assert!((TIME..2 * TIME).contains(&took), "{took}"),
            false => assert!(took < TIME && stage.sees("first"), "{took}"),
        }
    }
}

/// Goal: one who has ended in good order holds up nothing.
#[test]
fn those_who_say_so_hold_up_nothing() {
    let stage = Stage::new();
    stage.keep("first");
    stage.run(&stage.keeper, |files| async move { files.stop_keeping_entries(SECOND).await });
    stage.harness.world.crash(stage.keeper.node, CrashKind::Kill);
    assert!(stage.make(b"/first") < TIME / 4);
}
