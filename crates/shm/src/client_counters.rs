//! What a client of this machine does without its server's knowledge, counted by the client in memory that it shares
//! with the server: so it is known too of a client that was killed.
//!
//! Invariants
//! 1. Only the client writes, and every number only grows while the connection lasts. A number is a word of its own, so
//!    whoever reads several may see them at different moments; nothing else hangs on them, and no order is needed.
//! 2. The server trusts none of them: they are kept apart from what it has counted itself.

use crate::mapping::Layout;
#[cfg(not(loom))]
use crate::sync::LINE_SIZE;
use crate::sync::{AtomicU64, CacheLine, Ordering};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCounter {
    /// Opens by the server's attribute cache.
    CachedOpens,
    /// Looks at attributes and names in it, missing ones too.
    CachedLooks,
    /// Reads, and bytes of them, from the server's mapped store.
    ShortCircuitReads,
    ShortCircuitBytes,
    /// Reads, and bytes of them, of contents that came with an open under a read lease.
    LeasedReads,
    LeasedBytes,
    /// Answers to requests, and nanoseconds from the begin of each request to its answer.
    Answers,
    AnswerNs,
    /// Of these nanoseconds those that servers say they took.
    ServedNs,
    /// Reads and writes no larger than a chunk that touch two.
    CrossingCalls,
}

impl ClientCounter {
    pub const ALL: [ClientCounter; COUNTER_COUNT] = [
        ClientCounter::CachedOpens,
        ClientCounter::CachedLooks,
        ClientCounter::ShortCircuitReads,
        ClientCounter::ShortCircuitBytes,
        ClientCounter::LeasedReads,
        ClientCounter::LeasedBytes,
        ClientCounter::Answers,
        ClientCounter::AnswerNs,
        ClientCounter::ServedNs,
        ClientCounter::CrossingCalls,
    ];
}

/// Numbers that there are.
pub const COUNTER_COUNT: usize = 10;

/// The numbers of one connection, by [`ClientCounter`].
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct ClientCounters(CacheLine<[AtomicU64; COUNTER_COUNT]>);

#[cfg(not(loom))]
const _: () = assert!(size_of::<ClientCounters>() == 2 * LINE_SIZE);

// SAFETY: atomics alone.
unsafe impl Layout for ClientCounters {}

impl ClientCounters {
    /// Client: counts so many more.
    #[inline]
    pub fn add(&self, counter: ClientCounter, count: u64) {
        let word = &self.0[counter as usize];
        // There is one writer.
        word.store(word.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// All numbers, as they happen to be.
    pub fn read(&self) -> [u64; COUNTER_COUNT] {
        std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mapping::Mapped;

    /// Goal: each number counts for itself.
    #[test]
    fn counted() {
        let counters = Mapped::<ClientCounters>::alone();
        for (index, counter) in ClientCounter::ALL.into_iter().enumerate() {
            assert_eq!(counter as usize, index);
            counters.add(counter, index as u64);
            counters.add(counter, 10);
        }
        assert_eq!(counters.read(), std::array::from_fn(|index| index as u64 + 10));
    }
}
