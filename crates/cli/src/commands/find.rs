//! `tabane find`: the paths of a tree that match, found on all servers at once.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path, path_failure};
use crate::glob;
use crate::paths::{base_name, inside, join, shown};
use crate::session::Session;
use crate::work::{Urgency, Work, run_all};
use client::{Attributes, FileSystem, Kind, Status};
use std::cell::{Cell, RefCell};
use std::io::{BufWriter, Stdout, Write};
use std::rc::Rc;

const DIRECTORIES_MAX: usize = 1 << 20;

/// Which sizes match, as find(1) counts them: in units, rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SizeTest {
    unit: u64,
    count: u64,
    order: std::cmp::Ordering,
}

impl SizeTest {
    fn parse(text: &str) -> Option<SizeTest> {
        let (order, rest) = match text.as_bytes().first()? {
            b'+' => (std::cmp::Ordering::Greater, &text[1..]),
            b'-' => (std::cmp::Ordering::Less, &text[1..]),
            _ => (std::cmp::Ordering::Equal, text),
        };
        let (digits, unit) = match rest.as_bytes().last()? {
            b'c' => (&rest[..rest.len() - 1], 1),
            b'k' => (&rest[..rest.len() - 1], 1 << 10),
            b'M' => (&rest[..rest.len() - 1], 1 << 20),
            b'G' => (&rest[..rest.len() - 1], 1 << 30),
            _ => (rest, 512),
        };
        Some(SizeTest { unit, count: digits.parse().ok()?, order })
    }

    fn holds(self, size: u64) -> bool {
        size.div_ceil(self.unit).cmp(&self.count) == self.order
    }
}

/// All conditions; what is `None` always holds.
#[derive(Debug, Default)]
struct Conditions {
    name: Option<Vec<u8>>,
    kind: Option<Kind>,
    size: Option<SizeTest>,
    newer_than: Option<i64>,
}

impl Conditions {
    fn of(arguments: &Arguments, session: &Session) -> Outcome<Conditions> {
        let size = arguments.text("find-size").map(|text| {
            SizeTest::parse(&text)
                .ok_or_else(|| Failure::usage(format!("-size {text}: [+-]N[ckMG] is wanted, such as +10k")))
        });
        let newer_than = arguments.bytes("newer").map(|path| {
            let path = inside(&path);
            let attributes = session.block_on(session.files.stat(&path));
            attributes.map(|attributes| attributes.mtime).map_err(|error| path_failure(&path, &error))
        });
        let kind = arguments.text("type").map(|text| match text.as_str() {
            "d" => Kind::Directory,
            "l" => Kind::Symlink,
            _ => Kind::File,
        });
        Ok(Conditions {
            name: arguments.bytes("name"),
            kind,
            size: size.transpose()?,
            newer_than: newer_than.transpose()?,
        })
    }

    fn need_attributes(&self) -> bool {
        self.size.is_some() || self.newer_than.is_some()
    }

    /// Whether an entry with this name and kind may match at all.
    fn hold_for_entry(&self, name: &[u8], kind: Kind) -> bool {
        self.kind.is_none_or(|wanted| wanted == kind)
            && self.name.as_ref().is_none_or(|pattern| glob::matches(pattern, name))
    }

    fn hold_for_attributes(&self, attributes: &Attributes) -> bool {
        self.size.is_none_or(|test| test.holds(attributes.size))
            && self.newer_than.is_none_or(|time| attributes.mtime > time)
    }
}

struct Search {
    files: FileSystem,
    conditions: Conditions,
    work: Rc<Work<Vec<u8>>>,
    output: RefCell<BufWriter<Stdout>>,
    ending: u8,
    only_count: bool,
    found: Cell<u64>,
    failed: Cell<bool>,
    broken: RefCell<Option<Failure>>,
}

impl Search {
    fn say_failed(&self, path: &[u8], error: &client::Error) {
        self.failed.set(true);
        eprintln!("tabane: find: {}", about_path(path, error));
    }

