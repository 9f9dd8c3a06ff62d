//! Quarrels: at the end of some runs with a backing tree somebody else at the site changes names that were changed here
//! as well. Afterwards each of the two versions has to be where `--on-conflict` says, or the flush lists the name.
//!
//! He acts while all servers are down, for a flush can't see what happens between its look at a name and its rename.
//! He changes others as well, which are the same on both sides, and makes new ones, where servers look at the site
//! again: those have to be the same on both sides afterwards.
//!
//! And nothing is evicted from before that on: what was put behind and evicted, and is gone there, nobody can read any
//! more.

use crate::carried::{self, BESIDE, Seen, View};
use crate::harness::{Harness, SimClient};
use crate::profile::{MILLISECOND, Profile, SECOND, Sabotage};
use crate::random::Random;
use crate::{behind, pattern};
use client::{FileSystem, FlushReport, OpenHow};
use reactor::sim::{CrashKind, World};
use reactor::{Class, Nanos};
use server::{BackingFault, ConflictPolicy};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use wire::FileId;

/// Names that are quarrelled about, at most.
const QUARRELS_MAX: u64 = 12;
/// Names of theirs beside ours.
const THEIRS: &str = ".tabane-theirs-";
/// Tags of what is written for it; nothing else has them.
const TAG_FIRST: pattern::Tag = 1 << 25;
/// Names that somebody else changes, and nobody here, and numbers for them.
const VISITS_MAX: u64 = 12;
const VISIT_FIRST: usize = 1 << 10;
/// How often servers are killed while names are settled.
const KILLS_MAX: u64 = 4;

/// A name that both sides change.
struct Quarrel {
    path: String,
    /// What is here before the other one comes; nothing where it was removed.
    ours: Option<Seen>,
    theirs: Seen,
    /// Whether it was there already.
    was_carried: bool,
}

/// Whether a run ends with quarrels, and its names are not deleted then. Not where stores are small: they evict what is
/// clean by themselves; those that turn out to be nearly full are left alone later.
pub fn are_wanted(profile: &Profile) -> bool {
    let is_drawn = match profile.sabotage {
        Sabotage::None => Random::new(profile.seed ^ 0x7175_6172).percent(40),
        sabotage => {
            matches!(sabotage, Sabotage::Backing(BackingFault::ReplacesOthers | BackingFault::ForgetsChanges))
        }
    };
    is_drawn && carried::is_wanted(profile) && !profile.faults.rot && !profile.may_be_full()
}

/// How a name is changed here.
#[derive(Clone, Copy)]
enum Change {
    Write,
    Cut,
    Remove,
    Make,
}

/// Changes some names here. Names that can't be are left out.
async fn change_some(files: FileSystem, wanted: Vec<(String, Change)>, chunk_size: u64) -> Vec<String> {
    let mut changed = Vec::new();
    for (number, (path, change)) in wanted.into_iter().enumerate() {
        let done = change_one(&files, &path, change, TAG_FIRST + number as u32 * 2, chunk_size).await;
        if done.is_ok() {
            changed.push(path);
        }
    }
    changed
}

async fn change_one(
    files: &FileSystem,
    path: &str,
    change: Change,
    tag: pattern::Tag,
    chunk_size: u64,
) -> client::Result<()> {
    let path = format!("/{path}").into_bytes();
    let how = match change {
        Change::Remove => return files.unlink(&path).await,
        Change::Cut => return files.truncate(&path, u64::from(tag) % 5000).await.map(drop),
        Change::Write => OpenHow::reading_and_writing(),
        Change::Make => OpenHow::creating(0o644),
    };
    let file = files.open(&path, &how).await?;
    let mut bytes = vec![0; (chunk_size + 100).min(50_000) as usize];
    pattern::fill(tag, 0, &mut bytes);
    let mut done = 0;
    while done < bytes.len() {
        match files.write_at(&file, &bytes[done..], done as u64).await {
            Ok(more) => done += more,
            Err(error) => {
                files.close(&file).await;
                return Err(error);
            }
        }
    }
    files.close(&file).await;
    Ok(())
}

