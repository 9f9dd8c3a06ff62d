//! Directories: their modification times move with every change of an entry and stay where a utimens set them
//! otherwise; their link counts are two and one for each directory in them.
//!
//! Entries are spread over the servers and a stat asks all of them, so that it is no single step: what surely happened
//! before it began counts, what surely began after it ended does not, and what lies between may. The workload's utimens
//! values are all different and below `CLOCK_MIN`; what lies above is some server's clock.
//!
//! Who looks in passing may be told of a directory without the share of a server that is silent: only while one may be,
//! and until somebody's look has found all of them back.

use super::times::CLOCK_MIN;
use crate::history::{Action, Finding, Moment, NEVER, Operation, Outcome, Path, Seen};
use crate::profile::SECOND;
use reactor::Nanos;
use std::collections::BTreeMap;
use wire::{Kind, Status};

/// Once no server is silent any more, all shares are glimpsed within this time of the first look.
pub const GLIMPSE_TIME_MAX: Nanos = 15 * SECOND;

/// What may have moved a directory's time.
struct Cause {
    start: Moment,
    end: Moment,
    /// The time that a utimens set; nothing for a change of an entry and for the making of the directory.
    set: Option<i64>,
    /// Whether it surely did.
    sure: bool,
}

/// What is known of a name that a directory may have been at.
#[derive(Default)]
struct NameLife {
    /// When it was surely there as a directory.
    seen: Vec<(Moment, Moment)>,
    /// What made it or brought it there, or may have.
    made: Vec<(Moment, Moment)>,
    /// What surely removed it, or found it gone.
    removed: Vec<(Moment, Moment)>,
    /// What removed it or took it away, or may have.
    maybe_removed: Vec<(Moment, Moment)>,
}

#[derive(Default)]
struct Directories<'a> {
    causes: BTreeMap<&'a Path, Vec<Cause>>,
    lives: BTreeMap<Path, NameLife>,
    /// Old and new paths of renames, with their starts: what lies under one that may have moved a directory is not
    /// checked from then on.
    moved: Vec<(&'a Path, Moment)>,
}

/// Checks all directories that were seen. `unrest`: see `History`.
pub fn check(operations: &[Operation], unrest: &[(Nanos, Nanos)]) -> Vec<Finding> {
    let parents: Vec<Option<Path>> =
        operations.iter().map(|operation| operation.path().and_then(Path::parent)).collect();
    let new_parents: Vec<[Option<Path>; 2]> = operations
        .iter()
        .map(|operation| operation.pair().map_or([None, None], |(from, to)| [from.parent(), to.parent()]))
        .collect();
    let mut directories = Directories::default();
    for (number, operation) in operations.iter().enumerate() {
        directories.note_change(operation, parents[number].as_ref());
        let [old, new] = &new_parents[number];
        directories.note_move(operation, old.as_ref(), new.as_ref());
        directories.note_life(operation);
    }
    let mut findings = Vec::new();
    for (number, operation) in operations.iter().enumerate() {
        let (Some(path), Outcome::Seen(seen) | Outcome::SeenInPart(seen)) = (operation.path(), &operation.outcome)
        else {
            continue;
        };
        if operation.lost || seen.kind != Kind::Directory || directories.is_moved(path, operation.end) {
            continue;
        }
        let words = match operation.action {
            Action::MakeDirectory { .. } if seen.links == 2 => continue,
            Action::MakeDirectory { .. } => Some(format!("a new directory has {} links", seen.links)),
            _ if matches!(operation.outcome, Outcome::SeenInPart(_)) => {
                directories.judge_part(path, operation, seen, operations, unrest)
            }
            _ => directories.judge(path, operation, seen),
        };
        findings.extend(words.map(|words| Finding::new(format!("{path}: {words}"), vec![number])));
    }
    findings
}

impl<'a> Directories<'a> {
    fn note_change(&mut self, operation: &'a Operation, parent: Option<&'a Path>) {
        let Some(path) = operation.path().filter(|_| operation.may_have_happened()) else { return };
        let succeeded = operation.succeeded();
        let entry = match &operation.action {
            Action::Open { create: true, exclusive, .. } => Some(*exclusive && succeeded),
            Action::MakeDirectory { .. } | Action::MakeSymlink { .. } => Some(succeeded),
            Action::LinkOpen { .. } | Action::MakeNode { .. } => Some(succeeded),
            Action::Unlink { .. } | Action::RemoveDirectory { .. } => Some(succeeded),
            _ => None,
        };
        if let (Some(sure), Some(parent)) = (entry, parent) {
            self.add(parent, operation, None, sure);
        }
        match operation.action {
            Action::MakeDirectory { .. } => self.add(path, operation, None, succeeded),
            Action::SetTime { mtime, .. } => self.add(path, operation, Some(mtime), succeeded),
            _ => {}
        }
    }

