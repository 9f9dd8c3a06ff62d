//! Flushes in runs with a backing tree: while clients work and servers are killed, somebody has changes carried back
//! all the time; and when all is quiet the tree is to be what clients see, but for what the flush says could not go.

use crate::behind;
use crate::harness::SimClient;
use crate::profile::{Faults, Profile, SECOND};
use client::{FileSystem, FlushReport, OpenHow};
use reactor::Nanos;
use reactor::sim::World;
use server::{ConflictPolicy, FlushPolicy, Flushing};
use std::collections::{BTreeMap, BTreeSet};
use wire::{Kind, Status};

/// Hidden names of ours; nobody is shown them.
const HIDDEN: &[u8] = b".tabane-";
/// Attempts at an open, where there is no room for open files.
const OPENS_MAX: u32 = 20;
/// What of a file is compared at a time.
const PAGE: u64 = 4096;
/// Pages that are read at a time.
const READ_PAGES: u64 = 16;

/// Why something may stay, in a run without anybody else at the site.
const REASONS: [&str; 8] = [
    "what was changed of it is carried by its other name first",
    "it is carried by another name first",
    "pipes, sockets and devices are not carried",
    "its directory is not there yet",
    "the directory is not empty there",
    "it has another name here",
    "what has its name behind is not moved yet",
    "is still open here",
];

/// What a path stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Directory,
    File(Contents),
    /// A file whose bytes there is no room to bring here, or are rotten.
    Unread,
    Other,
}

/// Size of a file, and its pages that have anything but zeros, by number.
type Contents = (u64, BTreeMap<u64, Vec<u8>>);

/// Names that flushes put beside others.
pub const BESIDE: &str = ".tabane-";
/// In the words of a server that can't fetch what somebody else has replaced.
const CHANGED_THERE: &str = "has changed there since it was taken up";

/// What clients see, by path.
pub type View = BTreeMap<String, Seen>;

/// Flushes again and again until the client is taken away.
pub async fn flush_on(files: FileSystem, pause: Nanos) {
    loop {
        // Servers may be down, and the site may refuse; that is no matter here.
        let _: client::Result<FlushReport> = files.flush(&[], &|_| {}).await;
        files.reactor().sleep(pause).await;
    }
}

/// All that a client sees.
pub async fn view(files: &FileSystem) -> client::Result<View> {
    let mut view = View::new();
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        let mut entries = Vec::new();
        let path = format!("/{directory}");
        files
            .read_directory(path.as_bytes(), true, &mut |entry| {
                entries.push((String::from_utf8_lossy(&entry.name).into_owned(), entry.kind));
                true
            })
            .await?;
        for (name, kind) in entries {
            let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            let seen = match kind {
                Kind::Directory => {
                    directories.push(path.clone());
                    Seen::Directory
                }
                // Written by flushes beside somebody else's; nobody compares it, and what has large holes takes long.
                Kind::File if path.contains(BESIDE) => Seen::Unread,
                Kind::File => match contents(files, &path).await {
                    Err(error) if matches!(error.status, Status::NoSpace | Status::Corrupt | Status::TooManyOpen) => {
                        Seen::Unread
                    }
                    contents => Seen::File(contents?),
                },
                _ => Seen::Other,
            };
            view.insert(path, seen);
        }
    }
    Ok(view)
}

async fn contents(files: &FileSystem, path: &str) -> client::Result<Contents> {
    // A session may have few files open, and closes of others may have to arrive first.
    let mut opens = 0;
    let file = loop {
        match files.open(format!("/{path}").as_bytes(), &OpenHow::reading()).await {
            Err(error) if error.status == Status::TooManyOpen && opens < OPENS_MAX => {
                opens += 1;
                files.reactor().sleep(SECOND).await;
            }
            other => break other?,
        }
    };
    let read = read_pages(files, &file).await;
    files.close(&file).await;
    read
}

async fn read_pages(files: &FileSystem, file: &client::File) -> client::Result<Contents> {
    let size = files.stat_file(file).await?.size;
    let (mut pages, mut offset) = (BTreeMap::new(), 0);
    while offset < size {
        match files.seek_data(file, offset).await {
            Err(error) if error.status == Status::NoData => break,
            found => offset = found? / PAGE * PAGE,
        }
        let mut piece = vec![0; (READ_PAGES * PAGE) as usize];
        let mut count = 0;
        while count < piece.len() {
            match files.read_at(file, &mut piece[count..], offset + count as u64).await? {
                0 => break,
                more => count += more,
            }
        }
        for (number, page) in (offset / PAGE..).zip(piece.chunks(PAGE as usize)) {
            if page.iter().any(|byte| *byte != 0) {
                pages.insert(number, page.to_vec());
            }
        }
        offset += READ_PAGES * PAGE;
    }
    Ok((size, pages))
}

