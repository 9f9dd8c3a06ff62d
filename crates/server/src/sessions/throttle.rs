//! Permits for large bodies of collective calls: a few at a time bring or fetch theirs, in the order in which they
//! asked, so that a crowd of processes does not fill this server's queues and the network's (EARTH on K, step-wise
//! throttling; docs/mpiio.md, Turns).
//!
//! A permit is advice: who has none is served as well. So nothing is refused here, and a permit that is not returned
//! in time is given to the next one.
//!
//! Invariants
//! 1. At most `Bounds::permits` are out, but for those that have been out for `HOLD_NS_MAX`.
//! 2. Who waits has either a permit free for it or a task that looks after it (`is_attended`): nobody is forgotten.
//! 3. What a connection has, and what it waits for, ends with it.

use super::service::{Request, finish};
use crate::core::{Caller, Core, Failure};
use crate::handlers::Progress;
use crate::process::statistics::waits::WaitGauge;
use reactor::{Class, Nanos};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use wire::messages::{AwaitPermitReply, AwaitPermitRequest, ReturnPermitRequest};
use wire::{Decode, Encode};

/// How long a permit counts. A holder that was stopped would keep all others waiting.
pub const HOLD_NS_MAX: Nanos = 2_000_000_000;
/// After this time a request is answered without a permit, which keeps its place in the queue and asks again: well
/// within the time-outs of clients.
pub const LISTEN_NS_MAX: Nanos = 1_000_000_000;

/// Which permit of which connection.
type Key = (u64, u64);

struct Held {
    key: Key,
    since: Nanos,
}

struct Waiter {
    key: Key,
    /// Since when it waits, and the request that is answered then, if there is one now.
    listener: Option<(Request, Nanos)>,
}

#[derive(Default)]
struct State {
    held: Vec<Held>,
    /// By the order in which they came.
    queue: BTreeMap<u64, Waiter>,
    /// The place of each in the queue.
    places: BTreeMap<Key, u64>,
    last_place: u64,
    is_attended: bool,
    /// Requests that wait, which are in no `req_qdepth`.
    waits: WaitGauge,
}

/// See the module.
#[derive(Default)]
pub struct Throttle {
    state: RefCell<State>,
}

impl State {
    fn drop_late(&mut self, now: Nanos) {
        self.held.retain(|held| now < held.since + HOLD_NS_MAX);
    }

    fn holds(&self, key: Key) -> bool {
        self.held.iter().any(|held| held.key == key)
    }

    fn listener_count(&self, connection: u64) -> usize {
        let places = self.places.range((connection, 0)..=(connection, u64::MAX));
        places.filter(|(_, place)| self.queue.get(place).is_some_and(|waiter| waiter.listener.is_some())).count()
    }

    /// The waiter of a key, at the end of the queue if it is new.
    fn waiter(&mut self, key: Key) -> &mut Waiter {
        let place = *self.places.entry(key).or_insert_with(|| {
            self.last_place += 1;
            self.last_place
        });
        self.queue.entry(place).or_insert(Waiter { key, listener: None })
    }

    /// Takes those out whose turn it is, with their requests.
    fn admit(&mut self, limit: usize, now: Nanos) -> Vec<(Request, Nanos)> {
        self.drop_late(now);
        let mut admitted = Vec::new();
        while self.held.len() < limit
            && let Some((_, waiter)) = self.queue.pop_first()
        {
            self.places.remove(&waiter.key);
            self.held.push(Held { key: waiter.key, since: now });
            admitted.extend(waiter.listener);
        }
        admitted
    }
}

impl Throttle {
    pub fn permit_count(&self) -> usize {
        self.state.borrow().held.len()
    }

    /// Requests that wait, and for how long.
    pub fn waits(&self) -> WaitGauge {
        self.state.borrow().waits
    }

    /// Who waits, with a request at the time or not.
    pub fn waiter_count(&self) -> usize {
        self.state.borrow().queue.len()
    }

    /// Lets go of all requests.
    pub fn take(&self) -> impl Sized + use<> {
        std::mem::take(&mut *self.state.borrow_mut())
    }
}

