//! What this client counts of what it does without a server, and of how long it waits for answers (docs/counters.md).
//!
//! Where it shares memory with the server it counts there. To others it tells its numbers once a second at most, while
//! they grow, and at the end: with a message that nobody waits for.
//!
//! Invariant: a message tells totals since the connection began, so that none counts twice. What was told by an earlier
//! connection is no part of them, whether it has arrived or not.

use crate::servers::join::join_all;
use crate::servers::{Common, Servers};
use reactor::channel::Call;
use reactor::{COUNTER_COUNT, Class, ClientCounter, Nanos};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use wire::messages::{Empty, NoteCountersRequest};
use wire::{Encode, Operation};

/// Time between two messages to one server.
const INTERVAL: Nanos = 1_000_000_000;
/// Answers to calls with fewer bytes are timed one in `TIMED_IN`, drawn at random, each for all of these: clocks have
/// their price.
const TIMED_SIZE_MIN: usize = 64 << 10;
const TIMED_IN: u64 = 8;
/// Of the generator of Knuth's MMIX, whose upper bits are drawn.
const FACTOR: u64 = 6_364_136_223_846_793_005;
const SUMMAND: u64 = 1_442_695_040_888_963_407;
/// Longest wait for servers to take in what is told at the end.
pub(crate) const END_WAIT_MAX: Nanos = 1_000_000_000;

/// The numbers of one server, by `ClientCounter`.
#[derive(Default)]
struct ServerCounters {
    now: [u64; COUNTER_COUNT],
    told: [u64; COUNTER_COUNT],
    /// What was told when the connection began.
    begun: [u64; COUNTER_COUNT],
}

/// What is counted for servers that share no memory with us.
#[derive(Default)]
pub(crate) struct UntoldCounters {
    servers: RefCell<BTreeMap<u32, ServerCounters>>,
    /// Somebody will tell them.
    is_due: Cell<bool>,
    /// What was drawn last.
    draw: Cell<u64>,
}

/// A call under way.
pub(crate) enum Timing {
    /// It is answered when something else has happened, and counts for nothing.
    Parked,
    Untimed,
    /// When it began, and for how many it counts.
    Since(Nanos, u64),
}

fn is_parked(operation: Operation) -> bool {
    matches!(operation, Operation::AwaitPermit | Operation::AwaitLock | Operation::KeepEntries)
}

impl Servers {
    /// Tells everything that was counted; returns when servers have taken it in.
    pub(crate) async fn tell_counters_and_wait(&self) {
        let deadline = Some(self.reactor.now().saturating_add(END_WAIT_MAX.min(self.silence())));
        let pings = self.tell_counters().into_iter().map(|server| {
            let channel = self.channel(server);
            // It is answered after what was sent before it on the same connection. Its own answer stays untold.
            async move { channel.call(Call { deadline, ..Call::new(Operation::Ping, &Empty {}) }).await.is_ok() }
        });
        join_all(pings).await;
    }
}

impl Common {
    /// Counts something that was done without a server, or that is known here alone.
    pub(crate) fn count(&self, server: u32, counts: &[(ClientCounter, u64)]) {
        if !self.channel(server).count(counts) {
            let mut servers = self.untold.servers.borrow_mut();
            let now = &mut servers.entry(server).or_default().now;
            counts.iter().for_each(|(counter, count)| now[*counter as usize] += count);
            drop(servers);
            self.tell_counters_later();
        }
    }

    /// A call begins.
    pub(crate) fn await_answer(&self, call: &Call<'_>) -> Timing {
        let sizes = call.body.iter().map(|slice| slice.len()).chain(call.place.iter().map(|slice| slice.len()));
        if is_parked(call.operation) {
            return Timing::Parked;
        }
        if sizes.sum::<usize>() >= TIMED_SIZE_MIN {
            return Timing::Since(self.reactor.now(), 1);
        }
        let draw = (self.untold.draw.get() ^ self.session()).wrapping_mul(FACTOR).wrapping_add(SUMMAND);
        self.untold.draw.set(draw);
        match (draw >> 32).is_multiple_of(TIMED_IN) {
            true => Timing::Since(self.reactor.now(), TIMED_IN),
            false => Timing::Untimed,
        }
    }

    /// It has been answered, by a server that says how long it took.
    pub(crate) fn count_answer(&self, server: u32, timing: Timing, served: Nanos) {
        match timing {
            Timing::Parked => {}
            Timing::Untimed => self.count(server, &[(ClientCounter::Answers, 1)]),
            Timing::Since(begun, weight) => {
                let took = self.reactor.now().saturating_sub(begun);
                self.count(
                    server,
                    &[
                        (ClientCounter::Answers, 1),
                        (ClientCounter::AnswerNs, took.saturating_mul(weight)),
                        (ClientCounter::ServedNs, served.min(took).saturating_mul(weight)),
                    ],
                );
            }
        }
    }

    /// A connection has ended: what is told from now on is told on another one.
    pub(crate) fn begin_counters_anew(&self, server: u32) {
        if let Some(counters) = self.untold.servers.borrow_mut().get_mut(&server) {
            counters.begun = counters.told;
        }
    }

    fn tell_counters_later(&self) {
        if self.untold.is_due.replace(true) {
            return;
        }
        let (own, reactor) = (self.own.clone(), self.reactor.clone());
        self.reactor.spawn(Class::Background, async move {
            reactor.sleep(INTERVAL).await;
            if let Some(common) = own.upgrade() {
                common.untold.is_due.set(false);
                common.tell_counters();
                let is_left = |counters: &ServerCounters| counters.now != counters.told;
                if common.untold.servers.borrow().values().any(is_left) {
                    common.tell_counters_later();
                }
            }
        });
    }

    /// Tells what has grown. Returns to whom.
    pub(crate) fn tell_counters(&self) -> Vec<u32> {
        let mut servers = self.untold.servers.borrow_mut();
        let untold = servers.iter_mut().filter(|(_, counters)| counters.now != counters.told);
        let told = untold.filter_map(|(server, counters)| {
            let since = |counter| counters.now[counter as usize] - counters.begun[counter as usize];
            let request = NoteCountersRequest {
                cached_opens: since(ClientCounter::CachedOpens),
                cached_looks: since(ClientCounter::CachedLooks),
                short_circuit_reads: since(ClientCounter::ShortCircuitReads),
                short_circuit_bytes: since(ClientCounter::ShortCircuitBytes),
                leased_reads: since(ClientCounter::LeasedReads),
                leased_bytes: since(ClientCounter::LeasedBytes),
                answers: since(ClientCounter::Answers),
                answer_ns: since(ClientCounter::AnswerNs),
                served_ns: since(ClientCounter::ServedNs),
                crossing_calls: since(ClientCounter::CrossingCalls),
            };
            // Else with the next connection, if there is one.
            if !self.channel(*server).notify(Operation::NoteCounters, request.to_bytes()) {
                return None;
            }
            counters.told = counters.now;
            Some(*server)
        });
        told.collect()
    }
}
