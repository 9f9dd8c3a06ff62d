//! Searching directories: the servers apply the tests to the entries they hold, all at once; what one of them can't
//! tell is asked of the inode's home, so that results are exact.

use crate::error::{Attempt, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::names::directory::COMPLETE_COUNT_MAX;
use crate::servers::Servers;
use crate::servers::join::join_all;
use wire::limits::LISTING_PAGE_SIZE_MAX;
use wire::messages::{Ancestors, FindReply, FindRequest, FoundEntry, KNOWN_UNCHECKED, ReadDirectoryRequest};
use wire::search::{Tests, Verdict};
use wire::{Decode, Decoder, FileId, Kind, Operation, Status};

/// Bytes of entries asked for in one page, of each server.
const PAGE_SIZE: u32 = 128 << 10;
const _: () = assert!(PAGE_SIZE <= LISTING_PAGE_SIZE_MAX);

/// What to look for.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// All of them must hold.
    pub tests: Tests,
    /// Matches other than directories are only counted.
    pub count_only: bool,
    /// The share of one server alone.
    pub server: Option<u32>,
}

/// An entry of a directory that was searched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundName {
    pub name: Vec<u8>,
    pub id: FileId,
    pub kind: Kind,
    /// Whether all tests hold; what does not match is told only of directories.
    pub matches: bool,
    /// The server that has the name.
    pub server: u32,
}

/// What one step of a search found.
#[derive(Debug, Clone, Default)]
pub struct FoundPage {
    pub entries: Vec<FoundName>,
    /// Matches that were only counted.
    pub counted: u64,
}

/// A search of one directory under way. It holds no connection: dropping it needs no message.
#[derive(Debug, Clone)]
pub struct SearchStream {
    directory: FileId,
    /// `None` of a search that was begun by id.
    path: Option<Vec<u8>>,
    search: Search,
    shares: Vec<SearchShare>,
    /// The path that the directory was resolved through, until something was found.
    ancestors: Ancestors,
    known: u64,
}

#[derive(Debug, Clone, Copy)]
struct SearchShare {
    server: u32,
    cursor: u64,
    end: bool,
}

struct Page {
    share: SearchShare,
    entries: Vec<(FoundName, Verdict)>,
    counted: u64,
}

impl SearchStream {
    /// Whether all servers have been through all of their entries.
    pub fn is_at_end(&self) -> bool {
        self.shares.iter().all(|share| share.end)
    }
}

fn about(request_error: RequestError, stream: &SearchStream) -> crate::Error {
    match &stream.path {
        Some(path) => request_error.about(path),
        None => request_error.about_file(stream.directory),
    }
}

impl FileSystem {
    /// Starts to search a directory, to be gone through with `next_found`. Errors: `NotFound`, `NotDirectory`, and
    /// `Invalid` for a server that there is not.
    pub async fn open_search(&self, path: &[u8], search: &Search) -> Result<SearchStream> {
        let shares = self.shares_of(search).map_err(|request_error| request_error.about(path))?;
        let directory = self.listable(path).await?;
        let (ancestors, known) = (directory.ancestors.clone(), directory.known.get());
        let (path, search) = (Some(path.to_vec()), search.clone());
        Ok(SearchStream { directory: directory.id, path, search, shares, ancestors, known })
    }

    /// As `open_search`, by the directory's id: without looking up a path, as for one of many processes that search a
    /// tree together and tell each other what they meet. A directory that is gone shows as empty. Errors besides:
    /// `NotFound`, and from `next_found` `Invalid` when a test is for emptiness, which takes a path.
    pub async fn open_search_id(&self, directory: FileId, search: &Search) -> Result<SearchStream> {
        let shares = self.shares_of(search).map_err(|request_error| request_error.about_file(directory))?;
        let known = self.may_list(directory).await.map_err(|request_error| request_error.about_file(directory))?;
        let ancestors = Ancestors::default();
        Ok(SearchStream { directory, path: None, search: search.clone(), shares, ancestors, known })
    }

    /// The servers that a search asks.
    fn shares_of(&self, search: &Search) -> Attempt<Vec<SearchShare>> {
        if let Some(server) = search.server.filter(|server| *server >= self.server_count()) {
            let words = format!("there is no server {server} in a cluster of {}", self.server_count());
            return Err(RequestError::Local(Status::Invalid, words));
        }
        let servers = match search.server {
            Some(server) => server..server + 1,
            None => 0..self.server_count(),
        };
        Ok(servers.map(|server| SearchShare { server, cursor: 0, end: false }).collect())
    }

    /// The next page of every server that has more, in no order. Empty pages are possible before the end.
    pub async fn next_found(&self, stream: &mut SearchStream) -> Result<FoundPage> {
        let mut retries = self.servers.retries();
        while retries.again().await {
            let pages = match self.search_page(stream).await {
                Err(request_error) if goes_away(&request_error) => None,
                Err(request_error) => return Err(about(request_error, stream)),
                Ok(pages) => Some(pages),
            };
            if let Some(pages) = pages {
                // The search has begun, and goes on wherever the directory is moved to.
                (stream.ancestors, stream.known) = (Ancestors::default(), KNOWN_UNCHECKED);
                return self.decide(stream, pages).await;
            }
            // As with listings: what was removed before anything was found is looked up again, later it is empty.
            self.servers.cache.borrow_mut().forget(stream.directory);
            let begun = stream.shares.iter().any(|share| share.cursor != 0 || share.end);
            let Some(path) = stream.path.as_ref().filter(|_| !begun) else {
                stream.shares.iter_mut().for_each(|share| share.end = true);
                return Ok(FoundPage::default());
            };
            let directory = self.listable(path).await?;
            stream.directory = directory.id;
            (stream.ancestors, stream.known) = (directory.ancestors.clone(), directory.known.get());
        }
        Err(about(RequestError::local(Status::NotFound), stream))
    }

