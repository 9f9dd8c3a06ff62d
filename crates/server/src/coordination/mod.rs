//! Driving intents: asking other servers until all have answered, with growing pauses.

pub mod intents;
pub mod peers;
pub mod prepared;
pub mod retry;
pub mod undecided;

use crate::coordination::retry::{Backoff, LastFailure, retry};
use crate::core::{Core, all};
use crate::handlers::EncodedParams;
use crate::journal::records::Record;
use reactor::{LocalFuture, Nanos};
use std::rc::Rc;
use wire::messages::Empty;
use wire::{Encode, Operation};

/// Between two attempts to take what is done off a full journal.
const SETTLE_PAUSE_NS: Nanos = 5_000_000_000;

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
    let attempt = async || core.peers.call::<Empty>(server, operation, &params, None).await.map(drop);
    retry(&core, Backoff::default(), last_failure.as_ref(), attempt).await
}

/// Takes an intent off the journal when it is done. While the journal is full it is tried again, for an intent that is
/// driven twice does no harm, but one that is forgotten in memory alone would come back.
pub async fn settle(core: &Rc<Core>, number: u64) {
    let backoff = Backoff::steady(SETTLE_PAUSE_NS);
    let _: bool = retry(core, backoff, None, async || core.change([Record::IntentDelete(number)])).await;
}
