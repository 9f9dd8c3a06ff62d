//! What can't be had while some servers are gone, as the others know it.
//!
//! The tables of the servers that are left are walked for a part of all ids at a time, so that memory is bounded:
//! inodes and chunks first, then the names that lead to them. What seems to have lost its name is looked at once more,
//! for it may have been made or removed meanwhile.

use super::LOOK_COUNT_MAX;
use crate::error::Result;
use crate::filesystem::FileSystem;
use std::collections::{BTreeSet, HashMap};
use wire::messages::{CHECK_PART_COUNT, CheckId, CheckInode, CheckName, CheckShare, CheckTable, CheckWanted};
use wire::{Decode, FileId, Kind};

/// Inodes and shares that are put side by side at a time.
const FACTS_COUNT_MAX: u64 = 250_000;
/// Directories whose names are remembered, and levels that a path may have.
const DIRECTORY_COUNT_MAX: usize = 65_536;
const LEVEL_COUNT_MAX: usize = 4096;

/// What of a file is on lost servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostPart {
    /// Its attributes and first chunk; the name is here.
    Inode,
    /// Chunks beyond those of its home.
    Chunks,
    /// A name: that of a file or directory that is here.
    Name,
    /// Name and attributes; what is here are chunks, or entries of a directory.
    Rest,
}

impl LostPart {
    /// A word for people and programs.
    pub fn word(self) -> &'static str {
        match self {
            LostPart::Inode => "inode",
            LostPart::Chunks => "chunks",
            LostPart::Name => "name",
            LostPart::Rest => "rest",
        }
    }
}

/// One thing that is lost, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    pub id: FileId,
    pub part: LostPart,
    /// Nothing when only chunks are known, which are those of a file.
    pub kind: Option<Kind>,
    /// Its path, if a name is here; what lies above a directory whose name is gone is `<id>`.
    pub path: Option<Vec<u8>>,
    /// Lost servers that are known to have something of it.
    pub servers: Vec<u32>,
}

/// How many there are of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LostCounts {
    pub inodes: u64,
    pub chunks: u64,
    pub names: u64,
    pub rests: u64,
}

impl LostCounts {
    fn add(&mut self, part: LostPart) {
        *match part {
            LostPart::Inode => &mut self.inodes,
            LostPart::Chunks => &mut self.chunks,
            LostPart::Name => &mut self.names,
            LostPart::Rest => &mut self.rests,
        } += 1;
    }
}

/// What is known of one id.
#[derive(Default)]
struct OrphanFacts {
    /// Of an inode that is here: its kind and how many names it says that it has.
    inode: Option<(Kind, u32)>,
    names: u32,
    /// Lost servers with chunks.
    holders: Box<[u32]>,
}

/// What is left of ids whose home is lost: that home, and whether it is entries of a directory.
type Rests = HashMap<u64, (u32, bool)>;

/// A name of something that is lost or damaged.
struct LostName {
    parent: FileId,
    name: Vec<u8>,
    id: FileId,
    kind: Kind,
    part: LostPart,
}

impl FileSystem {
    /// Tells what can't be had without these servers, until `found` says that it has heard enough. Errors: another
    /// server can't be reached, or `NotPermitted` for other users than root and the one who started the servers.
    pub async fn list_lost(&self, gone: &BTreeSet<u32>, found: &mut dyn FnMut(Lost) -> bool) -> Result<LostCounts> {
        let mut search =
            OrphanSearch { files: self, gone, found, counts: LostCounts::default(), directories: HashMap::new() };
        let mut known = 1;
        for server in search.left() {
            let space = self.stat_server(server).await?;
            known += space.inodes + space.chunks;
        }
        let parts = CHECK_PART_COUNT as u64;
        let at_once = (parts * FACTS_COUNT_MAX / known).clamp(1, parts) as usize;
        for first in (0..CHECK_PART_COUNT).step_by(at_once) {
            let mut bits = [0; CHECK_PART_COUNT / 8];
            for part in first..(first + at_once).min(CHECK_PART_COUNT) {
                bits[part / 8] |= 1 << (part % 8);
            }
            if !search.part(&CheckWanted::Parts { bits, leave_plain_out: false }).await? {
                break;
            }
        }
        Ok(search.counts)
    }
}

