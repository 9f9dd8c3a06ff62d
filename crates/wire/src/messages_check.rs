//! Messages of the checker: a server's tables in pages, and the repair of what does not fit.

use crate::attributes::Kind;
use crate::codec::{Decode, Decoder, Encode, Malformed};
use crate::identity::FileId;
use crate::message;
use crate::names::Name;

/// Ids that one request may name.
pub const CHECK_ID_COUNT_MAX: usize = 1024;
/// Ids fall into this many parts by their hash.
pub const CHECK_PART_COUNT: usize = 256;

/// What a `CheckRequest` walks. The body of the reply is a sequence of the rows named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum CheckTable {
    /// `CheckName`.
    Names = 1,
    /// `CheckInode`.
    Inodes = 2,
    /// `CheckShare`: files of the store.
    Shares = 3,
    /// `CheckId`: directories that have entries here.
    Parents = 4,
    /// Walks nothing; from now on the server notes which of the ids change. `CheckPromise`: what is under way.
    Watch = 5,
    /// `CheckPromise`: of the ids those that changed since they are watched, and what is under way.
    Watched = 6,
    /// `CheckDamage`: chunks whose checksums do not fit. Reads all data.
    Data = 7,
    /// `CheckId`: those of the ids that the server takes for directories that were removed.
    Removed = 8,
}

impl Encode for CheckTable {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
}

impl<'a> Decode<'a> for CheckTable {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        match u8::decode(input)? {
            1 => Ok(CheckTable::Names),
            2 => Ok(CheckTable::Inodes),
            3 => Ok(CheckTable::Shares),
            4 => Ok(CheckTable::Parents),
            5 => Ok(CheckTable::Watch),
            6 => Ok(CheckTable::Watched),
            7 => Ok(CheckTable::Data),
            8 => Ok(CheckTable::Removed),
            _ => Err(Malformed("table of a check is unknown")),
        }
    }
}

/// Which rows are wanted.
#[derive(Debug, Clone, PartialEq)]
pub enum CheckWanted {
    /// Those of these parts, a bit for each. With `leave_plain_out` names and inodes that are seen to fit on this
    /// server alone come as sums only.
    Parts { bits: [u8; CHECK_PART_COUNT / 8], leave_plain_out: bool },
    /// Those that concern these inodes; of names those that lead to them.
    Ids(Vec<FileId>),
    /// Names in these directories.
    Under(Vec<FileId>),
}

impl Encode for CheckWanted {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            CheckWanted::Parts { bits, leave_plain_out } => {
                out.push(1);
                bits.encode(out);
                leave_plain_out.encode(out);
            }
            CheckWanted::Ids(ids) => {
                out.push(2);
                ids.encode(out);
            }
            CheckWanted::Under(ids) => {
                out.push(3);
                ids.encode(out);
            }
        }
    }
}

fn decode_ids(input: &mut Decoder<'_>) -> Result<Vec<FileId>, Malformed> {
    let ids: Vec<FileId> = Decode::decode(input)?;
    if ids.len() > CHECK_ID_COUNT_MAX {
        return Err(Malformed("more ids than a check may name"));
    }
    Ok(ids)
}

impl<'a> Decode<'a> for CheckWanted {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        match u8::decode(input)? {
            1 => Ok(CheckWanted::Parts { bits: Decode::decode(input)?, leave_plain_out: Decode::decode(input)? }),
            2 => decode_ids(input).map(CheckWanted::Ids),
            3 => decode_ids(input).map(CheckWanted::Under),
            _ => Err(Malformed("choice of a check is unknown")),
        }
    }
}

message! {
    /// `Check`: a page of one of a server's tables.
    pub struct CheckRequest {
        pub table: CheckTable,
        /// 0 and 0 at first, then what the page before said. Of `Watch` and `Watched`: a number of the caller's choice.
        pub position: u64,
        pub position_within: u64,
        pub wanted: CheckWanted,
    }
}

message! {
    /// Of the rows of a page that were left out: the sum of `check_term` of the ids of one part, over inodes (for
    /// names: over what they lead to), modulo 2^64.
    pub struct CheckSum {
        pub part: u8,
        pub sum: u64,
    }
}

message! {
    /// Reply of `Check`.
    pub struct CheckReply {
        pub next_position: u64,
        pub next_position_within: u64,
        pub end: bool,
        /// Entries that were walked, whether or not they are in the body.
        pub walked: u64,
        pub sums: Vec<CheckSum>,
    }
}

message! {
    /// A directory entry.
    pub struct CheckName<'a> {
        pub parent: FileId,
        pub id: FileId,
        pub kind: Kind,
        pub name: Name<'a>,
    }
}

message! {
    /// An inode.
    pub struct CheckInode {
        pub id: FileId,
        pub kind: Kind,
        pub link_count: u32,
        pub size: u64,
        pub truncate_generation: u32,
        /// Of a directory the one that it is in.
        pub parent: Option<FileId>,
        /// Servers that may have chunks of it.
        pub holders: Vec<u32>,
        /// Servers that may know of bytes beyond `size`.
        pub announced: Vec<u32>,
    }
}

message! {
    /// What a server's store has of a file.
    pub struct CheckShare {
        pub file: FileId,
        pub end: u64,
        pub chunk_count: u64,
        pub generation: u32,
        /// The generation under which the server announced itself to the file's home.
        pub announced: Option<u32>,
    }
}

