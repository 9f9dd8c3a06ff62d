//! Space is faulted in while nobody asks for anything: the first touch of a page costs many times what a copy into it
//! does, and whoever writes would wait for it. Space that files leave is used again first, so a page is paid for once.
//!
//! Invariants
//! 1. A step is taken only when nothing is under way and no request has come since the last look; so nobody waits for
//!    more than one step, of about 0.3 ms.
//! 2. Nobody else wants the core: clients of this machine read without asking the server, and jobs compute. Where
//!    somebody always does, a step is taken now and then all the same.
//! 3. What is free and faulted in is bounded (`store/prefault.rs`), and counted as space that was taken.

use crate::core::Core;
use reactor::{Class, Nanos};
use std::rc::Rc;

/// Time between looks at whether requests still come.
const QUIET_NS: Nanos = 5_000_000;

/// Time between looks at whether others want the core, and looks until a step is taken nevertheless.
const WANTED_NS: Nanos = 50_000_000;
const WANTED_LOOKS_MAX: u32 = 20;

/// Begins to fault space in, if there is too little and nobody is at it.
pub fn start(core: &Rc<Core>) {
    if !core.store.is_prefault_due() || !core.background.prefault.begin() {
        return;
    }
    let core = core.clone();
    core.reactor.clone().spawn(Class::Background, async move {
        let mut seen = core.statistics.arrivals.get();
        let mut refused = 0;
        while !core.life.is_stopping() {
            let arrivals = core.statistics.arrivals.get();
            if arrivals != seen || core.statistics.work_under_way() > 0 {
                seen = arrivals;
                core.reactor.sleep(QUIET_NS).await;
            } else if refused < WANTED_LOOKS_MAX && core.reactor.is_core_wanted() {
                refused += 1;
                core.reactor.sleep(WANTED_NS).await;
            } else if core.store.prefault_step() {
                refused = 0;
                core.reactor.yield_now().await;
            } else {
                break;
            }
        }
        core.background.prefault.end();
    });
}
