//! What is seen of a cluster, in words that do not depend on ids and moments, so that runs can be compared.

use super::stage::CHUNK;
use client::{Attributes, DirectoryEntry, File, FileId, FileSystem, Kind, LockRange, Locker, OpenHow};
use std::collections::BTreeMap;

/// A name, or a file that somebody has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// All but the contents.
    pub words: String,
    pub size: u64,
    /// Runs of equal bytes in each chunk, zeros at its end left out.
    pub chunks: Vec<String>,
}

impl Seen {
    fn of_words(words: String) -> Seen {
        Seen { words, size: 0, chunks: Vec::new() }
    }

    fn chunk(&self, index: usize) -> &str {
        self.chunks.get(index).map_or("", String::as_str)
    }
}

pub type View = Vec<Seen>;

/// Whether each chunk is as in one of two views, or not written yet, and everything else as in one of them.
pub fn is_between(before: &View, after: &View, seen: &View) -> bool {
    before.len() == seen.len()
        && after.len() == seen.len()
        && seen.iter().zip(before).zip(after).all(|((seen, before), after)| {
            let sizes = before.size.min(after.size)..=before.size.max(after.size);
            let mut indexes = 0..seen.chunks.len().max(before.chunks.len()).max(after.chunks.len());
            (seen.words == before.words || seen.words == after.words)
                && sizes.contains(&seen.size)
                && indexes.all(|at| seen.chunk(at) == before.chunk(at) || seen.chunk(at) == after.chunk(at))
        })
}

/// All names with all that is to be seen of them, in the order of paths.
pub async fn look_around(files: &FileSystem) -> View {
    let mut view = View::new();
    let mut identities: BTreeMap<FileId, usize> = BTreeMap::new();
    for path in all_paths(files).await {
        // With the shares of all servers, also of those that have just come back.
        let attributes = files.stat_whole(&path, false).await.unwrap_or_else(|error| panic!("stat: {error}"));
        let count = identities.len();
        let identity = *identities.entry(attributes.id).or_insert(count);
        let mut words = format!("{} is {identity}, {}", String::from_utf8_lossy(&path), describe(&attributes));
        words += &extended(files, &path).await;
        match attributes.kind {
            Kind::Symlink => {
                let target = files.readlink(&path).await.expect("read");
                view.push(Seen::of_words(format!("{words}, to {}", String::from_utf8_lossy(&target))));
            }
            Kind::File => {
                let file = files.open(&path, &OpenHow::reading()).await.expect("open");
                words += &locks(files, &file).await;
                view.push(contents(files, &file, words).await);
                files.close(&file).await;
            }
            _ => view.push(Seen::of_words(words)),
        }
    }
    view
}

/// What somebody sees of the files that are open, by the story's names for them.
pub async fn look_at_handles(files: &FileSystem, handles: &BTreeMap<&'static str, File>) -> View {
    let mut view = View::new();
    for (name, file) in handles {
        match files.stat_file(file).await {
            Ok(attributes) if file.read => {
                let words = format!("open as {name}, {}", describe(&attributes));
                view.push(contents(files, file, words).await);
            }
            Ok(attributes) => view.push(Seen::of_words(format!("open as {name}, {}", describe(&attributes)))),
            Err(error) => view.push(Seen::of_words(format!("open as {name}: {:?}", error.status))),
        }
    }
    view
}

fn describe(attributes: &Attributes) -> String {
    // Times that a story sets are small numbers.
    let set = if attributes.mtime < 1_000_000 { format!(", time {}", attributes.mtime) } else { String::new() };
    format!(
        "{:?} of {} with {} names, mode {:o}{set}",
        attributes.kind, attributes.uid, attributes.link_count, attributes.mode
    )
}

async fn extended(files: &FileSystem, path: &[u8]) -> String {
    let mut words = String::new();
    let names = files.list_extended(path, false).await.expect("listed");
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let value = files.get_extended(path, false, name).await.expect("read");
        words += &format!(", {} = {}", String::from_utf8_lossy(name), String::from_utf8_lossy(&value));
    }
    words
}

/// Locks that others hold.
async fn locks(files: &FileSystem, file: &File) -> String {
    let mut words = String::new();
    for locker in [Locker::Whole, Locker::Process(1)] {
        let held = files.test_lock(file, locker, LockRange::WHOLE, true).await.expect("tested");
        if let Some(held) = held {
            words += &format!(", locked at {:?} by {:?}", held.range, held.owner.kind);
        }
    }
    words
}

async fn contents(files: &FileSystem, file: &File, words: String) -> Seen {
    let size = files.stat_file(file).await.expect("known").size;
    let mut bytes = vec![0; size as usize];
    let read = files.read_at(file, &mut bytes, 0).await.expect("read");
    assert_eq!(read as u64, size, "a short read");
    let mut chunks: Vec<String> = bytes.chunks(CHUNK as usize).map(runs).collect();
    while chunks.last().is_some_and(String::is_empty) {
        chunks.pop();
    }
    Seen { words, size, chunks }
}

fn runs(bytes: &[u8]) -> String {
    let mut runs: Vec<(u8, usize)> = Vec::new();
    for byte in bytes {
        match runs.last_mut() {
            Some((last, count)) if last == byte => *count += 1,
            _ => runs.push((*byte, 1)),
        }
    }
    if runs.last().is_some_and(|(byte, _)| *byte == 0) {
        runs.pop();
    }
    runs.iter().map(|(byte, count)| format!("{count} times {byte}")).collect::<Vec<_>>().join(", ")
}

async fn all_paths(files: &FileSystem) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut directories = vec![b"/".to_vec()];
    while let Some(directory) = directories.pop() {
        let mut entries = Vec::new();
        let mut note = |entry: &DirectoryEntry| {
            entries.push((entry.name.to_vec(), entry.kind));
            true
        };
        files.read_directory(&directory, false, &mut note).await.expect("listed");
        for (name, kind) in entries {
            let mut path = if directory == b"/" { Vec::new() } else { directory.clone() };
            path.push(b'/');
            path.extend(name);
            if kind == Kind::Directory {
                directories.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

pub async fn delete_all(files: &FileSystem) {
    // What is in a directory comes behind it.
    for path in all_paths(files).await.into_iter().rev() {
        let kind = files.lstat(&path).await.expect("it is there").kind;
        let deleted = if kind == Kind::Directory { files.rmdir(&path).await } else { files.unlink(&path).await };
        deleted.unwrap_or_else(|error| panic!("deleting everything: {error}"));
    }
}
