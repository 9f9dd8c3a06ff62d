//! Locks of files: of files that are never removed, few and wide ranges that split and join, held for a moment.

use crate::actor::Handle;
use crate::history::{Action, Path};
use crate::profile::MILLISECOND;
use crate::workload::{LOGS, Worker};

/// Bytes that ranges lie in.
const SPAN: u64 = 20;
/// How often a release is asked for that servers do not answer.
const RELEASE_COUNT_MAX: u64 = 100;

impl Worker {
    /// Locks something, perhaps more ranges of the same file while it has the first, and releases all of it.
    pub async fn on_locks(&mut self) {
        let log = LOGS[0];
        let path = Path::top(log);
        let open = Action::Open { path, create: false, exclusive: false, truncate: false, mode: 0, chunk_size: 0 };
        let Some(handle) = self.client.perform(open, &format!("/{log}")).await else { return };
        let file = handle.file.id;
        let (owner, whole) = (u64::from(self.plan.tag()), self.random.percent(20));
        let reactor = self.client.file_system.reactor().clone();
        for _ in 0..=self.random.below(5) {
            let start = if whole { 0 } else { self.random.below(SPAN) };
            let end = if whole { SPAN } else { start + 1 + self.random.below(SPAN - start) };
            let (exclusive, wait) = (self.random.percent(50), self.random.percent(60));
            let lock = Action::Lock { file, owner, start, end, exclusive, wait, whole };
            self.client.perform_on(lock, &handle).await;
            if self.random.percent(50) {
                reactor.sleep(self.random.below(200 * MILLISECOND)).await;
            }
        }
        self.release(&handle, owner, whole).await;
    }

    async fn release(&mut self, handle: &Handle, owner: u64, whole: bool) {
        let file = handle.file.id;
        let reactor = self.client.file_system.reactor().clone();
        for round in 0..RELEASE_COUNT_MAX {
            let unlock = Action::Unlock { file, owner, whole };
            if self.client.perform_told(unlock, handle).await.is_none() {
                break;
            }
            reactor.sleep((round + 1) * MILLISECOND * 10).await;
        }
        self.client.file_system.release_process(&handle.file, owner).await;
        self.client.perform_on(Action::Close { file }, handle).await;
    }
}
