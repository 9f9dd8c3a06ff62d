//! What is behind the cluster of a run with a backing tree: a site that has some of the workload's files and
//! directories from the start. The history begins with operations that tell of them as of any others, so that every
//! checker knows them: as if somebody had made all of it before the first client came.
//!
//! Servers say which ids they gave to what they took up (`Server::taken_up`); only then the history's first operations
//! name them. What was given up, for there were too many names, and taken up again has several ids, of which the
//! history gets the first one wherever it has another. Power is not lost in these runs: what was taken up and lost
//! would be taken up anew, with another id, which no model of names knows of.

use crate::check::extended::value;
use crate::history::{Action, History, Outcome, Path};
use crate::pattern::{self, Tag};
use crate::profile::Profile;
use crate::random::Random;
use crate::workload_extended::NAMES;
use client::{DirectoryEntry, FileSystem, ListedFile};
use reactor::Nanos;
use reactor::sim::{BackingFaults, World};
use std::collections::{BTreeMap, BTreeSet};
use wire::{FileId, Kind};

/// Where servers find it.
pub const SITE: &str = "/site";
/// Nobody's number.
const CLIENT: u32 = u32::MAX;
/// Tags from here on are of what is behind.
const TAG_FIRST: Tag = 1 << 24;
const EXTENDED_TAG_FIRST: Tag = 1 << 25;
/// Bytes of a value that is behind, at most: any journal takes those of a file.
const EXTENDED_SIZE_MAX: u64 = 1000;
/// Of rights, as the site's outsider sets them.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// A file that the site has.
struct FileBehind {
    path: Path,
    /// The number of its inode.
    inode: u64,
    tag: Tag,
    size: u64,
    /// Numbers of the operations that tell of it.
    open: usize,
    write: Option<usize>,
    extended: Vec<usize>,
}

/// See the module.
#[derive(Default)]
pub struct Behind {
    files: Vec<FileBehind>,
    /// Whether servers give up names, for there are more than they keep.
    names_go: bool,
}

fn on_site(path: &Path) -> String {
    path.parts.join("/")
}

/// The ids that somebody was told.
fn told(outcome: &Outcome) -> Vec<FileId> {
    match outcome {
        Outcome::Entries(entries) => entries.iter().map(|entry| entry.id).collect(),
        other => other.id().into_iter().collect(),
    }
}

impl Behind {
    /// Fills the site, and begins the history with that.
    pub fn fill(world: &World, profile: &Profile, history: &mut History) -> Behind {
        let mut random = Random::new(profile.seed ^ 0x6265_6869_6e64);
        let names_go = profile.bounds.taken_up_names != usize::MAX;
        let mut behind = Behind { names_go, ..Behind::default() };
        let mut directories = vec![None];
        for name in crate::workload::DIRECTORIES {
            if random.percent(70) {
                let path = Path::top(name);
                world.outsider().make_directory(name);
                let make = history.start(CLIENT, Action::MakeDirectory { path: path.clone(), mode: DIRECTORY_MODE }, 0);
                history.finish(make, Outcome::Done, 0);
                directories.push(Some(path));
            }
        }
        for directory in directories {
            let names: Vec<String> = match directory {
                None => crate::workload::FILES.map(str::to_owned).to_vec(),
                Some(_) => {
                    let children = crate::workload::CHILDREN.map(str::to_owned);
                    let others = (0..crate::workload::NEW_FILE_COUNT).step_by(5).map(|number| format!("n{number}"));
                    children.into_iter().chain(others).collect()
                }
            };
            for name in names.into_iter().filter(|_| random.percent(60)).collect::<Vec<_>>() {
                let path = directory.as_ref().map_or_else(|| Path::top(&name), |directory| directory.join(&name));
                behind.make_file(world, profile, &mut random, path, history);
            }
        }
        behind
    }

