//! The model of names. One top-level name with everything under it is one object, because removing a directory depends
//! on its children; links and renames tie the names that they concern together. Nothing else ties two names together.
//!
//! One server decides on each change, with one record of its journal, and others have no part in it before that record
//! survives power loss. So when a server loses power, what it decided on since some moment is undone as a whole, and
//! nothing else is.

mod ahead;
mod tree;

use crate::history::{Action, Finding, NEVER, Operation, Outcome, Path};
use crate::linearize::{self, Done, Horizon, Object, Span, Verdict};
use crate::losses::{self, Losses, Setback, is_answered_by_client};
use ahead::Ahead;
use std::collections::{BTreeMap, BTreeSet};
use tree::{Guess, LossStep, Node, Tree};
use wire::{Cluster, FileId, Kind, Status};

/// An operation finds the inode of its path and does something with it. Between the two steps the name may be renamed,
/// as on any system, so that they are placed one by one where the attributes matter; elsewhere they are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperationPart {
    Whole,
    Find,
    Use,
}

struct Names<'a> {
    operations: Vec<PlacedPart<'a>>,
    /// Those of the losses come after all operations.
    steps: Vec<LossStep>,
    cluster: &'a Cluster,
    /// For each inode that anybody was told of, the operations that were.
    mentions: BTreeMap<FileId, Vec<usize>>,
    ahead: Ahead<'a>,
}

/// A stale id tells that what the name led to is gone; that is the same news.
fn same_refusal(told: Status, true_one: Status) -> bool {
    let plain = |status| match status {
        Status::StaleFile | Status::StaleDirectory => Status::NotFound,
        other => other,
    };
    plain(told) == plain(true_one)
}

/// Top-level names that an operation is about.
fn tops(operation: &Operation) -> Vec<&str> {
    match &operation.action {
        Action::List { directory, .. } => directory.iter().map(|path| path.parts[0].as_str()).collect(),
        _ => {
            let pair = operation.pair().map(|(from, to)| [from, to]);
            operation.path().into_iter().chain(pair.into_iter().flatten()).map(|path| path.parts[0].as_str()).collect()
        }
    }
}

impl<'a> Names<'a> {
    fn new(
        operations: Vec<(usize, &'a Operation, OperationPart)>,
        steps: Vec<LossStep>,
        cluster: &'a Cluster,
    ) -> Names<'a> {
        let mut mentions: BTreeMap<FileId, Vec<usize>> = BTreeMap::new();
        for (position, (_, operation, _)) in operations.iter().enumerate() {
            if let Some(id) = operation.outcome.id() {
                mentions.entry(id).or_default().push(position);
            }
        }
        let ahead = Ahead::new(&operations);
        Names { operations, steps, cluster, mentions, ahead }
    }

    /// The inodes that were there before and are not there after.
    fn lost(&self, before: &Tree, after: &Tree) -> impl Iterator<Item = FileId> {
        let known = |node: &Node| node.id;
        before.nodes.values().filter_map(known).filter(|id| !after.nodes.values().any(|node| node.id == Some(*id)))
    }

    /// Whether an operation that has no place yet, and is not this one, was told of this inode.
    fn is_mentioned_later(&self, id: FileId, operation: usize, done: &Done) -> bool {
        let mentions = self.mentions.get(&id).map_or(&[][..], Vec::as_slice);
        mentions.iter().any(|mention| *mention != operation && !done.contains(*mention))
    }

    /// Whether this is a return that comes to the same as one with an earlier guess of the same loss, which is enough.
    fn is_guessed_before(&self, state: &Tree, operation: usize) -> bool {
        let Some(position) = operation.checked_sub(self.operations.len()) else { return false };
        let LossStep::Return { server, kept, .. } = self.steps[position] else { return false };
        let is_of_same = |step: &&LossStep| matches!(step, LossStep::Return { kept: other, .. } if *other == kept);
        let mut earlier = self.steps[..position].iter().filter(is_of_same).peekable();
        if earlier.peek().is_none() || !state.undo.contains_key(&server) {
            return false;
        }
        let after = state.after_step(self.steps[position], self.cluster);
        earlier.any(|step| state.after_step(*step, self.cluster) == after)
    }

    /// See `Object::apply`; also for a return that is not needed.
    fn apply_any(&self, state: &Tree, operation: usize, done: &Done) -> Option<Tree> {
        let Some(&part) = self.operations.get(operation) else {
            let own_count = self.operations.len();
            let step = self.steps[operation - own_count];
            if let LossStep::Return { kept, .. } = step
                && !done.contains(own_count + kept)
            {
                return None;
            }
            let after = state.after_step(step, self.cluster)?;
            let vanished = self.lost(state, &after).any(|id| self.is_mentioned_later(id, operation, done));
            return (!vanished).then_some(after);
        };
        let after = self.after(state, part)?;
        if self.lost(state, &after).any(|id| self.is_mentioned_later(id, operation, done)) {
            return None;
        }
        (!matches!(part.1.outcome, Outcome::Unknown(_)) || after != *state).then_some(after)
    }

