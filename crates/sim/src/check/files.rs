//! Sorts a history by files: what was read from, written to and told about each of them.

use crate::history::{Action, Moment, NEVER, Operation, Outcome, Path};
use crate::pattern::Tag;
use client::Allocation;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use wire::FileId;
use wire::limits::COPY_SIZE_MAX;

/// A change or observation of one file.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    /// Number of the operation in the history.
    pub number: usize,
    pub start: Moment,
    /// `NEVER` for a change that may have happened at any time since its start, or not at all.
    pub end: Moment,
    pub what: What<'a>,
}

#[derive(Clone, Debug)]
pub enum What<'a> {
    Write {
        offset: u64,
        size: u64,
        tag: Tag,
    },
    /// `offset` is not known when the outcome is not.
    Append {
        offset: Option<u64>,
        size: u64,
        tag: Tag,
    },
    Truncate {
        size: u64,
    },
    /// A range became zeros.
    Zero {
        offset: u64,
        size: u64,
    },
    /// The file has at least this size.
    Grow {
        size: u64,
    },
    /// Bytes came from another file, in pieces of `pieces` (offset and size here).
    Copy {
        offset: u64,
        size: u64,
        tag: Tag,
        /// Everything that was ever written to the source.
        origins: Rc<[Origin]>,
        /// Where holes in the source may begin or end, at the places where they would be here.
        edges: Rc<[u64]>,
        /// Where single steps of the copy begin, beside at chunk boundaries here.
        steps: Rc<[u64]>,
    },
    /// There is no data from `from` to `to`.
    HoleSeen {
        from: u64,
        to: u64,
    },
    /// The size was at least, or at most, this.
    SizeAtLeast {
        size: u64,
    },
    SizeAtMost {
        size: u64,
    },
    /// Asked for `size` bytes and got `bytes`.
    Read {
        offset: u64,
        size: u64,
        bytes: &'a [u8],
    },
    SizeSeen {
        size: u64,
    },
    SetTime {
        mtime: i64,
    },
    TimeSeen {
        mtime: i64,
    },
}

/// A write to the source of a copy. Byte `at` of the target would hold what it wrote to byte `at + shift`.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub tag: Tag,
    /// Of the write, in the source.
    pub offset: u64,
    pub size: u64,
    pub shift: i64,
}

/// Everything about one file.
#[derive(Debug)]
pub struct FileHistory<'a> {
    pub id: FileId,
    /// Bytes; 0 when nothing was ever read or written.
    pub chunk_size: u32,
    pub events: Vec<Event<'a>>,
}

impl FileHistory<'_> {
    pub fn has_appends(&self) -> bool {
        self.events.iter().any(|event| matches!(event.what, What::Append { .. }))
    }
}

/// What is known of the files that were ever at a path.
#[derive(Default)]
struct Tenants {
    ids: BTreeSet<FileId>,
    /// When the first of them was first seen for sure.
    seen_since: Option<Moment>,
    /// Whether files may have been there that nobody saw.
    unseen: bool,
}

#[derive(Default)]
struct Sorter<'a> {
    files: BTreeMap<FileId, FileHistory<'a>>,
    at_path: BTreeMap<&'a Path, Tenants>,
}

/// Splits a history by file id.
pub fn by_file(operations: &[Operation]) -> Vec<FileHistory<'_>> {
    let mut sorter = Sorter::default();
    for operation in operations {
        sorter.note_identity(operation);
    }
    sorter.note_moves(operations);
    for (number, operation) in operations.iter().enumerate() {
        sorter.note_change(number, operation);
        sorter.note_ranges(number, operation, operations);
        sorter.note_observation(number, operation);
    }
    sorter.files.into_values().collect()
}

/// Which files may have been at each path, links and renames taken in, given those that were seen there.
pub fn after_moves<'a>(
    operations: &'a [Operation],
    at_path: BTreeMap<&'a Path, BTreeSet<FileId>>,
) -> BTreeMap<&'a Path, BTreeSet<FileId>> {
    along_moves(operations, at_path, false)
}

