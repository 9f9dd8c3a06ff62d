//! One seed from start to verdict: set up, work under faults, mend, look at everything, delete everything, look for
//! leaks.

use crate::actor::Client;
use crate::check::directories::GLIMPSE_TIME_MAX;
use crate::check::{self, failures};
use crate::harness::{Harness, SimClient};
use crate::history::{Action, Finding, Moment, Outcome, Path};
use crate::kernel::Kernel;
use crate::losses::Losses;
use crate::nemesis::{Nemesis, Strike};
use crate::profile::{MILLISECOND, Overrides, Profile, SECOND, Sabotage};
use crate::random::Random;
use crate::workload::{self, Plan, Presence, Worker};
use crate::workload_extended::NAMES;
use crate::{behind, carried, quarrels};
use client::Contact;
use client::check::CheckOptions;
use reactor::sim::{CrashKind, NodeId};
use reactor::{Class, Nanos};
use server::{Audit, Bounds};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use wire::{FileId, Kind};

/// Virtual time within which the whole workload must be through.
const WORK_LIMIT: Nanos = 3_000 * SECOND;
const START_LIMIT: Nanos = 60 * SECOND;
const PHASE_LIMIT: Nanos = 600 * SECOND;
/// Operations that are shown of a failed run's end.
const TAIL_COUNT: usize = 25;

/// What came of a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub seed: u64,
    /// What is wrong, in words; empty when all is well.
    pub problems: Vec<String>,
    /// The last operations, for a failed run.
    pub tail: Vec<String>,
    pub trace_hash: u64,
    pub operations: usize,
    /// Operations whose outcome never became known.
    pub unknown: usize,
    /// Longest operation, and all of the run, in virtual time.
    pub longest: Nanos,
    pub duration: Nanos,
}

struct Run {
    harness: Harness,
    plan: Rc<Plan>,
    random: Random,
    clients: Vec<SimClient>,
    /// Numbers of clients that crashed.
    gone: BTreeSet<u32>,
    problems: Vec<String>,
    /// Whether calls on the backing tree hang.
    hangs: bool,
    /// The client that checks while others work, and what it finds; and the one that flushes.
    checking: Option<SimClient>,
    background: Vec<SimClient>,
    problems_under_load: Rc<RefCell<Vec<String>>>,
}

/// Runs a seed.
pub fn run_seed(seed: u64, overrides: &Overrides, trace: bool) -> Report {
    run_profile(&Profile::new(seed, overrides), trace)
}

/// Runs a profile.
pub fn run_profile(profile: &Profile, trace: bool) -> Report {
    let harness = Harness::new(profile, trace);
    harness.recorder.note(&format!("{profile:?}"));
    let plan = Plan::new(profile, &harness.client_count);
    let mut run = Run {
        harness,
        plan,
        random: Random::new(profile.seed ^ 0x0072_756e),
        clients: Vec::new(),
        gone: BTreeSet::new(),
        problems: Vec::new(),
        hangs: false,
        checking: None,
        background: Vec::new(),
        problems_under_load: Rc::default(),
    };
    let healed = run.all_phases().unwrap_or_else(|problem| {
        run.problems.push(problem);
        Moment::MAX
    });
    run.judge(healed);
    run.report()
}

impl Run {
    /// Returns the moment from which on nothing was wrong any more.
    fn all_phases(&mut self) -> Result<Moment, String> {
        self.harness.wait_for_servers(START_LIMIT)?;
        self.set_up()?;
        self.work()?;
        let healed = self.settle()?;
        self.flush("after work")?;
        self.check_servers("after work")?;
        self.inspect()?;
        if quarrels::are_wanted(&self.harness.profile) {
            self.quarrel()?;
            return Ok(healed);
        }
        self.clean_up()?;
        self.check_servers("after everything was deleted")?;
        self.look_for_leaks()?;
        self.flush("with nothing left")?;
        Ok(healed)
    }