    /// The state after a part of an operation. `None` when what was told is not true.
    fn after(&self, state: &Tree, (number, operation, part): (usize, &Operation, OperationPart)) -> Option<Tree> {
        if finds_nothing(operation) {
            return state.entries.is_empty().then(|| state.clone());
        }
        let mut after = state.clone();
        if part == OperationPart::Use {
            let key = after.found.remove(&number)?;
            if !after.make_use(key, operation) {
                return None;
            }
            if !after.undo.is_empty() {
                let decider = state.decider(&operation.action, Some(key), self.cluster);
                after.note_change(state, decider, state.subject(operation, Some(key)));
            }
            return Some(after);
        }
        let answer = match operation.pair() {
            Some((from, to)) => after.act_on_two(&operation.action, from, to).map(|()| None),
            None => after.act(&operation.action).map_err(|status| vec![status]),
        };
        match (&operation.outcome, answer) {
            (Outcome::Failed(told), Err(errors)) => {
                return errors.iter().any(|status| same_refusal(*told, *status)).then(|| state.clone());
            }
            // It has found its file; whether bytes may have gone bad is checked elsewhere.
            (Outcome::Failed(Status::Corrupt), Ok(_)) if matches!(operation.action, Action::TruncatePath { .. }) => {
                return Some(state.clone());
            }
            (Outcome::Failed(_), Ok(_)) | (_, Err(_)) => return None,
            (outcome, Ok(Some(key))) if part == OperationPart::Find => {
                if !after.may_be(key, outcome) {
                    return None;
                }
                after.found.insert(number, key);
            }
            (Outcome::Unknown(_), Ok(_)) | (_, Ok(None)) => {}
            (outcome, Ok(Some(key))) => {
                if !after.agree(key, outcome) {
                    return None;
                }
            }
        }
        if !after.undo.is_empty() && after.entries != state.entries {
            let decider = state.decider(&operation.action, None, self.cluster);
            after.note_change(state, decider, state.subject(operation, None));
        }
        after.reap();
        Some(after)
    }
}

impl Object for Names<'_> {
    type State = Tree;

    fn initial(&self) -> Tree {
        Tree::default()
    }

    fn is_look(&self, operation: usize) -> bool {
        self.operations.get(operation).is_some_and(|(_, operation, _)| only_looks(operation))
    }

    /// Of the returns of one loss all but the first.
    fn is_spent(&self, state: &Tree, operation: usize, done: &Done) -> bool {
        let own_count = self.operations.len();
        match operation.checked_sub(own_count).map(|step| self.steps[step]) {
            Some(LossStep::Return { server, kept, .. }) => {
                done.contains(own_count + kept) && !state.undo.contains_key(&server)
            }
            _ => false,
        }
    }

    fn second_step(&self, operation: usize) -> Option<usize> {
        (self.operations.get(operation)?.2 == OperationPart::Find).then_some(operation + 1)
    }

    fn hopeless_look(&self, state: &Tree, _placed: Option<usize>, done: &Done, _horizon: Horizon) -> Option<usize> {
        if let Some(end) = self.ahead.never_empty(state, done) {
            return Some(end);
        }
        // What a loss of power takes back may bring an inode anywhere: only looks that end before are judged.
        let left = self.steps.iter().enumerate().filter(|(step, _)| !done.contains(self.operations.len() + step));
        let returns = left.filter_map(|(_, step)| match step {
            LossStep::Return { from, .. } => Some(*from),
            LossStep::Keep(_) => None,
        });
        let until = returns.min().unwrap_or(NEVER);
        self.ahead.name_in_the_way(state, done, until).or_else(|| self.ahead.hopeless_look(state, done, until))
    }

    fn is_same(&self, before: &Tree, after: &Tree, _look: usize) -> bool {
        before.entries == after.entries && before.nodes == after.nodes
    }

    fn apply(&self, state: &Tree, operation: usize, done: &Done) -> Option<Tree> {
        if self.is_guessed_before(state, operation) { None } else { self.apply_any(state, operation, done) }
    }
}

/// Whether an operation changes no names, whatever they are.
fn only_looks(operation: &Operation) -> bool {
    match &operation.action {
        _ if matches!(operation.outcome, Outcome::Failed(_)) => true,
        Action::Open { create, .. } => !create,
        Action::Stat { .. } | Action::ReadLink { .. } | Action::List { .. } => true,
        // Neither times nor sizes are part of the model of names.
        Action::SetTime { .. } | Action::TruncatePath { .. } => true,
        _ => false,
    }
}

/// Whether an operation has found that there are no names at all.
fn finds_nothing(operation: &Operation) -> bool {
    matches!(&operation.action, Action::List { directory: None, .. })
        && matches!(&operation.outcome, Outcome::Entries(entries) if entries.is_empty())
}