/// The same, or, `backwards`, which files that were seen at some path may have been at each path before.
fn along_moves<'a>(
    operations: &'a [Operation],
    at_path: BTreeMap<&'a Path, BTreeSet<FileId>>,
    backwards: bool,
) -> BTreeMap<&'a Path, BTreeSet<FileId>> {
    let mut known: BTreeSet<&Path> = at_path.keys().copied().collect();
    let mut moves: BTreeSet<(&Path, &Path)> = BTreeSet::new();
    for operation in operations.iter().filter(|operation| operation.may_have_happened()) {
        known.extend(operation.path());
        let Some((from, to)) = operation.pair() else { continue };
        known.extend([from, to]);
        let is_exchange = matches!(operation.action, Action::Rename { exchange: true, .. });
        if is_exchange || !backwards {
            moves.insert((from, to));
        }
        if is_exchange || backwards {
            moves.insert((to, from));
        }
    }
    // Directories take along what is in them, to paths that nobody may have named; deeper ones than any nobody will.
    let depth_max = known.iter().map(|path| path.parts.len()).max().unwrap_or(0);
    let mut all: BTreeMap<Path, BTreeSet<FileId>> =
        at_path.into_iter().map(|(path, ids)| (path.clone(), ids)).collect();
    let mut changed = true;
    while changed {
        changed = false;
        for (from, to) in &moves {
            let there: Vec<_> = all.iter().filter(|(path, _)| path.lies_in(from)).collect();
            let moved = there.into_iter().map(|(path, ids)| (path.moved(from, to), ids.clone()));
            for (path, ids) in moved.filter(|(path, _)| path.parts.len() <= depth_max).collect::<Vec<_>>() {
                let there = all.entry(path).or_default();
                let count = there.len();
                there.extend(ids);
                changed |= there.len() > count;
            }
        }
    }
    known.into_iter().filter_map(|path| Some((path, all.get(path)?.clone()))).collect()
}

impl<'a> Sorter<'a> {
    fn note_identity(&mut self, operation: &'a Operation) {
        let Some(path) = operation.path() else { return };
        let tenants = self.at_path.entry(path).or_default();
        // A directory may come to the path of a file by a rename, and is none of the files that are seen there.
        if matches!(operation.action, Action::MakeDirectory { .. }) {
            tenants.unseen |= operation.may_have_happened();
            return;
        }
        let id = match &operation.outcome {
            Outcome::Opened(id) => *id,
            Outcome::Seen(seen) if seen.kind == wire::Kind::File => seen.id,
            _ if matches!(operation.action, Action::LinkOpen { .. }) => {
                if let (Action::LinkOpen { file, .. }, true) = (&operation.action, operation.may_have_happened()) {
                    tenants.ids.insert(*file);
                }
                return;
            }
            // Of what a backing tree had nobody may have been told which file it is.
            Outcome::Unknown(_) | Outcome::Done => {
                tenants.unseen |= matches!(operation.action, Action::Open { create: true, .. });
                return;
            }
            _ => return,
        };
        tenants.ids.insert(id);
        tenants.seen_since = Some(tenants.seen_since.map_or(operation.end, |moment| moment.min(operation.end)));
    }

    /// Files that may have come to a path by a link or rename.
    fn note_moves(&mut self, operations: &'a [Operation]) {
        let ids = self.at_path.iter().map(|(path, tenants)| (*path, tenants.ids.clone())).collect();
        for (path, ids) in after_moves(operations, ids) {
            self.at_path.entry(path).or_default().ids = ids;
        }
        let unseen = self.at_path.iter().filter(|(_, tenants)| tenants.unseen);
        let unseen = unseen.map(|(path, _)| (*path, BTreeSet::from([FileId::default()]))).collect();
        for (path, _) in after_moves(operations, unseen) {
            self.at_path.entry(path).or_default().unseen = true;
        }
        self.note_origins(operations);
    }

    /// What nobody saw at a path may have been seen only where it was moved to, by itself or with directories above it,
    /// over paths that nobody named; and from where it was it may have come to others, by links.
    fn note_origins(&mut self, operations: &'a [Operation]) {
        for backwards in [true, false] {
            let ids = self.at_path.iter().map(|(path, tenants)| (*path, tenants.ids.clone())).collect();
            for (path, ids) in along_moves(operations, ids, backwards) {
                if let Some(tenants) = self.at_path.get_mut(path).filter(|tenants| tenants.unseen) {
                    tenants.ids.extend(ids);
                }
            }
        }
    }

    fn add(&mut self, id: FileId, number: usize, operation: &Operation, what: What<'a>) {
        let event = Event { number, start: operation.start, end: operation.end, what };
        self.push(id, event);
    }

    fn push(&mut self, id: FileId, event: Event<'a>) {
        let file = self.files.entry(id).or_insert_with(|| FileHistory { id, chunk_size: 0, events: Vec::new() });
        file.events.push(event);
    }

