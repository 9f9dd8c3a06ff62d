//! How often something is tried anew because what it relied on was out of date.

use crate::servers::Servers;
use reactor::Nanos;

/// Times that it is tried again at once.
const AT_ONCE_MAX: u32 = 16;
/// Before the next time, and at most: twice as long each time.
const PAUSE_MIN: Nanos = 500_000;
const PAUSE_MAX: Nanos = 32_000_000;

/// Attempts at something that others may change while it is looked at: a path whose directories are renamed again and
/// again, a directory whose rights somebody tries to take away at a server that can't be reached. After some it waits
/// in between, for whoever changes it is faster; and it gives up after the time in which a silent server is given up.
pub(crate) struct Retries<'a> {
    servers: &'a Servers,
    count: u32,
    /// From when it first waits on.
    deadline: Option<Nanos>,
}

impl Servers {
    /// For a loop that asks before each attempt.
    pub(crate) fn retries(&self) -> Retries<'_> {
        Retries { servers: self, count: 0, deadline: None }
    }

    /// For one that asks after an attempt: the first one, which mostly is the last, costs nothing.
    pub(crate) fn further_retries(&self) -> Retries<'_> {
        Retries { count: 1, ..self.retries() }
    }
}

impl Retries<'_> {
    /// Whether it is to be tried; waits until it is.
    pub(crate) async fn again(&mut self) -> bool {
        let waits = self.count.checked_sub(AT_ONCE_MAX + 1);
        self.count += 1;
        let Some(waits) = waits else { return true };
        let (reactor, pause) = (&self.servers.reactor, (PAUSE_MIN << waits.min(16)).min(PAUSE_MAX));
        let now = reactor.now();
        let deadline = *self.deadline.get_or_insert_with(|| now.saturating_add(self.servers.silence()));
        if now.saturating_add(pause) >= deadline {
            return false;
        }
        reactor.sleep(pause).await;
        true
    }
}
