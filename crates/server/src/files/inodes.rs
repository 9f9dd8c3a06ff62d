//! Inodes whose home is this server.

use crate::publish::blocks::{Blocks, InodeIndex};
use crate::store::{FastMap, hash_id};
use hashbrown::HashTable;
use reactor::CellPage;
use std::rc::Rc;
use wire::attribute_cache::{CELLS_PER_BLOCK, PARENT_WORD, has_more, inode_in, inode_words, kind_in};
use wire::{Attributes, Decode, Decoder, Encode, FileId, Kind, Malformed};

/// An inode.
#[derive(Debug, Clone, PartialEq)]
pub struct Inode {
    pub attributes: Attributes,
    /// Of a directory the id of the one that it is in, little-endian; 0 for the root.
    parent: [u8; 8],
    more: Option<Rc<More>>,
}

/// What most inodes have nothing of.
#[derive(Debug, Clone, Default, PartialEq)]
struct More {
    /// Target of a symbolic link; else empty.
    target: Box<[u8]>,
    /// Where the file has chunks beside its home.
    spread: Option<RemoteShares>,
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
        Inode { attributes, parent: [0; 8], more: None }
    }

    /// One with a target.
    pub fn with_target(attributes: Attributes, target: &[u8]) -> Inode {
        let mut inode = Inode::new(attributes);
        match target.first_chunk() {
            Some(parent) if inode.attributes.kind == Kind::Directory => inode.parent = *parent,
            _ if target.is_empty() => {}
            _ => inode.more = Some(Rc::new(More { target: target.into(), spread: None })),
        }
        inode
    }

    /// A directory that begins in another one.
    pub fn directory(attributes: Attributes, parent: FileId) -> Inode {
        Inode { parent: parent.0.to_le_bytes(), ..Inode::new(attributes) }
    }

    /// Target of a symbolic link, or what stands in its place in a directory's record: the id of the one that it is in.
    pub fn target(&self) -> &[u8] {
        match &self.more {
            Some(more) => &more.target,
            None if self.parent != [0; 8] => &self.parent,
            None => &[],
        }
    }

    fn more_mut(&mut self) -> &mut More {
        Rc::make_mut(self.more.get_or_insert_default())
    }

    /// The directory that this one is in; nothing for the root, and for what is no directory.
    pub fn parent(&self) -> Option<FileId> {
        let parent = FileId(u64::from_le_bytes(self.parent));
        (self.attributes.kind == Kind::Directory && parent.0 != 0).then_some(parent)
    }

    pub fn set_parent(&mut self, parent: FileId) {
        self.parent = parent.0.to_le_bytes();
    }

    /// Where the file has chunks beside its home; nothing for most files.
    pub fn spread(&self) -> Option<&RemoteShares> {
        self.more.as_ref()?.spread.as_ref()
    }

    /// The same, to be changed, also where there was nothing so far.
    pub fn spread_mut(&mut self) -> &mut RemoteShares {
        self.more_mut().spread.get_or_insert_default()
    }

    /// Whether it is a file of which no other server knows anything.
    pub fn is_plain(&self) -> bool {
        self.attributes.kind == Kind::File && self.more.is_none()
    }

    /// Whether some server may know more of size and times than this inode.
    pub fn is_announced(&self) -> bool {
        !self.announced().is_empty()
    }

    pub fn announced(&self) -> &[(u32, u32)] {
        self.spread().map_or(&[], |spread| &spread.announced)
    }

    pub fn holders(&self) -> &[u32] {
        self.spread().map_or(&[], |spread| &spread.holders)
    }

    /// The holders but for one server.
    pub fn other_holders(&self, server: u32) -> Vec<u32> {
        self.holders().iter().copied().filter(|holder| *holder != server).collect()
    }

    /// Notes an announcement. False when nothing changed: it was known, or is older than the one that stands.
    pub fn announce(&mut self, server: u32, generation: u32) -> bool {
        let spread = self.spread_mut();
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
        if self.is_announced() {
            let ends = |(known, generation): &(u32, u32)| *known != server || *generation > through_generation;
            self.spread_mut().announced.retain(ends);
        }
    }
}

