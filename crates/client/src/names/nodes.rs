//! Pipes, sockets and devices: names with attributes, which the kernel gives a meaning to where they are opened.

use crate::error::{Attempt, Error, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::names::resolve::{Resolution, Target};
use crate::names::rights::Wanted;
use crate::names::{MODE_BITS, ask_to_make};
use crate::servers::Servers;
use wire::messages::MakeNodeRequest;
use wire::{Attributes, FileId, Kind, Operation, Status};

/// What is to be made.
#[derive(Clone, Copy)]
struct Node {
    kind: Kind,
    mode: u32,
    device: u32,
}

impl Node {
    /// `mode` before the umask. Errors: `Invalid` for a kind that is made in other ways.
    fn new(servers: &Servers, kind: Kind, mode: u32, device: u32) -> Result<Node> {
        if !kind.is_special() {
            return Err(Error::new(Status::Invalid, "only pipes, sockets and devices are made as nodes"));
        }
        let device = if kind.is_device() { device } else { 0 };
        Ok(Node { kind, mode: mode & MODE_BITS & !servers.umask(), device })
    }
}

impl FileSystem {
    /// Makes a pipe, socket or device. `mode` is taken before the umask; `device` is the number of a device as the
    /// kernel writes it in 32 bits. It can be opened through a mount alone.
    ///
    /// Errors: `Exists`; `NotPermitted` for a device that another than the superuser makes; `Invalid` for other kinds.
    pub async fn make_node(&self, path: &[u8], kind: Kind, mode: u32, device: u32) -> Result<Attributes> {
        let node = Node::new(&self.servers, kind, mode, device)?;
        self.servers.on_path(path, async |target| make_node(&self.servers, target, node).await).await
    }

    /// The same by name in a directory.
    pub async fn make_node_at(
        &self,
        parent: FileId,
        name: &[u8],
        kind: Kind,
        mode: u32,
        device: u32,
    ) -> Result<Attributes> {
        let node = Node::new(&self.servers, kind, mode, device)?;
        let made = async |target: Target| match make_node(&self.servers, &target, node).await? {
            Resolution::Done(attributes) => Ok(attributes),
            Resolution::Follow(_) => unreachable!("what is made is not followed"),
        };
        self.on_place((parent, name), made).await
    }
}

async fn make_node(servers: &Servers, target: &Target, node: Node) -> Attempt<Resolution<Attributes>> {
    let Target::Entry(entry) = target else { return Err(RequestError::local(Status::Exists)) };
    if entry.must_be_directory {
        return Err(RequestError::local(Status::NotFound));
    }
    servers.permit_change(entry, Wanted::Absent).await?;
    let group = servers.inherited_group(&entry.parent).await?;
    let Node { kind, mode, device } = node;
    let request = MakeNodeRequest { entry: entry.entry()?, kind, mode, device, group };
    ask_to_make(servers, entry, Operation::MakeNode, &request).await.map(Resolution::Done)
}
