//! The model of names: one top-level name with everything under it is one object, because removing a directory depends
//! on its children and nothing else ties two names together.

use crate::history::{Action, Finding, Operation, Outcome, Path};
use crate::linearize::{self, Object, Span, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use wire::{FileId, Kind, Status};

/// Which inode a name leads to, as far as anyone was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Identity {
    Known(FileId),
    /// One that was made by an operation of unknown outcome.
    Untold,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    kind: Kind,
    identity: Identity,
    mode: u32,
    target: Option<String>,
}

/// What is at a top-level name and under it, by path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Tree {
    nodes: BTreeMap<Path, Node>,
}

struct Names<'a> {
    operations: Vec<(usize, &'a Operation)>,
    /// Permission bits that anybody saw.
    modes: BTreeSet<u32>,
}

/// What the model says to an operation: the new node at its path, or the error.
type Answer = Result<Option<Node>, Status>;

impl Tree {
    fn node(&self, path: &Path) -> Result<Option<&Node>, Status> {
        for end in 1..path.parts.len() {
            match self.nodes.get(&Path { parts: path.parts[..end].to_vec() }) {
                None => return Err(Status::NotFound),
                Some(node) if node.kind != Kind::Directory => return Err(Status::NotDirectory),
                Some(_) => {}
            }
        }
        Ok(self.nodes.get(path))
    }

    fn set(&mut self, path: &Path, node: Option<Node>) {
        match node {
            Some(node) => drop(self.nodes.insert(path.clone(), node)),
            None => drop(self.nodes.remove(path)),
        }
    }

    fn is_empty(&self, path: &Path) -> bool {
        self.nodes.keys().all(|other| other == path || !other.parts.starts_with(&path.parts))
    }

    fn answer(&self, action: &Action) -> Answer {
        let here = |path: &Path| self.node(path).map(|node| node.cloned());
        let existing = |path: &Path| here(path)?.ok_or(Status::NotFound);
        // Every symbolic link of the histories leads nowhere.
        let followed = |path: &Path| existing(path).and_then(|node| refuse(node, Kind::Symlink, Status::NotFound));
        let made = |kind, mode, target| Node { kind, identity: Identity::Untold, mode, target };
        match action {
            Action::Open { path, create, exclusive, mode, .. } => match here(path)? {
                None if *create => Ok(Some(made(Kind::File, *mode, None))),
                Some(_) if *create && *exclusive => Err(Status::Exists),
                _ => followed(path).and_then(|node| refuse(node, Kind::Directory, Status::IsDirectory)).map(Some),
            },
            Action::Unlink { path } => {
                existing(path).and_then(|node| refuse(node, Kind::Directory, Status::IsDirectory)).map(|_| None)
            }
            Action::MakeDirectory { path, mode } => match here(path)? {
                None => Ok(Some(made(Kind::Directory, *mode, None))),
                Some(_) => Err(Status::Exists),
            },
            Action::RemoveDirectory { path } => match existing(path)? {
                node if node.kind != Kind::Directory => Err(Status::NotDirectory),
                _ if !self.is_empty(path) => Err(Status::NotEmpty),
                _ => Ok(None),
            },
            Action::MakeSymlink { path, target } => match here(path)? {
                None => Ok(Some(made(Kind::Symlink, 0o777, Some(target.clone())))),
                Some(_) => Err(Status::Exists),
            },
            Action::ReadLink { path } => match existing(path)? {
                node if node.kind == Kind::Symlink => Ok(Some(node)),
                _ => Err(Status::Invalid),
            },
            Action::Stat { path } => existing(path).map(Some),
            Action::ChangeMode { path, mode } => followed(path).map(|node| Some(Node { mode: *mode, ..node })),
            Action::SetTime { path, .. } => followed(path).map(Some),
            Action::TruncatePath { path, .. } => {
                followed(path).and_then(|node| refuse(node, Kind::Directory, Status::IsDirectory)).map(Some)
            }
            Action::List { directory: Some(directory), .. } => match existing(directory)? {
                node if node.kind == Kind::Directory => Ok(Some(node)),
                _ => Err(Status::NotDirectory),
            },
            _ => unreachable!("the operation is not about names"),
        }
    }
}

fn refuse(node: Node, kind: Kind, status: Status) -> Result<Node, Status> {
    if node.kind == kind { Err(status) } else { Ok(node) }
}