/// `AwaitPermit`.
pub fn await_permit(core: &Rc<Core>, parked: Request) {
    let request = match AwaitPermitRequest::from_bytes(&parked.incoming.params) {
        Ok(request) => request,
        Err(malformed) => return finish(core, parked, Err(&malformed.into())),
    };
    let key = (parked.caller.peer.connection, request.number);
    let bounds = &core.options.bounds;
    let now = core.reactor.now();
    let mut state = core.throttle.state.borrow_mut();
    state.drop_late(now);
    let is_crowded = state.queue.len() >= bounds.permit_waiters && !state.places.contains_key(&key)
        || state.listener_count(key.0) >= bounds.session_permit_listeners;
    if state.holds(key) || is_crowded {
        drop(state);
        return answer(core, parked, true);
    }
    core.statistics.set_aside(parked.asker(), now);
    state.waits.begin(now);
    let earlier = state.waiter(key).listener.replace((parked, now));
    drop(state);
    earlier.into_iter().for_each(|earlier| resume(core, earlier, false));
    admit(core);
}

/// `ReturnPermit`.
pub fn return_permit(core: &Rc<Core>, caller: &Caller, params: &[u8]) -> Result<Progress, Failure> {
    let key = (caller.peer.connection, ReturnPermitRequest::from_bytes(params)?.number);
    forget(core, key, key);
    Ok(Progress::Done)
}

/// A connection has ended.
pub fn disconnected(core: &Rc<Core>, connection: u64) {
    forget(core, (connection, 0), (connection, u64::MAX));
}

/// Those from one key to another are not needed any more.
fn forget(core: &Rc<Core>, first: Key, last: Key) {
    let gone: Vec<_> = {
        let state = &mut *core.throttle.state.borrow_mut();
        state.held.retain(|held| !(first..=last).contains(&held.key));
        let places: Vec<(Key, u64)> = state.places.range(first..=last).map(|(key, place)| (*key, *place)).collect();
        let leave = |(key, place): (Key, u64)| {
            state.places.remove(&key);
            state.queue.remove(&place).and_then(|waiter| waiter.listener)
        };
        places.into_iter().filter_map(leave).collect()
    };
    gone.into_iter().for_each(|listener| resume(core, listener, false));
    admit(core);
}

/// Gives out what is free, and sees to it that somebody looks after those who still wait.
fn admit(core: &Rc<Core>) {
    let admitted = {
        let mut state = core.throttle.state.borrow_mut();
        if state.queue.is_empty() {
            return;
        }
        state.admit(core.options.bounds.permits, core.reactor.now())
    };
    admitted.into_iter().for_each(|listener| resume(core, listener, true));
    let mut state = core.throttle.state.borrow_mut();
    if !state.queue.is_empty() && !state.is_attended {
        state.is_attended = true;
        core.reactor.spawn(Class::Metadata, attend(core.clone()));
    }
}

/// As long as anybody waits: passes on what was held for too long, and answers who has waited for long.
async fn attend(core: Rc<Core>) {
    loop {
        core.reactor.sleep(LISTEN_NS_MAX / 4).await;
        let now = core.reactor.now();
        let late = {
            let state = &mut *core.throttle.state.borrow_mut();
            if state.queue.is_empty() || core.life.is_stopping() {
                state.is_attended = false;
                return;
            }
            let is_late = |since: Nanos| now >= since + LISTEN_NS_MAX;
            let late =
                state.queue.values_mut().filter_map(|waiter| waiter.listener.take_if(|(_, since)| is_late(*since)));
            late.collect::<Vec<_>>()
        };
        late.into_iter().for_each(|listener| resume(&core, listener, false));
        admit(&core);
    }
}

fn resume(core: &Core, (mut parked, since): (Request, Nanos), is_granted: bool) {
    let now = core.reactor.now();
    core.statistics.take_up(parked.asker(), now);
    core.throttle.state.borrow_mut().waits.end(since, now);
    parked.waited += now.saturating_sub(since);
    answer(core, parked, is_granted);
}

fn answer(core: &Core, parked: Request, is_granted: bool) {
    finish(core, parked, Ok(&AwaitPermitReply { is_granted }.to_bytes()));
}
