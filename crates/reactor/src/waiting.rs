//! How long to poll before sleeping.
//!
//! Where cores are shared, giving the core away a few times finds the next message far sooner than sleeping does (waking a
//! sleeping core costs some 19 us), and pure spinning is the worst of all. Beside a busy neighbour, though, one yield may
//! cost a whole time slice, and then sleeping wins. So the number of yields is learnt from both.

use crate::Nanos;

/// A yield that takes longer than this met somebody who computes: sleep at once for a while.
const YIELD_LONG_NS: Nanos = 100_000;
/// A sleep shorter than this would have been spared by polling a little longer.
const SLEEP_SHORT_NS: Nanos = 60_000;
/// Most yields before a sleep; at about 0.4 us each on an idle core this is some 40 us.
const ROUNDS_MAX: u32 = 100;
/// Fewest yields before a sleep.
const ROUNDS_MIN: u32 = 2;
/// Number of waits that sleep at once after a long yield.
const PENALTY_WAITS: u32 = 64;

/// What a loop has learnt about waiting.
pub(crate) struct Waiting {
    rounds: u32,
    penalty: u32,
}

impl Waiting {
    pub fn new() -> Waiting {
        Waiting { rounds: 20, penalty: 0 }
    }

    /// Number of yields to try in this wait.
    pub fn rounds(&mut self) -> u32 {
        if self.penalty > 0 {
            self.penalty -= 1;
            return 0;
        }
        self.rounds
    }

    /// One yield took this long. False if it is better to stop yielding.
    pub fn note_yield(&mut self, took: Nanos) -> bool {
        if took > YIELD_LONG_NS {
            self.penalty = PENALTY_WAITS;
            return false;
        }
        true
    }

    /// Polling found work after that many yields.
    pub fn note_found(&mut self, after: u32) {
        // Room for twice of what it took, approached from above slowly.
        let wanted = (after * 2 + 8).min(ROUNDS_MAX);
        self.rounds = if wanted > self.rounds { wanted } else { self.rounds - (self.rounds - wanted) / 16 };
    }

    /// Polling was in vain and the sleep that followed took this long.
    pub fn note_slept(&mut self, took: Nanos) {
        self.rounds = if took < SLEEP_SHORT_NS {
            (self.rounds * 2 + 4).min(ROUNDS_MAX)
        } else {
            (self.rounds * 3 / 4).max(ROUNDS_MIN)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: polling grows where it pays, shrinks where it does not, and stops beside a busy neighbour.
    /// Method: feed the rules with histories of each kind.
    #[test]
    fn learns() {
        let mut waiting = Waiting::new();
        for _ in 0..30 {
            waiting.note_slept(1_000_000);
        }
        assert_eq!(waiting.rounds(), ROUNDS_MIN);
        for _ in 0..6 {
            waiting.note_slept(10_000);
        }
        assert_eq!(waiting.rounds(), ROUNDS_MAX);
        for _ in 0..200 {
            waiting.note_found(1);
        }
        assert!(waiting.rounds() <= 26, "{}", waiting.rounds);
        assert!(!waiting.note_yield(4_000_000));
        assert_eq!(waiting.rounds(), 0);
        for _ in 0..PENALTY_WAITS {
            waiting.rounds();
        }
        assert!(waiting.rounds() > 0);
    }
}