/// The look that has found nothing after everything else had ended: all names have to go before it.
fn end_of_all(operations: &[Operation]) -> Option<(usize, &Operation)> {
    let (number, last) = operations.iter().enumerate().rfind(|(_, operation)| finds_nothing(operation))?;
    let ends_before = |(other, operation): (usize, &Operation)| {
        other == number || operation.end < last.start || matches!(operation.outcome, Outcome::Unknown(_))
    };
    operations.iter().enumerate().all(ends_before).then_some((number, last))
}

/// For each top-level name the one that stands for all that are tied to it.
fn ties(operations: &[Operation]) -> BTreeMap<&str, &str> {
    let mut groups: BTreeMap<&str, &str> = BTreeMap::new();
    for operation in operations {
        let tops = tops(operation);
        for top in &tops {
            groups.entry(top).or_insert(top);
        }
        if let [one, other] = tops[..] {
            let (one, other) = (groups[one], groups[other]);
            groups.values_mut().filter(|group| **group == other).for_each(|group| *group = one);
        }
    }
    groups
}

/// The parts of an operation that are placed one by one.
fn parts(operation: &Operation) -> &'static [OperationPart] {
    match operation.action {
        // It tells nothing of any name, and has changed none.
        _ if operation.outcome == Outcome::Failed(Status::TooManyOpen) => &[],
        _ if matches!(operation.outcome, Outcome::Failed(_)) => &[OperationPart::Whole],
        // A look of unknown outcome tells nothing.
        Action::Stat { .. }
        | Action::ReadLink { .. }
        | Action::List { .. }
        | Action::SetTime { .. }
        | Action::TruncatePath { .. }
        | Action::Open { create: false, .. }
            if matches!(operation.outcome, Outcome::Unknown(_)) =>
        {
            &[]
        }
        Action::Stat { .. } | Action::ChangeMode { .. } => &[OperationPart::Find, OperationPart::Use],
        _ => &[OperationPart::Whole],
    }
}

/// The parts of operations with their numbers. Changes of modes that may have happened and that nobody saw are left
/// out: they explain nothing.
fn in_parts<'a>(
    operations: impl Iterator<Item = (usize, &'a Operation)> + Clone,
) -> Vec<(usize, &'a Operation, OperationPart)> {
    let mode = |(_, operation): (usize, &Operation)| match &operation.outcome {
        Outcome::Seen(seen) | Outcome::SeenInPart(seen) => Some(seen.mode),
        _ => None,
    };
    let modes: BTreeSet<u32> = operations.clone().filter_map(mode).collect();
    let explains = |(_, operation): &(usize, &Operation)| match operation.action {
        Action::ChangeMode { mode, .. } => !matches!(operation.outcome, Outcome::Unknown(_)) || modes.contains(&mode),
        _ => true,
    };
    let each = |(number, operation)| parts(operation).iter().map(move |part| (number, operation, *part));
    operations.filter(explains).flat_map(each).collect()
}

/// Most numbers that are guessed of inodes of whose making nobody was told.
const GUESS_COUNT_MAX: usize = 4;

/// What may be guessed where nobody was told, by then, the number of an inode that counts for who decides on a change:
/// that of a directory in which names are, or of what has its mode changed. One guess where all were told.
fn guesses<'a>(losses: &Losses, group: impl Iterator<Item = &'a Operation> + Clone) -> Vec<Guess> {
    let is_unknown = |operation: &&Operation| matches!(operation.outcome, Outcome::Unknown(_));
    let makes_file =
        |operation: &Operation| matches!(operation.action, Action::Open { create: true, .. } | Action::MakeNode { .. });
    let makes_directory = |operation: &Operation| matches!(operation.action, Action::MakeDirectory { .. });
    let changes_mode = group.clone().any(|operation| matches!(operation.action, Action::ChangeMode { .. }));
    let unknown = || group.clone().filter(is_unknown);
    let (of_directories, of_files) = (unknown().any(makes_directory), changes_mode && unknown().any(makes_file));
    if losses.cluster.server_count() == 1 || !of_directories && !of_files {
        return vec![Guess::Other];
    }
    // What was told, sooner or later, of inodes of whose making nobody was: first of directories.
    let mut told: BTreeSet<(bool, FileId)> = BTreeSet::new();
    let mut made: BTreeSet<FileId> = BTreeSet::new();
    for operation in losses.operations {
        if makes_directory(operation) || makes_file(operation) {
            made.extend(operation.outcome.id());
        }
        match &operation.outcome {
            Outcome::Seen(seen) | Outcome::SeenInPart(seen) => {
                told.insert((seen.kind != Kind::Directory, seen.id));
            }
            Outcome::Entries(entries) => {
                told.extend(entries.iter().map(|entry| (entry.kind != Kind::Directory, entry.id)));
            }
            _ => {}
        }
    }
    let counts =
        |(is_file, id): &(bool, FileId)| !made.contains(id) && if *is_file { of_files } else { of_directories };
    let numbers = told.into_iter().filter(counts).map(|(_, id)| Guess::Number(id));
    [Guess::Other, Guess::Own].into_iter().chain(numbers.take(GUESS_COUNT_MAX)).collect()
}

