//! Errors: which ones callers may see at all, and when.

use crate::history::{Action, Finding, Moment, Operation, Outcome};
use reactor::Nanos;
use server::Bounds;
use std::collections::BTreeSet;
use wire::Status;

/// Times that an operation may wait for a server, one after the other.
pub const WAITS_MAX: u64 = 4;

/// What may have gone wrong in a run.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Operations that start from here on must not fail for want of a server; 0 when nothing ever went wrong.
    pub healed: Moment,
    /// The longest that an operation may take, while no server is started again: `WAITS_MAX` waits and some time.
    pub duration_max: Nanos,
    /// The longest that a client waits for a server that is there. A server that is started again in between has all
    /// of that time once more.
    pub wait_max: Nanos,
    /// Whether the stores may be full.
    pub full: bool,
    /// Whether media may have refused to make something durable.
    pub failed_syncs: bool,
    /// How much servers remember, of which they may say that it is too much.
    pub bounded: Bounds,
    /// Whether stored bytes may have gone bad.
    pub rot: bool,
    /// Whether calls on a backing tree may have failed.
    pub backing: bool,
    /// Whether something may be kept from going there, as with `tabane flush`: who syncs or closes it is told so.
    pub flushes: bool,
}

/// Clients to whom things may happen.
#[derive(Clone, Copy, Debug)]
pub struct Excused<'a> {
    /// They crashed: their last operations never end.
    pub gone: &'a BTreeSet<u32>,
    /// A server had forgotten their session: files that they had open may be gone.
    pub forgotten: &'a BTreeSet<u32>,
}

/// Checks the errors and the durations of all operations.
pub fn check(operations: &[Operation], starts: &[Nanos], expected: Expected, excused: Excused<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, operation) in operations.iter().enumerate() {
        let words =
            check_one(operation, expected, excused).or_else(|| silent(operation, starts, expected, excused.gone));
        if let Some(words) = words {
            findings.push(Finding::new(words, vec![number]));
        }
    }
    findings
}

fn check_one(operation: &Operation, expected: Expected, excused: Excused<'_>) -> Option<String> {
    let status = match operation.outcome {
        Outcome::Unknown(Some(status)) | Outcome::Failed(status) => status,
        _ => return None,
    };
    match status {
        Status::Unreachable | Status::TimedOut | Status::OutcomeUnknown => {
            let words = format!("{status}, though nothing was wrong with the servers any more");
            (operation.start >= expected.healed).then_some(words)
        }
        Status::NoSpace if expected.full => None,
        Status::Io if expected.failed_syncs => None,
        Status::TooManyOpen if has_few_opens(&expected.bounded) && opens(&operation.action) => None,
        Status::NoLocks if has_few_locks(&expected.bounded) && locks(&operation.action) => None,
        Status::TooManyConnections if expected.bounded.sessions != Bounds::default().sessions => None,
        Status::Io if expected.backing && operation.start < expected.healed => None,
        Status::Io
            if expected.flushes && matches!(operation.action, Action::Synchronise { .. } | Action::Close { .. }) =>
        {
            None
        }
        Status::Io | Status::Corrupt | Status::Damaged if expected.rot && meets_bytes(&operation.action) => None,
        // Two of the largest values and their names are more than one inode may have.
        Status::NoSpace if matches!(operation.action, Action::SetExtended { size, .. } if size > 60_000) => None,
        // Which of these is right is the model of names to say.
        Status::NotFound | Status::Exists | Status::NotDirectory | Status::IsDirectory | Status::NotEmpty
            if operation.path().is_some()
                || operation.pair().is_some()
                || matches!(operation.action, Action::List { .. } | Action::MakeTemporary { .. }) =>
        {
            None
        }
        Status::Invalid | Status::NotPermitted if operation.pair().is_some() => None,
        Status::WouldBlock | Status::Deadlock if matches!(operation.action, Action::Lock { .. }) => None,
        Status::Exists | Status::NoAttribute if is_extended(&operation.action) => None,
        Status::Invalid if matches!(operation.action, Action::ReadLink { .. }) => None,
        Status::StaleFile if uses_handle(&operation.action) => {
            let forgotten = excused.forgotten.contains(&operation.client);
            (!forgotten).then(|| "the file is gone, though it was open".to_owned())
        }
        Status::StaleFile => None,
        _ => Some(format!("an error that no caller should ever see: {status}")),
    }
}

fn has_few_opens(bounds: &Bounds) -> bool {
    let real = Bounds::default();
    bounds.session_open_files != real.session_open_files || bounds.open_files != real.open_files
}

