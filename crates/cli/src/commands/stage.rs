//! `tabane stage`: files of a backing directory are fetched before anybody reads them. `tabane evict`: what is here of
//! them and clean is given up. `tabane status PATH`: what of them is here, and what behind.

use crate::arguments::Arguments;
use crate::copy::facts::{EntryKind, Facts};
use crate::copy::place::Side;
use crate::copy::progress::{Progress, add};
use crate::failure::{Failure, Outcome, show};
use crate::paths::{inside, join};
use crate::session::Session;
use crate::text::{duration_words, plural, size_words};
use crate::together::{Either, race};
use crate::work::{Grouping, Urgency, Work, run_groups};
use client::{CacheState, FileId, FileSystem, ListedFile, OpenHow, STAGE_FILES_MAX, Status};
use reactor::{Nanos, Reactor};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, Read};
use std::rc::Rc;

const FILES_MAX: usize = 1 << 20;
/// Failures that are listed.
const FAILURES_MAX: usize = 1000;
/// Exit status when some files could not be fetched.
const SOME_FAILED: u8 = 3;

/// Files that `tabane status` asks about at a time.
const STATUS_JOBS: usize = 64;

struct StageItem {
    path: Vec<u8>,
    facts: Facts,
    /// Which of the paths of the command line it is below.
    root: usize,
    /// It has failed among others, and is tried once more by itself.
    is_alone: bool,
}

impl StageItem {
    fn listed(&self) -> Option<ListedFile> {
        let (_, _, id) = self.facts.inode;
        let layout = self.facts.layout.filter(|_| self.facts.kind == EntryKind::File)?;
        Some(ListedFile { id: FileId(id), layout, size: self.facts.size })
    }

    /// Whether many like it are fetched by one request: all of it is on one server.
    fn goes_with_others(&self) -> bool {
        !self.is_alone && self.listed().is_some_and(|file| file.size <= u64::from(file.layout.chunk_size))
    }
}

/// What is done with each file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    /// It is only counted.
    Count,
    Fetch,
    Evict,
    Look,
}

/// What was found below one path of the command line.
#[derive(Default)]
struct Found {
    files: u64,
    state: CacheState,
}

struct Staging {
    reactor: Reactor,
    files: FileSystem,
    place: Side,
    work: Rc<Work<StageItem>>,
    deed: Deed,
    found: RefCell<Vec<Found>>,
    failures: RefCell<Vec<String>>,
    failed_count: Cell<u64>,
    progress: Progress,
}

impl Staging {
    fn note_failure(&self, reason: String) {
        self.failed_count.set(self.failed_count.get() + 1);
        let mut failures = self.failures.borrow_mut();
        if failures.len() < FAILURES_MAX {
            failures.push(reason);
        }
    }

    fn push(&self, item: StageItem) {
        if let Some(urgency) = self.progress.note_found(&item.facts) {
            self.work.push_for(self.place.home_of(&item.facts), urgency, item);
        }
    }

    async fn handle_all(&self, items: Vec<StageItem>) {
        if items.len() > 1 {
            return self.stage_together(items).await;
        }
        for item in items {
            self.handle(item).await;
        }
    }

    async fn handle(&self, item: StageItem) {
        let outcome = match item.facts.kind {
            EntryKind::Directory => {
                let outcome = self.list(&item).await;
                self.progress.directories_left.set(self.progress.directories_left.get() - 1);
                outcome
            }
            EntryKind::File if self.deed != Deed::Count => self.stage(&item).await,
            _ => Ok(()),
        };
        if let Err(reason) = outcome {
            self.note_failure(reason);
        }
    }

    async fn list(&self, item: &StageItem) -> Result<(), String> {
        let mut listing = self.place.list(&item.path).await?;
        while let Some(page) = listing.next().await? {
            page.failures.into_iter().for_each(|reason| self.note_failure(reason));
            for (name, facts) in page.entries {
                self.push(StageItem { path: join(&item.path, &name), facts, root: item.root, is_alone: false });
            }
        }
        Ok(())
    }

