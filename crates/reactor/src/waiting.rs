//! How long to poll before sleeping.
//!
//! Where cores are shared, giving the core away a few times finds the next message far sooner than sleeping does (waking a
//! sleeping core costs some 19 us), and pure spinning is the worst of all. Two kinds of yields are told apart by the time
//! they take:
//! - one that let somebody else run costs nothing that anybody wanted: many of them are allowed;
//! - one that came straight back burns an idle core: about as much time as a sleep and a wake-up would cost is worth
//!   spending on those, for then waiting costs at most twice of what the better choice would have (the ski-rental bound).
//!   How much exactly is learnt from whether polling longer would have spared the sleep.
//!
//! Where yields have come straight back for long, the core is ours: waits look without giving it away first, for at most the
//! time of a few messages and out of the same allowance, and spare the system calls. A wait now and then yields at once to
//! see whether that is still so, and a single yield that let somebody else run ends it.
//!
//! Beside a busy neighbour one yield may cost a whole time slice. The time lost so has a budget; where it is used up, waits
//! sleep at once, and the kernel gives whoever wakes the core soon.

use crate::Nanos;

/// A yield that takes longer than this met somebody who computes: the kernel takes the core from him at its ticks only.
const YIELD_LONG_NS: Nanos = 2_000_000;
/// A yield that takes longer than this let somebody else run.
const YIELD_SWITCHED_NS: Nanos = 1_000;
/// Most yields to others before a sleep.
const SWITCHES_MAX: u32 = 40;
/// A sleep shorter than this would have been spared by polling a little longer.
const SLEEP_SHORT_NS: Nanos = 80_000;
/// Most and least time to poll an idle core before a sleep.
const IDLE_POLL_NS_MAX: Nanos = 60_000;
const IDLE_POLL_NS_MIN: Nanos = 4_000;
/// So many yields in a row that came straight back mean that nobody else wants the core.
const ALONE_YIELDS: u32 = 256;
/// Of so many waits on a core of our own one yields at once.
const CHECK_WAITS: u32 = 32;
/// Longest look without giving the core away: who has just come to share it waits for no longer.
const SPIN_NS_MAX: Nanos = 10_000;
/// One of so many nanoseconds may go to long yields: that is what looking whether a neighbour still computes costs.
const LOSS_SHARE: Nanos = 100;
/// Time that may be lost at once, after none was lost for a while: a hiccup of the machine is no neighbour.
const LOSS_NS_MAX: Nanos = 20_000_000;
/// Most that is held against the time to come.
const DEBT_NS_MAX: Nanos = 50_000_000;

/// What a loop has learnt about waiting.
pub(crate) struct Waiting {
    idle_poll_ns: Nanos,
    /// Yields in a row that came straight back, and waits since the last that yielded at once.
    straight_yields: u32,
    unchecked_waits: u32,
    /// What long yields have taken would be earned back at this time; as long as that is ahead, waits sleep at once.
    recovered_at: Nanos,
}

/// One wait: what of its allowance is used up.
#[derive(Default, Clone, Copy)]
pub(crate) struct Patience {
    switches: u32,
    idle_ns: Nanos,
    /// Until so much of it is used up, no yield is needed.
    spin_ns: Nanos,
    exhausted: bool,
}

impl Waiting {
    pub fn new() -> Waiting {
        Waiting { idle_poll_ns: IDLE_POLL_NS_MAX, straight_yields: 0, unchecked_waits: 0, recovered_at: 0 }
    }

    /// Begins a wait.
    pub fn begin(&mut self, now: Nanos) -> Patience {
        let exhausted = now < self.recovered_at;
        self.unchecked_waits += 1;
        if self.straight_yields < ALONE_YIELDS || self.unchecked_waits >= CHECK_WAITS {
            self.unchecked_waits = 0;
            return Patience { exhausted, ..Patience::default() };
        }
        Patience { exhausted, spin_ns: SPIN_NS_MAX, ..Patience::default() }
    }

    /// Whether to look once more in this wait without giving the core away.
    pub fn may_spin(&self, patience: &Patience) -> bool {
        !patience.exhausted && patience.idle_ns < patience.spin_ns.min(self.idle_poll_ns)
    }

    /// One look without a yield took this long.
    pub fn note_spin(&self, patience: &mut Patience, round_ns: Nanos) {
        patience.idle_ns += round_ns.max(1);
    }

    /// Whether to yield once more in this wait, rather than to sleep.
    pub fn may_yield(&self, patience: &Patience) -> bool {
        !patience.exhausted && patience.switches < SWITCHES_MAX && patience.idle_ns < self.idle_poll_ns
    }

    /// One yield took this long; with the look for work that followed, the round took `round_ns` and ended now.
    pub fn note_yield(&mut self, patience: &mut Patience, yield_ns: Nanos, round_ns: Nanos, now: Nanos) {
        self.straight_yields = if yield_ns > YIELD_SWITCHED_NS { 0 } else { self.straight_yields.saturating_add(1) };
        if yield_ns > YIELD_LONG_NS {
            let earned = now.saturating_sub(LOSS_NS_MAX * LOSS_SHARE);
            let recovered_at = self.recovered_at.max(earned) + yield_ns * LOSS_SHARE;
            self.recovered_at = recovered_at.min(now + DEBT_NS_MAX * LOSS_SHARE);
            patience.exhausted = true;
        } else if yield_ns > YIELD_SWITCHED_NS {
            patience.switches += 1;
        } else {
            patience.idle_ns += round_ns;
        }
    }

