//! The end of a server that was told to go (SIGTERM): what was changed here goes behind first, as far as a time allows,
//! as with a flush that somebody waits for. Servers of a cluster that end at once need each other for that, so each
//! stays until a flush has found nothing to do, or its time is over; what has not gone then stays in the store.

use super::pace::LOOK_NS;
use crate::core::{Core, Failure, until};
use crate::process::options::FlushPolicy;
use reactor::Nanos;
use reactor::log::{self, Level};
use std::rc::Rc;
use wire::FileId;
use wire::messages::{AskForFlushReply, flush_patience};

/// Between two questions how far the flush has come.
const ASK_PAUSE_NS: Nanos = 5 * LOOK_NS;
/// How long the home of the root stays when all has gone.
const LINGER_NS: Nanos = 4 * ASK_PAUSE_NS;
/// Changes that the log tells one by one.
const TOLD_MAX: usize = 4;

impl Core {
    /// Has what was changed go behind, within `grace`. Clients are served meanwhile.
    pub async fn flush_before_end(self: &Rc<Self>, grace: Nanos) {
        let Some(backing) = &self.backing else { return };
        if backing.pace.policy() == FlushPolicy::Never {
            return;
        }
        if grace > 0 {
            // Nothing in it holds anything that an end has to wait for.
            let _: Option<()> = until(&self.reactor, self.reactor.now() + grace, self.flush_while_it_goes()).await;
        }
        self.log_what_stays();
    }

    /// Returns when a flush that was begun from now on has done nothing any more.
    async fn flush_while_it_goes(self: &Rc<Self>) {
        let mut first = None;
        let mut silent_since = None;
        loop {
            let asked_at = self.reactor.now();
            match self.ask_for_flush_now().await {
                Ok(standing) => {
                    silent_since = None;
                    // One that was under way may have begun before the last change here.
                    let first = *first.get_or_insert(standing.newest);
                    let is_later = standing.ended > first || standing.ended == first && !self.has_backing_changes();
                    if is_later && standing.done == 0 {
                        if self.cluster.home_of(FileId::ROOT) == Some(self.index) && self.cluster.server_count() > 1 {
                            // Others that end as well have to be told.
                            self.reactor.sleep(LINGER_NS).await;
                        }
                        return;
                    }
                }
                // The home of the root has ended, or is out of reach.
                Err(_) if !self.has_backing_changes() => return,
                Err(_) => {
                    let since = *silent_since.get_or_insert(asked_at);
                    if self.reactor.now() - since >= self.options.timeout {
                        return;
                    }
                }
            }
            self.reactor.sleep(ASK_PAUSE_NS).await;
        }
    }

    async fn ask_for_flush_now(self: &Rc<Self>) -> Result<AskForFlushReply, Failure> {
        self.ask_for_automatic_flush(flush_patience::NONE).await
    }

    /// What the last flush could not carry, at the home of the root, with the reason; and what is here alone.
    fn log_what_stays(&self) {
        let stays = "it did not go to the backing directory, and stays in the store";
        for (path, reason) in self.flush_failures().1 {
            let (path, reason) = (path.escape_ascii(), reason.escape_ascii());
            log::event(Level::Warning, "not-carried", stays, &[("path", &path), ("reason", &reason)]);
        }
        if !self.has_backing_changes() {
            return;
        }
        for (what, path) in self.some_backing_changes().iter().take(TOLD_MAX) {
            log::event(Level::Warning, "not-carried", stays, &[("what", what), ("path", &path.escape_ascii())]);
        }
        let words = "changes did not go to the backing directory in time, and stay in the store";
        let counts = self.backing_changes();
        let facts: Vec<log::Fact<'_>> = counts.iter().skip(3).map(|(name, count)| (*name, count as _)).collect();
        log::event(Level::Warning, "not-carried", words, &facts);
    }
}
