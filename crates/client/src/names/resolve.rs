//! From paths to directory entries: component by component, through the directory cache, following symbolic links.
//!
//! A walk keeps the chain of real directories that it came through, so `..` leads to the true parent also behind a
//! symbolic link. A path whose directories are cached costs no round trip here.

use crate::error::{Error, RequestError, Result};
use crate::names::directory_cache::Directory;
use crate::names::rights::Rights;
use crate::servers::Servers;
use std::borrow::Cow;
use std::rc::Rc;
use wire::credentials::Credentials;
use wire::limits::{PATH_SIZE_MAX, SYMLINK_DEPTH_MAX};
use wire::messages::{Entry, EntryReply, EntryRequest, FileRequest};
use wire::{Attributes, Decode, FileId, Kind, Name, Operation, Status};

/// What a path names.
#[derive(Clone)]
pub(crate) enum Target {
    /// An entry of a directory; whether it exists is for its server to say.
    Entry(EntryTarget),
    /// A directory that is known already: the root, or a path that ends in `.` or `..`.
    Itself(Rc<Directory>),
}

#[derive(Clone)]
pub(crate) struct EntryTarget {
    pub parent: Rc<Directory>,
    pub name: Vec<u8>,
    /// The path ended in a slash.
    pub must_be_directory: bool,
    /// The last tree change that was known when the path was resolved.
    pub known: u64,
}

impl EntryTarget {
    /// The entry as it heads requests. Errors: `NameTooLong`, `Invalid`.
    pub(crate) fn entry(&self) -> std::result::Result<Entry<'_>, RequestError> {
        let name = Name::new(&self.name).map_err(RequestError::local)?;
        Ok(Entry { parent: self.parent.id, name, ancestors: self.parent.ancestors.clone(), known: self.known })
    }
}

/// What an operation on a target came to.
pub(crate) enum Resolution<R> {
    Done(R),
    /// The target is a symbolic link to this; the operation is wanted on what it leads to.
    Follow(Vec<u8>),
}

/// What one component of a path leads to.
enum Component {
    Directory(Rc<Directory>),
    Symlink(Vec<u8>),
}

/// A path on its way to a target.
struct Walk<'p> {
    user: &'p Credentials,
    start: Rc<Directory>,
    rest: Cow<'p, [u8]>,
    link_count: usize,
    /// The last tree change that was known when the walk began: all that it finds in the cache is at least as young.
    known: u64,
}

impl Walk<'_> {
    /// Goes on at the target of a symbolic link that was met in `parent`; `rest` is what comes after the link.
    fn follow(
        &mut self,
        root: Rc<Directory>,
        parent: Rc<Directory>,
        target: &[u8],
        rest: &[u8],
    ) -> std::result::Result<(), RequestError> {
        self.link_count += 1;
        if self.link_count > SYMLINK_DEPTH_MAX {
            return Err(RequestError::local(Status::SymlinkLoop));
        }
        let mut path = target.to_vec();
        if !rest.is_empty() {
            path.push(b'/');
            path.extend_from_slice(rest);
        }
        if path.len() >= PATH_SIZE_MAX {
            return Err(RequestError::local(Status::NameTooLong));
        }
        self.start = if target.starts_with(b"/") { root } else { parent };
        self.rest = Cow::Owned(path);
        Ok(())
    }
}

impl Servers {
    /// Resolves `path`, runs `operation` on what it names, and does both again where a symbolic link leads on or a
    /// directory that was relied on has gone. Errors name the path; `TimedOut` is one of them, where directories on it
    /// are moved faster than it can be walked.
    pub(crate) async fn on_path<R>(
        &self,
        path: &[u8],
        operation: impl AsyncFn(&Target) -> std::result::Result<Resolution<R>, RequestError>,
    ) -> Result<R> {
        self.on_path_as(self.user(), path, operation).await
    }

    /// The same with the rights of some user to the directories on the path.
    pub(crate) async fn on_path_as<R>(
        &self,
        user: &Credentials,
        path: &[u8],
        operation: impl AsyncFn(&Target) -> std::result::Result<Resolution<R>, RequestError>,
    ) -> Result<R> {
        check_path(path)?;
        let mut retries = self.further_retries();
        loop {
            let stale = match self.try_path(user, path, &operation).await {
                Ok(result) => return Ok(result),
                Err(stale) => stale,
            };
            if !stale.again || !retries.again().await {
                return Err(stale.into_error().about(path));
            }
        }
    }