    /// A change by path: certain when only one file was ever there, else it may have met any of them.
    fn add_at_path(&mut self, path: &Path, number: usize, operation: &Operation, what: What<'a>) {
        let Some(tenants) = self.at_path.get(path) else { return };
        let since = tenants.seen_since.unwrap_or(NEVER);
        let certain = tenants.ids.len() == 1 && !tenants.unseen && since < operation.start;
        let end = if certain { operation.end } else { NEVER };
        for id in tenants.ids.clone() {
            self.push(id, Event { number, start: operation.start, end, what: what.clone() });
        }
    }

    fn set_chunk_size(&mut self, id: FileId, chunk_size: u32) {
        if let Some(file) = self.files.get_mut(&id) {
            file.chunk_size = chunk_size;
        }
    }

    fn note_change(&mut self, number: usize, operation: &'a Operation) {
        if !operation.may_have_happened() {
            return;
        }
        match &operation.action {
            Action::Open { path, truncate: true, .. } => match operation.outcome {
                Outcome::Opened(id) => self.add(id, number, operation, What::Truncate { size: 0 }),
                _ => self.add_at_path(path, number, operation, What::Truncate { size: 0 }),
            },
            Action::TruncatePath { path, size } => {
                self.add_at_path(path, number, operation, What::Truncate { size: *size });
            }
            Action::TruncateFile { file, size } => {
                self.add(*file, number, operation, What::Truncate { size: *size });
            }
            Action::SetTime { path, mtime } => {
                self.add_at_path(path, number, operation, What::SetTime { mtime: *mtime });
            }
            Action::Write { file, chunk_size, offset, size, tag } => {
                self.add(*file, number, operation, What::Write { offset: *offset, size: *size, tag: *tag });
                self.set_chunk_size(*file, *chunk_size);
            }
            Action::Append { file, chunk_size, size, tag } => {
                let offset = match operation.outcome {
                    Outcome::Appended(offset) if !operation.lost => Some(offset),
                    _ => None,
                };
                self.add(*file, number, operation, What::Append { offset, size: *size, tag: *tag });
                self.set_chunk_size(*file, *chunk_size);
            }
            _ => {}
        }
    }

    /// Changes of ranges that move no bytes through the client.
    fn note_ranges(&mut self, number: usize, operation: &'a Operation, operations: &[Operation]) {
        match operation.action {
            Action::Allocate { file, chunk_size, kind, keep_size, offset, size } => {
                if kind != Allocation::Reserve {
                    self.add(file, number, operation, What::Zero { offset, size });
                }
                if kind != Allocation::Punch && !keep_size {
                    self.add(file, number, operation, What::Grow { size: offset + size });
                }
                self.set_chunk_size(file, chunk_size);
            }
            Action::CopyRange { source, source_chunk_size, from, file, chunk_size, to, size, tag } => {
                let origins = origins(operations, source, from as i64 - to as i64);
                let edges = edges(operations, from as i64 - to as i64);
                let steps = copy_steps(source_chunk_size, from, chunk_size, to, size);
                let copied = match operation.outcome {
                    Outcome::Copied(copied) if !operation.lost => copied,
                    _ => 0,
                };
                let part = |offset, size| {
                    let (origins, edges, steps) = (origins.clone(), edges.clone(), steps.clone());
                    What::Copy { offset, size, tag, origins, edges, steps }
                };
                if copied > 0 {
                    self.add(file, number, operation, part(to, copied));
                }
                if copied < size {
                    // What lies behind the bytes that were told may have been copied as well, by steps beside the one
                    // that failed.
                    let event =
                        Event { number, start: operation.start, end: NEVER, what: part(to + copied, size - copied) };
                    self.push(file, event);
                }
                self.set_chunk_size(file, chunk_size);
            }
            Action::Seek { file, offset, hole, .. } => {
                let Outcome::Found(found) = operation.outcome else { return };
                if operation.lost {
                    return;
                }
                let what = match (hole, found) {
                    (_, Some(found)) => What::SizeAtLeast { size: found + u64::from(!hole) },
                    (true, None) => What::SizeAtMost { size: offset },
                    (false, None) => What::HoleSeen { from: offset, to: u64::MAX },
                };
                self.add(file, number, operation, what);
                if let (false, Some(found)) = (hole, found) {
                    self.add(file, number, operation, What::HoleSeen { from: offset, to: found });
                }
            }
            _ => {}
        }
    }

