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
//! Beside a busy neighbour one yield may cost a whole time slice, and then sleeping at once wins for a while.

use crate::Nanos;

/// A yield that takes longer than this met somebody who computes: sleep at once for a while.
const YIELD_LONG_NS: Nanos = 500_000;
/// A yield that takes longer than this let somebody else run.
const YIELD_SWITCHED_NS: Nanos = 1_000;
/// Most yields to others before a sleep.
const SWITCHES_MAX: u32 = 40;
/// A sleep shorter than this would have been spared by polling a little longer.
const SLEEP_SHORT_NS: Nanos = 80_000;
/// Most and least time to poll an idle core before a sleep.
const IDLE_POLL_NS_MAX: Nanos = 60_000;
const IDLE_POLL_NS_MIN: Nanos = 4_000;
/// Number of waits that sleep at once after a long yield.
const PENALTY_WAITS: u32 = 64;

/// What a loop has learnt about waiting.
pub(crate) struct Waiting {
    idle_poll_ns: Nanos,
    penalty: u32,
}

/// One wait: what of its allowance is used up.
#[derive(Default, Clone, Copy)]
pub(crate) struct Patience {
    switches: u32,
    idle_ns: Nanos,
    exhausted: bool,
}

impl Waiting {
    pub fn new() -> Waiting {
        Waiting { idle_poll_ns: IDLE_POLL_NS_MAX, penalty: 0 }
    }

    /// Begins a wait.
    pub fn begin(&mut self) -> Patience {
        let exhausted = self.penalty > 0;
        self.penalty = self.penalty.saturating_sub(1);
        Patience { exhausted, ..Patience::default() }
    }

    /// Whether to yield once more in this wait, rather than to sleep.
    pub fn may_yield(&self, patience: &Patience) -> bool {
        !patience.exhausted && patience.switches < SWITCHES_MAX && patience.idle_ns < self.idle_poll_ns
    }

    /// One yield took this long; with the look for work that followed, the round took `round_ns`.
    pub fn note_yield(&mut self, patience: &mut Patience, yield_ns: Nanos, round_ns: Nanos) {
        if yield_ns > YIELD_LONG_NS {
            self.penalty = PENALTY_WAITS;
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
        let mut patience = waiting.begin();
        let mut count = 0;
        while waiting.may_yield(&patience) {
            waiting.note_yield(&mut patience, yield_ns, yield_ns + 200);
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

    /// Goal: a core that others want is given away many times, but not for ever.
    #[test]
    fn yields_to_others_are_bounded() {
        let mut waiting = Waiting::new();
        assert_eq!(yields(&mut waiting, 12_000), SWITCHES_MAX);
    }

    /// Goal: beside somebody who computes, waits sleep at once, and yields are tried again later.
    #[test]
    fn busy_neighbour_ends_yielding() {
        let mut waiting = Waiting::new();
        assert_eq!(yields(&mut waiting, 4_000_000), 1);
        for _ in 0..PENALTY_WAITS {
            assert_eq!(yields(&mut waiting, 4_000_000), 0);
        }
        assert_eq!(yields(&mut waiting, 12_000), SWITCHES_MAX);
    }
}
