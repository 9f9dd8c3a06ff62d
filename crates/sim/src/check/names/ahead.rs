//! What can't come true any more: a look that found an inode somewhere, or with some mode, where that inode is in the
//! state and no operation is left that could bring it there, or give it that mode. Without this the search would
//! notice only where the look has its place, and try all orders of what lies between. Likewise a look that found no
//! names at all, where there are more of a name than operations are left that could remove one; and what made a new
//! name, found none, or opened an inode at it, where the name is there, or is another inode's, and no operation is left
//! that could take it away before.

use super::{OperationPart, Tree, finds_nothing};
use crate::history::{Action, Moment, Operation, Outcome, Path};
use crate::linearize::Done;
use std::collections::BTreeMap;
use wire::{FileId, Kind, Status};

/// What a look was told about an inode.
struct InodeClaim<'a> {
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

/// An operation that made a name which was not there, or found none; or that found there, or made, just one inode.
struct FreeName<'a> {
    path: &'a Path,
    position: usize,
    end: Moment,
    but_for: Option<FileId>,
}

/// Something that may take this path, and what is below, away.
struct Departure<'a> {
    from: &'a Path,
    position: usize,
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
    claims: BTreeMap<FileId, Vec<InodeClaim<'a>>>,
    mode_changes: Vec<ModeChange<'a>>,
    moves: Vec<Move<'a>>,
    /// What may take a name out of its directory, by the name's last part.
    removals: BTreeMap<&'a str, Vec<usize>>,
    departures: Vec<Departure<'a>>,
    free_names: Vec<FreeName<'a>>,
    /// The look that found no names at all.
    end: Option<usize>,
}

