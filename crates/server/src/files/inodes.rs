//! Inodes whose home is this server.

use crate::core::slab::Slab;
use crate::store::hash_id;
use hashbrown::HashTable;
use reactor::prefetch;
use wire::{Attributes, Decode, Decoder, Encode, FileId, Kind, Malformed};

/// An inode.
#[derive(Debug, Clone, PartialEq)]
pub struct Inode {
    pub attributes: Attributes,
    /// Target of a symbolic link; of a directory the id of the one that it is in (`parent`); else empty.
    pub target: Box<[u8]>,
    /// Where the file has chunks beside its home; nothing for most files.
    pub spread: Option<Box<RemoteShares>>,
}

/// Other servers that have to do with a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RemoteShares {
    /// Servers that may hold chunks of the file. Only ever grows; what is asked at truncate and unlink.
    pub holders: Vec<u32>,
    /// Servers that may know of bytes or times that this inode does not, with the generation of their announcement.
    pub announced: Vec<(u32, u32)>,
}

impl Inode {
    pub fn new(attributes: Attributes) -> Inode {
        Inode { attributes, target: Box::default(), spread: None }
    }

    /// A directory that begins in another one.
    pub fn directory(attributes: Attributes, parent: FileId) -> Inode {
        let mut inode = Inode::new(attributes);
        inode.set_parent(parent);
        inode
    }

    /// The directory that this one is in; nothing for the root, and for what is no directory.
    pub fn parent(&self) -> Option<FileId> {
        if self.attributes.kind != Kind::Directory {
            return None;
        }
        self.target.first_chunk().map(|bytes| FileId(u64::from_le_bytes(*bytes)))
    }

    pub fn set_parent(&mut self, parent: FileId) {
        self.target = Box::new(parent.0.to_le_bytes());
    }

    /// Whether some server may know more of size and times than this inode.
    pub fn is_announced(&self) -> bool {
        self.spread.as_ref().is_some_and(|spread| !spread.announced.is_empty())
    }

    pub fn announced(&self) -> &[(u32, u32)] {
        self.spread.as_ref().map_or(&[], |spread| &spread.announced)
    }

    pub fn holders(&self) -> &[u32] {
        self.spread.as_ref().map_or(&[], |spread| &spread.holders)
    }

    /// Notes an announcement. False when nothing changed: it was known, or is older than the one that stands.
    pub fn announce(&mut self, server: u32, generation: u32) -> bool {
        let spread = self.spread.get_or_insert_default();
        if !spread.holders.contains(&server) {
            spread.holders.push(server);
        }
        match spread.announced.iter_mut().find(|(known, _)| *known == server) {
            Some((_, stands)) if *stands >= generation => false,
            Some((_, stands)) => {
                *stands = generation;
                true
            }
            None => {
                spread.announced.push((server, generation));
                true
            }
        }
    }

    /// Ends the announcements of a server up to a generation; a younger one stays.
    pub fn retract(&mut self, server: u32, through_generation: u32) {
        if let Some(spread) = &mut self.spread {
            spread.announced.retain(|(known, generation)| *known != server || *generation > through_generation);
        }
    }
}

impl Encode for Inode {
    fn encode(&self, out: &mut Vec<u8>) {
        self.attributes.encode(out);
        (&*self.target).encode(out);
        match &self.spread {
            None => out.push(0),
            Some(spread) => {
                out.push(1);
                spread.holders.encode(out);
                (spread.announced.len() as u32).encode(out);
                for (server, generation) in &spread.announced {
                    server.encode(out);
                    generation.encode(out);
                }
            }
        }
    }
}

impl<'a> Decode<'a> for Inode {
    fn decode(input: &mut Decoder<'a>) -> Result<Self, Malformed> {
        let attributes = Attributes::decode(input)?;
        let target = <&[u8]>::decode(input)?.into();
        let mut spread = None;
        if bool::decode(input)? {
            let holders = Decode::decode(input)?;
            let count = u32::decode(input)? as usize;
            let mut announced = Vec::with_capacity(count.min(1024));
            for _ in 0..count {
                announced.push((u32::decode(input)?, u32::decode(input)?));
            }
            spread = Some(Box::new(RemoteShares { holders, announced }));
        }
        Ok(Inode { attributes, target, spread })
    }
}

