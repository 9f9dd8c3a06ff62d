//! What is at some names and under them, and what operations and losses of power make of it.

use crate::history::{Action, Moment, Operation, Outcome, Path};
use std::collections::{BTreeMap, BTreeSet};
use wire::{Cluster, FileId, Kind, Status};

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub(super) kind: Kind,
    /// As far as anyone was told.
    pub(super) id: Option<FileId>,
    pub(super) mode: u32,
    pub(super) target: Option<String>,
}

/// In place of the number of an inode that has no name any more.
pub(super) const GONE: usize = usize::MAX;

/// What is at some names and under them. Inodes are numbered in the order of their names, so that two states that
/// nobody could tell apart are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Tree {
    pub(super) entries: BTreeMap<Path, usize>,
    pub(super) nodes: BTreeMap<usize, Node>,
    /// What operations in two steps found at their path.
    pub(super) found: BTreeMap<usize, usize>,
    /// Of servers that will lose power: what is undone then.
    pub(super) undo: BTreeMap<u32, Undo>,
}

/// A name in a directory, as servers have them: by the directory's inode, or none for the root directory's.
pub(super) type Dentry = (Option<usize>, String);

/// What a server decided on since a moment to which it will go back: how things were before.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Undo {
    pub(super) sure: Changes,
    /// Perhaps it was another server, for nobody was told the number of an inode that counts for that. In the order in
    /// which they were made.
    pub(super) doubtful: Vec<(Subject, Changes)>,
}

/// What counts for who decides on a change: the server of a name, or the home of an inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    Name(Dentry),
    Inode(usize),
}

/// What is taken for true of inodes whose numbers nobody was told by the time that a loss takes back what was decided
/// on about them: that it was this server who did, or another, or whose number this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guess {
    Other,
    Own,
    Number(FileId),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct Changes {
    pub(super) entries: BTreeMap<Dentry, Option<usize>>,
    pub(super) modes: BTreeMap<usize, u32>,
}

/// The two steps that stand for a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossStep {
    Keep(u32),
    /// Of the returns of one loss the first that has its place counts, which is not before the moment `from`; `kept` is
    /// the position of its `Keep`.
    Return {
        server: u32,
        kept: usize,
        guess: Guess,
        from: Moment,
    },
}

impl Tree {
    pub(super) fn key(&self, path: &Path) -> Result<Option<usize>, Status> {
        for end in 1..path.parts.len() {
            match self.entries.get(&Path { parts: path.parts[..end].to_vec() }) {
                None => return Err(Status::NotFound),
                Some(key) if self.nodes[key].kind != Kind::Directory => return Err(Status::NotDirectory),
                Some(_) => {}
            }
        }
        Ok(self.entries.get(path).copied())
    }

    pub(super) fn existing(&self, path: &Path) -> Result<usize, Status> {
        self.key(path)?.ok_or(Status::NotFound)
    }

    /// Every symbolic link of the histories leads nowhere.
    pub(super) fn followed(&self, path: &Path) -> Result<usize, Status> {
        self.existing(path).and_then(|key| self.refuse(key, Kind::Symlink, Status::NotFound))
    }

    pub(super) fn refuse(&self, key: usize, kind: Kind, status: Status) -> Result<usize, Status> {
        if self.nodes[&key].kind == kind { Err(status) } else { Ok(key) }
    }

    pub(super) fn is_directory(&self, key: Option<usize>) -> bool {
        key.is_some_and(|key| self.nodes[&key].kind == Kind::Directory)
    }

    pub(super) fn make(&mut self, path: &Path, kind: Kind, mode: u32, target: Option<String>) -> usize {
        let key = self.nodes.keys().next_back().map_or(0, |last| last + 1);
        self.entries.insert(path.clone(), key);
        self.nodes.insert(key, Node { kind, id: None, mode, target });
        key
    }

