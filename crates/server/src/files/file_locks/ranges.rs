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
pub struct OwnerRange {
    pub start: u64,
    pub end: u64,
    pub exclusive: bool,
}

impl OwnerRange {
    pub fn overlaps(&self, other: &OwnerRange) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether two owners may not hold both.
    pub fn conflicts(&self, other: &OwnerRange) -> bool {
        self.overlaps(other) && (self.exclusive || other.exclusive)
    }
}

impl Encode for OwnerRange {
    fn encode(&self, out: &mut Vec<u8>) {
        self.start.encode(out);
        self.end.encode(out);
        self.exclusive.encode(out);
    }
}

impl<'a> Decode<'a> for OwnerRange {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let (start, end) = (Decode::decode(input)?, Decode::decode(input)?);
        if start >= end || end > LOCK_END {
            return Err(Malformed("a locked range is empty or too long"));
        }
        Ok(OwnerRange { start, end, exclusive: Decode::decode(input)? })
    }
}

/// These ranges once `range` is locked in its mode, or unlocked; sorted, as they are.
fn changed(held: &[OwnerRange], range: &OwnerRange, lock: bool) -> Vec<OwnerRange> {
    let mut parts = Vec::with_capacity(held.len() + 2);
    for other in held {
        if !other.overlaps(range) {
            parts.push(*other);
            continue;
        }
        if other.start < range.start {
            parts.push(OwnerRange { end: range.start, ..*other });
        }
        if other.end > range.end {
            parts.push(OwnerRange { start: range.end, ..*other });
        }
    }
    if lock {
        parts.push(*range);
    }
    parts.sort_by_key(|part| part.start);
    let mut joined: Vec<OwnerRange> = Vec::with_capacity(parts.len());
    for part in parts {
        match joined.last_mut() {
            Some(last) if last.end == part.start && last.exclusive == part.exclusive => last.end = part.end,
            _ => joined.push(part),
        }
    }
    joined
}

/// What one owner holds of a file: end and mode of each range by its start. A change costs what it touches, not what is
/// held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockRanges(BTreeMap<u64, (u64, bool)>);

impl LockRanges {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = OwnerRange> {
        self.iter_from(0)
    }

    /// Those that begin at a place or behind it.
    pub fn iter_from(&self, start: u64) -> impl Iterator<Item = OwnerRange> {
        self.0.range(start..).map(|(start, (end, exclusive))| OwnerRange {
            start: *start,
            end: *end,
            exclusive: *exclusive,
        })
    }

    /// Those that overlap a range or touch it, sorted.
    fn around(&self, range: &OwnerRange) -> impl Iterator<Item = OwnerRange> {
        // Of those that begin before it only the last can reach it, since they are apart (invariant 1).
        let before = self.0.range(..range.start).next_back();
        let from = self.0.range(range.start..=range.end);
        let all = before.filter(|(_, (end, _))| *end >= range.start).into_iter().chain(from);
        all.map(|(start, (end, exclusive))| OwnerRange { start: *start, end: *end, exclusive: *exclusive })
    }

    pub fn overlapping(&self, range: &OwnerRange) -> impl Iterator<Item = OwnerRange> {
        self.around(range).filter(|held| held.overlaps(range))
    }

    /// How many ranges there are once `range` is locked in its mode, or unlocked.
    pub fn count_after(&self, range: &OwnerRange, lock: bool) -> usize {
        let around: Vec<OwnerRange> = self.around(range).collect();
        self.count() - around.len() + changed(&around, range, lock).len()
    }

    /// Locks a range in its mode, or unlocks it.
    fn set(&mut self, range: &OwnerRange, lock: bool) {
        let around: Vec<OwnerRange> = self.around(range).collect();
        for held in &around {
            self.0.remove(&held.start);
        }
        self.0.extend(changed(&around, range, lock).iter().map(|held| (held.start, (held.end, held.exclusive))));
    }
}

/// The locks of one file in one space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeTable {
    owners: BTreeMap<LockOwner, LockRanges>,
    count: usize,
}

/// Of an owner that holds nothing.
static NOTHING: LockRanges = LockRanges(BTreeMap::new());

impl RangeTable {
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    pub fn of_owner(&self, owner: &LockOwner) -> &LockRanges {
        self.owners.get(owner).unwrap_or(&NOTHING)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&LockOwner, &LockRanges)> {
        self.owners.iter()
    }