/// Asks for names all the time; how long it took at most.
async fn look_on(files: FileSystem, paths: Vec<String>, longest: Rc<RefCell<Nanos>>) {
    loop {
        for path in &paths {
            let start = files.reactor().now();
            let _: client::Result<_> = files.stat(format!("/{path}").as_bytes()).await;
            let took = files.reactor().now() - start;
            let so_far = *longest.borrow();
            longest.replace(so_far.max(took));
            files.reactor().sleep(MILLISECOND).await;
        }
        files.reactor().sleep(10 * MILLISECOND).await;
    }
}

/// Somebody else changes a name at the site. What he writes into a file that a flush has begun to update where it is
/// would not be noticed (docs/cache.md); of one that is `updated` he replaces the name.
fn act(world: &World, random: &mut Random, path: &str, number: usize, updated: &BTreeSet<u64>) {
    let site = world.outsider();
    let mut bytes = vec![0; random.between(1, 9_000) as usize];
    pattern::fill(TAG_FIRST + number as u32 * 2 + 1, 0, &mut bytes);
    match random.below(4) {
        0 if site.read_pages(path).is_some() && !updated.contains(&site.inode(path)) => {
            site.write(path, 0, &bytes);
            site.set_size(path, bytes.len() as u64);
        }
        1 => {
            site.make_symlink("somebody", "else");
            site.rename("somebody", path);
        }
        _ => {
            site.write("somebody", 0, &bytes);
            site.rename("somebody", path);
        }
    }
}

/// Paths of what is looked at again: directories that were taken up from the site, the root among them, and files in
/// them that have one name here, whose server is their home.
fn looked_at(world: &World, client: &SimClient, view: &View, limit: Nanos) -> Result<BTreeSet<String>, String> {
    let files = client.client.file_system.clone();
    let paths: Vec<(String, bool)> = view.iter().map(|(path, seen)| (path.clone(), *seen == Seen::Directory)).collect();
    let look = async move {
        let cluster = files.cluster().clone();
        let mut ids = BTreeMap::from([(String::new(), FileId::ROOT)]);
        let mut looked_at = BTreeSet::from([String::new()]);
        // In this order directories come before what is in them.
        for (path, is_directory) in paths {
            let Ok(found) = files.stat(format!("/{path}").as_bytes()).await else { continue };
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
            let server = ids.get(parent).map(|parent| cluster.dentry_server(*parent, name.as_bytes()));
            let is_looked_at = match is_directory {
                true => found.id.is_from_behind(),
                false => looked_at.contains(parent) && server == cluster.home_of(found.id) && found.link_count == 1,
            };
            ids.insert(path.clone(), found.id);
            if is_looked_at {
                looked_at.insert(path);
            }
        }
        looked_at
    };
    world.run(client.node, look, limit).ok_or_else(|| "a look at all names does not end".to_owned())
}

/// Whether servers look at the site again.
pub fn checks(profile: &Profile) -> bool {
    carried::flushing(profile).check != Nanos::MAX
}

/// Somebody else changes names that are the same on both sides, removes some, and makes new ones. Returns their paths.
fn visit(
    world: &World,
    random: &mut Random,
    view: &View,
    quarrels: &[Quarrel],
    looked_at: &BTreeSet<String>,
    is_fit: &dyn Fn(&String) -> bool,
) -> Vec<String> {
    let is_free = |path: &String| quarrels.iter().all(|quarrel| quarrel.path != *path) && is_fit(path);
    let files: Vec<&String> = view
        .iter()
        .filter(|(path, seen)| matches!(seen, Seen::File(_)) && is_free(path))
        .map(|(path, _)| path)
        .collect();
    // One that a flush could not make there may be something else.
    let is_directory =
        |path: &&String| view.get(*path) == Some(&Seen::Directory) && world.outsider().is_directory(path);
    let directories: Vec<&String> = looked_at.iter().filter(is_directory).collect();
    let mut visited = Vec::new();
    for number in 0..random.below(VISITS_MAX) {
        let site = world.outsider();
        let path = match random.below(4) {
            0 => match directories.is_empty() || random.percent(30) {
                true => format!("visit{number}"),
                false => format!("{}/visit{number}", random.choose(&directories)),
            },
            _ if files.is_empty() => continue,
            _ => (*random.choose(&files)).clone(),
        };
        if visited.contains(&path) {
            continue;
        }
        match random.percent(25) && site.exists(&path) {
            true => site.remove(&path),
            false => act(world, random, &path, VISIT_FIRST + number as usize, &BTreeSet::new()),
        }
        visited.push(path);
    }
    visited
}