    /// Small files of one server, by one request. What fails is tried alone, when its turn comes.
    async fn stage_together(&self, items: Vec<StageItem>) {
        let listed: Vec<ListedFile> = items.iter().filter_map(StageItem::listed).collect();
        let staged = self.files.stage_listed(&listed).await;
        for (item, staged) in items.into_iter().zip(staged) {
            match staged {
                Ok(()) => self.note_done(&item, CacheState::default()),
                Err(_) => {
                    let home = self.place.home_of(&item.facts);
                    self.work.push_for(home, Urgency::Later, StageItem { is_alone: true, ..item });
                }
            }
        }
    }

    async fn stage(&self, item: &StageItem) -> Result<(), String> {
        let state = self.do_deed(item).await.map_err(|error| format!("{}: {error}", show(&item.path)))?;
        self.note_done(item, state);
        Ok(())
    }

    fn note_done(&self, item: &StageItem, state: CacheState) {
        if let Some(found) = self.found.borrow_mut().get_mut(item.root) {
            found.files += 1;
            found.state.dirty += state.dirty;
            found.state.clean += state.clean;
            found.state.absent += state.absent;
            found.state.evicted += state.evicted;
        }
        add(&self.progress.files_done, 1);
        add(&self.progress.bytes_done, item.facts.size);
    }

    async fn do_deed(&self, item: &StageItem) -> client::Result<CacheState> {
        if let (Deed::Fetch, Some(listed)) = (self.deed, item.listed()) {
            match self.files.stage_listed(&[listed]).await.remove(0) {
                // Another one has its name by now, perhaps.
                Err(error) if error.status == Status::StaleFile => {}
                staged => return staged.map(|()| CacheState::default()),
            }
        }
        let file = self.files.open(&item.path, &OpenHow::reading()).await?;
        let done = match self.deed {
            Deed::Fetch => self.files.stage(&file).await.map(|()| CacheState::default()),
            deed => self.files.cache_state(&file, deed == Deed::Evict).await,
        };
        self.files.close_later(&file);
        done
    }

    async fn all(self: &Rc<Self>, paths: Vec<Vec<u8>>, jobs: usize) {
        self.found.borrow_mut().resize_with(paths.len(), Found::default);
        for (root, path) in paths.into_iter().enumerate() {
            match self.place.facts(&path, true).await {
                Err(reason) => self.note_failure(reason),
                Ok(facts) => self.push(StageItem { path, facts, root, is_alone: false }),
            }
        }
        let handler = self.clone();
        let most = if self.deed == Deed::Fetch { STAGE_FILES_MAX } else { 1 };
        let grouping = Grouping { most, goes_along: StageItem::goes_with_others };
        run_groups(&self.reactor, jobs, &self.work, grouping, async move |items| handler.handle_all(items).await).await;
    }
}

/// The paths of the command line, and those of a list, one a line.
fn paths_wanted(arguments: &Arguments) -> Outcome<Vec<Vec<u8>>> {
    let mut paths: Vec<Vec<u8>> = arguments.operand_bytes().iter().map(|path| inside(path)).collect();
    if let Some(list) = arguments.path("from-list") {
        let failed = |error: std::io::Error| Failure::failed(format!("--from-list {}: {error}", list.display()));
        let mut bytes = Vec::new();
        match list.as_os_str() == "-" {
            true => std::io::stdin().read_to_end(&mut bytes).map_err(failed)?,
            false => std::fs::File::open(&list).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(failed)?,
        };
        paths.extend(bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(inside));
    }
    match paths.is_empty() {
        true => Err(Failure::usage("no file is named: a path, or --from-list FILE".to_owned())),
        false => Ok(paths),
    }
}

/// Does something with all files below some paths, and shows how far that has come where somebody looks, or wants it.
fn walk(
    arguments: &Arguments,
    deed: Deed,
    paths: Vec<Vec<u8>>,
    jobs: usize,
    shows: bool,
) -> Outcome<(Rc<Staging>, Nanos)> {
    let session = Session::open(arguments)?;
    let reactor = session.reactor.clone();
    let staging = Rc::new(Staging {
        reactor: reactor.clone(),
        files: session.files.clone(),
        place: Side::Cluster(session.files.clone()),
        work: Work::new(FILES_MAX),
        deed,
        found: RefCell::default(),
        failures: RefCell::default(),
        failed_count: Cell::new(0),
        progress: Progress::default(),
    });
    let started = reactor.now();
    session.block_on(async {
        let staged = staging.all(paths, jobs);
        match shows || std::io::stderr().is_terminal() {
            true => {
                let _: Either<(), ()> = race(staged, staging.progress.show(&reactor)).await;
            }
            false => staged.await,
        }
    });
    Ok((staging, reactor.now() - started))
}

