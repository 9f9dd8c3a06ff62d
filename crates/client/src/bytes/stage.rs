//! Bringing files of a backing tree here before anybody reads them (docs/cache.md): servers are asked where bytes are,
//! which they can't say of what is not here, so they fetch it first. No byte travels to the client.

use crate::error::{Attempt, Result};
use crate::filesystem::FileSystem;
use crate::open_files::file::File;
use crate::servers::Servers;
use crate::servers::join::join_all;
use wire::layout::ChunkRange;
use wire::messages::{DataRequest, Pieces};
use wire::{Kind, Operation};

/// Chunks of one request.
const CHUNKS_MAX: usize = 8;

impl FileSystem {
    /// Has all servers fetch what they lack of an open file, each its own chunks, and returns when all of it is here.
    /// Of a file without a backing tree nothing is lacking. Errors: those of reads.
    pub async fn stage(&self, file: &File) -> Result<()> {
        self.servers.stage(file).await.map_err(|request_error| request_error.about_file(file.id))
    }
}

impl Servers {
    async fn stage(&self, file: &File) -> Attempt<()> {
        let size = file.known_size().size;
        if file.kind != Kind::File || size == 0 {
            return Ok(());
        }
        let chunk_count = size.div_ceil(u64::from(file.layout.chunk_size));
        let servers = self.servers_of(file, 0, size);
        let asked = servers.into_iter().map(|server| self.stage_on(file, server, chunk_count));
        join_all(asked).await.into_iter().collect()
    }

    /// The chunks of one server, a few at a time.
    async fn stage_on(&self, file: &File, server: u32, chunk_count: u64) -> Attempt<()> {
        let is_there = |chunk: &u64| self.cluster.chunk_server(file.id, &file.layout, *chunk) == server;
        let piece = |chunk_index| ChunkRange { chunk_index, chunk_offset: 0, size: 1 };
        let mut pieces = (0..chunk_count).filter(is_there).map(piece);
        loop {
            let some: Vec<ChunkRange> = pieces.by_ref().take(CHUNKS_MAX).collect();
            if some.is_empty() {
                return Ok(());
            }
            let request = DataRequest { file: file.id, layout: file.layout, pieces: Pieces(some), sums: Vec::new() };
            self.ask(server, Operation::Locate, &request).await?;
        }
    }
}
