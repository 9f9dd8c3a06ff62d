//! Parameters of every request and reply, in the order of `Operation`. A reply with a status other than `Ok` carries
//! an `ErrorDetail` instead of its own parameters.

use crate::attributes::{Attributes, Kind};
use crate::codec::{Decode, Decoder, Encode, Malformed};
use crate::identity::FileId;
use crate::layout::{ChunkRange, Layout, LayoutWish};
use crate::limits::{ANCESTOR_COUNT_MAX, PATH_SIZE_MAX, PIECE_COUNT_MAX};
use crate::message;
pub use crate::messages_backing::*;
pub use crate::messages_check::*;
pub use crate::messages_contact::*;
pub use crate::messages_directories::*;
pub use crate::messages_entries::*;
pub use crate::messages_extended::*;
pub use crate::messages_locks::*;
use crate::names::Name;

pub use crate::messages_data::*;
pub use crate::messages_open::*;
pub use crate::messages_rights::{CheckCallerRequest, RemoveRequest};
pub use crate::messages_space::*;
pub use crate::messages_synchronise::{SynchroniseReply, SynchroniseRequest};
pub use crate::messages_tree::*;

message! {
    /// Why a request failed, for people: names the file, server and operation, and what to do.
    pub struct ErrorDetail<'a> {
        /// The directory of a `StaleDirectory`, the file of a `StaleFile`, else 0.
        pub id: FileId,
        /// The target of an `IsSymlink`, else words for people.
        pub text: &'a [u8],
    }
}

/// Ids of the directories that a path was resolved through, nearest first, without the parent itself.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ancestors(pub Vec<FileId>);

impl Encode for Ancestors {
    fn encode(&self, out: &mut Vec<u8>) {
        let count = self.0.len().min(ANCESTOR_COUNT_MAX);
        out.push(count as u8);
        for id in &self.0[..count] {
            id.encode(out);
        }
    }
}

impl<'a> Decode<'a> for Ancestors {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let count = u8::decode(input)? as usize;
        if count > ANCESTOR_COUNT_MAX {
            return Err(Malformed("too many ancestors"));
        }
        let mut ids = Vec::with_capacity(count);
        for _ in 0..count {
            ids.push(FileId::decode(input)?);
        }
        Ok(Ancestors(ids))
    }
}

message! {
    /// A directory entry by its parent's id. Heads every request that names one.
    pub struct Entry<'a> {
        pub parent: FileId,
        pub name: Name<'a>,
        pub ancestors: Ancestors,
        /// The last tree change that the sender knew when it resolved the path to `parent`.
        pub known: u64,
    }
}

message! {
    /// `Lookup` and `Stat`.
    pub struct EntryRequest<'a> {
        pub entry: Entry<'a>,
    }
}

message! {
    /// Reply of `Lookup` and `Stat`, and of every request that makes an inode. `target` is set for symbolic links.
    /// Attributes are those of the inode with all announced sizes glimpsed, except that a `Lookup` glimpses nothing.
    pub struct EntryReply<'a> {
        pub attributes: Attributes,
        pub target: &'a [u8],
    }
}

/// Open flags as they travel. Unknown bits are refused.
pub mod open_flags {
    pub const CREATE: u32 = 1;
    pub const EXCLUSIVE: u32 = 2;
    pub const TRUNCATE: u32 = 4;
    /// A symbolic link at the end is an error instead of an answer to follow.
    pub const NO_FOLLOW: u32 = 8;
    /// By id: also a file that has lost its last name, while somebody has it open.
    pub const NAMELESS: u32 = 16;
    /// The caller reads by short circuit, and would read from the start of what is there: where its first bytes are
    /// saves it a question. Without CREATE and TRUNCATE, whose replies are kept.
    pub const PLACES: u32 = 32;
    /// The caller has nothing to read by short circuit, and would read from the start of what is there: the contents of
    /// a small file, with a lease of them, save it a question. Without CREATE and TRUNCATE too.
    pub const CONTENTS: u32 = 64;
    /// What is opened by name.
    pub const ALL: u32 = CREATE | EXCLUSIVE | TRUNCATE | NO_FOLLOW | PLACES | CONTENTS;
}