impl<'a> Ahead<'a> {
    pub(super) fn new(operations: &[(usize, &'a Operation, OperationPart)]) -> Ahead<'a> {
        let mut ahead = Ahead::default();
        for (position, (number, operation, part)) in operations.iter().enumerate() {
            if *part == OperationPart::Use {
                continue;
            }
            if let Some((path, but_for)) = free_name(operation) {
                ahead.free_names.push(FreeName { path, position, end: operation.end, but_for });
            }
            if !matches!(operation.outcome, Outcome::Failed(_)) {
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
                let claim = InodeClaim { path, found: position, mode, told: position + 1, number, end };
                self.claims.entry(seen.id).or_default().push(claim);
            }
            (Action::Open { path, .. }, Outcome::Opened(id)) => {
                let claim = InodeClaim { path, found: position, mode: None, told: position, number, end };
                self.claims.entry(*id).or_default().push(claim);
            }
            (Action::ChangeMode { path, mode }, _) => {
                let (found, used, mode) = (position, position + 1, *mode);
                self.mode_changes.push(ModeChange { path, mode, found, used, number, start });
            }
            (Action::LinkOpen { path, .. }, _) => self.moves.push(Move { to: path, position, start }),
            (Action::Unlink { path } | Action::RemoveDirectory { path }, _) => self.note_removal(path, position, start),
            (Action::Link { from, to }, _) if from != to => self.moves.push(Move { to, position, start }),
            (Action::Rename { from, to, exchange, .. }, _) if from != to => {
                self.moves.push(Move { to, position, start });
                self.note_removal(from, position, start);
                if *exchange {
                    self.departures.push(Departure { from: to, position, start });
                    self.moves.push(Move { to: from, position, start });
                }
            }
            _ if finds_nothing(operation) => self.end = Some(position),
            _ => {}
        }
    }

    fn note_removal(&mut self, path: &'a Path, position: usize, start: Moment) {
        self.departures.push(Departure { from: path, position, start });
        self.removals.entry(path.name()).or_default().push(position);
    }

    /// The look that found no names at all, where some can't go any more. An operation takes at most one name of a
    /// kind away; those that a loss of power may take back are not counted.
    pub(super) fn never_empty(&self, state: &Tree, done: &Done) -> Option<usize> {
        let end = self.end.filter(|end| !done.contains(*end))?;
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for path in state.entries.keys() {
            let dentry = (path.parent().map(|parent| state.entries[&parent]), path.name().to_owned());
            if !state.changes().any(|changes| changes.entries.contains_key(&dentry)) {
                *counts.entry(path.name()).or_default() += 1;
            }
        }
        let left = |name: &str| {
            let removals = self.removals.get(name).map_or(&[][..], Vec::as_slice);
            removals.iter().filter(|position| !done.contains(**position)).count()
        };
        counts.into_iter().any(|(name, count)| count > left(name)).then_some(end)
    }

    /// The position of a look without hope, of those that end before a moment.
    pub(super) fn hopeless_look(&self, state: &Tree, done: &Done, until: Moment) -> Option<usize> {
        let known = state.nodes.iter().filter_map(|(key, node)| Some((*key, node.mode, self.claims.get(&node.id?)?)));
        for (key, mode, claims) in known {
            for claim in claims.iter().filter(|claim| claim.end < until && !done.contains(claim.told)) {
                if !self.may_be_found(state, key, claim, done) || !self.may_be_told(state, key, mode, claim, done) {
                    return Some(claim.told);
                }
            }
        }
        None
    }

    /// The position of an operation that made a name, or found none, which is there and stays until then; of those that
    /// end before a moment.
    pub(super) fn name_in_the_way(&self, state: &Tree, done: &Done, until: Moment) -> Option<usize> {
        let is_left = |name: &FreeName, position| position != name.position && !done.contains(position);
        let may_go = |name: &FreeName| {
            let frees = |way: &&Departure| name.path.lies_in(way.from) && way.start < name.end;
            self.departures.iter().filter(frees).any(|way| is_left(name, way.position))
        };
        let may_be_replaced = |name: &FreeName| {
            let replaces = |way: &&Move| name.path.lies_in(way.to) && way.start < name.end;
            self.moves.iter().filter(replaces).any(|way| is_left(name, way.position))
        };
        let is_stuck = |name: &&FreeName| {
            let Some(key) = state.entries.get(name.path).filter(|_| !done.contains(name.position)) else {
                return false;
            };
            match name.but_for {
                None => !may_go(name),
                Some(id) => {
                    let is_other = state.nodes.get(key).and_then(|node| node.id).is_some_and(|other| other != id);
                    is_other && !may_go(name) && !may_be_replaced(name)
                }
            }
        };
        self.free_names.iter().filter(|name| name.end < until).find(is_stuck).map(|name| name.position)
    }

    fn may_be_found(&self, state: &Tree, key: usize, claim: &InodeClaim, done: &Done) -> bool {
        match done.contains(claim.found) {
            true => state.found.get(&claim.number) == Some(&key),
            false => self.may_lead_to(state, claim.path, key, claim.end, done),
        }
    }

    fn may_be_told(&self, state: &Tree, key: usize, mode: u32, claim: &InodeClaim, done: &Done) -> bool {
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

/// A name that was free when an operation had its place, by what it was told: it has made it, or found none. Or that
/// was free but for one inode.
fn free_name(operation: &Operation) -> Option<(&Path, Option<FileId>)> {
    match (&operation.action, &operation.outcome) {
        (
            Action::Open { path, create: false, .. }
            | Action::Stat { path }
            | Action::Unlink { path }
            | Action::RemoveDirectory { path },
            Outcome::Failed(Status::NotFound),
        ) => Some((path, None)),
        (_, Outcome::Failed(_) | Outcome::Unknown(_)) => None,
        (Action::Open { path, exclusive, create, .. }, Outcome::Opened(id)) => match create & exclusive {
            true => Some((path, None)),
            false => Some((path, Some(*id))),
        },
        (
            Action::LinkOpen { path, .. }
            | Action::MakeDirectory { path, .. }
            | Action::MakeSymlink { path, .. }
            | Action::MakeNode { path, .. },
            _,
        ) => Some((path, None)),
        (Action::Link { to, .. }, _) => Some((to, None)),
        (Action::Rename { from, to, no_replace: true, exchange: false }, _) if from != to => Some((to, None)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Names;
    use super::super::tree::{Guess, LossStep};
    use super::*;
    use crate::history::{NEVER, Seen};
    use crate::linearize::{self, Object, Span, Verdict};
    use crate::losses::cluster_of;
    use crate::random::Random;

    /// Names whose looks are only judged where they have their places.
    struct BlindNames<'a>(&'a Names<'a>);

    impl Object for BlindNames<'_> {
        type State = Tree;

        fn initial(&self) -> Tree {
            Tree::default()
        }

        fn is_look(&self, operation: usize) -> bool {
            self.0.is_look(operation)
        }

        fn second_step(&self, operation: usize) -> Option<usize> {
            self.0.second_step(operation)
        }

        fn is_same(&self, before: &Tree, after: &Tree, look: usize) -> bool {
            self.0.is_same(before, after, look)
        }

        fn apply(&self, state: &Tree, operation: usize, done: &Done) -> Option<Tree> {
            self.0.apply_any(state, operation, done)
        }
    }

    fn some_path(random: &mut Random) -> Path {
        let top = Path::top(["a", "b"][random.below(2) as usize]);
        if random.percent(50) { top } else { top.join(["x", "y"][random.below(2) as usize]) }
    }

    fn some_action(random: &mut Random) -> Action {
        let (path, to) = (some_path(random), some_path(random));
        let mode = 0o600 + random.below(3) as u32;
        match random.below(16) {
            0..3 => Action::MakeDirectory { path, mode },
            3..5 => {
                let (create, exclusive, truncate) = (random.percent(70), random.percent(30), false);
                Action::Open { path, create, exclusive, truncate, mode, chunk_size: 4096 }
            }
            5..8 => Action::ChangeMode { path, mode },
            8..11 => {
                let exchange = random.percent(30);
                Action::Rename { from: path, to, no_replace: !exchange && random.percent(30), exchange }
            }
            11 => Action::Link { from: path, to },
            12 => Action::Unlink { path },
            _ => Action::Stat { path },
        }
    }

    /// Does an operation, and says what whoever asked for it is told.
    fn outcome(tree: &mut Tree, action: &Action, new_id: FileId) -> Outcome {
        if let Action::Link { from, to } | Action::Rename { from, to, .. } = action {
            let done = tree.act_on_two(action, from, to);
            return done.map_or_else(|errors| Outcome::Failed(errors[0]), |()| Outcome::Done);
        }
        let key = match tree.act(action) {
            Err(status) => return Outcome::Failed(status),
            Ok(None) => return Outcome::Done,
            Ok(Some(key)) => key,
        };
        let links = tree.entries.values().filter(|named| **named == key).count() as u32;
        let node = tree.nodes.get_mut(&key).expect("it was found");
        let id = *node.id.get_or_insert(new_id);
        match action {
            Action::ChangeMode { mode, .. } => {
                node.mode = *mode;
                Outcome::Done
            }
            Action::Open { .. } => Outcome::Opened(id),
            _ => Outcome::Seen(Seen { id, kind: node.kind, mode: node.mode, links, size: 0, mtime: 0 }),
        }
    }

    fn operation(start: Moment, end: Moment, action: Action, outcome: Outcome) -> Operation {
        Operation { client: 0, start, end, started_at: 0, ended_at: 0, action, outcome, lost: false }
    }

    fn random_history(random: &mut Random) -> Vec<Operation> {
        let mut tree = Tree::default();
        let mut operations: Vec<Operation> = Vec::new();
        for number in 0..random.between(5, 13) {
            let action = some_action(random);
            let told = outcome(&mut tree, &action, FileId(100 + number));
            tree.reap();
            let moment = |distance: u64| (16 + 4 * number + distance) * 64 + number;
            let (start, end) = (moment(0) - 64 * random.below(12), moment(1 + random.below(12)));
            let is_unknown = random.percent(25);
            let outcome = if is_unknown { Outcome::Unknown(None) } else { told };
            operations.push(operation(start, if is_unknown { NEVER } else { end }, action, outcome));
        }
        if random.percent(50) {
            // Everything is removed, one after the other, as far as what is done here is what was told.
            let mut moment = 64 * 200;
            for path in tree.entries.keys().rev() {
                let action = match tree.is_directory(Some(tree.entries[path])) {
                    true => Action::RemoveDirectory { path: path.clone() },
                    false => Action::Unlink { path: path.clone() },
                };
                operations.push(operation(moment, moment + 1, action, Outcome::Done));
                moment += 2;
            }
            let list = Action::List { directory: None, by_server: false };
            operations.push(operation(moment, moment + 1, list, Outcome::Entries(Vec::new())));
        }
        // Somebody is told what another one was, or a mode that may have been there at another time.
        let mut looks: Vec<&mut Seen> = Vec::new();
        for operation in &mut operations {
            if let Outcome::Seen(seen) = &mut operation.outcome {
                looks.push(seen);
            }
        }
        match &mut looks[..] {
            [first, .., last] if random.percent(40) => std::mem::swap(*first, *last),
            [.., last] if random.percent(40) => last.mode = 0o600 + random.below(3) as u32,
            _ => {}
        }
        operations.sort_by_key(|operation| operation.start);
        operations
    }

    /// A loss of power somewhere in a random history.
    fn random_loss(random: &mut Random) -> (Vec<LossStep>, Vec<Span>) {
        let moment = random.between(30, 70) * 64 + 50;
        let keep = Span { start: moment - random.between(1, 12) * 64, end: moment + 1 };
        let back = Span { start: moment, end: moment + 2 };
        let server = random.below(2) as u32;
        let back_by = |guess| LossStep::Return { server, kept: 0, guess, from: moment };
        (vec![LossStep::Keep(server), back_by(Guess::Other), back_by(Guess::Own)], vec![keep, back, back])
    }

    /// Goal: to turn back early changes no verdict, nor does it to take one of the guesses that come to the same.
    /// Method: small random histories, right and wrong ones, with and without a loss of power, against a search that
    /// does not look ahead.
    #[test]
    fn looks_ahead_without_a_difference() {
        let (mut random, cluster) = (Random::new(5), cluster_of(2));
        let (mut right, mut wrong, mut with_loss) = (0, 0, [0; 2]);
        for round in 0..6_000 {
            let history = random_history(&mut random);
            let loses = random.percent(50);
            let (steps, step_spans) = if loses { random_loss(&mut random) } else { Default::default() };
            let names = Names::new(super::super::in_parts(history.iter().enumerate()), steps, &cluster);
            let span = |(_, operation, _): &(usize, &Operation, OperationPart)| Span {
                start: operation.start,
                end: operation.end,
            };
            let mut spans: Vec<Span> = names.operations.iter().map(span).collect();
            spans.extend(step_spans);
            let told = linearize::check(&names, &spans);
            let blind = linearize::check(&BlindNames(&names), &spans);
            let fits = |verdict: &Verdict| *verdict == Verdict::Linearizable;
            assert_eq!(fits(&told), fits(&blind), "round {round}: {told:?}, {blind:?}, {history:?}");
            if loses {
                with_loss[usize::from(fits(&told))] += 1;
            }
            *(if fits(&told) { &mut right } else { &mut wrong }) += 1;
        }
        assert!(right > 500 && wrong > 200, "{right} are right, {wrong} wrong: little is tested");
        assert!(with_loss.iter().all(|count| *count > 100), "with losses {with_loss:?} are wrong and right");
    }
}