    fn make_file(&mut self, world: &World, profile: &Profile, random: &mut Random, path: Path, history: &mut History) {
        let chunk_size = profile.chunk_sizes[0];
        let size = match random.below(6) {
            0 => 0,
            1 => random.between(1, 200),
            2 => u64::from(chunk_size),
            _ => random.between(1, 4 * u64::from(chunk_size)).min(300_000),
        };
        let tag = TAG_FIRST + self.files.len() as Tag;
        let mut bytes = vec![0; size as usize];
        pattern::fill(tag, 0, &mut bytes);
        world.outsider().write(&on_site(&path), 0, &bytes);
        let action = Action::Open {
            path: path.clone(),
            create: true,
            exclusive: true,
            truncate: false,
            mode: FILE_MODE,
            chunk_size,
        };
        let open = history.start(CLIENT, action, 0);
        history.finish(open, Outcome::Done, 0);
        let write = (size > 0).then(|| {
            let action = Action::Write { file: FileId::default(), chunk_size, offset: 0, size, tag };
            let write = history.start(CLIENT, action, 0);
            history.finish(write, Outcome::Done, 0);
            write
        });
        let inode = world.outsider().inode(&on_site(&path));
        let extended = set_extended(world, profile, inode, &path, history);
        self.files.push(FileBehind { path, inode, tag, size, open, write, extended });
    }

    /// Has the history name the files by the ids that servers gave them. Errors: a file was taken up twice in a run in
    /// which names do not go.
    pub fn name(&self, history: &mut History, taken_up: &[(FileId, u64)]) -> Vec<String> {
        // A server that dies within a write to its store has taken up what nobody knows of, itself included.
        let told: BTreeSet<FileId> = history.operations.iter().flat_map(|operation| told(&operation.outcome)).collect();
        // Listings tell ids of what is not taken up yet; a server that is killed before it is gives it another one.
        let kept: BTreeSet<FileId> = history.operations.iter().filter_map(|operation| operation.outcome.id()).collect();
        let mut ids: BTreeMap<u64, Vec<FileId>> = BTreeMap::new();
        for (id, inode) in taken_up.iter().filter(|(id, _)| told.contains(id)) {
            let known = ids.entry(*inode).or_default();
            if !known.contains(id) {
                known.push(*id);
            }
        }
        let mut problems = Vec::new();
        let mut firsts: BTreeMap<FileId, FileId> = BTreeMap::new();
        for file in &self.files {
            let Some(known) = ids.get(&file.inode) else { continue };
            let Some((first, others)) = known.split_first() else { continue };
            if known.iter().filter(|id| kept.contains(id)).count() > 1 && !self.names_go {
                problems.push(format!("{} was taken up several times: {known:?}", file.path));
            }
            firsts.extend(others.iter().map(|other| (*other, *first)));
            history.operations[file.open].outcome = Outcome::Opened(*first);
            if let Some(Action::Write { file: named, .. }) =
                file.write.map(|write| &mut history.operations[write].action)
            {
                *named = *first;
            }
            for set in &file.extended {
                if let Action::SetExtended { file: named, .. } = &mut history.operations[*set].action {
                    *named = *first;
                }
            }
        }
        for id in history.operations.iter_mut().flat_map(|operation| operation.ids()) {
            if let Some(first) = firsts.get(id) {
                *id = *first;
            }
        }
        problems
    }

    /// What of the site is not as it was.
    pub fn changed(&self, world: &World) -> Vec<String> {
        let is_same = |file: &&FileBehind| {
            let bytes = world.outsider().read(&on_site(&file.path));
            bytes.is_some_and(|bytes| bytes.len() as u64 == file.size && pattern::matches(file.tag, 0, &bytes))
        };
        let changed = self.files.iter().filter(|file| file.size > 0 && !is_same(file));
        changed.map(|file| format!("{} was changed behind", file.path)).collect()
    }
}

