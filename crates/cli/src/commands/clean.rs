//! `tabane clean`: hidden files of dead clusters are removed from a directory of the site's file system.
//!
//! Nothing is lost where one was alive after all: what is under a hidden name is in its stores too, and its flush fails
//! for that file and is tried again. Only a parked file may be the one copy of something, so it stays in any case.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, io_words, show};
use crate::paths::join;
use crate::session::{cluster_path, open_reactor};
use crate::text::{plural, size_words};
use crate::work::{Urgency, Work, run_all};
use client::{CLUSTER_FILE_NAME, default_run_directory, load_cluster};
use reactor::backing::{BackingDirectory, BackingError, BackingTree, FileKind, Identity, ListEntry, ListPosition};
use server::HiddenName;
use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Exit status when something could not be looked at or removed.
const SOME_FAILED: u8 = 3;
/// How long nothing must have happened to a file of a cluster that nobody knows.
const AGE_NS: i64 = 24 * 3600 * 1_000_000_000;
/// Failures that are listed.
const FAILURES_MAX: usize = 1000;
const DIRECTORIES_MAX: usize = 1 << 20;

/// Why a hidden file stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeepReason {
    Alive,
    Parked,
    Young,
    Directory,
}

impl KeepReason {
    fn words(self) -> &'static str {
        match self {
            KeepReason::Alive => "its cluster is here",
            KeepReason::Parked => {
                "it was about to be renamed, and there may be no other copy; look at it, then rename or remove it"
            }
            KeepReason::Young => {
                "its cluster may be alive: it is less than a day old; --force removes it if you know better"
            }
            KeepReason::Directory => "it is a directory, which no flush leaves",
        }
    }
}

/// What is known of clusters, and of the time.
struct Judge {
    alive: Vec<u64>,
    is_forced: bool,
    now: i64,
}

impl Judge {
    /// Why something of a hidden name stays; nothing if it goes.
    fn keeps(&self, name: HiddenName, kind: FileKind, identity: &Identity) -> Option<KeepReason> {
        // The time of the last change is the file's own once it is written.
        let last = identity.mtime.max(identity.ctime);
        if self.alive.contains(&name.cluster) {
            Some(KeepReason::Alive)
        } else if name.is_parked {
            Some(KeepReason::Parked)
        } else if kind == FileKind::Directory {
            Some(KeepReason::Directory)
        } else if !self.is_forced && last > self.now - AGE_NS {
            Some(KeepReason::Young)
        } else {
            None
        }
    }
}

struct Clean {
    root: PathBuf,
    tree: BackingTree,
    /// The file system in which all of it stays.
    device: u64,
    judge: Judge,
    is_dry: bool,
    work: Rc<Work<Vec<u8>>>,
    removed: Cell<u64>,
    removed_bytes: Cell<u64>,
    kept: Cell<u64>,
    failures: RefCell<Vec<String>>,
    failed: Cell<u64>,
}

impl Clean {
    fn note_failure(&self, path: &[u8], error: &BackingError) {
        self.failed.set(self.failed.get() + 1);
        let mut failures = self.failures.borrow_mut();
        if failures.len() < FAILURES_MAX {
            failures.push(format!("{}: {}", self.shown(path), error_words(error)));
        }
    }

    /// A path below the directory, for people.
    fn shown(&self, path: &[u8]) -> String {
        let root = self.root.as_os_str().as_encoded_bytes();
        show(&if path.is_empty() { root.to_vec() } else { join(root, path) })
    }

    async fn handle(&self, path: Vec<u8>) {
        if let Err(error) = self.directory(&path).await {
            // One that is gone by now holds nothing.
            if !error.is_gone() {
                self.note_failure(&path, &error);
            }
        }
    }

    async fn directory(&self, path: &[u8]) -> Result<(), BackingError> {
        let root = self.tree.root().await?;
        let directory = if path.is_empty() { root } else { root.open_directory(path).await? };
        if directory.look_open().await?.identity.device != self.device {
            return Ok(());
        }
        let listing = directory.open_listing().await?;
        let mut from = Some(ListPosition::default());
        while let Some(position) = from {
            let piece = listing.list(position).await?;
            from = piece.next;
            for entry in piece.entries {
                if let Err(error) = self.entry(path, &directory, &entry).await
                    && !error.is_gone()
                {
                    self.note_failure(&join(path, &entry.name), &error);
                }
            }
        }
        Ok(())
    }

    async fn entry(&self, path: &[u8], directory: &BackingDirectory, entry: &ListEntry) -> Result<(), BackingError> {
        let own = join(path, &entry.name);
        let hidden = HiddenName::of(&entry.name);
        let found = match (hidden, entry.kind) {
            (None, Some(kind)) => {
                if kind == FileKind::Directory {
                    self.work.push(Urgency::First, own);
                }
                return Ok(());
            }
            _ => directory.look(&entry.name).await?,
        };
        if found.kind == FileKind::Directory {
            self.work.push(Urgency::First, own.clone());
        }
        let Some(hidden) = hidden else { return Ok(()) };
        if let Some(reason) = self.judge.keeps(hidden, found.kind, &found.identity) {
            self.kept.set(self.kept.get() + 1);
            println!("kept {}: {}", self.shown(&own), reason.words());
            return Ok(());
        }
        if !self.is_dry {
            directory.remove(&entry.name).await?;
        }
        self.removed.set(self.removed.get() + 1);
        self.removed_bytes.set(self.removed_bytes.get() + found.space);
        println!("{} {}", if self.is_dry { "would remove" } else { "removed" }, self.shown(&own));
        Ok(())
    }
}

