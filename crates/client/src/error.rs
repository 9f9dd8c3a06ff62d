//! What callers get when an operation fails, and what travels inside the client until then.

use reactor::channel::Failure;
use wire::{FileId, Malformed, Operation, Status};

/// Why an operation failed: a status for programs and a sentence for people that names the path, server and operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The outcome; `Status::errno` maps it to the Linux errno.
    pub status: Status,
    /// The sentence.
    pub message: String,
}

/// The outcome of an operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of the client's own making.
    pub fn new(status: Status, message: impl Into<String>) -> Error {
        Error { status, message: message.into() }
    }

    /// The Linux errno of the status.
    pub fn errno(&self) -> i32 {
        self.status.errno()
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// The outcome of a part of an operation.
pub(crate) type Attempt<R> = std::result::Result<R, RequestError>;

/// A failure on its way up, before the path that it concerns is put in front of it.
#[derive(Debug, Clone)]
pub(crate) enum RequestError {
    /// A server said no, or could not be asked.
    Server(Failure),
    /// The client itself refuses.
    Local(Status, String),
}

impl RequestError {
    pub(crate) fn local(status: Status) -> RequestError {
        RequestError::Local(status, status.words().to_owned())
    }

    pub(crate) fn status(&self) -> Status {
        match self {
            RequestError::Server(failure) => failure.status,
            RequestError::Local(status, _) => *status,
        }
    }

    /// The directory or file that the failure is about; 0 when it names none.
    pub(crate) fn id(&self) -> FileId {
        match self {
            RequestError::Server(failure) => failure.id,
            RequestError::Local(..) => FileId::default(),
        }
    }

    /// The target, when a server answered that the name is a symbolic link.
    pub(crate) fn into_symlink_target(self) -> std::result::Result<Vec<u8>, RequestError> {
        match self {
            RequestError::Server(failure) if failure.status == Status::IsSymlink && !failure.text.is_empty() => {
                Ok(failure.text)
            }
            other => Err(other),
        }
    }

    /// A reply that can't be decoded.
    pub(crate) fn malformed(operation: Operation, server: u32, malformed: Malformed) -> RequestError {
        RequestError::Local(
            Status::BadMessage,
            format!("reply to {} of server {server}: {malformed}", operation.name()),
        )
    }

    /// The error as callers see it: the path, then what happened.
    pub(crate) fn about(self, path: &[u8]) -> Error {
        let path = String::from_utf8_lossy(path);
        match self {
            RequestError::Server(failure) => Error::new(failure.status, format!("{path}: {failure}")),
            RequestError::Local(status, words) => Error::new(status, format!("{path}: {words}")),
        }
    }

    /// The error of an operation on an open file.
    pub(crate) fn about_file(self, file: FileId) -> Error {
        match self {
            RequestError::Server(failure) => Error::new(failure.status, format!("file {file}: {failure}")),
            RequestError::Local(status, words) => Error::new(status, format!("file {file}: {words}")),
        }
    }
}

impl From<Failure> for RequestError {
    fn from(failure: Failure) -> RequestError {
        RequestError::Server(failure)
    }
}

/// What a failure of this machine's own system is called.
pub fn status_of_system(error: &std::io::Error) -> Status {
    match error.kind() {
        std::io::ErrorKind::NotFound => Status::NotFound,
        std::io::ErrorKind::NotADirectory => Status::NotDirectory,
        std::io::ErrorKind::PermissionDenied => Status::AccessDenied,
        _ => Status::Io,
    }
}