struct OrphanSearch<'a> {
    files: &'a FileSystem,
    gone: &'a BTreeSet<u32>,
    found: &'a mut dyn FnMut(Lost) -> bool,
    counts: LostCounts,
    /// Parent and name of directories; nothing for those whose name is not here.
    directories: HashMap<u64, Option<(FileId, Vec<u8>)>>,
}

impl OrphanSearch<'_> {
    fn left(&self) -> Vec<u32> {
        (0..self.files.server_count()).filter(|server| !self.gone.contains(server)).collect()
    }

    /// The home of an id, if it is lost.
    fn lost_home(&self, id: FileId) -> Option<u32> {
        self.files.cluster().home_of(id).filter(|home| self.gone.contains(home))
    }

    fn tell(&mut self, lost: Lost) -> bool {
        self.counts.add(lost.part);
        (self.found)(lost)
    }

    /// Looks at some parts of all ids. False when enough was heard.
    async fn part(&mut self, wanted: &CheckWanted) -> Result<bool> {
        let (mut facts, mut rests) = self.read_inodes(wanted).await?;
        let named = self.read_names(wanted, &mut facts, &mut rests).await?;
        self.learn_directories(named.iter().map(|name| name.parent).collect()).await?;
        for LostName { parent, name, id, kind, part } in named {
            let servers = match part {
                LostPart::Chunks => facts.get(&id.0).map(|facts| facts.holders.to_vec()).unwrap_or_default(),
                _ => self.lost_home(id).into_iter().collect(),
            };
            let path = Some(self.path_of(parent, &name));
            if !self.tell(Lost { id, part, kind: Some(kind), path, servers }) {
                return Ok(false);
            }
        }
        for (id, (home, is_directory)) in rests {
            let kind = is_directory.then_some(Kind::Directory);
            let lost = Lost { id: FileId(id), part: LostPart::Rest, kind, path: None, servers: vec![home] };
            if !self.tell(lost) {
                return Ok(false);
            }
        }
        let lacks_names = |facts: &OrphanFacts| facts.inode.is_some_and(|(_, links)| facts.names < links);
        let suspects: Vec<FileId> = facts
            .iter()
            .filter(|(id, facts)| **id != FileId::ROOT.0 && lacks_names(facts))
            .map(|(id, _)| FileId(*id))
            .collect();
        for group in suspects.chunks(LOOK_COUNT_MAX) {
            if !self.nameless(group).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Inodes with what they know of lost servers, and chunks and entries of what has its home there.
    async fn read_inodes(&self, wanted: &CheckWanted) -> Result<(HashMap<u64, OrphanFacts>, Rests)> {
        let (mut facts, mut rests) = (HashMap::<u64, OrphanFacts>::new(), HashMap::new());
        for server in self.left() {
            self.files
                .check_table(server, CheckTable::Inodes, wanted, &mut |_, rows| {
                    while rows.remaining() > 0 {
                        let inode = CheckInode::decode(rows)?;
                        let own = facts.entry(inode.id.0).or_default();
                        // A directory's links count its entries; it has one name.
                        let links = if inode.kind == Kind::Directory { 1 } else { inode.link_count };
                        own.inode = Some((inode.kind, links));
                        own.holders =
                            inode.holders.iter().copied().filter(|holder| self.gone.contains(holder)).collect();
                    }
                    Ok(())
                })
                .await?;
            self.files
                .check_table(server, CheckTable::Shares, wanted, &mut |_, rows| {
                    while rows.remaining() > 0 {
                        let share = CheckShare::decode(rows)?;
                        if let Some(home) = self.lost_home(share.file).filter(|_| share.chunk_count > 0) {
                            rests.insert(share.file.0, (home, false));
                        }
                    }
                    Ok(())
                })
                .await?;
            // Directories can't be asked for one by one, and need not be.
            if !matches!(wanted, CheckWanted::Parts { .. }) {
                continue;
            }
            self.files
                .check_table(server, CheckTable::Parents, wanted, &mut |_, rows| {
                    while rows.remaining() > 0 {
                        let CheckId { id } = CheckId::decode(rows)?;
                        if let Some(home) = self.lost_home(id) {
                            rests.insert(id.0, (home, true));
                        }
                    }
                    Ok(())
                })
                .await?;
        }
        Ok((facts, rests))
    }

    /// Names of what is lost or damaged. What has a name here is more than a rest.
    async fn read_names(
        &self,
        wanted: &CheckWanted,
        facts: &mut HashMap<u64, OrphanFacts>,
        rests: &mut Rests,
    ) -> Result<Vec<LostName>> {
        let mut named = Vec::new();
        for server in self.left() {
            self.files
                .check_table(server, CheckTable::Names, wanted, &mut |_, rows| {
                    while rows.remaining() > 0 {
                        let CheckName { parent, id, kind, name } = CheckName::decode(rows)?;
                        let part = if self.lost_home(id).is_some() {
                            rests.remove(&id.0);
                            LostPart::Inode
                        } else if let Some(own) = facts.get_mut(&id.0) {
                            own.names += 1;
                            if own.holders.is_empty() {
                                continue;
                            }
                            LostPart::Chunks
                        } else {
                            continue;
                        };
                        named.push(LostName { parent, name: name.as_bytes().to_vec(), id, kind, part });
                    }
                    Ok(())
                })
                .await?;
        }
        Ok(named)
    }

    /// Looks again at inodes with fewer names than they say. False when enough was heard.
    async fn nameless(&mut self, ids: &[FileId]) -> Result<bool> {
        let wanted = CheckWanted::Ids(ids.to_vec());
        let (mut facts, _) = self.read_inodes(&wanted).await?;
        self.read_names(&wanted, &mut facts, &mut HashMap::new()).await?;
        for id in ids {
            let Some(OrphanFacts { inode: Some((kind, links)), names, holders }) = facts.get(&id.0) else { continue };
            if names < links {
                let servers = holders.to_vec();
                let lost = Lost { id: *id, part: LostPart::Name, kind: Some(*kind), path: None, servers };
                if !self.tell(lost) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Learns the names of directories and of all above them.
    async fn learn_directories(&mut self, mut wanted: BTreeSet<FileId>) -> Result<()> {
        if self.directories.len() > DIRECTORY_COUNT_MAX {
            self.directories.clear();
        }
        for _ in 0..LEVEL_COUNT_MAX {
            wanted.retain(|id| *id != FileId::ROOT && !self.directories.contains_key(&id.0));
            if wanted.is_empty() {
                break;
            }
            let ids: Vec<FileId> = wanted.iter().copied().collect();
            for group in ids.chunks(LOOK_COUNT_MAX) {
                let asked = CheckWanted::Ids(group.to_vec());
                group.iter().for_each(|id| drop(self.directories.insert(id.0, None)));
                for server in self.left() {
                    let directories = &mut self.directories;
                    self.files
                        .check_table(server, CheckTable::Names, &asked, &mut |_, rows| {
                            while rows.remaining() > 0 {
                                let CheckName { parent, id, name, .. } = CheckName::decode(rows)?;
                                directories.insert(id.0, Some((parent, name.as_bytes().to_vec())));
                            }
                            Ok(())
                        })
                        .await?;
                }
            }
            let above = ids.iter().filter_map(|id| self.directories.get(&id.0)?.as_ref().map(|(parent, _)| *parent));
            wanted = above.collect();
        }
        Ok(())
    }

    fn path_of(&self, parent: FileId, name: &[u8]) -> Vec<u8> {
        let mut parts = vec![name.to_vec()];
        let mut directory = parent;
        for _ in 0..LEVEL_COUNT_MAX {
            if directory == FileId::ROOT {
                parts.push(Vec::new());
                break;
            }
            match self.directories.get(&directory.0) {
                Some(Some((above, name))) => {
                    parts.push(name.clone());
                    directory = *above;
                }
                _ => {
                    parts.push(format!("<{directory}>").into_bytes());
                    break;
                }
            }
        }
        parts.reverse();
        parts.join(&b'/')
    }
}