fn error_words(error: &BackingError) -> String {
    io_words(&std::io::Error::from_raw_os_error(error.errno()))
}

/// The clusters whose run directories are known here. Errors: one that was named can't be read, so that nobody could
/// tell what belongs to it.
fn clusters_here(arguments: &Arguments) -> Outcome<Vec<u64>> {
    let is_named = arguments.is_on_command_line("run-directory") || arguments.is_on_command_line("cluster");
    let named = cluster_path(arguments);
    let mut alive = Vec::new();
    for path in [named.clone(), default_run_directory(), crate::hosts::default_run_directory()] {
        let file = if path.is_dir() { path.join(CLUSTER_FILE_NAME) } else { path.clone() };
        match load_cluster(&path) {
            Ok(cluster) => alive.push(cluster.id as u64),
            Err(_) if matches!(file.try_exists(), Ok(false)) && !(is_named && path == named) => {}
            Err(error) => {
                return Err(Failure::failed(format!(
                    "{}; nothing was removed, for what belongs to that cluster would not be known",
                    error.message
                )));
            }
        }
    }
    Ok(alive)
}

/// `tabane clean`.
pub fn run(arguments: &Arguments) -> Outcome {
    let operands = arguments.operand_bytes();
    let named = Path::new(OsStr::from_bytes(&operands[0]));
    let refused = |why: &str| {
        Failure::failed(format!("{}: {why}; name a directory of the site's file system", show(&operands[0])))
    };
    let root = named.canonicalize().map_err(|error| refused(&io_words(&error)))?;
    if !root.is_dir() {
        return Err(refused("it is no directory"));
    }
    let alive = clusters_here(arguments)?;
    let reactor = open_reactor()?;
    let tree = reactor.backing_tree(&root).map_err(|error| refused(&io_words(&error)))?;
    let looked = reactor.block_on(async { tree.root().await?.look_open().await });
    let device = looked.map_err(|error| refused(&error_words(&error)))?.identity.device;
    let clean = Rc::new(Clean {
        root,
        tree,
        device,
        judge: Judge { alive, is_forced: arguments.flag("clean-force"), now: reactor.wall_clock() },
        is_dry: arguments.flag("dry-run"),
        work: Work::new(DIRECTORIES_MAX),
        removed: Cell::new(0),
        removed_bytes: Cell::new(0),
        kept: Cell::new(0),
        failures: RefCell::default(),
        failed: Cell::new(0),
    });
    clean.work.push(Urgency::First, Vec::new());
    let handler = clean.clone();
    let jobs = arguments.number("jobs") as usize;
    reactor.block_on(run_all(&reactor, jobs, &clean.work, async move |path| handler.handle(path).await));
    let kept = match clean.kept.get() {
        0 => String::new(),
        count => format!("; {count} kept"),
    };
    println!(
        "{} of dead clusters {}, {}{kept}",
        plural(clean.removed.get(), "hidden file"),
        if clean.is_dry { "would be removed" } else { "removed" },
        size_words(clean.removed_bytes.get())
    );
    let failed = clean.failed.get();
    if failed == 0 {
        return Ok(());
    }
    clean.failures.borrow().iter().for_each(|reason| eprintln!("tabane: clean: {reason}"));
    eprintln!("tabane: clean: {failed} could not be looked at or removed; what is in there may be left");
    Err(Failure::Said(SOME_FAILED))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what may be somebody's stays: of clusters that are here always, what may be the only copy always, of
    /// others as long as it is young by either of its times.
    #[test]
    fn what_may_be_somebodys_stays() {
        let (now, old) = (1_000_000 * 1_000_000_000, 1_000_000 * 1_000_000_000 - AGE_NS);
        let identity = |mtime, ctime| Identity { device: 1, inode: 2, size: 3, mtime, ctime };
        let judge = |is_forced| Judge { alive: vec![7, 8], is_forced, now };
        let dead = HiddenName { cluster: 9, is_parked: false };
        let file = FileKind::File;
        assert_eq!(judge(false).keeps(dead, file, &identity(old, old)), None);
        assert_eq!(judge(false).keeps(dead, FileKind::Symlink, &identity(old, old)), None);
        for young in [identity(old + 1, old), identity(old, old + 1), identity(now + AGE_NS, old)] {
            assert_eq!(judge(false).keeps(dead, file, &young), Some(KeepReason::Young));
            assert_eq!(judge(true).keeps(dead, file, &young), None);
        }
        for is_forced in [false, true] {
            let keeps = |name, kind| judge(is_forced).keeps(name, kind, &identity(old, old));
            assert_eq!(keeps(HiddenName { cluster: 8, ..dead }, file), Some(KeepReason::Alive));
            assert_eq!(keeps(HiddenName { is_parked: true, ..dead }, file), Some(KeepReason::Parked));
            assert_eq!(keeps(dead, FileKind::Directory), Some(KeepReason::Directory));
        }
    }
}
