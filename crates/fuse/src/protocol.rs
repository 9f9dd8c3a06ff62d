//! The kernel's language: requests as it writes them and replies as it wants them (linux/fuse.h, version 7.40). All
//! numbers are in the machine's own order. Pure: nothing here reads or writes a device.
//!
//! Nothing of a request is believed before it was looked at: a structure that is too short is an error, a name without
//! an end too.

use crate::keeping::Validity;
use std::io::IoSlice;

/// What the kernel asks for.
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Flags of `Setattr::valid`.
pub mod setattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const HANDLE: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
}

/// A getattr that names an open file.
pub const GETATTR_HANDLE: u32 = 1;
/// A write of mapped pages, at an offset that holds whatever the file was opened with.
pub const WRITE_CACHE: u32 = 1;
/// A write after which the file is nobody's set-user program any more, for whoever writes may not keep it one.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// A lock of flock(2).
pub const LOCK_FLOCK: u32 = 1;
/// An fsync of the contents alone.
pub const FSYNC_DATA: u32 = 1;

/// Bytes in front of every reply.
pub const REPLY_HEADER_SIZE: usize = 16;

/// `FUSE_NOTIFY_RETRIEVE`, in place of the error of a reply to nothing.
const NOTIFY_RETRIEVE: i32 = 5;
const NOTIFY_RETRIEVE_SIZE: usize = 48;

/// What has the kernel send a request: it is asked for no bytes that it has of a node. That request has the number
/// given, which is to be none of the kernel's own.
pub fn retrieve(number: u64, node: u64) -> [u8; NOTIFY_RETRIEVE_SIZE] {
    let mut bytes = [0; NOTIFY_RETRIEVE_SIZE];
    bytes[..4].copy_from_slice(&(NOTIFY_RETRIEVE_SIZE as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&NOTIFY_RETRIEVE.to_ne_bytes());
    bytes[16..24].copy_from_slice(&number.to_ne_bytes());
    bytes[24..32].copy_from_slice(&node.to_ne_bytes());
    bytes
}

/// `FUSE_NOTIFY_INC_EPOCH` and `FUSE_NOTIFY_INVAL_INODE`.
const NOTIFY_INCREMENT_EPOCH: i32 = 8;
const NOTIFY_INVALIDATE_INODE: i32 = 2;
const NOTIFY_INVALIDATE_SIZE: usize = REPLY_HEADER_SIZE + 24;

/// What makes all entries doubtful that the kernel has (Linux 6.16).
pub fn increment_epoch() -> [u8; REPLY_HEADER_SIZE] {
    let mut bytes = [0; REPLY_HEADER_SIZE];
    bytes[..4].copy_from_slice(&(REPLY_HEADER_SIZE as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&NOTIFY_INCREMENT_EPOCH.to_ne_bytes());
    bytes
}

/// What takes back the attributes of a node, and none of its pages. The kernel answers ENOENT where it has no such
/// node.
pub fn invalidate_attributes(node: u64) -> [u8; NOTIFY_INVALIDATE_SIZE] {
    let mut bytes = [0; NOTIFY_INVALIDATE_SIZE];
    bytes[..4].copy_from_slice(&(NOTIFY_INVALIDATE_SIZE as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&NOTIFY_INVALIDATE_INODE.to_ne_bytes());
    bytes[16..24].copy_from_slice(&node.to_ne_bytes());
    // A negative offset: no bytes.
    bytes[24..32].copy_from_slice(&(-1i64).to_ne_bytes());
    bytes
}

/// The request is not what this version of the language says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

type Parsed<T> = Result<T, Malformed>;

/// What is left to read of a request: its structure, where that lies apart, and all that follows.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    structure: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(structure: &'a [u8], rest: &'a [u8]) -> Input<'a> {
        Input { structure, rest }
    }

    /// What follows the header of a forget of several nodes.
    pub fn forgotten_nodes(&mut self) -> Parsed<Vec<u64>> {
        let count = self.u32()?;
        self.u32()?;
        let mut node_and_count = || -> Parsed<u64> {
            let node = self.u64()?;
            self.u64()?;
            Ok(node)
        };
        (0..count).map(|_| node_and_count()).collect()
    }

    pub fn take(&mut self, size: usize) -> Parsed<&'a [u8]> {
        let part = if self.structure.is_empty() { &mut self.rest } else { &mut self.structure };
        let (taken, left) = part.split_at_checked(size).ok_or(Malformed)?;
        *part = left;
        Ok(taken)
    }

    pub fn u16(&mut self) -> Parsed<u16> {
        Ok(u16::from_ne_bytes(self.take(2)?.try_into().map_err(|_| Malformed)?))
    }

    pub fn u32(&mut self) -> Parsed<u32> {
        Ok(u32::from_ne_bytes(self.take(4)?.try_into().map_err(|_| Malformed)?))
    }

    pub fn u64(&mut self) -> Parsed<u64> {
        Ok(u64::from_ne_bytes(self.take(8)?.try_into().map_err(|_| Malformed)?))
    }

    /// Bytes up to a NUL, which is passed. Never of a structure that lies apart.
    pub fn name(&mut self) -> Parsed<&'a [u8]> {
        self.structure = &[];
        let size = self.rest.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
        let name = self.take(size)?;
        self.take(1)?;
        Ok(name)
    }
}

