//! What can be wrong, in words.

use std::fmt;
use wire::{FileId, Kind};

/// A name as a server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultyName {
    pub server: u32,
    pub parent: FileId,
    pub name: Vec<u8>,
    pub id: FileId,
    pub kind: Kind,
}

impl fmt::Display for FaultyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parent = if self.parent == FileId::ROOT { String::new() } else { format!("directory {}", self.parent) };
        write!(f, "name {parent}/{} on server {}", String::from_utf8_lossy(&self.name).escape_debug(), self.server)
    }
}

/// Something that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A name leads to an inode that there is not.
    NameWithoutInode(FaultyName),
    /// A name says another kind than its inode.
    WrongKind { name: FaultyName, kind: Kind },
    /// A name is on another server than the one that is asked for it.
    MisplacedName(FaultyName),
    /// A name is in a directory that there is not.
    NameInNothing(FaultyName),
    /// An inode without a name.
    Orphan { id: FileId, kind: Kind, link_count: u32 },
    /// A file has another number of names than its inode says.
    WrongLinkCount { id: FileId, link_count: u32, names: u32 },
    /// A directory has several names, or the root has one.
    DirectoryWithNames { id: FileId, names: Vec<FaultyName> },
    /// A directory's inode says that it is in another one than its name is.
    WrongParent { id: FileId, told: Option<FileId>, parent: FileId },
    /// A server takes a directory for removed that is there: nothing can be made in it or found through it.
    StaleTombstone { server: u32, id: FileId },
    /// Directories that are below each other and not below the root; the name of one of them.
    Circle { ids: Vec<FileId>, name: FaultyName },
    /// An inode is on another server than its home.
    MisplacedInode { server: u32, id: FileId },
    /// Chunks of a file that there is not.
    ChunksWithoutFile { server: u32, file: FileId, chunk_count: u64 },
    /// A server has chunks of a file, or is about to announce some, and the file's home does not know.
    UnknownHolder { server: u32, file: FileId, announced: Option<u32> },
    /// A file ends before the last byte that is stored of it.
    SizeTooSmall { file: FileId, size: u64, end: u64 },
    /// A chunk's bytes are not those that were written.
    DamagedChunk { server: u32, file: FileId, chunk_index: u64 },
}

impl Fault {
    /// A word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Fault::NameWithoutInode(_) => "name-without-inode",
            Fault::WrongKind { .. } => "wrong-kind",
            Fault::MisplacedName(_) => "misplaced-name",
            Fault::NameInNothing(_) => "name-in-nothing",
            Fault::Orphan { .. } => "orphan",
            Fault::WrongLinkCount { .. } => "wrong-link-count",
            Fault::DirectoryWithNames { .. } => "directory-with-names",
            Fault::WrongParent { .. } => "wrong-parent",
            Fault::StaleTombstone { .. } => "stale-tombstone",
            Fault::Circle { .. } => "circle",
            Fault::MisplacedInode { .. } => "misplaced-inode",
            Fault::ChunksWithoutFile { .. } => "chunks-without-file",
            Fault::UnknownHolder { .. } => "unknown-holder",
            Fault::SizeTooSmall { .. } => "size-too-small",
            Fault::DamagedChunk { .. } => "damaged-chunk",
        }
    }

    /// The inode that it is about.
    pub fn id(&self) -> FileId {
        match self {
            Fault::NameWithoutInode(name) | Fault::MisplacedName(name) => name.id,
            Fault::NameInNothing(name) => name.parent,
            Fault::WrongKind { name, .. } | Fault::Circle { name, .. } => name.id,
            Fault::Orphan { id, .. }
            | Fault::WrongLinkCount { id, .. }
            | Fault::WrongParent { id, .. }
            | Fault::DirectoryWithNames { id, .. }
            | Fault::StaleTombstone { id, .. }
            | Fault::MisplacedInode { id, .. } => *id,
            Fault::ChunksWithoutFile { file, .. }
            | Fault::UnknownHolder { file, .. }
            | Fault::SizeTooSmall { file, .. }
            | Fault::DamagedChunk { file, .. } => *file,
        }
    }

    pub fn can_be_repaired(&self) -> bool {
        !matches!(self, Fault::MisplacedInode { .. } | Fault::DamagedChunk { .. })
    }

    /// What a repair does.
    pub fn remedy(&self) -> String {
        match self {
            Fault::NameWithoutInode(_) | Fault::MisplacedName(_) | Fault::NameInNothing(_) => {
                "remove the name".to_owned()
            }
            Fault::WrongKind { kind, .. } => format!("make it the name of {}", kind_words(*kind)),
            Fault::Orphan { id, .. } => format!("name it {}/{}", super::repair::LOST_AND_FOUND, orphan_name(*id)),
            Fault::WrongLinkCount { names, .. } => format!("set the link count to {names}"),
            Fault::DirectoryWithNames { id, .. } if *id == FileId::ROOT => "remove the names".to_owned(),
            Fault::DirectoryWithNames { names, .. } => format!("keep {}", names[0]),
            Fault::WrongParent { parent, .. } => format!("note directory {parent}"),
            Fault::StaleTombstone { .. } => "tell the server that it is there".to_owned(),
            Fault::Circle { name, .. } => format!("remove {name}"),
            Fault::ChunksWithoutFile { .. } => "free them".to_owned(),
            Fault::UnknownHolder { .. } => "tell the file's home".to_owned(),
            Fault::SizeTooSmall { end, .. } => format!("set the size to {end} bytes"),
            Fault::MisplacedInode { .. } => "no repair is known".to_owned(),
            Fault::DamagedChunk { .. } => "no repair: write the file anew, or remove it".to_owned(),
        }
    }
}

