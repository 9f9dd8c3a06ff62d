//! Sizes: what stat and reads at the end say covers everything acknowledged before they began and nothing begun after
//! they ended (ARCHITECTURE.md, "Attributes spread over servers").
//!
//! Writes to several servers and the glimpsing of sizes are not one step, so this is no single register. A size is
//! right when some truncate (or the birth of the file) can have been the last one before it, such that it is at least
//! the ends of all writes that must have come between the two, and equals that truncate's size or the end of a write
//! that may have.

use super::chunks::pieces;
use super::files::{Event, FileHistory, What};
use crate::history::{Finding, Moment, NEVER};

/// The file had this size at one moment.
struct Base {
    start: Moment,
    end: Moment,
    size: u64,
}

/// Bytes up to one behind `after`, and up to `to`, were written; each chunk of a write counts alone.
struct Growth {
    start: Moment,
    end: Moment,
    /// One less than `to` where it is known how far the bytes went.
    after: u64,
    to: u64,
}

/// What an observation says of the size.
#[derive(Clone, Copy, Debug)]
enum SizeClaim {
    Exactly(u64),
    AtLeast(u64),
    AtMost(u64),
}

impl SizeClaim {
    /// Whether some size `from..=to` is allowed.
    fn meets(self, from: u64, to: u64) -> bool {
        from <= to
            && match self {
                SizeClaim::Exactly(exact) => (from..=to).contains(&exact),
                SizeClaim::AtLeast(least) => to >= least,
                SizeClaim::AtMost(most) => from <= most,
            }
    }

    fn allows(self, size: u64) -> bool {
        match self {
            SizeClaim::Exactly(exact) => size == exact,
            SizeClaim::AtLeast(least) => size >= least,
            SizeClaim::AtMost(most) => size <= most,
        }
    }
}

fn claim(what: &What) -> Option<SizeClaim> {
    match what {
        What::SizeSeen { size } => Some(SizeClaim::Exactly(*size)),
        What::SizeAtLeast { size } => Some(SizeClaim::AtLeast(*size)),
        What::SizeAtMost { size } => Some(SizeClaim::AtMost(*size)),
        What::Read { offset, size, bytes } => {
            let end = offset + bytes.len() as u64;
            Some(match bytes.len() as u64 {
                got if got == *size => SizeClaim::AtLeast(end),
                0 => SizeClaim::AtMost(*offset),
                _ => SizeClaim::Exactly(end),
            })
        }
        _ => None,
    }
}

/// Checks all sizes that were seen of one file.
pub fn check(file: &FileHistory) -> Vec<Finding> {
    let mut bases = vec![Base { start: 0, end: 0, size: 0 }];
    let mut growths = Vec::new();
    for event in &file.events {
        match event.what {
            What::Truncate { size } => bases.push(Base { start: event.start, end: event.end, size }),
            What::Grow { size } => {
                growths.push(Growth { start: event.start, end: event.end, after: size - 1, to: size });
            }
            What::Copy { offset, size, ref steps, .. } => {
                let ends = steps.iter().copied().filter(|step| *step > offset && *step < offset + size);
                for to in ends.chain([offset + size]) {
                    // How far a copy of unknown outcome went depends on the size that its source had.
                    let after = if event.end == NEVER { offset } else { to - 1 };
                    growths.push(Growth { start: event.start, end: event.end, after, to });
                }
            }
            What::Write { offset, size, .. } => {
                for (index, _, to) in pieces(u64::from(file.chunk_size), offset, size) {
                    let to = index * u64::from(file.chunk_size) + to;
                    growths.push(Growth { start: event.start, end: event.end, after: to - 1, to });
                }
            }
            _ => {}
        }
    }
    let mut findings = Vec::new();
    for event in &file.events {
        let Some(claim) = claim(&event.what) else { continue };
        let right = if file.has_appends() {
            right_among_appends(file, event, claim)
        } else {
            bases.iter().any(|base| right_since(base, &bases, &growths, event, claim))
        };
        if !right {
            let words = format!("file {}: the size can't have been {claim:?} then", file.id);
            findings.push(Finding::new(words, vec![event.number]));
        }
    }
    findings
}

