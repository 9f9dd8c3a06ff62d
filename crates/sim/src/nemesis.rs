//! What goes wrong, drawn from the seed: when a certain number of operations has begun, a fault strikes, and is over
//! after a while.

use crate::harness::Harness;
use crate::profile::{MILLISECOND, SECOND};
use crate::random::Random;
use reactor::Nanos;
use reactor::service::STRANGERS_MAX;
use reactor::sim::NodeId;
use wire::handshake::{GREETING_MAGIC, Greeting, NONCE_SIZE, VOUCHER_SIZE};
use wire::{Encode, PROTOCOL_VERSION};

/// Where bytes go bad: the begin of a store's data, which is used first.
const ROT_SIZE: u64 = 1 << 20;

/// For so long each side waits for a message of the other's.
const HANDSHAKE_NS: Nanos = 10 * SECOND;

/// How often power is lost in a run, at most, beside once at its end.
const POWER_LOSS_COUNT_MAX: u32 = 2;

/// How long a sync goes on before power is lost in it, at most.
const SYNC_TIME_MAX: Nanos = MILLISECOND;

/// What ends a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remedy {
    Restart(u32),
    Heal(NodeId, NodeId),
    Quicken(u32),
    /// What had to wait for words that never come has stopped waiting.
    Pass,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    TornKill,
    Cut,
    Partition,
    Slow,
    ClientCrash,
    Stop,
    Refusal,
    ClockJump,
    PowerLoss,
    FailedSync,
    Rot,
    Flip,
    Strangers,
}

/// What the run has to do about a fault that concerns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strike {
    Nothing,
    /// This client, by position, is to be crashed.
    CrashClient(usize),
}

impl Fault {
    /// Whether servers may be silent for it, if only for as long as connecting takes.
    fn silences(self) -> bool {
        match self {
            Fault::Kill | Fault::TornKill | Fault::Stop | Fault::FailedSync | Fault::PowerLoss => true,
            Fault::Cut | Fault::Partition | Fault::Slow | Fault::Flip => true,
            Fault::ClientCrash | Fault::Refusal | Fault::ClockJump | Fault::Rot | Fault::Strangers => false,
        }
    }
}

/// Whether a server that was asked to stop has, or has died meanwhile.
fn is_down(harness: &Harness, server: u32) -> bool {
    harness.has_stopped(server) || !harness.is_running(server)
}

/// The source of all evil of one run.
pub struct Nemesis {
    random: Random,
    /// Numbers of operations at which a fault strikes, the next one last.
    strikes: Vec<usize>,
    kinds: Vec<Fault>,
    remedies: Vec<(Nanos, Remedy)>,
    /// Servers that will die after some more writes.
    doomed: Vec<u32>,
    /// Servers that were asked to stop.
    stopping: Vec<u32>,
    /// How often power may still be lost: what nobody was told of and may be lost as well makes many histories.
    power_losses_left: u32,
}

impl Nemesis {
    pub fn new(harness: &Harness, mut random: Random) -> Nemesis {
        let faults = harness.profile.faults;
        let mut kinds = Vec::new();
        let mut add = |wanted, fault| {
            if wanted {
                kinds.push(fault);
            }
        };
        add(faults.kills, Fault::Kill);
        add(faults.torn_kills, Fault::TornKill);
        add(faults.cuts, Fault::Cut);
        add(faults.partitions, Fault::Partition);
        add(faults.slow_servers, Fault::Slow);
        add(faults.client_crashes, Fault::ClientCrash);
        add(faults.stops, Fault::Stop);
        add(faults.refusals, Fault::Refusal);
        add(faults.clock_jumps, Fault::ClockJump);
        add(faults.power_losses, Fault::PowerLoss);
        add(faults.failed_syncs, Fault::FailedSync);
        add(faults.rot, Fault::Rot);
        add(faults.flips, Fault::Flip);
        add(faults.strangers, Fault::Strangers);
        let count = if kinds.is_empty() { 0 } else { harness.profile.fault_count };
        let mut strikes: Vec<usize> = (0..count).map(|_| random.below(harness.profile.steps + 1) as usize).collect();
        strikes.sort_unstable_by(|one, other| other.cmp(one));
        Nemesis {
            random,
            strikes,
            kinds,
            remedies: Vec::new(),
            doomed: Vec::new(),
            stopping: Vec::new(),
            power_losses_left: POWER_LOSS_COUNT_MAX,
        }
    }

    /// Whether there is something to do now.
    pub fn is_due(&self, harness: &Harness) -> bool {
        self.strikes.last().is_some_and(|at| harness.recorder.count() >= *at)
            || self.next_remedy().is_some_and(|at| at <= harness.world.now())
            || self.doomed.iter().any(|server| !harness.is_running(*server))
            || self.stopping.iter().any(|server| is_down(harness, *server))
            || harness.server_indexes().any(|server| harness.has_failed(server) && harness.is_running(server))
    }

