//! Parameters of operations on the contents of files beside reading and writing them.

use crate::codec::{Decode, Decoder, Encode, Malformed};
use crate::identity::FileId;
use crate::layout::{ChunkRange, Layout};
use crate::message;
use crate::messages::Pieces;

message! {
    /// `Append`, to the file's home, with the bytes as body: they are placed at the end of the file, all or none.
    /// Reply: `ReserveAppendReply`.
    pub struct AppendRequest {
        pub file: FileId,
        /// The CRC-32C of the bytes, as they are in the caller's memory. May be missing where the server keeps no
        /// checksums.
        pub sum: Option<u32>,
    }
}

/// What `AllocateRequest` asks for.
pub mod allocate_mode {
    /// Pages for what has none: the first write of each byte finds room. Contents stay.
    pub const RESERVE: u8 = 0;
    /// The range reads as zeros; whole pages in it are freed.
    pub const PUNCH: u8 = 1;
    /// The range reads as zeros and has pages.
    pub const ZERO: u8 = 2;
    /// Nothing but the growth of the file.
    pub const GROW: u8 = 3;
}

message! {
    /// `Allocate`, to each server with chunks in the range; every server does what concerns its own chunks as one
    /// change. Of chunks that one server has, at most `ALLOCATE_CHUNK_COUNT_MAX` may lie in the range, except for
    /// `PUNCH`. Reply: `WriteReply`.
    pub struct AllocateRequest {
        pub file: FileId,
        pub layout: Layout,
        /// Range in the file, in bytes.
        pub offset: u64,
        pub size: u64,
        pub mode: u8,
        /// To the home only: the file has at least as many bytes as the range's end.
        pub grow: bool,
    }
}

message! {
    /// `Seek`, to all servers that may have chunks of the file from `offset` on.
    pub struct SeekRequest {
        pub file: FileId,
        pub layout: Layout,
        pub offset: u64,
        /// Whether a hole is looked for, else data.
        pub hole: bool,
    }
}

message! {
    /// Reply of `Seek`.
    pub struct SeekReply {
        /// The first byte of that kind in this server's chunks, as an offset in the file; `None` when there is none.
        /// Beyond the file's end all is hole.
        pub found: Option<u64>,
        /// False when the look was given up at `found`: there is none before, and it goes on there.
        pub exact: bool,
    }
}

message! {
    /// `CopyRange`, to the server of the target's chunk, which fetches the bytes from that of the source's. Reply:
    /// `WriteReply`.
    pub struct CopyRangeRequest {
        pub source: FileId,
        pub source_layout: Layout,
        /// At most `COPY_SIZE_MAX` bytes within one chunk.
        pub from: ChunkRange,
        pub target: FileId,
        pub target_layout: Layout,
        /// As many bytes, within one chunk.
        pub to: ChunkRange,
    }
}

message! {
    /// `ReserveChunks`: the home is about to send bytes of an append, and asks for room. Idempotent.
    pub struct ReserveChunksRequest {
        pub file: FileId,
        pub layout: Layout,
        pub pieces: Pieces,
        /// Whether what comes from behind, and room that what goes behind leaves, is waited for. `NoSpace` else: the
        /// home has the file's turn then, which a flush may need.
        pub patient: bool,
    }
}

message! {
    /// `WriteChunks`, with the bytes of all pieces as body: a part of a change that the home has decided. A number is
    /// done once, and none after a higher one of the same file. Reply: `Empty`.
    pub struct WriteChunksRequest {
        pub file: FileId,
        pub layout: Layout,
        pub number: u64,
        pub pieces: Pieces,
        /// The CRC-32C of each piece's bytes.
        pub sums: Vec<u32>,
        /// The home's own medium has damaged the bytes since it was decided: what comes does not fit its checksums, and
        /// is to be kept so, for whoever reads it is to hear of the damage.
        pub damaged: bool,
    }
}

/// Where some bytes of a chunk lie in the region that a server lends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BytePlace {
    pub chunk: u64,
    /// First byte within the chunk.
    pub offset: u32,
    pub size: u32,
    /// First byte within the region.
    pub at: u64,
}

impl Encode for BytePlace {
    fn encode(&self, out: &mut Vec<u8>) {
        self.chunk.encode(out);
        self.offset.encode(out);
        self.size.encode(out);
        self.at.encode(out);
    }
}

