//! Errors: which ones callers may see at all, and when.

use crate::history::{Action, Finding, Moment, Operation, Outcome};
use reactor::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use wire::{FileId, Status};

/// What may have gone wrong in a run.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Operations that start from here on must not fail for want of a server; 0 when nothing ever went wrong.
    pub healed: Moment,
    /// The longest that an operation may take.
    pub duration_max: Nanos,
    /// Whether the stores may be full.
    pub full: bool,
}

/// Checks the errors and the durations of all operations; `gone` are clients that crashed, whose last operations never
/// end.
pub fn check(operations: &[Operation], expected: Expected, gone: &BTreeSet<u32>) -> Vec<Finding> {
    let removals = removals(operations);
    let mut findings = Vec::new();
    for (number, operation) in operations.iter().enumerate() {
        let words = check_one(operation, expected, &removals).or_else(|| silent(operation, expected, gone));
        if let Some(words) = words {
            findings.push(Finding::new(words, vec![number]));
        }
    }
    findings
}

fn check_one(operation: &Operation, expected: Expected, removals: &BTreeMap<FileId, Nanos>) -> Option<String> {
    let status = match operation.outcome {
        Outcome::Unknown(Some(status)) | Outcome::Failed(status) => status,
        _ => return None,
    };
    match status {
        Status::Unreachable | Status::TimedOut | Status::OutcomeUnknown | Status::Draining => {
            let words = format!("{status}, though nothing was wrong with the servers any more");
            (operation.start >= expected.healed).then_some(words)
        }
        Status::NoSpace if expected.full => None,
        // Which of these is right is the model of names to say.
        Status::NotFound | Status::Exists | Status::NotDirectory | Status::IsDirectory | Status::NotEmpty
            if operation.path().is_some()
                || operation.pair().is_some()
                || matches!(operation.action, Action::List { .. }) =>
        {
            None
        }
        Status::NotSupported | Status::NotPermitted if operation.pair().is_some() => None,
        Status::Invalid if matches!(operation.action, Action::ReadLink { .. }) => None,
        Status::StaleFile | Status::NotFound => {
            let file = file_of(&operation.action)?;
            let removed = removals.get(&file).is_some_and(|since| *since <= operation.ended_at);
            (!removed).then(|| format!("{status}, though nobody removed the file"))
        }
        _ => Some(format!("an error that no caller should ever see: {status}")),
    }
}

fn file_of(action: &Action) -> Option<FileId> {
    match action {
        Action::Write { file, .. }
        | Action::Read { file, .. }
        | Action::Append { file, .. }
        | Action::StatFile { file }
        | Action::TruncateFile { file, .. }
        | Action::Close { file } => Some(*file),
        _ => None,
    }
}

/// For each file: when the first removal began that may have met it.
fn removals(operations: &[Operation]) -> BTreeMap<FileId, Nanos> {
    let mut at_path: BTreeMap<_, BTreeSet<FileId>> = BTreeMap::new();
    for operation in operations {
        let id = match &operation.outcome {
            Outcome::Opened(id) => *id,
            Outcome::Seen(seen) => seen.id,
            _ => continue,
        };
        if let Some(path) = operation.path() {
            at_path.entry(path).or_default().insert(id);
        }
    }
    let at_path = super::files::after_moves(operations, at_path);
    let mut removals = BTreeMap::new();
    for operation in operations.iter().filter(|operation| operation.may_have_happened()) {
        if let Action::Unlink { path } | Action::Rename { to: path, .. } = &operation.action {
            for id in at_path.get(path).into_iter().flatten() {
                let since = removals.entry(*id).or_insert(operation.started_at);
                *since = operation.started_at.min(*since);
            }
        }
    }
    removals
}

fn silent(operation: &Operation, expected: Expected, gone: &BTreeSet<u32>) -> Option<String> {
    if operation.ended_at == Nanos::MAX {
        return (!gone.contains(&operation.client)).then(|| "no word ever came".to_owned());
    }
    let duration = operation.ended_at - operation.started_at;
    let seconds = |time: Nanos| time as f64 / 1e9;
    (duration > expected.duration_max).then(|| {
        format!("it took {:.1} s, where {:.1} s are the limit", seconds(duration), seconds(expected.duration_max))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{History, Path};

    const EXPECTED: Expected = Expected { healed: 10, duration_max: 100, full: false };

    fn run(steps: Vec<(Action, Outcome, Nanos)>, expected: Expected) -> usize {
        let mut history = History::default();
        let mut now = 0;
        for (action, outcome, duration) in steps {
            let index = history.start(0, action, now);
            now += duration;
            history.finish(index, outcome, now);
        }
        check(&history.operations, expected, &BTreeSet::new()).len()
    }

    /// Goal: trouble is excused while servers are down, silence and strange errors never are.
    #[test]
    fn errors() {
        let stat = || Action::Stat { path: Path::top("f") };
        let trouble = || Outcome::Unknown(Some(Status::TimedOut));
        assert_eq!(run(vec![(stat(), trouble(), 1)], EXPECTED), 0);
        assert_eq!(run(vec![(stat(), trouble(), 1)], Expected { healed: 0, ..EXPECTED }), 1);
        assert_eq!(run(vec![(stat(), trouble(), 101)], EXPECTED), 1);
        assert_eq!(run(vec![(stat(), Outcome::Failed(Status::WrongServer), 1)], EXPECTED), 1);
    }

    /// Goal: a file is stale only after somebody may have removed it.
    #[test]
    fn stale_files() {
        let path = Path::top("f");
        let open = Action::Open {
            path: path.clone(),
            create: true,
            exclusive: false,
            truncate: false,
            mode: 0,
            chunk_size: 4096,
        };
        let opened = (open, Outcome::Opened(FileId(3)), 1);
        let stale = (Action::StatFile { file: FileId(3) }, Outcome::Unknown(Some(Status::StaleFile)), 1);
        let unlink = (Action::Unlink { path }, Outcome::Unknown(None), 1);
        assert_eq!(run(vec![opened.clone(), stale.clone()], EXPECTED), 1);
        assert_eq!(run(vec![opened, unlink, stale], EXPECTED), 0);
    }
}
