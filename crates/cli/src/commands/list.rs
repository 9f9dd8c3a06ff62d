//! `tabane ls`.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path};
use crate::json::{Owners, entry};
use crate::paths::{inside, join, shown, visible};
use crate::session::Session;
use crate::text::{mode_words, size_short, time_short};
use client::{Attributes, FileSystem, Kind};
use serde_json::Value;
use std::borrow::Cow;
use std::io::{BufWriter, IsTerminal, Stdout, Write};

struct Listing {
    files: FileSystem,
    output: BufWriter<Stdout>,
    long: bool,
    all: bool,
    recursive: bool,
    human: bool,
    json: bool,
    owners: Owners,
    /// The output is a terminal.
    for_people: bool,
    failed: bool,
}

/// One line to come.
struct Line {
    name: Vec<u8>,
    attributes: Attributes,
    target: Option<Vec<u8>>,
}

/// `tabane ls`.
pub fn run(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let mut listing = Listing {
        files: session.files.clone(),
        output: BufWriter::new(std::io::stdout()),
        long: arguments.flag("long"),
        all: arguments.flag("all"),
        recursive: arguments.flag("recursive"),
        human: arguments.flag("human"),
        json: arguments.flag("json"),
        owners: Owners::default(),
        for_people: std::io::stdout().is_terminal(),
        failed: false,
    };
    let mut paths: Vec<Vec<u8>> = arguments.operand_bytes().iter().map(|path| inside(path)).collect();
    if paths.is_empty() {
        paths.push(b"/".to_vec());
    }
    session.block_on(listing.list_all(paths))?;
    listing.output.flush().map_err(Failure::of_output)?;
    if listing.failed { Err(Failure::Said(1)) } else { Ok(()) }
}

impl Listing {
    async fn list_all(&mut self, paths: Vec<Vec<u8>>) -> Outcome {
        let (mut lines, mut directories) = (Vec::new(), Vec::new());
        for path in paths {
            // What a link leads to is listed, unless the link itself is what is interesting.
            let found = if self.long { self.files.lstat(&path).await } else { self.files.stat(&path).await };
            match found {
                Ok(attributes) if attributes.kind == Kind::Directory => directories.push(path),
                Ok(attributes) => lines.push(self.line(path.clone(), &path, attributes).await),
                Err(error) => self.say_failed(&path, &error),
            }
        }
        let with_heads = !self.json && (self.recursive || directories.len() + lines.len() > 1);
        self.print(b"", &lines).map_err(Failure::of_output)?;
        let mut first = lines.is_empty();
        // Depth first, in order: the next directory is the last one.
        directories.reverse();
        while let Some(directory) = directories.pop() {
            if with_heads {
                let blank = if first { "" } else { "\n" };
                let head = shown(&directory).into_owned();
                write!(self.output, "{blank}").and_then(|()| self.write_name(&head)).map_err(Failure::of_output)?;
                self.output.write_all(b":\n").map_err(Failure::of_output)?;
            }
            first = false;
            match self.lines_of(&directory).await {
                Ok(lines) => {
                    self.print(&directory, &lines).map_err(Failure::of_output)?;
                    let below =
                        lines.iter().rev().filter(|line| self.recursive && line.attributes.kind == Kind::Directory);
                    directories.extend(below.map(|line| join(&directory, &line.name)));
                }
                Err(error) => self.say_failed(&directory, &error),
            }
        }
        Ok(())
    }

    fn say_failed(&mut self, path: &[u8], error: &client::Error) {
        self.failed = true;
        eprintln!("tabane: ls: {}", about_path(path, error));
    }

    async fn lines_of(&self, directory: &[u8]) -> client::Result<Vec<Line>> {
        let mut stream = self.files.open_directory(directory, true).await?;
        let mut lines = Vec::new();
        while !stream.is_at_end() {
            let mut page = self.files.next_page(&mut stream).await?;
            page.retain(|entry| self.all || !entry.name.starts_with(b"."));
            self.files.complete_entries(&mut page).await?;
            for entry in page {
                // What is gone meanwhile is not listed.
                if let Some(attributes) = entry.attributes {
                    let path = join(directory, &entry.name);
                    lines.push(self.line(entry.name, &path, attributes).await);
                }
            }
        }
        lines.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        Ok(lines)
    }

    async fn line(&self, name: Vec<u8>, path: &[u8], attributes: Attributes) -> Line {
        let target = match attributes.kind {
            Kind::Symlink if self.long || self.json => self.files.readlink(path).await.ok(),
            _ => None,
        };
        Line { name, attributes, target }
    }

    /// `directory` is where they are.
    fn print(&mut self, directory: &[u8], lines: &[Line]) -> std::io::Result<()> {
        if self.json {
            for Line { name, attributes, target } in lines {
                let fields = entry(&join(directory, name), attributes, target.as_deref(), &mut self.owners);
                writeln!(self.output, "{}", Value::Object(fields))?;
            }
            return Ok(());
        }
        if !self.long {
            for line in lines {
                self.write_name(&line.name)?;
                self.output.write_all(b"\n")?;
            }
            return Ok(());
        }
        let rows: Vec<[String; 6]> = lines.iter().map(|line| self.columns(&line.attributes)).collect();
        let mut widths = [0; 6];
        for row in &rows {
            for (width, column) in widths.iter_mut().zip(row) {
                *width = (*width).max(column.len());
            }
        }
        for (line, [mode, links, user, group, size, time]) in lines.iter().zip(&rows) {
            let [_, links_width, user_width, group_width, size_width, _] = widths;
            write!(
                self.output,
                "{mode} {links:>links_width$} {user:<user_width$} {group:<group_width$} {size:>size_width$} {time} "
            )?;
            self.write_name(&line.name)?;
            if let Some(target) = &line.target {
                self.output.write_all(b" -> ")?;
                self.write_name(target)?;
            }
            self.output.write_all(b"\n")?;
        }
        Ok(())
    }

    fn write_name(&mut self, name: &[u8]) -> std::io::Result<()> {
        let shown = if self.for_people { visible(name) } else { Cow::Borrowed(name) };
        self.output.write_all(&shown)
    }

    fn columns(&mut self, attributes: &Attributes) -> [String; 6] {
        let (uid, gid) = (attributes.uid, attributes.gid);
        let user = self.owners.user(uid).map_or_else(|| uid.to_string(), str::to_owned);
        let group = self.owners.group(gid).map_or_else(|| gid.to_string(), str::to_owned);
        [
            mode_words(attributes.kind, attributes.mode),
            attributes.link_count.to_string(),
            user,
            group,
            if self.human { size_short(attributes.size) } else { attributes.size.to_string() },
            time_short(attributes.mtime),
        ]
    }
}
