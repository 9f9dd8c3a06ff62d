//! `tabane status --files`: the files and directories to which clients did most. Servers know them by their numbers;
//! where they are is found by a walk through the tree, of which each server looks at its own names.

use crate::activity::{Activity, Prints};
use crate::arguments::Arguments;
use crate::commands::conditions::file_id_of;
use crate::failure::{Failure, Outcome};
use crate::json::write_path_line;
use crate::paths::{join, visible};
use crate::session::Session;
use crate::text::{count_words, size_short};
use crate::together::{Either, race};
use crate::work::{Urgency, Work, run_all};
use client::tests::{Ids, Test, Tests};
use client::{FileId, FileSystem, Kind, Search};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::rc::Rc;

/// Rows of the table, and of the lines of JSON.
const ROW_COUNT_MAX: usize = 20;
const DIRECTORIES_MAX: usize = 1 << 20;
const JOB_COUNT: usize = 16;

/// What all servers together say of a file or directory.
#[derive(Debug, Default)]
struct BusyObject {
    is_directory: bool,
    requests: u64,
    failed: u64,
    service_ns: u64,
    bytes_in: u64,
    bytes_out: u64,
    /// What servers order them by.
    work: u64,
    earlier_work_max: u64,
    servers: Vec<u32>,
}

impl BusyObject {
    fn add(&mut self, server: u32, told: &Value) {
        let number = |name: &str| told[name].as_u64().unwrap_or(0);
        self.is_directory |= told["object"] == "directory";
        self.requests += number("requests");
        self.failed += number("failed");
        self.service_ns += number("service_ns");
        self.bytes_in += number("bytes_in");
        self.bytes_out += number("bytes_out");
        self.work += number("work");
        self.earlier_work_max += number("earlier_work_max");
        self.servers.push(server);
    }

    fn object(&self) -> &'static str {
        if self.is_directory { "directory" } else { "file" }
    }
}

/// Those to which most was done, most first.
fn merged(reports: &[(u32, &Value)]) -> Vec<(FileId, BusyObject)> {
    let mut objects: BTreeMap<FileId, BusyObject> = BTreeMap::new();
    for (server, report) in reports {
        for told in report["busiest"].as_array().into_iter().flatten() {
            if let Some(id) = told["id"].as_str().and_then(file_id_of) {
                objects.entry(id).or_default().add(*server, told);
            }
        }
    }
    let mut objects: Vec<(FileId, BusyObject)> = objects.into_iter().collect();
    objects.sort_by_key(|(id, object)| (std::cmp::Reverse(object.work), *id));
    objects
}

/// A walk for the names of inodes.
struct Walk {
    files: FileSystem,
    tests: Tests,
    work: Rc<Work<(FileId, Vec<u8>)>>,
    paths: RefCell<BTreeMap<FileId, Vec<u8>>>,
    wanted: usize,
    activity: Activity,
    failed: Cell<bool>,
}

impl Walk {
    async fn search(&self, directory: FileId, path: Vec<u8>) {
        if self.list(directory, &path).await.is_err() {
            // Others may remove it, and one that is closed to us keeps its names.
            self.failed.set(true);
        }
        self.activity.add_done();
    }

    /// By number, for which nobody looks up paths, so that to ask is not to be counted.
    async fn list(&self, directory: FileId, path: &[u8]) -> client::Result<()> {
        let search = Search { tests: self.tests.clone(), count_only: false, server: None };
        let mut stream = self.files.open_search_id(directory, &search).await?;
        while !stream.is_at_end() && !self.work.is_stopped() {
            for entry in self.files.next_found(&mut stream).await?.entries {
                let path = join(path, &entry.name);
                if entry.matches {
                    self.note(entry.id, &path);
                }
                if entry.kind == Kind::Directory {
                    self.activity.add_found();
                    self.work.push(Urgency::First, (entry.id, path));
                }
            }
        }
        Ok(())
    }

    fn note(&self, id: FileId, path: &[u8]) {
        let mut paths = self.paths.borrow_mut();
        paths.entry(id).or_insert_with(|| path.to_vec());
        if paths.len() == self.wanted {
            self.work.stop();
        }
    }
}