    /// Forgets inodes without a name, and numbers the others in the order of their first names.
    pub(super) fn reap(&mut self) {
        let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
        for key in self.entries.values() {
            let next = numbers.len();
            numbers.entry(*key).or_insert(next);
        }
        // What may be undone comes back with its inode, and in the directory that it was in; and the one that counts
        // for who decided may be told of still.
        let undone = self.changes().flat_map(|changes| &changes.entries);
        let undone = undone.flat_map(|((directory, _), key)| [*directory, *key]).flatten();
        let subjects = self.undo.values().flat_map(|undo| &undo.doubtful);
        for key in undone.chain(subjects.filter_map(|(subject, _)| subject.inode())) {
            let next = numbers.len();
            numbers.entry(key).or_insert(next);
        }
        self.entries.values_mut().for_each(|key| *key = numbers[key]);
        for undo in self.undo.values_mut() {
            for (subject, _) in &mut undo.doubtful {
                subject.inode_mut().into_iter().for_each(|key| *key = numbers[key]);
            }
            for changes in std::iter::once(&mut undo.sure).chain(undo.doubtful.iter_mut().map(|(_, changes)| changes)) {
                let entries = std::mem::take(&mut changes.entries).into_iter();
                let number = |key: Option<usize>| key.map(|key| numbers[&key]);
                changes.entries =
                    entries.map(|((directory, name), key)| ((number(directory), name), number(key))).collect();
                let modes = std::mem::take(&mut changes.modes);
                changes.modes = modes.into_iter().filter_map(|(key, mode)| Some((*numbers.get(&key)?, mode))).collect();
            }
        }
        self.found.values_mut().for_each(|key| *key = numbers.get(key).copied().unwrap_or(GONE));
        let nodes = std::mem::take(&mut self.nodes);
        self.nodes = nodes.into_iter().filter_map(|(key, node)| Some((*numbers.get(&key)?, node))).collect();
    }

    pub(super) fn changes(&self) -> impl Iterator<Item = &Changes> {
        self.undo
            .values()
            .flat_map(|undo| std::iter::once(&undo.sure).chain(undo.doubtful.iter().map(|(_, changes)| changes)))
    }

    pub(super) fn has_name(&self, key: usize) -> bool {
        self.entries.values().any(|named| *named == key)
    }

    /// The server of an entry, as far as the number of its directory is known.
    pub(super) fn server_of(&self, path: &Path, cluster: &Cluster) -> Option<u32> {
        let parent = match path.parent() {
            None => Some(FileId::ROOT),
            Some(parent) => self.entries.get(&parent).and_then(|key| self.nodes[key].id),
        };
        match cluster.server_count() {
            1 => Some(0),
            _ => Some(cluster.dentry_server(parent?, path.name().as_bytes())),
        }
    }

    /// The server that decides on an operation; that of a change of a mode is the home of the inode.
    pub(super) fn decider(&self, action: &Action, inode: Option<usize>, cluster: &Cluster) -> Option<u32> {
        match action {
            Action::LinkOpen { file, .. } => cluster.home_of(*file),
            Action::ChangeMode { .. } => {
                let id = inode.and_then(|key| self.nodes.get(&key)?.id);
                if cluster.server_count() == 1 { Some(0) } else { cluster.home_of(id?) }
            }
            Action::Link { from, .. } | Action::Rename { from, .. } => self.server_of(from, cluster),
            Action::Open { path, .. }
            | Action::Unlink { path }
            | Action::MakeDirectory { path, .. }
            | Action::RemoveDirectory { path }
            | Action::MakeSymlink { path, .. }
            | Action::MakeNode { path, .. } => self.server_of(path, cluster),
            _ => None,
        }
    }

    /// What counts for who decides on an operation, where that is the number of an inode.
    pub(super) fn subject(&self, operation: &Operation, inode: Option<usize>) -> Option<Subject> {
        let named = |path: &Path| {
            let directory = self.entries.get(&path.parent()?)?;
            Some(Subject::Name((Some(*directory), path.name().to_owned())))
        };
        match operation.action {
            Action::ChangeMode { .. } => inode.filter(|key| self.nodes.contains_key(key)).map(Subject::Inode),
            _ => named(operation.pair().map(|(from, _)| from).or_else(|| operation.path())?),
        }
    }

    /// The server that decided on a change, as far as anybody was told, and else as it is guessed.
    fn guessed_decider(&self, subject: &Subject, guess: Guess, server: u32, cluster: &Cluster) -> Option<u32> {
        let known = subject.inode().and_then(|key| self.nodes.get(&key)?.id);
        let id = match guess {
            _ if known.is_some() => known?,
            Guess::Other => return None,
            Guess::Own => return Some(server),
            Guess::Number(id) => id,
        };
        match subject {
            Subject::Name((_, name)) => Some(cluster.dentry_server(id, name.as_bytes())),
            Subject::Inode(_) => cluster.home_of(id),
        }
    }