    fn note_observation(&mut self, number: usize, operation: &'a Operation) {
        if operation.lost {
            return;
        }
        match (&operation.action, &operation.outcome) {
            (Action::Read { file, chunk_size, offset, size }, Outcome::Bytes(bytes)) => {
                self.add(*file, number, operation, What::Read { offset: *offset, size: *size, bytes });
                self.set_chunk_size(*file, *chunk_size);
            }
            (_, Outcome::Seen(seen)) if seen.kind == wire::Kind::File => {
                self.add(seen.id, number, operation, What::SizeSeen { size: seen.size });
                self.add(seen.id, number, operation, What::TimeSeen { mtime: seen.mtime });
            }
            _ => {}
        }
    }
}

/// All writes to a file, as origins of a copy.
fn origins(operations: &[Operation], source: FileId, shift: i64) -> Rc<[Origin]> {
    let origin = |operation: &Operation| match operation.action {
        Action::Write { file, offset, size, tag, .. } if file == source => Some(Origin { tag, offset, size, shift }),
        _ => None,
    };
    operations.iter().filter_map(origin).collect()
}

/// Places in a target where something may have cut its source; those of all files, for one more does no harm.
fn edges(operations: &[Operation], shift: i64) -> Rc<[u64]> {
    let mut edges = BTreeSet::new();
    for operation in operations {
        let places = match operation.action {
            Action::TruncateFile { size, .. } | Action::TruncatePath { size, .. } => [size, size],
            Action::Allocate { offset, size, .. } => [offset, offset + size],
            _ => continue,
        };
        edges.extend(places.iter().filter_map(|place| place.checked_add_signed(-shift)));
    }
    edges.into_iter().collect()
}

/// Where single steps of a copy begin in the target: at chunk boundaries of either file and after so many bytes.
fn copy_steps(source_chunk_size: u32, from: u64, chunk_size: u32, to: u64, size: u64) -> Rc<[u64]> {
    let (source_chunk_size, chunk_size) = (u64::from(source_chunk_size), u64::from(chunk_size));
    let mut steps = Vec::new();
    let mut done = 0;
    while done < size {
        steps.push(to + done);
        let left = [(from + done, source_chunk_size), (to + done, chunk_size)];
        let step = left.iter().map(|(offset, chunk_size)| chunk_size - offset % chunk_size).min();
        done += step.unwrap_or(1).min(u64::from(COPY_SIZE_MAX)).min(size - done);
    }
    steps.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;

    /// Goal: a truncate by path counts for a file that was seen only after it was moved away from that path, by itself,
    /// with the directory that it was in, or both; also one by another name that it was given before. Method: the
    /// create has no outcome, and the file is seen at its last path.
    #[test]
    fn moved_before_it_was_seen() {
        let path = |parts: &[&str]| Path { parts: parts.iter().map(|part| (*part).into()).collect() };
        let (old, new, within) = (path(&["d", "f"]), path(&["d", "g"]), path(&["e", "d", "g"]));
        let alone: &[(Path, Path)] = &[(old.clone(), new.clone())];
        let with_directory = &[(path(&["d"]), path(&["e", "d"]))];
        let both = &[(old.clone(), new.clone()), (path(&["d"]), path(&["e", "d"]))];
        let over_unnamed =
            &[(path(&["d"]), path(&["e", "s"])), (path(&["e"]), path(&["x", "s"])), (path(&["x"]), path(&["y"]))];
        let far = path(&["y", "s", "s", "f"]);
        let cases = [(alone, new), (with_directory, path(&["e", "d", "f"])), (both, within), (over_unnamed, far)];
        for (moves, last) in cases {
            let seen =
                crate::history::Seen { id: FileId(7), kind: wire::Kind::File, mode: 0, links: 1, size: 50, mtime: 0 };
            let create = Action::Open {
                path: old.clone(),
                create: true,
                exclusive: false,
                truncate: false,
                mode: 0,
                chunk_size: 4096,
            };
            let other = path(&["o"]);
            for cut in [old.clone(), other.clone()] {
                let mut steps = vec![
                    (create.clone(), Outcome::Unknown(None)),
                    (Action::Link { from: old.clone(), to: other.clone() }, Outcome::Done),
                    (Action::TruncatePath { path: cut, size: 50 }, Outcome::Done),
                ];
                steps.extend(moves.iter().cloned().map(|(from, to)| {
                    (Action::Rename { from, to, no_replace: false, exchange: false }, Outcome::Done)
                }));
                steps.push((Action::Stat { path: last.clone() }, Outcome::Seen(seen)));
                let mut history = History::default();
                for (action, outcome) in steps {
                    let index = history.start(0, action, 0);
                    history.finish(index, outcome, 0);
                }
                let files = by_file(&history.operations);
                assert!(files.iter().all(|file| super::super::sizes::check(file).is_empty()), "{moves:?}");
            }
        }
    }
}
