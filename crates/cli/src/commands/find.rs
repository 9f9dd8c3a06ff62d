//! `tabane find`: the paths of a tree that match, found on all servers at once. The servers look at the entries they
//! hold and send what matches; this side walks the tree.

use super::conditions::Conditions;
use crate::activity::{Activity, Prints};
use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path};
use crate::json::{kind_word, write_path_line};
use crate::paths::{base_name, inside, join, shown, visible};
use crate::session::Session;
use crate::together::{Either, race};
use crate::work::{Urgency, Work, run_all};
use client::tests::{Test, Tests, Verdict};
use client::{FileSystem, Kind, Search, Status};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::io::{BufWriter, IsTerminal, Stdout, Write};
use std::rc::Rc;

const DIRECTORIES_MAX: usize = 1 << 20;

/// How what is found is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Lines { for_people: bool },
    Nul,
    Json,
    Count,
}

/// A directory that is to be searched, and how far it lies below its starting point.
struct SearchDirectory {
    path: Vec<u8>,
    depth: u64,
}

struct Walk {
    files: FileSystem,
    conditions: Conditions,
    depth_min: u64,
    depth_max: u64,
    /// Only names of this server are told.
    server: Option<u32>,
    work: Rc<Work<SearchDirectory>>,
    output: RefCell<BufWriter<Stdout>>,
    form: Form,
    found: Cell<u64>,
    activity: Activity,
    failed: Cell<bool>,
    broken: RefCell<Option<Failure>>,
}

impl Walk {
    fn say_failed(&self, path: &[u8], error: &client::Error) {
        self.failed.set(true);
        self.activity.clear();
        eprintln!("tabane: find: {}", about_path(path, error));
    }

    fn report(&self, path: &[u8], kind: Kind) {
        self.found.set(self.found.get() + 1);
        let mut output = self.output.borrow_mut();
        let written = match self.form {
            Form::Count => Ok(()),
            Form::Nul => output.write_all(path).and_then(|()| output.write_all(&[0])),
            Form::Lines { for_people } => {
                let path = if for_people { visible(path) } else { path.into() };
                output.write_all(&path).and_then(|()| output.write_all(b"\n"))
            }
            Form::Json => write_path_line(&mut *output, path, json!({ "type": kind_word(kind) })),
        };
        if let Err(error) = written {
            self.broken.replace(Some(Failure::of_output(error)));
            self.work.stop();
        }
    }

    /// The starting point itself, then what is below it.
    async fn start_at(&self, path: Vec<u8>) {
        let attributes = match self.files.stat_whole(&path, false).await {
            Ok(attributes) => attributes,
            Err(error) => return self.say_failed(&path, &error),
        };
        let tests = &self.conditions.tests;
        let name = base_name(&path).unwrap_or(b"/");
        let may_match = self.depth_min == 0 && self.server.is_none() && self.conditions.hold_for_path(&path);
        if may_match && tests.hold_for_name(name, attributes.kind, attributes.id) {
            let matches = match tests.judge(&attributes, true) {
                Verdict::Yes => true,
                Verdict::No => false,
                Verdict::Undecided => self.files.is_empty_directory(&path).await.unwrap_or(false),
            };
            if matches {
                self.report(&path, attributes.kind);
            }
        }
        if attributes.kind == Kind::Directory && self.depth_max > 0 {
            self.push(SearchDirectory { path, depth: 0 });
        }
    }

    fn push(&self, place: SearchDirectory) {
        self.activity.add_found();
        self.work.push(Urgency::First, place);
    }

    async fn list(&self, place: &SearchDirectory) -> client::Result<()> {
        let depth = place.depth + 1;
        let told = depth >= self.depth_min;
        let for_servers = self.conditions.are_for_servers() && self.server.is_none();
        let search = Search {
            // Above the depth that is asked for, only directories matter.
            tests: if told { self.conditions.tests.clone() } else { Tests(vec![Test::Kind(Kind::Directory)]) },
            count_only: told && for_servers && self.form == Form::Count,
            server: None,
        };
        let mut stream = self.files.open_search(&place.path, &search).await?;
        while !stream.is_at_end() && !self.work.is_stopped() {
            let page = self.files.next_found(&mut stream).await?;
            self.found.set(self.found.get() + page.counted);
            for entry in page.entries {
                let path = join(&place.path, &entry.name);
                let is_here = self.server.is_none_or(|server| server == entry.server);
                if told && entry.matches && is_here && self.conditions.hold_for_path(&path) {
                    self.report(&path, entry.kind);
                }
                if entry.kind == Kind::Directory && depth < self.depth_max {
                    self.push(SearchDirectory { path, depth });
                }
            }
        }
        Ok(())
    }

    async fn search(&self, place: SearchDirectory) {
        match self.list(&place).await {
            // Others may remove directories while we search.
            Err(error) if error.status == Status::NotFound => {}
            Err(error) => self.say_failed(&place.path, &error),
            Ok(()) => {}
        }
        self.activity.add_done();
    }
}

fn form(arguments: &Arguments) -> Form {
    if arguments.flag("count") {
        Form::Count
    } else if arguments.flag("json") {
        Form::Json
    } else if arguments.flag("print0") {
        Form::Nul
    } else {
        Form::Lines { for_people: std::io::stdout().is_terminal() }
    }
}

/// `tabane find`.
pub fn run(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let server = arguments.number_given("find-server").map(|server| server as u32);
    if let Some(server) = server.filter(|server| *server >= session.files.server_count()) {
        let count = session.files.server_count();
        return Err(Failure::usage(format!("-server {server}: the cluster has {count} servers, counted from 0")));
    }
    let walk = Rc::new(Walk {
        files: session.files.clone(),
        conditions: Conditions::of(arguments, &session)?,
        depth_min: arguments.number_given("mindepth").unwrap_or(0),
        depth_max: arguments.number_given("maxdepth").unwrap_or(u64::MAX),
        server,
        work: Work::new(DIRECTORIES_MAX),
        output: RefCell::new(BufWriter::with_capacity(1 << 16, std::io::stdout())),
        form: form(arguments),
        found: Cell::new(0),
        activity: Activity::new("directories searched"),
        failed: Cell::new(false),
        broken: RefCell::default(),
    });
    let mut starts: Vec<Vec<u8>> =
        arguments.operand_bytes().iter().map(|path| shown(&inside(path)).into_owned()).collect();
    if starts.is_empty() {
        starts.push(b"/".to_vec());
    }
    session.block_on(async {
        let search = async {
            for path in starts {
                walk.start_at(path).await;
            }
            let (searching, jobs) = (walk.clone(), arguments.number("jobs") as usize);
            run_all(&session.reactor, jobs, &walk.work, async move |place| searching.search(place).await).await;
        };
        let prints = if walk.form == Form::Count { Prints::AtTheEnd } else { Prints::Meanwhile };
        let _: Either<(), ()> = race(search, walk.activity.show(&session.reactor, arguments, prints)).await;
    });
    if let Some(failure) = walk.broken.take() {
        return Err(failure);
    }
    let mut output = walk.output.borrow_mut();
    if walk.form == Form::Count {
        writeln!(output, "{}", walk.found.get()).map_err(Failure::of_output)?;
    }
    output.flush().map_err(Failure::of_output)?;
    if walk.failed.get() { Err(Failure::Said(1)) } else { Ok(()) }
}
