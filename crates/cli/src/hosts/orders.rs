//! What `up`, `down` and `restart` say to the hosts, and what these say back: one JSON object a line.
//!
//! All hosts hear the same line, for some launchers give one text to all; each takes what is under its number. Reports
//! begin with a mark, so that greetings of login shells are told apart.

use reactor::Stream;
use serde_json::Value;
use std::cell::RefCell;
use std::io;

/// What a line of a report begins with.
pub const MARK: &str = "tabane-host ";
/// Both sides have to be of this version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Longest line that is listened to.
const LINE_SIZE_MAX: usize = 16 << 20;

/// Kinds of orders.
pub mod order {
    /// Where will you listen, and is the place free?
    pub const SURVEY: &str = "survey";
    /// Make directories, start servers.
    pub const START: &str = "start";
    /// Call the servers of others.
    pub const MEET: &str = "meet";
    /// Mount the cluster.
    pub const MOUNT: &str = "mount";
    /// All is well: what you made stays.
    pub const COMMIT: &str = "commit";
    /// Take all mounts of the cluster out of the tree.
    pub const UNMOUNT: &str = "unmount";
    /// Which mounts of the cluster are there?
    pub const MOUNTS: &str = "mounts";
    /// Stop servers, and remove what they stored.
    pub const STOP: &str = "stop";
}

/// Kinds of reports beside those of orders, which have their names.
pub mod report {
    pub const HELLO: &str = "hello";
    pub const FAILED: &str = "failed";
    pub const UNDONE: &str = "undone";
}

/// Small numbers of an array.
pub fn numbers(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|number| u32::try_from(number.as_u64()?).ok()).collect()
}

/// Lines that come over a stream.
pub struct Lines {
    stream: Stream,
    bytes: RefCell<Vec<u8>>,
}

impl Lines {
    pub fn new(stream: Stream) -> Lines {
        Lines { stream, bytes: RefCell::default() }
    }

    /// The next line without its end; `None` at the end of the stream. A line that is too long is the end as well.
    pub async fn next(&self) -> io::Result<Option<String>> {
        loop {
            if let Some(line) = self.take() {
                return Ok(Some(line));
            }
            let mut chunk = [0; 16 << 10];
            let count = self.stream.recv(&mut chunk).await?;
            let mut bytes = self.bytes.borrow_mut();
            if count == 0 || bytes.len() + count > LINE_SIZE_MAX {
                return Ok(None);
            }
            bytes.extend_from_slice(&chunk[..count]);
        }
    }

    fn take(&self) -> Option<String> {
        let mut bytes = self.bytes.borrow_mut();
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(&bytes[..end]).trim_end().to_owned();
        bytes.drain(..=end);
        Some(line)
    }
}
