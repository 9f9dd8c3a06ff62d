//! `tabane rm`.

use crate::activity::{Activity, Prints};
use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path, show};
use crate::json;
use crate::paths::{base_name, inside, join};
use crate::session::Session;
use crate::text::count_words;
use crate::together::join_all;
use crate::up::catch_signals;
use crate::work::{Urgency, Work, run_all, run_until_asked};
use client::{FileSystem, Kind, Status};
use reactor::{Nanos, Reactor};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const ENTRIES_MAX: usize = 1 << 18;
/// Directories that are listed or removed at once. Each concerns all servers, and the operations of others are not to
/// queue behind them.
const DIRECTORIES_AT_ONCE_MAX: usize = 4;

/// A directory that is to go once everything below it has.
struct DirectoryRemoval {
    path: Vec<u8>,
    parent: Option<Rc<DirectoryRemoval>>,
    /// Entries that are not gone yet, and one more while it is still being listed.
    left: Cell<usize>,
}

enum RemovalStep {
    /// To be listed.
    Directory(Rc<DirectoryRemoval>),
    /// A file or symbolic link.
    Entry(Vec<u8>, Option<Rc<DirectoryRemoval>>),
    /// Empty by now.
    Empty(Rc<DirectoryRemoval>),
}

struct Removal {
    files: FileSystem,
    work: Rc<Work<RemovalStep>>,
    /// Directories that wait for one of those under way to be done with, and the number of these.
    waiting: RefCell<Vec<RemovalStep>>,
    under_way: Cell<usize>,
    force: bool,
    failures: Cell<u64>,
    activity: Activity,
}

impl Removal {
    fn say_failed(&self, path: &[u8], error: &client::Error) {
        if self.force && error.status == Status::NotFound {
            return;
        }
        self.add_failure();
        eprintln!("tabane: rm: {}", about_path(path, error));
    }

    fn add_failure(&self) {
        self.failures.set(self.failures.get() + 1);
        self.activity.clear();
    }

    /// What became of it, for programs.
    fn print_summary(&self, elapsed: Nanos, interrupted: bool) -> Outcome {
        json::print(&json!({
            "removed": self.activity.done.get(),
            "failures": self.failures.get(),
            "seconds": json::seconds(elapsed),
            "interrupted": interrupted,
        }))
    }

    async fn handle(&self, item: RemovalStep) {
        if let RemovalStep::Entry(..) = item {
            return self.handle_one(item).await;
        }
        self.waiting.borrow_mut().push(item);
        if self.under_way.get() == DIRECTORIES_AT_ONCE_MAX {
            return;
        }
        self.under_way.set(self.under_way.get() + 1);
        while !self.work.is_stopped()
            && let Some(item) = self.next_waiting()
        {
            self.handle_one(item).await;
        }
        self.under_way.set(self.under_way.get() - 1);
    }

    fn next_waiting(&self) -> Option<RemovalStep> {
        self.waiting.borrow_mut().pop()
    }

    async fn handle_one(&self, item: RemovalStep) {
        match item {
            RemovalStep::Directory(folder) => {
                if let Err(error) = self.list(&folder).await {
                    self.say_failed(&folder.path, &error);
                }
                self.one_less(Some(folder));
            }
            RemovalStep::Entry(path, folder) => {
                match self.files.unlink(&path).await {
                    Ok(_) => self.activity.add_done(),
                    Err(error) => self.say_failed(&path, &error),
                }
                self.one_less(folder);
            }
            RemovalStep::Empty(folder) => {
                match self.files.rmdir(&folder.path).await {
                    Ok(_) => self.activity.add_done(),
                    Err(error) => self.say_failed(&folder.path, &error),
                }
                self.one_less(folder.parent.clone());
            }
        }
    }

    fn one_less(&self, folder: Option<Rc<DirectoryRemoval>>) {
        let Some(folder) = folder else { return };
        folder.left.set(folder.left.get() - 1);
        if folder.left.get() == 0 {
            self.work.push(Urgency::First, RemovalStep::Empty(folder));
        }
    }

