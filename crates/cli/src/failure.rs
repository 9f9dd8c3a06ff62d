//! How a command fails: with words for people and an exit status for programs.

use crate::paths::visible;
use client::{Error, Status};
use std::io::{self, IsTerminal};

/// Why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// The command line is wrong: exit status 2.
    Usage(String),
    /// The words of what went wrong: exit status 1.
    Failed(String),
    /// What went wrong was said already: this exit status.
    Said(u8),
    /// Nobody reads what we print any more: no words.
    BrokenPipe,
}

pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub fn failed(words: impl Into<String>) -> Failure {
        Failure::Failed(words.into())
    }

    pub fn usage(words: impl Into<String>) -> Failure {
        Failure::Usage(words.into())
    }

    /// What printing came to.
    pub fn of_output(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::BrokenPipe,
            _ => Failure::Failed(format!("standard output: {}", io_words(&error))),
        }
    }
}

/// What happened to a path, shortly where the reader needs no more than that: `/x: no such file or directory`.
pub fn about_path(path: &[u8], error: &Error) -> String {
    match error.status {
        Status::NotFound
        | Status::Exists
        | Status::NotDirectory
        | Status::IsDirectory
        | Status::NotEmpty
        | Status::NameTooLong
        | Status::AccessDenied
        | Status::NotPermitted
        | Status::SymlinkLoop => format!("{}: {}", show(path), error.status),
        _ => match error.message.strip_prefix(&*String::from_utf8_lossy(path)) {
            Some(rest) => format!("{}{rest}", show(path)),
            None => format!("{}: {}", show(path), error.message),
        },
    }
}

/// A failure about a path inside Tabane.
pub fn path_failure(path: &[u8], error: &Error) -> Failure {
    Failure::Failed(about_path(path, error))
}

/// A path for people; the empty one is the root. On a terminal, control characters are quoted.
pub fn show(path: &[u8]) -> String {
    let path = if path.is_empty() { b"/" } else { path };
    let path = if std::io::stderr().is_terminal() { visible(path) } else { path.into() };
    String::from_utf8_lossy(&path).into_owned()
}

/// The words of a system error without Rust's "(os error N)".
pub fn io_words(error: &io::Error) -> String {
    let words = error.to_string();
    let words = words.split(" (os error").next().unwrap_or(&words);
    let mut letters = words.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if second.is_lowercase() => {
            first.to_lowercase().collect::<String>() + &words[first.len_utf8()..]
        }
        _ => words.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: system errors read like those of other programs.
    #[test]
    fn system_errors_in_words() {
        assert_eq!(io_words(&io::Error::from_raw_os_error(2)), "no such file or directory");
    }

    /// Goal: ordinary errors are short, others keep what the client says.
    #[test]
    fn errors_about_paths() {
        let error = Error { status: Status::NotFound, message: "/x: Open on server 2: no such file".to_owned() };
        assert_eq!(about_path(b"/x", &error), "/x: no such file or directory");
        let error = Error { status: Status::Io, message: "/x: Open on server 2: broken".to_owned() };
        assert_eq!(about_path(b"/x", &error), "/x: Open on server 2: broken");
        assert_eq!(about_path(b"/y", &error), "/y: /x: Open on server 2: broken");
    }
}
