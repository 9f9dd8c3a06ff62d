//! `tabane checksum`: the SHA-256 of files on either side, to compare trees.

use crate::arguments::Arguments;
use crate::copy::place::{EntryKind, Facts, Place, Source};
use crate::failure::{Failure, Outcome};
use crate::paths::{Sided, join, sided};
use crate::session::{Session, open_reactor};
use crate::work::{Urgency, Work, run_all};
use sha2::{Digest, Sha256};
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::rc::Rc;

const FILES_MAX: usize = 1 << 20;
const PIECE_SIZE: u64 = 1 << 20;

/// A path on its place, and its name in the list.
struct Item {
    place: Place,
    path: Vec<u8>,
    name: Vec<u8>,
    facts: Facts,
}

struct Summing {
    work: Rc<Work<Item>>,
    sums: RefCell<Vec<(Vec<u8>, [u8; 32])>>,
    failed: Cell<bool>,
}

impl Summing {
    fn say_failed(&self, reason: &str) {
        self.failed.set(true);
        eprintln!("tabane: checksum: {reason}");
    }

    async fn handle(&self, item: Item) {
        let outcome = match item.facts.kind {
            EntryKind::Directory => self.list(&item).await,
            EntryKind::File => self.sum(&item).await,
            EntryKind::Symlink | EntryKind::Other(_) => Ok(()),
        };
        if let Err(reason) = outcome {
            self.say_failed(&reason);
        }
    }

    async fn list(&self, item: &Item) -> Result<(), String> {
        let mut listing = item.place.list(&item.path).await?;
        while let Some(page) = listing.next().await? {
            for (name, facts) in page {
                let urgency = if facts.kind == EntryKind::Directory { Urgency::First } else { Urgency::Later };
                let item = Item {
                    place: item.place.clone(),
                    path: join(&item.path, &name),
                    name: join(&item.name, &name),
                    facts,
                };
                self.work.push(urgency, item);
            }
        }
        Ok(())
    }

    async fn sum(&self, item: &Item) -> Result<(), String> {
        let source = Source::open(&item.place, &item.path).await?;
        let mut hasher = Sha256::new();
        // One byte more than there should be shows the end with the first read.
        let mut buffer = vec![0; (item.facts.size + 1).min(PIECE_SIZE) as usize];
        let mut offset = 0;
        loop {
            let count = source.read_at(&mut buffer, offset).await?;
            hasher.update(&buffer[..count]);
            offset += count as u64;
            if count < buffer.len() {
                break;
            }
        }
        self.sums.borrow_mut().push((item.name.clone(), hasher.finalize().into()));
        Ok(())
    }
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
    let cluster = session.as_ref().map(|session| Place::Cluster(session.files.clone()));
    let summing = Rc::new(Summing { work: Work::new(FILES_MAX), sums: RefCell::default(), failed: Cell::new(false) });
    let recursive = arguments.flag("recursive");
    reactor.block_on(async {
        for path in operands {
            let (place, path) = match (path, &cluster) {
                (Sided::Inside(path), Some(cluster)) => (cluster.clone(), path),
                (Sided::Local(path) | Sided::Inside(path), _) => (Place::Local, path),
            };
            match place.facts(&path, true).await {
                Err(reason) => summing.say_failed(&reason),
                Ok(facts) if facts.kind == EntryKind::Directory && !recursive => {
                    summing.say_failed(&format!(
                        "{}: is a directory; -r takes all files below it",
                        String::from_utf8_lossy(&path)
                    ));
                }
                Ok(facts) => {
                    let name = if facts.kind == EntryKind::Directory { Vec::new() } else { path.clone() };
                    summing.work.push(Urgency::First, Item { place, path, name, facts });
                }
            }
        }
        let (work, jobs) = (summing.work.clone(), arguments.number("jobs") as usize);
        let handler = summing.clone();
        run_all(&reactor, jobs, &work, async move |item| handler.handle(item).await).await;
    });
    if let Some(session) = &session {
        // What was read is closed now; the servers shall know before this process ends.
        session.block_on(async {});
    }
    let mut sums = summing.sums.take();
    sums.sort_unstable();
    let mut text = Vec::with_capacity(sums.len() * 100);
    for (name, sum) in &sums {
        put_line(&mut text, name, sum);
    }
    std::io::stdout().write_all(&text).map_err(Failure::of_output)?;
    if summing.failed.get() { Err(Failure::Said(1)) } else { Ok(()) }
}

/// A line as sha256sum(1) writes it: with a backslash in front if the name has to be escaped.
fn put_line(text: &mut Vec<u8>, name: &[u8], sum: &[u8; 32]) {
    let escaped = name.iter().any(|byte| matches!(byte, b'\\' | b'\n' | b'\r'));
    if escaped {
        text.push(b'\\');
    }
    for byte in sum {
        text.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
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
