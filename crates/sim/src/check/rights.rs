//! The model of rights on directories: what one user may do there is what some mode lets him that the directory had
//! while he was at it. So nothing that was taken away is honoured afterwards, and nothing that was given is refused.

use crate::history::{Finding, Moment, NEVER};

/// A change of a directory's mode. Changes are made one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub start: Moment,
    /// `NEVER` when nobody knows whether it happened.
    pub end: Moment,
    pub mode: u32,
}

/// An attempt of a user to whom the last three bits of the mode apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub start: Moment,
    pub end: Moment,
    /// Rights that it takes: 2 write, 1 search.
    pub wanted: u32,
    pub allowed: bool,
}

/// Modes that the directory may have had between two moments.
fn modes(changes: &[Change], start: Moment, end: Moment) -> impl Iterator<Item = u32> {
    let last_before = changes.iter().rposition(|change| change.end < start).unwrap_or(0);
    let possible = move |(index, change): (usize, &Change)| {
        // What ended in doubt may still come to be at any time.
        let late = change.end == NEVER && change.start < end;
        (late || index >= last_before && change.start < end).then_some(change.mode)
    };
    changes.iter().enumerate().filter_map(possible).collect::<Vec<_>>().into_iter()
}

/// Attempts that no mode explains, by their numbers. The first change is how the directory began.
pub fn check(changes: &[Change], attempts: &[Attempt]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, attempt) in attempts.iter().enumerate() {
        let explained = modes(changes, attempt.start, attempt.end)
            .any(|mode| (mode & attempt.wanted == attempt.wanted) == attempt.allowed);
        if !explained {
            let words = if attempt.allowed { "was allowed what nobody may" } else { "was refused what everybody may" };
            findings.push(Finding::new(format!("attempt {attempt:?} {words}"), vec![number]));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what was confirmed before an attempt counts, what is under way may count, what is in doubt may count
    /// later.
    #[test]
    fn rules() {
        let begun = Change { start: 0, end: 1, mode: 0o755 };
        let closed = |end| Change { start: 10, end, mode: 0o700 };
        let attempt = |start, end, allowed| Attempt { start, end, wanted: 1, allowed };
        let faults = |change, attempt| check(&[begun, change], &[attempt]).len();
        assert_eq!(faults(closed(20), attempt(2, 9, true)), 0);
        assert_eq!(faults(closed(20), attempt(2, 9, false)), 1);
        assert_eq!(faults(closed(20), attempt(15, 16, true)), 0);
        assert_eq!(faults(closed(20), attempt(15, 30, false)), 0);
        assert_eq!(faults(closed(20), attempt(21, 30, true)), 1);
        assert_eq!(faults(closed(NEVER), attempt(21, 30, true)), 0);
        let opened = Change { start: 30, end: 40, mode: 0o755 };
        assert_eq!(check(&[begun, closed(NEVER), opened], &[attempt(50, 60, false)]).len(), 0);
        assert_eq!(check(&[begun, closed(20), opened], &[attempt(50, 60, false)]).len(), 1);
    }
}
