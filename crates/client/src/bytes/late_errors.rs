//! Errors that servers learn of later than the request that they belong to: a medium refuses what was acknowledged, or
//! a file can't be carried to the backing directory. fsync is told of them with its replies; close, which waits for
//! nothing else, asks when there may be some. Each handle is told once.

use crate::error::{RequestError, Result};
use crate::filesystem::FileSystem;
use crate::open_files::file::File;
use crate::servers::Servers;
use crate::servers::join::join_all;
use reactor::{Call, Nanos, until};
use std::cell::RefCell;
use std::collections::BTreeMap;
use wire::messages::{SynchroniseReply, SynchroniseRequest};
use wire::{Decode, Kind, Operation, Status};

/// How long a server that has said nothing of errors is believed that there are none, and how long it is waited for.
const SILENCE_NS: Nanos = 1_000_000_000;
/// By how much clocks of nodes may differ.
const CLOCK_SLACK_NS: u64 = 2_000_000_000;

/// Servers that have not answered whether they know of errors, and when they were asked: until they have said
/// something else they are asked no more.
pub(crate) type UnansweredQuestions = RefCell<BTreeMap<u32, Nanos>>;

/// One that a server has told of.
pub(crate) struct LateError {
    pub error: RequestError,
    pub is_of_medium: bool,
}

impl FileSystem {
    /// Tells of errors that came to light since the handle was opened or was told of some; for who closes it. Nothing
    /// is asked unless one of the servers that it has written to, or the file's home, has told of a new error of
    /// whatever file, or has said nothing for a second.
    ///
    /// Errors: `Io`, and what cut an earlier write short. What can't be asked within a second is no error.
    pub async fn late_error(&self, file: &File) -> Result<()> {
        if let Some(error) = file.take_pending_error() {
            return Err(error);
        }
        let Ok(home) = self.servers.home_of(file.id) else { return Ok(()) };
        if file.kind != Kind::File || file.written_end() == 0 {
            return Ok(());
        }
        let written_bits = file.written_servers();
        let is_its = |server: &u32| *server == home || written_bits >> (server % u64::BITS) & 1 == 1;
        let may_know = |server: &u32| is_its(server) && self.servers.may_have_late_error(*server, file);
        let asked: Vec<u32> = (0..self.servers.server_count()).filter(may_know).collect();
        let told = join_all(asked.into_iter().map(|server| self.servers.ask_late_error(server, file))).await;
        told.into_iter().flatten().next().map_or(Ok(()), |told| Err(told.error.about_file(file.id)))
    }
}

impl Servers {
    /// Whether a server may know of errors that a handle was not told of.
    fn may_have_late_error(&self, server: u32, file: &File) -> bool {
        let opened_at = (file.opened_at().max(0) as u64).saturating_sub(CLOCK_SLACK_NS);
        let known = file.seen_trouble(server).max(opened_at);
        if let Some(number) = self.cached_late_error(server) {
            return number > known;
        }
        let (number, heard_at) = self.channel(server).late_error();
        let is_silent = self.unanswered.borrow().get(&server).is_some_and(|asked_at| *asked_at >= heard_at);
        !is_silent && (number > known || self.reactor.now().saturating_sub(heard_at) > SILENCE_NS)
    }

    /// The oldest error that a server knows and the handle does not, which is told to it thereby.
    pub(super) async fn ask_late_error(&self, server: u32, file: &File) -> Option<LateError> {
        let request = SynchroniseRequest { is_question: true, ..file.synchronise_request(server) };
        let asked_at = self.reactor.now();
        let limit = asked_at.saturating_add(SILENCE_NS.min(self.silence()));
        match until(&self.reactor, limit, self.send(server, Call::new(Operation::Synchronise, &request))).await {
            Some(Ok(reply)) => file.take_late_error(server, &SynchroniseReply::from_bytes(&reply.params).ok()?),
            _ => {
                self.unanswered.borrow_mut().insert(server, asked_at);
                None
            }
        }
    }
}

impl File {
    pub(crate) fn synchronise_request(&self, server: u32) -> SynchroniseRequest {
        let (seen, opened_at) = (self.seen_trouble(server), self.opened_at());
        SynchroniseRequest { file: self.id, seen, opened_at, is_question: false }
    }

    /// The error that a reply tells of, which the handle knows from now on.
    pub(crate) fn take_late_error(&self, server: u32, reply: &SynchroniseReply) -> Option<LateError> {
        if reply.trouble == 0 {
            return None;
        }
        self.note_trouble(server, reply.trouble);
        let is_of_medium = reply.reason.is_empty();
        let words = match is_of_medium {
            true => format!(
                "the medium of server {server} refused data that was written earlier: write it again, or copy the file \
                 elsewhere while it can be read"
            ),
            false => format!(
                "the file can't be carried to the backing directory for now, and stays here: {}",
                String::from_utf8_lossy(&reply.reason)
            ),
        };
        Some(LateError { error: RequestError::Local(Status::Io, words), is_of_medium })
    }
}