/// All that has to hold after a flush, if nothing of the names is disturbed any more.
fn problems(
    policy: ConflictPolicy,
    quarrels: &[Quarrel],
    view: &View,
    site: &View,
    report: &FlushReport,
) -> Vec<String> {
    let mut problems = Vec::new();
    for Quarrel { path, ours, theirs, was_carried } in quarrels {
        let (here, there) = (view.get(path), site.get(path));
        let beside = |mark: &str| {
            let start = format!("{path}{mark}");
            let mut names = site.range(start.clone()..).take_while(|(name, _)| name.starts_with(&start));
            names.any(|(_, seen)| seen == theirs)
        };
        let is_beside = beside(THEIRS);
        let reason = report.failures.iter().find(|(failed, _)| failed == path.as_bytes());
        let reason = reason.map(|(_, reason)| reason.as_str());
        let is_listed = reason.is_some();
        if there != Some(theirs) && !(policy == ConflictPolicy::Ours && is_beside) {
            problems.push(format!("quarrel about {path}: theirs is not there any more"));
        }
        let is_ours_here = here == ours.as_ref();
        let is_as_wanted = match policy {
            _ if is_listed => is_ours_here,
            ConflictPolicy::Both => false,
            ConflictPolicy::Ours => is_ours_here && there == ours.as_ref() && is_beside,
            ConflictPolicy::Theirs => here == Some(theirs) && there == Some(theirs),
        };
        // What was there already when he came, and was known to be, is no conflict.
        let is_none = *was_carried && (is_ours_here || here == Some(theirs)) && there == Some(theirs);
        if !is_as_wanted && !is_none {
            let words = |seen: Option<&Seen>| match seen {
                None => "nothing",
                seen if seen == ours.as_ref() => "ours",
                Some(seen) if seen == theirs => "theirs",
                Some(Seen::Unread) => "what can't be read",
                Some(_) => "something else",
            };
            problems.push(format!(
                "quarrel about {path} ({policy:?}): here is {}, there is {}, listed: {reason:?}, \
                 carried: {was_carried}",
                words(here),
                words(there)
            ));
        }
    }
    let is_own = |path: &str| {
        let is_quarrel = |quarrel: &Quarrel| path == quarrel.path;
        path.contains(BESIDE) || quarrels.iter().any(is_quarrel)
    };
    let paths: BTreeSet<&String> = view.keys().chain(site.keys()).collect();
    for path in paths.into_iter().filter(|path| !is_own(path) && !carried::is_excused(path, report)) {
        let (here, there) = (view.get(path), site.get(path));
        if here != there && !matches!((here, there), (Some(Seen::Unread), Some(Seen::File(_)))) {
            problems.push(format!("beside quarrels: {path} is not the same on both sides"));
        }
    }
    problems
}

