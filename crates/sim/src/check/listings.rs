//! Listings: a name that stayed is never missed, none is shown that was not there, and none is shown twice.

use crate::history::{Action, Finding, Listed, Moment, Operation, Outcome, Path};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of one name over time.
#[derive(Default)]
struct EntryLife {
    /// Moments between which it was surely there at some time (start and end of what saw or made it).
    seen: Vec<(Moment, Moment)>,
    /// Starts and ends of what made it or may have.
    made: Vec<(Moment, Moment)>,
    /// Starts and ends of removals that surely happened (or of those that found it gone).
    removed: Vec<(Moment, Moment)>,
    /// Starts and ends of removals that may have happened, the sure ones too.
    maybe_removed: Vec<(Moment, Moment)>,
}

type Lives = BTreeMap<Option<Path>, BTreeMap<String, EntryLife>>;

fn lives(operations: &[Operation]) -> Lives {
    let mut lives = Lives::new();
    for operation in operations {
        note_move(operation, &mut lives);
        let Some(path) = operation.path() else { continue };
        let life = lives.entry(path.parent()).or_default().entry(path.name().to_owned()).or_default();
        let span = (operation.start, operation.end);
        let makes = match operation.action {
            Action::Open { create, .. } => create,
            Action::MakeDirectory { .. } | Action::LinkOpen { .. } => true,
            Action::MakeSymlink { .. } | Action::MakeNode { .. } => true,
            _ => false,
        };
        let removes = matches!(operation.action, Action::Unlink { .. } | Action::RemoveDirectory { .. });
        if makes && operation.may_have_happened() {
            life.made.push(span);
        }
        if removes {
            if operation.may_have_happened() {
                life.maybe_removed.push(span);
            }
            if operation.succeeded() {
                life.removed.push(span);
            }
        } else if operation.succeeded() {
            life.seen.push(span);
        }
    }
    lives
}

fn note_move(operation: &Operation, lives: &mut Lives) {
    let Some((from, to)) = operation.pair().filter(|_| operation.may_have_happened()) else { return };
    let span = (operation.start, operation.end);
    let exchange = matches!(operation.action, Action::Rename { exchange: true, .. });
    let mut life = |path: &Path, note: &dyn Fn(&mut EntryLife)| {
        note(lives.entry(path.parent()).or_default().entry(path.name().to_owned()).or_default());
    };
    life(to, &|life| {
        life.made.push(span);
        if operation.succeeded() {
            life.seen.push(span);
        }
    });
    life(from, &|life| match operation.action {
        // Between two names of one file a rename does nothing, so that the old one may have stayed.
        Action::Rename { .. } if !exchange => life.maybe_removed.push(span),
        _ if operation.succeeded() => life.seen.push(span),
        _ => {}
    });
}

/// Checks all listings.
pub fn check(operations: &[Operation]) -> Vec<Finding> {
    let lives = lives(operations);
    let empty = BTreeMap::new();
    let moves: Vec<&Operation> = operations.iter().filter(|operation| is_move(operation)).collect();
    let mut findings = Vec::new();
    for (number, operation) in operations.iter().enumerate() {
        let (Action::List { directory, .. }, Outcome::Entries(entries)) = (&operation.action, &operation.outcome)
        else {
            continue;
        };
        if operation.lost {
            continue;
        }
        let names = lives.get(directory).unwrap_or(&empty);
        let whole = directory.as_ref().is_none_or(|directory| directory_stayed(&lives, directory, operation));
        // Each may have put another directory in this one's place.
        let swaps: Vec<(Moment, Moment)> =
            moves.iter().filter(|moved| touches(moved, directory)).map(|moved| (moved.start, moved.end)).collect();
        let whole = whole && !swaps.iter().any(|(start, end)| *start < operation.end && *end > operation.start);
        let known = Known { names, lives: &lives, swaps };
        for words in check_one(operation, entries, &known, whole) {
            findings.push(Finding::new(words, vec![number]));
        }
    }
    findings
}

/// Whether no removal of the directory can have happened during the listing.
fn directory_stayed(lives: &Lives, directory: &Path, listing: &Operation) -> bool {
    let life = lives.get(&directory.parent()).and_then(|names| names.get(directory.name()));
    let removed = life
        .is_some_and(|life| life.maybe_removed.iter().any(|(start, end)| *start < listing.end && *end > listing.start));
    !removed && directory.parent().is_none_or(|parent| directory_stayed(lives, &parent, listing))
}

