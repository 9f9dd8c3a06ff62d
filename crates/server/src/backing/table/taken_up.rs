//! What a server knows of one thing that was taken up from the backing tree, or carried there.

use super::Counts;
use crate::backing::clean_queue::{ChunkUses, WHOLE_FILE};
use reactor::Nanos;
use std::cell::Cell;
use std::collections::BTreeMap;
use wire::messages::BackingPlace;

/// What a chunk that is here is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    /// The same is behind.
    Clean = 1,
    /// Something of it was changed here.
    Dirty = 2,
    /// It was evicted, after a flush had put it behind.
    Absent = 3,
}

impl Standing {
    pub fn of_code(code: u8) -> Option<Standing> {
        [Standing::Clean, Standing::Dirty, Standing::Absent].into_iter().find(|standing| *standing as u8 == code)
    }
}

/// How much of what a server has of a file is behind when a flush of it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum CarriedState {
    /// All: nothing was changed meanwhile.
    Whole = 0,
    /// What was behind before, and perhaps more.
    Unknown = 1,
    /// All but the chunks that are said to be dirty after this.
    Partly = 2,
}

impl CarriedState {
    pub fn of_code(code: u8) -> Option<CarriedState> {
        [CarriedState::Whole, CarriedState::Unknown, CarriedState::Partly]
            .into_iter()
            .find(|state| *state as u8 == code)
    }
}

/// What is known of a chunk.
pub(super) struct KnownChunk {
    pub(super) standing: Standing,
    pub(super) uses: ChunkUses,
}

/// Something that was taken up, or carried.
pub struct TakenUp {
    pub place: BackingPlace,
    /// Of its chunks on this server that begin below its base and are here, and of others those that were evicted, or
    /// written since they were carried.
    pub(super) standings: BTreeMap<u64, KnownChunk>,
    /// Those of them that are dirty, and absent.
    pub(super) dirty: u64,
    pub(super) absent: u64,
    /// Whether users' extended attributes of it are here, at its home.
    pub knows_extended: bool,
    /// Whether its inode is here, and has a name.
    pub is_named: bool,
    /// Something of it was changed on this server since both sides were the same.
    pub is_written: bool,
    /// That may be any of the chunks that were carried and of which nothing is known; else they are as they were.
    pub(super) is_rest_written: bool,
    /// Uses of its other chunks.
    pub(super) rest_uses: ChunkUses,
    /// Those of them below this one were offered for eviction; in memory alone.
    pub(super) offered: u64,
    /// When its name behind was last looked at, and last met in a listing; 0 if that was in another life.
    pub(super) checked: Cell<Nanos>,
    pub(super) listed: Cell<Nanos>,
    /// Uses of its name.
    pub(super) name_uses: ChunkUses,
    /// Bytes between which it has no data behind, as far as somebody has looked.
    pub(super) hole: Cell<(u64, u64)>,
    /// Who reads this chunk of those that were fetched ahead has the next ones fetched; `u64::MAX` if there are none.
    pub next_read_ahead: Cell<u64>,
}

impl TakenUp {
    pub fn is_absent(&self, index: u64) -> bool {
        self.standing(index).map_or(self.begins_below_base(index), |standing| standing == Standing::Absent)
    }

    /// Whether any of its chunks here may be absent.
    pub fn may_lack(&self) -> bool {
        self.place.base > 0 || self.absent > 0
    }

    /// The first chunk from one on that was evicted.
    pub fn next_evicted(&self, first: u64) -> Option<u64> {
        if self.absent == 0 {
            return None;
        }
        self.standings.range(first..).find(|(_, known)| known.standing == Standing::Absent).map(|(index, _)| *index)
    }

    /// The first chunk from one on that is absent: an index, however large the file is.
    pub fn next_absent(&self, first: u64) -> Option<u64> {
        let limit = self.place.base.div_ceil(self.chunk_size());
        let mut index = first;
        for (known, chunk) in self.standings.range(first..) {
            if index < limit.min(*known) {
                return Some(index);
            }
            if chunk.standing == Standing::Absent {
                return Some(*known);
            }
            index = known + 1;
        }
        (index < limit).then_some(index)
    }

    /// Whether anything of it was evicted that is not absent without a word.
    pub fn has_evicted(&self) -> bool {
        self.absent > 0
    }

    pub fn begins_below_base(&self, index: u64) -> bool {
        index.saturating_mul(self.chunk_size()) < self.place.base
    }

    /// Whether anything is known of a chunk, or would be if it were here.
    pub fn is_followed(&self, index: u64) -> bool {
        self.begins_below_base(index) || self.standings.contains_key(&index)
    }

