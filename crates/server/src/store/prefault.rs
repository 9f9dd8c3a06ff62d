//! How much free space is to be faulted in ahead of its use: as much as was missing when it was last used, within
//! bounds. Who writes a burst of 300 MiB now and then finds the next one's space ready.

use super::allocator::Allocator;

/// Pages that are kept ready at least: 32 MiB, but no more than a part of the store.
const READY_PAGES_MIN: u64 = 8192;
/// And at most: 512 MiB.
const READY_PAGES_MAX: u64 = 131_072;
const READY_SHARE: u64 = 8;

/// What was faulted in, and by whom.
pub struct PrefaultGoal {
    /// Pages that are to be ready.
    ready: u64,
    /// Pages that were faulted in ahead.
    ahead: u64,
    /// Pages that were faulted in by whoever needed them, as far as they are part of the goal already.
    late_seen: u64,
    /// The medium refused to give space ahead of its use; it is not asked for that again.
    pub is_refused: bool,
}

impl PrefaultGoal {
    /// What an earlier life has faulted in was not needed now.
    pub fn new(allocator: &Allocator) -> PrefaultGoal {
        let late_seen = u64::from(allocator.backed());
        PrefaultGoal { ready: READY_PAGES_MIN, ahead: 0, late_seen, is_refused: false }
    }

    /// Pages that are to be ready now.
    pub fn ready(&self, allocator: &Allocator) -> u64 {
        if self.is_refused { 0 } else { self.ready.min(u64::from(allocator.total()) / READY_SHARE) }
    }

    /// So many pages were faulted in ahead.
    pub fn note_ahead(&mut self, pages: u64) {
        self.ahead += pages;
    }

    /// Takes in what had to be faulted in by those who needed it; what was enough is wanted a little less.
    pub fn learn(&mut self, allocator: &Allocator) {
        let late = u64::from(allocator.backed()).saturating_sub(self.ahead + self.late_seen);
        if late > 0 {
            self.late_seen += late;
            self.ready = late.max(self.ready - self.ready / 8).clamp(READY_PAGES_MIN, READY_PAGES_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PrefaultGoal, READY_PAGES_MAX, READY_PAGES_MIN};
    use crate::store::allocator::Allocator;

    /// Goal: as much is kept ready as was missing, within bounds; what was not missing any more is wanted less and
    /// less, and what an earlier life took counts for nothing.
    /// Method: bursts of several sizes on a store of 16 GiB, each with what is ready taken up first.
    #[test]
    fn bursts_are_expected_again() {
        let mut allocator = Allocator::new(1 << 22, Vec::new()).unwrap();
        allocator.take_run(50_000, &mut |_, _| true).unwrap();
        let mut goal = PrefaultGoal::new(&allocator);
        goal.learn(&allocator);
        assert_eq!(goal.ready(&allocator), READY_PAGES_MIN);
        let burst = |allocator: &mut Allocator, goal: &mut PrefaultGoal, pages: u32| {
            while allocator.ready() < goal.ready(allocator) {
                let before = allocator.backed();
                allocator.grow_step(512, &mut |_, _| true).unwrap();
                goal.note_ahead(u64::from(allocator.backed() - before));
            }
            allocator.take_run(pages, &mut |_, _| true).unwrap();
            goal.learn(allocator);
            goal.ready(allocator)
        };
        let late = burst(&mut allocator, &mut goal, 60_000);
        assert!((51_000..=53_000).contains(&late), "{late}");
        assert!(burst(&mut allocator, &mut goal, 50_000) == late, "it was ready");
        let less = burst(&mut allocator, &mut goal, 54_000);
        assert!(less < late && less > late / 2, "a little was missing: {less}");
        assert_eq!(burst(&mut allocator, &mut goal, 1_000_000), READY_PAGES_MAX);
        let mut small = Allocator::new(4096, Vec::new()).unwrap();
        assert_eq!(PrefaultGoal::new(&small).ready(&small), 512);
        small.take_run(4096, &mut |_, _| true).unwrap();
        assert_eq!(PrefaultGoal { is_refused: true, ..PrefaultGoal::new(&small) }.ready(&small), 0);
    }
}
