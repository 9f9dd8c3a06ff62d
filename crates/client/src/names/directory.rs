//! Listing directories: every server holds a share of the names, and all are asked at once.

use crate::error::{Attempt, Error, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::names::directory_cache::Directory;
use crate::names::resolve::{Resolution, Target};
use crate::servers::Servers;
use crate::servers::join::join_all;
use std::rc::Rc;
use wire::credentials::access;
use wire::limits::LISTING_PAGE_SIZE_MAX;
use wire::messages::{Ancestors, KNOWN_UNCHECKED, ListingEntry, ListingReply, ReadDirectoryRequest};
use wire::{Attributes, Decode, Decoder, FileId, Kind, Operation, Status};

/// Bytes of entries asked for in one page, of each server.
const PAGE_SIZE: u32 = 128 << 10;
const _: () = assert!(PAGE_SIZE <= LISTING_PAGE_SIZE_MAX);

/// Entries whose attributes are fetched at the same time.
pub(crate) const COMPLETE_COUNT_MAX: usize = 64;

/// One name in a directory.
#[derive(Debug, Clone, PartialEq)]
pub struct DirectoryEntry {
    pub name: Vec<u8>,
    pub id: FileId,
    pub kind: Kind,
    /// When asked for and the inode is on the server that listed it.
    pub attributes: Option<Box<Attributes>>,
    /// Whether the size in `attributes` is the last word; else `FileSystem::stat_entry` asks for it.
    pub size_final: bool,
    /// The server that listed it.
    pub server: u32,
    /// Where that server's share goes on after this entry.
    pub next_cursor: u64,
}

/// How far the share of one server was listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListingShare {
    pub server: u32,
    pub cursor: u64,
    pub end: bool,
}

/// A listing under way. It holds no connection: dropping it needs no message.
#[derive(Debug, Clone)]
pub struct DirectoryStream {
    directory: FileId,
    path: Vec<u8>,
    shares: Vec<ListingShare>,
    with_attributes: bool,
    /// The path that the directory was resolved through, until something was listed.
    ancestors: Ancestors,
    known: u64,
}

impl DirectoryStream {
    /// The directory's id.
    pub fn id(&self) -> FileId {
        self.directory
    }

    /// Whether all servers have listed everything.
    pub fn is_at_end(&self) -> bool {
        self.shares.iter().all(|share| share.end)
    }

    /// Starts over.
    pub fn rewind(&mut self) {
        for share in &mut self.shares {
            (share.cursor, share.end) = (0, false);
        }
    }
}