/// Whether the claim is right if `base` was the last truncate before it.
fn right_since(base: &Base, bases: &[Base], growths: &[Growth], seen: &Event, claim: SizeClaim) -> bool {
    let overtaken = bases.iter().any(|other| other.start > base.end && other.end < seen.start);
    if base.start > seen.end || overtaken {
        return false;
    }
    let certain = growths.iter().filter(|growth| growth.start > base.end && growth.end < seen.start);
    let least = certain.map(|growth| growth.to).max().unwrap_or(0).max(base.size);
    let mut possible = growths.iter().filter(|growth| growth.start < seen.end && growth.end > base.start);
    claim.allows(least) || possible.any(|growth| claim.meets(least.max(growth.after + 1), growth.to))
}

/// A file that is only appended to: every append adds its bytes exactly once, those of unknown outcome at most once.
fn right_among_appends(file: &FileHistory, seen: &Event, claim: SizeClaim) -> bool {
    let mut least = 0;
    let mut most = 0;
    for event in &file.events {
        if let What::Append { size, .. } = event.what {
            if event.end < seen.start {
                least += size;
            }
            if event.start < seen.end {
                most += size;
            }
        }
    }
    match claim {
        SizeClaim::Exactly(size) => (least..=most).contains(&size),
        SizeClaim::AtLeast(size) => size <= most,
        SizeClaim::AtMost(size) => least <= size,
    }
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

    fn write(end: u64) -> What<'static> {
        What::Write { offset: end - 10, size: 10, tag: 1 }
    }

    fn seen(size: u64) -> What<'static> {
        What::SizeSeen { size }
    }

    /// Goal: acknowledged writes count, concurrent ones may, later ones do not.
    #[test]
    fn growth() {
        assert_eq!(run(vec![(1, 2, write(100)), (3, 4, seen(100))]), 0);
        assert_eq!(run(vec![(1, 2, write(100)), (3, 4, seen(90))]), 1);
        assert_eq!(run(vec![(1, 2, write(100)), (3, 4, seen(0))]), 1);
        assert_eq!(run(vec![(1, 9, write(100)), (3, 4, seen(0)), (5, 6, seen(100))]), 0);
        assert_eq!(run(vec![(3, 4, seen(100)), (5, 6, write(100))]), 1);
        assert_eq!(run(vec![(1, NEVER, write(100)), (3, 4, seen(0)), (5, 6, seen(100))]), 0);
        assert_eq!(run(vec![(1, 2, write(5000)), (3, 4, write(100)), (5, 6, seen(100))]), 1);
    }

    /// Goal: a truncate takes away what came before, and a late fold does not bring it back.
    #[test]
    fn truncates() {
        let cut = |size| vec![(1, 2, write(100)), (3, 4, What::Truncate { size: 50 }), (5, 6, seen(size))];
        assert_eq!(run(cut(50)), 0);
        assert_eq!(run(cut(100)), 1);
        assert_eq!(run(cut(0)), 1);
        let during = |size| vec![(1, 2, write(100)), (3, 9, What::Truncate { size: 50 }), (5, 6, seen(size))];
        assert_eq!((run(during(50)), run(during(100)), run(during(70))), (0, 0, 1));
    }

    /// Goal: short reads tell the size too.
    #[test]
    fn short_reads() {
        let bytes = [0; 20];
        let read = |offset, size, count: usize| What::Read { offset, size, bytes: &bytes[..count] };
        assert_eq!(run(vec![(1, 2, write(100)), (3, 4, read(90, 20, 10))]), 0);
        assert_eq!(run(vec![(1, 2, write(100)), (3, 4, read(90, 20, 5))]), 1);
        assert_eq!(run(vec![(1, 2, write(100)), (3, 4, read(99, 20, 20))]), 1);
        assert_eq!(run(vec![(1, 2, write(100)), (3, 4, read(99, 20, 0))]), 1);
        assert_eq!(run(vec![(1, 2, write(100)), (3, 4, read(100, 20, 0))]), 0);
    }

    /// Goal: an append that reserved its place twice is found.
    #[test]
    fn appends() {
        let append = |offset| What::Append { offset: Some(offset), size: 10, tag: 1 };
        assert_eq!(run(vec![(1, 2, append(0)), (3, 4, append(10)), (5, 6, seen(20))]), 0);
        assert_eq!(run(vec![(1, 2, append(0)), (3, 4, append(20)), (5, 6, seen(30))]), 1);
    }
}
