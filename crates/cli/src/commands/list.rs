//! `tabane ls`.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path};
use crate::json::{Owners, entry};
use crate::paths::{inside, join, shown, visible};
use crate::session::Session;
use crate::text::{mode_words, size_short, time_short};
use crate::together::join_all;
use client::{Attributes, DirectoryEntry, FileSystem, Kind};
use serde_json::Value;
use std::borrow::Cow;
use std::io::{BufWriter, IsTerminal, Stdout, Write};

struct Listing {
    files: FileSystem,
    output: BufWriter<Stdout>,
    long: bool,
    all: bool,
    recursive: bool,
    /// Operands are listed themselves, not what is in them.
    directory: bool,
    /// Directories, links and operands that are asked for at once.
    jobs: usize,
    human: bool,
    json: bool,
    owners: Owners,
    /// The output is a terminal.
    for_people: bool,
    failed: bool,
}

/// A path that is there and can't be looked at.
type FailedName = (Vec<u8>, client::Error);

/// A directory to be printed, and what is in it once that is known.
struct Pending {
    path: Vec<u8>,
    lines: Option<client::Result<(Vec<ListLine>, Vec<FailedName>)>>,
}

/// One line to come.
struct ListLine {
    name: Vec<u8>,
    kind: Kind,
    /// Where more than names is printed.
    attributes: Option<Box<Attributes>>,
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
        directory: arguments.flag("ls-directory"),
        jobs: arguments.number("jobs") as usize,
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
        for paths in paths.chunks(self.jobs) {
            for (path, found) in paths.iter().zip(join_all(paths.iter().map(|path| self.look(path))).await) {
                match found {
                    Ok(attributes) if attributes.kind == Kind::Directory && !self.directory => {
                        directories.push(path.clone());
                    }
                    Ok(attributes) => lines.push(ListLine {
                        name: path.clone(),
                        kind: attributes.kind,
                        attributes: Some(Box::new(attributes)),
                        target: None,
                    }),
                    Err(error) => self.say_failed(path, &error),
                }
            }
        }
        self.add_targets(b"", &mut lines).await;
        let with_heads = !self.json && (self.recursive || directories.len() + lines.len() > 1);
        self.print(b"", &lines).map_err(Failure::of_output)?;
        let mut first = lines.is_empty();
        // Depth first, in order: the next directory is the last one.
        let pending = |path| Pending { path, lines: None };
        let mut directories: Vec<Pending> = directories.into_iter().rev().map(pending).collect();
        loop {
            self.look_ahead(&mut directories).await;
            let Some(Pending { path: directory, lines: Some(lines) }) = directories.pop() else { return Ok(()) };
            if with_heads {
                let blank = if first { "" } else { "\n" };
                let head = shown(&directory).into_owned();
                write!(self.output, "{blank}").and_then(|()| self.write_name(&head)).map_err(Failure::of_output)?;
                self.output.write_all(b":\n").map_err(Failure::of_output)?;
            }
            first = false;
            match lines {
                Ok((lines, errors)) => {
                    errors.iter().for_each(|(path, error)| self.say_failed(path, error));
                    self.print(&directory, &lines).map_err(Failure::of_output)?;
                    let below = lines.iter().rev().filter(|line| self.recursive && line.kind == Kind::Directory);
                    directories.extend(below.map(|line| pending(join(&directory, &line.name))));
                }
                Err(error) => self.say_failed(&directory, &error),
            }
        }
    }

    /// The operand itself: what a link leads to, unless the link is what is interesting.
    async fn look(&self, path: &[u8]) -> client::Result<Attributes> {
        if self.long || self.directory { self.files.lstat(path).await } else { self.files.stat(path).await }
    }

    /// Sees to it that the contents of the last directory are known, and asks for those of the next ones with it.
    async fn look_ahead(&self, directories: &mut [Pending]) {
        if directories.last().is_none_or(|next| next.lines.is_some()) {
            return;
        }
        let ahead = directories.len().saturating_sub(self.jobs);
        let unknown = directories[ahead..].iter_mut().filter(|directory| directory.lines.is_none());
        join_all(unknown.map(async |directory| directory.lines = Some(self.lines_of(&directory.path).await))).await;
    }

    fn say_failed(&mut self, path: &[u8], error: &client::Error) {
        self.failed = true;
        eprintln!("tabane: ls: {}", about_path(path, error));
    }

    async fn lines_of(&self, directory: &[u8]) -> client::Result<(Vec<ListLine>, Vec<FailedName>)> {
        let needs_attributes = self.long || self.json;
        let mut stream = self.files.open_directory(directory, needs_attributes).await?;
        let (mut lines, mut errors) = (Vec::new(), Vec::new());
        while !stream.is_at_end() {
            let mut page = self.files.next_page(&mut stream).await?;
            page.retain(|entry| self.all || !entry.name.starts_with(b"."));
            if needs_attributes {
                errors.extend(self.files.complete_listed(directory, &mut page).await?);
                // What is gone meanwhile is not listed.
                page.retain(|entry| entry.attributes.is_some());
            }
            let line =
                |DirectoryEntry { name, kind, attributes, .. }| ListLine { name, kind, attributes, target: None };
            lines.extend(page.into_iter().map(line));
        }
        lines.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        self.add_targets(directory, &mut lines).await;
        Ok((lines, errors))
    }

    /// Asks what the symbolic links among the lines lead to, where that is printed.
    async fn add_targets(&self, directory: &[u8], lines: &mut [ListLine]) {
        if !self.long && !self.json {
            return;
        }
        let mut links: Vec<&mut ListLine> = lines.iter_mut().filter(|line| line.kind == Kind::Symlink).collect();
        for links in links.chunks_mut(self.jobs) {
            let asked = links.iter_mut().map(async |line| {
                line.target = self.files.readlink(&join(directory, &line.name)).await.ok();
            });
            join_all(asked).await;
        }
    }

    /// `directory` is where they are.
    fn print(&mut self, directory: &[u8], lines: &[ListLine]) -> std::io::Result<()> {
        if self.json {
            for ListLine { name, attributes, target, .. } in lines {
                let Some(attributes) = attributes else { continue };
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
        let rows: Vec<[String; 6]> =
            lines.iter().filter_map(|line| Some(self.columns(line.attributes.as_ref()?))).collect();
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
