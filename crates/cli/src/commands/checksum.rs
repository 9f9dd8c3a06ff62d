//! `tabane checksum`: the SHA-256 of files on either side, to compare trees.

use crate::arguments::Arguments;
use crate::copy::facts::{EntryKind, Facts};
use crate::copy::place::{Side, SourceFile};
use crate::copy::progress::{Progress, add};
use crate::failure::{Failure, Outcome, show};
use crate::json::{Fields, put_name};
use crate::paths::{Sided, join, sided};
use crate::session::{Session, open_reactor};
use crate::together::{Either, race};
use crate::work::{Work, run_all};
use reactor::Reactor;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, Write};
use std::rc::Rc;

const FILES_MAX: usize = 1 << 20;
const PIECE_SIZE: u64 = 1 << 20;

/// A path on its place, and its name in the list.
struct ChecksumItem {
    place: Side,
    path: Vec<u8>,
    name: Vec<u8>,
    facts: Facts,
}

struct Summing {
    reactor: Reactor,
    work: Rc<Work<ChecksumItem>>,
    sums: RefCell<Vec<(Vec<u8>, [u8; 32])>>,
    failed: Cell<bool>,
    progress: Progress,
}

impl Summing {
    fn say_failed(&self, reason: &str) {
        self.failed.set(true);
        eprintln!("tabane: checksum: {reason}");
    }

    async fn handle(&self, item: ChecksumItem) {
        let outcome = match item.facts.kind {
            EntryKind::Directory => {
                let outcome = self.list(&item).await;
                self.progress.directories_left.set(self.progress.directories_left.get() - 1);
                outcome
            }
            EntryKind::File => self.sum(&item).await,
            EntryKind::Symlink | EntryKind::Special(_) => Ok(()),
        };
        if let Err(reason) = outcome {
            self.say_failed(&reason);
        }
    }

    fn push(&self, item: ChecksumItem) {
        if let Some(urgency) = self.progress.note_found(&item.facts) {
            self.work.push_for(item.place.home_of(&item.facts), urgency, item);
        }
    }

    async fn list(&self, item: &ChecksumItem) -> Result<(), String> {
        let mut listing = item.place.list(&item.path).await?;
        while let Some(page) = listing.next().await? {
            page.failures.iter().for_each(|reason| self.say_failed(reason));
            for (name, facts) in page.entries {
                self.push(ChecksumItem {
                    place: item.place.clone(),
                    path: join(&item.path, &name),
                    name: join(&item.name, &name),
                    facts,
                });
            }
        }
        Ok(())
    }

    async fn sum(&self, item: &ChecksumItem) -> Result<(), String> {
        let source = SourceFile::open(&item.place, &item.path).await?;
        let mut hasher = Sha256::new();
        // One byte more than there should be shows the end with the first read.
        let mut buffer = vec![0; (item.facts.size + 1).min(PIECE_SIZE) as usize];
        let mut offset = 0;
        loop {
            let count = source.read_at(&mut buffer, offset).await?;
            hasher.update(&buffer[..count]);
            add(&self.progress.bytes_done, count as u64);
            offset += count as u64;
            if count < buffer.len() {
                break;
            }
            // Of local files nothing is waited for: progress gets its turn here.
            self.reactor.yield_now().await;
        }
        add(&self.progress.files_done, 1);
        self.sums.borrow_mut().push((item.name.clone(), hasher.finalize().into()));
        Ok(())
    }
}