    fn report(&self, path: &[u8]) {
        self.found.set(self.found.get() + 1);
        if self.only_count {
            return;
        }
        let mut output = self.output.borrow_mut();
        if let Err(error) = output.write_all(path).and_then(|()| output.write_all(&[self.ending])) {
            self.broken.replace(Some(Failure::of_output(error)));
            self.work.stop();
        }
    }

    /// The starting point itself, then what is below it.
    async fn start_at(&self, path: Vec<u8>) {
        let attributes = match self.files.lstat(&path).await {
            Ok(attributes) => attributes,
            Err(error) => return self.say_failed(&path, &error),
        };
        let name = base_name(&path).unwrap_or(b"/");
        if self.conditions.hold_for_entry(name, attributes.kind) && self.conditions.hold_for_attributes(&attributes) {
            self.report(&path);
        }
        if attributes.kind == Kind::Directory {
            self.work.push(Urgency::First, path);
        }
    }

    async fn list(&self, directory: &[u8]) -> client::Result<()> {
        let need_attributes = self.conditions.need_attributes();
        let mut stream = self.files.open_directory(directory, need_attributes).await?;
        while !stream.is_at_end() && !self.work.is_stopped() {
            let mut page = self.files.next_page(&mut stream).await?;
            for entry in page.iter().filter(|entry| entry.kind == Kind::Directory) {
                self.work.push(Urgency::First, join(directory, &entry.name));
            }
            page.retain(|entry| self.conditions.hold_for_entry(&entry.name, entry.kind));
            if need_attributes {
                self.files.complete_entries(&mut page).await?;
                page.retain(|entry| {
                    entry.attributes.as_ref().is_some_and(|attributes| self.conditions.hold_for_attributes(attributes))
                });
            }
            page.iter().for_each(|entry| self.report(&join(directory, &entry.name)));
        }
        Ok(())
    }

    async fn search(&self, directory: Vec<u8>) {
        match self.list(&directory).await {
            // Others may remove directories while we search.
            Err(error) if error.status == Status::NotFound => {}
            Err(error) => self.say_failed(&directory, &error),
            Ok(()) => {}
        }
    }
}

/// `tabane find`.
pub fn run(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let search = Rc::new(Search {
        files: session.files.clone(),
        conditions: Conditions::of(arguments, &session)?,
        work: Work::new(DIRECTORIES_MAX),
        output: RefCell::new(BufWriter::with_capacity(1 << 16, std::io::stdout())),
        ending: if arguments.flag("print0") { 0 } else { b'\n' },
        only_count: arguments.flag("count"),
        found: Cell::new(0),
        failed: Cell::new(false),
        broken: RefCell::default(),
    });
    let mut starts: Vec<Vec<u8>> =
        arguments.operand_bytes().iter().map(|path| shown(&inside(path)).into_owned()).collect();
    if starts.is_empty() {
        starts.push(b"/".to_vec());
    }
    session.block_on(async {
        for path in starts {
            search.start_at(path).await;
        }
        let (work, jobs) = (search.work.clone(), arguments.number("jobs") as usize);
        let searching = search.clone();
        run_all(&session.reactor, jobs, &work, async move |directory| searching.search(directory).await).await;
    });
    if let Some(failure) = search.broken.take() {
        return Err(failure);
    }
    let mut output = search.output.borrow_mut();
    if search.only_count {
        writeln!(output, "{}", search.found.get()).map_err(Failure::of_output)?;
    }
    output.flush().map_err(Failure::of_output)?;
    if search.failed.get() { Err(Failure::Said(1)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sizes are compared as find(1) does: in units, rounded up.
    #[test]
    fn sizes() {
        let holds = |text: &str, size| SizeTest::parse(text).unwrap().holds(size);
        assert!(holds("3901c", 3901) && !holds("3901c", 3900));
        assert!(holds("1k", 1) && holds("1k", 1024) && !holds("1k", 1025) && holds("-1k", 0));
        assert!(holds("+1", 513) && !holds("+1", 512));
        for text in ["", "+", "k", "1x", "+-1"] {
            assert_eq!(SizeTest::parse(text), None, "{text}");
        }
    }
}
