//! Parameters of requests about locks of files: flock, and ranges of POSIX and of open file descriptions.

use crate::codec::{Decode, Decoder, Encode, Malformed};
use crate::identity::FileId;
use crate::limits::FILE_SIZE_MAX;
use crate::message;

/// End of a range that reaches to the end of the file, however long it gets.
pub const LOCK_END: u64 = FILE_SIZE_MAX + 1;

/// Who may own a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum OwnerKind {
    /// A process: all its descriptors of the file share its locks, and closing any of them releases all (POSIX).
    Process = 1,
    /// An open file description.
    Description = 2,
}

/// An owner of locks. Only ids of one session and kind are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner {
    pub session: u64,
    pub kind: OwnerKind,
    pub id: u64,
}

impl Encode for LockOwner {
    fn encode(&self, out: &mut Vec<u8>) {
        self.session.encode(out);
        out.push(self.kind as u8);
        self.id.encode(out);
    }
}

impl<'a> Decode<'a> for LockOwner {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let session = Decode::decode(input)?;
        Ok(LockOwner { session, kind: Decode::decode(input)?, id: Decode::decode(input)? })
    }
}

impl Encode for OwnerKind {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
}

impl<'a> Decode<'a> for OwnerKind {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        match u8::decode(input)? {
            1 => Ok(OwnerKind::Process),
            2 => Ok(OwnerKind::Description),
            _ => Err(Malformed("kind of a lock's owner is unknown")),
        }
    }
}

/// Locks of different spaces know nothing of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LockSpace {
    /// flock(2): of whole files, by open file descriptions.
    Whole = 1,
    /// fcntl(2): of ranges of bytes.
    Ranges = 2,
}

impl Encode for LockSpace {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
}

impl<'a> Decode<'a> for LockSpace {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        match u8::decode(input)? {
            1 => Ok(LockSpace::Whole),
            2 => Ok(LockSpace::Ranges),
            _ => Err(Malformed("space of a lock is unknown")),
        }
    }
}

/// A range of bytes that a request is about: not empty, up to `LOCK_END`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRange {
    pub start: u64,
    /// The first byte behind the range.
    pub end: u64,
}

impl LockRange {
    /// A whole file.
    pub const WHOLE: LockRange = LockRange { start: 0, end: LOCK_END };
}

impl Encode for LockRange {
    fn encode(&self, out: &mut Vec<u8>) {
        self.start.encode(out);
        self.end.encode(out);
    }
}

impl<'a> Decode<'a> for LockRange {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let range = LockRange { start: Decode::decode(input)?, end: Decode::decode(input)? };
        if range.start >= range.end || range.end > LOCK_END {
            return Err(Malformed("range of a lock is empty or too long"));
        }
        Ok(range)
    }
}

message! {
    /// What a lock request is about, to the file's home. The owner's session is that of the connection.
    pub struct LockDescription {
        pub file: FileId,
        pub space: LockSpace,
        pub kind: OwnerKind,
        /// Chosen by the client; the same process or description has the same one at all times.
        pub owner: u64,
        pub range: LockRange,
        pub exclusive: bool,
        /// Chosen by the client: names this one request of its session. Never 0.
        pub ticket: u64,
    }
}

message! {
    /// `Lock`. Reply: `LockReply`. Without `wait` a lock that is held is `WouldBlock`; with it the request is put into
    /// the queue, and `AwaitLock` tells when it was granted.
    pub struct LockRequest {
        pub wish: LockDescription,
        pub wait: bool,
    }
}

/// How a lock stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum LockState {
    Granted = 1,
    /// In the queue.
    Waiting = 2,
    /// Neither held nor in the queue: the server was started anew. To be asked for again.
    Unknown = 3,
}

impl Encode for LockState {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
}

impl<'a> Decode<'a> for LockState {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        match u8::decode(input)? {
            1 => Ok(LockState::Granted),
            2 => Ok(LockState::Waiting),
            3 => Ok(LockState::Unknown),
            _ => Err(Malformed("state of a lock is unknown")),
        }
    }
}

message! {
    /// Reply of `Lock`, and of `AwaitLock`, which is never `Waiting`.
    pub struct LockReply {
        pub state: LockState,
    }
}

message! {
    /// `AwaitLock`: answered when the request of this ticket is granted. Changes nothing, so it may be sent again.
    pub struct AwaitLockRequest {
        pub wish: LockDescription,
    }
}

message! {
    /// `Unlock`. A request of this ticket that still waits is taken out of the queue, and that is all; else the owner's
    /// locks in the range go. Reply: `Empty`.
    pub struct UnlockRequest {
        pub wish: LockDescription,
    }
}

message! {
    /// `TestLock`: whether the lock could be had now. The ticket does not matter. Reply: `TestLockReply`.
    pub struct TestLockRequest {
        pub wish: LockDescription,
    }
}

message! {
    /// A lock that is in the way.
    pub struct HeldLock {
        pub owner: LockOwner,
        pub range: LockRange,
        pub exclusive: bool,
    }
}

message! {
    pub struct TestLockReply {
        pub held: Option<HeldLock>,
    }
}