    /// Some clients step back while others are at work, and some have their connections relayed.
    fn options_of_client(&self) -> client::Options {
        let profile = &self.harness.profile;
        let is_low_priority = (profile.seed + self.clients.len() as u64).is_multiple_of(4);
        let is_relayed = profile.relaying && !(profile.seed / 4 + self.clients.len() as u64).is_multiple_of(3);
        let relaying = if is_relayed { client::Relaying::Always } else { client::Relaying::Auto };
        let contact = if profile.contacts { Contact::Always } else { Contact::Off };
        client::Options { is_low_priority, relaying, contact, ..client::Options::default() }
    }

    /// Some clients keep what they are told.
    fn add_working_client(&self) -> SimClient {
        let profile = &self.harness.profile;
        let client = self.harness.add_client_with(self.options_of_client());
        if profile.keepers && (profile.seed + u64::from(client.client.number)).is_multiple_of(2) {
            client.client.kernel.replace(Some(Kernel::of(&client.client.file_system)));
        }
        client
    }

    fn set_up(&mut self) -> Result<(), String> {
        for _ in 0..self.harness.profile.clients {
            let client = self.add_working_client();
            self.clients.push(client);
        }
        let (client, plan) = (self.clients[0].client.clone(), self.plan.clone());
        let done = async move { workload::set_up(&client, &plan).await };
        self.harness
            .world
            .run(self.clients[0].node, done, PHASE_LIMIT)
            .ok_or("setting up does not end")
            .map_err(str::to_owned)?;
        if self.harness.profile.backing {
            self.harness.world.set_backing_faults(behind::faults(&self.harness.profile));
            self.hangs = behind::hang_some(&self.harness.world, &self.harness.profile);
            self.harness.recorder.note_unrest(self.hangs);
        }
        for position in 0..self.clients.len() {
            self.put_to_work(position);
        }
        self.check_under_load();
        if carried::somebody_flushes(&self.harness.profile) {
            let client = self.harness.add_client();
            let (files, pause) = (client.client.file_system.clone(), *self.random.choose(&[10, 50, 300]) * MILLISECOND);
            self.harness.world.reactor(client.node).spawn(Class::Data, carried::flush_on(files, pause));
            self.background.push(client);
        }
        if behind::somebody_stages(&self.harness.profile) {
            let client = self.harness.add_client();
            let (files, pause) = (client.client.file_system.clone(), *self.random.choose(&[10, 50, 300]) * MILLISECOND);
            self.harness.world.reactor(client.node).spawn(Class::Data, behind::stage_on(files, pause));
            self.background.push(client);
        }
        Ok(())
    }

    /// Carries everything behind, and compares that with what clients see.
    fn flush(&mut self, when: &str) -> Result<(), String> {
        if !carried::is_wanted(&self.harness.profile) {
            return Ok(());
        }
        let world = &self.harness.world;
        let client = self.harness.add_client();
        let (report, view) = carried::flush_and_look(world, &client, PHASE_LIMIT)?;
        if carried::compares(&self.harness.profile) {
            let found = carried::compare(world, &client, PHASE_LIMIT)?;
            self.problems.extend(found.into_iter().map(|words| format!("{when}: {words}")));
        }
        let found = carried::parted_names(world, &client, &report, PHASE_LIMIT)?;
        self.problems.extend(found.into_iter().map(|words| format!("{when}: {words}")));
        world.crash(client.node, CrashKind::Kill);
        if carried::loses_power(&self.harness.profile) {
            // Names that a server has changed and not synced come back where it goes on, as on sites with more machines
            // than one.
            let is_at_rest = || !self.harness.is_flushing();
            if !world.run_until(is_at_rest, PHASE_LIMIT) {
                return Err("servers carry things behind though nobody changes anything".to_owned());
            }
            world.lose_backing_power();
        }
        let found = carried::problems(world, &view, &report, &self.harness.profile.faults);
        self.problems.extend(found.into_iter().map(|words| format!("{when}: {words}")));
        Ok(())
    }