    /// Between two names of one file a rename does nothing; one that found no second name surely did something.
    fn note_move(&mut self, operation: &'a Operation, old: Option<&'a Path>, new: Option<&'a Path>) {
        let Some((from, to)) = operation.pair().filter(|_| operation.may_have_happened()) else { return };
        let succeeded = operation.succeeded();
        let (old_sure, new_sure) = match operation.action {
            Action::Rename { no_replace, .. } => (succeeded && no_replace, succeeded && no_replace),
            _ => (false, succeeded),
        };
        if matches!(operation.action, Action::Rename { .. }) {
            self.moved.extend([(from, operation.start), (to, operation.start)]);
            if let Some(old) = old {
                self.add(old, operation, None, old_sure);
            }
        }
        if let Some(new) = new {
            self.add(new, operation, None, new_sure);
        }
    }

    fn add(&mut self, directory: &'a Path, operation: &Operation, set: Option<i64>, sure: bool) {
        let cause = Cause { start: operation.start, end: operation.end, set, sure };
        self.causes.entry(directory).or_default().push(cause);
    }

    fn note_life(&mut self, operation: &Operation) {
        let span = (operation.start, operation.end);
        if let Some((from, to)) = operation.pair().filter(|_| operation.may_have_happened()) {
            self.lives.entry(to.clone()).or_default().made.push(span);
            self.lives.entry(to.clone()).or_default().maybe_removed.push(span);
            self.lives.entry(from.clone()).or_default().maybe_removed.push(span);
            if matches!(operation.action, Action::Rename { exchange: true, .. }) {
                self.lives.entry(from.clone()).or_default().made.push(span);
            }
        }
        let Some(path) = operation.path() else { return };
        let life = self.lives.entry(path.clone()).or_default();
        match (&operation.action, &operation.outcome) {
            (Action::MakeDirectory { .. }, outcome) => {
                if operation.may_have_happened() {
                    life.made.push(span);
                }
                if matches!(outcome, Outcome::Seen(_)) {
                    life.note_directory(span, operation.lost);
                }
            }
            (Action::RemoveDirectory { .. }, _) if operation.may_have_happened() => {
                life.maybe_removed.push(span);
                if operation.succeeded() {
                    life.removed.push(span);
                }
            }
            (_, Outcome::Seen(seen) | Outcome::SeenInPart(seen)) if seen.kind == Kind::Directory => {
                life.note_directory(span, operation.lost);
            }
            (_, Outcome::Failed(Status::NotFound)) if !operation.lost => life.removed.push(span),
            _ => {}
        }
    }

    /// Whether the directory that was seen at the path, or one above it, may have been moved by then. What lies above
    /// need not have been seen by that name itself.
    fn is_moved(&self, path: &Path, end: Moment) -> bool {
        self.moved.iter().any(|(moved, start)| *start < end && path.parts.starts_with(&moved.parts))
    }

    fn judge(&self, path: &Path, operation: &Operation, seen: &Seen) -> Option<String> {
        let causes = self.causes.get(path).map_or(&[][..], Vec::as_slice);
        if !time_is_right(causes, operation, seen.mtime) {
            return Some(format!("the modification time {} was not, or no longer, true", seen.mtime));
        }
        let children = self.lives.iter().filter(|(child, _)| child.parent().as_ref() == Some(path));
        let (mut least, mut most) = (2, 2);
        for (_, life) in children {
            least += u32::from(life.must_be_there(operation));
            most += u32::from(life.may_be_there(operation));
        }
        // Of the backing tree nobody counts them.
        let is_uncounted = seen.id.is_from_behind() && seen.links == 1;
        if is_uncounted || (least..=most).contains(&seen.links) {
            return None;
        }
        Some(format!("it has {} links, but must have {least} to {most}", seen.links))
    }