/// Has both sides change names, and looks at what comes of it. `duration_max` is for one operation.
pub fn run(harness: &Harness, random: &mut Random, limit: Nanos, duration_max: Nanos) -> Result<Vec<String>, String> {
    let (world, profile) = (&harness.world, &harness.profile);
    harness.stop_evicting();
    let client = harness.add_client();
    let (before, view) = carried::flush_and_look(world, &client, limit)?;
    // All that is behind is here as well by now, if it ever can be.
    if !harness.is_roomy() {
        world.crash(client.node, CrashKind::Kill);
        return Ok(Vec::new());
    }
    let mut site = carried::site(world);
    // What somebody does to one of several names he does to all.
    for name in carried::names_at_site(world).into_values().filter(|names| names.len() > 1).flatten() {
        site.remove(&name);
    }
    let paths = change_here(harness, random, &client, (&before, &view, &site), limit)?;
    let view = carried::look(world, &client, limit)?;
    let looked_at = looked_at(world, &client, &view, limit)?;
    world.crash(client.node, CrashKind::Kill);
    harness.recorder.note("quarrels");
    harness.recorder.note_unrest(true);
    let updated = harness.updated_behind();
    harness.server_indexes().for_each(|server| harness.kill(server));
    let site = carried::site(world);
    let quarrels: Vec<Quarrel> = paths
        .into_iter()
        .enumerate()
        .filter(|(_, path)| view.get(path) != Some(&Seen::Unread))
        .map(|(number, path)| {
            let was_carried = view.get(&path) == site.get(&path);
            act(world, random, &path, number, &updated);
            let theirs = carried::site(world).remove(&path).unwrap_or(Seen::Other);
            Quarrel { ours: view.get(&path).cloned(), path, theirs, was_carried }
        })
        .collect();
    let is_fit = |path: &String| {
        looked_at.contains(path)
            && view.get(path) == site.get(path)
            && !carried::is_excused(path, &before)
            && !(site.contains_key(path) && updated.contains(&world.outsider().inode(path)))
    };
    let visited = match checks(profile) {
        true => visit(world, random, &view, &quarrels, &looked_at, &is_fit),
        false => Vec::new(),
    };
    harness.server_indexes().for_each(|server| harness.restart(server));
    harness.wait_for_servers(limit)?;
    let mut problems = settle_under_faults(harness, random, &quarrels, &visited, limit, duration_max)?;
    harness.recorder.note_unrest(false);
    wait_for_closes(harness, limit)?;
    if checks(profile) {
        // Until nobody has anything open any more, and all that is known is old.
        world.run_for(2 * profile.session_grace + 10 * SECOND + 3 * carried::flushing(profile).check);
    }
    let client = harness.add_client();
    // Whoever asks for a name before it is flushed may have it forgotten, if nothing of it was changed here.
    let files = client.client.file_system.clone();
    let asked: Vec<String> = quarrels.iter().map(|quarrel| quarrel.path.clone()).collect();
    let ask = async move {
        for path in asked {
            let _: client::Result<_> = files.stat(format!("/{path}").as_bytes()).await;
        }
    };
    world.run(client.node, ask, limit).ok_or("names are not told before they are flushed")?;
    for when in ["at last", "once more"] {
        // Ours is put beside theirs anew by each flush.
        let (count, pause) = if checks(profile) { (3, 2 * carried::flushing(profile).check) } else { (0, 0) };
        let (report, view) = carried::flush_and_look_again(world, &client, limit, count, pause)?;
        let policy = carried::flushing(profile).on_conflict;
        let found = self::problems(policy, &quarrels, &view, &carried::site(world), &report);
        problems.extend(found.into_iter().map(|words| format!("{words} ({when})")));
        if when != "at last" && report.settled > 0 {
            problems.push(format!("{when}: settled again: {:?}", report.settlements));
        }
    }
    world.crash(client.node, CrashKind::Kill);
    Ok(problems)
}

/// What somebody has open keeps its name behind if its bytes are there alone. Clients that were killed have files open
/// until their sessions are forgotten; names are at rest after that, for nobody who lives closes any.
fn wait_for_closes(harness: &Harness, limit: Nanos) -> Result<(), String> {
    let world = &harness.world;
    let client = harness.add_client();
    let end = world.now() + 2 * harness.profile.session_grace + 10 * SECOND;
    let is_waiting = |report: &FlushReport| report.failures.iter().any(|(_, why)| why.contains("is still open here"));
    loop {
        let files = client.client.file_system.clone();
        let report = world.run(client.node, async move { files.flush(&[], &|_| {}).await }, limit);
        let report = report.ok_or("a flush before quarrels are looked at does not end")?;
        let report = report.map_err(|error| format!("a flush before quarrels are looked at fails: {error}"))?;
        if !is_waiting(&report) || world.now() > end {
            world.crash(client.node, CrashKind::Kill);
            return Ok(());
        }
        world.run_for(SECOND);
    }
}

