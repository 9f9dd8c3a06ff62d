//! Bringing files of a backing tree here before anybody reads them (docs/cache.md), asking what of them is here, and
//! giving it up. Servers fetch what they lack, and no byte travels to the client.

use crate::error::{Attempt, RequestError, Result};
use crate::filesystem::FileSystem;
use crate::open_files::file::File;
use crate::servers::Servers;
use crate::servers::join::join_all;
use reactor::channel::Failure;
use std::collections::BTreeMap;
use wire::limits::STAGE_CHUNKS_MAX;
use wire::messages::{
    CacheStateReply, CacheStateRequest, StageFailure, StagePart, StageParts, StageReply, StageRequest,
};
use wire::{Decode, FileId, Kind, Layout, Operation, Status};

/// Files that one request is about, and bytes that it has fetched, at most; a chunk that is larger goes alone.
pub const STAGE_FILES_MAX: usize = 64;
const STAGE_BYTES: u64 = 8 << 20;
/// Chunks of the server in one part of a file.
const STAGE_OWN_CHUNKS: u64 = 256;

/// A file that a listing has told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedFile {
    /// The file.
    pub id: FileId,
    /// Its layout.
    pub layout: Layout,
    /// Bytes.
    pub size: u64,
}

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
        if file.kind != Kind::File {
            return Ok(());
        }
        let listed = ListedFile { id: file.id, layout: file.layout, size: file.known_size().size };
        self.stage_listed(&[listed]).await.remove(0)
    }

    /// The same of files that a listing has just told of and nobody has to open, by few requests where they are small.
    /// The results are in the order of the files. Errors of each: those of reads; `StaleFile` if it is not there any
    /// more, or another one by now: then its path may lead to something else.
    pub async fn stage_listed(&self, files: &[ListedFile]) -> Vec<Result<()>> {
        let staged = self.servers.stage(files).await;
        let about = |(file, staged): (&ListedFile, Attempt<()>)| {
            staged.map_err(|request_error| request_error.about_file(file.id))
        };
        files.iter().zip(staged).map(about).collect()
    }
}

/// Parts of files whose chunks one server has.
#[derive(Default)]
struct StageBatch {
    /// Each with the number of its file.
    parts: Vec<(usize, StagePart)>,
    chunks: u64,
    bytes: u64,
}

impl StageBatch {
    fn push(&mut self, file: usize, part: StagePart, own_chunks: u64, size: u64) {
        self.chunks += u64::from(part.count);
        self.bytes += (own_chunks * u64::from(part.layout.chunk_size)).min(size);
        self.parts.push((file, part));
    }

    fn has_room_for(&self, part: &StagePart) -> bool {
        let chunks = self.chunks + u64::from(part.count);
        self.parts.is_empty()
            || self.bytes < STAGE_BYTES && self.parts.len() < STAGE_FILES_MAX && chunks <= STAGE_CHUNKS_MAX
    }
}

impl Servers {
    /// All servers at once, and each batch after batch.
    async fn stage(&self, files: &[ListedFile]) -> Vec<Attempt<()>> {
        let mut wanted: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (number, file) in files.iter().enumerate().filter(|(_, file)| file.size > 0) {
            for server in self.servers_of(file.id, &file.layout, 0, file.size) {
                wanted.entry(server).or_default().push(number);
            }
        }
        let asked = wanted.into_iter().map(|(server, numbers)| self.stage_on(server, files, numbers));
        let mut staged: Vec<Attempt<()>> = files.iter().map(|_| Ok(())).collect();
        for (number, failure) in join_all(asked).await.into_iter().flatten() {
            if staged[number].is_ok() {
                staged[number] = Err(failure);
            }
        }
        staged
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

    /// Has one server fetch its chunks of some of the files, a few at a time; those of which it did not. Of a file that
    /// has failed no more is asked for, nor of any if the server can't be asked.
    async fn stage_on(&self, server: u32, files: &[ListedFile], numbers: Vec<usize>) -> Vec<(usize, RequestError)> {
        let mut failed: BTreeMap<usize, RequestError> = BTreeMap::new();
        let mut batch = StageBatch::default();
        for number in &numbers {
            let mut next = 0;
            while let Some((part, own_chunks)) = self.stage_part(server, &files[*number], next) {
                next = part.first + u64::from(part.count);
                if !batch.has_room_for(&part) {
                    match self.stage_batch(server, std::mem::take(&mut batch)).await {
                        Ok(some) => failed.extend(some),
                        Err(error) => return numbers.into_iter().map(|number| (number, error.clone())).collect(),
                    }
                }
                if failed.contains_key(number) {
                    break;
                }
                batch.push(*number, part, own_chunks, files[*number].size);
            }
        }
        match self.stage_batch(server, batch).await {
            Ok(some) => failed.extend(some),
            Err(error) => return numbers.into_iter().map(|number| (number, error.clone())).collect(),
        }
        failed.into_iter().collect()
    }

    /// The next part of a file, from a chunk on, that is for one server, and how many chunks of that are the server's.
    fn stage_part(&self, server: u32, file: &ListedFile, from: u64) -> Option<(StagePart, u64)> {
        let ListedFile { id, layout, size } = *file;
        let end = size.div_ceil(u64::from(layout.chunk_size));
        let mut own = (from..end).filter(|chunk| self.cluster.chunk_server(id, &layout, *chunk) == server);
        let first = own.next()?;
        let mut part = StagePart { file: id, layout, first, count: 1 };
        let own_max = (STAGE_BYTES / u64::from(layout.chunk_size)).clamp(1, STAGE_OWN_CHUNKS);
        let others = own.take_while(|chunk| chunk - first < STAGE_CHUNKS_MAX).take(own_max as usize - 1);
        let mut own_chunks = 1;
        for chunk in others {
            part.count = (chunk - first + 1) as u32;
            own_chunks += 1;
        }
        Some((part, own_chunks))
    }

    /// The numbers of files that one request had fetched in vain, and why.
    async fn stage_batch(&self, server: u32, batch: StageBatch) -> Attempt<Vec<(usize, RequestError)>> {
        let (numbers, parts): (Vec<_>, Vec<_>) = batch.parts.into_iter().unzip();
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        let reply = self.ask(server, Operation::Stage, &StageRequest { parts: StageParts(parts) }).await?;
        let reply = StageReply::from_bytes(&reply.params)
            .map_err(|error| RequestError::malformed(Operation::Stage, server, error))?;
        let told = |StageFailure { part, status, text }: StageFailure| {
            let (status, id) = (Status::from_code(status).unwrap_or(Status::Io), FileId::default());
            let failure = Failure { operation: Operation::Stage, server, status, id, text, served: 0 };
            Some((*numbers.get(part as usize)?, RequestError::Server(failure)))
        };
        Ok(reply.failures.into_iter().filter_map(told).collect())
    }
}
