//! Driving intents: asking other servers until all have answered, with growing pauses.

pub mod intents;
pub mod peers;
pub mod prepared;

use crate::core::Core;
use crate::core::failure::Failure;
use crate::core::waiting::all;
use crate::handlers::EncodedParams;
use crate::journal::records::Record;
use reactor::{LocalFuture, Nanos};
use std::cell::RefCell;
use std::rc::Rc;
use wire::messages::Empty;
use wire::{Encode, Operation};

pub const PAUSE_NS_FIRST: Nanos = 20_000_000;
pub const PAUSE_NS_MAX: Nanos = 5_000_000_000;

/// The last reason for which an intent is not done yet.
pub type LastFailure = Rc<RefCell<Option<Failure>>>;

/// Asks all servers the same until each has answered `Ok`. False when this server stops before.
pub async fn ask_all(
    core: &Rc<Core>,
    servers: Vec<u32>,
    operation: Operation,
    request: &impl Encode,
    last_failure: Option<LastFailure>,
) -> bool {
    let params = request.to_bytes();
    let asked = servers
        .into_iter()
        .map(|server| {
            let future = ask(core.clone(), server, operation, params.clone(), last_failure.clone());
            Box::pin(future) as LocalFuture<bool>
        })
        .collect();
    all(asked).await.into_iter().all(|answered| answered)
}

/// Asks one server until it has answered `Ok`. False when this server stops before.
pub async fn ask(
    core: Rc<Core>,
    server: u32,
    operation: Operation,
    params: Vec<u8>,
    last_failure: Option<LastFailure>,
) -> bool {
    let params = EncodedParams(params);
    let mut pause = PAUSE_NS_FIRST;
    loop {
        let answer: Result<Empty, Failure> = core.peers.call(server, operation, &params, None).await;
        let Err(failure) = answer else { return true };
        if core.stopping.get() {
            return false;
        }
        if let Some(last_failure) = &last_failure {
            *last_failure.borrow_mut() = Some(failure);
        }
        core.reactor.sleep(pause).await;
        pause = (pause * 2).min(PAUSE_NS_MAX);
    }
}

/// Takes an intent off the journal when it is done. While the journal is full it is tried again, for an intent that is
/// driven twice does no harm, but one that is forgotten in memory alone would come back.
pub async fn settle(core: &Rc<Core>, number: u64) {
    while core.change([Record::IntentDelete(number)]).is_err() {
        if core.stopping.get() {
            return;
        }
        core.reactor.sleep(PAUSE_NS_MAX).await;
    }
}