/// What the site has, by path; without names that are hidden.
pub fn site(world: &World) -> View {
    let outsider = world.outsider();
    let mut site = View::new();
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        for name in outsider.list(&directory).into_iter().filter(|name| !name.starts_with(HIDDEN)) {
            let name = String::from_utf8_lossy(&name).into_owned();
            let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            let seen = match (outsider.is_directory(&path), outsider.read_pages(&path)) {
                (true, _) => {
                    directories.push(path.clone());
                    Seen::Directory
                }
                (false, Some(contents)) => Seen::File(contents),
                (false, None) => Seen::Other,
            };
            site.insert(path, seen);
        }
    }
    site
}

/// Names of files and links, by the number of their inodes.
pub type Names = BTreeMap<u64, Vec<String>>;

/// All names of files and links that a client is shown.
async fn names(files: &FileSystem) -> client::Result<Names> {
    let mut names = Names::new();
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        let path = format!("/{directory}");
        files
            .read_directory(path.as_bytes(), false, &mut |entry| {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
                match entry.kind {
                    Kind::Directory => directories.push(path),
                    Kind::File | Kind::Symlink => names.entry(entry.id.0).or_default().push(path),
                    _ => {}
                }
                true
            })
            .await?;
    }
    Ok(names)
}

/// The same of the site, without names that are hidden.
pub fn names_at_site(world: &World) -> Names {
    let mut names = Names::new();
    let is_file = |(_, seen): &(String, Seen)| *seen != Seen::Directory;
    for (path, _) in site(world).into_iter().filter(is_file) {
        names.entry(world.outsider().inode(&path)).or_default().push(path);
    }
    names
}

/// What is wrong with files that have several names after a flush: these are those of one file there as well.
pub fn parted_names(
    world: &World,
    client: &SimClient,
    report: &FlushReport,
    limit: Nanos,
) -> Result<Vec<String>, String> {
    let files = client.client.file_system.clone();
    let told: Option<client::Result<Names>> = world.run(client.node, async move { names(&files).await }, limit);
    let here =
        told.ok_or("a list of all names does not end")?.map_err(|error| format!("no list of all names: {error}"))?;
    let inode_of: BTreeMap<String, u64> = names_at_site(world)
        .into_iter()
        .flat_map(|(inode, names)| names.into_iter().map(move |name| (name, inode)))
        .collect();
    let mut problems = Vec::new();
    let mut owners: BTreeMap<u64, (u64, String)> = BTreeMap::new();
    for (id, names) in here {
        for name in names.into_iter().filter(|name| !is_excused(name, report)) {
            let Some(inode) = inode_of.get(&name) else { continue };
            let (owner, other) = owners.entry(*inode).or_insert_with(|| (id, name.clone()));
            if *owner != id {
                problems.push(format!("behind, after a flush: {name} and {other} are one file there, and not here"));
            }
        }
    }
    let mut inodes: BTreeMap<u64, (u64, String)> = BTreeMap::new();
    for (inode, (id, name)) in owners {
        let (other_inode, other) = inodes.entry(id).or_insert_with(|| (inode, name.clone()));
        if *other_inode != inode {
            problems.push(format!("behind, after a flush: {name} and {other} are one file here, and not there"));
        }
    }
    Ok(problems)
}

pub fn is_excused(path: &str, report: &FlushReport) -> bool {
    report.failures.iter().any(|(failed, _)| {
        let failed = String::from_utf8_lossy(failed);
        path == failed || path.strip_prefix(&*failed).is_some_and(|rest| rest.starts_with('/'))
    })
}

/// What is wrong with a flush that nobody disturbed: reasons that can't be, and what is not the same on both sides.
pub fn problems(world: &World, view: &View, report: &FlushReport, faults: &Faults) -> Vec<String> {
    let mut problems = Vec::new();
    let is_rotten = |reason: &str| faults.rot && reason.contains("do not match their checksum");
    for (path, reason) in &report.failures {
        if !REASONS.iter().any(|known| reason.contains(known)) && !is_rotten(reason) {
            problems.push(format!("flush of {}: {reason}", String::from_utf8_lossy(path)));
        }
    }
    let site = site(world);
    let paths: BTreeSet<&String> = view.keys().chain(site.keys()).collect();
    for path in paths.into_iter().filter(|path| !is_excused(path, report)) {
        let words = match (view.get(path), site.get(path)) {
            (here, there) if here == there => continue,
            (Some(Seen::Unread), Some(Seen::File(_))) => continue,
            (Some(_), None) => "is not there",
            (None, Some(_)) => "is still there",
            (Some(Seen::File(here)), Some(Seen::File(there))) if here.0 != there.0 => "has another size there",
            (Some(Seen::File(_)), Some(Seen::File(_))) => "has other bytes there",
            _ => "is something else there",
        };
        problems.push(format!("behind, after a flush: {path} {words}"));
    }
    problems
}

