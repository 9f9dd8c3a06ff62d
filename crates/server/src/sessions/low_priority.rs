//! Low-priority clients, such as `tabane rm -r`: their requests step back while other clients are at work.
//!
//! As long as another client asked for something within the last `BUSY_NS`, a server takes one request of low-priority
//! clients at a time and rests after each, `REST_FACTOR` times as long as it took. So all low-priority work together
//! gets a bounded share of a server, whatever its requests cost here and elsewhere, and it never stands still. Once
//! nobody else is at work, nothing waits.
//!
//! Invariants
//! 1. What is held here was begun with its session and has done nothing yet. It is started, in the order in which it
//!    came.
//! 2. What is held is bounded by the windows of its connections, whose callers are told that it is not lost.

use crate::coordination::intents::Origin;
use crate::core::{Notice, until};
use crate::sessions::service::{Front, asker};
use reactor::{Class, Incoming, Nanos};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// How long after a request of another client the server counts as busy.
const BUSY_NS: Nanos = 20_000_000;
/// How many times as long as a request took is rested after it, and how long at most.
const REST_FACTOR: Nanos = 9;
const REST_NS_MAX: Nanos = 5_000_000;
/// A request that takes longer (because it waits for a lock, or a server that is down) does not hold up the next.
const TURN_NS_MAX: Nanos = 100_000_000;

/// See the module.
#[derive(Default)]
pub struct LowPriority {
    /// When another client asked last.
    others_at: Cell<Nanos>,
    held: RefCell<VecDeque<(Incoming, Option<Origin>)>>,
    /// Whether a task starts what is held.
    is_starting: Cell<bool>,
    /// Told when the request that has its turn has ended.
    ended: RefCell<Option<Notice<()>>>,
}

impl LowPriority {
    /// A client that is not low-priority asks for something.
    pub fn note_other(&self, now: Nanos) {
        // A server that has just started is not busy.
        self.others_at.set(now.max(1));
    }

    fn is_busy(&self, now: Nanos) -> bool {
        let others_at = self.others_at.get();
        others_at > 0 && now.saturating_sub(others_at) < BUSY_NS
    }

    /// A request of a low-priority client was answered.
    pub fn note_end(&self) {
        if let Some(ended) = self.ended.take() {
            ended.tell(());
        }
    }
}

/// Starts a request of a low-priority client, at once or when it is its turn.
pub fn start(front: Rc<Front>, incoming: Incoming, origin: Option<Origin>) {
    let low_priority = &front.core().low_priority;
    if !low_priority.is_starting.get() && !low_priority.is_busy(incoming.taken) {
        let started = incoming.taken;
        return front.start(incoming, origin, started, None);
    }
    front.core().statistics.hold(asker(&incoming), incoming.taken);
    low_priority.held.borrow_mut().push_back((incoming, origin));
    if !low_priority.is_starting.replace(true) {
        let reactor = front.core().reactor.clone();
        reactor.spawn(Class::Background, start_held(front));
    }
}

async fn start_held(front: Rc<Front>) {
    let core = front.core().clone();
    let (low_priority, reactor) = (&core.low_priority, &core.reactor);
    loop {
        let next = low_priority.held.borrow_mut().pop_front();
        let Some((incoming, origin)) = next else { break };
        let (began, since) = (reactor.now(), Some(incoming.taken));
        if core.life.is_stopping() || !low_priority.is_busy(began) {
            front.clone().start(incoming, origin, began, since);
            // It may have moved bytes by now.
            reactor.yield_now().await;
            continue;
        }
        let ended = Notice::new();
        low_priority.ended.replace(Some(ended.clone()));
        front.clone().start(incoming, origin, began, since);
        until(reactor, began + TURN_NS_MAX, ended.wait()).await;
        let now = reactor.now();
        let rest = now.saturating_sub(began).saturating_mul(REST_FACTOR).min(REST_NS_MAX);
        reactor.sleep_until(now + rest).await;
    }
    low_priority.is_starting.set(false);
}
