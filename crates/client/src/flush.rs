//! Having changes carried back to the backing directory (docs/cache.md): the servers do it, and this client asks how
//! far they have come.

use crate::error::{Error, RequestError, Result};
use crate::filesystem::{FileSystem, about_server};
use std::cell::Cell;
use wire::messages::{FlushReply, FlushRequest, flush_states};
use wire::{Decode, FileId, Operation, Status};

/// What a flush has come to, or has come to so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlushReport {
    /// Files, directories and names that were brought into line, and bytes of files.
    pub done: u64,
    pub bytes: u64,
    /// What is still to be done, as far as it is known.
    pub left: u64,
    /// How many could not be brought into line.
    pub failed: u64,
    /// Some of them: paths from the root, and why.
    pub failures: Vec<(Vec<u8>, String)>,
    /// How many names that somebody else had changed were settled since a flush was last waited for.
    pub settled: u64,
    /// Some of them: paths from the root, and what became of each.
    pub settlements: Vec<(Vec<u8>, String)>,
}

impl FileSystem {
    /// Has all that is not in the backing directory as it is here brought into line, below some paths (from the root,
    /// without a slash in front) or all, and returns when that has ended. `tell` hears how it goes. Errors: `Invalid`
    /// without a backing directory, `AccessDenied` for whom the servers do not belong to.
    pub async fn flush(&self, paths: &[Vec<u8>], tell: &dyn Fn(&FlushReport)) -> Result<FlushReport> {
        let tell = |report: &FlushReport| {
            tell(report);
            false
        };
        self.await_flush(paths, FileId::default(), &tell).await.map(Option::unwrap_or_default)
    }

    /// Has a file carried, or the names in a directory, and waits for that. Errors: `Io`, with the reason; `TimedOut`
    /// when nothing has gone for a time-out.
    pub(crate) async fn carry(&self, file: FileId) -> Result<()> {
        let (since, seen) = (Cell::new(self.servers.reactor.now()), Cell::new((0, 0)));
        let silence = self.servers.silence();
        let is_silent = |report: &FlushReport| {
            let now = self.servers.reactor.now();
            if seen.replace((report.done, report.bytes)) != (report.done, report.bytes) {
                since.set(now);
            }
            now.saturating_sub(since.get()) > silence
        };
        let Some(report) = self.await_flush(&[], file, &is_silent).await? else {
            let words = format!(
                "nothing has gone to the backing directory for {} s: 'tabane status' says which call does not return",
                silence / 1_000_000_000
            );
            return Err(Error::new(Status::TimedOut, words));
        };
        let Some((path, reason)) = report.failures.first() else { return Ok(()) };
        let path = String::from_utf8_lossy(path);
        let words = format!("/{path} can't be carried to the backing directory for now, and stays here: {reason}");
        Err(Error::new(Status::Io, words))
    }

    /// Nothing if `tell` wants to wait no longer.
    async fn await_flush(
        &self,
        paths: &[Vec<u8>],
        file: FileId,
        tell: &dyn Fn(&FlushReport) -> bool,
    ) -> Result<Option<FlushReport>> {
        let mut ticket = 0;
        loop {
            let request = FlushRequest { ticket, paths: paths.to_vec(), file };
            let reply = self.ask_flush(&request).await?;
            let told = |paths: Vec<Vec<u8>>, words: Vec<Vec<u8>>| {
                let pairs = paths.into_iter().zip(words);
                pairs.map(|(path, words)| (path, String::from_utf8_lossy(&words).into_owned())).collect()
            };
            let report = FlushReport {
                done: reply.done,
                bytes: reply.bytes,
                left: reply.left,
                failed: reply.failed,
                failures: told(reply.paths, reply.reasons),
                settled: reply.settled,
                settlements: told(reply.settled_paths, reply.settled_words),
            };
            // A server that was started again knows nothing of what it did; what was done it finds done.
            ticket = if reply.state == flush_states::UNKNOWN { 0 } else { reply.ticket };
            match reply.state {
                flush_states::ENDED => return Ok(Some(report)),
                _ if tell(&report) => return Ok(None),
                _ => {}
            }
        }
    }

    /// Begins the same, and leaves it to the servers.
    pub async fn begin_flush(&self, paths: &[Vec<u8>]) -> Result<()> {
        self.ask_flush(&FlushRequest { ticket: 0, paths: paths.to_vec(), file: FileId::default() }).await.map(drop)
    }

    async fn ask_flush(&self, request: &FlushRequest) -> Result<FlushReply> {
        let server = self.servers.cluster.home_of(FileId::ROOT).unwrap_or(0);
        let reply = self.servers.ask(server, Operation::Flush, request).await;
        let reply = reply.map_err(|request_error| about_server(request_error, server))?;
        let malformed = |malformed| RequestError::malformed(Operation::Flush, server, malformed);
        FlushReply::from_bytes(&reply.params).map_err(|error| about_server(malformed(error), server))
    }
}
