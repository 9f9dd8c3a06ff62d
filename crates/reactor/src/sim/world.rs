//! Nodes, virtual time, and who runs next.
//!
//! Invariants
//! 1. All randomness comes from the seed; each node has a stream of its own, so that a node's draws do not shift the
//!    world's.
//! 2. Virtual time never goes back.
//! 3. A node that was frozen in the middle of a turn (`crash_after_writes`) is taken down when that turn ends.

use super::backing::{Site, SiteCalls};
use super::device::Devices;
use super::disk::Disk;
use super::driver::SimDriver;
use super::model::{Agenda, ProcessorCosts};
use super::network::Network;
use crate::attribute_cache::CacheFault;
use crate::short_circuit::Validation;
use crate::system::{FastRandom, mix};
use crate::{Class, Nanos, Reactor};
use shm::hazard_pointers::HAZARD_COUNT;
use shm::submission::{LeftoverFault, SLOT_COUNT};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::IpAddr;
use std::rc::Rc;

/// Names a node of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) usize);

/// How a node goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashKind {
    /// The process ends: what it wrote to its regions stays, its connections end or break.
    Kill,
    /// The machine ends: what was not synced may be lost or torn, everything on volatile media is lost, peers hear
    /// nothing.
    PowerLoss,
}

/// Wall-clock time at which worlds begin: nanoseconds since the epoch.
const WALL_CLOCK_START: i64 = 1_700_000_000_000_000_000;
/// Time that a turn takes: at least, and how much more at random.
const TURN_NS_MIN: Nanos = 300;
const TURN_NS_SPREAD: u64 = 3_000;

/// A node as its driver and the network see it.
pub(crate) struct Node {
    pub id: NodeId,
    pub name: String,
    pub ip: IpAddr,
    /// Grows with every crash, so that what an earlier life left behind is recognised.
    pub incarnation: Cell<u64>,
    /// The process runs.
    pub running: Cell<bool>,
    /// The machine answers (with a refusal, if the process does not run).
    pub host_up: Cell<bool>,
    /// The process has crashed in the middle of its turn: nothing that it does from here on counts.
    pub frozen: Cell<bool>,
    /// Region writes left until it freezes, and whether the last one is torn.
    pub writes_left: Cell<Option<(u64, bool)>>,
    pub random: FastRandom,
    pub wall_offset: Cell<i64>,
    drift_ppm: Cell<i64>,
    /// Local time and world time at which the drift was last set.
    clock_base: Cell<(Nanos, Nanos)>,
    /// Extra time after each turn: at least, at most.
    slowness: Cell<(Nanos, Nanos)>,
    /// Time that each poll of a task takes, beyond that of the turn.
    poll_time: Cell<Nanos>,
    /// Somebody else wants its processor.
    pub core_wanted: Cell<bool>,
    pub(super) not_before: Cell<Nanos>,
    /// What its processor takes for what it does, in worlds with a model of costs.
    pub(super) costs: Cell<Option<ProcessorCosts>>,
    /// Time that the turn under way has taken so far.
    pub(super) spent: Cell<Nanos>,
    /// When its network card has sent, and received, all that it was given.
    pub(super) card_free: [Cell<Nanos>; 2],
    pub disk: RefCell<Disk>,
    pub devices: Devices,
    pub site_calls: SiteCalls,
}

impl Node {
    /// The node's monotonic clock at a world time.
    pub fn local_time(&self, time: Nanos) -> Nanos {
        let (local, world) = self.clock_base.get();
        let passed = i128::from(time - world) * (1_000_000 + i128::from(self.drift_ppm.get())) / 1_000_000;
        local + passed as u64
    }