impl Encode for Inode {
    fn encode(&self, out: &mut Vec<u8>) {
        self.attributes.encode(out);
        self.target().encode(out);
        match self.spread() {
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
        let mut inode = Inode::with_target(attributes, <&[u8]>::decode(input)?);
        if bool::decode(input)? {
            let holders = Decode::decode(input)?;
            let count = u32::decode(input)? as usize;
            let mut announced = Vec::with_capacity(count.min(1024));
            for _ in 0..count {
                announced.push((u32::decode(input)?, u32::decode(input)?));
            }
            *inode.spread_mut() = RemoteShares { holders, announced };
        }
        Ok(inode)
    }
}

/// All inodes of this server, in pages of cells. Once there is an attribute cache, they lie there, as far as it has
/// room, and its table of inodes tells where (`wire::attribute_cache`); local clients read the same.
#[derive(Default)]
pub struct Inodes {
    shared: Option<Rc<InodeIndex>>,
    /// The places of what is not found there. What they are the places of is in the cells.
    own: HashTable<u32>,
    pages: Pages,
    /// Places that are free again, and one more than the largest that was ever used.
    free: Vec<u32>,
    limit: u32,
    /// What does not fit into a cell.
    more: FastMap<u64, Rc<More>>,
    count: u64,
    buffer: Vec<u8>,
}

/// Pages of cells, one behind the other in the order of their places.
#[derive(Default)]
struct Pages {
    /// Each with the block that it lies in, if others may see it.
    all: Vec<(CellPage, Option<u64>)>,
    /// Of such a block the page.
    of_blocks: Vec<u32>,
}

/// Cells of a page.
const PAGE_CELLS: usize = CELLS_PER_BLOCK as usize;

impl Pages {
    fn set(&mut self, index: usize, page: (CellPage, Option<u64>)) {
        if let Some(block) = page.1 {
            self.of_blocks.resize((block as usize + 1).max(self.of_blocks.len()), 0);
            self.of_blocks[block as usize] = index as u32;
        }
        match self.all.get_mut(index) {
            Some(known) => *known = page,
            None => self.all.push(page),
        }
    }

    fn at(&self, place: u32) -> (&CellPage, usize) {
        (&self.all[place as usize / PAGE_CELLS].0, place as usize % PAGE_CELLS)
    }

    /// The id of the inode at a place; 0 where there is none.
    fn id(&self, place: u32) -> u64 {
        let (page, index) = self.at(place);
        page.word(index, 0)
    }

    /// The number of a place's cell among those that others may see.
    fn cell(&self, place: u32) -> Option<u64> {
        let block = self.all[place as usize / PAGE_CELLS].1?;
        Some(block * CELLS_PER_BLOCK + u64::from(place) % CELLS_PER_BLOCK)
    }

    /// The place of such a cell.
    fn place(&self, cell: u64) -> u32 {
        let page = self.of_blocks[(cell / CELLS_PER_BLOCK) as usize];
        page * PAGE_CELLS as u32 + (cell % CELLS_PER_BLOCK) as u32
    }
}

/// A page where others see it if there is room, else one of our own.
fn new_page(blocks: Option<&Rc<Blocks>>) -> (CellPage, Option<u64>) {
    match blocks.and_then(|blocks| Some((blocks, blocks.take()?))) {
        Some((blocks, block)) => (blocks.page(block), Some(block)),
        None => (CellPage::own(), None),
    }
}

impl Inodes {
    fn place(&self, id: FileId) -> Option<u32> {
        if let Some(cell) = self.shared.as_ref().and_then(|shared| shared.get(id)) {
            return Some(self.pages.place(cell));
        }
        if self.own.is_empty() {
            return None;
        }
        self.own.find(hash_id(id.0), |place| self.pages.id(*place) == id.0).copied()
    }

    fn inode_at(&self, place: u32) -> Option<Inode> {
        let (page, index) = self.pages.at(place);
        let words = page.get(index);
        if words[0] == 0 {
            return None;
        }
        let Some(attributes) = inode_in(&words) else { unreachable!("a cell holds attributes") };
        let is_directory = attributes.kind == Kind::Directory;
        let parent = if is_directory { words[PARENT_WORD].to_le_bytes() } else { [0; 8] };
        let more = if has_more(&words) { self.more.get(&words[0]).cloned() } else { None };
        Some(Inode { attributes, parent, more })
    }

    pub fn get(&self, id: FileId) -> Option<Inode> {
        self.inode_at(self.place(id)?)
    }

    /// What an inode is, if it is here.
    pub fn kind(&self, id: FileId) -> Option<Kind> {
        let (page, index) = self.pages.at(self.place(id)?);
        kind_in(page.word(index, 1))
    }

    pub fn contains(&self, id: FileId) -> bool {
        self.place(id).is_some()
    }

    /// Has the memory fetched that an inode is in.
    pub fn prefetch(&self, id: FileId) {
        if let Some(place) = self.place(id) {
            let (page, index) = self.pages.at(place);
            page.prefetch(index);
        }
    }