/// Steps of all losses for a group of operations, and when they happen (`is_likely`, by number: see
/// `Setback::keep_span`). Where some client `keeps` what it was told, that may outlive its server.
fn loss_steps(
    setbacks: &[Setback],
    guesses: &[Guess],
    keeps: bool,
    is_likely: &dyn Fn(usize) -> bool,
) -> (Vec<LossStep>, Vec<Span>) {
    let (mut steps, mut spans) = (Vec::new(), Vec::new());
    let mut returned = (0, 0);
    for (number, setback) in setbacks.iter().enumerate() {
        let (server, kept) = (setback.server, steps.len());
        let keep_span = setback.keep_span(is_likely(number));
        // A server's losses come one after the other, also where what one took is shown for longer.
        let start = if keeps && returned.0 == server { keep_span.start.max(returned.1) } else { keep_span.start };
        returned = (server, setback.late_return_span().end);
        steps.push(LossStep::Keep(server));
        spans.push(Span { start, ..keep_span });
        for guess in guesses.iter().copied() {
            let span = if keeps { setback.late_return_span() } else { setback.return_span() };
            steps.push(LossStep::Return { server, kept, guess, from: span.start });
            spans.push(span);
        }
    }
    (steps, spans)
}

/// A part of an operation, which has its number in the history.
type PlacedPart<'a> = (usize, &'a Operation, OperationPart);

/// The numbers of the looks that are needed so that no order fits: without any one of them one does, or nobody can
/// tell. Where the changes alone fit in no order, of all that changes something.
fn least_looks(mut operations: Vec<PlacedPart>, is_impossible: &dyn Fn(Vec<PlacedPart>) -> bool) -> Vec<usize> {
    for block in [64, 8, 1] {
        let looks: BTreeSet<usize> =
            operations.iter().filter(|(_, operation, _)| only_looks(operation)).map(|(number, ..)| *number).collect();
        // The last ones first: they hang together with most.
        for some in looks.into_iter().rev().collect::<Vec<_>>().chunks(block) {
            let left: Vec<PlacedPart> =
                operations.iter().copied().filter(|(number, ..)| !some.contains(number)).collect();
            if is_impossible(left.clone()) {
                operations = left;
            }
        }
    }
    let looks_are_left = operations.iter().any(|(_, operation, _)| only_looks(operation));
    let concerned = operations.iter().filter(|(_, operation, _)| only_looks(operation) == looks_are_left);
    concerned.map(|(number, ..)| *number).collect::<BTreeSet<usize>>().into_iter().collect()
}

/// Whether a client may have gone by a directory that it knew, and that a server without power has forgotten: it serves
/// nobody before all clients were told to forget it too.
fn goes_by_directory(operation: &Operation) -> bool {
    let is_below = |path: &Path| path.parts.len() > 1;
    operation.path().is_some_and(is_below) || operation.pair().is_some_and(|(from, to)| is_below(from) || is_below(to))
}

