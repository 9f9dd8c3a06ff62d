//! Time for stamps, which never goes back.

use reactor::Reactor;
use std::cell::Cell;

/// See the module. Times are nanoseconds since the epoch.
pub struct Clock {
    reactor: Reactor,
    latest: Cell<i64>,
    /// The time of what is done now, where that was submitted.
    submitted: Cell<Option<i64>>,
}

impl Clock {
    pub fn new(reactor: &Reactor) -> Clock {
        Clock { reactor: reactor.clone(), latest: Cell::new(0), submitted: Cell::new(None) }
    }

    /// The clock's time, but never less than any time seen before.
    pub fn time(&self) -> i64 {
        if let Some(submitted) = self.submitted.get() {
            return submitted;
        }
        let time = self.reactor.wall_clock().max(self.latest.get());
        self.latest.set(time);
        time
    }

    /// Does what was submitted at some time. It counts as done then, but not in the future, and after every step that
    /// has been: whoever submitted it may have had something else done since, by another server.
    pub fn at_submitted_time<R>(&self, time: i64, work: impl FnOnce() -> R) -> R {
        self.submitted.set(Some(time.min(self.reactor.wall_clock()).max(self.latest.get())));
        let result = work();
        self.submitted.set(None);
        result
    }

    /// Notes a time that another server stamped.
    pub fn note(&self, seen: i64) {
        self.latest.set(self.latest.get().max(seen));
    }
}
