//! What programs on a mount are told when something fails: an errno. The sentence that goes with it is for the log, and
//! only where it says more than the errno does.

use crate::protocol::Malformed;
use client::{Error, Status};
use std::sync::{Mutex, PoisonError};

/// A Linux errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Whether a change that fails so has certainly not happened, nor will.
    pub fn says_what_happened(self) -> bool {
        matches!(
            self.0,
            libc::ENOENT
                | libc::EEXIST
                | libc::ENOTDIR
                | libc::EISDIR
                | libc::ENOTEMPTY
                | libc::ENAMETOOLONG
                | libc::EINVAL
                | libc::EACCES
                | libc::EPERM
                | libc::EFBIG
                | libc::ESTALE
                | libc::ENOSYS
                | libc::ELOOP
                | libc::EOPNOTSUPP
                | libc::EBADF
                | libc::ENODATA
                | libc::EMLINK
                | libc::EXDEV
                | libc::EMFILE
                | libc::ERANGE
                | libc::E2BIG
                | libc::ENXIO
                | libc::EPROTO
        )
    }
}

impl From<Malformed> for Errno {
    fn from(_: Malformed) -> Errno {
        Errno(libc::EPROTO)
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Errno {
        log(&error);
        Errno(error.errno())
    }
}

/// The last sentence that was logged, so that a server that is down is not told of a thousand times.
static LAST: Mutex<String> = Mutex::new(String::new());

/// Writes down what an administrator has to know: servers that do not answer, data that is damaged, words that are not
/// understood. What programs bring upon themselves is theirs alone.
fn log(error: &Error) {
    let worth = matches!(
        error.status,
        Status::Io
            | Status::Corrupt
            | Status::Damaged
            | Status::WrongServer
            | Status::UnknownOperation
            | Status::BadMessage
            | Status::VersionMismatch
            | Status::KeyMismatch
            | Status::ClusterMismatch
            | Status::OutcomeUnknown
            | Status::Unreachable
            | Status::TimedOut
            | Status::TooManyConnections
            | Status::WindowExceeded
    );
    if !worth {
        return;
    }
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    // Path or file stand in front of the first colon; the rest is what happened.
    let happened = error.message.split_once(": ").map_or(&*error.message, |(_, happened)| happened);
    if *last != happened {
        *last = happened.to_owned();
        eprintln!("tabane: mount: {error}");
    }
}
