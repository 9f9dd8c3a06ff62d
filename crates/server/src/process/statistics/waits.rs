//! What requests wait for, and for how long.
//!
//! A request that was taken in and is not at work waits for one of [`WaitReason::ALL`]. How many do is `req_qdepth`;
//! what they have waited in all is `req_waittime`, which grows while they wait, so that its growth over an interval,
//! divided by the interval, is the mean depth of the queue. Requests that wait for another server's answer, or for the
//! bytes of their body, are at work.
//!
//! A future that does not go on says what for ([`note`], [`because`]), and [`Watch`] asks it after each poll. So nobody
//! on the way to where something waits has to know of requests.

use super::Statistics;
use reactor::{Nanos, Reactor};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use wire::Operation;

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum WaitReason {
    /// In a socket or ring, until the loop reads it: at most so long, for the loop knows only that it had not been
    /// there at its look before.
    Unread,
    /// Read, until those that were read with it have been begun.
    Others,
    /// For one of the places of requests that wait for other servers (`Bounds::active_requests`).
    Queue,
    /// For its turn: at a file or directory, or of a low-priority client while others are at work.
    Turn,
    /// For a lock of a name or inode, or the end of a lease or delegation.
    Lock,
    /// For room in the journal.
    Journal,
    /// For a sync of the store.
    Sync,
    /// For the backing tree.
    Disk,
}

pub const REASON_COUNT: usize = 8;

impl WaitReason {
    pub const ALL: [WaitReason; REASON_COUNT] = [
        WaitReason::Unread,
        WaitReason::Others,
        WaitReason::Queue,
        WaitReason::Turn,
        WaitReason::Lock,
        WaitReason::Journal,
        WaitReason::Sync,
        WaitReason::Disk,
    ];

    /// Its name in reports.
    pub fn word(self) -> &'static str {
        match self {
            WaitReason::Unread => "unread",
            WaitReason::Others => "others",
            WaitReason::Queue => "queue",
            WaitReason::Turn => "turn",
            WaitReason::Lock => "lock",
            WaitReason::Journal => "journal",
            WaitReason::Sync => "sync",
            WaitReason::Disk => "disk",
        }
    }
}

/// How many wait, and how long those and all before have waited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitGauge {
    /// Who waits now, and the sum of when they began.
    depth: u64,
    starts: u64,
    /// Waits that have ended, in nanoseconds.
    ended_ns: u64,
    /// Waits that have begun.
    begun: u64,
}

impl WaitGauge {
    pub fn begin(&mut self, now: Nanos) {
        self.depth += 1;
        self.begun += 1;
        self.starts = self.starts.wrapping_add(now);
    }

    pub fn end(&mut self, began: Nanos, now: Nanos) {
        self.depth -= 1;
        self.starts = self.starts.wrapping_sub(began);
        self.ended_ns += now.saturating_sub(began);
    }

    /// Notes a wait that is over.
    pub fn pass(&mut self, waited: Nanos) {
        self.begun += 1;
        self.ended_ns += waited;
    }

    pub fn depth(&self) -> u64 {
        self.depth
    }

    /// Waits that have begun.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Request-nanoseconds that were waited until now.
    pub fn total_ns(&self, now: Nanos) -> u64 {
        self.ended_ns + self.depth.wrapping_mul(now).wrapping_sub(self.starts)
    }
}

thread_local! {
    /// What the future that was polled last waits for, as far as it said so.
    static NOTED: Cell<Option<WaitReason>> = const { Cell::new(None) };
}

/// A future that is being polled does not go on because of this.
pub fn note(reason: WaitReason) {
    NOTED.set(Some(reason));
}

/// The future, which waits because of `reason` where it does not say anything else.
pub async fn because<T>(reason: WaitReason, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    poll_fn(|context| {
        let outer = NOTED.take();
        let poll = future.as_mut().poll(context);
        let noted = NOTED.replace(outer);
        if poll.is_pending() {
            note(noted.unwrap_or(reason));
        }
        poll
    })
    .await
}

/// A request's future, whose waits are counted. Resolves also to how long it has waited.
pub struct Watch<'s, F> {
    statistics: &'s Statistics,
    reactor: &'s Reactor,
    who: Asker,
    future: Pin<&'s mut F>,
    /// The wait that is under way, and since when.
    wait: Option<(WaitReason, Nanos)>,
    waited: Nanos,
}

/// Which counters a request counts to: those of its operation, and of its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    pub operation: Operation,
    /// The tag of its connection's job.
    pub job: u32,
}

impl Statistics {
    /// Polls a request's future and counts what it waits for. The request is at work before and after.
    pub async fn watch<F: Future>(&self, reactor: &Reactor, who: Asker, future: F) -> (F::Output, Nanos) {
        let future = pin!(future);
        Watch { statistics: self, reactor, who, future, wait: None, waited: 0 }.await
    }
}

impl<F: Future> Future for Watch<'_, F> {
    type Output = (F::Output, Nanos);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // It has waited until here, whatever comes.
        let resumed = self.wait.map(|_| self.reactor.now());
        let outer = NOTED.take();
        let poll = self.future.as_mut().poll(context);
        let noted = NOTED.replace(outer);
        let reason = if poll.is_pending() { noted } else { None };
        if reason != self.wait.map(|(reason, _)| reason) {
            if let Some(now) = resumed {
                self.end_wait(now);
            }
            if let Some(reason) = reason {
                let now = self.reactor.now();
                self.statistics.begin_wait(self.who, reason, now);
                self.wait = Some((reason, now));
            }
        }
        poll.map(|output| (output, self.waited))
    }
}

impl<F> Watch<'_, F> {
    fn end_wait(&mut self, now: Nanos) {
        if let Some((reason, began)) = self.wait.take() {
            self.waited += now.saturating_sub(began);
            self.statistics.end_wait(self.who, reason, began, now);
        }
    }
}

impl<F> Drop for Watch<'_, F> {
    fn drop(&mut self) {
        if self.wait.is_some() {
            let now = self.reactor.now();
            self.end_wait(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a gauge's total grows while somebody waits, by one second a second and waiter.
    #[test]
    fn gauges() {
        let mut gauge = WaitGauge::default();
        gauge.pass(5);
        gauge.begin(100);
        gauge.begin(130);
        assert_eq!((gauge.depth(), gauge.total_ns(150)), (2, 5 + 50 + 20));
        gauge.end(100, 160);
        assert_eq!((gauge.depth(), gauge.total_ns(170)), (1, 5 + 60 + 40));
        gauge.end(130, 170);
        assert_eq!((gauge.depth(), gauge.total_ns(999), gauge.begun()), (0, 5 + 60 + 40, 3));
    }

    /// Goal: what is inside says what it waits for; else what is around it does; and nothing is left noted.
    #[test]
    fn reasons() {
        let poll = |future: Pin<&mut dyn Future<Output = ()>>| {
            assert!(future.poll(&mut Context::from_waker(std::task::Waker::noop())).is_pending());
            NOTED.take()
        };
        let silent = || std::future::pending::<()>();
        assert_eq!(poll(pin!(silent())), None);
        assert_eq!(poll(pin!(because(WaitReason::Lock, silent()))), Some(WaitReason::Lock));
        let inner = because(WaitReason::Lock, because(WaitReason::Sync, silent()));
        assert_eq!(poll(pin!(inner)), Some(WaitReason::Sync));
    }
}