    /// Has somebody else at the site change what is changed here.
    fn quarrel(&mut self) -> Result<(), String> {
        if quarrels::checks(&self.harness.profile) {
            // What somebody has open stays as it is.
            for client in &self.clients {
                self.gone.extend(self.plan.with_forks(client.client.number));
                self.part_with(client);
            }
        }
        let limit = duration_max(&self.harness.profile);
        let found = quarrels::run(&self.harness, &mut self.random.fork(), PHASE_LIMIT, limit)?;
        self.problems.extend(found);
        self.check_servers("after quarrels")
    }

    fn put_to_work(&mut self, position: usize) {
        let client = &self.clients[position];
        let reactor = self.harness.world.reactor(client.node);
        for _ in 0..self.harness.profile.tasks {
            let worker = Worker::new(client.client.clone(), self.plan.clone(), self.random.fork());
            let presence = Presence::new(&self.plan.working);
            reactor.spawn(Class::Data, async move {
                worker.run().await;
                drop(presence);
            });
        }
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.clients.iter().map(|client| client.node).collect()
    }

    /// Lets the clients work and the nemesis strike until all is done.
    fn work(&mut self) -> Result<(), String> {
        let mut nemesis = Nemesis::new(&self.harness, self.random.fork());
        let end = self.harness.world.now() + WORK_LIMIT;
        // Each operation that meets with a call that hangs takes a time-out: not all of them have the time for that.
        let mut hang_end = self.harness.profile.backing.then_some(end - WORK_LIMIT / 2);
        while self.plan.working.get() > 0 {
            let now = self.harness.world.now();
            if hang_end.take_if(|hang_end| now >= *hang_end).is_some() {
                self.harness.world.release_backing();
                self.hangs = false;
            }
            if now >= end {
                return Err("the clients never came to an end".to_owned());
            }
            let until = nemesis.next_remedy().unwrap_or(end).min(hang_end.unwrap_or(end)).clamp(now, end);
            let (working, harness) = (self.plan.working.clone(), &self.harness);
            harness.world.run_until(|| working.get() == 0 || nemesis.is_due(harness), until - now);
            self.harness.start_error()?;
            let strike = nemesis.act(&self.harness, &self.nodes());
            self.harness.recorder.note_unrest(self.hangs || nemesis.is_restless(&self.harness));
            if let Strike::CrashClient(position) = strike {
                self.crash_client(position);
            }
        }
        self.harness.recorder.note_unrest(self.harness.profile.faults.any());
        nemesis.end(&self.harness);
        if self.harness.profile.backing {
            self.harness.world.release_backing();
            self.harness.world.set_backing_faults(behind::no_faults());
        }
        for client in self.checking.take().into_iter().chain(self.background.drain(..)) {
            self.harness.world.crash(client.node, CrashKind::Kill);
        }
        self.problems.append(&mut self.problems_under_load.borrow_mut());
        self.harness.wait_for_servers(START_LIMIT)?;
        self.harness.recorder.note_unrest(false);
        Ok(())
    }

    /// Takes a client down; another one, who knows nothing of it, goes on with its work.
    fn crash_client(&mut self, position: usize) {
        let old = &self.clients[position];
        self.harness.recorder.note(&format!("client {} crashes", old.client.number));
        self.gone.extend(self.plan.with_forks(old.client.number));
        self.harness.world.crash(old.node, CrashKind::Kill);
        self.clients[position] = self.add_working_client();
        self.put_to_work(position);
    }

    /// A client is not needed any more. Every second one says goodbye, whatever it has left open.
    fn part_with(&self, client: &SimClient) {
        if client.client.number.is_multiple_of(2) && self.harness.world.is_running(client.node) {
            let files = client.client.file_system.clone();
            self.harness.world.run(client.node, async move { files.end(async {}).await }, PHASE_LIMIT);
        }
        self.harness.world.crash(client.node, CrashKind::Kill);
    }