    async fn list(&self, folder: &Rc<DirectoryRemoval>) -> client::Result<()> {
        let mut stream = self.files.open_directory(&folder.path, false).await?;
        while !stream.is_at_end() && !self.work.is_stopped() {
            for entry in self.files.next_page(&mut stream).await? {
                let path = join(&folder.path, &entry.name);
                folder.left.set(folder.left.get() + 1);
                self.begin(path, entry.kind, Some(folder.clone()), entry.server);
            }
        }
        Ok(())
    }

    /// `server`: the one that has the name.
    fn begin(&self, path: Vec<u8>, kind: Kind, parent: Option<Rc<DirectoryRemoval>>, server: u32) {
        self.activity.add_found();
        if kind == Kind::Directory {
            self.work.push(
                Urgency::First,
                RemovalStep::Directory(Rc::new(DirectoryRemoval { path, parent, left: Cell::new(1) })),
            );
        } else {
            self.work.push_for(server as usize, Urgency::Later, RemovalStep::Entry(path, parent));
        }
    }
}

fn plural_entries(count: u64) -> String {
    if count == 1 { "1 entry is".to_owned() } else { format!("{} entries are", count_words(count)) }
}

/// Removes what the command line names.
async fn remove_all(reactor: &Reactor, removal: &Rc<Removal>, paths: Vec<Vec<u8>>, recursive: bool, jobs: usize) {
    for paths in paths.chunks(jobs) {
        let looks = join_all(paths.iter().map(|path| removal.files.lstat(path))).await;
        for (path, found) in paths.iter().zip(looks) {
            match found {
                Ok(attributes) if attributes.kind == Kind::Directory && !recursive => {
                    removal.add_failure();
                    eprintln!("tabane: rm: {}: is a directory; -r removes it with all that is in it", show(path));
                }
                Ok(attributes) => removal.begin(path.clone(), attributes.kind, None, 0),
                Err(error) => removal.say_failed(path, &error),
            }
        }
    }
    let removing = removal.clone();
    run_all(reactor, jobs, &removal.work, async move |item| removing.handle(item).await).await;
}

/// `tabane rm`.
pub fn run(arguments: &Arguments) -> Outcome {
    let recursive = arguments.flag("recursive");
    let session = Session::open_as(arguments, recursive)?;
    let removal = Rc::new(Removal {
        files: session.files.clone(),
        work: Work::in_batches(ENTRIES_MAX, arguments.number("jobs") as usize),
        waiting: RefCell::default(),
        under_way: Cell::new(0),
        force: arguments.flag("force"),
        failures: Cell::new(0),
        activity: Activity::new("removed"),
    });
    let signals = catch_signals(&session.reactor)?;
    let paths: Vec<Vec<u8>> = arguments.operand_bytes().iter().map(|path| inside(path)).collect();
    if let Some(path) = paths.iter().find(|path| base_name(path).is_none()) {
        return Err(Failure::usage(format!(
            "{} can't be removed: name what is in it, or take the cluster down with 'tabane down'",
            show(path)
        )));
    }
    let started = session.reactor.now();
    let interrupted = session.block_on(async {
        let jobs = arguments.number("jobs") as usize;
        let removed = remove_all(&session.reactor, &removal, paths, recursive, jobs);
        let shown = removal.activity.show(&session.reactor, arguments, Prints::AtTheEnd);
        run_until_asked(&session.reactor, &signals, &removal.work, removed, shown).await
    });
    if interrupted.is_some() {
        let count = removal.activity.done.get();
        eprintln!("tabane: rm: interrupted: {} removed, all else is as it was", plural_entries(count));
    }
    if arguments.flag("json") {
        removal.print_summary(session.reactor.now() - started, interrupted.is_some())?;
    }
    match interrupted {
        Some(signal) => Err(Failure::Said(signal.exit_code())),
        None if removal.failures.get() > 0 => Err(Failure::Said(1)),
        None => Ok(()),
    }
}
