//! Space of both sides, for `StatFileSystem`: what here is behind as well, and so makes room when there is none; and
//! how much the file system of the backing tree has.
//!
//! Invariants
//! 1. What is told to be clean was clean when it was counted: of a file that was changed here since it was carried,
//!    what is clean without a record does not count.
//! 2. Whoever asks waits for the backing tree for `PATIENCE_NS` at most, and while that is not known to answer nobody
//!    waits.

use super::table::Standing;
use crate::core::{Core, Turns, until};
use crate::process::options::FlushPolicy;
use crate::store::LOOK_COUNT_MAX;
use reactor::Nanos;
use std::cell::Cell;
use std::rc::Rc;
use wire::FileId;
use wire::messages::{BackingShare, BackingSpace, CarryTime};

/// What was counted is told for so long, or so many times as long as it took to count, up to the second bound.
const KNOWN_NS: Nanos = 1_000_000_000;
const COUNT_TIMES: Nanos = 100;
const KNOWN_NS_MAX: Nanos = 10_000_000_000;
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

impl SpaceKnown {
    /// What was evicted since it was counted is free by now.
    pub fn note_evicted(&self, bytes: u64) {
        let (clean, until) = self.clean.get();
        self.clean.set((clean.saturating_sub(bytes), until));
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
            known.clean.set((bytes, now + (COUNT_TIMES * (now - begun)).clamp(KNOWN_NS, KNOWN_NS_MAX)));
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
                bytes += self.count_clean_of(*file).await;
            }
            self.reactor.yield_now().await;
        }
        bytes
    }

    /// Of a file in which nothing was changed all is clean that is here.
    async fn count_clean_of(&self, file: FileId) -> u64 {
        let is_clean = |(index, standing)| (standing == Standing::Clean).then_some(index);
        let clean: Option<Vec<u64>> = {
            let tables = self.tables.borrow();
            let written = tables.backing.get(file).filter(|taken_up| taken_up.is_written);
            written.map(|taken_up| taken_up.standings().filter_map(is_clean).collect())
        };
        let mut bytes = 0;
        if let Some(clean) = clean {
            for some in clean.chunks(LOOK_COUNT_MAX) {
                bytes += some.iter().map(|index| self.store.allocated_in_chunk(file.0, *index)).sum::<u64>();
                self.reactor.yield_now().await;
            }
            return bytes;
        }
        let mut from = Some(0);
        while let Some(chunk) = from {
            let mut left = LOOK_COUNT_MAX;
            let (part, next) = self.store.allocated(file.0, chunk, &mut left);
            (bytes, from) = (bytes + part, next);
            if next.is_some() {
                self.reactor.yield_now().await;
            }
        }
        bytes
    }
}
