//! `tabane stage`: files of a backing directory are fetched before anybody reads them.

use crate::arguments::Arguments;
use crate::copy::facts::{EntryKind, Facts};
use crate::copy::place::Side;
use crate::copy::progress::{Progress, add};
use crate::failure::{Failure, Outcome, show};
use crate::paths::{inside, join};
use crate::session::Session;
use crate::text::{duration_words, plural, size_words};
use crate::together::{Either, race};
use crate::work::{Work, run_all};
use client::{FileSystem, OpenHow};
use reactor::Reactor;
use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, Read};
use std::rc::Rc;

const FILES_MAX: usize = 1 << 20;
/// Failures that are listed.
const FAILURES_MAX: usize = 1000;
/// Exit status when some files could not be fetched.
const SOME_FAILED: u8 = 3;

struct StageItem {
    path: Vec<u8>,
    facts: Facts,
}

struct Staging {
    reactor: Reactor,
    files: FileSystem,
    place: Side,
    work: Rc<Work<StageItem>>,
    is_dry: bool,
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
            self.work.push(urgency, item);
        }
    }

    async fn handle(&self, item: StageItem) {
        let outcome = match item.facts.kind {
            EntryKind::Directory => {
                let outcome = self.list(&item).await;
                self.progress.directories_left.set(self.progress.directories_left.get() - 1);
                outcome
            }
            EntryKind::File if !self.is_dry => self.stage(&item).await,
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
                self.push(StageItem { path: join(&item.path, &name), facts });
            }
        }
        Ok(())
    }

    async fn stage(&self, item: &StageItem) -> Result<(), String> {
        let about = |error: client::Error| format!("{}: {error}", show(&item.path));
        let file = self.files.open(&item.path, &OpenHow::reading()).await.map_err(about)?;
        let staged = self.files.stage(&file).await.map_err(about);
        self.files.close_later(&file);
        staged?;
        add(&self.progress.files_done, 1);
        add(&self.progress.bytes_done, item.facts.size);
        Ok(())
    }

    async fn all(self: &Rc<Self>, paths: Vec<Vec<u8>>, jobs: usize) {
        for path in paths {
            match self.place.facts(&path, true).await {
                Err(reason) => self.note_failure(reason),
                Ok(facts) => self.push(StageItem { path, facts }),
            }
        }
        let handler = self.clone();
        run_all(&self.reactor, jobs, &self.work, async move |item| handler.handle(item).await).await;
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
        true => Err(Failure::usage("nothing is named that is to be fetched: a path, or --from-list FILE".to_owned())),
        false => Ok(paths),
    }
}

/// `tabane stage`.
pub fn run(arguments: &Arguments) -> Outcome {
    let paths = paths_wanted(arguments)?;
    let session = Session::open(arguments)?;
    let reactor = session.reactor.clone();
    let staging = Rc::new(Staging {
        reactor: reactor.clone(),
        files: session.files.clone(),
        place: Side::Cluster(session.files.clone()),
        work: Work::new(FILES_MAX),
        is_dry: arguments.flag("dry-run"),
        failures: RefCell::default(),
        failed_count: Cell::new(0),
        progress: Progress::default(),
    });
    let started = reactor.now();
    session.block_on(async {
        let staged = staging.all(paths, arguments.number("jobs") as usize);
        match arguments.flag("progress") || std::io::stderr().is_terminal() {
            true => {
                let _: Either<(), ()> = race(staged, staging.progress.show(&reactor)).await;
            }
            false => staged.await,
        }
    });
    let (progress, failed) = (&staging.progress, staging.failed_count.get());
    match staging.is_dry {
        true => println!(
            "{}, {} would be fetched, as far as they are not here",
            plural(progress.files_found.get(), "file"),
            size_words(progress.bytes_found.get())
        ),
        false => println!(
            "{}, {} are here, after {}",
            plural(progress.files_done.get(), "file"),
            size_words(progress.bytes_done.get()),
            duration_words(reactor.now() - started)
        ),
    }
    staging.failures.borrow().iter().for_each(|reason| eprintln!("tabane: stage: {reason}"));
    if failed == 0 {
        return Ok(());
    }
    eprintln!("tabane: stage: {} could not be fetched; the same command tries them again", plural(failed, "file"));
    Err(Failure::Said(SOME_FAILED))
}
