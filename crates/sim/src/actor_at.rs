//! The same operations by identity, as a mount makes them, on names directly in the root, whose id nothing changes: now
//! on behalf of the client's own user, now of another one who may just as much.

use crate::actor::{Client, listed, looked, seen};
use crate::history::{Action, Outcome};
use client::{Credentials, FileId, FileSystem, Groups, Kind};
use wire::messages::rename_flags;

/// Entries that are asked for at a time.
const PAGE: usize = 5;

impl Client {
    /// Every other operation that can be had by identity. `None`: this one is to be done by its path.
    pub async fn names_at(&self, action: &Action, path: &[u8]) -> Option<client::Result<Outcome>> {
        let name = path.strip_prefix(b"/").unwrap_or(path);
        if name.contains(&b'/') || !self.by_identity.replace(!self.by_identity.get()) {
            return None;
        }
        let root = Credentials { groups: Groups::new(&[5, 6]), ..Credentials::new(0, 0) };
        let acts_for_other = self.acting.replace(!self.acting.get());
        let file_system = if acts_for_other { self.file_system.acting_as(root, 0) } else { self.file_system.clone() };
        self.by_id(&file_system, action, name).await
    }

    async fn by_id(&self, file_system: &FileSystem, action: &Action, name: &[u8]) -> Option<client::Result<Outcome>> {
        const ROOT: FileId = FileId::ROOT;
        Some(match action {
            Action::Unlink { .. } => file_system.unlink_at(ROOT, name).await.map(|_| Outcome::Done),
            Action::Rename { to, no_replace, exchange, .. } if to.parts.len() == 1 => {
                let flag = |wanted: bool, flag: u32| if wanted { flag } else { 0 };
                let flags = flag(*no_replace, rename_flags::NO_REPLACE) | flag(*exchange, rename_flags::EXCHANGE);
                let to = to.name().as_bytes();
                file_system.rename_at(ROOT, name, ROOT, to, flags).await.map(|_| Outcome::Done)
            }
            Action::MakeDirectory { mode, .. } => {
                file_system.mkdir_at(ROOT, name, *mode).await.map(|attributes| seen(&attributes))
            }
            Action::RemoveDirectory { .. } => file_system.rmdir_at(ROOT, name).await.map(|_| Outcome::Done),
            Action::MakeSymlink { target, .. } => {
                file_system.symlink_at(target.as_bytes(), ROOT, name).await.map(|attributes| seen(&attributes))
            }
            Action::MakeNode { mode, .. } => {
                let made = file_system.make_node_at(ROOT, name, Kind::Fifo, *mode, 0).await;
                made.map(|attributes| seen(&attributes))
            }
            Action::Stat { .. } => file_system.lookup_at(ROOT, name).await.map(|attributes| looked(&attributes)),
            Action::List { by_server: false, directory: None } => list(file_system).await,
            _ => return None,
        })
    }
}

async fn list(file_system: &FileSystem) -> client::Result<Outcome> {
    let mut entries = Vec::new();
    let mut listing = file_system.open_directory_id(FileId::ROOT).await?;
    let mut position = 0;
    loop {
        // As kernels do, which ask for attributes in some pages.
        let page = file_system.entries_from(&mut listing, position, PAGE, position % 2 == 1).await?;
        let Some(last) = page.last() else { return Ok(Outcome::Entries(entries)) };
        position = last.next_cursor;
        entries.extend(page.iter().map(listed));
    }
}