    /// Notes how things were before a change, for those servers that decided on it or may have. `subject` counts where
    /// nobody knows who did.
    pub(super) fn note_change(&mut self, before: &Tree, decider: Option<u32>, subject: Option<Subject>) {
        let mut undo = std::mem::take(&mut self.undo);
        let (names_before, names) = (before.dentries(), self.dentries());
        for (server, undo) in &mut undo {
            let (changes, other) = match (decider, &subject) {
                (Some(decider), _) if decider != *server => continue,
                (Some(_), _) => (&mut undo.sure, None),
                (None, None) => continue,
                (None, Some(subject)) => {
                    if undo.doubtful.last().is_none_or(|(last, _)| last != subject) {
                        undo.doubtful.push((subject.clone(), Changes::default()));
                    }
                    let Some((_, changes)) = undo.doubtful.last_mut() else { continue };
                    (changes, Some(&undo.sure))
                }
            };
            for name in names_before.keys().chain(names.keys()) {
                let old = names_before.get(name).copied();
                let is_noted = other.is_some_and(|other| other.entries.contains_key(name));
                if old != names.get(name).copied() && !is_noted {
                    changes.entries.entry(name.clone()).or_insert(old);
                }
            }
            for (key, node) in &before.nodes {
                if self.nodes.get(key).is_some_and(|after| after.mode != node.mode) {
                    changes.modes.entry(*key).or_insert(node.mode);
                }
            }
        }
        self.undo = undo;
    }

    /// What a loss of power makes of it. `None` when that can't have been.
    pub(super) fn after_step(&self, step: LossStep, cluster: &Cluster) -> Option<Tree> {
        let mut after = self.clone();
        match step {
            LossStep::Keep(server) => {
                let before = after.undo.insert(server, Undo::default());
                assert!(before.is_none(), "a server's losses come one after the other");
            }
            LossStep::Return { server, guess, .. } => {
                let Some(undo) = after.undo.remove(&server) else { return Some(after) };
                let is_own = |subject: &Subject| self.guessed_decider(subject, guess, server, cluster) == Some(server);
                let doubtful = undo.doubtful.into_iter().rev().filter(|(subject, _)| is_own(subject));
                after.take_back(std::iter::once(undo.sure).chain(doubtful.map(|(_, changes)| changes)))?;
                after.reap();
            }
        }
        Some(after)
    }

    /// Of two changes of the same thing the later one comes first. `None` when something is in no directory then, or a
    /// directory in two.
    fn take_back(&mut self, undone: impl Iterator<Item = Changes>) -> Option<()> {
        let mut names = self.dentries();
        for changes in undone {
            for (name, key) in changes.entries {
                match key {
                    Some(key) => drop(names.insert(name, key)),
                    None => drop(names.remove(&name)),
                }
            }
            for (key, mode) in changes.modes {
                if let Some(node) = self.nodes.get_mut(&key) {
                    node.mode = mode;
                }
            }
        }
        self.entries = self.paths(&names)?;
        Some(())
    }

    pub(super) fn dentries(&self) -> BTreeMap<Dentry, usize> {
        let directory = |path: &Path| path.parent().map(|parent| self.entries[&parent]);
        self.entries.iter().map(|(path, key)| ((directory(path), path.name().to_owned()), *key)).collect()
    }

    /// The paths that names make. `None` when one of them is not beneath the root directory, or a directory is found
    /// twice.
    pub(super) fn paths(&self, names: &BTreeMap<Dentry, usize>) -> Option<BTreeMap<Path, usize>> {
        let (mut paths, mut found) = (BTreeMap::new(), BTreeSet::new());
        let mut directories = vec![(None, Path { parts: Vec::new() })];
        while let Some((directory, path)) = directories.pop() {
            let within = names.range((directory, String::new())..).take_while(|((other, _), _)| *other == directory);
            for ((_, name), key) in within {
                let path = path.join(name);
                if self.is_directory(Some(*key)) {
                    if !found.insert(*key) {
                        return None;
                    }
                    directories.push((Some(*key), path.clone()));
                }
                paths.insert(path, *key);
            }
        }
        (paths.len() == names.len()).then_some(paths)
    }