    /// The first world time at which the node's clock shows at least `local`.
    pub(super) fn world_time(&self, local: Nanos) -> Nanos {
        let (base, world) = self.clock_base.get();
        let rate = 1_000_000 + i128::from(self.drift_ppm.get());
        let passed = (i128::from(local.saturating_sub(base)) * 1_000_000 + rate - 1) / rate;
        world.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}

/// What all parts of a world share.
pub(crate) struct Universe {
    pub time: Cell<Nanos>,
    pub random: FastRandom,
    trace: Cell<u64>,
    pub network: RefCell<Network>,
    pub nodes: RefCell<Vec<Rc<Node>>>,
    /// Who is next, in worlds with a model of costs.
    pub(super) agenda: RefCell<Option<Agenda>>,
    /// See `World::leave_out`.
    pub trust: Cell<Option<Validation>>,
    pub forgets_mapping_locks: Cell<bool>,
    /// See `World::ignore_hazards`.
    pub ignores_hazards: Cell<bool>,
    /// See `World::limit_clients`.
    pub hazards_max: Cell<usize>,
    pub submissions_max: Cell<u64>,
    /// See `World::ignore_intent_locks` and `World::take_submissions_late`.
    pub ignores_intent_locks: Cell<bool>,
    pub takes_submissions_late: Cell<bool>,
    /// See `World::mix_writes`.
    pub mixes_writes: Cell<bool>,
    /// See `World::set_leftover_fault`.
    pub leftover_fault: Cell<LeftoverFault>,
    /// What owners of attribute caches do wrong.
    pub cache_fault: Cell<CacheFault>,
    pub writes_on: Cell<bool>,
    /// The site's file system, which all nodes share.
    pub site: RefCell<Site>,
}

impl Universe {
    /// Folds something that happened into the trace.
    pub fn trace(&self, what: u64, detail: u64) {
        let state = self.trace.get().rotate_left(5) ^ mix(what ^ self.time.get().rotate_left(32)) ^ mix(!detail);
        self.trace.set(mix(state));
    }