/// Changes names here, of files that are the same on both sides, and some new ones. Returns their paths.
fn change_here(
    harness: &Harness,
    random: &mut Random,
    client: &SimClient,
    (report, view, site): (&FlushReport, &View, &View),
    limit: Nanos,
) -> Result<Vec<String>, String> {
    let is_fit = |path: &&String| {
        matches!(view.get(*path), Some(Seen::File(_)))
            && view.get(*path) == site.get(*path)
            && !carried::is_excused(path, report)
    };
    let fit: Vec<&String> = view.keys().filter(is_fit).collect();
    // One that is listed is another one there: what is made in both is two names.
    let is_directory = |path: &&String| {
        view.get(*path) == Some(&Seen::Directory) && site.contains_key(*path) && !carried::is_excused(path, report)
    };
    let directories: Vec<&String> = view.keys().filter(is_directory).collect();
    let mut wanted: Vec<(String, Change)> = Vec::new();
    for number in 0..random.between(1, QUARRELS_MAX) {
        let change = *random.choose(&[Change::Write, Change::Write, Change::Cut, Change::Remove, Change::Make]);
        let path = match change {
            Change::Make => match directories.is_empty() || random.percent(30) {
                true => format!("quarrel{number}"),
                false => format!("{}/quarrel{number}", random.choose(&directories)),
            },
            _ if fit.is_empty() => continue,
            _ => (*random.choose(&fit)).clone(),
        };
        if wanted.iter().all(|(known, _)| *known != path) {
            wanted.push((path, change));
        }
    }
    let work = change_some(client.client.file_system.clone(), wanted, u64::from(harness.profile.chunk_sizes[0]));
    harness.world.run(client.node, work, limit).ok_or_else(|| "changes before quarrels do not end".to_owned())
}

/// Flushes while the site fails now and then, servers are killed, and somebody asks for the names.
fn settle_under_faults(
    harness: &Harness,
    random: &mut Random,
    quarrels: &[Quarrel],
    visited: &[String],
    limit: Nanos,
    duration_max: Nanos,
) -> Result<Vec<String>, String> {
    let (world, profile) = (&harness.world, &harness.profile);
    if !profile.faults.any() {
        return Ok(Vec::new());
    }
    world.set_backing_faults(behind::faults(profile));
    let (flushing, looking) = (harness.add_client(), harness.add_client());
    let pause = *random.choose(&[10, 50, 300]) * MILLISECOND;
    let files = flushing.client.file_system.clone();
    world.reactor(flushing.node).spawn(Class::Data, carried::flush_on(files, pause));
    let paths = quarrels.iter().map(|quarrel| quarrel.path.clone()).chain(visited.iter().cloned()).collect();
    let longest = Rc::default();
    let files = looking.client.file_system.clone();
    world.reactor(looking.node).spawn(Class::Data, look_on(files, paths, Rc::clone(&longest)));
    for _ in 0..random.below(KILLS_MAX + 1) {
        world.run_for(random.between(MILLISECOND, SECOND / 2));
        let server = random.below(u64::from(profile.servers)) as u32;
        harness.kill(server);
        world.run_for(random.between(MILLISECOND, SECOND / 2));
        harness.restart(server);
        harness.wait_for_servers(limit)?;
    }
    world.run_for(random.between(0, 5 * SECOND));
    world.set_backing_faults(behind::no_faults());
    world.run_for(2 * SECOND);
    [flushing, looking].iter().for_each(|client| world.crash(client.node, CrashKind::Kill));
    let longest = *longest.borrow();
    let is_late = longest > duration_max;
    let words = format!("quarrels: a name was not told within {:.1} s", longest as f64 / 1e9);
    Ok(is_late.then_some(words).into_iter().collect())
}
