//! On whose behalf requests are made, and what the bits of a mode let that user do.

use crate::attributes::{Attributes, Kind};
use crate::codec::{Decode, Decoder, Encode, Malformed};
use crate::message;

/// Supplementary groups of a user that count.
pub const GROUP_COUNT_MAX: usize = 256;

/// Rights as the lowest three bits of a mode have them.
pub mod access {
    pub const READ: u8 = 4;
    pub const WRITE: u8 = 2;
    pub const EXECUTE: u8 = 1;
}

message! {
    /// A user: id, group and supplementary groups.
    pub struct Credentials {
        pub uid: u32,
        pub gid: u32,
        pub groups: Groups,
    }
}

impl Eq for Credentials {}

impl Credentials {
    /// A user with a group and no other ones.
    pub fn new(uid: u32, gid: u32) -> Credentials {
        Credentials { uid, gid, groups: Groups::default() }
    }

    /// Uid 0, whom no mode stops, as with CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID and CAP_CHOWN.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub fn is_in_group(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(group)
    }

    /// Whether the user may do what owners may.
    pub fn owns(&self, attributes: &Attributes) -> bool {
        self.is_root() || self.uid == attributes.uid
    }

    /// Whether the user has all rights of `wanted` (`access`) to an inode.
    pub fn may(&self, attributes: &Attributes, wanted: u8) -> bool {
        self.may_by(attributes.kind, attributes.mode, attributes.uid, attributes.gid, wanted)
    }

    /// The same, of an inode of which only these are known.
    pub fn may_by(&self, kind: Kind, mode: u32, uid: u32, gid: u32, wanted: u8) -> bool {
        let registered = if self.is_root() {
            // Root executes what anybody may execute.
            let executable = mode & 0o111 != 0 || kind == Kind::Directory;
            u32::from(access::READ | access::WRITE) | u32::from(executable)
        } else if self.uid == uid {
            mode >> 6
        } else if self.is_in_group(gid) {
            mode >> 3
        } else {
            mode
        };
        u32::from(wanted) & !registered & 7 == 0
    }
}

/// Supplementary groups of a user: rising numbers, at most `GROUP_COUNT_MAX`. Their count stands in front (16 bits).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Groups(Vec<u32>);

impl Groups {
    /// Takes over groups in any order. Beyond `GROUP_COUNT_MAX` the highest numbers are left out.
    pub fn new(groups: &[u32]) -> Groups {
        let mut groups = groups.to_vec();
        groups.sort_unstable();
        groups.dedup();
        groups.truncate(GROUP_COUNT_MAX);
        Groups(groups)
    }

    pub fn contains(&self, group: u32) -> bool {
        self.0.binary_search(&group).is_ok()
    }
}

impl Encode for Groups {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.0.len() as u16).encode(out);
        self.0.iter().for_each(|group| group.encode(out));
    }
}

impl<'a> Decode<'a> for Groups {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let count = usize::from(u16::decode(input)?);
        if count > GROUP_COUNT_MAX || count * size_of::<u32>() > input.remaining() {
            return Err(Malformed("list of groups is too long"));
        }
        let mut groups = Vec::with_capacity(count);
        for _ in 0..count {
            groups.push(u32::decode(input)?);
        }
        if groups.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(Malformed("groups are not in rising order"));
        }
        Ok(Groups(groups))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: groups are kept in one order, found again, and never more than are allowed.
    #[test]
    fn groups_are_bounded() {
        let groups = Groups::new(&[7, 3, 7, u32::MAX, 0]);
        assert_eq!(Groups::from_bytes(&groups.to_bytes()), Ok(groups.clone()));
        assert!([0, 3, 7, u32::MAX].iter().all(|group| groups.contains(*group)) && !groups.contains(4));
        let many: Vec<u32> = (0..GROUP_COUNT_MAX as u32 + 9).collect();
        let bytes = Groups::new(&many).to_bytes();
        assert_eq!(bytes.len(), 2 + GROUP_COUNT_MAX * 4);
        assert!(Groups::from_bytes(&bytes).is_ok());
    }

    /// Goal: too many groups, groups in another order, and counts without groups are refused before anything is
    /// allocated.
    #[test]
    fn wrong_groups_are_refused() {
        let encoded = |groups: &[u32]| {
            let mut bytes = (groups.len() as u16).to_le_bytes().to_vec();
            groups.iter().for_each(|group| bytes.extend_from_slice(&group.to_le_bytes()));
            bytes
        };
        let many: Vec<u32> = (0..GROUP_COUNT_MAX as u32 + 1).collect();
        for wrong in [encoded(&many), encoded(&[2, 1]), encoded(&[1, 1]), vec![0xff, 0xff], vec![1, 0, 5]] {
            assert!(Groups::from_bytes(&wrong).is_err(), "{wrong:?}");
        }
    }
}
