//! Locks of files: two holders of conflicting locks never overlap in time, and nobody is refused a lock without a
//! reason.
//!
//! A lock is held for certain from when its owner was told so until the owner asked for its release, but not for longer
//! than a session without a word is remembered: the server may have forgotten the session then, without the client's
//! knowing. Nor is it held for certain once a server has lost power, for that forgets all sessions.

use crate::history::{Action, Finding, Loss, NEVER, Operation, Outcome};
use reactor::Nanos;
use std::collections::BTreeMap;
use wire::{FileId, Status};

/// Clocks and turns of the loop: so much earlier a session may count as idle.
const MARGIN: Nanos = 100_000_000;

/// A lock that was asked for.
struct LockHolding {
    number: usize,
    owner: u64,
    start: u64,
    end: u64,
    exclusive: bool,
    /// While it is held for certain; empty when nobody was told.
    certain: (Nanos, Nanos),
    /// While it may be held.
    possible: (Nanos, Nanos),
}

impl LockHolding {
    fn conflicts(&self, other: &LockHolding) -> bool {
        let overlaps = self.start < other.end && other.start < self.end;
        self.owner != other.owner && overlaps && (self.exclusive || other.exclusive)
    }
}

fn meet(one: (Nanos, Nanos), other: (Nanos, Nanos)) -> bool {
    one.0.max(other.0) < one.1.min(other.1)
}

/// Checks all locks; `grace` is how long a session without connection is remembered at least.
pub fn check(operations: &[Operation], losses: &[Loss], grace: Nanos) -> Vec<Finding> {
    let mut files: BTreeMap<(FileId, bool), Vec<(usize, &Operation)>> = BTreeMap::new();
    for (number, operation) in operations.iter().enumerate() {
        if let Action::Lock { file, whole, .. } | Action::Unlock { file, whole, .. } = operation.action {
            files.entry((file, whole)).or_default().push((number, operation));
        }
    }
    let mut findings = Vec::new();
    for ((file, _), operations) in files {
        let held: Vec<LockHolding> =
            operations.iter().filter_map(|(number, _)| held(&operations, losses, *number, grace)).collect();
        for (index, one) in held.iter().enumerate() {
            for other in held[index + 1..].iter().filter(|other| one.conflicts(other)) {
                if meet(one.certain, other.certain) {
                    let words = format!("file {file}: two owners held conflicting locks at once");
                    findings.push(Finding::new(words, vec![one.number, other.number]));
                }
            }
        }
        findings.extend(operations.iter().filter_map(|(number, operation)| refused(*number, operation, &held)));
    }
    findings
}

/// What came of a request to lock.
fn held(operations: &[(usize, &Operation)], losses: &[Loss], number: usize, grace: Nanos) -> Option<LockHolding> {
    let operation = operations.iter().find(|(other, _)| *other == number)?.1;
    let Action::Lock { owner, start, end, exclusive, .. } = operation.action else { return None };
    if !operation.may_have_happened() {
        return None;
    }
    // Owners do one thing after the other, and unlock all of what they have or change what they have.
    let later = operations.iter().map(|(_, later)| later).filter(|later| later.start > operation.start);
    let mut of_owner = later.filter(|later| match later.action {
        Action::Lock { owner: other, start: from, end: to, .. } => other == owner && from < end && start < to,
        Action::Unlock { owner: other, .. } => other == owner,
        _ => false,
    });
    let asked = of_owner.clone().next().map_or(Nanos::MAX, |later| later.started_at);
    let released = of_owner.find(|later| matches!(later.action, Action::Unlock { .. }) && later.succeeded());
    let released = released.map_or(Nanos::MAX, |later| later.ended_at);
    let lost = losses.iter().map(|loss| loss.at).filter(|at| *at >= operation.started_at).min().unwrap_or(Nanos::MAX);
    let certain = match operation.outcome {
        Outcome::Done => {
            // The server may have heard of the session last when it was asked, and its answer have been on its way
            // since.
            let remembered = operation.started_at.saturating_add(grace.saturating_sub(MARGIN));
            (operation.ended_at, asked.min(remembered).min(lost))
        }
        _ => (0, 0),
    };
    Some(LockHolding { number, owner, start, end, exclusive, certain, possible: (operation.started_at, released) })
}

/// Whether a refusal had no reason.
fn refused(number: usize, operation: &Operation, held: &[LockHolding]) -> Option<Finding> {
    let Action::Lock { owner, start, end, exclusive, .. } = operation.action else { return None };
    if operation.outcome != Outcome::Failed(Status::WouldBlock) || operation.end == NEVER {
        return None;
    }
    let none = (0, 0);
    let wanted = LockHolding { number, owner, start, end, exclusive, certain: none, possible: none };
    let span = (operation.started_at, operation.ended_at.saturating_add(1));
    let has_reason = held.iter().any(|other| other.conflicts(&wanted) && meet(other.possible, span));
    (!has_reason).then(|| Finding::new("a lock was refused that nobody can have held", vec![number]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;

    const GRACE: Nanos = 1_000_000_000_000;

    fn lock(owner: u64, exclusive: bool) -> Action {
        Action::Lock { file: FileId(9), owner, start: 0, end: 10, exclusive, wait: true, whole: false }
    }

    fn unlock(owner: u64) -> Action {
        Action::Unlock { file: FileId(9), owner, whole: false }
    }

    fn findings(steps: Vec<(Action, Outcome)>, grace: Nanos) -> usize {
        let mut history = History::default();
        for (now, (action, outcome)) in steps.into_iter().enumerate() {
            let now = now as Nanos * 10;
            let index = history.start(0, action, now);
            history.finish(index, outcome, now + 5);
        }
        check(&history.operations, &[], grace).len()
    }

    /// Goal: overlapping holders and refusals without a reason are found; shared ones, unknown ones and lost sessions
    /// are not.
    #[test]
    fn holders() {
        let done = || Outcome::Done;
        assert_eq!(findings(vec![(lock(1, true), done()), (lock(2, true), done())], GRACE), 1);
        assert_eq!(findings(vec![(lock(1, true), done()), (lock(2, true), done())], MARGIN), 0);
        assert_eq!(findings(vec![(lock(1, false), done()), (lock(2, false), done())], GRACE), 0);
        assert_eq!(findings(vec![(lock(1, true), done()), (unlock(1), done()), (lock(2, true), done())], GRACE), 0);
        assert_eq!(findings(vec![(lock(1, true), Outcome::Unknown(None)), (lock(2, true), done())], GRACE), 0);
        let refusal = || Outcome::Failed(Status::WouldBlock);
        assert_eq!(findings(vec![(lock(1, true), done()), (lock(2, false), refusal())], GRACE), 0);
        assert_eq!(findings(vec![(lock(1, true), done()), (unlock(1), done()), (lock(2, true), refusal())], GRACE), 1);
        assert_eq!(findings(vec![(lock(1, false), done()), (lock(2, false), refusal())], GRACE), 1);
    }
}