message! {
    /// `Open` (with any of CREATE and TRUNCATE) and `OpenExisting` (with neither).
    pub struct OpenRequest<'a> {
        pub entry: Entry<'a>,
        pub flags: u32,
        /// Rights wanted: 4 read, 2 write, 1 execute; 0 asks for no check.
        pub access: u8,
        /// Of a new file: permission bits, after the caller's umask.
        pub mode: u32,
        /// Of a new file: how it is spread over the servers.
        pub layout: LayoutWish,
        /// Of a new file: its group, when that is the directory's; else it is the caller's.
        pub group: Option<u32>,
    }
}

message! {
    /// `OpenId` (with TRUNCATE) and `OpenIdExisting` (without): an open by identity, or one that goes on at the home of
    /// the inode after the server of the name answered `Elsewhere`. CREATE only says that the name may also be made;
    /// EXCLUSIVE is refused.
    pub struct OpenIdRequest {
        pub file: FileId,
        pub flags: u32,
        pub access: u8,
    }
}

message! {
    /// `Link`, to the server of `from`: `to` becomes one more name of what `from` names.
    pub struct LinkRequest<'a> {
        pub from: Entry<'a>,
        pub to: Entry<'a>,
    }
}

/// Flags of `RenameRequest`. Unknown bits, and both together, are refused.
pub mod rename_flags {
    /// `to` must not exist.
    pub const NO_REPLACE: u32 = 1;
    /// Both exist and change places.
    pub const EXCHANGE: u32 = 2;
    /// The caller must own what `from` names: its directory is sticky and another user's.
    pub const OWNED_SOURCE: u32 = 4;
    /// The caller must own what `to` names, if anything: likewise.
    pub const OWNED_TARGET: u32 = 8;
    pub const ALL: u32 = 15;
}

message! {
    /// `Rename`, to the server of `from`. Reply: of files nothing, of directories a `RenamedReply`.
    pub struct RenameRequest<'a> {
        pub from: Entry<'a>,
        pub to: Entry<'a>,
        pub flags: u32,
    }
}

message! {
    /// Reply of `Open`, `OpenExisting`, `OpenId`, `OpenIdExisting` and `MakeTemporary`.
    pub struct OpenReply {
        pub attributes: Attributes,
        pub created: bool,
        /// The number of this open, which its close names; 0 for a directory.
        pub open_number: u64,
        /// To PLACES: where the bytes of chunk 0 are, if the file's home has it, lends it and finds it in few pieces.
        pub places: Option<LocateReply>,
        /// To CONTENTS: all bytes of a file of at most `LEASED_SIZE_MAX` bytes that its home has and that did not
        /// change lately.
        pub contents: Option<LeasedContents>,
    }
}

/// The contents of a file, which stay as they are for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedContents {
    /// Nanoseconds, from when the open was sent on.
    pub time: u64,
    pub bytes: Box<[u8]>,
}

impl Encode for LeasedContents {
    fn encode(&self, out: &mut Vec<u8>) {
        self.time.encode(out);
        (&*self.bytes).encode(out);
    }
}

impl<'a> Decode<'a> for LeasedContents {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        Ok(LeasedContents { time: Decode::decode(input)?, bytes: <&[u8]>::decode(input)?.into() })
    }
}

message! {
    /// `StatId`: by file id, to the file's home.
    pub struct FileRequest {
        pub file: FileId,
    }
}

/// Which fields of `SetAttributesRequest` count.
pub mod set_mask {
    pub const MODE: u32 = 1;
    pub const UID: u32 = 2;
    pub const GID: u32 = 4;
    pub const ATIME: u32 = 8;
    pub const MTIME: u32 = 16;
    /// The times are the server's now instead of those given.
    pub const ATIME_NOW: u32 = 32;
    pub const MTIME_NOW: u32 = 64;
    pub const ALL: u32 = 127;
}

message! {
    /// chmod, chown and utimens, to the file's home. Reply: `EntryReply`.
    pub struct SetAttributesRequest {
        pub file: FileId,
        pub mask: u32,
        pub mode: u32,
        pub uid: u32,
        pub gid: u32,
        pub atime: i64,
        pub mtime: i64,
    }
}