    /// Polling was in vain and the sleep that followed took this long.
    pub fn note_slept(&mut self, took: Nanos) {
        self.idle_poll_ns = if took < SLEEP_SHORT_NS {
            (self.idle_poll_ns * 2).min(IDLE_POLL_NS_MAX)
        } else {
            (self.idle_poll_ns * 7 / 8).max(IDLE_POLL_NS_MIN)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Yields of one wait until it sleeps, when each takes this long.
    fn yields(waiting: &mut Waiting, yield_ns: Nanos) -> u32 {
        yields_at(waiting, yield_ns, 0)
    }

    fn yields_at(waiting: &mut Waiting, yield_ns: Nanos, now: Nanos) -> u32 {
        let mut patience = waiting.begin(now);
        let mut count = 0;
        while waiting.may_yield(&patience) {
            waiting.note_yield(&mut patience, yield_ns, yield_ns + 200, now);
            count += 1;
        }
        count
    }

    /// Goal: an idle core is polled for as long as that pays, and for a bounded time.
    /// Method: feed the rule with long sleeps, then with short ones.
    #[test]
    fn idle_polling_is_learnt() {
        let mut waiting = Waiting::new();
        for _ in 0..100 {
            waiting.note_slept(1_000_000);
        }
        assert_eq!(u64::from(yields(&mut waiting, 300)), IDLE_POLL_NS_MIN / 500);
        for _ in 0..6 {
            waiting.note_slept(10_000);
        }
        assert_eq!(u64::from(yields(&mut waiting, 300)), IDLE_POLL_NS_MAX / 500);
    }

    /// Goal: on a core of our own most waits need no yield, within bounds; one yield to somebody else ends that.
    #[test]
    fn own_core_needs_no_yields() {
        let mut waiting = Waiting::new();
        for _ in 0..ALONE_YIELDS / 10 {
            let mut patience = waiting.begin(0);
            (0..10).for_each(|_| waiting.note_yield(&mut patience, 300, 500, 0));
            assert!(!waiting.may_spin(&patience), "learnt too soon");
        }
        yields(&mut waiting, 300);
        let spinning = (0..10 * CHECK_WAITS).filter(|_| {
            let mut patience = waiting.begin(0);
            let mut spun_ns = 0;
            while waiting.may_spin(&patience) {
                waiting.note_spin(&mut patience, 200);
                spun_ns += 200;
            }
            assert!(spun_ns == 0 || spun_ns == SPIN_NS_MAX, "{spun_ns}");
            assert!(waiting.may_yield(&patience), "what was not spun is yielded");
            spun_ns > 0
        });
        assert_eq!(spinning.count() as u32, 10 * (CHECK_WAITS - 1));
        // An idle loop polls no longer than before.
        (0..100).for_each(|_| waiting.note_slept(1_000_000));
        let mut patience = waiting.begin(0);
        patience.spin_ns = SPIN_NS_MAX;
        while waiting.may_spin(&patience) {
            waiting.note_spin(&mut patience, 200);
        }
        assert_eq!(patience.idle_ns, IDLE_POLL_NS_MIN);
        let mut patience = waiting.begin(0);
        waiting.note_yield(&mut patience, 3_000, 3_200, 0);
        for _ in 0..2 * CHECK_WAITS {
            let patience = waiting.begin(0);
            assert!(!waiting.may_spin(&patience), "somebody else wants the core");
        }
    }

    /// Goal: a core that others want is given away many times, but not for ever.
    #[test]
    fn yields_to_others_are_bounded() {
        let mut waiting = Waiting::new();
        assert_eq!(yields(&mut waiting, 12_000), SWITCHES_MAX);
    }

    /// Goal: beside somebody who computes, waits sleep at once; looking again costs about one per cent of the time.
    /// Method: waits of a microsecond each for ten seconds, in which every yield takes 8 ms; then the neighbour has gone.
    #[test]
    fn busy_neighbour_ends_yielding() {
        let mut waiting = Waiting::new();
        let (begun, mut yielded) = (1_000_000_000_000, 0);
        let mut now = begun;
        while now < begun + 10_000_000_000 {
            let count = u64::from(yields_at(&mut waiting, 8_000_000, now));
            yielded += count * 8_000_000;
            now += count * 8_000_000 + 1_000;
        }
        assert!(yielded > 0 && yielded <= (now - begun) / LOSS_SHARE + LOSS_NS_MAX + 8_000_000, "{yielded}");
        assert_eq!(yields_at(&mut waiting, 12_000, now + DEBT_NS_MAX * LOSS_SHARE), SWITCHES_MAX);
    }

    /// Goal: one hiccup changes nothing for the waits after it.
    #[test]
    fn hiccups_are_forgiven() {
        let mut waiting = Waiting::new();
        let now = 1_000_000_000_000;
        assert_eq!(yields_at(&mut waiting, 15_000_000, now), 1);
        assert_eq!(yields_at(&mut waiting, 12_000, now + 1_000), SWITCHES_MAX);
    }
}
