//! What can't come true any more: a look that found an inode somewhere, or with some mode, where that inode is in the
//! state and no operation is left that could bring it there, or give it that mode. Without this the search would
//! notice only where the look has its place, and try all orders of what lies between.

use super::{Part, Tree};
use crate::history::{Action, Moment, Operation, Outcome, Path};
use crate::linearize::Done;
use std::collections::BTreeMap;
use wire::{FileId, Kind};

/// What a look was told about an inode.
struct Claim<'a> {
    /// Where the inode was found; until `found` has its place.
    path: &'a Path,
    found: usize,
    /// Its mode when `told` had its place.
    mode: Option<u32>,
    told: usize,
    /// Number of the operation in the history.
    number: usize,
    end: Moment,
}

/// A change of a mode, in two steps.
struct ModeChange<'a> {
    path: &'a Path,
    mode: u32,
    found: usize,
    used: usize,
    number: usize,
    start: Moment,
}

/// Something that may bring inodes which are there to this path and below.
struct Move<'a> {
    to: &'a Path,
    position: usize,
    start: Moment,
}

/// See the module.
#[derive(Default)]
pub(super) struct Ahead<'a> {
    claims: BTreeMap<FileId, Vec<Claim<'a>>>,
    mode_changes: Vec<ModeChange<'a>>,
    moves: Vec<Move<'a>>,
}

impl<'a> Ahead<'a> {
    pub(super) fn new(operations: &[(usize, &'a Operation, Part)]) -> Ahead<'a> {
        let mut ahead = Ahead::default();
        for (position, (number, operation, part)) in operations.iter().enumerate() {
            if *part != Part::Use && !matches!(operation.outcome, Outcome::Failed(_)) {
                ahead.note(position, *number, operation);
            }
        }
        ahead
    }

    fn note(&mut self, position: usize, number: usize, operation: &'a Operation) {
        let (start, end) = (operation.start, operation.end);
        match (&operation.action, &operation.outcome) {
            (Action::Stat { path }, Outcome::Seen(seen) | Outcome::SeenInPart(seen)) => {
                let mode = (seen.kind != Kind::Symlink).then_some(seen.mode);
                let claim = Claim { path, found: position, mode, told: position + 1, number, end };
                self.claims.entry(seen.id).or_default().push(claim);
            }
            (Action::Open { path, .. }, Outcome::Opened(id)) => {
                let claim = Claim { path, found: position, mode: None, told: position, number, end };
                self.claims.entry(*id).or_default().push(claim);
            }
            (Action::ChangeMode { path, mode }, _) => {
                let (found, used, mode) = (position, position + 1, *mode);
                self.mode_changes.push(ModeChange { path, mode, found, used, number, start });
            }
            (Action::LinkOpen { path, .. }, _) => self.moves.push(Move { to: path, position, start }),
            (Action::Link { from, to }, _) if from != to => self.moves.push(Move { to, position, start }),
            (Action::Rename { from, to, exchange, .. }, _) if from != to => {
                self.moves.push(Move { to, position, start });
                if *exchange {
                    self.moves.push(Move { to: from, position, start });
                }
            }
            _ => {}
        }
    }

    /// The position of a look without hope.
    pub(super) fn hopeless_look(&self, state: &Tree, done: &Done) -> Option<usize> {
        let known = state.nodes.iter().filter_map(|(key, node)| Some((*key, node.mode, self.claims.get(&node.id?)?)));
        for (key, mode, claims) in known {
            for claim in claims.iter().filter(|claim| !done.contains(claim.told)) {
                if !self.may_be_found(state, key, claim, done) || !self.may_be_told(state, key, mode, claim, done) {
                    return Some(claim.told);
                }
            }
        }
        None
    }

    fn may_be_found(&self, state: &Tree, key: usize, claim: &Claim, done: &Done) -> bool {
        match done.contains(claim.found) {
            true => state.found.get(&claim.number) == Some(&key),
            false => self.may_lead_to(state, claim.path, key, claim.end, done),
        }
    }

    fn may_be_told(&self, state: &Tree, key: usize, mode: u32, claim: &Claim, done: &Done) -> bool {
        let Some(wanted) = claim.mode.filter(|wanted| *wanted != mode) else { return true };
        let mut left = self
            .mode_changes
            .iter()
            .filter(|change| change.mode == wanted && change.start < claim.end && !done.contains(change.used));
        left.any(|change| match done.contains(change.found) {
            true => state.found.get(&change.number) == Some(&key),
            false => self.may_lead_to(state, change.path, key, claim.end, done),
        })
    }

    /// Whether a path leads to an inode that is there, or something may bring it there before the end of a look.
    fn may_lead_to(&self, state: &Tree, path: &Path, key: usize, end: Moment, done: &Done) -> bool {
        let mut moves = self.moves.iter().filter(|way| way.start < end && path.lies_in(way.to));
        state.entries.get(path) == Some(&key) || moves.any(|way| !done.contains(way.position))
    }
}