    /// Waits until no server works on anything any more; in some runs all servers are killed and started once more.
    fn settle(&mut self) -> Result<Moment, String> {
        if self.random.percent(50) {
            for client in &self.clients {
                self.gone.extend(self.plan.with_forks(client.client.number));
                self.part_with(client);
            }
        }
        if self.harness.profile.faults.any() && self.random.percent(50) {
            if self.random.percent(30) {
                self.synchronise()?;
            }
            self.harness.recorder.note_unrest(true);
            let powerless = self.harness.profile.faults.power_losses && self.random.percent(60);
            for server in self.harness.server_indexes() {
                match powerless {
                    true => self.harness.lose_power(server),
                    false => self.harness.kill(server),
                }
            }
            for server in self.harness.server_indexes() {
                self.harness.restart(server);
            }
            self.harness.wait_for_servers(START_LIMIT)?;
            self.harness.recorder.note_unrest(false);
        }
        match self.harness.profile.sabotage {
            Sabotage::LoseStore => self.harness.sabotage(0, CrashKind::PowerLoss),
            Sabotage::SkipSyncs | Sabotage::IgnoreFlushes => self.lose_what_was_not_synced()?,
            Sabotage::FlipBits => self.harness.sabotage(0, CrashKind::Kill),
            _ => {}
        }
        self.harness.wait_for_servers(START_LIMIT)?;
        self.harness.world.run_for(2 * SECOND);
        let idle = || {
            let at_rest = |audit: &Audit| audit.active + audit.intents + audit.prepared + audit.tree_marks == 0;
            self.harness.audits().iter().all(|(_, audit)| at_rest(audit))
        };
        if !self.harness.world.run_until(idle, PHASE_LIMIT) {
            return Err(format!("servers stay busy with nobody asking: {}", self.describe_audits()));
        }
        for (server, audit) in self.harness.audits() {
            self.problems.extend(audit.errors.iter().map(|error| format!("server {server} after work: {error}")));
        }
        let audits: Vec<Audit> = self.harness.audits().into_iter().map(|(_, audit)| audit).collect();
        self.problems.extend(server::check_links(&audits));
        let healed = self.harness.recorder.with(|history| history.now());
        Ok(if self.harness.profile.faults.any() { healed } else { 0 })
    }

    /// Asks for everything to be synced; then all servers lose power.
    fn lose_what_was_not_synced(&mut self) -> Result<(), String> {
        self.synchronise()?;
        self.harness.server_indexes().for_each(|server| self.harness.lose_power(server));
        self.harness.server_indexes().for_each(|server| self.harness.restart(server));
        Ok(())
    }

    fn synchronise(&mut self) -> Result<(), String> {
        self.as_fresh_client("synchronising", |client| async move {
            client.perform(Action::SynchroniseAll, "/").await;
        })
    }

    /// A fresh client looks at every name and every byte; what it sees is part of the history.
    fn inspect(&mut self) -> Result<(), String> {
        let touched = self.touched_chunks();
        self.as_fresh_client("looking at everything", |client| async move { inspect_all(&client, &touched).await })
    }

    /// Runs the checker of `tabane check` on what the servers hold.
    fn check_servers(&mut self, when: &str) -> Result<(), String> {
        let client = self.harness.add_client();
        let files = client.client.file_system.clone();
        // What went bad is told of as damage, and rightly so.
        let data = self.harness.profile.checksums && !self.harness.profile.faults.rot;
        let options = CheckOptions { data };
        let check = async move { files.check(&options, &|_| {}).await };
        let report = self.harness.world.run(client.node, check, PHASE_LIMIT);
        self.part_with(&client);
        let report = report.ok_or_else(|| format!("the checker {when} does not end"))?;
        let report = report.map_err(|error| format!("the checker {when}: {error}"))?;
        self.problems.extend(report.faults.iter().map(|fault| format!("the checker {when}: {fault}")));
        if !report.undecided.is_empty() {
            self.problems.push(format!("the checker {when} can't decide about {:?}", report.undecided));
        }
        Ok(())
    }

    /// In some runs, runs the checker again and again while the clients work: what it finds wrong must be wrong.
    fn check_under_load(&mut self) {
        if !self.random.percent(25) {
            return;
        }
        let client = self.harness.add_client();
        let (files, problems) = (client.client.file_system.clone(), self.problems_under_load.clone());
        self.harness.world.reactor(client.node).spawn(Class::Data, async move {
            loop {
                // Servers may be down; that is no matter here.
                if let Ok(report) = files.check(&CheckOptions::default(), &|_| {}).await {
                    let words = report.faults.iter().map(|fault| format!("the checker under load: {fault}"));
                    problems.borrow_mut().extend(words);
                }
                files.reactor().sleep(20 * MILLISECOND).await;
            }
        });
        self.checking = Some(client);
    }

