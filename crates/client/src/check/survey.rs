//! The survey: tables of all servers side by side, while they may change. Its suspects are looked at a second time, so
//! it need not be exact, but it must miss nothing that stands still.

use super::{CheckCounts, Progress, all_parts, of_all};
use crate::error::Result;
use crate::filesystem::FileSystem;
use std::collections::{BTreeSet, HashMap};
use wire::messages::{
    CHECK_ID_COUNT_MAX, CHECK_PART_COUNT, CheckId, CheckInode, CheckName, CheckShare, CheckTable, CheckWanted,
    check_part, check_term,
};
use wire::{Decode, FileId, Kind};

/// Inodes that are put side by side at a time where the sums do not tell.
const FACTS_COUNT_MAX: u64 = 2_000_000;

/// What a survey ends with.
#[derive(Default)]
pub struct Survey {
    pub suspects: BTreeSet<FileId>,
    /// Directories that are below each other.
    pub circles: Vec<Vec<FileId>>,
}

/// What is known of an inode that is no directory.
#[derive(Default)]
struct Facts {
    names: u32,
    /// What names say that it is, a bit for each kind.
    said: u8,
    inode: Option<InodeFacts>,
}

struct InodeFacts {
    kind: Kind,
    link_count: u32,
    size: u64,
    holders: Box<[u32]>,
    announced: Box<[u32]>,
}

/// A part of all ids in the making.
struct SurveyPart {
    facts: HashMap<u64, Facts>,
    /// Of inodes that were left out, less those of names.
    sums: Box<[u64; CHECK_PART_COUNT]>,
    /// What names lead to that are on a server where they do not belong, and inodes that are.
    misplaced: Vec<FileId>,
}

/// All directories; 32 bytes each, and 8 for each server that has entries of it.
#[derive(Default)]
struct Directories {
    /// Id and parent of each name.
    names: Vec<(u64, u64)>,
    /// Id of each inode, and the parent that it knows.
    inodes: Vec<(u64, u64)>,
    /// Directories with entries, as each server knows them.
    parents: Vec<u64>,
}

/// Surveys all servers.
pub async fn survey(files: &FileSystem, counts: &mut CheckCounts, progress: Progress<'_>) -> Result<Survey> {
    let mut survey = Survey::default();
    let mut directories = Directories::default();
    let unequal = first_look(files, &mut directories, &mut survey, counts, progress).await?;
    let inodes = counts.inodes.max(1);
    let parts_at_once = (CHECK_PART_COUNT as u64 * FACTS_COUNT_MAX / inodes).clamp(1, CHECK_PART_COUNT as u64);
    for parts in unequal.chunks(parts_at_once as usize) {
        full_look(files, parts, &mut survey).await?;
    }
    let all = all_parts(false);
    for parents in of_all(files, |server| read_ids(files, server, CheckTable::Parents, &all)).await? {
        directories.parents.extend(parents);
    }
    for ids in directories.inodes.chunks(CHECK_ID_COUNT_MAX) {
        let wanted = CheckWanted::Ids(ids.iter().map(|(id, _)| FileId(*id)).collect());
        let removed = of_all(files, |server| read_ids(files, server, CheckTable::Removed, &wanted)).await?;
        survey.suspects.extend(removed.into_iter().flatten().map(FileId));
    }
    directories.judge(&mut survey);
    Ok(survey)
}

/// Looks at everything that its own server can't tell to be right. Returns the parts whose sums do not come to 0.
async fn first_look(
    files: &FileSystem,
    directories: &mut Directories,
    survey: &mut Survey,
    counts: &mut CheckCounts,
    progress: Progress<'_>,
) -> Result<Vec<usize>> {
    let wanted = all_parts(true);
    let mut part = SurveyPart::new();
    for server in 0..files.server_count() {
        part.read_names(files, server, &wanted, Some(&mut *directories), &mut |walked| {
            counts.names += walked;
            progress(counts);
        })
        .await?;
    }
    for server in 0..files.server_count() {
        part.read_inodes(files, server, &wanted, Some(&mut *directories), &mut |walked| {
            counts.inodes += walked;
            progress(counts);
        })
        .await?;
    }
    counts.directories = directories.inodes.len() as u64;
    for server in 0..files.server_count() {
        part.read_shares(files, server, &wanted, survey, &mut |walked| {
            counts.shares += walked;
            progress(counts);
        })
        .await?;
    }
    Ok(part.judge(true, survey))
}