/// Lists what went wrong. Errors: something did.
fn conclude(staging: &Staging, command: &str, what: &str) -> Outcome {
    staging.failures.borrow().iter().for_each(|reason| eprintln!("tabane: {command}: {reason}"));
    match staging.failed_count.get() {
        0 => Ok(()),
        failed => {
            eprintln!("tabane: {command}: {} {what}", plural(failed, "file"));
            Err(Failure::Said(SOME_FAILED))
        }
    }
}

/// `tabane stage`.
pub fn run(arguments: &Arguments) -> Outcome {
    let paths = paths_wanted(arguments)?;
    let deed = if arguments.flag("dry-run") { Deed::Count } else { Deed::Fetch };
    let (staging, time) = walk(arguments, deed, paths, arguments.number("jobs") as usize, arguments.flag("progress"))?;
    let progress = &staging.progress;
    match deed {
        Deed::Count => println!(
            "{}, {} would be fetched, as far as they are not here",
            plural(progress.files_found.get(), "file"),
            size_words(progress.bytes_found.get())
        ),
        _ => println!(
            "{}, {} are here, after {}",
            plural(progress.files_done.get(), "file"),
            size_words(progress.bytes_done.get()),
            duration_words(time)
        ),
    }
    conclude(&staging, "stage", "could not be fetched; the same command tries them again")
}

/// `tabane evict`.
pub fn evict(arguments: &Arguments) -> Outcome {
    let paths = paths_wanted(arguments)?;
    let deed = if arguments.flag("dry-run") { Deed::Look } else { Deed::Evict };
    let (staging, time) = walk(arguments, deed, paths, arguments.number("jobs") as usize, arguments.flag("progress"))?;
    let sum = |of: fn(&CacheState) -> u64| staging.found.borrow().iter().map(|found| of(&found.state)).sum::<u64>();
    let files = plural(staging.progress.files_done.get(), "file");
    let stays = match sum(|state| state.dirty) {
        0 => String::new(),
        dirty => format!("; {} stay, changed and not in the backing directory yet", size_words(dirty)),
    };
    match deed {
        Deed::Look => println!("{files}, {} would be given up{stays}", size_words(sum(|state| state.clean))),
        _ => println!(
            "{files}, {} were given up after {}{stays}",
            size_words(sum(|state| state.evicted)),
            duration_words(time)
        ),
    }
    conclude(&staging, "evict", "could not be given up")
}

/// `tabane status PATH...`.
pub fn status(arguments: &Arguments) -> Outcome {
    let paths: Vec<Vec<u8>> = arguments.operand_bytes().iter().map(|path| inside(path)).collect();
    let shown: Vec<String> = paths.iter().map(|path| show(path).to_string()).collect();
    let (staging, _) = walk(arguments, Deed::Look, paths, STATUS_JOBS, false)?;
    let found = staging.found.borrow();
    let rows = shown.iter().zip(found.iter());
    match arguments.flag("json") {
        true => {
            let row = |(path, Found { files, state }): (&String, &Found)| {
                json!({
                    "path": path,
                    "files": files,
                    "dirty_bytes": state.dirty,
                    "clean_bytes": state.clean,
                    "absent_bytes": state.absent,
                })
            };
            println!("{:#}", json!({ "paths": rows.map(row).collect::<Vec<_>>() }));
        }
        false => {
            println!("{:>12} {:>12} {:>12} {:>9}  path", "dirty", "clean", "absent", "files");
            for (path, Found { files, state }) in rows {
                let [dirty, clean, absent] = [state.dirty, state.clean, state.absent].map(size_words);
                println!("{dirty:>12} {clean:>12} {absent:>12} {files:>9}  {path}");
            }
        }
    }
    conclude(&staging, "status", "could not be asked about")
}
