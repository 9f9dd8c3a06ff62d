//! Names behind that go, or have to be free for something else.

use super::{GivesWay, Hindrance, Pass, StepResult};
use crate::backing::carry::{NOT_EMPTY, may_lose_name};
use crate::backing::joined;
use crate::backing::places::DirectoryBehind;
use crate::core::Failure;
use crate::process::options::ConflictPolicy;
use reactor::backing::{BackingAttributes, BackingDirectory, FileKind};
use wire::messages::*;
use wire::{FileId, Kind};

/// What may lose a name behind.
pub(super) struct Freed {
    /// By what it is known there by now.
    pub known: KnownBehind,
    /// Names here of what it is one of several of; 0 if it is none.
    names: u32,
}

impl Pass {
    /// Whether what has a name behind may lose it: it is gone here, or has another place, or is all here.
    pub(super) async fn check_free(
        &self,
        there: FileId,
        entry: &ChangedEntry,
        known: &KnownBehind,
    ) -> Result<Freed, Hindrance> {
        let other = self.core.ask_carried_of(there).await?;
        let linked = other.place.as_ref().filter(|place| place.has_links && place.inode == known.inode);
        let has_links = linked.is_some();
        let names = other.names.unwrap_or(0);
        let freed = match linked {
            Some(place) => Freed { known: place.known(), names },
            None if self.linked.borrow().contains(&there.0) => Freed { known: known.of_links(), names },
            None => Freed { known: known.clone(), names: 0 },
        };
        let is_entry = |place: &BackingPlace| (place.parent, place.name()) == (entry.directory, &*entry.name);
        // Its home may not have come to see that it was moved there.
        let is_there = other.place.iter().chain(&other.next).any(is_entry);
        match other.names {
            Some(0) if is_there && other.is_needed => {
                Err(Hindrance::Waits("what it was before is still open here, and not all of it is here".to_owned()))
            }
            Some(count) if is_there && count > 0 => {
                if has_links && self.move_place(there, entry).await? {
                    // What of it was changed goes by its new place.
                    self.waiting.set(self.waiting.get() + 1);
                    return Ok(freed);
                }
                Err(Hindrance::Occupied(GivesWay { id: there, directory: None }))
            }
            _ => Ok(freed),
        }
    }

    /// Has another name that an inode has here and behind be its place, so that it may lose that of an entry. Whether
    /// there is one.
    async fn move_place(&self, id: FileId, entry: &ChangedEntry) -> Result<bool, Hindrance> {
        for link in self.core.links_of(id).await? {
            let is_entry = (link.directory, &link.name) == (entry.directory, &entry.name);
            if is_entry || link.id != Some(id) || !link.behind.agrees(Some(id)) {
                continue;
            }
            let Some(directory) = self.directory_path(link.directory).await? else { continue };
            let (path, known, way) = (joined(&directory, &link.name), link.behind.known, carry_ways::LINK_AS_PLACE);
            let wish = CarryInodeRequest { known, same_as: id, way, ..self.wish(id, link.directory, path) };
            match self.carry(wish).await {
                Ok(()) => return Ok(true),
                // It is no link by now, which the next pass sees.
                Err(Hindrance::Failed(_)) => self.waiting.set(self.waiting.get() + 1),
                Err(other) => return Err(other),
            }
        }
        Ok(false)
    }

    /// Takes away what has a name behind if it can't be replaced in one step: a directory by a file, or the other way.
    pub(super) async fn clear_other_kind(
        &self,
        entry: &ChangedEntry,
        directory: &DirectoryBehind,
        known: Option<&KnownBehind>,
    ) -> Result<bool, Hindrance> {
        let backing = self.core.backing();
        let failed = |error| backing.failure(error);
        let opened = backing.open_known(directory).await.map_err(failed)?;
        let Some(found) = backing.look_for(&opened, &entry.name).await? else { return Ok(false) };
        let is_directory = found.kind == FileKind::Directory;
        if is_directory == (entry.kind == Kind::Directory) || known.is_none_or(|known| !may_lose_name(&found, known)) {
            return Ok(false);
        }
        self.remove_now(&opened, entry, is_directory).await?;
        Ok(true)
    }

    /// A name is about to go behind that a file has which has others here: should it get this one back before that is
    /// noted, it differs.
    async fn leave_name(&self, entry: &ChangedEntry, freed: &Freed) -> Result<(), Hindrance> {
        if freed.names > 0 {
            let known = Some(freed.known.clone());
            self.core.leave_name(entry.behind.same_as, (entry.directory, &entry.name), known).await?;
        }
        Ok(())
    }

    /// A file has one name less behind. Of the last one counts all that it is known by.
    async fn end_links(&self, id: FileId) -> Result<(), Hindrance> {
        let carried = self.core.ask_carried_of(id).await?;
        let Some(place) = carried.place.filter(|place| place.has_links) else { return Ok(()) };
        let Some(directory) = self.directory_path(place.parent).await? else { return Ok(()) };
        let (path, known, way) = (joined(&directory, place.name()), Some(place.known()), carry_ways::LINK_AS_PLACE);
        match self.carry(CarryInodeRequest { known, same_as: id, way, ..self.wish(id, place.parent, path) }).await {
            Err(Hindrance::Failed(_)) => Ok(()),
            other => other,
        }
    }

