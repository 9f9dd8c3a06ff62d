//! Repairs, one fault at a time. A server does its part only if what is to be repaired is still as it was seen.

use super::fault::{Fault, FaultyName, orphan_name};
use crate::error::{Error, Result};
use crate::filesystem::{FileSystem, about_server};
use wire::messages::{RepairRequest, RepairStep};
use wire::{FileId, Kind, Name, Operation, Status};

/// Where inodes without a name go.
pub const LOST_AND_FOUND: &str = "/lost+found";
const LOST_AND_FOUND_MODE: u32 = 0o700;

impl FileSystem {
    /// Repairs a fault; returns what was done, in words. Errors: `NotSupported` where no repair is known, `StaleFile`
    /// when something changed since the check, and what concerns the servers.
    pub async fn repair(&self, fault: &Fault) -> Result<String> {
        match fault {
            Fault::NameWithoutInode(name) | Fault::MisplacedName(name) | Fault::NameInNothing(name) => {
                self.remove_name(name).await?;
            }
            Fault::WrongParent { id, parent, .. } => {
                self.repair_step(self.home_of(*id)?, RepairStep::SetParent { directory: *id, parent: *parent }).await?;
            }
            Fault::StaleTombstone { server, id } => {
                self.repair_step(*server, RepairStep::LiftTombstone { directory: *id }).await?;
            }
            Fault::Circle { name, .. } => self.remove_name(name).await?,
            Fault::WrongKind { name, kind } => {
                self.remove_name(name).await?;
                self.put_name(name.parent, &name.name, (name.id, *kind)).await?;
            }
            Fault::Orphan { id, kind, link_count } => self.adopt(*id, *kind, *link_count).await?,
            Fault::WrongLinkCount { id, link_count, names } => self.set_links(*id, *link_count, *names).await?,
            Fault::DirectoryWithNames { id, names } => {
                let kept = usize::from(*id != FileId::ROOT);
                for name in &names[kept..] {
                    self.remove_name(name).await?;
                }
            }
            Fault::ChunksWithoutFile { server, file, .. } => {
                self.repair_step(*server, RepairStep::FreeChunks { file: *file }).await?;
            }
            Fault::UnknownHolder { server, file, announced } => {
                let step = RepairStep::AddHolder { file: *file, server: *server, announced: *announced };
                self.repair_step(self.home_of(*file)?, step).await?;
            }
            Fault::SizeTooSmall { file, size, end } => {
                let step = RepairStep::SetSize { file: *file, from: *size, to: *end };
                self.repair_step(self.home_of(*file)?, step).await?;
            }
            Fault::MisplacedInode { .. } | Fault::DamagedChunk { .. } => {
                return Err(Error::new(Status::NotSupported, fault.remedy()));
            }
        }
        Ok(fault.remedy())
    }

    async fn repair_step(&self, server: u32, step: RepairStep<'_>) -> Result<()> {
        let reply = self.servers.ask(server, Operation::Repair, &RepairRequest { step }).await;
        reply.map(|_| ()).map_err(|request_error| about_server(request_error, server))
    }

    fn home_of(&self, file: FileId) -> Result<u32> {
        self.servers.home_of(file).map_err(|request_error| request_error.about_file(file))
    }

    async fn remove_name(&self, found: &FaultyName) -> Result<()> {
        let name = checked(&found.name)?;
        self.repair_step(found.server, RepairStep::RemoveName { parent: found.parent, name, id: found.id }).await
    }

    async fn put_name(&self, parent: FileId, name: &[u8], (id, kind): (FileId, Kind)) -> Result<()> {
        let server = self.cluster().dentry_server(parent, name);
        self.repair_step(server, RepairStep::PutName { parent, name: checked(name)?, id, kind }).await
    }

    async fn set_links(&self, file: FileId, from: u32, to: u32) -> Result<()> {
        self.repair_step(self.home_of(file)?, RepairStep::SetLinks { file, from, to }).await
    }

    /// Gives an inode a name in lost+found, which is made when it is missing.
    async fn adopt(&self, id: FileId, kind: Kind, link_count: u32) -> Result<()> {
        match self.mkdir(LOST_AND_FOUND.as_bytes(), LOST_AND_FOUND_MODE).await {
            Ok(_) => {}
            Err(error) if error.status == Status::Exists => {}
            Err(error) => return Err(error),
        }
        let parent = self.directory(LOST_AND_FOUND.as_bytes()).await?;
        self.put_name(parent, orphan_name(id).as_bytes(), (id, kind)).await?;
        if kind != Kind::Directory && link_count != 1 {
            self.set_links(id, link_count, 1).await?;
        }
        Ok(())
    }
}

fn checked(name: &[u8]) -> Result<Name<'_>> {
    Name::new(name).map_err(|_| Error::new(Status::BadMessage, "a server told a name that can't be one"))
}
