//! What a phase notes of its calls: how long each took, how many there were, and whether its time is over.
//!
//! The clock is read once a call: the end of one is the start of the next. So what a program does between two calls is
//! in the time of the second, as it is in the rate.

use crate::call_times::CallTimes;
use reactor::Nanos;
use reactor::call_clock::CallClock;

/// Calls between two times at which others see how far this process is, as a power of two.
const PROGRESS_SHIFT: u32 = 10;

pub struct Meter<'a> {
    clock: CallClock,
    /// Reading at the end of the last call.
    last: u64,
    /// Reading at which the phase has to stop; `None` means never.
    end: Option<u64>,
    call_count: u64,
    takes_times: bool,
    times: CallTimes,
    show_progress: Box<dyn Fn(u64) + Send + 'a>,
}

impl<'a> Meter<'a> {
    /// For a phase that begins now, and has to stop after so many seconds unless these are 0. `show_progress` is told
    /// the number of calls now and then.
    pub fn new(
        clock: CallClock,
        show_progress: impl Fn(u64) + Send + 'a,
        takes_times: bool,
        seconds: f64,
    ) -> Meter<'a> {
        let last = clock.read();
        let end = (seconds > 0.0).then(|| clock.after(last, (seconds * 1e9) as Nanos));
        let show_progress = Box::new(show_progress);
        Meter { clock, last, end, call_count: 0, takes_times, times: CallTimes::new(), show_progress }
    }

    /// Whether the phase has to stop early.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.end.is_some_and(|end| self.last >= end)
    }

    /// A call begins now: what came after the last one is not in its time.
    #[inline]
    pub fn begin_call(&mut self) {
        if self.takes_times || self.end.is_some() {
            self.last = self.clock.read();
        }
    }

    /// A call has ended, and the next one begins.
    #[inline]
    pub fn note_call(&mut self) {
        if self.takes_times || self.end.is_some() {
            let now = self.clock.read();
            if self.takes_times {
                self.times.record(self.clock.between(self.last, now));
            }
            self.last = now;
        }
        self.call_count += 1;
        if self.call_count.trailing_zeros() >= PROGRESS_SHIFT {
            (self.show_progress)(self.call_count);
        }
    }

    /// Now, in ticks, for calls that are under way at once; see [`Meter::note_one_of_many`].
    pub fn read(&self) -> u64 {
        if self.takes_times || self.end.is_some() { self.clock.read() } else { 0 }
    }

    /// One of several calls that are under way at once has ended, that began at this reading; the reading at which it
    /// did.
    pub fn note_one_of_many(&mut self, began: u64) -> u64 {
        self.last = began;
        self.note_call();
        self.last
    }

    /// Empty unless times are taken.
    pub fn times(&self) -> &CallTimes {
        &self.times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn meter<'a>(shown: &'a AtomicU64, takes_times: bool, seconds: f64) -> Meter<'a> {
        Meter::new(CallClock::calibrated(), |done| shown.store(done, Ordering::Relaxed), takes_times, seconds)
    }

    /// Goal: each call is counted and timed once, and others see how many there were. Method: 3,000 calls.
    #[test]
    fn calls_are_counted() {
        let shown = AtomicU64::new(0);
        let mut meter = meter(&shown, true, 0.0);
        (0..3_000).for_each(|_| meter.note_call());
        assert_eq!((meter.times().call_count(), shown.load(Ordering::Relaxed)), (3_000, 2_048));
        assert!(!meter.is_over());
    }

    /// Goal: without times the calls are shown but not timed, and a limit still ends the phase.
    #[test]
    fn limits_hold_without_times() {
        let shown = AtomicU64::new(0);
        let mut meter = meter(&shown, false, 0.001);
        let mut calls = 0u64;
        while !meter.is_over() {
            meter.note_call();
            calls += 1;
        }
        assert!(calls > 0);
        assert_eq!(meter.times().call_count(), 0);
    }

    /// Goal: what lies before the begin of a call is not in its time. Method: 20 ms before it, nothing in it; of some
    /// tries one is enough, for others may take the core within a call.
    #[test]
    fn a_call_begins_where_it_is_said() {
        let shown = AtomicU64::new(0);
        assert!((0..20).any(|_| {
            let mut meter = meter(&shown, true, 0.0);
            let start = reactor::barrier::monotonic_now();
            while reactor::barrier::monotonic_now() - start < 20_000_000 {}
            meter.begin_call();
            meter.note_call();
            meter.times().most() < 20_000_000
        }));
    }
}
