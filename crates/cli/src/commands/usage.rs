//! `tabane du`: what the files of a tree take, or how many bytes they have.

use crate::activity::{Activity, Prints, held};
use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path};
use crate::json::write_path_line;
use crate::paths::{inside, join, shown, visible};
use crate::session::Session;
use crate::text::size_short;
use crate::together::{Either, race};
use client::{Attributes, FileId, FileSystem, Kind, Status};
use serde_json::json;
use std::collections::HashSet;
use std::io::{BufWriter, IsTerminal, Stdout, Write};
use std::pin::Pin;
use std::rc::Rc;

struct Sum {
    files: FileSystem,
    output: BufWriter<Stdout>,
    /// Deepest level of directories that has a line of its own.
    depth_max: u64,
    all: bool,
    bytes: bool,
    /// Sizes of files instead of what they take.
    is_apparent: bool,
    human: bool,
    json: bool,
    for_people: bool,
    /// Files with several names that were counted.
    counted: HashSet<FileId>,
    failed: bool,
    activity: Rc<Activity>,
}

impl Sum {
    fn print(&mut self, size: u64, path: &[u8]) -> Outcome {
        if self.json {
            return write_path_line(&mut self.output, path, json!({ "bytes": size })).map_err(Failure::of_output);
        }
        let size = match (self.bytes, self.human) {
            (_, true) => size_short(size),
            (true, _) => size.to_string(),
            _ => size.div_ceil(1024).to_string(),
        };
        let path = if self.for_people { visible(path) } else { path.into() };
        let written = write!(self.output, "{size}\t").and_then(|()| self.output.write_all(&path));
        written.and_then(|()| self.output.write_all(b"\n")).map_err(Failure::of_output)
    }

    /// Bytes of each inode; nothing where another of its names was counted.
    async fn sizes_of(&mut self, inodes: &[&Attributes]) -> client::Result<Vec<u64>> {
        let is_new = |attributes: &&Attributes| {
            attributes.kind == Kind::Directory || attributes.link_count < 2 || self.counted.insert(attributes.id)
        };
        let are_new: Vec<bool> = inodes.iter().map(is_new).collect();
        let counts = |(attributes, is_new): (&&Attributes, &bool)| {
            let takes_room = self.is_apparent || attributes.kind == Kind::File;
            (*is_new && takes_room).then_some((attributes.id, attributes.size))
        };
        let counted: Vec<Option<(FileId, u64)>> = inodes.iter().zip(&are_new).map(counts).collect();
        if self.is_apparent {
            return Ok(counted.into_iter().map(|inode| inode.map_or(0, |(_, size)| size)).collect());
        }
        let files: Vec<FileId> = counted.iter().flatten().map(|(id, _)| *id).collect();
        let mut told = self.files.allocated(&files).await?.into_iter();
        Ok(counted.into_iter().map(|inode| inode.and_then(|_| told.next()).unwrap_or(0)).collect())
    }

    fn say_failed(&mut self, path: &[u8], error: &client::Error) {
        self.failed = true;
        self.activity.clear();
        eprintln!("tabane: du: {}", about_path(path, error));
    }

    /// The sum of a directory and all below it. What can't be read is said and left out.
    fn directory<'a>(&'a mut self, path: Vec<u8>, depth: u64) -> Pin<Box<dyn Future<Output = Outcome<u64>> + 'a>> {
        Box::pin(async move {
            let mut total = 0;
            let mut below = Vec::new();
            match self.entries(&path, &mut below).await {
                Ok(()) => {}
                Err(error) if error.status == Status::NotFound => return Ok(0),
                Err(error) => self.say_failed(&path, &error),
            }
            let inodes: Vec<&Attributes> = below.iter().map(|(_, attributes)| attributes).collect();
            let sizes = match self.sizes_of(&inodes).await {
                Ok(sizes) => sizes,
                Err(error) => {
                    self.say_failed(&path, &error);
                    vec![0; inodes.len()]
                }
            };
            for ((path, attributes), size) in below.into_iter().zip(sizes) {
                if attributes.kind == Kind::Directory {
                    total += size + self.directory(path, depth + 1).await?;
                } else {
                    total += size;
                    if self.all && depth < self.depth_max {
                        self.print(size, &path)?;
                    }
                }
            }
            if depth <= self.depth_max {
                self.print(total, &path)?;
            }
            Ok(total)
        })
    }

    async fn entries(&mut self, path: &[u8], below: &mut Vec<(Vec<u8>, Attributes)>) -> client::Result<()> {
        let mut stream = self.files.open_directory(path, true).await?;
        while !stream.is_at_end() {
            let mut page = self.files.next_page(&mut stream).await?;
            for (path, error) in self.files.complete_listed(path, &mut page).await? {
                self.say_failed(&path, &error);
            }
            let entries = page.into_iter().filter_map(|entry| Some((join(path, &entry.name), *entry.attributes?)));
            let before = below.len();
            below.extend(entries);
            self.activity.add((below.len() - before) as u64);
        }
        Ok(())
    }
}

/// `tabane du`.
pub fn run(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let depth_max = arguments.number_given("max-depth");
    let (summarize, all) = (arguments.flag("summarize"), arguments.flag("du-all"));
    if summarize && (all || depth_max.is_some_and(|depth| depth > 0)) {
        return Err(Failure::usage("-s shows the sum of each PATH alone, so -a and -d do not go with it"));
    }
    let mut sum = Sum {
        files: session.files.clone(),
        output: BufWriter::new(std::io::stdout()),
        depth_max: if summarize { 0 } else { depth_max.unwrap_or(u64::MAX) },
        all,
        bytes: arguments.flag("du-bytes"),
        is_apparent: arguments.flag("du-bytes") || arguments.flag("apparent-size"),
        human: arguments.flag("human"),
        for_people: std::io::stdout().is_terminal(),
        counted: HashSet::new(),
        failed: false,
        json: arguments.flag("json"),
        activity: Rc::new(Activity::new("entries counted")),
    };
    let mut paths: Vec<Vec<u8>> =
        arguments.operand_bytes().iter().map(|path| shown(&inside(path)).into_owned()).collect();
    if paths.is_empty() {
        paths.push(b"/".to_vec());
    }
    let activity = sum.activity.clone();
    let is_whole = paths == [b"/"];
    let prints = if summarize { Prints::AtTheEnd } else { Prints::Meanwhile };
    let total = async {
        if is_whole {
            activity.set_total(held(&session).await.0);
        }
    };
    let progress = activity.show_beside(&session.reactor, arguments, prints, total);
    let summing = async {
        for path in paths {
            match sum.files.lstat(&path).await {
                Ok(attributes) if attributes.kind == Kind::Directory => drop(sum.directory(path, 0).await?),
                Ok(attributes) => match sum.sizes_of(&[&attributes]).await {
                    Ok(sizes) => sum.print(sizes[0], &path)?,
                    Err(error) => sum.say_failed(&path, &error),
                },
                Err(error) => sum.say_failed(&path, &error),
            }
        }
        Ok::<(), Failure>(())
    };
    match session.block_on(race(summing, progress)) {
        Either::First(outcome) => outcome?,
        Either::Second(()) => unreachable!("progress is shown until the sum is there"),
    }
    sum.output.flush().map_err(Failure::of_output)?;
    if sum.failed { Err(Failure::Said(1)) } else { Ok(()) }
}