    /// When the next fault is over.
    pub fn next_remedy(&self) -> Option<Nanos> {
        self.remedies.iter().map(|(at, _)| *at).min()
    }

    /// Does what is due.
    pub fn act(&mut self, harness: &Harness, clients: &[NodeId]) -> Strike {
        let dead: Vec<u32> = self.doomed.iter().copied().filter(|server| !harness.is_running(*server)).collect();
        self.doomed.retain(|server| !dead.contains(server));
        for server in dead {
            harness.recorder.note(&format!("server {server} died in the middle of a write"));
            self.restart_later(harness, server);
        }
        let stopped: Vec<u32> = self.stopping.iter().copied().filter(|server| is_down(harness, *server)).collect();
        self.stopping.retain(|server| !stopped.contains(server));
        for server in stopped {
            harness.kill(server);
            self.restart_later(harness, server);
        }
        for server in harness.server_indexes() {
            if harness.has_failed(server) && harness.is_running(server) {
                harness.recorder.note(&format!("server {server} gives up, for its medium refuses"));
                harness.kill(server);
                self.restart_later(harness, server);
            }
        }
        let now = harness.world.now();
        let due: Vec<Remedy> = self.remedies.iter().filter(|(at, _)| *at <= now).map(|(_, remedy)| *remedy).collect();
        self.remedies.retain(|(at, _)| *at > now);
        for remedy in due {
            self.apply(harness, remedy);
        }
        if self.strikes.last().is_some_and(|at| harness.recorder.count() >= *at) {
            self.strikes.pop();
            return self.strike(harness, clients);
        }
        Strike::Nothing
    }

    /// Whether servers may be silent now, to clients or to each other.
    pub fn is_restless(&self, harness: &Harness) -> bool {
        !(self.remedies.is_empty() && self.doomed.is_empty() && self.stopping.is_empty() && harness.is_calm())
    }

    fn apply(&mut self, harness: &Harness, remedy: Remedy) {
        harness.recorder.note(&format!("remedy: {remedy:?}"));
        match remedy {
            Remedy::Restart(server) => {
                harness.restart(server);
                // Sometimes it does not even survive its recovery.
                if harness.profile.faults.torn_kills && self.random.percent(20) {
                    self.doom(harness, server, 12);
                }
            }
            Remedy::Heal(one, other) => harness.world.heal(one, other),
            Remedy::Quicken(server) => harness.world.set_slowness(harness.node(server), 0, 0),
            Remedy::Pass => {}
        }
    }

    fn doom(&mut self, harness: &Harness, server: u32, writes_max: u64) {
        let count = self.random.between(1, writes_max);
        let torn = self.random.percent(50);
        harness.world.crash_after_writes(harness.node(server), count, torn);
        if !self.doomed.contains(&server) {
            self.doomed.push(server);
        }
    }

    fn later(&mut self, harness: &Harness, remedy: Remedy) {
        let duration = match self.random.below(10) {
            0..5 => self.random.between(MILLISECOND, 50 * MILLISECOND),
            5..8 => self.random.between(50 * MILLISECOND, SECOND),
            8 => self.random.between(SECOND, 4 * SECOND),
            _ => self.random.between(4 * SECOND, 15 * SECOND),
        };
        self.remedies.push((harness.world.now() + duration, remedy));
    }

    fn restart_later(&mut self, harness: &Harness, server: u32) {
        self.later(harness, Remedy::Restart(server));
    }