    async fn try_path<R>(
        &self,
        user: &Credentials,
        path: &[u8],
        operation: &impl AsyncFn(&Target) -> std::result::Result<Resolution<R>, RequestError>,
    ) -> std::result::Result<R, Outdated> {
        let known = self.known_tree_changes().await;
        let root = self.cache.borrow().root();
        let mut walk = Walk { user, start: root.clone(), rest: Cow::Borrowed(path), link_count: 0, known };
        loop {
            let target = match self.resolve(&mut walk).await {
                Ok(target) => target,
                Err(request_error) => return Err(self.judge(request_error, None)),
            };
            let link = match operation(&target).await {
                Ok(Resolution::Done(result)) => return Ok(result),
                Ok(Resolution::Follow(link)) => link,
                Err(request_error) => return Err(self.judge(request_error, Some(&target))),
            };
            let Target::Entry(entry) = target else { unreachable!("only entries can be symbolic links") };
            // A trailing slash stays with the path: what the link leads to must be a directory then.
            let rest: &[u8] = if entry.must_be_directory { b"." } else { b"" };
            walk.follow(root.clone(), entry.parent, &link, rest).map_err(Outdated::no)?;
        }
    }

    /// Resolves a second path for an operation that `on_path` runs, which does both again when either is out of date.
    pub(crate) async fn resolve_other(&self, path: &[u8]) -> std::result::Result<Target, RequestError> {
        check_path(path).map_err(|error| RequestError::Local(error.status, error.message))?;
        let known = self.known_tree_changes().await;
        let start = self.cache.borrow().root();
        let user = self.user();
        self.resolve(&mut Walk { user, start, rest: Cow::Borrowed(path), link_count: 0, known }).await
    }

    /// Decides whether a failure only means that something cached is out of date, and forgets it then.
    fn judge(&self, request_error: RequestError, target: Option<&Target>) -> Outdated {
        let id = request_error.id();
        let mut cache = self.cache.borrow_mut();
        let again = match (request_error.status(), target) {
            (Status::StaleDirectory | Status::NotFound | Status::StaleFile, Some(Target::Itself(directory)))
                if directory.id != FileId::ROOT =>
            {
                cache.forget(directory.id);
                true
            }
            (Status::StaleDirectory, _) if id != FileId::default() => {
                cache.forget(id);
                true
            }
            // All is forgotten already (`Servers::send`).
            (Status::StaleDirectory, _) => true,
            // The name led to this file a moment ago: ask for the name again.
            (Status::StaleFile, _) => true,
            (Status::NotFound, Some(Target::Entry(entry))) if id == entry.parent.id && id != FileId::ROOT => {
                cache.forget(id);
                true
            }
            _ => false,
        };
        Outdated { request_error, again }
    }