    fn new_place(&mut self) -> u32 {
        if let Some(place) = self.free.pop() {
            return place;
        }
        if self.limit as usize == self.pages.all.len() * PAGE_CELLS {
            let page = new_page(self.shared.as_ref().map(|shared| shared.blocks()));
            self.pages.set(self.pages.all.len(), page);
        }
        self.limit += 1;
        self.limit - 1
    }

    /// Notes what is at a place: for all to see if it lies where they may and there is room to note it.
    fn note(&mut self, id: FileId, place: u32) {
        if let (Some(shared), Some(cell)) = (&self.shared, self.pages.cell(place))
            && shared.put_new(id, cell)
        {
            return;
        }
        let pages = &self.pages;
        self.own.insert_unique(hash_id(id.0), place, |place| hash_id(pages.id(*place)));
    }

    /// Adds an inode or replaces it; nobody but us believes yet what its cell says.
    pub fn put(&mut self, inode: &Inode) {
        let id = inode.attributes.id;
        let mut words = inode_words(&inode.attributes, inode.more.is_some(), &mut self.buffer);
        if inode.attributes.kind == Kind::Directory {
            words[PARENT_WORD] = u64::from_le_bytes(inode.parent);
        }
        match &inode.more {
            Some(more) => drop(self.more.insert(id.0, more.clone())),
            None if !self.more.is_empty() => drop(self.more.remove(&id.0)),
            None => {}
        }
        let known = self.place(id);
        let place = known.unwrap_or_else(|| self.new_place());
        let (page, index) = self.pages.at(place);
        page.put(index, &words);
        if known.is_none() {
            self.note(id, place);
            self.count += 1;
        }
    }

    /// Removes an inode, and returns what it was.
    pub fn remove(&mut self, id: FileId) -> Option<Kind> {
        let place = self.place(id)?;
        let (page, index) = self.pages.at(place);
        let kind = kind_in(page.word(index, 1));
        let pages = &self.pages;
        let is_own = !self.own.is_empty()
            && match self.own.find_entry(hash_id(id.0), |place| pages.id(*place) == id.0) {
                Ok(entry) => {
                    entry.remove();
                    true
                }
                Err(_) => false,
            };
        if let Some(shared) = self.shared.as_ref().filter(|_| !is_own) {
            shared.remove(id);
        }
        page.clear(index);
        if !self.more.is_empty() {
            self.more.remove(&id.0);
        }
        self.free.push(place);
        self.count -= 1;
        kind
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn iter(&self) -> impl Iterator<Item = Inode> {
        (0..self.limit).filter_map(|place| self.inode_at(place))
    }

    /// Visits the inodes in `count` places from `from` on; returns where to go on, or nothing at the end.
    pub fn walk_step(&self, from: u32, count: u32, visit: &mut dyn FnMut(&Inode)) -> Option<u32> {
        let end = from.saturating_add(count).min(self.limit);
        (from..end).filter_map(|place| self.inode_at(place)).for_each(|inode| visit(&inode));
        (end < self.limit).then_some(end)
    }

    /// From now on inodes lie where others see them, as far as there is room.
    pub fn share(&mut self, index: &Rc<InodeIndex>) {
        for number in 0..self.pages.all.len() {
            let shared = new_page(Some(index.blocks()));
            if shared.1.is_none() {
                break;
            }
            let page = &self.pages.all[number].0;
            (0..PAGE_CELLS).filter(|index| page.word(*index, 0) != 0).for_each(|index| {
                shared.0.put(index, &page.get(index));
            });
            self.pages.set(number, shared);
        }
        self.shared = Some(index.clone());
        self.own.clear();
        for place in 0..self.limit {
            let id = self.pages.id(place);
            if id != 0 {
                self.note(FileId(id), place);
            }
        }
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
        inode.more_mut().target = b"target".as_slice().into();
        assert_eq!(Inode::from_bytes(&inode.to_bytes()), Ok(inode.clone()));
        inode.attributes.kind = Kind::Directory;
        let mut inode = Inode::directory(inode.attributes, FileId(77 << 20));
        assert_eq!((Inode::from_bytes(&inode.to_bytes()), inode.parent()), (Ok(inode.clone()), Some(FileId(77 << 20))));
        inode.set_parent(FileId::ROOT);
        let mut inodes = Inodes::default();
        inodes.put(&inode);
        assert_eq!((inodes.get(FileId(5)), inodes.kind(FileId(5))), (Some(inode), Some(Kind::Directory)));
        assert_eq!((inodes.remove(FileId(5)), inodes.count()), (Some(Kind::Directory), 0));
    }
}