/// A stale id tells that what the name led to is gone; that is the same news.
fn same_refusal(told: Status, true_one: Status) -> bool {
    let plain = |status| match status {
        Status::StaleFile | Status::StaleDirectory => Status::NotFound,
        other => other,
    };
    plain(told) == plain(true_one)
}

/// The node with what the outcome tells about it taken in; `None` when they contradict each other.
fn agree(node: Node, outcome: &Outcome) -> Option<Node> {
    match outcome {
        Outcome::Opened(id) => identify(node, *id),
        Outcome::Seen(seen) => {
            let node = identify(node, seen.id)?;
            let mode_right = node.kind == Kind::Symlink || node.mode == seen.mode;
            let size_right = node.target.as_ref().is_none_or(|target| target.len() as u64 == seen.size);
            (node.kind == seen.kind && mode_right && size_right).then_some(node)
        }
        Outcome::Target(target) => {
            (node.target.as_ref().map(|text| text.as_bytes()) == Some(target.as_slice())).then_some(node)
        }
        _ => Some(node),
    }
}

fn identify(node: Node, id: FileId) -> Option<Node> {
    match node.identity {
        Identity::Known(known) if known != id => None,
        _ => Some(Node { identity: Identity::Known(id), ..node }),
    }
}

fn path_of(action: &Action) -> Option<Path> {
    match action {
        Action::List { directory, .. } => directory.clone(),
        _ => None,
    }
}

impl Object for Names<'_> {
    type State = Tree;

    fn initial(&self) -> Tree {
        Tree::default()
    }

    fn apply(&self, state: &Tree, operation: usize) -> Option<Tree> {
        let (_, operation) = &self.operations[operation];
        if let (Outcome::Unknown(_), Action::ChangeMode { mode, .. }) = (&operation.outcome, &operation.action)
            && !self.modes.contains(mode)
        {
            // What nobody saw explains nothing.
            return None;
        }
        let path = operation.path().cloned().or_else(|| path_of(&operation.action))?;
        let answer = state.answer(&operation.action);
        let node = match (&operation.outcome, answer) {
            (Outcome::Failed(told), Err(status)) => return same_refusal(*told, status).then(|| state.clone()),
            (Outcome::Failed(_), Ok(_)) | (_, Err(_)) => return None,
            (Outcome::Unknown(_), Ok(node)) => node,
            (outcome, Ok(Some(node))) => Some(agree(node, outcome)?),
            (_, Ok(None)) => None,
        };
        let mut after = state.clone();
        after.set(&path, node);
        (!matches!(operation.outcome, Outcome::Unknown(_)) || after != *state).then_some(after)
    }
}

/// Checks all operations on names.
pub fn check(operations: &[Operation]) -> Vec<Finding> {
    let mut groups: BTreeMap<String, Vec<(usize, &Operation)>> = BTreeMap::new();
    for (index, operation) in operations.iter().enumerate() {
        let path = operation.path().cloned().or_else(|| path_of(&operation.action));
        if let Some(path) = path {
            groups.entry(path.parts[0].clone()).or_default().push((index, operation));
        }
    }
    let mut findings = Vec::new();
    for (name, operations) in groups {
        let spans: Vec<Span> =
            operations.iter().map(|(_, operation)| Span { start: operation.start, end: operation.end }).collect();
        let modes = operations.iter().filter_map(|(_, operation)| match &operation.outcome {
            Outcome::Seen(seen) => Some(seen.mode),
            _ => None,
        });
        let names = Names { modes: modes.collect(), operations };
        match linearize::check(&names, &spans) {
            Verdict::Linearizable => {}
            Verdict::Impossible(missing) => {
                let concerned = missing.iter().map(|index| names.operations[*index].0).collect();
                findings.push(Finding::new(format!("no order explains what was told about /{name}"), concerned));
            }
            Verdict::Undecided => {
                findings.push(Finding::new(format!("the history of /{name} is too tangled to decide"), Vec::new()));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{History, Seen};

    fn run(steps: Vec<(Action, Outcome)>) -> Vec<Finding> {
        let mut history = History::default();
        for (action, outcome) in steps {
            let index = history.start(0, action, 0);
            history.finish(index, outcome, 0);
        }
        check(&history.operations)
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
        Outcome::Seen(Seen { id: FileId(id), kind: Kind::File, mode, size: 0, mtime: 0 })
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
}