    /// A random number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0);
        ((u128::from(self.random.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A random number from a range, both ends included.
    pub fn between(&self, least: u64, most: u64) -> u64 {
        least + self.below((most - least).saturating_add(1))
    }

    pub fn node(&self, node: NodeId) -> Rc<Node> {
        self.nodes.borrow()[node.0].clone()
    }

    /// The site's clock: nanoseconds since the epoch.
    pub fn site_clock(&self) -> i64 {
        WALL_CLOCK_START + self.time.get() as i64
    }

    pub fn wall_clock(&self, node: &Node) -> i64 {
        WALL_CLOCK_START + self.time.get() as i64 + node.wall_offset.get()
    }
}

/// A simulated world. Its methods may be called between steps and from within the condition of `run_until`.
pub struct World {
    seed: u64,
    pub(crate) universe: Rc<Universe>,
    pub(super) reactors: RefCell<Vec<Option<Reactor>>>,
}

impl World {
    /// An empty world. Everything that happens in it follows from the seed.
    pub fn new(seed: u64) -> World {
        World {
            seed,
            universe: Rc::new(Universe {
                time: Cell::new(1_000_000_000),
                random: FastRandom::with_seed(mix(seed)),
                trace: Cell::new(0),
                network: RefCell::new(Network::new()),
                nodes: RefCell::default(),
                agenda: RefCell::default(),
                trust: Cell::default(),
                forgets_mapping_locks: Cell::new(false),
                ignores_hazards: Cell::new(false),
                hazards_max: Cell::new(HAZARD_COUNT),
                submissions_max: Cell::new(SLOT_COUNT),
                ignores_intent_locks: Cell::new(false),
                takes_submissions_late: Cell::new(false),
                mixes_writes: Cell::new(false),
                leftover_fault: Cell::new(LeftoverFault::None),
                cache_fault: Cell::default(),
                writes_on: Cell::new(false),
                site: RefCell::default(),
            }),
            reactors: RefCell::default(),
        }
    }

    /// The seed that it was made from; tests print it when they fail.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// From now on nobody who reads in shared memory makes a check of this kind: a fault that tests must notice.
    pub fn leave_out(&self, validation: Validation) {
        self.universe.trust.set(Some(validation));
    }

    /// From now on no storage knows that somebody may still write to what was lent: a fault that tests must notice.
    pub fn forget_mapping_locks(&self) {
        self.universe.forgets_mapping_locks.set(true);
    }

    /// From now on a client that connects holds at most so many files of a server by hazard pointers, and has at most
    /// so many submissions waiting there.
    pub fn limit_clients(&self, hazards: usize, submissions: u64) {
        self.universe.hazards_max.set(hazards);
        self.universe.submissions_max.set(submissions);
    }

    /// From now on servers do not see what clients hold: a fault that tests must notice.
    pub fn ignore_hazards(&self) {
        self.universe.ignores_hazards.set(true);
    }

    /// From now on clients do not see what others are about to change: a fault that tests must notice.
    pub fn ignore_intent_locks(&self) {
        self.universe.ignores_intent_locks.set(true);
    }

    /// From now on servers do other things before they take up what was submitted: a fault that tests must notice.
    pub fn take_submissions_late(&self) {
        self.universe.takes_submissions_late.set(true);
    }

    /// From now on servers take up what clients have written client by client: a fault that tests must notice.
    pub fn mix_writes(&self) {
        self.universe.mixes_writes.set(true);
    }

    /// From now on servers that start again find what the fault says of what was submitted to the life before: tests
    /// must notice it.
    pub fn set_leftover_fault(&self, fault: LeftoverFault) {
        self.universe.leftover_fault.set(fault);
    }

    /// From now on owners of attribute caches do something wrong, which tests must notice.
    pub fn set_cache_fault(&self, fault: CacheFault) {
        self.universe.cache_fault.set(fault);
    }

    /// From now on whoever has borrowed pages copies into them once more after he has said that their bytes are there:
    /// a fault that tests must notice.
    pub fn write_on(&self) {
        self.universe.writes_on.set(true);
    }

    /// A number that folds everything that has happened: equal for runs of the same seed and program.
    pub fn trace_hash(&self) -> u64 {
        self.universe.trace.get()
    }

    /// Virtual time since the world's zero.
    pub fn now(&self) -> Nanos {
        self.universe.time.get()
    }

    /// A random number of the world's, for decisions of the test itself.
    pub fn random(&self) -> u64 {
        self.universe.random.next()
    }

    /// Adds a running node with an address of its own.
    pub fn add_node(&self, name: &str, ip: IpAddr) -> NodeId {
        let mut nodes = self.universe.nodes.borrow_mut();
        assert!(nodes.iter().all(|node| node.name != name && node.ip != ip), "nodes differ in name and address");
        let id = NodeId(nodes.len());
        let seed = name.bytes().fold(mix(self.seed ^ 0x6e6f_6465), |state, byte| mix(state ^ u64::from(byte)));
        nodes.push(Rc::new(Node {
            id,
            name: name.to_owned(),
            ip,
            incarnation: Cell::new(0),
            running: Cell::new(true),
            host_up: Cell::new(true),
            frozen: Cell::new(false),
            writes_left: Cell::new(None),
            random: FastRandom::with_seed(seed),
            wall_offset: Cell::new(0),
            drift_ppm: Cell::new(0),
            clock_base: Cell::new((mix(seed) >> 20, self.now())),
            slowness: Cell::new((0, 0)),
            poll_time: Cell::new(0),
            core_wanted: Cell::new(false),
            not_before: Cell::new(0),
            costs: Cell::new(None),
            spent: Cell::new(0),
            card_free: Default::default(),
            disk: RefCell::default(),
            devices: Devices::default(),
            site_calls: SiteCalls::default(),
        }));
        drop(nodes);
        let reactor = self.boot(id);
        self.reactors.borrow_mut().push(Some(reactor));
        id
    }

    fn boot(&self, node: NodeId) -> Reactor {
        Reactor::with_driver(Box::new(SimDriver::new(self.universe.clone(), node)))
    }

    /// The reactor of a running node. Panics if the node is down.
    pub fn reactor(&self, node: NodeId) -> Reactor {
        self.reactors.borrow()[node.0].clone().expect("the node is running")
    }

    /// Whether a node is running.
    pub fn is_running(&self, node: NodeId) -> bool {
        self.reactors.borrow()[node.0].is_some()
    }

    /// Does one thing: turns a node that has something to do, chosen at random, or else advances time to the next
    /// event. False if nothing will ever happen by itself any more.
    pub fn step(&self) -> bool {
        self.step_until(Nanos::MAX)
    }

    fn step_until(&self, limit: Nanos) -> bool {
        if self.universe.agenda.borrow().is_some() {
            return self.step_by_model(limit);
        }
        let universe = &*self.universe;
        let now = universe.time.get();
        let mut runnable = Vec::new();
        let mut next = universe.network.borrow().next_event();
        for (index, reactor) in self.reactors.borrow().iter().enumerate() {
            let Some(reactor) = reactor else { continue };
            let Some(at) = self.runs_at(NodeId(index), reactor) else { continue };
            if at <= now {
                runnable.push((NodeId(index), reactor.clone()));
            } else {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        if runnable.is_empty() {
            let Some(next) = next else { return false };
            self.advance(next.min(limit).max(now));
            return true;
        }
        let (node, reactor) = &runnable[universe.below(runnable.len() as u64) as usize];
        self.turn(*node, reactor);
        true
    }

    /// When the node wants its next turn.
    pub(super) fn runs_at(&self, id: NodeId, reactor: &Reactor) -> Option<Nanos> {
        let node = self.universe.node(id);
        let at = match reactor.has_ready() {
            true => self.now(),
            false => {
                let timer = reactor.next_deadline().map(|deadline| node.world_time(deadline));
                let ends = [node.devices.next_completion(), node.site_calls.next_completion()];
                timer.into_iter().chain(ends.into_iter().flatten()).min()?
            }
        };
        Some(at.max(node.not_before.get()))
    }

    /// Tells a node's loop that it is its turn. Its processor may have been busy until now.
    pub(super) fn note_turn(&self, node: &Node, reactor: &Reactor) {
        let was_idle = node.not_before.get() < self.now();
        reactor.note_turn(node.local_time(self.now()), was_idle);
    }

    fn turn(&self, id: NodeId, reactor: &Reactor) {
        let universe = &*self.universe;
        let polls_before = reactor.statistics().polls;
        let node = universe.node(id);
        self.note_turn(&node, reactor);
        reactor.turn(false);
        universe.trace(1 + id.0 as u64, reactor.statistics().polls);
        if node.frozen.get() {
            self.crash(id, CrashKind::Kill);
        }
        let (least, most) = node.slowness.get();
        if most > 0 {
            node.not_before.set(self.now() + universe.between(least, most));
        }
        if node.poll_time.get() > 0 {
            let polls = reactor.statistics().polls - polls_before;
            node.not_before.set(node.not_before.get().max(self.now()) + polls * node.poll_time.get());
        }
        self.advance(self.now() + TURN_NS_MIN + universe.below(TURN_NS_SPREAD));
    }

    /// Moves time on and lets the network do what is due.
    pub(super) fn advance(&self, time: Nanos) {
        assert!(time >= self.now(), "time never goes back");
        self.universe.time.set(time);
        Network::deliver_due(&self.universe);
    }

    /// Steps until the condition holds. False if it does not within `limit` nanoseconds of virtual time, or never will.
    pub fn run_until(&self, mut condition: impl FnMut() -> bool, limit: Nanos) -> bool {
        let end = self.now().saturating_add(limit);
        self.review_agenda();
        loop {
            if condition() {
                return true;
            }
            if self.now() >= end {
                return false;
            }
            if !self.step_until(end) {
                return condition();
            }
        }
    }

    /// Steps for a time. Time passes also when nothing happens.
    pub fn run_for(&self, duration: Nanos) {
        let end = self.now().saturating_add(duration);
        self.run_until(|| false, duration);
        if self.now() < end {
            self.advance(end);
        }
    }

    /// Runs a future on a node to its end. `None` if it does not end within `limit` nanoseconds of virtual time, or the
    /// node went down; the task is dropped then.
    pub fn run<T: 'static>(&self, node: NodeId, future: impl Future<Output = T> + 'static, limit: Nanos) -> Option<T> {
        let result = Rc::new(RefCell::new(None));
        let place = result.clone();
        let handle = self.reactor(node).spawn_joinable(Class::Metadata, async move {
            let value = future.await;
            *place.borrow_mut() = Some(value);
        });
        let ended = self.run_until(|| result.borrow().is_some() || Rc::strong_count(&result) == 1, limit);
        if !ended {
            handle.cancel();
        }
        result.borrow_mut().take()
    }

    /// Takes a node down now. One that is down already can still lose power, and with it what its process had not
    /// synced.
    pub fn crash(&self, id: NodeId, kind: CrashKind) {
        let universe = &*self.universe;
        let Some(reactor) = self.reactors.borrow_mut()[id.0].take() else {
            if kind == CrashKind::PowerLoss {
                let node = universe.node(id);
                node.host_up.set(false);
                node.disk.borrow_mut().crash(universe, kind);
                node.devices.crash(universe, kind);
                node.site_calls.crash(universe, id, kind);
            }
            return;
        };
        universe.trace(0x1_0000 + id.0 as u64, kind as u64);
        let node = universe.node(id);
        node.running.set(false);
        node.host_up.set(kind == CrashKind::Kill);
        // Destructors of the tasks run below; nothing that they do may count.
        node.frozen.set(true);
        Network::crash(universe, id, kind);
        reactor.shutdown();
        drop(reactor);
        node.incarnation.set(node.incarnation.get() + 1);
        node.writes_left.set(None);
        node.disk.borrow_mut().crash(universe, kind);
        node.devices.crash(universe, kind);
        node.site_calls.crash(universe, id, kind);
        node.frozen.set(false);
    }

    /// Starts a node that is down, over the regions that it left.
    pub fn restart(&self, id: NodeId) -> Reactor {
        assert!(!self.is_running(id), "only a node that is down is restarted");
        let universe = &*self.universe;
        universe.trace(0x2_0000 + id.0 as u64, 0);
        let node = universe.node(id);
        if !node.host_up.get() {
            // A machine that was off has a new monotonic clock.
            node.clock_base.set((node.random.next() >> 24, self.now()));
        }
        node.running.set(true);
        node.host_up.set(true);
        node.not_before.set(0);
        Network::restarted(universe, id);
        let reactor = self.boot(id);
        self.reactors.borrow_mut()[id.0] = Some(reactor.clone());
        reactor
    }

    /// Lets the `count`-th next write of a node to its regions (counted from 1) be its last: with `torn` it stops at a
    /// random byte. Bytes that arrived in a region (`Region::note_received`) count as a write too, but not as a torn
    /// one. What the node writes or sends after that does not count, and it is taken down at the end of its turn.
    pub fn crash_after_writes(&self, node: NodeId, count: u64, torn: bool) {
        assert!(count > 0, "writes are counted from 1");
        self.universe.node(node).writes_left.set(Some((count, torn)));
    }

    /// Makes every turn of a node be followed by a pause, at random between the two; zeros make it quick again.
    pub fn set_slowness(&self, node: NodeId, least: Nanos, most: Nanos) {
        assert!(least <= most);
        self.universe.node(node).slowness.set((least, most));
    }

    /// Makes a node busy for so long after each poll of a task: a model of what its processor takes for a request.
    pub fn set_poll_time(&self, node: NodeId, time: Nanos) {
        self.universe.node(node).poll_time.set(time);
    }

    /// Says whether other programs want a node's processor.
    pub fn set_core_wanted(&self, node: NodeId, wanted: bool) {
        self.universe.node(node).core_wanted.set(wanted);
    }

    /// Sets how far a node's wall clock is off, and how much faster its monotonic clock runs, in millionths.
    pub fn set_clock(&self, node: NodeId, wall_offset: i64, drift_ppm: i64) {
        assert!(drift_ppm.abs() < 1_000_000);
        let node = self.universe.node(node);
        node.clock_base.set((node.local_time(self.now()), self.now()));
        node.drift_ppm.set(drift_ppm);
        node.wall_offset.set(wall_offset);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Tasks hold their reactor and the world's parts: break the cycles.
        for reactor in self.reactors.borrow_mut().drain(..).flatten() {
            reactor.shutdown();
        }
        self.universe.network.replace(Network::new());
        for node in self.universe.nodes.borrow().iter() {
            node.disk.replace(Disk::default());
            node.devices.clear();
            node.site_calls.clear();
        }
    }
}
