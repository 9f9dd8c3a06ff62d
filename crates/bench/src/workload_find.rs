//! `find`: searches what the create phases of mdtest made, for files whose name holds "01", of 3,901 bytes, newer than
//! a file.
//!
//! All processes walk the tree together, level by level: each searches its share of every directory (on Tabane the
//! parts of its servers, which do the searching) and tells the others which directories it met.

use crate::group::{Failure, Group, Pass, Stage};
use crate::meter::Meter;
use crate::options::Options;
use crate::target::{Counts, How, SearchPattern, Share, Target};
use crate::workload_mdtest::{HARD_FILE_SIZE, Tree};
use reactor::barrier::monotonic_now;

const FIND: usize = 0;
const NEEDLE: &str = "01";
/// Files older than the stamp, of each rank: the search must not find them. One in so many of the others.
const OLD_SHARE: u64 = 10;
/// A clock of the target that stands still for longer than this is not one.
const TICK_NS_MAX: u64 = 10_000_000_000;

/// Makes the tree, searches it, removes it. Making it warms the memory, so there is no other warming.
pub fn run<T: Target>(target: &T, group: &Group) -> Result<(), Failure> {
    if group.pass == Pass::Warm {
        return Ok(());
    }
    let root = format!("{}/find", group.directory);
    if group.rank == 0 {
        target.make_directory(&root)?;
    }
    group.barrier()?;
    let (easy, hard) = (Tree::new(&format!("{root}/easy"), false), Tree::new(&format!("{root}/hard"), true));
    let stamp_path = format!("{root}/stamp");
    prepare(target, group, &easy, &hard, &stamp_path)?;
    let stamp = target.stat(&stamp_path)?.ok_or_else(|| format!("{stamp_path}: is gone"))?;
    let wanted = SearchPattern { part: NEEDLE, size: HARD_FILE_SIZE as u64, newer_than: stamp.mtime };

    let mut counts = Counts::default();
    group.phase(FIND, 0, |meter| {
        counts = search(target, group, &root, &wanted, meter)?;
        Ok(if T::EXAMINES { counts.examined } else { searched_by(group) })
    })?;
    check_counts(group, counts, T::EXAMINES)?;

    group.untimed(Stage::Removal, 2 * group.options.files + old_count(group.options), |meter| {
        for tree in [&easy, &hard] {
            tree.remove(target, group, meter)?;
            group.barrier()?;
        }
        for index in 0..old_count(group.options) {
            target.unlink(&old_path(&hard, group.rank, index))?;
            meter.note_call();
        }
        Ok(())
    })?;
    for tree in [&easy, &hard] {
        tree.remove_directories(target, group)?;
    }
    if group.rank == 0 {
        target.unlink(&stamp_path)?;
        target.remove_directory(&root)?;
    }
    group.barrier()
}

/// Old files, then the stamp, then, in later ticks of the target's clock, the new files.
fn prepare<T: Target>(target: &T, group: &Group, easy: &Tree, hard: &Tree, stamp: &str) -> Result<(), Failure> {
    easy.make_directories(target, group)?;
    hard.make_directories(target, group)?;
    let contents = vec![1; HARD_FILE_SIZE];
    for index in 0..old_count(group.options) {
        write_file(target, &old_path(hard, group.rank, index), &contents)?;
    }
    group.barrier()?;
    if group.rank == 0 {
        write_file(target, stamp, b"")?;
        wait_for_tick(target, stamp)?;
    }
    group.barrier()?;
    group.untimed(Stage::Preparation, 2 * group.options.files, |meter| {
        for tree in [easy, hard] {
            tree.create(target, group, meter)?;
        }
        Ok(())
    })?;
    group.barrier()
}

/// Files of each rank that are older than the stamp.
pub fn old_count(options: &Options) -> u64 {
    (options.files / OLD_SHARE).max(1)
}

fn old_path(hard: &Tree, rank: u32, index: u64) -> String {
    format!("{}/old.01.{rank}.{index}", hard.directory(rank))
}

fn write_file<T: Target>(target: &T, path: &str, contents: &[u8]) -> Result<(), Failure> {
    let file = target.open(path, How::CreateNew)?;
    if !contents.is_empty() {
        target.write_at(&file, contents, 0)?;
    }
    Ok(target.close(file)?)
}