message! {
    /// `MakeDirectory`. Reply: `EntryReply`.
    pub struct MakeDirectoryRequest<'a> {
        pub entry: Entry<'a>,
        pub mode: u32,
        /// As in `OpenRequest`.
        pub group: Option<u32>,
    }
}

/// The target of a symbolic link: 1 to 4,095 bytes without NUL.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target<'a>(pub &'a [u8]);

impl Encode for Target<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl<'a> Decode<'a> for Target<'a> {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let bytes: &[u8] = Decode::decode(input)?;
        if bytes.is_empty() || bytes.len() >= PATH_SIZE_MAX || bytes.contains(&0) {
            return Err(Malformed("target of a symbolic link is not valid"));
        }
        Ok(Target(bytes))
    }
}

message! {
    /// `MakeSymlink`. Reply: `EntryReply`.
    pub struct MakeSymlinkRequest<'a> {
        pub entry: Entry<'a>,
        pub target: Target<'a>,
        /// As in `OpenRequest`.
        pub group: Option<u32>,
    }
}

message! {
    /// `MakeNode`: a pipe, socket or device. Reply: `EntryReply`.
    pub struct MakeNodeRequest<'a> {
        pub entry: Entry<'a>,
        pub kind: Kind,
        pub mode: u32,
        /// The number of a device; else 0.
        pub device: u32,
        /// As in `OpenRequest`.
        pub group: Option<u32>,
    }
}

message! {
    /// One server's share of a directory, from a cursor on, in cursor order. The reply's body is a sequence of
    /// `ListingEntry`; its parameters are a `ListingReply`.
    pub struct ReadDirectoryRequest {
        pub directory: FileId,
        /// 0 at first, then the `next_cursor` of the page before.
        pub cursor: u64,
        /// Bytes of entries that the caller takes, at most `LISTING_PAGE_SIZE_MAX`.
        pub size_max: u32,
        /// Whether entries carry attributes where the inode is on this server.
        pub with_attributes: bool,
        /// The path that the directory was resolved through, as in `Entry`; none, and `KNOWN_UNCHECKED`, by id alone.
        pub ancestors: Ancestors,
        pub known: u64,
    }
}

message! {
    pub struct ListingReply {
        /// Where the next page starts: a 63-bit number that stays valid whatever else changes.
        pub next_cursor: u64,
        /// Whether this page was the last.
        pub end: bool,
    }
}

message! {
    pub struct ListingEntry<'a> {
        /// Cursor of the entry after this one.
        pub next_cursor: u64,
        pub id: FileId,
        pub kind: Kind,
        pub name: Name<'a>,
        /// Present on request and where the inode is on this server; `size_final` tells whether servers still have
        /// sizes to announce (then `StatId` at the home glimpses them).
        pub attributes: Option<Box<Attributes>>,
        pub size_final: bool,
    }
}

message! {
    /// Reply of `StatFileSystem`: this server's share.
    pub struct FileSystemReply {
        pub bytes_total: u64,
        pub bytes_free: u64,
        pub inodes: u64,
        pub chunks: u64,
        pub journal_bytes: u64,
        /// Where there is a backing tree.
        pub backing: Option<BackingShare>,
    }
}

message! {
    /// What a server knows of space in a cluster over a backing tree.
    pub struct BackingShare {
        /// Bytes here, not free, that are behind as well, at least: they make room when there is none.
        pub bytes_clean: u64,
        pub carries: CarryTime,
        /// Of the file system of the tree; from the home of the root alone, and if it answers in time.
        pub space: Option<BackingSpace>,
    }
}

message! {
    #[derive(Copy)]
    pub struct BackingSpace {
        pub bytes_total: u64,
        /// What the user of the servers may still take.
        pub bytes_free: u64,
    }
}

/// When changes are carried to the backing tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum CarryTime {
    ByItself = 0,
    /// When somebody asks for it.
    Asked = 1,
    Never = 2,
}

impl Encode for CarryTime {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
}

