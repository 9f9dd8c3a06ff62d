//! Names: look-up, making and removing. Every request is about a directory's number and a name in it, and goes straight
//! to the server of that name.

use crate::attributes::attr_of;
use crate::errno::Errno;
use crate::held::OpenInode;
use crate::keeping::Beginning;
use crate::keeping::Validity;
use crate::open_file::{OPEN_FLAGS, OpenFile, how_to_open};
use crate::protocol::{Create, Header, Input, Link, Mkdir, Mknod, Rename, Rename2};
use crate::serve::{Answer, Handled, Work, close_all, file_of};
use client::{Attributes, Error, Kind, OpenHow, Status};
use wire::FileId;

/// How often something is looked up that is replaced each time before it can be held.
const HOLD_COUNT_MAX: usize = 64;

/// What became of a directory matters to no caller that names something in it: nothing is there.
fn in_directory(error: Error) -> Errno {
    match error.status {
        Status::StaleDirectory => Errno(libc::ENOENT),
        _ => error.into(),
    }
}

/// What mknod(2) makes beside files.
fn node_kind_of(mode: u32) -> Result<Kind, Errno> {
    match mode & libc::S_IFMT {
        libc::S_IFIFO => Ok(Kind::Fifo),
        libc::S_IFSOCK => Ok(Kind::Socket),
        libc::S_IFCHR => Ok(Kind::CharacterDevice),
        libc::S_IFBLK => Ok(Kind::BlockDevice),
        _ => Err(Errno(libc::EINVAL)),
    }
}