/// Makes and removes a probe until its time is later than the stamp's: times may advance in coarse ticks.
fn wait_for_tick<T: Target>(target: &T, stamp: &str) -> Result<(), Failure> {
    let probe = format!("{stamp}.probe");
    let gone = |path: &str| format!("{path}: is gone");
    let before = target.stat(stamp)?.ok_or_else(|| gone(stamp))?.mtime;
    let start = monotonic_now();
    loop {
        write_file(target, &probe, b"x")?;
        let now = target.stat(&probe)?.ok_or_else(|| gone(&probe))?.mtime;
        target.unlink(&probe)?;
        if now > before {
            return Ok(());
        }
        if monotonic_now() - start > TICK_NS_MAX {
            return Err("the target's modification times do not advance".to_string().into());
        }
    }
}

/// This rank's part of the walk below `root`. A call is the search of its share of one directory.
fn search<T: Target>(
    target: &T,
    group: &Group,
    root: &str,
    wanted: &SearchPattern,
    meter: &mut Meter,
) -> Result<Counts, Failure> {
    let share = Share { index: group.rank, count: group.procs };
    let mut counts = Counts::default();
    let mut level = vec![root.to_string()];
    while !level.is_empty() {
        let mut below = Vec::new();
        meter.begin_call();
        for directory in &level {
            let found = target.find(directory, share, wanted, &mut |name| {
                below.extend_from_slice(directory.as_bytes());
                below.push(b'/');
                below.extend_from_slice(name);
                below.push(0);
            })?;
            counts.examined += found.examined;
            counts.found += found.found;
            meter.note_call();
        }
        level = exchange(group, &below)?;
    }
    Ok(counts)
}

/// The union of the paths (each ended by NUL) that all ranks have.
fn exchange(group: &Group, mine: &[u8]) -> Result<Vec<String>, Failure> {
    group.publish(mine)?;
    group.barrier()?;
    let mut all = Vec::new();
    for rank in 0..group.procs {
        let paths = group.published(rank);
        all.extend(paths.split(|byte| *byte == 0).filter(|path| !path.is_empty()).map(|path| {
            // Only names that this program made are below the root.
            String::from_utf8_lossy(path).into_owned()
        }));
    }
    // Nobody may publish anew before all have read.
    group.barrier()?;
    Ok(all)
}

/// What counts as this rank's part where the target looks at the entries: the tree in equal parts.
fn searched_by(group: &Group) -> u64 {
    let (all, procs) = (entry_count(group), u64::from(group.procs));
    all / procs + u64::from(u64::from(group.rank) < all % procs)
}

/// All ranks together must have found exactly the files that fit, and met every entry once, if they count them.
fn check_counts(group: &Group, counts: Counts, examines: bool) -> Result<(), Failure> {
    let mut message = counts.examined.to_ne_bytes().to_vec();
    message.extend(counts.found.to_ne_bytes());
    message.extend(fit_count(group).to_ne_bytes());
    group.publish(&message)?;
    group.barrier()?;
    let mut sum = Counts::default();
    let mut wanted = Counts { examined: if examines { entry_count(group) } else { 0 }, found: 0 };
    for rank in 0..group.procs {
        let words: Vec<u64> = group
            .published(rank)
            .chunks_exact(8)
            .map(|c| u64::from_ne_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]))
            .collect();
        sum.examined += words[0];
        sum.found += words[1];
        wanted.found += words[2];
    }
    group.barrier()?;
    if sum != wanted {
        let (met, all) = (sum.examined, wanted.examined);
        let (found, fit) = (sum.found, wanted.found);
        return Err(format!("find met {met} of {all} entries and found {found} of {fit} files").into());
    }
    Ok(())
}

/// Entries of the tree: two trees, the stamp, a directory for each rank, and the two directories of the trees.
fn entry_count(group: &Group) -> u64 {
    u64::from(group.procs) * (2 * group.options.files + old_count(group.options) + 1) + 3
}

/// Files of this rank that a search has to find.
fn fit_count(group: &Group) -> u64 {
    (0..group.options.files).filter(|index| Tree::name(group.rank, *index).contains(NEEDLE)).count() as u64
}
