//! How long to poll before sleeping.
//!
//! Where cores are shared, giving the core away a few times finds the next message far sooner than sleeping does
//! (waking a sleeping core costs some 19 us), and pure spinning is the worst of all. Two kinds of yields are told apart
//! by the time they take:
//! - one that let somebody else run costs nothing that anybody wanted: many of them are allowed;
//! - one that came straight back burns an idle core: about as much time as a sleep and a wake-up would cost is worth
//!   spending on those, for then waiting costs at most twice of what the better choice would have (the ski-rental
//!   bound). How much exactly is learnt from whether polling longer would have spared the sleep.
//!
//! What a yield to somebody else takes at least is known from what a system call costs here, and what waking costs from
//! the shorter sleeps: the message came just after they had begun. Not from the shortest of all, before which it had
//! come: one of those in a hundred, taken for what waking costs, has whoever also waits for a disk sleep for each
//! message.
//!
//! Where nearly all yields come straight back, the core is ours: waits look without giving it away, for at most the
//! time of a few messages and out of the same allowance, and spare the system calls. A wait now and then yields once to
//! see whether that is still so.
//!
//! Beside a busy neighbour one yield may cost a whole time slice. The time lost so has a budget; where it is used up,
//! waits sleep at once, and the kernel gives whoever wakes the core soon.

use crate::Nanos;
use crate::cores::PreferredCores;
use crate::system;
use std::sync::OnceLock;

/// A yield that takes longer than this met somebody who computes: the kernel takes the core from him at its ticks only.
const YIELD_LONG_NS: Nanos = 2_000_000;
/// A yield that takes as long as so many system calls let somebody else run: one that comes straight back takes two to
/// three, a switch there and back over ten.
const YIELD_SWITCHED_CALLS: Nanos = 7;
/// Bounds for what a system call seems to cost: a hiccup while it was measured must not count for ever.
const SYSTEM_CALL_NS: (Nanos, Nanos) = (50, 2_000);
/// Most yields to others before a sleep.
const SWITCHES_MAX: u32 = 40;
/// What waking seems to cost, at first and within bounds. It comes nearer to a shorter sleep by one share of what lies
/// between, and is forgotten by another share of itself at each longer one: one sleep in seventeen is shorter.
const WAKE_NS: Nanos = 20_000;
const WAKE_NS_RANGE: (Nanos, Nanos) = (2_000, 50_000);
const WAKE_LEARNING: Nanos = 4;
const WAKE_FORGETTING: Nanos = 64;
/// Most time to poll an idle core before a sleep, and the longest sleep that polling a little longer would have spared,
/// in wake-ups.
const IDLE_POLL_WAKES: Nanos = 3;
const SLEEP_SHORT_WAKES: Nanos = 4;
/// Least time to poll an idle core.
const IDLE_POLL_NS_MIN: Nanos = 4_000;
/// Others are taken to want the core once yields to them, less so many straight ones for each, come to this.
const COMPANY_MAX: u32 = 64;
const COMPANY_MIN: u32 = 16;
const COMPANY_PER_SWITCH: u32 = 8;
/// Of so many waits on a core of our own one yields at first.
const CHECK_WAITS: u32 = 64;
/// Longest look before the first yield of a wait: who has just come to share the core waits for no longer. After each
/// yield that came straight back it may take twice as long, up to the second one.
const SPIN_NS_FIRST: Nanos = 10_000;
const SPIN_NS_MAX: Nanos = 40_000;
/// One of so many nanoseconds may go to long yields: that is what looking whether a neighbour still computes costs.
const LOSS_SHARE: Nanos = 100;
/// Time that may be lost at once, after none was lost for a while: a hiccup of the machine is no neighbour.
const LOSS_NS_MAX: Nanos = 20_000_000;
/// Most that is held against the time to come.
const DEBT_NS_MAX: Nanos = 50_000_000;

/// A yield that takes longer than this let somebody else run; measured once for each process.
fn switched_ns() -> Nanos {
    static SWITCHED: OnceLock<Nanos> = OnceLock::new();
    *SWITCHED.get_or_init(|| {
        let cost = (0..16).map(|_| {
            let before = system::monotonic();
            system::call_cheaply();
            system::monotonic() - before
        });
        let (least, most) = SYSTEM_CALL_NS;
        YIELD_SWITCHED_CALLS * cost.min().unwrap_or(most).clamp(least, most)
    })
}

/// Gives the core away once. True if somebody took it.
pub(crate) fn is_core_wanted() -> bool {
    let before = system::monotonic();
    system::yield_core();
    system::monotonic() - before > switched_ns()
}

/// What a loop has learnt about waiting.
pub(crate) struct Waiting {
    switched_ns: Nanos,
    wake_ns: Nanos,
    idle_poll_ns: Nanos,
    /// How much others seem to want the core, 0 to `COMPANY_MAX`; and waits since the last that yielded.
    company: u32,
    unchecked_waits: u32,
    /// What long yields have taken would be earned back at this time; as long as that is ahead, waits sleep at once.
    recovered_at: Nanos,
    /// Where the loop runs as long as nobody computes there.
    pub preferred_cores: Option<PreferredCores>,
}