/// What every request begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub opcode: u32,
    /// Number of the request; its reply carries it.
    pub unique: u64,
    pub node: u64,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

/// Bytes of what every request begins with.
pub const HEADER_SIZE: usize = 40;

/// Bytes of a whole request, as its header says.
pub fn size_of(bytes: &[u8]) -> Parsed<usize> {
    Input::new(&[], bytes).u32().map(|size| size as usize)
}

/// The header of a request that has so many bytes in all.
pub fn header_of(bytes: &[u8], size: usize) -> Parsed<Header> {
    let mut input = Input::new(&[], bytes);
    if size < HEADER_SIZE || input.u32()? as usize != size {
        return Err(Malformed);
    }
    let header = Header {
        opcode: input.u32()?,
        unique: input.u64()?,
        node: input.u64()?,
        uid: input.u32()?,
        gid: input.u32()?,
        pid: input.u32()?,
    };
    let _extensions = input.u16()?;
    input.u16()?;
    Ok(header)
}

macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $type:ident,)* })*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name { $(pub $field: $type,)* }

        impl $name {
            pub fn parse(input: &mut Input<'_>) -> Parsed<$name> {
                Ok($name { $($field: input.$type()?,)* })
            }
        }
    )* };
}

structures! {
    Getattr { flags: u32, unused: u32, handle: u64, }
    Setattr {
        valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64,
        atime: u64, mtime: u64, ctime: u64, atime_ns: u32, mtime_ns: u32, ctime_ns: u32,
        mode: u32, unused_4: u32, uid: u32, gid: u32, unused_5: u32,
    }
    Mknod { mode: u32, device: u32, umask: u32, padding: u32, }
    Mkdir { mode: u32, umask: u32, }
    Rename { new_parent: u64, }
    Rename2 { new_parent: u64, flags: u32, padding: u32, }
    Link { node: u64, }
    Open { flags: u32, open_flags: u32, }
    Create { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    Release { handle: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    Flush { handle: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// Of read, readdir and readdirplus.
    Read { handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    Write { handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    Fsync { handle: u64, flags: u32, padding: u32, }
    Setxattr { size: u32, flags: u32, }
    Getxattr { size: u32, padding: u32, }
    /// Start and end of a range, both of them locked.
    Lock { handle: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, flags: u32, padding: u32, }
    Access { mask: u32, padding: u32, }
    Interrupt { unique: u64, }
    Fallocate { handle: u64, offset: u64, size: u64, mode: u32, padding: u32, }
    Lseek { handle: u64, offset: u64, whence: u32, padding: u32, }
    CopyRange {
        handle: u64, offset: u64, target_node: u64, target_handle: u64, target_offset: u64, size: u64, flags: u64,
    }
}

/// Attributes as the kernel wants them. Times are nanoseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    pub node: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u32,
    pub block_size: u32,
}

const SECOND_NS: u64 = 1_000_000_000;

/// Bytes of an entry in a reply.
pub const ENTRY_SIZE: usize = 128;

/// A reply under way. What it holds is bounded by the request that it answers.
#[derive(Debug, Default)]
pub struct Output(Vec<u8>);

impl Output {
    pub fn u32(&mut self, value: u32) -> &mut Output {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Output {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Output {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    fn attr(&mut self, attr: &Attr) -> &mut Output {
        const SECOND: i64 = 1_000_000_000;
        self.u64(attr.node).u64(attr.size).u64(attr.blocks);
        for time in [attr.atime, attr.mtime, attr.ctime] {
            self.u64(time.div_euclid(SECOND) as u64);
        }
        for time in [attr.atime, attr.mtime, attr.ctime] {
            self.u32(time.rem_euclid(SECOND) as u32);
        }
        self.u32(attr.mode).u32(attr.links).u32(attr.uid).u32(attr.gid);
        self.u32(attr.device).u32(attr.block_size).u32(0)
    }

    /// The reply to getattr and setattr: attributes that hold for so many nanoseconds.
    pub fn attributes(&mut self, attr: &Attr, valid_ns: u64) -> &mut Output {
        self.u64(valid_ns / SECOND_NS).u32((valid_ns % SECOND_NS) as u32).u32(0).attr(attr)
    }

    /// A node that the kernel has one reference more to from now on, with how long name and attributes hold.
    pub fn entry(&mut self, attr: &Attr, validity: Validity) -> &mut Output {
        let Validity { entry, attributes } = validity;
        self.u64(attr.node).u64(0).u64(entry / SECOND_NS).u64(attributes / SECOND_NS);
        self.u32((entry % SECOND_NS) as u32).u32((attributes % SECOND_NS) as u32).attr(attr)
    }

    /// That there is no such name, which holds for so many nanoseconds.
    pub fn absent(&mut self, valid_ns: u64) -> &mut Output {
        self.u64(0).u64(0).u64(valid_ns / SECOND_NS).u64(0).u32((valid_ns % SECOND_NS) as u32);
        self.bytes(&[0; ENTRY_SIZE - 36])
    }

    /// An entry that the kernel takes no reference to.
    pub fn no_entry(&mut self) -> &mut Output {
        self.bytes(&[0; ENTRY_SIZE])
    }

    /// An open file.
    pub fn opened(&mut self, handle: u64, flags: u32) -> &mut Output {
        self.u64(handle).u32(flags).u32(0)
    }

    /// A name in a listing, filled up to a multiple of 8 bytes. `next` is where a listing goes on after it, `kind` the
    /// type bits of a mode shifted to the right.
    pub fn directory_entry(&mut self, node: u64, next: u64, kind: u32, name: &[u8]) -> &mut Output {
        self.u64(node).u64(next).u32(name.len() as u32).u32(kind).bytes(name);
        self.bytes(&[0; 8][..(8 - name.len() % 8) % 8])
    }
}

/// Bytes of a name in a listing.
pub fn directory_entry_size(name: &[u8], with_attributes: bool) -> usize {
    24 + name.len().next_multiple_of(8) + if with_attributes { ENTRY_SIZE } else { 0 }
}

/// The header of a reply with a body of this size, or of an error (errno, 0 for none) without one.
pub fn reply_header(unique: u64, errno: i32, body_size: usize) -> [u8; REPLY_HEADER_SIZE] {
    let mut header = [0; REPLY_HEADER_SIZE];
    header[..4].copy_from_slice(&((REPLY_HEADER_SIZE + body_size) as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&(-errno).to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// The slices of a whole reply.
pub fn reply_slices<'a>(header: &'a [u8], body: &'a [u8]) -> [IoSlice<'a>; 2] {
    [IoSlice::new(header), IoSlice::new(body)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&((40 + body.len()) as u32).to_ne_bytes());
        bytes.extend_from_slice(&opcode.to_ne_bytes());
        bytes.extend_from_slice(&7u64.to_ne_bytes());
        bytes.extend_from_slice(&9u64.to_ne_bytes());
        [1000u32, 1001, 4242, 0].iter().for_each(|word| bytes.extend_from_slice(&word.to_ne_bytes()));
        bytes.extend_from_slice(body);
        bytes
    }

    /// Goal: a request falls into header, structure and names.
    /// Method: a mkdir as the kernel writes it.
    #[test]
    fn requests_are_understood() {
        let mut body = Vec::new();
        body.extend_from_slice(&0o755u32.to_ne_bytes());
        body.extend_from_slice(&0o22u32.to_ne_bytes());
        body.extend_from_slice(b"name\0");
        let bytes = request(opcode::MKDIR, &body);
        let header = header_of(&bytes, bytes.len()).unwrap();
        let mut input = Input::new(&[], &bytes[HEADER_SIZE..]);
        assert_eq!(header, Header { opcode: 9, unique: 7, node: 9, uid: 1000, gid: 1001, pid: 4242 });
        assert_eq!(Mkdir::parse(&mut input), Ok(Mkdir { mode: 0o755, umask: 0o22 }));
        assert_eq!(input.name(), Ok(&b"name"[..]));
        assert!(input.take(1).is_err());
    }

    /// Goal: whatever is cut short is refused, and nothing panics.
    /// Method: every beginning of a request.
    #[test]
    fn cut_requests_are_refused() {
        let bytes = request(opcode::LOOKUP, b"name\0");
        for size in 0..bytes.len() {
            assert!(header_of(&bytes[..size], size).is_err(), "{size}");
        }
        let bytes = request(opcode::LOOKUP, b"name without end");
        let mut input = Input::new(&[], &bytes[HEADER_SIZE..]);
        assert_eq!(input.name(), Err(Malformed));
        assert_eq!(Setattr::parse(&mut input), Err(Malformed));
    }

    /// Goal: replies have the sizes that the kernel insists on, and times before the epoch stay what they are.
    #[test]
    fn replies_have_their_sizes() {
        let attr = Attr {
            node: 1,
            size: 2,
            blocks: 1,
            atime: -1,
            mtime: 1_000_000_001,
            ctime: 0,
            mode: 0o100_644,
            links: 1,
            uid: 0,
            gid: 0,
            device: 0,
            block_size: 4096,
        };
        let mut output = Output::default();
        assert_eq!(output.attributes(&attr, 1_500_000_000).len(), 104);
        assert_eq!(
            (output.as_slice()[0], output.as_slice()[8..12].to_vec()),
            (1, 500_000_000u32.to_ne_bytes().to_vec())
        );
        assert_eq!(output.as_slice()[40..48], (-1i64).to_ne_bytes());
        assert_eq!(output.as_slice()[64..68], 999_999_999u32.to_ne_bytes());
        output = Output::default();
        assert_eq!(output.entry(&attr, Validity::NONE).len(), ENTRY_SIZE);
        output = Output::default();
        assert_eq!(output.absent(2_000_000_001).len(), ENTRY_SIZE);
        assert_eq!((output.as_slice()[16], output.as_slice()[32], output.as_slice()[0]), (2, 1, 0));
        assert_eq!((increment_epoch()[0], invalidate_attributes(5)[16]), (16, 5));
        for name in [&b"a"[..], b"12345678", b"123456789"] {
            output = Output::default();
            assert_eq!(output.directory_entry(1, 2, 8, name).len(), directory_entry_size(name, false));
        }
        assert_eq!(reply_header(5, 2, 0)[4..8], (-2i32).to_ne_bytes());
    }
}
