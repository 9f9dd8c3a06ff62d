//! Files without a name: making them, and giving an open one its first name.

use crate::error::{Attempt, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::names::directory_cache::Directory;
use crate::names::resolve::{Resolution, Target};
use crate::names::rights::Wanted;
use crate::open_files::file::{File, OpenHow};
use crate::servers::Servers;
use wire::credentials::access;
use wire::messages::{LinkOpenRequest, MakeTemporaryRequest, OpenReply};
use wire::{Attributes, Decode, Kind, Operation, Slot, Status};

const MODE_BITS: u32 = 0o7777;

impl FileSystem {
    /// What `open` does with `OpenHow::temporary`: `path` is a directory.
    pub(crate) async fn open_temporary(&self, path: &[u8], how: &OpenHow) -> Result<File> {
        if !how.write || how.create || how.truncate {
            let words = "a file without a name is opened for writing, and neither created by name nor cut";
            return Err(RequestError::Local(Status::Invalid, words.to_owned()).about(path));
        }
        let make = async |target: &Target| match self.servers.directory_at(target).await? {
            Resolution::Done(directory) => make_temporary(&self.servers, &directory, how).await.map(Resolution::Done),
            Resolution::Follow(link) => Ok(Resolution::Follow(link)),
        };
        let attributes = self.servers.on_path(path, make).await?;
        Ok(File::new(&attributes, how, self.servers.session(), self.servers.sessions_lost()))
    }

    /// Gives an open file a name: its first one if it was made without, else one more.
    ///
    /// Errors: `Exists`; `NotFound` for a file that has lost its last name or was made with `exclusive`; `NotPermitted`
    /// for a directory; `StaleFile` for a file that a server has lost; and others. They name `path`.
    pub async fn link_open(&self, file: &File, path: &[u8]) -> Result<()> {
        if file.kind == Kind::Directory {
            return Err(RequestError::local(Status::NotPermitted).about(path));
        }
        self.servers.adopt(file).await;
        let linked = self.servers.on_path(path, async |target| link_open(&self.servers, file, target).await).await?;
        linked.map_err(|lost| lost.about(path))
    }
}

pub(crate) async fn make_temporary(servers: &Servers, directory: &Directory, how: &OpenHow) -> Attempt<Attributes> {
    let layout = servers.layout_wish(how)?;
    servers.permit(directory, access::WRITE).await?;
    let group = servers.inherited_group(directory).await?;
    // Nothing has to find it by name, so that any server may be its home.
    let slot = (servers.reactor.random() % u64::from(servers.cluster.slot_count)) as Slot;
    let mode = how.mode & MODE_BITS & !servers.umask();
    let linkable = !how.exclusive;
    let request = MakeTemporaryRequest { directory: directory.id, slot, mode, layout, linkable, group };
    let (server, operation) = (servers.cluster.server_of(slot), Operation::MakeTemporary);
    let reply = servers.ask(server, operation, &request).await?;
    let reply = OpenReply::from_bytes(&reply.params)
        .map_err(|malformed| RequestError::malformed(operation, server, malformed))?;
    let layout = reply.attributes.layout.check(servers.cluster.slot_count);
    layout.map_err(|malformed| RequestError::malformed(operation, server, malformed))?;
    servers.note_open(reply.attributes.id, reply.open_number, true);
    Ok(reply.attributes)
}

/// Done is also what fails because the file is gone: another look at the path is of no use then.
async fn link_open(servers: &Servers, file: &File, target: &Target) -> Attempt<Resolution<Attempt<()>>> {
    let entry = match target {
        Target::Itself(_) => return Err(RequestError::local(Status::Exists)),
        Target::Entry(entry) if entry.must_be_directory => return Err(RequestError::local(Status::NotFound)),
        Target::Entry(entry) => entry,
    };
    servers.permit_change(entry, Wanted::Absent).await?;
    let request = LinkOpenRequest { file: file.id, to: entry.entry()? };
    match servers.ask(servers.home_of(file.id)?, Operation::LinkOpen, &request).await {
        Ok(_) => servers.note_links(file.id, 1),
        Err(lost) if lost.status() == Status::StaleFile && lost.id() == file.id => {
            return Ok(Resolution::Done(Err(lost)));
        }
        Err(request_error) => return Err(request_error),
    }
    Ok(Resolution::Done(Ok(())))
}