impl<'a> Decode<'a> for BytePlace {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let (chunk, offset) = (Decode::decode(input)?, Decode::decode(input)?);
        Ok(BytePlace { chunk, offset, size: Decode::decode(input)?, at: Decode::decode(input)? })
    }
}

/// Most places in one reply.
pub const PLACE_COUNT_MAX: usize = 512;
/// Most places in the reply of an open.
pub const OPEN_PLACE_COUNT_MAX: usize = 4;

message! {
    /// Reply of `Locate`, which asks as `Read` does, for the places of all bytes of the chunks that its pieces are in.
    /// They are the chunks' as long as no stamp of theirs is above `number`. An open may be answered so for the file's
    /// first chunk.
    pub struct LocateReply {
        pub number: u64,
        /// Sorted by chunk and offset, at most `PLACE_COUNT_MAX`, of whole chunks; empty when the server lends nothing.
        pub places: Vec<BytePlace>,
    }
}

/// Registered buffers that one request gives back at most.
pub const BUFFER_COUNT_MAX: usize = 64;
/// Pieces that one `CommitRegistered` names at most.
pub const REGISTERED_PIECE_COUNT_MAX: usize = 512;

message! {
    /// `RegisterBuffers`: asks for pages of the server's memory to write into, for a client that has it mapped. Reply:
    /// `RegisterBuffersReply`.
    pub struct RegisterBuffersRequest {
        /// Registered buffers that the client has unmapped and never writes to again; at most `BUFFER_COUNT_MAX`.
        pub returned: Vec<u64>,
        /// Bytes wished for, in whole pages of 4 KiB; 0 only gives back.
        pub size: u64,
    }
}

message! {
    /// Reply of `RegisterBuffers`.
    pub struct RegisterBuffersReply {
        /// Names the registered buffer; never repeats.
        pub generation: u64,
        /// First byte within the region that the server lends, and number of bytes: whole pages. None: nothing is
        /// registered.
        pub at: u64,
        pub size: u64,
    }
}

/// Where the bytes of a piece are: in pages of a registered buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegisteredPlace {
    pub generation: u64,
    /// First byte of the first page within the region; the piece begins as far behind it as within its page of the
    /// chunk.
    pub at: u64,
}

impl Encode for RegisteredPlace {
    fn encode(&self, out: &mut Vec<u8>) {
        self.generation.encode(out);
        self.at.encode(out);
    }
}

impl<'a> Decode<'a> for RegisteredPlace {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        Ok(RegisteredPlace { generation: Decode::decode(input)?, at: Decode::decode(input)? })
    }
}

message! {
    /// `CommitRegistered`, a `Write` whose bytes are in pages of registered buffers already. Reply:
    /// `CommitRegisteredReply`.
    pub struct CommitRegisteredRequest {
        pub file: FileId,
        pub layout: Layout,
        /// At most `REGISTERED_PIECE_COUNT_MAX`.
        pub pieces: Pieces,
        /// One for each piece.
        pub places: Vec<RegisteredPlace>,
    }
}

message! {
    /// Reply of `CommitRegistered`.
    pub struct CommitRegisteredReply {
        /// As in `WriteReply`. None: the pages are not registered for this connection, or were committed before;
        /// nothing has happened.
        pub end: Option<u64>,
    }
}

message! {
    /// `AwaitPermit`: answered when the connection has a permit for one large body of a collective call, or after a
    /// second. Its place in the queue stays then, and it is asked for again with the same number. May be sent again.
    pub struct AwaitPermitRequest {
        /// Which permit, of those of the connection.
        pub number: u64,
    }
}

message! {
    pub struct AwaitPermitReply {
        pub is_granted: bool,
    }
}

message! {
    /// `NoteCounters`: what a client that shares no memory with the server has done without it since the connection
    /// began (docs/counters.md). Only numbers that have grown count, so it may be sent again. Reply: `Empty`.
    pub struct NoteCountersRequest {
        pub cached_opens: u64,
        pub cached_looks: u64,
        pub short_circuit_reads: u64,
        pub short_circuit_bytes: u64,
        pub leased_reads: u64,
        pub leased_bytes: u64,
        pub answers: u64,
        pub answer_ns: u64,
        pub served_ns: u64,
        pub crossing_calls: u64,
    }
}

message! {
    /// `ReturnPermit`: it is not needed any more, whether it was granted or is still waited for. Reply: `Empty`.
    pub struct ReturnPermitRequest {
        pub number: u64,
    }
}