/// The name under which an inode without one is kept.
pub fn orphan_name(id: FileId) -> String {
    format!("#{id}")
}

fn kind_words(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "a file",
        Kind::Directory => "a directory",
        Kind::Symlink => "a symbolic link",
        Kind::Fifo => "a pipe",
        Kind::Socket => "a socket",
        Kind::CharacterDevice => "a character device",
        Kind::BlockDevice => "a block device",
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NameWithoutInode(name) => write!(f, "{name} leads to inode {}, which does not exist", name.id),
            Fault::WrongKind { name, kind } => {
                let (told, is) = (kind_words(name.kind), kind_words(*kind));
                write!(f, "{name} is that of {told}, but inode {} is {is}", name.id)
            }
            Fault::MisplacedName(name) => write!(f, "{name} belongs to another server"),
            Fault::NameInNothing(name) => write!(f, "{name} is in a directory that does not exist"),
            Fault::Orphan { id, kind, .. } => write!(f, "inode {id}, {}, has no name", kind_words(*kind)),
            Fault::WrongLinkCount { id, link_count, names } => {
                write!(f, "inode {id} has link count {link_count}, but {names} names")
            }
            Fault::DirectoryWithNames { id, names } if *id == FileId::ROOT => {
                write!(f, "the root directory has a name: {}", names[0])
            }
            Fault::DirectoryWithNames { id, names } => write!(f, "directory {id} has {} names", names.len()),
            Fault::WrongParent { id, told: None, parent } => {
                write!(f, "directory {id} is in directory {parent}, but its inode does not say so")
            }
            Fault::WrongParent { id, told: Some(told), parent } => {
                write!(f, "directory {id} is in directory {parent}, but its inode says directory {told}")
            }
            Fault::StaleTombstone { server, id } => {
                write!(f, "server {server} takes directory {id} for removed, but it is there")
            }
            Fault::Circle { ids, .. } => {
                let ids: Vec<String> = ids.iter().map(FileId::to_string).collect();
                write!(f, "directories {} are below each other and not below the root", ids.join(", "))
            }
            Fault::MisplacedInode { server, id } => {
                write!(f, "inode {id} is on server {server}, which is not its home")
            }
            Fault::ChunksWithoutFile { server, file, chunk_count } => {
                write!(f, "server {server} holds chunks of file {file}, which does not exist: {chunk_count}")
            }
            Fault::UnknownHolder { server, file, .. } => {
                write!(f, "server {server} holds bytes of file {file}, and the file's home does not know")
            }
            Fault::SizeTooSmall { file, size, end } => {
                write!(f, "file {file} has {size} bytes, but bytes up to {end} are stored")
            }
            Fault::DamagedChunk { server, file, chunk_index } => {
                write!(f, "chunk {chunk_index} of file {file} on server {server} does not match its checksum")
            }
        }
    }
}
