//! Changes that another server coordinates: promised, journalled and locked here until that server says how it ended.

use crate::names::locks::Locks;
use wire::{Decode, Decoder, Encode, FileId, Kind, Malformed};

/// What is done when the coordinator decides so.
#[derive(Debug, Clone, PartialEq)]
pub enum PreparedChange {
    /// The name leads to this inode.
    Dentry { parent: FileId, name: Box<[u8]>, id: FileId, kind: Kind },
    /// The inode has one name more, or less; without names it is reaped.
    Link { file: FileId, up: bool },
    /// The tree change of this number has happened; its intent says what that means.
    Tree { number: u64 },
}

impl PreparedChange {
    pub fn lock(&self, locks: &mut Locks) {
        match self {
            PreparedChange::Dentry { parent, name, .. } => locks.lock_dentry(*parent, name),
            PreparedChange::Link { file, .. } => locks.lock_inode(*file),
            PreparedChange::Tree { .. } => {}
        }
    }

    pub fn unlock(&self, locks: &mut Locks) {
        match self {
            PreparedChange::Dentry { parent, name, .. } => locks.unlock_dentry(*parent, name),
            PreparedChange::Link { file, .. } => locks.unlock_inode(*file),
            PreparedChange::Tree { .. } => {}
        }
    }

    /// Whether both hold the same lock: only ever the case while a journal is replayed over a younger checkpoint.
    pub fn shares_lock(&self, other: &PreparedChange) -> bool {
        match (self, other) {
            (
                PreparedChange::Dentry { parent, name, .. },
                PreparedChange::Dentry { parent: other_parent, name: other_name, .. },
            ) => parent == other_parent && name == other_name,
            (PreparedChange::Link { file, .. }, PreparedChange::Link { file: other, .. }) => file == other,
            _ => false,
        }
    }
}

impl Encode for PreparedChange {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            PreparedChange::Dentry { parent, name, id, kind } => {
                out.push(1);
                parent.encode(out);
                (&**name).encode(out);
                id.encode(out);
                kind.encode(out);
            }
            PreparedChange::Link { file, up } => {
                out.push(2);
                file.encode(out);
                up.encode(out);
            }
            PreparedChange::Tree { number } => {
                out.push(16);
                number.encode(out);
            }
        }
    }
}

impl<'a> Decode<'a> for PreparedChange {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        match u8::decode(input)? {
            1 => Ok(PreparedChange::Dentry {
                parent: Decode::decode(input)?,
                name: <&[u8]>::decode(input)?.into(),
                id: Decode::decode(input)?,
                kind: Decode::decode(input)?,
            }),
            2 => Ok(PreparedChange::Link { file: Decode::decode(input)?, up: Decode::decode(input)? }),
            16 => Ok(PreparedChange::Tree { number: Decode::decode(input)? }),
            _ => Err(Malformed("kind of prepared change is unknown")),
        }
    }
}
