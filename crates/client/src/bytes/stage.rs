//! Bringing files of a backing tree here before anybody reads them (docs/cache.md), asking what of them is here, and
//! giving it up. Servers are asked where bytes are, which they can't say of what is not here, so they fetch it first.
//! No byte travels to the client.

use crate::error::{Attempt, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::open_files::file::File;
use crate::servers::Servers;
use crate::servers::join::join_all;
use wire::layout::ChunkRange;
use wire::messages::{CacheStateReply, CacheStateRequest, DataRequest, Pieces};
use wire::{Decode, FileId, Kind, Layout, Operation};

/// Chunks of one request.
const CHUNKS_MAX: usize = 8;

/// Bytes of a file in a cluster over a backing tree, by whole chunks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct CacheState {
    /// Changed here, and not behind yet.
    pub dirty: u64,
    /// Here and behind.
    pub clean: u64,
    /// Behind alone.
    pub absent: u64,
    /// Of the last, what was given up just now.
    pub evicted: u64,
}

impl CacheState {
    fn add(&mut self, other: &CacheStateReply) {
        self.dirty += other.dirty;
        self.clean += other.clean;
        self.absent += other.absent;
        self.evicted += other.evicted;
    }
}

impl FileSystem {
    /// What of an open file is here and what behind; with `evicts` all servers give up what is here and clean first.
    /// Nothing is fetched. Errors: there is no backing tree; a server does not answer.
    pub async fn cache_state(&self, file: &File, evicts: bool) -> Result<CacheState> {
        self.servers.cache_state(file, evicts).await.map_err(|request_error| request_error.about_file(file.id))
    }

    /// Has all servers fetch what they lack of an open file, each its own chunks, and returns when all of it is here.
    /// Of a file without a backing tree nothing is lacking. Errors: those of reads.
    pub async fn stage(&self, file: &File) -> Result<()> {
        let staged = self.servers.stage(file.id, file.kind, &file.layout, file.known_size().size).await;
        staged.map_err(|request_error| request_error.about_file(file.id))
    }

    /// The same of a file that a listing has just told of and nobody has to open. Errors: those of reads; `StaleFile`
    /// if it is not there any more, or another one by now: then its path may lead to something else.
    pub async fn stage_listed(&self, file: FileId, layout: &Layout, size: u64) -> Result<()> {
        let staged = self.servers.stage(file, Kind::File, layout, size).await;
        staged.map_err(|request_error| request_error.about_file(file))
    }
}

impl Servers {
    async fn stage(&self, file: FileId, kind: Kind, layout: &Layout, size: u64) -> Attempt<()> {
        if kind != Kind::File || size == 0 {
            return Ok(());
        }
        let chunk_count = size.div_ceil(u64::from(layout.chunk_size));
        let servers = self.servers_of(file, layout, 0, size);
        let asked = servers.into_iter().map(|server| self.stage_on(file, layout, server, chunk_count));
        join_all(asked).await.into_iter().collect()
    }

    async fn cache_state(&self, file: &File, evicts: bool) -> Attempt<CacheState> {
        let size = file.known_size().size;
        let mut sum = CacheState::default();
        // Of an empty file the home says whether there is a backing tree.
        let servers = match (file.kind, size) {
            (Kind::File, 1..) => self.servers_of(file.id, &file.layout, 0, size),
            _ => self.cluster.home_of(file.id).into_iter().collect(),
        };
        let asked = servers.into_iter().map(async |server| {
            let (id, layout) = (file.id, file.layout);
            let mut replies = Vec::new();
            let mut from = 0;
            while from < u64::MAX {
                let request = CacheStateRequest { file: id, layout, size, from, evicts };
                let reply = self.ask(server, Operation::CacheState, &request).await?;
                let reply = CacheStateReply::from_bytes(&reply.params)
                    .map_err(|error| RequestError::malformed(Operation::CacheState, server, error))?;
                from = reply.next;
                replies.push(reply);
            }
            Attempt::Ok(replies)
        });
        for replies in join_all(asked).await {
            replies?.iter().for_each(|reply| sum.add(reply));
        }
        Ok(sum)
    }

    /// The chunks of one server, a few at a time.
    async fn stage_on(&self, file: FileId, layout: &Layout, server: u32, chunk_count: u64) -> Attempt<()> {
        let is_there = |chunk: &u64| self.cluster.chunk_server(file, layout, *chunk) == server;
        let piece = |chunk_index| ChunkRange { chunk_index, chunk_offset: 0, size: 1 };
        let mut pieces = (0..chunk_count).filter(is_there).map(piece);
        loop {
            let some: Vec<ChunkRange> = pieces.by_ref().take(CHUNKS_MAX).collect();
            if some.is_empty() {
                return Ok(());
            }
            let request = DataRequest { file, layout: *layout, pieces: Pieces(some), sums: Vec::new() };
            self.ask(server, Operation::Locate, &request).await?;
        }
    }
}
