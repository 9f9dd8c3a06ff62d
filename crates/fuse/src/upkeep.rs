//! What has to be done now and then while nobody calls: the client's own work (closes, reconnections), and letting go
//! of what is held (`held.rs`) and remembered (`failed.rs`) for a while.

use crate::serve::Mounted;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How often, and for how long the client's loop is turned.
const INTERVAL: Duration = Duration::from_millis(250);
const TURN_NS: reactor::Nanos = 1_000_000;

/// Ends the thread that does it.
#[derive(Default)]
pub struct Upkeep {
    is_over: Mutex<bool>,
    bell: Condvar,
}

impl Upkeep {
    /// The thread, until `end`.
    pub fn attend(&self, mounted: &Mounted) {
        loop {
            let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
            let (is_over, _) = self
                .bell
                .wait_timeout_while(is_over, INTERVAL, |is_over| !*is_over)
                .unwrap_or_else(PoisonError::into_inner);
            if *is_over {
                return;
            }
            drop(is_over);
            mounted.client.run(async |reactor, _| reactor.sleep(TURN_NS).await);
            mounted.close_all(&mounted.held.age());
            mounted.failed.age();
            mounted.callers.age();
        }
    }

    pub fn end(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_all();
    }
}