fn has_few_locks(bounds: &Bounds) -> bool {
    let real = Bounds::default();
    bounds.file_lock_ranges != real.file_lock_ranges
        || bounds.session_lock_ranges != real.session_lock_ranges
        || bounds.lock_ranges != real.lock_ranges
        || bounds.session_lock_waiters != real.session_lock_waiters
        || bounds.lock_waiters != real.lock_waiters
}

fn opens(action: &Action) -> bool {
    matches!(action, Action::Open { .. } | Action::MakeTemporary { .. })
}

fn locks(action: &Action) -> bool {
    matches!(action, Action::Lock { .. } | Action::Unlock { .. })
}

fn uses_handle(action: &Action) -> bool {
    matches!(
        action,
        Action::Write { .. }
            | Action::Read { .. }
            | Action::Append { .. }
            | Action::StatFile { .. }
            | Action::TruncateFile { .. }
            | Action::LinkOpen { .. }
            | Action::Lock { .. }
            | Action::Unlock { .. }
            | Action::SetExtended { .. }
            | Action::GetExtended { .. }
            | Action::ListExtended { .. }
            | Action::RemoveExtended { .. }
            | Action::Allocate { .. }
            | Action::Seek { .. }
            | Action::CopyRange { .. }
            | Action::Close { .. }
            | Action::Synchronise { .. }
    )
}

/// A truncate verifies the chunk that it cuts.
fn meets_bytes(action: &Action) -> bool {
    uses_handle(action) || matches!(action, Action::TruncatePath { .. })
}

fn is_extended(action: &Action) -> bool {
    matches!(action, Action::SetExtended { .. } | Action::GetExtended { .. } | Action::RemoveExtended { .. })
}

fn silent(operation: &Operation, starts: &[Nanos], expected: Expected, gone: &BTreeSet<u32>) -> Option<String> {
    if operation.ended_at == Nanos::MAX {
        return (!gone.contains(&operation.client)).then(|| "no word ever came".to_owned());
    }
    if matches!(operation.action, Action::Lock { wait: true, .. }) {
        // As long as others hold it.
        return None;
    }
    let duration = operation.ended_at - operation.started_at;
    let seconds = |time: Nanos| time as f64 / 1e9;
    let is_within = |start: &&Nanos| (operation.started_at..operation.ended_at).contains(*start);
    let waits = starts.iter().filter(is_within).count() as u64 + 1;
    let limit = expected.duration_max + waits.saturating_sub(WAITS_MAX) * expected.wait_max;
    (duration > limit)
        .then(|| format!("it took {:.1} s, where {:.1} s are the limit", seconds(duration), seconds(limit)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{History, Path};
    use wire::FileId;

    fn expected() -> Expected {
        let bounded = Bounds::default();
        Expected {
            healed: 10,
            duration_max: 100,
            wait_max: 20,
            full: false,
            failed_syncs: false,
            bounded,
            rot: false,
            backing: false,
            flushes: false,
        }
    }

    fn run(steps: Vec<(Action, Outcome, Nanos)>, expected: Expected) -> usize {
        run_with(steps, expected, &BTreeSet::new())
    }

    fn run_with(steps: Vec<(Action, Outcome, Nanos)>, expected: Expected, forgotten: &BTreeSet<u32>) -> usize {
        let mut history = History::default();
        let mut now = 0;
        for (action, outcome, duration) in steps {
            let index = history.start(0, action, now);
            now += duration;
            history.finish(index, outcome, now);
        }
        check(&history.operations, &[5, 6, 7, 8], expected, Excused { gone: &BTreeSet::new(), forgotten }).len()
    }

    /// Goal: trouble is excused while servers are down, silence and strange errors never are.
    #[test]
    fn errors() {
        let stat = || Action::Stat { path: Path::top("f") };
        let trouble = || Outcome::Unknown(Some(Status::TimedOut));
        assert_eq!(run(vec![(stat(), trouble(), 1)], expected()), 0);
        assert_eq!(run(vec![(stat(), trouble(), 1)], Expected { healed: 0, ..expected() }), 1);
        // A server was started again four times meanwhile, each time with all of its time before it.
        assert_eq!(run(vec![(stat(), trouble(), 120)], expected()), 0);
        assert_eq!(run(vec![(stat(), trouble(), 121)], expected()), 1);
        assert_eq!(run(vec![(stat(), trouble(), 7), (stat(), trouble(), 101)], expected()), 1);
        assert_eq!(run(vec![(stat(), Outcome::Failed(Status::WrongServer), 1)], expected()), 1);
    }

    /// Goal: an open file is there, whoever unlinks it, unless its client was forgotten.
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
        let unlink = (Action::Unlink { path }, Outcome::Done, 1);
        let steps = vec![opened, unlink, stale];
        assert_eq!(run(steps.clone(), expected()), 1);
        assert_eq!(run_with(steps, expected(), &BTreeSet::from([0])), 0);
    }
}