impl FileSystem {
    /// Lists a directory, with attributes, if wanted, where they are at hand. `on_entry` gets every entry, in no order,
    /// and ends the listing by returning false. `.` and `..` are not listed.
    ///
    /// Errors: `NotFound`, `NotDirectory`, and what concerns the servers.
    pub async fn read_directory(
        &self,
        path: &[u8],
        with_attributes: bool,
        on_entry: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<()> {
        let mut stream = self.open_directory(path, with_attributes).await?;
        self.drain(&mut stream, on_entry).await
    }

    /// Lists the share of one server.
    pub async fn read_directory_server(
        &self,
        path: &[u8],
        server: u32,
        with_attributes: bool,
        on_entry: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<()> {
        let mut stream = self.open_directory_server(path, server, with_attributes).await?;
        self.drain(&mut stream, on_entry).await
    }

    async fn drain(
        &self,
        stream: &mut DirectoryStream,
        on_entry: &mut dyn FnMut(&DirectoryEntry) -> bool,
    ) -> Result<()> {
        while !stream.is_at_end() {
            for entry in self.next_page(stream).await? {
                if !on_entry(&entry) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Starts a listing to be read page by page with `next_page`.
    pub async fn open_directory(&self, path: &[u8], with_attributes: bool) -> Result<DirectoryStream> {
        let servers = (0..self.server_count()).collect();
        self.start_listing(path, servers, with_attributes).await
    }

    /// Starts a listing of the share of one server. Errors: `Invalid` for a server that there is not.
    pub async fn open_directory_server(
        &self,
        path: &[u8],
        server: u32,
        with_attributes: bool,
    ) -> Result<DirectoryStream> {
        if server >= self.server_count() {
            let words = format!("there is no server {server} in a cluster of {}", self.server_count());
            return Err(RequestError::Local(Status::Invalid, words).about(path));
        }
        self.start_listing(path, vec![server], with_attributes).await
    }

    async fn start_listing(&self, path: &[u8], servers: Vec<u32>, with_attributes: bool) -> Result<DirectoryStream> {
        let directory = self.listable(path).await?;
        let shares = servers.into_iter().map(|server| ListingShare { server, cursor: 0, end: false }).collect();
        let (ancestors, known) = (directory.ancestors.clone(), directory.known.get());
        let path = path.to_vec();
        Ok(DirectoryStream { directory: directory.id, path, shares, with_attributes, ancestors, known })
    }

    /// The next page of every server that has more. Empty pages are possible before the end.
    pub async fn next_page(&self, stream: &mut DirectoryStream) -> Result<Vec<DirectoryEntry>> {
        let mut retries = self.servers.retries();
        while retries.again().await {
            match self.try_page(stream).await {
                Err(request_error) if goes_away(&request_error) => {}
                other => return other.map_err(|request_error| request_error.about(&stream.path)),
            }
            // Removed, or the cached id was out of date. Before anything was listed the path is looked up again, and
            // again if that directory is removed too; later, what was removed is empty.
            self.servers.cache.borrow_mut().forget(stream.directory);
            if stream.shares.iter().any(|share| share.cursor != 0 || share.end) {
                stream.shares.iter_mut().for_each(|share| share.end = true);
                return Ok(Vec::new());
            }
            let directory = self.listable(&stream.path).await?;
            stream.directory = directory.id;
            (stream.ancestors, stream.known) = (directory.ancestors.clone(), directory.known.get());
        }
        Err(RequestError::local(Status::NotFound).about(&stream.path))
    }

    async fn try_page(&self, stream: &mut DirectoryStream) -> Attempt<Vec<DirectoryEntry>> {
        let open = stream.shares.iter().filter(|share| !share.end);
        let (directory, with_attributes) = (stream.directory, stream.with_attributes);
        let place = (directory, &stream.ancestors, stream.known);
        let pages = join_all(open.map(|share| self.servers.list(place, *share, with_attributes, PAGE_SIZE))).await;
        let pages = pages.into_iter().collect::<Attempt<Vec<_>>>()?;
        // The listing has begun, and goes on wherever the directory is moved to.
        (stream.ancestors, stream.known) = (Ancestors::default(), KNOWN_UNCHECKED);
        let mut entries = Vec::with_capacity(pages.iter().map(|(_, page)| page.len()).sum());
        for (share, page) in pages {
            entries.extend(page);
            let own = stream.shares.iter_mut().find(|own| own.server == share.server);
            *own.expect("a page belongs to a share of the stream") = share;
        }
        Ok(entries)
    }

    /// Complete attributes of a listed entry: those that came with it if they are the last word, else its home's.
    pub async fn stat_entry(&self, entry: &DirectoryEntry) -> Result<Attributes> {
        match &entry.attributes {
            Some(attributes) if entry.size_final => Ok((**attributes).clone()),
            _ => self.stat_id(entry.id).await,
        }
    }

    /// The same of entries of the directory at a path. What is left without attributes is looked up by name: who is not
    /// gone, but can't be looked at, comes back by its path.
    pub async fn complete_listed(
        &self,
        directory: &[u8],
        entries: &mut [DirectoryEntry],
    ) -> Result<Vec<(Vec<u8>, Error)>> {
        self.complete_entries(entries).await?;
        let mut errors = Vec::new();
        for entry in entries.iter_mut().filter(|entry| entry.attributes.is_none()) {
            let path = [directory, b"/", &entry.name].concat();
            match self.lstat(&path).await {
                Ok(attributes) => (entry.attributes, entry.size_final) = (Some(attributes.into()), true),
                Err(error) if matches!(error.status, Status::NotFound | Status::StaleFile) => {}
                Err(error) => errors.push((path, error)),
            }
        }
        Ok(errors)
    }

    /// Fetches what is missing in listed entries, many at a time. Entries that are gone meanwhile stay as they are.
    pub async fn complete_entries(&self, entries: &mut [DirectoryEntry]) -> Result<()> {
        let mut missing: Vec<&mut DirectoryEntry> =
            entries.iter_mut().filter(|entry| entry.attributes.is_none() || !entry.size_final).collect();
        for group in missing.chunks_mut(COMPLETE_COUNT_MAX) {
            let answers = join_all(group.iter().map(|entry| self.stat_id(entry.id))).await;
            for (entry, answer) in group.iter_mut().zip(answers) {
                match answer {
                    Ok(attributes) => (entry.attributes, entry.size_final) = (Some(attributes.into()), true),
                    Err(error) if matches!(error.status, Status::NotFound | Status::StaleFile) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// The id of the directory that a path leads to.
    pub async fn directory(&self, path: &[u8]) -> Result<FileId> {
        let cached = self.servers.cache.borrow_mut().get(path.strip_prefix(b"/").unwrap_or(path));
        // Others than root find out on the way what they may not search.
        let free = self.servers.user().is_root();
        if let Some(directory) = cached.filter(|_| free && !path.is_empty()) {
            return Ok(directory.id);
        }
        let directory = self.servers.on_path(path, async |target: &Target| self.servers.directory_at(target).await);
        Ok(directory.await?.id)
    }

    /// The id of a directory that the caller may list.
    pub(crate) async fn listable(&self, path: &[u8]) -> Result<Rc<Directory>> {
        let open = async |target: &Target| {
            let directory = match self.servers.directory_at(target).await? {
                Resolution::Done(directory) => directory,
                Resolution::Follow(link) => return Ok(Resolution::Follow(link)),
            };
            if !self.servers.user().is_root() {
                self.servers.permit(&directory, access::READ).await?;
            }
            Ok(Resolution::Done(directory))
        };
        self.servers.on_path(path, open).await
    }
}

pub(crate) fn goes_away(request_error: &RequestError) -> bool {
    matches!(request_error.status(), Status::StaleDirectory | Status::NotFound | Status::StaleFile)
}

impl Servers {
    /// One page of one server's share.
    pub(crate) async fn list(
        &self,
        (directory, ancestors, known): (FileId, &Ancestors, u64),
        share: ListingShare,
        with_attributes: bool,
        size_max: u32,
    ) -> Attempt<(ListingShare, Vec<DirectoryEntry>)> {
        let operation = Operation::ReadDirectory;
        let request = ReadDirectoryRequest {
            directory,
            cursor: share.cursor,
            size_max,
            with_attributes,
            ancestors: ancestors.clone(),
            known,
        };
        let reply = self.ask(share.server, operation, &request).await?;
        let malformed = |malformed| RequestError::malformed(operation, share.server, malformed);
        let page = ListingReply::from_bytes(&reply.params).map_err(malformed)?;
        let mut input = Decoder::new(&reply.body);
        let mut entries = Vec::new();
        while input.remaining() > 0 {
            let entry = ListingEntry::decode(&mut input).map_err(malformed)?;
            entries.push(DirectoryEntry {
                name: entry.name.as_bytes().to_vec(),
                id: entry.id,
                kind: entry.kind,
                attributes: entry.attributes,
                size_final: entry.size_final,
                server: share.server,
                next_cursor: entry.next_cursor,
            });
        }
        self.reactor.note_entries(entries.len() as u64);
        if !page.end && page.next_cursor <= share.cursor {
            let words = format!("server {} lists a directory in circles", share.server);
            return Err(RequestError::Local(Status::BadMessage, words));
        }
        Ok((ListingShare { cursor: page.next_cursor, end: page.end, ..share }, entries))
    }
}