/// One wait: what of its allowance is used up.
#[derive(Default, Clone, Copy)]
pub(crate) struct Patience {
    switches: u32,
    idle_ns: Nanos,
    /// Until so much of the allowance for an idle core is used up, it may look without giving the core away; and how
    /// long after the next yield.
    spin_until_ns: Nanos,
    next_spin_ns: Nanos,
    exhausted: bool,
}

impl Waiting {
    pub fn new() -> Waiting {
        Waiting::with_switches(switched_ns())
    }

    fn with_switches(switched_ns: Nanos) -> Waiting {
        Waiting {
            switched_ns,
            wake_ns: WAKE_NS,
            idle_poll_ns: WAKE_NS * IDLE_POLL_WAKES,
            company: COMPANY_MAX,
            unchecked_waits: 0,
            recovered_at: 0,
            preferred_cores: None,
        }
    }

    /// Begins a wait.
    pub fn begin(&mut self, now: Nanos) -> Patience {
        self.unchecked_waits += 1;
        let checks = self.unchecked_waits >= CHECK_WAITS;
        if checks {
            self.unchecked_waits = 0;
        }
        let (spin_until_ns, next_spin_ns) =
            if checks { (0, SPIN_NS_FIRST) } else { (SPIN_NS_FIRST, 2 * SPIN_NS_FIRST) };
        let exhausted = now < self.recovered_at;
        if let Some(cores) = &mut self.preferred_cores {
            cores.note_wait(exhausted);
        }
        Patience { spin_until_ns, next_spin_ns, exhausted, ..Patience::default() }
    }

    /// Whether to look once more in this wait without giving the core away.
    pub fn may_spin(&self, patience: &Patience) -> bool {
        let alone = self.company < COMPANY_MIN && !patience.exhausted;
        alone && patience.idle_ns < patience.spin_until_ns.min(self.idle_poll_ns)
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
        if yield_ns <= self.switched_ns {
            patience.idle_ns += round_ns;
            patience.spin_until_ns = patience.idle_ns + patience.next_spin_ns;
            patience.next_spin_ns = (2 * patience.next_spin_ns).min(SPIN_NS_MAX);
            self.company = self.company.saturating_sub(1);
            return;
        }
        self.company = (self.company + COMPANY_PER_SWITCH).min(COMPANY_MAX);
        if yield_ns > YIELD_LONG_NS {
            let earned = now.saturating_sub(LOSS_NS_MAX * LOSS_SHARE);
            let recovered_at = self.recovered_at.max(earned) + yield_ns * LOSS_SHARE;
            self.recovered_at = recovered_at.min(now + DEBT_NS_MAX * LOSS_SHARE);
            patience.exhausted = true;
        } else {
            patience.switches += 1;
        }
    }

