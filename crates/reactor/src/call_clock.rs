//! A clock for the times of single calls, for programs that measure: where the kernel itself takes its time from the
//! processor's time stamp counter, that counter is read without the kernel's arithmetic around it, in less than half of
//! the time. Elsewhere it is the monotonic clock.

use crate::Nanos;
use crate::system::monotonic;

/// How long the counter is compared with the monotonic clock: readings that are 50 ns apart make 0.01 % then.
const CALIBRATION: Nanos = 1_000_000;
/// Readings of both of which the closest pair counts: between those of others something else may have had the core.
const PAIR_COUNT: usize = 32;
/// Bits behind the point of a rate.
const RATE_SHIFT: u32 = 32;

/// Reads time in ticks, and says how long ticks are.
#[derive(Debug, Clone, Copy)]
pub struct CallClock {
    /// Nanoseconds of a tick, times 2^32; `None` means that ticks are nanoseconds of the monotonic clock.
    rate: Option<u64>,
}

impl CallClock {
    /// Looks at what the kernel trusts, and takes a millisecond to learn the counter's rate.
    pub fn calibrated() -> CallClock {
        let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        if !source.is_ok_and(|name| name.trim() == "tsc") {
            return CallClock { rate: None };
        }
        CallClock { rate: rate_of_counter() }
    }

    /// Now, in ticks.
    #[inline]
    pub fn read(&self) -> u64 {
        match self.rate {
            Some(_) => counter().unwrap_or(0),
            None => monotonic(),
        }
    }

    /// The time between two readings; 0 if the later one is the smaller, as those of two cores may be.
    #[inline]
    pub fn between(&self, earlier: u64, later: u64) -> Nanos {
        let ticks = later.saturating_sub(earlier);
        match self.rate {
            Some(rate) => ((u128::from(ticks) * u128::from(rate)) >> RATE_SHIFT) as Nanos,
            None => ticks,
        }
    }

    /// The reading that comes so long after another.
    pub fn after(&self, reading: u64, time: Nanos) -> u64 {
        let ticks = match self.rate {
            Some(rate) => u64::try_from((u128::from(time) << RATE_SHIFT) / u128::from(rate)).unwrap_or(u64::MAX),
            None => time,
        };
        reading.saturating_add(ticks)
    }
}

/// Nanoseconds of a tick, times 2^32.
fn rate_of_counter() -> Option<u64> {
    let (start, first) = closest_pair()?;
    while monotonic() - start < CALIBRATION {}
    let (end, last) = closest_pair()?;
    let ticks = last.checked_sub(first).filter(|ticks| *ticks > 0)?;
    u64::try_from((u128::from(end - start) << RATE_SHIFT) / u128::from(ticks)).ok().filter(|rate| *rate > 0)
}

/// The monotonic time and the counter at one moment.
fn closest_pair() -> Option<(Nanos, u64)> {
    let mut closest: Option<(Nanos, Nanos, u64)> = None;
    for _ in 0..PAIR_COUNT {
        let before = monotonic();
        let ticks = counter()?;
        let distance = monotonic() - before;
        if closest.is_none_or(|(least, ..)| distance < least) {
            closest = Some((distance, before + distance / 2, ticks));
        }
    }
    closest.map(|(_, time, ticks)| (time, ticks))
}

/// The time stamp counter, where there is one.
#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> Option<u64> {
    // SAFETY: an instruction that every processor of this kind has; it touches no memory.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn counter() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the clock of calls and the monotonic clock tell the same time. Method: some milliseconds by both, which
    /// differ by less than a thousandth in at least one of some tries (others may take the core between two readings).
    #[test]
    fn agrees_with_the_monotonic_clock() {
        let clock = CallClock::calibrated();
        let agrees = (0..20).any(|_| {
            let (first, start) = (clock.read(), monotonic());
            while monotonic() - start < 5_000_000 {}
            let (last, end) = (clock.read(), monotonic());
            clock.between(first, last).abs_diff(end - start) < (end - start) / 1_000
        });
        assert!(agrees, "{clock:?}");
    }

    /// Goal: a time added to a reading is that time later, and readings that run backwards make no time.
    #[test]
    fn times_and_readings_are_inverse() {
        for clock in [CallClock::calibrated(), CallClock { rate: None }] {
            let first = clock.read();
            let later = clock.after(first, 2_000_000_000);
            assert!(clock.between(first, later).abs_diff(2_000_000_000) <= 2);
            assert_eq!(clock.between(later, first), 0);
        }
    }
}