/// Looks at all files of some parts.
async fn full_look(files: &FileSystem, parts: &[usize], survey: &mut Survey) -> Result<()> {
    let mut bits = [0; CHECK_PART_COUNT / 8];
    for part in parts {
        bits[part / 8] |= 1 << (part % 8);
    }
    let wanted = CheckWanted::Parts { bits, leave_plain_out: false };
    let mut part = SurveyPart::new();
    for server in 0..files.server_count() {
        part.read_names(files, server, &wanted, None, &mut |_| {}).await?;
        part.read_inodes(files, server, &wanted, None, &mut |_| {}).await?;
    }
    part.judge(false, survey);
    Ok(())
}

async fn read_ids(files: &FileSystem, server: u32, table: CheckTable, wanted: &CheckWanted) -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    files
        .check_table(server, table, wanted, &mut |_, rows| {
            while rows.remaining() > 0 {
                ids.push(CheckId::decode(rows)?.id.0);
            }
            Ok(())
        })
        .await?;
    Ok(ids)
}

impl SurveyPart {
    fn new() -> SurveyPart {
        SurveyPart { facts: HashMap::new(), sums: Box::new([0; CHECK_PART_COUNT]), misplaced: Vec::new() }
    }

    fn add_sums(&mut self, sums: &[wire::messages::CheckSum], negative: bool) {
        for wire::messages::CheckSum { part, sum } in sums {
            let own = &mut self.sums[usize::from(*part)];
            *own = if negative { own.wrapping_sub(*sum) } else { own.wrapping_add(*sum) };
        }
    }

    async fn read_names(
        &mut self,
        files: &FileSystem,
        server: u32,
        wanted: &CheckWanted,
        mut directories: Option<&mut Directories>,
        walked: &mut dyn FnMut(u64),
    ) -> Result<()> {
        files
            .check_table(server, CheckTable::Names, wanted, &mut |reply, rows| {
                self.add_sums(&reply.sums, true);
                walked(reply.walked);
                while rows.remaining() > 0 {
                    let name = CheckName::decode(rows)?;
                    if files.cluster().dentry_server(name.parent, name.name.as_bytes()) != server {
                        self.misplaced.push(name.id);
                    }
                    match (name.kind, &mut directories) {
                        (Kind::Directory, Some(directories)) => directories.names.push((name.id.0, name.parent.0)),
                        (Kind::Directory, None) => {}
                        (kind, _) => {
                            let facts = self.facts.entry(name.id.0).or_default();
                            facts.names += 1;
                            facts.said |= bit_of(kind);
                        }
                    }
                }
                Ok(())
            })
            .await
    }

    async fn read_inodes(
        &mut self,
        files: &FileSystem,
        server: u32,
        wanted: &CheckWanted,
        mut directories: Option<&mut Directories>,
        walked: &mut dyn FnMut(u64),
    ) -> Result<()> {
        files
            .check_table(server, CheckTable::Inodes, wanted, &mut |reply, rows| {
                self.add_sums(&reply.sums, false);
                walked(reply.walked);
                while rows.remaining() > 0 {
                    let inode = CheckInode::decode(rows)?;
                    if files.cluster().home_of(inode.id) != Some(server) {
                        self.misplaced.push(inode.id);
                    }
                    match (inode.kind, &mut directories) {
                        (Kind::Directory, Some(directories)) => {
                            directories.inodes.push((inode.id.0, inode.parent.unwrap_or_default().0));
                        }
                        (Kind::Directory, None) => {}
                        _ => {
                            let facts = self.facts.entry(inode.id.0).or_default();
                            facts.inode = Some(InodeFacts::of(inode));
                        }
                    }
                }
                Ok(())
            })
            .await
    }

    async fn read_shares(
        &mut self,
        files: &FileSystem,
        server: u32,
        wanted: &CheckWanted,
        survey: &mut Survey,
        walked: &mut dyn FnMut(u64),
    ) -> Result<()> {
        files
            .check_table(server, CheckTable::Shares, wanted, &mut |reply, rows| {
                walked(reply.walked);
                while rows.remaining() > 0 {
                    let share = CheckShare::decode(rows)?;
                    let inode = self.facts.get(&share.file.0).and_then(|facts| facts.inode.as_ref());
                    let is_home = files.cluster().home_of(share.file) == Some(server);
                    if is_home || !inode.is_some_and(|inode| inode.covers(server, &share)) {
                        survey.suspects.insert(share.file);
                    }
                }
                Ok(())
            })
            .await
    }