    fn clean_up(&mut self) -> Result<(), String> {
        self.as_fresh_client("deleting everything", |client| async move { delete_all(&client).await })?;
        // Deleted means deleted for all.
        self.as_fresh_client("looking at nothing", |client| async move {
            client.perform(Action::List { directory: None, by_server: false }, "/").await;
        })?;
        let left = self.harness.recorder.with(|history| match &history.operations.last().map(|last| &last.outcome) {
            Some(Outcome::Entries(entries)) => entries.iter().map(|entry| entry.name.clone()).collect(),
            other => vec![format!("{other:?}")],
        });
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("after everything was deleted there is still {}", left.join(", ")))
        }
    }

    fn as_fresh_client<F: Future<Output = ()> + 'static>(
        &mut self,
        what: &str,
        work: impl FnOnce(Rc<Client>) -> F,
    ) -> Result<(), String> {
        let client = self.harness.add_client();
        let done = self.harness.world.run(client.node, work(client.client.clone()), PHASE_LIMIT);
        self.part_with(&client);
        done.ok_or_else(|| format!("{what} does not end"))
    }

    /// Which chunks of each file anyone wrote to, with the chunk size.
    fn touched_chunks(&self) -> BTreeMap<FileId, BTreeSet<u64>> {
        let mut touched: BTreeMap<FileId, BTreeSet<u64>> = BTreeMap::new();
        self.harness.recorder.with(|history| {
            for operation in &history.operations {
                if let Action::Write { file, chunk_size, offset, size, .. }
                | Action::CopyRange { file, chunk_size, to: offset, size, .. } = operation.action
                {
                    let pieces = check::chunks::pieces(chunk_size.into(), offset, size);
                    touched.entry(file).or_default().extend(pieces.iter().map(|piece| piece.0));
                }
            }
        });
        touched
    }

    /// With everything deleted and everyone gone, nothing may be left.
    fn look_for_leaks(&mut self) -> Result<(), String> {
        for client in std::mem::take(&mut self.clients) {
            self.gone.extend(self.plan.with_forks(client.client.number));
            self.part_with(&client);
        }
        if self.harness.profile.sabotage == Sabotage::LeaveBehind {
            let path = Path::top("left");
            self.as_fresh_client("leaving something behind", |client| async move {
                client.perform(Action::MakeDirectory { path, mode: 0o700 }, "/left").await;
            })?;
        }
        let limit = self.harness.profile.session_grace * 2 + 120 * SECOND;
        let root_home = self.harness.cluster.home_of(FileId::ROOT);
        let tombstones_max = self.harness.profile.bounds.tombstones as u64;
        let is_left = |(server, audit): &(u32, Audit)| {
            !is_clean(audit, root_home == Some(*server)) || audit.tombstones >= tombstones_max
        };
        let clean = || !self.harness.audits().iter().any(is_left);
        let mut found_clean = false;
        let end = self.harness.world.now() + limit;
        while self.harness.world.now() < end && !found_clean {
            self.harness.world.run_for(SECOND);
            found_clean = clean();
        }
        self.harness.start_error()?;
        if found_clean { Ok(()) } else { Err(format!("something leaked: {}", self.describe_audits())) }
    }

    fn describe_audits(&self) -> String {
        let audits = self.harness.audits();
        let texts: Vec<String> = audits.iter().map(|(server, audit)| format!("server {server} {audit:?}")).collect();
        texts.join("; ")
    }

    fn judge(&mut self, healed: Moment) {
        if let Some(behind) = &self.harness.behind {
            let taken_up = self.harness.taken_up();
            let named = self.harness.recorder.clone().with_mut(|history| behind.name(history, &taken_up));
            self.problems.extend(named);
            if !carried::is_wanted(&self.harness.profile) {
                self.problems.extend(behind.changed(&self.harness.world));
            }
        }
        let profile = &self.harness.profile;
        let expected = failures::Expected {
            healed,
            duration_max: duration_max(profile),
            wait_max: wait_max(profile),
            full: profile.may_be_full(),
            bounded: profile.bounds,
            failed_syncs: profile.faults.failed_syncs,
            rot: profile.faults.rot,
            backing: profile.backing && behind::faults(profile).error > 0,
            flushes: carried::is_wanted(profile),
        };
        let recorder = self.harness.recorder.clone();
        recorder.with(|history| {
            let mut findings = check::check(&Losses::new(history, &self.harness.cluster));
            // Which files a contact had opened for a client nobody has noted; but each that was lost is of such a home.
            let forgetful = self.harness.forgetful_homes();
            let is_excused = |client: &u32| {
                let mut own = history.lost_at.iter().filter(|(loser, _)| loser == client).peekable();
                own.peek().is_some() && own.all(|(_, homes)| homes.iter().any(|home| forgetful.contains(home)))
            };
            let by_contacts = self.harness.client_numbers().filter(is_excused);
            let mut forgotten: BTreeSet<u32> = history.forgotten.iter().copied().chain(by_contacts).collect();
            for (importer, exporter) in &history.importers {
                if forgotten.contains(exporter) {
                    forgotten.insert(*importer);
                }
            }
            let excused = failures::Excused { gone: &self.gone, forgotten: &forgotten };
            // Where there is no room for a session one without connections goes early.
            let remembers = profile.bounds.sessions == Bounds::default().sessions;
            let grace = if remembers { profile.session_grace } else { 0 };
            findings.extend(check::locks::check(&history.operations, &history.losses, grace));
            findings.extend(failures::check(&history.operations, &history.starts, expected, excused));
            for finding in findings {
                self.problems.push(describe(&finding, &history.operations));
            }
        });
    }

    fn report(self) -> Report {
        let recorder = self.harness.recorder.clone();
        recorder.with(|history| {
            let operations = &history.operations;
            let ended = operations.iter().filter(|operation| operation.ended_at != Nanos::MAX);
            let tail_start = operations.len().saturating_sub(TAIL_COUNT);
            let tail = if self.problems.is_empty() { &[] } else { &operations[tail_start..] };
            Report {
                seed: self.harness.profile.seed,
                tail: tail.iter().map(|operation| operation.to_string()).collect(),
                trace_hash: self.harness.world.trace_hash(),
                operations: operations.len(),
                unknown: operations.iter().filter(|operation| matches!(operation.outcome, Outcome::Unknown(_))).count(),
                longest: ended.map(|operation| operation.ended_at - operation.started_at).max().unwrap_or(0),
                duration: self.harness.world.now(),
                problems: self.problems,
            }
        })
    }
}