impl<'a> Decode<'a> for CarryTime {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let code = u8::decode(input)?;
        let all = [CarryTime::ByItself, CarryTime::Asked, CarryTime::Never];
        all.into_iter().find(|time| *time as u8 == code).ok_or(Malformed("time of flushes is unknown"))
    }
}

/// Ranges of a data request, in the order of the body's bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Pieces(pub Vec<ChunkRange>);

impl Encode for Pieces {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl<'a> Decode<'a> for Pieces {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let pieces: Vec<ChunkRange> = Decode::decode(input)?;
        if pieces.is_empty() || pieces.len() > PIECE_COUNT_MAX {
            return Err(Malformed("number of pieces is out of range"));
        }
        Ok(Pieces(pieces))
    }
}

message! {
    /// `Read` and `Write`, to the server of the chunks. All pieces lie on that server.
    pub struct DataRequest {
        pub file: FileId,
        pub layout: Layout,
        pub pieces: Pieces,
        /// Of a `Write`: the CRC-32C of each piece's bytes, as they are in the caller's memory. May be none where the
        /// server keeps no checksums.
        pub sums: Vec<u32>,
    }
}

message! {
    /// Reply of `Read`. The body holds all pieces whole, with zeros where nothing was ever written.
    pub struct ReadReply {
        /// Whether every piece lies wholly before some byte that this server holds of that chunk; else the caller has
        /// to know the file's size to tell a hole from the end.
        pub complete: bool,
        /// The file's size, when this server is its home and no other server has announced itself; else `None`.
        pub size: Option<u64>,
        /// The CRC-32C of each piece's bytes, as they were given once; none where the server keeps no checksums.
        pub sums: Vec<u32>,
    }
}

message! {
    /// Reply of `Write`.
    pub struct WriteReply {
        /// The file's size as far as this server knows, in bytes.
        pub end: u64,
        /// Whether it keeps checksums, so that writes have to bring theirs.
        pub keeps_sums: bool,
    }
}

message! {
    /// `Truncate`, to the file's home. Reply: `EntryReply`.
    pub struct TruncateRequest {
        pub file: FileId,
        pub size: u64,
        /// Whether the caller has to have the right to write: not through a file that is open for writing.
        pub check: bool,
    }
}

message! {
    /// `ReserveAppend`: moves the end of the file and answers where it was. Reply: `ReserveAppendReply`.
    pub struct ReserveAppendRequest {
        pub file: FileId,
        pub size: u64,
    }
}

message! {
    pub struct ReserveAppendReply {
        pub offset: u64,
    }
}

message! {
    /// `Statistics`: the reply's body is text, in the format asked for.
    pub struct StatisticsRequest {
        pub format: StatisticsFormat,
    }
}

/// What a server's counters are told as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatisticsFormat {
    /// A JSON object, with so many of the youngest samples.
    Json { samples: u32 },
    /// Prometheus text.
    Prometheus,
}

impl StatisticsFormat {
    /// With the last sample.
    pub const JSON: StatisticsFormat = StatisticsFormat::Json { samples: 1 };
    /// With all samples that are kept.
    pub const JSON_WHOLE: StatisticsFormat = StatisticsFormat::Json { samples: u32::MAX };
}

impl Encode for StatisticsFormat {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            StatisticsFormat::Json { samples } => {
                out.push(0);
                samples.encode(out);
            }
            StatisticsFormat::Prometheus => out.push(1),
        }
    }
}

impl<'a> Decode<'a> for StatisticsFormat {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        match u8::decode(input)? {
            0 => Ok(StatisticsFormat::Json { samples: Decode::decode(input)? }),
            1 => Ok(StatisticsFormat::Prometheus),
            _ => Err(Malformed("format of the statistics is unknown")),
        }
    }
}

message! {
    /// `Ping`, `Shutdown`, `StatFileSystem`: nothing to say.
    pub struct Empty {}
}

message! {
    /// `Announce`: server `server` is about to hold bytes of the file. Journalled at the home before the reply.
    /// Idempotent: repeating an (server, generation) changes nothing.
    pub struct AnnounceRequest {
        pub file: FileId,
        pub server: u32,
        /// Rises with every announcement of that server for that file.
        pub generation: u32,
    }
}

