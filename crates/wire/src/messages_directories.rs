//! Messages about directories as a whole: each server's share of their times and link counts, and searches.

use crate::attributes::Kind;
use crate::identity::FileId;
use crate::message;
use crate::messages::ReadDirectoryRequest;
use crate::names::Name;
use crate::search::{Tests, Verdict};

message! {
    /// `AnnounceDirectory`: server `server` is about to change its share of the directory's entries. Journalled at the
    /// directory's home before the reply; it ends with the directory. Idempotent by (directory, server).
    pub struct AnnounceDirectoryRequest {
        pub directory: FileId,
        pub server: u32,
    }
}

message! {
    /// Reply of `AnnounceDirectory`.
    pub struct AnnounceDirectoryReply {
        /// The home's clock, so that the changes to come are stamped no earlier than the directory itself.
        pub time: i64,
    }
}

message! {
    /// `GlimpseDirectory`: the home asks for a server's share of a directory. Changes nothing.
    pub struct GlimpseDirectoryRequest {
        pub directory: FileId,
        /// The home's clock.
        pub time: i64,
        /// Whether the home will remember the answer, which has to survive power loss then.
        pub kept: bool,
    }
}

message! {
    /// Reply of `GlimpseDirectory`.
    pub struct GlimpseDirectoryReply {
        /// When an entry came, went or changed here last; `i64::MIN` when none ever did.
        pub time: i64,
        /// Directories among the entries here.
        pub subdirectories: u64,
    }
}

message! {
    /// `Find`: like `ReadDirectory`, but only of entries for which the tests hold or may hold, and of directories. The
    /// reply's body is a sequence of `FoundEntry`; its parameters are a `FindReply`.
    pub struct FindRequest {
        /// Where to search; attributes are not sent.
        pub listing: ReadDirectoryRequest,
        /// Entries that match and are no directories are only counted.
        pub count_only: bool,
        pub tests: Tests,
    }
}

message! {
    pub struct FindReply {
        pub next_cursor: u64,
        /// Whether this page was the last.
        pub end: bool,
        /// Entries that were only counted.
        pub counted: u64,
    }
}

message! {
    pub struct FoundEntry<'a> {
        pub id: FileId,
        pub kind: Kind,
        pub verdict: Verdict,
        pub name: Name<'a>,
    }
}