    async fn resolve(&self, walk: &mut Walk<'_>) -> std::result::Result<Target, RequestError> {
        if let Some(entry) = self.resolve_cached(walk) {
            self.search(walk.user, &entry.parent).await?;
            return Ok(Target::Entry(entry));
        }
        let root = self.cache.borrow().root();
        'links: loop {
            let rest = walk.rest.clone();
            let mut here = walk.start.clone();
            let mut position = 0;
            while let Some((component, next)) = next_component(&rest, position) {
                position = next;
                self.search(walk.user, &here).await?;
                match component {
                    b"." => continue,
                    b".." => {
                        here = here.parent.clone().unwrap_or_else(|| root.clone());
                        continue;
                    }
                    _ => {}
                }
                if next_component(&rest, position).is_none() {
                    let must_be_directory = position < rest.len();
                    return Ok(Target::Entry(EntryTarget {
                        parent: here,
                        name: component.to_vec(),
                        must_be_directory,
                        known: walk.known,
                    }));
                }
                match self.step(&here, component, walk.known).await? {
                    Component::Directory(directory) => here = directory,
                    Component::Symlink(target) => {
                        walk.follow(root.clone(), here, &target, &rest[position..])?;
                        continue 'links;
                    }
                }
            }
            here.note_known(walk.known);
            return Ok(Target::Itself(here));
        }
    }

    /// The common case: everything before the last name is a cached directory as it is written.
    fn resolve_cached(&self, walk: &Walk<'_>) -> Option<EntryTarget> {
        let rest: &[u8] = &walk.rest;
        let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
        if slashes == 0 && walk.start.parent.is_some() {
            return None;
        }
        let rest = &rest[slashes..];
        let (directory, name) = match rest.iter().rposition(|byte| *byte == b'/') {
            Some(position) => (&rest[..position], &rest[position + 1..]),
            None => (&rest[..0], rest),
        };
        if matches!(name, b"" | b"." | b"..") {
            return None;
        }
        let parent = self.cache.borrow_mut().get(directory)?;
        Some(EntryTarget { parent, name: name.to_vec(), must_be_directory: false, known: walk.known })
    }

    /// Looks one component up, in the cache or at its server.
    async fn step(
        &self,
        here: &Rc<Directory>,
        name: &[u8],
        known: u64,
    ) -> std::result::Result<Component, RequestError> {
        let cached = self.cache.borrow_mut().get(&here.child_path(name));
        if let Some(directory) = cached.filter(|directory| directory.parent.as_ref().is_some_and(|p| p.id == here.id)) {
            return Ok(Component::Directory(directory));
        }
        let entry = EntryTarget { parent: here.clone(), name: name.to_vec(), must_be_directory: true, known };
        let (attributes, target) = self.look_up(&entry, Operation::Lookup).await?;
        match attributes.kind {
            Kind::Symlink => Ok(Component::Symlink(target)),
            Kind::Directory => Ok(Component::Directory(self.remember(&entry, &attributes))),
            _ => Err(RequestError::local(Status::NotDirectory)),
        }
    }

    /// `Lookup`, `Look` or `Stat` of an entry: its attributes, and its target when it is a symbolic link. No round trip
    /// for a file that its server shows or shows to be absent, a second one when its inode lives on another server than
    /// the name.
    pub(crate) async fn look_up(
        &self,
        target: &EntryTarget,
        operation: Operation,
    ) -> std::result::Result<(Attributes, Vec<u8>), RequestError> {
        let request = EntryRequest { entry: target.entry()? };
        let server = self.cluster.dentry_server(target.parent.id, &target.name);
        if let Some(attributes) = self.cached_entry(server, target).await {
            return Ok((attributes, Vec::new()));
        }
        if self.cached_absence(server, target).await {
            return Err(RequestError::local(Status::NotFound));
        }
        let (server, reply) = match self.ask(server, operation, &request).await {
            Err(request_error) if request_error.status() == Status::Elsewhere => {
                let file = request_error.id();
                let home = self.home_of(file)?;
                let at_home = if operation == Operation::Stat { Operation::StatId } else { Operation::LookId };
                (home, self.ask(home, at_home, &FileRequest { file }).await?)
            }
            other => (server, other?),
        };
        let reply = EntryReply::from_bytes(&reply.params)
            .map_err(|malformed| RequestError::malformed(operation, server, malformed))?;
        if reply.attributes.link_count == 0 && reply.attributes.kind == Kind::File {
            // The name was removed between the two round trips: it is to be asked for again.
            return Err(RequestError::local(Status::StaleFile));
        }
        if reply.attributes.kind == Kind::Symlink && reply.target.is_empty() {
            return Err(RequestError::Local(
                Status::BadMessage,
                format!("server {server} sent a symbolic link without target"),
            ));
        }
        Ok((reply.attributes, reply.target.to_vec()))
    }

    /// Keeps a directory that a server has just shown; unless directories have moved since its path was resolved, or
    /// all was forgotten.
    pub(crate) fn remember(&self, target: &EntryTarget, attributes: &Attributes) -> Rc<Directory> {
        let mut cache = self.cache.borrow_mut();
        let is_current = target.known == self.tree_known() && cache.has_found(&target.parent);
        if !target.parent.has_path() {
            let directory = cache.by_id(attributes.id);
            if is_current {
                cache.note_rights(&directory, Rights::of(attributes));
            }
            return directory;
        }
        let known = cache.get(&target.parent.child_path(&target.name));
        let known = known.filter(|known| known.id == attributes.id && known.lies_directly_in(&target.parent));
        let directory = known.unwrap_or_else(|| target.parent.child(&target.name, attributes.id));
        cache.note_rights(&directory, Rights::of(attributes));
        if is_current {
            cache.insert(directory.clone());
        }
        directory
    }

    /// Forgets what was known of a name and beneath it: it leads elsewhere now.
    pub(crate) fn forget_entry(&self, target: &EntryTarget) {
        if !target.parent.has_path() {
            return;
        }
        let mut cache = self.cache.borrow_mut();
        if let Some(directory) = cache.get(&target.parent.child_path(&target.name)) {
            cache.forget(directory.id);
        }
    }

    /// `Stat` or `Look` of a directory that a path ended at: by its name, so that the path is known to hold.
    pub(crate) async fn stat_directory(
        &self,
        directory: &Directory,
        operation: Operation,
    ) -> std::result::Result<Attributes, RequestError> {
        let Some(parent) = directory.parent.clone() else {
            return match operation {
                Operation::Stat => self.stat_id(directory.id).await,
                _ => self.look_id(directory.id).await,
            };
        };
        let name = directory.name().to_vec();
        let entry = EntryTarget { parent, name, must_be_directory: true, known: directory.known.get() };
        let (attributes, _) = self.look_up(&entry, operation).await?;
        match attributes.id == directory.id {
            true => Ok(attributes),
            false => Err(RequestError::local(Status::StaleDirectory)),
        }
    }

    /// The directory that a path names, symbolic links followed.
    pub(crate) async fn directory_at(
        &self,
        target: &Target,
    ) -> std::result::Result<Resolution<Rc<Directory>>, RequestError> {
        let entry = match target {
            Target::Itself(directory) => return Ok(Resolution::Done(directory.clone())),
            Target::Entry(entry) => entry,
        };
        Ok(match self.step(&entry.parent, &entry.name, entry.known).await? {
            Component::Directory(directory) => {
                directory.note_known(entry.known);
                Resolution::Done(directory)
            }
            Component::Symlink(link) => Resolution::Follow(link),
        })
    }
}