message! {
    /// Reply of `Announce`.
    pub struct AnnounceReply {
        pub truncate_generation: u32,
        /// As in `Attributes`.
        pub times_set: i64,
    }
}

message! {
    /// `Glimpse`: the home asks for what a server knows of the file's size and time. With `retract` the server's
    /// announcement ends with this reply.
    pub struct GlimpseRequest {
        pub file: FileId,
        pub retract: bool,
    }
}

message! {
    /// Reply of `Glimpse`.
    pub struct GlimpseReply {
        /// End of the last byte that this server holds, as an offset in the file; 0 when it holds none.
        pub end: u64,
        pub mtime: i64,
        pub truncate_generation: u32,
        /// The announcement that ended or stands; 0 when there is none.
        pub announce_generation: u32,
    }
}

message! {
    /// `ReapChunks`: the file is gone for good; free all its chunks. Idempotent.
    pub struct ReapChunksRequest {
        pub file: FileId,
    }
}

message! {
    /// `TruncateChunks`: drop what lies beyond `size`, unless this or a later generation was seen. Idempotent.
    pub struct TruncateChunksRequest {
        pub file: FileId,
        pub layout: Layout,
        pub size: u64,
        pub generation: u32,
    }
}

message! {
    /// `MarkDirectory`: phase one of rmdir. `Ok` means: empty here, and nothing is created under it until resolved.
    /// `NotEmpty` refuses. Idempotent by (directory, coordinator, attempt).
    pub struct MarkDirectoryRequest {
        pub directory: FileId,
        pub coordinator: u32,
        pub attempt: u64,
    }
}

message! {
    /// `ResolveDirectory`: phase two: a tombstone, or the mark is lifted. Idempotent.
    pub struct ResolveDirectoryRequest {
        pub directory: FileId,
        pub attempt: u64,
        pub removed: bool,
    }
}

/// What may be at a name that is to change.
pub mod entry_rules {
    /// Nothing.
    pub const ABSENT: u8 = 0;
    /// Nothing, or what gives way to the new one: a directory to a directory, anything else to anything else.
    pub const REPLACE: u8 = 1;
    /// Something.
    pub const EXCHANGE: u8 = 2;
}

message! {
    /// `PrepareDentry`: the name is to lead to `id`, if what is there now fits the rule. Locked until resolved; nobody
    /// sees it meanwhile. Reply: `PrepareReply`. Idempotent by (coordinator, number).
    pub struct PrepareDentryRequest<'a> {
        pub coordinator: u32,
        pub number: u64,
        pub parent: FileId,
        pub name: Name<'a>,
        pub id: FileId,
        pub kind: Kind,
        pub rule: u8,
    }
}

message! {
    /// `PrepareLink`: the inode is to get one name more (`up`) or less. Reply: `PrepareReply`. Idempotent by
    /// (coordinator, number).
    pub struct PrepareLinkRequest {
        pub coordinator: u32,
        pub number: u64,
        pub file: FileId,
        pub up: bool,
    }
}

message! {
    /// `NoteRenamed`, to the home of what gets another name on other servers: it changes now, and not before this time.
    /// Reply: `Empty`. One that comes twice moves the time twice, and nothing else.
    pub struct NoteRenamedRequest {
        pub file: FileId,
        pub time: i64,
    }
}

message! {
    /// Reply of `PrepareDentry` and `PrepareLink`.
    pub struct PrepareReply {
        /// Code of a `Status`: `Ok` when it is prepared; `Busy` when another change is under way; else why it can't be.
        pub verdict: u32,
        /// What the name leads to now.
        pub found: Option<FileId>,
        pub kind: Option<Kind>,
    }
}

message! {
    /// `ResolvePrepared`: what was prepared is done, or let go. Idempotent.
    pub struct ResolvePreparedRequest {
        pub coordinator: u32,
        pub number: u64,
        pub commit: bool,
    }
}

message! {
    /// `AskDecision`: a participant that has heard nothing asks the coordinator.
    pub struct AskDecisionRequest {
        pub number: u64,
    }
}

message! {
    /// Reply of `AskDecision`. Neither: not decided yet.
    pub struct AskDecisionReply {
        pub commit: bool,
        pub abort: bool,
    }
}