/// The longest that an operation may take: the client waits for one silent server at a time.
fn duration_max(profile: &Profile) -> Nanos {
    check::failures::WAITS_MAX * wait_max(profile) + 10 * SECOND
}

/// The longest that a client waits for one server, which may itself wait for another before it says so.
fn wait_max(profile: &Profile) -> Nanos {
    profile.client_timeout + profile.server_timeout
}

fn describe(finding: &Finding, operations: &[crate::history::Operation]) -> String {
    let mut text = finding.words.clone();
    for number in &finding.operations {
        text += &format!("\n      #{number} {}", operations[*number]);
    }
    text
}

/// Whether nothing is left on a server but, at its home, the root directory.
pub fn is_clean(audit: &Audit, has_root: bool) -> bool {
    let left = [
        audit.dentries,
        audit.chunks,
        audit.sessions,
        audit.intents,
        audit.marks,
        audit.announced,
        audit.active,
        audit.shares,
    ];
    left.iter().all(|count| *count == 0)
        && audit.inodes == u64::from(has_root)
        && audit.bytes_used + audit.prepared + audit.tree_marks == 0
        && audit.open_files + audit.orphans + audit.extended == 0
        && audit.locked + audit.lock_waiters + audit.permit_waiters == 0
        && audit.errors.is_empty()
}