    fn strike(&mut self, harness: &Harness, clients: &[NodeId]) -> Strike {
        let fault = *self.random.choose(&self.kinds);
        let server = self.random.below(harness.profile.servers.into()) as u32;
        harness.recorder.note(&format!("fault: {fault:?}, server {server}"));
        if fault.silences() {
            harness.recorder.note_unrest(true);
        }
        match fault {
            Fault::Kill if harness.is_running(server) => {
                harness.kill(server);
                self.restart_later(harness, server);
            }
            Fault::TornKill if harness.is_running(server) => {
                let writes_max = *self.random.choose(&[10, 60, 300]);
                self.doom(harness, server, writes_max);
            }
            Fault::Stop if harness.is_running(server) => {
                harness.stop(server);
                self.stopping.push(server);
            }
            Fault::FailedSync if harness.is_running(server) => {
                let count = *self.random.choose(&[2, 6, 20]);
                harness.fail_sync(server, self.random.between(1, count));
            }
            Fault::Kill | Fault::TornKill | Fault::Stop | Fault::FailedSync => {}
            Fault::Cut => {
                let (one, other) = self.pair(harness, server, clients);
                // Somebody may have listened in: what was said on the connection that breaks arrives once more.
                if self.random.percent(50) {
                    harness.world.repeat_connection(one, other);
                }
                harness.world.cut(one, other);
            }
            Fault::Partition => {
                let (one, other) = self.pair(harness, server, clients);
                if self.random.percent(50) {
                    // Then both sides know that the connection is gone, and cannot have another.
                    harness.world.cut(one, other);
                } else if harness.world.now().is_multiple_of(3) {
                    // What is large does not get through, and nobody is told.
                    let size_max = if harness.world.now().is_multiple_of(2) { 1_400 } else { 60_000 };
                    harness.world.black_hole(one, other, size_max);
                    self.later(harness, Remedy::Heal(one, other));
                    return Strike::Nothing;
                }
                harness.world.partition(one, other);
                self.later(harness, Remedy::Heal(one, other));
            }
            Fault::Slow => {
                let least = self.random.below(MILLISECOND);
                let most = least + self.random.below(20 * MILLISECOND);
                harness.world.set_slowness(harness.node(server), least, most);
                self.later(harness, Remedy::Quicken(server));
            }
            // A server that is down has nothing to do without the space, and none comes up without it.
            Fault::Refusal if !harness.is_up(server) => {}
            Fault::Refusal => {
                let count = self.random.between(1, 3);
                harness.world.fail_allocate(harness.node(server), count);
            }
            Fault::PowerLoss => self.lose_power(harness, server),
            Fault::Rot => harness.rot(server, self.random.below(ROT_SIZE)),
            Fault::Flip => {
                harness.world.flip_bits(1, *self.random.choose(&[2, 60, 2_000]));
                // One that makes a message of a handshake seem longer has its reader wait for the rest of it.
                self.remedies.push((harness.world.now() + HANDSHAKE_NS, Remedy::Pass));
            }
            Fault::Strangers => {
                let count = *self.random.choose(&[1, 20, STRANGERS_MAX as u64, 2 * STRANGERS_MAX as u64]);
                let words = (0..count).map(|_| self.strange_words(harness)).collect();
                let stay = self.random.below(2 * HANDSHAKE_NS);
                harness.send_strangers(server, words, stay);
            }
            Fault::ClockJump => harness.skew_clock(server, &mut self.random),
            Fault::ClientCrash => {
                return Strike::CrashClient(self.random.below(clients.len() as u64) as usize);
            }
        }
        Strike::Nothing
    }

    /// Nothing, anything, or a greeting that is as it should be but for its voucher, whole or not.
    fn strange_words(&mut self, harness: &Harness) -> Vec<u8> {
        let mut nonce = [0; NONCE_SIZE];
        nonce.fill_with(|| self.random.next() as u8);
        let greeting = Greeting {
            magic: GREETING_MAGIC,
            protocol_version: PROTOCOL_VERSION,
            cluster: harness.cluster.id,
            server: self.random.below(harness.profile.servers.into()) as u32,
            protection: harness.cluster.protection as u8,
            nonce,
            voucher: [0; VOUCHER_SIZE],
        };
        let mut words = greeting.to_bytes();
        words.splice(0..0, (words.len() as u16).to_le_bytes());
        match self.random.below(4) {
            0 => words.clear(),
            1 => words.fill_with(|| self.random.next() as u8),
            2 => words.truncate(self.random.below(words.len() as u64) as usize),
            _ => {}
        }
        words
    }

    /// Takes power from a server, or from several at once: a rack, or all of them.
    fn lose_power(&mut self, harness: &Harness, server: u32) {
        if self.power_losses_left == 0 {
            return;
        }
        self.power_losses_left -= 1;
        let all = self.random.percent(25);
        if harness.profile.checksums && harness.profile.stable_media && harness.is_up(server) {
            // Within a sync that takes one flush: its record may be on the medium, and its pages not. Not drawn, so
            // that all else stays as it is.
            harness.server(server).start_sync();
            harness.world.run_for(harness.world.now() % SYNC_TIME_MAX);
        }
        for victim in harness.server_indexes() {
            if victim == server || all || self.random.percent(15) {
                harness.lose_power(victim);
                self.restart_later(harness, victim);
            }
        }
    }

    /// A server and a client, or two servers.
    fn pair(&mut self, harness: &Harness, server: u32, clients: &[NodeId]) -> (NodeId, NodeId) {
        let servers = harness.profile.servers;
        if servers > 1 && self.random.percent(40) {
            let other = (server + 1 + self.random.below(u64::from(servers) - 1) as u32) % servers;
            return (harness.node(server), harness.node(other));
        }
        (harness.node(server), *self.random.choose(clients))
    }

    /// Ends all faults: what is broken is mended, who is down is started.
    pub fn end(&mut self, harness: &Harness) {
        self.strikes.clear();
        self.remedies.clear();
        harness.world.heal_all();
        for server in std::mem::take(&mut self.doomed).into_iter().chain(std::mem::take(&mut self.stopping)) {
            // There is no taking back what was said to them but by letting it come.
            harness.kill(server);
        }
        for server in harness.server_indexes() {
            if harness.may_fail(server) {
                harness.kill(server);
            }
            harness.world.set_slowness(harness.node(server), 0, 0);
            harness.restart(server);
        }
    }
}
