//! Parameters of what concerns open files: `Close`, `CloseMany`, `Reclaim`, `MakeTemporary` and `LinkOpen`.
//!
//! A server numbers the opens of all its files, rising, also over restarts. It remembers for each session and file the
//! latest number; a close names the latest one that its sender knows and does nothing if there is a later one, so that
//! it can be sent again and can overtake an open.

use crate::codec::{Decode, Decoder, Encode, Malformed};
use crate::identity::{FileId, Slot};
use crate::layout::LayoutWish;
use crate::limits::CLOSE_COUNT_MAX;
use crate::message;
use crate::messages::Entry;

message! {
    /// An open file that its session has let go of.
    pub struct Closed {
        pub file: FileId,
        /// The latest number that the session had of the file; 0 when it keeps it open.
        pub number: u64,
    }
}

message! {
    /// `Close`, to the file's home.
    pub struct CloseRequest {
        pub closed: Closed,
        /// Whether sizes and times are to be settled in, for the session wrote to other servers.
        pub settle: bool,
    }
}

/// A list of at most `CLOSE_COUNT_MAX` things.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch<T>(pub Vec<T>);

impl<T: Encode> Encode for Batch<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Batch<T> {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let items: Vec<T> = Decode::decode(input)?;
        if items.len() > CLOSE_COUNT_MAX {
            return Err(Malformed("too many open files in one message"));
        }
        Ok(Batch(items))
    }
}

message! {
    /// `CloseMany`, to the home of all of them.
    pub struct CloseManyRequest {
        pub closed: Batch<Closed>,
    }
}

message! {
    /// `Reclaim`, to the home of all of them: the session has these files open. After a restart of the server, or when
    /// it had forgotten the session, with all that it has open; `last` ends them. Idempotent.
    pub struct ReclaimRequest {
        pub files: Batch<FileId>,
        pub last: bool,
    }
}

message! {
    /// Reply of `Reclaim`: the number of all these opens.
    pub struct ReclaimReply {
        pub number: u64,
    }
}

message! {
    /// `MakeTemporary`: a file without a name, open. Its home is the slot that the caller drew. Reply: `OpenReply`.
    pub struct MakeTemporaryRequest {
        /// Where it would be if it had a name; tells the server nothing but that it is there.
        pub directory: FileId,
        pub slot: Slot,
        /// Permission bits, after the caller's umask.
        pub mode: u32,
        pub layout: LayoutWish,
        /// Whether `LinkOpen` may give it a name.
        pub linkable: bool,
        /// Its group, when that is the directory's; else it is the caller's.
        pub group: Option<u32>,
    }
}

message! {
    /// `LinkOpen`, to the file's home: `to` becomes a name of the file.
    pub struct LinkOpenRequest<'a> {
        pub file: FileId,
        pub to: Entry<'a>,
    }
}
