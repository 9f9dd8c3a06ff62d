//! The cluster that a story plays on: three servers, the one who acts and dies, and another one who does not.

use client::{File, FileSystem};
use reactor::sim::{CrashKind, NodeId};
use reactor::{Class, LocalFuture, Nanos};
use sim::harness::{Harness, SimClient};
use sim::profile::{Overrides, Profile, SECOND};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use wire::{FileId, Placement};

pub const CHUNK: u64 = 4096;
pub const SERVERS: u32 = 3;
pub const LIMIT: Nanos = 600 * SECOND;
/// A client that is gone for this long is forgotten.
pub const GRACE: Nanos = 5 * SECOND;
/// Servers wait for each other for less time than a dead one stays down, and clients for more.
pub const SERVER_TIMEOUT: Nanos = 2 * SECOND;
const CLIENT_TIMEOUT: Nanos = 20 * SECOND;
/// Closes that nobody waits for leave by themselves after less than this.
const CLOSES_LEAVE: Nanos = 1_500_000_000;

/// Those who take part in a story, and what they have open.
#[derive(Clone)]
pub struct Cast {
    pub actor: FileSystem,
    pub other: FileSystem,
    /// What the actor has open, by the names that the story gives.
    pub handles: Rc<RefCell<BTreeMap<&'static str, File>>>,
    /// What the other one has open.
    pub others: Rc<RefCell<BTreeMap<&'static str, File>>>,
}

impl Cast {
    pub fn keep(&self, name: &'static str, file: &File) {
        self.handles.borrow_mut().insert(name, file.clone());
    }

    pub fn handle(&self, name: &str) -> File {
        self.handles.borrow().get(name).expect("the story has opened it").clone()
    }

    pub fn others_handle(&self, name: &str) -> File {
        self.others.borrow().get(name).expect("the story has opened it").clone()
    }

    pub async fn close(&self, name: &str) {
        let file = self.handles.borrow_mut().remove(name).expect("the story has opened it");
        self.actor.close(&file).await;
    }

    /// A path in the root directory whose name is at a server; `word` tells such names apart.
    pub fn at(&self, server: u32, word: &str) -> Vec<u8> {
        let names = (0..).map(|number| format!("{word}{number}"));
        let mut here = names.filter(|name| self.actor.cluster().dentry_server(FileId::ROOT, name.as_bytes()) == server);
        format!("/{}", here.next().expect("every server has names")).into_bytes()
    }
}

/// One run of a story.
pub struct Stage {
    pub harness: Harness,
    actor: SimClient,
    other: SimClient,
    pub cast: Cast,
}

impl Stage {
    pub fn new(seed: u64) -> Stage {
        let overrides = Overrides { no_faults: true, servers: Some(SERVERS), ..Overrides::default() };
        let mut profile = Profile::new(seed, &overrides);
        (profile.placement, profile.chunk_sizes) = (Placement::Modular, vec![CHUNK as u32]);
        (profile.client_timeout, profile.server_timeout) = (CLIENT_TIMEOUT, SERVER_TIMEOUT);
        (profile.session_grace, profile.latency) = (GRACE, (10_000, 60_000));
        (profile.store_size, profile.journal_size) = (16 << 20, 1 << 20);
        (profile.checksums, profile.stable_media) = (false, false);
        let harness = Harness::new(&profile, false);
        harness.wait_for_servers(LIMIT).expect("servers start");
        let (actor, other) = (harness.add_client(), harness.add_client());
        let cast = Cast {
            actor: actor.client.file_system.clone(),
            other: other.client.file_system.clone(),
            handles: Rc::default(),
            others: Rc::default(),
        };
        Stage { harness, actor, other, cast }
    }

    pub fn actor_is_alive(&self) -> bool {
        self.harness.world.is_running(self.actor.node)
    }

    pub fn kill_actor(&self) {
        self.cast.handles.borrow_mut().clear();
        self.harness.world.crash(self.actor.node, CrashKind::Kill);
    }

    pub fn restart_all(&self) {
        self.harness.server_indexes().for_each(|server| self.harness.kill(server));
        self.harness.server_indexes().for_each(|server| self.harness.restart(server));
        self.harness.wait_for_servers(LIMIT).expect("the servers come back");
    }

