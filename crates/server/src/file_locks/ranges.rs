//! Locks of byte ranges of one file, pure: who holds what, what conflicts, and how ranges split and join.
//!
//! Invariants
//! 1. The ranges of one owner are sorted, not empty, and apart: two that touch differ in their mode.
//! 2. No two owners hold conflicting ranges.

use std::collections::BTreeMap;
use wire::messages::{LOCK_END, LockOwner};
use wire::{Decode, Decoder, Encode, Malformed};

/// A locked range. `end` is the first byte that is not locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub start: u64,
    pub end: u64,
    pub exclusive: bool,
}

impl Range {
    pub fn overlaps(&self, other: &Range) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether two owners may not hold both.
    pub fn conflicts(&self, other: &Range) -> bool {
        self.overlaps(other) && (self.exclusive || other.exclusive)
    }
}

impl Encode for Range {
    fn encode(&self, out: &mut Vec<u8>) {
        self.start.encode(out);
        self.end.encode(out);
        self.exclusive.encode(out);
    }
}

impl<'a> Decode<'a> for Range {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let (start, end) = (Decode::decode(input)?, Decode::decode(input)?);
        if start >= end || end > LOCK_END {
            return Err(Malformed("a locked range is empty or too long"));
        }
        Ok(Range { start, end, exclusive: Decode::decode(input)? })
    }
}

/// The ranges of one owner once `range` is locked in its mode, or unlocked.
pub fn changed(held: &[Range], range: &Range, lock: bool) -> Vec<Range> {
    let mut parts = Vec::with_capacity(held.len() + 2);
    for other in held {
        if !other.overlaps(range) {
            parts.push(*other);
            continue;
        }
        if other.start < range.start {
            parts.push(Range { end: range.start, ..*other });
        }
        if other.end > range.end {
            parts.push(Range { start: range.end, ..*other });
        }
    }
    if lock {
        parts.push(*range);
    }
    parts.sort_by_key(|part| part.start);
    let mut joined: Vec<Range> = Vec::with_capacity(parts.len());
    for part in parts {
        match joined.last_mut() {
            Some(last) if last.end == part.start && last.exclusive == part.exclusive => last.end = part.end,
            _ => joined.push(part),
        }
    }
    joined
}

/// The locks of one file in one space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeTable {
    owners: BTreeMap<LockOwner, Vec<Range>>,
}

impl RangeTable {
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub fn of_owner(&self, owner: &LockOwner) -> &[Range] {
        self.owners.get(owner).map_or(&[], Vec::as_slice)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&LockOwner, &[Range])> {
        self.owners.iter().map(|(owner, held)| (owner, held.as_slice()))
    }

    pub fn count(&self) -> usize {
        self.owners.values().map(Vec::len).sum()
    }

    /// Replaces all that an owner holds.
    pub fn put(&mut self, owner: LockOwner, held: Vec<Range>) {
        if held.is_empty() {
            self.owners.remove(&owner);
        } else {
            self.owners.insert(owner, held);
        }
    }

    /// What others hold that conflicts with `range`, in the order of the owners.
    pub fn conflicts<'a>(
        &'a self,
        owner: &'a LockOwner,
        range: &'a Range,
    ) -> impl Iterator<Item = (&'a LockOwner, &'a Range)> {
        let others = self.owners.iter().filter(move |(other, _)| *other != owner);
        others.filter_map(move |(other, held)| Some((other, first_conflict(held, range)?)))
    }

    /// Whether the owner holds all of a range in its mode or a stronger one.
    pub fn covers(&self, owner: &LockOwner, range: &Range) -> bool {
        let mut next = range.start;
        for held in self.of_owner(owner).iter().filter(|held| held.overlaps(range)) {
            if held.start > next || (range.exclusive && !held.exclusive) {
                return false;
            }
            next = held.end;
        }
        next >= range.end
    }
}

/// The first of an owner's ranges that conflicts with another's. They are sorted, so those before are skipped.
fn first_conflict<'a>(held: &'a [Range], range: &Range) -> Option<&'a Range> {
    let from = held.partition_point(|other| other.end <= range.start);
    held[from..].iter().take_while(|other| other.start < range.end).find(|other| other.conflicts(range))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::messages::OwnerKind;

    /// Numbers from a fixed seed (splitmix64, Steele et al., OOPSLA 2014).
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % bound
        }
    }

    const BYTES: usize = 24;
    const OWNERS: u64 = 4;

    fn owner(id: u64) -> LockOwner {
        LockOwner {
            session: id / 2,
            kind: if id.is_multiple_of(2) { OwnerKind::Process } else { OwnerKind::Description },
            id,
        }
    }

    /// What each owner holds of each byte: 0 nothing, 1 shared, 2 exclusive.
    type Model = [[u8; BYTES]; OWNERS as usize];

    fn as_bytes(held: &[Range]) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        for range in held {
            bytes[range.start as usize..range.end as usize].fill(1 + u8::from(range.exclusive));
        }
        bytes
    }

    fn check_shape(held: &[Range]) {
        assert!(held.iter().all(|range| range.start < range.end), "{held:?}");
        for pair in held.windows(2) {
            assert!(pair[0].end <= pair[1].start, "{held:?}");
            assert!(pair[0].end < pair[1].start || pair[0].exclusive != pair[1].exclusive, "{held:?}");
        }
    }

    /// Goal: splits, joins, conflicts and coverage are those of a model that keeps every byte of every owner.
    /// Method: random locks and unlocks of four owners on few bytes; what conflicts in the model is refused.
    #[test]
    fn model() {
        for seed in 0..50 {
            let mut random = Random(seed);
            let mut table = RangeTable::default();
            let mut model: Model = [[0; BYTES]; OWNERS as usize];
            for step in 0..400 {
                let who = random.below(OWNERS);
                let start = random.below(BYTES as u64);
                let end = start + 1 + random.below(BYTES as u64 - start);
                let range = Range { start, end, exclusive: random.below(2) == 0 };
                let bytes = start as usize..end as usize;
                let words = format!("seed {seed} step {step}: {who} {range:?}");
                let mode = 1 + u8::from(range.exclusive);
                let conflicting: Vec<u64> = (0..OWNERS)
                    .filter(|other| *other != who)
                    .filter(|other| {
                        model[*other as usize][bytes.clone()].iter().any(|held| held + mode > 2 && *held > 0)
                    })
                    .collect();
                let mut found: Vec<u64> = table.conflicts(&owner(who), &range).map(|(other, _)| other.id).collect();
                found.sort_unstable();
                assert_eq!(found, conflicting, "{words}");
                let covered = model[who as usize][bytes.clone()].iter().all(|held| *held >= mode);
                assert_eq!(table.covers(&owner(who), &range), covered, "{words}");
                let lock = random.below(3) > 0;
                if lock && !conflicting.is_empty() {
                    continue;
                }
                let held = changed(table.of_owner(&owner(who)), &range, lock);
                check_shape(&held);
                table.put(owner(who), held);
                model[who as usize][bytes].fill(if lock { mode } else { 0 });
                for id in 0..OWNERS {
                    assert_eq!(as_bytes(table.of_owner(&owner(id))), model[id as usize], "{words}");
                }
            }
        }
    }
}
