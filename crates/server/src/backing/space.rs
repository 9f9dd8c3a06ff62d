//! Space of both sides, for `StatFileSystem`: what here is behind as well, and so makes room when there is none; and
//! how much the file system of the backing tree has.
//!
//! Invariants
//! 1. What is told to be clean is clean: of a file that was changed here since it was carried, what is clean without a
//!    record does not count.
//! 2. Whoever asks waits for the backing tree for `PATIENCE_NS` at most, and while that is not known to answer nobody
//!    waits.

use super::table::TakenUp;
use crate::core::{Core, Turns, until};
use crate::process::options::FlushPolicy;
use crate::store::LOOK_COUNT_MAX;
use reactor::Nanos;
use std::cell::Cell;
use std::rc::Rc;
use wire::FileId;
use wire::messages::{BackingShare, BackingSpace, CarryTime};

/// What was counted is told for so long, or so many times as long as it took to count.
const KNOWN_NS: Nanos = 1_000_000_000;
const COUNT_TIMES: Nanos = 100;
/// For how long the backing tree is waited for, and then not asked.
const PATIENCE_NS: Nanos = 1_000_000_000;
const SILENCE_NS: Nanos = 10_000_000_000;
/// Files that are counted in one step of the loop.
const STEP_FILES: usize = 256;

/// What was told last, and until when it is told again.
#[derive(Default)]
pub(super) struct SpaceKnown {
    clean: Cell<(u64, Nanos)>,
    space: Cell<(Option<BackingSpace>, Nanos)>,
    /// Of those who ask one counts.
    turns: Turns,
}

impl TakenUp {
    /// Bytes of those that a file takes here which are behind as well, at least.
    fn clean_bytes(&self, allocated: u64) -> u64 {
        let [clean, dirty] = self.known_bytes();
        if self.is_written { clean.min(allocated) } else { allocated.saturating_sub(dirty) }
    }
}

impl Core {
    /// What this server knows of space in a cluster over a backing tree; nothing without one.
    pub async fn backing_share(self: &Rc<Self>) -> Option<BackingShare> {
        let backing = self.backing.as_ref()?;
        let known = &backing.space_known;
        let turn = known.turns.take(0).await;
        if known.clean.get().1 <= self.reactor.now() {
            let begun = self.reactor.now();
            let bytes = self.count_clean().await;
            let now = self.reactor.now();
            known.clean.set((bytes, now + KNOWN_NS.max(COUNT_TIMES * (now - begun))));
        }
        if self.cluster.home_of(FileId::ROOT) == Some(self.index) && known.space.get().1 <= self.reactor.now() {
            let asked = async { backing.tree.root().await?.space().await };
            let found = until(&self.reactor, self.reactor.now() + PATIENCE_NS, asked).await;
            let space = found
                .and_then(Result::ok)
                .map(|space| BackingSpace { bytes_total: space.size, bytes_free: space.available.min(space.size) });
            let valid = if space.is_some() { KNOWN_NS } else { SILENCE_NS };
            known.space.set((space, self.reactor.now() + valid));
        }
        drop(turn);
        let carries = match backing.pace.policy() {
            FlushPolicy::Idle | FlushPolicy::Immediate | FlushPolicy::OnClose => CarryTime::ByItself,
            FlushPolicy::Manual => CarryTime::Asked,
            FlushPolicy::Never => CarryTime::Never,
        };
        Some(BackingShare { bytes_clean: known.clean.get().0, carries, space: known.space.get().0 })
    }

    async fn count_clean(&self) -> u64 {
        let files: Vec<FileId> = {
            let tables = self.tables.borrow();
            let may_have = tables.backing.taken_up().filter(|(_, taken_up)| taken_up.may_have_clean());
            may_have.map(|(file, _)| file).collect()
        };
        let mut bytes = 0;
        for some in files.chunks(STEP_FILES) {
            for file in some {
                let (mut allocated, mut from) = (0, Some(0));
                while let Some(chunk) = from {
                    let mut left = LOOK_COUNT_MAX;
                    let (part, next) = self.store.allocated(file.0, chunk, &mut left);
                    (allocated, from) = (allocated + part, next);
                    if next.is_some() {
                        self.reactor.yield_now().await;
                    }
                }
                let tables = self.tables.borrow();
                bytes += tables.backing.get(*file).map_or(0, |taken_up| taken_up.clean_bytes(allocated));
            }
            self.reactor.yield_now().await;
        }
        bytes
    }
}
