//! Having changes carried back to the backing directory (docs/cache.md): the servers do it, and this client asks how
//! far they have come.

use crate::error::{Error, RequestError, Result};
use crate::filesystem::{FileSystem, about_server};
use reactor::Nanos;
use std::cell::RefCell;
use wire::messages::{FlushReply, FlushRequest, flush_states};
use wire::{Decode, FileId, Operation, Status};

/// What a flush has come to, or has come to so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FlushReport {
    /// Files, directories and names that were brought into line, and bytes of files.
    pub done: u64,
    pub bytes: u64,
    /// What all flushes have done, in bytes and things.
    pub progress: u64,
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

/// Time-outs for which nothing of a flush may go while others do: each of them stops for the others after a second.
const TURNS_MAX: u64 = 8;

/// When whoever waits for a flush waits no longer.
struct Silence {
    timeout: Nanos,
    /// What this flush has done, and all have, and when each was less.
    own: (u64, Nanos),
    all: (u64, Nanos),
}

impl Silence {
    fn new(timeout: Nanos, now: Nanos) -> Silence {
        Silence { timeout, own: (0, now), all: (0, now) }
    }

    /// Takes a look at how far it is: whether nothing has gone for a time-out, or nothing of this one for several.
    fn is_over(&mut self, now: Nanos, report: &FlushReport) -> bool {
        for (known, done) in [(&mut self.own, report.done + report.bytes), (&mut self.all, report.progress)] {
            if known.0 != done {
                *known = (done, now);
            }
        }
        self.has_passed(now, &self.own, TURNS_MAX)
            || self.has_passed(now, &self.own, 1) && self.has_passed(now, &self.all, 1)
    }

    /// Whether nothing has been done for so many time-outs.
    fn has_passed(&self, now: Nanos, (_, since): &(u64, Nanos), timeouts: u64) -> bool {
        now.saturating_sub(*since) > self.timeout.saturating_mul(timeouts)
    }

    /// What is said of one that is over.
    fn words(&self, now: Nanos) -> String {
        let (what, since) = match self.has_passed(now, &self.all, 1) {
            true => ("nothing has gone", self.all.1),
            false => ("other changes have gone, but nothing of this,", self.own.1),
        };
        let seconds = now.saturating_sub(since) / 1_000_000_000;
        format!("{what} to the backing directory for {seconds} s: 'tabane status' says which call does not return")
    }
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
    /// when nothing has gone for a time-out, or nothing of this for several.
    pub(crate) async fn carry(&self, file: FileId) -> Result<()> {
        let timeout = self.servers.silence();
        let silence = RefCell::new(Silence::new(timeout, self.servers.reactor.now()));
        let is_silent = |report: &FlushReport| silence.borrow_mut().is_over(self.servers.reactor.now(), report);
        let Some(report) = self.await_flush(&[], file, &is_silent).await? else {
            return Err(Error::new(Status::TimedOut, silence.borrow().words(self.servers.reactor.now())));
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
                progress: reply.progress,
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

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Nanos = 10_000_000_000;

    /// The first second after which a flush is given up that has done what `progress` says in each second: itself, and
    /// all together.
    fn given_up_after(progress: impl Fn(u64) -> (u64, u64)) -> Option<(u64, String)> {
        let mut silence = Silence::new(TIMEOUT, 5);
        (1..1000).find_map(|second| {
            let (done, progress) = progress(second);
            let now = 5 + second * 1_000_000_000;
            let is_over = silence.is_over(now, &FlushReport { done, progress, ..FlushReport::default() });
            is_over.then(|| (second, silence.words(now)))
        })
    }

    #[test]
    fn whoever_waits_is_patient_while_others_go() {
        let given_up = |progress: fn(u64) -> (u64, u64)| given_up_after(progress).expect("given up");
        // Nothing goes at all, and nothing does any more.
        assert_eq!(given_up(|_| (0, 0)).0, 11);
        let (second, words) = given_up(|second| (second.min(7), second.min(7)));
        assert_eq!(second, 18);
        assert!(words.starts_with("nothing has gone to the backing directory for 11 s"), "{words}");
        // It waits for its turn, while others have theirs: for the time of some turns, and from when these end.
        let (second, words) = given_up(|second| (second.min(7), second));
        assert_eq!(second, 7 + 81);
        assert!(words.starts_with("other changes have gone, but nothing of this, to the"), "{words}");
        let (second, words) = given_up(|second| (0, second.min(30)));
        assert_eq!(second, 41);
        assert!(words.starts_with("nothing has gone to the backing directory for 11 s"), "{words}");
        // Now and then it does something itself.
        assert!(given_up_after(|second| (second / 60, second)).is_none());
    }
}