/// Takes the sums of all that the command line names.
async fn sum_all(summing: &Rc<Summing>, operands: Vec<Sided>, cluster: Option<&Side>, recursive: bool, jobs: usize) {
    for path in operands {
        let (place, path) = match (path, cluster) {
            (Sided::Inside(path), Some(cluster)) => (cluster.clone(), path),
            (Sided::Local(path) | Sided::Inside(path), _) => (Side::Local, path),
        };
        match place.facts(&path, true).await {
            Err(reason) => summing.say_failed(&reason),
            Ok(facts) if facts.kind == EntryKind::Directory && !recursive => {
                summing.say_failed(&format!("{}: is a directory; -r takes all files below it", show(&path)));
            }
            Ok(facts) => {
                let name = if facts.kind == EntryKind::Directory { Vec::new() } else { path.clone() };
                summing.push(ChecksumItem { place, path, name, facts });
            }
        }
    }
    let handler = summing.clone();
    run_all(&summing.reactor, jobs, &summing.work, async move |item| handler.handle(item).await).await;
}

/// `tabane checksum`.
pub fn run(arguments: &Arguments) -> Outcome {
    let inside = arguments.operand_bytes().iter().any(|path| matches!(sided(path), Sided::Inside(_)));
    let session = inside.then(|| Session::open(arguments)).transpose()?;
    let operands: Vec<Sided> = arguments.operand_bytes().iter().map(|path| sided(path)).collect();
    let reactor = match &session {
        Some(session) => session.reactor.clone(),
        None => open_reactor()?,
    };
    let cluster = session.as_ref().map(|session| Side::Cluster(session.files.clone()));
    let summing = Rc::new(Summing {
        reactor: reactor.clone(),
        work: Work::new(FILES_MAX),
        sums: RefCell::default(),
        failed: Cell::new(false),
        progress: Progress::default(),
    });
    reactor.block_on(async {
        let jobs = arguments.number("jobs") as usize;
        let summed = sum_all(&summing, operands, cluster.as_ref(), arguments.flag("recursive"), jobs);
        match arguments.flag("progress") || std::io::stderr().is_terminal() {
            true => {
                let _: Either<(), ()> = race(summed, summing.progress.show(&reactor)).await;
            }
            false => summed.await,
        }
    });
    if let Some(session) = &session {
        // What was read is closed now; the servers shall know before this process ends.
        session.block_on(async {});
    }
    let mut sums = summing.sums.take();
    sums.sort_unstable();
    let mut text = Vec::with_capacity(sums.len() * 100);
    for (name, sum) in &sums {
        match arguments.flag("json") {
            true => put_json(&mut text, name, sum),
            false => put_line(&mut text, name, sum),
        }
    }
    std::io::stdout().write_all(&text).map_err(Failure::of_output)?;
    if summing.failed.get() { Err(Failure::Said(1)) } else { Ok(()) }
}

fn hexadecimal(sum: &[u8; 32]) -> String {
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A line for programs; the name is the one of the other form, relative to the operand.
fn put_json(text: &mut Vec<u8>, name: &[u8], sum: &[u8; 32]) {
    let mut fields = Fields::new();
    put_name(&mut fields, "path", name);
    fields.insert("sha256".to_owned(), Value::from(hexadecimal(sum)));
    text.extend_from_slice(Value::Object(fields).to_string().as_bytes());
    text.push(b'\n');
}

/// A line as sha256sum(1) writes it: with a backslash in front if the name has to be escaped.
fn put_line(text: &mut Vec<u8>, name: &[u8], sum: &[u8; 32]) {
    let escaped = name.iter().any(|byte| matches!(byte, b'\\' | b'\n' | b'\r'));
    if escaped {
        text.push(b'\\');
    }
    text.extend_from_slice(hexadecimal(sum).as_bytes());
    text.extend_from_slice(b"  ");
    for byte in name {
        match byte {
            b'\\' => text.extend_from_slice(b"\\\\"),
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\r' => text.extend_from_slice(b"\\r"),
            byte => text.push(*byte),
        }
    }
    text.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: lines have the form of sha256sum(1), also for names with odd letters.
    #[test]
    fn lines() {
        let mut text = Vec::new();
        put_line(&mut text, b"a b", &[0xab; 32]);
        put_line(&mut text, b"a\nb", &[1; 32]);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, format!("{}  a b\n\\{}  a\\nb\n", "ab".repeat(32), "01".repeat(32)));
    }
}