/// A failure, and whether resolving the path again may help.
struct Outdated {
    request_error: RequestError,
    again: bool,
}

impl Outdated {
    fn no(request_error: RequestError) -> Outdated {
        Outdated { request_error, again: false }
    }

    /// For whoever is not to try again: that something was out of date is nothing that a caller could make use of.
    fn into_error(self) -> RequestError {
        match self.request_error.status() {
            Status::StaleDirectory if self.again => {
                let words = "others moved or removed directories on the path each time it was walked: try again";
                RequestError::Local(Status::TimedOut, words.to_owned())
            }
            _ => self.request_error,
        }
    }
}

/// The component at or after `position`, and the position after it.
fn next_component(path: &[u8], position: usize) -> Option<(&[u8], usize)> {
    let start = position + path[position..].iter().position(|byte| *byte != b'/')?;
    let size = path[start..].iter().position(|byte| *byte == b'/').unwrap_or(path.len() - start);
    Some((&path[start..start + size], start + size))
}

/// Errors: `NotFound` for an empty path, `NameTooLong` from `PATH_SIZE_MAX` bytes on, as POSIX has it.
fn check_path(path: &[u8]) -> Result<()> {
    match path.len() {
        0 => Err(Error::new(Status::NotFound, "the path is empty")),
        1..PATH_SIZE_MAX => Ok(()),
        _ => Err(Error::new(Status::NameTooLong, format!("the path is longer than {} bytes", PATH_SIZE_MAX - 1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: paths fall into components whatever slashes they have.
    #[test]
    fn components() {
        let split = |path: &[u8]| {
            let mut parts = Vec::new();
            let mut position = 0;
            while let Some((component, next)) = next_component(path, position) {
                parts.push(String::from_utf8_lossy(component).into_owned());
                position = next;
            }
            parts.join(" ")
        };
        assert_eq!(split(b"/a//b/./c/"), "a b . c");
        assert_eq!(split(b"a"), "a");
        assert_eq!(split(b"///"), "");
        assert_eq!(split(b""), "");
    }

    /// Goal: empty and overlong paths get the errors of POSIX.
    #[test]
    fn path_limits() {
        assert_eq!(check_path(b"").expect_err("empty").status, Status::NotFound);
        assert_eq!(check_path(&[b'a'; PATH_SIZE_MAX]).expect_err("long").status, Status::NameTooLong);
        assert_eq!(check_path(&[b'a'; PATH_SIZE_MAX - 1]), Ok(()));
    }
}