    pub(super) fn is_empty(&self, path: &Path) -> bool {
        self.entries.keys().all(|other| other == path || !other.parts.starts_with(&path.parts))
    }

    /// Does what an operation with one path does; the inode concerned, or the error.
    pub(super) fn act(&mut self, action: &Action) -> Result<Option<usize>, Status> {
        match action {
            Action::Open { path, create, exclusive, mode, .. } => match self.key(path)? {
                None if *create => Ok(Some(self.make(path, Kind::File, *mode, None))),
                Some(_) if *create && *exclusive => Err(Status::Exists),
                _ => {
                    let key = self.followed(path)?;
                    self.refuse(key, Kind::Fifo, Status::IsSpecial)?;
                    self.refuse(key, Kind::Directory, Status::IsDirectory).map(Some)
                }
            },
            Action::LinkOpen { file, mode, path } => match self.key(path)? {
                None => {
                    let key = self.make(path, Kind::File, *mode, None);
                    Ok(self.nodes.get_mut(&key).is_some_and(|node| node.identify(*file)).then_some(key))
                }
                Some(_) => Err(Status::Exists),
            },
            Action::Unlink { path } => {
                let key = self.existing(path)?;
                self.refuse(key, Kind::Directory, Status::IsDirectory)?;
                self.entries.remove(path);
                Ok(None)
            }
            Action::MakeDirectory { path, mode } => match self.key(path)? {
                None => Ok(Some(self.make(path, Kind::Directory, *mode, None))),
                Some(_) => Err(Status::Exists),
            },
            Action::RemoveDirectory { path } => match self.existing(path)? {
                key if self.nodes[&key].kind != Kind::Directory => Err(Status::NotDirectory),
                _ if !self.is_empty(path) => Err(Status::NotEmpty),
                _ => {
                    self.entries.remove(path);
                    Ok(None)
                }
            },
            Action::MakeSymlink { path, target } => match self.key(path)? {
                None => Ok(Some(self.make(path, Kind::Symlink, 0o777, Some(target.clone())))),
                Some(_) => Err(Status::Exists),
            },
            Action::MakeNode { path, mode } => match self.key(path)? {
                None => Ok(Some(self.make(path, Kind::Fifo, *mode, None))),
                Some(_) => Err(Status::Exists),
            },
            Action::ReadLink { path } => match self.existing(path)? {
                key if self.nodes[&key].kind == Kind::Symlink => Ok(Some(key)),
                _ => Err(Status::Invalid),
            },
            Action::Stat { path } => self.existing(path).map(Some),
            Action::ChangeMode { path, .. } | Action::SetTime { path, .. } => self.followed(path).map(Some),
            Action::TruncatePath { path, .. } => {
                let key = self.followed(path)?;
                self.refuse(key, Kind::Fifo, Status::Invalid)?;
                self.refuse(key, Kind::Directory, Status::IsDirectory).map(Some)
            }
            Action::List { directory: Some(directory), .. } => match self.existing(directory)? {
                key if self.nodes[&key].kind == Kind::Directory => Ok(Some(key)),
                _ => Err(Status::NotDirectory),
            },
            _ => unreachable!("the operation is not about one name"),
        }
    }

    /// Does a link or rename; or all the errors that are true, for either path may be looked at first.
    pub(super) fn act_on_two(&mut self, action: &Action, from: &Path, to: &Path) -> Result<(), Vec<Status>> {
        let (source, destination) = (self.existing(from), self.key(to));
        let mut errors: Vec<Status> = [source.err(), destination.err()].into_iter().flatten().collect();
        let (source, destination) = (source.ok(), destination.ok().flatten());
        let exists = destination.is_some();
        match action {
            Action::Link { .. } => {
                errors.extend(self.is_directory(source).then_some(Status::NotPermitted));
                errors.extend(exists.then_some(Status::Exists));
            }
            Action::Rename { no_replace, exchange, .. } => {
                let kinds = (self.is_directory(source), self.is_directory(destination));
                let itself = to.lies_in(from) || (*exchange && from.lies_in(to));
                errors.extend((itself && from != to).then_some(Status::Invalid));
                if !exchange && exists && destination != source {
                    errors.extend((kinds == (true, false)).then_some(Status::NotDirectory));
                    errors.extend((kinds == (false, true)).then_some(Status::IsDirectory));
                    errors.extend((kinds == (true, true) && !self.is_empty(to)).then_some(Status::NotEmpty));
                }
                errors.extend((*exchange && !exists).then_some(Status::NotFound));
                errors.extend((*no_replace && exists).then_some(Status::Exists));
            }
            _ => unreachable!("the operation is not about two names"),
        }
        let Some(source) = source.filter(|_| errors.is_empty()) else { return Err(errors) };
        if destination == Some(source) {
            return Ok(());
        }
        if matches!(action, Action::Link { .. }) {
            self.entries.insert(to.clone(), source);
            return Ok(());
        }
        let (moved, replaced) = (self.take(from), self.take(to));
        self.entries.extend(moved.into_iter().map(|(path, key)| (path.moved(from, to), key)));
        if matches!(action, Action::Rename { exchange: true, .. }) {
            self.entries.extend(replaced.into_iter().map(|(path, key)| (path.moved(to, from), key)));
        }
        Ok(())
    }