/// The paths of inodes, of those that still have one, and whether all directories could be looked at.
fn paths_of(arguments: &Arguments, session: &Session, ids: Vec<FileId>) -> Outcome<(BTreeMap<FileId, Vec<u8>>, bool)> {
    let wanted = ids.len();
    let ids = Ids::new(ids).map_err(|_| Failure::failed("too many files at once"))?;
    let walk = Rc::new(Walk {
        files: session.files.clone(),
        tests: Tests(vec![Test::Ids(ids)]),
        work: Work::new(DIRECTORIES_MAX),
        paths: RefCell::default(),
        wanted,
        activity: Activity::new("directories searched"),
        failed: Cell::new(false),
    });
    if wanted > 0 {
        session.block_on(async {
            let search = async {
                let root = b"/".to_vec();
                if walk.tests.hold_for_name(b"/", Kind::Directory, FileId::ROOT) {
                    walk.note(FileId::ROOT, &root);
                }
                walk.activity.add_found();
                walk.work.push(Urgency::First, (FileId::ROOT, root));
                let own = walk.clone();
                run_all(&session.reactor, JOB_COUNT, &walk.work, async move |(id, path)| own.search(id, path).await)
                    .await;
            };
            let _: Either<(), ()> =
                race(search, walk.activity.show(&session.reactor, arguments, Prints::AtTheEnd)).await;
        });
    }
    Ok((walk.paths.take(), !walk.failed.get()))
}

/// Prints them, by what the servers that are up report. While one is down all paths are unknown: each directory would
/// wait for it.
pub fn run(arguments: &Arguments, session: &Session, reports: &[(u32, &Value)]) -> Outcome {
    let mut objects = merged(reports);
    objects.truncate(ROW_COUNT_MAX);
    let are_all_up = reports.len() == session.files.server_count() as usize;
    let ids = if are_all_up { objects.iter().map(|(id, _)| *id).collect() } else { Vec::new() };
    let (paths, is_whole) = paths_of(arguments, session, ids)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let printed = if arguments.flag("json") {
        objects.iter().try_for_each(|(id, object)| {
            let fields = json!({
                "id": id.to_string(),
                "object": object.object(),
                "requests": object.requests,
                "failed": object.failed,
                "bytes_written": object.bytes_in,
                "bytes_read": object.bytes_out,
                "service_ns": object.service_ns,
                "work": object.work,
                "earlier_work_max": object.earlier_work_max,
                "servers": object.servers,
            });
            match paths.get(id) {
                Some(path) => write_path_line(&mut out, path, fields),
                None => writeln!(out, "{fields}"),
            }
        })
    } else {
        out.write_all(&table(&objects, &paths))
    };
    printed.and_then(|()| out.flush()).map_err(Failure::of_output)?;
    if !are_all_up {
        eprintln!("tabane: status: paths are not looked for while a server is down");
    } else if !is_whole {
        eprintln!("tabane: status: some directories could not be searched, so that paths may be missing");
    }
    Ok(())
}

const HEADS: [&str; 6] = ["requests", "written", "read", "server time", "servers", "path"];

fn table(objects: &[(FileId, BusyObject)], paths: &BTreeMap<FileId, Vec<u8>>) -> Vec<u8> {
    if objects.is_empty() {
        return b"nothing was done to any file so far\n".to_vec();
    }
    let row = |(id, object): &(FileId, BusyObject)| {
        let path = match paths.get(id) {
            Some(path) => visible(path).into_owned(),
            None => format!("(removed or not found: id {id})").into_bytes(),
        };
        let slash: &[u8] = if object.is_directory && path != b"/" && paths.contains_key(id) { b"/" } else { b"" };
        let servers: Vec<String> = object.servers.iter().map(u32::to_string).collect();
        let cells = [
            count_words(object.requests),
            size_short(object.bytes_in),
            size_short(object.bytes_out),
            format!("{:.1} ms", object.service_ns as f64 / 1e6),
            if servers.len() > 4 { format!("{} of them", servers.len()) } else { servers.join(",") },
        ];
        (cells, [&path, slash].concat())
    };
    let heads: [String; 5] = std::array::from_fn(|column| HEADS[column].to_owned());
    let rows: Vec<([String; 5], Vec<u8>)> =
        std::iter::once((heads, HEADS[5].into())).chain(objects.iter().map(row)).collect();
    let widths: [usize; 5] =
        std::array::from_fn(|column| rows.iter().map(|(cells, _)| cells[column].len()).max().unwrap_or(0));
    let mut text = Vec::new();
    for (cells, path) in &rows {
        for (cell, width) in cells.iter().zip(widths) {
            text.extend(format!("{cell:>width$}  ").into_bytes());
        }
        text.extend(path);
        text.push(b'\n');
    }
    text
}
