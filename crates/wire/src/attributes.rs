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
}

impl Encode for Kind {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
}

impl<'a> Decode<'a> for Kind {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        match u8::decode(input)? {
            1 => Ok(Kind::File),
            2 => Ok(Kind::Directory),
            3 => Ok(Kind::Symlink),
            _ => Err(Malformed("kind of inode is unknown")),
        }
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
        };
        file_type | self.mode
    }
}