    pub fn revive(&self, server: u32) {
        self.harness.restart(server);
        self.harness.wait_for_servers(LIMIT).expect("the server comes back");
    }

    /// Loses all that is on its way, everywhere, and with it all connections.
    pub fn lose_messages(&self) {
        let mut nodes: Vec<NodeId> = self.harness.server_indexes().map(|server| self.harness.node(server)).collect();
        nodes.extend([self.actor.node, self.other.node]);
        for (index, one) in nodes.iter().enumerate() {
            nodes[..index].iter().for_each(|other| self.harness.world.lose(*one, *other));
        }
    }

    /// Starts something on the actor's node; the result shows in the cell.
    pub fn start<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> Rc<RefCell<Option<T>>> {
        let told = Rc::new(RefCell::new(None));
        let place = told.clone();
        self.harness.world.reactor(self.actor.node).spawn(Class::Metadata, async move {
            let value = work.await;
            place.replace(Some(value));
        });
        told
    }

    pub fn wait<T>(&self, told: &Rc<RefCell<Option<T>>>) -> Option<T> {
        self.harness.world.run_until(|| told.borrow().is_some(), LIMIT);
        told.borrow_mut().take()
    }

    /// Runs something on the actor's node, or with the actor gone on that of a fresh client.
    pub fn run<T: 'static>(&self, work: impl FnOnce(Cast) -> LocalFuture<T>) -> T {
        let work = work(self.cast.clone());
        self.harness.world.run(self.actor.node, work, LIMIT).expect("it ends")
    }

    /// Runs something as a client of its own.
    pub fn ask<T: 'static>(&self, work: impl FnOnce(FileSystem) -> LocalFuture<T>) -> T {
        let client = self.harness.add_client();
        let result = self.harness.world.run(client.node, work(client.client.file_system.clone()), LIMIT);
        self.harness.world.crash(client.node, CrashKind::Kill);
        result.expect("it ends")
    }

    /// Whether no server has anything to do for others.
    pub fn is_quiet(&self) -> bool {
        let audits = self.harness.audits();
        audits.len() == SERVERS as usize
            && audits.iter().all(|(_, audit)| {
                let waits_for_word = audit.orphans > 0 && audit.unreclaimed > 0;
                let under_way = audit.intents + audit.marks + audit.prepared + audit.tree_marks;
                // Who waits for a lock is no work for the server.
                under_way == 0 && audit.active <= audit.lock_waiters && !waits_for_word
            })
    }

    /// Waits until late messages have left and no server has anything to do for others, and a dead actor is forgotten.
    pub fn settle(&self) -> Result<(), String> {
        self.harness.world.run_for(if self.actor_is_alive() { CLOSES_LEAVE } else { 3 * GRACE });
        if !self.harness.world.run_until(|| self.is_quiet(), LIMIT) {
            return Err(format!("never at rest: {:?}", self.harness.audits()));
        }
        let audits: Vec<_> = self.harness.audits().into_iter().map(|(_, audit)| audit).collect();
        let mut wrong: Vec<String> = audits.iter().flat_map(|audit| audit.errors.clone()).collect();
        wrong.extend(server::check_links(&audits));
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    /// Everybody leaves and everything is deleted: then nothing may be left on any server.
    pub fn clear_away(&self) -> Result<(), String> {
        self.kill_actor();
        self.cast.others.borrow_mut().clear();
        self.harness.world.crash(self.other.node, CrashKind::Kill);
        self.ask(|files| Box::pin(async move { super::look::delete_all(&files).await }));
        let root = self.harness.cluster.home_of(FileId::ROOT);
        let audits = || self.harness.audits();
        let clean = || audits().iter().all(|(server, audit)| sim::run::is_clean(audit, root == Some(*server)));
        let end = self.harness.world.now() + 60 * SECOND;
        while !clean() {
            if self.harness.world.now() > end {
                return Err(format!("something is left behind: {:?}", audits()));
            }
            self.harness.world.run_for(SECOND);
        }
        Ok(())
    }
}
