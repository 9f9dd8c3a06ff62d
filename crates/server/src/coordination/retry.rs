//! Trying again until something works, with growing pauses.

use crate::core::{Core, Failure};
use reactor::{Nanos, Reactor};
use std::cell::RefCell;
use std::rc::Rc;

/// The last reason for which something is not done yet.
pub type LastFailure = Rc<RefCell<Option<Failure>>>;

/// Pauses between attempts, each twice as long as the one before, up to a longest one.
pub struct Backoff {
    first: Nanos,
    next: Nanos,
    max: Nanos,
}

impl Backoff {
    pub const fn new(first: Nanos, max: Nanos) -> Backoff {
        Backoff { first, next: first, max }
    }

    /// Pauses that do not grow.
    pub const fn steady(pause: Nanos) -> Backoff {
        Backoff::new(pause, pause)
    }

    /// The pause that comes next; the one after it is longer.
    pub fn advance(&mut self) -> Nanos {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        pause
    }

    pub async fn pause(&mut self, reactor: &Reactor) {
        reactor.sleep(self.advance()).await;
    }

    /// Begins anew with the shortest pause.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

impl Default for Backoff {
    /// For what another server or the journal has to make room for: 20 ms to 5 s.
    fn default() -> Backoff {
        Backoff::new(20_000_000, 5_000_000_000)
    }
}

/// Tries until it works, and notes why it does not yet. False when this server stops before.
pub async fn retry(
    core: &Core,
    mut backoff: Backoff,
    last_failure: Option<&LastFailure>,
    mut attempt: impl AsyncFnMut() -> Result<(), Failure>,
) -> bool {
    loop {
        let Err(failure) = attempt().await else { return true };
        if core.life.is_stopping() {
            return false;
        }
        if let Some(last_failure) = last_failure {
            *last_failure.borrow_mut() = Some(failure);
        }
        backoff.pause(&core.reactor).await;
    }
}
