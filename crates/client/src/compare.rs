//! Comparing what is here with what is in the backing directory (docs/cache.md): the servers do it, each with its own
//! chunks, and this client says of which files.

use crate::error::{Attempt, Error, RequestError, Result};
use crate::filesystem::{FileSystem, about_server};
use crate::servers::join::join_all;
use std::collections::BTreeSet;
use wire::messages::{CompareShareReply, CompareShareRequest, ListCarriedReply, ListCarriedRequest};
use wire::{Attributes, Decode, Encode, FileId, Operation, Status};

/// Files that are compared at a time.
const FILES_AT_ONCE: usize = 16;

/// What came of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Files that were looked at, and bytes of them that were compared.
    pub files: u64,
    pub bytes: u64,
    /// What is not the same: paths from the root, and how.
    pub differences: BTreeSet<(Vec<u8>, String)>,
}

impl FileSystem {
    /// Has servers compare all that is here of files and was not changed since it was carried or fetched with what is
    /// behind, below some paths (as of `flush`) or everywhere. `tell` hears how it goes. Errors: `Invalid` without a
    /// backing directory, `NotPermitted` for whom the servers do not belong to; a server does not answer.
    pub async fn compare_behind(&self, paths: &[Vec<u8>], tell: &dyn Fn(&Comparison)) -> Result<Comparison> {
        let mut found = Comparison::default();
        for server in 0..self.servers.cluster.server_count() {
            let mut from = Some(ListCarriedRequest { directory: 0, cursor: 0 });
            while let Some(request) = from {
                let reply: ListCarriedReply = self.ask_about_behind(server, Operation::ListCarried, &request).await?;
                for files in reply.files.chunks(FILES_AT_ONCE) {
                    for compared in join_all(files.iter().map(|file| self.compare_file(*file, paths))).await {
                        let Comparison { files, bytes, differences } = compared?;
                        (found.files, found.bytes) = (found.files + files, found.bytes + bytes);
                        found.differences.extend(differences);
                    }
                    tell(&found);
                }
                from = (!reply.is_last).then_some(reply.next);
            }
        }
        Ok(found)
    }

    async fn compare_file(&self, file: FileId, paths: &[Vec<u8>]) -> Result<Comparison> {
        let mut found = Comparison::default();
        let attributes = match self.stat_id(file).await {
            // It is gone meanwhile.
            Err(Error { status: Status::StaleFile, .. }) => return Ok(found),
            attributes => attributes?,
        };
        let asked = self.servers_with_chunks(&attributes).into_iter().map(async |server| {
            let mut replies = Vec::new();
            let mut from = 0;
            while from < u64::MAX {
                let Attributes { layout, size, .. } = attributes;
                let request = CompareShareRequest { file, layout, size, from, paths: paths.to_vec() };
                let reply: CompareShareReply = self.ask_about_behind(server, Operation::CompareShare, &request).await?;
                from = reply.next;
                replies.push(reply);
            }
            Result::Ok(replies)
        });
        for replies in join_all(asked).await {
            for reply in replies? {
                found.bytes += reply.bytes;
                if !reply.difference.is_empty() {
                    found.differences.insert((reply.path, String::from_utf8_lossy(&reply.difference).into_owned()));
                }
            }
        }
        found.files = 1;
        Ok(found)
    }

    fn servers_with_chunks(&self, attributes: &Attributes) -> BTreeSet<u32> {
        let cluster = &self.servers.cluster;
        let count = attributes.size.div_ceil(u64::from(attributes.layout.chunk_size.max(1)));
        let mut servers = BTreeSet::new();
        for index in 0..count {
            servers.insert(cluster.chunk_server(attributes.id, &attributes.layout, index));
            if servers.len() == cluster.server_count() as usize {
                break;
            }
        }
        servers
    }

    async fn ask_about_behind<R: for<'a> Decode<'a>>(
        &self,
        server: u32,
        operation: Operation,
        request: &impl Encode,
    ) -> Result<R> {
        let asked: Attempt<R> = async {
            let reply = self.servers.ask(server, operation, request).await?;
            let decoded = R::from_bytes(&reply.params);
            decoded.map_err(|error| RequestError::malformed(operation, server, error))
        }
        .await;
        asked.map_err(|error| about_server(error, server))
    }
}
