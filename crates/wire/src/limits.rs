//! Limits that both sides of every connection keep. What a peer sends is checked against them before it is used.

/// Longest name of one directory entry, in bytes.
pub const NAME_SIZE_MAX: usize = 255;
/// Longest path, and longest target of a symbolic link, in bytes.
pub const PATH_SIZE_MAX: usize = 4096;
/// Deepest chain of symbolic links that a path may follow before it is refused with ELOOP.
pub const SYMLINK_DEPTH_MAX: usize = 40;
/// Ancestors that a request may name; deeper paths name the nearest ones only.
pub const ANCESTOR_COUNT_MAX: usize = 64;

/// Largest parameter block of a message, in bytes. Receive buffers hold one whole block.
pub const PARAMS_SIZE_MAX: usize = 32 * 1024;
/// Largest body of a message, in bytes: one chunk of the largest size fits.
pub const BODY_SIZE_MAX: usize = 64 << 20;
/// Largest file whose contents an open is told, in bytes: they are parameters of its reply.
pub const LEASED_SIZE_MAX: usize = 16 << 10;
/// Pieces (ranges within chunks) that one read or write request may name.
pub const PIECE_COUNT_MAX: usize = 1024;

/// Longest name of an extended attribute, name space included, in bytes.
pub const EXTENDED_NAME_SIZE_MAX: usize = 255;
/// Largest value of an extended attribute, and most bytes of all names and values of one inode.
pub const EXTENDED_SIZE_MAX: usize = 64 << 10;

/// Smallest and largest chunk size, in bytes.
pub const CHUNK_SIZE_MIN: u32 = 4096;
pub const CHUNK_SIZE_MAX: u32 = 64 << 20;
/// Chunk size of files whose creator did not choose, in bytes.
pub const CHUNK_SIZE_DEFAULT: u32 = 1 << 20;
/// Largest file size and offset, in bytes.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;

/// Largest append that the home places as a whole, in bytes; larger ones get their offset there.
pub const APPEND_SIZE_MAX: usize = 64 << 10;
/// Chunks of one server that one request may reserve or zero: what is journalled of them fits into a record.
pub const ALLOCATE_CHUNK_COUNT_MAX: usize = 32;
/// Bytes that one request may have copied between servers.
pub const COPY_SIZE_MAX: u32 = 256 << 10;

/// Fewest and most slots of a cluster; a cluster has a multiple of its server count in between.
pub const SLOT_COUNT_MIN: u32 = 1024;
pub const SLOT_COUNT_MAX: u32 = 1 << 20;
pub const SLOTS_PER_SERVER_MIN: u32 = 16;
pub const SERVER_COUNT_MAX: u32 = SLOT_COUNT_MAX / SLOTS_PER_SERVER_MIN;

/// Most names of one file.
pub const LINK_COUNT_MAX: u32 = 65_000;

/// Requests without a reply that one connection may have: also the outcomes that a server keeps of a session.
pub const REQUEST_WINDOW: u32 = 64;
/// Bytes of request bodies that one connection may have under way; a single larger body is let through alone.
pub const BYTES_WINDOW: u64 = BODY_SIZE_MAX as u64;
/// Largest reply that is kept for a resend, in bytes.
pub const OUTCOME_SIZE_MAX: usize = 512;
/// Bytes of one page of a directory listing.
pub const LISTING_PAGE_SIZE_MAX: u32 = 256 << 10;

/// Open files that one message names: closes, and what a session reclaims.
pub const CLOSE_COUNT_MAX: usize = 1024;

/// Parts of files, and chunks of these, that one request has staged at most. Chunks between them that are another
/// server's count as well.
pub const STAGE_PARTS_MAX: usize = 256;
pub const STAGE_CHUNKS_MAX: u64 = 1 << 12;
/// Files that one session may have open at one server.
pub const OPEN_COUNT_MAX: usize = 65_536;

const _: () = assert!(REQUEST_WINDOW.is_power_of_two());
const _: () = assert!(CHUNK_SIZE_MAX as usize <= BODY_SIZE_MAX);