impl Work<'_> {
    fn entry(&mut self, attributes: &Attributes, validity: Validity) -> Handled {
        let attr = attr_of(attributes);
        if attributes.kind == client::Kind::Directory {
            self.mounted.directories.note(attr.node);
        }
        self.output.entry(&attr, validity);
        Ok(Answer::Output)
    }

    /// What was just made in a directory. Its attributes the kernel takes in whatever it was told meanwhile.
    async fn made(&mut self, parent: FileId, attributes: &Attributes, beginning: Option<Beginning>) -> Handled {
        let entry = self.entry_validity(parent, beginning).await;
        self.entry(attributes, Validity { entry, attributes: 0 })
    }

    fn done(&mut self) -> Handled {
        Ok(Answer::Output)
    }

    pub async fn look_up(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let (parent, name) = (file_of(header.node), input.name()?);
        if let Some(errno) = self.mounted.failed.take(header.pid, parent, name) {
            return Err(errno);
        }
        let beginning = self.begin_keeping();
        let found = self.for_caller(header, async |files| files.lookup_at(parent, name).await).await;
        if let Err(error) = &found
            && error.status == Status::NotFound
        {
            let valid_ns = self.entry_validity(parent, beginning).await;
            if valid_ns > 0 {
                self.output.absent(valid_ns);
                return Ok(Answer::Output);
            }
        }
        let found = found.map_err(|error| {
            let was_silent = matches!(error.status, Status::TimedOut | Status::Unreachable);
            let errno = in_directory(error);
            if was_silent {
                self.mounted.failed.note(header.pid, parent, name, errno);
            }
            errno
        })?;
        if found.kind != Kind::Directory && self.mounted.held.take_misled(header.pid) {
            let held = self.hold(header, (parent, name), found).await.map_err(in_directory)?;
            return self.entry(&held, Validity::NONE);
        }
        let entry = self.entry_validity(parent, beginning).await;
        let attributes = self.attribute_validity(beginning, &found);
        self.entry(&found, Validity { entry, attributes })
    }

    /// Holds what was found at a name for whoever was told ESTALE before (`held.rs`). What is gone already is looked up
    /// again.
    async fn hold(&self, header: &Header, place: (FileId, &[u8]), found: Attributes) -> client::Result<Attributes> {
        let (mut found, (parent, name)) = (found, place);
        for _ in 0..HOLD_COUNT_MAX {
            if found.kind == Kind::Directory {
                break;
            }
            match self.take_hold(&found).await {
                Ok((held, attributes)) => {
                    close_all(self.files, self.mounted.held.hold(held).as_slice()).await;
                    return Ok(attributes);
                }
                Err(error) if error.status == Status::StaleFile => {}
                Err(error) => return Err(error),
            }
            found = self.for_caller(header, async |files| files.lookup_at(parent, name).await).await?;
        }
        Ok(found)
    }

    /// Opens a file, and learns what there is to know of anything else but directories.
    async fn take_hold(&self, found: &Attributes) -> client::Result<(OpenInode, Attributes)> {
        let id = found.id;
        match found.kind {
            // Whoever asks shows his rights when he opens it himself.
            Kind::File => {
                let opened = self.run(async |files| files.open_id(id, &OpenHow::reading(), 0).await).await;
                opened.map(|(file, attributes)| (OpenInode::File(file), attributes))
            }
            Kind::Symlink => {
                let target = self.run(async |files| files.readlink_id(id).await).await?;
                Ok((OpenInode::Node(Box::new((found.clone(), target))), found.clone()))
            }
            _ => Ok((OpenInode::Node(Box::new((found.clone(), Vec::new()))), found.clone())),
        }
    }

    pub async fn make_directory(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let Mkdir { mode, .. } = Mkdir::parse(&mut input)?;
        let (parent, name) = (file_of(header.node), input.name()?);
        let beginning = self.begin_keeping();
        let made = self.for_caller(header, async |files| files.mkdir_at(parent, name, mode & 0o7777).await).await;
        let made = made.map_err(in_directory)?;
        self.made(parent, &made, beginning).await
    }

    pub async fn make_symlink(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let (parent, name) = (file_of(header.node), input.name()?);
        let target = input.name()?;
        let beginning = self.begin_keeping();
        let made = self.for_caller(header, async |files| files.symlink_at(target, parent, name).await).await;
        let made = made.map_err(in_directory)?;
        self.made(parent, &made, beginning).await
    }

    /// mknod(2): of a file it is a create without an open.
    pub async fn make_node(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let Mknod { mode, device, .. } = Mknod::parse(&mut input)?;
        let (parent, name) = (file_of(header.node), input.name()?);
        let beginning = self.begin_keeping();
        if mode & libc::S_IFMT != libc::S_IFREG {
            let kind = node_kind_of(mode)?;
            let make =
                async |files: &client::FileSystem| files.make_node_at(parent, name, kind, mode & 0o7777, device).await;
            let made = self.for_caller(header, make).await.map_err(in_directory)?;
            return self.made(parent, &made, beginning).await;
        }
        let how = client::OpenHow { exclusive: true, create: true, mode: mode & 0o7777, ..Default::default() };
        let make = async |files: &client::FileSystem| {
            let (file, attributes) = files.open_at(parent, name, &how).await?;
            files.close(&file).await;
            Ok(attributes)
        };
        let made = self.for_caller(header, make).await.map_err(in_directory)?;
        self.made(parent, &made, beginning).await
    }

    pub async fn create(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let request = Create::parse(&mut input)?;
        let (parent, name) = (file_of(header.node), input.name()?);
        let (mut how, _) = how_to_open(request.flags)?;
        how.create = true;
        how.exclusive = request.flags & libc::O_EXCL as u32 != 0;
        how.mode = request.mode & 0o7777;
        let beginning = self.begin_keeping();
        let made = self.for_caller(header, async |files| files.open_at(parent, name, &how).await).await;
        let (file, attributes) = made.map_err(in_directory)?;
        let entry = self.entry_validity(parent, beginning).await;
        let handle = self.mounted.files.insert(OpenFile::new(file, self.mounted.callers.of(header)));
        self.output.entry(&attr_of(&attributes), Validity { entry, attributes: 0 }).opened(handle, OPEN_FLAGS);
        Ok(Answer::Output)
    }

    /// A file without a name.
    pub async fn make_temporary(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let request = Create::parse(&mut input)?;
        let directory = file_of(header.node);
        let (mut how, _) = how_to_open(request.flags)?;
        how.temporary = true;
        how.exclusive = request.flags & libc::O_EXCL as u32 != 0;
        how.mode = request.mode & 0o7777;
        let made = self.for_caller(header, async |files| files.open_temporary_at(directory, &how).await).await;
        let (file, attributes) = made.map_err(in_directory)?;
        let handle = self.mounted.files.insert(OpenFile::new(file, self.mounted.callers.of(header)));
        self.output.entry(&attr_of(&attributes), Validity::NONE).opened(handle, OPEN_FLAGS);
        Ok(Answer::Output)
    }

    pub async fn unlink(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let (parent, name) = (file_of(header.node), input.name()?);
        let removed = self.for_caller(header, async |files| files.unlink_at(parent, name).await).await;
        removed.map_err(in_directory)?;
        self.done()
    }

    pub async fn remove_directory(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let (parent, name) = (file_of(header.node), input.name()?);
        let removed = self.for_caller(header, async |files| files.rmdir_at(parent, name).await).await;
        removed.map_err(in_directory)?;
        self.done()
    }

    pub async fn rename(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let Rename { new_parent } = Rename::parse(&mut input)?;
        self.rename_to(header, input, new_parent, 0).await
    }

    pub async fn rename_with_flags(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let request = Rename2::parse(&mut input)?;
        let known =
            [(libc::RENAME_NOREPLACE, client::RENAME_NO_REPLACE), (libc::RENAME_EXCHANGE, client::RENAME_EXCHANGE)];
        let (mut flags, mut rest) = (0, request.flags);
        for (theirs, ours) in known {
            flags |= if rest & theirs != 0 { ours } else { 0 };
            rest &= !theirs;
        }
        if rest != 0 {
            return Err(Errno(libc::EINVAL));
        }
        self.rename_to(header, input, request.new_parent, flags).await
    }

    async fn rename_to(&mut self, header: &Header, mut input: Input<'_>, new_parent: u64, flags: u32) -> Handled {
        let (parent, new_parent) = (file_of(header.node), file_of(new_parent));
        let (name, new_name) = (input.name()?, input.name()?);
        let moves = self.files.directory_moves();
        let renamed = self
            .for_caller(header, async |files| files.rename_at(parent, name, new_parent, new_name, flags).await)
            .await;
        renamed.map_err(in_directory)?;
        if self.files.directory_moves() != moves {
            // Some servers may still show the times of before.
            self.mounted.keeping.give_back(self.files.reactor()).await;
        } else if parent != new_parent
            && !self.may_keep_beneath(parent).await | !self.may_keep_beneath(new_parent).await
        {
            // What the kernel keeps has come to where rights have to be asked for, or away from there.
            self.mounted.keeping.forget_entries();
        }
        self.done()
    }

    pub async fn link(&mut self, header: &Header, mut input: Input<'_>) -> Handled {
        let Link { node } = Link::parse(&mut input)?;
        let (parent, name, file) = (file_of(header.node), input.name()?, file_of(node));
        let beginning = self.begin_keeping();
        let linked = self
            .for_caller(header, async |files| {
                files.link_id(file, parent, name).await?;
                files.stat_id(file).await
            })
            .await;
        let linked = linked.map_err(in_directory)?;
        self.made(parent, &linked, beginning).await
    }

    pub async fn read_link(&mut self, header: &Header) -> Handled {
        let file = file_of(header.node);
        let target = match self.run(async |files| files.readlink_id(file).await).await {
            Err(error) if error.status == Status::StaleFile => match self.mounted.held.of_gone(file) {
                Some((_, target)) => target,
                None => return Err(error.into()),
            },
            other => other?,
        };
        self.output.bytes(&target);
        Ok(Answer::Output)
    }
}
