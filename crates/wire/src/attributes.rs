//! Attributes of an inode as every reply carries them.

use crate::codec::{Decode, Decoder, Encode, Malformed};
use crate::identity::FileId;
use crate::layout::Layout;
use crate::message;

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    File = 1,
    Directory = 2,
    Symlink = 3,
    /// This and the following are nodes without contents, which the kernel of a mount gives a meaning.
    Fifo = 4,
    Socket = 5,
    CharacterDevice = 6,
    BlockDevice = 7,
}

impl Kind {
    pub fn from_code(code: u8) -> Option<Kind> {
        Some(match code {
            1 => Kind::File,
            2 => Kind::Directory,
            3 => Kind::Symlink,
            4 => Kind::Fifo,
            5 => Kind::Socket,
            6 => Kind::CharacterDevice,
            7 => Kind::BlockDevice,
            _ => return None,
        })
    }

    /// Whether it is a pipe, a socket or a device.
    pub fn is_special(self) -> bool {
        self as u8 >= Kind::Fifo as u8
    }

    pub fn is_device(self) -> bool {
        self as u8 >= Kind::CharacterDevice as u8
    }
}

impl Encode for Kind {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
}

impl<'a> Decode<'a> for Kind {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        Kind::from_code(u8::decode(input)?).ok_or(Malformed("kind of inode is unknown"))
    }
}

message! {
    /// An inode's attributes. Times are nanoseconds since the epoch.
    pub struct Attributes {
        pub id: FileId,
        pub kind: Kind,
        /// Permission bits with setuid, setgid and sticky (12 bits).
        pub mode: u32,
        pub uid: u32,
        pub gid: u32,
        pub link_count: u32,
        /// Bytes; for a symbolic link the size of its target.
        pub size: u64,
        pub atime: i64,
        pub mtime: i64,
        pub ctime: i64,
        /// Rises with every change of the inode.
        pub version: u64,
        /// Rises with every truncate and every utimens, so that late values of older generations are dropped.
        pub truncate_generation: u32,
        pub time_generation: u32,
        /// Of a file where its chunks are. Of a device its number is in place of the first slot.
        pub layout: Layout,
    }
}

impl Attributes {
    /// The `st_mode` of stat(2): type and permission bits.
    pub fn st_mode(&self) -> u32 {
        let file_type = match self.kind {
            Kind::File => 0o100_000,
            Kind::Directory => 0o040_000,
            Kind::Symlink => 0o120_000,
            Kind::Fifo => 0o010_000,
            Kind::Socket => 0o140_000,
            Kind::CharacterDevice => 0o020_000,
            Kind::BlockDevice => 0o060_000,
        };
        file_type | self.mode
    }

    /// The number of a device, as Linux packs it into 32 bits; 0 of anything else.
    pub fn device(&self) -> u32 {
        if self.kind.is_device() { self.layout.first } else { 0 }
    }
}