/// A client flushes, and then opens at everything.
pub fn flush_and_look(world: &World, client: &SimClient, limit: Nanos) -> Result<(FlushReport, View), String> {
    flush_and_look_again(world, client, limit, 0, 0)
}

/// The same where the site may have changed since servers have looked at it: whoever meets with that looks again, after
/// pauses.
pub fn flush_and_look_again(
    world: &World,
    client: &SimClient,
    limit: Nanos,
    pause_count: u32,
    pause: Nanos,
) -> Result<(FlushReport, View), String> {
    let files = client.client.file_system.clone();
    let work = async move {
        let report = files.flush(&[], &|_| {}).await?;
        for _ in 0..pause_count {
            match view(&files).await {
                Err(error) if error.message.contains(CHANGED_THERE) => files.reactor().sleep(pause).await,
                seen => return seen.map(|view| (report, view)),
            }
        }
        let view = view(&files).await?;
        Ok((report, view))
    };
    let done: Option<client::Result<(FlushReport, View)>> = world.run(client.node, work, limit);
    let done = done.ok_or("a flush does not end")?;
    done.map_err(|error| format!("a flush, or a look after it, fails: {error}"))
}

/// Has the servers compare what is here with what is behind, when nobody changes anything. What is wrong with that.
pub fn compare(world: &World, client: &SimClient, limit: Nanos) -> Result<Vec<String>, String> {
    let files = client.client.file_system.clone();
    let compared = world.run(client.node, async move { files.compare_behind(&[], &|_| {}).await }, limit);
    let compared = compared.ok_or("a comparison with what is behind does not end")?;
    let compared = compared.map_err(|error| format!("a comparison with what is behind fails: {error}"))?;
    let words = |(path, words): &(Vec<u8>, String)| format!("compared: {} {words}", String::from_utf8_lossy(path));
    Ok(compared.differences.iter().map(words).collect())
}

/// A client opens at everything.
pub fn look(world: &World, client: &SimClient, limit: Nanos) -> Result<View, String> {
    let files = client.client.file_system.clone();
    let seen: Option<client::Result<View>> = world.run(client.node, async move { view(&files).await }, limit);
    seen.ok_or("a look at everything does not end")?.map_err(|error| format!("a look at everything fails: {error}"))
}

/// Whether changes go back in a run.
pub fn is_wanted(profile: &Profile) -> bool {
    use crate::profile::Sabotage;
    use server::BackingFault::{ForgetsChanges, ForgetsEvicted, ForgetsLinks, FsyncsTooSoon, LosesChunkChanges};
    use server::BackingFault::{LosesWritesInFlush, ReplacesOthers, SyncsNothing};
    let needs = matches!(
        profile.sabotage,
        Sabotage::Backing(
            ForgetsChanges
                | ForgetsEvicted
                | ForgetsLinks
                | FsyncsTooSoon
                | LosesChunkChanges
                | LosesWritesInFlush
                | ReplacesOthers
                | SyncsNothing
        )
    );
    profile.backing
        && (needs
            || profile.sabotage == Sabotage::None && crate::random::Random::new(profile.seed ^ 0x666c_7573).percent(70))
}

/// Whether somebody has changes carried back all the time. In some runs servers are left to it alone.
pub fn somebody_flushes(profile: &Profile) -> bool {
    is_wanted(profile) && !(profile.flushing.policy.is_automatic() && profile.seed.is_multiple_of(3))
}

/// When changes go back by themselves, also before a server ends: not in runs that count on the site as it is.
pub fn flushing(profile: &Profile) -> Flushing {
    use crate::profile::Sabotage;
    match is_wanted(profile) {
        // What was evicted is of no concern to a file that stays where it is.
        true if profile.sabotage == Sabotage::Backing(server::BackingFault::ForgetsEvicted) => {
            Flushing { atomic_below: u64::MAX, ..profile.flushing }
        }
        // Names are to be looked at before they are flushed, and ours is to stay.
        true if profile.sabotage == Sabotage::Backing(server::BackingFault::ForgetsChanges) => Flushing {
            check: crate::profile::SECOND,
            policy: FlushPolicy::Manual,
            on_conflict: ConflictPolicy::Both,
            ..profile.flushing
        },
        true if profile.sabotage == Sabotage::Backing(server::BackingFault::FsyncsTooSoon) => {
            Flushing { policy: FlushPolicy::Manual, fsync_carries: true, ..profile.flushing }
        }
        true => profile.flushing,
        false => Flushing { policy: FlushPolicy::Manual, grace: 0, fsync_carries: false, ..profile.flushing },
    }
}

/// In some runs servers compare both sides when all is flushed; not where bytes go bad.
pub fn compares(profile: &Profile) -> bool {
    profile.seed % 4 < 2 && !profile.faults.rot
}

/// In some runs the site's power goes when all is flushed.
pub fn loses_power(profile: &Profile) -> bool {
    behind::faults(profile).delay_ns > 0 || profile.seed.is_multiple_of(2)
}