    /// Finds what does not fit. Where plain inodes were left out, a single name without an inode may well be that of
    /// such a one: then the sums tell. Returns the parts in which they do not come to 0.
    fn judge(mut self, plain_left_out: bool, survey: &mut Survey) -> Vec<usize> {
        survey.suspects.extend(self.misplaced.drain(..));
        for (id, facts) in &self.facts {
            let id = FileId(*id);
            match &facts.inode {
                None if plain_left_out && facts.said.count_ones() == 1 => {
                    let kind = Kind::ALL.into_iter().find(|kind| facts.said == bit_of(*kind));
                    let kind = kind.expect("bits are set by kinds alone");
                    let own = &mut self.sums[check_part(id)];
                    *own = own.wrapping_sub(check_term(id, kind).wrapping_mul(u64::from(facts.names)));
                }
                Some(inode) if inode.link_count == facts.names && facts.said & !bit_of(inode.kind) == 0 => {}
                _ => drop(survey.suspects.insert(id)),
            }
        }
        (0..CHECK_PART_COUNT).filter(|part| self.sums[*part] != 0).collect()
    }
}

impl InodeFacts {
    fn of(inode: CheckInode) -> InodeFacts {
        InodeFacts {
            kind: inode.kind,
            link_count: inode.link_count,
            size: inode.size,
            holders: inode.holders.into(),
            announced: inode.announced.into(),
        }
    }

    /// Whether the inode knows of what another server holds.
    fn covers(&self, server: u32, share: &CheckShare) -> bool {
        let announced = self.announced.contains(&server);
        let known = announced || (share.announced.is_none() && share.end <= self.size);
        self.kind == Kind::File && self.holders.contains(&server) && known
    }
}

impl Directories {
    fn judge(mut self, survey: &mut Survey) {
        self.inodes.sort_unstable();
        self.names.sort_unstable();
        self.parents.sort_unstable();
        self.parents.dedup();
        let place = |id: u64| self.inodes.binary_search_by_key(&id, |(inode, _)| *inode).ok();
        let is_there = |id: u64| place(id).is_some();
        let is_right = |name: &(u64, u64)| place(name.0).is_none_or(|place| self.inodes[place].1 == name.1);
        let elsewhere = self.names.iter().filter(|name| !is_right(name)).map(|(id, _)| *id);
        let is_named = |id: u64| self.names.binary_search_by_key(&id, |(named, _)| *named).is_ok();
        let twice = self.names.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| pair[0].0);
        let without = self.names.iter().map(|(id, _)| *id).filter(|id| !is_there(*id) || *id == FileId::ROOT.0);
        let unnamed = self.inodes.iter().map(|(id, _)| *id).filter(|id| !is_named(*id) && *id != FileId::ROOT.0);
        let nowhere = self.parents.iter().copied().filter(|id| !is_there(*id));
        let suspects = twice.chain(elsewhere).chain(without).chain(unnamed).chain(nowhere).map(FileId);
        survey.suspects.extend(suspects);
        survey.circles = circles(&self.names);
    }
}

/// Directories that are below each other, by walking up from each until something is met that was walked before.
/// `names` are sorted pairs of id and parent.
fn circles(names: &[(u64, u64)]) -> Vec<Vec<FileId>> {
    let place = |id: u64| names.binary_search_by_key(&id, |(named, _)| *named).ok();
    // Number of the walk that came by; 0 for none.
    let mut walked = vec![0u32; names.len()];
    let mut circles = Vec::new();
    for start in 0..names.len() {
        let walk = start as u32 + 1;
        let mut here = Some(start);
        while let Some(position) = here.filter(|position| walked[*position] == 0) {
            walked[position] = walk;
            here = place(names[position].1);
        }
        let Some(meeting) = here.filter(|position| walked[*position] == walk) else { continue };
        let mut circle = vec![FileId(names[meeting].0)];
        let mut next = place(names[meeting].1);
        while let Some(position) = next.filter(|position| *position != meeting) {
            circle.push(FileId(names[position].0));
            next = place(names[position].1);
        }
        circles.push(circle);
    }
    circles
}

fn bit_of(kind: Kind) -> u8 {
    1 << kind as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: circles of any length are found once, and what hangs from them or from the root is not taken for one.
    #[test]
    fn circles_are_found() {
        let root = FileId::ROOT.0;
        assert!(circles(&[(10, root), (11, 10), (12, 11), (13, 10)]).is_empty());
        let mut found = circles(&[(10, root), (20, 21), (21, 22), (22, 20), (23, 22), (24, 23), (30, 30)]);
        found.iter_mut().for_each(|circle| circle.sort_unstable_by_key(|id| id.0));
        assert_eq!(found, [vec![FileId(20), FileId(21), FileId(22)], vec![FileId(30)]]);
    }
}