    async fn remove_now(
        &self,
        opened: &BackingDirectory,
        entry: &ChangedEntry,
        is_directory: bool,
    ) -> Result<(), Hindrance> {
        let backing = self.core.backing();
        let removed = match is_directory {
            true => opened.remove_directory(&entry.name).await,
            false => opened.remove(&entry.name).await,
        };
        match removed {
            Err(error) if error.is_not_empty() => {
                return Err(Hindrance::Waits(NOT_EMPTY.to_owned()));
            }
            Err(error) if !error.is_not_found() => return Err(backing.failure(error).into()),
            _ => {}
        }
        backing.sync_names(opened).await?;
        self.note_gone(entry, is_directory).await
    }

    async fn note_gone(&self, entry: &ChangedEntry, is_directory: bool) -> Result<(), Hindrance> {
        let behind = NameBehind { known: None, next: None, same_as: FileId::default() };
        self.core.have_noted(entry.directory, &entry.name, behind).await?;
        if is_directory { self.forget_directory(entry.behind.same_as, entry).await } else { Ok(()) }
    }

    /// Has everybody forget what was in a directory that is gone here and behind, where it had this entry.
    pub(super) async fn forget_directory(&self, gone: FileId, entry: &ChangedEntry) -> Result<(), Hindrance> {
        if gone == FileId::default() {
            return Ok(());
        }
        // What lives on elsewhere has a place of its own. And what an earlier flush has moved, or was about to move, is
        // behind still, with what is in it, though the name that it had before is gone.
        let carried = self.core.ask_carried_of(gone).await?;
        let is_elsewhere = |place: &BackingPlace| (place.parent, place.name()) != (entry.directory, &*entry.name);
        if carried.names.is_some() || carried.place.iter().chain(&carried.next).any(is_elsewhere) {
            return Ok(());
        }
        for server in 0..self.core.cluster.server_count() {
            let behind = NameBehind { known: None, next: None, same_as: FileId::default() };
            let request =
                NoteBehindRequest { directory: gone, name: Vec::new(), behind, kind: note_kinds::NOW, seen: None };
            self.core.send_note(server, request).await?;
        }
        Ok(())
    }

    /// Removes a name behind that is none here any more.
    pub(super) async fn remove_step(&self, entry: &ChangedEntry) -> StepResult {
        if entry.behind.next.is_some() {
            return Err(Hindrance::Waits("it is being carried by an earlier flush".to_owned()));
        }
        let Some(known) = entry.behind.known.clone() else { return Ok(false) };
        let mut freed = Freed { known, names: 0 };
        let Some(directory) = self.directory_place(entry.directory).await? else {
            // The directory is gone, and nothing is remembered of it but on one server.
            self.forget(entry).await?;
            return Ok(true);
        };
        let path = joined(&directory.path, &entry.name);
        if !self.is_wanted(&path) {
            return Ok(false);
        }
        if entry.behind.same_as != FileId::default() {
            freed = match self.check_free(entry.behind.same_as, entry, &freed.known).await {
                Err(Hindrance::Occupied(_)) => {
                    let words = "it has another name here, under which it is not carried yet".to_owned();
                    return Err(Hindrance::Waits(words));
                }
                other => other?,
            };
        }
        let backing = self.core.backing();
        let opened = match backing.open_known(&directory).await {
            // Where another one is there, ours may come back, and what is stale may be there still.
            Err(error) if error.is_missing() => {
                // What an earlier flush began may have moved it since it was asked where it is.
                self.forget_paths();
                let now = self.directory_place(entry.directory).await?;
                if now.is_some_and(|now| now.path != directory.path) {
                    return Err(Hindrance::Waits("its directory was moved there meanwhile".to_owned()));
                }
                self.note_gone(entry, false).await?;
                return Ok(true);
            }
            other => other.map_err(|error| backing.failure(error))?,
        };
        match backing.look_for(&opened, &entry.name).await? {
            None => {
                // Whoever removed it may not have come to see that it is durable.
                backing.sync_names(&opened).await?;
                self.note_gone(entry, true).await?;
            }
            Some(found) if !may_lose_name(&found, &freed.known) => {
                return self.settle_removal(entry, &opened, &path, found).await;
            }
            Some(found) => {
                self.leave_name(entry, &freed).await?;
                self.remove_now(&opened, entry, found.kind == FileKind::Directory).await?;
                if freed.names == 1 {
                    self.end_links(entry.behind.same_as).await?;
                }
            }
        }
        Ok(true)
    }

    /// Somebody else has changed what is to be removed.
    async fn settle_removal(
        &self,
        entry: &ChangedEntry,
        opened: &BackingDirectory,
        path: &[u8],
        found: BackingAttributes,
    ) -> StepResult {
        match self.core.backing().on_conflict {
            ConflictPolicy::Ours if found.kind != FileKind::Directory => {
                let words = self.core.move_aside((opened, &entry.name), path, &found).await?;
                self.core.backing().settled.note(path, &words);
                self.note_gone(entry, false).await?;
                Ok(true)
            }
            ConflictPolicy::Theirs if found.kind != FileKind::Directory => {
                self.give_up(entry.directory, &entry.name, None, path).await
            }
            _ => Err(Hindrance::Failed(b"somebody else has changed it there, so it is not removed".to_vec())),
        }
    }

    async fn forget(&self, entry: &ChangedEntry) -> Result<(), Failure> {
        let behind = NameBehind { known: None, next: None, same_as: FileId::default() };
        self.core.have_noted(entry.directory, &entry.name, behind).await
    }
}