/// What is known of the names at a path.
struct Known<'a> {
    names: &'a BTreeMap<String, EntryLife>,
    lives: &'a Lives,
    /// Starts and ends of renames of directories after which another one may be there.
    swaps: Vec<(Moment, Moment)>,
}

impl Known<'_> {
    /// Before the end of the listing, someone may have made such a name, here or in a directory that came here.
    fn may_be_there(&self, name: &str, listing: &Operation) -> bool {
        if !self.swaps.iter().any(|(start, _)| *start < listing.end) {
            return self.names.get(name).is_some_and(|life| life.may_be_there(listing));
        }
        let lives = self.lives.values().filter_map(|names| names.get(name));
        lives.into_iter().any(|life| life.made.iter().any(|(start, _)| *start < listing.end))
    }
}

fn is_move(operation: &Operation) -> bool {
    matches!(operation.action, Action::Rename { .. }) && operation.may_have_happened()
}

/// Whether a rename is about the directory or one that it is in.
fn touches(moved: &Operation, directory: &Option<Path>) -> bool {
    let (Some((from, to)), Some(directory)) = (moved.pair(), directory) else { return false };
    directory.lies_in(from) || directory.lies_in(to)
}

fn check_one(listing: &Operation, entries: &[Listed], known: &Known<'_>, whole: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut shown = BTreeSet::new();
    for entry in entries {
        if !shown.insert(entry.name.as_str()) && whole {
            wrong.push(format!("the listing shows {} twice", entry.name));
        }
        if !known.may_be_there(&entry.name, listing) {
            wrong.push(format!("the listing shows {}, which was not there", entry.name));
        }
    }
    for (name, life) in known.names {
        if whole && life.must_be_there(listing, &known.swaps) && !shown.contains(name.as_str()) {
            wrong.push(format!("the listing misses {name}, which was there all the time"));
        }
    }
    wrong
}

impl EntryLife {
    /// It was seen before the listing began, and no removal can have come since.
    fn must_be_there(&self, listing: &Operation, swaps: &[(Moment, Moment)]) -> bool {
        self.seen.iter().any(|(start, end)| {
            *end < listing.start
                && !self.maybe_removed.iter().chain(swaps).any(|removal| removal.0 < listing.end && removal.1 > *start)
        })
    }

    /// Something made it, or may have, and no sure removal came after that and before the listing.
    fn may_be_there(&self, listing: &Operation) -> bool {
        self.made.iter().any(|(start, end)| {
            *start < listing.end && !self.removed.iter().any(|removal| removal.0 > *end && removal.1 < listing.start)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;
    use wire::{FileId, Kind};

    fn entry(name: &str) -> Listed {
        Listed { name: name.to_owned(), id: FileId(1), kind: Kind::File }
    }

    fn run(steps: Vec<(Action, Outcome)>) -> usize {
        let mut history = History::default();
        for (action, outcome) in steps {
            let index = history.start(0, action, 0);
            history.finish(index, outcome, 0);
        }
        check(&history.operations).len()
    }

    /// Goal: missed, doubled and invented names are found; those of unknown fate are free to appear.
    #[test]
    fn listings() {
        let path = Path::top("f");
        let open = Action::Open {
            path: path.clone(),
            create: true,
            exclusive: false,
            truncate: false,
            mode: 0,
            chunk_size: 4096,
        };
        let make = (open.clone(), Outcome::Opened(FileId(1)));
        let maybe = (open, Outcome::Unknown(None));
        let remove = (Action::Unlink { path }, Outcome::Done);
        let list = |names: &[&str]| {
            let entries = names.iter().map(|name| entry(name)).collect();
            (Action::List { directory: None, by_server: false }, Outcome::Entries(entries))
        };
        assert_eq!(run(vec![make.clone(), list(&["f"])]), 0);
        assert_eq!(run(vec![make.clone(), list(&[])]), 1);
        assert_eq!(run(vec![make.clone(), list(&["f", "f"])]), 1);
        assert_eq!(run(vec![list(&["f"]), make.clone()]), 1);
        assert_eq!(run(vec![make.clone(), remove.clone(), list(&["f"])]), 1);
        assert_eq!(run(vec![make, remove, list(&[])]), 0);
        assert_eq!(run(vec![maybe.clone(), list(&["f"]), list(&[])]), 0);
        assert_eq!(run(vec![maybe, list(&[])]), 0);
    }
}
