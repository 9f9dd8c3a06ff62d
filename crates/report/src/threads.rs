//! Threads of this program's own. It is no part of a cluster, so that no simulator ever drives it.

use crate::failure::{Failure, Outcome, io_words};

#[allow(clippy::disallowed_methods)] // See above.
pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Outcome {
    let begun = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    begun.map(drop).map_err(|error| Failure::failed(format!("a thread can't be started: {}", io_words(&error))))
}
