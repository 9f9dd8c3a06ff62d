//! The second look: exact, for a few inodes at a time. Each server notes which of them change from before the look to
//! after it; what did not change anywhere was seen as it is.

use super::fault::{Fault, FaultyName};
use super::of_all;
use crate::error::{RequestError, Result};
use crate::filesystem::{FileSystem, about_server};
use std::collections::{BTreeMap, BTreeSet};
use wire::messages::{CheckId, CheckInode, CheckName, CheckPromise, CheckShare, CheckTable, CheckWanted};
use wire::{Decode, Decoder, FileId, Kind, Operation};

/// Names in directories that do not exist, of which no more are reported at once.
const NAMES_IN_NOTHING_MAX: usize = 10_000;

/// What a look came to.
#[derive(Default)]
pub struct Look {
    pub faults: Vec<Fault>,
    /// What changed meanwhile, or has something under way.
    pub restless: Vec<FileId>,
}

/// What all servers have of some inodes.
#[derive(Default)]
struct Evidence {
    names: BTreeMap<FileId, Vec<FaultyName>>,
    /// With the server that has it.
    inodes: BTreeMap<FileId, Vec<(u32, CheckInode)>>,
    shares: BTreeMap<FileId, Vec<(u32, CheckShare)>>,
    /// Servers that take a directory for removed.
    removed: BTreeMap<FileId, Vec<u32>>,
    /// Names in directories without an inode.
    inside: BTreeMap<FileId, Vec<FaultyName>>,
}

/// Looks at some inodes, at most as many as one request may name.
pub async fn look_at(files: &FileSystem, ids: &[FileId]) -> Result<Look> {
    let number = files.reactor().random();
    let wanted = CheckWanted::Ids(ids.to_vec());
    let mut restless = promises(files, CheckTable::Watch, number, &wanted).await?;
    let evidence = gather(files, ids, &wanted).await?;
    restless.extend(promises(files, CheckTable::Watched, number, &wanted).await?);
    let mut look = Look::default();
    for id in ids {
        if restless.contains(id) {
            look.restless.push(*id);
        } else {
            evidence.judge(files, *id, &mut look.faults);
        }
    }
    Ok(look)
}

/// Looks whether directories are still below each other. What changed meanwhile is no circle, or was none.
pub async fn look_at_circle(files: &FileSystem, circle: &[FileId]) -> Result<Option<Fault>> {
    let ids: Vec<FileId> = circle.iter().copied().take(super::LOOK_COUNT_MAX).collect();
    let number = files.reactor().random();
    let wanted = CheckWanted::Ids(ids.clone());
    let before = promises(files, CheckTable::Watch, number, &wanted).await?;
    let mut evidence = Evidence::default();
    evidence.read_names(files, &wanted).await?;
    let after = promises(files, CheckTable::Watched, number, &wanted).await?;
    let stands = |(position, id): (usize, &FileId)| {
        let above = circle[(position + 1) % circle.len()];
        evidence.names.get(id).is_some_and(|names| names.iter().any(|name| name.parent == above))
    };
    let all_stand = before.is_empty() && after.is_empty() && ids.iter().enumerate().all(stands);
    let name = evidence.names.get(&ids[0]).and_then(|names| names.first()).filter(|_| all_stand);
    Ok(name.map(|name| Fault::Circle { ids, name: name.clone() }))
}

async fn promises(
    files: &FileSystem,
    table: CheckTable,
    number: u64,
    wanted: &CheckWanted,
) -> Result<BTreeSet<FileId>> {
    let pages = of_all(files, |server| async move {
        let (_, body) = files.check_page(server, table, (number, 0), wanted).await?;
        Ok((server, body))
    });
    let mut promised = BTreeSet::new();
    for (server, body) in pages.await? {
        let mut rows = Decoder::new(&body);
        while rows.remaining() > 0 {
            let promise = CheckPromise::decode(&mut rows);
            let promise = promise.map_err(|malformed| {
                about_server(RequestError::malformed(Operation::Check, server, malformed), server)
            })?;
            promised.insert(promise.id);
        }
    }
    Ok(promised)
}

async fn gather(files: &FileSystem, ids: &[FileId], wanted: &CheckWanted) -> Result<Evidence> {
    let mut evidence = Evidence::default();
    evidence.read_names(files, wanted).await?;
    for server in 0..files.server_count() {
        let Evidence { inodes, shares, removed, .. } = &mut evidence;
        files
            .check_table(server, CheckTable::Inodes, wanted, &mut |_, rows| {
                while rows.remaining() > 0 {
                    let inode = CheckInode::decode(rows)?;
                    inodes.entry(inode.id).or_default().push((server, inode));
                }
                Ok(())
            })
            .await?;
        files
            .check_table(server, CheckTable::Shares, wanted, &mut |_, rows| {
                while rows.remaining() > 0 {
                    let share = CheckShare::decode(rows)?;
                    shares.entry(share.file).or_default().push((server, share));
                }
                Ok(())
            })
            .await?;
        files
            .check_table(server, CheckTable::Removed, wanted, &mut |_, rows| {
                while rows.remaining() > 0 {
                    removed.entry(CheckId::decode(rows)?.id).or_default().push(server);
                }
                Ok(())
            })
            .await?;
    }
    let missing: Vec<FileId> = ids.iter().copied().filter(|id| !evidence.inodes.contains_key(id)).collect();
    if !missing.is_empty() {
        let under = CheckWanted::Under(missing);
        let mut left = NAMES_IN_NOTHING_MAX;
        read_names(files, &under, &mut |name| {
            if left > 0 {
                left -= 1;
                evidence.inside.entry(name.parent).or_default().push(name);
            }
        })
        .await?;
    }
    Ok(evidence)
}

