//! Why a request failed, on its way to the reply.

use crate::store::{AbsentPages, StoreError};
use reactor::log::{self, Level};
use std::borrow::Cow;
use std::rc::Rc;
use wire::messages::ErrorDetail;
use wire::{Encode, FileId, Malformed, Status};

/// A failed request.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub status: Status,
    /// The stale directory or file, else 0.
    pub id: FileId,
    /// Words for people; the target for `IsSymlink`.
    pub text: Cow<'static, [u8]>,
    /// What has to be in memory before the same is tried again.
    pub absent: Option<Rc<AbsentPages>>,
}

impl Failure {
    pub fn new(status: Status, id: FileId) -> Failure {
        Failure { status, id, text: Cow::Borrowed(b""), absent: None }
    }

    pub fn with_text(status: Status, text: impl Into<String>) -> Failure {
        Failure { status, id: FileId::default(), text: Cow::Owned(text.into().into_bytes()), absent: None }
    }

    /// The parameters of the reply.
    pub fn to_params(&self) -> Vec<u8> {
        ErrorDetail { id: self.id, text: &self.text }.to_bytes()
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::new(status, FileId::default())
    }
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Failure {
        Failure::with_text(Status::BadMessage, malformed.0)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let error = match error {
            StoreError::Absent(absent) => {
                let words = "bytes have to be read from the store's device first; try again";
                let absent = Some(Rc::new(absent));
                return Failure { absent, ..Failure::with_text(Status::Busy, words) };
            }
            error => error,
        };
        let status = match &error {
            StoreError::Full | StoreError::Resting | StoreError::JournalFull => Status::NoSpace,
            StoreError::Corrupt { .. } => Status::Corrupt,
            StoreError::ChunkSizeMismatch { .. } => Status::ChunkSizeMismatch,
            StoreError::TooLarge | StoreError::TouchedTwice { .. } => Status::Invalid,
            StoreError::Gone { file } => return Failure::new(Status::StaleFile, FileId(*file)),
            StoreError::Damaged(_) | StoreError::Incompatible(_) | StoreError::Medium(..) | StoreError::Absent(_) => {
                Status::Io
            }
        };
        match status {
            Status::NoSpace => log::event(Level::Warning, "no-space", NO_SPACE_WORDS, &[("reason", &error)]),
            Status::Corrupt => log::event(Level::Error, "data-corrupt", CORRUPT_WORDS, &[("reason", &error)]),
            Status::Io => log::event(Level::Error, "medium-failed", MEDIUM_WORDS, &[("reason", &error)]),
            _ => {}
        }
        Failure::with_text(status, error.to_string())
    }
}

const NO_SPACE_WORDS: &str = "the store is full; remove files, or start a cluster with larger stores";
const CORRUPT_WORDS: &str =
    "stored bytes are not those that were written; copy the file in again and look at the medium";
const MEDIUM_WORDS: &str = "the medium failed; look at what the kernel says of it";

impl From<reactor::Failure> for Failure {
    /// A failure of a call to another server; the words name it.
    fn from(failure: reactor::Failure) -> Failure {
        // What only says that we and the other server disagree is no business of the client.
        let status = match failure.status {
            Status::StaleFile | Status::StaleDirectory | Status::NoSpace | Status::Busy => failure.status,
            Status::Unreachable | Status::TimedOut | Status::NotEmpty => failure.status,
            Status::NotDirectory => failure.status,
            _ => Status::Io,
        };
        let text = Cow::Owned(failure.to_string().into_bytes());
        Failure { status, id: failure.id, text, absent: None }
    }
}