message! {
    pub struct CheckId {
        pub id: FileId,
    }
}

/// Why an id can't be judged now.
pub mod check_reasons {
    /// It changed since it is watched.
    pub const CHANGED: u8 = 1;
    /// An intent is being driven.
    pub const INTENT: u8 = 2;
    /// A change waits for the decision of its coordinator.
    pub const PREPARED: u8 = 3;
    /// A directory is being removed.
    pub const MARK: u8 = 4;
}

message! {
    /// Something that is under way for an inode, or was meanwhile.
    pub struct CheckPromise {
        pub id: FileId,
        pub reason: u8,
    }
}

message! {
    /// A chunk that can't be read.
    pub struct CheckDamage {
        pub file: FileId,
        pub chunk_index: u64,
    }
}

/// One repair. Each is done only if what it repairs is still as it was seen.
#[derive(Debug, Clone, PartialEq)]
pub enum RepairStep<'a> {
    /// Removes a name that leads to this inode.
    RemoveName { parent: FileId, name: Name<'a>, id: FileId },
    /// Makes a name for an inode, where there is none.
    PutName { parent: FileId, name: Name<'a>, id: FileId, kind: Kind },
    /// Sets the link count of an inode.
    SetLinks { file: FileId, from: u32, to: u32 },
    /// Frees the chunks of a file that there is not.
    FreeChunks { file: FileId },
    /// Lets a file end where its last byte is.
    SetSize { file: FileId, from: u64, to: u64 },
    /// Notes that a server holds chunks of a file, and under which generation it announced itself, if it did.
    AddHolder { file: FileId, server: u32, announced: Option<u32> },
    /// Sets the directory that a directory is in.
    SetParent { directory: FileId, parent: FileId },
    /// Has a server forget that a directory was removed.
    LiftTombstone { directory: FileId },
}

impl Encode for RepairStep<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            RepairStep::RemoveName { parent, name, id } => {
                out.push(1);
                parent.encode(out);
                name.encode(out);
                id.encode(out);
            }
            RepairStep::PutName { parent, name, id, kind } => {
                out.push(2);
                parent.encode(out);
                name.encode(out);
                id.encode(out);
                kind.encode(out);
            }
            RepairStep::SetLinks { file, from, to } => {
                out.push(3);
                file.encode(out);
                from.encode(out);
                to.encode(out);
            }
            RepairStep::FreeChunks { file } => {
                out.push(4);
                file.encode(out);
            }
            RepairStep::SetSize { file, from, to } => {
                out.push(5);
                file.encode(out);
                from.encode(out);
                to.encode(out);
            }
            RepairStep::AddHolder { file, server, announced } => {
                out.push(6);
                file.encode(out);
                server.encode(out);
                announced.encode(out);
            }
            RepairStep::SetParent { directory, parent } => {
                out.push(7);
                directory.encode(out);
                parent.encode(out);
            }
            RepairStep::LiftTombstone { directory } => {
                out.push(8);
                directory.encode(out);
            }
        }
    }
}

impl<'a> Decode<'a> for RepairStep<'a> {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        Ok(match u8::decode(input)? {
            1 => RepairStep::RemoveName {
                parent: Decode::decode(input)?,
                name: Decode::decode(input)?,
                id: Decode::decode(input)?,
            },
            2 => RepairStep::PutName {
                parent: Decode::decode(input)?,
                name: Decode::decode(input)?,
                id: Decode::decode(input)?,
                kind: Decode::decode(input)?,
            },
            3 => RepairStep::SetLinks {
                file: Decode::decode(input)?,
                from: Decode::decode(input)?,
                to: Decode::decode(input)?,
            },
            4 => RepairStep::FreeChunks { file: Decode::decode(input)? },
            5 => RepairStep::SetSize {
                file: Decode::decode(input)?,
                from: Decode::decode(input)?,
                to: Decode::decode(input)?,
            },
            6 => RepairStep::AddHolder {
                file: Decode::decode(input)?,
                server: Decode::decode(input)?,
                announced: Decode::decode(input)?,
            },
            7 => RepairStep::SetParent { directory: Decode::decode(input)?, parent: Decode::decode(input)? },
            8 => RepairStep::LiftTombstone { directory: Decode::decode(input)? },
            _ => return Err(Malformed("kind of repair is unknown")),
        })
    }
}

message! {
    /// `Repair`, to the server of the name, the home of the inode, or the server of the chunks.
    pub struct RepairRequest<'a> {
        pub step: RepairStep<'a>,
    }
}

/// The hash of an id that parts and sums go by (the finalizer of splitmix64).
pub fn check_hash(id: FileId) -> u64 {
    let mut value = id.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// What an inode, or a name of one, adds to a sum.
pub fn check_term(id: FileId, kind: Kind) -> u64 {
    check_hash(id).wrapping_mul(2 * kind as u64 + 1)
}

/// The part of an id: the upper bits of its hash.
pub fn check_part(id: FileId) -> usize {
    (check_hash(id) >> (64 - CHECK_PART_COUNT.trailing_zeros())) as usize
}

const _: () = assert!(CHECK_PART_COUNT == 1 << u8::BITS);