async fn read_names(files: &FileSystem, wanted: &CheckWanted, found: &mut dyn FnMut(FaultyName)) -> Result<()> {
    for server in 0..files.server_count() {
        files
            .check_table(server, CheckTable::Names, wanted, &mut |_, rows| {
                while rows.remaining() > 0 {
                    let CheckName { parent, id, kind, name } = CheckName::decode(rows)?;
                    found(FaultyName { server, parent, name: name.as_bytes().to_vec(), id, kind });
                }
                Ok(())
            })
            .await?;
    }
    Ok(())
}

impl Evidence {
    async fn read_names(&mut self, files: &FileSystem, wanted: &CheckWanted) -> Result<()> {
        let names = &mut self.names;
        read_names(files, wanted, &mut |name| names.entry(name.id).or_default().push(name)).await
    }

    fn judge(&self, files: &FileSystem, id: FileId, faults: &mut Vec<Fault>) {
        let names = self.names.get(&id).map_or(&[][..], Vec::as_slice);
        let shares = self.shares.get(&id).map_or(&[][..], Vec::as_slice);
        let home = files.cluster().home_of(id);
        let misplaced = |name: &&FaultyName| files.cluster().dentry_server(name.parent, &name.name) != name.server;
        faults.extend(names.iter().filter(misplaced).cloned().map(Fault::MisplacedName));
        for (server, _) in self.inodes.get(&id).into_iter().flatten().filter(|(server, _)| Some(*server) != home) {
            faults.push(Fault::MisplacedInode { server: *server, id });
        }
        let inode = self.inodes.get(&id).and_then(|found| found.iter().find(|(server, _)| Some(*server) == home));
        let Some((_, inode)) = inode else {
            faults.extend(names.iter().cloned().map(Fault::NameWithoutInode));
            faults.extend(self.inside.get(&id).into_iter().flatten().cloned().map(Fault::NameInNothing));
            faults.extend(shares.iter().map(|(server, share)| Fault::ChunksWithoutFile {
                server: *server,
                file: id,
                chunk_count: share.chunk_count,
            }));
            return;
        };
        if inode.kind == Kind::Directory {
            let servers = self.removed.get(&id).into_iter().flatten();
            faults.extend(servers.map(|server| Fault::StaleTombstone { server: *server, id }));
        }
        judge_names(inode, names, faults);
        judge_shares(inode, home, shares, faults);
    }
}

fn judge_names(inode: &CheckInode, names: &[FaultyName], faults: &mut Vec<Fault>) {
    let (id, kind, link_count) = (inode.id, inode.kind, inode.link_count);
    let wrong = names.iter().filter(|name| name.kind != kind);
    faults.extend(wrong.map(|name| Fault::WrongKind { name: name.clone(), kind }));
    let count = names.len() as u32;
    match (kind, count) {
        (Kind::Directory, 0) if id == FileId::ROOT => {}
        (Kind::Directory, 1) if id != FileId::ROOT && inode.parent == Some(names[0].parent) => {}
        (Kind::Directory, 1) if id != FileId::ROOT => {
            faults.push(Fault::WrongParent { id, told: inode.parent, parent: names[0].parent });
        }
        // An open file may have no names; then its inode says so.
        (_, 0) if kind != Kind::Directory && link_count == 0 => {}
        (_, 0) => faults.push(Fault::Orphan { id, kind, link_count }),
        (Kind::Directory, _) => {
            // The first is kept: the one that the inode knows of.
            let mut names = names.to_vec();
            names.sort_by_key(|name| inode.parent != Some(name.parent));
            faults.push(Fault::DirectoryWithNames { id, names });
        }
        _ if count != link_count => faults.push(Fault::WrongLinkCount { id, link_count, names: count }),
        _ => {}
    }
}

fn judge_shares(inode: &CheckInode, home: Option<u32>, shares: &[(u32, CheckShare)], faults: &mut Vec<Fault>) {
    let file = inode.id;
    let mut end = inode.size;
    for (server, share) in shares {
        let announced = inode.announced.contains(server);
        let unknown = !inode.holders.contains(server) || (share.announced.is_some() && !announced);
        if inode.kind != Kind::File {
            faults.push(Fault::ChunksWithoutFile { server: *server, file, chunk_count: share.chunk_count });
        } else if Some(*server) != home && unknown {
            faults.push(Fault::UnknownHolder { server: *server, file, announced: share.announced });
        } else if !announced {
            end = end.max(share.end);
        }
    }
    if end > inode.size {
        faults.push(Fault::SizeTooSmall { file, size: inode.size, end });
    }
}