    /// What is wrong with a look that told of no links. Its time is one that the directory had.
    fn judge_part(
        &self,
        path: &Path,
        operation: &Operation,
        seen: &Seen,
        operations: &[Operation],
        unrest: &[(Nanos, Nanos)],
    ) -> Option<String> {
        let causes = self.causes.get(path).map_or(&[][..], Vec::as_slice);
        if !may_miss_shares(operation, operations, unrest) {
            // One of the backing tree tells of none in any case.
            return match seen.id.is_from_behind() {
                true if time_is_right(causes, operation, seen.mtime) => None,
                true => Some(format!("the modification time {} was not, or no longer, true", seen.mtime)),
                false => Some("it was shown without the share of a server, though none was silent".to_owned()),
            };
        }
        let had_time = causes.iter().any(|cause| explains(cause, operation, seen.mtime));
        (!had_time).then(|| format!("the modification time {} was never true", seen.mtime))
    }
}

/// Whether a look may have missed the share of a server: one was silent, and nobody else has looked since in vain.
fn may_miss_shares(look: &Operation, operations: &[Operation], unrest: &[(Nanos, Nanos)]) -> bool {
    let Some((_, calm)) = unrest.iter().rfind(|(from, _)| *from <= look.ended_at) else { return false };
    let renews = |other: &Operation| {
        matches!(other.action, Action::Stat { .. })
            && other.outcome.id() == look.outcome.id()
            && other.started_at >= calm.saturating_add(GLIMPSE_TIME_MAX)
            && other.ended_at.saturating_add(GLIMPSE_TIME_MAX) <= look.started_at
    };
    !operations.iter().any(renews)
}

/// Whether a change before the end of `seen` moved the time to this one, or may have.
fn explains(cause: &Cause, seen: &Operation, mtime: i64) -> bool {
    cause.set.map_or(mtime >= CLOCK_MIN, |set| set == mtime) && cause.start < seen.end
}

/// Whether something can have been the last to move the time, and to this one.
fn time_is_right(causes: &[Cause], seen: &Operation, mtime: i64) -> bool {
    let from_clock = mtime >= CLOCK_MIN;
    let overtakes = |cause: &Cause| cause.sure && (cause.set.is_some() || !from_clock);
    causes.iter().filter(|cause| explains(cause, seen, mtime)).any(|cause| {
        cause.end == NEVER
            || !causes.iter().any(|later| overtakes(later) && later.start > cause.end && later.end < seen.start)
    })
}

impl NameLife {
    fn note_directory(&mut self, span: (Moment, Moment), lost: bool) {
        if !lost {
            self.seen.push(span);
        }
    }

    fn must_be_there(&self, stat: &Operation) -> bool {
        self.seen.iter().any(|(start, end)| {
            *end < stat.start && !self.maybe_removed.iter().any(|removal| removal.0 < stat.end && removal.1 > *start)
        })
    }

