//! Pipes, sockets and devices: nodes without contents, which are kept and shown as any inode. What they do is the business of
//! the kernel behind a mount; here they can't be opened (`NoDevice`).

use crate::error::{Result, Trouble};
use crate::file::OpenHow;
use crate::filesystem::FileSystem;
use crate::names::ask_to_make;
use crate::resolve::{Step, Target};
use crate::rights::Wanted;
use crate::servers::Servers;
use wire::messages::MakeNodeRequest;
use wire::{Attributes, FileId, Kind, Operation, Status};

type Attempt<R> = std::result::Result<R, Trouble>;

const MODE_BITS: u32 = 0o7777;

impl FileSystem {
    /// Makes an empty file, a pipe, a socket or a device, as mknod(2). `mode` is taken before the umask; `device` is the
    /// number of a device as Linux packs it into 32 bits, and counts for nothing else.
    ///
    /// Errors: `Exists`, `NotFound`; `NotPermitted` for a directory, and for a device unless the user is root; `Invalid` for a
    /// symbolic link, and others.
    pub async fn make_node(&self, path: &[u8], kind: Kind, mode: u32, device: u32) -> Result<Attributes> {
        check(kind).map_err(|trouble| trouble.about(path))?;
        if kind == Kind::File {
            let file = self.open(path, &of_file(mode)).await?;
            self.close(&file).await;
            return self.stat_file(&file).await;
        }
        self.servers.on_path(path, async |target| make(&self.servers, target, kind, mode, device).await).await
    }

    /// The same in a directory that is known by its id.
    pub async fn make_node_at(
        &self,
        parent: FileId,
        name: &[u8],
        kind: Kind,
        mode: u32,
        device: u32,
    ) -> Result<Attributes> {
        check(kind).map_err(|trouble| trouble.about(name))?;
        if kind == Kind::File {
            let (file, attributes) = self.open_at(parent, name, &of_file(mode)).await?;
            self.close(&file).await;
            return Ok(attributes);
        }
        let make = async |target: Target| match make(&self.servers, &target, kind, mode, device).await? {
            Step::Done(attributes) => Ok(attributes),
            Step::Follow(_) => unreachable!("what is made is no link"),
        };
        self.on_place((parent, name), make).await
    }
}

fn of_file(mode: u32) -> OpenHow {
    OpenHow { create: true, exclusive: true, mode, ..OpenHow::default() }
}

fn check(kind: Kind) -> Attempt<()> {
    match kind {
        Kind::Directory => Err(Trouble::local(Status::NotPermitted)),
        Kind::Symlink => Err(Trouble::local(Status::Invalid)),
        _ => Ok(()),
    }
}

async fn make(servers: &Servers, target: &Target, kind: Kind, mode: u32, device: u32) -> Attempt<Step<Attributes>> {
    let Target::Entry(entry) = target else { return Err(Trouble::local(Status::Exists)) };
    if entry.must_be_directory {
        return Err(Trouble::local(Status::NotFound));
    }
    servers.permit_change(entry, Wanted::Absent).await?;
    let group = servers.inherited_group(&entry.parent).await?;
    let device = if kind.is_device() { device } else { 0 };
    let mode = mode & MODE_BITS & !servers.umask();
    let request = MakeNodeRequest { entry: entry.entry()?, kind, mode, device, group };
    ask_to_make(servers, entry, Operation::MakeNode, &request).await.map(Step::Done)
}
