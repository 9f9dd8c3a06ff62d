//! Modification times: after a utimens nothing but a later change moves the time, and no late fold undoes it.
//!
//! The workload's utimens values are all different and below `CLOCK_MIN`; what lies above is some server's clock.

use super::files::{Event, FileHistory, What};
use crate::history::Finding;

/// Times from here on are taken from clocks; in nanoseconds since the epoch.
pub const CLOCK_MIN: i64 = 1_000_000_000_000;

/// Checks all modification times that were seen of one file.
pub fn check(file: &FileHistory) -> Vec<Finding> {
    let mut findings = Vec::new();
    for seen in &file.events {
        let What::TimeSeen { mtime } = seen.what else { continue };
        let cause = |event: &&Event| match event.what {
            What::SetTime { mtime: set } => set == mtime,
            What::Write { .. } | What::Append { .. } | What::Truncate { .. } => mtime >= CLOCK_MIN,
            What::Zero { .. } | What::Grow { .. } | What::Copy { .. } => mtime >= CLOCK_MIN,
            _ => false,
        };
        let causes = file.events.iter().filter(cause).filter(|event| event.start < seen.end);
        let born = mtime >= CLOCK_MIN && !overtaken(file, 0, seen);
        if !born && !causes.map(|event| event.end).any(|end| !overtaken(file, end, seen)) {
            let words = format!("file {}: the modification time {mtime} was not, or no longer, true", file.id);
            findings.push(Finding::new(words, vec![seen.number]));
        }
    }
    findings
}

/// Whether the time was set by a utimens, or moved away from a set one by a write, after `end` and before `seen`.
fn overtaken(file: &FileHistory, end: u64, seen: &Event) -> bool {
    let What::TimeSeen { mtime } = seen.what else { return false };
    file.events.iter().any(|event| {
        let changes = match event.what {
            What::SetTime { .. } => true,
            What::Write { size, .. } | What::Append { size, .. } => mtime < CLOCK_MIN && size > 0,
            _ => false,
        };
        changes && event.start > end && event.end < seen.start
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::FileId;

    fn run(whats: Vec<(u64, u64, What)>) -> usize {
        let events = whats
            .into_iter()
            .enumerate()
            .map(|(number, (start, end, what))| Event { number, start, end, what })
            .collect();
        check(&FileHistory { id: FileId(1), chunk_size: 4096, events }).len()
    }

    /// Goal: a set time stays until a write, and a write's time does not come back after a later set.
    #[test]
    fn set_times_stay() {
        let write = What::Write { offset: 0, size: 10, tag: 1 };
        let set = What::SetTime { mtime: 77 };
        let clock = What::TimeSeen { mtime: CLOCK_MIN + 5 };
        let seen = What::TimeSeen { mtime: 77 };
        assert_eq!(run(vec![(1, 2, write.clone()), (3, 4, set.clone()), (5, 6, seen.clone())]), 0);
        assert_eq!(run(vec![(1, 2, write.clone()), (3, 4, set.clone()), (5, 6, clock.clone())]), 1);
        assert_eq!(run(vec![(1, 2, set.clone()), (3, 4, write.clone()), (5, 6, clock.clone())]), 0);
        assert_eq!(run(vec![(1, 2, set.clone()), (3, 4, write), (5, 6, seen.clone())]), 1);
        assert_eq!(run(vec![(1, 2, seen), (3, 4, set), (5, 6, clock)]), 2);
    }
}