    async fn search_page(&self, stream: &SearchStream) -> Attempt<Vec<Page>> {
        let open = stream.shares.iter().filter(|share| !share.end);
        let asked = open.map(|share| self.servers.find(stream, *share));
        join_all(asked).await.into_iter().collect()
    }

    /// Asks the homes of those entries that their servers could not decide.
    async fn decide(&self, stream: &mut SearchStream, pages: Vec<Page>) -> Result<FoundPage> {
        let mut found = FoundPage::default();
        let mut open = Vec::new();
        for page in pages {
            found.counted += page.counted;
            let own = stream.shares.iter_mut().find(|own| own.server == page.share.server);
            *own.expect("a page belongs to a share of the stream") = page.share;
            for (entry, verdict) in page.entries {
                match verdict {
                    Verdict::Undecided => open.push(entry),
                    _ => found.entries.push(entry),
                }
            }
        }
        for group in open.chunks_mut(COMPLETE_COUNT_MAX) {
            let answers =
                join_all(group.iter().map(|entry| self.matches(stream.path.as_deref(), entry, &stream.search))).await;
            for (entry, answer) in group.iter_mut().zip(answers) {
                entry.matches = answer?;
            }
        }
        for entry in open {
            match entry.kind {
                Kind::Directory => found.entries.push(entry),
                _ if !entry.matches => {}
                _ if stream.search.count_only => found.counted += 1,
                _ => found.entries.push(entry),
            }
        }
        Ok(found)
    }

    /// Whether the tests hold, by the home's word. A name that leads to something else by now is looked up again; one
    /// that is gone does not match.
    async fn matches(&self, path: Option<&[u8]>, entry: &FoundName, search: &Search) -> Result<bool> {
        let goes = |error: &crate::Error| matches!(error.status, Status::NotFound | Status::StaleFile);
        let path = path.map(|path| [path, b"/", &entry.name].concat());
        let told = self.stat_id(entry.id).await;
        // A file without names lives on while it is open, but this name leads to another one by now.
        let gone = match &told {
            Ok(attributes) => attributes.link_count == 0,
            Err(error) => goes(error),
        };
        let attributes = match (gone, &path) {
            (false, _) => told?,
            // What was found is gone, and there is nothing to look it up again by.
            (true, None) => return Ok(false),
            (true, Some(path)) => match self.stat_whole(path, false).await {
                Err(error) if goes(&error) => return Ok(false),
                other => other?,
            },
        };
        if !search.tests.hold_for_name(&entry.name, attributes.kind, attributes.id) {
            return Ok(false);
        }
        match search.tests.judge(&attributes, true) {
            Verdict::Yes => Ok(true),
            Verdict::No => Ok(false),
            Verdict::Undecided => match path {
                Some(path) => self.is_empty_directory(&path).await,
                None => {
                    let words = "whether a directory is empty is told of searches by path alone";
                    Err(RequestError::Local(Status::Invalid, words.to_owned()).about_file(entry.id))
                }
            },
        }
    }

    /// Whether a directory has no entry. One that is gone has none that matter.
    pub async fn is_empty_directory(&self, path: &[u8]) -> Result<bool> {
        let mut stream = match self.open_directory(path, false).await {
            Err(error) if error.status == Status::NotFound => return Ok(false),
            other => other?,
        };
        while !stream.is_at_end() {
            if !self.next_page(&mut stream).await?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn goes_away(request_error: &RequestError) -> bool {
    matches!(request_error.status(), Status::StaleDirectory | Status::NotFound | Status::StaleFile)
}

impl Servers {
    /// One page of one server's share.
    async fn find(&self, stream: &SearchStream, share: SearchShare) -> Attempt<Page> {
        let operation = Operation::Find;
        let request = FindRequest {
            listing: ReadDirectoryRequest {
                directory: stream.directory,
                cursor: share.cursor,
                size_max: PAGE_SIZE,
                with_attributes: false,
                ancestors: stream.ancestors.clone(),
                known: stream.known,
            },
            count_only: stream.search.count_only,
            tests: stream.search.tests.clone(),
        };
        let reply = self.ask(share.server, operation, &request).await?;
        let malformed = |malformed| RequestError::malformed(operation, share.server, malformed);
        let page = FindReply::from_bytes(&reply.params).map_err(malformed)?;
        let mut input = Decoder::new(&reply.body);
        let mut entries = Vec::new();
        while input.remaining() > 0 {
            let FoundEntry { id, kind, verdict, name } = FoundEntry::decode(&mut input).map_err(malformed)?;
            let matches = verdict == Verdict::Yes;
            let name = name.as_bytes().to_vec();
            entries.push((FoundName { name, id, kind, matches, server: share.server }, verdict));
        }
        if !page.end && page.next_cursor <= share.cursor {
            let words = format!("server {} searches a directory in circles", share.server);
            return Err(RequestError::Local(Status::BadMessage, words));
        }
        let share = SearchShare { cursor: page.next_cursor, end: page.end, ..share };
        Ok(Page { share, entries, counted: page.counted })
    }
}
