//! A client that keeps names and attributes as the kernel of a mount does (docs/kept-entries.md): for as long as it was
//! told, and with its epoch as the only way of forgetting what others change. What it does itself it knows of.

use crate::history::{Action, Outcome, Path};
use client::{Attributes, EntryKeeper, FileId, FileSystem, Kind, Status};
use reactor::{LocalFuture, Nanos, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Between that everything is forgotten and that the servers are told, in turns, so that it is sometimes late.
const CONFIRMATION_PAUSES: [Nanos; 4] = [0, 100_000, 3_000_000, 40_000_000];

struct Entry {
    /// Nothing where there is no such name.
    attributes: Option<Attributes>,
    epoch: u64,
    until: Nanos,
}

/// See the module.
#[derive(Default)]
pub struct Kernel {
    /// Names in the root directory.
    entries: RefCell<BTreeMap<String, Entry>>,
    epoch: Cell<u64>,
    /// Own changes that have begun or ended.
    version: Cell<u64>,
    /// Own changes that are under way, and those of them that are of names in the root directory.
    changing: Cell<u64>,
    naming: Cell<u64>,
    /// Looks that were answered from here.
    hits: Cell<u64>,
}

struct Keeper {
    kernel: Rc<Kernel>,
    reactor: Reactor,
}

impl EntryKeeper for Keeper {
    fn held(&self, _until: Option<Nanos>) {}

    fn forget(&self) -> LocalFuture<()> {
        let epoch = &self.kernel.epoch;
        epoch.set(epoch.get() + 1);
        let pause = CONFIRMATION_PAUSES[epoch.get() as usize % CONFIRMATION_PAUSES.len()];
        let reactor = self.reactor.clone();
        Box::pin(async move {
            if pause > 0 {
                reactor.sleep(pause).await;
            }
        })
    }
}

/// What is so while a name is looked up.
struct Beginning {
    epoch: u64,
    version: u64,
    generation: Option<u64>,
    is_changing: bool,
    is_naming: bool,
}

impl Kernel {
    /// One for a client, which asks for delegations from now on.
    pub fn of(file_system: &FileSystem) -> Rc<Kernel> {
        let kernel: Rc<Kernel> = Rc::default();
        let keeper = Keeper { kernel: kernel.clone(), reactor: file_system.reactor().clone() };
        file_system.keep_entries(file_system.session(), Rc::new(keeper));
        kernel
    }

    /// Looks that needed no server.
    pub fn hits(&self) -> u64 {
        self.hits.get()
    }

    fn kept(&self, name: &str, now: Nanos) -> Option<client::Result<Attributes>> {
        let entries = self.entries.borrow();
        let entry = entries.get(name).filter(|entry| entry.epoch == self.epoch.get() && now < entry.until)?;
        self.hits.set(self.hits.get() + 1);
        let absent = || client::Error { status: Status::NotFound, message: format!("{name} is kept as absent") };
        Some(entry.attributes.clone().ok_or_else(absent))
    }

    /// What a name in the root directory leads to.
    pub async fn look_up(&self, file_system: &FileSystem, name: &str) -> client::Result<Attributes> {
        if let Some(kept) = self.kept(name, file_system.reactor().now()) {
            return kept;
        }
        let generation = file_system.kept_generation();
        let beginning = Beginning {
            epoch: self.epoch.get(),
            version: self.version.get(),
            generation,
            is_changing: self.changing.get() > 0,
            is_naming: self.naming.get() > 0,
        };
        let found = file_system.lookup_at(FileId::ROOT, name.as_bytes()).await;
        let attributes = match &found {
            // One that lacks the share of a server is told, and not kept.
            Ok(attributes) if attributes.kind == Kind::Directory && attributes.link_count < 2 => return found,
            // Another reply may have told what a change has made of it.
            Ok(_) if beginning.is_changing => return found,
            Ok(attributes) => Some(attributes.clone()),
            // A kernel has locked the directory for the change, and looks when that is over.
            Err(_) if beginning.is_naming => return found,
            Err(error) if error.status == Status::NotFound => None,
            Err(_) => return found,
        };
        self.keep(file_system, name, attributes, &beginning);
        found
    }

    fn keep(&self, file_system: &FileSystem, name: &str, attributes: Option<Attributes>, beginning: &Beginning) {
        let for_ns = file_system.kept_for(beginning.generation);
        if for_ns > 0 && beginning.version == self.version.get() {
            let until = file_system.reactor().now() + for_ns;
            // As the kernel does, by the epoch in which it has asked.
            let entry = Entry { attributes, epoch: beginning.epoch, until };
            self.entries.borrow_mut().insert(name.to_owned(), entry);
        }
    }

    /// Something of our own begins.
    pub fn note_beginning(&self, action: &Action) {
        self.changing.set(self.changing.get() + u64::from(self.note_own(action)));
        self.naming.set(self.naming.get() + u64::from(names_in_root(action)));
    }

    /// Something of our own begins or ends; whether it is a change.
    fn note_own(&self, action: &Action) -> bool {
        let file = match action {
            Action::Stat { .. }
            | Action::List { .. }
            | Action::ReadLink { .. }
            | Action::Read { .. }
            | Action::StatFile { .. }
            | Action::Lock { .. }
            | Action::Unlock { .. }
            | Action::GetExtended { .. }
            | Action::ListExtended { .. }
            | Action::Seek { .. }
            | Action::Synchronise { .. }
            | Action::SynchroniseAll
            | Action::Close { .. } => return false,
            Action::Write { file, .. }
            | Action::Append { file, .. }
            | Action::TruncateFile { file, .. }
            | Action::SetExtended { file, .. }
            | Action::RemoveExtended { file, .. }
            | Action::Allocate { file, .. }
            | Action::CopyRange { file, .. } => Some(*file),
            _ => None,
        };
        self.version.set(self.version.get() + 1);
        let mut entries = self.entries.borrow_mut();
        match (file, made_in(action)) {
            (Some(file), _) => {
                entries.retain(|_, entry| entry.attributes.as_ref().is_none_or(|attributes| attributes.id != file));
            }
            // Also the directory that it is in.
            (None, Some(path)) => drop(entries.remove(&path.parts[0])),
            (None, None) => entries.clear(),
        }
        true
    }

    /// After a change of our own of which nobody knows whether it has happened nothing of what was told counts any
    /// more.
    pub async fn note_outcome(&self, file_system: &FileSystem, action: &Action, outcome: &Outcome) {
        self.changing.set(self.changing.get() - u64::from(self.note_own(action)));
        self.naming.set(self.naming.get() - u64::from(names_in_root(action)));
        if matches!(outcome, Outcome::Unknown(_)) {
            file_system.give_back_entries().await;
        }
    }
}

/// Whether an action makes a name in the root directory.
fn names_in_root(action: &Action) -> bool {
    made_in(action).is_some_and(|path| path.parts.len() == 1)
}

/// The path of what an action makes, and nothing else.
fn made_in(action: &Action) -> Option<&Path> {
    match action {
        Action::Open { path, truncate: false, .. }
        | Action::MakeDirectory { path, .. }
        | Action::MakeSymlink { path, .. }
        | Action::MakeNode { path, .. } => Some(path),
        Action::MakeTemporary { directory, .. } => Some(directory),
        _ => None,
    }
}