    /// Bytes of an absent chunk that may be behind.
    pub fn size_behind(&self, index: u64) -> u32 {
        let end = match self.standing(index) {
            Some(Standing::Absent) => self.place.carried,
            _ => self.place.base,
        };
        end.saturating_sub(index.saturating_mul(self.chunk_size())).min(self.chunk_size()) as u32
    }

    pub fn standing(&self, index: u64) -> Option<Standing> {
        self.standings.get(&index).map(|here| here.standing)
    }

    pub(super) fn uses_of(&self, index: u64) -> &ChunkUses {
        self.standings.get(&index).map_or(&self.rest_uses, |known| &known.uses)
    }

    /// It has no data behind from one offset up to another.
    pub fn note_hole(&self, from: u64, to: u64) {
        self.hole.set((from, to));
    }

    /// Where the hole behind ends in which all of an absent chunk lies that is behind; nothing if that is not known.
    pub fn hole_end(&self, index: u64) -> Option<u64> {
        let ((from, to), start) = (self.hole.get(), index.saturating_mul(self.chunk_size()));
        (from <= start && start + u64::from(self.size_behind(index)) <= to).then_some(to)
    }

    /// Somebody asks for its name, at a time in seconds.
    pub fn note_name_use(&self, second: u64) {
        self.name_uses.note(second);
    }

    /// Its name was looked at behind, and is as it is known to be.
    pub fn note_checked(&self, now: Nanos) {
        self.checked.set(now);
    }

    /// A listing has met its name.
    pub fn note_listed(&self, now: Nanos) {
        self.listed.set(now);
    }

    pub fn checked(&self) -> Nanos {
        self.checked.get()
    }

    /// Whether its name was looked at, or met in a listing, since then.
    pub fn is_met_since(&self, time: Nanos) -> bool {
        self.checked.get().max(self.listed.get()) >= time
    }

    /// Whether nothing of it here is other than behind, as far as its home knows.
    pub fn is_unchanged(&self) -> bool {
        !self.is_written && self.dirty == 0
    }

    /// A chunk is used, at a time in seconds.
    pub fn note_use(&self, index: u64, second: u64) {
        self.uses_of(index).note(second);
    }

    /// Whether all that the store has of a chunk is behind as well.
    pub fn is_clean(&self, index: u64) -> bool {
        match self.standing(index) {
            Some(standing) => standing == Standing::Clean,
            None => !self.begins_below_base(index) && !self.is_rest_written && self.is_carried(index),
        }
    }

    /// Whether chunks of it from the base on are behind as well of which nothing else is known.
    pub fn has_carried_rest(&self) -> bool {
        !self.is_rest_written && self.place.base < self.place.carried
    }

    /// Whether something of it that is here may be behind as well.
    pub fn may_have_clean(&self) -> bool {
        self.has_carried_rest() || self.standings.len() as u64 > self.dirty + self.absent
    }

    /// A chunk that begins below this size, and of which nothing else is known, is behind as it is here.
    pub fn known_end(&self) -> u64 {
        if self.is_rest_written { self.place.base } else { self.place.base.max(self.place.carried) }
    }

    /// Whether a write to a chunk is to be noted, for it was behind as it was.
    pub fn notes_write(&self, index: u64) -> bool {
        self.standing(index) != Some(Standing::Dirty)
            && (self.is_followed(index) || self.is_carried(index) && !self.is_rest_written)
    }

    /// The same for a hole in chunks of which nothing else is known; the index of the first and one after the last.
    pub fn rest_indexes(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let (first, limit) =
            (self.place.base.div_ceil(self.chunk_size()), self.place.carried.div_ceil(self.chunk_size()));
        let (first, limit) = (first.max(start / self.chunk_size()), limit.min(end.div_ceil(self.chunk_size())));
        (self.has_carried_rest() && first < limit).then_some((first, limit))
    }

    /// Whether a chunk begins below what was carried.
    pub(super) fn is_carried(&self, index: u64) -> bool {
        index.saturating_mul(self.chunk_size()) < self.place.carried
    }

    /// Whether something of it that is here and clean may be at an index, or at any from the base on.
    pub(super) fn may_go(&self, index: u64) -> bool {
        if index == WHOLE_FILE { self.has_carried_rest() } else { self.is_clean(index) }
    }

    pub(super) fn chunk_size(&self) -> u64 {
        u64::from(self.place.chunk_size)
    }

    pub(super) fn count(&self, standing: Standing) -> u64 {
        self.standings.values().filter(|known| known.standing == standing).count() as u64
    }

    pub(super) fn counts(&self) -> Counts {
        Counts { here: self.standings.len() as u64 - self.absent, dirty: self.dirty, named: u64::from(self.is_named) }
    }

    pub fn standings(&self) -> impl Iterator<Item = (u64, Standing)> {
        self.standings.iter().map(|(index, here)| (*index, here.standing))
    }
}