    /// Ranges of all owners.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Has an owner hold a range in its mode, or nothing of it.
    pub fn set(&mut self, owner: LockOwner, range: &OwnerRange, lock: bool) {
        let held = self.owners.entry(owner).or_default();
        self.count -= held.count();
        held.set(range, lock);
        self.count += held.count();
        if held.is_empty() {
            self.owners.remove(&owner);
        }
    }

    /// Has an owner hold nothing any more.
    pub fn remove(&mut self, owner: &LockOwner) {
        self.count -= self.owners.remove(owner).map_or(0, |held| held.count());
    }

    /// What others hold that conflicts with `range`, the first of each, in the order of the owners.
    pub fn conflicts<'a>(
        &'a self,
        owner: &'a LockOwner,
        range: &'a OwnerRange,
    ) -> impl Iterator<Item = (&'a LockOwner, OwnerRange)> {
        let others = self.owners.iter().filter(move |(other, _)| *other != owner);
        others.filter_map(move |(other, held)| {
            Some((other, held.overlapping(range).find(|other| other.conflicts(range))?))
        })
    }

    /// Whether the owner holds all of a range in its mode or a stronger one.
    pub fn covers(&self, owner: &LockOwner, range: &OwnerRange) -> bool {
        let mut next = range.start;
        for held in self.of_owner(owner).overlapping(range) {
            if held.start > next || (range.exclusive && !held.exclusive) {
                return false;
            }
            next = held.end;
        }
        next >= range.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::Random;
    use wire::messages::OwnerKind;

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

    fn as_bytes(held: &LockRanges) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        for range in held.iter() {
            bytes[range.start as usize..range.end as usize].fill(1 + u8::from(range.exclusive));
        }
        bytes
    }

    fn check_shape(held: &LockRanges) {
        let held: Vec<OwnerRange> = held.iter().collect();
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
                let range = OwnerRange { start, end, exclusive: random.below(2) == 0 };
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
                let count = table.of_owner(&owner(who)).count_after(&range, lock);
                table.set(owner(who), &range, lock);
                check_shape(table.of_owner(&owner(who)));
                assert_eq!(table.of_owner(&owner(who)).count(), count, "{words}");
                assert_eq!(table.count(), table.iter().map(|(_, held)| held.count()).sum::<usize>(), "{words}");
                model[who as usize][bytes].fill(if lock { mode } else { 0 });
                for id in 0..OWNERS {
                    assert_eq!(as_bytes(table.of_owner(&owner(id))), model[id as usize], "{words}");
                }
            }
        }
    }

    /// Goal: changes are after-images of what they touch: applied again from any of them on, over a state that already
    /// holds any number of the later ones, they lead to the same end. That is what replay over a fuzzy checkpoint
    /// needs. Method: a random list of changes; the state after the first `seen` of them is what a checkpoint wrote,
    /// one range at a time in an order of its own, and all changes from `from` on are applied to it.
    #[test]
    fn replay() {
        for seed in 0..20 {
            let mut random = Random(seed);
            let changes: Vec<(OwnerRange, bool)> = (0..60)
                .map(|_| {
                    let start = random.below(BYTES as u64);
                    let end = start + 1 + random.below(BYTES as u64 - start);
                    (OwnerRange { start, end, exclusive: random.below(2) == 0 }, random.below(3) > 0)
                })
                .collect();
            let after = |count: usize| {
                let mut table = RangeTable::default();
                changes[..count].iter().for_each(|(range, lock)| table.set(owner(0), range, *lock));
                table
            };
            for from in [0, 10, 30, 59] {
                for seen in from..=changes.len() {
                    let mut written: Vec<OwnerRange> = after(seen).of_owner(&owner(0)).iter().collect();
                    let turn = seed as usize % written.len().max(1);
                    written.rotate_left(turn);
                    let mut table = RangeTable::default();
                    written.iter().for_each(|range| table.set(owner(0), range, true));
                    assert_eq!(table, after(seen), "seed {seed}");
                    for _ in 0..2 {
                        changes[from..].iter().for_each(|(range, lock)| table.set(owner(0), range, *lock));
                    }
                    assert_eq!(table, after(changes.len()), "seed {seed} from {from} seen {seen}");
                }
            }
        }
    }
}