/// Checks all operations on names.
pub fn check(losses: &Losses) -> Vec<Finding> {
    let operations = losses.operations;
    let ties = ties(operations);
    let mut groups: BTreeMap<&str, Vec<(usize, &Operation)>> = BTreeMap::new();
    for (index, operation) in operations.iter().enumerate() {
        if let Some(top) = tops(operation).first() {
            groups.entry(ties[top]).or_default().push((index, operation));
        }
    }
    let mut findings = Vec::new();
    let end = end_of_all(operations);
    let setbacks: Vec<Setback> =
        (0..losses.cluster.server_count()).flat_map(|server| losses.setbacks(server, None)).collect();
    for (name, group) in groups {
        let guesses = guesses(losses, group.iter().map(|(_, operation)| *operation));
        let keeps = |operation: &Operation| is_answered_by_client(operation) || goes_by_directory(operation);
        let keeps = group.iter().any(|(_, operation)| keeps(operation));
        let verdict = |operations: Vec<PlacedPart>, is_likely: &dyn Fn(usize) -> bool| {
            let mut spans: Vec<Span> = operations
                .iter()
                .map(|(_, operation, _)| Span { start: operation.start, end: operation.end })
                .collect();
            let (steps, step_spans) = loss_steps(&setbacks, &guesses, keeps, is_likely);
            spans.extend(step_spans);
            linearize::check(&Names::new(operations, steps, losses.cluster), &spans)
        };
        let operations = in_parts(group.into_iter().chain(end));
        match losses::first_that_fits(setbacks.len(), |is_likely| verdict(operations.clone(), is_likely)) {
            Verdict::Linearizable => {}
            Verdict::Impossible(_) => {
                let looks =
                    least_looks(operations, &|left| matches!(verdict(left, &|_| false), Verdict::Impossible(_)));
                findings.push(Finding::new(format!("no order explains what was told about /{name}"), looks));
            }
            Verdict::Undecided(missing) => {
                let concerned = missing.iter().filter_map(|index| Some(operations.get(*index)?.0)).collect();
                findings.push(Finding::new(format!("the history of /{name} is too tangled to decide"), concerned));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{History, Listed, Path, Seen};
    use crate::losses::cluster_of;

    fn run(steps: Vec<(Action, Outcome)>) -> Vec<Finding> {
        let mut history = History::default();
        for (action, outcome) in steps {
            let index = history.start(0, action, 0);
            history.finish(index, outcome, 0);
        }
        check(&Losses::new(&history, &cluster_of(1)))
    }

    fn make(path: &Path) -> Action {
        Action::Open {
            path: path.clone(),
            create: true,
            exclusive: true,
            truncate: false,
            mode: 0o644,
            chunk_size: 4096,
        }
    }

    fn seen(id: u64, mode: u32) -> Outcome {
        Outcome::Seen(Seen { id: FileId(id), kind: Kind::File, mode, links: 1, size: 0, mtime: 0 })
    }

    /// Goal: an exclusive create that was executed twice is noticed, and so is one that was lost.
    #[test]
    fn creates() {
        let path = Path::top("f");
        let stat = Action::Stat { path: path.clone() };
        assert!(run(vec![(make(&path), Outcome::Opened(FileId(1))), (stat.clone(), seen(1, 0o644))]).is_empty());
        assert_eq!(run(vec![(make(&path), Outcome::Failed(Status::Exists))]).len(), 1);
        assert_eq!(run(vec![(make(&path), Outcome::Opened(FileId(1))), (stat.clone(), seen(2, 0o644))]).len(), 1);
        assert_eq!(run(vec![(make(&path), Outcome::Opened(FileId(1))), (stat.clone(), seen(1, 0o600))]).len(), 1);
        let lost = Outcome::Failed(Status::NotFound);
        assert_eq!(run(vec![(make(&path), Outcome::Opened(FileId(1))), (stat, lost)]).len(), 1);
    }

    /// Goal: a look that tells of a directory without a server's share counts for its id, kind and mode.
    #[test]
    fn directories_seen_in_part() {
        let path = Path::top("d");
        let part = |id: u64, mode: u32| {
            let seen = Seen { id: FileId(id), kind: Kind::Directory, mode, links: 1, size: 0, mtime: 0 };
            (Action::Stat { path: path.clone() }, Outcome::SeenInPart(seen))
        };
        let made = (Action::MakeDirectory { path: path.clone(), mode: 0o755 }, Outcome::Done);
        assert_eq!(run(vec![made.clone(), part(1, 0o755), part(1, 0o755)]).len(), 0);
        assert_eq!(run(vec![made.clone(), part(1, 0o700)]).len(), 1);
        assert_eq!(run(vec![made.clone(), part(1, 0o755), part(2, 0o755)]).len(), 1);
        let removed = (Action::RemoveDirectory { path: path.clone() }, Outcome::Done);
        assert_eq!(run(vec![made, removed, part(1, 0o755)]).len(), 1);
        assert_eq!(run(vec![(make(&path), Outcome::Opened(FileId(1))), part(1, 0o644)]).len(), 1);
    }

    /// Goal: a create or removal of unknown outcome explains both what follows when it happened and when it did not.
    #[test]
    fn unknown_outcomes() {
        let path = Path::top("f");
        let unknown = Outcome::Unknown(Some(Status::TimedOut));
        let stat = Action::Stat { path: path.clone() };
        let gone = Outcome::Failed(Status::NotFound);
        assert!(run(vec![(make(&path), unknown.clone()), (stat.clone(), seen(5, 0o644))]).is_empty());
        assert!(run(vec![(make(&path), unknown.clone()), (stat.clone(), gone.clone())]).is_empty());
        let back =
            vec![(make(&path), unknown), (stat.clone(), seen(5, 0o644)), (stat.clone(), gone), (stat, seen(5, 0o644))];
        assert_eq!(run(back).len(), 1);
    }

    /// Goal: a directory is removed only when empty, and nothing lives on under a removed one.
    #[test]
    fn directories() {
        let directory = Path::top("d");
        let child = directory.join("f");
        let mkdir = (Action::MakeDirectory { path: directory.clone(), mode: 0o755 }, Outcome::Done);
        let rmdir = Action::RemoveDirectory { path: directory };
        let create = (make(&child), Outcome::Opened(FileId(9)));
        let refused = (rmdir.clone(), Outcome::Failed(Status::NotEmpty));
        assert!(run(vec![mkdir.clone(), create.clone(), refused.clone()]).is_empty());
        assert_eq!(run(vec![mkdir.clone(), create.clone(), (rmdir.clone(), Outcome::Done)]).len(), 1);
        assert_eq!(run(vec![mkdir.clone(), refused]).len(), 1);
        assert_eq!(run(vec![mkdir, (rmdir, Outcome::Done), create]).len(), 1);
    }

    /// Goal: a rename that lost its file, did half, or happened twice is found; so is a wrong link count.
    #[test]
    fn moves() {
        let (one, other) = (Path::top("f"), Path::top("d").join("g"));
        let start = vec![
            (Action::MakeDirectory { path: Path::top("d"), mode: 0o755 }, Outcome::Done),
            (make(&one), Outcome::Opened(FileId(7))),
        ];
        let rename = Action::Rename { from: one.clone(), to: other.clone(), no_replace: false, exchange: false };
        let link = Action::Link { from: one.clone(), to: other.clone() };
        let stat = |path: &Path, outcome: Outcome| (Action::Stat { path: path.clone() }, outcome);
        let gone = Outcome::Failed(Status::NotFound);
        let faults = |deed: &Action, outcome: Outcome, seen: Vec<(Action, Outcome)>| {
            run([start.clone(), vec![(deed.clone(), outcome)], seen].concat()).len()
        };
        let whole = vec![stat(&one, gone.clone()), stat(&other, seen(7, 0o644))];
        assert_eq!(faults(&rename, Outcome::Done, whole.clone()), 0);
        assert_eq!(faults(&rename, Outcome::Unknown(None), whole), 0);
        // Seen first at the new name, then still at the old one, or at neither.
        let halves = [
            vec![stat(&other, seen(7, 0o644)), stat(&one, seen(7, 0o644))],
            vec![stat(&one, gone.clone()), stat(&other, gone)],
        ];
        for half in halves {
            assert_eq!(faults(&rename, Outcome::Unknown(None), half), 1);
        }
        let Outcome::Seen(single) = seen(7, 0o644) else { unreachable!("it is one") };
        let twice = Outcome::Seen(Seen { links: 2, ..single });
        assert_eq!(faults(&link, Outcome::Done, vec![stat(&one, twice.clone()), stat(&other, twice)]), 0);
        assert_eq!(faults(&link, Outcome::Done, vec![stat(&one, seen(7, 0o644))]), 1);
    }

    /// Goal: a change of unknown outcome that only a late look needs is found, whatever happened in between, and a
    /// mode that nobody can have set is noticed.
    /// Method: the directory's mode changes before it is renamed; then each of its files gets one of two modes at the
    /// same time, so that there are far more orders than can be tried.
    #[test]
    fn needed_late() {
        let (old, new) = (Path::top("d"), Path::top("e"));
        let told = |mode: u32, is_renamed_first: bool| {
            let mut history = History::default();
            let tell = |history: &mut History, action: Action, outcome: Outcome| {
                let index = history.start(0, action, 0);
                history.finish(index, outcome, 0);
            };
            let change = |path: Path, mode: u32| Action::ChangeMode { path, mode };
            let rename = Action::Rename { from: old.clone(), to: new.clone(), no_replace: false, exchange: false };
            let seen = |mode| Seen { id: FileId(7), kind: Kind::Directory, mode, links: 2, size: 0, mtime: 0 };
            let made = Action::MakeDirectory { path: old.clone(), mode: 0o755 };
            tell(&mut history, made, Outcome::Seen(seen(0o755)));
            for file in 0..40 {
                tell(&mut history, make(&old.join(&format!("f{file}"))), Outcome::Opened(FileId(100 + file)));
            }
            if is_renamed_first {
                tell(&mut history, rename.clone(), Outcome::Done);
            }
            tell(&mut history, change(old.clone(), mode), Outcome::Unknown(None));
            if !is_renamed_first {
                tell(&mut history, rename, Outcome::Done);
            }
            for file in 0..40 {
                let path = new.join(&format!("f{file}"));
                let both = [0o600, 0o640].map(|mode| history.start(0, change(path.clone(), mode), 0));
                both.into_iter().for_each(|index| history.finish(index, Outcome::Done, 0));
            }
            tell(&mut history, Action::Stat { path: new.clone() }, Outcome::Seen(seen(0o700)));
            check(&Losses::new(&history, &cluster_of(1))).into_iter().map(|finding| finding.words).collect::<Vec<_>>()
        };
        assert_eq!(told(0o700, false), Vec::<String>::new());
        let none = ["no order explains what was told about /d"];
        assert_eq!(told(0o711, false), none);
        assert_eq!(told(0o700, true), none);
    }

    /// Goal: what was not synced may be gone after a loss of power, as a whole and with all that came after it; what
    /// was synced may not, and nothing else may change. Method: two files are made; the sync is between them or after
    /// them; after the loss both are looked at.
    #[test]
    fn losses_of_power() {
        let (one, other) = (Path::top("f"), Path::top("g"));
        let gone = || Outcome::Failed(Status::NotFound);
        let faults = |synced: [bool; 2], left: [Outcome; 2]| {
            let mut history = History::default();
            let tell = |history: &mut History, action: Action, outcome: Outcome| {
                let index = history.start(0, action, 0);
                history.finish(index, outcome, 0);
            };
            let tied = Action::Rename { from: one.clone(), to: other.clone(), no_replace: true, exchange: false };
            tell(&mut history, tied, gone());
            for (number, path) in [&one, &other].into_iter().enumerate() {
                tell(&mut history, make(path), Outcome::Opened(FileId(number as u64 + 1)));
                if synced[number] {
                    tell(&mut history, Action::SynchroniseAll, Outcome::Done);
                }
            }
            history.note_loss(0, 0);
            for (path, outcome) in [&one, &other].into_iter().zip(left) {
                tell(&mut history, Action::Stat { path: path.clone() }, outcome);
            }
            check(&Losses::new(&history, &cluster_of(1))).len()
        };
        let (there, later) = (|| seen(1, 0o644), || seen(2, 0o644));
        for (synced, none, first, both) in
            [([false, false], 0, 0, 0), ([true, false], 1, 0, 0), ([false, true], 1, 1, 0), ([true, true], 1, 1, 0)]
        {
            assert_eq!(faults(synced, [gone(), gone()]), none, "{synced:?}");
            assert_eq!(faults(synced, [there(), gone()]), first, "{synced:?}");
            assert_eq!(faults(synced, [there(), later()]), both, "{synced:?}");
            assert_eq!(faults(synced, [gone(), later()]), 1, "the later one alone is left, {synced:?}");
        }
    }

    /// Goal: a directory whose new name is lost has the old one again, with what another server, which lost nothing,
    /// has made and removed in it.
    /// Method: a directory with a file is renamed, the file goes and another one comes; after the loss they are looked
    /// for at both places.
    #[test]
    fn a_lost_name_of_a_directory() {
        let cluster = cluster_of(2);
        let (old, new) = (Path::top("d"), Path::top("e"));
        let decider = cluster.dentry_server(FileId::ROOT, b"d");
        let is_other =
            |id: &FileId| ["f", "g"].iter().all(|name| cluster.dentry_server(*id, name.as_bytes()) != decider);
        let id = (1..).map(FileId).find(is_other).expect("some directory has both names at the other server");
        let directory = || Outcome::Seen(Seen { id, kind: Kind::Directory, mode: 0o755, links: 2, size: 0, mtime: 0 });
        let gone = || Outcome::Failed(Status::NotFound);
        let faults = |looks: Vec<(Path, Outcome)>| {
            let mut history = History::default();
            let tell = |history: &mut History, action: Action, outcome: Outcome| {
                let index = history.start(0, action, 0);
                history.finish(index, outcome, 0);
            };
            tell(&mut history, Action::MakeDirectory { path: old.clone(), mode: 0o755 }, directory());
            tell(&mut history, make(&old.join("f")), Outcome::Opened(FileId(7)));
            tell(&mut history, Action::SynchroniseAll, Outcome::Done);
            let rename = Action::Rename { from: old.clone(), to: new.clone(), no_replace: false, exchange: false };
            tell(&mut history, rename, Outcome::Done);
            tell(&mut history, Action::Unlink { path: new.join("f") }, Outcome::Done);
            tell(&mut history, make(&new.join("g")), Outcome::Opened(FileId(8)));
            history.note_loss(decider, 0);
            for (path, outcome) in looks {
                tell(&mut history, Action::Stat { path }, outcome);
            }
            check(&Losses::new(&history, &cluster)).len()
        };
        let made = || seen(8, 0o644);
        assert_eq!(faults(vec![(old.clone(), directory()), (old.join("f"), gone()), (old.join("g"), made())]), 0);
        assert_eq!(faults(vec![(new.clone(), directory()), (new.join("f"), gone()), (new.join("g"), made())]), 0);
        assert_eq!(
            faults(vec![(old.clone(), directory()), (old.join("g"), gone())]),
            1,
            "the other server lost nothing"
        );
        assert_eq!(faults(vec![(old.clone(), directory()), (old.join("f"), seen(7, 0o644))]), 1);
        assert_eq!(faults(vec![(old.clone(), directory()), (new.join("g"), made())]), 1);
    }

    /// Goal: a change of a mode goes with its server's power also where nobody was told which inode it was of.
    /// Method: who makes the file dies before it is told; its mode is changed, power is lost, and the old one is seen.
    #[test]
    fn a_lost_mode_of_a_file_that_nobody_knew() {
        let cluster = cluster_of(2);
        let path = Path::top("f");
        let server = cluster.dentry_server(FileId::ROOT, b"f");
        let id = (1..).find(|id| cluster.home_of(FileId(*id)) == Some(server)).expect("some inode lives there");
        let faults = |loser: u32, mode: u32| {
            let mut history = History::default();
            let tell = |history: &mut History, action: Action, outcome: Outcome| {
                let index = history.start(0, action, 0);
                history.finish(index, outcome, 0);
            };
            tell(&mut history, make(&path), Outcome::Unknown(None));
            tell(&mut history, Action::ChangeMode { path: path.clone(), mode: 0o600 }, Outcome::Done);
            history.note_loss(loser, 0);
            tell(&mut history, Action::Stat { path: path.clone() }, seen(id, mode));
            check(&Losses::new(&history, &cluster)).len()
        };
        assert_eq!(faults(server, 0o644), 0);
        assert_eq!(faults(server, 0o600), 0);
        assert_eq!(faults(server, 0o640), 1);
    }

    /// Goal: a server that loses power takes its names of a directory with it and no others, also where nobody was told
    /// the directory's number before.
    /// Method: who makes the directory dies before it is told; of two names in it, which live on two servers,
    /// one server loses power; then all are looked at.
    #[test]
    fn lost_names_of_a_directory_that_nobody_knew() {
        let cluster = cluster_of(2);
        let path = Path::top("d");
        let loser = 1 - cluster.dentry_server(FileId::ROOT, b"d");
        // By whether the loser has the first name alone, or all but the first.
        let id_with = |has_first: bool| {
            let has = |id: &FileId, name: &str| cluster.dentry_server(*id, name.as_bytes()) == loser;
            let is_parted =
                |id: &FileId| has(id, "f") == has_first && ["g", "h"].iter().all(|name| has(id, name) != has_first);
            (10..).map(FileId).find(is_parted).expect("some directory has them so")
        };
        let gone = || Outcome::Failed(Status::NotFound);
        let faults = |has_first: bool, is_listed: bool, left: [Outcome; 3]| {
            let id = id_with(has_first);
            let mut history = History::default();
            let tell = |history: &mut History, action: Action, outcome: Outcome| {
                let index = history.start(0, action, 0);
                history.finish(index, outcome, 0);
            };
            tell(&mut history, Action::MakeDirectory { path: path.clone(), mode: 0o755 }, Outcome::Unknown(None));
            for (number, name) in ["f", "g"].into_iter().enumerate() {
                tell(&mut history, make(&path.join(name)), Outcome::Opened(FileId(number as u64 + 1)));
            }
            let rename =
                Action::Rename { from: path.join("g"), to: path.join("h"), no_replace: false, exchange: false };
            tell(&mut history, rename, Outcome::Done);
            history.note_loss(loser, 0);
            for (name, outcome) in ["f", "g", "h"].into_iter().zip(left) {
                tell(&mut history, Action::Stat { path: path.join(name) }, outcome);
            }
            if is_listed {
                let listed = Listed { name: "d".to_owned(), id, kind: Kind::Directory };
                let list = Action::List { directory: None, by_server: false };
                tell(&mut history, list, Outcome::Entries(vec![listed]));
            } else {
                let seen = Seen { id, kind: Kind::Directory, mode: 0o755, links: 2, size: 0, mtime: 0 };
                tell(&mut history, Action::Stat { path: path.clone() }, Outcome::Seen(seen));
            }
            check(&Losses::new(&history, &cluster)).len()
        };
        for is_listed in [true, false] {
            let (first, second) = (|| seen(1, 0o644), || seen(2, 0o644));
            assert_eq!(faults(true, is_listed, [gone(), gone(), second()]), 0, "what the server had is lost");
            assert_eq!(faults(false, is_listed, [first(), gone(), gone()]), 0, "what the server had is lost");
            assert_eq!(faults(true, is_listed, [first(), gone(), second()]), 0, "nothing is lost");
            assert_eq!(faults(false, is_listed, [gone(), gone(), second()]), 1, "the other server lost nothing");
            assert_eq!(faults(true, is_listed, [gone(), second(), gone()]), 1, "the other server lost nothing");
        }
    }

    /// Goal: of a history that fits in no order those looks are told that make it so, and no others.
    #[test]
    fn looks_that_matter_are_told() {
        let (one, other) = (Path::top("f"), Path::top("g"));
        let look = |path: &Path, outcome: Outcome| (Action::Stat { path: path.clone() }, outcome);
        let gone = || Outcome::Failed(Status::NotFound);
        let tied = Action::Rename { from: other.clone(), to: one.clone(), no_replace: true, exchange: false };
        let mut steps = vec![(tied, gone()), (make(&one), Outcome::Opened(FileId(1)))];
        steps.extend((0..100).map(|_| look(&one, seen(1, 0o644))));
        steps.extend([look(&one, gone())]);
        steps.extend((0..100).flat_map(|_| [look(&other, gone()), look(&one, seen(1, 0o644))]));
        let findings = run(steps);
        assert_eq!(findings.iter().map(|finding| finding.operations.clone()).collect::<Vec<_>>(), [[102]]);
    }
}
