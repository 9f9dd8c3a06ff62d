//! What files take on the servers' media.

use crate::error::{RequestError, Result};
use crate::filesystem::{FileSystem, about_server};
use crate::servers::join::join_all;
use wire::messages::{ALLOCATED_COUNT_MAX, AllocatedReply, AllocatedRequest};
use wire::{Decode, FileId, Operation};

impl FileSystem {
    /// Bytes that are set aside for each of these files on all servers together: whole pages of what was written, and
    /// what was reserved; holes take nothing. One request to each server for every 512 files.
    pub async fn allocated(&self, files: &[FileId]) -> Result<Vec<u64>> {
        let asked = (0..self.server_count()).map(|server| self.allocated_on(server, files));
        let mut sums = vec![0; files.len()];
        for told in join_all(asked).await {
            for (sum, bytes) in sums.iter_mut().zip(told?) {
                *sum += bytes;
            }
        }
        Ok(sums)
    }

    async fn allocated_on(&self, server: u32, files: &[FileId]) -> Result<Vec<u64>> {
        let malformed =
            |malformed| about_server(RequestError::malformed(Operation::Allocated, server, malformed), server);
        let mut told: Vec<u64> = Vec::with_capacity(files.len());
        // Of the next file: what was told of its chunks before this one.
        let (mut before, mut from_chunk) = (0, 0);
        while told.len() < files.len() {
            let rest = &files[told.len()..];
            let request = AllocatedRequest { files: rest[..rest.len().min(ALLOCATED_COUNT_MAX)].to_vec(), from_chunk };
            let reply = self.servers.ask(server, Operation::Allocated, &request).await;
            let reply = reply.map_err(|request_error| about_server(request_error, server))?;
            let AllocatedReply { mut bytes, next_chunk } =
                AllocatedReply::from_bytes(&reply.params).map_err(malformed)?;
            let gets_on = bytes.len() > 1 || next_chunk == 0 || next_chunk > from_chunk;
            if bytes.is_empty() || bytes.len() > request.files.len() || !gets_on {
                return Err(malformed(wire::Malformed("it is not the answer to what was asked")));
            }
            bytes[0] += std::mem::take(&mut before);
            if next_chunk != 0 {
                before = bytes.pop().unwrap_or(0);
            }
            told.extend(bytes);
            from_chunk = next_chunk;
        }
        Ok(told)
    }
}