    fn may_be_there(&self, stat: &Operation) -> bool {
        self.made.iter().any(|(start, end)| {
            *start < stat.end && !self.removed.iter().any(|removal| removal.0 > *end && removal.1 < stat.start)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;
    use wire::FileId;

    fn run(steps: Vec<(Action, Outcome)>) -> usize {
        let mut history = History::default();
        for (action, outcome) in steps {
            let index = history.start(0, action, 0);
            history.finish(index, outcome, 0);
        }
        check(&history.operations, &history.unrest).len()
    }

    fn top() -> Path {
        Path::top("d")
    }

    fn seen(links: u32, mtime: i64) -> Outcome {
        Outcome::Seen(Seen { id: FileId(1), kind: Kind::Directory, mode: 0o755, links, size: 0, mtime })
    }

    fn make(path: Path) -> (Action, Outcome) {
        (Action::MakeDirectory { path, mode: 0o755 }, seen(2, CLOCK_MIN))
    }

    fn stat(links: u32, mtime: i64) -> (Action, Outcome) {
        (Action::Stat { path: top() }, seen(links, mtime))
    }

    fn set(mtime: i64) -> (Action, Outcome) {
        (Action::SetTime { path: top(), mtime }, Outcome::Done)
    }

    /// Goal: a set time stays until an entry changes, and not longer; one of unknown outcome may come at any time.
    #[test]
    fn times() {
        let clock = CLOCK_MIN + 5;
        let unlink = || (Action::Unlink { path: top().join("f") }, Outcome::Done);
        assert_eq!(run(vec![make(top()), stat(2, clock), set(7), stat(2, 7)]), 0);
        assert_eq!(run(vec![make(top()), set(7), stat(2, clock)]), 1);
        assert_eq!(run(vec![make(top()), set(7), unlink(), stat(2, clock)]), 0);
        assert_eq!(run(vec![make(top()), set(7), unlink(), stat(2, 7)]), 1);
        assert_eq!(run(vec![make(top()), unlink(), set(7), stat(2, clock)]), 1);
        assert_eq!(run(vec![make(top()), unlink(), set(7), set(8), stat(2, 7)]), 1);
        let maybe = (Action::Unlink { path: top().join("f") }, Outcome::Unknown(None));
        assert_eq!(run(vec![make(top()), maybe, set(7), stat(2, 7), stat(2, clock)]), 0);
    }

    /// Goal: what lies under a directory that was moved is not held against what happened at its new path, also where
    /// nobody has seen that directory there; times of others are.
    #[test]
    fn moves() {
        let (old, new) = (Path::top("e"), top().join("s"));
        let set = |path: &Path| (Action::SetTime { path: path.clone(), mtime: 7 }, Outcome::Done);
        let look = |path: &Path| (Action::Stat { path: path.clone() }, seen(2, 7));
        let rename = Action::Rename { from: old.clone(), to: new.clone(), no_replace: false, exchange: false };
        let child = old.join("c");
        let before = || vec![make(top()), make(old.clone()), make(child.clone()), set(&child)];
        assert_eq!(run([before(), vec![(rename.clone(), Outcome::Done), look(&new.join("c"))]].concat()), 0);
        assert_eq!(run([before(), vec![look(&new.join("c"))]].concat()), 1);
        let failed = (rename, Outcome::Failed(Status::NotEmpty));
        assert_eq!(run([before(), vec![failed, look(&new.join("c"))]].concat()), 1);
    }

    /// Goal: links count the directories inside, and nothing else.
    #[test]
    fn links() {
        let child = || top().join("s");
        let remove = (Action::RemoveDirectory { path: child() }, Outcome::Done);
        let maybe = (Action::RemoveDirectory { path: child() }, Outcome::Unknown(None));
        assert_eq!(run(vec![make(top()), make(child()), stat(3, CLOCK_MIN)]), 0);
        assert_eq!(run(vec![make(top()), make(child()), stat(2, CLOCK_MIN)]), 1);
        assert_eq!(run(vec![make(top()), stat(3, CLOCK_MIN)]), 1);
        assert_eq!(run(vec![make(top()), make(child()), remove, stat(3, CLOCK_MIN)]), 1);
        assert_eq!(run(vec![make(top()), make(child()), maybe, stat(3, CLOCK_MIN), stat(2, CLOCK_MIN)]), 0);
    }

    /// Goal: a directory is shown without a share only while a server may be silent and until a look has found it back;
    /// of its time, only what was true once. Method: looks at some times, with unrest from 100 s to 200 s.
    #[test]
    fn shares_that_are_missing() {
        let look = |at: Nanos, mtime: i64| {
            let Outcome::Seen(seen) = seen(1, mtime) else { unreachable!("it is one") };
            (at * SECOND, Action::Stat { path: top() }, Outcome::SeenInPart(seen))
        };
        let run = |looks: Vec<(Nanos, Action, Outcome)>| {
            let mut history = History::default();
            history.note_unrest(true, 100 * SECOND);
            history.note_unrest(true, 150 * SECOND);
            history.note_unrest(false, 200 * SECOND);
            let (action, outcome) = make(top());
            let (action_of_set, outcome_of_set) = set(7);
            let made = [(1, action, outcome), (2, action_of_set, outcome_of_set)];
            for (at, action, outcome) in made.into_iter().chain(looks) {
                let index = history.start(0, action, at);
                history.finish(index, outcome, at);
            }
            check(&history.operations, &history.unrest).len()
        };
        assert_eq!(run(vec![look(99, 7)]), 1);
        assert_eq!(run(vec![look(100, 7), look(150, 7), look(201, 7), look(500, 7)]), 0);
        assert_eq!(run(vec![look(210, 7), look(250, 7)]), 0);
        assert_eq!(run(vec![look(250, 7), look(270, 7)]), 1);
        assert_eq!(run(vec![look(150, CLOCK_MIN)]), 0);
        assert_eq!(run(vec![look(150, 8)]), 1);
        let (action, outcome) = stat(1, 7);
        assert_eq!(run(vec![(150 * SECOND, action, outcome)]), 1);
    }
}
