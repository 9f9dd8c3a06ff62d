//! Cores that a loop prefers as long as nobody computes there.
//!
//! Loops that wait give their core away to one another, and the kernel moves none of them as long as as many take turns
//! on each core: two servers may share one core while their clients share another, where neither pair can work at the
//! same time as the other. So servers keep apart. Beside somebody who computes that is wrong: a woken process gets a
//! core of his soon only if it may go to any of them.

use crate::process::stay_on;

/// So many waits in a row without a neighbour who computes until the loop returns to its cores. Two who wake each other
/// on one core may not notice him for long; a busy loop waits 100,000 times a second.
const QUIET_WAITS: u32 = 1_000_000;

/// Where a loop runs.
pub(crate) struct PreferredCores {
    preferred: Vec<usize>,
    allowed: Vec<usize>,
    is_kept: bool,
    quiet_waits: u32,
}

impl PreferredCores {
    /// For a thread that runs on its preferred cores.
    pub fn new(preferred: Vec<usize>, allowed: Vec<usize>) -> PreferredCores {
        PreferredCores { preferred, allowed, is_kept: true, quiet_waits: 0 }
    }

    /// A wait begins, beside somebody who computes or not.
    pub fn note_wait(&mut self, beside_others: bool) {
        if let Some(cores) = self.change(beside_others) {
            // Cores that are gone since are no reason to stop: the thread stays where it is.
            let _ = stay_on(cores);
        }
    }

    /// The cores to go to, if that is new.
    fn change(&mut self, beside_others: bool) -> Option<&[usize]> {
        if beside_others {
            self.quiet_waits = 0;
            return std::mem::take(&mut self.is_kept).then_some(&self.allowed);
        }
        if self.is_kept {
            return None;
        }
        self.quiet_waits += 1;
        self.is_kept = self.quiet_waits >= QUIET_WAITS;
        self.is_kept.then_some(&self.preferred)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: all cores are used from the first wait beside somebody who computes on, the preferred ones again once he
    /// has been away for many waits in a row.
    #[test]
    fn neighbours_are_avoided() {
        let mut cores = PreferredCores::new(vec![1], vec![0, 1]);
        assert_eq!(cores.change(false), None);
        assert_eq!(cores.change(true), Some(&[0, 1][..]));
        for _ in 0..2 {
            for _ in 1..QUIET_WAITS {
                assert_eq!(cores.change(false), None);
            }
            assert_eq!(cores.change(true), None, "he is back");
        }
        for _ in 1..QUIET_WAITS {
            assert_eq!(cores.change(false), None);
        }
        assert_eq!(cores.change(false), Some(&[1][..]));
        assert_eq!(cores.change(false), None);
        assert_eq!(cores.change(true), Some(&[0, 1][..]));
    }
}
