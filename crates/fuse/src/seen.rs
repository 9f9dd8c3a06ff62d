//! Directories that the kernel was told of lately, so that one that is gone is known to have been one: who stands in it
//! is to find an empty directory there. Bounded: of the oldest nothing is known any more, and they are ESTALE.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Ids in one of the two generations.
const COUNT_MAX: usize = 16 << 10;

/// See the module.
#[derive(Debug, Default)]
pub struct SeenDirectories(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl SeenDirectories {
    pub fn note(&self, node: u64) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.young.contains(&node) {
            return;
        }
        if seen.young.len() >= COUNT_MAX {
            seen.old = std::mem::take(&mut seen.young);
        }
        seen.young.insert(node);
    }

    pub fn contains(&self, node: u64) -> bool {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.young.contains(&node) || seen.old.contains(&node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what was seen lately is known, what is used stays known, and no more is kept than is allowed.
    #[test]
    fn bounded_and_recent() {
        let seen = SeenDirectories::default();
        for node in 0..5 * COUNT_MAX as u64 {
            seen.note(node + 10);
            seen.note(1);
        }
        assert!(seen.contains(1) && seen.contains(5 * COUNT_MAX as u64 + 9) && !seen.contains(10));
        let generations = seen.0.lock().unwrap();
        assert!(generations.young.len() <= COUNT_MAX && generations.old.len() <= COUNT_MAX);
    }
}
