//! How a command fails: with words for people and an exit status for programs.

use std::io;
use std::path::Path;

pub const EXIT_FAILED: u8 = 1;
pub const EXIT_USAGE: u8 = 2;

/// Why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// The command line is wrong: exit status 2.
    Usage(String),
    /// The words of what went wrong: exit status 1.
    Failed(String),
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

    /// What happened to a file.
    pub fn of_file(file: &Path, error: &io::Error) -> Failure {
        Failure::Failed(format!("{}: {}", file.display(), io_words(error)))
    }
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