    /// Takes a name away with all that is beneath it.
    pub(super) fn take(&mut self, path: &Path) -> Vec<(Path, usize)> {
        let paths: Vec<Path> = self.entries.keys().filter(|other| other.lies_in(path)).cloned().collect();
        paths.into_iter().filter_map(|path| self.entries.remove_entry(&path)).collect()
    }

    /// Whether the outcome may be told of this inode, now or when its attributes have changed.
    pub(super) fn may_be(&self, key: usize, outcome: &Outcome) -> bool {
        let Some(node) = self.nodes.get(&key) else { return false };
        let is_of_kind = match outcome {
            Outcome::Seen(seen) | Outcome::SeenInPart(seen) => node.kind == seen.kind,
            _ => true,
        };
        let is_of_id = match (node.id, outcome.id()) {
            (Some(known), Some(id)) => known == id,
            (None, Some(id)) => !self.nodes.values().any(|other| other.id == Some(id)),
            (_, None) => true,
        };
        is_of_kind && is_of_id
    }

    /// Takes in what the outcome tells about an inode; false when they contradict each other.
    pub(super) fn agree(&mut self, key: usize, outcome: &Outcome) -> bool {
        let links = self.entries.values().filter(|named| **named == key).count();
        if !self.may_be(key, outcome) {
            return false;
        }
        let Some(node) = self.nodes.get_mut(&key) else { return false };
        match outcome {
            Outcome::Opened(id) => node.identify(*id),
            Outcome::Seen(seen) => {
                let mode_right = node.kind == Kind::Symlink || node.mode == seen.mode;
                let size_right = node.target.as_ref().is_none_or(|target| target.len() as u64 == seen.size);
                // Those of directories are not one server's to tell: see `check::directories`.
                let links_right = node.kind == Kind::Directory || links == seen.links as usize;
                let right = node.kind == seen.kind && mode_right && size_right && links_right;
                right && node.identify(seen.id)
            }
            Outcome::SeenInPart(seen) => {
                node.kind == Kind::Directory && node.mode == seen.mode && node.identify(seen.id)
            }
            Outcome::Target(target) => node.target.as_ref().map(|text| text.as_bytes()) == Some(target.as_slice()),
            _ => true,
        }
    }

    /// The second step of a stat or chmod.
    pub(super) fn make_use(&mut self, key: usize, operation: &Operation) -> bool {
        if !self.has_name(key) && matches!(operation.action, Action::ChangeMode { .. }) {
            // Somebody has it open, so that it is there without a name; nobody will see the mode.
            return true;
        }
        if let (Action::ChangeMode { mode, .. }, Some(node)) = (&operation.action, self.nodes.get_mut(&key)) {
            node.mode = *mode;
        }
        self.has_name(key) && self.agree(key, &operation.outcome)
    }
}

impl Subject {
    /// The inode whose number counts: of a name its directory.
    fn inode(&self) -> Option<usize> {
        match self {
            Subject::Name((directory, _)) => *directory,
            Subject::Inode(key) => Some(*key),
        }
    }

    fn inode_mut(&mut self) -> Option<&mut usize> {
        match self {
            Subject::Name((directory, _)) => directory.as_mut(),
            Subject::Inode(key) => Some(key),
        }
    }
}

impl Node {
    pub(super) fn identify(&mut self, id: FileId) -> bool {
        *self.id.get_or_insert(id) == id
    }
}