/// Gives some of the files extended attributes, and some one that is not shown.
fn set_extended(world: &World, profile: &Profile, inode: u64, path: &Path, history: &mut History) -> Vec<usize> {
    let mut random = Random::new(profile.seed ^ 0x7861_7474 ^ (inode << 32));
    let mut set = Vec::new();
    for (name, number) in NAMES.into_iter().zip(0..) {
        if random.percent(30) {
            let (tag, size) = (EXTENDED_TAG_FIRST + 2 * inode as Tag + number, random.below(EXTENDED_SIZE_MAX));
            world.outsider().set_xattr(&on_site(path), name, &value(tag, size));
            let action = Action::SetExtended { file: FileId::default(), name: name.to_owned(), tag, size, flags: 0 };
            let operation = history.start(CLIENT, action, 0);
            history.finish(operation, Outcome::Done, 0);
            set.push(operation);
        }
    }
    if random.percent(20) {
        world.outsider().set_xattr(&on_site(path), "trusted.site", b"theirs");
    }
    set
}

/// What the site does wrong while clients work.
pub fn faults(profile: &Profile) -> BackingFaults {
    let mut random = Random::new(profile.seed ^ 0x7369_7465);
    let is_faulty = profile.faults.any();
    BackingFaults {
        error: if is_faulty && random.percent(40) { *random.choose(&[30, 100, 400]) } else { 0 },
        delay_ns: if random.percent(20) { 5_000_000 } else { 0 },
        ..BackingFaults::default()
    }
}

/// Whether servers give up clean chunks all the time, as if there were no room: in half of the runs.
pub fn evicts(profile: &Profile) -> bool {
    use crate::profile::Sabotage;
    use server::BackingFault::{EvictsDirty, ForgetsEvicted};
    let needs = matches!(profile.sabotage, Sabotage::Backing(EvictsDirty | ForgetsEvicted));
    profile.backing && (needs || Random::new(profile.seed ^ 0x6576_6963).percent(50))
}

/// Whether somebody stages all files while others work.
pub fn somebody_stages(profile: &Profile) -> bool {
    profile.backing && Random::new(profile.seed ^ 0x7374_6167).percent(30)
}

/// Stages all files again and again until the client is taken away.
pub async fn stage_on(files: FileSystem, pause: Nanos) {
    loop {
        // Servers may be down, and the site may refuse; that is no matter here.
        if let Ok(listed) = all_files(&files).await {
            let _: Vec<client::Result<()>> = files.stage_listed(&listed).await;
        }
        files.reactor().sleep(pause).await;
    }
}

async fn all_files(files: &FileSystem) -> client::Result<Vec<ListedFile>> {
    let (mut listed, mut directories) = (Vec::new(), vec![Vec::new()]);
    while let Some(directory) = directories.pop() {
        let on_entry = &mut |entry: &DirectoryEntry| {
            match (entry.kind, &entry.attributes) {
                (Kind::Directory, _) => directories.push([&*directory, &*entry.name].join(&b'/')),
                (Kind::File, Some(found)) => {
                    listed.push(ListedFile { id: found.id, layout: found.layout, size: found.size });
                }
                _ => {}
            }
            true
        };
        files.read_directory(if directory.is_empty() { b"/" } else { &directory }, true, on_entry).await?;
    }
    Ok(listed)
}

/// Whether each file of the site has to be synced by itself, as on file systems of other machines: in half of the runs.
pub fn syncs_apart(profile: &Profile) -> bool {
    Random::new(profile.seed ^ 0x6170_6172).percent(50)
}

/// Whether the site's renames do nothing but replace: in a third of the runs.
pub fn renames_plainly(profile: &Profile) -> bool {
    Random::new(profile.seed ^ 0x706c_6169).percent(33)
}

/// In some runs calls on one of the files hang for as long as clients work, or half of the time that they may take.
/// Whether they do: a change of names that waits for such a call keeps servers from telling of its directories.
pub fn hang_some(world: &World, profile: &Profile) -> bool {
    let mut random = Random::new(profile.seed ^ 0x6861_6e67);
    let hangs = profile.faults.any() && random.percent(25);
    if hangs {
        let directory = *random.choose(&["", "d0/", "d1/"]);
        let name = if directory.is_empty() { "f0" } else { "c0" };
        let operation = *random.choose(&[None, Some("read"), Some("look"), Some("open")]);
        world.hang_backing(&format!("{directory}{name}"), operation);
    }
    hangs
}

/// What it does wrong when nothing may any more.
pub fn no_faults() -> BackingFaults {
    BackingFaults { error: 0, ..BackingFaults::default() }
}