    /// Polling was in vain and the sleep that followed took this long.
    pub fn note_slept(&mut self, took: Nanos) {
        let (least, most) = WAKE_NS_RANGE;
        let nearer = match took < self.wake_ns {
            true => self.wake_ns - (self.wake_ns - took) / WAKE_LEARNING,
            false => self.wake_ns + self.wake_ns / WAKE_FORGETTING,
        };
        self.wake_ns = nearer.clamp(least, most);
        self.idle_poll_ns = if took < self.wake_ns * SLEEP_SHORT_WAKES {
            (self.idle_poll_ns * 2).min(self.wake_ns * IDLE_POLL_WAKES).max(IDLE_POLL_NS_MIN)
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

    fn waiting() -> Waiting {
        Waiting::with_switches(1_000)
    }

    /// Goal: an idle core is polled for as long as that pays, and for a bounded time.
    /// Method: feed the rule with long sleeps, then with short ones.
    #[test]
    fn idle_polling_is_learnt() {
        let mut waiting = waiting();
        for _ in 0..100 {
            waiting.note_slept(1_000_000);
        }
        assert_eq!(u64::from(yields(&mut waiting, 300)), IDLE_POLL_NS_MIN / 500);
        for _ in 0..40 {
            waiting.note_slept(10_000);
        }
        let expected = 10_000 * IDLE_POLL_WAKES / 500;
        assert!((expected..expected + 3).contains(&yields(&mut waiting, 300).into()));
    }

    /// Goal: who also waits for a disk still polls for what comes soon, whatever a sleep now and then tells.
    /// Method: two sleeps of 60 us and one of 300 us in turn, and now and then one of 3 us.
    #[test]
    fn rare_short_sleeps_teach_nothing() {
        let mut waiting = waiting();
        for round in 0..2_000 {
            [60_000, 60_000, 300_000].into_iter().for_each(|took| waiting.note_slept(took));
            if round % 30 == 0 {
                waiting.note_slept(3_000);
            }
        }
        assert!(
            waiting.wake_ns > 20_000 && waiting.idle_poll_ns > 60_000,
            "{} {}",
            waiting.wake_ns,
            waiting.idle_poll_ns
        );
    }

    /// Goal: what waking costs is learnt from the shorter sleeps, within bounds, and forgotten where it has grown.
    #[test]
    fn wakes_are_learnt() {
        let mut waiting = waiting();
        (0..40).for_each(|_| waiting.note_slept(7_000));
        assert!((7_000..7_200).contains(&waiting.wake_ns), "{}", waiting.wake_ns);
        let before = waiting.wake_ns;
        waiting.note_slept(1_000_000);
        assert!((before..before + 200).contains(&waiting.wake_ns), "{}", waiting.wake_ns);
        (0..100).for_each(|_| waiting.note_slept(14_000));
        assert!((13_000..14_300).contains(&waiting.wake_ns), "{}", waiting.wake_ns);
        (0..200).for_each(|_| waiting.note_slept(1));
        assert_eq!(waiting.wake_ns, WAKE_NS_RANGE.0);
        (0..1_000).for_each(|_| waiting.note_slept(1_000_000));
        assert_eq!(waiting.wake_ns, WAKE_NS_RANGE.1);
        assert_eq!(waiting.idle_poll_ns, IDLE_POLL_NS_MIN);
    }

    /// Spins until the wait may not; the time of that.
    fn spin(waiting: &mut Waiting, patience: &mut Patience) -> Nanos {
        let before = patience.idle_ns;
        while waiting.may_spin(patience) {
            waiting.note_spin(patience, 200);
        }
        patience.idle_ns - before
    }

    /// Goal: on a core of our own most waits need no yield, within bounds; a hiccup changes nothing, company ends it.
    #[test]
    fn own_core_needs_no_yields() {
        let mut waiting = waiting();
        let mut patience = waiting.begin(0);
        for _ in COMPANY_MIN..=COMPANY_MAX {
            assert!(!waiting.may_spin(&patience), "learnt too soon");
            waiting.note_yield(&mut patience, 300, 1, 0);
        }
        assert!(waiting.may_spin(&patience));
        waiting.note_yield(&mut patience, 5_000, 5_200, 0);
        (0..COMPANY_MAX).for_each(|_| waiting.note_yield(&mut patience, 300, 1, 0));
        waiting.note_yield(&mut patience, 5_000, 5_200, 0);
        let mut checks = 0;
        for _ in 0..10 * CHECK_WAITS {
            let mut patience = waiting.begin(0);
            if spin(&mut waiting, &mut patience) == 0 {
                assert!(waiting.may_yield(&patience));
                waiting.note_yield(&mut patience, 300, 400, 0);
                checks += 1;
                assert_eq!(spin(&mut waiting, &mut patience), SPIN_NS_FIRST, "one yield is enough");
                waiting.note_yield(&mut patience, 300, 400, 0);
                assert_eq!(spin(&mut waiting, &mut patience), 2 * SPIN_NS_FIRST, "the next one comes later");
            } else {
                assert_eq!(patience.idle_ns, SPIN_NS_FIRST);
            }
            assert!(waiting.may_yield(&patience), "what was not spun is yielded");
        }
        assert_eq!(checks, 10);
        // Others come: within a few checks they get the core each time.
        let mut waits = 0;
        while waiting.company < COMPANY_MIN {
            let mut patience = waiting.begin(0);
            if spin(&mut waiting, &mut patience) == 0 {
                waiting.note_yield(&mut patience, 2_000, 2_200, 0);
            }
            waits += 1;
        }
        assert!(waits <= 3 * CHECK_WAITS, "{waits}");
    }

    /// Goal: an idle loop on a core of its own polls no longer than one that yields.
    #[test]
    fn idle_loops_spin_no_longer() {
        let mut waiting = waiting();
        waiting.company = 0;
        (0..100).for_each(|_| waiting.note_slept(1_000_000));
        let mut patience = waiting.begin(0);
        assert_eq!(spin(&mut waiting, &mut patience), IDLE_POLL_NS_MIN);
        assert!(!waiting.may_yield(&patience));
    }

    /// Goal: a core that others want is given away many times, but not for ever.
    #[test]
    fn yields_to_others_are_bounded() {
        let mut waiting = waiting();
        assert_eq!(yields(&mut waiting, 12_000), SWITCHES_MAX);
    }

    /// Goal: beside somebody who computes, waits sleep at once; looking again costs about one per cent of the time.
    /// Method: waits of a microsecond each for ten seconds, in which every yield takes 8 ms; then the neighbour has
    /// gone.
    #[test]
    fn busy_neighbour_ends_yielding() {
        let mut waiting = waiting();
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
        let mut waiting = waiting();
        let now = 1_000_000_000_000;
        assert_eq!(yields_at(&mut waiting, 15_000_000, now), 1);
        assert_eq!(yields_at(&mut waiting, 12_000, now + 1_000), SWITCHES_MAX);
    }
}