/// All inodes of this server. The index holds places only: what they are the places of is in the inodes themselves.
#[derive(Default)]
pub struct Inodes {
    index: HashTable<u32>,
    slab: Slab<Inode>,
}

fn id_at(slab: &Slab<Inode>, place: u32) -> FileId {
    match slab.get(place) {
        Some(inode) => {
            prefetch(inode);
            inode.attributes.id
        }
        None => unreachable!("the index names live inodes"),
    }
}

impl Inodes {
    fn place(&self, id: FileId) -> Option<u32> {
        self.index.find(hash_id(id.0), |place| id_at(&self.slab, *place) == id).copied()
    }

    pub fn get(&self, id: FileId) -> Option<&Inode> {
        self.slab.get(self.place(id)?)
    }

    /// Has the memory fetched that an inode is in.
    pub fn prefetch(&self, id: FileId) {
        // To find it is to fetch it.
        let _ = self.place(id);
    }

    /// Adds an inode or replaces it.
    pub fn put(&mut self, inode: Inode) {
        let id = inode.attributes.id;
        match self.place(id).and_then(|place| self.slab.get_mut(place)) {
            Some(known) => *known = inode,
            None => {
                let place = self.slab.insert(inode);
                let slab = &self.slab;
                self.index.insert_unique(hash_id(id.0), place, |place| hash_id(id_at(slab, *place).0));
            }
        }
    }

    /// Removes an inode.
    pub fn remove(&mut self, id: FileId) -> Option<Inode> {
        let slab = &self.slab;
        let entry = self.index.find_entry(hash_id(id.0), |place| id_at(slab, *place) == id).ok()?;
        let (place, _) = entry.remove();
        self.slab.remove(place)
    }

    pub fn count(&self) -> u64 {
        self.slab.count() as u64
    }

    pub fn iter(&self) -> impl Iterator<Item = &Inode> {
        self.slab.iter()
    }

    /// Visits the inodes in `count` places from `from` on; returns where to go on, or nothing at the end.
    pub fn walk_step(&self, from: u32, count: u32, visit: &mut dyn FnMut(&Inode)) -> Option<u32> {
        let end = from.saturating_add(count).min(self.slab.limit());
        for index in from..end {
            if let Some(inode) = self.slab.get(index) {
                visit(inode);
            }
        }
        (end < self.slab.limit()).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Kind, Layout, LayoutPolicy};

    pub(crate) fn sample(id: u64) -> Inode {
        Inode::new(Attributes {
            id: FileId(id),
            kind: Kind::File,
            mode: 0o644,
            uid: 1,
            gid: 2,
            link_count: 1,
            size: 3,
            atime: 4,
            mtime: 5,
            ctime: 6,
            version: 7,
            truncate_generation: 8,
            times_set: 9,
            layout: Layout::default_for(LayoutPolicy::Modular, 0, 1024, 4096),
        })
    }

    /// Goal: announcements follow their generations: old ones neither return nor end younger ones.
    #[test]
    fn announcements() {
        let mut inode = sample(5);
        assert!(inode.announce(2, 10));
        assert!(!inode.announce(2, 10));
        assert!(!inode.announce(2, 9));
        inode.retract(2, 9);
        assert_eq!(inode.announced(), [(2, 10)]);
        assert!(inode.announce(2, 11));
        inode.retract(2, 10);
        inode.retract(3, 99);
        assert_eq!(inode.announced(), [(2, 11)]);
        inode.retract(2, 11);
        assert!(!inode.is_announced());
        assert_eq!(inode.holders(), [2]);
    }

    /// Goal: an inode read back is the one that was written, with and without a spread.
    #[test]
    fn round_trip() {
        let mut inode = sample(5);
        assert_eq!(Inode::from_bytes(&inode.to_bytes()), Ok(inode.clone()));
        inode.announce(2, 10);
        inode.target = b"target".as_slice().into();
        assert_eq!(Inode::from_bytes(&inode.to_bytes()), Ok(inode));
    }
}