async fn inspect_all(client: &Client, touched: &BTreeMap<FileId, BTreeSet<u64>>) {
    // Everything is looked at twice, with time before each for what was begun while servers were silent: the first look
    // has all shares of directories glimpsed, the second one has to tell them.
    client.file_system.reactor().sleep(GLIMPSE_TIME_MAX + SECOND).await;
    let mut files = Vec::new();
    let mut directories: Vec<Option<Path>> = vec![None];
    while let Some(directory) = directories.pop() {
        let spelling = spell(&directory);
        for by_server in [false, true] {
            client.perform(Action::List { directory: directory.clone(), by_server }, &spelling).await;
        }
        for (path, kind) in last_listing(client) {
            client.perform(Action::Stat { path: path.clone() }, &path.to_string()).await;
            match kind {
                Kind::Directory => directories.push(Some(path)),
                Kind::Symlink => drop(client.perform(Action::ReadLink { path: path.clone() }, &path.to_string()).await),
                Kind::File => files.push(path),
                // All that can be told of a pipe is in its attributes.
                _ => {}
            }
        }
    }
    client.file_system.reactor().sleep(GLIMPSE_TIME_MAX + SECOND).await;
    // Names that nobody listed must not be there either.
    for path in workload::all_paths() {
        client.perform(Action::Stat { path: path.clone() }, &path.to_string()).await;
    }
    for path in files {
        inspect_file(client, path, touched).await;
    }
}

async fn inspect_file(client: &Client, path: Path, touched: &BTreeMap<FileId, BTreeSet<u64>>) {
    let spelling = path.to_string();
    let open = Action::Open { path, create: false, exclusive: false, truncate: false, mode: 0, chunk_size: 0 };
    let Some(handle) = client.perform(open, &spelling).await else { return };
    let (file, chunk_size) = (handle.file.id, handle.file.layout.chunk_size);
    client.perform_on(Action::StatFile { file }, &handle).await;
    client.perform_on(Action::ListExtended { file }, &handle).await;
    for name in NAMES.map(str::to_owned) {
        client.perform_on(Action::GetExtended { file, name }, &handle).await;
    }
    let size = u64::from(chunk_size);
    let Some(chunks) = touched.get(&file) else {
        client.perform_on(Action::Read { file, chunk_size, offset: 0, size: 1 << 20 }, &handle).await;
        return;
    };
    for chunk in chunks {
        client.perform_on(Action::Read { file, chunk_size, offset: chunk * size, size }, &handle).await;
    }
    client.perform_on(Action::Read { file, chunk_size, offset: 0, size: (3 * size).min(1 << 20) }, &handle).await;
}

fn spell(directory: &Option<Path>) -> String {
    directory.as_ref().map_or("/".to_owned(), Path::to_string)
}

/// Paths and kinds of the listing that the client has just made.
fn last_listing(client: &Client) -> Vec<(Path, Kind)> {
    client.recorder.with(|history| {
        let Some(last) = history.operations.last() else { return Vec::new() };
        let (Action::List { directory, .. }, Outcome::Entries(entries)) = (&last.action, &last.outcome) else {
            return Vec::new();
        };
        let place = |name: &str| directory.as_ref().map_or(Path::top(name), |directory| directory.join(name));
        entries.iter().map(|entry| (place(&entry.name), entry.kind)).collect()
    })
}

async fn delete_all(client: &Client) {
    // Directories are deleted on the way back, when they are empty.
    let mut emptied = Vec::new();
    let mut directories = vec![None];
    while let Some(directory) = directories.pop() {
        let spelling = spell(&directory);
        client.perform(Action::List { directory: directory.clone(), by_server: false }, &spelling).await;
        emptied.extend(directory);
        for (path, kind) in last_listing(client) {
            if kind == Kind::Directory {
                directories.push(Some(path));
            } else {
                client.perform(Action::Unlink { path: path.clone() }, &path.to_string()).await;
            }
        }
    }
    for path in emptied.into_iter().rev() {
        client.perform(Action::RemoveDirectory { path: path.clone() }, &path.to_string()).await;
    }
}
