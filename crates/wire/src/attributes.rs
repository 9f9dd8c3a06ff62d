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
    Fifo = 4,
    Socket = 5,
    CharacterDevice = 6,
    BlockDevice = 7,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::File,
        Kind::Directory,
        Kind::Symlink,
        Kind::Fifo,
        Kind::Socket,
        Kind::CharacterDevice,
        Kind::BlockDevice,
    ];

    pub fn from_code(code: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(code).wrapping_sub(1)).copied()
    }

    /// Whether it is a name and attributes alone, which the kernel of whoever opens it gives a meaning to.
    pub fn is_special(self) -> bool {
        matches!(self, Kind::Fifo | Kind::Socket) || self.is_device()
    }

    pub fn is_device(self) -> bool {
        matches!(self, Kind::CharacterDevice | Kind::BlockDevice)
    }
}

// `from_code` takes a code for a place in the table, counted from one.
const _: () = {
    let mut place = 0;
    while place < Kind::ALL.len() {
        assert!(Kind::ALL[place] as usize == place + 1);
        place += 1;
    }
};

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
        /// Rises with every truncate, so that late values of older generations are dropped.
        pub truncate_generation: u32,
        /// When the times were last set by hand, by the clock of the inode's home: what other servers stamped before
        /// counts no more.
        pub times_set: i64,
        /// Where a file's chunks are. A device has none, and its number in place of their size: see `device`.
        pub layout: Layout,
    }
}

impl Attributes {
    /// Those of an inode that begins at `now`, with one name and nothing in it.
    pub fn of_new(id: FileId, kind: Kind, mode: u32, (uid, gid): (u32, u32), now: i64, layout: Layout) -> Attributes {
        Attributes {
            id,
            kind,
            mode: mode & 0o7777,
            uid,
            gid,
            link_count: 1,
            size: 0,
            atime: now,
            mtime: now,
            ctime: now,
            version: 1,
            truncate_generation: 0,
            times_set: 0,
            layout,
        }
    }

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

    /// The number of a device, in the 32 bits that the kernel uses (12 bits major, 20 minor); 0 for anything else.
    pub fn device(&self) -> u32 {
        if self.kind.is_device() { self.layout.chunk_size } else { 0 }
    }

    pub fn set_device(&mut self, device: u32) {
        assert!(self.kind.is_device());
        self.layout.chunk_size = device;
    }
}
